//! The report of a check: findings and statistics.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::state::State;
use crate::{Finding, Findings, Severity};

/// The duration of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassTime {
    /// Its name.
    pub pass: &'static str,
    /// Wall-clock time.
    pub elapsed: Duration,
}

/// Statistics of the file system and of the check.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    /// Inodes in use.
    pub inodes: u64,
    /// Directories among them.
    pub dirs: u64,
    /// The number of inodes the file system has room for.
    pub inodes_total: u64,
    /// Blocks of the file system.
    pub blocks: u64,
    /// Clusters claimed by files and metadata, in blocks.
    pub blocks_used: u64,
    /// Bytes in a block.
    pub block_size: u64,
    /// The journal's replay was overlaid on the device.
    pub replayed: bool,
    /// Bytes read from the device, all passes together.
    pub read_bytes: u64,
    /// Wall-clock time of each pass.
    pub passes: Vec<PassTime>,
    /// Wall-clock time of the whole check.
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

/// The report of a check.
#[derive(Debug, Clone)]
pub struct Report {
    /// Sorted by code and place; at most 1000 per code.
    pub findings: Vec<Finding>,
    /// The number of findings per code.
    pub counts: BTreeMap<&'static str, u64>,
    /// Statistics.
    pub stats: Stats,
    /// A usable superblock was found. If not, nothing else was checked.
    pub opened: bool,
}

impl Report {
    pub(crate) fn new(findings: Findings, stats: Stats, opened: bool) -> Self {
        let (findings, counts) = findings.into_sorted();
        Self { findings, counts, stats, opened }
    }

    /// Is there no finding above [`Severity::Note`]?
    #[must_use]
    pub fn clean(&self) -> bool {
        self.findings.iter().all(|finding| finding.rule.severity == Severity::Note)
    }

    /// The exit code of an e2fsck that repairs nothing: 0 clean, 4 errors left uncorrected, 8 no usable
    /// superblock.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match (self.opened, self.clean()) {
            (false, _) => 8,
            (true, true) => 0,
            (true, false) => 4,
        }
    }
}
