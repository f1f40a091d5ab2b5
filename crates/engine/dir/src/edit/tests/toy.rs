//! A directory in a block cache, and a checker of its structure that shares only the on-disk layouts with the
//! code under test.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use extant_base::{BlockSize, Malformed, Pblk};
use extant_buffer::{Buffers, Direct, Edit, Kind, Owner, Seal};
use extant_device::MemDevice;
use extant_memory::Budget;
use extant_ondisk::Features;
use extant_ondisk::dirent::{min_rec_len, tail_checksum};
use extant_ondisk::hash::{HashVersion, dirhash};
use extant_ondisk::htree::{DxEntries, DxFormat, DxKind};

use super::super::*;
use crate::edit::leaf::LeafEntry;
use crate::{Cursor, Dir, Storage};

pub(super) const INO: Ino = Ino(12);
pub(super) const PARENT: Ino = Ino(2);
const HASH_SEED: [u32; 4] = [1, 2, 3, 4];

/// The expected names of a directory.
pub(super) type Model = BTreeMap<Vec<u8>, u32>;

/// A directory of which the logical blocks are the device's blocks.
pub(super) struct Toy {
    pub(super) buffers: Arc<Buffers>,
    pub(super) format: Format,
    pub(super) len: Cell<u32>,
    pub(super) blocks_max: Cell<u32>,
    pub(super) indexed: Cell<bool>,
    /// Block operations since the counters were last reset: changes, appends, pops.
    pub(super) done: Cell<(u32, u32, u32)>,
    /// An id per block; every appended block gets a new one.
    ids: RefCell<Vec<u64>>,
    next_id: Cell<u64>,
}

/// The properties of a toy.
#[derive(Debug, Clone, Copy)]
pub(super) struct Like {
    pub(super) block_size: BlockSize,
    pub(super) csum: bool,
    pub(super) filetype: bool,
    pub(super) large_dir: bool,
    pub(super) version: HashVersion,
}

impl Default for Like {
    fn default() -> Self {
        let (block_size, version) = (BlockSize::MIN, HashVersion::HalfMd4);
        Self { block_size, csum: true, filetype: true, large_dir: true, version }
    }
}

impl Toy {
    pub(super) fn new(like: Like) -> Self {
        let features = Features {
            incompat: if like.filetype { Features::FILETYPE } else { 0 }
                | if like.large_dir { Features::LARGEDIR } else { 0 },
            ro_compat: if like.csum { Features::METADATA_CSUM } else { 0 },
            compat: Features::DIR_INDEX,
        };
        let blocks = 4u64 << 20;
        let device = MemDevice::new(blocks * like.block_size.bytes());
        let format = Format {
            entries: DirFormat::new(like.block_size, &features, u32::MAX),
            index: DxFormat::new(like.block_size, &features),
            features,
            hash_seed: HASH_SEED,
            unsigned_hash: like.version.is_unsigned(),
            default_hash: Some(like.version),
        };
        let buffers = Buffers::new(Arc::new(device), like.block_size, blocks, &Budget::new(4 << 30));
        let toy = Self {
            buffers,
            format,
            len: Cell::new(0),
            blocks_max: Cell::new(u32::MAX),
            indexed: Cell::new(false),
            done: Cell::default(),
            ids: RefCell::default(),
            next_id: Cell::new(1),
        };
        let entries = toy.format.entries;
        toy.append(false, &mut |block| first_block(&entries, INO, PARENT, block)).unwrap();
        toy
    }

    pub(super) fn editor<'a>(&'a self, cache: &'a mut DirCache) -> Editor<'a> {
        let target = DirTarget { ino: INO, indexed: self.indexed.get(), casefold: false, encrypted: false };
        Editor::new(target, &self.format, self, cache).unwrap()
    }

    /// Asserts that a kept location is not that of an earlier block with the same number. `false` if the
    /// block is after the end, where a damaged index may lead.
    fn find(&self, lblk: Lblk, at: &mut Location) -> bool {
        let Some(id) = self.ids.borrow().get(lblk.0 as usize).copied().map(Pblk) else { return false };
        assert!(at.block.0 == 0 || at.block == id, "{lblk:?} is another block by now");
        at.block = id;
        true
    }

    pub(super) fn bytes(&self, lblk: u32) -> Buffer {
        self.buffers.snapshot(Pblk(lblk.into())).unwrap().0
    }

    pub(super) fn all_bytes(&self) -> Vec<Vec<u8>> {
        (0..self.len.get()).map(|lblk| self.bytes(lblk).to_vec()).collect()
    }

    fn seal(kind: Kind) -> Seal {
        Seal { owner: Owner { kind, ino: INO.0 }, seed: None }
    }

    fn count(&self, changes: u32, appends: u32, pops: u32) {
        let (c, a, p) = self.done.get();
        self.done.set((c + changes, a + appends, p + pops));
    }
}

impl DirBlocks for Toy {
    fn len(&self) -> u32 {
        self.len.get()
    }

    fn leaf(&self, lblk: Lblk) -> Result<Option<Buffer>, ReadFault> {
        let csum = self.format.entries.csum;
        let verify = |bytes: &[u8]| {
            Malformed::unless(
                !csum || tail_checksum(bytes).is_some(),
                "directory block",
                "must have a tail",
                0u8,
            )
        };
        self.buffers.get(Pblk(lblk.0.into()), Self::seal(Kind::DirLeaf).owner, verify).map(Some)
    }

    fn index(&self, lblk: Lblk) -> Result<Option<Buffer>, ReadFault> {
        let index = self.format.index;
        let verify = |bytes: &[u8]| {
            Malformed::unless(
                !index.csum || index.kind_of(bytes).is_some(),
                "index block",
                "must be one",
                0u8,
            )
        };
        self.buffers.get(Pblk(lblk.0.into()), Self::seal(Kind::DirIndex).owner, verify).map(Some)
    }

    fn prefetch(&self, _first: Lblk, _len: u32) {}
}

impl DirEdit for Toy {
    fn change_leaf(
        &self,
        lblk: Lblk,
        at: &mut Location,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), ReadFault> {
        assert!(lblk.0 < self.len.get());
        self.find(lblk, at);
        // Some implementations read the block again before they change it, so it must be a leaf.
        self.leaf(lblk)?;
        self.count(1, 0, 0);
        Direct(&self.buffers).change(Pblk(lblk.0.into()), Self::seal(Kind::DirLeaf), change)
    }

    fn leaf_at(&self, lblk: Lblk, at: &mut Location) -> Result<Option<Buffer>, ReadFault> {
        if self.find(lblk, at) { self.leaf(lblk) } else { Ok(None) }
    }

    fn look_leaf_at(
        &self,
        lblk: Lblk,
        at: &mut Location,
        look: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, ReadFault> {
        if self.find(lblk, at) { self.look_leaf(lblk, look) } else { Ok(false) }
    }

    fn change_index(&self, lblk: Lblk, change: &mut dyn FnMut(&mut [u8])) -> Result<(), ReadFault> {
        assert!(lblk.0 < self.len.get());
        self.count(1, 0, 0);
        Direct(&self.buffers).change(Pblk(lblk.0.into()), Self::seal(Kind::DirIndex), change)
    }

    fn refill_leaf(&self, lblk: Lblk, fill: &mut dyn FnMut(&mut [u8])) -> Result<(), ReadFault> {
        assert!(lblk.0 < self.len.get());
        self.count(1, 0, 0);
        Direct(&self.buffers).fresh(Pblk(lblk.0.into()), Self::seal(Kind::DirLeaf), fill);
        Ok(())
    }

    fn append(&self, as_index: bool, fill: &mut dyn FnMut(&mut [u8])) -> Result<Lblk, EditFault> {
        let lblk = self.len.get();
        if lblk >= self.blocks_max.get() {
            return Err(NoSpace::Device.into());
        }
        let kind = if as_index { Kind::DirIndex } else { Kind::DirLeaf };
        Direct(&self.buffers).fresh(Pblk(lblk.into()), Self::seal(kind), fill);
        self.len.set(lblk + 1);
        self.ids.borrow_mut().push(self.next_id.replace(self.next_id.get() + 1));
        self.count(0, 1, 0);
        Ok(Lblk(lblk))
    }

    fn pop(&self) -> Result<(), EditFault> {
        let last = self.len.get() - 1;
        Direct(&self.buffers).revoke(Pblk(last.into()));
        self.len.set(last);
        self.ids.borrow_mut().pop();
        self.count(0, 0, 1);
        Ok(())
    }

    fn set_indexed(&self, indexed: bool) {
        self.indexed.set(indexed);
    }
}

/// Walks the whole directory, and checks all rules, the model, and the cache.
pub(super) struct Judge<'a> {
    toy: &'a Toy,
    cache: &'a mut DirCache,
    seen: Vec<bool>,
    names: Model,
}

pub(super) fn judge(toy: &Toy, cache: &mut DirCache, model: &Model) {
    let len = toy.len.get();
    let mut judge = Judge { toy, cache, seen: vec![false; len as usize], names: Model::new() };
    if toy.indexed.get() {
        judge.tree();
    } else {
        for lblk in 0..len {
            judge.seen[lblk as usize] = true;
            let start = judge.leaf(lblk, None);
            assert_eq!(lblk == 0, start, "dots are in block 0");
        }
        if len > 1 {
            let last = toy.bytes(len - 1);
            let used = toy.format.entries.entries(&last).filter(|entry| entry.as_ref().unwrap().is_used());
            assert!(used.count() > 0, "the last block holds a name");
        }
    }
    assert!(judge.seen.iter().all(|seen| *seen), "every block has its place");
    assert!(judge.names == *model, "{} names, {} expected", judge.names.len(), model.len());
}

impl Judge<'_> {
    fn tree(&mut self) {
        let root = self.toy.bytes(0);
        let decoded = self.toy.format.index.decode_root(&root).unwrap();
        assert_eq!((decoded.ino, decoded.parent), (INO, PARENT));
        assert_eq!(Some(decoded.hash_code), self.toy.format.default_hash.map(HashVersion::code));
        self.seen[0] = true;
        self.below(0, decoded.entries, decoded.levels, 0, None);
        if decoded.levels > 0 {
            let child = self.toy.bytes(decoded.entries.get(0).unwrap().block.0);
            let entries = self.toy.format.index.decode_node(&child).unwrap().len();
            let half = self.toy.format.index.limit(DxKind::Root) / 2;
            assert!(decoded.entries.len() > 1 || entries >= half, "one level too many");
        }
    }

    fn below(&mut self, lblk: u32, entries: DxEntries<'_>, levels: u8, low: u32, next: Option<u32>) {
        if let Some(node) = self.cache.index.cached(Lblk(lblk)) {
            let cached: Vec<_> = node.entries().to_vec();
            assert_eq!(cached, entries.iter().collect::<Vec<_>>(), "index block {lblk}");
        }
        let all: Vec<_> = entries.iter().collect();
        let mut before = low;
        for (i, entry) in all.iter().enumerate() {
            let low = if i == 0 { low } else { entry.hash };
            assert!(low & !1 > before & !1 || i == 0 || low == before & !1 | 1, "{before:#x} then {low:#x}");
            before = low;
            let next = all.get(i + 1).map(|next| next.hash).or(next);
            let child = entry.block.0;
            assert!(!std::mem::replace(&mut self.seen[child as usize], true), "block {child} twice");
            if levels > 0 {
                let block = self.toy.bytes(child);
                let node = self.toy.format.index.decode_node(&block).unwrap();
                self.below(child, node, levels - 1, low, next);
            } else {
                assert!(!self.leaf(child, Some((low, next))), "leaf without dots");
            }
        }
        if let Some(next) = next {
            assert!(next & !1 > before & !1 || next == before & !1 | 1, "{before:#x} then {next:#x}");
        }
    }

    /// Checks a block of entries. Returns whether it starts with "." and "..".
    fn leaf(&mut self, lblk: u32, range: Option<(u32, Option<u32>)>) -> bool {
        let format = &self.toy.format;
        let block = self.toy.bytes(lblk);
        assert_eq!(tail_checksum(&block).is_some(), format.entries.csum, "tail of {lblk}");
        let version = format.default_hash.unwrap();
        let (mut at, mut live, mut dots, mut mapped, mut known) = (0, 0, 0, Vec::new(), Vec::new());
        let mut holes = BTreeMap::new();
        for entry in format.entries.entries(&block) {
            let entry = entry.unwrap();
            assert_eq!(entry.offset, at);
            at += entry.rec_len;
            let used = if entry.is_used() { min_rec_len(entry.name.len(), false) } else { 0 };
            holes.insert(entry.offset, entry.rec_len - used);
            live += used;
            if !entry.is_used() {
                let own = &block[entry.offset + 8..entry.offset + entry.rec_len];
                assert!(range.is_none() || own[..4] == [0; 4], "names of removed entries are gone");
                continue;
            }
            let padding = entry.offset + 8 + entry.name.len()..entry.offset + used;
            assert!(block[padding].iter().all(|byte| *byte == 0) || entry.is_dot_or_dotdot());
            if entry.is_dot_or_dotdot() {
                let (ino, name) = if dots == 0 { (INO, &b"."[..]) } else { (PARENT, &b".."[..]) };
                assert_eq!((entry.ino, entry.name), (ino, name));
                dots += 1;
                continue;
            }
            let kind = if format.entries.filetype { FileType::Regular } else { FileType::Unknown };
            assert_eq!(entry.file_type, kind);
            let known_as = dirhash(version, &format.hash_seed, entry.name).unwrap();
            let hash = known_as.hash;
            if let Some((low, next)) = range {
                assert!(hash >= low & !1, "{hash:#x} below {low:#x}");
                assert!(next.is_none_or(|next| hash < next & !1 || next == hash | 1), "{hash:#x}, {next:x?}");
            }
            mapped.push(LeafEntry::noted(hash, entry.offset));
            known.push(known_as);
            assert!(self.names.insert(entry.name.to_vec(), entry.ino.0).is_none(), "a name twice");
        }
        assert_eq!(at, format.entries.usable_len());
        assert!(dots == 0 || dots == 2);
        if range.is_some() {
            assert!(!mapped.is_empty(), "leaf {lblk} is empty");
            assert!(
                known.iter().all(|hash| self.cache.leaves.cache.may_hold(Lblk(lblk), *hash)),
                "filter of {lblk}"
            );
            if let Some(notes) = self.cache.leaves.cache.notes(Lblk(lblk)) {
                let mut noted: Vec<_> = notes.entries().collect();
                noted.sort_unstable();
                mapped.sort_unstable();
                assert!(noted == mapped, "notes of {lblk}");
                assert_eq!(notes.live_bytes as usize, live);
                let hole = notes.hole();
                assert!(hole.len == 0 || holes.get(&hole.at) == Some(&hole.len), "{hole:?} {holes:?}");
            } else if let Some((hole, noted)) = self.cache.leaves.cache.room(Lblk(lblk)) {
                assert_eq!(noted, live);
                assert!(hole.len == 0 || holes.get(&hole.at) == Some(&hole.len), "{hole:?} {holes:?}");
            }
        }
        dots == 2
    }
}

/// A whole listing that stops after every `at_a_time` names, and calls `between` each time.
pub(super) fn listed(toy: &Toy, at_a_time: usize, mut between: impl FnMut()) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let mut from = Cursor::START;
    loop {
        let storage = if toy.indexed.get() { Storage::Indexed(toy) } else { Storage::Linear(toy) };
        let dir = Dir { ino: INO, storage, casefold: false, encrypted: false };
        let mut count = 0;
        let begin = from;
        let mut each = |entry: crate::DirEntry<'_>| {
            from = entry.next;
            names.push(entry.name.to_vec());
            count += 1;
            if count < at_a_time {
                std::ops::ControlFlow::Continue(())
            } else {
                std::ops::ControlFlow::Break(())
            }
        };
        dir.list(&toy.format, begin, &mut each, &mut |fault| panic!("{fault}")).unwrap();
        if count < at_a_time {
            return names;
        }
        between();
    }
}
