//! Changes of file sizes: zeros after the end, the result of device failures, files inside inodes, limits.
//! e2fsck judges the images, and the kernel if the test runs as root.

use crate::common;

use std::fs::OpenOptions as HostOptions;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use crate::common::small::{edit, find, image, open};
use extant_base::Ino;
use extant_device::FileDevice;
use extant_simdisk::{Faulty, Op, Rule};
use extant_volume::{Fault, New, OpenOptions, OrphanMode, SetAttr, Volume, WriteOptions};

fn resize(volume: &Volume, ino: Ino, size: u64) -> Result<(), Fault> {
    volume.attributes().set_attr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).map(drop)
}

fn content(volume: &Volume, ino: Ino) -> Vec<u8> {
    let inode = volume.inode(ino).unwrap();
    let mut bytes = vec![0xEE; inode.size().min(100_000) as usize];
    let read = volume.files().read(&inode, 0, &mut bytes).unwrap();
    assert_eq!(read, bytes.len());
    bytes
}

fn source(scratch: &Path, len: usize) -> Vec<u8> {
    let bytes: Vec<u8> = (0..len).map(|at| b'a' + (at % 23) as u8).collect();
    std::fs::write(scratch.join("source"), &bytes).unwrap();
    bytes
}

/// The content of `bytes` after it had all these lengths.
fn resized(bytes: &[u8], sizes: &[u64]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for size in sizes {
        bytes.resize((*size).min(100_000) as usize, 0);
    }
    bytes
}

/// A file inside its inode stays there while it fits, also after a truncate; otherwise it moves into a block.
/// Truncated bytes never reappear.
#[test]
fn files_inside_inodes_are_cut_and_grow() {
    for len in [5, 60, 61, 100, 125] {
        for sizes in [
            &[0][..],
            &[3, 50],
            &[59, 60, 59, 140],
            &[60, 61],
            &[61, 99, 61, 100],
            &[99, 120, 5000],
            &[141, 10, 141],
            &[3 << 30],
            &[0, 10_000, 7, 20],
        ] {
            let scratch = extant_testkit::scratch();
            let bytes = source(scratch.path(), len);
            let from = scratch.path().join("source");
            let write = format!("write {} file", from.display());
            let path = image(scratch.path(), &["-O", "inline_data"], &[&write]);
            let volume = open(&path);
            let file = find(&volume, b"file");
            assert!(volume.inode(file).unwrap().is_inline());
            for size in sizes {
                resize(&volume, file, *size).unwrap();
            }
            let expected = resized(&bytes, sizes);
            assert_eq!(content(&volume, file), expected, "{len} {sizes:?}");
            volume.close().unwrap();
            extant_testkit::e2fsck_clean(&path);
            let volume = common::open(&path, None);
            assert_eq!(content(&volume, file), expected, "{len} {sizes:?}");
            let size = volume.inode(file).unwrap().size();
            assert_eq!(size, *sizes.last().unwrap());
            if extant_testkit::kernel_mounts_kind_of(&path) {
                let mount = extant_testkit::LoopMount::read_only(&path).unwrap();
                let name = mount.path().join("file");
                assert_eq!(name.metadata().unwrap().len(), size);
                if size <= 100_000 {
                    assert_eq!(std::fs::read(name).unwrap(), expected, "{len} {sizes:?}");
                }
            }
        }
    }
}

/// When a file grows, neither truncated bytes nor earlier bytes after its end reappear.
#[test]
fn a_file_that_grows_again_has_zeros_behind_its_old_end() {
    for (flags, stale) in [("0x80000", false), ("0x84000", false), ("0x80000", true)] {
        let scratch = extant_testkit::scratch();
        let bytes = source(scratch.path(), 3000);
        let write = format!("write {} file", scratch.path().join("source").display());
        let set = format!("set_inode_field file flags {flags}");
        let path = image(scratch.path(), &["-b", "1024"], &[&write, &set]);
        if stale {
            // The state after a crash in the middle of an appending write: the bytes are written, the size is
            // not.
            edit(&path, "set_inode_field file size 1500");
            edit(&path, "set_inode_field file blocks 6");
        }
        let volume = open(&path);
        let file = find(&volume, b"file");
        if !stale {
            resize(&volume, file, 1500).unwrap();
        }
        resize(&volume, file, 3000).unwrap();
        let is_zero = content(&volume, file)[1500..2048].iter().all(|byte| *byte == 0);
        assert!(is_zero, "{flags} {stale}");
        assert_eq!(content(&volume, file)[..1500], bytes[..1500]);
        volume.close().unwrap();
        if !stale {
            extant_testkit::e2fsck_clean(&path);
        }
        let volume = common::open(&path, None);
        assert!(content(&volume, file)[1500..2048].iter().all(|byte| *byte == 0), "{flags} {stale}");
    }
}

fn faulty(path: &Path) -> (Arc<Faulty<FileDevice>>, Volume) {
    faulty_with(path, WriteOptions::default())
}

fn faulty_with(path: &Path, write: WriteOptions) -> (Arc<Faulty<FileDevice>>, Volume) {
    let device = Arc::new(Faulty::new(FileDevice::open(path, true).unwrap()));
    let write = WriteOptions { no_committer: true, ..write };
    let options = OpenOptions { write, ..OpenOptions::default() };
    let volume = Volume::open(Arc::<Faulty<FileDevice>>::clone(&device), &options).unwrap();
    (device, volume)
}

/// If the zeros cannot be written, the truncate is refused and the file stays unchanged. After an abort
/// nothing is written at all.
#[test]
fn a_cut_that_cannot_zero_changes_nothing() {
    let scratch = extant_testkit::scratch();
    let bytes = source(scratch.path(), 3000);
    let write = format!("write {} file", scratch.path().join("source").display());
    let path = image(scratch.path(), &["-b", "1024"], &[&write]);
    let (device, volume) = faulty(&path);
    let file = find(&volume, b"file");
    device.arm(Rule::fail(Op::Write, 5));
    let fault = resize(&volume, file, 1500).unwrap_err();
    assert!(matches!(fault, Fault::Device(_)), "{fault}");
    assert_eq!(content(&volume, file), bytes);
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);

    let (device, volume) = faulty(&path);
    resize(&volume, file, 2900).unwrap();
    let failing = device.arm(Rule::fail(Op::Write, 5).from_then_on());
    volume.sync().unwrap_err();
    device.disarm(failing);
    let writes = device.counts();
    let fault = resize(&volume, file, 1500).unwrap_err();
    assert!(matches!(fault, Fault::Aborted(_)), "{fault}");
    assert_eq!(format!("{:?}", device.counts()), format!("{writes:?}"));
}

/// The file's map cannot be read when its tail should be freed: the file was already tracked as an orphan,
/// and is not any more afterwards.
#[test]
fn a_cut_that_cannot_read_the_map_tracks_nothing() {
    for orphans in [OrphanMode::ListV0, OrphanMode::ListV3, OrphanMode::File] {
        let scratch = extant_testkit::scratch();
        let mut bytes = source(scratch.path(), 12 << 10);
        // A hole after each block: more extents than an inode holds.
        (0..12).step_by(2).for_each(|block| bytes[block << 10..(block + 1) << 10].fill(0));
        std::fs::write(scratch.path().join("source"), &bytes).unwrap();
        let write = format!("write {} file", scratch.path().join("source").display());
        let path = image(scratch.path(), &["-b", "1024"], &[&write]);
        let (device, volume) =
            faulty_with(&path, WriteOptions { orphans, track_all_orphans: true, ..WriteOptions::default() });
        let file = find(&volume, b"file");
        let warm = volume.names().create(Ino::ROOT, b"warm", &New::file(0o644)).unwrap().ino();
        resize(&volume, warm, 10).unwrap();
        resize(&volume, warm, 5).unwrap();

        device.arm(Rule::fail(Op::Read, 5));
        let fault = resize(&volume, file, 4 << 10).unwrap_err();
        assert!(matches!(fault, Fault::Device(_)), "{orphans:?}: {fault}");
        assert_eq!(content(&volume, file), bytes, "{orphans:?}");
        volume.close().unwrap();
        extant_testkit::e2fsck_clean(&path);

        let (_device, volume) = faulty(&path);
        resize(&volume, file, 4 << 10).unwrap();
        assert_eq!(content(&volume, file), bytes[..4 << 10], "{orphans:?}");
        volume.close().unwrap();
        extant_testkit::e2fsck_clean(&path);
    }
}

/// Journaled content is zeroed in the journal: until the commit, the device has the old bytes and the old
/// size.
#[test]
fn journaled_content_is_zeroed_in_the_journal() {
    let scratch = extant_testkit::scratch();
    let bytes = source(scratch.path(), 3000);
    let write = format!("write {} file", scratch.path().join("source").display());
    let path = image(scratch.path(), &["-b", "1024"], &[&write, "set_inode_field file flags 0x84000"]);
    let (_, volume) = faulty(&path);
    let file = find(&volume, b"file");
    resize(&volume, file, 1500).unwrap();
    assert_eq!(content(&volume, file), bytes[..1500]);
    drop(volume);
    let (_, volume) = faulty(&path);
    assert_eq!(content(&volume, file), bytes);
    resize(&volume, file, 1500).unwrap();
    resize(&volume, file, 2000).unwrap();
    volume.sync().unwrap();
    drop(volume);
    let (_, volume) = faulty(&path);
    assert_eq!(content(&volume, file), resized(&bytes, &[1500, 2000]));
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
}

/// The first file of 2 GiB sets large_file, in the transaction that makes it so large.
#[test]
fn the_first_large_file_is_noted_in_the_superblock() {
    for options in
        [&["-O", "^large_file"][..], &["-t", "ext2", "-O", "^large_file"], &["-r", "0", "-t", "ext2"]]
    {
        let scratch = extant_testkit::scratch();
        source(scratch.path(), 10);
        let write = format!("write {} file", scratch.path().join("source").display());
        let path = image(scratch.path(), options, &[&write]);
        let has_it = || extant_testkit::dumpe2fs(&path).features().contains(&"large_file");
        assert!(!has_it());
        let volume = open(&path);
        let file = find(&volume, b"file");
        resize(&volume, file, (1 << 31) - 1).unwrap();
        volume.close().unwrap();
        assert!(!has_it());
        let volume = open(&path);
        resize(&volume, file, 1 << 31).unwrap();
        // Power fails after the commit, if there is a log.
        volume.sync().unwrap();
        drop(volume);
        let volume = open(&path);
        assert_eq!(volume.inode(file).unwrap().size(), 1 << 31);
        volume.close().unwrap();
        assert!(has_it(), "{options:?}");
        extant_testkit::e2fsck_clean(&path);
    }
}

/// The maximum file size is the kernel's, for every kind of map and block count.
#[test]
fn the_largest_file_is_the_kernels() {
    for options in [
        &["-b", "4096"][..],
        &["-b", "1024"],
        &["-b", "4096", "-O", "^huge_file"],
        &["-b", "1024", "-O", "^huge_file"],
        &["-b", "4096", "-t", "ext3"],
        &["-b", "1024", "-t", "ext3"],
        &["-b", "4096", "-t", "ext3", "-O", "huge_file"],
        &["-b", "2048", "-t", "ext3"],
    ] {
        let scratch = extant_testkit::scratch();
        source(scratch.path(), 10);
        let write = format!("write {} file", scratch.path().join("source").display());
        let path = image(scratch.path(), options, &[&write]);
        let volume = open(&path);
        let file = find(&volume, b"file");
        let (mut fits, mut too_large) = (0u64, 1 << 63);
        while too_large - fits > 1 {
            let middle = fits + (too_large - fits) / 2;
            match resize(&volume, file, middle) {
                Ok(()) => fits = middle,
                Err(fault) => {
                    assert!(fault.errno() == 27, "{options:?} {middle}: {fault}");
                    too_large = middle;
                }
            }
        }
        volume.close().unwrap();
        extant_testkit::e2fsck_clean(&path);
        if !extant_testkit::kernel_mounts_kind_of(&path) {
            continue;
        }
        let mount = extant_testkit::LoopMount::new(&path, "rw").unwrap();
        let file = HostOptions::new().write(true).open(mount.path().join("file")).unwrap();
        file.set_len(fits).unwrap_or_else(|error| panic!("{options:?}: {fits}: {error}"));
        match file.set_len(too_large) {
            Ok(()) => panic!("{options:?}: the kernel takes {too_large}"),
            Err(refused) => assert_eq!(refused.kind(), ErrorKind::FileTooLarge, "{options:?}: {too_large}"),
        }
    }
}

/// A truncate that a crash interrupted is finished with zeros after the end, also inside an inode.
#[test]
fn an_interrupted_cut_is_finished() {
    let scratch = extant_testkit::scratch();
    let bytes = source(scratch.path(), 125);
    let write = format!("write {} file", scratch.path().join("source").display());
    let path = image(scratch.path(), &["-O", "inline_data"], &[&write]);
    let file = find(&open(&path), b"file");
    edit(&path, "set_inode_field file size 70");
    edit(&path, &format!("set_super_value last_orphan {file}"));
    let volume = open(&path);
    resize(&volume, file, 100).unwrap();
    assert_eq!(content(&volume, file), resized(&bytes, &[70, 100]));
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
}
