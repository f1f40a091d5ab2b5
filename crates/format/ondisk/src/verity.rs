//! fs-verity: the location of a protected file's Merkle tree, and the descriptor with the tree's root hash.
//!
//! ```text
//! | data, i_size bytes | to 64 KiB | Merkle tree | to a block | descriptor | zeros | descriptor len le32 |
//!                                                                         ends with the last mapped block ^
//!
//! descriptor: 00 version  01 hash algorithm  02 log2 block size  03 salt length  04 signature length le32
//!             08 data size le64   10 root hash[64]   50 salt[32]   70 zeros[144]   100 signature
//! ```
//!
//! Owns the arithmetic and the bytes of the descriptor. Does **not** own: hashing, signatures, the VERITY
//! flag.
//!
//! Source: kernel Documentation/filesystems/fsverity.rst; Documentation/filesystems/ext4/verity.rst.

use std::ops::Range;

use extant_base::{BlockSize, Malformed};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

const STRUCTURE: &str = "fs-verity descriptor";

/// The tree begins at a multiple of this many bytes, so that it is page-aligned for every page size.
const ALIGNMENT: u64 = 65_536;

/// Maximum length of a descriptor in Linux, including its signature.
pub const MAX_DESCRIPTOR_LEN: u32 = 16_384;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Raw {
    version: u8,
    hash_algorithm: u8,
    log_blocksize: u8,
    salt_size: u8,
    sig_size: U32,
    data_size: U64,
    root_hash: [u8; 64],
    salt: [u8; 32],
    reserved: [u8; 144],
}

/// The hash function of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HashAlgorithm {
    /// SHA-256: 32 bytes.
    Sha256,
    /// SHA-512: 64 bytes.
    Sha512,
}

impl HashAlgorithm {
    /// Bytes of one hash.
    #[must_use]
    pub fn digest_len(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha512 => 64,
        }
    }

    fn code(self) -> u8 {
        match self {
            Self::Sha256 => 1,
            Self::Sha512 => 2,
        }
    }
}

/// The fixed part of a descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerityDescriptor {
    /// The hash function of the tree.
    pub hash_algorithm: HashAlgorithm,
    /// Block size of the tree; not always the file system's.
    pub block_size: BlockSize,
    /// Used bytes of [`salt`](Self::salt): 0 to 32.
    pub salt_len: u8,
    /// Bytes of the signature after the fixed part; 0 for none.
    pub signature_len: u32,
    /// Size of the protected data in bytes; must equal the inode's size.
    pub data_size: u64,
    /// Hash of the tree's root block, padded with zeros.
    pub root_hash: [u8; 64],
    /// Prepended to every hashed block; padded with zeros.
    pub salt: [u8; 32],
}

impl VerityDescriptor {
    /// Bytes of the fixed part.
    pub const LEN: usize = 256;

    /// Decodes the fixed part of a descriptor.
    ///
    /// # Errors
    /// The bytes are too short; the version, algorithm, block size or salt length is one that Linux also
    /// refuses; reserved bytes are in use.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let (raw, _) = Raw::read_from_prefix(bytes)
            .map_err(|_| Malformed::new(STRUCTURE, "must have at least 256 bytes", bytes.len() as u64))?;
        let rule = |holds, rule, found: u8| Malformed::unless(holds, STRUCTURE, rule, found);
        rule(raw.version == 1, "version must be 1", raw.version)?;
        let hash_algorithm = match raw.hash_algorithm {
            1 => HashAlgorithm::Sha256,
            2 => HashAlgorithm::Sha512,
            other => return Err(Malformed::new(STRUCTURE, "hash algorithm must be 1 or 2", other)),
        };
        let block_size = u32::from(raw.log_blocksize).checked_sub(10).and_then(BlockSize::from_log);
        let block_size = block_size.ok_or(Malformed::new(
            STRUCTURE,
            "block size must be between 1 KiB and 64 KiB",
            raw.log_blocksize,
        ))?;
        rule(raw.salt_size <= 32, "the salt must have at most 32 bytes", raw.salt_size)?;
        let reserved = raw.reserved.iter().copied().find(|byte| *byte != 0);
        rule(reserved.is_none(), "reserved bytes must be zero", reserved.unwrap_or(0))?;
        Ok(Self {
            hash_algorithm,
            block_size,
            salt_len: raw.salt_size,
            signature_len: raw.sig_size.get(),
            data_size: raw.data_size.get(),
            root_hash: raw.root_hash,
            salt: raw.salt,
        })
    }

    /// Encodes the 256 bytes of the fixed part.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let raw = Raw {
            version: 1,
            hash_algorithm: self.hash_algorithm.code(),
            log_blocksize: self.block_size.log2() as u8,
            salt_size: self.salt_len,
            sig_size: self.signature_len.into(),
            data_size: self.data_size.into(),
            root_hash: self.root_hash,
            salt: self.salt,
            reserved: [0; 144],
        };
        let mut bytes = [0; Self::LEN];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// Bytes of the Merkle tree over [`data_size`](Self::data_size); see [`tree_len`].
    #[must_use]
    pub fn tree_len(&self) -> u64 {
        tree_len(self.data_size, self.block_size, self.hash_algorithm)
    }
}

/// Bytes of the Merkle tree over `data_size` bytes: the root block first, then each level below. 0 if the
/// data fits one block, whose hash is then the root hash.
#[must_use]
pub fn tree_len(data_size: u64, block_size: BlockSize, hash: HashAlgorithm) -> u64 {
    let per_block = block_size.bytes() / hash.digest_len() as u64;
    let mut below = block_size.blocks_for(data_size);
    let mut blocks = 0;
    while below > 1 {
        below = below.div_ceil(per_block);
        blocks += below;
    }
    // Less than the size of the data, because a block of hashes covers at least 16 blocks.
    blocks * block_size.bytes()
}

/// The locations of a protected file's metadata, as byte offsets in the file. All are past `i_size`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerityLayout {
    /// The Merkle tree.
    pub tree: Range<u64>,
    /// The descriptor with its signature.
    pub descriptor: Range<u64>,
    /// Offset of the descriptor's length: the last four bytes before [`end`](Self::end).
    pub length_at: u64,
    /// The end of the last block, and of the file's mapped blocks.
    pub end: u64,
}

impl VerityLayout {
    /// The layout that a writer chooses for a file of `size` bytes.
    ///
    /// `None` if an offset overflows.
    #[must_use]
    pub fn new(size: u64, tree_len: u64, descriptor_len: u32, block_size: BlockSize) -> Option<Self> {
        let tree_at = tree_offset(size)?;
        let tree_end = tree_at.checked_add(tree_len)?;
        let descriptor_at = tree_end.checked_next_multiple_of(block_size.bytes())?;
        let descriptor_end = descriptor_at.checked_add(u64::from(descriptor_len))?;
        let end = descriptor_end.checked_add(4)?.checked_next_multiple_of(block_size.bytes())?;
        Some(Self {
            tree: tree_at..tree_end,
            descriptor: descriptor_at..descriptor_end,
            length_at: end - 4,
            end,
        })
    }
}

/// Start of the Merkle tree of a file of `size` bytes: the next multiple of 64 KiB. `None` if it overflows.
#[must_use]
pub fn tree_offset(size: u64) -> Option<u64> {
    size.checked_next_multiple_of(ALIGNMENT)
}

/// Finds the descriptor of a file of `size` bytes whose last mapped block ends at byte `mapped_end`, and
/// whose last four mapped bytes store `stored_len`.
///
/// # Errors
/// The length is out of range, or the descriptor would begin before the tree.
pub fn find_descriptor(
    size: u64,
    mapped_end: u64,
    stored_len: u32,
    block_size: BlockSize,
) -> Result<Range<u64>, Malformed> {
    Malformed::unless(
        (VerityDescriptor::LEN as u32..=MAX_DESCRIPTOR_LEN).contains(&stored_len),
        STRUCTURE,
        "length must be between 256 and 16384",
        stored_len,
    )?;
    let start = mapped_end.checked_sub(4 + u64::from(stored_len)).map(|at| at - at % block_size.bytes());
    match (start, tree_offset(size)) {
        (Some(start), Some(tree)) if start >= tree => Ok(start..start + u64::from(stored_len)),
        _ => Err(Malformed::new(STRUCTURE, "must lie after the tree's first byte", mapped_end)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SHA256: HashAlgorithm = HashAlgorithm::Sha256;

    fn descriptor() -> VerityDescriptor {
        VerityDescriptor {
            hash_algorithm: SHA256,
            block_size: BlockSize::KIB4,
            salt_len: 3,
            signature_len: 0,
            data_size: 1 << 20,
            root_hash: [7; 64],
            salt: [8; 32],
        }
    }

    #[test]
    fn trees_grow_by_a_level_per_128_blocks() {
        assert_eq!(tree_len(0, BlockSize::KIB4, SHA256), 0);
        assert_eq!(tree_len(4096, BlockSize::KIB4, SHA256), 0);
        assert_eq!(tree_len(4097, BlockSize::KIB4, SHA256), 4096);
        assert_eq!(tree_len(128 * 4096, BlockSize::KIB4, SHA256), 4096);
        assert_eq!(tree_len(129 * 4096, BlockSize::KIB4, SHA256), 3 * 4096);
        assert_eq!(tree_len(65 * 4096, BlockSize::KIB4, HashAlgorithm::Sha512), 3 * 4096);
        assert!(tree_len(u64::MAX, BlockSize::MIN, HashAlgorithm::Sha512) < u64::MAX / 14);
    }

    #[test]
    fn a_small_file_has_its_tree_at_64_kib() {
        let layout = VerityLayout::new(5000, 4096, 256, BlockSize::KIB4).unwrap();
        assert_eq!(layout.tree, 65_536..69_632);
        assert_eq!(layout.descriptor, 69_632..69_888);
        assert_eq!((layout.length_at, layout.end), (73_724, 73_728));
        assert_eq!(VerityLayout::new(u64::MAX, 0, 256, BlockSize::KIB4), None);
    }

    #[test]
    fn the_descriptor_stands_where_the_kernel_puts_its_fields() {
        let bytes = descriptor().encode();
        assert_eq!(bytes[..16], [1, 1, 12, 3, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0]);
        assert_eq!((bytes[0x10], bytes[0x50], bytes[0x70]), (7, 8, 0));
        for (at, bad) in [(0, 2), (1, 3), (2, 9), (2, 17), (3, 33), (0x70, 1), (0xFF, 1)] {
            let mut bytes = bytes;
            bytes[at] = bad;
            assert!(VerityDescriptor::decode(&bytes).is_err(), "byte {at:#x}");
        }
    }

    proptest! {
        #[test]
        fn a_reader_finds_what_a_writer_wrote(
            size in 0u64..1 << 40,
            descriptor_len in 256u32..=MAX_DESCRIPTOR_LEN,
            log in 0u32..=6,
        ) {
            let block_size = BlockSize::from_log(log).unwrap();
            let tree = tree_len(size, block_size, SHA256);
            let layout = VerityLayout::new(size, tree, descriptor_len, block_size).unwrap();
            prop_assert_eq!(layout.end % block_size.bytes(), 0);
            prop_assert_eq!(
                find_descriptor(size, layout.end, descriptor_len, block_size),
                Ok(layout.descriptor)
            );
        }

        #[test]
        fn decoding_any_bytes_does_not_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 0..300),
            numbers in any::<(u64, u64, u32)>(),
            small in 0u32..20_000,
        ) {
            if bytes.len() >= 256 {
                bytes[..4].copy_from_slice(&[1, 1, 12, 0]);
                bytes[0x70..0x100].fill(0);
                let read = VerityDescriptor::decode(&bytes).unwrap();
                prop_assert_eq!(&read.encode()[..], &bytes[..256]);
                let _ = read.tree_len();
            }
            let _ = VerityDescriptor::decode(&bytes);
            let _ = find_descriptor(numbers.0, numbers.1, numbers.2, BlockSize::KIB4);
            let _ = find_descriptor(numbers.0, numbers.1, small, BlockSize::MAX);
            let _ = VerityLayout::new(numbers.0, numbers.1, numbers.2, BlockSize::MIN);
        }
    }
}
