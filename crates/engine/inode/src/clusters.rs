//! Finds the clusters that become free when blocks of a file are unmapped.
//!
//! A cluster becomes free when none of its blocks is mapped any more, wherever the file has holes in it:
//!
//! ```text
//!   cluster      |     0     |     1     |      cut from block 2: cluster 0 stays, since block 1 is mapped;
//!   mapped       | . 1 . 3   | . . 6 7   |      cluster 1 is freed, although it begins with a hole
//! ```
//!
//! Does **not** own: the map, which the caller changed before; the bitmaps.
//!
//! Source: kernel Documentation/filesystems/ext4/bigalloc.rst: a logical cluster has one physical cluster,
//! with blocks at the same positions in both.

use std::ops::Range;

use extant_base::{Lblk, Pblk};
use extant_buffer::{Buffers, ReadFault};
use extant_mapping::FileMap;
use extant_ondisk::Geometry;

/// A run of unmapped blocks: its first logical block, its first physical block, and its length.
pub(crate) type UnmappedRun = (Lblk, Pblk, u32);

/// Blocks of all clusters that `start..start + len` overlaps, up to the end of the file system.
pub(crate) fn whole(geometry: &Geometry, start: Pblk, len: u64) -> Range<u64> {
    let ratio = geometry.cluster_ratio();
    let end = start.0.saturating_add(len).next_multiple_of(ratio);
    // The end of the file system may cut off the last cluster. The allocator rejects blocks past the end.
    let end = if start.0 < geometry.blocks { end.min(geometry.blocks) } else { end };
    start.0 - start.0 % ratio..end
}

/// Calls `free` with the blocks of the clusters that `map` no longer uses since `unmapped` was unmapped, once
/// for each cluster. `unmapped` is ordered from the end backwards.
pub(crate) fn unused(
    geometry: &Geometry,
    buffers: &Buffers,
    map: &FileMap,
    unmapped: &[UnmappedRun],
    free: &mut dyn FnMut(Range<u64>),
) -> Result<(), ReadFault> {
    let ratio = geometry.cluster_ratio();
    // The first cluster of the later piece. If two pieces share a cluster, it is returned with the later
    // piece.
    let mut last_freed = None;
    for &(lblk, start, len) in unmapped {
        let mut clusters = whole(geometry, start, len.into());
        let last = (start.0 + u64::from(len) - 1) / ratio * ratio;
        let (from, to) = (u64::from(lblk.0), u64::from(lblk.0) + u64::from(len));
        let behind = to..to + (last + ratio - start.0 - u64::from(len));
        if last_freed == Some(last) || is_mapped(buffers, map, behind)? {
            clusters.end = last;
        }
        let before = from.saturating_sub(start.0 % ratio)..from;
        if is_mapped(buffers, map, before)? {
            clusters.start += ratio;
        }
        if clusters.start < clusters.end {
            last_freed = Some(clusters.start);
            free(clusters);
        }
    }
    Ok(())
}

/// Whether any of these blocks is mapped.
fn is_mapped(buffers: &Buffers, map: &FileMap, range: Range<u64>) -> Result<bool, ReadFault> {
    let Ok(from) = u32::try_from(range.start) else { return Ok(false) };
    let mut found = false;
    if !range.is_empty() {
        map.walk_until(buffers, Lblk(from), range.end, &mut |_| {
            found = true;
            None
        })?;
    }
    Ok(found)
}
