//! The fast commits after the last transaction: stored as blocks, returned as records.
//!
//! This crate does not apply records: they change files and names, not blocks. The file system above it does.
//!
//! Source: kernel Documentation/filesystems/ext4/journal.rst.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use extant_jbd2_format::LogTid;
use extant_jbd2_format::fast_commit::{Flow, NameChange, Record, Scan, records};

use crate::fault::JournalFault;
use crate::log::Sequential;
use crate::problem::Problem;

/// Number of records of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FastCommitCounts {
    /// New contents of inodes.
    pub inodes: u64,
    /// Ranges that were mapped.
    pub added_ranges: u64,
    /// Ranges turned into holes.
    pub removed_ranges: u64,
    /// Inodes created under a name.
    pub creations: u64,
    /// Further names of inodes.
    pub links: u64,
    /// Names removed.
    pub unlinks: u64,
    /// Fast commits: tail records with a correct checksum.
    pub commits: u64,
}

/// The fast commits to apply, in order, after the plan's blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FastCommitPlan {
    /// The transaction that they stand for: the first one that the log does not hold.
    pub tid: LogTid,
    /// The log block where they begin.
    pub first_log_block: u32,
    /// Their blocks, to the end of the last valid fast commit.
    pub blocks: Vec<Arc<[u8]>>,
    /// Number of records in them, including heads, pads and tails.
    pub records: u64,
    /// Number of records of each kind.
    pub counts: FastCommitCounts,
}

impl FastCommitPlan {
    /// The records that change something, in order: without heads, pads and tails.
    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        let all = self.blocks.iter().flat_map(|block| records(block).map_while(Result::ok));
        let valid = all.take(usize::try_from(self.records).unwrap_or(usize::MAX));
        valid.filter(|record| !matches!(record, Record::Head { .. } | Record::Pad | Record::Tail { .. }))
    }

    fn count(&self) -> FastCommitCounts {
        let mut counts = FastCommitCounts::default();
        let all = self.blocks.iter().flat_map(|block| records(block).map_while(Result::ok));
        for record in all.take(usize::try_from(self.records).unwrap_or(usize::MAX)) {
            match record {
                Record::Inode { .. } => counts.inodes += 1,
                Record::AddRange { .. } => counts.added_ranges += 1,
                Record::DelRange { .. } => counts.removed_ranges += 1,
                Record::Name { change: NameChange::Create, .. } => counts.creations += 1,
                Record::Name { change: NameChange::Link, .. } => counts.links += 1,
                Record::Name { change: NameChange::Unlink, .. } => counts.unlinks += 1,
                Record::Tail { .. } => counts.commits += 1,
                Record::Head { .. } | Record::Pad => {}
            }
        }
        counts
    }
}

impl fmt::Display for FastCommitPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = &self.counts;
        write!(
            f,
            "{} fast commits for transaction {}, in {} blocks from log block {}: {} inodes, {} ranges added, {} \
             removed, {} creations, {} links, {} unlinks",
            c.commits,
            self.tid,
            self.blocks.len(),
            self.first_log_block,
            c.inodes,
            c.added_ranges,
            c.removed_ranges,
            c.creations,
            c.links,
            c.unlinks
        )
    }
}

/// Looks for fast commits for `tid` in the blocks of `area`.
///
/// The scan stops at the first block that does not continue them, so it keeps only blocks of actual fast
/// commits.
pub(crate) fn scan_area(
    log: &mut Sequential<'_>,
    area: Range<u32>,
    tid: LogTid,
    problems: &mut Vec<Problem>,
) -> Option<FastCommitPlan> {
    let first_log_block = area.start;
    let mut scan = Scan::new(tid);
    let mut blocks: Vec<Arc<[u8]>> = Vec::new();
    let mut valid_blocks = 0;
    for log_block in area {
        let block: Arc<[u8]> = match log.block(log_block) {
            Ok(bytes) => bytes.into(),
            Err(JournalFault::Device { .. }) => {
                problems.push(Problem::FastCommitUnreadable { log_block });
                break;
            }
            Err(_) => break,
        };
        let before = scan.valid_records();
        let flow = scan.feed(&block);
        blocks.push(block);
        if scan.valid_records() > before {
            valid_blocks = blocks.len();
        }
        match flow {
            Ok(Flow::Continue) => {}
            Ok(Flow::Stop) => break,
            Err(fault) => {
                problems.push(Problem::FastCommit { log_block, fault });
                break;
            }
        }
    }
    blocks.truncate(valid_blocks);
    let mut plan = FastCommitPlan {
        tid,
        first_log_block,
        blocks,
        records: scan.valid_records(),
        counts: FastCommitCounts::default(),
    };
    plan.counts = plan.count();
    (plan.records > 0).then_some(plan)
}
