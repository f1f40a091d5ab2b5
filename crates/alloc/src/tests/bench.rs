//! The two hot paths, in nanoseconds. Run: `cargo test --release -p extant-alloc -- --ignored --nocapture
//! bench`

use std::time::Instant;

use super::*;

fn ns_per(name: &str, count: u32, start: Instant) {
    println!("{name:<40} {:>7.1} ns", start.elapsed().as_nanos() as f64 / f64::from(count));
}

#[test]
#[ignore = "measures"]
fn bench_hot_paths() {
    let image = Image::mke2fs("4G", &["-N", "2000000"]);
    let edit = direct(&image);
    let alloc = image.open(Options::default());
    const COUNT: u32 = 500_000;
    // What one change of a block costs without us.
    let start = Instant::now();
    for at in 0..COUNT {
        edit.change(Pblk(2000), BLOCK_BITMAP, &mut |bytes| bytes[at as usize % 4096] ^= 1).unwrap();
    }
    ns_per("one change of a block, nothing else", COUNT, start);
    let start = Instant::now();
    for _ in 0..COUNT {
        alloc.allocate_inode(&edit, &inode_request(2, false)).unwrap();
    }
    ns_per("allocate_inode, files of one directory", COUNT, start);
    let start = Instant::now();
    for _ in 0..COUNT / 10 {
        alloc.allocate_inode(&edit, &inode_request(2, true)).unwrap();
    }
    ns_per("allocate_inode, directories", COUNT / 10, start);
    let start = Instant::now();
    let mut goal = 100_000;
    let mut blocks = Vec::with_capacity(COUNT as usize);
    for _ in 0..COUNT / 2 {
        let (block, _) = alloc.allocate(&edit, &request(goal, 1, 1)).unwrap();
        blocks.push(block);
        goal = block.0 + 1;
    }
    ns_per("allocate, 1 block behind the last", COUNT / 2, start);
    let start = Instant::now();
    for _ in 0..COUNT / 2 {
        alloc.allocate(&edit, &request(100_000, 1, 1)).unwrap();
    }
    ns_per("allocate, 1 block, always the same goal", COUNT / 2, start);
    let start = Instant::now();
    let mut window = Prealloc::new();
    for _ in 0..COUNT / 5 {
        alloc.allocate_in(&edit, &mut window, &request(goal, 1, 1)).unwrap();
    }
    ns_per("allocate_in, 1 block from a window", COUNT / 5, start);
    println!("{}", alloc.stats());
    let start = Instant::now();
    for block in &blocks[..COUNT as usize / 4] {
        alloc.free(&edit, *block, 1, false).unwrap();
    }
    ns_per("free, 1 block", COUNT / 4, start);
    let start = Instant::now();
    alloc.committed(extant_base::Tid(1));
    ns_per("committed", 1, start);
    let start = Instant::now();
    alloc.seal(&edit).unwrap();
    ns_per("seal of all that", 1, start);
}

#[test]
#[ignore = "measures"]
fn bench_two_threads() {
    let image = Image::mke2fs("4G", &["-N", "2000000"]);
    const COUNT: u32 = 300_000;
    for threads in [1, 2] {
        let alloc = image.open(Options::default());
        let start = Instant::now();
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (alloc, image) = (&alloc, &image);
                scope.spawn(move || {
                    let edit = direct(image);
                    for _ in 0..COUNT {
                        alloc.allocate_inode(&edit, &inode_request(2 + 5 * thread, false)).unwrap();
                    }
                });
            }
        });
        ns_per(&format!("allocate_inode, {threads} threads"), COUNT * threads, start);
        // The next one opens with the same superblock.
        alloc.seal(&direct(&image)).unwrap();
    }
}
