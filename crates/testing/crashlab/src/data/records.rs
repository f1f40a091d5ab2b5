//! Threads that overwrite records and make them durable concurrently.
//!
//! ```text
//!   thread t:  write record n over n - 1, in place --> fsync --> acknowledged: n, at this event of the disk
//!   cut at event e:  the record of t is at least the last one acknowledged at or before e, and had begun at or before e
//! ```
//!
//! Only the bytes change, so each fsync needs a flush and no commit: here threads share flushes. The disk
//! delays each flush, so that the threads' fsyncs overlap.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use extant_base::Ino;
use extant_fsmodel::Rng;
use extant_simdisk::{FlushCost, Recording, SimDisk};
use extant_volume::{FlushSettings, New, OpenOptions, Volume, WriteOptions};

use super::DataKind;
use super::model::{describe, token};
use super::run::{name, read};
use crate::Verdict;

/// A record.
#[derive(Debug, Clone, Copy)]
struct Record {
    thread: usize,
    number: usize,
    /// Number of disk events when its write began.
    begun: u64,
    /// Number of disk events when it was acknowledged as durable.
    acknowledged: u64,
}

/// The records that threads wrote, and the recording of the disk.
pub struct RecordsRun {
    recording: Recording,
    records: Vec<Record>,
    inos: Vec<Ino>,
    settings: FlushSettings,
}

/// Units of a record: one block.
const UNITS: u64 = 512;

impl RecordsRun {
    /// Lets `threads` threads write `count` records each.
    ///
    /// # Errors
    /// The volume failed.
    pub fn record(settings: FlushSettings, threads: usize, count: usize, seed: u64) -> Result<Self, String> {
        let write = WriteOptions { no_committer: true, flush: settings, ..WriteOptions::default() };
        let options = OpenOptions { write, ..OpenOptions::default() };
        let disk = Arc::new(SimDisk::from_image(super::data_image(DataKind::Blocks4K, super::Space::Plenty)));
        let volume = Volume::open(disk.clone(), &options).map_err(|fault| fault.to_string())?;
        let mut inos = Vec::new();
        for thread in 0..threads {
            let ino = volume.names().create(Ino::ROOT, &name(thread), &New::file(0o600)).map_err(text)?.ino();
            write_record(&volume, ino, thread, 0)?;
            inos.push(ino);
        }
        volume.close().map_err(text)?;

        let cost = FlushCost { fixed: Duration::from_micros(400), ..FlushCost::default() };
        let disk = Arc::new(SimDisk::from_image(disk.image()).with_flush_cost(cost));
        let volume = Volume::open(disk.clone(), &options).map_err(|fault| fault.to_string())?;
        // The first write of a file changes metadata besides the bytes; that is committed before the
        // recording.
        for (thread, ino) in inos.iter().enumerate() {
            write_record(&volume, *ino, thread, 0)?;
        }
        volume.sync().map_err(text)?;
        disk.start_recording();
        let records = Mutex::new(Vec::new());
        let failed = std::thread::scope(|scope| {
            let work = |thread: usize| {
                let mut random = Rng::new(seed ^ (thread as u64) << 32);
                for number in 1..=count {
                    std::thread::sleep(Duration::from_micros(random.below(300)));
                    let begun = disk.events();
                    write_record(&volume, inos[thread], thread, number)?;
                    volume.files().fdatasync(inos[thread]).map_err(text)?;
                    let record = Record { thread, number, begun, acknowledged: disk.events() };
                    records.lock().unwrap_or_else(PoisonError::into_inner).push(record);
                }
                Ok(())
            };
            let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
            let answers = threads.into_iter().map(|thread| thread.join().expect("writers do not panic"));
            answers.collect::<Result<Vec<()>, String>>()
        });
        failed?;
        drop(volume);
        let records = records.into_inner().unwrap_or_else(PoisonError::into_inner);
        let recording = disk.recorded().ok_or("the disk did not record")?;
        Ok(Self { recording, records, inos, settings })
    }

    /// The moments at which power can fail.
    #[must_use]
    pub fn moments(&self) -> std::ops::RangeInclusive<u64> {
        self.recording.moments()
    }

    /// Judges a power cut after this event; the seed chooses which sectors survive.
    #[must_use]
    pub fn judge(&self, event: u64, seed: u64) -> Verdict {
        match self.judge_disk(&Arc::new(self.recording.cut(event, seed)), event) {
            Ok(()) => Verdict::Right,
            Err(why) => Verdict::Violation(format!(
                "cut at event {event}, survivors by seed {seed}, {:?}: {why}",
                self.settings
            )),
        }
    }

    fn judge_disk(&self, disk: &Arc<SimDisk>, event: u64) -> Result<(), String> {
        let volume = Volume::open_read_only(disk.clone(), &OpenOptions::default())
            .map_err(|fault| format!("does not open: {fault}"))?;
        for (thread, ino) in self.inos.iter().enumerate() {
            let of_thread = || self.records.iter().filter(|record| record.thread == thread);
            let acknowledged = of_thread().filter(|record| record.acknowledged <= event);
            let low = acknowledged.map(|record| record.number).max().unwrap_or(0);
            let begun = of_thread().filter(|record| record.begun <= event);
            let high = begun.map(|record| record.number).max().unwrap_or(0);
            let found = read(&volume, *ino)?;
            if found.len() as u64 != UNITS {
                return Err(format!("file {thread} has {} units", found.len()));
            }
            for (at, unit) in (0..).zip(found) {
                let is_allowed = (low..=high).any(|number| unit == token(thread as u32 + 1, number, at));
                if !is_allowed {
                    return Err(format!(
                        "thread {thread}: record {low} was acknowledged, {high} begun; there is {}",
                        describe(unit)
                    ));
                }
            }
        }
        Ok(())
    }
}

fn write_record(volume: &Volume, ino: Ino, thread: usize, number: usize) -> Result<(), String> {
    let units = (0..UNITS).map(|at| token(thread as u32 + 1, number, at));
    let bytes: Vec<u8> = units.flat_map(u64::to_le_bytes).collect();
    let written = volume.files().write_at(ino, 0, &bytes).map_err(text)?;
    if written == bytes.len() { Ok(()) } else { Err(format!("{written} bytes of a record were written")) }
}

fn text(fault: extant_volume::Fault) -> String {
    fault.to_string()
}
