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
//! 3  "cache extent hole ... to improve the cache hit ratio"     PATCH_3
//! 4  "save some scan time ... can be seen in test case (b)"     PATCH_4
//! 5  "speed up the reclaim time ... in test case (a)"           PATCH_5
//! 6  "promote the cache hit ratio ... in test case (c)"         PATCH_6
//! ```
//!
//! The posting's user-space calls wait for a disk. Ours do so in the jobs on real files, so verdicts on
//! user-space latency come from those. The tables `user-avg` and `user-max` time calls without any I/O: their
//! figures are shown beside.

use super::jobs;
use crate::Summary;
use crate::report::{Change, Claim, StudyReport, Table, Verdict};
use crate::shrinker::tables::{
    Effect, by_own_time, calls, comparable, compare, effect, ended_early, figure, grouped, hits_at_most,
    interrupted, longest, rounded, summary,
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
        labels: &["(a)", "write"],
        posting: "user-max-a",
    },
    Shorter {
        claim: "In case (b), es-gc shortens the longest user-space call.",
        pair: SERIES,
        what: LONGEST_CALL,
        table: jobs::IDS[1],
        labels: &["(b)", "write"],
        posting: "user-max-b",
    },
];

/// Claims that es-gc increases the hits, and their tables.
const HITS: [(&str, &str); 3] = [
    ("In case (a), es-gc increases the hits of the cache.", "hits-a"),
    ("In case (b), es-gc increases the hits of the cache.", "hits-b"),
    ("In case (c), es-gc increases the hits of the cache.", "hits-c"),
];

/// Claims on patch 3 and their tables. es-cache is compared with baseline.
const PATCH_3: [(&str, &str); 3] = [
    ("Patch 3: in case (a), es-cache increases the hits of baseline.", "hits-a"),
    ("Patch 3: in case (b), es-cache increases the hits of baseline.", "hits-b"),
    ("Patch 3: in case (c), es-cache increases the hits of baseline.", "hits-c"),
];
const PATCH_4: [Shorter; 2] = [
    Shorter {
        pair: [CACHE, SLIST],
        ..scans("Patch 4: in case (b), es-slist shortens the mean scan of es-cache.", MEAN_SCAN, "scan-avg-b")
    },
    Shorter {
        pair: [CACHE, SLIST],
        ..scans(
            "Patch 4: in case (b), es-slist shortens the longest scan of es-cache.",
            LONGEST_SCAN,
            "scan-max-b",
        )
    },
];
const PATCH_5: [Shorter; 2] = [
    Shorter {
        pair: [SLIST, ILIST],
        ..scans("Patch 5: in case (a), es-ilist shortens the mean scan of es-slist.", MEAN_SCAN, "scan-avg-a")
    },
    Shorter {
        pair: [SLIST, ILIST],
        ..scans(
            "Patch 5: in case (a), es-ilist shortens the longest scan of es-slist.",
            LONGEST_SCAN,
            "scan-max-a",
        )
    },
];
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
            ("(a)", ["(a)", "write"], "user-avg-a"),
            ("(b)", ["(b)", "write"], "user-avg-b"),
            ("(c) reads", ["(c)", "read"], "user-avg-c-read"),
            ("(c) writes", ["(c)", "write"], "user-avg-c-write"),
        ],
    },
    Same {
        claim: "In case (c), the longest user-space call takes about as long with es-gc as with baseline.",
        table: jobs::IDS[1],
        parts: &[
            ("reads", ["(c)", "read"], "user-max-c-read"),
            ("writes", ["(c)", "write"], "user-max-c-write"),
        ],
    },
];

/// All claims but that on the bound.
pub(super) fn claims(report: &StudyReport) -> Vec<Claim> {
    let shorter = SHORTER.iter().map(|claim| claim.judge(report));
    let (scans, latencies) = (shorter.clone().take(6), shorter.skip(6));
    let of_series = HITS.iter().map(|(claim, id)| hits(report, claim, id, SERIES));
    let patch_3 = PATCH_3.iter().map(|(claim, id)| hits(report, claim, id, [OLD, CACHE]));
    let patch_4 = PATCH_4.iter().map(|claim| patch_4(report, claim));
    let patch_5 = PATCH_5.iter().map(|claim| claim.judge(report));
    let patch_6 = hits(report, PATCH_6.0, PATCH_6.1, [ILIST, NEW]);
    let same = SAME.iter().map(|claim| claim.judge(report));
    let of_series = scans.chain(of_series).chain(latencies).chain(same);
    of_series.chain(patch_3).chain(patch_4).chain(patch_5).chain([patch_6]).collect()
}

/// Patch 4 also shortens waits for a lock, which a single worker does not show: its claims cannot be refuted
/// then.
fn patch_4(report: &StudyReport, claim: &Shorter) -> Claim {
    let mut claim = claim.judge(report);
    if report.number("workers") == Some(1.0) {
        claim.why += " The patch shortens waits for a lock, and with one worker no scan waits for one.";
        if claim.verdict == Verdict::Refuted {
            claim.verdict = Verdict::Open;
            claim.why += " So this run does not refute it.";
        }
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
    let percent = rounded((new / old.max(1e-9) - 1.0).abs() * 100.0);
    match (old > new, is_small(old, new)) {
        (true, true) => format!("falls by {least}{percent} %"),
        (true, false) => format!("falls to {most}1/{}", rounded(old / new.max(1e-9))),
        (false, true) => format!("rises by {least}{percent} %"),
        (false, false) => format!("rises to {least}{} times", rounded(new / old.max(1e-9))),
    }
}

/// Whether a change is a matter of per cent.
fn is_small(old: f64, new: f64) -> bool {
    old.max(new) < 1.5 * old.min(new)
}

/// "falls to 1/28 of baseline's", "rises to 3.0 times baseline's", "rises by 33 % from baseline's".
fn factor_of(old: f64, new: f64, is_bound: bool, name: &str) -> String {
    let link = match (is_small(old, new), old > new) {
        (true, _) => " from",
        (false, true) => " of",
        (false, false) => "",
    };
    format!("{}{link} {name}'s", bounded_factor(old, new, is_bound))
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
            kernel: kernel(report, self.table),
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
        let its_noise = match effect(its_new, its_old) {
            Some(Effect::None) => ", which is no difference at 95 %",
            _ => "",
        };
        let is_own_time = self.marked(report).is_some_and(by_own_time);
        let mut why = format!(
            "{} {} {}; in the posting it {}{its_noise}.",
            if is_own_time { "By own time, the" } else { "The" },
            self.what,
            factor_of(runs.old, runs.new, cut.is_some(), old_name),
            factor(its_old.avg, its_new.avg)
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
            Effect::None if is_own_time => {
                why += " The runs themselves show no difference at 95 %, and own times, which have no \
                         interval, decide alone from a factor of 2 on.";
                (Verdict::Open, why + &counts)
            }
            Effect::None => (Verdict::Open, noise(runs.count, effect(its_new, its_old)) + &counts),
            Effect::Higher if is_small => (Verdict::Open, why + &small + &counts),
            Effect::Higher => (Verdict::Refuted, why + &self.cost(report, runs) + &counts),
            Effect::Lower => {
                let share = (runs.old / runs.new.max(1e-9)) / (its_old.avg / its_new.avg.max(1e-9));
                let early = self.by_patch_3(report, runs) + &self.means_until_then(report) + &counts;
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

    /// That patch 3 alone shortens the mean scan as much, and what patches 4 to 6 make of it.
    fn by_patch_3(&self, report: &StudyReport, runs: &Runs) -> String {
        let table = self.marked(report).filter(|_| self.what == MEAN_SCAN && self.pair == SERIES);
        let mean = |policy: &str| table?.ours(&[policy]).map(|runs| runs.avg);
        let all = mean(CACHE).zip(mean(SLIST)).zip(mean(ILIST));
        let Some(((cache, slist), ilist)) = all.filter(|((cache, _), _)| *cache < runs.new) else {
            return String::new();
        };
        format!(
            " Patch 3 alone does it here: {} us with {CACHE}. With patches 4, 5 and 6 it is {}, {} and {} \
             us.",
            rounded(cache),
            rounded(slist),
            rounded(ilist),
            rounded(runs.new)
        )
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
                " {reclaims}. For that, {new_name} visits {} entries and inodes, {old_name} {}; a visit \
                 takes {} ns with {new_name}, {} ns with {old_name}.",
                new.1, old.1, new.2, old.2
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
        why
    }
}

/// Our runs show no difference. `its`: what those of the posting show.
fn noise(runs: usize, its: Option<Effect>) -> String {
    let its = match its {
        Some(Effect::None) => "Neither our runs nor those of the posting show",
        _ => "Unlike those of the posting, our runs do not show",
    };
    format!("{its} a difference at 95 % confidence ({runs} runs of each policy).")
}

/// The kernel's column of a claim on calls on files.
fn kernel(report: &StudyReport, table: &str) -> Option<String> {
    let is_measured = report.table(table)?.rows.iter().any(|row| row.kernel.is_some());
    is_measured.then(|| NOT_COMPARABLE.to_owned())
}

const NOT_COMPARABLE: &str = "measured, not comparable: its cache has all memory";

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
            kernel: kernel(report, self.table),
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

/// A claim on hits. All complete runs of a case make the same calls, so their hits compare.
fn hits(report: &StudyReport, claim: &str, id: &str, pair: Pair) -> Claim {
    let posted = posted(report, id, pair);
    let table = report.table(id);
    let shown = |policy: &str| {
        let (hits, misses) = (table?.ours(&[policy])?.avg, table?.extra(&[policy], "misses")?);
        Some(format!("{policy} {} of {}", grouped(hits), grouped(hits + misses)))
    };
    let own = (pair == SERIES).then_some(OWN);
    let shown: Vec<String> = pair.into_iter().chain(own).filter_map(shown).collect();
    let (verdict, why) = table.zip(Runs::of(report, id, &[], pair)).map_or_else(
        || (Verdict::Open, "A policy was not measured.".to_owned()),
        |(table, runs)| verdict_on_hits(table, &runs, pair, posted.as_ref()),
    );
    Claim {
        claim: claim.to_owned(),
        posting: posted_text(posted.as_ref(), pair, " hits"),
        ours: format!("{} lookups hit", shown.join(", ")),
        kernel: None,
        verdict,
        why,
        tables: vec![id.to_owned()],
    }
}

fn verdict_on_hits(table: &Table, runs: &Runs, pair: Pair, posted: Option<&[Summary; 2]>) -> Judged {
    let ratio = |policy: &str| table.extra(&[policy], "hit ratio").map_or("unknown".to_owned(), percent);
    let own = (pair == SERIES).then_some(OWN);
    let ratios = pair.into_iter().chain(own).map(|policy| format!("{} with {policy}", ratio(policy)));
    let mut why = format!("The hit ratio is {}.", ratios.collect::<Vec<_>>().join(", "));
    if let Some(cut) = pair.into_iter().find(|policy| !comparable(table, &[policy])) {
        why = in_part(table, runs, pair, cut) + &why.replace("The hit", " In what was run, the hit");
    } else if let Some(its) = posted.filter(|[old, _]| old.avg > 0.0 && runs.old > 0.0) {
        let its_factor = factor(its[0].avg, its[1].avg);
        why +=
            &format!(" The number of hits {}; in the posting it {its_factor}.", factor(runs.old, runs.new));
        why += &of_reader(table, runs, pair, its);
    }
    match runs.effect {
        None if comparable(table, &pair) => {
            (Verdict::Open, "Single runs have no confidence interval.".to_owned())
        }
        None => (Verdict::Open, why),
        Some(Effect::Lower | Effect::None) => (Verdict::Refuted, why),
        Some(Effect::Higher) if runs.own_effect == Some(Effect::Higher) => (Verdict::Beaten, why),
        Some(Effect::Higher) => (Verdict::Confirmed, why),
    }
}

/// What the run of `cut`, which ended early, decides.
fn in_part(table: &Table, runs: &Runs, [old, new]: Pair, cut: &str) -> String {
    let ended = format!("{cut} ended early{}", calls(table, cut));
    let (whole, hits) = if cut == old { (new, runs.new) } else { (old, runs.old) };
    let most = hits_at_most(table, cut, whole).zip(table.extra(&[cut], "misses"));
    match most.filter(|_| runs.effect.is_some() && !ended_early(table, whole)) {
        Some((most, misses)) => format!(
            "{ended}, with {} misses. Even if all its other lookups hit, it has at most {} hits, fewer than \
             the {} of {whole}.",
            grouped(misses),
            grouped(most),
            grouped(hits)
        ),
        None => {
            let so_far = table.ours(&[cut]).map_or(0.0, |runs| runs.avg);
            let most = hits_at_most(table, cut, whole).unwrap_or_default();
            format!(
                "{ended}, because its scans had reached the limit of visits. Complete it would have {} to \
                 {} hits; {whole} has {}.",
                grouped(so_far),
                grouped(most),
                grouped(hits)
            )
        }
    }
}

/// Which lookups the hits are, in a case with a reader. Every second call is the reader's; each call looks up
/// once.
fn of_reader(table: &Table, runs: &Runs, [old, new]: Pair, [its_old, its_new]: &[Summary; 2]) -> String {
    let ratio = |policy: &str| table.extra(&[policy], "reader's");
    let reads = table.extra(&[old], "calls").unwrap_or_default() / 2.0;
    let (Some(old_ratio), Some(new_ratio)) = (ratio(old), ratio(new)) else { return String::new() };
    let mut text = String::new();
    let by_reader = [old_ratio, new_ratio].map(|ratio| ratio * reads);
    let (added, by_writers) = (runs.new - runs.old, runs.new - by_reader[1] - (runs.old - by_reader[0]));
    if old == OLD && by_writers > added / 2.0 {
        text += &format!(
            " Of the {} hits that {new} adds, {} are lookups of the writers, which find the holes that patch \
             3 caches.",
            grouped(added),
            grouped(by_writers)
        );
    }
    let is_less = runs.new / runs.old < its_new.avg / its_old.avg;
    if old == OLD && is_less && by_reader[0] > runs.old / 2.0 {
        text += &format!(
            " The factor is below the posting's because the reader's lookups hit with {old}, too: {}; the \
             posting's {old} has {} hits in all.",
            grouped(by_reader[0]),
            grouped(its_old.avg)
        );
    }
    let policies: &[&str] = if old == OLD { &[OLD, SLIST, NEW, OWN] } else { &[old, new] };
    let shown =
        policies.iter().filter_map(|policy| Some(format!("{} with {policy}", percent(ratio(policy)?))));
    text += &format!(" The reader's hit ratio is {}", shown.collect::<Vec<_>>().join(", "));
    match ratio(SLIST).filter(|_| old == OLD && comparable(table, &[SLIST])) {
        Some(slist) if slist < old_ratio && slist < new_ratio => {
            text + ": patch 6 (es-gc) restores what round robin, patch 4 (es-slist), loses."
        }
        _ => text + ".",
    }
}

#[cfg(test)]
mod tests;
