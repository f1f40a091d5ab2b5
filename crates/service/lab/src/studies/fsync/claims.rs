//! The claims of the posting about flushes, judged by the measured figures.

use super::{
    ALWAYS, ARRAY, DRAINING, IDE, Measured, NO_CACHE, SETUPS, THREADS, half_interval, kibibytes, range_of,
    range_text, switch_ms,
};
use crate::Summary;
use crate::fsync::turn::{Outcome, Stack};
use crate::report::{Change, Claim, Table, Verdict};

/// Whether the first mode costs less than the second on a device, with its difference and half interval of
/// the
/// differences within runs, in points.
fn difference(
    measured: &Measured,
    device: &'static str,
    less: &'static str,
    more: &'static str,
) -> (f64, f64) {
    let (less, more) = (measured.costs(device, THREADS, less), measured.costs(device, THREADS, more));
    let differences: Vec<f64> = more.iter().zip(&less).map(|(more, less)| more - less).collect();
    let summary = Summary::of(&differences);
    (summary.avg, half_interval(&summary).unwrap_or(f64::INFINITY))
}

pub(super) fn claims(measured: &Measured, tuning: &Table, kernel: bool) -> Vec<Claim> {
    let unmeasured =
        kernel.then(|| "its device has no slow flush: see the table without a device".to_owned());
    let claim =
        |claim: &str, posting: &str, ours: String, (verdict, why): (Verdict, String), tables: &[&str]| {
            Claim {
                claim: claim.to_owned(),
                posting: posting.to_owned(),
                ours,
                kernel: unmeasured.clone(),
                verdict,
                why,
                tables: tables.iter().map(|&id| id.to_owned()).collect(),
            }
        };
    let [none, seed, epoch] =
        ["none", "seed", "epoch"].map(|mode| measured.cost(IDE, mode).map_or(0.0, |cost| cost.avg));
    let [drains, passes] =
        [DRAINING, ARRAY].map(|device| measured.cost(device, "none").unwrap_or_else(|| Summary::of(&[])));
    let drained = Change::between(&drains, &passes, ARRAY);
    let verdict = match drained.significant {
        // At least half of the posting's cost, and at least its fall.
        Some(true) if drains.avg >= 40.0 && drains.avg >= 2.0 * passes.avg => Verdict::Confirmed,
        Some(true) if drains.avg < passes.avg => Verdict::Refuted,
        _ => Verdict::Open,
    };
    let mut claims = vec![claim(
        "Since barriers, which drain the queue, became flushes in 2.6.37-rc1, the cost on fsync-happy fell \
        from 80 % \
         to 25-30 %.",
        "80 % to 25-30 %",
        format!(
            "array: {:.1} % if a flush drains the queue, {:.1} % if not; with a volatile cache {} either way",
            drains.avg,
            passes.avg,
            range_text(range_of(measured, "none"))
        ),
        (
            verdict,
            "Draining is measured on the array, whose flush itself takes 50 us; ATA disks drain for each \
            flush by \
             themselves. The other costs of old barriers have no counterpart here."
                .to_owned(),
        ),
        &["cost"],
    )];
    let (saved, half) = difference(measured, IDE, "seed", "none");
    let (more, more_half) = difference(measured, IDE, "epoch", "seed");
    let verdict = match (saved > half, more > more_half) {
        (true, true) => Verdict::Beaten,
        (true, false) => Verdict::Confirmed,
        (false, _) if saved < -half => Verdict::Refuted,
        (false, _) => Verdict::Open,
    };
    claims.push(claim(
        "Coordination lowers the cost of flushes from 25-30 % to 5-14 %.",
        "25-30 % to 5-14 %",
        format!(
            "none {}, seed {}, epoch {}",
            range_text(range_of(measured, "none")),
            range_text(range_of(measured, "seed")),
            range_text(range_of(measured, "epoch"))
        ),
        (
            verdict,
            format!(
                "On ide the cost goes from {none:.1} % to {seed:.1} % (within runs by {:+.1} ± {half:.1} \
                 points), and with epoch to {epoch:.1} % (by {:+.1} ± {more_half:.1} against seed).",
                -saved, -more
            ),
        ),
        &["cost", "threads"],
    ));
    let (lost, half) = difference(measured, ARRAY, "none", ALWAYS);
    let (tuned, tuned_half) = difference(measured, ARRAY, "none", "seed");
    let verdict = match (lost > half, tuned <= tuned_half.max(2.0)) {
        (true, true) => Verdict::Confirmed,
        (false, _) if lost < -half => Verdict::Refuted,
        _ => Verdict::Open,
    };
    claims.push(claim(
        "On arrays whose flush takes less than 2 ms, coordination lowers performance; so there each fsync \
        makes its \
         own flush.",
        "regressions of less than 1 % with auto-tuning",
        format!("{lost:+.1} points of cost with coordination forced, {tuned:+.1} with auto-tuning"),
        (
            verdict,
            format!(
                "Against no coordination, on the array: forced {lost:+.1} ± {half:.1} points, tuned \
                {tuned:+.1} ± \
                 {tuned_half:.1}."
            ),
        ),
        &["cost", "flushes"],
    ));
    claims.push(claim(
        "The measured flush time decides whether fsync calls are coordinated.",
        "from 2 ms on",
        tuning.note.clone(),
        match switch_ms(tuning) {
            Some((below, above)) if below < 2.0 && above > 2.0 => {
                (Verdict::Confirmed, format!("It switches on between {below} and {above} ms."))
            }
            Some((below, above)) => (
                Verdict::Open,
                format!("It switches between {below} and {above} ms: the timers of this machine are late."),
            ),
            None => (Verdict::Refuted, "There is no single flush time at which it switches.".to_owned()),
        },
        &["tuning"],
    ));
    claims.push(one_thread(measured, &claim));
    let (slower, half) = difference(measured, NO_CACHE, "none", "seed");
    let verdict = match (slower > half, slower < -half) {
        (true, _) => Verdict::Confirmed,
        (_, true) => Verdict::Refuted,
        _ => Verdict::Open,
    };
    claims.push(claim(
        "Disks without a write cache lose by coordination.",
        "two larger regressions, because ext4 did not detect these disks",
        format!("{slower:+.1} points of cost"),
        (
            verdict,
            format!(
                "With seed the cost changes by {slower:+.1} ± {half:.1} points on the disk without a \
                cache; its flush \
                 is measured to be fast, so the calls bypass the coordination."
            ),
        ),
        &["cost"],
    ));
    claims.push(empty_transactions(measured, &claim));
    claims.push(stacks(measured, &claim));
    claims
}

type MakeClaim<'a> = dyn Fn(&str, &str, String, (Verdict, String), &[&str]) -> Claim + 'a;

fn one_thread(measured: &Measured, claim: &MakeClaim<'_>) -> Claim {
    let of = |mode: &'static str| Summary::of(&measured.values((IDE, 1, mode), |outcome| outcome.p50_us));
    let change = Change::between(&of("seed"), &of("none"), "none");
    let half = change.plus_minus_percent.unwrap_or(f64::INFINITY);
    let verdict = match change.percent {
        percent if percent.abs() + half <= 10.0 => Verdict::Confirmed,
        percent if percent > half => Verdict::Refuted,
        _ => Verdict::Open,
    };
    claim(
        "A single thread skips the coordination.",
        "no delay with one thread",
        format!("{:+.1} % of the median time of an fsync on ide", change.percent),
        (verdict, format!("With one thread, seed changes it by {:+.1} ± {half:.1} %.", change.percent)),
        &["latency"],
    )
}

fn empty_transactions(measured: &Measured, claim: &MakeClaim<'_>) -> Claim {
    let of = |mode: &'static str| Summary::of(&measured.values((IDE, THREADS, mode), kibibytes));
    let traffic = Change::between(&of("empty-txn"), &of("seed"), "seed");
    let (slower, half) = difference(measured, IDE, "seed", "empty-txn");
    let verdict = match (traffic.significant, slower > half) {
        (Some(true), true) if traffic.percent > 0.0 => Verdict::Confirmed,
        (Some(true), _) if traffic.percent < 0.0 => Verdict::Refuted,
        _ => Verdict::Open,
    };
    claim(
        "An empty transaction for each fsync increases write traffic, and lowers performance considerably.",
        "considerably",
        format!("{:+.1} % bytes per fsync, {slower:+.1} points of cost", traffic.percent),
        (
            verdict,
            format!(
                "Compared with seed on ide, empty-txn writes {:+.1} ± {:.1} % bytes per fsync, and its cost \
                 differs by {slower:+.1} ± {half:.1} points.",
                traffic.percent,
                traffic.plus_minus_percent.unwrap_or(f64::INFINITY)
            ),
        ),
        &["traffic", "rate"],
    )
}

fn stacks(measured: &Measured, claim: &MakeClaim<'_>) -> Claim {
    let flush = |device: &'static str| measured.mean((device, THREADS, "none"), |outcome| outcome.flush_us);
    let ide = flush(IDE).unwrap_or(0.0);
    let stacked: Vec<(&str, f64)> = SETUPS
        .iter()
        .filter(|setup| setup.stack != Stack::Single)
        .filter_map(|setup| Some((setup.name, flush(setup.name)?)))
        .collect();
    let coordinates = SETUPS.iter().filter(|setup| setup.stack != Stack::Single).all(|setup| {
        let bypassed = |outcome: &Outcome| outcome.counts.bypassed as f64;
        measured.mean((setup.name, THREADS, "seed"), bypassed).is_some_and(|bypassed| bypassed < 1.0)
    });
    let list = stacked.iter().map(|(name, us)| format!("{name} {:.1} ms", us / 1e3)).collect::<Vec<_>>();
    let list = list.join(", ");
    let verdict = if coordinates && !stacked.is_empty() { Verdict::Confirmed } else { Verdict::Open };
    claim(
        "md and dm report the flush times of their components, so that stacks of slow disks coordinate, too.",
        "components report their flush times",
        list.clone(),
        (
            verdict,
            format!(
                "Measured averages: {list}; ide alone {:.1} ms. {}",
                ide / 1e3,
                if coordinates { "All stacks coordinate." } else { "Not all stacks coordinate." }
            ),
        ),
        &["cost"],
    )
}
