//! Searches and changes a node's bytes in place, without a copy and without allocation.

use extant_base::Malformed;

use super::{
    ENTRY, Extent, HEADER, Index, MAGIC, MAX_DEPTH, decode_extent, decode_index, put_header, u16_at, u32_at,
};

/// An encoded entry of a node.
pub type Slot = [u8; ENTRY];

/// The encoded entries of a node.
#[derive(Debug, Clone, Copy)]
pub struct NodeView<'a> {
    depth: u16,
    slots: &'a [Slot],
}

impl<'a> NodeView<'a> {
    /// A view of a node that passed [`verified`](Self::verified). With any other bytes the answers are
    /// meaningless, but there is no panic.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else {
            return Self { depth: 0, slots: &[] };
        };
        let (slots, _) = rest.as_chunks();
        let count = usize::from(u16_at(header, 2));
        Self { depth: u16_at(header, 6), slots: &slots[..count.min(slots.len())] }
    }

    /// A view of `i_block` (60 bytes) or of a whole block. It checks the rules that concern a single node:
    /// entries sorted and not overlapping, lengths not zero, within 2^32 logical blocks.
    ///
    /// # Errors
    /// The broken rule.
    pub fn verified(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let rule = |holds: bool, rule: &'static str, found: u64| {
            Malformed::unless(holds, "extent node", rule, found)
        };
        rule(bytes.len() >= HEADER, "must have a 12-byte header", bytes.len() as u64)?;
        let (magic, count, max, depth) =
            (u16_at(bytes, 0), u16_at(bytes, 2), u16_at(bytes, 4), u16_at(bytes, 6));
        rule(magic == MAGIC, "magic must be 0xF30A", magic.into())?;
        rule(usize::from(max) <= capacity(bytes), "max must fit the node", max.into())?;
        rule(count <= max, "entries must be at most max", count.into())?;
        rule(depth <= MAX_DEPTH, "depth must be at most 5", depth.into())?;
        rule(depth == 0 || count > 0, "an inner node must have an entry", 0)?;
        let view = Self::new(bytes);
        let mut least: u64 = 0;
        for slot in view.slots {
            if depth == 0 {
                let extent = decode_extent(slot);
                rule(extent.len > 0, "an extent must have at least one block", 0)?;
                rule(
                    u64::from(extent.lblk) >= least,
                    "extents must be sorted and disjoint",
                    extent.lblk.into(),
                )?;
                rule(extent.end() <= 1 << 32, "an extent must end within 2^32 blocks", extent.end())?;
                least = extent.end();
            } else {
                let key = u32_at(slot, 0);
                rule(u64::from(key) >= least, "index entries must be sorted", key.into())?;
                least = u64::from(key) + 1;
            }
        }
        Ok(view)
    }

    /// Levels below this node.
    #[must_use]
    pub fn depth(&self) -> u16 {
        self.depth
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The encoded entries.
    #[must_use]
    pub fn slots(&self) -> &'a [Slot] {
        self.slots
    }

    /// The first logical block of entry `at`.
    #[must_use]
    pub fn key(&self, at: usize) -> Option<u32> {
        Some(u32_at(self.slots.get(at)?, 0))
    }

    /// Entry `at` of a leaf.
    #[must_use]
    pub fn extent(&self, at: usize) -> Option<Extent> {
        self.slots.get(at).map(|slot| decode_extent(slot))
    }

    /// Entry `at` of an inner node.
    #[must_use]
    pub fn index(&self, at: usize) -> Option<Index> {
        self.slots.get(at).map(|slot| decode_index(slot))
    }

    /// The number of entries that begin at or before `lblk`. This is the position for a new entry that begins
    /// at `lblk`; a search continues in the entry before it.
    #[must_use]
    pub fn place_of(&self, lblk: u32) -> usize {
        self.slots.partition_point(|slot| u32_at(slot, 0) <= lblk)
    }
}

/// Capacity in entries of a node with this many bytes.
fn capacity(bytes: &[u8]) -> usize {
    bytes.len().saturating_sub(HEADER) / ENTRY
}

/// Writes a node with these entries to all of `bytes` (60 bytes or a block), without a checksum.
///
/// # Panics
/// The entries do not fit: a bug of the caller, which counted them.
pub fn init_node(bytes: &mut [u8], depth: u16, slots: &[Slot]) {
    let max = capacity(bytes) as u16;
    bytes.fill(0);
    put_header(bytes, slots.len(), max, depth, 0);
    bytes[HEADER..][..slots.len() * ENTRY].copy_from_slice(slots.as_flattened());
}

/// Replaces `removed` entries from position `at` on by `added`, and sets `eh_max` to the capacity of the
/// bytes. Returns `false` and changes nothing if there are fewer entries to remove, or if the result does not
/// fit.
#[must_use]
pub fn splice(bytes: &mut [u8], at: usize, removed: usize, added: &[Slot]) -> bool {
    let (count, max) = (NodeView::new(bytes).len(), capacity(bytes));
    let Some(kept) = count.checked_sub(removed).filter(|_| at + removed <= count) else { return false };
    let len = kept + added.len();
    if bytes.len() < HEADER || len > max {
        return false;
    }
    let (slots, _) = bytes[HEADER..].as_chunks_mut::<ENTRY>();
    slots.copy_within(at + removed..count, at + added.len());
    slots[at..at + added.len()].copy_from_slice(added);
    slots[len..count.max(len)].fill([0; ENTRY]);
    bytes[2..4].copy_from_slice(&(len as u16).to_le_bytes());
    bytes[4..6].copy_from_slice(&(max as u16).to_le_bytes());
    true
}

/// Sets the first logical block of entry `at`. Returns `false` and changes nothing if there is no such entry.
#[must_use]
pub fn set_key(bytes: &mut [u8], at: usize, lblk: u32) -> bool {
    if at >= NodeView::new(bytes).len() {
        return false;
    }
    bytes[HEADER + at * ENTRY..][..4].copy_from_slice(&lblk.to_le_bytes());
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keys(bytes: &[u8]) -> Vec<u32> {
        let view = NodeView::new(bytes);
        (0..view.len()).map(|at| view.key(at).unwrap()).collect()
    }

    fn slot(lblk: u32) -> Slot {
        Extent { lblk, len: 1, start: 500, unwritten: false }.slot()
    }

    #[test]
    fn entries_are_put_in_taken_out_and_replaced() {
        let mut root = [0xEE; 60];
        init_node(&mut root, 0, &[slot(1), slot(5)]);
        assert!(splice(&mut root, 1, 0, &[slot(3), slot(4)]));
        assert_eq!(keys(&root), [1, 3, 4, 5]);
        assert!(!splice(&mut root, 0, 0, &[slot(0)]), "full");
        assert!(!splice(&mut root, 3, 2, &[]), "not there");
        assert!(splice(&mut root, 1, 2, &[slot(2)]));
        assert!(set_key(&mut root, 0, 0) && !set_key(&mut root, 3, 9));
        assert_eq!(keys(&root), [0, 2, 5]);
        assert!(root[48..].iter().all(|byte| *byte == 0), "the gap is cleared");
        assert_eq!(NodeView::verified(&root).unwrap().place_of(2), 2);
    }

    #[test]
    fn extents_merge_up_to_their_limit() {
        let one = |lblk, len, start, unwritten| Extent { lblk, len, start, unwritten };
        let merged = |a: Extent, b: Extent| a.merged(&b).map(|merged| merged.len);
        assert_eq!(merged(one(0, 32_767, 9, false), one(32_767, 1, 32_776, false)), Some(32_768));
        assert_eq!(merged(one(0, 32_767, 9, true), one(32_767, 1, 32_776, true)), None);
        assert_eq!(merged(one(0, 4, 9, false), one(4, 1, 13, true)), None);
        assert_eq!(merged(one(0, 4, 9, false), one(4, 1, 14, false)), None);
        assert_eq!(merged(one(0, 4, 9, false), one(5, 1, 13, false)), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_changed_or_refused(
            mut bytes in prop::collection::vec(any::<u8>(), 0..100), at in 0usize..9, removed in 0usize..9, added in 0u32..9,
        ) {
            let added: Vec<_> = (0..added).map(slot).collect();
            let _ = (splice(&mut bytes, at, removed, &added), set_key(&mut bytes, at, 7));
            let _ = NodeView::verified(&bytes);
        }
    }
}
