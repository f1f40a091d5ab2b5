//! Changes a quota file in place, one entry at a time: finds an entry, adds one, counts its usage.
//!
//! ```text
//! find(id)    header -> root -> 3 tree blocks, one byte of the id each -> leaf -> the entry's offset
//! insert(id)  the same path; missing blocks are created, from the list of free blocks or else at the end
//! ```
//!
//! The file contains two lists: free blocks (singly linked), and leaves with a free entry (doubly linked).
//!
//! Does **not** own: the file's blocks. It reads them through the caller. An insertion returns the changed
//! blocks, so that the caller can still refuse.
//!
//! Invariants
//! 1. Every number from the file is checked against the file's block count; a path has four steps.
//! 2. An insertion allocates at most four blocks, and changes at most [`CHANGED_MAX`].
//!
//! Source: kernel Documentation/filesystems/quota.rst; files of e2fsprogs and the kernel.

use std::collections::BTreeMap;

use extant_base::Malformed;

use super::{
    BLOCK_LEN, DEPTH, ENTRIES_PER_LEAF, ENTRY_LEN, LEAF_HEADER_LEN, QuotaEntry, QuotaKind, ROOT, STRUCTURE,
    VERSION, get32, put32,
};

/// A block of a quota file.
pub type Block = [u8; BLOCK_LEN];

/// Maximum number of blocks that an insertion changes: header, four tree blocks, leaf, its neighbours in the
/// list.
pub const CHANGED_MAX: u32 = 8;

/// Bytes per block.
pub const BLOCK_BYTES: u64 = BLOCK_LEN as u64;
/// Bytes per entry.
pub const ENTRY_BYTES: usize = ENTRY_LEN;

const BLOCKS_AT: usize = 20;
const FREE_BLOCK_AT: usize = 24;
const FREE_ENTRY_AT: usize = 28;
const NEXT_AT: usize = 0;
const PREV_AT: usize = 4;
const COUNT_AT: usize = 8;

/// The position of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryPlace {
    /// Number of its block.
    pub block: u32,
    /// Byte offset of the entry in the block.
    pub at: usize,
}

/// The result of an insertion.
#[derive(Debug)]
pub struct Insertion {
    /// The position of the new entry.
    pub place: EntryPlace,
    /// The changed and the new blocks, by number.
    pub changed: BTreeMap<u32, Block>,
    /// New number of blocks of the file.
    pub blocks: u32,
}

/// Checks the first block of a quota file of this kind. Returns the file's block count.
///
/// # Errors
/// It is not such a block.
pub fn check_header(kind: QuotaKind, header: &Block) -> Result<u32, Malformed> {
    let rule = |holds, rule, found: u32| Malformed::unless(holds, STRUCTURE, rule, found);
    rule(get32(header, 0) == kind.magic(), "magic must be that of its kind", get32(header, 0))?;
    rule(get32(header, 4) == VERSION, "version must be 1", get32(header, 4))?;
    let blocks = get32(header, BLOCKS_AT);
    rule(blocks > ROOT, "must have a root", blocks)?;
    for at in [FREE_BLOCK_AT, FREE_ENTRY_AT] {
        let first = get32(header, at);
        rule(first == 0 || first > ROOT && first < blocks, "its lists must begin in the file", first)?;
    }
    Ok(blocks)
}

/// Finds the position of the entry of `id`; `None` if there is none. `read` returns the file's blocks.
///
/// # Errors
/// Errors of `read`; the file breaks a rule on the path.
pub fn find<E: From<Malformed>>(
    kind: QuotaKind,
    id: u32,
    read: &mut dyn FnMut(u32) -> Result<Block, E>,
) -> Result<Option<EntryPlace>, E> {
    let blocks = check_header(kind, &read(0)?)?;
    let mut block = ROOT;
    for byte in id.to_be_bytes() {
        let child = get32(&read(block)?, 4 * usize::from(byte));
        if child == 0 {
            return Ok(None);
        }
        in_file(child, blocks)?;
        block = child;
    }
    let leaf = read(block)?;
    let at = slots()
        .find(|at| QuotaEntry::decode(&leaf[*at..at + ENTRY_LEN]).is_some_and(|(found, _)| found == id))
        .ok_or(Malformed::new(STRUCTURE, "a leaf must hold the id that leads to it", id))?;
    Ok(Some(EntryPlace { block, at }))
}

/// Adds an entry without usage or limits for an `id` that has none.
///
/// # Errors
/// As for [`find`]; the ID already has an entry.
pub fn insert<E: From<Malformed>>(
    kind: QuotaKind,
    id: u32,
    read: &mut dyn FnMut(u32) -> Result<Block, E>,
) -> Result<Insertion, E> {
    let blocks = check_header(kind, &read(0)?)?;
    let mut file = Staged { read, changed: BTreeMap::new(), blocks };
    let mut tree = ROOT;
    for (level, byte) in id.to_be_bytes().into_iter().enumerate() {
        let slot = 4 * usize::from(byte);
        let known = get32(file.block(tree)?, slot);
        if level + 1 == DEPTH {
            Malformed::unless(known == 0, STRUCTURE, "an id must be added once", id)?;
            let leaf = file.leaf()?;
            put32(file.block(tree)?, slot, leaf);
            tree = leaf;
        } else if known == 0 {
            let new = file.take()?;
            put32(file.block(tree)?, slot, new);
            tree = new;
        } else {
            tree = known;
        }
    }
    let place = file.fill(tree, id)?;
    Ok(Insertion { place, changed: file.changed, blocks: file.blocks })
}

/// Adds to an entry's usage; the result is at least zero. Returns `false` if the entry belongs to another ID.
#[must_use]
pub fn count(entry: &mut [u8], id: u32, bytes: i64, inodes: i64) -> bool {
    let Some((found, mut values)) = QuotaEntry::decode(entry) else { return false };
    if found != id {
        return false;
    }
    values.space_bytes = values.space_bytes.saturating_add_signed(bytes);
    values.inodes = values.inodes.saturating_add_signed(inodes);
    entry.copy_from_slice(&values.encode(id));
    true
}

fn in_file(block: u32, blocks: u32) -> Result<(), Malformed> {
    let holds = block > ROOT && block < blocks;
    Malformed::unless(holds, STRUCTURE, "a block number must lie in the file", block)
}

fn slots() -> impl Iterator<Item = usize> {
    (0..ENTRIES_PER_LEAF).map(|slot| LEAF_HEADER_LEN + slot * ENTRY_LEN)
}

/// The file with the pending changes.
struct Staged<'a, E> {
    read: &'a mut dyn FnMut(u32) -> Result<Block, E>,
    changed: BTreeMap<u32, Block>,
    blocks: u32,
}

impl<E: From<Malformed>> Staged<'_, E> {
    /// Reads a block in order to change it.
    fn block(&mut self, number: u32) -> Result<&mut Block, E> {
        if number > ROOT {
            in_file(number, self.blocks)?;
        }
        if !self.changed.contains_key(&number) {
            self.changed.insert(number, (self.read)(number)?);
        }
        Ok(self.changed.get_mut(&number).expect("just put there"))
    }

    /// Allocates a block of zeros; no other block points to it yet.
    fn take(&mut self) -> Result<u32, E> {
        let free = get32(self.block(0)?, FREE_BLOCK_AT);
        let (new, next) = match free {
            0 => {
                let new = self.blocks;
                let grown = new.checked_add(1).ok_or(Malformed::new(
                    STRUCTURE,
                    "must have less than 2^32 blocks",
                    new,
                ))?;
                put32(self.block(0)?, BLOCKS_AT, grown);
                self.blocks = grown;
                (new, 0)
            }
            free => {
                let is_new = !self.changed.contains_key(&free);
                Malformed::unless(is_new, STRUCTURE, "a free block must not be in use", free)?;
                (free, get32(self.block(free)?, NEXT_AT))
            }
        };
        put32(self.block(0)?, FREE_BLOCK_AT, next);
        self.changed.insert(new, [0; BLOCK_LEN]);
        Ok(new)
    }

    /// A leaf with a free entry: the first one of their list.
    fn leaf(&mut self) -> Result<u32, E> {
        let first = get32(self.block(0)?, FREE_ENTRY_AT);
        if first != 0 {
            return Ok(first);
        }
        let new = self.take()?;
        put32(self.block(0)?, FREE_ENTRY_AT, new);
        Ok(new)
    }

    /// Writes the entry to a leaf, and removes a leaf that becomes full from the list.
    fn fill(&mut self, number: u32, id: u32) -> Result<EntryPlace, E> {
        let leaf = self.block(number)?;
        let used = usize::from(u16::from_le_bytes([leaf[COUNT_AT], leaf[COUNT_AT + 1]]));
        let at = slots().find(|at| leaf[*at..at + ENTRY_LEN].iter().all(|byte| *byte == 0));
        let at = at.filter(|_| used < ENTRIES_PER_LEAF);
        let at = at.ok_or(Malformed::new(STRUCTURE, "a leaf on the list must have a free entry", number))?;
        leaf[at..at + ENTRY_LEN].copy_from_slice(&QuotaEntry::default().encode(id));
        leaf[COUNT_AT] = used as u8 + 1; // at most 14
        if used + 1 == ENTRIES_PER_LEAF {
            let (next, prev) = (get32(leaf, NEXT_AT), get32(leaf, PREV_AT));
            put32(leaf, NEXT_AT, 0);
            put32(leaf, PREV_AT, 0);
            if next != 0 {
                put32(self.block(next)?, PREV_AT, prev);
            }
            match prev {
                0 => put32(self.block(0)?, FREE_ENTRY_AT, next),
                prev => put32(self.block(prev)?, NEXT_AT, next),
            }
        }
        Ok(EntryPlace { block: number, at })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{QuotaFile, block_at};
    use super::*;

    fn reader(file: &[u8]) -> impl FnMut(u32) -> Result<Block, Malformed> {
        |number| {
            let block = file.get(block_at(number)..block_at(number) + BLOCK_LEN);
            let block = block.ok_or(Malformed::new(STRUCTURE, "the block must exist", number))?;
            Ok(block.try_into().unwrap())
        }
    }

    fn add(file: &mut Vec<u8>, id: u32) -> Result<EntryPlace, Malformed> {
        let done = insert(QuotaKind::User, id, &mut reader(file))?;
        assert!(done.changed.len() <= CHANGED_MAX as usize);
        file.resize(done.blocks as usize * BLOCK_LEN, 0);
        for (number, block) in done.changed {
            file[block_at(number)..][..BLOCK_LEN].copy_from_slice(&block);
        }
        Ok(done.place)
    }

    #[test]
    fn ids_in_rising_order_make_the_file_that_e2fsprogs_makes() {
        let mut expected = QuotaFile::new(QuotaKind::User);
        let mut file = expected.encode();
        for id in (0..60).map(|i| 7 * i).chain([70_000, u32::MAX - 1]) {
            expected.entries.insert(id, QuotaEntry::default());
            add(&mut file, id).unwrap();
            assert!(file == expected.encode(), "{id}");
        }
        assert_eq!(
            insert(QuotaKind::User, 7, &mut reader(&file)).unwrap_err().rule,
            "an id must be added once"
        );
    }

    #[test]
    fn free_blocks_are_used_first() {
        let mut quota = QuotaFile::new(QuotaKind::User);
        quota.entries.insert(0, QuotaEntry::default());
        let mut file = quota.encode();
        // Two blocks that no other block points to, on the list of free blocks.
        let blocks = file.len() / BLOCK_LEN;
        file.resize(file.len() + 2 * BLOCK_LEN, 0);
        put32(&mut file, BLOCKS_AT, blocks as u32 + 2);
        put32(&mut file, FREE_BLOCK_AT, blocks as u32 + 1);
        put32(&mut file, block_at(blocks as u32 + 1), blocks as u32);
        add(&mut file, 1 << 8).unwrap();
        assert_eq!(file.len() / BLOCK_LEN, blocks + 2);
        assert_eq!(get32(&file, FREE_BLOCK_AT), blocks as u32);
        add(&mut file, 1 << 16).unwrap();
        assert_eq!((file.len() / BLOCK_LEN, get32(&file, FREE_BLOCK_AT)), (blocks + 3, 0));
        quota.entries.insert(1 << 8, QuotaEntry::default());
        quota.entries.insert(1 << 16, QuotaEntry::default());
        assert_eq!(QuotaFile::decode(QuotaKind::User, &file), Ok(quota));
    }

    proptest! {
        #[test]
        fn any_ids_are_found_and_counted(
            ids in prop::collection::vec(prop_oneof![0u32..500, any::<u32>()], 1..200),
        ) {
            let mut expected = QuotaFile::new(QuotaKind::User);
            let mut file = expected.encode();
            for (number, id) in ids.into_iter().enumerate() {
                let found = find(QuotaKind::User, id, &mut reader(&file)).unwrap();
                prop_assert_eq!(found.is_some(), expected.entries.contains_key(&id));
                let place = match found {
                    Some(place) => place,
                    None => add(&mut file, id).unwrap(),
                };
                let at = block_at(place.block) + place.at;
                prop_assert!(!count(&mut file[at..at + ENTRY_LEN], id ^ 1, 1, 1));
                prop_assert!(count(&mut file[at..at + ENTRY_LEN], id, number as i64, 1));
                let entry = expected.entries.entry(id).or_default();
                entry.space_bytes += number as u64;
                entry.inodes += 1;
            }
            prop_assert_eq!(QuotaFile::decode(QuotaKind::User, &file), Ok(expected));
        }

        #[test]
        fn damaged_files_do_not_panic(
            ids in prop::collection::btree_set(any::<u32>(), 0..20),
            damage in prop::collection::vec((any::<u32>(), 0u32..90), 0..8),
            id in any::<u32>(),
        ) {
            let mut quota = QuotaFile::new(QuotaKind::User);
            quota.entries.extend(ids.into_iter().map(|id| (id, QuotaEntry::default())));
            let mut bytes = quota.encode();
            for (place, word) in damage {
                let at = place as usize % (bytes.len() / 4) * 4;
                put32(&mut bytes, at, word);
            }
            let _ = find(QuotaKind::User, id, &mut reader(&bytes));
            let _ = insert(QuotaKind::User, id, &mut reader(&bytes));
        }
    }
}
