//! The loads, on a cache of their own.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use base::{Ino, Lblk};
use extent_status::{
    Allocation, Answer, Cache, END, Entry, Inode, Keep, Options, Policy, Source, Stats, Status, Times,
};

use super::Case;

/// Blocks of one turn of writeback.
const TURN: u32 = 1024;
/// Jobs that append, and files of each.
const JOBS: usize = 100;
const FILES_PER_JOB: usize = 5;
/// Jobs that go round many files.
const ROUND_JOBS: usize = 20;
/// Files of the reader.
const READER_FILES: usize = 50;
/// Blocks of an extent of the reader's files.
const READER_EXTENT: u32 = 8;

/// A load in numbers. Blocks and calls are those of all workers together.
struct Shape {
    /// Jobs that append.
    jobs: usize,
    /// Blocks that may be dirty.
    dirty: u64,
    /// Entries that may be forgotten, as the cache's limit.
    limit: u64,
    /// Blocks of an extent of files that are appended to.
    extent: u32,
    /// Files that are gone round, of all jobs; blocks that are written at a time.
    round_files: usize,
    burst: usize,
    /// Extents of the reader, of all files.
    reader_extents: u32,
    /// Calls before the clock runs.
    warm_up: u64,
    /// Calls that are measured.
    calls: u64,
}

impl Shape {
    fn of(case: Case, scale: f64) -> Self {
        let times = |count: u64| ((count as f64 * scale) as u64).max(1);
        match case {
            // 50 inodes with 60,000 entries each; of what is in memory four fifths are dirty.
            Case::GiantTrees => Self {
                jobs: ((10.0 * scale) as usize).clamp(10, JOBS),
                dirty: times(3_000_000),
                limit: times(3_000_000 / 4 / 64),
                extent: 64,
                round_files: 0,
                burst: 1,
                reader_extents: 0,
                warm_up: times(4_000_000),
                calls: times(2_000_000),
            },
            Case::ManyInodes => Self {
                jobs: 10,
                dirty: times(2_160_000),
                limit: times(240_000),
                extent: 64,
                round_files: times(60_000) as usize,
                burst: 16,
                reader_extents: 0,
                warm_up: times(2_600_000),
                calls: times(400_000),
            },
            Case::Reader => Self {
                jobs: JOBS,
                dirty: times(200_000),
                limit: times(100_000),
                extent: 1,
                round_files: 0,
                burst: 1,
                reader_extents: times(200_000) as u32,
                warm_up: times(1_000_000),
                calls: times(1_000_000),
            },
        }
    }
}

/// A file that is written: from its begin on, each `stride`th block; what is below `back` is on disk.
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
}

/// The map on disk of a file that is written.
struct Appended {
    back: u32,
    stride: u32,
    extent: u32,
}

/// Where an extent is: neighbours in the file are none on disk.
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

/// The map of a file that is read: extents without gaps.
struct Full;

impl Source for Full {
    type Error = Infallible;

    fn extent_at(&mut self, lblk: Lblk) -> Result<Answer, Infallible> {
        let from = lblk.0 - lblk.0 % READER_EXTENT;
        Ok(Answer::Extent(Entry::mapped(from, READER_EXTENT, pblk_of(from), Status::Written)))
    }
}

/// The reader's files, shared by all workers, and how likely each extent is.
struct Reader {
    files: Vec<Inode>,
    /// Of the ranks, most likely first: the sum of 1/rank up to each.
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

    /// An extent, by Zipf's law; popular ones are spread over files and places.
    fn choose(&self, chance: &mut Chance) -> (usize, Lblk) {
        let extents = self.sums.len();
        let at = chance.unit() * self.sums[extents - 1];
        let rank = self.sums.partition_point(|sum| *sum < at).min(extents - 1);
        // A prime that divides no number of extents in use: every rank has a place of its own.
        let place = (rank as u64 * 1_000_003 % extents as u64) as usize;
        (
            place % READER_FILES,
            Lblk((place / READER_FILES) as u32 * READER_EXTENT + chance.below(READER_EXTENT)),
        )
    }
}

/// Numbers that look like chance, the same in every run.
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

/// What one run measured.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    pub(super) stats: Stats,
    pub(super) user: Times,
    pub(super) reader_hit_ratio: Option<f64>,
}

/// Files that are written in turn, some blocks at a time.
struct Job {
    first: usize,
    files: usize,
    burst: usize,
    /// Blocks written so far.
    done: usize,
}

impl Job {
    /// The file that the next block goes to.
    fn step(&mut self) -> usize {
        let at = self.done / self.burst % self.files;
        self.done += 1;
        self.first + at
    }
}

/// One worker: its jobs' files, and what of them is dirty.
struct Worker<'a> {
    files: Vec<File>,
    jobs: Vec<Job>,
    turn: usize,
    /// Dirty files, longest first.
    dirty: VecDeque<usize>,
    dirty_blocks: u64,
    dirty_max: u64,
    reader: Option<&'a Reader>,
    chance: Chance,
    user: Times,
}

impl Worker<'_> {
    /// A user's call, with what it has to do for others.
    fn call(&mut self) {
        if let Some(reader) = self.reader
            && self.turn.is_multiple_of(2)
        {
            let (file, lblk) = reader.choose(&mut self.chance);
            let inode = &reader.files[file];
            let before = Instant::now();
            // `map` counts for the whole cache; a look that is not counted tells who hit.
            let known = inode.any(lblk, Lblk(lblk.0 + 1), |_| true);
            let Ok(_) = inode.map(lblk, 1, &mut Full, Keep::Yes);
            self.user.add(before.elapsed().as_nanos() as u64);
            reader.hits.fetch_add(u64::from(known), Relaxed);
            reader.reads.fetch_add(1, Relaxed);
            self.turn += 1;
            return;
        }
        let at = self.turn / if self.reader.is_some() { 2 } else { 1 } % self.jobs.len();
        self.turn += 1;
        let at = self.jobs[at].step();
        let before = Instant::now();
        let file = &mut self.files[at];
        let mut source = Appended { back: file.back, stride: file.stride, extent: file.extent };
        let Ok(_) = file.inode.delay(Lblk(file.next), 1, &mut source);
        file.next += file.stride;
        self.dirty_blocks += 1;
        if !std::mem::replace(&mut file.dirty, true) {
            self.dirty.push_back(at);
        }
        if self.dirty_blocks > self.dirty_max {
            self.write_back();
        }
        self.user.add(before.elapsed().as_nanos() as u64);
    }

    /// Writes back what is dirty longest: one turn of one file.
    fn write_back(&mut self) {
        let Some(at) = self.dirty.pop_front() else { return };
        let file = &mut self.files[at];
        let to = (file.back + TURN * file.stride).min(file.next);
        // Whole extents, unless it is the end.
        let to = if to == file.next { to } else { to - to % file.extent };
        let mut from = file.back;
        while from < to {
            let len = if file.stride == 1 { (file.extent - from % file.extent).min(to - from) } else { 1 };
            let entry = Entry::mapped(from, len, pblk_of(from), Status::Written);
            let settled = file.inode.insert(entry, Allocation::Delayed);
            self.dirty_blocks -= u64::from(settled.clusters());
            from += if file.stride == 1 { len } else { file.stride };
        }
        file.back = to;
        file.dirty = to < file.next;
        if file.dirty {
            self.dirty.push_back(at);
        }
    }
}

/// Runs a load with a policy.
pub(super) fn run(case: Case, policy: Policy, threads: usize, scale: f64) -> Outcome {
    let shape = Shape::of(case, scale);
    let cache = Cache::new(Options { policy, no_merge: true, ..Options::default() });
    let reader = (shape.reader_extents > 0).then(|| Reader::new(&cache, shape.reader_extents));
    let begin = Barrier::new(threads);
    let mut user = Times::default();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|number| {
                let (cache, shape, begin, reader) = (&cache, &shape, &begin, reader.as_ref());
                scope.spawn(move || {
                    let mut worker = worker(cache, shape, reader, number, threads);
                    let share = |calls: u64| calls / threads as u64;
                    (0..share(shape.warm_up)).for_each(|_| worker.call());
                    // Memory runs short: from now on as many may stay, and what is too much goes unmeasured.
                    if begin.wait().is_leader() {
                        cache.set_limit(Some(shape.limit));
                    }
                    (0..share(shape.calls / 10)).for_each(|_| worker.call());
                    worker.user = Times::default();
                    if begin.wait().is_leader() {
                        cache.reset_stats();
                        reader.inspect(|reader| {
                            reader.hits.store(0, Relaxed);
                            reader.reads.store(0, Relaxed);
                        });
                    }
                    begin.wait();
                    (0..share(shape.calls)).for_each(|_| worker.call());
                    // What is dropped now is not to be missed in the counts of who looks last.
                    (worker.user, worker.files)
                })
            })
            .collect();
        let mut files = Vec::new();
        for worker in workers {
            let (times, of_worker) = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            user.add_all(&times);
            files.push(of_worker);
        }
        let reader_hit_ratio = reader
            .as_ref()
            .map(|reader| reader.hits.load(Relaxed) as f64 / reader.reads.load(Relaxed).max(1) as f64);
        Outcome { stats: cache.stats(), user, reader_hit_ratio }
    })
}

fn worker<'a>(
    cache: &Cache,
    shape: &Shape,
    reader: Option<&'a Reader>,
    number: usize,
    threads: usize,
) -> Worker<'a> {
    let mut files = Vec::new();
    let mut jobs = Vec::new();
    let mut add = |files_of_job: usize, burst: usize, stride: u32, extent: u32| {
        jobs.push(Job { first: files.len(), files: files_of_job.max(1), burst, done: 0 });
        for _ in 0..files_of_job.max(1) {
            let ino = Ino((files.len() * threads + number) as u32 + 12);
            files.push(File::new(cache.inode(ino), stride, extent));
        }
    };
    for _ in (number..shape.jobs).step_by(threads) {
        add(FILES_PER_JOB, 1, 1, shape.extent);
    }
    if shape.round_files > 0 {
        for _ in (number..ROUND_JOBS).step_by(threads) {
            add(shape.round_files / ROUND_JOBS, shape.burst, 2, shape.extent);
        }
    }
    Worker {
        files,
        jobs,
        turn: 0,
        dirty: VecDeque::new(),
        dirty_blocks: 0,
        dirty_max: shape.dirty / threads as u64,
        reader,
        chance: Chance(number as u64),
        user: Times::default(),
    }
}
