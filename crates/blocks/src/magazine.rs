//! What a thread has at hand: free blocks, so that taking and giving one costs no lock.

use std::cell::RefCell;
use std::ptr::NonNull;

use crate::region::{self, Class, Pool};

/// Blocks that a thread has at hand at most: twice what it moves at a time.
const BLOCKS_MAX: usize = 128;
/// The same in bytes.
const BYTES_MAX: usize = 512 << 10;

/// The largest block that is asked for before it is taken: more would take the place of what is used now.
const ASKED_MAX: usize = 4096;

/// Blocks whose places are looked up together.
const PAST_AHEAD: usize = 16;

fn at_hand_max(class: Class) -> usize {
    BLOCKS_MAX.min(BYTES_MAX / class.len())
}

/// Free blocks of each class.
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
    // SAFETY: they are free, and this thread alone has them. System calls are made before the lock is taken.
    unsafe { region::purge(class, blocks) };
    let mut pool = Pool::of(class);
    blocks.iter().for_each(|block| pool.put(class, *block));
}

/// A block without a holder.
pub(crate) fn take(class: Class) -> NonNull<u8> {
    let asked = if class.len() <= ASKED_MAX { class.len() } else { 0 };
    // What is taken next is written then: it comes from memory meanwhile.
    taken(class, |left| left.last().into_iter().for_each(|next| crate::prefetch_for_write(*next, asked)))
}

/// As [`take`], for stores that bypass the CPU caches: the caller waits only for the block's address, and
/// these are looked up for many together.
pub(crate) fn take_past(class: Class) -> NonNull<u8> {
    taken(class, |left| {
        if left.len().is_multiple_of(PAST_AHEAD) {
            left.iter().rev().take(PAST_AHEAD).for_each(|next| crate::ask(next.as_ptr()));
        }
    })
}

/// A block, and a look at those that are left at hand: the last one is taken next.
fn taken(class: Class, prefetch: impl Fn(&[NonNull<u8>])) -> NonNull<u8> {
    let at_hand = AT_HAND.try_with(|at_hand| {
        let blocks = &mut at_hand.borrow_mut().0[class.index()];
        if blocks.is_empty() {
            Pool::of(class).take(class, at_hand_max(class) / 2, |block| blocks.push(block));
            // The first of a list is the last that was given back: that is taken first.
            blocks.reverse();
        }
        let block = blocks.pop();
        prefetch(blocks);
        block
    });
    let block = at_hand.unwrap_or_else(|_| {
        // The thread ends, and has nothing at hand any more.
        let mut one = None;
        Pool::of(class).take(class, 1, |block| one = Some(block));
        one
    });
    block.unwrap_or_else(|| std::alloc::handle_alloc_error(crate::odd_layout(class.len())))
}

/// Frees a block without a holder.
pub(crate) fn put(class: Class, block: NonNull<u8>) {
    let kept = AT_HAND.try_with(|at_hand| {
        let blocks = &mut at_hand.borrow_mut().0[class.index()];
        if blocks.len() >= at_hand_max(class) {
            // The oldest are freed: the most recently used are still in the CPU cache.
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
