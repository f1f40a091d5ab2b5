//! Applies the differences between an image and a tree to the image.
//!
//! Owns: the order of the operations, and which parts of a file are written. Invariants
//! 1. What is deleted is deleted first, so that its space can be used.
//! 2. A block of a file whose bytes stay the same is not written.
//! 3. The times of a directory are set last, after all changes of its names.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};

use extant_base::Ino;
use extant_image::build::Gathered;
use extant_image::content::{ContentReader, data_runs};
use extant_image::source::entry::Time;
use extant_image::tree::{ExtraTimes, ROOT, Tree};
use extant_ondisk::filetype::FileType;
use extant_ondisk::time::Timestamp;
use extant_volume::{Allocate, Fault, New, Refusal, SetAttr, SetXattr, Volume};

use super::links::{Links, find, node_at};
use super::{PIECE, UpdateFault, UpdateObserver};
use crate::diff::{Change, Diff, Difference, Node, Side, Status};
use crate::{Error, FileSystem};

/// The name of the directory that a file system keeps for `e2fsck`.
const LOST_FOUND: &[u8] = b"lost+found";

/// Applies `diff`, whose side B is `side`. Returns the number of bytes of contents that were written.
pub(super) fn apply(
    fs: &FileSystem,
    side: &Side,
    diff: &Diff,
    observer: &dyn UpdateObserver,
    cancel: &AtomicBool,
) -> Result<u64, UpdateFault> {
    let Some(gathered) = side.as_gathered() else { return Ok(0) };
    let block_bytes = fs.volume().geometry().block_size.bytes() as usize;
    let mut apply = Apply {
        volume: fs.volume(),
        fs,
        tree: &gathered.tree,
        gathered,
        contents: ContentReader::new(gathered),
        last_parent: None,
        touched: BTreeSet::new(),
        block_bytes,
        new: vec![0; PIECE],
        old: vec![0; PIECE],
        written: 0,
    };
    apply.remove(&diff.changes, cancel)?;
    let mut links = Links::of(fs.volume(), &gathered.tree, &diff.changes);
    for change in &diff.changes {
        if cancel.load(Ordering::Relaxed) {
            return Err(UpdateFault::Interrupted);
        }
        if let Some(Node::Tree(node)) = change.node {
            apply.change(change, node, &mut links).map_err(|failure| failure.at(&change.path))?;
            observer.changed(1);
        }
    }
    apply.finish()?;
    Ok(apply.written)
}

struct Apply<'u> {
    fs: &'u FileSystem,
    volume: &'u Volume,
    gathered: &'u Gathered,
    tree: &'u Tree,
    contents: ContentReader<'u>,
    /// The directory of the path before, and its inode.
    last_parent: Option<(Vec<u8>, Ino)>,
    /// Directories with changed names.
    touched: BTreeSet<Vec<u8>>,
    block_bytes: usize,
    /// Bytes of a file in the tree.
    new: Vec<u8>,
    /// Bytes of the same part in the image.
    old: Vec<u8>,
    written: u64,
}

/// Why a path is not changed.
enum Failure {
    /// The image refuses the change.
    Image(Fault),
    /// The source cannot be read.
    Source(String),
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self::Image(fault)
    }
}

impl Failure {
    fn at(self, path: &[u8]) -> UpdateFault {
        match self {
            Self::Image(fault) => Error::at(path)(fault).into(),
            Self::Source(why) => UpdateFault::Source(why),
        }
    }
}

/// The directory part of a path, and the name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

impl Apply<'_> {
    /// Removes the paths that are deleted or get another type.
    fn remove(&mut self, changes: &[Change], cancel: &AtomicBool) -> Result<(), UpdateFault> {
        let mut removed: Option<&[u8]> = None;
        for change in changes {
            if cancel.load(Ordering::Relaxed) {
                return Err(UpdateFault::Interrupted);
            }
            let path = &*change.path;
            let is_below = |top: &[u8]| path.strip_prefix(top).is_some_and(|rest| rest.starts_with(b"/"));
            let is_removed = matches!(change.status, Status::Deleted | Status::TypeChanged);
            if !is_removed || removed.is_some_and(is_below) {
                continue;
            }
            let is_dir = change.a.as_ref().is_some_and(|a| a.kind == FileType::Directory);
            if is_dir && path == LOST_FOUND {
                continue; // what is in it is removed
            }
            if is_dir {
                self.fs.remove_dir_all(OsStr::from_bytes(path))?;
                removed = Some(path);
            } else {
                self.unlink(path).map_err(Error::at(path))?;
            }
            self.touch(path);
        }
        self.last_parent = None;
        Ok(())
    }

    /// Notes that a directory's names change.
    fn touch(&mut self, path: &[u8]) {
        let dir = split(path).0;
        if !self.touched.contains(dir) {
            self.touched.insert(dir.to_vec());
        }
    }

    fn parent<'p>(&mut self, path: &'p [u8]) -> Result<(Ino, &'p [u8]), Fault> {
        let (dir, name) = split(path);
        if let Some((known, ino)) = &self.last_parent
            && known == dir
        {
            return Ok((*ino, name));
        }
        let ino = find(self.volume, dir)?.ok_or(Fault::Refused(Refusal::NotFound))?.ino();
        self.last_parent = Some((dir.to_vec(), ino));
        Ok((ino, name))
    }

    fn unlink(&mut self, path: &[u8]) -> Result<(), Fault> {
        let (dir, name) = self.parent(path)?;
        self.volume.names().unlink(dir, name)
    }

    /// Makes the file at a changed path equal to its node.
    fn change(&mut self, change: &Change, node: u32, links: &mut Links) -> Result<(), Failure> {
        let path = &*change.path;
        let of = &self.tree.nodes[node as usize];
        if of.is_dir() {
            if change.status != Status::Modified {
                self.make(path, node)?;
            }
            // Names in it may change later.
            self.touched.insert(path.to_vec());
            return Ok(());
        }
        let is_remade = change
            .differences
            .iter()
            .any(|difference| matches!(difference, Difference::Target { .. } | Difference::Device));
        let there = match change.status {
            Status::Modified => find(self.volume, path)?.map(|inode| inode.ino()),
            _ => None,
        };
        let keeps = match links.inode_of(node) {
            // It has several names, and this inode is kept for them.
            Some(Some(ino)) => Some(ino),
            // It has several names, and no inode yet.
            Some(None) => None,
            None => there.filter(|_| !is_remade && !links.is_taken(there, node)),
        };
        if let Some(ino) = keeps {
            if there != Some(ino) {
                if there.is_some() {
                    self.unlink(path)?;
                }
                let (dir, name) = self.parent(path)?;
                self.volume.names().link(ino, dir, name)?;
                self.touch(path);
            }
            if links.begins(node) {
                let has_content = change.differences.iter().any(|difference| {
                    matches!(difference, Difference::Content { .. } | Difference::Size | Difference::Holes)
                });
                // Another name may have been compared with another file.
                if of.file_type() == FileType::Regular && (has_content || there != Some(ino)) {
                    self.fill(ino, node, false)?;
                }
            }
            // A new link has changed the time of the inode.
            return Ok(self.set_metadata(ino, node)?);
        }
        if there.is_some() {
            self.unlink(path)?;
        }
        let ino = self.make(path, node)?;
        links.made(node, ino);
        if of.file_type() == FileType::Regular {
            self.fill(ino, node, true)?;
        }
        Ok(self.set_metadata(ino, node)?)
    }

    /// Creates the inode of a node, without content.
    fn make(&mut self, path: &[u8], node: u32) -> Result<Ino, Fault> {
        let of = &self.tree.nodes[node as usize];
        let kind = of.file_type();
        let target = if kind == FileType::Symlink { self.tree.symlink_target(of) } else { b"" };
        let mode = of.mode & 0o7777;
        let new = New { kind, mode, umask: 0, uid: of.uid, gid: of.gid, device: of.device(), target };
        let (dir, name) = self.parent(path)?;
        let made = self.volume.names().create(dir, name, &new)?.ino();
        self.touch(path);
        Ok(made)
    }

    /// Writes the content of a file. What the file holds already is not written again, unless it is new.
    fn fill(&mut self, ino: Ino, node: u32, is_new: bool) -> Result<(), Failure> {
        let size = self.tree.nodes[node as usize].size;
        let before = if is_new { 0 } else { self.volume.inode(ino)?.size() };
        if before > size {
            self.volume.attributes().set_attr(ino, &SetAttr { size: Some(size), ..SetAttr::default() })?;
        }
        let before = before.min(size);
        let mut at = 0;
        for (start, end) in data_runs(self.tree, node) {
            self.clear(ino, at, start.min(before))?;
            at = start;
            while at < end {
                // To the next multiple, so that pieces and blocks begin at the same bytes.
                let piece = (PIECE as u64 - at % PIECE as u64).min(end - at) as usize;
                self.fill_piece(ino, node, at, piece, before)?;
                at += piece as u64;
            }
        }
        self.clear(ino, at, before)?;
        if self.volume.inode(ino)?.size() != size {
            self.volume.attributes().set_attr(ino, &SetAttr { size: Some(size), ..SetAttr::default() })?;
        }
        Ok(())
    }

    /// Writes the changed blocks of one piece; `before` is the end of the old content.
    fn fill_piece(&mut self, ino: Ino, node: u32, at: u64, piece: usize, before: u64) -> Result<(), Failure> {
        self.contents.read_at(node, at, &mut self.new[..piece]).map_err(Failure::Source)?;
        let known = usize::try_from(before.saturating_sub(at)).unwrap_or(piece).min(piece);
        let inode = if known > 0 { Some(self.volume.inode(ino)?) } else { None };
        if let Some(inode) = &inode {
            let mut done = 0;
            while done < known {
                match self.volume.files().read(inode, at + done as u64, &mut self.old[done..known])? {
                    0 => break,
                    got => done += got,
                }
            }
            self.old[done..known].fill(0);
        }
        let bs = self.block_bytes;
        // The first part ends where a block ends.
        let mut from = 0;
        let mut unwritten: Option<usize> = None;
        while from < piece {
            let to = (from + bs - ((at as usize + from) % bs)).min(piece);
            let is_same = to <= known && self.new[from..to] == self.old[from..to];
            if is_same {
                if let Some(start) = unwritten.take() {
                    self.write(ino, at, start, from)?;
                }
            } else {
                unwritten.get_or_insert(from);
            }
            from = to;
        }
        match unwritten {
            Some(start) => Ok(self.write(ino, at, start, piece)?),
            None => Ok(()),
        }
    }

    /// Writes the bytes `start..end` of the piece that begins at byte `at` of a file.
    fn write(&mut self, ino: Ino, at: u64, start: usize, end: usize) -> Result<(), Fault> {
        let mut done = start;
        while done < end {
            match self.volume.files().write_at(ino, at + done as u64, &self.new[done..end])? {
                0 => return Err(Refusal::NoSpace.into()),
                len => done += len,
            }
        }
        self.written += (end - start) as u64;
        Ok(())
    }

    /// Makes a hole where the file holds data.
    fn clear(&mut self, ino: Ino, start: u64, end: u64) -> Result<(), Fault> {
        if start >= end {
            return Ok(());
        }
        let inode = self.volume.inode(ino)?;
        let mut has_data = inode.is_inline();
        self.volume.files().extents(&inode, start, end - start, &mut |extent| {
            has_data |= !extent.unwritten;
            (!has_data).then_some(())
        })?;
        if has_data {
            self.volume.files().fallocate(ino, Allocate::Punch, start, end - start)?;
        }
        Ok(())
    }

    /// Sets attributes, owner, mode and times.
    fn set_metadata(&self, ino: Ino, node: u32) -> Result<(), Fault> {
        let of = &self.tree.nodes[node as usize];
        let wanted = &self.tree.xattr_sets[of.xattrs as usize];
        let inode = self.volume.inode(ino)?;
        let there = self.volume.attributes().xattrs(&inode)?;
        for known in &there {
            if !wanted.iter().any(|xattr| xattr.name == known.name) {
                self.volume.attributes().remove_xattr(ino, &known.name)?;
            }
        }
        for xattr in wanted {
            if !there.iter().any(|known| known.name == xattr.name && known.value == xattr.value) {
                self.volume.attributes().set_xattr(ino, &xattr.name, &xattr.value, SetXattr::Any)?;
            }
        }
        let ExtraTimes { atime, ctime, crtime } = self.tree.times_of(of);
        let stamp = |time: Time| Some(Timestamp { seconds: time.seconds, nanos: time.nanos });
        let set = SetAttr {
            mode: (of.file_type() != FileType::Symlink).then_some(of.mode & 0o7777),
            uid: Some(of.uid),
            gid: Some(of.gid),
            atime: stamp(atime),
            mtime: stamp(of.mtime()),
            ctime: stamp(ctime),
            crtime: stamp(crtime),
            ..SetAttr::default()
        };
        self.volume.attributes().set_attr(ino, &set)?;
        Ok(())
    }

    /// Sets the metadata of directories, now that their names are final.
    fn finish(&mut self) -> Result<(), UpdateFault> {
        for path in std::mem::take(&mut self.touched) {
            let set = || -> Result<(), Fault> {
                let Some(node) = node_at(self.tree, &path) else { return Ok(()) };
                let Some(inode) = find(self.volume, &path)? else { return Ok(()) };
                if node == ROOT && !self.gathered.has_root {
                    // The sources say nothing about the root: only its times are set.
                    let time = i64::try_from(self.gathered.time).unwrap_or(0);
                    let time = Some(Timestamp { seconds: time, nanos: 0 });
                    let set = SetAttr { mtime: time, ctime: time, ..SetAttr::default() };
                    self.volume.attributes().set_attr(inode.ino(), &set)?;
                    return Ok(());
                }
                self.set_metadata(inode.ino(), node)
            };
            set().map_err(Error::at(&path))?;
        }
        Ok(())
    }
}
