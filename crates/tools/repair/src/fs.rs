//! The file system of one round: the survey's notes, and edits of raw structures in the overlay.
//!
//! Owns: reading and sealing single structures; recording fixes. Does **not** own: which remedy a rule has.

use std::borrow::Cow;
use std::collections::HashSet;

use extant_base::le::u32_at;
use extant_base::{Group, Ino, Pblk};
use extant_check::survey::{Notes, Walked};
use extant_check::{Finding, FindingPlace, Rule};
use extant_device::{Device, DeviceFault};
use extant_ondisk::group_desc::{ChecksumRule, GroupDesc, INODE_UNINIT};
use extant_ondisk::inode::{self, Inode, flags};
use extant_ondisk::{Features, Geometry, Superblock, superblock};

use crate::overlay::Overlay;
use crate::plan::{Fix, Plan};
use crate::space::Space;

/// The file system of one round.
pub(crate) struct Fs<'s, 'd> {
    pub(crate) overlay: &'d Overlay,
    pub(crate) notes: Notes<'s, 'd>,
    /// The superblock with this round's changes.
    pub(crate) sb: Superblock,
    pub(crate) geometry: Geometry,
    pub(crate) plan: &'s mut Plan,
    pub(crate) space: Space,
    /// Inodes that this round has freed or made anew: further findings about them are outdated.
    pub(crate) done: HashSet<u32>,
    /// Seconds since 1970.
    pub(crate) now: u32,
}

impl<'s, 'd> Fs<'s, 'd> {
    pub(crate) fn new(overlay: &'d Overlay, notes: Notes<'s, 'd>, plan: &'s mut Plan, now: u32) -> Self {
        let (sb, geometry) = (notes.superblock().clone(), notes.geometry().clone());
        let (space, done) = (Space::default(), HashSet::new());
        Self { overlay, notes, sb, geometry, plan, space, done, now }
    }

    pub(crate) fn has_csum(&self) -> bool {
        self.sb.features.metadata_csum()
    }

    /// Records that a finding is repaired.
    pub(crate) fn fixed(&mut self, finding: &Finding, remedy: impl Into<Cow<'static, str>>) {
        self.fixed_with(finding, remedy, None);
    }

    /// Records that a finding is repaired, and what becomes unreachable.
    pub(crate) fn fixed_with(
        &mut self,
        finding: &Finding,
        remedy: impl Into<Cow<'static, str>>,
        loss: Option<String>,
    ) {
        let has_loss = loss.is_some();
        self.plan.add_with(finding.rule, has_loss, || Fix {
            rule: finding.rule,
            place: finding.place.clone(),
            finding: finding.says.clone(),
            remedy: remedy.into(),
            loss,
        });
    }

    /// Records a fix that no finding asked for by itself.
    pub(crate) fn also(
        &mut self,
        rule: &'static Rule,
        place: FindingPlace,
        finding: impl Into<String>,
        remedy: impl Into<Cow<'static, str>>,
        loss: Option<String>,
    ) {
        self.plan.add(Fix { rule, place, finding: finding.into(), remedy: remedy.into(), loss });
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

    /// Frees an inode: all its bytes become zero. Bitmaps and counts follow in a later round.
    pub(crate) fn free_inode(&mut self, ino: Ino) {
        self.done.insert(ino.0);
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

    /// Walks the map of an inode as far as it is valid.
    pub(crate) fn walk(&self, ino: Ino, inode: &Inode) -> Walked {
        let seed = inode::inode_seed(self.sb.fs_seed(), ino, inode.generation);
        self.notes.walk(ino, inode.block, inode.has_flag(flags::EXTENTS), seed)
    }

    /// The end of what can hold blocks: of the file system and of the device.
    pub(crate) fn end(&self) -> u64 {
        self.geometry.blocks.min(self.overlay.size_bytes() >> self.geometry.block_size.log2())
    }

    /// A new block; with bigalloc the first of a new cluster.
    pub(crate) fn new_block(&mut self, goal: Option<Pblk>) -> Option<Pblk> {
        let end = self.end();
        self.space.block(self.notes, end, goal)
    }

    /// A free inode, in the part of its table that the descriptor declares used.
    pub(crate) fn new_inode(&mut self) -> Option<Ino> {
        let ino = self.space.inode(self.notes)?;
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

    /// A new block for a bitmap of a group: without flex_bg, inside the group. While a group cannot be read,
    /// its files' blocks seem free; a block of zeros is taken then, and what it holds is not changed.
    pub(crate) fn new_bitmap(&mut self, group: Group) -> Option<Pblk> {
        const TRIES: u32 = 4096;
        let end = self.end();
        let all_read = (0..self.geometry.groups).all(|group| self.notes.is_usable(Group(group)));
        for _ in 0..TRIES {
            let block = match self.sb.features.has_incompat(Features::FLEX_BG) {
                true => self.new_block(None),
                false => self.space.in_group(self.notes, group, end),
            }?;
            if all_read || self.read_block(block).is_ok_and(|bytes| bytes.iter().all(|byte| *byte == 0)) {
                return Some(block);
            }
        }
        None
    }

    /// Is there a regular file of 2 GiB or more?
    pub(crate) fn has_large_file(&self) -> bool {
        (0..self.geometry.groups).map(Group).any(|group| {
            self.notes.group(group).zip(1..).any(|(note, index)| {
                let ino = Ino(group.0 * self.geometry.inodes_per_group + index);
                note.used && note.kind == 1 && self.inode(ino).is_some_and(|inode| inode.size > 0x7FFF_FFFF)
            })
        })
    }

    /// The first inode that files may use.
    pub(crate) fn first_ino(&self) -> u32 {
        if self.sb.rev_level == 0 { Ino::FIRST.0 } else { self.sb.first_ino.max(Ino::FIRST.0) }
    }
}
