//! A volume's tree as a manifest, to be compared with the kernel's.

#![allow(dead_code, reason = "each test uses what it needs")]

pub(crate) mod small;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::{ControlFlow, Range};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use extant_base::Ino;
use extant_device::FileDevice;
use extant_ondisk::inode::flags;
use extant_ondisk::time::Timestamp;
use extant_testkit::{Content, Entry, Extent, Kind, Manifest, Time};
use extant_volume::{Cursor, FileType, Inode, OpenOptions, Refusal, Seek, Volume};

/// Opens an image for reading, with its external journal if any.
pub(crate) fn open(image: &Path, journal: Option<&Path>) -> Volume {
    let device = |path: &Path| -> Arc<dyn extant_device::Device> {
        Arc::new(FileDevice::open(path, false).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    };
    let options = OpenOptions { journal_device: journal.map(device), ..OpenOptions::default() };
    Volume::open_read_only(device(image), &options)
        .unwrap_or_else(|error| panic!("{}: {error}", image.display()))
}

/// Recovers a copy of an image, and reads everything in it: the copy is opened for writing, closed, and
/// opened for reading.
pub(crate) fn recovered(image: &Path, journal: Option<&Path>, scratch: &Path) -> Manifest {
    let copies = [Some(image), journal].map(|path| {
        let copy = scratch.join(format!("{}-recovered", path?.file_name()?.to_str()?));
        std::fs::copy(path?, &copy).expect("a copy");
        Some(copy)
    });
    let device = |path: &Path| -> Arc<dyn extant_device::Device> {
        Arc::new(FileDevice::open(path, true).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    };
    let [Some(image), journal] = &copies else { panic!("an image has a name") };
    let options = OpenOptions { journal_device: journal.as_deref().map(device), ..OpenOptions::default() };
    let volume = Volume::open(device(image), &options).unwrap_or_else(|fault| panic!("{fault}"));
    volume.close().unwrap_or_else(|fault| panic!("{fault}"));
    let left = manifest(&open(image, journal.as_deref()));
    copies.iter().flatten().for_each(|copy| std::fs::remove_file(copy).expect("it can be removed"));
    left
}

/// Where a tree that was read before a recovery differs from the one that the recovery left.
pub(crate) fn differences(shown: &Manifest, left: &Manifest) -> Vec<String> {
    extant_testkit::diff(left, shown, &extant_testkit::DiffOptions::exact(1024))
}

/// Reads everything in the volume.
pub(crate) fn manifest(volume: &Volume) -> Manifest {
    let mut found = Manifest::default();
    let mut known: HashMap<Ino, Entry> = HashMap::new();
    let mut dirs = vec![(Vec::new(), volume.root().expect("the root"))];
    let mut seen = HashSet::new();
    found.entries.insert(Vec::new(), entry(volume, &dirs[0].1));
    while let Some((path, dir)) = dirs.pop() {
        assert!(seen.insert(dir.ino()), "directory {} is met twice", dir.ino());
        for name in names(volume, &dir) {
            let inode = volume
                .names()
                .lookup(&dir, &name)
                .unwrap_or_else(|fault| panic!("{}/{}: {fault}", path.escape_ascii(), name.escape_ascii()));
            let full = if path.is_empty() { name } else { [&path[..], b"/", &name].concat() };
            let entry = known.entry(inode.ino()).or_insert_with(|| entry(volume, &inode)).clone();
            found.entries.insert(full.clone(), entry);
            if inode.kind() == FileType::Directory {
                dirs.push((full, inode));
            }
        }
    }
    found
}

/// A directory's names without "." and "..", read in pieces as a mount reads them.
pub(crate) fn names(volume: &Volume, dir: &Inode) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let mut position = Cursor::START;
    loop {
        let from = position;
        let mut piece = 0;
        let mut each = |entry: extant_volume::DirEntry<'_>| {
            let is_dots = entry.name == b"." || entry.name == b"..";
            if !is_dots {
                names.push(entry.name.to_vec());
            }
            position = entry.next;
            piece += 1;
            if piece == 50 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        volume
            .names()
            .read_dir(dir, from, &mut each, &mut |fault| panic!("directory {}: {fault}", dir.ino()))
            .unwrap_or_else(|fault| panic!("directory {}: {fault}", dir.ino()));
        if piece == 0 {
            return names;
        }
    }
}

fn entry(volume: &Volume, inode: &Inode) -> Entry {
    let stat = volume.attributes().stat(inode);
    let fail =
        |what: &str, fault: extant_volume::Fault| -> ! { panic!("inode {}: {what}: {fault}", stat.ino) };
    let kind = match stat.kind {
        FileType::Regular => Kind::Regular,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::CharDevice => Kind::CharDevice,
        FileType::BlockDevice => Kind::BlockDevice,
        FileType::Unknown => panic!("inode {}: of no type", stat.ino),
    };
    let time = |time: Timestamp| Time { seconds: time.seconds, nanoseconds: time.nanos };
    let xattrs: BTreeMap<Vec<u8>, Vec<u8>> = match volume.attributes().xattrs(inode) {
        Ok(found) => found.into_iter().map(|attribute| (attribute.name, attribute.value)).collect(),
        Err(fault) => fail("attributes", fault),
    };
    let mut names = volume.attributes().xattr_names(inode).unwrap_or_else(|fault| fail("attributes", fault));
    names.sort();
    assert_eq!(names, xattrs.keys().cloned().collect::<Vec<_>>(), "inode {}", stat.ino);
    let target = (kind == Kind::Symlink).then(|| match volume.files().read_link(inode) {
        Ok(target) => target,
        Err(fault) if fault.is(Refusal::NeedsKey) => Vec::new(),
        Err(fault) => fail("target", fault),
    });
    let mapped = matches!(kind, Kind::Regular | Kind::Directory);
    Entry {
        kind,
        mode: stat.mode & 0o7777,
        uid: stat.uid,
        gid: stat.gid,
        size: stat.size,
        nlink: stat.links,
        rdev: matches!(kind, Kind::CharDevice | Kind::BlockDevice).then_some(stat.device),
        mtime: time(stat.mtime),
        atime: time(stat.atime),
        ctime: time(stat.ctime),
        btime: stat.crtime.map(time),
        inode: (0, stat.ino.0.into()),
        xattrs,
        target,
        content: (kind == Kind::Regular).then(|| content(volume, inode)),
        blocks: stat.blocks_512,
        extents: mapped.then(|| extents(volume, inode)),
    }
}

fn content(volume: &Volume, file: &Inode) -> Content {
    if file.has_flag(flags::ENCRYPT) {
        let read = volume.files().read(file, 0, &mut [0; 1]);
        assert!(file.size() == 0 || read.is_err_and(|fault| fault.is(Refusal::NeedsKey)));
        return Content::Unreadable(rustix::io::Errno::NOKEY);
    }
    let mut data: Vec<Range<u64>> = Vec::new();
    let mut at = 0;
    loop {
        let start = match volume.files().seek(file, at, Seek::Data) {
            Ok(start) => start,
            Err(fault) if fault.is(Refusal::PastEnd) => break,
            Err(fault) => panic!("inode {}: SEEK_DATA: {fault}", file.ino()),
        };
        let end = volume.files().seek(file, start, Seek::Hole).expect("SEEK_HOLE behind data");
        match data.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => data.push(start..end),
        }
        at = end;
    }
    let read = |buf: &mut [u8], offset| {
        let len = volume.files().read(file, offset, buf).map_err(std::io::Error::other)?;
        check_lent(volume, file, offset, &buf[..len]);
        Ok(len)
    };
    Content::from_reader(data, read).unwrap_or_else(|error| panic!("inode {}: {error}", file.ino()))
}

/// A zero-copy read returns the same bytes as a read.
fn check_lent(volume: &Volume, file: &Inode, offset: u64, expected: &[u8]) {
    let mut take = |holder: BorrowedFd<'_>, at| {
        let mut found = vec![0; expected.len()];
        let got = rustix::io::pread(holder, &mut found, at).expect("the holder can be read");
        assert!(
            found[..got] == *expected,
            "inode {}: the zero-copy read at {offset} differs from the read",
            file.ino()
        );
    };
    volume.files().file_range(file, offset, expected.len() as u64, &mut take).expect("it could be read");
}

fn extents(volume: &Volume, file: &Inode) -> Vec<Extent> {
    let mut found = Vec::new();
    let encrypted = file.has_flag(flags::ENCRYPT) && file.kind() == FileType::Regular;
    let walked = volume.files().extents(file, 0, u64::MAX, &mut |extent| {
        found.push(Extent {
            logical: extent.offset,
            physical: extent.physical,
            len: extent.len,
            unwritten: extent.unwritten,
            inline: extent.inline,
            encrypted,
        });
        Some(())
    });
    walked.unwrap_or_else(|fault| panic!("inode {}: extents: {fault}", file.ino()));
    Extent::join(found)
}
