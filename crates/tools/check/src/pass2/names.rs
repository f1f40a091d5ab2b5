//! Detection of duplicate names in a directory, without an allocation per name.
//!
//! Owns: a fast keyed hash of names, and a hash table for one block. Each check draws a new key, so that no
//! image can be crafted whose names all collide. Results do not depend on the key: names with equal keys are
//! compared by bytes.

use std::hash::{BuildHasher, RandomState};

/// Hashes names under a random key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key(u64, u64);

impl Key {
    pub(super) fn new() -> Self {
        let random = RandomState::new();
        Self(random.hash_one(1), random.hash_one(2) | 1)
    }

    /// The hash of a name.
    #[inline]
    pub(super) fn of(self, name: &[u8]) -> u64 {
        let (words, rest) = name.as_chunks::<8>();
        let mut state = self.0;
        for word in words {
            state = mix(state ^ u64::from_le_bytes(*word), self.1);
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        // The length is mixed in last: mixed in first, the first bytes of a name could cancel it.
        mix(mix(state ^ u64::from_le_bytes(last), self.1) ^ name.len() as u64, self.0 | 1)
    }

    /// The hash of an ASCII name in a casefolded directory, folded. Other names are folded by the caller, if
    /// their form is known.
    pub(super) fn of_folded(self, name: &[u8]) -> u64 {
        let mut folded = [0; 256];
        let folded = &mut folded[..name.len()];
        folded.copy_from_slice(name);
        folded.make_ascii_lowercase();
        self.of(folded)
    }
}

/// Multiplies into 128 bits and folds the halves together.
#[inline]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// The names of one block.
#[derive(Debug)]
pub(super) struct Table {
    /// The upper half of the key, and the offset in the block plus 1; 0 marks an empty slot.
    slots: Vec<(u32, u32)>,
    mask: usize,
}

impl Table {
    /// A table for blocks of `len` bytes.
    pub(super) fn new(len: usize) -> Self {
        // Entries take at least 12 bytes: with a slot per 8 bytes, a third of the slots stays empty.
        let slots = (len / 8).next_power_of_two();
        Self { slots: vec![(0, 0); slots], mask: slots - 1 }
    }

    /// Removes all names.
    pub(super) fn clear(&mut self) {
        self.slots.fill((0, 0));
    }

    /// Adds the name at `offset`, unless the block has the same name already: then returns the offset of that
    /// one. `same` compares with the name at an offset.
    #[inline]
    pub(super) fn insert(
        &mut self,
        key: u64,
        offset: usize,
        mut same: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let tag = (key >> 32) as u32;
        let mut at = key as usize & self.mask;
        // A block has fewer entries than the table has slots, so the loop finds an empty one.
        loop {
            match self.slots[at] {
                (_, 0) => break,
                (found, other) if found == tag && same(other as usize - 1) => {
                    return Some(other as usize - 1);
                }
                _ => at = (at + 1) & self.mask,
            }
        }
        self.slots[at] = (tag, offset as u32 + 1);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_names_meet_and_others_do_not() {
        let key = Key::new();
        let names: Vec<String> = (0..85).map(|i| format!("name-of-file-{}", i % 80)).collect();
        let mut table = Table::new(1024);
        let mut twice = Vec::new();
        for (i, name) in names.iter().enumerate() {
            let same = |other: usize| names[other] == *name;
            twice.extend(table.insert(key.of(name.as_bytes()), i, same).map(|first| (first, i)));
        }
        assert_eq!(twice, [(0, 80), (1, 81), (2, 82), (3, 83), (4, 84)]);
        table.clear();
        assert_eq!(table.insert(key.of(b"name-of-file-0"), 0, |_| true), None);
    }

    #[test]
    fn length_and_every_byte_count() {
        let key = Key::new();
        let mut all: Vec<u64> = (0..=255).map(|len| key.of(&vec![0; len])).collect();
        all.extend((0..32).map(|at| key.of(&std::array::from_fn::<u8, 32, _>(|i| u8::from(i == at)))));
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0] != pair[1]));
        assert_eq!(key.of_folded(b"README"), key.of_folded(b"ReadMe"));
        assert_eq!(key.of_folded(b"README"), key.of(b"readme"));
    }
}
