//! How createmany scales with the number of workers.
//!
//! ```text
//! a run     each number of workers takes a turn: new directories, one per worker, and names in them, for
//!           a time or up to a number of names
//! the next  the turns in reverse order, on the same file system
//! ```
//!
//! The speed of a shared CPU changes within a second, and memory that a process freed is slower to get again.
//! So processes that run one after the other compare the machine with itself at another time. Therefore all
//! turns run in one process, they are short, and each turn is compared with its neighbour: the result is the
//! median of these ratios. Turns that end by the clock measure the sum of all CPUs. If each worker has a
//! fixed share of the names, the other workers wait for the slowest one. No turn waits for the journal: each
//! leaves as much pending work to the next one as it got from the previous one.
//!
//! Workers on one file system share more than the file system: memory, caches, and sometimes a core. The rows
//! `apart`, where each worker has its own file system, show the cost of the machine itself.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::createmany::{self, Job};
use crate::summary::{by_runs, rate};
use crate::{Failed, Summary, Watch, WorkDir};

/// The parameters of a study.
#[derive(Debug, Clone)]
pub struct Study {
    /// The load. A turn ends after its `time`, or after its `count`, the total number of names of all
    /// workers. `threads` is ignored.
    pub job: Job,
    /// Numbers of workers; the others are compared with the first.
    pub widths: Vec<usize>,
    /// Measured runs; one unmeasured run comes before them.
    pub runs: usize,
}

impl Study {
    /// Upper bound on the names created on one file system, if known. `apart`: more file systems exist, for
    /// workers apart.
    #[must_use]
    pub fn names_at_most(&self, apart: bool) -> Option<u64> {
        let turns = self.widths.len() as u64 * (1 + u64::from(apart));
        Some(self.job.count?.saturating_mul(turns).saturating_mul(self.runs as u64 + 1))
    }
}

/// The results of a study.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The operation, as in createmany's protocol.
    pub operation: String,
    /// Names per turn, if a count ends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub names: Option<u64>,
    /// Seconds per turn, if the time ends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_s: Option<f64>,
    /// One row for each number of workers.
    pub rows: Vec<Row>,
    /// Why the study ended early.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// The results of one number of workers.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Workers.
    pub workers: usize,
    /// Whether each worker had its own file system.
    pub apart: bool,
    /// Names per second, total of all workers.
    pub per_s: Summary,
    /// Names per second in each run.
    pub rates: Vec<f64>,
    /// The rate divided by that of the first row in the same run, median of all runs.
    pub scaling: f64,
    /// Names per second of the workers' CPU time, without CPU time that other threads spend for them (a
    /// journal's commits).
    pub per_cpu_s: Summary,
    /// CPU time of this process's other threads per second of the workers' CPU time, over all runs. Without
    /// CPUs of their own, these threads reduce the scaling by this. (The kernel's commits run outside this
    /// process.)
    pub others_per_cpu_s: f64,
}

/// Runs a study in the first of these places. For each number of workers up to the number of places, it also
/// runs with one worker per place, each on its own file system. A failed turn is the last one; the report
/// contains the earlier results and the reason.
///
/// # Errors
/// The workers' directories cannot be created.
pub fn run<P: WorkDir>(study: &Study, places: &mut [P], watch: &dyn Watch) -> Result<Report, Failed> {
    let apart = |workers: usize| (2..=places.len()).contains(&workers).then_some((workers, true));
    let kinds: Vec<(usize, bool)> = study
        .widths
        .iter()
        .flat_map(|&workers| [Some((workers.max(1), false)), apart(workers)])
        .flatten()
        .collect();
    // Directories of another study may exist: the name contains the time.
    let begun = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    let mut turns = vec![Vec::new(); kinds.len()];
    let mut failed = None;
    'runs: for run in 0..=study.runs {
        let mut reports = vec![None; kinds.len()];
        let names = study.job.count.map(|names| names * kinds.len() as u64);
        watch.part(&format!("run {run} of {}", study.runs), names);
        for turn in 0..kinds.len() {
            // The order alternates between runs, so that it favours no row.
            let at = if run % 2 == 0 { turn } else { kinds.len() - 1 - turn };
            let (workers, apart) = kinds[at];
            let theirs = (0..workers).map(|number| {
                let place = &mut places[if apart { number } else { 0 }];
                place.below(format!("{begun:x}-run-{run}-turn-{turn}-worker-{number}").as_bytes())
            });
            let job = Job {
                count: study.job.count.map(|names| names / workers as u64),
                threads: workers,
                ..study.job.clone()
            };
            let report = createmany::in_places(&job, theirs.collect::<Result<_, _>>()?, watch);
            if report.failed.is_some() {
                failed = report.failed;
                break 'runs;
            }
            reports[at] = Some(report);
        }
        if run > 0 {
            turns.iter_mut().zip(reports).for_each(|(turns, report)| turns.extend(report));
        }
    }
    let rates = |turns: &[createmany::Report]| turns.iter().map(|turn| turn.per_s).collect::<Vec<_>>();
    let first = turns.first().map_or(Vec::new(), |turns| rates(turns));
    let rows = kinds.into_iter().zip(turns).map(|((workers, apart), turns)| {
        let sum = |of: fn(&createmany::Report) -> f64| turns.iter().map(of).sum::<f64>();
        let per_cpu: Vec<_> = turns.iter().map(|turn| rate(turn.done, turn.cpu_s)).collect();
        let rates = rates(&turns);
        Row {
            workers,
            apart,
            per_s: Summary::of(&rates),
            scaling: by_runs(&rates, &first),
            rates,
            per_cpu_s: Summary::of(&per_cpu),
            // Most turns contain no commit, some contain a whole one.
            others_per_cpu_s: sum(|turn| turn.others_cpu_s) / sum(|turn| turn.cpu_s).max(f64::MIN_POSITIVE),
        }
    });
    let (names, turn_s) = (study.job.count, study.job.time.map(|time| time.as_secs_f64()));
    Ok(Report { operation: study.job.word(), names, turn_s, rows: rows.collect(), failed })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.names.map(|names| format!("{names} names"));
        let ends: Vec<_> = names.into_iter().chain(self.turn_s.map(|s| format!("{s} seconds"))).collect();
        writeln!(f, "{}, {} in each turn; names per second", self.operation, ends.join(" or "))?;
        writeln!(
            f,
            "\n{:>8} {:>5} {:>10} {:>10} {:>10} {:>10} {:>10} {:>8} {:>12} {:>7}",
            "workers", "runs", "Min", "Max", "Median", "Avg", "Stddev", "scaling", "per cpu s", "others"
        )?;
        for row in &self.rows {
            let Summary { runs, min, max, median, avg, stddev } = row.per_s;
            writeln!(
                f,
                "{:>8} {runs:>5} {min:>10.0} {max:>10.0} {median:>10.0} {avg:>10.0} {stddev:>10.0} {:>8.3} {:>12.0} {:>7.3}",
                if row.apart { format!("{} apart", row.workers) } else { row.workers.to_string() },
                row.scaling,
                row.per_cpu_s.median,
                row.others_per_cpu_s
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::createmany::Operation;
    use crate::ground::Ground;
    use crate::{Engine, Quiet};

    #[test]
    fn every_number_of_workers_has_a_turn_in_every_run() {
        let ground = || Ground::memory(256 << 20, &extant_image::options::FormatOptions::default()).unwrap();
        let (ground, other) = (ground(), ground());
        let volume = ground.open(&extant_volume::OpenOptions::default()).unwrap();
        let other = other.open(&extant_volume::OpenOptions::default()).unwrap();
        let job = Job { count: Some(600), ..Job::new(Operation::Mknod, "f") };
        let study = Study { job, widths: vec![1, 2, 3], runs: 3 };
        let report = run(&study, &mut [Engine::root(&volume)], &Quiet).unwrap();
        assert_eq!(report.failed, None);
        assert_eq!(study.names_at_most(false), Some(7200));
        let rows: Vec<_> = report.rows.iter().map(|row| (row.workers, row.per_s.runs)).collect();
        assert_eq!(rows, [(1, 3), (2, 3), (3, 3)]);
        assert_eq!(report.rows[0].scaling, 1.0);
        let text = report.to_string();
        assert!(text.contains("scaling") && text.lines().count() == 6, "{text}");
        let time = Some(std::time::Duration::from_millis(5));
        let by_time = Job { count: None, time, ..study.job };
        let study = Study { job: by_time, widths: vec![2, 1], runs: 1 };
        let mut places = [&volume, &other].map(|volume| Engine::root(volume).below(b"by time").unwrap());
        let report = run(&study, &mut places, &Quiet).unwrap();
        assert_eq!((report.failed, report.turn_s), (None, Some(0.005)));
        let rows: Vec<_> = report.rows.iter().map(|row| (row.workers, row.apart)).collect();
        assert_eq!(rows, [(2, false), (2, true), (1, false)]);
        volume.close().unwrap();
        assert!(ground.check().unwrap().clean());
    }
}
