//! Damaged volumes are read as far as possible: a truncated image, a lost primary superblock, damaged group
//! descriptors; and files with sizes that no map can have. The kernel refuses most of these; e2fsck judges
//! what is damage.

use crate::common;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::common::small::edit;
use extant_base::Ino;
use extant_device::FileDevice;
use extant_volume::{BySuperblock, Fault, Follow, New, OpenFault, OpenOptions, Refusal, Volume};

fn open_by(path: &Path, superblock: BySuperblock) -> Result<Volume, OpenFault> {
    let device = Arc::new(FileDevice::open_read_only(path).unwrap());
    Volume::open_read_only(device, &OpenOptions { superblock, ..OpenOptions::default() })
}

fn open(path: &Path) -> Volume {
    open_by(path, BySuperblock::Primary).unwrap()
}

fn read(volume: &Volume, path: &str) -> Result<Vec<u8>, Fault> {
    let file = volume.names().resolve(path.as_bytes(), Follow::Links)?;
    let mut bytes = vec![0; usize::try_from(file.size()).unwrap()];
    volume.files().read(&file, 0, &mut bytes)?;
    Ok(bytes)
}

/// An image of 40 MiB in groups of 8 MiB, with a file in the first group and one in the last. `options` are
/// further options of mke2fs.
fn image(scratch: &Path, options: &[&str]) -> std::path::PathBuf {
    let path = scratch.join("image");
    let hello = scratch.join("hello");
    std::fs::write(&hello, "hello").unwrap();
    let args = ["-q", "-F", "-t", "ext4", "-b", "1024", "-E", "lazy_itable_init=0"];
    extant_testkit::run("mke2fs", args.iter().chain(options).copied().chain([path.to_str().unwrap(), "40M"]));
    edit(&path, &format!("write {} hello", hello.display()));
    path
}

fn write_at(path: &Path, offset: u64, bytes: &[u8]) {
    std::fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

/// A partial download: bytes before its end can be read, reads after the end are device errors, and opening
/// it for writing is refused.
#[test]
fn an_image_that_ends_early_is_read_as_far_as_it_goes() {
    for options in [&[][..], &["-O", "^flex_bg"], &["-O", "^metadata_csum,^has_journal"]] {
        let scratch = extant_testkit::scratch();
        let path = image(scratch.path(), options);
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        for size in [30 << 20, 4 << 20] {
            file.set_len(size).unwrap();
            let volume = open(&path);
            let says = format!("after {} of the file system's 40960 blocks", size >> 10);
            assert!(volume.damage()[0].contains(&says), "{:?}", volume.damage());
            assert!(volume.salvaged().is_empty());
            assert_eq!(read(&volume, "/hello").unwrap(), b"hello");
            let device = Arc::new(FileDevice::open(&path, true).unwrap());
            let refused = Volume::open(device, &OpenOptions::default()).err().unwrap();
            assert!(matches!(refused, OpenFault::Damaged(_)), "{refused}");
        }
    }
}

/// Reading the blocks of a file after the end of the image is an error, and does not return zeros.
#[test]
fn what_lies_behind_the_end_is_an_error() {
    let scratch = extant_testkit::scratch();
    let path = image(scratch.path(), &[]);
    let place = extant_testkit::debugfs(&path, "bmap hello 0").trim().parse::<u64>().unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(place << 10).unwrap();
    let fault = read(&open(&path), "/hello").unwrap_err();
    assert!(matches!(fault, Fault::Device(_)), "{fault}");
}

/// The first blocks are overwritten: the volume uses the backups of the superblock and the descriptors, and
/// reports that.
#[test]
fn a_lost_superblock_is_replaced_by_a_backup() {
    for (options, lost) in [
        (&[][..], 0..2048),
        (&["-O", "^metadata_csum"], 0..2048),
        (&["-O", "^metadata_csum,^uninit_bg"], 1024..4096),
        (&["-O", "meta_bg,^resize_inode"], 0..3072),
        (&["-O", "sparse_super2,^resize_inode"], 0..4096),
    ] {
        let scratch = extant_testkit::scratch();
        let path = image(scratch.path(), options);
        write_at(&path, lost.start, &vec![0; (lost.end - lost.start) as usize]);
        let volume = open(&path);
        assert_eq!(read(&volume, "/hello").unwrap(), b"hello", "{options:?}");
        assert!(volume.damage()[0].contains("magic is 0x0000, expected 0xEF53"), "{:?}", volume.damage());
        assert!(volume.damage()[1].contains("block 8193"), "{:?}", volume.damage());
        let number = volume.names().resolve(b"hello", Follow::Links).unwrap().ino();
        assert_eq!(open(&path).inode(number).unwrap().size(), 5);
    }
}

/// On request, a backup is used although the primary is sound. A block without a backup is refused. So is an
/// image that begins with another file system and has old backups after it, unless a backup is requested.
#[test]
fn a_backup_is_used_where_it_is_asked_for() {
    let scratch = extant_testkit::scratch();
    let path = image(scratch.path(), &[]);
    for by in [BySuperblock::AnyBackup, BySuperblock::Backup(8193), BySuperblock::Backup(24577)] {
        let volume = open_by(&path, by).unwrap();
        assert!(volume.note().unwrap().contains("read by the backup superblock"));
        assert!(volume.damage().is_empty());
        assert_eq!(read(&volume, "/hello").unwrap(), b"hello");
    }
    let refused = open_by(&path, BySuperblock::Backup(8192)).err().unwrap().to_string();
    assert!(refused.contains("block 8192 holds no sound backup superblock"), "{refused}");
    write_at(&path, 1024, &[0; 1024]);
    write_at(&path, 0, b"XFSB");
    let refused = open_by(&path, BySuperblock::Primary).err().unwrap();
    assert!(
        matches!(&refused, OpenFault::Overwritten(what) if what.contains("an XFS file system")),
        "{refused}"
    );
    assert_eq!(read(&open_by(&path, BySuperblock::AnyBackup).unwrap(), "hello").unwrap(), b"hello");
}

/// Power failed after the commit, and the primary superblock is lost. Backups do not record that the log
/// needs replay, so the log itself is read.
#[test]
fn the_log_is_replayed_though_no_backup_speaks_of_it() {
    let scratch = extant_testkit::scratch();
    let path = image(scratch.path(), &[]);
    let volume = common::small::open(&path);
    volume.names().create(Ino::ROOT, b"late", &extant_volume::New::file(0o644)).unwrap();
    volume.sync().unwrap();
    let cut = scratch.path().join("cut");
    std::fs::copy(&path, &cut).unwrap();
    volume.close().unwrap();
    write_at(&cut, 1024, &[0; 1024]);
    let volume = open(&cut);
    assert!(volume.recovery().needed);
    assert!(volume.names().resolve(b"late", Follow::Links).is_ok());
}

/// A flipped bit in a descriptor must not make intact inodes unreadable: a backup is used, or, if there is
/// none, the descriptor as it is, because inodes have their own checksums.
#[test]
fn damaged_descriptors_keep_no_intact_inode_from_being_read() {
    for (options, size) in [(&[][..], "40M"), (&["-O", "^resize_inode"], "8M")] {
        let scratch = extant_testkit::scratch();
        let path = image(scratch.path(), options);
        if size == "8M" {
            extant_testkit::run("resize2fs", ["-f", path.to_str().unwrap(), size]);
        }
        // The free blocks count of group 0.
        write_at(&path, 2048 + 12, &[0xEE, 0xEE]);
        let volume = open(&path);
        assert_eq!(read(&volume, "/hello").unwrap(), b"hello");
        let lines = volume.salvaged();
        let says = if size == "8M" { "used as they are" } else { "their backups are used" };
        assert!(lines.len() == 1 && lines[0].contains(says) && lines[0].ends_with("group 0"), "{lines:?}");
    }
}

/// Sizes that a map cannot reach, as e2fsck and the kernel judge them: extents, block maps, and inline data,
/// whose files have the limit of block maps. The maximum sizes stay valid.
#[test]
fn sizes_that_no_map_has_are_corrupt() {
    let indirect = (12 + 256 + 256 * 256 + 256 * 256 * 256) * 1024u64;
    for (options, max) in [
        (&[][..], u64::from(u32::MAX) << 10),
        (&["-O", "^extent,^64bit"], indirect),
        (&["-O", "inline_data"], indirect),
    ] {
        for (size, is_good) in [(max, true), (max + 1, false), (944_892_805_123, false), (1 << 60, false)] {
            let scratch = extant_testkit::scratch();
            let path = image(scratch.path(), options);
            edit(&path, &format!("set_inode_field hello size {size}"));
            let is_good = is_good || size <= max;
            let found = open(&path).names().resolve(b"hello", Follow::Links);
            assert_eq!(found.is_ok(), is_good, "{options:?} {size}");
            // e2fsck accepts a partial last block; the kernel refuses it.
            if size == max + 1 {
                continue;
            }
            let judged = extant_testkit::command("e2fsck").args(["-fn"]).arg(&path).output().unwrap();
            assert_eq!(judged.status.code(), Some(if is_good { 0 } else { 4 }), "{options:?} {size}");
        }
    }
}

/// Paths from an inode need no root. An inode number that is not in use is refused.
#[test]
fn paths_begin_at_any_inode() {
    let scratch = extant_testkit::scratch();
    let path = image(scratch.path(), &[]);
    edit(&path, "mkdir d");
    edit(&path, &format!("write {} d/inner", scratch.path().join("hello").display()));
    let dir = open(&path).names().resolve(b"d", Follow::Links).unwrap().ino();
    edit(&path, "clri <2>");
    let volume = open(&path);
    assert!(volume.root().is_err());
    let inner = volume.names().resolve_at(volume.inode(dir).unwrap(), b"/inner", Follow::Links).unwrap();
    assert_eq!(inner.size(), 5);
    assert!(volume.inode(Ino(5000)).unwrap_err().is(Refusal::Stale));
}

/// A file system of one group has no backup: its superblock is rebuilt from the descriptors and the root
/// directory, for extents, block maps and inline data, and for every block and inode size.
#[test]
fn a_superblock_without_a_backup_is_made_from_what_is_left() {
    for options in [
        &["-b", "4096"][..],
        &["-b", "1024", "-I", "128", "-t", "ext2"],
        &["-b", "2048", "-O", "^64bit,^metadata_csum", "-t", "ext4"],
        &["-b", "4096", "-O", "inline_data", "-I", "512", "-t", "ext4"],
        &["-b", "65536", "-t", "ext4"],
        &["-b", "4096", "-O", "^extents,^64bit", "-N", "64", "-t", "ext4"],
    ] {
        let scratch = extant_testkit::scratch();
        let hello = scratch.path().join("hello");
        std::fs::write(&hello, "hello").unwrap();
        let path = scratch.path().join("image");
        let args = ["-q", "-F", "-E", "lazy_itable_init=0"];
        extant_testkit::run(
            "mke2fs",
            args.iter().chain(options).copied().chain([path.to_str().unwrap(), "8M"]),
        );
        edit(&path, "mkdir d");
        edit(&path, &format!("write {} d/hello", hello.display()));
        write_at(&path, 1024, &[0; 1024]);
        let volume = open(&path);
        assert!(volume.damage()[1].contains("no backup superblock"), "{:?}", volume.damage());
        assert_eq!(read(&volume, "/d/hello").unwrap(), b"hello", "{options:?}");
        open_by(&path, BySuperblock::AnyBackup).unwrap();
    }
}

/// Without large_dir the high half of a directory's size has no meaning: changes use the same size as
/// lookups, and write this half as 0.
#[test]
fn the_high_half_of_a_directorys_size_has_no_meaning() {
    for is_map_broken in [false, true] {
        let scratch = extant_testkit::scratch();
        let path = image(scratch.path(), &["-O", "^dir_index"]);
        edit(&path, "mkdir d");
        edit(&path, "set_inode_field d size_hi 46");
        if is_map_broken {
            // The magic number of a node is missing: every block of the directory is a fault.
            edit(&path, "set_inode_field d block[0] 0x200");
        }
        let device = Arc::new(FileDevice::open(&path, true).unwrap());
        let volume = Volume::open(device, &OpenOptions::default()).unwrap();
        let dir = volume.names().resolve(b"/d", Follow::Links).unwrap();
        assert_eq!(dir.size(), 1024);
        let start = std::time::Instant::now();
        let made = volume.names().create(dir.ino(), b"name", &New::file(0o644));
        let missing = volume.names().unlink(dir.ino(), b"missing");
        assert!(start.elapsed().as_secs() < 10, "a walk of 200 million blocks");
        assert_eq!((made.is_ok(), missing.is_err()), (!is_map_broken, true));
        let _ = volume.close();
        if !is_map_broken {
            extant_testkit::e2fsck_clean(&path);
        }
    }
}

/// A power cut between the two sectors of the superblock leaves the new first sector and the old second one,
/// which has the checksum (docs/media.md). Such an image opens. e2fsck uses a backup, and exits with 8 if the
/// image has none.
#[test]
fn a_torn_superblock_opens_and_e2fsck_wants_a_backup() {
    for (size, exit_code) in [("8M", 8), ("40M", 4)] {
        let scratch = extant_testkit::scratch();
        let path = scratch.path().join("image");
        let path_text = path.to_str().unwrap();
        extant_testkit::run("mke2fs", ["-q", "-F", "-t", "ext4", "-b", "1024", path_text, size]);
        let mut bytes = std::fs::read(&path).unwrap();
        // EXT4_ERROR_FS is a bit of s_state, in the first sector. Opening and closing change only such bits.
        bytes[1024 + 0x3A] ^= 2;
        std::fs::write(&path, &bytes).unwrap();
        let _ = open(&path);
        let judged = extant_testkit::command("e2fsck").arg("-fn").arg(&path).output().unwrap();
        assert_eq!(judged.status.code(), Some(exit_code), "{size}: {judged:?}");
    }
}
