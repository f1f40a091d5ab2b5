//! Packs the entries of a directory into blocks: in the order of hashes with an index over them, or in a row.
//!
//! Does **not** own: where the blocks are; nothing here reads or writes the image.

use extant_base::le::{put_u16, put_u32};
use extant_base::{BlockSize, Ino};
use extant_ondisk::dirent::{self, TAIL_LEN, encode_rec_len, min_rec_len};
use extant_ondisk::hash::{HashVersion, NameHash, dirhash, seed_words};
use extant_ondisk::htree::{DxFormat, IndexPlan, RootInfo};
use extant_ondisk::inode::flags;
use extant_ondisk::{Features, Superblock, casefold};

use super::{DIRECTORY, Dir, Entry};
use crate::fs::Fs;

const TAIL_TYPE: u8 = 0xDE;

/// Packs the entries of one directory.
pub(super) struct Packer<'f> {
    sb: &'f Superblock,
    block_size: BlockSize,
    /// The seed of the directory's checksums.
    seed: u32,
}

impl<'f> Packer<'f> {
    pub(super) fn new(fs: &'f Fs<'_>, seed: u32) -> Self {
        Self { sb: &fs.sb, block_size: fs.geometry.block_size, seed }
    }

    fn has_csum(&self) -> bool {
        self.sb.features.metadata_csum()
    }

    /// The entries "." and "..".
    pub(super) fn dots(&self, ino: Ino, parent: u32) -> [Entry; 2] {
        let kind = if self.sb.features.has_incompat(Features::FILETYPE) { DIRECTORY } else { 0 };
        [Entry::new(ino, kind, b"."), Entry::new(Ino(parent), kind, b"..")]
    }

    fn usable_len(&self) -> usize {
        self.block_size.len() - if self.has_csum() { TAIL_LEN } else { 0 }
    }

    /// One block with these entries, which fit.
    pub(super) fn block(&self, entries: &[Entry]) -> Vec<u8> {
        let mut block = vec![0; self.block_size.len()];
        let usable = self.usable_len();
        pack_area(self.block_size, entries, &mut block[..usable]);
        if self.has_csum() {
            put_u16(&mut block, usable + 4, TAIL_LEN as u16);
            block[usable + 7] = TAIL_TYPE;
            dirent::seal_tail(&mut block, self.seed);
        }
        block
    }

    /// Blocks without an index.
    pub(super) fn linear(&self, dir: &Dir) -> Vec<Vec<u8>> {
        let usable = self.usable_len();
        let mut blocks = Vec::new();
        let mut open: Vec<Entry> = self.dots(dir.ino, dir.parent).to_vec();
        let mut used: usize = open.iter().map(entry_len).sum();
        for entry in &dir.entries {
            let len = entry_len(entry);
            if used + len > usable {
                blocks.push(self.block(&open));
                open.clear();
                used = 0;
            }
            open.push(entry.clone());
            used += len;
        }
        blocks.push(self.block(&open));
        blocks
    }

    /// Blocks with an index; `None` for a directory of one block, and where hashes cannot be computed.
    pub(super) fn indexed(&self, dir: &Dir) -> Option<Vec<Vec<u8>>> {
        if !self.sb.features.has_compat(Features::DIR_INDEX) {
            return None;
        }
        let usable = self.usable_len();
        let needed: usize = 24 + dir.entries.iter().map(entry_len).sum::<usize>();
        if needed <= usable {
            return None;
        }
        let code = if dir.hashed { 6 } else { dir.hash_code };
        let version = HashVersion::from_code(code, self.sb.unsigned_hash());
        let version = version.filter(|version| (*version == HashVersion::SipHash) == dir.hashed);
        let version = version.or_else(|| HashVersion::from_code(1, self.sb.unsigned_hash()))?;
        let folds = dir.inode.has_flag(flags::CASEFOLD) && !dir.hashed;
        let words = seed_words(&self.sb.hash_seed);
        let mut sorted: Vec<(u32, u32, &Entry)> = Vec::with_capacity(dir.entries.len());
        for entry in &dir.entries {
            let hash = match entry.hash {
                Some(hash) if dir.hashed => NameHash { hash: hash.hash & !1, ..hash },
                _ if dir.hashed => return None,
                _ if folds && !casefold::is_stable(&entry.name) => return None,
                _ if folds => dirhash(version, &words, &casefold::fold(&entry.name))?,
                _ => dirhash(version, &words, &entry.name)?,
            };
            sorted.push((hash.hash, hash.minor, entry));
        }
        sorted.sort_by_key(|(hash, minor, _)| (*hash, *minor));
        let mut leaves: Vec<Vec<u8>> = Vec::new();
        let mut first_hashes = Vec::new();
        let mut open: Vec<Entry> = Vec::new();
        let (mut used, mut last_hash) = (0, None);
        for (hash, _, entry) in sorted {
            let len = entry_len(entry);
            if used + len > usable {
                leaves.push(self.block(&open));
                open.clear();
                used = 0;
            }
            if open.is_empty() {
                first_hashes.push(if last_hash == Some(hash) { hash | 1 } else { hash });
            }
            open.push(entry.clone());
            used += len;
            last_hash = Some(hash);
        }
        leaves.push(self.block(&open));
        let format = DxFormat::new(self.block_size, &self.sb.features);
        let plan = IndexPlan::new(leaves.len() as u64, &format).ok()?;
        let filetype = self.sb.features.has_incompat(Features::FILETYPE);
        let root = RootInfo { ino: dir.ino, parent: Ino(dir.parent), hash_code: version.code(), filetype };
        let mut blocks: Vec<Vec<u8>> = Vec::with_capacity(plan.total_blocks() as usize);
        for i in 0..plan.index_blocks() {
            let mut block = vec![0; self.block_size.len()];
            plan.encode_index_block(i, &first_hashes, &root, self.seed, &mut block);
            blocks.push(block);
        }
        blocks.extend(leaves);
        Some(blocks)
    }
}

/// Fills an area with entries, which fit; the last one reaches to its end.
pub(super) fn pack_area(block_size: BlockSize, entries: &[Entry], area: &mut [u8]) {
    area.fill(0);
    let mut at = 0;
    if entries.is_empty() && area.len() >= 12 {
        let rec_len = encode_rec_len(area.len() & !3, block_size).unwrap_or(12);
        put_u16(area, 4, rec_len);
    }
    for (i, entry) in entries.iter().enumerate() {
        let len = entry_len(entry);
        let rec_len = if i + 1 == entries.len() { area.len() - at } else { len };
        put_u32(area, at, entry.ino);
        put_u16(area, at + 4, encode_rec_len(rec_len, block_size).unwrap_or(12));
        area[at + 6] = entry.name.len() as u8;
        area[at + 7] = entry.kind;
        area[at + 8..at + 8 + entry.name.len()].copy_from_slice(&entry.name);
        if let Some(hash) = entry.hash {
            let from = at + min_rec_len(entry.name.len(), false);
            put_u32(area, from, hash.hash);
            put_u32(area, from + 4, hash.minor);
        }
        at += len;
    }
}

/// The bytes that an entry needs.
pub(super) fn entry_len(entry: &Entry) -> usize {
    min_rec_len(entry.name.len(), entry.hash.is_some())
}
