//! The superblock: 1024 bytes at byte 1024 of the device, with copies in the backup groups.
//!
//! Owns the conversion between bytes and value, the superblock's checksum, and the seed of all other
//! checksums. Does **not** own the geometry computed from it (see [`crate::geometry`]).
//!
//! The value keeps every field: any 1024 bytes with the right magic are the same after decoding and encoding.
//!
//! Source: kernel Documentation/filesystems/ext4/super.rst.

use extant_base::checksum::crc32c;
use extant_base::{BlockSize, Malformed};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Features;

/// Byte offset of the primary superblock on the device, for any block size.
pub const OFFSET: u64 = 1024;
/// Size in bytes.
pub const SIZE: usize = 1024;
/// `s_magic`.
pub const MAGIC: u16 = 0xEF53;
/// `s_state`: cleanly unmounted.
pub const STATE_CLEAN: u16 = 1;
/// `s_state`: errors were found.
pub const STATE_ERRORS: u16 = 2;
/// The owner shown in place of an ID that does not fit: the kernel's overflow ID.
pub const OVERFLOW_ID: u32 = 65_534;

/// Bits of [`Superblock::default_mount_opts`], by their names in `tune2fs -o`.
pub mod default_options {
    /// `debug`
    pub const DEBUG: u32 = 0x1;
    /// `bsdgroups`
    pub const BSD_GROUPS: u32 = 0x2;
    /// `user_xattr`
    pub const XATTR_USER: u32 = 0x4;
    /// `acl`
    pub const ACL: u32 = 0x8;
    /// `uid16`
    pub const UID16: u32 = 0x10;
    /// Mask of two bits that hold one of the next three values, or none.
    pub const JOURNAL_MODE: u32 = 0x60;
    /// `journal_data`
    pub const JOURNAL_DATA: u32 = 0x20;
    /// `journal_data_ordered`
    pub const JOURNAL_ORDERED: u32 = 0x40;
    /// `journal_data_writeback`
    pub const JOURNAL_WRITEBACK: u32 = 0x60;
    /// `nobarrier`
    pub const NOBARRIER: u32 = 0x100;
    /// `block_validity`
    pub const BLOCK_VALIDITY: u32 = 0x200;
    /// `discard`
    pub const DISCARD: u32 = 0x400;
    /// `nodelalloc`
    pub const NODELALLOC: u32 = 0x800;
}

/// [`Superblock::creator_os`] of file systems created by Linux.
pub const OS_LINUX: u32 = 0;
/// [`Superblock::creator_os`] of file systems created for the GNU Hurd.
pub const OS_HURD: u32 = 1;
/// `s_flags`: directory hashes treat names as signed bytes.
pub const FLAG_SIGNED_HASH: u32 = 1;
/// `s_flags`: directory hashes treat names as unsigned bytes.
pub const FLAG_UNSIGNED_HASH: u32 = 2;
/// `s_flags`: created for tests of development code.
pub const FLAG_TEST_FILESYS: u32 = 4;

const CHECKSUM_AT: usize = 0x3FC;

/// The bytes on disk.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Raw {
    s_inodes_count: U32,
    s_blocks_count_lo: U32,
    s_r_blocks_count_lo: U32,
    s_free_blocks_count_lo: U32,
    s_free_inodes_count: U32,
    s_first_data_block: U32,
    s_log_block_size: U32,
    s_log_cluster_size: U32,
    s_blocks_per_group: U32,
    s_clusters_per_group: U32,
    s_inodes_per_group: U32,
    s_mtime: U32,
    s_wtime: U32,
    s_mnt_count: U16,
    s_max_mnt_count: U16,
    s_magic: U16,
    s_state: U16,
    s_errors: U16,
    s_minor_rev_level: U16,
    s_lastcheck: U32,
    s_checkinterval: U32,
    s_creator_os: U32,
    s_rev_level: U32,
    s_def_resuid: U16,
    s_def_resgid: U16,
    s_first_ino: U32,
    s_inode_size: U16,
    s_block_group_nr: U16,
    s_feature_compat: U32,
    s_feature_incompat: U32,
    s_feature_ro_compat: U32,
    s_uuid: [u8; 16],
    s_volume_name: [u8; 16],
    s_last_mounted: [u8; 64],
    s_algorithm_usage_bitmap: U32,
    s_prealloc_blocks: u8,
    s_prealloc_dir_blocks: u8,
    s_reserved_gdt_blocks: U16,
    s_journal_uuid: [u8; 16],
    s_journal_inum: U32,
    s_journal_dev: U32,
    s_last_orphan: U32,
    s_hash_seed: [u8; 16],
    s_def_hash_version: u8,
    s_jnl_backup_type: u8,
    s_desc_size: U16,
    s_default_mount_opts: U32,
    s_first_meta_bg: U32,
    s_mkfs_time: U32,
    s_jnl_blocks: [U32; 17],
    s_blocks_count_hi: U32,
    s_r_blocks_count_hi: U32,
    s_free_blocks_count_hi: U32,
    s_min_extra_isize: U16,
    s_want_extra_isize: U16,
    s_flags: U32,
    s_raid_stride: U16,
    s_mmp_interval: U16,
    s_mmp_block: U64,
    s_raid_stripe_width: U32,
    s_log_groups_per_flex: u8,
    s_checksum_type: u8,
    s_encryption_level: u8,
    s_reserved_pad: u8,
    s_kbytes_written: U64,
    s_snapshot_inum: U32,
    s_snapshot_id: U32,
    s_snapshot_r_blocks_count: U64,
    s_snapshot_list: U32,
    s_error_count: U32,
    s_first_error_time: U32,
    s_first_error_ino: U32,
    s_first_error_block: U64,
    s_first_error_func: [u8; 32],
    s_first_error_line: U32,
    s_last_error_time: U32,
    s_last_error_ino: U32,
    s_last_error_line: U32,
    s_last_error_block: U64,
    s_last_error_func: [u8; 32],
    s_mount_opts: [u8; 64],
    s_usr_quota_inum: U32,
    s_grp_quota_inum: U32,
    s_overhead_clusters: U32,
    s_backup_bgs: [U32; 2],
    s_encrypt_algos: [u8; 4],
    s_encrypt_pw_salt: [u8; 16],
    s_lpf_ino: U32,
    s_prj_quota_inum: U32,
    s_checksum_seed: U32,
    s_wtime_hi: u8,
    s_mtime_hi: u8,
    s_mkfs_time_hi: u8,
    s_lastcheck_hi: u8,
    s_first_error_time_hi: u8,
    s_last_error_time_hi: u8,
    s_first_error_errcode: u8,
    s_last_error_errcode: u8,
    s_encoding: U16,
    s_encoding_flags: U16,
    s_orphan_file_inum: U32,
    s_def_resuid_hi: U16,
    s_def_resgid_hi: U16,
    s_reserved: [u8; 372],
    s_checksum: U32,
}

/// A decoded superblock. `Default` is all zero; `encode` always writes the magic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// Inodes in the file system.
    pub inodes_count: u32,
    /// Blocks in the file system.
    pub blocks_count: u64,
    /// Blocks that only the reserved user may allocate.
    pub reserved_blocks_count: u64,
    /// Free blocks (not clusters).
    pub free_blocks_count: u64,
    /// Free inodes.
    pub free_inodes_count: u32,
    /// The block that contains the first superblock: 1 for 1 KiB clusters, else 0.
    pub first_data_block: u32,
    /// Block size is 1024 << this value.
    pub log_block_size: u32,
    /// Cluster size is 1024 << this value.
    pub log_cluster_size: u32,
    /// Blocks per group.
    pub blocks_per_group: u32,
    /// Clusters per group.
    pub clusters_per_group: u32,
    /// Inodes per group.
    pub inodes_per_group: u32,
    /// Last mount, seconds since 1970 (40 bits).
    pub mtime: u64,
    /// Last write of the superblock, seconds since 1970 (40 bits).
    pub wtime: u64,
    /// Mounts since the last check.
    pub mnt_count: u16,
    /// Mounts after which to check; 0xFFFF means never.
    pub max_mnt_count: u16,
    /// 1 clean, 2 errors, 4 orphans being recovered.
    pub state: u16,
    /// On error: 1 continue, 2 remount read-only, 3 panic.
    pub errors: u16,
    /// Minor revision.
    pub minor_rev_level: u16,
    /// Last check, seconds since 1970 (40 bits).
    pub lastcheck: u64,
    /// Seconds between checks; 0 means never.
    pub checkinterval: u32,
    /// 0 Linux, 1 Hurd, 2 Masix, 3 FreeBSD, 4 Lites.
    pub creator_os: u32,
    /// 0 original, 1 dynamic (inode size and features valid).
    pub rev_level: u32,
    /// User that may allocate reserved blocks.
    pub def_resuid: u32,
    /// Group that may allocate reserved blocks.
    pub def_resgid: u32,
    /// First inode that is not reserved.
    pub first_ino: u32,
    /// Bytes per inode.
    pub inode_size: u16,
    /// Group that contains this copy of the superblock.
    pub block_group_nr: u16,
    /// Feature words.
    pub features: Features,
    /// The file system's UUID.
    pub uuid: [u8; 16],
    /// Label, padded with zeros.
    pub volume_name: [u8; 16],
    /// Directory of the last mount, padded with zeros.
    pub last_mounted: [u8; 64],
    /// Compression algorithms (unused).
    pub algorithm_usage_bitmap: u32,
    /// Blocks to preallocate for files (unused).
    pub prealloc_blocks: u8,
    /// Blocks to preallocate for directories (unused).
    pub prealloc_dir_blocks: u8,
    /// Reserved group-descriptor blocks after each copy of the table.
    pub reserved_gdt_blocks: u16,
    /// UUID of the external journal.
    pub journal_uuid: [u8; 16],
    /// Inode of the internal journal.
    pub journal_inum: u32,
    /// Device number of the external journal.
    pub journal_dev: u32,
    /// Head of the orphan list.
    pub last_orphan: u32,
    /// Seed of the directory hash.
    pub hash_seed: [u8; 16],
    /// Default directory hash: 0 legacy, 1 half-MD4, 2 TEA, 6 SipHash.
    pub def_hash_version: u8,
    /// 1 if `jnl_blocks` is a backup of the journal's inode.
    pub jnl_backup_type: u8,
    /// Bytes per group descriptor with the 64bit feature.
    pub desc_size: u16,
    /// Default mount options.
    pub default_mount_opts: u32,
    /// First meta block group.
    pub first_meta_bg: u32,
    /// Creation, seconds since 1970 (40 bits).
    pub mkfs_time: u64,
    /// Backup of the journal inode: the 15 words of `i_block`, size high, size low.
    pub jnl_blocks: [u32; 17],
    /// Extra inode bytes that every inode must have.
    pub min_extra_isize: u16,
    /// Extra inode bytes that new inodes should have.
    pub want_extra_isize: u16,
    /// 1 signed directory hash, 2 unsigned, 4 test file system.
    pub flags: u32,
    /// RAID chunk, in blocks.
    pub raid_stride: u16,
    /// Seconds between multiple-mount-protection updates.
    pub mmp_interval: u16,
    /// The multiple-mount-protection block.
    pub mmp_block: u64,
    /// Blocks on all data disks of a RAID.
    pub raid_stripe_width: u32,
    /// A flex group has 1 << this value groups.
    pub log_groups_per_flex: u8,
    /// 1 means CRC-32C.
    pub checksum_type: u8,
    /// Encryption version.
    pub encryption_level: u8,
    /// Padding, preserved.
    pub reserved_pad: u8,
    /// KiB written over the life of the file system.
    pub kbytes_written: u64,
    /// Obsolete.
    pub snapshot_inum: u32,
    /// Obsolete.
    pub snapshot_id: u32,
    /// Obsolete.
    pub snapshot_r_blocks_count: u64,
    /// Obsolete.
    pub snapshot_list: u32,
    /// Errors seen since the last check.
    pub error_count: u32,
    /// First error, seconds since 1970 (40 bits).
    pub first_error_time: u64,
    /// Inode of the first error.
    pub first_error_ino: u32,
    /// Block of the first error.
    pub first_error_block: u64,
    /// Kernel function of the first error.
    pub first_error_func: [u8; 32],
    /// Line of the first error.
    pub first_error_line: u32,
    /// Last error, seconds since 1970 (40 bits).
    pub last_error_time: u64,
    /// Inode of the last error.
    pub last_error_ino: u32,
    /// Line of the last error.
    pub last_error_line: u32,
    /// Block of the last error.
    pub last_error_block: u64,
    /// Kernel function of the last error.
    pub last_error_func: [u8; 32],
    /// Default mount options as text.
    pub mount_opts: [u8; 64],
    /// User quota inode.
    pub usr_quota_inum: u32,
    /// Group quota inode.
    pub grp_quota_inum: u32,
    /// Clusters that hold metadata; 0 means unknown.
    pub overhead_clusters: u32,
    /// Groups with backups under sparse_super2; 0 means none.
    pub backup_bgs: [u32; 2],
    /// Encryption algorithms in use.
    pub encrypt_algos: [u8; 4],
    /// Salt for passwords.
    pub encrypt_pw_salt: [u8; 16],
    /// Inode of lost+found (unused by Linux).
    pub lpf_ino: u32,
    /// Project quota inode.
    pub prj_quota_inum: u32,
    /// Checksum seed under metadata_csum_seed.
    pub checksum_seed: u32,
    /// Code of the first error.
    pub first_error_errcode: u8,
    /// Code of the last error.
    pub last_error_errcode: u8,
    /// File-name encoding: 1 means UTF-8 12.1.
    pub encoding: u16,
    /// 1 means strict.
    pub encoding_flags: u16,
    /// Inode of the orphan file.
    pub orphan_file_inum: u32,
    /// Reserved, preserved.
    pub reserved: [u8; 372],
    /// Checksum as read; `encode` writes it unchanged, `seal` replaces it.
    pub checksum: u32,
}

impl Superblock {
    /// Reads a superblock from its 1024 bytes.
    ///
    /// # Errors
    /// There are fewer than 1024 bytes, or the magic is not 0xEF53. No other field is checked.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let Ok((raw, _)) = Raw::ref_from_prefix(bytes) else {
            return Err(Malformed::new("superblock", "must have 1024 bytes", bytes.len() as u64));
        };
        Malformed::unless(raw.s_magic == MAGIC, "superblock", "magic must be 0xEF53", raw.s_magic.get())?;
        Ok(Self::from_raw(raw))
    }

    fn from_raw(raw: &Raw) -> Self {
        Self {
            inodes_count: raw.s_inodes_count.get(),
            blocks_count: join(raw.s_blocks_count_lo, raw.s_blocks_count_hi),
            reserved_blocks_count: join(raw.s_r_blocks_count_lo, raw.s_r_blocks_count_hi),
            free_blocks_count: join(raw.s_free_blocks_count_lo, raw.s_free_blocks_count_hi),
            free_inodes_count: raw.s_free_inodes_count.get(),
            first_data_block: raw.s_first_data_block.get(),
            log_block_size: raw.s_log_block_size.get(),
            log_cluster_size: raw.s_log_cluster_size.get(),
            blocks_per_group: raw.s_blocks_per_group.get(),
            clusters_per_group: raw.s_clusters_per_group.get(),
            inodes_per_group: raw.s_inodes_per_group.get(),
            mtime: time(raw.s_mtime, raw.s_mtime_hi),
            wtime: time(raw.s_wtime, raw.s_wtime_hi),
            mnt_count: raw.s_mnt_count.get(),
            max_mnt_count: raw.s_max_mnt_count.get(),
            state: raw.s_state.get(),
            errors: raw.s_errors.get(),
            minor_rev_level: raw.s_minor_rev_level.get(),
            lastcheck: time(raw.s_lastcheck, raw.s_lastcheck_hi),
            checkinterval: raw.s_checkinterval.get(),
            creator_os: raw.s_creator_os.get(),
            rev_level: raw.s_rev_level.get(),
            def_resuid: u32::from(raw.s_def_resuid.get()) | u32::from(raw.s_def_resuid_hi.get()) << 16,
            def_resgid: u32::from(raw.s_def_resgid.get()) | u32::from(raw.s_def_resgid_hi.get()) << 16,
            first_ino: raw.s_first_ino.get(),
            inode_size: raw.s_inode_size.get(),
            block_group_nr: raw.s_block_group_nr.get(),
            features: Features {
                compat: raw.s_feature_compat.get(),
                incompat: raw.s_feature_incompat.get(),
                ro_compat: raw.s_feature_ro_compat.get(),
            },
            uuid: raw.s_uuid,
            volume_name: raw.s_volume_name,
            last_mounted: raw.s_last_mounted,
            algorithm_usage_bitmap: raw.s_algorithm_usage_bitmap.get(),
            prealloc_blocks: raw.s_prealloc_blocks,
            prealloc_dir_blocks: raw.s_prealloc_dir_blocks,
            reserved_gdt_blocks: raw.s_reserved_gdt_blocks.get(),
            journal_uuid: raw.s_journal_uuid,
            journal_inum: raw.s_journal_inum.get(),
            journal_dev: raw.s_journal_dev.get(),
            last_orphan: raw.s_last_orphan.get(),
            hash_seed: raw.s_hash_seed,
            def_hash_version: raw.s_def_hash_version,
            jnl_backup_type: raw.s_jnl_backup_type,
            desc_size: raw.s_desc_size.get(),
            default_mount_opts: raw.s_default_mount_opts.get(),
            first_meta_bg: raw.s_first_meta_bg.get(),
            mkfs_time: time(raw.s_mkfs_time, raw.s_mkfs_time_hi),
            jnl_blocks: raw.s_jnl_blocks.map(U32::get),
            min_extra_isize: raw.s_min_extra_isize.get(),
            want_extra_isize: raw.s_want_extra_isize.get(),
            flags: raw.s_flags.get(),
            raid_stride: raw.s_raid_stride.get(),
            mmp_interval: raw.s_mmp_interval.get(),
            mmp_block: raw.s_mmp_block.get(),
            raid_stripe_width: raw.s_raid_stripe_width.get(),
            log_groups_per_flex: raw.s_log_groups_per_flex,
            checksum_type: raw.s_checksum_type,
            encryption_level: raw.s_encryption_level,
            reserved_pad: raw.s_reserved_pad,
            kbytes_written: raw.s_kbytes_written.get(),
            snapshot_inum: raw.s_snapshot_inum.get(),
            snapshot_id: raw.s_snapshot_id.get(),
            snapshot_r_blocks_count: raw.s_snapshot_r_blocks_count.get(),
            snapshot_list: raw.s_snapshot_list.get(),
            error_count: raw.s_error_count.get(),
            first_error_time: time(raw.s_first_error_time, raw.s_first_error_time_hi),
            first_error_ino: raw.s_first_error_ino.get(),
            first_error_block: raw.s_first_error_block.get(),
            first_error_func: raw.s_first_error_func,
            first_error_line: raw.s_first_error_line.get(),
            last_error_time: time(raw.s_last_error_time, raw.s_last_error_time_hi),
            last_error_ino: raw.s_last_error_ino.get(),
            last_error_line: raw.s_last_error_line.get(),
            last_error_block: raw.s_last_error_block.get(),
            last_error_func: raw.s_last_error_func,
            mount_opts: raw.s_mount_opts,
            usr_quota_inum: raw.s_usr_quota_inum.get(),
            grp_quota_inum: raw.s_grp_quota_inum.get(),
            overhead_clusters: raw.s_overhead_clusters.get(),
            backup_bgs: raw.s_backup_bgs.map(U32::get),
            encrypt_algos: raw.s_encrypt_algos,
            encrypt_pw_salt: raw.s_encrypt_pw_salt,
            lpf_ino: raw.s_lpf_ino.get(),
            prj_quota_inum: raw.s_prj_quota_inum.get(),
            checksum_seed: raw.s_checksum_seed.get(),
            first_error_errcode: raw.s_first_error_errcode,
            last_error_errcode: raw.s_last_error_errcode,
            encoding: raw.s_encoding.get(),
            encoding_flags: raw.s_encoding_flags.get(),
            orphan_file_inum: raw.s_orphan_file_inum.get(),
            reserved: raw.s_reserved,
            checksum: raw.s_checksum.get(),
        }
    }

    /// Encodes the superblock, with `checksum` unchanged.
    #[must_use]
    pub fn encode(&self) -> [u8; SIZE] {
        let raw = Raw {
            s_inodes_count: self.inodes_count.into(),
            s_blocks_count_lo: low(self.blocks_count),
            s_blocks_count_hi: high(self.blocks_count),
            s_r_blocks_count_lo: low(self.reserved_blocks_count),
            s_r_blocks_count_hi: high(self.reserved_blocks_count),
            s_free_blocks_count_lo: low(self.free_blocks_count),
            s_free_blocks_count_hi: high(self.free_blocks_count),
            s_free_inodes_count: self.free_inodes_count.into(),
            s_first_data_block: self.first_data_block.into(),
            s_log_block_size: self.log_block_size.into(),
            s_log_cluster_size: self.log_cluster_size.into(),
            s_blocks_per_group: self.blocks_per_group.into(),
            s_clusters_per_group: self.clusters_per_group.into(),
            s_inodes_per_group: self.inodes_per_group.into(),
            s_mtime: low(self.mtime),
            s_mtime_hi: (self.mtime >> 32) as u8,
            s_wtime: low(self.wtime),
            s_wtime_hi: (self.wtime >> 32) as u8,
            s_mnt_count: self.mnt_count.into(),
            s_max_mnt_count: self.max_mnt_count.into(),
            s_state: self.state.into(),
            s_errors: self.errors.into(),
            s_minor_rev_level: self.minor_rev_level.into(),
            s_lastcheck: low(self.lastcheck),
            s_lastcheck_hi: (self.lastcheck >> 32) as u8,
            s_checkinterval: self.checkinterval.into(),
            s_creator_os: self.creator_os.into(),
            s_rev_level: self.rev_level.into(),
            s_def_resuid: (self.def_resuid as u16).into(),
            s_def_resuid_hi: ((self.def_resuid >> 16) as u16).into(),
            s_def_resgid: (self.def_resgid as u16).into(),
            s_def_resgid_hi: ((self.def_resgid >> 16) as u16).into(),
            s_first_ino: self.first_ino.into(),
            s_inode_size: self.inode_size.into(),
            s_block_group_nr: self.block_group_nr.into(),
            s_feature_compat: self.features.compat.into(),
            s_feature_incompat: self.features.incompat.into(),
            s_feature_ro_compat: self.features.ro_compat.into(),
            s_uuid: self.uuid,
            s_volume_name: self.volume_name,
            s_last_mounted: self.last_mounted,
            s_algorithm_usage_bitmap: self.algorithm_usage_bitmap.into(),
            s_prealloc_blocks: self.prealloc_blocks,
            s_prealloc_dir_blocks: self.prealloc_dir_blocks,
            s_reserved_gdt_blocks: self.reserved_gdt_blocks.into(),
            s_journal_uuid: self.journal_uuid,
            s_journal_inum: self.journal_inum.into(),
            s_journal_dev: self.journal_dev.into(),
            s_last_orphan: self.last_orphan.into(),
            s_hash_seed: self.hash_seed,
            s_def_hash_version: self.def_hash_version,
            s_jnl_backup_type: self.jnl_backup_type,
            s_desc_size: self.desc_size.into(),
            s_default_mount_opts: self.default_mount_opts.into(),
            s_first_meta_bg: self.first_meta_bg.into(),
            s_mkfs_time: low(self.mkfs_time),
            s_mkfs_time_hi: (self.mkfs_time >> 32) as u8,
            s_jnl_blocks: self.jnl_blocks.map(U32::from),
            s_min_extra_isize: self.min_extra_isize.into(),
            s_want_extra_isize: self.want_extra_isize.into(),
            s_flags: self.flags.into(),
            s_raid_stride: self.raid_stride.into(),
            s_mmp_interval: self.mmp_interval.into(),
            s_mmp_block: self.mmp_block.into(),
            s_raid_stripe_width: self.raid_stripe_width.into(),
            s_log_groups_per_flex: self.log_groups_per_flex,
            s_checksum_type: self.checksum_type,
            s_encryption_level: self.encryption_level,
            s_reserved_pad: self.reserved_pad,
            s_kbytes_written: self.kbytes_written.into(),
            s_snapshot_inum: self.snapshot_inum.into(),
            s_snapshot_id: self.snapshot_id.into(),
            s_snapshot_r_blocks_count: self.snapshot_r_blocks_count.into(),
            s_snapshot_list: self.snapshot_list.into(),
            s_error_count: self.error_count.into(),
            s_first_error_time: low(self.first_error_time),
            s_first_error_time_hi: (self.first_error_time >> 32) as u8,
            s_first_error_ino: self.first_error_ino.into(),
            s_first_error_block: self.first_error_block.into(),
            s_first_error_func: self.first_error_func,
            s_first_error_line: self.first_error_line.into(),
            s_last_error_time: low(self.last_error_time),
            s_last_error_time_hi: (self.last_error_time >> 32) as u8,
            s_last_error_ino: self.last_error_ino.into(),
            s_last_error_line: self.last_error_line.into(),
            s_last_error_block: self.last_error_block.into(),
            s_last_error_func: self.last_error_func,
            s_mount_opts: self.mount_opts,
            s_usr_quota_inum: self.usr_quota_inum.into(),
            s_grp_quota_inum: self.grp_quota_inum.into(),
            s_overhead_clusters: self.overhead_clusters.into(),
            s_backup_bgs: self.backup_bgs.map(U32::from),
            s_encrypt_algos: self.encrypt_algos,
            s_encrypt_pw_salt: self.encrypt_pw_salt,
            s_lpf_ino: self.lpf_ino.into(),
            s_prj_quota_inum: self.prj_quota_inum.into(),
            s_checksum_seed: self.checksum_seed.into(),
            s_first_error_errcode: self.first_error_errcode,
            s_last_error_errcode: self.last_error_errcode,
            s_encoding: self.encoding.into(),
            s_encoding_flags: self.encoding_flags.into(),
            s_orphan_file_inum: self.orphan_file_inum.into(),
            s_reserved: self.reserved,
            s_checksum: self.checksum.into(),
            s_magic: MAGIC.into(),
        };
        zerocopy::transmute!(raw)
    }

    /// Encodes the superblock; with metadata_csum it computes the checksum, else `checksum` is unchanged.
    #[must_use]
    pub fn sealed(&self) -> [u8; SIZE] {
        let mut bytes = self.encode();
        if self.features.metadata_csum() {
            let sum = compute_checksum(&bytes);
            bytes[CHECKSUM_AT..].copy_from_slice(&sum.to_le_bytes());
        }
        bytes
    }

    /// Whether the stored checksum matches the fields. Always true without metadata_csum.
    #[must_use]
    pub fn verify(&self) -> bool {
        !self.features.metadata_csum() || compute_checksum(&self.encode()) == self.checksum
    }

    /// The seed of all other metadata checksums.
    #[must_use]
    pub fn fs_seed(&self) -> u32 {
        if self.features.has_incompat(Features::CSUM_SEED) {
            self.checksum_seed
        } else {
            crc32c(!0, &self.uuid)
        }
    }

    /// Gives the file system another UUID. Where the other metadata checksums depend on the UUID, stores the
    /// seed that they were made with and turns on `metadata_csum_seed`; returns whether it did.
    pub fn set_uuid(&mut self, uuid: [u8; 16]) -> bool {
        let stores_seed = self.features.metadata_csum() && !self.features.has_incompat(Features::CSUM_SEED);
        if stores_seed {
            self.checksum_seed = self.fs_seed();
            self.features.incompat |= Features::CSUM_SEED;
        }
        self.uuid = uuid;
        stores_seed
    }

    /// Block size.
    ///
    /// # Errors
    /// `s_log_block_size` is above 6 (64 KiB).
    pub fn block_size(&self) -> Result<BlockSize, Malformed> {
        BlockSize::from_log(self.log_block_size).ok_or_else(|| {
            Malformed::new("superblock", "log_block_size must be at most 6", self.log_block_size)
        })
    }

    /// Bytes per group descriptor; 32 without the 64bit feature.
    #[must_use]
    pub fn group_desc_size(&self) -> usize {
        if self.features.has_incompat(Features::BIT64) { usize::from(self.desc_size) } else { 32 }
    }

    /// Bytes per inode; 128 in revision 0.
    #[must_use]
    pub fn inode_bytes(&self) -> usize {
        if self.rev_level == 0 { 128 } else { usize::from(self.inode_size) }
    }

    /// Whether the file system was created for the GNU Hurd. Some fields of its inodes have another meaning:
    /// see [`Inode::of_hurd`](crate::inode::Inode::of_hurd).
    #[must_use]
    pub fn is_hurd(&self) -> bool {
        self.creator_os == OS_HURD
    }

    /// Whether an inode must have a right checksum to be read. If another system than Linux created the file
    /// system, the kernel neither verifies nor writes the checksums of inodes.
    #[must_use]
    pub fn verifies_inodes(&self) -> bool {
        self.features.metadata_csum() && self.creator_os == OS_LINUX
    }

    /// Whether inodes get checksums when they are written. e2fsck expects them for all systems except the
    /// Hurd, which stores the author there.
    #[must_use]
    pub fn seals_inodes(&self) -> bool {
        self.features.metadata_csum() && !self.is_hurd()
    }

    /// Whether owners are limited to 16 bits (default mount option `uid16`). If so, the high halves are not
    /// read and are written as 0; a user or group ID that does not fit becomes [`OVERFLOW_ID`].
    #[must_use]
    pub fn has_short_ids(&self) -> bool {
        self.default_mount_opts & default_options::UID16 != 0
    }

    /// The number that an inode stores for this user or group ID.
    #[must_use]
    pub fn storable_id(&self, id: u32) -> u32 {
        if self.has_short_ids() && id > 0xFFFF { OVERFLOW_ID } else { id }
    }

    /// The label, up to its first zero byte.
    #[must_use]
    pub fn label(&self) -> &[u8] {
        until_nul(&self.volume_name)
    }

    /// Whether directory hashes treat names as unsigned bytes.
    #[must_use]
    pub fn unsigned_hash(&self) -> bool {
        self.flags & FLAG_UNSIGNED_HASH != 0
    }
}

impl Default for Superblock {
    fn default() -> Self {
        Self::from_raw(&Raw::new_zeroed())
    }
}

/// Stores the checksum in the bytes of a superblock; for file systems with metadata_csum.
pub fn seal(bytes: &mut [u8]) {
    if let Ok(whole) = <&mut [u8; SIZE]>::try_from(bytes) {
        let sum = compute_checksum(whole);
        whole[CHECKSUM_AT..].copy_from_slice(&sum.to_le_bytes());
    }
}

/// A UUID as text, such as `f81d4fae-7dec-11d0-a765-00a0c91e6bf6`.
#[must_use]
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[0..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..32]].join("-")
}

/// A text field, up to its first zero byte.
#[must_use]
pub fn until_nul(field: &[u8]) -> &[u8] {
    field.split(|&b| b == 0).next().unwrap_or_default()
}

fn compute_checksum(bytes: &[u8; SIZE]) -> u32 {
    crc32c(!0, &bytes[..CHECKSUM_AT])
}

fn join(lo: U32, hi: U32) -> u64 {
    u64::from(lo.get()) | u64::from(hi.get()) << 32
}

fn low(value: u64) -> U32 {
    (value as u32).into()
}

fn high(value: u64) -> U32 {
    ((value >> 32) as u32).into()
}

fn time(lo: U32, hi: u8) -> u64 {
    u64::from(lo.get()) | u64::from(hi) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_lie_where_the_format_puts_them() {
        assert_eq!(std::mem::offset_of!(Raw, s_uuid), 0x68);
        assert_eq!(std::mem::offset_of!(Raw, s_hash_seed), 0xEC);
        assert_eq!(std::mem::offset_of!(Raw, s_blocks_count_hi), 0x150);
        assert_eq!(std::mem::offset_of!(Raw, s_mount_opts), 0x200);
        assert_eq!(std::mem::offset_of!(Raw, s_orphan_file_inum), 0x280);
        assert_eq!(std::mem::offset_of!(Raw, s_checksum), CHECKSUM_AT);
        assert_eq!(size_of::<Raw>(), SIZE);
    }

    #[test]
    fn a_sealed_superblock_verifies_and_a_flipped_bit_does_not() {
        let mut sb = Superblock { blocks_count: 1 << 33, ..Superblock::default() };
        sb.features.ro_compat = Features::METADATA_CSUM;
        let mut bytes = sb.sealed();
        assert!(Superblock::decode(&bytes).unwrap().verify());
        bytes[4] ^= 1;
        assert!(!Superblock::decode(&bytes).unwrap().verify());
    }

    proptest! {
        #[test]
        fn any_bytes_with_the_magic_survive_a_round_trip(mut bytes in proptest::collection::vec(any::<u8>(), SIZE)) {
            bytes[0x38..0x3A].copy_from_slice(&MAGIC.to_le_bytes());
            let sb = Superblock::decode(&bytes).unwrap();
            prop_assert_eq!(sb.encode().to_vec(), bytes);
            prop_assert_eq!(Superblock::decode(&sb.encode()).unwrap(), sb);
        }

        #[test]
        fn decode_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..1100)) {
            let _ = Superblock::decode(&bytes);
        }
    }
}
