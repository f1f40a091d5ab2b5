//! Pass 1b: the owners of clusters that were claimed twice.
//!
//! Walks all maps again; this happens only on damaged file systems. In a small image, thousands of maps can
//! lead to the same blocks, so the walk has a budget. When the budget is spent, clusters are reported without
//! owners; the result does not depend on thread scheduling.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use extant_base::{Group, Ino, Pblk};
use extant_ondisk::inode::{Inode, flags, inode_seed};

use crate::map::{self, MapFault, MapRoot, MappedRun, Visit};
use crate::rules::map as rules;
use crate::state::State;
use crate::{FindingPlace, parallel};

/// Clusters for which owners are recorded; the bitmaps count the others.
const KEPT: usize = 1 << 16;
/// Owners recorded per cluster.
const OWNERS: usize = 8;

/// Owner number of fixed metadata: superblocks, descriptors, bitmaps, inode tables.
const METADATA: u32 = 0;

type Owners = BTreeMap<u64, BTreeSet<u32>>;

/// The step budget of all walks together: map blocks, bitmap words, doubly claimed clusters.
struct Budget {
    spent: AtomicU64,
    steps_max: u64,
}

impl Budget {
    /// Four steps per block, more than partly shared files need.
    fn new(blocks: u64) -> Self {
        Self { spent: AtomicU64::new(0), steps_max: blocks.saturating_mul(4).saturating_add(1 << 16) }
    }

    /// Takes `steps` from the budget; returns `false` if too few are left.
    fn spend(&self, steps: u64) -> bool {
        self.spent.fetch_add(steps, Ordering::Relaxed).saturating_add(steps) <= self.steps_max
    }

    fn is_spent(&self) -> bool {
        self.spent.load(Ordering::Relaxed) > self.steps_max
    }
}

pub(crate) fn run(state: &State<'_>, threads: usize) {
    let owners = Mutex::new(Owners::new());
    let budget = Budget::new(state.image.geometry.blocks);
    parallel(
        state,
        threads,
        state.image.geometry.groups,
        || (),
        |(), group| group_owners(state, Group(group), &owners, &budget),
        |()| (),
    );
    if budget.is_spent() {
        return without_owners(state, budget.steps_max);
    }
    let owners = owners.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut clusters = owners.into_iter().peekable();
    while let Some((first, who)) = clusters.next() {
        let mut last = first;
        while clusters.next_if(|(cluster, others)| *cluster == last + 1 && *others == who).is_some() {
            last += 1;
        }
        report(state, first, last, &who);
    }
}

/// Reports doubly claimed clusters without owners, after the budget is spent.
fn without_owners(state: &State<'_>, steps: u64) {
    let says = format!("the owners of shared blocks were not found within {steps} steps");
    state.findings.broken(&rules::ABANDONED, FindingPlace::default(), says);
    let report = |first: u64, last: u64| {
        let (start, end) = (state.claims.block_of(first), state.claims.block_of(last + 1).0 - 1);
        let says = format!("blocks {start} to {end} are claimed more than once");
        state.findings.broken(&rules::SHARED, FindingPlace::block(start), says);
    };
    let mut open: Option<(u64, u64)> = None;
    state.claims.each_twice(|cluster| {
        open = match open {
            Some((first, last)) if last + 1 == cluster => Some((first, cluster)),
            before => {
                if let Some((first, last)) = before {
                    report(first, last);
                }
                Some((cluster, cluster))
            }
        };
    });
    if let Some((first, last)) = open {
        report(first, last);
    }
}

fn report(state: &State<'_>, first: u64, last: u64, who: &BTreeSet<u32>) {
    let (start, end) = (state.claims.block_of(first), state.claims.block_of(last + 1).0 - 1);
    let mut names: Vec<String> = who
        .iter()
        .map(|ino| if *ino == METADATA { "metadata".into() } else { format!("inode {ino}") })
        .collect();
    if names.len() == 1 {
        names.push("itself again".into());
    }
    let says = format!("blocks {start} to {end} belong to {}", names.join(" and "));
    let ino = who.iter().copied().find(|ino| *ino != METADATA).map(Ino);
    state.findings.broken(&rules::SHARED, FindingPlace { ino, ..FindingPlace::block(start) }, says);
}

fn group_owners(state: &State<'_>, group: Group, owners: &Mutex<Owners>, budget: &Budget) {
    let Some(notes) = state.inodes.group(group) else { return };
    let ipg = state.image.geometry.inodes_per_group;
    for (index, note) in notes.iter().enumerate() {
        if !note.used {
            continue;
        }
        if budget.is_spent() {
            return;
        }
        let ino = Ino(group.0 * ipg + index as u32 + 1);
        let Some(inode) = state.image.read_inode(ino).ok().and_then(|bytes| Inode::decode(&bytes).ok())
        else {
            continue;
        };
        let inode = if state.image.sb.is_hurd() { inode.of_hurd() } else { inode };
        let mut walk = Claims { state, ino: ino.0, owners, budget, left: state.image.geometry.blocks };
        if inode.file_acl != 0 {
            walk.claim(Pblk(inode.file_acl), 1);
        }
        let mapped = matches!(inode.mode & 0xF000, 0x8000 | 0x4000)
            || (inode.mode & 0xF000 == 0xA000 && inode.size >= 60);
        if !mapped || inode.has_flag(flags::INLINE_DATA) || ino == Ino::RESIZE {
            continue;
        }
        if let Some(translator) = super::blocks::translator(&state.image.sb, &inode) {
            walk.claim(translator, 1);
        }
        let seed = inode_seed(state.image.fs_seed, ino, inode.generation);
        let root = MapRoot { ino, i_block: inode.block, extents: inode.has_flag(flags::EXTENTS), seed };
        map::walk(&state.image, &root, &mut walk);
    }
}

struct Claims<'s, 'd> {
    state: &'s State<'d>,
    ino: u32,
    owners: &'s Mutex<Owners>,
    budget: &'s Budget,
    /// Blocks that this file may still have; a map with more blocks contains some twice.
    left: u64,
}

impl Claims<'_, '_> {
    fn claim(&mut self, block: Pblk, len: u64) {
        let claims = &self.state.claims;
        let (first, last) = (claims.cluster_of(block), claims.cluster_of(Pblk(block.0 + len - 1)));
        self.left = self.left.saturating_sub(len);
        let mut shared = 0;
        claims.twice_within(first, last, |_| shared += 1);
        if !self.budget.spend(1 + len / 64 + shared) {
            self.left = 0;
            return;
        }
        claims.twice_within(first, last, |cluster| {
            let fixed = self
                .state
                .image
                .zones
                .overlap(claims.block_of(cluster), 1 << self.state.image.geometry.cluster_log);
            let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
            if owners.len() >= KEPT && !owners.contains_key(&cluster) {
                // The lowest clusters are recorded, so that the report does not depend on thread scheduling.
                match owners.last_key_value() {
                    Some((last, _)) if *last > cluster => owners.pop_last(),
                    _ => return,
                };
            }
            let who = owners.entry(cluster).or_default();
            if fixed {
                who.insert(METADATA);
            }
            who.insert(self.ino);
            if who.len() > OWNERS {
                who.pop_last();
            }
        });
    }
}

impl Visit for Claims<'_, '_> {
    fn node(&mut self, block: Pblk) -> bool {
        self.claim(block, 1);
        self.left > 0 && self.state.may_enter_shared(block)
    }

    fn run(&mut self, run: MappedRun) -> ControlFlow<()> {
        self.claim(run.pblk, run.len.into());
        if self.left > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    fn broken(&mut self, _: MapFault) {}
}
