//! The study of large directories: the rate as a directory grows, on modelled drives, with memory for all of
//! its leaves and for a quarter of them.
//!
//! ```text
//!            memory for all leaves                 for a quarter
//! normal     fill, windows on hdd and nvme         fill again, but windows with a smaller cache
//! large_dir  fill, windows on hdd and nvme         quick: the same; full: windows after the last name only
//! variants   hashes, bigalloc, block maps, mknod: filled in memory
//! kernel     the kernel's ext4 and extant, with the same number of names
//! ```
//!
//! Owns: the sizes, and the order of the runs. Does **not** own: the load (see [`crate::large_dir`]), the
//! drives (see [`crate::drive`]), the posting's figures and the tables (`tables`), the verdicts (`claims`).
//!
//! An index of two levels is full at about 20.5 million of these names. `normal` stops at 85 % of the
//! posting's names, so that its last windows, which add names, still fit. Windows after the last name follow
//! each other directly, so the write cache of a drive fills up as under a lasting load; the first of them is
//! left out. The two directories can be compared only if both end in this way.
//!
//! The caches, the journal and the drives' write caches are as much smaller as the directory is. With memory
//! for a quarter of the leaves the journal takes half of the cache at most, because leaves stay in memory
//! while the journal holds their only copy on the device. The volume is opened again for these windows: a
//! cache in which every leaf was used since the last search for a victim grows beyond its limit.

mod claims;
mod meter;
mod tables;

use std::path::Path;
use std::time::{Duration, Instant};

use extant_image::options::{FeatureEdit, FormatOptions, JournalSize};
use extant_ondisk::hash::HashVersion;
use extant_volume::OpenOptions;

pub use self::claims::judge;
use self::meter::{Cost, Meter};
use super::{Estimate, Size};
use crate::createmany::Operation;
use crate::drive::Drive;
use crate::large_dir::{OfHash, Reopen, Study, run};
use crate::report::StudyReport;
use crate::{LabFault, Watch};

/// Names in the posting's directories.
const NORMAL: u64 = 20_680_000;
const LARGE: u64 = 206_800_000;
/// Bytes of leaves per name, as the posting estimates them: 24 bytes of entry at three quarters of a leaf.
const BYTES_PER_NAME: u64 = 32;
/// The posting's journal in MiB, and the most here: the device, which keeps it, is in memory.
const JOURNAL_MIB: f64 = 4096.0;
const JOURNAL_MIB_MAX: u32 = 768;
/// Points of a curve.
const POINTS: u64 = 10;

/// The sizes of the parts.
#[derive(Debug, Clone, Copy)]
struct Scale {
    /// Names before the last windows.
    normal: u64,
    large: u64,
    /// Names of each variant.
    variants: u64,
    kernel: u64,
    window: Duration,
    window_on_hdd: Duration,
    last_windows: usize,
    /// Whether the larger directory grows a second time, with the smaller cache.
    regrow_large: bool,
}

impl Scale {
    fn of(size: Size) -> Self {
        match size {
            Size::Quick => Self {
                normal: NORMAL / 20,
                large: LARGE / 50,
                variants: NORMAL / 20,
                kernel: 300_000,
                window: Duration::from_millis(400),
                window_on_hdd: Duration::from_millis(400),
                last_windows: 6,
                regrow_large: true,
            },
            Size::Full => Self {
                normal: NORMAL / 20 * 17,
                large: LARGE,
                variants: NORMAL / 4,
                kernel: 2_000_000,
                window: Duration::from_secs(1),
                window_on_hdd: Duration::from_secs(4),
                last_windows: 6,
                regrow_large: false,
            },
        }
    }
}

/// What the names of rows mean.
pub const NAMES: &[(&str, &str)] = &[
    (
        "normal, large_dir",
        "the two directories of the posting: an index of two levels, or of three with large_dir. An index of \
         two levels is full at about 20.5 million of these names, so `normal` ends a little before",
    ),
    ("half_md4, tea, legacy", "hash functions of names"),
    ("link, mknod", "what adds a name: a link to an existing inode, or a new inode"),
    (
        "hdd, nvme",
        "models of a RAID 10 of eight disks and of a flash drive: requests wait as on a drive; memory: a \
         device without latency",
    ),
    ("all, quarter", "memory for all leaf blocks of the directory, or for a quarter of them"),
    (
        "quarter, leaves read first",
        "a leaf is read before a name is inserted into it, as ext4 does. In the other rows, names for leaves \
         that are not in memory are kept in memory, and the leaves are read later, many together (default)",
    ),
    (
        "names announced",
        "the load passes 16 names ahead to the engine, which prefetches their leaves into the CPU's caches",
    ),
    ("knee", "the number of names from which on the rate stays below 0.8 of the best one before"),
];

/// What the study needs.
#[must_use]
pub fn estimate(size: Size, kernel: bool) -> Estimate {
    let (seconds, of_kernel, memory_bytes) = match size {
        Size::Quick => (110.0, 6.0, 1 << 30),
        Size::Full => (620.0, 90.0, 11 << 30),
    };
    Estimate {
        seconds: seconds + if kernel { of_kernel } else { 0.0 },
        memory_bytes,
        kernel_image_bytes: super::large_image(size),
    }
}

/// Runs the study.
///
/// # Errors
/// A file system cannot be created, or the device failed.
pub fn study_report(size: Size, kernel: Option<&Path>, watch: &dyn Watch) -> Result<StudyReport, LabFault> {
    let begun = Instant::now();
    let measured = measure(Scale::of(size), kernel, watch)?;
    let mut report = measured.report(size);
    report.command += if kernel.is_some() { " --kernel" } else { "" };
    report.seconds = begun.elapsed().as_secs_f64();
    judge(&mut report);
    Ok(report)
}

/// Memory for leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Share {
    All,
    Quarter,
    /// A quarter, and each leaf is read before a name is inserted, as ext4 does.
    QuarterReadFirst,
}

impl Share {
    const ALL: [Self; 3] = [Self::All, Self::Quarter, Self::QuarterReadFirst];

    fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Quarter => "quarter",
            Self::QuarterReadFirst => "quarter, leaves read first",
        }
    }
}

/// The two directories of the posting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Normal,
    Large,
}

impl Kind {
    const BOTH: [Self; 2] = [Self::Normal, Self::Large];

    fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Large => "large_dir",
        }
    }
}

/// A directory that grew with one share of memory.
struct Grown {
    kind: Kind,
    share: Share,
    names: u64,
    cache_bytes: usize,
    of: OfHash,
    /// CPU time of each point; empty with memory for a quarter.
    costs: Vec<Cost>,
}

/// A directory of another form.
struct Variant {
    name: &'static str,
    fill: Fill,
}

/// A directory that was filled on a device without latency.
struct Fill {
    of: OfHash,
    /// CPU time of each point.
    costs: Vec<Cost>,
}

/// The same names in a directory of ours and in one of the kernel.
struct Pair {
    operation: &'static str,
    names: u64,
    ours: Fill,
    kernel: Fill,
}

struct Measured {
    scale: Scale,
    grown: Vec<Grown>,
    variants: Vec<Variant>,
    /// Empty without a directory of the kernel.
    pairs: Vec<Pair>,
}

fn features(list: &str) -> FormatOptions {
    FormatOptions { features: FeatureEdit::parse_list(list).unwrap_or_default(), ..FormatOptions::default() }
}

/// The posting's journal at this scale, in MiB.
fn journal_mib(scale: f64) -> u32 {
    ((JOURNAL_MIB * scale) as u32).clamp(8, JOURNAL_MIB_MAX)
}

/// A directory that takes this share of the posting's names before its index is full counts as complete.
const INDEX_FULL_PERCENT: u64 = 97;

/// Enough memory for all leaves, and for what the engine knows about them.
fn cache_of_all(names: u64) -> usize {
    ((64 << 20) + names * 2 * BYTES_PER_NAME).min(12 << 30) as usize
}

fn first(study: &Study, watch: &dyn Watch) -> Result<Fill, LabFault> {
    let meter = Meter::new(watch);
    let of = run(study, &meter)?.hashes.into_iter().next();
    let of = of.ok_or_else(|| LabFault::Usage("the study has no hash".to_owned()))?;
    match &of.failed {
        // The hash seed decides how many names fit into an index of two levels.
        Some(why) if of.done < study.names / 100 * INDEX_FULL_PERCENT => {
            Err(LabFault::Device(format!("after {} names: {why}", of.done)))
        }
        _ => Ok(Fill { costs: meter.costs(&of), of }),
    }
}

fn measure(scale: Scale, kernel: Option<&Path>, watch: &dyn Watch) -> Result<Measured, LabFault> {
    let mut grown = Vec::new();
    for kind in Kind::BOTH {
        let (names, of_posting, list) = match kind {
            Kind::Normal => (scale.normal, NORMAL, "^large_dir"),
            Kind::Large => (scale.large, LARGE, "large_dir"),
        };
        let drive_scale = names as f64 / of_posting as f64;
        let journal = journal_mib(drive_scale);
        let regrows = kind == Kind::Normal || scale.regrow_large;
        let quarter = (names * BYTES_PER_NAME / 4) as usize;
        let study = Study {
            names,
            per: names.div_ceil(POINTS),
            make: FormatOptions { journal_size: JournalSize::MiB(journal), ..features(list) },
            open: OpenOptions { cache_bytes: cache_of_all(names), ..OpenOptions::default() },
            drives: vec![Drive::Hdd, Drive::Nvme],
            drive_scale,
            window: scale.window,
            window_on_hdd: scale.window_on_hdd,
            last_windows: scale.last_windows,
            ends_reading_first: true,
            reopen: (!regrows).then_some(Reopen { cache_bytes: quarter, each_time: false }),
            ..Study::default()
        };
        watch.part(&format!("{}, memory for all leaves", kind.name()), Some(names));
        let Fill { of: all, costs } = first(&study, watch)?;
        let names = names.min(all.done);
        let leaves = all.engine.map_or(0, |engine| engine.dir_bytes);
        if regrows {
            watch.part(&format!("{}, memory for a quarter", kind.name()), Some(names));
            let cache_bytes = (leaves / 4) as usize;
            let half = (cache_bytes >> 21) as u32;
            let journal_size = JournalSize::MiB(journal.min(half).max(4));
            let make = FormatOptions { journal_size, ..study.make.clone() };
            let reopen = Some(Reopen { cache_bytes, each_time: true });
            let drives = Drive::ALL.to_vec();
            let of = first(&Study { make, reopen, drives, ..study.clone() }, watch)?.of;
            // The directory is the same, and its rate with memory for all is not of interest.
            let of = OfHash { engine: all.engine, points: Vec::new(), knee: None, ..of };
            quarters(&mut grown, kind, names, cache_bytes, of);
        } else {
            let of = OfHash { points: Vec::new(), windows: all.reopened.clone(), knee: None, ..all.clone() };
            quarters(&mut grown, kind, names, quarter, of);
        }
        let cache_bytes = study.open.cache_bytes;
        grown.push(Grown { kind, share: Share::All, names, cache_bytes, of: all, costs });
    }
    let variants = variants(scale, watch)?;
    let pairs = kernel.map_or(Ok(Vec::new()), |dir| pairs(scale, dir, watch))?;
    Ok(Measured { scale, grown, variants, pairs })
}

/// A directory with memory for a quarter of its leaves, and the windows in which leaves were read first.
fn quarters(grown: &mut Vec<Grown>, kind: Kind, names: u64, cache_bytes: usize, of: OfHash) {
    let windows = of.reading_first.clone();
    let read_first = OfHash { windows, failed: None, ..of.clone() };
    for (share, of) in [(Share::Quarter, of), (Share::QuarterReadFirst, read_first)] {
        grown.push(Grown { kind, share, names, cache_bytes, of, costs: Vec::new() });
    }
}

/// Links in a directory that is filled in memory.
fn fill_of(names: u64) -> Study {
    Study {
        names,
        per: names.div_ceil(POINTS),
        make: FormatOptions {
            journal_size: JournalSize::MiB(journal_mib(names as f64 / NORMAL as f64)),
            // A small file system would get smaller blocks, whose index is full much earlier.
            block_size: extant_base::BlockSize::from_bytes(4096),
            ..features("^large_dir")
        },
        open: OpenOptions { cache_bytes: cache_of_all(names), ..OpenOptions::default() },
        ..Study::default()
    }
}

/// The same directory with a new inode for each name.
fn of_files(links: &Study) -> Study {
    let open = OpenOptions { cache_bytes: 2 * cache_of_all(links.names), ..links.open.clone() };
    Study { operation: Operation::Mknod, open, ..links.clone() }
}

/// Links and files in a directory of the kernel, and in one of ours.
fn pairs(scale: Scale, dir: &Path, watch: &dyn Watch) -> Result<Vec<Pair>, LabFault> {
    // Each file needs an inode; links need few.
    let inodes = rustix::fs::statvfs(dir).map_or(u64::MAX, |space| space.f_favail);
    let files = scale.kernel.min(inodes.saturating_sub(64)).max(1);
    let studies = [("link", fill_of(scale.kernel)), ("mknod", of_files(&fill_of(files)))];
    let mut pairs = Vec::new();
    for (operation, study) in studies {
        let names = study.names;
        watch.part(&format!("kernel, {operation}"), Some(2 * names));
        let ours = first(&study, watch)?;
        let study = Study { hashes: Vec::new(), kernel_dir: Some(dir.to_owned()), ..study };
        pairs.push(Pair { operation, names, ours, kernel: first(&study, watch)? });
    }
    Ok(pairs)
}

/// The variants, in the order of the table; the others are compared with the first.
fn variants(scale: Scale, watch: &dyn Watch) -> Result<Vec<Variant>, LabFault> {
    let base = fill_of(scale.variants);
    let made = |list: &str| FormatOptions { features: features(list).features, ..base.make.clone() };
    let studies = [
        ("half_md4", base.clone()),
        ("tea", Study { hashes: vec![HashVersion::Tea], ..base.clone() }),
        ("legacy", Study { hashes: vec![HashVersion::Legacy], ..base.clone() }),
        (
            "bigalloc 64K",
            Study {
                make: FormatOptions { cluster_size: Some(65536), ..made("^large_dir,bigalloc") },
                ..base.clone()
            },
        ),
        ("block-mapped", Study { make: made("^large_dir,^extents,^64bit"), ..base.clone() }),
        ("names announced", Study { ahead: 16, ..base.clone() }),
        ("mknod", of_files(&base)),
    ];
    let mut variants = Vec::new();
    for (name, study) in studies {
        watch.part(name, Some(study.names));
        variants.push(Variant { name, fill: first(&study, watch)? });
    }
    Ok(variants)
}

#[cfg(test)]
mod tests {
    use super::tables::{HDD_LARGE, NVME_LARGE, NVME_NORMAL};
    use super::*;
    use crate::report::Verdict;

    /// The report of very small directories: every figure of the posting has its row.
    #[test]
    fn every_row_of_the_posting_is_in_the_report() {
        let scratch = tempfile::tempdir().unwrap();
        for regrow_large in [true, false] {
            let scale = Scale {
                normal: 20_000,
                large: 60_000,
                variants: 20_000,
                kernel: 2000,
                window: Duration::from_millis(15),
                window_on_hdd: Duration::from_millis(15),
                last_windows: 1,
                regrow_large,
            };
            let mut report = measure(scale, Some(scratch.path()), &crate::Quiet).unwrap().report(Size::Quick);
            judge(&mut report);
            let table = |id: &str| report.tables.iter().find(|table| table.id == id).unwrap();
            let rates = table("rates");
            let mut posted: Vec<f64> = rates.rows.iter().filter_map(|row| Some(row.posting?.avg)).collect();
            posted.sort_by(f64::total_cmp);
            assert_eq!(posted, [HDD_LARGE, HDD_LARGE, NVME_LARGE, NVME_LARGE, 60_500.0, NVME_NORMAL]);
            let changes: Vec<f64> =
                rates.rows.iter().filter_map(|row| row.posting_change_percent).map(f64::round).collect();
            assert_eq!(changes, [-82.0, -82.0, -43.0, -43.0]);
            // In memory, the larger directory has no second curve unless it grows a second time.
            assert_eq!(rates.rows.len(), if regrow_large { 18 } else { 16 });
            assert_eq!(rates.rows.iter().filter(|row| row.kernel.is_some()).count(), 0);
            let cpu = |memory| rates.extra(&["large_dir", "memory", memory], "CPU");
            assert!(cpu("all").is_some_and(|us| us > 0.0), "{rates:?}");
            assert_eq!(cpu("quarter"), None);
            assert!(rates.extra(&["normal", "nvme", "all"], "CPU load at this rate").is_some());
            assert_eq!(table("structure").rows.len(), 7);
            let of_kernel: Vec<&[String]> =
                table("kernel").rows.iter().map(|row| row.labels.as_slice()).collect();
            assert_eq!(of_kernel, [["link", "2000"], ["mknod", "2000"]]);
            assert!(table("kernel").rows.iter().all(|row| row.kernel.is_some()));
            for table in &report.tables {
                assert!(!table.note.is_empty());
                for row in &table.rows {
                    let lens = (row.labels.len(), row.extras.len());
                    assert_eq!(lens, (table.labels.len(), table.extras.len()), "{}", table.id);
                    assert!(row.ours.is_some_and(|ours| ours.avg > 0.0), "{} {:?}", table.id, row.labels);
                }
            }
            for plot in &report.plots {
                assert!(plot.series.iter().all(|series| !series.points.is_empty()), "{}", plot.id);
                assert!(report.tables.iter().any(|table| table.id == plot.table));
            }
            assert_eq!(report.claims.len(), 17);
            let unmeasured = report.claims.iter().filter(|claim| claim.ours == "not measured").count();
            assert_eq!(unmeasured, 4, "{:?}", report.claims);
            let rates = report.claims.iter().find(|claim| claim.claim.contains("at these rates")).unwrap();
            assert_eq!(rates.verdict, Verdict::Open);
            let tea = report.claims.iter().find(|claim| claim.claim.contains("TEA")).unwrap();
            assert_eq!(tea.verdict, Verdict::Refuted, "{tea:?}");
            judged_again(&report);
        }
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
    }

    /// Claims and notes depend on tables and parameters only. The crate that reads JSON also judges
    /// docs/lab/full.json in a test.
    fn judged_again(report: &StudyReport) {
        let mut read = report.clone();
        read.claims.clear();
        read.tables.iter_mut().for_each(|table| table.note.clear());
        judge(&mut read);
        assert_eq!(read.claims, report.claims);
        let notes =
            |report: &StudyReport| report.tables.iter().map(|table| table.note.clone()).collect::<Vec<_>>();
        assert_eq!(notes(&read), notes(report));
        // Reports of older versions have fewer columns.
        for table in &mut read.tables {
            table.extras.clear();
            table.rows.iter_mut().for_each(|row| row.extras.clear());
        }
        judge(&mut read);
        assert_eq!(read.claims.len(), report.claims.len());
        read.tables.clear();
        judge(&mut read);
        assert!(read.claims.iter().all(|claim| claim.verdict == Verdict::Open), "{:?}", read.claims);
    }
}
