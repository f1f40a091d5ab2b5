//! Synchronous reads and writes of files by concurrent jobs, as fio's engine psync makes them.
//!
//! ```text
//! Job: jobs x files x bytes, block by block   ->   in process: a volume on a device in memory
//!                                             ->   system calls: a new directory below a given one
//! ```
//!
//! Each job is a thread with files of its own, and goes from file to file with each block, from front to
//! back. Before reads and overwrites the files are written, and synced: that is not timed.

use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use extant_base::Ino;
use extant_extent_status::Times;
use extant_image::options::FormatOptions;
use extant_volume::{New, OpenOptions, Volume};
use serde::Serialize;

use crate::ground::Ground;
use crate::{Failed, LabFault, Watch};

/// What a job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Reads.
    Read,
    /// Writes of new files.
    Write,
    /// Writes of files that have these bytes already.
    Overwrite,
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Overwrite];

    /// The name on command lines.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Overwrite => "overwrite",
        }
    }
}

/// A load.
#[derive(Debug, Clone, Serialize)]
pub struct Job {
    /// What is done.
    pub operation: Operation,
    /// Bytes of a read or write.
    pub bs: u64,
    /// Bytes that each file gets, or has.
    pub size: u64,
    /// Files of each job.
    pub files: usize,
    /// Concurrent jobs.
    pub jobs: usize,
    /// An fsync after so many writes of a job; 0: none.
    pub fsync_every: u64,
    /// One fsync of each file at the end, within the time that is measured.
    pub end_fsync: bool,
    /// Of so many blocks of a file the first is read or written: 1 for all.
    pub stride: u64,
}

/// The result of a load.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The load.
    pub job: Job,
    /// Reads or writes of all jobs.
    pub calls: u64,
    /// Wall-clock time in seconds.
    pub seconds: f64,
    /// Reads or writes per second.
    pub per_s: f64,
    /// Bandwidth in MiB per second.
    pub mib_s: f64,
    /// Mean time of a call in microseconds, with its fsync.
    pub avg_us: f64,
    /// The longest call.
    pub max_us: f64,
    /// The 99 % quantile.
    pub p99_us: f64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { job, calls, seconds, per_s, mib_s, avg_us, max_us, p99_us } = self;
        let name = job.operation.name();
        writeln!(f, "{name}: {calls} calls of {} bytes in {seconds:.2} s; jobs: {}", job.bs, job.jobs)?;
        writeln!(f, "  IOPS {per_s:.0}, BW {mib_s:.1} MiB/s")?;
        writeln!(f, "  latency [us]: avg {avg_us:.2}, 99 % {p99_us:.2}, max {max_us:.1}")
    }
}

/// Files by number.
pub(crate) trait Files: Sync {
    fn write(&self, file: usize, pos: u64, bytes: &[u8]) -> Result<(), LabFault>;
    /// Reads up to a buffer; at the end of the file nothing.
    fn read(&self, file: usize, pos: u64, buf: &mut [u8]) -> Result<(), LabFault>;
    /// Makes a file's bytes durable.
    fn sync(&self, file: usize) -> Result<(), LabFault>;
}

pub(crate) struct Ours<'a> {
    volume: &'a Volume,
    inos: Vec<Ino>,
}

fn ours(operation: &'static str) -> impl Fn(extant_volume::Fault) -> LabFault {
    move |fault| {
        let (errno, says) = (fault.errno(), fault.to_string());
        LabFault::Failed(Failed { operation, name: "file".to_owned(), errno, says })
    }
}

fn theirs(operation: &'static str) -> impl Fn(std::io::Error) -> LabFault {
    move |error| {
        let (errno, says) = (error.raw_os_error().unwrap_or(5), error.to_string());
        LabFault::Failed(Failed { operation, name: "file".to_owned(), errno, says })
    }
}

impl<'a> Ours<'a> {
    pub(crate) fn new(volume: &'a Volume, count: usize) -> Result<Self, LabFault> {
        let root = volume.root().map_err(ours("open"))?.ino();
        let inos = (0..count).map(|at| {
            volume
                .names()
                .create_number(root, format!("{at}").as_bytes(), &New::file(0o644))
                .map_err(ours("create"))
        });
        Ok(Self { volume, inos: inos.collect::<Result<_, _>>()? })
    }
}

impl Files for Ours<'_> {
    fn write(&self, file: usize, pos: u64, bytes: &[u8]) -> Result<(), LabFault> {
        self.volume.files().write_at(self.inos[file], pos, bytes).map(drop).map_err(ours("write"))
    }

    fn read(&self, file: usize, pos: u64, buf: &mut [u8]) -> Result<(), LabFault> {
        self.volume.files().read_at(self.inos[file], pos, buf).map(drop).map_err(ours("read"))
    }

    fn sync(&self, file: usize) -> Result<(), LabFault> {
        self.volume.files().fsync(self.inos[file]).map_err(ours("fsync"))
    }
}

/// Files in a new directory, which is removed at the end. The first ones stay open; a process may not have as
/// many open files as case (b) has.
pub(crate) struct Theirs {
    dir: PathBuf,
    open: Vec<File>,
}

impl Theirs {
    pub(crate) fn new(dir: &Path, count: usize, keep: usize) -> Result<Self, LabFault> {
        let mut made = Self { dir: dir.to_owned(), open: Vec::new() };
        fs::create_dir(&made.dir).map_err(theirs("mkdir"))?;
        for at in 0..count {
            let file = File::options().read(true).write(true).create_new(true).open(made.path(at));
            let file = file.map_err(theirs("create"))?;
            made.open.extend((at < keep).then_some(file));
        }
        Ok(made)
    }

    fn path(&self, file: usize) -> PathBuf {
        self.dir.join(file.to_string())
    }

    fn with<T>(&self, file: usize, of: impl FnOnce(&File) -> std::io::Result<T>) -> Result<T, LabFault> {
        let done = match self.open.get(file) {
            Some(open) => of(open),
            None => File::options().read(true).write(true).open(self.path(file)).and_then(|file| of(&file)),
        };
        done.map_err(theirs("read or write"))
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        // The files of an interrupted study stay; the next one reports that they exist.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl Files for Theirs {
    fn write(&self, file: usize, pos: u64, bytes: &[u8]) -> Result<(), LabFault> {
        self.with(file, |file| file.write_all_at(bytes, pos))
    }

    fn read(&self, file: usize, pos: u64, buf: &mut [u8]) -> Result<(), LabFault> {
        self.with(file, |file| file.read_at(buf, pos)).map(drop)
    }

    fn sync(&self, file: usize) -> Result<(), LabFault> {
        self.with(file, File::sync_all)
    }
}

/// Runs a load in process, on a new file system in memory.
///
/// # Errors
/// The parameters are invalid, or an operation failed.
pub fn run_in_process(job: &Job, options: &OpenOptions, watch: &dyn Watch) -> Result<Report, LabFault> {
    job.check()?;
    let bytes = job.size * (job.files * job.jobs) as u64;
    let ground = Ground::memory(bytes * 2 * job.stride + (1 << 30), &FormatOptions::default())?;
    let volume = ground.open(options)?;
    let report = job.run(&Ours::new(&volume, job.files * job.jobs)?, watch)?;
    volume.close().map_err(LabFault::Close)?;
    Ok(report)
}

/// Runs a load through system calls, in a new directory below `dir`.
///
/// # Errors
/// The parameters are invalid, or an operation failed.
pub fn run_below(job: &Job, dir: &Path, watch: &dyn Watch) -> Result<Report, LabFault> {
    job.check()?;
    let below = dir.join(format!("extant-lab-io-{}", std::process::id()));
    job.run(&Theirs::new(&below, job.files * job.jobs, OPEN_MAX)?, watch)
}

/// Files that stay open; the others are opened for each call.
const OPEN_MAX: usize = 512;

impl Job {
    fn check(&self) -> Result<(), LabFault> {
        let is_valid =
            self.bs > 0 && self.size >= self.bs && self.files > 0 && self.jobs > 0 && self.stride > 0;
        let why = "sizes and counts are at least 1, and a file has at least one block";
        if is_valid { Ok(()) } else { Err(LabFault::Usage(why.to_owned())) }
    }

    fn run(&self, on: &dyn Files, watch: &dyn Watch) -> Result<Report, LabFault> {
        let calls = self.size / self.bs * (self.files * self.jobs) as u64;
        if self.operation != Operation::Write {
            watch.part("prepare", None);
            let write = Self { operation: Operation::Write, fsync_every: 0, end_fsync: true, ..self.clone() };
            write.all(on)?;
        }
        watch.part(self.operation.name(), Some(calls));
        let begun = Instant::now();
        let times = self.all(on)?;
        let seconds = begun.elapsed().as_secs_f64();
        let per_s = crate::summary::rate(times.count(), seconds);
        Ok(Report {
            job: self.clone(),
            calls: times.count(),
            seconds,
            per_s,
            mib_s: per_s * self.bs as f64 / f64::from(1 << 20),
            avg_us: times.avg_ns() / 1e3,
            max_us: times.max_ns() as f64 / 1e3,
            p99_us: times.quantile_ns(0.99) as f64 / 1e3,
        })
    }

    fn all(&self, on: &dyn Files) -> Result<Times, LabFault> {
        std::thread::scope(|scope| {
            let jobs: Vec<_> = (0..self.jobs).map(|job| scope.spawn(move || self.one(on, job))).collect();
            let mut all = Times::default();
            for job in jobs {
                all.add_all(&job.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
            }
            Ok(all)
        })
    }

    fn one(&self, on: &dyn Files, job: usize) -> Result<Times, LabFault> {
        let mut times = Times::default();
        let mut buf = vec![7; self.bs as usize];
        let (first, mut writes) = (job * self.files, 0);
        for block in 0..self.size / self.bs {
            for file in first..first + self.files {
                let pos = block * self.stride * self.bs;
                let begun = Instant::now();
                if self.operation == Operation::Read {
                    on.read(file, pos, &mut buf)?;
                } else {
                    on.write(file, pos, &buf)?;
                    writes += 1;
                    if self.fsync_every > 0 && writes % self.fsync_every == 0 {
                        on.sync(file)?;
                    }
                }
                times.add(begun.elapsed().as_nanos() as u64);
            }
        }
        if self.end_fsync && self.operation != Operation::Read {
            (first..first + self.files).try_for_each(|file| on.sync(file))?;
        }
        Ok(times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Quiet;

    #[test]
    fn every_operation_runs_in_process_and_through_system_calls() {
        let dir = tempfile::tempdir().unwrap();
        for operation in Operation::ALL {
            let job = Job {
                operation,
                bs: 4096,
                size: 40_960,
                files: 3,
                jobs: 2,
                fsync_every: 7,
                end_fsync: true,
                stride: 2,
            };
            let ours = run_in_process(&job, &OpenOptions::default(), &Quiet).unwrap();
            let theirs = run_below(&job, dir.path(), &Quiet).unwrap();
            for report in [ours, theirs] {
                assert_eq!(report.calls, 60);
                assert!(report.per_s > 0.0 && report.max_us >= report.avg_us);
                assert!(report.to_string().contains("60 calls of 4096 bytes"), "{report}");
            }
            assert!(run_below(&Job { bs: 0, ..job }, dir.path(), &Quiet).is_err());
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
