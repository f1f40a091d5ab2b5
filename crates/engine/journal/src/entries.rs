//! The entries of a transaction. A plan only counts them.

use extant_base::Pblk;
use extant_jbd2_format::{BlockType, Header, LogFormat, revokes, tags};

use crate::fault::JournalFault;
use crate::log::LogView;
use crate::plan::{ReplayPlan, Transaction};

/// An entry of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Entry {
    /// A copy of a block.
    Copy {
        /// Its home.
        home: Pblk,
        /// Its place in the log.
        log_block: u32,
        /// Its first word is escaped.
        escaped: bool,
    },
    /// Copies of this block, in this transaction or older ones, must not be replayed.
    Revoke(Pblk),
}

/// Calls `each` for all entries of a transaction of `plan`, finished or not, in log order.
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
            // The scan already reported an impossible count.
            BlockType::Revoke => revokes(format, &block).into_iter().flatten().for_each(|record| {
                each(Entry::Revoke(record));
            }),
            _ => {}
        }
    }
    Ok(())
}
