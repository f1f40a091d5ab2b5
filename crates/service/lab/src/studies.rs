//! The studies of the postings: each runs its loads and returns a [`StudyReport`].
//!
//! Owns: the sizes of a study, and its estimate of time and memory. Does **not** own: the loads (the other
//! modules of this crate), or how a report is shown (the command).
//!
//! Each module has three functions:
//!
//! ```text
//! estimate(size, kernel)              seconds and bytes that the study needs
//! study_report(size, kernel, watch)   runs it; `kernel`: a directory of a mounted ext4 to measure, too
//! judge(report)                       writes claims and notes from the tables; study_report ends with it
//! ```

pub mod buffered;
pub mod fsync;
pub mod large_dir;
pub mod orphans;
mod rules;
pub mod shrinker;

use std::path::Path;

pub use self::rules::Rules;
use crate::report::StudyReport;
use crate::{LabFault, Watch};

/// The size of a study.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// About two minutes on two CPUs, and at most 4 GiB of memory.
    Quick,
    /// The sizes of the posting as far as a machine of 16 GiB allows: up to eight minutes, and 12 GiB.
    Full,
}

impl Size {
    /// The name on command lines and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Full => "full",
        }
    }
}

/// What a study needs, estimated before it runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// Wall-clock time in seconds, on two CPUs.
    pub seconds: f64,
    /// Memory in bytes at the peak.
    pub memory_bytes: u64,
    /// Bytes of a file system of the kernel for the study. If it is in memory, blocks of removed files keep
    /// their memory, so this is also a bound.
    pub kernel_image_bytes: u64,
}

/// The option of a command that also measured the kernel.
pub(crate) fn kernel_option(kernel: Option<&Path>) -> &'static str {
    if kernel.is_some() { " --kernel" } else { "" }
}

/// Bytes of the kernel's file system for a study that needs many inodes.
pub(crate) fn large_image(size: Size) -> u64 {
    match size {
        Size::Quick => 16 << 30,
        Size::Full => 64 << 30,
    }
}

/// A study of a posting.
#[derive(Clone, Copy)]
pub struct Study {
    /// The name on command lines and in reports.
    pub name: &'static str,
    /// What it needs; the second parameter: with the kernel's file system.
    pub estimate: fn(Size, bool) -> Estimate,
    /// What the names of its rows mean: name and meaning, in their order.
    pub names: &'static [(&'static str, &'static str)],
    /// What its verdicts mean.
    pub rules: Rules,
    /// Writes the claims and the notes of a report from its tables and parameters.
    pub judge: fn(&mut StudyReport),
    /// Runs it.
    pub run: fn(Size, Option<&Path>, &dyn Watch) -> Result<StudyReport, LabFault>,
}

/// All studies, in the order of the documents.
pub const ALL: &[Study] = &[
    Study {
        name: "shrinker",
        estimate: shrinker::estimate,
        names: shrinker::NAMES,
        rules: rules::SHRINKER,
        judge: shrinker::judge,
        run: shrinker::study_report,
    },
    Study {
        name: "buffered",
        estimate: buffered::estimate,
        names: buffered::NAMES,
        rules: rules::BUFFERED,
        judge: buffered::judge,
        run: buffered::study_report,
    },
    Study {
        name: "orphans",
        estimate: orphans::estimate,
        names: orphans::NAMES,
        rules: rules::ORPHANS,
        judge: orphans::judge,
        run: orphans::study_report,
    },
    Study {
        name: "large-dir",
        estimate: large_dir::estimate,
        names: large_dir::NAMES,
        rules: rules::LARGE_DIR,
        judge: large_dir::judge,
        run: large_dir::study_report,
    },
    Study {
        name: "fsync",
        estimate: fsync::estimate,
        names: fsync::NAMES,
        rules: rules::FSYNC,
        judge: fsync::judge,
        run: fsync::study_report,
    },
];

/// Calls `measure` with a new directory `name` in the kernel's directory, if there is one, and removes it
/// with all its contents.
pub(crate) fn in_scratch<T>(
    kernel: Option<&Path>,
    name: &str,
    measure: impl FnOnce(Option<&Path>) -> Result<T, LabFault>,
) -> Result<T, LabFault> {
    let Some(dir) = kernel else { return measure(None) };
    let scratch = dir.join(name);
    let failed = |why: std::io::Error| match why.kind() {
        std::io::ErrorKind::AlreadyExists => {
            LabFault::Exists(format!("{} exists already; remove it", scratch.display()))
        }
        _ => LabFault::Device(format!("{}: {why}", scratch.display())),
    };
    std::fs::create_dir(&scratch).map_err(failed)?;
    let measured = measure(Some(&scratch));
    std::fs::remove_dir_all(&scratch).map_err(failed)?;
    measured
}
