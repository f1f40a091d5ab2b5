//! Counters of the cache and their display.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::Order;

const SHARDS: usize = 8;

/// A sharded counter for many threads, with each shard on a cache line of its own.
#[derive(Default)]
pub(crate) struct Count([Line; SHARDS]);

#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

impl Count {
    pub(crate) fn add(&self, n: u64) {
        if n != 0 {
            self.0[thread_number() % SHARDS].0.fetch_add(n, Ordering::Relaxed);
        }
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.iter().map(|line| line.0.load(Ordering::Relaxed)).sum()
    }
}

/// A number unique to this thread.
pub(crate) fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    MINE.with(|mine| {
        if mine.get() == usize::MAX {
            mine.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        mine.get()
    })
}

/// The counters of a cache.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) hit_bytes: Count,
    pub(crate) miss_bytes: Count,
    pub(crate) hole_bytes: Count,
    pub(crate) written_bytes: Count,
    pub(crate) readahead_bytes: Count,
    pub(crate) copies_for_writers: Count,
    pub(crate) evicted: Count,
    pub(crate) throttled: Count,
    pub(crate) throttled_ns: Count,
    pub(crate) folios: [AtomicU64; Order::COUNT],
}

/// Contents and counters of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// Folios by order: `[0]` of 4 KiB to `[9]` of 2 MiB.
    pub folios: [u64; Order::COUNT],
    /// Bytes of memory, in folios and in the recycle pool.
    pub held_bytes: u64,
    /// Bytes of memory in the recycle pool.
    pub recycled_bytes: u64,
    /// Bytes of blocks that are newer than their backing.
    pub dirty_bytes: u64,
    /// Bytes of blocks in flight to the backing.
    pub writing_bytes: u64,
    /// Bytes that reads found in the cache.
    pub hit_bytes: u64,
    /// Bytes that reads waited for.
    pub miss_bytes: u64,
    /// Bytes that reads took from holes, without a folio.
    pub hole_bytes: u64,
    /// Bytes that writes copied in.
    pub written_bytes: u64,
    /// Bytes that were read ahead.
    pub readahead_bytes: u64,
    /// Folios that were copied because a run held their bytes when they were written.
    pub copies_for_writers: u64,
    /// Folios that were evicted to free memory.
    pub evicted: u64,
    /// Times that a writer waited for writeback.
    pub throttled: u64,
    /// Total time that writers waited.
    pub throttled_time: Duration,
}

impl fmt::Display for Stats {
    /// ```text
    /// page cache: 12 MiB held, 0 recycled; folios 4K:3 64K:1 2M:5
    ///   dirty 10240 writing 0 evicted 0 copied 0
    ///   read hit 4096 miss 0 hole 0 ahead 0; written 10240
    ///   throttled 0 times, 0 ns
    /// ```
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page cache: {} bytes held, {} recycled; folios", self.held_bytes, self.recycled_bytes)?;
        for (order, count) in self.folios.iter().enumerate().filter(|(_, count)| **count != 0) {
            let kib = Order::new(order as u8).bytes() >> 10;
            if kib < 1024 {
                write!(f, " {kib}K:{count}")?;
            } else {
                write!(f, " {}M:{count}", kib >> 10)?;
            }
        }
        let Self { dirty_bytes, writing_bytes, evicted, copies_for_writers, .. } = self;
        writeln!(
            f,
            "\n  dirty {dirty_bytes} writing {writing_bytes} evicted {evicted} copied {copies_for_writers}"
        )?;
        let Self { hit_bytes, miss_bytes, hole_bytes, readahead_bytes, written_bytes, .. } = self;
        writeln!(
            f,
            "  read hit {hit_bytes} miss {miss_bytes} hole {hole_bytes} ahead {readahead_bytes}; written {written_bytes}"
        )?;
        write!(f, "  throttled {} times, {} ns", self.throttled, self.throttled_time.as_nanos())
    }
}
