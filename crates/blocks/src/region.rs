//! Arenas of blocks of one size, the regions of 2 MiB that they consist of, and the pool of those of a size.
//!
//! An arena's head has the counts of all its blocks and the free blocks of each region, so allocating and
//! freeing touch the head, not the block: 384 KiB for 64 Ki blocks of 4 KiB. With many gigabytes of blocks
//! the TLB does not hold their pages; it holds those of the heads.
//!
//! Blocks are taken from one region until it has none, so that of regions that are little used some become
//! empty.

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap};

/// Bytes of a region, and what it is aligned to: a huge page.
const REGION: usize = 2 << 20;
/// Bytes of an arena, and what it is aligned to: of addresses, not of memory.
const ARENA: usize = if usize::BITS == 64 { 256 << 20 } else { 16 << 20 };
/// Regions of an arena. The first one is its head.
const REGIONS: usize = ARENA / REGION;
/// log2 of the smallest and of the largest block.
const LOG_MIN: u32 = 10;
const LOG_MAX: u32 = 16;
/// The regions of a pool that are not made of huge pages: a small pool has no use for them, and they cost
/// more to make.
const SMALL_PAGES: usize = 4;
/// Regions that are looked at together.
const REGIONS_AHEAD: usize = 12;
/// Regions that stay when they are empty, at least; and the part of all regions of a pool.
const EMPTY_MIN: usize = 8;
const EMPTY_PART: usize = 8;

/// The system's smallest page.
const PAGE: usize = 4096;

/// Whether the memory of each free block goes back to the system, not only that of empty regions.
static PURGES_FREE: AtomicBool = AtomicBool::new(false);

/// Returns the memory of each block that is freed from now on to the system, or keeps it for the next block
/// (the default).
///
/// For processes with a small memory budget: there the free blocks of regions in use can be more than the
/// budget. It costs a system call per freed block, and a page fault when the block is used again.
pub fn purge_free_blocks(on: bool) {
    PURGES_FREE.store(on, Ordering::Relaxed);
}

/// Returns the memory of these blocks to the system, if the process asked for that. They read as zeros
/// afterwards.
///
/// # Safety
/// The blocks are of `class`, and free: no [`Block`](crate::Block) refers to them and they are in no list.
pub(crate) unsafe fn purge(class: Class, blocks: &[NonNull<u8>]) {
    if PURGES_FREE.load(Ordering::Relaxed) && class.len().is_multiple_of(PAGE) {
        for block in blocks {
            // SAFETY: whole pages of a free block. If the system does not take them they stay.
            let _ = unsafe { madvise(block.as_ptr().cast(), class.len(), Advice::LinuxDontNeed) };
        }
    }
}

/// Asks the system for huge pages for memory that nothing is in yet.
pub(crate) fn in_huge_pages<T>(memory: &mut [MaybeUninit<T>]) {
    let range = memory.as_mut_ptr_range();
    let (start, end) = (range.start.cast::<u8>(), range.end.cast::<u8>());
    let before = start.addr().next_multiple_of(REGION) - start.addr();
    let len = (end.addr() - start.addr()).saturating_sub(before) / REGION * REGION;
    if len > 0 {
        // SAFETY: a part of memory that the caller has; what is in it stays. A system without huge pages has
        // small ones.
        let _ = unsafe { madvise(start.add(before).cast(), len, Advice::LinuxHugepage) };
    }
}

/// What is known of a region: only under its pool's lock.
#[derive(Clone, Copy)]
struct Region {
    /// Blocks that are free.
    free: u32,
    /// Its place among those that have free blocks; meaningless without any.
    place: u32,
}

/// Where an arena begins; the counts of its blocks follow, and the lists of free blocks of its regions:
/// numbers of blocks in their region, as many as are free, with room for all.
#[repr(C, align(64))]
struct Head {
    regions: [Region; REGIONS],
}

const _: () = assert!(
    size_of::<Head>() + (ARENA >> LOG_MIN) * (size_of::<AtomicU32>() + size_of::<u16>()) <= REGION
        && (REGION >> LOG_MIN) <= u16::MAX as usize
);

/// Blocks of one size: a power of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Class(u32);

impl Class {
    pub(crate) const COUNT: usize = (LOG_MAX - LOG_MIN + 1) as usize;

    /// Of blocks of `len` bytes, if regions have such.
    #[inline]
    pub(crate) fn of(len: usize) -> Option<Self> {
        let log = len.trailing_zeros();
        (len.is_power_of_two() && (LOG_MIN..=LOG_MAX).contains(&log)).then_some(Self(log))
    }

    /// Counted from 0.
    pub(crate) fn index(self) -> usize {
        (self.0 - LOG_MIN) as usize
    }

    pub(crate) fn len(self) -> usize {
        1 << self.0
    }

    /// Blocks of a region.
    fn blocks(self) -> u32 {
        (REGION >> self.0) as u32
    }

    /// Where the count of a block is, by where the block is.
    #[inline]
    pub(crate) fn count_at(self, block: usize) -> usize {
        let within = block % ARENA;
        block - within + size_of::<Head>() + (within >> self.0) * size_of::<AtomicU32>()
    }

    /// The count of a block.
    ///
    /// # Safety
    /// The block was taken of this class, and not given back for the time that the count is looked at.
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

/// A place for regions, by its beginning. It stays for good.
#[derive(Debug, Clone, Copy)]
struct Arena(NonNull<Head>);

// SAFETY: used only under the lock of the pool that owns it.
unsafe impl Send for Arena {}

impl Arena {
    /// That of a block, and the number of its region.
    fn of(block: NonNull<u8>) -> (Self, usize) {
        let within = block.as_ptr().addr() % ARENA;
        // SAFETY: the beginning of the arena that the block lies in.
        (Self(unsafe { block.sub(within) }.cast()), within / REGION)
    }

    /// Addresses without memory, but for its head. `None`: the system has none.
    fn make(in_huge_pages: bool) -> Option<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at a place of the system's choice.
        let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), 2 * ARENA, ProtFlags::empty(), flags) };
        // With what it takes to begin at a multiple; the rest is given back.
        let mapped = mapped.ok()?.cast::<u8>();
        let before = mapped.addr().next_multiple_of(ARENA) - mapped.addr();
        // SAFETY: parts of the new mapping that are not referenced; a part that cannot be unmapped stays,
        // untouched.
        let start = unsafe {
            let start = mapped.add(before);
            if before > 0 {
                let _ = munmap(mapped.cast(), before);
            }
            if before < ARENA {
                let _ = munmap(start.add(ARENA).cast(), ARENA - before);
            }
            start
        };
        let arena = Self(NonNull::new(start.cast())?);
        if !arena.make_region(0, in_huge_pages) {
            // SAFETY: it is not referenced.
            let _ = unsafe { munmap(start.cast(), ARENA) };
            return None;
        }
        // SAFETY: it has memory now, which is not referenced elsewhere.
        unsafe { arena.0.write(Head { regions: [Region { free: 0, place: 0 }; REGIONS] }) };
        Some(arena)
    }

    /// Lets a region's place be memory, zeros at first. Can it?
    fn make_region(self, number: usize, in_huge_pages: bool) -> bool {
        // SAFETY: a part of the arena without a block in use.
        unsafe {
            let start = self.region(number).as_ptr().cast();
            if mprotect(start, REGION, MprotectFlags::READ | MprotectFlags::WRITE).is_err() {
                return false;
            }
            if in_huge_pages {
                // A system without them has small ones.
                let _ = madvise(start, REGION, Advice::LinuxHugepage);
            }
        }
        true
    }

    /// Gives a region's memory back.
    ///
    /// # Safety
    /// None of its blocks is in use.
    unsafe fn unmake_region(self, number: usize) {
        // SAFETY: a part of the arena without use. If the system does not take it back it stays.
        let _ = unsafe { madvise(self.region(number).as_ptr().cast(), REGION, Advice::LinuxDontNeed) };
    }

    /// Where a region begins.
    fn region(self, number: usize) -> NonNull<u8> {
        debug_assert!(number < REGIONS, "an arena has {REGIONS} regions");
        // SAFETY: inside of the arena.
        unsafe { self.0.cast::<u8>().add(number * REGION) }
    }

    /// What is known of it.
    ///
    /// # Safety
    /// Under the lock of its pool, and while no other such borrow lives.
    unsafe fn state<'a>(self, number: usize) -> &'a mut Region {
        // SAFETY: the arena begins with its head.
        unsafe { &mut (*self.0.as_ptr()).regions[number] }
    }

    /// Its list of free blocks, with room for all; what is behind as many as are free means nothing.
    ///
    /// # Safety
    /// As [`state`](Self::state).
    unsafe fn list<'a>(self, class: Class, number: usize) -> &'a mut [u16] {
        let blocks = class.blocks() as usize;
        let counts = (ARENA >> class.0) * size_of::<AtomicU32>();
        // SAFETY: behind head and counts, all of which fit into the arena's first region, which begins as
        // zeros.
        unsafe {
            let lists = self.0.cast::<u8>().add(size_of::<Head>() + counts).cast::<u16>();
            std::slice::from_raw_parts_mut(lists.add(number * blocks).as_ptr(), blocks)
        }
    }
}

/// All regions of a class.
pub(crate) struct Pool {
    /// Those that have a free block, each with its place here.
    available: Vec<(Arena, usize)>,
    /// Where regions that gave their memory back may be made again.
    gone: Vec<(Arena, usize)>,
    /// Where the next one is made, if that has a place left.
    next: Option<(Arena, usize)>,
    arenas: usize,
    /// Regions that have memory.
    regions: usize,
    /// Of them, those whose blocks are all free.
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

    /// Takes up to `n` free blocks, one at least unless the system has no memory.
    pub(crate) fn take(&mut self, class: Class, n: usize, mut into: impl FnMut(NonNull<u8>)) {
        if self.available.is_empty() && !self.make_region(class) {
            return;
        }
        self.prefetch_regions(class);
        let mut left = n as u32;
        while let Some((arena, number)) = self.available.last().copied().filter(|_| left > 0) {
            // SAFETY: under the lock, and the only borrows until the next turn.
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

    /// Prefetches the heads of the regions that are used next. Of many gigabytes each has few free blocks.
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

    /// One more region that has free blocks. Can there be one?
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
            // The first one is taken first.
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

    /// Frees a block without a holder.
    pub(crate) fn put(&mut self, class: Class, block: NonNull<u8>) {
        let (arena, number) = Arena::of(block);
        // SAFETY: under the lock, and the only borrows until they are used no more.
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
                // SAFETY: under the lock; another region's state.
                unsafe { arena.state(*moved) }.place = place as u32;
            }
            self.empty -= 1;
            self.regions -= 1;
            self.gone.push((arena, number));
            // SAFETY: all its blocks are free, and none can be taken until it is made again.
            unsafe { arena.unmake_region(number) };
        }
    }

    #[cfg(test)]
    pub(crate) fn regions(&self) -> usize {
        self.regions
    }
}
