//! The chunks of a tree by slot. A single chunk is stored inline, several in one allocation, many in pieces
//! of 64.
//!
//! ```text
//! one      | chunk |                       no allocation except for entries: most inodes have one chunk
//! several  -> | chunk | chunk | chunk |    slots are dense
//! many     -> | . | . | . |                no step moves or frees more than a piece: a scan that removes
//!               |   |   +-> | chunk |      one of a million chunks takes no longer than any other
//!               |   +-> | 64 chunks |
//!               +-> | 64 chunks |
//! ```
//!
//! Invariants
//! 1. `Several` has two to [`PIECE`] chunks, `Many` more.
//! 2. All pieces but the last one are full, with capacity for no more; the last one is not empty.

use std::ops::{Index, IndexMut};

use crate::chunk::{Chunk, allocated};

/// Chunks of a piece.
const PIECE: usize = 64;

pub(crate) enum Slots {
    None,
    One(Chunk),
    Several(Vec<Chunk>),
    Many(Vec<Vec<Chunk>>),
}

/// Appends a chunk to a piece that is not full.
fn push(piece: &mut Vec<Chunk>, chunk: Chunk, step: usize) {
    let len = piece.len();
    if len == piece.capacity() {
        piece.reserve_exact(step.min(PIECE - len));
    }
    piece.push(chunk);
}

/// Frees unused capacity of a piece.
fn trim(piece: &mut Vec<Chunk>) {
    if piece.len() * 2 < piece.capacity() {
        piece.shrink_to(piece.len() + piece.len() / 4);
    }
}

impl Slots {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(_) => 1,
            Self::Several(chunks) => chunks.len(),
            Self::Many(pieces) => (pieces.len() - 1) * PIECE + pieces.last().map_or(0, Vec::len),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }

    pub(crate) fn get(&self, slot: usize) -> Option<&Chunk> {
        match self {
            Self::One(chunk) if slot == 0 => Some(chunk),
            Self::None | Self::One(_) => None,
            Self::Several(chunks) => chunks.get(slot),
            Self::Many(pieces) => pieces.get(slot / PIECE)?.get(slot % PIECE),
        }
    }

    /// Puts a chunk into the slot after the last one.
    pub(crate) fn push(&mut self, chunk: Chunk) {
        match self {
            Self::Several(chunks) if chunks.len() < PIECE => {
                let step = (chunks.len() / 8).max(1);
                push(chunks, chunk, step);
            }
            Self::Many(pieces) => match pieces.last_mut() {
                Some(last) if last.len() < PIECE => push(last, chunk, PIECE / 4),
                _ => pieces.push(vec![chunk]),
            },
            _ => {
                *self = match std::mem::replace(self, Self::None) {
                    Self::None => Self::One(chunk),
                    Self::One(first) => Self::Several(vec![first, chunk]),
                    Self::Several(full) => Self::Many(vec![full, vec![chunk]]),
                    Self::Many(pieces) => Self::Many(pieces),
                };
            }
        }
    }

    /// Removes a chunk. The last chunk moves into its slot.
    pub(crate) fn swap_remove(&mut self, slot: usize) -> Chunk {
        let last = match self {
            Self::One(_) if slot == 0 => None,
            Self::Several(chunks) if chunks.len() > 2 => {
                let gone = chunks.swap_remove(slot);
                trim(chunks);
                return gone;
            }
            Self::Several(chunks) => chunks.pop(),
            Self::Many(pieces) => {
                let last = pieces.last_mut().and_then(Vec::pop);
                match pieces.last_mut() {
                    Some(piece) if !piece.is_empty() => trim(piece),
                    _ => drop(pieces.pop()),
                }
                last
            }
            Self::None | Self::One(_) => unreachable!("slot {slot} has a chunk"),
        };
        let gone = match last {
            Some(last) if slot == self.len() => last,
            Some(last) => std::mem::replace(&mut self[slot], last),
            None => match std::mem::replace(self, Self::None) {
                Self::One(chunk) => return chunk,
                _ => unreachable!("slot {slot} has a chunk"),
            },
        };
        *self = match std::mem::replace(self, Self::None) {
            Self::Several(mut chunks) if chunks.len() == 1 => chunks.pop().map_or(Self::None, Self::One),
            Self::Many(mut pieces) if pieces.len() == 1 => pieces.pop().map_or(Self::None, Self::Several),
            same => same,
        };
        gone
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Chunk> {
        let (few, many): (&[Chunk], &[Vec<Chunk>]) = match self {
            Self::None => (&[], &[]),
            Self::One(chunk) => (std::slice::from_ref(chunk), &[]),
            Self::Several(chunks) => (chunks, &[]),
            Self::Many(pieces) => (&[], pieces),
        };
        few.iter().chain(many.iter().flatten())
    }

    /// Bytes on the heap, without those of the chunks.
    pub(crate) fn bytes(&self) -> usize {
        let of_piece = |room: usize| allocated(room * size_of::<Chunk>());
        match self {
            Self::None | Self::One(_) => 0,
            Self::Several(chunks) => of_piece(chunks.capacity()),
            Self::Many(pieces) => {
                let last = pieces.last().map_or(0, Vec::capacity);
                allocated(pieces.capacity() * size_of::<Vec<Chunk>>())
                    + (pieces.len() - 1) * of_piece(PIECE)
                    + of_piece(last)
            }
        }
    }
}

impl Index<usize> for Slots {
    type Output = Chunk;

    fn index(&self, slot: usize) -> &Chunk {
        match self {
            Self::One(chunk) if slot == 0 => chunk,
            Self::Several(chunks) => &chunks[slot],
            Self::Many(pieces) => &pieces[slot / PIECE][slot % PIECE],
            Self::None | Self::One(_) => unreachable!("slot {slot} has a chunk"),
        }
    }
}

impl IndexMut<usize> for Slots {
    fn index_mut(&mut self, slot: usize) -> &mut Chunk {
        match self {
            Self::One(chunk) if slot == 0 => chunk,
            Self::Several(chunks) => &mut chunks[slot],
            Self::Many(pieces) => &mut pieces[slot / PIECE][slot % PIECE],
            Self::None | Self::One(_) => unreachable!("slot {slot} has a chunk"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with a plain vector: grows to several pieces and shrinks to none, with removal from any slot.
    #[test]
    fn slots_are_those_of_a_vector() {
        let (mut slots, mut keys) = (Slots::None, Vec::new());
        let mut chance = 1_u64;
        for (step, grows) in (0..1500_u32).map(|step| (step, step % 1000 < 500)) {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if grows || keys.is_empty() {
                slots.push(Chunk::new(step, false));
                keys.push(step);
            } else {
                let slot = (chance >> 33) as usize % keys.len();
                // The first, the last or any other slot.
                let slot = [0, keys.len() - 1, slot][step as usize % 3];
                assert_eq!(slots.swap_remove(slot).key, keys.swap_remove(slot));
            }
            assert_eq!((slots.len(), slots.is_empty()), (keys.len(), keys.is_empty()));
            assert!(slots.iter().map(|chunk| chunk.key).eq(keys.iter().copied()), "step {step}");
            assert!(keys.iter().enumerate().all(|(slot, key)| slots[slot].key == *key));
            assert!(slots.get(keys.len()).is_none());
            let pieces: Vec<_> = match &slots {
                Slots::Many(pieces) => pieces.iter().map(|piece| (piece.len(), piece.capacity())).collect(),
                _ => Vec::new(),
            };
            assert_eq!(pieces.is_empty(), keys.len() <= PIECE);
            let full = pieces.iter().rev().skip(1).all(|piece| *piece == (PIECE, PIECE));
            assert!(full && pieces.last().is_none_or(|last| last.0 > 0 && last.1 <= PIECE), "{pieces:?}");
        }
    }
}
