//! Reports in one form for all studies: the tables of a posting with our figures beside its own, plots of
//! them, and a verdict on each claim.
//!
//! Invariants
//! 1. A figure of a posting is copied from it with its unit, and never mixed into ours: it has its own field.
//! 2. Claims and notes are a function of the same report's tables and parameters (`studies::Study::judge`).
//!    So a report that is on disk can be judged again by new rules, without measuring again.
//! 3. A report is complete in itself: command, machine and parameters are part of it, so a committed JSON
//!    file can be shown again.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Summary;
use crate::summary::t_95;

/// The report of one study.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StudyReport {
    /// Its command below `extant lab`, such as `shrinker`.
    pub study: String,
    /// The question that it answers, in one sentence.
    pub question: String,
    /// The posting that it repeats.
    pub posting: Posting,
    /// The command line that makes this report again.
    pub command: String,
    /// The machine.
    pub machine: Machine,
    /// Parameters that change figures, such as the scale: name and value.
    pub parameters: BTreeMap<String, String>,
    /// Wall-clock time of the study in seconds.
    pub seconds: f64,
    /// Tables in the order of the posting, then our own.
    pub tables: Vec<Table>,
    /// Plots.
    pub plots: Vec<Plot>,
    /// The claims of the posting, and our own beyond it (see [`Claim::beyond`]).
    pub claims: Vec<Claim>,
}

/// A public mail thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Posting {
    /// Subject line.
    pub subject: String,
    /// Date, as in "7 August 2014".
    pub date: String,
    /// The machine that it measured on, as far as it says so.
    pub machine: String,
}

/// A machine that was measured on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Number of CPUs that the process may use.
    pub cpus: usize,
    /// Model name of the CPU; empty if unknown.
    pub model: String,
    /// Memory in bytes; 0 if unknown.
    pub memory_bytes: u64,
    /// Name and release of the kernel.
    pub kernel: String,
}

/// Which direction of a figure is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// Times, costs.
    Lower,
    /// Rates.
    Higher,
    /// Counts that are neither good nor bad.
    Neither,
}

/// A table: rows of one measured quantity.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Unique within the report, such as `scan-avg-a`. Letters, digits and `-`.
    pub id: String,
    /// Title, in the words of the posting where it has this table.
    pub title: String,
    /// Whether the posting has this table. If not, its rows may still have figures from the posting's text.
    pub in_posting: bool,
    /// What the figures are, such as "scan time".
    pub quantity: String,
    /// Their unit, such as "us"; empty for ratios and counts.
    pub unit: String,
    /// Which direction is better.
    pub better: Better,
    /// Heads of the label columns.
    pub labels: Vec<String>,
    /// Heads of the extra columns with their unit in brackets, such as "leaf reads [1/create]".
    pub extras: Vec<String>,
    /// Rows.
    pub rows: Vec<Row>,
    /// A sentence: what agrees with the posting and what does not. Computed from the rows.
    pub note: String,
}

/// A row of a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// One value for each label column.
    pub labels: Vec<String>,
    /// Our runs.
    pub ours: Option<Summary>,
    /// Runs of the kernel's ext4 on this machine.
    pub kernel: Option<Summary>,
    /// The posting's figures.
    pub posting: Option<Posted>,
    /// Ours compared with our row that the posting compares with, usually the first.
    pub change: Option<Change>,
    /// The same comparison within the posting's figures, in per cent.
    pub posting_change_percent: Option<f64>,
    /// One figure for each extra column; none where it was not measured.
    pub extras: Vec<Option<f64>>,
}

/// Figures of a posting. Where it gives one number, only `avg` is set. Where it gives only the two ends of a
/// range, `min` and `max` are set, and `avg` is our middle of them (see [`is_range`](Self::is_range)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Posted {
    /// Number of runs.
    pub runs: Option<usize>,
    /// Smallest.
    pub min: Option<f64>,
    /// Largest.
    pub max: Option<f64>,
    /// Median.
    pub median: Option<f64>,
    /// Mean, or the only number, or the middle of a range.
    pub avg: f64,
    /// Standard deviation.
    pub stddev: Option<f64>,
}

/// A comparison of two rows, as ministat makes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// Labels of the row compared with, joined by spaces.
    pub against: String,
    /// Difference of the means, in per cent of the other mean.
    pub percent: f64,
    /// Half of the 95 % confidence interval, in per cent of the other mean; none for single runs.
    pub plus_minus_percent: Option<f64>,
    /// Whether the means differ at 95 % confidence; none for single runs.
    pub significant: Option<bool>,
}

/// A plot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plot {
    /// Unique within the report. Letters, digits and `-`.
    pub id: String,
    /// Title.
    pub title: String,
    /// Text of the x axis, with its unit.
    pub x: String,
    /// Text of the y axis, with its unit.
    pub y: String,
    /// Whether the x axis is logarithmic (lines only).
    pub x_log: bool,
    /// Whether the y axis is logarithmic.
    pub y_log: bool,
    /// Form.
    pub form: Form,
    /// Names on the x axis (bars only): point k of a series belongs to category k.
    pub categories: Vec<String>,
    /// Series.
    pub series: Vec<Series>,
    /// Id of the table with these figures.
    pub table: String,
}

/// Form of a plot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// Lines through points.
    Lines,
    /// Bars in groups, one group for each category.
    Bars,
}

/// One series of a plot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Whether these are the posting's own figures (drawn differently).
    pub posting: bool,
    /// Points, x and y. For bars x is the index of the category.
    pub points: Vec<(f64, f64)>,
}

/// How a claim begins that is ours and not the posting's.
pub const BEYOND: &str = "Beyond the posting: ";

/// A claim of the posting, or of our own if it begins with [`BEYOND`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// In one sentence, in our words.
    pub claim: String,
    /// The posting's figures for it.
    pub posting: String,
    /// Ours.
    pub ours: String,
    /// The kernel's on this machine; none if it was not measured.
    pub kernel: Option<String>,
    /// Verdict.
    pub verdict: Verdict,
    /// Why, in one sentence, with figures.
    pub why: String,
    /// Ids of the tables that show it.
    pub tables: Vec<String>,
}

/// The verdict on a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The same effect, within a factor that `why` names.
    Confirmed,
    /// The same effect, and a form of ours that is better than the posting's best.
    Beaten,
    /// The opposite, or no effect.
    Refuted,
    /// Undecided by this run: too small, too noisy, or not measured. `why` says which.
    Open,
}

impl Claim {
    /// A claim of our own, without [`BEYOND`]; none if the posting makes it. It has no share in the totals of
    /// the posting's claims; [`Verdict::Confirmed`] and [`Verdict::Beaten`] both mean that it holds.
    #[must_use]
    pub fn beyond(&self) -> Option<&str> {
        self.claim.strip_prefix(BEYOND)
    }
}

impl Posted {
    /// The posting gives only the two ends of a range.
    #[must_use]
    pub fn is_range(&self) -> bool {
        self.min.is_some() && self.max.is_some() && self.median.is_none() && self.stddev.is_none()
    }
}

impl Change {
    /// Compares the means of two sets of runs by Student's t test with pooled variance, at 95 %.
    #[must_use]
    pub fn between(this: &Summary, that: &Summary, against: &str) -> Self {
        let percent = |value: f64| if that.avg == 0.0 { 0.0 } else { value / that.avg.abs() * 100.0 };
        let difference = this.avg - that.avg;
        let degrees = (this.runs + that.runs).saturating_sub(2);
        let half = (this.runs > 1 && that.runs > 1).then(|| {
            let squares =
                (this.runs - 1) as f64 * this.stddev.powi(2) + (that.runs - 1) as f64 * that.stddev.powi(2);
            let pooled = (squares / degrees as f64).sqrt();
            t_95(degrees) * pooled * (1.0 / this.runs as f64 + 1.0 / that.runs as f64).sqrt()
        });
        Self {
            against: against.to_owned(),
            percent: percent(difference),
            plus_minus_percent: half.map(percent),
            significant: half.map(|half| difference.abs() > half),
        }
    }
}

impl Machine {
    /// This machine.
    #[must_use]
    pub fn this() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, key: &str| {
            let line = text.lines().find(|line| line.starts_with(key))?.to_owned();
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal");
        let kibibytes = memory.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
        let uname = rustix::system::uname();
        Self {
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            model: field(&read("/proc/cpuinfo"), "model name").unwrap_or_default(),
            memory_bytes: kibibytes.unwrap_or(0) << 10,
            kernel: format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy()),
        }
    }
}

impl StudyReport {
    /// The table with this id.
    #[must_use]
    pub fn table(&self, id: &str) -> Option<&Table> {
        self.tables.iter().find(|table| table.id == id)
    }

    /// The claims of the posting.
    pub fn claims_of_posting(&self) -> impl Iterator<Item = &Claim> {
        self.claims.iter().filter(|claim| claim.beyond().is_none())
    }

    /// Our own claims, beyond the posting: each with its sentence.
    pub fn claims_beyond(&self) -> impl Iterator<Item = (&str, &Claim)> {
        self.claims.iter().filter_map(|claim| Some((claim.beyond()?, claim)))
    }

    /// A parameter as a number.
    #[must_use]
    pub fn number(&self, parameter: &str) -> Option<f64> {
        self.parameters.get(parameter)?.split_whitespace().next()?.parse().ok()
    }

    /// Replaces the note of a table, if the report has the table.
    pub(crate) fn note(&mut self, id: &str, note: String) {
        if let Some(table) = self.tables.iter_mut().find(|table| table.id == id) {
            table.note = note;
        }
    }
}

impl Table {
    /// The row with these labels.
    #[must_use]
    pub fn row(&self, labels: &[&str]) -> Option<&Row> {
        self.rows.iter().find(|row| row.labels == labels)
    }

    /// Our runs in the row with these labels.
    #[must_use]
    pub fn ours(&self, labels: &[&str]) -> Option<Summary> {
        self.row(labels)?.ours
    }

    /// The figure of the row with these labels in the extra column `head`. The head is compared without its
    /// unit.
    #[must_use]
    pub fn extra(&self, labels: &[&str], head: &str) -> Option<f64> {
        let name = |head: &str| head.split(" [").next().unwrap_or_default().to_owned();
        let at = self.extras.iter().position(|extra| name(extra) == name(head))?;
        *self.row(labels)?.extras.get(at)?
    }
}

impl Row {
    /// A row with our runs and nothing else.
    #[must_use]
    pub fn ours(labels: &[&str], runs: &[f64]) -> Self {
        Self {
            labels: labels.iter().map(|&label| label.to_owned()).collect(),
            ours: (!runs.is_empty()).then(|| Summary::of(runs)),
            kernel: None,
            posting: None,
            change: None,
            posting_change_percent: None,
            extras: Vec::new(),
        }
    }
}

/// A figure with about four digits.
pub(crate) fn figure(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if value == value.trunc() && size < 1e15 => format!("{value:.0}"),
        _ if size >= 1000.0 => format!("{value:.0}"),
        _ if size >= 100.0 => format!("{value:.1}"),
        _ if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of ministat's manual, iguana and chameleon: no difference at 95 %.
    #[test]
    fn the_verdict_is_that_of_ministat() {
        let iguana = Summary::of(&[50.0, 200.0, 150.0, 400.0, 750.0, 400.0, 150.0]);
        let chameleon = Summary::of(&[150.0, 400.0, 720.0, 500.0, 930.0]);
        let change = Change::between(&chameleon, &iguana, "iguana");
        assert_eq!(change.significant, Some(false));
        assert!((change.percent - 80.0).abs() < 0.1, "{change:?}");
        let far = Summary::of(&[5000.0, 5100.0, 5050.0]);
        assert_eq!(Change::between(&far, &iguana, "iguana").significant, Some(true));
        let once = Summary::of(&[1.0]);
        assert_eq!(Change::between(&once, &once, "itself").significant, None);
    }

    #[test]
    fn figures_have_four_digits() {
        let figures = [10_195.667, 143.26, 7.0, 0.125, 12.345].map(figure);
        assert_eq!(figures, ["10196", "143.3", "7", "0.1250", "12.35"]);
    }
}
