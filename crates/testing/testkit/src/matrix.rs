//! A table of images made by mke2fs, debugfs, tune2fs and the kernel: a reader of ext4 must read all of them.
//!
//! ```text
//! for result in matrix::build_all(&matrix::recipes(), dir, 2) {
//!     let built = result.built?;                    // or the reason why there is none
//!     let theirs = built.manifest();                // the kernel's walk, or debugfs's
//!     let lines = diff(&theirs, &ours, &built.diff_options());
//! }
//! ```
//!
//! Owns: the recipes ([`recipes`], one table per topic), the workloads that fill them, and the building of
//! images.
//!
//! Does **not** own: judging a reader's answers (see [`walk`](crate::walk) and [`diff`](crate::diff())).
//!
//! Invariants
//! 1. Names of recipes are stable and unique; the UUID of an image is derived from its name.
//! 2. mke2fs uses the configuration of this crate, not the machine's: features are those of e2fsprogs 1.47
//!    upstream.
//! 3. A clean image has passed `e2fsck -fn`. A dirty one is as a crash left it: its journal needs a replay.
//! 4. Random choices come from a seed. The kernel's choices (its own times and generation numbers, the places
//!    that it allocates) differ between builds.

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
    /// Arguments of mke2fs, except `-E`.
    pub mke2fs: &'static [&'static str],
    /// The value of mke2fs's `-E`, in addition to the usual options; empty for none.
    pub extended: &'static str,
    /// Size as mke2fs takes it: `32M`.
    pub size: &'static str,
    /// Fills a directory for `mke2fs -d`.
    pub source: Option<fn(&Path)>,
    /// The steps after mke2fs, in order.
    pub steps: &'static [Step],
    /// The reader of the image.
    pub judge: Judge,
    /// mke2fs's arguments for an external journal, on a device of 8 MiB.
    pub journal: Option<&'static [&'static str]>,
}

/// The program that reads an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judge {
    /// This kernel mounts it, at least read-only.
    Kernel,
    /// The usual kernel lacks something (64 KiB pages, Unicode, fs-verity); debugfs reads it.
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

/// A step of a recipe.
#[derive(Debug, Clone, Copy)]
pub enum Step {
    /// Mounts with `-o OPTIONS` (`rw` for none), works in the mount, unmounts.
    Kernel(&'static str, fn(&Path)),
    /// Mounts, works, and copies the image while the mount and the files that the work returns are still
    /// open: the state after a power cut. The work syncs everything that must be in the image.
    Crash(&'static str, fn(&Path) -> Vec<File>),
    /// Requests to debugfs, with write access. `{dir}` is the directory of the build.
    Debugfs(&'static [&'static str]),
    /// As [`Debugfs`](Self::Debugfs), with requests from a function.
    DebugfsBy(fn() -> Vec<String>),
    /// tune2fs with these arguments.
    Tune2fs(&'static [&'static str]),
    /// e2fsck with these arguments; it may repair.
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
        // Trees for `mke2fs -d` contain files of mode 0, which only root can read.
        let reads_all = self.source.is_some();
        if mounts || reads_all || self.journal.is_some() { Needs::Root } else { Needs::Nothing }
    }

    /// Whether the image keeps an unreplayed journal with fast commits.
    fn leaves_fast_commits(&self) -> bool {
        self.is_dirty() && self.mke2fs.iter().any(|arg| arg.contains("fast_commit"))
    }

    /// Whether the image keeps an unreplayed journal.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        matches!(self.steps.last(), Some(Step::Crash(..)))
    }
}

/// An image that was built.
#[derive(Debug, Clone)]
pub struct Built {
    /// The recipe's name.
    pub name: &'static str,
    /// The image, `DIR/NAME.img`.
    pub image: PathBuf,
    /// The external journal, if any.
    pub journal: Option<PathBuf>,
    /// Whether the usual kernel can mount it; otherwise debugfs reads it.
    pub mountable: bool,
    /// As after a crash: the journal (if any) needs a replay, and `e2fsck -fn` may complain.
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

    /// The tree as the kernel reads it, or debugfs if the kernel does not mount the image.
    ///
    /// # Panics
    /// The kernel refuses an image that it should mount.
    #[must_use]
    pub fn manifest(&self) -> Manifest {
        if !self.mountable {
            return by_debugfs(&self.image);
        }
        let view = self.kernel_view().unwrap_or_else(|error| panic!("{}: {error}", self.name));
        view.manifest()
    }

    /// The options for comparing another reader's manifest with [`manifest`](Self::manifest): exact, except
    /// for what debugfs does not show, and for what the kernel's replay of fast commits changes.
    ///
    /// # Panics
    /// dumpe2fs cannot read the superblock.
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
