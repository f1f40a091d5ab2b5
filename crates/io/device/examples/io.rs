//! Compares batches of scattered transfers: system calls and io_uring, with the page cache and with direct
//! I/O. Usage: `io FILE [MIB]`. FILE is created, filled and removed.
//!
//! ```text
//! cargo run --release -p extant-device --example io -- io.bin 256
//! ```

use std::io::{IoSlice, IoSliceMut};
use std::path::Path;
use std::time::Instant;

use extant_device::{Device, FileDevice, Io};

/// Number of transfers in a batch.
const BATCH: usize = 64;
/// Rounds per variant; the variants alternate, and the result is the median.
const ROUNDS: usize = 5;

/// Memory for a batch; its parts begin at multiples of 4 KiB.
struct Memory {
    bytes: Vec<u8>,
    begin: usize,
}

impl Memory {
    fn new(len: usize) -> Self {
        let bytes = vec![7; len + 4096];
        let begin = bytes.as_ptr().align_offset(4096);
        Self { bytes, begin }
    }

    fn parts(&mut self, len: usize) -> impl Iterator<Item = &mut [u8]> {
        self.bytes[self.begin..].chunks_exact_mut(len).take(BATCH)
    }
}

/// Pseudo-random offsets, the same for all variants.
fn places(size: u64, len: u64, round: u64) -> Vec<u64> {
    let count = size / len;
    let mut state = round + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let mut places: Vec<u64> = (0..BATCH).map(|_| next() % count * len).collect();
    places.sort_unstable();
    places.dedup();
    places
}

/// Duration of this number of batches, in seconds.
fn run(device: &FileDevice, len: usize, is_write: bool, batches: u64) -> f64 {
    let mut memory = Memory::new(len * BATCH);
    let begun = Instant::now();
    for batch in 0..batches {
        let places = places(device.size_bytes(), len as u64, batch);
        if is_write {
            let slices: Vec<[IoSlice<'_>; 1]> = memory.parts(len).map(|part| [IoSlice::new(part)]).collect();
            let parts: Vec<(u64, &[IoSlice<'_>])> =
                places.iter().zip(&slices).map(|(at, bufs)| (*at, &bufs[..])).collect();
            device.write_many_at(&parts).unwrap();
        } else {
            let mut slices: Vec<[IoSliceMut<'_>; 1]> =
                memory.parts(len).map(|part| [IoSliceMut::new(part)]).collect();
            let mut parts: Vec<(u64, &mut [IoSliceMut<'_>])> =
                places.iter().zip(&mut slices).map(|(at, bufs)| (*at, &mut bufs[..])).collect();
            device.read_many_at(&mut parts).unwrap();
        }
    }
    begun.elapsed().as_secs_f64()
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().expect("io FILE [MIB]");
    let mib: u64 = arguments.next().map_or(256, |mib| mib.parse().expect("a number of MiB"));
    let path = Path::new(&path);
    std::fs::write(path, vec![1; (mib << 20) as usize]).unwrap();
    let open = |io, direct: bool| {
        let device = FileDevice::open(path, true).unwrap().with_io(io);
        if direct { device.with_direct() } else { Ok(device) }
    };
    println!(
        "{:9} {:5} {:>7} {:>12} {:>12} {:>6}",
        "through", "what", "bytes", "calls MiB/s", "rings MiB/s", "times"
    );
    for direct in [false, true] {
        let [calls, rings] = [Io::Calls, Io::Rings].map(|io| open(io, direct));
        let (Ok(calls), Ok(rings)) = (calls, rings) else {
            println!("past the page cache: cannot be had here");
            continue;
        };
        if !rings.uses_rings() {
            println!("no rings here: io_uring is refused");
        }
        calls.flush().unwrap();
        for (is_write, len) in [(false, 4096), (false, 65536), (true, 4096), (true, 65536)] {
            let batches = if direct { 1 << 20 } else { 8 << 20 } * 32 / (len as u64 * BATCH as u64);
            let mut times = [const { Vec::new() }; 2];
            for _ in 0..ROUNDS {
                for (device, times) in [&calls, &rings].into_iter().zip(&mut times) {
                    times.push(run(device, len, is_write, batches));
                }
                calls.flush().unwrap();
            }
            let [by_calls, by_rings] = times.map(|mut times| {
                times.sort_by(f64::total_cmp);
                (batches * BATCH as u64 * len as u64) as f64 / (1 << 20) as f64 / times[ROUNDS / 2]
            });
            println!(
                "{:9} {:5} {len:>7} {by_calls:>12.0} {by_rings:>12.0} {:>6.2}",
                if direct { "O_DIRECT" } else { "the cache" },
                if is_write { "write" } else { "read" },
                by_rings / by_calls
            );
        }
    }
    std::fs::remove_file(path).unwrap();
}
