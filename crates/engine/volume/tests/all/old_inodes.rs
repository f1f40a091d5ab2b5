//! Inodes without room, or without room yet, for nanoseconds, years after 2038 and birth times. stat(2) shows
//! the same before and after they were on disk. Where possible, room is made as the kernel makes it.

use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::small::{edit, find, image, open};
use extant_base::Ino;
use extant_ondisk::time::Timestamp;
use extant_volume::{DefaultOptions, New, OpenOptions, SetAttr, SetXattr, Stat, Volume};

const FAR: Timestamp = Timestamp { seconds: 4_102_444_800, nanos: 500_000_000 };
const EARLY: Timestamp = Timestamp { seconds: -2_524_521_600, nanos: 7 };

fn stat(volume: &Volume, name: &[u8]) -> Stat {
    volume.attributes().stat(&volume.inode(find(volume, name)).unwrap())
}

fn set_times(volume: &Volume, name: &[u8], time: Timestamp) {
    let set = SetAttr { atime: Some(time), mtime: Some(time), ..SetAttr::default() };
    volume.attributes().set_attr(find(volume, name), &set).unwrap();
}

/// Reopens the volume and checks that stat shows the same.
fn again(volume: Volume, path: &Path, names: &[&[u8]]) -> Volume {
    let before: Vec<Stat> = names.iter().map(|name| stat(&volume, name)).collect();
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(path);
    let volume = open(path);
    let after: Vec<Stat> = names.iter().map(|name| stat(&volume, name)).collect();
    assert_eq!(before, after);
    volume
}

#[test]
fn inodes_of_128_bytes_have_whole_seconds_up_to_2038() {
    let scratch = extant_testkit::scratch();
    let path = image(scratch.path(), &["-I", "128"], &[]);
    let volume = open(&path);
    for (name, time) in [(&b"far"[..], FAR), (b"early", EARLY), (b"now", Timestamp { seconds: 9, nanos: 9 })]
    {
        volume.names().create(Ino::ROOT, name, &New::file(0o644)).unwrap();
        set_times(&volume, name, time);
    }
    let volume = again(volume, &path, &[b"far", b"early", b"now"]);
    let shown = |name| (stat(&volume, name).mtime, stat(&volume, name).crtime);
    // The same values as the kernel shows.
    assert_eq!(shown(b"far"), (Timestamp { seconds: i32::MAX.into(), nanos: 0 }, None));
    assert_eq!(shown(b"early").0, Timestamp { seconds: i32::MIN.into(), nanos: 0 });
    assert_eq!(shown(b"now").0, Timestamp { seconds: 9, nanos: 0 });
}

/// Inodes made by kernels before 2.6.23 (or by `tune2fs -I`): the first change makes room.
#[test]
fn room_is_made_in_larger_inodes() {
    for extra_isize in [0, 4, 8, 12, 16, 20, 24, 28, 32] {
        let scratch = extant_testkit::scratch();
        let path = image(
            scratch.path(),
            &["-O", "^metadata_csum", "-I", "256"],
            &["write /dev/null file", "mkdir dir"],
        );
        for name in ["file", "dir"] {
            edit(&path, &format!("sif {name} extra_isize {extra_isize}"));
        }
        let volume = open(&path);
        set_times(&volume, b"file", FAR);
        volume.names().create(find(&volume, b"dir"), b"in it", &New::file(0o644)).unwrap();
        volume.attributes().set_xattr(find(&volume, b"file"), b"user.a", b"small", SetXattr::Any).unwrap();
        let volume = again(volume, &path, &[b"file", b"dir"]);
        assert_eq!((stat(&volume, b"file").mtime, stat(&volume, b"file").atime), (FAR, FAR), "{extra_isize}");
        assert_ne!(stat(&volume, b"dir").mtime.nanos, 0, "{extra_isize}");
        let held =
            volume.attributes().xattr(&volume.inode(find(&volume, b"file")).unwrap(), b"user.a").unwrap();
        assert_eq!(held, b"small");
    }
}

/// Puts an attribute into an inode of 256 bytes with 4 bytes of newer fields; its value has `len` bytes at
/// the end.
fn with_attribute(path: &Path, len: u32) {
    edit(path, "sif file extra_isize 4");
    let imap = extant_testkit::debugfs(path, "imap file");
    let (_, rest) = imap.split_once("located at block ").unwrap();
    let (block, rest) = rest.split_once(", offset 0x").unwrap();
    let at = block.parse::<u64>().unwrap() * extant_testkit::dumpe2fs(path).number("Block size")
        + u64::from_str_radix(rest.trim(), 16).unwrap();
    let mut body = vec![0; 256 - 132];
    body[..4].copy_from_slice(&0xEA02_0000u32.to_le_bytes());
    let value = body.len() as u32 - len;
    (body[4], body[5]) = (1, 1);
    body[6..8].copy_from_slice(&((value - 4) as u16).to_le_bytes());
    body[12..16].copy_from_slice(&len.to_le_bytes());
    body[20] = b'k';
    body[value as usize..].fill(b'z');
    std::fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(&body, at + 132).unwrap();
}

/// Attributes move to make room, into a block if they fill the inode. If no block is free, times are
/// truncated, and shown as they are stored.
#[test]
fn attributes_make_room_or_times_are_cut() {
    for (len, is_full) in [(8, false), (64, false), (96, false), (64, true), (96, true)] {
        let scratch = extant_testkit::scratch();
        let path = image(scratch.path(), &["-O", "^metadata_csum", "-I", "256"], &["write /dev/null file"]);
        with_attribute(&path, len);
        extant_testkit::e2fsck_clean(&path);
        let volume = open(&path);
        if is_full {
            let other = volume.names().create(Ino::ROOT, b"other", &New::file(0o644)).unwrap().ino();
            while volume
                .files()
                .write_at(other, volume.attributes().stat(&volume.inode(other).unwrap()).size, &[1; 1 << 16])
                .is_ok()
            {}
            volume.sync().unwrap();
        }
        let has_room = len < 96 || !is_full;
        set_times(&volume, b"file", FAR);
        let volume = again(volume, &path, &[b"file"]);
        let cut = Timestamp { seconds: i32::MAX.into(), nanos: 0 };
        assert_eq!(stat(&volume, b"file").mtime, if has_room { FAR } else { cut }, "{len} {is_full}");
        let held =
            volume.attributes().xattr(&volume.inode(find(&volume, b"file")).unwrap(), b"user.k").unwrap();
        assert_eq!(held, vec![b'z'; len as usize]);
    }
}

fn tuned(scratch: &Path, options: &[&str], tune: &[&str]) -> std::path::PathBuf {
    let path = image(scratch, options, &["mkdir dir"]);
    extant_testkit::run("tune2fs", tune.iter().copied().chain([path.to_str().unwrap()]));
    path
}

fn open_asked(path: &Path) -> Volume {
    let device = std::sync::Arc::new(extant_device::FileDevice::open(path, true).unwrap());
    let write = DefaultOptions::of_device(&*device).write_options();
    Volume::open(device, &OpenOptions { write, ..OpenOptions::default() }).unwrap()
}

/// `tune2fs -o bsdgroups`: a new file gets the directory's group, and no set-group-id bit is inherited.
#[test]
fn the_superblock_gives_the_directorys_group() {
    for (tune, text, group) in [
        ("bsdgroups", "", 50),
        ("^bsdgroups", "", 7),
        ("^bsdgroups", "grpid", 50),
        ("bsdgroups", "nogrpid", 7),
    ] {
        let scratch = extant_testkit::scratch();
        let text = format!("mount_opts={text}");
        let path = tuned(scratch.path(), &[], &["-o", tune, "-E", &text]);
        let volume = open_asked(&path);
        let dir = find(&volume, b"dir");
        volume.attributes().set_attr(dir, &SetAttr { gid: Some(50), ..SetAttr::default() }).unwrap();
        let made = volume.names().create(dir, b"made", &New { gid: 7, ..New::directory(0o755) }).unwrap();
        assert_eq!(
            (volume.attributes().stat(&made).gid, made.fields().mode & 0o7000),
            (group, 0),
            "{tune} {text}"
        );
        volume.close().unwrap();
        extant_testkit::e2fsck_clean(&path);
    }
}

/// `tune2fs -o uid16`: owners have 16 bits, before and after they were on disk.
#[test]
fn the_superblock_may_ask_for_short_owners() {
    let scratch = extant_testkit::scratch();
    let path = tuned(scratch.path(), &[], &["-o", "uid16"]);
    let volume = open_asked(&path);
    let made =
        volume.names().create(Ino::ROOT, b"made", &New { uid: 70_000, gid: 5, ..New::file(0o644) }).unwrap();
    assert_eq!((volume.attributes().stat(&made).uid, volume.attributes().stat(&made).gid), (65_534, 5));
    volume.attributes().set_attr(made.ino(), &SetAttr { gid: Some(1 << 20), ..SetAttr::default() }).unwrap();
    let volume = again(volume, &path, &[b"made"]);
    assert_eq!((stat(&volume, b"made").uid, stat(&volume, b"made").gid), (65_534, 65_534));
}
