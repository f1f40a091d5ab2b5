//! Reads the contents of a [gathered](crate::build::Gathered) tree at any offset, for programs that need no
//! image of it.
//!
//! Owns: opening the files of directory sources, the check that a file still has the size that the walk
//! found. Does **not** own: the copy into an image, which has its own order of reads (see [`crate::write`]).
//!
//! Invariant: no symbolic link is followed, and the access times of the source stay where the system permits
//! that.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::build::Gathered;
use crate::source::beneath::open_beneath;
use crate::source::fault::ShownPath;
use crate::tree::{Content, NONE, PayloadRecord, Tree};

/// The runs of data of a regular file: first byte and end, in ascending order. Everything else is a hole.
#[must_use]
pub fn data_runs(tree: &Tree, node: u32) -> Vec<(u64, u64)> {
    let file = &tree.nodes[node as usize];
    let mut runs = match tree.content(file) {
        Content::Archive(PayloadRecord { runs: Some(runs), .. }) => {
            runs.iter().map(|run| (run.file_offset, run.file_offset + run.len)).collect()
        }
        Content::Source(_) if file.sparse != NONE => {
            tree.sparse[file.sparse as usize].iter().map(|(at, len)| (*at, at + len)).collect()
        }
        Content::Archive(_) | Content::Source(_) => vec![(0, file.size)],
    };
    runs.retain(|(start, end)| start < end);
    runs
}

/// Reads files of one tree. Keeps the last file open.
#[derive(Debug)]
pub struct ContentReader<'g> {
    gathered: &'g Gathered,
    file: Option<(u32, File)>,
}

impl<'g> ContentReader<'g> {
    /// A reader without an open file.
    #[must_use]
    pub fn new(gathered: &'g Gathered) -> Self {
        Self { gathered, file: None }
    }

    /// Fills `buf` with the bytes of a regular file from `offset` on. The range is inside one run of
    /// [`data_runs`].
    ///
    /// # Errors
    /// The file cannot be read, or has another size than in the tree: a message with its path.
    pub fn read_at(&mut self, node: u32, offset: u64, buf: &mut [u8]) -> Result<(), String> {
        let tree = &self.gathered.tree;
        let content = tree.content(&tree.nodes[node as usize]);
        let read = match content {
            Content::Archive(payload) => {
                let found = payload.runs.as_deref().and_then(|runs| {
                    let run = runs.iter().rfind(|run| run.file_offset <= offset)?;
                    Some(run.backing_offset + (offset - run.file_offset))
                });
                let at = found.unwrap_or(payload.offset + offset);
                tree.backings[payload.backing as usize].read_exact_at(buf, at)
            }
            Content::Source(source) => {
                self.open(node, source).and_then(|file| file.read_exact_at(buf, offset))
            }
        };
        read.map_err(|error| self.named(node, content, &error))
    }

    fn open(&mut self, node: u32, source: u32) -> io::Result<&File> {
        if self.file.as_ref().is_none_or(|(known, _)| *known != node) {
            let tree = &self.gathered.tree;
            let record = tree.source_record(node);
            let path = tree.path_in(record.dir, tree.name(record));
            let root = self.gathered.roots[source as usize].dir.as_fd();
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
            let opened = match open_beneath(root, &path, flags | OFlags::NOATIME) {
                Err(Errno::PERM) => open_beneath(root, &path, flags),
                other => other,
            };
            let file = File::from(opened?);
            if file.metadata()?.len() != tree.nodes[node as usize].size {
                return Err(io::Error::other("its size changed while it was read"));
            }
            self.file = Some((node, file));
        }
        self.file.as_ref().map(|(_, file)| file).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// The message about a file that cannot be read.
    fn named(&self, node: u32, content: Content<'_>, error: &io::Error) -> String {
        let tree = &self.gathered.tree;
        match content {
            Content::Archive(_) => format!("{}: {}", ShownPath(&tree.path(node)), reason(error)),
            Content::Source(source) => {
                let record = tree.source_record(node);
                let path = tree.path_in(record.dir, tree.name(record));
                let root = self.gathered.roots[source as usize].path.display();
                format!("{root}/{}: {}", ShownPath(&path), reason(error))
            }
        }
    }
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "it became shorter while it was read".to_owned(),
        _ => format!("cannot be read: {error}"),
    }
}
