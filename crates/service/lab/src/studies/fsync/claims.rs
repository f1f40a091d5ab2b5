//! The claims of the posting about flushes, judged by the tables of a report.

use extant_device::Model;

use super::{ALWAYS, ARRAY, DRAINING, IDE, NO_CACHE, SETUPS, has_volatile_cache};
use crate::fsync::turn::Stack;
use crate::report::{Claim, Row, StudyReport, Table, Verdict};

/// Writes the claims and notes.
///
/// Costs are compared within runs: in a run, all modes do the same operations. A difference counts if its
/// 95 % interval excludes 0. A claim about a kind of device needs the difference on more than half of the
/// devices of that kind, and the opposite on none; half of the posting's effect counts as the same. "No
/// difference" needs an interval within 2 points. That is too wide to refute a loss of less than 1 %, which
/// stays open, as does a cause that is only a parameter of the models, or was not tested. The load counts as
/// not bound by the CPU if no row reaches half of the rate without a device.
pub fn judge(report: &mut StudyReport) {
    report.claims = claims(report);
    for (id, note) in notes(report) {
        report.note(id, note);
    }
}

/// What seed leaves of the cost in the posting: the middle of 5-14 % is 35 % of that of 25-30 %.
const REMAINS_POSTED: f64 = 9.5 / 27.5;

/// What seed leaves of the cost, at most, with half of the posting's saving: 67 %.
const REMAINS_MAX: f64 = (1.0 + REMAINS_POSTED) / 2.0;

/// A load that reaches this share of the rate without a device may be bound by the CPU.
const CPU_SHARE: f64 = 0.5;

/// A smaller difference of costs is none. In points; the posting has "larger variances" than 1 %.
const SMALL_POINTS: f64 = 2.0;

/// A difference of costs: that of a mode is so many points less than that of another one.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Less {
    points: f64,
    half: f64,
}

impl Less {
    fn is_less(self) -> bool {
        self.points > self.half
    }

    fn is_more(self) -> bool {
        self.points < -self.half
    }

    /// Precise enough to say that there is no difference that matters.
    fn is_none(self) -> bool {
        self.points.abs() + self.half <= SMALL_POINTS
    }
}

impl std::fmt::Display for Less {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{:+.1} ± {:.1}", self.points, self.half)
    }
}

/// The table of costs.
struct Costs<'a>(&'a Table);

impl Costs<'_> {
    fn of(&self, device: &str, mode: &str) -> Option<f64> {
        Some(self.0.ours(&[device, mode])?.avg)
    }

    fn less(&self, device: &str, mode: &str, than: &str) -> Option<Less> {
        let extra = |head: String| self.0.extra(&[device, mode], &head);
        Some(Less {
            points: extra(format!("less than {than}"))?,
            half: extra(format!("±, less than {than}"))?,
        })
    }

    /// The lowest and the highest cost of a mode on the devices with a volatile cache.
    fn range(&self, mode: &str) -> Option<(f64, f64)> {
        let costs = volatile().filter_map(|device| self.of(device, mode));
        costs.map(|cost| (cost, cost)).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }

    fn range_text(&self, mode: &str) -> String {
        self.range(mode).map_or("not measured".to_owned(), |(low, high)| format!("{low:.0} to {high:.0} %"))
    }

    /// The devices with a volatile cache on which a mode costs less than another one, and those on which it
    /// costs more.
    fn sides(&self, mode: &str, than: &str) -> (Vec<&'static str>, Vec<&'static str>) {
        let on = |side: fn(Less) -> bool| {
            volatile().filter(|device| self.less(device, mode, than).is_some_and(side)).collect()
        };
        (on(Less::is_less), on(Less::is_more))
    }
}

/// The devices with a volatile cache: those whose flushes are slow.
fn volatile() -> impl Iterator<Item = &'static str> {
    SETUPS.iter().map(|setup| setup.name).filter(|device| has_volatile_cache(device))
}

fn list(devices: &[&str]) -> String {
    if devices.is_empty() { "none".to_owned() } else { devices.join(", ") }
}

/// A claim without the kernel's figure.
fn claim(
    claim: &str,
    posting: &str,
    ours: String,
    (verdict, why): (Verdict, String),
    tables: &[&str],
) -> Claim {
    Claim {
        claim: claim.to_owned(),
        posting: posting.to_owned(),
        ours,
        kernel: None,
        verdict,
        why,
        tables: tables.iter().map(|&id| id.to_owned()).collect(),
    }
}

fn claims(report: &StudyReport) -> Vec<Claim> {
    let Some(costs) = report.table("cost").map(Costs) else { return Vec::new() };
    let mut claims = vec![barriers(&costs), coordination(&costs, report)];
    claims.extend(epoch(&costs));
    claims.extend(fast_arrays(&costs));
    claims.extend(report.table("tuning").map(auto_tuning));
    claims.extend(report.table("tuning").and_then(data_only));
    claims.extend(report.table("latency").and_then(one_thread));
    claims.extend(no_cache(&costs));
    claims.extend(report.table("traffic").and_then(empty_traffic));
    claims.extend(empty_transactions(&costs));
    claims.push(not_measured(
        "With direct I/O, that traffic lowers performance considerably.",
        "\"especially in the case where directio was in use\"",
        "No load of this study uses direct I/O.",
    ));
    claims.extend(report.table("flushes").and_then(|flushes| stacks(&costs, flushes)));
    claims.extend(cpu(report));
    claims.push(not_measured(
        "The more fsyncs, the larger the loss by flushes.",
        "30 to 80 % before Linux 2.6.37-rc1, in a variety of programs",
        "The load has one share of fsyncs, 6 in 16 operations.",
    ));
    claims.push(not_measured(
        "Without fsync, only the periodic commits of the journal flush.",
        "no figure",
        "The study has no run on a modelled device without fsync.",
    ));
    claims.push(not_measured(
        "Results for each disk, on pages that the posting links to.",
        "http://bit.ly/fYAclV: not available",
        "Only the ranges in the posting's text are known, so devices are not compared one by one.",
    ));
    claims.push(claim(
        "Power failures leave no more file system errors than before.",
        "no more than with Linux 2.6.36, on slow IDE disks",
        "not part of this study".to_owned(),
        (
            Verdict::Open,
            "`cargo xtask crash --data` tests it: it cuts the power in the modes none, seed, merge and \
             epoch, and checks that each file whose fsync returned is there."
                .to_owned(),
        ),
        &[],
    ));
    claims
}

/// A claim of the posting without a figure of ours.
fn not_measured(text: &str, posting: &str, why: &str) -> Claim {
    claim(text, posting, "not measured".to_owned(), (Verdict::Open, why.to_owned()), &[])
}

fn barriers(costs: &Costs<'_>) -> Claim {
    let (drains, passes) = (costs.of(DRAINING, "none"), costs.of(ARRAY, "none"));
    let text = |cost: Option<f64>| cost.map_or("not measured".to_owned(), |cost| format!("{cost:.1} %"));
    claim(
        "Since barriers, which drained the queue, became flushes, fsync-happy loses less of its throughput.",
        "about 80 % before Linux 2.6.37-rc1 (30-80 % for other programs), 25-30 % since",
        format!("array: {} if a flush drains its queue, {} if not", text(drains), text(passes)),
        (
            Verdict::Open,
            format!(
                "That draining costs so much holds for one array, and draining is a parameter of its model. \
                 The models of ATA disks drain the queue for each flush, before and since, and lose {}: they \
                 do not show the posting's fall to 25-30 %. Old barriers also waited in the block layer, \
                 which has no counterpart here.",
                costs.range_text("none")
            ),
        ),
        &["cost"],
    )
}

fn coordination(costs: &Costs<'_>, report: &StudyReport) -> Claim {
    let all = volatile().count();
    let (less, more) = costs.sides("seed", "none");
    // Precise enough to say that the effect is smaller than half of the posting's.
    let short = volatile()
        .filter(|device| {
            let less = costs.less(device, "seed", "none").zip(costs.of(device, "none"));
            less.is_some_and(|(less, none)| less.points + less.half < (1.0 - REMAINS_MAX) * none)
        })
        .count();
    let mean = |mode: &str| volatile().filter_map(|device| costs.of(device, mode)).sum::<f64>() / all as f64;
    let remains = mean("seed") / mean("none").max(1e-9);
    let verdict = match () {
        () if less.len() * 2 > all && more.is_empty() && remains <= REMAINS_MAX => Verdict::Confirmed,
        () if more.len() * 2 > all || short * 2 > all => Verdict::Refuted,
        () => Verdict::Open,
    };
    let each: Vec<String> = volatile()
        .filter_map(|device| Some(format!("{device} {}", costs.less(device, "seed", "none")?)))
        .collect();
    let per_fsync = report.table("flushes").and_then(|flushes| {
        Some((flushes.ours(&[IDE, "none"])?.avg, flushes.extra(&[IDE, "none"], "by commits")?))
    });
    let few = per_fsync.map_or(String::new(), |(flushes, commits)| {
        format!(
            " With this load an fsync makes only {flushes:.2} flushes on ide without coordination, \
             {commits:.2} of them by commits, which seed does not share: other calls find that a commit has \
             flushed their changes."
        )
    });
    let overwrites = report.table("tuning").and_then(Overwrites::of).map_or(String::new(), |of| {
        format!(
            " Where threads only overwrite, it saves more: {:.2} to {:.2} flushes per fsync, {:.0} to {:.0} \
             fsyncs/s (see the claim on sharing).",
            of.flushes.0, of.flushes.1, of.fsyncs.0, of.fsyncs.1
        )
    });
    claim(
        "Coordination cuts the cost of flushes from 25-30 % to 5-14 %.",
        "25-30 % without, 5-14 % with",
        format!(
            "{} without (mode none), {} with (mode seed)",
            costs.range_text("none"),
            costs.range_text("seed")
        ),
        (
            verdict,
            format!(
                "With this load, seed leaves {:.0} % of the mean cost. The posting's leaves {:.0} % (the \
                 middles: 9.5 of 27.5); with half of its saving {:.0} % are left, and less saving does not \
                 count as its effect. On {short} of {all} devices the saving is smaller than that at 95 %. \
                 Seed does lower the cost on {} of them: {}; it raises it on {}. Points of cost saved: {}.\
                 {few}{overwrites}",
                remains * 100.0,
                REMAINS_POSTED * 100.0,
                REMAINS_MAX * 100.0,
                less.len(),
                list(&less),
                list(&more),
                each.join("; ")
            ),
        ),
        &["cost", "threads", "tuning"],
    )
}

/// extant's default against the posting's design.
fn epoch(costs: &Costs<'_>) -> Option<Claim> {
    costs.range("epoch")?;
    let all = volatile().count();
    let (less, more) = costs.sides("epoch", "seed");
    let (saved, _) = costs.sides("epoch", "none");
    let verdict = match () {
        () if !less.is_empty() && more.is_empty() => Verdict::Beaten,
        () if more.len() > less.len() => Verdict::Refuted,
        () => Verdict::Open,
    };
    let each: Vec<String> = volatile()
        .filter_map(|device| Some(format!("{device} {}", costs.less(device, "epoch", "seed")?)))
        .collect();
    Some(claim(
        "Beyond the posting: epoch, which waits for no other thread and skips flushes that an earlier one \
         covers, costs less than the posting's rounds.",
        "no such mode",
        format!("epoch {}, seed {}", costs.range_text("epoch"), costs.range_text("seed")),
        (
            verdict,
            format!(
                "At 95 %, epoch costs less than seed on {} of {all} devices ({}), and more on {}; it costs \
                 less than none on {}. Points of cost saved against seed: {}.",
                less.len(),
                list(&less),
                list(&more),
                list(&saved),
                each.join("; ")
            ),
        ),
        &["cost", "flushes"],
    ))
}

fn fast_arrays(costs: &Costs<'_>) -> Option<Claim> {
    let forced = costs.less(ARRAY, ALWAYS, "none")?;
    let tuned = costs.less(ARRAY, "seed", "none")?;
    let verdict = match () {
        () if forced.is_more() && !tuned.is_more() => Verdict::Confirmed,
        () if forced.is_less() => Verdict::Refuted,
        () => Verdict::Open,
    };
    Some(claim(
        "On arrays whose flush takes less than 2 ms, coordination lowers performance; so it is off there.",
        "lower performance, no figure; with the series, regressions of less than 1 % on some hardware",
        format!("points of cost saved: {forced} if coordination is forced, {tuned} with auto-tuning"),
        (
            verdict,
            format!(
                "A flush of the array takes 50 us. Forced coordination {}; auto-tuning {}. A loss of less \
                 than 1 % is too small for these intervals.",
                effect(forced),
                effect(tuned)
            ),
        ),
        &["cost", "flushes"],
    ))
}

fn effect(of: Less) -> &'static str {
    match () {
        () if of.is_less() => "lowers the cost",
        () if of.is_more() => "raises the cost",
        () if of.is_none() => "changes the cost by less than 2 points",
        () => "shows no difference, but one of more than 2 points is possible",
    }
}

/// The largest flush time below which no device coordinates, and the smallest from which all do.
fn switch_ms(tuning: &Table) -> Option<(f64, f64)> {
    let times: Vec<f64> = tuning.rows.iter().filter_map(|row| row.labels[0].parse().ok()).collect();
    let coordinates: Vec<bool> =
        tuning.rows.iter().map(|row| row.extras[2].is_some_and(|value| value > 0.5)).collect();
    let first = coordinates.iter().position(|on| *on)?;
    let is_step = first > 0 && coordinates[first..].iter().all(|on| *on);
    is_step.then(|| (times[first - 1], times[first]))
}

fn auto_tuning(tuning: &Table) -> Claim {
    let (ours, verdict, why) = match switch_ms(tuning) {
        Some((below, above)) if below < 2.0 && above > 2.0 => (
            format!("between {below} and {above} ms"),
            Verdict::Confirmed,
            format!("No device up to {below} ms coordinates, each from {above} ms on does."),
        ),
        Some((below, above)) => (
            format!("between {below} and {above} ms"),
            Verdict::Open,
            "The timers of this machine are late.".to_owned(),
        ),
        None => (
            "no single flush time".to_owned(),
            Verdict::Refuted,
            "There is no flush time below which no device coordinates, and above which each does.".to_owned(),
        ),
    };
    claim(
        "The measured flush time decides whether fsync calls are coordinated.",
        "from 2 ms on",
        ours,
        (verdict, why),
        &["tuning"],
    )
}

/// Calls that only overwrite and flush, on the device with the longest flush that does not coordinate, and on
/// the next one, which does: the posting's data-only flushes.
struct Overwrites {
    /// Flush times in ms.
    ms: (f64, f64),
    /// Flushes per fsync.
    flushes: (f64, f64),
    /// Per second.
    fsyncs: (f64, f64),
}

impl Overwrites {
    fn of(tuning: &Table) -> Option<Self> {
        let (below, above) = switch_ms(tuning)?;
        let flushes = |ms: f64| Some(tuning.ours(&[&ms.to_string()])?.avg);
        let fsyncs = |ms: f64| tuning.extra(&[&ms.to_string()], "fsyncs");
        Some(Self {
            ms: (below, above),
            flushes: (flushes(below)?, flushes(above)?),
            fsyncs: (fsyncs(below)?, fsyncs(above)?),
        })
    }
}

fn data_only(tuning: &Table) -> Option<Claim> {
    let Overwrites { ms: (below, above), flushes: (before, after), fsyncs: (slow, fast) } =
        Overwrites::of(tuning)?;
    Some(claim(
        "Without coordination each thread issues its own flush; with it, threads share one.",
        "no figure",
        format!("{before:.2} flushes per fsync without (flush of {below} ms), {after:.2} with ({above} ms)"),
        (
            if after <= before / 2.0 { Verdict::Confirmed } else { Verdict::Refuted },
            format!(
                "8 threads only overwrite and flush, so no commit shares flushes for them. The rate goes \
                 from {slow:.0} to {fast:.0} fsyncs per second, though the flush is longer."
            ),
        ),
        &["tuning"],
    ))
}

/// Whether the CPU limits the load: its rate on each device, in real time, against that without a device.
fn cpu(report: &StudyReport) -> Option<Claim> {
    let free = report.table("memory")?.ours(&["fsync"])?.avg;
    let faster = report.number("clock of slow disks").unwrap_or(1.0);
    let speed = |device: &str| {
        let setup = SETUPS.iter().find(|setup| setup.name == device);
        setup.map_or(1.0, |setup| if setup.speed > 1 { faster } else { 1.0 })
    };
    let share = |row: &Row| {
        let [device, mode] = row.labels.as_slice() else { return None };
        Some((row.ours?.avg * speed(device) / free, device.clone(), mode.clone()))
    };
    let mut shares: Vec<_> = report.table("rate")?.rows.iter().filter_map(share).collect();
    shares.sort_by(|a, b| b.0.total_cmp(&a.0));
    let (most, device, mode) = shares.first()?;
    let next = shares.iter().find(|(_, other, _)| other != device)?;
    let text = |(share, device, mode): &(f64, String, String)| {
        format!("{:.0} % on {device} (mode {mode})", share * 100.0)
    };
    Some(claim(
        "In no case are the benchmarks bound by the CPU.",
        "no figure",
        format!(
            "of the rate without a modelled device: at most {}; on other devices at most {}",
            text(&(*most, device.clone(), mode.clone())),
            text(next)
        ),
        (
            if *most < CPU_SHARE { Verdict::Confirmed } else { Verdict::Open },
            format!(
                "CPU time is not measured. Without a modelled device the load is bound by the CPU. A rate of \
                 less than {:.0} % of that counts as not bound. The clock of slow disks runs {faster:.0} \
                 times as fast, and rates are compared in real time: on a real disk the CPU's share is \
                 smaller by that factor.",
                CPU_SHARE * 100.0
            ),
        ),
        &["rate", "memory"],
    ))
}

fn one_thread(latency: &Table) -> Option<Claim> {
    let row = latency.row(&[IDE, "seed"])?;
    let change = row.change.as_ref()?;
    let half = change.plus_minus_percent?;
    let verdict = match change.percent {
        percent if percent.abs() + half <= 5.0 => Verdict::Confirmed,
        percent if percent > half => Verdict::Refuted,
        _ => Verdict::Open,
    };
    Some(claim(
        "A single thread skips the coordination.",
        "no delay with one thread",
        format!("{:+.1} ± {half:.1} % of the median time of an fsync on ide", change.percent),
        (
            verdict,
            format!(
                "With one thread, an fsync takes {:.1} ms with seed; at most 5 %, at 95 % confidence, \
                 counts as no delay.",
                row.ours?.avg / 1e3
            ),
        ),
        &["latency"],
    ))
}

fn no_cache(costs: &Costs<'_>) -> Option<Claim> {
    let seed = costs.less(NO_CACHE, "seed", "none")?;
    let verdict = match () {
        () if seed.is_more() => Verdict::Confirmed,
        () if seed.is_less() || seed.is_none() => Verdict::Refuted,
        () => Verdict::Open,
    };
    Some(claim(
        "Disks without a write cache lose by coordination.",
        "two regressions, because ext4 did not detect these disks",
        format!("points of cost saved: {seed}"),
        (
            verdict,
            format!(
                "Seed {} on the disk without a cache. Its flush takes 100 us, so fsync calls do not wait.",
                effect(seed)
            ),
        ),
        &["cost"],
    ))
}

fn empty_traffic(traffic: &Table) -> Option<Claim> {
    let row = traffic.row(&[IDE, "empty-txn"])?;
    let change = row.change.as_ref()?;
    let half = change.plus_minus_percent?;
    Some(claim(
        "An empty transaction for each fsync increases write traffic.",
        "no figure",
        format!("{:+.1} ± {half:.1} % bytes per fsync on ide", change.percent),
        (
            match () {
                () if change.percent > half => Verdict::Confirmed,
                () if change.percent < -half => Verdict::Refuted,
                () => Verdict::Open,
            },
            format!("An empty commit writes a block; an fsync writes {:.1} KiB.", row.ours?.avg),
        ),
        &["traffic"],
    ))
}

fn empty_transactions(costs: &Costs<'_>) -> Option<Claim> {
    let on: Vec<(&str, Less)> =
        volatile().filter_map(|device| Some((device, costs.less(device, "empty-txn", "seed")?))).collect();
    let count = |side: fn(Less) -> bool| on.iter().filter(|(_, less)| side(*less)).count();
    let (all, more) = (on.len(), count(Less::is_more));
    let verdict = match () {
        () if on.is_empty() => return None,
        () if more * 2 > all => Verdict::Confirmed,
        () if (count(Less::is_none) + count(Less::is_less)) * 2 > all => Verdict::Refuted,
        () => Verdict::Open,
    };
    let each: Vec<String> = on.iter().map(|(device, less)| format!("{device} {less}")).collect();
    Some(claim(
        "With buffered writes, that traffic lowers performance considerably.",
        "considerably",
        format!("points of cost saved against seed: {}", each.join("; ")),
        (
            verdict,
            format!(
                "Of {all} devices with a volatile cache empty-txn costs more than seed on {more}. Threads \
                 that wait for the same commit share its flush."
            ),
        ),
        &["cost"],
    ))
}

fn stacks(costs: &Costs<'_>, flushes: &Table) -> Option<Claim> {
    let flush = |device: &str| costs.0.extra(&[device, "none"], "flush");
    let stacked: Vec<&str> =
        SETUPS.iter().filter(|setup| setup.stack != Stack::Single).map(|setup| setup.name).collect();
    let times: Vec<String> = stacked
        .iter()
        .filter_map(|device| Some(format!("{device} {:.1} ms", flush(device)? / 1e3)))
        .collect();
    let bypassed = |device: &&str| flushes.extra(&[device, "seed"], "bypassed");
    let coordinates = stacked.iter().all(|device| bypassed(device).is_some_and(|share| share == 0.0));
    Some(claim(
        "md and dm report the flush times of their components, so that stacks of slow disks coordinate, too.",
        "components report their flush times",
        times.join(", "),
        (
            if coordinates && !times.is_empty() { Verdict::Confirmed } else { Verdict::Open },
            format!(
                "A flush of ide alone takes {:.1} ms: {} ms, and the time to destage the cache. \
                 These are moving averages in which the last flush has a weight of a quarter, so small \
                 differences, as between one ide and a mirror of two, mean nothing. {}",
                flush(IDE)? / 1e3,
                Model::IDE.flush.as_millis(),
                if coordinates {
                    "No fsync on a stack bypasses the coordination."
                } else {
                    "Some fsync calls on stacks bypass the coordination."
                }
            ),
        ),
        &["cost", "flushes"],
    ))
}

/// On the disk without a cache, flushes can cost less than nothing.
fn below_zero(costs: &Costs<'_>, traffic: Option<&Table>) -> Option<String> {
    let row = costs.0.ours(&[NO_CACHE, "none"])?;
    // The row without flushes, compared with the mode none.
    let without = traffic?.row(&[NO_CACHE, "no barrier"])?.change.as_ref()?;
    let why = match without.significant {
        Some(true) if without.percent > 0.0 => {
            "while a thread waits for its flush, others join its commit, and an fsync writes less."
        }
        _ => "the study does not show why. Bytes per fsync do not differ at 95 %.",
    };
    (row.avg + row.half_95()? < 0.0)
        .then(|| format!(" On that disk the load is even faster with flushes, by {:.0} %; {why}", -row.avg))
}

fn notes(report: &StudyReport) -> Vec<(&'static str, String)> {
    let mut notes = vec![
        (
            "threads",
            "Threads share a flush only if they wait at the same time: one thread makes a flush per fsync."
                .to_owned(),
        ),
        ("latency", "With one thread, seed waits for no other thread.".to_owned()),
        (
            "memory",
            "Ours runs in process on memory; the kernel runs through system calls on the device of its \
             directory. All files fit into both caches, and no flush takes time."
                .to_owned(),
        ),
    ];
    if let Some(costs) = report.table("cost").map(Costs) {
        notes.push((
            "cost",
            format!(
                "On the devices with a volatile cache a flush for each fsync costs {} (posting: 25 to 30 \
                 %), the posting's coordination {} (posting: 5 to 14 %), and epoch {}. The posting has \
                 these ranges in its text, over all of its devices. The array and the disk without a cache \
                 have nothing to flush.{}",
                costs.range_text("none"),
                costs.range_text("seed"),
                costs.range_text("epoch"),
                below_zero(&costs, report.table("traffic")).unwrap_or_default()
            ),
        ));
    }
    let ide = |table: &str, mode: &str| Some(report.table(table)?.ours(&[IDE, mode])?.avg);
    let of = |table: &str, modes: [&'static str; 3]| -> Option<[f64; 3]> {
        Some([ide(table, modes[0])?, ide(table, modes[1])?, ide(table, modes[2])?])
    };
    if let Some([none, seed, epoch]) = of("rate", ["none", "seed", "epoch"]) {
        let gain = |rate: f64| (rate / none - 1.0) * 100.0;
        let (seed, epoch) = (gain(seed), gain(epoch));
        notes.push((
            "rate",
            format!("On ide, seed changes the throughput by {seed:+.0} %, epoch by {epoch:+.0} %."),
        ));
    }
    if let Some([none, seed, epoch]) = of("flushes", ["none", "seed", "epoch"]) {
        notes.push((
            "flushes",
            format!(
                "On ide an fsync makes {none:.2} flushes without coordination, {seed:.2} with the \
                 posting's, {epoch:.2} with epoch: {:.0} % are redundant. An fsync that finds its changes \
                 in another thread's commit makes none.",
                (1.0 - epoch / none) * 100.0
            ),
        ));
    }
    if let Some([none, empty, _]) = of("traffic", ["none", "empty-txn", "seed"]) {
        notes.push((
            "traffic",
            format!(
                "On ide, an fsync writes {empty:.1} KiB with empty-txn, and {none:.1} KiB without \
                 coordination ({:+.1} %).",
                (empty / none - 1.0) * 100.0
            ),
        ));
    }
    if let Some(tuning) = report.table("tuning") {
        let note = match switch_ms(tuning) {
            Some((below, above)) => {
                format!(
                    "Coordination switches on between {below} and {above} ms; the posting's limit is 2 ms."
                )
            }
            None => "Coordination does not switch at a single flush time.".to_owned(),
        };
        notes.push(("tuning", note));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Better;

    #[test]
    fn the_switch_is_a_single_step() {
        let times = ["0.5", "1.8", "2.2", "8"];
        let tuning = |on: [f64; 4]| {
            let rows = times.iter().zip(on);
            let rows =
                rows.map(|(ms, on)| Row { extras: vec![None, None, Some(on)], ..Row::ours(&[ms], &[1.0]) });
            Table { rows: rows.collect(), ..super::super::table("t", "", "", "", Better::Lower, &["ms"]) }
        };
        assert_eq!(switch_ms(&tuning([0.0, 0.0, 1.0, 1.0])), Some((1.8, 2.2)));
        assert_eq!(switch_ms(&tuning([0.0, 1.0, 0.0, 1.0])), None);
        assert_eq!(switch_ms(&tuning([0.0; 4])), None);
    }

    /// A table of costs in which seed costs that much less than none, on each device with a volatile cache.
    fn costs(less: &[(f64, f64)]) -> Table {
        let mut table = super::super::table("cost", "", "", "%", Better::Lower, &["device", "mode"]);
        table.extras = vec!["less than none [points]".to_owned(), "±, less than none [points]".to_owned()];
        table.rows = volatile()
            .zip(less)
            .map(|(device, (points, half))| Row {
                extras: vec![Some(*points), Some(*half)],
                ..Row::ours(&[device, "seed"], &[20.0 - points, 20.0 - points])
            })
            .chain(volatile().map(|device| Row {
                extras: vec![None, None],
                ..Row::ours(&[device, "none"], &[20.0, 20.0])
            }))
            .collect();
        table
    }

    #[test]
    fn coordination_has_to_help_on_most_devices() {
        let report = super::super::empty(&[]);
        let verdict = |less: [(f64, f64); 6]| coordination(&Costs(&costs(&less)), &report).verdict;
        let (helps, unclear, hurts) = ((15.0, 3.0), (1.0, 4.0), (-5.0, 2.0));
        assert_eq!(verdict([helps, helps, helps, helps, unclear, unclear]), Verdict::Confirmed);
        assert_eq!(verdict([(3.0, 5.0); 6]), Verdict::Open);
        assert_eq!(verdict([(3.0, 1.0); 6]), Verdict::Refuted);
        assert_eq!(verdict([helps, helps, helps, helps, unclear, hurts]), Verdict::Open);
        assert_eq!(verdict([helps, helps, helps, (3.0, 5.0), unclear, unclear]), Verdict::Open);
        assert_eq!(verdict([hurts, hurts, hurts, hurts, helps, helps]), Verdict::Refuted);
        assert_eq!(verdict([(0.5, 1.0); 6]), Verdict::Refuted);
    }
}
