//! Unwritten extents that are converted piece by piece, in the order of writeback and in any other.

use super::*;

const LONG: u32 = extant_ondisk::extent::MAX_UNWRITTEN_LEN;

fn unwritten(lblk: u32, len: u32, start: u64) -> Mapped {
    Mapped { state: MapState::Unwritten(Pblk(start)), ..written(lblk, len, start) }
}

/// The map's extents from `from` on: start, length, and whether they are written.
fn extents(map: &FileMap, toy: &Toy, from: u32) -> Vec<(u32, u32, bool)> {
    let mut extents = Vec::new();
    map.walk(&toy.buffers, Lblk(from), &mut |piece| {
        extents.push((piece.lblk.0, piece.len, matches!(piece.state, MapState::Written(_))));
        Some(())
    })
    .unwrap();
    extents
}

/// A map with `entries` entries in the last leaf, where further extents go; and the next logical block.
fn map_with(toy: &Toy, depth: u32, entries: u32) -> (FileMap, Model, u32) {
    let (mut map, mut model) = (empty(true), Model::new());
    let before = match depth {
        0 => 0,
        1 => 84,
        _ => 84 * 84,
    };
    for i in 0..before + entries {
        insert(&mut map, toy, &mut model, written(2 * i, 1, DATA - 30_000 + 2 * u64::from(i))).unwrap();
    }
    (map, model, 2 * (before + entries))
}

/// As in writeback: 16 blocks at a time, from the front. Adds one entry, once, and needs no tree block.
#[test]
fn from_the_front_one_more_entry_is_enough() {
    for (depth, room) in [(0, 4), (1, 84), (2, 84)] {
        for taken in [0, room - 2] {
            let toy = Toy::new(BlockSize::MIN);
            let (mut map, mut model, at) = map_with(&toy, depth, taken);
            insert(&mut map, &toy, &mut model, unwritten(at, LONG, DATA)).unwrap();
            assert_eq!(map.depth(), depth);
            // With the larger `taken` the leaf has room for only one more entry.
            toy.left.set(0);
            for from in (0..LONG).step_by(16) {
                let to = LONG.min(from + 16);
                let range = u64::from(at + from)..u64::from(at + to);
                set_state(&mut map, &toy, &mut model, range, false, 1);
                let mut expected = vec![(at, to, true)];
                expected.extend((to < LONG).then_some((at + to, LONG - to, false)));
                assert_eq!(extents(&map, &toy, at), expected);
            }
            verify(&map, &toy);
            assert_eq!(mapped_blocks(&map, &toy.buffers), model);
        }
    }
}

/// Several extents in a row: written pieces merge with those before up to the maximum length of an extent,
/// and each unwritten extent exists until its end is converted.
#[test]
fn a_file_of_long_extents_has_one_more_than_before() {
    let toy = Toy::new(BlockSize::MIN);
    let (mut map, mut model) = (empty(true), Model::new());
    for i in 0..3 {
        insert(&mut map, &toy, &mut model, unwritten(i * LONG, LONG, DATA + u64::from(i * LONG))).unwrap();
    }
    // The root has room for four.
    toy.left.set(0);
    for from in (0..3 * LONG).step_by(16) {
        let to = (3 * LONG).min(from + 16);
        set_state(&mut map, &toy, &mut model, from.into()..to.into(), false, 3);
        assert!(extents(&map, &toy, 0).len() <= 4);
    }
    assert_eq!(map.depth(), 0);
    verify(&map, &toy);
    assert_eq!(mapped_blocks(&map, &toy.buffers), model);
}

/// If the pieces continue a written extent, the entry is added where that reaches the maximum length: one,
/// once, but late.
#[test]
fn what_is_written_before_is_continued_as_long_as_it_can_be() {
    let toy = Toy::new(BlockSize::MIN);
    let (mut map, mut model) = (empty(true), Model::new());
    insert(&mut map, &toy, &mut model, written(0, 20_000, DATA)).unwrap();
    insert(&mut map, &toy, &mut model, unwritten(20_000, LONG, DATA + 20_000)).unwrap();
    toy.left.set(0);
    let mut counts = Vec::new();
    for from in (20_000..20_000 + LONG).step_by(16) {
        let to = (20_000 + LONG).min(from + 16);
        set_state(&mut map, &toy, &mut model, from.into()..to.into(), false, 1);
        counts.push(extents(&map, &toy, 0).len());
    }
    counts.dedup();
    assert_eq!(counts, [2, 3, 2]);
    verify(&map, &toy);
    assert_eq!(mapped_blocks(&map, &toy.buffers), model);
}

/// The first piece may need a split of a full leaf. Without a free block it fails and changes nothing. With
/// [`nodes_of_split`] blocks it succeeds, and later pieces need no more.
#[test]
fn a_full_leaf_refuses_the_first_piece_or_is_split_once() {
    for (depth, room) in [(0, 4), (1, 84), (2, 84)] {
        let toy = Toy::new(BlockSize::MIN);
        let (mut map, mut model, at) = map_with(&toy, depth, room - 1);
        insert(&mut map, &toy, &mut model, unwritten(at, LONG, DATA)).unwrap();
        let (before, out, from) = (map.i_block, toy.out.borrow().len(), u64::from(at));
        toy.left.set(0);
        let (refused, _) = toy.edit(|editor| map.set_state(editor, from..from + 16, false, 1));
        assert!(matches!(refused, Err(EditFault::NoSpace)), "{depth}: {refused:?}");
        assert_eq!((before, out), (map.i_block, toy.out.borrow().len()));
        assert_eq!(mapped_blocks(&map, &toy.buffers), model);
        toy.left.set(nodes_of_split(map.depth()) as usize);
        for piece in 0..100 {
            let from = from + 16 * piece;
            set_state(&mut map, &toy, &mut model, from..from + 16, false, 1);
            toy.left.set(0);
        }
        assert_eq!(extents(&map, &toy, at), [(at, 1600, true), (at + 1600, LONG - 1600, false)]);
        verify(&map, &toy);
        assert_eq!(mapped_blocks(&map, &toy.buffers), model);
    }
}

/// In any other order each piece adds up to two entries. A piece that finds no room changes nothing. It
/// succeeds when it is retried with the blocks that splits at both its ends may need.
#[test]
fn in_no_order_a_refused_piece_is_done_later() {
    let toy = Toy::new(BlockSize::MIN);
    let (mut map, mut model) = (empty(true), Model::new());
    insert(&mut map, &toy, &mut model, unwritten(0, LONG, DATA)).unwrap();
    let (mut refusals, mut entries_max) = (0, 0);
    for i in 0..2048u32 {
        // Every second piece first, of those every second first, and so on.
        let from = 16 * (i.reverse_bits() >> 21);
        let range = u64::from(from)..u64::from(LONG.min(from + 16));
        toy.left.set(0);
        let (before, out) = (map.i_block, toy.out.borrow().len());
        let (done, _) = toy.edit(|editor| map.set_state(editor, range.clone(), false, 1));
        match done {
            Ok(next) => {
                assert_eq!(next, None);
                let blocks = model.range_mut(range.start as u32..range.end as u32);
                blocks.for_each(|(_, state)| state.1 = false);
            }
            Err(EditFault::NoSpace) => {
                refusals += 1;
                assert_eq!((before, out), (map.i_block, toy.out.borrow().len()));
                assert_eq!(mapped_blocks(&map, &toy.buffers), model);
                // At worst the second split finds the tree one level higher.
                let depth = map.depth();
                toy.left.set((nodes_of_split(depth) + nodes_of_split(depth + 1)) as usize);
                set_state(&mut map, &toy, &mut model, range, false, 1);
            }
            Err(fault) => panic!("{fault}"),
        }
        entries_max = entries_max.max(extents(&map, &toy, 0).len());
    }
    verify(&map, &toy);
    assert_eq!(mapped_blocks(&map, &toy.buffers), model);
    assert!(refusals > 10 && entries_max > 2000, "{refusals} refusals, {entries_max} extents");
    // Merged within the leaves that they are in.
    assert!(extents(&map, &toy, 0).len() <= toy.out.borrow().len());
}

/// Several extents, and no block for the second: the first call reports that the first extent is done, the
/// next call fails and changes nothing. So a caller need not search for what a failed call has done.
#[test]
fn changes_made_before_a_refusal_are_returned() {
    let toy = Toy::new(BlockSize::MIN);
    let (mut map, mut model) = (empty(true), Model::new());
    for i in 0..4 {
        insert(&mut map, &toy, &mut model, unwritten(100 * i, 16, DATA + 1000 * u64::from(i))).unwrap();
    }
    // The root has room for these four.
    toy.left.set(0);
    let (done, _) = toy.edit(|editor| map.set_state(editor, 0..108, false, 3));
    let Ok(Some(from @ 16..=100)) = done else { panic!("{done:?}") };
    model.range_mut(0..16).for_each(|(_, state)| state.1 = false);
    assert_eq!(mapped_blocks(&map, &toy.buffers), model);
    let (refused, _) = toy.edit(|editor| map.set_state(editor, from..108, false, 3));
    assert!(matches!(refused, Err(EditFault::NoSpace)), "{refused:?}");
    assert_eq!(mapped_blocks(&map, &toy.buffers), model);
    verify(&map, &toy);
}
