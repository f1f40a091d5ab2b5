//! Tracks *orphans*: inodes that must be deleted, or truncated to their size, if a crash comes before that is
//! done.
//!
//! ```text
//! list   superblock.s_last_orphan -> inode -> (its dtime) -> inode -> 0      one lock for the one list
//! file   block: | ino | 0 | 0 | ino | ...    a slot is claimed without a lock, and written by the commit;
//!                                            each lane keeps a free slot ready
//! ```
//!
//! ext4 records orphans in two forms. The orphan list links the inodes through their dtime fields. The orphan
//! file has a slot for each inode. (A *lane* is a place in the journal where the handles of one thread start
//! and end without a lock.)
//!
//! [`OrphanMode`] selects the form. `File` is the default; it uses the list if the file system has no orphan
//! file. `ListV0` and `ListV3` are two versions of the code for the list. They differ in where they check
//! whether an inode is tracked, and in what they do under the list's lock. In the table, *head* is the first
//! link, *own link* is that of the inode itself, *neighbour* is the link of its predecessor (or the head),
//! and *own inode joins* means that the inode is added to the transaction.
//! ```text
//!                        add                                        remove
//! ListV0   lock { tracked? head, own link }           lock { tracked? neighbour, own link }
//! ListV3   tracked? own inode joins; lock { head }    tracked? lock { neighbour }; own link
//! File     tracked? a slot, or as ListV3 when full    tracked? the slot, or as ListV3
//! ```
//! The mode `None` tracks nothing, to measure the cost of tracking; a crash then leaks inodes.
//!
//! Invariants
//! 1. Inodes are added and removed only under their exclusive operation lock, or by their creator. So
//!    checking whether an inode is tracked needs no lock.
//! 2. An inode is never in the list and the file at the same time.
//! 3. The transaction that adds an inode also changes the inode, so that its link count or size reaches the
//!    device in that transaction. (The kernel's bug 217605: after a power cut, an inode without a name still
//!    counted as in use.)
//! 4. Locks, in order: the list's, then inodes' values. Callers hold no inode's values.
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
use crate::live::InodeCache;
use crate::node::{LiveInode, OrphanState};

pub use self::file::{OrphanFile, Slot};
pub use self::list::LockStats;

/// How orphans are tracked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OrphanMode {
    /// The list, like the kernel before 2014: all checks under its lock.
    ListV0,
    /// The list, with only the necessary work under its lock.
    ListV3,
    /// The orphan file if the file system has one, else same as `ListV3`.
    #[default]
    File,
    /// No tracking: for measurements.
    None,
}

impl OrphanMode {
    /// All modes.
    pub const ALL: [Self; 4] = [Self::ListV0, Self::ListV3, Self::File, Self::None];

    /// The name of the mode in options.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ListV0 => "list-v0",
            Self::ListV3 => "list-v3",
            Self::File => "file",
            Self::None => "none",
        }
    }

    /// The mode with this name.
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
    /// Creates the state with only the inodes in `file` tracked. `superblock` is its block, and its byte
    /// offset in that block.
    #[must_use]
    pub fn new(mode: OrphanMode, file: Option<OrphanFile>, superblock: (Pblk, usize)) -> Self {
        Self { mode, list: OrphanList::new(superblock), file }
    }

    /// How orphans are tracked.
    #[must_use]
    pub fn mode(&self) -> OrphanMode {
        self.mode
    }

    /// The orphan file, if the file system has one.
    #[must_use]
    pub fn file(&self) -> Option<&OrphanFile> {
        self.file.as_ref()
    }

    /// Number of blocks that [`add`](Self::add) or [`remove`](Self::remove) change, excluding inodes.
    pub const CREDITS: u32 = 2;

    /// Whether no inode is tracked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty() && self.file.as_ref().is_none_or(|file| file.used().is_empty())
    }

    /// Number of tracked inodes.
    #[must_use]
    pub fn count(&self) -> usize {
        self.list.len() + self.file.as_ref().map_or(0, |file| file.used().len())
    }

    /// Statistics of the list's lock.
    #[must_use]
    pub fn lock_stats(&self) -> LockStats {
        self.list.lock_stats()
    }

    /// Tracks an inode, unless it is tracked already. The caller changes the inode in the same transaction.
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
                        // The slot is in memory; the commit writes it into its block.
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

    /// Stops tracking an inode, if it is tracked.
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
        // The inode joins the transaction here, without the list's lock.
        drop(live.edit(node, edit.transaction()));
        self.list.lock().join(live, node, edit)
    }

    #[inline(never)]
    fn leave_list(&self, live: &InodeCache, node: &Arc<LiveInode>, edit: &dyn Edit) -> Result<(), ReadFault> {
        self.list.lock().leave(live, node, edit)?;
        list::end(live, node, edit);
        Ok(())
    }

    /// Takes over the list that was found on disk, in its order.
    pub fn adopt_listed(&self, chain: &[Arc<LiveInode>]) {
        self.list.adopt(chain);
    }

    /// The head of the list; 0 if it is empty.
    #[must_use]
    pub fn list_head(&self) -> u32 {
        self.list.head()
    }

    /// Takes over an inode that was found in this slot of the orphan file.
    pub fn adopt_slot(&self, node: &LiveInode, slot: Slot) {
        node.set_orphan(OrphanState::Slot(slot));
    }

    /// Upper bound of the number of blocks that [`write`](Self::write) changes.
    #[must_use]
    pub fn blocks_to_come(&self) -> u32 {
        self.file.as_ref().map_or(0, OrphanFile::blocks_to_come)
    }

    /// Writes the slots of the orphan file into blocks, as part of the transaction that ends now. Only the
    /// handle `edit` is open.
    ///
    /// # Errors
    /// A block cannot be read.
    pub fn write(&self, live: &InodeCache, edit: &dyn Edit) -> Result<(), ReadFault> {
        self.file.as_ref().map_or(Ok(()), |file| file.write(&live.shared().buffers, edit))
    }
}
