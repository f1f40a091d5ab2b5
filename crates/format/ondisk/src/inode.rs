//! The inode: 128 bytes of original fields, then `extra_isize` bytes of newer fields, then space for extended
//! attributes.
//!
//! Owns the fixed fields, timestamps, device numbers and the checksum. Does **not** own the content of
//! `i_block` (see [`crate::extent`], [`crate::indirect`](mod@crate::indirect), inline data) nor the attribute
//! area (see xattr).
//!
//! A field beyond byte 128 exists only if it ends at or before `128 + extra_isize`; other fields read as
//! zero.
//!
//! Source: kernel Documentation/filesystems/ext4/inodes.rst.

use extant_base::checksum::{crc32c, crc32c_seed};
use extant_base::{Ino, Malformed};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::time::Timestamp;
use crate::{Features, Superblock};

/// Size of the original fields in bytes.
pub const BASE_SIZE: usize = 128;
/// The `extra_isize` that all tools write today.
pub const EXTRA_SIZE: usize = 32;

/// Inode flags (`i_flags`).
pub mod flags {
    /// Secure deletion: stored for users, without effect.
    pub const SECRM: u32 = 0x1;
    /// Undeletable: stored for users, without effect.
    pub const UNRM: u32 = 0x2;
    /// Compression: stored for users, without effect.
    pub const COMPR: u32 = 0x4;
    /// Writes are synchronous.
    pub const SYNC: u32 = 0x8;
    /// The file must not be changed.
    pub const IMMUTABLE: u32 = 0x10;
    /// The file may only be appended to.
    pub const APPEND: u32 = 0x20;
    /// Dumps skip the file.
    pub const NODUMP: u32 = 0x40;
    /// Access times are not updated.
    pub const NOATIME: u32 = 0x80;
    /// Encrypted.
    pub const ENCRYPT: u32 = 0x800;
    /// The directory has a hash index.
    pub const INDEX: u32 = 0x1000;
    /// AFS.
    pub const IMAGIC: u32 = 0x2000;
    /// Data goes through the journal.
    pub const JOURNAL_DATA: u32 = 0x4000;
    /// Tails are not merged.
    pub const NOTAIL: u32 = 0x8000;
    /// Directory changes are synchronous.
    pub const DIRSYNC: u32 = 0x1_0000;
    /// Top of a directory hierarchy.
    pub const TOPDIR: u32 = 0x2_0000;
    /// `i_blocks` counts file-system blocks, not 512-byte units.
    pub const HUGE_FILE: u32 = 0x4_0000;
    /// The file is mapped by extents.
    pub const EXTENTS: u32 = 0x8_0000;
    /// The file is protected by fs-verity.
    pub const VERITY: u32 = 0x10_0000;
    /// The inode holds the value of a large extended attribute.
    pub const EA_INODE: u32 = 0x20_0000;
    /// Blocks past the end of the file, written by kernels before 3.17: stored for users, without effect.
    pub const EOFBLOCKS: u32 = 0x40_0000;
    /// Direct access.
    pub const DAX: u32 = 0x200_0000;
    /// The data is stored in the inode.
    pub const INLINE_DATA: u32 = 0x1000_0000;
    /// Children inherit the project ID.
    pub const PROJINHERIT: u32 = 0x2000_0000;
    /// Directory lookups ignore case.
    pub const CASEFOLD: u32 = 0x4000_0000;

    /// Names of the flags, as `lsattr -l` and debugfs use them.
    pub const NAMES: &[(u32, &str)] = &[
        (SECRM, "secrm"),
        (UNRM, "unrm"),
        (COMPR, "compr"),
        (SYNC, "sync"),
        (IMMUTABLE, "immutable"),
        (APPEND, "append"),
        (NODUMP, "nodump"),
        (NOATIME, "noatime"),
        (ENCRYPT, "encrypt"),
        (INDEX, "index"),
        (IMAGIC, "imagic"),
        (JOURNAL_DATA, "journal_data"),
        (NOTAIL, "notail"),
        (DIRSYNC, "dirsync"),
        (TOPDIR, "topdir"),
        (HUGE_FILE, "huge_file"),
        (EXTENTS, "extents"),
        (VERITY, "verity"),
        (EA_INODE, "ea_inode"),
        (EOFBLOCKS, "eofblocks"),
        (DAX, "dax"),
        (INLINE_DATA, "inline_data"),
        (PROJINHERIT, "projinherit"),
        (CASEFOLD, "casefold"),
    ];
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawBase {
    i_mode: U16,
    i_uid: U16,
    i_size_lo: U32,
    i_atime: U32,
    i_ctime: U32,
    i_mtime: U32,
    i_dtime: U32,
    i_gid: U16,
    i_links_count: U16,
    i_blocks_lo: U32,
    i_flags: U32,
    i_version_lo: U32,
    i_block: [u8; 60],
    i_generation: U32,
    i_file_acl_lo: U32,
    i_size_high: U32,
    i_obso_faddr: U32,
    i_blocks_high: U16,
    i_file_acl_high: U16,
    i_uid_high: U16,
    i_gid_high: U16,
    i_checksum_lo: U16,
    i_reserved: U16,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawExtra {
    i_extra_isize: U16,
    i_checksum_hi: U16,
    i_ctime_extra: U32,
    i_mtime_extra: U32,
    i_atime_extra: U32,
    i_crtime: U32,
    i_crtime_extra: U32,
    i_version_hi: U32,
    i_projid: U32,
}

/// The decoded fixed fields of an inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inode {
    /// File type and permissions.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes, all 64 bits as read.
    pub size: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Birth; zero if the inode has no space for it.
    pub crtime: Timestamp,
    /// Deletion time, or the next orphan's inode number.
    pub dtime: u32,
    /// Link count.
    pub links: u16,
    /// `i_blocks`, 48 bits: 512-byte units, or file-system blocks with [`flags::HUGE_FILE`].
    pub blocks: u64,
    /// [`flags`].
    pub flags: u32,
    /// Change counter, or half of an EA inode's reference count.
    pub version: u64,
    /// The 60 bytes of `i_block`.
    pub block: [u8; 60],
    /// Generation; part of the checksum seed.
    pub generation: u32,
    /// Block of extended attributes, 48 bits; 0 means none.
    pub file_acl: u64,
    /// High mode bits of the Hurd, see [`of_hurd`](Self::of_hurd); else 0.
    pub hurd_mode_high: u16,
    /// Obsolete, preserved.
    pub obso_faddr: u32,
    /// Last halfword of the original part, preserved.
    pub reserved: u16,
    /// Bytes of newer fields; 0 in a 128-byte inode.
    pub extra_isize: u16,
    /// Checksum as read: the low half, and the high half if it exists.
    pub checksum: u32,
    /// Project ID.
    pub projid: u32,
}

impl Default for Inode {
    fn default() -> Self {
        Self::from_raw(&RawBase::new_zeroed(), &RawExtra::new_zeroed())
    }
}

impl Inode {
    /// Reads an inode from its `inode_size` bytes.
    ///
    /// # Errors
    /// There are fewer than 128 bytes, or `extra_isize` is not a multiple of 4 or reaches past the inode.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let Ok((raw, rest)) = RawBase::ref_from_prefix(bytes) else {
            return Err(Malformed::new("inode", "must have 128 bytes", bytes.len() as u64));
        };
        let mut extra = RawExtra::new_zeroed();
        if rest.len() >= 4 {
            let extra_isize = usize::from(u16::from_le_bytes([rest[0], rest[1]]));
            let fits = extra_isize.is_multiple_of(4) && extra_isize <= rest.len();
            Malformed::unless(
                fits,
                "inode",
                "extra_isize must be a multiple of 4 within the inode",
                extra_isize as u64,
            )?;
            let present = extra_isize.clamp(2, EXTRA_SIZE.min(rest.len()));
            extra.as_mut_bytes()[..present].copy_from_slice(&rest[..present]);
        }
        Ok(Self::from_raw(raw, &extra))
    }

    fn from_raw(raw: &RawBase, extra: &RawExtra) -> Self {
        let halves = |lo: U16, hi: U16| u32::from(lo.get()) | u32::from(hi.get()) << 16;
        Self {
            mode: raw.i_mode.get(),
            uid: halves(raw.i_uid, raw.i_uid_high),
            gid: halves(raw.i_gid, raw.i_gid_high),
            size: u64::from(raw.i_size_lo.get()) | u64::from(raw.i_size_high.get()) << 32,
            atime: Timestamp::from_disk(raw.i_atime.get(), extra.i_atime_extra.get()),
            ctime: Timestamp::from_disk(raw.i_ctime.get(), extra.i_ctime_extra.get()),
            mtime: Timestamp::from_disk(raw.i_mtime.get(), extra.i_mtime_extra.get()),
            crtime: Timestamp::from_disk(extra.i_crtime.get(), extra.i_crtime_extra.get()),
            dtime: raw.i_dtime.get(),
            links: raw.i_links_count.get(),
            blocks: u64::from(raw.i_blocks_lo.get()) | u64::from(raw.i_blocks_high.get()) << 32,
            flags: raw.i_flags.get(),
            version: u64::from(raw.i_version_lo.get()) | u64::from(extra.i_version_hi.get()) << 32,
            block: raw.i_block,
            generation: raw.i_generation.get(),
            file_acl: u64::from(raw.i_file_acl_lo.get()) | u64::from(raw.i_file_acl_high.get()) << 32,
            hurd_mode_high: 0,
            obso_faddr: raw.i_obso_faddr.get(),
            reserved: raw.i_reserved.get(),
            extra_isize: extra.i_extra_isize.get(),
            checksum: halves(raw.i_checksum_lo, extra.i_checksum_hi),
            projid: extra.i_projid.get(),
        }
    }

    /// Writes the fixed fields to the start of `out` (one inode's bytes). The rest of `out` stays unchanged.
    ///
    /// # Panics
    /// `out` is shorter than 128 bytes, or than `128 + extra_isize`: a bug of the caller, which chose the
    /// inode size.
    pub fn encode(&self, out: &mut [u8]) {
        let raw = RawBase {
            i_mode: self.mode.into(),
            i_uid: (self.uid as u16).into(),
            i_size_lo: (self.size as u32).into(),
            i_atime: self.atime.disk_base().into(),
            i_ctime: self.ctime.disk_base().into(),
            i_mtime: self.mtime.disk_base().into(),
            i_dtime: self.dtime.into(),
            i_gid: (self.gid as u16).into(),
            i_links_count: self.links.into(),
            i_blocks_lo: (self.blocks as u32).into(),
            i_flags: self.flags.into(),
            i_version_lo: (self.version as u32).into(),
            i_block: self.block,
            i_generation: self.generation.into(),
            i_file_acl_lo: (self.file_acl as u32).into(),
            i_size_high: ((self.size >> 32) as u32).into(),
            i_obso_faddr: self.obso_faddr.into(),
            i_blocks_high: ((self.blocks >> 32) as u16).into(),
            i_file_acl_high: ((self.file_acl >> 32) as u16 | self.hurd_mode_high).into(),
            i_uid_high: ((self.uid >> 16) as u16).into(),
            i_gid_high: ((self.gid >> 16) as u16).into(),
            i_checksum_lo: (self.checksum as u16).into(),
            i_reserved: self.reserved.into(),
        };
        let (old_part, new_part) = out.split_at_mut(BASE_SIZE);
        old_part.copy_from_slice(raw.as_bytes());
        if new_part.len() < 4 {
            return;
        }
        let extra = RawExtra {
            i_extra_isize: self.extra_isize.into(),
            i_checksum_hi: ((self.checksum >> 16) as u16).into(),
            i_ctime_extra: self.ctime.disk_extra().into(),
            i_mtime_extra: self.mtime.disk_extra().into(),
            i_atime_extra: self.atime.disk_extra().into(),
            i_crtime: self.crtime.disk_base().into(),
            i_crtime_extra: self.crtime.disk_extra().into(),
            i_version_hi: ((self.version >> 32) as u32).into(),
            i_projid: self.projid.into(),
        };
        let present = usize::from(self.extra_isize).clamp(2, EXTRA_SIZE);
        new_part[..present].copy_from_slice(&extra.as_bytes()[..present]);
    }

    /// Decodes an inode of this file system. The superblock determines the meaning of bytes that differ:
    ///
    /// | bytes | Linux | the Hurd |
    /// |---|---|---|
    /// | 0x24, `osd1` | low half of the change counter | block of the passive translator |
    /// | 0x76 | high half of the attribute block, with `64bit` only | high bits of the mode |
    /// | 0x7C, 0x7E | checksum, reserved | author |
    ///
    /// INV-EN51: without this, the first write to an image of the Hurd would destroy these bytes.
    ///
    /// # Errors
    /// As [`decode`](Self::decode).
    pub fn decode_of(sb: &Superblock, bytes: &[u8]) -> Result<Self, Malformed> {
        let mut inode = Self::decode(bytes)?;
        if sb.has_short_ids() {
            (inode.uid, inode.gid) = (inode.uid & 0xFFFF, inode.gid & 0xFFFF);
        }
        Ok(match (sb.is_hurd(), sb.features.has_incompat(Features::BIT64)) {
            (true, _) => inode.of_hurd(),
            (false, true) => inode,
            // Like the kernel: the high half is not read, and the next write clears it.
            (false, false) => Self { file_acl: inode.file_acl & 0xFFFF_FFFF, ..inode },
        })
    }

    /// Reinterprets the same bytes as the Hurd does.
    #[must_use]
    pub fn of_hurd(self) -> Self {
        let hurd_mode_high = (self.file_acl >> 32) as u16;
        Self { file_acl: self.file_acl & 0xFFFF_FFFF, hurd_mode_high, ..self }
    }

    /// Reduces the values to what the inode can store, so that they do not change by being written and read
    /// back. Without their extra words, times have whole seconds up to 2038. Without the other extra fields
    /// there is no birth time, no project ID, and only half a change counter.
    pub fn fit(&mut self) {
        const fn has(extra_isize: u16, end: u16) -> bool {
            extra_isize >= end
        }
        let extra_isize = self.extra_isize;
        for (time, end) in [(&mut self.ctime, 8), (&mut self.mtime, 12), (&mut self.atime, 16)] {
            *time = time.clamped(has(extra_isize, end));
        }
        self.crtime = match (has(extra_isize, 20), has(extra_isize, 24)) {
            (false, _) => Timestamp::default(),
            (true, has_extra) => self.crtime.clamped(has_extra),
        };
        if !has(extra_isize, 28) {
            self.version &= 0xFFFF_FFFF;
        }
        if !has(extra_isize, 32) {
            self.projid = 0;
        }
    }

    /// Byte offset of the attribute area in the inode.
    #[must_use]
    pub fn xattr_offset(&self) -> usize {
        BASE_SIZE + usize::from(self.extra_isize)
    }

    /// Whether this flag is set.
    #[must_use]
    pub fn has_flag(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// A device node's major and minor number, from either of the two encodings of `i_block`.
    #[must_use]
    pub fn device(&self) -> (u32, u32) {
        let word = |i: usize| u32::from_le_bytes([0, 1, 2, 3].map(|k| self.block[i * 4 + k]));
        match word(0) {
            0 => {
                let new = word(1);
                ((new >> 8) & 0xFFF, (new & 0xFF) | ((new >> 12) & 0xFFF00))
            }
            old => ((old >> 8) & 0xFF, old & 0xFF),
        }
    }
}

/// The `i_block` of a device node: the old 8+8-bit encoding if the numbers fit, else the new 12+20-bit one.
/// `None` if they fit neither.
#[must_use]
pub fn device_block(major: u32, minor: u32) -> Option<[u8; 60]> {
    let mut block = [0u8; 60];
    if major < 256 && minor < 256 && (major, minor) != (0, 0) {
        block[0..4].copy_from_slice(&(major << 8 | minor).to_le_bytes());
    } else if major < 1 << 12 && minor < 1 << 20 {
        let new = (minor & 0xFF) | major << 8 | (minor & !0xFF) << 12;
        block[4..8].copy_from_slice(&new.to_le_bytes());
    } else {
        return None;
    }
    Some(block)
}

/// The seed of all checksums that depend on one inode: of the inode, its extent blocks, its directory blocks.
#[must_use]
pub fn inode_seed(fs_seed: u32, ino: Ino, generation: u32) -> u32 {
    crc32c(fs_seed, &(u64::from(generation) << 32 | u64::from(ino.0)).to_le_bytes())
}

const CHECKSUM_LO_AT: usize = 0x7C;
const CHECKSUM_HI_AT: usize = 0x82;

/// Whether this inode has the high half of the checksum.
fn has_checksum_hi(bytes: &[u8]) -> bool {
    bytes.len() > BASE_SIZE + 4 && u16::from_le_bytes([bytes[0x80], bytes[0x81]]) >= 4
}

/// The checksum of an inode's `inode_size` bytes, with the stored checksum taken as zero.
#[must_use]
pub fn compute_checksum(bytes: &[u8], seed: u32) -> u32 {
    // One checksum over a copy with a zero checksum field: five short pieces would take three times as long.
    const HEAD: usize = 2 * BASE_SIZE;
    let (head, rest) = bytes.split_at(bytes.len().min(HEAD));
    let mut copy = [0; HEAD];
    copy[..head.len()].copy_from_slice(head);
    copy[CHECKSUM_LO_AT..CHECKSUM_LO_AT + 2].fill(0);
    let has_hi = has_checksum_hi(bytes);
    if has_hi {
        copy[CHECKSUM_HI_AT..CHECKSUM_HI_AT + 2].fill(0);
    }
    let mut crc = crc32c(seed, &copy[..head.len()]);
    if !rest.is_empty() {
        crc = crc32c(crc, rest);
    }
    if has_hi { crc } else { crc & 0xFFFF }
}

/// Stores the checksum in an inode's `inode_size` bytes.
pub fn seal(bytes: &mut [u8], seed: u32) {
    let sum = compute_checksum(bytes, seed);
    bytes[CHECKSUM_LO_AT..CHECKSUM_LO_AT + 2].copy_from_slice(&(sum as u16).to_le_bytes());
    if has_checksum_hi(bytes) {
        bytes[CHECKSUM_HI_AT..CHECKSUM_HI_AT + 2].copy_from_slice(&((sum >> 16) as u16).to_le_bytes());
    }
}

/// Removes the checksum from an inode's `inode_size` bytes, for file systems without checksums.
pub fn clear_checksum(bytes: &mut [u8]) {
    bytes[CHECKSUM_LO_AT..CHECKSUM_LO_AT + 2].fill(0);
    if has_checksum_hi(bytes) {
        bytes[CHECKSUM_HI_AT..CHECKSUM_HI_AT + 2].fill(0);
    }
}

/// Whether the stored checksum of an inode's `inode_size` bytes is right.
#[must_use]
pub fn verify(bytes: &[u8], seed: u32) -> bool {
    if bytes.len() < BASE_SIZE {
        return false;
    }
    let lo = u32::from(u16::from_le_bytes([bytes[CHECKSUM_LO_AT], bytes[CHECKSUM_LO_AT + 1]]));
    let hi = if has_checksum_hi(bytes) {
        u32::from(u16::from_le_bytes([bytes[CHECKSUM_HI_AT], bytes[CHECKSUM_HI_AT + 1]]))
    } else {
        0
    };
    compute_checksum(bytes, seed) == lo | hi << 16
}

/// The seed of the file system's checksums with which the stored checksum of inode `ino` is right; `None` if
/// the inode stores only half of its checksum.
#[must_use]
pub fn implied_fs_seed(bytes: &[u8], ino: Ino) -> Option<u32> {
    if !has_checksum_hi(bytes) {
        return None;
    }
    let mut covered = Vec::with_capacity(8 + bytes.len());
    covered.extend_from_slice(&ino.0.to_le_bytes());
    covered.extend_from_slice(bytes.get(0x64..0x68)?);
    covered.extend_from_slice(bytes);
    let (lo, hi) = (8 + CHECKSUM_LO_AT, 8 + CHECKSUM_HI_AT);
    let sum = u32::from_le_bytes([covered[lo], covered[lo + 1], covered[hi], covered[hi + 1]]);
    covered[lo..lo + 2].fill(0);
    covered[hi..hi + 2].fill(0);
    Some(crc32c_seed(sum, &covered))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_lie_where_the_format_puts_them() {
        assert_eq!(size_of::<RawBase>(), BASE_SIZE);
        assert_eq!(size_of::<RawExtra>(), EXTRA_SIZE);
        assert_eq!(std::mem::offset_of!(RawBase, i_block), 0x28);
        assert_eq!(std::mem::offset_of!(RawBase, i_checksum_lo), CHECKSUM_LO_AT);
    }

    #[test]
    fn device_numbers_use_the_old_form_where_it_fits() {
        for (major, minor) in [(1, 3), (8, 255), (259, 0), (0, 1), (0, 0), (4095, 1_048_575), (10, 256)] {
            let inode = Inode { block: device_block(major, minor).unwrap(), ..Inode::default() };
            assert_eq!(inode.device(), (major, minor));
        }
        assert_eq!(device_block(4096, 0), None);
        assert_eq!(device_block(8, 1).unwrap()[0..2], [1, 8]);
    }

    /// After `fit`, the values survive a write and a read, for each length of the extra fields.
    #[test]
    fn what_fits_comes_back_from_disk() {
        let time = Timestamp { seconds: 4_102_444_800, nanos: 5 };
        let full = Inode {
            ctime: time,
            mtime: time,
            atime: time,
            crtime: time,
            version: 7 << 32 | 3,
            projid: 9,
            ..Inode::default()
        };
        for extra_isize in (0..=32).step_by(4) {
            let mut inode = Inode { extra_isize, ..full.clone() };
            inode.fit();
            let mut bytes = vec![0; 256];
            inode.encode(&mut bytes);
            let back = Inode::decode(&bytes).unwrap();
            assert_eq!(back, inode, "{extra_isize} bytes");
            assert_eq!(back.ctime == time, extra_isize >= 8);
            assert_eq!(back.crtime == time, extra_isize >= 24);
            assert_eq!(back.projid == 9, extra_isize == 32);
        }
        let end = i64::from(i32::MAX);
        let mut old = full.clone();
        old.fit();
        assert_eq!((old.mtime, old.crtime.seconds), (Timestamp { seconds: end, nanos: 0 }, 0));
    }

    /// The Hurd stores translator, mode bits and author where Linux stores a counter, half a block number and
    /// a checksum.
    #[test]
    fn the_hurds_fields_come_back_as_they_were() {
        let bytes: Vec<u8> = (1..=128).collect();
        let sb = Superblock { creator_os: crate::superblock::OS_HURD, ..Superblock::default() };
        let inode = Inode::decode_of(&sb, &bytes).unwrap();
        assert_eq!((inode.file_acl >> 32, inode.hurd_mode_high), (0, 0x7877));
        let mut out = vec![0; 128];
        inode.encode(&mut out);
        assert_eq!(out, bytes);
        let linux = Inode::decode_of(&Superblock::default(), &bytes).unwrap();
        assert_eq!((linux.file_acl >> 32, linux.hurd_mode_high), (0, 0), "not without 64bit");
    }

    proptest! {
        #[test]
        fn any_inode_with_full_extra_fields_survives_a_round_trip(
            mut bytes in proptest::collection::vec(any::<u8>(), 160),
        ) {
            bytes[0x80..0x82].copy_from_slice(&32u16.to_le_bytes());
            let inode = Inode::decode(&bytes).unwrap();
            let mut out = vec![0; 160];
            inode.encode(&mut out);
            prop_assert_eq!(&out, &bytes);
        }

        #[test]
        fn decode_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Inode::decode(&bytes);
            let _ = verify(&bytes, 1);
        }

        #[test]
        fn sealed_inodes_verify(
            size in prop::sample::select(vec![128usize, 256, 512]),
            extra in prop::sample::select(vec![0u16, 4, 28, 32]),
            seed in any::<u32>(),
            flip in 0usize..124,
        ) {
            let mut bytes = vec![0x5A; size];
            if size > 128 {
                bytes[0x80..0x82].copy_from_slice(&extra.to_le_bytes());
            }
            seal(&mut bytes, seed);
            prop_assert!(verify(&bytes, seed));
            bytes[flip] ^= 4;
            prop_assert!(!verify(&bytes, seed));
        }
    }
}
