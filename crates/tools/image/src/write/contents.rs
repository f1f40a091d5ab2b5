//! Copies contents: many small files with one buffer and one write, large files in parts.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use extant_device::DeviceFault;
use extant_ondisk::extent::Extent;
use extant_ondisk::filetype::FileType;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{Job, Writer};
use crate::source::beneath::open_beneath;
use crate::source::entry::DataRun;
use crate::tree::{Content, PayloadRecord};

/// Bytes that are read and written at once: large enough to amortise the calls, small enough for a core's
/// cache.
pub(super) const BATCH_BYTES: usize = 1 << 20;

/// A directory that contents are read from.
#[derive(Debug)]
pub struct SourceRoot {
    /// The open directory.
    pub dir: OwnedFd,
    /// Its path, for messages.
    pub path: PathBuf,
}

/// A file that could not be copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Path of the source file, escaped for printing.
    pub path: String,
    /// The finding.
    pub why: String,
    /// Whether the file changed while it was read. Otherwise it could not be read.
    pub changed: bool,
}

impl Writer<'_, '_> {
    /// Splits all contents into jobs: runs of whole files up to [`BATCH_BYTES`], and parts of larger files.
    pub(super) fn plan_file_jobs(&self, jobs: &mut Vec<Job>) {
        let plan = self.plan;
        let bs = self.bs() as u64;
        let batch_blocks = BATCH_BYTES as u64 / bs;
        // The current run: first and end block. Its job begins where the last job ended, so that the jobs
        // together cover every file, including files without blocks.
        let mut row: Option<(u64, u64)> = None;
        let mut covered = 0;
        let mut close = |row: &mut Option<(u64, u64)>, end: u32, jobs: &mut Vec<Job>| {
            if row.take().is_some() || end == plan.by_ino.len() as u32 {
                jobs.push(Job::Files { start: covered, end });
                covered = end;
            }
        };
        for (i, &node_index) in plan.by_ino.iter().enumerate() {
            let i = i as u32;
            let node = &plan.tree.nodes[node_index as usize];
            if !matches!(node.file_type(), FileType::Regular | FileType::Symlink) {
                continue;
            }
            match plan.simple_start(node_index) {
                Some(start) if plan.dense_blocks(node_index) <= batch_blocks => {
                    let end = start + plan.dense_blocks(node_index);
                    match &mut row {
                        Some((first, row_end)) if start == *row_end && end - *first <= batch_blocks => {
                            *row_end = end;
                        }
                        _ => {
                            close(&mut row, i, jobs);
                            row = Some((start, end));
                        }
                    }
                }
                _ => {
                    for extent in plan.extents_of(node_index) {
                        let mut at = extent;
                        while u64::from(at.len) > batch_blocks {
                            let part = Extent { len: batch_blocks as u32, ..at };
                            jobs.push(Job::Part { node: node_index, extent: part });
                            at.lblk += part.len;
                            at.start += u64::from(part.len);
                            at.len -= part.len;
                        }
                        jobs.push(Job::Part { node: node_index, extent: at });
                    }
                }
            }
        }
        close(&mut row, plan.by_ino.len() as u32, jobs);
    }
}

/// The buffer of one thread, and the directory and file that it has open.
pub(super) struct Copier<'c, 'w, 't> {
    writer: &'c Writer<'w, 't>,
    buffer: Vec<u8>,
    /// The last opened directory: (source, directory node).
    dir: Option<((u32, u32), OwnedFd)>,
    /// The last opened large file.
    file: Option<(u32, File)>,
}

/// Why a content could not be read.
enum Trouble {
    Refused(io::Error),
    Shrank,
    Grew,
}

/// Uses fstat, because pseudo passes its result through for descriptors that it does not know. For the statx
/// of the standard library pseudo requires a known path.
fn size_of(file: &File) -> Result<u64, Trouble> {
    rustix::fs::fstat(file).map(|stat| stat.st_size as u64).map_err(|errno| Trouble::Refused(errno.into()))
}

impl<'c, 'w, 't> Copier<'c, 'w, 't> {
    pub(super) fn new(writer: &'c Writer<'w, 't>) -> Self {
        Self { writer, buffer: vec![0; BATCH_BYTES.max(writer.bs())], dir: None, file: None }
    }

    /// Copies a run of whole files with one write.
    pub(super) fn copy_files(&mut self, start: u32, end: u32) -> Result<(), DeviceFault> {
        let plan = self.writer.plan;
        let bs = self.writer.bs();
        let mut first = None;
        let mut filled = 0;
        let mut files = 0;
        for &node_index in &plan.by_ino[start as usize..end as usize] {
            let node = &plan.tree.nodes[node_index as usize];
            let regular = node.file_type() == FileType::Regular;
            let Some(place) = plan.simple_start(node_index) else {
                // There is nothing to copy. But a file that was empty when it was planned may have grown.
                if regular && node.size == 0 {
                    files += 1;
                    self.check_empty(node_index);
                }
                continue;
            };
            let is_content = regular || node.file_type() == FileType::Symlink;
            if !is_content || plan.dense_blocks(node_index) as usize * bs > BATCH_BYTES {
                continue;
            }
            first.get_or_insert(place);
            let blocks = plan.dense_blocks(node_index) as usize;
            let mut buffer = std::mem::take(&mut self.buffer);
            let target = &mut buffer[filled..filled + blocks * bs];
            let (content, padding) = target.split_at_mut(node.size as usize);
            padding.fill(0);
            if regular {
                self.read_whole(node_index, content);
            } else {
                content.copy_from_slice(plan.tree.symlink_target(node));
            }
            self.buffer = buffer;
            filled += blocks * bs;
            files += 1;
        }
        if let Some(first) = first {
            self.writer.put(first, &self.buffer[..filled])?;
        }
        self.writer.meter.wrote(filled as u64, files);
        Ok(())
    }

    /// Reports a problem if a file that was planned as empty is not empty.
    fn check_empty(&mut self, node_index: u32) {
        let plan = self.writer.plan;
        let Content::Source(source) = plan.tree.content(&plan.tree.nodes[node_index as usize]) else {
            return;
        };
        let size = self.open(node_index, source).and_then(rustix::fs::fstat).map(|stat| stat.st_size);
        match size {
            Ok(0) => {}
            Ok(_) => self.report(node_index, Trouble::Grew),
            Err(errno) => self.report(node_index, Trouble::Refused(errno.into())),
        }
    }

    /// Copies part of a large or sparse file.
    pub(super) fn copy_part(&mut self, node_index: u32, extent: Extent) -> Result<(), DeviceFault> {
        let plan = self.writer.plan;
        let bs = self.writer.bs();
        let node = &plan.tree.nodes[node_index as usize];
        let len = extent.len as usize * bs;
        let offset = u64::from(extent.lblk) * bs as u64;
        let content_len = (node.size.saturating_sub(offset)).min(len as u64) as usize;
        let mut buffer = std::mem::take(&mut self.buffer);
        let (content, padding) = buffer[..len].split_at_mut(content_len);
        padding.fill(0);
        let is_last = offset + content_len as u64 == node.size;
        let read = match plan.tree.content(node) {
            Content::Archive(payload) => self.read_payload(payload, node.size, offset, content),
            Content::Source(source) => self.read_part(node_index, source, offset, content, is_last),
        };
        if let Err(trouble) = read {
            self.report(node_index, trouble);
        }
        let written = self.writer.put(extent.start, &buffer[..len]);
        self.buffer = buffer;
        written?;
        self.writer.meter.wrote(len as u64, u64::from(is_last));
        Ok(())
    }

    /// Reads a whole file, or reports the problem and leaves zeros.
    fn read_whole(&mut self, node_index: u32, content: &mut [u8]) {
        let plan = self.writer.plan;
        let node = &plan.tree.nodes[node_index as usize];
        let read = match plan.tree.content(node) {
            Content::Archive(payload) => self.read_payload(payload, node.size, 0, content),
            Content::Source(source) => self.read_source(node_index, source, content),
        };
        if let Err(trouble) = read {
            self.report(node_index, trouble);
        }
    }

    fn report(&self, node_index: u32, trouble: Trouble) {
        let plan = self.writer.plan;
        let why = match trouble {
            Trouble::Refused(error) => format!("cannot be read: {error}"),
            Trouble::Shrank | Trouble::Grew if self.writer.options.tolerate_changes => {
                let changed = &self.writer.changed;
                changed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(node_index);
                return;
            }
            Trouble::Shrank => "became shorter while it was read".to_owned(),
            Trouble::Grew => "became longer while it was read".to_owned(),
        };
        let changed = why.starts_with("became");
        let shown = |path: &[u8]| crate::source::fault::ShownPath(path).to_string();
        let path = match plan.tree.content(&plan.tree.nodes[node_index as usize]) {
            Content::Source(source) => {
                let record = plan.tree.source_record(node_index);
                let path = plan.tree.path_in(record.dir, plan.tree.name(record));
                format!("{}/{}", self.writer.roots[source as usize].path.display(), shown(&path))
            }
            Content::Archive(_) => shown(&plan.tree.path(node_index)),
        };
        let problem = Problem { path, why, changed };
        let mut problems = self.writer.problems.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if !problems.contains(&problem) {
            problems.push(problem);
        }
    }

    fn read_source(&mut self, node_index: u32, source: u32, content: &mut [u8]) -> Result<(), Trouble> {
        let fd = self.open(node_index, source).map_err(|e| Trouble::Refused(e.into()))?;
        let mut filled = 0;
        // One byte more than planned means that the file has grown: request it with the same call.
        let mut extra = [0u8; 1];
        while filled <= content.len() {
            let mut parts = [io::IoSliceMut::new(&mut content[filled..]), io::IoSliceMut::new(&mut extra)];
            match rustix::io::readv(&fd, &mut parts) {
                Ok(0) if filled == content.len() => return Ok(()),
                Ok(0) => {
                    content[filled..].fill(0);
                    return Err(Trouble::Shrank);
                }
                Ok(n) => filled += n,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Trouble::Refused(errno.into())),
            }
            // A short read that ends exactly at the planned end needs no second call: the kernel had no more
            // bytes.
            if filled == content.len() {
                return Ok(());
            }
        }
        Err(Trouble::Grew)
    }

    fn read_part(
        &mut self,
        node_index: u32,
        source: u32,
        offset: u64,
        content: &mut [u8],
        is_last: bool,
    ) -> Result<(), Trouble> {
        use std::os::unix::fs::FileExt;
        // The content is filled even if the size is wrong: the buffer still holds bytes of other files.
        let mut judged = Ok(());
        if self.file.as_ref().is_none_or(|(node, _)| *node != node_index) {
            let fd = self.open(node_index, source).map_err(|e| Trouble::Refused(e.into()))?;
            let file = File::from(fd);
            // After the last data there may be a hole that no part reads, so check the size here.
            let size = size_of(&file)?;
            self.file = Some((node_index, file));
            judged = match size.cmp(&self.writer.plan.tree.nodes[node_index as usize].size) {
                std::cmp::Ordering::Less => Err(Trouble::Shrank),
                std::cmp::Ordering::Equal => Ok(()),
                std::cmp::Ordering::Greater => Err(Trouble::Grew),
            };
        }
        let Some((_, file)) = &self.file else { return judged };
        let mut filled = 0;
        while filled < content.len() {
            match file.read_at(&mut content[filled..], offset + filled as u64) {
                Ok(0) => {
                    content[filled..].fill(0);
                    return Err(Trouble::Shrank);
                }
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Trouble::Refused(error)),
            }
        }
        if is_last {
            let size = size_of(file)?;
            if size > offset + content.len() as u64 {
                return Err(Trouble::Grew);
            }
        }
        judged
    }

    /// Reads bytes of a file from an archive. Bytes that no run covers are zeros.
    fn read_payload(
        &self,
        payload: &PayloadRecord,
        size: u64,
        offset: u64,
        content: &mut [u8],
    ) -> Result<(), Trouble> {
        use std::os::unix::fs::FileExt;
        let file = &self.writer.plan.tree.backings[payload.backing as usize];
        let dense = [DataRun { file_offset: 0, len: size, backing_offset: payload.offset }];
        let runs = payload.runs.as_deref().unwrap_or(&dense);
        if payload.runs.is_some() {
            content.fill(0);
        }
        let end = offset + content.len() as u64;
        for run in runs {
            let (from, to) = (run.file_offset.max(offset), (run.file_offset + run.len).min(end));
            if from < to {
                let part = &mut content[(from - offset) as usize..(to - offset) as usize];
                let backing_at = run.backing_offset + (from - run.file_offset);
                file.read_exact_at(part, backing_at).map_err(|error| match error.kind() {
                    io::ErrorKind::UnexpectedEof => Trouble::Shrank,
                    _ => Trouble::Refused(error),
                })?;
            }
        }
        Ok(())
    }

    /// The open directory that contains a node's name.
    fn open_dir(&mut self, node_index: u32, source: u32) -> Result<BorrowedFd<'_>, Errno> {
        let tree = self.writer.plan.tree;
        let record = tree.source_record(node_index);
        let dir_node = tree.dirs[record.dir as usize].node;
        if self.dir.as_ref().is_none_or(|(key, _)| *key != (source, dir_node)) {
            let root = self.writer.roots[source as usize].dir.as_fd();
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let opened = open_beneath(root, &tree.path(dir_node), flags)?;
            self.dir = Some(((source, dir_node), opened));
        }
        self.dir.as_ref().map(|(_, dir)| dir.as_fd()).ok_or(Errno::NOENT)
    }

    /// Opens a file of a directory source. Does not follow a symlink that may have replaced it.
    fn open(&mut self, node_index: u32, source: u32) -> Result<OwnedFd, Errno> {
        let tree = self.writer.plan.tree;
        let name = tree.name(tree.source_record(node_index));
        let dir = self.open_dir(node_index, source)?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        // Reading must not change the source's access times. Only owners and root may use NOATIME.
        match rustix::fs::openat(dir, name, flags | OFlags::NOATIME, Mode::empty()) {
            Err(Errno::PERM) => rustix::fs::openat(dir, name, flags, Mode::empty()),
            other => other,
        }
    }
}
