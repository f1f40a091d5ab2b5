//! The tables of the posting, with our figures beside its own.
//!
//! Does **not** own: the figures (see the parent module, and `posted` for those of the posting).
//!
//! Invariants
//! 1. A note is a function of its table, so it can be written again for a table that was measured earlier.
//! 2. A row whose run ended early is marked in its table, in the column [`ENDED_EARLY`]. A table without
//!    such a row lacks the column.

use super::posted::{Metric, posted};
use super::{Case, Report, Row};
use crate::Summary;
use crate::report::{self, Better, Change, Posted, Table};

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

    /// The metric of a table, by its id.
    fn of(table: &Table) -> Option<Self> {
        let has =
            |metric: &Self| table.id.strip_prefix(metric.id()).is_some_and(|part| part.starts_with('-'));
        Self::ALL.into_iter().find(has)
    }

    /// Whether the figure grows with the length of a run: a count, or the longest of many. A mean does not.
    /// Of a run that ended early, such a figure is only a bound.
    fn grows_with_the_run(self) -> bool {
        matches!(self, Self::Hits | Self::ScanMax | Self::UserMax)
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

/// Head of the column that marks a run whose scans visited too much: it ended before its last call.
pub(crate) const ENDED_EARLY: &str = "ended early [1 yes]";

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
    ("own longest [us]", |row| Some(row.scan_longest_us)),
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

/// The posting's mean call, of table 4.
pub(crate) fn posted_avg_of_calls(case: Case, call: &str, policy: &str) -> Option<Posted> {
    posted(Metric::UserAvg, caller(case, call)?, policy)
}

/// The posting's longest call, of table 5.
pub(crate) fn posted_max_of_calls(case: Case, call: &str, policy: &str) -> Option<Posted> {
    posted(Metric::UserMax, caller(case, call)?, policy)
}

/// The key of [`CALLERS`] for the calls `read` or `write` of a case.
fn caller(case: Case, call: &str) -> Option<&'static str> {
    let mut of_case = CALLERS.iter().filter(|part| part.case == case);
    of_case.find(|part| case != Case::Reader || part.key.ends_with(call)).map(|part| part.key)
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
    let mut extras = metric.extras(part.case == Case::Reader).to_vec();
    if rows.iter().any(|row| row.cut) {
        extras.push((ENDED_EARLY, |row| Some(f64::from(u8::from(row.cut)))));
    }
    let baseline = rows.iter().find(|row| row.policy == BASELINE);
    let base = baseline.and_then(|row| value(metric, part.key, row));
    let base_posted = posted(metric, part.key, BASELINE);
    let in_rows = rows.iter().map(|row| {
        let ours = value(metric, part.key, row);
        let is_base = row.policy == BASELINE;
        let comparable = |of: &Row| !metric.grows_with_the_run() || !of.cut;
        let compared = !is_base && comparable(row) && baseline.is_some_and(|row| comparable(row));
        // There is no percentage of nothing.
        let change = ours.zip(base).filter(|(_, base)| compared && base.avg > 0.0);
        let its = posted(metric, part.key, row.policy).filter(|_| with_posting);
        // The mean of a partial run is no figure of the whole.
        let verdict =
            |change: Change| Change { significant: change.significant.filter(|_| !row.cut), ..change };
        report::Row {
            ours,
            change: change.map(|(this, that)| verdict(Change::between(&this, &that, BASELINE))),
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
        title: format!(
            "{}, {}{}",
            metric.title(),
            part.title,
            if matches!(metric, Metric::UserAvg | Metric::UserMax) { ": cache alone, no I/O" } else { "" }
        ),
        in_posting: true,
        quantity: metric.quantity().to_owned(),
        unit: if metric == Metric::Hits { String::new() } else { "us".to_owned() },
        better,
        labels: vec!["policy".to_owned()],
        extras: extras.iter().map(|(head, _)| (*head).to_owned()).collect(),
        rows: in_rows.collect(),
        note: String::new(),
    };
    table.note = note(&table);
    table
}

/// The policy that the posting compares with.
const BASELINE: &str = "baseline";

/// Whether the run of a policy ended early.
pub(crate) fn ended_early(table: &Table, policy: &str) -> bool {
    table.extra(&[policy], ENDED_EARLY) == Some(1.0)
}

/// Whether the figures of these policies are those of complete runs: not if the run of one ended early, and
/// the figure grows with the run. [`compare`] also decides by bounds.
pub(crate) fn comparable(table: &Table, policies: &[&str]) -> bool {
    let grows = Metric::of(table).is_some_and(Metric::grows_with_the_run);
    !grows || !policies.iter().any(|policy| ended_early(table, policy))
}

/// A longest scan by own time: all runs make the same scans, and each scan counts with its shortest time over
/// the runs. So interruptions by the machine are excluded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Longest {
    pub(crate) us: f64,
    /// Entries and inodes that it visited.
    pub(crate) visits: f64,
}

/// `None` if own time is unknown: with a single run, or several workers.
pub(crate) fn longest(table: &Table, policy: &str) -> Option<Longest> {
    let visits = table.extra(&[policy], "its visits")?;
    Some(Longest { us: table.extra(&[policy], "own longest")?, visits })
}

/// Whether the figures of a table are compared by own time.
pub(crate) fn by_own_time(table: &Table) -> bool {
    let mut measured = table.rows.iter().filter(|row| row.ours.is_some()).peekable();
    measured.peek().is_some() && measured.all(|row| longest(table, &row.labels[0]).is_some())
}

/// The figure of a policy that is compared: the mean of the runs, or own time.
pub(crate) fn figure(table: &Table, policy: &str) -> Option<f64> {
    match by_own_time(table) {
        true => longest(table, policy).map(|own| own.us),
        false => table.ours(&[policy]).map(|runs| runs.avg),
    }
}

/// Own times have no confidence interval: they differ from this factor on.
const OWN_TIME_FACTOR: f64 = 2.0;

/// From this factor on they differ if the runs differ at 95 % confidence in the same direction.
const OWN_TIME_FACTOR_IF_RUNS_DIFFER: f64 = 1.2;

/// How the figure of a policy compares with that of another. `None` if single runs or a run that ended early
/// leave that undecided.
///
/// ```text
/// both runs complete    own times differ by a factor, all other figures at 95 % confidence
/// one ended early       a longest time can only grow: decided if it is longer already
///                       each lookup hits or misses: decided if the misses so far leave fewer hits than the
///                       complete run has
/// both ended early      undecided
/// ```
///
/// Means compare as if the runs were complete.
pub(crate) fn compare(table: &Table, this: &str, that: &str) -> Option<Effect> {
    let cut = [this, that].map(|policy| !comparable(table, &[policy]));
    match cut {
        [false, false] => complete(table, this, that),
        [true, false] => bounded(table, this, that),
        [false, true] => bounded(table, that, this).map(Effect::reversed),
        [true, true] => None,
    }
}

fn complete(table: &Table, this: &str, that: &str) -> Option<Effect> {
    if !by_own_time(table) {
        return effect(&table.ours(&[this])?, &table.ours(&[that])?);
    }
    let of_runs = effect(&table.ours(&[this])?, &table.ours(&[that])?);
    let [this, that] = [longest(table, this)?.us, longest(table, that)?.us];
    let by_factor = |factor: f64| match () {
        () if this * factor <= that => Effect::Lower,
        () if this >= that * factor => Effect::Higher,
        () => Effect::None,
    };
    let small = by_factor(OWN_TIME_FACTOR_IF_RUNS_DIFFER);
    Some(if of_runs == Some(small) { small } else { by_factor(OWN_TIME_FACTOR) })
}

/// Compares a policy whose run ended early with one whose run is complete.
fn bounded(table: &Table, cut: &str, whole: &str) -> Option<Effect> {
    if Metric::of(table) == Some(Metric::Hits) {
        let least = table.ours(&[whole])?.min;
        return (hits_at_most(table, cut, whole)? < least).then_some(Effect::Lower);
    }
    complete(table, cut, whole).filter(|effect| *effect == Effect::Higher)
}

/// The most hits that the run of `cut` can have when it is complete: it then makes as many lookups as that of
/// `whole`, and its misses so far remain misses.
pub(crate) fn hits_at_most(table: &Table, cut: &str, whole: &str) -> Option<f64> {
    let lookups = table.ours(&[whole])?.avg + table.extra(&[whole], "misses")?;
    Some(lookups - table.extra(&[cut], "misses")?)
}

/// How a figure compares with another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    Lower,
    /// No difference is shown.
    None,
    Higher,
}

impl Effect {
    fn reversed(self) -> Self {
        match self {
            Self::Lower => Self::Higher,
            Self::None => Self::None,
            Self::Higher => Self::Lower,
        }
    }
}

/// The difference at 95 % confidence. `None` for single runs: they have no confidence interval.
pub(crate) fn effect(this: &Summary, that: &Summary) -> Option<Effect> {
    Some(match Change::between(this, that, "").significant? {
        false => Effect::None,
        true if this.avg < that.avg => Effect::Lower,
        true => Effect::Higher,
    })
}

/// The posting's figures as a summary of runs.
pub(crate) fn summary(posted: &Posted) -> Summary {
    Summary {
        runs: posted.runs.unwrap_or(1),
        min: posted.min.unwrap_or(posted.avg),
        max: posted.max.unwrap_or(posted.avg),
        median: posted.median.unwrap_or(posted.avg),
        avg: posted.avg,
        stddev: posted.stddev.unwrap_or(0.0),
    }
}

/// A figure with two digits, or all digits before the point.
pub(crate) fn rounded(value: f64) -> String {
    match value.abs() {
        size if size >= 9.95 || size == 0.0 => format!("{value:.0}"),
        size if size >= 0.995 => format!("{value:.1}"),
        size if size >= 0.0995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// [`rounded`], with commas from five digits on: `10,196`.
pub(crate) fn grouped(value: f64) -> String {
    let text = rounded(value);
    if text.len() < 5 || text.contains('.') {
        return text;
    }
    let digits: Vec<char> = text.chars().rev().collect();
    let groups: Vec<String> = digits.chunks(3).map(|group| group.iter().collect()).collect();
    groups.join(",").chars().rev().collect()
}

/// A count, with commas from five digits on.
fn counted(count: f64) -> String {
    if count < 10.0 { format!("{count:.0}") } else { grouped(count) }
}

/// The note of a table of the posting: which policies change as in the posting, the best policy, and what
/// limits the comparison. An agreement is a difference in the same direction (see [`compare`]); policies
/// without a difference on either side are counted separately.
pub(crate) fn note(table: &Table) -> String {
    let Some(metric) = Metric::of(table) else { return String::new() };
    let mut sentences = against_baseline(table, metric);
    sentences.extend(match metric {
        Metric::Hits => highest_ratio(table),
        Metric::ScanMax if by_own_time(table) => own_time(table),
        _ => lowest_mean(table, metric),
    });
    let policies: Vec<&str> = table.rows.iter().map(|row| row.labels[0].as_str()).collect();
    sentences.extend(interrupted(table, &policies).map(|runs| {
        format!(
            "{runs} The clock is the thread's CPU time, which also runs while an interrupt is handled, and \
             while the hypervisor runs another guest."
        )
    }));
    let idle = table.rows.iter().filter(|row| row.ours.is_none());
    let idle: Vec<&str> = idle.map(|row| row.labels[0].as_str()).collect();
    if !idle.is_empty() {
        sentences.push(format!("No scans at this scale: {}.", idle.join(", ")));
    }
    sentences.extend(early(table, metric));
    sentences.extend(remark(table, metric).map(str::to_owned));
    sentences.join(" ")
}

/// What holds for all tables of a metric. The first table says it.
fn remark(table: &Table, metric: Metric) -> Option<&'static str> {
    let has_posting = table.rows.iter().any(|row| row.posting.is_some());
    match metric {
        _ if !table.id.ends_with("-a") => None,
        Metric::Hits if has_posting => Some(
            "The posting has one number for each policy under \"cache hit/miss\". This table takes it as the \
             hits.",
        ),
        Metric::UserAvg | Metric::UserMax => Some(
            "The calls of tables 4 and 5 do no I/O, because the cache runs alone. The tables \"End to end\" \
             have the calls with I/O.",
        ),
        _ => None,
    }
}

/// One sentence for each pair of outcomes, here and in the posting.
fn against_baseline(table: &Table, metric: Metric) -> Vec<String> {
    let mut outcomes: Vec<([Effect; 2], Vec<&str>)> = Vec::new();
    let its_base = table.row(&[BASELINE]).and_then(|row| row.posting);
    for row in table.rows.iter().filter(|row| row.labels[0] != BASELINE) {
        let (Some(its_base), Some(its)) = (its_base, row.posting) else { continue };
        let policy = row.labels[0].as_str();
        let effects = (compare(table, policy, BASELINE), effect(&summary(&its), &summary(&its_base)));
        let (Some(here), Some(there)) = effects else { continue };
        match outcomes.iter_mut().find(|(known, _)| *known == [here, there]) {
            Some((_, policies)) => policies.push(policy),
            None => outcomes.push(([here, there], vec![policy])),
        }
    }
    let marked = |policy: &&str| match ended_early(table, policy) {
        true => format!("{policy} (partial run)"),
        false => (*policy).to_owned(),
    };
    let all: usize = outcomes.iter().map(|(_, policies)| policies.len()).sum();
    // Agreements first, then what shows no difference on either side.
    outcomes.sort_by_key(|([here, there], _)| (here != there, *here == Effect::None));
    let sentences = outcomes.iter().enumerate().map(|(at, (effects, policies))| {
        let lead = match at {
            0 if by_own_time(table) => "By own time, ",
            0 => "At 95 % confidence, ",
            _ => "",
        };
        let count = match policies.len() {
            some if some < all && at == 0 => format!("{some} of {all} policies"),
            some if some < all => format!("{some} of {all}"),
            1 => "the only other policy".to_owned(),
            _ => format!("all {all} policies"),
        };
        let outcome = outcome(metric, *effects, policies.len() > 1);
        let policies: Vec<String> = policies.iter().map(marked).collect();
        format!("{lead}{count} {outcome}: {}.", policies.join(", "))
    });
    sentences.collect()
}

/// The outcome for some policies, here and in the posting: "take less time than baseline, here and in the
/// posting".
fn outcome(metric: Metric, [here, there]: [Effect; 2], several: bool) -> String {
    // With and without the end of a verb.
    let end = if several { "" } else { "s" };
    let words = |of: Effect| match (of, metric == Metric::Hits) {
        (Effect::None, _) => (format!("show{end} no difference"), "from baseline"),
        (Effect::Lower, false) => (format!("take{end} less time"), "than baseline"),
        (Effect::Higher, false) => (format!("take{end} more time"), "than baseline"),
        (Effect::Lower, true) => (format!("get{end} fewer hits"), "than baseline"),
        (Effect::Higher, true) => (format!("get{end} more hits"), "than baseline"),
    };
    let ((ours, than), (its, _)) = (words(here), words(there));
    match (here == there, here) {
        (true, Effect::None) => format!("{ours} {than}, either here or in the posting"),
        (true, _) => format!("{ours} {than}, here and in the posting"),
        (false, _) => format!("{ours} {than} here, but {its} in the posting"),
    }
}

/// The lowest mean, and whether the next differs from it.
fn lowest_mean(table: &Table, metric: Metric) -> Option<String> {
    let rows = table.rows.iter().filter_map(|row| Some((row.labels[0].as_str(), row.ours?)));
    let mut ranked: Vec<(&str, Summary)> = rows.filter(|(policy, _)| comparable(table, &[policy])).collect();
    ranked.sort_by(|a, b| a.1.avg.total_cmp(&b.1.avg));
    let (policy, best) = ranked.first()?;
    let of = match metric {
        Metric::ScanMax => " of its longest scans",
        Metric::UserMax => " of its longest calls",
        _ => "",
    };
    let lowest = format!("{policy} has the lowest mean{of}, {} us", grouped(best.avg));
    let next = ranked.get(1).and_then(|(policy, next)| Some((policy, next.avg, effect(next, best)?)));
    Some(match next {
        None => format!("{lowest}."),
        Some((policy, avg, Effect::None)) => {
            format!("{lowest}, but shows no difference from {policy} with {} us.", grouped(avg))
        }
        Some((policy, avg, _)) => format!("{lowest}; {policy} is next with {} us.", grouped(avg)),
    })
}

/// What own time is, and the policy with the shortest longest scan.
fn own_time(table: &Table) -> Option<String> {
    let rows = table.rows.iter().map(|row| row.labels[0].as_str());
    let rows = rows.filter_map(|policy| Some((policy, longest(table, policy)?)));
    let mut ranked: Vec<(&str, Longest)> = rows.filter(|(policy, _)| comparable(table, &[policy])).collect();
    ranked.sort_by(|a, b| a.1.us.total_cmp(&b.1.us));
    let (policy, best) = ranked.first()?;
    let lowest = format!(
        "{policy} has the shortest longest scan by own time, {} us with {} visits",
        grouped(best.us),
        counted(best.visits)
    );
    let lowest = match ranked.get(1) {
        None => format!("{lowest}."),
        Some((next, own)) if compare(table, next, policy) == Some(Effect::None) => {
            format!("{lowest}, but {next} with {} us is not far enough from it.", grouped(own.us))
        }
        Some((next, own)) => format!("{lowest}; {next} is next with {} us.", grouped(own.us)),
    };
    Some(format!(
        "{lowest} Notes and claims judge longest scans by own time, in the column \"own longest\": each scan \
         counts with its shortest time over the runs, so without interruptions by the machine. Own times \
         have no interval: they differ from a factor of 2 on, or from 20 % on if the runs differ at 95 %, \
         too."
    ))
}

/// The longest scan of a run is mostly an interruption from this factor of own time on.
const INTERRUPTED_FACTOR: f64 = 10.0;

/// Which of these policies have an interrupted run: all whose longest scan took far more than own time.
pub(crate) fn interrupted(table: &Table, policies: &[&str]) -> Option<String> {
    let all = policies.iter().filter_map(|policy| {
        let (own, took) = (longest(table, policy)?, table.ours(&[policy])?.max);
        let is_far = took >= INTERRUPTED_FACTOR * own.us;
        is_far.then(|| format!("{policy} {} us, own {} us", grouped(took), grouped(own.us)))
    });
    let all: Vec<String> = all.collect();
    (!all.is_empty()).then(|| {
        format!("Interrupted runs, with a longest scan of 10 times own time or more: {}.", all.join("; "))
    })
}

fn highest_ratio(table: &Table) -> Option<String> {
    let ratios = table.rows.iter().filter_map(|row| {
        let policy = row.labels[0].as_str();
        Some((policy, table.extra(&[policy], "hit ratio")?)).filter(|_| comparable(table, &[policy]))
    });
    let ratios: Vec<(&str, f64)> = ratios.collect();
    let highest = ratios.iter().map(|(_, ratio)| *ratio).reduce(f64::max)?;
    let at_it = ratios.iter().filter(|(_, ratio)| *ratio == highest);
    let policies: Vec<&str> = at_it.map(|(policy, _)| *policy).collect();
    let verb = if policies.len() > 1 { "have" } else { "has" };
    Some(format!("{} {verb} the highest hit ratio, {highest:.4}.", policies.join(", ")))
}

/// Which runs ended early, and what that means for this table.
fn early(table: &Table, metric: Metric) -> Vec<String> {
    let meaning = |policy: &str| {
        let bound = match metric {
            Metric::ScanAvg => return "This partial run's mean is of the scans until then.".to_owned(),
            Metric::UserAvg => return "This partial run's mean is of the calls until then.".to_owned(),
            Metric::ScanMax => "Its longest scan takes at least as long as that of the part that ran",
            Metric::UserMax => "Its longest call takes at least as long as that of the part that ran",
            Metric::Hits => "Its misses so far limit the hits of a complete run",
        };
        if policy != BASELINE {
            return match compare(table, policy, BASELINE) {
                Some(_) => format!("{bound}, which decides its comparison with baseline."),
                None => format!("{bound}. That does not decide its comparison with baseline."),
            };
        }
        let others = table.rows.iter().filter(|row| row.labels[0] != BASELINE && row.ours.is_some());
        let others: Vec<&str> = others.map(|row| row.labels[0].as_str()).collect();
        let open = others.iter().copied().filter(|other| compare(table, other, BASELINE).is_none());
        let open: Vec<&str> = open.collect();
        match open.len() {
            0 => format!("{bound}, which decides all comparisons with it."),
            some if some == others.len() => format!("{bound}. That decides no comparison with it."),
            _ => format!("{bound}. That does not decide the comparison with {}.", open.join(", ")),
        }
    };
    let cut = table.rows.iter().map(|row| row.labels[0].as_str()).filter(|name| ended_early(table, name));
    let sentences = cut.map(|policy| {
        let calls = calls(table, policy);
        format!(
            "{policy} ended early{calls}, because its scans had reached the limit of visits. {}",
            meaning(policy)
        )
    });
    sentences.collect()
}

/// ", after 22,272 of 400,000 calls", if the table has calls.
pub(crate) fn calls(table: &Table, policy: &str) -> String {
    let of = |policy: &str| table.extra(&[policy], "calls");
    let all = table.rows.iter().filter_map(|row| of(&row.labels[0])).reduce(f64::max);
    of(policy).zip(all).map_or_else(String::new, |(made, all)| {
        format!(", after {} of {} calls", grouped(made), grouped(all))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shrinker::{Clock, Policy, Study, run};

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
            assert_eq!(table.rows[0].labels, [BASELINE]);
            assert_eq!(table.rows[4].labels, ["es-gc"]);
            assert!(table.rows.iter().all(|row| row.extras.len() == table.extras.len()));
            assert!(!table.note.is_empty(), "{}", table.id);
            assert!(Metric::of(table).is_some(), "{}", table.id);
        }
        assert_eq!(BASELINE, Policy::Baseline.name());
        let gc = &tables[0].rows[4];
        assert_eq!(gc.posting.unwrap().median, Some(290.0));
        assert!((gc.posting_change_percent.unwrap() + 96.5).abs() < 0.1);
        // Runs that ended early are marked in all tables of their case. Where the figure grows with the run,
        // they have no change.
        assert!(report.rows.iter().any(|row| row.cut));
        for (case, part) in CALLERS.iter().chain(&CASES).map(|part| (part.case, part.key)) {
            for table in tables.iter().filter(|table| table.id.ends_with(&format!("-{part}"))) {
                for row in report.rows.iter().filter(|row| row.case == case) {
                    assert_eq!(ended_early(table, row.policy), row.cut, "{} {}", table.id, row.policy);
                    let change = &table.row(&[row.policy]).unwrap().change;
                    assert!(change.is_none() || comparable(table, &[row.policy]), "{}", table.id);
                }
            }
        }
        // Without the posting, only ours.
        assert!(super::tables(&report, false).iter().all(|table| table.rows[0].posting.is_none()));
    }

    /// A table of case (b) of the posting with these runs of each policy.
    fn sample(metric: Metric, extras: &[&str], rows: &[(&str, [f64; 3], &[f64])]) -> Table {
        let rows = rows.iter().map(|(policy, runs, extras)| report::Row {
            posting: posted(metric, "b", policy),
            extras: extras.iter().copied().map(Some).collect(),
            ..report::Row::ours(&[policy], runs)
        });
        Table {
            id: format!("{}-b", metric.id()),
            title: String::new(),
            in_posting: true,
            quantity: String::new(),
            unit: String::new(),
            better: Better::Lower,
            labels: vec!["policy".to_owned()],
            extras: extras.iter().map(|&head| head.to_owned()).collect(),
            rows: rows.collect(),
            note: String::new(),
        }
    }

    #[test]
    fn noise_on_both_sides_is_no_agreement() {
        // In the posting, es-cache shows no difference from baseline, and es-gc takes less time.
        let table = sample(
            Metric::ScanAvg,
            &[],
            &[
                (BASELINE, [9.0, 10.0, 11.0], &[]),
                ("es-cache", [8.0, 10.0, 13.0], &[]),
                ("es-gc", [1.0, 1.1, 1.2], &[]),
            ],
        );
        assert_eq!(
            note(&table),
            "At 95 % confidence, 1 of 2 policies takes less time than baseline, here and in the posting: \
             es-gc. 1 of 2 shows no difference from baseline, either here or in the posting: es-cache. es-gc \
             has the lowest mean, 1.1 us; baseline is next with 10 us."
        );
    }

    #[test]
    fn a_run_that_ended_early_is_compared_if_its_part_decides() {
        let rows: [(&str, [f64; 3], &[f64]); 3] = [
            (BASELINE, [10.0; 3], &[0.1, 90.0, 100.0, 1.0]),
            ("es-cache", [300.0; 3], &[0.75, 100.0, 400.0, 0.0]),
            ("es-gc", [400.0; 3], &[1.0, 0.0, 400.0, 0.0]),
        ];
        let hits = sample(Metric::Hits, &["hit ratio", "misses", "calls", ENDED_EARLY], &rows);
        // Baseline may still have 310 hits.
        assert_eq!(hits_at_most(&hits, BASELINE, "es-gc"), Some(310.0));
        assert_eq!(
            note(&hits),
            "At 95 % confidence, the only other policy gets more hits than baseline, here and in the \
             posting: es-gc. es-gc has the highest hit ratio, 1.0000. baseline ended early, after 100 of 400 \
             calls, because its scans had reached the limit of visits. Its misses so far limit the hits of \
             a complete run. That does not decide the comparison with es-cache."
        );
        let rows: [(&str, [f64; 3], &[f64]); 3] = [
            (BASELINE, [9.0, 10.0, 11.0], &[1.0]),
            ("es-cache", [2.0, 2.1, 2.2], &[0.0]),
            ("es-gc", [12.0, 12.1, 12.2], &[0.0]),
        ];
        let longest = sample(Metric::ScanMax, &[ENDED_EARLY], &rows);
        assert_eq!(compare(&longest, "es-cache", BASELINE), Some(Effect::Lower));
        assert_eq!(compare(&longest, BASELINE, "es-cache"), Some(Effect::Higher));
        // The rest of the run may have a longer scan than es-gc.
        assert_eq!(compare(&longest, "es-gc", BASELINE), None);
        let rows: [(&str, [f64; 3], &[f64]); 3] = [
            (BASELINE, [9.0, 10.0, 11.0], &[0.5, 100.0, 1.0]),
            ("es-cache", [2.0, 2.1, 2.2], &[0.6, 400.0, 0.0]),
            ("es-gc", [1.0, 1.1, 1.2], &[0.7, 400.0, 0.0]),
        ];
        let means = sample(Metric::ScanAvg, &["hit ratio", "calls", ENDED_EARLY], &rows);
        assert!(
            note(&means).contains("es-gc. 1 of 2 takes less time than baseline here, but"),
            "{}",
            note(&means)
        );
        assert!(
            note(&means).ends_with("This partial run's mean is of the scans until then."),
            "{}",
            note(&means)
        );
        assert!(comparable(&means, &[BASELINE]) && !comparable(&hits, &[BASELINE, "es-gc"]));
        assert!(comparable(&hits, &["es-gc", "es-cache"]));
    }

    #[test]
    fn longest_scans_are_compared_without_interruptions() {
        let rows: [(&str, [f64; 3], &[f64]); 3] = [
            (BASELINE, [20.0, 30.0, 40.0], &[19.0, 900.0]),
            ("es-cache", [20.0, 30.0, 40.0], &[17.0, 800.0]),
            ("es-gc", [30.0, 49.0, 11_378.0], &[1.8, 99.0]),
        ];
        let table = sample(Metric::ScanMax, &["own longest [us]", "its visits"], &rows);
        assert_eq!(compare(&table, "es-gc", BASELINE), Some(Effect::Lower));
        assert_eq!(compare(&table, "es-cache", BASELINE), Some(Effect::None));
        let note = note(&table);
        assert!(
            note.starts_with("By own time, 1 of 2 policies takes less time than baseline, here"),
            "{note}"
        );
        assert!(
            note.contains(
                "es-gc has the shortest longest scan by own time, 1.8 us with 99 visits; es-cache is"
            ),
            "{note}"
        );
        assert!(
            note.contains(
                " Interrupted runs, with a longest scan of 10 times own time or more: es-gc 11,378 us, own \
                 1.8 us. The clock is the thread's CPU time"
            ),
            "{note}"
        );
    }

    #[test]
    fn two_digits_are_enough() {
        let figures = [10_195.667, 143.26, 9.96, 2.597, 0.8112, 0.0457, 0.0].map(rounded);
        assert_eq!(figures, ["10196", "143", "10", "2.6", "0.81", "0.046", "0"]);
        assert_eq!(
            [10_422_428.0, 10_196.0, 4788.0, 2.6].map(grouped),
            ["10,422,428", "10,196", "4788", "2.6"]
        );
    }
}
