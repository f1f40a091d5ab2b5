//! The crash lab: judges what is left after a power failure, at every moment of every operation.
//!
//! ```text
//! operations ──> Engine on a SimDisk that records ──> Recording: every write and flush
//!      |                                                 | cut at event e: a sector is as flushed, or later
//!      '── trees after each operation                    v
//!                 |                                   recover (the engine, or the kernel) ──> check, e2fsck
//!                 '──────── is it one of those? <────────┘
//! ```
//!
//! File data has its own runs ([`DataRun`]), which know what each cut may leave of every byte. Threads that
//! share flushes have their own runs, too ([`RecordsRun`]).
//!
//! One thread makes all operations of a run, so that a seed repeats the run. It also does what other threads
//! might do at the same time: it makes operations in the middle of commits and checkpoints, and lets memory
//! run short ([`Schedule`]). Some runs start where the index of a directory changes shape ([`index_run`]).
//! In others a directory is larger than the caches ([`CrowdedRun`]).
//!
//! Owns: the engine as a subject of comparison ([`Engine`]), recorded runs ([`CrashRun`]), the verdict on a
//! cut ([`CrashRun::judge`]), deliberate bugs that it must find ([`plants`], [`data_plants`]). Does **not**
//! own: what operations mean (see `fsmodel`), what a device may lose (see `simdisk`).
//!
//! What a cut must show (INV-EN1, and INV-EN22 for the bytes of files)
//! 1. The volume opens, and recovery reports no problem, except a commit block of which only the first sector
//!    was written.
//! 2. Its tree, to the last byte of an attribute and nanosecond of a time, is the tree after one of the
//!    operations. This is the last operation that was synced before the power failed, or a later one that had
//!    begun. An operation that is made in the middle of a commit belongs to the next one. So it counts as
//!    begun only when the current commit has ended: an earlier cut must not show it.
//! 3. `check` finds nothing after a clean close. For a sample, `e2fsck -fn` finds nothing either, and the
//!    kernel's own recovery shows one of those trees too.
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
