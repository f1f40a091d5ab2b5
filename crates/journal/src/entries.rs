//! A transaction in detail: what a plan only counts.

use extant_base::Pblk;
use extant_jbd2_format::{BlockType, Header, LogFormat, revokes, tags};

use crate::fault::JournalFault;
use crate::log::LogView;
use crate::plan::{ReplayPlan, Transaction};

/// Something that a transaction holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Entry {
    /// A copy of a block.
    Copy {
        /// Where it belongs.
        home: Pblk,
        /// Where it is.
        log_block: u32,
        /// Its first word is escaped.
        escaped: bool,
    },
    /// Copies of this block, of this transaction or older, must not be replayed.
    Revoke(Pblk),
}

/// Passes everything that a transaction of `plan` holds, finished or not, to the caller, in the order of the
/// log.
///
/// # Errors
/// A descriptor or revoke block cannot be read.
pub fn each_entry(
    log: LogView<'_>,
    plan: &ReplayPlan,
    transaction: &Transaction,
    each: &mut dyn FnMut(Entry),
) -> Result<(), JournalFault> {
    let sb = &plan.superblock;
    let format: LogFormat = plan.format;
    let after = |at: u32| if at + 1 >= sb.log_end() { sb.first } else { at + 1 };
    let (mut at, mut left) = (transaction.first_log_block, transaction.log_blocks);
    while left > 0 {
        let block = log.block(at)?;
        let Ok(header) = Header::decode(&block) else { return Ok(()) };
        (at, left) = (after(at), left - 1);
        match header.kind {
            BlockType::Descriptor => {
                for tag in tags(format, &block).take(left as usize) {
                    each(Entry::Copy { home: tag.block, log_block: at, escaped: tag.escaped });
                    (at, left) = (after(at), left - 1);
                }
            }
            // The scan has reported an impossible count.
            BlockType::Revoke => revokes(format, &block).into_iter().flatten().for_each(|record| {
                each(Entry::Revoke(record));
            }),
            _ => {}
        }
    }
    Ok(())
}
