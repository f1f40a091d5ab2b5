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
//! Owns: new numbers, the inode bitmaps with pending changes, and the change of all that has an old number.
//! Does **not** own: the search for what has it (see `references`), the blocks of files, which move
//! afterwards.
//!
//! Invariants
//! 1. INV-RZ4: the places that the scan finds stay valid, because no block moves before the last inode has
//!    its new number.
//! 2. A new number is at least the first one that is not reserved.
//!
//! Source: kernel Documentation/filesystems/ext4/{directory,attributes,inodes,checksums}.rst.

mod map;
mod references;

use std::collections::{BTreeMap, HashMap, HashSet};

use extant_base::le::{put_u32, u32_at};
use extant_base::{Ino, Pblk};
use extant_ondisk::bitmap::GroupBitmap;
use extant_ondisk::filetype::FileType;
use extant_ondisk::group_desc::BLOCK_UNINIT;
use extant_ondisk::htree::DxFormat;
use extant_ondisk::inode::{self, flags};
use extant_ondisk::{Features, dirent, extent, orphan_file, xattr};

use super::pending::Pending;
use super::{GENERATION_AT, MAP};
use crate::fault::ResizeFault;
use crate::fs::Fs;
use map::Map;
use references::{Place, References};

/// The numbers of inodes that move: old and new ones.
pub(super) type Numbers = BTreeMap<u32, u32>;

/// The first free numbers in the first `groups` groups for the inodes of the groups after them, in order.
pub(super) fn new_numbers(fs: &Fs, groups: u32) -> Result<Numbers, ResizeFault> {
    let per_group = fs.geometry.inodes_per_group;
    let mut old = Vec::new();
    for group in groups..fs.geometry.groups {
        let bitmap = fs.inode_bitmap(group, &fs.desc(group)?)?;
        let first = group * per_group + 1;
        old.extend((0..bitmap.len()).filter(|bit| bitmap.test(*bit)).map(|bit| first + bit));
    }
    let mut numbers = Numbers::new();
    let mut left = old.into_iter().peekable();
    for group in 0..groups {
        if left.peek().is_none() {
            break;
        }
        let first = group * per_group + 1;
        for run in fs.inode_bitmap(group, &fs.desc(group)?)?.free_runs(0) {
            let free = run.map(|bit| first + bit).filter(|ino| *ino >= fs.sb.first_ino);
            numbers.extend(free.map_while(|new| Some((left.next()?, new))));
        }
    }
    match left.peek() {
        None => Ok(numbers),
        Some(_) => Err(ResizeFault::CannotShrink("there are more inodes in use than the size has")),
    }
}

/// Gives inodes new numbers, which are free.
pub(super) fn renumber(change: &mut Pending<'_>, numbers: &Numbers) -> Result<(), ResizeFault> {
    if numbers.is_empty() {
        return Ok(());
    }
    let references = References::find(change, numbers)?;
    let index = DxFormat::new(change.fs.geometry.block_size, &change.fs.sb.features);
    let mut renumbering =
        Renumbering { change, index, references, moved: HashMap::new(), bitmaps: BTreeMap::new() };
    // In the order of the new numbers: the unused rest of a table is cleared up to each of them.
    let mut in_order: Vec<(&u32, &u32)> = numbers.iter().collect();
    in_order.sort_unstable_by_key(|(_, new)| **new);
    for (old, new) in in_order {
        renumbering.one(Ino(*old), Ino(*new))?;
        renumbering.change.moved.inodes += 1;
    }
    renumbering.change.commit()
}

/// Changes the numbers of inodes, one after the other.
struct Renumbering<'c, 'f> {
    change: &'c mut Pending<'f>,
    index: DxFormat,
    references: References,
    /// The inodes that have their new numbers: old and new ones.
    moved: HashMap<u32, u32>,
    /// Inode bitmaps that have changed.
    bitmaps: BTreeMap<u32, GroupBitmap>,
}

impl Renumbering<'_, '_> {
    /// Gives one inode a new number everywhere.
    fn one(&mut self, old: Ino, new: Ino) -> Result<(), ResizeFault> {
        let places = self.references.places.remove(&old.0).unwrap_or_default();
        let fs = &*self.change.fs;
        let (old_block, old_at) = fs.inode_place(old)?;
        let mut bytes = self.change.current(old_block)?[old_at].to_vec();
        let inode = fs.inode(old, &bytes)?;
        let (fs_seed, seals_inodes) = (fs.sb.fs_seed(), fs.sb.seals_inodes());
        let seed = |ino: Ino| inode::inode_seed(fs_seed, ino, inode.generation);
        let is_orphan_file =
            fs.sb.features.has_compat(Features::ORPHAN_FILE) && old.0 == fs.sb.orphan_file_inum;
        let is_directory = FileType::from_mode(inode.mode) == FileType::Directory;
        // Blocks of data whose checksums depend on the number.
        let has_sealed = is_directory || is_orphan_file;
        let has_map = fs.sb.features.metadata_csum()
            && !inode.has_flag(flags::INLINE_DATA)
            && (has_sealed || inode.has_flag(flags::EXTENTS));
        let map = match has_map {
            true => Map::read(self.change, old, &inode, seed(old), has_sealed)?,
            false => Map::default(),
        };
        let sealed = if has_sealed { &map.data[..] } else { &[] };

        let mut touched: HashSet<u64> = map.nodes.iter().chain(sealed).copied().collect();
        for place in &places {
            touched.insert(match *place {
                Place::Entry { block, .. } | Place::Attribute { block, .. } => block,
                Place::Body { ino, .. } => fs.inode_place(ino)?.0,
            });
        }
        // Two blocks of inodes, one that may have to be cleared, four of bitmaps, and the descriptors. Inodes
        // that have moved are in other blocks.
        self.change.reserve(touched.len() + 9)?;
        self.moved.insert(old.0, new.0);

        self.take(old, is_directory, false)?;
        self.take(new, is_directory, true)?;
        if seals_inodes {
            inode::seal(&mut bytes, seed(new));
        }
        self.change.inode_mut(old)?.fill(0);
        self.change.inode_mut(new)?.copy_from_slice(&bytes);

        for node in &map.nodes {
            extent::seal(self.change.block_mut(*node)?, seed(new));
        }
        for block in sealed {
            let content = self.change.block_mut(*block)?;
            match is_directory {
                true => seal_directory_block(content, &self.index, seed(new)),
                false => {
                    let seed = orphan_file::inode_seed(fs_seed, new, inode.generation);
                    orphan_file::seal(seed, Pblk(*block), content);
                }
            }
        }
        for place in places {
            self.patch(place, old, new)?;
        }
        let sb = &mut self.change.sb;
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
    fn patch(&mut self, place: Place, old: Ino, new: Ino) -> Result<(), ResizeFault> {
        let now = |ino: Ino| Ino(self.moved.get(&ino.0).copied().unwrap_or(ino.0));
        let sb = &self.change.fs.sb;
        let (fs_seed, seals_inodes) = (sb.fs_seed(), sb.seals_inodes());
        let has_sums = sb.features.metadata_csum();
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
                let generation = self.references.generations.get(&dir.0).copied().unwrap_or(0);
                let bytes = self.change.block_mut(block)?;
                replace(bytes, at)?;
                if has_sums {
                    let seed = inode::inode_seed(fs_seed, now(dir), generation);
                    seal_directory_block(bytes, &self.index, seed);
                }
            }
            Place::Body { ino, at } => {
                let ino = now(ino);
                let bytes = self.change.inode_mut(ino)?;
                replace(bytes, at)?;
                if seals_inodes {
                    let generation = u32_at(bytes, GENERATION_AT);
                    inode::seal(bytes, inode::inode_seed(fs_seed, ino, generation));
                }
            }
            Place::Attribute { block, at } => {
                let bytes = self.change.block_mut(block)?;
                replace(bytes, at)?;
                if has_sums {
                    xattr::seal_block(bytes, fs_seed, Pblk(block));
                }
            }
        }
        Ok(())
    }

    /// Marks a number as used or free, with what the descriptors have of it.
    fn take(&mut self, ino: Ino, is_directory: bool, is_used: bool) -> Result<(), ResizeFault> {
        let outside = || ResizeFault::Damaged(format!("there is no inode {}", ino.0));
        let (group, index) = self.change.fs.geometry.inode_place(ino).ok_or_else(outside)?;
        let group = group.0;
        let mut bitmap = match self.bitmaps.remove(&group) {
            Some(bitmap) => bitmap,
            None => self.change.fs.inode_bitmap(group, &self.change.fs.desc(group)?)?,
        };
        if bitmap.test(index) == is_used {
            let why = format!("inode {} is used twice", ino.0);
            return Err(ResizeFault::Damaged(why));
        }
        let mut desc = self.change.desc(group)?;
        match is_used {
            true => bitmap.set(index..index + 1),
            false => bitmap.clear(index..index + 1),
        }
        match (is_directory, is_used) {
            (true, true) => desc.used_dirs += 1,
            (true, false) => desc.used_dirs = desc.used_dirs.saturating_sub(1),
            (false, _) => {}
        }
        let per_group = self.change.fs.geometry.inodes_per_group;
        let end = per_group - desc.itable_unused.min(per_group);
        if is_used && index >= end {
            for unused in end..index {
                self.change.inode_mut(Ino(group * per_group + unused + 1))?.fill(0);
            }
            desc.itable_unused = per_group - index - 1;
        }
        if desc.has_flag(BLOCK_UNINIT) {
            // As the kernel does, both bitmaps are initialized with the first inode.
            self.change.space.touch(self.change.fs, group)?;
        }
        self.change.put_inode_bitmap(group, &mut desc, &bitmap);
        self.bitmaps.insert(group, bitmap);
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
