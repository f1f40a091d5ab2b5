//! Inodes of groups that go get other numbers: in names, in attributes, in checksums, in the superblock.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use extant_device::{Device, FileDevice};
use extant_resize::{Fixed, ResizeFault, ResizeOptions, Size, resize};
use extant_simdisk::{Image, SimDisk};
use extant_testkit::{LoopMount, command, run};
use extant_volume::{Follow, OpenOptions, SetXattr, Volume};

use crate::cuts::{all_cuts, e2fsck, findings, recovered};
use crate::grow::{check_clean, grow as resize_to};
use crate::tree::tree_of;

pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) mke2fs: &'static [&'static str],
    /// Options of tune2fs: its inodes come after those of the files.
    pub(crate) tune2fs: &'static [&'static [&'static str]],
}

const SMALL_GROUPS: &[&str] = &["-b", "1024", "-g", "1024", "-N", "6000"];

pub(crate) const KINDS: &[Kind] = &[
    Kind { name: "ext4", mke2fs: &["-t", "ext4"], tune2fs: &[] },
    Kind { name: "ext3", mke2fs: &["-t", "ext3"], tune2fs: &[] },
    Kind {
        name: "uninit_bg",
        mke2fs: &["-t", "ext4", "-O", "^metadata_csum,uninit_bg,^64bit"],
        tune2fs: &[],
    },
    Kind { name: "inline", mke2fs: &["-t", "ext4", "-O", "inline_data,ea_inode", "-I", "512"], tune2fs: &[] },
    Kind { name: "bigalloc", mke2fs: &["-t", "ext4", "-O", "bigalloc", "-C", "4096"], tune2fs: &[] },
    Kind { name: "ea_inode", mke2fs: &["-t", "ext4", "-O", "ea_inode"], tune2fs: &[] },
    Kind {
        name: "system",
        mke2fs: &["-t", "ext4", "-O", "project"],
        tune2fs: &[&["-O", "quota", "-Q", "prjquota"], &["-O", "orphan_file"]],
    },
];

/// `first` is removed later, so that the inodes of what remains are far behind.
fn fill(dir: &Path) {
    std::fs::create_dir_all(dir.join("first")).unwrap();
    for i in 0..2500 {
        std::fs::write(dir.join(format!("first/{i}")), "").unwrap();
    }
    for i in 0..40u32 {
        let sub = dir.join(format!("kept/{}/{i}/below", i % 4));
        std::fs::create_dir_all(&sub).unwrap();
        for n in 0..12u32 {
            std::fs::write(sub.join(n.to_string()), vec![(i + n) as u8; (i * n * 37) as usize]).unwrap();
        }
        std::os::unix::fs::symlink("y".repeat(80), sub.join("link")).unwrap();
    }
    for i in 0..600u32 {
        let name = format!("kept/many-names-in-an-indexed-directory-{i}");
        match i % 3 {
            0 => std::fs::hard_link(
                dir.join(format!("kept/{}/{}/below/{}", i % 4, i % 40 / 4 * 4 + i % 4, i % 12)),
                dir.join(name),
            )
            .unwrap(),
            _ => std::fs::write(dir.join(name), format!("{i}")).unwrap(),
        }
    }
    use std::os::unix::fs::FileExt;
    // Many extents: the tree has blocks, whose checksums depend on the number.
    let sparse = std::fs::File::create(dir.join("kept/sparse")).unwrap();
    for at in 0..60 {
        sparse.write_at(b"data", at * 50_000).unwrap();
    }
}

pub(crate) fn image(dir: &Path, kind: &Kind) -> PathBuf {
    let source = dir.join("inodes");
    if !source.exists() {
        fill(&source);
    }
    let image = dir.join("inodes.img");
    let _ = std::fs::remove_file(&image);
    let mut args: Vec<&str> = vec!["-q", "-F"];
    args.extend(kind.mke2fs.iter().chain(SMALL_GROUPS));
    if kind.name != "ext2" {
        args.extend(["-J", "size=2"]);
    }
    args.extend(["-d", source.to_str().unwrap(), image.to_str().unwrap(), "60M"]);
    run("mke2fs", args);
    for options in kind.tune2fs {
        run("tune2fs", options.iter().copied().chain([image.to_str().unwrap()]));
    }
    command("e2fsck").arg("-fyD").arg(&image).output().unwrap();
    let device = Arc::new(FileDevice::open(&image, true).unwrap());
    let volume = Volume::open(device, &OpenOptions::default()).unwrap();
    let first = volume.names().resolve(b"/first", Follow::Links).unwrap();
    if kind.mke2fs.iter().any(|option| option.contains("ea_inode")) {
        for i in 0..40 {
            let path = format!("/kept/{}/{i}/below/{}", i % 4, i % 12);
            let file = volume.names().resolve(path.as_bytes(), Follow::Links).unwrap();
            let value = vec![b'a' + (i % 7) as u8; 5000 + i % 7];
            for name in [&b"user.large"[..], b"user.another"] {
                volume.attributes().set_xattr(file.ino(), name, &value, SetXattr::Any).unwrap();
            }
            volume.attributes().set_xattr(file.ino(), b"user.more", &[b'm'; 300], SetXattr::Any).unwrap();
        }
    }
    for i in 0..2500 {
        volume.names().unlink(first.ino(), i.to_string().as_bytes()).unwrap();
    }
    volume.close().unwrap();
    image
}

#[test]
fn inodes_after_the_new_end_move() {
    let dir = extant_testkit::scratch();
    for kind in KINDS {
        let name = kind.name;
        let image = image(dir.path(), kind);
        let tree = tree_of(Arc::new(FileDevice::open(&image, false).unwrap())).unwrap();
        for wanted in [Size::Bytes(25 << 20), Size::Min, Size::Bytes(70 << 20)] {
            let name = format!("{name} to {wanted:?}");
            let report = resize_to(&image, wanted).unwrap_or_else(|fault| panic!("{name}: {fault}"));
            let shrinks = report.after.blocks < report.before.blocks;
            let moves = wanted == Size::Bytes(25 << 20);
            // Groups of clusters have more blocks, and fewer inodes for each.
            let may_move = kind.name == "bigalloc" && wanted == Size::Min;
            assert!(may_move || (report.moved_inodes > 0) == moves, "{name}: {report:?}");
            let out = command("e2fsck").arg("-fn").arg(&image).output().unwrap();
            assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stdout));
            check_clean(&name, &image);
            let now = tree_of(Arc::new(FileDevice::open(&image, false).unwrap())).unwrap();
            assert_eq!(now, tree, "{name}");
            if shrinks && !extant_testkit::not_root() {
                let view = extant_testkit::walk::KernelView::open(&image, None);
                view.unwrap_or_else(|error| panic!("{name}: {error}"));
            }
            eprintln!("{name}: {} groups, {} inodes moved", report.after.groups, report.moved_inodes);
        }
    }
}

#[test]
fn a_cut_while_inodes_move_loses_nothing() {
    let dir = extant_testkit::scratch();
    for kind in KINDS.iter().filter(|kind| ["ext4", "inline", "system"].contains(&kind.name)) {
        let path = image(dir.path(), kind);
        let disk =
            Arc::new(SimDisk::recording(Image::read_from(&FileDevice::open(&path, false).unwrap()).unwrap()));
        let device: Arc<dyn Device> = Arc::<SimDisk>::clone(&disk);
        let tree = tree_of(Arc::clone(&device)).unwrap();
        let shrink = |device: &Arc<dyn Device>| {
            let mut storage = Fixed(Arc::clone(device));
            resize(&mut storage, Size::Min, &ResizeOptions::default(), &(), &AtomicBool::new(false))
        };
        let done = shrink(&device).unwrap();
        assert!(done.moved_inodes > 0 && done.steps > 2, "{done:?}");
        let recording = disk.recorded().unwrap();
        let mut cuts = 0;
        for (cut, (at, seed)) in all_cuts(&recording, 40, 1).enumerate() {
            let name = format!("{} at {at} of {}", kind.name, recording.end());
            let device = recovered(recording.cut(at, seed)).unwrap_or_else(|why| panic!("{name}: {why}"));
            // The backups are written after the switch.
            let mut found = findings(&*device);
            found.retain(|text| !text.starts_with("GD012") && !text.starts_with("SB017"));
            assert!(found.is_empty(), "{name}: {found:#?}");
            assert_eq!(tree_of(Arc::clone(&device)).unwrap(), tree, "{name}");
            cuts += 1;
            if cut % 6 == 0 {
                let (code, out) = e2fsck(&*device, &dir.path().join("cut"), "-fn");
                assert_eq!(code, 0, "{name}: {out}");
                shrink(&device).unwrap_or_else(|fault| panic!("{name}: again: {fault}"));
                assert!(findings(&*device).is_empty(), "{name}: {:#?}", findings(&*device));
                assert_eq!(tree_of(Arc::clone(&device)).unwrap(), tree, "{name}: again");
            }
        }
        eprintln!("{}: {cuts} cuts, {} steps, {} inodes", kind.name, done.steps, done.moved_inodes);
    }
}

#[test]
fn inodes_of_a_mount_and_of_ext2_keep_their_numbers() {
    let dir = extant_testkit::scratch();
    let path = image(dir.path(), &KINDS[0]);
    let mut storage = Fixed(Arc::new(FileDevice::open(&path, true).unwrap()));
    let options = ResizeOptions { is_mounted: true, ..ResizeOptions::default() };
    let result = resize(&mut storage, Size::Bytes(18 << 20), &options, &(), &AtomicBool::new(false));
    let Err(ResizeFault::TooSmall { why, .. }) = result else { panic!("{result:?}") };
    assert!(why.contains("mount"), "{why}");
    let path = image(dir.path(), &Kind { name: "ext2", mke2fs: &["-t", "ext2"], tune2fs: &[] });
    let result = resize_to(&path, Size::Bytes(18 << 20));
    let Err(ResizeFault::TooSmall { why, .. }) = result else { panic!("{result:?}") };
    assert!(why.contains("tune -j"), "{why}");
}

/// In directories that the kernel converts to indexed ones, block 0 keeps the remains of a checksum tail.
#[test]
fn a_tree_of_the_kernel_moves() {
    if extant_testkit::not_root() {
        return;
    }
    let dir = extant_testkit::scratch();
    let image = dir.path().join("kernel.img");
    run(
        "mke2fs",
        [
            "-q",
            "-F",
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "^flex_bg",
            "-N",
            "15000",
            image.to_str().unwrap(),
            "120M",
        ],
    );
    {
        let mount = LoopMount::new(&image, "rw").unwrap_or_else(|error| panic!("{error}"));
        for sub in 0..60 {
            let sub = mount.path().join(format!("d{}/{sub}", sub % 7));
            std::fs::create_dir_all(&sub).unwrap();
            for n in 0..60 {
                std::fs::write(sub.join(format!("a-name-of-some-length-{n}")), vec![n; 900]).unwrap();
            }
        }
    }
    let tree = tree_of(Arc::new(FileDevice::open(&image, false).unwrap())).unwrap();
    let report = resize_to(&image, Size::Min).unwrap();
    assert!(report.moved_inodes > 0, "{report:?}");
    assert_eq!(tree_of(Arc::new(FileDevice::open(&image, false).unwrap())).unwrap(), tree);
    let out = command("e2fsck").arg("-fn").arg(&image).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
    check_clean("kernel", &image);
}
