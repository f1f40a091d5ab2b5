//! What a study of a large directory found, and its text.

use std::fmt;

use serde::Serialize;

use crate::Summary;
use crate::drive::Drive;

/// The results of a study.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Names in each directory.
    pub names: u64,
    /// Memory for caches, in bytes; 0 for the default. In windows, if they have memory of their own.
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
    /// Rates during the growth; the last point covers the remaining names.
    pub points: Vec<Point>,
    /// Rates of removals, for [`super::Course::Shrink`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub removals: Vec<Point>,
    /// Rate of the last [`super::Study::per`] names divided by the rate of the first. Of removals, if there
    /// are any. `None` if there are fewer than twice as many names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_to_first: Option<f64>,
    /// Rates on drives with latency.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<Window>,
    /// The last windows with the memory of [`super::Study::reopen`], if they follow others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reopened: Vec<Window>,
    /// For each drive: the mean rate of the last tenth of its windows, divided by that of the first tenth.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub windows_last_to_first: Vec<OnDrive>,
    /// The windows of [`super::Study::ends_reading_first`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reading_first: Vec<Window>,
    /// The directory and the engine's counters; not for the kernel.
    #[serde(flatten)]
    pub engine: Option<Internals>,
    /// Errors found by the check; `None` without a check.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check_errors: Option<u64>,
    /// Why the run ended early.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// The directory at the end, and counters of the engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Internals {
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
    /// Leaves that the engine looked at per name, in memory or not.
    pub leaf_looks_per_name: f64,
    /// Blocks of metadata read from the device per name; nearly all are leaves.
    pub leaf_reads_per_name: f64,
    /// Leaves that the last 10,000 names touched.
    pub leaves_touched: u64,
    /// Journal commits.
    pub commits: u64,
    /// Blocks logged by these commits.
    pub logged_blocks: u64,
}

/// A ratio on a drive.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct OnDrive {
    /// The drive.
    pub drive: Drive,
    /// The ratio.
    pub ratio: f64,
}

/// Names that were created or removed on a drive with latency.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Window {
    /// The drive.
    pub drive: Drive,
    /// Names in the directory at the end of the window.
    pub names: u64,
    /// Names created and removed in the window.
    pub done: u64,
    /// Names per second, until all of them are durable.
    pub per_s: f64,
    /// Blocks of metadata read from the device per name.
    pub leaf_reads_per_name: f64,
    /// Those of them that commits read, many at a time; no name waits for one of them alone.
    pub commit_reads_per_name: f64,
}

/// A rate during the run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Point {
    /// Names in the directory.
    pub names: u64,
    /// Names per second since the previous point.
    pub per_s: f64,
}

impl Report {
    /// A line per point.
    fn points(&self, f: &mut fmt::Formatter<'_>, of: fn(&OfHash) -> &[Point]) -> fmt::Result {
        let count = self.hashes.iter().map(|hash| of(hash).len()).max().unwrap_or(0);
        for at in 0..count {
            let names = self.hashes.iter().find_map(|hash| of(hash).get(at)).map_or(0, |point| point.names);
            write!(f, "{names:>34}")?;
            for hash in &self.hashes {
                let cell = of(hash).get(at).map_or("-".to_owned(), |point| format!("{:.0}", point.per_s));
                write!(f, " {cell:>14}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:34}", "one directory, by its hash")?;
        self.hashes.iter().try_for_each(|of| write!(f, " {:>14}", of.hash))?;
        writeln!(f)?;
        type Cell = fn(&OfHash) -> String;
        type Counter = fn(&Internals) -> String;
        let rows: [(&str, Cell); 12] = [
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
            ("check", |of| match of.check_errors {
                None => "-".to_owned(),
                Some(0) => "clean".to_owned(),
                Some(errors) => format!("{errors} errors"),
            }),
        ];
        let counters: [(&str, Counter); 12] = [
            ("bytes of the directory", |of| of.dir_bytes.to_string()),
            ("extents of the directory", |of| of.dir_extents.to_string()),
            ("bytes of metadata in memory", |of| of.resident_bytes.to_string()),
            ("share that names take", |of| format!("{:.3}", of.fill)),
            ("levels of the index", |of| of.levels.to_string()),
            ("leaves split", |of| of.splits.to_string()),
            ("nodes of the index split", |of| of.index_splits.to_string()),
            ("leaves looked at per name", |of| format!("{:.3}", of.leaf_looks_per_name)),
            ("blocks read per name", |of| format!("{:.3}", of.leaf_reads_per_name)),
            ("leaves touched by 10,000 names", |of| of.leaves_touched.to_string()),
            ("commits", |of| of.commits.to_string()),
            ("blocks logged", |of| of.logged_blocks.to_string()),
        ];
        for (what, cell) in rows {
            write!(f, "{what:34}")?;
            self.hashes.iter().try_for_each(|of| write!(f, " {:>14}", cell(of)))?;
            writeln!(f)?;
        }
        write!(f, "{:34}", "seconds until home")?;
        self.hashes.iter().try_for_each(|of| write!(f, " {:>14.3}", of.close_seconds))?;
        writeln!(f)?;
        for (what, cell) in counters {
            write!(f, "{what:34}")?;
            for of in &self.hashes {
                write!(f, " {:>14}", of.engine.as_ref().map_or("-".to_owned(), cell))?;
            }
            writeln!(f)?;
        }
        let points = self.hashes.iter().map(|of| of.points.len()).max().unwrap_or(0);
        if points > 0 {
            writeln!(f, "\nnames so far, and names per second since the line before")?;
        }
        self.points(f, |of| &of.points)?;
        if self.hashes.iter().any(|of| !of.removals.is_empty()) {
            writeln!(f, "\nnames left, and removals per second since the line before")?;
            self.points(f, |of| &of.removals)?;
        }
        for of in self.hashes.iter().filter(|of| !of.windows.is_empty()) {
            writeln!(f, "\n{}: names on drives with latency", of.hash)?;
            writeln!(
                f,
                "{:>14} {:>8} {:>14} {:>20} {:>11}",
                "names so far", "drive", "per second", "blocks read per name", "by commits"
            )?;
            for window in &of.windows {
                writeln!(
                    f,
                    "{:>14} {:>8} {:>14.0} {:>20.3} {:>11.3}",
                    window.names,
                    window.drive.name(),
                    window.per_s,
                    window.leaf_reads_per_name,
                    window.commit_reads_per_name
                )?;
            }
            for last in &of.windows_last_to_first {
                writeln!(
                    f,
                    "{}: the last tenth at {:.3} of the first tenth's rate",
                    last.drive.name(),
                    last.ratio
                )?;
            }
        }
        self.hashes
            .iter()
            .filter_map(|of| of.failed.as_ref().map(|why| (of, why)))
            .try_for_each(|(of, why)| writeln!(f, "{}: ended early: {why}", of.hash))
    }
}
