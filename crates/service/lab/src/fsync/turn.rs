//! One turn of the happy mix: a fixed number of operations on a modelled device, alone or in a stack.
//!
//! ```text
//! single    one disk
//! mirror    md RAID1: two disks, a write and a flush go to both
//! stripe    md RAID0: two disks, chunks of 64 KiB in turns, a flush goes to both
//! linear    dm: two disks one after the other, a flush goes to both
//! ```
//!
//! A slow device may run faster than its model (`speed`), because the load mostly waits for it. Then the
//! engine's limits of time are shortened as well, and results are converted back to the time of the model.

use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use extant_base::Ino;
use extant_device::{Clock, Device, Linear, MemDevice, Mirror, Model, Modelled, Stripe};
use extant_flush::{FlushCounts, Mode, Settings};
use extant_image::options::FormatOptions;
use extant_volume::{Fault, OpenOptions, Volume, WriteOptions};

use super::happy::{self, InFolder, Mix, Place, Until};
use super::{Done, at_percent, place};
use crate::LabFault;
use crate::ground::Ground;

const CHUNK_BYTES: u64 = 64 << 10;

/// How disks form a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stack {
    /// One disk.
    Single,
    /// Two disks with the same bytes.
    Mirror,
    /// Two disks in turns.
    Stripe,
    /// Two disks one after the other; the second has this model's name.
    Linear,
}

/// A device of the study.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// Its name in tables.
    pub name: &'static str,
    /// The model of its disks; `None`: memory, which takes no time.
    pub model: Option<Model>,
    /// The model of the second disk of a stack.
    pub second: Option<Model>,
    /// How they are combined.
    pub stack: Stack,
    /// How many times faster than the model the disks run.
    pub speed: u32,
}

/// A turn.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    /// The mode; `None`: without flushes.
    pub mode: Option<Mode>,
    /// Whether fsync is called.
    pub syncs: bool,
    /// The mode `seed` coordinates even if the device is fast.
    pub always: bool,
    /// Number of threads.
    pub threads: usize,
    /// Operations of all threads together.
    pub operations: u64,
    /// Seed of the operations.
    pub seed: u64,
    /// Memory for caches.
    pub cache_bytes: usize,
}

/// What was measured. Times are those of the model.
#[derive(Debug, Clone, Copy, Default)]
pub struct Outcome {
    /// Operations per second.
    pub per_s: f64,
    /// Operations.
    pub operations: u64,
    /// Calls of fsync.
    pub fsyncs: u64,
    /// Flushes of the device for them, including those of commits.
    pub flushes: u64,
    /// The coordinator's counters.
    pub counts: FlushCounts,
    /// Bytes written to the device: to all disks of a stack.
    pub written_bytes: u64,
    /// Median time of an fsync in microseconds.
    pub p50_us: f64,
    /// The device's own measurement of its flushes, in microseconds.
    pub flush_us: f64,
}

fn device_fault(fault: impl std::fmt::Display) -> LabFault {
    LabFault::Device(fault.to_string())
}

fn stacked(setup: &Setup, mut disks: Vec<Arc<dyn Device>>) -> Result<Arc<dyn Device>, LabFault> {
    Ok(match setup.stack {
        Stack::Single => disks.remove(0),
        Stack::Mirror => Arc::new(Mirror::new(disks).map_err(device_fault)?),
        Stack::Stripe => Arc::new(Stripe::new(disks, CHUNK_BYTES).map_err(device_fault)?),
        Stack::Linear => Arc::new(Linear::new(disks).map_err(device_fault)?),
    })
}

/// Reads all files, so that the caches are as after a long run.
fn warm(volume: &Volume, files: &[(u64, Ino)]) -> Result<(), Fault> {
    let mut buf = vec![0; 1 << 20];
    for (_, ino) in files {
        volume.files().read_at(*ino, 0, &mut buf)?;
    }
    Ok(())
}

/// Runs a turn on the engine.
///
/// # Errors
/// The device failed.
pub fn run(setup: &Setup, turn: &Turn) -> Result<Outcome, LabFault> {
    let disks = if setup.stack == Stack::Single { 1 } else { 2 };
    let each = match setup.stack {
        Stack::Single | Stack::Mirror => happy::DEVICE_BYTES,
        Stack::Stripe | Stack::Linear => happy::DEVICE_BYTES / 2,
    };
    let memory: Vec<Arc<dyn Device>> = (0..disks).map(|_| Arc::new(MemDevice::new(each)) as _).collect();
    let ground = Ground::of(stacked(setup, memory.clone())?);
    ground.format(&FormatOptions::default())?;
    let volume = ground.open(&OpenOptions::default())?;
    happy::populate(&place(&volume)?, turn.seed).map_err(LabFault::Device)?;
    volume.sync().map_err(device_fault)?;
    volume.close().map_err(LabFault::Close)?;

    let models = [setup.model, setup.second.or(setup.model)];
    let modelled: Vec<Arc<Modelled<Arc<dyn Device>>>> = memory
        .iter()
        .zip(models)
        .filter_map(|(disk, model)| {
            let model = model?.faster(setup.speed);
            Some(Arc::new(Modelled::new(Arc::clone(disk), model, Clock::Virtual)))
        })
        .collect();
    let slow: Vec<Arc<dyn Device>> = modelled.iter().map(|disk| Arc::clone(disk) as _).collect();
    let device = stacked(setup, if slow.is_empty() { memory } else { slow })?;
    let defaults = Settings::default();
    let settings = Settings {
        mode: turn.mode.unwrap_or(Mode::None),
        delay_max: defaults.delay_max / setup.speed,
        bypass_below: if turn.always { Duration::ZERO } else { defaults.bypass_below / setup.speed },
        ..defaults
    };
    let write = WriteOptions { flush: settings, no_barriers: turn.mode.is_none(), ..WriteOptions::default() };
    let options = OpenOptions { write, cache_bytes: turn.cache_bytes, ..OpenOptions::default() };
    let volume = Volume::open(Arc::clone(&device), &options)?;
    let files = happy::files_of(&volume).map_err(device_fault)?;
    warm(&volume, &files).map_err(device_fault)?;
    modelled.iter().for_each(|disk| disk.set_clock(Clock::Real));
    let counts = || volume.counters().flush_counts().unwrap_or_default();
    let written = || modelled.iter().map(|disk| disk.written_bytes()).sum::<u64>();
    let (counts_before, written_before) = (counts(), written());
    let (took, done) = on(&Mix::new(place(&volume)?, turn.syncs, turn.seed, files), turn)?;
    let (after, written_bytes) = (counts(), written() - written_before);
    let flush_us = device.flush_nanos().unwrap_or(0) as f64 / 1e3 * f64::from(setup.speed);
    modelled.iter().for_each(|disk| disk.set_clock(Clock::Virtual));
    volume.close().map_err(LabFault::Close)?;
    let counts = FlushCounts {
        requests: after.requests - counts_before.requests,
        flushes: after.flushes - counts_before.flushes,
        joined: after.joined - counts_before.joined,
        covered: after.covered - counts_before.covered,
        bypassed: after.bypassed - counts_before.bypassed,
        delay_nanos: after.delay_nanos - counts_before.delay_nanos,
        others: after.others - counts_before.others,
    };
    let flushes = counts.flushes + counts.others;
    let outcome = outcome(took, &done, setup.speed);
    Ok(Outcome { flushes, counts, written_bytes, flush_us, ..outcome })
}

/// Runs a turn in a directory of a mounted file system.
///
/// # Errors
/// A system call failed.
pub fn run_in(parent: &Path, turn: &Turn) -> Result<Outcome, LabFault> {
    let failed = |fault| LabFault::Device(format!("{}: {fault}", parent.display()));
    let place = InFolder::new(parent).map_err(failed)?;
    let files = happy::populate(&place, turn.seed).map_err(LabFault::Device)?;
    rustix::fs::sync();
    let (took, done) = on(&Mix::new(place, turn.syncs, turn.seed, files), turn)?;
    Ok(outcome(took, &done, 1))
}

fn on<P: Place>(mix: &Mix<P>, turn: &Turn) -> Result<(Duration, Vec<Done>), LabFault> {
    let begin = Barrier::new(turn.threads);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..turn.threads)
            .map(|_| {
                let begin = &begin;
                scope.spawn(move || {
                    begin.wait();
                    let started = Instant::now();
                    let done = mix.work(&Until::Operations(turn.operations))?;
                    Ok((started, Instant::now(), done))
                })
            })
            .collect();
        let joined = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        let joined = joined.collect::<Result<Vec<(Instant, Instant, Done)>, String>>();
        let joined = joined.map_err(LabFault::Device)?;
        // From the first start to the last end: on a busy machine this thread may wake up late.
        let started = joined.iter().map(|worker| worker.0).min();
        let ended = joined.iter().map(|worker| worker.1).max();
        let took = started.zip(ended).map_or(Duration::ZERO, |(started, ended)| ended - started);
        Ok((took, joined.into_iter().map(|worker| worker.2).collect()))
    })
}

fn outcome(took: Duration, done: &[Done], speed: u32) -> Outcome {
    let operations: u64 = done.iter().map(|done| done.operations).sum();
    let mut waits: Vec<Duration> = done.iter().flat_map(|done| done.waits.iter().copied()).collect();
    waits.sort_unstable();
    let seconds = took.as_secs_f64() * f64::from(speed);
    Outcome {
        per_s: crate::summary::rate(operations, seconds),
        operations,
        fsyncs: waits.len() as u64,
        p50_us: at_percent(&waits, 50) * f64::from(speed),
        ..Outcome::default()
    }
}
