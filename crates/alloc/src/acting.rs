//! On whose behalf a thread takes space: may it go into root's reserve?
//!
//! The door knows the caller of an operation, and space is allocated several layers below, in the same
//! thread. As the kernel looks at the current task, the allocator looks at a thread-local setting. Threads
//! without one (write-back, commits) have the allocator's own
//! [`Options::privilege`](crate::Options::privilege); what they place was reserved before.
//!
//! Does **not** own: which users may use the reserve (a superblock names a user and a group; see `volume`).
//!
//! Source: kernel Documentation/filesystems/ext4/allocators.rst.

use std::cell::Cell;
use std::marker::PhantomData;

use crate::{Alloc, Privilege};

thread_local! {
    static ACTING: Cell<Option<Privilege>> = const { Cell::new(None) };
}

/// As long as it lives, its thread takes space with a privilege of its own, of whatever file system.
#[derive(Debug)]
#[must_use = "the privilege ends with it"]
pub struct Acting {
    before: Option<Privilege>,
    /// It is of the thread that made it.
    of_thread: PhantomData<*const ()>,
}

impl Acting {
    /// Takes space with this privilege.
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
    /// How low this thread may go.
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
            let _inner = Acting::with(Privilege::Everybody);
            assert_eq!(ACTING.get(), Some(Privilege::Everybody));
        }
        assert_eq!(ACTING.get(), Some(Privilege::Root));
        std::thread::scope(|scope| assert_eq!(scope.spawn(|| ACTING.get()).join().unwrap(), None));
        drop(outer);
        assert_eq!(ACTING.get(), None);
    }
}
