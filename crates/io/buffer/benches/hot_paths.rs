//! Nanoseconds of a hit in the block cache: `cargo bench -p extant-buffer`.

use std::sync::Arc;
use std::time::Instant;

use extant_base::{BlockSize, Pblk};
use extant_buffer::{Buffers, Kind, Owner};
use extant_device::MemDevice;
use extant_memory::Budget;

const BLOCKS: u64 = 8000;

fn main() {
    let device = Arc::new(MemDevice::new(BLOCKS * 4096));
    let buffers = Buffers::new(device, BlockSize::KIB4, BLOCKS, &Budget::new(1 << 30));
    let owner = Owner { kind: Kind::Other, ino: 0 };
    let mut sum = 0;
    for round in 0..4 {
        let start = Instant::now();
        let mut block = 1;
        for _ in 0..1_000_000 {
            block = (block * 5 + 3) % BLOCKS;
            sum += u64::from(buffers.get(Pblk(block), owner, |_| Ok(())).expect("memory does not fail")[1]);
        }
        println!("round {round}: {} ns a hit ({sum})", start.elapsed().as_nanos() as f64 / 1e6);
    }
}
