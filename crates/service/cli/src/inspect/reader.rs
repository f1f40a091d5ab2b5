//! Reads one image for inspection: blocks, group descriptors and inodes, each with its damage.
//!
//! Owns: a read-only device with its superblock and geometry, and a small cache of blocks. Does **not** own:
//! the block map of a file (see [`super::mapping`]), any output.
//!
//! Invariants
//! 1. The device is never written.
//! 2. A damaged structure is still returned if its bytes can be decoded; the damage is recorded in the
//!    [`DamageLog`].
//! 3. Memory use does not grow with the image: at most [`CACHED_BLOCKS`] blocks are cached.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use extant_base::{Group, Ino, Malformed, Pblk};
use extant_device::{Device, DeviceFault};
use extant_ondisk::group_desc::{ChecksumRule, GroupDesc};
use extant_ondisk::inode::{self, Inode};
use extant_ondisk::{Features, Geometry, Superblock};

use super::InspectError;
use super::format::{Checksum, checksum_text};
use super::probe::{DamageLog, Probe};

const CACHED_BLOCKS: usize = 16;

/// Why a block or structure cannot be read.
#[derive(Debug)]
pub(super) enum ReadFault {
    /// The device failed.
    Device(DeviceFault),
    /// The file system has no such block.
    NoSuchBlock(Pblk),
    /// The bytes are malformed.
    Malformed(Malformed),
}

impl fmt::Display for ReadFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(fault) => fault.fmt(f),
            Self::NoSuchBlock(block) => write!(f, "block {block} lies outside the file system"),
            Self::Malformed(fault) => fault.fmt(f),
        }
    }
}

impl From<Malformed> for ReadFault {
    fn from(fault: Malformed) -> Self {
        Self::Malformed(fault)
    }
}

/// A group descriptor as it is stored in the image.
#[derive(Debug, Clone)]
pub(super) struct Descriptor {
    /// The primary copy.
    pub(super) desc: GroupDesc,
    /// Its checksum; `None` if the file system has none.
    pub(super) checksum: Option<Checksum>,
    /// Block and byte offset of the primary copy.
    pub(super) place: (Pblk, usize),
    /// The tables to use: block of the block bitmap, of the inode bitmap, and first block of the inode table.
    /// They come from a backup if the primary copy is damaged.
    pub(super) tables: Tables,
}

/// The addresses of a group's three tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tables {
    pub(super) block_bitmap: Pblk,
    pub(super) inode_bitmap: Pblk,
    pub(super) inode_table: Pblk,
}

impl Tables {
    fn of(desc: &GroupDesc) -> Self {
        Self {
            block_bitmap: Pblk(desc.block_bitmap),
            inode_bitmap: Pblk(desc.inode_bitmap),
            inode_table: Pblk(desc.inode_table),
        }
    }

    fn lie_inside(self, geometry: &Geometry) -> bool {
        let inside = |block: Pblk| geometry.group_of(block).is_some();
        let table_end = self.inode_table.checked_add(u64::from(geometry.itable_blocks()) - 1);
        [self.block_bitmap, self.inode_bitmap, self.inode_table].into_iter().all(inside)
            && table_end.is_some_and(inside)
    }
}

/// An inode as it is stored in the image.
#[derive(Debug, Clone)]
pub(super) struct FoundInode {
    pub(super) ino: Ino,
    pub(super) inode: Inode,
    /// All `inode_size` bytes.
    pub(super) raw: Vec<u8>,
    /// The group, and the index in the group's table.
    pub(super) group: Group,
    pub(super) index: u32,
    /// The block of the inode table, and the byte offset in the block.
    pub(super) block: Pblk,
    pub(super) offset: usize,
    /// `None` without metadata_csum, and for an inode that was never written (all zero).
    pub(super) checksum: Option<Checksum>,
}

impl FoundInode {
    /// The bytes after the fixed fields, which hold small extended attributes.
    pub(super) fn xattr_area(&self) -> &[u8] {
        // An inode with a damaged extra_isize was decoded without it.
        if self.raw.len() <= inode::BASE_SIZE {
            return &[];
        }
        self.raw.get(self.inode.xattr_offset()..).unwrap_or_default()
    }
}

/// An image that is open for inspection.
pub(super) struct Reader<'d> {
    probe: Probe<'d>,
    geometry: Geometry,
    /// The most recently used block is last.
    cache: RefCell<Vec<(Pblk, Rc<[u8]>)>>,
}

impl<'d> Reader<'d> {
    /// A reader for a file system whose superblock was found.
    ///
    /// # Errors
    /// The superblock's numbers are impossible, or it belongs to a journal device.
    pub(super) fn new(probe: Probe<'d>) -> Result<Self, InspectError> {
        if probe.is_journal_device() {
            let why = "this is a journal device: only `super` and `journal` can be shown".to_owned();
            return Err(InspectError::Absent(why));
        }
        let geometry = probe.geometry.clone().map_err(|fault| {
            InspectError::Unreadable(format!(
                "only `super` can be shown, since the geometry is impossible: {fault}"
            ))
        })?;
        let size = probe.device.size_bytes();
        if geometry.blocks > size / geometry.block_size.bytes() {
            probe.damage.note(format_args!(
                "device: ends after {} of the file system's {} blocks",
                size / geometry.block_size.bytes(),
                geometry.blocks
            ));
        }
        Ok(Self { probe, geometry, cache: RefCell::default() })
    }

    pub(super) fn sb(&self) -> &Superblock {
        &self.probe.sb
    }

    pub(super) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub(super) fn device(&self) -> &dyn Device {
        &*self.probe.device
    }

    pub(super) fn damage_log(&self) -> &DamageLog {
        self.probe.damage
    }

    /// Records damage.
    pub(super) fn damage(&self, damage: impl fmt::Display) {
        self.probe.damage.note(damage);
    }

    /// Whether walks must end because there is too much damage.
    pub(super) fn is_flooded(&self) -> bool {
        self.probe.damage.is_flooded()
    }

    /// Whether the file system has metadata checksums.
    pub(super) fn has_csum(&self) -> bool {
        self.sb().features.metadata_csum()
    }

    /// Bytes per block.
    pub(super) fn block_len(&self) -> u64 {
        self.geometry.block_size.bytes()
    }

    /// Number of readable blocks: those of the file system that the device has. Bounds every walk.
    pub(super) fn blocks_here(&self) -> u64 {
        self.geometry.blocks.min(self.probe.device.size_bytes().div_ceil(self.block_len()))
    }

    /// Byte offset on the device.
    pub(super) fn byte_offset(&self, block: Pblk, within: usize) -> u64 {
        block.0.saturating_mul(self.block_len()).saturating_add(within as u64)
    }

    /// Reads one block.
    ///
    /// # Errors
    /// The file system has no such block, or the device cannot read it.
    pub(super) fn block(&self, block: Pblk) -> Result<Rc<[u8]>, ReadFault> {
        let mut cache = self.cache.borrow_mut();
        if let Some(at) = cache.iter().rposition(|(known, _)| *known == block) {
            let found = cache.remove(at);
            let bytes = Rc::clone(&found.1);
            cache.push(found);
            return Ok(bytes);
        }
        let offset = self.geometry.block_size.offset_of(block).filter(|_| block.0 < self.geometry.blocks);
        let offset = offset.ok_or(ReadFault::NoSuchBlock(block))?;
        let mut bytes = vec![0; self.geometry.block_size.len()];
        self.probe.device.read_at(offset, &mut bytes).map_err(ReadFault::Device)?;
        let bytes: Rc<[u8]> = bytes.into();
        if cache.len() >= CACHED_BLOCKS {
            cache.remove(0);
        }
        cache.push((block, Rc::clone(&bytes)));
        Ok(bytes)
    }

    /// Reads the descriptor of an existing group. Records a wrong checksum and impossible addresses as
    /// damage.
    ///
    /// # Errors
    /// The primary copy cannot be read.
    pub(super) fn descriptor(&self, group: Group) -> Result<Descriptor, ReadFault> {
        let place = self.geometry.descriptor_place(group);
        let (desc, checksum) = self.descriptor_at(group, place)?;
        let tables = Tables::of(&desc);
        let mut found = Descriptor { desc, checksum, place, tables };
        let right = checksum.is_none_or(Checksum::is_right);
        if !right {
            self.damage(format_args!("descriptor of group {group}: checksum {}", checksum_text(checksum)));
        }
        if !tables.lie_inside(&self.geometry) {
            self.damage(format_args!("descriptor of group {group}: its tables lie outside the file system"));
        } else if right {
            return Ok(found);
        }
        if let Some((block, backup)) = self.backup_tables(group)
            && backup != tables
        {
            self.damage(format_args!(
                "descriptor of group {group}: the places in its backup in block {block} are used"
            ));
            found.tables = backup;
        }
        Ok(found)
    }

    fn descriptor_at(
        &self,
        group: Group,
        (block, at): (Pblk, usize),
    ) -> Result<(GroupDesc, Option<Checksum>), ReadFault> {
        let block = self.block(block)?;
        let bytes = block.get(at..at + self.geometry.desc_size).unwrap_or_default();
        let desc = GroupDesc::decode(bytes)?;
        let features = &self.sb().features;
        let checked = features.metadata_csum() || features.has_ro_compat(Features::GDT_CSUM);
        let checksum = checked.then(|| Checksum {
            stored: desc.checksum.into(),
            computed: ChecksumRule::of(self.sb()).compute(group.0, bytes).into(),
        });
        Ok((desc, checksum))
    }

    /// The table addresses in the first sound backup of a descriptor, and that backup's block.
    fn backup_tables(&self, group: Group) -> Option<(Pblk, Tables)> {
        let per_block = self.geometry.descs_per_block();
        let index = group.0 / per_block;
        let at = (group.0 % per_block) as usize * self.geometry.desc_size;
        let meta_start = index.saturating_mul(per_block);
        let classic = index < self.geometry.classic_desc_blocks();
        let holders: Vec<u32> = match classic {
            // Groups with backups are few and have low numbers, or the superblock names them (sparse_super2).
            true => {
                let named = self.sb().backup_bgs.into_iter().filter(|holder| *holder > 0);
                (1..64)
                    .chain(named)
                    .filter(|holder| self.geometry.has_super(Group(*holder)))
                    .take(4)
                    .collect()
            }
            false => vec![meta_start.saturating_add(1), meta_start.saturating_add(per_block - 1)],
        };
        holders.into_iter().filter(|holder| *holder < self.geometry.groups).find_map(|holder| {
            let head = self.geometry.group_head(Group(holder));
            let within = u64::from(index.checked_sub(head.first_descriptor_block)?);
            if within >= u64::from(head.descriptors.1) {
                return None;
            }
            let block = head.descriptors.0.checked_add(within)?;
            let (desc, checksum) = self.descriptor_at(group, (block, at)).ok()?;
            let tables = Tables::of(&desc);
            (checksum.is_none_or(Checksum::is_right) && tables.lie_inside(&self.geometry))
                .then_some((block, tables))
        })
    }

    /// Reads an inode. Records a wrong checksum as damage. Decodes an inode with an impossible `extra_isize`
    /// as if it had only its first 128 bytes.
    ///
    /// # Errors
    /// The inode does not exist, or the block of the table cannot be read.
    pub(super) fn inode(&self, ino: Ino) -> Result<FoundInode, ReadFault> {
        let (group, index) = self.geometry.inode_place(ino).ok_or(Malformed::new(
            "inode number",
            "must be that of an inode of the file system",
            ino.0,
        ))?;
        let tables = self.descriptor(group)?.tables;
        let at = u64::from(index) * self.geometry.inode_size as u64;
        let block = tables
            .inode_table
            .checked_add(at / self.block_len())
            .ok_or(ReadFault::NoSuchBlock(tables.inode_table))?;
        let offset = (at % self.block_len()) as usize;
        let bytes = self.block(block)?;
        let raw = bytes.get(offset..offset + self.geometry.inode_size).unwrap_or_default().to_vec();
        let inode = match Inode::decode(&raw) {
            Ok(inode) => inode,
            Err(fault) => {
                self.damage(format_args!("inode {ino}: {fault}"));
                Inode::decode(raw.get(..inode::BASE_SIZE).unwrap_or_default())?
            }
        };
        let blank = raw.iter().all(|byte| *byte == 0);
        let checksum = (self.has_csum() && !blank).then(|| Checksum {
            stored: inode.checksum,
            computed: inode::compute_checksum(&raw, self.inode_seed(ino, &inode)),
        });
        if checksum.is_some_and(|checksum| !checksum.is_right()) {
            self.damage(format_args!("inode {ino}: checksum {}", checksum_text(checksum)));
        }
        Ok(FoundInode { ino, inode, raw, group, index, block, offset, checksum })
    }

    /// The seed of an inode's checksums.
    pub(super) fn inode_seed(&self, ino: Ino, inode: &Inode) -> u32 {
        inode::inode_seed(self.sb().fs_seed(), ino, inode.generation)
    }
}
