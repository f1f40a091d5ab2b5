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
                let labels = [case.name(), row.policy, &format!("{scale}")];
                rows.push(Row {
                    extras: vec![Some(row.entries as f64), Some(row.scans as f64)],
                    ..Row::ours(&labels, &[row.scan_work_max as f64])
                });
            }
        }
    }
    rows.sort_by(|a, b| (&a.labels[0], &a.labels[1]).cmp(&(&b.labels[0], &b.labels[1])));
    let mut table = Table {
        id: "bound".to_owned(),
        title: "Beyond the posting: the longest scan while the load grows".to_owned(),
        in_posting: false,
        quantity: "entries and inodes that the longest scan visited".to_owned(),
        unit: String::new(),
        better: Better::Lower,
        labels: ["case", "policy", "scale"].map(str::to_owned).to_vec(),
        extras: vec!["entries".to_owned(), "scans".to_owned()],
        rows,
        note: String::new(),
    };
    table.note = Policy::ALL
        .iter()
        .filter_map(|policy| {
            let (least, most) = range(&table, *policy)?;
            Some(format!("{}: {least:.0} to {most:.0} visits over all cases and scales.", policy.name()))
        })
        .collect::<Vec<_>>()
        .join(" ");
    Ok(table)
}

/// The smallest and the largest of the longest scans of a policy.
fn range(table: &Table, policy: Policy) -> Option<(f64, f64)> {
    let rows = table.rows.iter().filter(|row| row.labels[1] == policy.name());
    let visits: Vec<f64> = rows.filter_map(|row| Some(row.ours?.max)).collect();
    let least = visits.iter().copied().reduce(f64::min)?;
    Some((least, visits.iter().copied().reduce(f64::max)?))
}

/// What one scan of es-chunk may visit: 128 entries, and as many inodes.
const VISITS_MAX: f64 = 256.0;

/// The verdict on the bound.
pub(super) fn claim(table: &Table) -> Claim {
    let chunk = range(table, Policy::EsChunk);
    let scales: Vec<&str> = table.rows.iter().map(|row| row.labels[2].as_str()).collect();
    let largest = scales.iter().filter_map(|scale| scale.parse::<f64>().ok()).fold(0.0, f64::max);
    let verdict = match chunk {
        Some((_, most)) if most > VISITS_MAX => Verdict::Refuted,
        // The posting's size is not a large one.
        Some(_) if largest >= 10.0 => Verdict::Beaten,
        Some(_) => Verdict::Confirmed,
        None => Verdict::Open,
    };
    Claim {
        claim:
            "Beyond the posting: the longest scan of es-chunk depends neither on the size of trees nor on \
             the number of inodes."
                .to_owned(),
        posting: "no bound: the longest scans of es-gc took 716, 56311 and 136 us".to_owned(),
        ours: chunk.map_or("not measured".to_owned(), |(least, most)| {
            format!("{least:.0} to {most:.0} visits at scales up to {largest}")
        }),
        kernel: None,
        verdict,
        why: format!(
            "A scan may visit {VISITS_MAX:.0} entries and inodes; {}",
            range(table, Policy::EsGc).map_or(String::new(), |(least, most)| {
                format!("es-gc's longest visited {least:.0} to {most:.0} at the smaller two of the scales.")
            })
        ),
        tables: vec![table.id.clone()],
    }
}
