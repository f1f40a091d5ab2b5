//! A mock backing: bytes with holes. It counts what is read and fails on demand.

#![allow(dead_code, unreachable_pub)]

use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use extant_memory::Budget;
use extant_page_cache::{Backing, Config, Extent, PageCache, WritebackRun};

pub struct Toy {
    block: u64,
    blocks: Mutex<BTreeMap<u64, Vec<u8>>>,
    pub read_bytes: AtomicU64,
    pub reads: AtomicU64,
    pub fails: AtomicBool,
}

impl Toy {
    pub fn new(block: u64) -> Self {
        Self {
            block,
            blocks: Mutex::default(),
            read_bytes: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            fails: AtomicBool::new(false),
        }
    }

    /// Stores whole blocks.
    pub fn put(&self, pos: u64, bytes: &[u8]) {
        let mut blocks = self.blocks.lock().unwrap();
        for (at, block) in bytes.chunks_exact(self.block as usize).enumerate() {
            blocks.insert(pos / self.block + at as u64, block.to_vec());
        }
    }

    pub fn store(&self, run: &WritebackRun) {
        self.put(run.start(), &bytes_of(run));
    }

    /// Turns the whole blocks of a range into a hole.
    pub fn punch(&self, start: u64, end: u64) {
        let (start, end) = (start.div_ceil(self.block), end / self.block);
        self.blocks.lock().unwrap().retain(|block, _| !(start..end).contains(block));
    }

    pub fn get(&self, pos: u64, len: usize) -> Vec<u8> {
        let blocks = self.blocks.lock().unwrap();
        let byte =
            |at: u64| blocks.get(&(at / self.block)).map_or(0, |block| block[(at % self.block) as usize]);
        (pos..pos + len as u64).map(byte).collect()
    }
}

pub fn bytes_of(run: &WritebackRun) -> Vec<u8> {
    run.slices().flatten().copied().collect()
}

#[derive(Debug, PartialEq, Eq)]
pub struct Failed;

impl Backing for Toy {
    type Error = Failed;

    fn extent_at(&self, pos: u64, len: u64) -> Result<Extent, Failed> {
        assert!(pos.is_multiple_of(self.block) && len.is_multiple_of(self.block) && len > 0);
        let blocks = self.blocks.lock().unwrap();
        let (first, count) = (pos / self.block, len / self.block);
        let is_data = blocks.contains_key(&first);
        let same = (0..count).take_while(|at| blocks.contains_key(&(first + at)) == is_data).count() as u64;
        let len_bytes = same * self.block;
        Ok(if is_data { Extent::Data { len_bytes } } else { Extent::Hole { len_bytes } })
    }

    fn read_at(&self, mut pos: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), Failed> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(Failed);
        }
        self.reads.fetch_add(1, Ordering::Relaxed);
        let blocks = self.blocks.lock().unwrap();
        for buf in bufs {
            for part in buf.chunks_exact_mut(self.block as usize) {
                part.copy_from_slice(blocks.get(&(pos / self.block)).expect("only data is read"));
                pos += self.block;
            }
            self.read_bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    }
}

pub fn cache(config: Config) -> PageCache {
    PageCache::new(config, &Budget::new(usize::MAX / 4))
}

pub fn config(bytes_max: u64) -> Config {
    Config {
        dirty_background_bytes: bytes_max / 2,
        dirty_bytes_max: bytes_max,
        ..Config::of_bytes(bytes_max)
    }
}
