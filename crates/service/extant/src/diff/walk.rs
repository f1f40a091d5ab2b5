//! Walks both sides in lockstep with several threads, and compares metadata.
//!
//! ```text
//!  queue: pairs of directories, chunks of contents
//!  thread: takes a chunk, else a directory -> names of both sides, merged -> changes, pairs of files
//!          -> pieces of contents, gathered -> chunks
//! ```
//!
//! Invariants
//! 1. Chunks are taken before directories, so the contents that wait are bounded.
//! 2. A directory of an image is entered once, as in [`crate::walk`], so the walk ends on every image.

use std::cmp::Ordering as Order;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use extant_base::Ino;
use extant_ondisk::filetype::FileType;
use extant_volume::{Attribute, Fault};

use super::content::{Chunk, Contents, Pieces};
use super::found::{Found, Pair};
use super::links::{self, Names, SeenPair};
use super::same::SameTables;
use super::side::{Name, Node, Side};
use super::sides::Sides;
use super::{Cause, Change, Diff, DiffObserver, DiffOptions, Difference, Meta, Status, Which, path_order};
use crate::walk;

/// Maximum depth of directories to enter, and maximum length of their paths, as in [`crate::walk`].
const DEPTH_MAX: usize = 4096;
const PATH_MAX: usize = 32 << 10;
/// Chunks in the queue from which on a thread that scans compares contents itself.
const CHUNKS_MAX: usize = 256;

/// A directory to compare. On one side only, everything below it was added or deleted.
struct Job {
    path: Arc<[u8]>,
    a: Option<Node>,
    b: Option<Node>,
    depth: usize,
}

#[derive(Default)]
struct Queue {
    dirs: Vec<Job>,
    chunks: VecDeque<Chunk>,
    /// Threads that may still add to the queue.
    busy: usize,
}

/// What the threads share.
struct Shared<'d> {
    sides: Sides<'d>,
    options: &'d DiffOptions,
    cancel: &'d AtomicBool,
    /// Which parts of two images of one layout are equal.
    same: Option<SameTables>,
    /// Whether times are compared without fractions of seconds.
    whole_seconds: bool,
    /// The side with a `lost+found` that the other cannot have.
    lost_found: Option<Which>,
    queue: Mutex<Queue>,
    wake: Condvar,
    /// Directories that were entered, by inode number, for each side that is an image.
    entered: Mutex<[HashSet<u64>; 2]>,
    /// Pairs of files with several links that were compared.
    seen: Mutex<HashSet<SeenPair>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn compare(
    a: &Side,
    b: &Side,
    options: &DiffOptions,
    observer: &dyn DiffObserver,
    cancel: &AtomicBool,
) -> Diff {
    let lost_found = match (a.as_image(), b.as_image()) {
        (Some(_), None) if a.has_empty_lost_found() && !b.has_lost_found() => Some(Which::A),
        (None, Some(_)) if b.has_empty_lost_found() && !a.has_lost_found() => Some(Which::B),
        _ => None,
    };
    let is_one_file = super::same::is_one_file(a, b);
    let shared = Shared {
        sides: Sides { a, b, observer, is_one_file },
        options,
        cancel,
        same: SameTables::of(a, b),
        whole_seconds: options.ignore.nanoseconds || !a.has_nanoseconds() || !b.has_nanoseconds(),
        lost_found,
        queue: Mutex::default(),
        wake: Condvar::new(),
        entered: Mutex::default(),
        seen: Mutex::default(),
    };
    let mut first = Found::default();
    shared.begin(&mut first);
    let mut all = vec![first];
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (1..options.threads.max(1)).map(|_| scope.spawn(|| Worker::new(&shared).run())).collect();
        all.push(Worker::new(&shared).run());
        all.extend(threads.into_iter().filter_map(|thread| thread.join().ok()));
    });
    merged(all, options)
}

/// Joins the results of the threads, and adds the differences of hard links.
fn merged(all: Vec<Found>, options: &DiffOptions) -> Diff {
    let mut diff = Diff::default();
    let mut names = [Names::default(), Names::default()];
    let (mut linked, mut linked_changes) = (Vec::new(), HashMap::new());
    for found in all {
        diff.changes.extend(found.diff.changes);
        diff.problems.extend(found.diff.problems);
        diff.emptied.extend(found.diff.emptied);
        diff.names += found.diff.names;
        diff.bytes += found.diff.bytes;
        for (all, more) in names.iter_mut().zip(found.names) {
            all.add(more);
        }
        linked.extend(found.linked);
        linked_changes.extend(found.linked_changes);
    }
    let [mut in_a, mut in_b] = names;
    in_a.sort();
    in_b.sort();
    let common: HashSet<Arc<[u8]>> = linked.iter().map(|(path, _)| Arc::clone(path)).collect();
    for (path, seen) in linked {
        let Some(pair) = linked_changes.get(&seen) else { continue };
        let mut differences = pair.all_differences();
        if !options.ignore.links {
            differences.extend(links::difference(&in_a, &in_b, &common, &seen, &path));
        }
        if !differences.is_empty() {
            diff.changes.push(pair.change(path, differences));
        }
    }
    diff.groups = in_b.into_groups();
    diff.changes.sort_by(|one, other| path_order(&one.path, &other.path));
    diff.problems.sort_by(|one, other| path_order(&one.path, &other.path).then(one.side.cmp(&other.side)));
    diff.emptied.sort_by(|one, other| path_order(one, other));
    diff
}

impl Shared<'_> {
    /// Compares the roots and queues them.
    fn begin(&self, found: &mut Found) {
        let (a, b) = (self.sides.a.root(), self.sides.b.root());
        let path: Arc<[u8]> = Arc::from(Vec::new());
        found.diff.names = 1;
        if self.sides.a.has_root() && self.sides.b.has_root() {
            let (meta_a, meta_b) = (self.sides.a.meta(&a), self.sides.b.meta(&b));
            if let Some(pair) = self.pair(found, &path, (a.clone(), meta_a), (b.clone(), meta_b), false)
                && !pair.differences.is_empty()
            {
                let change = pair.change(Arc::clone(&path), pair.differences.clone());
                found.diff.changes.push(change);
            }
        }
        for (which, node) in [(Which::A, &a), (Which::B, &b)] {
            self.enters(which, node);
        }
        lock(&self.queue).dirs.push(Job { path, a: Some(a), b: Some(b), depth: 0 });
    }

    /// Whether a directory is entered for the first time on its side.
    fn enters(&self, which: Which, node: &Node) -> bool {
        match node {
            Node::Image(_) => lock(&self.entered)[which as usize].insert(node.key()),
            Node::Tree(_) => true,
        }
    }

    /// Compares the metadata of a pair of files of one type; `None` if that cannot be read. `is_same`: their
    /// inodes are equal on disk.
    fn pair(
        &self,
        found: &mut Found,
        path: &Arc<[u8]>,
        (a, meta_a): (Node, Meta),
        (b, meta_b): (Node, Meta),
        is_same: bool,
    ) -> Option<Pair> {
        let mut differences = Vec::new();
        if !is_same && let Err((side, fault)) = self.metadata(&mut differences, (&a, &meta_a), (&b, &meta_b))
        {
            found.fault(side, path, fault);
            return None;
        }
        Some(Pair::new(Arc::clone(path), (a, meta_a), (b, meta_b), differences))
    }

    fn metadata(
        &self,
        differences: &mut Vec<Difference>,
        (a, meta_a): (&Node, &Meta),
        (b, meta_b): (&Node, &Meta),
    ) -> Result<(), (Which, Fault)> {
        let in_a = |fault| (Which::A, fault);
        let in_b = |fault| (Which::B, fault);
        let ignore = &self.options.ignore;
        let is_link = meta_a.kind == FileType::Symlink;
        // The mode of a symbolic link is the file system's choice.
        if !ignore.modes && !is_link && meta_a.mode != meta_b.mode {
            differences.push(Difference::Mode);
        }
        if !ignore.owners && (meta_a.uid, meta_a.gid) != (meta_b.uid, meta_b.gid) {
            differences.push(Difference::Owner);
        }
        let nanos = |meta: &Meta| if self.whole_seconds { 0 } else { meta.mtime.nanos };
        if !ignore.times && (meta_a.mtime.seconds != meta_b.mtime.seconds || nanos(meta_a) != nanos(meta_b)) {
            differences.push(Difference::Mtime);
        }
        if meta_a.kind == FileType::Regular && meta_a.size != meta_b.size {
            differences.push(Difference::Size);
        }
        if is_link {
            let (a, b) = (self.sides.a.target(a).map_err(in_a)?, self.sides.b.target(b).map_err(in_b)?);
            if a != b {
                differences.push(Difference::Target { a, b });
            }
        }
        if meta_a.device != meta_b.device {
            differences.push(Difference::Device);
        }
        if !ignore.xattrs {
            let (a, b) = (self.sides.a.xattrs(a).map_err(in_a)?, self.sides.b.xattrs(b).map_err(in_b)?);
            if a != b {
                xattr_differences(&a, &b, differences);
            }
        }
        Ok(())
    }
}

/// Adds the differences of two sorted sets of attributes.
fn xattr_differences(a: &[Attribute], b: &[Attribute], differences: &mut Vec<Difference>) {
    merge(
        a,
        b,
        |one, other| one.name.cmp(&other.name),
        |a, b| {
            if let (Some(a), Some(b)) = (a, b)
                && a.value == b.value
            {
                return;
            }
            if let Some(known) = a.or(b) {
                let name = known.name.clone();
                differences.push(Difference::Xattr { name, in_a: a.is_some(), in_b: b.is_some() });
            }
        },
    );
}

/// Passes the elements of two sorted lists in order, equal ones together.
fn merge<'l, T>(
    a: &'l [T],
    b: &'l [T],
    order: impl Fn(&T, &T) -> Order,
    mut each: impl FnMut(Option<&'l T>, Option<&'l T>),
) {
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    loop {
        let next = match (a.peek(), b.peek()) {
            (None, None) => return,
            (Some(_), None) => Order::Less,
            (None, Some(_)) => Order::Greater,
            (Some(one), Some(other)) => order(one, other),
        };
        let take_a = if next == Order::Greater { None } else { a.next() };
        let take_b = if next == Order::Less { None } else { b.next() };
        each(take_a, take_b);
    }
}

/// One thread.
struct Worker<'s, 'd> {
    shared: &'s Shared<'d>,
    found: Found,
    pieces: Pieces,
    contents: Contents<'s>,
}

impl<'s, 'd> Worker<'s, 'd> {
    fn new(shared: &'s Shared<'d>) -> Self {
        let contents = Contents::new(&shared.sides);
        Self { shared, found: Found::default(), pieces: Pieces::default(), contents }
    }

    fn run(mut self) -> Found {
        let shared = self.shared;
        let mut queue = lock(&shared.queue);
        loop {
            if shared.cancel.load(Ordering::Relaxed) {
                shared.wake.notify_all();
                return self.found;
            }
            if let Some(chunk) = queue.chunks.pop_front() {
                queue.busy += 1;
                drop(queue);
                self.contents.compare(chunk, &mut self.found);
            } else if let Some(job) = queue.dirs.pop() {
                queue.busy += 1;
                drop(queue);
                self.scan(&job);
            } else if !self.pieces.is_empty() {
                queue.busy += 1;
                drop(queue);
                self.publish();
            } else if queue.busy == 0 {
                shared.wake.notify_all();
                return self.found;
            } else {
                queue = shared.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            queue = lock(&shared.queue);
            queue.busy -= 1;
            shared.wake.notify_all();
        }
    }

    /// Queues the gathered pieces. Compares contents here while too many wait.
    fn publish(&mut self) {
        let chunks = self.pieces.take_chunks();
        let mut queue = lock(&self.shared.queue);
        queue.chunks.extend(chunks);
        self.shared.wake.notify_all();
        while queue.chunks.len() > CHUNKS_MAX
            && !self.shared.cancel.load(Ordering::Relaxed)
            && let Some(chunk) = queue.chunks.pop_front()
        {
            drop(queue);
            self.contents.compare(chunk, &mut self.found);
            queue = lock(&self.shared.queue);
        }
    }

    fn names_of(&mut self, which: Which, job: &Job) -> Vec<Name> {
        let Some(dir) = (match which {
            Which::A => &job.a,
            Which::B => &job.b,
        }) else {
            return Vec::new();
        };
        let found = &mut self.found;
        let mut damage = |fault| found.fault(which, &job.path, fault);
        match self.shared.sides.side(which).names(dir, &mut damage) {
            Ok(mut names) => {
                if job.depth == 0 && self.shared.lost_found == Some(which) {
                    names.retain(|name| name.name != b"lost+found");
                }
                names
            }
            Err(fault) => {
                found.fault(which, &job.path, fault);
                Vec::new()
            }
        }
    }

    /// Compares one directory with its counterpart.
    fn scan(&mut self, job: &Job) {
        let shared = self.shared;
        let is_same = match (&shared.same, &job.a, &job.b) {
            (Some(same), Some(a), Some(b)) => same.has_equal_directory(&shared.sides, a, b),
            _ => false,
        };
        let names_a = self.names_of(Which::A, job);
        shared.sides.a.prefetch(&names_a);
        if is_same {
            for name in &names_a {
                self.entry(job, Some(name), Some(name));
            }
            self.found.diff.names += names_a.len() as u64;
            shared.sides.observer.names(names_a.len() as u64);
            return;
        }
        let names_b = self.names_of(Which::B, job);
        shared.sides.b.prefetch(&names_b);
        let (mut count, mut common) = (0, 0);
        merge(
            &names_a,
            &names_b,
            |a, b| a.name.cmp(&b.name),
            |a, b| {
                count += 1;
                common += u64::from(a.is_some() && b.is_some());
                self.entry(job, a, b);
            },
        );
        if common == 0 && !names_a.is_empty() && job.b.is_some() {
            self.found.diff.emptied.push(Arc::clone(&job.path));
        }
        self.found.diff.names += count;
        shared.sides.observer.names(count);
    }

    /// Compares one name. `a` and `b`: the entries of both sides, if they have the name.
    fn entry(&mut self, job: &Job, a: Option<&Name>, b: Option<&Name>) {
        if self.shared.cancel.load(Ordering::Relaxed) {
            return;
        }
        let Some(name) = a.or(b).map(|entry| &entry.name) else { return };
        let mut path = Vec::with_capacity(job.path.len() + 1 + name.len());
        path.extend_from_slice(&job.path);
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        let path: Arc<[u8]> = path.into();
        if let (Some(same), Some(a), Some(b)) = (&self.shared.same, a, b)
            && a.key == b.key
            && same.has_equal_inode(&self.shared.sides, Ino(a.key as u32))
        {
            // Equal bytes: loaded once.
            let Some(node) = self.load(Which::A, &path, Some(a)) else { return };
            let meta = self.shared.sides.a.meta(&node);
            return self.common(job, path, (node.clone(), meta.clone()), (node, meta), true);
        }
        let (node_a, node_b) = (self.load(Which::A, &path, a), self.load(Which::B, &path, b));
        if a.is_some() != node_a.is_some() || b.is_some() != node_b.is_some() {
            return; // the problem is reported
        }
        let with_meta = |side: &Side, node: Node| {
            let meta = side.meta(&node);
            (node, meta)
        };
        let a = node_a.map(|node| with_meta(self.shared.sides.a, node));
        let b = node_b.map(|node| with_meta(self.shared.sides.b, node));
        match (a, b) {
            (Some(a), Some(b)) if a.1.kind == b.1.kind => self.common(job, path, a, b, false),
            (Some(a), Some(b)) => {
                self.remember(Which::A, &path, &a);
                self.remember(Which::B, &path, &b);
                self.enter(job, &path, Some(&a), None);
                self.enter(job, &path, None, Some(&b));
                self.change(path, Status::TypeChanged, Some(a), Some(b));
            }
            (Some(a), None) => {
                self.remember(Which::A, &path, &a);
                self.enter(job, &path, Some(&a), None);
                self.change(path, Status::Deleted, Some(a), None);
            }
            (None, Some(b)) => {
                self.remember(Which::B, &path, &b);
                self.enter(job, &path, None, Some(&b));
                self.change(path, Status::Added, None, Some(b));
            }
            (None, None) => {}
        }
    }

    fn load(&mut self, which: Which, path: &[u8], name: Option<&Name>) -> Option<Node> {
        match self.shared.sides.side(which).node(name?.key) {
            Ok(node) => Some(node),
            Err(fault) => {
                self.found.fault(which, path, fault);
                None
            }
        }
    }

    fn change(&mut self, path: Arc<[u8]>, status: Status, a: Option<(Node, Meta)>, b: Option<(Node, Meta)>) {
        let (node, b) = b.map_or((None, None), |(node, meta)| (Some(node), Some(meta)));
        let a = a.map(|(_, meta)| meta);
        self.found.diff.changes.push(Change { path, status, a, b, differences: Vec::new(), node });
    }

    /// Records the name of a file with several links.
    fn remember(&mut self, which: Which, path: &Arc<[u8]>, (node, meta): &(Node, Meta)) {
        if meta.links > 1 && meta.kind != FileType::Directory {
            self.found.names[which as usize].push(node.key(), Arc::clone(path));
        }
    }

    /// Queues a directory.
    fn enter(&mut self, job: &Job, path: &Arc<[u8]>, a: Option<&(Node, Meta)>, b: Option<&(Node, Meta)>) {
        let dir = |side: Option<&(Node, Meta)>| {
            side.filter(|(_, meta)| meta.kind == FileType::Directory).map(|(node, _)| node.clone())
        };
        let (a, b) = (dir(a), dir(b));
        for (which, node) in [(Which::A, &a), (Which::B, &b)] {
            let Some(node) = node else { continue };
            let problem = if job.depth + 1 >= DEPTH_MAX || path.len() > PATH_MAX {
                walk::Problem::TooDeep
            } else if self.shared.enters(which, node) {
                continue;
            } else {
                walk::Problem::SecondWay(Ino(node.key() as u32))
            };
            return self.found.problem(which, path, Cause::Image(problem));
        }
        if a.is_some() || b.is_some() {
            let dir = Job { path: Arc::clone(path), a, b, depth: job.depth + 1 };
            lock(&self.shared.queue).dirs.push(dir);
            self.shared.wake.notify_one();
        }
    }

    /// Compares two files of one type. `is_same`: their inodes are equal on disk.
    fn common(&mut self, job: &Job, path: Arc<[u8]>, a: (Node, Meta), b: (Node, Meta), is_same: bool) {
        let shared = self.shared;
        let kind = a.1.kind;
        self.remember(Which::A, &path, &a);
        self.remember(Which::B, &path, &b);
        self.enter(job, &path, Some(&a), Some(&b));
        let mut linked = None;
        if kind != FileType::Directory && (a.1.links > 1 || b.1.links > 1) {
            let seen = SeenPair { a: a.0.key(), b: b.0.key() };
            self.found.linked.push((Arc::clone(&path), seen));
            if !lock(&shared.seen).insert(seen) {
                return;
            }
            linked = Some(seen);
        }
        let Some(mut pair) = shared.pair(&mut self.found, &path, a, b, is_same) else { return };
        pair.linked = linked;
        let is_compared = kind == FileType::Regular && pair.a.1.size == pair.b.1.size && pair.a.1.size > 0;
        if !is_compared {
            return self.found.finish(pair);
        }
        if shared.options.holes && !is_same {
            match self.contents.has_other_holes(&pair) {
                Ok(true) => pair.differences.push(Difference::Holes),
                Ok(false) => {}
                Err((side, fault)) => self.found.fault(side, &path, fault),
            }
        }
        let mut parts = self.contents.parts(pair, is_same, &mut self.found);
        loop {
            let more = parts.add_to(&mut self.pieces, &mut self.found);
            if self.pieces.is_full() {
                self.publish();
            }
            if !more || shared.cancel.load(Ordering::Relaxed) {
                break;
            }
        }
        parts.finish(&mut self.found);
    }
}
