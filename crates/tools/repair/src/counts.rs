//! Bitmaps, the counts in descriptors and superblock, and the backups of both: computed anew from the
//! survey's notes.

use std::collections::BTreeSet;

use extant_base::{Group, Pblk};
use extant_check::Finding;
use extant_device::{Device, DeviceFault};
use extant_ondisk::bitmap::{block_bitmap_checksum, inode_bitmap_checksum};
use extant_ondisk::group_desc::{BLOCK_UNINIT, GroupDesc, INODE_UNINIT};
use extant_ondisk::{Features, Superblock};

use crate::fs::Fs;
use crate::plan::Plan;

/// Repairs findings about bitmaps and counts.
pub(crate) fn mend(fs: &mut Fs<'_>, plan: &mut Plan, findings: &[&Finding]) -> Result<(), DeviceFault> {
    let groups: BTreeSet<u32> =
        findings.iter().filter_map(|finding| finding.place.group).map(|group| group.0).collect();
    for finding in findings {
        // An inode that was deleted, but is marked in use.
        if finding.rule.code == "BM004"
            && let Some(ino) = finding.place.ino
        {
            fs.free_inode(ino);
        }
        plan.fixed(finding, finding.rule.repair);
    }
    for group in groups {
        settle_group(fs, Group(group))?;
    }
    let (mut free_clusters, mut free_inodes) = (0u64, 0u32);
    for group in 0..fs.geometry.groups {
        let Some(desc) = fs.stored_desc(Group(group)) else { continue };
        free_clusters += u64::from(desc.free_clusters);
        free_inodes = free_inodes.saturating_add(desc.free_inodes);
    }
    let free_blocks = free_clusters << fs.geometry.cluster_log;
    fs.put_superblock(|sb| {
        (sb.free_blocks_count, sb.free_inodes_count) = (free_blocks, free_inodes);
    })?;
    let backups = ["SB017", "GD012", "SB002"];
    if findings.iter().any(|finding| backups.contains(&finding.rule.code)) {
        write_backups(fs)?;
    }
    Ok(())
}

/// Computes a group's bitmaps, counts and flags.
pub(crate) fn settle_group(fs: &Fs<'_>, group: Group) -> Result<(), DeviceFault> {
    let Some(mut desc) = fs.stored_desc(group).filter(|_| fs.notes.is_usable(group)) else {
        return Ok(());
    };
    let has_flags = fs.has_csum() || fs.sb.features.has_ro_compat(Features::GDT_CSUM);
    if !has_flags {
        desc.flags &= !(BLOCK_UNINIT | INODE_UNINIT);
        desc.itable_unused = 0;
    }
    let len = fs.block_len();
    // Blocks.
    let clusters = fs.geometry.group_clusters(group);
    let blocks = bitmap(&fs.notes.used_clusters(group), clusters, len);
    desc.free_clusters = clusters - count(&blocks, clusters);
    if desc.has_flag(BLOCK_UNINIT) {
        let is_last = group.0 + 1 == fs.geometry.groups;
        if is_last || blocks != fixed_only(fs, group, &desc, clusters, len) {
            desc.flags &= !BLOCK_UNINIT;
        }
    }
    if !desc.has_flag(BLOCK_UNINIT) {
        fs.write_block(Pblk(desc.block_bitmap), &blocks)?;
    }
    // Inodes.
    let per_group = fs.geometry.inodes_per_group;
    let mut words = vec![0u64; (per_group as usize).div_ceil(64)];
    let (mut dirs, mut end) = (0, 0);
    for (index, note) in fs.notes.group(group).enumerate() {
        if note.used {
            words[index / 64] |= 1 << (index % 64);
            dirs += u32::from(note.kind == 2);
            end = index as u32 + 1;
        }
    }
    let before = group.0.saturating_mul(per_group);
    let reserved = fs.first_ino().saturating_sub(1).saturating_sub(before).min(per_group);
    for index in 0..reserved as usize {
        words[index / 64] |= 1 << (index % 64);
    }
    end = end.max(reserved);
    let inodes = bitmap(&words, per_group, len);
    desc.free_inodes = per_group - count(&inodes, per_group);
    desc.used_dirs = dirs;
    if has_flags && desc.itable_unused > (per_group - end).min(desc.free_inodes) {
        desc.itable_unused = per_group - end;
    }
    if desc.has_flag(INODE_UNINIT) && desc.free_inodes != per_group {
        desc.flags &= !INODE_UNINIT;
    }
    if !desc.has_flag(INODE_UNINIT) {
        fs.write_block(Pblk(desc.inode_bitmap), &inodes)?;
    }
    if fs.has_csum() {
        let seed = fs.sb.fs_seed();
        let stored = fs.read_block(Pblk(desc.block_bitmap))?;
        let sum = block_bitmap_checksum(seed, &stored, fs.geometry.clusters_per_group());
        if !desc.has_flag(BLOCK_UNINIT) {
            desc.block_bitmap_csum = sum;
        }
        let stored = fs.read_block(Pblk(desc.inode_bitmap))?;
        if !desc.has_flag(INODE_UNINIT) {
            desc.inode_bitmap_csum = inode_bitmap_checksum(seed, &stored, per_group);
        }
    }
    let _ = fs.put_desc(group, &desc);
    Ok(())
}

/// The bitmap of a group in which only its own metadata is in use, as readers compute it.
fn fixed_only(fs: &Fs<'_>, group: Group, desc: &GroupDesc, clusters: u32, len: usize) -> Vec<u8> {
    let mut words = vec![0u64; (clusters as usize).div_ceil(64)];
    let ratio = fs.geometry.cluster_ratio();
    let start = fs.geometry.group_start(group).0;
    let head = fs.geometry.group_head(group);
    let table = u64::from(fs.geometry.itable_blocks());
    let mut own = vec![(desc.block_bitmap, 1), (desc.inode_bitmap, 1), (desc.inode_table, table)];
    own.extend(head.superblock.map(|block| (block.0, 1)));
    own.extend([head.descriptors, head.reserved].map(|(first, len)| (first.0, u64::from(len))));
    for (first, len) in own.into_iter().filter(|(_, len)| *len > 0) {
        let end = first.saturating_add(len).saturating_sub(start).div_ceil(ratio);
        for cluster in first.saturating_sub(start) / ratio..end.min(clusters.into()) {
            words[cluster as usize / 64] |= 1 << (cluster % 64);
        }
    }
    bitmap(&words, clusters, len)
}

/// Writes the primary superblock and descriptors over their backups.
fn write_backups(fs: &Fs<'_>) -> Result<(), DeviceFault> {
    let geometry = &fs.geometry;
    let mut table = Vec::new();
    for index in 0..geometry.desc_blocks {
        let (block, _) = geometry.descriptor_place(Group(index.saturating_mul(geometry.descs_per_block())));
        table.push(fs.read_block(block)?);
    }
    for group in 1..geometry.groups {
        let head = geometry.group_head(Group(group));
        let (first, count) = head.descriptors;
        for at in 0..count {
            let index = (head.first_descriptor_block + at) as usize;
            let is_primary =
                geometry.descriptor_place(Group((index as u32).saturating_mul(geometry.descs_per_block()))).0
                    == Pblk(first.0 + u64::from(at));
            if let (Some(bytes), false) = (table.get(index), is_primary) {
                fs.write_block(Pblk(first.0 + u64::from(at)), bytes)?;
            }
        }
        if let Some(block) = head.superblock {
            let sb = Superblock { block_group_nr: group as u16, ..fs.sb.clone() };
            let bytes = if sb.features.metadata_csum() { sb.sealed() } else { sb.encode() };
            fs.overlay.write_at(block.0 * geometry.block_size.bytes(), &bytes)?;
        }
    }
    Ok(())
}

/// The bytes of a bitmap; the bits after the last one are set.
fn bitmap(words: &[u64], bits: u32, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xFF; len];
    for (chunk, word) in bytes.chunks_mut(8).zip(words) {
        let word = word.to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
    for bit in bits as usize..(bits as usize).next_multiple_of(64).min(len * 8) {
        bytes[bit / 8] |= 1 << (bit % 8);
    }
    bytes
}

fn count(bytes: &[u8], bits: u32) -> u32 {
    let whole = bits as usize / 8;
    let ones: u32 = bytes[..whole].iter().map(|byte| byte.count_ones()).sum();
    ones + bytes.get(whole).map_or(0, |byte| (byte & ((1 << (bits % 8)) - 1)).count_ones())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_is_set_and_not_counted() {
        let bytes = bitmap(&[0b1011], 10, 16);
        assert_eq!(bytes[0], 0b1011);
        assert_eq!(bytes[1], 0b1111_1100);
        assert_eq!(bytes[2..], [0xFF; 14]);
        assert_eq!(count(&bytes, 10), 3);
    }
}
