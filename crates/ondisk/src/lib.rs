//! ext4's on-disk structures as pure bytes <-> values.
//!
//! One structure, one file: a table of its fields, `decode`, `encode`, its checksum (`seal` / `verify`), its
//! limits, its tests. Walkers (extent trees, directories, block maps) do no I/O: they return the block they
//! want next.
//!
//! Does **not** own: reading or writing (see `device`), choosing places (see `image`, later `alloc`),
//! caching, or the journal's own structures (see `jbd2-format`).
//!
//! Invariants
//! 1. INV-O1: `decode` never panics, whatever the bytes, and never allocates more than the bytes given to it
//!    justify.
//! 2. `decode(encode(value)) == value`; and where a value keeps every field, `encode(decode(bytes)) ==
//!    bytes`.
//! 3. Disk fields keep their kernel spelling in the raw struct and get plain words in the value.
//! 4. Numbers read from disk meet checked arithmetic only.
//! 5. INV-O5: a checksum is computed in one place per structure, for sealing and for verifying alike.
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
