//! Directories whose index is about to change shape, and runs that start there.
//!
//! A node of the index has room for more than a hundred leaves, and a tree of three levels needs thousands of
//! leaves. To need few names, `Album` adds names in the order of their hashes, and soon removes nearly all
//! older names again: a node stays in the index as long as it leads to a single leaf.
//!
//! ```text
//!   root   [ 1 | 2 | .. | 123 ]                 root   [ 1 ]
//!            |   |         |                             |
//!   nodes   [.] [.]    [ 126 leaves ]  --name-->        [ 1 | 2 | .. | 123 | 124 ]
//!                                                         |   |         |     |
//!                                                        [.] [.]       [63]  [63]
//! ```
//!
//! Then the names are removed in the same order, until none is left. Both ways, `Album` takes a picture
//! before each change of shape.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use extant_base::Ino;
use extant_fsmodel::{At, Op, Rng, Subject};
use extant_ondisk::Superblock;
use extant_ondisk::hash::{HashVersion, dirhash, seed_words};
use extant_ondisk::superblock::FLAG_UNSIGNED_HASH;
use extant_simdisk::{Image, SimDisk};
use extant_volume::WriteOptions;

use crate::{CrashRun, Engine, IndexWork, Kind, Schedule, base_image};

/// Number of names; an index whose root is full and has three levels takes about ten thousand.
const NAMES: usize = 20_000;
/// The newest names stay: more than a full node leads to, at three names in a leaf.
const STAY: usize = 440;
/// Of the older names, one in this many stays: at least one for each node that a split left half full.
const ONE_OF: usize = 48;
/// Changes between two pictures.
const PICTURE: usize = 4;
/// Operations of a run.
const OPS: usize = 10;

const DIR: &[u8] = b"names";
const FILE: &str = "file";

/// A change of the shape of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IndexMoment {
    /// A directory is created, gets an index, and loses all of its names.
    Begun,
    /// The root is full of leaves: it gets a level of nodes below it.
    SecondLevel,
    /// A node is full and is split.
    NodeSplit,
    /// The root and a node are full: a second level of nodes is added.
    ThirdLevel,
    /// A leaf, its node and the node above are full; the root is not.
    TwoNodesSplit,
    /// From three levels to two: the root takes the entries of the only node of the first level.
    ThirdLevelGoes,
    /// The root takes the entries of the only node.
    SecondLevelGoes,
    /// The last name is removed, and with it the index.
    Emptied,
}

impl IndexMoment {
    /// All moments that directories of such an image go through.
    #[must_use]
    pub fn of_kind(kind: Kind) -> &'static [Self] {
        use IndexMoment::*;
        match kind.levels_max() {
            0 | 1 => &[Begun, SecondLevel, NodeSplit, SecondLevelGoes, Emptied],
            _ => &[
                Begun,
                SecondLevel,
                NodeSplit,
                ThirdLevel,
                TwoNodesSplit,
                ThirdLevelGoes,
                SecondLevelGoes,
                Emptied,
            ],
        }
    }

    fn is_of_growth(self) -> bool {
        use IndexMoment::*;
        matches!(self, SecondLevel | NodeSplit | ThirdLevel | TwoNodesSplit)
    }
}

/// A run over a change of shape; it starts a few operations before the change.
///
/// # Errors
/// The engine failed where it should not.
///
/// # Panics
/// Directories of such an image do not reach this moment.
pub fn index_run(kind: Kind, moment: IndexMoment, schedule: Schedule) -> Result<CrashRun, String> {
    let mut random = Rng::new(schedule.seed.rotate_left(20));
    if moment == IndexMoment::Begun {
        return CrashRun::record(base_image(kind), &[], &begun(&mut random), schedule);
    }
    let picture = &pictures(kind)[&moment];
    CrashRun::record(picture.image.clone(), &[], &picture.ops(moment, &mut random), schedule)
}

fn name(number: usize) -> Vec<u8> {
    let mut name = format!("{number:05}-").into_bytes();
    name.resize(240 + number % 16, b'n');
    name
}

fn in_dir(name: &[u8]) -> At {
    At::new([DIR, name].join(&b'/'))
}

fn at(name: &[u8]) -> At {
    At::new(name)
}

/// A directory that gets names until it has several leaves, and loses them again.
fn begun(random: &mut Rng) -> Vec<Op> {
    let names: Vec<Vec<u8>> = (0..16).map(|_| name(random.index(NAMES))).collect();
    let mut left = names.clone();
    let create = |name: &Vec<u8>| Op::Create { at: in_dir(name), mode: 0o644 };
    let mut ops = vec![Op::Mkdir { at: at(DIR), mode: 0o755 }];
    ops.extend(names.iter().map(create));
    while !left.is_empty() {
        ops.push(Op::Unlink { at: in_dir(&left.swap_remove(random.index(left.len()))) });
    }
    ops.extend(names.iter().take(4).map(create));
    ops
}

/// An image before a change of shape, the names that are present, and some absent names that lead to the
/// change; in the order of their hashes.
struct Picture {
    image: Image,
    present: Vec<Vec<u8>>,
    absent: Vec<Vec<u8>>,
}

impl Picture {
    fn ops(&self, moment: IndexMoment, random: &mut Rng) -> Vec<Op> {
        let (mut present, mut absent) = (self.present.clone(), self.absent.iter().cloned());
        let mut ops = Vec::new();
        for _ in 0..OPS {
            let is_usual = random.below(8) > 0;
            let any = random.index(present.len());
            if moment.is_of_growth() == is_usual || present.is_empty() {
                let Some(new) = absent.next() else { break };
                ops.push(match random.below(4) {
                    0 => Op::Create { at: in_dir(&new), mode: 0o640 },
                    1 if !present.is_empty() => {
                        let old = in_dir(&present.remove(any));
                        Op::Rename { old, new: in_dir(&new), mode: extant_fsmodel::RenameMode::Replace }
                    }
                    _ => Op::Link { old: at(FILE.as_bytes()), new: in_dir(&new) },
                });
                present.push(new);
            } else {
                // Removals start with the first names, as in `Album`.
                let at = if moment.is_of_growth() { any } else { 0 };
                ops.push(Op::Unlink { at: in_dir(&present.remove(at)) });
            }
        }
        ops
    }
}

fn pictures(kind: Kind) -> &'static BTreeMap<IndexMoment, Picture> {
    static MADE: [OnceLock<BTreeMap<IndexMoment, Picture>>; Kind::ALL.len()] =
        [const { OnceLock::new() }; Kind::ALL.len()];
    let at = Kind::ALL.iter().position(|known| *known == kind).expect("all are listed");
    MADE[at].get_or_init(|| Album::make(kind))
}

/// Takes pictures of a directory that grows and shrinks.
struct Album {
    disk: Arc<SimDisk>,
    engine: Engine,
    dir: Ino,
    /// All names in the order of their hashes; `present` has the numbers of the present ones.
    names: Vec<Vec<u8>>,
    present: BTreeSet<usize>,
    /// The number of the first name that was never present.
    next: usize,
    work: IndexWork,
    changes: usize,
    last: (Image, BTreeSet<usize>, usize),
    pictures: BTreeMap<IndexMoment, Picture>,
}

impl Album {
    fn make(kind: Kind) -> BTreeMap<IndexMoment, Picture> {
        let base = base_image(kind);
        let names = names_by_hash(&base);
        let disk = Arc::new(SimDisk::from_image(base));
        let options = WriteOptions { no_committer: true, ..WriteOptions::default() };
        let mut engine = Engine::open(disk.clone(), options).expect("mke2fs's images open");
        for op in [Op::Mkdir { at: at(DIR), mode: 0o755 }, Op::Create { at: At::new(FILE), mode: 0o644 }] {
            engine.apply(&op).expect("an empty file system has room");
        }
        let dir = engine.ino(&at(DIR)).expect("it was made");
        let last = (disk.image(), BTreeSet::new(), 0);
        let mut album = Self {
            disk,
            engine,
            dir,
            names,
            present: BTreeSet::new(),
            next: 0,
            work: IndexWork::default(),
            changes: 0,
            last,
            pictures: BTreeMap::new(),
        };
        let grown = if kind.levels_max() > 1 { IndexMoment::TwoNodesSplit } else { IndexMoment::NodeSplit };
        while !album.pictures.contains_key(&grown) {
            album.grow();
        }
        while let Some(first) = album.present.first().copied() {
            album.unlink(first);
        }
        let moments = &IndexMoment::of_kind(kind)[1..];
        assert!(album.pictures.keys().eq(moments), "{kind:?}: {:?}", album.pictures.keys());
        album.pictures
    }

    fn grow(&mut self) {
        let next = self.next;
        let new = in_dir(&self.names[next]);
        self.apply(&Op::Link { old: At::new(FILE), new });
        self.present.insert(next);
        self.next += 1;
        self.look();
        if let Some(old) = next.checked_sub(STAY).filter(|old| old % ONE_OF > 0) {
            self.unlink(old);
        }
    }

    fn unlink(&mut self, number: usize) {
        self.apply(&Op::Unlink { at: in_dir(&self.names[number]) });
        self.present.remove(&number);
        self.look();
    }

    fn apply(&mut self, op: &Op) {
        self.engine.apply(op).unwrap_or_else(|errno| panic!("{op:?}: {errno}"));
    }

    /// Keeps the last picture if the shape has changed. Takes a new picture every few changes.
    fn look(&mut self) {
        let levels = self.work.levels_added - self.work.levels_removed;
        let now = IndexWork::of(self.engine.volume(), self.dir);
        let done = now.since(self.work);
        self.work = now;
        let moment = match done {
            IndexWork { unindexed: 1.., .. } => Some(IndexMoment::Emptied),
            IndexWork { levels_added: 1, .. } if levels == 0 => Some(IndexMoment::SecondLevel),
            IndexWork { levels_added: 1, .. } => Some(IndexMoment::ThirdLevel),
            IndexWork { levels_removed: 1.., .. } if levels == 2 => Some(IndexMoment::ThirdLevelGoes),
            IndexWork { levels_removed: 1, .. } => Some(IndexMoment::SecondLevelGoes),
            IndexWork { node_splits: 2.., .. } => Some(IndexMoment::TwoNodesSplit),
            IndexWork { node_splits: 1, .. } => Some(IndexMoment::NodeSplit),
            _ => None,
        };
        let (image, present, next) = &self.last;
        if let Some(moment) = moment {
            let named = |numbers: &mut dyn Iterator<Item = usize>| {
                numbers.map(|number| self.names[number].clone()).collect()
            };
            self.pictures.entry(moment).or_insert_with(|| Picture {
                image: image.clone(),
                present: named(&mut present.iter().copied()),
                absent: named(&mut (*next..next + 2 * OPS)),
            });
        }
        self.changes += 1;
        if self.changes.is_multiple_of(PICTURE) {
            self.engine.volume().sync().expect("nothing fails");
            self.last = (self.disk.image(), self.present.clone(), self.next);
        }
    }
}

fn names_by_hash(image: &Image) -> Vec<Vec<u8>> {
    let mut bytes = [0; extant_ondisk::superblock::SIZE];
    image.read(extant_ondisk::superblock::OFFSET, &mut bytes);
    let sb = Superblock::decode(&bytes).expect("mke2fs made it");
    let version = HashVersion::from_code(sb.def_hash_version, sb.flags & FLAG_UNSIGNED_HASH != 0);
    let version = version.expect("mke2fs knows no others");
    let mut names: Vec<Vec<u8>> = (0..NAMES).map(name).collect();
    names.sort_by_cached_key(|name| dirhash(version, &seed_words(&sb.hash_seed), name));
    names
}
