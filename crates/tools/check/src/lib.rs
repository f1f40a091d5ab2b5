//! Checks ext4 file systems on all cores, with its own readers of inodes, block maps, directories and the
//! journal.
//!
//! Owns: the passes, the rules, the findings. Does **not** own: byte layouts (`ondisk`, `jbd2-format`),
//! devices, the printing of reports, repair. It shares with the engine (the crates that open and change a
//! file system) only `base`, `ondisk`, `jbd2-format` and `device`. So it finds mistakes in the engine's own
//! code, but not mistakes in these four crates.
//!
//! ```text
//!  open      superblock -> geometry -> journal scan, replay overlaid on the device -> descriptors;
//!            backups of superblock and descriptors
//!  pass 1    inodes: fields, checksums, maps, attributes; claims of clusters          parallel over groups
//!            reference counts of attribute blocks and values
//!  pass 1b   owners of clusters claimed twice                                         only if there are any
//!  orphans   the orphan list and the orphan file
//!  pass 2    directories: blocks, names, types, indexes                               parallel over dirs
//!  pass 3    connectivity: every directory can be reached from the root
//!  pass 4    link counts                                                              parallel over groups
//!  pass 5    bitmaps, counts, descriptors                                             parallel over groups
//!  last      quota; the internal journal's place and superblock
//! ```
//!
//! The check sees the file system as it is after the journal's replay, which happens in memory. A *claim*
//! says that a file, an attribute block or fixed metadata uses a cluster.
//!
//! Invariants
//! 1. Nothing is written.
//! 2. No image makes a check panic or loop. Memory is bounded: a few bytes per inode, one bit per cluster of
//!    used groups, a note per directory, an entry per attribute block, and a limited number of findings of
//!    each rule (a survey keeps all: see 6).
//! 3. The report does not depend on the number of threads.
//! 4. Of the notes in the module `state`, a pass reads only those of earlier passes.
//! 5. Every finding has a [`Rule`] of [`rules`] with its permanent code, a place, and the values needed to
//!    repair it.
//! 6. A [`survey`] is a check for a repair: it keeps every finding, and the notes of the passes.
//!
//! ```
//! use extant_device::{Device, MemDevice};
//! let device = MemDevice::new(1 << 20);
//! let report = extant_check::check(&device, &extant_check::Options::default()).unwrap();
//! assert!(!report.clean()); // zeros are no file system
//! assert_eq!(report.exit_code(), 8);
//! ```

#![forbid(unsafe_code)]

mod attr_table;
mod claims;
mod finding;
mod image;
mod journal;
mod map;
mod orphans;
mod pass1;
mod pass2;
mod pass3;
mod pass4;
mod pass5;
mod per_group;
mod progress;
mod quota;
mod replay;
mod report;
mod rule;
pub mod rules;
mod state;
mod supers;
pub mod survey;
mod tree;
mod xattrs;

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use extant_device::Device;

pub use finding::{Finding, FindingPlace, Findings};
pub use progress::Progress;
pub use report::{PassTime, Report, Stats};
pub use rule::{Area, Rule, Severity};

use progress::Meter;
use state::State;

/// Options of a check.
#[derive(Clone, Copy, Default)]
pub struct Options<'o> {
    /// Number of threads; `None` is one per core.
    pub threads: Option<NonZero<usize>>,
    /// Receives progress reports.
    pub progress: Option<&'o dyn Progress>,
    /// If another thread sets it, the check ends with [`CheckFault::Cancelled`] after the groups and
    /// directories that it is looking at.
    pub cancel: Option<&'o AtomicBool>,
    /// The device of the external journal, if the file system has one: its log is replayed as an internal one
    /// would be. Without it, the check only notes that the journal is external.
    pub journal: Option<&'o dyn Device>,
}

/// Why a check gives no report.
#[derive(Debug, thiserror::Error)]
pub enum CheckFault {
    /// The first 2 KiB of the device cannot be read.
    #[error("the superblock cannot be read: {0}; check that the device is there and large enough")]
    Device(#[from] extant_device::DeviceFault),
    /// [`Options::cancel`] was set.
    #[error("the check was cancelled")]
    Cancelled,
}

impl CheckFault {
    /// Whether the caller ended the work: [`Options::cancel`] was set.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        matches!(self, Self::Cancelled)
    }
}

/// Checks the file system on `device` in its state after the journal's replay. Writes nothing.
///
/// # Errors
/// Fails if the first 2 KiB of the device cannot be read, or if it was cancelled. Other unreadable blocks are
/// findings.
pub fn check(device: &dyn Device, options: &Options<'_>) -> Result<Report, CheckFault> {
    let mut stats = Stats::default();
    match examine(device, options, Findings::default(), &mut stats)? {
        Ok(state) => Ok(Report::new(state.findings, stats, true)),
        Err(findings) => Ok(Report::new(findings, stats, false)),
    }
}

/// Runs all passes. Returns the findings alone if there is no usable superblock.
fn examine<'d>(
    device: &'d dyn Device,
    options: &Options<'d>,
    findings: Findings,
    stats: &mut Stats,
) -> Result<Result<State<'d>, Findings>, CheckFault> {
    let begun = Instant::now();
    let threads = options
        .threads
        .map_or_else(|| std::thread::available_parallelism().map_or(1, NonZero::get), NonZero::get);
    let Some(image) = supers::open(device, options.journal, &findings)? else {
        stats.elapsed = begun.elapsed();
        return Ok(Err(findings));
    };
    let mut state = State::new(image, findings, options.cancel);
    supers::check(&state);
    stats.passes.push(PassTime { pass: "open", elapsed: begun.elapsed() });

    let is_cancelled = || options.cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed));
    let mut timed = |pass: &'static str, work: &mut dyn FnMut()| {
        // A pass relies on complete notes of earlier passes.
        if is_cancelled() {
            return;
        }
        let begun = Instant::now();
        work();
        stats.passes.push(PassTime { pass, elapsed: begun.elapsed() });
    };
    let groups = u64::from(state.image.geometry.groups);
    let meter = |pass, total| Meter::new(options.progress, pass, total);

    timed("pass 1: inodes", &mut || {
        let meter = meter("pass 1: inodes", groups);
        pass1::run(&state, threads, &meter);
        meter.finish();
    });
    // With shared_blocks, files may share blocks; the kernel mounts such an image read-only.
    let may_share = state.image.sb.features.has_ro_compat(extant_ondisk::Features::SHARED_BLOCKS);
    if state.claims.any_twice() && !may_share {
        timed("pass 1b: clusters claimed twice", &mut || pass1::shared::run(&state, threads));
    }
    timed("orphans", &mut || {
        orphans::run(&state);
        pass1::judge_suspects(&state);
    });
    let dirs = state.dirs.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
    dirs.sort_unstable_by_key(|dir| dir.ino);
    let dirs = dirs.len() as u64;
    timed("pass 2: directories", &mut || {
        let meter = meter("pass 2: directories", dirs);
        pass2::run(&state, threads, &meter);
        meter.finish();
    });
    timed("pass 3: connectivity", &mut || {
        let meter = meter("pass 3: connectivity", dirs);
        pass3::run(&state, threads, &meter);
        meter.finish();
    });
    timed("pass 4: link counts", &mut || {
        let meter = meter("pass 4: link counts", groups);
        pass4::run(&state, threads, &meter);
        meter.finish();
    });
    timed("pass 5: bitmaps", &mut || {
        let meter = meter("pass 5: bitmaps", groups);
        pass5::run(&state, threads, &meter);
        meter.finish();
    });
    timed("quota", &mut || quota::run(&state));
    timed("journal", &mut || journal::run(&state));
    if is_cancelled() {
        return Err(CheckFault::Cancelled);
    }
    stats.of(&state);
    stats.elapsed = begun.elapsed();
    Ok(Ok(state))
}

/// Runs `work(i)` for every `i` below `count` on several threads, until the check is cancelled. `start`
/// makes a value per thread, which `end` consumes.
fn parallel<W>(
    state: &State<'_>,
    threads: usize,
    count: u32,
    start: impl Fn() -> W + Sync,
    work: impl Fn(&mut W, u32) + Sync,
    end: impl Fn(W) + Sync,
) {
    let next = AtomicU32::new(0);
    let run = || {
        let mut own = start();
        while !state.is_cancelled() {
            let i = next.fetch_add(1, Ordering::Relaxed);
            // The counter cannot wrap: there are fewer threads than numbers between the group limit and 2^32.
            if i >= count {
                break;
            }
            work(&mut own, i);
        }
        end(own);
    };
    let threads = threads.clamp(1, 256).min(count.max(1) as usize);
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(run);
        }
        run();
    });
}
