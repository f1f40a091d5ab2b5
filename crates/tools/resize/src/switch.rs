//! Makes a set of changed blocks and a new superblock take effect.
//!
//! ```text
//! with a journal     RECOVER into the superblock | log: descriptors, blocks, commit | flush
//!                    | log's superblock: start        <- the commit point
//!                    | blocks home | flush | log's superblock: clean
//! without one        CLEAN out of the superblock | flush | early blocks | flush
//!                    | superblock                     <- the new size
//!                    | late blocks | flush | CLEAN into the superblock
//! ```
//!
//! Owns: the order of these writes. Does **not** own: what changes.
//!
//! Invariants
//! 1. With a journal, a power cut at any write leaves the old state or the new one, after the journal's
//!    replay. The journal is empty before and after a switch, so it needs no revoke records.
//! 2. Without a journal, no block that the old or the new superblock counts as free is in use. A cut may
//!    leave free blocks marked as used and wrong counts; the superblock is then marked as not clean.
//! 3. After a switch that failed in the middle, the marks stay: the log may have a committed transaction.
//! 4. Before and after, the superblock differs from the caller's in RECOVER and CLEAN only, which are in its
//!    first sector.
//!
//! Source: kernel Documentation/filesystems/ext4/journal.rst.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use extant_base::{BlockSize, Pblk};
use extant_device::{Device, DeviceFault};
use extant_jbd2_format::{CommitBlock, DescriptorWriter, LogFormat, escape, needs_escape};
use extant_journal::{JournalFault, Log, ReplayTarget, mark_clean, read_superblock, replay, scan};
use extant_ondisk::superblock::{self, STATE_CLEAN, Superblock};
use extant_ondisk::{Features, Geometry};

use crate::fault::ResizeFault;
use crate::plan::PlanFault;

/// Log blocks that stay free.
const SPARE_BLOCKS: usize = 8;

/// Changed blocks by number.
pub(crate) type Blocks = BTreeMap<u64, Vec<u8>>;

/// The blocks of one switch. Without a journal the order matters: see the module.
#[derive(Debug, Default)]
pub(crate) struct Change {
    /// Blocks whose new content does no harm with the old superblock.
    pub(crate) early: Blocks,
    /// Blocks whose new content is right only with the new superblock.
    pub(crate) late: Blocks,
}

/// Writes switches to one file system.
pub(crate) struct Switcher {
    device: Arc<dyn Device>,
    log: Option<(Log, ReplayTarget)>,
    block_size: BlockSize,
    /// The time of commits, instead of the clock's.
    fixed_time: Option<u64>,
    /// A switch has begun and has not succeeded. All switchers of a file system share this.
    is_torn: Rc<Cell<bool>>,
}

impl Switcher {
    /// The file system must be clean; `log` is its log, which opening for writing has given its features.
    pub(crate) fn new(
        device: Arc<dyn Device>,
        sb: &Superblock,
        geometry: &Geometry,
        (log, fixed_time): (Option<Log>, Option<u64>),
        is_torn: Rc<Cell<bool>>,
    ) -> Self {
        let block_size = geometry.block_size;
        let log = log.map(|log| {
            let target = ReplayTarget {
                fs_blocks: device.size_bytes() >> block_size.log2(),
                block_size,
                journal_uuid: log.map().is_external().then_some(sb.journal_uuid),
            };
            (log, target)
        });
        Self { device, log, block_size, fixed_time, is_torn }
    }

    /// The largest number of blocks of a switch, with the superblock's block.
    pub(crate) fn room(&self) -> Result<usize, ResizeFault> {
        let Some((log, target)) = &self.log else { return Ok(usize::MAX) };
        let sb = read_superblock(log.view(), target)?;
        let format = LogFormat::of(&sb).map_err(JournalFault::Superblock)?;
        let all = (sb.log_end().saturating_sub(sb.first) as usize).saturating_sub(SPARE_BLOCKS);
        let tags = format.tags_per_descriptor().max(1);
        Ok(all.saturating_sub(all.div_ceil(tags + 1) + 1))
    }

    /// Whether a switch is one transaction.
    pub(crate) fn has_log(&self) -> bool {
        self.log.is_some()
    }

    /// Marks the file system as being changed.
    pub(crate) fn begin(&self, sb: &Superblock) -> Result<(), ResizeFault> {
        let mut sb = sb.clone();
        self.mark(&mut sb);
        self.write_superblock(&sb)
    }

    /// Marks the file system as not being changed any more. Does nothing after a switch that failed in the
    /// middle: with the marks, the next open replays the rest, or asks for a check.
    pub(crate) fn end(&self, sb: &Superblock) -> Result<(), ResizeFault> {
        match self.is_torn.get() {
            true => Ok(()),
            false => self.write_superblock(sb),
        }
    }

    fn mark(&self, sb: &mut Superblock) {
        match self.log {
            Some(_) => sb.features.incompat |= Features::RECOVER,
            None => sb.state &= !STATE_CLEAN,
        }
    }

    fn write_superblock(&self, sb: &Superblock) -> Result<(), ResizeFault> {
        Ok(self.device.write_durable_at(superblock::OFFSET, &sb.sealed())?)
    }

    /// Makes the change and the superblock take effect. All blocks that they refer to are written, and become
    /// durable first.
    pub(crate) fn switch(&self, change: Change, sb: &Superblock) -> Result<(), ResizeFault> {
        self.switch_with_last(change, sb, None)
    }

    /// As [`switch`](Self::switch), for a change that moves the log itself: the block `last` has the
    /// journal's inode, whose new map leads to a clean copy of the log. It goes home when all others are
    /// there, because after that no replay finds the old log. The log's place is then another.
    pub(crate) fn switch_with_last(
        &self,
        change: Change,
        sb: &Superblock,
        last: Option<u64>,
    ) -> Result<(), ResizeFault> {
        let mut sb = sb.clone();
        self.mark(&mut sb);
        self.device.flush()?;
        self.is_torn.set(true);
        self.write(change, &sb, last)?;
        self.is_torn.set(false);
        Ok(())
    }

    fn write(&self, change: Change, sb: &Superblock, last: Option<u64>) -> Result<(), ResizeFault> {
        match &self.log {
            Some((log, target)) => {
                let mut blocks = change.early;
                blocks.extend(change.late);
                let (number, bytes) = self.superblock_block(sb)?;
                blocks.insert(number, bytes);
                self.through_log(log, target, &blocks, last)
            }
            None => {
                self.write_home(&change.early)?;
                self.device.flush()?;
                self.write_superblock(sb)?;
                self.write_home(&change.late)?;
                Ok(self.device.flush()?)
            }
        }
    }

    /// The block that contains the superblock, with `sb` in it.
    fn superblock_block(&self, sb: &Superblock) -> Result<(u64, Vec<u8>), ResizeFault> {
        let bs = self.block_size;
        let number = superblock::OFFSET >> bs.log2();
        let at = (superblock::OFFSET - (number << bs.log2())) as usize;
        let mut bytes = vec![0; bs.len()];
        self.device.read_at(number << bs.log2(), &mut bytes)?;
        bytes[at..at + superblock::SIZE].copy_from_slice(&sb.sealed());
        Ok((number, bytes))
    }

    fn write_home(&self, blocks: &Blocks) -> Result<(), DeviceFault> {
        for (number, bytes) in blocks {
            self.device.write_at(number << self.block_size.log2(), bytes)?;
        }
        Ok(())
    }

    fn through_log(
        &self,
        log: &Log,
        target: &ReplayTarget,
        blocks: &Blocks,
        last: Option<u64>,
    ) -> Result<(), ResizeFault> {
        let mut log_sb = read_superblock(log.view(), target)?;
        if !log_sb.is_clean() {
            return Err(ResizeFault::Damaged("the journal is not empty".to_owned()));
        }
        let format = LogFormat::of(&log_sb).map_err(JournalFault::Superblock)?;
        let tid = log_sb.sequence.next();
        let mut logged: Vec<Vec<u8>> = Vec::new();
        let mut numbers = blocks.iter().peekable();
        while numbers.peek().is_some() {
            let mut descriptor = DescriptorWriter::new(format, tid, log_sb.uuid);
            let mut copies = Vec::new();
            while let Some((number, bytes)) = numbers.peek().filter(|_| !descriptor.is_full()) {
                let mut copy = (*bytes).clone();
                let escaped = needs_escape(&copy);
                if escaped {
                    escape(&mut copy);
                }
                let pushed = descriptor.push(Pblk(**number), escaped, format.tag_checksum(tid, &copy));
                pushed.map_err(|fault| ResizeFault::Damaged(format!("the journal: {fault}")))?;
                copies.push(copy);
                numbers.next();
            }
            logged.push(descriptor.finish());
            logged.append(&mut copies);
        }
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let (seconds, nanos) = match self.fixed_time {
            Some(seconds) => (seconds, 0),
            None => (now.as_secs(), now.subsec_nanos()),
        };
        logged.push(CommitBlock::new(tid, seconds, nanos).encode(format));
        if logged.len() as u64 > u64::from(log_sb.log_end().saturating_sub(log_sb.first)) {
            // Nothing is written yet.
            self.is_torn.set(false);
            let room = self.room()?;
            return Err(PlanFault::JournalTooSmall { needed: blocks.len(), room }.into());
        }
        for (at, bytes) in (log_sb.first..).zip(&logged) {
            let (offset, _) = log.view().offset_of(at).ok_or(JournalFault::OutsideLog { block: at })?;
            log.device().write_at(offset, bytes)?;
        }
        log.device().flush()?;
        log_sb.start = log_sb.first;
        log_sb.sequence = tid;
        log_sb.seal();
        let place = log.map().superblock();
        let (offset, _) = log.view().offset_of(place).ok_or(JournalFault::OutsideLog { block: place })?;
        // The commit point: the log is valid from here on.
        log.device().write_durable_at(offset, &log_sb.encode())?;
        // The copies come out of the log, as after a power cut.
        let mut plan = scan(log.view(), target)?;
        if plan.homes.len() != blocks.len() || !plan.is_sound() {
            return Err(ResizeFault::Damaged(
                "the journal returns other blocks than were written".to_owned(),
            ));
        }
        plan.homes.retain(|home| Some(home.block.0) != last);
        replay(log, &plan, &*self.device)?;
        if let Some((last, bytes)) = last.and_then(|last| Some((last, blocks.get(&last)?))) {
            self.device.write_durable_at(last << self.block_size.log2(), bytes)?;
        }
        // If the log's superblock has moved, this is its old place, which nothing uses yet.
        Ok(mark_clean(log, &plan)?)
    }
}
