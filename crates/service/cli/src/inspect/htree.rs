//! `inspect … htree`: a directory's index from the root down, the fill of its leaves, and whether each name
//! is in the leaf of its hash.
//!
//! Checked rules: index hashes rise within a block and stay in the range that the entry above gives; the hash
//! of every name lies in its leaf's range (with the continuation flag, names of the range's first hash may
//! also be in the previous leaf); no block is used twice.

use std::collections::HashSet;

use extant_base::{Lblk, Pblk};
use extant_ondisk::dirent::DirFormat;
use extant_ondisk::filetype::FileType;
use extant_ondisk::htree::{DxEntries, DxFormat};
use extant_ondisk::inode::flags;
use serde_json::{Value, json};

use super::InspectError;
use super::dir::{Hasher, free_bytes};
use super::dirwalk::dir_format;
use super::format::{count, percent};
use super::mapping::{self, MappedRun, Mapping};
use super::page::Page;
use super::reader::{FoundInode, Reader};
use super::superblock::hash_name;

/// A walk over an index.
struct Walk<'r, 'd> {
    reader: &'r Reader<'d>,
    dir: &'r FoundInode,
    runs: Vec<MappedRun>,
    dx: DxFormat,
    format: DirFormat,
    hasher: Hasher,
    seed: u32,
    seen: HashSet<u32>,
    leaves: LeafStats,
    nodes: u64,
    is_ordered: bool,
}

#[derive(Debug, Default)]
struct LeafStats {
    count: u64,
    names: u64,
    used_bytes: u64,
    room_bytes: u64,
    least: Option<u64>,
    most: u64,
}

/// The hashes that a block may contain: from `first` to `last`, both included.
#[derive(Debug, Clone, Copy)]
struct Range {
    first: u32,
    last: u32,
}

/// Prints a directory's index.
///
/// # Errors
/// [`InspectError::Absent`] if the inode has none, [`InspectError::Unreadable`] if its root cannot be read.
pub(super) fn show(reader: &Reader<'_>, dir: &FoundInode, page: &mut Page<'_>) -> Result<(), InspectError> {
    let ino = dir.ino;
    if FileType::from_mode(dir.inode.mode) != FileType::Directory || !dir.inode.has_flag(flags::INDEX) {
        return Err(InspectError::Absent(format!("inode {ino} is no indexed directory")));
    }
    if Mapping::of(&dir.inode) == Mapping::Inline {
        return Err(InspectError::Absent(format!("inode {ino} keeps its entries inline, without an index")));
    }
    let runs = mapping::runs(reader, dir);
    let dx = DxFormat::new(reader.geometry().block_size, &reader.sb().features);
    let unreadable = |why: String| InspectError::Unreadable(format!("index root of inode {ino}: {why}"));
    let place =
        mapping::find(&runs, 0).ok_or_else(|| unreadable("logical block 0 is not mapped".to_owned()))?;
    let block = reader.block(place).map_err(|fault| unreadable(fault.to_string()))?;
    let root = dx.decode_root(&block).map_err(|fault| unreadable(fault.to_string()))?;
    let mut walk = Walk {
        reader,
        dir,
        runs,
        dx,
        format: dir_format(reader, dir),
        hasher: Hasher::new(reader, dir, root.hash_code),
        seed: reader.inode_seed(ino, &dir.inode),
        seen: HashSet::from([0]),
        leaves: LeafStats::default(),
        nodes: 0,
        is_ordered: true,
    };

    page.number("inode", ino.0);
    page.number("parent", root.parent.0);
    if root.ino != ino {
        reader.damage(format_args!("inode {ino}: \".\" names inode {}", root.ino));
    }
    let name = hash_name(root.hash_code);
    page.fact("hash", format!("{name} ({})", root.hash_code), json!({"name": name, "raw": root.hash_code}));
    let levels = u64::from(root.levels);
    page.fact("levels", format!("{} of index below the root", count(levels, "level")), levels);
    let blocks = dir.inode.size / reader.block_len();
    page.fact("size", format!("{} ({} bytes)", count(blocks, "block"), dir.inode.size), blocks);
    page.list("index", None);
    walk.print_index(0, Lblk(0), Some(place), &block, &root.entries, page);
    walk.below(&root.entries, root.levels, 0, Range { first: 0, last: u32::MAX }, page);
    page.close();
    walk.summary(page);
    Ok(())
}

impl Walk<'_, '_> {
    fn damage(&mut self, block: Lblk, what: impl std::fmt::Display) {
        self.reader.damage(format_args!("inode {}: index: block {block}: {what}", self.dir.ino));
    }

    /// Prints the head line of an index block.
    fn print_index(
        &mut self,
        level: u8,
        lblk: Lblk,
        pblk: Option<Pblk>,
        block: &[u8],
        entries: &DxEntries<'_>,
        page: &mut Page<'_>,
    ) {
        let checksum = self.reader.has_csum().then(|| match self.dx.verify(block, self.seed) {
            Ok(()) => true,
            Err(fault) => {
                self.damage(lblk, fault);
                false
            }
        });
        let kind =
            if level == 0 { extant_ondisk::htree::DxKind::Root } else { extant_ondisk::htree::DxKind::Node };
        let limit = self.dx.limit(kind);
        let words = match checksum {
            None => "",
            Some(true) => ", checksum ok",
            Some(false) => ", checksum WRONG",
        };
        page.item(
            format_args!(
                "{}level {level}: block {lblk} at {}, {} of {limit} entries ({}){words}",
                "  ".repeat(level.into()),
                pblk.map_or("?".to_owned(), |pblk| pblk.to_string()),
                entries.len(),
                percent(entries.len() as u64, limit as u64),
            ),
            json!({
                "level": level, "logical": lblk.0, "physical": pblk.map(|pblk| pblk.0), "entries": entries.len(),
                "limit": limit, "checksum_ok": checksum,
            }),
        );
    }

    /// Prints everything below an index block. `levels_left` is 0 if its children are leaves.
    ///
    /// The recursion is as deep as the index: at most two levels below the root.
    fn below(
        &mut self,
        entries: &DxEntries<'_>,
        levels_left: u8,
        level: u8,
        range: Range,
        page: &mut Page<'_>,
    ) {
        let mut before = None;
        for at in 0..entries.len() {
            if page.is_broken() || self.reader.is_flooded() {
                return;
            }
            let Some(entry) = entries.get(at) else { return };
            let first = if at == 0 { range.first } else { entry.hash };
            let next = entries.get(at + 1).map(|next| next.hash);
            if at > 0 && before.is_some_and(|before| first & !1 < before & !1) {
                self.is_ordered = false;
                self.damage(entry.block, format_args!("hash {first:#010x} is below the one before it"));
            }
            if at > 0 && (first & !1 < range.first & !1 || first > range.last) {
                self.is_ordered = false;
                self.damage(
                    entry.block,
                    format_args!("hash {first:#010x} is outside the range of the block above"),
                );
            }
            before = Some(first);
            // The first hash of the next child may also be in this one, if names with that hash continue from
            // here.
            let last = match next {
                Some(next) if next & 1 != 0 => next,
                Some(next) => next.saturating_sub(1),
                None => range.last,
            };
            let child = Range { first, last };
            if !self.seen.insert(entry.block.0) {
                self.is_ordered = false;
                self.damage(entry.block, "is used twice");
                continue;
            }
            if self.seen.len() as u64 > self.reader.blocks_here() {
                self.damage(entry.block, "the index has more blocks than the device");
                return;
            }
            let Some(pblk) = mapping::find(&self.runs, entry.block.0.into()) else {
                self.damage(entry.block, "is not mapped");
                continue;
            };
            let block = match self.reader.block(pblk) {
                Ok(block) => block,
                Err(fault) => {
                    self.damage(entry.block, fault);
                    continue;
                }
            };
            if levels_left == 0 {
                self.leaf(entry.block, pblk, &block, level + 1, child, page);
                continue;
            }
            match self.dx.decode_node(&block) {
                Ok(node) => {
                    self.nodes += 1;
                    self.print_index(level + 1, entry.block, Some(pblk), &block, &node, page);
                    self.below(&node, levels_left - 1, level + 1, child, page);
                }
                Err(fault) => self.damage(entry.block, fault),
            }
        }
    }

    fn leaf(&mut self, lblk: Lblk, pblk: Pblk, block: &[u8], level: u8, range: Range, page: &mut Page<'_>) {
        let checksum =
            self.reader.has_csum().then(|| match extant_ondisk::dirent::verify_tail(block, self.seed) {
                Ok(()) => true,
                Err(fault) => {
                    self.damage(lblk, fault);
                    false
                }
            });
        let format = self.format;
        let (mut names, mut astray) = (0, 0u64);
        for entry in format.entries(block) {
            match entry {
                Ok(entry) if entry.is_used() => {
                    names += 1;
                    let inside = self
                        .hasher
                        .hash(&entry)
                        .is_none_or(|hash| hash.hash >= range.first & !1 && hash.hash <= range.last);
                    astray += u64::from(!inside);
                }
                Ok(_) => {}
                Err(fault) => self.damage(lblk, fault),
            }
        }
        if astray > 0 {
            self.is_ordered = false;
            let what = format!("{} outside the leaf's range of hashes", count(astray, "name"));
            self.damage(lblk, what);
        }
        let room = format.usable_len() as u64;
        let used = room.saturating_sub(free_bytes(&format, block));
        let stats = &mut self.leaves;
        stats.count += 1;
        stats.names += names;
        stats.used_bytes += used;
        stats.room_bytes += room;
        stats.least = Some(stats.least.map_or(used, |least| least.min(used)));
        stats.most = stats.most.max(used);
        let words = match checksum {
            Some(false) => ", checksum WRONG",
            _ => "",
        };
        page.item(
            format_args!(
                "{}{:08x}..{:08x}  leaf block {lblk} at {pblk}: {}, {used} of {room} bytes ({}){words}",
                "  ".repeat(level.into()),
                range.first,
                range.last,
                count(names, "name"),
                percent(used, room),
            ),
            json!({
                "leaf": true, "level": level, "logical": lblk.0, "physical": pblk.0, "hash_first": range.first,
                "hash_last": range.last, "names": names, "used_bytes": used, "room_bytes": room,
                "checksum_ok": checksum, "astray": astray,
            }),
        );
    }

    fn summary(&self, page: &mut Page<'_>) {
        let stats = &self.leaves;
        page.number("index_nodes", self.nodes);
        page.number("leaves", stats.count);
        page.number("names", stats.names);
        let room = self.format.usable_len() as u64;
        let least = stats.least.unwrap_or(0);
        page.fact(
            "leaf_fill",
            format!(
                "least {}, average {}, most {}",
                percent(least, room),
                percent(stats.used_bytes, stats.room_bytes),
                percent(stats.most, room)
            ),
            json!({
                "least_bytes": least, "most_bytes": stats.most, "used_bytes": stats.used_bytes,
                "room_bytes": stats.room_bytes,
            }),
        );
        let order = if self.is_ordered { "every name is in the leaf of its hash" } else { "BROKEN" };
        page.fact("order", order, Value::from(self.is_ordered));
    }
}
