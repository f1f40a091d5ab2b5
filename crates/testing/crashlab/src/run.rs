//! A run: operations applied to the engine, on a disk that records.

use std::sync::{Arc, Mutex, PoisonError};

use extant_fsmodel::{Op, Subject};
use extant_ondisk::Features;
use extant_ondisk::superblock::{self, Superblock};
use extant_simdisk::{Image, Recording, SimDisk};

use crate::interrupted::Interrupted;
use crate::schedule::{Pressure, Schedule, Step};
use crate::stepper::{self, Stepper};
use crate::{Engine, IndexWork};

/// The operations, the recording of the disk, and the tree after each operation.
pub struct CrashRun {
    pub(crate) recording: Recording,
    pub(crate) steps: Vec<Step>,
    pub(crate) ops: Vec<Op>,
    pub(crate) schedule: Schedule,
    work: IndexWork,
    pressure: Pressure,
    /// The image has fast commits, which do not contain the times of directories.
    pub(crate) is_fast: bool,
}

impl CrashRun {
    /// Applies `setup` and closes the volume. Then applies `ops` under the schedule and records the disk.
    ///
    /// # Errors
    /// The engine failed where it should not.
    pub fn record(base: Image, setup: &[Op], ops: &[Op], schedule: Schedule) -> Result<Self, String> {
        let is_fast = has_fast_commits(&base);
        let disk = Arc::new(SimDisk::from_image(base));
        let mut engine = Engine::open_with(disk.clone(), schedule.opening())?;
        for op in setup {
            let _ = engine.apply(op);
        }
        engine.close()?;
        let disk = Arc::new(SimDisk::recording(disk.image()));
        let device = Arc::new(Interrupted::new(disk.clone()));
        let engine = Arc::new(Engine::open_with(device.clone(), schedule.opening())?);
        let stepper = Arc::new(Mutex::new(Stepper::new(&engine, &disk, ops, schedule)?));
        drop(engine);
        stepper::run(&device, &stepper)?;
        let stepper = Arc::into_inner(stepper).ok_or("a stepper is still running")?;
        let stepper = stepper.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (work, pressure) = (stepper.index_work(), stepper.pressure);
        let steps = stepper.end()?;
        let recording = disk.recorded().ok_or("the disk did not record")?;
        let pressure = Pressure { read_again: device.read_again(), ..pressure };
        Ok(Self { recording, steps, ops: ops.to_vec(), schedule, work, pressure, is_fast })
    }

    /// The changes that the operations made to directory indexes.
    #[must_use]
    pub fn index_work(&self) -> IndexWork {
        self.work
    }

    /// The counters of concurrency and memory pressure.
    #[must_use]
    pub fn pressure(&self) -> Pressure {
        self.pressure
    }

    /// The number of the last event. Power can fail after each event, and during it.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.recording.end()
    }
}

fn has_fast_commits(image: &Image) -> bool {
    let mut bytes = [0; superblock::SIZE];
    image.read(superblock::OFFSET, &mut bytes);
    Superblock::decode(&bytes).is_ok_and(|sb| sb.features.has_compat(Features::FAST_COMMIT))
}
