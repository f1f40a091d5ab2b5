//! Random changes of maps. After every change the map is compared with an array of blocks, and the tree is
//! checked against the rules.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use extant_base::{BlockSize, Tid};
use extant_buffer::{Direct, Kind, Owner};
use extant_device::MemDevice;
use extant_memory::Budget;
use extant_ondisk::extent::{NodeView, init_node};
use proptest::prelude::*;

use super::*;

mod convert;
mod shift;

const BLOCKS: u64 = 1 << 20;
/// Tree blocks come from here on, data blocks from the middle on.
const TREE: u64 = 100;
const DATA: u64 = 1 << 19;

/// An allocator that tracks allocated blocks.
struct Toy {
    buffers: Arc<Buffers>,
    free: RefCell<Vec<u64>>,
    out: RefCell<BTreeSet<u64>>,
    /// How many more blocks it allocates.
    left: Cell<usize>,
    /// Blocks changed.
    touched: RefCell<BTreeSet<u64>>,
}

impl Toy {
    fn new(block_size: BlockSize) -> Self {
        let device = MemDevice::new(BLOCKS * block_size.bytes());
        let buffers = Buffers::new(Arc::new(device), block_size, BLOCKS, &Budget::new(1 << 30));
        let free = RefCell::new((TREE..TREE + 20_000).rev().collect());
        let (out, touched) = (RefCell::default(), RefCell::default());
        Self { buffers, free, out, left: Cell::new(usize::MAX), touched }
    }

    /// Calls `act` with an editor; also returns the number of blocks it changed.
    fn edit<T>(&self, act: impl FnOnce(&Editor<'_>) -> T) -> (T, u32) {
        let direct = Counting(Direct(&self.buffers), &self.touched);
        let done = act(&Editor { buffers: &self.buffers, edit: &direct, space: self });
        (done, std::mem::take(&mut *self.touched.borrow_mut()).len() as u32)
    }
}

impl TreeSpace for Toy {
    fn allocate(&self, _: Pblk) -> Result<Pblk, EditFault> {
        let left = self.left.get().checked_sub(1).ok_or(EditFault::NoSpace)?;
        self.left.set(left);
        let block = self.free.borrow_mut().pop().unwrap();
        assert!(self.out.borrow_mut().insert(block));
        Ok(Pblk(block))
    }

    fn free(&self, block: Pblk) {
        assert!(self.out.borrow_mut().remove(&block.0), "block {block} is freed twice");
        self.buffers.forget(block);
        self.free.borrow_mut().push(block.0);
        self.touched.borrow_mut().insert(block.0);
    }
}

struct Counting<'a>(Direct<'a>, &'a RefCell<BTreeSet<u64>>);

impl extant_buffer::Edit for Counting<'_> {
    fn transaction(&self) -> Tid {
        self.0.transaction()
    }

    fn change(
        &self,
        block: Pblk,
        seal: extant_buffer::Seal,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), ReadFault> {
        self.1.borrow_mut().insert(block.0);
        self.0.change(block, seal, change)
    }

    fn fresh(&self, block: Pblk, seal: extant_buffer::Seal, fill: &mut dyn FnMut(&mut [u8])) {
        self.1.borrow_mut().insert(block.0);
        self.0.fresh(block, seal, fill);
    }

    fn revoke(&self, block: Pblk) {
        self.0.revoke(block);
    }
}

fn empty(extents: bool) -> FileMap {
    let mut i_block = [0; 60];
    if extents {
        init_node(&mut i_block, 0, &[]);
    }
    FileMap { ino: Ino(12), i_block, extents, seed: Some(7) }
}

/// The physical block of each logical block, and whether it is unwritten.
type Model = BTreeMap<u32, (u64, bool)>;

fn mapped_blocks(map: &FileMap, buffers: &Buffers) -> Model {
    let mut model = Model::new();
    map.walk(buffers, Lblk(0), &mut |piece| {
        let (start, unwritten) = match piece.state {
            MapState::Written(start) => (start.0, false),
            MapState::Unwritten(start) => (start.0, true),
            MapState::Hole => panic!("holes are not returned"),
        };
        model.extend((0..piece.len).map(|i| (piece.lblk.0 + i, (start + u64::from(i), unwritten))));
        Some(())
    })
    .unwrap();
    model
}

/// Checks the rules of a tree: those of a node, no empty node, keys equal to first keys, contiguous extents
/// in a leaf merged. Collects its blocks.
fn verify_nodes(buffers: &Buffers, bytes: &[u8], blocks: &mut BTreeSet<u64>) {
    let node = NodeView::verified(bytes).unwrap();
    let max = u16::from_le_bytes([bytes[4], bytes[5]]);
    assert_eq!(usize::from(max), (bytes.len() - 12) / 12);
    for at in 0..node.len() {
        if node.depth() == 0 {
            let extent = node.extent(at).unwrap();
            assert!(node.extent(at + 1).is_none_or(|next| extent.merged(&next).is_none()), "{extent:?}");
            continue;
        }
        let index = node.index(at).unwrap();
        assert!(blocks.insert(index.child), "block {} is there twice", index.child);
        let owner = Owner { kind: Kind::Extents, ino: 12 };
        let child = buffers.get(Pblk(index.child), owner, |_| Ok(())).unwrap();
        let view = NodeView::new(&child);
        assert_eq!(view.depth() + 1, node.depth());
        assert_eq!(view.key(0), Some(index.lblk));
        assert!(node.key(at + 1).is_none_or(|next| view.key(view.len() - 1).unwrap() < next));
        verify_nodes(buffers, &child, blocks);
    }
}

fn verify(map: &FileMap, toy: &Toy) {
    let mut blocks = BTreeSet::new();
    if map.extents {
        verify_nodes(&toy.buffers, &map.i_block, &mut blocks);
    } else {
        map.walk_tree_blocks(&toy.buffers, &mut |block| {
            assert!(blocks.insert(block.0), "block {block} is there twice");
            let owner = Owner { kind: Kind::Indirect, ino: 12 };
            let bytes = toy.buffers.get(block, owner, |_| Ok(())).unwrap();
            assert!(bytes.iter().any(|byte| *byte != 0), "block {block} is empty");
            Some(())
        })
        .unwrap();
    }
    assert_eq!(blocks, *toy.out.borrow(), "every block of the tree is in it");
}

fn insert(map: &mut FileMap, toy: &Toy, model: &mut Model, mapped: Mapped) -> Result<(), EditFault> {
    let (start, unwritten) = match mapped.state {
        MapState::Written(start) => (start.0, false),
        MapState::Unwritten(start) => (start.0, true),
        MapState::Hole => unreachable!(),
    };
    let mut done = 0;
    while done < mapped.len {
        let at = start + u64::from(done);
        let state = if unwritten { MapState::Unwritten(Pblk(at)) } else { MapState::Written(Pblk(at)) };
        let rest = Mapped { lblk: Lblk(mapped.lblk.0 + done), len: mapped.len - done, state };
        let credits = credits_insert(map.depth());
        let (inserted, touched) = toy.edit(|editor| map.insert(editor, rest));
        assert!(touched <= credits, "{touched} of {credits}");
        let len = inserted?;
        model.extend((0..len).map(|i| (rest.lblk.0 + i, (at + u64::from(i), unwritten))));
        done += len;
    }
    Ok(())
}

/// Removes in steps; the blocks passed to `freed` must be those that the model loses.
fn remove(
    map: &mut FileMap,
    toy: &Toy,
    model: &mut Model,
    range: Range<u64>,
    extents_max: u32,
) -> Result<(), EditFault> {
    let mut end = Some(range.end);
    while let Some(to) = end {
        let mut freed = Vec::new();
        let credits = credits_remove(map.depth(), extents_max, toy.buffers.block_size());
        let (left, touched) = toy.edit(|editor| {
            let most = (extents_max, if range.start.is_multiple_of(2) { u32::MAX } else { 5 });
            map.remove_step(editor, range.start..to, most, &mut |lblk, block, len| {
                freed.extend((0..len).map(|at| (lblk.0 + at, block.0 + u64::from(at))));
            })
        });
        assert!(touched <= credits, "{touched} of {credits}");
        let left = left?;
        let gone_from = left.unwrap_or(range.start);
        assert!(gone_from < to || freed.is_empty());
        let keys = gone_from as u32..to.min(1 << 32).saturating_sub(1) as u32;
        let mut lost: Vec<_> = model
            .range(keys.start..=keys.end.max(keys.start))
            .map(|(lblk, (block, _))| (*lblk, *block))
            .collect();
        lost.retain(|(lblk, _)| u64::from(*lblk) < to);
        for (lblk, _) in &lost {
            model.remove(lblk);
        }
        freed.sort_unstable();
        assert_eq!(freed, lost);
        end = left;
    }
    Ok(())
}

fn set_state(
    map: &mut FileMap,
    toy: &Toy,
    model: &mut Model,
    range: Range<u64>,
    unwritten: bool,
    extents_max: u32,
) {
    let mut from = Some(range.start);
    while let Some(at) = from {
        let credits = credits_set_state(map.depth(), extents_max, toy.buffers.block_size());
        let (next, touched) = toy.edit(|editor| map.set_state(editor, at..range.end, unwritten, extents_max));
        assert!(touched <= credits, "{touched} of {credits}");
        from = next.unwrap();
        assert!(from.is_none_or(|from| from > at));
    }
    model.range_mut(range.start as u32..range.end as u32).for_each(|(_, state)| state.1 = unwritten);
}

fn written(lblk: u32, len: u32, start: u64) -> Mapped {
    Mapped { lblk: Lblk(lblk), len, state: MapState::Written(Pblk(start)) }
}

/// The extent or hole around a block agrees with `find` for each block in it, and ends where another one
/// begins.
#[test]
fn what_lies_around_a_block_is_all_of_its_extent_or_hole() {
    for extents in [true, false] {
        let toy = Toy::new(BlockSize::MIN);
        let (mut map, mut model) = (empty(extents), Model::new());
        for i in 0..400 {
            let (lblk, len) = (9 * scattered(i, 512) + 5, 1 + i % 7);
            let start = DATA + u64::from(lblk) * 2;
            insert(&mut map, &toy, &mut model, written(lblk, len, start)).unwrap();
        }
        for lblk in 0..5000 {
            let here = map.around(&toy.buffers, Lblk(lblk)).unwrap().here;
            let state = model.get(&lblk);
            let first = match here.state {
                MapState::Hole => None,
                MapState::Written(start) | MapState::Unwritten(start) => Some(start.0),
            };
            assert_eq!(state.is_some(), first.is_some(), "{lblk}: {here:?}");
            assert!(here.lblk.0 <= lblk && here.end() > lblk.into(), "{lblk}: {here:?}");
            for at in u64::from(here.lblk.0)..here.end().min(5000) {
                let block = first.map(|first| first + at - u64::from(here.lblk.0));
                assert_eq!(model.get(&(at as u32)).map(|state| state.0), block, "{lblk}: {here:?}");
            }
            if extents && first.is_some() {
                assert!(here.lblk.0 == 0 || !model.contains_key(&(here.lblk.0 - 1)), "{lblk}: {here:?}");
            }
        }
        assert!(map.around(&toy.buffers, Lblk(2000)).unwrap().leaf.is_empty(), "nothing was read");
    }
}

/// A stride that visits every number below a power of two, in scattered order.
fn scattered(i: u32, count: u32) -> u32 {
    i.wrapping_mul(0x9E37_79B1) % count
}

#[test]
fn deep_trees_grow_and_shrink() {
    let toy = Toy::new(BlockSize::MIN);
    let (mut map, mut model) = (empty(true), Model::new());
    let count = 1 << 16;
    for i in 0..count {
        let lblk = 3 * scattered(i, count);
        insert(&mut map, &toy, &mut model, written(lblk, 1, DATA + u64::from(lblk))).unwrap();
        if i.is_power_of_two() {
            verify(&map, &toy);
            assert_eq!(mapped_blocks(&map, &toy.buffers), model);
        }
    }
    assert_eq!(map.depth(), 3);
    verify(&map, &toy);
    // Punched to pieces, then cut from the end in small steps.
    for i in 0..count / 2 {
        let lblk = u64::from(3 * scattered(i, count));
        remove(&mut map, &toy, &mut model, lblk..lblk + 2, 5).unwrap();
    }
    verify(&map, &toy);
    assert_eq!(mapped_blocks(&map, &toy.buffers), model);
    for from in [150_000, 100_000, 777, 5, 0] {
        remove(&mut map, &toy, &mut model, from..1 << 32, 100).unwrap();
        verify(&map, &toy);
        assert_eq!(mapped_blocks(&map, &toy.buffers), model);
    }
    assert_eq!((map.depth(), toy.out.borrow().len()), (0, 0));
    assert_eq!(map.i_block, empty(true).i_block);
}

#[test]
fn files_written_from_front_to_end_have_full_leaves() {
    let toy = Toy::new(BlockSize::MIN);
    let (mut map, mut model) = (empty(true), Model::new());
    for i in 0..84 * 84 {
        insert(&mut map, &toy, &mut model, written(i, 1, DATA + 2 * u64::from(i))).unwrap();
    }
    verify(&map, &toy);
    assert_eq!(toy.out.borrow().len(), 84 + 1, "84 leaves below one node below the root");
}

#[test]
fn a_long_file_is_one_extent_after_the_other() {
    let toy = Toy::new(BlockSize::KIB4);
    let (mut map, mut model) = (empty(true), Model::new());
    insert(&mut map, &toy, &mut model, written(0, 100_000, DATA)).unwrap();
    let root = NodeView::new(&map.i_block);
    let lens: Vec<_> = (0..root.len()).map(|at| root.extent(at).unwrap().len).collect();
    assert_eq!(lens, [32_768, 32_768, 32_768, 1696]);
    set_state(&mut map, &toy, &mut model, 0..100_000, true, 1);
    verify(&map, &toy);
    assert_eq!(mapped_blocks(&map, &toy.buffers), model);
    set_state(&mut map, &toy, &mut model, 10..90_000, false, 2);
    verify(&map, &toy);
    assert_eq!(mapped_blocks(&map, &toy.buffers), model);
    remove(&mut map, &toy, &mut model, 5..95_000, 1).unwrap();
    assert_eq!(mapped_blocks(&map, &toy.buffers), model);
}

#[test]
fn what_cannot_be_is_refused() {
    let toy = Toy::new(BlockSize::MIN);
    let mut map = empty(true);
    let mut refuse = |mapped| toy.edit(|editor| map.insert(editor, mapped)).0.unwrap_err().to_string();
    assert_eq!(refuse(written(u32::MAX, 1, DATA)), "the file is too large for its block map");
    assert_eq!(refuse(written(0, 1, 1 << 48)), "the file is too large for its block map");
    let mut map = empty(false);
    let mut refuse = |mapped| toy.edit(|editor| map.insert(editor, mapped)).0.unwrap_err().to_string();
    let reach = extant_ondisk::indirect::max_blocks(BlockSize::MIN) as u32;
    assert_eq!(refuse(written(reach, 1, DATA)), "the file is too large for its block map");
    assert_eq!(refuse(written(0, 1, 1 << 32)), "the file is too large for its block map");
    // The last block that three levels reach.
    let mut model = Model::new();
    insert(&mut map, &toy, &mut model, written(reach - 3, 3, DATA)).unwrap();
    verify(&map, &toy);
    assert_eq!(mapped_blocks(&map, &toy.buffers), model);
    assert_eq!(toy.out.borrow().len(), 3);
    remove(&mut map, &toy, &mut model, 0..1 << 32, 1).unwrap();
    assert_eq!((map.i_block, toy.out.borrow().len()), ([0; 60], 0));
}

#[derive(Debug, Clone)]
enum Op {
    Insert(u32, u32, u64, bool),
    Remove(Range<u64>, u32),
    State(Range<u64>, bool, u32),
    /// Fragments: every third block from one on.
    Comb(u32, u32),
}

const FILE: u32 = 1500;

fn some_op(extents: bool) -> impl Strategy<Value = Op> {
    let range = (0..FILE, 1u32..120).prop_map(|(from, len)| u64::from(from)..u64::from(from + len));
    prop_oneof![
        4 => (0..FILE, 1u32..40, 0u64..2, any::<bool>())
            .prop_map(move |(lblk, len, shift, unwritten)| Op::Insert(lblk, len, shift, unwritten && extents)),
        2 => (range.clone(), 1u32..9).prop_map(|(range, max)| Op::Remove(range, max)),
        2 => (range, any::<bool>(), 1u32..9)
            .prop_map(move |(range, unwritten, max)| Op::State(range, unwritten && extents, max)),
        1 => (0..FILE, 1u32..200).prop_map(|(lblk, count)| Op::Comb(lblk, count)),
    ]
}

/// Inserts; on success the range must be a hole in the model. Falls back to single blocks.
fn try_insert(map: &mut FileMap, toy: &Toy, model: &mut Model, mapped: Mapped) {
    let is_hole = model.range(mapped.lblk.0..mapped.lblk.0 + mapped.len).next().is_none();
    let (before, out) = (map.i_block, toy.out.borrow().len());
    match insert(map, toy, model, mapped) {
        Ok(()) => assert!(is_hole),
        Err(EditFault::Occupied(_)) => assert!(!is_hole),
        Err(EditFault::NoSpace) if toy.left.get() == 0 && map.extents => {
            assert_eq!(
                (before, out),
                (map.i_block, toy.out.borrow().len()),
                "refused, and changed something"
            );
        }
        Err(EditFault::NoSpace) if toy.left.get() == 0 => {}
        Err(fault) => panic!("{fault}"),
    }
}

fn run(ops: &[(Op, Option<usize>)], extents: bool, block_size: BlockSize) {
    let toy = Toy::new(block_size);
    let (mut map, mut model) = (empty(extents), Model::new());
    for (op, space) in ops {
        toy.left.set(usize::MAX);
        let place = |lblk: u32, shift: u64| DATA + u64::from(lblk) + shift * 100_000;
        match op.clone() {
            Op::Insert(lblk, len, shift, unwritten) => {
                toy.left.set(space.unwrap_or(usize::MAX));
                let start = Pblk(place(lblk, shift));
                let state = if unwritten { MapState::Unwritten(start) } else { MapState::Written(start) };
                try_insert(&mut map, &toy, &mut model, Mapped { lblk: Lblk(lblk), len, state });
            }
            Op::Comb(lblk, count) => {
                for i in 0..count {
                    try_insert(&mut map, &toy, &mut model, written(lblk + 3 * i, 1, place(lblk + 3 * i, 2)));
                }
            }
            Op::Remove(range, max) => {
                toy.left.set(space.unwrap_or(usize::MAX));
                let removed = remove(&mut map, &toy, &mut model, range, max);
                assert!(removed.is_ok() || toy.left.get() == 0);
            }
            Op::State(range, unwritten, max) => {
                set_state(&mut map, &toy, &mut model, range, unwritten, max);
            }
        }
        verify(&map, &toy);
        assert_eq!(mapped_blocks(&map, &toy.buffers), model);
    }
    toy.left.set(usize::MAX);
    remove(&mut map, &toy, &mut model, 0..1 << 32, 50).unwrap();
    assert_eq!((map.i_block, toy.out.borrow().len()), (empty(extents).i_block, 0));
}

fn some_ops(extents: bool) -> impl Strategy<Value = Vec<(Op, Option<usize>)>> {
    prop::collection::vec((some_op(extents), prop::option::weighted(0.2, 0usize..3)), 1..60)
}

proptest! {
    #[test]
    fn extents_change_as_the_model_says(ops in some_ops(true), large: bool) {
        run(&ops, true, if large { BlockSize::KIB4 } else { BlockSize::MIN });
    }

    #[test]
    fn indirect_blocks_change_as_the_model_says(ops in some_ops(false), large: bool) {
        run(&ops, false, if large { BlockSize::KIB4 } else { BlockSize::MIN });
    }
}

/// Allocates the same few blocks over and over and accepts any free: a damaged map frees blocks twice.
struct Careless(Cell<u64>);

impl TreeSpace for Careless {
    fn allocate(&self, _: Pblk) -> Result<Pblk, EditFault> {
        self.0.set(self.0.get() + 1);
        if self.0.get() < 60 { Ok(Pblk(self.0.get())) } else { Err(EditFault::NoSpace) }
    }

    fn free(&self, _: Pblk) {}
}

/// Depth, max, and entries as four numbers each.
type HostileNode = (u16, u16, Vec<(u32, u16, u16, u32)>);

/// The node's bytes, whatever its numbers are.
fn hostile_bytes((depth, max, slots): &HostileNode, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let magic = extant_ondisk::extent::MAGIC;
    for (word, at) in [(magic, 0), (slots.len() as u16, 2), (*max, 4), (*depth, 6)] {
        bytes[at..at + 2].copy_from_slice(&word.to_le_bytes());
    }
    for (slot, (key, len, high, low)) in bytes[12..].chunks_exact_mut(12).zip(slots) {
        slot[..4].copy_from_slice(&key.to_le_bytes());
        slot[4..6].copy_from_slice(&len.to_le_bytes());
        slot[6..8].copy_from_slice(&high.to_le_bytes());
        slot[8..].copy_from_slice(&low.to_le_bytes());
    }
    bytes
}

proptest! {
    #[test]
    fn damaged_maps_are_changed_or_refused(
        mut nodes in prop::collection::vec(
            (0u16..3, 4u16..90, prop::collection::vec((0u32..90, 0u16..9, 0u16..2, 0u32..20), 1..5)), 12),
        sorted: bool, extents: bool, ops in prop::collection::vec((0u8..3, 0u32..99, 1u32..40, any::<bool>()), 1..12),
    ) {
        if sorted {
            for (i, (depth, max, slots)) in nodes.iter_mut().enumerate() {
                // Mostly valid: the child is the next block, and the low half of an index entry is where a
                // leaf entry has its length.
                (*depth, *max) = (2u16.saturating_sub(i as u16), if i == 0 { 4 } else { 84 });
                slots.sort_unstable();
                slots.dedup_by_key(|slot| slot.0);
                let depth = *depth;
                slots.iter_mut().for_each(|slot| {
                    *slot = if depth > 0 { (slot.0, 0, i as u16 + 1, 0) } else { (slot.0, 1, 0, 30) };
                });
            }
        }
        let device = MemDevice::new(64 << 10);
        for (i, node) in nodes.iter().enumerate().skip(1) {
            extant_device::Device::write_at(&device, i as u64 * 1024, &hostile_bytes(node, 1024)).unwrap();
        }
        let buffers = Buffers::new(Arc::new(device), BlockSize::MIN, 64, &Budget::new(1 << 20));
        let i_block = hostile_bytes(&nodes[0], 60).try_into().unwrap();
        let mut map = FileMap { ino: Ino(12), i_block, extents, seed: None };
        let (space, direct) = (Careless(Cell::new(40)), Direct(&buffers));
        let editor = Editor { buffers: &buffers, edit: &direct, space: &space };
        for (op, lblk, len, flag) in ops {
            let range = u64::from(lblk)..u64::from(lblk + len);
            match op {
                0 => drop(map.insert(&editor, written(lblk, len, 20))),
                1 => drop(map.set_state(&editor, range, flag && extents, 3)),
                _ if flag => drop(map.remove_step(&editor, range, (3, 9), &mut |_, _, _| ())),
                _ => drop(map.remove(&editor, range, &mut |_, _, _| ())),
            }
        }
    }
}
