//! The crash lab: cuts the power at every moment of a series of operations, and judges what each cut leaves.
//!
//! ```text
//! operations ──> Engine on a SimDisk that records ──> Recording: every write and flush
//!      |                                                 | cut at event e: each sector has its flushed
//!      |                                                 | version or a newer one
//!      '── trees after each operation                    v
//!                 |                                   recover (the engine, or the kernel) ──> check, e2fsck
//!                 '──────── is it one of those? <────────┘
//! ```
//!
//! A *run* ([`CrashRun`]) is a series of operations on names and attributes, the recording of the disk, and
//! the tree after each operation. One thread makes all operations of a run, so that a seed repeats the run.
//! At chosen moments this thread also does what other threads might do at the same time: it makes operations
//! in the middle of commits and checkpoints, and lets memory run short ([`Schedule`]).
//!
//! There are special runs:
//! - for file data ([`DataRun`]), which know what each cut may leave of every byte;
//! - for threads that share flushes ([`RecordsRun`]);
//! - from states in which the index of a directory is about to change its shape ([`index_run`]);
//! - with a directory that is larger than the caches ([`CrowdedRun`]).
//!
//! Owns: the engine behind the interface of the models ([`Engine`]), recorded runs, the verdict on a cut
//! ([`CrashRun::judge`]), deliberate bugs that it must find ([`plants`], [`data_plants`]). Does **not** own:
//! what operations mean (see `fsmodel`), what a device may lose (see `simdisk`).
//!
//! What must hold after a cut (INV-EN1, and INV-EN22 for the bytes of files):
//! 1. The volume opens, and recovery reports no problem, except a commit block of which only the first sector
//!    was written.
//! 2. Its tree, to the last byte of an attribute and nanosecond of a time, is the tree after one of the
//!    operations. This is the last operation that was synced before the power failed, or a later operation
//!    that had begun. An operation that is made in the middle of a commit belongs to the next commit. So it
//!    counts as begun only when the current commit has ended. A cut before this end must not show the
//!    operation. (On images with fast commits, the modification times of directories are not compared,
//!    because fast commits do not contain them.)
//! 3. After a clean close, `check` finds no error. For a sample, `e2fsck -fn` finds nothing either, and the
//!    kernel's own recovery also shows one of the trees of rule 2.
//! 4. Recovery itself can be cut and repeated.

#![forbid(unsafe_code)]

mod base_image;
mod crowded;
mod cut;
mod data;
mod engine;
mod index_work;
mod indexes;
mod interrupted;
mod judges;
mod mix;
mod plants;
mod run;
mod schedule;
mod stepper;
pub mod sweep;

pub use base_image::{Kind, base_image};
pub use crowded::CrowdedRun;
pub use cut::{Outcome, Verdict, to_file};
pub use data::{
    DataKind, DataPlant, DataRun, DataSchedule, RecordsRun, Space, Step, data_image, data_plants,
};
pub use engine::{Engine, TOP, tree};
pub use index_work::IndexWork;
pub use indexes::{IndexMoment, index_run};
pub use judges::{e2fsck_says, kernel_mounts, superblock_is_torn};
pub use mix::{random_run, random_run_under};
pub use plants::{Plant, plants};
pub use run::CrashRun;
pub use schedule::{Pressure, Schedule};
