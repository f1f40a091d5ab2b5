//! The study of the extent-status cache: the posting's metrics, cases and policies; the bound of a scan; and
//! the posting's jobs on real files.

mod bound;
mod claims;
mod jobs;

use std::path::Path;
use std::time::Instant;

use super::{Estimate, Size};
use crate::report::{Form, Machine, Plot, Posting, Series, StudyReport, Table};
use crate::shrinker::tables::{grouped, note, tables};
use crate::shrinker::{Case, Clock, Policy, Report, Study, run};
use crate::{LabFault, Watch};

/// Scale of the study: 1 is the size of the posting.
fn scale(size: Size) -> f64 {
    match size {
        Size::Quick => 0.05,
        Size::Full => 1.0,
    }
}

/// A run ends early when its scans have visited this much.
fn work_max(size: Size) -> u64 {
    match size {
        Size::Quick => 3_000_000,
        Size::Full => 30_000_000,
    }
}

/// What the names of rows mean.
pub const NAMES: &[(&str, &str)] = &[
    (
        "baseline",
        "the cache before the series: scans visit inodes from the least recently used, entry by entry",
    ),
    ("es-cache", "also caches the holes that delayed writes find"),
    ("es-slist", "also visits inodes round robin instead of sorting them"),
    ("es-ilist", "also keeps a list of the reclaimable entries of each inode"),
    ("es-gc", "also reclaims last what was found again since the last scan: the proposal of the posting"),
    ("upstream", "what Linux merged in place of es-ilist and es-gc"),
    ("es-chunk", "default of extant: chunks of entries, reclaimed by bits; a scan visits a bounded number"),
    ("case (a)", "100 writers of 5 files each, with very large trees of extents"),
    ("case (b)", "the writers of (a), and 20 writers of 20,000 files each, with small trees"),
    (
        "case (c)",
        "100 writers of 5 files each beside one reader of 50 files, whose entries should stay cached",
    ),
];

/// What the study needs.
#[must_use]
pub fn estimate(size: Size, kernel: bool) -> Estimate {
    let (seconds, memory_bytes) = match size {
        Size::Quick => (110.0, 2 << 30),
        Size::Full => (1100.0, 10 << 30),
    };
    // The same jobs on the kernel's file system; it keeps its pages until they are written.
    Estimate {
        seconds: if kernel { seconds * 1.2 } else { seconds },
        memory_bytes,
        kernel_image_bytes: super::large_image(size),
    }
}

/// Writes the claims and notes, from the tables and the parameters `scale` and `kernel caches dropped`.
///
/// A difference is one at 95 % confidence, between runs of baseline and of es-gc. Longest scans are compared
/// by own time, which excludes interruptions; there, a difference is a factor of 2, or 20 % if the runs
/// differ at 95 %, too.
///
/// ```text
/// es-gc shortens a time     confirmed: shorter, by at least a third of the posting's factor
///                           refuted: longer, at the posting's size (scale 1)
/// es-gc increases hits      confirmed: more hits, by any factor, which depends on how few baseline has
///                           refuted: fewer hits, or no difference
/// both                      beaten: confirmed, and es-chunk differs from es-gc in the same direction
/// a patch does what its     as above, between a policy and the one before it; never beaten. Patch 4
/// description says          shortens waits for a lock: with one worker it is not refuted
/// a time stays about equal  confirmed: all intervals are within 20 %
///                           refuted: a difference of more than 20 %
/// all                       open: anything else, such as no difference, single runs or too small a factor;
///                           or a run ended early, the figure grows with the run (hits, longest scan), and
///                           the part that ran does not decide
/// ```
pub fn judge(report: &mut StudyReport) {
    let mut claims = claims::claims(report);
    claims.extend(report.table(bound::ID).map(bound::claim));
    report.claims = claims;
    let dropped = report.parameters.get(jobs::DROPPED).map(String::as_str);
    let notes = report.tables.iter().map(|table| match table.id.as_str() {
        bound::ID => bound::note(table),
        id if jobs::IDS.contains(&id) => jobs::note(table, dropped),
        _ => note(table),
    });
    let notes: Vec<String> = notes.collect();
    for (table, note) in report.tables.iter_mut().zip(notes) {
        table.note = note;
    }
    let is_alone = report.number("workers") == Some(1.0);
    let size = report.number("scale").filter(|scale| *scale == 1.0).and_then(|_| about_size(report));
    if let Some(table) = report.tables.iter_mut().find(|table| is_alone && table.id == "scan-avg-a") {
        table.note += " One worker makes all calls here, so scan times include no waits for locks. In the \
                       posting, 100 jobs or more compete for them.";
        table.note += size.as_deref().unwrap_or_default();
    }
}

/// How the calls of complete runs at scale 1 compare with the 300 s of the posting's runs. Its numbers of
/// calls follow from its jobs and mean calls.
fn about_size(report: &StudyReport) -> Option<String> {
    const SECONDS: f64 = 300.0;
    let ours = |part: &str| {
        let table = report.table(&format!("hits-{part}"))?;
        table.rows.iter().filter_map(|row| table.extra(&[&row.labels[0]], "calls")).reduce(f64::max)
    };
    let its = |part: &str, jobs: f64| {
        let base = report.table(&format!("user-avg-{part}"))?.row(&["baseline"])?.posting?;
        Some(jobs * SECONDS / base.avg)
    };
    let text = |ours: f64, its: f64, case: &str| format!("{} and {its:.1} million in {case}", grouped(ours));
    Some(format!(
        " Scale 1 has the posting's jobs and files. The posting ran each case for {SECONDS:.0} s; a complete \
         run here makes a number of calls, after the caches are full. Our calls, and the posting's by its \
         jobs and its mean calls: {}, {}, {}. As in the posting's note 1, neighbouring entries are not \
         merged (tables 1 to 5).",
        text(ours("a")?, its("a", 100.0)?, "(a)"),
        text(ours("b")?, its("b", 120.0)?, "(b)"),
        text(ours("c")?, its("c-read", 1.0)? + its("c-write", 100.0)?, "(c)")
    ))
}

/// Puts the tables of calls on files after those of calls without I/O.
fn with_calls_on_files(tables: &mut Vec<Table>, on_files: [Table; 2]) {
    for (table, before) in on_files.into_iter().zip(["user-avg-", "user-max-"]) {
        let last = tables.iter().rposition(|table| table.id.starts_with(before));
        tables.insert(last.map_or(tables.len(), |at| at + 1), table);
    }
}

/// Runs the study.
///
/// # Errors
/// A file system failed.
pub fn study_report(size: Size, kernel: Option<&Path>, watch: &dyn Watch) -> Result<StudyReport, LabFault> {
    let begun = Instant::now();
    let study = Study {
        cases: Case::ALL.to_vec(),
        policies: Policy::ALL.to_vec(),
        runs: 3,
        threads: 1,
        scale: scale(size),
        clock: Clock::Cpu,
        work_max: Some(work_max(size)),
    };
    let report = run(&study, watch)?;
    let mut all = tables(&report, true);
    let bound = bound::table(size, watch)?;
    let (end_to_end, dropped) = jobs::tables(size, kernel, watch)?;
    let plots = plots(&report, &all);
    all.push(bound);
    with_calls_on_files(&mut all, end_to_end);
    let mut parameters = vec![
        ("size", size.name().to_owned()),
        ("scale", study.scale.to_string()),
        ("runs", study.runs.to_string()),
        ("workers", study.threads.to_string()),
        ("clock of scans", "CPU time".to_owned()),
        ("visits at most", work_max(size).to_string()),
    ];
    parameters.extend(kernel.map(|_| (jobs::DROPPED, if dropped { "yes" } else { "no" }.to_owned())));
    let parameters = parameters.into_iter().map(|(name, value)| (name.to_owned(), value));
    let mut report = StudyReport {
        study: "shrinker".to_owned(),
        question: "Which policy reclaims cached extents with the shortest scans, and keeps the right ones?"
            .to_owned(),
        posting: Posting {
            subject: "[PATCH v3 0/6] ext4: extents status tree shrinker improvement".to_owned(),
            date: "7 August 2014".to_owned(),
            machine: "16 CPUs (2 sockets, 2.4 GHz, model 44), 24 GB of memory (12 GB for case c), HDD"
                .to_owned(),
        },
        command: format!("extant lab all --{} --only shrinker{}", size.name(), super::kernel_option(kernel)),
        machine: Machine::this(),
        parameters: parameters.collect(),
        seconds: begun.elapsed().as_secs_f64(),
        tables: all,
        plots,
        claims: Vec::new(),
    };
    judge(&mut report);
    Ok(report)
}

fn plots(report: &Report, tables: &[Table]) -> Vec<Plot> {
    let cases = [(Case::GiantTrees, "a"), (Case::ManyInodes, "b"), (Case::Reader, "c")];
    let mut plots = Vec::new();
    for (case, key) in cases {
        let rows = report.rows.iter().filter(|row| row.case == case && row.scans > 0);
        let series = rows.map(|row| Series {
            name: row.policy.to_owned(),
            posting: false,
            points: row.scan_distribution_us.iter().map(|(share, us)| (us.max(0.01), *share)).collect(),
        });
        plots.push(Plot {
            id: format!("scan-times-{key}"),
            title: format!("Distribution of scan times, test case ({key})"),
            x: "time of a scan [us]".to_owned(),
            y: "share of scans that took no longer".to_owned(),
            x_log: true,
            y_log: false,
            form: Form::Lines,
            categories: Vec::new(),
            series: series.collect(),
            table: format!("scan-avg-{key}"),
        });
    }
    let of_metrics = tables.iter().filter(|table| {
        ["scan-avg-", "scan-max-", "hits-"].iter().any(|prefix| table.id.starts_with(prefix))
    });
    plots.extend(of_metrics.map(bars));
    plots
}

/// Means of each policy, ours and the posting's. Zeros have no bar on a log axis.
fn bars(table: &Table) -> Plot {
    let points = |of: fn(&crate::report::Row) -> Option<f64>| {
        let rows = table.rows.iter().enumerate();
        rows.filter_map(|(at, row)| Some((at as f64, of(row)?)))
            .filter(|(_, value)| *value > 0.0)
            .collect::<Vec<_>>()
    };
    let unit = if table.unit.is_empty() { String::new() } else { format!(" [{}]", table.unit) };
    Plot {
        id: format!("bars-{}", table.id),
        title: table.title.clone(),
        x: "policy".to_owned(),
        y: format!("{}{unit}", table.quantity),
        x_log: false,
        y_log: true,
        form: Form::Bars,
        categories: table.rows.iter().map(|row| row.labels.join(" ")).collect(),
        series: vec![
            Series { name: "ours".to_owned(), posting: false, points: points(|row| Some(row.ours?.avg)) },
            Series {
                name: "posting".to_owned(),
                posting: true,
                points: points(|row| Some(row.posting?.avg)),
            },
        ],
        table: table.id.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Claims and notes come from tables and parameters alone, so a stored report gives the same again. The
    /// tests of extant-lab-report do so with the JSON of docs/lab.
    #[test]
    fn a_stored_report_is_judged_the_same_again() {
        let study = Study {
            cases: Case::ALL.to_vec(),
            policies: Policy::ALL.to_vec(),
            runs: 2,
            threads: 1,
            scale: 0.001,
            clock: Clock::Cpu,
            work_max: Some(100_000),
        };
        let result = run(&study, &crate::Quiet).unwrap();
        let mut report = StudyReport {
            study: "shrinker".to_owned(),
            question: String::new(),
            posting: Posting { subject: String::new(), date: String::new(), machine: String::new() },
            command: String::new(),
            machine: Machine::this(),
            parameters: [("scale".to_owned(), study.scale.to_string())].into(),
            seconds: 0.0,
            tables: tables(&result, true),
            plots: Vec::new(),
            claims: Vec::new(),
        };
        let notes = |report: &StudyReport| -> Vec<String> {
            report.tables.iter().map(|table| table.note.clone()).collect()
        };
        // `extant lab shrinker` writes the same notes.
        let before = notes(&report);
        judge(&mut report);
        assert_eq!(notes(&report), before);
        assert_eq!(report.claims.len(), 21);
        let mut stored = report.clone();
        stored.claims.clear();
        stored.tables.iter_mut().for_each(|table| table.note.clear());
        judge(&mut stored);
        assert_eq!(stored.claims, report.claims);
        assert_eq!(notes(&stored), before);
    }
}
