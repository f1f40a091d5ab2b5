//! Measures how many power cuts can be made per second: of images of 4 MiB to 1 GiB, with few and many writes
//! in the cache.

use std::hint::black_box;
use std::time::Instant;

use extant_device::Device;
use extant_simdisk::{Image, SimDisk};

const CUTS: u64 = 20_000;

fn main() {
    println!("{:>10} {:>8} {:>14} {:>16}", "image MiB", "pending", "cuts/s", "cut + 64 reads/s");
    for mib in [4u64, 16, 1024] {
        let mut image = Image::new(mib << 20);
        for offset in (0..16.min(mib) << 20).step_by(4096) {
            image.write(offset, &[7; 4096]);
        }
        for pending in [1u64, 10, 100, 1000] {
            let disk = SimDisk::recording(image.clone());
            for round in 0..20 {
                for write in 0..pending {
                    // Blocks all over the first 4 MiB, some of them twice.
                    let block = (write * 389 + round * 31) % 1024 / 2 * 2;
                    disk.write_at(block * 4096, &[round as u8; 4096]).expect("inside the disk");
                }
                if round < 19 {
                    disk.flush().expect("a flush without faults");
                }
            }
            let recording = disk.recorded().expect("a recording");
            let cuts = CUTS / pending.max(10);
            let mut rates = [0.0; 2];
            for (reads, rate) in [0, 64u64].into_iter().zip(&mut rates) {
                let start = Instant::now();
                let mut buf = [0; 4096];
                for seed in 0..cuts {
                    let cut = recording.cut(recording.end(), seed);
                    for block in 0..reads {
                        cut.read_at(block * 4096, &mut buf).expect("inside the disk");
                    }
                    black_box((&cut, &buf));
                }
                *rate = cuts as f64 / start.elapsed().as_secs_f64();
            }
            println!("{mib:>10} {pending:>8} {:>14.0} {:>16.0}", rates[0], rates[1]);
        }
    }
}
