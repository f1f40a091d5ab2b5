//! Judges power cuts in bulk: `crash [--seed S] [--cuts M] [--judged N] [--run R] [--fast] [--keep DIR]
//! [--plants]`.
//!
//! It first runs every sequence of two operations of the small alphabet and cuts at every moment. Then it
//! runs random operations until `M` cuts were judged: in small trees, in directories with many names, and
//! where indexes of directories change shape. e2fsck judges `N` of the cuts; the kernel judges as many, where
//! it can mount the image. In most runs, operations come in the middle of commits and checkpoints; in half of
//! them memory is short.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use extant_crashlab::{
    CrashRun, IndexWork, Kind, Outcome, Pressure, Schedule, TOP, Verdict, base_image, e2fsck_says,
    kernel_mounts, plants, random_run, superblock_is_torn, to_file,
};
use extant_fsmodel::{Op, short_alphabet, short_sequences, short_setup};
use extant_volume::Sabotage;

struct Arguments {
    seed: u64,
    cuts: u64,
    judged: u64,
    plants: bool,
    /// Only images with fast commits.
    fast: bool,
    /// Only this run.
    run: Option<u64>,
    /// Where the disks of violations are kept, as they were after the cut.
    keep: Option<PathBuf>,
}

fn main() {
    let arguments = parse();
    let begun = Instant::now();
    let mut failed = false;
    if arguments.plants {
        for plant in plants() {
            let found = find_plant(&plant.sabotage, arguments.seed, arguments.cuts);
            match &found {
                Some((cuts, what)) => {
                    println!("found after {cuts:>6} cuts: {}\n    {}", plant.name, first_line(what))
                }
                None => println!("NOT FOUND in {} cuts: {}", arguments.cuts, plant.name),
            }
            failed |= found.is_none();
        }
    } else {
        let (outcome, (work, pressure), violations) = soak(&arguments);
        for violation in violations.iter().take(5) {
            println!("VIOLATION {violation}");
        }
        println!(
            "seed {}: {} cuts, {} of them cut again during recovery, {} judged by e2fsck, {} recovered by the kernel \
             ({} more had a torn superblock, which the kernel refuses), {} violations, {:.0} s",
            arguments.seed,
            outcome.cuts,
            outcome.twice,
            outcome.e2fsck,
            outcome.kernel,
            outcome.torn,
            violations.len(),
            begun.elapsed().as_secs_f64()
        );
        println!("indexes of directories: {work}\nmeanwhile: {pressure}");
        failed = !violations.is_empty();
    }
    std::process::exit(i32::from(failed));
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn parse() -> Arguments {
    let mut arguments =
        Arguments { seed: 1, cuts: 20_000, judged: 200, plants: false, fast: false, run: None, keep: None };
    let words: Vec<String> = std::env::args().skip(1).collect();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut number = |what: &str| {
            let value = words.next().and_then(|value| value.parse().ok());
            value.unwrap_or_else(|| usage(&format!("{what} needs a number")))
        };
        match word.as_str() {
            "--seed" => arguments.seed = number("--seed"),
            "--cuts" => arguments.cuts = number("--cuts"),
            "--judged" => arguments.judged = number("--judged"),
            "--plants" => arguments.plants = true,
            "--run" => arguments.run = Some(number("--run")),
            "--keep" => arguments.keep = words.next().map(PathBuf::from),
            "--fast" => arguments.fast = true,
            other => usage(&format!("unknown argument {other:?}")),
        }
    }
    arguments
}

fn usage(why: &str) -> ! {
    eprintln!("crash: {why}");
    eprintln!("usage: crash [--seed S] [--cuts M] [--judged N] [--run R] [--fast] [--keep DIR] [--plants]");
    std::process::exit(2);
}

/// The run of this number: the short sequences first, then random runs.
fn run_of(number: u64, seed: u64, sequences: &[Vec<Op>], sabotage: Sabotage) -> Result<CrashRun, String> {
    let Some(ops) = sequences.get(number as usize) else { return random_run(number, seed, sabotage) };
    let schedule = Schedule { sabotage, ..Schedule::new(seed ^ number.wrapping_mul(0x9E37_79B9)) };
    CrashRun::record(base_image(Kind::of_run(number)), &short_setup(), ops, schedule)
}

fn soak(arguments: &Arguments) -> (Outcome, (IndexWork, Pressure), Vec<String>) {
    let sequences: Vec<Vec<Op>> = short_sequences(&short_alphabet(), 2).collect();
    let (next, cuts, twice) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let (e2fsck, kernel, torn) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let sums = Mutex::new((IndexWork::default(), Pressure::default()));
    let violations: Mutex<Vec<String>> = Mutex::default();
    let every = (arguments.cuts / arguments.judged.max(1)).max(1);
    let mounted: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| kernel_mounts(*kind)).collect();
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let scratch = extant_testkit::scratch();
                let path = scratch.path().join("cut");
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let may_mount = mounted.contains(&Kind::of_run(number));
                    let is_short = (number as usize) < sequences.len();
                    if cuts.load(Ordering::Relaxed) >= arguments.cuts && !is_short {
                        return;
                    }
                    if arguments.run.is_some_and(|only| number < only) {
                        continue;
                    }
                    if arguments.run.is_some_and(|only| number > only) {
                        return;
                    }
                    if arguments.fast && Kind::of_run(number) != Kind::Fast {
                        continue;
                    }
                    let run = match run_of(number, arguments.seed, &sequences, Sabotage::default()) {
                        Ok(run) => run,
                        Err(why) => {
                            violations.lock().unwrap().push(format!("run {number}: {why}"));
                            continue;
                        }
                    };
                    {
                        let (work, pressure) = &mut *sums.lock().unwrap();
                        *work += run.index_work();
                        *pressure += run.pressure();
                    }
                    for event in 0..=run.events() {
                        let seed = number.wrapping_mul(1_000_003).wrapping_add(event) ^ arguments.seed;
                        let count = cuts.fetch_add(1, Ordering::Relaxed);
                        let again = count % 5 == 0;
                        twice.fetch_add(u64::from(again), Ordering::Relaxed);
                        let (verdict, disk) = run.judge(event, seed, again);
                        if let Verdict::Violation(what) = verdict {
                            violations.lock().unwrap().push(format!("run {number}: {what}"));
                            break;
                        }
                        if count % every != 0 {
                            continue;
                        }
                        if let Some(disk) = disk {
                            to_file(&disk, &path).expect("scratch can be written");
                            e2fsck.fetch_add(1, Ordering::Relaxed);
                            if let Err(what) = e2fsck_says(&path) {
                                violations
                                    .lock()
                                    .unwrap()
                                    .push(format!("run {number}, event {event}: {what}"));
                            }
                        }
                        let disk = run.cut_disk(event, seed);
                        if may_mount && superblock_is_torn(&disk) {
                            torn.fetch_add(1, Ordering::Relaxed);
                        } else if may_mount {
                            to_file(&disk, &path).expect("scratch can be written");
                            kernel.fetch_add(1, Ordering::Relaxed);
                            let keep = arguments.keep.as_ref().map(|dir| {
                                let kept = dir.join(format!("run-{number}-event-{event}.img"));
                                std::fs::copy(&path, &kept).expect("the directory exists");
                                kept
                            });
                            let said = kernel_says(&run, &path, event);
                            if let (Ok(()), Some(kept)) = (&said, keep) {
                                let _ = std::fs::remove_file(kept);
                            }
                            if let Err(what) = said {
                                let text =
                                    format!("run {number}, event {event}, seed {seed}: kernel: {what}");
                                violations.lock().unwrap().push(text);
                            }
                        }
                    }
                }
            });
        }
    });
    let outcome = Outcome {
        cuts: cuts.into_inner(),
        twice: twice.into_inner(),
        e2fsck: e2fsck.into_inner(),
        kernel: kernel.into_inner(),
        torn: torn.into_inner(),
    };
    (outcome, sums.into_inner().unwrap(), violations.into_inner().unwrap())
}

/// Lets the kernel recover the image. The result must be one of the allowed trees, and e2fsck must find
/// nothing.
fn kernel_says(run: &CrashRun, path: &std::path::Path, event: u64) -> Result<(), String> {
    {
        let mount = extant_testkit::LoopMount::new(path, "noatime").map_err(|error| error.to_string())?;
        let top = mount.path().join(std::str::from_utf8(TOP).expect("a name of letters"));
        let mut kernel = extant_fsmodel::Kernel::open(&top).map_err(|errno| errno.to_string())?;
        let tree = extant_fsmodel::Subject::tree(&mut kernel);
        run.judge_tree(&tree, event)?;
    }
    e2fsck_says(path)
}

/// Cuts until the defect shows. Returns the number of cuts and the violation.
fn find_plant(sabotage: &Sabotage, seed: u64, cuts_max: u64) -> Option<(u64, String)> {
    let mut cuts = 0;
    let mut number = 1_000_000;
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    while cuts < cuts_max {
        number += 1;
        *sums.entry("runs").or_default() += 1;
        let run = match run_of(number, seed, &[], *sabotage) {
            Ok(run) => run,
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
