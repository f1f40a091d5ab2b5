//! State shared by the passes: a few bytes per inode, one bit per cluster, the list of directories.
//!
//! Invariants
//! 1. Memory is allocated per group, at the first access: a large empty file system needs almost none.
//! 2. Pass 1 writes notes; later passes only read them. Counters are atomic, so that threads need no lock.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use extant_base::{Ino, Pblk};

use crate::Findings;
use crate::attr_table::Attrs;
use crate::claims::Claims;
use crate::image::Image;
use crate::map::MapRoot;
use crate::per_group::PerGroup;

/// Pass 1's note on an inode.
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
    /// Too damaged for its content to be checked.
    pub(crate) bad: bool,
    /// links_count as stored.
    pub(crate) links: u16,
}

/// A directory, as pass 2 needs it.
#[derive(Debug, Clone)]
pub(crate) struct DirNote {
    pub(crate) ino: Ino,
    pub(crate) size: u64,
    pub(crate) flags: u32,
    /// Seed of its blocks' checksums.
    pub(crate) seed: u32,
    /// Its block map; with inline data, i_block holds the beginning of the directory.
    pub(crate) root: MapRoot,
}

/// State shared by passes and threads.
pub(crate) struct State<'d> {
    pub(crate) image: Image<'d>,
    pub(crate) findings: Findings,
    pub(crate) inodes: PerGroup<InodeNote>,
    /// The parents of directories; filled by pass 2.
    pub(crate) tree: crate::tree::Tree,
    /// Directory entries that lead to each inode, "." and ".." included as ext4 counts links.
    pub(crate) refs: PerGroup<AtomicU32>,
    /// All directories that can be walked, sorted by inode number after pass 1.
    pub(crate) dirs: Mutex<Vec<DirNote>>,
    /// Inodes on the orphan list or in the orphan file: set between pass 1 and pass 2. Not a field of
    /// [`InodeNote`], since notes are written once.
    pub(crate) orphans: OnceLock<HashSet<u32>>,
    /// Which clusters are in use, and which are claimed twice.
    pub(crate) claims: Claims,
    /// Usage per user, group and project; counted only with the quota feature.
    pub(crate) usage: Usage,
    /// Attribute blocks and EA inodes, and the inodes that refer to them.
    pub(crate) attrs: Attrs,
    /// Inodes that are errors unless they are orphans: without links but marked in use, or with a deletion
    /// time that could be a link of the orphan list.
    pub(crate) suspects: Mutex<Vec<Suspect>>,
    /// Numbers for the report.
    pub(crate) tally: Tally,
    cancel: Option<&'d AtomicBool>,
}

impl<'d> State<'d> {
    /// The state before pass 1.
    pub(crate) fn new(image: Image<'d>, findings: Findings, cancel: Option<&'d AtomicBool>) -> Self {
        let geometry = &image.geometry;
        Self {
            findings,
            inodes: PerGroup::new(geometry),
            refs: PerGroup::new(geometry),
            tree: crate::tree::Tree::new(geometry),
            dirs: Mutex::default(),
            orphans: OnceLock::new(),
            claims: Claims::new(geometry),
            usage: Usage::default(),
            attrs: Attrs::default(),
            suspects: Mutex::default(),
            tally: Tally::default(),
            cancel,
            image,
        }
    }

    /// Whether the caller wants the check to end.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed))
    }

    /// May a walk enter this block of a map, which another map uses too? The number of such entries is
    /// bounded, since a small image can hold a thousand maps that share all their blocks.
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
            self.findings.broken(&crate::rules::map::ABANDONED, crate::FindingPlace::default(), says);
        }
        entries < SHARED_ENTRIES_MAX
    }

    /// Records an inode that is valid only as an orphan. Orphans are found later.
    pub(crate) fn suspect(&self, ino: Ino, why: Why) {
        self.suspects.lock().unwrap_or_else(PoisonError::into_inner).push(Suspect { ino, why });
    }

    /// Is this inode on the orphan list or in the orphan file? Valid from pass 2 on.
    pub(crate) fn is_orphan(&self, ino: Ino) -> bool {
        self.orphans.get().is_some_and(|orphans| orphans.contains(&ino.0))
    }
}

/// An inode that is valid only as an orphan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Suspect {
    pub(crate) ino: Ino,
    pub(crate) why: Why,
}

/// Why an inode is valid only as an orphan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// Its link count and deletion time; `marked` if the inode bitmap marks it although it has no links.
    Deleted { links: u16, dtime: u32, marked: bool },
    /// Its size in bytes, and the end of its last block in bytes.
    Cut { size: u64, mapped: u64 },
}

/// What pass 1 counts for the report.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) inodes: AtomicU64,
    pub(crate) dirs: AtomicU64,
    pub(crate) clusters_used: AtomicU64,
    /// Entries into map blocks that other maps use too.
    pub(crate) shared_nodes: AtomicU64,
}

/// Space and inodes charged to one id.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
}

/// Usage by id, for users, groups and projects.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    pub(crate) user: Mutex<HashMap<u32, Used>>,
    pub(crate) group: Mutex<HashMap<u32, Used>>,
    pub(crate) project: Mutex<HashMap<u32, Used>>,
}
