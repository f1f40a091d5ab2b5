//! The posting's fio jobs on real files: in process with little memory, and on the kernel's file system.
//!
//! ```text
//! (a)  100 jobs append to 5 files each
//! (b)  the same, and 20 jobs write to many files each, 16 blocks at a time
//! (c)  a job reads 50 files from front to back, again and again, beside 100 jobs that append to 5 files each
//! ```
//!
//! Each job is a thread; the quick size has fewer jobs. The posting's kernel did not merge neighbouring
//! extents (its note 1). Neither side here has such a switch, so the jobs write every second block: no two
//! extents are neighbours.
//!
//! The engine's cache has 12 MiB of memory, and a sixteenth of it is for extents. The kernel reclaims extents
//! only when the machine's memory is short. As root, the study therefore drops the reclaimable objects of the
//! machine (2 to `/proc/sys/vm/drop_caches`) ten times a second while the kernel's load runs.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use extant_extent_status::Times;
use extant_image::options::FormatOptions;
use extant_volume::{OpenOptions, WriteOptions};

use super::Size;
use crate::ground::Ground;
use crate::io::{Files, Ours, Theirs};
use crate::report::{Better, Change, Posted, Row, Table};
use crate::shrinker::tables::{posted_avg_of_calls, posted_max_of_calls};
use crate::shrinker::{Case, Policy};
use crate::{LabFault, Summary, Watch};

const BLOCK: u64 = 4096;
const CACHE_BYTES: usize = 12 << 20;
/// Blocks that a job of case (b) writes before it goes on to its next file.
const BURST: usize = 16;
/// The policies that are compared: the first and the last of the posting, the kernel's, and the default.
const POLICIES: [Policy; 4] = [Policy::Baseline, Policy::EsGc, Policy::Upstream, Policy::EsChunk];
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// The size of the jobs.
#[derive(Debug, Clone, Copy)]
struct Shape {
    /// Jobs that append, files of each, and blocks that each writes.
    streams: usize,
    files: usize,
    blocks: usize,
    /// Jobs of case (b), files of each, and blocks that each writes.
    rounds: usize,
    round_files: usize,
    round_blocks: usize,
    /// Files of the reader, and blocks of each on disk.
    read_files: usize,
    read_blocks: usize,
    runs: usize,
}

impl Shape {
    fn of(size: Size) -> Self {
        // The entries of each case exceed the cache's limit of 32,768.
        let quick = Self {
            streams: 40,
            files: 5,
            blocks: 500,
            rounds: 8,
            round_files: 100,
            round_blocks: 1_600,
            read_files: 50,
            read_blocks: 200,
            runs: 2,
        };
        match size {
            Size::Quick => quick,
            // The posting's numbers of jobs.
            Size::Full => Self {
                streams: 100,
                blocks: 1_500,
                rounds: 20,
                round_files: 1_000,
                round_blocks: 16_000,
                read_blocks: 1_500,
                runs: 3,
                ..quick
            },
        }
    }

    /// All files of a case: of the appending jobs, then of the jobs of (b) or the reader's.
    fn files_of(&self, case: Case) -> usize {
        let more = match case {
            Case::GiantTrees => 0,
            Case::ManyInodes => self.rounds * self.round_files,
            Case::Reader => self.read_files,
        };
        self.streams * self.files + more
    }
}

/// Latencies of one run.
#[derive(Default)]
struct Latencies {
    reads: Times,
    writes: Times,
}

/// Writes every second block of `files` in turn, `burst` blocks of each at a time.
fn append(
    on: &dyn Files,
    files: std::ops::Range<usize>,
    blocks: usize,
    burst: usize,
) -> Result<Times, LabFault> {
    let block = [7; BLOCK as usize];
    let mut next = vec![0_u64; files.len()];
    let mut times = Times::default();
    for at in 0..blocks {
        let file = at / burst % files.len();
        let begun = Instant::now();
        on.write(files.start + file, next[file] * 2 * BLOCK, &block)?;
        times.add(begun.elapsed().as_nanos() as u64);
        next[file] += 1;
    }
    Ok(times)
}

/// Runs the jobs of a case, each in a thread. The reader's files are written before.
fn run(case: Case, shape: &Shape, on: &dyn Files) -> Result<Latencies, LabFault> {
    let first = shape.streams * shape.files;
    if case == Case::Reader {
        let all = first..first + shape.read_files;
        append(on, all.clone(), all.len() * shape.read_blocks, shape.read_blocks)?;
    }
    let left = AtomicUsize::new(shape.streams);
    std::thread::scope(|scope| {
        let mut writers = Vec::new();
        for job in 0..shape.streams {
            let left = &left;
            writers.push(scope.spawn(move || {
                let files = job * shape.files..(job + 1) * shape.files;
                let times = append(on, files, shape.blocks, 1);
                left.fetch_sub(1, Relaxed);
                times
            }));
        }
        if case == Case::ManyInodes {
            for job in 0..shape.rounds {
                let from = first + job * shape.round_files;
                let files = from..from + shape.round_files;
                writers.push(scope.spawn(move || append(on, files, shape.round_blocks, BURST)));
            }
        }
        let reader = (case == Case::Reader).then(|| scope.spawn(|| read(shape, on, &left)));
        let mut all = Latencies::default();
        for writer in writers {
            let times = writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            all.writes.add_all(&times);
        }
        if let Some(reader) = reader {
            all.reads = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok(all)
    })
}

/// Reads the reader's files from front to back until no writer is left.
fn read(shape: &Shape, on: &dyn Files, left: &AtomicUsize) -> Result<Times, LabFault> {
    let first = shape.streams * shape.files;
    let mut buf = [0; BLOCK as usize];
    let mut times = Times::default();
    loop {
        for file in first..first + shape.read_files {
            for at in 0..shape.read_blocks as u64 * 2 {
                if left.load(Relaxed) == 0 {
                    return Ok(times);
                }
                let begun = Instant::now();
                on.read(file, at * BLOCK, &mut buf)?;
                times.add(begun.elapsed().as_nanos() as u64);
            }
        }
    }
}

/// The kernel's counters of its extent-status cache, as `es_shrinker_info` shows them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Info {
    hits: f64,
    misses: f64,
    scan_avg_us: f64,
    scan_max_us: f64,
}

impl Info {
    /// Values stand before their names, two of them with a slash between.
    fn parse(text: &str) -> Self {
        let mut info = Self::default();
        let number = |word: &str| word.parse().unwrap_or(0.0);
        for line in text.lines().map(str::trim) {
            let Some((value, name)) = line.split_once(' ') else { continue };
            match name {
                "cache hits/misses" => {
                    let (hits, misses) = value.split_once('/').unwrap_or((value, "0"));
                    (info.hits, info.misses) = (number(hits), number(misses));
                }
                "us scan time" => info.scan_avg_us = number(value),
                "us max scan time" => info.scan_max_us = number(value),
                _ => {}
            }
        }
        info
    }

    /// Reads the counters of the file system of a directory; `None` if it has none.
    fn of(dir: &Path) -> Option<Self> {
        let number = fs::metadata(dir).ok()?.dev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let device = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
        let name = device.file_name()?.to_str()?;
        Some(Self::parse(&fs::read_to_string(format!("/proc/fs/ext4/{name}/es_shrinker_info")).ok()?))
    }
}

/// What was measured of one policy, or of the kernel: a value for each run.
#[derive(Default)]
struct Measured {
    read: (Vec<f64>, Vec<f64>),
    write: (Vec<f64>, Vec<f64>),
    scans: Vec<f64>,
    scan_avg_us: Vec<f64>,
    scan_max_us: Vec<f64>,
    hits: Vec<f64>,
    misses: Vec<f64>,
}

impl Measured {
    fn add(&mut self, latencies: &Latencies) {
        let us = |times: &Times| (times.avg_ns() / 1e3, times.max_ns() as f64 / 1e3);
        for (times, (avg, max)) in [(&latencies.reads, &mut self.read), (&latencies.writes, &mut self.write)]
        {
            if times.count() > 0 {
                avg.push(us(times).0);
                max.push(us(times).1);
            }
        }
    }
}

fn measure_ours(case: Case, policy: Policy, shape: &Shape, into: &mut Measured) -> Result<(), LabFault> {
    // The device holds what is written; only written blocks take memory.
    let ground = Ground::memory(32 << 30, &FormatOptions::default())?;
    let write = WriteOptions { extents: policy, ..WriteOptions::default() };
    let volume = ground.open(&OpenOptions { cache_bytes: CACHE_BYTES, write, ..OpenOptions::default() })?;
    let files = Ours::new(&volume, shape.files_of(case))?;
    let before = volume.counters().extent_stats().unwrap_or_default();
    let latencies = run(case, shape, &files)?;
    let after = volume.counters().extent_stats().unwrap_or_default();
    into.add(&latencies);
    into.scans.push(after.scan_times.count() as f64);
    into.scan_avg_us.push(after.scan_times.avg_ns() / 1e3);
    into.scan_max_us.push(after.scan_times.max_ns() as f64 / 1e3);
    into.hits.push((after.hits - before.hits) as f64);
    into.misses.push((after.misses - before.misses) as f64);
    volume.close().map_err(LabFault::Close)
}

/// Returns whether the machine's reclaimable objects could be dropped during the load.
fn measure_theirs(case: Case, dir: &Path, shape: &Shape, into: &mut Measured) -> Result<bool, LabFault> {
    let streams = shape.streams * shape.files;
    let files = Theirs::new(&dir.join("extant-lab-shrinker"), shape.files_of(case), streams)?;
    let before = Info::of(dir);
    let done = AtomicBool::new(false);
    let (latencies, drops) = std::thread::scope(|scope| {
        let dropper = scope.spawn(|| {
            let mut drops = true;
            while drops && !done.load(Relaxed) {
                drops = fs::write(DROP_CACHES, "2").is_ok();
                std::thread::sleep(Duration::from_millis(100));
            }
            drops
        });
        let latencies = run(case, shape, &files);
        done.store(true, Relaxed);
        (latencies, dropper.join().unwrap_or(false))
    });
    into.add(&latencies?);
    if let (Some(before), Some(after)) = (before, Info::of(dir)) {
        into.hits.push(after.hits - before.hits);
        into.misses.push(after.misses - before.misses);
        // The kernel keeps a weighted mean, and the longest scan since it mounted the file system.
        into.scan_avg_us.push(after.scan_avg_us);
        into.scan_max_us.push(after.scan_max_us);
    }
    Ok(drops)
}

const EXTRAS: [&str; 10] = [
    "scans",
    "scan avg [us]",
    "scan max [us]",
    "hits",
    "misses",
    "hit ratio",
    "kernel scan avg [us]",
    "kernel scan max [us]",
    "kernel hits",
    "kernel misses",
];

/// The posting's figures of the calls of a case and a policy.
type PostedOf = fn(Case, &str, &str) -> Option<Posted>;

/// Ids of the tables of mean and of longest calls.
pub(super) const IDS: [&str; 2] = ["files-avg", "files-max"];

/// The parameter of a report that says whether the machine's reclaimable objects were dropped during the
/// kernel's load: "yes" or "no". Without the kernel it is missing.
pub(super) const DROPPED: &str = "kernel caches dropped";

/// Runs the jobs, and returns a table of mean and one of longest calls; and whether the machine's reclaimable
/// objects could be dropped during the kernel's load.
pub(super) fn tables(
    size: Size,
    kernel: Option<&Path>,
    watch: &dyn Watch,
) -> Result<([Table; 2], bool), LabFault> {
    tables_of(&Shape::of(size), kernel, watch)
}

fn tables_of(
    shape: &Shape,
    kernel: Option<&Path>,
    watch: &dyn Watch,
) -> Result<([Table; 2], bool), LabFault> {
    let runs = shape.runs * (POLICIES.len() + usize::from(kernel.is_some()));
    let (mut avg, mut max) = (Vec::new(), Vec::new());
    let mut drops = true;
    for case in Case::ALL {
        watch.part(&format!("{} on files", case.name()), Some(runs as u64));
        let mut measured: [Measured; POLICIES.len()] = Default::default();
        let mut theirs = Measured::default();
        for _ in 0..shape.runs {
            for (policy, into) in POLICIES.iter().zip(&mut measured) {
                measure_ours(case, *policy, shape, into)?;
                watch.advance(1);
            }
            if let Some(dir) = kernel {
                drops &= measure_theirs(case, dir, shape, &mut theirs)?;
                watch.advance(1);
            }
        }
        for (which, of) in callers(case) {
            let summary = |values: &[f64]| (!values.is_empty()).then(|| Summary::of(values));
            let base = of(&measured[0]);
            for (policy, one) in POLICIES.iter().zip(&measured) {
                let is_kernels = *policy == Policy::Upstream;
                let mean = |values: &[f64]| summary(values).map(|runs| runs.avg);
                let its = |values: &[f64]| if is_kernels { mean(values) } else { None };
                let (hits, misses) = (mean(&one.hits), mean(&one.misses));
                let extras = vec![
                    mean(&one.scans),
                    mean(&one.scan_avg_us),
                    mean(&one.scan_max_us),
                    hits,
                    misses,
                    hits.zip(misses).map(|(hits, misses)| hits / (hits + misses).max(1.0)),
                    its(&theirs.scan_avg_us),
                    its(&theirs.scan_max_us),
                    its(&theirs.hits),
                    its(&theirs.misses),
                ];
                let row = |values: &[f64], base: &[f64], kernel: &[f64], posted: PostedOf| {
                    let row = Row::ours(&[case.letter(), which, policy.name()], values);
                    let (its, its_base) =
                        (posted(case, which, policy.name()), posted(case, which, "baseline"));
                    let change = row.ours.zip(summary(base)).filter(|_| *policy != Policy::Baseline);
                    Row {
                        change: change.map(|(this, that)| Change::between(&this, &that, "baseline")),
                        kernel: if is_kernels { summary(kernel) } else { None },
                        posting: its,
                        posting_change_percent: its
                            .zip(its_base)
                            .filter(|_| *policy != Policy::Baseline)
                            .map(|(its, base)| (its.avg / base.avg - 1.0) * 100.0),
                        extras: extras.clone(),
                        ..row
                    }
                };
                avg.push(row(&of(one).0, &base.0, &of(&theirs).0, posted_avg_of_calls));
                max.push(row(&of(one).1, &base.1, &of(&theirs).1, posted_max_of_calls));
            }
        }
    }
    let table = |id: &str, what: &str, rows: Vec<Row>| Table {
        id: id.to_owned(),
        title: format!("End to end, with I/O: the jobs on real files, {what}"),
        in_posting: false,
        quantity: what.to_owned(),
        unit: "us".to_owned(),
        better: Better::Lower,
        labels: ["case", "call", "policy"].map(str::to_owned).to_vec(),
        extras: EXTRAS.map(str::to_owned).to_vec(),
        rows,
        note: String::new(),
    };
    let [avg_id, max_id] = IDS;
    Ok(([table(avg_id, "mean time of a call", avg), table(max_id, "longest call", max)], drops))
}

/// Which policies differ from baseline, and how the kernel's figures compare. `dropped`: the parameter
/// [`DROPPED`].
pub(super) fn note(table: &Table, dropped: Option<&str>) -> String {
    let compared = table.rows.iter().filter_map(|row| Some((row, row.change.as_ref()?)));
    let compared: Vec<_> = compared.filter(|(_, change)| change.significant.is_some()).collect();
    let differ = compared.iter().filter(|(_, change)| change.significant == Some(true));
    let differ: Vec<String> =
        differ.map(|(row, change)| format!("{} by {:+.0} %", row.labels.join(" "), change.percent)).collect();
    let mut sentences = vec![
        "These jobs are (a) giant-trees, (b) many-inodes and (c) reader. The posting's figures are those of \
         tables 4 and 5: its calls wait for its disk, ours for the engine's cache of 12 MiB."
            .to_owned(),
    ];
    if !compared.is_empty() && differ.is_empty() {
        sentences.push(format!("At 95 % confidence, none of {} rows differs from baseline.", compared.len()));
    } else if !compared.is_empty() {
        let verb = if differ.len() > 1 { "differ" } else { "differs" };
        sentences.push(format!(
            "At 95 % confidence, {} of {} rows {verb} from baseline: {}.",
            differ.len(),
            compared.len(),
            differ.join(", ")
        ));
    }
    sentences.push(
        "The jobs write every second block, because neither extant nor the kernel can be kept from merging \
         neighbouring extents."
            .to_owned(),
    );
    if table.rows.iter().any(|row| row.kernel.is_some()) {
        sentences.push(format!(
            "The kernel's figures are in the rows of upstream, the policy that it has. They do not compare \
             with ours: the kernel's page cache has the memory of the machine, the engine's cache has {} \
             MiB.",
            CACHE_BYTES >> 20
        ));
        let counters = EXTRAS.iter().position(|head| *head == "kernel hits");
        let has = |row: &Row| counters.is_some_and(|at| row.extras.get(at).copied().flatten().is_some());
        if !table.rows.iter().any(has) {
            sentences.push("The kernel shows no es_shrinker_info for this directory.".to_owned());
        }
        if dropped == Some("no") {
            sentences
                .push("The kernel's extents were not reclaimed during its load: that takes root.".to_owned());
        }
    }
    sentences.join(" ")
}

type Caller = (&'static str, fn(&Measured) -> &(Vec<f64>, Vec<f64>));

/// Whose calls are reported of a case.
fn callers(case: Case) -> &'static [Caller] {
    const WRITE: Caller = ("write", |measured| &measured.write);
    const READ: Caller = ("read", |measured| &measured.read);
    if case == Case::Reader { &[READ, WRITE] } else { &[WRITE] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_counters_are_read_as_it_writes_them() {
        let text = "stats:\n  4 objects\n  3 reclaimable objects\n  70/5 cache hits/misses\n  \
                    1 inodes on list\naverage:\n  12 us scan time\n  9 shrunk objects\nmaximum:\n  \
                    13 inode (4 objects, 3 reclaimable)\n  250 us max scan time\n";
        let info = Info { hits: 70.0, misses: 5.0, scan_avg_us: 12.0, scan_max_us: 250.0 };
        assert_eq!(Info::parse(text), info);
        // The engine's own text has the same form.
        let ours = extant_extent_status::Stats { hits: 8, ..Default::default() }.es_shrinker_info();
        assert_eq!(Info::parse(&ours).hits, 8.0);
    }

    /// All jobs run on both sides; with little memory the engine scans.
    #[test]
    fn the_jobs_run_on_files() {
        let shape = Shape {
            streams: 3,
            files: 2,
            blocks: 6_000,
            rounds: 2,
            round_files: 5,
            round_blocks: 160,
            read_files: 2,
            read_blocks: 20,
            runs: 1,
        };
        let dir = tempfile::tempdir().unwrap();
        let measured = &mut Measured::default();
        for case in Case::ALL {
            measure_ours(case, Policy::EsChunk, &shape, measured).unwrap();
            let files = Theirs::new(&dir.path().join("jobs"), shape.files_of(case), 6).unwrap();
            let latencies = run(case, &shape, &files).unwrap();
            assert!(latencies.writes.count() >= 18_000);
            assert_eq!(latencies.reads.count() > 0, case == Case::Reader);
        }
        assert_eq!((measured.write.0.len(), measured.read.0.len()), (3, 1));
        assert!(measured.scans[0] > 0.0, "{:?}", measured.scans);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
