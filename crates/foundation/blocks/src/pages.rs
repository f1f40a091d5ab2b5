//! Memory from the system: reserved, committed, returned, and in huge pages.
//!
//! Owns: the system calls for arenas. Does **not** own: which parts of an arena are in use (see
//! [`region`](crate::region)).
//!
//! Systems without mmap(2), such as WASI, allocate an arena as a whole and never return any of it.

#[cfg(unix)]
pub(crate) use unix::{advise_huge, commit, release, reserve, unreserve};
#[cfg(not(unix))]
pub(crate) use whole::{advise_huge, commit, release, reserve, unreserve};

#[cfg(unix)]
mod unix {
    use std::ptr::NonNull;

    use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap};

    /// Reserves `len` bytes of address space, a power of two, aligned to `len`. `None` if the system refuses.
    pub(crate) fn reserve(len: usize) -> Option<NonNull<u8>> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at a place of the system's choice.
        let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), 2 * len, ProtFlags::empty(), flags) };
        // Twice the size contains an aligned part; the rest is unmapped.
        let mapped = mapped.ok()?.cast::<u8>();
        let before = mapped.addr().next_multiple_of(len) - mapped.addr();
        // SAFETY: parts of the new mapping that have no other user. If a part cannot be unmapped it stays,
        // unused.
        unsafe {
            let start = mapped.add(before);
            if before > 0 {
                let _ = munmap(mapped.cast(), before);
            }
            if before < len {
                let _ = munmap(start.add(len).cast(), len - before);
            }
            NonNull::new(start)
        }
    }

    /// Gives back all of what [`reserve`] returned.
    ///
    /// # Safety
    /// It is not in use.
    pub(crate) unsafe fn unreserve(start: NonNull<u8>, len: usize) {
        // SAFETY: the caller's promise.
        let _ = unsafe { munmap(start.as_ptr().cast(), len) };
    }

    /// Commits memory, zeroed. Returns whether that succeeded.
    ///
    /// # Safety
    /// The range is a part of what [`reserve`] returned, and not in use.
    pub(crate) unsafe fn commit(start: NonNull<u8>, len: usize) -> bool {
        // SAFETY: the caller's promise.
        unsafe { mprotect(start.as_ptr().cast(), len, MprotectFlags::READ | MprotectFlags::WRITE) }.is_ok()
    }

    /// Returns memory to the system; it reads as zeros when it is used again. If the call fails, the memory
    /// stays.
    ///
    /// # Safety
    /// The range consists of whole pages of what [`reserve`] returned, and is not in use.
    pub(crate) unsafe fn release(start: NonNull<u8>, len: usize) {
        // SAFETY: the caller's promise.
        let _ = unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxDontNeed) };
    }

    /// Requests huge pages. If the call fails, the pages are small ones.
    ///
    /// # Safety
    /// The range is mapped memory.
    pub(crate) unsafe fn advise_huge(start: NonNull<u8>, len: usize) {
        // SAFETY: the caller's promise; the content stays.
        let _ = unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxHugepage) };
    }
}

#[cfg(not(unix))]
mod whole {
    use std::alloc::{Layout, alloc_zeroed};
    use std::ptr::NonNull;

    /// Allocates `len` zeros, a power of two, aligned to `len`.
    pub(crate) fn reserve(len: usize) -> Option<NonNull<u8>> {
        let layout = Layout::from_size_align(len, len).ok().filter(|_| len > 0)?;
        // SAFETY: the size is not 0.
        NonNull::new(unsafe { alloc_zeroed(layout) })
    }

    /// Does nothing: the memory stays. It is not needed, because no commit fails.
    pub(crate) unsafe fn unreserve(_start: NonNull<u8>, _len: usize) {}

    /// Does nothing: the memory is there.
    pub(crate) unsafe fn commit(_start: NonNull<u8>, _len: usize) -> bool {
        true
    }

    /// Does nothing: the memory stays.
    pub(crate) unsafe fn release(_start: NonNull<u8>, _len: usize) {}

    /// Does nothing.
    pub(crate) unsafe fn advise_huge(_start: NonNull<u8>, _len: usize) {}
}
