//! Inode flags: which can be set on which types, and what immutable and append-only still allow; the label;
//! trim of a range.

use crate::common::small::{image, open};
use extant_base::Ino;
use extant_ondisk::inode::flags;
use extant_ondisk::time::Timestamp;
use extant_volume::{Fault, FileType, New, Refusal, SetAttr, TimesFrom, Volume, WriteAccess};

fn set(volume: &Volume, ino: Ino, flags: u32) -> Result<(), Fault> {
    volume.attributes().set_attr(ino, &SetAttr { flags: Some(flags), ..SetAttr::default() }).map(drop)
}

fn flags_of(volume: &Volume, ino: Ino) -> u32 {
    volume.inode(ino).unwrap().fields().flags
}

fn refused(done: Result<impl Sized, Fault>) -> Option<Refusal> {
    match done {
        Ok(_) => None,
        Err(Fault::Refused(refusal)) => Some(refusal),
        Err(other) => panic!("{other}"),
    }
}

/// Every bit on a file, a directory and a symbolic link.
#[test]
fn each_flag_has_types_that_can_have_it() {
    let scratch = extant_testkit::scratch();
    let path = image(scratch.path(), &[], &[]);
    let volume = open(&path);
    let plain = flags::SECRM | flags::UNRM | flags::COMPR | flags::SYNC | flags::IMMUTABLE | flags::APPEND;
    let plain = plain | flags::NODUMP | flags::NOATIME | flags::NOTAIL | flags::EOFBLOCKS | flags::DAX;
    let of_dirs = flags::DIRSYNC | flags::TOPDIR | flags::PROJINHERIT;
    let kinds = [
        (FileType::Regular, plain),
        (FileType::Directory, plain | of_dirs),
        (FileType::Symlink, flags::NODUMP | flags::NOATIME),
    ];
    for (number, (kind, settable)) in kinds.into_iter().enumerate() {
        let new = New { kind, target: b"x", ..New::file(0o644) };
        let ino = volume.names().create(Ino::ROOT, format!("{number}").as_bytes(), &new).unwrap().ino();
        let old = flags_of(&volume, ino);
        for bit in (0..32).map(|bit| 1u32 << bit) {
            let done = refused(set(&volume, ino, old ^ bit));
            let expected = if settable & bit == 0 { Some(Refusal::NotSupported) } else { None };
            assert_eq!(done, expected, "{kind:?} {bit:#x}");
            assert_eq!(flags_of(&volume, ino), if done.is_none() { old ^ bit } else { old });
            set(&volume, ino, old).unwrap();
        }
    }
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
}

/// Operations that are refused on an immutable file may be allowed on an append-only one, or for a cache that
/// accepted the bytes earlier.
#[test]
fn write_access_depends_on_when_it_was_checked() {
    let scratch = extant_testkit::scratch();
    let path = image(scratch.path(), &[], &[]);
    let volume = open(&path);
    let ino = volume.names().create(Ino::ROOT, b"f", &New::file(0o644)).unwrap().ino();
    volume.files().write_at(ino, 0, &[1; 5000]).unwrap();
    let other = volume.names().create(Ino::ROOT, b"o", &New::file(0o644)).unwrap().ino();
    volume.files().write_at(other, 0, &[2; 100]).unwrap();
    let plain = flags_of(&volume, ino);
    let no = Some(Refusal::NotPermitted);
    // Each row: flags; whether it may be opened for writing, for appending; whether overwriting, and
    // appending, is permitted with Flags, Opened and Cache.
    let table = [
        (0, [None, None], [None, None, None], [None, None, None]),
        (flags::APPEND, [no, None], [no, None, None], [None, None, None]),
        (flags::IMMUTABLE, [no, no], [no, no, None], [no, no, None]),
        (flags::IMMUTABLE | flags::APPEND, [no, no], [no, no, None], [no, no, None]),
    ];
    for (more, opens, replaces, appends) in table {
        set(&volume, ino, plain | more).unwrap();
        let opened = [false, true].map(|append| refused(volume.files().check_open(ino, true, append)));
        assert_eq!(opened, opens, "{more:#x}");
        assert_eq!(refused(volume.files().check_open(ino, false, false)), None);
        let accesses = [WriteAccess::Flags, WriteAccess::Opened, WriteAccess::Writeback];
        assert_eq!(
            accesses.map(|access| refused(volume.files().write_at_by(access, ino, 7, b"x"))),
            replaces,
            "{more:#x}"
        );
        let copied =
            accesses.map(|access| refused(volume.files().copy_range_by(access, (other, 0), (ino, 9), 50)));
        assert_eq!(copied, replaces, "{more:#x}");
        let end = || volume.attributes().stat(&volume.inode(ino).unwrap()).size;
        assert_eq!(
            accesses.map(|access| refused(volume.files().write_at_by(access, ino, end(), b"x"))),
            appends,
            "{more:#x}"
        );
        set(&volume, ino, plain).unwrap();
    }
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
}

#[test]
fn times_of_append_only_files_are_set_to_now_and_by_caches_only() {
    let scratch = extant_testkit::scratch();
    let volume = open(&image(scratch.path(), &[], &[]));
    let ino = volume.names().create(Ino::ROOT, b"f", &New::file(0o644)).unwrap().ino();
    let plain = flags_of(&volume, ino);
    let time = Some(Timestamp { seconds: 1000, nanos: 5 });
    let no = Some(Refusal::NotPermitted);
    for (more, expected) in
        [(0, [None, None, None]), (flags::APPEND, [no, None, None]), (flags::IMMUTABLE, [no, no, None])]
    {
        set(&volume, ino, plain | more).unwrap();
        let done = [TimesFrom::Caller, TimesFrom::Touch, TimesFrom::Cache].map(|times_from| {
            let times = SetAttr { atime: time, mtime: time, times_from, ..SetAttr::default() };
            // With such flags, times cannot be set together with other changes.
            let with_mode = SetAttr { mode: Some(0o600), ..times };
            assert_eq!(
                refused(volume.attributes().set_attr(ino, &with_mode)),
                if more == 0 { None } else { no }
            );
            refused(volume.attributes().set_attr(ino, &times))
        });
        assert_eq!(done, expected, "{more:#x}");
    }
    // While a file stays immutable, nothing else can change.
    let fixed = plain | flags::IMMUTABLE;
    assert_eq!(refused(set(&volume, ino, fixed | flags::NODUMP)), no);
    assert_eq!(refused(set(&volume, ino, fixed)), None);
    assert_eq!(refused(set(&volume, ino, plain | flags::NODUMP)), None);
    volume.close().unwrap();
}

#[test]
fn a_label_is_changed_at_once_and_for_good() {
    let scratch = extant_testkit::scratch();
    let path = image(scratch.path(), &["-L", "old"], &[]);
    let volume = open(&path);
    assert_eq!(volume.admin().label(), b"old");
    assert_eq!(refused(volume.admin().set_label(&[b'x'; 17])), Some(Refusal::Invalid));
    assert_eq!(refused(volume.admin().set_label(b"a\0b")), Some(Refusal::Invalid));
    volume.admin().set_label(&[b'x'; 16]).unwrap();
    volume.admin().set_label(b"new").unwrap();
    assert_eq!(volume.admin().label(), b"new");
    drop(volume);
    // As after a crash: from the log.
    let volume = open(&path);
    assert_eq!(volume.admin().label(), b"new");
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
}

#[test]
fn a_range_is_trimmed_to_the_block() {
    let scratch = extant_testkit::scratch();
    let path = image(scratch.path(), &["-b", "1024"], &[]);
    let volume = open(&path);
    let Some(all) = volume.admin().trim(0).unwrap() else { return };
    // The complete free blocks of a range; not the partial blocks at its ends.
    let middle = (12 << 20) + 100..(13 << 20) + 100;
    assert_eq!(volume.admin().trim_range(middle.clone(), 0).unwrap(), Some((1 << 20) - 1024));
    assert_eq!(volume.admin().trim_range(middle.clone(), 2 << 20).unwrap(), Some(0), "none is as long");
    assert_eq!(volume.admin().trim_range(middle.start..middle.start + 500, 0).unwrap(), Some(0));
    let halves =
        [0..8 << 20, 8 << 20..u64::MAX].map(|range| volume.admin().trim_range(range, 0).unwrap().unwrap());
    assert_eq!(halves.iter().sum::<u64>(), all);
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
}

/// The file system's own inodes have no names and take no changes, whatever number a caller gives.
#[test]
fn inodes_of_the_file_system_itself_are_not_changed() {
    let scratch = extant_testkit::scratch();
    let path = image(scratch.path(), &[], &[]);
    let volume = open(&path);
    for ino in (3..=10).map(Ino) {
        let no = Some(Refusal::NotPermitted);
        assert_eq!(refused(volume.names().link(ino, Ino::ROOT, b"name")), no, "{ino}");
        assert_eq!(refused(volume.names().create(ino, b"name", &New::file(0o644))), no, "{ino}");
        assert_eq!(refused(volume.files().write_at(ino, 0, b"bytes")), no, "{ino}");
        assert_eq!(
            refused(volume.attributes().set_attr(ino, &SetAttr { size: Some(0), ..SetAttr::default() })),
            no,
            "{ino}"
        );
    }
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
}
