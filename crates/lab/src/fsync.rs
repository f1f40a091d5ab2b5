//! What durability costs, and what sharing flushes saves.
//!
//! ```text
//! overwrite   each thread: overwrite a block of its own, ask for a flush; nothing else
//! happy       each thread: mostly reads, some writes of 40 KiB in a file's blocks, and a flush after each write
//! ```
//! The load works on a device, below any file system: it is the case in which a journal has nothing to commit and each fsync
//! would send a flush of its own. The device takes the times of another kind (`device::Model`), so that a disk can be studied where
//! there is none.
//!
//! For each device and number of threads, the modes have their turns side by side, and one turn is without flushes: `cost` is
//! 1 - throughput with / throughput without. Source: spec 05 sections 7 and 10.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use device::{Clock, Device, MemDevice, Model, Modelled};
use flush::{Coordinator, Delay, FlushCounts, Mode, Settings, Stream};
use serde::Serialize;

use crate::summary::rate;
use crate::{LabFault, Watch};

/// Bytes of an overwrite.
const BLOCK: usize = 4096;
/// Bytes of a read or write of the mix, which go block by block.
const SIZE: usize = 40_960;
/// Bytes that a thread works on.
const SHARE: u64 = 1 << 20;

/// What threads do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// Overwrites and flushes.
    Overwrite,
    /// A mix with many reads.
    Happy,
}

/// What to run.
#[derive(Debug, Clone)]
pub struct Study {
    /// What threads do.
    pub load: Load,
    /// The devices.
    pub models: Vec<Model>,
    /// The columns.
    pub modes: Vec<Mode>,
    /// Numbers of threads.
    pub widths: Vec<usize>,
    /// How long each turn takes.
    pub time: Duration,
    /// The mode's settings but the mode.
    pub settings: Settings,
    /// Where the threads' choices begin.
    pub seed: u64,
}

/// What was measured.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// What threads do.
    pub load: Load,
    /// The leader's delay.
    pub delay: &'static str,
    /// Seconds of a turn.
    pub seconds: f64,
    /// One row of each device, number of threads and mode.
    pub rows: Vec<Row>,
}

/// One device, number of threads and mode.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The device.
    pub device: &'static str,
    /// Threads.
    pub threads: usize,
    /// The mode; `no-barrier`: nothing is flushed.
    pub mode: &'static str,
    /// Operations per second, reads included.
    pub per_s: f64,
    /// Requests for durability.
    pub fsyncs: u64,
    /// Flushes that the device got for them.
    pub flushes: u64,
    /// Flushes by requests; 1 when nothing is shared.
    pub flushes_per_fsync: f64,
    /// Half of the requests took no longer, in microseconds.
    pub p50_us: f64,
    /// 99 of 100 requests took no longer, in microseconds.
    pub p99_us: f64,
    /// The part of the throughput that flushes take, 0 to 1; not of `no-barrier`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// The device's own average of a flush, in microseconds.
    pub flush_us: f64,
}

/// Runs a study.
///
/// # Errors
/// The device refused; a choice makes no sense.
pub fn run(study: &Study, watch: &dyn Watch) -> Result<Report, LabFault> {
    if study.widths.contains(&0) || study.time.is_zero() {
        return Err(LabFault::Usage("widths are at least 1, and a turn takes some time".to_owned()));
    }
    let mut rows = Vec::new();
    for &model in &study.models {
        for &threads in &study.widths {
            watch.part(&format!("{}, {threads} threads", model.name), None);
            let without = turn(study, model, threads, None)?;
            let base = without.per_s;
            rows.push(without);
            for &mode in &study.modes {
                let mut row = turn(study, model, threads, Some(mode))?;
                row.cost = (base > 0.0).then_some(1.0 - row.per_s / base);
                rows.push(row);
            }
        }
    }
    Ok(Report {
        load: study.load,
        delay: study.settings.delay.name(),
        seconds: study.time.as_secs_f64(),
        rows,
    })
}

type Disk = Coordinator<Modelled<MemDevice>>;

/// What one thread did.
#[derive(Default)]
struct Done {
    operations: u64,
    waits: Vec<Duration>,
}

fn turn(study: &Study, model: Model, threads: usize, mode: Option<Mode>) -> Result<Row, LabFault> {
    let size = SHARE * threads as u64;
    let modelled = Modelled::new(MemDevice::new(size), model, Clock::Real);
    let settings = Settings { mode: mode.unwrap_or(Mode::None), ..study.settings };
    let disk = Coordinator::new(modelled, settings);
    let refused = |fault: &dyn fmt::Display| LabFault::Device(fault.to_string());
    // The first flush tells how long one takes.
    disk.flush().map_err(|fault| refused(&fault))?;
    let stop = AtomicBool::new(false);
    let begin = Barrier::new(threads + 1);
    let (took, done) = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads as u64)
            .map(|thread| {
                let (disk, stop, begin) = (&disk, &stop, &begin);
                scope.spawn(move || {
                    begin.wait();
                    work(study, disk, thread, mode.is_some(), stop)
                })
            })
            .collect();
        begin.wait();
        let begun = Instant::now();
        std::thread::sleep(study.time);
        stop.store(true, Ordering::Relaxed);
        let joined = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        let done: Result<Vec<Done>, Arc<str>> = joined.collect();
        (begun.elapsed(), done)
    });
    let done = done.map_err(|why| refused(&why))?;
    let operations: u64 = done.iter().map(|done| done.operations).sum();
    let mut waits: Vec<Duration> = done.into_iter().flat_map(|done| done.waits).collect();
    waits.sort_unstable();
    let at = |part: usize| {
        let wait = waits.get(waits.len() * part / 100).or(waits.last());
        wait.map_or(0.0, |wait| wait.as_secs_f64() * 1e6)
    };
    let FlushCounts { requests, flushes, .. } = disk.counts();
    Ok(Row {
        device: model.name,
        threads,
        mode: mode.map_or("no-barrier", Mode::name),
        per_s: rate(operations, took.as_secs_f64()),
        fsyncs: requests,
        flushes,
        flushes_per_fsync: if requests == 0 { 0.0 } else { flushes as f64 / requests as f64 },
        p50_us: at(50),
        p99_us: at(99),
        cost: None,
        flush_us: disk.flush_nanos().unwrap_or(0) as f64 / 1e3,
    })
}

fn work(study: &Study, disk: &Disk, thread: u64, flushes: bool, stop: &AtomicBool) -> Result<Done, Arc<str>> {
    let mut done = Done::default();
    let mut random = study.seed ^ (thread << 32);
    let mut next = move |below: u64| {
        random = random.wrapping_add(1);
        base::salted::spread(random) % below
    };
    let mut block = [thread as u8; BLOCK];
    let refused = |fault: &dyn fmt::Display| Arc::from(fault.to_string());
    while !stop.load(Ordering::Relaxed) {
        // Of 14 operations of the mix six write: write, create, append.
        let (writes, blocks) = match study.load {
            Load::Overwrite => (true, 1),
            Load::Happy => (next(14) < 6, (SIZE / BLOCK) as u64),
        };
        for _ in 0..blocks {
            let at = thread * SHARE + next(SHARE / BLOCK as u64) * BLOCK as u64;
            match writes {
                true => disk.write_at(at, &block),
                false => disk.read_at(at, &mut block),
            }
            .map_err(|fault| refused(&fault))?;
        }
        if writes && flushes {
            let asked = Instant::now();
            disk.flush_for(Stream(thread)).map_err(|fault| refused(&fault))?;
            done.waits.push(asked.elapsed());
        }
        done.operations += 1;
    }
    Ok(done)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.load {
            Load::Overwrite => "overwrite: each thread overwrites a block of its own and asks for a flush",
            Load::Happy => {
                "happy: each thread reads and writes 40 KiB, and asks for a flush after each write"
            }
        };
        writeln!(f, "{what}; {} s a turn, delay {}", self.seconds, self.delay)?;
        writeln!(
            f,
            "\n{:13} {:>3} {:11} {:>10} {:>9} {:>9} {:>7} {:>10} {:>10} {:>7} {:>9}",
            "device",
            "T",
            "mode",
            "ops/s",
            "fsyncs",
            "flushes",
            "fl/fs",
            "p50 us",
            "p99 us",
            "cost",
            "flush us"
        )?;
        for row in &self.rows {
            let cost = row.cost.map_or("-".to_owned(), |cost| format!("{:.1}%", cost * 100.0));
            writeln!(
                f,
                "{:13} {:>3} {:11} {:>10.0} {:>9} {:>9} {:>7.3} {:>10.0} {:>10.0} {cost:>7} {:>9.0}",
                row.device,
                row.threads,
                row.mode,
                row.per_s,
                row.fsyncs,
                row.flushes,
                row.flushes_per_fsync,
                row.p50_us,
                row.p99_us,
                row.flush_us
            )?;
        }
        Ok(())
    }
}

/// Choices that a command line leaves open.
impl Default for Study {
    fn default() -> Self {
        Self {
            load: Load::Overwrite,
            models: Model::ALL.to_vec(),
            modes: Mode::ALL.to_vec(),
            widths: vec![1, 4, 16, 64],
            time: Duration::from_millis(500),
            settings: Settings { delay: Delay::default(), ..Settings::default() },
            seed: 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Quiet;

    #[test]
    fn threads_share_flushes_of_a_disk_and_not_of_an_array() {
        let study = Study {
            models: vec![Model::HDD, Model::ARRAY],
            widths: vec![16],
            time: Duration::from_millis(300),
            ..Study::default()
        };
        let report = run(&study, &Quiet).unwrap();
        let row = |device: &str, mode: &str| {
            report.rows.iter().find(|row| row.device == device && row.mode == mode).unwrap()
        };
        assert!((row("hdd", "none").flushes_per_fsync - 1.0).abs() < 1e-9);
        for mode in ["seed", "merge", "epoch"] {
            assert!(row("hdd", mode).flushes_per_fsync < 0.25, "{:?}", row("hdd", mode));
        }
        // So fast that nobody is made to wait.
        assert!((row("array", "seed").flushes_per_fsync - 1.0).abs() < 1e-9);
        assert_eq!(row("hdd", "no-barrier").flushes, 0);
    }
}
