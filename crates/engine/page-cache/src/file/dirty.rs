//! The dirty chunks of a file, and the file's place among the dirty files of the cache.
//!
//! Upholds the invariants 1 and 2 of [`crate::dirty`].

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::atomic::Ordering;

use super::File;
use crate::chunk::{CLEAN, Chunk};

/// The dirty chunks of a file.
#[derive(Default)]
pub(crate) struct DirtyChunks {
    by_time: BTreeSet<(u64, u64)>,
    /// The time under which the cache's list has the file.
    listed_ms: Option<u64>,
}

impl DirtyChunks {
    /// The numbers of the chunks that have been dirty since `until_ms` or before.
    pub(crate) fn until(&self, until_ms: u64) -> Vec<u64> {
        self.by_time.range(..=(until_ms, u64::MAX)).map(|(_, number)| *number).collect()
    }

    /// The dirty chunk after `after`, oldest first: when it became dirty, and its number.
    pub(crate) fn next(&self, after: Option<(u64, u64)>) -> Option<(u64, u64)> {
        self.by_time.range((after.map_or(Unbounded, Excluded), Unbounded)).next().copied()
    }
}

impl File {
    /// The chunk's count changed from or to 0: inserts the chunk into the list or removes it (invariant 1).
    pub(super) fn list_chunk(&self, chunk: &Chunk, now_ms: u64) {
        let mut list = self.dirty.lock();
        let listed_ms = chunk.dirtied_ms.load(Ordering::Relaxed);
        let is_dirty = chunk.dirty_blocks.load(Ordering::SeqCst) != 0;
        if is_dirty && listed_ms == CLEAN {
            let now_ms = now_ms.min(CLEAN - 1);
            chunk.dirtied_ms.store(now_ms, Ordering::Relaxed);
            list.by_time.insert((now_ms, chunk.number));
        } else if !is_dirty && listed_ms != CLEAN {
            chunk.dirtied_ms.store(CLEAN, Ordering::Relaxed);
            list.by_time.remove(&(listed_ms, chunk.number));
        }
        self.list_file(&mut list);
    }

    /// Notes that the chunk has been dirty since `ms` at least.
    pub(crate) fn backdate_chunk(&self, chunk: &Chunk, ms: u64) {
        let mut list = self.dirty.lock();
        let listed_ms = chunk.dirtied_ms.load(Ordering::Relaxed);
        if listed_ms != CLEAN && ms < listed_ms {
            list.by_time.remove(&(listed_ms, chunk.number));
            list.by_time.insert((ms, chunk.number));
            chunk.dirtied_ms.store(ms, Ordering::Relaxed);
            self.list_file(&mut list);
        }
    }

    /// Upholds invariant 2.
    fn list_file(&self, list: &mut DirtyChunks) {
        let oldest_ms = list.by_time.first().map(|(ms, _)| *ms);
        if oldest_ms == list.listed_ms {
            return;
        }
        // Dropped after the lock is released: this may be the last reference to a file, and its drop takes
        // locks.
        let mut files = self.shared.dirty.files.lock();
        let out = list.listed_ms.and_then(|ms| files.remove(&(ms, self.id)));
        if let (Some(ms), Some(this)) = (oldest_ms, self.this.upgrade()) {
            files.insert((ms, self.id), this);
        }
        list.listed_ms = oldest_ms;
        drop(files);
        drop(out);
    }
}
