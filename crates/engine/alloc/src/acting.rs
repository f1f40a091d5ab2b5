//! The privilege with which a thread allocates space: may it use root's reserve?
//!
//! The identity of a caller is known at the entry of an operation, and space is allocated several layers
//! below, in the same thread. So the privilege is a property of the thread, as the kernel checks the current
//! task. Threads without one (writeback, commit) use the allocator's
//! [`Options::privilege`](crate::Options::privilege); the space they allocate was promised before.
//!
//! Does **not** own: the decision about the reserve (a superblock names a user and a group; see `volume`).
//!
//! Source: kernel Documentation/filesystems/ext4/allocators.rst.

use std::cell::Cell;
use std::marker::PhantomData;

use crate::{Alloc, Privilege};

thread_local! {
    static ACTING: Cell<Option<Privilege>> = const { Cell::new(None) };
}

/// While it lives, its thread allocates space with this privilege, in all file systems.
#[derive(Debug)]
#[must_use = "the privilege ends with it"]
pub struct Acting {
    before: Option<Privilege>,
    /// Not `Send`: it restores the state of its own thread.
    of_thread: PhantomData<*const ()>,
}

impl Acting {
    /// Sets the privilege of this thread.
    pub fn with(privilege: Privilege) -> Self {
        Self { before: ACTING.replace(Some(privilege)), of_thread: PhantomData }
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        ACTING.set(self.before);
    }
}

impl Alloc {
    /// The privilege of this thread.
    #[must_use]
    pub fn acting(&self) -> Privilege {
        ACTING.get().unwrap_or(self.privilege)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_where_it_ends_and_is_one_threads() {
        let outer = Acting::with(Privilege::Root);
        {
            let _inner = Acting::with(Privilege::User);
            assert_eq!(ACTING.get(), Some(Privilege::User));
        }
        assert_eq!(ACTING.get(), Some(Privilege::Root));
        std::thread::scope(|scope| assert_eq!(scope.spawn(|| ACTING.get()).join().unwrap(), None));
        drop(outer);
        assert_eq!(ACTING.get(), None);
    }
}
