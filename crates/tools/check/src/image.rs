//! The image under check: the device overlaid with its journal's replay, superblock, geometry, descriptors.
//!
//! Does **not** own: the validation of their content (see [`crate::supers`]), the log (see
//! [`crate::replay`]).
//!
//! Invariants
//! 1. Every read is inside the file system and the device, or returns an error. Nothing is written.
//! 2. `zones` are sorted, disjoint, and cover all metadata at fixed addresses.

use std::sync::atomic::{AtomicU64, Ordering};

use extant_base::{Group, Ino, Pblk};
use extant_device::DeviceFault;
use extant_ondisk::group_desc::GroupDesc;
use extant_ondisk::{Features, Geometry, Superblock};

use crate::replay::Replay;

/// The image under check.
pub(crate) struct Image<'d> {
    pub(crate) device: &'d dyn extant_device::Device,
    pub(crate) sb: Superblock,
    pub(crate) geometry: Geometry,
    pub(crate) fs_seed: u32,
    /// By group. An unusable descriptor is replaced by its backup and reported as a finding.
    pub(crate) descs: Vec<GroupDesc>,
    /// Blocks that the journal's replay changes.
    pub(crate) replay: Option<Replay<'d>>,
    /// Blocks of superblocks, descriptors, bitmaps and inode tables.
    pub(crate) zones: Zones,
    /// Groups whose inode table or bitmaps have addresses out of range; not read.
    pub(crate) unusable: Vec<u32>,
    /// Bytes read so far, for the report.
    pub(crate) bytes_read: AtomicU64,
}

impl Image<'_> {
    /// Fills `buf` with whole blocks from `block` on, as of after the journal's replay.
    pub(crate) fn read_blocks(&self, block: Pblk, buf: &mut [u8]) -> Result<(), DeviceFault> {
        let len = buf.len() as u64;
        let size = self.geometry.blocks.saturating_mul(self.geometry.block_size.bytes());
        let offset = self.geometry.block_size.offset_of(block).unwrap_or(u64::MAX);
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(DeviceFault::OutOfRange { what: "read", offset, len, size });
        }
        self.read_bytes(offset, buf)
    }

    /// Fills `buf` from a byte offset on, as of after the journal's replay.
    pub(crate) fn read_bytes(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        self.bytes_read.fetch_add(buf.len() as u64, Ordering::Relaxed);
        match &self.replay {
            Some(replay) => replay.read(self.device, offset, buf),
            None => self.device.read_at(offset, buf),
        }
    }

    /// Reads one block.
    pub(crate) fn read_block(&self, block: Pblk) -> Result<Vec<u8>, DeviceFault> {
        let mut bytes = vec![0; self.geometry.block_size.len()];
        self.read_blocks(block, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads the raw `inode_size` bytes of an existing inode.
    pub(crate) fn read_inode(&self, ino: Ino) -> Result<Vec<u8>, DeviceFault> {
        let mut bytes = vec![0; self.geometry.inode_size];
        let none =
            DeviceFault::OutOfRange { what: "read", offset: 0, len: 0, size: self.device.size_bytes() };
        let Some((group, index)) = self.geometry.inode_place(ino) else { return Err(none) };
        let Some(desc) = self.desc(group) else { return Err(none) };
        let table = self.geometry.block_size.offset_of(Pblk(desc.inode_table));
        let offset = table.and_then(|table| table.checked_add(u64::from(index) * bytes.len() as u64));
        self.read_bytes(offset.ok_or(none)?, &mut bytes)?;
        Ok(bytes)
    }

    /// May a file use this block: is it inside the file system, and not a superblock, descriptor, bitmap or
    /// inode table?
    pub(crate) fn is_data_block(&self, block: Pblk) -> bool {
        self.is_inside(block, 1) && !self.zones.overlap(block, 1)
    }

    /// Are `len` blocks from `block` on inside the file system?
    pub(crate) fn is_inside(&self, block: Pblk, len: u64) -> bool {
        block.0 != 0
            && block.0 >= u64::from(self.geometry.first_data_block)
            && block.0.checked_add(len).is_some_and(|end| end <= self.geometry.blocks)
    }

    pub(crate) fn desc(&self, group: Group) -> Option<&GroupDesc> {
        self.descs.get(group.0 as usize)
    }

    /// Can this group's bitmaps and inode table be read?
    pub(crate) fn is_usable(&self, group: Group) -> bool {
        self.unusable.binary_search(&group.0).is_err()
    }

    /// Is metadata_csum set?
    pub(crate) fn has_csum(&self) -> bool {
        self.sb.features.metadata_csum()
    }

    /// Do descriptors have checksums, and with them uninit flags?
    pub(crate) fn has_group_csum(&self) -> bool {
        self.has_csum() || self.sb.features.has_ro_compat(Features::GDT_CSUM)
    }
}

/// Ranges of blocks, sorted and disjoint.
#[derive(Debug, Default, Clone)]
pub(crate) struct Zones {
    ranges: Vec<(u64, u64)>,
}

impl Zones {
    /// Builds from half-open ranges in any order; adjacent ones are merged.
    pub(crate) fn new(mut ranges: Vec<(u64, u64)>) -> Self {
        ranges.retain(|(start, end)| start < end);
        ranges.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (start, end) in ranges {
            match merged.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => merged.push((start, end)),
            }
        }
        Self { ranges: merged }
    }

    /// Does any of the `len` blocks from `block` on lie in a range?
    pub(crate) fn overlap(&self, block: Pblk, len: u64) -> bool {
        let behind = self.ranges.partition_point(|(_, end)| *end <= block.0);
        self.ranges.get(behind).is_some_and(|(start, _)| *start < block.0.saturating_add(len))
    }

    /// The ranges, in order.
    pub(crate) fn ranges(&self) -> &[(u64, u64)] {
        &self.ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_found_by_any_block_in_them() {
        let zones = Zones::new(vec![(10, 20), (5, 7), (20, 22), (40, 40), (15, 18)]);
        assert_eq!(zones.ranges(), [(5, 7), (10, 22)]);
        for (block, len, overlap) in
            [(0, 5, false), (0, 6, true), (7, 3, false), (21, 9, true), (22, 100, false)]
        {
            assert_eq!(zones.overlap(Pblk(block), len), overlap, "{block}+{len}");
        }
        assert!(zones.overlap(Pblk(3), u64::MAX));
    }
}
