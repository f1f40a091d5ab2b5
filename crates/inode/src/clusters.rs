//! Which clusters a file gives back when some of its blocks are unmapped.
//!
//! A cluster goes when none of its blocks is mapped any more, wherever in the cluster the file has holes:
//!
//! ```text
//!   cluster      |     0     |     1     |            cut from block 2: cluster 0 stays, since block 1 is mapped;
//!   mapped       | . 1 . 3   | . . 6 7   |            cluster 1 goes, though it begins with a hole
//! ```
//!
//! Does **not** own: the map, which was changed before; the bitmaps.
//!
//! Source: kernel Documentation/filesystems/ext4/bigalloc.rst: a logical cluster has one physical cluster,
//! with blocks at the same places in both.

use std::ops::Range;

use extant_base::{Lblk, Pblk};
use extant_buffer::{Buffers, ReadFault};
use extant_mapping::FileMap;
use extant_ondisk::Geometry;

/// Blocks that were unmapped: the first one of the file, where it was, how many.
pub(crate) type Gone = (Lblk, Pblk, u32);

/// Blocks of the cluster or clusters that `start..start + len` lies in, up to the end of the file system.
pub(crate) fn whole(geometry: &Geometry, start: Pblk, len: u64) -> Range<u64> {
    let ratio = geometry.cluster_ratio();
    let end = start.0.saturating_add(len).next_multiple_of(ratio);
    // The last cluster may be cut by the end; what lies behind that is the allocator's to refuse.
    let end = if start.0 < geometry.blocks { end.min(geometry.blocks) } else { end };
    start.0 - start.0 % ratio..end
}

/// Returns the blocks of the clusters that `map` no longer uses since `gone`, which comes from the end
/// backwards, was unmapped. Each cluster is returned once.
pub(crate) fn unused(
    geometry: &Geometry,
    buffers: &Buffers,
    map: &FileMap,
    gone: &[Gone],
    free: &mut dyn FnMut(Range<u64>),
) -> Result<(), ReadFault> {
    let ratio = geometry.cluster_ratio();
    // The first cluster of the later piece: one that two pieces share is returned with the later one.
    let mut told = None;
    for &(lblk, start, len) in gone {
        let mut clusters = whole(geometry, start, len.into());
        let last = (start.0 + u64::from(len) - 1) / ratio * ratio;
        let (from, to) = (u64::from(lblk.0), u64::from(lblk.0) + u64::from(len));
        let behind = to..to + (last + ratio - start.0 - u64::from(len));
        if told == Some(last) || is_mapped(buffers, map, behind)? {
            clusters.end = last;
        }
        let before = from.saturating_sub(start.0 % ratio)..from;
        if is_mapped(buffers, map, before)? {
            clusters.start += ratio;
        }
        if clusters.start < clusters.end {
            told = Some(clusters.start);
            free(clusters);
        }
    }
    Ok(())
}

/// Is one of these blocks mapped?
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
