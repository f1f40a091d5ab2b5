//! Revoke blocks: they list blocks; copies of these in this and older transactions must not be replayed.
//!
//! ```text
//! | header | count32 | block | block | ... | unused | tail |      count = bytes used, including these 16
//! ```

use extant_base::{Malformed, Pblk};

use crate::{
    bytes::{be32, be64, put},
    descriptor::PushError,
    format::LogFormat,
    header::{BlockType, Header, LogTid},
};

const STRUCTURE: &str = "revoke block";

/// Bytes before the first record.
const HEADER_LEN: usize = Header::REVOKE_LEN;

/// Iterator over the records of a revoke block; see [`revokes`].
#[derive(Debug, Clone)]
pub struct Revokes<'a> {
    wide: bool,
    records: &'a [u8],
}

/// The records of the revoke block `block`. Does not check the tail: see [`LogFormat::verify_tail`].
///
/// # Errors
/// Not a revoke block, or a count that exceeds the block.
pub fn revokes(format: LogFormat, block: &[u8]) -> Result<Revokes<'_>, Malformed> {
    Header::expect(block, BlockType::Revoke, STRUCTURE, "block type is 5")?;
    let end = block.len().saturating_sub(format.tail_len());
    Malformed::unless(end >= HEADER_LEN, STRUCTURE, "must have room for its count", block.len() as u64)?;
    let count = be32(block, Header::LEN);
    Malformed::unless(
        u64::from(count) <= end as u64,
        STRUCTURE,
        "the records must end inside the block",
        count,
    )?;
    // A count smaller than the header means an empty list, as in jbd2.
    Ok(Revokes { wide: format.wide, records: block.get(HEADER_LEN..count as usize).unwrap_or(&[]) })
}

impl Iterator for Revokes<'_> {
    type Item = Pblk;

    fn next(&mut self) -> Option<Pblk> {
        let (record, rest) = self.records.split_at_checked(if self.wide { 8 } else { 4 })?;
        self.records = rest;
        Some(Pblk(if self.wide { be64(record, 0) } else { u64::from(be32(record, 0)) }))
    }
}

/// Builds a revoke block.
#[derive(Debug, Clone)]
pub struct RevokeWriter {
    format: LogFormat,
    bytes: Vec<u8>,
    at: usize,
}

impl RevokeWriter {
    /// An empty revoke block of transaction `tid`.
    #[must_use]
    pub fn new(format: LogFormat, tid: LogTid) -> Self {
        let mut bytes = vec![0; format.block_size.len()];
        put(&mut bytes, 0, &Header { kind: BlockType::Revoke, tid }.encode());
        Self { format, bytes, at: HEADER_LEN }
    }

    /// Whether there is no room for another record.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.at + self.format.revoke_record_len() + self.format.tail_len() > self.bytes.len()
    }

    /// Adds a record.
    ///
    /// # Errors
    /// The revoke block is full, or `block` needs 64 bits and the journal has 32-bit numbers.
    pub fn push(&mut self, block: Pblk) -> Result<(), PushError> {
        if self.is_full() {
            return Err(PushError::Full);
        }
        if self.format.wide {
            put(&mut self.bytes, self.at, &block.0.to_be_bytes());
        } else {
            let narrow = u32::try_from(block.0).map_err(|_| PushError::BlockTooLarge)?;
            put(&mut self.bytes, self.at, &narrow.to_be_bytes());
        }
        self.at += self.format.revoke_record_len();
        Ok(())
    }

    /// Writes the count, seals the tail, and returns the block.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        put(&mut self.bytes, Header::LEN, &(self.at as u32).to_be_bytes());
        self.format.seal_tail(&mut self.bytes);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::tests::all_formats;

    #[test]
    fn a_full_revoke_block_reads_back_in_every_layout() {
        for format in all_formats() {
            let mut writer = RevokeWriter::new(format, LogTid(9));
            let mut pushed = Vec::new();
            while !writer.is_full() {
                let block = Pblk(if format.wide { 1 << 40 } else { 0 } + pushed.len() as u64);
                writer.push(block).unwrap();
                pushed.push(block);
            }
            assert_eq!(pushed.len(), format.revokes_per_block());
            assert_eq!(writer.push(Pblk(0)), Err(PushError::Full));
            let bytes = writer.finish();
            assert!(format.verify_tail(&bytes));
            assert_eq!(revokes(format, &bytes).unwrap().collect::<Vec<_>>(), pushed);
        }
    }

    #[test]
    fn a_count_past_the_block_is_refused_and_one_below_the_header_is_empty() {
        let format = all_formats()[0];
        let mut bytes = RevokeWriter::new(format, LogTid(9)).finish();
        assert_eq!(revokes(format, &bytes).unwrap().count(), 0);
        put(&mut bytes, 12, &3u32.to_be_bytes());
        assert_eq!(revokes(format, &bytes).unwrap().count(), 0);
        put(&mut bytes, 12, &1025u32.to_be_bytes());
        assert!(revokes(format, &bytes).is_err());
    }

    proptest! {
        #[test]
        fn decoding_any_bytes_does_not_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 0..1100),
            count in 0u32..1200,
            which in 0usize..16,
        ) {
            if bytes.len() >= 16 {
                bytes[..12].copy_from_slice(&Header { kind: BlockType::Revoke, tid: LogTid(0) }.encode());
                bytes[12..16].copy_from_slice(&count.to_be_bytes());
            }
            if let Ok(records) = revokes(all_formats()[which], &bytes) {
                prop_assert!(records.count() <= bytes.len() / 4);
            }
        }
    }
}
