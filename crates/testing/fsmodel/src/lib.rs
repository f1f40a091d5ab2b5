//! Test oracles of a file system: models of operations, their generators, and a comparison of subjects.
//!
//! Owns: operations as values ([`Op`]); the tree of a file system as a value, and the difference of two trees
//! ([`Tree`], [`diff`]); a file system in memory that answers as Linux does on ext4 ([`Model`]); the kernel
//! behind the same interface ([`Kernel`]); random and enumerated operations ([`Generator`],
//! [`short_sequences`]); the comparison of answers and trees, and the shrinking of a difference ([`compare`],
//! [`shrink`]). The module [`data`] has the same for file data, with its own operations.
//!
//! Does **not** own: any knowledge of the engine, blocks or journals. This crate imports no other crate of
//! the project, so that a defect of extant cannot hide in its own oracle. Only tests and tools use it.
//!
//! ```text
//!   Generator ── Op ──┬── Model ───┐
//!                     ├── Kernel ──┼── same errno? same Tree?
//!                     └── engine ──┘
//! ```
//!
//! Rules
//! 1. Operations run one after another, as root (uid 0, gid 0) with umask 0. No file is open between two
//!    operations.
//! 2. An operation names its object by the path of a directory and a name in it ([`At`]). The directories of
//!    the path are resolved first, the old path before the new one. Symlinks are not followed, neither in the
//!    path (`ENOTDIR`) nor at its end. No operation uses `..` in the root of the tree.
//! 3. Regular files hold only zeros: they have sizes, no data. (Those of [`data`] have data.)
//! 4. The file system has space: `ENOSPC` occurs only for attributes, whose room in the inode and its block
//!    is part of the model ([`Limits`]). No directory has more than 65,000 subdirectories, and no file more
//!    than 65,000 names.
//! 5. A time is compared if an operation set it and no later operation changed it. The mount does not update
//!    access times (`noatime`).
//! 6. Linux 6.6 or newer: older kernels change the mode of a symlink where the model answers `EOPNOTSUPP`.
//!
//! ```
//! use extant_fsmodel::{At, Errno, Model, Op, Subject};
//!
//! let mut model = Model::default();
//! model.apply(&Op::Mkdir { at: At::new("d"), mode: 0o755 }).unwrap();
//! model.apply(&Op::Create { at: At::new("d/f"), mode: 0o644 }).unwrap();
//! assert_eq!(model.apply(&Op::Rmdir { at: At::new("d") }), Err(Errno::ENOTEMPTY));
//! assert_eq!(model.tree().nodes[b"d/f".as_slice()].nlink, 1);
//! ```

#![forbid(unsafe_code)]

mod acl;
mod compare;
pub mod data;
mod errno;
mod generator;
mod kernel;
mod model;
mod op;
mod rng;
mod short;
mod tree;

pub use acl::{Acl, AclEntry, tag};
pub use compare::{Difference, Report, compare, replay, shrink};
pub use errno::Errno;
pub use generator::{Generator, Options};
pub use kernel::Kernel;
pub use model::{Limits, Model};
pub use op::{AclType, At, Bytes, Op, Rdev, RenameMode, SetTime, Special, Time, XattrMode};
pub use rng::Rng;
pub use short::{short_alphabet, short_sequences, short_setup};
pub use tree::{Kind, ModelNode, Tree, diff};

/// A file system whose metadata can be changed and read.
pub trait Subject {
    /// Applies one operation.
    ///
    /// # Errors
    /// The file system's refusal. It has then changed nothing, except where the kernel itself does (see
    /// [`Model`]).
    fn apply(&mut self, op: &Op) -> Result<(), Errno>;

    /// Reads the whole tree.
    ///
    /// # Panics
    /// The tree cannot be read; then there is no verdict.
    fn tree(&mut self) -> Tree;
}
