//! Drivers of the studies: programs that put one load on a file system and report its cost.
//!
//! ```text
//!                 createmany     orphans     large_dir        the loads
//!                       \           |           /
//!                        WorkDir: the directory of one worker       mknod mkdir link unlink set_size ...
//!                       /                       \
//!            Engine: a Volume, in process     Kernel: system calls below a directory
//!
//!                 buffered: the bytes of one file, in process or through system calls
//!                 io:       reads and writes of many files, in process or through system calls
//!                 fsync:    concurrent fsync calls, on a device with the timing of a disk
//!                 shrinker: on an extent cache of its own, without a file system
//! ```
//!
//! Owns: the loads, the clocks, the reports (serializable values, and tables as text). Does **not** own:
//! command-line options, terminals, any rule of the format.
//!
//! Studies of a volume call its public functions, as the server of a mount does. Two settings have no
//! counterpart in a mount. With [`createmany::Job::ahead`], the driver announces names before it creates or
//! removes them, so that the volume can prefetch. And the modes `list-v0`, `list-v3` and `file` of `orphans`
//! also record inodes whose deletion or truncation completes in one handle; by default the engine does not.
//!
//! Invariants
//! 1. A load that runs on the engine and on the kernel is one piece of code. So both get the same calls, and
//!    differ only in how they execute a call.
//! 2. The driver writes names into a reused buffer: it allocates nothing per name.
//! 3. A clock runs only over what a report claims to measure. Making and checking images is outside.
//! 4. Each worker has its own directory, unless the load is about a single directory.
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
pub mod drive;
pub mod fsync;
pub mod ground;
pub mod io;
pub mod large_dir;
pub mod names;
pub mod orphans;
pub mod place;
pub mod report;
pub mod scaling;
pub mod shrinker;
pub mod studies;
pub mod summary;
pub mod usage;

pub use place::{Engine, Failed, Kernel, WorkDir};
pub use summary::Summary;

/// An observer of a load. Called by workers, some ten thousand times per second at most.
pub trait Watch: Sync {
    /// Any worker finished this many more objects.
    fn advance(&self, objects: u64) {
        let _ = objects;
    }

    /// A line of the load's protocol, printed during the run.
    fn line(&self, text: &str) {
        let _ = text;
    }

    /// The next part of a study begins. `total`: objects to process, if known.
    fn part(&self, what: &str, total: Option<u64>) {
        let _ = (what, total);
    }
}

/// Ignores all events.
#[derive(Debug, Clone, Copy, Default)]
pub struct Quiet;

impl Watch for Quiet {}

/// Why a study failed.
#[derive(Debug, thiserror::Error)]
pub enum LabFault {
    /// An operation that the load needs failed.
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
    /// The device failed, or the check could not run.
    #[error("{0}")]
    Device(String),
    /// A study would create a file that already exists.
    #[error("{0}")]
    Exists(String),
    /// The parameters are invalid.
    #[error("{0}")]
    Usage(String),
}
