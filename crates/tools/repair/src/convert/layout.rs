//! Conversions that change the size of descriptors and inodes.
//!
//! ```text
//! 64bit        descriptors of 32 or 64 bytes: the table takes blocks of the reserve, or returns some
//! inode size   each inode table is written anew in a longer run of free blocks
//! ```
//!
//! Owns: the new tables, and where they are. Does **not** own: what follows from them (bitmaps, counts, the
//! resize inode, backups), which the remedies of a repair write.
//!
//! Source: kernel Documentation/filesystems/ext4/{group_descr,blockgroup,inodes}.rst.

use extant_base::le::put_u16;
use extant_base::{Group, Ino, Pblk};
use extant_device::Device;
use extant_ondisk::group_desc::{GroupDesc, INODE_UNINIT, INODE_ZEROED};
use extant_ondisk::inode::BASE_SIZE;
use extant_ondisk::{Features, Geometry, Superblock};

use super::ConversionFault;
use crate::counts;
use crate::fs::Fs;

/// Bytes of a descriptor with 64-bit fields.
const WIDE_DESC: u16 = 64;
/// Bytes of newer fields that an inode gets, as mke2fs gives them.
const EXTRA_ISIZE: u16 = 32;
/// Byte offset of the number of these bytes.
const EXTRA_ISIZE_AT: usize = 128;

/// The superblock without the number of clusters that metadata takes: readers compute it.
fn without_overhead(sb: &Superblock) -> Superblock {
    Superblock { overhead_clusters: 0, ..sb.clone() }
}

/// Gives descriptors 64 or 32 bytes.
pub(super) fn set_wide(fs: &mut Fs<'_>, on: bool) -> Result<(), ConversionFault> {
    let old = fs.geometry.clone();
    let refused = |why: &str| Err(ConversionFault::Refused(why.to_owned()));
    let mut sb = without_overhead(&fs.sb);
    match on {
        true => {
            sb.features.incompat |= Features::BIT64;
            sb.desc_size = WIDE_DESC;
        }
        false => {
            sb.features.incompat &= !Features::BIT64;
            sb.desc_size = 0;
        }
    }
    let new = Geometry::new(&sb).map_err(|fault| ConversionFault::Refused(fault.to_string()))?;
    if let Some(more) = new.desc_blocks.checked_sub(old.desc_blocks) {
        match u32::from(sb.reserved_gdt_blocks).checked_sub(more) {
            Some(left) => sb.reserved_gdt_blocks = left as u16,
            None => {
                return refused(
                    "64bit doubles the descriptors, and there are too few reserved blocks after them; \
                     make a new image (`extant build`), or grow with meta_bg",
                );
            }
        }
    } else if sb.features.has_compat(Features::RESIZE_INODE) {
        // What does not fit into the reserve becomes free.
        let most = old.block_size.bytes() / 4;
        let all = u64::from(sb.reserved_gdt_blocks) + u64::from(old.desc_blocks - new.desc_blocks);
        sb.reserved_gdt_blocks = all.min(most) as u16;
    }
    let geometry = Geometry::new(&sb).map_err(|fault| ConversionFault::Refused(fault.to_string()))?;
    let lacks = || ConversionFault::Damaged("a descriptor cannot be read".to_owned());
    let descs = (0..old.groups).map(|group| fs.stored_desc(Group(group)).ok_or_else(lacks));
    let descs: Vec<GroupDesc> = descs.collect::<Result<_, _>>()?;
    fs.put_superblock(|now| *now = sb)?;
    fs.geometry = geometry;
    clear_table(fs)?;
    for (group, desc) in (0..).zip(&descs) {
        fs.put_desc(Group(group), desc).ok_or_else(lacks)?;
    }
    Ok(())
}

/// Fills the descriptor blocks with zeros.
fn clear_table(fs: &Fs<'_>) -> Result<(), ConversionFault> {
    let zeros = vec![0; fs.block_len()];
    for index in 0..fs.geometry.desc_blocks {
        let (block, _) = fs.geometry.descriptor_place(Group(index * fs.geometry.descs_per_block()));
        fs.write_block(block, &zeros)?;
    }
    Ok(())
}

/// Gives inodes `size` bytes.
pub(super) fn set_inode_size(fs: &mut Fs<'_>, size: u16) -> Result<(), ConversionFault> {
    let old = fs.geometry.clone();
    let mut sb = Superblock { inode_size: size, ..without_overhead(&fs.sb) };
    if sb.want_extra_isize == 0 {
        sb.want_extra_isize = EXTRA_ISIZE;
    }
    let new = Geometry::new(&sb).map_err(|fault| ConversionFault::Refused(fault.to_string()))?;
    let len = u64::from(new.itable_blocks());
    let has_unused = sb.features.metadata_csum() || sb.features.has_ro_compat(Features::GDT_CSUM);
    let lacks = || ConversionFault::Damaged("a descriptor cannot be read".to_owned());
    // The old tables stay where they are, and all new ones have a place before the first is written. So
    // one group's table at a time is in memory, besides the plan.
    let mut tables = Vec::with_capacity(old.groups as usize);
    for group in (0..old.groups).map(Group) {
        let desc = fs.stored_desc(group).ok_or_else(lacks)?;
        let place = run_for_table(fs, group, len)?;
        let used = match has_unused {
            true if desc.has_flag(INODE_UNINIT) => 0,
            true => old.inodes_per_group - desc.itable_unused.min(old.inodes_per_group),
            false => old.inodes_per_group,
        };
        tables.push((group, desc, place, used));
    }
    fs.put_superblock(|now| *now = sb)?;
    fs.geometry = new;
    let mut bytes = Vec::new();
    for (group, mut desc, place, used) in tables {
        bytes.resize(used as usize * old.inode_size, 0);
        fs.overlay.read_at(desc.inode_table << old.block_size.log2(), &mut bytes)?;
        let first = group.0 * old.inodes_per_group + 1;
        let mut table = Vec::with_capacity(len as usize * fs.block_len());
        for (ino, inode) in (first..).map(Ino).zip(bytes.chunks_exact(old.inode_size)) {
            let mut larger = inode.to_vec();
            larger.resize(usize::from(size), 0);
            let is_used = fs.notes.noted(ino).is_some_and(|note| note.used);
            fs.change_inode(ino, &mut larger, |bytes| {
                if is_used && old.inode_size == BASE_SIZE {
                    put_u16(bytes, EXTRA_ISIZE_AT, EXTRA_ISIZE);
                }
            });
            table.extend_from_slice(&larger);
        }
        let whole = table.len().next_multiple_of(fs.block_len());
        table.resize(whole, 0);
        fs.overlay.write_at(place.0 << fs.geometry.block_size.log2(), &table)?;
        desc.inode_table = place.0;
        if (whole >> fs.geometry.block_size.log2()) < len as usize {
            // The rest of the run has what was there before.
            desc.flags &= !INODE_ZEROED;
        }
        fs.put_desc(group, &desc).ok_or_else(lacks)?;
    }
    Ok(())
}

/// A run of free blocks for the inode table of a group: without flex_bg, in the group.
fn run_for_table(fs: &mut Fs<'_>, group: Group, blocks: u64) -> Result<Pblk, ConversionFault> {
    let clusters = blocks.div_ceil(fs.geometry.cluster_ratio());
    let is_anywhere = fs.sb.features.has_incompat(Features::FLEX_BG);
    let found = fs.space.run(clusters, (!is_anywhere).then_some(group));
    found.ok_or_else(|| match is_anywhere {
        true => ConversionFault::NoSpace("inode tables"),
        false => ConversionFault::Refused(format!(
            "group {} has no {blocks} free blocks in a row for its inode table; with flex_bg \
             (-O flex_bg) the table may be in another group",
            group.0
        )),
    })
}

/// Recomputes bitmaps and checksums of all groups.
pub(super) fn settle_all(fs: &Fs<'_>) -> Result<(), ConversionFault> {
    for group in (0..fs.geometry.groups).map(Group) {
        counts::settle_group(fs, group)?;
    }
    Ok(())
}
