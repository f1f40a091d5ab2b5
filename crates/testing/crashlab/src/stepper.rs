//! One thread makes in turns what many threads would do concurrently: operations between commits and in the
//! middle of them, and memory shortage.
//!
//! ```text
//!   op  op  sync ------------------------------------------------>  op  reclaim  op  checkpoint ------------> ..
//!             | seal | log | op | flush | op  op | commit block | flush              | homes | op | flush |
//!   durable:  op  op          not these: they belong to the next commit
//! ```
//!
//! An operation in the middle of a commit must not wait for that commit, because only the same thread can end
//! it. It would wait if the running transaction were full, or if there were no space for its changes. So the
//! stepper starts no operation that might come near these limits.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use extant_base::Ino;
use extant_fsmodel::{Bytes, Op, Rng, Tree, diff};
use extant_simdisk::SimDisk;
use extant_volume::Volume;

use crate::interrupted::{Between, Call, Interrupted};
use crate::schedule::{Schedule, Step};
use crate::{Engine, IndexWork, Pressure};

/// Blocks that the running transaction certainly has room for, including the blocks that a commit adds: less
/// than half of a transaction.
const ROOM: usize = 200;
/// Maximum blocks that an operation changes, without those of an attribute's value.
const OP_BLOCKS: usize = 24;
/// Bytes of attributes that fit into an inode and one attribute block.
const ATTRIBUTES: usize = 700;
/// Bytes of an attribute besides its name and value.
const ATTRIBUTE: usize = 20;
/// Free blocks and inodes that are enough for any operation.
const FREE_BLOCKS: u64 = 1500;
const FREE_INODES: u32 = 64;
/// Maximum operations in the middle of one commit or checkpoint.
const MEANWHILE: u64 = 5;
/// Time limit of one such operation: it does not wait for the disk.
const PATIENCE: Duration = Duration::from_secs(5);

/// The operations to come, and the trees after those that were made.
pub(crate) struct Stepper {
    engine: Arc<Engine>,
    disk: Arc<SimDisk>,
    schedule: Schedule,
    random: Rng,
    queue: VecDeque<Op>,
    /// The last operation that was made.
    last: Option<Op>,
    /// Open files: their inodes outlive their names.
    open: Vec<Ino>,
    pub(crate) steps: Vec<Step>,
    watched: Watched,
    pub(crate) pressure: Pressure,
    /// Blocks of the running transaction; an overestimate.
    blocks: usize,
    /// An error of the engine where it should not fail.
    failed: Option<String>,
}

impl Stepper {
    pub(crate) fn new(
        engine: &Arc<Engine>,
        disk: &Arc<SimDisk>,
        ops: &[Op],
        schedule: Schedule,
    ) -> Result<Self, String> {
        let tree = crate::tree(engine.volume())?;
        let mut watched = Watched::default();
        watched.look(engine.volume(), &tree);
        watched.sum = IndexWork::default();
        let synced = Some(disk.events());
        Ok(Self {
            engine: Arc::clone(engine),
            disk: Arc::clone(disk),
            schedule,
            random: Rng::new(schedule.seed),
            queue: ops.iter().cloned().collect(),
            last: None,
            open: Vec::new(),
            steps: vec![Step { begun: 0, tree, synced, is_meanwhile: false }],
            watched,
            pressure: Pressure::default(),
            blocks: 0,
            failed: None,
        })
    }

    /// The changes that the operations made to directory indexes.
    pub(crate) fn index_work(&self) -> IndexWork {
        self.watched.sum
    }

    /// Makes the next operation. Returns `false` if none is left.
    fn step(&mut self) -> Result<bool, String> {
        let begun = self.disk.events();
        let Some(op) = self.queue.pop_front() else { return Ok(false) };
        let volume = self.engine.volume();
        if self.random.below(4) == 0
            && let Some(ino) = self.engine.any_file(&mut self.random)
        {
            volume.opened(ino).map_err(|fault| format!("open: {fault}"))?;
            self.open.push(ino);
        }
        if self.open.len() > 3 {
            let ino = self.open.swap_remove(self.random.index(self.open.len()));
            volume.released(ino).map_err(|fault| format!("close: {fault}"))?;
        }
        self.last = Some(op.clone());
        let is_held = self.steps.len().is_multiple_of(2);
        let _ = self.engine.make(&op, is_held.then_some(&mut self.open));
        self.blocks += blocks_of(&op);
        let tree = crate::tree(volume)?;
        self.watched.look(volume, &tree);
        self.steps.push(Step { begun, tree, synced: None, is_meanwhile: false });
        Ok(true)
    }

    /// The last operation that was made, as text.
    fn op(&self) -> String {
        self.last.as_ref().map(|op| format!("{op:?}")).unwrap_or_default()
    }

    /// Decides whether to make the next operation now, in the middle of a commit or checkpoint.
    fn will_step_meanwhile(&mut self) -> bool {
        self.random.below(2) == 0 && self.may_step_meanwhile()
    }

    fn step_meanwhile(&mut self) {
        let made = self.step();
        let reclaims = self.schedule.reclaims;
        let made = match made {
            Ok(_) if self.chance(reclaims) => self.reclaim(),
            made => made.map(drop),
        };
        self.failed = made.err();
    }

    /// Whether the next operation may be made in the middle of a commit or checkpoint.
    fn may_step_meanwhile(&self) -> bool {
        let Some(op) = self.queue.front() else { return false };
        let has_space = self
            .engine
            .volume()
            .statfs()
            .is_ok_and(|free| free.blocks_free > FREE_BLOCKS && free.inodes_free > FREE_INODES);
        has_space && self.has_room(op) && self.blocks + blocks_of(op) <= ROOM && self.failed.is_none()
    }

    /// Whether there is room for the attribute, if the operation sets one. Without room the engine reports no
    /// space only after a commit, which might have freed some.
    fn has_room(&self, op: &Op) -> bool {
        let (at, new) = match op {
            Op::SetXattr { at, name, value, .. } => (at, ATTRIBUTE + name.0.len() + value.0.len()),
            Op::SetAcl { at, acl, .. } => (at, ATTRIBUTE + acl.to_xattr().len()),
            _ => return true,
        };
        let node = self.steps.last().and_then(|step| step.tree.nodes.get(at.path()));
        let of_attribute = |(name, value): (&Bytes, &Bytes)| ATTRIBUTE + name.0.len() + value.0.len();
        node.is_some_and(|node| new + node.xattrs.iter().map(of_attribute).sum::<usize>() <= ATTRIBUTES)
    }

    /// Simulates memory shortage: reads inodes all over the table until every unused object was evicted. What
    /// is read again must be unchanged.
    fn reclaim(&mut self) -> Result<(), String> {
        let volume = self.engine.volume();
        let inodes = volume.statfs().map_err(|fault| format!("statfs: {fault}"))?.inodes;
        // One inode in each block of the table. Reading a free inode evicts as well.
        (1..=inodes).step_by(4).for_each(|ino| drop(volume.inode(Ino(ino))));
        self.pressure.reclaims += 1;
        self.compare("after memory ran short")
    }

    /// Compares the tree with the one after the last operation.
    fn compare(&self, when: &str) -> Result<(), String> {
        let tree = crate::tree(self.engine.volume()).map_err(|why| format!("{when}: {why}"))?;
        let lines = self.steps.last().map(|step| diff(&step.tree, &tree)).unwrap_or_default();
        if lines.is_empty() {
            return Ok(());
        }
        Err(format!("{when} the tree is another one:\n    {}", lines[..lines.len().min(8)].join("\n    ")))
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.random.below(100) < u64::from(percent)
    }

    /// Closes the volume, or drops it as in a power failure. Returns the steps.
    pub(crate) fn end(mut self) -> Result<Vec<Step>, String> {
        if self.random.below(2) > 0 {
            return Ok(self.steps);
        }
        let Self { engine, disk, open, mut steps, .. } = self;
        for ino in open {
            engine.volume().released(ino).map_err(|fault| format!("close: {fault}"))?;
        }
        Arc::into_inner(engine).ok_or("another thread still works on it")?.close()?;
        set_synced(&mut steps, disk.events());
        Ok(steps)
    }
}

/// Marks the steps as durable at event `now`, except those already marked.
fn set_synced(steps: &mut [Step], now: u64) {
    steps.iter_mut().filter(|step| step.synced.is_none()).for_each(|step| step.synced = Some(now));
}

/// Estimates the maximum blocks that an operation changes.
fn blocks_of(op: &Op) -> usize {
    match op {
        Op::SetXattr { value, .. } => OP_BLOCKS + value.0.len() / 512,
        _ => OP_BLOCKS,
    }
}

/// Makes all operations under the schedule.
pub(crate) fn run(device: &Interrupted, stepper: &Arc<Mutex<Stepper>>) -> Result<(), String> {
    let engine = Arc::clone(&locked(stepper).engine);
    let Schedule { syncs, checkpoints, reclaims, .. } = locked(stepper).schedule;
    while locked(stepper).step()? {
        if locked(stepper).chance(syncs) {
            let steps = {
                let mut stepper = locked(stepper);
                stepper.blocks = 0;
                stepper.steps.len()
            };
            meanwhile(device, stepper, || engine.volume().sync().map_err(|fault| format!("sync: {fault}")))?;
            let mut stepper = locked(stepper);
            let now = stepper.disk.events();
            set_synced(&mut stepper.steps[..steps], now);
        }
        if locked(stepper).chance(checkpoints) {
            let is_whole = locked(stepper).steps.len().is_multiple_of(2);
            let volume = engine.volume();
            let checkpoint = || {
                let done = if is_whole { volume.checkpoint() } else { volume.make_room() };
                done.map_err(|fault| format!("checkpoint: {fault}"))
            };
            meanwhile(device, stepper, checkpoint)?;
        }
        if locked(stepper).chance(reclaims) {
            locked(stepper).reclaim()?;
        }
    }
    Ok(())
}

/// Runs `write`, a commit or a checkpoint, and makes operations in the middle of it.
fn meanwhile(
    device: &Interrupted,
    stepper: &Arc<Mutex<Stepper>>,
    write: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    let percent = locked(stepper).schedule.meanwhile;
    if !locked(stepper).chance(percent) {
        return write();
    }
    let before = locked(stepper).steps.len();
    let stuck = Arc::new(Mutex::new(None));
    let between = Meanwhile { stepper: Arc::clone(stepper), left: MEANWHILE, stuck: Arc::clone(&stuck) };
    device.arm(Some(Box::new(between)));
    let written = write();
    device.arm(None);
    if let Some(working) = locked(&stuck).take() {
        let _ = working.join();
        let op = locked(stepper).op();
        return Err(format!("{op} waited for the commit or checkpoint in whose middle it came; {written:?}"));
    }
    let mut stepper = locked(stepper);
    let now = stepper.disk.events();
    for step in &mut stepper.steps[before..] {
        // The commit was already sealed when they came: nothing of them can be visible before the next
        // commit.
        (step.begun, step.is_meanwhile) = (now, true);
    }
    stepper.pressure.meanwhile += (stepper.steps.len() - before) as u64;
    if stepper.steps.len() > before && stepper.failed.is_none() {
        stepper.compare("after a commit with changes in its middle")?;
    }
    stepper.failed.take().map_or(written, Err)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Operations that are made while the disk is written to, each on its own thread. A defect can make such an
/// operation wait for the commit that it interrupts; it is joined after that commit has ended.
struct Meanwhile {
    stepper: Arc<Mutex<Stepper>>,
    left: u64,
    stuck: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl Meanwhile {
    fn some(&mut self) {
        while self.left > 0 && locked(&self.stepper).will_step_meanwhile() {
            self.left -= 1;
            let stepper = Arc::clone(&self.stepper);
            let (done_sender, done_receiver) = mpsc::channel::<()>();
            let working = std::thread::spawn(move || {
                locked(&stepper).step_meanwhile();
                drop(done_sender);
            });
            if done_receiver.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                *locked(&self.stuck) = Some(working);
                self.left = 0;
            } else if let Err(panic) = working.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

impl Between for Meanwhile {
    fn before(&mut self, _: Call) {
        self.some();
    }

    fn after(&mut self, _: Call) {
        self.some();
    }
}

/// Counts the changes of the indexes of a tree's directories.
#[derive(Default)]
struct Watched {
    dirs: BTreeMap<u32, IndexWork>,
    sum: IndexWork,
}

impl Watched {
    fn look(&mut self, volume: &Volume, tree: &Tree) {
        for node in tree.nodes.values().filter(|node| node.kind == extant_fsmodel::Kind::Dir) {
            let ino = node.ino as u32;
            let now = IndexWork::of(volume, Ino(ino));
            let before = self.dirs.insert(ino, now).unwrap_or_default();
            self.sum += now.since(before);
        }
    }
}
