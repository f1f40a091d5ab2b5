//! Arenas of blocks of one size, the regions of 2 MiB that they consist of, and the pool of those of a size.
//!
//! An arena's head has the counts of all its blocks and how many are free in each region, so all that is done with a block
//! that nobody holds touches the head of its arena, not the block: 256 KiB for 64 Ki blocks of 4 KiB. With many gigabytes of
//! blocks the pages of the blocks themselves are more than a processor knows by heart; those of the heads are few.

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
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
/// Regions of a pool that are not made of huge pages: who has few blocks has no use for them, and they cost more to make.
const SMALL_PAGES: usize = 4;
/// Regions that stay when they are empty, at least; and the part of all regions of a pool.
const EMPTY_MIN: usize = 8;
const EMPTY_PART: usize = 8;

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

/// What is known of a region: only under its pool's lock.
#[derive(Clone, Copy)]
struct Region {
    /// Its blocks in the pool's list.
    free: u32,
    /// It has no memory: its blocks in the list are to be passed over.
    is_gone: bool,
}

/// Where an arena begins; the counts of its blocks follow.
#[repr(C, align(64))]
struct Head {
    regions: [Region; REGIONS],
}

const _: () = assert!(size_of::<Head>() + (ARENA >> LOG_MIN) * size_of::<AtomicU32>() <= REGION);

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
        // SAFETY: parts of the new mapping that nobody knows of; what cannot be given back stays, untouched.
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
            // SAFETY: nobody knows of it.
            let _ = unsafe { munmap(start.cast(), ARENA) };
            return None;
        }
        // SAFETY: it has memory now, which nobody else knows of.
        unsafe { arena.0.write(Head { regions: [Region { free: 0, is_gone: true }; REGIONS] }) };
        Some(arena)
    }

    /// Lets a region's place be memory, zeros at first. Can it?
    fn make_region(self, number: usize, in_huge_pages: bool) -> bool {
        // SAFETY: a part of the arena that nobody has a block of.
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
    /// Nobody has a block of it.
    unsafe fn unmake_region(self, number: usize) {
        // SAFETY: a part of the arena, of no use to anybody. If the system does not want it back it stays.
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
}

/// All blocks of a class.
pub(crate) struct Pool {
    /// Blocks that nobody has, the last one last; those of regions that are gone among them.
    free: Vec<NonNull<u8>>,
    /// Of them, those of regions that are gone.
    stale: usize,
    /// Where regions may be made again.
    gone: Vec<(Arena, usize)>,
    /// Where the next one is made, if that has a place left.
    next: Option<(Arena, usize)>,
    arenas: usize,
    /// Regions that have memory.
    regions: usize,
    /// Of them, those whose blocks are all free.
    empty: usize,
}

// SAFETY: what it points to is used only under its lock; the blocks are nobody's.
unsafe impl Send for Pool {}

static POOLS: [Mutex<Pool>; Class::COUNT] = [const { Mutex::new(Pool::new()) }; Class::COUNT];

impl Pool {
    const fn new() -> Self {
        Self { free: Vec::new(), stale: 0, gone: Vec::new(), next: None, arenas: 0, regions: 0, empty: 0 }
    }

    pub(crate) fn of(class: Class) -> MutexGuard<'static, Self> {
        POOLS[class.index()].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes up to `n` free blocks, one at least unless the system has no memory: what was given back last first.
    pub(crate) fn take(&mut self, class: Class, n: usize, mut into: impl FnMut(NonNull<u8>)) {
        let mut taken = 0;
        while taken < n {
            let Some(block) = self.free.pop() else {
                if taken > 0 || !self.make_region(class) {
                    return;
                }
                continue;
            };
            let (arena, number) = Arena::of(block);
            // SAFETY: under the lock, and the only borrow until the next turn.
            let region = unsafe { arena.state(number) };
            if region.is_gone {
                region.free -= 1;
                self.stale -= 1;
                continue;
            }
            self.empty -= usize::from(region.free == class.blocks());
            region.free -= 1;
            into(block);
            taken += 1;
        }
    }

    /// One more region, when no block is free. Can there be one?
    fn make_region(&mut self, class: Class) -> bool {
        debug_assert!(self.free.is_empty(), "so no block of a region that is gone is in the list");
        let in_huge_pages = self.regions >= SMALL_PAGES;
        let (arena, number) = match self.gone.pop() {
            Some(place) => place,
            None => {
                let next = self.next.take().filter(|(_, number)| *number < REGIONS);
                let Some((arena, number)) = next.or_else(|| {
                    self.arenas += 1;
                    Arena::make(self.arenas > 1).map(|arena| (arena, 1))
                }) else {
                    return false;
                };
                if !arena.make_region(number, in_huge_pages) {
                    self.next = Some((arena, number));
                    return false;
                }
                self.next = Some((arena, number + 1));
                (arena, number)
            }
        };
        // SAFETY: under the lock, and the only borrow.
        unsafe { *arena.state(number) = Region { free: class.blocks(), is_gone: false } };
        self.regions += 1;
        self.empty += 1;
        // The first one is taken first.
        // SAFETY: all inside of the region.
        self.free.extend(
            (0..class.blocks() as usize)
                .rev()
                .map(|at| unsafe { arena.region(number).add(at * class.len()) }),
        );
        true
    }

    /// Takes back a block that nobody holds.
    pub(crate) fn put(&mut self, class: Class, block: NonNull<u8>) {
        let (arena, number) = Arena::of(block);
        // SAFETY: under the lock, and the only borrow until it is used no more.
        let region = unsafe { arena.state(number) };
        region.free += 1;
        self.free.push(block);
        if region.free < class.blocks() {
            return;
        }
        self.empty += 1;
        if self.empty > EMPTY_MIN.max(self.regions / EMPTY_PART) {
            region.is_gone = true;
            self.empty -= 1;
            self.regions -= 1;
            self.stale += class.blocks() as usize;
            self.gone.push((arena, number));
            // SAFETY: all its blocks are in the list, where they are passed over.
            unsafe { arena.unmake_region(number) };
            if self.stale > self.free.len() / 2 {
                self.drop_stale();
            }
        }
    }

    /// Takes the blocks of regions that are gone out of the list.
    fn drop_stale(&mut self) {
        self.free.retain(|block| {
            let (arena, number) = Arena::of(*block);
            // SAFETY: under the lock, and the only borrow until the next turn.
            let region = unsafe { arena.state(number) };
            region.free -= u32::from(region.is_gone);
            !region.is_gone
        });
        self.free.shrink_to(2 * self.free.len());
        self.stale = 0;
    }

    #[cfg(test)]
    pub(crate) fn regions(&self) -> usize {
        self.regions
    }
}
