//! Directories: linear, indexed, deep, with holes, emptied.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::WorkTree;

/// Creates `n` names of at least `len` bytes. To save inodes there is one empty file per `n_links` names; the
/// others are its hard links.
fn names(place: &WorkTree, n: usize, len: usize, n_links: usize) {
    let name = |i: usize| {
        let mut name = format!("{i:07}");
        while name.len() < len {
            name.push(char::from(b'a' + ((i + name.len()) % 26) as u8));
        }
        name
    };
    for i in 0..n {
        if i % n_links == 0 {
            let path = place.path(name(i));
            File::create(&path).map(drop).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        } else {
            place.link(name(i - i % n_links), name(i));
        }
    }
}

/// Directories from one block up to an index of two levels, with blocks of 1 KiB.
pub(in crate::matrix) fn indexed(root: &Path) {
    let place = WorkTree::new(root);
    for n in [10, 20, 60, 500, 3000] {
        names(&place.dir(format!("of-{n}")), n, 40, 100);
    }
    // About 120 leaves fit below a root of 1 KiB; names of 250 bytes make 3 names per leaf.
    names(&place.dir("two-levels"), 1500, 250, 500);
    every_byte(&place.dir("bytes"));
}

/// Names with every byte, up to 255 bytes long, enough for an index: signed and unsigned hashes differ.
fn every_byte(place: &WorkTree) {
    let bytes: Vec<u8> = (1..=255u8).filter(|&byte| byte != b'/').collect();
    for &byte in &bytes {
        // A single dot is the directory itself.
        place.filled(if byte == b'.' { b".x".to_vec() } else { vec![byte] }, 1);
        place.filled([&[byte][..], &[byte ^ 0x55 | 0x80; 20]].concat(), 0);
    }
    place.filled(&bytes, 3);
    place.filled([0xFF; 255], 3);
}

/// Names with all byte values, also of directories.
pub(in crate::matrix) fn strange_names(root: &Path) {
    let place = WorkTree::new(root);
    every_byte(&place.dir("every byte"));
    place.filled("line\nbreak", 1);
    drop(place.dir("dir\n\x1B[31m").dir(b"\xFE\xFF not utf-8"));
    // Unicode names that look alike, and names that are equal only in a casefolded directory.
    for name in ["\u{e9}", "e\u{301}", "Stra\u{df}e", "STRASSE", "strasse"] {
        place.filled(name, 2);
    }
}

/// An index of three levels: `large_dir`, blocks of 1 KiB, names of 250 bytes make 3 names per leaf. Two
/// levels have room for about 120 x 126 leaves if all nodes are full; names in random order leave them about
/// two thirds full.
pub(in crate::matrix) fn three_levels(root: &Path) {
    names(&WorkTree::new(root).dir("deep"), 32_000, 250, 60_000);
}

/// Two levels with blocks of 4 KiB: more than 508 leaves of 16 names.
pub(in crate::matrix) fn many(root: &Path) {
    names(&WorkTree::new(root).dir("many"), 12_000, 230, 60_000);
}

/// Directories with most names removed.
pub(in crate::matrix) fn deletions(root: &Path) {
    let place = WorkTree::new(root);
    for (name, keep_every) in [("half", 2), ("few", 10), ("hardly-any", 500), ("none", usize::MAX)] {
        let dir = place.dir(name);
        names(&dir, 2000, 60, 1);
        let listing = std::fs::read_dir(dir.path("")).expect("just made");
        let mut all: Vec<PathBuf> = listing.map(|entry| entry.expect("readable").path()).collect();
        all.sort();
        for (i, path) in all.iter().enumerate() {
            if i % keep_every != 1 || keep_every == usize::MAX {
                std::fs::remove_file(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            }
        }
    }
    // New names in the holes.
    for i in 0..300 {
        place.filled(format!("half/new {i}"), 1);
    }
}

/// More subdirectories than a link count can hold.
pub(in crate::matrix) fn subdirectories(root: &Path) {
    let many = WorkTree::new(root).dir("many");
    for i in 0..65_010 {
        drop(many.dir(format!("{i}")));
    }
}

/// Many hard links of one file, and files with two names each.
pub(in crate::matrix) fn hard_links(root: &Path) {
    let place = WorkTree::new(root);
    names(&place.dir("names"), 64_000, 8, 64_000);
    let several = place.dir("several");
    for i in 0..10 {
        several.filled(format!("file-{i}"), 10);
        several.link(format!("file-{i}"), format!("other-{i}"));
    }
}

/// Inodes freed and reused: new generations, no stale contents, no stale attributes.
pub(in crate::matrix) fn reuse(root: &Path) {
    let place = WorkTree::new(root);
    for round in 0..4 {
        let dir = place.dir(format!("round-{round}"));
        for i in 0..150 {
            let name = format!("{i}");
            match (i + round) % 4 {
                0 => drop(dir.dir(&name)),
                1 => dir.symlink(format!("target {i}"), &name),
                _ => {
                    dir.filled(&name, i * 50);
                    dir.xattr(&name, "user.round", format!("{round}").as_bytes());
                }
            }
        }
        if round < 3 {
            super::sync_all(root);
            std::fs::remove_dir_all(dir.path("")).expect("just made");
        }
    }
}
