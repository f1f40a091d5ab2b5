//! The verdict on one cut.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use extant_device::Device;
use extant_simdisk::SimDisk;
use extant_volume::{Fault, Refusal, SetAttr, Volume};

use super::Space;
use super::run::{CLOCK, DataRun, name, opening, read, to_units};
use super::step::{NAMES, Step, UNIT};
use crate::{Verdict, superblock_is_torn};

/// The state found after a recovery.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    clock: usize,
    /// By name: the number of the file, and its units.
    files: [Option<(u32, Vec<u64>)>; NAMES],
}

impl DataRun {
    /// Judges a power cut during event `event`, or just after it, depending on the seed. The seed also
    /// chooses which sectors survive. With `again`, power fails once more during recovery. Also returns the
    /// disk after the engine's recovery, for other judges.
    #[must_use]
    pub fn judge(&self, event: u64, seed: u64, again: bool) -> (Verdict, Option<Arc<SimDisk>>) {
        let mut disk = Arc::new(self.cut_disk(event, seed));
        if again {
            disk.start_recording();
            let recovered = self.open(&disk).and_then(|volume| volume.close().map_err(text));
            if let Err(why) = recovered {
                return (self.violation(event, seed, &format!("recovery: {why}")), None);
            }
            let Some(recording) = disk.recorded() else { return (Verdict::Right, None) };
            let span = recording.end() - recording.start() + 1;
            disk = Arc::new(recording.cut(recording.start() + seed / 2 % span, seed.rotate_left(17)));
        }
        match self.judge_disk(&disk, event) {
            Ok(()) => (Verdict::Right, Some(disk)),
            Err(why) => (self.violation(event, seed, &why), None),
        }
    }

    /// The disk after the cut, before any recovery.
    #[must_use]
    pub fn cut_disk(&self, event: u64, seed: u64) -> SimDisk {
        let torn = event < self.events() && seed.is_multiple_of(2);
        if torn { self.recording.cut_during(event, seed) } else { self.recording.cut(event, seed) }
    }

    /// Opens the disk after the cut. A planted defect stays active.
    fn open(&self, disk: &Arc<SimDisk>) -> Result<Volume, String> {
        let (device, options) = opening(&self.schedule, disk);
        Volume::open(device, &options).map_err(|fault| fault.to_string())
    }

    fn violation(&self, event: u64, seed: u64, why: &str) -> Verdict {
        let last = self.last_begun(event);
        let steps = self.taken[..=last].iter().enumerate().skip(1);
        let steps: Vec<String> = steps
            .map(|(number, taken)| {
                let file = taken.file.map(|file| format!(", file {file}")).unwrap_or_default();
                format!("    {number}: {:?}{file} (events {}..{})", taken.step, taken.begun, taken.ended)
            })
            .collect();
        let event_text = self.recording.event(event).map(|event| event.to_string()).unwrap_or_default();
        Verdict::Violation(format!(
            "cut at event {event} ({event_text}), survivors by seed {seed}: {why}\n  {:?}\n{}",
            self.schedule,
            steps.join("\n")
        ))
    }

    fn judge_disk(&self, disk: &Arc<SimDisk>, event: u64) -> Result<(), String> {
        // The checker cannot read an external log, and reports a torn superblock as damage.
        if self.is_for_others() && !superblock_is_torn(disk) {
            check_says(&**disk).map_err(|why| format!("before recovery: {why}"))?;
        }
        let shown = self.shown(disk).map_err(|why| format!("open for reading: {why}"))?;
        let volume = self.open(disk).map_err(|why| format!("does not open: {why}"))?;
        let problems = &volume.recovery().problems;
        if let Some(problem) = problems.iter().find(|problem| !problem.contains("first sector")) {
            return Err(format!("recovery: {problem}"));
        }
        let found = found(&volume)?;
        self.judge_found(&found, event)?;
        if shown != found {
            return Err(format!("open for reading showed {shown:?}, recovery left {found:?}"));
        }
        let grown = self.grow(&volume, found)?;
        volume.close().map_err(|fault| format!("close: {fault}"))?;
        self.judge_grown(disk, &grown)?;
        check_says(&*opening(&self.schedule, disk).0)
    }

    /// What a read-only open shows before any recovery.
    fn shown(&self, disk: &Arc<SimDisk>) -> Result<Found, String> {
        let (device, options) = opening(&self.schedule, disk);
        found(&Volume::open_read_only(device, &options).map_err(|fault| fault.to_string())?)
    }

    /// Grows all files. Returns their expected content.
    fn grow(&self, volume: &Volume, found: Found) -> Result<Found, String> {
        let root = volume.root().map_err(text)?;
        let more = 2 * self.schedule.kind.block_bytes();
        let mut grown = found;
        for (at, file) in grown.files.iter_mut().enumerate() {
            let Some((_, units)) = file else { continue };
            let ino = volume.names().lookup(&root, &name(at)).map_err(text)?.ino();
            let size = Some(units.len() as u64 * UNIT + more);
            let set = SetAttr { size, ..SetAttr::default() };
            match volume.attributes().set_attr(ino, &set) {
                // A file that leaves its inode needs a block.
                Err(fault) if fault.is(Refusal::NoSpace) && self.schedule.space == Space::Short => continue,
                done => drop(done.map_err(|fault| format!("growing after recovery: {fault}"))?),
            }
            units.resize(units.len() + (more / UNIT) as usize, 0);
        }
        Ok(grown)
    }

    /// Reopens the image: files that grew must show their old content and zeros after it.
    fn judge_grown(&self, disk: &Arc<SimDisk>, grown: &Found) -> Result<(), String> {
        let (device, options) = opening(&self.schedule, disk);
        let volume = Volume::open_read_only(device, &options).map_err(|fault| fault.to_string())?;
        let shown = found(&volume)?;
        for (at, (expected, shown)) in grown.files.iter().zip(&shown.files).enumerate() {
            let (Some((_, expected)), Some((_, shown))) = (expected, shown) else { continue };
            let Some(place) = (0..expected.len()).find(|place| expected.get(*place) != shown.get(*place))
            else {
                continue;
            };
            return Err(format!(
                "{:?} has grown to {} bytes: at {} it holds {}, and should hold {}",
                char::from(name(at)[0]),
                expected.len() as u64 * UNIT,
                place as u64 * UNIT,
                shown.get(place).map_or("nothing".to_owned(), |unit| super::model::describe(*unit)),
                super::model::describe(expected[place])
            ));
        }
        Ok(())
    }

    /// Whether a power failure at this event may leave this state.
    pub(super) fn judge_found(&self, found: &Found, event: u64) -> Result<(), String> {
        let (floor, last) = (self.floor(event), self.last_begun(event));
        let clock = found.clock;
        if !(floor..=last).contains(&clock) {
            return Err(format!("step {clock} was the last to be committed: it is one of {floor}..={last}"));
        }
        let whole = self.judge_at(found, clock, None, event);
        let Err(first) = whole else { return Ok(()) };
        // The commit may contain only a part of the step.
        if clock == 0 || clock - 1 < floor {
            return Err(format!("with steps up to {clock}: {first}"));
        }
        let Err(second) = self.judge_at(found, clock - 1, None, event) else { return Ok(()) };
        let step = self.taken[clock].step;
        if matches!(step, Step::Allocate(..) | Step::Partly(..) | Step::Resize(..))
            && self.judge_at(found, clock, Some(clock - 1), event).is_ok()
        {
            return Ok(());
        }
        Err(format!("with steps up to {clock}: {first}; without that: {second}"))
    }

    /// Whether the files match commits that contain the steps up to `applied`. With `or`, the state may also
    /// be part of the steps up to `or`.
    fn judge_at(&self, found: &Found, applied: usize, or: Option<usize>, event: u64) -> Result<(), String> {
        let names = &self.taken[applied].memory.names;
        for (at, (found, expected)) in found.files.iter().zip(names).enumerate() {
            let called = char::from(name(at)[0]);
            let number = found.as_ref().map(|(file, _)| *file);
            if number != *expected {
                return Err(format!(
                    "{called:?} is the name of file {number:?}, and should be of {expected:?}"
                ));
            }
            let Some((file, units)) = found else { continue };
            let mut allowed = self.allowed(*file, applied, event);
            if let Some(or) = or {
                allowed = allowed.or_part_of(&self.allowed(*file, or, event));
            }
            let judged = allowed.judge(units, self.schedule.kind.block_bytes());
            judged.map_err(|why| format!("file {file}, {called:?}: {why}"))?;
        }
        Ok(())
    }

    /// Lets the kernel recover the image in this file, and judges the result.
    ///
    /// # Errors
    /// The result is not allowed, or the kernel does not mount the image.
    pub fn judge_kernel(&self, image: &Path, event: u64) -> Result<(), String> {
        let mount = extant_testkit::LoopMount::new(image, "noatime").map_err(|error| error.to_string())?;
        let text = |error: std::io::Error| error.to_string();
        let path = |name: &[u8]| mount.path().join(String::from_utf8_lossy(name).as_ref());
        let clock = std::fs::metadata(path(CLOCK)).map_err(text)?.mtime() as usize;
        let mut files = [const { None }; NAMES];
        for (at, file) in files.iter_mut().enumerate() {
            let path = path(&name(at));
            match std::fs::metadata(&path) {
                Ok(metadata) => {
                    *file = Some((metadata.uid(), to_units(&std::fs::read(&path).map_err(text)?)?));
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(text(error)),
            }
        }
        self.judge_found(&Found { clock, files }, event)
    }
}

fn text(fault: Fault) -> String {
    fault.to_string()
}

/// Runs the checker. The error names the first finding.
fn check_says(device: &dyn Device) -> Result<(), String> {
    let report =
        extant_check::check(device, &extant_check::Options::default()).map_err(|fault| fault.to_string())?;
    if report.exit_code() == 0 {
        return Ok(());
    }
    let first = report.findings.iter().find(|finding| finding.rule.severity != extant_check::Severity::Note);
    Err(format!("check: {} findings, first: {first:?}", report.findings.len()))
}

fn found(volume: &Volume) -> Result<Found, String> {
    let root = volume.root().map_err(text)?;
    let clock = volume.names().lookup(&root, CLOCK).map_err(|fault| format!("the clock: {fault}"))?;
    let clock = volume.attributes().stat(&clock).mtime.seconds as usize;
    let mut files = [const { None }; NAMES];
    for (at, file) in files.iter_mut().enumerate() {
        match volume.names().lookup(&root, &name(at)) {
            Ok(inode) => {
                let units = read(volume, inode.ino()).map_err(|why| format!("file {at}: {why}"))?;
                *file = Some((volume.attributes().stat(&inode).uid, units));
            }
            Err(fault) if fault.is(Refusal::NotFound) => {}
            Err(fault) => return Err(text(fault)),
        }
    }
    Ok(Found { clock, files })
}
