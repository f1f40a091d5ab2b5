//! A small target with a log, for tests: 16,384 blocks of 1 KiB. The log has two pieces, the later one first.
//!
//! ```text
//! block 0    5000: log 600..1100+fc    9000: log 0..600    each target block is filled with its number
//! ```

use std::sync::Arc;

use extant_base::{BlockSize, Pblk};
use extant_device::{Device, MemDevice};
use extant_jbd2_format::{
    Checksums, CommitBlock, DescriptorWriter, Features, LogFormat, LogTid, RevokeWriter, Superblock, Version,
    crc32_be, escape, needs_escape,
};

use crate::{JournalFault, Log, LogMap, LogRun, Overlay, ReplayPlan, ReplayTarget, scan};

pub(crate) const BLOCK: usize = 1024;
pub(crate) const FS_BLOCKS: u64 = 16_384;
pub(crate) const LOG_BLOCKS: u32 = 1100;
pub(crate) const LATER: u64 = 5000;
pub(crate) const EARLIER: u64 = 9000;

/// The contents of a target block before the replay.
pub(crate) fn old(block: u64) -> Vec<u8> {
    (block as u32).to_le_bytes().repeat(BLOCK / 4)
}

/// Contents that are easy to recognize.
pub(crate) fn filled(byte: u8) -> Vec<u8> {
    vec![byte; BLOCK]
}

/// A log that is being written, and its target.
pub(crate) struct TestLog {
    pub(crate) device: Arc<MemDevice>,
    pub(crate) sb: Superblock,
    pub(crate) format: LogFormat,
    /// The next log block.
    pub(crate) at: u32,
    pub(crate) tid: LogTid,
    pub(crate) seconds: u64,
    /// Version 1 checksum of the transaction so far.
    crc: u32,
}

impl TestLog {
    /// An empty log with these checksums; `wide`: with 64-bit block numbers.
    pub(crate) fn new(checksums: Checksums, wide: bool) -> Self {
        let mut sb = Superblock::fresh(BlockSize::MIN, LOG_BLOCKS, [0xA5; 16]);
        sb.features.incompat = Features::REVOKE;
        match checksums {
            Checksums::None => {}
            Checksums::V1 => sb.features.compat = Features::CHECKSUM,
            Checksums::V2 => sb.features.incompat |= Features::CSUM_V2,
            Checksums::V3 => sb.features.incompat |= Features::CSUM_V3,
        }
        if matches!(checksums, Checksums::V2 | Checksums::V3) {
            sb.checksum_type = Superblock::CRC32C;
        }
        if wide {
            sb.features.incompat |= Features::BIT64;
        }
        Self::with(sb)
    }

    /// An empty log with this superblock, which sets its start and its first transaction ID.
    pub(crate) fn with(mut sb: Superblock) -> Self {
        if sb.start == 0 {
            sb.start = 1;
        }
        sb.seal();
        let device = Arc::new(MemDevice::new(FS_BLOCKS * BLOCK as u64));
        for block in 0..FS_BLOCKS {
            device.write_at(block * BLOCK as u64, &old(block)).unwrap();
        }
        let format = LogFormat::of(&sb).unwrap();
        let (at, tid) = (sb.start, sb.sequence);
        let log = Self { device, sb, format, at, tid, seconds: 1_700_000_000, crc: !0 };
        log.write_superblock();
        log
    }

    pub(crate) fn map(&self) -> LogMap {
        let runs = [
            LogRun { log: 600, start: Pblk(LATER), len: self.sb.total_blocks - 600 },
            LogRun { log: 0, start: Pblk(EARLIER), len: 600 },
        ];
        LogMap::internal(runs, self.sb.total_blocks, FS_BLOCKS).unwrap()
    }

    pub(crate) fn log(&self) -> Log {
        Log::new(self.device.clone(), self.map(), BlockSize::MIN)
    }

    pub(crate) fn write_superblock(&self) {
        self.write_at(0, &self.sb.encode());
    }

    /// Byte offset of a log block.
    pub(crate) fn offset(&self, log_block: u32) -> u64 {
        let log_block = u64::from(log_block);
        (if log_block >= 600 { LATER + log_block - 600 } else { EARLIER + log_block }) * BLOCK as u64
    }

    pub(crate) fn write_at(&self, log_block: u32, bytes: &[u8]) {
        self.device.write_at(self.offset(log_block), bytes).unwrap();
    }

    pub(crate) fn read_at(&self, log_block: u32) -> Vec<u8> {
        let mut bytes = filled(0);
        self.device.read_at(self.offset(log_block), &mut bytes).unwrap();
        bytes
    }

    /// Flips bits of one byte of a log block.
    pub(crate) fn flip(&self, log_block: u32, byte: usize, bits: u8) {
        let mut bytes = self.read_at(log_block);
        bytes[byte] ^= bits;
        self.write_at(log_block, &bytes);
    }

    /// Appends a block to the log; returns its log block.
    fn append(&mut self, bytes: &[u8]) -> u32 {
        let at = self.at;
        self.write_at(at, bytes);
        self.at = if at + 1 == self.sb.log_end() { self.sb.first } else { at + 1 };
        at
    }

    /// Appends a revoke block; returns its log block.
    pub(crate) fn revoke(&mut self, blocks: &[u64]) -> u32 {
        let mut writer = RevokeWriter::new(self.format, self.tid);
        blocks.iter().for_each(|block| writer.push(Pblk(*block)).unwrap());
        self.append(&writer.finish())
    }

    /// Appends descriptors and copies; returns the log block of the first descriptor.
    pub(crate) fn copies(&mut self, blocks: &[(u64, Vec<u8>)]) -> u32 {
        let start = self.at;
        for blocks in blocks.chunks(self.format.tags_per_descriptor()) {
            let mut writer = DescriptorWriter::new(self.format, self.tid, self.sb.uuid);
            let mut images = Vec::new();
            for (home, image) in blocks {
                let (mut image, escaped) = (image.clone(), needs_escape(image));
                if escaped {
                    escape(&mut image);
                }
                writer.push(Pblk(*home), escaped, self.format.tag_checksum(self.tid, &image)).unwrap();
                images.push(image);
            }
            for block in std::iter::once(writer.finish()).chain(images) {
                self.crc = crc32_be(self.crc, &block);
                self.append(&block);
            }
        }
        start
    }

    /// Appends the commit block; returns its log block.
    pub(crate) fn commit(&mut self) -> u32 {
        let mut commit = CommitBlock::new(self.tid, self.seconds, 5);
        if self.format.checksums == Checksums::V1 {
            commit = commit.with_v1_checksum(self.crc);
        }
        self.crc = !0;
        self.tid = self.tid.next();
        self.seconds += 5;
        self.append(&commit.encode(self.format))
    }

    /// A whole transaction with one copy; returns its first log block.
    pub(crate) fn transaction(&mut self, home: u64, image: Vec<u8>) -> u32 {
        let at = self.copies(&[(home, image)]);
        self.commit();
        at
    }

    pub(crate) fn scan(&self) -> Result<ReplayPlan, JournalFault> {
        scan(self.log().view(), &ReplayTarget::new(FS_BLOCKS, BlockSize::MIN))
    }

    pub(crate) fn overlay(&self, plan: &ReplayPlan) -> Overlay {
        Overlay::builder(self.device.clone(), BlockSize::MIN).replay(&self.log(), plan).unwrap().build()
    }

    /// A block of the target after the replay.
    pub(crate) fn after(&self, block: u64) -> Vec<u8> {
        let mut bytes = filled(0);
        self.overlay(&self.scan().unwrap()).read_at(block * BLOCK as u64, &mut bytes).unwrap();
        bytes
    }
}

/// Every combination of checksums and width.
pub(crate) fn all_kinds() -> impl Iterator<Item = (Checksums, bool)> {
    let all = [Checksums::None, Checksums::V1, Checksums::V2, Checksums::V3];
    all.into_iter().flat_map(|checksums| [(checksums, false), (checksums, true)])
}

/// A version 1 superblock for [`TestLog::with`].
pub(crate) fn version_1() -> Superblock {
    let mut sb = Superblock::fresh(BlockSize::MIN, LOG_BLOCKS, [0; 16]);
    sb.version = Version::V1;
    // Garbage where version 2 has its features.
    sb.features.incompat = 0xFFFF_FFFF;
    sb
}
