//! Workloads that end in a crash: transactions are committed to the journal, but not all are written home.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::FallocateFlags;

use super::{WorkTree, mixed, sync_all};
use crate::trees::Random;

/// The journal's magic, big-endian: a data block that starts with it must be escaped in the journal.
const JOURNAL_MAGIC: [u8; 4] = [0xC0, 0x3B, 0x39, 0x98];

/// Several transactions; freed metadata that becomes data (revoked); a rename over a file; a truncate.
pub(in crate::matrix) fn transactions(root: &Path) -> Vec<File> {
    mixed(root);
    sync_all(root);
    let place = WorkTree::new(root);
    for round in 0..5 {
        let dir = place.dir(format!("round-{round}"));
        for i in 0..60 {
            dir.filled(format!("file {i} with a name to fill directory blocks"), i * 100);
        }
        dir.xattr("file 3 with a name to fill directory blocks", "user.round", &[b'r'; 300]);
        sync_all(root);
        if round % 2 == 1 {
            // Directory blocks of the previous round are freed and revoked, and new files reuse them.
            std::fs::remove_dir_all(place.path(format!("round-{}", round - 1))).expect("made a round ago");
            sync_all(root);
            place.filled(format!("after-{round}"), 200_000);
        }
    }
    place.filled("old", 10_000);
    place.filled("new", 20_000);
    sync_all(root);
    place.rename("new", "old");
    place.filled("cut", 300_000);
    sync_all(root);
    place.cut("cut", 12_345);
    place.sync("cut");
    Vec::new()
}

/// Data in the journal; some of it starts with the journal's own magic number.
pub(in crate::matrix) fn journalled_data(root: &Path) -> Vec<File> {
    let place = WorkTree::new(root);
    let block = place.block_size() as usize;
    let mut bytes = Random::new(3).bytes(10 * block);
    for i in [0, 3, 4, 9] {
        bytes[i * block..i * block + 4].copy_from_slice(&JOURNAL_MAGIC);
    }
    place.file("escaped", &bytes);
    sync_all(root);
    let held = transactions(root);
    place.write_at("escaped", 2 * block as u64, &JOURNAL_MAGIC);
    // Over data that was journaled: no stale copy may win.
    place.filled("gone", 30 * block);
    sync_all(root);
    place.remove("gone");
    sync_all(root);
    place.filled("in its place", 30 * block);
    place.sync("escaped");
    held
}

/// Orphans: files of several sizes and a directory, unlinked while open.
pub(in crate::matrix) fn orphans(root: &Path) -> Vec<File> {
    drop(transactions(root));
    let place = WorkTree::new(root);
    let mut orphans = Vec::new();
    for i in 0..300 {
        let name = format!("orphan-{i}");
        place.filled(&name, (i % 20) * 500);
        if i % 10 == 0 {
            place.xattr(&name, "user.large", &Random::new(i as u64).bytes(400));
        }
        orphans.push(place.open(&name));
    }
    let dir = place.dir("directory-to-be-orphaned").path("");
    orphans.push(File::open(&dir).expect("just made"));
    sync_all(root);
    for i in 0..300 {
        place.remove(format!("orphan-{i}"));
    }
    std::fs::remove_dir(dir).expect("empty");
    sync_all(root);
    // Some are closed and deleted: gaps in the orphan list or file.
    let mut i = 0;
    orphans.retain(|_| {
        i += 1;
        i % 3 != 0
    });
    sync_all(root);
    orphans
}

/// Small changes with an fsync each: fast commits, if the file system has them.
pub(in crate::matrix) fn fsyncs(root: &Path) -> Vec<File> {
    mixed(root);
    let place = WorkTree::new(root);
    let block = place.block_size();
    let dir = place.dir("fast");
    drop(dir.dir("sub"));
    place.filled("log", 100);
    dir.filled("renamed-later", 5000);
    dir.filled("removed-later", 50_000);
    dir.filled("cut-later", 50_000);
    sync_all(root);
    for i in 0..25 {
        // Appends, new inodes, new extents, holes.
        place.write_at("log", 100 + i * 30, format!("line {i}\n").as_bytes());
        place.sync("log");
        let name = format!("created-{i}");
        dir.filled(&name, i as usize * 300);
        dir.sync(&name);
        if i % 5 == 1 {
            place.write_at("sparse", i * 7 * block, b"scattered");
            place.sync("sparse");
        }
    }
    dir.link("created-2", "sub/linked");
    dir.sync("created-2");
    dir.rename("renamed-later", "sub/renamed");
    dir.sync("sub/renamed");
    dir.remove("removed-later");
    dir.sync("created-3");
    dir.cut("cut-later", 777);
    dir.sync("cut-later");
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    dir.allocate("created-24", punch, block, block);
    dir.allocate("allocated", FallocateFlags::empty(), 0, 40 * block);
    dir.sync("allocated");
    let held = dir.open("held");
    held.write_all_at(&[7; 3000], 0).expect("write");
    held.sync_all().expect("sync");
    dir.symlink("created-2", "link");
    dir.remove("created-5");
    dir.sync("created-6");
    vec![held]
}

/// Without a journal there is nothing to replay; but the image was not unmounted.
pub(in crate::matrix) fn no_journal(root: &Path) -> Vec<File> {
    mixed(root);
    sync_all(root);
    Vec::new()
}
