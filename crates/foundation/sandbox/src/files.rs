//! The files that a confined process may open: a landlock ruleset, without TCP, and without signals and
//! abstract sockets of other processes.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, Scope,
};

use crate::SandboxFault;

/// The newest version whose rights are asked for; the library leaves out those that the kernel lacks.
const VERSION: ABI = ABI::V7;

/// What may be done with files at a path and below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read files and list directories.
    Read,
    /// Read files, but list no directories.
    ReadFiles,
    /// Everything but executing: create, write, rename, remove.
    Write,
}

impl Access {
    fn rights(self) -> BitFlags<AccessFs> {
        match self {
            Self::Read => AccessFs::ReadFile | AccessFs::ReadDir,
            Self::ReadFiles => AccessFs::ReadFile.into(),
            Self::Write => AccessFs::from_all(VERSION) & !AccessFs::Execute,
        }
    }
}

/// The ruleset; `None` if the kernel has no landlock.
pub(crate) fn ruleset(
    files: &[(PathBuf, Access)],
    reads_everywhere: bool,
) -> Result<Option<OwnedFd>, SandboxFault> {
    made(files, reads_everywhere)
        .map_err(|why| SandboxFault::Rules { step: "landlock", reason: why.to_string() })
}

fn made(files: &[(PathBuf, Access)], reads_everywhere: bool) -> Result<Option<OwnedFd>, RulesetError> {
    let mut handled = AccessFs::from_all(VERSION);
    if reads_everywhere {
        handled &= !(AccessFs::ReadFile | AccessFs::ReadDir);
    }
    let mut ruleset = Ruleset::default()
        .handle_access(handled)?
        .handle_access(AccessNet::from_all(VERSION))?
        .scope(Scope::from_all(VERSION))?
        .create()?;
    for (path, access) in files {
        let Ok(fd) = PathFd::new(path) else { continue };
        let mut rights = access.rights() & handled;
        if !path.is_dir() {
            rights &= AccessFs::from_file(VERSION);
        }
        if !rights.is_empty() {
            ruleset = ruleset.add_rule(PathBeneath::new(fd, rights))?;
        }
    }
    Ok(ruleset.into())
}
