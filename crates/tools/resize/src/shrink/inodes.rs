//! Inodes get other numbers: those of groups that go, free ones in groups that stay.
//!
//! ```text
//! scan: every directory and attribute -> the places that have the number of an inode that moves
//! for each such inode: its bytes, names and checksums get the new number   } as many as fit the journal,
//!                      both inode bitmaps, the superblock's fields         } then a switch
//! ```
//!
//! The checksums of an inode, of its extent tree and of its directory blocks depend on its number. All
//! changes for one inode are in the same switch, so no name ever leads to a free inode.
//!
//! Owns: new numbers, and what has the old ones. Does **not** own: the blocks of files, which
//! [`Mover`] moves afterwards.
//!
//! Invariants
//! 1. INV-RZ4: the places that the scan finds stay valid, because no block moves before the last inode has
//!    its new number.
//! 2. A new number is at least the first one that is not reserved.
//!
//! Source: kernel Documentation/filesystems/ext4/{directory,attributes,inodes,checksums}.rst.

use std::collections::{BTreeMap, HashMap, HashSet};

use extant_base::le::{put_u32, u16_at, u32_at};
use extant_base::{Ino, Pblk};
use extant_ondisk::bitmap::GroupBitmap;
use extant_ondisk::dirent::{self, DirFormat};
use extant_ondisk::extent::{self, Step, Walker};
use extant_ondisk::filetype::FileType;
use extant_ondisk::group_desc::{BLOCK_UNINIT, INODE_UNINIT};
use extant_ondisk::htree::{DxFormat, DxKind};
use extant_ondisk::inode::{self, Inode, flags};
use extant_ondisk::xattr::{self, AttrValue, StoredAttr};
use extant_ondisk::{Features, orphan_file};

use super::{GENERATION_AT, MAP, Mover};
use crate::fault::ResizeFault;
use crate::fs::Fs;
use crate::plan::PlanFault;

/// Byte offset of `..` in the first block of a directory.
const DOTDOT_AT: usize = 12;
/// Bytes of an entry of the attributes before the number of the inode that has the value.
const VALUE_INODE_AT: usize = 4;

/// A place that has the number of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// A byte of a directory's block. The directory has the number that it had during the scan.
    Entry { block: u64, at: u32, dir: Ino },
    /// A byte of an inode: an inline directory, or an attribute. The number is that of the scan, too.
    Body { ino: Ino, at: u32 },
    /// A byte of an attribute block.
    Attribute { block: u64, at: u32 },
}

/// What has the numbers of the inodes that move.
#[derive(Default)]
struct References {
    /// By the old number.
    places: HashMap<u32, Vec<Place>>,
    /// The generation of each directory that has such entries.
    generations: HashMap<u32, u32>,
}

/// The numbers of inodes that move: old and new ones.
pub(super) type Numbers = BTreeMap<u32, u32>;

/// A map's blocks.
#[derive(Default)]
struct Map {
    /// Nodes of an extent tree, without the root.
    nodes: Vec<u64>,
    /// Data, in order.
    data: Vec<u64>,
}

impl Fs {
    fn dir_format(&self, has_hashes: bool) -> DirFormat {
        let format = DirFormat::new(self.geometry.block_size, &self.sb.features, self.sb.inodes_count);
        DirFormat { hash_in_dirent: has_hashes, ..format }
    }

    /// The inodes in use of a group: their numbers and bytes.
    fn inodes_of(&self, group: u32) -> Result<Vec<(Ino, Vec<u8>)>, ResizeFault> {
        let desc = self.desc(group)?;
        if desc.has_flag(INODE_UNINIT) {
            return Ok(Vec::new());
        }
        let per_group = self.geometry.inodes_per_group;
        let used = per_group - desc.itable_unused.min(per_group);
        let bitmap = self.inode_bitmap(group, &desc)?;
        let size = self.geometry.inode_size;
        let mut table = vec![0; used as usize * size];
        self.device.read_at(desc.inode_table << self.geometry.block_size.log2(), &mut table)?;
        let numbers = (0..used).map(|index| (index, Ino(group * per_group + index + 1)));
        let all = numbers.zip(table.chunks_exact(size));
        let used =
            all.filter(|((index, _), bytes)| bitmap.test(*index) && bytes.iter().any(|byte| *byte != 0));
        Ok(used.map(|((_, ino), bytes)| (ino, bytes.to_vec())).collect())
    }
}

impl Mover<'_> {
    /// Gives inodes new numbers, which are free.
    pub(super) fn renumber(&mut self, numbers: &Numbers) -> Result<(), ResizeFault> {
        if numbers.is_empty() {
            return Ok(());
        }
        let references = self.references(numbers)?;
        let mut moved = HashMap::new();
        // In the order of the new numbers: the unused rest of a table is cleared up to each of them.
        let mut in_order: Vec<(&u32, &u32)> = numbers.iter().collect();
        in_order.sort_unstable_by_key(|(_, new)| **new);
        for (old, new) in in_order {
            let places = references.places.get(old).map_or(&[][..], Vec::as_slice);
            self.renumber_one(Ino(*old), Ino(*new), places, &references.generations, &mut moved)?;
            self.moved_inodes += 1;
        }
        self.commit()
    }

    /// The first free numbers for the inodes of groups that go, in order.
    pub(super) fn new_numbers(&mut self) -> Result<Numbers, ResizeFault> {
        let mut old = Vec::new();
        for group in self.groups..self.fs.geometry.groups {
            let desc = self.fs.desc(group)?;
            if desc.has_flag(INODE_UNINIT) {
                continue;
            }
            let bitmap = self.fs.inode_bitmap(group, &desc)?;
            let first = group * self.fs.geometry.inodes_per_group + 1;
            old.extend((0..bitmap.len()).filter(|bit| bitmap.test(*bit)).map(|bit| first + bit));
        }
        let mut numbers = Numbers::new();
        let mut left = old.into_iter().peekable();
        for group in 0..self.groups {
            if left.peek().is_none() {
                break;
            }
            let first = group * self.fs.geometry.inodes_per_group + 1;
            let bitmap = self.inode_bitmap(group)?;
            for run in bitmap.free_runs(0) {
                let free = run.map(|bit| first + bit).filter(|ino| *ino >= self.fs.sb.first_ino);
                numbers.extend(free.map_while(|new| Some((left.next()?, new))));
            }
        }
        match left.peek() {
            None => Ok(numbers),
            Some(_) => Err(ResizeFault::CannotShrink("there are more inodes in use than the size has")),
        }
    }

    /// A group's inode bitmap, with pending changes.
    pub(super) fn inode_bitmap(&mut self, group: u32) -> Result<GroupBitmap, ResizeFault> {
        if let Some(bitmap) = self.inode_bitmaps.get(&group) {
            return Ok(bitmap.clone());
        }
        let desc = self.fs.desc(group)?;
        match desc.has_flag(INODE_UNINIT) {
            true => Ok(GroupBitmap::new(self.fs.geometry.block_size, self.fs.geometry.inodes_per_group)),
            false => self.fs.inode_bitmap(group, &desc),
        }
    }

    /// Finds every place that has one of the numbers.
    fn references(&self, numbers: &Numbers) -> Result<References, ResizeFault> {
        let mut found = References::default();
        let mut blocks = HashSet::new();
        for group in 0..self.fs.geometry.groups {
            (self.check)()?;
            for (ino, bytes) in self.fs.inodes_of(group)? {
                let inode = self.fs.inode(ino, &bytes)?;
                if self.fs.sb.features.has_incompat(Features::EA_INODE) {
                    self.attribute_references(ino, &inode, &bytes, numbers, &mut blocks, &mut found)?;
                }
                if FileType::from_mode(inode.mode) == FileType::Directory {
                    self.entries_of(ino, &inode, &bytes, numbers, &mut found)?;
                }
            }
        }
        Ok(found)
    }

    /// The attributes of an inode whose values are in inodes that move.
    fn attribute_references(
        &self,
        ino: Ino,
        inode: &Inode,
        bytes: &[u8],
        numbers: &Numbers,
        blocks: &mut HashSet<u64>,
        found: &mut References,
    ) -> Result<(), ResizeFault> {
        let area = inode.xattr_offset().min(bytes.len());
        for attr in xattr::decode_ibody(&bytes[area..])? {
            let at = (area + attr.offset + VALUE_INODE_AT) as u32;
            self.attribute(ino, inode, &attr, Place::Body { ino, at }, numbers, found)?;
        }
        let block = inode.file_acl;
        if block == 0 || self.fs.sb.is_hurd() {
            return Ok(());
        }
        let content = self.current(block)?;
        if blocks.insert(block) && self.fs.sb.features.metadata_csum() {
            xattr::verify_block(&content, self.fs.sb.fs_seed(), Pblk(block))?;
        }
        for attr in xattr::decode_block(&content)?.1 {
            let at = (attr.offset + VALUE_INODE_AT) as u32;
            self.attribute(ino, inode, &attr, Place::Attribute { block, at }, numbers, found)?;
        }
        Ok(())
    }

    fn attribute(
        &self,
        owner: Ino,
        inode: &Inode,
        attr: &StoredAttr<'_>,
        place: Place,
        numbers: &Numbers,
        found: &mut References,
    ) -> Result<(), ResizeFault> {
        let AttrValue::Inode { ino: value, .. } = attr.attr.value else { return Ok(()) };
        if numbers.contains_key(&owner.0) {
            // Lustre's form: the value's inode has the owner's number instead of a hash.
            let (block, at) = self.fs.inode_place(value)?;
            let value = self.fs.inode(value, &self.current(block)?[at])?;
            if value.mtime.seconds == i64::from(owner.0) && value.generation == inode.generation {
                return Err(ResizeFault::CannotShrink("an attribute value has the number of its owner"));
            }
        }
        if numbers.contains_key(&value.0) {
            let places = found.places.entry(value.0).or_default();
            // Files that share an attribute block have the same place.
            if !places.contains(&place) {
                places.push(place);
            }
        }
        Ok(())
    }

    /// The entries of a directory that have one of the numbers.
    fn entries_of(
        &self,
        ino: Ino,
        inode: &Inode,
        bytes: &[u8],
        numbers: &Numbers,
        found: &mut References,
    ) -> Result<(), ResizeFault> {
        let format = self.fs.dir_format(inode.has_flag(flags::ENCRYPT) && inode.has_flag(flags::CASEFOLD));
        if inode.has_flag(flags::INLINE_DATA) {
            for (at, target) in inline_entries(inode, bytes, &format)? {
                if numbers.contains_key(&target) {
                    found.places.entry(target).or_default().push(Place::Body { ino, at: at as u32 });
                }
            }
            return Ok(());
        }
        let seed = inode::inode_seed(self.fs.sb.fs_seed(), ino, inode.generation);
        // A block of names that ends in a checksum never looks like one of the index. Without checksums, a
        // block that looks like one has the same names. A root may have the remains of a checksum.
        let index = DxFormat::new(self.fs.geometry.block_size, &self.fs.sb.features);
        for block in self.map_of(ino, inode, seed, true)?.data {
            let content = self.current(block)?;
            if self.fs.sb.features.metadata_csum() {
                match index.kind_of(&content) {
                    Some(_) => index.verify(&content, seed)?,
                    None => dirent::verify_tail(&content, seed)?,
                }
            }
            let entries = match index.kind_of(&content) {
                Some(DxKind::Root) => [0, DOTDOT_AT].map(|at| (at, u32_at(&content, at))).to_vec(),
                Some(DxKind::Node) => Vec::new(),
                None => {
                    let all = format.entries(&content);
                    all.map(|entry| entry.map(|entry| (entry.offset, entry.ino.0)))
                        .collect::<Result<_, _>>()?
                }
            };
            for (at, target) in entries {
                if numbers.contains_key(&target) {
                    let place = Place::Entry { block, at: at as u32, dir: ino };
                    found.places.entry(target).or_default().push(place);
                    found.generations.insert(ino.0, inode.generation);
                }
            }
        }
        Ok(())
    }

    /// The blocks of a map; those of data only if they are wanted.
    fn map_of(&self, ino: Ino, inode: &Inode, seed: u32, has_data: bool) -> Result<Map, ResizeFault> {
        let damaged = || ResizeFault::Damaged(format!("the map of inode {}", ino.0));
        // A damaged map of a small directory is not larger than the file system.
        let most = inode.size.div_ceil(self.fs.geometry.block_size.bytes()).min(self.fs.geometry.blocks);
        let mut map = Map::default();
        if !inode.has_flag(flags::EXTENTS) {
            let mut seen = HashSet::new();
            for slot in 0..15 {
                let level = slot.max(11) - 11;
                let number = u32_at(&inode.block, slot * 4);
                self.block_map_of(number.into(), level, most, &mut seen, &mut map)?;
            }
            return Ok(map);
        }
        let has_sums = self.fs.sb.features.metadata_csum();
        let mut walker = Walker::new(&inode.block, has_sums.then_some(seed));
        loop {
            match walker.step() {
                Step::NeedBlock(block) => {
                    map.nodes.push(block.0);
                    walker.supply(Some(&self.current(block.0)?));
                }
                Step::Extent(_) if !has_data => {}
                Step::Extent(found) => {
                    let past = most.saturating_sub(found.lblk.into()).min(found.len.into());
                    map.data.extend((0..past).map(|n| found.start + n));
                }
                Step::Damaged { .. } => return Err(damaged()),
                Step::Done => return Ok(map),
            }
        }
    }

    fn block_map_of(
        &self,
        block: u64,
        level: usize,
        most: u64,
        seen: &mut HashSet<u64>,
        map: &mut Map,
    ) -> Result<(), ResizeFault> {
        if block == 0 || map.data.len() as u64 >= most {
            return Ok(());
        }
        if level == 0 {
            map.data.push(block);
            return Ok(());
        }
        if !seen.insert(block) {
            return Err(ResizeFault::Damaged(format!("a map has block {block} twice")));
        }
        for word in self.current(block)?.chunks_exact(4) {
            self.block_map_of(u32_at(word, 0).into(), level - 1, most, seen, map)?;
        }
        Ok(())
    }

    /// Gives one inode a new number everywhere.
    fn renumber_one(
        &mut self,
        old: Ino,
        new: Ino,
        places: &[Place],
        generations: &HashMap<u32, u32>,
        moved: &mut HashMap<u32, u32>,
    ) -> Result<(), ResizeFault> {
        let (old_block, old_at) = self.fs.inode_place(old)?;
        let mut bytes = self.current(old_block)?[old_at.clone()].to_vec();
        let inode = self.fs.inode(old, &bytes)?;
        let fs_seed = self.fs.sb.fs_seed();
        let seed = |ino: Ino| inode::inode_seed(fs_seed, ino, inode.generation);
        let has_sums = self.fs.sb.features.metadata_csum();
        let is_orphan_file =
            self.fs.sb.features.has_compat(Features::ORPHAN_FILE) && old.0 == self.fs.sb.orphan_file_inum;
        let kind = FileType::from_mode(inode.mode);
        let is_directory = kind == FileType::Directory;
        let has_map = has_sums
            && !inode.has_flag(flags::INLINE_DATA)
            && (is_directory || is_orphan_file || inode.has_flag(flags::EXTENTS));
        let map = match has_map {
            true => self.map_of(old, &inode, seed(old), is_directory || is_orphan_file)?,
            false => Map::default(),
        };
        let sealed = if is_directory || is_orphan_file { &map.data[..] } else { &[] };

        let mut touched: HashSet<u64> = map.nodes.iter().chain(sealed).copied().collect();
        for place in places {
            touched.insert(match *place {
                Place::Entry { block, .. } | Place::Attribute { block, .. } => block,
                Place::Body { ino, .. } => self.fs.inode_place(ino)?.0,
            });
        }
        // Two blocks of inodes, one that may have to be cleared, four of bitmaps, and the descriptors. Inodes
        // that have moved are in other blocks.
        let cost = touched.len() + 9;
        let (needed, room) = (cost + self.waiting(), self.room);
        if needed > room {
            self.commit()?;
            if cost > room {
                return Err(PlanFault::JournalTooSmall { needed: cost, room }.into());
            }
        }
        moved.insert(old.0, new.0);

        self.take_inode(old, new, is_directory)?;
        if self.fs.sb.seals_inodes() {
            inode::seal(&mut bytes, seed(new));
        }
        self.fs.block_in(&mut self.pending, old_block)?[old_at].fill(0);
        let (block, at) = self.fs.inode_place(new)?;
        self.fs.block_in(&mut self.pending, block)?[at].copy_from_slice(&bytes);

        for node in &map.nodes {
            extent::seal(self.fs.block_in(&mut self.pending, *node)?, seed(new));
        }
        let index = DxFormat::new(self.fs.geometry.block_size, &self.fs.sb.features);
        for block in sealed {
            let content = self.fs.block_in(&mut self.pending, *block)?;
            match is_directory {
                true => seal_directory_block(content, &index, seed(new)),
                false => {
                    let seed = orphan_file::inode_seed(fs_seed, new, inode.generation);
                    orphan_file::seal(seed, Pblk(*block), content);
                }
            }
        }
        for place in places {
            self.patch(*place, old, new, generations, moved)?;
        }
        let sb = &mut self.next_sb;
        let fields = [
            &mut sb.usr_quota_inum,
            &mut sb.grp_quota_inum,
            &mut sb.prj_quota_inum,
            &mut sb.orphan_file_inum,
            &mut sb.lpf_ino,
        ];
        fields.into_iter().filter(|field| **field == old.0).for_each(|field| *field = new.0);
        Ok(())
    }

    /// Puts the new number into a place that has the old one.
    fn patch(
        &mut self,
        place: Place,
        old: Ino,
        new: Ino,
        generations: &HashMap<u32, u32>,
        moved: &HashMap<u32, u32>,
    ) -> Result<(), ResizeFault> {
        let now = |ino: Ino| Ino(moved.get(&ino.0).copied().unwrap_or(ino.0));
        let fs_seed = self.fs.sb.fs_seed();
        let has_sums = self.fs.sb.features.metadata_csum();
        let seals_inodes = self.fs.sb.seals_inodes();
        let index = DxFormat::new(self.fs.geometry.block_size, &self.fs.sb.features);
        let replace = |bytes: &mut [u8], at: u32| {
            let at = at as usize;
            if u32_at(bytes, at) != old.0 {
                let why = format!("a reference to inode {} has changed", old.0);
                return Err(ResizeFault::Damaged(why));
            }
            put_u32(bytes, at, new.0);
            Ok(())
        };
        match place {
            Place::Entry { block, at, dir } => {
                let generation = generations.get(&dir.0).copied().unwrap_or(0);
                let bytes = self.fs.block_in(&mut self.pending, block)?;
                replace(bytes, at)?;
                if has_sums {
                    seal_directory_block(bytes, &index, inode::inode_seed(fs_seed, now(dir), generation));
                }
            }
            Place::Body { ino, at } => {
                let (block, range) = self.fs.inode_place(now(ino))?;
                let bytes = &mut self.fs.block_in(&mut self.pending, block)?[range];
                replace(bytes, at)?;
                if seals_inodes {
                    let generation = u32_at(bytes, GENERATION_AT);
                    inode::seal(bytes, inode::inode_seed(fs_seed, now(ino), generation));
                }
            }
            Place::Attribute { block, at } => {
                let bytes = self.fs.block_in(&mut self.pending, block)?;
                replace(bytes, at)?;
                if has_sums {
                    xattr::seal_block(bytes, fs_seed, Pblk(block));
                }
            }
        }
        Ok(())
    }

    /// Marks the old number as free and the new one as used, with what the descriptors have of them.
    fn take_inode(&mut self, old: Ino, new: Ino, is_directory: bool) -> Result<(), ResizeFault> {
        for (ino, is_used) in [(old, false), (new, true)] {
            let outside = || ResizeFault::Damaged(format!("there is no inode {}", ino.0));
            let (group, index) = self.fs.geometry.inode_place(ino).ok_or_else(outside)?;
            let group = group.0;
            let mut bitmap = match self.inode_bitmaps.remove(&group) {
                Some(bitmap) => bitmap,
                None => self.inode_bitmap(group)?,
            };
            if bitmap.test(index) == is_used {
                let why = format!("inode {} is used twice", ino.0);
                return Err(ResizeFault::Damaged(why));
            }
            let mut desc = self.fs.desc_in(&self.table, &self.fs.geometry, group)?;
            match is_used {
                true => bitmap.set(index..index + 1),
                false => bitmap.clear(index..index + 1),
            }
            match (is_directory, is_used) {
                (true, true) => desc.used_dirs += 1,
                (true, false) => desc.used_dirs = desc.used_dirs.saturating_sub(1),
                (false, _) => {}
            }
            let per_group = self.fs.geometry.inodes_per_group;
            let end = per_group - desc.itable_unused.min(per_group);
            if is_used && index >= end {
                for unused in end..index {
                    let (block, at) = self.fs.inode_place(Ino(group * per_group + unused + 1))?;
                    self.fs.block_in(&mut self.pending, block)?[at].fill(0);
                }
                desc.itable_unused = per_group - index - 1;
            }
            if desc.has_flag(BLOCK_UNINIT) {
                // As the kernel does, both bitmaps are initialized with the first inode.
                self.bitmap(group)?;
                self.dirty.insert(group);
            }
            self.fs.put_inode_bitmap(&mut self.pending, &mut desc, &bitmap);
            self.fs.put_desc(&mut self.table, &self.fs.geometry, group, &desc);
            self.inode_bitmaps.insert(group, bitmap);
            self.dirty_inodes.insert(group);
        }
        Ok(())
    }
}

/// Stores the checksum of a block that was verified with another seed.
fn seal_directory_block(bytes: &mut [u8], index: &DxFormat, seed: u32) {
    match index.kind_of(bytes) {
        Some(_) => index.seal(bytes, seed),
        None => dirent::seal_tail(bytes, seed),
    }
}

/// The inode numbers in an inline directory, with their byte offsets in the inode.
fn inline_entries(inode: &Inode, bytes: &[u8], format: &DirFormat) -> Result<Vec<(usize, u32)>, ResizeFault> {
    let mut found = vec![(MAP.start, u32_at(&inode.block, 0))];
    let mut regions = vec![(MAP.start + 4, &inode.block[4..])];
    let area = inode.xattr_offset().min(bytes.len());
    for attr in xattr::decode_ibody(&bytes[area..])? {
        if let AttrValue::Bytes(value) = attr.attr.value
            && (attr.attr.index, attr.attr.name) == (xattr::INDEX_SYSTEM, b"data")
            && !value.is_empty()
        {
            // Offsets of values count from the first entry.
            let at = area + xattr::IBODY_HEADER_LEN + usize::from(u16_at(bytes, area + attr.offset + 2));
            regions.push((at, value));
        }
    }
    for (base, region) in regions {
        for entry in format.entries(region) {
            let entry = entry?;
            found.push((base + entry.offset, entry.ino.0));
        }
    }
    Ok(found)
}
