//! Tables and claims as text, in columns as wide as their longest value.
//!
//! `{}` prints the posting's mean of each row, `{:#}` all of its figures. Columns without any value are left
//! out. A change is printed as ministat means it: "+12.3 +-4.5" is a difference in per cent with half of its
//! 95 % confidence interval, "same" is none at 95 %.

use std::fmt;

use super::{Better, Change, Claim, Posted, Row, Table, Verdict};
use crate::Summary;

/// Columns of the text, side by side.
#[derive(Default)]
struct Grid {
    heads: Vec<String>,
    columns: Vec<Vec<String>>,
    /// Number of columns at the left that are words, not figures.
    words: usize,
}

impl Grid {
    /// Adds a column, unless all of its values are empty.
    fn add(&mut self, head: &str, column: Vec<String>) {
        if column.iter().any(|value| !value.is_empty()) {
            self.heads.push(head.to_owned());
            self.columns.push(column);
        }
    }

    fn line<'a>(&self, f: &mut fmt::Formatter<'_>, of: impl Fn(usize) -> &'a str) -> fmt::Result {
        let mut line = String::new();
        for (at, column) in self.columns.iter().enumerate() {
            let longest = column.iter().chain([&self.heads[at]]).map(|value| value.chars().count()).max();
            let (width, value) = (longest.unwrap_or(0), of(at));
            let gap = if at == 0 { "" } else { "  " };
            line += &match at < self.words {
                true => format!("{gap}{value:width$}"),
                false => format!("{gap}{value:>width$}"),
            };
        }
        writeln!(f, "{}", line.trim_end())
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

fn percent(value: f64) -> String {
    if value.abs() < 1000.0 { format!("{value:+.1}%") } else { format!("{value:+.0}%") }
}

fn change(change: &Change) -> String {
    match (change.significant, change.plus_minus_percent) {
        (Some(false), _) => "same".to_owned(),
        (Some(true), Some(half)) => format!("{} +-{half:.1}", percent(change.percent)),
        _ => percent(change.percent),
    }
}

/// One figure of each row, as a column.
fn column<T>(rows: &[Row], of: impl Fn(&Row) -> Option<T>, show: impl Fn(T) -> String) -> Vec<String> {
    rows.iter().map(|row| of(row).map_or(String::new(), &show)).collect()
}

type Figure<T> = (&'static str, fn(&T) -> Option<f64>);

const OURS: [Figure<Summary>; 6] = [
    ("N", |runs| Some(runs.runs as f64)),
    ("Min", |runs| Some(runs.min)),
    ("Max", |runs| Some(runs.max)),
    ("Median", |runs| Some(runs.median)),
    ("Avg", |runs| Some(runs.avg)),
    ("Stddev", |runs| Some(runs.stddev)),
];

const POSTED: [Figure<Posted>; 6] = [
    ("posting N", |posted| posted.runs.map(|runs| runs as f64)),
    ("Min", |posted| posted.min),
    ("Max", |posted| posted.max),
    ("Median", |posted| posted.median),
    ("Avg", |posted| Some(posted.avg)),
    ("Stddev", |posted| posted.stddev),
];

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = if self.unit.is_empty() { String::new() } else { format!(" [{}]", self.unit) };
        let better = match self.better {
            Better::Lower => "; lower is better",
            Better::Higher => "; higher is better",
            Better::Neither => "",
        };
        writeln!(f, "{}: {}{unit}{better}", self.title, self.quantity)?;
        let mut grid = Grid::default();
        for (at, head) in self.labels.iter().enumerate() {
            grid.add(head, column(&self.rows, |row| row.labels.get(at).cloned(), |label| label));
        }
        grid.words = grid.columns.len();
        // One figure is enough where there was one run of each row.
        let once = self.rows.iter().filter_map(|row| row.ours).all(|runs| runs.runs == 1);
        match once {
            true => grid.add("ours", column(&self.rows, |row| row.ours, |runs| figure(runs.avg))),
            false => {
                for (head, of) in OURS {
                    grid.add(head, column(&self.rows, |row| of(row.ours.as_ref()?), figure));
                }
            }
        }
        grid.add("change", column(&self.rows, |row| row.change.clone(), |made| change(&made)));
        grid.add("kernel", column(&self.rows, |row| row.kernel, |runs| figure(runs.avg)));
        match f.alternate() {
            true => {
                for (head, of) in POSTED {
                    grid.add(head, column(&self.rows, |row| of(row.posting.as_ref()?), figure));
                }
            }
            false => grid.add("posting", column(&self.rows, |row| row.posting, |posted| figure(posted.avg))),
        }
        grid.add("its change", column(&self.rows, |row| row.posting_change_percent, percent));
        for (at, head) in self.extras.iter().enumerate() {
            grid.add(head, column(&self.rows, |row| row.extras.get(at).copied().flatten(), figure));
        }
        grid.line(f, |at| &grid.heads[at])?;
        for row in 0..self.rows.len() {
            grid.line(f, |at| &grid.columns[at][row])?;
        }
        if self.note.is_empty() { Ok(()) } else { writeln!(f, "{}", self.note) }
    }
}

impl Verdict {
    /// The verdict as a word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Confirmed => "confirmed",
            Self::Beaten => "beaten",
            Self::Refuted => "refuted",
            Self::Open => "open",
        }
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:9}  {}", self.verdict.name(), self.claim)?;
        write!(f, "           posting: {}; ours: {}", self.posting, self.ours)?;
        if let Some(kernel) = &self.kernel {
            write!(f, "; kernel: {kernel}")?;
        }
        writeln!(f, "\n           {}", self.why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: Vec<Row>) -> Table {
        Table {
            id: "scan-avg-a".to_owned(),
            title: "case (a)".to_owned(),
            in_posting: true,
            quantity: "scan time".to_owned(),
            unit: "us".to_owned(),
            better: Better::Lower,
            labels: vec!["policy".to_owned()],
            extras: vec!["hits".to_owned()],
            rows,
            note: "Both agree.".to_owned(),
        }
    }

    /// One table of a posting with three runs, and the same with single runs.
    #[test]
    fn columns_are_aligned_and_empty_ones_left_out() {
        let old = Row { extras: vec![Some(7.0)], ..Row::ours(&["old"], &[10.0, 11.0, 12.5]) };
        let mut new = Row::ours(&["new policy"], &[5.0, 5.5, 6.0]);
        new.change = Some(Change::between(&new.ours.unwrap(), &old.ours.unwrap(), "old"));
        new.posting = Some(Posted { avg: 357.333, ..Posted::default() });
        new.posting_change_percent = Some(-96.5);
        let text = table(vec![old.clone(), new]).to_string();
        let expected = "\
case (a): scan time [us]; lower is better
policy      N  Min    Max  Median    Avg  Stddev         change  posting  its change  hits
old         3   10  12.50      11  11.17    1.26                                         7
new policy  3    5      6    5.50   5.50  0.5000  -50.7% +-19.4    357.3      -96.5%
Both agree.
";
        assert_eq!(text, expected);
        let text = table(vec![Row::ours(&["once"], &[1234.56])]).to_string();
        assert!(text.contains("policy  ours\nonce    1235\n"), "{text}");
    }

    #[test]
    fn figures_have_four_digits() {
        let figures = [10_195.667, 143.26, 7.0, 0.125, 12.345].map(figure);
        assert_eq!(figures, ["10196", "143.3", "7", "0.1250", "12.35"]);
    }
}
