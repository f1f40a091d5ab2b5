//! The journal. Recovery reads the log after a crash and computes what must be replayed. The live journal
//! commits the changes of many operations together, as one transaction.
//!
//! ```text
//! Log (device, map, block size) ── scan ──> ReplayPlan ──> Overlay    read-only: shows the log replayed
//!                                               └────────> replay()   read-write: copies blocks home
//! ScratchOverlay                                                      read-only: keeps writes in memory
//! Journal ── start ──> Handle ── change ──> commit ──> checkpoint     see `engine`
//! ```
//!
//! Terms:
//! - A *log block* is a block of the log, named by its number counted from the log's first block.
//! - The *target* is the file system that the log belongs to. The *home* of a block is the block's own place
//!   in the target.
//! - A *copy* is a block's content in the log.
//! - A *handle* is the right of one operation to change blocks in the running transaction.
//! - The *client* ([`Client`]) is the part of the file system that works with the live journal. It keeps
//!   inodes and other structures decoded in memory, as *values*, and computes the metadata checksums of
//!   blocks.
//!
//! The thread that makes a commit is the *committer*: a background thread, or a thread that needs its changes
//! to be durable. There is one commit at a time (module `engine`):
//! 1. The committer closes the transaction: new handles wait. When the open handles have ended, the client
//!    records which values this transaction has changed, and keeps their present state for the commit.
//!    Changes after that belong to the next transaction, which starts now, with the waiting handles.
//! 2. The committer takes a reference to the cached bytes of each block of the closed transaction. If an
//!    operation changes a block before its bytes are taken, the cache keeps the old version for the commit.
//!    The client encodes the recorded values into their blocks, and the committer takes references to these
//!    blocks, too.
//! 3. A block with a metadata checksum is duplicated in memory, and the duplicate gets the checksum. The
//!    duplicate is written to the log and later home. A block without one is written from the cached bytes.
//! 4. The committer writes revoke records, descriptors and blocks to the log, with the log's own checksum of
//!    each block. It flushes the log's device, and then writes the commit block durably. Now the transaction
//!    is committed.
//! 5. Later, a checkpoint writes the blocks to their homes, flushes the target's device, and durably moves
//!    the log's start past the transaction.
//!
//! Owns, for recovery: the map of a log's blocks ([`LogMap`]), the scan of the log by jbd2's rules
//! ([`scan()`]), its result as a plain value ([`ReplayPlan`]), the fast commits to apply after that plan
//! ([`FastCommitPlan`]), the device that shows a plan's copies at their homes ([`Overlay`]), and the device
//! that keeps in memory what the rest of a recovery writes ([`ScratchOverlay`]).
//!
//! Owns, for writing: transactions, fast commits, the order of their writes, and the rule that says when a
//! changed block may leave the cache.
//!
//! Does **not** own: where a log is stored (the caller lists its blocks; this crate knows no inodes), the
//! layout of log blocks (see `jbd2-format`), whether a replay is needed (the file system's superblock says
//! so), and what a fast-commit record does to a file system.
//!
//! Invariants
//! 1. Scanning writes nothing. An [`Overlay`] refuses writes. A [`ScratchOverlay`] never writes to the device
//!    below it.
//! 2. INV-R2: no bytes in the log make a scan panic, hang, or use memory out of proportion. The scan reads
//!    each log block at most once, and blocks of revoke records once more. Memory grows with the number of
//!    blocks logged, not with the number of blocks that revoke records name.
//! 3. INV-R3: a plan holds copies of committed transactions only. A copy is left out if its own transaction
//!    or a later one revokes the block, or if the copy's checksum is wrong. Of the other copies of a block,
//!    the plan holds the newest. So if the newest copy of a block is damaged, the plan has an older one, or
//!    none.
//! 4. INV-R4: a plan never names a home outside the target, nor one in the log itself.
//! 5. [`ReplayPlan::problems`] lists what was left out because of damage, with the reason and the place. If
//!    committed changes are lost, `volume` refuses to open the file system for writing.
//!
//! Source: kernel Documentation/filesystems/ext4/journal.rst.
//!
//! ```
//! use std::sync::Arc;
//! use extant_base::{BlockSize, Pblk};
//! use extant_device::{Device, MemDevice};
//! use extant_jbd2_format::{CommitBlock, DescriptorWriter, LogFormat, Superblock, LogTid};
//! use extant_journal::{Log, LogMap, LogRun, Overlay, ReplayTarget, scan};
//!
//! // A target of 4096 blocks, with a log of 1024 blocks from block 100 on ...
//! let block_size = BlockSize::MIN;
//! let device = Arc::new(MemDevice::new(4096 * 1024));
//! let mut sb = Superblock::fresh(block_size, 1024, [7; 16]);
//! sb.start = 1;
//! let format = LogFormat::of(&sb).unwrap();
//! // ... with one transaction in it: block 5 is to hold 0x5A.
//! let mut descriptor = DescriptorWriter::new(format, LogTid(1), sb.uuid);
//! descriptor.push(Pblk(5), false, 0).unwrap();
//! let commit = CommitBlock::new(LogTid(1), 1_700_000_000, 0).encode(format);
//! let blocks = [&sb.encode()[..], &descriptor.finish(), &[0x5A; 1024], &commit];
//! for (at, bytes) in blocks.into_iter().enumerate() {
//!     device.write_at((100 + at as u64) * 1024, bytes).unwrap();
//! }
//!
//! let map = LogMap::internal([LogRun { log: 0, start: Pblk(100), len: 1024 }], 1024, 4096).unwrap();
//! let log = Log::new(device.clone(), map, block_size);
//! let plan = scan(log.view(), &ReplayTarget::new(4096, block_size)).unwrap();
//! // The log may hold a part of transaction 2, which was not committed. So the next one has the number 3.
//! assert_eq!((plan.homes.len(), plan.next_tid), (1, LogTid(3)));
//!
//! let overlay = Overlay::builder(device, block_size).replay(&log, &plan).unwrap().build();
//! let mut byte = [0];
//! overlay.read_at(5 * 1024 + 17, &mut byte).unwrap();
//! assert_eq!(byte, [0x5A]);
//! ```

#![forbid(unsafe_code)]

pub mod engine;
mod entries;
mod fast_commit;
mod fault;
mod log;
mod map;
mod overlay;
mod plan;
mod problem;
mod replay;
mod scan;
mod scratch;
#[cfg(test)]
mod testlog;

pub use engine::{
    Aborted, Batching, Bug, Client, CommitReason, Described, FastCommit, Handle, Journal, OpenLogFault,
    Options, Sabotage, StartFault, Stats, Supersede, TailChecksum, Work,
};
pub use entries::{Entry, each_entry};
pub use fast_commit::{FastCommitCounts, FastCommitPlan};
pub use fault::JournalFault;
pub use log::{Log, LogView};
pub use map::{LogMap, LogRun, MapFault};
pub use overlay::{Overlay, OverlayBuilder};
pub use plan::{CommitTime, EndReason, Home, LogEnd, ReplayPlan, State, Transaction};
pub use problem::Problem;
pub use replay::{ReplayFault, mark_clean, replay};
pub use scan::{Examined, ReplayTarget, examine, read_superblock, scan};
pub use scratch::ScratchOverlay;
