//! One directory with very many names.
//!
//! Links go to few inodes, so that only the directory grows: the engine hashes names, finds and splits
//! leaves, and adds levels to the index. The study records the rate for every so many names. The rates show
//! where caches become too small (the knee), and whether a hash profits from putting neighbouring names
//! together (tea is said to do this, but does not).

use std::fmt;
use std::sync::Mutex;
use std::time::Instant;

use extant_image::options::{FeatureEdit, FormatOptions, JournalSize};
use extant_ondisk::hash::HashVersion;
use extant_volume::OpenOptions;
use serde::Serialize;

use crate::createmany::{self, Job, LINKS_PER_TARGET, Operation};
use crate::ground::{Ground, Site};
use crate::names::NameFormat;
use crate::summary::rate;
use crate::{Engine, LabFault, Summary, Watch, WorkDir};

/// Maximum bytes of the device per name: its entry takes 24 bytes in half-full leaves; index and spare space
/// are added.
const BYTES_PER_NAME: u64 = 64;
/// Bytes of the device besides names.
const BYTES_BASE: u64 = 512 << 20;
const DIR: &[u8] = b"large";

/// The parameters of a study.
#[derive(Clone)]
pub struct Study {
    /// Names in the directory.
    pub names: u64,
    /// Names between two recorded rates.
    pub per: u64,
    /// Links to few inodes, or one inode per name.
    pub operation: Operation,
    /// The names.
    pub format: NameFormat,
    /// Hashes to compare.
    pub hashes: Vec<HashVersion>,
    /// Runs of each hash, each on a new file system.
    pub runs: usize,
    /// Names that the driver announces before it creates them; 0: none. See [`Job::ahead`].
    pub ahead: usize,
    /// Where the study creates file systems.
    pub site: Site,
    /// Size of the device, in bytes. `None`: computed from the number of names.
    pub size: Option<u64>,
    /// Options for creating file systems; `large_dir` is added.
    pub make: FormatOptions,
    /// Options for opening volumes, including memory for caches.
    pub open: OpenOptions,
    /// Check each file system at the end.
    pub check: bool,
}

/// The results of a study.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Names in each directory.
    pub names: u64,
    /// Memory for caches, in bytes; 0 for the default.
    pub cache_bytes: usize,
    /// One result for each hash.
    pub hashes: Vec<OfHash>,
}

/// The results of one hash: the run with the median rate.
#[derive(Debug, Clone, Serialize)]
pub struct OfHash {
    /// The hash.
    pub hash: String,
    /// Names created.
    pub done: u64,
    /// Wall-clock seconds to create them.
    pub seconds: f64,
    /// Names per second.
    pub per_s: f64,
    /// Names per second over all runs.
    pub runs: Summary,
    /// Number of names from which on the rate stays below 0.8 of the previous best. `None` if it never does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub knee: Option<u64>,
    /// Seconds from the last name until everything is home on the device.
    pub close_seconds: f64,
    /// Rates during the run; the last point covers the remaining names.
    pub points: Vec<Point>,
    /// Rate of the last [`Study::per`] names divided by the rate of the first. `None` if there are fewer than
    /// twice as many names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_to_first: Option<f64>,
    /// Size of the directory, in bytes.
    pub dir_bytes: u64,
    /// Extents of the directory.
    pub dir_extents: u64,
    /// Bytes of metadata in memory at the end; most are leaves.
    pub resident_bytes: u64,
    /// Share of the directory's bytes that entries use, 0 to 1.
    pub fill: f64,
    /// Levels of the index above the leaves.
    pub levels: u64,
    /// Leaves split.
    pub splits: u64,
    /// Index nodes split.
    pub index_splits: u64,
    /// Leaves read per name.
    pub leaf_reads_per_name: f64,
    /// Leaves that the last 10,000 names touched.
    pub leaves_touched: u64,
    /// Journal commits.
    pub commits: u64,
    /// Blocks logged by these commits.
    pub logged_blocks: u64,
    /// Errors found by the check; `None` without a check.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check_errors: Option<u64>,
    /// Why the run ended early.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// A rate during the run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Point {
    /// Names in the directory.
    pub names: u64,
    /// Names per second since the previous point.
    pub per_s: f64,
}

/// Runs a study.
///
/// # Errors
/// A file system cannot be created, opened, closed or checked, or the directory cannot be created.
pub fn run(study: &Study, watch: &dyn Watch) -> Result<Report, LabFault> {
    if study.operation == Operation::OpenKeep {
        return Err(LabFault::Usage("files are not kept open in this study".to_owned()));
    }
    if study.runs == 0 {
        return Err(LabFault::Usage("there is at least one run".to_owned()));
    }
    // Hashes take turns, so that other load of the machine affects all of them.
    let mut all = vec![Vec::new(); study.hashes.len()];
    for _ in 0..study.runs {
        for (hash, runs) in study.hashes.iter().zip(&mut all) {
            runs.push(one(study, *hash, watch)?);
        }
    }
    let hashes = all.into_iter().map(middle).collect();
    Ok(Report { names: study.names, cache_bytes: study.open.cache_bytes, hashes })
}

/// The run with the median rate, with the first failure and the most check errors of all runs.
fn middle(mut runs: Vec<OfHash>) -> OfHash {
    runs.sort_by(|a, b| a.per_s.total_cmp(&b.per_s));
    let rates: Vec<f64> = runs.iter().map(|run| run.per_s).collect();
    let failed = runs.iter().find_map(|run| run.failed.clone());
    let check_errors = runs.iter().filter_map(|run| run.check_errors).max();
    let run = runs.swap_remove((runs.len() - 1) / 2);
    OfHash { runs: Summary::of(&rates), failed, check_errors, ..run }
}

/// The number of names from which on the rate stays below 0.8 of the previous best.
fn knee(points: &[Point]) -> Option<u64> {
    let mut best = 0.0f64;
    let lines: Vec<f64> = points
        .iter()
        .map(|point| {
            best = best.max(point.per_s);
            0.8 * best
        })
        .collect();
    let low = points.iter().zip(lines).rev().take_while(|(point, line)| point.per_s < *line).count();
    points.len().checked_sub(low + 1).filter(|_| low > 0).map(|last| points[last].names)
}

/// The name of a hash, as mke2fs spells it.
#[must_use]
pub fn hash_name(hash: HashVersion) -> String {
    let name = match hash.code() {
        0 => "legacy",
        1 => "half_md4",
        2 => "tea",
        _ => "siphash",
    };
    name.to_owned()
}

fn one(study: &Study, hash: HashVersion, watch: &dyn Watch) -> Result<OfHash, LabFault> {
    let mut make = study.make.clone();
    make.features.extend(FeatureEdit::parse_list("large_dir").unwrap_or_default());
    if make.inodes.is_none() {
        let inodes =
            if study.operation == Operation::Link { study.names / LINKS_PER_TARGET } else { study.names };
        make.inodes = Some(inodes + 8192);
    }
    if make.journal_size == JournalSize::Auto {
        make.journal_size = JournalSize::MiB(128);
    }
    let per_inode = if study.operation == Operation::Link { 0 } else { 320 };
    let per_dir = if study.operation == Operation::Mkdir { 4096 } else { 0 };
    let size = study.size.unwrap_or(BYTES_BASE + study.names * (BYTES_PER_NAME + per_inode + per_dir));
    let ground = Ground::fresh(&study.site, size, &make)?;
    ground.set_hash(hash)?;
    let volume = ground.open(&study.open)?;
    let mut dir = Engine::root(&volume).below(DIR)?;
    let job = Job {
        operation: study.operation,
        format: study.format.clone(),
        count: Some(study.names),
        renew_target: Some(LINKS_PER_TARGET),
        ahead: study.ahead,
        ..Job::new(study.operation, "test")
    };
    watch.part(&hash_name(hash), Some(study.names));
    let curve = Curve::new(watch, study.per, study.names);
    let made = createmany::run(&job, &mut dir, &curve)?;
    let stats = volume.dir_stats(dir.dir()).unwrap_or_default();
    let (mut dir_bytes, mut dir_extents) = (0, 0);
    if let Ok(inode) = volume.inode(dir.dir()) {
        dir_bytes = inode.size();
        let walked = volume.extents(&inode, 0, u64::MAX, &mut |_| {
            dir_extents += 1;
            Some(())
        });
        walked.map_err(|fault| LabFault::Device(fault.to_string()))?;
    }
    let resident_bytes = volume.metadata_stats().bytes as u64;
    let journal = volume.journal_stats().unwrap_or_default();
    let begun = Instant::now();
    volume.close().map_err(LabFault::Close)?;
    let close_seconds = begun.elapsed().as_secs_f64();
    let check_errors = match study.check {
        true => {
            watch.part("check", None);
            let report = ground.check()?;
            let errors = |report: &extant_check::Report| report.counts.values().sum::<u64>();
            Some(if report.clean() { 0 } else { errors(&report).max(1) })
        }
        false => None,
    };
    let mut name = Vec::new();
    let entry = |number: u64, name: &mut Vec<u8>| {
        study.format.write(number as i64, name);
        (8 + name.len() as u64).next_multiple_of(4)
    };
    // All names of one study have nearly the same length: the mean of the first and the last is a good
    // estimate.
    let entry_bytes = (entry(0, &mut name) + entry(made.done.saturating_sub(1), &mut name)) as f64 / 2.0;
    let last_to_first = curve.last_to_first();
    let points = curve.points();
    Ok(OfHash {
        hash: hash_name(hash),
        done: made.done,
        seconds: made.seconds,
        per_s: made.per_s,
        runs: Summary::of(&[made.per_s]),
        knee: knee(&points),
        close_seconds,
        points,
        last_to_first,
        dir_bytes,
        dir_extents,
        resident_bytes,
        fill: if dir_bytes == 0 { 0.0 } else { made.done as f64 * entry_bytes / dir_bytes as f64 },
        levels: stats.indexed.min(1) + stats.levels_added,
        splits: stats.splits,
        index_splits: stats.index_splits,
        leaf_reads_per_name: stats.leaf_reads as f64 / made.done.max(1) as f64,
        leaves_touched: stats.leaves_in_last_window,
        commits: journal.commits,
        logged_blocks: journal.logged_blocks,
        check_errors,
        failed: made.failed,
    })
}

/// Records rates during the run.
struct Curve<'a> {
    watch: &'a dyn Watch,
    per: u64,
    names: u64,
    state: Mutex<State>,
}

struct State {
    done: u64,
    /// Time and count of the last update.
    now: (Instant, u64),
    /// Time and count of the last point, or of the start.
    last: (Instant, u64),
    /// Time and count at the start of the last `per` names.
    tail: Option<(Instant, u64)>,
    points: Vec<Point>,
}

fn rate_between(from: (Instant, u64), to: (Instant, u64)) -> f64 {
    rate(to.1 - from.1, (to.0 - from.0).as_secs_f64())
}

impl<'a> Curve<'a> {
    fn new(watch: &'a dyn Watch, per: u64, names: u64) -> Self {
        let now = (Instant::now(), 0);
        let state = State { done: 0, now, last: now, tail: None, points: Vec::new() };
        Self { watch, per: per.max(1), names, state: Mutex::new(state) }
    }

    fn last_to_first(&self) -> Option<f64> {
        let state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let first = state.points.first()?;
        let tail = state.tail.filter(|tail| tail.1 >= first.names && state.now.1 > tail.1)?;
        Some(rate_between(tail, state.now) / first.per_s)
    }

    fn points(self) -> Vec<Point> {
        let mut state = self.state.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        if state.now.1 > state.last.1 {
            state.point(self.watch);
        }
        state.points
    }
}

impl State {
    fn point(&mut self, watch: &dyn Watch) {
        let (names, per_s) = (self.now.1, rate_between(self.last, self.now));
        self.points.push(Point { names, per_s });
        self.last = self.now;
        watch.line(&format!(" - {names} names, {per_s:.0} per second"));
    }
}

impl Watch for Curve<'_> {
    fn advance(&self, objects: u64) {
        let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        state.done += objects;
        state.now = (Instant::now(), state.done);
        if state.tail.is_none() && state.done + self.per >= self.names {
            state.tail = Some(state.now);
        }
        if state.done - state.last.1 >= self.per {
            state.point(self.watch);
        }
        drop(state);
        self.watch.advance(objects);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:34}", "one directory, by its hash")?;
        self.hashes.iter().try_for_each(|of| write!(f, " {:>14}", of.hash))?;
        writeln!(f)?;
        type Cell = fn(&OfHash) -> String;
        let rows: [(&str, Cell); 24] = [
            ("names", |of| of.done.to_string()),
            ("runs", |of| of.runs.runs.to_string()),
            ("names per second: Min", |of| format!("{:.0}", of.runs.min)),
            ("  Max", |of| format!("{:.0}", of.runs.max)),
            ("  Median", |of| format!("{:.0}", of.runs.median)),
            ("  Avg", |of| format!("{:.0}", of.runs.avg)),
            ("  Stddev", |of| format!("{:.0}", of.runs.stddev)),
            ("the run in the middle: seconds", |of| format!("{:.3}", of.seconds)),
            ("names per second", |of| format!("{:.0}", of.per_s)),
            ("knee, in names", |of| of.knee.map_or("-".to_owned(), |knee| knee.to_string())),
            ("rate of the last to the first", |of| {
                of.last_to_first.map_or("-".to_owned(), |ratio| format!("{ratio:.3}"))
            }),
            ("seconds until home", |of| format!("{:.3}", of.close_seconds)),
            ("bytes of the directory", |of| of.dir_bytes.to_string()),
            ("extents of the directory", |of| of.dir_extents.to_string()),
            ("bytes of metadata in memory", |of| of.resident_bytes.to_string()),
            ("share that names take", |of| format!("{:.3}", of.fill)),
            ("levels of the index", |of| of.levels.to_string()),
            ("leaves split", |of| of.splits.to_string()),
            ("nodes of the index split", |of| of.index_splits.to_string()),
            ("leaves looked at per name", |of| format!("{:.3}", of.leaf_reads_per_name)),
            ("leaves touched by 10,000 names", |of| of.leaves_touched.to_string()),
            ("commits", |of| of.commits.to_string()),
            ("blocks logged", |of| of.logged_blocks.to_string()),
            ("check", |of| match of.check_errors {
                None => "-".to_owned(),
                Some(0) => "clean".to_owned(),
                Some(errors) => format!("{errors} errors"),
            }),
        ];
        for (what, cell) in rows {
            write!(f, "{what:34}")?;
            self.hashes.iter().try_for_each(|of| write!(f, " {:>14}", cell(of)))?;
            writeln!(f)?;
        }
        let points = self.hashes.iter().map(|of| of.points.len()).max().unwrap_or(0);
        if points > 0 {
            writeln!(f, "\nnames so far, and names per second since the line before")?;
        }
        for at in 0..points {
            let names = self.hashes.iter().find_map(|of| of.points.get(at)).map_or(0, |point| point.names);
            write!(f, "{names:>34}")?;
            for of in &self.hashes {
                let cell = of.points.get(at).map_or("-".to_owned(), |point| format!("{:.0}", point.per_s));
                write!(f, " {cell:>14}")?;
            }
            writeln!(f)?;
        }
        self.hashes
            .iter()
            .filter_map(|of| of.failed.as_ref().map(|why| (of, why)))
            .try_for_each(|(of, why)| writeln!(f, "{}: ended early: {why}", of.hash))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_knee_is_where_the_rate_falls_for_good() {
        let of = |rates: &[u32]| {
            let point = |(at, rate): (usize, &u32)| Point { names: at as u64 + 1, per_s: f64::from(*rate) };
            knee(&rates.iter().enumerate().map(point).collect::<Vec<_>>())
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[100, 95, 90, 85]), None);
        assert_eq!(of(&[100, 70, 100, 60, 50]), Some(3));
        assert_eq!(of(&[100, 100, 79]), Some(2));
    }

    #[test]
    fn both_hashes_make_a_sound_directory() {
        let study = Study {
            names: 70_000,
            per: 20_000,
            operation: Operation::Link,
            format: NameFormat::parse("test%ld").unwrap(),
            hashes: vec![HashVersion::HalfMd4, HashVersion::Tea],
            runs: 2,
            ahead: 16,
            site: Site::Memory,
            size: None,
            make: FormatOptions {
                block_size: extant_base::BlockSize::from_bytes(1024),
                ..FormatOptions::default()
            },
            open: OpenOptions::default(),
            check: true,
        };
        let report = run(&study, &crate::Quiet).unwrap();
        for of in &report.hashes {
            assert_eq!((of.done, of.check_errors, of.failed.as_deref()), (70_000, Some(0), None), "{report}");
            assert_eq!(of.points.len(), 4);
            assert_eq!(of.points[3].names, 70_000);
            assert!(of.last_to_first.is_some_and(|ratio| ratio > 0.0), "{report}");
            assert!(of.splits > 1000 && of.levels >= 2, "{report}");
            assert!(of.fill > 0.5 && of.fill < 1.0, "{report}");
            assert!(of.runs.runs == 2 && of.runs.min <= of.per_s && of.per_s <= of.runs.max, "{report}");
            assert!(
                of.dir_extents > 0 && of.dir_extents < 1000 && of.resident_bytes > of.dir_bytes / 2,
                "{report}"
            );
        }
        assert_eq!(report.hashes[1].hash, "tea");
    }
}
