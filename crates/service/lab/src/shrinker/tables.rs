//! The tables of the posting, with our figures beside its own.
//!
//! Does **not** own: the figures (see the parent module, and `posted` for those of the posting).

use extant_extent_status::Policy;

use super::posted::{Metric, posted};
use super::{Case, Report, Row};
use crate::Summary;
use crate::report::{self, Better, Change, Posted, Table, figure};

impl Metric {
    const ALL: [Self; 5] = [Self::ScanAvg, Self::ScanMax, Self::Hits, Self::UserAvg, Self::UserMax];

    pub(crate) fn id(self) -> &'static str {
        match self {
            Self::ScanAvg => "scan-avg",
            Self::ScanMax => "scan-max",
            Self::Hits => "hits",
            Self::UserAvg => "user-avg",
            Self::UserMax => "user-max",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::ScanAvg => "1. es avg. scan time",
            Self::ScanMax => "2. es max scan time",
            Self::Hits => "3. cache hit/miss",
            Self::UserAvg => "4. userspace avg. latency",
            Self::UserMax => "5. userspace max latency",
        }
    }

    pub(crate) fn quantity(self) -> &'static str {
        match self {
            Self::ScanAvg => "mean time of a scan",
            Self::ScanMax => "longest scan",
            Self::Hits => "hits",
            Self::UserAvg => "mean time of a call",
            Self::UserMax => "longest call",
        }
    }

    fn extras(self, of_reader: bool) -> &'static [Extra] {
        match (self, of_reader) {
            (Self::ScanAvg, _) => &SCAN_AVG,
            (Self::ScanMax, _) => &SCAN_MAX,
            (Self::Hits, true) => &HITS_OF_READER,
            (Self::Hits, false) => &HITS,
            (Self::UserAvg | Self::UserMax, _) => &[],
        }
    }
}

type Extra = (&'static str, fn(&Row) -> Option<f64>);

const SCAN_AVG: [Extra; 6] = [
    ("own avg [us]", |row| Some(row.scan_own_avg_us)),
    ("scans", |row| Some(row.scans as f64)),
    ("reclaimed", |row| Some(row.reclaimed as f64)),
    ("visited [1/scan]", |row| Some(row.visited as f64 / row.scans.max(1) as f64)),
    ("time [ns/entry]", |row| Some(row.ns_per_reclaimed)),
    ("memory [B/entry]", |row| Some(row.bytes_per_entry)),
];

const SCAN_MAX: [Extra; 5] = [
    ("longest [us]", |row| Some(row.scan_longest_us)),
    ("its visits", |row| row.scan_longest_work.map(|(visited, _)| f64::from(visited))),
    ("most visits", |row| Some(row.scan_work_max as f64)),
    ("99 % [us]", |row| Some(row.scan_p99_us)),
    ("99.9 % [us]", |row| Some(row.scan_p999_us)),
];

const HITS: [Extra; 3] = [
    ("misses", |row| Some(row.misses as f64)),
    ("hit ratio", |row| Some(row.hit_ratio)),
    ("calls", |row| Some(row.calls as f64)),
];

const HITS_OF_READER: [Extra; 4] = [HITS[0], HITS[1], ("reader's", |row| row.reader_hit_ratio), HITS[2]];

/// What is measured of a case, and how the posting calls it.
struct Part {
    case: Case,
    /// The end of the table's id, such as `c-read`.
    key: &'static str,
    title: &'static str,
}

const CASES: [Part; 3] = [
    Part { case: Case::GiantTrees, key: "a", title: "test case (a)" },
    Part { case: Case::ManyInodes, key: "b", title: "test case (b)" },
    Part { case: Case::Reader, key: "c", title: "test case (c)" },
];

/// The posting splits the latencies of case (c).
const CALLERS: [Part; 4] = [
    Part { case: Case::GiantTrees, key: "a", title: "test case (a)" },
    Part { case: Case::ManyInodes, key: "b", title: "test case (b)" },
    Part { case: Case::Reader, key: "c-read", title: "test case (c), read" },
    Part { case: Case::Reader, key: "c-write", title: "test case (c), write" },
];

fn value(metric: Metric, key: &str, row: &Row) -> Option<Summary> {
    match (metric, key) {
        (Metric::ScanAvg | Metric::ScanMax, _) if row.scans == 0 => None,
        (Metric::ScanAvg, _) => Some(row.scan_avg_us),
        (Metric::ScanMax, _) => Some(row.scan_max_us),
        (Metric::Hits, _) => Some(row.hits_runs),
        (Metric::UserAvg, "c-read") => row.read_avg_us,
        (Metric::UserMax, "c-read") => row.read_max_us,
        (Metric::UserAvg, _) => Some(row.write_avg_us),
        (Metric::UserMax, _) => Some(row.write_max_us),
    }
}

/// The tables of the cases that a report has. `with_posting`: with the posting's figures, which are those of
/// scale 1 on its machine.
pub(crate) fn tables(report: &Report, with_posting: bool) -> Vec<Table> {
    let mut tables = Vec::new();
    for metric in Metric::ALL {
        let parts: &[Part] =
            if matches!(metric, Metric::UserAvg | Metric::UserMax) { &CALLERS } else { &CASES };
        for part in parts {
            let rows: Vec<&Row> = report.rows.iter().filter(|row| row.case == part.case).collect();
            if !rows.is_empty() {
                tables.push(table(metric, part, &rows, with_posting));
            }
        }
    }
    tables
}

fn table(metric: Metric, part: &Part, rows: &[&Row], with_posting: bool) -> Table {
    let extras = metric.extras(part.case == Case::Reader);
    let baseline = rows.iter().find(|row| row.policy == Policy::Baseline.name());
    let base = baseline.and_then(|row| value(metric, part.key, row));
    let base_posted = posted(metric, part.key, Policy::Baseline.name());
    let in_rows = rows.iter().map(|row| {
        let ours = value(metric, part.key, row);
        let is_base = row.policy == Policy::Baseline.name();
        // Counts of a run that ended early, or of one without scans, compare with no other.
        let comparable = |of: &Row| metric != Metric::Hits || !of.cut;
        let compared = !is_base && comparable(row) && baseline.is_some_and(|row| comparable(row));
        // There is no percentage of nothing.
        let change = ours.zip(base).filter(|(_, base)| compared && base.avg > 0.0);
        let its = posted(metric, part.key, row.policy).filter(|_| with_posting);
        report::Row {
            ours,
            change: change.map(|(this, that)| Change::between(&this, &that, Policy::Baseline.name())),
            posting: its,
            posting_change_percent: its
                .zip(base_posted)
                .filter(|_| !is_base)
                .map(|(its, base)| (its.avg / base.avg - 1.0) * 100.0),
            extras: extras.iter().map(|(_, of)| of(row)).collect(),
            ..report::Row::ours(&[row.policy], &[])
        }
    });
    let better = if metric == Metric::Hits { Better::Higher } else { Better::Lower };
    let mut table = Table {
        id: format!("{}-{}", metric.id(), part.key),
        title: format!("{}, {}", metric.title(), part.title),
        in_posting: true,
        quantity: metric.quantity().to_owned(),
        unit: if metric == Metric::Hits { String::new() } else { "us".to_owned() },
        better,
        labels: vec!["policy".to_owned()],
        extras: extras.iter().map(|(head, _)| (*head).to_owned()).collect(),
        rows: in_rows.collect(),
        note: String::new(),
    };
    table.note = note(&table, metric, part, rows);
    table
}

/// The effect of a policy compared with the baseline.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    Lower,
    Same,
    Higher,
}

fn effect(this: &Summary, that: &Summary) -> Effect {
    let difference = this.avg - that.avg;
    match Change::between(this, that, "").significant {
        // An interval in per cent of nothing is none.
        Some(false) if that.avg > 0.0 => Effect::Same,
        _ if difference < 0.0 => Effect::Lower,
        _ if difference > 0.0 => Effect::Higher,
        _ => Effect::Same,
    }
}

fn summary(posted: &Posted) -> Summary {
    Summary {
        runs: posted.runs.unwrap_or(1),
        min: posted.min.unwrap_or(posted.avg),
        max: posted.max.unwrap_or(posted.avg),
        median: posted.median.unwrap_or(posted.avg),
        avg: posted.avg,
        stddev: posted.stddev.unwrap_or(0.0),
    }
}

/// What agrees with the posting: for how many policies the comparison with the baseline has the same outcome
/// at 95 %; then the best policy, and what limits the comparison.
fn note(table: &Table, metric: Metric, part: &Part, rows: &[&Row]) -> String {
    let mut sentences = Vec::new();
    let base = posted(metric, part.key, Policy::Baseline.name());
    let (mut agree, mut differ) = (Vec::new(), Vec::new());
    let base_of_ours = table.rows.iter().find(|row| row.labels[0] == Policy::Baseline.name());
    for row in table.rows.iter().filter(|row| row.labels[0] != Policy::Baseline.name()) {
        let (Some(its), Some(base)) = (&row.posting, &base) else { continue };
        let Some((ours, our_base)) = row.ours.zip(base_of_ours.and_then(|row| row.ours)) else { continue };
        let agrees = effect(&ours, &our_base) == effect(&summary(its), &summary(base));
        let list = if agrees { &mut agree } else { &mut differ };
        list.push(row.labels[0].as_str());
    }
    let all = agree.len() + differ.len();
    if all > 0 {
        let differing =
            if differ.is_empty() { String::new() } else { format!(", not for {}", differ.join(", ")) };
        sentences.push(format!(
            "Compared with baseline, the outcome at 95 % is that of the posting for {} of {all} policies\
             {differing}.",
            agree.len()
        ));
    }
    let figures = table.rows.iter().filter_map(|row| Some((row.labels[0].as_str(), row.ours?.avg)));
    let cut: Vec<&str> = rows.iter().filter(|row| row.cut).map(|row| row.policy).collect();
    let best = match metric {
        Metric::Hits => None,
        _ => figures.min_by(|a, b| a.1.total_cmp(&b.1)),
    };
    if let Some((policy, avg)) = best {
        sentences.push(format!("The lowest mean is that of {policy}: {} us.", figure(avg)));
    }
    if metric == Metric::Hits {
        let ranked = rows.iter().max_by(|a, b| a.hit_ratio.total_cmp(&b.hit_ratio));
        sentences
            .extend(ranked.map(|row| {
                format!("The highest hit ratio is that of {}: {:.4}.", row.policy, row.hit_ratio)
            }));
    }
    let idle: Vec<&str> = rows.iter().filter(|row| row.scans == 0).map(|row| row.policy).collect();
    if !idle.is_empty() && matches!(metric, Metric::ScanAvg | Metric::ScanMax) {
        sentences.push(format!("No scans at this scale: {}.", idle.join(", ")));
    }
    if !cut.is_empty() {
        sentences.push(format!("Ended early because scans visited too much: {}.", cut.join(", ")));
    }
    sentences.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shrinker::{Clock, Study, run};

    /// The posting has 17 tables with 5 rows each. All of its rows are in ours, at any scale, in its order.
    #[test]
    fn every_row_of_the_posting_is_there() {
        let study = Study {
            cases: Case::ALL.to_vec(),
            policies: Policy::ALL.to_vec(),
            runs: 1,
            threads: 1,
            scale: 0.001,
            clock: Clock::Cpu,
            work_max: Some(100_000),
        };
        let report = run(&study, &crate::Quiet).unwrap();
        let tables = tables(&report, true);
        assert_eq!(tables.len(), 17);
        let rows: Vec<&report::Row> = tables.iter().flat_map(|table| &table.rows).collect();
        assert_eq!(rows.len(), 17 * 7);
        assert_eq!(rows.iter().filter(|row| row.posting.is_some()).count(), 85);
        for table in &tables {
            assert_eq!(table.rows[4].labels, ["es-gc"]);
            assert!(table.rows.iter().all(|row| row.extras.len() == table.extras.len()));
            assert!(!table.note.is_empty(), "{}", table.id);
        }
        let gc = &tables[0].rows[4];
        assert_eq!(gc.posting.unwrap().median, Some(290.0));
        assert!((gc.posting_change_percent.unwrap() + 96.5).abs() < 0.1);
        // Without the posting, only ours.
        assert!(super::tables(&report, false).iter().all(|table| table.rows[0].posting.is_none()));
    }
}
