//! Gives every file of an image a wrong link count, with a right checksum: what `bench/check.sh
//! repair_million` repairs.

use extant_base::{Group, Ino, Pblk};
use extant_device::{Device, FileDevice};
use extant_ondisk::group_desc::GroupDesc;
use extant_ondisk::inode::{inode_seed, seal};
use extant_ondisk::{Geometry, Superblock, superblock};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("wrong_counts IMAGE")?;
    let device = FileDevice::open(std::path::Path::new(&path), true)?;
    let mut bytes = [0; superblock::SIZE];
    device.read_at(superblock::OFFSET, &mut bytes)?;
    let sb = Superblock::decode(&bytes)?;
    let geometry = Geometry::new(&sb)?;
    let mut changed = 0u64;
    for group in (0..geometry.groups).map(Group) {
        let (block, at) = geometry.descriptor_place(group);
        let mut desc = vec![0; geometry.desc_size];
        device.read_at(block.0 * geometry.block_size.bytes() + at as u64, &mut desc)?;
        let table = Pblk(GroupDesc::decode(&desc)?.inode_table).0 * geometry.block_size.bytes();
        let mut inodes = vec![0; geometry.inodes_per_group as usize * geometry.inode_size];
        device.read_at(table, &mut inodes)?;
        for (bytes, number) in
            inodes.chunks_exact_mut(geometry.inode_size).zip(group.0 * geometry.inodes_per_group + 1..)
        {
            let is_file = bytes[1] & 0xF0 == 0x80 && bytes[0x1A] == 1;
            if number >= sb.first_ino && is_file {
                bytes[0x1A] = 7;
                if sb.seals_inodes() {
                    let generation = u32::from_le_bytes([bytes[0x64], bytes[0x65], bytes[0x66], bytes[0x67]]);
                    seal(bytes, inode_seed(sb.fs_seed(), Ino(number), generation));
                }
                changed += 1;
            }
        }
        device.write_at(table, &inodes)?;
    }
    device.flush()?;
    println!("{changed} link counts are wrong now");
    Ok(())
}
