//! Zero-copy access to cached bytes, for callers that pass them on in one vectored write.
//!
//! A pin shares the folio's memory, as a run does: the pinned bytes do not change, and a writer copies the
//! folio if it writes meanwhile. So hold a pin for one system call only, and use it where writes are rare and
//! reads are many.

use std::ops::Range;
use std::sync::Arc;

use crate::file::{File, check_range};
use crate::order::PAGE_SHIFT;
use crate::pool::Memory;

/// Pinned bytes of a file: of each folio as it was at one moment.
pub struct Pins {
    parts: Vec<(Arc<Memory>, Range<usize>)>,
}

impl Pins {
    /// The bytes, in order.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().map(|(memory, range)| &memory[range.clone()])
    }

    /// Number of bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.parts.iter().map(|(_, range)| range.len() as u64).sum()
    }
}

impl File {
    /// Pins the bytes from `pos` on, up to the first that is not cached and at most `len`: those that
    /// [`read`](Self::read) would copy from the cache. The caller reads or fills the rest.
    #[must_use]
    pub fn pin(&self, pos: u64, len: u64) -> Pins {
        check_range(pos, len);
        let (mut memo, mut at, mut parts) = (None, pos, Vec::new());
        while at < pos + len {
            let Some(folio) = self.find(&mut memo, at >> PAGE_SHIFT) else { break };
            let state = folio.state.read();
            // Evicted since it was found: look again.
            let Some(memory) = &state.bytes else { continue };
            let start = (at - folio.pos()) as usize;
            let end = (pos + len).min(folio.end()) - folio.pos();
            let blocks = self.blocks_around(&(start..end as usize));
            let missing = state.uptodate.next_clear(blocks.start, blocks.end);
            let end =
                if missing < blocks.end { u64::from(missing) << self.block_shift } else { end } as usize;
            if end <= start {
                break;
            }
            parts.push((memory.clone(), start..end));
            let is_cut = missing < blocks.end;
            drop(state);
            folio.touch();
            at += (end - start) as u64;
            if is_cut {
                break;
            }
        }
        self.shared.counts.hit_bytes.add(at - pos);
        Pins { parts }
    }
}
