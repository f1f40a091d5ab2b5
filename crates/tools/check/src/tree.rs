//! The parent of each directory, as pass 2 finds it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use extant_base::Ino;
use extant_ondisk::Geometry;

use crate::per_group::PerGroup;

/// The parent of each directory.
#[derive(Debug)]
pub(crate) struct Tree {
    /// By directory: the directory that holds its name; 0 if none is known.
    pub(crate) parents: PerGroup<AtomicU32>,
    /// By directory: the inode that its ".." names; 0 if unknown.
    dotdots: PerGroup<AtomicU32>,
    /// Directories with a second name: the directory, and the directory that holds that name.
    pub(crate) again: Mutex<Vec<(u32, u32)>>,
}

impl Tree {
    pub(crate) fn new(geometry: &Geometry) -> Self {
        Self { parents: PerGroup::new(geometry), dotdots: PerGroup::new(geometry), again: Mutex::default() }
    }

    pub(crate) fn name_leads(&self, child: Ino, parent: Ino) {
        let Some(slot) = self.parents.touch(child) else { return };
        let first = if child == Ino::ROOT {
            Err(Ino::ROOT.0) // the root needs no name, and may have none
        } else {
            slot.compare_exchange(0, parent.0, Ordering::Relaxed, Ordering::Relaxed)
        };
        if let Err(other) = first {
            let mut again = self.again.lock().unwrap_or_else(PoisonError::into_inner);
            again.extend([(child.0, other), (child.0, parent.0)]);
        }
    }

    pub(crate) fn set_dotdot(&self, dir: Ino, parent: u32) {
        if let Some(slot) = self.dotdots.touch(dir) {
            slot.store(parent, Ordering::Relaxed);
        }
    }

    /// The directory that holds the name of `dir`; the root is its own parent.
    pub(crate) fn parent(&self, dir: Ino) -> Option<Ino> {
        if dir == Ino::ROOT {
            return Some(dir);
        }
        let parent = self.parents.get(dir)?.load(Ordering::Relaxed);
        (parent != 0).then_some(Ino(parent))
    }

    /// The inode that ".." of `dir` names.
    pub(crate) fn dotdot(&self, dir: Ino) -> Option<Ino> {
        let parent = self.dotdots.get(dir)?.load(Ordering::Relaxed);
        (parent != 0).then_some(Ino(parent))
    }
}
