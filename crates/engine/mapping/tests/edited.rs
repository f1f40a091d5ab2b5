//! Files of mke2fs with newly built maps, checked with e2fsck and the kernel.
//!
//! The new tree and the data use only the file's own blocks, until none is left. So the bitmaps and the
//! file's block count stay correct, and every error of e2fsck is about the tree.

mod common;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use common::Image;
use extant_base::{Ino, Lblk, Pblk};
use extant_buffer::Direct;
use extant_mapping::{EditFault, Editor, FileMap, MapState, Mapped, TreeSpace};
use extant_ondisk::inode::flags;
use extant_testkit::LoopMount;

/// The file's unused blocks.
struct Own<'a> {
    image: &'a Image,
    blocks: RefCell<VecDeque<Pblk>>,
}

impl TreeSpace for Own<'_> {
    fn allocate(&self, _: Pblk) -> Result<Pblk, EditFault> {
        self.blocks.borrow_mut().pop_back().ok_or(EditFault::NoSpace)
    }

    fn free(&self, block: Pblk) {
        self.image.buffers.forget(block);
        self.blocks.borrow_mut().push_back(block);
    }
}

fn marked(lblk: u32, block_size: usize) -> Vec<u8> {
    let mut bytes = vec![0x5A; block_size];
    bytes[..4].copy_from_slice(&lblk.to_le_bytes());
    bytes
}

/// Maps the file's blocks to `lblk_of(0)`, `lblk_of(1)`, ...: returns the logical blocks in order.
fn map_anew(path: &Path, ino: u64, lblk_of: impl Fn(u32) -> u32) -> Vec<u32> {
    let image = Image::open(path);
    let (mut inode, mut bytes) = image.inode(ino);
    let mut map = FileMap {
        ino: Ino(ino as u32),
        i_block: inode.block,
        extents: inode.has_flag(flags::EXTENTS),
        seed: image.seed(ino, &inode),
    };
    let own = Own { image: &image, blocks: RefCell::default() };
    let direct = Direct(&image.buffers);
    let editor = Editor { buffers: &image.buffers, edit: &direct, space: &own };
    let mut data = VecDeque::new();
    map.remove(&editor, 0..1 << 32, &mut |_, start, len| {
        data.extend((start.0..start.0 + u64::from(len)).map(Pblk));
    })
    .unwrap();
    own.blocks.borrow_mut().append(&mut data);

    let mut lblks = Vec::new();
    let mut insert = |map: &mut FileMap, lblk: u32| {
        let Some(block) = own.blocks.borrow_mut().pop_front() else { return false };
        let mapped = Mapped { lblk: Lblk(lblk), len: 1, state: MapState::Written(block) };
        map.insert(&editor, mapped).unwrap();
        image.write(path, block, 0, &marked(lblk, image.geometry.block_size.len()));
        lblks.push(lblk);
        true
    };
    for i in 0.. {
        // The rest is too small for a split with indirect blocks: use it where no tree block is needed.
        if own.blocks.borrow().len() < 8 || !insert(&mut map, lblk_of(i)) {
            break;
        }
    }
    // The last ones are sequential: each extends the newest extent, or fills an indirect block.
    lblks.sort_unstable();
    let mut next = lblks.last().unwrap() + 1;
    let mut more = Vec::new();
    loop {
        let Some(block) = own.blocks.borrow_mut().pop_front() else { break };
        let mapped = Mapped { lblk: Lblk(next), len: 1, state: MapState::Written(block) };
        map.insert(&editor, mapped).unwrap();
        image.write(path, block, 0, &marked(next, image.geometry.block_size.len()));
        more.push(next);
        next += 1;
    }
    lblks.extend(more);

    map.walk_tree_blocks(&image.buffers, &mut |block| {
        let mut node = vec![0; image.geometry.block_size.len()];
        direct_bytes(&image, &map, block, &mut node);
        image.write(path, block, 0, &node);
        Some(())
    })
    .unwrap();
    inode.block = map.i_block;
    inode.size = u64::from(next) * image.geometry.block_size.bytes();
    inode.encode(&mut bytes);
    image.write_inode(path, ino, bytes);
    lblks
}

/// The bytes of a block of the tree, with its checksum.
fn direct_bytes(image: &Image, map: &FileMap, block: Pblk, out: &mut [u8]) {
    let kind = if map.extents { extant_buffer::Kind::Extents } else { extant_buffer::Kind::Indirect };
    let owner = extant_buffer::Owner { kind, ino: map.ino.0 };
    out.copy_from_slice(&image.buffers.get(block, owner, |_| Ok(())).unwrap());
    if let Some(seed) = map.seed.filter(|_| map.extents) {
        extant_ondisk::extent::seal(out, seed);
    }
}

#[test]
fn maps_are_good_for_e2fsck_and_the_kernel() {
    for (features, block_size) in [
        ("extents,metadata_csum,64bit", "1024"),
        ("extents,^metadata_csum", "4096"),
        ("^extents,^64bit", "1024"),
        ("^extents,^64bit", "4096"),
    ] {
        let scratch = extant_testkit::scratch();
        let source = scratch.path().join("source");
        std::fs::create_dir(&source).unwrap();
        let bytes = block_size.parse::<u64>().unwrap();
        std::fs::write(source.join("file"), vec![1; 3000 * bytes as usize]).unwrap();
        let path = scratch.path().join("image");
        let name = path.to_str().unwrap();
        let from = ["-d", source.to_str().unwrap(), name, "32M"];
        let fixed = ["-q", "-F", "-t", "ext4", "-b", block_size, "-O", features];
        extant_testkit::run("mke2fs", fixed.into_iter().chain(from));
        let stat = extant_testkit::debugfs(&path, "stat /file");
        let ino = stat.split_once("Inode: ").unwrap().1.split_whitespace().next().unwrap().parse().unwrap();

        let prime = 4093;
        let lblks = map_anew(&path, ino, |i| 3 * (i * 1021 % prime));
        extant_testkit::e2fsck_clean(&path);
        assert!(lblks.len() > 2900, "{features}: {} blocks of data", lblks.len());
        if !extant_testkit::is_root() {
            println!("skipped: not root");
            continue;
        }
        let mount = LoopMount::new(&path, "rw").unwrap();
        let file = File::options().read(true).write(true).open(mount.path().join("file")).unwrap();
        let mut block = vec![0; bytes as usize];
        let last = *lblks.last().unwrap();
        for lblk in 0..=last {
            file.read_exact_at(&mut block, u64::from(lblk) * bytes).unwrap();
            let expected =
                if lblks.contains(&lblk) { marked(lblk, block.len()) } else { vec![0; block.len()] };
            assert!(block == expected, "{features}: block {lblk}");
        }
        // The kernel continues with the tree: fills holes, truncates it.
        for lblk in (0..6000).step_by(7) {
            file.write_all_at(&block, lblk * bytes).unwrap();
        }
        file.set_len(5000 * bytes).unwrap();
        drop((file, mount));
        extant_testkit::e2fsck_clean(&path);
    }
}
