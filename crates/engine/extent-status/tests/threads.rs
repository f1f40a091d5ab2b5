//! Many threads and inodes with a small limit: nothing is lost, counted twice or stuck, with any policy.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use extant_base::{Ino, Lblk};
use extant_extent_status::{
    Allocation, Answer, Cache, END, Entry, Inode, Keep, Options, Policy, Source, Status,
};

const THREADS: u32 = 4;
const INODES: u32 = 24;
const STEPS: u32 = 12_000;

struct Disk<'a>(&'a AtomicI64);

impl Source for Disk<'_> {
    type Error = Infallible;

    fn extent_at(&mut self, lblk: Lblk) -> Result<Answer, Infallible> {
        // The lower half of a file is on disk, in runs of four; the upper half has the writes of its owner.
        if lblk.0 < 4096 {
            let from = lblk.0 & !3;
            let pblk = 10_000 + u64::from(from) * 2;
            return Ok(Answer::Extent(Entry::mapped(from, 4, pblk, Status::Written)));
        }
        Ok(Answer::Gap { from: 4096, to: END })
    }

    fn promise(&mut self, clusters: u32) -> Result<(), Infallible> {
        self.0.fetch_add(i64::from(clusters), Ordering::Relaxed);
        Ok(())
    }
}

/// A pseudorandom number.
fn chance(seed: &mut u64) -> u32 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) as u32
}

fn work(thread: u32, cache: &Cache, inodes: &[Arc<Inode>], promised: &AtomicI64) {
    let mut seed = u64::from(thread) + 1;
    let mut source = Disk(promised);
    for _ in 0..STEPS {
        // All threads read the lower half; only the owner of an inode changes the upper half, as if it held
        // the mapping lock.
        let inode = &inodes[(chance(&mut seed) % INODES) as usize];
        let lblk = Lblk(chance(&mut seed) % 4096);
        let Ok(entry) = inode.map(lblk, 8, &mut source, Keep::Yes);
        assert_eq!(entry.pblk.0, 10_000 + u64::from(lblk.0 & !3) * 2 + u64::from(lblk.0 & 3));
        let mine = &inodes[(chance(&mut seed) % INODES / THREADS * THREADS + thread) as usize];
        let at = 4096 + chance(&mut seed) % 2000;
        match chance(&mut seed) % 8 {
            0..4 => {
                let Ok(delayed) = mine.delay(Lblk(at), 1 + at % 7, &mut source);
                assert_ne!(delayed.status, Status::Hole);
            }
            4..6 => {
                let written = Entry::mapped(at, 16, 1_000_000 + u64::from(at), Status::Written);
                let ended = mine.insert(written, Allocation::Delayed);
                promised.fetch_sub(i64::from(ended.clusters()), Ordering::Relaxed);
            }
            6 => {
                let ended = mine.remove(Lblk(at), 16);
                promised.fetch_sub(i64::from(ended.clusters()), Ordering::Relaxed);
            }
            _ => {
                cache.scan(64);
            }
        }
    }
}

#[test]
fn threads_lose_nothing_with_any_policy() {
    for policy in Policy::ALL {
        for no_merge in [false, true] {
            let cache = Cache::new(Options { policy, no_merge, limit: Some(3000), ..Options::default() });
            let inodes: Vec<_> = (0..INODES).map(|ino| Arc::new(cache.inode(Ino(ino + 12)))).collect();
            let promised = AtomicI64::new(0);
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let (cache, inodes, promised) = (&cache, &inodes[..], &promised);
                    scope.spawn(move || work(thread, cache, inodes, promised));
                }
            });
            let (mut entries, mut promises) = (0, 0);
            for inode in &inodes {
                inode.check();
                entries += inode.entries().len() as u64;
                promises += i64::from(inode.promises());
            }
            let stats = cache.stats();
            assert_eq!(promised.load(Ordering::Relaxed), promises, "{policy:?}");
            assert_eq!(stats.entries, entries, "{policy:?}");
            assert_eq!(stats.hits + stats.misses > 0, stats.scan_times.count() > 0, "{policy:?}");
            // Bounded scans may lag; the other policies hold the limit.
            assert!(stats.reclaimable < 2 * 3000, "{policy:?}: {}", stats.reclaimable);
            drop(inodes);
            assert_eq!((cache.stats().entries, cache.bytes()), (0, 0), "{policy:?}");
        }
    }
}

/// Inodes come and go during scans.
#[test]
fn inodes_may_go_while_they_are_scanned() {
    for policy in Policy::ALL {
        let cache = Cache::new(Options { policy, ..Options::default() });
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let cache = &cache;
                scope.spawn(move || {
                    for round in 0..800 {
                        let inode = cache.inode(Ino(thread * 1000 + round));
                        let entries =
                            (0..40).map(|at| Entry::mapped(at * 2, 1, u64::from(at) * 9, Status::Written));
                        entries.for_each(|entry| {
                            inode.cache(entry);
                        });
                    }
                });
            }
            for _ in 0..1000 {
                cache.scan(32);
            }
        });
        let stats = cache.stats();
        assert_eq!((stats.entries, stats.bytes, stats.inodes_listed), (0, 0, 0), "{policy:?}");
    }
}
