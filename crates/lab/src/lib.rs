//! The studies' drivers: programs that load a file system in one way, and say what that took.
//!
//! ```text
//!                 createmany     orphans     large_dir        the loads
//!                       \           |           /
//!                        WorkDir: one directory that a worker has     mknod mkdir link unlink set_size ...
//!                       /                       \
//!            Engine: a Volume, in process     Kernel: system calls below a directory
//!
//!                 buffered: the bytes of one file, in process or through system calls
//!                 shrinker: on a cache of extents of its own, without a file system
//! ```
//!
//! Owns: the loads, the clocks, the reports (values that can be serialised, and tables for people). Does
//! **not** own: options of a command line, terminals, any rule of the format. Nothing here makes the engine
//! faster or slower: what is measured goes through the same calls as a mount's.
//!
//! Invariants
//! 1. One load is one code, whatever the place: two sides differ by what they do with a call, not by what is
//!    called.
//! 2. Names are written into a buffer that is used again: the driver allocates nothing per name.
//! 3. A clock runs only over what a report says that it measures; making images and checking them is outside.
//! 4. Each worker has a directory of its own, unless the load is one directory.
//!
//! ```
//! use extant_lab::createmany::{Job, Operation, run};
//! use extant_lab::ground::Ground;
//! use extant_lab::{Engine, Quiet};
//!
//! let ground = Ground::memory(64 << 20, &extant_image::options::FormatOptions::default()).unwrap();
//! let volume = ground.open(&extant_volume::OpenOptions::default()).unwrap();
//! let job = Job { count: Some(1000), ..Job::new(Operation::Mknod, "f") };
//! let report = run(&job, &mut Engine::root(&volume), &Quiet).unwrap();
//! assert_eq!(report.done, 1000);
//! volume.close().unwrap();
//! assert!(ground.check().unwrap().clean());
//! ```

#![forbid(unsafe_code)]

pub mod buffered;
pub mod createmany;
pub mod fsync;
pub mod ground;
pub mod large_dir;
pub mod names;
pub mod orphans;
pub mod place;
pub mod scaling;
pub mod shrinker;
pub mod summary;
pub mod usage;

pub use place::{Engine, Failed, Kernel, WorkDir};
pub use summary::Summary;

/// An observer of a load. Called by workers, some ten thousand times per second at most.
pub trait Watch: Sync {
    /// So many more objects are done, by any worker.
    fn advance(&self, objects: u64) {
        let _ = objects;
    }

    /// A line of the protocol that the load prints as it goes.
    fn line(&self, text: &str) {
        let _ = text;
    }

    /// The next part of a study begins; `total` objects to do, where that is known.
    fn part(&self, what: &str, total: Option<u64>) {
        let _ = (what, total);
    }
}

/// No observer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Quiet;

impl Watch for Quiet {}

/// Why a study could not be done.
#[derive(Debug, thiserror::Error)]
pub enum LabFault {
    /// An operation failed that the load needs.
    #[error(transparent)]
    Failed(#[from] Failed),
    /// The file system cannot be made.
    #[error("the file system cannot be made: {0}")]
    Make(String),
    /// The volume cannot be opened.
    #[error(transparent)]
    Open(#[from] extant_volume::OpenFault),
    /// The volume cannot be closed.
    #[error("the volume cannot be closed: {0}")]
    Close(extant_volume::Fault),
    /// The device refused, or the check could not be made.
    #[error("{0}")]
    Device(String),
    /// A study makes a new file, and that is there already.
    #[error("{0}")]
    Exists(String),
    /// A choice makes no sense.
    #[error("{0}")]
    Usage(String),
}
