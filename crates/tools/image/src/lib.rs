//! Plans and writes ext4 images: an empty file system like that of mke2fs, or one filled from directories,
//! archives and OCI images.
//!
//! The whole image is planned before the first byte is written. The tree is read completely: names and
//! metadata, but no contents. Every inode gets its number, and every file its blocks. Then threads copy the
//! contents; each thread writes its own part of the device.
//! ```text
//! source::{dir, tar, oci} --> tree --> solve (sizing, layout, plan) --> write --> device
//! ```
//!
//! Does **not** own: on-disk layouts (see `ondisk` and `jbd2-format`), files and block devices (see
//! `device`), the command line. It shares with the engine (the crates that open and change a file system)
//! only `base`, `ondisk`, `jbd2-format` and `device`. So when the engine reads an image of this crate,
//! mistakes in the engine's own code or in this crate show, but not mistakes in these four crates.
//!
//! Invariants
//! 1. A plan depends only on its input: tree, options, device size, UUID, hash seed and time of creation. It
//!    does not depend on the clock, on threads, or on the order of reading.
//! 2. No file appears under the target's name before it is complete.
//! 3. Nothing is dropped silently: if a property of a source cannot be stored exactly, there is an error or a
//!    warning that names the path.
//! 4. Memory use grows with the number of names, block groups, and data ranges of sparse files, not with the
//!    bytes of files.
//!
//! Example: an empty file system in memory.
//!
//! ```
//! use extant_device::{Device, MemDevice};
//! use extant_image::mkfs::{self, EmptyTree, Identity};
//! use extant_image::options::FormatOptions;
//!
//! let device = MemDevice::new(64 << 20);
//! let options = FormatOptions { label: b"scratch".to_vec(), ..FormatOptions::default() };
//! let identity = Identity { uuid: [1; 16], hash_seed: [2; 16], time: 1_700_000_000 };
//! let tree = EmptyTree::new(identity.time, (0, 0));
//! let plan = mkfs::plan(&tree.input(&options, identity, true), device.size_bytes()).unwrap();
//! mkfs::write_plan(&plan, &device, false).unwrap();
//!
//! let mut bytes = [0; 1024];
//! device.read_at(extant_ondisk::superblock::OFFSET, &mut bytes).unwrap();
//! let sb = extant_ondisk::Superblock::decode(&bytes).unwrap();
//! assert!(sb.verify() && sb.label() == b"scratch");
//! ```

#![forbid(unsafe_code)]

pub mod build;
pub mod content;
pub mod dirpack;
pub mod exclude;
pub mod idmap;
pub mod labels;
pub mod layout;
pub mod mapping;
pub mod mkfs;
pub mod options;
pub mod plan;
pub mod profile;
pub mod rules;
pub mod sizing;
pub mod solve;
pub mod source;
pub mod space;
pub mod tree;
pub mod write;
pub mod xattrs;
