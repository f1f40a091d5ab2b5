//! Which size a file system gets, and what must move for a smaller one.
//!
//! Owns: the number of blocks of the result. Does **not** own: the layout of a size (see [`plan`]), moving
//! anything (see [`shrink`](crate::shrink)).
//!
//! Invariants
//! 1. Everything here reads descriptors and bitmaps only, and changes nothing.
//! 2. [`Need`] counts blocks and not pieces of free space: a size that is found possible may still fail,
//!    because the free space is in pieces that are too small.

use extant_base::{Group, Ino};
use extant_ondisk::group_desc::INODE_UNINIT;
use extant_ondisk::{Features, Geometry};

use crate::fault::ResizeFault;
use crate::fs::Fs;
use crate::plan;

/// Why inodes keep their numbers.
const STABLE: &str = "it has the feature stable_inodes, and there are inodes after the new end";
const UNJOURNALED: &str = "there are inodes after the new end, and without a journal they do not move \
                           (`extant tune -j` adds one)";
const MOUNTED: &str = "there are inodes after the new end, and the inodes of a mount do not move";

/// The size asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// This many bytes.
    Bytes(u64),
    /// This many bytes more.
    More(u64),
    /// This many bytes less.
    Less(u64),
    /// All of the device.
    Max,
    /// The smallest size to which the file system can shrink.
    Min,
}

impl Size {
    /// The number of blocks; `None` for the smallest size.
    fn blocks(self, fs: &Fs, device_bytes: u64) -> Option<u64> {
        let log2 = fs.geometry.block_size.log2();
        let now = fs.sb.blocks_count << log2;
        Some(match self {
            Self::Bytes(bytes) => bytes >> log2,
            Self::More(bytes) => now.saturating_add(bytes) >> log2,
            Self::Less(bytes) => now.saturating_sub(bytes) >> log2,
            Self::Max => device_bytes >> log2,
            Self::Min => return None,
        })
    }
}

/// What to do for a size: the blocks after the resize.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Grow(u64),
    Shrink(u64),
}

impl Target {
    pub(crate) fn of(size: Size, fs: &Fs, device_bytes: u64, is_mounted: bool) -> Result<Self, ResizeFault> {
        let now = fs.sb.blocks_count;
        let wanted = match size.blocks(fs, device_bytes) {
            Some(wanted) if wanted >= now => {
                // A rest that is too small for a group is left out, but this makes nothing smaller.
                return Ok(Self::Grow(plan::fit(&fs.sb, wanted)?.max(now)));
            }
            wanted => wanted,
        };
        if let Some(why) = cannot_shrink(fs) {
            return Err(ResizeFault::CannotShrink(why));
        }
        let sizes = SmallerSizes::of(fs, is_mounted)?;
        let least = sizes.least()?;
        let Some(wanted) = wanted else { return Ok(Self::Shrink(least)) };
        match sizes.fit(wanted)? {
            Ok(blocks) => Ok(Self::Shrink(blocks)),
            Err(why) => {
                let log2 = fs.geometry.block_size.log2();
                Err(ResizeFault::TooSmall { bytes: wanted << log2, why, least: least << log2 })
            }
        }
    }
}

/// The sizes to which a file system can shrink.
pub(crate) struct SmallerSizes<'f> {
    fs: &'f Fs,
    /// Groups that must stay, because they have inodes that keep their numbers.
    groups: u32,
    /// Why inodes in use after these groups cannot move.
    fixed: Option<&'static str>,
}

impl<'f> SmallerSizes<'f> {
    pub(crate) fn of(fs: &'f Fs, is_mounted: bool) -> Result<Self, ResizeFault> {
        let fixed = keeps_inodes(fs, is_mounted);
        let in_use = match fixed {
            Some(_) => groups_with_inodes(fs)?,
            None => 0,
        };
        Ok(Self { fs, groups: in_use.max(groups_with_fixed_inodes(fs)), fixed })
    }

    /// The smallest number of blocks.
    pub(crate) fn least(&self) -> Result<u64, ResizeFault> {
        let now = self.fs.sb.blocks_count;
        let (mut low, mut high) = (0, now);
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            match self.fit(middle)? {
                Ok(_) => high = middle,
                Err(_) => low = middle,
            }
        }
        Ok(self.fit(high)?.unwrap_or(now))
    }

    /// The number of blocks of a shrink to `wanted` blocks, or what does not fit.
    fn fit(&self, wanted: u64) -> Result<Result<u64, &'static str>, ResizeFault> {
        let sb = &self.fs.sb;
        let Ok(to) = plan::shrunk(sb, wanted) else { return Ok(Err("there must be room for the metadata")) };
        let geometry = Geometry::new(&to)?;
        if geometry.groups < self.groups {
            return Ok(Err(self.fixed.unwrap_or("reserved inodes are after it")));
        }
        let (used, free) = inodes_to_move(self.fs, geometry.groups)?;
        if used > free {
            return Ok(Err("more inodes are in use than it has"));
        }
        let guard = sb.features.has_incompat(Features::MMP).then_some(sb.mmp_block);
        if guard.is_some_and(|block| block >= geometry.blocks) {
            return Ok(Err("its multiple-mount protection block is after it"));
        }
        let need = Need::of(self.fs, &geometry)?;
        match need.move_blocks <= need.free_blocks {
            true => Ok(Ok(geometry.blocks)),
            false => Ok(Err("files have more blocks")),
        }
    }
}

/// The blocks that a shrink needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Need {
    /// Blocks in use after the new end that must move, in whole clusters.
    pub(crate) move_blocks: u64,
    /// Free blocks before the new end.
    free_blocks: u64,
}

impl Need {
    /// Counts what must move before the file system can have `geometry`.
    pub(crate) fn of(fs: &Fs, geometry: &Geometry) -> Result<Self, ResizeFault> {
        match geometry.cluster_ratio() {
            1 => Self::in_blocks(fs, geometry),
            _ => Self::in_clusters(fs, geometry),
        }
    }

    fn in_blocks(fs: &Fs, geometry: &Geometry) -> Result<Self, ResizeFault> {
        let mut need = Self { move_blocks: 0, free_blocks: 0 };
        let mut metadata = Vec::new();
        for group in geometry.groups..fs.geometry.groups {
            metadata.push(plan::head(&fs.geometry, Group(group)));
            metadata.extend(fs.metadata_of(&fs.desc(group)?));
        }
        for group in 0..geometry.groups - 1 {
            need.free_blocks += u64::from(fs.desc(group)?.free_clusters);
        }
        // The group with the new end.
        let last = geometry.groups - 1;
        let bitmap = fs.block_bitmap(last, &fs.desc(last)?)?;
        let start = geometry.group_start(Group(last)).0;
        let cut = geometry.group_blocks(Group(last));
        for run in bitmap.free_runs(0) {
            need.free_blocks += u64::from(run.end.min(cut).saturating_sub(run.start));
        }
        let before = fs.geometry.group_blocks(Group(last));
        need.move_blocks += u64::from((cut..before).filter(|bit| bitmap.test(*bit)).count() as u32);
        for group in geometry.groups..fs.geometry.groups {
            let free = fs.desc(group)?.free_clusters;
            need.move_blocks += u64::from(fs.geometry.group_blocks(Group(group)) - free);
        }
        // Metadata of groups that go need not move.
        let end = start + u64::from(cut);
        for run in metadata {
            // What is before the new end makes room only with the last switch.
            let behind = run.end.saturating_sub(run.start.max(end));
            need.move_blocks = need.move_blocks.saturating_sub(behind);
        }
        Ok(need)
    }

    /// With bigalloc, bits of bitmaps are clusters.
    fn in_clusters(fs: &Fs, geometry: &Geometry) -> Result<Self, ResizeFault> {
        let (ratio, limit) = (geometry.cluster_ratio(), geometry.blocks);
        let (mut moved, mut free) = (0u64, 0u64);
        let last = geometry.groups - 1;
        for group in 0..last {
            free += u64::from(fs.desc(group)?.free_clusters);
        }
        // The group with the new end.
        let bitmap = fs.block_bitmap(last, &fs.desc(last)?)?;
        let metadata = fs.metadata_bitmap(last)?;
        let cut = geometry.group_clusters(Group(last));
        for run in bitmap.free_runs(0) {
            free += u64::from(run.end.min(cut).saturating_sub(run.start));
        }
        let after = cut..fs.geometry.group_clusters(Group(last));
        moved += after.filter(|bit| bitmap.test(*bit) && !metadata.test(*bit)).count() as u64;
        for group in geometry.groups..fs.geometry.groups {
            // The bits after the end of the group are set.
            let not_metadata = fs.metadata_bitmap(group)?.count_clear();
            moved += u64::from(not_metadata.saturating_sub(fs.desc(group)?.free_clusters));
        }
        // Metadata of groups that stay gets clusters of its own.
        for group in 0..geometry.groups {
            let runs = fs.metadata_of(&fs.desc(group)?);
            let after = runs.iter().filter(|run| run.end > limit);
            moved += after.map(|run| (run.end - run.start).div_ceil(ratio)).sum::<u64>();
        }
        Ok(Self { move_blocks: moved * ratio, free_blocks: free * ratio })
    }
}

/// The inodes in use after the first `groups` groups, and the free ones in these.
pub(crate) fn inodes_to_move(fs: &Fs, groups: u32) -> Result<(u64, u64), ResizeFault> {
    let (mut used, mut free) = (0, 0);
    for group in 0..fs.geometry.groups {
        let count = fs.desc(group)?.free_inodes;
        match group < groups {
            true => free += u64::from(count),
            false => used += u64::from(fs.geometry.inodes_per_group - count),
        }
    }
    Ok((used, free))
}

/// Why a file system cannot shrink at all.
fn cannot_shrink(fs: &Fs) -> Option<&'static str> {
    match () {
        () if fs.geometry.cluster_ratio() > 1 && fs.geometry.first_data_block > 0 => {
            Some("it has the feature bigalloc, and its clusters do not begin at block 0")
        }
        () if fs.sb.features.has_ro_compat(Features::SHARED_BLOCKS) => Some("its files share blocks"),
        () => None,
    }
}

/// Why inodes cannot get other numbers; `None` if they can.
pub(crate) fn keeps_inodes(fs: &Fs, is_mounted: bool) -> Option<&'static str> {
    let features = &fs.sb.features;
    match () {
        () if is_mounted => Some(MOUNTED),
        () if features.has_compat(Features::STABLE_INODES) => Some(STABLE),
        () if !features.has_compat(Features::HAS_JOURNAL) => Some(UNJOURNALED),
        () => None,
    }
}

/// The number of groups that have an inode in use, counted from the first group to the last such one.
pub(crate) fn groups_with_inodes(fs: &Fs) -> Result<u32, ResizeFault> {
    for group in (0..fs.geometry.groups).rev() {
        let desc = fs.desc(group)?;
        if desc.free_inodes < fs.geometry.inodes_per_group && !desc.has_flag(INODE_UNINIT) {
            return Ok(group + 1);
        }
    }
    Ok(1)
}

/// The number of groups that inodes with a fixed number need: reserved ones, and the journal's.
fn groups_with_fixed_inodes(fs: &Fs) -> u32 {
    let last = fs.sb.first_ino.saturating_sub(1).max(fs.sb.journal_inum).max(1);
    fs.geometry.inode_place(Ino(last)).map_or(1, |(group, _)| group.0 + 1)
}
