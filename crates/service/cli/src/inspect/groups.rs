//! `inspect … groups` and `inspect … group N`: the tables of each group and its usage.
//!
//! Also owns a group's bitmaps ([`block_bitmap`], [`inode_bitmap`]), including those that were never written:
//! their contents follow from the layout.

use std::ops::Range;

use extant_base::{Group, Pblk};
use extant_ondisk::bitmap::{GroupBitmap, block_bitmap_checksum, inode_bitmap_checksum};
use extant_ondisk::group_desc::{BLOCK_UNINIT, INODE_UNINIT, INODE_ZEROED};
use serde_json::{Value, json};

use super::InspectError;
use super::format::{Checksum, checksum_json, checksum_text, flags_json, flags_text, range_text};
use super::page::Page;
use super::reader::{Descriptor, ReadFault, Reader};

const FLAGS: &[(u32, &str)] = &[
    (INODE_UNINIT as u32, "inode_uninit"),
    (BLOCK_UNINIT as u32, "block_uninit"),
    (INODE_ZEROED as u32, "itable_zeroed"),
];

/// A group's bitmap, and its checksum if it has one.
pub(super) struct FoundBitmap {
    pub(super) bits: GroupBitmap,
    pub(super) checksum: Option<Checksum>,
    /// The bitmap was never written: its bits follow from the layout.
    pub(super) is_derived: bool,
}

/// Small descriptors store only the low 16 bits of a checksum.
fn cut(checksum: u32, desc_size: usize) -> u32 {
    if desc_size >= extant_ondisk::group_desc::LARGE { checksum } else { checksum & 0xFFFF }
}

/// Reads the bitmap of a group's used clusters.
///
/// # Errors
/// The bitmap cannot be read.
pub(super) fn block_bitmap(
    reader: &Reader<'_>,
    group: Group,
    found: &Descriptor,
) -> Result<FoundBitmap, ReadFault> {
    let geometry = reader.geometry();
    let clusters = geometry.group_clusters(group);
    if found.desc.has_flag(BLOCK_UNINIT) {
        let bits = derived_block_bitmap(reader, group, found);
        return Ok(FoundBitmap { bits, checksum: None, is_derived: true });
    }
    let block = reader.block(found.tables.block_bitmap)?;
    let checksum = reader.has_csum().then(|| Checksum {
        stored: found.desc.block_bitmap_csum,
        computed: cut(
            block_bitmap_checksum(reader.sb().fs_seed(), &block, geometry.clusters_per_group()),
            geometry.desc_size,
        ),
    });
    note_checksum(reader, group, "block", checksum);
    Ok(FoundBitmap { bits: GroupBitmap::from_bytes(block.to_vec(), clusters)?, checksum, is_derived: false })
}

/// Reads the bitmap of a group's used inodes.
///
/// # Errors
/// The bitmap cannot be read.
pub(super) fn inode_bitmap(
    reader: &Reader<'_>,
    group: Group,
    found: &Descriptor,
) -> Result<FoundBitmap, ReadFault> {
    let geometry = reader.geometry();
    if found.desc.has_flag(INODE_UNINIT) {
        let bits = GroupBitmap::new(geometry.block_size, geometry.inodes_per_group);
        return Ok(FoundBitmap { bits, checksum: None, is_derived: true });
    }
    let block = reader.block(found.tables.inode_bitmap)?;
    let checksum = reader.has_csum().then(|| Checksum {
        stored: found.desc.inode_bitmap_csum,
        computed: cut(
            inode_bitmap_checksum(reader.sb().fs_seed(), &block, geometry.inodes_per_group),
            geometry.desc_size,
        ),
    });
    note_checksum(reader, group, "inode", checksum);
    let bits = GroupBitmap::from_bytes(block.to_vec(), geometry.inodes_per_group)?;
    Ok(FoundBitmap { bits, checksum, is_derived: false })
}

fn note_checksum(reader: &Reader<'_>, group: Group, which: &str, checksum: Option<Checksum>) {
    if let Some(checksum) = checksum.filter(|checksum| !checksum.is_right()) {
        reader.damage(format_args!("{which} bitmap of group {group}: checksum {}", checksum.text()));
    }
}

/// The block bitmap of a group where it was never written: the copies at the group's head are in use, and its
/// own tables if they lie in the group.
fn derived_block_bitmap(reader: &Reader<'_>, group: Group, found: &Descriptor) -> GroupBitmap {
    let geometry = reader.geometry();
    let mut bits = GroupBitmap::new(geometry.block_size, geometry.group_clusters(group));
    let head = geometry.group_head(group);
    let mut used: Vec<(u64, u64)> = vec![
        (found.tables.block_bitmap.0, 1),
        (found.tables.inode_bitmap.0, 1),
        (found.tables.inode_table.0, geometry.itable_blocks().into()),
        (head.descriptors.0.0, head.descriptors.1.into()),
        (head.reserved.0.0, head.reserved.1.into()),
    ];
    used.extend(head.superblock.map(|block| (block.0, 1)));
    let start = geometry.group_start(group).0;
    let end = start + u64::from(geometry.group_blocks(group));
    for (first, len) in used {
        let (first, last) = (first.max(start), first.saturating_add(len).min(end));
        if first < last {
            let clusters = ((first - start) >> geometry.cluster_log) as u32
                ..((last - 1 - start) >> geometry.cluster_log) as u32 + 1;
            bits.set(clusters.start..clusters.end.min(bits.len()));
        }
    }
    bits
}

/// Prints all groups, one line each.
pub(super) fn show_all(reader: &Reader<'_>, page: &mut Page<'_>) {
    let geometry = reader.geometry();
    page.number("groups_count", geometry.groups);
    let heading = format!(
        "{:>7} {:>23} {:>9} {:>9} {:>7} {:>9} {:>12} {:>12} {:>25}  checksum  flags",
        "group",
        "blocks",
        "free",
        "free ino",
        "dirs",
        "unused",
        "block bitmap",
        "inode bitmap",
        "inode table"
    );
    page.list("groups", Some(&heading));
    for number in 0..geometry.groups {
        if page.is_broken() || reader.is_flooded() {
            break;
        }
        let group = Group(number);
        let start = geometry.group_start(group).0;
        let blocks = u64::from(geometry.group_blocks(group));
        match reader.descriptor(group) {
            Ok(found) => {
                let d = &found.desc;
                let table = range_text(d.inode_table, geometry.itable_blocks().into());
                let checksum = match found.checksum.map(Checksum::is_right) {
                    None => "none",
                    Some(true) => "ok",
                    Some(false) => "WRONG",
                };
                page.item(
                    format_args!(
                        "{number:>7} {:>23} {:>9} {:>9} {:>7} {:>9} {:>12} {:>12} {table:>25}  {checksum:<8}  {}",
                        range_text(start, blocks),
                        d.free_clusters,
                        d.free_inodes,
                        d.used_dirs,
                        d.itable_unused,
                        d.block_bitmap,
                        d.inode_bitmap,
                        flags_text(d.flags.into(), FLAGS),
                    ),
                    descriptor_json(reader, group, &found),
                );
            }
            Err(fault) => {
                reader.damage(format_args!("descriptor of group {group}: {fault}"));
                let json = json!({"group": number, "first_block": start, "blocks": blocks, "descriptor": Value::Null});
                page.item(
                    format_args!("{number:>7} {:>23} descriptor: {fault}", range_text(start, blocks)),
                    json,
                );
            }
        }
    }
    page.close();
}

fn descriptor_json(reader: &Reader<'_>, group: Group, found: &Descriptor) -> Value {
    let (geometry, d) = (reader.geometry(), &found.desc);
    json!({
        "group": group.0,
        "first_block": geometry.group_start(group).0,
        "blocks": geometry.group_blocks(group),
        "free_clusters": d.free_clusters,
        "free_inodes": d.free_inodes,
        "directories": d.used_dirs,
        "unused_inodes": d.itable_unused,
        "block_bitmap": d.block_bitmap,
        "inode_bitmap": d.inode_bitmap,
        "inode_table": d.inode_table,
        "flags": flags_json(d.flags.into(), FLAGS),
        "checksum": checksum_json(found.checksum),
    })
}

/// Prints one group with all details.
///
/// # Errors
/// The group does not exist, or its descriptor cannot be read.
pub(super) fn show_one(reader: &Reader<'_>, group: Group, page: &mut Page<'_>) -> Result<(), InspectError> {
    let geometry = reader.geometry();
    if group.0 >= geometry.groups {
        let last = geometry.groups - 1;
        return Err(InspectError::Absent(format!(
            "there is no group {group}; they are numbered 0 to {last}"
        )));
    }
    let found = reader
        .descriptor(group)
        .map_err(|fault| InspectError::Unreadable(format!("descriptor of group {group}: {fault}")))?;
    let (d, head) = (&found.desc, geometry.group_head(group));
    page.number("group", group.0);
    span(page, "blocks", geometry.group_start(group), geometry.group_blocks(group).into());
    if geometry.flex_log > 0 {
        page.number("flex_group", group.0 / geometry.groups_per_flex());
    }
    match head.superblock {
        Some(block) if group.0 == 0 => page.fact("superblock", format!("{block} (primary)"), block.0),
        Some(block) => page.fact("superblock", format!("{block} (backup)"), block.0),
        None => page.fact("superblock", "(none)", Value::Null),
    }
    span(page, "group_descriptors", head.descriptors.0, head.descriptors.1.into());
    span(page, "reserved_gdt_blocks", head.reserved.0, head.reserved.1.into());
    page.fact(
        "descriptor",
        format!("block {}, byte {} in it", found.place.0, found.place.1),
        json!({"block": found.place.0.0, "offset_bytes": found.place.1}),
    );
    page.fact("descriptor_checksum", checksum_text(found.checksum), checksum_json(found.checksum));
    page.fact("flags", flags_text(d.flags.into(), FLAGS), flags_json(d.flags.into(), FLAGS));
    place(reader, page, "block_bitmap", d.block_bitmap);
    place(reader, page, "inode_bitmap", d.inode_bitmap);
    span(page, "inode_table", Pblk(d.inode_table), geometry.itable_blocks().into());
    let first = u64::from(group.0) * u64::from(geometry.inodes_per_group) + 1;
    let per_group = u64::from(geometry.inodes_per_group);
    page.fact("inodes", range_text(first, per_group), json!({"first": first, "count": per_group}));
    page.number("directories", d.used_dirs);
    page.number("unused_inodes", d.itable_unused);

    let ratio = geometry.cluster_ratio();
    let unit = if ratio == 1 { "free_blocks" } else { "free_clusters" };
    compare(reader, page, unit, d.free_clusters, block_bitmap(reader, group, &found), group);
    compare(reader, page, "free_inodes", d.free_inodes, inode_bitmap(reader, group, &found), group);
    let start = geometry.group_start(group).0;
    ranges(page, "free_block_ranges", block_bitmap(reader, group, &found), |run| {
        let first = start + u64::from(run.start) * ratio;
        let end = (start + u64::from(run.end) * ratio).min(geometry.blocks);
        (first, end - first)
    });
    ranges(page, "free_inode_ranges", inode_bitmap(reader, group, &found), |run| {
        (first + u64::from(run.start), u64::from(run.end - run.start))
    });
    Ok(())
}

/// Prints a block and its group: with flex_bg it may lie in another group.
fn place(reader: &Reader<'_>, page: &mut Page<'_>, key: &str, block: u64) {
    let text = match reader.geometry().group_of(Pblk(block)) {
        Some(group) => format!("{block} (in group {group})"),
        None => format!("{block} (OUTSIDE the file system)"),
    };
    page.fact(key, text, block);
}

fn span(page: &mut Page<'_>, key: &str, first: Pblk, len: u64) {
    let json = if len == 0 { Value::Null } else { json!({"first": first.0, "count": len}) };
    let text = range_text(first.0, len);
    page.fact(key, if len > 1 { format!("{text} ({len} blocks)") } else { text }, json);
}

/// Prints the free counts of the descriptor and of the bitmap.
fn compare(
    reader: &Reader<'_>,
    page: &mut Page<'_>,
    key: &str,
    counted: u32,
    bitmap: Result<FoundBitmap, ReadFault>,
    group: Group,
) {
    match bitmap {
        Ok(bitmap) => {
            let free = bitmap.bits.count_clear();
            let how = if bitmap.is_derived { "bitmap never written" } else { "by the bitmap too" };
            let text = if free == counted {
                format!("{counted} ({how})")
            } else {
                reader.damage(format_args!(
                    "group {group}: {} are {counted} by the descriptor, {free} by the bitmap",
                    key.replace('_', " ")
                ));
                format!("{counted} by the descriptor, {free} by the bitmap")
            };
            let json = json!({
                "descriptor": counted, "bitmap": free, "bitmap_uninit": bitmap.is_derived,
                "bitmap_checksum": checksum_json(bitmap.checksum),
            });
            page.fact(key, text, json);
        }
        Err(fault) => {
            reader.damage(format_args!("group {group}: {fault}"));
            let text = format!("{counted} by the descriptor; bitmap: {fault}");
            page.fact(key, text, json!({"descriptor": counted, "bitmap": Value::Null}));
        }
    }
}

fn ranges(
    page: &mut Page<'_>,
    key: &str,
    bitmap: Result<FoundBitmap, ReadFault>,
    to_range: impl Fn(Range<u32>) -> (u64, u64),
) {
    let Ok(bitmap) = bitmap else { return };
    let ranges: Vec<(u64, u64)> = bitmap.bits.free_runs(0).map(to_range).collect();
    let texts: Vec<String> = ranges.iter().map(|(first, len)| range_text(*first, *len)).collect();
    let json: Vec<Value> = ranges.iter().map(|(first, len)| json!({"first": first, "count": len})).collect();
    let text = if texts.is_empty() { "(none)".to_owned() } else { texts.join(", ") };
    page.fact(key, text, json);
}
