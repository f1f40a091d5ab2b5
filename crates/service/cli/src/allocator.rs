//! The process's allocator, and its settings for a small cache.
//!
//! mimalloc returns freed memory to the system after ten seconds. This is right for caches of hundreds of
//! megabytes. With a small `--cache` the memory that is freed and not yet returned can be larger than the
//! cache itself, and no budget counts it.

use std::sync::atomic::{AtomicBool, Ordering};

/// Several threads allocate and free blocks and inodes by the million.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Settings for small caches. `libmimalloc_sys` has no names for them, so its version is fixed, and a test
/// checks the numbers.
const SMALL: [(libmimalloc_sys::mi_option_t, std::ffi::c_long); 2] = [
    // `mi_option_purge_delay`: milliseconds from a free to the return of its memory.
    (15, 0),
    // `mi_option_arena_max_object_size`, in KiB: larger objects come from the kernel directly, as zeros that
    // take no memory until they are touched. Each thread of a mount has a request buffer of 16 MiB, and
    // rarely uses more than 1 MiB of it.
    (45, 4096),
];

/// Whether [`collect`] does anything.
static COLLECTS: AtomicBool = AtomicBool::new(false);

/// Prepares for caches of `cache_bytes`. Below [`extant_memory::SMALL_MAX`] freed memory is returned at once,
/// and huge pages are disabled: one object in use would keep a whole huge page.
pub(crate) fn prepare(cache_bytes: u64) {
    if cache_bytes >= extant_memory::SMALL_MAX as u64 {
        return;
    }
    // Without support for huge pages there is nothing to disable.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    for (option, value) in SMALL {
        #[expect(unsafe_code, reason = "mimalloc's options have no safe interface")]
        // SAFETY: this stores one number atomically; any thread may do so at any time.
        unsafe {
            libmimalloc_sys::mi_option_set(option, value);
        }
    }
    extant_blocks::purge_free_blocks(true);
    COLLECTS.store(true, Ordering::Relaxed);
}

/// Collects memory of this thread's heap that other threads freed. mimalloc does so by itself only when the
/// thread allocates blocks of the same size again. Call this from threads that handle requests, after many
/// requests. Does nothing with large caches.
pub(crate) fn collect() {
    if COLLECTS.load(Ordering::Relaxed) {
        #[expect(unsafe_code, reason = "mimalloc's collection has no safe interface")]
        // SAFETY: the call works on the calling thread's heap, and any thread may make it at any time.
        unsafe {
            libmimalloc_sys::mi_collect(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The defaults of the two options differ from those of all other options: 1000 ms, and a largest
    /// object of 2 GiB.
    #[test]
    fn the_numbers_are_those_of_the_options() {
        #[expect(unsafe_code, reason = "mimalloc's options have no safe interface")]
        // SAFETY: this reads a number.
        let defaults = SMALL.map(|(option, _)| unsafe { libmimalloc_sys::mi_option_get(option) });
        assert_eq!(defaults, [1000, 2 << 20]);
    }
}
