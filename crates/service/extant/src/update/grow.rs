//! How much larger a new image is than the old one.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use extant_device::{Device, FileDevice};
use extant_image::content::data_runs;
use extant_ondisk::filetype::FileType;
use extant_ondisk::time::Timestamp;
use extant_volume::{OpenOptions, Refusal};

use super::UpdateFault;
use crate::build::SizeChoice;
use crate::diff::{Diff, Node, Side, Status};
use crate::resize::{ImageFile, ResizeFault, ResizeOptions, Size, resize};
use crate::{Error, FileSystem};

/// Images grow by multiples of this, if the size is not given.
const UNIT_BYTES: u64 = 1 << 20;
/// Blocks that are kept free for maps and directories, at least, if something is added.
const SPARE_BLOCKS: u64 = 64;
/// A target of a symbolic link of this many bytes or more has a block.
const FAST_LINK_MAX: u64 = 60;
/// How often a new image that was too small is made again, with more room each time.
const INCREASES_MAX: u32 = 8;

/// The growth of a copy of the old image.
pub(super) struct Growth {
    before: u64,
    /// The number of bytes by which the copy grows.
    pub(super) more: u64,
    /// The size was given: it is neither rounded nor increased.
    is_given: bool,
    increases: u32,
}

impl Growth {
    /// An estimate of the growth that the differences need.
    pub(super) fn new(
        old: &Arc<dyn Device>,
        side: &Side,
        diff: &Diff,
        size: SizeChoice,
    ) -> Result<Self, UpdateFault> {
        let fs = FileSystem::from_device(Arc::clone(old), &OpenOptions::default())?;
        let geometry = fs.volume().geometry();
        let before = geometry.blocks * geometry.block_size.bytes();
        let (more, is_given) = match size {
            SizeChoice::Bytes(asked) if asked < before => {
                return Err(UpdateFault::Smaller { asked, old: before });
            }
            SizeChoice::Bytes(asked) => (asked - before, true),
            SizeChoice::Smallest { more_bytes, .. } => {
                let needed = needed(&fs, side, diff)?;
                (more_bytes.max(needed).next_multiple_of(UNIT_BYTES), false)
            }
        };
        Ok(Self { before, more, is_given, increases: 0 })
    }

    /// Makes the next copy grow more. False if it may not.
    pub(super) fn increase(&mut self) -> bool {
        self.increases += 1;
        self.more = self.more.saturating_mul(2).max(self.before / 16).next_multiple_of(UNIT_BYTES);
        !self.is_given && self.increases <= INCREASES_MAX
    }

    /// Makes the file system in a file larger.
    pub(super) fn apply(
        &self,
        file: Arc<FileDevice>,
        time: Timestamp,
        cancel: &AtomicBool,
    ) -> Result<Arc<dyn Device>, UpdateFault> {
        if self.more > 0 {
            let mut storage = ImageFile::new(Arc::clone(&file), 0);
            let options = ResizeOptions { fixed_time: Some(time), ..ResizeOptions::default() };
            match resize(&mut storage, Size::More(self.more), &options, &(), cancel) {
                Ok(_) => {}
                Err(ResizeFault::Interrupted) => return Err(UpdateFault::Interrupted),
                Err(fault) => return Err(fault.into()),
            }
        }
        Ok(file)
    }
}

/// The number of bytes that the differences need and the file system does not have.
fn needed(fs: &FileSystem, side: &Side, diff: &Diff) -> Result<u64, UpdateFault> {
    let Some(gathered) = side.as_gathered() else { return Ok(0) };
    let space = fs.statfs()?;
    let geometry = fs.volume().geometry();
    let bs = u64::from(space.block_size);
    let (mut blocks, mut inodes) = (0i64, 0i64);
    let blocks_of = |bytes: u64| bytes.div_ceil(bs) as i64;
    let mut counted = HashSet::new();
    for change in &diff.changes {
        let is_dir = |side: &Option<crate::diff::Meta>| {
            side.as_ref().is_some_and(|meta| meta.kind == FileType::Directory)
        };
        if change.status == Status::Modified && is_dir(&change.b) {
            continue; // its names count
        }
        // Of a file with several names, others may remain.
        if let Some(a) = change.a.as_ref().filter(|a| a.links <= 1 || is_dir(&change.a)) {
            blocks -= blocks_of(a.size);
            inodes -= 1;
        }
        let Some(Node::Tree(node)) = change.node else { continue };
        let of = &gathered.tree.nodes[node as usize];
        if of.links > 1 && !of.is_dir() && !counted.insert(node) {
            continue;
        }
        inodes += 1;
        blocks += match of.file_type() {
            FileType::Directory => 1,
            FileType::Regular => {
                data_runs(&gathered.tree, node).iter().map(|(start, end)| blocks_of(end - start)).sum()
            }
            FileType::Symlink => i64::from(of.size >= FAST_LINK_MAX),
            _ => 0,
        };
    }
    let spare = if blocks > 0 { SPARE_BLOCKS + space.blocks / 200 } else { 0 };
    let missing = blocks.saturating_add_unsigned(spare).saturating_sub_unsigned(space.blocks_free);
    let missing_inodes = inodes.saturating_sub_unsigned(space.inodes_free.into());
    let by_blocks = u64::try_from(missing).unwrap_or(0) * bs;
    let groups = u64::try_from(missing_inodes).unwrap_or(0).div_ceil(u64::from(geometry.inodes_per_group));
    let by_inodes = groups * u64::from(geometry.blocks_per_group) * bs;
    let needed = by_blocks.max(by_inodes);
    // New groups have tables of their own.
    Ok(needed + needed / 32)
}

/// Whether a change was refused because no block or no inode is free. An attribute or an index can be full,
/// too.
pub(super) fn is_full(fs: &FileSystem, fault: &Error) -> bool {
    if fault.is(Refusal::NoInodes) {
        return true;
    }
    let free = fs.statfs().map_or(0, |space| space.blocks_free);
    fault.is(Refusal::NoSpace) && free <= SPARE_BLOCKS
}
