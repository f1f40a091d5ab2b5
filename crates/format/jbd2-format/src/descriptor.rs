//! Descriptor blocks: they list the homes of the log blocks that follow.
//!
//! ```text
//! | header | tag 1 | uuid | tag 2 | tag 3 | ... | tag n (LAST) | unused | tail |
//! ```
//!
//! A UUID follows the first tag; all other tags have the flag SAME_UUID. A logged block that begins with the
//! journal's magic number is logged with that word zeroed, and its tag has the flag ESCAPE: otherwise a scan
//! would take it for a journal block.

use extant_base::{Malformed, Pblk};

use crate::{
    bytes::{be16, be32, put, uuid},
    format::{Checksums, LogFormat},
    header::{BlockType, Header, LogTid, MAGIC},
};

const ESCAPE: u32 = 1;
const SAME_UUID: u32 = 2;
const DELETED: u32 = 4;
const LAST: u32 = 8;

/// Whether `block` must be escaped before it is logged: it begins with the journal's magic number.
#[must_use]
pub fn needs_escape(block: &[u8]) -> bool {
    block.starts_with(&MAGIC.to_be_bytes())
}

/// Escapes the image of a block that [`needs_escape`].
pub fn escape(image: &mut [u8]) {
    if let Some(word) = image.first_chunk_mut::<4>() {
        *word = [0; 4];
    }
}

/// Restores an escaped block.
pub fn unescape(image: &mut [u8]) {
    if let Some(word) = image.first_chunk_mut::<4>() {
        *word = MAGIC.to_be_bytes();
    }
}

/// A tag: the log block at the same position after the descriptor has its home at `block`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tag {
    /// The home of the logged block.
    pub block: Pblk,
    /// The stored checksum: 32 bits in version 3, 16 in version 2. Otherwise 0, because the field may hold
    /// garbage.
    pub checksum: u32,
    /// The first word was the magic number, and is zero in the log.
    pub escaped: bool,
    /// An unused flag.
    pub deleted: bool,
    /// This is the last tag of the descriptor.
    pub last: bool,
    /// The UUID after the tag, if the tag has one.
    pub uuid: Option<[u8; 16]>,
}

/// Iterator over the tags of a descriptor block; see [`tags`].
#[derive(Debug, Clone)]
pub struct Tags<'a> {
    format: LogFormat,
    block: &'a [u8],
    at: usize,
    end: usize,
}

/// The tags of the descriptor `block`, up to the tag marked LAST or the end of the block, as in jbd2.
///
/// It checks neither the header nor the tail: see [`Header::decode`] and [`LogFormat::verify_tail`].
#[must_use]
pub fn tags(format: LogFormat, block: &[u8]) -> Tags<'_> {
    Tags { format, block, at: Header::LEN, end: block.len().saturating_sub(format.tail_len()) }
}

impl Iterator for Tags<'_> {
    type Item = Tag;

    fn next(&mut self) -> Option<Tag> {
        let (at, len) = (self.at, self.format.tag_len());
        if at.checked_add(len)? > self.end {
            return None;
        }
        let (flags, checksum) = match self.format.checksums {
            Checksums::V3 => (be32(self.block, at + 4), be32(self.block, at + 12)),
            Checksums::V2 => (u32::from(be16(self.block, at + 6)), u32::from(be16(self.block, at + 4))),
            Checksums::V1 | Checksums::None => (u32::from(be16(self.block, at + 6)), 0),
        };
        let high = if self.format.wide { be32(self.block, at + 8) } else { 0 };
        self.at = at + len;
        let mut tag_uuid = None;
        if flags & SAME_UUID == 0 {
            tag_uuid = (self.at + 16 <= self.end).then(|| uuid(self.block, self.at));
            self.at += 16;
        }
        if flags & LAST != 0 {
            self.at = self.end;
        }
        Some(Tag {
            block: Pblk(u64::from(high) << 32 | u64::from(be32(self.block, at))),
            checksum,
            escaped: flags & ESCAPE != 0,
            deleted: flags & DELETED != 0,
            last: flags & LAST != 0,
            uuid: tag_uuid,
        })
    }
}

impl LogFormat {
    /// Whether `logged` matches the checksum in `tag`. True if tags have no checksum.
    #[must_use]
    pub fn verify_tag(&self, tid: LogTid, tag: &Tag, logged: &[u8]) -> bool {
        let computed = self.tag_checksum(tid, logged);
        match self.checksums {
            Checksums::V3 => tag.checksum == computed,
            Checksums::V2 => tag.checksum == computed & 0xFFFF,
            Checksums::V1 | Checksums::None => true,
        }
    }
}

/// Why a tag was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PushError {
    /// The descriptor is full: finish it and start another.
    Full,
    /// The block number needs the 64BIT feature.
    BlockTooLarge,
}

impl std::fmt::Display for PushError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Full => "the journal block is full",
            Self::BlockTooLarge => "the block number does not fit without the journal's 64bit feature",
        })
    }
}

impl std::error::Error for PushError {}

/// Builds a descriptor block with up to [`LogFormat::tags_per_descriptor`] tags.
#[derive(Debug, Clone)]
pub struct DescriptorWriter {
    format: LogFormat,
    bytes: Vec<u8>,
    at: usize,
    /// Offset of the flag byte of the last tag; 0 before the first tag.
    last_flags_at: usize,
    uuid: [u8; 16],
}

impl DescriptorWriter {
    /// An empty descriptor of transaction `tid`. `uuid` follows the first tag; readers skip it, jbd2 and
    /// debugfs write zeros.
    #[must_use]
    pub fn new(format: LogFormat, tid: LogTid, uuid: [u8; 16]) -> Self {
        let mut bytes = vec![0; format.block_size.len()];
        put(&mut bytes, 0, &Header { kind: BlockType::Descriptor, tid }.encode());
        Self { format, bytes, at: Header::LEN, last_flags_at: 0, uuid }
    }

    /// Whether there is no room for another tag.
    #[must_use]
    pub fn is_full(&self) -> bool {
        // An empty descriptor also needs room for the first tag's UUID, but it always has it.
        self.bytes.len() - self.at < self.format.tag_len() + self.format.tail_len()
    }

    /// Whether no tag has been added yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.last_flags_at == 0
    }

    /// Adds a tag: the next log block has its home at `block`. `checksum` is [`LogFormat::tag_checksum`] of
    /// the block as logged; version 2 drops its upper half.
    ///
    /// # Errors
    /// The descriptor is full, or `block` needs 64 bits and the journal has 32-bit numbers.
    pub fn push(&mut self, block: Pblk, escaped: bool, checksum: u32) -> Result<(), PushError> {
        if self.is_full() {
            return Err(PushError::Full);
        }
        let (low, high) = (block.0 as u32, (block.0 >> 32) as u32);
        if high != 0 && !self.format.wide {
            return Err(PushError::BlockTooLarge);
        }
        let same_uuid = if self.is_empty() { 0 } else { SAME_UUID };
        let flags = same_uuid | if escaped { ESCAPE } else { 0 };
        let (at, bytes) = (self.at, &mut self.bytes);
        put(bytes, at, &low.to_be_bytes());
        if self.format.checksums == Checksums::V3 {
            put(bytes, at + 4, &flags.to_be_bytes());
            put(bytes, at + 8, &high.to_be_bytes());
            put(bytes, at + 12, &checksum.to_be_bytes());
        } else {
            put(bytes, at + 4, &(checksum as u16).to_be_bytes());
            put(bytes, at + 6, &(flags as u16).to_be_bytes());
            if self.format.wide {
                put(bytes, at + 8, &high.to_be_bytes());
            }
        }
        // The flags are big-endian and below 256: their byte is the last of bytes 4..8 in every layout.
        self.last_flags_at = at + 7;
        self.at += self.format.tag_len();
        if same_uuid == 0 {
            put(bytes, self.at, &self.uuid);
            self.at += 16;
        }
        Ok(())
    }

    /// Marks the last tag, seals the tail, and returns the block.
    ///
    /// # Panics
    /// If there is no tag: a reader would find tags for block 0.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        assert!(!self.is_empty(), "a descriptor block needs a tag");
        self.bytes[self.last_flags_at] |= LAST as u8;
        self.format.seal_tail(&mut self.bytes);
        self.bytes
    }
}

impl Tag {
    /// Checks that the tag's home is a block of the file system: below `fs_blocks`. The caller must check
    /// that it is not a block of the journal itself.
    ///
    /// # Errors
    /// The block is past the end.
    pub fn check(&self, fs_blocks: u64) -> Result<(), Malformed> {
        Malformed::unless(
            self.block.0 < fs_blocks,
            "journal tag",
            "the block must lie in the file system",
            self.block.0,
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::tests::all_formats;

    #[test]
    fn a_full_descriptor_reads_back_in_every_layout() {
        for format in all_formats() {
            let image = vec![0xAB; format.block_size.len()];
            let checksum = format.tag_checksum(LogTid(77), &image);
            let mut writer = DescriptorWriter::new(format, LogTid(77), [6; 16]);
            let mut pushed = Vec::new();
            let base = if format.wide { 0x0001_0000_0000 } else { 0 };
            while !writer.is_full() {
                let n = pushed.len() as u64;
                writer.push(Pblk(base + n), n.is_multiple_of(3), checksum).unwrap();
                pushed.push(Pblk(base + n));
            }
            assert_eq!(pushed.len(), format.tags_per_descriptor(), "{format:?}");
            assert_eq!(writer.push(Pblk(1), false, 0), Err(PushError::Full));
            let mut bytes = writer.finish();
            assert_eq!(Header::decode(&bytes).unwrap().tid, LogTid(77));
            assert!(format.verify_tail(&bytes));

            let read: Vec<Tag> = tags(format, &bytes).collect();
            assert_eq!(read.iter().map(|tag| tag.block).collect::<Vec<_>>(), pushed);
            for (n, tag) in read.iter().enumerate() {
                assert_eq!(tag.uuid, (n == 0).then_some([6; 16]));
                assert_eq!((tag.escaped, tag.last, tag.deleted), (n % 3 == 0, n + 1 == read.len(), false));
                assert!(format.verify_tag(LogTid(77), tag, &image));
                assert_eq!(format.verify_tag(LogTid(78), tag, &image), !format.has_block_checksums());
            }
            bytes[100] ^= 1;
            assert_eq!(format.verify_tail(&bytes), !format.has_block_checksums());
        }
    }

    #[test]
    fn a_4k_version_3_descriptor_takes_254_tags() {
        let format = all_formats().into_iter().rfind(|format| format.checksums == Checksums::V3).unwrap();
        assert_eq!((format.block_size.bytes(), format.tags_per_descriptor()), (4096, 254));
    }

    #[test]
    fn version_3_bytes_stand_where_the_kernel_puts_them() {
        let format = LogFormat { seed: 0, ..all_formats().pop().unwrap() };
        let mut writer = DescriptorWriter::new(format, LogTid(5), [0xEE; 16]);
        writer.push(Pblk(0x0000_0002_0000_0001), true, 0xDEAD_BEEF).unwrap();
        writer.push(Pblk(3), false, 4).unwrap();
        let bytes = writer.finish();
        assert_eq!(
            bytes[..60],
            [
                [0xC0, 0x3B, 0x39, 0x98].as_slice(),
                &[0, 0, 0, 1, 0, 0, 0, 5],
                &[0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 0xDE, 0xAD, 0xBE, 0xEF],
                &[0xEE; 16],
                &[0, 0, 0, 3, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 4],
            ]
            .concat()
        );
    }

    #[test]
    fn without_64bit_a_large_block_number_is_refused() {
        let format = LogFormat { wide: false, ..all_formats()[0] };
        let mut writer = DescriptorWriter::new(format, LogTid(1), [0; 16]);
        assert_eq!(writer.push(Pblk(1 << 32), false, 0), Err(PushError::BlockTooLarge));
        assert!(writer.is_empty());
    }

    #[test]
    fn escaping_hides_the_magic_and_gives_it_back() {
        let original = [MAGIC.to_be_bytes().as_slice(), &[1, 2, 3]].concat();
        let mut image = original.clone();
        assert!(needs_escape(&image));
        escape(&mut image);
        assert!(!needs_escape(&image));
        unescape(&mut image);
        assert_eq!(image, original);
        escape(&mut []);
    }

    proptest! {
        #[test]
        fn walking_any_bytes_does_not_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..2048),
            which in 0usize..16,
        ) {
            let format = all_formats()[which];
            let count = tags(format, &bytes).count();
            prop_assert!(count <= bytes.len() / 8);
            let _ = format.verify_tail(&bytes);
        }
    }
}
