//! Seeded damage: a few changed fields in metadata. Most damage gets correct checksums, so that checksums do
//! not reveal it.

use extant_ondisk::Superblock;

use crate::seal::superblock_of;
use crate::{Region, Rng, map, seal};

/// Damages copies of one image, once per round.
pub struct Mutator {
    sound: Vec<u8>,
    sb: Superblock,
    regions: Vec<Region>,
    /// The range of each kind in `regions`. All kinds are damaged equally often, however many regions they
    /// have.
    kinds: Vec<std::ops::Range<usize>>,
}

/// One round of damage.
#[derive(Debug, Clone)]
pub struct Damage {
    /// The changes: offset in the image, and the bytes before, oldest first.
    pub undo: Vec<(usize, Vec<u8>)>,
    /// A description for messages.
    pub story: String,
}

impl Mutator {
    /// Creates a mutator of a sound image.
    ///
    /// # Panics
    /// If the image is not sound.
    #[must_use]
    pub fn new(sound: Vec<u8>) -> Self {
        let regions = map(&sound, 64);
        let sb = superblock_of(&sound).expect("a sound image has a superblock");
        let mut kinds: Vec<std::ops::Range<usize>> = Vec::new();
        let kind = |at: usize| std::mem::discriminant(&regions[at].sealed);
        for at in 0..regions.len() {
            match kinds.last_mut() {
                Some(last) if kind(last.start) == kind(at) => last.end = at + 1,
                _ => kinds.push(at..at + 1),
            }
        }
        Self { sound, sb, regions, kinds }
    }

    /// The sound image.
    #[must_use]
    pub fn sound(&self) -> &[u8] {
        &self.sound
    }

    /// The superblock of the sound image.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.sb
    }

    /// The metadata regions of the sound image.
    #[must_use]
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Damages `image`, a copy of the sound one, according to `seed`.
    pub fn damage(&self, image: &mut [u8], seed: u64) -> Damage {
        let mut rng = Rng::new(seed);
        let mut damage = Damage { undo: Vec::new(), story: format!("seed {seed}:") };
        for _ in 0..1 + rng.below(3) {
            let kind = self.kinds[rng.below(self.kinds.len())].clone();
            let region = self.regions[kind.start + rng.below(kind.len())];
            // Sealing may change the region and the descriptor of a bitmap.
            damage.undo.push((region.offset, image[region.offset..region.offset + region.len].to_vec()));
            for _ in 0..1 + rng.below(2) {
                let story = change(&mut image[region.offset..region.offset + region.len], &mut rng);
                damage.story.push_str(&format!(" {:?} {story};", region.sealed));
            }
            // One in eight keeps its wrong checksum.
            if rng.below(8) != 0 {
                for group in &self.regions {
                    let holds_sum = matches!(group.sealed, crate::Sealed::Descriptor(_));
                    if holds_sum
                        && matches!(
                            region.sealed,
                            crate::Sealed::BlockBitmap(_) | crate::Sealed::InodeBitmap(_)
                        )
                    {
                        let range = group.offset..group.offset + group.len;
                        damage.undo.push((range.start, image[range].to_vec()));
                    }
                }
                seal(image, &self.sb, &region);
            }
        }
        damage
    }

    /// Damages `image` as a fuzzer's bytes say. Each piece of 8 bytes has: kind of region, region (2 bytes),
    /// offset (2 bytes), width, and value (2 bytes). An odd width byte keeps the wrong checksum.
    pub fn edit(&self, image: &mut [u8], edits: &[u8]) {
        for edit in edits.chunks_exact(8).take(16) {
            let pair = |at: usize| usize::from(u16::from_le_bytes([edit[at], edit[at + 1]]));
            let kind = self.kinds[usize::from(edit[0]) % self.kinds.len()].clone();
            let region = self.regions[kind.start + pair(1) % kind.len()];
            let width = [1, 2, 4, 8][usize::from(edit[5] >> 1) % 4];
            let at = region.offset + (pair(3) % region.len / width * width).min(region.len - width);
            let value = [edit[6], edit[7], edit[6], edit[7], 0, 0, edit[6], edit[7]];
            image[at..at + width].copy_from_slice(&value[..width]);
            if edit[5] & 1 == 0 {
                seal(image, &self.sb, &region);
            }
        }
    }

    /// Makes `image` sound again.
    pub fn undo(&self, image: &mut [u8], damage: &Damage) {
        for (offset, bytes) in damage.undo.iter().rev() {
            image[*offset..offset + bytes.len()].copy_from_slice(bytes);
        }
    }
}

/// Changes a few bytes, about the size of a field. Most changes are near the front, where most fields are.
fn change(bytes: &mut [u8], rng: &mut Rng) -> String {
    let reach = if rng.below(2) == 0 { bytes.len().min(128) } else { bytes.len() };
    let width = [1, 2, 4, 8][rng.below(4)].min(bytes.len());
    let at = (rng.below(reach) / width * width).min(bytes.len() - width);
    let mut word = [0; 8];
    word[..width].copy_from_slice(&bytes[at..at + width]);
    let old = u64::from_le_bytes(word);
    let new = match rng.below(10) {
        0 => 0,
        1 => u64::MAX,
        2 => old.wrapping_add(1),
        3 => old.wrapping_sub(1),
        4 => old ^ (1 << rng.below(width * 8)),
        5 => rng.bits(),
        6 => old.wrapping_mul(2),
        7 => 1 << rng.below(width * 8),
        8 => rng.bits() & 0xFF,
        // Another field's value: a valid number in the wrong place.
        _ => {
            let from = (rng.below(bytes.len()) / width * width).min(bytes.len() - width);
            let mut word = [0; 8];
            word[..width].copy_from_slice(&bytes[from..from + width]);
            u64::from_le_bytes(word)
        }
    };
    bytes[at..at + width].copy_from_slice(&new.to_le_bytes()[..width]);
    format!(
        "+{at:#x}/{width} {old:#x}->{:#x}",
        u64::from_le_bytes({
            let mut word = [0; 8];
            word[..width].copy_from_slice(&bytes[at..at + width]);
            word
        })
    )
}
