//! Zero-copy bytes, to be passed on in one vectored write.
//!
//! A pin shares the folio's memory, as a run does: the bytes stay what they were when they were pinned, and a
//! writer that comes meanwhile copies the folio. So pin for the length of one system call, and where few
//! write what many read.

use std::ops::Range;
use std::sync::Arc;

use crate::file::{File, check_range};
use crate::order::PAGE_SHIFT;
use crate::pool::Memory;

/// Bytes of a file as they were at one moment for each folio.
pub struct Pins {
    parts: Vec<(Arc<Memory>, Range<usize>)>,
}

impl Pins {
    /// The bytes, in order.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().map(|(memory, range)| &memory[range.clone()])
    }

    /// How many bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.parts.iter().map(|(_, range)| range.len() as u64).sum()
    }
}

impl File {
    /// The bytes from `pos` on, up to the first that is not here and `len` at most: what [`read`](Self::read)
    /// would copy. The rest is to be read, or filled first.
    #[must_use]
    pub fn pin(&self, pos: u64, len: u64) -> Pins {
        check_range(pos, len);
        let (mut memo, mut at, mut parts) = (None, pos, Vec::new());
        while at < pos + len {
            let Some(folio) = self.find(&mut memo, at >> PAGE_SHIFT) else { break };
            let state = folio.state.read();
            // Gone since it was found: look again.
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
