//! The resize inode. Its double indirect block lists the reserved descriptor blocks of the first group; each
//! of these serves as an indirect block that lists the same descriptor block of every backup.
//!
//! Source: kernel Documentation/filesystems/ext4/special_inodes.rst.

use extant_base::{Group, Ino, Pblk};
use extant_ondisk::Features;
use extant_ondisk::inode::Inode;

use crate::FindingPlace;
use crate::rules::superblock as rules;
use crate::state::State;

pub(super) fn check(state: &State<'_>) {
    let (image, geometry) = (&state.image, &state.image.geometry);
    let sb = &image.sb;
    let place = FindingPlace::ino(Ino::RESIZE);
    if !sb.features.has_compat(Features::RESIZE_INODE) {
        return;
    }
    let broken = |says: String| state.findings.broken(&rules::RESIZE_INODE, place.clone(), says);
    // The first 128 bytes suffice; newer fields may be damaged.
    let inode = image.read_inode(Ino::RESIZE).ok();
    let Some(inode) = inode.and_then(|bytes| Inode::decode(&bytes[..128]).ok()) else {
        broken("the resize inode cannot be read".into());
        return;
    };
    if sb.reserved_gdt_blocks == 0 && inode.links == 0 && inode.block == [0; 60] {
        return; // grown to its limit, or so small that there was no room
    }
    if inode.links == 0 {
        let says = "the resize inode has no links";
        state.findings.broken(&crate::rules::inode::HIDDEN_FIELDS, place.clone(), says);
    }
    if inode.mode & 0xF000 != 0x8000 {
        broken(format!("mode {:#o}, {} links", inode.mode, inode.links));
        return;
    }
    let slots = inode.block.as_chunks::<4>().0;
    let word = |i: usize| u64::from(u32::from_le_bytes(slots[i]));
    if (0..15).any(|i| i != 13 && word(i) != 0) {
        broken("it maps more than a double indirect block".into());
        return;
    }
    let dind = Pblk(word(13));
    if sb.reserved_gdt_blocks == 0 && dind.0 == 0 {
        return;
    }
    if !image.is_data_block(dind) {
        broken(format!("its double indirect block is said to be {dind}"));
        return;
    }
    let Ok(bytes) = image.read_block(dind) else {
        broken(format!("its double indirect block {dind} cannot be read"));
        return;
    };
    let per_block = geometry.block_size.bytes() / 4;
    let head = geometry.group_head(Group(0)).reserved;
    // Slots are numbered by descriptor block from the start of the table, modulo the entries of a block.
    let first_slot = u64::from(geometry.desc_blocks) % per_block;
    let entries = bytes.as_chunks::<4>().0;
    for (slot, entry) in entries.iter().enumerate() {
        let found = u64::from(u32::from_le_bytes(*entry));
        let index = (slot as u64 + per_block - first_slot) % per_block;
        let expected = if index < u64::from(head.1) { head.0.0 + index } else { 0 };
        if found != expected {
            broken(format!("slot {slot} of block {dind} is {found}, should be {expected}"));
            return;
        }
        if expected != 0 && !check_row(state, Pblk(expected), &broken) {
            return;
        }
    }
}

/// Checks that a reserved block of the first group lists the same block of all backups.
fn check_row(state: &State<'_>, row: Pblk, broken: &dyn Fn(String)) -> bool {
    let geometry = &state.image.geometry;
    let Ok(bytes) = state.image.read_block(row) else {
        broken(format!("block {row} cannot be read"));
        return false;
    };
    let mut backups = (1..geometry.groups).map(Group).filter(|group| geometry.has_super(*group));
    for (slot, entry) in bytes.as_chunks::<4>().0.iter().enumerate() {
        let found = u64::from(u32::from_le_bytes(*entry));
        // Offsets count from the primary, even where the primary is one block later in its group than the
        // backups (1 KiB blocks in larger clusters).
        let expected = backups
            .next()
            .map_or(0, |group| row.0 + u64::from(group.0) * u64::from(geometry.blocks_per_group));
        if found != expected {
            broken(format!("entry {slot} of block {row} is {found}, should be {expected}"));
            return false;
        }
    }
    true
}
