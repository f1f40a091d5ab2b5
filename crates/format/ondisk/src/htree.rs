//! Indexed directories: the bytes of index roots and nodes.
//!
//! Owns: decoding, encoding, limits and checksums of index blocks. [`walk`] finds the leaf of a name,
//! [`plan`] computes the layout of a packed tree. Does **not** own: leaf blocks (see [`crate::dirent`]), name
//! hashes (see [`crate::hash`]), splitting.
//!
//! ```text
//! root, block 0                                    node, any other index block
//! 0x00 inode, 12, 1, 2, "."                        0x00 0, block size, 0, 0      a fake unused entry
//! 0x0C parent, block size - 12, 2, 2, ".."         0x08 limit | count | block    entry 0
//! 0x18 0 | version | 8 | levels | flags            0x10 hash | block             entry 1
//! 0x20 limit | count | block    entry 0            ...
//! 0x28 hash | block             entry 1            8 + 8 * limit: 0 | checksum   with metadata_csum
//! ...
//! ```
//!
//! Invariants
//! 1. For a reader without dir_index every index block is a valid block of entries without names: the
//!    `rec_len` of ".." and of the fake entry cover the rest.
//! 2. Entry 0 covers all hashes below entry 1's. Its hash word stores `limit` and `count`; `count` includes
//!    entry 0.
//! 3. `limit` is exactly the number of entries that fit the block. The checksum is stored after `limit`
//!    entries and covers `count` of them.
//! 4. A hash's lowest bit is the continuation flag: the last name of the previous child has the same hash.
//! 5. Child blocks are logical blocks of the directory. Their top four bits are reserved and ignored.
//!
//! Source: kernel Documentation/filesystems/ext4/directory.rst. The span of the checksum was found from
//! images that mke2fs and the kernel write.

mod change;
pub mod plan;
pub mod walk;

use extant_base::checksum::crc32c;
use extant_base::{BlockSize, Ino, Lblk, Malformed};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Features;
use crate::dirent::{decode_rec_len, encode_rec_len};
use crate::filetype::FileType;

pub use plan::{IndexPlan, TooLarge};
pub use walk::{Lookup, Step};

const ROOT_ENTRIES_AT: usize = 0x20;
const NODE_ENTRIES_AT: usize = 0x08;
const ENTRY_LEN: usize = 8;
const DOT_REC_LEN: usize = 12;
const INFO_LEN: u8 = 8;
/// The kernel reserves the top bits of a child block number for fill hints.
const CHILD_MASK: u32 = 0x0FFF_FFFF;

/// The start of a root block, on disk.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawRoot {
    dot: RawDot,
    dotdot: RawDot,
    reserved_zero: U32,
    hash_version: u8,
    info_length: u8,
    indirect_levels: u8,
    unused_flags: u8,
}

/// "." or ".." in a root block, on disk.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawDot {
    inode: U32,
    rec_len: U16,
    name_len: u8,
    file_type: u8,
    name: [u8; 4],
}

/// The start of a node block, on disk.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawFake {
    inode: U32,
    rec_len: U16,
    name_len: u8,
    file_type: u8,
}

/// Entry 0, whose hash word stores the limit and the count.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawCountLimit {
    limit: U16,
    count: U16,
    block: U32,
}

/// Any other entry.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawEntry {
    hash: U32,
    block: U32,
}

/// The checksum after the last possible entry.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawTail {
    dt_reserved: U32,
    dt_checksum: U32,
}

/// The format of a file system's index blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DxFormat {
    /// The file system's block size.
    pub block_size: BlockSize,
    /// Index blocks end in a checksum (feature metadata_csum).
    pub csum: bool,
    /// Three levels of index instead of two (feature large_dir).
    pub large_dir: bool,
}

/// The two kinds of index block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DxKind {
    /// Block 0 of the directory.
    Root,
    /// Any other index block.
    Node,
}

/// One index entry: `block` covers the names with a hash of at least `hash` and below the next entry's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DxEntry {
    /// The lowest hash under `block`, with the continuation flag as its lowest bit; 0 in entry 0.
    pub hash: u32,
    /// A node or a leaf, depending on the level of this block.
    pub block: Lblk,
}

impl DxFormat {
    /// The format of a file system with these features.
    #[must_use]
    pub fn new(block_size: BlockSize, features: &Features) -> Self {
        let large_dir = features.has_incompat(Features::LARGEDIR);
        Self { block_size, csum: features.metadata_csum(), large_dir }
    }

    /// Maximum `indirect_levels`: index levels below the root.
    #[must_use]
    pub fn levels_max(&self) -> u8 {
        if self.large_dir { 2 } else { 1 }
    }

    /// Capacity of an index block in entries, including entry 0: (block size - start of entries - checksum) /
    /// 8.
    #[must_use]
    pub fn limit(&self, kind: DxKind) -> usize {
        let tail = if self.csum { size_of::<RawTail>() } else { 0 };
        (self.block_size.len() - entries_at(kind) - tail) / ENTRY_LEN
    }

    /// The kind of index block that the `rec_len`s of the first entries suggest; `None` for neither.
    ///
    /// A leaf without any name and without a checksum tail looks like a node; only its level in the tree
    /// distinguishes it.
    #[must_use]
    pub fn kind_of(&self, block: &[u8]) -> Option<DxKind> {
        let (raw, _) = RawRoot::ref_from_prefix(block).ok()?;
        let rec_len = |raw: &U16| decode_rec_len(raw.get(), self.block_size);
        let first = rec_len(&raw.dot.rec_len);
        if first == self.block_size.len() && raw.dot.inode.get() == 0 {
            Some(DxKind::Node)
        } else if first == DOT_REC_LEN && rec_len(&raw.dotdot.rec_len) == self.block_size.len() - DOT_REC_LEN
        {
            Some(DxKind::Root)
        } else {
            None
        }
    }

    /// Decodes block 0 of an indexed directory.
    ///
    /// # Errors
    /// The first broken rule: "." and ".." at their offsets, known version and flags, depth within
    /// [`levels_max`](Self::levels_max), and the rules of [`decode_node`](Self::decode_node) for the entries.
    /// It does not check that hashes ascend: a lookup does not need it, and a checker reads all entries
    /// anyway.
    pub fn decode_root<'a>(&self, block: &'a [u8]) -> Result<DxRoot<'a>, Malformed> {
        let rule = |holds, rule, found: u32| Malformed::unless(holds, "index root", rule, found);
        let raw = match RawRoot::ref_from_prefix(block) {
            Ok((raw, _)) if block.len() == self.block_size.len() => raw,
            _ => return Err(Malformed::new("index root", "must be one block long", block.len() as u64)),
        };
        let is_dot = |dot: &RawDot, name: &[u8], len: usize| {
            let rec_len = decode_rec_len(dot.rec_len.get(), self.block_size);
            rec_len == len && dot.name.get(..usize::from(dot.name_len)) == Some(name)
        };
        rule(is_dot(&raw.dot, b".", DOT_REC_LEN), "\".\" comes first", raw.dot.rec_len.get().into())?;
        let hidden = self.block_size.len() - DOT_REC_LEN;
        rule(
            is_dot(&raw.dotdot, b"..", hidden),
            "\"..\" hides the rest of the block",
            raw.dotdot.rec_len.get().into(),
        )?;
        rule(raw.reserved_zero.get() == 0, "reserved word must be 0", raw.reserved_zero.get())?;
        rule(raw.info_length == INFO_LEN, "info length must be 8", u32::from(raw.info_length))?;
        rule(raw.unused_flags & 1 == 0, "flag bit 0 must be clear", u32::from(raw.unused_flags))?;
        rule(
            matches!(raw.hash_version, 0 | 1 | 2 | 6),
            "hash version must be known",
            u32::from(raw.hash_version),
        )?;
        let levels = raw.indirect_levels;
        rule(levels <= self.levels_max(), "depth must be allowed by the features", u32::from(levels))?;
        Ok(DxRoot {
            ino: Ino(raw.dot.inode.get()),
            parent: Ino(raw.dotdot.inode.get()),
            hash_code: raw.hash_version,
            levels,
            entries: self.decode_entries(block, DxKind::Root)?,
        })
    }

    /// Decodes an index block below the root.
    ///
    /// # Errors
    /// The first broken rule: the fake entry spans the block, the limit is exact, the count is 1 to the
    /// limit.
    pub fn decode_node<'a>(&self, block: &'a [u8]) -> Result<DxEntries<'a>, Malformed> {
        Malformed::unless(
            block.len() == self.block_size.len(),
            "index node",
            "must be one block long",
            block.len() as u64,
        )?;
        Malformed::unless(
            self.kind_of(block) == Some(DxKind::Node),
            "index node",
            "must begin with an unused entry that spans the block",
            u64::from(block[4]) | u64::from(block[5]) << 8,
        )?;
        self.decode_entries(block, DxKind::Node)
    }

    fn decode_entries<'a>(&self, block: &'a [u8], kind: DxKind) -> Result<DxEntries<'a>, Malformed> {
        let structure = kind.structure();
        let area = block.get(entries_at(kind)..).unwrap_or(&[]);
        let Ok((first, _)) = RawCountLimit::ref_from_prefix(area) else {
            return Err(Malformed::new(structure, "must be one block long", block.len() as u64));
        };
        let (limit, count) = (first.limit.get(), first.count.get());
        Malformed::unless(
            usize::from(limit) == self.limit(kind),
            structure,
            "limit must be what fits",
            limit,
        )?;
        Malformed::unless(count >= 1 && count <= limit, structure, "count must be 1 to the limit", count)?;
        <[RawEntry]>::ref_from_prefix_with_elems(area, usize::from(count))
            .map(|(raw, _)| DxEntries { raw })
            .map_err(|_| Malformed::new(structure, "entries must lie inside the block", count))
    }

    /// Encodes a root with these `entries` and `levels` levels of nodes below it. The checksum is 0 until
    /// [`seal`](Self::seal).
    ///
    /// # Panics
    /// `block` is not one block long, or there are no entries or more than the limit.
    pub fn encode_root(
        &self,
        root: &RootInfo,
        levels: u8,
        entries: impl IntoIterator<Item = DxEntry>,
        block: &mut [u8],
    ) {
        assert_eq!(block.len(), self.block_size.len(), "an index block has the block size");
        let file_type = if root.filetype { FileType::Directory.dirent_code() } else { 0 };
        let dot = |ino: Ino, len: usize, name: &[u8; 4], name_len: u8| RawDot {
            inode: ino.0.into(),
            rec_len: encode_rec_len(len, self.block_size).expect("12 and the rest of the block").into(),
            name_len,
            file_type,
            name: *name,
        };
        let raw = RawRoot {
            dot: dot(root.ino, DOT_REC_LEN, b".\0\0\0", 1),
            dotdot: dot(root.parent, self.block_size.len() - DOT_REC_LEN, b"..\0\0", 2),
            reserved_zero: 0.into(),
            hash_version: root.hash_code,
            info_length: INFO_LEN,
            indirect_levels: levels,
            unused_flags: 0,
        };
        block[..ROOT_ENTRIES_AT].copy_from_slice(raw.as_bytes());
        self.encode_entries(DxKind::Root, entries, block);
    }

    /// Encodes a node with these `entries`. The checksum is 0 until [`seal`](Self::seal).
    ///
    /// # Panics
    /// `block` is not one block long, or there are no entries or more than the limit.
    pub fn encode_node(&self, entries: impl IntoIterator<Item = DxEntry>, block: &mut [u8]) {
        assert_eq!(block.len(), self.block_size.len(), "an index block has the block size");
        let rec_len = encode_rec_len(block.len(), self.block_size).expect("a block's length is a rec_len");
        let fake = RawFake { inode: 0.into(), rec_len: rec_len.into(), name_len: 0, file_type: 0 };
        block[..NODE_ENTRIES_AT].copy_from_slice(fake.as_bytes());
        self.encode_entries(DxKind::Node, entries, block);
    }

    fn encode_entries(&self, kind: DxKind, entries: impl IntoIterator<Item = DxEntry>, block: &mut [u8]) {
        let limit = self.limit(kind);
        let area = &mut block[entries_at(kind)..];
        area.fill(0);
        let mut count = 0;
        for (i, entry) in entries.into_iter().enumerate() {
            assert!(i < limit, "an index block holds at most {limit} entries");
            let raw = RawEntry { hash: entry.hash.into(), block: entry.block.0.into() };
            area[i * ENTRY_LEN..][..ENTRY_LEN].copy_from_slice(raw.as_bytes());
            count = i + 1;
        }
        assert!(count > 0, "an index block has at least one entry");
        // Both fit: the largest limit, that of 64 KiB blocks, is 8191.
        area[..2].copy_from_slice(&(limit as u16).to_le_bytes());
        area[2..4].copy_from_slice(&(count as u16).to_le_bytes());
    }

    /// Stores the checksum of an encoded index block. Does nothing without metadata_csum.
    ///
    /// `inode_seed` is the checksum seed of the directory's inode.
    ///
    /// # Panics
    /// The block is not an index block of this format.
    pub fn seal(&self, block: &mut [u8], inode_seed: u32) {
        if self.csum {
            let (checksum, at) =
                self.checksum(block, inode_seed).expect("only an encoded index block is sealed");
            block[at..at + 4].copy_from_slice(&checksum.to_le_bytes());
        }
    }

    /// Verifies an index block's checksum. Always succeeds without metadata_csum.
    ///
    /// # Errors
    /// The block is not an index block, its limit or count is wrong (they determine what the checksum
    /// covers), or the checksum is wrong.
    pub fn verify(&self, block: &[u8], inode_seed: u32) -> Result<(), Malformed> {
        if !self.csum {
            return Ok(());
        }
        let (checksum, at) = self.checksum(block, inode_seed)?;
        let stored = U32::read_from_prefix(block.get(at..).unwrap_or(&[])).map_or(0, |(word, _)| word.get());
        Malformed::unless(stored == checksum, "index block", "checksum must match", stored)
    }

    /// The correct checksum of the block, and the offset where it is stored.
    fn checksum(&self, block: &[u8], inode_seed: u32) -> Result<(u32, usize), Malformed> {
        let Some(kind) = self.kind_of(block).filter(|_| block.len() == self.block_size.len()) else {
            return Err(Malformed::new("index block", "must be a root or a node", block.len() as u64));
        };
        let count = self.decode_entries(block, kind)?.len();
        let tail_at = entries_at(kind) + self.limit(kind) * ENTRY_LEN;
        let Ok((tail, _)) = RawTail::ref_from_prefix(block.get(tail_at..).unwrap_or(&[])) else {
            return Err(Malformed::new("index block", "must have room for its checksum", tail_at as u64));
        };
        let covered = &block[..entries_at(kind) + count * ENTRY_LEN];
        let crc = crc32c(inode_seed, covered);
        let crc = crc32c(crc, tail.dt_reserved.as_bytes());
        Ok((crc32c(crc, &[0; 4]), tail_at + size_of::<U32>()))
    }
}

impl DxKind {
    fn structure(self) -> &'static str {
        match self {
            Self::Root => "index root",
            Self::Node => "index node",
        }
    }
}

fn entries_at(kind: DxKind) -> usize {
    match kind {
        DxKind::Root => ROOT_ENTRIES_AT,
        DxKind::Node => NODE_ENTRIES_AT,
    }
}

/// The contents of a root besides its entries, for [`DxFormat::encode_root`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RootInfo {
    /// The directory itself.
    pub ino: Ino,
    /// Its parent, for "..".
    pub parent: Ino,
    /// The hash version's code on disk: [`crate::hash::HashVersion::code`].
    pub hash_code: u8,
    /// "." and ".." store their type (feature filetype).
    pub filetype: bool,
}

/// A decoded root; the entries stay in the block.
#[derive(Debug, Clone, Copy)]
pub struct DxRoot<'a> {
    /// The inode of ".".
    pub ino: Ino,
    /// The inode of "..".
    pub parent: Ino,
    /// The hash version: 0, 1, 2 or 6.
    pub hash_code: u8,
    /// Index levels below the root, 0 to 2.
    pub levels: u8,
    /// The root's entries.
    pub entries: DxEntries<'a>,
}

impl RawEntry {
    /// Decodes entry `i` of a block: the first has no hash.
    fn decode(&self, i: usize) -> DxEntry {
        let hash = if i == 0 { 0 } else { self.hash.get() };
        DxEntry { hash, block: Lblk(self.block.get() & CHILD_MASK) }
    }
}

/// The entries of an index block; at least one.
#[derive(Clone, Copy)]
pub struct DxEntries<'a> {
    raw: &'a [RawEntry],
}

impl<'a> DxEntries<'a> {
    /// Number of entries, including entry 0; never 0.
    #[must_use]
    pub fn len(&self) -> usize {
        self.raw.len()
    }

    /// Always false: an index block has at least one entry. It accompanies [`len`](Self::len).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// Entry `i`; `None` past the end.
    #[must_use]
    pub fn get(&self, i: usize) -> Option<DxEntry> {
        self.raw.get(i).map(|raw| raw.decode(i))
    }

    /// All entries in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = DxEntry> + use<'a> {
        self.raw.iter().enumerate().map(|(i, raw)| raw.decode(i))
    }

    /// Index of the entry that covers this hash: the last one whose hash is not above it. O(log n).
    ///
    /// If damaged hashes are not in order, the result is still below [`len`](Self::len).
    #[must_use]
    pub fn position(&self, hash: u32) -> usize {
        self.raw.get(1..).unwrap_or(&[]).partition_point(|entry| entry.hash.get() <= hash)
    }
}

impl std::fmt::Debug for DxEntries<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn format(block_size: u64, csum: bool) -> DxFormat {
        DxFormat { block_size: BlockSize::from_bytes(block_size).unwrap(), csum, large_dir: true }
    }

    const ROOT: RootInfo = RootInfo { ino: Ino(12), parent: Ino(2), hash_code: 1, filetype: true };

    fn some_entries(count: usize) -> impl Iterator<Item = DxEntry> {
        (0..count as u32).map(|i| DxEntry { hash: i * 16, block: Lblk(i + 1) })
    }

    #[test]
    fn limits_of_every_block_size() {
        let rows = [
            (1024, 124, 127, 123, 126),
            (2048, 252, 255, 251, 254),
            (4096, 508, 511, 507, 510),
            (65536, 8188, 8191, 8187, 8190),
        ];
        for (bs, root, node, root_csum, node_csum) in rows {
            assert_eq!(format(bs, false).limit(DxKind::Root), root);
            assert_eq!(format(bs, false).limit(DxKind::Node), node);
            assert_eq!(format(bs, true).limit(DxKind::Root), root_csum);
            assert_eq!(format(bs, true).limit(DxKind::Node), node_csum);
        }
    }

    #[test]
    fn the_bytes_of_a_small_root() {
        let mut block = vec![0xEE; 1024];
        format(1024, true).encode_root(&ROOT, 0, some_entries(2), &mut block);
        assert_eq!(block[..12], [12, 0, 0, 0, 12, 0, 1, 2, b'.', 0, 0, 0]);
        assert_eq!(block[12..24], [2, 0, 0, 0, 0xF4, 3, 2, 2, b'.', b'.', 0, 0]);
        assert_eq!(block[24..32], [0, 0, 0, 0, 1, 8, 0, 0]);
        assert_eq!(block[32..48], [123, 0, 2, 0, 1, 0, 0, 0, 16, 0, 0, 0, 2, 0, 0, 0]);
        assert!(block[48..].iter().all(|&b| b == 0));
    }

    #[test]
    fn each_rule_of_a_root_is_named_when_broken() {
        let format = DxFormat { large_dir: false, ..format(1024, true) };
        let mut good = vec![0; 1024];
        format.encode_root(&ROOT, 1, some_entries(3), &mut good);
        assert_eq!(format.decode_root(&good).unwrap().entries.len(), 3);
        let breaks: [(usize, u8, &str); 11] = [
            (4, 16, "\".\" comes first"),
            (8, b'x', "\".\" comes first"),
            (16, 0, "\"..\" hides the rest of the block"),
            (24, 1, "reserved word must be 0"),
            (28, 3, "hash version must be known"),
            (29, 9, "info length must be 8"),
            (30, 2, "depth must be allowed by the features"),
            (31, 1, "flag bit 0 must be clear"),
            (32, 124, "limit must be what fits"),
            (34, 0, "count must be 1 to the limit"),
            (34, 124, "count must be 1 to the limit"),
        ];
        for (at, byte, rule) in breaks {
            let mut block = good.clone();
            block[at] = byte;
            assert_eq!(format.decode_root(&block).unwrap_err().rule, rule);
        }
        assert!(format.decode_root(&good[..512]).is_err());
        assert!(format.decode_node(&good).is_err());
    }

    #[test]
    fn a_checksum_covers_the_entries_in_use() {
        let format = format(4096, true);
        let mut block = vec![0; 4096];
        format.encode_node(some_entries(100), &mut block);
        assert!(format.verify(&block, 5).is_err());
        format.seal(&mut block, 5);
        assert_eq!(format.verify(&block, 5), Ok(()));
        assert!(format.verify(&block, 6).is_err());
        let behind = NODE_ENTRIES_AT + 100 * ENTRY_LEN;
        block[behind] = 1; // not covered
        assert_eq!(format.verify(&block, 5), Ok(()));
        block[behind - 1] = 1;
        assert!(format.verify(&block, 5).is_err());
    }

    #[test]
    fn position_is_the_last_entry_not_above() {
        let mut block = vec![0; 1024];
        let format = format(1024, false);
        format.encode_node(some_entries(4), &mut block);
        let entries = format.decode_node(&block).unwrap();
        for (hash, at) in [(0, 0), (15, 0), (16, 1), (47, 2), (48, 3), (u32::MAX, 3)] {
            assert_eq!(entries.position(hash), at);
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            log in 0u32..=6, csum: bool, seed: u32, levels in 0u8..=2,
            entries in prop::collection::vec((any::<u32>(), 0..CHILD_MASK), 1..120),
        ) {
            let format = format(1024 << log, csum);
            let mut entries: Vec<_> =
                entries.into_iter().map(|(hash, block)| DxEntry { hash, block: Lblk(block) }).collect();
            entries[0].hash = 0;
            let mut block = vec![0xEE; format.block_size.len()];
            format.encode_root(&ROOT, levels, entries.iter().copied(), &mut block);
            format.seal(&mut block, seed);
            prop_assert_eq!(format.verify(&block, seed), Ok(()));
            prop_assert_eq!(format.kind_of(&block), Some(DxKind::Root));
            let root = format.decode_root(&block).unwrap();
            prop_assert_eq!(root.entries.iter().collect::<Vec<_>>(), entries.clone());
            prop_assert_eq!((root.ino, root.parent, root.levels), (Ino(12), Ino(2), levels));

            format.encode_node(entries.iter().copied(), &mut block);
            format.seal(&mut block, seed);
            prop_assert_eq!(format.verify(&block, seed), Ok(()));
            prop_assert_eq!(format.decode_node(&block).unwrap().iter().collect::<Vec<_>>(), entries);
        }

        #[test]
        fn any_bytes_decode_or_are_malformed(
            bytes in prop::collection::vec(any::<u8>(), 0..1100), at in 0usize..1024, byte: u8, hash: u32, csum: bool,
        ) {
            let format = format(1024, csum);
            let mut blocks = [bytes.clone(), bytes, vec![0; 1024], vec![0; 1024]];
            blocks[1].resize(1024, 0);
            format.encode_root(&ROOT, 1, some_entries(5), &mut blocks[2]);
            format.encode_node(some_entries(5), &mut blocks[3]);
            blocks[2][at] = byte;
            blocks[3][at] = byte;
            for block in &blocks {
                let _ = format.verify(block, 0);
                let _ = format.decode_root(block);
                if let Ok(entries) = format.decode_node(block) {
                    prop_assert!(entries.position(hash) < entries.len());
                }
            }
        }
    }
}
