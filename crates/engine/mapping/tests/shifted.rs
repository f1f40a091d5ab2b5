//! Files of mke2fs with parts moved to other logical blocks, checked with e2fsck, debugfs and the kernel.
//!
//! Tree blocks come from the file's own end, as in `edited.rs`. So the bitmaps and the file's block count
//! stay correct, and every error of e2fsck is about the tree.

mod common;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use common::Image;
use extant_base::{Ino, Lblk, Pblk};
use extant_buffer::{Buffers, Direct, Kind, Owner};
use extant_mapping::{EditFault, Editor, FileMap, MapState, Mapped, TreeSpace};
use extant_testkit::LoopMount;

/// The file's unused blocks.
struct Own<'a> {
    buffers: &'a Buffers,
    blocks: RefCell<Vec<Pblk>>,
}

impl TreeSpace for Own<'_> {
    fn allocate(&self, _: Pblk) -> Result<Pblk, EditFault> {
        self.blocks.borrow_mut().pop().ok_or(EditFault::NoSpace)
    }

    fn free(&self, block: Pblk) {
        self.buffers.forget(block);
        self.blocks.borrow_mut().push(block);
    }
}

/// The physical block of each logical block.
type Model = BTreeMap<u32, u64>;

fn moved(model: &Model, from: u32, by: impl Fn(u32) -> u32) -> Model {
    let at = |lblk: u32| if lblk >= from { by(lblk) } else { lblk };
    model.iter().map(|(lblk, block)| (at(*lblk), *block)).collect()
}

/// Collapses and inserts ranges of the file, and writes tree and inode back. Returns the expected map.
fn shift(path: &Path, ino: u64) -> Model {
    let image = Image::open(path);
    let (mut inode, mut bytes) = image.inode(ino);
    let seed = image.seed(ino, &inode);
    let mut map = FileMap { ino: Ino(ino as u32), i_block: inode.block, extents: true, seed };
    let blocks = image.blocks_of(ino).into_iter().enumerate();
    let mut model: Model =
        blocks.filter_map(|(lblk, block)| Some((lblk as u32, block?.0))).collect::<BTreeMap<_, _>>();

    let own = Own { buffers: &image.buffers, blocks: RefCell::default() };
    let direct = Direct(&image.buffers);
    let editor = Editor { buffers: &image.buffers, edit: &direct, space: &own };
    let cut = |map: &mut FileMap, model: &mut Model, from: u64, to: u64| {
        let mut gone = Vec::new();
        map.remove(&editor, from..to, &mut |_, start, len| {
            gone.extend((start.0..start.0 + u64::from(len)).map(Pblk));
        })
        .unwrap();
        own.blocks.borrow_mut().append(&mut gone);
        model.retain(|lblk, _| !(from..to).contains(&u64::from(*lblk)));
    };
    let last = u64::from(*model.last_key_value().unwrap().0);
    cut(&mut map, &mut model, last - 30, 1 << 32);
    for (at, by) in [(0, 2), (700, 13), (3, 1), (4, 1), (900, 100)] {
        cut(&mut map, &mut model, at, at + u64::from(by));
        let mut next = Some(at + u64::from(by));
        while let Some(from) = next {
            next = map.shift_left_step(&editor, from, by, 70).unwrap();
        }
        model = moved(&model, at as u32 + by, |lblk| lblk - by);
    }
    for (at, by) in [(1, 1000), (1501, 3), (1800, 1), (2000, 7), (2005, 1)] {
        let mut end = Some(1 << 32);
        while let Some(to) = end {
            end = map.shift_right_step(&editor, u64::from(at)..to, by, 70).unwrap();
        }
        model = moved(&model, at, |lblk| lblk + by);
    }
    // Blocks that the tree did not need are mapped after all others.
    let mut next = model.last_key_value().unwrap().0 + 1;
    loop {
        let Some(block) = own.blocks.borrow_mut().pop() else { break };
        let mapped = Mapped { lblk: Lblk(next), len: 1, state: MapState::Written(block) };
        map.insert(&editor, mapped).unwrap();
        image.write(path, block, 0, &vec![0x5A; image.geometry.block_size.len()]);
        model.insert(next, block.0);
        next += 1;
    }

    let mut node = vec![0; image.geometry.block_size.len()];
    map.walk_tree_blocks(&image.buffers, &mut |block| {
        let owner = Owner { kind: Kind::Extents, ino: map.ino.0 };
        node.copy_from_slice(&image.buffers.get(block, owner, |_| Ok(())).unwrap());
        if let Some(seed) = map.seed {
            extant_ondisk::extent::seal(&mut node, seed);
        }
        image.write(path, block, 0, &node);
        Some(())
    })
    .unwrap();
    inode.block = map.i_block;
    inode.size = u64::from(next) * image.geometry.block_size.bytes();
    inode.encode(&mut bytes);
    image.write_inode(path, ino, bytes);
    model
}

/// The file's map as debugfs lists it.
fn listed(path: &Path) -> Model {
    let mut model = Model::new();
    for line in extant_testkit::debugfs(path, "ex /file").lines().skip(1) {
        // Level/levels, entry/entries, logical from - to, physical from - to or the child's block, length.
        let numbers: Vec<u64> =
            line.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect();
        if numbers[0] == numbers[1] {
            let (first, last, start) = (numbers[4], numbers[5], numbers[6]);
            model.extend((first..=last).map(|lblk| (lblk as u32, start + lblk - first)));
        }
    }
    model
}

#[test]
fn shifted_maps_are_good_for_e2fsck_debugfs_and_the_kernel() {
    for (features, block_size) in
        [("extents,metadata_csum,64bit", 1024), ("extents,^metadata_csum", 1024), ("extents", 4096)]
    {
        let scratch = extant_testkit::scratch();
        let source = scratch.path().join("source");
        std::fs::create_dir(&source).unwrap();
        // Runs of one to four blocks with a hole after each: several hundred extents.
        let file = File::create(source.join("file")).unwrap();
        let bytes_of = |lblk: u64| {
            let mut bytes = vec![0x5A; block_size];
            bytes[..8].copy_from_slice(&lblk.to_le_bytes());
            bytes
        };
        for lblk in (0..3000).filter(|lblk| lblk % 11 % 6 < 4 || *lblk > 2900) {
            file.write_all_at(&bytes_of(lblk), lblk * block_size as u64).unwrap();
        }
        drop(file);
        let path = scratch.path().join("image");
        let (name, block_size_text) = (path.to_str().unwrap(), block_size.to_string());
        let from = ["-d", source.to_str().unwrap(), name, "32M"];
        let fixed = ["-q", "-F", "-t", "ext4", "-b", &block_size_text, "-O", features];
        extant_testkit::run("mke2fs", fixed.into_iter().chain(from));
        let stat = extant_testkit::debugfs(&path, "stat /file");
        let ino = stat.split_once("Inode: ").unwrap().1.split_whitespace().next().unwrap().parse().unwrap();
        assert!(listed(&path).len() > 1500 && stat.contains("(ETB0)"), "{stat}");

        let model = shift(&path, ino);
        extant_testkit::e2fsck_clean(&path);
        assert_eq!(listed(&path), model, "{features}");
        if !extant_testkit::is_root() {
            println!("skipped: not root");
            continue;
        }
        let raw = File::open(&path).unwrap();
        let mount = LoopMount::new(&path, "rw").unwrap();
        let file = File::options().read(true).write(true).open(mount.path().join("file")).unwrap();
        let (mut found, mut expected) = (vec![0; block_size], vec![0; block_size]);
        let last = *model.last_key_value().unwrap().0;
        for lblk in 0..=last {
            file.read_exact_at(&mut found, u64::from(lblk) * block_size as u64).unwrap();
            expected.fill(0);
            if let Some(block) = model.get(&lblk) {
                raw.read_exact_at(&mut expected, block * block_size as u64).unwrap();
            }
            assert!(found == expected, "{features}: block {lblk}");
        }
        // The kernel continues with the tree: fills holes, truncates it.
        for lblk in (0..u64::from(last)).step_by(7) {
            file.write_all_at(&found, lblk * block_size as u64).unwrap();
        }
        file.set_len(u64::from(last / 2) * block_size as u64).unwrap();
        drop((file, mount));
        extant_testkit::e2fsck_clean(&path);
    }
}
