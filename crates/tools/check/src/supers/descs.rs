//! Group descriptors: reading, validation, and replacement of invalid ones by their backups.

use extant_base::{Group, Pblk};
use extant_ondisk::group_desc::{BLOCK_UNINIT, ChecksumRule, GroupDesc, INODE_UNINIT};
use extant_ondisk::{Features, Geometry};

use crate::image::{Image, Zones};
use crate::rules::group as rules;
use crate::state::State;
use crate::{FindingPlace, Findings};

/// Reads all descriptors into the image, and lists the zones they describe.
pub(super) fn load(image: &mut Image<'_>, findings: &Findings) {
    let raw = read_table(image, findings, &|geometry, index| primary_place(geometry, index));
    let rule = ChecksumRule::of(&image.sb);
    let (groups, size) = (image.geometry.groups, image.geometry.desc_size);
    let mut descs = Vec::with_capacity(groups as usize);
    for (group, bytes) in (0..groups).zip(raw.chunks_exact(size)) {
        let mut desc = GroupDesc::decode(bytes).unwrap_or_default();
        if !rule.verify(group, bytes) {
            let says =
                format!("checksum is {:#06x}, should be {:#06x}", desc.checksum, rule.compute(group, bytes));
            findings.broken(&rules::CHECKSUM, FindingPlace::group(Group(group)), says);
            // With a wrong checksum the uninit flags cannot be trusted.
            desc.flags &= !(INODE_UNINIT | BLOCK_UNINIT);
            desc.itable_unused = 0;
        } else if !image.has_group_csum()
            && (desc.flags & (INODE_UNINIT | BLOCK_UNINIT) != 0 || desc.itable_unused != 0)
        {
            let says = match desc.itable_unused {
                0 => format!("flags are {:#x}", desc.flags),
                unused => format!("flags are {:#x}, itable_unused is {unused}", desc.flags),
            };
            let used = desc.has_flag(INODE_UNINIT) && desc.free_inodes != image.geometry.inodes_per_group;
            let rule = if used { &rules::UNINIT_IN_USE } else { &rules::UNINIT_FLAGS };
            findings.broken(rule, FindingPlace::group(Group(group)), says);
        }
        if !image.has_group_csum() {
            desc.flags &= !(INODE_UNINIT | BLOCK_UNINIT);
            desc.itable_unused = 0;
        }
        descs.push(desc);
    }
    repair_places(image, &mut descs, findings);
    image.descs = descs;
    find_zones(image, findings);
}

/// The block that holds block `index` of the primary descriptor table.
fn primary_place(geometry: &Geometry, index: u32) -> Pblk {
    geometry.descriptor_place(Group(index.saturating_mul(geometry.descs_per_block()))).0
}

/// The block that holds block `index` of the first backup table, if there is a backup.
fn backup_place(geometry: &Geometry, index: u32) -> Option<Pblk> {
    if index < geometry.classic_desc_blocks() {
        let group = (1..geometry.groups).map(Group).find(|group| geometry.has_super(*group))?;
        let head = geometry.group_head(group);
        (index < head.descriptors.1).then(|| Pblk(head.descriptors.0.0 + u64::from(index)))
    } else {
        let group = index.checked_mul(geometry.descs_per_block())?.checked_add(1)?;
        let head = (group < geometry.groups).then(|| geometry.group_head(Group(group)))?;
        (head.descriptors.1 == 1).then_some(head.descriptors.0)
    }
}

/// Reads the whole table; blocks that cannot be read are zeros.
fn read_table(image: &Image<'_>, findings: &Findings, place: &dyn Fn(&Geometry, u32) -> Pblk) -> Vec<u8> {
    let geometry = &image.geometry;
    let bs = geometry.block_size.len();
    let mut raw = vec![0; geometry.desc_blocks as usize * bs];
    let mut index = 0;
    while index < geometry.desc_blocks {
        // Reads adjacent blocks in one request.
        let first = place(geometry, index);
        let mut count = 1;
        while index + count < geometry.desc_blocks
            && count < 256
            && place(geometry, index + count).0 == first.0 + u64::from(count)
        {
            count += 1;
        }
        let part = &mut raw[index as usize * bs..(index + count) as usize * bs];
        if let Err(fault) = image.read_blocks(first, part) {
            let group = Group(index * geometry.descs_per_block());
            findings.broken(
                &rules::UNREADABLE,
                FindingPlace::group(group).in_block(first),
                fault.to_string(),
            );
        }
        index += count;
    }
    raw
}

/// Block bitmap, inode bitmap and inode table of a group: name, first block, length in blocks.
fn places(geometry: &Geometry, desc: &GroupDesc) -> [(&'static str, Pblk, u64); 3] {
    [
        ("block bitmap", Pblk(desc.block_bitmap), 1),
        ("inode bitmap", Pblk(desc.inode_bitmap), 1),
        ("inode table", Pblk(desc.inode_table), geometry.itable_blocks().into()),
    ]
}

/// The first of these that is out of range.
fn misplaced(image: &Image<'_>, group: Group, desc: &GroupDesc) -> Option<(&'static str, Pblk)> {
    let geometry = &image.geometry;
    let flex = image.sb.features.has_incompat(Features::FLEX_BG);
    let start = geometry.group_start(group).0;
    let end = start + u64::from(geometry.group_blocks(group));
    places(geometry, desc).into_iter().find_map(|(what, at, len)| {
        let inside = image.is_inside(at, len);
        let own = flex || (at.0 >= start && at.0.saturating_add(len) <= end);
        (!inside || !own).then_some((what, at))
    })
}

/// Replaces descriptors with block addresses out of range by their backups.
fn repair_places(image: &mut Image<'_>, descs: &mut [GroupDesc], findings: &Findings) {
    let mut backup: Option<Vec<u8>> = None;
    for (group, desc) in descs.iter_mut().enumerate() {
        let group = Group(group as u32);
        let Some((what, at)) = misplaced(image, group, desc) else { continue };
        let says = format!("the {what} is said to be at block {at}");
        findings.broken(&rules::PLACE, FindingPlace::group(group).in_block(at), says);
        let silent = Findings::default();
        let raw = backup.get_or_insert_with(|| {
            read_table(image, &silent, &|geometry, index| backup_place(geometry, index).unwrap_or_default())
        });
        let size = image.geometry.desc_size;
        let bytes = &raw[group.0 as usize * size..(group.0 as usize + 1) * size];
        match GroupDesc::decode(bytes) {
            Ok(other) if misplaced(image, group, &other).is_none() => {
                desc.block_bitmap = other.block_bitmap;
                desc.inode_bitmap = other.inode_bitmap;
                desc.inode_table = other.inode_table;
            }
            _ => image.unusable.push(group.0),
        }
    }
}

/// Lists the ranges of fixed metadata, and reports overlaps.
fn find_zones(image: &mut Image<'_>, findings: &Findings) {
    let geometry = &image.geometry;
    let mut owned: Vec<(u64, u64, u32)> = Vec::with_capacity(image.descs.len() * 4);
    for (group, desc) in image.descs.iter().enumerate() {
        let group = Group(group as u32);
        for (start, len) in head_ranges(geometry, group) {
            owned.push((start, start + len, group.0));
        }
        if image.is_usable(group) {
            owned.extend(places(geometry, desc).map(|(_, at, len)| (at.0, at.0 + len, group.0)));
        }
    }
    owned.sort_unstable();
    let mut unusable = Vec::new();
    let mut end = 0;
    let mut owner = 0;
    for &(start, stop, group) in &owned {
        if start < end && start < stop {
            let says = format!("metadata at blocks {start} to {} overlaps that of group {owner}", stop - 1);
            findings.broken(&rules::OVERLAP, FindingPlace::group(Group(group)).in_block(Pblk(start)), says);
            unusable.push(group);
        }
        if stop > end {
            (end, owner) = (stop, group);
        }
    }
    image.zones = Zones::new(owned.into_iter().map(|(start, end, _)| (start, end)).collect());
    image.unusable.append(&mut unusable);
    image.unusable.sort_unstable();
    image.unusable.dedup();
}

/// Superblock, descriptors and reserved descriptor blocks of a group: first block and length of each.
fn head_ranges(geometry: &Geometry, group: Group) -> [(u64, u64); 3] {
    let head = geometry.group_head(group);
    let sb = head.superblock.map_or((0, 0), |block| (block.0, 1));
    let (descs, reserved) = (head.descriptors, head.reserved);
    [sb, (descs.0.0, descs.1.into()), (reserved.0.0, reserved.1.into())]
}

/// Compares backup descriptors with the primary ones: block addresses only.
pub(super) fn check_backups(state: &State<'_>) {
    let (image, geometry) = (&state.image, &state.image.geometry);
    if geometry.groups < 2 || backup_place(geometry, 0).is_none() {
        return;
    }
    let silent = Findings::default();
    let raw =
        read_table(image, &silent, &|geometry, index| backup_place(geometry, index).unwrap_or_default());
    for (group, bytes) in (0..geometry.groups).zip(raw.chunks_exact(geometry.desc_size)) {
        if backup_place(geometry, group / geometry.descs_per_block()).is_none() {
            continue;
        }
        let (Ok(backup), Some(desc)) = (GroupDesc::decode(bytes), image.desc(Group(group))) else { continue };
        let place = |d: &GroupDesc| (d.block_bitmap, d.inode_bitmap, d.inode_table);
        if place(&backup) != place(desc) {
            let says = format!("the backup says {:?}, the primary {:?}", place(&backup), place(desc));
            state.findings.broken(&rules::BACKUP, FindingPlace::group(Group(group)), says);
        }
    }
}
