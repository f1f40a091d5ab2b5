//! Schedules which thread lists which directory, and when.
//!
//! Owns: the pending directories, the listings ready for the caller, the threads. Does **not** own: the order
//! of results, which the keys define.
//!
//! Invariants
//! 1. A key is in one of three places: pending, running or done. The caller takes each key once, or cancels
//!    it.
//! 2. Threads start to list a directory only while fewer than [`PIECES_AHEAD`] pieces and [`NAMES_AHEAD`]
//!    names are ready for the caller. The caller never waits for these limits.
//! 3. No lock is held during a read.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use extant_base::Ino;
use extant_volume::{Cursor, Fault, FileType, InodeRef, Volume};

use super::{Enter, Order, PATH_MAX, joined};
use crate::list::{self, Name};

/// Names per piece of a directory.
const PIECE_NAMES: usize = 4096;
/// Maximum number of pieces ready for the caller.
const PIECES_AHEAD: usize = 512;
/// Maximum number of names ready for the caller.
const NAMES_AHEAD: usize = 32 << 10;

/// A position in pre-order: from the root down, the position of each ancestor and of the directory itself in
/// its parent directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key(Arc<[u64]>);

impl Key {
    pub(super) fn root() -> Self {
        Self(Arc::from([]))
    }

    pub(super) fn child(&self, place: u64) -> Self {
        Self(self.0.iter().copied().chain([place]).collect())
    }

    fn is_below(&self, ancestor: &Key) -> bool {
        self.0.starts_with(&ancestor.0)
    }
}

/// An item of a listing, in the caller's order.
pub(super) enum Found {
    Name {
        name: Vec<u8>,
        ino: Ino,
        kind: FileType,
        inode: Option<InodeRef>,
        enters: bool,
    },
    /// A name whose inode cannot be read.
    Bad {
        name: Vec<u8>,
        fault: Fault,
    },
    /// A part of the directory that cannot be read.
    Damage(Fault),
    /// The directory continues in the piece with this entry's key. Always the last item.
    More,
}

/// The parameters of a walk.
pub(super) struct Plan {
    pub(super) volume: Arc<Volume>,
    pub(super) order: Order,
    pub(super) inodes: bool,
    pub(super) depth_max: usize,
    pub(super) enter: Option<Box<Enter>>,
}

/// A directory, or the rest of one, to be listed.
struct Task {
    dir: InodeRef,
    path: Arc<[u8]>,
    /// Depth of its entries.
    depth: usize,
    from: From,
    /// The directory's key, and the place of the piece's first entry in the directory.
    dir_key: Key,
    first_place: u64,
}

impl Task {
    fn new(dir: InodeRef, dir_key: Key, path: Arc<[u8]>, depth: usize) -> Self {
        Self { dir, path, depth, from: From::Cursor(Cursor::START), dir_key, first_place: 0 }
    }
}

#[derive(Clone)]
enum From {
    Cursor(Cursor),
    Sorted(Arc<Vec<Name>>, usize),
}

#[derive(Default)]
struct State {
    pending: BTreeMap<Key, Task>,
    /// Whether the caller still needs the result.
    running: BTreeMap<Key, bool>,
    done: BTreeMap<Key, Vec<Found>>,
    names_ahead: usize,
    over: bool,
}

struct Desk {
    plan: Plan,
    state: Mutex<State>,
    for_workers: Condvar,
    for_caller: Condvar,
}

/// The threads of a walk.
pub(super) struct Crew {
    desk: Arc<Desk>,
    threads: Vec<JoinHandle<()>>,
}

impl Crew {
    /// Starts the threads. If the system refuses some, fewer run: the caller can do all the work.
    pub(super) fn start(plan: Plan, threads: usize) -> Self {
        let desk = Arc::new(Desk {
            plan,
            state: Mutex::default(),
            for_workers: Condvar::new(),
            for_caller: Condvar::new(),
        });
        let threads = (0..threads).map_while(|_| {
            let desk = Arc::clone(&desk);
            std::thread::Builder::new().name("extant-walk".to_owned()).spawn(move || desk.work()).ok()
        });
        let threads = threads.collect();
        Self { desk, threads }
    }

    /// Adds the directory that the walk begins with; returns false if it must not be entered.
    pub(super) fn add_root(&self, key: &Key, dir: InodeRef) -> bool {
        let plan = &self.desk.plan;
        let enters = plan.depth_max > 0 && plan.enter.as_ref().is_none_or(|enter| enter(b""));
        if enters {
            let task = Task::new(dir, key.clone(), Arc::from(Vec::new()), 1);
            self.desk.lock().pending.insert(key.clone(), task);
        }
        enters
    }

    /// Returns the listing of a directory. Waits for the thread that lists it; lists it if no thread has
    /// started.
    pub(super) fn take(&self, key: &Key) -> Vec<Found> {
        let mut state = self.desk.lock();
        loop {
            if let Some(found) = state.done.remove(key) {
                state.names_ahead = state.names_ahead.saturating_sub(found.len());
                self.desk.for_workers.notify_all();
                return found;
            }
            if let Some(task) = state.pending.remove(key) {
                drop(state);
                let (found, tasks) = self.desk.plan.list(task);
                let mut state = self.desk.lock();
                state.pending.extend(tasks);
                self.desk.for_workers.notify_all();
                return found;
            }
            if !state.running.contains_key(key) {
                return Vec::new(); // its thread panicked, which is a bug; do not wait forever
            }
            state = self.desk.for_caller.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Discards a directory that was found, and everything below it.
    pub(super) fn cancel(&self, key: &Key) {
        self.desk.lock().forget_below(key);
        self.desk.for_workers.notify_all();
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.desk.lock().over = true;
        self.desk.for_workers.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl State {
    fn forget_below(&mut self, key: &Key) {
        let below = |map: Option<&Key>| map.filter(|found| found.is_below(key)).cloned();
        while let Some(found) = below(self.pending.range(key..).next().map(|(key, _)| key)) {
            self.pending.remove(&found);
        }
        while let Some(found) = below(self.done.range(key..).next().map(|(key, _)| key)) {
            let gone = self.done.remove(&found).map_or(0, |found| found.len());
            self.names_ahead = self.names_ahead.saturating_sub(gone);
        }
        let running = self.running.range_mut(key..).take_while(|(found, _)| found.is_below(key));
        running.for_each(|(_, wanted)| *wanted = false);
    }

    /// The pending directory nearest to the caller, unless the limits are reached.
    fn next_task(&mut self) -> Option<(Key, Task)> {
        let has_room = self.names_ahead < NAMES_AHEAD && self.done.len() + self.running.len() < PIECES_AHEAD;
        let (key, task) = if has_room { self.pending.pop_first()? } else { return None };
        self.running.insert(key.clone(), true);
        Some((key, task))
    }

    fn finish(&mut self, key: Key, found: Vec<Found>, tasks: Vec<(Key, Task)>) {
        if self.running.remove(&key) == Some(true) {
            self.names_ahead += found.len();
            self.done.insert(key, found);
            self.pending.extend(tasks);
        }
    }
}

/// Removes a key from `running` even when listing panics, so that no thread waits for it.
struct Running<'a> {
    desk: &'a Desk,
    key: Option<Key>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.desk.lock().running.remove(&key);
            self.desk.for_caller.notify_all();
        }
    }
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut state = self.lock();
        while !state.over {
            let Some((key, task)) = state.next_task() else {
                state = self.for_workers.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            let mut running = Running { desk: self, key: Some(key.clone()) };
            let (found, tasks) = self.plan.list(task);
            running.key = None;
            state = self.lock();
            let more = tasks.len() > 1;
            state.finish(key, found, tasks);
            self.for_caller.notify_all();
            if more {
                self.for_workers.notify_all();
            }
        }
    }
}

impl Plan {
    /// Lists a directory or a piece of it. Returns the directories to be listed next as well.
    fn list(&self, task: Task) -> (Vec<Found>, Vec<(Key, Task)>) {
        let mut found = Vec::new();
        let (names, rest) = match self.names(&task, &mut found) {
            Ok(names) => names,
            Err(fault) => return (vec![Found::Damage(fault)], Vec::new()),
        };
        // Sorted by number, so that inode tables are read in disk order, with many inodes per block.
        let wants =
            |kind: Option<FileType>| self.inodes || kind.is_none_or(|kind| kind == FileType::Directory);
        let mut inos: Vec<Ino> = names.iter().filter(|name| wants(name.kind)).map(|name| name.ino).collect();
        inos.sort_unstable();
        inos.dedup();
        self.volume.prefetch_inodes(&inos);
        let mut tasks = Vec::new();
        found.reserve(names.len() + 1);
        for Name { name, ino, kind } in names {
            let inode = match wants(kind).then(|| self.volume.inode(ino)).transpose() {
                Ok(inode) => inode,
                Err(fault) => {
                    found.push(Found::Bad { name, fault });
                    continue;
                }
            };
            let kind = inode.as_ref().map_or(kind.unwrap_or_default(), |inode| inode.kind());
            let mut enters = false;
            if let Some(dir) =
                inode.as_ref().filter(|_| kind == FileType::Directory && task.depth < self.depth_max)
            {
                let path = joined(&task.path, &name).0;
                enters = path.len() <= PATH_MAX && self.enter.as_ref().is_none_or(|enter| enter(&path));
                if enters {
                    let key = task.dir_key.child(task.first_place + found.len() as u64);
                    let below = Task::new(Arc::clone(dir), key.clone(), path.into(), task.depth + 1);
                    tasks.push((key, below));
                }
            }
            found.push(Found::Name { name, ino, kind, inode, enters });
        }
        if let Some(from) = rest {
            let place = task.first_place + found.len() as u64;
            tasks.push((task.dir_key.child(place), Task { from, first_place: place + 1, ..task }));
            found.push(Found::More);
        }
        (found, tasks)
    }

    /// The names of a piece, and where the next piece begins.
    fn names(&self, task: &Task, found: &mut Vec<Found>) -> Result<(Vec<Name>, Option<From>), Fault> {
        let mut sorted = Vec::new();
        let (all, at) = match (&task.from, self.order) {
            (From::Cursor(from), Order::Stored) => {
                let piece = list::piece(&self.volume, &task.dir, *from, PIECE_NAMES)?;
                found.extend(piece.damage.into_iter().map(Found::Damage));
                return Ok((piece.names, piece.next.map(From::Cursor)));
            }
            (From::Cursor(from), Order::Names) => {
                let piece = list::piece(&self.volume, &task.dir, *from, usize::MAX)?;
                found.extend(piece.damage.into_iter().map(Found::Damage));
                sorted.extend(piece.names);
                sorted.sort_unstable_by(|a, b| a.name.cmp(&b.name));
                if sorted.len() <= PIECE_NAMES {
                    return Ok((sorted, None));
                }
                (Arc::new(sorted), 0)
            }
            (From::Sorted(all, at), _) => (Arc::clone(all), *at),
        };
        let end = all.len().min(at + PIECE_NAMES);
        let names = all[at..end].to_vec();
        Ok((names, (end < all.len()).then_some(From::Sorted(all, end))))
    }
}
