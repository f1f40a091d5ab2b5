//! Fast commits: what their records say about inodes, maps and names becomes one transaction.
//!
//! ```text
//! INODE          the raw inode, except i_block, which keeps the tree on the device
//! ADD/DEL_RANGE  pieces of the file's map                                            --> Outcome
//! CREAT, LINK, UNLINK   names of a directory                                             |
//!                                                                                        v
//!                                                        on the device: old -> new -> `transaction`
//! ```
//!
//! Records contain outcomes, and the last record of an inode, a range or a name counts. So the records are
//! first reduced to one outcome in memory, which is then compared with what is on the device.
//!
//! Does **not** own: which records are valid (see `journal`).
//!
//! Invariants
//! 1. An invalid record is reported and skipped; the others are applied.
//! 2. Applying records twice has the same result.
//!
//! Source: kernel Documentation/filesystems/ext4/journal.rst, "Fast commits".

mod transaction;

use std::collections::{BTreeMap, HashMap};

use extant_base::{Ino, Lblk, Pblk};
use extant_inode::Inodes;
use extant_jbd2_format::fast_commit::{NameChange, Record};
use extant_journal::FastCommitPlan;
use extant_mapping::{MapState, Mapped};
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::{self as layout, flags};
use extant_ondisk::time::Timestamp;

use super::problems::Problems;
use super::sweep;
use super::wake::{Ground, wake};
use crate::OpenFault;
use crate::ops::with_dir;

/// Most map pieces that are read and kept in memory, for all inodes together.
const PIECES_MAX: usize = 1 << 22;
/// Byte range of i_block within an inode.
const I_BLOCK: std::ops::Range<usize> = 40..100;
/// The root of an empty extent tree.
const EMPTY_ROOT: [u8; 12] = [0x0A, 0xF3, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0];
/// Why an inode is left unchanged.
const TOO_MANY: &str = "too many pieces in the maps of all inodes; shown as it stands";

/// A file's map while records are applied: non-overlapping pieces by their first block, without holes.
type Pieces = BTreeMap<u32, Mapped>;

/// Makes the changes of all records in one transaction, and commits it.
pub(super) fn apply(
    ground: Ground,
    commits: &FastCommitPlan,
    problems: &mut Problems,
) -> Result<(), OpenFault> {
    let inodes = ground.inodes();
    let outcome = Outcome::of(commits, &inodes, problems);
    let orphan_file = sweep::load_file(&inodes)?;
    let orphans = sweep::find(&inodes, orphan_file.as_ref()).all();
    let (writer, _inodes) = wake(ground, inodes, orphan_file)?;
    transaction::make(&writer, &outcome, &orphans).map_err(|fault| {
        let help = "mount the file system once with the kernel, or run `e2fsck -p`";
        OpenFault::Journal(format!("the journal's fast commits cannot be written back: {fault}; {help}"))
    })?;
    writer.journal.close().map_err(OpenFault::journal)
}

/// What all records together say.
struct Outcome {
    inodes: HashMap<Ino, ChangedInode>,
    names: ChangedNames,
}

/// What the records say about an inode.
#[derive(Debug, Clone, Default)]
struct ChangedInode {
    /// All `inode_size` bytes of the inode; its checksum is out of date.
    raw: Option<Vec<u8>>,
    /// Its complete map, sorted, without holes; `None` if the tree on the device is still valid.
    map: Option<Vec<Mapped>>,
}

/// Names that fast commits added or removed.
#[derive(Debug, Default)]
struct ChangedNames {
    dirs: HashMap<Ino, DirChange>,
}

/// A directory's changed names and their inodes; `None` for a removed name.
type DirNames = BTreeMap<Vec<u8>, Option<Ino>>;

#[derive(Debug, Default)]
struct DirChange {
    /// The directory itself was created: its blocks do not count.
    is_new: bool,
    names: DirNames,
}

impl ChangedNames {
    /// Returns whether a fast commit created this directory.
    fn is_new(&self, dir: Ino) -> bool {
        self.dirs.get(&dir).is_some_and(|change| change.is_new)
    }

    /// The change of a name; `None` if the directory's blocks have the answer.
    fn lookup(&self, dir: Ino, name: &[u8]) -> Option<Option<Ino>> {
        let change = self.dirs.get(&dir)?;
        match change.names.get(name) {
            Some(ino) => Some(*ino),
            None => change.is_new.then_some(None),
        }
    }

    /// The directories with changed names, by number: whether the directory was created, and its changes.
    fn all(&self) -> Vec<(Ino, bool, &DirNames)> {
        let mut all: Vec<_> =
            self.dirs.iter().map(|(dir, change)| (*dir, change.is_new, &change.names)).collect();
        all.sort_unstable_by_key(|(dir, ..)| *dir);
        all
    }

    /// Removes names of inodes that have no links in their last record: a file that was created, opened and
    /// unlinked. Returns the names in no particular order.
    fn drop_unlinked(&mut self, inodes: &HashMap<Ino, ChangedInode>) -> Vec<String> {
        let links = |ino: Ino| {
            let raw = inodes.get(&ino)?.raw.as_deref()?;
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

impl Outcome {
    /// Reduces the records to one outcome, on top of what `on_device` shows. An inode whose map has too many
    /// pieces is left unchanged.
    fn of(plan: &FastCommitPlan, on_device: &Inodes, problems: &mut Problems) -> Self {
        let shared = on_device.shared();
        let mut applier = Applier {
            on_device,
            format: extant_dir::Format::of(&shared.sb, &shared.geometry),
            inodes: HashMap::new(),
            maps: HashMap::new(),
            pieces_left: PIECES_MAX,
            names: ChangedNames::default(),
        };
        for record in plan.records() {
            if let Err(why) = applier.apply(&record) {
                problems.push(format!("fast commit: {why}"));
            }
        }
        for (ino, map) in std::mem::take(&mut applier.maps) {
            if let Some(mut map) = map {
                applier.cut_behind_end(ino, &mut map);
                applier.inodes.entry(ino).or_default().map = Some(map.into_values().collect());
            }
        }
        for name in applier.names.drop_unlinked(&applier.inodes) {
            problems.push(format!(
                "fast commit: name {name:?} was given to an inode that has no links; left out"
            ));
        }
        Self { inodes: applier.inodes, names: applier.names }
    }

    /// Returns whether a record has the fields of this inode.
    fn has_record(&self, ino: Ino) -> bool {
        self.inodes.get(&ino).is_some_and(|changed| changed.raw.is_some())
    }

    /// The last change of any inode that the records know.
    fn last_change(&self) -> Option<Timestamp> {
        let raws = self.inodes.values().filter_map(|changed| changed.raw.as_deref());
        let times = raws.filter_map(|raw| Some(layout::Inode::decode(raw).ok()?.ctime));
        times.max_by_key(|time| (time.seconds, time.nanos))
    }
}

struct Applier<'a> {
    on_device: &'a Inodes,
    format: extant_dir::Format,
    inodes: HashMap<Ino, ChangedInode>,
    /// `None` for a map that is too large: the inode is left unchanged.
    maps: HashMap<Ino, Option<Pieces>>,
    pieces_left: usize,
    names: ChangedNames,
}

impl Applier<'_> {
    fn apply(&mut self, record: &Record<'_>) -> Result<(), String> {
        match *record {
            Record::Inode { ino, raw } => self.inode(ino, raw),
            Record::AddRange { ino, lblk, len_blocks, unwritten, pblk } => {
                let blocks = self.on_device.shared().geometry.blocks;
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
        if let Some(raw) = self.inodes.get(&ino).and_then(|known| known.raw.clone()) {
            return Ok(raw);
        }
        self.on_device.stored(ino).map_err(|fault| fault.to_string())
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
        self.inodes.entry(ino).or_default().raw = Some(raw);
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
            let shared = self.on_device.shared();
            let seed = shared.inode_seed(ino, fields.generation);
            let tree = extant_mapping::FileMap { ino, i_block: fields.block, extents: true, seed };
            let (mut pieces, mut is_cut_short) = (Pieces::new(), false);
            let walked = tree.walk(&shared.buffers, Lblk(0), &mut |piece| {
                match self.pieces_left.checked_sub(1) {
                    Some(left) => self.pieces_left = left,
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
        self.inodes.remove(&ino);
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
            Some(left) => self.pieces_left = left,
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
        let raw = self.inodes.get(&ino).and_then(|known| known.raw.as_deref());
        let Some(Ok(fields)) = raw.map(layout::Inode::decode) else { return };
        if FileType::from_mode(fields.mode) != FileType::Regular || fields.has_flag(flags::VERITY) {
            return;
        }
        let end = self.on_device.shared().geometry.block_size.blocks_for(fields.size);
        map.retain(|at, piece| u64::from(*at) < end || !matches!(piece.state, MapState::Written(_)));
        for piece in map.values_mut().filter(|piece| matches!(piece.state, MapState::Written(_))) {
            piece.len = (end - u64::from(piece.lblk.0)).min(piece.len.into()) as u32;
        }
    }

    /// The inode that a name leads to now.
    fn find(&self, dir: Ino, name: &[u8]) -> Option<Ino> {
        if let Some(changed) = self.names.lookup(dir, name) {
            return changed;
        }
        let inode = self.on_device.get(dir).ok()?;
        let found =
            with_dir(self.on_device.shared(), &self.format, &inode, |dir| dir.lookup(&self.format, name));
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
            self.inodes.entry(ino).or_default().raw = Some(raw);
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
