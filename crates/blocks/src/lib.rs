//! Memory for blocks of a file system that several hold, and that nobody changes while they do.
//!
//! ```text
//! arena, 256 MiB at a multiple of that     [ head | counts, one per block | region of 2 MiB: block | block | .. | region | .. ]
//!                                                   1    2    -                              ^
//! Block { start, len } ----------------------------------------------------------------------'
//! ```
//!
//! What an `Arc<Box<[u8]>>` does, with less to wait for: who looks at a block waits for the block and for nothing else, its count
//! is found by its address, and a block lies in one page and not in two. Counts are side by side: of many gigabytes of blocks few pages
//! have all of them, which a processor remembers the places of. Blocks that are let go are taken again by whoever wants one next,
//! without asking the system.
//!
//! Owns: arenas, their regions and blocks, who holds how many. Does **not** own: what is in a block; how many there may be (see
//! `memory`).
//!
//! Invariants
//! 1. A block's count is how many hold it, 1 at least; bytes are changed only by who holds it alone, and has it `&mut`.
//! 2. A block that nobody holds is in its pool's list of free blocks, or in the magazine of one thread; or its region has no memory.
//! 3. Nobody sees what was in a block before: it is filled whole when it is made.
//! 4. A region whose blocks are all free returns its memory to the system, except for a few regions. Its addresses stay reserved.
//!    With [`purge_free_blocks`] each block does so when it is freed.
//!
//! Locks: one per size of blocks, held for the moves of a batch.
//!
//! ```
//! use blocks::Block;
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

/// Copies of blocks for who does not look at them: they do not go through the processor's caches, where that is known to be less work,
/// and are waited for together.
///
/// ```
/// use blocks::Copies;
/// let mut copies = Copies::default();
/// copies.push(4096, |copy| {
///     copy.put(&[7; 4092]);
///     copy.put(b"last");
/// });
/// assert_eq!(copies.finish().next().unwrap()[4090..], *b"\x07\x07last");
/// ```
#[derive(Default)]
pub struct Copies {
    /// Nobody is given one before all of them are where others find them.
    made: Vec<Block>,
    /// It is this thread that has to wait for what it wrote.
    of_thread: PhantomData<*const ()>,
}

impl Drop for Copies {
    fn drop(&mut self) {
        // What was not given to anybody is taken by others next.
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
                // SAFETY: `start` is good for as many bytes, which nobody else has and nobody looks at; it and they are whole lines.
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
        // Before anybody else can be told of one.
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
    /// Puts these bytes behind those that are there. Whole lines of 64 bytes, where only such are there, are least work.
    ///
    /// # Panics
    /// If there is no room for them.
    pub fn put(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            stream::Lines::Past(past) => past.put(bytes),
            stream::Lines::Odd(all, len) => {
                assert!(all.len() + bytes.len() <= *len, "a copy has no more bytes than were told");
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
                assert!(all.len() + len <= *whole, "a copy has no more bytes than were told");
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

/// Bytes that several may hold; cheap to clone. Who holds them alone may change them.
pub struct Block {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the bytes are changed only through `&mut` by the only holder, and the count is atomic: as an `Arc<[u8]>`.
unsafe impl Send for Block {}
// SAFETY: as above; `&Block` gives `&[u8]` and clones.
unsafe impl Sync for Block {}

impl Block {
    /// `len` zeros.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        // SAFETY: `start` is good for `len` bytes that nobody else has.
        Self::made(len, |start| unsafe { start.write_bytes(0, len) })
    }

    /// The same bytes.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        // SAFETY: `start` is good for as many bytes, which nobody else has, so they do not overlap.
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

    /// How many hold it, this one too. Others may change that at any time, unless it is 1 and nobody else has this one.
    #[must_use]
    pub fn holders(&self) -> usize {
        if self.len == 0 { 1 } else { self.count().load(Ordering::Relaxed) as usize }
    }

    /// Are these the same bytes, not equal ones?
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        self.start == other.start && self.len == other.len
    }

    /// The bytes, if nobody else holds them.
    pub fn get_mut(&mut self) -> Option<&mut [u8]> {
        if self.len > 0 && self.count().load(Ordering::Acquire) != 1 {
            return None;
        }
        // SAFETY: nobody else holds them, and nobody can begin to while this one is borrowed.
        Some(unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) })
    }

    /// The bytes, to be changed: of a copy, if somebody else holds them.
    pub fn make_mut(&mut self) -> &mut [u8] {
        if self.get_mut().is_none() {
            *self = Self::copy_of(self);
        }
        self.get_mut().expect("a copy is held by one")
    }

    /// Asks the processor for the count, for who looks at the bytes first and then, maybe, changes them.
    #[inline]
    pub fn ask_for_count(&self) {
        if self.len > 0 {
            ask(std::ptr::from_ref(self.count()).cast());
        }
    }

    /// Where the count is. Not for blocks of no bytes.
    fn count(&self) -> &AtomicU32 {
        match Class::of(self.len) {
            // SAFETY: `start` came from `magazine::take` of this class, and is not given back as long as this holds it.
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
        // What others did with the bytes happened before they are somebody else's.
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
        // SAFETY: good for `len` bytes that were filled when it was made, and that nobody changes while they are borrowed.
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

/// Asks the processor for what who changes a block that begins there, at this offset, waits for; whatever is there by now.
#[inline]
pub fn ask_for_block(start: usize, len: usize, at: usize) {
    if let Some(class) = Class::of(len) {
        ask(std::ptr::without_provenance(class.count_at(start)));
        ask(std::ptr::without_provenance(start.wrapping_add(at)));
        ask(std::ptr::without_provenance(start.wrapping_add(at).wrapping_add(LINE)));
        // What changes often changes a checksum at the end.
        ask(std::ptr::without_provenance(start.wrapping_add(len - LINE)));
    }
}

/// Asks the processor for the line that something begins in, for who needs it in a moment and has other things to do until then.
#[inline]
pub fn ask_for_start<T>(of: &T) {
    ask(std::ptr::from_ref(of).cast());
}

/// Asks the processor for all lines of something, for who needs most of them in a moment.
#[inline]
pub fn ask_for_whole<T>(of: &T) {
    let start: *const u8 = std::ptr::from_ref(of).cast();
    (0..size_of::<T>()).step_by(LINE).for_each(|at| ask(start.wrapping_add(at)));
}

/// Asks the processor for the line at an address; whatever is there by now.
#[inline]
pub fn ask_for_place(at: usize) {
    ask(std::ptr::without_provenance(at));
}

/// Asks the processor for bytes that will be read all of, and in a moment: all at once, where who reads them waits for one after the
/// other, as far as the processor does not guess what comes.
#[inline]
pub fn ask_for(bytes: &[u8]) {
    bytes.chunks(LINE).for_each(|line| ask(line.as_ptr()));
}

/// Asks the processor for the lines that bytes begin and end in: where they are is looked up then, whoever reads all of them.
#[inline]
pub fn ask_for_ends(bytes: &[u8]) {
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
pub fn ask_to_write_behind<T>(all: &Vec<T>, bytes: usize) {
    let room = (all.capacity() - all.len()) * size_of::<T>();
    let start = NonNull::from(&all[..]).cast::<u8>();
    // SAFETY: behind the elements, where there is room.
    let behind = unsafe { start.add(size_of_val(&all[..])) };
    ask_to_write(behind, bytes.min(room));
}

/// Asks for memory that will be written all of, and in a moment.
#[inline]
fn ask_to_write(start: NonNull<u8>, len: usize) {
    for at in (0..len).step_by(LINE) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: memory that nobody has; changes nothing.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_ET0>(start.as_ptr().add(at).cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (start, at);
    }
}

/// Bytes that a processor moves at a time.
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
