//! The bytes of files through power cuts.
//!
//! ```text
//!   image whose free blocks hold old bytes --> Memory: what each file holds after each step
//!                    |                              |
//!   steps --> volume on a disk that records         |  replayed for the commit that survived: what each unit may hold
//!                    | cut                          v
//!                 recover --> the clock, names, sizes, bytes --> one of the allowed?  grown: zeros?  check, e2fsck
//! ```
//!
//! Owns: steps and the mistakes to find with them, what a cut may leave of a file, fsyncs of threads. Does
//! **not** own: what a device may forget (see `simdisk`), trees and attributes (see
//! [`CrashRun`](crate::CrashRun)).
//!
//! What a cut must show
//! 1. Every unit of 8 bytes contains its writer: file, step, offset. What is in a file was written by it,
//!    there, and was not overwritten, cut off or punched by anything acknowledged or committed since. A unit
//!    is zero only where nothing acknowledged was, or where it was zeroed. The content of free blocks never
//!    shows.
//! 2. A *clock*, an inode that each step changes first, shows which steps the surviving commits have: names
//!    are those of that step, sizes and truncations too. It is not before what was acknowledged.
//! 3. The size is one that the file had, or lies where writing back may have come to; what is in front of it
//!    then is there.
//! 4. A file that grows after recovery shows zeros behind its old end.
//! 5. Nothing is wrong with the image as the cut left it, its log replayed by the checker's own code: before
//!    our recovery, which might mend it, and before files grow, which might hide what is behind their ends.
//!
//! Where space is [short](Space::Short), steps are refused or done in part: what was done is what the file
//! held after the step, and it must be no other than the step would have done. Bytes that a write took are
//! never lost for want of space.
//!
//! Source: the linux-ext4 series "ext4: use iomap for regular file's buffered I/O", 2024; the linux-ext4
//! series "ext4: Coordinate data-only flush requests sent by fsync" v6, 2010.

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
