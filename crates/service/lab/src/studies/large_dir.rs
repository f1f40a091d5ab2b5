//! The study of large directories: the rate as a directory grows, on modelled drives, with memory for all of
//! its leaves and for a quarter of them.
//!
//! ```text
//!            memory for all leaves                 for a quarter
//! normal     fill, windows on hdd and nvme         fill again, but windows with a smaller cache
//! large_dir  fill, windows on hdd and nvme         quick: the same; full: windows after the last name only
//! variants   hashes, bigalloc, block maps, mknod: filled in memory
//! ```
//!
//! Owns: the posting's figures, and the verdicts on its claims. Does **not** own: the load (see
//! [`crate::large_dir`]), the drives (see [`crate::drive`]).
//!
//! The caches, the journal and the drives' write caches are as much smaller as the directory is. With memory
//! for a quarter of the leaves the journal takes half of the cache at most, because leaves stay in memory
//! while the journal holds their only copy on the device. The volume is opened again for these windows: a
//! cache in which every leaf was used since the last search for a victim grows beyond its limit.

mod claims;

use std::path::Path;
use std::time::{Duration, Instant};

use extant_image::options::{FeatureEdit, FormatOptions, JournalSize};
use extant_ondisk::hash::HashVersion;
use extant_volume::OpenOptions;

use super::{Estimate, Size};
use crate::createmany::Operation;
use crate::drive::Drive;
use crate::large_dir::{Internals, OfHash, Progress, Reopen, Study, Window, run};
use crate::report::{Better, Change, Form, Machine, Plot, Posted, Posting, Row, Series, StudyReport, Table};
use crate::{LabFault, Summary, Watch};

/// Names in the posting's directories.
const NORMAL: u64 = 20_680_000;
const LARGE: u64 = 206_800_000;
/// Bytes of leaves per name, as the posting estimates them: 24 bytes of entry at three quarters of a leaf.
const BYTES_PER_NAME: u64 = 32;
/// The posting's journal in MiB, and the most here: the device, which keeps it, is in memory.
const JOURNAL_MIB: f64 = 4096.0;
const JOURNAL_MIB_MAX: u32 = 768;
/// The posting's rates in names per second.
const HDD_NORMAL: (f64, f64) = (56_000.0, 65_000.0);
const NVME_NORMAL: f64 = 80_000.0;
const HDD_LARGE: f64 = 11_000.0;
const NVME_LARGE: f64 = 46_000.0;
/// Points of a curve.
const POINTS: u64 = 10;

/// The sizes of the parts.
#[derive(Debug, Clone, Copy)]
struct Scale {
    normal: u64,
    large: u64,
    /// Names of each variant.
    variants: u64,
    kernel: u64,
    window: Duration,
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
                last_windows: 5,
                regrow_large: true,
            },
            Size::Full => Self {
                normal: NORMAL,
                large: LARGE,
                variants: NORMAL / 4,
                kernel: 2_000_000,
                window: Duration::from_secs(1),
                last_windows: 5,
                regrow_large: false,
            },
        }
    }
}

/// What the names of rows mean.
pub const NAMES: &[(&str, &str)] = &[
    (
        "normal, large_dir",
        "the two directories of the posting: an index of two levels, or of three with large_dir",
    ),
    ("half_md4, tea, legacy", "hash functions of names"),
    ("create, mknod, link", "what adds a name: an open new file, a new inode, an inode that exists"),
    ("hdd, nvme", "devices with the timing of a disk and of a flash drive; memory takes no time"),
    ("all, quarter", "memory for all leaf blocks of the directory, or for a quarter of them"),
    (
        "leaves read first",
        "a leaf is read before a name is inserted into it, as ext4 does; otherwise names wait in memory, and \
         leaves are read later, many together",
    ),
];

/// What the study needs.
#[must_use]
pub fn estimate(size: Size, kernel: bool) -> Estimate {
    let (seconds, of_kernel, memory_bytes) = match size {
        Size::Quick => (110.0, 5.0, 1 << 30),
        Size::Full => (560.0, 40.0, 11 << 30),
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
}

/// A directory of another form.
struct Variant {
    name: &'static str,
    of: OfHash,
}

struct Measured {
    scale: Scale,
    grown: Vec<Grown>,
    variants: Vec<Variant>,
    /// The kernel's directory of links, and that of files.
    kernel: Option<(OfHash, OfHash)>,
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

fn first(study: &Study, watch: &dyn Watch) -> Result<OfHash, LabFault> {
    let of = run(study, watch)?.hashes.into_iter().next();
    let of = of.ok_or_else(|| LabFault::Usage("the study has no hash".to_owned()))?;
    match &of.failed {
        // An index of two levels holds some 20.5 million of these names; the hash seed decides how many.
        Some(why) if of.done < study.names / 100 * INDEX_FULL_PERCENT => {
            Err(LabFault::Device(format!("after {} names: {why}", of.done)))
        }
        _ => Ok(of),
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
            last_windows: scale.last_windows,
            ends_reading_first: true,
            reopen: (!regrows).then_some(Reopen { cache_bytes: quarter, each_time: false }),
            ..Study::default()
        };
        watch.part(&format!("{}, memory for all leaves", kind.name()), Some(names));
        let all = first(&study, &Progress(watch))?;
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
            let of = first(&Study { make, reopen, drives, ..study.clone() }, &Progress(watch))?;
            // The directory is the same, and its rate with memory for all is not of interest.
            let of = OfHash { engine: all.engine, points: Vec::new(), knee: None, ..of };
            quarters(&mut grown, kind, names, cache_bytes, of);
        } else {
            let of = OfHash { points: Vec::new(), windows: all.reopened.clone(), knee: None, ..all.clone() };
            quarters(&mut grown, kind, names, quarter, of);
        }
        grown.push(Grown { kind, share: Share::All, names, cache_bytes: study.open.cache_bytes, of: all });
    }
    let variants = variants(scale, watch)?;
    let kernel = match kernel {
        Some(dir) => {
            let of = |operation, names: u64| {
                let study = Study {
                    names,
                    per: names.div_ceil(POINTS),
                    operation,
                    hashes: Vec::new(),
                    kernel_dir: Some(dir.to_owned()),
                    ..Study::default()
                };
                first(&study, &Progress(watch))
            };
            watch.part("kernel", Some(2 * scale.kernel));
            // Each file needs an inode; links need few.
            let inodes = rustix::fs::statvfs(dir).map_or(u64::MAX, |space| space.f_favail);
            let files = scale.kernel.min(inodes.saturating_sub(64)).max(1);
            Some((of(Operation::Link, scale.kernel)?, of(Operation::Mknod, files)?))
        }
        None => None,
    };
    Ok(Measured { scale, grown, variants, kernel })
}

/// A directory with memory for a quarter of its leaves, and the windows in which leaves were read first.
fn quarters(grown: &mut Vec<Grown>, kind: Kind, names: u64, cache_bytes: usize, of: OfHash) {
    let windows = of.reading_first.clone();
    let read_first = OfHash { windows, failed: None, ..of.clone() };
    grown.push(Grown { kind, share: Share::Quarter, names, cache_bytes, of });
    grown.push(Grown { kind, share: Share::QuarterReadFirst, names, cache_bytes, of: read_first });
}

/// The variants, in the order of the table; the others are compared with the first.
fn variants(scale: Scale, watch: &dyn Watch) -> Result<Vec<Variant>, LabFault> {
    let base = Study {
        names: scale.variants,
        per: scale.variants.div_ceil(POINTS),
        make: FormatOptions {
            journal_size: JournalSize::MiB(journal_mib(scale.variants as f64 / NORMAL as f64)),
            // A small file system would get smaller blocks, whose index is full much earlier.
            block_size: extant_base::BlockSize::from_bytes(4096),
            ..features("^large_dir")
        },
        open: OpenOptions { cache_bytes: cache_of_all(scale.variants), ..OpenOptions::default() },
        ..Study::default()
    };
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
        (
            "mknod",
            Study {
                operation: Operation::Mknod,
                open: OpenOptions { cache_bytes: 2 * cache_of_all(scale.variants), ..base.open.clone() },
                ..base.clone()
            },
        ),
    ];
    let mut variants = Vec::new();
    for (name, study) in studies {
        watch.part(name, Some(study.names));
        variants.push(Variant { name, of: first(&study, &Progress(watch))? });
    }
    Ok(variants)
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.to_owned()).collect()
}

/// The posting's rate at the end of a run.
fn posted(kind: Kind, drive: Drive, share: Share) -> Option<Posted> {
    let (low, high) = HDD_NORMAL;
    let one = |avg| Posted { avg, ..Posted::default() };
    match (kind, drive, share) {
        (Kind::Normal, Drive::Hdd, Share::All) => {
            Some(Posted { runs: Some(11), min: Some(low), max: Some(high), ..one(f64::midpoint(low, high)) })
        }
        (Kind::Normal, Drive::Nvme, Share::All) => Some(Posted { runs: Some(11), ..one(NVME_NORMAL) }),
        (_, _, Share::Quarter) => None,
        // The posting does not give its memory.
        (Kind::Large, Drive::Hdd, _) => Some(one(HDD_LARGE)),
        (Kind::Large, Drive::Nvme, _) => Some(one(NVME_LARGE)),
        _ => None,
    }
}

impl Grown {
    /// Windows of a drive after the last name; if the index was full before, the last windows of all.
    fn last_windows(&self, drive: Drive) -> Vec<Window> {
        let windows = || self.of.windows.iter().filter(|window| window.drive == drive);
        let last = windows().filter(|window| window.names > self.names).copied().collect::<Vec<_>>();
        if !last.is_empty() {
            return last;
        }
        let full = self.of.failed.as_ref().and_then(|_| windows().map(|window| window.names).max());
        windows().filter(|window| Some(window.names) == full).copied().collect()
    }

    /// Rates at the end, in names per second. In memory: of the last three points.
    fn rates(&self, drive: Drive) -> Vec<f64> {
        match drive {
            Drive::Memory if self.share == Share::All => {
                let points = &self.of.points;
                points[points.len().saturating_sub(3)..].iter().map(|point| point.per_s).collect()
            }
            _ => self.last_windows(drive).iter().map(|window| window.per_s).collect(),
        }
    }

    /// Blocks read per name at the end.
    fn reads(&self, drive: Drive) -> Option<f64> {
        match drive {
            Drive::Memory if self.share == Share::All => Some(self.of.engine?.leaf_reads_per_name),
            _ => {
                let windows = self.last_windows(drive);
                let names: u64 = windows.iter().map(|window| window.done).sum();
                let reads = |window: &Window| window.leaf_reads_per_name * window.done as f64;
                (names > 0).then(|| windows.iter().map(reads).sum::<f64>() / names as f64)
            }
        }
    }

    /// Names so far and rate, along the run.
    fn curve(&self, drive: Drive) -> Vec<(f64, f64)> {
        match drive {
            Drive::Memory if self.share == Share::All => {
                self.of.points.iter().map(|point| (point.names as f64, point.per_s)).collect()
            }
            _ => {
                let windows = self.of.windows.iter().filter(|window| window.drive == drive);
                let during: Vec<_> = windows
                    .filter(|window| window.names <= self.names)
                    .map(|window| (window.names as f64, window.per_s))
                    .collect();
                let rates = self.rates(drive);
                let is_after = !rates.is_empty() && self.of.failed.is_none();
                let end = is_after.then(|| (self.names as f64, Summary::of(&rates).avg));
                during.into_iter().chain(end).collect()
            }
        }
    }

    /// Names from which on the rate on this drive stays below 0.8 of the best rate before.
    fn knee(&self, drive: Drive) -> Option<f64> {
        let points: Vec<_> = self.curve(drive);
        let points = points
            .iter()
            .map(|(names, per_s)| crate::large_dir::Point { names: *names as u64, per_s: *per_s });
        crate::large_dir::knee(&points.collect::<Vec<_>>()).map(|names| names as f64)
    }

    fn engine(&self) -> Internals {
        self.of.engine.unwrap_or_default()
    }
}

impl Variant {
    /// Names per second of each point.
    fn rates(&self) -> Summary {
        Summary::of(&self.of.points.iter().map(|point| point.per_s).collect::<Vec<_>>())
    }
}

/// Bytes that map one block of the directory: 12 per extent, or 4 in a block map.
fn map_bytes_per_block(variant: &Variant) -> f64 {
    let engine = variant.of.engine.unwrap_or_default();
    let blocks = (engine.dir_bytes / 4096).max(1) as f64;
    if variant.name == "block-mapped" { 4.0 } else { 12.0 * engine.dir_extents as f64 / blocks }
}

impl Measured {
    fn grown(&self, kind: Kind, share: Share) -> Option<&Grown> {
        self.grown.iter().find(|grown| grown.kind == kind && grown.share == share)
    }

    fn rate(&self, kind: Kind, drive: Drive, share: Share) -> Option<Summary> {
        let rates = self.grown(kind, share)?.rates(drive);
        (!rates.is_empty()).then(|| Summary::of(&rates))
    }

    fn variant(&self, name: &str) -> Option<&Variant> {
        self.variants.iter().find(|variant| variant.name == name)
    }

    fn report(&self, size: Size) -> StudyReport {
        let scale = self.scale;
        let mut parameters: Vec<(String, String)> = [
            ("size", size.name().to_owned()),
            ("names, normal", format!("{} (the posting: {NORMAL})", scale.normal)),
            ("names, large_dir", format!("{} (the posting: {LARGE})", scale.large)),
            ("names of variants", scale.variants.to_string()),
            ("names of the kernel", scale.kernel.to_string()),
            ("window", format!("{} ms", scale.window.as_millis())),
            ("hdd", Drive::Hdd.describe()),
            ("nvme", Drive::Nvme.describe()),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
        for grown in &self.grown {
            let name = format!("cache, {}, {}", grown.kind.name(), grown.share.name());
            parameters.push((name, format!("{} MiB", grown.cache_bytes >> 20)));
        }
        StudyReport {
            study: "large-dir".to_owned(),
            question: "How does the rate of creations change as one directory grows to 200 million names?"
                .to_owned(),
            posting: Posting {
                subject: "some large dir testing results".to_owned(),
                date: "20 April 2017".to_owned(),
                machine:
                    "two nodes with RHEL 7.2 and Lustre's patches: one with a RAID 10 of fast hard disks, \
                          one with NVMe"
                        .to_owned(),
            },
            command: format!("extant lab all --only large-dir --{}", size.name()),
            machine: Machine::this(),
            parameters: parameters.into_iter().collect(),
            seconds: 0.0,
            tables: vec![self.rates_table(), self.growth_table(), self.structure_table()],
            plots: vec![
                self.plot_rates(Kind::Normal),
                self.plot_rates(Kind::Large),
                self.plot_reads(),
                self.plot_variants(),
            ],
            claims: self.claims(),
        }
    }

    fn rates_table(&self) -> Table {
        let mut rows = Vec::new();
        for kind in Kind::BOTH {
            for drive in Drive::ALL {
                for share in Share::ALL {
                    let Some(grown) = self.grown(kind, share) else { continue };
                    let rates = grown.rates(drive);
                    if rates.is_empty() {
                        continue;
                    }
                    let labels = [kind.name(), drive.name(), share.name()];
                    let posting = posted(kind, drive, share);
                    // As the posting compares: the large directory with the normal one on the same drive.
                    let base = (kind, share) != (Kind::Normal, Share::All);
                    let base = base.then(|| self.rate(Kind::Normal, drive, Share::All)).flatten();
                    let against = format!("normal {} all", drive.name());
                    let of_normal = posted(Kind::Normal, drive, Share::All);
                    let percent = |these: Posted, those: Posted| (these.avg / those.avg - 1.0) * 100.0;
                    let is_kernels = (kind, drive, share) == (Kind::Normal, Drive::Memory, Share::All);
                    rows.push(Row {
                        kernel: self.kernel.as_ref().filter(|_| is_kernels).map(|(links, _)| links.runs),
                        change: base.map(|base| Change::between(&Summary::of(&rates), &base, &against)),
                        posting_change_percent: posting
                            .zip(of_normal)
                            .filter(|_| kind == Kind::Large)
                            .map(|(these, those)| percent(these, those)),
                        posting,
                        extras: vec![
                            grown.reads(drive),
                            grown.knee(drive),
                            Some(grown.engine().dir_bytes as f64 / 1e6),
                            Some(grown.cache_bytes as f64 / 1e6),
                            Some(grown.engine().levels as f64),
                            (share == Share::All).then(|| self.logged_per_name(kind)),
                        ],
                        ..Row::ours(&labels, &rates)
                    });
                }
            }
        }
        Table {
            id: "rates".to_owned(),
            title: "Creation rate at the end of the run".to_owned(),
            in_posting: true,
            quantity: "rate".to_owned(),
            unit: "names/s".to_owned(),
            better: Better::Higher,
            labels: strings(&["directory", "device", "memory for leaves"]),
            extras: strings(&[
                "leaf reads [1/name]",
                "knee [names]",
                "leaves [MB]",
                "cache [MB]",
                "levels of the index",
                "blocks logged [1/name]",
            ]),
            rows,
            note: self.note_of_rates(),
        }
    }

    /// Blocks logged per name, with memory for all leaves.
    fn logged_per_name(&self, kind: Kind) -> f64 {
        let grown = self.grown(kind, Share::All);
        grown.map_or(0.0, |grown| grown.engine().logged_blocks as f64 / grown.of.done.max(1) as f64)
    }

    fn note_of_rates(&self) -> String {
        let text = |drive: Drive, normal: f64, large: f64| {
            let rate = |kind, share| Some(self.rate(kind, drive, share)?.avg);
            let before = rate(Kind::Normal, Share::All)?;
            let (all, quarter) = (rate(Kind::Large, Share::All)?, rate(Kind::Large, Share::Quarter)?);
            let read_first = rate(Kind::Large, Share::QuarterReadFirst)?;
            Some(format!(
                "On {}, large_dir has {:.2} of the rate of normal with memory for all leaves, {:.3} for a \
                 quarter if leaves are read first, and {:.3} if not; {:.2} in the posting. ",
                drive.name(),
                all / before,
                read_first / before,
                quarter / before,
                large / normal
            ))
        };
        let waited = |normal: f64, large: f64, read_s: f64| (1.0 / large - 1.0 / normal) / read_s * 100.0;
        let (low, high) = HDD_NORMAL;
        let hdd = f64::midpoint(low, high);
        format!(
            "{}{}The posting does not give its memory, so its figures stand in two rows. With memory for \
             all leaves the drive writes: normal logs {:.2} blocks per name, large_dir {:.2}, and each is \
             also written home later. If leaves are read first, each name also waits for a read with memory \
             for a quarter. Otherwise leaves are read many together. The \
             posting's losses are those of a directory in which {:.1} % of the names wait for a read of 6 \
             ms, and {:.0} % for one of 80 us. The posting made files by mknod; these are links, so that \
             only the directory grows. The kernel's directory has {} names. The posting gives {low:.0} to \
             {high:.0} names/s for its hard disks; the table has the middle.",
            text(Drive::Hdd, hdd, HDD_LARGE).unwrap_or_default(),
            text(Drive::Nvme, NVME_NORMAL, NVME_LARGE).unwrap_or_default(),
            self.logged_per_name(Kind::Normal),
            self.logged_per_name(Kind::Large),
            waited(hdd, HDD_LARGE, 6e-3),
            waited(NVME_NORMAL, NVME_LARGE, 80e-6),
            self.scale.kernel
        )
    }

    fn growth_table(&self) -> Table {
        let mut rows = Vec::new();
        for grown in &self.grown {
            for drive in Drive::ALL {
                for (names, per_s) in grown.curve(drive) {
                    let windows = &grown.of.windows;
                    let window =
                        windows.iter().find(|window| window.drive == drive && window.names as f64 == names);
                    let labels =
                        [grown.kind.name(), drive.name(), grown.share.name(), &format!("{names:.0}")];
                    rows.push(Row {
                        extras: vec![window.map(|window| window.leaf_reads_per_name)],
                        ..Row::ours(&labels, &[per_s])
                    });
                }
            }
        }
        let knee = |share| {
            self.grown(Kind::Normal, share)
                .and_then(|grown| grown.knee(Drive::Nvme))
                .map_or("none".to_owned(), |names| format!("{names:.0} names"))
        };
        Table {
            id: "growth".to_owned(),
            title: "Rate while the directory grows".to_owned(),
            in_posting: false,
            quantity: "rate".to_owned(),
            unit: "names/s".to_owned(),
            better: Better::Higher,
            labels: strings(&["directory", "device", "memory for leaves", "names so far"]),
            extras: strings(&["leaf reads [1/name]"]),
            rows,
            note: format!(
                "The knee is the number of names from which on the rate stays below 0.8 of the best one \
                 before. In the normal directory on nvme it is at {} with memory for a quarter of the \
                 leaves, and at {} with memory for all.",
                knee(Share::Quarter),
                knee(Share::All)
            ),
        }
    }

    fn structure_table(&self) -> Table {
        let base = self.variants.first().map(Variant::rates);
        let rows = self.variants.iter().enumerate().map(|(at, variant)| {
            let of = &variant.of;
            let engine = of.engine.unwrap_or_default();
            let per_name = |count: u64| count as f64 / of.done.max(1) as f64;
            let kernel = self.kernel.as_ref().and_then(|(links, files)| match variant.name {
                "half_md4" => Some(links.runs),
                "mknod" => Some(files.runs),
                _ => None,
            });
            Row {
                kernel,
                change: base
                    .filter(|_| at > 0)
                    .map(|base| Change::between(&variant.rates(), &base, "half_md4")),
                extras: vec![
                    Some(engine.leaves_touched as f64),
                    Some(engine.leaf_looks_per_name),
                    Some(engine.leaf_reads_per_name),
                    Some(engine.splits as f64 / of.done.max(1) as f64 * 1000.0),
                    Some(engine.index_splits as f64),
                    Some(engine.levels as f64),
                    Some(engine.dir_extents as f64),
                    Some(map_bytes_per_block(variant)),
                    Some(per_name(engine.dir_bytes)),
                    Some(engine.fill),
                    Some(per_name(engine.logged_blocks)),
                ],
                ours: Some(variant.rates()),
                ..Row::ours(&[variant.name], &[])
            }
        });
        let touched = |name| {
            let engine = self.variant(name).and_then(|variant| variant.of.engine).unwrap_or_default();
            engine.leaves_touched as f64 / (engine.dir_bytes / 4096).max(1) as f64 * 100.0
        };
        Table {
            id: "structure".to_owned(),
            title: "Hashes, bigalloc, block maps and mknod, in memory".to_owned(),
            in_posting: false,
            quantity: "rate".to_owned(),
            unit: "names/s".to_owned(),
            better: Better::Higher,
            labels: strings(&["variant"]),
            extras: strings(&[
                "leaves touched [per 10,000 names]",
                "leaves looked at [1/name]",
                "leaf reads [1/name]",
                "splits [per 1,000 names]",
                "index splits",
                "levels of the index",
                "extents",
                "map [B/block]",
                "leaves [B/name]",
                "fill",
                "blocks logged [1/name]",
            ]),
            rows: rows.collect(),
            note: format!(
                "{} names each; links, but for mknod. 10,000 names touch {:.0} % of the leaves with \
                 half_md4, {:.0} % with tea, {:.0} % with legacy. `names announced`: the driver gives the \
                 engine 16 names ahead, so that it prefetches into the CPU's caches. A block map takes 4 \
                 bytes per block, an extent 12 bytes per run of blocks.",
                self.scale.variants,
                touched("half_md4"),
                touched("tea"),
                touched("legacy"),
            ),
        }
    }

    fn plot_rates(&self, kind: Kind) -> Plot {
        let mut series = Vec::new();
        for share in Share::ALL {
            let Some(grown) = self.grown(kind, share) else { continue };
            series.extend(Drive::ALL.into_iter().map(|drive| Series {
                name: format!("{}, {}", drive.name(), share.name()),
                posting: false,
                points: grown.curve(drive),
            }));
        }
        if let Some((links, _)) = self.kernel.as_ref().filter(|_| kind == Kind::Normal) {
            let points = links.points.iter().map(|point| (point.names as f64, point.per_s)).collect();
            series.push(Series { name: "kernel, memory, all".to_owned(), posting: false, points });
        }
        series.retain(|series| !series.points.is_empty());
        // The posting gives the rate at the end only: a level across the plot.
        let names = match kind {
            Kind::Normal => self.scale.normal,
            Kind::Large => self.scale.large,
        } as f64;
        let levels = match kind {
            Kind::Normal => [("hdd", f64::midpoint(HDD_NORMAL.0, HDD_NORMAL.1)), ("nvme", NVME_NORMAL)],
            Kind::Large => [("hdd", HDD_LARGE), ("nvme", NVME_LARGE)],
        };
        series.extend(levels.map(|(name, per_s)| Series {
            name: format!("posting: {name} at the end"),
            posting: true,
            points: vec![(names / POINTS as f64, per_s), (names, per_s)],
        }));
        Plot {
            id: format!("rate-{}", if kind == Kind::Normal { "normal" } else { "large" }),
            title: format!("Rate while the directory grows, {}", kind.name()),
            x: "names in the directory".to_owned(),
            y: "rate [names/s]".to_owned(),
            x_log: false,
            y_log: true,
            form: Form::Lines,
            categories: Vec::new(),
            series,
            table: "growth".to_owned(),
        }
    }

    fn plot_reads(&self) -> Plot {
        let mut series = Vec::new();
        for grown in &self.grown {
            let windows = grown.of.windows.iter().filter(|window| window.drive == Drive::Nvme);
            let points: Vec<_> =
                windows.map(|window| (window.names as f64, window.leaf_reads_per_name)).collect();
            let name = format!("{}, {}", grown.kind.name(), grown.share.name());
            series.push(Series { name, posting: false, points });
        }
        Plot {
            id: "leaf-reads".to_owned(),
            title: "Leaf reads per name".to_owned(),
            x: "names in the directory".to_owned(),
            y: "blocks read per name".to_owned(),
            x_log: true,
            y_log: false,
            form: Form::Lines,
            categories: Vec::new(),
            series,
            table: "growth".to_owned(),
        }
    }

    fn plot_variants(&self) -> Plot {
        let rates = self.variants.iter().enumerate();
        let series = Series {
            name: "extant".to_owned(),
            posting: false,
            points: rates.map(|(at, variant)| (at as f64, variant.of.per_s)).collect(),
        };
        Plot {
            id: "variants".to_owned(),
            title: "Hashes, bigalloc, block maps and mknod, in memory".to_owned(),
            x: "variant".to_owned(),
            y: "rate [names/s]".to_owned(),
            x_log: false,
            y_log: false,
            form: Form::Bars,
            categories: self.variants.iter().map(|variant| variant.name.to_owned()).collect(),
            series: vec![series],
            table: "structure".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
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
                last_windows: 1,
                regrow_large,
            };
            let report = measure(scale, Some(scratch.path()), &crate::Quiet).unwrap().report(Size::Quick);
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
            assert_eq!(rates.rows.iter().filter(|row| row.kernel.is_some()).count(), 1);
            assert_eq!(table("structure").rows.len(), 7);
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
            assert_eq!(report.claims.len(), 10);
            let tea = report.claims.iter().find(|claim| claim.claim.contains("TEA")).unwrap();
            assert_eq!(tea.verdict, Verdict::Refuted, "{tea:?}");
        }
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
    }
}
