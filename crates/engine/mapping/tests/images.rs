//! Maps of files that mke2fs and the kernel wrote. Every data block of a file begins with its own logical
//! number, so that a map can be compared with the image itself.

mod common;

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use common::Image;
use extant_base::{Ino, Lblk, Pblk};
use extant_mapping::{FileMap, MapState, Mapped};
use extant_ondisk::inode::flags;
use extant_testkit::LoopMount;

const MARK: u64 = 0x6D61_726B_0000_0000;

/// Writes blocks `lblks` of a file, each marked with its number.
fn write_marked(path: &Path, block_size: u64, lblks: impl IntoIterator<Item = u64>) {
    let file = File::create(path).unwrap();
    for lblk in lblks {
        let mut bytes = vec![0x5A; block_size as usize];
        bytes[..8].copy_from_slice(&(MARK | lblk).to_le_bytes());
        file.write_all_at(&bytes, lblk * block_size).unwrap();
    }
    file.sync_all().unwrap();
}

fn map_of(image: &Image, ino: u64) -> (FileMap, u64) {
    let (inode, _) = image.inode(ino);
    let map = FileMap {
        ino: Ino(ino as u32),
        i_block: inode.block,
        extents: inode.has_flag(flags::EXTENTS),
        seed: image.seed(ino, &inode),
    };
    (map, image.geometry.block_size.blocks_for(inode.size))
}

/// Compares the map of a marked file with the image: every data block has its number, and there are no
/// others. Returns the pieces that `find` returned.
fn check(image_path: &Path, ino: u64, expected: impl Fn(u64) -> bool) -> Vec<Mapped> {
    let image = Image::open(image_path);
    let raw = File::open(image_path).unwrap();
    let (map, blocks) = map_of(&image, ino);
    let mark_at = |block: Pblk| {
        let mut bytes = [0; 8];
        raw.read_exact_at(&mut bytes, block.0 * image.geometry.block_size.bytes()).unwrap();
        u64::from_le_bytes(bytes)
    };
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < blocks {
        let piece = map.find(&image.buffers, Lblk(at as u32), (blocks - at) as u32).unwrap();
        for i in 0..u64::from(piece.len) {
            let lblk = at + i;
            match piece.state {
                MapState::Written(start) => {
                    assert_eq!(mark_at(Pblk(start.0 + i)), MARK | lblk, "block {lblk} of inode {ino}");
                    assert!(expected(lblk), "block {lblk} of inode {ino} should be a hole");
                }
                MapState::Hole | MapState::Unwritten(_) => {
                    assert!(!expected(lblk), "block {lblk} of inode {ino} should be there");
                }
            }
        }
        at = piece.end();
        pieces.push(piece);
    }
    // The walk agrees, from any block on.
    for from in [0, 1, blocks / 3, blocks.saturating_sub(1)] {
        let mut written_blocks = 0;
        map.walk(&image.buffers, Lblk(from as u32), &mut |piece| {
            assert!(u64::from(piece.lblk.0) >= from);
            for i in [0, piece.len - 1] {
                if let MapState::Written(start) = piece.state {
                    assert_eq!(mark_at(Pblk(start.0 + u64::from(i))), MARK | u64::from(piece.lblk.0 + i));
                    assert!(expected(u64::from(piece.lblk.0 + i)));
                }
            }
            written_blocks +=
                if matches!(piece.state, MapState::Written(_)) { u64::from(piece.len) } else { 0 };
            Some(())
        })
        .unwrap();
        assert_eq!(written_blocks, (from..blocks).filter(|lblk| expected(*lblk)).count() as u64);
    }
    pieces
}

fn tree_blocks(image_path: &Path, ino: u64) -> u64 {
    let image = Image::open(image_path);
    let mut count = 0;
    let (map, _) = map_of(&image, ino);
    map.walk_tree_blocks(&image.buffers, &mut |_| {
        count += 1;
        Some(())
    })
    .unwrap();
    count
}

/// The tree blocks according to the inode's own count: all its 512-byte units, minus those of the data.
fn tree_blocks_by_count(image_path: &Path, ino: u64, data_blocks: u64) -> u64 {
    let image = Image::open(image_path);
    let (inode, _) = image.inode(ino);
    inode.blocks / (image.geometry.block_size.bytes() / 512) - data_blocks
}

#[test]
fn files_that_mke2fs_wrote() {
    for (features, block_size) in [
        ("extents", 1024),
        ("extents,metadata_csum,64bit", 4096),
        ("^extents,^64bit", 1024),
        ("^extents,^64bit", 4096),
        ("extents,bigalloc", 4096),
    ] {
        let dir = extant_testkit::scratch();
        let source = dir.path().join("source");
        std::fs::create_dir(&source).unwrap();
        let page_blocks = 4096 / block_size; // holes of the source are whole pages
        let odd = |lblk: u64| (lblk / page_blocks) % 3 == 1;
        let count = 4000;
        write_marked(&source.join("odd"), block_size, (0..count).filter(|lblk| odd(*lblk)));
        write_marked(&source.join("whole"), block_size, 0..3000);
        let far = [0, 20, 5000, 70_000, 80_000].map(|lblk| lblk * page_blocks);
        write_marked(&source.join("far"), block_size, far);
        let image = dir.path().join("image");
        let bs = block_size.to_string();
        extant_testkit::run(
            "mke2fs",
            [
                "-q",
                "-F",
                "-t",
                "ext4",
                "-b",
                &bs,
                "-O",
                features,
                "-d",
                source.to_str().unwrap(),
                image.to_str().unwrap(),
                "80M",
            ],
        );
        let ino_of = |name: &str| {
            let stat = extant_testkit::debugfs(&image, &format!("stat /{name}"));
            stat.split_once("Inode: ").unwrap().1.split_whitespace().next().unwrap().parse().unwrap()
        };
        let pieces = check(&image, ino_of("odd"), |lblk| lblk < count && odd(lblk));
        assert!(pieces.len() > 600, "{features}: {} pieces", pieces.len());
        let whole = check(&image, ino_of("whole"), |_| true);
        assert!(whole.len() < 40, "{features}: {} pieces", whole.len());
        check(&image, ino_of("far"), |lblk| far.contains(&lblk));
        if !features.contains("bigalloc") {
            let odd_blocks = (0..count).filter(|lblk| odd(*lblk)).count() as u64;
            assert_eq!(
                tree_blocks(&image, ino_of("odd")),
                tree_blocks_by_count(&image, ino_of("odd"), odd_blocks)
            );
            assert_eq!(tree_blocks(&image, ino_of("far")), tree_blocks_by_count(&image, ino_of("far"), 5));
        }
    }
}

#[test]
fn files_that_the_kernel_wrote() {
    if extant_testkit::not_root() {
        return;
    }
    let dir = extant_testkit::scratch();
    let image = dir.path().join("image");
    extant_testkit::run("mke2fs", ["-q", "-F", "-t", "ext4", "-b", "1024", image.to_str().unwrap(), "64M"]);
    let (deep, holed, sparse);
    {
        let mount = LoopMount::new(&image, "rw").unwrap();
        let path = |name: &str| mount.path().join(name);
        // Every other block, in reverse: a deep tree that was split often.
        write_marked(&path("deep"), 1024, (0..6000).rev().map(|i| i * 2));
        deep = path("deep").metadata().unwrap().ino();
        // Allocated but not written, with holes punched.
        extant_testkit::run("fallocate", ["-l", "2M", path("holed").to_str().unwrap()]);
        for at in [100u64, 300, 301, 2000] {
            let file = File::options().write(true).open(path("holed")).unwrap();
            let mut bytes = vec![0x5A; 1024];
            bytes[..8].copy_from_slice(&(MARK | at).to_le_bytes());
            file.write_all_at(&bytes, at * 1024).unwrap();
            file.sync_all().unwrap();
        }
        let holed_path = path("holed");
        extant_testkit::run("fallocate", ["-p", "-o", "512K", "-l", "256K", holed_path.to_str().unwrap()]);
        holed = holed_path.metadata().unwrap().ino();
        write_marked(&path("sparse"), 1024, [5, 4_000_000_000]);
        sparse = path("sparse").metadata().unwrap().ino();
    }
    let pieces = check(&image, deep, |lblk| lblk % 2 == 0);
    assert!(pieces.len() >= 11_999, "{} pieces", pieces.len());
    let i_block = Image::open(&image).inode(deep).0.block;
    assert!(i_block[6] >= 2, "depth {}", i_block[6]);
    assert_eq!(tree_blocks(&image, deep), tree_blocks_by_count(&image, deep, 6000));
    let pieces = check(&image, holed, |lblk| [100, 300, 301, 2000].contains(&lblk));
    let count = |wanted: fn(&MapState) -> bool| pieces.iter().filter(|piece| wanted(&piece.state)).count();
    assert_eq!(count(|state| matches!(state, MapState::Hole)), 1, "{pieces:?}");
    assert!(count(|state| matches!(state, MapState::Unwritten(_))) >= 4, "{pieces:?}");

    let opened = Image::open(&image);
    let (map, _) = map_of(&opened, sparse);
    let hole = map.find(&opened.buffers, Lblk(6), u32::MAX).unwrap();
    assert_eq!((hole.len, hole.state), (4_000_000_000 - 6, MapState::Hole), "one hole, returned whole");
    let last = map.find(&opened.buffers, Lblk(4_000_000_000), 9).unwrap();
    assert!(matches!(last.state, MapState::Written(_)));
}
