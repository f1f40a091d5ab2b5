//! Finds the journal, before any other structure of the file system is verified.
//!
//! Source: kernel Documentation/filesystems/ext4/journal.rst.

use extant_base::{BlockSize, Ino, Lblk, Pblk};
use extant_device::{Device, DeviceFault};
use extant_ondisk::extent::{self, Walker};
use extant_ondisk::filetype::FileType;
use extant_ondisk::group_desc::GroupDesc;
use extant_ondisk::indirect;
use extant_ondisk::inode::{Inode, flags};
use extant_ondisk::{Features, Geometry, Superblock, superblock};

/// Reads bytes of the device.
pub(crate) type Read<'r> = &'r dyn Fn(u64, &mut [u8]) -> Result<(), DeviceFault>;

/// The smallest journal, in blocks.
const BLOCKS_MIN: u64 = 1024;
/// The most map blocks read: no journal needs more, even with one extent per map block.
const MAP_BLOCKS_MAX: u32 = 1 << 17;

/// The journal's blocks, all of them mapped.
#[derive(Debug)]
pub(crate) struct Journal {
    pub(crate) blocks: u32,
    /// First logical block, first physical block, length; in order, without gaps.
    runs: Vec<(u32, u64, u32)>,
    /// The same by physical block.
    by_pblk: Vec<(u64, u32)>,
}

impl Journal {
    /// The address of a block of the journal.
    pub(crate) fn find(&self, lblk: u32) -> Option<Pblk> {
        let at = self.runs.partition_point(|(start, _, len)| start + len <= lblk);
        let (start, pblk, _) = self.runs.get(at)?;
        Some(Pblk(pblk + u64::from(lblk - start)))
    }

    /// The journal's runs in order: first physical block and length.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (Pblk, u32)> + '_ {
        self.runs.iter().map(|(_, pblk, len)| (Pblk(*pblk), *len))
    }

    /// A journal that fills a device of its own: journal block N is device block N.
    pub(crate) fn on_device(blocks: u32) -> Self {
        Self { blocks, runs: vec![(0, 0, blocks)], by_pblk: Vec::new() }
    }

    /// Does this block of the file system belong to the journal?
    pub(crate) fn holds(&self, block: Pblk) -> bool {
        let behind = self.by_pblk.partition_point(|(start, _)| *start <= block.0);
        behind.checked_sub(1).is_some_and(|at| block.0 - self.by_pblk[at].0 < u64::from(self.by_pblk[at].1))
    }
}

/// Does the superblock name a journal on another device?
pub(crate) fn is_external(sb: &Superblock) -> bool {
    sb.journal_inum == 0 && sb.journal_uuid != [0; 16]
}

/// Verifies that `device` holds the file system's journal; returns the block of its journal superblock, and
/// its blocks.
pub(crate) fn external(
    device: &dyn Device,
    sb: &Superblock,
    geometry: &Geometry,
) -> Result<(u32, Journal), String> {
    let mut bytes = [0; superblock::SIZE];
    device.read_at(superblock::OFFSET, &mut bytes).map_err(|fault| fault.to_string())?;
    let own = Superblock::decode(&bytes).map_err(|fault| format!("the journal's device: {fault}"))?;
    if !own.features.has_incompat(Features::JOURNAL_DEV) {
        return Err("the journal's device holds a file system, and no journal".to_owned());
    }
    if own.uuid != sb.journal_uuid {
        let (found, named) = (hex(&own.uuid), hex(&sb.journal_uuid));
        return Err(format!("the device holds the journal {found}, the file system's is {named}"));
    }
    if own.log_block_size != sb.log_block_size {
        return Err("the journal's blocks have another size than the file system's".to_owned());
    }
    let blocks = device.size_bytes() >> geometry.block_size.log2();
    let at = if geometry.block_size == BlockSize::MIN { 2 } else { 1 };
    Ok((at, Journal::on_device(u32::try_from(blocks).unwrap_or(u32::MAX))))
}

fn hex(uuid: &[u8; 16]) -> String {
    uuid.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Maps the journal by its inode.
pub(crate) fn from_inode(read: Read<'_>, sb: &Superblock, geometry: &Geometry) -> Result<Journal, String> {
    let ino = Ino(sb.journal_inum);
    let inode = read_inode(read, ino, geometry)?;
    if FileType::from_mode(inode.mode) != FileType::Regular || inode.links == 0 {
        return Err(format!(
            "inode {ino} with mode {:#o} and {} links is no journal",
            inode.mode, inode.links
        ));
    }
    from_map(read, &inode.block, inode.has_flag(flags::EXTENTS), inode.size, geometry)
}

/// Maps the journal by the backup in the superblock.
pub(crate) fn from_backup(read: Read<'_>, sb: &Superblock, geometry: &Geometry) -> Result<Journal, String> {
    if sb.jnl_backup_type != 1 {
        return Err("the superblock has no backup of the journal's map".to_owned());
    }
    let (i_block, size) = backup(sb);
    let extents = i_block.starts_with(&extent::MAGIC.to_le_bytes());
    from_map(read, &i_block, extents, size, geometry)
}

/// `i_block` and size in the superblock's backup of the journal inode.
pub(crate) fn backup(sb: &Superblock) -> ([u8; 60], u64) {
    let mut i_block = [0; 60];
    for (bytes, word) in i_block.chunks_exact_mut(4).zip(sb.jnl_blocks) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    (i_block, u64::from(sb.jnl_blocks[15]) << 32 | u64::from(sb.jnl_blocks[16]))
}

/// Reads an inode through the primary descriptor of its group.
pub(crate) fn read_inode(read: Read<'_>, ino: Ino, geometry: &Geometry) -> Result<Inode, String> {
    let (group, index) = geometry.inode_place(ino).ok_or_else(|| format!("inode {ino} does not exist"))?;
    let (desc_block, at) = geometry.descriptor_place(group);
    let mut desc = vec![0; geometry.desc_size];
    let offset = geometry.block_size.offset_of(desc_block).and_then(|start| start.checked_add(at as u64));
    read(offset.unwrap_or(u64::MAX), &mut desc).map_err(|fault| fault.to_string())?;
    let desc = GroupDesc::decode(&desc).map_err(|fault| fault.to_string())?;
    let table = geometry.block_size.offset_of(Pblk(desc.inode_table));
    let offset = table.and_then(|table| table.checked_add(u64::from(index) * geometry.inode_size as u64));
    let mut bytes = vec![0; geometry.inode_size];
    read(offset.unwrap_or(u64::MAX), &mut bytes).map_err(|fault| fault.to_string())?;
    Inode::decode(&bytes).map_err(|fault| fault.to_string())
}

fn from_map(
    read: Read<'_>,
    i_block: &[u8; 60],
    extents: bool,
    size: u64,
    geometry: &Geometry,
) -> Result<Journal, String> {
    let blocks = size >> geometry.block_size.log2();
    if blocks < BLOCKS_MIN {
        return Err(format!("a journal has at least {BLOCKS_MIN} blocks, this has {blocks}"));
    }
    let blocks = u32::try_from(blocks.min(geometry.blocks)).unwrap_or(u32::MAX);
    let mut map = Map {
        read,
        block_size: geometry.block_size,
        fs_blocks: geometry.blocks,
        blocks,
        next: 0,
        left: MAP_BLOCKS_MAX,
        runs: Vec::new(),
    };
    if extents {
        map.extents(i_block)?
    } else {
        map.indirect(i_block)?
    }
    if map.next < blocks || u64::from(blocks) < size >> geometry.block_size.log2() {
        return Err(format!("block {} of the journal is not mapped", map.next));
    }
    let mut by_pblk: Vec<(u64, u32)> = map.runs.iter().map(|(_, pblk, len)| (*pblk, *len)).collect();
    by_pblk.sort_unstable();
    if by_pblk.windows(2).any(|pair| pair[0].0 + u64::from(pair[0].1) > pair[1].0) {
        return Err("the journal has a block twice".to_owned());
    }
    Ok(Journal { blocks, runs: map.runs, by_pblk })
}

struct Map<'r> {
    read: Read<'r>,
    block_size: BlockSize,
    fs_blocks: u64,
    blocks: u32,
    next: u32,
    /// Map blocks that may still be read.
    left: u32,
    runs: Vec<(u32, u64, u32)>,
}

impl Map<'_> {
    fn block(&mut self, at: Pblk) -> Result<Vec<u8>, String> {
        self.left = self.left.checked_sub(1).ok_or("the journal's map is too large to be one")?;
        let mut bytes = vec![0; self.block_size.len()];
        let offset = self.block_size.offset_of(at).unwrap_or(u64::MAX);
        (self.read)(offset, &mut bytes).map_err(|fault| fault.to_string())?;
        Ok(bytes)
    }

    /// Adds the next blocks; returns `false` when the journal is complete.
    fn add(&mut self, lblk: u32, pblk: u64, len: u32) -> Result<bool, String> {
        if lblk != self.next {
            return Err(format!("block {} of the journal is not mapped", self.next));
        }
        let len = len.min(self.blocks - self.next);
        if pblk == 0 || pblk.checked_add(len.into()).is_none_or(|end| end > self.fs_blocks) {
            return Err(format!("block {lblk} of the journal is mapped to block {pblk}, past the end"));
        }
        self.next += len;
        match self.runs.last_mut() {
            Some((_, start, old)) if *start + u64::from(*old) == pblk => *old += len,
            _ => self.runs.push((lblk, pblk, len)),
        }
        Ok(self.next < self.blocks)
    }

    fn extents(&mut self, i_block: &[u8; 60]) -> Result<(), String> {
        let mut walker = Walker::new(i_block, None);
        loop {
            match walker.step() {
                extent::Step::NeedBlock(at) => {
                    let bytes = self.block(at)?;
                    walker.supply(Some(&bytes));
                }
                extent::Step::Extent(found) if found.unwritten => {
                    return Err(format!("block {} of the journal is unwritten", found.lblk));
                }
                extent::Step::Extent(found) => {
                    if !self.add(found.lblk, found.start, found.len)? {
                        return Ok(());
                    }
                }
                extent::Step::Damaged { fault, .. } => return Err(fault.to_string()),
                extent::Step::Done => return Ok(()),
            }
        }
    }

    fn indirect(&mut self, i_block: &[u8; 60]) -> Result<(), String> {
        let mut last: Option<(Pblk, Vec<u8>)> = None;
        while self.next < self.blocks {
            let mut step = indirect::lookup(i_block, self.block_size, Lblk(self.next));
            loop {
                match step {
                    indirect::Step::Hole { .. } => {
                        return Err(format!("block {} of the journal is not mapped", self.next));
                    }
                    indirect::Step::Mapped { pblk, len_blocks } => {
                        self.add(self.next, pblk.0, len_blocks)?;
                        break;
                    }
                    indirect::Step::NeedBlock { block, then } => {
                        // Consecutive lookups use the same lowest-level block, so it is kept.
                        let bytes = match last.take() {
                            Some((at, bytes)) if at == block => bytes,
                            _ => self.block(block)?,
                        };
                        step = then.resume(&bytes).map_err(|fault| fault.to_string())?;
                        last = Some((block, bytes));
                    }
                }
            }
        }
        Ok(())
    }
}
