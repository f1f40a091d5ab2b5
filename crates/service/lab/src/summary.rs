//! Statistics over several runs.

use serde::{Deserialize, Serialize};

/// Statistics of runs, in the unit of the runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Number of runs.
    pub runs: usize,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// The middle value, or the mean of the two middle values.
    pub median: f64,
    /// Mean.
    pub avg: f64,
    /// Sample standard deviation; 0 for one run.
    pub stddev: f64,
}

impl Summary {
    /// The summary of these values; all zero if there are none.
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let (Some(&min), Some(&max)) = (sorted.first(), sorted.last()) else {
            return Self { runs: 0, min: 0.0, max: 0.0, median: 0.0, avg: 0.0, stddev: 0.0 };
        };
        let avg = sorted.iter().sum::<f64>() / n as f64;
        let squares: f64 = sorted.iter().map(|value| (value - avg).powi(2)).sum();
        let stddev = if n > 1 { (squares / (n - 1) as f64).sqrt() } else { 0.0 };
        Self { runs: n, min, max, median: f64::midpoint(sorted[(n - 1) / 2], sorted[n / 2]), avg, stddev }
    }
}

impl Summary {
    /// Half of the 95 % confidence interval of the mean, by Student's t distribution; none for a single run.
    #[must_use]
    pub fn half_95(&self) -> Option<f64> {
        let degrees = self.runs.checked_sub(1).filter(|degrees| *degrees > 0)?;
        Some(t_95(degrees) * self.stddev / (self.runs as f64).sqrt())
    }
}

/// The two-sided 95 % quantile of Student's t distribution. Exact to three digits up to 30 degrees of
/// freedom, then by the first terms of its expansion around the normal quantile.
pub(crate) fn t_95(degrees: usize) -> f64 {
    const TABLE: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
        2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048,
        2.045, 2.042,
    ];
    match degrees {
        0 => f64::INFINITY,
        1..=30 => TABLE[degrees - 1],
        _ => 1.959_964 + 2.372 / degrees as f64,
    }
}

/// Objects per second; 0 if no time passed.
#[must_use]
pub fn rate(objects: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { objects as f64 / seconds } else { 0.0 }
}

/// The median over all runs of the ratio of two values measured in the same run. Slow changes of the machine
/// affect both values.
#[must_use]
pub fn by_runs(these: &[f64], those: &[f64]) -> f64 {
    let ratios: Vec<f64> = these.iter().zip(those).map(|(this, that)| this / that).collect();
    Summary::of(&ratios).median
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_numbers() {
        let summary = Summary::of(&[4.0, 1.0, 3.0, 2.0]);
        assert_eq!((summary.min, summary.max, summary.median, summary.avg), (1.0, 4.0, 2.5, 2.5));
        assert!((summary.stddev - 1.290_994).abs() < 1e-5);
        // 3.182 * 1.291 / 2.
        assert!((summary.half_95().unwrap() - 2.054).abs() < 1e-3);
        assert_eq!(Summary::of(&[7.0]).half_95(), None);
        assert_eq!(Summary::of(&[7.0]).stddev, 0.0);
        assert_eq!(Summary::of(&[]).runs, 0);
        assert_eq!(rate(10, 0.0), 0.0);
        assert_eq!(by_runs(&[2.0, 9.0, 4.0], &[1.0, 3.0, 4.0, 5.0]), 2.0);
    }
}
