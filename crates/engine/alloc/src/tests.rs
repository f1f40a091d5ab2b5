//! On images that mke2fs made, held against a plain model; e2fsck judges what is written back.

mod images;
mod random;
mod refusals;

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Mutex;

use extant_base::{Ino, Pblk, Tid};
use extant_buffer::{Buffers, Direct, Edit, ReadFault, Seal};
use extant_device::{Device, MemDevice};
use extant_memory::Budget;
use extant_ondisk::superblock;

use super::*;

/// An image in memory, and its file.
pub(crate) struct Image {
    pub(crate) buffers: Arc<Buffers>,
    pub(crate) sb: Superblock,
    pub(crate) geometry: Geometry,
    file: PathBuf,
    /// Keeps the temporary directory alive.
    dir: Option<Box<dyn std::any::Any + Send + Sync>>,
    changed: Mutex<BTreeSet<u64>>,
}

impl Image {
    pub(crate) fn mke2fs(size: &str, args: &[&str]) -> Self {
        let dir = extant_testkit::scratch();
        let file = dir.path().join("image");
        let mut all = vec!["-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=1,nodiscard", "-J", "size=4"];
        all.extend(args);
        let path = file.to_str().unwrap();
        all.extend([path, size]);
        extant_testkit::run("mke2fs", all);
        let mut image = Self::load(file);
        image.dir = Some(Box::new(dir));
        image
    }

    fn load(file: PathBuf) -> Self {
        let opened = File::open(&file).unwrap();
        let size = opened.metadata().unwrap().len();
        let device = MemDevice::new(size);
        let mut part = vec![0; 64 << 10];
        for at in (0..size).step_by(part.len()) {
            let len = part.len().min((size - at) as usize);
            opened.read_exact_at(&mut part[..len], at).unwrap();
            if part[..len].iter().any(|byte| *byte != 0) {
                device.write_at(at, &part[..len]).unwrap();
            }
        }
        let mut bytes = [0; 1024];
        device.read_at(superblock::OFFSET, &mut bytes).unwrap();
        let sb = Superblock::decode(&bytes).unwrap();
        let geometry = Geometry::new(&sb).unwrap();
        let buffers =
            Buffers::new(Arc::new(device), geometry.block_size, geometry.blocks, &Budget::new(256 << 20));
        Self { buffers, sb, geometry, file, dir: None, changed: Mutex::default() }
    }

    pub(crate) fn open(&self, options: Options) -> Arc<Alloc> {
        Alloc::open(Arc::clone(&self.buffers), &self.sb, &self.geometry, options).unwrap()
    }

    pub(crate) fn edit(&self, transaction: Tid) -> Tx<'_> {
        Tx { image: self, transaction }
    }

    /// Writes all changes to the file, with the counts of `alloc`, and checks it with e2fsck.
    pub(crate) fn judge(&self, alloc: &Alloc) {
        alloc.seal(&self.edit(extant_base::Tid(1 << 40))).unwrap();
        assert_eq!(alloc.seal_credits(), 0);
        let file = File::options().write(true).open(&self.file).unwrap();
        for block in &*self.changed.lock().unwrap() {
            let owner = Owner { kind: Kind::Other, ino: 0 };
            let bytes = self.buffers.get(Pblk(*block), owner, |_| Ok(())).unwrap();
            file.write_all_at(&bytes, block * self.geometry.block_size.bytes()).unwrap();
        }
        let mut sb = self.sb.clone();
        sb.free_blocks_count = alloc.usage().blocks_free;
        sb.free_inodes_count = alloc.usage().inodes_free as u32;
        file.write_all_at(&sb.sealed(), superblock::OFFSET).unwrap();
        extant_testkit::e2fsck_clean(&self.file);
    }
}

/// The changes of one transaction.
pub(crate) struct Tx<'a> {
    image: &'a Image,
    transaction: Tid,
}

impl Edit for Tx<'_> {
    fn transaction(&self) -> Tid {
        self.transaction
    }

    fn change(&self, block: Pblk, seal: Seal, change: &mut dyn FnMut(&mut [u8])) -> Result<(), ReadFault> {
        self.image.changed.lock().unwrap().insert(block.0);
        self.image.buffers.change(block, seal.owner, self.transaction, change).map(drop)
    }

    fn fresh(&self, block: Pblk, seal: Seal, fill: &mut dyn FnMut(&mut [u8])) {
        self.image.changed.lock().unwrap().insert(block.0);
        self.image.buffers.fresh(block, seal.owner, self.transaction, fill);
    }

    fn revoke(&self, block: Pblk) {
        self.image.buffers.forget(block);
    }
}

/// A request for blocks near a goal.
pub(crate) fn request(goal: u64, len: u32, min_len: u32) -> Request {
    Request { goal: Pblk(goal), len, min_len, flags: Flags::DATA | Flags::USE_RESERVED, stream: None }
}

pub(crate) fn inode_request(parent: u32, is_dir: bool) -> InodeRequest {
    InodeRequest { parent: Ino(parent), is_dir, is_top_dir: false, name_hash: 0, goal: None }
}

impl Alloc {
    /// Checks the invariants of every group in memory, and that busy is what the crate documentation says.
    pub(crate) fn assert_whole(&self) {
        let mut sums = (0, 0);
        for chunk in 0..self.groups.chunks.len() as u32 {
            let first = chunk * self.groups.geometry.descs_per_block();
            for (group, cell) in (first..).zip(self.groups.chunks[chunk as usize].get().into_iter().flatten())
            {
                let state = cell.state.lock();
                state.assert_whole(group, &self.groups.index);
                sums.0 += state.pending.iter().map(|one| u64::from(one.len)).sum::<u64>();
                sums.1 += state.windows.iter().map(|one| u64::from(one.len)).sum::<u64>();
                let Some(map) = state.map.as_deref() else { continue };
                let mut busy = state.initial_map();
                if !self.groups.is_block_uninit(&state.desc) {
                    let block = Pblk(state.desc.block_bitmap);
                    let bytes = self.groups.buffers.get(block, BLOCK_BITMAP.owner, |_| Ok(())).unwrap();
                    busy = bits::from_bytes(&bytes, state.clusters);
                    assert_eq!(bits::count_clear(&busy), state.desc.free_clusters, "group {group}");
                }
                let mut overlay = |start: u32, len: u32| {
                    assert!(bits::all_clear(&busy, start..start + len), "group {group}: {start}+{len}");
                    bits::set(&mut busy, start..start + len);
                };
                state.pending.iter().for_each(|one| overlay(one.start, one.len));
                state.windows.iter().for_each(|one| overlay(one.start, one.len));
                assert!(&*busy == map, "group {group}: busy is bitmap, pending and windows");
            }
        }
        use std::sync::atomic::Ordering::Relaxed;
        assert_eq!(sums, (self.pending_clusters.load(Relaxed), self.window_clusters.load(Relaxed)));
    }
}

/// A simple, fast and deterministic generator.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        let mixed = self.0 ^ self.0 >> 29;
        (mixed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) % end.max(1)
    }
}

pub(crate) fn direct(image: &Image) -> Direct<'_> {
    Direct(&image.buffers)
}
