//! The study of the extent-status cache: the posting's metrics, cases and policies; the bound of a scan; and
//! the posting's jobs on real files.

mod bound;
mod jobs;

use std::path::Path;
use std::time::Instant;

use super::{Estimate, Size};
use crate::report::{
    Change, Claim, Form, Machine, Plot, Posting, Series, StudyReport, Table, Verdict, figure,
};
use crate::shrinker::tables::tables;
use crate::shrinker::{Case, Clock, Policy, Report, Row, Study, run};
use crate::{LabFault, Summary, Watch};

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
    ("case (a)", "writers to few files with very large trees of extents"),
    ("case (b)", "writers to very many files with small trees"),
    ("case (c)", "a writer to many files beside a reader whose entries should stay cached"),
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
    let end_to_end = jobs::tables(size, kernel, watch)?;
    let mut claims = claims(&report);
    claims.push(bound::claim(&bound));
    let plots = plots(&report, &all);
    all.push(bound);
    all.extend(end_to_end);
    let parameters = [
        ("size", size.name().to_owned()),
        ("scale", study.scale.to_string()),
        ("runs", study.runs.to_string()),
        ("workers", study.threads.to_string()),
        ("clock of scans", "CPU time".to_owned()),
        ("visits at most", work_max(size).to_string()),
    ];
    Ok(StudyReport {
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
        parameters: parameters.map(|(name, value)| (name.to_owned(), value)).into(),
        seconds: begun.elapsed().as_secs_f64(),
        tables: all,
        plots,
        claims,
    })
}

fn find(report: &Report, case: Case, policy: Policy) -> Option<&Row> {
    report.rows.iter().find(|row| row.case == case && row.policy == policy.name() && row.scans > 0)
}

/// A claim that es-gc is that much better than baseline.
struct Headline {
    claim: &'static str,
    case: Case,
    key: &'static str,
    /// The posting's means: baseline and es-gc.
    posting: (f64, f64),
    of: fn(&Row) -> Summary,
}

const HEADLINES: [Headline; 4] = [
    Headline {
        claim: "In case (a), es-gc shortens the mean scan.",
        case: Case::GiantTrees,
        key: "scan-avg-a",
        posting: (10_195.667, 357.333),
        of: |row| row.scan_avg_us,
    },
    Headline {
        claim: "In case (b), es-gc shortens the mean scan.",
        case: Case::ManyInodes,
        key: "scan-avg-b",
        posting: (29_838.667, 193.0),
        of: |row| row.scan_avg_us,
    },
    Headline {
        claim: "In case (c), es-gc shortens the mean scan.",
        case: Case::Reader,
        key: "scan-avg-c",
        posting: (178.333, 68.667),
        of: |row| row.scan_avg_us,
    },
    Headline {
        claim: "In case (b), es-gc shortens the longest scan.",
        case: Case::ManyInodes,
        key: "scan-max-b",
        posting: (375_688.67, 56_311.333),
        of: |row| row.scan_max_us,
    },
];

fn claims(report: &Report) -> Vec<Claim> {
    let mut claims: Vec<Claim> =
        HEADLINES.iter().map(|headline| headline.judge(report, report.scale)).collect();
    claims.push(hits(report));
    claims
}

/// `10196 -> 357 us (28.5 times shorter)`.
fn from_to(old: f64, new: f64) -> String {
    let times = old / new.max(1e-9);
    let (times, word) = if times >= 1.0 { (times, "shorter") } else { (1.0 / times, "longer") };
    format!("{} -> {} us ({} times {word})", figure(old), figure(new), figure(times))
}

impl Headline {
    fn judge(&self, report: &Report, scale: f64) -> Claim {
        let rows = [Policy::Baseline, Policy::EsGc, Policy::EsChunk].map(|of| find(report, self.case, of));
        let (posted_old, posted_new) = self.posting;
        let claim = |ours: String, verdict: Verdict, why: String| Claim {
            claim: self.claim.to_owned(),
            posting: from_to(posted_old, posted_new),
            ours,
            kernel: None,
            verdict,
            why,
            tables: vec![self.key.to_owned()],
        };
        let [Some(old), Some(new), Some(chunk)] = rows else {
            let why = format!("One of the policies ran no scan at scale {scale}.");
            return claim("not measured".to_owned(), Verdict::Open, why);
        };
        let ours = format!(
            "baseline -> es-gc {}; es-chunk {} us",
            from_to((self.of)(old).avg, (self.of)(new).avg),
            figure((self.of)(chunk).avg)
        );
        let change = Change::between(&(self.of)(new), &(self.of)(old), Policy::Baseline.name());
        let times = (self.of)(old).avg / (self.of)(new).avg.max(1e-9);
        let share = times / (posted_old / posted_new);
        let own = Change::between(&(self.of)(chunk), &(self.of)(new), Policy::EsGc.name());
        let is_beaten = own.significant == Some(true) && own.percent < 0.0;
        let (verdict, why) = match change.significant {
            None => (Verdict::Open, "Single runs have no confidence interval.".to_owned()),
            Some(false) => {
                let runs = (self.of)(new).runs;
                (Verdict::Open, format!("At scale {scale}, {runs} runs show no difference at 95 %."))
            }
            Some(true) if change.percent > 0.0 && scale < 1.0 => (
                Verdict::Open,
                format!(
                    "The effect grows with the size, and this is scale {scale}: es-gc was {} times longer.",
                    figure(1.0 / times)
                ),
            ),
            Some(true) if change.percent > 0.0 => {
                (Verdict::Refuted, format!("es-gc was {} times longer.", figure(1.0 / times)))
            }
            Some(true) if scale < 1.0 && share < 1.0 / 3.0 => (
                Verdict::Open,
                format!(
                    "The effect grows with the size, and this is scale {scale}: es-gc has {} of the \
                     posting's factor.",
                    figure(share)
                ),
            ),
            Some(true) if is_beaten => (
                Verdict::Beaten,
                format!(
                    "es-gc has {} of the posting's factor, and es-chunk is another {} times shorter.",
                    figure(share),
                    figure((self.of)(new).avg / (self.of)(chunk).avg.max(1e-9))
                ),
            ),
            Some(true) => {
                (Verdict::Confirmed, format!("es-gc has {} of the posting's factor.", figure(share)))
            }
        };
        claim(ours, verdict, why)
    }
}

/// Hits of case (a). The number of calls depends on the scale, so ratios are compared.
fn hits(report: &Report) -> Claim {
    let row = |policy: Policy| {
        report.rows.iter().find(|row| row.case == Case::GiantTrees && row.policy == policy.name())
    };
    let [old, new, chunk] = [Policy::Baseline, Policy::EsGc, Policy::EsChunk].map(row);
    let ratio = |row: Option<&Row>| row.map_or(0.0, |row| row.hit_ratio);
    let shown = |row: Option<&Row>| {
        row.map_or("not measured".to_owned(), |row| {
            format!("{} ({:.4} of {} lookups)", row.hits, row.hit_ratio, row.hits + row.misses)
        })
    };
    let why = format!(
        "Hit ratios: baseline {:.4}, es-gc {:.4}, es-chunk {:.4}.",
        ratio(old),
        ratio(new),
        ratio(chunk)
    );
    let verdict = if new.is_none() || old.is_none() {
        Verdict::Open
    } else if ratio(new) <= ratio(old) {
        Verdict::Refuted
    } else if ratio(chunk) > ratio(new) {
        Verdict::Beaten
    } else {
        Verdict::Confirmed
    };
    Claim {
        claim: "In case (a), lookups hit with es-gc, and hardly ever with baseline.".to_owned(),
        posting: "4788 -> 10422428 hits".to_owned(),
        ours: format!("baseline {}; es-gc {}; es-chunk {}", shown(old), shown(new), shown(chunk)),
        kernel: None,
        verdict,
        why,
        tables: vec!["hits-a".to_owned()],
    }
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
