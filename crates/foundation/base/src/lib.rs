//! The types and functions that all other crates of extant share; none of them describes an ext4 structure.
//!
//! Owns: distinct types for block, inode and group numbers ([`units`]); the two checksums of the format
//! ([`checksum`]); the error "these bytes break this rule" ([`Malformed`]), and the same with its place
//! ([`Corrupt`]); locks that are taken in the order of their ranks ([`rank`]), and the locks of code that is
//! tested under many schedules ([`sync`]).
//!
//! Does **not** own: any on-disk layout (see `ondisk`), any I/O (see `device`), any error of a higher layer.
//! Each layer has its own error type, which may contain a [`Malformed`].
//!
//! Invariants
//! 1. Nothing here allocates without bound, blocks, or panics on a value that came from a disk.
//! 2. Block, inode and group numbers never mix: each has its own type.

#![forbid(unsafe_code)]

pub mod checksum;
mod corrupt;
pub mod le;
mod malformed;
pub mod rank;
pub mod salted;
pub mod sync;
pub mod units;

pub use corrupt::{Corrupt, CorruptAt};
pub use malformed::Malformed;
pub use units::{BlockSize, Group, Ino, Lblk, Pblk, Tid};
