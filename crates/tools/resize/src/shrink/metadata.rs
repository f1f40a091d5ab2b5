//! Bitmaps and inode tables of groups that stay move to before the new end.
//!
//! They are after it where the last group loses blocks and has its bitmaps further behind (`mke2fs -E
//! stride`), or where a flex group has the tables of groups before it.
//!
//! Owns: where they go. Does **not** own: bitmaps' contents, the order of writes (see
//! [`switch`](crate::switch)).
//!
//! Invariants
//! 1. Without `flex_bg`, bitmaps and table of a group stay in their group.

use std::collections::BTreeSet;
use std::ops::Range;

use extant_base::Group;
use extant_ondisk::Features;
use extant_ondisk::group_desc::INODE_UNINIT;

use super::pending::Pending;
use super::space::Space;
use crate::fault::ResizeFault;
use crate::plan;

/// Moves all of them, one group with each switch.
pub(super) fn move_metadata(change: &mut Pending<'_>) -> Result<(), ResizeFault> {
    let before = change.durable.switches;
    for group in 0..change.space.groups {
        let mut desc = change.fs.desc(group)?;
        let old = change.fs.metadata_of(&desc);
        if old.iter().all(|run| run.end <= change.space.limit) {
            continue;
        }
        // Read before the change: where the group has no bitmap yet, it follows from the places.
        change.space.touch(change.fs, group)?;
        let [block_bitmap, inode_bitmap, table] = places_for(change, group, &old)?;
        if let Some(place) = block_bitmap {
            desc.block_bitmap = place;
        }
        if let Some(place) = inode_bitmap {
            desc.inode_bitmap = place;
            if !desc.has_flag(INODE_UNINIT) {
                let bytes = change.fs.block(old[1].start)?;
                change.blocks.insert(place, bytes);
            }
        }
        if let Some(place) = table {
            desc.inode_table = place;
            let len = old[2].end - old[2].start;
            change.copy(old[2].start, place, len);
            change.moved.blocks += len;
        }
        change.put_desc(group, &desc);
        free_places(change, &old)?;
        change.commit()?;
        change.fs.metadata_has_moved();
    }
    // Their old places become free. Backups of the descriptors must not lead there.
    if change.durable.switches > before {
        change.fs.write_backups()?;
    }
    Ok(())
}

/// Frees the old places of those runs of a group's metadata that have moved. With bigalloc, other metadata
/// may have blocks in the same clusters: these stay in use.
fn free_places(change: &mut Pending<'_>, old: &[Range<u64>; 3]) -> Result<(), ResizeFault> {
    let Space { limit, ratio, .. } = change.space;
    let moved = old.iter().filter(|run| run.end > limit);
    if ratio == 1 {
        return moved.cloned().try_for_each(|run| change.free(run));
    }
    let mut clusters: BTreeSet<u64> =
        moved.flat_map(|run| change.space.whole_clusters(run).step_by(ratio as usize)).collect();
    for group in 0..change.fs.geometry.groups {
        let mut runs = change.fs.metadata_of(&change.desc(group)?).to_vec();
        runs.push(plan::head(&change.fs.geometry, Group(group)));
        for run in runs.iter().filter(|run| !run.is_empty()) {
            let run = change.space.whole_clusters(run);
            let still: Vec<u64> = clusters.range(run).copied().collect();
            still.iter().for_each(|cluster| {
                clusters.remove(cluster);
            });
        }
    }
    clusters.into_iter().try_for_each(|cluster| change.free(cluster..cluster + 1))
}

/// Allocates places for those runs of a group's metadata that must move: for all of them, or for none.
fn places_for(
    change: &mut Pending<'_>,
    group: u32,
    old: &[Range<u64>; 3],
) -> Result<[Option<u64>; 3], ResizeFault> {
    let Space { limit, groups, .. } = change.space;
    let is_free_to_go = change.fs.sb.features.has_incompat(Features::FLEX_BG);
    let others = if is_free_to_go { 0..groups } else { 0..0 };
    let mut places = [None; 3];
    for (number, run) in old.iter().enumerate().filter(|(_, run)| run.end > limit) {
        let blocks = run.end - run.start;
        let candidates = std::iter::once(group).chain(others.clone());
        let found = change.space.allocate_run(change.fs, blocks, candidates);
        match found.and_then(|place| place.ok_or(ResizeFault::NoRun { blocks, group })) {
            Ok(place) => places[number] = Some(place),
            Err(fault) => {
                for (place, run) in places.into_iter().zip(old) {
                    if let Some(place) = place {
                        change.clear(place..place + (run.end - run.start))?;
                    }
                }
                return Err(fault);
            }
        }
    }
    Ok(places)
}
