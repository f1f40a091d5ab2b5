//! A few cuts in every test run; `cargo xtask crash` makes many.

use std::ops::Range;
use std::sync::Arc;

use extant_crashlab::{
    CrashRun, CrowdedRun, IndexMoment, IndexWork, Kind, Plant, Pressure, Schedule, Verdict, base_image,
    e2fsck_says, index_run, plants, random_run, random_run_under, to_file,
};
use extant_fsmodel::{short_alphabet, short_sequences, short_setup};
use extant_simdisk::SimDisk;
use extant_volume::Sabotage;

fn right(run: &CrashRun, event: u64, seed: u64, again: bool) {
    if let (Verdict::Violation(what), _) = run.judge(event, seed, again) {
        panic!("{what}");
    }
}

#[test]
fn every_moment_of_pairs_of_operations() {
    let alphabet = short_alphabet();
    // Every 12th pair; the long run has all.
    for (number, ops) in short_sequences(&alphabet, 2).enumerate().step_by(12) {
        let number = number as u64;
        let kind = Kind::of_run(number);
        let run = CrashRun::record(base_image(kind), &short_setup(), &ops, Schedule::new(number)).unwrap();
        for event in 0..=run.events() {
            right(&run, event, number * 1000 + event, event % 5 == 0);
        }
    }
}

#[test]
fn random_operations() {
    let (mut work, mut pressure) = (IndexWork::default(), Pressure::default());
    for number in 0..24 {
        let run = random_run(number, 0, Sabotage::default()).unwrap();
        for event in (0..=run.events()).step_by(2) {
            right(&run, event, number * 77 + event, event % 5 == 0);
        }
        work += run.index_work();
        pressure += run.pressure();
    }
    assert!(work.leaf_splits > 20, "{work}");
    assert!(pressure.meanwhile > 150 && pressure.reclaims > 30 && pressure.read_again > 1000, "{pressure}");
}

/// Levels of nodes below the root of the index of the directory `tree/names`, read by debugfs.
fn levels(disk: &SimDisk) -> u32 {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    to_file(disk, &path).unwrap();
    let dump = extant_testkit::run("debugfs", ["-R", "htree_dump tree/names", path.to_str().unwrap()]);
    let dump = String::from_utf8_lossy(&dump.stdout).into_owned();
    let line = dump.lines().find_map(|line| line.trim().strip_prefix("Indirect levels: "));
    line.and_then(|levels| levels.parse().ok()).unwrap_or_else(|| panic!("{dump}"))
}

#[test]
fn every_moment_while_indexes_change_their_shape() {
    use IndexMoment::*;
    // Trees of three levels, and one more kind for the moments that all kinds have.
    for kind in [Kind::LargeDir, Kind::Quotas] {
        for (&moment, number) in IndexMoment::of_kind(kind).iter().zip(0..) {
            // A memory shortage would reset the counters.
            let schedule = Schedule { reclaims: 0, cache_bytes: 0, ..Schedule::new(number) };
            let run = index_run(kind, moment, schedule).unwrap();
            // The change happens between the first and the last of these cuts.
            let work = run.index_work();
            let is_done = match moment {
                Begun => work.indexed > 0 && work.leaf_splits > 0 && work.unindexed > 0,
                SecondLevel | ThirdLevel => work.levels_added == 1 && work.leaf_splits > 1,
                NodeSplit => work.node_splits == 1 && work.leaf_splits > 1,
                TwoNodesSplit => work.node_splits == 2 && work.leaf_splits > 1,
                ThirdLevelGoes | SecondLevelGoes => work.levels_removed == 1,
                Emptied => work.unindexed == 1,
            };
            assert!(is_done, "{kind:?}, {moment:?}: {work:?}");
            let begins = Arc::new(run.cut_disk(0, 1));
            let mut last = Arc::clone(&begins);
            for event in 0..=run.events() {
                let (verdict, disk) = run.judge(event, number * 77 + event, event % 5 == 0);
                last = disk.unwrap_or_else(|| panic!("{kind:?}, {moment:?}: {verdict:?}"));
            }
            let scratch = extant_testkit::scratch();
            to_file(&last, &scratch.path().join("image")).unwrap();
            e2fsck_says(&scratch.path().join("image")).unwrap();
            // debugfs must agree with the counters. It prints nothing for a directory without an index.
            let (before, after) = match moment {
                Begun | Emptied => continue,
                SecondLevel => (0, 1),
                NodeSplit => (1, 1),
                ThirdLevel => (1, 2),
                TwoNodesSplit => (2, 2),
                ThirdLevelGoes => (2, 1),
                SecondLevelGoes => (1, 0),
            };
            assert_eq!((levels(&begins), levels(&last)), (before, after), "{kind:?}, {moment:?}");
        }
    }
}

/// Removed nodes were evicted when the last leaf moves into their place.
#[test]
fn indexes_change_their_shape_while_memory_is_short() {
    let kind = Kind::LargeDir;
    for (&moment, number) in IndexMoment::of_kind(kind).iter().cycle().zip(0..16) {
        let schedule = Schedule { reclaims: 100, cache_bytes: 96 << 10, ..Schedule::new(number) };
        let run = index_run(kind, moment, schedule).unwrap();
        for event in (0..=run.events()).step_by(9) {
            right(&run, event, number * 77 + event, false);
        }
    }
}

fn is_found(plant: Plant, mut numbers: Range<u64>, changed: fn(Schedule) -> Schedule) -> bool {
    numbers.any(|number| {
        let schedule = |schedule| changed(Schedule { sabotage: plant.sabotage, ..schedule });
        // Some defects show without a cut.
        let Ok(run) = random_run_under(number, 0, schedule) else { return true };
        (0..=run.events())
            .any(|event| matches!(run.judge(event, number + event, false).0, Verdict::Violation(_)))
    })
}

#[test]
fn mistakes_on_purpose_are_found() {
    for plant in plants() {
        assert!(is_found(plant, 100..400, |schedule| schedule), "not found: {}", plant.name);
    }
}

#[test]
fn some_mistakes_show_only_when_much_happens_at_once() {
    for plant in plants().into_iter().filter(|plant| plant.needs_pressure) {
        let is_found = is_found(plant, 100..130, Schedule::undisturbed);
        assert!(!is_found, "nothing comes in the middle of anything, but it is found: {}", plant.name);
    }
}

/// A directory that is larger than the caches: leaves are changed without being read.
#[test]
fn every_moment_of_a_directory_that_does_not_fit_into_memory() {
    let mut deferred = 0;
    for (kind, number) in [Kind::Today, Kind::LargeDir, Kind::Fast, Kind::Clusters].into_iter().zip(0..) {
        let run = CrowdedRun::record(kind, number, Sabotage::default()).unwrap();
        deferred += run.deferred_reads();
        for event in (number..=run.events()).step_by(17) {
            let disk = run.judge(event, number * 31 + event).unwrap_or_else(|why| panic!("{why}"));
            if event % 8 == 0 {
                let scratch = extant_testkit::scratch();
                let path = scratch.path().join("image");
                to_file(&disk, &path).unwrap();
                e2fsck_says(&path).unwrap_or_else(|why| panic!("event {event}: {why}"));
            }
        }
    }
    assert!(deferred > 100, "{deferred} blocks");
}

#[test]
fn a_directory_that_does_not_fit_into_memory_shows_blocks_that_leave_it_early() {
    let sabotage = Sabotage::with(extant_volume::Bug::CleanEarly);
    // What left memory early comes back older, which the operations may notice.
    let is_found = (0..20).any(|seed| {
        let run = std::panic::catch_unwind(|| CrowdedRun::record(Kind::Today, seed, sabotage));
        let Ok(Ok(run)) = run else { return true };
        (0..=run.events()).step_by(5).any(|event| run.judge(event, event).is_err())
    });
    assert!(is_found);
}
