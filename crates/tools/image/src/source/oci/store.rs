//! The files of an image: a directory, or an archive of one.
//!
//! Owns: finding a file by name, and reading a part of a file as if it were a file. Does **not** own: the
//! meaning of the files.
//!
//! An archive is read once. If it is an uncompressed tar in a regular file, its members are read in place;
//! otherwise they are unpacked into the spool. In both cases a member is a part of an open file.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::source::blob::Blob;
use crate::source::entry::{Entry, Kind};
use crate::source::fault::{SourceFault, Warning};
use crate::source::spool::Spool;
use crate::source::tar::{TarInput, TarReader, Unpacking};

/// Limit on symbolic links followed from one member to another.
const LINKS_MAX: usize = 8;

/// A directory, or an archive of one.
pub(super) enum Store {
    Dir(PathBuf),
    Archive { path: PathBuf, members: HashMap<Vec<u8>, Member> },
}

/// A member of an archive.
pub(super) enum Member {
    Blob(Blob),
    /// A symbolic link to another member.
    Link(Vec<u8>),
}

impl Store {
    /// Opens a directory, or reads the member names of an archive.
    pub(super) fn open(
        path: &Path,
        spool: &mut Spool,
        unpacking: Unpacking,
        warn: &mut dyn FnMut(Warning),
    ) -> Result<Self, SourceFault> {
        let metadata = std::fs::metadata(path).map_err(|e| SourceFault::io("open", path, e))?;
        if metadata.is_dir() {
            return Ok(Self::Dir(path.to_owned()));
        }
        let mut members = HashMap::new();
        let mut reader = TarReader::open(TarInput::Path(path.to_owned()), unpacking)?;
        while let Some(Entry { path: name, kind, .. }) = reader.next_entry(spool, warn)? {
            match kind {
                Kind::File { size, payload } => {
                    let start = match payload.runs[..] {
                        [] if size == 0 => 0,
                        [run] if run.len == size => run.backing_offset,
                        // No program writes blobs with holes. If a manifest refers to this one, it is
                        // reported as missing.
                        _ => continue,
                    };
                    let file = Arc::clone(&payload.backing);
                    let blob = Blob { file, start, len: size, path: path.to_owned() };
                    members.insert(name, Member::Blob(blob));
                }
                Kind::HardLink(target) => {
                    if let Some(Member::Blob(blob)) = members.get(&target) {
                        let blob = blob.clone();
                        members.insert(name, Member::Blob(blob));
                    }
                }
                Kind::Symlink(target) => drop(members.insert(name, Member::Link(target))),
                _ => {}
            }
        }
        spool.flush()?;
        Ok(Self::Archive { path: path.to_owned(), members })
    }

    /// The path of the directory or archive.
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Dir(path) | Self::Archive { path, .. } => path,
        }
    }

    /// The path of a file, for messages.
    pub(super) fn path_of(&self, name: &str) -> PathBuf {
        match self {
            Self::Dir(path) => path.join(name),
            Self::Archive { path, .. } => path.clone(),
        }
    }

    /// The file of this name; `None` if it does not exist.
    pub(super) fn find(&self, name: &str) -> Result<Option<Blob>, SourceFault> {
        let (dir, members) = match self {
            Self::Dir(dir) => (dir, None),
            Self::Archive { path, members } => (path, Some(members)),
        };
        let Some(members) = members else {
            let path = dir.join(name);
            let metadata = match std::fs::metadata(&path) {
                Ok(metadata) if metadata.is_file() => metadata,
                Ok(_) => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(SourceFault::io("open", path, error)),
            };
            let file = File::open(&path).map_err(|e| SourceFault::io("open", &path, e))?;
            return Ok(Some(Blob { file: Arc::new(file), start: 0, len: metadata.len(), path }));
        };
        let mut name = normal(name.as_bytes());
        for _ in 0..LINKS_MAX {
            match members.get(&name) {
                None => return Ok(None),
                Some(Member::Blob(blob)) => return Ok(Some(blob.clone())),
                Some(Member::Link(target)) => {
                    let parent = name.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
                    name = normal(&[&name[..parent], target.as_slice()].concat());
                }
            }
        }
        Ok(None)
    }
}

/// A path without `.` and `..`; `..` never leads above the archive's root.
fn normal(path: &[u8]) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in path.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join(&b'/')
}
