//! Dirty journals: images cut off while the kernel was writing, read through the overlay, are what the kernel shows after its own
//! replay. Nothing is written to the image.
//!
//! More moments: `EXTANT_CAPTURES=210` (of each of the two tests).

mod common;

use std::time::{SystemTime, UNIX_EPOCH};

use testkit::capture::{Checksums, Cut, Data, Options, captures};
use testkit::walk::KernelView;
use testkit::{DiffOptions, diff};

/// Captures a test takes, all its options together.
fn n_captures() -> usize {
    std::env::var("EXTANT_CAPTURES").ok().and_then(|n| n.parse().ok()).unwrap_or(90)
}

#[test]
fn a_cut_off_image_reads_as_after_the_kernels_replay() {
    if !testkit::is_root() {
        println!("skipped: needs root, loop devices and /dev/fuse");
        return;
    }
    let base = Options { n_captures: n_captures().div_ceil(6), ..Options::default() };
    let lossy = Cut::LosesUnflushed;
    compare(&base);
    compare(&Options { cut: lossy, seed: 2, features: "inline_data", ..base.clone() });
    compare(&Options { checksums: Checksums::None, block_size: 1024, seed: 3, cut: lossy, ..base.clone() });
    compare(&Options { checksums: Checksums::V1Async, data: Data::Writeback, seed: 4, ..base.clone() });
    compare(&Options { data: Data::Journal, seed: 5, cut: lossy, features: "^orphan_file", ..base.clone() });
    compare(&Options {
        checksums: Checksums::V3Async,
        data: Data::Writeback,
        block_size: 2048,
        seed: 6,
        ..base
    });
}

#[test]
fn a_cut_off_image_with_fast_commits_reads_as_after_the_kernels_replay() {
    if !testkit::is_root() {
        println!("skipped: needs root, loop devices and /dev/fuse");
        return;
    }
    let base = Options { n_captures: n_captures().div_ceil(2), fast_commit: true, ..Options::default() };
    compare(&Options { seed: 11, ..base.clone() });
    compare(&Options {
        seed: 12,
        block_size: 1024,
        cut: Cut::LosesUnflushed,
        checksums: Checksums::None,
        ..base
    });
}

fn compare(options: &Options) {
    let (mut equal, mut replayed, mut fast, mut refused) = (0, 0, 0, 0);
    let mut failures = Vec::new();
    captures(options, |capture| {
        let before = std::fs::read(capture.image).unwrap();
        let volume = common::open(capture.image, None);
        let mut ours = common::manifest(&volume);
        let read_at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
        assert!(before == std::fs::read(capture.image).unwrap(), "reading changed the image");
        replayed += usize::from(volume.recovery().needed);
        fast += usize::from(volume.recovery().fast_commit_records > 0);
        let theirs = match KernelView::open(capture.image, None) {
            Ok(view) => view.manifest(),
            Err(_) => {
                refused += 1;
                return;
            }
        };
        // The kernel finishes truncations that were cut off, and stamps those files with the time of its mount.
        for (path, entry) in &theirs.entries {
            if entry.mtime.seconds >= read_at
                && let Some(same) = ours.entries.get_mut(path)
            {
                (same.mtime, same.ctime) = (entry.mtime, entry.ctime);
            }
        }
        let exact = DiffOptions::exact(options.block_size.into());
        // See `Options::fast_commit` for what the kernel is no judge of. Blocks behind the end of a file come and go
        // with its replay as well; what lies before it is compared as content and holes.
        // Blocks behind the end of a file come and go with its replay as well; those before it are compared as content
        // and holes.
        let unjudged = |line: &String| {
            let of_replay = ["time is ", "space used", ": extent "];
            options.fast_commit && of_replay.iter().any(|words| line.contains(words))
        };
        let lines: Vec<String> =
            diff(&theirs, &ours, &exact).into_iter().filter(|line| !unjudged(line)).collect();
        if lines.is_empty() {
            equal += 1;
        } else {
            failures.push(format!(
                "capture {} ({:?}):\n  {}",
                capture.number,
                volume.recovery(),
                lines[..lines.len().min(12)].join("\n  ")
            ));
            if let Some(dir) = std::env::var_os("EXTANT_KEEP") {
                let kept = format!("seed-{}-capture-{}.img", options.seed, capture.number);
                std::fs::write(std::path::Path::new(&dir).join(kept), &before).unwrap();
            }
        }
    });
    println!(
        "seed {}: {equal} equal, {replayed} needed a replay, {fast} had fast commits, {refused} refused by the kernel",
        options.seed
    );
    assert!(failures.is_empty(), "{} captures differ: {options:?}\n{}", failures.len(), failures.join("\n"));
    assert!(replayed * 2 > options.n_captures, "only {replayed} of {} needed a replay", options.n_captures);
    let refused_max = if options.fast_commit { options.n_captures / 5 } else { 0 };
    assert!(refused <= refused_max, "the kernel refused {refused}");
}
