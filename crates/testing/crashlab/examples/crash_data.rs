//! Judges power cuts of file data: `crash_data [--seed S] [--cuts M] [--judged N] [--threads T] [--run R]
//! [--full] [--plants]`.
//!
//! Runs take random steps on files, on every kind of image and with every flush mode, until `M` cuts were
//! judged. e2fsck judges `N` of the cuts, and the kernel judges as many. `--run` repeats only the run that a
//! violation names. `--full` uses only images that are nearly full.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use extant_crashlab::{
    DataKind, DataRun, DataSchedule, Outcome, Space, Verdict, data_plants, e2fsck_says, superblock_is_torn,
    to_file,
};
use extant_volume::Sabotage;

struct Arguments {
    seed: u64,
    cuts: u64,
    judged: u64,
    threads: u64,
    run: Option<u64>,
    full: bool,
    plants: bool,
    /// Only images with fast commits.
    fast: bool,
    /// Where the disks that the kernel or e2fsck complain about are kept, as they were after the cut.
    keep: Option<PathBuf>,
}

fn main() {
    let arguments = parse();
    let begun = Instant::now();
    let mut failed = false;
    if arguments.plants {
        for plant in data_plants() {
            match find(plant.sabotage, &arguments) {
                Some((cuts, what)) => {
                    let line = what.lines().next().unwrap_or_default();
                    println!("found after {cuts:>6} cuts: {}\n    {line}", plant.name);
                }
                None => {
                    println!("NOT FOUND in {} cuts: {}", arguments.cuts, plant.name);
                    failed = true;
                }
            }
        }
    } else {
        let (outcome, violations) = soak(&arguments);
        for violation in violations.iter().take(5) {
            println!("VIOLATION {violation}");
        }
        println!(
            "seed {}: {} cuts of data, {} of them cut again during recovery, {} judged by e2fsck, {} recovered by the \
             kernel ({} more had a torn superblock, which the kernel refuses), {} violations, {:.0} s",
            arguments.seed,
            outcome.cuts,
            outcome.twice,
            outcome.e2fsck,
            outcome.kernel,
            outcome.torn,
            violations.len(),
            begun.elapsed().as_secs_f64()
        );
        failed = !violations.is_empty();
    }
    std::process::exit(i32::from(failed));
}

fn parse() -> Arguments {
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let mut arguments = Arguments {
        seed: 1,
        cuts: 20_000,
        judged: 200,
        threads,
        run: None,
        full: false,
        plants: false,
        fast: false,
        keep: None,
    };
    let words: Vec<String> = std::env::args().skip(1).collect();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut number = || {
            let value = words.next().and_then(|value| value.parse().ok());
            value.unwrap_or_else(|| usage(&format!("{word} needs a number")))
        };
        match word.as_str() {
            "--seed" => arguments.seed = number(),
            "--cuts" => arguments.cuts = number(),
            "--judged" => arguments.judged = number(),
            "--threads" => arguments.threads = number(),
            "--run" => arguments.run = Some(number()),
            "--full" => arguments.full = true,
            "--plants" => arguments.plants = true,
            "--fast" => arguments.fast = true,
            "--keep" => arguments.keep = words.next().map(PathBuf::from),
            other => usage(&format!("unknown argument {other:?}")),
        }
    }
    arguments
}

fn usage(why: &str) -> ! {
    eprintln!(
        "crash_data: {why}\nusage: crash_data [--seed S] [--cuts M] [--judged N] [--threads T] [--run R] [--full]\n       [--fast] [--keep DIR] [--plants]"
    );
    std::process::exit(2);
}

/// The kind of image of the run of this number.
fn kind_of(number: u64) -> DataKind {
    DataKind::ALL[(number % DataKind::ALL.len() as u64) as usize]
}

/// The run of this number.
fn run_of(number: u64, seed: u64, full: bool, sabotage: Sabotage) -> Result<DataRun, String> {
    let kinds = DataKind::ALL.len() as u64;
    let kind = kind_of(number);
    let of_all = Space::ALL[(number / kinds) as usize % Space::ALL.len()];
    let space = if full { Space::Short } else { of_all };
    let schedule = DataSchedule::new(seed.wrapping_mul(1_000_000).wrapping_add(number), kind, space);
    DataRun::record(DataSchedule { sabotage, ..schedule })
}

fn soak(arguments: &Arguments) -> (Outcome, Vec<String>) {
    let next = AtomicU64::new(arguments.run.unwrap_or(0));
    let [cuts, twice, e2fsck, kernel, torn] = [const { AtomicU64::new(0) }; 5];
    let violations = Mutex::new(Vec::new());
    let every = (arguments.cuts / arguments.judged.max(1)).max(1);
    let is_root = extant_testkit::is_root();
    let work = || {
        let scratch = extant_testkit::scratch();
        let path = scratch.path().join("cut");
        let add = |number: u64, what: String| {
            let mut violations = violations.lock().expect("no thread panics with it");
            violations.push(format!("run {number}: {what}"));
        };
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let is_over = arguments.run.is_some_and(|only| number > only);
            if is_over || cuts.load(Ordering::Relaxed) >= arguments.cuts {
                return;
            }
            if arguments.fast && !kind_of(number).has_fast_commits() {
                continue;
            }
            let run = match run_of(number, arguments.seed, arguments.full, Sabotage::default()) {
                Ok(run) => run,
                Err(why) => {
                    add(number, why);
                    continue;
                }
            };
            for event in 0..=run.events() {
                let seed = number.wrapping_mul(1_000_003).wrapping_add(event) ^ arguments.seed;
                let count = cuts.fetch_add(1, Ordering::Relaxed);
                let again = count % 5 == 0;
                twice.fetch_add(u64::from(again), Ordering::Relaxed);
                let (verdict, disk) = run.judge(event, seed, again);
                if let Verdict::Violation(what) = verdict {
                    add(number, what);
                    break;
                }
                if count % every != 0 || !run.is_for_others() {
                    continue;
                }
                if let Some(disk) = disk {
                    to_file(&disk, &path).expect("scratch can be written");
                    e2fsck.fetch_add(1, Ordering::Relaxed);
                    if let Err(what) = e2fsck_says(&path) {
                        add(number, format!("event {event}: {what}"));
                    }
                }
                let disk = run.cut_disk(event, seed);
                if superblock_is_torn(&disk) {
                    torn.fetch_add(1, Ordering::Relaxed);
                } else if is_root {
                    to_file(&disk, &path).expect("scratch can be written");
                    kernel.fetch_add(1, Ordering::Relaxed);
                    let judged = run.judge_kernel(&path, event).and_then(|()| e2fsck_says(&path));
                    if let Err(what) = judged {
                        if let Some(dir) = &arguments.keep {
                            let kept = dir.join(format!("run-{number}-event-{event}.img"));
                            to_file(&run.cut_disk(event, seed), &kept).expect("the directory exists");
                        }
                        add(number, format!("event {event}, seed {seed}: kernel: {what}"));
                    }
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..arguments.threads.max(1) {
            scope.spawn(work);
        }
    });
    let outcome = Outcome {
        cuts: cuts.into_inner(),
        twice: twice.into_inner(),
        e2fsck: e2fsck.into_inner(),
        kernel: kernel.into_inner(),
        torn: torn.into_inner(),
    };
    (outcome, violations.into_inner().expect("no thread panicked"))
}

/// Cuts until the defect shows. Returns the number of cuts and the violation.
fn find(sabotage: Sabotage, arguments: &Arguments) -> Option<(u64, String)> {
    let (mut cuts, mut number) = (0, 0);
    while cuts < arguments.cuts {
        number += 1;
        let run = match run_of(number, arguments.seed, arguments.full, sabotage) {
            Ok(run) => run,
            // Some defects show without a cut.
            Err(why) => return Some((cuts, why)),
        };
        for event in 0..=run.events() {
            cuts += 1;
            let seed = number.wrapping_mul(31).wrapping_add(event);
            if let (Verdict::Violation(what), _) = run.judge(event, seed, false) {
                return Some((cuts, what));
            }
        }
    }
    None
}
