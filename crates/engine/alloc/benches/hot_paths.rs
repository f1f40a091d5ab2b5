//! Nanoseconds of allocations: `cargo bench -p extant-alloc`. Needs mke2fs.

use std::sync::Arc;
use std::time::Instant;

use extant_alloc::{Alloc, Flags, InodeRequest, Options, Prealloc, Request};
use extant_base::{Ino, Pblk, Tid};
use extant_buffer::{Buffers, Direct};
use extant_device::{Device, FileDevice};
use extant_memory::Budget;
use extant_ondisk::{Geometry, Superblock, superblock};

const COUNT: u32 = 500_000;

fn main() {
    let dir = extant_testkit::scratch();
    let file = dir.path().join("image");
    let path = file.to_str().expect("the path is plain");
    extant_testkit::run(
        "mke2fs",
        ["-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=1", "-N", "2000000", path, "4G"],
    );
    let device = FileDevice::open(&file, true).expect("it opens");
    let mut bytes = [0; superblock::SIZE];
    device.read_at(superblock::OFFSET, &mut bytes).expect("it is readable");
    let sb = Superblock::decode(&bytes).expect("mke2fs made it");
    let geometry = Geometry::new(&sb).expect("mke2fs made it");
    let budget = Budget::new(256 << 20);
    let buffers = Buffers::new(Arc::new(device), geometry.block_size, geometry.blocks, &budget);
    let alloc =
        Alloc::open(Arc::clone(&buffers), &sb, &geometry, Options::default()).expect("mke2fs made it");
    let edit = Direct(&buffers);

    let time = |name: &str, count: u32, each: &mut dyn FnMut()| {
        let start = Instant::now();
        (0..count).for_each(|_| each());
        println!("{name:<40} {:>7.1} ns", start.elapsed().as_nanos() as f64 / f64::from(count));
    };
    let block = |goal: u64| Request {
        goal: Pblk(goal),
        len: 1,
        min_len: 1,
        flags: Flags::DATA | Flags::USE_RESERVED,
        stream: None,
    };
    let inode = |is_dir| InodeRequest { parent: Ino(2), is_dir, is_top_dir: false, name_hash: 0, goal: None };
    time("allocate_inode, files of one directory", COUNT, &mut || {
        alloc.allocate_inode(&edit, &inode(false)).expect("there are inodes");
    });
    time("allocate_inode, directories", COUNT / 10, &mut || {
        alloc.allocate_inode(&edit, &inode(true)).expect("there are inodes");
    });
    let mut blocks = Vec::new();
    let mut goal = 100_000;
    time("allocate, the block after the last", COUNT / 2, &mut || {
        let (block, _) = alloc.allocate(&edit, &block(goal)).expect("there is space");
        blocks.push(block);
        goal = block.0 + 1;
    });
    let mut window = Prealloc::new();
    time("allocate_in, a block of a window", COUNT / 5, &mut || {
        alloc.allocate_in(&edit, &mut window, &block(goal)).expect("there is space");
    });
    let mut next = blocks.iter();
    time("free, one block", COUNT / 4, &mut || {
        alloc.free(&edit, *next.next().expect("as many were allocated"), 1, false).expect("it is in use");
    });
    time("committed", 1, &mut || {
        alloc.committed(Tid(1));
    });
    time("seal of all that", 1, &mut || alloc.seal(&edit).expect("the device works"));
    println!("{}", alloc.stats());
}
