//! Results of stat and statfs.

use std::time::Duration;

use extant_base::Ino;
use extant_inode::Inode;
use extant_ondisk::filetype::FileType;
use extant_ondisk::time::Timestamp;

use crate::Attributes;

/// The values of stat(2) and statx(2) for an inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// Inode number.
    pub ino: Ino,
    /// Type.
    pub kind: FileType,
    /// Type and permissions, as st_mode.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Links.
    pub links: u32,
    /// Size in bytes.
    pub size: u64,
    /// Space in units of 512 bytes, as st_blocks.
    pub blocks_512: u64,
    /// Block size of the file system in bytes.
    pub block_size: u32,
    /// Major and minor number of a device node, otherwise (0, 0).
    pub device: (u32, u32),
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Birth time, if the inode has room for it.
    pub crtime: Option<Timestamp>,
    /// Generation, which distinguishes successive uses of an inode number.
    pub generation: u32,
    /// Inode flags (`extant_ondisk::inode::flags`).
    pub flags: u32,
    /// Project ID.
    pub project: u32,
}

/// The values of statfs(2) for a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatFs {
    /// Block size in bytes.
    pub block_size: u32,
    /// Blocks available for files: without the file system's own.
    pub blocks: u64,
    /// Free blocks, without those reserved by delayed allocation.
    pub blocks_free: u64,
    /// Free blocks for unprivileged users, without the reserve.
    pub blocks_available: u64,
    /// Inodes.
    pub inodes: u32,
    /// Free inodes.
    pub inodes_free: u32,
    /// Longest name in bytes: 255.
    pub name_max: u32,
    /// The UUID's halves combined by XOR, as the kernel's f_fsid.
    pub fsid: u64,
}

impl Attributes<'_> {
    /// The resolution of timestamps: a second with inodes of 128 bytes.
    #[must_use]
    pub fn time_granularity(self) -> Duration {
        match self.volume.inodes.shared().geometry.inode_size > extant_ondisk::inode::BASE_SIZE {
            true => Duration::from_nanos(1),
            false => Duration::from_secs(1),
        }
    }

    /// The values of stat(2) for an inode.
    #[must_use]
    pub fn stat(self, inode: &Inode) -> Stat {
        let fields = inode.fields();
        let shared = self.volume.inodes.shared();
        let geometry = &shared.geometry;
        let kind = inode.kind();
        let is_device = matches!(kind, FileType::CharDevice | FileType::BlockDevice);
        // As the kernel: otherwise a file with inline data looks like a hole.
        let inline = inode.is_inline() && kind == FileType::Regular;
        let inline_512 = if inline { inode.size().div_ceil(512) } else { 0 };
        // As the kernel: delayed blocks count as allocated.
        let promised_512 =
            (inode.promised_clusters() * geometry.cluster_ratio()) << (geometry.block_size.log2() - 9);
        // Large inodes that never got their extra fields (tune2fs -I) count as having them, all zero.
        let has_crtime = fields.extra_isize >= 20 || (fields.extra_isize == 0 && geometry.inode_size > 128);
        Stat {
            ino: inode.ino(),
            kind,
            mode: fields.mode,
            uid: fields.uid,
            gid: fields.gid,
            links: u32::from(fields.links),
            size: inode.size(),
            blocks_512: shared.sectors(fields).saturating_add(inline_512).saturating_add(promised_512),
            block_size: geometry.block_size.bytes() as u32,
            device: if is_device { fields.device() } else { (0, 0) },
            atime: fields.atime,
            mtime: fields.mtime,
            ctime: fields.ctime,
            crtime: has_crtime.then_some(fields.crtime),
            generation: fields.generation,
            flags: fields.flags,
            project: fields.projid,
        }
    }
}
