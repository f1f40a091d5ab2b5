//! Shifts left and right in the middle of files, in their own handles, checked with e2fsck and debugfs.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use extant_device::FileDevice;
use extant_inode::{Change, LiveInode};

use crate::write::Writer;
use crate::{OpenOptions, Volume};

/// Pieces of the file. Every third one is a hole.
const PIECES: usize = 1500;

fn open(path: &Path) -> Volume {
    let device = Arc::new(FileDevice::open(path, true).unwrap());
    Volume::open(device, &OpenOptions::default()).unwrap()
}

fn shift_left(writer: &Writer, node: &Arc<LiveInode>, from: u64, by: u32) {
    let (credits, mut next) = (Change::shift_credits(writer.shared()), Some(from));
    while let Some(from) = next {
        next = writer.run(credits, |change| Ok(change.shift_left(node, from, by)?)).unwrap();
    }
}

fn shift_right(writer: &Writer, node: &Arc<LiveInode>, from: u64, by: u32) {
    let (credits, mut end) = (Change::shift_credits(writer.shared()), Some(1 << 32));
    while let Some(to) = end {
        end = writer.run(credits, |change| Ok(change.shift_right(node, from..to, by)?)).unwrap();
    }
}

#[test]
fn files_are_closed_up_and_moved_apart() {
    // The block size is 1 KiB; `piece` is in blocks.
    for (options, piece) in [(&["-O", "^bigalloc"][..], 1), (&["-O", "bigalloc", "-C", "16384"], 16)] {
        let scratch = extant_testkit::scratch();
        let (source, path) = (scratch.path().join("source"), scratch.path().join("image"));
        std::fs::create_dir(&source).unwrap();
        let len = piece * 1024;
        let mut bytes = vec![0; PIECES * len];
        let file = File::create(source.join("file")).unwrap();
        file.set_len(bytes.len() as u64).unwrap();
        for (at, part) in bytes.chunks_mut(len).enumerate().filter(|(at, _)| at % 3 < 2) {
            part.iter_mut().enumerate().for_each(|(i, byte)| *byte = (1 + (at * 31 + i / 7) % 255) as u8);
            file.write_all_at(part, (at * len) as u64).unwrap();
        }
        drop(file);
        let name = path.to_str().unwrap();
        let fixed = ["-q", "-F", "-t", "ext4", "-b", "1024", "-N", "256"];
        let from = ["-d", source.to_str().unwrap(), name, "64M"];
        extant_testkit::run("mke2fs", fixed.into_iter().chain(options.iter().copied()).chain(from));

        let volume = open(&path);
        let ino = volume.names().lookup(&volume.root().unwrap(), b"file").unwrap().ino();
        let writer = volume.writer.as_ref().unwrap();
        let node = writer.inodes().get(ino).unwrap();
        let counted = node.values().fields.blocks;
        // Every other hole is removed, from the last one on. The file ends in as many more zeros.
        let mut closed = 0;
        for at in (0..PIECES).rev().filter(|at| at % 6 == 5) {
            shift_left(writer, &node, ((at + 1) * piece) as u64, piece as u32);
            bytes.drain(at * len..(at + 1) * len);
            closed += 1;
        }
        bytes.resize(PIECES * len, 0);
        // Holes are inserted within extents, at their edges, and in holes.
        for step in 0..closed / 2 {
            let at = (step * 401) % (PIECES - closed);
            shift_right(writer, &node, (at * piece) as u64, piece as u32);
            bytes.splice(at * len..at * len, vec![0; len]);
        }
        bytes.truncate(PIECES * len);
        let changed_by = node.values().fields.blocks.abs_diff(counted);
        assert!(changed_by.is_multiple_of(piece as u64 * 2), "whole clusters are counted");
        drop(node);
        volume.close().unwrap();
        extant_testkit::e2fsck_clean(&path);
        let out = scratch.path().join("out");
        let _ = extant_testkit::debugfs(&path, &format!("dump /file {}", out.display()));
        assert!(std::fs::read(&out).unwrap() == bytes, "{options:?}");
    }
}
