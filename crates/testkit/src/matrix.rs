//! A table of images that mke2fs, debugfs, tune2fs and the kernel made: what a reader of ext4 has to read.
//!
//! ```text
//! for result in matrix::build_all(&matrix::recipes(), dir, 2) {
//!     let built = result.built?;                    // or why it could not be made here
//!     let theirs = built.manifest();                // the kernel's walk, or debugfs's
//!     let lines = diff(&theirs, &ours, &built.diff_options());
//! }
//! ```
//!
//! Owns: the recipes ([`recipes`], one table per topic), what fills them, and the building of images.
//!
//! Does **not** own: judging a reader's answers (see [`walk`](crate::walk) and [`diff`](crate::diff())).
//!
//! Invariants
//! 1. Names of recipes are stable and unique; the UUID of an image comes from its name.
//! 2. mke2fs's own configuration is used, not the machine's: features are those of e2fsprogs 1.47 upstream.
//! 3. A clean image has passed `e2fsck -fn`. A dirty one is as a crash left it: its journal wants a replay.
//! 4. What is random comes from a seed. What the kernel chooses (times of its own, its generation numbers,
//!    where it allocates) is not the same twice.

mod build;
mod recipes;
mod work;

use std::fs::File;
use std::path::{Path, PathBuf};

pub use build::{Outcome, build, build_all};
pub use recipes::recipes;

use crate::walk::{KernelView, by_debugfs};
use crate::{DiffOptions, Holes, Manifest, MountError, parse_dumpe2fs, run};

/// How one image is made.
#[derive(Debug, Clone, Copy)]
pub struct Recipe {
    /// Its name: `ext4-1k`.
    pub name: &'static str,
    /// Arguments of mke2fs, `-E` excepted.
    pub mke2fs: &'static [&'static str],
    /// The value of mke2fs's `-E`, in addition to the usual ones; empty for none.
    pub extended: &'static str,
    /// Size in mke2fs's words: `32M`.
    pub size: &'static str,
    /// Fills a directory for `mke2fs -d`.
    pub source: Option<fn(&Path)>,
    /// What is done after mke2fs, in this order.
    pub steps: &'static [Step],
    /// The readers of an image.
    pub judge: Judge,
    /// mke2fs's arguments for an external journal, on a device of 8 MiB.
    pub journal: Option<&'static [&'static str]>,
}

/// The readers of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judge {
    /// This kernel mounts it, if only read-only.
    Kernel,
    /// The usual kernel lacks something (64 KiB pages, Unicode, fs-verity); ask debugfs.
    Debugfs,
}

/// What a recipe needs of the process that builds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// e2fsprogs only.
    Nothing,
    /// Root, for loop devices and mounts.
    Root,
}

/// One step of a recipe.
#[derive(Debug, Clone, Copy)]
pub enum Step {
    /// Mount with `-o OPTIONS` (`rw` for none), work in the mount, unmount.
    Kernel(&'static str, fn(&Path)),
    /// Mount, work, and take the image as it is while the mount and the files that the work returns are still
    /// there: what a power cut leaves. The work ends when all that it wants in the image has been synced.
    Crash(&'static str, fn(&Path) -> Vec<File>),
    /// Requests to debugfs, with write access. `{dir}` is the directory of the build.
    Debugfs(&'static [&'static str]),
    /// As [`Debugfs`](Self::Debugfs), the requests made by a function.
    DebugfsBy(fn() -> Vec<String>),
    /// tune2fs with these arguments.
    Tune2fs(&'static [&'static str]),
    /// e2fsck with these arguments; may repair.
    E2fsck(&'static [&'static str]),
    /// resize2fs to this size.
    Resize2fs(&'static str),
    /// Writes the file `{dir}/NAME` for a later step.
    Host(&'static str, fn() -> Vec<u8>),
}

impl Recipe {
    /// What this recipe needs of the process.
    #[must_use]
    pub fn needs(&self) -> Needs {
        let mounts = self.steps.iter().any(|step| matches!(step, Step::Kernel(..) | Step::Crash(..)));
        // Trees for `mke2fs -d` hold files of mode 0, which only root can read.
        let reads_all = self.source.is_some();
        if mounts || reads_all || self.journal.is_some() { Needs::Root } else { Needs::Nothing }
    }

    /// Is the journal of the image left unreplayed, with fast commits?
    fn leaves_fast_commits(&self) -> bool {
        self.is_dirty() && self.mke2fs.iter().any(|arg| arg.contains("fast_commit"))
    }

    /// Is the journal of the image left unreplayed?
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        matches!(self.steps.last(), Some(Step::Crash(..)))
    }
}

/// An image that was made.
#[derive(Debug, Clone)]
pub struct Built {
    /// The recipe's name.
    pub name: &'static str,
    /// The image, `DIR/NAME.img`.
    pub image: PathBuf,
    /// The external journal, where it has one.
    pub journal: Option<PathBuf>,
    /// Can the usual kernel mount it? Otherwise ask debugfs.
    pub mountable: bool,
    /// A crash left it: the journal (if it has one) wants a replay, `e2fsck -fn` may complain.
    pub dirty: bool,
    /// Dirty, with the `fast_commit` feature.
    pub fast_commits: bool,
}

impl Built {
    /// Mounts a copy.
    ///
    /// # Errors
    /// As [`KernelView::open`].
    pub fn kernel_view(&self) -> Result<KernelView, MountError> {
        KernelView::open(&self.image, self.journal.as_deref())
    }

    /// The tree by the kernel, or by debugfs for what the kernel does not mount.
    ///
    /// # Panics
    /// When the kernel refuses what it should mount.
    #[must_use]
    pub fn manifest(&self) -> Manifest {
        if !self.mountable {
            return by_debugfs(&self.image);
        }
        let view = self.kernel_view().unwrap_or_else(|error| panic!("{}: {error}", self.name));
        view.manifest()
    }

    /// How another reader's manifest is to be compared with [`manifest`](Self::manifest): exactly, except for
    /// what debugfs does not show, and what the kernel's replay of fast commits makes up.
    ///
    /// # Panics
    /// When dumpe2fs cannot read the superblock.
    #[must_use]
    pub fn diff_options(&self) -> DiffOptions {
        let header = run("dumpe2fs", [Path::new("-h"), &self.image]);
        let header = parse_dumpe2fs(&String::from_utf8_lossy(&header.stdout));
        let exact = DiffOptions::exact(header.number("Block size"));
        DiffOptions {
            holes: if self.mountable { exact.holes } else { Holes::Ignore },
            extents: self.mountable,
            ignore_directory_times: self.fast_commits,
            ..exact
        }
    }

    /// Deletes the image and its journal.
    pub fn delete(self) {
        let _ = std::fs::remove_file(&self.image);
        if let Some(journal) = &self.journal {
            let _ = std::fs::remove_file(journal);
        }
    }
}
