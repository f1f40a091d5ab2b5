//! The file system of one round: the survey's notes, and edits of raw structures in the overlay.
//!
//! Owns: the superblock with the changes of the round; reading, changing and sealing single structures. Does
//! **not** own: which blocks are free (see [`space`](crate::space)), which remedy a rule has (the modules of
//! the remedies), the list of fixes (see [`Plan`](crate::Plan)).
//!
//! Invariants
//! 1. The notes are those of the survey before the round: what the round changes is not in them.
//! 2. Every write of an inode, a descriptor or the superblock is sealed.

use extant_base::le::{put_u16, put_u32, u32_at};
use extant_base::{Group, Ino, Pblk};
use extant_check::survey::{Noted, Notes, Walked};
use extant_device::{Device, DeviceFault};
use extant_ondisk::group_desc::{ChecksumRule, GroupDesc, INODE_UNINIT};
use extant_ondisk::inode::{self, Inode, flags};
use extant_ondisk::{Features, Geometry, Superblock, superblock};

use crate::overlay::Overlay;
use crate::space::Space;

/// The file system of one round.
pub(crate) struct Fs<'s> {
    pub(crate) overlay: &'s Overlay,
    pub(crate) notes: Notes<'s, 's>,
    /// The superblock with this round's changes.
    pub(crate) sb: Superblock,
    pub(crate) geometry: Geometry,
    pub(crate) space: Space<'s>,
    /// Seconds since 1970.
    pub(crate) now: u32,
}

impl<'s> Fs<'s> {
    pub(crate) fn new(overlay: &'s Overlay, notes: Notes<'s, 's>, now: u32) -> Self {
        let (sb, geometry) = (notes.superblock().clone(), notes.geometry().clone());
        let space = Space::new(notes, overlay.size_bytes());
        Self { overlay, notes, sb, geometry, space, now }
    }

    /// The inodes that the survey has read, with its notes.
    pub(crate) fn noted(&self) -> impl Iterator<Item = (Ino, Noted)> {
        (0..self.geometry.groups).map(Group).flat_map(|group| {
            let before = group.0 * self.geometry.inodes_per_group;
            self.notes.group(group).zip(1..).map(move |(note, index)| (Ino(before + index), note))
        })
    }

    /// The number of a block's cluster.
    pub(crate) fn cluster(&self, block: Pblk) -> u64 {
        block.0.saturating_sub(self.geometry.first_data_block.into()) / self.geometry.cluster_ratio()
    }

    pub(crate) fn has_csum(&self) -> bool {
        self.sb.features.metadata_csum()
    }

    pub(crate) fn block_len(&self) -> usize {
        self.geometry.block_size.len()
    }

    pub(crate) fn read_block(&self, block: Pblk) -> Result<Vec<u8>, DeviceFault> {
        let mut bytes = vec![0; self.block_len()];
        self.overlay.read_at(block.0.saturating_mul(self.geometry.block_size.bytes()), &mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn write_block(&self, block: Pblk, bytes: &[u8]) -> Result<(), DeviceFault> {
        self.overlay.write_at(block.0.saturating_mul(self.geometry.block_size.bytes()), bytes)
    }

    /// The byte offset of an inode.
    pub(crate) fn inode_offset(&self, ino: Ino) -> Option<u64> {
        let (group, index) = self.geometry.inode_place(ino)?;
        let desc = self.notes.desc(group).filter(|_| self.notes.is_usable(group))?;
        let table = self.geometry.block_size.offset_of(Pblk(desc.inode_table))?;
        table.checked_add(u64::from(index) * self.geometry.inode_size as u64)
    }

    pub(crate) fn inode_bytes(&self, ino: Ino) -> Option<Vec<u8>> {
        let mut bytes = vec![0; self.geometry.inode_size];
        self.overlay.read_at(self.inode_offset(ino)?, &mut bytes).ok()?;
        Some(bytes)
    }

    /// The decoded inode; where `extra_isize` is wrong, with the fields of the first 128 bytes.
    pub(crate) fn inode(&self, ino: Ino) -> Option<Inode> {
        let bytes = self.inode_bytes(ino)?;
        let inode = Inode::decode(&bytes).or_else(|_| Inode::decode(&bytes[..inode::BASE_SIZE])).ok()?;
        Some(if self.sb.is_hurd() { inode.of_hurd() } else { inode })
    }

    /// The seed of an inode's checksums.
    pub(crate) fn seed(&self, ino: Ino) -> u32 {
        let generation = self.inode_bytes(ino).map_or(0, |bytes| u32_at(&bytes, 0x64));
        inode::inode_seed(self.sb.fs_seed(), ino, generation)
    }

    /// Changes the bytes of an inode, and seals it.
    pub(crate) fn edit_inode(&self, ino: Ino, edit: impl FnOnce(&mut [u8])) -> Option<()> {
        let offset = self.inode_offset(ino)?;
        let mut bytes = vec![0; self.geometry.inode_size];
        self.overlay.read_at(offset, &mut bytes).ok()?;
        self.change_inode(ino, &mut bytes, edit);
        self.overlay.write_at(offset, &bytes).ok()
    }

    /// Changes an inode in `bytes`, and seals it.
    pub(crate) fn change_inode(&self, ino: Ino, bytes: &mut [u8], edit: impl FnOnce(&mut [u8])) {
        edit(bytes);
        if self.sb.seals_inodes() && bytes.iter().any(|byte| *byte != 0) {
            let seed = inode::inode_seed(self.sb.fs_seed(), ino, u32_at(bytes, 0x64));
            inode::seal(bytes, seed);
        }
    }

    /// Sets and clears flags of an inode.
    pub(crate) fn set_flags(&self, ino: Ino, set: u32, clear: u32) {
        let _ = self.edit_inode(ino, |bytes| {
            let flags = u32_at(bytes, 0x20);
            put_u32(bytes, 0x20, (flags | set) & !clear);
        });
    }

    pub(crate) fn put_size(&self, ino: Ino, size: u64) {
        let _ = self.edit_inode(ino, |bytes| {
            put_u32(bytes, 4, size as u32);
            put_u32(bytes, 0x6C, (size >> 32) as u32);
        });
    }

    /// Makes an empty regular file of root in an inode that was free.
    pub(crate) fn empty_file(&self, ino: Ino, flags: u32) -> Option<()> {
        let room = self.geometry.inode_size.saturating_sub(128).min(32) as u16;
        self.edit_inode(ino, |bytes| {
            bytes.fill(0);
            put_u16(bytes, 0, 0x8000 | 0o600);
            for at in [8, 0xC, 0x10] {
                put_u32(bytes, at, self.now);
            }
            put_u16(bytes, 0x1A, 1);
            put_u32(bytes, 0x20, flags);
            if bytes.len() > 128 {
                put_u16(bytes, 0x80, room);
            }
        })
    }

    /// Frees an inode: all its bytes become zero. Bitmaps and counts follow in a later round.
    pub(crate) fn free_inode(&self, ino: Ino) {
        let _ = self.edit_inode(ino, |bytes| bytes.fill(0));
    }

    /// Stores the superblock with this round's changes, sealed.
    pub(crate) fn put_superblock(&mut self, change: impl FnOnce(&mut Superblock)) -> Result<(), DeviceFault> {
        change(&mut self.sb);
        let bytes = if self.sb.features.metadata_csum() { self.sb.sealed() } else { self.sb.encode() };
        self.overlay.write_at(superblock::OFFSET, &bytes)
    }

    /// The descriptor as the overlay has it now.
    pub(crate) fn stored_desc(&self, group: Group) -> Option<GroupDesc> {
        GroupDesc::decode(&self.desc_bytes(group)?).ok()
    }

    pub(crate) fn desc_offset(&self, group: Group) -> Option<u64> {
        let (block, at) = self.geometry.descriptor_place(group);
        self.geometry.block_size.offset_of(block)?.checked_add(at as u64)
    }

    pub(crate) fn desc_bytes(&self, group: Group) -> Option<Vec<u8>> {
        let mut bytes = vec![0; self.geometry.desc_size];
        self.overlay.read_at(self.desc_offset(group)?, &mut bytes).ok()?;
        Some(bytes)
    }

    /// Stores a descriptor, sealed.
    pub(crate) fn put_desc(&self, group: Group, desc: &GroupDesc) -> Option<()> {
        let mut bytes = self.desc_bytes(group)?;
        desc.encode(&mut bytes);
        ChecksumRule::of(&self.sb).seal(group.0, &mut bytes);
        self.overlay.write_at(self.desc_offset(group)?, &bytes).ok()
    }

    /// Whether the inode's data is in the inode.
    pub(crate) fn is_inline(&self, inode: &Inode) -> bool {
        inode.has_flag(flags::INLINE_DATA) && self.sb.features.has_incompat(Features::INLINE_DATA)
    }

    /// Does the first block of a regular file look as it should?
    pub(crate) fn begins_with(&self, ino: Ino, test: &dyn Fn(&[u8]) -> bool) -> bool {
        let inode = self.inode(ino).filter(|inode| inode.mode & 0xF000 == 0x8000 && inode.links != 0);
        let first = inode.and_then(|inode| self.walk(ino, &inode).runs.first().copied());
        first.is_some_and(|run| run.lblk.0 == 0 && self.read_block(run.pblk).is_ok_and(|bytes| test(&bytes)))
    }

    /// Walks the map of an inode as far as it is valid.
    pub(crate) fn walk(&self, ino: Ino, inode: &Inode) -> Walked {
        let seed = inode::inode_seed(self.sb.fs_seed(), ino, inode.generation);
        self.notes.walk(ino, inode.block, inode.has_flag(flags::EXTENTS), seed)
    }

    /// A free inode, in the part of its table that the descriptor declares used.
    pub(crate) fn new_inode(&mut self) -> Option<Ino> {
        let ino = self.space.inode()?;
        let (group, index) = self.geometry.inode_place(ino)?;
        if self.notes.noted(ino).is_none() {
            let mut desc = self.stored_desc(group)?;
            desc.flags &= !INODE_UNINIT;
            let after = self.geometry.inodes_per_group - index - 1;
            desc.itable_unused = desc.itable_unused.min(after);
            self.put_desc(group, &desc)?;
            // All inodes before it are free, but their bytes may be those of another time.
            let read = self.notes.group(group).count() as u32;
            for index in read..index {
                let other = Ino(group.0 * self.geometry.inodes_per_group + index + 1);
                self.edit_inode(other, |bytes| bytes.fill(0))?;
            }
        }
        Some(ino)
    }

    /// The first inode that files may use.
    pub(crate) fn first_ino(&self) -> u32 {
        if self.sb.rev_level == 0 { Ino::FIRST.0 } else { self.sb.first_ino.max(Ino::FIRST.0) }
    }
}
