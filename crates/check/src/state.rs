//! What the passes tell each other: a few bytes per inode, one bit per cluster, lists of directories.
//!
//! Invariants
//! 1. Memory is taken per group, when a pass touches it: a large empty file system costs nothing.
//! 2. Pass 1 sets notes; later passes only read them. Counters are atomics, so that threads need no lock.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use base::{Group, Ino, Pblk};
use ondisk::Geometry;

use crate::Findings;
use crate::claims::Claims;
use crate::image::Image;
use crate::map::MapRoot;
use crate::xattrs::Attrs;

/// What pass 1 found out about an inode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct InodeNote {
    /// `FileType::dirent_code()` of its mode; 0 with `used` for an impossible mode.
    pub(crate) kind: u8,
    /// In use: allocated, or with links. `false`: free.
    pub(crate) used: bool,
    /// Its bit is set in the inode bitmap.
    pub(crate) marked: bool,
    /// Reserved, journal, quota, orphan file, EA inode...: no directory entry may lead here (root excepted).
    pub(crate) hidden: bool,
    /// So damaged that its contents were not looked at.
    pub(crate) bad: bool,
    /// links_count as stored.
    pub(crate) links: u16,
}

/// A directory, for pass 2.
#[derive(Debug, Clone)]
pub(crate) struct DirNote {
    pub(crate) ino: Ino,
    pub(crate) size: u64,
    pub(crate) flags: u32,
    /// Seed of its blocks' checksums.
    pub(crate) seed: u32,
    /// Where its blocks are; for inline data i_block holds the beginning.
    pub(crate) root: MapRoot,
}

/// Everything that is shared between passes and threads.
pub(crate) struct State<'d> {
    pub(crate) image: Image<'d>,
    pub(crate) findings: Findings,
    pub(crate) inodes: PerGroup<InodeNote>,
    /// What names lead to directories; from pass 2.
    pub(crate) tree: crate::pass2::Tree,
    /// Directory entries that lead to each inode, "." and ".." included as ext4 counts links.
    pub(crate) refs: PerGroup<AtomicU32>,
    /// All directories that can be walked, sorted by inode number once pass 1 is done.
    pub(crate) dirs: Mutex<Vec<DirNote>>,
    /// Inodes on the orphan list or in the orphan file: set between pass 1 and pass 2. No field of [`InodeNote`], since
    /// notes are set once.
    pub(crate) orphans: OnceLock<HashSet<u32>>,
    /// Which clusters are in use, and which are claimed twice.
    pub(crate) claims: Claims,
    /// What each user, group and project uses; only with the quota feature.
    pub(crate) usage: Usage,
    /// Attribute blocks and EA inodes, and who refers to them.
    pub(crate) attrs: Attrs,
    /// Inodes that only the orphan list can excuse: without links but marked in use, or with a deletion time that
    /// looks like a link of that list.
    pub(crate) suspects: Mutex<Vec<Suspect>>,
    /// Numbers for the report.
    pub(crate) tally: Tally,
}

impl<'d> State<'d> {
    /// Nothing is known yet.
    pub(crate) fn new(image: Image<'d>, findings: Findings) -> Self {
        let geometry = &image.geometry;
        Self {
            findings,
            inodes: PerGroup::new(geometry),
            refs: PerGroup::new(geometry),
            tree: crate::pass2::Tree::new(geometry),
            dirs: Mutex::default(),
            orphans: OnceLock::new(),
            claims: Claims::new(geometry),
            usage: Usage::default(),
            attrs: Attrs::default(),
            suspects: Mutex::default(),
            tally: Tally::default(),
            image,
        }
    }

    /// May a walk enter this block of a map? Blocks that several maps lead through are entered a bounded number of
    /// times in all, since a small image can hold a thousand maps that share all their blocks.
    pub(crate) fn may_enter_shared(&self, block: Pblk) -> bool {
        const SHARED_ENTRIES_MAX: u64 = 1 << 16;
        let cluster = self.claims.cluster_of(block);
        let mut shared = false;
        self.claims.twice_within(cluster, cluster, |_| shared = true);
        if !shared {
            return true;
        }
        let entries = self.tally.shared_nodes.fetch_add(1, Ordering::Relaxed);
        if entries == SHARED_ENTRIES_MAX {
            let says = format!("{entries} walks through blocks of other maps");
            self.findings.broken(&crate::rules::map::ABANDONED, crate::Place::default(), says);
        }
        entries < SHARED_ENTRIES_MAX
    }

    /// Notes what only an orphan may be like: who is one is known later.
    pub(crate) fn suspect(&self, ino: Ino, why: Why) {
        self.suspects.lock().unwrap_or_else(PoisonError::into_inner).push(Suspect { ino, why });
    }

    /// Is this inode on the orphan list or in the orphan file? Known from pass 2 on.
    pub(crate) fn is_orphan(&self, ino: Ino) -> bool {
        self.orphans.get().is_some_and(|orphans| orphans.contains(&ino.0))
    }
}

/// An inode that is sound only as an orphan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Suspect {
    pub(crate) ino: Ino,
    pub(crate) why: Why,
}

/// What an orphan may be like, and nobody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// Its links, its deletion time; is it marked as in use without links?
    Deleted { links: u16, dtime: u32, marked: bool },
    /// Bytes of the file, and up to where it has blocks.
    Cut { size: u64, mapped: u64 },
}

/// What pass 1 counts for the report.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) inodes: AtomicU64,
    pub(crate) dirs: AtomicU64,
    pub(crate) clusters_used: AtomicU64,
    /// Walks into blocks of maps that other maps use too.
    pub(crate) shared_nodes: AtomicU64,
}

/// Space and inodes that belong to one id.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
}

/// Usage by id: of users, groups, projects.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    pub(crate) user: Mutex<HashMap<u32, Used>>,
    pub(crate) group: Mutex<HashMap<u32, Used>>,
    pub(crate) project: Mutex<HashMap<u32, Used>>,
}

/// A value for each inode, in memory only for groups that were touched.
#[derive(Debug)]
pub(crate) struct PerGroup<T> {
    inodes_per_group: u32,
    groups: Vec<OnceLock<Box<[T]>>>,
}

impl<T: Default> PerGroup<T> {
    pub(crate) fn new(geometry: &Geometry) -> Self {
        let groups = (0..geometry.groups).map(|_| OnceLock::new()).collect();
        Self { inodes_per_group: geometry.inodes_per_group, groups }
    }

    /// Sets the values of a whole group; the first call wins.
    pub(crate) fn set_group(&self, group: Group, values: Box<[T]>) {
        if let Some(slot) = self.groups.get(group.0 as usize) {
            let _ = slot.set(values);
        }
    }

    /// The values of a group that was touched.
    pub(crate) fn group(&self, group: Group) -> Option<&[T]> {
        self.groups.get(group.0 as usize)?.get().map(AsRef::as_ref)
    }

    /// The value of an inode, `None` if its group was never touched or it does not exist.
    pub(crate) fn get(&self, ino: Ino) -> Option<&T> {
        let index = ino.0.checked_sub(1)?;
        self.group(Group(index / self.inodes_per_group))?.get((index % self.inodes_per_group) as usize)
    }

    /// The value of an inode; touches its group.
    pub(crate) fn touch(&self, ino: Ino) -> Option<&T> {
        let index = ino.0.checked_sub(1)?;
        let slot = self.groups.get((index / self.inodes_per_group) as usize)?;
        let values = slot.get_or_init(|| (0..self.inodes_per_group).map(|_| T::default()).collect());
        values.get((index % self.inodes_per_group) as usize)
    }
}

impl PerGroup<AtomicU32> {
    /// Counts one more.
    pub(crate) fn add(&self, ino: Ino) {
        if let Some(count) = self.touch(ino) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}
