//! Shrinking an extent cache: seven eviction policies under three loads.
//!
//! ```text
//! giant-trees   100 jobs with 5 files each append block by block;         how long does one inode take?
//!               far more is dirty than clean
//! many-inodes   the same, and 20 jobs that cycle over 400,000 files,      how long is the list?
//!               every other block
//! reader        a reader that returns to some places more than to         what stays cached?
//!               others, beside 100 streams
//! ```
//!
//! The loads are those of the study of 2014, without its disk. Files are functions from block to extent. A
//! write makes a block delayed (`Inode::delay`). When the dirty blocks exceed a limit, the file that has been
//! dirty longest is written back, in turns of at most 1024 blocks: delayed blocks become extents. Nothing is
//! merged, as in that study. The cache has a limit of reclaimable entries; a writer that exceeds it scans for
//! 128 entries or the excess.
//!
//! A policy whose scans examine very many entries in total ([`Study::work_max`]) ends its run early:
//! otherwise a study of the full size would take hours for its worst policies. A scan examines the same
//! entries in every run, so all runs of a policy end at the same call.
//!
//! Scans are timed by the CPU clock. It is read once before each scan, because the first read after a pause
//! takes longer than a scan. The time still includes interruptions of a scan: a timer tick or a hypervisor
//! takes tens of microseconds, once in a few thousand scans, or on a busy host once in a hundred. So the mean
//! and the longest scan are also reported without interruptions: see [`Row::scan_own_avg_us`].
//!
//! Does **not** own: the policies (see `extant_extent_status::Policy`).
//!
//! Source: the linux-ext4 series "ext4: extents status tree shrinker improvement" v3, 2014.

mod posted;
mod report;
mod sim;
pub(crate) mod tables;

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError, RwLock};
use std::thread::available_parallelism;

pub use extant_extent_status::Policy;
use serde::Serialize;

use crate::summary::Summary;
use crate::{LabFault, Watch};

/// A load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Case {
    /// (a): few inodes, very large trees.
    GiantTrees,
    /// (b): a very long list of inodes.
    ManyInodes,
    /// (c): a reader beside streams.
    Reader,
}

impl Case {
    /// All loads.
    pub const ALL: [Self; 3] = [Self::GiantTrees, Self::ManyInodes, Self::Reader];

    /// The name, as the command line spells it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::GiantTrees => "giant-trees",
            Self::ManyInodes => "many-inodes",
            Self::Reader => "reader",
        }
    }

    /// The letter of the study of 2014, as labels of tables have it.
    #[must_use]
    pub fn letter(self) -> &'static str {
        match self {
            Self::GiantTrees => "(a)",
            Self::ManyInodes => "(b)",
            Self::Reader => "(c)",
        }
    }

    /// The load with this name, or with this letter of the study of 2014.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        let letter = ["a", "b", "c"].iter().position(|letter| *letter == name);
        letter.map(|at| Self::ALL[at]).or_else(|| Self::ALL.into_iter().find(|case| case.name() == name))
    }
}

/// Which clock times the scans.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Clock {
    /// CPU time of the scanning thread: it excludes other load of the machine and waits for a lock.
    #[default]
    Cpu,
    /// Wall-clock time.
    Wall,
}

/// The parameters of a study.
#[derive(Debug, Clone)]
pub struct Study {
    /// The loads.
    pub cases: Vec<Case>,
    /// The policies, in the order of the table.
    pub policies: Vec<Policy>,
    /// Runs of each policy. Within a run the policies take turns.
    pub runs: usize,
    /// Workers that share the cache; the load is divided among them.
    pub threads: usize,
    /// Size of the load: 1 is the size of the original study (3 GB of memory for a run). It scales the trees
    /// of `giant-trees`, the inodes of `many-inodes`, and the reader's files.
    pub scale: f64,
    /// How scans are timed. User calls are timed in wall-clock time.
    pub clock: Clock,
    /// A run ends early once its scans have examined this many entries and inodes, and number at least
    /// [`SCANS_MIN`]. `None`: the run makes all calls.
    pub work_max: Option<u64>,
}

/// Minimum number of measured scans, if the load causes that many.
pub const SCANS_MIN: u64 = 100;
/// The default of [`Study::work_max`]: a few seconds.
pub const WORK_MAX: u64 = 100_000_000;

/// The results of a study.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Workers.
    pub threads: usize,
    /// As in [`Study::scale`].
    pub scale: f64,
    /// How scans were timed.
    pub clock: Clock,
    /// One row for each case and policy.
    pub rows: Vec<Row>,
    /// The expectations and their outcomes, only of policies that ran.
    pub bars: Vec<Bar>,
}

/// The result of one policy under one load. Summaries are over all runs, other values are of the last run.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The load.
    pub case: Case,
    /// The policy's name.
    pub policy: &'static str,
    /// User calls.
    pub calls: u64,
    /// Whether the run ended early, because its scans reached [`Study::work_max`].
    pub cut: bool,
    /// Scans.
    pub scans: u64,
    /// Mean time of a scan, in microseconds.
    pub scan_avg_us: Summary,
    /// The longest scan of each run, in microseconds.
    pub scan_max_us: Summary,
    /// Mean time of a scan without interruptions, in microseconds. With one worker all runs make the same
    /// scans with the same work, so each scan counts with its shortest time over the runs. With more workers,
    /// or one run, this equals `scan_avg_us`.
    pub scan_own_avg_us: f64,
    /// The longest of those shortest times. With more workers, or one run, equals `scan_max_us`.
    pub scan_longest_us: f64,
    /// Entries and inodes that this longest scan examined, and entries that it reclaimed. `None` with more
    /// workers, or one run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scan_longest_work: Option<(u32, u32)>,
    /// Quantiles of the scan time in microseconds: 50 %.
    pub scan_p50_us: f64,
    /// 99 %.
    pub scan_p99_us: f64,
    /// 99.9 %.
    pub scan_p999_us: f64,
    /// The maximum of entries and inodes that one scan examined. Other work on the machine does not influence
    /// it.
    pub scan_work_max: u64,
    /// Entries and inodes that all scans examined.
    pub visited: u64,
    /// Entries reclaimed.
    pub reclaimed: u64,
    /// Nanoseconds of scan time per reclaimed entry.
    pub ns_per_reclaimed: f64,
    /// Lookups that found an entry.
    pub hits: u64,
    /// The same, of each run.
    pub hits_runs: Summary,
    /// Lookups that found none.
    pub misses: u64,
    /// Hits divided by lookups.
    pub hit_ratio: f64,
    /// The reader's hit ratio, in cases with a reader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reader_hit_ratio: Option<f64>,
    /// Mean time of a user call in microseconds, including its share of writeback and scans.
    pub user_avg_us: Summary,
    /// The longest user call, in microseconds.
    pub user_max_us: Summary,
    /// The 99.9 % quantile of user calls, in microseconds.
    pub user_p999_us: f64,
    /// Mean time of the reader's calls in microseconds, in cases with a reader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_avg_us: Option<Summary>,
    /// The longest call of the reader, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_max_us: Option<Summary>,
    /// Mean time of the writers' calls, in microseconds.
    pub write_avg_us: Summary,
    /// The longest call of a writer, in microseconds.
    pub write_max_us: Summary,
    /// Shares of the scans of all runs, and the time in microseconds that they did not exceed.
    pub scan_distribution_us: Vec<(f64, f64)>,
    /// Entries at the end of the run.
    pub entries: u64,
    /// Bytes per entry, including trees and inodes.
    pub bytes_per_entry: f64,
}

/// An expectation, and whether the figures meet it.
#[derive(Debug, Clone, Serialize)]
pub struct Bar {
    /// The load.
    pub case: Case,
    /// The expectation.
    pub what: String,
    /// The measured result.
    pub figure: String,
    /// Whether the expectation is met.
    pub holds: bool,
    /// The smallest scale at which it is expected.
    pub scale_min: f64,
}

/// Runs a study.
///
/// # Errors
/// The parameters are invalid.
pub fn run(study: &Study, watch: &dyn Watch) -> Result<Report, LabFault> {
    if study.policies.is_empty() || study.runs == 0 || study.threads == 0 || study.threads > 64 {
        return Err(LabFault::Usage(
            "policies, runs and threads are at least 1, threads at most 64".to_owned(),
        ));
    }
    if !(0.001..=10.0).contains(&study.scale) {
        return Err(LabFault::Usage("a scale is from 0.001 to 10".to_owned()));
    }
    let mut rows = Vec::new();
    for &case in &study.cases {
        watch.part(case.name(), Some((study.runs * study.policies.len()) as u64));
        // Policies take turns, so that changes of the machine affect all of them. Two runs prepare at once if
        // each has a CPU.
        let turns = study.runs * study.policies.len();
        let at_once =
            if study.threads == 1 { available_parallelism().map_or(1, NonZero::get).min(2) } else { 1 };
        let (next, quiet) = (AtomicUsize::new(0), RwLock::new(()));
        let done = Mutex::new(vec![Vec::new(); study.policies.len()]);
        std::thread::scope(|scope| {
            for _ in 0..at_once {
                scope.spawn(|| {
                    loop {
                        let turn = next.fetch_add(1, Relaxed);
                        let Some(&policy) = study.policies.get(turn % study.policies.len()) else { break };
                        if turn >= turns {
                            break;
                        }
                        let outcome = sim::run(case, policy, study, &quiet);
                        let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                        done[turn % study.policies.len()].push(outcome);
                        watch.advance(1);
                    }
                });
            }
        });
        let outcomes = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        rows.extend(
            study.policies.iter().zip(&outcomes).map(|(policy, runs)| report::row(case, *policy, runs)),
        );
    }
    let bars = report::bars(&rows);
    Ok(Report { threads: study.threads, scale: study.scale, clock: study.clock, rows, bars })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_keeps_its_limit_under_every_load() {
        let study = Study {
            cases: Case::ALL.to_vec(),
            policies: Policy::ALL.to_vec(),
            runs: 1,
            threads: 2,
            scale: 0.003,
            clock: Clock::Cpu,
            work_max: Some(WORK_MAX),
        };
        let report = run(&study, &crate::Quiet).unwrap();
        assert_eq!(report.rows.len(), 21);
        for row in &report.rows {
            // Without holes of delayed writes, such a small load may stay below the limit.
            let works = row.policy == "baseline" || (row.scans > 0 && row.reclaimed > 0);
            assert!(works, "{} {}", row.case.name(), row.policy);
            assert!((0.0..=1.0).contains(&row.hit_ratio));
        }
        let tables = report.tables();
        assert!(tables.iter().all(|table| table.rows.iter().any(|row| row.labels == ["es-chunk"])));
        assert!(run(&Study { runs: 0, ..study }, &crate::Quiet).is_err());
        assert_eq!(Case::by_name("b"), Some(Case::ManyInodes));
    }

    /// A run ends when its scans have examined enough, but not before a minimum number of scans. All runs of
    /// a policy end at the same call.
    #[test]
    fn a_shrinker_that_visits_too_much_ends_before_the_others() {
        let study = Study {
            cases: vec![Case::ManyInodes],
            policies: vec![Policy::EsChunk],
            runs: 2,
            threads: 1,
            scale: 0.01,
            clock: Clock::Cpu,
            work_max: Some(1),
        };
        let row = |study: &Study| run(study, &crate::Quiet).unwrap().rows[0].clone();
        let cut = row(&study);
        assert!(cut.cut && cut.calls < 4000 && cut.scans >= SCANS_MIN, "{cut:?}");
        // Both runs made the same scans; otherwise this value would be `None`.
        assert!(cut.scan_longest_work.is_some());
        let whole = row(&Study { work_max: None, ..study });
        assert!(!whole.cut && whole.calls == 4000 && whole.scans > cut.scans, "{whole:?}");
    }
}
