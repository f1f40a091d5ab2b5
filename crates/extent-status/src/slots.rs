//! The chunks of a tree by slot: the only one in place, several in one piece of memory.
//!
//! ```text
//! one      | chunk |                      no allocation but the entries': most inodes have no more than that
//! several  -> | chunk | chunk | chunk |   slots are dense
//! ```
//!
//! Invariant: `Several` has two chunks at least.

use std::ops::{Index, IndexMut};

use crate::chunk::{Chunk, allocated};

pub(crate) enum Slots {
    None,
    One(Chunk),
    Several(Vec<Chunk>),
}

impl Slots {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(_) => 1,
            Self::Several(chunks) => chunks.len(),
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
        }
    }

    /// Puts a chunk into the slot behind the last one.
    pub(crate) fn push(&mut self, chunk: Chunk) {
        *self = match std::mem::replace(self, Self::None) {
            Self::None => Self::One(chunk),
            Self::One(first) => Self::Several(vec![first, chunk]),
            Self::Several(mut chunks) => {
                if chunks.len() == chunks.capacity() {
                    chunks.reserve_exact((chunks.len() / 8).max(1));
                }
                chunks.push(chunk);
                Self::Several(chunks)
            }
        };
    }

    /// Takes a chunk out. The last one gets its slot.
    pub(crate) fn swap_remove(&mut self, slot: usize) -> Chunk {
        match std::mem::replace(self, Self::None) {
            Self::One(chunk) if slot == 0 => chunk,
            Self::Several(mut chunks) => {
                let gone = chunks.swap_remove(slot);
                if chunks.len() * 2 < chunks.capacity() {
                    chunks.shrink_to(chunks.len() + chunks.len() / 4);
                }
                *self = match (chunks.len(), chunks.pop()) {
                    (1, Some(last)) => Self::One(last),
                    (_, last) => {
                        chunks.extend(last);
                        Self::Several(chunks)
                    }
                };
                gone
            }
            Self::None | Self::One(_) => unreachable!("slot {slot} has a chunk"),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Chunk> {
        let (one, several) = match self {
            Self::None => (None, [].as_slice()),
            Self::One(chunk) => (Some(chunk), [].as_slice()),
            Self::Several(chunks) => (None, chunks.as_slice()),
        };
        one.into_iter().chain(several.iter())
    }

    /// Bytes on the heap, without what chunks have there.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::None | Self::One(_) => 0,
            Self::Several(chunks) => allocated(chunks.capacity() * size_of::<Chunk>()),
        }
    }
}

impl Index<usize> for Slots {
    type Output = Chunk;

    fn index(&self, slot: usize) -> &Chunk {
        match self {
            Self::One(chunk) if slot == 0 => chunk,
            Self::Several(chunks) => &chunks[slot],
            Self::None | Self::One(_) => unreachable!("slot {slot} has a chunk"),
        }
    }
}

impl IndexMut<usize> for Slots {
    fn index_mut(&mut self, slot: usize) -> &mut Chunk {
        match self {
            Self::One(chunk) if slot == 0 => chunk,
            Self::Several(chunks) => &mut chunks[slot],
            Self::None | Self::One(_) => unreachable!("slot {slot} has a chunk"),
        }
    }
}
