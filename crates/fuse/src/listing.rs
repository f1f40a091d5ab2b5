//! Directory listings, read from the volume in batches.
//!
//! A READDIR request returns a few dozen names. To find its position in the directory, the volume has to sort
//! a block's names by hash, which costs more than to return them. So names are read in large batches, and the
//! batch's inodes are prefetched in few transfers. Names that do not fit into the reply stay pending, under
//! the position at which the reader will continue.
//!
//! ```text
//!  READDIR(dir, 0)       read 1000 names, return 180; pending at (dir, cursor of the 180th): 820 names
//!  READDIR(dir, cursor)  take the pending batch, return 180; 640 names stay pending
//! ```
//!
//! Data structure: a queue of pending batches by directory and cursor, oldest first; and the directories that
//! changed while they had a pending batch.
//!
//! Does **not** own: the content of directories (see [`Serve::list`]).
//!
//! Invariants
//! 1. Pending names equal those of a new listing from the same position (INV-U13). A change of a directory
//!    drops its batches ([`Listings::forget`]), or only the removed name ([`Listings::forget_name`]); the
//!    kernel lists no directory during a change of it. The next batch is small, because another change may
//!    follow soon.
//! 2. There are at most [`WAITING_MAX`] pending batches, of at most [`BATCH_NAMES`] names each.
//! 3. Each name has a cursor of its own (the crate `dir` ensures that), so a listing can continue after any
//!    name.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::ControlFlow;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use extant_base::Ino;
use extant_volume::{Cursor, FileType};

use crate::{Errno, Name, Serve};

/// Names per batch; with names of 255 bytes this is below 300 KB.
const BATCH_NAMES: usize = 1024;
/// Names per batch after a change: about as many as one or a few requests return.
const BATCH_NAMES_CHANGED: usize = 128;
/// Names per reply if the directory changed less than [`CHANGED_FOR`] ago. The kernel holds the directory's
/// lock while it waits for the reply and instantiates its entries, so long replies delay creates and unlinks.
const PIECE_CHANGED: usize = 24;
const CHANGED_FOR: Duration = Duration::from_secs(1);
/// Pending batches; beyond that the oldest is dropped. Together they take a few megabytes at most.
const WAITING_MAX: usize = 32;

struct Slot {
    ino: Ino,
    kind: Option<FileType>,
    next: Cursor,
    name_end: u32,
}

/// Consecutive names of a directory.
#[derive(Default)]
struct Batch {
    slots: Vec<Slot>,
    /// The bytes of all names, without separators.
    names: Vec<u8>,
    /// Number of names that were returned.
    told: usize,
    /// The directory has no further names.
    is_last: bool,
}

impl Batch {
    fn push(&mut self, name: &Name<'_>) {
        self.names.extend_from_slice(name.name);
        self.slots.push(Slot {
            ino: name.ino,
            kind: name.kind,
            next: name.next,
            name_end: self.names.len() as u32,
        });
    }

    fn name(&self, number: usize) -> &[u8] {
        let start = number.checked_sub(1).map_or(0, |before| self.slots[before].name_end as usize);
        &self.names[start..self.slots[number].name_end as usize]
    }

    fn current(&self) -> Option<Name<'_>> {
        let slot = self.slots.get(self.told)?;
        Some(Name { ino: slot.ino, kind: slot.kind, name: self.name(self.told), next: slot.next })
    }

    /// Removes a name, unless it was returned already.
    fn remove(&mut self, name: &[u8]) {
        let Some(number) = (self.told..self.slots.len()).find(|number| self.name(*number) == name) else {
            return;
        };
        let len = name.len();
        let end = self.slots[number].name_end as usize;
        self.names.drain(end - len..end);
        self.slots.remove(number);
        for slot in &mut self.slots[number..] {
            slot.name_end -= len as u32;
        }
    }
}

/// Pending batches of all directories.
#[derive(Default)]
pub(crate) struct Listings {
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    batches: VecDeque<(Ino, Cursor, Batch)>,
    /// Directories of which a batch was dropped by a change, until the next batch is read.
    thrown: HashSet<Ino>,
    /// Directories that changed while they had a pending batch, and the time of the last change.
    changed: HashMap<Ino, Instant>,
}

impl Waiting {
    fn note_change(&mut self, dir: Ino) {
        if self.changed.len() >= WAITING_MAX {
            self.changed.clear();
        }
        self.changed.insert(dir, Instant::now());
    }
}

/// Whether the listing returns attributes, too (READDIRPLUS), so that inodes are prefetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    Names,
    Inodes,
}

impl Listings {
    /// Passes names from the position `from` on to `each`, until `each` breaks; the name at which it breaks
    /// counts as not returned. Stops after [`PIECE_CHANGED`] names if the directory changed recently.
    ///
    /// # Errors
    /// As [`Serve::list`].
    pub(crate) fn tell(
        &self,
        serve: &dyn Serve,
        dir: Ino,
        from: Cursor,
        want: Want,
        each: &mut dyn FnMut(Name<'_>) -> ControlFlow<()>,
    ) -> Result<(), Errno> {
        let mut at = from;
        let mut left = self.piece_max(dir);
        let mut batch = match self.take(dir, from) {
            Some(batch) => batch,
            None => self.gather(serve, dir, from, want)?,
        };
        loop {
            while let Some(name) = batch.current() {
                if left == 0 || each(name).is_break() {
                    self.keep(dir, at, batch);
                    return Ok(());
                }
                at = name.next;
                batch.told += 1;
                left -= 1;
            }
            if batch.is_last {
                return Ok(());
            }
            batch = self.gather(serve, dir, at, want)?;
        }
    }

    /// Drops all pending names of a directory: its names changed, or its inode number was reused.
    pub(crate) fn forget(&self, dir: Ino) {
        let mut waiting = self.waiting();
        let before = waiting.batches.len();
        waiting.batches.retain(|(ino, _, _)| *ino != dir);
        if waiting.batches.len() < before {
            if waiting.thrown.len() >= WAITING_MAX {
                waiting.thrown.clear();
            }
            waiting.thrown.insert(dir);
            waiting.note_change(dir);
        }
    }

    /// Drops a removed name of a directory in which nothing else changed.
    pub(crate) fn forget_name(&self, dir: Ino, name: &[u8]) {
        let mut waiting = self.waiting();
        let mut is_listed = false;
        for (_, _, batch) in waiting.batches.iter_mut().filter(|(ino, _, _)| *ino == dir) {
            batch.remove(name);
            is_listed = true;
        }
        if is_listed {
            waiting.note_change(dir);
        }
    }

    /// The most names per reply.
    fn piece_max(&self, dir: Ino) -> usize {
        let changed = self.waiting().changed.get(&dir).copied();
        if changed.is_some_and(|at| at.elapsed() < CHANGED_FOR) { PIECE_CHANGED } else { usize::MAX }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, dir: Ino, at: Cursor) -> Option<Batch> {
        let batches = &mut self.waiting().batches;
        let found = batches.iter().position(|(ino, cursor, _)| *ino == dir && *cursor == at)?;
        batches.remove(found).map(|(_, _, batch)| batch)
    }

    fn keep(&self, dir: Ino, at: Cursor, batch: Batch) {
        let batches = &mut self.waiting().batches;
        if batches.len() >= WAITING_MAX {
            batches.pop_front();
        }
        batches.push_back((dir, at, batch));
    }

    fn gather(&self, serve: &dyn Serve, dir: Ino, from: Cursor, want: Want) -> Result<Batch, Errno> {
        let was_thrown = self.waiting().thrown.remove(&dir);
        gather(serve, dir, from, want, if was_thrown { BATCH_NAMES_CHANGED } else { BATCH_NAMES })
    }
}

fn gather(serve: &dyn Serve, dir: Ino, from: Cursor, want: Want, names_max: usize) -> Result<Batch, Errno> {
    let mut batch = Batch { is_last: true, ..Batch::default() };
    serve.list(dir, from, &mut |name| {
        if batch.slots.len() >= names_max {
            batch.is_last = false;
            return ControlFlow::Break(());
        }
        batch.push(&name);
        ControlFlow::Continue(())
    })?;
    // In a damaged image the cursor might not advance. The listing must end all the same.
    if batch.slots.last().is_none_or(|last| last.next == from) {
        batch.is_last = true;
    }
    if want == Want::Inodes || batch.slots.iter().any(|slot| slot.kind.is_none()) {
        let inos: Vec<Ino> = batch.slots.iter().map(|slot| slot.ino).collect();
        serve.prefetch(&inos);
    }
    Ok(batch)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use extant_volume::{Seek, Stat, StatFs};

    use super::*;

    /// A directory of numbered names.
    struct Numbers {
        count: u64,
        listings: AtomicUsize,
        prefetched: AtomicUsize,
    }

    impl Numbers {
        fn new(count: u64) -> Self {
            Self { count, listings: AtomicUsize::new(0), prefetched: AtomicUsize::new(0) }
        }
    }

    impl Serve for Numbers {
        fn lookup(&self, _: Ino, _: &[u8]) -> Result<Option<Stat>, Errno> {
            Ok(None)
        }

        fn stat(&self, _: Ino) -> Result<Stat, Errno> {
            Err(Errno::NOENT)
        }

        fn prefetch(&self, inos: &[Ino]) {
            self.prefetched.fetch_add(inos.len(), Ordering::Relaxed);
        }

        fn read_link(&self, _: Ino) -> Result<Vec<u8>, Errno> {
            Err(Errno::INVAL)
        }

        fn read(&self, _: Ino, _: u64, _: &mut [u8]) -> Result<usize, Errno> {
            Err(Errno::INVAL)
        }

        fn list(
            &self,
            _: Ino,
            from: Cursor,
            each: &mut dyn FnMut(Name<'_>) -> ControlFlow<()>,
        ) -> Result<(), Errno> {
            self.listings.fetch_add(1, Ordering::Relaxed);
            for number in from.0..self.count {
                let next = Cursor(number + 1);
                let kind = Some(FileType::Regular);
                let name = number.to_string();
                if each(Name { ino: Ino(number as u32 + 11), kind, name: name.as_bytes(), next }).is_break() {
                    break;
                }
            }
            Ok(())
        }

        fn stat_fs(&self) -> Result<StatFs, Errno> {
            Err(Errno::NOSYS)
        }

        fn seek(&self, _: Ino, _: u64, _: Seek) -> Result<u64, Errno> {
            Err(Errno::NXIO)
        }
    }

    /// Reads all names in pieces of `piece`, as a kernel with a small buffer does.
    fn read_in_pieces(listings: &Listings, serve: &Numbers, piece: usize, want: Want) -> Vec<String> {
        let mut names = Vec::new();
        let mut at = Cursor::START;
        loop {
            let before = names.len();
            let told = listings.tell(serve, Ino::ROOT, at, want, &mut |name| {
                if names.len() == before + piece {
                    return ControlFlow::Break(());
                }
                names.push(String::from_utf8(name.name.to_vec()).unwrap());
                at = name.next;
                ControlFlow::Continue(())
            });
            assert_eq!(told, Ok(()));
            if names.len() == before {
                return names;
            }
        }
    }

    #[test]
    fn pieces_make_the_whole_and_the_directory_is_listed_once_per_batch() {
        let all: Vec<String> = (0..3000).map(|number| number.to_string()).collect();
        for piece in [1, 7, 180, 1023, 1024, 1025, 5000] {
            let (serve, listings) = (Numbers::new(3000), Listings::default());
            assert_eq!(read_in_pieces(&listings, &serve, piece, Want::Inodes), all, "{piece}");
            // Three batches, and at most one read after the end.
            assert!(serve.listings.load(Ordering::Relaxed) <= 4, "{piece}");
            assert_eq!(serve.prefetched.load(Ordering::Relaxed), 3000, "{piece}");
        }
    }

    #[test]
    fn names_alone_prefetch_no_inodes() {
        let (serve, listings) = (Numbers::new(100), Listings::default());
        assert_eq!(read_in_pieces(&listings, &serve, 10, Want::Names).len(), 100);
        assert_eq!(serve.prefetched.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn readers_of_one_directory_at_the_same_time_do_not_disturb_each_other() {
        let (serve, listings) = (Numbers::new(5000), Listings::default());
        std::thread::scope(|scope| {
            for piece in [3, 50, 180] {
                let (serve, listings) = (&serve, &listings);
                scope.spawn(move || {
                    assert_eq!(read_in_pieces(listings, serve, piece, Want::Names).len(), 5000);
                });
            }
        });
    }

    #[test]
    fn many_abandoned_listings_are_forgotten() {
        let (serve, listings) = (Numbers::new(50), Listings::default());
        for dir in 0..200 {
            let mut count = 0;
            let told = listings.tell(&serve, Ino(dir), Cursor::START, Want::Names, &mut |_| {
                count += 1;
                if count > 10 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            assert_eq!(told, Ok(()));
        }
        assert_eq!(listings.waiting().batches.len(), WAITING_MAX);
    }

    /// Names are removed during a listing, some of them before the listing returns them. The directory must
    /// not be read again for each of them.
    #[test]
    fn names_that_go_are_not_told_and_others_once() {
        let (serve, listings) = (Numbers::new(3000), Listings::default());
        let (mut told, mut at) = (Vec::new(), Cursor::START);
        loop {
            let (before, from) = (told.len(), at);
            let piece = &mut |name: Name<'_>| {
                if told.len() == before + 20 {
                    return ControlFlow::Break(());
                }
                told.push(String::from_utf8(name.name.to_vec()).unwrap());
                at = name.next;
                ControlFlow::Continue(())
            };
            listings.tell(&serve, Ino::ROOT, from, Want::Names, piece).unwrap();
            if told.len() == before {
                break;
            }
            // The last returned name, the next one, and one in the middle of the pending names.
            let last: u64 = told.last().unwrap().parse().unwrap();
            for gone in [last, last + 1, last + 300] {
                listings.forget_name(Ino::ROOT, gone.to_string().as_bytes());
                listings.forget_name(Ino(99), (last + 2).to_string().as_bytes());
            }
            assert!(!told.contains(&(last + 1).to_string()));
        }
        let numbers: Vec<u64> = told.iter().map(|name| name.parse().unwrap()).collect();
        assert!(numbers.is_sorted() && numbers.windows(2).all(|pair| pair[0] != pair[1]));
        assert!(serve.listings.load(Ordering::Relaxed) <= 4);
        // About a twentieth of the 3000 names was removed as the next one. The others were removed from the
        // pending names, or had not been read yet; this directory still returns the latter.
        assert!((2700..2860).contains(&numbers.len()), "{}", numbers.len());
        // After another change the directory is read again, in a small batch.
        let (serve, listings) = (Numbers::new(3000), Listings::default());
        let tell = |count: usize, at| {
            let mut told = 0;
            let piece = &mut |_: Name<'_>| {
                told += 1;
                if told > count { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            listings.tell(&serve, Ino::ROOT, at, Want::Inodes, piece).unwrap();
        };
        tell(20, Cursor::START);
        listings.forget(Ino::ROOT);
        tell(20, Cursor(20));
        assert_eq!(serve.prefetched.load(Ordering::Relaxed), BATCH_NAMES + BATCH_NAMES_CHANGED);
    }
}
