//! Memory for blocks of a file system that have several holders and are immutable meanwhile.
//!
//! ```text
//! arena, 256 MiB at a multiple of that     [ head | counts, one per block | region of 2 MiB: block | block | .. | region | .. ]
//!                                                   1    2    -                              ^
//! Block { start, len } ----------------------------------------------------------------------'
//! ```
//!
//! What an `Arc<Box<[u8]>>` does, with fewer cache misses: a reader of a block waits for the block only, its
//! count is found by its address, and a block is in one page, not in two. Counts are adjacent: they fill few
//! pages even for many gigabytes of blocks, so the TLB holds them. Freed blocks are reused without a system
//! call.
//!
//! Owns: arenas, their regions and blocks, the number of holders. Does **not** own: the content of a block;
//! how many there may be (see `memory`).
//!
//! Invariants
//! 1. A block's count is the number of its holders, at least 1; only a single holder with `&mut` changes its
//!    bytes.
//! 2. A block without a holder is in its pool's list of free blocks, or in the magazine of one thread; or its
//!    region has no memory.
//! 3. A block's previous content is never visible: it is filled whole when it is made.
//! 4. A region whose blocks are all free returns its memory to the system, except for a few regions. Its
//!    addresses stay reserved. With [`purge_free_blocks`] each block does so when it is freed.
//!
//! Locks: one per size of blocks, held for the moves of a batch.
//!
//! ```
//! use extant_blocks::Block;
//! let mut mine = Block::copy_of(&[7; 4096]);
//! let yours = mine.clone();
//! assert_eq!(mine.holders(), 2);
//! mine.make_mut()[0] = 8; // a copy now
//! assert_eq!((mine[0], yours[0]), (8, 7));
//! ```

mod magazine;
mod region;
mod stream;

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use crate::region::Class;
pub use crate::region::purge_free_blocks;

/// Copies of blocks that are not read soon: they bypass the CPU caches if that is known to be cheaper, and
/// are waited for together.
///
/// ```
/// use extant_blocks::Copies;
/// let mut copies = Copies::default();
/// copies.push(4096, |copy| {
///     copy.put(&[7; 4092]);
///     copy.put(b"last");
/// });
/// assert_eq!(copies.finish().next().unwrap()[4090..], *b"\x07\x07last");
/// ```
#[derive(Default)]
pub struct Copies {
    /// None is returned before all of them are visible to other threads.
    made: Vec<Block>,
    /// It is this thread that has to wait for what it wrote.
    of_thread: PhantomData<*const ()>,
}

impl Drop for Copies {
    fn drop(&mut self) {
        // Blocks that were not returned are free again.
        stream::finish();
    }
}

impl Copies {
    /// One more, of `len` bytes: `fill` puts them.
    ///
    /// # Panics
    /// If it puts less, or more.
    pub fn push<R>(&mut self, len: usize, fill: impl FnOnce(&mut Copy<'_>) -> R) -> R {
        let (block, result) = match Class::of(len) {
            Some(class) => {
                let start = magazine::take_past(class);
                // Given back if `fill` panics.
                let block = Block::filled(start, len);
                // SAFETY: `start` is good for as many bytes, which have no other holder or reader; it and
                // they are whole lines.
                let mut copy = Copy(stream::Lines::Past(unsafe { stream::Past::new(start, len) }));
                let result = fill(&mut copy);
                assert!(copy.is_full(), "a copy has all its bytes");
                (block, result)
            }
            None => {
                let mut bytes = Vec::with_capacity(len);
                let mut copy = Copy(stream::Lines::Odd(&mut bytes, len));
                let result = fill(&mut copy);
                assert!(copy.is_full(), "a copy has all its bytes");
                (Block::from(bytes), result)
            }
        };
        self.made.push(block);
        result
    }

    /// All of them, in the order in which they were made.
    pub fn finish(&mut self) -> impl Iterator<Item = Block> + '_ {
        // Before the copy can become visible to another thread.
        if !self.made.is_empty() {
            stream::finish();
        }
        self.made.drain(..)
    }
}

impl fmt::Debug for Copies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} copies", self.made.len())
    }
}

/// A copy that is being made.
pub struct Copy<'a>(stream::Lines<'a>);

impl Copy<'_> {
    /// Puts these bytes behind those that are there. Whole lines of 64 bytes, where only such are there, are
    /// least work.
    ///
    /// # Panics
    /// If there is no room for them.
    pub fn put(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            stream::Lines::Past(past) => past.put(bytes),
            stream::Lines::Odd(all, len) => {
                assert!(all.len() + bytes.len() <= *len, "a copy has no more bytes than stated");
                all.extend_from_slice(bytes);
            }
        }
    }

    /// Puts so many zeros there.
    ///
    /// # Panics
    /// As [`put`](Self::put).
    pub fn put_zeros(&mut self, len: usize) {
        match &mut self.0 {
            stream::Lines::Past(past) => past.put_zeros(len),
            stream::Lines::Odd(all, whole) => {
                assert!(all.len() + len <= *whole, "a copy has no more bytes than stated");
                all.resize(all.len() + len, 0);
            }
        }
    }

    fn is_full(&self) -> bool {
        match &self.0 {
            stream::Lines::Past(past) => past.is_full(),
            stream::Lines::Odd(all, len) => all.len() == *len,
        }
    }
}

/// A holder more than this is a bug that makes holders without end.
const HOLDERS_MAX: u32 = u32::MAX / 2;

/// Bytes with several holders; cheap to clone. A single holder may change them.
pub struct Block {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the bytes are changed only through `&mut` by the only holder, and the count is atomic: as an
// `Arc<[u8]>`.
unsafe impl Send for Block {}
// SAFETY: as above; `&Block` gives `&[u8]` and clones.
unsafe impl Sync for Block {}

impl Block {
    /// `len` zeros.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        // SAFETY: `start` is good for `len` bytes without another holder.
        Self::made(len, |start| unsafe { start.write_bytes(0, len) })
    }

    /// The same bytes.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        // SAFETY: `start` is good for as many bytes without another holder, so they do not overlap.
        Self::made(bytes.len(), |start| unsafe {
            start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        })
    }

    fn made(len: usize, fill: impl FnOnce(*mut u8)) -> Self {
        let start = match Class::of(len) {
            Some(class) => magazine::take(class),
            None => odd_take(len),
        };
        fill(start.as_ptr());
        Self::filled(start, len)
    }

    fn filled(start: NonNull<u8>, len: usize) -> Self {
        let block = Self { start, len };
        if len > 0 {
            block.count().store(1, Ordering::Relaxed);
        }
        block
    }

    /// The number of holders, including this one. Others may change it at any time, unless it is 1 and this
    /// one is not shared.
    #[must_use]
    pub fn holders(&self) -> usize {
        if self.len == 0 { 1 } else { self.count().load(Ordering::Relaxed) as usize }
    }

    /// Are these the same bytes, not equal ones?
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        self.start == other.start && self.len == other.len
    }

    /// The bytes, if there is no other holder.
    pub fn get_mut(&mut self) -> Option<&mut [u8]> {
        if self.len > 0 && self.count().load(Ordering::Acquire) != 1 {
            return None;
        }
        // SAFETY: there is no other holder, and none can appear while this one is borrowed.
        Some(unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) })
    }

    /// The bytes, to be changed: of a copy, if there is another holder.
    pub fn make_mut(&mut self) -> &mut [u8] {
        if self.get_mut().is_none() {
            *self = Self::copy_of(self);
        }
        self.get_mut().expect("a copy is held by one")
    }

    /// Prefetches the count, for a caller that reads the bytes first and then, maybe, changes them.
    #[inline]
    pub fn prefetch_count(&self) {
        if self.len > 0 {
            ask(std::ptr::from_ref(self.count()).cast());
        }
    }

    /// Where the count is. Not for blocks of no bytes.
    fn count(&self) -> &AtomicU32 {
        match Class::of(self.len) {
            // SAFETY: `start` came from `magazine::take` of this class, and is not given back as long as this
            // holds it.
            Some(class) => unsafe { class.count(self.start) },
            // SAFETY: `odd_take` puts it there; it is aligned for that.
            None => unsafe { self.start.sub(ODD_HEAD).cast().as_ref() },
        }
    }
}

impl Clone for Block {
    #[inline]
    fn clone(&self) -> Self {
        if self.len > 0 && self.count().fetch_add(1, Ordering::Relaxed) > HOLDERS_MAX {
            std::process::abort();
        }
        Self { start: self.start, len: self.len }
    }
}

impl Drop for Block {
    #[inline]
    fn drop(&mut self) {
        if self.len == 0 || self.count().fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        // Accesses of other holders happened before the bytes are reused.
        fence(Ordering::Acquire);
        match Class::of(self.len) {
            Some(class) => magazine::put(class, self.start),
            None => odd_put(self.start, self.len),
        }
    }
}

impl Deref for Block {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: good for `len` bytes that were filled when it was made, and that do not change while they
        // are borrowed.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Default for Block {
    fn default() -> Self {
        Self { start: NonNull::dangling(), len: 0 }
    }
}

impl From<Vec<u8>> for Block {
    fn from(bytes: Vec<u8>) -> Self {
        Self::copy_of(&bytes)
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block of {} bytes, {} holders", self.len, self.holders())
    }
}

/// Makes room for so many elements more, as [`Vec::reserve`] does; where that is much, in huge pages.
pub fn make_room<T>(all: &mut Vec<T>, more: usize) {
    let needed = all.len() + more;
    if needed <= all.capacity() {
        return;
    }
    let capacity = needed.max(2 * all.capacity());
    if capacity * size_of::<T>() < MUCH {
        return all.reserve(more);
    }
    let mut larger = Vec::with_capacity(capacity);
    region::in_huge_pages(larger.spare_capacity_mut());
    larger.append(all);
    *all = larger;
}

/// From this on huge pages are worth it.
const MUCH: usize = 4 << 20;

/// Prefetches the cache lines that a change at this offset of a block waits for, whatever the address holds
/// by now.
#[inline]
pub fn prefetch_block(start: usize, len: usize, at: usize) {
    if let Some(class) = Class::of(len) {
        ask(std::ptr::without_provenance(class.count_at(start)));
        ask(std::ptr::without_provenance(start.wrapping_add(at)));
        ask(std::ptr::without_provenance(start.wrapping_add(at).wrapping_add(LINE)));
        // What changes often changes a checksum at the end.
        ask(std::ptr::without_provenance(start.wrapping_add(len - LINE)));
    }
}

/// Prefetches the line of an object's start, for a caller with other work until then.
#[inline]
pub fn prefetch_start<T>(of: &T) {
    ask(std::ptr::from_ref(of).cast());
}

/// Prefetches all lines of an object, for a caller that uses most of them soon.
#[inline]
pub fn prefetch_object<T>(of: &T) {
    let start: *const u8 = std::ptr::from_ref(of).cast();
    (0..size_of::<T>()).step_by(LINE).for_each(|at| ask(start.wrapping_add(at)));
}

/// Prefetches the line at an address, whatever it holds by now.
#[inline]
pub fn prefetch_address(at: usize) {
    ask(std::ptr::without_provenance(at));
}

/// Prefetches bytes that will all be read soon, in parallel; a reader would wait for one line after the other
/// where the hardware prefetcher does not guess the next.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    bytes.chunks(LINE).for_each(|line| ask(line.as_ptr()));
}

/// Prefetches the first and the last line of bytes, and with that their TLB entries.
#[inline]
pub fn prefetch_ends(bytes: &[u8]) {
    if let [first, .., last] = bytes {
        ask(first);
        ask(last);
    }
}

#[inline]
fn ask(place: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: changes nothing, wherever that is.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// Asks for room behind what is there, which will be written: so many bytes, or as many as there are.
#[inline]
pub fn prefetch_for_push<T>(all: &Vec<T>, bytes: usize) {
    let room = (all.capacity() - all.len()) * size_of::<T>();
    let start = NonNull::from(&all[..]).cast::<u8>();
    // SAFETY: behind the elements, where there is room.
    let behind = unsafe { start.add(size_of_val(&all[..])) };
    prefetch_for_write(behind, bytes.min(room));
}

/// Asks for memory that will be written all of, and in a moment.
#[inline]
fn prefetch_for_write(start: NonNull<u8>, len: usize) {
    for at in (0..len).step_by(LINE) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: memory without a holder; changes nothing.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_ET0>(start.as_ptr().add(at).cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (start, at);
    }
}

/// Bytes that a CPU moves at a time.
const LINE: usize = 64;

/// Room before the bytes of a block of an odd size, for its count.
const ODD_HEAD: usize = 16;

fn odd_layout(len: usize) -> Layout {
    Layout::from_size_align(ODD_HEAD + len, ODD_HEAD).expect("a block is not that large")
}

/// Memory for a block of no size that regions have; no block of no bytes.
fn odd_take(len: usize) -> NonNull<u8> {
    if len == 0 {
        return NonNull::dangling();
    }
    let layout = odd_layout(len);
    // SAFETY: the layout is not empty.
    let Some(start) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
    // SAFETY: inside of what was allocated.
    unsafe { start.add(ODD_HEAD) }
}

fn odd_put(start: NonNull<u8>, len: usize) {
    // SAFETY: as `odd_take` made it.
    unsafe { dealloc(start.sub(ODD_HEAD).as_ptr(), odd_layout(len)) }
}

#[cfg(test)]
mod tests;
