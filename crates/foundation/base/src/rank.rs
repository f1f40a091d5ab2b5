//! Locks with a rank: a thread takes them in ascending order.
//!
//! A rank is a part of a lock's type: `Mutex<State, GROUP>`. In builds with debug assertions each thread
//! records the ranks of the locks that it holds. If it takes a lock whose rank is not above all of them, it
//! panics before it can deadlock with another thread. `try_lock` and its like never wait, and are not
//! checked. Other builds pay nothing.
//!
//! Owns: the ranks ([`RANKS`]) and the check. Does **not** own: what a lock protects, the order among locks
//! of one rank that may be held together (docs/locks.md).
//!
//! The locks are `parking_lot`'s. Locks of structures that [`sync`](crate::sync) tests under schedules, and
//! those with a condition variable, have no rank.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// A rank, its name, and whether one thread may hold several locks of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rank {
    /// Locks of higher ranks are taken later.
    pub number: u8,
    /// The name of the constant.
    pub name: &'static str,
    /// Several locks of this rank are held in an order of their own.
    pub repeats: bool,
}

macro_rules! ranks {
    ($( $(#[$doc:meta])* $name:ident = $number:literal $($repeats:ident)?; )*) => {
        $( $(#[$doc])* pub const $name: u8 = $number; )*
        /// All ranks, in their order. docs/locks.md shows them.
        pub const RANKS: &[Rank] = &[
            $( Rank { number: $number, name: stringify!($name), repeats: ranks!(@ $($repeats)?) } ),*
        ];
    };
    (@ repeats) => { true };
    (@) => { false };
}

ranks! {
    /// Names move between directories.
    RENAMES = 10;
    /// Operations on inodes: of directories ancestors first, then by number.
    OPERATION = 20 repeats;
    /// The map or the extent status of a file is read or changed.
    MAPPING = 60;
    /// Shared attribute blocks and values.
    XATTRS = 61;
    /// Writes to unwritten blocks.
    WRITING = 70;
    /// The orphan list.
    ORPHANS = 71;
    /// Places of owners in a quota file.
    QUOTA_FILE = 72;
    /// Fields and map of an inode: a directory before its children.
    VALUES = 80 repeats;
    /// A shard of the inode table.
    INODE_TABLE = 90;
    /// A per-thread hot entry of the inode table.
    INODE_RECENT = 91;
    /// A group of the allocator.
    GROUP = 92;
    /// A set of the allocator: the index of groups, zones, windows.
    ALLOC_SET = 93;
    /// The list of files with dirty bytes.
    DIRTY_FILES = 100;
    /// A part of the list of changed inodes.
    CHANGED_INODES = 101;
    /// Saved images of the commit in progress.
    FROZEN = 102;
    /// Quota changes that are pending.
    QUOTA_PENDING = 103;
    /// The record of errors.
    ERRORS = 104;
    /// An inode's extent status.
    EXTENT_STATUS = 110;
    /// The ring of inodes for the reclaim of extents.
    EXTENT_RING = 111;
    /// Directories that hold memory.
    DIRECTORIES = 120;
}

#[cfg(debug_assertions)]
mod held {
    use std::cell::RefCell;

    use super::RANKS;

    thread_local!(static HELD: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });

    /// Panics if a lock of this rank would break the order.
    pub(super) fn check(rank: u8) {
        let highest = HELD.try_with(|held| held.borrow().iter().copied().max());
        let Ok(Some(highest)) = highest else { return };
        let may_repeat = RANKS.iter().any(|known| known.number == rank && known.repeats);
        let is_in_order = rank > highest || rank == highest && may_repeat;
        assert!(
            is_in_order || std::thread::panicking(),
            "a lock of rank {} is taken while one of rank {} is held (docs/locks.md)",
            name(rank),
            name(highest),
        );
    }

    /// The locks that the thread holds, set aside.
    pub(super) struct Aside(Vec<u8>);

    impl Aside {
        pub(super) fn new() -> Self {
            Self(HELD.with(std::cell::RefCell::take))
        }
    }

    impl Drop for Aside {
        fn drop(&mut self) {
            let _ = HELD.try_with(|held| held.replace(std::mem::take(&mut self.0)));
        }
    }

    fn name(rank: u8) -> String {
        let known = RANKS.iter().find(|known| known.number == rank);
        known.map_or_else(|| rank.to_string(), |known| format!("{} ({rank})", known.name))
    }

    /// One lock that the thread holds.
    #[derive(Debug)]
    pub(super) struct Held(u8);

    impl Held {
        pub(super) fn new(rank: u8) -> Self {
            let _ = HELD.try_with(|held| held.borrow_mut().push(rank));
            Self(rank)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            let _ = HELD.try_with(|held| {
                let mut held = held.borrow_mut();
                if let Some(at) = held.iter().rposition(|rank| *rank == self.0) {
                    held.swap_remove(at);
                }
            });
        }
    }
}

#[cfg(not(debug_assertions))]
mod held {
    #[inline]
    pub(super) fn check(_rank: u8) {}

    pub(super) struct Aside;

    impl Aside {
        pub(super) fn new() -> Self {
            Self
        }
    }

    #[derive(Debug)]
    pub(super) struct Held;

    impl Held {
        #[inline]
        pub(super) fn new(_rank: u8) -> Self {
            Self
        }
    }
}

use held::{Aside, Held};

/// Runs something in the place of another thread: the locks that this thread holds do not count meanwhile.
/// For tests that run operations in the middle of others. They must not wait for a lock of this thread.
pub fn as_another_thread<T>(work: impl FnOnce() -> T) -> T {
    let _aside = Aside::new();
    work()
}

/// A mutual-exclusion lock of a rank.
#[derive(Default)]
pub struct Mutex<T, const RANK: u8>(parking_lot::Mutex<T>);

/// A taken [`Mutex`].
#[derive(Debug)]
#[must_use = "the lock is released when this is dropped"]
pub struct MutexGuard<'a, T, const RANK: u8> {
    guard: parking_lot::MutexGuard<'a, T>,
    _held: Held,
}

impl<T, const RANK: u8> Mutex<T, RANK> {
    /// An unlocked lock.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }

    /// Takes the lock; blocks until it is free.
    ///
    /// # Panics
    /// With debug assertions: the thread holds a lock of this or a higher rank.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T, RANK> {
        held::check(RANK);
        let guard = self.0.lock();
        MutexGuard { guard, _held: Held::new(RANK) }
    }

    /// Takes the lock unless another thread holds it.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T, RANK>> {
        let guard = self.0.try_lock()?;
        Some(MutexGuard { guard, _held: Held::new(RANK) })
    }

    /// Whether a thread holds the lock at this moment.
    #[inline]
    pub fn is_locked(&self) -> bool {
        self.0.is_locked()
    }

    /// The value; no other thread can have the lock.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }

    /// The value.
    #[inline]
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T: fmt::Debug, const RANK: u8> fmt::Debug for Mutex<T, RANK> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T, const RANK: u8> Deref for MutexGuard<'_, T, RANK> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T, const RANK: u8> DerefMut for MutexGuard<'_, T, RANK> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// A lock of a rank that several readers, or one writer, hold.
#[derive(Default)]
pub struct RwLock<T, const RANK: u8>(parking_lot::RwLock<T>);

/// An [`RwLock`] that is taken for reading.
#[derive(Debug)]
#[must_use = "the lock is released when this is dropped"]
pub struct RwLockReadGuard<'a, T, const RANK: u8> {
    guard: parking_lot::RwLockReadGuard<'a, T>,
    _held: Held,
}

/// An [`RwLock`] that is taken for writing.
#[derive(Debug)]
#[must_use = "the lock is released when this is dropped"]
pub struct RwLockWriteGuard<'a, T, const RANK: u8> {
    guard: parking_lot::RwLockWriteGuard<'a, T>,
    _held: Held,
}

impl<T, const RANK: u8> RwLock<T, RANK> {
    /// An unlocked lock.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::RwLock::new(value))
    }

    /// Takes the lock for reading; blocks while a writer has it or waits.
    ///
    /// # Panics
    /// With debug assertions: the thread holds a lock of this or a higher rank.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T, RANK> {
        held::check(RANK);
        let guard = self.0.read();
        RwLockReadGuard { guard, _held: Held::new(RANK) }
    }

    /// Takes the lock for reading if that needs no wait.
    #[inline]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T, RANK>> {
        let guard = self.0.try_read()?;
        Some(RwLockReadGuard { guard, _held: Held::new(RANK) })
    }

    /// Takes the lock for writing; blocks until it is free.
    ///
    /// # Panics
    /// As [`read`](Self::read).
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T, RANK> {
        held::check(RANK);
        let guard = self.0.write();
        RwLockWriteGuard { guard, _held: Held::new(RANK) }
    }

    /// Takes the lock for writing, against the order of ranks; blocks until it is free. Only for a caller
    /// that shows that no thread takes the two locks in the other order.
    #[inline]
    pub fn write_against_order(&self) -> RwLockWriteGuard<'_, T, RANK> {
        let guard = self.0.write();
        RwLockWriteGuard { guard, _held: Held::new(RANK) }
    }

    /// Takes the lock for writing if that needs no wait.
    #[inline]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T, RANK>> {
        let guard = self.0.try_write()?;
        Some(RwLockWriteGuard { guard, _held: Held::new(RANK) })
    }

    /// The value; no other thread can have the lock.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

impl<T: fmt::Debug, const RANK: u8> fmt::Debug for RwLock<T, RANK> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T, const RANK: u8> Deref for RwLockReadGuard<'_, T, RANK> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T, const RANK: u8> Deref for RwLockWriteGuard<'_, T, RANK> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T, const RANK: u8> DerefMut for RwLockWriteGuard<'_, T, RANK> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_ascend_and_the_page_shows_them() {
        assert!(RANKS.windows(2).all(|pair| pair[0].number < pair[1].number));
        let page = include_str!("../../../../docs/locks.md");
        for rank in RANKS {
            let cell = format!("| {} | `{}` |", rank.number, rank.name);
            assert!(page.contains(&cell), "docs/locks.md lacks {cell}");
        }
    }

    #[test]
    fn locks_are_taken_in_the_order_of_their_ranks() {
        let (values, group) = (Mutex::<_, VALUES>::new(1), Mutex::<_, GROUP>::new(2));
        {
            let held = values.lock();
            assert_eq!(*held + *group.lock(), 3);
            // Another lock of a rank that repeats.
            let other = Mutex::<_, VALUES>::new(3);
            assert_eq!(*other.lock(), 3);
        }
        let mapping = RwLock::<_, MAPPING>::new(4);
        let taken = group.lock();
        // A try never waits.
        assert!(values.try_lock().is_some() && mapping.try_read().is_some() && mapping.try_write().is_some());
        drop(taken);
        *mapping.write() += 1;
        assert_eq!(*mapping.read(), 5);
    }

    #[test]
    #[cfg(debug_assertions)]
    fn the_wrong_order_panics_and_leaves_nothing_behind() {
        let (values, group) = (Mutex::<_, VALUES>::new(()), Mutex::<_, GROUP>::new(()));
        for wrong in [true, false] {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let _group = wrong.then(|| group.lock());
                drop(values.lock());
            }));
            assert_eq!(result.is_err(), wrong);
        }
        let text = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let other = Mutex::<_, GROUP>::new(());
            let _one = group.lock();
            let _two = other.lock();
        }));
        let text = *text.unwrap_err().downcast::<String>().unwrap();
        assert!(text.contains("rank GROUP (92) is taken while one of rank GROUP (92)"), "{text}");
    }
}
