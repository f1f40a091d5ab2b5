//! Damage that random changes do not find; each is crafted for one rule.

use std::sync::Arc;

use extant_base::Ino;
use extant_device::{Device, MemDevice};
use extant_hostile::Mutator;
use extant_ondisk::orphan_file;
use extant_ondisk::{Features, Superblock, superblock};
use extant_volume::{OpenOptions, Volume};

/// Creates the damaged copies of an image.
pub(crate) fn all(name: &str, mutator: &Mutator) -> Vec<Vec<u8>> {
    let mut made = Vec::new();
    if name == "ext2" {
        made.push(with_superblock(mutator, |sb| sb.features.incompat |= Features::RECOVER));
    }
    if name == "ext4-1k" {
        made.extend([with_orphan(mutator, false, 12), with_orphan(mutator, true, 5)]);
        made.push(by_debugfs(mutator, &["sif many links_count 1"]));
    }
    if name == "ext4-4k" {
        made.push(with_name_twice(mutator));
    }
    made
}

fn with_superblock(mutator: &Mutator, change: impl FnOnce(&mut Superblock)) -> Vec<u8> {
    let mut bytes = mutator.sound().to_vec();
    let mut sb = mutator.superblock().clone();
    change(&mut sb);
    let start = superblock::OFFSET as usize;
    let changed = if sb.features.metadata_csum() { sb.sealed() } else { sb.encode() };
    bytes[start..start + superblock::SIZE].copy_from_slice(&changed);
    bytes
}

/// Adds one inode to the orphan file, with or without the feature flag for it.
fn with_orphan(mutator: &Mutator, present: bool, ino: u32) -> Vec<u8> {
    let mut bytes = with_superblock(mutator, |sb| {
        if present {
            sb.features.ro_compat |= Features::ORPHAN_PRESENT;
        }
    });
    let device = MemDevice::new(bytes.len() as u64);
    device.write_at(0, &bytes).expect("the image fits the memory made for it");
    let volume = Volume::open_read_only(Arc::new(device), &OpenOptions::default()).expect("a sound image");
    let sb = volume.superblock().clone();
    let file = volume.inode(Ino(sb.orphan_file_inum)).expect("the orphan file");
    let mut place = 0;
    let walked = volume.files().extents(&file, 0, 1, &mut |extent| {
        place = extent.physical;
        None
    });
    walked.expect("its map");
    let bs = volume.geometry().block_size;
    let block = &mut bytes[place as usize..place as usize + bs.len()];
    block[..4].copy_from_slice(&ino.to_le_bytes());
    let seed = orphan_file::inode_seed(sb.fs_seed(), file.ino(), file.fields().generation);
    orphan_file::seal(seed, extant_base::Pblk(place / bs.bytes()), block);
    bytes
}

/// Renames one entry to the name of another entry in the same directory; both names have the same length.
fn with_name_twice(mutator: &Mutator) -> Vec<u8> {
    let mut bytes = mutator.sound().to_vec();
    let name = b"name-060-";
    let leaf = mutator.regions().iter().find(|region| {
        let is_leaf = matches!(region.sealed, extant_hostile::Sealed::DirLeaf(_));
        is_leaf && bytes[region.offset..region.offset + region.len].windows(9).any(|window| window == name)
    });
    let leaf = *leaf.expect("a leaf holds the name");
    let block = &mut bytes[leaf.offset..leaf.offset + leaf.len];
    let at = block.windows(9).position(|window| window == name).expect("the name");
    block[at..at + 9].copy_from_slice(b"name-000-");
    extant_hostile::seal(&mut bytes, mutator.superblock(), &leaf);
    bytes
}

fn by_debugfs(mutator: &Mutator, requests: &[&str]) -> Vec<u8> {
    let dir = extant_testkit::scratch();
    let path = dir.path().join("image");
    std::fs::write(&path, mutator.sound()).expect("the image is written");
    for request in requests {
        let ran = extant_testkit::command("debugfs").args(["-w", "-R", request]).arg(&path).output();
        assert!(ran.expect("debugfs").status.success(), "{request}");
    }
    std::fs::read(&path).expect("the image")
}
