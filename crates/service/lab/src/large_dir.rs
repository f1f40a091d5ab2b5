//! One directory with very many names.
//!
//! Links go to few inodes, so that only the directory grows: the engine hashes names, finds and splits
//! leaves, and adds levels to the index. The study records the rate for every so many names. The rates show
//! where caches become too small (the knee), and whether a hash profits from putting neighbouring names
//! together (tea is said to do this, but does not).
//!
//! ```text
//! names      0 ------- per ------- 2 per ------- 3 per      the directory grows on a device without latency
//!                       |            |             |
//! windows              hdd,         hdd,          hdd,      for a short time the device has the latency of
//!                      nvme         nvme          nvme      a drive, and the next names really wait
//! ```

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use extant_base::Ino;
use extant_image::options::{FeatureEdit, FormatOptions, JournalSize};
use extant_ondisk::hash::HashVersion;
use extant_volume::{OpenOptions, WriteOptions};

use crate::createmany::{self, Job, LINKS_PER_TARGET, Operation};
use crate::drive::{Drive, Switched};
use crate::ground::{Ground, Site};
use crate::names::NameFormat;
use crate::studies::in_scratch;
use crate::summary::rate;
use crate::{Engine, Kernel, LabFault, Summary, Watch, WorkDir};

mod report;

pub use report::{Internals, OfHash, OnDrive, Point, Report, Window};

/// Maximum bytes of the device per name: its entry takes 24 bytes in half-full leaves; index and spare space
/// are added.
const BYTES_PER_NAME: u64 = 64;
/// Bytes of the device besides names.
const BYTES_BASE: u64 = 384 << 20;
const DIR: &[u8] = b"large";
/// About as many bytes of leaves belong to a name.
pub const BYTES_OF_LEAF_PER_NAME: u64 = 32;
/// The most names of a window on a disk, if memory does not suffice for the leaves: each name makes the disk
/// seek, and the names become durable before the window ends.
const NAMES_OF_SLOW_WINDOW: u64 = 1000;
/// A window has at most this share of the names between two of them.
const WINDOW_SHARE: u64 = 8;

/// What becomes of the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Course {
    /// It grows.
    #[default]
    Grow,
    /// It grows without windows, and then shrinks until it is empty, with windows.
    Shrink,
    /// It grows. In windows, an old name is removed after each new one.
    Replace,
}

/// What a part does to the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Create,
    Remove,
    Replace,
}

/// The parameters of a study.
#[derive(Clone)]
pub struct Study {
    /// Names in the directory.
    pub names: u64,
    /// Names between two recorded rates.
    pub per: u64,
    /// Links to few inodes, or one inode per name.
    pub operation: Operation,
    /// What becomes of the directory.
    pub course: Course,
    /// The names.
    pub format: NameFormat,
    /// Hashes to compare.
    pub hashes: Vec<HashVersion>,
    /// Runs of each hash, each on a new file system.
    pub runs: usize,
    /// Names that the driver announces before it creates them; 0: none. See [`Job::ahead`].
    pub ahead: usize,
    /// Where the study creates file systems.
    pub site: Site,
    /// Size of the device, in bytes. `None`: computed from the number of names.
    pub size: Option<u64>,
    /// Options for creating file systems; `large_dir` is added, unless they exclude it.
    pub make: FormatOptions,
    /// Options for opening volumes, including memory for caches.
    pub open: OpenOptions,
    /// Check each file system at the end.
    pub check: bool,
    /// Drives whose latency the windows have.
    pub drives: Vec<Drive>,
    /// Size of the drives' write caches in relation to their models'.
    pub drive_scale: f64,
    /// Duration of a window.
    pub window: Duration,
    /// Duration of a window on `hdd`, whose write cache takes seconds to fill and to drain.
    pub window_on_hdd: Duration,
    /// Windows of each drive after the last name.
    pub last_windows: usize,
    /// Windows with other memory for caches, for which the volume is opened again.
    pub reopen: Option<Reopen>,
    /// At the end, as many last windows with the memory of `reopen`, and with
    /// [`read_leaves_first`](extant_volume::WriteOptions::read_leaves_first).
    pub ends_reading_first: bool,
    /// A directory of the system in which the same names are created, too. It is left empty.
    pub kernel_dir: Option<PathBuf>,
}

impl Default for Study {
    fn default() -> Self {
        Self {
            names: 5_000_000,
            per: 1_000_000,
            operation: Operation::Link,
            course: Course::Grow,
            format: NameFormat::parse("test%ld").expect("a format of names"),
            hashes: vec![HashVersion::HalfMd4],
            runs: 1,
            ahead: 0,
            site: Site::Memory,
            size: None,
            make: FormatOptions::default(),
            open: OpenOptions::default(),
            check: false,
            drives: Vec::new(),
            drive_scale: 1.0,
            window: Duration::from_millis(500),
            window_on_hdd: Duration::from_millis(500),
            last_windows: 1,
            reopen: None,
            ends_reading_first: false,
            kernel_dir: None,
        }
    }
}

/// Windows of a volume that is opened again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reopen {
    /// Memory for caches, in bytes. The caches are full when a window begins.
    pub cache_bytes: usize,
    /// After each `per` names, instead of the other windows. The directory's counters are not kept then.
    /// Otherwise only after the last name, and after the other windows.
    pub each_time: bool,
}

/// Runs a study.
///
/// # Errors
/// A file system cannot be created, opened, closed or checked, or the directory cannot be created.
pub fn run(study: &Study, watch: &dyn Watch) -> Result<Report, LabFault> {
    if study.operation == Operation::OpenKeep {
        return Err(LabFault::Usage("files are not kept open in this study".to_owned()));
    }
    if study.runs == 0 {
        return Err(LabFault::Usage("there is at least one run".to_owned()));
    }
    // Hashes take turns, so that other load of the machine affects all of them.
    let mut all = vec![Vec::new(); study.hashes.len()];
    let mut of_kernel = Vec::new();
    for _ in 0..study.runs {
        for (hash, runs) in study.hashes.iter().zip(&mut all) {
            runs.push(one(study, *hash, watch)?);
        }
        if let Some(dir) = &study.kernel_dir {
            of_kernel.push(kernel(study, dir, watch)?);
        }
    }
    let mut hashes: Vec<OfHash> = all.into_iter().map(middle).collect();
    if !of_kernel.is_empty() {
        hashes.push(middle(of_kernel));
    }
    let reopened = study.reopen.filter(|reopen| reopen.each_time);
    let cache_bytes = reopened.map_or(study.open.cache_bytes, |reopen| reopen.cache_bytes);
    Ok(Report { names: study.names, cache_bytes, hashes })
}

/// The run with the median rate, with the first failure and the most check errors of all runs.
fn middle(mut runs: Vec<OfHash>) -> OfHash {
    runs.sort_by(|a, b| a.per_s.total_cmp(&b.per_s));
    let rates: Vec<f64> = runs.iter().map(|run| run.per_s).collect();
    let failed = runs.iter().find_map(|run| run.failed.clone());
    let check_errors = runs.iter().filter_map(|run| run.check_errors).max();
    let run = runs.swap_remove((runs.len() - 1) / 2);
    OfHash { runs: Summary::of(&rates), failed, check_errors, ..run }
}

/// The number of names from which on the rate stays below 0.8 of the previous best.
pub(crate) fn knee(points: &[Point]) -> Option<u64> {
    let mut best = 0.0f64;
    let lines: Vec<f64> = points
        .iter()
        .map(|point| {
            best = best.max(point.per_s);
            0.8 * best
        })
        .collect();
    let low = points.iter().zip(lines).rev().take_while(|(point, line)| point.per_s < *line).count();
    points.len().checked_sub(low + 1).filter(|_| low > 0).map(|last| points[last].names)
}

/// The name of a hash, as mke2fs spells it.
#[must_use]
pub fn hash_name(hash: HashVersion) -> String {
    let name = match hash.code() {
        0 => "legacy",
        1 => "half_md4",
        2 => "tea",
        _ => "siphash",
    };
    name.to_owned()
}

/// The pass of one directory: its names, and windows with latency.
#[derive(Default)]
struct Growth {
    /// Names created: the number of the next one.
    done: u64,
    /// Names removed: the number of the oldest one.
    removed: u64,
    /// Names of the points, and the time that they took.
    outside: u64,
    seconds: f64,
    points: Vec<Point>,
    removals: Vec<Point>,
    windows: Vec<Window>,
    failed: Option<String>,
    /// Blocks read outside of windows.
    blocks_read: u64,
}

/// Passes on how many objects are done, and nothing else: the lines of a part would be many.
pub(crate) struct Progress<'a>(pub(crate) &'a dyn Watch);

impl Watch for Progress<'_> {
    fn advance(&self, objects: u64) {
        self.0.advance(objects);
    }
}

/// Blocks read from the device.
#[derive(Debug, Clone, Copy, Default)]
struct Reads {
    all: u64,
    by_commits: u64,
}

impl Reads {
    fn of(volume: &extant_volume::Volume) -> Self {
        let stats = volume.counters().metadata_stats();
        let by_commits = stats.deferred_reads;
        Self { all: stats.misses + stats.prefetched + by_commits, by_commits }
    }

    fn since(self, before: Self) -> Self {
        Self { all: self.all - before.all, by_commits: self.by_commits - before.by_commits }
    }
}

/// A directory that grows. `drive` changes the device's timing; `blocks_read` counts.
struct Growing<'a, P> {
    study: &'a Study,
    dir: &'a mut P,
    drive: &'a dyn Fn(Drive),
    blocks_read: &'a dyn Fn() -> Reads,
    /// Makes all names durable; the end of a window.
    sync: &'a dyn Fn() -> Result<(), LabFault>,
    /// Memory does not suffice for the leaves.
    is_short: bool,
    watch: &'a dyn Watch,
    growth: Growth,
}

impl<P: WorkDir> Growing<'_, P> {
    /// Changes the next names, as a job of its own with a target of its own: an inode has few links. Returns
    /// its report, and the number of blocks read.
    fn part(
        &mut self,
        step: Step,
        count: u64,
        time: Option<Duration>,
    ) -> Result<(createmany::Report, Reads), LabFault> {
        let (study, growth) = (self.study, &mut self.growth);
        let (created, removed) = (growth.done as i64, growth.removed as i64);
        let is_removal = step == Step::Remove;
        let job = Job {
            format: study.format.clone(),
            start: if is_removal { removed } else { created },
            count: Some(if is_removal { count.min(growth.names()) } else { count }),
            time,
            target: format!("target-{created}").into_bytes(),
            renew_target: Some(LINKS_PER_TARGET),
            unlink_at: (step == Step::Replace).then_some(removed - created),
            ahead: study.ahead,
            ..Job::new(if is_removal { Operation::Unlink } else { study.operation }, "test")
        };
        let before = (self.blocks_read)();
        let mut report = createmany::run(&job, self.dir, &Progress(self.watch))?;
        if step != Step::Remove {
            growth.done += report.done;
        }
        if step != Step::Create {
            growth.removed += report.done;
        }
        if step == Step::Replace {
            report.done *= 2;
        }
        growth.failed.clone_from(&report.failed);
        Ok((report, (self.blocks_read)().since(before)))
    }

    /// Creates all names, and removes them again if the study does so, with windows between them.
    fn all(&mut self) -> Result<(), LabFault> {
        let is_shrinking = self.study.course == Course::Shrink;
        while self.growth.done < self.study.names && self.growth.failed.is_none() {
            self.point(Step::Create)?;
            if self.growth.done < self.study.names && !is_shrinking {
                self.windows(1)?;
            }
        }
        if !is_shrinking {
            return self.windows(self.study.last_windows);
        }
        while self.growth.names() > 0 && self.growth.failed.is_none() {
            self.windows(1)?;
            self.point(Step::Remove)?;
        }
        Ok(())
    }

    /// Creates or removes the names of one point.
    fn point(&mut self, step: Step) -> Result<(), LabFault> {
        let left = match step {
            Step::Remove => self.growth.names(),
            _ => self.study.names.saturating_sub(self.growth.done),
        };
        if left == 0 {
            return Ok(());
        }
        let (made, read) = self.part(step, self.study.per.max(1).min(left), None)?;
        let growth = &mut self.growth;
        let point = Point { names: growth.names(), per_s: made.per_s };
        if step == Step::Remove {
            growth.removals.push(point);
        } else {
            growth.outside += made.done;
            growth.seconds += made.seconds;
            growth.blocks_read += read.all;
            growth.points.push(point);
        }
        self.watch.line(&format!(" - {} names, {:.0} per second", point.names, made.per_s));
        Ok(())
    }

    /// Changes names with the latency of each drive, this many times.
    fn windows(&mut self, turns: usize) -> Result<(), LabFault> {
        let study = self.study;
        let count_max = (study.per / WINDOW_SHARE).max(64);
        for &drive in (0..turns).flat_map(|_| &study.drives) {
            if self.growth.failed.is_some() {
                break;
            }
            let is_slow = drive == Drive::Hdd && self.is_short;
            let count = if is_slow { count_max.min(NAMES_OF_SLOW_WINDOW) } else { count_max };
            // Names of the last window are not left for this one.
            (self.sync)()?;
            (self.drive)(drive);
            let begun = Instant::now();
            let before = (self.blocks_read)();
            let time = if drive == Drive::Hdd { study.window_on_hdd } else { study.window };
            let (made, _) = self.part(study.in_windows(), count, Some(time))?;
            (self.sync)()?;
            let per_s = rate(made.done, begun.elapsed().as_secs_f64());
            let read = (self.blocks_read)().since(before);
            (self.drive)(Drive::Memory);
            let growth = &mut self.growth;
            if made.done == 0 {
                continue;
            }
            let window = Window {
                drive,
                names: growth.names(),
                done: made.done,
                per_s,
                leaf_reads_per_name: read.all as f64 / made.done as f64,
                commit_reads_per_name: read.by_commits as f64 / made.done as f64,
            };
            growth.windows.push(window);
            let name = drive.name();
            self.watch.line(&format!(" - {} names, {per_s:.0} per second on {name}", window.names));
        }
        Ok(())
    }
}

impl Study {
    /// What windows do.
    fn in_windows(&self) -> Step {
        match self.course {
            Course::Grow => Step::Create,
            Course::Shrink => Step::Remove,
            Course::Replace => Step::Replace,
        }
    }
}

/// The mean rate of the last tenth divided by that of the first, for each drive.
fn last_to_first_on_drives(windows: &[Window]) -> Vec<OnDrive> {
    let mut drives: Vec<Drive> = Vec::new();
    windows.iter().for_each(|window| {
        if !drives.contains(&window.drive) {
            drives.push(window.drive);
        }
    });
    let of = |drive: Drive| {
        let on_drive = windows.iter().filter(|window| window.drive == drive);
        let rates: Vec<f64> = on_drive.map(|window| window.per_s).collect();
        let tenth = rates.len().div_ceil(10);
        let mean = |rates: &[f64]| rates.iter().sum::<f64>() / rates.len().max(1) as f64;
        let (first, last) = (mean(&rates[..tenth]), mean(&rates[rates.len() - tenth..]));
        (rates.len() > 1 && first > 0.0).then_some(OnDrive { drive, ratio: last / first })
    };
    drives.into_iter().filter_map(of).collect()
}

impl Growth {
    /// Names in the directory.
    fn names(&self) -> u64 {
        self.done - self.removed
    }

    fn report(self, hash: String, per: u64) -> OfHash {
        let per_s = rate(self.outside, self.seconds);
        // The last point may cover few names.
        let (points, before) = match self.removals.as_slice() {
            [] => (&self.points, 0),
            removals => (&self.removals, removals[0].names + per),
        };
        let whole = points.iter().scan(before, |before, point| {
            let names = point.names.abs_diff(std::mem::replace(before, point.names));
            Some((names, point.per_s))
        });
        let whole: Vec<f64> = whole.filter(|(names, _)| *names >= per).map(|(_, per_s)| per_s).collect();
        let last_to_first = match whole.as_slice() {
            [first, .., last] if *first > 0.0 => Some(last / first),
            _ => None,
        };
        OfHash {
            hash,
            done: self.done,
            seconds: self.seconds,
            per_s,
            runs: Summary::of(&[per_s]),
            knee: knee(&self.points),
            close_seconds: 0.0,
            last_to_first,
            points: self.points,
            removals: self.removals,
            windows_last_to_first: last_to_first_on_drives(&self.windows),
            windows: self.windows,
            reopened: Vec::new(),
            reading_first: Vec::new(),
            engine: None,
            check_errors: None,
            failed: self.failed,
        }
    }
}

/// The same names in a directory of the system.
fn kernel(study: &Study, dir: &std::path::Path, watch: &dyn Watch) -> Result<OfHash, LabFault> {
    watch.part("kernel", Some(study.names));
    let alone = Study { drives: Vec::new(), ..study.clone() };
    let grown = in_scratch(Some(dir), "extant-lab-large-dir", |scratch| {
        let mut place = Kernel::at(scratch.unwrap_or(dir))?;
        let mut growing = Growing {
            study: &alone,
            dir: &mut place,
            drive: &|_| (),
            blocks_read: &Reads::default,
            sync: &|| Ok(()),
            is_short: false,
            watch,
            growth: Growth::default(),
        };
        growing.all()?;
        Ok(growing.growth)
    });
    Ok(grown?.report("kernel".to_owned(), study.per))
}

/// The options for creating the file system of a study, and the size of its device.
fn layout(study: &Study) -> (FormatOptions, u64) {
    let mut make = study.make.clone();
    // The study's own options come last, so they can exclude it.
    let large = FeatureEdit::parse_list("large_dir").unwrap_or_default();
    make.features.splice(0..0, large);
    // Windows add names.
    let per_point = study.drives.len() as u64 * (study.per / WINDOW_SHARE + 64);
    let points = study.names / study.per.max(1) + 1 + study.last_windows as u64;
    // Names that fill caches: of the largest directory, and at each point of a growing one.
    let warm = study.reopen.map_or(0, |_| 4 * study.names * BYTES_OF_LEAF_PER_NAME / 4096);
    let warm = if study.reopen.is_some_and(|reopen| reopen.each_time) { warm * points } else { 2 * warm };
    let names = study.names + points * per_point + warm + 2 * study.last_windows as u64 * per_point;
    if make.inodes.is_none() {
        let targets = names / LINKS_PER_TARGET + points * (1 + study.drives.len() as u64);
        let inodes = if study.operation == Operation::Link { targets } else { names };
        make.inodes = Some(inodes + 8192);
    }
    if make.journal_size == JournalSize::Auto {
        make.journal_size = JournalSize::MiB(128);
    }
    let per_inode = if study.operation == Operation::Link { 0 } else { 320 };
    let per_dir = if study.operation == Operation::Mkdir { 4096 } else { 0 };
    let journal = match make.journal_size {
        JournalSize::MiB(mib) => u64::from(mib) << 20,
        JournalSize::Auto => 0,
    };
    (make, study.size.unwrap_or(BYTES_BASE + journal + names * (BYTES_PER_NAME + per_inode + per_dir)))
}

fn one(study: &Study, hash: HashVersion, watch: &dyn Watch) -> Result<OfHash, LabFault> {
    let (make, size) = layout(study);
    let inner = Ground::fresh(&study.site, size, &make)?;
    inner.set_hash(hash)?;
    let device = Arc::new(Switched::new(inner.device(), study.drive_scale));
    let ground = if study.drives.is_empty() { inner } else { Ground::of(Arc::clone(&device) as _) };
    let volume = ground.open(&study.open)?;
    let mut dir = Engine::root(&volume).below(DIR)?;
    watch.part(&hash_name(hash), Some(study.names));
    if let Some(reopen) = study.reopen.filter(|reopen| reopen.each_time) {
        let ino = dir.dir();
        volume.close().map_err(LabFault::Close)?;
        let on = (&ground, &*device);
        let growth = grown_in_turns(study, on, ino, reopen.cache_bytes, watch)?;
        let reading_first = reading_first(study, on, ino, &growth, watch)?;
        let check_errors = checked(study, &ground, watch)?;
        let report = growth.report(hash_name(hash), study.per);
        return Ok(OfHash { check_errors, reading_first, ..report });
    }
    let blocks_read = || Reads::of(&volume);
    let growth = Growth::default();
    let mut growing = Growing {
        study,
        dir: &mut dir,
        drive: &|drive| device.set(drive),
        blocks_read: &blocks_read,
        sync: &|| volume.sync().map_err(|fault| LabFault::Device(fault.to_string())),
        is_short: false,
        watch,
        growth,
    };
    growing.all()?;
    let growth = growing.growth;
    let dir_ino = dir.dir();
    let stats = volume.counters().dir_stats(dir_ino).unwrap_or_default();
    let mut engine = Internals::default();
    if let Ok(inode) = volume.inode(dir_ino) {
        engine.dir_bytes = inode.size();
        let walked = volume.files().extents(&inode, 0, u64::MAX, &mut |_| {
            engine.dir_extents += 1;
            Some(())
        });
        walked.map_err(|fault| LabFault::Device(fault.to_string()))?;
    }
    engine.resident_bytes = volume.counters().metadata_stats().bytes as u64;
    let journal = volume.counters().journal_stats().unwrap_or_default();
    let begun = Instant::now();
    volume.close().map_err(LabFault::Close)?;
    let close_seconds = begun.elapsed().as_secs_f64();
    let failed = growth.failed.clone();
    let mut reopened = Growth { done: growth.done, removed: growth.removed, failed, ..Growth::default() };
    if let Some(reopen) = study.reopen.filter(|_| growth.failed.is_none()) {
        let on = (&ground, &*device);
        reopened = windows_with(
            study,
            on,
            dir_ino,
            (reopen.cache_bytes, false),
            reopened,
            study.last_windows,
            watch,
        )?;
    }
    let reading_first = reading_first(study, (&ground, &*device), dir_ino, &reopened, watch)?;
    let check_errors = checked(study, &ground, watch)?;
    let mut name = Vec::new();
    let entry = |number: u64, name: &mut Vec<u8>| {
        study.format.write(number as i64, name);
        (8 + name.len() as u64).next_multiple_of(4)
    };
    // All names of one study have nearly the same length: the mean of the first and the last is a good
    // estimate.
    let entry_bytes = (entry(0, &mut name) + entry(growth.done.saturating_sub(1), &mut name)) as f64 / 2.0;
    if engine.dir_bytes > 0 {
        engine.fill = growth.done as f64 * entry_bytes / engine.dir_bytes as f64;
    }
    let per_name = |count: u64, names: u64| count as f64 / names.max(1) as f64;
    engine.levels = stats.indexed.min(1) + stats.levels_added;
    engine.splits = stats.splits;
    engine.index_splits = stats.index_splits;
    engine.leaf_looks_per_name = per_name(stats.leaf_reads, growth.done);
    engine.leaf_reads_per_name = per_name(growth.blocks_read, growth.outside);
    engine.leaves_touched = stats.leaves_in_last_window;
    engine.commits = journal.commits;
    engine.logged_blocks = journal.logged_blocks;
    let report = growth.report(hash_name(hash), study.per);
    Ok(OfHash {
        close_seconds,
        engine: Some(engine),
        reopened: reopened.windows,
        reading_first,
        check_errors,
        ..report
    })
}

/// Errors that the check finds, if the study has one.
fn checked(study: &Study, ground: &Ground, watch: &dyn Watch) -> Result<Option<u64>, LabFault> {
    if !study.check {
        return Ok(None);
    }
    watch.part("check", None);
    let report = ground.check()?;
    let errors = report.counts.values().sum::<u64>();
    Ok(Some(if report.clean() { 0 } else { errors.max(1) }))
}

/// Opens the volume, changes the directory, and closes it again.
fn session(
    study: &Study,
    (ground, device): (&Ground, &Switched),
    dir: Ino,
    (cache_bytes, read_leaves_first): (usize, bool),
    growth: Growth,
    watch: &dyn Watch,
    change: impl FnOnce(&mut Growing<'_, Engine<'_>>) -> Result<(), LabFault>,
) -> Result<Growth, LabFault> {
    let read_leaves_first = read_leaves_first || study.open.write.read_leaves_first;
    let write = WriteOptions { read_leaves_first, ..study.open.write };
    let volume = ground.open(&OpenOptions { cache_bytes, write, ..study.open.clone() })?;
    let blocks_read = || Reads::of(&volume);
    let mut growing = Growing {
        study,
        dir: &mut Engine::new(&volume, dir),
        drive: &|drive| device.set(drive),
        blocks_read: &blocks_read,
        sync: &|| volume.sync().map_err(|fault| LabFault::Device(fault.to_string())),
        is_short: study.reopen.is_some_and(|reopen| reopen.cache_bytes == cache_bytes),
        watch,
        growth,
    };
    change(&mut growing)?;
    let growth = growing.growth;
    volume.close().map_err(LabFault::Close)?;
    Ok(growth)
}

/// Windows with this memory for caches.
fn windows_with(
    study: &Study,
    on: (&Ground, &Switched),
    dir: Ino,
    (cache_bytes, read_leaves_first): (usize, bool),
    growth: Growth,
    turns: usize,
    watch: &dyn Watch,
) -> Result<Growth, LabFault> {
    session(study, on, dir, (cache_bytes, read_leaves_first), growth, watch, |growing| {
        // These names fill the caches, without latency. To build the filters of nearly all leaves takes more
        // names than to fill the cache with leaves.
        let leaves = growing.growth.names() * BYTES_OF_LEAF_PER_NAME / 4096;
        let warm = if read_leaves_first { 2 * leaves.min(cache_bytes as u64 / 4096) } else { 3 * leaves };
        growing.part(study.in_windows(), warm.max(1), None)?;
        growing.windows(turns)
    })
}

/// The last windows with the memory of [`Study::reopen`], in which each leaf is read before it is changed.
fn reading_first(
    study: &Study,
    on: (&Ground, &Switched),
    dir: Ino,
    growth: &Growth,
    watch: &dyn Watch,
) -> Result<Vec<Window>, LabFault> {
    let Some(reopen) = study.reopen.filter(|_| study.ends_reading_first && growth.failed.is_none()) else {
        return Ok(Vec::new());
    };
    let growth = Growth { done: growth.done, removed: growth.removed, ..Growth::default() };
    let memory = (reopen.cache_bytes, true);
    Ok(windows_with(study, on, dir, memory, growth, study.last_windows, watch)?.windows)
}

/// Names with the memory of the study, and windows with other memory, in turns.
fn grown_in_turns(
    study: &Study,
    on: (&Ground, &Switched),
    dir: Ino,
    cache_bytes: usize,
    watch: &dyn Watch,
) -> Result<Growth, LabFault> {
    let memory = (study.open.cache_bytes, false);
    let is_shrinking = study.course == Course::Shrink;
    let mut growth = Growth::default();
    let mut turns = 1;
    while growth.done < study.names && growth.failed.is_none() {
        growth = session(study, on, dir, memory, growth, watch, |growing| growing.point(Step::Create))?;
        if growth.done >= study.names {
            turns = study.last_windows;
        }
        if !is_shrinking {
            growth = windows_with(study, on, dir, (cache_bytes, false), growth, turns, watch)?;
        }
    }
    while is_shrinking && growth.names() > 0 && growth.failed.is_none() {
        growth = windows_with(study, on, dir, (cache_bytes, false), growth, 1, watch)?;
        growth = session(study, on, dir, memory, growth, watch, |growing| growing.point(Step::Remove))?;
    }
    Ok(growth)
}

#[cfg(test)]
mod tests;
