//! Computes rows and expectations from runs, and prints the table.

use extant_extent_status::{Policy, Times};

use super::sim::Outcome;
use super::{Bar, Case, Report, Row, tables};
use crate::report::Table;
use crate::summary::Summary;

/// How many times shorter es-gc's mean scan must be than baseline's; the study of 2014 had 28 and 155.
const GIANT_TREES_MIN: f64 = 20.0;
const MANY_INODES_MIN: f64 = 100.0;
/// Memory per entry in bytes, including its share of trees, inodes and lists.
const BYTES_MAX: f64 = 24.0;

/// Shares of the scans whose longest time is reported, for a plot of the distribution.
const SHARES: [f64; 16] =
    [0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 1.0];

pub(super) fn row(case: Case, policy: Policy, runs: &[Outcome]) -> Row {
    let over = |of: &dyn Fn(&Outcome) -> f64| Summary::of(&runs.iter().map(of).collect::<Vec<_>>());
    let last = &runs[runs.len() - 1];
    let (stats, user) = (&last.stats, last.user());
    let quantile = |share| stats.scan_times.quantile_ns(share) as f64 / 1e3;
    let (scan_avg_us, scan_max_us) = (
        over(&|run| run.stats.scan_times.avg_ns() / 1e3),
        over(&|run| run.stats.scan_times.max_ns() as f64 / 1e3),
    );
    let has_reader = last.reads.count() > 0;
    let mut all_scans = Times::default();
    runs.iter().for_each(|run| all_scans.add_all(&run.stats.scan_times));
    let own = own_ns(runs);
    let (own_avg_us, longest_us) = own.as_ref().map_or((scan_avg_us.median, scan_max_us.median), |own| {
        let longest = own.iter().copied().max().unwrap_or(0);
        (own.iter().sum::<u64>() as f64 / own.len().max(1) as f64 / 1e3, longest as f64 / 1e3)
    });
    let longest = own.and_then(|own| (0..own.len()).max_by_key(|at| own[*at])).map(|at| last.scans[at].1);
    Row {
        case,
        policy: policy.name(),
        calls: user.count(),
        cut: user.count() < last.calls,
        scans: stats.scan_times.count(),
        scan_avg_us,
        scan_max_us,
        scan_own_avg_us: own_avg_us,
        scan_longest_us: longest_us,
        scan_longest_work: longest.map(|scan| (scan.scanned + scan.inodes, scan.reclaimed)),
        scan_p50_us: quantile(0.5),
        scan_p99_us: quantile(0.99),
        scan_p999_us: quantile(0.999),
        scan_work_max: stats.work_max,
        visited: stats.scanned + stats.inodes_scanned,
        reclaimed: stats.reclaimed,
        ns_per_reclaimed: stats.scan_times.total_ns() as f64 / stats.reclaimed.max(1) as f64,
        hits: stats.hits,
        hits_runs: over(&|run| run.stats.hits as f64),
        misses: stats.misses,
        hit_ratio: stats.hit_ratio(),
        reader_hit_ratio: last.reader_hit_ratio,
        user_avg_us: over(&|run| run.user().avg_ns() / 1e3),
        user_max_us: over(&|run| run.user().max_ns() as f64 / 1e3),
        user_p999_us: user.quantile_ns(0.999) as f64 / 1e3,
        read_avg_us: has_reader.then(|| over(&|run| run.reads.avg_ns() / 1e3)),
        read_max_us: has_reader.then(|| over(&|run| run.reads.max_ns() as f64 / 1e3)),
        write_avg_us: over(&|run| run.writes.avg_ns() / 1e3),
        write_max_us: over(&|run| run.writes.max_ns() as f64 / 1e3),
        scan_distribution_us: SHARES.map(|share| (share, all_scans.quantile_ns(share) as f64 / 1e3)).to_vec(),
        entries: stats.entries,
        bytes_per_entry: stats.bytes as f64 / stats.entries.max(1) as f64,
    }
}

/// For each scan its shortest time over the runs: they did the same work, and everything else made them
/// longer. `None` if the runs differ.
fn own_ns(runs: &[Outcome]) -> Option<Vec<u64>> {
    let (first, rest) = runs.split_first()?;
    let differs = |run: &Outcome| {
        // Compares their work, not their time.
        !first.scans.iter().map(|scan| scan.1).eq(run.scans.iter().map(|scan| scan.1))
    };
    if rest.is_empty() || rest.iter().any(differs) {
        return None;
    }
    let shortest = |at: usize| runs.iter().map(|run| run.scans[at].0).min().unwrap_or(0);
    Some((0..first.scans.len()).map(shortest).collect())
}

pub(super) fn bars(rows: &[Row]) -> Vec<Bar> {
    let mut bars = Vec::new();
    for case in Case::ALL {
        let of = |policy: Policy| rows.iter().find(|row| row.case == case && row.policy == policy.name());
        let min = match case {
            Case::GiantTrees => Some(GIANT_TREES_MIN),
            Case::ManyInodes => Some(MANY_INODES_MIN),
            Case::Reader => None,
        };
        if let (Some(min), Some(old), Some(gc)) = (min, of(Policy::Baseline), of(Policy::EsGc)) {
            let times = old.scan_avg_us.median / gc.scan_avg_us.median.max(1e-9);
            bars.push(Bar {
                case,
                what: format!("es-gc's mean scan is {min:.0} times shorter than baseline's"),
                figure: format!("{times:.0} times"),
                holds: times >= min,
                scale_min: 1.0,
            });
        }
        let Some(ours) = of(Policy::EsChunk) else { continue };
        // A policy that never had to scan is not better.
        let six = rows.iter().filter(|row| row.case == case && row.scans > 0);
        let six: Vec<&Row> = six.filter(|row| row.policy != Policy::EsChunk.name()).collect();
        let best = |of: fn(&Row) -> f64| {
            let ranked = six.iter().map(|row| (of(row), row.policy));
            ranked.min_by(|a, b| a.0.total_cmp(&b.0))
        };
        let mean: fn(&Row) -> f64 = |row| row.scan_own_avg_us;
        let longest: fn(&Row) -> f64 = |row| row.scan_longest_us;
        for (which, of) in [("mean", mean), ("longest", longest)] {
            if let Some((figure, policy)) = best(of) {
                bars.push(Bar {
                    case,
                    what: format!("es-chunk's {which} scan is no longer than the best of the others"),
                    figure: format!("{:.2} us, {policy} {figure:.2} us", of(ours)),
                    holds: of(ours) <= figure,
                    scale_min: 0.0,
                });
            }
        }
        bars.push(Bar {
            case,
            what: format!("es-chunk has at most {BYTES_MAX:.0} bytes for an entry, all included"),
            figure: format!("{:.1}", ours.bytes_per_entry),
            holds: ours.bytes_per_entry <= BYTES_MAX,
            scale_min: 0.05,
        });
        if let Some(gc) = of(Policy::EsGc) {
            bars.push(Bar {
                case,
                what: "es-chunk hits no less than es-gc, to 0.0001".to_owned(),
                figure: format!("{:.4}, es-gc {:.4}", ours.hit_ratio, gc.hit_ratio),
                holds: ours.hit_ratio >= gc.hit_ratio - 1e-4,
                scale_min: 0.05,
            });
        }
    }
    bars
}

impl Bar {
    /// Whether the expectation applies to a study of this scale.
    #[must_use]
    pub fn applies(&self, scale: f64) -> bool {
        scale >= self.scale_min
    }
}

impl Report {
    /// The tables of the posting. Its figures are in them where the study has the posting's size.
    #[must_use]
    pub fn tables(&self) -> Vec<Table> {
        tables::tables(self, self.scale >= 1.0)
    }
}

#[cfg(test)]
mod tests {
    use extant_extent_status::{Scan, Stats};

    use super::*;

    fn outcome(scans: &[u64]) -> Outcome {
        let scans = scans.iter().map(|ns| (*ns, Scan { scanned: 7, ..Scan::default() })).collect();
        Outcome {
            stats: Stats::default(),
            reads: Times::default(),
            writes: Times::default(),
            reader_hit_ratio: None,
            scans,
            calls: 0,
        }
    }

    #[test]
    fn a_scan_takes_what_its_shortest_run_took() {
        let runs = [outcome(&[5, 90, 7]), outcome(&[6, 8, 70]), outcome(&[50, 9, 80])];
        assert_eq!(own_ns(&runs), Some(vec![5, 8, 7]));
        let row = row(Case::Reader, Policy::EsChunk, &runs);
        assert_eq!((row.scan_longest_us, row.scan_own_avg_us), (0.008, 20.0 / 3.0 / 1e3));
        assert_eq!(row.scan_longest_work, Some((7, 0)));
        // One run, or runs with different work, give no shortest times.
        assert_eq!(own_ns(&runs[..1]), None);
        assert_eq!(own_ns(&[outcome(&[1]), outcome(&[1, 2])]), None);
        let mut other = outcome(&[1]);
        other.scans[0].1.reclaimed = 1;
        assert_eq!(own_ns(&[outcome(&[1]), other]), None);
    }
}
