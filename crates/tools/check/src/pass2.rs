//! Pass 2: directories: blocks, entries, indexes, and the inodes that entries name.
//!
//! ```text
//! plan     directories in order; those above 1 MiB are large
//! walk     parallel tasks: pieces of large directories first, then batches of small ones
//! large    per large directory: its index, and duplicate names in different blocks
//! links    directories with more than one name, if any
//! ```
//!
//! Owns: the names in directories, and where they lead. Does **not** own: whether a directory's size matches
//! its map (pass 1), whether directories are connected to the root (pass 3), link counts (pass 4).
//!
//! Invariants
//! 1. A valid name costs no allocation.
//! 2. Each block is read once, index blocks twice. The total of directory blocks is limited to a few times
//!    the blocks of the file system, so maps that share blocks cannot prolong the walk.
//! 3. The tables for comparing names exist for at most one large directory per thread, plus one.

mod block;
mod entries;
mod index;
mod inline;
mod links;
mod names;
mod source;
mod twice;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use extant_base::{Lblk, Pblk};
use extant_ondisk::Features;
use extant_ondisk::inode::flags;

use crate::map::MappedRun;
use crate::progress::Meter;
use crate::rules::directory as rules;
use crate::state::{DirNote, State};
use crate::{FindingPlace, parallel};
use block::{Dir, Scratch, Seen, Where};
use index::RootInfo;
use names::Key;
use source::{InMemory, Layout, READ_LEN, Reread};

/// Bytes of directory blocks per task.
const BATCH_LEN: u64 = READ_LEN as u64;
/// The largest directory, in blocks, whose index is checked, and the most names whose keys are kept without
/// an index. This bounds memory.
const INDEX_BLOCKS_MAX: u64 = 1 << 24;
const KEYS_MAX: usize = 1 << 26;

/// Checks all directories.
pub(crate) fn run(state: &State<'_>, threads: usize, meter: &Meter<'_>) {
    let notes = state.dirs.lock().unwrap_or_else(PoisonError::into_inner);
    let key = Key::new();
    let plan = Plan::new(state, &notes, key);
    let walk = |worker: &mut Worker, task: u32| match &plan.tasks[task as usize] {
        Task::Piece { large, from, to } => {
            let large = &plan.large[*large];
            large.walk(*from..*to, worker);
            // Finished here, not later, so that the tables of few directories exist at a time.
            if large.pieces_left.fetch_sub(1, Ordering::AcqRel) == 1 {
                large.finish();
            }
        }
        Task::Batch(range) => {
            for note in &notes[range.clone()] {
                if !is_large(&plan.new_dir(note)) {
                    worker.small(plan.new_dir(note));
                }
            }
            meter.add(range.len() as u64);
        }
    };
    let new_worker = || Worker::new(state);
    parallel(state, threads, plan.tasks.len() as u32, new_worker, walk, drop);
    plan.large.iter().filter(|large| large.layout.mapped == 0).for_each(Large::finish);
    links::judge(state, &notes, key);
}

fn is_large(dir: &Dir<'_>) -> bool {
    u64::from(dir.blocks) * dir.block_size.bytes() > READ_LEN as u64
        && dir.note.flags & flags::INLINE_DATA == 0
}

enum Task {
    /// A range of mapped blocks of a large directory.
    Piece { large: usize, from: u64, to: u64 },
    /// Small directories, as a range of the list; large ones in the range are skipped.
    Batch(std::ops::Range<usize>),
}

/// The tasks of the walk.
struct Plan<'a> {
    state: &'a State<'a>,
    key: Key,
    large: Vec<Large<'a>>,
    tasks: Vec<Task>,
}

impl<'a> Plan<'a> {
    fn new(state: &'a State<'a>, notes: &'a [DirNote], key: Key) -> Self {
        let mut plan = Self { state, key, large: Vec::new(), tasks: Vec::new() };
        let mut batches = Vec::new();
        let (mut start, mut len) = (0, 0);
        let most = state.image.geometry.blocks;
        let mut left = most.saturating_mul(4).saturating_add(4096);
        let mut end = notes.len();
        for (i, note) in notes.iter().enumerate() {
            let dir = plan.new_dir(note);
            let blocks = u64::from(dir.blocks).min(most);
            if blocks > left {
                let says =
                    format!("all directories from this one on ({} of them) were left out", notes.len() - i);
                state.findings.broken(&rules::TOO_MUCH, FindingPlace::ino(note.ino), says);
                end = i;
                break;
            }
            left -= blocks;
            if is_large(&dir) {
                plan.large.push(Large::new(dir));
            } else {
                len += blocks.max(1) * dir.block_size.bytes();
            }
            if len >= BATCH_LEN {
                batches.push(Task::Batch(start..i + 1));
                (start, len) = (i + 1, 0);
            }
        }
        batches.push(Task::Batch(start.min(end)..end));
        for (i, large) in plan.large.iter_mut().enumerate() {
            let step = (READ_LEN as u64) >> large.dir.block_size.log2();
            let mut from = 0;
            while from < large.layout.mapped {
                let to = (from + step).min(large.layout.mapped);
                plan.tasks.push(Task::Piece { large: i, from, to });
                *large.pieces_left.get_mut() += 1;
                from = to;
            }
        }
        plan.tasks.extend(batches);
        plan
    }

    fn new_dir(&self, note: &'a DirNote) -> Dir<'a> {
        Dir::new(self.state, &self.state.tree, note, self.key)
    }
}

/// A directory that several threads walk.
struct Large<'a> {
    dir: Dir<'a>,
    layout: Layout,
    /// Pieces not completely walked.
    pieces_left: AtomicUsize,
    /// Is its index checked?
    has_seen: bool,
    /// By logical block, from the first block to the end; empty if the index is not checked.
    seen: Mutex<Vec<Seen>>,
    keys: Mutex<Vec<u64>>,
    too_many_keys: AtomicBool,
}

impl<'a> Large<'a> {
    fn new(mut dir: Dir<'a>) -> Self {
        let mut layout = Layout::default();
        layout.read(&dir);
        let mut has_seen = false;
        if dir.indexed {
            let image = &dir.state.image;
            let root = layout.find(0).and_then(|pblk| image.read_block(pblk).ok());
            dir.hash = root.and_then(|root| RootInfo::decode(&dir, &root)?.hash(&dir));
            // A directory that is mostly holes would waste the memory.
            let blocks = u64::from(dir.blocks);
            has_seen = blocks <= INDEX_BLOCKS_MAX && blocks <= 2 * layout.mapped + 1024;
        }
        Self {
            dir,
            layout,
            pieces_left: AtomicUsize::new(0),
            has_seen,
            seen: Mutex::default(),
            keys: Mutex::default(),
            too_many_keys: AtomicBool::new(false),
        }
    }

    fn walk(&self, range: std::ops::Range<u64>, worker: &mut Worker) {
        let scratch = &mut worker.scratch;
        scratch.collect = !self.dir.indexed;
        scratch.keys.clear();
        let (mut found, mut bad) = (Vec::new(), Vec::new());
        for run in self.layout.pieces(range, (READ_LEN >> self.dir.block_size.log2()) as u32) {
            let len = run.len as usize * self.dir.block_size.len();
            if worker.bytes.len() < len {
                worker.bytes.resize(len, 0);
            }
            found.clear();
            bad.clear();
            fill(&self.dir, run, &mut worker.bytes[..len], &mut bad);
            for (at, block) in places(run).zip(worker.bytes.chunks_exact(self.dir.block_size.len())) {
                if !bad.contains(&at.lblk) {
                    found.push((at.lblk, self.dir.check_block(at, block, scratch)));
                }
            }
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            self.ready(&mut seen);
            for (lblk, what) in &found {
                if let Some(slot) = seen.get_mut(lblk.0 as usize) {
                    *slot = *what;
                }
            }
        }
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if keys.len() + scratch.keys.len() <= KEYS_MAX {
            keys.extend_from_slice(&scratch.keys);
        } else {
            self.too_many_keys.store(true, Ordering::Relaxed);
        }
    }

    fn ready(&self, seen: &mut Vec<Seen>) {
        if self.has_seen && seen.is_empty() {
            seen.resize(self.dir.blocks as usize, Seen::Nothing);
        }
    }

    /// Runs the checks that need all pieces.
    fn finish(&self) {
        let mut source = Reread::new(&self.dir.state.image, &self.layout);
        let mut seen = std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner));
        self.ready(&mut seen);
        if self.dir.indexed {
            if !seen.is_empty()
                && let Some(order) = index::check(&self.dir, &self.layout, &seen, &mut source)
            {
                twice::across_leaves(&self.dir, &self.layout, &seen, &order, &mut source);
            }
            return;
        }
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if self.too_many_keys.load(Ordering::Relaxed) {
            let says =
                format!("more than {KEYS_MAX} names without an index: not all were compared with each other");
            self.dir.broken(&rules::TOO_MUCH, FindingPlace::ino(self.dir.note.ino), says);
        }
        twice::among_all(&self.dir, &self.layout, &mut keys, &mut source);
        *keys = Vec::new();
    }
}

/// Reads a run, in one request if the device can. Adds blocks that cannot be read to `bad`.
fn fill(dir: &Dir<'_>, run: MappedRun, bytes: &mut [u8], bad: &mut Vec<Lblk>) {
    let image = &dir.state.image;
    if image.read_blocks(run.pblk, bytes).is_ok() {
        return;
    }
    for (at, block) in places(run).zip(bytes.chunks_exact_mut(dir.block_size.len())) {
        if let Err(fault) = image.read_blocks(at.pblk.unwrap_or(run.pblk), block) {
            dir.broken(&rules::UNREADABLE, dir.place(at), fault.to_string());
            block.fill(0); // not what was read before
            bad.push(at.lblk);
        }
    }
}

/// The location of each block of a run.
fn places(run: MappedRun) -> impl Iterator<Item = Where> {
    (0..run.len).map(move |i| Where {
        lblk: Lblk(run.lblk.0 + i),
        pblk: Some(Pblk(run.pblk.0 + u64::from(i))),
        offset: 0,
    })
}

/// Per-thread buffers.
struct Worker {
    scratch: Scratch,
    bytes: Vec<u8>,
    layout: Layout,
    seen: Vec<Seen>,
}

impl Worker {
    fn new(state: &State<'_>) -> Self {
        let scratch = Scratch::new(state.image.geometry.block_size);
        Self { scratch, bytes: Vec::new(), layout: Layout::default(), seen: Vec::new() }
    }

    /// Checks a directory that fits in memory.
    fn small(&mut self, mut dir: Dir<'_>) {
        let Self { scratch, bytes, layout, seen } = self;
        scratch.collect = false;
        if dir.note.flags & flags::INLINE_DATA != 0 {
            if dir.state.image.sb.features.has_incompat(Features::INLINE_DATA) {
                inline::check(&dir, scratch);
            }
            return;
        }
        layout.read(&dir);
        scratch.collect = !dir.indexed && layout.mapped > 1;
        scratch.keys.clear();
        seen.clear();
        seen.resize(dir.blocks as usize, Seen::Nothing);
        let block_len = dir.block_size.len();
        if bytes.len() < dir.blocks as usize * block_len {
            bytes.resize(dir.blocks as usize * block_len, 0);
        }
        let bytes_of = |run: &MappedRun| {
            let start = run.lblk.0 as usize * block_len;
            start..start + run.len as usize * block_len
        };
        let mut bad = Vec::new();
        for run in &layout.runs {
            fill(&dir, *run, &mut bytes[bytes_of(run)], &mut bad);
        }
        if dir.indexed && layout.find(0).is_some() && !bad.contains(&Lblk(0)) {
            dir.hash = RootInfo::decode(&dir, &bytes[..block_len]).and_then(|info| info.hash(&dir));
        }
        for run in &layout.runs {
            for (at, block) in places(*run).zip(bytes[bytes_of(run)].chunks_exact(block_len)) {
                if !bad.contains(&at.lblk) {
                    seen[at.lblk.0 as usize] = dir.check_block(at, block, scratch);
                }
            }
        }
        let mut source = InMemory { bytes, block_len, layout };
        if !dir.indexed {
            if scratch.collect {
                twice::among_all(&dir, layout, &mut scratch.keys, &mut source);
            }
        } else if let Some(order) = index::check(&dir, layout, seen, &mut source) {
            twice::across_leaves(&dir, layout, seen, &order, &mut source);
        }
    }
}
