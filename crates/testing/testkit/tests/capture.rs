//! Captures of a file system at work: the kernel recovers each, and then finds it clean.

use std::path::Path;

use extant_testkit::capture::{Checksums, Cut, Data, Options, captures};
use extant_testkit::walk::{KernelView, needs_recovery};
use extant_testkit::{Manifest, is_root};

/// Whether captures are possible here.
fn possible() -> bool {
    let possible = is_root() && Path::new("/dev/fuse").exists();
    if !possible {
        eprintln!("captures need root and /dev/fuse: left out");
    }
    possible
}

/// Lets the kernel recover every capture. It must recover completely, except for fast commits: after their
/// replay Linux 6.18 may leave wrong counters (`i_blocks`, free inodes), and with a volatile cache it refuses
/// some captures.
fn recover(options: &Options) {
    let (mut n, mut n_dirty, mut n_refused, mut n_unclean, mut n_lost, mut n_entries, mut n_writes) =
        (0, 0, 0, 0, 0, 0, 0);
    captures(options, |capture| {
        assert_eq!(capture.number, n);
        n += 1;
        n_lost += capture.n_lost;
        n_writes = capture.n_writes;
        n_dirty += usize::from(needs_recovery(capture.image));
        let view = match KernelView::open(capture.image, None) {
            Ok(view) => view,
            Err(error) => {
                assert!(options.fast_commit, "{options:?}, capture {}: {error}", capture.number);
                n_refused += 1;
                return;
            }
        };
        n_entries += Manifest::of(view.path()).entries.len();
        let (image, _dir) = view.close();
        let verdict = extant_testkit::command("e2fsck").arg("-fn").arg(image).output().unwrap();
        if !verdict.status.success() {
            let text = String::from_utf8_lossy(&verdict.stdout);
            assert!(options.fast_commit, "{options:?}, capture {}: {text}", capture.number);
            n_unclean += 1;
        }
    });
    println!(
        "{n} captures, {n_dirty} dirty, {n_writes} writes, {n_lost} lost, {} entries each, {n_refused} refused, \
         {n_unclean} not clean",
        n_entries / n
    );
    assert_eq!(n, options.n_captures);
    assert!(n_dirty * 10 >= n * 9, "{n_dirty} of {n} want a replay");
    assert!(n_refused * 2 < n, "{n_refused} of {n} refused");
    assert_eq!(options.cut == Cut::AllHandedOver, n_lost == 0, "{options:?}");
}

#[test]
fn the_kernel_recovers_from_a_few() {
    if possible() {
        let few = Options { n_captures: 10, ..Options::default() };
        recover(&few);
        recover(&Options { cut: Cut::LosesUnflushed, fast_commit: true, block_size: 1024, ..few });
    }
}

#[test]
#[should_panic(expected = "the callback has had enough")]
fn a_panic_unmounts_everything() {
    assert!(possible(), "the callback has had enough");
    captures(&Options { n_captures: 10, ..Options::default() }, |capture| {
        assert!(capture.number < 2, "the callback has had enough");
    });
}

#[test]
#[ignore = "50 captures for each of many sorts of journals: minutes"]
fn the_kernel_recovers_from_all_sorts() {
    if !possible() {
        return;
    }
    let sorts = [
        Options::default(),
        Options { fast_commit: true, ..Options::default() },
        Options { data: Data::Journal, ..Options::default() },
        Options { data: Data::Writeback, checksums: Checksums::V3Async, ..Options::default() },
        Options { checksums: Checksums::None, block_size: 1024, ..Options::default() },
        Options { checksums: Checksums::V1, block_size: 1024, ..Options::default() },
        Options { checksums: Checksums::V1Async, data: Data::Writeback, ..Options::default() },
        Options { features: "inline_data,^orphan_file", ..Options::default() },
    ];
    for sort in sorts {
        for cut in [Cut::AllHandedOver, Cut::LosesUnflushed] {
            let start = std::time::Instant::now();
            println!("{sort:?}");
            recover(&Options { cut, n_captures: 50, ..sort.clone() });
            println!("    {:.1} s", start.elapsed().as_secs_f64());
        }
    }
}
