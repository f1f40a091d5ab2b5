//! A log that was written after a file system grew while mounted: it contains the superblock with the new
//! size, and blocks that the old size does not include.

use crate::common;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use extant_device::FileDevice;
use extant_volume::{New, OpenOptions, Volume};

const BLOCK: usize = 1024;

/// Makes a small file system, grows it, and restores its old state, with a log that contains the growth.
fn make(path: &Path, log_blocks: &Path) {
    let name = path.to_str().unwrap();
    let options =
        ["-q", "-F", "-t", "ext4", "-b", "1024", "-J", "size=4", "-O", "^resize_inode", "-N", "4096"];
    extant_testkit::run("mke2fs", options.into_iter().chain(["-E", "nodiscard", name, "32M"]));
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(96 << 20).unwrap();
    let before = std::fs::read(path).unwrap();
    extant_testkit::run("resize2fs", [name]);
    let after = std::fs::read(path).unwrap();
    let blocks = || before.chunks(BLOCK).zip(after.chunks(BLOCK)).enumerate().filter(|(_, (a, b))| a != b);
    let new: Vec<u8> = blocks().flat_map(|(_, (_, new))| new).copied().collect();
    std::fs::write(log_blocks, new).unwrap();
    let numbers: Vec<String> = blocks().map(|(at, _)| at.to_string()).collect();
    let log = log_blocks.display();
    let commands = format!("jo -c -v 3\njw -b {} {log}\njc\n", numbers.join(","));
    let script = log_blocks.with_extension("script");
    std::fs::write(&script, commands).unwrap();
    extant_testkit::run("debugfs", ["-w", "-f", script.to_str().unwrap(), name]);
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    for (at, (old, _)) in blocks() {
        file.write_all_at(old, (at * BLOCK) as u64).unwrap();
    }
    extant_testkit::run("debugfs", ["-w", "-R", "feature needs_recovery", name]);
}

#[test]
fn the_log_of_a_file_system_that_grew_is_replayed() {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    make(&path, &scratch.path().join("blocks"));
    let blocks = |volume: &Volume| volume.statfs().unwrap().blocks;
    let read_only = common::open(&path, None);
    assert!(blocks(&read_only) > 80 << 10 && read_only.recovery().problems.is_empty());
    drop(read_only);
    let device = Arc::new(FileDevice::open(&path, true).unwrap());
    let volume = Volume::open(device, &OpenOptions::default()).unwrap();
    assert!(blocks(&volume) > 80 << 10);
    volume.names().create(volume.root().unwrap().ino(), b"file", &New::file(0o644)).unwrap();
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
}
