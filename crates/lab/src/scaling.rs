//! How createmany scales with workers: numbers of workers side by side.
//!
//! ```text
//! a run     each number of workers has its turn: new directories, one for each worker, and `names` names in all of them together
//! the next  the turns in the other order, on the same file system
//! ```
//! The speed of a processor that is shared with others changes within a second, and memory that a process gave back comes more slowly
//! the next time: processes that run one after the other compare what the machine does with what it did. So all turns are those of one
//! process, they are short, and what is compared is each turn with its neighbour: the ratio of a run, and of those the median.
//! Nothing waits for the journal between turns: each leaves to the next as much as it got.

use std::fmt;

use serde::Serialize;

use crate::createmany::{self, Job};
use crate::{Failed, Place, Summary, Watch};

/// What to run.
#[derive(Debug, Clone)]
pub struct Study {
    /// The load. Its `count` and `threads` do not count.
    pub job: Job,
    /// Names of a turn, of all its workers together.
    pub names: u64,
    /// Numbers of workers; the first is what the others are compared with.
    pub widths: Vec<usize>,
    /// Runs, after one that does not count.
    pub runs: usize,
}

impl Study {
    /// Names that are made in all.
    #[must_use]
    pub fn names_in_all(&self) -> u64 {
        self.names.saturating_mul(self.widths.len() as u64).saturating_mul(self.runs as u64 + 1)
    }
}

/// What was measured.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The word of createmany's protocol.
    pub operation: String,
    /// Names of a turn.
    pub names: u64,
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
    /// Names per second, of all workers together.
    pub per_s: Summary,
    /// The same, run by run.
    pub rates: Vec<f64>,
    /// This one's rate by that of the first row in the same run, the median of all runs.
    pub scaling: f64,
    /// Names per second of the workers' processor time; what others do for them (a journal's commits) is not in it.
    pub per_cpu_s: Summary,
}

/// Runs a study. A turn that fails is the last one; what was measured before is in the report with the reason.
///
/// # Errors
/// The workers' directories cannot be made.
pub fn run<P: Place>(study: &Study, place: &mut P, watch: &dyn Watch) -> Result<Report, Failed> {
    let widths = &study.widths;
    let mut turns = vec![(Vec::new(), Vec::new()); widths.len()];
    let mut failed = None;
    'runs: for run in 0..=study.runs {
        let mut rates = vec![(0.0, 0.0); widths.len()];
        watch.part(&format!("run {run} of {}", study.runs), Some(study.names * widths.len() as u64));
        for turn in 0..widths.len() {
            // To and fro: what comes after what does not favour anybody.
            let at = if run % 2 == 0 { turn } else { widths.len() - 1 - turn };
            let workers = widths[at].max(1);
            let places = (0..workers)
                .map(|number| place.below(format!("run-{run}-turn-{turn}-worker-{number}").as_bytes()));
            let job =
                Job { count: Some(study.names / workers as u64), threads: workers, ..study.job.clone() };
            let report = createmany::in_places(&job, places.collect::<Result<_, _>>()?, watch);
            if report.failed.is_some() {
                failed = report.failed;
                break 'runs;
            }
            rates[at] = (report.per_s, crate::summary::rate(report.done, report.cpu_s));
        }
        if run > 0 {
            for (turns, (rate, per_cpu)) in turns.iter_mut().zip(rates) {
                turns.0.push(rate);
                turns.1.push(per_cpu);
            }
        }
    }
    let first = turns.first().map_or(Vec::new(), |(rates, _)| rates.clone());
    let rows = widths.iter().zip(&turns).map(|(&workers, (rates, per_cpu))| {
        let ratios: Vec<f64> = rates.iter().zip(&first).map(|(this, first)| this / first).collect();
        Row {
            workers,
            per_s: Summary::of(rates),
            rates: rates.clone(),
            scaling: Summary::of(&ratios).median,
            per_cpu_s: Summary::of(per_cpu),
        }
    });
    Ok(Report { operation: study.job.word(), names: study.names, rows: rows.collect(), failed })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} of {} names in each turn; names per second", self.operation, self.names)?;
        writeln!(
            f,
            "\n{:>7} {:>5} {:>10} {:>10} {:>10} {:>10} {:>10} {:>8} {:>12}",
            "workers", "runs", "Min", "Max", "Median", "Avg", "Stddev", "scaling", "per cpu s"
        )?;
        for row in &self.rows {
            let Summary { runs, min, max, median, avg, stddev } = row.per_s;
            writeln!(
                f,
                "{:>7} {runs:>5} {min:>10.0} {max:>10.0} {median:>10.0} {avg:>10.0} {stddev:>10.0} {:>8.3} {:>12.0}",
                row.workers, row.scaling, row.per_cpu_s.median
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
        let ground = Ground::memory(256 << 20, &image::options::FormatOptions::default()).unwrap();
        let volume = ground.open(&volume::OpenOptions::default()).unwrap();
        let job = Job::new(Operation::Mknod, "f");
        let study = Study { job, names: 600, widths: vec![1, 2, 3], runs: 3 };
        let report = run(&study, &mut Engine::root(&volume), &Quiet).unwrap();
        assert_eq!(report.failed, None);
        assert_eq!(study.names_in_all(), 7200);
        let rows: Vec<_> = report.rows.iter().map(|row| (row.workers, row.per_s.runs)).collect();
        assert_eq!(rows, [(1, 3), (2, 3), (3, 3)]);
        assert_eq!(report.rows[0].scaling, 1.0);
        let text = report.to_string();
        assert!(text.contains("scaling") && text.lines().count() == 6, "{text}");
        volume.close().unwrap();
        assert!(ground.check().unwrap().clean());
    }
}
