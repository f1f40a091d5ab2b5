//! The folios of a chunk: 2 MiB of a file, in order.
//!
//! Invariants
//! 1. Folios of a chunk do not overlap; each begins at a multiple of its size.
//! 2. A chunk that left its file's map is `detached`, has no folios and gets none; a caller that holds it
//!    looks the chunk up again.
//! 3. `dirty_blocks` and `writing_blocks` count these bits of its folios and change under the folio's lock;
//!    so do the bits of `dirty_folios`, one for the first page of each folio that has a dirty block.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::folio::Folio;
use crate::order::CHUNK_PAGES;

pub(crate) struct Chunk {
    pub(crate) number: u64,
    pub(crate) slots: RwLock<Slots>,
    pub(crate) dirty_blocks: AtomicU32,
    pub(crate) writing_blocks: AtomicU32,
    /// Where to look for dirty blocks: a chunk may have 512 folios, of which one is dirty.
    dirty_folios: [AtomicU64; WORDS],
    /// When the chunk became dirty; [`CLEAN`] while it is clean. Changed under the lock of the file's list of
    /// dirty chunks.
    pub(crate) dirtied_ms: AtomicU64,
}

/// Words with a bit for each page of a chunk.
const WORDS: usize = (CHUNK_PAGES / 64) as usize;

/// The time of a clean chunk.
pub(crate) const CLEAN: u64 = u64::MAX;

#[derive(Default)]
pub(crate) struct Slots {
    folios: Vec<Slot>,
    pub(crate) is_detached: bool,
}

struct Slot {
    /// Page within the chunk, kept here so that a search does not touch the folios.
    page: u16,
    pages: u16,
    folio: Arc<Folio>,
}

/// The result of looking up a page in a chunk.
pub(crate) enum Found {
    /// The folio that has the page.
    Folio(Arc<Folio>),
    /// No folio has this page, nor any page before the given one, which may be the end of the chunk.
    GapUntil(u64),
    /// The chunk has left the map: look it up again.
    Detached,
}

impl Chunk {
    pub(crate) fn new(number: u64) -> Self {
        Self {
            number,
            slots: RwLock::default(),
            dirty_blocks: AtomicU32::new(0),
            writing_blocks: AtomicU32::new(0),
            dirty_folios: Default::default(),
            dirtied_ms: AtomicU64::new(CLEAN),
        }
    }

    fn first_page(&self) -> u64 {
        self.number * CHUNK_PAGES
    }

    pub(crate) fn find(&self, page: u64) -> Found {
        let slots = self.slots.read();
        if slots.is_detached { Found::Detached } else { slots.find(page, self.first_page()) }
    }

    /// The first folio that ends after `page`.
    pub(crate) fn next(&self, page: u64) -> Option<Arc<Folio>> {
        let slots = self.slots.read();
        let at = slots.at((page.saturating_sub(self.first_page())) as u16);
        slots.folios.get(at).map(|slot| slot.folio.clone())
    }

    /// Notes whether a folio has dirty blocks. Called under the folio's lock.
    pub(crate) fn note_dirty(&self, folio: &Folio, is_dirty: bool) {
        let page = (folio.page - self.first_page()) as usize;
        let (word, bit) = (&self.dirty_folios[page / 64], 1 << (page % 64));
        if is_dirty {
            word.fetch_or(bit, Ordering::SeqCst);
        } else {
            word.fetch_and(!bit, Ordering::SeqCst);
        }
    }

    /// The first page, from this one on, where a folio with dirty blocks begins.
    pub(crate) fn next_dirty(&self, page: u64) -> Option<u64> {
        let from = page.saturating_sub(self.first_page()) as usize;
        (from / 64..WORDS).find_map(|at| {
            let word = self.dirty_folios[at].load(Ordering::SeqCst);
            let word = if at == from / 64 { word & (u64::MAX << (from % 64)) } else { word };
            (word != 0).then(|| self.first_page() + at as u64 * 64 + u64::from(word.trailing_zeros()))
        })
    }

    /// All folios of the chunk.
    pub(crate) fn folios(&self) -> Vec<Arc<Folio>> {
        self.slots.read().folios.iter().map(|slot| slot.folio.clone()).collect()
    }
}

impl Slots {
    /// The index of the first folio that ends after `page`, a page within the chunk.
    fn at(&self, page: u16) -> usize {
        // Fast path: files grow at their end, so the page is often past the last folio.
        match self.folios.last() {
            Some(last) if page >= last.page + last.pages => self.folios.len(),
            Some(last) if page >= last.page => self.folios.len() - 1,
            _ => self.folios.partition_point(|slot| slot.page + slot.pages <= page),
        }
    }

    fn find(&self, page: u64, first: u64) -> Found {
        let page = (page - first) as u16;
        match self.folios.get(self.at(page)) {
            Some(slot) if slot.page <= page => Found::Folio(slot.folio.clone()),
            Some(next) => Found::GapUntil(first + u64::from(next.page)),
            None => Found::GapUntil(first + CHUNK_PAGES),
        }
    }

    /// Inserts a folio if all its pages are free.
    pub(crate) fn insert(&mut self, folio: &Arc<Folio>, chunk: u64) -> bool {
        let page = (folio.page - chunk * CHUNK_PAGES) as u16;
        let at = self.at(page);
        let pages = folio.order.pages() as u16;
        let is_free = self.folios.get(at).is_none_or(|next| page + pages <= next.page);
        if is_free {
            self.folios.insert(at, Slot { page, pages, folio: folio.clone() });
        }
        is_free
    }

    /// Removes a folio if it is present.
    pub(crate) fn remove(&mut self, folio: &Arc<Folio>, chunk: u64) -> bool {
        let at = self.at((folio.page - chunk * CHUNK_PAGES) as u16);
        let is_there = self.folios.get(at).is_some_and(|slot| Arc::ptr_eq(&slot.folio, folio));
        if is_there {
            self.folios.remove(at);
        }
        is_there
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.folios.is_empty()
    }
}
