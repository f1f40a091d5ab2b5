//! Throughput of buffered reads and writes of a file: by ranges in large folios, block by block, and for
//! comparison the kernel's file system and plain memory copies.
//!
//! ```text
//! hole_read        reads a file that is one hole           limit: zeroing a buffer
//! cached_read      reads a file that is in memory          limit: copying as much memory to a buffer
//! cached_write     writes a file without writeback         limit: copying the buffer to as much memory
//! overwrite        writes it again                         the same
//! writeback_write  writes it, and one fsync at the end     the same
//! sync_write       fsync after each write                  none
//! ```
//!
//! Paths are compared side by side: within a round each path takes its turn, so that other load of the
//! machine affects all of them. The first round is not counted. Sequential, one thread. Source: the
//! linux-ext4 series "ext4: use iomap for regular file's buffered I/O", 2024.

use std::fmt;
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Instant;

use extant_base::Ino;
use extant_image::options::FormatOptions;
use extant_volume::{DataPath, New, OpenOptions, SetAttr, Volume, WriteOptions};
use serde::Serialize;

use crate::ground::Ground;
use crate::{Failed, LabFault, Watch};

/// The measured operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Case {
    /// Reads of a hole.
    HoleRead,
    /// Reads of cached data.
    CachedRead,
    /// First writes, into memory.
    CachedWrite,
    /// Overwrites, in memory.
    Overwrite,
    /// Writes, and one fsync at the end.
    WritebackWrite,
    /// An fsync after each write.
    SyncWrite,
}

impl Case {
    /// All cases, in the order of the table.
    pub const ALL: [Self; 6] = [
        Self::HoleRead,
        Self::CachedRead,
        Self::CachedWrite,
        Self::Overwrite,
        Self::WritebackWrite,
        Self::SyncWrite,
    ];

    /// The name, as the command line spells it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::HoleRead => "hole_read",
            Self::CachedRead => "cached_read",
            Self::CachedWrite => "cached_write",
            Self::Overwrite => "overwrite",
            Self::WritebackWrite => "writeback_write",
            Self::SyncWrite => "sync_write",
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
    /// Block by block, in pages, with ordered data.
    PerBlock,
    /// Block by block, in pages; commits do not wait for the data.
    Writeback,
    /// Data goes through the journal.
    Journal,
}

impl Path {
    /// All paths.
    pub const ALL: [Self; 4] = [Self::Iomap, Self::PerBlock, Self::Writeback, Self::Journal];
    /// The paths that are compared by default.
    pub const USUAL: [Self; 2] = [Self::Iomap, Self::PerBlock];

    /// The name, as the command line spells it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Iomap => "iomap",
            Self::PerBlock => "per-block",
            Self::Writeback => "writeback",
            Self::Journal => "journal",
        }
    }

    /// The engine's data path.
    #[must_use]
    pub fn data(self) -> DataPath {
        match self {
            Self::Iomap => DataPath::Iomap,
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

/// The parameters of a study.
#[derive(Debug, Clone)]
pub struct Study {
    /// Cases, in the order of the table.
    pub cases: Vec<Case>,
    /// Bytes per read or write.
    pub sizes: Vec<u64>,
    /// Paths of the engine.
    pub paths: Vec<Path>,
    /// Size of the file, in bytes.
    pub bytes: u64,
    /// Maximum number of writes of `sync_write`.
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

/// One case, size and path: medians of the rounds, in MiB per second.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The measured operation.
    pub case: Case,
    /// Bytes per read or write.
    pub bs: u64,
    /// The engine's path.
    pub path: Path,
    /// Throughput of the engine.
    pub mib_s: f64,
    /// Throughput of the kernel's file system, if it was measured.
    pub kernel_mib_s: Option<f64>,
    /// Throughput of plain memory; `None` for cases that wait for a device.
    pub limit_mib_s: Option<f64>,
}

/// The results of a study.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// One row for each case, size and path.
    pub rows: Vec<Row>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["case", "size", "path", "MiB/s", "kernel", "ratio", "limit", "share"];
        writeln!(
            f,
            "{:16}{:>8}  {:10}{:>9}{:>9}{:>7}{:>9}{:>7}",
            head[0], head[1], head[2], head[3], head[4], head[5], head[6], head[7]
        )?;
        let number = |value: Option<f64>, digits: usize| {
            value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
        };
        for row in &self.rows {
            let ratio = row.kernel_mib_s.map(|kernel| row.mib_s / kernel);
            let share = row.limit_mib_s.map(|limit| row.mib_s / limit);
            let (case, path) = (row.case.name(), row.path.name());
            writeln!(
                f,
                "{case:16}{:>8}  {path:10}{:>9.0}{:>9}{:>7}{:>9}{:>7}",
                row.bs,
                row.mib_s,
                number(row.kernel_mib_s, 0),
                number(ratio, 2),
                number(row.limit_mib_s, 0),
                number(share, 2),
            )?;
        }
        Ok(())
    }
}

/// A measured file.
trait Subject {
    fn write(&self, pos: u64, bytes: &[u8]) -> Result<(), LabFault>;
    fn read(&self, pos: u64, buf: &mut [u8]) -> Result<(), LabFault>;
    fn set_size(&self, size: u64) -> Result<(), LabFault>;
    fn sync(&self) -> Result<(), LabFault>;
}

struct Ours<'a> {
    volume: &'a Volume,
    ino: Ino,
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

impl Subject for Ours<'_> {
    fn write(&self, pos: u64, bytes: &[u8]) -> Result<(), LabFault> {
        let written = self.volume.write_at(self.ino, pos, bytes).map_err(ours("write"))?;
        if written == bytes.len() { Ok(()) } else { Err(failed("write", 28, "no space left".to_owned())) }
    }

    fn read(&self, pos: u64, buf: &mut [u8]) -> Result<(), LabFault> {
        let read = self.volume.read_at(self.ino, pos, buf).map_err(ours("read"))?;
        if read == buf.len() { Ok(()) } else { Err(failed("read", 5, "the file ended".to_owned())) }
    }

    fn set_size(&self, size: u64) -> Result<(), LabFault> {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.volume.set_attr(self.ino, &set).map(drop).map_err(ours("truncate"))
    }

    fn sync(&self) -> Result<(), LabFault> {
        self.volume.fsync(self.ino).map_err(ours("fsync"))
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
}

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

    /// Runs the turn. Returns MiB per second.
    fn run(&mut self, subject: &dyn Subject) -> Result<f64, LabFault> {
        subject.set_size(0)?;
        match self.case {
            Case::HoleRead => subject.set_size(self.bytes)?,
            Case::CachedRead | Case::Overwrite => self.write_all(subject)?,
            Case::CachedWrite | Case::WritebackWrite | Case::SyncWrite => {}
        }
        let mut bytes = self.bytes;
        let begun = Instant::now();
        match self.case {
            Case::HoleRead | Case::CachedRead => self.read_all(subject)?,
            Case::CachedWrite | Case::Overwrite => self.write_all(subject)?,
            Case::WritebackWrite => {
                self.write_all(subject)?;
                subject.sync()?;
            }
            Case::SyncWrite => {
                let count = self.syncs.min(self.bytes / self.bs());
                bytes = count * self.bs();
                for at in 0..count {
                    subject.write(at * self.bs(), black_box(self.buf))?;
                    subject.sync()?;
                }
            }
        }
        let rate = mib_per_s(bytes, begun);
        subject.set_size(0)?;
        Ok(rate)
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
            Case::CachedRead => {
                for piece in memory.chunks_exact(bs) {
                    black_box(&mut *self.buf).copy_from_slice(black_box(piece));
                }
            }
            Case::CachedWrite | Case::Overwrite | Case::WritebackWrite => {
                for piece in memory.chunks_exact_mut(bs) {
                    black_box(piece).copy_from_slice(black_box(self.buf));
                }
            }
            Case::SyncWrite => return None,
        }
        Some(mib_per_s(memory.len() as u64, begun))
    }
}

fn mib_per_s(bytes: u64, begun: Instant) -> f64 {
    bytes as f64 / f64::from(1 << 20) / begun.elapsed().as_secs_f64()
}

fn median(mut rates: Vec<f64>) -> Option<f64> {
    rates.sort_by(f64::total_cmp);
    let at = rates.len() / 2;
    let odd = rates.len() % 2 == 1;
    if odd { rates.get(at).copied() } else { rates.get(at).map(|high| (high + rates[at - 1]) / 2.0) }
}

fn open(study: &Study, path: Path) -> Result<(Volume, Ino), LabFault> {
    let ground = Ground::memory(study.bytes * 2 + (512 << 20), &study.format)?;
    let write = WriteOptions { data: path.data(), ..WriteOptions::default() };
    let options = OpenOptions { cache_bytes: study.cache_bytes, write, ..OpenOptions::default() };
    let volume = ground.open(&options)?;
    let root = volume.root().map_err(ours("open"))?.ino();
    let ino = volume.create_number(root, b"file", &New::file(0o644)).map_err(ours("create"))?;
    Ok((volume, ino))
}

/// Rates of each round: for each path, for the kernel, for memory.
type Rates = (Vec<Vec<f64>>, Vec<f64>, Vec<f64>);

/// Runs a study.
///
/// # Errors
/// An operation of the engine or of the kernel failed.
pub fn run(study: &Study, watch: &dyn Watch) -> Result<Report, LabFault> {
    let volumes = study.paths.iter().map(|path| open(study, *path)).collect::<Result<Vec<_>, _>>()?;
    let kernel = study.kernel_dir.as_ref().map(|dir| {
        let name = dir.join("extant-lab-buffered");
        File::options().read(true).write(true).create(true).truncate(true).open(name).map_err(theirs("open"))
    });
    let kernel = kernel.transpose()?;
    let mut memory = vec![1; study.bytes as usize];
    let cells: Vec<(Case, u64)> =
        study.cases.iter().flat_map(|case| study.sizes.iter().map(|bs| (*case, *bs))).collect();
    let mut rates: Vec<Rates> =
        cells.iter().map(|_| (vec![Vec::new(); volumes.len()], Vec::new(), Vec::new())).collect();
    watch.part("buffered", Some(((study.rounds + 1) * cells.len()) as u64));
    // The first round does not count: it gets memory from the system, which later rounds reuse.
    for round in 0..=study.rounds {
        for ((case, bs), (engine, system, limits)) in cells.iter().zip(&mut rates) {
            let mut buf = vec![7; *bs as usize];
            let mut turn = Turn { case: *case, bytes: study.bytes, syncs: study.syncs, buf: &mut buf };
            for ((volume, ino), rates) in volumes.iter().zip(engine) {
                let rate = turn.run(&Ours { volume, ino: *ino })?;
                rates.extend((round > 0).then_some(rate));
            }
            if let Some(kernel) = &kernel {
                let rate = turn.run(kernel)?;
                system.extend((round > 0).then_some(rate));
            }
            limits.extend(turn.limit(&mut memory).filter(|_| round > 0));
            watch.advance(1);
        }
    }
    let mut rows = Vec::new();
    for ((case, bs), (engine, system, limits)) in cells.into_iter().zip(rates) {
        let (kernel_mib_s, limit_mib_s) = (median(system), median(limits));
        for (path, rates) in study.paths.iter().zip(engine) {
            let mib_s = median(rates).unwrap_or_default();
            rows.push(Row { case, bs, path: *path, mib_s, kernel_mib_s, limit_mib_s });
        }
    }
    for (volume, _) in volumes {
        volume.close().map_err(LabFault::Close)?;
    }
    Ok(Report { rows })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Quiet;

    #[test]
    fn every_case_is_measured_on_every_path() {
        let dir = tempfile::tempdir().unwrap();
        let study = Study {
            cases: Case::ALL.to_vec(),
            sizes: vec![4096, 1 << 20],
            paths: Path::ALL.to_vec(),
            bytes: 4 << 20,
            syncs: 3,
            rounds: 1,
            cache_bytes: 64 << 20,
            format: FormatOptions::default(),
            kernel_dir: Some(dir.path().to_owned()),
        };
        let report = run(&study, &Quiet).unwrap();
        assert_eq!(report.rows.len(), 48);
        assert!(report.rows.iter().all(|row| row.mib_s > 0.0 && row.kernel_mib_s.is_some()), "{report}");
    }
}
