//! Some cuts in every run of the tests; the many are `cargo xtask crash`.

use crashlab::{Kind, Run, Schedule, Verdict, base_image, plants};
use fsmodel::{Generator, Limits, Op, Options, short_alphabet, short_sequences, short_setup};
use volume::Sabotage;

fn random_run(number: u64, sabotage: Sabotage) -> Result<Run, String> {
    let kind = Kind::ALL[(number % Kind::ALL.len() as u64) as usize];
    let limits = Limits { block_size: 1024, inode_size: 256, ea_inode: kind.has_value_inodes() };
    let options = Options { limits, capabilities: false, ..Options::default() };
    let mut generator = Generator::new(number, options);
    let setup: Vec<Op> = generator.by_ref().take(60).collect();
    let ops: Vec<Op> = generator.take(40).collect();
    let schedule = Schedule { sabotage, ..Schedule::new(number) };
    Run::record(base_image(kind), &setup, &ops, schedule)
}

fn right(run: &Run, event: u64, seed: u64, again: bool) {
    if let (Verdict::Violation(what), _) = run.judge(event, seed, again) {
        panic!("{what}");
    }
}

#[test]
fn every_moment_of_pairs_of_operations() {
    let alphabet = short_alphabet();
    // Every 12th pair; all of them are in the long run.
    for (number, ops) in short_sequences(&alphabet, 2).enumerate().step_by(12) {
        let number = number as u64;
        let kind = Kind::ALL[(number % Kind::ALL.len() as u64) as usize];
        let run = Run::record(base_image(kind), &short_setup(), &ops, Schedule::new(number)).unwrap();
        for event in 0..=run.events() {
            right(&run, event, number * 1000 + event, event % 5 == 0);
        }
    }
}

#[test]
fn random_operations() {
    for number in 0..12 {
        let run = random_run(number, Sabotage::default()).unwrap();
        for event in (0..=run.events()).step_by(2) {
            right(&run, event, number * 77 + event, event % 5 == 0);
        }
    }
}

#[test]
fn mistakes_on_purpose_are_found() {
    for plant in plants() {
        let found = (100..400).any(|number| {
            // Some show without a cut.
            let Ok(run) = random_run(number, plant.sabotage) else { return true };
            (0..=run.events())
                .any(|event| matches!(run.judge(event, number + event, false).0, Verdict::Violation(_)))
        });
        assert!(found, "not found: {}", plant.name);
    }
}
