//! Changes of directories compared with a model, with repeated checks of the whole structure.

mod crafted;
mod hostile;
mod toy;

use std::collections::BTreeSet;

use extant_base::BlockSize;
use extant_ondisk::hash::HashVersion;
use proptest::prelude::*;

use self::toy::{INO, Like, Model, PARENT, Toy, judge, listed};
use super::inline::InlineEditor;
use super::*;
use crate::{Dir, Storage};

const VERSIONS: [HashVersion; 6] = [
    HashVersion::Legacy,
    HashVersion::HalfMd4,
    HashVersion::Tea,
    HashVersion::LegacyUnsigned,
    HashVersion::HalfMd4Unsigned,
    HashVersion::TeaUnsigned,
];

fn like() -> impl Strategy<Value = Like> {
    let sizes = prop::sample::select(vec![1024u64, 1024, 2048, 4096, 65536]);
    (sizes, any::<bool>(), any::<bool>(), any::<bool>(), prop::sample::select(VERSIONS.to_vec())).prop_map(
        |(block_size, csum, filetype, large_dir, version)| Like {
            block_size: BlockSize::from_bytes(block_size).unwrap(),
            csum,
            filetype,
            large_dir,
            version,
        },
    )
}

fn name(number: u32, len: usize) -> Vec<u8> {
    let mut name = format!("é{number}-").into_bytes();
    let len = len.max(name.len());
    name.resize(len, b'x');
    name
}

/// An insert that must succeed within the reserved blocks.
fn insert(toy: &Toy, cache: &mut DirCache, model: &mut Model, name: &[u8], ino: u32) {
    let mut editor = toy.editor(cache);
    let needs = Needs::insert(editor.levels().unwrap());
    toy.done.set((0, 0, 0));
    editor.insert(name, Ino(ino), FileType::Regular).unwrap();
    // Counts appends and pops only: a block may be changed several times, but the reservation counts it once.
    let (_, appends, pops) = toy.done.get();
    assert!(appends <= needs.appends && pops == 0, "{appends} of {needs:?}");
    assert_eq!(model.insert(name.to_vec(), ino), None);
}

fn remove(toy: &Toy, cache: &mut DirCache, model: &mut Model, name: &[u8]) {
    let mut editor = toy.editor(cache);
    let needs = Needs::remove(editor.levels().unwrap());
    toy.done.set((0, 0, 0));
    let ino = editor.remove(name).unwrap();
    let (_, appends, pops) = toy.done.get();
    assert!(appends == 0 && pops <= needs.pops, "{pops} of {needs:?}");
    assert_eq!(model.remove(name), Some(ino.0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn as_a_map_of_names(
        like in like(),
        steps in prop::collection::vec((0u8..16, 0u32..400, 1usize..256), 1..1500),
        limit in prop::sample::select(vec![0usize, 20_000, 64 << 20]),
        filters: bool,
        same_len: bool,
        hint_mode in 0usize..3,
    ) {
        let toy = Toy::new(like);
        let mut cache = DirCache::new(limit).with_filters(if filters { 8 << 20 } else { 0 });
        let mut model = Model::new();
        let mut is_growing = true;
        // Each number has names of one length, so that names recur.
        let named = |number: u32| name(number, if same_len { 250 } else { (number as usize * 37) % 250 + 1 });
        for (i, (what, number, len)) in steps.iter().copied().enumerate() {
            let name = named(number);
            // Some operations on these names follow, others change the names in between or never follow.
            // Names are prefetched repeatedly, or once each, partly while earlier ones are pending.
            let (every, from) = [(usize::MAX, 0), (7, i), (16, i + 16)][hint_mode];
            if i % every == 0 {
                let next = steps.iter().skip(from).take(20).map(|(_, number, _)| named(*number));
                let next: Vec<_> = next.collect();
                toy.editor(&mut cache).prefetch_names(next.iter().map(Vec::as_slice));
            }
            if i % 500 == 499 {
                is_growing = !is_growing;
            }
            let ino = number + 20;
            let known = model.get(&name).copied();
            match what {
                0 => {
                    let found = toy.editor(&mut cache).lookup(&name).unwrap();
                    prop_assert_eq!(found.map(|ino| ino.0), known);
                }
                1 => {
                    let replaced = toy.editor(&mut cache).replace(&name, Ino(ino + 1), FileType::Regular);
                    match known {
                        Some(known) => {
                            prop_assert_eq!(replaced.unwrap().0, known);
                            model.insert(name, ino + 1);
                        }
                        None => prop_assert!(matches!(replaced, Err(EditFault::Absent))),
                    }
                }
                2 if len > 200 => cache.clear(),
                3..6 if is_growing => match known {
                    Some(_) => remove(&toy, &mut cache, &mut model, &name),
                    None => prop_assert!(matches!(toy.editor(&mut cache).remove(&name), Err(EditFault::Absent))),
                },
                _ if is_growing || what > 12 => match known {
                    None => insert(&toy, &mut cache, &mut model, &name, ino),
                    Some(_) => {
                        let inserted = toy.editor(&mut cache).insert(&name, Ino(ino), FileType::Regular);
                        prop_assert!(matches!(inserted, Err(EditFault::Exists)));
                    }
                },
                _ => {
                    if let Some(name) = model.range(name..).next().map(|(name, _)| name.clone()) {
                        remove(&toy, &mut cache, &mut model, &name);
                    }
                }
            }
            if i % 50 == 0 {
                judge(&toy, &mut cache, &model);
            }
        }
        judge(&toy, &mut cache, &model);
        // The result of the read path.
        let hints: BTreeSet<_> = listed(&toy, 7, || ()).into_iter().collect();
        prop_assert_eq!(hints.len(), model.len() + 2);
        let storage = if toy.indexed.get() { Storage::Indexed(&toy) } else { Storage::Linear(&toy) };
        let dir = Dir { ino: INO, storage, casefold: false, encrypted: false };
        for (name, ino) in &model {
            prop_assert_eq!(dir.lookup(&toy.format, name).unwrap(), Some(Ino(*ino)));
        }
        prop_assert_eq!(toy.editor(&mut cache).is_empty().unwrap(), model.is_empty());
        let names: Vec<_> = model.keys().cloned().collect();
        for name in names {
            remove(&toy, &mut cache, &mut model, &name);
        }
        judge(&toy, &mut cache, &model);
        prop_assert_eq!((toy.len.get(), toy.indexed.get()), (1, false), "shrunk to nothing");
        prop_assert!(toy.editor(&mut cache).is_empty().unwrap());
    }

    #[test]
    fn inline_as_a_map_of_names(
        steps in prop::collection::vec((any::<bool>(), 0u32..20), 1..100), second_len in 0usize..20, csum: bool,
    ) {
        let format = Toy::new(Like { csum, ..Like::default() }).format.entries;
        let target = DirTarget { ino: INO, indexed: false, casefold: false, encrypted: false };
        let (mut first, mut second) = ([0; 56], vec![0; if second_len < 3 { 0 } else { second_len * 4 }]);
        InlineEditor::lay_empty(&format, &mut first, &mut second);
        let (mut parent, mut model) = (PARENT, Model::new());
        for (adds, number) in steps {
            let name = name(number, number as usize);
            let ino = number + 20;
            let mut editor = InlineEditor::new(target, &format, &mut parent, &mut first, &mut second).unwrap();
            if adds {
                match editor.insert(&name, Ino(ino), FileType::Regular) {
                    Ok(()) => prop_assert_eq!(model.insert(name, ino), None),
                    Err(EditFault::Exists) => prop_assert!(model.contains_key(&name)),
                    Err(fault) => {
                        prop_assert!(matches!(fault, EditFault::NoSpace(NoSpace::Inline)));
                        let from = second.len();
                        if from < 200 {
                            second.resize(from + 64, 0xFF);
                            InlineEditor::stretch(&format, &mut second, from);
                        }
                    }
                }
            } else {
                match editor.remove(&name) {
                    Ok(ino) => prop_assert_eq!(model.remove(&name), Some(ino.0)),
                    Err(_) => prop_assert!(!model.contains_key(&name)),
                }
            }
            let mut editor = InlineEditor::new(target, &format, &mut parent, &mut first, &mut second).unwrap();
            prop_assert_eq!(editor.is_empty(), model.is_empty());
            editor.set_parent(PARENT);
            if let Some((name, ino)) = model.iter().next() {
                prop_assert_eq!(editor.replace(name, Ino(*ino), FileType::Regular).unwrap().0, *ino);
            }
            let block = editor.to_block().unwrap();
            let toy = Toy::new(Like { csum, ..Like::default() });
            toy.change_leaf(Lblk(0), &mut Location::default(), &mut |bytes| bytes.copy_from_slice(&block)).unwrap();
            judge(&toy, &mut DirCache::default(), &model);
        }
    }
}

#[test]
fn refused_operations_change_nothing() {
    for version in [HashVersion::HalfMd4, HashVersion::Legacy] {
        let toy = Toy::new(Like { version, ..Like::default() });
        let (mut cache, mut model) = (DirCache::default(), Model::new());
        let mut refused = 0;
        for number in 0..30_000u32 {
            let name = name(number, 200);
            // At times the device is full, with room for no block, or for some of the blocks that a split
            // needs.
            let has_room = number % 3 > 0;
            toy.blocks_max.set(if has_room { u32::MAX } else { toy.len.get() + number / 3 % 3 });
            let len = toy.len.get();
            match toy.editor(&mut cache).insert(&name, Ino(9), FileType::Regular) {
                Ok(()) => drop(model.insert(name, 9)),
                Err(fault) => {
                    assert!(matches!(fault, EditFault::NoSpace(NoSpace::Device)));
                    assert_eq!(toy.len.get(), len, "what was appended is popped");
                    refused += 1;
                    assert!(toy.editor(&mut cache).lookup(&name).unwrap().is_none());
                }
            }
            if number % 10_000 == 0 {
                judge(&toy, &mut cache, &model);
            }
        }
        judge(&toy, &mut cache, &model);
        assert!(refused > 500, "{refused}");
        assert!(cache.stats().index_splits > 10 && cache.stats().levels_added == 2, "{}", cache.stats());

        // A refused insert on a full device leaves every byte unchanged.
        toy.blocks_max.set(toy.len.get());
        let before = toy.all_bytes();
        let mut refused = 0;
        for number in 30_000.. {
            match toy.editor(&mut cache).insert(&name(number, 255), Ino(9), FileType::Regular) {
                Ok(()) => break,
                Err(_) => refused += 1,
            }
            if refused == 20 {
                break;
            }
        }
        if refused == 20 {
            assert!(before == toy.all_bytes());
        }
        assert!(matches!(
            toy.editor(&mut cache).insert(b"..", Ino(9), FileType::Regular),
            Err(EditFault::Exists)
        ));
        assert!(matches!(toy.editor(&mut cache).remove(b"."), Err(EditFault::Absent)));
        toy.editor(&mut cache).set_parent(Ino(77)).unwrap();
        assert_eq!(toy.editor(&mut cache).lookup(b"..").unwrap(), Some(Ino(77)));
        assert_eq!(toy.editor(&mut cache).lookup(b".").unwrap(), Some(INO));
    }
}

#[test]
fn an_index_that_is_full_says_so() {
    let toy = Toy::new(Like { large_dir: false, ..Like::default() });
    let (mut cache, mut model) = (DirCache::default(), Model::new());
    let mut number = 0;
    let fault = loop {
        let name = name(number, 255);
        match toy.editor(&mut cache).insert(&name, Ino(9), FileType::Regular) {
            Ok(()) => drop(model.insert(name, 9)),
            Err(fault) => break fault,
        }
        number += 1;
    };
    assert!(matches!(fault, EditFault::NoSpace(NoSpace::IndexFull { large_dir: false })));
    assert!(fault.to_string().contains("large_dir"), "{fault}");
    assert!(number > 10_000, "{number} names");
    judge(&toy, &mut cache, &model);
    for name in model.keys().cloned().collect::<Vec<_>>() {
        remove(&toy, &mut cache, &mut model, &name);
    }
    assert_eq!(toy.len.get(), 1);
}

#[test]
fn directories_with_hidden_names_are_read_only() {
    let toy = Toy::new(Like::default());
    for (casefold, encrypted) in [(true, false), (false, true), (true, true)] {
        let target = DirTarget { ino: INO, indexed: false, casefold, encrypted };
        let mut cache = DirCache::default();
        let refused = Editor::new(target, &toy.format, &toy, &mut cache);
        assert!(matches!(refused.err(), Some(EditFault::Unsupported(_))));
    }
}

#[test]
fn four_hundred_thousand_long_names_in_small_blocks() {
    let toy = Toy::new(Like::default());
    // Notes for some leaves fit, and filters for the rest.
    let (mut cache, mut model) = (DirCache::new(16 << 20).with_filters(16 << 20), Model::new());
    for number in 0..400_000 {
        insert(&toy, &mut cache, &mut model, &name(number, 255), number + 20);
        if number.is_power_of_two() && number.trailing_zeros().is_multiple_of(3) {
            judge(&toy, &mut cache, &model);
        }
    }
    judge(&toy, &mut cache, &model);
    assert_eq!(cache.stats().levels_added, 2);
    assert!(cache.held_bytes() < 56 << 20, "{cache:?}");
    // Removes all but one, first every second one.
    for (i, number) in (0..400_000).step_by(2).chain((1..399_999).step_by(2)).enumerate() {
        remove(&toy, &mut cache, &mut model, &name(number, 255));
        if (i + 1).is_power_of_two() && (i + 1).trailing_zeros().is_multiple_of(3) {
            judge(&toy, &mut cache, &model);
        }
    }
    judge(&toy, &mut cache, &model);
    assert_eq!(model.len(), 1);
    assert_eq!(toy.len.get(), 2, "a root and a leaf");
}

#[test]
fn a_linear_directory_stays_one_without_the_feature() {
    let mut toy = Toy::new(Like::default());
    toy.format.features.compat = 0;
    let (mut cache, mut model) = (DirCache::default(), Model::new());
    for number in 0..300 {
        insert(&toy, &mut cache, &mut model, &name(number, 100), number + 20);
    }
    judge(&toy, &mut cache, &model);
    assert!(toy.len.get() > 20 && !toy.indexed.get());
    for number in (0..300).rev() {
        remove(&toy, &mut cache, &mut model, &name(number, 100));
        judge(&toy, &mut cache, &model);
    }
    assert_eq!(toy.len.get(), 1);
}

#[test]
fn a_listing_has_each_lasting_name_once_while_the_directory_changes() {
    for at_a_time in [1, 10, 100] {
        let toy = Toy::new(Like::default());
        let (mut cache, mut model) = (DirCache::default(), Model::new());
        for number in 0..3000 {
            insert(&toy, &mut cache, &mut model, &name(number, 60), number + 20);
        }
        // Between any two calls, names from 100 on are removed and new ones inserted.
        let (mut gone, mut come) = (100, 3000);
        let hints = listed(&toy, at_a_time, || {
            for _ in 0..at_a_time {
                if gone < 3000 {
                    remove(&toy, &mut cache, &mut model, &name(gone, 60));
                    gone += 1;
                }
                if come < 3300 {
                    insert(&toy, &mut cache, &mut model, &name(come, 60), come);
                    come += 1;
                }
            }
        });
        judge(&toy, &mut cache, &model);
        assert!(cache.stats().splits > 50 && cache.stats().blocks_freed > 0, "{}", cache.stats());
        let all: BTreeSet<_> = hints.iter().collect();
        assert_eq!(all.len(), hints.len(), "nothing twice");
        for number in 0..100 {
            assert!(all.contains(&name(number, 60)), "{number} is missing");
        }
    }
}
