//! `inspect … orphans`: inodes to be deleted or truncated at the next mount, from the list and the file.
//!
//! Source: kernel Documentation/filesystems/ext4/orphan.rst.

use std::collections::HashSet;

use extant_base::{Ino, Pblk};
use extant_ondisk::Features;
use extant_ondisk::orphan_file::{self, MAX_BLOCKS, OrphanBlock};
use serde_json::json;

use super::format::{bytes_and_human, count, mode_letters};
use super::mapping;
use super::page::Page;
use super::reader::{FoundInode, Reader};

/// Prints the orphans of the list and of the file. Orphans are not damage.
pub(super) fn show(reader: &Reader<'_>, page: &mut Page<'_>) {
    let sb = reader.sb();
    page.number("list_head", sb.last_orphan);
    page.list("orphan_list", None);
    let listed = list(reader, page);
    page.close();
    if sb.features.has_compat(Features::ORPHAN_FILE) {
        file(reader, page);
    }
    page.fact("total_on_list", count(listed, "inode"), listed);
}

/// Follows the list through the inodes' deletion times. Visits each inode once.
fn list(reader: &Reader<'_>, page: &mut Page<'_>) -> u64 {
    let mut seen = HashSet::new();
    let mut next = Ino(reader.sb().last_orphan);
    while next != Ino(0) && !page.is_broken() {
        if reader.geometry().inode_place(next).is_none() {
            reader.damage(format_args!("orphan list: names inode {next}, which does not exist"));
            break;
        }
        if !seen.insert(next) {
            reader.damage(format_args!("orphan list: comes back to inode {next}"));
            break;
        }
        match reader.inode(next) {
            Ok(orphan) => {
                print_orphan(&orphan, "", page);
                next = Ino(orphan.inode.dtime);
            }
            Err(fault) => {
                reader.damage(format_args!("orphan list: inode {next}: {fault}"));
                break;
            }
        }
    }
    seen.len() as u64
}

fn print_orphan(orphan: &FoundInode, place: &str, page: &mut Page<'_>) {
    let inode = &orphan.inode;
    let todo = if inode.links == 0 { "delete" } else { "truncate" };
    page.item(
        format_args!(
            "inode {}{place}: to {todo}, {} ({:07o}), {}, {}",
            orphan.ino,
            mode_letters(inode.mode),
            inode.mode,
            count(inode.links.into(), "link"),
            bytes_and_human(inode.size),
        ),
        json!({
            "inode": orphan.ino.0, "todo": todo, "mode": inode.mode, "links": inode.links, "size": inode.size,
            "place": place.trim(),
        }),
    );
}

/// Prints the used slots of the orphan file.
fn file(reader: &Reader<'_>, page: &mut Page<'_>) {
    let sb = reader.sb();
    let ino = Ino(sb.orphan_file_inum);
    page.open("orphan_file");
    page.number("inode", ino.0);
    let in_use = sb.features.has_ro_compat(Features::ORPHAN_PRESENT);
    page.fact("orphan_present", if in_use { "yes: it may hold entries" } else { "no" }, in_use);
    match reader.inode(ino) {
        Ok(file) => blocks(reader, &file, page),
        Err(fault) => reader.damage(format_args!("orphan file: inode {ino}: {fault}")),
    }
    page.close();
}

fn blocks(reader: &Reader<'_>, file: &FoundInode, page: &mut Page<'_>) {
    let runs = mapping::runs(reader, file);
    let total = file.inode.size / reader.block_len();
    if total > MAX_BLOCKS {
        reader.damage(format_args!("orphan file: has {total} blocks, more than {MAX_BLOCKS}"));
    }
    let seed = orphan_file::inode_seed(reader.sb().fs_seed(), file.ino, file.inode.generation);
    let slots = orphan_file::slots_per_block(reader.geometry().block_size) as u64;
    page.fact("blocks", format!("{total} ({})", count(total.saturating_mul(slots), "slot")), total);
    let mut used = 0u64;
    page.list("entries", None);
    for lblk in 0..total.min(MAX_BLOCKS) {
        let Some(place) = mapping::find(&runs, lblk) else {
            reader.damage(format_args!("orphan file: block {lblk} is not mapped"));
            continue;
        };
        used += block(reader, lblk, place, seed, page);
    }
    page.close();
    page.fact("entries_in_use", used, used);
}

fn block(reader: &Reader<'_>, lblk: u64, place: Pblk, seed: u32, page: &mut Page<'_>) -> u64 {
    let damage = |what: String| reader.damage(format_args!("orphan file: block {lblk} at {place}: {what}"));
    let bytes = match reader.block(place) {
        Ok(bytes) => bytes,
        Err(fault) => {
            damage(fault.to_string());
            return 0;
        }
    };
    let block = match OrphanBlock::decode(&bytes) {
        Ok(block) => block,
        Err(fault) => {
            damage(fault.to_string());
            return 0;
        }
    };
    if reader.has_csum() && !block.verify(seed, place) {
        damage(format!("checksum WRONG (stored {:#x})", block.stored_checksum()));
    }
    let mut used = 0;
    for (slot, ino) in block.orphans() {
        used += 1;
        match reader.inode(ino) {
            Ok(orphan) => print_orphan(&orphan, &format!(" (block {lblk}, slot {slot})"), page),
            Err(fault) => damage(format!("slot {slot}: {fault}")),
        }
    }
    used
}
