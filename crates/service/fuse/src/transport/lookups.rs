//! The kernel's lookup counts of inodes.
//!
//! While the kernel holds an inode (a dentry, an open file, a working directory), it may send requests with
//! the inode's number. FORGET ends this. So a file without names is kept until then, and opens need not be
//! counted.
//!
//! ```text
//!  each reply with the entry: count + 1
//!  [count > 0, has names] -- last name removed --> [count > 0, unlinked] -- FORGET, count = 0 --> release
//! ```
//!
//! Data structure: hash maps from inode numbers to counts, in shards with a lock each. An inode with count 0
//! has no entry.
//!
//! Does **not** own: the inodes, and their release (see [`crate::Serve::forget`]).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use extant_base::Ino;

/// Shards with a lock each, because each reply with an entry takes one of the locks.
const SHARDS: usize = 16;

/// A shard whose capacity is at most this is not shrunk.
const CAPACITY_MIN: usize = 1024;

/// The lookup count of one inode. The highest bit is set if the inode has lost its last name. A single word,
/// because there may be millions of these.
#[derive(Debug, Default, Clone, Copy)]
struct LookupCount(u64);

impl LookupCount {
    const UNLINKED: u64 = 1 << 63;

    fn count(self) -> u64 {
        self.0 & !Self::UNLINKED
    }

    fn is_unlinked(self) -> bool {
        self.0 & Self::UNLINKED != 0
    }
}

/// The lookup counts of all inodes that the kernel holds.
#[derive(Debug, Default)]
pub(super) struct Lookups {
    shards: [Mutex<HashMap<u32, LookupCount>>; SHARDS],
}

impl Lookups {
    fn shard(&self, ino: Ino) -> MutexGuard<'_, HashMap<u32, LookupCount>> {
        self.shards[ino.0 as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a lookup: the next reply to the kernel contains this inode.
    pub(super) fn increment(&self, ino: Ino) {
        self.shard(ino).entry(ino.0).or_default().0 += 1;
    }

    /// All inodes that the kernel holds.
    pub(super) fn inodes(&self) -> Vec<Ino> {
        let shards = self.shards.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner));
        shards.flat_map(|shard| shard.keys().copied().map(Ino).collect::<Vec<_>>()).collect()
    }

    /// Marks an inode that lost its last name. Returns false if the kernel does not hold the inode: it can be
    /// released at once.
    pub(super) fn mark_unlinked(&self, ino: Ino) -> bool {
        match self.shard(ino).get_mut(&ino.0) {
            Some(lookups) => {
                lookups.0 |= LookupCount::UNLINKED;
                true
            }
            None => false,
        }
    }

    /// Whether the inode has lost its last name, and the kernel still holds it.
    pub(super) fn is_unlinked(&self, ino: Ino) -> bool {
        self.shard(ino).get(&ino.0).is_some_and(|lookups| lookups.is_unlinked())
    }

    /// Subtracts the lookups that the kernel dropped. Returns `None` if others remain. If these were the
    /// last, returns whether the inode is unlinked: then the caller releases it.
    pub(super) fn forget(&self, ino: Ino, count: u64) -> Option<bool> {
        let mut shard = self.shard(ino);
        let lookups = shard.get_mut(&ino.0)?;
        lookups.0 -= count.min(lookups.count());
        if lookups.count() > 0 {
            return None;
        }
        let was_unlinked = lookups.is_unlinked();
        shard.remove(&ino.0);
        if shard.capacity() > CAPACITY_MIN && shard.len() < shard.capacity() / 4 {
            let len = shard.len();
            shard.shrink_to((2 * len).max(CAPACITY_MIN / 2));
        }
        Some(was_unlinked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel forgets inodes, as after `echo 2 >/proc/sys/vm/drop_caches`.
    #[test]
    fn memory_of_forgotten_inodes_is_returned() {
        let lookups = Lookups::default();
        let capacity = || lookups.shards.iter().map(|shard| shard.lock().unwrap().capacity()).sum::<usize>();
        for ino in 12..100_000 {
            lookups.increment(Ino(ino));
            lookups.increment(Ino(ino));
        }
        assert!(capacity() >= 99_988);
        for ino in 12..99_000 {
            assert_eq!(lookups.forget(Ino(ino), 2), Some(false));
        }
        assert_eq!(lookups.inodes().len(), 1000);
        assert!(capacity() <= SHARDS * 2 * CAPACITY_MIN, "{}", capacity());
    }

    #[test]
    fn an_unlinked_inode_is_released_when_all_lookups_are_forgotten() {
        let (lookups, ino) = (Lookups::default(), Ino(12));
        assert!(!lookups.mark_unlinked(ino), "the kernel does not hold it");
        for _ in 0..3 {
            lookups.increment(ino);
        }
        assert!(lookups.mark_unlinked(ino));
        assert_eq!(lookups.forget(ino, 2), None);
        assert_eq!(lookups.forget(ino, 1), Some(true));
        assert_eq!(lookups.forget(ino, 1), None, "once only");
        lookups.increment(ino);
        assert_eq!(lookups.forget(ino, 1), Some(false), "another inode of the same number, with a name");
    }
}
