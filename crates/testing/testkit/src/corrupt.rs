//! Damage, one field at a time: the same image, regions and seed give the same corpus.
//!
//! ```text
//! for mutation in corrupt::corpus(&image, &regions, 2000, seed) {
//!     let mut patch = mutation.apply(&mut image);      // applies the damage
//!     patch.write(offset, &checksum);                  // the caller may reseal
//!     let verdict = judge(patch.image());
//! }                                                    // dropping the patch restores the image
//! ```
//!
//! Owns: the choice of fields and of their new values; undoing.
//!
//! Does **not** own: where an image has its metadata, and its checksums. The caller labels [`Region`]s and
//! reseals: knowledge of the layout comes from the code under test or from another tool, never from this
//! crate.
//!
//! Invariants
//! 1. Every mutation changes at least one byte. All changed bytes are in one field of at most 8 bytes, or in
//!    two adjacent fields that are swapped.
//! 2. Every kind of region gets the same share of a corpus, regardless of the number of its regions.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crate::trees::Random;

/// A run of metadata in an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// Its kind, named by the caller: `"inode"`, `"extent header"`.
    pub kind: String,
    /// Its start, in bytes. Fields are aligned to their size relative to it.
    pub offset: usize,
    /// Its length, in bytes.
    pub len: usize,
}

/// How a field is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Change {
    /// Flips one bit of a byte: its number, 0 to 7.
    Bit(u8),
    /// Sets a byte, or a little-endian field of 2, 4 or 8 bytes, to 0.
    Zero,
    /// Sets the field to 1.
    One,
    /// Sets all bits of the field.
    Max,
    /// Increments the field; it wraps around.
    Increment,
    /// Decrements the field; it wraps around.
    Decrement,
    /// Swaps the field with the next one of the same size.
    SwapWithNext,
    /// Sets the field to a random value.
    Random,
}

/// One change of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mutation {
    /// The kind of the region.
    pub kind: String,
    /// Start of the region, in bytes.
    pub region: usize,
    /// Position of the field, in bytes from the start of the image.
    pub offset: usize,
    /// Size of the field in bytes: 1, 2, 4 or 8.
    pub width: usize,
    /// The change.
    pub change: Change,
    /// The old bytes: of the field, or of both fields that are swapped.
    pub before: Vec<u8>,
    /// The new bytes.
    pub after: Vec<u8>,
}

impl fmt::Display for Mutation {
    /// `inode 0x4400+0x1c: le32 Max, 18 00 00 00 -> ff ff ff ff`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (region, within) = (self.region, self.offset - self.region);
        write!(f, "{} {region:#x}+{within:#x}: le{} {:?},", self.kind, self.width * 8, self.change)?;
        for (i, bytes) in [&self.before, &self.after].into_iter().enumerate() {
            f.write_str(if i == 0 { "" } else { " ->" })?;
            for byte in bytes {
                write!(f, " {byte:02x}")?;
            }
        }
        Ok(())
    }
}

impl Mutation {
    /// Applies the change. Dropping the patch restores the image.
    ///
    /// # Panics
    /// The mutation was made for another image.
    #[must_use]
    pub fn apply<'a>(&self, image: &'a mut [u8]) -> Patch<'a> {
        let place = image.get(self.offset..self.offset + self.before.len());
        assert!(place == Some(&self.before), "not the image of this mutation: {self}");
        let mut patch = Patch { image, old: Vec::new() };
        patch.write(self.offset, &self.after);
        patch
    }
}

/// Changes to an image, undone on drop.
#[derive(Debug)]
pub struct Patch<'a> {
    image: &'a mut [u8],
    /// The old bytes, oldest change first.
    old: Vec<(usize, Vec<u8>)>,
}

impl Patch<'_> {
    /// The current image.
    #[must_use]
    pub fn image(&self) -> &[u8] {
        self.image
    }

    /// Makes a further change, such as a new checksum.
    ///
    /// # Panics
    /// The change is not within the image.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        let place = &mut self.image[offset..offset + bytes.len()];
        self.old.push((offset, place.to_vec()));
        place.copy_from_slice(bytes);
    }

    /// The changed byte ranges, in the order of the changes.
    #[must_use]
    pub fn changes(&self) -> Vec<Range<usize>> {
        self.old.iter().map(|(offset, old)| *offset..offset + old.len()).collect()
    }

    /// Writes the changes into a file that held the unchanged image, for a judge that needs a file.
    ///
    /// # Errors
    /// A write fails.
    pub fn write_to(&self, file: &File) -> io::Result<()> {
        self.changes()
            .into_iter()
            .try_for_each(|run| file.write_all_at(&self.image[run.clone()], run.start as u64))
    }

    /// Undoes the changes, also in the file of [`write_to`](Self::write_to).
    ///
    /// # Errors
    /// A write fails.
    pub fn undo_in(self, file: &File) -> io::Result<()> {
        self.old.iter().rev().try_for_each(|(offset, old)| file.write_all_at(old, *offset as u64))
    }
}

impl Drop for Patch<'_> {
    fn drop(&mut self) {
        for (offset, old) in self.old.drain(..).rev() {
            self.image[offset..offset + old.len()].copy_from_slice(&old);
        }
    }
}

/// Up to `n` different mutations. The kinds of regions take turns; within a kind, the seed chooses region,
/// field and change. There are fewer only if the regions have no more.
///
/// # Panics
/// A region ends after the image.
#[must_use]
pub fn corpus(image: &[u8], regions: &[Region], n: usize, seed: u64) -> Vec<Mutation> {
    let mut kinds: BTreeMap<&str, Vec<&Region>> = BTreeMap::new();
    for region in regions.iter().filter(|region| region.len > 0) {
        let end = region.offset.checked_add(region.len);
        assert!(end.is_some_and(|end| end <= image.len()), "{region:?} in an image of {} bytes", image.len());
        kinds.entry(&region.kind).or_default().push(region);
    }
    let mut random = Random::new(seed);
    let mut seen = HashSet::new();
    let mut mutations = Vec::with_capacity(n);
    // A small region has few fields: after this many failed attempts its kind is exhausted.
    const TRIES: usize = 200;
    while mutations.len() < n && !kinds.is_empty() {
        kinds.retain(|_, regions| {
            if mutations.len() == n {
                return true;
            }
            let found = (0..TRIES).find_map(|_| {
                let region = regions[random.below(regions.len() as u64) as usize];
                let mutation = mutate(image, region, &mut random)?;
                // Several changes may give the same bytes (0 and -1 of a 1): one is enough.
                seen.insert((mutation.offset, mutation.after.clone())).then_some(mutation)
            });
            let has_more = found.is_some();
            mutations.extend(found);
            has_more
        });
    }
    mutations
}

/// A random mutation of a region; `None` if it would change nothing.
fn mutate(image: &[u8], region: &Region, random: &mut Random) -> Option<Mutation> {
    let width = 1usize << random.below(4);
    let n_fields = region.len / width;
    if n_fields == 0 {
        return None;
    }
    let field = random.below(n_fields as u64) as usize;
    let offset = region.offset + field * width;
    let change = match random.below(8) {
        0 | 1 => Change::Bit(random.below(8) as u8),
        2 => Change::Zero,
        3 => Change::One,
        4 => Change::Max,
        5 => {
            if random.below(2) == 0 {
                Change::Increment
            } else {
                Change::Decrement
            }
        }
        6 if field + 1 < n_fields => Change::SwapWithNext,
        _ => Change::Random,
    };
    // A flipped bit is a change of one byte.
    let width = if matches!(change, Change::Bit(_)) { 1 } else { width };
    let len = if change == Change::SwapWithNext { 2 * width } else { width };
    let before = image[offset..offset + len].to_vec();
    let after = changed(&before, change, random);
    (before != after).then(|| Mutation {
        kind: region.kind.clone(),
        region: region.offset,
        offset,
        width,
        change,
        before,
        after,
    })
}

fn changed(before: &[u8], change: Change, random: &mut Random) -> Vec<u8> {
    let len = before.len();
    let mut word = [0; 8];
    if change != Change::SwapWithNext {
        word[..len].copy_from_slice(before);
    }
    let value = u64::from_le_bytes(word);
    let value = match change {
        Change::Bit(bit) => value ^ 1 << bit,
        Change::Zero => 0,
        Change::One => 1,
        Change::Max => u64::MAX,
        Change::Increment => value.wrapping_add(1),
        Change::Decrement => value.wrapping_sub(1),
        Change::Random => random.next_u64(),
        Change::SwapWithNext => return [&before[len / 2..], &before[..len / 2]].concat(),
    };
    // Truncation to the width of the field makes it wrap around.
    value.to_le_bytes()[..len].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> Vec<u8> {
        Random::new(8).bytes(65_536)
    }

    fn regions() -> Vec<Region> {
        let region = |kind: &str, offset, len| Region { kind: kind.to_owned(), offset, len };
        let mut regions = vec![region("superblock", 1024, 1024), region("tiny", 3, 1), region("none", 9, 0)];
        regions.extend((0..100).map(|i| region("inode", 8192 + i * 256, 256)));
        regions
    }

    #[test]
    fn a_corpus_is_large_and_shared_out_evenly() {
        let (image, regions) = (image(), regions());
        let corpus = corpus(&image, &regions, 3000, 5);
        assert_eq!(corpus.len(), 3000);
        let count = |kind: &str| corpus.iter().filter(|mutation| mutation.kind == kind).count();
        // A byte has at most 255 other values; only random changes reach most of them.
        assert!((8..=255).contains(&count("tiny")), "{}", count("tiny"));
        assert!(count("superblock").abs_diff(count("inode")) <= 1);
        assert_eq!(corpus, super::corpus(&image, &regions, 3000, 5));
        assert_ne!(corpus, super::corpus(&image, &regions, 3000, 6));
        for change in [Change::Bit(0), Change::Zero, Change::One, Change::Max, Change::Increment] {
            assert!(corpus.iter().any(|mutation| mutation.change == change), "{change:?}");
        }
        for change in [Change::Decrement, Change::SwapWithNext, Change::Random] {
            assert!(corpus.iter().any(|mutation| mutation.change == change), "{change:?}");
        }
    }

    #[test]
    fn a_mutation_stays_in_its_region_and_can_be_undone() {
        let mut image = image();
        let whole = image.clone();
        let regions = regions();
        for mutation in corpus(&image, &regions, 500, 1) {
            let region = regions.iter().find(|region| region.offset == mutation.region).unwrap();
            assert!(mutation.offset + mutation.after.len() <= region.offset + region.len, "{mutation}");
            let mut patch = mutation.apply(&mut image);
            assert_ne!(patch.image(), whole);
            // Two writes over the damage itself must be undone in the right order.
            patch.write(mutation.offset, &[1]);
            patch.write(mutation.offset, &[2, 3]);
            assert_eq!(patch.changes().len(), 3);
            drop(patch);
            assert_eq!(image, whole);
        }
    }

    #[test]
    fn a_file_follows() {
        let mut image = image();
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&image, 0).unwrap();
        let read = || {
            let mut bytes = vec![0; 65_536];
            file.read_exact_at(&mut bytes, 0).unwrap();
            bytes
        };
        let whole = image.clone();
        for mutation in corpus(&image, &regions(), 50, 2) {
            let patch = mutation.apply(&mut image);
            patch.write_to(&file).unwrap();
            assert_eq!(read(), patch.image());
            patch.undo_in(&file).unwrap();
            assert_eq!(read(), whole);
        }
    }

    #[test]
    fn a_field_wraps_around() {
        let mut random = Random::new(0);
        assert_eq!(changed(&[0xFF, 0xFF], Change::Increment, &mut random), [0, 0]);
        assert_eq!(changed(&[0, 0, 0, 0], Change::Decrement, &mut random), [0xFF; 4]);
        assert_eq!(changed(&[1, 2, 3, 4], Change::SwapWithNext, &mut random), [3, 4, 1, 2]);
        assert_eq!(changed(&[0b1000], Change::Bit(3), &mut random), [0]);
    }
}
