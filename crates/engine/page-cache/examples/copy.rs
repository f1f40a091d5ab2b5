//! Copy speed of the cache, compared to a plain copy of the same bytes and to zeroing them.
//!
//! `cargo run --release -p extant-page-cache --example copy [MIB [ROUNDS]]`
//!
//! Each round measures everything once, so that other load on the machine affects all figures alike. The
//! figures are medians of the rounds, in MiB/s, and their ratios to the plain copy with the same block size.
//! *fresh* memory is touched for the first time, *recycled* memory was used before. `write` creates a file in
//! recycled memory, `write fresh` in fresh memory, `rewrite` overwrites it; `hole` reads an empty file.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::hint::black_box;
use std::io::IoSliceMut;
use std::time::Instant;

use extant_memory::Budget;
use extant_page_cache::{Backing, Config, Extent, Order, PageCache};

struct Hole;

impl Backing for Hole {
    type Error = Infallible;

    fn extent_at(&self, _: u64, len_bytes: u64) -> Result<Extent, Infallible> {
        Ok(Extent::Hole { len_bytes })
    }

    fn read_at(&self, _: u64, _: &mut [IoSliceMut<'_>]) -> Result<(), Infallible> {
        unreachable!("a hole is not read")
    }
}

const SIZES: [(&str, usize); 3] = [("4K", 4 << 10), ("64K", 64 << 10), ("1M", 1 << 20)];

type Figures = BTreeMap<(usize, &'static str), Vec<f64>>;

fn measure(figures: &mut Figures, size: usize, name: &'static str, bytes: usize, work: impl FnOnce()) {
    let start = Instant::now();
    work();
    let mib_per_s = bytes as f64 / f64::from(1 << 20) / start.elapsed().as_secs_f64();
    figures.entry((size, name)).or_default().push(mib_per_s);
}

fn plain(figures: &mut Figures, size: usize, total: usize) {
    let source = vec![7_u8; size];
    let mut target = vec![0_u8; total];
    let copy = |target: &mut [u8]| {
        for part in target.chunks_exact_mut(size) {
            part.copy_from_slice(black_box(&source));
        }
    };
    measure(figures, size, "memcpy fresh", total, || copy(&mut target));
    measure(figures, size, "memcpy", total, || copy(&mut target));
    black_box(&mut target);
    let mut buf = vec![0_u8; size];
    measure(figures, size, "memcpy out", total, || {
        for part in target.chunks_exact(size) {
            buf.copy_from_slice(part);
            black_box(&mut buf);
        }
    });
    measure(figures, size, "memset", total, || {
        for _ in 0..total / size {
            buf.fill(0);
            black_box(&mut buf);
        }
    });
}

/// Names of the figures: fresh write, write, rewrite, read, hole.
type Names = [&'static str; 5];

const PAGES: Names = ["pages: write fresh", "pages: write", "pages: rewrite", "pages: read", "pages: hole"];
const LARGE: Names = ["large: write fresh", "large: write", "large: rewrite", "large: read", "large: hole"];

fn cached(figures: &mut Figures, size: usize, total: usize, order_max: Order, names: Names) {
    let bytes_max = total as u64 * 2;
    let config = Config {
        dirty_background_bytes: bytes_max,
        dirty_bytes_max: bytes_max,
        ..Config::of_bytes(bytes_max)
    };
    let cache = PageCache::new(Config { order_max, ..config }, &Budget::new(total * 4));
    let source = vec![7_u8; size];
    let mut key = 0;
    for name in [names[0], names[1]] {
        key += 1;
        let file = cache.file(key, 4096).open();
        measure(figures, size, name, total, || {
            for at in 0..total / size {
                let Ok(_) = file.write((at * size) as u64, black_box(&source), 0, &Hole);
            }
        });
        if name == names[1] {
            measure(figures, size, names[2], total, || {
                for at in 0..total / size {
                    let Ok(_) = file.write((at * size) as u64, black_box(&source), 0, &Hole);
                }
            });
            let mut buf = vec![0_u8; size];
            measure(figures, size, names[3], total, || {
                for at in 0..total / size {
                    let Ok(_) = file.read((at * size) as u64, &mut buf, &Hole);
                    black_box(&mut buf);
                }
            });
        }
        file.truncate(0);
    }
    let file = cache.file(key + 1, 4096).open();
    let mut buf = vec![0_u8; size];
    measure(figures, size, names[4], total, || {
        for at in 0..total / size {
            let Ok(_) = file.read((at * size) as u64, &mut buf, &Hole);
            black_box(&mut buf);
        }
    });
}

fn main() {
    let argument = |at| std::env::args().nth(at).and_then(|text| text.parse().ok());
    let (total, rounds) = (argument(1).unwrap_or(256) << 20, argument(2).unwrap_or(7));
    let mut figures = Figures::new();
    for _ in 0..rounds {
        for (_, size) in SIZES {
            plain(&mut figures, size, total);
            cached(&mut figures, size, total, Order::MIN, PAGES);
            cached(&mut figures, size, total, Order::MAX, LARGE);
        }
    }
    let median = |size: usize, name: &'static str| {
        let mut all = figures.get(&(size, name)).cloned().unwrap_or_default();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or(0.0)
    };
    println!("{} MiB, medians of {rounds} rounds, MiB/s (ratio to the plain one)", total >> 20);
    for (label, size) in SIZES {
        let plain: Vec<f64> =
            ["memcpy fresh", "memcpy", "memcpy out", "memset"].map(|name| median(size, name)).into();
        println!(
            "{label:>4}  memcpy fresh {:.0}, recycled {:.0}, out {:.0}; memset {:.0}",
            plain[0], plain[1], plain[2], plain[3]
        );
        for ((page, large), against) in PAGES.into_iter().zip(LARGE).zip([0, 1, 1, 2, 3]) {
            let (a, b) = (median(size, page), median(size, large));
            let name = large.trim_start_matches("large: ");
            let (ra, rb) = (a / plain[against], b / plain[against]);
            println!(
                "      {name:<12} pages {a:>6.0} ({ra:.2})  large {b:>6.0} ({rb:.2})  large/pages {:.2}",
                b / a
            );
        }
    }
}
