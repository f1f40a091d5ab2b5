//! Extents moved to other logical blocks, step by step.

use super::*;
use extant_base::Tid;

/// The model after a move of the blocks in `range`.
fn moved(model: &Model, range: Range<u64>, by: impl Fn(u32) -> u32) -> Model {
    let at = |lblk: u32| if range.contains(&u64::from(lblk)) { by(lblk) } else { lblk };
    model.iter().map(|(lblk, state)| (at(*lblk), *state)).collect()
}

fn check(map: &FileMap, toy: &Toy, model: &Model) {
    verify(map, toy);
    assert_eq!(mapped_blocks(map, &toy.buffers), *model);
}

/// Moves the extents after a hole to the left, with a check after every `every`th step; returns the number of
/// steps.
fn shift_left(
    map: &mut FileMap,
    toy: &Toy,
    model: &mut Model,
    from: u64,
    by: u32,
    max: u32,
    every: u32,
) -> u32 {
    let (mut next, mut steps) = (Some(from), 0);
    while let Some(at) = next {
        let credits = credits_shift(map.depth(), max, toy.buffers.block_size());
        let (step, touched) = toy.edit(|editor| map.shift_left_step(editor, at, by, max));
        assert!(touched <= credits, "{touched} of {credits}");
        next = step.unwrap();
        assert!(next.is_none_or(|next| next > at));
        *model = moved(model, at..next.unwrap_or(1 << 32), |lblk| lblk - by);
        steps += 1;
        if next.is_none() || steps % every == 0 {
            check(map, toy, model);
        }
    }
    steps
}

/// Moves right; only the first step may fail, and must have changed nothing then.
fn shift_right(
    map: &mut FileMap,
    toy: &Toy,
    model: &mut Model,
    from: u64,
    by: u32,
    max: u32,
    every: u32,
) -> Result<u32, EditFault> {
    let (mut end, mut steps) = (Some(1 << 32), 0);
    while let Some(to) = end {
        let (before, out) = (map.i_block, toy.out.borrow().len());
        let credits = credits_shift(map.depth(), max, toy.buffers.block_size());
        let (step, touched) = toy.edit(|editor| map.shift_right_step(editor, from..to, by, max));
        assert!(touched <= credits, "{touched} of {credits}");
        end = match step {
            Ok(end) => end,
            Err(fault) => {
                assert_eq!((steps, before, out), (0, map.i_block, toy.out.borrow().len()), "{fault}");
                check(map, toy, model);
                return Err(fault);
            }
        };
        assert!(end.is_none_or(|end| from < end && end < to));
        *model = moved(model, end.unwrap_or(from)..to, |lblk| lblk + by);
        steps += 1;
        if end.is_none() || steps % every == 0 {
            check(map, toy, model);
        }
    }
    Ok(steps)
}

#[derive(Debug, Clone)]
enum Move {
    /// Changes that create something to move.
    Other(Op),
    Left(u64, u32, u32),
    Right(u64, u32, u32),
}

fn some_move() -> impl Strategy<Value = Move> {
    // Small distances close the holes of combs.
    let by = || prop_oneof![1u32..4, 1u32..150];
    let place = || (0..2 * u64::from(FILE), by(), prop_oneof![1u32..9, 50u32..400]);
    prop_oneof![
        3 => some_op(true).prop_map(Move::Other),
        1 => place().prop_map(|(from, by, max)| Move::Left(from + u64::from(by), by, max)),
        1 => place().prop_map(|(from, by, max)| Move::Right(from, by, max)),
    ]
}

fn run_moves(moves: &[(Move, Option<usize>)], block_size: BlockSize) {
    let toy = Toy::new(block_size);
    let (mut map, mut model, mut fresh) = (empty(true), Model::new(), DATA);
    for (step, space) in moves {
        toy.left.set(usize::MAX);
        match step.clone() {
            // Each block is mapped once, so that extents merge only if they were contiguous.
            Move::Other(Op::Insert(lblk, len, gap, unwritten)) => {
                fresh += gap;
                let state =
                    if unwritten { MapState::Unwritten(Pblk(fresh)) } else { MapState::Written(Pblk(fresh)) };
                try_insert(&mut map, &toy, &mut model, Mapped { lblk: Lblk(lblk), len, state });
                fresh += u64::from(len);
            }
            Move::Other(Op::Comb(lblk, count)) => {
                for i in 0..count {
                    try_insert(&mut map, &toy, &mut model, written(lblk + 3 * i, 1, fresh + u64::from(i)));
                }
                fresh += u64::from(count);
            }
            Move::Other(Op::Remove(range, max)) => {
                remove(&mut map, &toy, &mut model, range, max).unwrap();
            }
            Move::Other(Op::State(range, unwritten, max)) => {
                set_state(&mut map, &toy, &mut model, range, unwritten, max);
            }
            Move::Left(from, by, max) => {
                remove(&mut map, &toy, &mut model, from - u64::from(by)..from, 9).unwrap();
                toy.left.set(0);
                shift_left(&mut map, &toy, &mut model, from, by, max, 1);
            }
            Move::Right(from, by, max) => {
                toy.left.set(space.unwrap_or(usize::MAX));
                match shift_right(&mut map, &toy, &mut model, from, by, max, 1) {
                    Ok(_) => {}
                    Err(EditFault::NoSpace) => assert_eq!(toy.left.get(), 0),
                    Err(fault) => panic!("{fault}"),
                }
            }
        }
        check(&map, &toy, &model);
    }
    toy.left.set(usize::MAX);
    remove(&mut map, &toy, &mut model, 0..1 << 32, 50).unwrap();
    assert_eq!((map.i_block, toy.out.borrow().len()), (empty(true).i_block, 0));
}

proptest! {
    #[test]
    fn extents_move_as_the_model_says(
        moves in prop::collection::vec((some_move(), prop::option::weighted(0.3, 0usize..3)), 1..60), large: bool,
    ) {
        run_moves(&moves, if large { BlockSize::KIB4 } else { BlockSize::MIN });
    }
}

/// A tree with so many extents of two blocks, each after a hole of two, inserted in scattered order: leaves
/// are half full.
fn scattered_tree(toy: &Toy, count: u32) -> (FileMap, Model) {
    let (mut map, mut model) = (empty(true), Model::new());
    for i in 0..count {
        let lblk = 4 * scattered(i, count) + 2;
        insert(&mut map, toy, &mut model, written(lblk, 2, DATA + u64::from(lblk))).unwrap();
    }
    (map, model)
}

#[test]
fn trees_of_every_depth_move_in_steps() {
    let mut depths = BTreeSet::new();
    for count in [2, 4, 64, 256, 1 << 13, 1 << 16] {
        let toy = Toy::new(BlockSize::MIN);
        let (mut map, mut model) = scattered_tree(&toy, count);
        depths.insert(map.depth());
        let every = 1 + count / 1000;
        let nodes = toy.out.borrow().len() as u32;
        // From the first extent, from inside one in the middle, from the last one, from after all.
        let middle = u64::from(count / 2) * 4 + 3;
        for from in [2, middle, u64::from(count) * 4 - 2, u64::from(count) * 5] {
            for max in [u32::MAX, 1 + count / 50] {
                let steps = shift_right(&mut map, &toy, &mut model, from, 3, max, every).unwrap();
                let leaves = nodes.div_ceil(tree::LEAVES_MAX) + 1;
                assert!(max < u32::MAX || steps <= leaves, "{steps} steps for {nodes} nodes");
                toy.left.set(0);
                shift_left(&mut map, &toy, &mut model, from + 3, 3, max, every);
                toy.left.set(usize::MAX);
            }
        }
        assert_eq!(model.len() as u32, 2 * count);
        assert!(model.iter().all(|(lblk, (start, _))| *start == DATA + u64::from(*lblk)), "all are back");
    }
    assert_eq!(depths.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
}

/// Closes holes one after the other until each leaf has one extent.
#[test]
fn what_becomes_contiguous_is_merged() {
    let toy = Toy::new(BlockSize::MIN);
    let (mut map, mut model) = (empty(true), Model::new());
    for i in 0..300u32 {
        // Contiguous on the device, with a hole before each in the file.
        insert(&mut map, &toy, &mut model, written(2 * i + 1, 1, DATA + u64::from(i))).unwrap();
    }
    assert_eq!((map.depth(), toy.out.borrow().len()), (1, 4));
    for i in 0..300u64 {
        shift_left(&mut map, &toy, &mut model, i + 1, 1, 100, 1);
    }
    assert_eq!(model, (0..300).map(|lblk| (lblk, (DATA + u64::from(lblk), false))).collect());
    let pieces = |map: &FileMap, toy: &Toy| {
        let mut pieces = Vec::new();
        map.walk(&toy.buffers, Lblk(0), &mut |piece| {
            pieces.push((piece.lblk.0, piece.len));
            Some(())
        })
        .unwrap();
        pieces
    };
    assert_eq!(pieces(&map, &toy), [(0, 84), (84, 84), (168, 84), (252, 48)], "merged within leaves");

    // Not beyond the maximum lengths of the format, and not across states.
    let toy = Toy::new(BlockSize::MIN);
    let (mut map, mut model) = (empty(true), Model::new());
    insert(&mut map, &toy, &mut model, written(0, 32_767, DATA)).unwrap();
    insert(&mut map, &toy, &mut model, written(32_768, 1, DATA + 32_767)).unwrap();
    insert(&mut map, &toy, &mut model, written(32_770, 1, DATA + 32_768)).unwrap();
    shift_left(&mut map, &toy, &mut model, 32_768, 1, 1, 1);
    shift_left(&mut map, &toy, &mut model, 32_769, 1, 1, 1);
    assert_eq!(pieces(&map, &toy), [(0, 32_768), (32_768, 1)]);
    set_state(&mut map, &toy, &mut model, 32_768..32_769, true, 1);
    shift_right(&mut map, &toy, &mut model, 5, 7, 1, 1).unwrap();
    assert_eq!(pieces(&map, &toy), [(0, 5), (12, 32_763), (32_775, 1)]);
    shift_left(&mut map, &toy, &mut model, 12, 7, 9, 1);
    assert_eq!(pieces(&map, &toy), [(0, 32_768), (32_768, 1)]);
}

/// A leaf with extents that merge until they fit the root is freed.
#[test]
fn a_tree_that_became_small_is_pulled_up() {
    let toy = Toy::new(BlockSize::MIN);
    let (mut map, mut model) = (empty(true), Model::new());
    for i in 0..40u32 {
        insert(&mut map, &toy, &mut model, written(2 * i, 1, DATA + u64::from(i))).unwrap();
    }
    assert_eq!((map.depth(), toy.out.borrow().len()), (1, 1));
    toy.left.set(0);
    for i in 0..39 {
        assert_eq!(map.depth(), u32::from(i < 36), "{i} holes are closed");
        shift_left(&mut map, &toy, &mut model, i + 2, 1, u32::MAX, 1);
    }
    assert_eq!((map.depth(), toy.out.borrow().len()), (0, 0));
}

/// A device that fails for further blocks once `left` blocks were changed.
struct Failing<'a> {
    direct: Direct<'a>,
    left: usize,
    changed: RefCell<BTreeSet<u64>>,
}

impl extant_buffer::Edit for Failing<'_> {
    fn transaction(&self) -> Tid {
        self.direct.transaction()
    }

    fn change(
        &self,
        block: Pblk,
        seal: extant_buffer::Seal,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), ReadFault> {
        let mut changed = self.changed.borrow_mut();
        if changed.len() == self.left && !changed.contains(&block.0) {
            let fact = Malformed::new("device", "gives back what it got", block.0);
            return Err(ReadFault::corrupt(CorruptAt::block(block), fact));
        }
        changed.insert(block.0);
        self.direct.change(block, seal, change)
    }

    fn fresh(&self, block: Pblk, seal: extant_buffer::Seal, fill: &mut dyn FnMut(&mut [u8])) {
        self.direct.fresh(block, seal, fill);
    }

    fn revoke(&self, block: Pblk) {
        self.direct.revoke(block);
    }
}

/// A step that meets an error reports it and has changed nothing; or it did part of its work, and returns
/// where to continue.
#[test]
fn a_fault_ends_a_step_between_leaves() {
    let toy = Toy::new(BlockSize::MIN);
    let (mut map, mut model) = scattered_tree(&toy, 1 << 12);
    let (mut refused, mut halves) = (0, 0);
    for left in 0..24 {
        for from in [2, 1027, 8003, 16_000] {
            let edit = || Failing { direct: Direct(&toy.buffers), left, changed: RefCell::default() };
            let failing = edit();
            let editor = Editor { buffers: &toy.buffers, edit: &failing, space: &toy };
            match map.shift_right_step(&editor, from..1 << 32, 3, u32::MAX) {
                Ok(end) => {
                    halves += u32::from(failing.changed.borrow().len() == left);
                    let end = end.unwrap_or(from);
                    model = moved(&model, end..1 << 32, |lblk| lblk + 3);
                    check(&map, &toy, &model);
                    shift_left(&mut map, &toy, &mut model, end + 3, 3, u32::MAX, 100);
                }
                Err(_) => refused += 1,
            }
            check(&map, &toy, &model);
            remove(&mut map, &toy, &mut model, from - 2..from, 9).unwrap();
            let failing = edit();
            let editor = Editor { buffers: &toy.buffers, edit: &failing, space: &toy };
            match map.shift_left_step(&editor, from, 2, u32::MAX) {
                Ok(next) => {
                    halves += u32::from(failing.changed.borrow().len() == left);
                    model = moved(&model, from..next.unwrap_or(1 << 32), |lblk| lblk - 2);
                }
                Err(_) => refused += 1,
            }
            check(&map, &toy, &model);
        }
    }
    assert!(refused > 10 && halves > 50, "{refused} refused, {halves} half done");
}

#[test]
fn a_move_that_cannot_be_is_refused_before_anything_changed() {
    let toy = Toy::new(BlockSize::MIN);
    let (mut map, mut model) = (empty(true), Model::new());
    for lblk in [5, 100, 200, u32::MAX - 3] {
        insert(&mut map, &toy, &mut model, written(lblk, 3, DATA + u64::from(lblk % 1000))).unwrap();
    }
    let said = |refused: EditFault| refused.to_string();
    // The highest possible block is 2^32 - 2.
    let refused = shift_right(&mut map, &toy, &mut model, 6, 1, 1, 1).unwrap_err();
    assert_eq!(said(refused), "the file is too large for its block map");
    assert_eq!(toy.out.borrow().len(), 0, "nor was room made");
    remove(&mut map, &toy, &mut model, (1 << 32) - 2..1 << 32, 1).unwrap();
    // The root is full, and an extent must be split.
    toy.left.set(0);
    let refused = shift_right(&mut map, &toy, &mut model, 6, 1, 1, 1).unwrap_err();
    assert_eq!(said(refused), "no space for the file's block map");
    shift_right(&mut map, &toy, &mut model, 5, 1, 1, 1).unwrap();
    let refused = shift_right(&mut map, &toy, &mut model, 5, 1, 1, 1).unwrap_err();
    assert_eq!(said(refused), "the file is too large for its block map");
    // Without a hole a move fails.
    let (refused, _) = toy.edit(|editor| map.shift_left_step(editor, 200, 98, 9));
    assert_eq!(said(refused.unwrap_err()), "logical block 102 or one behind it is mapped already");
    let (refused, _) = toy.edit(|editor| map.shift_right_step(editor, 0..102, 7, 9));
    assert_eq!(said(refused.unwrap_err()), "logical block 102 or one behind it is mapped already");
    check(&map, &toy, &model);
    // With a free block the shift succeeds; the tree gets one level higher.
    toy.left.set(1);
    remove(&mut map, &toy, &mut model, 1 << 20..1 << 32, 1).unwrap();
    insert(&mut map, &toy, &mut model, written(300, 3, DATA + 300)).unwrap();
    shift_right(&mut map, &toy, &mut model, 7, 1, 1, 1).unwrap();
    assert_eq!((map.depth(), toy.left.get()), (1, 0));
}

/// The kernel accepts leaves without entries; nothing moves past the keys that lead to them.
#[test]
fn a_leaf_without_entries_is_no_room() {
    let toy = Toy::new(BlockSize::MIN);
    let leaf = |lblks: &[u32]| {
        let slot = |lblk: &u32| {
            extant_ondisk::extent::Extent {
                lblk: *lblk,
                len: 3,
                start: DATA + u64::from(*lblk),
                unwritten: false,
            }
            .slot()
        };
        lblks.iter().map(slot).collect::<Vec<_>>()
    };
    let mut map = empty(true);
    let mut slots = Vec::new();
    for (block, key, lblks) in [(50, 0, &[0, 30][..]), (51, 50, &[]), (52, 60, &[60, 70])] {
        let owner = Owner { kind: Kind::Extents, ino: 12 };
        let fill = &mut |bytes: &mut [u8]| init_node(bytes, 0, &leaf(lblks));
        toy.buffers.fresh(Pblk(block), owner, extant_base::Tid(1), fill);
        slots.push(extant_ondisk::extent::Index { lblk: key, child: block }.slot());
    }
    init_node(&mut map.i_block, 1, &slots);
    let before = mapped_blocks(&map, &toy.buffers);
    let (refused, _) = toy.edit(|editor| map.shift_left_step(editor, 60, 20, 9));
    assert!(refused.unwrap_err().to_string().contains("must begin after the one before"));
    // The next leaf has moved when the error is met: that step succeeds, the following one fails.
    let (done, _) = toy.edit(|editor| map.shift_right_step(editor, 30..1 << 32, 20, 9));
    assert_eq!(done.unwrap(), Some(50));
    let (refused, _) = toy.edit(|editor| map.shift_right_step(editor, 30..50, 20, 9));
    assert!(refused.unwrap_err().to_string().contains("must end before the parent's next key"));
    assert_eq!(mapped_blocks(&map, &toy.buffers), moved(&before, 50..100, |lblk| lblk + 20));
    // Where there is room, everything moves.
    let (done, _) = toy.edit(|editor| map.shift_left_step(editor, 80, 25, 9));
    assert_eq!(done.unwrap(), None);
}

proptest! {
    #[test]
    fn damaged_maps_are_moved_or_refused(
        mut nodes in prop::collection::vec(
            (0u16..3, 4u16..90, prop::collection::vec((0u32..90, 0u16..9, 0u16..2, 0u32..20), 1..5)), 12),
        sorted: bool, ops in prop::collection::vec((any::<bool>(), 0u32..99, 1u32..40, 1u32..9), 1..12),
    ) {
        if sorted {
            for (i, (depth, max, slots)) in nodes.iter_mut().enumerate() {
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
        let mut map = FileMap { ino: Ino(12), i_block, extents: true, seed: None };
        let (space, direct) = (Careless(Cell::new(40)), Direct(&buffers));
        let editor = Editor { buffers: &buffers, edit: &direct, space: &space };
        for (is_left, from, by, max) in ops {
            let mut next = Some(if is_left { u64::from(from + by) } else { 1 << 32 });
            while let Some(at) = next {
                let step = match is_left {
                    true => map.shift_left_step(&editor, at, by, max),
                    false => map.shift_right_step(&editor, from.into()..at, by, max),
                };
                next = step.unwrap_or(None);
                assert!(next.is_none_or(|next| if is_left { next > at } else { next < at }));
            }
        }
    }
}
