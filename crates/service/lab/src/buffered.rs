//! Throughput of buffered reads and writes of a file: by ranges in large folios, block by block, and for
//! comparison the kernel's file system and plain memory copies.
//!
//! ```text
//! hole_read        reads a file that is one hole           limit: zeroing a buffer
//! cached_read      reads a file that is in memory          limit: copying as much memory to a buffer
//! device_read      reads a file that is not in memory      the same
//! cached_write     writes a file                           limit: copying the buffer to as much memory
//! overwrite        writes it again                         the same
//! writeback_write  writes it, and one fsync at the end     the same
//! sync_write       fsync after each write                  none
//! sync_overwrite   the same in a file that exists          none
//! ```
//!
//! Before `device_read`, ours is closed and opened again; of the kernel's file the cached pages are dropped.
//! Whether there is writeback during `cached_write` and `overwrite` depends on the engine's cache: writeback
//! begins when about a fourteenth of it is dirty.
//!
//! Paths are compared side by side: within a round each path takes its turn, so that other load of the
//! machine affects all of them. The first round is not counted. Sequential, one thread. Source: the
//! linux-ext4 series "ext4: use iomap for regular file's buffered I/O", 2024.

use std::cell::RefCell;
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use extant_base::Ino;
use extant_device::{Clock, Device, Model, Modelled};
use extant_image::options::FormatOptions;
use extant_volume::{DataPath, New, OpenOptions, SetAttr, Volume, WriteOptions};
use serde::Serialize;

use crate::ground::{Ground, Site};
use crate::{Failed, LabFault, Summary, Watch, report};

/// The measured operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Case {
    /// Reads of a hole.
    HoleRead,
    /// Reads of cached data.
    CachedRead,
    /// Reads of data that the device has and memory does not.
    DeviceRead,
    /// First writes, into memory.
    CachedWrite,
    /// Overwrites, in memory.
    Overwrite,
    /// Writes, and one fsync at the end.
    WritebackWrite,
    /// An fsync after each write.
    SyncWrite,
    /// An fsync after each overwrite of data on the device.
    SyncOverwrite,
}

impl Case {
    /// All cases, in the order of the table.
    pub const ALL: [Self; 8] = [
        Self::HoleRead,
        Self::CachedRead,
        Self::DeviceRead,
        Self::CachedWrite,
        Self::Overwrite,
        Self::WritebackWrite,
        Self::SyncWrite,
        Self::SyncOverwrite,
    ];

    /// The name, as the command line spells it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::HoleRead => "hole_read",
            Self::CachedRead => "cached_read",
            Self::DeviceRead => "device_read",
            Self::CachedWrite => "cached_write",
            Self::Overwrite => "overwrite",
            Self::WritebackWrite => "writeback_write",
            Self::SyncWrite => "sync_write",
            Self::SyncOverwrite => "sync_overwrite",
        }
    }

    /// The case with this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|case| case.name() == name)
    }
}

/// A data path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Path {
    /// By ranges, in large folios.
    Iomap,
    /// By ranges, in folios of one page: iomap without large folios.
    Ranges,
    /// Block by block, in pages, with ordered data.
    PerBlock,
    /// Block by block, in pages; commits do not wait for the data.
    Writeback,
    /// Data goes through the journal.
    Journal,
}

impl Path {
    /// All paths.
    pub const ALL: [Self; 5] = [Self::Iomap, Self::Ranges, Self::PerBlock, Self::Writeback, Self::Journal];
    /// The paths that are compared by default.
    pub const USUAL: [Self; 2] = [Self::Iomap, Self::PerBlock];

    /// The name, as the command line spells it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Iomap => "iomap",
            Self::Ranges => "iomap-4k",
            Self::PerBlock => "per-block",
            Self::Writeback => "writeback",
            Self::Journal => "journal",
        }
    }

    /// The engine's data path.
    #[must_use]
    pub fn data(self) -> DataPath {
        match self {
            Self::Iomap | Self::Ranges => DataPath::Iomap,
            Self::PerBlock => DataPath::Ordered,
            Self::Writeback => DataPath::Writeback,
            Self::Journal => DataPath::Journal,
        }
    }

    /// The path with this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|path| path.name() == name)
    }
}

/// The device below the file system.
#[derive(Debug, Clone, Default)]
pub enum Backing {
    /// Memory, which keeps references to written pages.
    #[default]
    Memory,
    /// New files in this directory of the system, removed at the end.
    Files(PathBuf),
    /// Memory with the timing of a model.
    Modelled(Model),
}

/// The parameters of a study.
#[derive(Debug, Clone)]
pub struct Study {
    /// The device below the engine.
    pub backing: Backing,
    /// Cases, in the order of the table.
    pub cases: Vec<Case>,
    /// Bytes per read or write.
    pub sizes: Vec<u64>,
    /// Paths of the engine.
    pub paths: Vec<Path>,
    /// Size of the file, in bytes.
    pub bytes: u64,
    /// Maximum number of writes of `sync_write` and `sync_overwrite`.
    pub syncs: u64,
    /// Measured rounds.
    pub rounds: usize,
    /// Memory for the engine's caches, in bytes.
    pub cache_bytes: usize,
    /// Options for creating the file system.
    pub format: FormatOptions,
    /// A directory of the system, to measure the kernel's file system.
    pub kernel_dir: Option<PathBuf>,
}

/// One case, size and path; rates are in MiB per second.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The measured operation.
    pub case: Case,
    /// Bytes per read or write.
    pub bs: u64,
    /// The engine's path.
    pub path: Path,
    /// Throughput of the engine: the median of the rounds.
    pub mib_s: f64,
    /// Throughput of the kernel's file system, if it was measured: median.
    pub kernel_mib_s: Option<f64>,
    /// Throughput of plain memory: median; `None` for cases that wait for a device.
    pub limit_mib_s: Option<f64>,
    /// Throughput of the engine in all rounds.
    pub rounds_mib_s: Summary,
    /// Throughput of the kernel's file system in all rounds.
    pub kernel_rounds_mib_s: Option<Summary>,
    /// CPU time of all threads of the process for a GiB, in seconds: the mean of the rounds.
    pub cpu_s_gib: f64,
}

impl Row {
    /// Reads or writes per second.
    #[must_use]
    pub fn per_s(&self) -> f64 {
        self.rounds_mib_s.avg * f64::from(1 << 20) / self.bs as f64
    }
}

/// The results of a study.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// One row for each case, size and path.
    pub rows: Vec<Row>,
}

impl Report {
    /// A table for each case, with the paths side by side.
    #[must_use]
    pub fn tables(&self) -> Vec<report::Table> {
        let mut cases: Vec<Case> = self.rows.iter().map(|row| row.case).collect();
        cases.dedup();
        let table = |case: Case| {
            let rows: Vec<&Row> = self.rows.iter().filter(|row| row.case == case).collect();
            let in_rows = rows.iter().map(|row| {
                // Compared with the same reads or writes block by block.
                let base = rows.iter().find(|base| base.bs == row.bs && base.path == Path::PerBlock);
                let base = base.filter(|base| base.path != row.path);
                let against = Path::PerBlock.name();
                report::Row {
                    ours: Some(row.rounds_mib_s),
                    kernel: row.kernel_rounds_mib_s,
                    change: base
                        .map(|base| report::Change::between(&row.rounds_mib_s, &base.rounds_mib_s, against)),
                    extras: vec![
                        Some(row.per_s()),
                        row.limit_mib_s.map(|limit| row.mib_s / limit),
                        Some(row.cpu_s_gib),
                    ],
                    ..report::Row::ours(&[&row.bs.to_string(), row.path.name()], &[])
                }
            });
            report::Table {
                id: case.name().replace('_', "-"),
                title: case.name().to_owned(),
                in_posting: false,
                quantity: "bandwidth".to_owned(),
                unit: "MiB/s".to_owned(),
                better: report::Better::Higher,
                labels: ["size", "path"].map(str::to_owned).to_vec(),
                extras: ["IOPS", "share of limit", "CPU [s/GiB]"].map(str::to_owned).to_vec(),
                rows: in_rows.collect(),
                note: String::new(),
            }
        };
        cases.into_iter().map(table).collect()
    }
}

/// A measured file.
trait Subject {
    fn write(&self, pos: u64, bytes: &[u8]) -> Result<(), LabFault>;
    fn read(&self, pos: u64, buf: &mut [u8]) -> Result<(), LabFault>;
    fn set_size(&self, size: u64) -> Result<(), LabFault>;
    fn sync(&self) -> Result<(), LabFault>;
    /// Writes everything to the device, and removes it from memory.
    fn drop_cached(&self) -> Result<(), LabFault>;
}

/// A file of a volume that can be closed and opened again.
struct Ours {
    ground: Ground,
    options: OpenOptions,
    /// Always some volume, except while it is reopened.
    volume: RefCell<Option<Volume>>,
    ino: Ino,
}

impl Ours {
    fn with<T>(
        &self,
        operation: &'static str,
        of: impl FnOnce(&Volume) -> Result<T, extant_volume::Fault>,
    ) -> Result<T, LabFault> {
        match &*self.volume.borrow() {
            Some(volume) => of(volume).map_err(ours(operation)),
            None => Err(failed(operation, 5, "the volume is closed".to_owned())),
        }
    }

    fn close(&self) -> Result<(), LabFault> {
        let volume = self.volume.borrow_mut().take();
        volume.map_or(Ok(()), |volume| volume.close().map_err(LabFault::Close))
    }
}

fn failed(operation: &'static str, errno: i32, says: String) -> LabFault {
    LabFault::Failed(Failed { operation, name: "file".to_owned(), errno, says })
}

fn ours(operation: &'static str) -> impl Fn(extant_volume::Fault) -> LabFault {
    move |fault| failed(operation, fault.errno(), fault.to_string())
}

fn theirs(operation: &'static str) -> impl Fn(std::io::Error) -> LabFault {
    move |error| failed(operation, error.raw_os_error().unwrap_or(5), error.to_string())
}

impl Subject for Ours {
    fn write(&self, pos: u64, bytes: &[u8]) -> Result<(), LabFault> {
        let written = self.with("write", |volume| volume.files().write_at(self.ino, pos, bytes))?;
        if written == bytes.len() { Ok(()) } else { Err(failed("write", 28, "no space left".to_owned())) }
    }

    fn read(&self, pos: u64, buf: &mut [u8]) -> Result<(), LabFault> {
        let read = self.with("read", |volume| volume.files().read_at(self.ino, pos, buf))?;
        if read == buf.len() { Ok(()) } else { Err(failed("read", 5, "the file ended".to_owned())) }
    }

    fn set_size(&self, size: u64) -> Result<(), LabFault> {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.with("truncate", |volume| volume.attributes().set_attr(self.ino, &set).map(drop))
    }

    fn sync(&self) -> Result<(), LabFault> {
        self.with("fsync", |volume| volume.files().fsync(self.ino))
    }

    fn drop_cached(&self) -> Result<(), LabFault> {
        self.close()?;
        let volume = self.ground.open(&self.options)?;
        // The engine caches data of files that are written: reads of others go to the device, one by one,
        // because a client of a mount caches what it reads. A write makes this file one that is cached.
        let size = volume.inode(self.ino).map_err(ours("open"))?.size();
        let rewritten =
            volume.files().write_at(self.ino, size.saturating_sub(1), &[7]).map_err(ours("write"))?;
        debug_assert_eq!(rewritten, 1);
        *self.volume.borrow_mut() = Some(volume);
        Ok(())
    }
}

impl Subject for File {
    fn write(&self, pos: u64, bytes: &[u8]) -> Result<(), LabFault> {
        self.write_all_at(bytes, pos).map_err(theirs("write"))
    }

    fn read(&self, pos: u64, buf: &mut [u8]) -> Result<(), LabFault> {
        self.read_exact_at(buf, pos).map_err(theirs("read"))
    }

    fn set_size(&self, size: u64) -> Result<(), LabFault> {
        self.set_len(size).map_err(theirs("truncate"))
    }

    fn sync(&self) -> Result<(), LabFault> {
        self.sync_all().map_err(theirs("fsync"))
    }

    fn drop_cached(&self) -> Result<(), LabFault> {
        self.sync_all().map_err(theirs("fsync"))?;
        let dropped = rustix::fs::fadvise(self, 0, None, rustix::fs::Advice::DontNeed);
        dropped.map_err(|errno| theirs("fadvise")(errno.into()))
    }
}

/// Reads of memory are repeated for this long: a hole of 64 MiB is read in 2 ms, and an interruption takes as
/// long.
const TURN_MIN: Duration = Duration::from_millis(30);

/// The parameters of one turn, and its buffer.
struct Turn<'a> {
    case: Case,
    bytes: u64,
    syncs: u64,
    buf: &'a mut [u8],
}

impl Turn<'_> {
    fn bs(&self) -> u64 {
        self.buf.len() as u64
    }

    fn write_all(&self, subject: &dyn Subject) -> Result<(), LabFault> {
        (0..self.bytes / self.bs()).try_for_each(|at| subject.write(at * self.bs(), black_box(self.buf)))
    }

    fn read_all(&mut self, subject: &dyn Subject) -> Result<(), LabFault> {
        let bs = self.bs();
        (0..self.bytes / bs).try_for_each(|at| subject.read(at * bs, black_box(&mut *self.buf)))
    }

    /// Runs the turn. Returns MiB per second, and seconds of CPU time per GiB.
    fn run(&mut self, subject: &dyn Subject) -> Result<(f64, f64), LabFault> {
        subject.set_size(0)?;
        match self.case {
            Case::HoleRead => subject.set_size(self.bytes)?,
            Case::CachedRead | Case::Overwrite => self.write_all(subject)?,
            Case::SyncOverwrite => {
                self.write_all(subject)?;
                subject.sync()?;
            }
            Case::DeviceRead => {
                self.write_all(subject)?;
                subject.drop_cached()?;
            }
            Case::CachedWrite | Case::WritebackWrite | Case::SyncWrite => {}
        }
        let mut bytes = self.bytes;
        let (begun, cpu) = (Instant::now(), cpu_seconds());
        match self.case {
            Case::HoleRead | Case::CachedRead => {
                bytes = 0;
                while bytes == 0 || begun.elapsed() < TURN_MIN {
                    self.read_all(subject)?;
                    bytes += self.bytes;
                }
            }
            Case::DeviceRead => self.read_all(subject)?,
            Case::CachedWrite | Case::Overwrite => self.write_all(subject)?,
            Case::WritebackWrite => {
                self.write_all(subject)?;
                subject.sync()?;
            }
            Case::SyncWrite | Case::SyncOverwrite => {
                let count = self.syncs.min(self.bytes / self.bs());
                bytes = count * self.bs();
                for at in 0..count {
                    subject.write(at * self.bs(), black_box(self.buf))?;
                    subject.sync()?;
                }
            }
        }
        let rate = mib_per_s(bytes, begun);
        let cpu = (cpu_seconds() - cpu) / (bytes as f64 / f64::from(1 << 30));
        subject.set_size(0)?;
        Ok((rate, cpu))
    }

    /// Measures the same with plain memory. Returns MiB per second.
    fn limit(&mut self, memory: &mut [u8]) -> Option<f64> {
        let bs = self.buf.len();
        let begun = Instant::now();
        match self.case {
            Case::HoleRead => {
                for _ in 0..memory.len() / bs {
                    black_box(&mut *self.buf).fill(0);
                }
            }
            Case::CachedRead | Case::DeviceRead => {
                for piece in memory.chunks_exact(bs) {
                    black_box(&mut *self.buf).copy_from_slice(black_box(piece));
                }
            }
            Case::CachedWrite | Case::Overwrite | Case::WritebackWrite => {
                for piece in memory.chunks_exact_mut(bs) {
                    black_box(piece).copy_from_slice(black_box(self.buf));
                }
            }
            Case::SyncWrite | Case::SyncOverwrite => return None,
        }
        Some(mib_per_s(memory.len() as u64, begun))
    }
}

fn mib_per_s(bytes: u64, begun: Instant) -> f64 {
    bytes as f64 / f64::from(1 << 20) / begun.elapsed().as_secs_f64()
}

/// CPU time of all threads of the process.
fn cpu_seconds() -> f64 {
    crate::createmany::seconds_of(rustix::time::ClockId::ProcessCPUTime)
}

fn summary(rates: &[f64]) -> Option<Summary> {
    (!rates.is_empty()).then(|| Summary::of(rates))
}

fn open(study: &Study, path: Path) -> Result<Ours, LabFault> {
    let size = study.bytes * 2 + (512 << 20);
    let device: Arc<dyn Device> = match &study.backing {
        Backing::Memory => Ground::memory(size, &study.format)?.device(),
        Backing::Modelled(model) => {
            let memory = Ground::memory(size, &study.format)?.device();
            Arc::new(Modelled::new(memory, *model, Clock::Real))
        }
        Backing::Files(dir) => {
            let name = dir.join(format!("extant-lab-buffered-{}-{}", std::process::id(), path.name()));
            let ground = Ground::fresh(&Site::File(name.clone()), size, &study.format)?;
            // The open file stays; its name is not needed any more.
            std::fs::remove_file(name).map_err(theirs("unlink"))?;
            ground.device()
        }
    };
    let write =
        WriteOptions { data: path.data(), small_folios: path == Path::Ranges, ..WriteOptions::default() };
    let options = OpenOptions { cache_bytes: study.cache_bytes, write, ..OpenOptions::default() };
    let ground = Ground::of(device);
    let volume = ground.open(&options)?;
    let root = volume.root().map_err(ours("open"))?.ino();
    let ino = volume.names().create_number(root, b"file", &New::file(0o644)).map_err(ours("create"))?;
    Ok(Ours { ground, options, volume: RefCell::new(Some(volume)), ino })
}

/// What was measured of a case and size, in each round: for each path rate and CPU time, for the kernel its
/// rate, and the rate of memory.
#[derive(Clone)]
struct Cell {
    engine: Vec<(Vec<f64>, Vec<f64>)>,
    kernel: Vec<f64>,
    limits: Vec<f64>,
}

/// Runs a study.
///
/// # Errors
/// An operation of the engine or of the kernel failed.
pub fn run(study: &Study, watch: &dyn Watch) -> Result<Report, LabFault> {
    let files = study.paths.iter().map(|path| open(study, *path)).collect::<Result<Vec<_>, _>>()?;
    let kernel = study.kernel_dir.as_ref().map(|dir| {
        let name = dir.join("extant-lab-buffered");
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&name);
        file.map(|file| (file, name)).map_err(theirs("open"))
    });
    let kernel = kernel.transpose()?;
    let mut memory = vec![1; study.bytes as usize];
    let cells: Vec<(Case, u64)> =
        study.cases.iter().flat_map(|case| study.sizes.iter().map(|bs| (*case, *bs))).collect();
    let empty =
        Cell { engine: vec![Default::default(); files.len()], kernel: Vec::new(), limits: Vec::new() };
    let mut measured = vec![empty; cells.len()];
    watch.part("buffered", Some(((study.rounds + 1) * cells.len()) as u64));
    // The first round does not count: it gets memory from the system, which later rounds reuse.
    for round in 0..=study.rounds {
        for ((case, bs), cell) in cells.iter().zip(&mut measured) {
            let mut buf = vec![7; *bs as usize];
            let mut turn = Turn { case: *case, bytes: study.bytes, syncs: study.syncs, buf: &mut buf };
            for (file, (rates, costs)) in files.iter().zip(&mut cell.engine) {
                let (rate, cost) = turn.run(file)?;
                rates.extend((round > 0).then_some(rate));
                costs.extend((round > 0).then_some(cost));
            }
            if let Some((kernel, _)) = &kernel {
                let (rate, _) = turn.run(kernel)?;
                cell.kernel.extend((round > 0).then_some(rate));
            }
            cell.limits.extend(turn.limit(&mut memory).filter(|_| round > 0));
            watch.advance(1);
        }
    }
    if let Some((file, name)) = kernel {
        drop(file);
        std::fs::remove_file(name).map_err(theirs("unlink"))?;
    }
    let mut rows = Vec::new();
    for ((case, bs), cell) in cells.into_iter().zip(measured) {
        let (kernel, limit) = (summary(&cell.kernel), summary(&cell.limits));
        for (path, (rates, costs)) in study.paths.iter().zip(cell.engine) {
            let rounds_mib_s = Summary::of(&rates);
            rows.push(Row {
                case,
                bs,
                path: *path,
                mib_s: rounds_mib_s.median,
                kernel_mib_s: kernel.map(|kernel| kernel.median),
                limit_mib_s: limit.map(|limit| limit.median),
                rounds_mib_s,
                kernel_rounds_mib_s: kernel,
                cpu_s_gib: Summary::of(&costs).avg,
            });
        }
    }
    for file in files {
        file.close()?;
    }
    Ok(Report { rows })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Quiet;

    fn study() -> Study {
        Study {
            backing: Backing::Memory,
            cases: Case::ALL.to_vec(),
            sizes: vec![4096, 1 << 20],
            paths: Path::ALL.to_vec(),
            bytes: 4 << 20,
            syncs: 3,
            rounds: 1,
            cache_bytes: 64 << 20,
            format: FormatOptions::default(),
            kernel_dir: None,
        }
    }

    #[test]
    fn every_case_is_measured_on_every_path() {
        let dir = tempfile::tempdir().unwrap();
        let study = Study { kernel_dir: Some(dir.path().to_owned()), ..study() };
        let report = run(&study, &Quiet).unwrap();
        assert_eq!(report.rows.len(), 80);
        assert!(report.rows.iter().all(|row| row.mib_s > 0.0 && row.kernel_mib_s.is_some()));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let tables = report.tables();
        let table = tables.iter().find(|table| table.title == "sync_overwrite").unwrap();
        assert!(table.rows.iter().any(|row| row.labels[1] == "iomap-4k"));
    }

    #[test]
    fn files_and_models_are_devices_too() {
        let dir = tempfile::tempdir().unwrap();
        for backing in [Backing::Files(dir.path().to_owned()), Backing::Modelled(Model::NVME)] {
            let paths = Path::USUAL.to_vec();
            let report = run(&Study { backing, paths, sizes: vec![1 << 16], ..study() }, &Quiet).unwrap();
            assert_eq!(report.rows.len(), 16);
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    /// A read after `drop_cached` comes from the device, so it takes as long as the device needs.
    #[test]
    fn what_is_dropped_is_read_again() {
        let study = Study { backing: Backing::Modelled(Model::NVME), ..study() };
        for path in Path::USUAL {
            let file = open(&study, path).unwrap();
            file.write(0, &[5; 1 << 16]).unwrap();
            file.drop_cached().unwrap();
            let (mut buf, begun) = ([0; 4096], Instant::now());
            file.read(4096, &mut buf).unwrap();
            assert!(begun.elapsed() >= Model::NVME.read);
            assert_eq!(buf, [5; 4096]);
        }
    }
}
