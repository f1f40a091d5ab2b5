//! A few cuts of file data in every test run; `cargo xtask crash --data` makes many.

use std::time::Duration;

use extant_crashlab::{DataKind, DataRun, DataSchedule, RecordsRun, Space, Verdict, data_plants};
use extant_volume::{FlushMode, FlushSettings, Sabotage};

fn run(number: u64, sabotage: Sabotage) -> Result<DataRun, String> {
    let kinds = DataKind::ALL.len() as u64;
    let space = Space::ALL[(number / kinds) as usize % Space::ALL.len()];
    let schedule = DataSchedule::new(number, DataKind::ALL[(number % kinds) as usize], space);
    DataRun::record(DataSchedule { sabotage, ..schedule })
}

#[test]
fn bytes_are_what_they_may_be() {
    let numbers = 0..(DataKind::ALL.len() * Space::ALL.len()) as u64;
    for number in numbers {
        let run = run(number, Sabotage::default()).unwrap();
        for event in (0..=run.events()).step_by(7) {
            if let (Verdict::Violation(what), _) = run.judge(event, number * 77 + event, event % 5 == 0) {
                panic!("{what}");
            }
        }
    }
}

#[test]
fn mistakes_on_purpose_are_found() {
    for plant in data_plants() {
        let found = (1000..1200).any(|number| {
            // Some defects show without a cut.
            let Ok(run) = run(number, plant.sabotage) else { return true };
            (0..=run.events())
                .any(|event| matches!(run.judge(event, number + event, false).0, Verdict::Violation(_)))
        });
        assert!(found, "not found: {}", plant.name);
    }
}

/// The first violation in records that threads wrote, if any.
fn records(settings: FlushSettings, seed: u64) -> Option<String> {
    let run = RecordsRun::record(settings, 4, 8, seed).unwrap();
    run.moments().find_map(|event| match run.judge(event, event + seed) {
        Verdict::Violation(what) => Some(what),
        Verdict::Right => None,
    })
}

#[test]
fn records_of_threads_that_share_flushes_are_there() {
    for mode in FlushMode::ALL {
        let settings = FlushSettings { mode, bypass_below: Duration::ZERO, ..FlushSettings::default() };
        assert_eq!(records(settings, 1), None);
    }
}

#[test]
fn joining_a_flush_that_is_in_flight_is_found() {
    for mode in [FlushMode::Seed, FlushMode::Merge, FlushMode::Epoch] {
        let settings = FlushSettings { mode, bypass_below: Duration::ZERO, ..FlushSettings::default() };
        let planted = FlushSettings { join_in_flight: true, ..settings };
        assert!((0..40).any(|seed| records(planted, seed).is_some()), "not found: {mode:?}");
    }
}
