//! Shared tools of extant's integration tests: source trees, manifests, loop mounts, and e2fsprogs as a
//! judge.
//!
//! Owns: generators of source trees ([`trees`]); the description of a tree as a value and the comparison of
//! two ([`Manifest`]); mounts of an image by the kernel ([`LoopMount`]); running e2fsprogs and parsing its
//! output ([`e2fsck_clean`], [`dumpe2fs()`], [`debugfs`]); the tree of an image as the kernel or debugfs
//! reads it ([`walk`]); a table of images made by real tools and the real kernel ([`matrix`]); images cut off
//! in the middle of writing ([`capture`]); damage, one field at a time ([`corrupt`]).
//!
//! Does **not** own: any knowledge of ext4's layout. This crate depends on no other crate of the workspace,
//! so that a defect of extant cannot hide in its own judge. Other crates depend on it only for their tests.
//!
//! Invariants
//! 1. Functions panic with a full explanation (command line, output, path) instead of returning an error: a
//!    test that cannot run its judge has failed. A function returns a `Result` only if a test may expect the
//!    refusal.
//! 2. Nothing is left over: mounts and temporary directories end with the value that owns them.
//! 3. A generated tree depends only on its parameters: same names, same bytes, same times on every machine,
//!    except for what the report lists as impossible to create.
//! 4. Reading does not change the tree: files and directories are opened with `O_NOATIME` where allowed. The
//!    exception is the access time of symlinks, which `readlink` may update after it was recorded.

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
