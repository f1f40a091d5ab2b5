//! How orphan tracking scales with the number of writers.
//!
//! ```text
//! truncate   each worker: its own file of 4096 bytes; repeat: cut to 4095, 4094, ... 1, extend to 4096
//! creat_clo  each worker: repeat: create and close 1000 files, then unlink them
//! ```
//!
//! A cut of a file without blocks does little besides tracking: it adds an orphan, changes the inode, and
//! removes the orphan. So the load shows the cost of tracking: under the list's lock (four acquisitions per
//! cut in version 0, where every call checks under the lock; two in version 3), or in a slot of the orphan
//! file.
//!
//! Modes are compared side by side: within a run each mode takes its turn on a fresh file system, so that
//! other load of the machine affects all modes. Source: the linux-ext4 series "Improve orphan list scaling"
//! v3, 2014.

use std::fmt;
use std::sync::Barrier;
use std::time::Instant;

use extant_image::options::{FeatureEdit, FormatOptions};
use extant_volume::{LockStats, OpenOptions, OrphanMode, WriteOptions};
use serde::Serialize;

use crate::ground::{Ground, Site};
use crate::summary::{by_runs, rate};
use crate::{Engine, Failed, Kernel, LabFault, Summary, Watch, WorkDir};

/// Size of a worker's file, in bytes.
pub const FILE_BYTES: u64 = 4096;
/// Files that creat_clo creates before it unlinks them.
pub const FILES: u64 = 1000;
/// Numbers of workers in the posting.
pub const WIDTHS: [usize; 6] = [1, 2, 4, 10, 20, 40];
/// Minimum run time of one worker in seconds, if the number of loops is not given.
const SECONDS_MIN: f64 = 1.0;

/// How orphans are tracked: one column of the study.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The list as before 2014: every check runs under its lock.
    ListV0,
    /// The list; work that does not need the lock runs outside it.
    ListV3,
    /// The orphan file.
    File,
    /// Nothing is tracked.
    None,
    /// The orphan file; an operation that finishes in one transaction tracks nothing. The engine's default.
    SingleHandle,
    /// The kernel's file system, in a directory.
    Kernel,
}

impl Mode {
    /// All modes of the engine, in the order of the columns.
    pub const ENGINE: [Self; 5] = [Self::ListV0, Self::ListV3, Self::File, Self::None, Self::SingleHandle];

    /// The name, as the command line spells it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::SingleHandle => "single-handle",
            Self::Kernel => "kernel",
            engine => engine.tracking().name(),
        }
    }

    /// The mode with this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ENGINE.into_iter().chain([Self::Kernel]).find(|mode| mode.name() == name)
    }

    fn tracking(self) -> OrphanMode {
        match self {
            Self::ListV0 => OrphanMode::ListV0,
            Self::ListV3 => OrphanMode::ListV3,
            Self::None => OrphanMode::None,
            Self::File | Self::SingleHandle | Self::Kernel => OrphanMode::File,
        }
    }

    fn write_options(self) -> WriteOptions {
        let track_all_orphans = self != Self::SingleHandle;
        WriteOptions { orphans: self.tracking(), track_all_orphans, ..WriteOptions::default() }
    }

    fn format_options(self, options: &FormatOptions) -> FormatOptions {
        let list = if matches!(self, Self::ListV0 | Self::ListV3) { "^orphan_file" } else { "orphan_file" };
        let mut options = options.clone();
        options.features.extend(FeatureEdit::parse_list(list).unwrap_or_default());
        options
    }
}

/// The load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// Cuts of one file per worker; the result is in seconds.
    Truncate,
    /// Creations and unlinks; the result is in operations per second.
    CreatClo,
}

impl Load {
    /// Operations per loop of one worker.
    #[must_use]
    pub fn operations(self) -> u64 {
        match self {
            Self::Truncate => FILE_BYTES,
            // Each file is created, closed and unlinked; only creation and unlink change something, so they
            // count.
            Self::CreatClo => 2 * FILES,
        }
    }
}

/// The parameters of a study.
#[derive(Clone)]
pub struct Study {
    /// The load.
    pub load: Load,
    /// The columns.
    pub modes: Vec<Mode>,
    /// Numbers of workers.
    pub widths: Vec<usize>,
    /// Runs of each mode and number of workers.
    pub runs: usize,
    /// Loops of a worker per run. `None`: as many as one worker can do in a second.
    pub loops: Option<u64>,
    /// Where the study creates file systems.
    pub site: Site,
    /// Size of the device, in bytes.
    pub size: u64,
    /// Options for creating file systems.
    pub format: FormatOptions,
    /// Options for opening volumes; the mode's options override them.
    pub open: OpenOptions,
    /// The working directory of [`Mode::Kernel`].
    pub kernel_dir: Option<std::path::PathBuf>,
}

impl Default for Study {
    /// The posting's: the list before and after it, beside the modes of later kernels.
    fn default() -> Self {
        Self {
            load: Load::Truncate,
            modes: Mode::ENGINE.to_vec(),
            widths: WIDTHS.to_vec(),
            runs: 10,
            loops: None,
            site: Site::Memory,
            size: 1 << 30,
            format: FormatOptions::default(),
            open: OpenOptions::default(),
            kernel_dir: None,
        }
    }
}

/// The results of a study.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The load.
    pub load: Load,
    /// Loops of a worker per run.
    pub loops: u64,
    /// Operations of one loop.
    pub operations_per_loop: u64,
    /// One row for each mode and number of workers.
    pub rows: Vec<Row>,
}

/// The results of one mode with one number of workers.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The mode.
    pub mode: Mode,
    /// Workers.
    pub workers: usize,
    /// Wall-clock seconds until all workers are done.
    pub seconds: Summary,
    /// These seconds in each run.
    pub runs: Vec<f64>,
    /// Operations per second, at the median of `seconds`.
    pub per_s: f64,
    /// Seconds of list-v0 divided by seconds of this mode in the same run, median of all runs: above 1 is
    /// faster. `None` if list-v0 was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub over_list_v0: Option<f64>,
    /// The same ratio as a change of the seconds against list-v0, in per cent: below 0 is faster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against_list_v0_percent: Option<f64>,
    /// Seconds of this mode divided by seconds of `none` in the same run, median of all runs: the cost of
    /// tracking. `None` if `none` was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_over_none: Option<f64>,
    /// Statistics of the list's lock over all runs; not for the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock: Option<Lock>,
    /// The same statistics of each run.
    #[serde(skip)]
    pub locks: Vec<Lock>,
}

/// Statistics of a lock, in the terms and the order of lockstat. Times are in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Lock {
    /// Contentions on another CPU than that of the acquisition before.
    pub con_bounces: u64,
    /// Times an acquisition had to wait.
    pub contentions: u64,
    /// The shortest wait.
    pub wait_min_us: f64,
    /// The longest wait.
    pub wait_max_us: f64,
    /// Total wait.
    pub wait_total_us: f64,
    /// Average wait per contention.
    pub wait_avg_us: f64,
    /// Acquisitions on another CPU than the acquisition before: the lock's cache line moves.
    pub acq_bounces: u64,
    /// Times the lock was acquired.
    pub acquisitions: u64,
    /// The shortest hold.
    pub hold_min_us: f64,
    /// The longest hold.
    pub hold_max_us: f64,
    /// Total hold.
    pub hold_total_us: f64,
    /// Average hold.
    pub hold_avg_us: f64,
}

impl Lock {
    /// The columns of lockstat: their names, and this lock's values.
    #[must_use]
    pub fn columns(&self) -> [(&'static str, f64); 12] {
        [
            ("con-bounces", self.con_bounces as f64),
            ("contentions", self.contentions as f64),
            ("waittime-min", self.wait_min_us),
            ("waittime-max", self.wait_max_us),
            ("waittime-total", self.wait_total_us),
            ("waittime-avg", self.wait_avg_us),
            ("acq-bounces", self.acq_bounces as f64),
            ("acquisitions", self.acquisitions as f64),
            ("holdtime-min", self.hold_min_us),
            ("holdtime-max", self.hold_max_us),
            ("holdtime-total", self.hold_total_us),
            ("holdtime-avg", self.hold_avg_us),
        ]
    }

    fn of(all: &[LockStats]) -> Self {
        let sum = |of: fn(&LockStats) -> u64| all.iter().map(of).sum::<u64>();
        let max = |of: fn(&LockStats) -> u64| all.iter().map(of).max().unwrap_or(0) as f64 / 1e3;
        // A run without the event has no shortest time.
        let min = |count: fn(&LockStats) -> u64, of: fn(&LockStats) -> u64| {
            let those = all.iter().filter(|lock| count(lock) > 0);
            those.map(of).min().unwrap_or(0) as f64 / 1e3
        };
        let (acquisitions, contentions) = (sum(|lock| lock.acquisitions), sum(|lock| lock.contentions));
        let wait_total_us = sum(|lock| lock.wait_total_ns) as f64 / 1e3;
        let hold_total_us = sum(|lock| lock.hold_total_ns) as f64 / 1e3;
        Self {
            con_bounces: sum(|lock| lock.contention_bounces),
            contentions,
            wait_min_us: min(|lock| lock.contentions, |lock| lock.wait_min_ns),
            wait_max_us: max(|lock| lock.wait_max_ns),
            wait_total_us,
            wait_avg_us: wait_total_us / contentions.max(1) as f64,
            acq_bounces: sum(|lock| lock.acquisition_bounces),
            acquisitions,
            hold_min_us: min(|lock| lock.acquisitions, |lock| lock.hold_min_ns),
            hold_max_us: max(|lock| lock.hold_max_ns),
            hold_total_us,
            hold_avg_us: hold_total_us / acquisitions.max(1) as f64,
        }
    }
}

/// Runs a study.
///
/// # Errors
/// A file system cannot be created, or an operation failed.
pub fn run(study: &Study, watch: &dyn Watch) -> Result<Report, LabFault> {
    if study.modes.contains(&Mode::Kernel) && study.kernel_dir.is_none() {
        return Err(LabFault::Usage("the mode kernel needs a directory to work in".to_owned()));
    }
    if study.runs == 0 || study.widths.contains(&0) || study.loops == Some(0) {
        return Err(LabFault::Usage("runs, widths and loops are at least 1".to_owned()));
    }
    let loops = match study.loops {
        Some(loops) => loops,
        None => calibrate(study, watch)?,
    };
    let mut rows = Vec::new();
    for &workers in &study.widths {
        let mut seconds = vec![Vec::new(); study.modes.len()];
        let mut locks = vec![Vec::new(); study.modes.len()];
        let turns = (study.runs * study.modes.len() * workers) as u64;
        watch.part(&format!("{workers} workers"), Some(turns * loops * study.load.operations()));
        for run in 0..study.runs {
            for turn in 0..study.modes.len() {
                // The order alternates between runs, so that it favours no mode.
                let at = if run % 2 == 0 { turn } else { study.modes.len() - 1 - turn };
                let (took, lock) = one_run(study, study.modes[at], workers, loops, watch)?;
                seconds[at].push(took);
                locks[at].extend(lock);
            }
        }
        let seconds_of = |mode: Mode| study.modes.iter().position(|&m| m == mode).map(|at| &seconds[at]);
        for (at, &mode) in study.modes.iter().enumerate() {
            let operations = loops * study.load.operations() * workers as u64;
            let all = Summary::of(&seconds[at]);
            let over_list_v0 = seconds_of(Mode::ListV0).map(|v0| by_runs(v0, &seconds[at]));
            rows.push(Row {
                mode,
                workers,
                seconds: all,
                per_s: rate(operations, all.median),
                over_list_v0,
                against_list_v0_percent: over_list_v0.map(|ratio| (1.0 / ratio - 1.0) * 100.0),
                cost_over_none: seconds_of(Mode::None).map(|none| by_runs(&seconds[at], none)),
                lock: (!locks[at].is_empty()).then(|| Lock::of(&locks[at])),
                locks: locks[at].iter().map(|lock| Lock::of(std::slice::from_ref(lock))).collect(),
                runs: seconds[at].clone(),
            });
        }
    }
    Ok(Report { load: study.load, loops, operations_per_loop: study.load.operations(), rows })
}

/// The number of loops with which one worker runs for a second, in the mode that is likely the fastest.
fn calibrate(study: &Study, watch: &dyn Watch) -> Result<u64, LabFault> {
    watch.part("how many loops", None);
    let mode = study.modes.last().copied().unwrap_or(Mode::File);
    let mut loops = 1;
    loop {
        let (took, _) = one_run(study, mode, 1, loops, &crate::Quiet)?;
        if took >= SECONDS_MIN / 8.0 {
            return Ok((loops as f64 * SECONDS_MIN * 1.1 / took).ceil().max(1.0) as u64);
        }
        loops *= 4;
    }
}

fn one_run(
    study: &Study,
    mode: Mode,
    workers: usize,
    loops: u64,
    watch: &dyn Watch,
) -> Result<(f64, Option<LockStats>), LabFault> {
    if mode == Mode::Kernel {
        let mut place = Kernel::at(study.kernel_dir.as_deref().unwrap_or("".as_ref()))?;
        return Ok((load(study.load, &mut place, workers, loops, watch)?, None));
    }
    let ground = Ground::fresh(&study.site, study.size, &mode.format_options(&study.format))?;
    let base = study.open.write;
    let of_mode = mode.write_options();
    let write =
        WriteOptions { orphans: of_mode.orphans, track_all_orphans: of_mode.track_all_orphans, ..base };
    let volume = ground.open(&OpenOptions { write, ..study.open.clone() })?;
    let took = load(study.load, &mut Engine::root(&volume), workers, loops, watch)?;
    let lock = volume.counters().orphan_lock_stats();
    volume.close().map_err(LabFault::Close)?;
    Ok((took, lock))
}

/// Seconds from the common start of the workers to the end of the last one. The workers read the clock
/// themselves: this thread may get a CPU only after they are done.
fn load<P: WorkDir>(
    load: Load,
    place: &mut P,
    workers: usize,
    loops: u64,
    watch: &dyn Watch,
) -> Result<f64, Failed> {
    let mut places = Vec::new();
    for number in 0..workers {
        places.push(place.below(format!("worker-{number}").as_bytes())?);
    }
    let begin = Barrier::new(workers);
    std::thread::scope(|scope| {
        let threads: Vec<_> = places
            .into_iter()
            .map(|mut place| {
                let begin = &begin;
                scope.spawn(move || {
                    // An error is returned only after the barrier, because the other threads wait there.
                    let file = (load == Load::Truncate).then(|| place.open(b"file")).transpose();
                    begin.wait();
                    let begun = Instant::now();
                    let file = file?;
                    for _ in 0..loops {
                        match &file {
                            Some(file) => truncate(&mut place, file)?,
                            None => creat_clo(&mut place)?,
                        }
                        watch.advance(load.operations());
                    }
                    let ended = Instant::now();
                    file.map(|file| place.close(file)).transpose()?;
                    Ok((begun, ended))
                })
            })
            .collect();
        let (mut first, mut last) = (None, None);
        for thread in threads {
            let (begun, ended) = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            first = Some(first.map_or(begun, |first: Instant| first.min(begun)));
            last = last.max(Some(ended));
        }
        Ok(first.zip(last).map_or(0.0, |(first, last)| (last - first).as_secs_f64()))
    })
}

fn truncate<P: WorkDir>(place: &mut P, file: &P::File) -> Result<(), Failed> {
    place.set_size(file, FILE_BYTES)?;
    (1..FILE_BYTES).rev().try_for_each(|size| place.set_size(file, size))
}

fn creat_clo<P: WorkDir>(place: &mut P) -> Result<(), Failed> {
    use std::io::Write as _;
    let mut name = Vec::with_capacity(16);
    let mut each = |with: &mut dyn FnMut(&[u8]) -> Result<(), Failed>| {
        (0..FILES).try_for_each(|number| {
            name.clear();
            // A write to a vector cannot fail.
            let _ = write!(name, "file-{number}");
            with(&name)
        })
    };
    each(&mut |name| {
        let file = place.open(name)?;
        place.close(file)
    })?;
    each(&mut |name| place.unlink(name))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.load {
            Load::Truncate => "truncate: each worker cuts its own file from 4096 bytes to 1, byte by byte",
            Load::CreatClo => "creat_clo: each worker creates and closes 1000 files, then unlinks them",
        };
        writeln!(f, "{what}; {} loops", self.loops)?;
        writeln!(
            f,
            "\n{:14} {:>3} {:>9} {:>9} {:>9} {:>9} {:>8} {:>12} {:>8} {:>8} {:>9}",
            "mode", "N", "Min", "Max", "Median", "Avg", "Stddev", "ops/s", "to v0", "v0/this", "this/none"
        )?;
        let ratio = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.3}"));
        let percent = |percent: Option<f64>| percent.map_or("-".to_owned(), |value| format!("{value:+.1}%"));
        for row in &self.rows {
            let Summary { min, max, median, avg, stddev, .. } = row.seconds;
            writeln!(
                f,
                "{:14} {:>3} {min:>9.4} {max:>9.4} {median:>9.4} {avg:>9.4} {stddev:>8.4} {:>12.0} {:>8} {:>8} {:>9}",
                row.mode.name(),
                row.workers,
                row.per_s,
                percent(row.against_list_v0_percent),
                ratio(row.over_list_v0),
                ratio(row.cost_over_none)
            )?;
        }
        if self.rows.iter().all(|row| row.lock.is_none()) {
            return Ok(());
        }
        writeln!(f, "\nthe list's lock as lockstat shows it, all runs; times in microseconds")?;
        let locks = || self.rows.iter().filter_map(|row| Some((row, row.lock?.columns())));
        // Two halves of six columns each, as in the posting: a terminal is narrow.
        for half in [0..6, 6..12] {
            for (at, (row, columns)) in locks().enumerate() {
                if at == 0 {
                    write!(f, "{:14} {:>3}", "mode", "N")?;
                    columns[half.clone()].iter().try_for_each(|(name, _)| write!(f, " {name:>14}"))?;
                    writeln!(f)?;
                }
                write!(f, "{:14} {:>3}", row.mode.name(), row.workers)?;
                for (name, value) in &columns[half.clone()] {
                    let digits = if name.contains("time") { 2 } else { 0 };
                    write!(f, " {value:>14.digits$}")?;
                }
                writeln!(f)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn study(load: Load) -> Study {
        Study { load, widths: vec![1, 2], runs: 2, loops: Some(1), size: 64 << 20, ..Study::default() }
    }

    #[test]
    fn the_modes_take_the_lock_as_often_as_they_are_made_to() {
        let report = run(&study(Load::Truncate), &crate::Quiet).unwrap();
        let cuts = FILE_BYTES - 1;
        for row in &report.rows {
            let lock = row.lock.unwrap();
            let per_cut = lock.acquisitions as f64 / (cuts * 2 * row.workers as u64) as f64;
            let expected = match row.mode {
                Mode::ListV0 => 4.0,
                Mode::ListV3 => 2.0,
                _ => 0.0,
            };
            assert!((per_cut - expected).abs() < 0.01, "{:?} {per_cut}", row.mode);
            assert!(lock.acq_bounces <= lock.acquisitions && lock.con_bounces <= lock.contentions);
            assert!(lock.hold_min_us <= lock.hold_avg_us && lock.hold_avg_us <= lock.hold_max_us);
            assert!(lock.wait_min_us <= lock.wait_avg_us && lock.wait_avg_us <= lock.wait_max_us);
            assert_eq!((row.runs.len(), row.locks.len()), (2, 2));
            assert_eq!(row.locks.iter().map(|lock| lock.acquisitions).sum::<u64>(), lock.acquisitions);
        }
        assert_eq!(report.rows.len(), 10);
        assert!(report.rows[0].over_list_v0 == Some(1.0) && report.to_string().contains("single-handle"));
        assert!(report.rows[0].against_list_v0_percent == Some(0.0));
        assert!(report.to_string().contains("con-bounces") && report.to_string().contains("holdtime-min"));
    }

    #[test]
    fn create_and_close_runs_in_all_modes_and_on_the_system() {
        let scratch = tempfile::tempdir().unwrap();
        let mut study = study(Load::CreatClo);
        study.modes.push(Mode::Kernel);
        study.kernel_dir = Some(scratch.path().to_owned());
        assert_eq!(run(&study, &crate::Quiet).unwrap().rows.len(), 12);
        study.kernel_dir = None;
        assert!(run(&study, &crate::Quiet).is_err());
    }
}
