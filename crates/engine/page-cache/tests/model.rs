//! Random sequences of writes, reads, truncations, hole punches, runs that are done, failed, put back or
//! dropped, and reclaim: the file reads like an array of bytes.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::{Toy, bytes_of, cache, config};
use extant_page_cache::{Config, Handle, Order, PageCache, Take, Window, WriteError, WritebackRun};
use proptest::prelude::*;

/// Start of the range of the file that the test uses: around a chunk boundary.
const BASE: u64 = (2 << 20) - (192 << 10);
const SPAN: u64 = 512 << 10;

#[derive(Debug, Clone)]
enum Op {
    Write { at: u64, len: u64, byte: u8 },
    Append { len: u64, byte: u8 },
    Read { at: u64, len: u64 },
    Fill { at: u64, len: u64, order: u8 },
    Truncate { at: u64 },
    Punch { at: u64, len: u64 },
    Take { bytes_max: u64 },
    TakeIn { at: u64, len: u64 },
    Split { run: usize, blocks: u64 },
    Finish { run: usize, how: How },
    Shrink { bytes: u64 },
}

#[derive(Debug, Clone, Copy)]
enum How {
    Done,
    Failed,
    PutBack,
    Dropped,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let at = || prop_oneof![0..SPAN, (0..SPAN / 4096).prop_map(|page| page * 4096)];
    let len = || prop_oneof![0..300_u64, 1..20_000_u64, (0..32_u64).prop_map(|pages| pages * 4096)];
    let how = prop_oneof![
        Just(How::Done),
        Just(How::Done),
        Just(How::Failed),
        Just(How::PutBack),
        Just(How::Dropped)
    ];
    let op = prop_oneof![
        6 => (at(), len(), 1..=255u8).prop_map(|(at, len, byte)| Op::Write { at, len, byte }),
        3 => (len(), 1..=255u8).prop_map(|(len, byte)| Op::Append { len, byte }),
        4 => (at(), len()).prop_map(|(at, len)| Op::Read { at, len }),
        1 => (at(), len(), 0..=9u8).prop_map(|(at, len, order)| Op::Fill { at, len, order }),
        1 => at().prop_map(|at| Op::Truncate { at }),
        1 => (at(), len()).prop_map(|(at, len)| Op::Punch { at, len }),
        3 => (1..200_000u64).prop_map(|bytes_max| Op::Take { bytes_max }),
        1 => (at(), len()).prop_map(|(at, len)| Op::TakeIn { at, len }),
        1 => (any::<usize>(), 0..20u64).prop_map(|(run, blocks)| Op::Split { run, blocks }),
        4 => (any::<usize>(), how).prop_map(|(run, how)| Op::Finish { run, how }),
        2 => (1..400_000u64).prop_map(|bytes| Op::Shrink { bytes }),
    ];
    prop::collection::vec(op, 1..60)
}

struct World {
    cache: PageCache,
    file: Handle,
    toy: Toy,
    /// The file's bytes from BASE on, up to its end; before BASE it is a hole.
    model: Vec<u8>,
    /// Runs in flight, with their bytes when they were taken.
    runs: Vec<(WritebackRun, Vec<u8>)>,
    block: u64,
    now_ms: u64,
    failures: usize,
}

impl World {
    fn new(block: u64, order_max: u8, bytes_max: u64) -> Self {
        // The order limit is the smaller one of the file's and the cache's.
        let (of_cache, of_file) =
            if block > 4096 { (order_max, Order::MAX.exponent()) } else { (9, order_max) };
        let cache = cache(Config { order_max: Order::new(of_cache), ..config(bytes_max) });
        let file = cache.file_of(1, block as u32, Order::new(of_file)).open();
        Self {
            cache,
            file,
            toy: Toy::new(block),
            model: Vec::new(),
            runs: Vec::new(),
            block,
            now_ms: 0,
            failures: 0,
        }
    }

    fn write(&mut self, at: u64, len: u64, byte: u8) {
        let bytes: Vec<u8> = (0..len).map(|i| byte.wrapping_add((i / 512) as u8)).collect();
        assert_eq!(self.file.write(BASE + at, &bytes, self.now_ms, &self.toy), Ok(bytes.len()));
        if len != 0 {
            let end = (at + len) as usize;
            self.model.resize(self.model.len().max(end), 0);
            self.model[at as usize..end].copy_from_slice(&bytes);
        }
    }

    fn finish(&mut self, at: usize, how: How) {
        let (run, bytes) = self.runs.swap_remove(at);
        assert!(bytes_of(&run) == bytes, "what a run has does not change");
        match how {
            How::Done => {
                self.toy.store(&run);
                run.done();
            }
            How::Failed => {
                // A device may fail after it stored everything. `runs.rs` tests failed bytes that were not
                // stored.
                self.toy.store(&run);
                run.failed(WriteError::Io);
                self.failures += 1;
            }
            How::PutBack => run.put_back(),
            How::Dropped => drop(run),
        }
    }

    /// A single thread must not wait for its own runs.
    fn finish_in(&mut self, start: u64, end: u64) {
        let reaches = |run: &WritebackRun| run.start() < end && run.start() + run.len_bytes() > start;
        while let Some(at) = self.runs.iter().position(|(run, _)| reaches(run)) {
            self.finish(at, How::Done);
        }
    }

    fn take(&mut self, run: Option<WritebackRun>) {
        let Some(run) = run else { return };
        let (start, end) = (run.start(), run.start() + run.len_bytes());
        assert!(start.is_multiple_of(self.block) && end.is_multiple_of(self.block) && start < end);
        for (other, _) in &self.runs {
            assert!(
                end <= other.start() || other.start() + other.len_bytes() <= start,
                "a block is in one run"
            );
        }
        let bytes = bytes_of(&run);
        // The run has the file's current bytes, with zeros past the end.
        let expected: Vec<u8> = (start..end)
            .map(|pos| pos.checked_sub(BASE).and_then(|at| self.model.get(at as usize)).copied().unwrap_or(0))
            .collect();
        assert!(bytes == expected, "a run has the bytes of the moment, {start}..{end}");
        self.runs.push((run, bytes));
    }

    fn cut_edge(&mut self, start: u64, end: u64) {
        if start < end {
            self.file.zero_edge(start..end, self.now_ms, &self.toy).unwrap();
        }
    }

    fn apply(&mut self, op: &Op) {
        self.now_ms += 1;
        match *op {
            Op::Write { at, len, byte } => self.write(at, len, byte),
            Op::Append { len, byte } => self.write(self.model.len() as u64, len, byte),
            Op::Read { at, len } => {
                self.check(at, len);
                self.check_held(BASE + at..BASE + at + len);
            }
            Op::Fill { at, len, order } => {
                let window = Window { start: BASE + at, len_bytes: len, order: Order::new(order) };
                self.file.fill(window, &self.toy).unwrap();
            }
            Op::Truncate { at } => {
                let pos = BASE + at;
                if at < self.model.len() as u64 {
                    self.cut_edge(pos, pos.next_multiple_of(self.block));
                    self.finish_in(pos, u64::MAX);
                    let _stopped = self.file.stop_fills();
                    self.file.truncate(pos);
                    self.toy.punch(pos, u64::MAX);
                }
                self.model.resize(at as usize, 0);
            }
            Op::Punch { at, len } => {
                let end = (at + len).min(self.model.len() as u64);
                if at >= end {
                    return;
                }
                let (from, to) = (BASE + at, BASE + end);
                let (first, last) = (from.next_multiple_of(self.block), to / self.block * self.block);
                if first > last {
                    self.cut_edge(from, to);
                } else {
                    self.cut_edge(from, first);
                    self.cut_edge(last, to);
                }
                self.finish_in(from, to);
                let _stopped = self.file.stop_fills();
                self.file.discard(from..to);
                self.toy.punch(from, to);
                self.model[at as usize..end as usize].fill(0);
            }
            Op::Take { bytes_max } => {
                let run = self.cache.take_run(u64::MAX, bytes_max);
                self.take(run);
            }
            Op::TakeIn { at, len } => {
                if let Take::Run(run) = self.file.take_run(BASE + at..BASE + at + len, u64::MAX, 1 << 20) {
                    self.take(Some(run));
                }
            }
            Op::Split { run, blocks } if !self.runs.is_empty() => {
                let at = run % self.runs.len();
                let (mut run, mut bytes) = self.runs.swap_remove(at);
                let len = (blocks * self.block).min(run.len_bytes());
                let rest = run.split_off(len);
                assert_eq!((run.len_bytes(), rest.start()), (len, run.start() + len));
                let behind = bytes.split_off(len as usize);
                self.runs.extend(
                    [(run, bytes), (rest, behind)].into_iter().filter(|(run, _)| run.len_bytes() > 0),
                );
            }
            Op::Finish { run, how } if !self.runs.is_empty() => self.finish(run % self.runs.len(), how),
            Op::Split { .. } | Op::Finish { .. } => {}
            Op::Shrink { bytes } => {
                self.cache.shrink(bytes);
            }
        }
    }

    fn check(&self, at: u64, len: u64) {
        let len = len.min((self.model.len() as u64).saturating_sub(at)) as usize;
        let mut buf = vec![0xaa; len];
        self.file.read(BASE + at, &mut buf, &self.toy).unwrap();
        let expected = &self.model.get(at as usize..at as usize + len).unwrap_or_default();
        assert!(
            buf == *expected,
            "bytes {at}..+{len} differ at {:?}",
            buf.iter().zip(*expected).position(|(a, b)| a != b)
        );
    }

    /// `held_run` agrees with `is_held` on every block.
    fn check_held(&self, range: std::ops::Range<u64>) {
        let mut at = range.start;
        while at < range.end {
            let (is_held, end) = self.file.held_run(at..range.end);
            assert!(at < end && end <= range.end, "{at}..{end} of {range:?}");
            while at < end {
                let block_end = ((at / self.block + 1) * self.block).min(end);
                assert_eq!(
                    self.file.is_held(at..block_end),
                    is_held,
                    "bytes {at}..{block_end}, of {range:?}"
                );
                at = block_end;
            }
            assert!(end == range.end || self.file.is_held(end..end + 1) != is_held, "it goes on at {end}");
        }
    }

    fn end(mut self) {
        self.check(0, SPAN * 2);
        assert_eq!(self.file.take_error(), (self.failures > 0).then_some(WriteError::Io));
        assert_eq!(self.file.take_error(), None);
        while !self.runs.is_empty() {
            self.finish(0, How::Done);
        }
        while let Some(run) = self.cache.take_run(u64::MAX, 1 << 20) {
            self.toy.store(&run);
            run.done();
        }
        let stats = self.cache.stats();
        assert_eq!((stats.dirty_bytes, stats.writing_bytes), (0, 0), "{stats}");
        assert_eq!(self.cache.oldest_dirty_ms(), None);
        assert!(self.toy.get(BASE, self.model.len()) == self.model, "all of it reached the backing");
        // Evicts all clean folios; their bytes read the same again.
        while self.cache.shrink(u64::MAX) != 0 {}
        let stats = self.cache.stats();
        assert_eq!((stats.held_bytes, stats.folios.iter().sum::<u64>()), (0, 0), "{stats}");
        self.check(0, SPAN * 2);
        let file: Arc<_> = Arc::clone(&self.file);
        drop((self.file, file));
        let stats = self.cache.stats();
        assert_eq!(stats.folios.iter().sum::<u64>(), 0, "a file takes its folios with it");
        assert_eq!(stats.held_bytes, stats.recycled_bytes);
        assert!(self.toy.read_bytes.load(Ordering::Relaxed) < 1 << 30);
    }
}

proptest! {
    #[test]
    fn a_file_reads_as_an_array_of_bytes(
        block_shift in 10..=16u32,
        order_max in 0..=9u8,
        bytes_max in prop_oneof![Just(64 << 10), Just(256 << 10), Just(64 << 20)],
        ops in ops(),
    ) {
        let mut world = World::new(1 << block_shift, order_max, bytes_max);
        for op in &ops {
            world.apply(op);
        }
        world.end();
    }
}
