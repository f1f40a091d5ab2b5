//! Extended attributes: small ones after the inode's fields, more in one block, large values in their own
//! inodes.
//!
//! Owns: names as (index, suffix), the bytes of the two areas, hashes, the block's checksum, and the
//! arithmetic of sizes. Does **not** own: the start of the inode's area (see the inode), the meaning of a
//! value (ACLs: [`crate::acl`]), EA inodes, the sharing of equal blocks.
//!
//! ```text
//! in the inode, after 128 + extra_isize bytes        in a block
//! | magic | entry entry ... 0 | free | values |      | header, 32 | entry entry ... 0 | free | values |
//!         ^ value offsets count from here            ^ value offsets count from here
//!
//! entry:  0         1      2       4           8           12    16
//!         | name_len| index| offset| EA inode  | value size| hash| suffix, padded to 4 |
//! ```
//!
//! Invariants
//! 1. Entries grow upwards and end with four zero bytes. Values grow downwards and do not overlap the
//!    entries.
//! 2. Values begin at multiples of 4 and do not overlap.
//! 3. A block's entries are sorted by (index, suffix length, suffix): the kernel's search relies on the order
//!    to stop early.
//! 4. Entry hashes are written over unsigned bytes. Machines with signed characters once wrote them
//!    differently; readers accept both. For a value stored in the inode the hash is 0, as the kernel writes
//!    it.
//!
//! Source: kernel Documentation/filesystems/ext4/attributes.rst, eainode.rst.

mod edit;

use std::fmt;

pub use edit::{refcount, set_refcount, set_value_inode, value_reference_words, value_references};
use extant_base::checksum::crc32c;
use extant_base::{Ino, Malformed, Pblk};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First word of both areas.
pub const MAGIC: u32 = 0xEA02_0000;
/// A rule of entries that e2fsck and the kernel do not enforce in inodes.
pub const NAME_WITHOUT_NUL: &str = "a name must have no NUL";
/// Another such rule, like [`NAME_WITHOUT_NUL`].
pub const VALUE_ALIGNED: &str = "a value must be aligned";

/// Bytes of a block before its first entry.
pub const BLOCK_HEADER_LEN: usize = 32;
/// Bytes of the inode's area before its first entry.
pub const IBODY_HEADER_LEN: usize = 4;
/// Maximum length of a suffix in bytes.
pub const NAME_LEN_MAX: usize = 255;
/// Maximum length of a value in Linux's system calls, in bytes.
pub const VALUE_LEN_MAX: usize = 65536;
/// Maximum length of a value in an EA inode that an entry may state, in bytes. The kernel reports a larger
/// one as corrupt.
pub const STORED_VALUE_LEN_MAX: u32 = 1 << 24;
/// Maximum number of inodes that share a block.
pub const REFCOUNT_MAX: u32 = 1024;

/// Index of "user." names.
pub const INDEX_USER: u8 = 1;
/// Index of the access ACL; its suffix is empty.
pub const INDEX_ACL_ACCESS: u8 = 2;
/// Index of a directory's default ACL; its suffix is empty.
pub const INDEX_ACL_DEFAULT: u8 = 3;
/// Index of "trusted." names.
pub const INDEX_TRUSTED: u8 = 4;
/// Index of "security." names.
pub const INDEX_SECURITY: u8 = 6;
/// Index of other "system." names; with suffix "data" the value is an inode's inline data.
pub const INDEX_SYSTEM: u8 = 7;
/// Index of rich ACLs; the suffix is empty.
pub const INDEX_RICHACL: u8 = 8;
/// Index of the encryption context, suffix "c"; it has no name in system calls.
pub const INDEX_ENCRYPTION: u8 = 9;
/// Index of the Hurd's "gnu." names.
pub const INDEX_HURD: u8 = 10;
/// Index of fs-verity's descriptor, suffix "v"; it has no name in system calls.
pub const INDEX_VERITY: u8 = 11;

const ENTRY_HEADER_LEN: usize = size_of::<RawEntry>();
const END_LEN: usize = 4;
const CHECKSUM_AT: usize = 16;

/// The text for each index. A text with a dot at its end is a prefix, the others are complete names.
const NAMES: [(u8, &str); 8] = [
    (INDEX_USER, "user."),
    (INDEX_ACL_ACCESS, "system.posix_acl_access"),
    (INDEX_ACL_DEFAULT, "system.posix_acl_default"),
    (INDEX_TRUSTED, "trusted."),
    (INDEX_SECURITY, "security."),
    (INDEX_RICHACL, "system.richacl"),
    (INDEX_SYSTEM, "system."), // after the complete names with this prefix
    (INDEX_HURD, "gnu."),
];

/// Splits a name of the system calls ("user.mime") into the index and the suffix stored on disk.
///
/// `None` for names that ext4 cannot store: an unknown prefix, nothing after a prefix, NUL, more than 255
/// bytes.
#[must_use]
pub fn split_name(full: &[u8]) -> Option<(u8, &[u8])> {
    NAMES.iter().find_map(|&(index, text)| {
        let suffix = full.strip_prefix(text.as_bytes())?;
        let fits = match text.ends_with('.') {
            true => (1..=NAME_LEN_MAX).contains(&suffix.len()) && !suffix.contains(&0),
            false => suffix.is_empty(),
        };
        fits.then_some((index, suffix))
    })
}

/// The system calls' name for an index and a suffix on disk; `None` for indices that have none.
#[must_use]
pub fn full_name(index: u8, suffix: &[u8]) -> Option<Vec<u8>> {
    let (_, text) = NAMES.iter().find(|(known, _)| *known == index)?;
    Some([text.as_bytes(), suffix].concat())
}

/// A block's header, on disk.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHeader {
    h_magic: U32,
    h_refcount: U32,
    h_blocks: U32,
    h_hash: U32,
    h_checksum: U32,
    h_reserved: [U32; 3],
}

/// An entry before its suffix, on disk.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawEntry {
    e_name_len: u8,
    e_name_index: u8,
    e_value_offs: U16,
    e_value_inum: U32,
    e_value_size: U32,
    e_hash: U32,
}

/// An attribute's value, or the inode that stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttrValue<'a> {
    /// The value itself.
    Bytes(&'a [u8]),
    /// The value is the content of an EA inode (feature ea_inode).
    Inode {
        /// That inode.
        ino: Ino,
        /// Size of the value in bytes.
        size: u32,
        /// Checksum of the value with the file system's seed, also stored in that inode. In a decoded
        /// attribute: the value that the entry's hash implies.
        hash: u32,
    },
}

/// One attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Attr<'a> {
    /// The index of the name's prefix; see [`split_name`].
    pub index: u8,
    /// The name after the prefix, without NUL.
    pub name: &'a [u8],
    /// The value.
    pub value: AttrValue<'a>,
}

impl Attr<'_> {
    /// Bytes that this attribute takes in an area, in the inode or in a block: its entry and its padded
    /// value.
    #[must_use]
    pub fn stored_len(&self) -> usize {
        let value_len = match self.value {
            AttrValue::Bytes(bytes) => bytes.len().next_multiple_of(4),
            AttrValue::Inode { .. } => 0,
        };
        entry_len(self.name.len()) + value_len
    }

    /// The sort key of a block's entries.
    #[must_use]
    pub fn sort_key(&self) -> (u8, usize, &[u8]) {
        (self.index, self.name.len(), self.name)
    }

    fn size_and_inode(&self) -> (u32, u32) {
        match self.value {
            AttrValue::Bytes(bytes) => (bytes.len() as u32, 0),
            AttrValue::Inode { ino, size, .. } => (size, ino.0),
        }
    }
}

/// An attribute decoded from an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredAttr<'a> {
    /// The attribute.
    pub attr: Attr<'a>,
    /// Byte offset of its entry within the decoded area or block.
    pub offset: usize,
    /// `e_hash` as on disk.
    pub hash: u32,
    /// Whether it was in the inode (where a hash of 0 is valid) or in a block.
    pub in_inode: bool,
}

impl StoredAttr<'_> {
    /// Whether the entry's hash matches its name and value, over signed or unsigned bytes. Always true for a
    /// value in an EA inode, which only [`hash_matches_crc`](Self::hash_matches_crc) can check.
    #[must_use]
    pub fn hash_matches(&self) -> bool {
        match self.attr.value {
            AttrValue::Bytes(_) => {
                (self.in_inode && self.hash == 0)
                    || [false, true].into_iter().any(|signed| entry_hash(&self.attr, signed) == self.hash)
            }
            AttrValue::Inode { .. } => true,
        }
    }

    /// Whether the entry's hash matches its name and a value in an EA inode whose checksum is `crc`.
    #[must_use]
    pub fn hash_matches_crc(&self, crc: u32) -> bool {
        [false, true].into_iter().any(|signed| hash_word(name_hash(self.attr.name, signed), crc) == self.hash)
    }
}

/// The header of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHeader {
    /// Number of inodes that share the block; 1 to [`REFCOUNT_MAX`] in a consistent file system.
    pub refcount: u32,
    /// Hash over the entries' hashes, to find equal blocks; 0 if unknown.
    pub hash: u32,
}

/// The attributes do not fit into the space given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRoom {
    /// Bytes needed.
    pub needed: usize,
    /// Bytes available.
    pub space: usize,
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "extended attributes need {} bytes and have {}", self.needed, self.space)
    }
}

impl std::error::Error for NoRoom {}

/// Bytes of an entry whose suffix has `name_len` bytes, without its value.
#[must_use]
pub fn entry_len(name_len: usize) -> usize {
    (ENTRY_HEADER_LEN + name_len).next_multiple_of(4)
}

/// Bytes that the attributes need after the inode's fixed fields: 0 if there are none, else magic, entries,
/// end and values.
#[must_use]
pub fn ibody_len<'a>(attrs: impl IntoIterator<Item = &'a Attr<'a>>) -> usize {
    let stored: usize = attrs.into_iter().map(Attr::stored_len).sum();
    if stored == 0 { 0 } else { IBODY_HEADER_LEN + stored + END_LEN }
}

/// Bytes that the attributes need in a block: header, entries, end and values.
#[must_use]
pub fn block_len<'a>(attrs: impl IntoIterator<Item = &'a Attr<'a>>) -> usize {
    BLOCK_HEADER_LEN + attrs.into_iter().map(Attr::stored_len).sum::<usize>() + END_LEN
}

/// Decodes the attributes of an inode: `area` is the inode from byte 128 + extra_isize to its end.
///
/// An area that does not begin with the magic has no attributes.
///
/// # Errors
/// The first broken rule; see [`decode_block`].
pub fn decode_ibody(area: &[u8]) -> Result<Vec<StoredAttr<'_>>, Malformed> {
    match U32::ref_from_prefix(area) {
        Ok((magic, base)) if magic.get() == MAGIC => {
            let mut attrs = decode_entries(base, 0, true)?;
            attrs.iter_mut().for_each(|attr| attr.offset += IBODY_HEADER_LEN);
            Ok(attrs)
        }
        _ => Ok(Vec::new()),
    }
}

/// Decodes an attribute block. It does not check the checksum (see [`verify_block`]).
///
/// # Errors
/// The first broken rule: magic, one block, the list of entries ends, names have no NUL, values are aligned,
/// are between the entries and the end, and do not overlap. Order, hashes and the refcount are left to a
/// checker.
pub fn decode_block(block: &[u8]) -> Result<(BlockHeader, Vec<StoredAttr<'_>>), Malformed> {
    const STRUCTURE: &str = "attribute block";
    let Ok((raw, _)) = RawHeader::ref_from_prefix(block) else {
        return Err(Malformed::new(STRUCTURE, "must have room for its header", block.len() as u64));
    };
    Malformed::unless(raw.h_magic.get() == MAGIC, STRUCTURE, "magic must be 0xEA020000", raw.h_magic.get())?;
    Malformed::unless(raw.h_blocks.get() == 1, STRUCTURE, "must be one block", raw.h_blocks.get())?;
    let header = BlockHeader { refcount: raw.h_refcount.get(), hash: raw.h_hash.get() };
    Ok((header, decode_entries(block, BLOCK_HEADER_LEN, false)?))
}

/// Decodes the entries from `first` on; value offsets count from the start of `base`.
fn decode_entries(base: &[u8], first: usize, in_inode: bool) -> Result<Vec<StoredAttr<'_>>, Malformed> {
    const STRUCTURE: &str = "attribute entry";
    let rule = |holds, rule, found: usize| Malformed::unless(holds, STRUCTURE, rule, found as u64);
    let mut raws = Vec::new();
    let mut at = first;
    loop {
        let rest = base.get(at..).unwrap_or(&[]);
        let Ok((end, _)) = U32::ref_from_prefix(rest) else {
            return Err(Malformed::new(STRUCTURE, "list must end inside the area", at as u64));
        };
        if end.get() == 0 {
            break;
        }
        let named = RawEntry::ref_from_prefix(rest).ok();
        let named = named.and_then(|(raw, rest)| Some((raw, rest.get(..usize::from(raw.e_name_len))?)));
        let Some((raw, name)) = named else {
            return Err(Malformed::new(STRUCTURE, "must lie inside the area", at as u64));
        };
        rule(!name.contains(&0), NAME_WITHOUT_NUL, at)?;
        raws.push((at, raw, name));
        at += entry_len(name.len());
    }
    let values_from = at + END_LEN;

    let mut attrs = Vec::with_capacity(raws.len());
    let mut taken = Vec::new();
    for (offset, raw, name) in raws {
        let (size, start) = (raw.e_value_size.get(), usize::from(raw.e_value_offs.get()));
        let hash = raw.e_hash.get();
        let value = match (raw.e_value_inum.get(), size) {
            (0, 0) => AttrValue::Bytes(&[]), // the offset means nothing
            (0, size) => {
                rule(start.is_multiple_of(4), VALUE_ALIGNED, start)?;
                rule(start >= values_from, "a value must lie after the entries", start)?;
                let rest = base.get(start..).unwrap_or(&[]);
                let Some(bytes) = usize::try_from(size).ok().and_then(|size| rest.get(..size)) else {
                    return Err(Malformed::new(STRUCTURE, "value must end inside the area", size));
                };
                taken.push(start..start + bytes.len());
                AttrValue::Bytes(bytes)
            }
            (ino, size) => {
                rule(size <= STORED_VALUE_LEN_MAX, "a value must be at most 16 MiB", size as usize)?;
                // The inverse of hash_word: what remains is the word that it hashed.
                let implied = hash ^ name_hash(name, false).rotate_left(16);
                AttrValue::Inode { ino: Ino(ino), size, hash: implied }
            }
        };
        attrs.push(StoredAttr {
            attr: Attr { index: raw.e_name_index, name, value },
            offset,
            hash,
            in_inode,
        });
    }
    taken.sort_unstable_by_key(|range| range.start);
    for pair in taken.windows(2) {
        rule(pair[0].end <= pair[1].start, "values do not overlap", pair[1].start)?;
    }
    Ok(attrs)
}

/// Encodes attributes to the area after an inode's fields, in this order. Without attributes the area is
/// zeroed.
///
/// # Errors
/// [`NoRoom`] if [`ibody_len`] exceeds the area's length; `area` is unchanged.
///
/// # Panics
/// A suffix is longer than 255 bytes.
pub fn encode_ibody(attrs: &[Attr<'_>], area: &mut [u8]) -> Result<(), NoRoom> {
    let (needed, space) = (ibody_len(attrs), area.len() & !3);
    if needed > space {
        return Err(NoRoom { needed, space });
    }
    area.fill(0);
    if let Some((magic, base)) = area.split_first_chunk_mut().filter(|_| !attrs.is_empty()) {
        *magic = MAGIC.to_le_bytes();
        let _ = encode_entries(attrs.iter().copied(), base, 0, true);
    }
    Ok(())
}

/// Encodes an attribute block; the checksum is 0 until [`seal_block`].
///
/// # Errors
/// [`NoRoom`] if [`block_len`] exceeds the block's length; `block` is unchanged.
///
/// # Panics
/// A suffix is longer than 255 bytes.
pub fn encode_block(attrs: &[Attr<'_>], refcount: u32, block: &mut [u8]) -> Result<(), NoRoom> {
    let (needed, space) = (block_len(attrs), block.len());
    if needed > space {
        return Err(NoRoom { needed, space });
    }
    block.fill(0);
    let mut sorted: Vec<Attr<'_>> = attrs.to_vec();
    sorted.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
    let hash = encode_entries(sorted.into_iter(), block, BLOCK_HEADER_LEN, false);
    let header = RawHeader {
        h_magic: MAGIC.into(),
        h_refcount: refcount.into(),
        h_blocks: 1.into(),
        h_hash: hash.into(),
        h_checksum: 0.into(),
        h_reserved: [0.into(); 3],
    };
    block[..BLOCK_HEADER_LEN].copy_from_slice(header.as_bytes());
    Ok(())
}

/// Writes entries from `first` up and values from the end down; returns the hash over all entries.
fn encode_entries<'a>(
    attrs: impl Iterator<Item = Attr<'a>>,
    base: &mut [u8],
    first: usize,
    in_inode: bool,
) -> u32 {
    let mut at = first;
    let mut values_at = base.len() & !3;
    let mut hashes = Vec::new();
    for attr in attrs {
        assert!(attr.name.len() <= NAME_LEN_MAX, "a suffix has at most 255 bytes");
        let mut value_offs = 0;
        let mut hash = entry_hash(&attr, false);
        if let AttrValue::Bytes(bytes) = attr.value {
            if in_inode {
                hash = 0;
            }
            if !bytes.is_empty() {
                values_at -= bytes.len().next_multiple_of(4);
                base[values_at..values_at + bytes.len()].copy_from_slice(bytes);
                value_offs = values_at;
            }
        }
        let (size, ino) = attr.size_and_inode();
        let raw = RawEntry {
            e_name_len: attr.name.len() as u8,
            e_name_index: attr.index,
            e_value_offs: (value_offs as u16).into(), // below 64 KiB, the largest block
            e_value_inum: ino.into(),
            e_value_size: size.into(),
            e_hash: hash.into(),
        };
        base[at..at + ENTRY_HEADER_LEN].copy_from_slice(raw.as_bytes());
        base[at + ENTRY_HEADER_LEN..][..attr.name.len()].copy_from_slice(attr.name);
        at += entry_len(attr.name.len());
        hashes.push(hash);
    }
    block_hash(hashes)
}

/// The hash of one entry: over its suffix, then over its value in words. For a value in an EA inode: over the
/// suffix and the value's checksum.
///
/// `signed` extends the suffix's bytes as signed numbers, as some machines once did; writers use `false`.
#[must_use]
pub fn entry_hash(attr: &Attr<'_>, signed: bool) -> u32 {
    let hash = name_hash(attr.name, signed);
    match attr.value {
        AttrValue::Bytes(bytes) => bytes.chunks(4).fold(hash, |hash, chunk| {
            let mut word = [0; 4];
            word[..chunk.len()].copy_from_slice(chunk);
            hash_word(hash, u32::from_le_bytes(word))
        }),
        AttrValue::Inode { hash: crc, .. } => hash_word(hash, crc),
    }
}

/// The hash of a block, from its entries' hashes in order; 0 if any of them is 0.
#[must_use]
pub fn block_hash(entry_hashes: impl IntoIterator<Item = u32>) -> u32 {
    let folded =
        entry_hashes.into_iter().try_fold(0, |hash, entry| (entry != 0).then(|| hash_word(hash, entry)));
    folded.unwrap_or(0)
}

fn name_hash(name: &[u8], signed: bool) -> u32 {
    name.iter().fold(0u32, |hash, &byte| {
        hash.rotate_left(5) ^ if signed { byte as i8 as u32 } else { u32::from(byte) }
    })
}

fn hash_word(hash: u32, word: u32) -> u32 {
    hash.rotate_left(16) ^ word
}

/// Stores the checksum of a block whose address is `place`. For file systems with metadata_csum only.
///
/// `fs_seed` is the file system's checksum seed, because a shared block belongs to no single inode.
///
/// # Panics
/// The block is shorter than its header.
pub fn seal_block(block: &mut [u8], fs_seed: u32, place: Pblk) {
    let checksum = checksum(block, fs_seed, place).to_le_bytes();
    block[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum);
}

/// Removes the checksum from a block, for file systems without metadata_csum.
///
/// # Panics
/// The block is shorter than its header.
pub fn clear_checksum(block: &mut [u8]) {
    block[CHECKSUM_AT..CHECKSUM_AT + 4].fill(0);
}

/// Verifies the checksum of a block read from `place`. For file systems with metadata_csum only.
///
/// # Errors
/// The block is too short, or its checksum is wrong.
pub fn verify_block(block: &[u8], fs_seed: u32, place: Pblk) -> Result<(), Malformed> {
    const STRUCTURE: &str = "attribute block";
    let Ok((raw, _)) = RawHeader::ref_from_prefix(block) else {
        return Err(Malformed::new(STRUCTURE, "must have room for its header", block.len() as u64));
    };
    let stored = raw.h_checksum.get();
    Malformed::unless(stored == checksum(block, fs_seed, place), STRUCTURE, "checksum must match", stored)
}

fn checksum(block: &[u8], fs_seed: u32, place: Pblk) -> u32 {
    let crc = crc32c(fs_seed, &place.0.to_le_bytes());
    let crc = crc32c(crc, &block[..CHECKSUM_AT]);
    crc32c(crc32c(crc, &[0; 4]), &block[CHECKSUM_AT + 4..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes<'a>(index: u8, name: &'a str, value: &'a [u8]) -> Attr<'a> {
        Attr { index, name: name.as_bytes(), value: AttrValue::Bytes(value) }
    }

    #[test]
    fn names_split_and_join() {
        let rows: [(&str, Option<(u8, &str)>); 12] = [
            ("user.mime", Some((1, "mime"))),
            ("user.", None),
            ("system.posix_acl_access", Some((2, ""))),
            ("system.posix_acl_default", Some((3, ""))),
            ("system.richacl", Some((8, ""))),
            ("system.posix_acl_accessory", Some((7, "posix_acl_accessory"))),
            ("system.data", Some((7, "data"))),
            ("trusted.overlay.opaque", Some((4, "overlay.opaque"))),
            ("security.capability", Some((6, "capability"))),
            ("gnu.translator", Some((10, "translator"))),
            ("btrfs.compression", None),
            ("user.a\0b", None),
        ];
        for (full, parts) in rows {
            let split = split_name(full.as_bytes());
            assert_eq!(split, parts.map(|(index, suffix)| (index, suffix.as_bytes())), "{full}");
            if let Some((index, suffix)) = split {
                assert_eq!(full_name(index, suffix).unwrap(), full.as_bytes());
            }
        }
        assert_eq!(full_name(INDEX_ENCRYPTION, b"c"), None);
        assert!(split_name(format!("user.{}", "x".repeat(256)).as_bytes()).is_none());
    }

    #[test]
    fn the_bytes_of_a_small_area() {
        let mut area = [0xEE; 64];
        encode_ibody(&[bytes(1, "ab", b"hello")], &mut area).unwrap();
        assert_eq!(area[..4], [0, 0, 2, 0xEA]);
        assert_eq!(area[4..24], [2, 1, 52, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, b'a', b'b', 0, 0]);
        assert_eq!(area[56..], *b"hello\0\0\0");
        assert!(area[24..56].iter().all(|&b| b == 0));
        encode_ibody(&[], &mut area).unwrap();
        assert_eq!(area, [0; 64]);
    }

    #[test]
    fn blocks_are_sorted_and_hashed() {
        let attrs = [
            bytes(6, "selinux", b"ctx\0"),
            bytes(1, "bb", b""),
            bytes(1, "a", b"1"),
            bytes(1, "ab", &[7; 9]),
            Attr {
                index: 1,
                name: b"big",
                value: AttrValue::Inode { ino: Ino(77), size: 5000, hash: 0xABCD },
            },
        ];
        let mut block = [0xEE; 1024];
        encode_block(&attrs, 3, &mut block).unwrap();
        let (header, stored) = decode_block(&block).unwrap();
        assert_eq!(header.refcount, 3);
        assert_eq!(header.hash, block_hash(stored.iter().map(|s| s.hash)));
        let names: Vec<_> = stored.iter().map(|s| std::str::from_utf8(s.attr.name).unwrap()).collect();
        assert_eq!(names, ["a", "ab", "bb", "big", "selinux"]);
        assert!(stored.iter().all(|s| s.hash_matches() && !s.in_inode && attrs.contains(&s.attr)));
        assert!(stored[3].hash_matches_crc(0xABCD) && !stored[3].hash_matches_crc(0xABCE));
    }

    #[test]
    fn both_signs_of_the_hash_are_accepted_and_zero_only_in_the_inode() {
        let attr = bytes(1, "naïve", b"value");
        let stored = |hash, in_inode| StoredAttr { attr, offset: 0, hash, in_inode };
        assert_ne!(entry_hash(&attr, false), entry_hash(&attr, true));
        assert!(stored(entry_hash(&attr, false), false).hash_matches());
        assert!(stored(entry_hash(&attr, true), false).hash_matches());
        assert!(stored(0, true).hash_matches());
        assert!(!stored(0, false).hash_matches());
        assert_eq!(block_hash([5, 0, 7]), 0);
    }

    #[test]
    fn what_fits_exactly_fits() {
        let attrs = [bytes(1, "name", &[1; 30]), bytes(6, "x", &[2; 3])];
        let needed = ibody_len(&attrs);
        assert_eq!(needed, 4 + (20 + 32) + (20 + 4) + 4);
        let mut area = vec![0; needed];
        encode_ibody(&attrs, &mut area).unwrap();
        assert_eq!(decode_ibody(&area).unwrap().len(), 2);
        let space = needed - 4;
        assert_eq!(encode_ibody(&attrs, &mut area[..space]), Err(NoRoom { needed, space }));
        assert_eq!(block_len(&attrs), needed + 28);
        // The largest value of one attribute in a 4 KiB block: 4096 - header - entry - end.
        let value = vec![3; 4096 - 32 - 20 - 4];
        encode_block(&[bytes(1, "big", &value)], 1, &mut [0; 4096]).unwrap();
        assert_eq!(ibody_len([]), 0);
    }

    #[test]
    fn each_rule_is_named_when_broken() {
        let mut good = [0; 1024];
        encode_block(&[bytes(1, "a", b"1234"), bytes(1, "b", b"5678")], 1, &mut good).unwrap();
        let breaks: [(usize, &[u8], &str); 9] = [
            (0, &[1], "magic must be 0xEA020000"),
            (8, &[2], "must be one block"),
            (48, &[0], "a name must have no NUL"),
            (34, &[0xFD], "a value must be aligned"),
            (34, &[72, 0], "a value must lie after the entries"),
            (34, &[0xFC, 0xFF], "value must end inside the area"),
            (40, &[5], "none"),
            (54, &[0xFC], "values do not overlap"),
            (36, &[9, 0, 0, 0, 0, 0, 0, 2], "a value must be at most 16 MiB"),
        ];
        for (at, new, rule) in breaks {
            let mut block = good;
            block[at..at + new.len()].copy_from_slice(new);
            let found = decode_block(&block).err().map_or("none", |e| e.rule);
            // Bytes 1020 to 1023 are a's, bytes 1016 to 1019 b's: five bytes of a would end outside.
            let rule = if at == 40 { "value must end inside the area" } else { rule };
            assert_eq!(found, rule);
        }
        let mut endless = [0xFF; 64];
        endless[..4].copy_from_slice(&MAGIC.to_le_bytes());
        assert!(decode_ibody(&endless).is_err());
        assert_eq!(decode_ibody(&[0; 3]).unwrap(), []);
        assert!(decode_block(&[0; 31]).is_err());
    }

    #[test]
    fn a_block_is_sealed_for_its_place() {
        let mut block = [0; 1024];
        encode_block(&[bytes(1, "a", b"1234")], 1, &mut block).unwrap();
        seal_block(&mut block, 9, Pblk(100));
        assert_eq!(verify_block(&block, 9, Pblk(100)), Ok(()));
        assert!(verify_block(&block, 9, Pblk(101)).is_err());
        assert!(verify_block(&block, 8, Pblk(100)).is_err());
        assert!(verify_block(&block[..20], 9, Pblk(100)).is_err());
    }

    type Owned = (u8, Vec<u8>, Vec<u8>, Option<(u32, u32)>);

    fn some_attrs() -> impl Strategy<Value = Vec<Owned>> {
        let name = prop::collection::vec(1..=255u8, 1..40);
        let value = prop::collection::vec(any::<u8>(), 0..60);
        let ea_inode = prop::option::weighted(0.2, (1u32.., any::<u32>()));
        prop::collection::vec((1u8..12, name, value, ea_inode), 0..12)
    }

    fn borrow(attr: &Owned) -> Attr<'_> {
        let (index, name, value, ea_inode) = attr;
        let value = match *ea_inode {
            Some((ino, hash)) => AttrValue::Inode { ino: Ino(ino), size: 70_000, hash },
            None => AttrValue::Bytes(value),
        };
        Attr { index: *index, name, value }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(owned in some_attrs(), log in 8usize..=16) {
            let attrs: Vec<_> = owned.iter().map(borrow).collect();
            let mut space = vec![0xEE; 1 << log];
            match encode_ibody(&attrs, &mut space) {
                Ok(()) => {
                    let stored = decode_ibody(&space).unwrap();
                    prop_assert!(stored.iter().all(StoredAttr::hash_matches));
                    prop_assert_eq!(stored.iter().map(|s| s.attr).collect::<Vec<_>>(), attrs.clone());
                }
                Err(no_room) => prop_assert!(no_room.needed > 1 << log),
            }
            match encode_block(&attrs, 1, &mut space) {
                Ok(()) => {
                    let (_, stored) = decode_block(&space).unwrap();
                    let mut sorted = attrs;
                    sorted.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
                    prop_assert!(stored.iter().all(StoredAttr::hash_matches));
                    prop_assert_eq!(stored.iter().map(|s| s.attr).collect::<Vec<_>>(), sorted);
                }
                Err(no_room) => prop_assert!(no_room.needed > 1 << log),
            }
        }

        #[test]
        fn any_bytes_decode_or_are_malformed(
            mut bytes in prop::collection::vec(prop_oneof![1 => Just(0u8), 1 => any::<u8>()], 0..512),
            owned in some_attrs(), at in 0usize..1024, byte: u8,
        ) {
            let _ = decode_block(&bytes);
            let _ = verify_block(&bytes, 0, Pblk(0));
            if let Some(magic) = bytes.first_chunk_mut() {
                *magic = MAGIC.to_le_bytes();
            }
            let _ = decode_ibody(&bytes);
            let _ = decode_block(&bytes);
            let mut block = vec![0; 1024];
            let attrs: Vec<_> = owned.iter().map(borrow).collect();
            let _ = encode_block(&attrs, 1, &mut block);
            block[at] = byte;
            if let Ok((_, stored)) = decode_block(&block) {
                prop_assert!(stored.iter().map(|s| entry_len(s.attr.name.len())).sum::<usize>() <= 1024);
            }
        }
    }
}
