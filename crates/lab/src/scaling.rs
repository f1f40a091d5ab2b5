//! How createmany scales with workers: numbers of workers side by side.
//!
//! ```text
//! a run     each number of workers has its turn: new directories, one for each worker, and names in them for so long, or so many
//! the next  the turns in the other order, on the same file system
//! ```
//! The speed of a shared CPU changes within a second, and memory that a process freed comes back more slowly:
//! processes that run one after the other compare the machine with itself at another time. So all turns run
//! in one process, they are short, and each turn is compared with its neighbour: the result is the median of
//! these ratios. Turns that end by the clock measure the sum of all CPUs; where each worker has its share of
//! the names, the others wait for the slowest one. Nothing waits for the journal between turns: each leaves
//! to the next as much as it got.
//!
//! Workers on one file system share more than the file system: memory, caches, and sometimes a core. Rows of
//! workers `apart`, each with a file system of its own, show what the machine itself takes.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::createmany::{self, Job};
use crate::summary::{by_runs, rate};
use crate::{Failed, Summary, Watch, WorkDir};

/// What to run.
#[derive(Debug, Clone)]
pub struct Study {
    /// The load. Its `time` ends a turn, and its `count`: names of a turn, of all its workers together.
    /// `threads` does not count.
    pub job: Job,
    /// Numbers of workers; the first is what the others are compared with.
    pub widths: Vec<usize>,
    /// Runs, after one that does not count.
    pub runs: usize,
}

impl Study {
    /// Names that are made on one file system at most, if that is known. `apart`: there are others for
    /// workers apart.
    #[must_use]
    pub fn names_at_most(&self, apart: bool) -> Option<u64> {
        let turns = self.widths.len() as u64 * (1 + u64::from(apart));
        Some(self.job.count?.saturating_mul(turns).saturating_mul(self.runs as u64 + 1))
    }
}

/// What was measured.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The word of createmany's protocol.
    pub operation: String,
    /// Names of a turn, if they were so many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub names: Option<u64>,
    /// Seconds of a turn, if those end it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_s: Option<f64>,
    /// One for each number of workers.
    pub rows: Vec<Row>,
    /// Why it ended before its time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// One number of workers.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Workers.
    pub workers: usize,
    /// Each on a file system of its own.
    pub apart: bool,
    /// Names per second, of all workers together.
    pub per_s: Summary,
    /// The same, run by run.
    pub rates: Vec<f64>,
    /// This one's rate by that of the first row in the same run, the median of all runs.
    pub scaling: f64,
    /// Names per second of the workers' CPU time, without that of other threads for them (a journal's
    /// commits).
    pub per_cpu_s: Summary,
    /// CPU time of this process's other threads for each second of the workers', in all runs together:
    /// without CPUs of their own they reduce the scaling by this. (A kernel's commits are another process's.)
    pub others_per_cpu_s: f64,
}

/// Runs a study in the first of these places, and for numbers of workers that are not more than the places,
/// each on a file system of its own, also with a worker in each. A turn that fails is the last one; what was
/// measured before is in the report with the reason.
///
/// # Errors
/// The workers' directories cannot be made.
pub fn run<P: WorkDir>(study: &Study, places: &mut [P], watch: &dyn Watch) -> Result<Report, Failed> {
    let apart = |workers: usize| (2..=places.len()).contains(&workers).then_some((workers, true));
    let kinds: Vec<(usize, bool)> = study
        .widths
        .iter()
        .flat_map(|&workers| [Some((workers.max(1), false)), apart(workers)])
        .flatten()
        .collect();
    // Directories of another study may be there.
    let begun = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    let mut turns = vec![Vec::new(); kinds.len()];
    let mut failed = None;
    'runs: for run in 0..=study.runs {
        let mut reports = vec![None; kinds.len()];
        let names = study.job.count.map(|names| names * kinds.len() as u64);
        watch.part(&format!("run {run} of {}", study.runs), names);
        for turn in 0..kinds.len() {
            // Alternating order, so that it favours no side.
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
            // Most turns have no commit in them, some a whole one.
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
