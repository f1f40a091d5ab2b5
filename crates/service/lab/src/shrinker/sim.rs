//! The loads, each on its own cache.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Barrier, PoisonError, RwLock};
use std::time::Instant;

use extant_base::{Ino, Lblk};
use extant_extent_status::{
    Allocation, Answer, Cache, END, Entry, Inode, Keep, Options, Policy, Scan, Source, Stats, Status, Times,
};

use super::{Case, SCANS_MIN, Study};

/// Blocks per turn of writeback.
const TURN: u32 = 1024;
/// Jobs that append, and files of each job.
const JOBS: usize = 100;
const FILES_PER_JOB: usize = 5;
/// Jobs that cycle over many files, and files of each job.
const ROUND_JOBS: usize = 20;
const ROUND_FILES: usize = 20_000;
/// Files of the reader, and blocks of each file: 1 GiB.
const READER_FILES: usize = 50;
const READER_BLOCKS: u32 = 1 << 18;
/// Blocks per extent of the reader's files.
const READER_EXTENT: u32 = 8;
/// The last dirty blocks of a file before the first call. They are written through the user's path, and their
/// lookups find cached entries, as those of all later calls do.
const FOUND: u32 = 64;
/// After this many calls a worker checks whether to end.
const STRETCH: u64 = 256;

/// A load in numbers. Blocks and calls are totals of all workers.
struct Shape {
    /// Limit of dirty blocks.
    dirty: u64,
    /// The cache's limit of reclaimable entries.
    limit: u64,
    /// Blocks per extent of files that are appended to.
    extent: u32,
    /// Blocks on disk and dirty blocks of each appended file, before the first call.
    grown: (u32, u32),
    /// Jobs that append.
    jobs: usize,
    /// Jobs that cycle over files, and files of each; blocks written at a time.
    round_jobs: usize,
    round_files: usize,
    burst: usize,
    /// Extents of all files of the reader.
    reader_extents: u32,
    /// Calls before the measurement.
    warm_up: u64,
    /// Measured calls.
    calls: u64,
}

impl Shape {
    /// Appended blocks go to disk one writeback turn at a time, in one piece: that is the purpose of delayed
    /// allocation. Four fifths of the written blocks in memory are dirty, as `dirty_ratio` was 80 in the
    /// study of 2014.
    fn of(case: Case, scale: f64) -> Self {
        let times = |count: u64| ((count as f64 * scale) as u64).max(1);
        match case {
            // 500 inodes with 200,000 entries each.
            Case::GiantTrees => Self {
                dirty: times(500 * 200_000),
                limit: times(500 * 200_000 / 4 / u64::from(TURN)),
                extent: TURN,
                grown: (times(50_000) as u32 / TURN * TURN, times(200_000) as u32),
                jobs: JOBS,
                round_jobs: 0,
                round_files: 0,
                burst: 1,
                reader_extents: 0,
                warm_up: 1,
                // There is one scan per 131,072 calls; a small load needs some scans, too.
                calls: times(10_000_000).max(400_000),
            },
            // 400,500 inodes, most of them with some 50 entries. The number of jobs of both kinds is scaled,
            // so that their shares of the calls and of the writeback do not depend on the scale.
            Case::ManyInodes => Self {
                dirty: times(400_000 * 50),
                limit: times(400_000 * 50 / 4),
                extent: TURN,
                grown: (0, 0),
                jobs: times(JOBS as u64) as usize,
                round_jobs: times(ROUND_JOBS as u64) as usize,
                round_files: (times((ROUND_JOBS * ROUND_FILES) as u64) / times(ROUND_JOBS as u64)) as usize,
                burst: 16,
                reader_extents: 0,
                warm_up: times(400_000 * 65),
                calls: times(400_000),
            },
            // The cache holds half of what the reader would need.
            Case::Reader => Self {
                dirty: times(1_600_000),
                limit: times(800_000),
                extent: 1,
                grown: (0, 0),
                jobs: JOBS,
                round_jobs: 0,
                round_files: 0,
                burst: 1,
                reader_extents: times(READER_FILES as u64 * u64::from(READER_BLOCKS / READER_EXTENT)) as u32,
                warm_up: times(8_000_000),
                calls: times(2_000_000),
            },
        }
    }
}

/// A written file: every `stride`th block from its start; blocks below `back` are on disk.
struct File {
    inode: Inode,
    stride: u32,
    next: u32,
    back: u32,
    extent: u32,
    dirty: bool,
}

impl File {
    fn new(inode: Inode, stride: u32, extent: u32) -> Self {
        Self { inode, stride, next: 0, back: 0, extent: if stride == 1 { extent } else { 1 }, dirty: false }
    }

    fn source(&self) -> Appended {
        Appended { back: self.back, stride: self.stride, extent: self.extent }
    }

    /// Writes `on_disk` blocks and writes them back, then writes `dirty` blocks, one by one. Most dirty
    /// blocks are inserted without a lookup: the cache only knows the hole after the file there.
    fn grow(&mut self, (on_disk, dirty): (u32, u32)) {
        while self.back < on_disk {
            let Ok(delayed) = self.inode.delay(Lblk(self.next), self.extent, &mut self.source());
            self.next += delayed.len;
            self.write_back();
        }
        for at in 0..dirty {
            if at + FOUND < dirty {
                self.inode.insert_delayed(Lblk(self.next), 1, (false, false));
            } else {
                let Ok(_) = self.inode.delay(Lblk(self.next), 1, &mut self.source());
            }
            self.next += self.stride;
        }
    }

    /// Runs one turn of writeback. Returns the number of blocks that are no longer dirty.
    fn write_back(&mut self) -> u64 {
        let to = (self.back + TURN * self.stride).min(self.next);
        // Whole extents, except at the end of the file.
        let to = if to == self.next { to } else { to - to % self.extent };
        let (mut from, mut done) = (self.back, 0);
        while from < to {
            let len = if self.stride == 1 { (self.extent - from % self.extent).min(to - from) } else { 1 };
            let entry = Entry::mapped(from, len, pblk_of(from), Status::Written);
            done += u64::from(self.inode.insert(entry, Allocation::Delayed).clusters());
            from += if self.stride == 1 { len } else { self.stride };
        }
        self.back = to;
        done
    }
}

/// The map on disk of a written file.
struct Appended {
    back: u32,
    stride: u32,
    extent: u32,
}

/// The physical address of a block: neighbours in the file are not contiguous on disk.
fn pblk_of(lblk: u32) -> u64 {
    (1 << 20) + u64::from(lblk) * 3
}

impl Source for Appended {
    type Error = Infallible;

    fn extent_at(&mut self, lblk: Lblk) -> Result<Answer, Infallible> {
        if lblk.0 >= self.back {
            return Ok(Answer::Gap { from: self.back.saturating_sub(self.stride - 1), to: END });
        }
        if self.stride > 1 && !lblk.0.is_multiple_of(self.stride) {
            let from = lblk.0 - lblk.0 % self.stride + 1;
            return Ok(Answer::Gap { from, to: from + self.stride - 1 });
        }
        let from = lblk.0 - lblk.0 % self.extent;
        let len = self.extent.min(self.back - from);
        Ok(Answer::Extent(Entry::mapped(from, len, pblk_of(from), Status::Written)))
    }
}

/// The map of a read-only file: extents without gaps.
struct Full;

impl Source for Full {
    type Error = Infallible;

    fn extent_at(&mut self, lblk: Lblk) -> Result<Answer, Infallible> {
        let from = lblk.0 - lblk.0 % READER_EXTENT;
        Ok(Answer::Extent(Entry::mapped(from, READER_EXTENT, pblk_of(from), Status::Written)))
    }
}

/// The reader's files, shared by all workers, and the probability of each extent.
struct Reader {
    files: Vec<Inode>,
    /// For each rank, from the most likely: the sum of 1/rank up to it.
    sums: Vec<f64>,
    hits: AtomicU64,
    reads: AtomicU64,
}

impl Reader {
    fn new(cache: &Cache, extents: u32) -> Self {
        let files = (0..READER_FILES).map(|at| cache.inode(Ino(10_000_000 + at as u32))).collect();
        let mut sum = 0.0;
        let sums = (1..=extents.max(1)).map(|rank| {
            sum += 1.0 / f64::from(rank);
            sum
        });
        Self { files, sums: sums.collect(), hits: AtomicU64::new(0), reads: AtomicU64::new(0) }
    }

    /// Chooses an extent by Zipf's law. Popular extents are spread over files and positions.
    fn choose(&self, chance: &mut Chance) -> (usize, Lblk) {
        let extents = self.sums.len();
        let at = chance.unit() * self.sums[extents - 1];
        let rank = self.sums.partition_point(|sum| *sum < at).min(extents - 1);
        // A prime that divides no number of extents in use: every rank gets a distinct place.
        let place = (rank as u64 * 1_000_003 % extents as u64) as usize;
        (
            place % READER_FILES,
            Lblk((place / READER_FILES) as u32 * READER_EXTENT + chance.below(READER_EXTENT)),
        )
    }
}

/// Pseudo-random numbers, the same in every run.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u32) -> u32 {
        (((self.next() >> 32) * u64::from(end)) >> 32) as u32
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The measurements of one run.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    pub(super) stats: Stats,
    /// Calls of the reader, and of the writers.
    pub(super) reads: Times,
    pub(super) writes: Times,
    pub(super) reader_hit_ratio: Option<f64>,
    /// Nanoseconds and work of each scan, in order.
    pub(super) scans: Vec<(u64, Scan)>,
    /// Calls to be measured. A run that was cut made fewer.
    pub(super) calls: u64,
}

impl Outcome {
    /// All calls.
    pub(super) fn user(&self) -> Times {
        let mut all = self.writes.clone();
        all.add_all(&self.reads);
        all
    }
}

/// Files that are written in turn, `burst` blocks at a time.
struct Job {
    first: usize,
    files: usize,
    burst: usize,
    /// Blocks written so far.
    done: usize,
}

impl Job {
    /// The file of the next block, and whether this block ends the job's turn.
    fn step(&mut self) -> (usize, bool) {
        let at = self.done / self.burst % self.files;
        self.done += 1;
        (self.first + at, self.done.is_multiple_of(self.burst))
    }
}

/// One worker: the files of its jobs, and the dirty ones among them.
struct Worker<'a> {
    files: Vec<File>,
    jobs: Vec<Job>,
    /// The job that calls next. `reads`: whether the last call was the reader's.
    turn: usize,
    reads: bool,
    /// Dirty files; the one that has been dirty longest comes first.
    dirty: VecDeque<usize>,
    dirty_blocks: u64,
    dirty_max: u64,
    reader: Option<&'a Reader>,
    chance: Chance,
    read_times: Times,
    write_times: Times,
}

impl Worker<'_> {
    /// One user call, including the writeback and scans that it has to do.
    fn call(&mut self) {
        self.reads = !self.reads;
        if let Some(reader) = self.reader.filter(|_| self.reads) {
            let (file, lblk) = reader.choose(&mut self.chance);
            let inode = &reader.files[file];
            let before = Instant::now();
            // `map` counts for the whole cache; an uncounted lookup shows whether this one hits.
            let known = inode.any(lblk, Lblk(lblk.0 + 1), |_| true);
            let Ok(_) = inode.map(lblk, 1, &mut Full, Keep::Yes);
            self.read_times.add(before.elapsed().as_nanos() as u64);
            reader.hits.fetch_add(u64::from(known), Relaxed);
            reader.reads.fetch_add(1, Relaxed);
            return;
        }
        let (at, is_last) = self.jobs[self.turn].step();
        if is_last {
            self.turn = (self.turn + 1) % self.jobs.len();
        }
        let before = Instant::now();
        let file = &mut self.files[at];
        let Ok(_) = file.inode.delay(Lblk(file.next), 1, &mut file.source());
        file.next += file.stride;
        self.dirty_blocks += 1;
        if !std::mem::replace(&mut file.dirty, true) {
            self.dirty.push_back(at);
        }
        if self.dirty_blocks > self.dirty_max {
            self.write_back();
        }
        self.write_times.add(before.elapsed().as_nanos() as u64);
    }

    /// Makes `calls` calls. Ends early once there are at least `scans_min` scans, and they have examined
    /// more than `work_max`.
    fn calls(&mut self, calls: u64, cache: &Cache, (scans_min, work_max): (u64, u64)) {
        let mut left = calls;
        while left > 0 {
            let stretch = left.min(STRETCH);
            (0..stretch).for_each(|_| self.call());
            left -= stretch;
            let (scans, work) = cache.scans_and_work();
            if scans >= scans_min && work > work_max {
                break;
            }
        }
    }

    /// Writes back one turn of the file that has been dirty longest.
    fn write_back(&mut self) {
        let Some(at) = self.dirty.pop_front() else { return };
        let file = &mut self.files[at];
        self.dirty_blocks -= file.write_back();
        file.dirty = file.back < file.next;
        if file.dirty {
            self.dirty.push_back(at);
        }
    }
}

/// CPU time of this thread, in nanoseconds.
fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Runs a load with a policy. Runs that share `quiet` may prepare and clean up concurrently; each is measured
/// alone.
pub(super) fn run(case: Case, policy: Policy, study: &Study, quiet: &RwLock<()>) -> Outcome {
    let threads = study.threads;
    let shape = Shape::of(case, study.scale);
    let work_max = study.work_max.unwrap_or(u64::MAX);
    let options = Options { policy, no_merge: true, ..Options::default() };
    let cache = match study.clock {
        super::Clock::Cpu => Cache::with_clock(options, cpu_ns),
        super::Clock::Wall => Cache::new(options),
    };
    let reader = (shape.reader_extents > 0).then(|| Reader::new(&cache, shape.reader_extents));
    // The workers and this thread, which waits until the other run is not measuring.
    let step = Barrier::new(threads + 1);
    let mut not_alone = Some(quiet.read().unwrap_or_else(PoisonError::into_inner));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|number| {
                let (cache, shape, step, reader) = (&cache, &shape, &step, reader.as_ref());
                scope.spawn(move || {
                    let mut worker = worker(cache, shape, reader, number, threads);
                    let share = |calls: u64| calls / threads as u64;
                    (0..share(shape.warm_up)).for_each(|_| worker.call());
                    step.wait();
                    // Memory becomes scarce: from now on the limit applies, and the excess is evicted without
                    // being measured.
                    if number == 0 {
                        cache.set_limit(Some(shape.limit));
                        shed(cache, shape.limit);
                        cache.reset_stats();
                    }
                    step.wait();
                    step.wait();
                    worker.calls(share(shape.calls / 10), cache, (SCANS_MIN / 10, work_max / 10));
                    (worker.read_times, worker.write_times) = Default::default();
                    step.wait();
                    if number == 0 {
                        cache.log_scans();
                        cache.reset_stats();
                        reader.inspect(|reader| {
                            reader.hits.store(0, Relaxed);
                            reader.reads.store(0, Relaxed);
                        });
                    }
                    step.wait();
                    worker.calls(share(shape.calls), cache, (SCANS_MIN, work_max));
                    step.wait();
                    // The entries that are dropped here must not be missing in the statistics.
                    step.wait();
                    (worker.read_times, worker.write_times)
                })
            })
            .collect();
        // The cache is warm, then within its limit.
        for _ in 0..2 {
            step.wait();
        }
        drop(not_alone.take());
        let alone = quiet.write().unwrap_or_else(PoisonError::into_inner);
        // The workers start, have settled, begin to count, and are done.
        for _ in 0..4 {
            step.wait();
        }
        let stats = cache.stats();
        drop(alone);
        not_alone = Some(quiet.read().unwrap_or_else(PoisonError::into_inner));
        step.wait();
        let (mut reads, mut writes) = (Times::default(), Times::default());
        for worker in workers {
            let (its_reads, its_writes) =
                worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            reads.add_all(&its_reads);
            writes.add_all(&its_writes);
        }
        let reader_hit_ratio = reader
            .as_ref()
            .map(|reader| reader.hits.load(Relaxed) as f64 / reader.reads.load(Relaxed).max(1) as f64);
        let calls = shape.calls / threads as u64 * threads as u64;
        Outcome { stats, reads, writes, reader_hit_ratio, scans: cache.take_scan_log(), calls }
    })
}

/// Scans until the cache is within `limit`, or scans reclaim nothing.
fn shed(cache: &Cache, limit: u64) {
    let mut idle = 0;
    while idle < 1 << 20
        && let excess = cache.count().saturating_sub(limit)
        && excess > 0
    {
        let scan = cache.scan(u32::try_from(excess).unwrap_or(u32::MAX));
        idle = if scan.reclaimed == 0 { idle + 1 } else { 0 };
    }
}

fn worker<'a>(
    cache: &Cache,
    shape: &Shape,
    reader: Option<&'a Reader>,
    number: usize,
    threads: usize,
) -> Worker<'a> {
    let mut worker = Worker {
        files: Vec::new(),
        jobs: Vec::new(),
        turn: 0,
        reads: false,
        dirty: VecDeque::new(),
        dirty_blocks: 0,
        dirty_max: shape.dirty / threads as u64,
        reader,
        chance: Chance(number as u64),
        read_times: Times::default(),
        write_times: Times::default(),
    };
    let add = |worker: &mut Worker<'_>, files_of_job: usize, burst: usize, stride: u32| {
        worker.jobs.push(Job { first: worker.files.len(), files: files_of_job.max(1), burst, done: 0 });
        for _ in 0..files_of_job.max(1) {
            let ino = Ino((worker.files.len() * threads + number) as u32 + 12);
            worker.files.push(File::new(cache.inode(ino), stride, shape.extent));
        }
    };
    // Each worker has a job of each kind.
    for _ in (number..shape.jobs.max(threads)).step_by(threads) {
        add(&mut worker, FILES_PER_JOB, 1, 1);
    }
    if shape.grown.1 > 0 {
        for at in 0..worker.files.len() {
            let file = &mut worker.files[at];
            file.grow(shape.grown);
            file.dirty = true;
            worker.dirty.push_back(at);
            worker.dirty_blocks += u64::from(shape.grown.1);
        }
    }
    if shape.round_files > 0 {
        for _ in (number..shape.round_jobs.max(threads)).step_by(threads) {
            add(&mut worker, shape.round_files, shape.burst, 2);
        }
    }
    worker
}
