//! Nanoseconds of a lookup and a change of an extent tree: `cargo bench -p extant-mapping`.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Instant;

use extant_base::{BlockSize, Ino, Lblk, Pblk};
use extant_buffer::{Buffers, Direct};
use extant_device::MemDevice;
use extant_mapping::{EditFault, Editor, FileMap, MapState, Mapped, TreeSpace};
use extant_memory::Budget;

const COUNT: u32 = 1 << 15;
const BLOCKS: u64 = 1 << 18;
const DATA: u64 = 1 << 16;

/// The i-th logical block to change.
type Order = fn(u32) -> u32;

/// Blocks for trees, from 1000 on.
struct Space {
    buffers: Arc<Buffers>,
    next: Cell<u64>,
    free: RefCell<Vec<Pblk>>,
}

impl TreeSpace for Space {
    fn allocate(&self, _goal: Pblk) -> Result<Pblk, EditFault> {
        Ok(self.free.borrow_mut().pop().unwrap_or_else(|| Pblk(self.next.replace(self.next.get() + 1))))
    }

    fn free(&self, block: Pblk) {
        self.buffers.forget(block);
        self.free.borrow_mut().push(block);
    }
}

fn main() {
    let device = Arc::new(MemDevice::new(BLOCKS * 4096));
    let buffers = Buffers::new(device, BlockSize::KIB4, BLOCKS, &Budget::new(1 << 30));
    let space = Space { buffers: Arc::clone(&buffers), next: Cell::new(1000), free: RefCell::default() };
    let direct = Direct(&buffers);
    let editor = Editor { buffers: &buffers, edit: &direct, space: &space };
    let ns = |start: Instant, count: u32| start.elapsed().as_nanos() / u128::from(count);
    let orders: [(&str, Order); 4] = [
        ("append, merged", |i| i),
        ("append, with holes", |i| 2 * i),
        ("backwards", |i| 2 * (COUNT - 1 - i)),
        ("scattered", |i| 2 * (i.wrapping_mul(7919) % COUNT)),
    ];
    for (what, order) in orders {
        let mut i_block = [0; 60];
        extant_ondisk::extent::init_node(&mut i_block, 0, &[]);
        let mut map = FileMap { ino: Ino(12), i_block, extents: true, seed: Some(7) };
        let start = Instant::now();
        for i in 0..COUNT {
            let lblk = order(i);
            let state = MapState::Written(Pblk(DATA + u64::from(lblk)));
            map.insert(&editor, Mapped { lblk: Lblk(lblk), len: 1, state }).expect("there is space");
        }
        let inserted = ns(start, COUNT);
        let start = Instant::now();
        for i in 0..COUNT {
            let found =
                map.find(&buffers, Lblk(order(i.wrapping_mul(7919) % COUNT)), 1).expect("it is sound");
            assert!(matches!(found.state, MapState::Written(_)));
        }
        let found = ns(start, COUNT);
        let start = Instant::now();
        map.remove(&editor, 0..1 << 32, &mut |_, _, _| ()).expect("it is sound");
        println!("{what}: {inserted} ns an insert, {found} ns a find, {} ns a removal", ns(start, COUNT));
    }
}
