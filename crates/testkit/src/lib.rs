//! What the integration tests of extant share: source trees, manifests, loop mounts, and e2fsprogs as a
//! judge.
//!
//! Owns: generators of source trees ([`trees`]); the description of a tree as a value and the comparison of
//! two ([`Manifest`]); mounting an image by the kernel ([`LoopMount`]); running e2fsprogs and parsing what it
//! prints ([`e2fsck_clean`], [`dumpe2fs()`], [`debugfs`]); the tree of an image as the kernel or debugfs see
//! it ([`walk`]); a table of images that real tools and the real kernel made ([`matrix`]); images cut off in
//! the middle of writing ([`capture`]); damage, one field at a time ([`corrupt`]).
//!
//! Does **not** own: any knowledge of ext4's layout. This crate depends on no other crate of the workspace,
//! so that a mistake in extant cannot hide in its own judge. No crate depends on it except for its tests.
//!
//! Invariants
//! 1. Functions panic with a full explanation (command line, output, path) instead of returning an error: a
//!    test that cannot run its judge has failed. The exceptions return a `Result` because a test may want to
//!    see the refusal.
//! 2. Nothing stays behind: mounts and temporary directories end with the value that owns them.
//! 3. A generated tree depends on its parameters only: same names, same bytes, same times on every machine,
//!    except for what the report says could not be made.
//! 4. Looking does not change what is looked at: files and directories are opened with `O_NOATIME` where
//!    allowed. The exception is the access time of symlinks, which `readlink` may touch after it was noted.

#![forbid(unsafe_code)]

pub mod capture;
pub mod corrupt;
mod dumpe2fs;
mod manifest;
pub mod matrix;
mod mount;
mod tools;
pub mod trees;
pub mod walk;

pub use dumpe2fs::{Dumpe2fs, GroupDump, dumpe2fs, parse_dumpe2fs};
pub use manifest::diff::{DiffOptions, Holes, diff};
pub use manifest::{Content, Entry, Extent, Kind, Manifest, Time};
pub use mount::{LoopDevice, LoopMount, MountError, kernel_mounts_block_size, kernel_mounts_kind_of};
pub use tools::{command, debugfs, e2fsck_clean, is_root, not_root, run, scratch};
