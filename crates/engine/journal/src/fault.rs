//! Why a log cannot be replayed at all.

use extant_base::{BlockSize, Malformed};
use extant_device::DeviceFault;
use extant_jbd2_format::{Features, LogTid};

/// A log that cannot be read or cannot be trusted. A defect that a replay can skip is a
/// [`Problem`](crate::Problem) instead.
#[derive(Debug, thiserror::Error)]
pub enum JournalFault {
    /// The device failed to read a block.
    #[error("journal: log block {block}: {source}")]
    Device {
        /// The log block.
        block: u32,
        /// The device's error.
        source: DeviceFault,
    },
    /// The log has no such block.
    #[error("journal: the log has no block {block}")]
    OutsideLog {
        /// The log block.
        block: u32,
    },
    /// The log's superblock breaks a rule.
    #[error("journal: {0}; `e2fsck -f` can make a new journal, without what waits in this one")]
    Superblock(Malformed),
    /// The log's superblock does not match its checksum.
    #[error(
        "journal superblock: checksum WRONG (stored {stored:#010x}, computed {computed:#010x}); `e2fsck -f` can \
         make a new journal, without what waits in this one"
    )]
    SuperblockChecksum {
        /// The stored checksum.
        stored: u32,
        /// The computed checksum.
        computed: u32,
    },
    /// The log uses unsupported features.
    #[error("journal: has unsupported features: {0}")]
    Unsupported(Features),
    /// The log's block size differs from the target's.
    #[error("journal: its blocks have {journal} bytes, those of the file system {target}")]
    BlockSize {
        /// Bytes, from the log's superblock.
        journal: u32,
        /// The target's block size.
        target: BlockSize,
    },
    /// The log's superblock claims more blocks than the map has.
    #[error("journal: says it has {claimed} blocks, but there are {mapped}")]
    TooShort {
        /// From the log's superblock.
        claimed: u32,
        /// Blocks of the map.
        mapped: u32,
    },
    /// An external log belongs to another file system.
    #[error(
        "journal: this device is the journal of another file system (its UUID is {}, wanted is {})",
        hex(found),
        hex(wanted)
    )]
    WrongJournal {
        /// The UUID in the log's superblock.
        found: [u8; 16],
        /// The UUID that the target expects.
        wanted: [u8; 16],
    },
    /// An external log is shared, or has no user.
    #[error("journal: the journal device has {users} users; exactly one is supported")]
    Shared {
        /// The number in the log's superblock.
        users: u32,
    },
    /// A descriptor or revoke block in a committed transaction does not match its checksum, and it is not
    /// stale data from an older pass over the log. Nothing can be replayed; jbd2 refuses as well.
    #[error(
        "journal: log block {block}: checksum WRONG, in transaction {tid}, which was committed; copy the image, then \
         run `e2fsck -f`, which discards the pending transactions of the journal"
    )]
    Corrupt {
        /// The transaction.
        tid: LogTid,
        /// The first such log block in it.
        block: u32,
    },
    /// A revoke block of a committed transaction breaks a rule: which blocks must not be replayed is unknown.
    #[error("journal: log block {block}, in transaction {tid}: {fault}")]
    Revoke {
        /// The transaction.
        tid: LogTid,
        /// The log block.
        block: u32,
        /// The broken rule.
        fault: Malformed,
    },
}

fn hex(bytes: &[u8; 16]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
