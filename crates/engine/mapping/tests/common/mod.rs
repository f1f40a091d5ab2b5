//! Opens an image and reads inodes with ondisk's structures alone, in place of the layers above the crate
//! under test.

#![allow(dead_code)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use extant_base::{Ino, Pblk};
use extant_buffer::{Buffers, Kind, Owner};
use extant_device::{Device, FileDevice};
use extant_memory::Budget;
use extant_ondisk::extent::{Step, Walker};
use extant_ondisk::group_desc::GroupDesc;
use extant_ondisk::inode::{self, Inode, inode_seed};
use extant_ondisk::{Geometry, Superblock, superblock};

/// An image, opened for reading.
pub(crate) struct Image {
    pub(crate) sb: Superblock,
    pub(crate) geometry: Geometry,
    pub(crate) buffers: Arc<Buffers>,
}

impl Image {
    pub(crate) fn open(path: &Path) -> Self {
        let device = FileDevice::open_read_only(path).unwrap();
        let mut bytes = [0; superblock::SIZE];
        device.read_at(superblock::OFFSET, &mut bytes).unwrap();
        let sb = Superblock::decode(&bytes).unwrap();
        let geometry = Geometry::new(&sb).unwrap();
        let buffers =
            Buffers::new(Arc::new(device), geometry.block_size, geometry.blocks, &Budget::new(32 << 20));
        Self { sb, geometry, buffers }
    }

    fn block(&self, block: Pblk) -> extant_buffer::Buffer {
        self.buffers.get(block, Owner { kind: Kind::Other, ino: 0 }, |_| Ok(())).unwrap()
    }

    /// The inode, and all its bytes.
    pub(crate) fn inode(&self, ino: u64) -> (Inode, Vec<u8>) {
        let (table, at) = self.inode_place(ino);
        let bytes = self.block(table)[at..at + self.geometry.inode_size].to_vec();
        (Inode::decode(&bytes).unwrap(), bytes)
    }

    /// The inode's block, and its offset in the block.
    pub(crate) fn inode_place(&self, ino: u64) -> (Pblk, usize) {
        let (group, index) = self.geometry.inode_place(Ino(ino as u32)).unwrap();
        let (block, at) = self.geometry.descriptor_place(group);
        let desc = GroupDesc::decode(&self.block(block)[at..at + self.geometry.desc_size]).unwrap();
        let per_block = self.geometry.inodes_per_block();
        let table = Pblk(desc.inode_table + u64::from(index / per_block));
        (table, (index % per_block) as usize * self.geometry.inode_size)
    }

    /// Writes the inode's bytes into the image at `path`, with their checksum.
    pub(crate) fn write_inode(&self, path: &Path, ino: u64, mut bytes: Vec<u8>) {
        let inode = Inode::decode(&bytes).unwrap();
        if let Some(seed) = self.seed(ino, &inode) {
            inode::seal(&mut bytes, seed);
        }
        let (table, at) = self.inode_place(ino);
        self.write(path, table, at, &bytes);
    }

    /// Writes bytes of a block into the image at `path`.
    pub(crate) fn write(&self, path: &Path, block: Pblk, at: usize, bytes: &[u8]) {
        let file = File::options().write(true).open(path).unwrap();
        file.write_all_at(bytes, block.0 * self.geometry.block_size.bytes() + at as u64).unwrap();
    }

    /// The seed of the inode's checksums, if the file system has them.
    pub(crate) fn seed(&self, ino: u64, inode: &Inode) -> Option<u32> {
        let has = self.sb.features.metadata_csum();
        has.then(|| inode_seed(self.sb.fs_seed(), Ino(ino as u32), inode.generation))
    }

    /// The physical block of each block of an extent-mapped file.
    pub(crate) fn blocks_of(&self, ino: u64) -> Vec<Option<Pblk>> {
        let (inode, _) = self.inode(ino);
        let mut blocks = vec![None; self.geometry.block_size.blocks_for(inode.size) as usize];
        let mut walker = Walker::new(&inode.block, self.seed(ino, &inode));
        loop {
            match walker.step() {
                Step::NeedBlock(block) => walker.supply(Some(&self.block(block))),
                Step::Extent(extent) => {
                    for i in 0..extent.len {
                        blocks[(extent.lblk + i) as usize] = Some(Pblk(extent.start + u64::from(i)));
                    }
                }
                Step::Damaged { fault, .. } => panic!("{fault}"),
                Step::Done => return blocks,
            }
        }
    }

    /// The bytes of an extent-mapped file.
    pub(crate) fn read(&self, ino: u64) -> Vec<u8> {
        let size = self.inode(ino).0.size as usize;
        let mut bytes = Vec::new();
        for block in self.blocks_of(ino) {
            match block {
                Some(block) => bytes.extend_from_slice(&self.block(block)),
                None => bytes.resize(bytes.len() + self.geometry.block_size.len(), 0),
            }
        }
        bytes.truncate(size);
        bytes
    }
}
