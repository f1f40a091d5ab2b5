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
//!    drops its batches ([`Listings::invalidate`]), or only the removed name ([`Listings::remove_name`]); the
//!    kernel lists no directory during a change of it. The next batch is small, because another change may
//!    follow soon.
//! 2. There are at most [`PENDING_MAX`] pending batches, of at most [`BATCH_NAMES`] names each.
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
/// Names per reply if the directory changed less than [`CHANGED_WINDOW`] ago. The kernel holds the
/// directory's lock while it waits for the reply and instantiates its entries, so long replies delay creates
/// and unlinks.
const REPLY_NAMES_CHANGED: usize = 24;
const CHANGED_WINDOW: Duration = Duration::from_secs(1);
/// Pending batches; beyond that the oldest is dropped. Together they take a few megabytes at most.
const PENDING_MAX: usize = 32;

struct BatchEntry {
    ino: Ino,
    kind: Option<FileType>,
    next: Cursor,
    name_end: u32,
}

/// Consecutive names of a directory.
#[derive(Default)]
struct Batch {
    entries: Vec<BatchEntry>,
    /// The bytes of all names, without separators.
    names: Vec<u8>,
    /// Number of names that were returned.
    returned: usize,
    /// The directory has no further names.
    is_last: bool,
}

impl Batch {
    fn push(&mut self, name: &Name<'_>) {
        self.names.extend_from_slice(name.name);
        self.entries.push(BatchEntry {
            ino: name.ino,
            kind: name.kind,
            next: name.next,
            name_end: self.names.len() as u32,
        });
    }

    fn name(&self, number: usize) -> &[u8] {
        let start = number.checked_sub(1).map_or(0, |before| self.entries[before].name_end as usize);
        &self.names[start..self.entries[number].name_end as usize]
    }

    fn current(&self) -> Option<Name<'_>> {
        let entry = self.entries.get(self.returned)?;
        Some(Name { ino: entry.ino, kind: entry.kind, name: self.name(self.returned), next: entry.next })
    }

    /// Removes a name, unless it was returned already.
    fn remove(&mut self, name: &[u8]) {
        let Some(number) = (self.returned..self.entries.len()).find(|number| self.name(*number) == name)
        else {
            return;
        };
        let len = name.len();
        let end = self.entries[number].name_end as usize;
        self.names.drain(end - len..end);
        self.entries.remove(number);
        for entry in &mut self.entries[number..] {
            entry.name_end -= len as u32;
        }
    }
}

/// Pending batches of all directories.
#[derive(Default)]
pub(crate) struct Listings {
    pending: Mutex<Pending>,
}

#[derive(Default)]
struct Pending {
    batches: VecDeque<(Ino, Cursor, Batch)>,
    /// Directories of which a batch was dropped by a change, until the next batch is read.
    dropped: HashSet<Ino>,
    /// Directories that changed while they had a pending batch, and the time of the last change.
    changed: HashMap<Ino, Instant>,
}

impl Pending {
    fn note_change(&mut self, dir: Ino) {
        if self.changed.len() >= PENDING_MAX {
            self.changed.clear();
        }
        self.changed.insert(dir, Instant::now());
    }
}

/// Whether the listing returns attributes, too (READDIRPLUS), so that inodes are prefetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReaddirMode {
    /// READDIR: names and types.
    Plain,
    /// READDIRPLUS: attributes, too.
    Plus,
}

impl Listings {
    /// Passes names from the position `from` on to `each`, until `each` breaks; the name at which it breaks
    /// counts as not returned. Stops after [`REPLY_NAMES_CHANGED`] names if the directory changed recently.
    ///
    /// # Errors
    /// As [`Serve::list`].
    pub(crate) fn list(
        &self,
        serve: &dyn Serve,
        dir: Ino,
        from: Cursor,
        mode: ReaddirMode,
        each: &mut dyn FnMut(Name<'_>) -> ControlFlow<()>,
    ) -> Result<(), Errno> {
        let mut at = from;
        let mut left = self.reply_names_max(dir);
        let mut batch = match self.take(dir, from) {
            Some(batch) => batch,
            None => self.read_batch(serve, dir, from, mode)?,
        };
        loop {
            while let Some(name) = batch.current() {
                if left == 0 || each(name).is_break() {
                    self.put(dir, at, batch);
                    return Ok(());
                }
                at = name.next;
                batch.returned += 1;
                left -= 1;
            }
            if batch.is_last {
                return Ok(());
            }
            batch = self.read_batch(serve, dir, at, mode)?;
        }
    }

    /// Drops all pending names of a directory: its names changed, or its inode number was reused.
    pub(crate) fn invalidate(&self, dir: Ino) {
        let mut pending = self.pending();
        let before = pending.batches.len();
        pending.batches.retain(|(ino, _, _)| *ino != dir);
        if pending.batches.len() < before {
            if pending.dropped.len() >= PENDING_MAX {
                pending.dropped.clear();
            }
            pending.dropped.insert(dir);
            pending.note_change(dir);
        }
    }

    /// Drops a removed name of a directory in which nothing else changed.
    pub(crate) fn remove_name(&self, dir: Ino, name: &[u8]) {
        let mut pending = self.pending();
        let mut is_listed = false;
        for (_, _, batch) in pending.batches.iter_mut().filter(|(ino, _, _)| *ino == dir) {
            batch.remove(name);
            is_listed = true;
        }
        if is_listed {
            pending.note_change(dir);
        }
    }

    /// The most names per reply.
    fn reply_names_max(&self, dir: Ino) -> usize {
        let changed = self.pending().changed.get(&dir).copied();
        if changed.is_some_and(|at| at.elapsed() < CHANGED_WINDOW) { REPLY_NAMES_CHANGED } else { usize::MAX }
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, dir: Ino, at: Cursor) -> Option<Batch> {
        let batches = &mut self.pending().batches;
        let found = batches.iter().position(|(ino, cursor, _)| *ino == dir && *cursor == at)?;
        batches.remove(found).map(|(_, _, batch)| batch)
    }

    fn put(&self, dir: Ino, at: Cursor, batch: Batch) {
        let batches = &mut self.pending().batches;
        if batches.len() >= PENDING_MAX {
            batches.pop_front();
        }
        batches.push_back((dir, at, batch));
    }

    fn read_batch(
        &self,
        serve: &dyn Serve,
        dir: Ino,
        from: Cursor,
        mode: ReaddirMode,
    ) -> Result<Batch, Errno> {
        let was_dropped = self.pending().dropped.remove(&dir);
        read_batch(serve, dir, from, mode, if was_dropped { BATCH_NAMES_CHANGED } else { BATCH_NAMES })
    }
}

fn read_batch(
    serve: &dyn Serve,
    dir: Ino,
    from: Cursor,
    mode: ReaddirMode,
    names_max: usize,
) -> Result<Batch, Errno> {
    let mut batch = Batch { is_last: true, ..Batch::default() };
    serve.list(dir, from, &mut |name| {
        if batch.entries.len() >= names_max {
            batch.is_last = false;
            return ControlFlow::Break(());
        }
        batch.push(&name);
        ControlFlow::Continue(())
    })?;
    // In a damaged image the cursor might not advance. The listing must end all the same.
    if batch.entries.last().is_none_or(|last| last.next == from) {
        batch.is_last = true;
    }
    if mode == ReaddirMode::Plus || batch.entries.iter().any(|entry| entry.kind.is_none()) {
        let inos: Vec<Ino> = batch.entries.iter().map(|entry| entry.ino).collect();
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
    fn read_in_pieces(listings: &Listings, serve: &Numbers, piece: usize, mode: ReaddirMode) -> Vec<String> {
        let mut names = Vec::new();
        let mut at = Cursor::START;
        loop {
            let before = names.len();
            let listed = listings.list(serve, Ino::ROOT, at, mode, &mut |name| {
                if names.len() == before + piece {
                    return ControlFlow::Break(());
                }
                names.push(String::from_utf8(name.name.to_vec()).unwrap());
                at = name.next;
                ControlFlow::Continue(())
            });
            assert_eq!(listed, Ok(()));
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
            assert_eq!(read_in_pieces(&listings, &serve, piece, ReaddirMode::Plus), all, "{piece}");
            // Three batches, and at most one read after the end.
            assert!(serve.listings.load(Ordering::Relaxed) <= 4, "{piece}");
            assert_eq!(serve.prefetched.load(Ordering::Relaxed), 3000, "{piece}");
        }
    }

    #[test]
    fn names_alone_prefetch_no_inodes() {
        let (serve, listings) = (Numbers::new(100), Listings::default());
        assert_eq!(read_in_pieces(&listings, &serve, 10, ReaddirMode::Plain).len(), 100);
        assert_eq!(serve.prefetched.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn readers_of_one_directory_at_the_same_time_do_not_disturb_each_other() {
        let (serve, listings) = (Numbers::new(5000), Listings::default());
        std::thread::scope(|scope| {
            for piece in [3, 50, 180] {
                let (serve, listings) = (&serve, &listings);
                scope.spawn(move || {
                    assert_eq!(read_in_pieces(listings, serve, piece, ReaddirMode::Plain).len(), 5000);
                });
            }
        });
    }

    #[test]
    fn many_abandoned_listings_are_dropped() {
        let (serve, listings) = (Numbers::new(50), Listings::default());
        for dir in 0..200 {
            let mut count = 0;
            let listed = listings.list(&serve, Ino(dir), Cursor::START, ReaddirMode::Plain, &mut |_| {
                count += 1;
                if count > 10 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            assert_eq!(listed, Ok(()));
        }
        assert_eq!(listings.pending().batches.len(), PENDING_MAX);
    }

    /// Names are removed during a listing, some of them before the listing returns them. The directory must
    /// not be read again for each of them.
    #[test]
    fn removed_names_are_not_listed_and_others_once() {
        let (serve, listings) = (Numbers::new(3000), Listings::default());
        let (mut names, mut at) = (Vec::new(), Cursor::START);
        loop {
            let (before, from) = (names.len(), at);
            let piece = &mut |name: Name<'_>| {
                if names.len() == before + 20 {
                    return ControlFlow::Break(());
                }
                names.push(String::from_utf8(name.name.to_vec()).unwrap());
                at = name.next;
                ControlFlow::Continue(())
            };
            listings.list(&serve, Ino::ROOT, from, ReaddirMode::Plain, piece).unwrap();
            if names.len() == before {
                break;
            }
            // The last returned name, the next one, and one in the middle of the pending names.
            let last: u64 = names.last().unwrap().parse().unwrap();
            for gone in [last, last + 1, last + 300] {
                listings.remove_name(Ino::ROOT, gone.to_string().as_bytes());
                listings.remove_name(Ino(99), (last + 2).to_string().as_bytes());
            }
            assert!(!names.contains(&(last + 1).to_string()));
        }
        let numbers: Vec<u64> = names.iter().map(|name| name.parse().unwrap()).collect();
        assert!(numbers.is_sorted() && numbers.windows(2).all(|pair| pair[0] != pair[1]));
        assert!(serve.listings.load(Ordering::Relaxed) <= 4);
        // About a twentieth of the 3000 names was removed as the next one. The others were removed from the
        // pending names, or had not been read yet; this directory still returns the latter.
        assert!((2700..2860).contains(&numbers.len()), "{}", numbers.len());
        // After another change the directory is read again, in a small batch.
        let (serve, listings) = (Numbers::new(3000), Listings::default());
        let list = |count: usize, at| {
            let mut count_listed = 0;
            let piece = &mut |_: Name<'_>| {
                count_listed += 1;
                if count_listed > count { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            listings.list(&serve, Ino::ROOT, at, ReaddirMode::Plus, piece).unwrap();
        };
        list(20, Cursor::START);
        listings.invalidate(Ino::ROOT);
        list(20, Cursor(20));
        assert_eq!(serve.prefetched.load(Ordering::Relaxed), BATCH_NAMES + BATCH_NAMES_CHANGED);
    }
}
