//! Attribute values in EA inodes: which values are shared, and that none is leaked. e2fsck judges the images.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use crate::common::small::{edit, find, image, open};
use extant_base::Ino;
use extant_volume::{Fault, New, Refusal, SetXattr, Volume};

const OPTIONS: [&str; 4] = ["-b", "1024", "-O", "ea_inode,^metadata_csum"];
const LEN: u32 = 5000;

/// Number of inodes in use.
fn used(volume: &Volume) -> u64 {
    let stat = volume.statfs().unwrap();
    u64::from(stat.inodes - stat.inodes_free)
}

/// Changes the name index and the EA inode of the only entry that has one.
fn patch_entry(path: &Path, index: u8, from: Ino, to: Ino) {
    let mut bytes = std::fs::read(path).unwrap();
    let entry = [&[4, 1, 0, 0][..], &from.0.to_le_bytes(), &LEN.to_le_bytes()].concat();
    let at: Vec<usize> = bytes
        .windows(entry.len())
        .enumerate()
        .filter(|(_, found)| *found == entry)
        .map(|(at, _)| at)
        .collect();
    assert!(!at.is_empty());
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    // In the inode table, and possibly in the log.
    for at in at {
        bytes[at + 1] = index;
        bytes[at + 4..at + 8].copy_from_slice(&to.0.to_le_bytes());
        file.write_all_at(&bytes[at..at + entry.len()], at as u64).unwrap();
    }
}

/// An image with a file "file" that has such a value. Also returns its EA inode.
fn with_value(scratch: &Path) -> (std::path::PathBuf, Ino) {
    let path = image(scratch, &OPTIONS, &["mkdir dir"]);
    let volume = open(&path);
    volume.names().create(Ino::ROOT, b"other", &New::file(0o644)).unwrap();
    volume.names().create(Ino::ROOT, b"file", &New::file(0o644)).unwrap();
    let before: Vec<u32> = (11..60).filter(|ino| volume.inode(Ino(*ino)).is_ok()).collect();
    volume
        .attributes()
        .set_xattr(find(&volume, b"file"), b"user.huge", &[7; LEN as usize], SetXattr::Any)
        .unwrap();
    let value = (11..60).find(|ino| volume.inode(Ino(*ino)).is_ok() && !before.contains(ino)).unwrap();
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
    (path, Ino(value))
}

/// An attribute refers to an inode that is not an EA inode: whatever happens to the attribute, that inode is
/// neither counted nor deleted.
#[test]
fn what_is_no_value_is_not_touched() {
    for name in [&b"other"[..], b"dir", b"file", b"lost+found"] {
        let scratch = extant_testkit::scratch();
        let (path, value) = with_value(scratch.path());
        let victim = find(&open(&path), name);
        patch_entry(&path, 1, value, victim);
        let volume = open(&path);
        let file = find(&volume, b"file");
        // The fields that counting or deleting a value would change.
        let state = || {
            let inode = volume.inode(victim).unwrap();
            let fields = inode.fields();
            (fields.mode, fields.links, fields.blocks, fields.size, fields.version, fields.ctime.seconds)
        };
        let before = state();
        for changed in [
            volume.attributes().remove_xattr(file, b"user.huge"),
            volume.attributes().set_xattr(file, b"user.huge", b"small", SetXattr::Any),
            volume.attributes().set_xattr(file, b"user.huge", &[8; LEN as usize], SetXattr::Any),
        ] {
            let fault = changed.unwrap_err();
            assert!(matches!(fault, Fault::Corrupt(_)), "{fault}");
        }
        assert_eq!(state(), before);
        if victim != file {
            let inodes = used(&volume);
            volume.names().unlink(Ino::ROOT, b"file").unwrap();
            assert_eq!(state(), before);
            assert_eq!(used(&volume), inodes - 1);
        }
        volume.close().unwrap();
        // Only the value itself is leaked.
        let repair = Command::new("e2fsck").args(["-fy"]).arg(&path).output().unwrap();
        assert_eq!(repair.status.code(), Some(1));
        extant_testkit::e2fsck_clean(&path);
        assert_eq!(find(&open(&path), name), victim);
    }
}

/// An EA inode with its own attributes could form a cycle.
#[test]
fn a_value_with_attributes_is_none() {
    let scratch = extant_testkit::scratch();
    let (path, value) = with_value(scratch.path());
    edit(&path, &format!("ea_set <{value}> user.own x"));
    let volume = open(&path);
    let file = find(&volume, b"file");
    let fault = volume.attributes().remove_xattr(file, b"user.huge").unwrap_err();
    assert!(matches!(fault, Fault::Corrupt(_)), "{fault}");
}

/// Attributes hidden from users have values, too: these are freed with their inode.
#[test]
fn values_of_hidden_names_go_with_their_inode() {
    let scratch = extant_testkit::scratch();
    let (path, value) = with_value(scratch.path());
    patch_entry(&path, 5, value, value);
    extant_testkit::e2fsck_clean(&path);
    let volume = open(&path);
    let inodes = used(&volume);
    let file = find(&volume, b"file");
    assert_eq!(volume.attributes().xattr_names(&volume.inode(file).unwrap()).unwrap().len(), 0);
    volume.names().unlink(Ino::ROOT, b"file").unwrap();
    assert_eq!(used(&volume), inodes - 2);
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
}

/// More values than one transaction could free.
#[test]
fn many_values_go_with_their_inode() {
    let scratch = extant_testkit::scratch();
    let path = image(scratch.path(), &["-b", "1024", "-O", "ea_inode,orphan_file", "-N", "512"], &[]);
    let volume = open(&path);
    let (inodes, free) = (used(&volume), volume.statfs().unwrap().blocks_free);
    let file = volume.names().create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
    let set = |number: u64| {
        let name = format!("user.{number}");
        volume.attributes().set_xattr(file, name.as_bytes(), &[number as u8; LEN as usize], SetXattr::Any)
    };
    let (mut kept, mut refused) = (0, None);
    while refused.is_none() {
        refused = set(kept).err();
        kept += u64::from(refused.is_none());
    }
    assert!(refused.unwrap().is(Refusal::NoSpace));
    assert!(kept > 20, "{kept}");
    assert_eq!(used(&volume), inodes + 1 + kept);
    volume.names().unlink(Ino::ROOT, b"file").unwrap();
    volume.sync().unwrap();
    assert_eq!((used(&volume), volume.statfs().unwrap().blocks_free), (inodes, free));
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
}

/// The kernel lets equal values share an EA inode, to which two blocks then refer. When the two blocks become
/// one, the number of references drops to one.
#[test]
fn a_shared_block_counts_its_values_once() {
    let scratch = extant_testkit::scratch();
    let path = image(scratch.path(), &["-b", "1024", "-O", "ea_inode", "-I", "128"], &[]);
    if !extant_testkit::kernel_mounts_kind_of(&path) {
        return;
    }
    {
        let mount = extant_testkit::LoopMount::new(&path, "rw").unwrap();
        let value = String::from_utf8(vec![b'v'; LEN as usize]).unwrap();
        for name in ["a", "b"] {
            let file = mount.path().join(name);
            let file = file.to_str().unwrap();
            std::fs::write(file, "").unwrap();
            extant_testkit::run("setfattr", ["-n", "user.own", "-v", name, file]);
            extant_testkit::run("setfattr", ["-n", "user.huge", "-v", &value, file]);
        }
    }
    extant_testkit::e2fsck_clean(&path);
    let volume = open(&path);
    let [a, b] = [b"a", b"b"].map(|name| find(&volume, name));
    for file in [a, b] {
        volume.attributes().set_xattr(file, b"user.own", b"alike", SetXattr::Any).unwrap();
    }
    let block = |ino| volume.inode(ino).unwrap().fields().file_acl;
    assert_eq!(block(a), block(b));
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
    for name in [b"a", b"b"] {
        let volume = open(&path);
        volume.names().unlink(Ino::ROOT, name).unwrap();
        volume.close().unwrap();
        extant_testkit::e2fsck_clean(&path);
    }
}

/// Regression: forty files with the same icon took forty EA inodes. The kernel stores equal values once.
#[test]
fn equal_values_are_kept_once() {
    // With inodes of 128 bytes the entries are in blocks, which are shared as well.
    for inode_size in ["256", "128"] {
        kept_once(&["-O", "ea_inode", "-I", inode_size]);
    }
}

fn kept_once(options: &[&str]) {
    let scratch = extant_testkit::scratch();
    let path = image(scratch.path(), options, &[]);
    let volume = open(&path);
    let start = used(&volume);
    let value = vec![7; 60_000];
    let name = |number: u32| format!("file {number}").into_bytes();
    for number in 0..40 {
        let file = volume.names().create(Ino::ROOT, &name(number), &New::file(0o644)).unwrap().ino();
        volume.attributes().set_xattr(file, b"user.icon", &value, SetXattr::Any).unwrap();
        // The same value again, and another attribute of the same file with this value.
        volume.attributes().set_xattr(file, b"user.icon", &value, SetXattr::Replace).unwrap();
        volume.attributes().set_xattr(file, b"user.second", &value, SetXattr::Any).unwrap();
    }
    assert_eq!(used(&volume), start + 41);
    let other = [&value[..59_999], b"x"].concat();
    volume.attributes().set_xattr(find(&volume, &name(3)), b"user.icon", &other, SetXattr::Any).unwrap();
    assert_eq!(used(&volume), start + 42);
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);

    let volume = open(&path);
    for number in 0..40 {
        let file = find(&volume, &name(number));
        let held = volume.attributes().xattr(&volume.inode(file).unwrap(), b"user.icon").unwrap();
        assert_eq!(held, if number == 3 { &other[..] } else { &value[..] });
        match number % 2 {
            0 => volume.attributes().remove_xattr(file, b"user.icon").unwrap(),
            _ => volume.names().unlink(Ino::ROOT, &name(number)).unwrap(),
        }
    }
    // The second attributes of every other file are left.
    assert_eq!(used(&volume), start + 21);
    for number in (0..40).step_by(2) {
        volume.attributes().remove_xattr(find(&volume, &name(number)), b"user.second").unwrap();
    }
    assert_eq!(used(&volume), start + 20);
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
}
