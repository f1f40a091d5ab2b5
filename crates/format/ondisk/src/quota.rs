//! A hidden quota file (format "v2r1"): the usage and limits of each user, group or project.
//!
//! ```text
//! 1 KiB blocks:  0 header   1 root of the tree   2.. tree blocks and leaves, mixed
//! header:        magic, version 1, block grace, inode grace, flags, blocks, free block, leaf with free entry
//! tree block:    256 block numbers; four levels, one byte of the id each, highest byte first
//! leaf:          next free u32, prev free u32, entries u16, padding; then 14 entries of 72 bytes
//! entry:         id, 0, inode hard/soft/used, space hard/soft (KiB), space used (bytes), space/inode time
//! ```
//!
//! A leaf contains entries of arbitrary IDs, in order of insertion; several tree slots point to one leaf.
//!
//! Owns the whole file as bytes; [`tree`] changes it in place, entry by entry. Does **not** own: the inode of
//! the file (inode 3, inode 4 or the superblock's `s_prj_quota_inum`), and counting usage.
//!
//! Source: kernel Documentation/filesystems/quota.rst; the block numbering was found from files of e2fsprogs.

use std::collections::BTreeMap;

use extant_base::Malformed;

pub mod tree;

const STRUCTURE: &str = "quota file";

/// Bytes per block of the quota file, for any block size of the file system.
pub const BLOCK_LEN: usize = 1024;
const ENTRY_LEN: usize = 72;
const LEAF_HEADER_LEN: usize = 16;
const ENTRIES_PER_LEAF: usize = (BLOCK_LEN - LEAF_HEADER_LEN) / ENTRY_LEN;
const ROOT: u32 = 1;
const DEPTH: usize = 4;
const VERSION: u32 = 1;
/// Seven days, in seconds.
const DEFAULT_GRACE: u32 = 604_800;

/// The kind of IDs whose usage a quota file counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QuotaKind {
    /// Users; inode 3.
    User,
    /// Groups; inode 4.
    Group,
    /// Projects; the superblock stores the inode.
    Project,
}

impl QuotaKind {
    fn magic(self) -> u32 {
        match self {
            Self::User => 0xD9C0_1F11,
            Self::Group => 0xD9C0_1927,
            Self::Project => 0xD9C0_3F14,
        }
    }
}

/// Usage and limits of one ID. A limit of 0 means none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct QuotaEntry {
    /// Space in use, in bytes.
    pub space_bytes: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Hard limit of space, in KiB: never exceeded.
    pub space_hard_kib: u64,
    /// Soft limit of space, in KiB: may be exceeded for the grace time.
    pub space_soft_kib: u64,
    /// Hard limit of inodes: never exceeded.
    pub inodes_hard: u64,
    /// Soft limit of inodes: may be exceeded for the grace time.
    pub inodes_soft: u64,
    /// End of the grace time for space, in seconds since 1970; 0 below the soft limit.
    pub space_time: u64,
    /// End of the grace time for inodes, in seconds since 1970; 0 below the soft limit.
    pub inode_time: u64,
}

impl QuotaEntry {
    fn encode(&self, id: u32) -> [u8; ENTRY_LEN] {
        // An entry of zeros means a free slot, so an unused ID 0 gets a time that is never read.
        let marked = QuotaEntry { inode_time: 1, ..*self };
        let entry = if id == 0 && *self == Self::default() { &marked } else { self };
        let mut bytes = [0; ENTRY_LEN];
        put32(&mut bytes, 0, id);
        let words = [
            entry.inodes_hard,
            entry.inodes_soft,
            entry.inodes,
            entry.space_hard_kib,
            entry.space_soft_kib,
            entry.space_bytes,
            entry.space_time,
            entry.inode_time,
        ];
        for (field, word) in bytes[8..].chunks_exact_mut(8).zip(words) {
            field.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes the ID and the entry from `ENTRY_LEN` bytes; `None` for a free slot.
    fn decode(bytes: &[u8]) -> Option<(u32, Self)> {
        if bytes.iter().all(|byte| *byte == 0) {
            return None;
        }
        let (id, (words, _)) = (get32(bytes, 0), bytes[8..].as_chunks::<8>());
        let word = |i: usize| u64::from_le_bytes(words[i]);
        let entry = Self {
            inodes_hard: word(0),
            inodes_soft: word(1),
            inodes: word(2),
            space_hard_kib: word(3),
            space_soft_kib: word(4),
            space_bytes: word(5),
            space_time: word(6),
            inode_time: word(7),
        };
        let marker = Self { inode_time: 1, ..Self::default() };
        Some((id, if id == 0 && entry == marker { Self::default() } else { entry }))
    }
}

/// The content of a quota file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaFile {
    /// The kind of IDs whose usage it counts.
    pub kind: QuotaKind,
    /// Grace time of the soft limit of space, in seconds.
    pub space_grace: u32,
    /// Grace time of the soft limit of inodes, in seconds.
    pub inode_grace: u32,
    /// The header's flags; 0.
    pub flags: u32,
    /// Usage and limits by ID.
    pub entries: BTreeMap<u32, QuotaEntry>,
}

impl QuotaFile {
    /// Creates an empty quota file like mke2fs, with seven days of grace time.
    #[must_use]
    pub fn new(kind: QuotaKind) -> Self {
        Self {
            kind,
            space_grace: DEFAULT_GRACE,
            inode_grace: DEFAULT_GRACE,
            flags: 0,
            entries: BTreeMap::new(),
        }
    }

    /// Encodes the whole file: a multiple of 1 KiB.
    ///
    /// Blocks are numbered like those of e2fsprogs when it inserts the IDs in rising order. A tree block gets
    /// its number when its first ID is inserted, top down; a leaf when the previous leaf is full.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut file = vec![0; 2 * BLOCK_LEN];
        let mut open_leaf = 0; // the block with a free entry, 0 for none
        for (id, entry) in &self.entries {
            let mut tree = ROOT;
            for (level, byte) in id.to_be_bytes().into_iter().enumerate() {
                let slot = block_at(tree) + 4 * usize::from(byte);
                if level + 1 < DEPTH {
                    tree = match get32(&file, slot) {
                        0 => {
                            let new = append_block(&mut file);
                            put32(&mut file, slot, new);
                            new
                        }
                        known => known,
                    };
                } else {
                    if open_leaf == 0 {
                        open_leaf = append_block(&mut file);
                    }
                    put32(&mut file, slot, open_leaf);
                }
            }
            let leaf = block_at(open_leaf);
            let used = usize::from(u16::from_le_bytes([file[leaf + 8], file[leaf + 9]]));
            let at = leaf + LEAF_HEADER_LEN + used * ENTRY_LEN;
            file[at..at + ENTRY_LEN].copy_from_slice(&entry.encode(*id));
            file[leaf + 8] = used as u8 + 1; // at most 14
            if used + 1 == ENTRIES_PER_LEAF {
                open_leaf = 0;
            }
        }
        let blocks = (file.len() / BLOCK_LEN) as u32;
        let header = [
            self.kind.magic(),
            VERSION,
            self.space_grace,
            self.inode_grace,
            self.flags,
            blocks,
            0,
            open_leaf,
        ];
        for (i, word) in header.into_iter().enumerate() {
            put32(&mut file, 4 * i, word);
        }
        file
    }

    /// Decodes a whole quota file of `kind`.
    ///
    /// It visits each tree block once, so it reads each slot at most once, for any bytes. An entry without a
    /// tree slot is ignored.
    ///
    /// # Errors
    /// The header is not that of a version 1 file of this kind, or counts more blocks than there are; a block
    /// number is outside the file; a tree block is used twice; a leaf does not contain the ID that led to it.
    pub fn decode(kind: QuotaKind, file: &[u8]) -> Result<Self, Malformed> {
        let rule = |holds, rule, found: u32| Malformed::unless(holds, STRUCTURE, rule, found);
        Malformed::unless(
            file.len() >= 2 * BLOCK_LEN,
            STRUCTURE,
            "must have at least two blocks",
            file.len() as u64,
        )?;
        let word = |i: usize| get32(file, 4 * i);
        rule(word(0) == kind.magic(), "magic must be that of its kind", word(0))?;
        rule(word(1) == VERSION, "version must be 1", word(1))?;
        let blocks = word(5);
        rule(blocks as usize <= file.len() / BLOCK_LEN, "the file must hold the blocks it counts", blocks)?;
        let mut quota = Self {
            kind,
            space_grace: word(2),
            inode_grace: word(3),
            flags: word(4),
            entries: BTreeMap::new(),
        };

        let mut seen = vec![false; blocks as usize];
        // Tree blocks still to read: block, level from the root, and the bytes of the ID on the path to it.
        let mut open = vec![(ROOT, 0, 0u32)];
        while let Some((block, level, prefix)) = open.pop() {
            let unseen = seen.get_mut(block as usize).is_some_and(|seen| !std::mem::replace(seen, true));
            rule(unseen, "a tree block must lie in the file and be used once", block)?;
            let slots = &file[block_at(block)..][..BLOCK_LEN];
            for (index, slot) in slots.chunks_exact(4).enumerate() {
                let child = get32(slot, 0);
                if child == 0 {
                    continue;
                }
                rule((ROOT..blocks).contains(&child), "a block number must lie in the file", child)?;
                let id = prefix << 8 | index as u32;
                if level + 1 < DEPTH {
                    open.push((child, level + 1, id));
                } else {
                    let leaf = &file[block_at(child)..][..BLOCK_LEN];
                    let entry = leaf[LEAF_HEADER_LEN..]
                        .chunks_exact(ENTRY_LEN)
                        .filter_map(QuotaEntry::decode)
                        .find_map(|(found, entry)| (found == id).then_some(entry))
                        .ok_or(Malformed::new(STRUCTURE, "a leaf must hold the id that leads to it", id))?;
                    quota.entries.insert(id, entry);
                }
            }
        }
        Ok(quota)
    }
}

fn block_at(block: u32) -> usize {
    block as usize * BLOCK_LEN
}

fn append_block(file: &mut Vec<u8>) -> u32 {
    let block = file.len() / BLOCK_LEN;
    file.resize(file.len() + BLOCK_LEN, 0);
    block as u32
}

fn get32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::mmp::real_image::{RealImage, le};

    fn used(space_bytes: u64, inodes: u64) -> QuotaEntry {
        QuotaEntry { space_bytes, inodes, ..QuotaEntry::default() }
    }

    #[test]
    fn the_files_of_a_fresh_file_system_are_rewritten_byte_for_byte() {
        for (block_size, space) in [("1024", 13 << 10), ("4096", 20 << 10)] {
            let types = "quotatype=usrquota:grpquota:prjquota";
            let image = RealImage::mke2fs(64 << 20, &["-b", block_size, "-O", "quota,project", "-E", types]);
            let project = le(&image.read(1024 + 0x26C, 4), 0, 4);
            for (kind, inode) in [(QuotaKind::User, 3), (QuotaKind::Group, 4), (QuotaKind::Project, project)]
            {
                let bytes = image.content(&format!("<{inode}>"));
                let mut expected = QuotaFile::new(kind);
                expected.entries.insert(0, used(space, 2)); // the root directory and lost+found
                assert_eq!(QuotaFile::decode(kind, &bytes), Ok(expected.clone()));
                assert!(expected.encode() == bytes, "{kind:?}");
            }
        }
    }

    #[test]
    fn files_with_many_ids_are_rewritten_byte_for_byte() {
        let source = tempfile::tempdir().unwrap();
        let (mut user, mut group) = (QuotaFile::new(QuotaKind::User), QuotaFile::new(QuotaKind::Group));
        for quota in [&mut user, &mut group] {
            quota.entries.insert(0, used(13 << 10, 2));
        }
        let mut script = String::new();
        for i in 0..60u32 {
            std::fs::write(source.path().join(format!("f{i:02}")), "x").unwrap();
            let (uid, gid) = if i == 59 { (u32::MAX - 1, 1) } else { (7 * (i + 1), 70_000 * (i + 1)) };
            script += &format!("sif f{i:02} uid {uid}\nsif f{i:02} gid {gid}\n");
            user.entries.insert(uid, used(1024, 1));
            group.entries.insert(gid, used(1024, 1));
        }
        let from = source.path().to_str().unwrap();
        let image = RealImage::mke2fs(64 << 20, &["-b", "1024", "-d", from]);
        let commands = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(commands.path(), script).unwrap();
        image.tool("debugfs", &["-w", "-f", commands.path().to_str().unwrap()]);
        image.tool("tune2fs", &["-O", "quota"]);
        for (quota, inode) in [(user, "<3>"), (group, "<4>")] {
            let bytes = image.content(inode);
            assert_eq!(QuotaFile::decode(quota.kind, &bytes).unwrap(), quota);
            assert!(quota.encode() == bytes);
        }
    }

    #[test]
    fn an_unused_root_is_not_a_free_place() {
        let mut quota = QuotaFile::new(QuotaKind::User);
        quota.entries.insert(0, QuotaEntry::default());
        let bytes = quota.encode();
        assert_eq!(bytes[5 * BLOCK_LEN + 16 + 64], 1);
        assert_eq!(QuotaFile::decode(QuotaKind::User, &bytes), Ok(quota));
    }

    #[test]
    fn a_tree_that_leads_into_itself_ends() {
        let mut quota = QuotaFile::new(QuotaKind::User);
        quota.entries.insert(5, used(1, 1));
        let mut bytes = quota.encode();
        bytes[BLOCK_LEN..2 * BLOCK_LEN].fill(0);
        for slot in 0..256 {
            put32(&mut bytes, BLOCK_LEN + 4 * slot, ROOT);
        }
        assert!(QuotaFile::decode(QuotaKind::User, &bytes).unwrap_err().rule.contains("used once"));
        assert!(QuotaFile::decode(QuotaKind::Group, &bytes).unwrap_err().rule.contains("magic"));
    }

    proptest! {
        #[test]
        fn any_usage_comes_back(
            ids in prop::collection::btree_map(
                prop_oneof![0u32..2000, any::<u32>()],
                (any::<[u64; 4]>(), any::<[u64; 4]>()),
                0..200,
            ),
        ) {
            let mut quota = QuotaFile::new(QuotaKind::Project);
            for (id, ([a, b, c, d], [e, f, g, h])) in ids {
                quota.entries.insert(id, QuotaEntry {
                    space_bytes: a, inodes: b, space_hard_kib: c, space_soft_kib: d,
                    inodes_hard: e, inodes_soft: f, space_time: g, inode_time: h,
                });
            }
            prop_assert_eq!(QuotaFile::decode(QuotaKind::Project, &quota.encode()), Ok(quota));
        }

        #[test]
        fn damaged_files_do_not_panic(
            ids in prop::collection::btree_set(any::<u32>(), 0..20),
            damage in prop::collection::vec((any::<u32>(), 0u32..90), 0..8),
            cut in any::<u16>(),
        ) {
            let mut quota = QuotaFile::new(QuotaKind::User);
            quota.entries.extend(ids.into_iter().map(|id| (id, used(1, 1))));
            let mut bytes = quota.encode();
            for (place, word) in damage {
                let at = place as usize % (bytes.len() / 4) * 4;
                put32(&mut bytes, at, word);
            }
            let _ = QuotaFile::decode(QuotaKind::User, &bytes);
            let _ = QuotaFile::decode(QuotaKind::User, &bytes[..usize::from(cut).min(bytes.len())]);
        }

        #[test]
        fn decoding_any_bytes_does_not_panic(mut bytes in prop::collection::vec(any::<u8>(), 2048..5000)) {
            put32(&mut bytes, 0, QuotaKind::User.magic());
            put32(&mut bytes, 4, VERSION);
            put32(&mut bytes, 20, 3);
            let _ = QuotaFile::decode(QuotaKind::User, &bytes);
        }
    }
}
