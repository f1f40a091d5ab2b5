//! The hash index of a directory, compared with its blocks.
//!
//! Each block is visited once, by the note that the first walk made ([`Seen`]); only index blocks are read
//! again. So the walk ends whatever the entries say, and is fast even with millions of names.
//!
//! Source: kernel Documentation/filesystems/ext4/directory.rst.

use extant_base::{Lblk, Pblk};
use extant_ondisk::Features;
use extant_ondisk::dirent::decode_rec_len;
use extant_ondisk::hash::HashVersion;
use extant_ondisk::htree::{DxFormat, DxKind};

use super::block::{Dir, Seen, Where};
use super::source::{Layout, Source};
use crate::Rule;
use crate::rules::directory as rules;

/// The block number in an index entry; the kernel reserves the other bits.
const CHILD_MASK: u32 = 0x0FFF_FFFF;
const ROOT_ENTRIES_AT: usize = 0x20;
const NODE_ENTRIES_AT: usize = 8;

/// The fields of the index root that control decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RootInfo {
    pub(super) hash_code: u8,
    info_len: u8,
    levels: u8,
    flags: u8,
    reserved: u32,
    dotdot_len: usize,
}

impl RootInfo {
    /// Decodes block 0; `None` if it is too short.
    pub(super) fn decode(dir: &Dir<'_>, block: &[u8]) -> Option<Self> {
        let head: &[u8; ROOT_ENTRIES_AT] = block.first_chunk()?;
        Some(Self {
            hash_code: head[0x1C],
            info_len: head[0x1D],
            levels: head[0x1E],
            flags: head[0x1F],
            reserved: u32::from_le_bytes([head[0x18], head[0x19], head[0x1A], head[0x1B]]),
            dotdot_len: decode_rec_len(u16::from_le_bytes([head[16], head[17]]), dir.block_size),
        })
    }

    /// The hash version of the index, if it is valid for the directory.
    pub(super) fn hash(&self, dir: &Dir<'_>) -> Option<HashVersion> {
        let version = HashVersion::from_code(self.hash_code, dir.state.image.sb.unsigned_hash())?;
        ((version == HashVersion::SipHash) == dir.hashed).then_some(version)
    }
}

/// Leaves in index order, with the lowest hash of each: for duplicate names in adjacent leaves.
pub(super) type Order = Vec<(u32, u32)>;

/// Checks the index of `dir` against its blocks. `None` if the index is damaged; leaves then have no order.
pub(super) fn check(dir: &Dir<'_>, layout: &Layout, seen: &[Seen], source: &mut dyn Source) -> Option<Order> {
    let image = &dir.state.image;
    let mut walk = Walk {
        dir,
        layout,
        seen,
        source,
        format: DxFormat::new(image.geometry.block_size, &image.sb.features),
        visited: vec![false; seen.len()],
        levels: 0,
        order: Vec::new(),
        sound: true,
    };
    if !image.sb.features.has_compat(Features::DIR_INDEX) {
        walk.broken(
            &rules::INDEX_FEATURE,
            0,
            "the directory has the INDEX flag, the file system no dir_index",
        );
    }
    let readable = seen.first().is_some_and(|root| *root != Seen::Nothing);
    let root = walk.source.block(0).filter(|_| readable).map(<[u8]>::to_vec);
    let info = root.as_deref().and_then(|block| RootInfo::decode(dir, block));
    let (Some(root), Some(info)) = (root, info) else {
        // Block 0 is a hole or unreadable, which is reported already.
        return None;
    };
    if !walk.check_root(&info) {
        return None;
    }
    walk.visited[0] = true;
    walk.levels = u32::from(info.levels);
    walk.node(0, &root, 0, (0, u32::MAX));
    for (lblk, visited) in walk.visited.clone().into_iter().enumerate() {
        if !visited && walk.seen[lblk] != Seen::Nothing {
            walk.broken(&rules::INDEX_UNREFERENCED, lblk as u32, "no index entry leads to this block");
        }
    }
    walk.sound.then_some(walk.order)
}

struct Walk<'w, 'a> {
    dir: &'w Dir<'a>,
    layout: &'w Layout,
    seen: &'w [Seen],
    source: &'w mut dyn Source,
    format: DxFormat,
    visited: Vec<bool>,
    /// Levels of nodes below the root.
    levels: u32,
    order: Order,
    sound: bool,
}

impl Walk<'_, '_> {
    fn broken(&mut self, rule: &'static Rule, lblk: u32, says: impl Into<String>) {
        self.sound &= rule.severity == crate::Severity::Note;
        let at = Where { lblk: Lblk(lblk), pblk: Some(self.layout.find(lblk).unwrap_or(Pblk(0))), offset: 0 };
        self.dir.broken(rule, self.dir.place(at), says);
    }

    /// Returns `false` if the levels below cannot be read.
    fn check_root(&mut self, info: &RootInfo) -> bool {
        if info.dotdot_len != self.dir.block_size.len() - 12 {
            let says = format!("\"..\" has {} bytes and does not hide the index", info.dotdot_len);
            self.broken(&rules::INDEX_ROOT, 0, says);
        }
        if info.reserved != 0 {
            self.broken(&rules::INDEX_ROOT, 0, format!("the reserved word is {:#x}", info.reserved));
        }
        if info.flags & 1 != 0 {
            self.broken(&rules::INDEX_ROOT, 0, format!("the unknown flag 1 is set ({:#x})", info.flags));
        }
        if info.hash(self.dir).is_none() {
            let says = match info.hash_code {
                0..=2 => format!("hash version {}, where hashes need a key", info.hash_code),
                6 => "hash version 6 (SipHash), where hashes need no key".to_owned(),
                other => format!("hash version {other} does not exist"),
            };
            self.broken(&rules::INDEX_HASH, 0, says);
        }
        let deep = info.levels > self.format.levels_max();
        if deep {
            let says =
                format!("{} levels below the root, {} are allowed", info.levels, self.format.levels_max());
            self.broken(&rules::INDEX_DEPTH, 0, says);
        }
        if info.info_len != 8 {
            self.broken(&rules::INDEX_ROOT, 0, format!("the info has {} bytes instead of 8", info.info_len));
        }
        !deep && info.info_len == 8
    }

    /// Checks one index block, `level` levels below the root. Its names must have hashes from `range.0` to
    /// below `range.1`, or equal to `range.1` if its lowest bit is set.
    fn node(&mut self, lblk: u32, block: &[u8], level: u32, range: (u32, u32)) {
        let (kind, at) =
            if level == 0 { (DxKind::Root, ROOT_ENTRIES_AT) } else { (DxKind::Node, NODE_ENTRIES_AT) };
        let (entries, _) = block[at..].as_chunks::<8>();
        let half = |i: usize| usize::from(u16::from_le_bytes([entries[0][i], entries[0][i + 1]]));
        let (limit, count, fits) = (half(0), half(2), self.format.limit(kind));
        if limit != fits {
            self.broken(&rules::INDEX_LIMIT, lblk, format!("the limit is {limit}, {fits} entries fit"));
        }
        if count == 0 || count > fits {
            self.broken(&rules::INDEX_LIMIT, lblk, format!("the count is {count}, {fits} entries fit"));
        } else if limit == fits && self.format.verify(block, self.dir.note.seed).is_err() {
            self.broken(&rules::INDEX_CHECKSUM, lblk, "the checksum does not match the block's bytes");
        }
        let word = |i: usize, at: usize| {
            let entry = &entries[i];
            u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]])
        };
        let count = count.clamp(1, fits);
        let mut low = range.0;
        for i in 0..count {
            let next = if i + 1 < count { word(i + 1, 0) } else { range.1 };
            if next & !1 < low & !1 || next & !1 > range.1 {
                let says =
                    format!("entry {} has the hash {next:#x}, between {low:#x} and {:#x}", i + 1, range.1);
                self.broken(&rules::INDEX_ORDER, lblk, says);
            }
            self.child(lblk, word(i, 4) & CHILD_MASK, level, (low, next));
            low = next;
        }
    }

    fn child(&mut self, parent: u32, child: u32, level: u32, range: (u32, u32)) {
        let Some(seen) = self.seen.get(child as usize).copied().filter(|_| child != 0) else {
            let says = format!("an entry leads to block {child}, the directory has {}", self.seen.len());
            return self.broken(&rules::INDEX_CHILD, parent, says);
        };
        if std::mem::replace(&mut self.visited[child as usize], true) {
            return self.broken(&rules::INDEX_TWICE, child, "two index entries lead to this block");
        }
        match (seen, level < self.levels) {
            (Seen::Nothing, _) => self.sound = false, // a hole or unreadable, which was said
            (Seen::Node, true) => {
                if let Some(block) = self.source.block(child).map(<[u8]>::to_vec) {
                    self.node(child, &block, level + 1, range);
                }
            }
            (Seen::Leaf { min, max }, false) => self.leaf(child, (min, max), range),
            (Seen::Node, false) => {
                let says = format!("an index block stands where {} levels lead to leaves", self.levels);
                self.broken(&rules::INDEX_DEPTH, child, says);
            }
            (Seen::Leaf { .. }, true) => {
                let says = format!(
                    "a leaf stands {} levels below the root, leaves stand {}",
                    level + 1,
                    self.levels + 1
                );
                self.broken(&rules::INDEX_DEPTH, child, says);
            }
        }
    }

    fn leaf(&mut self, lblk: u32, (min, max): (u32, u32), range: (u32, u32)) {
        self.order.push((lblk, range.0));
        if min > max {
            return; // no names, or none whose hash is known
        }
        let (low, high) = (range.0 & !1, range.1 & !1);
        if min < low || max > high {
            let says =
                format!("names have hashes from {min:#x} to {max:#x}, the index says {low:#x} to {high:#x}");
            self.broken(&rules::INDEX_RANGE, lblk, says);
        } else if max == high && range.1 & 1 == 0 {
            let says =
                format!("a name has the hash {max:#x} that the next leaf begins with, which is not marked");
            self.broken(&rules::INDEX_CONTINUATION, lblk, says);
        }
    }
}
