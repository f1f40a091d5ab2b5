//! Lists of the runs of a file, in order of logical blocks.

use extant_check::survey::Run;

/// Appends a run; joins it with the last one if it continues that one.
pub(crate) fn push(runs: &mut Vec<Run>, run: Run) {
    match runs.last_mut() {
        Some(last)
            if last.lblk.0 + last.len == run.lblk.0
                && last.pblk.0 + u64::from(last.len) == run.pblk.0
                && last.unwritten == run.unwritten =>
        {
            last.len += run.len;
        }
        _ => runs.push(run),
    }
}

/// The parts of runs before the logical block `end`.
pub(crate) fn before(runs: &[Run], end: u64) -> Vec<Run> {
    let before = runs.iter().filter(|run| u64::from(run.lblk.0) < end);
    before
        .map(|run| Run { len: u64::from(run.len).min(end - u64::from(run.lblk.0)) as u32, ..*run })
        .collect()
}

/// The number of blocks.
pub(crate) fn blocks(runs: &[Run]) -> u64 {
    runs.iter().map(|run| u64::from(run.len)).sum()
}
