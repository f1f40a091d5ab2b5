//! Replays a log: writes the copies home.
//!
//! A crash at any moment is harmless: the log needs the same replay until it is marked clean, which is the
//! last write.
//!
//! Source: kernel Documentation/filesystems/ext4/journal.rst.

use extant_base::Pblk;
use extant_device::{Device, DeviceFault};
use extant_jbd2_format::{Superblock, unescape};

use crate::fault::JournalFault;
use crate::log::Log;
use crate::plan::ReplayPlan;

/// Bytes copied at a time.
const PIECE_BYTES: usize = 4 << 20;

/// Why a replay failed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayFault {
    /// A copy cannot be read.
    #[error(transparent)]
    Log(#[from] JournalFault),
    /// A home cannot be written.
    #[error("journal replay: {0}")]
    Home(#[from] DeviceFault),
}

/// Copies the planned blocks home and makes them durable. The log is not changed: see [`mark_clean`].
///
/// # Errors
/// The log cannot be read, or the target cannot be written. It is safe to repeat the replay.
pub fn replay(log: &Log, plan: &ReplayPlan, target: &dyn Device) -> Result<(), ReplayFault> {
    let bs = log.block_size();
    let per_piece = (PIECE_BYTES / bs.len()).max(1);
    // Homes are sorted; adjacent ones share one write.
    let mut rest = plan.homes.as_slice();
    let mut bytes = Vec::new();
    while let Some(first) = rest.first() {
        let follows = |(n, home): &(usize, &crate::Home)| home.block.0 - first.block.0 == *n as u64;
        let len = rest.iter().enumerate().take_while(follows).count().min(per_piece);
        bytes.clear();
        for home in &rest[..len] {
            let mut copy = log.view().block(home.log_block)?;
            if home.escaped {
                unescape(&mut copy);
            }
            bytes.extend_from_slice(&copy);
        }
        target.write_at(offset(log, first.block), &bytes)?;
        rest = &rest[len..];
    }
    target.flush()?;
    Ok(())
}

/// Durably marks the log clean, and clears the error number of an abort. Call it only after the replay is
/// durable and the abort is recorded elsewhere.
///
/// # Errors
/// The log cannot be written.
pub fn mark_clean(log: &Log, plan: &ReplayPlan) -> Result<(), ReplayFault> {
    let mut sb = Superblock {
        start: 0,
        sequence: plan.next_tid,
        head: plan.head,
        errno: 0,
        ..plan.superblock.clone()
    };
    sb.seal();
    let place = log.map().superblock();
    let (offset, _) = log.view().offset_of(place).ok_or(JournalFault::OutsideLog { block: place })?;
    log.device().write_at(offset, &sb.encode())?;
    log.device().flush()?;
    Ok(())
}

fn offset(log: &Log, block: Pblk) -> u64 {
    // A plan names only blocks of the target: their byte offsets fit into 64 bits.
    log.block_size().offset_of(block).unwrap_or(u64::MAX)
}
