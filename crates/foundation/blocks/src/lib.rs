//! Memory for reference-counted file system blocks. A block is immutable while it has more than one holder.
//!
//! ```text
//! arena: 256 MiB, aligned to its size
//! [ head | counts, one per block | region of 2 MiB: block | block | .. | region | .. ]
//!              1    2    -                              ^
//! Block { start, len } ---------------------------------'
//! ```
//!
//! A `Block` does what an `Arc<Box<[u8]>>` does, with fewer cache misses: reading a block misses only on the
//! block itself, since the address of the count follows from the address of the block, and a block of 4 KiB
//! lies in one page instead of two. Counts are stored side by side, so the counts of many gigabytes of blocks
//! fit into a few pages, which the TLB covers. Freed blocks are reused without a system call.
//!
//! Owns: arenas, their regions and blocks, and the reference counts. Does **not** own: the content of a
//! block; the limit on the number of blocks (see `memory`).
//!
//! Invariants
//! 1. A block's count is the number of its holders, at least 1. Bytes change only through a `&mut Block`
//!    with a count of 1.
//! 2. A free block is in its pool's list of free blocks or in the magazine of one thread, or its region has
//!    no memory.
//! 3. The previous content of a block is never visible: a new block is filled completely.
//! 4. A region with only free blocks returns its memory to the system; a few such regions keep it. Its
//!    addresses stay reserved. With [`purge_free_blocks`] each block returns its memory when it is freed.
//!
//! Locks: one per block size, held while a batch of blocks moves.
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
mod pages;
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

/// Copies of blocks that the copying thread does not read afterwards. Where it is faster, they are written
/// with non-temporal stores, which bypass the CPU's caches; one fence makes all of them visible.
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
    /// Handed out only after the fence in [`finish`](Copies::finish).
    made: Vec<Block>,
    /// Not `Send`: the fence must run on the thread that wrote the copies.
    of_thread: PhantomData<*const ()>,
}

impl Drop for Copies {
    fn drop(&mut self) {
        // Blocks that were not handed out are freed and reused by other threads, so the stores must be
        // complete.
        stream::finish();
    }
}

impl Copies {
    /// Adds a copy of `len` bytes, which `fill` writes.
    ///
    /// # Panics
    /// If `fill` writes fewer or more bytes.
    pub fn push<R>(&mut self, len: usize, fill: impl FnOnce(&mut Copy<'_>) -> R) -> R {
        let (block, result) = match Class::of(len) {
            Some(class) => {
                let start = magazine::take_past(class);
                // `Block` frees the memory if `fill` panics.
                let block = Block::filled(start, len);
                // SAFETY: `start` is good for `len` bytes, which are whole lines. This thread has them alone,
                // and does not read them.
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

    /// Returns all copies, in the order in which they were made.
    pub fn finish(&mut self) -> impl Iterator<Item = Block> + '_ {
        // Before another thread can get a reference.
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

/// A copy that is being written.
pub struct Copy<'a>(stream::Lines<'a>);

impl Copy<'_> {
    /// Appends bytes. Whole lines of 64 bytes, at a line boundary, are the fast path.
    ///
    /// # Panics
    /// If the copy has no room for them.
    pub fn put(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            stream::Lines::Past(past) => past.put(bytes),
            stream::Lines::Odd(all, len) => {
                assert!(all.len() + bytes.len() <= *len, "a copy has no more bytes than stated");
                all.extend_from_slice(bytes);
            }
        }
    }

    /// Appends `len` zeros.
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

/// More holders than this are a leak; `clone` aborts.
const HOLDERS_MAX: u32 = u32::MAX / 2;

/// Reference-counted bytes; cheap to clone. A sole holder may change them.
pub struct Block {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: bytes change only through the `&mut` of a sole holder, and the count is atomic, as in an
// `Arc<[u8]>`.
unsafe impl Send for Block {}
// SAFETY: as above; `&Block` gives `&[u8]` and clones.
unsafe impl Sync for Block {}

impl Block {
    /// A block of `len` zeros.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        // SAFETY: `start` is good for `len` bytes, which have no other user.
        Self::made(len, |start| unsafe { start.write_bytes(0, len) })
    }

    /// A new block with a copy of `bytes`.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        // SAFETY: `start` is good for as many bytes, which are newly allocated and therefore do not overlap.
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

    /// The number of holders, including this one. It can change at any time, unless it is 1 and this `Block`
    /// is not shared by reference.
    #[must_use]
    pub fn holders(&self) -> usize {
        if self.len == 0 { 1 } else { self.count().load(Ordering::Relaxed) as usize }
    }

    /// Whether both refer to the same memory; equal content is not enough.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        self.start == other.start && self.len == other.len
    }

    /// The bytes, if this is the only holder.
    pub fn get_mut(&mut self) -> Option<&mut [u8]> {
        if self.len > 0 && self.count().load(Ordering::Acquire) != 1 {
            return None;
        }
        // SAFETY: the count is 1, and no other holder can appear while `self` is borrowed.
        Some(unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) })
    }

    /// The bytes, writable. Copies the block first if it has other holders.
    pub fn make_mut(&mut self) -> &mut [u8] {
        if self.get_mut().is_none() {
            *self = Self::copy_of(self);
        }
        self.get_mut().expect("a copy is held by one")
    }

    /// Prefetches the count, for a caller that reads the bytes first and may change them afterwards.
    #[inline]
    pub fn prefetch_count(&self) {
        if self.len > 0 {
            ask(std::ptr::from_ref(self.count()).cast());
        }
    }

    /// The count. Not for empty blocks, which have none.
    fn count(&self) -> &AtomicU32 {
        match Class::of(self.len) {
            // SAFETY: `start` came from `magazine::take` of this class, and stays allocated while `self`
            // holds it.
            Some(class) => unsafe { class.count(self.start) },
            // SAFETY: `odd_layout` has room for the count before `start`, aligned to 16 bytes.
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
        // Accesses by other holders happen before the memory is reused.
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
        // SAFETY: `start` is good for `len` bytes, which were filled at creation, and do not change while
        // they are borrowed.
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

/// Reserves room for `more` elements, as [`Vec::reserve`] does. Large vectors are put into huge pages.
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

/// Bytes from which on huge pages are worth their cost.
const MUCH: usize = 4 << 20;

/// Prefetches what a change at offset `at` of the block at address `start` touches. The address may be
/// invalid.
#[inline]
pub fn prefetch_block(start: usize, len: usize, at: usize) {
    if let Some(class) = Class::of(len) {
        ask(std::ptr::without_provenance(class.count_at(start)));
        ask(std::ptr::without_provenance(start.wrapping_add(at)));
        ask(std::ptr::without_provenance(start.wrapping_add(at).wrapping_add(LINE)));
        // Such a change often updates a checksum at the end of the block.
        ask(std::ptr::without_provenance(start.wrapping_add(len - LINE)));
    }
}

/// Prefetches the first cache line of a value.
#[inline]
pub fn prefetch_start<T>(of: &T) {
    ask(std::ptr::from_ref(of).cast());
}

/// Prefetches all cache lines of a value.
#[inline]
pub fn prefetch_object<T>(of: &T) {
    let start: *const u8 = std::ptr::from_ref(of).cast();
    (0..size_of::<T>()).step_by(LINE).for_each(|at| ask(start.wrapping_add(at)));
}

/// Prefetches the cache line at an address. The address may be invalid.
#[inline]
pub fn prefetch_address(at: usize) {
    ask(std::ptr::without_provenance(at));
}

/// Prefetches all of `bytes`. The misses overlap, while a reader would take them one after the other as far
/// as the hardware prefetcher does not predict them.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    bytes.chunks(LINE).for_each(|line| ask(line.as_ptr()));
}

/// Prefetches the first and last line of `bytes`. It also loads the TLB entries, which helps a caller that
/// reads all of them.
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
    // SAFETY: a prefetch changes nothing and does not fault, at any address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// Prefetches the spare capacity of a vector for writing: `bytes` bytes, or as many as there are.
#[inline]
pub fn prefetch_for_push<T>(all: &Vec<T>, bytes: usize) {
    let room = (all.capacity() - all.len()) * size_of::<T>();
    let start = NonNull::from(&all[..]).cast::<u8>();
    // SAFETY: the end of the elements, inside the allocation.
    let behind = unsafe { start.add(size_of_val(&all[..])) };
    prefetch_for_write(behind, bytes.min(room));
}

/// Prefetches memory that will be overwritten completely soon.
#[inline]
fn prefetch_for_write(start: NonNull<u8>, len: usize) {
    for at in (0..len).step_by(LINE) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the range is inside one allocation without references to it. A prefetch changes nothing.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_ET0>(start.as_ptr().add(at).cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (start, at);
    }
}

/// Bytes of a CPU cache line.
const LINE: usize = 64;

/// Room before the bytes of a block of an odd size; it holds the count.
const ODD_HEAD: usize = 16;

fn odd_layout(len: usize) -> Layout {
    Layout::from_size_align(ODD_HEAD + len, ODD_HEAD).expect("a block is not that large")
}

/// Allocates a block of a size for which there is no [`Class`]. A block of 0 bytes gets a dangling pointer.
fn odd_take(len: usize) -> NonNull<u8> {
    if len == 0 {
        return NonNull::dangling();
    }
    let layout = odd_layout(len);
    // SAFETY: the layout is not empty.
    let Some(start) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
    // SAFETY: inside the allocation.
    unsafe { start.add(ODD_HEAD) }
}

fn odd_put(start: NonNull<u8>, len: usize) {
    // SAFETY: `odd_take` allocated it with this layout.
    unsafe { dealloc(start.sub(ODD_HEAD).as_ptr(), odd_layout(len)) }
}

#[cfg(test)]
mod tests;
