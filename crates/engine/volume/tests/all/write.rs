//! Operations on images of every kind; e2fsck judges the images.

use crate::common;

use std::path::Path;
use std::sync::Arc;

use extant_base::Ino;
use extant_device::FileDevice;
use extant_ondisk::filetype::FileType;
use extant_volume::{New, OpenOptions, Refusal, Rename, SetAttr, SetXattr, Volume, WriteOptions};

/// Features that change how operations write.
const KINDS: &[(&str, &[&str])] = &[
    ("today's", &["-O", "metadata_csum_seed,orphan_file"]),
    ("small blocks", &["-b", "1024"]),
    ("without checksums", &["-O", "^metadata_csum"]),
    ("ext3", &["-t", "ext3"]),
    ("ext2", &["-t", "ext2"]),
    ("clusters", &["-O", "bigalloc,orphan_file", "-C", "65536", "-N", "8192"]),
    ("inline data", &["-O", "inline_data"]),
    ("large values", &["-O", "ea_inode,orphan_file"]),
    ("small inodes", &["-I", "128"]),
    ("meta groups", &["-O", "meta_bg,^resize_inode", "-b", "1024"]),
];

fn make(path: &Path, options: &[&str], size_mib: u64) {
    let size = format!("{size_mib}M");
    let path = path.to_str().unwrap();
    let kind: &[&str] = if options.contains(&"-t") { &[] } else { &["-t", "ext4"] };
    let args = ["-q", "-F"].iter().chain(kind).chain(options).copied();
    extant_testkit::run("mke2fs", args.chain([path, size.as_str()]));
}

fn open(path: &Path, write: WriteOptions) -> Volume {
    let device = Arc::new(FileDevice::open(path, true).unwrap());
    Volume::open(device, &OpenOptions { write, ..OpenOptions::default() }).unwrap()
}

fn each_kind(test: impl Fn(&str, &Path)) {
    for (name, options) in KINDS {
        let scratch = extant_testkit::scratch();
        let path = scratch.path().join("image");
        make(&path, options, 64);
        println!("{name}");
        test(name, &path);
    }
}

fn names(volume: &Volume, dir: Ino) -> Vec<String> {
    let inode = volume.inode(dir).unwrap();
    let names = common::names(volume, &inode).into_iter();
    let mut names: Vec<String> = names.map(|name| String::from_utf8(name).unwrap()).collect();
    names.sort();
    names
}

#[test]
fn names_come_and_go() {
    each_kind(|kind, path| {
        let volume = open(path, WriteOptions::default());
        let dir = volume.names().create(Ino::ROOT, b"dir", &New::directory(0o755)).unwrap().ino();
        for i in 0..2000 {
            let name = format!("a-name-that-is-somewhat-longer-{i}");
            volume.names().create(dir, name.as_bytes(), &New::file(0o644)).unwrap();
        }
        assert_eq!(names(&volume, dir).len(), 2000);
        assert!(
            volume
                .names()
                .create(dir, b"a-name-that-is-somewhat-longer-7", &New::file(0))
                .unwrap_err()
                .is(Refusal::Exists)
        );
        assert!(volume.names().unlink(dir, b"absent").unwrap_err().is(Refusal::NotFound));
        assert!(volume.names().rmdir(Ino::ROOT, b"dir").unwrap_err().is(Refusal::NotEmpty));
        for i in (0..2000).filter(|i| i % 3 != 0) {
            let name = format!("a-name-that-is-somewhat-longer-{i}");
            volume.names().unlink(dir, name.as_bytes()).unwrap();
        }
        let file = volume.names().create(dir, b"linked", &New::file(0o600)).unwrap().ino();
        volume.names().link(file, Ino::ROOT, b"link").unwrap();
        assert_eq!(volume.attributes().stat(&volume.inode(file).unwrap()).links, 2);
        volume.names().create(dir, b"short", &New::symlink(b"linked")).unwrap();
        let long = [b'x'; 700];
        let link = volume.names().create(dir, b"long", &New::symlink(&long)).unwrap();
        assert_eq!(volume.files().read_link(&link).unwrap(), long);
        for (name, new) in [
            (&b"fifo"[..], New { kind: FileType::Fifo, ..New::file(0o600) }),
            (b"socket", New { kind: FileType::Socket, ..New::file(0o600) }),
            (b"block", New { kind: FileType::BlockDevice, device: (8, 300), ..New::file(0o600) }),
        ] {
            volume.names().create(dir, name, &new).unwrap();
        }
        let other = volume.names().create(Ino::ROOT, b"other", &New::directory(0o700)).unwrap().ino();
        let below = volume.names().create(dir, b"below", &New::directory(0o700)).unwrap().ino();
        volume.names().rename((dir, b"below"), (other, b"moved"), Rename::Replace).unwrap();
        assert_eq!(volume.names().lookup(&volume.inode(below).unwrap(), b"..").unwrap().ino(), other);
        assert!(
            volume
                .names()
                .rename((Ino::ROOT, b"other"), (below, b"x"), Rename::Replace)
                .unwrap_err()
                .is(Refusal::Invalid)
        );
        volume.names().rename((dir, b"linked"), (dir, b"short"), Rename::Exchange).unwrap();
        volume.names().rename((dir, b"long"), (dir, b"fifo"), Rename::Whiteout).unwrap();
        volume.names().rename((dir, b"socket"), (other, b"socket"), Rename::NoReplace).unwrap();
        let before = names(&volume, dir);
        volume.close().unwrap();
        extant_testkit::e2fsck_clean(path);
        let volume = common::open(path, None);
        let now = names(&volume, dir);
        assert_eq!(before, now, "{kind}");
    });
}

#[test]
fn directories_shrink_and_go() {
    each_kind(|kind, path| {
        let volume = open(path, WriteOptions::default());
        let free = volume.statfs().unwrap().blocks_free;
        let dir = volume.names().create(Ino::ROOT, b"dir", &New::directory(0o755)).unwrap().ino();
        // A directory takes a cluster.
        let count = if kind == "clusters" { 300 } else { 3000 };
        for i in 0..count {
            volume.names().create(dir, format!("name-{i}").as_bytes(), &New::directory(0o755)).unwrap();
        }
        for i in 0..count {
            volume.names().rmdir(dir, format!("name-{i}").as_bytes()).unwrap();
        }
        volume.names().rmdir(Ino::ROOT, b"dir").unwrap();
        volume.sync().unwrap();
        assert_eq!(volume.statfs().unwrap().blocks_free, free);
        volume.close().unwrap();
        extant_testkit::e2fsck_clean(path);
    });
}

#[test]
fn attributes_are_set_and_removed() {
    each_kind(|kind, path| {
        let volume = open(path, WriteOptions::default());
        let file = volume.names().create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
        let set = SetAttr {
            mode: Some(0o4755),
            uid: Some(70_000),
            gid: Some(5),
            size: Some(1 << 20),
            ..SetAttr::default()
        };
        volume.attributes().set_attr(file, &set).unwrap();
        let stat = volume.attributes().stat(&volume.inode(file).unwrap());
        assert_eq!((stat.mode & 0o7777, stat.uid, stat.gid, stat.size), (0o4755, 70_000, 5, 1 << 20));
        volume.attributes().set_attr(file, &SetAttr { size: Some(5), ..SetAttr::default() }).unwrap();
        let mut kept = 0;
        for round in 0..3 {
            for i in 0..20 {
                let name = format!("user.attribute-{i}");
                let value = vec![b'a' + i as u8; 10 + 30 * i * round];
                match volume.attributes().set_xattr(file, name.as_bytes(), &value, SetXattr::Any) {
                    Ok(()) => kept += 1,
                    Err(fault) => assert!(fault.is(Refusal::NoSpace), "{kind}: {fault}"),
                }
            }
        }
        assert!(kept > 20, "{kind}: {kept}");
        assert!(
            volume
                .attributes()
                .set_xattr(file, b"user.attribute-1", b"", SetXattr::Create)
                .unwrap_err()
                .is(Refusal::Exists)
        );
        // Many files with the same attributes share a block.
        for i in 0..30 {
            let other = volume
                .names()
                .create(Ino::ROOT, format!("other-{i}").as_bytes(), &New::file(0o600))
                .unwrap()
                .ino();
            volume.attributes().set_xattr(other, b"user.shared", &[7; 400], SetXattr::Any).unwrap();
        }
        if kind == "large values" {
            volume.attributes().set_xattr(file, b"user.huge", &[9; 60_000], SetXattr::Any).unwrap();
            let inode = volume.inode(file).unwrap();
            assert_eq!(volume.attributes().xattr(&inode, b"user.huge").unwrap(), [9; 60_000]);
            volume.attributes().set_xattr(file, b"user.huge-2", &[8; 50_000], SetXattr::Any).unwrap();
            volume.attributes().remove_xattr(file, b"user.huge-2").unwrap();
        }
        for i in 0..10 {
            volume.names().unlink(Ino::ROOT, format!("other-{i}").as_bytes()).unwrap();
        }
        volume.attributes().remove_xattr(file, b"user.attribute-3").unwrap();
        assert!(
            volume.attributes().remove_xattr(file, b"user.attribute-3").unwrap_err().is(Refusal::NoAttribute)
        );
        volume.close().unwrap();
        extant_testkit::e2fsck_clean(path);
    });
}

#[test]
fn what_was_synced_survives_without_closing() {
    each_kind(|kind, path| {
        let has_journal = kind != "ext2";
        for mode in [extant_volume::OrphanMode::File, extant_volume::OrphanMode::ListV3] {
            let write = WriteOptions { orphans: mode, track_all_orphans: true, ..WriteOptions::default() };
            let volume = open(path, write);
            for i in 0..300 {
                volume
                    .names()
                    .create(Ino::ROOT, format!("{mode:?}-{i}").as_bytes(), &New::file(0o644))
                    .unwrap();
            }
            // Unlinked while open: the next open of the volume deletes it.
            let open_file = volume.names().create(Ino::ROOT, b"open", &New::file(0o644)).unwrap().ino();
            volume.opened(open_file).unwrap();
            volume.names().unlink(Ino::ROOT, b"open").unwrap();
            volume.sync().unwrap();
            volume
                .names()
                .create(Ino::ROOT, format!("{mode:?}-not-synced").as_bytes(), &New::file(0o644))
                .unwrap();
            drop(volume);
            if !has_journal {
                return;
            }
            let volume = open(path, WriteOptions::default());
            assert!(volume.recovery().needed);
            assert_eq!(volume.recovery().deleted_orphans, 1, "{kind}");
            let found = names(&volume, Ino::ROOT);
            assert!((0..300).all(|i| found.contains(&format!("{mode:?}-{i}"))), "{kind}");
            volume.close().unwrap();
            extant_testkit::e2fsck_clean(path);
        }
    });
}

/// A removal that holds its inode makes the orphan in the transaction that removes the name. Names that
/// remain are not held; a crash deletes what is held.
#[test]
fn a_removal_holds_an_inode_that_loses_its_last_name() {
    each_kind(|kind, path| {
        let volume = open(path, WriteOptions::default());
        let root = Ino::ROOT;
        let file = |name: &[u8]| volume.names().create(root, name, &New::file(0o644)).unwrap().ino();
        let (one, two, three) = (file(b"one"), file(b"two"), file(b"three"));
        let dir = volume.names().create(root, b"dir", &New::directory(0o755)).unwrap().ino();
        volume.names().link(one, root, b"other").unwrap();
        assert_eq!(volume.names().unlink_held(root, b"one").unwrap(), None, "{kind}");
        assert_eq!(volume.names().unlink_held(root, b"other").unwrap(), Some(one), "{kind}");
        let replace = Rename::Replace;
        assert_eq!(
            volume.names().rename_held((root, b"two"), (root, b"three"), replace).unwrap(),
            Some(three)
        );
        assert_eq!(volume.names().rmdir_held(root, b"dir").unwrap(), Some(dir), "{kind}");
        assert!(
            volume.names().unlink_held(root, b"one").is_err_and(|fault| fault.is(Refusal::NotFound)),
            "{kind}"
        );
        for held in [one, three, dir] {
            assert_eq!(volume.inode(held).unwrap().fields().links, 0, "{kind}: {held}");
        }
        volume.files().write_at(one, 0, b"still used").unwrap();
        volume.released(one).unwrap();
        assert!(volume.inode(one).is_err(), "{kind}: deleted when it is released");
        let has_journal = volume.counters().journal_stats().is_some();
        volume.sync().unwrap();
        drop(volume);
        let volume = open(path, WriteOptions::default());
        if has_journal {
            assert_eq!(volume.recovery().deleted_orphans, 2, "{kind}");
        }
        assert_eq!(volume.names().lookup(&volume.root().unwrap(), b"three").unwrap().ino(), two, "{kind}");
        volume.close().unwrap();
        extant_testkit::e2fsck_clean(path);
    });
}

/// A new table block whose inodes are created in sequence is encoded when the thread moves on to the next
/// block. Later changes must still be written, in the same transaction and in the next one. The same holds
/// for inodes that reuse these numbers.
#[test]
fn inodes_made_in_a_row_are_written_as_they_become() {
    each_kind(|kind, path| {
        let volume = open(path, WriteOptions::default());
        let file = |i: u16| format!("file {i}").into_bytes();
        let make =
            |i: u16, mode: u16| volume.names().create(Ino::ROOT, &file(i), &New::file(mode)).unwrap().ino();
        let chmod = |ino: Ino, mode: u16| {
            volume.attributes().set_attr(ino, &SetAttr { mode: Some(mode), ..SetAttr::default() }).unwrap();
        };
        let mut inos: Vec<Ino> = (0..1300).map(|i| make(i, 0o600)).collect();
        chmod(inos[20], 0o620);
        // Blocks are emptied, and filled with other inodes that reuse the numbers.
        let gone: Vec<Ino> = inos[100..1200].to_vec();
        (100..1200).for_each(|i| volume.names().unlink(Ino::ROOT, &file(i)).unwrap());
        (100..1200).for_each(|i| inos[usize::from(i)] = make(i, 0o640));
        assert!(inos[100..1200].iter().filter(|ino| gone.contains(ino)).count() > 1000, "{kind}");
        chmod(inos[150], 0o645);
        volume.sync().unwrap();
        chmod(inos[21], 0o621);
        chmod(inos[151], 0o651);
        volume.names().unlink(Ino::ROOT, &file(22)).unwrap();
        volume.close().unwrap();
        extant_testkit::e2fsck_clean(path);
        let volume = open(path, WriteOptions::default());
        let root = volume.inode(Ino::ROOT).unwrap();
        for i in (0..1300).filter(|i| *i != 22) {
            let found = volume.names().lookup(&root, &file(i)).unwrap();
            let mode = match i {
                20 => 0o620,
                21 => 0o621,
                150 => 0o645,
                151 => 0o651,
                100..1200 => 0o640,
                _ => 0o600,
            };
            assert_eq!((found.fields().mode & 0o7777, found.fields().links), (mode, 1), "{kind}: {i}");
        }
        volume.close().unwrap();
    });
}
