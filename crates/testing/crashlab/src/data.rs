//! File data through power cuts.
//!
//! ```text
//!   image whose free blocks hold old bytes --> Memory: what each file holds after each step
//!                    |                              |
//!   steps --> volume on a disk that records         |  replayed for the commit that survived: what each unit may hold
//!                    | cut                          v
//!                 recover --> the clock, names, sizes, bytes --> an allowed state?  zeros after growth?  check, e2fsck
//! ```
//!
//! Owns: the steps, the planted defects, what a cut may leave of a file, concurrent fsyncs. Does **not** own:
//! what a device may lose (see `simdisk`), trees and attributes (see [`CrashRun`](crate::CrashRun)).
//!
//! What a cut must show
//! 1. Every unit of 8 bytes contains its file, step and offset. A unit found in a file was written to this
//!    file at this offset, and no later acknowledged or committed step overwrote, truncated or punched it. A
//!    unit is zero only where no acknowledged data was, or where a step zeroed it. The content of free blocks
//!    never shows.
//! 2. The *clock* is an inode that each step changes first. It shows which steps the surviving commits
//!    contain: names, sizes and truncations are those of that step. The clock is not older than the last
//!    acknowledged step.
//! 3. The size is one that the file had, or one that write-back may have reached; then the bytes before it
//!    are on the device.
//! 4. A file that grows after recovery shows zeros after its old end.
//! 5. The checker finds nothing in the image as the cut left it, with its own replay of the log. It runs
//!    before the engine's recovery, which could repair damage, and before files grow, which could hide damage
//!    after their ends.
//!
//! Where space is [short](Space::Short), steps are refused or done in part. The expected content is then what
//! the file held after the step, and each unit must be old, zero, or what the step writes. Bytes that a write
//! accepted are never lost for lack of space.
//!
//! Source: the linux-ext4 series "ext4: use iomap for regular file's buffered I/O", 2024; the linux-ext4
//! series "ext4: Coordinate data-only flush requests sent by fsync" v6, 2010.

mod choose;
mod image;
mod judge;
mod model;
mod plants;
mod records;
mod replay;
mod run;
mod step;

pub use image::{DataKind, Space, data_image};
pub use plants::{DataPlant, data_plants};
pub use records::RecordsRun;
pub use run::{DataRun, DataSchedule};
pub use step::Step;
