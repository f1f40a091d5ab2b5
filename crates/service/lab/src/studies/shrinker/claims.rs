//! The claims of the posting's conclusion, and their verdicts by the tables.
//!
//! ```text
//! "the max scan time and avg. scan time can be improved"        SHORTER, tables scan-avg and scan-max
//! "the cache hit ratio is also increased"                       HITS
//! "the max latency of test case (a) and (b) can be improved"    SHORTER, table files-max
//! "Others are not outstanding"                                  SAME, tables files-avg and files-max
//! ```
//!
//! The posting's user-space calls wait for a disk. Ours do so in the jobs on real files, so verdicts on
//! user-space latency come from those. The tables `user-avg` and `user-max` time calls without any I/O: their
//! figures are shown beside.

use super::jobs;
use crate::Summary;
use crate::report::{Change, Claim, StudyReport, Table, Verdict};
use crate::shrinker::tables::{Effect, calls, comparable, effect, ended_early, grouped, rounded, summary};

const OLD: &str = "baseline";
const NEW: &str = "es-gc";
const OWN: &str = "es-chunk";

/// The part of the posting's factor from which on the effect is the same.
const SHARE_MIN: f64 = 1.0 / 3.0;

/// Changes below this are "not outstanding". The posting calls a fall of 21 % an improvement: that of the
/// longest calls in case (a).
const OUTSTANDING_PERCENT: f64 = 20.0;

/// A claim that es-gc shortens a time.
struct Shorter {
    claim: &'static str,
    /// What gets shorter.
    what: &'static str,
    /// Our figures: a table and the labels before the policy.
    table: &'static str,
    labels: &'static [&'static str],
    /// The table with the posting's figures.
    posting: &'static str,
}

const fn scans(claim: &'static str, what: &'static str, table: &'static str) -> Shorter {
    Shorter { claim, what, table, labels: &[], posting: table }
}

const MEAN_SCAN: &str = "mean scan";
const LONGEST_SCAN: &str = "longest scan";
const LONGEST_CALL: &str = "longest call";

const SHORTER: [Shorter; 8] = [
    scans("In case (a), es-gc shortens the mean scan.", MEAN_SCAN, "scan-avg-a"),
    scans("In case (b), es-gc shortens the mean scan.", MEAN_SCAN, "scan-avg-b"),
    scans("In case (c), es-gc shortens the mean scan.", MEAN_SCAN, "scan-avg-c"),
    scans("In case (a), es-gc shortens the longest scan.", LONGEST_SCAN, "scan-max-a"),
    scans("In case (b), es-gc shortens the longest scan.", LONGEST_SCAN, "scan-max-b"),
    scans("In case (c), es-gc shortens the longest scan.", LONGEST_SCAN, "scan-max-c"),
    Shorter {
        claim: "In case (a), es-gc shortens the longest user-space call.",
        what: LONGEST_CALL,
        table: jobs::IDS[1],
        labels: &["giant-trees", "write"],
        posting: "user-max-a",
    },
    Shorter {
        claim: "In case (b), es-gc shortens the longest user-space call.",
        what: LONGEST_CALL,
        table: jobs::IDS[1],
        labels: &["many-inodes", "write"],
        posting: "user-max-b",
    },
];

/// Claims that es-gc increases the hits, and their tables.
const HITS: [(&str, &str); 3] = [
    ("In case (a), es-gc increases the hits of the cache.", "hits-a"),
    ("In case (b), es-gc increases the hits of the cache.", "hits-b"),
    ("In case (c), es-gc increases the hits of the cache.", "hits-c"),
];

/// A claim that es-gc changes a time only a little.
struct Same {
    claim: &'static str,
    /// The table of the jobs on real files.
    table: &'static str,
    /// What is compared: its name, the labels before the policy, and the table with the posting's figures and
    /// ours without I/O.
    parts: &'static [(&'static str, [&'static str; 2], &'static str)],
}

const SAME: [Same; 2] = [
    Same {
        claim: "In all cases, the mean user-space call takes about as long with es-gc as with baseline.",
        table: jobs::IDS[0],
        parts: &[
            ("(a)", ["giant-trees", "write"], "user-avg-a"),
            ("(b)", ["many-inodes", "write"], "user-avg-b"),
            ("(c) reads", ["reader", "read"], "user-avg-c-read"),
            ("(c) writes", ["reader", "write"], "user-avg-c-write"),
        ],
    },
    Same {
        claim: "In case (c), the longest user-space call takes about as long with es-gc as with baseline.",
        table: jobs::IDS[1],
        parts: &[
            ("reads", ["reader", "read"], "user-max-c-read"),
            ("writes", ["reader", "write"], "user-max-c-write"),
        ],
    },
];

/// All claims but that on the bound.
pub(super) fn claims(report: &StudyReport) -> Vec<Claim> {
    let shorter = SHORTER.iter().map(|claim| claim.judge(report));
    let (scans, latencies) = (shorter.clone().take(6), shorter.skip(6));
    let hits = HITS.iter().map(|(claim, id)| hits(report, claim, id));
    scans.chain(hits).chain(latencies).chain(SAME.iter().map(|claim| claim.judge(report))).collect()
}

/// What our runs show: the verdict, and why.
type Judged = (Verdict, String);

/// Our runs of the policies.
struct Runs {
    old: Summary,
    new: Summary,
    own: Summary,
}

impl Runs {
    /// `None` if one was not measured.
    fn of(report: &StudyReport, table: &str, labels: &[&str]) -> Option<Self> {
        let table = report.table(table)?;
        let ours = |policy: &str| table.ours(&[labels, &[policy]].concat());
        Some(Self { old: ours(OLD)?, new: ours(NEW)?, own: ours(OWN)? })
    }

    fn is_own_best(&self, better: Effect) -> bool {
        effect(&self.own, &self.new) == Some(better)
    }
}

/// The posting's figures of baseline and es-gc.
fn posted(report: &StudyReport, table: &str) -> Option<[Summary; 2]> {
    let table = report.table(table)?;
    let its = |policy: &str| Some(summary(table.row(&[policy])?.posting.as_ref()?));
    Some([its(OLD)?, its(NEW)?])
}

fn posted_text(posted: Option<&[Summary; 2]>, unit: &str) -> String {
    let Some([old, new]) = posted else { return "not in this report".to_owned() };
    let noise = match effect(new, old) {
        Some(Effect::None) => "; no difference at 95 %",
        _ => "",
    };
    format!("{OLD} {}{unit}, {NEW} {}{unit}{noise}", grouped(old.avg), grouped(new.avg))
}

/// "falls to 1/28", "rises to 3.0 times".
fn factor(old: f64, new: f64) -> String {
    match old > new {
        true => format!("falls to 1/{}", rounded(old / new.max(1e-9))),
        false => format!("rises to {} times", rounded(new / old.max(1e-9))),
    }
}

impl Shorter {
    fn judge(&self, report: &StudyReport) -> Claim {
        let posted = posted(report, self.posting);
        let runs = Runs::of(report, self.table, self.labels);
        let ours = runs.as_ref().map_or("not measured".to_owned(), |runs| {
            let on = if self.labels.is_empty() { "" } else { "on files: " };
            let [old, new, own] = [&runs.old, &runs.new, &runs.own].map(|of| grouped(of.avg));
            format!("{on}{OLD} {old} us, {NEW} {new} us, {OWN} {own} us")
        });
        let (verdict, why) = match (runs, posted) {
            (Some(runs), Some(posted)) => self.verdict(report, &runs, &posted),
            _ => (Verdict::Open, "A policy ran no scan, or a table is missing.".to_owned()),
        };
        let mut tables = vec![self.table.to_owned()];
        if self.posting != self.table {
            tables.push(self.posting.to_owned());
        }
        Claim {
            claim: self.claim.to_owned(),
            posting: posted_text(posted.as_ref(), " us"),
            ours,
            kernel: None,
            verdict,
            why,
            tables,
        }
    }

    fn verdict(&self, report: &StudyReport, runs: &Runs, [its_old, its_new]: &[Summary; 2]) -> Judged {
        let (what, Runs { old, new, own }) = (self.what, runs);
        if let Some(why) = self.cut(report) {
            return (Verdict::Open, why);
        }
        let its_factor = factor(its_old.avg, its_new.avg);
        let falls =
            format!("The {what} {} of baseline's; in the posting it {its_factor}.", factor(old.avg, new.avg));
        let scale = report.number("scale").unwrap_or(1.0);
        let is_small = scale < 1.0;
        let small = format!(" The effect grows with the size, and this is scale {scale}.");
        match effect(new, old) {
            None => (Verdict::Open, "Single runs have no confidence interval.".to_owned()),
            Some(Effect::None) => (Verdict::Open, self.noise(report, new.runs, effect(its_new, its_old))),
            Some(Effect::Higher) => {
                let why = format!(
                    "The {what} {} baseline's; in the posting it {its_factor}.",
                    factor(old.avg, new.avg)
                );
                match is_small {
                    true => (Verdict::Open, why + &small),
                    false => (Verdict::Refuted, why + &self.cost(report, runs)),
                }
            }
            Some(Effect::Lower) => {
                let share = (old.avg / new.avg.max(1e-9)) / (its_old.avg / its_new.avg.max(1e-9));
                let early = self.means_until_then(report);
                if share < SHARE_MIN {
                    let small = if is_small { small } else { String::new() };
                    (Verdict::Open, format!("{falls} That is less than a third of its factor.{early}{small}"))
                } else if runs.is_own_best(Effect::Lower) {
                    let further = rounded(new.avg / own.avg.max(1e-9));
                    let why = format!("{falls} With {OWN} it is 1/{further} of {NEW}'s.{early}");
                    (Verdict::Beaten, why)
                } else {
                    (Verdict::Confirmed, falls + &early)
                }
            }
        }
    }

    /// The table that has the marks of runs that ended early.
    fn marked<'a>(&self, report: &'a StudyReport) -> Option<&'a Table> {
        report.table(self.table).filter(|_| self.labels.is_empty())
    }

    /// Why a run that ended early leaves the claim open, if it does.
    fn cut(&self, report: &StudyReport) -> Option<String> {
        let table = self.marked(report)?;
        if comparable(table, &[OLD, NEW]) {
            return None;
        }
        let policy = if ended_early(table, OLD) { OLD } else { NEW };
        let part = table.id.rsplit('-').next()?;
        let calls =
            report.table(&format!("hits-{part}")).map_or_else(String::new, |hits| calls(hits, policy));
        let mut why = format!(
            "{policy} ended early{calls}, because its scans had reached the limit of visits. The rest of the \
             run may have a longer scan, so the two do not compare."
        );
        if let Some([old, new]) = most_visits(table) {
            why += &format!(
                " In what was run, a scan of {OLD} visited at most {} entries and inodes, a scan of {NEW} at \
                 most {}.",
                grouped(old),
                grouped(new)
            );
        }
        Some(why)
    }

    /// " baseline's mean is of 174 scans: ...", if a run ended early and its mean is compared.
    fn means_until_then(&self, report: &StudyReport) -> String {
        let Some(table) = self.marked(report) else { return String::new() };
        let early = [OLD, NEW].into_iter().filter(|policy| ended_early(table, policy));
        let sentences = early.map(|policy| {
            let scans = table.extra(&[policy], "scans").unwrap_or_default();
            format!(" {policy} ended early: its mean is of the {} scans until then.", grouped(scans))
        });
        sentences.collect()
    }

    /// Our runs show no difference. `its`: what those of the posting show.
    fn noise(&self, report: &StudyReport, runs: usize, its: Option<Effect>) -> String {
        let its = match its {
            Some(Effect::None) => "Neither our runs nor those of the posting show",
            _ => "Unlike those of the posting, our runs do not show",
        };
        let mut why = format!("{its} a difference at 95 % confidence ({runs} runs of each policy).");
        if let Some([old, new]) = self.marked(report).and_then(most_visits) {
            why += &format!(
                " By count, the longest scan visits {} entries and inodes with {OLD}, {} with {NEW}.",
                grouped(old),
                grouped(new)
            );
        }
        why
    }

    /// Why scans are longer, as far as the tables show it: what a scan reclaims and visits, and the hits.
    fn cost(&self, report: &StudyReport, runs: &Runs) -> String {
        let Some(table) = self.marked(report) else { return String::new() };
        let of = |policy: &str, avg_us: f64| {
            let visits = table.extra(&[policy], "visited")?;
            let reclaimed = table.extra(&[policy], "reclaimed")? / table.extra(&[policy], "scans")?;
            Some((rounded(reclaimed), rounded(visits), rounded(avg_us * 1e3 / visits)))
        };
        let mut why = String::new();
        if let (Some(old), Some(new)) = (of(OLD, runs.old.avg), of(NEW, runs.new.avg)) {
            let reclaims = match old.0 == new.0 {
                true => format!("A scan of either reclaims {} entries", old.0),
                false => format!("A scan reclaims {} entries with {OLD}, {} with {NEW}", old.0, new.0),
            };
            why += &format!(
                " {reclaims}. To find them, {OLD} visits {} entries and inodes at {} ns each, {NEW} {} at \
                 {} ns each.",
                old.1, old.2, new.1, new.2
            );
        }
        let part = table.id.rsplit('-').next().unwrap_or_default();
        let hits = report.table(&format!("hits-{part}"));
        let ratio = |policy: &str| hits?.extra(&[policy], "hit ratio");
        if let (Some(old), Some(new)) = (ratio(OLD), ratio(NEW)) {
            why += &format!(" The hit ratio is {} with {OLD}, {} with {NEW}.", percent(old), percent(new));
        }
        why
    }
}

/// The most that a scan visits, with baseline and es-gc. It is counted, so it is the same in every run.
fn most_visits(table: &Table) -> Option<[f64; 2]> {
    Some([table.extra(&[OLD], "most visits")?, table.extra(&[NEW], "most visits")?])
}

/// `42 %`.
fn percent(ratio: f64) -> String {
    format!("{:.0} %", ratio * 100.0)
}

/// A claim on hits. All complete runs of a case make the same calls, so their hits compare.
fn hits(report: &StudyReport, claim: &str, id: &str) -> Claim {
    let posted = posted(report, id);
    let table = report.table(id);
    let shown = |policy: &str| {
        let (hits, misses) = (table?.ours(&[policy])?.avg, table?.extra(&[policy], "misses")?);
        Some(format!("{policy} {} of {}", grouped(hits), grouped(hits + misses)))
    };
    let shown: Vec<String> = [OLD, NEW, OWN].into_iter().filter_map(shown).collect();
    let (verdict, why) = table.zip(Runs::of(report, id, &[])).map_or_else(
        || (Verdict::Open, "A policy was not measured.".to_owned()),
        |(table, runs)| verdict_on_hits(table, &runs, posted.as_ref()),
    );
    Claim {
        claim: claim.to_owned(),
        posting: posted_text(posted.as_ref(), " hits"),
        ours: format!("{} lookups hit", shown.join(", ")),
        kernel: None,
        verdict,
        why,
        tables: vec![id.to_owned()],
    }
}

fn verdict_on_hits(table: &Table, runs: &Runs, posted: Option<&[Summary; 2]>) -> Judged {
    let ratio = |policy: &str| table.extra(&[policy], "hit ratio").map_or("unknown".to_owned(), percent);
    let [old, new, own] = [OLD, NEW, OWN].map(ratio);
    if !comparable(table, &[OLD, NEW]) {
        let policy = if ended_early(table, OLD) { OLD } else { NEW };
        let why = format!(
            "{policy} ended early{}, because its scans had reached the limit of visits. So its hits do not \
             compare with those of a complete run. In what was run, the hit ratio is {old} with {OLD}, {new} \
             with {NEW}.",
            calls(table, policy)
        );
        return (Verdict::Open, why);
    }
    let ratios = format!("The hit ratio is {old} with {OLD}, {new} with {NEW}, {own} with {OWN}.");
    let its = posted.filter(|[old, _]| old.avg > 0.0 && runs.old.avg > 0.0).map_or(String::new(), |its| {
        let [ours, its] = [[runs.old.avg, runs.new.avg], its.map(|its| its.avg)];
        format!(
            " The number of hits {}; in the posting it {}.",
            factor(ours[0], ours[1]),
            factor(its[0], its[1])
        )
    });
    let why = ratios + &its;
    match effect(&runs.new, &runs.old) {
        None => (Verdict::Open, "Single runs have no confidence interval.".to_owned()),
        Some(Effect::Lower | Effect::None) => (Verdict::Refuted, why),
        Some(Effect::Higher) if runs.is_own_best(Effect::Higher) && comparable(table, &[OWN]) => {
            (Verdict::Beaten, why)
        }
        Some(Effect::Higher) => (Verdict::Confirmed, why),
    }
}

impl Same {
    fn judge(&self, report: &StudyReport) -> Claim {
        let mut tables = vec![self.table.to_owned()];
        let (mut ours, mut bare, mut its, mut changes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (name, labels, posting) in self.parts {
            tables.push((*posting).to_owned());
            let change = |old: &Summary, new: &Summary| {
                let change = Change::between(new, old, OLD);
                (format!("{name} {}", interval(&change)), change)
            };
            if let Some(Runs { old, new, .. }) = Runs::of(report, self.table, labels) {
                let (text, change) = change(&old, &new);
                ours.push(text);
                changes.push((*name, change));
            }
            let without = report.table(posting).filter(|table| comparable(table, &[OLD, NEW]));
            bare.extend(
                without.and_then(|_| Runs::of(report, posting, &[])).map(|of| change(&of.old, &of.new).0),
            );
            its.extend(posted(report, posting).map(|[old, new]| change(&old, &new).0));
        }
        let (verdict, why) = self.verdict(&changes);
        Claim {
            claim: self.claim.to_owned(),
            posting: its.join(", "),
            ours: match (ours.is_empty(), bare.is_empty()) {
                (true, _) => "not measured".to_owned(),
                (_, true) => format!("on files: {}", ours.join(", ")),
                _ => format!("on files: {}; calls without I/O: {}", ours.join(", "), bare.join(", ")),
            },
            kernel: None,
            verdict,
            why,
            tables,
        }
    }

    fn verdict(&self, changes: &[(&str, Change)]) -> Judged {
        let limit = OUTSTANDING_PERCENT;
        if changes.len() < self.parts.len() {
            return (Verdict::Open, "Not measured on files.".to_owned());
        }
        let (mut same, mut different, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
        for (name, change) in changes {
            let half = change.plus_minus_percent.unwrap_or(f64::INFINITY);
            match change.percent.abs() {
                size if size + half < limit => same.push(*name),
                size if size - half > 0.0 && size > limit => different.push(*name),
                _ => unknown.push(*name),
            }
        }
        let mut why = Vec::new();
        if !same.is_empty() {
            let names = listed(&same);
            why.push(format!("The change is less than {limit} % at 95 % confidence in {names}."));
        }
        if !different.is_empty() {
            why.push(format!("The change is more than {limit} % in {}.", listed(&different)));
        }
        if !unknown.is_empty() {
            let names = listed(&unknown);
            why.push(format!(
                "The change is undecided in {names}, where the interval reaches beyond {limit} %."
            ));
        }
        why.push(
            "The verdict is on calls on files, because the posting's calls include their I/O, too."
                .to_owned(),
        );
        let verdict = match (different.is_empty(), unknown.is_empty()) {
            (false, _) => Verdict::Refuted,
            (true, true) => Verdict::Confirmed,
            (true, false) => Verdict::Open,
        };
        (verdict, why.join(" "))
    }
}

/// "a, b and c".
fn listed(names: &[&str]) -> String {
    match names {
        [most @ .., last] if !most.is_empty() => format!("{} and {last}", most.join(", ")),
        _ => names.concat(),
    }
}

/// `+3 ± 12 %`; a change that rounds to nothing has no sign.
fn interval(change: &Change) -> String {
    let size = match change.percent.abs() {
        size if size < 0.5 => "0".to_owned(),
        _ => format!("{:+.0}", change.percent),
    };
    change.plus_minus_percent.map_or(format!("{size} %"), |half| format!("{size} ± {half:.0} %"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Better, Machine, Posted, Posting, Row};
    use crate::shrinker::tables::ENDED_EARLY;

    /// A row: policy, our runs, mean and standard deviation of the posting's three runs, extras.
    type Line<'a> = (&'a str, [f64; 3], (f64, f64), &'a [f64]);

    fn table(id: &str, labels: &[&str], extras: &[&str], lines: &[Line<'_>]) -> Table {
        let rows = lines.iter().map(|(policy, runs, (avg, stddev), extras)| Row {
            posting: Some(Posted { runs: Some(3), avg: *avg, stddev: Some(*stddev), ..Posted::default() }),
            extras: extras.iter().copied().map(Some).collect(),
            ..Row::ours(&[labels, &[policy]].concat(), runs)
        });
        Table {
            id: id.to_owned(),
            title: String::new(),
            in_posting: true,
            quantity: String::new(),
            unit: String::new(),
            better: Better::Lower,
            labels: Vec::new(),
            extras: extras.iter().map(|&head| head.to_owned()).collect(),
            rows: rows.collect(),
            note: String::new(),
        }
    }

    fn report(scale: f64, tables: Vec<Table>) -> StudyReport {
        StudyReport {
            study: "shrinker".to_owned(),
            question: String::new(),
            posting: Posting { subject: String::new(), date: String::new(), machine: String::new() },
            command: String::new(),
            machine: Machine { cpus: 2, model: String::new(), memory_bytes: 0, kernel: String::new() },
            parameters: [("scale".to_owned(), scale.to_string())].into(),
            seconds: 0.0,
            tables,
            plots: Vec::new(),
            claims: Vec::new(),
        }
    }

    /// The claim whose first table has this id.
    fn judged(report: &StudyReport, id: &str) -> Judged {
        let claim = claims(report).into_iter().find(|claim| claim.tables[0] == id).unwrap();
        (claim.verdict, claim.why)
    }

    /// The claim on the mean scan of case (a); the posting's falls from 1000 to 10.
    fn on_mean(scale: f64, old: [f64; 3], new: [f64; 3], own: [f64; 3]) -> Judged {
        let lines: [Line<'_>; 3] =
            [(OLD, old, (1000.0, 10.0), &[]), (NEW, new, (10.0, 1.0), &[]), (OWN, own, (0.0, 0.0), &[])];
        judged(&report(scale, vec![table("scan-avg-a", &[], &[], &lines)]), "scan-avg-a")
    }

    #[test]
    fn a_shorter_time_needs_a_third_of_the_factor() {
        let (slow, fast) = ([99.0, 100.0, 101.0], [1.9, 2.0, 2.1]);
        assert_eq!(
            on_mean(1.0, slow, fast, fast),
            (
                Verdict::Confirmed,
                "The mean scan falls to 1/50 of baseline's; in the posting it falls to 1/100.".to_owned()
            )
        );
        let (verdict, why) = on_mean(1.0, slow, fast, [0.5, 0.5, 0.5]);
        assert!(
            verdict == Verdict::Beaten && why.ends_with("With es-chunk it is 1/4.0 of es-gc's."),
            "{why}"
        );
        let (verdict, why) = on_mean(1.0, slow, [49.0, 50.0, 51.0], fast);
        assert!(verdict == Verdict::Open && why.contains("less than a third"), "{why}");
        // The opposite: refuted at the posting's size only.
        assert_eq!(on_mean(1.0, fast, slow, fast).0, Verdict::Refuted);
        assert_eq!(on_mean(0.05, fast, slow, fast).0, Verdict::Open);
    }

    #[test]
    fn noise_leaves_a_claim_open() {
        let noise = [10.0, 100.0, 50.0];
        let (verdict, why) = on_mean(1.0, noise, [20.0, 90.0, 70.0], noise);
        assert_eq!(verdict, Verdict::Open);
        assert!(why.starts_with("Unlike those of the posting, our runs do not show"), "{why}");
        let lines: [Line<'_>; 3] = [
            (OLD, noise, (1000.0, 900.0), &[5172.0]),
            (NEW, noise, (500.0, 400.0), &[290.0]),
            (OWN, noise, (0.0, 0.0), &[66.0]),
        ];
        let report = report(1.0, vec![table("scan-max-c", &[], &["most visits"], &lines)]);
        assert_eq!(
            judged(&report, "scan-max-c"),
            (
                Verdict::Open,
                "Neither our runs nor those of the posting show a difference at 95 % confidence (3 runs of \
                 each policy). By count, the longest scan visits 5172 entries and inodes with baseline, 290 \
                 with es-gc."
                    .to_owned()
            )
        );
        let posting =
            &claims(&report).into_iter().find(|claim| claim.tables[0] == "scan-max-c").unwrap().posting;
        assert_eq!(posting, "baseline 1000 us, es-gc 500 us; no difference at 95 %");
    }

    #[test]
    fn a_run_that_ended_early_proves_no_hits_and_no_longest_scan() {
        let tables = |cut: f64| {
            let lines: [Line<'_>; 3] = [
                (OLD, [9.0, 9.0, 9.0], (100.0, 1.0), &[200.0, 0.1, 50.0, 174.0, 1000.0, cut]),
                (NEW, [1.0, 1.0, 1.0], (10.0, 1.0), &[0.0, 1.0, 200.0, 900.0, 134.0, 0.0]),
                (OWN, [1.0, 1.0, 1.0], (0.0, 0.0), &[0.0, 1.0, 200.0, 900.0, 99.0, 0.0]),
            ];
            let extras = ["misses", "hit ratio", "calls", "scans", "most visits", ENDED_EARLY];
            let ids = ["scan-avg-b", "scan-max-b", "hits-b"];
            report(1.0, ids.map(|id| table(id, &[], &extras, &lines)).to_vec())
        };
        let (complete, cut) = (tables(0.0), tables(1.0));
        for id in ["scan-avg-b", "scan-max-b"] {
            assert_eq!(judged(&complete, id).0, Verdict::Confirmed);
        }
        // Fewer hits.
        assert_eq!(judged(&complete, "hits-b").0, Verdict::Refuted);
        let (verdict, why) = judged(&cut, "scan-avg-b");
        assert_eq!(verdict, Verdict::Confirmed);
        assert!(why.ends_with("baseline ended early: its mean is of the 174 scans until then."), "{why}");
        let (verdict, why) = judged(&cut, "scan-max-b");
        assert_eq!(verdict, Verdict::Open);
        assert!(why.starts_with("baseline ended early, after 50 of 200 calls,"), "{why}");
        assert!(
            why.contains("visited at most 1000 entries and inodes, a scan of es-gc at most 134."),
            "{why}"
        );
        let (verdict, why) = judged(&cut, "hits-b");
        assert_eq!(verdict, Verdict::Open);
        assert!(why.ends_with("run, the hit ratio is 10 % with baseline, 100 % with es-gc."), "{why}");
    }

    #[test]
    fn a_longer_scan_is_explained_by_its_visits() {
        let lines: [Line<'_>; 3] = [
            (OLD, [6.0, 6.1, 6.2], (178.0, 10.0), &[10.0, 1280.0, 300.0]),
            (NEW, [19.0, 19.1, 19.2], (69.0, 10.0), &[20.0, 2560.0, 130.0]),
            (OWN, [1.0, 1.0, 1.1], (0.0, 0.0), &[20.0, 2560.0, 7.0]),
        ];
        let extras = ["scans", "reclaimed", "visited [1/scan]"];
        let report = report(1.0, vec![table("scan-avg-c", &[], &extras, &lines)]);
        assert_eq!(
            judged(&report, "scan-avg-c"),
            (
                Verdict::Refuted,
                "The mean scan rises to 3.1 times baseline's; in the posting it falls to 1/2.6. A scan of \
                 either reclaims 128 entries. To find them, baseline visits 300 entries and inodes at 20 ns \
                 each, es-gc 130 at 147 ns each."
                    .to_owned()
            )
        );
    }

    #[test]
    fn about_the_same_needs_narrow_intervals() {
        let verdict = |read: [f64; 3], write: [f64; 3]| {
            let old = [99.0, 100.0, 101.0];
            let rows = |labels: &[&str], new: [f64; 3]| {
                let lines: [Line<'_>; 3] =
                    [(OLD, old, (0.0, 0.0), &[]), (NEW, new, (0.0, 0.0), &[]), (OWN, new, (0.0, 0.0), &[])];
                table("files-max", labels, &[], &lines).rows
            };
            let mut files = table("files-max", &[], &[], &[]);
            files.rows = [rows(&["reader", "read"], read), rows(&["reader", "write"], write)].concat();
            SAME[1].judge(&report(1.0, vec![files]))
        };
        let same = verdict([100.0, 101.0, 102.0], [98.0, 100.0, 101.0]);
        assert_eq!(same.verdict, Verdict::Confirmed, "{}", same.why);
        assert_eq!(same.ours, "on files: reads +1 ± 2 %, writes 0 ± 3 %");
        let noisy = verdict([100.0, 101.0, 102.0], [60.0, 100.0, 140.0]);
        assert_eq!(noisy.verdict, Verdict::Open);
        assert!(noisy.why.contains("The change is undecided in writes,"), "{}", noisy.why);
        assert_eq!(verdict([50.0, 51.0, 52.0], [98.0, 100.0, 101.0]).verdict, Verdict::Refuted);
        assert_eq!(SAME[1].judge(&report(1.0, Vec::new())).verdict, Verdict::Open);
    }
}
