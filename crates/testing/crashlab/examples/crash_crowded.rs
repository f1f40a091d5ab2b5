//! Judges power cuts while a directory is much larger than the memory for caches: `crash --crowded [--seed S]
//! [--cuts M] [--judged N]`.
//!
//! e2fsck judges `N` of the cuts after our recovery, and the kernel recovers as many disks itself, where it
//! can mount the kind of image.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use extant_crashlab::{CrowdedRun, Kind, e2fsck_says, kernel_mounts, superblock_is_torn, to_file};
use extant_simdisk::SimDisk;
use extant_volume::Sabotage;

fn main() {
    let (mut seed, mut cuts_max, mut judged) = (1u64, 20_000u64, 200u64);
    let words: Vec<String> = std::env::args().skip(1).collect();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let value = words.next().and_then(|value| value.parse().ok());
        match (word.as_str(), value) {
            ("--seed", Some(value)) => seed = value,
            ("--cuts", Some(value)) => cuts_max = value,
            ("--judged", Some(value)) => judged = value,
            _ => {
                eprintln!("crash --crowded: unknown argument, or a number is missing: {word:?}");
                eprintln!("usage: crash --crowded [--seed S] [--cuts M] [--judged N]");
                std::process::exit(2);
            }
        }
    }
    let begun = Instant::now();
    let every = (cuts_max / judged.max(1)).max(1);
    let mounted: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| kernel_mounts(*kind)).collect();
    let (next, cuts) = (AtomicU64::new(0), AtomicU64::new(0));
    let (e2fsck, kernel, deferred) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let violations: Mutex<Vec<String>> = Mutex::default();
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let scratch = extant_testkit::scratch();
                let path = scratch.path().join("cut");
                while cuts.load(Ordering::Relaxed) < cuts_max {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let kind = Kind::of_run(number);
                    let run = match CrowdedRun::record(kind, seed ^ number << 20, Sabotage::default()) {
                        Ok(run) => run,
                        Err(why) => {
                            violations.lock().unwrap().push(format!("run {number}: {why}"));
                            continue;
                        }
                    };
                    deferred.fetch_add(run.deferred_reads(), Ordering::Relaxed);
                    for event in 0..=run.events() {
                        let seed = number.wrapping_mul(1_000_003).wrapping_add(event) ^ seed;
                        let count = cuts.fetch_add(1, Ordering::Relaxed);
                        let mut said = run.judge(event, seed).map(drop);
                        if said.is_ok() && count % every == 0 {
                            e2fsck.fetch_add(1, Ordering::Relaxed);
                            said = run.judge(event, seed).and_then(|disk| ask_e2fsck(&disk, &path));
                            let disk = run.cut_disk(event, seed);
                            if said.is_ok() && mounted.contains(&kind) && !superblock_is_torn(&disk) {
                                kernel.fetch_add(1, Ordering::Relaxed);
                                said = ask_kernel(&run, &disk, &path, event);
                            }
                        }
                        if let Err(why) = said {
                            violations.lock().unwrap().push(format!("run {number}: {why}"));
                            break;
                        }
                    }
                }
            });
        }
    });
    let violations = violations.into_inner().unwrap();
    violations.iter().take(5).for_each(|violation| println!("VIOLATION {violation}"));
    println!(
        "seed {seed}: {} cuts, {} judged by e2fsck, {} recovered by the kernel, {} blocks changed without \
         being read, {} violations, {:.0} s",
        cuts.into_inner(),
        e2fsck.into_inner(),
        kernel.into_inner(),
        deferred.into_inner(),
        violations.len(),
        begun.elapsed().as_secs_f64()
    );
    std::process::exit(i32::from(!violations.is_empty()));
}

fn ask_e2fsck(disk: &SimDisk, path: &Path) -> Result<(), String> {
    to_file(disk, path).expect("scratch can be written");
    e2fsck_says(path)
}

fn ask_kernel(run: &CrowdedRun, disk: &SimDisk, path: &Path, event: u64) -> Result<(), String> {
    to_file(disk, path).expect("scratch can be written");
    {
        let mount = extant_testkit::LoopMount::new(path, "noatime").map_err(|error| error.to_string())?;
        run.judge_listing(mount.path(), event).map_err(|why| format!("event {event}: kernel: {why}"))?;
    }
    e2fsck_says(path)
}
