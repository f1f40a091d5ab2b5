//! A survey: a check that keeps every finding, and the notes of its passes, for a repair.
//!
//! Owns: the questions that a repair asks about a damaged file system. Does **not** own: any repair, any
//! rule.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use extant_base::{Group, Ino, Lblk, Pblk};
use extant_device::{Device, DeviceFault};
use extant_ondisk::group_desc::GroupDesc;
use extant_ondisk::quota::QuotaKind;
use extant_ondisk::{Geometry, Superblock};

use crate::map::{self, MapFault, MapRoot, MappedRun, Visit};
use crate::replay::locate;
use crate::state::State;
use crate::{CheckFault, Finding, Findings, Options, Stats, examine};

/// What the passes noted about an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Noted {
    /// The type code that directory entries use for it; 0 for an impossible mode.
    pub kind: u8,
    /// In use.
    pub used: bool,
    /// Its bit in the inode bitmap is set.
    pub marked: bool,
    /// It belongs to the file system itself: no directory entry may name it.
    pub hidden: bool,
    /// Its link count as stored.
    pub links: u16,
}

/// A run of blocks that is contiguous in the file and on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// First logical block.
    pub lblk: Lblk,
    /// First physical block.
    pub pblk: Pblk,
    /// Length in blocks.
    pub len: u32,
    /// Allocated, but reads as zeros.
    pub unwritten: bool,
}

/// The part of a map that can be walked.
#[derive(Debug, Clone, Default)]
pub struct Walked {
    /// Data, in order of logical blocks.
    pub runs: Vec<Run>,
    /// Blocks of the map itself.
    pub nodes: Vec<Pblk>,
}

/// Bytes and inodes that one owner uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Bytes.
    pub bytes: u64,
    /// Inodes.
    pub inodes: u64,
}

/// Home blocks and their bytes.
pub type Copies = Vec<(Pblk, Vec<u8>)>;

/// The result of a survey.
pub struct Survey<'d> {
    /// Every finding, sorted by code and place.
    pub findings: Vec<Finding>,
    /// Statistics of the check.
    pub stats: Stats,
    state: Option<State<'d>>,
}

/// Checks the file system on `device`, and keeps every finding and the notes of the passes.
///
/// # Errors
/// As [`check`](crate::check).
pub fn survey<'d>(device: &'d dyn Device, options: &Options<'d>) -> Result<Survey<'d>, CheckFault> {
    let mut stats = Stats::default();
    let found = examine(device, options, Findings::unlimited(), &mut stats)?;
    let (mut findings, state) = match found {
        Ok(mut state) => (std::mem::take(&mut state.findings), Some(state)),
        Err(findings) => (findings, None),
    };
    Ok(Survey { findings: findings.take_every(), stats, state })
}

impl<'d> Survey<'d> {
    /// The notes; `None` if there is no usable superblock.
    #[must_use]
    pub fn notes(&self) -> Option<Notes<'_, 'd>> {
        self.state.as_ref().map(|state| Notes { state })
    }
}

/// The notes of the passes.
#[derive(Clone, Copy)]
pub struct Notes<'s, 'd> {
    state: &'s State<'d>,
}

impl<'s> Notes<'s, '_> {
    /// The superblock that was used.
    #[must_use]
    pub fn superblock(&self) -> &'s Superblock {
        &self.state.image.sb
    }

    /// Its geometry.
    #[must_use]
    pub fn geometry(&self) -> &'s Geometry {
        &self.state.image.geometry
    }

    /// A group's descriptor as it was used; addresses out of range are replaced by those of a backup.
    #[must_use]
    pub fn desc(&self, group: Group) -> Option<&'s GroupDesc> {
        self.state.image.desc(group)
    }

    /// Whether a group's bitmaps and inode table have addresses that can be used.
    #[must_use]
    pub fn is_usable(&self, group: Group) -> bool {
        self.state.image.is_usable(group)
    }

    /// The replay of the journal's log, as home blocks and their bytes. `None` if nothing waits.
    ///
    /// # Errors
    /// A copy cannot be read.
    pub fn replayed(&self) -> Result<Option<Copies>, DeviceFault> {
        let Some(replay) = &self.state.image.replay else { return Ok(None) };
        let size = self.state.image.geometry.block_size;
        let copies = replay.homes().map(|home| {
            let mut bytes = vec![0; size.len()];
            replay.read(self.state.image.device, home << size.log2(), &mut bytes)?;
            Ok((Pblk(home), bytes))
        });
        copies.collect::<Result<_, _>>().map(Some)
    }

    /// The clusters of a group that are in use, 64 per word, lowest bit first.
    #[must_use]
    pub fn used_clusters(&self, group: Group) -> Vec<u64> {
        let words = (self.state.image.geometry.group_clusters(group) as usize).div_ceil(64);
        let mut used = vec![0; words];
        if let Some(claims) = self.state.claims.group(group) {
            for (word, claim) in used.iter_mut().zip(claims) {
                *word = claim.load(Ordering::Relaxed);
            }
        }
        used
    }

    /// Whether two owners claim one of these blocks.
    #[must_use]
    pub fn is_claimed_twice(&self, block: Pblk, len: u64) -> bool {
        let claims = &self.state.claims;
        let mut twice = false;
        let last = Pblk(block.0.saturating_add(len.max(1) - 1));
        claims.twice_within(claims.cluster_of(block), claims.cluster_of(last), |_| twice = true);
        twice
    }

    /// Whether any block has two owners.
    #[must_use]
    pub fn any_claimed_twice(&self) -> bool {
        self.state.claims.any_twice()
    }

    /// Whether these blocks are inside the file system.
    #[must_use]
    pub fn is_inside(&self, block: Pblk, len: u64) -> bool {
        self.state.image.is_inside(block, len)
    }

    /// Whether any of these blocks is a superblock, descriptor, bitmap or part of an inode table.
    #[must_use]
    pub fn is_metadata(&self, block: Pblk, len: u64) -> bool {
        self.state.image.zones.overlap(block, len)
    }

    /// The note about an inode; `None` if it does not exist or its group was not read.
    #[must_use]
    pub fn noted(&self, ino: Ino) -> Option<Noted> {
        let note = self.state.inodes.get(ino)?;
        let (kind, used, marked, hidden) = (note.kind, note.used, note.marked, note.hidden);
        Some(Noted { kind, used, marked, hidden, links: note.links })
    }

    /// The notes about a group's inodes, without those at the end that were not read.
    pub fn group(&self, group: Group) -> impl Iterator<Item = Noted> + 's {
        let notes = self.state.inodes.group(group).unwrap_or(&[]);
        notes.iter().map(|note| {
            let (kind, used, marked, hidden) = (note.kind, note.used, note.marked, note.hidden);
            Noted { kind, used, marked, hidden, links: note.links }
        })
    }

    /// The number of directory entries that lead to an inode.
    #[must_use]
    pub fn names(&self, ino: Ino) -> u32 {
        self.state.refs.get(ino).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// The directory that holds the name of a directory.
    #[must_use]
    pub fn parent(&self, dir: Ino) -> Option<Ino> {
        self.state.tree.parent(dir)
    }

    /// Whether the inode waits to be deleted or truncated.
    #[must_use]
    pub fn is_orphan(&self, ino: Ino) -> bool {
        self.state.is_orphan(ino)
    }

    /// The inodes that wait to be deleted or truncated.
    #[must_use]
    pub fn orphans(&self) -> Vec<Ino> {
        let orphans = self.state.orphans.get().into_iter().flatten();
        let mut orphans: Vec<Ino> = orphans.copied().map(Ino).collect();
        orphans.sort_unstable();
        orphans
    }

    /// What each owner uses, by id.
    #[must_use]
    pub fn usage(&self, kind: QuotaKind) -> HashMap<u32, Usage> {
        let usage = &self.state.usage;
        let counted = match kind {
            QuotaKind::User => &usage.user,
            QuotaKind::Group => &usage.group,
            QuotaKind::Project => &usage.project,
        };
        let counted = counted.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        counted.iter().map(|(id, used)| (*id, Usage { bytes: used.bytes, inodes: used.inodes })).collect()
    }

    /// Walks the map in `i_block` as far as it is valid.
    #[must_use]
    pub fn walk(&self, ino: Ino, i_block: [u8; 60], extents: bool, seed: u32) -> Walked {
        struct Keep<'s, 'd>(Walked, &'s State<'d>);
        impl Visit for Keep<'_, '_> {
            fn node(&mut self, block: Pblk) -> bool {
                let is_metadata = self.1.image.zones.overlap(block, 1);
                if !is_metadata {
                    self.0.nodes.push(block);
                }
                !is_metadata
            }
            fn run(&mut self, run: MappedRun) -> ControlFlow<()> {
                let MappedRun { lblk, pblk, unwritten, .. } = run;
                // No file has the last block that a number could name.
                let len = run.len.min(u32::MAX - lblk.0);
                if len == 0 {
                    return ControlFlow::Continue(());
                }
                self.0.runs.push(Run { lblk, pblk, len, unwritten });
                ControlFlow::Continue(())
            }
            fn broken(&mut self, _: MapFault) {}
        }
        let mut keep = Keep(Walked::default(), self.state);
        map::walk(&self.state.image, &MapRoot { ino, i_block, extents, seed }, &mut keep);
        keep.0
    }

    /// `i_block` and size of the journal as the superblock's backup has them, if they map a journal.
    #[must_use]
    pub fn journal_backup(&self) -> Option<([u8; 60], u64)> {
        let image = &self.state.image;
        let read = |offset: u64, buf: &mut [u8]| image.read_bytes(offset, buf);
        locate::from_backup(&read, &image.sb, &image.geometry).ok().map(|_| locate::backup(&image.sb))
    }

    /// The blocks of the internal journal, in order.
    #[must_use]
    pub fn journal_runs(&self) -> Option<Vec<(Pblk, u32)>> {
        let image = &self.state.image;
        let read = |offset: u64, buf: &mut [u8]| image.read_bytes(offset, buf);
        let journal = locate::from_inode(&read, &image.sb, &image.geometry).ok()?;
        Some(journal.runs().collect())
    }
}
