//! Beyond the posting: how much one scan visits while the load grows a hundredfold.
//!
//! Visits of entries and inodes are counted, not timed: they are the same in every run, whatever else the
//! machine does.

use super::Size;
use crate::report::{Better, Claim, Row, Table, Verdict};
use crate::shrinker::{Case, Clock, Policy, Study, run};
use crate::{LabFault, Watch};

/// The scales of each case. 1 is the posting's size. Case (a) takes 2.4 GB at scale 1.
fn scales(size: Size, case: Case) -> [f64; 3] {
    match (size, case) {
        (Size::Quick, _) => [0.001, 0.01, 0.1],
        (Size::Full, Case::GiantTrees) => [0.02, 0.2, 2.0],
        (Size::Full, Case::ManyInodes | Case::Reader) => [0.1, 1.0, 10.0],
    }
}

/// Runs es-chunk, and for comparison es-gc and upstream at the smaller scales.
pub(super) fn table(size: Size, watch: &dyn Watch) -> Result<Table, LabFault> {
    let mut rows = Vec::new();
    for case in Case::ALL {
        let [small, usual, large] = scales(size, case);
        let all = vec![Policy::EsGc, Policy::Upstream, Policy::EsChunk];
        for (scale, policies) in [(small, all.clone()), (usual, all), (large, vec![Policy::EsChunk])] {
            let study = Study {
                cases: vec![case],
                policies,
                runs: 1,
                threads: 1,
                scale,
                clock: Clock::Cpu,
                work_max: Some(super::work_max(size)),
            };
            for row in run(&study, watch)?.rows.iter().filter(|row| row.scans > 0) {
                let labels = [case.letter(), row.policy, &format!("{scale}")];
                rows.push(Row {
                    extras: vec![Some(row.entries as f64), Some(row.scans as f64)],
                    ..Row::ours(&labels, &[row.scan_work_max as f64])
                });
            }
        }
    }
    rows.sort_by(|a, b| (&a.labels[0], &a.labels[1]).cmp(&(&b.labels[0], &b.labels[1])));
    Ok(Table {
        id: ID.to_owned(),
        title: "Beyond the posting: the longest scan while the load grows".to_owned(),
        in_posting: false,
        quantity: "entries and inodes that the longest scan visited".to_owned(),
        unit: String::new(),
        better: Better::Lower,
        labels: ["case", "policy", "scale"].map(str::to_owned).to_vec(),
        extras: vec!["entries".to_owned(), "scans".to_owned()],
        rows,
        note: String::new(),
    })
}

/// The longest scan of each policy, in visits.
pub(super) fn note(table: &Table) -> String {
    let policies = Policy::ALL.iter().filter_map(|policy| {
        let Range { least, most, .. } = range(table, *policy, &Case::ALL)?;
        Some(format!(
            "{} {least:.0} to {most:.0} at scales up to {}",
            policy.name(),
            scales_text(table, *policy)
        ))
    });
    format!("Entries and inodes that the longest scan visits: {}.", policies.collect::<Vec<_>>().join("; "))
}

/// The smallest and the largest of the longest scans of a policy in some cases, and the largest scale.
struct Range {
    least: f64,
    most: f64,
    largest: f64,
}

fn range(table: &Table, policy: Policy, cases: &[Case]) -> Option<Range> {
    let is_in = |row: &&Row| {
        row.labels[1] == policy.name() && cases.iter().any(|case| row.labels[0] == case.letter())
    };
    let rows: Vec<&Row> = table.rows.iter().filter(is_in).collect();
    let visits = || rows.iter().filter_map(|row| Some(row.ours?.max));
    let scales = rows.iter().filter_map(|row| row.labels[2].parse::<f64>().ok());
    Some(Range {
        least: visits().reduce(f64::min)?,
        most: visits().reduce(f64::max)?,
        largest: scales.fold(0.0, f64::max),
    })
}

/// The largest scales of a policy: "2 in (a), 10 in (b), 10 in (c)".
fn scales_text(table: &Table, policy: Policy) -> String {
    let scales = Case::ALL.iter().filter_map(|case| {
        let Range { largest, .. } = range(table, policy, &[*case])?;
        Some(format!("{largest} in {}", case.letter()))
    });
    scales.collect::<Vec<_>>().join(", ")
}

/// The visits of a policy in each case, from the smallest scale to the largest: "(a) 628, 154".
fn by_scale(table: &Table, policy: Policy) -> String {
    let of_case = |case: &Case| {
        let is_in = |row: &&Row| row.labels[0] == case.letter() && row.labels[1] == policy.name();
        let visits = table.rows.iter().filter(is_in).filter_map(|row| Some(format!("{:.0}", row.ours?.max)));
        format!("{} {}", case.letter(), visits.collect::<Vec<_>>().join(", "))
    };
    Case::ALL.iter().map(of_case).collect::<Vec<_>>().join("; ")
}

/// The table.
pub(super) const ID: &str = "bound";

/// What one scan of es-chunk may visit: 128 entries, and as many inodes.
const VISITS_MAX: f64 = 256.0;

/// The verdict on the bound: refuted if a scan exceeded it. The posting counts no visits, and those of es-gc
/// do not grow here, so the claim is never beaten.
pub(super) fn claim(table: &Table) -> Claim {
    let chunk = range(table, Policy::EsChunk, &Case::ALL);
    let verdict = match &chunk {
        Some(chunk) if chunk.most > VISITS_MAX => Verdict::Refuted,
        Some(_) => Verdict::Confirmed,
        None => Verdict::Open,
    };
    let mut why = format!("A scan of es-chunk may visit at most {VISITS_MAX:.0} entries and inodes.");
    if let Some(Range { least, most, .. }) = range(table, Policy::EsGc, &Case::ALL) {
        why += &format!(
            " That of es-gc visits {least:.0} to {most:.0} at scales up to {}, and does not grow with them \
             either ({}), so growth does not tell the two apart here.",
            scales_text(table, Policy::EsGc),
            by_scale(table, Policy::EsGc)
        );
    }
    why += " The largest scales differ: case (a) takes 2.4 GB of memory at scale 1.";
    Claim {
        claim:
            "Beyond the posting: the longest scan of es-chunk depends neither on the size of trees nor on \
             the number of inodes."
                .to_owned(),
        posting: "no count of visits; the longest scans of es-gc took 716 us, 56,311 us and 136 us"
            .to_owned(),
        ours: chunk.map_or("not measured".to_owned(), |Range { least, most, .. }| {
            let scales = scales_text(table, Policy::EsChunk);
            format!("{least:.0} to {most:.0} visits at scales up to {scales}")
        }),
        kernel: None,
        verdict,
        why,
        tables: vec![table.id.clone()],
    }
}
