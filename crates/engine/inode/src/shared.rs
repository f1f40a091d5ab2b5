//! The data that all inodes of a volume share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_base::{Corrupt, CorruptAt, Group, Ino, Malformed, Pblk};
use extant_buffer::{Buffers, Kind, Owner, ReadFault};
use extant_device::Device;
use extant_memory::Budget;
use extant_ondisk::group_desc::{ChecksumRule, GroupDesc};
use extant_ondisk::{Features, Geometry, Superblock};

use crate::Salvage;
use crate::salvage::DescriptorSource;

/// The parts of the volume that inodes need.
pub struct Shared {
    /// The device, with the journal replayed over it.
    pub device: Arc<dyn Device>,
    /// The volume's metadata blocks.
    pub buffers: Arc<Buffers>,
    /// The superblock after recovery.
    pub sb: Superblock,
    /// The volume's layout.
    pub geometry: Geometry,
    /// Seed of checksums; `None` without metadata_csum.
    pub fs_seed: Option<u32>,
    /// The content of all regular files goes through the journal, not only of files with the flag for it.
    pub journals_data: bool,
    /// Files have folios of one page only, also where large ones are possible: for measurements.
    pub small_folios: bool,
    /// The memory budget of the caches.
    pub budget: Arc<Budget>,
    /// How to read with damaged descriptors; `None` if the volume is open for writing: then damage is an
    /// error.
    pub salvage: Option<Salvage>,
    rule: ChecksumRule,
    /// The first block of each group's inode table if its descriptor was read; else 0.
    tables: Box<[AtomicU64]>,
}

/// Maximum number of groups with a cached inode table address: more than a file system of 128 TiB has.
const TABLES_MAX: u32 = 1 << 20;

impl Shared {
    /// Creates the shared part of a volume with a valid superblock.
    #[must_use]
    pub fn new(device: Arc<dyn Device>, sb: Superblock, geometry: Geometry, budget: Arc<Budget>) -> Self {
        let buffers = Buffers::new(Arc::clone(&device), geometry.block_size, geometry.blocks, &budget);
        let fs_seed = sb.features.metadata_csum().then(|| sb.fs_seed());
        let rule = ChecksumRule::of(&sb);
        let tables = (0..geometry.groups.min(TABLES_MAX)).map(|_| AtomicU64::new(0)).collect();
        Self {
            device,
            buffers,
            sb,
            geometry,
            fs_seed,
            journals_data: false,
            small_folios: false,
            budget,
            salvage: None,
            rule,
            tables,
        }
    }

    /// The verified descriptor of a group that exists. Descriptors are read on demand; opening reads none.
    /// With [`salvage`](Self::salvage) a damaged one is replaced by a backup. If no copy has a correct
    /// checksum, it is used as it is, because inodes have their own checksums.
    ///
    /// # Errors
    /// The descriptor cannot be read, its checksum is wrong, or its tables lie outside the file system.
    pub fn descriptor(&self, group: Group) -> Result<GroupDesc, ReadFault> {
        let (primary, at) = self.geometry.descriptor_place(group);
        let Some(salvage) = &self.salvage else { return self.descriptor_at(group, primary, at, true) };
        let index = group.0 / self.geometry.descs_per_block();
        let preferred = salvage.preferred.and_then(|(start, first, len)| {
            let at = index.checked_sub(first).filter(|at| *at < len)?;
            Some(Pblk(start.0 + u64::from(at)))
        });
        let fault = match self.descriptor_at(group, preferred.unwrap_or(primary), at, true) {
            Ok(desc) => return Ok(desc),
            Err(fault) => fault,
        };
        let copies: Vec<Pblk> =
            [primary].into_iter().chain(self.geometry.descriptor_backups(group)).collect();
        for (verified, source) in [(true, DescriptorSource::Backup), (false, DescriptorSource::Unverified)] {
            for block in &copies {
                if let Ok(desc) = self.descriptor_at(group, *block, at, verified) {
                    salvage.note(group, source);
                    return Ok(desc);
                }
            }
        }
        Err(fault)
    }

    /// The descriptor of a group in this block, which may be a backup.
    fn descriptor_at(
        &self,
        group: Group,
        block: Pblk,
        at: usize,
        verified: bool,
    ) -> Result<GroupDesc, ReadFault> {
        let buffer = self.buffers.get(block, Owner { kind: Kind::Descriptors, ino: 0 }, |_| Ok(()))?;
        let corrupt = |fact| ReadFault::Corrupt(Corrupt::at(CorruptAt::block(block), fact));
        let bytes = buffer.get(at..at + self.geometry.desc_size).unwrap_or_default();
        let desc = GroupDesc::decode(bytes).map_err(corrupt)?;
        let rule = |holds, rule, found: u64| {
            Malformed::unless(holds, "group descriptor", rule, found).map_err(corrupt)
        };
        rule(
            !verified || self.rule.verify(group.0, bytes),
            "its checksum must match (number of the group)",
            group.0.into(),
        )?;
        let table = Pblk(desc.inode_table);
        let end = table.checked_add(u64::from(self.geometry.itable_blocks()));
        let inside = table.0 > u64::from(self.geometry.first_data_block)
            && end.is_some_and(|end| end.0 <= self.geometry.blocks);
        rule(inside, "the inode table must lie inside the file system", desc.inode_table)?;
        Ok(desc)
    }

    /// The block of the inode table that contains an inode, and the byte offset in it.
    ///
    /// # Errors
    /// As [`descriptor`](Self::descriptor); `Ok(None)` if the number is out of range.
    pub fn inode_place(&self, ino: Ino) -> Result<Option<(Pblk, usize)>, ReadFault> {
        let Some((group, index)) = self.geometry.inode_place(ino) else { return Ok(None) };
        let known = self.tables.get(group.0 as usize);
        let table = match known.map(|known| known.load(Ordering::Relaxed)) {
            Some(table) if table != 0 => table,
            _ => {
                let table = self.descriptor(group)?.inode_table;
                if let Some(known) = known {
                    known.store(table, Ordering::Relaxed);
                }
                table
            }
        };
        let at = u64::from(index) * self.geometry.inode_size as u64;
        let bs = self.geometry.block_size.bytes();
        // The whole table lies inside the file system, so this cannot pass 2^64.
        Ok(Some((Pblk(table + at / bs), (at % bs) as usize)))
    }

    /// Seed of the checksums of an inode's structures; `None` without metadata_csum.
    #[must_use]
    pub fn inode_seed(&self, ino: Ino, generation: u32) -> Option<u32> {
        self.fs_seed.map(|seed| extant_ondisk::inode::inode_seed(seed, ino, generation))
    }

    /// Whether the file system has the feature inline_data, which stores data inside inodes.
    #[must_use]
    pub fn has_inline_data(&self) -> bool {
        self.sb.features.has_incompat(Features::INLINE_DATA)
    }
}
