//! Finds every place that has the number of an inode that moves: entries of directories, and attributes whose
//! values are in inodes.
//!
//! Owns: the scan and its result. Does **not** own: the new numbers, changing the places.
//!
//! Invariants
//! 1. A block with a wrong checksum ends the scan: its places get new checksums later.
//! 2. A place in an attribute block that files share is in the result once.

use std::collections::{HashMap, HashSet};

use extant_base::le::{u16_at, u32_at};
use extant_base::{Ino, Pblk};
use extant_ondisk::Features;
use extant_ondisk::dirent::{self, DirFormat};
use extant_ondisk::filetype::FileType;
use extant_ondisk::htree::{DxFormat, DxKind};
use extant_ondisk::inode::{self, Inode, flags};
use extant_ondisk::xattr::{self, AttrValue, StoredAttr};

use super::map::Map;
use super::{MAP, Numbers, Pending};
use crate::fault::ResizeFault;

/// Byte offset of `..` in the first block of a directory.
const DOTDOT_AT: usize = 12;
/// Bytes of an entry of the attributes before the number of the inode that has the value.
const VALUE_INODE_AT: usize = 4;

/// A place that has the number of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// A byte of a directory's block. The directory has the number that it had during the scan.
    Entry { block: u64, at: u32, dir: Ino },
    /// A byte of an inode: an inline directory, or an attribute. The number is that of the scan, too.
    Body { ino: Ino, at: u32 },
    /// A byte of an attribute block.
    Attribute { block: u64, at: u32 },
}

/// What has the numbers of the inodes that move.
#[derive(Default)]
pub(super) struct References {
    /// By the old number.
    pub(super) places: HashMap<u32, Vec<Place>>,
    /// The generation of each directory that has such entries.
    pub(super) generations: HashMap<u32, u32>,
}

impl References {
    /// Finds every place that has one of the numbers.
    pub(super) fn find(change: &Pending<'_>, numbers: &Numbers) -> Result<Self, ResizeFault> {
        let mut scan = Scan { change, numbers, verified: HashSet::new(), found: Self::default() };
        let fs = &*change.fs;
        for group in 0..fs.geometry.groups {
            change.check()?;
            for (ino, bytes) in fs.stored_inodes(group)?.iter() {
                if bytes.iter().all(|byte| *byte == 0) {
                    continue;
                }
                let inode = fs.inode(ino, bytes)?;
                if fs.sb.features.has_incompat(Features::EA_INODE) {
                    scan.attributes(ino, &inode, bytes)?;
                }
                if FileType::from_mode(inode.mode) == FileType::Directory {
                    scan.directory(ino, &inode, bytes)?;
                }
            }
        }
        Ok(scan.found)
    }

    fn add(&mut self, ino: u32, place: Place) {
        self.places.entry(ino).or_default().push(place);
    }
}

/// The scan of all inodes.
struct Scan<'c, 'f> {
    change: &'c Pending<'f>,
    numbers: &'c Numbers,
    /// Attribute blocks whose checksums are right.
    verified: HashSet<u64>,
    found: References,
}

impl Scan<'_, '_> {
    /// The attributes of an inode whose values are in inodes that move.
    fn attributes(&mut self, ino: Ino, inode: &Inode, bytes: &[u8]) -> Result<(), ResizeFault> {
        let area = inode.xattr_offset().min(bytes.len());
        for attr in xattr::decode_ibody(&bytes[area..])? {
            let at = (area + attr.offset + VALUE_INODE_AT) as u32;
            self.attribute(ino, inode, &attr, Place::Body { ino, at })?;
        }
        let (block, sb) = (inode.file_acl, &self.change.fs.sb);
        if block == 0 || sb.is_hurd() {
            return Ok(());
        }
        let content = self.change.current(block)?;
        if self.verified.insert(block) && sb.features.metadata_csum() {
            xattr::verify_block(&content, sb.fs_seed(), Pblk(block))?;
        }
        for attr in xattr::decode_block(&content)?.1 {
            let at = (attr.offset + VALUE_INODE_AT) as u32;
            self.attribute(ino, inode, &attr, Place::Attribute { block, at })?;
        }
        Ok(())
    }

    fn attribute(
        &mut self,
        owner: Ino,
        inode: &Inode,
        attr: &StoredAttr<'_>,
        place: Place,
    ) -> Result<(), ResizeFault> {
        let AttrValue::Inode { ino: value, .. } = attr.attr.value else { return Ok(()) };
        if self.numbers.contains_key(&owner.0) {
            // Lustre's form: the value's inode has the owner's number instead of a hash.
            let (block, at) = self.change.fs.inode_place(value)?;
            let value = self.change.fs.inode(value, &self.change.current(block)?[at])?;
            if value.mtime.seconds == i64::from(owner.0) && value.generation == inode.generation {
                return Err(ResizeFault::CannotShrink("an attribute value has the number of its owner"));
            }
        }
        // Files that share an attribute block have the same place.
        let is_known = |places: &Vec<Place>| places.contains(&place);
        if self.numbers.contains_key(&value.0) && !self.found.places.get(&value.0).is_some_and(is_known) {
            self.found.add(value.0, place);
        }
        Ok(())
    }

    /// The entries of a directory that have one of the numbers.
    fn directory(&mut self, ino: Ino, inode: &Inode, bytes: &[u8]) -> Result<(), ResizeFault> {
        let fs = &*self.change.fs;
        let format = DirFormat {
            hash_in_dirent: inode.has_flag(flags::ENCRYPT) && inode.has_flag(flags::CASEFOLD),
            ..DirFormat::new(fs.geometry.block_size, &fs.sb.features, fs.sb.inodes_count)
        };
        if inode.has_flag(flags::INLINE_DATA) {
            for (at, target) in inline_entries(inode, bytes, &format)? {
                if self.numbers.contains_key(&target) {
                    self.found.add(target, Place::Body { ino, at: at as u32 });
                }
            }
            return Ok(());
        }
        let seed = inode::inode_seed(fs.sb.fs_seed(), ino, inode.generation);
        // A block of names that ends in a checksum never looks like one of the index. Without checksums, a
        // block that looks like one has the same names. A root may have the remains of a checksum.
        let index = DxFormat::new(fs.geometry.block_size, &fs.sb.features);
        for block in Map::read(self.change, ino, inode, seed, true)?.data {
            let content = self.change.current(block)?;
            if fs.sb.features.metadata_csum() {
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
                if self.numbers.contains_key(&target) {
                    self.found.add(target, Place::Entry { block, at: at as u32, dir: ino });
                    self.found.generations.insert(ino.0, inode.generation);
                }
            }
        }
        Ok(())
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
