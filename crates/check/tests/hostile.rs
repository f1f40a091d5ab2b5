//! Whatever the bytes: no panic, no loop, no hour of work.

use std::time::{Duration, Instant};

use check::Options;
use device::{Device, MemDevice};
use ondisk::group_desc::{ChecksumRule, GroupDesc};
use ondisk::inode;
use ondisk::{Geometry, Superblock};

/// Numbers that are the same on every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }

    fn value(&mut self) -> u8 {
        [0, 1, 2, 4, 8, 0x7F, 0x80, 0xFF, self.below(256) as u8][self.below(9)]
    }
}

/// Makes the checksums of superblock, descriptors and the first inodes fit, so that damage is not found at the door.
fn reseal(image: &mut [u8]) {
    let Ok(sb) = Superblock::decode(&image[1024..]) else { return };
    image[1024..2048].copy_from_slice(&sb.sealed());
    let Ok(geometry) = Geometry::new(&sb) else { return };
    let bs = geometry.block_size.len();
    for group in 0..geometry.groups.min(64) {
        let (block, within) = geometry.descriptor_place(base::Group(group));
        let at = (block.0 as usize).saturating_mul(bs).saturating_add(within);
        let Some(bytes) = image.get_mut(at..at.saturating_add(geometry.desc_size)) else { return };
        ChecksumRule::of(&sb).seal(group, bytes);
        let Ok(desc) = GroupDesc::decode(bytes) else { continue };
        for index in 0..32 {
            let table = (desc.inode_table as usize).saturating_mul(bs);
            let at = table.saturating_add(index * geometry.inode_size);
            let Some(bytes) = image.get_mut(at..at.saturating_add(geometry.inode_size)) else { continue };
            let ino = base::Ino(group.wrapping_mul(geometry.inodes_per_group).wrapping_add(index as u32 + 1));
            let generation = u32::from_le_bytes([bytes[0x64], bytes[0x65], bytes[0x66], bytes[0x67]]);
            inode::seal(bytes, inode::inode_seed(sb.fs_seed(), ino, generation));
        }
    }
}

#[test]
fn damaged_images_are_checked_in_bounded_time() {
    let dir = testkit::scratch();
    let source = dir.path().join("src");
    std::fs::create_dir(&source).unwrap();
    for i in 0..40 {
        std::fs::write(source.join(format!("file-{i}")), vec![i; 3000]).unwrap();
    }
    std::fs::create_dir(source.join("dir")).unwrap();
    let mut seed = Random(0x9E37_79B9_7F4A_7C15);
    let recipes: [&[&str]; 4] = [
        &["-t", "ext4"],
        &["-t", "ext2"],
        &["-t", "ext4", "-O", "bigalloc,quota,inline_data"],
        &["-t", "ext3"],
    ];
    for recipe in recipes {
        let path = dir.path().join("t.img");
        let _ = std::fs::remove_file(&path);
        let fixed = ["-q", "-F", "-b", "1024", "-N", "128", "-d", source.to_str().unwrap()];
        testkit::run("mke2fs", recipe.iter().chain(&fixed).chain(&[path.to_str().unwrap(), "2M"]));
        let whole = std::fs::read(&path).unwrap();
        let device = MemDevice::new(whole.len() as u64);
        for round in 0..800 {
            let mut image = whole.clone();
            for _ in 0..1 + seed.below(6) {
                // Half of the damage near the front, where superblock and descriptors are; the rest in the first
                // 200 KiB: bitmaps, inodes, directories.
                let at = if seed.below(4) == 0 { 1024 + seed.below(2048) } else { seed.below(200 << 10) };
                let len = 1 + seed.below(8);
                let value = seed.value();
                image[at..at + len].fill(value);
            }
            if round % 4 != 0 {
                reseal(&mut image);
            }
            device.write_at(0, &image).unwrap();
            let begun = Instant::now();
            let report = check::check(&device, &Options::default()).unwrap();
            let took = begun.elapsed();
            assert!(took < Duration::from_secs(5), "{recipe:?} round {round}: {took:?}");
            assert!(report.findings.len() <= 200_000);
        }
    }
}
