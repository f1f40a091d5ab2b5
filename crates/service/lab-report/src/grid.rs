//! A table as cells of text, for all formats.
//!
//! ```text
//!                 | ours                          | change            | kernel      | posting      |
//! labels          | N  Min  Max  Median Avg Stddev| change   verdict  | N  ..       | N  .. change | extras
//! ```
//!
//! A column without any value is left out.

use extant_lab::Summary;
use extant_lab::report::{Change, Posted, Row, Table};

use crate::numbers::{number, percent, separated};

/// A column of a table.
pub(crate) struct Column {
    /// Several neighbours have one common head; may be empty.
    pub(crate) group: String,
    /// Its head.
    pub(crate) head: String,
    /// Numbers are aligned to the right.
    pub(crate) numeric: bool,
}

/// A table of text.
pub(crate) struct Grid {
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Vec<String>>,
}

const HEADS: [&str; 6] = ["N", "Min", "Max", "Median", "Avg", "Stddev"];

/// The cells of a table. `machine`: a short name of the posting's machine, for the head of its columns.
pub(crate) fn grid(table: &Table) -> Grid {
    let mut grid = Grid { columns: Vec::new(), rows: vec![Vec::new(); table.rows.len()] };
    for (index, label) in table.labels.iter().enumerate() {
        let cells =
            table.rows.iter().map(|row| row.labels.get(index).map(String::as_str).unwrap_or_default());
        grid.push("", label, false, cells.map(label_text).collect());
    }
    let ours = table.rows.iter().map(|row| row.ours.as_ref().map(of_summary));
    grid.push_statistics("ours", ours.collect());
    let change = |of: fn(&Change) -> String| {
        table.rows.iter().map(|row| row.change.as_ref().map(of).unwrap_or_default()).collect()
    };
    grid.push("ours", "change", true, change(change_text));
    grid.push("ours", "at 95 %", false, change(|change| verdict_text(change).to_owned()));
    let kernel = table.rows.iter().map(|row| row.kernel.as_ref().map(of_summary));
    grid.push_statistics("kernel", kernel.collect());
    let posted = table.rows.iter().map(|row| row.posting.as_ref().map(of_posted));
    grid.push_statistics("posting", posted.collect());
    let theirs = |row: &Row| row.posting_change_percent.map(percent).unwrap_or_default();
    grid.push("posting", "change", true, table.rows.iter().map(theirs).collect());
    for (index, head) in table.extras.iter().enumerate() {
        let cell = |row: &Row| row.extras.get(index).copied().flatten().map(number).unwrap_or_default();
        grid.push("", head, true, table.rows.iter().map(cell).collect());
    }
    grid
}

impl Grid {
    /// Adds a column, unless all cells are empty.
    fn push(&mut self, group: &str, head: &str, numeric: bool, cells: Vec<String>) {
        if cells.iter().all(String::is_empty) {
            return;
        }
        self.columns.push(Column { group: group.to_owned(), head: head.to_owned(), numeric });
        for (row, cell) in self.rows.iter_mut().zip(cells) {
            row.push(cell);
        }
    }

    fn push_statistics(&mut self, group: &str, rows: Vec<Option<[String; 6]>>) {
        let single = rows.iter().flatten().all(|cells| cells[0] == "1" || cells[0].is_empty());
        for (index, head) in HEADS.into_iter().enumerate() {
            // Of a single run all statistics but one repeat it.
            if single
                && head != "Avg"
                && rows.iter().flatten().all(|cells| cells[index] == cells[4] || index == 0 || index == 5)
            {
                continue;
            }
            let cells = rows.iter().map(|row| row.as_ref().map_or(String::new(), |row| row[index].clone()));
            self.push(group, head, true, cells.collect());
        }
    }
}

fn of_summary(summary: &Summary) -> [String; 6] {
    let Summary { runs, min, max, median, avg, stddev } = *summary;
    [runs.to_string(), number(min), number(max), number(median), number(avg), number(stddev)]
}

/// A label; a whole number has separators.
fn label_text(label: &str) -> String {
    match label.parse::<u64>() {
        Ok(_) if label.len() > 3 && !label.starts_with('0') => separated(label),
        _ => label.to_owned(),
    }
}

fn of_posted(posted: &Posted) -> [String; 6] {
    let text = |value: Option<f64>| value.map(number).unwrap_or_default();
    let runs = posted.runs.map(|runs| runs.to_string()).unwrap_or_default();
    // The middle of a range is ours.
    let avg = text(Some(posted.avg).filter(|_| !posted.is_range()));
    [runs, text(posted.min), text(posted.max), text(posted.median), avg, text(posted.stddev)]
}

fn change_text(change: &Change) -> String {
    match change.plus_minus_percent {
        Some(half) if half.is_finite() => format!("{} ± {}", percent(change.percent), number(half)),
        _ => percent(change.percent),
    }
}

fn verdict_text(change: &Change) -> &'static str {
    match change.significant {
        Some(true) => "differs",
        Some(false) => "no difference proven",
        None => "",
    }
}
