//! How much larger the new image must be than the old one.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use extant_device::{Device, FileDevice};
use extant_image::content::data_runs;
use extant_ondisk::filetype::FileType;
use extant_volume::{OpenOptions, Refusal};

use super::UpdateFault;
use crate::build::SizeChoice;
use crate::diff::{Diff, Node, Side, Status};
use crate::resize::{ImageFile, ResizeFault, ResizeOptions, Size, resize};
use crate::{Error, FileSystem};

/// Images grow by multiples of this.
const UNIT_BYTES: u64 = 1 << 20;
/// Blocks that are kept free for maps and directories, at least.
const SPARE_BLOCKS: u64 = 64;
/// A target of a symbolic link of this many bytes or more has a block.
const FAST_LINK_MAX: u64 = 60;

/// The number of bytes by which a copy of the old image must grow.
pub(super) fn estimate(
    old: &Arc<dyn Device>,
    side: &Side,
    diff: &Diff,
    size: SizeChoice,
) -> Result<u64, UpdateFault> {
    let before = old.size_bytes();
    let asked = match size {
        SizeChoice::Bytes(bytes) if bytes < before => {
            let what = "a new image cannot be smaller than the old one that it is made from";
            let fault = format!("{what}: {bytes} and {before} bytes; `extant resize` makes it smaller");
            return Err(crate::build::BuildFault::Ids(fault).into());
        }
        SizeChoice::Bytes(bytes) => bytes - before,
        SizeChoice::Smallest { more_bytes, .. } => more_bytes,
    };
    let Some(gathered) = side.as_gathered() else { return Ok(asked) };
    let fs = FileSystem::from_device(Arc::clone(old), &OpenOptions::default())?;
    let space = fs.statfs()?;
    let geometry = fs.volume().geometry();
    let bs = u64::from(space.block_size);
    let (mut blocks, mut inodes) = (0i64, 0i64);
    let blocks_of = |bytes: u64| bytes.div_ceil(bs) as i64;
    for change in &diff.changes {
        if let (Some(a), Status::Deleted | Status::TypeChanged | Status::Modified) =
            (&change.a, change.status)
            && a.links <= 1
        {
            blocks -= blocks_of(a.size);
            inodes -= 1;
        }
        let Some(Node::Tree(node)) = change.node else { continue };
        let of = &gathered.tree.nodes[node as usize];
        inodes += 1;
        blocks += match of.file_type() {
            FileType::Directory => i64::from(change.status != Status::Modified),
            FileType::Regular => {
                data_runs(&gathered.tree, node).iter().map(|(start, end)| blocks_of(end - start)).sum()
            }
            FileType::Symlink => i64::from(of.size >= FAST_LINK_MAX),
            _ => 0,
        };
    }
    let spare = SPARE_BLOCKS + space.blocks / 200;
    let needed = blocks.saturating_add_unsigned(spare).saturating_sub_unsigned(space.blocks_free);
    let needed_inodes = inodes.saturating_sub_unsigned(space.inodes_free.into());
    let by_blocks = u64::try_from(needed).unwrap_or(0) * bs;
    let groups = u64::try_from(needed_inodes).unwrap_or(0).div_ceil(u64::from(geometry.inodes_per_group));
    let by_inodes = groups * u64::from(geometry.blocks_per_group) * bs;
    // New groups have tables of their own.
    let tables = by_blocks.max(by_inodes) / 32;
    Ok(asked.max(by_blocks.max(by_inodes) + tables))
}

/// Makes the file system in a file larger by this many bytes, rounded up.
pub(super) fn grow(
    file: Arc<FileDevice>,
    more: u64,
    cancel: &AtomicBool,
) -> Result<Arc<dyn Device>, UpdateFault> {
    if more > 0 {
        let mut storage = ImageFile::new(Arc::clone(&file), 0);
        let size = Size::More(more.next_multiple_of(UNIT_BYTES));
        match resize(&mut storage, size, &ResizeOptions::default(), &(), cancel) {
            Ok(_) => {}
            Err(ResizeFault::Interrupted) => return Err(UpdateFault::Interrupted),
            Err(fault) => return Err(fault.into()),
        }
    }
    Ok(file)
}

/// Whether space or inodes have run out.
pub(super) fn is_full(fault: &Error) -> bool {
    fault.is(Refusal::NoSpace) || fault.is(Refusal::NoInodes)
}
