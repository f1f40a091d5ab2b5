//! Paths of a walk, as they are named outside the image.
//!
//! Owns: the names in encrypted directories, which are written in a readable spelling (see
//! `extant::spelled`). All other names stay as they are.
//!
//! Invariant: entries come in the order of the walk, each directory before its contents.

use extant::walk::Loaded;
use extant::{FileType, flags, spelled};

/// The directories from the root of a walk to its current position.
#[derive(Default)]
pub(crate) struct Outside {
    dirs: Vec<Dir>,
}

struct Dir {
    path: Vec<u8>,
    encrypted: bool,
}

/// A path relative to the root of a walk.
pub(crate) struct OutsidePath {
    pub(crate) path: Vec<u8>,
    name_at: usize,
}

impl OutsidePath {
    /// The last component; empty for the root.
    pub(crate) fn name(&self) -> &[u8] {
        &self.path[self.name_at..]
    }
}

impl Outside {
    /// The path of the next entry of the walk.
    pub(crate) fn next(&mut self, loaded: &Loaded) -> OutsidePath {
        self.dirs.truncate(loaded.entry.depth());
        let mut path = Vec::new();
        let mut name_at = 0;
        if let Some(dir) = self.dirs.last() {
            path.extend_from_slice(&dir.path);
            if !path.is_empty() {
                path.push(b'/');
            }
            name_at = path.len();
            match dir.encrypted {
                true => path.extend_from_slice(&spelled::spell(loaded.entry.name())),
                false => path.extend_from_slice(loaded.entry.name()),
            }
        }
        if loaded.stat.kind == FileType::Directory {
            let encrypted = loaded.stat.flags & flags::ENCRYPT != 0;
            self.dirs.push(Dir { path: path.clone(), encrypted });
        }
        OutsidePath { path, name_at }
    }
}
