//! Per-thread caches of free blocks, so that allocating and freeing take no lock.

use std::cell::RefCell;
use std::ptr::NonNull;

use crate::region::{self, Class, Pool};

/// Blocks in a magazine at most: twice the batch that moves between it and the pool.
const BLOCKS_MAX: usize = 128;
/// The same in bytes.
const BYTES_MAX: usize = 512 << 10;

/// The largest block that is prefetched before it is taken. More would evict data in use from the CPU's
/// caches.
const ASKED_MAX: usize = 4096;

/// Blocks that are prefetched together to load their TLB entries.
const PAST_AHEAD: usize = 16;

fn at_hand_max(class: Class) -> usize {
    BLOCKS_MAX.min(BYTES_MAX / class.len())
}

/// The free blocks of each class.
struct Magazines([Vec<NonNull<u8>>; Class::COUNT]);

thread_local!(static AT_HAND: RefCell<Magazines> = const { RefCell::new(Magazines([const { Vec::new() }; Class::COUNT])) });

impl Drop for Magazines {
    fn drop(&mut self) {
        for len in (0..usize::BITS).map(|log| 1 << log) {
            if let Some(class) = Class::of(len) {
                give_back(class, &std::mem::take(&mut self.0[class.index()]));
            }
        }
    }
}

fn give_back(class: Class, blocks: &[NonNull<u8>]) {
    // SAFETY: the blocks are free, and only this thread has them. The system calls come before the lock.
    unsafe { region::purge(class, blocks) };
    let mut pool = Pool::of(class);
    blocks.iter().for_each(|block| pool.put(class, *block));
}

/// Allocates a block. Its content is undefined.
pub(crate) fn take(class: Class) -> NonNull<u8> {
    let asked = if class.len() <= ASKED_MAX { class.len() } else { 0 };
    // The block that is taken next will be overwritten: prefetch it now.
    taken(class, |left| left.last().into_iter().for_each(|next| crate::prefetch_for_write(*next, asked)))
}

/// As [`take`], for a caller that uses non-temporal stores. It waits for address translation only, so the TLB
/// entries of several blocks are loaded together.
pub(crate) fn take_past(class: Class) -> NonNull<u8> {
    taken(class, |left| {
        if left.len().is_multiple_of(PAST_AHEAD) {
            left.iter().rev().take(PAST_AHEAD).for_each(|next| crate::ask(next.as_ptr()));
        }
    })
}

/// Takes a block, and calls `prefetch` with the blocks left in the magazine, of which the last one is taken
/// next.
fn taken(class: Class, prefetch: impl Fn(&[NonNull<u8>])) -> NonNull<u8> {
    let at_hand = AT_HAND.try_with(|at_hand| {
        let blocks = &mut at_hand.borrow_mut().0[class.index()];
        if blocks.is_empty() {
            Pool::of(class).take(class, at_hand_max(class) / 2, |block| blocks.push(block));
            // The pool returns the block that was freed last first. It is reused first.
            blocks.reverse();
        }
        let block = blocks.pop();
        prefetch(blocks);
        block
    });
    let block = at_hand.unwrap_or_else(|_| {
        // The thread is ending, and its magazine is gone.
        let mut one = None;
        Pool::of(class).take(class, 1, |block| one = Some(block));
        one
    });
    block.unwrap_or_else(|| std::alloc::handle_alloc_error(crate::odd_layout(class.len())))
}

/// Frees a block.
pub(crate) fn put(class: Class, block: NonNull<u8>) {
    let kept = AT_HAND.try_with(|at_hand| {
        let blocks = &mut at_hand.borrow_mut().0[class.index()];
        if blocks.len() >= at_hand_max(class) {
            // The oldest half goes to the pool: the newest blocks are still in the CPU's cache.
            let oldest = at_hand_max(class) / 2;
            give_back(class, &blocks[..oldest]);
            blocks.drain(..oldest);
        }
        blocks.push(block);
    });
    if kept.is_err() {
        give_back(class, &[block]);
    }
}
