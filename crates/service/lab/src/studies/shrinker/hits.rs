//! The claims on hits, and their verdicts by the tables.

use super::claims::{
    CACHE, Judged, NEW, OLD, OWN, Pair, Runs, SERIES, SLIST, factor, listed, percent, posted, posted_text,
};
use crate::Summary;
use crate::report::{Claim, StudyReport, Table, Verdict};
use crate::shrinker::tables::{Effect, calls, comparable, ended_early, grouped, hits_at_most};

/// A claim on hits. All complete runs of a case make the same calls, so their hits compare.
pub(super) fn hits(report: &StudyReport, claim: &str, id: &str, pair: Pair) -> Claim {
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
        None => format!(
            "{ended}, because its scans had reached the limit of visits. Its misses so far do not decide \
             whether a complete run has fewer hits."
        ),
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

/// Tables of hits and the names of their cases.
const TABLES: [(&str, &str); 3] = [("hits-a", "(a)"), ("hits-b", "(b)"), ("hits-c", "(c)")];

/// The claim on patch 3. A ratio is a mean, so it also compares if a run ended early.
pub(super) fn ratios(report: &StudyReport) -> Claim {
    let (mut ours, mut its) = (Vec::new(), Vec::new());
    let (mut higher, mut others, mut early) = (Vec::new(), Vec::new(), Vec::new());
    for (id, case) in TABLES {
        let Some(table) = report.table(id) else { continue };
        if let Some([old, new]) = posted(report, id, [OLD, CACHE]) {
            its.push(format!("{case} {OLD} {}, {CACHE} {}", grouped(old.avg), grouped(new.avg)));
        }
        let ratio = |policy: &str| table.extra(&[policy], "hit ratio");
        let (Some(old), Some(new)) = (ratio(OLD), ratio(CACHE)) else { continue };
        ours.push(format!("{case} {OLD} {}, {CACHE} {}", percent(old), percent(new)));
        if new > old {
            higher.push(case)
        } else {
            others.push(case)
        }
        let cut = [OLD, CACHE].into_iter().filter(|policy| ended_early(table, policy));
        early.extend(cut.map(|policy| format!("{policy} ended early in {case}{}", calls(table, policy))));
    }
    let verdict = match (higher.len(), others.len()) {
        (3, _) => Verdict::Confirmed,
        (_, 0) => Verdict::Open,
        _ => Verdict::Refuted,
    };
    let mut why = Vec::new();
    if !higher.is_empty() {
        why.push(format!("The hit ratio is higher in {}.", listed(&higher)));
    }
    if !others.is_empty() {
        why.push(format!("The hit ratio is not higher in {}.", listed(&others)));
    }
    if higher.len() + others.len() < TABLES.len() {
        why.push("A case was not measured.".to_owned());
    }
    if !early.is_empty() {
        why.push(format!("{}; the ratio is of the calls until then.", early.join(", ")));
    }
    let text = |parts: Vec<String>, unit: &str| match parts.is_empty() {
        true => "not in this report".to_owned(),
        false => format!("{unit}: {}", parts.join("; ")),
    };
    Claim {
        claim: "Patch 3: es-cache increases the hit ratio of baseline.".to_owned(),
        posting: text(its, "hits"),
        ours: text(ours, "hit ratio"),
        kernel: None,
        verdict,
        why: why.join(" "),
        tables: TABLES.map(|(id, _)| id.to_owned()).to_vec(),
    }
}
