//! Inodes that must be deleted, or cut at their size, if a crash comes before that is done.
//!
//! ```text
//! list   superblock.s_last_orphan -> inode -> (its dtime) -> inode -> 0      one lock: the disk list is one
//! file   block: | ino | 0 | 0 | ino | ...   a free slot is claimed without a lock, and written with the commit; a lane keeps one ready
//! ```
//!
//! Modes differ in where "is it tracked?" is asked, and what is done under the list's lock:
//!
//! ```text
//!                        add                                        remove
//! ListV0   lock { tracked? head, own link }           lock { tracked? neighbour, own link }
//! ListV3   tracked? own inode joins; lock { head }    tracked? lock { neighbour }; own link
//! File     tracked? a slot, or as ListV3 when full    tracked? the slot, or as ListV3
//! ```
//! `None` tracks nothing: for measuring what tracking costs; a crash then leaks.
//!
//! Invariants
//! 1. Added and removed only under the inode's exclusive operation lock, or by its creator: "is it tracked?"
//!    needs no lock.
//! 2. An inode is never in both.
//! 3. The transaction that adds an inode changes it too, so that its link count or size gets to the device
//!    with it (bug 217605 of the kernel: an inode without a name was found in use).
//! 4. Locks: the list's, then inodes' values. Callers hold no inode's values.
//!
//! Source: the linux-ext4 series "Improve orphan list scaling" v3, 2014; kernel
//! Documentation/filesystems/ext4/orphan.rst.

mod file;
mod list;

use std::sync::Arc;

use extant_base::Pblk;
use extant_base::sync::thread_number;
use extant_buffer::{Edit, ReadFault};

use self::list::OrphanList;
use crate::live::{InodeCache, LiveInode, OrphanState};

pub use self::file::{OrphanFile, Slot};
pub use self::list::LockStats;

/// How orphans are tracked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OrphanMode {
    /// The list, as before 2014: every question under its lock.
    ListV0,
    /// The list, with what can be done outside of its lock done there.
    ListV3,
    /// The orphan file where the file system has one, else as `ListV3`.
    #[default]
    File,
    /// Not at all: for measuring.
    None,
}

impl OrphanMode {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::ListV0, Self::ListV3, Self::File, Self::None];

    /// As it is spelled.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ListV0 => "list-v0",
            Self::ListV3 => "list-v3",
            Self::File => "file",
            Self::None => "none",
        }
    }

    /// By its spelling.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// The orphans of a volume.
pub struct Orphans {
    mode: OrphanMode,
    list: OrphanList,
    file: Option<OrphanFile>,
}

impl Orphans {
    /// Only the inodes in `file` are tracked yet. `superblock`: its block, and the offset where it begins.
    #[must_use]
    pub fn new(mode: OrphanMode, file: Option<OrphanFile>, superblock: (Pblk, usize)) -> Self {
        Self { mode, list: OrphanList::new(superblock), file }
    }

    /// How orphans are tracked.
    #[must_use]
    pub fn mode(&self) -> OrphanMode {
        self.mode
    }

    /// The orphan file, where there is one.
    #[must_use]
    pub fn file(&self) -> Option<&OrphanFile> {
        self.file.as_ref()
    }

    /// Blocks that [`add`](Self::add) or [`remove`](Self::remove) change, without inodes.
    pub const CREDITS: u32 = 2;

    /// Is no inode tracked?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty() && self.file.as_ref().is_none_or(|file| file.used().is_empty())
    }

    /// What the list's lock saw.
    #[must_use]
    pub fn lock_stats(&self) -> LockStats {
        self.list.lock_stats()
    }

    /// Tracks an inode, if it is not yet. The caller changes the inode in the same transaction.
    ///
    /// # Errors
    /// A block cannot be read.
    #[inline]
    pub fn add(&self, live: &InodeCache, node: &Arc<LiveInode>, edit: &dyn Edit) -> Result<(), ReadFault> {
        match (self.mode, &self.file) {
            (OrphanMode::None, _) => Ok(()),
            (OrphanMode::ListV0, _) => self.add_asking_there(live, node, edit),
            _ if node.orphan() != OrphanState::None => Ok(()),
            (OrphanMode::File, Some(file)) => {
                let kept = file.claim_kept(node.ino(), edit.lane());
                match kept.or_else(|| file.claim(node.ino(), thread_number() as u32)) {
                    Some(slot) => {
                        // The slot is a value that gets into a block later.
                        edit.transaction();
                        node.set_orphan(OrphanState::Slot(slot));
                        Ok(())
                    }
                    None => self.join_list(live, node, edit),
                }
            }
            (OrphanMode::ListV3, _) | (OrphanMode::File, None) => self.join_list(live, node, edit),
        }
    }

    /// Tracks an inode no more, if it is.
    ///
    /// # Errors
    /// A block cannot be read.
    #[inline]
    pub fn remove(&self, live: &InodeCache, node: &Arc<LiveInode>, edit: &dyn Edit) -> Result<(), ReadFault> {
        match (node.orphan(), &self.file) {
            (OrphanState::Slot(slot), Some(file)) => {
                edit.transaction();
                node.set_orphan(OrphanState::None);
                file.give_back(slot, edit.lane());
                Ok(())
            }
            _ if self.mode == OrphanMode::ListV0 => self.remove_asking_there(live, node, edit),
            (OrphanState::Listed, _) => self.leave_list(live, node, edit),
            (OrphanState::None | OrphanState::Slot(_), _) => Ok(()),
        }
    }

    #[inline(never)]
    fn add_asking_there(
        &self,
        live: &InodeCache,
        node: &Arc<LiveInode>,
        edit: &dyn Edit,
    ) -> Result<(), ReadFault> {
        let mut list = self.list.lock();
        if node.orphan() != OrphanState::None {
            return Ok(());
        }
        list.join(live, node, edit)
    }

    #[inline(never)]
    fn remove_asking_there(
        &self,
        live: &InodeCache,
        node: &Arc<LiveInode>,
        edit: &dyn Edit,
    ) -> Result<(), ReadFault> {
        let mut list = self.list.lock();
        if node.orphan() == OrphanState::Listed {
            list.leave(live, node, edit)?;
            list::end(live, node, edit);
        }
        Ok(())
    }

    #[inline(never)]
    fn join_list(&self, live: &InodeCache, node: &Arc<LiveInode>, edit: &dyn Edit) -> Result<(), ReadFault> {
        // The inode joins the transaction here, not under the lock.
        drop(live.edit(node, edit.transaction()));
        self.list.lock().join(live, node, edit)
    }

    #[inline(never)]
    fn leave_list(&self, live: &InodeCache, node: &Arc<LiveInode>, edit: &dyn Edit) -> Result<(), ReadFault> {
        self.list.lock().leave(live, node, edit)?;
        list::end(live, node, edit);
        Ok(())
    }

    /// Takes the list that was found on disk into memory: each leads to the next.
    pub fn adopt_listed(&self, chain: &[Arc<LiveInode>]) {
        self.list.adopt(chain);
    }

    /// The head of the list; 0 where it is empty.
    #[must_use]
    pub fn list_head(&self) -> u32 {
        self.list.head()
    }

    /// Takes an inode that was found in this slot of the orphan file into memory.
    pub fn adopt_slot(&self, node: &LiveInode, slot: Slot) {
        node.set_orphan(OrphanState::Slot(slot));
    }

    /// Blocks that [`write`](Self::write) changes, at most.
    #[must_use]
    pub fn blocks_to_come(&self) -> u32 {
        self.file.as_ref().map_or(0, OrphanFile::blocks_to_come)
    }

    /// Writes what is kept as values (the file's slots) into blocks, as part of the transaction that ends
    /// here: no handle is open but `edit`.
    ///
    /// # Errors
    /// A block cannot be read.
    pub fn write(&self, live: &InodeCache, edit: &dyn Edit) -> Result<(), ReadFault> {
        self.file.as_ref().map_or(Ok(()), |file| file.write(&live.shared().buffers, edit))
    }
}
