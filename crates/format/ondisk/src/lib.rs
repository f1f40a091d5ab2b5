//! ext4's on-disk structures: conversion between bytes and values, without I/O.
//!
//! Each structure has one file: a table of its fields, `decode`, `encode`, its checksum (`seal` computes it,
//! `verify` checks it), its limits, its tests. Walkers (of extent trees, directories and block maps) do no
//! I/O: they return the block that they need next, and the caller reads it.
//!
//! Does **not** own: reading or writing (see `device`), the choice of blocks (see `image` and `alloc`),
//! caching, or the journal's structures (see `jbd2-format`).
//!
//! Invariants
//! 1. INV-O1: `decode` never panics, for any bytes, and never allocates more than the length of its input
//!    justifies.
//! 2. `decode(encode(value)) == value`. If the value keeps all bytes of the structure, as a superblock's
//!    does, also `encode(decode(bytes)) == bytes`.
//! 3. Disk fields have their kernel spelling in the private struct of the layout (`s_blocks_count_lo`), and
//!    plain names in the value (`blocks_count`).
//! 4. All arithmetic on numbers from the disk is checked.
//! 5. INV-O5: each structure's checksum is computed in one place, for both sealing and verifying.
//!
//! ```
//! use extant_ondisk::{Superblock, Features};
//! let mut sb = Superblock { blocks_count: 4096, ..Superblock::default() };
//! sb.features = Features { incompat: Features::EXTENTS, ..Features::default() };
//! let bytes = sb.encode();
//! assert_eq!(Superblock::decode(&bytes).unwrap().blocks_count, 4096);
//! ```

#![forbid(unsafe_code)]

pub mod acl;
pub mod backup;
pub mod bitmap;
pub mod casefold;
pub mod dirent;
pub mod errors;
pub mod extent;
pub mod features;
pub mod filetype;
pub mod geometry;
pub mod group_desc;
pub mod hash;
pub mod htree;
pub mod indirect;
pub mod inline_data;
pub mod inode;
pub mod mmp;
pub mod orphan_file;
pub mod quota;
pub mod superblock;
pub mod time;
pub mod verity;
pub mod xattr;

pub use features::Features;
pub use geometry::Geometry;
pub use superblock::Superblock;
