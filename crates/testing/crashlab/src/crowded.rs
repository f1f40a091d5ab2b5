//! Runs with a directory that is much larger than the memory for caches.
//!
//! Leaves leave memory and are changed without being read; the commit reads them, or a thread does before it
//! (see `extant_buffer::PendingChange`). The other runs read the whole tree after each operation, so their
//! leaves are always in memory. Here nothing is read but what the operations read.
//!
//! After a cut, the directory must have the names that it had after one of the operations: not before the
//! last one that was synced, and not after the last one that had begun.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use extant_base::Ino;
use extant_fsmodel::Rng;
use extant_simdisk::{Recording, SimDisk};
use extant_volume::{Cursor, New, OpenOptions, Sabotage, Volume, WriteOptions};

use crate::{Kind, base_image};

/// Names before the run.
const NAMES: usize = 360;
/// Operations of a run.
const OPS: usize = 500;

const DIR: &[u8] = b"crowded";

/// An operation on the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Add(usize),
    Remove(usize),
}

/// A change, and when it happened.
struct Step {
    change: Change,
    /// Number of disk events when it began.
    begun: u64,
    /// Number of disk events when it was known to be durable; `None` without a later sync.
    synced: Option<u64>,
}

/// A recorded run.
pub struct CrowdedRun {
    recording: Recording,
    /// The names before the run.
    before: BTreeSet<usize>,
    steps: Vec<Step>,
    text: String,
    /// Blocks that were changed without being read, and read later.
    deferred_reads: u64,
}

/// Long names: three fit into a leaf.
fn name(number: usize) -> Vec<u8> {
    // Not in the order of the hashes.
    let mut name = format!("{number:05}-").into_bytes();
    name.resize(200 + number % 50, b'n');
    name
}

fn number(name: &[u8]) -> Option<usize> {
    std::str::from_utf8(name.get(..5)?).ok()?.parse().ok()
}

fn text(fault: impl std::fmt::Display) -> String {
    fault.to_string()
}

/// The directory, and the file that its names lead to.
fn places(volume: &Volume) -> Result<(Ino, Ino), String> {
    let root = volume.root().map_err(text)?;
    let dir = volume.names().lookup(&root, DIR).map_err(text)?;
    let file = volume.names().lookup(&root, b"file").map_err(text)?;
    Ok((dir.ino(), file.ino()))
}

impl CrowdedRun {
    /// Records a run of this kind of image. The seed chooses the operations, the memory, and whether threads
    /// commit and read.
    ///
    /// # Errors
    /// The engine failed where it should not.
    pub fn record(kind: Kind, seed: u64, sabotage: Sabotage) -> Result<Self, String> {
        let mut random = Rng::new(seed);
        let cache_bytes = *random.pick(&[96usize << 10, 128 << 10, 192 << 10]);
        let no_committer = random.one_in(2);
        let write = WriteOptions { no_committer, sabotage, ..WriteOptions::default() };
        let disk = Arc::new(SimDisk::from_image(base_image(kind)));
        let volume = Volume::open(disk.clone(), &OpenOptions::default()).map_err(text)?;
        let root = volume.root().map_err(text)?.ino();
        let dir = volume.names().create_number(root, DIR, &New::directory(0o755)).map_err(text)?;
        let file = volume.names().create_number(root, b"file", &New::file(0o644)).map_err(text)?;
        let before: BTreeSet<usize> = (0..NAMES).collect();
        for number in &before {
            volume.names().link(file, dir, &name(*number)).map_err(text)?;
        }
        volume.close().map_err(text)?;
        let disk = Arc::new(SimDisk::recording(disk.image()));
        let options = OpenOptions { write, cache_bytes, ..OpenOptions::default() };
        let volume = Volume::open(disk.clone(), &options).map_err(text)?;
        let (dir, file) = places(&volume)?;
        let (mut now, mut steps) = (before.clone(), Vec::with_capacity(OPS));
        let mut synced = 0;
        for next in NAMES..NAMES + OPS {
            let begun = disk.events();
            let change = match random.below(10) {
                0 => Change::Remove(*now.iter().nth(random.index(now.len())).ok_or("no names are left")?),
                _ => Change::Add(next),
            };
            match change {
                Change::Add(number) => volume.names().link(file, dir, &name(number)),
                Change::Remove(number) => volume.names().unlink(dir, &name(number)),
            }
            .map_err(|fault| format!("{change:?}: {fault}"))?;
            apply(&mut now, change);
            steps.push(Step { change, begun, synced: None });
            match random.below(60) {
                0 | 1 => volume.checkpoint().map_err(text)?,
                2..5 => {
                    volume.sync().map_err(text)?;
                    let events = disk.events();
                    steps[synced..].iter_mut().for_each(|step: &mut Step| step.synced = Some(events));
                    synced = steps.len();
                }
                _ => (),
            }
        }
        let deferred_reads = volume.counters().metadata_stats().deferred_reads;
        if random.one_in(2) {
            volume.close().map_err(text)?;
        }
        let recording = disk.recorded().ok_or("the disk did not record")?;
        let text = format!("{kind:?}, seed {seed}, {cache_bytes} bytes, no_committer {no_committer}");
        Ok(Self { recording, before, steps, text, deferred_reads })
    }

    /// The number of the last event.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.recording.end()
    }

    /// Blocks that were changed without being read, and read later.
    #[must_use]
    pub fn deferred_reads(&self) -> u64 {
        self.deferred_reads
    }

    /// Judges a power cut during an event, or after it, as [`CrashRun::judge`](crate::CrashRun::judge) does.
    /// Returns the disk after recovery.
    ///
    /// # Errors
    /// Describes the violation.
    pub fn judge(&self, event: u64, seed: u64) -> Result<Arc<SimDisk>, String> {
        let disk = Arc::new(self.cut_disk(event, seed));
        match self.judge_disk(&disk, event) {
            Ok(()) => Ok(disk),
            Err(why) => Err(format!("{}: cut at event {event}, survivors by seed {seed}: {why}", self.text)),
        }
    }

    /// The disk after the cut, before any recovery.
    #[must_use]
    pub fn cut_disk(&self, event: u64, seed: u64) -> SimDisk {
        let torn = event < self.events() && seed.is_multiple_of(2);
        if torn { self.recording.cut_during(event, seed) } else { self.recording.cut(event, seed) }
    }

    /// Judges a mounted file system that was recovered after a cut at this event.
    ///
    /// # Errors
    /// Describes the violation.
    pub fn judge_listing(&self, root: &Path, event: u64) -> Result<(), String> {
        use std::os::unix::ffi::OsStrExt;
        let mut found = BTreeSet::new();
        for entry in std::fs::read_dir(root.join("crowded")).map_err(text)? {
            found.extend(number(entry.map_err(text)?.file_name().as_bytes()));
        }
        self.judge_names(&found, event)
    }

    fn judge_disk(&self, disk: &Arc<SimDisk>, event: u64) -> Result<(), String> {
        let write = WriteOptions { no_committer: true, ..WriteOptions::default() };
        let options = OpenOptions { write, ..OpenOptions::default() };
        let volume =
            Volume::open(disk.clone(), &options).map_err(|fault| format!("does not open: {fault}"))?;
        let (dir, _) = places(&volume)?;
        let dir = volume.inode(dir).map_err(text)?;
        let (mut found, mut damage) = (BTreeSet::new(), None);
        let mut twice = None;
        let listed = volume.names().read_dir(
            &dir,
            Cursor::START,
            &mut |entry| {
                if let Some(number) = number(entry.name)
                    && !found.insert(number)
                {
                    twice = Some(number);
                }
                ControlFlow::Continue(())
            },
            &mut |fault| damage = Some(fault.to_string()),
        );
        listed.map_err(text)?;
        if let Some(damage) = damage.or_else(|| twice.map(|number| format!("name {number} is there twice"))) {
            return Err(damage);
        }
        self.judge_names(&found, event)?;
        volume.close().map_err(|fault| format!("close: {fault}"))?;
        let report = extant_check::check(&**disk, &extant_check::Options::default()).map_err(text)?;
        match report.exit_code() {
            0 => Ok(()),
            _ => Err(format!("check: {:?}", report.findings.first())),
        }
    }

    /// Judges whether the directory may have these names after a cut at this event.
    fn judge_names(&self, found: &BTreeSet<usize>, event: u64) -> Result<(), String> {
        let least =
            self.steps.iter().filter(|step| step.synced.is_some_and(|synced| synced <= event)).count();
        let most = self.steps.iter().filter(|step| step.begun <= event).count();
        let mut names = self.before.clone();
        for (done, step) in self.steps[..most].iter().enumerate() {
            if done >= least && names == *found {
                return Ok(());
            }
            apply(&mut names, step.change);
        }
        if names == *found {
            return Ok(());
        }
        let mut all = self.before.clone();
        let is_after = |step: &Step| {
            let is_it = all == *found;
            apply(&mut all, step.change);
            is_it
        };
        if let Some(done) = self.steps.iter().position(is_after) {
            return Err(format!("the directory is as after {done} operations, not {least} to {most}"));
        }
        let lost: Vec<_> = names.difference(found).take(5).collect();
        let extra: Vec<_> = found.difference(&names).take(5).collect();
        Err(format!(
            "the directory is as after none of the operations {least} to {most}: {} names; compared with the \
             last, it lacks {lost:?} and has {extra:?}",
            found.len()
        ))
    }
}

fn apply(names: &mut BTreeSet<usize>, change: Change) {
    match change {
        Change::Add(number) => names.insert(number),
        Change::Remove(number) => names.remove(&number),
    };
}
