//! A run: operations applied to the engine on a disk that records.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::Ino;
use fsmodel::{Op, Rng, Subject, Tree};
use simdisk::{Image, Recording, SimDisk};
use volume::{OrphanMode, Sabotage, Volume, WriteOptions};

use crate::{Engine, IndexWork};

/// When commits and checkpoints happen between operations, and how the volume writes.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    /// Chooses the moments.
    pub seed: u64,
    /// Of 100 operations so many are followed by a sync.
    pub syncs: u32,
    /// Of 100 operations so many are followed by a checkpoint.
    pub checkpoints: u32,
    /// How orphans are tracked.
    pub orphans: OrphanMode,
    /// Track also what one transaction does.
    pub track_all_orphans: bool,
    /// Blocks of a transaction; 0 for what the log allows.
    pub transaction_max: u32,
    /// What is freed is discarded.
    pub discard: bool,
    /// Mistakes on purpose.
    pub sabotage: Sabotage,
}

impl Schedule {
    /// A schedule for this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // By chance, so that no choice goes with another one that a run's number makes.
        let mut random = Rng::new(!seed);
        Self {
            seed,
            syncs: 30,
            checkpoints: 10,
            orphans: *random.pick(&[OrphanMode::File, OrphanMode::ListV3, OrphanMode::ListV0]),
            track_all_orphans: random.one_in(2),
            transaction_max: 0,
            discard: random.one_in(2),
            sabotage: Sabotage::default(),
        }
    }

    fn options(&self) -> WriteOptions {
        WriteOptions {
            orphans: self.orphans,
            track_all_orphans: self.track_all_orphans,
            transaction_max: self.transaction_max,
            no_committer: true,
            discard: self.discard,
            sabotage: self.sabotage,
            ..WriteOptions::default()
        }
    }
}

/// The tree after an operation, and the disk's events around it.
pub(crate) struct Step {
    /// Events when it began.
    pub(crate) begun: u64,
    pub(crate) tree: Tree,
    /// Events when it was known to be durable; `None`: never asked.
    pub(crate) synced: Option<u64>,
}

/// Operations, what the disk saw, and what there was after each of them.
pub struct Run {
    pub(crate) recording: Recording,
    pub(crate) steps: Vec<Step>,
    pub(crate) ops: Vec<Op>,
    pub(crate) schedule: Schedule,
    work: IndexWork,
}

impl Run {
    /// Applies `setup` and closes; then applies `ops` under the schedule, recording.
    ///
    /// # Errors
    /// The engine failed where it should not.
    pub fn record(base: Image, setup: &[Op], ops: &[Op], schedule: Schedule) -> Result<Self, String> {
        let disk = Arc::new(SimDisk::from_image(base));
        let mut engine = Engine::open(disk.clone(), schedule.options())?;
        for op in setup {
            let _ = engine.apply(op);
        }
        engine.close()?;
        let disk = Arc::new(SimDisk::recording(disk.image()));
        let mut engine = Engine::open(disk.clone(), schedule.options())?;
        let mut random = Rng::new(schedule.seed);
        let mut steps =
            vec![Step { begun: 0, tree: crate::tree(engine.volume())?, synced: Some(disk.events()) }];
        let mut watched = Watched::default();
        watched.look(engine.volume(), &steps[0].tree);
        watched.sum = IndexWork::default();
        // Files that somebody has open: their inodes outlive their names.
        let mut open = Vec::new();
        for op in ops {
            let begun = disk.events();
            if random.below(4) == 0
                && let Some(ino) = engine.any_file(&mut random)
            {
                engine.volume().opened(ino).map_err(|fault| format!("open: {fault}"))?;
                open.push(ino);
            }
            if open.len() > 3 {
                let ino = open.swap_remove(random.index(open.len()));
                engine.volume().released(ino).map_err(|fault| format!("close: {fault}"))?;
            }
            let _ = engine.apply(op);
            let tree = crate::tree(engine.volume())?;
            watched.look(engine.volume(), &tree);
            steps.push(Step { begun, tree, synced: None });
            if random.below(100) < u64::from(schedule.syncs) {
                engine.volume().sync().map_err(|fault| format!("sync: {fault}"))?;
                let now = disk.events();
                steps
                    .iter_mut()
                    .filter(|step| step.synced.is_none())
                    .for_each(|step| step.synced = Some(now));
            }
            if random.below(100) < u64::from(schedule.checkpoints) {
                engine.volume().checkpoint().map_err(|fault| format!("checkpoint: {fault}"))?;
            }
        }
        if random.below(2) == 0 {
            for ino in open {
                engine.volume().released(ino).map_err(|fault| format!("close: {fault}"))?;
            }
            engine.close()?;
            let now = disk.events();
            steps.iter_mut().filter(|step| step.synced.is_none()).for_each(|step| step.synced = Some(now));
        } else {
            drop(engine);
        }
        let recording = disk.recorded().ok_or("the disk did not record")?;
        Ok(Self { recording, steps, ops: ops.to_vec(), schedule, work: watched.sum })
    }

    /// What the operations did to the indexes of directories.
    #[must_use]
    pub fn index_work(&self) -> IndexWork {
        self.work
    }

    /// Moments at which power can fail: after each event, and during it.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.recording.end()
    }
}

/// What was done to the indexes of a tree's directories.
#[derive(Default)]
struct Watched {
    dirs: BTreeMap<u32, IndexWork>,
    sum: IndexWork,
}

impl Watched {
    fn look(&mut self, volume: &Volume, tree: &Tree) {
        for node in tree.nodes.values().filter(|node| node.kind == fsmodel::Kind::Dir) {
            let ino = node.ino as u32;
            let now = IndexWork::of(volume, Ino(ino));
            let before = self.dirs.insert(ino, now).unwrap_or_default();
            self.sum += now.since(before);
        }
    }
}
