//! Random sequences of all operations, compared with an array that has a cell for each block.

use std::convert::Infallible;

use extant_base::{Ino, Lblk};
use extant_extent_status::{
    Allocation, Answer, Cache, Cached, END, EndedReservation, Entry, Inode, Keep, Options, Policy, Source,
    Status,
};
use proptest::prelude::*;

const BLOCKS: u32 = 900;

/// The true state of the file, block by block.
#[derive(Clone)]
struct Truth {
    /// The physical block, and whether it is written.
    disk: Vec<Option<(u64, bool)>>,
    delayed: Vec<bool>,
    bits: u32,
    promised: i64,
    /// Whether reservations fail.
    refuses: bool,
}

impl Truth {
    fn status(&self, lblk: u32) -> (Status, u64) {
        match (self.delayed[lblk as usize], self.disk[lblk as usize]) {
            (true, _) => (Status::Delayed, 0),
            (_, Some((pblk, true))) => (Status::Written, pblk),
            (_, Some((pblk, false))) => (Status::Unwritten, pblk),
            _ => (Status::Hole, 0),
        }
    }

    /// Clusters with a delayed block and no block on disk.
    fn promises(&self) -> i64 {
        let cluster = 1usize << self.bits;
        let of = |at: usize| at..(at + cluster).min(BLOCKS as usize);
        (0..BLOCKS as usize)
            .step_by(cluster)
            .filter(|at| {
                self.delayed[of(*at)].contains(&true) && self.disk[of(*at)].iter().all(Option::is_none)
            })
            .count() as i64
    }

    /// The extents on disk in `from..to`, merged to maximum length.
    fn extents(&self, from: u32, to: u32) -> Vec<Entry> {
        let mut all: Vec<Entry> = Vec::new();
        for lblk in from..to {
            let Some((pblk, written)) = self.disk[lblk as usize] else { continue };
            let status = if written { Status::Written } else { Status::Unwritten };
            let one = Entry::mapped(lblk, 1, pblk, status);
            match all.last_mut() {
                Some(last) if last.can_merge(&one) => last.len += 1,
                _ => all.push(one),
            }
        }
        all
    }
}

impl Source for Truth {
    type Error = ();

    fn extent_at(&mut self, lblk: Lblk) -> Result<Answer, ()> {
        let all = self.extents(0, BLOCKS);
        if let Some(extent) = all.iter().find(|extent| extent.contains(lblk.0)) {
            return Ok(Answer::Extent(*extent));
        }
        let from = all.iter().filter(|extent| extent.end() <= lblk.0).map(Entry::end).max().unwrap_or(0);
        let to = all.iter().filter(|extent| extent.lblk > lblk).map(|extent| extent.lblk.0).min();
        Ok(Answer::Gap { from, to: to.unwrap_or(END) })
    }

    fn cluster_is_allocated(&mut self, cluster: u32) -> Result<bool, ()> {
        let from = (cluster << self.bits) as usize;
        Ok(self.disk[from..(from + (1 << self.bits)).min(BLOCKS as usize)].iter().any(Option::is_some))
    }

    fn promise(&mut self, clusters: u32) -> Result<(), ()> {
        if self.refuses {
            return Err(());
        }
        self.promised += i64::from(clusters);
        Ok(())
    }
}

#[derive(Debug, Clone)]
enum Op {
    Insert {
        from: u32,
        len: u32,
        written: bool,
        far: bool,
        delayed: bool,
    },
    Hole {
        from: u32,
        len: u32,
    },
    Delay {
        from: u32,
        len: u32,
        refuses: bool,
    },
    /// Every other block, so that there are many entries.
    Comb {
        from: u32,
        teeth: u32,
        delayed: bool,
    },
    Remove {
        from: u32,
        len: u32,
    },
    Leaf {
        from: u32,
        len: u32,
    },
    Cache {
        at: u32,
    },
    Map {
        at: u32,
        keep: bool,
    },
    Lookup {
        at: u32,
    },
    Find {
        from: u32,
        len: u32,
        status: Status,
    },
    Scan {
        nr: u32,
    },
    Clear,
    Precache,
}

fn ops() -> impl Strategy<Value = Op> {
    let len = prop_oneof![4 => 1u32..8, 1 => 1u32..300];
    let range = (0..BLOCKS, len).prop_map(|(from, len)| (from, len.min(BLOCKS - from)));
    let status = prop_oneof![
        Just(Status::Written),
        Just(Status::Unwritten),
        Just(Status::Delayed),
        Just(Status::Hole)
    ];
    prop_oneof![
        4 => (range.clone(), any::<(bool, bool, bool)>()).prop_map(|((from, len), (written, far, delayed))| {
            Op::Insert { from, len, written, far, delayed }
        }),
        1 => range.clone().prop_map(|(from, len)| Op::Hole { from, len }),
        4 => (range.clone(), 0..5u32).prop_map(|((from, len), luck)| Op::Delay { from, len, refuses: luck == 0 }),
        3 => (0..BLOCKS - 200, 1..100u32, any::<bool>()).prop_map(|(from, teeth, delayed)| {
            Op::Comb { from, teeth, delayed }
        }),
        2 => range.clone().prop_map(|(from, len)| Op::Remove { from, len }),
        1 => range.clone().prop_map(|(from, len)| Op::Leaf { from, len }),
        2 => (0..BLOCKS).prop_map(|at| Op::Cache { at }),
        3 => (0..BLOCKS, any::<bool>()).prop_map(|(at, keep)| Op::Map { at, keep }),
        3 => (0..BLOCKS).prop_map(|at| Op::Lookup { at }),
        1 => (range, status).prop_map(|((from, len), status)| Op::Find { from, len, status }),
        2 => (1..200u32).prop_map(|nr| Op::Scan { nr }),
        1 => Just(Op::Clear),
        1 => Just(Op::Precache),
    ]
}

/// How an operation may change which blocks are known.
enum Effect {
    /// The range becomes known or unknown; all else stays.
    Exactly(u32, u32, bool),
    More,
    Less,
    Any,
}

struct Side {
    cache: Cache,
    inode: Inode,
    truth: Truth,
    known: Vec<bool>,
}

impl Side {
    fn new(options: Options) -> Self {
        let cache = Cache::new(options);
        let inode = cache.inode(Ino(12));
        let cells = BLOCKS as usize;
        let truth = Truth {
            disk: vec![None; cells],
            delayed: vec![false; cells],
            bits: options.cluster_bits,
            promised: 0,
            refuses: false,
        };
        Self { cache, inode, truth, known: vec![false; cells] }
    }

    fn subtract(&mut self, ended: EndedReservation) {
        self.truth.promised -= i64::from(ended.clusters());
        // When the last block of a cluster was freed, `promise_again` must be called.
        for cluster in self.inode.pending() {
            if !self.truth.cluster_is_allocated(cluster).unwrap() && self.inode.promise_again(cluster) {
                self.truth.promised += 1;
            }
        }
    }

    fn write(&mut self, from: u32, len: u32, pblk: Option<(u64, bool)>, allocation: Allocation) -> Effect {
        for lblk in from..from + len {
            self.truth.delayed[lblk as usize] = false;
            self.truth.disk[lblk as usize] = pblk.map(|(first, written)| (first + u64::from(lblk), written));
        }
        let entry = match pblk {
            None => Entry::hole(from, len),
            Some((first, true)) => Entry::mapped(from, len, first + u64::from(from), Status::Written),
            Some((first, false)) => Entry::mapped(from, len, first + u64::from(from), Status::Unwritten),
        };
        let ended = self.inode.insert(entry, allocation);
        self.subtract(ended);
        Effect::Exactly(from, from + len, true)
    }

    fn apply(&mut self, op: &Op) -> Effect {
        match *op {
            Op::Insert { from, len, written, far, delayed } => {
                let allocation = if delayed { Allocation::Delayed } else { Allocation::Other };
                self.write(from, len, Some((if far { 50_000 } else { 1000 }, written)), allocation)
            }
            Op::Hole { from, len } => self.write(from, len, None, Allocation::Other),
            Op::Delay { from, len, refuses } => {
                self.truth.refuses = refuses;
                let before = self.truth.status(from).0;
                match self.inode.delay(Lblk(from), len, &mut self.truth) {
                    Err(()) => assert!(refuses && before == Status::Hole),
                    Ok(entry) => {
                        assert!(entry.lblk.0 == from && entry.len <= len && entry.len > 0, "{entry:?}");
                        for lblk in from..entry.end().min(BLOCKS) {
                            let (status, pblk) = self.truth.status(lblk);
                            if entry.status == Status::Delayed {
                                assert!(!status.is_mapped(), "{lblk} is on disk");
                                self.truth.delayed[lblk as usize] = true;
                            } else {
                                assert_eq!((entry.status, entry.part(lblk, lblk + 1).pblk.0), (status, pblk));
                            }
                        }
                        assert!(entry.end() <= BLOCKS);
                    }
                }
                Effect::More
            }
            Op::Comb { from, teeth, delayed } => {
                for lblk in (from..from + 2 * teeth).step_by(2) {
                    if delayed {
                        self.truth.refuses = false;
                        let entry = self.inode.delay(Lblk(lblk), 1, &mut self.truth).unwrap();
                        self.truth.delayed[lblk as usize] |= entry.status == Status::Delayed;
                    } else {
                        let _ =
                            self.write(lblk, 1, Some((70_000 + u64::from(lblk), true)), Allocation::Other);
                    }
                }
                Effect::More
            }
            Op::Remove { from, len } => {
                for lblk in from..from + len {
                    self.truth.delayed[lblk as usize] = false;
                    self.truth.disk[lblk as usize] = None;
                }
                let ended = self.inode.remove(Lblk(from), len);
                self.subtract(ended);
                Effect::Exactly(from, from + len, false)
            }
            Op::Leaf { from, len } => {
                self.inode.cache_leaf(&self.truth.extents(from, from + len));
                Effect::More
            }
            Op::Cache { at } => {
                let Answer::Extent(extent) = self.truth.extent_at(Lblk(at)).unwrap() else {
                    return Effect::More;
                };
                assert_ne!(self.inode.cache(extent), Cached::Conflict);
                let wrong = Entry { pblk: extant_base::Pblk(extent.pblk.0 + 1), ..extent };
                assert_eq!(self.inode.cache(wrong), Cached::Conflict);
                Effect::More
            }
            Op::Map { at, keep } => {
                let keep_it = if keep { Keep::Yes } else { Keep::No };
                let entry = self.inode.map(Lblk(at), 50, &mut self.truth, keep_it).unwrap();
                assert!(entry.lblk.0 == at && (1..=50).contains(&entry.len));
                for lblk in at..entry.end().min(BLOCKS) {
                    let returned = (entry.status, entry.part(lblk, lblk + 1).pblk.0);
                    assert_eq!(returned, self.truth.status(lblk), "block {lblk} of {entry:?}");
                }
                if keep { Effect::More } else { Effect::Exactly(0, 0, true) }
            }
            Op::Lookup { at } => {
                let found = self.inode.lookup(Lblk(at));
                assert_eq!(found.is_some(), self.known[at as usize], "block {at}");
                assert!(found.is_none_or(|found| found.entry.contains(at)));
                Effect::Exactly(0, 0, true)
            }
            Op::Find { from, len, status } => {
                let found = self.inode.find(Lblk(from), Lblk(from + len), |entry| entry.status == status);
                let is = |lblk: &u32| self.known[*lblk as usize] && self.truth.status(*lblk).0 == status;
                let first = (from..from + len).find(is);
                assert_eq!(found.map(|entry| entry.lblk.0.max(from)), first);
                assert_eq!(
                    self.inode.any(Lblk(from), Lblk(from + len), |entry| entry.status == status),
                    first.is_some()
                );
                Effect::Exactly(0, 0, true)
            }
            Op::Scan { nr } => {
                let before = self.cache.count();
                let scan = self.cache.scan(nr);
                assert_eq!(before - self.cache.count(), u64::from(scan.reclaimed));
                Effect::Less
            }
            Op::Clear => {
                self.inode.clear();
                assert_eq!(self.cache.count(), 0);
                Effect::Less
            }
            Op::Precache => {
                self.inode.precache(self.truth.extents(0, BLOCKS));
                assert!(self.inode.is_precached());
                Effect::Any
            }
        }
    }

    fn check(&mut self, op: &Op, seq: u64, effect: &Effect) {
        self.inode.check();
        let mut now = vec![false; BLOCKS as usize];
        for entry in self.inode.entries() {
            for lblk in entry.lblk.0..entry.end().min(BLOCKS) {
                now[lblk as usize] = true;
                let returned = (entry.status, entry.part(lblk, lblk + 1).pblk.0);
                assert_eq!(returned, self.truth.status(lblk), "block {lblk} of {entry:?}");
            }
        }
        for lblk in 0..BLOCKS {
            let (was, is) = (self.known[lblk as usize], now[lblk as usize]);
            assert!(is || !self.truth.delayed[lblk as usize], "delayed block {lblk} is forgotten");
            let right = match *effect {
                Effect::Exactly(from, to, known) if (from..to).contains(&lblk) => is == known,
                Effect::Exactly(..) => is == was,
                Effect::More => is || !was,
                Effect::Less => was || !is,
                Effect::Any => true,
            };
            assert!(right, "block {lblk}: known {was} before {op:?}, {is} after");
        }
        self.known = now;
        assert_eq!(self.truth.promised, self.truth.promises(), "promises after {op:?}");
        assert_eq!(i64::from(self.inode.promises()), self.truth.promised, "reservations as reported");
        let changes = matches!(op, Op::Insert { .. } | Op::Hole { .. } | Op::Remove { .. });
        let only_learns = matches!(
            op,
            Op::Leaf { .. }
                | Op::Cache { .. }
                | Op::Map { .. }
                | Op::Lookup { .. }
                | Op::Scan { .. }
                | Op::Clear
                | Op::Precache
        );
        assert!(!changes || self.inode.seq() > seq, "{op:?} changes the sequence number");
        assert!(!only_learns || self.inode.seq() == seq, "{op:?} leaves the sequence number");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_operations_leave_what_is_true_of_each_block(
        policy in prop::sample::select(&Policy::ALL[..]),
        no_merge: bool,
        cluster_bits in prop_oneof![Just(0u32), Just(2), Just(4)],
        ops in prop::collection::vec(ops(), 1..80),
    ) {
        let mut side = Side::new(Options { policy, no_merge, cluster_bits, ..Options::default() });
        for op in &ops {
            let seq = side.inode.seq();
            let effect = side.apply(op);
            side.check(op, seq, &effect);
        }
        let (entries, cache) = (side.inode.entries().len() as u64, side.cache.clone());
        prop_assert_eq!(cache.stats().entries, entries);
        drop(side);
        let stats = cache.stats();
        prop_assert_eq!((stats.entries, stats.reclaimable, stats.bytes, stats.inodes_listed), (0, 0, 0, 0));
    }
}

/// While fast commits are replayed, lookups find nothing and nothing is kept.
#[test]
fn nothing_is_known_during_replay() {
    let cache = Cache::new(Options::default());
    let inode = cache.inode(Ino(12));
    assert_eq!(inode.insert(Entry::hole(0, 5), Allocation::Other), EndedReservation::Release(0));
    cache.set_replaying(true);
    assert!(inode.lookup(Lblk(0)).is_none());
    assert_eq!(inode.insert(Entry::hole(5, 5), Allocation::Other), EndedReservation::Release(0));
    assert_eq!(inode.cache(Entry::hole(20, 5)), Cached::Known);
    assert!(!inode.any(Lblk(0), Lblk(9), |_| true));
    cache.set_replaying(false);
    assert_eq!(inode.entries(), [Entry::hole(0, 5)]);
}

/// A hole ends at the next delayed block: otherwise zeros would be read where the page cache has data.
#[test]
fn a_hole_is_cut_at_delayed_blocks() {
    struct Nothing;
    impl Source for Nothing {
        type Error = Infallible;
        fn extent_at(&mut self, _: Lblk) -> Result<Answer, Infallible> {
            Ok(Answer::Gap { from: 0, to: END })
        }
    }
    let cache = Cache::new(Options::default());
    let inode = cache.inode(Ino(12));
    inode.insert_delayed(Lblk(10), 5, (false, false));
    inode.insert_delayed(Lblk(40), 1, (false, false));
    let Ok(hole) = inode.map(Lblk(20), 100, &mut Nothing, Keep::Yes);
    assert_eq!(hole, Entry::hole(20, 20));
    let Ok(hole) = inode.map(Lblk(3), 100, &mut Nothing, Keep::Yes);
    assert_eq!(hole, Entry::hole(3, 7));
    assert_eq!(
        inode.dump(),
        "inode 12: 4 entries, 2 reclaimable, seq 2\n  0+10 H\n  10+5 D\n  20+20 H\n  40+1 D\n"
    );
    // The last possible block.
    let Ok(hole) = inode.map(Lblk(END - 1), 1, &mut Nothing, Keep::Yes);
    assert_eq!(hole, Entry::hole(END - 1, 1));
}
