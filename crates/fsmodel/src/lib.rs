//! What a file system should answer: models of operations, their generators, and a comparison of subjects.
//!
//! Owns: operations as values ([`Op`]); the canonical picture of a tree and the difference of two ([`Tree`],
//! [`diff`]); a file system in memory that answers as Linux does on ext4 ([`Model`]); the kernel behind the
//! same face ([`Kernel`]); random and enumerated operations ([`Generator`], [`short_sequences`]); the
//! comparison, op by op and tree by tree, and the shrinking of what it found ([`compare`], [`shrink`]). The
//! same for the bytes of files, which have operations of their own: [`data`].
//!
//! Does **not** own: any knowledge of the engine, blocks or journals. This crate imports no other crate of
//! the house, so that a mistake in extant cannot hide in its own oracle. It is used by tests and tools only.
//!
//! ```text
//!   Generator ── Op ──┬── Model ───┐
//!                     ├── Kernel ──┼── same errno? same Tree?
//!                     └── engine ──┘
//! ```
//!
//! Rules of the game
//! 1. Operations come one after another, as root (uid 0, gid 0) with umask 0. Nothing is open between two of
//!    them.
//! 2. An operation names its object by the path of a directory and a name in it ([`At`]). Directories on the
//!    way are resolved first, the old one before the new one; symlinks are not followed, neither on the way
//!    (`ENOTDIR`) nor at the end. `..` in the root of the tree is never asked for.
//! 3. Regular files hold zeros only: they have sizes, no data. (Those of [`data`] do.)
//! 4. The file system has space: `ENOSPC` occurs for attributes only, whose room in the inode and its block
//!    is part of the model ([`Limits`]). No directory has more subdirectories, and no file more names, than
//!    65,000.
//! 5. Times are compared where an operation set them and no later operation moved them. The mount does not
//!    move access times (`noatime`).
//! 6. Linux 6.6 or newer: older kernels change the mode of a symlink where this one answers `EOPNOTSUPP`.
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

/// A file system that operations can be applied to and that can be looked at.
pub trait Subject {
    /// Applies one operation.
    ///
    /// # Errors
    /// The file system's refusal. It has changed nothing then, except where the kernel itself does (see
    /// [`Model`]).
    fn apply(&mut self, op: &Op) -> Result<(), Errno>;

    /// All that is there.
    ///
    /// # Panics
    /// When it cannot be looked at: a judge that cannot see has no verdict.
    fn tree(&mut self) -> Tree;
}
