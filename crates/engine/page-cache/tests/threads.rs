//! Many threads on the same and on different files, with writeback, truncation and little memory, under the
//! real scheduler. Set `EXTANT_SECONDS=60` for a longer run.

mod common;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use common::{Toy, cache};
use extant_page_cache::{Config, File, Order, PageCache, Throttled};

const FILES: u64 = 3;
const WRITERS: u64 = 4;
/// Not a multiple of any block or folio size: neighbors share blocks and folios.
const STRIPE: u64 = 30_011;
const STRIPES: u64 = 160;

/// The expected byte at a position of a file: any byte that is neither this nor zero came from somewhere
/// else.
fn pattern(key: u64, pos: u64) -> u8 {
    (pos.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8 ^ (key as u8).wrapping_mul(85) | 1
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

struct World {
    cache: PageCache,
    files: Vec<(Arc<File>, Toy)>,
    stops: AtomicBool,
    now_ms: AtomicU64,
}

impl World {
    fn new(block: u32, order_max: u8) -> Self {
        let bytes_max = 2 << 20;
        let cache = cache(Config {
            dirty_background_bytes: 256 << 10,
            dirty_bytes_max: 768 << 10,
            order_max: Order::new(order_max),
            ..Config::of_bytes(bytes_max)
        });
        let files = (0..FILES).map(|key| (cache.file(key, block), Toy::new(u64::from(block)))).collect();
        Self { cache, files, stops: AtomicBool::new(false), now_ms: AtomicU64::new(0) }
    }

    fn goes_on(&self) -> bool {
        !self.stops.load(Ordering::Relaxed)
    }

    fn now_ms(&self) -> u64 {
        self.now_ms.fetch_add(1, Ordering::Relaxed)
    }

    fn throttle(&self) {
        let start = Instant::now();
        // At the end, no thread writes back.
        while matches!(self.cache.throttle(Duration::from_millis(200)), Throttled::Over { .. })
            && self.goes_on()
        {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "another write-back is running: {:?}",
                self.cache
            );
        }
    }

    /// Writes and reads its own stripes of all files; the bytes are of its own making, and change.
    fn write_stripes(&self, me: u64) {
        let mut model: HashMap<(u64, u64), Vec<u8>> = HashMap::new();
        let mut seed = me + 77;
        let handles: Vec<_> = self.files.iter().map(|(file, _)| file.open()).collect();
        while self.goes_on() {
            let key = random(&mut seed) % (FILES - 1);
            let stripe = random(&mut seed) % STRIPES / WRITERS * WRITERS + me;
            let (file, toy) = (&handles[key as usize], &self.files[key as usize].1);
            let bytes = model.entry((key, stripe)).or_insert_with(|| vec![0; STRIPE as usize]);
            let at = random(&mut seed) % STRIPE;
            let len = (random(&mut seed) % 9000).min(STRIPE - at);
            let part = &mut bytes[at as usize..(at + len) as usize];
            if random(&mut seed).is_multiple_of(3) {
                let mut buf = vec![0xaa; part.len()];
                if let Some(window) = file.read(stripe * STRIPE + at, &mut buf, toy).unwrap() {
                    file.fill(window, toy).unwrap();
                }
                assert!(buf == *part, "thread {me}: file {key} stripe {stripe} at {at}..+{len}");
            } else {
                let byte = random(&mut seed) as u8;
                part.fill(byte);
                self.throttle();
                assert_eq!(file.write(stripe * STRIPE + at, part, self.now_ms(), toy), Ok(part.len()));
            }
        }
        for ((key, stripe), bytes) in model {
            let mut buf = vec![0xaa; bytes.len()];
            handles[key as usize].read(stripe * STRIPE, &mut buf, &self.files[key as usize].1).unwrap();
            assert!(buf == bytes, "thread {me}: file {key} stripe {stripe} at the end");
        }
    }

    /// Grows and cuts the last file under a lock that stands for the inode's.
    fn cut(&self, size: &RwLock<u64>) {
        let (key, mut seed) = (FILES - 1, 5);
        let (file, toy) = &self.files[key as usize];
        let block = file.block_bytes();
        while self.goes_on() {
            self.throttle();
            let mut size = size.write().unwrap();
            let pos = random(&mut seed) % (4 << 20);
            if random(&mut seed).is_multiple_of(3) && pos < *size {
                file.zero_edge(pos..pos.next_multiple_of(block).max(pos), self.now_ms(), toy).unwrap();
                let _stopped = file.stop_fills();
                file.truncate(pos);
                toy.punch(pos, u64::MAX);
                *size = pos;
            } else {
                let start = pos.min(*size);
                let len = random(&mut seed) % 200_000;
                let bytes: Vec<u8> = (start..start + len).map(|pos| pattern(key, pos)).collect();
                file.write(start, &bytes, self.now_ms(), toy).unwrap();
                *size = (*size).max(start + len);
            }
        }
    }

    /// Reads the last file with its lock (all bytes must be there) and without (zeros are allowed, other
    /// bytes are not).
    fn look(&self, size: &RwLock<u64>, me: u64) {
        let (key, mut seed) = (FILES - 1, me + 99);
        let (file, toy) = &self.files[key as usize];
        let handle = file.open();
        let mut buf = vec![0; 100_000];
        while self.goes_on() {
            let guard = random(&mut seed).is_multiple_of(2).then(|| size.read().unwrap());
            let pos = random(&mut seed) % (4 << 20);
            let end = guard.as_ref().map_or(u64::MAX, |size| **size).min(pos + random(&mut seed) % 100_000);
            let Some(len) = end.checked_sub(pos) else { continue };
            let buf = &mut buf[..len as usize];
            let window = handle.read(pos, buf, toy).unwrap();
            for (at, byte) in buf.iter().enumerate() {
                let right = pattern(key, pos + at as u64);
                assert!(
                    *byte == right || (guard.is_none() && *byte == 0),
                    "byte {} is {byte}",
                    pos + at as u64
                );
            }
            drop(guard);
            if let Some(window) = window {
                handle.fill(window, toy).unwrap();
            }
        }
    }

    fn write_back(&self, me: u64) {
        let mut seed = me + 1;
        while self.goes_on() {
            let until_ms = if random(&mut seed).is_multiple_of(4) { self.now_ms() / 2 } else { u64::MAX };
            let Some(mut run) = self.cache.take_run(until_ms, random(&mut seed) % (1 << 20)) else {
                self.cache.wait_for_work(Duration::from_millis(5));
                continue;
            };
            let toy = &self.files[run.file().key() as usize].1;
            if random(&mut seed).is_multiple_of(8) {
                let half = run.len_bytes() / 2 / run.file().block_bytes() * run.file().block_bytes();
                run.split_off(half).put_back();
            }
            if random(&mut seed).is_multiple_of(4) {
                std::thread::sleep(Duration::from_micros(random(&mut seed) % 500));
            }
            if random(&mut seed).is_multiple_of(16) {
                drop(run);
            } else {
                toy.store(&run);
                run.done();
            }
        }
    }

    fn shrink(&self) {
        let mut seed = 3;
        while self.goes_on() {
            self.cache.shrink(random(&mut seed) % (512 << 10));
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

fn run(block: u32, order_max: u8) {
    let seconds = std::env::var("EXTANT_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1.0);
    let world = World::new(block, order_max);
    let size = RwLock::new(0);
    std::thread::scope(|scope| {
        // A thread that panics stops all.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    self.0.store(true, Ordering::Relaxed);
                }
            }
        }
        let (world, size) = (&world, &size);
        let spawn = |work: Box<dyn FnOnce() + Send>| {
            scope.spawn(move || {
                let _stop = Stop(&world.stops);
                work();
            });
        };
        for me in 0..WRITERS {
            spawn(Box::new(move || world.write_stripes(me)));
        }
        for me in 0..2 {
            spawn(Box::new(move || world.write_back(me)));
            spawn(Box::new(move || world.look(size, me)));
        }
        spawn(Box::new(move || world.cut(size)));
        spawn(Box::new(move || world.shrink()));
        let start = Instant::now();
        while world.goes_on() && start.elapsed().as_secs_f64() < seconds {
            std::thread::sleep(Duration::from_millis(5));
        }
        world.stops.store(true, Ordering::Relaxed);
    });
    while let Some(run) = world.cache.take_run(u64::MAX, 1 << 20) {
        world.files[run.file().key() as usize].1.store(&run);
        run.done();
    }
    let (key, size) = (FILES - 1, *size.read().unwrap());
    let stored = world.files[key as usize].1.get(0, size as usize);
    assert!(stored.iter().enumerate().all(|(at, byte)| *byte == pattern(key, at as u64)));
    while world.cache.shrink(u64::MAX) != 0 {}
    let stats = world.cache.stats();
    println!("blocks of {block}, order {order_max}: {stats}");
    assert_eq!((stats.dirty_bytes, stats.writing_bytes, stats.held_bytes), (0, 0, 0), "{stats}");
    assert_eq!(stats.folios, [0; Order::COUNT]);
}

#[test]
fn threads_find_what_they_wrote_in_large_folios() {
    run(4096, 9);
}

#[test]
fn threads_find_what_they_wrote_page_by_page() {
    run(4096, 0);
}

#[test]
fn threads_find_what_they_wrote_in_blocks_of_a_kilobyte() {
    run(1024, 9);
}

#[test]
fn threads_find_what_they_wrote_in_large_blocks() {
    run(65536, 5);
}
