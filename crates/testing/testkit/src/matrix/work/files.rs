//! Files: holes, unwritten extents, fragments, indirect blocks, large offsets.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::FallocateFlags;

use super::WorkTree;
use crate::trees::Random;

/// Holes and unwritten extents of every origin; without extents, as far as possible.
pub(in crate::matrix) fn holes(root: &Path) {
    let place = WorkTree::new(root);
    let block = place.block_size();
    let data = |n: u64| Random::new(n).bytes((n * block) as usize);
    let plain = FallocateFlags::empty();
    let keep = FallocateFlags::KEEP_SIZE;

    place.write_at("hole-first", 5 * block, &data(2));
    place.write_at("hole-within", 0, &data(1));
    place.write_at("hole-within", 9 * block + 100, &data(1));
    place.cut("hole-only", 1_000_000);
    place.file("hole-last", &data(2));
    place.cut("hole-last", 50 * block + 1);
    place.file("zeros-written", &vec![0; 6 * block as usize]);

    place.allocate("allocated", plain, 0, 20 * block);
    place.allocate("allocated-beyond-end", keep, 0, 30 * block);
    place.write_at("allocated-beyond-end", 0, b"short");
    place.allocate("allocated-within", plain, 0, 20 * block);
    place.write_at("allocated-within", 7 * block, &data(2));
    place.write_at("allocated-within", 12 * block + 5, b"unaligned");
    place.allocate("allocated-after-hole", plain, 100 * block, 10 * block);
    place.allocate("large-allocation", keep, 0, 3000 * block);

    for (name, flags, first, n) in [
        ("punched", FallocateFlags::PUNCH_HOLE | keep, 3 * block, 4 * block),
        ("punched-unaligned", FallocateFlags::PUNCH_HOLE | keep, 3 * block + 10, 4 * block),
        ("punched-end", FallocateFlags::PUNCH_HOLE | keep, 16 * block, 10 * block),
        ("zeroed", FallocateFlags::ZERO_RANGE, 3 * block, 4 * block),
        ("zeroed-beyond", FallocateFlags::ZERO_RANGE | keep, 18 * block, 9 * block),
        ("collapsed", FallocateFlags::COLLAPSE_RANGE, 2 * block, 5 * block),
        ("inserted", FallocateFlags::INSERT_RANGE, 4 * block, 6 * block),
        ("collapsed-16", FallocateFlags::COLLAPSE_RANGE, 0, 16 * block),
        ("inserted-16", FallocateFlags::INSERT_RANGE, 16 * block, 16 * block),
    ] {
        place.file(name, &data(40));
        place.sync(name);
        place.allocate(name, flags, first, n);
    }
    place.file("truncated", &data(20));
    place.cut("truncated", 3 * block + 7);
    place.file("truncated-and-grown", &data(20));
    place.cut("truncated-and-grown", 3 * block + 7);
    place.cut("truncated-and-grown", 30 * block);
    place.file("empty", b"");
}

/// Writes every other block of a file: one extent each.
fn every_other(place: &WorkTree, name: &str, n: u64) {
    let block = place.block_size();
    let file = place.open(name);
    for i in 0..n {
        let bytes = Random::for_item(7, i).bytes(block as usize);
        file.write_all_at(&bytes, i * 2 * block).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// Extent trees of depth 0, 1 and (at 1 KiB) 2, made by holes and by punching; unwritten extents between
/// them; files written in turns.
pub(in crate::matrix) fn fragmented(root: &Path) {
    let place = WorkTree::new(root);
    let block = place.block_size();
    for n in [3, 4, 5, 80, 400, 1500] {
        every_other(&place, &format!("extents-{n}"), n);
    }
    place.filled("punched", 600 * block as usize);
    for i in 0..150 {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        place.allocate("punched", flags, (i * 4 + 1) * block, block);
    }
    // Adjacent extents, written and unwritten.
    place.allocate("stripes", FallocateFlags::empty(), 0, 400 * block);
    for i in 0..200 {
        place.write_at("stripes", i * 2 * block, &[i as u8 | 1; 100]);
    }
    let files: Vec<File> = (0..3).map(|i| place.open(format!("turn-{i}"))).collect();
    for round in 0..60 {
        for file in &files {
            file.write_all_at(&vec![round as u8 + 1; block as usize], round * block).expect("write");
            // Without this, delayed allocation would give each file one run.
            file.sync_data().expect("sync");
        }
    }
}

/// An extent tree of depth 3 with blocks of 1 KiB: more than 4 x 83 x 84 extents, so that it does
/// not matter whether the order of growth leaves leaves half full.
pub(in crate::matrix) fn depth_three(root: &Path) {
    let place = WorkTree::new(root);
    every_other(&place, "deep", 29_000);
    place.filled("plain", 5000);
}

/// An extent tree of depth 2 with blocks of 4 KiB: more than 4 x 340 extents.
pub(in crate::matrix) fn depth_two(root: &Path) {
    let place = WorkTree::new(root);
    every_other(&place, "deep", 3000);
    place.filled("plain", 5000);
}

/// Sparse files at the limits of direct, indirect, double and triple indirect blocks.
pub(in crate::matrix) fn indirect(root: &Path) {
    let place = WorkTree::new(root);
    let block = place.block_size();
    let per_block = block / 4;
    let edges = [12, 12 + per_block, 12 + per_block + per_block * per_block];
    for (i, edge) in edges.into_iter().enumerate() {
        for (name, first, n) in [("before", edge - 1, 1), ("after", edge, 1), ("across", edge - 2, 4)] {
            let bytes = Random::new(i as u64).bytes((n * block) as usize);
            place.write_at(format!("{name}-{i}"), first * block, &bytes);
        }
    }
    place.filled("whole-to-double", ((12 + per_block + 40) * block) as usize);
    // The last block that can be mapped; at 4 KiB it is after the end of the largest file.
    let last = edges[2] + per_block * per_block * per_block - 1;
    place.write_at("last-of-triple", last * block, b"the end");
    place.write_at("all-levels", 0, &[1; 10]);
    for edge in edges {
        place.write_at("all-levels", (edge + 1) * block, &[2; 10]);
    }
    place.filled("cut-to-indirect", 600 * block as usize);
    place.cut("cut-to-indirect", 15 * block + 3);
    every_other(&place, "every-other", 600);
    super::mixed(&place.dir("mixed").path(""));
}

/// Sparse files above 2 and 4 GiB, and up to the limit of block numbers: 16 TiB less a block with blocks of 4
/// KiB.
pub(in crate::matrix) fn large_offsets(root: &Path) {
    let place = WorkTree::new(root);
    let block = place.block_size();
    for gib in [2u64, 4, 5, 1000] {
        place.write_at(format!("at-{gib}-gib"), (gib << 30) - 5, b"on both sides of it");
    }
    let last = (u64::from(u32::MAX) - 1) * block;
    let written = place.write_at("last-block", last, &vec![b'e'; block as usize]);
    assert!(written, "extents reach 2^32 - 1 blocks");
    place.write_at("first-and-last", 0, b"start");
    place.write_at("first-and-last", last, b"end");
    place.cut("only-size", last);
}
