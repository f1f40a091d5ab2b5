//! Verifies ext4 file systems on every core: the second witness of the format.
//!
//! Owns: the passes, the rules, the findings. Does **not** own: layouts of bytes (`ondisk`, `jbd2-format`), devices, how a
//! report is printed, repair (which will act on findings). Shares no code with the engine, so that neither can hide the
//! other's mistakes.
//!
//! ```text
//!  open      superblock -> geometry -> journal scanned, its replay laid over the device -> descriptors; backups of both
//!  pass 1    every inode: fields, checksum, map, attributes; who claims which cluster        parallel over groups
//!            reference counts of attribute blocks and values
//!  pass 1b   clusters claimed twice: by whom                                                 only when there are any
//!  orphans   the list and the file: which inodes may be without a name
//!  pass 2    every directory: blocks, names, types, index                                    parallel over directories
//!  pass 3    every directory hangs from the root
//!  pass 4    link counts                                                                     parallel over groups
//!  pass 5    bitmaps, counts, descriptors                                                    parallel over groups
//!  then      quota, the journal at rest
//! ```
//!
//! Invariants
//! 1. Nothing is ever written.
//! 2. No bytes make a check panic, loop or take memory beyond a few bytes per inode, one bit per cluster of touched
//!    groups, and a bounded number of findings.
//! 3. The same image gives the same report, whatever the number of threads.
//! 4. A pass reads what earlier passes noted (`state`) and never the other way round.
//! 5. Every finding names a [`Rule`] of [`rules`] by its permanent code, a place, and the values needed to act on it.
//!
//! ```
//! use device::{Device, MemDevice};
//! let device = MemDevice::new(1 << 20);
//! let report = check::check(&device, &check::Options::default()).unwrap();
//! assert!(!report.clean()); // zeros are no file system
//! assert_eq!(report.exit_code(), 8);
//! ```

#![forbid(unsafe_code)]

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
mod progress;
mod quota;
mod replay;
mod report;
mod rule;
pub mod rules;
mod state;
mod supers;
mod xattrs;

use std::num::NonZero;
use std::time::Instant;

use device::Device;

pub use finding::{Finding, Findings, Place};
pub use progress::Progress;
pub use report::{PassTime, Report, Stats};
pub use rule::{Area, Rule, Severity};

use progress::Meter;
use state::State;

/// How to check.
#[derive(Clone, Copy, Default)]
pub struct Options<'o> {
    /// Threads; `None` is one per processor.
    pub threads: Option<NonZero<usize>>,
    /// Who wants to know how far the check is.
    pub progress: Option<&'o dyn Progress>,
    /// The device of the external journal, if the file system has one: its log is replayed as one inside would be.
    /// Without it, a journal elsewhere is only noted.
    pub journal: Option<&'o dyn Device>,
}

/// Why there is no report at all.
#[derive(Debug, thiserror::Error)]
pub enum CheckFault {
    /// The superblock's place cannot be read.
    #[error("the superblock cannot be read: {0}; check that the device is there and large enough")]
    Device(#[from] device::DeviceFault),
}

/// Checks the file system on `device`, as it is after its journal's replay. Writes nothing.
///
/// # Errors
/// When the device refuses to give its first 2 KiB. All else that cannot be read is a finding.
pub fn check(device: &dyn Device, options: &Options<'_>) -> Result<Report, CheckFault> {
    let begun = Instant::now();
    let threads = options
        .threads
        .map_or_else(|| std::thread::available_parallelism().map_or(1, NonZero::get), NonZero::get);
    let findings = Findings::default();
    let mut stats = Stats::default();
    let Some(image) = supers::open(device, options.journal, &findings)? else {
        stats.elapsed = begun.elapsed();
        return Ok(Report::new(findings, stats, false));
    };
    let mut state = State::new(image, findings);
    supers::check(&state);
    stats.passes.push(PassTime { pass: "open", elapsed: begun.elapsed() });

    let mut timed = |pass: &'static str, work: &mut dyn FnMut()| {
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
    // With shared_blocks, files may have blocks together; such an image is never written.
    let may_share = state.image.sb.features.has_ro_compat(ondisk::Features::SHARED_BLOCKS);
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
    stats.of(&state);
    stats.elapsed = begun.elapsed();
    Ok(Report::new(state.findings, stats, true))
}

/// Runs `work(i)` for every `i` below `count` on several threads; each has a value of its own, made by `start` and
/// given to `end`.
fn parallel<W>(
    threads: usize,
    count: u32,
    start: impl Fn() -> W + Sync,
    work: impl Fn(&mut W, u32) + Sync,
    end: impl Fn(W) + Sync,
) {
    let next = std::sync::atomic::AtomicU32::new(0);
    let run = || {
        let mut own = start();
        loop {
            let i = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            // The counter cannot wrap: there are fewer threads than numbers between the limit on groups and 2^32.
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
