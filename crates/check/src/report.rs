//! What a check found, and what it cost.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::state::State;
use crate::{Finding, Findings, Severity};

/// How long a pass took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassTime {
    /// Its name.
    pub pass: &'static str,
    /// Wall time.
    pub elapsed: Duration,
}

/// Numbers of the file system and of the check.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    /// Inodes in use.
    pub inodes: u64,
    /// Directories among them.
    pub dirs: u64,
    /// Inodes that there could be.
    pub inodes_total: u64,
    /// Blocks of the file system.
    pub blocks: u64,
    /// Clusters claimed by files and metadata, in blocks.
    pub blocks_used: u64,
    /// Bytes in a block.
    pub block_size: u64,
    /// Was a journal's replay laid over the device?
    pub replayed: bool,
    /// Bytes read from the device, all passes together.
    pub read_bytes: u64,
    /// Wall time of each pass.
    pub passes: Vec<PassTime>,
    /// Wall time of all.
    pub elapsed: Duration,
}

impl Stats {
    pub(crate) fn of(&mut self, state: &State<'_>) {
        let geometry = &state.image.geometry;
        self.inodes = state.tally.inodes.load(Ordering::Relaxed);
        self.dirs = state.tally.dirs.load(Ordering::Relaxed);
        self.inodes_total = geometry.inodes().into();
        self.blocks = geometry.blocks;
        self.blocks_used = state.tally.clusters_used.load(Ordering::Relaxed) << geometry.cluster_log;
        self.block_size = geometry.block_size.bytes();
        self.replayed = state.image.replay.is_some();
        self.read_bytes = state.image.bytes_read.load(Ordering::Relaxed);
    }
}

/// What a check found.
#[derive(Debug, Clone)]
pub struct Report {
    /// By code and place; at most 1000 of each code.
    pub findings: Vec<Finding>,
    /// How many there were of each code.
    pub counts: BTreeMap<&'static str, u64>,
    /// Numbers of the file system and of the check.
    pub stats: Stats,
    /// Could the superblock be used? Else nothing behind it was looked at.
    pub opened: bool,
}

impl Report {
    pub(crate) fn new(findings: Findings, stats: Stats, opened: bool) -> Self {
        let (findings, counts) = findings.into_sorted();
        Self { findings, counts, stats, opened }
    }

    /// Nothing worse than a [`Severity::Note`]?
    #[must_use]
    pub fn clean(&self) -> bool {
        self.findings.iter().all(|finding| finding.rule.severity == Severity::Note)
    }

    /// The exit code that e2fsck would give to a check that repairs nothing: 0 clean, 4 errors left, 8 when the
    /// superblock could not be used.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match (self.opened, self.clean()) {
            (false, _) => 8,
            (true, true) => 0,
            (true, false) => 4,
        }
    }
}
