//! The log's checksums of blocks, computed from the checksums that the blocks have themselves.
//!
//! A block is read once for its own checksum and the log's. If its own is known, the log's follows from it
//! without reading the block again.

use std::sync::OnceLock;

use extant_base::checksum::{Reseed, crc32c};
use extant_buffer::{Bytes, ChecksumSpan, PatchedBlock};
use extant_jbd2_format::{LogFormat, LogTid, escape, needs_escape};

/// The checksum at the end of a block: a CRC-32C by value, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TailChecksum {
    /// The checksum.
    pub value: u32,
    /// Seed of the checksum.
    pub seed: u32,
    /// Number of bytes it covers.
    pub len: usize,
}

/// Cached tables that convert the checksum of some bytes into the log's checksum of the same bytes.
#[derive(Default)]
pub(super) struct Reseeds {
    /// For the checksums at the end of blocks, of the length that was needed first.
    ends: OnceLock<Reseed>,
    /// For checksums of whole blocks.
    block_seeds: OnceLock<Reseed>,
}

/// Computes the log's checksums for one transaction.
#[derive(Clone, Copy)]
pub(super) struct LogChecksums {
    pub(super) format: LogFormat,
    pub(super) tid: LogTid,
}

impl LogChecksums {
    /// Returns the bytes to log, if they differ from the block, and the checksum of the logged bytes. A block
    /// that begins like a journal block is logged with that word zeroed.
    pub(super) fn of(&self, block: &[u8]) -> (Option<Bytes>, u32) {
        let escaped = needs_escape(block).then(|| {
            let mut logged = Bytes::copy_of(block);
            escape(logged.make_mut());
            logged
        });
        let logged = escaped.as_ref().map_or(block, |logged| &logged[..]);
        let checksum = self.format.tag_checksum(self.tid, logged);
        (escaped, checksum)
    }

    /// The log's checksum of a block that needs no escape, from the CRC-32C (seed 0) of all its bytes.
    pub(super) fn of_whole_sum(&self, sum: u32, reseeds: &Reseeds) -> u32 {
        let Some(seed) = self.format.tag_seed(self.tid) else { return 0 };
        reseeds.block_seeds.get_or_init(|| Reseed::new(self.format.block_size.len())).change(sum, 0, seed)
    }

    /// The log's checksum of a block that ends in `sum` and needs no escape.
    pub(super) fn of_tail(&self, block: &[u8], sum: TailChecksum, reseeds: &Reseeds) -> u32 {
        let Some(seed) = self.format.tag_seed(self.tid) else { return 0 };
        let reseed = reseeds.ends.get_or_init(|| Reseed::new(sum.len));
        let before = match reseed.len() == sum.len {
            true => reseed.change(sum.value, sum.seed, seed),
            false => crc32c(seed, &block[..sum.len]),
        };
        let end_at = block.len() - size_of_val(&sum.value);
        crc32c(crc32c(before, &block[sum.len..end_at]), &sum.value.to_le_bytes())
    }

    /// As [`of_tail`](Self::of_tail), without reading the block. `None` if the block must be read.
    pub(super) fn of_patched(&self, patched: &PatchedBlock, reseeds: &Reseeds) -> Option<u32> {
        let PatchedBlock { block_len, start, end, span: ChecksumSpan { seed: from, len: of } } = patched;
        let Some(seed) = self.format.tag_seed(self.tid) else { return (!needs_escape(start)).then_some(0) };
        let behind = end.len().checked_sub(block_len - of)?;
        let reseed = reseeds.ends.get_or_init(|| Reseed::new(*of));
        let value = u32::from_le_bytes(*end.last_chunk()?);
        let is_known = reseed.len() == *of && !needs_escape(start);
        is_known.then(|| crc32c(reseed.change(value, *from, seed), &end[behind..]))
    }
}

#[cfg(test)]
mod tests {
    use extant_jbd2_format::{Features, Superblock};

    use super::*;

    #[test]
    fn a_summed_block_is_logged_as_any_other() {
        let mut sb = Superblock::fresh(extant_base::BlockSize::KIB4, 1024, [7; 16]);
        sb.features.incompat = Features::REVOKE | Features::BIT64 | Features::CSUM_V3;
        sb.checksum_type = Superblock::CRC32C;
        let format = LogFormat::of(&sb).unwrap();
        let log = LogChecksums { format, tid: LogTid(9) };
        let mut block: Vec<u8> = (0..4096u32).map(|i| ((i * i) >> 5) as u8).collect();
        let reseeds = Reseeds::default();
        for len in [4084, 4084, 4092, 16] {
            let value = crc32c(0x1234_5678, &block[..len]);
            let sum = TailChecksum { value, seed: 0x1234_5678, len };
            let before = block.clone();
            block[4092..].copy_from_slice(&value.to_le_bytes());
            assert_eq!(log.of_whole_sum(crc32c(0, &block), &reseeds), log.of(&block).1);
            assert_eq!(log.of_tail(&before, sum, &reseeds), log.of(&block).1);
            let end = block[4096 - 64..].try_into().unwrap();
            let mut patched = PatchedBlock {
                block_len: 4096,
                start: [7; 4],
                end,
                span: ChecksumSpan { seed: 0x1234_5678, len },
            };
            let expected = (len == 4084).then(|| log.of(&block).1);
            assert_eq!(log.of_patched(&patched, &reseeds), expected, "other blocks have to be read");
            patched.start = 0xC03B_3998u32.to_be_bytes();
            assert_eq!(log.of_patched(&patched, &reseeds), None, "it needs an escape");
        }
    }
}
