//! Paths of a walk as they are outside of the image.
//!
//! Owns: names of encrypted directories, which are spelled there (see `extant::spelled`). Everything else has
//! its own name.
//!
//! Invariant: entries come in the order of the walk, each directory before what is in it.

use extant::walk::Loaded;
use extant::{FileType, flags, spelled};

/// The directories from the root of a walk to where it is.
#[derive(Default)]
pub(crate) struct Outside {
    dirs: Vec<Dir>,
}

struct Dir {
    path: Vec<u8>,
    encrypted: bool,
}

/// A path from the root of a walk.
pub(crate) struct OutsidePath {
    pub(crate) path: Vec<u8>,
    name_at: usize,
}

impl OutsidePath {
    /// The last part; empty for the root.
    pub(crate) fn name(&self) -> &[u8] {
        &self.path[self.name_at..]
    }
}

impl Outside {
    /// Where the next entry of the walk goes.
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
