//! Compares maps built by ondisk's writers, on a device in memory, with plain models; and tests hostile
//! bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use extant_base::BlockSize;
use extant_device::{Device, MemDevice};
use extant_memory::Budget;
use extant_ondisk::extent::{self, Entries, Extent, ExtentNode, Index, TreeShape};
use extant_ondisk::indirect::{self, DataExtent};
use proptest::prelude::*;

use super::*;

const INO: Ino = Ino(12);
const BLOCKS: u64 = 1 << 20;
const BS: BlockSize = BlockSize::MIN;

fn image(blocks: &[(Pblk, Vec<u8>)]) -> Arc<Buffers> {
    let device = MemDevice::new(BLOCKS * BS.bytes());
    for (block, bytes) in blocks {
        device.write_at(block.0 * BS.bytes(), bytes).unwrap();
    }
    Buffers::new(Arc::new(device), BS, BLOCKS, &Budget::new(64 << 20))
}

fn extent(lblk: u32, len: u32, start: u64) -> Extent {
    Extent { lblk, len, start, unwritten: false }
}

/// A packed tree in blocks 1000 and on.
fn tree_of(extents: &[Extent], seed: Option<u32>) -> (FileMap, Arc<Buffers>) {
    let count = TreeShape::for_extents(extents.len(), BS).blocks() as u64;
    let places: Vec<_> = (1000..1000 + count).map(Pblk).collect();
    let (i_block, nodes) = extent::encode_tree(extents, BS, &places, seed);
    let blocks: Vec<_> = places.into_iter().zip(nodes).collect();
    (FileMap { ino: INO, i_block, extents: true, seed }, image(&blocks))
}

fn node(depth: u16, entries: Entries) -> Vec<u8> {
    let mut bytes = vec![0; BS.len()];
    ExtentNode { depth, max: 84, generation: 0, entries }.encode(&mut bytes);
    bytes
}

fn root(depth: u16, entries: Entries) -> FileMap {
    let mut i_block = [0; 60];
    ExtentNode { depth, max: 4, generation: 0, entries }.encode(&mut i_block);
    FileMap { ino: INO, i_block, extents: true, seed: None }
}

fn all_of(map: &FileMap, buffers: &Buffers, from: u32) -> Vec<Mapped> {
    let mut all = Vec::new();
    map.walk(buffers, Lblk(from), &mut |piece| {
        all.push(piece);
        Some(())
    })
    .unwrap();
    all
}

/// First block and length of the pieces that begin before `end`.
fn until(map: &FileMap, buffers: &Buffers, end: u64) -> Vec<(u32, u32)> {
    let mut visited = Vec::new();
    map.walk_until(buffers, Lblk(0), end, &mut |piece| {
        visited.push((piece.lblk.0, piece.len));
        Some(())
    })
    .unwrap();
    visited
}

/// An indirect block may be its own child in every slot: only `end` keeps its walk short.
#[test]
fn a_walk_of_repeated_indirect_blocks_ends_where_the_callback_stops_it() {
    let mut bytes = vec![0; BS.len()];
    bytes.as_chunks_mut::<4>().0.iter_mut().for_each(|slot| *slot = 7u32.to_le_bytes());
    let buffers = image(&[(Pblk(7), bytes)]);
    let mut i_block = [0; 60];
    i_block.as_chunks_mut::<4>().0.iter_mut().for_each(|slot| *slot = 7u32.to_le_bytes());
    let map = FileMap { ino: INO, i_block, extents: false, seed: None };
    let visited = until(&map, &buffers, 1000);
    assert_eq!(visited, (0..1000).map(|lblk| (lblk, 1)).collect::<Vec<_>>());
}

#[test]
fn a_walk_of_a_tree_ends_where_the_callback_stops_it() {
    let extents: Vec<_> = (0..3000).map(|i| extent(i * 4, 2, 5000 + u64::from(i) * 8)).collect();
    let (map, buffers) = tree_of(&extents, Some(3));
    for (end, count) in [(0, 0), (1, 1), (4, 1), (5, 2), (4000, 1000), (1 << 32, 3000)] {
        assert_eq!(until(&map, &buffers, end).len(), count, "until {end}");
    }
}

fn rule_of<T: std::fmt::Debug>(result: Result<T, ReadFault>) -> &'static str {
    match result {
        Err(ReadFault::Corrupt(corrupt)) => {
            assert_eq!(corrupt.place.ino, Some(INO));
            corrupt.fact.rule
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn extents_holes_and_neighbours() {
    let extents = [
        extent(5, 10, 100),
        extent(15, 5, 110),
        Extent { unwritten: true, ..extent(20, 5, 115) },
        extent(100, 1, 115),
    ];
    let (map, buffers) = tree_of(&extents, None);
    let find = |lblk, len| {
        let Mapped { lblk: at, len, state } = map.find(&buffers, Lblk(lblk), len).unwrap();
        assert_eq!(at, Lblk(lblk));
        (len, state)
    };
    assert_eq!(find(0, u32::MAX), (5, MapState::Hole));
    assert_eq!(find(3, 1), (1, MapState::Hole));
    assert_eq!(find(5, u32::MAX), (15, MapState::Written(Pblk(100))), "two extents side by side");
    assert_eq!(find(7, 3), (3, MapState::Written(Pblk(102))));
    assert_eq!(find(14, 0), (1, MapState::Written(Pblk(109))));
    assert_eq!(find(21, 100), (4, MapState::Unwritten(Pblk(116))));
    assert_eq!(find(25, u32::MAX), (75, MapState::Hole));
    assert_eq!(find(101, u32::MAX), (u32::MAX - 100, MapState::Hole));
    assert_eq!(find(u32::MAX, u32::MAX), (1, MapState::Hole));
    assert_eq!(all_of(&map, &buffers, 0).len(), 4, "as the tree has them");
    assert_eq!(
        all_of(&map, &buffers, 17)[0],
        Mapped { lblk: Lblk(17), len: 3, state: MapState::Written(Pblk(112)) }
    );
}

#[test]
fn a_deep_tree_is_searched_and_walked_in_order() {
    for (seed, count) in [(None, 300), (Some(77), 20_000)] {
        let extents: Vec<_> = (0..count).map(|i| extent(i * 10, 7, 2000 + u64::from(i) * 8)).collect();
        let (map, buffers) = tree_of(&extents, seed);
        for i in (0..count).step_by(7) {
            let found = map.find(&buffers, Lblk(i * 10 + 2), 100).unwrap();
            assert_eq!(found.state, MapState::Written(Pblk(2002 + u64::from(i) * 8)));
            assert_eq!(found.len, 5);
            let found = map.find(&buffers, Lblk(i * 10 + 8), 100).unwrap();
            assert_eq!((found.len, found.state), (if i + 1 < count { 2 } else { 100 }, MapState::Hole));
        }
        assert_eq!(all_of(&map, &buffers, 0).len(), count as usize);
        assert_eq!(all_of(&map, &buffers, 1000)[0].lblk, Lblk(1000));
        assert_eq!(all_of(&map, &buffers, 1007)[0].lblk, Lblk(1010), "from a hole on");
        let mut blocks = Vec::new();
        map.walk_tree_blocks(&buffers, &mut |block| {
            blocks.push(block.0);
            Some(())
        })
        .unwrap();
        blocks.sort_unstable();
        let shape = TreeShape::for_extents(extents.len(), BS);
        assert_eq!(blocks, (1000..1000 + shape.blocks() as u64).collect::<Vec<_>>());
        let mut visited = 0;
        map.walk(&buffers, Lblk(0), &mut |_| (visited < 99).then(|| visited += 1)).unwrap();
        assert_eq!(visited, 99, "ends when the callback stops it");
    }
}

#[test]
fn each_rule_of_a_tree_is_named_when_broken() {
    let index = |lblk, child| Index { lblk, child };
    let leaf = |extents: &[Extent]| node(0, Entries::Leaf(extents.to_vec()));
    let buffers = image(&[
        (Pblk(50), node(1, Entries::Inner(vec![index(0, 50)]))),
        (Pblk(51), leaf(&[extent(3, 1, 900)])),
        (Pblk(52), leaf(&[extent(10, 11, 900)])),
        (Pblk(53), leaf(&[extent(0, 4, BLOCKS - 3)])),
        (Pblk(54), leaf(&[extent(0, 4, 0)])),
        (Pblk(55), leaf(&[extent(0, 4, 900)])),
    ]);
    let cases: [(&[Index], &str); 7] = [
        (&[index(0, 50)], "must be one level below its parent"),
        (&[index(5, 51)], "must begin at or after its key in the parent"),
        (&[index(0, 52), index(20, 51)], "must end before the parent's next key"),
        (&[index(0, 53)], "blocks must lie inside the file system"),
        (&[index(0, 54)], "blocks must lie inside the file system"),
        (&[index(0, BLOCKS)], "block must lie inside the file system"),
        (&[index(0, 60)], "magic must be 0xF30A"),
    ];
    for (entries, rule) in cases {
        let map = root(1, Entries::Inner(entries.to_vec()));
        assert_eq!(rule_of(map.find(&buffers, Lblk(entries[0].lblk), 9)), rule);
        assert_eq!(rule_of(map.walk(&buffers, Lblk(0), &mut |_| Some(()))), rule);
    }
    let map = FileMap { i_block: [0; 60], ..root(0, Entries::Leaf(vec![])) };
    assert_eq!(rule_of(map.find(&buffers, Lblk(0), 9)), "magic must be 0xF30A");
    let map = FileMap { seed: Some(1), ..root(1, Entries::Inner(vec![index(0, 55)])) };
    assert_eq!(rule_of(map.find(&buffers, Lblk(0), 9)), "checksum must match");
    let map = root(1, Entries::Inner(vec![index(7, 51)]));
    assert_eq!(map.find(&buffers, Lblk(2), 99).unwrap().len, 5, "before the first key: a hole, nothing read");
}

#[test]
fn indirect_files() {
    // Direct, single, double and triple: each with a hole in it.
    let a = 256;
    let runs = [(0, 3), (5, 9), (12 + a + 700, 40), (12 + a + a * a + 3 * a * a + 7, 2)];
    let mut next = 5000;
    let data: Vec<_> = runs
        .iter()
        .map(|&(lblk, len_blocks)| {
            next += 100;
            DataExtent { lblk: Lblk(lblk), pblk: Pblk(next), len_blocks }
        })
        .collect();
    let encoded = indirect::encode(BS, data.iter().copied(), (2000..).map(Pblk)).unwrap();
    let buffers = image(&encoded.blocks);
    let map = FileMap { ino: INO, i_block: encoded.i_block, extents: false, seed: Some(5) };
    let find = |lblk, len| {
        let found = map.find(&buffers, Lblk(lblk), len).unwrap();
        (found.len, found.state)
    };
    assert_eq!(find(1, 9), (2, MapState::Written(Pblk(5101))));
    assert_eq!(find(3, 9), (2, MapState::Hole));
    assert_eq!(find(14, u32::MAX), (a - 2, MapState::Hole), "the rest of the single block");
    assert_eq!(find(12 + a, u32::MAX), (a, MapState::Hole), "a subtree that is not there");
    assert_eq!(find(12 + a + 701, 9), (9, MapState::Written(Pblk(5301))));
    assert_eq!(find(12 + a + a * a, u32::MAX), (a * a, MapState::Hole));
    assert_eq!(find(u32::MAX, u32::MAX), (1, MapState::Hole));
    let visited: Vec<_> = all_of(&map, &buffers, 0).iter().map(|piece| (piece.lblk.0, piece.len)).collect();
    assert_eq!(visited, runs, "merged over the border of direct and single");
    assert_eq!(until(&map, &buffers, 4), runs[..1]);
    assert_eq!(until(&map, &buffers, 6), runs[..2], "a piece that begins before the end is returned whole");
    assert_eq!(until(&map, &buffers, 14), runs[..2]);
    assert_eq!(until(&map, &buffers, 0), []);
    let mut blocks = Vec::new();
    map.walk_tree_blocks(&buffers, &mut |block| {
        blocks.push(block);
        Some(())
    })
    .unwrap();
    let made: Vec<_> = encoded.blocks.iter().map(|(place, _)| *place).collect();
    assert_eq!(blocks, made);

    let mut outside = map.clone();
    outside.i_block[..4].copy_from_slice(&(BLOCKS as u32).to_le_bytes());
    outside.i_block[48..52].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(rule_of(outside.find(&buffers, Lblk(0), 1)), "blocks must lie inside the file system");
    assert_eq!(rule_of(outside.find(&buffers, Lblk(12), 1)), "block must lie inside the file system");
    assert_eq!(
        rule_of(outside.walk_tree_blocks(&buffers, &mut |_| Some(()))),
        "blocks must lie inside the file system"
    );
}

/// The state of each block in the model.
fn model_of(extents: &[Extent]) -> BTreeMap<u32, (u64, bool)> {
    let blocks = |e: &Extent| {
        let e = *e;
        (0..e.len).map(move |i| (e.lblk + i, (e.start + u64::from(i), e.unwritten)))
    };
    extents.iter().flat_map(blocks).collect()
}

/// Depth, max, and entries as four numbers each.
type HostileNode = (u16, u16, Vec<(u32, u16, u16, u32)>);

proptest! {
    #[test]
    fn a_tree_is_searched_and_walked_as_the_model_says(
        steps in prop::collection::vec((0u32..4, 1u32..6, 0u64..3, any::<bool>()), 0..600), from in 0u32..500,
    ) {
        let (mut lblk, mut start) = (0, 3000);
        let extents: Vec<_> = steps.iter().map(|&(gap, len, jump, unwritten)| {
            (lblk, start) = (lblk + gap, start + jump);
            let made = Extent { lblk, len, start, unwritten };
            (lblk, start) = (lblk + len, start + u64::from(len));
            made
        }).collect();
        let model = model_of(&extents);
        let (map, buffers) = tree_of(&extents, Some(9));
        let mut at = 0;
        while at < lblk + 3 {
            let found = map.find(&buffers, Lblk(at), 50).unwrap();
            for i in 0..found.len {
                let expected = match model.get(&(at + i)) {
                    None => MapState::Hole,
                    Some(&(start, false)) => MapState::Written(Pblk(start - u64::from(i))),
                    Some(&(start, true)) => MapState::Unwritten(Pblk(start - u64::from(i))),
                };
                prop_assert_eq!(expected, found.state);
            }
            at += found.len;
        }
        let visited: usize = all_of(&map, &buffers, from).iter().map(|piece| piece.len as usize).sum();
        prop_assert_eq!(visited, model.range(from..).count());
    }

    #[test]
    fn hostile_trees_end(
        nodes in prop::collection::vec(
            (0u16..7, 0u16..90, prop::collection::vec((0u32..50, 0u16..9, 0u16..2, 0u32..20), 0..20)), 8),
        extents: bool, from in 0u32..60, flip in (0usize..60, any::<u8>()),
    ) {
        // Each node's numbers lead to blocks 0 to 19, where the nodes 1 to 7 are; node 0 is the root.
        let bytes_of = |(depth, max, slots): &HostileNode, len: usize| {
            let mut bytes = vec![0; len];
            for (word, at) in [(extent::MAGIC, 0), (slots.len() as u16, 2), (*max, 4), (*depth, 6)] {
                bytes[at..at + 2].copy_from_slice(&word.to_le_bytes());
            }
            for (slot, (key, len, high, low)) in bytes[12..].chunks_exact_mut(12).zip(slots) {
                slot[..4].copy_from_slice(&key.to_le_bytes());
                slot[4..6].copy_from_slice(&len.to_le_bytes());
                slot[6..8].copy_from_slice(&high.to_le_bytes());
                slot[8..].copy_from_slice(&low.to_le_bytes());
            }
            bytes
        };
        let blocks: Vec<_> =
            nodes.iter().enumerate().skip(1).map(|(i, node)| (Pblk(i as u64), bytes_of(node, 1024))).collect();
        let buffers = image(&blocks);
        let mut i_block: [u8; 60] = bytes_of(&nodes[0], 60).try_into().unwrap();
        i_block[flip.0] ^= flip.1;
        let map = FileMap { ino: INO, i_block, extents, seed: None };
        for lblk in 0..60 {
            if let Ok(found) = map.find(&buffers, Lblk(lblk), 1000) {
                prop_assert!((1..=1000).contains(&found.len));
            }
        }
        let mut visited = 0;
        let _ = map.walk(&buffers, Lblk(from), &mut |piece| {
            visited += 1;
            assert!(piece.len > 0 && piece.end() > from.into());
            (visited < 5000).then_some(())
        });
        let mut visited = 0;
        let _ = map.walk_tree_blocks(&buffers, &mut |_| {
            visited += 1;
            (visited < 5000).then_some(())
        });
    }
}
