//! The CPU time of the points of a run.
//!
//! The load prints a line at the end of each point and of each window. The meter reads the CPU time of the
//! process at these lines, so commits and all other threads are included.
//!
//! Only points are used: on a modelled drive a waiting thread yields the CPU in a loop for the last 25 us of
//! a wait, and this counts as CPU time. CPU time of the kernel's own threads belongs to no process.

use std::sync::{Mutex, PoisonError};

use rustix::time::ClockId;

use crate::Watch;
use crate::createmany::seconds_of;
use crate::large_dir::OfHash;

/// The CPU time of a point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Cost {
    /// Names created.
    pub(super) names: u64,
    /// CPU time in seconds.
    pub(super) cpu_s: f64,
}

/// CPU time per name in us; none without names.
pub(super) fn us_per_name(costs: &[Cost]) -> Option<f64> {
    let names: u64 = costs.iter().map(|cost| cost.names).sum();
    let cpu_s: f64 = costs.iter().map(|cost| cost.cpu_s).sum();
    (names > 0).then(|| cpu_s * 1e6 / names as f64)
}

/// Passes on the progress of a run, but not its lines: they would be many.
pub(super) struct Meter<'a> {
    watch: &'a dyn Watch,
    /// CPU time of the process when the first name is created, then after each point and window.
    marks: Mutex<Vec<f64>>,
}

impl<'a> Meter<'a> {
    pub(super) fn new(watch: &'a dyn Watch) -> Self {
        Self { watch, marks: Mutex::default() }
    }

    /// The cost of each point of this run.
    pub(super) fn costs(&self, of: &OfHash) -> Vec<Cost> {
        // Names only grow, so this is the order in which points and windows ended.
        let points = of.points.iter().map(|point| (point.names, true));
        let windows = of.windows.iter().map(|window| (window.names, false));
        let mut ends: Vec<(u64, bool)> = points.chain(windows).collect();
        ends.sort_by_key(|(names, _)| *names);
        let starts: Vec<u64> = std::iter::once(0).chain(ends.iter().map(|(names, _)| *names)).collect();
        let marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        let spans = marks.windows(2).map(|span| span[1] - span[0]);
        let parts = ends.iter().zip(starts).zip(spans);
        parts
            .filter(|((end, _), _)| end.1)
            .map(|((end, start), cpu_s)| Cost { names: end.0 - start, cpu_s })
            .collect()
    }

    fn mark(&self, is_start: bool) {
        let time = seconds_of(ClockId::ProcessCPUTime);
        let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        if is_start {
            marks.clear();
        }
        marks.push(time);
    }
}

impl Watch for Meter<'_> {
    fn advance(&self, objects: u64) {
        self.watch.advance(objects);
    }

    fn line(&self, _text: &str) {
        self.mark(false);
    }

    fn part(&self, _what: &str, _total: Option<u64>) {
        self.mark(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::large_dir::{Study, run};

    #[test]
    fn each_point_has_its_own_cost() {
        let study = Study {
            names: 30_000,
            per: 10_000,
            drives: vec![crate::drive::Drive::Nvme],
            window: std::time::Duration::from_millis(5),
            window_on_hdd: std::time::Duration::from_millis(5),
            ..Study::default()
        };
        let meter = Meter::new(&crate::Quiet);
        let of = run(&study, &meter).unwrap().hashes.remove(0);
        let costs = meter.costs(&of);
        assert_eq!(costs.len(), of.points.len());
        let in_windows: u64 = of.windows.iter().map(|window| window.done).sum();
        assert_eq!(costs.iter().map(|cost| cost.names).sum::<u64>() + in_windows, of.done);
        assert!(us_per_name(&costs).is_some_and(|us| us > 0.0 && us < 1000.0), "{costs:?}");
        assert_eq!(us_per_name(&[]), None);
    }
}
