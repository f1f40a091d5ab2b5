//! Enumerates free space, to discard it on a device: fstrim.

use extant_base::Pblk;
use extant_buffer::ReadFault;

use crate::{Alloc, bits};

/// Clusters passed to a call at most: the group is locked meanwhile.
const PIECE_MAX: u32 = 1 << 15;

impl Alloc {
    /// Calls `each` with first block and length of each free run of a group that has at least `min_blocks`,
    /// in order. The group is locked during a call, so nothing is allocated there. Clusters of freeings that
    /// are not yet committed, and of windows, are not free. A group that is set aside has no free runs.
    ///
    /// # Errors
    /// The group's bitmap cannot be read; or the first error of `each`, which ends the enumeration.
    pub fn each_free<E: From<ReadFault>>(
        &self,
        group: u32,
        min_blocks: u64,
        mut each: impl FnMut(Pblk, u32) -> Result<(), E>,
    ) -> Result<(), E> {
        let cell = self.groups.cell(group)?;
        let least = min_blocks.div_ceil(self.groups.geometry.cluster_ratio()).max(1);
        let mut at = 0;
        // The group is unlocked between two runs.
        while let Some(state) = self.groups.lock_blocks(group, cell, true)? {
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
            let (first, blocks) = self.groups.blocks_of(&(group, run));
            each(first, blocks)?;
        }
        Ok(())
    }
}
