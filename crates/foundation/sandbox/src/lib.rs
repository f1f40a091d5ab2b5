//! Confinement: a process drops what it does not need before it works on untrusted bytes. Commands do so
//! before they interpret the image; the server of a mount does so after it has opened the file system and
//! replayed the journal, before it serves clients. A defect in the code that runs afterwards cannot be used
//! to reach other files, programs or the network.
//!
//! ```text
//!  open files, mount --> Sandbox::server() ... .enter() --> interpret, serve
//!                          every thread: no_new_privs, landlock, capabilities   (threads)
//!                          the process:  SIGSYS handler, limits, seccomp        (refused, calls)
//! ```
//!
//! Owns: the lists of system calls, the order of the steps, the message about a refused call. Does **not**
//! own: what a command opens before it enters, or any helper that stays outside.
//!
//! Invariants
//! 1. All threads of the process are confined when [`Sandbox::enter`] returns, and threads that start later
//!    inherit the confinement.
//! 2. The confinement cannot be undone. A second sandbox can only take more rights away.
//! 3. What the kernel does not offer is left out and listed in [`Entered::missing`]; any other failure is an
//!    error.
//! 4. A refused system call is not executed. For a few calls, the caller gets an error, and goes on by other
//!    means (see `calls`). Any other refused call ends the process with the exit code of [`OnRefusal`], after
//!    a message that names the call; no destructor and no write-back runs.
//!
//! Source: seccomp(2), landlock(7), capabilities(7), prctl(2), kernel Documentation/userspace-api.

#![deny(unsafe_code)]

mod calls;
mod files;
mod refused;
mod threads;

use std::io;
use std::path::PathBuf;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub use files::Access;
pub use refused::OnRefusal;

/// CAP_SYS_NICE as a bit in [`Sandbox::keep_capabilities`]: policies and CPUs of threads.
pub const CAP_SYS_NICE: u64 = 1 << 23;

/// What a process keeps.
#[derive(Debug)]
pub struct Sandbox {
    calls: calls::Profile,
    files: Vec<(PathBuf, Access)>,
    reads_everywhere: bool,
    /// `None`: capabilities stay as they are.
    capabilities: Option<u64>,
    open_files: Option<u64>,
    has_core: bool,
    on_refusal: OnRefusal,
}

/// A sandbox that was entered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entered {
    /// Parts that this kernel does not offer, or not here.
    pub missing: Vec<&'static str>,
}

/// Why the sandbox could not be entered. Some threads may be confined.
#[derive(Debug, thiserror::Error)]
pub enum SandboxFault {
    /// A step failed on a kernel that offers it.
    #[error("{step}: {reason}")]
    Step {
        /// The step.
        step: &'static str,
        /// The system's reason.
        reason: io::Error,
    },
    /// The filter of system calls or the rules for files are not accepted.
    #[error("{step}: {reason}")]
    Rules {
        /// The step.
        step: &'static str,
        /// Text of the library.
        reason: String,
    },
}

impl Sandbox {
    fn new(calls: calls::Profile, on_refusal: OnRefusal) -> Self {
        Self {
            calls,
            files: Vec::new(),
            reads_everywhere: false,
            capabilities: None,
            open_files: None,
            has_core: true,
            on_refusal,
        }
    }

    /// For a server whose files are open: only the listed system calls, no files, no capabilities, no core
    /// dumps.
    #[must_use]
    pub fn server(on_refusal: OnRefusal) -> Self {
        Self {
            capabilities: Some(0),
            has_core: false,
            ..Self::new(calls::Profile::Server { rings: false }, on_refusal)
        }
    }

    /// For a command that works on files of its user: no programs, no network, no other processes, no mounts;
    /// the files as [`allow`](Self::allow) says. Capabilities stay.
    #[must_use]
    pub fn command(on_refusal: OnRefusal) -> Self {
        Self::new(calls::Profile::Command, on_refusal)
    }

    /// Lets a server make and use io_uring rings. The filter of system calls does not see what a ring does;
    /// landlock does.
    #[must_use]
    pub fn with_rings(mut self, rings: bool) -> Self {
        if let calls::Profile::Server { rings: allowed } = &mut self.calls {
            *allowed = rings;
        }
        self
    }

    /// Allows access to a file, or to all files below a directory. A path that does not exist is ignored.
    #[must_use]
    pub fn allow(mut self, path: impl Into<PathBuf>, access: Access) -> Self {
        self.files.push((path.into(), access));
        self
    }

    /// Lets all files be read that the user may read.
    #[must_use]
    pub fn reads_everywhere(mut self) -> Self {
        self.reads_everywhere = true;
        self
    }

    /// Drops all capabilities but these, a bit for each.
    #[must_use]
    pub fn keep_capabilities(mut self, kept: u64) -> Self {
        self.capabilities = Some(kept);
        self
    }

    /// At most this many open files.
    #[must_use]
    pub fn open_files_max(mut self, count: u64) -> Self {
        self.open_files = Some(count);
        self
    }

    /// Confines the process with all its threads.
    ///
    /// # Errors
    /// See [`SandboxFault`].
    pub fn enter(self) -> Result<Entered, SandboxFault> {
        let mut missing = Vec::new();
        let filters = calls::filters(self.calls)?;
        if filters.is_none() {
            missing.push("seccomp");
        }
        let ruleset = files::ruleset(&self.files, self.reads_everywhere)?;
        if ruleset.is_none() {
            missing.push("landlock");
        }
        refused::install(self.on_refusal).map_err(|reason| SandboxFault::Step { step: "SIGSYS", reason })?;
        limits(self.open_files, self.has_core);
        threads::confine(ruleset.as_ref(), self.capabilities)
            .map_err(|reason| SandboxFault::Step { step: "threads", reason })?;
        for filter in filters.iter().flatten() {
            match seccompiler::apply_filter_all_threads(filter) {
                Ok(()) => {}
                Err(seccompiler::Error::Seccomp(why)) if is_unavailable(&why) => {
                    missing.push("seccomp");
                    break;
                }
                Err(why) => {
                    return Err(SandboxFault::Rules { step: "seccomp", reason: why.to_string() });
                }
            }
        }
        Ok(Entered { missing })
    }
}

/// Whether the kernel lacks the call, or lacks the flag.
fn is_unavailable(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL))
}

/// Lowers limits. A limit that cannot be lowered stays: the limits are the last line of defence.
fn limits(open_files: Option<u64>, has_core: bool) {
    let lower = |resource, to: u64| {
        let now = getrlimit(resource);
        // `None` is no limit.
        let least = |now: Option<u64>| Some(now.map_or(to, |now| now.min(to)));
        let _ = setrlimit(resource, Rlimit { current: least(now.current), maximum: least(now.maximum) });
    };
    if !has_core {
        lower(Resource::Core, 0);
    }
    if let Some(count) = open_files {
        lower(Resource::Nofile, count);
    }
}
