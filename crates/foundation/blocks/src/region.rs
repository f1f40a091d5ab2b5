//! Arenas of blocks of one size, the regions of 2 MiB that an arena consists of, and the pool of all regions
//! of one block size.
//!
//! The head of an arena holds the counts of all its blocks and each region's list of free blocks. Allocating
//! and freeing therefore touch the head only, not the block: 384 KiB for 64 Ki blocks of 4 KiB. With many
//! gigabytes of blocks the TLB cannot cover the pages of the blocks, but it covers those of the heads.
//!
//! Blocks are taken from one region until it is exhausted, so that sparsely used regions can become empty.

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::pages;

/// Size and alignment of a region in bytes: one huge page.
const REGION: usize = 2 << 20;
/// Size and alignment of an arena in bytes of address space; memory is committed per region.
const ARENA: usize = if usize::BITS == 64 { 256 << 20 } else { 16 << 20 };
/// Regions of an arena. The first one holds the head.
const REGIONS: usize = ARENA / REGION;
/// log2 of the sizes of the smallest and the largest block.
const LOG_MIN: u32 = 10;
const LOG_MAX: u32 = 16;
/// The first regions of a pool use small pages: huge pages cost more to set up and do not pay off for a few
/// blocks.
const SMALL_PAGES: usize = 4;
/// Regions that are prefetched together.
const REGIONS_AHEAD: usize = 12;
/// Empty regions that keep their memory: at least this many, or one in `EMPTY_PART` of the pool's regions.
const EMPTY_MIN: usize = 8;
const EMPTY_PART: usize = 8;

/// The system's smallest page, in bytes.
const PAGE: usize = 4096;

/// Whether the memory of each free block goes back to the system, not only that of empty regions.
static PURGES_FREE: AtomicBool = AtomicBool::new(false);

/// Whether the memory of each block that is freed from now on returns to the system, or stays for the next
/// block (the default).
///
/// For processes with a small memory budget: the free blocks of regions in use can exceed that budget. It
/// costs a system call per freed block, and a page fault when the block is used again.
pub fn purge_free_blocks(on: bool) {
    PURGES_FREE.store(on, Ordering::Relaxed);
}

/// Returns the memory of these blocks to the system if [`purge_free_blocks`] is on. They read as zeros
/// afterwards.
///
/// # Safety
/// The blocks are of `class`, and free: no [`Block`](crate::Block) refers to them and they are in no list.
pub(crate) unsafe fn purge(class: Class, blocks: &[NonNull<u8>]) {
    if PURGES_FREE.load(Ordering::Relaxed) && class.len().is_multiple_of(PAGE) {
        for block in blocks {
            // SAFETY: whole pages of a free block.
            unsafe { pages::release(*block, class.len()) };
        }
    }
}

/// Requests huge pages for memory that is not in use yet.
pub(crate) fn in_huge_pages<T>(memory: &mut [MaybeUninit<T>]) {
    let range = memory.as_mut_ptr_range();
    let (start, end) = (range.start.cast::<u8>(), range.end.cast::<u8>());
    let before = start.addr().next_multiple_of(REGION) - start.addr();
    let len = (end.addr() - start.addr()).saturating_sub(before) / REGION * REGION;
    // SAFETY: inside the caller's memory, or at its end.
    if let Some(start) = NonNull::new(unsafe { start.add(before.min(end.addr() - start.addr())) })
        && len > 0
    {
        // SAFETY: a part of the caller's memory.
        unsafe { pages::advise_huge(start, len) };
    }
}

/// The state of a region, protected by its pool's lock.
#[derive(Clone, Copy)]
struct Region {
    /// Free blocks.
    free: u32,
    /// Its index in [`Pool::available`]; meaningless if no block is free.
    place: u32,
}

/// The start of an arena. The counts of its blocks follow, then the regions' lists of free blocks. A list
/// holds block numbers within the region; it has room for all blocks, and its first `free` entries are valid.
#[repr(C, align(64))]
struct Head {
    regions: [Region; REGIONS],
}

const _: () = assert!(
    size_of::<Head>() + (ARENA >> LOG_MIN) * (size_of::<AtomicU32>() + size_of::<u16>()) <= REGION
        && (REGION >> LOG_MIN) <= u16::MAX as usize
);

/// A block size: a power of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Class(u32);

impl Class {
    pub(crate) const COUNT: usize = (LOG_MAX - LOG_MIN + 1) as usize;

    /// The class of blocks of `len` bytes, if there is one.
    #[inline]
    pub(crate) fn of(len: usize) -> Option<Self> {
        let log = len.trailing_zeros();
        (len.is_power_of_two() && (LOG_MIN..=LOG_MAX).contains(&log)).then_some(Self(log))
    }

    /// Index of the class, from 0.
    pub(crate) fn index(self) -> usize {
        (self.0 - LOG_MIN) as usize
    }

    pub(crate) fn len(self) -> usize {
        1 << self.0
    }

    /// Blocks per region.
    fn blocks(self) -> u32 {
        (REGION >> self.0) as u32
    }

    /// The address of a block's count.
    #[inline]
    pub(crate) fn count_at(self, block: usize) -> usize {
        let within = block % ARENA;
        block - within + size_of::<Head>() + (within >> self.0) * size_of::<AtomicU32>()
    }

    /// The count of a block.
    ///
    /// # Safety
    /// The block was allocated from this class, and is not freed while the reference lives.
    #[inline]
    pub(crate) unsafe fn count<'a>(self, block: NonNull<u8>) -> &'a AtomicU32 {
        let within = block.as_ptr().addr() % ARENA;
        // SAFETY: the block lies in an arena, which begins with a head and counts for all blocks.
        unsafe {
            let counts = block.sub(within).add(size_of::<Head>()).cast::<AtomicU32>();
            counts.add(within >> self.0).as_ref()
        }
    }
}

/// An arena, by its start. It is never unmapped.
#[derive(Debug, Clone, Copy)]
struct Arena(NonNull<Head>);

// SAFETY: used only under the lock of the pool that owns it.
unsafe impl Send for Arena {}

impl Arena {
    /// The arena of a block, and the number of its region.
    fn of(block: NonNull<u8>) -> (Self, usize) {
        let within = block.as_ptr().addr() % ARENA;
        // SAFETY: the beginning of the arena that the block lies in.
        (Self(unsafe { block.sub(within) }.cast()), within / REGION)
    }

    /// Reserves address space and commits memory for the head. `None` if the system refuses.
    fn make(in_huge_pages: bool) -> Option<Self> {
        let arena = Self(pages::reserve(ARENA)?.cast());
        if !arena.make_region(0, in_huge_pages) {
            // SAFETY: the arena has no other user.
            unsafe { pages::unreserve(arena.0.cast(), ARENA) };
            return None;
        }
        // SAFETY: the head has memory now, and no other user.
        unsafe { arena.0.write(Head { regions: [Region { free: 0, place: 0 }; REGIONS] }) };
        Some(arena)
    }

    /// Commits memory for a region, zeroed. Returns whether that succeeded.
    fn make_region(self, number: usize, in_huge_pages: bool) -> bool {
        let start = self.region(number);
        // SAFETY: a part of the arena without allocated blocks.
        unsafe {
            if !pages::commit(start, REGION) {
                return false;
            }
            if in_huge_pages {
                pages::advise_huge(start, REGION);
            }
        }
        true
    }

    /// Returns a region's memory to the system.
    ///
    /// # Safety
    /// No block of the region is allocated.
    unsafe fn unmake_region(self, number: usize) {
        // SAFETY: a part of the arena without allocated blocks.
        unsafe { pages::release(self.region(number), REGION) };
    }

    /// The start of a region.
    fn region(self, number: usize) -> NonNull<u8> {
        debug_assert!(number < REGIONS, "an arena has {REGIONS} regions");
        // SAFETY: inside the arena.
        unsafe { self.0.cast::<u8>().add(number * REGION) }
    }

    /// The state of a region.
    ///
    /// # Safety
    /// The caller holds the lock of the pool, and no other such borrow lives.
    unsafe fn state<'a>(self, number: usize) -> &'a mut Region {
        // SAFETY: the arena begins with its head.
        unsafe { &mut (*self.0.as_ptr()).regions[number] }
    }

    /// The list of free blocks of a region, with room for all. Only its first `free` entries are valid.
    ///
    /// # Safety
    /// As [`state`](Self::state).
    unsafe fn list<'a>(self, class: Class, number: usize) -> &'a mut [u16] {
        let blocks = class.blocks() as usize;
        let counts = (ARENA >> class.0) * size_of::<AtomicU32>();
        // SAFETY: after head and counts, all of which fit into the arena's first region, which starts as
        // zeros.
        unsafe {
            let lists = self.0.cast::<u8>().add(size_of::<Head>() + counts).cast::<u16>();
            std::slice::from_raw_parts_mut(lists.add(number * blocks).as_ptr(), blocks)
        }
    }
}

/// All regions of a class.
pub(crate) struct Pool {
    /// Regions with a free block. Each knows its index here.
    available: Vec<(Arena, usize)>,
    /// Regions without memory, which can be committed again.
    gone: Vec<(Arena, usize)>,
    /// The next region that was never used; its number is `REGIONS` if the arena has none left.
    next: Option<(Arena, usize)>,
    arenas: usize,
    /// Regions with memory.
    regions: usize,
    /// Regions of which all blocks are free.
    empty: usize,
}

static POOLS: [Mutex<Pool>; Class::COUNT] = [const { Mutex::new(Pool::new()) }; Class::COUNT];

impl Pool {
    const fn new() -> Self {
        Self { available: Vec::new(), gone: Vec::new(), next: None, arenas: 0, regions: 0, empty: 0 }
    }

    pub(crate) fn of(class: Class) -> MutexGuard<'static, Self> {
        POOLS[class.index()].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes up to `n` free blocks; at least one unless the system is out of memory.
    pub(crate) fn take(&mut self, class: Class, n: usize, mut into: impl FnMut(NonNull<u8>)) {
        if self.available.is_empty() && !self.make_region(class) {
            return;
        }
        self.prefetch_regions(class);
        let mut left = n as u32;
        while let Some((arena, number)) = self.available.last().copied().filter(|_| left > 0) {
            // SAFETY: under the lock, and the only borrows until the next iteration.
            let (region, list) = unsafe { (arena.state(number), arena.list(class, number)) };
            self.empty -= usize::from(region.free == class.blocks());
            let now = left.min(region.free);
            for at in list[..region.free as usize].iter().rev().take(now as usize) {
                // SAFETY: a block of the region.
                into(unsafe { arena.region(number).add(usize::from(*at) * class.len()) });
            }
            region.free -= now;
            left -= now;
            if region.free == 0 {
                self.available.pop();
            }
        }
    }

    /// Prefetches the states and lists of the next regions. With many gigabytes of blocks, each region has
    /// few free ones.
    fn prefetch_regions(&self, class: Class) {
        let next = &self.available[self.available.len().saturating_sub(REGIONS_AHEAD)..];
        for (arena, number) in next {
            // SAFETY: under the lock, and the borrow ends here.
            crate::prefetch_start(unsafe { arena.state(*number) });
        }
        for (arena, number) in next {
            // SAFETY: as above, one after the other.
            let free = unsafe { arena.state(*number) }.free as usize;
            // SAFETY: as above.
            let list = unsafe { arena.list(class, *number) };
            list[..free].last().into_iter().for_each(crate::prefetch_start);
        }
    }

    /// Commits one more region. Returns whether that succeeded.
    fn make_region(&mut self, class: Class) -> bool {
        let in_huge_pages = self.regions >= SMALL_PAGES;
        let (arena, number) = match self.gone.pop() {
            Some(place) => place,
            None => {
                let next = self.next.take().filter(|(_, number)| *number < REGIONS);
                let Some((arena, number)) = next.or_else(|| Some((self.make_arena()?, 1))) else {
                    return false;
                };
                self.next = Some((arena, number + 1));
                (arena, number)
            }
        };
        if !arena.make_region(number, in_huge_pages) {
            self.gone.push((arena, number));
            return false;
        }
        // SAFETY: under the lock, and the only borrows.
        unsafe {
            *arena.state(number) = Region { free: class.blocks(), place: self.available.len() as u32 };
            // In descending order, so that the first block is taken first.
            arena.list(class, number).iter_mut().rev().zip(0..).for_each(|(at, block)| *at = block);
        }
        self.available.push((arena, number));
        self.regions += 1;
        self.empty += 1;
        true
    }

    fn make_arena(&mut self) -> Option<Arena> {
        let arena = Arena::make(self.arenas > 0)?;
        self.arenas += 1;
        Some(arena)
    }

    /// Frees a block.
    pub(crate) fn put(&mut self, class: Class, block: NonNull<u8>) {
        let (arena, number) = Arena::of(block);
        // SAFETY: under the lock, and no other borrow lives as long as these.
        let (region, list) = unsafe { (arena.state(number), arena.list(class, number)) };
        list[region.free as usize] = (block.as_ptr().addr() % REGION / class.len()) as u16;
        region.free += 1;
        if region.free == 1 {
            region.place = self.available.len() as u32;
            self.available.push((arena, number));
        }
        if region.free < class.blocks() {
            return;
        }
        self.empty += 1;
        if self.empty > EMPTY_MIN.max(self.regions / EMPTY_PART) {
            let place = region.place as usize;
            self.available.swap_remove(place);
            if let Some((arena, moved)) = self.available.get(place) {
                // SAFETY: under the lock; the state of another region.
                unsafe { arena.state(*moved) }.place = place as u32;
            }
            self.empty -= 1;
            self.regions -= 1;
            self.gone.push((arena, number));
            // SAFETY: all its blocks are free, and none is taken before the region is committed again.
            unsafe { arena.unmake_region(number) };
        }
    }

    #[cfg(test)]
    pub(crate) fn regions(&self) -> usize {
        self.regions
    }
}
