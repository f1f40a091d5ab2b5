//! Fast commits, applied in memory: their changes of inodes, maps and names override the tables and trees.
//!
//! ```text
//! INODE          the raw inode, except i_block, which keeps the tree on the device    -> Overrides
//! ADD/DEL_RANGE  pieces of the file's map                                             -> Overrides
//! CREAT, LINK, UNLINK   names of a directory                                          -> NameChanges
//! ```
//!
//! Does **not** own: which records are valid (see `journal`); writing the changes back, with bitmaps and
//! counts (see `write::fast_commits`).
//!
//! Invariants
//! 1. An invalid record is reported and skipped; the others are applied.
//! 2. Applying records twice has the same result: they contain outcomes.
//!
//! Source: kernel Documentation/filesystems/ext4/journal.rst, "Fast commits".

use std::collections::{BTreeMap, HashMap};

use extant_base::{Ino, Lblk, Pblk};
use extant_inode::{Inodes, Overrides};
use extant_jbd2_format::fast_commit::{NameChange, Record};
use extant_journal::FastCommitPlan;
use extant_mapping::{MapState, Mapped};
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::{self as layout, flags};

use crate::ops::with_dir;
use crate::problems::Problems;

/// Byte range of i_block within an inode.
const I_BLOCK: std::ops::Range<usize> = 40..100;
/// The root of an empty extent tree.
const EMPTY_ROOT: [u8; 12] = [0x0A, 0xF3, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0];
/// Why an inode is left unchanged.
const TOO_MANY: &str = "too many pieces in the maps of all inodes; shown as it stands";

/// A file's map while records are applied: non-overlapping pieces by their first block, without holes.
type Pieces = BTreeMap<u32, Mapped>;

/// Names that fast commits added or removed.
#[derive(Debug, Default)]
pub(crate) struct NameChanges {
    dirs: HashMap<Ino, DirChange>,
}

/// A directory's changed names and their inodes; `None` for a removed name.
pub(crate) type DirNames = BTreeMap<Vec<u8>, Option<Ino>>;

#[derive(Debug, Default)]
struct DirChange {
    /// The directory itself was created: its blocks do not count.
    is_new: bool,
    names: DirNames,
}

impl NameChanges {
    /// Returns whether the names of this directory differ from its blocks.
    pub(crate) fn concern(&self, dir: Ino) -> bool {
        self.dirs.contains_key(&dir)
    }

    /// Returns whether a fast commit created this directory.
    pub(crate) fn is_new(&self, dir: Ino) -> bool {
        self.dirs.get(&dir).is_some_and(|change| change.is_new)
    }

    /// The change of a name; `None` if the directory's blocks have the answer.
    pub(crate) fn lookup(&self, dir: Ino, name: &[u8]) -> Option<Option<Ino>> {
        let change = self.dirs.get(&dir)?;
        match change.names.get(name) {
            Some(ino) => Some(*ino),
            None => change.is_new.then_some(None),
        }
    }

    /// The added names, in byte order.
    pub(crate) fn names(&self, dir: Ino) -> impl Iterator<Item = (&[u8], Ino)> {
        let names = self.dirs.get(&dir).into_iter().flat_map(|change| &change.names);
        names.filter_map(|(name, ino)| Some((name.as_slice(), (*ino)?)))
    }

    /// The directories with changed names, by number: whether the directory was created, and its changes.
    pub(crate) fn all(&self) -> Vec<(Ino, bool, &DirNames)> {
        let mut all: Vec<_> =
            self.dirs.iter().map(|(dir, change)| (*dir, change.is_new, &change.names)).collect();
        all.sort_unstable_by_key(|(dir, ..)| *dir);
        all
    }

    /// Removes names of inodes that have no links in their last record: a file that was created, opened and
    /// unlinked. Returns the names in no particular order.
    fn drop_unlinked(&mut self, overrides: &Overrides) -> Vec<String> {
        let links = |ino: Ino| {
            let raw = overrides.get(&ino)?.raw.as_deref()?;
            Some(layout::Inode::decode(raw).ok()?.links)
        };
        let mut dropped = Vec::new();
        for (name, to) in self.dirs.values_mut().flat_map(|change| &mut change.names) {
            if to.is_some_and(|ino| links(ino) == Some(0)) {
                *to = None;
                dropped.push(String::from_utf8_lossy(name).into_owned());
            }
        }
        dropped
    }

    fn set(&mut self, dir: Ino, name: &[u8], ino: Option<Ino>) {
        self.dirs.entry(dir).or_default().names.insert(name.to_vec(), ino);
    }
}

/// Applies the records on top of what `inodes` shows. Takes the pieces of maps from `pieces_left`. An inode
/// with a map that exceeds that is left unchanged.
pub(crate) fn apply(
    plan: &FastCommitPlan,
    inodes: &Inodes,
    format: &extant_dir::Format,
    pieces_left: &mut usize,
    problems: &mut Problems,
) -> (Overrides, NameChanges) {
    let mut applier = Applier {
        inodes,
        format,
        overrides: Overrides::new(),
        maps: HashMap::new(),
        pieces_left,
        names: NameChanges::default(),
    };
    for record in plan.records() {
        if let Err(why) = applier.apply(&record) {
            problems.push(format!("fast commit: {why}"));
        }
    }
    for (ino, map) in std::mem::take(&mut applier.maps) {
        if let Some(mut map) = map {
            applier.cut_behind_end(ino, &mut map);
            applier.overrides.entry(ino).or_default().map = Some(map.into_values().collect());
            applier.count_blocks(ino);
        }
    }
    for name in applier.names.drop_unlinked(&applier.overrides) {
        problems
            .push(format!("fast commit: name {name:?} was given to an inode that has no links; left out"));
    }
    (applier.overrides, applier.names)
}

struct Applier<'a> {
    inodes: &'a Inodes,
    format: &'a extant_dir::Format,
    overrides: Overrides,
    /// `None` for a map that is too large: the inode is left unchanged.
    maps: HashMap<Ino, Option<Pieces>>,
    pieces_left: &'a mut usize,
    names: NameChanges,
}

impl Applier<'_> {
    fn apply(&mut self, record: &Record<'_>) -> Result<(), String> {
        match *record {
            Record::Inode { ino, raw } => self.inode(ino, raw),
            Record::AddRange { ino, lblk, len_blocks, unwritten, pblk } => {
                let blocks = self.inodes.shared().geometry.blocks;
                let end = pblk.checked_add(u64::from(len_blocks)).filter(|end| end.0 <= blocks);
                end.ok_or_else(|| format!("inode {ino}: blocks from {pblk} on lie outside the file system"))?;
                let state = if unwritten { MapState::Unwritten(pblk) } else { MapState::Written(pblk) };
                self.map_range(ino, Mapped { lblk, len: len_blocks.into(), state })
            }
            Record::DelRange { ino, lblk, len_blocks } => {
                self.map_range(ino, Mapped { lblk, len: len_blocks, state: MapState::Hole })
            }
            Record::Name { change, parent, ino, name } => self.name(change, parent, ino, name),
            Record::Pad | Record::Head { .. } | Record::Tail { .. } => Ok(()),
        }
    }

    /// The inode's current bytes: as changed, or as stored.
    fn raw(&self, ino: Ino) -> Result<Vec<u8>, String> {
        if let Some(raw) = self.overrides.get(&ino).and_then(|known| known.raw.clone()) {
            return Ok(raw);
        }
        self.inodes.stored(ino).map_err(|fault| fault.to_string())
    }

    fn inode(&mut self, ino: Ino, new: &[u8]) -> Result<(), String> {
        self.not_refused(ino)?;
        let stored = self.raw(ino)?;
        let mut raw = vec![0; stored.len()];
        let len = new.len().min(raw.len());
        raw[..len].copy_from_slice(&new[..len]);
        // Bytes past the record, mostly attributes, stay.
        raw[len..].copy_from_slice(&stored[len..]);
        let fields = layout::Inode::decode(&raw).map_err(|fact| format!("inode {ino}: {fact}"))?;
        let extents = fields.has_flag(flags::EXTENTS);
        // The number was reused: the tree there belongs to the old inode.
        let is_other = layout::Inode::decode(&stored).is_ok_and(|old| old.generation != fields.generation);
        if is_other {
            self.maps.remove(&ino);
        }
        if !fields.has_flag(flags::INLINE_DATA) {
            raw[I_BLOCK].copy_from_slice(&stored[I_BLOCK]);
        }
        if extents && (is_other || raw[I_BLOCK][..2] != EMPTY_ROOT[..2]) {
            raw[I_BLOCK].fill(0);
            raw[I_BLOCK][..EMPTY_ROOT.len()].copy_from_slice(&EMPTY_ROOT);
        }
        self.overrides.entry(ino).or_default().raw = Some(raw);
        if extents {
            // The map is for counting blocks. Reading the file later reports an unreadable tree.
            let _ = self.map(ino);
        }
        self.not_refused(ino)
    }

    /// The file's map in memory, read from its tree the first time.
    fn map(&mut self, ino: Ino) -> Result<&mut Pieces, String> {
        self.not_refused(ino)?;
        let raw = self.raw(ino)?;
        let fields = layout::Inode::decode(&raw).map_err(|fact| format!("inode {ino}: {fact}"))?;
        if !fields.has_flag(flags::EXTENTS) {
            return Err(format!("inode {ino}: has no extents"));
        }
        if !self.maps.contains_key(&ino) {
            let shared = self.inodes.shared();
            let seed = shared.inode_seed(ino, fields.generation);
            let tree = extant_mapping::FileMap { ino, i_block: fields.block, extents: true, seed };
            let (mut pieces, mut is_cut_short) = (Pieces::new(), false);
            let walked = tree.walk(&shared.buffers, Lblk(0), &mut |piece| {
                match self.pieces_left.checked_sub(1) {
                    Some(left) => *self.pieces_left = left,
                    None => is_cut_short = true,
                }
                pieces.insert(piece.lblk.0, piece);
                (!is_cut_short).then_some(())
            });
            walked.map_err(|fault| fault.to_string())?;
            if is_cut_short {
                return Err(self.refuse(ino));
            }
            self.maps.insert(ino, Some(pieces));
        }
        let known = self.maps.get_mut(&ino).and_then(Option::as_mut);
        known.ok_or_else(|| format!("inode {ino}: {TOO_MANY}"))
    }

    /// Drops the changes of an inode with too large a map. It stays unchanged from now on.
    fn refuse(&mut self, ino: Ino) -> String {
        self.maps.insert(ino, None);
        self.overrides.remove(&ino);
        format!("inode {ino}: {TOO_MANY}")
    }

    fn not_refused(&self, ino: Ino) -> Result<(), String> {
        match self.maps.get(&ino) {
            Some(None) => Err(format!("inode {ino}: {TOO_MANY}")),
            _ => Ok(()),
        }
    }

    fn map_range(&mut self, ino: Ino, new: Mapped) -> Result<(), String> {
        let map = self.map(ino)?;
        let before = map.len();
        put(map, new);
        let more = map.len().saturating_sub(before);
        match self.pieces_left.checked_sub(more) {
            Some(left) => *self.pieces_left = left,
            None => return Err(self.refuse(ino)),
        }
        Ok(())
    }

    /// Clears the map of an inode without links: a later record may use its number for another file, and
    /// keeps the tree that it finds.
    fn empty(&mut self, ino: Ino, fields: layout::Inode) {
        if fields.has_flag(flags::EXTENTS)
            && let Ok(map) = self.map(ino)
        {
            map.clear();
        }
    }

    /// Removes written blocks past the end of the file from its map: the kernel does not log the removal of
    /// blocks of a file that was truncated and written again. Unwritten blocks past the end are valid
    /// preallocation.
    fn cut_behind_end(&self, ino: Ino, map: &mut Pieces) {
        let raw = self.overrides.get(&ino).and_then(|known| known.raw.as_deref());
        let Some(Ok(fields)) = raw.map(layout::Inode::decode) else { return };
        if FileType::from_mode(fields.mode) != FileType::Regular || fields.has_flag(flags::VERITY) {
            return;
        }
        let end = self.inodes.shared().geometry.block_size.blocks_for(fields.size);
        map.retain(|at, piece| u64::from(*at) < end || !matches!(piece.state, MapState::Written(_)));
        for piece in map.values_mut().filter(|piece| matches!(piece.state, MapState::Written(_))) {
            piece.len = (end - u64::from(piece.lblk.0)).min(piece.len.into()) as u32;
        }
    }

    /// Sets i_blocks to what the map needs, as the kernel does at replay.
    fn count_blocks(&mut self, ino: Ino) {
        let shared = self.inodes.shared();
        let geometry = &shared.geometry;
        let Some(known) = self.overrides.get_mut(&ino) else { return };
        let (Some(raw), Some(map)) = (known.raw.as_mut(), known.map.as_ref()) else { return };
        let Ok(mut fields) = layout::Inode::decode(raw) else { return };
        if !fields.has_flag(flags::EXTENTS) {
            return;
        }
        let shape = extant_ondisk::extent::TreeShape::for_extents(map.len(), geometry.block_size);
        let data: u64 = map.iter().map(|piece| u64::from(piece.len)).sum();
        let sectors = (data + shape.blocks() as u64) << (geometry.block_size.log2() - 9);
        shared.set_sectors(&mut fields, sectors);
        fields.encode(raw);
    }

    /// The inode that a name leads to now.
    fn find(&self, dir: Ino, name: &[u8]) -> Option<Ino> {
        if let Some(changed) = self.names.lookup(dir, name) {
            return changed;
        }
        let inode = self.inodes.get(dir).ok()?;
        let found = with_dir(self.inodes.shared(), self.format, &inode, |dir| dir.lookup(self.format, name));
        found.ok()?.ok()?
    }

    fn name(&mut self, change: NameChange, parent: Ino, ino: Ino, name: &[u8]) -> Result<(), String> {
        let there = self.find(parent, name);
        let mut links = |by: i32| -> Result<layout::Inode, String> {
            let mut raw = self.raw(ino)?;
            let mut fields = layout::Inode::decode(&raw).map_err(|fact| format!("inode {ino}: {fact}"))?;
            fields.links = match change {
                NameChange::Create => 1,
                _ => u16::try_from(i32::from(fields.links) + by).unwrap_or(fields.links),
            };
            fields.encode(&mut raw);
            self.overrides.entry(ino).or_default().raw = Some(raw);
            Ok(fields)
        };
        match change {
            NameChange::Unlink => {
                // The name may be removed already, or lead to another inode by now. In the latter case the
                // kernel counts the link.
                let Some(there) = there else { return Ok(()) };
                // A deleted inode needs no count.
                if let Ok(fields) = links(-1)
                    && fields.links == 0
                {
                    self.empty(ino, fields);
                }
                if there == ino {
                    self.names.set(parent, name, None);
                }
            }
            NameChange::Link => {
                if there.is_none() {
                    links(1)?;
                }
                self.names.set(parent, name, Some(ino));
            }
            NameChange::Create => {
                let mode = links(0)?.mode;
                self.names.set(parent, name, Some(ino));
                if mode & 0xF000 == 0x4000 {
                    let made = self.names.dirs.entry(ino).or_default();
                    made.is_new = true;
                    made.names.insert(b".".to_vec(), Some(ino));
                    made.names.insert(b"..".to_vec(), Some(parent));
                }
            }
        }
        Ok(())
    }
}

/// Overwrites a range of a map with `new`.
fn put(map: &mut Pieces, new: Mapped) {
    if new.len == 0 {
        return;
    }
    let (start, end) = (new.lblk.0, new.end());
    let before = map.range(..start).next_back().map(|(_, piece)| *piece);
    if let Some(before) = before.filter(|before| before.end() > u64::from(start)) {
        map.insert(before.lblk.0, Mapped { len: start - before.lblk.0, ..before });
        put_rest(map, before, end);
    }
    while let Some(within) = map.range(start..).next().map(|(_, piece)| *piece) {
        if u64::from(within.lblk.0) >= end {
            break;
        }
        map.remove(&within.lblk.0);
        put_rest(map, within, end);
    }
    if new.state != MapState::Hole {
        map.insert(start, new);
    }
}

/// Restores the part of `piece` from block `end` on.
fn put_rest(map: &mut Pieces, piece: Mapped, end: u64) {
    let Ok(lblk) = u32::try_from(end) else { return };
    if piece.end() <= end {
        return;
    }
    let skip = lblk - piece.lblk.0;
    let moved = |block: Pblk| Pblk(block.0 + u64::from(skip));
    let state = match piece.state {
        MapState::Hole => MapState::Hole,
        MapState::Written(block) => MapState::Written(moved(block)),
        MapState::Unwritten(block) => MapState::Unwritten(moved(block)),
    };
    map.insert(lblk, Mapped { lblk: Lblk(lblk), len: piece.len - skip, state });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn put_is_what_an_array_of_blocks_does(
            changes in proptest::collection::vec((0u32..60, 1u32..20, 0u8..3, 0u64..1000), 1..40),
        ) {
            let mut map = Pieces::new();
            let mut blocks = [MapState::Hole; 100];
            for (lblk, len, state, block) in changes {
                let state_at = |at: u64| match state {
                    0 => MapState::Hole,
                    1 => MapState::Written(Pblk(block + at)),
                    _ => MapState::Unwritten(Pblk(block + at)),
                };
                put(&mut map, Mapped { lblk: Lblk(lblk), len, state: state_at(0) });
                for at in 0..len {
                    blocks[(lblk + at) as usize] = state_at(at.into());
                }
            }
            let mut seen = [MapState::Hole; 100];
            let mut next = 0;
            for (at, piece) in &map {
                prop_assert_eq!(*at, piece.lblk.0);
                prop_assert!(piece.lblk.0 >= next && piece.len > 0);
                next = piece.lblk.0 + piece.len;
                for at in 0..piece.len {
                    seen[(piece.lblk.0 + at) as usize] = match piece.state {
                        MapState::Hole => unreachable!(),
                        MapState::Written(block) => MapState::Written(Pblk(block.0 + u64::from(at))),
                        MapState::Unwritten(block) => MapState::Unwritten(Pblk(block.0 + u64::from(at))),
                    };
                }
            }
            prop_assert_eq!(seen, blocks);
        }
    }
}
