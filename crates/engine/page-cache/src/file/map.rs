//! The map of a file's chunks.
//!
//! Owns: which chunks a file has. Does **not** own: the folios of a chunk (see [`crate::chunk`]).
//!
//! Invariants
//! 1. A chunk that has folios is in the map. An empty chunk may stay there.
//! 2. A chunk that has left the map is marked as detached, and gets no folios any more.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::chunk::{Chunk, Found};
use crate::folio::Folio;
use crate::order::{CHUNK_SHIFT, PAGE_SHIFT};

/// The chunk that was looked up last, for the next folio in it.
pub(crate) type Memo = Option<Arc<Chunk>>;

/// The chunks of a file, by number.
#[derive(Default)]
pub(crate) struct ChunkMap(RwLock<BTreeMap<u64, Arc<Chunk>>>);

impl ChunkMap {
    pub(super) fn is_empty(&self) -> bool {
        self.0.read().is_empty()
    }

    pub(crate) fn get(&self, number: u64) -> Option<Arc<Chunk>> {
        self.0.read().get(&number).cloned()
    }

    /// As [`get`](Self::get), but also `None` if the lock is contended.
    pub(super) fn try_get(&self, number: u64) -> Option<Arc<Chunk>> {
        self.0.try_read()?.get(&number).cloned()
    }

    pub(super) fn get_or_new(&self, number: u64) -> Arc<Chunk> {
        if let Some(chunk) = self.get(number) {
            return chunk;
        }
        self.0.write().entry(number).or_insert_with(|| Arc::new(Chunk::new(number))).clone()
    }

    /// The first chunk from a number on.
    pub(crate) fn next(&self, number: u64) -> Option<Arc<Chunk>> {
        self.0.read().range(number..).next().map(|(_, chunk)| chunk.clone())
    }

    /// All chunks from a number on.
    pub(crate) fn all_from(&self, number: u64) -> Vec<Arc<Chunk>> {
        self.0.read().range(number..).map(|(_, chunk)| chunk.clone()).collect()
    }

    pub(super) fn find(&self, memo: &mut Memo, page: u64) -> Option<Arc<Folio>> {
        let number = page >> (CHUNK_SHIFT - PAGE_SHIFT);
        loop {
            if memo.as_ref().is_none_or(|chunk| chunk.number != number) {
                *memo = Some(self.get(number)?);
            }
            match memo.as_ref()?.find(page) {
                Found::Folio(folio) => return Some(folio),
                Found::GapUntil(_) => return None,
                Found::Detached => *memo = None,
            }
        }
    }

    /// Removes an empty chunk from the map, if no lock is contended.
    pub(crate) fn try_detach(&self, chunk: &Chunk) {
        let Some(mut chunks) = self.0.try_write() else { return };
        let Some(mut slots) = chunk.slots.try_write() else { return };
        if slots.is_empty() && !slots.is_detached {
            slots.is_detached = true;
            chunks.remove(&chunk.number);
        }
    }

    /// Removes all chunks.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Arc<Chunk>> + use<> {
        std::mem::take(self.0.get_mut()).into_values()
    }
}
