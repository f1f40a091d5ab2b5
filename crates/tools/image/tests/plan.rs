//! The invariants of the plan, on random trees and options: every block has one owner, the counts match the
//! taken blocks, the size is the smallest, and the order of reading does not matter.

use std::collections::BTreeMap;

use extant_base::{BlockSize, Group};
use extant_image::mkfs::ensure_lost_found;
use extant_image::options::{FeatureEdit, FormatOptions};
use extant_image::plan::{Input, Plan, Style};
use extant_image::solve::{SizeChoice, SolveFault, solve};
use extant_image::source::entry::{DataRun, Entry, Kind, Metadata, Payload, Time, Xattr};
use extant_image::tree::{MergeRules, ROOT, Sealed, Tree};
use proptest::prelude::*;

/// A flag that is never set.
static NEVER: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// One random entry: path numbers, size, holes, attribute size.
#[derive(Debug, Clone)]
struct Thing {
    parts: Vec<u8>,
    size: u64,
    kind: u8,
    hole: bool,
    xattr: usize,
}

fn things() -> impl Strategy<Value = Vec<Thing>> {
    let size = prop_oneof![3 => 0u64..20_000, 1 => 0u64..3_000_000];
    let thing = (prop::collection::vec(0u8..12, 1..4), size, 0u8..8, any::<bool>(), 0usize..1200)
        .prop_map(|(parts, size, kind, hole, xattr)| Thing { parts, size, kind, hole, xattr });
    prop::collection::vec(thing, 0..120)
}

fn entry(thing: &Thing, file: &std::sync::Arc<std::fs::File>) -> Entry {
    let path: Vec<String> =
        thing.parts.iter().map(|n| format!("{n:x}{}", "x".repeat(usize::from(*n) * 9))).collect();
    let xattrs = match thing.xattr {
        0..900 => Vec::new(),
        n => vec![Xattr { name: b"user.note".to_vec(), value: vec![7; n - 900] }],
    };
    let metadata = Metadata {
        permissions: 0o644,
        uid: u32::from(thing.kind),
        gid: 5,
        mtime: Time { seconds: 1_600_000_000, nanos: 1 },
        atime: None,
        ctime: None,
        crtime: None,
        xattrs,
    };
    let run = |file_offset, len| DataRun { file_offset, len, backing_offset: 0 };
    let kind = match thing.kind {
        0 => Kind::Directory,
        1 => Kind::Symlink(vec![b'l'; 1 + thing.size as usize % 900]),
        2 => Kind::Fifo,
        _ => {
            let runs = match thing.size {
                0 => Vec::new(),
                size if thing.hole && size > 10 => vec![run(0, size / 5), run(size / 2, size / 4)],
                size => vec![run(0, size)],
            };
            let runs = runs.into_iter().filter(|run| run.len > 0).collect();
            Kind::File { size: thing.size, payload: Payload { backing: file.clone(), runs } }
        }
    };
    Entry { path: path.join("/").into_bytes(), metadata, kind }
}

/// A tree of the things that are compatible; the tree refuses the others, and they are left out.
fn tree_of<'a>(things: impl Iterator<Item = &'a Thing>) -> (Tree, u32) {
    let file = std::sync::Arc::new(tempfile::tempfile().unwrap());
    let mut tree = Tree::new();
    let rules = MergeRules { layer: 0, replace_directories: false, keep_times: false };
    for thing in things {
        let _ = tree.insert(entry(thing, &file), rules);
    }
    let lost_found = ensure_lost_found(&mut tree, 1).unwrap();
    tree.count_links();
    (tree, lost_found)
}

fn input<'t>(tree: &'t Tree, sealed: &'t Sealed, lost_found: u32, options: &'t FormatOptions) -> Input<'t> {
    Input {
        tree,
        sealed,
        lost_found,
        options,
        uuid: [3; 16],
        hash_seed: [4; 16],
        time: 1_600_000_000,
        style: Style::Packed,
        fresh_device: true,
    }
}

/// Every block of the plan with its owner; panics if a block has two owners.
fn owners(plan: &Plan<'_>) -> BTreeMap<u64, String> {
    let mut owners = BTreeMap::new();
    let mut own = |start: u64, len: u64, who: String| {
        for block in start..start + len {
            if let Some(other) = owners.insert(block, who.clone()) {
                panic!("block {block} belongs to {other} and to {who}");
            }
        }
    };
    let geometry = plan.geometry();
    for group in 0..geometry.groups {
        let head = geometry.group_head(Group(group));
        if let Some(block) = head.superblock {
            own(block.0, 1, format!("superblock {group}"));
        }
        own(head.descriptors.0.0, head.descriptors.1.into(), format!("descriptors {group}"));
        if group > 0 {
            // The primary ones are indirect blocks of the resize inode, and are among the fixed blocks.
            own(head.reserved.0.0, head.reserved.1.into(), format!("reserved descriptors {group}"));
        }
        let place = &plan.layout.places[group as usize];
        own(place.block_bitmap, 1, format!("block bitmap {group}"));
        own(place.inode_bitmap, 1, format!("inode bitmap {group}"));
        own(place.inode_table, geometry.itable_blocks().into(), format!("inode table {group}"));
    }
    for (place, _) in &plan.blocks {
        own(place.0, 1, "fixed block".to_owned());
    }
    for run in &plan.zero_runs {
        own(run.start, run.len, "journal".to_owned());
    }
    for &node in [ROOT].iter().chain(&plan.sealed.order) {
        for extent in plan.extents_of(node) {
            own(extent.start, extent.len.into(), format!("node {node}"));
        }
        for (block, _) in plan.inode_of(node).1 {
            own(block.0, 1, format!("tree of node {node}"));
        }
    }
    owners
}

proptest! {
    #![proptest_config(ProptestConfig { cases: std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(200), ..ProptestConfig::default() })]

    #[test]
    fn every_block_has_one_owner_and_the_size_is_the_smallest(
        things in things(),
        block_size in prop::sample::select(vec![1024u64, 2048, 4096]),
        features in prop::sample::select(vec!["", "^extents,^64bit,^huge_file", "^flex_bg", "quota", "^resize_inode", "^has_journal"]),
    ) {
        let (tree, lost_found) = tree_of(things.iter());
        let options = FormatOptions {
            features: FeatureEdit::parse_list(features).unwrap(),
            reserved_percent: Some(0.0),
            ..FormatOptions::default()
        };
        let sealed = tree.order(None);
        let block_size = BlockSize::from_bytes(block_size).unwrap();
        let input = input(&tree, &sealed, lost_found, &options);
        let (plan, bytes) = solve(&input, block_size, SizeChoice::default(), &NEVER).unwrap();
        let owners = owners(&plan);
        let blocks = plan.geometry().blocks;
        prop_assert_eq!(bytes, blocks * block_size.bytes());
        prop_assert!(owners.last_key_value().is_none_or(|(&last, _)| last < blocks));
        let taken: u64 = plan.layout.space.taken_within(plan.geometry().first_data_block.into(), blocks).map(|r| r.len).sum();
        prop_assert_eq!(taken, owners.len() as u64);
        let first = u64::from(plan.geometry().first_data_block);
        prop_assert_eq!(plan.superblock.free_blocks_count, blocks - first - taken);
        // The size that was found is sufficient as a given size, and one block less is not: the fault names
        // the same size.
        solve(&input, block_size, SizeChoice::Bytes(bytes), &NEVER).unwrap();
        match solve(&input, block_size, SizeChoice::Bytes(bytes - block_size.bytes()), &NEVER) {
            Err(SolveFault::TooSmall { needed_bytes, .. }) => prop_assert_eq!(needed_bytes, bytes),
            other => prop_assert!(false, "{blocks} blocks, one less gave {:?}", other.map(|(plan, bytes)| (plan.geometry().clone(), bytes))),
        }
    }

    #[test]
    fn the_digest_does_not_depend_on_the_order_of_reading(things in things(), seed in any::<u64>()) {
        // Only directories and files with distinct paths: the result of a replacement depends on the order.
        let mut unique: BTreeMap<Vec<u8>, Thing> = BTreeMap::new();
        for thing in things {
            let thing = Thing { parts: vec![0, thing.parts[0], *thing.parts.last().unwrap()], ..thing };
            let thing = Thing { kind: thing.kind.max(1), ..thing };
            unique.insert(thing.parts.clone(), thing);
        }
        let mut shuffled: Vec<&Thing> = unique.values().collect();
        let mut state = seed | 1;
        for i in (1..shuffled.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            shuffled.swap(i, (state >> 33) as usize % (i + 1));
        }
        let (sorted, _) = tree_of(unique.values());
        let (mixed, _) = tree_of(shuffled.into_iter());
        prop_assert_eq!(sorted.digest(), mixed.digest());
        let paths = |tree: &Tree| {
            tree.order(None).order.iter().map(|&node| tree.path(node)).collect::<Vec<_>>()
        };
        prop_assert_eq!(paths(&sorted), paths(&mixed));
    }
}
