//! A run: steps on files of a volume, on a disk that records.

use std::sync::Arc;

use extant_base::Ino;
use extant_device::Device;
use extant_fsmodel::Rng;
use extant_ondisk::time::Timestamp;
use extant_simdisk::{Part, Recording, SimDisk};
use extant_volume::{
    Fault, FlushMode, FlushSettings, New, OpenOptions, Refusal, Sabotage, SetAttr, Volume, WriteOptions,
};

use super::model::{Memory, token, units};
use super::step::{NAMES, Step};
use super::{DataKind, Space, data_image};
use crate::interrupted::{Between, Call, Interrupted};

/// The name of the clock: the inode whose modification time counts the steps.
pub(super) const CLOCK: &[u8] = b"clock";

/// The name of file `number` in the root directory.
pub(super) fn name(number: usize) -> [u8; 1] {
    [b'a' + number as u8]
}

/// The settings of a run.
#[derive(Debug, Clone, Copy)]
pub struct DataSchedule {
    /// Chooses the steps.
    pub seed: u64,
    /// The kind of image.
    pub kind: DataKind,
    /// How much of the image is free.
    pub space: Space,
    /// The number of steps.
    pub steps: usize,
    /// How fsyncs share flushes.
    pub flush: FlushMode,
    /// Whether freed blocks are discarded.
    pub discard: bool,
    /// Planted defects.
    pub sabotage: Sabotage,
}

impl DataSchedule {
    /// The settings for this seed, on an image of this kind with this much free space.
    #[must_use]
    pub fn new(seed: u64, kind: DataKind, space: Space) -> Self {
        let flush = FlushMode::ALL[(seed / 4 % 4) as usize];
        let discard = (seed / 3).is_multiple_of(2);
        Self { seed, kind, space, steps: 60, flush, discard, sabotage: Sabotage::default() }
    }
}

/// A step that was taken, and the number of disk events before and after it.
#[derive(Debug, Clone)]
pub(super) struct Taken {
    pub(super) step: Step,
    pub(super) begun: u64,
    pub(super) ended: u64,
    /// The file that it concerned.
    pub(super) file: Option<u32>,
    /// The expected content after it.
    pub(super) memory: Memory,
}

/// The steps, the recording of the disk, and the expected content after each step.
pub struct DataRun {
    pub(super) recording: Recording,
    pub(super) taken: Vec<Taken>,
    pub(super) schedule: DataSchedule,
}

/// The device and the options with which the lab opens a volume. The last bytes of the disk may be a separate
/// log device.
pub(super) fn opening(schedule: &DataSchedule, disk: &Arc<SimDisk>) -> (Arc<dyn Device>, OpenOptions) {
    let DataSchedule { kind, discard, sabotage, .. } = *schedule;
    let flush = FlushSettings { mode: schedule.flush, ..FlushSettings::default() };
    let write = WriteOptions {
        no_committer: true,
        data: kind.path(),
        flush,
        discard,
        sabotage,
        ..WriteOptions::default()
    };
    let options = OpenOptions { write, ..OpenOptions::default() };
    let Some(log_bytes) = kind.log_bytes() else { return (disk.clone(), options) };
    let at = disk.size_bytes() - log_bytes;
    let part = |start, len| Arc::new(Part::new(disk.clone(), start, len).expect("it is of the disk"));
    (part(0, at), OpenOptions { journal_device: Some(part(at, log_bytes)), ..options })
}

fn text(fault: Fault) -> String {
    fault.to_string()
}

impl DataRun {
    /// Takes the steps and records the disk.
    ///
    /// # Errors
    /// The volume failed where it should not, or returned other bytes than were written.
    pub fn record(schedule: DataSchedule) -> Result<Self, String> {
        let disk = Arc::new(SimDisk::from_image(data_image(schedule.kind, schedule.space)));
        let (device, options) = opening(&schedule, &disk);
        let volume = Volume::open(device, &options).map_err(|fault| fault.to_string())?;
        let clock = volume.names().create(Ino::ROOT, CLOCK, &New::file(0o600)).map_err(text)?.ino();
        set_clock(&volume, clock, 0, 0).map_err(text)?;
        volume.close().map_err(text)?;

        let disk = Arc::new(SimDisk::recording(disk.image()));
        let (device, options) = opening(&schedule, &disk);
        let device = Arc::new(Interrupted::new(device));
        let volume = Volume::open(device.clone(), &options).map_err(|fault| fault.to_string())?;
        let space = schedule.space;
        let mut subject = Subject { volume: Arc::new(volume), device, clock, inos: [None; NAMES], space };
        let mut random = Rng::new(schedule.seed);
        let mut memory = Memory::default();
        let begun = disk.events();
        let first = Taken { step: Step::Sync, begun: 0, ended: begun, file: None, memory: memory.clone() };
        let mut taken = vec![first];
        for number in 1..=schedule.steps {
            let of = (schedule.kind, schedule.space);
            let step = Step::any(&mut random, &memory, of);
            let begun = disk.events();
            let failure = |why: String, taken: &[Taken]| {
                let steps: Vec<String> = taken.iter().map(|taken| format!("{:?}", taken.step)).collect();
                format!("step {number}, {step:?}: {why}; {schedule:?}, after {}", steps.join(", "))
            };
            let file = memory.file_of(step);
            let step = match subject.take(number, step, file) {
                Ok(step) => step,
                Err(fault) if fault.is(Refusal::NoSpace) && step.may_be_refused(of) => step.refused(),
                Err(fault) => return Err(failure(fault.to_string(), &taken)),
            };
            if let Step::Partly(name, mode, pos, len) = step {
                let found = subject.inos[name].map_or(Ok(Vec::new()), |ino| read(&subject.volume, ino));
                let whole = Step::Allocate(name, mode, pos, len);
                found
                    .and_then(|found| memory.take_part(number, whole, found))
                    .map_err(|why| failure(why, &taken))?;
            } else {
                memory.take(number, step);
            }
            taken.push(Taken { step, begun, ended: disk.events(), file, memory: memory.clone() });
            // Reading keeps bytes in memory; most steps should not find them there.
            if random.one_in(8) || number == schedule.steps {
                subject.compare(&memory).map_err(|why| failure(why, &taken))?;
            }
        }
        drop(subject);
        let recording = disk.recorded().ok_or("the disk did not record")?;
        Ok(Self { recording, taken, schedule })
    }

    /// Whether other judges can read the disk after a cut. They cannot if the log is external.
    #[must_use]
    pub fn is_for_others(&self) -> bool {
        self.schedule.kind.log_bytes().is_none()
    }

    /// The number of the last event. Power can fail after each event, and during it.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.recording.end()
    }
}

fn set_clock(volume: &Volume, clock: Ino, number: usize, nanos: u32) -> Result<(), Fault> {
    let mtime = Some(Timestamp { seconds: number as i64, nanos });
    volume.attributes().set_attr(clock, &SetAttr { mtime, ..SetAttr::default() }).map(drop)
}

struct Subject {
    volume: Arc<Volume>,
    device: Arc<Interrupted>,
    clock: Ino,
    inos: [Option<Ino>; NAMES],
    space: Space,
}

impl Subject {
    /// Takes a step. Returns the part of it for which there was space.
    fn take(&mut self, number: usize, step: Step, file: Option<u32>) -> Result<Step, Fault> {
        let volume = &self.volume;
        set_clock(volume, self.clock, number, 0)?;
        let ino = step.name().and_then(|name| self.inos[name]).unwrap_or(Ino::ROOT);
        match step {
            Step::Create(at) => {
                let new = New { uid: file.unwrap_or_default(), ..New::file(0o644) };
                self.inos[at] = Some(volume.names().create(Ino::ROOT, &name(at), &new)?.ino());
            }
            Step::Write(at, pos, len) => {
                let units = units(pos, len).map(|at| token(file.unwrap_or_default(), number, at as u64));
                let bytes: Vec<u8> = units.flat_map(u64::to_le_bytes).collect();
                let written = volume.files().write_at(ino, pos, &bytes)?;
                return match written == bytes.len() || self.space == Space::Short {
                    true => Ok(Step::Write(at, pos, written as u64)),
                    false => Err(Refusal::NoSpace.into()),
                };
            }
            Step::Resize(_, size) => {
                volume.attributes().set_attr(ino, &SetAttr { size: Some(size), ..SetAttr::default() })?;
            }
            Step::Allocate(_, mode, pos, len) => volume.files().fallocate(ino, mode, pos, len)?,
            Step::Unlink(at) => {
                self.inos[at] = None;
                volume.names().unlink(Ino::ROOT, &name(at))?;
            }
            Step::Rename(from, to) => {
                self.inos[to] = self.inos[from].take();
                volume.names().rename(
                    (Ino::ROOT, &name(from)),
                    (Ino::ROOT, &name(to)),
                    extant_volume::Rename::Replace,
                )?;
            }
            Step::Fsync(_) => volume.files().fsync(ino)?,
            Step::Fdatasync(_) => volume.files().fdatasync(ino)?,
            Step::Sync => volume.sync()?,
            Step::WriteBack(bytes, commits) => {
                let commit = Commit { volume: Arc::clone(volume), clock: self.clock, number, commits };
                self.device.arm(Some(Box::new(commit)));
                let done = volume.write_back_some(bytes);
                self.device.arm(None);
                done?;
            }
            Step::Commit => volume.files().fsync(self.clock)?,
            Step::Checkpoint => volume.checkpoint()?,
            Step::Partly(..) | Step::Nothing => unreachable!("that is what becomes of a step"),
        }
        Ok(step)
    }

    /// Compares all files with the expected content while nothing fails.
    fn compare(&self, memory: &Memory) -> Result<(), String> {
        for at in 0..NAMES {
            let (Some(ino), Some(file)) = (self.inos[at], memory.names[at]) else { continue };
            let content = &memory.files[&file];
            let found = read(&self.volume, ino)?;
            if let Some(at) = first_difference(&found, content) {
                return Err(format!("file {file} differs at unit {at} of {}", content.len()));
            }
            self.volume.files().check_file(ino).map_err(|why| format!("file {file}: {why}"))?;
        }
        Ok(())
    }
}

fn first_difference(found: &[u64], expected: &[u64]) -> Option<usize> {
    let differs = found.iter().zip(expected).position(|(found, expected)| found != expected);
    differs.or((found.len() != expected.len()).then_some(found.len().min(expected.len())))
}

/// Reads a whole file, in units.
pub(super) fn read(volume: &Volume, ino: Ino) -> Result<Vec<u64>, String> {
    let inode = volume.inode(ino).map_err(text)?;
    let mut bytes = vec![0xEE; volume.attributes().stat(&inode).size as usize];
    let done = volume.files().read(&inode, 0, &mut bytes).map_err(text)?;
    if done < bytes.len() {
        return Err(format!("{done} bytes of {} can be read", bytes.len()));
    }
    to_units(&bytes)
}

/// Converts bytes into units.
pub(super) fn to_units(bytes: &[u8]) -> Result<Vec<u64>, String> {
    let (units, []) = bytes.as_chunks::<8>() else {
        return Err(format!("its size is {}, which it never was", bytes.len()));
    };
    Ok(units.iter().map(|unit| u64::from_le_bytes(*unit)).collect())
}

/// A commit of another thread, between the steps of write-back.
struct Commit {
    volume: Arc<Volume>,
    clock: Ino,
    number: usize,
    /// Whether to commit before a write, and after it.
    commits: [bool; 2],
}

impl Commit {
    fn make(&self, nanos: u32) {
        // Changes the clock, so that there is something to commit. The step's own result reports failures.
        let _ = set_clock(&self.volume, self.clock, self.number, nanos);
        let _ = self.volume.files().fsync(self.clock);
    }
}

impl Between for Commit {
    fn before(&mut self, call: Call) {
        if call == Call::Write && self.commits[0] {
            self.make(1);
        }
    }

    fn after(&mut self, call: Call) {
        if call == Call::Write && self.commits[1] {
            self.make(2);
        }
    }
}
