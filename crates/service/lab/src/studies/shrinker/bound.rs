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
        let Range { least, most, largest } = range(table, *policy)?;
        Some(format!("{} {least:.0} to {most:.0} at scales up to {largest}", policy.name()))
    });
    format!("Entries and inodes that the longest scan visits: {}.", policies.collect::<Vec<_>>().join(", "))
}

/// The smallest and the largest of the longest scans of a policy, and its largest scale.
struct Range {
    least: f64,
    most: f64,
    largest: f64,
}

fn range(table: &Table, policy: Policy) -> Option<Range> {
    let rows: Vec<&Row> = table.rows.iter().filter(|row| row.labels[1] == policy.name()).collect();
    let visits = || rows.iter().filter_map(|row| Some(row.ours?.max));
    let scales = rows.iter().filter_map(|row| row.labels[2].parse::<f64>().ok());
    Some(Range {
        least: visits().reduce(f64::min)?,
        most: visits().reduce(f64::max)?,
        largest: scales.fold(0.0, f64::max),
    })
}

/// The table.
pub(super) const ID: &str = "bound";

/// What one scan of es-chunk may visit: 128 entries, and as many inodes.
const VISITS_MAX: f64 = 256.0;

/// The verdict on the bound: refuted if a scan exceeded it, and beaten if it holds at ten times the size of
/// the posting.
pub(super) fn claim(table: &Table) -> Claim {
    let chunk = range(table, Policy::EsChunk);
    let verdict = match &chunk {
        Some(chunk) if chunk.most > VISITS_MAX => Verdict::Refuted,
        // The posting's size is not a large one.
        Some(chunk) if chunk.largest >= 10.0 => Verdict::Beaten,
        Some(_) => Verdict::Confirmed,
        None => Verdict::Open,
    };
    let mut why = format!("A scan of es-chunk may visit at most {VISITS_MAX:.0} entries and inodes.");
    if let Some(Range { least, most, largest }) = range(table, Policy::EsGc) {
        why += &format!(" The longest of es-gc visited {least:.0} to {most:.0} at scales up to {largest}.");
    }
    Claim {
        claim:
            "Beyond the posting: the longest scan of es-chunk depends neither on the size of trees nor on \
             the number of inodes."
                .to_owned(),
        posting: "no bound: the longest scans of es-gc took 716 us, 56,311 us and 136 us".to_owned(),
        ours: chunk.map_or("not measured".to_owned(), |Range { least, most, largest }| {
            format!("{least:.0} to {most:.0} visits at scales up to {largest}")
        }),
        kernel: None,
        verdict,
        why,
        tables: vec![table.id.clone()],
    }
}
