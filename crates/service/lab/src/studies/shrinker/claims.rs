//! The claims of the posting's conclusion, and their verdicts by the tables.
//!
//! ```text
//! "the max scan time and avg. scan time can be improved"        SHORTER, tables scan-avg and scan-max
//! "the cache hit ratio is also increased"                       HITS
//! "the max latency of test case (a) and (b) can be improved"    SHORTER, table files-max
//! "Others are not outstanding"                                  SAME, tables files-avg and files-max
//! ```
//!
//! And those of its description of patches 3 to 6, each compared with the policy before it:
//!
//! ```text
//! 3  "cache extent hole ... to improve the cache hit ratio"     ratios
//! 4  "save some scan time ... can be seen in test case (b)"     PATCH_4
//! 5  "speed up the reclaim time ... in test case (a)"           PATCH_5
//! 6  "promote the cache hit ratio ... in test case (c)"         PATCH_6
//! ```
//!
//! The posting's user-space calls wait for a disk. Ours do so in the jobs on real files, so verdicts on
//! user-space latency come from those. The tables `user-avg` and `user-max` time calls without any I/O: their
//! figures are shown beside.

use super::hits::{hits, ratios};
use super::jobs;
use crate::Summary;
use crate::report::{Change, Claim, StudyReport, Table, Verdict};
use crate::shrinker::tables::{
    Effect, by_own_time, calls, comparable, compare, effect, ended_early, figure, grouped, interrupted,
    longest, rounded, summary,
};

pub(super) const OLD: &str = "baseline";
pub(super) const CACHE: &str = "es-cache";
pub(super) const SLIST: &str = "es-slist";
pub(super) const ILIST: &str = "es-ilist";
pub(super) const NEW: &str = "es-gc";
pub(super) const OWN: &str = "es-chunk";

/// The part of the posting's factor from which on the effect is the same.
const SHARE_MIN: f64 = 1.0 / 3.0;

/// Changes below this are "not outstanding". The posting calls a fall of 21 % an improvement: that of the
/// longest calls in case (a).
const OUTSTANDING_PERCENT: f64 = 20.0;

/// The policies that a claim compares: the old and the new one.
pub(super) type Pair = [&'static str; 2];

/// The claims on all patches together. Only these also compare es-chunk.
pub(super) const SERIES: Pair = [OLD, NEW];

/// A claim that a policy shortens a time.
struct Shorter {
    claim: &'static str,
    pair: Pair,
    /// What gets shorter.
    what: &'static str,
    /// Our figures: a table and the labels before the policy.
    table: &'static str,
    labels: &'static [&'static str],
    /// The table with the posting's figures.
    posting: &'static str,
}

const fn scans(claim: &'static str, what: &'static str, table: &'static str) -> Shorter {
    Shorter { claim, pair: SERIES, what, table, labels: &[], posting: table }
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
        pair: SERIES,
        what: LONGEST_CALL,
        table: jobs::IDS[1],
        labels: &["giant-trees", "write"],
        posting: "user-max-a",
    },
    Shorter {
        claim: "In case (b), es-gc shortens the longest user-space call.",
        pair: SERIES,
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

const PATCH_4: Shorter = Shorter {
    pair: [CACHE, SLIST],
    ..scans("Patch 4: in case (b), es-slist shortens the mean scan of es-cache.", MEAN_SCAN, "scan-avg-b")
};
const PATCH_5: Shorter = Shorter {
    pair: [SLIST, ILIST],
    ..scans("Patch 5: in case (a), es-ilist shortens the mean scan of es-slist.", MEAN_SCAN, "scan-avg-a")
};
/// The claim and its table. es-gc is compared with es-ilist.
const PATCH_6: (&str, &str) = ("Patch 6: in case (c), es-gc increases the hits of es-ilist.", "hits-c");

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
    let of_series = HITS.iter().map(|(claim, id)| hits(report, claim, id, SERIES));
    let of_patches = [
        ratios(report),
        patch_4(report),
        PATCH_5.judge(report),
        hits(report, PATCH_6.0, PATCH_6.1, [ILIST, NEW]),
    ];
    let same = SAME.iter().map(|claim| claim.judge(report));
    scans.chain(of_series).chain(latencies).chain(same).chain(of_patches).collect()
}

/// Patch 4 also shortens waits for a lock, which a single worker does not show.
fn patch_4(report: &StudyReport) -> Claim {
    let mut claim = PATCH_4.judge(report);
    if report.number("workers") == Some(1.0) {
        claim.why += " With one worker no scan waits for a lock; the patch shortens those waits, too.";
    }
    claim
}

/// What our runs show: the verdict, and why.
pub(super) type Judged = (Verdict, String);

/// Our figures of the policies.
pub(super) struct Runs {
    pub(super) old: f64,
    pub(super) new: f64,
    /// Of es-chunk, in claims on the whole series.
    own: Option<f64>,
    /// Runs of each policy.
    count: usize,
    /// How the new policy compares with the old one; none if that is undecided.
    pub(super) effect: Option<Effect>,
    /// How es-chunk compares with the new policy.
    pub(super) own_effect: Option<Effect>,
}

impl Runs {
    /// `None` if a policy was not measured.
    pub(super) fn of(report: &StudyReport, table: &str, labels: &[&str], pair: Pair) -> Option<Self> {
        let table = report.table(table)?;
        let ours = |policy: &str| table.ours(&[labels, &[policy]].concat());
        let value = |policy: &str| match labels.is_empty() {
            true => figure(table, policy),
            false => Some(ours(policy)?.avg),
        };
        let compared = |this: &str, that: &str| match labels.is_empty() {
            true => compare(table, this, that),
            false => effect(&ours(this)?, &ours(that)?),
        };
        let [old, new] = pair;
        let own = if pair == SERIES { Some(value(OWN)?) } else { None };
        Some(Self {
            old: value(old)?,
            new: value(new)?,
            own,
            count: ours(new)?.runs,
            effect: compared(new, old),
            own_effect: own.and_then(|_| compared(OWN, new)),
        })
    }
}

/// Our runs of baseline and es-gc.
fn both(report: &StudyReport, table: &str, labels: &[&str]) -> Option<[Summary; 2]> {
    let table = report.table(table)?;
    let ours = |policy: &str| table.ours(&[labels, &[policy]].concat());
    Some([ours(OLD)?, ours(NEW)?])
}

/// The posting's figures of two policies.
pub(super) fn posted(report: &StudyReport, table: &str, [old, new]: Pair) -> Option<[Summary; 2]> {
    let table = report.table(table)?;
    let its = |policy: &str| Some(summary(table.row(&[policy])?.posting.as_ref()?));
    Some([its(old)?, its(new)?])
}

pub(super) fn posted_text(posted: Option<&[Summary; 2]>, [old_name, new_name]: Pair, unit: &str) -> String {
    let Some([old, new]) = posted else { return "not in this report".to_owned() };
    let noise = match effect(new, old) {
        Some(Effect::None) => "; no difference at 95 %",
        _ => "",
    };
    format!("{old_name} {}{unit}, {new_name} {}{unit}{noise}", grouped(old.avg), grouped(new.avg))
}

/// "falls to 1/28", "rises to 3.0 times".
pub(super) fn factor(old: f64, new: f64) -> String {
    bounded_factor(old, new, false)
}

/// The same. `is_bound`: the factor is at least so large.
fn bounded_factor(old: f64, new: f64, is_bound: bool) -> String {
    let (most, least) = if is_bound { ("at most ", "at least ") } else { ("", "") };
    match old > new {
        true => format!("falls to {most}1/{}", rounded(old / new.max(1e-9))),
        false => format!("rises to {least}{} times", rounded(new / old.max(1e-9))),
    }
}

impl Shorter {
    fn judge(&self, report: &StudyReport) -> Claim {
        let posted = posted(report, self.posting, self.pair);
        let runs = Runs::of(report, self.table, self.labels, self.pair);
        let ours = runs.as_ref().map_or("not measured".to_owned(), |runs| {
            let on = match self.marked(report) {
                Some(table) if by_own_time(table) => "own time: ",
                Some(_) => "",
                None => "on files: ",
            };
            let ([old, new], own) = (self.pair, runs.own.map(|us| (OWN, us)));
            let figures = [(old, runs.old), (new, runs.new)].into_iter().chain(own);
            let figures = figures.map(|(policy, us)| format!("{policy} {} us", grouped(us)));
            format!("{on}{}", figures.collect::<Vec<_>>().join(", "))
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
            posting: posted_text(posted.as_ref(), self.pair, " us"),
            ours,
            kernel: None,
            verdict,
            why,
            tables,
        }
    }

    fn verdict(&self, report: &StudyReport, runs: &Runs, [its_old, its_new]: &[Summary; 2]) -> Judged {
        let [old_name, new_name] = self.pair;
        let cut = self.cut(report);
        let Some(effect_here) = runs.effect else {
            let why = cut.map(|policy| self.undecided(report, policy));
            return (
                Verdict::Open,
                why.unwrap_or_else(|| "Single runs have no confidence interval.".to_owned()),
            );
        };
        let its_factor = factor(its_old.avg, its_new.avg);
        let is_own_time = self.marked(report).is_some_and(by_own_time);
        let mut why = format!(
            "{} {} {} {old_name}'s; in the posting it {its_factor}.",
            if is_own_time { "By own time, the" } else { "The" },
            self.what,
            bounded_factor(runs.old, runs.new, cut.is_some()) + if runs.old > runs.new { " of" } else { "" },
        );
        if let Some(policy) = cut {
            let least = if policy == old_name { runs.old } else { runs.new };
            why += &format!(
                " {policy} ended early{}; its longest scan takes at least the {} us of the part that ran.",
                self.calls(report, policy),
                grouped(least)
            );
        }
        let counts = self.counts(report);
        let scale = report.number("scale").unwrap_or(1.0);
        let is_small = scale < 1.0;
        let small = format!(" The effect grows with the size, and this is scale {scale}.");
        match effect_here {
            Effect::None => {
                (Verdict::Open, self.noise(report, runs.count, effect(its_new, its_old)) + &counts)
            }
            Effect::Higher if is_small => (Verdict::Open, why + &small + &counts),
            Effect::Higher => (Verdict::Refuted, why + &self.cost(report, runs) + &counts),
            Effect::Lower => {
                let share = (runs.old / runs.new.max(1e-9)) / (its_old.avg / its_new.avg.max(1e-9));
                let early = self.means_until_then(report) + &counts;
                if share < SHARE_MIN {
                    let why = match cut {
                        Some(policy) => self.undecided(report, policy),
                        None => {
                            let small = if is_small { small } else { String::new() };
                            format!("{why} That is less than a third of its factor.{early}{small}")
                        }
                    };
                    return (Verdict::Open, why);
                }
                match runs.own.filter(|_| runs.own_effect == Some(Effect::Lower)) {
                    Some(own) => {
                        let what = self.what;
                        let further = rounded(runs.new / own.max(1e-9));
                        (
                            Verdict::Beaten,
                            format!("{why} With {OWN} the {what} is 1/{further} of {new_name}'s.{early}"),
                        )
                    }
                    None => (Verdict::Confirmed, why + &early),
                }
            }
        }
    }

    /// The table that has the marks of runs that ended early.
    fn marked<'a>(&self, report: &'a StudyReport) -> Option<&'a Table> {
        report.table(self.table).filter(|_| self.labels.is_empty())
    }

    /// The policy whose run ended early, if the figure grows with the run.
    fn cut(&self, report: &StudyReport) -> Option<&'static str> {
        let table = self.marked(report).filter(|table| !comparable(table, &self.pair))?;
        self.pair.into_iter().find(|policy| ended_early(table, policy))
    }

    /// ", after 22,272 of 400,000 calls", from the table of hits of the same case.
    fn calls(&self, report: &StudyReport, policy: &str) -> String {
        let part = self.table.rsplit('-').next().unwrap_or_default();
        report.table(&format!("hits-{part}")).map_or_else(String::new, |hits| calls(hits, policy))
    }

    /// Why the run of this policy, which ended early, leaves the claim open.
    fn undecided(&self, report: &StudyReport, policy: &str) -> String {
        let mut why = format!(
            "{policy} ended early{}, because its scans had reached the limit of visits. The rest of the run \
             may have a longer scan, and the part that ran does not decide.",
            self.calls(report, policy)
        );
        why += &self.counts(report);
        why
    }

    /// What the longest scans visit, and an interruption that lengthens one. Empty for means.
    fn counts(&self, report: &StudyReport) -> String {
        let Some(table) = self.marked(report) else { return String::new() };
        let [old, new] = self.pair;
        let most = |policy: &str| table.extra(&[policy], "most visits").map(grouped);
        let mut text = String::new();
        if let (Some(old_most), Some(new_most)) = (most(old), most(new)) {
            text += &format!(
                " By count, a scan visits at most {old_most} entries and inodes with {old}, {new_most} with \
                 {new}."
            );
        }
        if let Some(sentence) = interrupted(table, &[old, new, OWN]) {
            text += &format!(" ({sentence})");
        }
        text
    }

    /// " baseline's mean is of 174 scans: ...", if a run ended early and its mean is compared.
    fn means_until_then(&self, report: &StudyReport) -> String {
        let Some(table) = self.marked(report).filter(|_| self.what == MEAN_SCAN) else {
            return String::new();
        };
        let early = self.pair.into_iter().filter(|policy| ended_early(table, policy));
        let sentences = early.map(|policy| {
            let scans = table.extra(&[policy], "scans").unwrap_or_default();
            format!(" {policy} ended early: its mean is of the {} scans until then.", grouped(scans))
        });
        sentences.collect()
    }

    /// Our runs show no difference. `its`: what those of the posting show.
    fn noise(&self, report: &StudyReport, runs: usize, its: Option<Effect>) -> String {
        if self.marked(report).is_some_and(by_own_time) {
            return "The own times of the longest scans differ by less than 20 %.".to_owned();
        }
        let its = match its {
            Some(Effect::None) => "Neither our runs nor those of the posting show",
            _ => "Unlike those of the posting, our runs do not show",
        };
        format!("{its} a difference at 95 % confidence ({runs} runs of each policy).")
    }

    /// Why scans are longer, as far as the tables show it: what a scan reclaims and visits, and the hits.
    fn cost(&self, report: &StudyReport, runs: &Runs) -> String {
        let Some(table) = self.marked(report) else { return String::new() };
        let [old_name, new_name] = self.pair;
        let of = |policy: &str, avg_us: f64| {
            let visits = table.extra(&[policy], "visited")?;
            let reclaimed = table.extra(&[policy], "reclaimed")? / table.extra(&[policy], "scans")?;
            Some((rounded(reclaimed), rounded(visits), rounded(avg_us * 1e3 / visits)))
        };
        let mut why = String::new();
        if let (Some(old), Some(new)) = (of(old_name, runs.old), of(new_name, runs.new)) {
            let reclaims = match old.0 == new.0 {
                true => format!("A scan of either reclaims {} entries", old.0),
                false => {
                    format!("A scan reclaims {} entries with {old_name}, {} with {new_name}", old.0, new.0)
                }
            };
            why += &format!(
                " {reclaims}. To find them, {old_name} visits {} entries and inodes at {} ns each, \
                 {new_name} {} at {} ns each.",
                old.1, old.2, new.1, new.2
            );
        }
        let own = |policy: &str| {
            let own = longest(table, policy)?;
            Some((grouped(own.visits), rounded(own.us * 1e3 / own.visits)))
        };
        if let (Some(old), Some(new)) = (own(old_name), own(new_name)) {
            why += &format!(
                " The longest scan by own time visits {} entries and inodes at {} ns each with {old_name}, \
                 {} at {} ns each with {new_name}.",
                old.0, old.1, new.0, new.1
            );
        }
        let part = table.id.rsplit('-').next().unwrap_or_default();
        let hits = report.table(&format!("hits-{part}"));
        let ratio = |policy: &str| hits?.extra(&[policy], "hit ratio");
        if let (Some(old), Some(new)) = (ratio(old_name), ratio(new_name)) {
            why += &format!(
                " The hit ratio is {} with {old_name}, {} with {new_name}.",
                percent(old),
                percent(new)
            );
        }
        why
    }
}

/// `42 %`.
pub(super) fn percent(ratio: f64) -> String {
    format!("{:.0} %", ratio * 100.0)
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
            if let Some([old, new]) = both(report, self.table, labels) {
                let (text, change) = change(&old, &new);
                ours.push(text);
                changes.push((*name, change));
            }
            let without = report.table(posting).filter(|table| comparable(table, &[OLD, NEW]));
            bare.extend(
                without.and_then(|_| both(report, posting, &[])).map(|[old, new]| change(&old, &new).0),
            );
            its.extend(posted(report, posting, SERIES).map(|[old, new]| change(&old, &new).0));
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
pub(super) fn listed(names: &[&str]) -> String {
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
            verdict == Verdict::Beaten && why.ends_with("With es-chunk the mean scan is 1/4.0 of es-gc's."),
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
                 each policy). By count, a scan visits at most 5172 entries and inodes with baseline, 290 \
                 with es-gc."
                    .to_owned()
            )
        );
        let posting =
            &claims(&report).into_iter().find(|claim| claim.tables[0] == "scan-max-c").unwrap().posting;
        assert_eq!(posting, "baseline 1000 us, es-gc 500 us; no difference at 95 %");
    }

    #[test]
    fn a_run_that_ended_early_decides_if_its_part_is_worse() {
        let tables = |cut: f64, new: f64, hits: f64| {
            let extras = ["misses", "hit ratio", "calls", "scans", "most visits", ENDED_EARLY];
            let lines = |old: f64, new: f64, own: f64| -> [Line<'_>; 3] {
                const EXTRAS: [[f64; 6]; 4] = [
                    [41.0, 0.1, 50.0, 174.0, 1000.0, 0.0],
                    [41.0, 0.1, 50.0, 174.0, 1000.0, 1.0],
                    [0.0, 1.0, 200.0, 900.0, 134.0, 0.0],
                    [0.0, 1.0, 200.0, 900.0, 99.0, 0.0],
                ];
                [
                    (OLD, [old; 3], (100.0, 1.0), &EXTRAS[if cut == 1.0 { 1 } else { 0 }]),
                    (NEW, [new; 3], (10.0, 1.0), &EXTRAS[2]),
                    (OWN, [own; 3], (0.0, 0.0), &EXTRAS[3]),
                ]
            };
            let scans = ["scan-avg-b", "scan-max-b"].map(|id| table(id, &[], &extras, &lines(9.0, new, new)));
            let hits = table("hits-b", &[], &extras, &lines(9.0, hits, hits));
            report(1.0, scans.into_iter().chain([hits]).collect())
        };
        let (complete, cut) = (tables(0.0, 1.0, 1.0), tables(1.0, 1.0, 200.0));
        for id in ["scan-avg-b", "scan-max-b"] {
            assert_eq!(judged(&complete, id).0, Verdict::Confirmed);
        }
        // Fewer hits.
        assert_eq!(judged(&complete, "hits-b").0, Verdict::Refuted);
        let (verdict, why) = judged(&cut, "scan-avg-b");
        assert_eq!(verdict, Verdict::Confirmed);
        assert!(why.contains("baseline ended early: its mean is of the 174 scans until then."), "{why}");
        assert_eq!(
            judged(&cut, "scan-max-b"),
            (
                Verdict::Confirmed,
                "The longest scan falls to at most 1/9.0 of baseline's; in the posting it falls to 1/10. \
                 baseline ended early, after 50 of 200 calls; its longest scan takes at least the 9.0 us of \
                 the part that ran. By count, a scan visits at most 1000 entries and inodes with baseline, \
                 134 with es-gc."
                    .to_owned()
            )
        );
        assert_eq!(
            judged(&cut, "hits-b"),
            (
                Verdict::Confirmed,
                "baseline ended early, after 50 of 200 calls, with 41 misses. Even if all its other lookups \
                 hit, it has at most 159 hits, fewer than the 200 of es-gc. In what was run, the hit ratio \
                 is 10 % with baseline, 100 % with es-gc, 100 % with es-chunk."
                    .to_owned()
            )
        );
        // The rest of the run may have a scan longer than 10 us.
        let undecided = tables(1.0, 10.0, 200.0);
        let (verdict, why) = judged(&undecided, "scan-max-b");
        assert_eq!(verdict, Verdict::Open);
        assert!(
            why.starts_with("baseline ended early, after 50 of 200 calls, because its scans had"),
            "{why}"
        );
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

    /// Of 100 calls every second is the reader's. The writers' 50 lookups miss with baseline and hit with
    /// es-gc.
    #[test]
    fn added_hits_are_split_into_those_of_writers_and_reader() {
        let extras = ["misses", "hit ratio", "reader's", "calls"];
        let lines: [Line<'_>; 4] = [
            (OLD, [40.0; 3], (1.0, 0.1), &[60.0, 0.4, 0.8, 100.0]),
            (SLIST, [80.0; 3], (90.0, 1.0), &[20.0, 0.8, 0.6, 100.0]),
            (NEW, [95.0; 3], (100.0, 1.0), &[5.0, 0.95, 0.9, 100.0]),
            (OWN, [96.0; 3], (0.0, 0.0), &[4.0, 0.96, 0.92, 100.0]),
        ];
        let report = report(1.0, vec![table("hits-c", &[], &extras, &lines)]);
        assert_eq!(
            judged(&report, "hits-c"),
            (
                Verdict::Beaten,
                "The hit ratio is 40 % with baseline, 95 % with es-gc, 96 % with es-chunk. The number of \
                 hits rises to 2.4 times; in the posting it rises to 100 times. Of the 55 hits that es-gc \
                 adds, 50 are lookups of the writers, which find the holes that patch 3 caches. The factor \
                 is below the posting's because the reader's lookups hit with baseline, too: 40; the \
                 posting's baseline has 1.0 hits in all. The reader's hit ratio is 80 % with baseline, 60 % \
                 with es-slist, 90 % with es-gc, 92 % with es-chunk: patch 6 (es-gc) restores what round \
                 robin, patch 4 (es-slist), loses."
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
