//! Discarding free blocks on a device: fstrim.

use extant_base::Pblk;
use extant_buffer::ReadFault;

use crate::{Alloc, bits};

/// Clusters that are discarded at a time, during which their group waits.
const PIECE_MAX: u32 = 1 << 15;

impl Alloc {
    /// Calls `each` with the runs of free blocks of a group that have `min_blocks` at least, from the first
    /// on: first block and length. Nothing is allocated in the group while `each` works on one of them. What
    /// was freed and not committed is not free, nor are windows. A group that is set aside has none.
    ///
    /// # Errors
    /// The group's bitmap cannot be read; the first that `each` returns, at once.
    pub fn each_free<E: From<ReadFault>>(
        &self,
        group: u32,
        min_blocks: u64,
        mut each: impl FnMut(Pblk, u32) -> Result<(), E>,
    ) -> Result<(), E> {
        let cell = self.cell(group)?;
        let least = min_blocks.div_ceil(self.geometry.cluster_ratio()).max(1);
        let mut at = 0;
        // Between two runs the group is unlocked.
        while let Some(state) = self.lock_blocks(group, cell, true)? {
            let clusters = state.clusters;
            let Some(map) = state.map.as_deref() else { break };
            let run = loop {
                let Some(start) = bits::next_clear(map, at, clusters) else { return Ok(()) };
                let end = bits::next_set(map, start, clusters);
                if u64::from(end - start) >= least {
                    break start..end.min(start.saturating_add(PIECE_MAX));
                }
                at = end;
            };
            at = run.end;
            let (first, blocks) = self.blocks_of(&(group, run));
            each(first, blocks)?;
        }
        Ok(())
    }
}
