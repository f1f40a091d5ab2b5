//! Replacement of names, targets and values, so that a dump shows nothing but structure.
//!
//! Invariants
//! 1. A replacement depends on places alone (inode, block, offset), never on what it replaces. So nothing can
//!    be computed back.
//! 2. A name keeps its length, and its hash stays within its leaf's part of the index. Only where no name of
//!    this length has such a hash it gets longer, within its entry.

use std::collections::{HashMap, HashSet};

use extant_base::{Ino, Pblk};
use extant_ondisk::dirent::{self, DirFormat};
use extant_ondisk::filetype::FileType;
use extant_ondisk::hash::{HashVersion, dirhash, seed_words};
use extant_ondisk::htree::DxFormat;
use extant_ondisk::inode::{self, Inode, flags};
use extant_ondisk::xattr::{self, Attr, AttrValue};

use crate::ground::{Ground, is_live};
use crate::maps::Map;

/// Names that are tried for one hash range.
const TRIES_MAX: u64 = 1 << 18;
/// Prefixes of attributes whose values have a structure that must stay: ACLs and capabilities.
const INDEX_USER: u8 = 1;
const INDEX_TRUSTED: u8 = 4;
const INDEX_SYSTEM: u8 = 7;

/// Replaces what users wrote.
pub(crate) struct Scrambler<'a> {
    ground: &'a Ground,
    format: DirFormat,
    /// Names replaced.
    pub(crate) names: u64,
    /// Names whose replacements are the names themselves: those of a scrambled dump.
    pub(crate) same: u64,
    /// Names without a fitting replacement.
    pub(crate) unordered: u64,
    directory: Directory,
}

/// The directory whose blocks come.
#[derive(Default)]
struct Directory {
    ino: u32,
    seed: Option<u32>,
    is_encrypted: bool,
    hash: Option<HashVersion>,
    /// Leaf to its part of the hashes: from, and the first after it.
    ranges: HashMap<u64, (u64, u64)>,
    taken: HashSet<Vec<u8>>,
}

/// A generator of replacements: SplitMix64.
struct Letters(u64);

impl Letters {
    fn at(ino: u32, block: u64, offset: usize) -> Self {
        Self(u64::from(ino) << 40 ^ block << 16 ^ offset as u64)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
        for part in bytes.chunks_mut(8) {
            let mut word = self.next();
            for byte in part {
                *byte = ALPHABET[(word & 31) as usize];
                word >>= 8;
            }
        }
    }
}

impl<'a> Scrambler<'a> {
    pub(crate) fn new(ground: &'a Ground) -> Self {
        let format = ground.dir_format();
        Self { ground, format, names: 0, same: 0, unordered: 0, directory: Directory::default() }
    }

    /// The next blocks are those of this directory.
    pub(crate) fn begin_directory(&mut self, ino: Ino, inode: &Inode, map: &Map) {
        let seed = self.ground.seed(ino, inode);
        let is_encrypted = inode.has_flag(flags::ENCRYPT);
        self.directory = Directory { ino: ino.0, seed, is_encrypted, ..Directory::default() };
        if inode.has_flag(flags::INDEX) {
            self.read_index(map);
        }
    }

    /// Reads the hash ranges of the leaves. A damaged index gives none.
    fn read_index(&mut self, map: &Map) {
        let format = DxFormat::new(self.ground.geometry.block_size, &self.ground.sb.features);
        let block_of = |lblk: u64| {
            let run = map.runs.iter().find(|run| (run.lblk..run.lblk + run.len).contains(&lblk))?;
            self.ground.read(run.pblk + (lblk - run.lblk))
        };
        let Some(root) = block_of(0) else { return };
        let Ok(root) = format.decode_root(&root) else { return };
        let unsigned = self.ground.sb.unsigned_hash();
        self.directory.hash = HashVersion::from_code(root.hash_code, unsigned);
        let children = |entries: &extant_ondisk::htree::DxEntries<'_>, (low, high): (u64, u64)| {
            let list: Vec<(u64, u64)> =
                entries.iter().map(|entry| (u64::from(entry.hash & !1), entry.block.0.into())).collect();
            let ends = list.iter().skip(1).map(|(hash, _)| *hash).chain([high]);
            let starts = list.iter().enumerate().map(|(at, (hash, _))| if at == 0 { low } else { *hash });
            let ranges: Vec<(u64, (u64, u64))> =
                list.iter().zip(starts.zip(ends)).map(|((_, block), range)| (*block, range)).collect();
            ranges
        };
        let mut level = children(&root.entries, (0, 1 << 32));
        for _ in 0..root.levels {
            let mut below = Vec::new();
            for (block, range) in level {
                if let Some(bytes) = block_of(block)
                    && let Ok(entries) = format.decode_node(&bytes)
                {
                    below.extend(children(&entries, range));
                }
            }
            level = below;
        }
        self.directory.ranges = level.into_iter().collect();
    }

    /// Replaces the names in a block of the directory.
    pub(crate) fn directory_block(&mut self, lblk: u64, bytes: &mut [u8]) {
        let format = DxFormat::new(self.ground.geometry.block_size, &self.ground.sb.features);
        if !self.directory.ranges.is_empty() && !self.directory.ranges.contains_key(&lblk) {
            // Unused entries of an index block may be what was left of names.
            let at = if lblk == 0 { 0x20 } else { 8 };
            if format.kind_of(bytes).is_some() {
                let word = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
                let (limit, count) = (word(at), word(at + 2));
                let end = (at + limit * 8).min(bytes.len());
                if at + count * 8 <= end {
                    bytes[at + count * 8..end].fill(0);
                }
            }
            return;
        }
        self.area(lblk, bytes);
        if let Some(seed) = self.directory.seed
            && dirent::tail_checksum(bytes).is_some()
        {
            dirent::seal_tail(bytes, seed);
        }
    }

    /// Replaces the names in a block, or in a part of an inline directory.
    fn area(&mut self, lblk: u64, bytes: &mut [u8]) {
        let entries: Vec<(usize, usize, usize, bool)> = self
            .format
            .entries(bytes)
            .map_while(Result::ok)
            .map(|entry| {
                let is_name = entry.is_used() && !entry.is_dot_or_dotdot();
                (entry.offset, entry.rec_len, if entry.is_used() { entry.name.len() } else { 0 }, is_name)
            })
            .collect();
        for (offset, rec_len, len, is_name) in entries {
            let start = offset + 8;
            let room = rec_len - 8;
            let mut kept = len;
            let is_fixed = self.directory.ino == Ino::ROOT.0 && bytes[start..].starts_with(b"lost+found");
            if is_name && !is_fixed && !self.directory.is_encrypted {
                let name = self.replacement(lblk, offset, len, room.min(255));
                self.same += u64::from(name == bytes[start..start + len]);
                kept = name.len();
                bytes[start..start + kept].copy_from_slice(&name);
                bytes[offset + 6] = kept as u8;
                self.names += 1;
            }
            if !self.directory.is_encrypted {
                bytes[start + kept..offset + rec_len].fill(0);
            }
        }
    }

    fn replacement(&mut self, lblk: u64, offset: usize, len: usize, room: usize) -> Vec<u8> {
        let directory = &mut self.directory;
        let range = directory.ranges.get(&lblk).copied();
        let seed = seed_words(&self.ground.sb.hash_seed);
        let mut letters = Letters::at(directory.ino, lblk, offset);
        let fits = |name: &[u8]| match (range, directory.hash) {
            (Some((low, high)), Some(version)) => dirhash(version, &seed, name)
                .is_some_and(|hash| (low..high).contains(&u64::from(hash.hash & !1))),
            _ => true,
        };
        let share = range.map_or(1, |(low, high)| (1u64 << 32) / (high - low).max(1) + 1);
        let tries = (share * 24).clamp(64, TRIES_MAX);
        let mut name = Vec::new();
        for len in len..=room.max(len) {
            // Of short names there are few.
            let all = 1u64.checked_shl(5 * len as u32).filter(|_| len < 12).unwrap_or(u64::MAX);
            for _ in 0..tries.min(all.saturating_mul(8)) {
                name.resize(len, 0);
                letters.fill(&mut name);
                if fits(&name) && directory.taken.insert(name.clone()) {
                    return name;
                }
            }
        }
        self.unordered += 1;
        name.truncate(len);
        directory.taken.insert(name.clone());
        name
    }

    /// Replaces the target of a symbolic link in its block.
    #[expect(clippy::unused_self, reason = "one object replaces everything")]
    pub(crate) fn target(&self, size: u64, bytes: &mut [u8]) {
        let len = (size as usize).min(bytes.len());
        let (target, rest) = bytes.split_at_mut(len);
        Letters::at(0, size, 0).fill(target);
        rest.fill(0);
    }

    /// Replaces targets, inline data and attributes in an inode.
    pub(crate) fn inode(&mut self, ino: Ino, bytes: &mut [u8]) {
        let Ok(mut inode) = Inode::decode_of(&self.ground.sb, bytes) else { return };
        let seed = self.ground.seed(ino, &inode);
        // A wrong checksum may be the reason of the dump: it stays wrong.
        let was_sound = seed.is_none_or(|seed| inode::verify(bytes, seed));
        let attributes_at = inode.xattr_offset().min(bytes.len());
        if !is_live(&inode) {
            if inode.mode != 0 {
                inode.block = [0; 60];
                inode.encode(bytes);
                bytes[attributes_at..].fill(0);
            }
        } else {
            let kind = FileType::from_mode(inode.mode);
            let is_inline = inode.has_flag(flags::INLINE_DATA);
            match kind {
                FileType::Symlink if !is_inline && !inode.has_flag(flags::EXTENTS) && inode.size < 60 => {
                    let len = inode.size as usize;
                    Letters::at(ino.0, 0, 0).fill(&mut inode.block[..len]);
                    inode.block[len..].fill(0);
                }
                FileType::Directory if is_inline => {
                    self.directory = Directory { ino: ino.0, ..Directory::default() };
                    self.directory.is_encrypted = inode.has_flag(flags::ENCRYPT);
                    self.area(0, &mut inode.block[4..]);
                }
                _ if is_inline => {
                    let len = inode.size.min(60) as usize;
                    Letters::at(ino.0, 0, 0).fill(&mut inode.block[..len]);
                }
                _ => {}
            }
            inode.encode(bytes);
            let is_inline_dir = is_inline && kind == FileType::Directory;
            let area = &mut bytes[attributes_at..];
            let replaced =
                xattr::decode_ibody(area).ok().filter(|attrs| !attrs.is_empty()).and_then(|stored| {
                    let attrs: Vec<Attr<'_>> = stored.iter().map(|stored| stored.attr).collect();
                    let values = self.values(ino.0, &attrs, is_inline_dir);
                    let attrs = with_values(&attrs, &values);
                    let mut replaced = vec![0; area.len()];
                    xattr::encode_ibody(&attrs, &mut replaced).ok().map(|()| replaced)
                });
            if let Some(replaced) = replaced {
                area.copy_from_slice(&replaced);
            }
        }
        if was_sound && let Some(seed) = seed {
            inode::seal(bytes, seed);
        }
    }

    /// Replaces values in an attribute block.
    pub(crate) fn attributes(&mut self, block: u64, bytes: &mut [u8]) {
        let seed = self.ground.sb.fs_seed();
        let has_sums = self.ground.sb.features.metadata_csum();
        let was_sound = !has_sums || xattr::verify_block(bytes, seed, Pblk(block)).is_ok();
        let replaced = xattr::decode_block(bytes).ok().and_then(|(header, stored)| {
            let attrs: Vec<Attr<'_>> = stored.iter().map(|stored| stored.attr).collect();
            let values = self.values(block as u32, &attrs, false);
            let mut replaced = vec![0; bytes.len()];
            let attrs = with_values(&attrs, &values);
            xattr::encode_block(&attrs, header.refcount, &mut replaced).ok().map(|()| replaced)
        });
        if let Some(replaced) = replaced {
            bytes.copy_from_slice(&replaced);
            if has_sums && was_sound {
                xattr::seal_block(bytes, seed, Pblk(block));
            }
        }
    }

    /// New names and values, in the order of the attributes; `None`: it stays.
    fn values(&mut self, at: u32, attrs: &[Attr<'_>], has_names: bool) -> Vec<Option<(Vec<u8>, Vec<u8>)>> {
        let mut values = Vec::new();
        for (number, attr) in attrs.iter().enumerate() {
            // The contents of a value's inode are left out of the dump.
            let value = match attr.value {
                AttrValue::Bytes(value) => value,
                AttrValue::Inode { .. } => &[],
            };
            let (mut name, mut value) = (attr.name.to_vec(), value.to_vec());
            let mut letters = Letters::at(at, number as u64, 1);
            match attr.index {
                INDEX_USER | INDEX_TRUSTED => {
                    letters.fill(&mut name);
                    letters.fill(&mut value);
                    // The order by length and name stays a valid one if names are distinct.
                    values.push(Some((name, value)));
                }
                INDEX_SYSTEM if has_names => {
                    self.area(1, &mut value);
                    values.push(Some((name, value)));
                }
                INDEX_SYSTEM => {
                    letters.fill(&mut value);
                    values.push(Some((name, value)));
                }
                _ => values.push(None),
            }
        }
        values
    }
}

fn with_values<'a>(attrs: &[Attr<'a>], values: &'a [Option<(Vec<u8>, Vec<u8>)>]) -> Vec<Attr<'a>> {
    let mut replaced: Vec<Attr<'a>> = attrs
        .iter()
        .zip(values)
        .map(|(attr, value)| match value {
            Some((name, value)) => {
                let value = match attr.value {
                    AttrValue::Bytes(_) => AttrValue::Bytes(value),
                    inode @ AttrValue::Inode { .. } => inode,
                };
                Attr { index: attr.index, name, value }
            }
            None => *attr,
        })
        .collect();
    replaced.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
    replaced
}
