//! The cost of durability, and the savings of shared flushes.
//!
//! ```text
//! overwrite   each thread: overwrite a block of its own, request a flush; nothing else
//! happy       each thread: mostly reads, and a flush after each write; on files the mix of `happy`
//! ```
//!
//! On files, the load overwrites allocated blocks and calls fdatasync: the journal has nothing to commit, so
//! without sharing each fsync sends its own flush. On a device, the load runs below any file system, where
//! nothing else takes time. The device has the timing of another kind of device (`extant_device::Model`), so
//! that a study can measure a disk that the machine does not have.
//!
//! For each device and number of threads, the modes take turns side by side, and one turn runs without
//! flushes: `cost` is 1 - throughput with / throughput without. Source: the linux-ext4 series "ext4:
//! Coordinate data-only flush requests sent by fsync" v6, 2010.

pub(crate) mod happy;
pub mod turn;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use extant_base::Ino;
use extant_device::{Clock, Device, MemDevice, Model, Modelled};
use extant_flush::{Coordinator, Delay, FlushCounts, Mode, Settings, Stream};
use extant_image::options::FormatOptions;
use extant_volume::{New, OpenOptions, Volume, WriteOptions};
use serde::Serialize;

use crate::buffered::Path;
use crate::ground::Ground;
use crate::summary::rate;
use crate::{LabFault, Watch};

/// Bytes per overwrite.
const BLOCK: usize = 4096;
/// Bytes per read or write of the mix, which are done block by block.
const SIZE: usize = 40_960;
/// Bytes that each thread works on.
const SHARE: u64 = 1 << 20;

/// What each thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// Overwrites and flushes.
    Overwrite,
    /// A mix with many reads.
    Happy,
}

/// Where the threads work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum On {
    /// Each in its own part of a device, without a file system.
    Device,
    /// Each in its own file.
    Files,
}

/// The parameters of a study.
#[derive(Debug, Clone)]
pub struct Study {
    /// What each thread does.
    pub load: Load,
    /// Where the threads work.
    pub ground: On,
    /// The devices.
    pub models: Vec<Model>,
    /// The columns.
    pub modes: Vec<Mode>,
    /// Numbers of threads.
    pub widths: Vec<usize>,
    /// Duration of a turn.
    pub time: Duration,
    /// The data path of the files.
    pub path: Path,
    /// Flush settings; the mode comes from `modes`.
    pub settings: Settings,
    /// Seed of the threads' random choices.
    pub seed: u64,
}

/// The results of a study.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// What each thread did.
    pub load: Load,
    /// Where the threads worked.
    pub ground: On,
    /// The data path of the files; `None` on a device, and in a directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<Path>,
    /// The delay of a round's leader.
    pub delay: &'static str,
    /// Seconds of a turn.
    pub seconds: f64,
    /// One row for each device, number of threads and mode.
    pub rows: Vec<Row>,
}

/// The results of one device, number of threads and mode.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The device.
    pub device: &'static str,
    /// Threads.
    pub threads: usize,
    /// The mode; `no-barrier`: no flushes.
    pub mode: &'static str,
    /// Operations per second, including reads.
    pub per_s: f64,
    /// Requests for durability.
    pub fsyncs: u64,
    /// Flushes that the device received for them.
    pub flushes: u64,
    /// Flushes divided by requests; 1 if nothing is shared.
    pub flushes_per_fsync: f64,
    /// Median time of a request, in microseconds.
    pub p50_us: f64,
    /// 99 % quantile of request times, in microseconds.
    pub p99_us: f64,
    /// Share of the throughput that flushes cost, 0 to 1; not for `no-barrier`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// Average time of a flush on the device, in microseconds.
    pub flush_us: f64,
}

/// Runs a study.
///
/// # Errors
/// The device failed, or the parameters are invalid.
pub fn run(study: &Study, watch: &dyn Watch) -> Result<Report, LabFault> {
    check(&study.widths, study.time)?;
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
        ground: study.ground,
        path: (study.ground == On::Files).then_some(study.path),
        delay: study.settings.delay.name(),
        seconds: study.time.as_secs_f64(),
        rows,
    })
}

/// Runs the load `happy` through system calls in a new directory below `parent`, without fsync and with it.
///
/// # Errors
/// A system call failed, or the parameters are invalid.
pub fn run_in(
    parent: &std::path::Path,
    widths: &[usize],
    time: Duration,
    seed: u64,
    watch: &dyn Watch,
) -> Result<Report, LabFault> {
    check(widths, time)?;
    let failed = |fault| LabFault::Device(format!("{}: {fault}", parent.display()));
    let study = Study { time, seed, ..Study::default() };
    let mut rows: Vec<Row> = Vec::new();
    for &threads in widths {
        watch.part(&format!("{}, {threads} threads", parent.display()), None);
        let mut base = None;
        for (mode, syncs) in [("no-fsync", false), ("fsync", true)] {
            let place = happy::InFolder::new(parent).map_err(failed)?;
            let files = happy::populate(&place, seed).map_err(LabFault::Device)?;
            rustix::fs::sync();
            let mix = happy::Mix::new(place, syncs, seed, files);
            let work = |_: u64, stop: &AtomicBool| mix.work(&happy::Until::Stopped(stop));
            let row = turn_on(&study, &work, &FlushCounts::default, "directory", threads, mode)?;
            let cost = base.filter(|base| *base > 0.0).map(|base| 1.0 - row.per_s / base);
            base = base.or(Some(row.per_s));
            rows.push(Row { cost, ..row });
        }
    }
    Ok(Report {
        load: Load::Happy,
        ground: On::Files,
        path: None,
        delay: "none",
        seconds: time.as_secs_f64(),
        rows,
    })
}

fn check(widths: &[usize], time: Duration) -> Result<(), LabFault> {
    if widths.contains(&0) || time.is_zero() {
        return Err(LabFault::Usage("widths are at least 1, and a turn takes some time".to_owned()));
    }
    Ok(())
}

/// Where the threads work.
trait IoTarget: Sync {
    fn read(&self, thread: u64, at: u64, buf: &mut [u8]) -> Result<(), String>;
    fn write(&self, thread: u64, at: u64, bytes: &[u8]) -> Result<(), String>;
    fn flush(&self, thread: u64) -> Result<(), String>;
    fn counts(&self) -> FlushCounts;
}

fn fault_text(fault: impl fmt::Display) -> String {
    fault.to_string()
}

/// Each thread works on its part of a device.
struct Disk(Coordinator<Modelled<MemDevice>>);

impl IoTarget for Disk {
    fn read(&self, thread: u64, at: u64, buf: &mut [u8]) -> Result<(), String> {
        self.0.read_at(thread * SHARE + at, buf).map_err(fault_text)
    }

    fn write(&self, thread: u64, at: u64, bytes: &[u8]) -> Result<(), String> {
        self.0.write_at(thread * SHARE + at, bytes).map_err(fault_text)
    }

    fn flush(&self, thread: u64) -> Result<(), String> {
        self.0.flush_for(Stream(thread)).map(drop).map_err(fault_text)
    }

    fn counts(&self) -> FlushCounts {
        self.0.counts()
    }
}

/// Each thread works on its file.
struct Files {
    volume: Volume,
    inos: Vec<Ino>,
    flushes: bool,
}

impl Files {
    fn new(device: Arc<dyn Device>, threads: usize, write: WriteOptions) -> Result<Self, LabFault> {
        let flushes = !write.no_barriers;
        let volume = Volume::open(device, &OpenOptions { write, ..OpenOptions::default() })?;
        let failed = |fault: extant_volume::Fault| LabFault::Device(fault.to_string());
        let root = volume.root().map_err(failed)?.ino();
        let inos = (0..threads).map(|thread| {
            let ino =
                volume.names().create_number(root, format!("file-{thread}").as_bytes(), &New::file(0o644))?;
            volume.files().write_at(ino, 0, &vec![1; SHARE as usize])?;
            Ok(ino)
        });
        let inos = inos.collect::<Result<Vec<_>, _>>().map_err(failed)?;
        volume.sync().map_err(failed)?;
        Ok(Self { volume, inos, flushes })
    }
}

impl IoTarget for Files {
    fn read(&self, thread: u64, at: u64, buf: &mut [u8]) -> Result<(), String> {
        self.volume.files().read_at(self.inos[thread as usize], at, buf).map(drop).map_err(fault_text)
    }

    fn write(&self, thread: u64, at: u64, bytes: &[u8]) -> Result<(), String> {
        self.volume.files().write_at(self.inos[thread as usize], at, bytes).map(drop).map_err(fault_text)
    }

    fn flush(&self, thread: u64) -> Result<(), String> {
        self.volume.files().fdatasync(self.inos[thread as usize]).map_err(fault_text)
    }

    fn counts(&self) -> FlushCounts {
        // Without barriers there are no requests.
        if self.flushes {
            self.volume.counters().flush_counts().unwrap_or_default()
        } else {
            FlushCounts::default()
        }
    }
}

fn place(volume: &Volume) -> Result<happy::InVolume<'_>, LabFault> {
    happy::InVolume::new(volume).map_err(|_| LabFault::Device("the root directory is damaged".to_owned()))
}

/// A quantile of sorted times, in microseconds; 0 without times.
fn at_percent(sorted: &[Duration], percent: usize) -> f64 {
    let wait = sorted.get(sorted.len() * percent / 100).or(sorted.last());
    wait.map_or(0.0, |wait| wait.as_secs_f64() * 1e6)
}

/// The results of one thread.
#[derive(Default)]
struct Done {
    operations: u64,
    waits: Vec<Duration>,
}

fn turn(study: &Study, model: Model, threads: usize, mode: Option<Mode>) -> Result<Row, LabFault> {
    let name = mode.map_or("no-barrier", Mode::name);
    let settings = Settings { mode: mode.unwrap_or(Mode::None), ..study.settings };
    let write = WriteOptions {
        data: study.path.data(),
        small_folios: study.path == Path::Ranges,
        flush: settings,
        no_barriers: mode.is_none(),
        ..WriteOptions::default()
    };
    match study.ground {
        On::Device => {
            let modelled = Modelled::new(MemDevice::new(SHARE * threads as u64), model, Clock::Real);
            let disk = Disk(Coordinator::new(modelled, settings));
            // The first flush measures how long one takes.
            disk.0.flush().map_err(|fault| LabFault::Device(fault.to_string()))?;
            let work = |thread: u64, stop: &AtomicBool| work(study, &disk, thread, mode.is_some(), stop);
            let row = turn_on(study, &work, &|| disk.counts(), model.name, threads, name)?;
            Ok(Row { flush_us: disk.0.flush_nanos().unwrap_or(0) as f64 / 1e3, ..row })
        }
        On::Files if study.load == Load::Happy => {
            let memory = Ground::memory(happy::DEVICE_BYTES, &FormatOptions::default())?;
            let failed = |fault: extant_volume::Fault| LabFault::Device(fault.to_string());
            let volume = memory.open(&OpenOptions::default())?;
            happy::populate(&place(&volume)?, study.seed).map_err(LabFault::Device)?;
            volume.sync().map_err(failed)?;
            volume.close().map_err(LabFault::Close)?;
            let modelled = Arc::new(Modelled::new(memory.device(), model, Clock::Real));
            let device: Arc<dyn Device> = Arc::<Modelled<_>>::clone(&modelled);
            let options = OpenOptions { write, cache_bytes: happy::CACHE_BYTES, ..OpenOptions::default() };
            let volume = Volume::open(device, &options)?;
            let files = happy::files_of(&volume).map_err(failed)?;
            let mix = happy::Mix::new(place(&volume)?, true, study.seed, files);
            let counts = || volume.counters().flush_counts().unwrap_or_default();
            let work = |_: u64, stop: &AtomicBool| mix.work(&happy::Until::Stopped(stop));
            let row = turn_on(study, &work, &counts, model.name, threads, name)?;
            let flush_us = modelled.flush_nanos().unwrap_or(0) as f64 / 1e3;
            volume.close().map_err(LabFault::Close)?;
            Ok(Row { flush_us, ..row })
        }
        On::Files => {
            let size = SHARE * threads as u64 + (96 << 20);
            let memory = Ground::memory(size, &FormatOptions::default())?;
            let modelled = Arc::new(Modelled::new(memory.device(), model, Clock::Real));
            let device: Arc<dyn Device> = Arc::<Modelled<_>>::clone(&modelled);
            let files = Files::new(device, threads, write)?;
            let work = |thread: u64, stop: &AtomicBool| work(study, &files, thread, mode.is_some(), stop);
            let row = turn_on(study, &work, &|| files.counts(), model.name, threads, name)?;
            files.volume.close().map_err(LabFault::Close)?;
            Ok(Row { flush_us: modelled.flush_nanos().unwrap_or(0) as f64 / 1e3, ..row })
        }
    }
}

fn turn_on(
    study: &Study,
    work: &(dyn Fn(u64, &AtomicBool) -> Result<Done, String> + Sync),
    counts: &dyn Fn() -> FlushCounts,
    device: &'static str,
    threads: usize,
    mode: &'static str,
) -> Result<Row, LabFault> {
    let before = counts();
    let stop = AtomicBool::new(false);
    let begin = Barrier::new(threads + 1);
    let (took, done) = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads as u64)
            .map(|thread| {
                let (stop, begin) = (&stop, &begin);
                scope.spawn(move || {
                    begin.wait();
                    work(thread, stop)
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
        let done: Result<Vec<Done>, String> = joined.collect();
        (begun.elapsed(), done)
    });
    let done = done.map_err(LabFault::Device)?;
    let operations: u64 = done.iter().map(|done| done.operations).sum();
    let mut waits: Vec<Duration> = done.into_iter().flat_map(|done| done.waits).collect();
    waits.sort_unstable();
    let after = counts();
    let fsyncs = waits.len() as u64;
    // On files, `others` has the flushes of commits that ran instead.
    let flushes = after.flushes + after.others - before.flushes - before.others;
    Ok(Row {
        device,
        threads,
        mode,
        per_s: rate(operations, took.as_secs_f64()),
        fsyncs,
        flushes,
        flushes_per_fsync: if fsyncs == 0 { 0.0 } else { flushes as f64 / fsyncs as f64 },
        p50_us: at_percent(&waits, 50),
        p99_us: at_percent(&waits, 99),
        cost: None,
        flush_us: 0.0,
    })
}

fn work(
    study: &Study,
    disk: &dyn IoTarget,
    thread: u64,
    flushes: bool,
    stop: &AtomicBool,
) -> Result<Done, String> {
    let mut done = Done::default();
    let mut random = study.seed ^ (thread << 32);
    let mut next = move |below: u64| {
        random = random.wrapping_add(1);
        extant_base::salted::spread(random) % below
    };
    let mut block = [thread as u8; BLOCK];
    while !stop.load(Ordering::Relaxed) {
        // 6 of the mix's 14 reads and writes are writes: write, create, append.
        let (writes, blocks) = match study.load {
            Load::Overwrite => (true, 1),
            Load::Happy => (next(14) < 6, (SIZE / BLOCK) as u64),
        };
        for _ in 0..blocks {
            let at = next(SHARE / BLOCK as u64) * BLOCK as u64;
            match writes {
                true => disk.write(thread, at, &block),
                false => disk.read(thread, at, &mut block),
            }?;
        }
        // Without barriers, fdatasync still writes a file's bytes to the device.
        if writes && (flushes || study.ground == On::Files) {
            let asked = Instant::now();
            disk.flush(thread)?;
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
            Load::Happy => "happy: mostly reads; a flush is asked for after what is written",
        };
        let place = match self.path {
            None if self.ground == On::Files => "in a directory, by system calls".to_owned(),
            None => "on the device".to_owned(),
            Some(path) => format!("in files, by fsync, {}", path.name()),
        };
        writeln!(f, "{what}; {place}; {} s a turn, delay {}", self.seconds, self.delay)?;
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

/// The defaults of the command line.
impl Default for Study {
    fn default() -> Self {
        Self {
            load: Load::Overwrite,
            models: Model::ALL.to_vec(),
            ground: On::Files,
            modes: Mode::ALL.to_vec(),
            widths: vec![1, 4, 16, 64],
            time: Duration::from_millis(500),
            path: Path::Iomap,
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
            ground: On::Device,
            modes: Mode::OF_DEVICE.to_vec(),
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
        // The array is so fast that no thread waits.
        assert!((row("array", "seed").flushes_per_fsync - 1.0).abs() < 1e-9);
        assert_eq!(row("hdd", "no-barrier").flushes, 0);
    }
}
