//! Regions: 2 MiB of blocks of one size, and the pool of those of a size.
//!
//! A region's head tells how many of its blocks are free and which is the first; a free block's count tells the next. So what is
//! done with a block that nobody holds touches the head of its region, not the block.

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Bytes of a region, and what it is aligned to: a huge page.
const REGION: usize = 2 << 20;
/// log2 of the smallest and of the largest block.
const LOG_MIN: u32 = 10;
const LOG_MAX: u32 = 16;
/// Regions of a pool that are not made of huge pages: who has few blocks has no use for them, and they cost more to make.
const SMALL_PAGES: usize = 4;
/// Regions that stay when they are empty, at least; and the part of all regions of a pool.
const EMPTY_MIN: usize = 8;
const EMPTY_PART: usize = 8;
/// No block.
const END: u32 = u32::MAX;

/// Asks the system for huge pages for memory that nothing is in yet.
pub(crate) fn in_huge_pages<T>(memory: &mut [MaybeUninit<T>]) {
    let range = memory.as_mut_ptr_range();
    let (start, end) = (range.start.cast::<u8>(), range.end.cast::<u8>());
    let before = start.addr().next_multiple_of(REGION) - start.addr();
    let len = (end.addr() - start.addr()).saturating_sub(before) / REGION * REGION;
    if len > 0 {
        // SAFETY: a part of memory that the caller has; what is in it stays. A system without huge pages has small ones.
        let _ = unsafe { madvise(start.add(before).cast(), len, Advice::LinuxHugepage) };
    }
}

/// Where a region begins: only under its pool's lock.
#[repr(C, align(64))]
struct Head {
    /// Blocks that are free, and the first of them.
    free: u32,
    first: u32,
    /// Its place among those that have free blocks; meaningless without any.
    place: usize,
}

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

    /// Blocks of a region, and those among them that its head takes.
    fn blocks(self) -> (u32, u32) {
        let all = REGION >> self.0;
        let head = size_of::<Head>() + all * size_of::<AtomicU32>();
        (all as u32, head.div_ceil(self.len()) as u32)
    }

    /// Where the count of a block is, by where the block is.
    pub(crate) fn count_at(self, block: usize) -> usize {
        let within = block % REGION;
        block - within + size_of::<Head>() + (within >> self.0) * size_of::<AtomicU32>()
    }

    /// The count of a block.
    ///
    /// # Safety
    /// The block was taken of this class, and not given back for the time that the count is looked at.
    #[inline]
    pub(crate) unsafe fn count<'a>(self, block: NonNull<u8>) -> &'a AtomicU32 {
        let within = block.as_ptr().addr() % REGION;
        // SAFETY: the block lies in a region, which begins with a head and counts for all blocks.
        unsafe {
            let counts = block.sub(within).add(size_of::<Head>()).cast::<AtomicU32>();
            counts.add(within >> self.0).as_ref()
        }
    }
}

/// A region, by its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Region(NonNull<Head>);

// SAFETY: used only under the lock of the pool that owns it.
unsafe impl Send for Region {}

impl Region {
    fn of(block: NonNull<u8>) -> Self {
        let within = block.as_ptr().addr() % REGION;
        // SAFETY: the beginning of the region that the block lies in.
        Self(unsafe { block.sub(within) }.cast())
    }

    /// A new one, all free. `None`: the system has no memory.
    fn make(class: Class, in_huge_pages: bool) -> Option<Self> {
        let (all, head) = class.blocks();
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let ask = |len: usize| {
            // SAFETY: a new mapping at a place of the system's choice.
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }
        };
        // With what it takes to begin at a multiple; the rest is given back.
        let mapped = ask(2 * REGION).ok()?.cast::<u8>();
        let before = mapped.addr().next_multiple_of(REGION) - mapped.addr();
        // SAFETY: parts of the new mapping that nobody knows of; what cannot be given back stays, untouched.
        let start = unsafe {
            let start = mapped.add(before);
            if before > 0 {
                let _ = munmap(mapped.cast(), before);
            }
            if before < REGION {
                let _ = munmap(start.add(REGION).cast(), REGION - before);
            }
            if in_huge_pages {
                // A system without them has small ones.
                let _ = madvise(start.cast(), REGION, Advice::LinuxHugepage);
            }
            start
        };
        let region = Self(NonNull::new(start.cast())?);
        // SAFETY: the head and the counts of a region that nobody else knows of.
        unsafe {
            region.0.write(Head { free: all - head, first: head, place: 0 });
            for at in head..all {
                let next = if at + 1 < all { at + 1 } else { END };
                region.count(at).store(next, Ordering::Relaxed);
            }
        }
        Some(region)
    }

    /// Gives all of it back.
    ///
    /// # Safety
    /// All its blocks are free, and nobody will look at them.
    unsafe fn unmake(self) {
        // SAFETY: made by `make`, and of no use to anybody. If the system does not want it back it stays.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), REGION) };
    }

    /// # Safety
    /// Under the lock of its pool, and while no other such borrow lives.
    unsafe fn head<'a>(self) -> &'a mut Head {
        // SAFETY: the region begins with it.
        unsafe { &mut *self.0.as_ptr() }
    }

    /// # Safety
    /// `at` is one of its blocks.
    unsafe fn count<'a>(self, at: u32) -> &'a AtomicU32 {
        // SAFETY: behind the head there is one for each block.
        unsafe { self.0.add(1).cast::<AtomicU32>().add(at as usize).as_ref() }
    }
}

/// All regions of a class.
pub(crate) struct Pool {
    /// Those that have a free block, each with its place here.
    available: Vec<Region>,
    regions: usize,
    /// Of them, those whose blocks are all free.
    empty: usize,
}

static POOLS: [Mutex<Pool>; Class::COUNT] =
    [const { Mutex::new(Pool { available: Vec::new(), regions: 0, empty: 0 }) }; Class::COUNT];

impl Pool {
    pub(crate) fn of(class: Class) -> MutexGuard<'static, Self> {
        POOLS[class.index()].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes up to `n` free blocks, one at least unless the system has no memory.
    pub(crate) fn take(&mut self, class: Class, n: usize, mut into: impl FnMut(NonNull<u8>)) {
        let (all, head_blocks) = class.blocks();
        if self.available.is_empty() {
            let Some(region) = Region::make(class, self.regions >= SMALL_PAGES) else { return };
            self.available.push(region);
            self.regions += 1;
            self.empty += 1;
        }
        let mut left = n;
        while let Some(region) = self.available.last().copied().filter(|_| left > 0) {
            // SAFETY: under the lock, and the only borrow until the next turn.
            let head = unsafe { region.head() };
            self.empty -= usize::from(head.free == all - head_blocks);
            while left > 0 && head.free > 0 {
                let at = head.first;
                // SAFETY: the list of free blocks has blocks of this region; a free one is nobody's.
                unsafe {
                    head.first = region.count(at).load(Ordering::Relaxed);
                    into(region.0.cast::<u8>().add(at as usize * class.len()));
                }
                head.free -= 1;
                left -= 1;
            }
            if head.free == 0 {
                self.available.pop();
            }
        }
    }

    /// Takes back a block that nobody holds.
    pub(crate) fn put(&mut self, class: Class, block: NonNull<u8>) {
        let (all, head_blocks) = class.blocks();
        let region = Region::of(block);
        let at = ((block.as_ptr().addr() % REGION) / class.len()) as u32;
        // SAFETY: under the lock, and the only borrow until it is used no more.
        let head = unsafe { region.head() };
        // SAFETY: `at` is where the block is, and nobody holds it.
        unsafe { region.count(at).store(head.first, Ordering::Relaxed) };
        head.first = at;
        head.free += 1;
        if head.free == 1 {
            head.place = self.available.len();
            self.available.push(region);
        }
        if head.free < all - head_blocks {
            return;
        }
        self.empty += 1;
        if self.empty > EMPTY_MIN.max(self.regions / EMPTY_PART) {
            let place = head.place;
            self.available.swap_remove(place);
            if let Some(moved) = self.available.get(place) {
                // SAFETY: under the lock; another region's head.
                unsafe { moved.head() }.place = place;
            }
            self.empty -= 1;
            self.regions -= 1;
            // SAFETY: all its blocks are in its list, and it is in none any more.
            unsafe { region.unmake() };
        }
    }

    #[cfg(test)]
    pub(crate) fn regions(&self) -> usize {
        self.regions
    }
}
