//! Directories with arbitrary bytes in their blocks: a change ends with a result or a fault, never with a
//! panic, even if a block has several roles.

use extant_buffer::{Direct, Edit, Kind, Owner, Seal};

use super::*;

/// A damage of a directory's bytes.
#[derive(Debug, Clone)]
enum Damage {
    /// An entry of an index block, or the bytes in its place, refers to this block.
    Child { block: usize, entry: usize, to: usize },
    /// All entries of an index block refer to this block; of the root, if `root`.
    Children { root: bool, index: usize, to: usize, is_to_index: bool },
    /// One block is a copy of another.
    Copy { block: usize, from: usize },
    /// Two bytes are changed.
    Bytes { block: usize, at: usize, to: u16 },
    /// A whole block is overwritten.
    Fill { block: usize, bytes: Vec<u8> },
    /// The number of levels is changed.
    Levels(u8),
    /// ".." of the root has this inode.
    Parent(u32),
}

fn damage() -> impl Strategy<Value = Damage> {
    let block = any::<usize>();
    prop_oneof![
        4 => (block, 0usize..8, block).prop_map(|(block, entry, to)| Damage::Child { block, entry, to }),
        2 => (block, block).prop_map(|(block, from)| Damage::Copy { block, from }),
        2 => (block, 0usize..1023, any::<u16>()).prop_map(|(block, at, to)| Damage::Bytes { block, at, to }),
        6 => (any::<bool>(), 0usize..64, any::<usize>(), any::<bool>()).prop_map(|(root, index, to, is_to_index)| {
            Damage::Children { root, index, to, is_to_index }
        }),
        1 => (block, prop::collection::vec(any::<u8>(), 1024)).prop_map(|(block, bytes)| Damage::Fill { block, bytes }),
        1 => (0u8..4).prop_map(Damage::Levels),
        1 => prop::sample::select(vec![0, u32::MAX]).prop_map(Damage::Parent),
    ]
}

fn apply(toy: &Toy, damage: &Damage) {
    let len = toy.len.get() as usize;
    let put = |block: usize, change: &mut dyn FnMut(&mut [u8])| {
        let seal = Seal { owner: Owner { kind: Kind::Other, ino: 0 }, seed: None };
        Direct(&toy.buffers).change(extant_base::Pblk((block % len) as u64), seal, change).unwrap();
    };
    let index_blocks = || -> Vec<usize> {
        let index = toy.format.index;
        (1..len).filter(|lblk| index.decode_node(&toy.bytes(*lblk as u32)).is_ok()).collect()
    };
    match damage {
        Damage::Children { root, index, to, is_to_index } => {
            let nodes = index_blocks();
            let block = if *root || nodes.is_empty() { 0 } else { nodes[index % nodes.len()] };
            let to = if *is_to_index && !nodes.is_empty() { nodes[to % nodes.len()] } else { to % len };
            put(block, &mut |bytes| {
                let begin = if block == 0 { 32 } else { 8 };
                for entry in bytes[begin..].chunks_exact_mut(8) {
                    entry[4..].copy_from_slice(&(to as u32).to_le_bytes());
                }
            });
        }
        Damage::Child { block, entry, to } => put(*block, &mut |bytes| {
            let begin = if block % len == 0 { 32 } else { 8 };
            let at = begin + 8 * entry + 4;
            bytes[at..at + 4].copy_from_slice(&((to % len) as u32).to_le_bytes());
        }),
        Damage::Copy { block, from } => {
            let source = toy.bytes((from % len) as u32);
            put(*block, &mut |bytes| bytes.copy_from_slice(&source));
        }
        Damage::Bytes { block, at, to } => put(*block, &mut |bytes| {
            bytes[*at..*at + 2].copy_from_slice(&to.to_le_bytes());
        }),
        Damage::Fill { block, bytes } => put(*block, &mut |there| there.copy_from_slice(bytes)),
        Damage::Levels(levels) => put(0, &mut |bytes| bytes[30] = *levels),
        Damage::Parent(ino) => put(0, &mut |bytes| bytes[12..16].copy_from_slice(&ino.to_le_bytes())),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn nothing_in_the_blocks_makes_a_change_panic(
        csum: bool,
        large_dir: bool,
        count in prop::sample::select(vec![3u32, 60, 500, 700, 1500]),
        damages in prop::collection::vec(damage(), 1..6),
        steps in prop::collection::vec((0u8..16, 0u32..1500), 1..250),
        limit in prop::sample::select(vec![0usize, 64 << 20]),
    ) {
        let toy = Toy::new(Like { csum, large_dir, ..Like::default() });
        let mut cache = DirCache::new(limit);
        for number in 0..count {
            toy.editor(&mut cache).insert(&name(number, 250 - number as usize % 2 * 150), Ino(number + 20), FileType::Regular).unwrap();
        }
        damages.iter().for_each(|damage| apply(&toy, damage));
        let mut cache = DirCache::new(limit);
        for (what, number) in steps {
            let name = name(number, if what % 2 == 0 { 100 } else { 250 });
            let mut editor = toy.editor(&mut cache);
            match what {
                0..9 => drop(editor.insert(&name, Ino(9), FileType::Regular)),
                9..13 => drop(editor.remove(&name)),
                13 => drop(editor.replace(&name, Ino(8), FileType::Fifo)),
                14 => drop((editor.lookup(&name), editor.levels())),
                _ => drop((editor.is_empty(), editor.set_parent(Ino(3)))),
            }
        }
        // Removes all names, which frees index blocks, and finally the index.
        for number in 0..count {
            drop(toy.editor(&mut cache).remove(&name(number, 250 - number as usize % 2 * 150)));
        }
    }
}

/// An entry with inode 0 is free space. Without an index, the remaining block could not store such a "..".
#[test]
fn an_index_whose_dotdot_leads_nowhere_can_be_emptied() {
    let toy = Toy::new(Like { csum: false, ..Like::default() });
    let mut cache = DirCache::default();
    let names: Vec<_> = (0..60).map(|number| name(number, 100)).collect();
    for name in &names {
        toy.editor(&mut cache).insert(name, Ino(20), FileType::Regular).unwrap();
    }
    assert!(toy.indexed.get());
    apply(&toy, &Damage::Parent(0));
    let mut cache = DirCache::default();
    for name in &names {
        toy.editor(&mut cache).remove(name).unwrap();
    }
    assert!(
        matches!(toy.editor(&mut cache).is_empty(), Err(EditFault::Read(_))),
        "found before it is removed"
    );
    assert!(toy.indexed.get());
    toy.editor(&mut cache).insert(&names[0], Ino(20), FileType::Regular).unwrap();
}

#[test]
fn an_inline_directory_whose_dotdot_leads_nowhere_stays_inline() {
    let format = Toy::new(Like::default()).format.entries;
    let target = DirTarget { ino: INO, indexed: false, casefold: false, encrypted: false };
    let (mut parent, mut first) = (Ino(0), [0; 56]);
    InlineEditor::lay_empty(&format, &mut first, &mut []);
    let editor = InlineEditor::new(target, &format, &mut parent, &mut first, &mut []).unwrap();
    assert!(matches!(editor.to_block(), Err(EditFault::Read(_))));
}

/// A block that is both a node and a leaf: writing the node invalidates the leaf's notes. That is reported as
/// damage, without a panic.
#[test]
fn a_leaf_that_was_changed_as_a_node_is_damage() {
    let mut faults = 0;
    for number in 300..340 {
        let toy = Toy::new(Like { csum: false, ..Like::default() });
        let mut cache = DirCache::default();
        for number in 0..300 {
            toy.editor(&mut cache).insert(&name(number, 100), Ino(number + 20), FileType::Regular).unwrap();
        }
        let noted: Vec<u32> =
            (1..toy.len.get()).filter(|lblk| cache.leaves.cache.notes(Lblk(*lblk)).is_some()).collect();
        assert!(noted.len() > 20);
        let seal = Seal { owner: Owner { kind: Kind::DirIndex, ino: 0 }, seed: None };
        for lblk in noted {
            // Overwrites the length of a name, or a byte of its inode.
            let put = &mut |bytes: &mut [u8]| bytes[6..].iter_mut().step_by(4).for_each(|byte| *byte = 0xFE);
            Direct(&toy.buffers).change(extant_base::Pblk(lblk.into()), seal, put).unwrap();
        }
        let inserted = toy.editor(&mut cache).insert(&name(number, 250), Ino(number + 20), FileType::Regular);
        match inserted {
            // Leaves without notes are unchanged.
            Ok(()) => {}
            Err(EditFault::Read(_)) => faults += 1,
            Err(fault) => panic!("{fault}"),
        }
    }
    assert!(faults > 10, "{faults}");
}

/// The number of cases; set `DIR_CASES` for more.
fn cases() -> u32 {
    std::env::var("DIR_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(256)
}
