//! Finds the log: the blocks of the journal's inode, or a device of its own.

use std::sync::Arc;

use extant_base::{Ino, Lblk};
use extant_device::Device;
use extant_inode::{Inodes, Salvage, Shared};
use extant_journal::{Log, LogMap, LogRun};
use extant_mapping::MapState;
use extant_memory::Budget;
use extant_ondisk::{Features, Geometry, Superblock};

use crate::{OpenFault, OpenOptions};

/// Most runs of a journal's map. More fragmentation counts as damage.
const LOG_RUNS_MAX: usize = 1 << 20;

/// The log of a file system that is not open, for programs that write transactions of their own; `None` if it
/// has no journal.
///
/// # Errors
/// The journal's inode or its map is damaged, the journal is on another device that `options` lacks, or a
/// device failed.
pub fn log_on(
    device: &Arc<dyn Device>,
    sb: &Superblock,
    options: &OpenOptions,
) -> Result<Option<Log>, OpenFault> {
    if !sb.features.has_compat(Features::HAS_JOURNAL) {
        return Ok(None);
    }
    let geometry = Geometry::new(sb).map_err(OpenFault::damaged)?;
    locate(device, (sb, &geometry), options, &options.budget(), None).map(Some)
}

/// The log. `salvage`: how to read with damaged descriptors.
pub(super) fn locate(
    device: &Arc<dyn Device>,
    (sb, geometry): (&Superblock, &Geometry),
    options: &OpenOptions,
    budget: &Arc<Budget>,
    salvage: Option<Salvage>,
) -> Result<Log, OpenFault> {
    let refuse = |why: String| Err(OpenFault::Journal(why));
    let bs = geometry.block_size;
    if sb.journal_inum == 0 {
        let Some(external) = &options.journal_device else {
            return refuse(
                "the file system's journal is on a device of its own, which is needed to recover or write it: name that device"
                    .to_owned(),
            );
        };
        let blocks = u32::try_from(external.size_bytes() / bs.bytes()).unwrap_or(u32::MAX);
        return Ok(Log::new(Arc::clone(external), LogMap::external(blocks, bs), bs));
    }
    let mut shared = Shared::new(Arc::clone(device), sb.clone(), geometry.clone(), Arc::clone(budget));
    shared.salvage = salvage;
    let inodes = Inodes::new(shared);
    let ino = Ino(sb.journal_inum);
    let inode = match inodes.get(ino) {
        Ok(inode) => inode,
        Err(fault) => return refuse(format!("the journal cannot be read: {fault}")),
    };
    let blocks = u32::try_from(inode.size() >> bs.log2()).unwrap_or(u32::MAX);
    let mut runs = Vec::new();
    let walked = inode.walk_map(inodes.shared(), Lblk(0), blocks.into(), &mut |piece| {
        // An unwritten extent is a hole of the log, whatever the device has there.
        if let MapState::Written(start) = piece.state {
            runs.push(LogRun { log: piece.lblk.0, start, len: piece.len });
        }
        (runs.len() < LOG_RUNS_MAX).then_some(())
    });
    if let Err(fault) = walked {
        return refuse(format!("the journal's map cannot be read: {fault}"));
    }
    match LogMap::internal(runs, blocks, geometry.blocks) {
        Ok(map) => Ok(Log::new(Arc::clone(device), map, bs)),
        Err(fault) => refuse(format!("the journal's map is damaged: {fault}")),
    }
}
