//! Verdicts: on thousands of images with one damaged field each, `extant check` and `e2fsck -fn` agree in at
//! least 98 of 100 cases whether the file system is sound. The test prints each disagreement.
//!
//! For more cases: `EXTANT_VERDICTS=10000`; for another corpus: `EXTANT_SEED=7`.

mod images;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use extant_hostile::{Region, Sealed};
use extant_testkit::{command, corrupt, scratch};

const THREADS: usize = 2;

#[test]
fn the_verdict_is_e2fscks_in_98_of_100_cases() {
    let number =
        |name: &str, default| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default);
    let (wanted, seed) = (number("EXTANT_VERDICTS", 2400), number("EXTANT_SEED", 1));
    let images = images::all();
    let cases: Vec<(usize, corrupt::Mutation)> = images
        .iter()
        .enumerate()
        .flat_map(|(at, (_, mutator))| {
            let regions: Vec<corrupt::Region> = mutator.regions().iter().map(label).collect();
            let corpus =
                corrupt::corpus(mutator.sound(), &regions, wanted / images.len(), (seed + at) as u64);
            corpus.into_iter().map(move |mutation| (at, mutation))
        })
        .collect();
    let next = AtomicUsize::new(0);
    let disagreements: Mutex<BTreeMap<usize, String>> = Mutex::default();
    let (damaged, backups) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let dir = scratch();
                let path = dir.path().join("image");
                loop {
                    let case = next.fetch_add(1, Ordering::Relaxed);
                    let Some((at, mutation)) = cases.get(case) else { break };
                    let (name, mutator) = &images[*at];
                    let mut bytes = mutator.sound().to_vec();
                    bytes[mutation.offset..mutation.offset + mutation.after.len()]
                        .copy_from_slice(&mutation.after);
                    // One in four keeps its wrong checksum.
                    let sealed = !case.is_multiple_of(4);
                    if sealed {
                        let region = region_of(mutator, mutation);
                        extant_hostile::seal(&mut bytes, mutator.superblock(), &region);
                    }
                    std::fs::write(&path, &bytes).unwrap();
                    // Some damage makes e2fsck loop.
                    let judged =
                        command("timeout").args(["20", "e2fsck", "-fn"]).arg(&path).output().unwrap();
                    // e2fsck exits with 0 even if it used a backup, because -n repairs the primary copy in
                    // memory only.
                    let said = String::from_utf8_lossy(&judged.stdout).into_owned()
                        + &String::from_utf8_lossy(&judged.stderr);
                    let turned = said.contains("trying backup blocks")
                        || said.contains("descriptor checksums are invalid");
                    let theirs = judged.status.code() == Some(0) && !turned;
                    backups
                        .fetch_add(usize::from(judged.status.code() == Some(0) && turned), Ordering::Relaxed);
                    let device = extant_device::FileDevice::open(&path, false).unwrap();
                    let report = extant_check::check(&device, &extant_check::Options::default()).unwrap();
                    let ours = report.opened && report.clean();
                    damaged.fetch_add(usize::from(!theirs), Ordering::Relaxed);
                    if ours != theirs {
                        let why = match theirs {
                            true => format!(
                                "{:?}",
                                report.findings.first().map(|found| (found.rule.code, &found.says))
                            ),
                            false => first_words(&judged.stdout),
                        };
                        let text = format!(
                            "{name}: {mutation}{}: ours {}, e2fsck {}: {why}",
                            if sealed { "" } else { " (not sealed)" },
                            if ours { "clean" } else { "damaged" },
                            if theirs { "clean" } else { "damaged" },
                        );
                        disagreements.lock().unwrap().insert(case, text);
                    }
                }
            });
        }
    });
    let disagreements = disagreements.into_inner().unwrap();
    for text in disagreements.values() {
        println!("{text}");
    }
    let (cases, damaged) = (cases.len(), damaged.into_inner());
    let agree = 100.0 * (cases - disagreements.len()) as f64 / cases as f64;
    println!(
        "{cases} cases, {damaged} damaged in e2fsck's eyes, {} disagreements: {agree:.2} % agree",
        disagreements.len()
    );
    println!("{} of the damaged exit with 0, after e2fsck said that it uses a backup", backups.into_inner());
    assert!(cases >= wanted * 9 / 10, "only {cases} cases");
    assert!(agree >= 98.0, "{agree:.2} % agree");
}

fn label(region: &Region) -> corrupt::Region {
    let kind = match region.sealed {
        Sealed::Superblock => "superblock",
        Sealed::Descriptor(_) => "descriptor",
        Sealed::BlockBitmap(_) => "block bitmap",
        Sealed::InodeBitmap(_) => "inode bitmap",
        Sealed::Inode(_) => "inode",
        Sealed::ExtentNode(_) => "extent node",
        Sealed::DirLeaf(_) => "directory leaf",
        Sealed::DirIndex(_) => "directory index",
        Sealed::Xattr(_) => "attribute block",
        Sealed::JournalSuperblock => "journal superblock",
        Sealed::Nothing => "indirect or log block",
    };
    corrupt::Region { kind: kind.to_owned(), offset: region.offset, len: region.len }
}

/// The region that contains a mutation.
fn region_of(mutator: &extant_hostile::Mutator, mutation: &corrupt::Mutation) -> Region {
    let found = mutator
        .regions()
        .iter()
        .find(|region| region.offset == mutation.region && label(region).kind == mutation.kind);
    *found.expect("a mutation belongs to a region")
}

/// The first line of e2fsck's output that reports a problem.
fn first_words(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    let said = text.lines().find(|line| !line.is_empty() && !line.starts_with("Pass "));
    said.unwrap_or("(nothing)").chars().take(160).collect()
}
