//! The classic block map of files without the EXTENTS flag: twelve direct blocks, then trees of one, two and
//! three levels.
//!
//! ```text
//! i_block (15 le32):  0..12 direct   12 single   13 double   14 triple        0 = hole, at every level
//! a = block size / 4:    12 blocks     + a         + a^2       + a^3
//! ```
//!
//! Owns: the number of indirect blocks that a file needs ([`blocks_needed`]), their bytes ([`encode`]), and
//! the translation of a logical block to a physical one ([`lookup`]). Does **not** own: reading the indirect
//! blocks ([`Step::NeedBlock`] requests them), and choosing their addresses. They have no checksum.
//!
//! Invariants
//! 1. A subtree without mapped blocks has no indirect block: holes cost nothing.
//! 2. Indirect blocks get their addresses in the order of a walk from the start of the file, parents before
//!    children. A writer that assigns rising numbers puts the double block right before its first single
//!    block.
//!
//! Source: kernel Documentation/filesystems/ext4/blockmap.rst.

use std::fmt;

use extant_base::{BlockSize, Lblk, Malformed, Pblk};

const STRUCTURE: &str = "indirect block";
const DIRECT: u64 = 12;

/// Maximum number of logical blocks of a block-mapped file: the reach of three levels, limited to 2^32 - 1.
#[must_use]
pub fn max_blocks(block_size: BlockSize) -> u64 {
    let a = entries_per_block(block_size);
    (DIRECT + a + a * a + a * a * a).min(u64::from(u32::MAX))
}

/// Block numbers in one indirect block.
fn entries_per_block(block_size: BlockSize) -> u64 {
    block_size.bytes() / 4
}

fn log2_entries(block_size: BlockSize) -> u32 {
    block_size.log2() - 2
}

/// The tree that contains a logical block: its number of levels (1 to 3), and the block's index among the
/// tree's data blocks. `None` for direct blocks and blocks past the end.
fn tree_of(block_size: BlockSize, lblk: u64) -> Option<(u32, u64)> {
    let mut index = lblk.checked_sub(DIRECT)?;
    for levels in 1..=3 {
        let reach = 1u64 << (levels * log2_entries(block_size));
        if index < reach {
            return Some((levels, index));
        }
        index -= reach;
    }
    None
}

/// A step of the translation of a logical block to a physical one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The block is not mapped.
    Hole {
        /// Blocks from the requested one that are known to be unmapped; there may be more.
        len_blocks: u32,
    },
    /// The block is mapped. The number is as on disk: the caller checks that the file system has such a
    /// block.
    Mapped {
        /// The physical block.
        pblk: Pblk,
        /// Blocks from the requested one that are known to be contiguous on the device; there may be more.
        len_blocks: u32,
    },
    /// Read this indirect block, then [`resume`](Walk::resume).
    NeedBlock {
        /// The indirect block.
        block: Pblk,
        /// The continuation.
        then: Walk,
    },
}

/// A lookup that waits for an indirect block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Walk {
    block_size: BlockSize,
    /// 0: the entries of the requested block are data blocks.
    level: u32,
    /// Index of the target among the data blocks below the requested block.
    index: u64,
}

/// Starts the lookup of logical block `lblk` in a file's `i_block`. A block past [`max_blocks`] is in a hole.
#[must_use]
pub fn lookup(i_block: &[u8; 60], block_size: BlockSize, lblk: Lblk) -> Step {
    let lblk = u64::from(lblk.0);
    if lblk < DIRECT {
        return leaf_step(&i_block[4 * lblk as usize..48]);
    }
    let Some((levels, index)) = tree_of(block_size, lblk) else {
        return Step::Hole { len_blocks: u32::MAX };
    };
    let root = (DIRECT as usize + levels as usize - 1) * 4;
    let walk = Walk { block_size, level: levels, index };
    walk.descend(get32(i_block, root))
}

impl Walk {
    /// Continues with the bytes of the requested block.
    ///
    /// # Errors
    /// The bytes are not one block.
    pub fn resume(self, bytes: &[u8]) -> Result<Step, Malformed> {
        Malformed::unless(
            bytes.len() == self.block_size.len(),
            STRUCTURE,
            "must be one file-system block",
            bytes.len() as u64,
        )?;
        let slot = (self.index >> (self.level * log2_entries(self.block_size))) as usize;
        if self.level == 0 {
            return Ok(leaf_step(&bytes[4 * slot..]));
        }
        Ok(self.descend(get32(bytes, 4 * slot)))
    }

    /// Levels below the requested block: 0 if its entries are data blocks, 2 in the triple root.
    #[must_use]
    pub fn level(&self) -> u32 {
        self.level
    }

    /// Goes down one level, through the entry `child` of a block at `self.level` (or of `i_block`).
    fn descend(self, child: u32) -> Step {
        let below = 1u64 << (self.level * log2_entries(self.block_size));
        let index = self.index & (below - 1);
        match child {
            0 => Step::Hole { len_blocks: u32::try_from(below - index).unwrap_or(u32::MAX) },
            child => Step::NeedBlock {
                block: Pblk(u64::from(child)),
                then: Walk { level: self.level - 1, index, ..self },
            },
        }
    }
}

/// The final step, at the first of `entries`, which are data blocks.
fn leaf_step(entries: &[u8]) -> Step {
    let (entries, _) = entries.as_chunks::<4>();
    let mut numbers = entries.iter().map(|entry| u64::from(u32::from_le_bytes(*entry)));
    let first = numbers.next().unwrap_or(0);
    if first == 0 {
        return Step::Hole { len_blocks: 1 + numbers.take_while(|number| *number == 0).count() as u32 };
    }
    let alike = numbers.zip(first + 1..).take_while(|(number, next)| number == next).count();
    Step::Mapped { pblk: Pblk(first), len_blocks: 1 + alike as u32 }
}

/// The used entries of an indirect block: position and block number. For walks over whole files, where
/// [`Walk::level`] gives the kind of the blocks.
pub fn entries(block: &[u8]) -> impl Iterator<Item = (usize, Pblk)> + '_ {
    let (entries, _) = block.as_chunks::<4>();
    entries
        .iter()
        .enumerate()
        .map(|(at, entry)| (at, Pblk(u64::from(u32::from_le_bytes(*entry)))))
        .filter(|(_, block)| block.0 != 0)
}

/// Data blocks that are contiguous in the file and on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DataExtent {
    /// First logical block.
    pub lblk: Lblk,
    /// First physical block. It is not 0, and the whole extent is below 2^32.
    pub pblk: Pblk,
    /// Length in blocks; not 0.
    pub len_blocks: u32,
}

/// Why a file cannot be mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MapError {
    /// Runs are empty, overlap or are out of order.
    Unordered {
        /// Start of the bad run.
        lblk: Lblk,
    },
    /// The file exceeds the reach of three levels.
    TooLong,
    /// A physical block is 0, or needs more than 32 bits.
    BadBlock {
        /// The block, or the first of the extent.
        pblk: Pblk,
    },
    /// There are fewer addresses than indirect blocks.
    NoPlace,
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unordered { lblk } => {
                write!(f, "the run at logical block {lblk} is empty, overlaps or is out of order")
            }
            Self::TooLong => f.write_str("the file is too long for a block map without extents"),
            Self::BadBlock { pblk } => write!(f, "block {pblk} cannot stand in a block map without extents"),
            Self::NoPlace => f.write_str("no place for an indirect block"),
        }
    }
}

impl std::error::Error for MapError {}

/// Checks the order and the reach of successive runs.
struct RunChecker {
    max: u64,
    end: u64,
}

impl RunChecker {
    fn new(block_size: BlockSize) -> Self {
        Self { max: max_blocks(block_size), end: 0 }
    }

    /// Checks a run, and returns it as a range of logical blocks.
    fn next(&mut self, lblk: Lblk, len_blocks: u32) -> Result<std::ops::Range<u64>, MapError> {
        let start = u64::from(lblk.0);
        if len_blocks == 0 || start < self.end {
            return Err(MapError::Unordered { lblk });
        }
        self.end = start + u64::from(len_blocks);
        if self.end > self.max {
            return Err(MapError::TooLong);
        }
        Ok(start..self.end)
    }
}

/// The number of indirect blocks of a file with these logical runs (start, length in blocks; rising).
///
/// # Errors
/// [`MapError::Unordered`] or [`MapError::TooLong`].
pub fn blocks_needed(
    block_size: BlockSize,
    runs: impl IntoIterator<Item = (Lblk, u32)>,
) -> Result<u64, MapError> {
    let mut checker = RunChecker::new(block_size);
    let mut needed = 0;
    // The last counted block of each level: the number of levels of its tree, and its index in the tree.
    let mut newest = [None; 3];
    for (lblk, len_blocks) in runs {
        let mut run = checker.next(lblk, len_blocks)?;
        run.start = run.start.max(DIRECT);
        while run.start < run.end {
            let Some((levels, index)) = tree_of(block_size, run.start) else { return Err(MapError::TooLong) };
            let left = (1u64 << (levels * log2_entries(block_size))) - index;
            let len = left.min(run.end - run.start);
            for level in 0..levels {
                let shift = (level + 1) * log2_entries(block_size);
                let (first, last) = (index >> shift, (index + len - 1) >> shift);
                let known = newest[level as usize] == Some((levels, first));
                needed += last - first + 1 - u64::from(known);
                newest[level as usize] = Some((levels, last));
            }
            run.start += len;
        }
    }
    Ok(needed)
}

/// A file's block map, ready to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockMap {
    /// The inode's `i_block`.
    pub i_block: [u8; 60],
    /// The indirect blocks, in the order in which they got their addresses.
    pub blocks: Vec<(Pblk, Vec<u8>)>,
}

/// Encodes the map of a file's data. `places` yields the address of each indirect block, [`blocks_needed`] in
/// total, in the order of invariant 2.
///
/// # Errors
/// Any [`MapError`].
pub fn encode(
    block_size: BlockSize,
    extents: impl IntoIterator<Item = DataExtent>,
    places: impl Iterator<Item = Pblk>,
) -> Result<BlockMap, MapError> {
    let mut blocks = Vec::new();
    let i_block = encode_into(block_size, extents, places, |order, place, bytes| {
        blocks.push((order, place, bytes.to_vec()));
    })?;
    blocks.sort_unstable_by_key(|(order, _, _)| *order);
    Ok(BlockMap { i_block, blocks: blocks.into_iter().map(|(_, place, bytes)| (place, bytes)).collect() })
}

/// Like [`encode`], but keeps no blocks: `emit` gets each block when it is complete (children before
/// parents), with its position in the order of addresses. It holds three blocks in memory, for any file size.
///
/// # Errors
/// Any [`MapError`]; the blocks emitted before are invalid then.
pub fn encode_into(
    block_size: BlockSize,
    extents: impl IntoIterator<Item = DataExtent>,
    places: impl Iterator<Item = Pblk>,
    emit: impl FnMut(u64, Pblk, &[u8]),
) -> Result<[u8; 60], MapError> {
    let mut checker = RunChecker::new(block_size);
    let mut encoder =
        Encoder { block_size, i_block: [0; 60], open: [None, None, None], taken: 0, places, emit };
    for DataExtent { lblk, pblk, len_blocks } in extents {
        let mut run = checker.next(lblk, len_blocks)?;
        let fits = pblk.checked_add(u64::from(len_blocks)).is_some_and(|end| end.0 <= 1 << 32);
        if pblk.0 == 0 || !fits {
            return Err(MapError::BadBlock { pblk });
        }
        let mut data = pblk.0 as u32..=u32::MAX;
        while run.start < DIRECT.min(run.end) {
            put32(&mut encoder.i_block, run.start as usize, &mut data);
            run.start += 1;
        }
        while run.start < run.end {
            let Some((levels, index)) = tree_of(block_size, run.start) else { return Err(MapError::TooLong) };
            let leaf = encoder.leaf(levels, index)?;
            let a = entries_per_block(block_size);
            let first = index % a;
            let len = (a - first).min(run.end - run.start);
            for slot in first..first + len {
                put32(leaf, slot as usize, &mut data);
            }
            run.start += len;
        }
    }
    for level in 0..3 {
        encoder.close(level);
    }
    Ok(encoder.i_block)
}

/// An indirect block that is being filled.
struct OpenBlock {
    /// The number of levels of its tree, and its index among the blocks of its level.
    name: (u32, u64),
    order: u64,
    place: Pblk,
    bytes: Vec<u8>,
}

struct Encoder<P, E> {
    block_size: BlockSize,
    i_block: [u8; 60],
    /// By level: 0 holds data blocks.
    open: [Option<OpenBlock>; 3],
    taken: u64,
    places: P,
    emit: E,
}

impl<P: Iterator<Item = Pblk>, E: FnMut(u64, Pblk, &[u8])> Encoder<P, E> {
    /// The lowest indirect block above data block `index` of the tree with `levels` levels. Opens it, and
    /// those above it, if they are not open yet.
    fn leaf(&mut self, levels: u32, index: u64) -> Result<&mut [u8], MapError> {
        let log2 = log2_entries(self.block_size);
        for level in (0..levels).rev() {
            let at = level as usize;
            let name = (levels, index >> ((level + 1) * log2));
            if self.open[at].as_ref().is_some_and(|open| open.name == name) {
                continue;
            }
            for lower in 0..=at {
                self.close(lower);
            }
            let place = self.places.next().ok_or(MapError::NoPlace)?;
            let number = u32::try_from(place.0).ok().filter(|number| *number != 0);
            let number = number.ok_or(MapError::BadBlock { pblk: place })?;
            let mut number = number..=number;
            match self.open.get_mut(at + 1) {
                Some(Some(parent)) if level + 1 < levels => {
                    let slot = name.1 % entries_per_block(self.block_size);
                    put32(&mut parent.bytes, slot as usize, &mut number);
                }
                _ => put32(&mut self.i_block, DIRECT as usize + at, &mut number),
            }
            let bytes = vec![0; self.block_size.len()];
            self.open[at] = Some(OpenBlock { name, order: self.taken, place, bytes });
            self.taken += 1;
        }
        Ok(self.open[0].as_mut().map_or(&mut [], |open| &mut open.bytes))
    }

    fn close(&mut self, level: usize) {
        if let Some(open) = self.open[level].take() {
            (self.emit)(open.order, open.place, &open.bytes);
        }
    }
}

/// Writes the next of `numbers` (consecutive block numbers) to entry `slot`.
fn put32(entries: &mut [u8], slot: usize, numbers: &mut std::ops::RangeInclusive<u32>) {
    if let Some(number) = numbers.next() {
        entries[4 * slot..4 * slot + 4].copy_from_slice(&number.to_le_bytes());
    }
}

fn get32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, os::unix::fs::FileExt};

    use proptest::prelude::*;

    use super::*;
    use crate::mmp::real_image::RealImage;

    /// Looks up `lblk`, with `read` as the source of blocks.
    fn walk(
        i_block: &[u8; 60],
        block_size: BlockSize,
        lblk: u32,
        mut read: impl FnMut(Pblk) -> Vec<u8>,
    ) -> (Step, u32) {
        let (mut step, mut reads) = (lookup(i_block, block_size, Lblk(lblk)), 0);
        while let Step::NeedBlock { block, then } = step {
            step = then.resume(&read(block)).unwrap();
            reads += 1;
        }
        (step, reads)
    }

    fn extent(lblk: u32, pblk: u64, len_blocks: u32) -> DataExtent {
        DataExtent { lblk: Lblk(lblk), pblk: Pblk(pblk), len_blocks }
    }

    fn runs(extents: &[DataExtent]) -> impl Iterator<Item = (Lblk, u32)> + '_ {
        extents.iter().map(|extent| (extent.lblk, extent.len_blocks))
    }

    /// The blocks of a file, as `debugfs stat` lists them: its data, and the addresses of its indirect blocks
    /// in order.
    fn listed(stat: &str) -> (Vec<DataExtent>, Vec<Pblk>) {
        let (mut data, mut places) = (Vec::new(), Vec::new());
        let list = stat.split("BLOCKS:\n").nth(1).unwrap().split("TOTAL").next().unwrap();
        for item in list.split(", ").map(str::trim) {
            let (what, place) = item.trim_start_matches('(').split_once("):").unwrap();
            let place: u64 = place.split('-').next().unwrap().parse().unwrap();
            if what.ends_with("IND") {
                places.push(Pblk(place));
                continue;
            }
            let (first, last) = what.split_once('-').unwrap_or((what, what));
            let (first, last): (u32, u32) = (first.parse().unwrap(), last.parse().unwrap());
            data.push(extent(first, place, last - first + 1));
        }
        (data, places)
    }

    #[test]
    fn a_sparse_file_of_mke2fs_is_mapped_byte_for_byte() {
        let source = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(source.path().join("f")).unwrap();
        // Data in every tree, next to and far from each other, in blocks of 1 KiB.
        for (lblk, len) in
            [(0, 30), (200, 200), (12 + 256 + 300, 700), (12 + 256 + 65_536 + 5, 3), (200_000, 600)]
        {
            file.write_all_at(&vec![0x5A; len * 1024], lblk * 1024).unwrap();
        }
        let from = source.path().to_str().unwrap();
        let image = RealImage::mke2fs(64 << 20, &["-b", "1024", "-O", "^extents,^64bit", "-d", from]);
        let (data, places) = listed(&image.debugfs("stat /f"));
        assert!(places.len() > 10);
        assert_eq!(blocks_needed(BlockSize::MIN, runs(&data)), Ok(places.len() as u64));

        let map = encode(BlockSize::MIN, data.iter().copied(), places.iter().copied()).unwrap();
        assert_eq!(map.blocks.len(), places.len());
        for ((place, bytes), listed) in map.blocks.iter().zip(&places) {
            assert_eq!(place, listed);
            assert!(*bytes == image.read(place.0 * 1024, 1024), "indirect block {place}");
        }
        let inode = image.debugfs("imap /f");
        let at: Vec<u64> = inode
            .split(|c: char| !c.is_ascii_hexdigit() && c != 'x')
            .filter_map(|word| match word.strip_prefix("0x") {
                Some(hex) => u64::from_str_radix(hex, 16).ok(),
                None => word.parse().ok(),
            })
            .collect();
        let [.., block, offset] = at[..] else { panic!("{inode}") };
        assert_eq!(image.read(block * 1024 + offset + 0x28, 60), map.i_block);

        for extent in data {
            for i in [0, extent.len_blocks - 1] {
                let read = |block: Pblk| image.read(block.0 * 1024, 1024);
                let (step, _) = walk(&map.i_block, BlockSize::MIN, extent.lblk.0 + i, read);
                let Step::Mapped { pblk, .. } = step else { panic!("{step:?}") };
                assert_eq!(pblk.0, extent.pblk.0 + u64::from(i));
            }
        }
    }

    #[test]
    fn holes_cost_nothing_and_parents_come_first() {
        let none = std::iter::empty;
        let direct = encode(BlockSize::MIN, [extent(3, 100, 9)], none()).unwrap();
        assert!(direct.blocks.is_empty());
        let far = 12 + 256 + 65_536;
        let places = (50..).map(Pblk);
        let map = encode(BlockSize::MIN, [extent(20, 100, 1), extent(far, 200, 257)], places).unwrap();
        // single; triple, double, single, single
        assert_eq!(map.blocks.iter().map(|(place, _)| place.0).collect::<Vec<_>>(), [50, 51, 52, 53, 54]);
        assert_eq!((get32(&map.i_block, 48), get32(&map.i_block, 52), get32(&map.i_block, 56)), (50, 0, 51));
        let used = |i: usize| entries(&map.blocks[i].1).collect::<Vec<_>>();
        assert_eq!(used(0), [(8, Pblk(100))]);
        assert_eq!(used(1), [(0, Pblk(52))]);
        assert_eq!(used(2), [(0, Pblk(53)), (1, Pblk(54))]);
        assert_eq!(used(4), [(0, Pblk(456))]);
    }

    #[test]
    fn steps_say_how_far_they_are_good() {
        let map =
            encode(BlockSize::MIN, [extent(2, 100, 4), extent(12, 300, 256)], (50..).map(Pblk)).unwrap();
        let read = |block: Pblk| map.blocks.iter().find(|(place, _)| *place == block).unwrap().1.clone();
        let step = |lblk| walk(&map.i_block, BlockSize::MIN, lblk, read);
        assert_eq!(step(0), (Step::Hole { len_blocks: 2 }, 0));
        assert_eq!(step(3), (Step::Mapped { pblk: Pblk(101), len_blocks: 3 }, 0));
        assert_eq!(step(6), (Step::Hole { len_blocks: 6 }, 0));
        assert_eq!(step(13), (Step::Mapped { pblk: Pblk(301), len_blocks: 255 }, 1));
        assert_eq!(step(270), (Step::Hole { len_blocks: 65_536 - 2 }, 0));
        assert_eq!(step(u32::MAX), (Step::Hole { len_blocks: u32::MAX }, 0));
    }

    #[test]
    fn what_cannot_be_mapped_is_refused() {
        let encode = |extents: &[DataExtent]| {
            encode(BlockSize::MIN, extents.iter().copied(), (50..52).map(Pblk)).unwrap_err()
        };
        let unordered = |lblk| MapError::Unordered { lblk: Lblk(lblk) };
        assert_eq!(encode(&[extent(4, 9, 2), extent(5, 20, 1)]), unordered(5));
        assert_eq!(encode(&[extent(4, 9, 0)]), unordered(4));
        assert_eq!(encode(&[extent(0, 0, 1)]), MapError::BadBlock { pblk: Pblk(0) });
        assert_eq!(
            encode(&[extent(0, u64::from(u32::MAX), 2)]),
            MapError::BadBlock { pblk: Pblk(u32::MAX.into()) }
        );
        assert_eq!(encode(&[extent(17_000_000, 1, 1)]), MapError::TooLong);
        assert_eq!(encode(&[extent(12, 100, 400)]), MapError::NoPlace);
        assert_eq!(blocks_needed(BlockSize::MIN, [(Lblk(u32::MAX), 1)]), Err(MapError::TooLong));
        assert_eq!(max_blocks(BlockSize::MIN), 12 + 256 + 65_536 + 16_777_216);
        assert_eq!(max_blocks(BlockSize::MAX), u64::from(u32::MAX));
    }

    proptest! {
        #[test]
        fn every_block_is_found_again(
            log in 0u32..=6,
            pieces in prop::collection::vec((0u32..20_000, 1u32..600), 1..12),
            stretch in 0u32..3,
        ) {
            let block_size = BlockSize::from_log(log).unwrap();
            let (mut extents, mut lblk, mut pblk) = (Vec::new(), 0u32, 1_000_000);
            for (gap, len) in pieces {
                lblk += gap * [0, 1, 40][stretch as usize];
                extents.push(extent(lblk, pblk, len));
                lblk += len;
                pblk += u64::from(len) + 1;
            }
            let needed = blocks_needed(block_size, runs(&extents)).unwrap();
            let map = encode(block_size, extents.iter().copied(), (1..).map(Pblk)).unwrap();
            prop_assert_eq!(map.blocks.len() as u64, needed);
            let blocks: HashMap<Pblk, Vec<u8>> = map.blocks.into_iter().collect();
            prop_assert_eq!(blocks.len() as u64, needed);
            let mut at = 0;
            for extent in &extents {
                // The hole before the extent and the extent itself, in as few steps as the walker allows.
                while at < extent.lblk.0 {
                    let (step, _) = walk(&map.i_block, block_size, at, |block| blocks[&block].clone());
                    let Step::Hole { len_blocks } = step else { panic!("{step:?} at {at}") };
                    prop_assert!(len_blocks > 0 && at + len_blocks <= extent.lblk.0);
                    at += len_blocks;
                }
                let end = extent.lblk.0 + extent.len_blocks;
                while at < end {
                    let (step, _) = walk(&map.i_block, block_size, at, |block| blocks[&block].clone());
                    let Step::Mapped { pblk, len_blocks } = step else { panic!("{step:?} at {at}") };
                    prop_assert_eq!(pblk.0, extent.pblk.0 + u64::from(at - extent.lblk.0));
                    prop_assert!(len_blocks > 0 && at + len_blocks <= end);
                    at += len_blocks;
                }
            }
        }

        #[test]
        fn walking_any_bytes_ends(
            i_block in prop::collection::vec(any::<u8>(), 60),
            block in prop::collection::vec(any::<u8>(), 1024),
            lblk in prop_oneof![0u32..70_000, any::<u32>()],
        ) {
            let i_block: [u8; 60] = i_block.try_into().unwrap();
            let (_, reads) = walk(&i_block, BlockSize::MIN, lblk, |_| block.clone());
            prop_assert!(reads <= 3);
            if let Step::NeedBlock { then, .. } = lookup(&i_block, BlockSize::MIN, Lblk(lblk)) {
                prop_assert!(then.resume(&block[1..]).is_err());
            }
            let _ = lookup(&i_block, BlockSize::MAX, Lblk(lblk));
            prop_assert!(entries(&block[3..]).count() <= 255);
        }
    }
}
