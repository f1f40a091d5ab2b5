//! Writes the log, and keeps its head, its tail, its free space and its superblock.
//!
//! ```text
//! superblock | first ...  tail ====== transactions ======= head ... end) fast-commit area
//!                          ^ start, sequence                ^ next transaction
//! ```
//!
//! The fast-commit area belongs to the running transaction: its fast commits follow each other from the start
//! of the area, and count until the transaction itself is in the log. Then the next one overwrites them.
//!
//! Source: kernel Documentation/filesystems/ext4/journal.rst.

use extant_base::Pblk;
use extant_buffer::Bytes;
use extant_device::{Device as _, SharedParts};
use extant_jbd2_format::fast_commit::{Record, Writer as FastWriter};
use extant_jbd2_format::{
    CommitBlock, DescriptorWriter, Features, LogFormat, LogTid, RevokeWriter, Superblock,
};

use super::checksums::LogChecksums;
use super::images::Image;
use super::{Bug, Failure, Options, Supersede};
use crate::fault::JournalFault;
use crate::log::Log;
use crate::scan::{ReplayTarget, read_superblock};

/// Blocks kept free in addition to a transaction's blocks, as jbd2 does.
const SPARE_BLOCKS: u32 = 32;
/// Bytes that a device writes completely or not at all.
const SECTOR: usize = 512;
/// The error number recorded for an aborted journal: EIO.
const ABORT_ERRNO: i32 = -5;

/// Why a log cannot be opened for writing.
#[derive(Debug, thiserror::Error)]
pub enum OpenLogFault {
    /// The log's superblock is unusable.
    #[error(transparent)]
    Log(#[from] JournalFault),
    /// The log must be replayed first.
    #[error("the journal waits for replay; open the file system for writing, which replays it")]
    NeedsReplay,
    /// The log cannot be written.
    #[error("the journal cannot be written: {0}")]
    Write(String),
}

/// Sets the features of a log that is written from now on, by the kernel's rule: features that the file
/// system needs are added, and checksums that it does not need are removed; 64BIT and REVOKE stay once they
/// are set. The first revoke record adds REVOKE.
///
/// | the file system has | the log gets |
/// |---|---|
/// | `64bit` | 64BIT |
/// | `metadata_csum` | CSUM_V3, instead of older checksums |
/// | no `metadata_csum` | no checksums |
fn announce(sb: &mut Superblock, options: &Options) {
    let old = sb.active_features();
    let kept = old.incompat & (Features::FAST_COMMIT | Features::REVOKE | Features::BIT64);
    sb.features = Features { compat: old.compat & !Features::CHECKSUM, incompat: kept, ..old };
    if options.is_wide {
        add_features(sb, Features::BIT64);
    }
    if options.has_checksums {
        add_features(sb, Features::CSUM_V3);
        sb.checksum_type = Superblock::CRC32C;
    }
    if options.fast_commits && sb.is_clean() {
        add_features(sb, Features::FAST_COMMIT);
        // A log of the smallest size must remain beside the area.
        if sb.check().is_err() {
            sb.features.incompat &= !Features::FAST_COMMIT;
        }
    }
}

/// Adds features. A superblock of version 1 has no features and becomes version 2.
fn add_features(sb: &mut Superblock, incompat: u32) {
    sb.version = extant_jbd2_format::Version::V2;
    sb.features.incompat |= incompat;
}

/// A log, with its head and its tail.
pub(super) struct LogWriter {
    log: Log,
    sb: Superblock,
    format: LogFormat,
    head: u32,
    free: u32,
    tid: LogTid,
    /// The last transaction, while it is in the log.
    last: Option<Logged>,
    /// Fast commits are written.
    is_fast: bool,
    /// Blocks of the fast-commit area that the running transaction uses.
    fast_used: u32,
    barriers: bool,
    flush_before_commit: bool,
    /// A transaction may fill the log.
    has_all: bool,
    /// Deliberate mistakes for the crash lab.
    commit_block_first: bool,
    fast_tail_first: bool,
    fast_after_stale: bool,
    /// Blocks of the write in flight; empty in between.
    parts: SharedParts,
}

/// A fast commit, ready to be written.
pub(super) struct FastBlocks {
    blocks: Vec<u8>,
    count: u32,
    /// Its first block in the log.
    first: u32,
    /// All that counts of it is in its first sector.
    is_one_sector: bool,
}

/// Where a transaction is in the log.
#[derive(Clone, Copy)]
struct Logged {
    start: u32,
    len: u32,
    tid: LogTid,
}

impl LogWriter {
    pub(super) fn open(log: Log, options: &Options) -> Result<Self, OpenLogFault> {
        let mut sb = read_superblock(log.view(), &ReplayTarget::new(0, log.block_size()))?;
        if !sb.is_clean() && options.supersede.is_none() {
            return Err(OpenLogFault::NeedsReplay);
        }
        announce(&mut sb, options);
        sb.sequence = sb.sequence.next();
        let mut head = sb.head;
        if let Some(Supersede { tid, head: behind }) = options.supersede {
            (sb.sequence, head) = (tid, behind);
        }
        let format = LogFormat::of(&sb).map_err(JournalFault::Superblock)?;
        let head = if (sb.first..sb.log_end()).contains(&head) { head } else { sb.first };
        let barriers = !options.no_barriers;
        let mut writer = Self {
            free: sb.log_end() - sb.first,
            tid: sb.sequence,
            last: None,
            is_fast: options.fast_commits && sb.fast_commit_range().is_some(),
            fast_used: 0,
            log,
            sb,
            format,
            head,
            barriers,
            flush_before_commit: barriers && !options.sabotage.has(Bug::SkipBarrier),
            has_all: options.supersede.is_some(),
            commit_block_first: options.sabotage.has(Bug::CommitBlockFirst),
            fast_tail_first: options.sabotage.has(Bug::FastTailFirst),
            fast_after_stale: options.sabotage.has(Bug::FastAfterStale),
            parts: SharedParts::default(),
        };
        writer.write_tail().map_err(|failure| OpenLogFault::Write(failure.to_string()))?;
        Ok(writer)
    }

    /// The maximum number of blocks of a transaction: half of the log, without the blocks that describe them.
    /// The whole log would do, since a commit that finds no room empties the log first; but then every commit
    /// would have to.
    pub(super) fn transaction_max(&self) -> u32 {
        let all = (self.sb.log_end() - self.sb.first).saturating_sub(SPARE_BLOCKS);
        let part = if self.has_all { all } else { all / 2 };
        part.saturating_sub(part / self.format.tags_per_descriptor() as u32 + 2)
    }

    /// Number of blocks of the log, without its superblock.
    pub(super) fn size_blocks(&self) -> u32 {
        self.sb.log_end() - self.sb.first
    }

    /// Number of blocks in use.
    pub(super) fn used_blocks(&self) -> u32 {
        self.size_blocks().saturating_sub(self.free)
    }

    pub(super) fn free_blocks(&self) -> u32 {
        self.free.saturating_sub(SPARE_BLOCKS)
    }

    /// Whether the log has no room for another large transaction.
    pub(super) fn is_nearly_full(&self) -> bool {
        self.free_blocks() < self.blocks_for(self.transaction_max() as usize, 0)
    }

    /// Whether the log would have room for a large transaction if it kept only the last one.
    pub(super) fn has_room_behind_last(&self) -> bool {
        let all = (self.sb.log_end() - self.sb.first).saturating_sub(SPARE_BLOCKS);
        let large = self.blocks_for(self.transaction_max() as usize, 0);
        self.last.is_some_and(|last| all.saturating_sub(last.len) >= large)
    }

    /// Log blocks that a transaction takes.
    pub(super) fn blocks_for(&self, images: usize, revokes: usize) -> u32 {
        let descriptors = images.div_ceil(self.format.tags_per_descriptor());
        let revokes = revokes.div_ceil(self.format.revokes_per_block());
        (images + descriptors + revokes + 1) as u32
    }

    /// How the blocks of the next transaction are logged.
    pub(super) fn checksums(&self) -> LogChecksums {
        LogChecksums { format: self.format, tid: self.tid }
    }

    /// Writes the next transaction and makes it durable. [`make_ready`](super::images::make_ready) prepared
    /// the images; their bytes for the log are moved out. Returns the number of log blocks.
    pub(super) fn write(
        &mut self,
        images: &mut [Image],
        revokes: &[Pblk],
        (seconds, nanos): (u64, u32),
    ) -> Result<u32, Failure> {
        let need = self.blocks_for(images.len(), revokes.len());
        if need > self.free {
            return Err(Failure::LogFull { have: self.free, need });
        }
        let tid = self.tid;
        let logged = Logged { start: self.head, len: need, tid };
        if self.commit_block_first {
            let (head, free) = (self.head, self.free);
            self.advance(need - 1);
            self.write_commit(tid, seconds, nanos)?;
            (self.head, self.free) = (head, free);
        }
        if !revokes.is_empty() && !self.sb.active_features().has_incompat(Features::REVOKE) {
            add_features(&mut self.sb, Features::REVOKE);
            self.write_superblock()?;
        }
        let mut records = revokes.iter().copied().peekable();
        while records.peek().is_some() {
            let mut block = RevokeWriter::new(self.format, tid);
            while let Some(record) = records.next_if(|_| !block.is_full()) {
                block.push(record).map_err(|_| Failure::TooLarge(record))?;
            }
            let block = block.finish();
            self.append(&mut [block.into()])?;
        }
        for piece in images.chunks_mut(self.format.tags_per_descriptor()) {
            let mut descriptor = DescriptorWriter::new(self.format, tid, [0; 16]);
            let mut blocks: Vec<Bytes> = Vec::with_capacity(piece.len() + 1);
            blocks.push(Bytes::default());
            for Image { block, logged, checksum, is_escaped, .. } in piece {
                let pushed = descriptor.push(*block, *is_escaped, *checksum);
                pushed.map_err(|_| Failure::TooLarge(*block))?;
                blocks.push(std::mem::take(logged));
            }
            blocks[0] = descriptor.finish().into();
            self.append(&mut blocks)?;
        }
        if self.flush_before_commit {
            self.log.device().flush()?;
        }
        if !self.commit_block_first {
            self.write_commit(tid, seconds, nanos)?;
        }
        self.advance(1);
        self.tid = tid.next();
        self.last = Some(logged);
        if !self.fast_after_stale {
            self.fast_used = 0;
        }
        Ok(need)
    }

    /// Begins a fast commit of the running transaction. `None` if none can be written.
    pub(super) fn begin_fast(&self) -> Option<FastWriter> {
        if !self.is_fast {
            return None;
        }
        let mut records = FastWriter::new(self.log.block_size());
        if self.fast_used == 0 {
            records.push(&Record::Head { features: 0, tid: self.tid }).ok()?;
        }
        Some(records)
    }

    /// Ends a fast commit. `None` if the area has no room for it.
    pub(super) fn finish_fast(&self, records: FastWriter) -> Option<FastBlocks> {
        let is_one_sector = records.len_bytes() <= SECTOR;
        let blocks = records.finish(self.tid);
        let count = (blocks.len() / self.log.block_size().len()) as u32;
        let area = self.sb.fast_commit_range()?;
        // One block stays unused: a scan by the kernel that does not end before the end of the area reads
        // past the journal, and fails.
        let has_room = area.end.saturating_sub(area.start) > self.fast_used + count;
        has_room.then_some(FastBlocks { blocks, count, first: area.start + self.fast_used, is_one_sector })
    }

    /// Writes a fast commit and makes it durable. `flush` says that its records depend on data that the
    /// device may still have in its cache. Returns the number of blocks.
    pub(super) fn write_fast(&mut self, commit: &FastBlocks, flush: bool) -> Result<u32, Failure> {
        let bs = self.log.block_size().len();
        let FastBlocks { ref blocks, count, first, is_one_sector } = *commit;
        // A scan ends quietly at a later fast commit that is torn, but a torn first one is damage, to the
        // kernel too. So the sector with HEAD makes the first one valid, and all else is durable before.
        let is_first = self.fast_used == 0;
        let last = if is_first { 0 } else { count - 1 };
        let is_one_write = count == 1 && (!is_first || is_one_sector);
        for (at, block) in (0..).zip(blocks.chunks_exact(bs)) {
            let (offset, _) = self.place(first + at)?;
            match at == last {
                false => self.log.device().write_at(offset, block)?,
                true if is_first && !is_one_write => {
                    let mut without_head = block.to_vec();
                    without_head[..SECTOR].fill(0);
                    self.log.device().write_at(offset, &without_head)?;
                }
                true => {}
            }
        }
        if self.flush_before_commit && (flush || !is_one_write) && !self.fast_tail_first {
            self.log.device().flush()?;
        }
        let (offset, _) = self.place(first + last)?;
        let block = &blocks[last as usize * bs..][..bs];
        if self.barriers {
            self.log.device().write_durable_at(offset, block)?;
        } else {
            self.log.device().write_at(offset, block)?;
        }
        self.fast_used += count;
        Ok(count)
    }

    /// Writes the commit block at the head and makes it durable.
    fn write_commit(&self, tid: LogTid, seconds: u64, nanos: u32) -> Result<(), Failure> {
        let commit = CommitBlock::new(tid, seconds, nanos).encode(self.format);
        let (offset, _) = self.place(self.head)?;
        if self.barriers {
            self.log.device().write_durable_at(offset, &commit)?;
        } else {
            self.log.device().write_at(offset, &commit)?;
        }
        Ok(())
    }

    /// Nothing in the log is needed any more: the tail moves to the head. Durable, because log blocks are
    /// reused after this.
    pub(super) fn move_tail_to_head(&mut self) -> Result<(), Failure> {
        self.last = None;
        if self.sb.sequence == self.tid && self.sb.start == self.head {
            return Ok(());
        }
        self.write_tail()
    }

    /// As [`move_tail_to_head`](Self::move_tail_to_head), but the last transaction is still needed.
    pub(super) fn move_tail_to_last(&mut self) -> Result<(), Failure> {
        let Some(Logged { start, len, tid }) = self.last else { return self.move_tail_to_head() };
        if (self.sb.start, self.sb.sequence) == (start, tid) {
            return Ok(());
        }
        (self.sb.start, self.sb.sequence) = (start, tid);
        self.write_superblock()?;
        self.free = self.sb.log_end() - self.sb.first - len;
        Ok(())
    }

    /// Closes the log: nothing is left to replay.
    pub(super) fn mark_clean(&mut self) -> Result<(), Failure> {
        self.sb.head = self.head;
        self.sb.start = 0;
        // The next open continues with this number. As the kernel: a clean log has no area in use.
        self.sb.sequence = self.tid;
        if self.is_fast {
            self.sb.features.incompat &= !Features::FAST_COMMIT;
        }
        self.write_superblock()
    }

    /// Records the abort for the next open of the journal. Best effort: the device may be the cause of the
    /// abort.
    pub(super) fn note_abort(&mut self) {
        self.sb.errno = ABORT_ERRNO;
        let _ = self.write_superblock();
    }

    fn write_tail(&mut self) -> Result<(), Failure> {
        self.sb.start = self.head;
        self.sb.sequence = self.tid;
        self.write_superblock()?;
        self.free = self.sb.log_end() - self.sb.first;
        Ok(())
    }

    fn write_superblock(&mut self) -> Result<(), Failure> {
        self.sb.seal();
        let (offset, _) = self.place(self.log.map().superblock())?;
        let bytes = self.sb.encode();
        if self.barriers {
            self.log.device().write_durable_at(offset, &bytes)?;
        } else {
            self.log.device().write_at(offset, &bytes)?;
        }
        Ok(())
    }

    /// Writes blocks at the head and takes their bytes: as few transfers as the log's map and its end allow.
    fn append(&mut self, blocks: &mut [Bytes]) -> Result<(), Failure> {
        let mut rest = blocks;
        while !rest.is_empty() {
            let (offset, in_a_row) = self.place(self.head)?;
            let to_end = self.sb.log_end() - self.head;
            let len = rest.len().min(in_a_row.min(to_end) as usize);
            let (now, later) = rest.split_at_mut(len);
            self.parts.begin(offset);
            now.iter_mut().for_each(|block| self.parts.push(std::mem::take(block)));
            let written = self.log.device().write_shared_at(&mut self.parts);
            self.parts.clear();
            written?;
            self.advance(len as u32);
            rest = later;
        }
        Ok(())
    }

    fn advance(&mut self, blocks: u32) {
        self.head += blocks;
        self.free -= blocks;
        if self.head >= self.sb.log_end() {
            self.head = self.sb.first + (self.head - self.sb.log_end());
        }
    }

    fn place(&self, log_block: u32) -> Result<(u64, u32), Failure> {
        self.log
            .view()
            .offset_of(log_block)
            .ok_or(Failure::LogFull { have: log_block, need: self.sb.log_end() })
    }
}
