//! Directories made by the kernel, listed by the kernel and here: same names, same order, equivalent
//! positions.

#[path = "../../mapping/tests/common/mod.rs"]
mod common;

use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use common::Image;
use extant_base::{Ino, Lblk, Pblk};
use extant_buffer::{Buffer, Kind, Owner, ReadFault};
use extant_dir::{Cursor, Dir, DirBlocks, Format, Storage};
use extant_ondisk::dirent::verify_tail;
use extant_ondisk::inline_data::InlineDir;
use extant_ondisk::inode::{Inode, flags};
use extant_testkit::LoopMount;
use rustix::fs::{Mode, OFlags, RawDir};

/// A name, its inode, and the position after it.
type Listed = (Vec<u8>, u64, u64);

/// The kernel's listing of a directory.
fn kernel_list(path: &Path) -> Vec<Listed> {
    let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let mut space = vec![MaybeUninit::uninit(); 32 << 10];
    let mut reader = RawDir::new(fd, &mut space);
    let mut listing = Vec::new();
    while let Some(entry) = reader.next() {
        let entry = entry.unwrap();
        listing.push((entry.file_name().to_bytes().to_vec(), entry.ino(), entry.next_entry_cookie()));
    }
    listing
}

struct OnImage<'a> {
    image: &'a Image,
    format: &'a Format,
    ino: u32,
    blocks: Vec<Option<Pblk>>,
    seed: Option<u32>,
}

impl OnImage<'_> {
    fn get(
        &self,
        lblk: Lblk,
        kind: Kind,
        verify: impl FnOnce(&[u8]) -> Result<(), extant_base::Malformed>,
    ) -> Result<Option<Buffer>, ReadFault> {
        let Some(block) = self.blocks[lblk.0 as usize] else { return Ok(None) };
        self.image.buffers.get(block, Owner { kind, ino: self.ino }, verify).map(Some)
    }
}

impl DirBlocks for OnImage<'_> {
    fn len(&self) -> u32 {
        self.blocks.len() as u32
    }

    fn leaf(&self, lblk: Lblk) -> Result<Option<Buffer>, ReadFault> {
        self.get(lblk, Kind::DirLeaf, |bytes| self.seed.map_or(Ok(()), |seed| verify_tail(bytes, seed)))
    }

    fn index(&self, lblk: Lblk) -> Result<Option<Buffer>, ReadFault> {
        self.get(lblk, Kind::DirIndex, |bytes| self.format.index.verify(bytes, self.seed.unwrap_or(0)))
    }

    fn prefetch(&self, first: Lblk, len: u32) {
        for block in self.blocks[first.0 as usize..].iter().take(len as usize).flatten() {
            self.image.buffers.prefetch(*block, 1);
        }
    }
}

/// Lists at most `count` entries from a position on.
fn list(dir: &Dir<'_>, format: &Format, from: u64, count: usize) -> Vec<Listed> {
    let mut listing = Vec::new();
    dir.list(
        format,
        Cursor(from),
        &mut |entry| {
            listing.push((entry.name.to_vec(), u64::from(entry.ino.0), entry.next.0));
            if listing.len() < count { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        },
        &mut |fault| panic!("{fault}"),
    )
    .unwrap();
    listing
}

/// Compares listing and lookups of a directory with the kernel's listing.
fn compare(dir: &Dir<'_>, format: &Format, kernel: &[Listed], what: &str) {
    let ours = list(dir, format, 0, usize::MAX);
    assert_eq!(ours.len(), kernel.len(), "{what}");
    for (i, (ours, theirs)) in ours.iter().zip(kernel).enumerate() {
        assert_eq!((&ours.0, ours.1), (&theirs.0, theirs.1), "{what}: entry {i}");
    }
    let step = kernel.len() / 200 + 1;
    for i in (0..kernel.len()).step_by(step) {
        // After entry i, by our position and by the kernel's.
        let next: Vec<_> = kernel[i + 1..].iter().take(1).map(|listing| listing.0.clone()).collect();
        for from in [ours[i].2, kernel[i].2] {
            let first: Vec<_> = list(dir, format, from, 1).into_iter().map(|listing| listing.0).collect();
            assert_eq!(first, next, "{what}: from {from:#x}, behind entry {i}");
        }
    }
    for (name, ino, _) in kernel.iter().step_by(kernel.len() / 2000 + 1) {
        assert_eq!(dir.lookup(format, name).unwrap(), Some(Ino(*ino as u32)), "{what}: {name:?}");
    }
    for absent in [&b"no such name"[..], b"...", b"x"] {
        assert_eq!(dir.lookup(format, absent).unwrap(), None);
    }
}

/// Creates hard links with these names, to files with at most 60000 links.
fn fill(dir: &Path, names: impl IntoIterator<Item = String>) {
    std::fs::create_dir(dir).unwrap();
    let target = |i: usize| dir.with_extension(format!("target{}", i / 60_000));
    for (i, name) in names.into_iter().enumerate() {
        if i % 60_000 == 0 {
            std::fs::write(target(i), b"").unwrap();
        }
        std::fs::hard_link(target(i), dir.join(name)).unwrap();
    }
}

struct Case {
    hash: &'static str,
    unsigned: bool,
    block_size: &'static str,
    features: &'static str,
    /// Number of names, and their length.
    names: (usize, usize),
    levels: u8,
}

#[test]
fn listings_are_those_of_the_kernel() {
    if extant_testkit::not_root() {
        return;
    }
    #[rustfmt::skip]
    let cases = [
        Case { hash: "half_md4", unsigned: false, block_size: "4096", features: "metadata_csum", names: (9000, 4), levels: 0 },
        Case { hash: "half_md4", unsigned: true, block_size: "1024", features: "metadata_csum", names: (9000, 4), levels: 1 },
        Case { hash: "tea", unsigned: false, block_size: "1024", features: "^metadata_csum", names: (9000, 4), levels: 1 },
        Case { hash: "tea", unsigned: true, block_size: "4096", features: "metadata_csum", names: (5000, 4), levels: 0 },
        Case { hash: "legacy", unsigned: false, block_size: "1024", features: "metadata_csum", names: (9000, 4), levels: 1 },
        Case { hash: "legacy", unsigned: true, block_size: "4096", features: "^metadata_csum", names: (9000, 4), levels: 0 },
        Case { hash: "half_md4", unsigned: false, block_size: "1024", features: "large_dir", names: (48_000, 230), levels: 2 },
    ];
    for case in cases {
        let what = format!("{} of {} names, unsigned {}", case.hash, case.names.0, case.unsigned);
        let scratch = extant_testkit::scratch();
        let image = scratch.path().join("image");
        let image_name = image.to_str().unwrap();
        extant_testkit::run(
            "mke2fs",
            [
                "-q",
                "-F",
                "-t",
                "ext4",
                "-b",
                case.block_size,
                "-I",
                "256",
                "-O",
                case.features,
                image_name,
                "96M",
            ],
        );
        extant_testkit::run("tune2fs", ["-E", &format!("hash_alg={}", case.hash), image_name]);
        if case.unsigned {
            extant_testkit::run("debugfs", ["-w", "-R", "ssv flags 2", image_name]);
        }
        let (count, len) = case.names;
        let (inos, listing);
        {
            let mount = LoopMount::new(&image, "rw").unwrap();
            // Bytes above 0x7F, where signedness matters; names that share one legacy hash; many names
            // deleted again.
            let colliding = ["zNWUb", "hfAde", "gZdJf", "VXLVg", "9-89h", "SMCkm"].map(String::from);
            let name = |i: usize| format!("{i:0>len$}é{}", i % 7);
            fill(&mount.path().join("large"), (0..count).map(name).chain(colliding));
            for i in (0..count / 3).step_by(2) {
                std::fs::remove_file(mount.path().join("large").join(name(i))).unwrap();
            }
            fill(&mount.path().join("small"), (0..20).map(|i| format!("{i}")));
            std::fs::remove_file(mount.path().join("small/7")).unwrap();
            fill(&mount.path().join("none"), []);
            let dirs = ["large", "small", "none", ""].map(|name| mount.path().join(name));
            listing = dirs.clone().map(|dir| kernel_list(&dir));
            inos = dirs.clone().map(|dir| dir.metadata().unwrap().ino());
        }
        let image = Image::open(&image);
        let format = Format::of(&image.sb, &image.geometry);
        assert_eq!(format.unsigned_hash, case.unsigned);
        for (i, ino) in inos.into_iter().enumerate() {
            let (inode, _) = image.inode(ino);
            let blocks = OnImage {
                image: &image,
                format: &format,
                ino: ino as u32,
                blocks: image.blocks_of(ino),
                seed: image.seed(ino, &inode),
            };
            let storage = if inode.has_flag(flags::INDEX) {
                Storage::Indexed(&blocks)
            } else {
                Storage::Linear(&blocks)
            };
            assert_eq!(matches!(storage, Storage::Indexed(_)), i == 0, "{what}");
            if i == 0 {
                let root = blocks.index(Lblk(0)).unwrap().unwrap();
                assert_eq!(format.index.decode_root(&root).unwrap().levels, case.levels, "{what}");
            }
            let dir = Dir { ino: Ino(ino as u32), storage, casefold: false, encrypted: false };
            compare(&dir, &format, &listing[i], &what);
        }
    }
}

#[test]
fn inline_directories_are_listed_as_by_the_kernel() {
    if extant_testkit::not_root() {
        return;
    }
    let scratch = extant_testkit::scratch();
    let image = scratch.path().join("image");
    extant_testkit::run(
        "mke2fs",
        ["-q", "-F", "-t", "ext4", "-O", "inline_data", image.to_str().unwrap(), "32M"],
    );
    let (inos, listing);
    {
        let mount = LoopMount::new(&image, "rw").unwrap();
        fill(&mount.path().join("few"), (0..3).map(|i| format!("few{i}")));
        fill(&mount.path().join("more"), (0..7).map(|i| format!("more{i}")));
        std::fs::remove_file(mount.path().join("more/more1")).unwrap();
        let dirs = ["few", "more"].map(|name| mount.path().join(name));
        listing = dirs.clone().map(|dir| kernel_list(&dir));
        inos = dirs.map(|dir| dir.metadata().unwrap().ino());
    }
    let image = Image::open(&image);
    let format = Format::of(&image.sb, &image.geometry);
    for (i, ino) in inos.into_iter().enumerate() {
        let (inode, bytes): (Inode, Vec<u8>) = image.inode(ino);
        assert!(inode.has_flag(flags::INLINE_DATA));
        let attrs = extant_ondisk::xattr::decode_ibody(&bytes[inode.xattr_offset()..]).unwrap();
        let value = attrs.iter().find_map(|stored| match stored.attr.value {
            extant_ondisk::xattr::AttrValue::Bytes(bytes) if stored.attr.name == b"data" => Some(bytes),
            _ => None,
        });
        let inline = InlineDir::decode(&inode.block, value.unwrap_or(&[]), inode.size).unwrap();
        let dir = Dir {
            ino: Ino(ino as u32),
            storage: Storage::Inline(&inline),
            casefold: false,
            encrypted: false,
        };
        assert_eq!(!inline.second.is_empty(), i == 1);
        compare(&dir, &format, &listing[i], "inline");
    }
}
