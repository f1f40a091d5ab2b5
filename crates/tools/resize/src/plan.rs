//! The planner: which steps lead from one size to another, and where the metadata of new groups goes.
//!
//! ```text
//! fit      the size asked for -> the size that the file system can have
//! next     superblock, size -> the next step: one atomic change, small enough for the journal
//! place    new groups -> the addresses of their bitmaps and inode tables
//! ```
//!
//! Owns: all decisions. Does **not** own: reading and writing (see the module `grow`).
//!
//! Invariants
//! 1. Everything here is a function of its arguments: no I/O, no clock.
//! 2. The steps to a size do not depend on where an earlier attempt ended: after a power cut the same
//!    functions continue from the superblock that is on the device.
//! 3. The metadata of a new group is after the last block of the old size.
//!
//! Source: kernel Documentation/filesystems/ext4/blockgroup.rst, super.rst, group_descr.rst.

use std::ops::Range;

use extant_base::{Group, Malformed, Pblk};
use extant_ondisk::{Features, Geometry, Superblock};

/// Free blocks that a short last group must have besides its metadata. With fewer, mke2fs and resize2fs leave
/// the group out.
const SPARE_BLOCKS: u64 = 50;
/// Blocks that 32-bit block numbers can address.
const BLOCKS_32BIT: u64 = 1 << 32;

/// Why a size is impossible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanFault {
    /// More blocks than 32-bit block numbers can address.
    #[error(
        "{blocks} blocks need the feature 64bit, which this file system does not have: the largest size \
         is {} blocks; `extant tune -O 64bit` adds it", BLOCKS_32BIT - 1
    )]
    Needs64Bit {
        /// Blocks asked for.
        blocks: u64,
    },
    /// More inodes than there are inode numbers.
    #[error(
        "{groups} groups of {inodes_per_group} inodes have more than 2^32 - 1 inodes: the largest size is \
         {blocks_max} blocks"
    )]
    TooManyInodes {
        /// Groups of the size asked for.
        groups: u64,
        /// Inodes of one group.
        inodes_per_group: u32,
        /// The largest number of blocks.
        blocks_max: u64,
    },
    /// One step has more blocks than the journal.
    #[error(
        "the journal is too small: the smallest step changes {needed} blocks, and the journal has room for \
         {room}; `extant tune -J size=` makes a larger one"
    )]
    JournalTooSmall {
        /// Blocks that the step changes.
        needed: usize,
        /// Blocks that the journal has room for.
        room: usize,
    },
    /// There is no place for a group's metadata.
    #[error("there is no room for the bitmaps and the inode table of group {group}")]
    NoRoom {
        /// The group.
        group: u32,
    },
    /// The numbers make no valid file system.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// One atomic change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The reserved descriptor blocks and the resize inode's own block become free. The size stays.
    Release(Box<Superblock>),
    /// The last group is completed, and groups are added.
    Grow(Box<Grow>),
}

/// More blocks and groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grow {
    /// The superblock after the step, except for its counts of free blocks and of overhead.
    pub to: Superblock,
    /// Its geometry.
    pub geometry: Geometry,
    /// The new groups.
    pub groups: Range<u32>,
    /// Where the bitmaps and tables of the new groups are, in their order.
    pub places: Vec<Place>,
    /// Blocks of the old size that the step changes.
    pub changed_blocks: usize,
}

/// Block addresses of a group's bitmaps and inode table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// Block of the block bitmap.
    pub block_bitmap: u64,
    /// Block of the inode bitmap.
    pub inode_bitmap: u64,
    /// First block of the inode table.
    pub inode_table: u64,
}

/// The largest size up to `wanted` blocks that the file system can grow to: a last group that is too small
/// for its own metadata is left out, and so is a part of a cluster.
///
/// # Errors
/// The size needs 64bit, or too many inodes.
pub fn fit(sb: &Superblock, wanted: u64) -> Result<u64, PlanFault> {
    let old = Geometry::new(sb)?;
    let mut blocks = wanted & !(old.cluster_ratio() - 1);
    if blocks >= BLOCKS_32BIT && !sb.features.has_incompat(Features::BIT64) {
        return Err(PlanFault::Needs64Bit { blocks });
    }
    loop {
        if blocks <= old.blocks {
            return Ok(blocks);
        }
        let to = shape(sb, &old, blocks)?;
        let geometry = Geometry::new(&to)?;
        let last = Group(geometry.groups - 1);
        let rest = u64::from(geometry.group_blocks(last));
        if geometry.groups > old.groups
            && rest < u64::from(geometry.blocks_per_group)
            && rest < own_metadata(&geometry, last) + SPARE_BLOCKS
        {
            blocks -= rest;
            continue;
        }
        return Ok(blocks);
    }
}

/// The superblock of the same file system with fewer blocks, except for counts of what is free. Descriptor
/// blocks that are not needed any more are reserved again, as far as the resize inode has room for them. The
/// number of blocks may be lower than `wanted`: a last group that is too small is left out.
///
/// # Errors
/// There is no such file system.
pub fn shrunk(sb: &Superblock, wanted: u64) -> Result<Superblock, PlanFault> {
    let old = Geometry::new(sb)?;
    let mut blocks = wanted & !(old.cluster_ratio() - 1);
    loop {
        let least = u64::from(old.first_data_block) + own_metadata(&old, Group(0)) + 1;
        if blocks < least {
            return Err(PlanFault::NoRoom { group: 0 });
        }
        let mut to = shape(sb, &old, blocks)?;
        if to.features.has_compat(Features::SPARSE_SUPER2) {
            let groups = to.inodes_count / old.inodes_per_group;
            to.backup_bgs = to.backup_bgs.map(|group| if group < groups { group } else { 0 });
        }
        let needed = (to.inodes_count / old.inodes_per_group).div_ceil(old.descs_per_block());
        let less = old.desc_blocks.saturating_sub(needed);
        if old.meta_bg() {
            if sb.first_meta_bg >= needed && sb.first_meta_bg > 0 {
                to.features.incompat &= !Features::META_BG;
                to.first_meta_bg = 0;
            }
        } else if to.features.has_compat(Features::RESIZE_INODE) {
            let most = old.block_size.bytes() / 4;
            to.reserved_gdt_blocks = (u64::from(sb.reserved_gdt_blocks) + u64::from(less)).min(most) as u16;
        }
        let geometry = Geometry::new(&to)?;
        let last = Group(geometry.groups - 1);
        let rest = u64::from(geometry.group_blocks(last));
        let is_short = rest < u64::from(geometry.blocks_per_group);
        if geometry.groups > 1 && is_short && rest < own_metadata(&geometry, last) + SPARE_BLOCKS {
            blocks -= rest;
            continue;
        }
        return Ok(to);
    }
}

/// Blocks of a group that its head, its bitmaps and its inode table take.
fn own_metadata(geometry: &Geometry, group: Group) -> u64 {
    let head = geometry.group_head(group);
    let head = u64::from(head.superblock.is_some()) + u64::from(head.descriptors.1 + head.reserved.1);
    head + 2 + u64::from(geometry.itable_blocks())
}

/// The superblock of the same file system with `blocks` blocks, except for counts of what is free.
/// Descriptors that the reserved blocks have no room for go into meta block groups.
fn shape(sb: &Superblock, old: &Geometry, blocks: u64) -> Result<Superblock, PlanFault> {
    let mut to = sb.clone();
    let groups = (blocks - u64::from(old.first_data_block)).div_ceil(u64::from(old.blocks_per_group));
    let most = u64::from(u32::MAX / old.inodes_per_group);
    if groups > most {
        let blocks_max = u64::from(old.first_data_block) + most * u64::from(old.blocks_per_group);
        let inodes_per_group = old.inodes_per_group;
        return Err(PlanFault::TooManyInodes { groups, inodes_per_group, blocks_max });
    }
    let groups = groups as u32;
    to.blocks_count = blocks;
    to.inodes_count = groups * old.inodes_per_group;
    to.reserved_blocks_count = reserved_share(sb, blocks);
    let more = groups.div_ceil(old.descs_per_block()).saturating_sub(old.desc_blocks);
    if !old.meta_bg() && more > 0 {
        match u32::from(sb.reserved_gdt_blocks).checked_sub(more) {
            Some(left) => to.reserved_gdt_blocks = left as u16,
            None => {
                to.first_meta_bg = old.desc_blocks + old.reserved_gdt_blocks;
                to.reserved_gdt_blocks = 0;
                to.features.compat &= !Features::RESIZE_INODE;
                to.features.incompat |= Features::META_BG;
            }
        }
    }
    let lonely = sb.features.has_compat(Features::SPARSE_SUPER2) && old.groups == 1;
    if lonely && groups > 1 && sb.backup_bgs == [0, 0] {
        to.backup_bgs = [1, 0];
    }
    Ok(to)
}

/// The reserved blocks: the same share of all blocks, computed as resize2fs does.
fn reserved_share(sb: &Superblock, blocks: u64) -> u64 {
    let percent = sb.reserved_blocks_count as f64 * 100.0 / sb.blocks_count as f64;
    ((percent * blocks as f64 / 100.0) as u64).min(blocks / 2)
}

/// The next step towards `target` blocks; `None` if the file system has this size. `room` is the number of
/// blocks that the journal can hold at once.
///
/// # Errors
/// No step is possible.
pub fn next(sb: &Superblock, target: u64, room: usize) -> Result<Option<Step>, PlanFault> {
    if sb.blocks_count >= target {
        return Ok(None);
    }
    let old = Geometry::new(sb)?;
    let has_reserve = sb.features.has_compat(Features::RESIZE_INODE);
    let end = Geometry::new(&shape(sb, &old, target)?)?;
    let mut limit = end.groups;
    if !old.meta_bg() {
        let classic = (old.desc_blocks + old.reserved_gdt_blocks).saturating_mul(old.descs_per_block());
        if limit > classic {
            if old.groups < classic {
                limit = classic;
            } else if has_reserve {
                return Ok(Some(release(sb)));
            }
        }
        // The resize inode has 32-bit block numbers.
        if has_reserve && target > BLOCKS_32BIT {
            let below = (BLOCKS_32BIT / u64::from(old.blocks_per_group)) as u32 - 1;
            if old.groups >= below {
                return Ok(Some(release(sb)));
            }
            limit = limit.min(below);
        }
    }
    let candidate = |groups: u32| -> Result<Superblock, PlanFault> {
        let blocks = match groups == end.groups {
            true => target,
            false => u64::from(old.first_data_block) + u64::from(groups) * u64::from(old.blocks_per_group),
        };
        shape(sb, &old, blocks)
    };
    // The largest number of groups that fits the journal; costs grow with the groups.
    let (mut fits, mut fails) = (None, limit + 1);
    let first = match old.group_blocks(Group(old.groups - 1)) < old.blocks_per_group {
        true => old.groups,
        false => old.groups + 1,
    };
    let mut low = first;
    let mut probe = limit;
    while low < fails {
        let to = candidate(probe)?;
        let cost = changed_blocks(sb, &old, &Geometry::new(&to)?);
        if cost <= room {
            (fits, low) = (Some(probe), probe + 1);
        } else {
            fails = probe;
        }
        probe = low + (fails - low) / 2;
    }
    let Some(mut groups) = fits else {
        if has_reserve && old.reserved_gdt_blocks > 0 {
            return Ok(Some(release(sb)));
        }
        let needed = changed_blocks(sb, &old, &Geometry::new(&candidate(first)?)?);
        return Err(PlanFault::JournalTooSmall { needed, room });
    };
    // Whole flex groups, so that a later step does not split one.
    let aligned = groups - groups % old.groups_per_flex();
    if groups < end.groups && aligned > old.groups {
        groups = aligned;
    }
    let to = candidate(groups)?;
    let geometry = Geometry::new(&to)?;
    let groups = old.groups..geometry.groups;
    let places = place(&geometry, groups.clone())?;
    let changed_blocks = changed_blocks(sb, &old, &geometry);
    Ok(Some(Step::Grow(Box::new(Grow { to, geometry, groups, places, changed_blocks }))))
}

fn release(sb: &Superblock) -> Step {
    let mut to = sb.clone();
    to.features.compat &= !Features::RESIZE_INODE;
    to.reserved_gdt_blocks = 0;
    Step::Release(Box::new(to))
}

/// An upper bound of the blocks within the old size that a step changes.
fn changed_blocks(sb: &Superblock, old: &Geometry, new: &Geometry) -> usize {
    let mut blocks = 1; // the superblock
    blocks += 2; // the bitmap of the last group, and the block with its descriptor
    blocks += (new.classic_desc_blocks() - old.classic_desc_blocks()) as usize;
    if sb.features.has_compat(Features::RESIZE_INODE) {
        blocks += 2; // its inode and its own block
        let adds_backup = (old.groups..new.groups).any(|group| new.has_super(Group(group)));
        blocks += if adds_backup { new.reserved_gdt_blocks as usize } else { 0 };
    }
    blocks
}

/// Places the bitmaps and tables of new groups. With flex_bg, those of a flex group are contiguous: block
/// bitmaps, inode bitmaps, tables, from its first new group on.
///
/// # Errors
/// A group is too small for its metadata.
pub fn place(geometry: &Geometry, groups: Range<u32>) -> Result<Vec<Place>, PlanFault> {
    let mut places = Vec::with_capacity(groups.len());
    let per_flex = geometry.groups_per_flex();
    let mut first = groups.start;
    while first < groups.end {
        let end = first.saturating_add(per_flex - first % per_flex).min(groups.end);
        match packed(geometry, first..end) {
            Some(packed) if geometry.flex_log > 0 => places.extend(packed),
            _ => {
                for group in first..end {
                    let alone = packed(geometry, group..group + 1).ok_or(PlanFault::NoRoom { group })?;
                    places.extend(alone);
                }
            }
        }
        first = end;
    }
    Ok(places)
}

/// The metadata of some groups in these groups, contiguous except for the heads between; `None` if it does
/// not fit.
fn packed(geometry: &Geometry, groups: Range<u32>) -> Option<Vec<Place>> {
    let mut at = geometry.group_start(Group(groups.start)).0;
    let last = Group(groups.end - 1);
    let end = geometry.group_start(last).0 + u64::from(geometry.group_blocks(last));
    let mut take = |len: u64| -> Option<u64> {
        loop {
            if at + len > end {
                return None;
            }
            // At most a few groups: a table is shorter than a group.
            let (from, to) = (geometry.group_of(Pblk(at))?, geometry.group_of(Pblk(at + len - 1))?);
            let blocked = (from.0..=to.0).find_map(|group| {
                let head = head(geometry, Group(group));
                (head.start < at + len && at < head.end).then_some(head.end)
            });
            match blocked {
                Some(after) => at = after,
                None => break,
            }
        }
        at += len;
        Some(at - len)
    };
    let mut places = vec![Place::default(); groups.len()];
    for place in &mut places {
        place.block_bitmap = take(1)?;
    }
    for place in &mut places {
        place.inode_bitmap = take(1)?;
    }
    for place in &mut places {
        place.inode_table = take(geometry.itable_blocks().into())?;
    }
    Some(places)
}

/// The blocks at a group's start that hold copies of the superblock and of descriptors, with the reserve.
#[must_use]
pub fn head(geometry: &Geometry, group: Group) -> Range<u64> {
    let head = geometry.group_head(group);
    let start = geometry.group_start(group).0;
    let mut end = start;
    if let Some(block) = head.superblock {
        end = block.0 + 1;
    }
    for (first, len) in [head.descriptors, head.reserved] {
        if len > 0 {
            end = end.max(first.0 + u64::from(len));
        }
    }
    start..end
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample(groups: u64, reserved: u16) -> Superblock {
        let mut sb = Superblock {
            inodes_count: (8192 * groups) as u32,
            blocks_count: 32768 * groups,
            log_block_size: 2,
            log_cluster_size: 2,
            blocks_per_group: 32768,
            clusters_per_group: 32768,
            inodes_per_group: 8192,
            inode_size: 256,
            desc_size: 64,
            rev_level: 1,
            log_groups_per_flex: 4,
            reserved_gdt_blocks: reserved,
            reserved_blocks_count: 32768 * groups / 20,
            ..Superblock::default()
        };
        sb.features = Features {
            compat: Features::RESIZE_INODE,
            incompat: Features::BIT64 | Features::FLEX_BG,
            ro_compat: Features::SPARSE_SUPER,
        };
        sb
    }

    /// Applies all steps.
    fn grown(mut sb: Superblock, target: u64, room: usize) -> (Superblock, Vec<&'static str>) {
        let mut kinds = Vec::new();
        while let Some(step) = next(&sb, target, room).unwrap() {
            sb = match step {
                Step::Release(to) => {
                    kinds.push("release");
                    *to
                }
                Step::Grow(grow) => {
                    assert!(grow.changed_blocks <= room);
                    assert!(grow.to.blocks_count > sb.blocks_count);
                    kinds.push("grow");
                    grow.to
                }
            };
            assert!(kinds.len() < 10_000);
        }
        (sb, kinds)
    }

    #[test]
    fn the_reserve_is_used_first_then_meta_groups() {
        // One descriptor block has 64 descriptors, so 2 reserved ones are enough for 192 groups.
        let (sb, kinds) = grown(sample(10, 2), 32768 * 192, 1000);
        assert_eq!((sb.reserved_gdt_blocks, kinds.as_slice()), (0, &["grow"][..]));
        assert!(sb.features.has_compat(Features::RESIZE_INODE));
        let (sb, kinds) = grown(sample(10, 2), 32768 * 193, 1000);
        assert_eq!(kinds, ["grow", "release", "grow"]);
        assert!(!sb.features.has_compat(Features::RESIZE_INODE));
        assert!(sb.features.has_incompat(Features::META_BG));
        assert_eq!(sb.first_meta_bg, 3);
    }

    #[test]
    fn a_small_journal_takes_more_steps_to_the_same_end() {
        let target = 32768 * 5000 + 20_000;
        let (large, _) = grown(sample(10, 1000), target, 100_000);
        let (small, kinds) = grown(sample(10, 1000), target, 1010);
        assert_eq!(large, small);
        assert_eq!(kinds, ["grow"]);
        let (small, kinds) = grown(sample(10, 1000), target, 500);
        assert_eq!(kinds[0], "grow");
        assert!(kinds.contains(&"release"), "{kinds:?}");
        assert_eq!((small.blocks_count, small.inodes_count), (large.blocks_count, large.inodes_count));
    }

    #[test]
    fn sizes_that_cannot_be() {
        let mut sb = sample(10, 2);
        sb.features.incompat &= !Features::BIT64;
        assert_eq!(fit(&sb, 1 << 32), Err(PlanFault::Needs64Bit { blocks: 1 << 32 }));
        let sb = sample(10, 2);
        assert!(matches!(fit(&sb, 32768 * 600_000), Err(PlanFault::TooManyInodes { .. })));
        assert!(matches!(next(&sb, 32768 * 11, 2), Ok(Some(Step::Release(_)))));
        // Without a reserve there is nothing to give back.
        let Step::Release(sb) = release(&sb) else { unreachable!() };
        assert_eq!(next(&sb, 32768 * 11, 2), Err(PlanFault::JournalTooSmall { needed: 3, room: 2 }));
    }

    #[test]
    fn a_last_group_without_room_is_left_out() {
        let sb = sample(10, 2);
        let needs = 2 + 512 + 50;
        assert_eq!(fit(&sb, 32768 * 10 + needs - 1).unwrap(), 32768 * 10);
        assert_eq!(fit(&sb, 32768 * 10 + needs).unwrap(), 32768 * 10 + needs);
    }

    proptest! {
        /// Heads, bitmaps and tables of new groups do not overlap, and are inside the new groups.
        #[test]
        fn placed_metadata_is_disjoint(
            old in 1u64..200, more in 0u64..300, tail in 0u64..32768, reserved in 0u16..4, flex in 0u8..7,
            room in 10usize..2000,
        ) {
            let mut sb = sample(old, reserved);
            sb.log_groups_per_flex = flex;
            let target = fit(&sb, 32768 * (old + more) + tail).unwrap();
            while let Some(step) = next(&sb, target, room).unwrap() {
                match step {
                    Step::Release(to) => sb = *to,
                    Step::Grow(grow) => {
                        let geometry = &grow.geometry;
                        let mut runs: Vec<Range<u64>> = Vec::new();
                        for (group, place) in grow.groups.clone().zip(&grow.places) {
                            runs.push(head(geometry, Group(group)));
                            runs.push(place.block_bitmap..place.block_bitmap + 1);
                            runs.push(place.inode_bitmap..place.inode_bitmap + 1);
                            let table = u64::from(geometry.itable_blocks());
                            runs.push(place.inode_table..place.inode_table + table);
                        }
                        runs.retain(|run| !run.is_empty());
                        runs.sort_by_key(|run| run.start);
                        for pair in runs.windows(2) {
                            prop_assert!(pair[0].end <= pair[1].start, "{pair:?}");
                        }
                        if let (Some(first), Some(last)) = (runs.first(), runs.last()) {
                            prop_assert!(first.start >= sb.blocks_count);
                            prop_assert!(last.end <= grow.to.blocks_count);
                        }
                        sb = grow.to;
                    }
                }
            }
            prop_assert_eq!(sb.blocks_count, target);
        }
    }
}
