//! The journal's replay as an overlay: the state after a mount, without a write to the device.
//!
//! ```text
//! scan     descriptor, revoke and commit blocks in order, until a block does not continue the log
//! filter   each logged block: revoked later? inside the file system? checksum valid?
//! overlay  home block -> its newest copy in the log; read() puts these over the device's bytes
//! ```
//!
//! The log is in the file system or on a device of its own.
//!
//! Owns: its own reader of the log; of the engine's recovery it shares only the layouts in `jbd2-format`.
//! Does **not** own: fast commits, which are only detected; the rules about a journal at rest (see
//! [`crate::journal`]).
//!
//! Invariants
//! 1. Memory is a few words per logged block; the data stays in the log until it is read.
//! 2. The scan reads each block of the log at most once.
//!
//! Source: kernel Documentation/filesystems/ext4/journal.rst.

pub(crate) mod locate;

use std::collections::{BTreeMap, HashMap, HashSet};

use extant_base::{BlockSize, Ino, Pblk};
use extant_device::{Device, DeviceFault};
use extant_jbd2_format::{
    BlockType, Checksums, CommitBlock, CommitVerdict, Features as LogFeatures, Header, LogFormat, LogTid,
    Superblock as LogSuper, Tag, crc32_be, fast_commit, revokes, tags, unescape,
};
use extant_ondisk::{Features, Geometry, Superblock};

use crate::rules::journal as rules;
use crate::{FindingPlace, Findings};
use locate::Journal;

/// The blocks that the replay changes.
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
    /// The block of the log device that holds the copy.
    at: Pblk,
    /// The home block begins with the journal's magic; the log has zeros there.
    escaped: bool,
}

impl Replay<'_> {
    /// The home blocks that the replay changes, ascending.
    pub(crate) fn homes(&self) -> impl Iterator<Item = u64> + '_ {
        self.copies.iter().map(|copy| copy.home)
    }

    /// Fills `buf` from byte `offset` on, in the state after the replay.
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

/// Scans the journal; `None` if there is nothing to replay.
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
    // The device's size, not the file system's: the logged superblock may be of a grown file system.
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
        findings.broken(&rules::EXTERNAL, FindingPlace::default(), says);
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

fn journal_place(sb: &Superblock) -> FindingPlace {
    if sb.journal_inum == 0 { FindingPlace::default() } else { FindingPlace::ino(Ino(sb.journal_inum)) }
}

/// A log that needs replay.
struct Log<'d> {
    device: &'d dyn Device,
    journal: Journal,
    format: LogFormat,
    sequence: LogTid,
    start: u32,
    first: u32,
    end: u32,
    async_commit: bool,
    fast_commits: Option<std::ops::Range<u32>>,
}

/// The content of the log, transaction by transaction.
#[derive(Default)]
struct Found {
    /// In log order, with the log block of each copy.
    tags: Vec<(LogTid, u32, Tag)>,
    /// Per home block with copies: the newest transaction that revokes it.
    revoked: HashMap<u64, LogTid>,
    /// The first transaction that is not committed.
    end: LogTid,
    /// Damage: block of the log, and the finding's text.
    damage: Vec<(u32, String)>,
}

impl<'d> Log<'d> {
    /// Opens the log whose journal superblock is block `at` of the journal. `None` if the log is empty.
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

    /// Builds the overlay for the first `blocks` blocks of the file system's device.
    fn replay(
        &self,
        sb: &Superblock,
        geometry: &Geometry,
        blocks: u64,
        findings: &Findings,
    ) -> Option<Replay<'static>> {
        let found = self.scan();
        let place = |lblk: u32| {
            let place = journal_place(sb).at_lblk(extant_base::Lblk(lblk));
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
        // Tags and revoke blocks of the transaction being read.
        let (mut open_tags, mut open_revokes) = (Vec::new(), Vec::new());
        let mut committed_revokes = Vec::new();
        let mut suspect = None; // the first block with a wrong checksum
        let mut crc = !0;
        let mut last_time = (0, 0);
        // With asynchronous commits, a bad last commit is normal: its transaction did not reach the disk.
        let mut failed: Option<(u32, LogTid)> = None;
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
                    // Revoke records are numerous; they are read again once the blocks with copies are known.
                    Ok(_) if self.format.verify_tail(&block) => open_revokes.push((tid, here)),
                    _ => suspect = Some(here),
                },
                BlockType::Commit => {
                    let Ok(commit) = CommitBlock::decode(&block) else { break };
                    let time = (commit.seconds, commit.nanoseconds);
                    if let Some(bad) = suspect {
                        // Older than the last commit read: left over from an earlier pass over the circular
                        // log.
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

    /// Applies revoke blocks to the home blocks that have copies.
    fn revoke(&self, found: &mut Found, revoke_blocks: &[(LogTid, u32)]) {
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

    fn notice_fast_commits(&self, tid: LogTid, sb: &Superblock, findings: &Findings) {
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
