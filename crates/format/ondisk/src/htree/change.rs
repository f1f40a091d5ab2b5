//! Changes an index block in place.
//!
//! Source: kernel Documentation/filesystems/ext4/directory.rst.

use super::{DxEntry, DxFormat, DxKind, ENTRY_LEN, RawRoot, entries_at};

impl DxFormat {
    /// Writes entries `from` to the last one of `count` to an existing index block, and the count. In place
    /// of entry 0's hash, the block stores limit and count; that hash is not written.
    ///
    /// # Panics
    /// `count` is 0 or above the limit, `entries` yields fewer than `count - from`, or the block is too
    /// short.
    pub fn put_entries(
        &self,
        kind: DxKind,
        block: &mut [u8],
        from: usize,
        count: usize,
        entries: impl IntoIterator<Item = DxEntry>,
    ) {
        assert!(count >= 1 && count <= self.limit(kind), "an index block holds 1 entry to its limit");
        let area = &mut block[entries_at(kind)..];
        let mut entries = entries.into_iter();
        for (i, raw) in area.chunks_exact_mut(ENTRY_LEN).enumerate().take(count).skip(from) {
            let entry = entries.next().expect("as many entries as stated");
            if i > 0 {
                raw[..4].copy_from_slice(&entry.hash.to_le_bytes());
            }
            raw[4..].copy_from_slice(&entry.block.0.to_le_bytes());
        }
        area[2..4].copy_from_slice(&(count as u16).to_le_bytes()); // the largest limit is 8191
    }

    /// Sets a root's number of node levels.
    ///
    /// # Panics
    /// The block is shorter than a root's header.
    pub fn put_levels(&self, root: &mut [u8], levels: u8) {
        root[std::mem::offset_of!(RawRoot, indirect_levels)] = levels;
    }

    /// Sets a root's parent.
    ///
    /// # Panics
    /// The block is shorter than a root's header.
    pub fn put_parent(&self, root: &mut [u8], parent: extant_base::Ino) {
        let at = std::mem::offset_of!(RawRoot, dotdot);
        root[at..at + 4].copy_from_slice(&parent.0.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use extant_base::{BlockSize, Ino, Lblk};

    use super::*;
    use crate::htree::RootInfo;

    #[test]
    fn entries_put_one_by_one_equal_a_block_made_at_once() {
        let format = DxFormat { block_size: BlockSize::MIN, csum: true, large_dir: true };
        let entries: Vec<_> = (0..50u32).map(|i| DxEntry { hash: i * 16, block: Lblk(i + 1) }).collect();
        let root = RootInfo { ino: Ino(12), parent: Ino(2), hash_code: 1, filetype: true };
        let (mut whole, mut grown) = (vec![0; 1024], vec![0; 1024]);
        format.encode_root(&RootInfo { parent: Ino(5), ..root }, 1, entries.clone(), &mut whole);
        format.encode_root(&root, 0, [entries[0]], &mut grown);
        for (i, entry) in entries.iter().enumerate().skip(1) {
            format.put_entries(DxKind::Root, &mut grown, i, i + 1, [*entry]);
        }
        format.put_levels(&mut grown, 1);
        format.put_parent(&mut grown, Ino(5));
        assert_eq!(whole, grown);
        let mut node = vec![0; 1024];
        format.encode_node(entries[..3].iter().copied(), &mut node);
        format.put_entries(DxKind::Node, &mut node, 0, 2, entries[7..9].iter().copied());
        let read = format.decode_node(&node).unwrap();
        assert_eq!((read.len(), read.get(0).unwrap().block, read.get(1)), (2, Lblk(8), Some(entries[8])));
    }
}
