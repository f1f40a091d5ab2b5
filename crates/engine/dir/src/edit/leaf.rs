//! A block of entries, as changes see it.

use extant_base::Malformed;
use extant_ondisk::dirent::{DirFormat, min_rec_len};
use extant_ondisk::hash::NameHash;

use super::filters::Key;
use crate::order::Hasher;

/// An entry of a leaf: its hash above its offset in words of 4 bytes, so that sorting yields the order of
/// hashes. The lowest bits are the rest of its [key](Key), or 0 if unknown.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LeafEntry(u64);

impl LeafEntry {
    pub(super) fn new(hash: NameHash, at: usize) -> Self {
        Self::noted(hash.hash, at).known_as(Key::of(hash).tag())
    }

    /// An entry of which only the hash is known.
    pub(super) fn noted(hash: u32, at: usize) -> Self {
        Self(u64::from(hash) << 32 | (at as u64 / 4) << 16)
    }

    fn known_as(self, tag: u16) -> Self {
        Self(self.0 | u64::from(tag))
    }

    pub(super) fn hash(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub(super) fn at(self) -> usize {
        usize::from((self.0 >> 16) as u16) * 4
    }

    /// The same entry at another offset.
    pub(super) fn moved_to(self, at: usize) -> Self {
        Self::noted(self.hash(), at).known_as(self.0 as u16)
    }

    /// Its key in the leaf's filter, if known.
    pub(super) fn key(self) -> Option<Key> {
        Key::with(self.hash(), self.0 as u16)
    }
}

/// Collects the entries of a block from byte `start` on, with their hashes.
pub(super) fn map(
    format: &DirFormat,
    hasher: &Hasher,
    block: &[u8],
    start: usize,
    into: &mut Vec<LeafEntry>,
) -> Result<(), Malformed> {
    into.clear();
    for entry in format.entries(block) {
        let entry = entry?;
        if entry.is_used() && entry.offset >= start {
            into.push(LeafEntry::new(hasher.hash(entry.name), entry.offset));
        }
    }
    Ok(())
}

/// Checks that these entries are in the block and fit into one together. They may be stale if a damaged index
/// refers to a block both as a node and as a leaf.
pub(super) fn check(format: &DirFormat, block: &[u8], entries: &[LeafEntry]) -> Result<(), Malformed> {
    let mut sum = 0;
    for entry in entries {
        let len = block.get(entry.at() + 6).map_or(usize::MAX, |len| min_rec_len(usize::from(*len), false));
        sum += len.min(block.len() + 1);
        let is_inside = len <= block.len().saturating_sub(entry.at());
        Malformed::unless(
            is_inside,
            "directory block",
            "entries must be where they were",
            entry.at() as u64,
        )?;
    }
    Malformed::unless(
        sum <= format.usable_len(),
        "directory block",
        "entries must be as long as they were",
        sum as u64,
    )
}

/// The index at which a sorted leaf is cut: the entries from there on move. With two or more entries, at
/// least one stays and one moves.
///
/// From the end, as many entries move as fit into half a block; if that is all of them, half of their number.
pub(super) fn cut(block: &[u8], sorted: &[LeafEntry]) -> usize {
    let mut moved = 0;
    let mut at = sorted.len();
    while at > 0 {
        let size = min_rec_len(usize::from(block[sorted[at - 1].at() + 6]), false);
        if moved + size / 2 > block.len() / 2 {
            break;
        }
        moved += size;
        at -= 1;
    }
    if at == 0 || at == sorted.len() { sorted.len() / 2 } else { at }
}

/// The offsets of "." (0) and "..", the first entries of block 0.
pub(super) fn dots(format: &DirFormat, block: &[u8]) -> Result<(usize, usize), Malformed> {
    let mut entries = format.entries(block);
    let mut offsets = [0; 2];
    for (name, offset) in [&b"."[..], b".."].into_iter().zip(&mut offsets) {
        let entry = entries.next().transpose()?;
        let entry = entry.filter(|entry| entry.is_used() && entry.name == name);
        *offset = entry
            .ok_or(Malformed::new("directory", "must begin with \".\" and \"..\"", *offset as u64))?
            .offset;
    }
    Ok((offsets[0], offsets[1]))
}

/// Whether a block holds names besides "." and "..". The first block must start with those.
pub(super) fn holds_names(format: &DirFormat, block: &[u8], is_first: bool) -> Result<bool, Malformed> {
    if is_first {
        dots(format, block)?;
    }
    for entry in format.entries(block) {
        let entry = entry?;
        if entry.is_used() && !entry.is_dot_or_dotdot() {
            return Ok(true);
        }
    }
    Ok(false)
}
