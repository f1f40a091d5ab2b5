//! The group descriptor: 32 bytes, or `s_desc_size` (64 and more) with the 64bit feature.
//!
//! It stores the locations of a group's bitmaps and inode table, the group's free counts, and whether its
//! bitmaps were ever written. [`crate::geometry`] computes where the descriptors themselves are.
//!
//! Source: kernel Documentation/filesystems/ext4/group_descr.rst.

use extant_base::Malformed;
use extant_base::checksum::{crc16, crc32c};

use crate::{Features, Superblock};

/// `bg_flags`: the inode bitmap and table were never written.
pub const INODE_UNINIT: u16 = 1;
/// `bg_flags`: the block bitmap was never written; the layout determines it.
pub const BLOCK_UNINIT: u16 = 2;
/// `bg_flags`: the unused part of the inode table is zero on disk.
pub const INODE_ZEROED: u16 = 4;

/// Size without the 64bit feature.
pub const SMALL: usize = 32;
/// Size with the 64bit feature, as all tools choose it.
pub const LARGE: usize = 64;

const CHECKSUM_AT: usize = 0x1E;

/// A decoded group descriptor. Small descriptors have no high halves; these read as zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupDesc {
    /// Block of the block bitmap.
    pub block_bitmap: u64,
    /// Block of the inode bitmap.
    pub inode_bitmap: u64,
    /// First block of the inode table.
    pub inode_table: u64,
    /// Free clusters in the group.
    pub free_clusters: u32,
    /// Free inodes in the group.
    pub free_inodes: u32,
    /// Directories in the group.
    pub used_dirs: u32,
    /// [`INODE_UNINIT`], [`BLOCK_UNINIT`], [`INODE_ZEROED`].
    pub flags: u16,
    /// Obsolete snapshot bitmap.
    pub exclude_bitmap: u64,
    /// Checksum of the block bitmap; only 16 bits in small descriptors.
    pub block_bitmap_csum: u32,
    /// Checksum of the inode bitmap; only 16 bits in small descriptors.
    pub inode_bitmap_csum: u32,
    /// Inodes at the end of the table that were never used.
    pub itable_unused: u32,
    /// Checksum as read; `encode` writes it unchanged.
    pub checksum: u16,
    /// Last word of a 64-byte descriptor, preserved.
    pub reserved: u32,
}

impl GroupDesc {
    /// Reads a descriptor from `bytes`, whose length is the descriptor size (32, or 64 and more).
    ///
    /// # Errors
    /// There are fewer than 32 bytes, or 33 to 63.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        if bytes.len() < SMALL || (bytes.len() > SMALL && bytes.len() < LARGE) {
            return Err(Malformed::new(
                "group descriptor",
                "must have 32 bytes, or 64 and more",
                bytes.len() as u64,
            ));
        }
        let large = bytes.len() >= LARGE;
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        let wide = |lo: usize, hi: usize| {
            u64::from(u32_at(lo)) | if large { u64::from(u32_at(hi)) << 32 } else { 0 }
        };
        let pair = |lo: usize, hi: usize| {
            u32::from(u16_at(lo)) | if large { u32::from(u16_at(hi)) << 16 } else { 0 }
        };
        Ok(Self {
            block_bitmap: wide(0x00, 0x20),
            inode_bitmap: wide(0x04, 0x24),
            inode_table: wide(0x08, 0x28),
            free_clusters: pair(0x0C, 0x2C),
            free_inodes: pair(0x0E, 0x2E),
            used_dirs: pair(0x10, 0x30),
            flags: u16_at(0x12),
            exclude_bitmap: wide(0x14, 0x34),
            block_bitmap_csum: pair(0x18, 0x38),
            inode_bitmap_csum: pair(0x1A, 0x3A),
            itable_unused: pair(0x1C, 0x32),
            checksum: u16_at(CHECKSUM_AT),
            reserved: if large { u32_at(0x3C) } else { 0 },
        })
    }

    /// Writes the descriptor to `out`, whose length is the descriptor size. Bytes beyond 64 become zero.
    ///
    /// # Panics
    /// `out` is shorter than 32 bytes: a bug of the caller, which chose the size.
    pub fn encode(&self, out: &mut [u8]) {
        let large = out.len() >= LARGE;
        out.fill(0);
        let mut put16 =
            |at: usize, value: u32| out[at..at + 2].copy_from_slice(&(value as u16).to_le_bytes());
        for (value, lo, hi) in [
            (self.free_clusters, 0x0C, 0x2C),
            (self.free_inodes, 0x0E, 0x2E),
            (self.used_dirs, 0x10, 0x30),
            (self.block_bitmap_csum, 0x18, 0x38),
            (self.inode_bitmap_csum, 0x1A, 0x3A),
            (self.itable_unused, 0x1C, 0x32),
        ] {
            put16(lo, value);
            if large {
                put16(hi, value >> 16);
            }
        }
        put16(0x12, self.flags.into());
        put16(CHECKSUM_AT, self.checksum.into());
        let mut put32 =
            |at: usize, value: u64| out[at..at + 4].copy_from_slice(&(value as u32).to_le_bytes());
        for (value, lo, hi) in [
            (self.block_bitmap, 0x00, 0x20),
            (self.inode_bitmap, 0x04, 0x24),
            (self.inode_table, 0x08, 0x28),
            (self.exclude_bitmap, 0x14, 0x34),
        ] {
            put32(lo, value);
            if large {
                put32(hi, value >> 32);
            }
        }
        if large {
            put32(0x3C, self.reserved.into());
        }
    }

    /// Whether this flag is set.
    #[must_use]
    pub fn has_flag(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// The checksum algorithm of a file system's descriptors, with its seed.
#[derive(Debug, Clone, Copy)]
pub struct ChecksumRule {
    kind: RuleKind,
}

#[derive(Debug, Clone, Copy)]
enum RuleKind {
    None,
    Crc16 { uuid: [u8; 16] },
    Crc32c { fs_seed: u32 },
}

impl ChecksumRule {
    /// The rule of this file system. metadata_csum takes precedence over gdt_csum; both together are invalid.
    #[must_use]
    pub fn of(sb: &Superblock) -> Self {
        let kind = if sb.features.metadata_csum() {
            RuleKind::Crc32c { fs_seed: sb.fs_seed() }
        } else if sb.features.has_ro_compat(Features::GDT_CSUM) {
            RuleKind::Crc16 { uuid: sb.uuid }
        } else {
            RuleKind::None
        };
        Self { kind }
    }

    /// The checksum of the encoded descriptor `bytes` (all `desc_size` bytes) of group `group`.
    #[must_use]
    pub fn compute(&self, group: u32, bytes: &[u8]) -> u16 {
        let head = &bytes[..CHECKSUM_AT.min(bytes.len())];
        let tail = bytes.get(SMALL..).unwrap_or_default();
        match self.kind {
            RuleKind::None => 0,
            RuleKind::Crc16 { uuid } => {
                let crc = crc16(crc16(0xFFFF, &uuid), &group.to_le_bytes());
                crc16(crc16(crc, head), tail)
            }
            RuleKind::Crc32c { fs_seed } => {
                let crc = crc32c(crc32c(fs_seed, &group.to_le_bytes()), head);
                crc32c(crc32c(crc, &[0, 0]), tail) as u16
            }
        }
    }

    /// Computes and stores the checksum in the encoded descriptor.
    pub fn seal(&self, group: u32, bytes: &mut [u8]) {
        let sum = self.compute(group, bytes);
        bytes[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&sum.to_le_bytes());
    }

    /// Whether the stored checksum is right. Always true if the file system has no descriptor checksums.
    #[must_use]
    pub fn verify(&self, group: u32, bytes: &[u8]) -> bool {
        matches!(self.kind, RuleKind::None)
            || bytes
                .get(CHECKSUM_AT..CHECKSUM_AT + 2)
                .is_some_and(|stored| stored == self.compute(group, bytes).to_le_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn both_sizes_survive_a_round_trip(bytes in proptest::collection::vec(any::<u8>(), LARGE)) {
            for size in [SMALL, LARGE] {
                let desc = GroupDesc::decode(&bytes[..size]).unwrap();
                let mut out = vec![0xFF; size];
                desc.encode(&mut out);
                prop_assert_eq!(&out, &bytes[..size]);
            }
        }

        #[test]
        fn decode_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..130)) {
            let _ = GroupDesc::decode(&bytes);
        }

        #[test]
        fn a_sealed_descriptor_verifies_in_its_own_group_only(group in 0u32..1 << 20, crc16 in any::<bool>()) {
            let mut sb = Superblock { uuid: [7; 16], ..Superblock::default() };
            sb.features.ro_compat = if crc16 { Features::GDT_CSUM } else { Features::METADATA_CSUM };
            let rule = ChecksumRule::of(&sb);
            let mut bytes = [0u8; LARGE];
            GroupDesc { block_bitmap: 5 << 32, free_inodes: 70_000, ..GroupDesc::default() }.encode(&mut bytes);
            rule.seal(group, &mut bytes);
            prop_assert!(rule.verify(group, &bytes));
            prop_assert!(!rule.verify(group + 1, &bytes));
        }
    }
}
