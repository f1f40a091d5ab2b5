//! Directory entries and their blocks.
//!
//! Owns: the entries of one block (or of one inline area), the block's checksum tail, and the `rec_len`
//! arithmetic. Does **not** own: index blocks (see [`crate::htree`]), the choice of a leaf, case folding, or
//! the rules for names: a damaged or hostile block can contain names with `/` or NUL, see
//! [`Entry::has_plain_name`].
//!
//! ```text
//!  0        4        6         7      8
//!  | inode  | rec_len| name_len| type | name, padded to 4 | [hash, minor: encrypted + casefolded] | slack |
//!  |<------------------------------------ rec_len: reaches the next entry ------------------------->|
//! ```
//!
//! Invariants
//! 1. Entries tile the block: each `rec_len` reaches the next entry, and the last one reaches the end of the
//!    usable bytes.
//! 2. The usable bytes are the whole block; with metadata_csum all but the last 12, where the checksum tail
//!    has the form of an unused entry of type 0xDE.
//! 3. An entry with inode 0 is free space.
//!
//! Source: kernel Documentation/filesystems/ext4/directory.rst.

use extant_base::checksum::crc32c;
use extant_base::{BlockSize, Ino, Malformed};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Features;
use crate::filetype::FileType;
use crate::hash::NameHash;

pub mod edit;

/// Bytes of an entry before its name.
pub const HEADER_LEN: usize = 8;
/// Bytes of the checksum tail at the end of a leaf block.
pub const TAIL_LEN: usize = 12;
/// Maximum length of a name in bytes.
pub const NAME_LEN_MAX: usize = 255;

const TAIL_TYPE: u8 = 0xDE;
const STRUCTURE: &str = "directory entry";

/// The eight bytes before the name, on disk.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHeader {
    inode: U32,
    rec_len: U16,
    name_len: u8,
    file_type: u8,
}

/// The checksum tail, on disk.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawTail {
    det_reserved_zero1: U32,
    det_rec_len: U16,
    det_reserved_zero2: u8,
    det_reserved_ft: u8,
    det_checksum: U32,
}

/// The format of a directory's blocks: properties of the file system, and one of the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirFormat {
    /// The file system's block size.
    pub block_size: BlockSize,
    /// Entries store the file type (feature filetype).
    pub filetype: bool,
    /// Leaf blocks end in a checksum tail (feature metadata_csum).
    pub csum: bool,
    /// The directory is both encrypted and casefolded: entries store their hash after the name.
    pub hash_in_dirent: bool,
    /// The highest inode number; an entry above it is malformed.
    pub inodes_count: u32,
}

impl DirFormat {
    /// The format of an ordinary directory: one that is not both encrypted and casefolded.
    #[must_use]
    pub fn new(block_size: BlockSize, features: &Features, inodes_count: u32) -> Self {
        Self {
            block_size,
            filetype: features.has_incompat(Features::FILETYPE),
            csum: features.metadata_csum(),
            hash_in_dirent: false,
            inodes_count,
        }
    }

    /// Bytes of a block available to entries: all, or all except the checksum tail.
    #[must_use]
    pub fn usable_len(&self) -> usize {
        self.block_size.len() - if self.csum { TAIL_LEN } else { 0 }
    }

    /// The used and unused entries of one block, in order of their offsets, without the checksum tail.
    ///
    /// `block` is a whole block or an inline area of any length (inline areas have no tail).
    #[must_use]
    pub fn entries<'a>(&self, block: &'a [u8]) -> Entries<'a> {
        let tail = self.csum && block.len() == self.block_size.len() && tail_checksum(block).is_some();
        let end = block.len() - if tail { TAIL_LEN } else { 0 };
        Entries { format: *self, block: &block[..end], at: 0 }
    }

    /// Searches one block linearly for a used entry named `name`, byte by byte (no case folding).
    ///
    /// It validates the entries before the match, and does not read those after it.
    ///
    /// # Errors
    /// The first malformed entry before the match.
    pub fn find<'a>(&self, block: &'a [u8], name: &[u8]) -> Result<Option<Entry<'a>>, Malformed> {
        for entry in self.entries(block) {
            let entry = entry?;
            if entry.is_used() && entry.name == name {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    fn decode_at<'a>(&self, area: &'a [u8], offset: usize) -> Result<Entry<'a>, Malformed> {
        let rule = |holds, rule, found: usize| Malformed::unless(holds, STRUCTURE, rule, found as u64);
        let bytes = area.get(offset..).unwrap_or(&[]);
        let Ok((raw, after_header)) = RawHeader::ref_from_prefix(bytes) else {
            return Err(Malformed::new(STRUCTURE, "header must lie inside the block", offset as u64));
        };
        let rec_len = decode_rec_len(raw.rec_len.get(), self.block_size);
        let name_len = usize::from(raw.name_len);
        let dots = matches!(after_header.get(..name_len), Some(b"." | b".."));
        let hashed = self.hash_in_dirent && !dots;

        rule(rec_len.is_multiple_of(4), "rec_len must be a multiple of 4", rec_len)?;
        rule(rec_len >= min_rec_len(1, hashed), "rec_len holds at least one character", rec_len)?;
        rule(rec_len >= min_rec_len(name_len, hashed), "rec_len holds the name", rec_len)?;
        rule(rec_len <= bytes.len(), "an entry must end inside the block", rec_len)?;
        let rest = bytes.len() - rec_len;
        // With checksums the last entry of the block is the tail, which is short even if entries store
        // hashes.
        let rest_min = min_rec_len(1, self.hash_in_dirent && !self.csum);
        rule(rest == 0 || rest >= rest_min, "the rest after an entry must have room for another", rest)?;

        let ino = raw.inode.get();
        rule(ino <= self.inodes_count, "inode number exists", ino as usize)?;
        rule(ino == 0 || name_len != 0, "a used entry must have a name", name_len)?;
        let name = &after_header[..name_len];
        rule(rest != 0 || name != b"." || ino == 0, "\".\" must not be the last entry of a block", offset)?;

        let hash_at = (HEADER_LEN + name_len).next_multiple_of(4);
        let hash = (hashed && ino != 0)
            .then(|| <[U32; 2]>::ref_from_prefix(&bytes[hash_at..]).ok())
            .flatten()
            .map(|([hash, minor], _)| NameHash { hash: hash.get(), minor: minor.get() });
        let file_type = match self.filetype {
            true => FileType::from_dirent_code(raw.file_type).unwrap_or_default(),
            false => FileType::Unknown,
        };
        Ok(Entry { offset, ino: Ino(ino), rec_len, file_type, type_code: raw.file_type, name, hash })
    }
}

/// One entry of a directory block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Byte offset within the block.
    pub offset: usize,
    /// The inode number; 0 for free space.
    pub ino: Ino,
    /// Bytes from this entry to the next.
    pub rec_len: usize,
    /// The stored type; `Unknown` without the filetype feature and for codes above 7.
    pub file_type: FileType,
    /// The type byte on disk. Without the filetype feature it is the high byte of the name's length.
    pub type_code: u8,
    /// The name, 1 to 255 bytes. In free space it is stale and possibly empty.
    pub name: &'a [u8],
    /// The hash stored after the name, in used entries of encrypted and casefolded directories.
    pub hash: Option<NameHash>,
}

impl Entry<'_> {
    /// Whether the entry is used. Otherwise it is free space.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.ino.0 != 0
    }

    /// Whether the entry is "." or "..".
    #[must_use]
    pub fn is_dot_or_dotdot(&self) -> bool {
        self.is_used() && matches!(self.name, b"." | b"..")
    }

    /// Whether the name contains neither `/` nor NUL. No other name may become part of a host path.
    #[must_use]
    pub fn has_plain_name(&self) -> bool {
        !self.name.iter().any(|&byte| byte == b'/' || byte == 0)
    }
}

/// Iterator over the entries of one block; see [`DirFormat::entries`]. It ends after the first malformed
/// entry, because the position of the next entry is unknown.
#[derive(Debug, Clone)]
pub struct Entries<'a> {
    format: DirFormat,
    block: &'a [u8],
    at: usize,
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.block.len() {
            return None;
        }
        let entry = self.format.decode_at(self.block, self.at);
        // Every valid rec_len is at least 12, so the iteration ends.
        self.at = entry.as_ref().map_or(self.block.len(), |entry| self.at + entry.rec_len);
        Some(entry)
    }
}

impl std::iter::FusedIterator for Entries<'_> {}

/// The minimum length of an entry with a name of `name_len` bytes. `hashed` adds the 8 bytes of the hash that
/// encrypted and casefolded directories store (except for "." and "..").
#[must_use]
pub const fn min_rec_len(name_len: usize, hashed: bool) -> usize {
    (HEADER_LEN + name_len).next_multiple_of(4) + if hashed { 8 } else { 0 }
}

/// Decodes the 16 bits of `rec_len` on disk to bytes.
///
/// Blocks of 64 KiB need a 17th bit: 0 and 65535 mean the whole block, and the two lowest bits are bits 16
/// and 17.
#[must_use]
pub fn decode_rec_len(raw: u16, block_size: BlockSize) -> usize {
    let raw = usize::from(raw);
    if block_size < BlockSize::MAX {
        raw
    } else if raw == 0 || raw == 0xFFFF {
        block_size.len()
    } else {
        (raw & 0xFFFC) | (raw & 3) << 16
    }
}

/// Encodes `rec_len` to 16 bits; `None` unless it is a multiple of 4 and at most the block size.
#[must_use]
pub fn encode_rec_len(len: usize, block_size: BlockSize) -> Option<u16> {
    if !len.is_multiple_of(4) || len > block_size.len() {
        return None;
    }
    Some(if len == BlockSize::MAX.len() { 0xFFFF } else { len as u16 })
}

/// Fills one directory block with entries, front to back.
///
/// The caller pushes entries until one does not fit, finishes the block, and continues with the next block.
/// Encrypted and casefolded directories cannot be written, because their hashes need a key.
///
/// ```
/// use extant_base::{BlockSize, Ino};
/// use extant_ondisk::{Features, dirent::*, filetype::FileType};
/// let format = DirFormat::new(BlockSize::MIN, &Features::default(), 100);
/// let mut block = vec![0; 1024];
/// let mut writer = DirBlockWriter::new(&format, &mut block);
/// assert!(writer.push(Ino(12), FileType::Regular, b"hello"));
/// writer.finish();
/// assert_eq!(format.find(&block, b"hello").unwrap().unwrap().ino, Ino(12));
/// ```
#[derive(Debug)]
#[must_use = "a block is complete only after finish()"]
pub struct DirBlockWriter<'a> {
    format: DirFormat,
    block: &'a mut [u8],
    last: usize,
    used: usize,
}

impl<'a> DirBlockWriter<'a> {
    /// Starts a block; its old content is erased.
    ///
    /// # Panics
    /// `block` is not one block long, or the directory stores hashes in its entries.
    pub fn new(format: &DirFormat, block: &'a mut [u8]) -> Self {
        assert_eq!(block.len(), format.block_size.len(), "a directory block has the block size");
        assert!(!format.hash_in_dirent, "encrypted and casefolded directories are read only");
        block.fill(0);
        Self { format: *format, block, last: 0, used: 0 }
    }

    /// Appends an entry. Returns `false` and changes nothing if the block has too little space.
    ///
    /// # Panics
    /// The name is empty or longer than 255 bytes, or `ino` is 0.
    #[must_use]
    pub fn push(&mut self, ino: Ino, file_type: FileType, name: &[u8]) -> bool {
        assert!((1..=NAME_LEN_MAX).contains(&name.len()), "names have 1 to 255 bytes");
        assert_ne!(ino.0, 0, "inode 0 marks free space");
        let len = min_rec_len(name.len(), false);
        if len > self.remaining() {
            return false;
        }
        self.last = self.used;
        self.used += len;
        self.put_header(self.last, ino.0, len, name.len() as u8, file_type);
        self.block[self.last + HEADER_LEN..][..name.len()].copy_from_slice(name);
        true
    }

    /// Appends "." and "..", the first two entries of every directory.
    ///
    /// # Panics
    /// An entry was pushed before.
    pub fn push_dots(&mut self, ino: Ino, parent: Ino) {
        assert_eq!(self.used, 0, "\".\" is the first entry");
        let pushed =
            self.push(ino, FileType::Directory, b".") && self.push(parent, FileType::Directory, b"..");
        assert!(pushed, "24 bytes fit into every block");
    }

    /// Free bytes. An entry fits if its [`min_rec_len`] is not larger.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.format.usable_len() - self.used
    }

    /// Extends the last entry to the end of the usable bytes; an empty block becomes one unused entry. If the
    /// format has a tail, writes it with a checksum of 0: [`seal_tail`] computes the checksum.
    pub fn finish(self) {
        let usable = self.format.usable_len();
        let rec_len = self.rec_len_bits(usable - self.last);
        self.block[self.last + 4..self.last + 6].copy_from_slice(&rec_len);
        if self.format.csum {
            let tail = RawTail {
                det_reserved_zero1: 0.into(),
                det_rec_len: (TAIL_LEN as u16).into(),
                det_reserved_zero2: 0,
                det_reserved_ft: TAIL_TYPE,
                det_checksum: 0.into(),
            };
            self.block[usable..].copy_from_slice(tail.as_bytes());
        }
    }

    fn put_header(&mut self, at: usize, ino: u32, rec_len: usize, name_len: u8, file_type: FileType) {
        let header = RawHeader {
            inode: ino.into(),
            rec_len: U16::from_bytes(self.rec_len_bits(rec_len)),
            name_len,
            file_type: if self.format.filetype { file_type.dirent_code() } else { 0 },
        };
        self.block[at..at + HEADER_LEN].copy_from_slice(header.as_bytes());
    }

    fn rec_len_bits(&self, len: usize) -> [u8; 2] {
        let bits =
            encode_rec_len(len, self.format.block_size).expect("entries are multiples of 4 inside a block");
        bits.to_le_bytes()
    }
}

/// The checksum stored in a leaf block's tail. `None` if its last 12 bytes are not a tail: metadata_csum was
/// enabled later, or the block is damaged.
#[must_use]
pub fn tail_checksum(block: &[u8]) -> Option<u32> {
    let (_, tail) = RawTail::ref_from_suffix(block).ok()?;
    let is_tail = tail.det_reserved_zero1.get() == 0
        && usize::from(tail.det_rec_len.get()) == TAIL_LEN
        && tail.det_reserved_zero2 == 0
        && tail.det_reserved_ft == TAIL_TYPE;
    is_tail.then(|| tail.det_checksum.get())
}

/// Stores the checksum in a leaf block's tail.
///
/// `inode_seed` is the checksum seed of the directory's inode.
///
/// # Panics
/// The block has no tail; [`DirBlockWriter::finish`] writes one.
pub fn seal_tail(block: &mut [u8], inode_seed: u32) {
    assert!(tail_checksum(block).is_some(), "only a block with a tail can be sealed");
    let checksum = leaf_checksum(block, inode_seed);
    let at = block.len() - 4;
    block[at..].copy_from_slice(&checksum.to_le_bytes());
}

/// The checksum that [`seal_tail`] would store, and the number of bytes that it covers; `None` for a block
/// without a tail.
#[must_use]
pub fn tail_sum(block: &[u8], inode_seed: u32) -> Option<(u32, usize)> {
    tail_checksum(block).map(|_| (leaf_checksum(block, inode_seed), block.len() - TAIL_LEN))
}

/// Like [`tail_sum`], for a block whose stored checksum is already right: [`seal_tail`] made the last change,
/// or the writer of the block keeps the checksum up to date.
#[must_use]
pub fn stored_tail_sum(block: &[u8]) -> Option<(u32, usize)> {
    tail_checksum(block).map(|value| (value, block.len() - TAIL_LEN))
}

/// Verifies the checksum in a leaf block's tail.
///
/// # Errors
/// There is no tail, or its checksum is wrong.
pub fn verify_tail(block: &[u8], inode_seed: u32) -> Result<(), Malformed> {
    let Some(stored) = tail_checksum(block) else {
        return Err(Malformed::new("directory block", "must end in a checksum tail", block.len() as u64));
    };
    let holds = stored == leaf_checksum(block, inode_seed);
    Malformed::unless(holds, "directory block", "checksum must match", stored)
}

fn leaf_checksum(block: &[u8], inode_seed: u32) -> u32 {
    crc32c(inode_seed, &block[..block.len().saturating_sub(TAIL_LEN)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn format(block_size: u64, csum: bool) -> DirFormat {
        DirFormat {
            block_size: BlockSize::from_bytes(block_size).unwrap(),
            filetype: true,
            csum,
            hash_in_dirent: false,
            inodes_count: 1000,
        }
    }

    /// A 1 KiB block with ".", ".." and one file; each test case breaks one byte range of it.
    fn small_block(format: &DirFormat) -> Vec<u8> {
        let mut block = vec![0xFF; format.block_size.len()];
        let mut writer = DirBlockWriter::new(format, &mut block);
        writer.push_dots(Ino(12), Ino(2));
        assert!(writer.push(Ino(13), FileType::Fifo, b"pipe"));
        writer.finish();
        block
    }

    fn first_error(format: &DirFormat, block: &[u8]) -> &'static str {
        format.entries(block).find_map(Result::err).map_or("none", |e| e.rule)
    }

    #[test]
    fn the_bytes_of_a_small_block() {
        let block = small_block(&format(1024, true));
        assert_eq!(block[..12], [12, 0, 0, 0, 12, 0, 1, 2, b'.', 0, 0, 0]);
        assert_eq!(block[12..24], [2, 0, 0, 0, 12, 0, 2, 2, b'.', b'.', 0, 0]);
        assert_eq!(block[24..36], [13, 0, 0, 0, 0xDC, 3, 4, 5, b'p', b'i', b'p', b'e']);
        assert_eq!(block[1012..], [0, 0, 0, 0, 12, 0, 0, 0xDE, 0, 0, 0, 0]);
    }

    #[test]
    fn each_rule_is_named_when_broken() {
        let format = format(1024, false);
        let breaks: [(usize, u8, &str); 7] = [
            (4, 14, "rec_len must be a multiple of 4"),
            (4, 8, "rec_len holds at least one character"),
            (18, 9, "rec_len holds the name"),
            (29, 4, "an entry must end inside the block"),
            (28, 0xE0, "the rest after an entry must have room for another"),
            (26, 1, "inode number exists"),
            (30, 0, "a used entry must have a name"),
        ];
        for (at, byte, rule) in breaks {
            let mut block = small_block(&format);
            if rule.starts_with("what follows") {
                block[28..30].copy_from_slice(&(1000u16 - 8).to_le_bytes());
            } else {
                block[at] = byte;
            }
            assert_eq!(first_error(&format, &block), rule);
        }
        let mut lonely = vec![0; 1024];
        let mut writer = DirBlockWriter::new(&format, &mut lonely);
        assert!(writer.push(Ino(5), FileType::Directory, b"."));
        writer.finish();
        assert_eq!(first_error(&format, &lonely), "\".\" must not be the last entry of a block");
        assert_eq!(first_error(&format, &[0; 7]), "header must lie inside the block");
        assert_eq!(first_error(&format, &small_block(&format)), "none");
    }

    #[test]
    fn rec_len_of_64_kib_blocks_has_a_17th_bit() {
        let (big, small) = (BlockSize::MAX, BlockSize::KIB4);
        assert_eq!(encode_rec_len(65536, big), Some(0xFFFF));
        assert_eq!(decode_rec_len(0xFFFF, big), 65536);
        assert_eq!(decode_rec_len(0, big), 65536);
        assert_eq!(encode_rec_len(65524, big), Some(65524));
        assert_eq!(decode_rec_len(9, big), 8 | 1 << 16);
        assert_eq!(decode_rec_len(0, small), 0);
        assert_eq!(encode_rec_len(4096, small), Some(4096));
        assert_eq!(encode_rec_len(4100, small), None);
        assert_eq!(encode_rec_len(13, small), None);
    }

    #[test]
    fn an_empty_block_is_one_unused_entry_at_every_size() {
        for log in 0..=6 {
            for csum in [false, true] {
                let format = format(1024 << log, csum);
                let mut block = vec![1; format.block_size.len()];
                DirBlockWriter::new(&format, &mut block).finish();
                let entries: Vec<_> = format.entries(&block).map(Result::unwrap).collect();
                assert_eq!(entries.len(), 1);
                assert!(!entries[0].is_used());
                assert_eq!(entries[0].rec_len, format.usable_len());
            }
        }
    }

    #[test]
    fn hashes_behind_names_are_read_where_the_directory_has_them() {
        let format = DirFormat { hash_in_dirent: true, ..format(1024, true) };
        let mut block = small_block(&DirFormat { hash_in_dirent: false, ..format });
        block[36..44].copy_from_slice(&[0x10, 0, 0, 0, 0x20, 0, 0, 0]);
        let entries: Vec<_> = format.entries(&block).map(Result::unwrap).collect();
        assert_eq!(entries[0].hash, None);
        assert_eq!(entries[2].hash, Some(NameHash { hash: 0x10, minor: 0x20 }));
        assert_eq!(min_rec_len(4, true), 20);
        assert_eq!(min_rec_len(5, true), 24);
    }

    #[test]
    fn without_the_filetype_feature_types_are_unknown() {
        let format = DirFormat { filetype: false, ..format(1024, false) };
        let block = small_block(&format);
        assert!(format.entries(&block).all(|e| e.as_ref().unwrap().type_code == 0));
        assert_eq!(format.find(&block, b"pipe").unwrap().unwrap().file_type, FileType::Unknown);
    }

    #[test]
    fn a_tail_is_sealed_and_verified() {
        let mut block = small_block(&format(1024, true));
        assert!(verify_tail(&block, 77).is_err());
        seal_tail(&mut block, 77);
        assert_eq!(verify_tail(&block, 77), Ok(()));
        assert!(verify_tail(&block, 78).is_err());
        block[40] ^= 1;
        assert_eq!(verify_tail(&block, 77).unwrap_err().rule, "checksum must match");
        block[1019] = 0;
        assert_eq!(verify_tail(&block, 77).unwrap_err().rule, "must end in a checksum tail");
        assert!(verify_tail(&[], 77).is_err());
    }

    proptest! {
        #[test]
        fn what_is_pushed_is_read_back(
            names in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..=255), 1..80),
            log in 0u32..=6, csum: bool, types in 0u8..8,
        ) {
            let format = DirFormat { csum, ..format(1024 << log, csum) };
            let mut block = vec![0xAA; format.block_size.len()];
            let mut writer = DirBlockWriter::new(&format, &mut block);
            let file_type = FileType::from_dirent_code(types).unwrap();
            let kept: Vec<_> = names.iter().filter(|n| n.as_slice() != b".")
                .filter(|name| {
                    let fits = min_rec_len(name.len(), false) <= writer.remaining();
                    assert_eq!(writer.push(Ino(9), file_type, name), fits);
                    fits
                })
                .collect();
            writer.finish();
            let read: Vec<_> = format.entries(&block).map(Result::unwrap).filter(Entry::is_used).collect();
            prop_assert_eq!(read.iter().map(|e| e.name.to_vec()).collect::<Vec<_>>(),
                kept.into_iter().cloned().collect::<Vec<_>>());
            prop_assert!(read.iter().all(|e| e.file_type == file_type && e.ino == Ino(9)));
            for e in read {
                prop_assert!(format.find(&block, e.name).unwrap().is_some());
            }
        }

        #[test]
        fn any_bytes_are_entries_or_malformed(
            bytes in prop::collection::vec(prop_oneof![3 => Just(0u8), 1 => any::<u8>()], 0..2048),
            filetype: bool, csum: bool, hash_in_dirent: bool, log in 0u32..=6,
        ) {
            let format = DirFormat { filetype, csum, hash_in_dirent, ..format(1024 << log, csum) };
            for block in [&bytes[..], bytes.get(..1024).unwrap_or(&[])] {
                let _ = verify_tail(block, 0);
                for entry in format.entries(block).flatten() {
                    prop_assert!(entry.offset + entry.rec_len <= block.len());
                }
            }
        }

        #[test]
        fn a_block_with_one_broken_byte_never_panics(at in 0usize..1024, byte: u8, csum: bool) {
            let format = format(1024, csum);
            let mut block = small_block(&format);
            block[at] = byte;
            let covered: usize = format.entries(&block).flatten().map(|e| e.rec_len).sum();
            prop_assert!(covered <= 1024);
        }
    }
}
