//! The journal's replay, laid over the device: what a mount would see, without a byte written.
//!
//! ```text
//! scan     descriptor, revoke and commit blocks in order, until a block that belongs to no further transaction
//! judge    of each logged block: revoked later? inside the file system? its checksum?
//! overlay  home block -> its newest copy in the log; read() lays these over what the device gives
//! ```
//!
//! The log lies inside the file system, or on a device of its own.
//!
//! Owns its own reading of the log: it shares nothing with the engine's recovery but the layouts of `jbd2-format`. Does
//! **not** own: fast commits, which are only noticed; the rules of a journal at rest (see [`crate::journal`]).
//!
//! Invariants
//! 1. Memory is a few words per logged block; blocks stay in the log until they are read.
//! 2. The scan takes each block of the log at most once.
//!
//! Source: spec 06 sections 5, 7 and 8.

pub(crate) mod locate;

use std::collections::{BTreeMap, HashMap, HashSet};

use base::{BlockSize, Ino, Pblk};
use device::{Device, DeviceFault};
use jbd2_format::{
    BlockType, Checksums, CommitBlock, CommitVerdict, Features as LogFeatures, Header, LogFormat,
    Superblock as LogSuper, Tag, Tid, crc32_be, fast_commit, revokes, tags, unescape,
};
use ondisk::{Features, Geometry, Superblock};

use crate::rules::journal as rules;
use crate::{Findings, Place};
use locate::Journal;

/// What the journal will change.
pub(crate) struct Replay<'d> {
    block_size: BlockSize,
    /// The device of an external journal.
    log: Option<&'d dyn Device>,
    /// By home block, sorted.
    copies: Vec<Copy>,
}

/// The newest copy of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Copy {
    home: u64,
    /// Where on its device the log holds it.
    at: Pblk,
    /// Its first word is the journal's magic, and zero in the log.
    escaped: bool,
}

impl Replay<'_> {
    /// Fills `buf` from byte `offset` on, as it is after the replay.
    pub(crate) fn read(&self, device: &dyn Device, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        device.read_at(offset, buf)?;
        let log2 = self.block_size.log2();
        let end = offset + buf.len() as u64; // the device has read so far
        let first = self.copies.partition_point(|copy| copy.home < offset >> log2);
        let mut block = Vec::new();
        for copy in self.copies[first..].iter().take_while(|copy| copy.home << log2 < end) {
            block.resize(self.block_size.len(), 0);
            self.log.unwrap_or(device).read_at(copy.at.0 << log2, &mut block)?;
            if copy.escaped {
                unescape(&mut block);
            }
            let start = copy.home << log2;
            let (from, to) = (start.max(offset), start.saturating_add(block.len() as u64).min(end));
            buf[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&block[(from - start) as usize..(to - start) as usize]);
        }
        Ok(())
    }
}

/// Scans the journal; `None` when there is nothing to replay.
pub(crate) fn scan<'d>(
    device: &dyn Device,
    journal: Option<&'d dyn Device>,
    sb: &Superblock,
    geometry: &Geometry,
    findings: &Findings,
) -> Option<Replay<'d>> {
    if !sb.features.has_incompat(Features::RECOVER) || !sb.features.has_compat(Features::HAS_JOURNAL) {
        return None;
    }
    let unreadable = |says: String| findings.broken(&rules::LOG_UNREADABLE, journal_place(sb), says);
    let pending = |log: &Log<'_>| {
        let says = format!("the log begins with transaction {}", log.sequence);
        findings.broken(&rules::PENDING, journal_place(sb), says);
    };
    // Of the device, not of the file system: the log may have a superblock that tells of more.
    let blocks = device.size_bytes() >> geometry.block_size.log2();
    if let (true, Some(device)) = (locate::is_external(sb), journal) {
        let (at, journal) = locate::external(device, sb, geometry).map_err(unreadable).ok()?;
        let log = Log::open(device, journal, at, geometry).map_err(unreadable).ok()??;
        pending(&log);
        return log
            .replay(sb, geometry, blocks, findings)
            .map(|replay| Replay { log: Some(device), ..replay });
    }
    if locate::is_external(sb) {
        let says = "the journal on another device waits to be replayed, and was not looked at";
        findings.broken(&rules::EXTERNAL, Place::default(), says);
        return None;
    }
    let read = |offset: u64, buf: &mut [u8]| device.read_at(offset, buf);
    let journal = locate::from_inode(&read, sb, geometry)
        .or_else(|says| locate::from_backup(&read, sb, geometry).map_err(|_| says))
        .map_err(unreadable)
        .ok()?;
    let log = Log::open(device, journal, 0, geometry).map_err(unreadable).ok()??;
    pending(&log);
    log.replay(sb, geometry, blocks, findings)
}

fn journal_place(sb: &Superblock) -> Place {
    if sb.journal_inum == 0 { Place::default() } else { Place::ino(Ino(sb.journal_inum)) }
}

/// A log to be replayed.
struct Log<'d> {
    device: &'d dyn Device,
    journal: Journal,
    format: LogFormat,
    sequence: Tid,
    start: u32,
    first: u32,
    end: u32,
    async_commit: bool,
    fast_commits: Option<std::ops::Range<u32>>,
}

/// What the log says, transaction by transaction.
#[derive(Default)]
struct Found {
    /// In order; the block of the log that holds each.
    tags: Vec<(Tid, u32, Tag)>,
    /// Of blocks that have copies: the youngest transaction that revokes one.
    revoked: HashMap<u64, Tid>,
    /// The first transaction that is not committed.
    end: Tid,
    /// What is wrong: block of the log, in words.
    damage: Vec<(u32, String)>,
}

impl<'d> Log<'d> {
    /// The log whose journal superblock is in the journal's block `at`. `None`: the log is empty.
    fn open(
        device: &'d dyn Device,
        journal: Journal,
        at: u32,
        geometry: &Geometry,
    ) -> Result<Option<Self>, String> {
        let mut block = vec![0; geometry.block_size.len()];
        let first = journal.find(at).ok_or("the journal has no blocks")?;
        read_block(device, geometry.block_size, first, &mut block).map_err(|fault| fault.to_string())?;
        let jsb = LogSuper::decode(&block).map_err(|fault| fault.to_string())?;
        if jsb.start == 0 {
            return Ok(None);
        }
        let features = jsb.active_features();
        if !features.unsupported().is_empty() {
            return Err(format!("the journal has unknown features: {}", features.unsupported()));
        }
        if !jsb.verify() {
            return Err(format!("the checksum {:#010x} of its superblock does not match", jsb.checksum));
        }
        let format = LogFormat::of(&jsb).map_err(|fault| fault.to_string())?;
        if format.block_size != geometry.block_size {
            return Err(format!("its blocks have {} bytes", format.block_size));
        }
        if jsb.total_blocks > journal.blocks {
            return Err(format!("it counts {} blocks and has {}", jsb.total_blocks, journal.blocks));
        }
        Ok(Some(Self {
            device,
            journal,
            format,
            sequence: jsb.sequence,
            start: jsb.start,
            first: jsb.first,
            end: jsb.log_end(),
            async_commit: features.has_incompat(LogFeatures::ASYNC_COMMIT),
            fast_commits: jsb.fast_commit_range(),
        }))
    }

    /// What it holds for the first `blocks` blocks of the file system's device.
    fn replay(
        &self,
        sb: &Superblock,
        geometry: &Geometry,
        blocks: u64,
        findings: &Findings,
    ) -> Option<Replay<'static>> {
        let found = self.scan();
        let place = |lblk: u32| {
            let place = journal_place(sb).at_lblk(base::Lblk(lblk));
            if locate::is_external(sb) {
                return place; // blocks of the image are meant elsewhere
            }
            self.journal.find(lblk).map_or(place.clone(), |pblk| place.in_block(pblk))
        };
        for (lblk, says) in &found.damage {
            findings.broken(&rules::LOG_DAMAGED, place(*lblk), says.clone());
        }
        let mut copies = BTreeMap::new();
        let mut block = vec![0; geometry.block_size.len()];
        for (tid, lblk, tag) in &found.tags {
            let home = tag.block.0;
            if found.revoked.get(&home).is_some_and(|revoked| !tid.is_after(*revoked)) {
                continue;
            }
            if home >= blocks || self.journal.holds(tag.block) {
                let says = format!(
                    "transaction {tid} holds a copy of block {home}, which is not the log's to change"
                );
                findings.broken(&rules::LOG_TARGET, place(*lblk), says);
                continue;
            }
            let Some(at) = self.journal.find(*lblk) else { continue };
            let sound = read_block(self.device, geometry.block_size, at, &mut block).is_ok()
                && self.format.verify_tag(*tid, tag, &block);
            if !sound {
                let says = format!(
                    "transaction {tid}'s copy of block {home} does not match its checksum, and was left out"
                );
                findings.broken(&rules::LOG_DAMAGED, place(*lblk), says);
                continue;
            }
            copies.insert(home, Copy { home, at, escaped: tag.escaped });
        }
        self.notice_fast_commits(found.end, sb, findings);
        Some(Replay { block_size: geometry.block_size, log: None, copies: copies.into_values().collect() })
    }

    fn next(&self, at: u32) -> u32 {
        if at + 1 >= self.end { self.first } else { at + 1 }
    }

    fn read(&self, at: u32, block: &mut [u8]) -> Option<()> {
        read_block(self.device, self.format.block_size, self.journal.find(at)?, block).ok()
    }

    fn scan(&self) -> Found {
        let mut found = Found { end: self.sequence, ..Found::default() };
        let mut block = vec![0; self.format.block_size.len()];
        let mut logged = block.clone();
        let (mut at, mut tid) = (self.start, self.sequence);
        let mut left = self.end - self.first;
        // Of the transaction that is being read.
        let (mut open_tags, mut open_revokes) = (Vec::new(), Vec::new());
        let mut committed_revokes = Vec::new();
        let mut suspect = None; // a block whose checksum is wrong
        let mut crc = !0;
        let mut last_time = (0, 0);
        // With asynchronous commits, a bad one at the very end is normal: its transaction did not reach the disk.
        let mut failed: Option<(u32, Tid)> = None;
        loop {
            if left == 0 {
                found.damage.push((self.start, "all of the log is in use: it has no end".to_owned()));
                break;
            }
            if self.read(at, &mut block).is_none() {
                found.damage.push((at, "the log cannot be read here".to_owned()));
                break;
            }
            let Ok(header) = Header::decode(&block) else { break };
            if header.tid != tid {
                break;
            }
            let here = at;
            at = self.next(at);
            left -= 1;
            match header.kind {
                BlockType::Descriptor => {
                    if !self.format.verify_tail(&block) {
                        suspect = Some(here);
                    }
                    crc = if self.format.checksums == Checksums::V1 { crc32_be(crc, &block) } else { crc };
                    for tag in tags(self.format, &block) {
                        if left == 0 {
                            break;
                        }
                        if self.format.checksums == Checksums::V1 && self.read(at, &mut logged).is_some() {
                            crc = crc32_be(crc, &logged);
                        }
                        open_tags.push((tid, at, tag));
                        at = self.next(at);
                        left -= 1;
                    }
                }
                BlockType::Revoke => match revokes(self.format, &block) {
                    // Its records are read again once it is known of which blocks there are copies: they are many.
                    Ok(_) if self.format.verify_tail(&block) => open_revokes.push((tid, here)),
                    _ => suspect = Some(here),
                },
                BlockType::Commit => {
                    let Ok(commit) = CommitBlock::decode(&block) else { break };
                    let time = (commit.seconds, commit.nanoseconds);
                    if let Some(bad) = suspect {
                        // Older than what was read last: the remains of an earlier round of the log.
                        if time >= last_time {
                            let says = format!(
                                "transaction {tid} is committed, this block of it does not match its checksum"
                            );
                            found.damage.push((bad, says));
                        }
                        break;
                    }
                    let sound = match CommitBlock::verify(self.format, &block) {
                        CommitVerdict::Match | CommitVerdict::MatchHeaderOnly => true,
                        CommitVerdict::Unchecked => {
                            self.format.checksums != Checksums::V1 || commit.matches_v1(crc)
                        }
                        CommitVerdict::Mismatch => false,
                    };
                    if let Some((block, failed)) = failed {
                        if sound {
                            let says = format!(
                                "the commit of transaction {failed} does not match its checksum, a later one does"
                            );
                            found.damage.push((block, says));
                        }
                        break;
                    }
                    if !sound {
                        if time < last_time {
                            break;
                        }
                        failed = Some((here, tid));
                        if !self.async_commit {
                            let says = format!("the commit of transaction {tid} does not match its checksum");
                            found.damage.push((here, says));
                            break;
                        }
                    } else {
                        found.tags.append(&mut open_tags);
                        committed_revokes.append(&mut open_revokes);
                        found.end = tid.next();
                    }
                    open_tags.clear();
                    open_revokes.clear();
                    crc = !0;
                    last_time = time;
                    tid = tid.next();
                }
                BlockType::SuperblockV1 | BlockType::SuperblockV2 => break,
            }
        }
        self.revoke(&mut found, &committed_revokes);
        found
    }

    /// Notes what revoke blocks say of those that have copies.
    fn revoke(&self, found: &mut Found, revoke_blocks: &[(Tid, u32)]) {
        let homes: HashSet<u64> = match revoke_blocks.is_empty() {
            true => HashSet::new(),
            false => found.tags.iter().map(|(_, _, tag)| tag.block.0).collect(),
        };
        let mut block = vec![0; self.format.block_size.len()];
        for (tid, at) in revoke_blocks {
            let Some(()) = self.read(*at, &mut block) else { continue };
            let Ok(records) = revokes(self.format, &block) else { continue };
            for home in records.map(|block| block.0).filter(|home| homes.contains(home)) {
                let youngest = found.revoked.entry(home).or_insert(*tid);
                if tid.is_after(*youngest) {
                    *youngest = *tid;
                }
            }
        }
    }

    fn notice_fast_commits(&self, tid: Tid, sb: &Superblock, findings: &Findings) {
        let Some(range) = self.fast_commits.clone() else { return };
        let mut scan = fast_commit::Scan::new(tid);
        let mut block = vec![0; self.format.block_size.len()];
        for lblk in range {
            if self.read(lblk, &mut block).is_none() {
                break;
            }
            match scan.feed(&block) {
                Ok(fast_commit::Flow::Continue) => {}
                Ok(_) => break,
                Err(fact) => {
                    findings.broken(&rules::LOG_DAMAGED, journal_place(sb), fact.to_string());
                    break;
                }
            }
        }
        if scan.valid_records() > 0 {
            let says = format!("{} records on top of transaction {tid} wait", scan.valid_records());
            findings.broken(&rules::FAST_COMMITS, journal_place(sb), says);
        }
    }
}

fn read_block(
    device: &dyn Device,
    block_size: BlockSize,
    at: Pblk,
    block: &mut [u8],
) -> Result<(), DeviceFault> {
    device.read_at(block_size.offset_of(at).unwrap_or(u64::MAX), block)
}

#[cfg(test)]
mod tests;
