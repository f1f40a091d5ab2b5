//! Quota files after any operations; e2fsck counts again and judges them.

use std::path::Path;
use std::sync::Arc;

use extant_base::Ino;
use extant_device::FileDevice;
use extant_ondisk::inode::flags;
use extant_testkit::trees::Random;
use extant_volume::{Follow, New, OpenOptions, Refusal, Rename, SetAttr, SetXattr, Volume, WriteOptions};

const TYPES: &[&str] = &["-E", "quotatype=usrquota:grpquota:prjquota"];
/// Kinds of images that count blocks, clusters, maps and attribute values differently.
const KINDS: &[(&str, &[&str])] = &[
    ("today's", &["-O", "quota,project,metadata_csum_seed,orphan_file"]),
    ("small blocks", &["-b", "1024", "-O", "quota,project"]),
    ("without extents", &["-b", "1024", "-O", "quota,project,^extents,^64bit,^metadata_csum"]),
    ("clusters", &["-O", "quota,project,bigalloc,ea_inode", "-C", "16384", "-N", "8192", "-b", "1024"]),
    ("large values", &["-O", "quota,project,ea_inode,orphan_file", "-b", "1024"]),
    ("inline data", &["-O", "quota,project,inline_data"]),
];

fn make(path: &Path, options: &[&str], size: &str) {
    let path = path.to_str().unwrap();
    let args = ["-q", "-F", "-t", "ext4"].iter().chain(options).chain(TYPES).copied();
    extant_testkit::run("mke2fs", args.chain([path, size]));
}

fn open(path: &Path, write: WriteOptions) -> Volume {
    let device = Arc::new(FileDevice::open(path, true).unwrap());
    Volume::open(device, &OpenOptions { write, ..OpenOptions::default() }).unwrap()
}

fn each_kind(test: impl Fn(&str, &Path)) {
    for (name, options) in KINDS {
        let scratch = extant_testkit::scratch();
        let path = scratch.path().join("image");
        make(&path, options, "64M");
        println!("{name}");
        test(name, &path);
        extant_testkit::e2fsck_clean(&path);
    }
}

fn of(uid: u32, gid: u32, new: New<'_>) -> New<'_> {
    New { uid, gid, ..new }
}

fn project(project: u32) -> SetAttr {
    SetAttr { project: Some(project), ..SetAttr::default() }
}

/// A directory whose project is inherited by new entries.
fn project_dir(volume: &Volume, name: &[u8], id: u32) -> Ino {
    let dir = volume.names().create(Ino::ROOT, name, &New::directory(0o755)).unwrap().ino();
    let had = volume.inode(dir).unwrap().fields().flags;
    let set = SetAttr { project: Some(id), flags: Some(had | flags::PROJINHERIT), ..SetAttr::default() };
    volume.attributes().set_attr(dir, &set).unwrap();
    dir
}

#[test]
fn each_way_to_use_space_is_counted() {
    each_kind(|kind, path| {
        let volume = open(path, WriteOptions::default());
        let dir =
            volume.names().create(Ino::ROOT, b"dir", &of(1000, 100, New::directory(0o2755))).unwrap().ino();
        for i in 0..400u32 {
            let name = format!("a name that makes the directory grow, and get an index {i}");
            volume.names().create(dir, name.as_bytes(), &of(1000 + i % 50, 7, New::file(0o644))).unwrap();
        }
        volume.names().create(dir, b"long", &of(5, 5, New::symlink(&[b'x'; 200]))).unwrap();
        let file =
            volume.names().create(Ino::ROOT, b"file", &of(70_000, 80_000, New::file(0o644))).unwrap().ino();
        let other =
            volume.names().create(Ino::ROOT, b"other", &of(70_001, 80_000, New::file(0o644))).unwrap().ino();
        for ino in [file, other] {
            // A block that both share, and EA inodes if the image has them.
            volume.attributes().set_xattr(ino, b"user.shared", &[7; 400], SetXattr::Any).unwrap();
        }
        if ["large values", "clusters"].contains(&kind) {
            volume.attributes().set_xattr(file, b"user.large", &[9; 5000], SetXattr::Any).unwrap();
            volume.attributes().set_xattr(other, b"user.large", &[9; 5000], SetXattr::Any).unwrap();
        }
        volume.sync().unwrap();
        let owner = SetAttr { uid: Some(3), gid: Some(u32::MAX - 1), ..SetAttr::default() };
        volume.attributes().set_attr(file, &owner).unwrap();
        volume.attributes().set_attr(dir, &SetAttr { uid: Some(4), ..project(9) }).unwrap();
        volume.attributes().set_attr(other, &project(1 << 24)).unwrap();
        volume.attributes().remove_xattr(other, b"user.shared").unwrap();
        let unnamed = volume.names().create_unnamed(dir, &of(6, 6, New::file(0))).unwrap().ino();
        for i in (0..400).filter(|i| i % 3 > 0) {
            let name = format!("a name that makes the directory grow, and get an index {i}");
            volume.names().unlink(dir, name.as_bytes()).unwrap();
        }
        volume.names().unlink(Ino::ROOT, b"other").unwrap();
        volume.released(unnamed).unwrap();
        volume.close().unwrap();
    });
}

#[test]
fn what_a_crash_left_is_counted_when_it_is_cleaned_up() {
    each_kind(|_, path| {
        let volume = open(path, WriteOptions::default());
        let new = of(1000, 100, New::file(0o644));
        let kept = volume.names().create(Ino::ROOT, b"kept", &new).unwrap().ino();
        volume.attributes().set_xattr(kept, b"user.block", &[1; 300], SetXattr::Any).unwrap();
        volume.opened(kept).unwrap();
        volume.names().unlink(Ino::ROOT, b"kept").unwrap();
        volume.names().create_unnamed(Ino::ROOT, &of(2000, 100, New::file(0))).unwrap();
        volume.sync().unwrap();
        drop(volume);
        open(path, WriteOptions::default()).close().unwrap();
    });
}

#[test]
fn projects_are_inherited_and_keep_others_out() {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    make(&path, KINDS[0].1, "64M");
    let volume = open(&path, WriteOptions::default());
    let dir = project_dir(&volume, b"dir", 42);
    let sub = volume.names().create(dir, b"sub", &New::directory(0o755)).unwrap();
    assert_eq!(sub.fields().projid, 42);
    assert!(sub.has_flag(flags::PROJINHERIT));
    let below = volume.names().create(sub.ino(), b"below", &New::file(0o644)).unwrap();
    assert_eq!(below.fields().projid, 42);
    assert!(!below.has_flag(flags::PROJINHERIT), "as the kernel: of directories only");

    let file = volume.names().create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
    let other = |done: Result<(), extant_volume::Fault>| assert!(done.unwrap_err().is(Refusal::OtherProject));
    other(volume.names().link(file, dir, b"link"));
    other(volume.names().rename((Ino::ROOT, b"file"), (dir, b"file"), Rename::Replace));
    other(volume.names().rename((Ino::ROOT, b"file"), (dir, b"sub"), Rename::Exchange));
    assert!(volume.names().link(file, dir, b"sub").unwrap_err().is(Refusal::Exists));
    volume.attributes().set_attr(file, &project(42)).unwrap();
    volume.names().link(file, dir, b"link").unwrap();
    volume.names().rename((Ino::ROOT, b"file"), (dir, b"file"), Rename::Replace).unwrap();
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
}

#[test]
fn an_owner_that_finds_no_space_is_refused_and_nothing_is_changed() {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    make(&path, &["-b", "1024", "-O", "quota,project", "-J", "size=1"], "3M");
    let volume = open(&path, WriteOptions::default());
    let mut full = false;
    for i in 0..2000u32 {
        let name = format!("a link whose target takes a block {i}");
        let new = of(i << 16, i << 8, New::symlink(&[b'x'; 100]));
        match volume.names().create(Ino::ROOT, name.as_bytes(), &new) {
            Ok(_) => {}
            Err(fault) => {
                assert!(fault.is(Refusal::NoSpace), "{fault}");
                full = true;
            }
        }
    }
    assert!(full);
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
}

#[test]
fn a_damaged_quota_file_is_not_written_under() {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    make(&path, &["-O", "quota"], "64M");
    let bytes = std::fs::read(&path).unwrap();
    let magic = 0xD9C0_1927_u32.to_le_bytes();
    let at = bytes.windows(4).position(|word| word == magic).unwrap();
    let mut damaged = bytes;
    damaged[at] ^= 1;
    std::fs::write(&path, damaged).unwrap();
    let device = Arc::new(FileDevice::open(&path, true).unwrap());
    let refused = Volume::open(device, &OpenOptions::default()).map(drop).unwrap_err().to_string();
    assert!(refused.contains("quota file") && refused.contains("magic"), "{refused}");
}

/// Whether this kernel can be compared. Many kernels are built without quotas (CONFIG_QFMT_V2), and mount
/// such images read-only.
fn kernel_counts() -> bool {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    make(&path, KINDS[0].1, "16M");
    let mounted = extant_testkit::is_root() && extant_testkit::LoopMount::new(&path, "prjquota").is_ok();
    if !mounted {
        eprintln!("not root, or a kernel without quotas: nothing is compared");
    }
    mounted
}

/// The kernel adds, changes and removes entries in quota files that extant wrote, and extant in files that
/// the kernel wrote.
#[test]
fn the_kernel_and_we_take_turns() {
    if !kernel_counts() {
        return;
    }
    for (kind, options) in &KINDS[..2] {
        let scratch = extant_testkit::scratch();
        let path = scratch.path().join("image");
        make(&path, options, "64M");
        for round in 0..3u32 {
            let volume = open(&path, WriteOptions::default());
            let dir = volume.names().create(Ino::ROOT, format!("{round}").as_bytes(), &New::directory(0o755));
            let dir = dir.unwrap().ino();
            for i in 0..60u32 {
                // Some ids of the last round, some new ones.
                let id = (round * 30 + i) * 257;
                let new = of(id, id / 2, New::symlink(&[b'x'; 100]));
                volume.names().create(dir, format!("{i}").as_bytes(), &new).unwrap();
                if i % 3 == 0 {
                    volume.names().unlink(dir, format!("{i}").as_bytes()).unwrap();
                }
            }
            volume.close().unwrap();
            extant_testkit::e2fsck_clean(&path);

            let options = "usrquota,grpquota,prjquota";
            let mount = extant_testkit::LoopMount::new(&path, options)
                .unwrap_or_else(|error| panic!("{kind}: {error}"));
            let here = mount.path().join(format!("{round}"));
            for i in (0..60u32).filter(|i| i % 3 == 1) {
                std::fs::remove_file(here.join(format!("{i}"))).unwrap();
            }
            for i in 0..40u32 {
                let name = here.join(format!("kernel {i}"));
                std::fs::write(&name, vec![1; 3000]).unwrap();
                std::os::unix::fs::lchown(&name, Some((round * 20 + i) * 300), Some(i)).unwrap();
            }
            drop(mount);
            extant_testkit::e2fsck_clean(&path);
        }
    }
}

/// The kernel's answers to operations between projects.
#[test]
fn the_kernel_refuses_what_we_refuse() {
    if !kernel_counts() {
        return;
    }
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    make(&path, KINDS[0].1, "64M");
    let volume = open(&path, WriteOptions::default());
    let dir = project_dir(&volume, b"dir", 42);
    for name in ["one", "two"] {
        volume.names().create(Ino::ROOT, name.as_bytes(), &New::file(0o644)).unwrap();
    }
    volume.names().create(Ino::ROOT, b"empty", &New::directory(0o755)).unwrap();
    let full = volume.names().create(dir, b"full", &New::directory(0o755)).unwrap().ino();
    volume.names().create(full, b"file", &New::file(0o644)).unwrap();
    let theirs = scratch.path().join("theirs");
    let ours = |done: Result<(), extant_volume::Fault>| done.err().map(|fault| fault.errno());
    let answers = [
        ours(volume.names().link(
            volume.names().resolve(b"/one", Follow::Links).unwrap().ino(),
            dir,
            b"link",
        )),
        ours(volume.names().link(
            volume.names().resolve(b"/one", Follow::Links).unwrap().ino(),
            dir,
            b"full",
        )),
        ours(volume.names().rename((Ino::ROOT, b"one"), (dir, b"one"), Rename::Replace)),
        ours(volume.names().rename((Ino::ROOT, b"one"), (dir, b"full"), Rename::Replace)),
        ours(volume.names().rename((Ino::ROOT, b"empty"), (dir, b"full"), Rename::Replace)),
        ours(volume.names().rename((dir, b"full"), (Ino::ROOT, b"empty"), Rename::Replace)),
        ours(volume.names().rename((full, b"file"), (dir, b"file"), Rename::Replace)),
    ];
    volume.close().unwrap();
    std::fs::copy(&path, &theirs).unwrap();
    // Restores the initial state: the last two operations had succeeded.
    let volume = open(&theirs, WriteOptions::default());
    let root = Ino::ROOT;
    volume.names().rename((root, b"empty"), (dir, b"full"), Rename::Replace).unwrap();
    volume.names().create(root, b"empty", &New::directory(0o755)).unwrap();
    volume.names().rename((dir, b"file"), (full, b"file"), Rename::Replace).unwrap();
    volume.close().unwrap();
    let mount = extant_testkit::LoopMount::new(&theirs, "prjquota").unwrap();
    let at = |name: &str| mount.path().join(name);
    let theirs = |done: std::io::Result<()>| done.err().and_then(|error| error.raw_os_error());
    let expected = [
        theirs(std::fs::hard_link(at("one"), at("dir/link"))),
        theirs(std::fs::hard_link(at("one"), at("dir/full"))),
        theirs(std::fs::rename(at("one"), at("dir/one"))),
        theirs(std::fs::rename(at("one"), at("dir/full"))),
        theirs(std::fs::rename(at("empty"), at("dir/full"))),
        theirs(std::fs::rename(at("dir/full"), at("empty"))),
        theirs(std::fs::rename(at("empty/file"), at("dir/file"))),
    ];
    assert_eq!(answers, expected);
}

/// Random operations with commits between them, and power failures: after a reopen, everything that was
/// synced is counted correctly.
#[test]
fn any_operations_are_counted() {
    each_kind(|kind, path| {
        for round in 0..4u64 {
            let mut random = Random::new(round);
            let volume = open(path, WriteOptions { no_committer: true, ..WriteOptions::default() });
            let mut open_files = Vec::new();
            for _ in 0..1500 {
                if let Err(fault) = any_operation(&volume, &mut random, &mut open_files) {
                    assert!(
                        matches!(fault, extant_volume::Fault::Refused(_)),
                        "{kind}, round {round}: {fault}"
                    );
                }
            }
            if round % 2 == 1 {
                volume.sync().unwrap();
                drop(volume); // as in a power failure
                continue;
            }
            for ino in open_files {
                volume.released(ino).unwrap();
            }
            volume.close().unwrap();
            extant_testkit::e2fsck_clean(path);
        }
        open(path, WriteOptions::default()).close().unwrap();
    });
}

fn any_operation(
    volume: &Volume,
    random: &mut Random,
    open_files: &mut Vec<Ino>,
) -> Result<(), extant_volume::Fault> {
    let id =
        |random: &mut Random| [0, 1, 2, 300, 70_000, 70_001, 1 << 24, u32::MAX - 1][random.below(8) as usize];
    let dir = |random: &mut Random| {
        let name = format!("/dir {}", random.below(4));
        volume.names().resolve(name.as_bytes(), Follow::Links).map_or(Ino::ROOT, |dir| dir.ino())
    };
    let name = format!("{}", random.below(30));
    let name = name.as_bytes();
    let here = dir(random);
    let there = dir(random);
    let find = |name: &[u8]| volume.names().lookup(&*volume.inode(here)?, name).map(|inode| inode.ino());
    match random.below(20) {
        0 => {
            let name = format!("dir {}", random.below(4));
            let new = of(id(random), id(random), New::directory(0o2755));
            let made = volume.names().create(Ino::ROOT, name.as_bytes(), &new)?;
            let flags = Some(made.fields().flags | flags::PROJINHERIT);
            let set = SetAttr { flags, ..project(random.below(2) as u32) };
            volume.attributes().set_attr(made.ino(), &set).map(drop)
        }
        1..=4 => volume.names().create(here, name, &of(id(random), id(random), New::file(0o644))).map(drop),
        5 => volume.names().create(here, name, &of(id(random), id(random), New::directory(0o755))).map(drop),
        6 => volume
            .names()
            .create(here, name, &of(id(random), id(random), New::symlink(&[b'x'; 80])))
            .map(drop),
        7 => volume.names().unlink(here, name),
        8 => volume.names().rmdir(here, name),
        9 => {
            let modes = [Rename::Replace, Rename::Exchange, Rename::Whiteout];
            let how = modes[random.below(3) as usize];
            let other = format!("{}", random.below(30));
            volume.names().rename((here, name), (there, other.as_bytes()), how)
        }
        10 => volume.names().link(find(name)?, there, format!("{}", random.below(30)).as_bytes()),
        11..=12 => {
            let set = SetAttr { uid: Some(id(random)), gid: Some(id(random)), ..SetAttr::default() };
            volume.attributes().set_attr(find(name)?, &set).map(drop)
        }
        13 => volume.attributes().set_attr(find(name)?, &project(id(random))).map(drop),
        14..=16 => {
            let len = [10, 300, 3000, 9000][random.below(4) as usize];
            let key = format!("user.{}", random.below(3));
            volume.attributes().set_xattr(find(name)?, key.as_bytes(), &vec![5; len], SetXattr::Any)
        }
        17 => volume.attributes().remove_xattr(find(name)?, format!("user.{}", random.below(3)).as_bytes()),
        18 => {
            let new = of(id(random), id(random), New::file(0o600));
            open_files.push(volume.names().create_unnamed(here, &new)?.ino());
            if open_files.len() > 3 { volume.released(open_files.swap_remove(0)) } else { Ok(()) }
        }
        _ => {
            let file = find(name)?;
            volume.opened(file)?;
            open_files.push(file);
            volume.names().unlink(here, name)
        }
    }
}
