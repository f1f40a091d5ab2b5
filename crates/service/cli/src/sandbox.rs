//! Confinement of the commands: what each one keeps, and when it enters (see `extant-sandbox`).
//!
//! ```text
//!  ls tree stat cat df inspect check   images open --> only these images, and standard output
//!  check --repair, restore             images open --> writes one and its undo file
//!  update                              image open  --> writes it; reads all sources
//!  export, build, rescue, dump         images open --> writes the output; build reads all sources
//!  diff                                images open --> as these, by its sides and its output
//!  mount                               mounted     --> see `mount::confined`
//!  all others                          not confined
//! ```
//!
//! Does **not** own: the lists of system calls.
//!
//! A process with preloaded libraries (fakeroot, pseudo) is not confined: these libraries start programs and
//! open sockets on their own.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use extant_sandbox::{Access, OnRefusal, Sandbox};

use crate::exit;
use crate::voice::say;

/// Whether `--no-sandbox` was given.
static IS_OFF: AtomicBool = AtomicBool::new(false);

/// Text of `--no-sandbox`.
pub(crate) const HELP: &str = "Do not confine the process (docs/security.md)";

/// Switches confinement off.
pub(crate) fn switch_off() {
    IS_OFF.store(true, Ordering::Relaxed);
}

/// Why the process is not confined; `None` if it is to be.
pub(crate) fn reason_against() -> Option<&'static str> {
    let is_preloaded = || std::env::var_os("LD_PRELOAD").is_some_and(|list| !list.is_empty());
    if IS_OFF.load(Ordering::Relaxed) {
        Some("--no-sandbox")
    } else if is_preloaded() {
        Some("LD_PRELOAD is set")
    } else {
        None
    }
}

/// What a command still opens after it entered.
#[derive(Default)]
pub(crate) struct Needs {
    /// Directories below which it writes.
    pub(crate) writes: Vec<PathBuf>,
    /// It reads sources that the command line names only in part, as directories of trees.
    pub(crate) reads_everywhere: bool,
    /// It sets owners, devices or attributes, and needs its capabilities.
    pub(crate) keeps_capabilities: bool,
    /// The exit code after a refused system call.
    pub(crate) exit_code: Option<u8>,
}

/// Confines a command. If that fails, the command goes on, with a warning: it works on files of its user.
pub(crate) fn confine(subject: &str, needs: &Needs) {
    if reason_against().is_some() {
        return;
    }
    let on_refusal = OnRefusal::exit_with(needs.exit_code.unwrap_or(exit::REFUSED_CALL), subject);
    let mut sandbox = Sandbox::command(on_refusal)
        .allow("/proc/self", Access::Read)
        // Numbers of CPUs, and limits of them.
        .allow("/sys/devices/system/cpu", Access::Read)
        .allow("/sys/fs/cgroup", Access::ReadFiles);
    if !needs.writes.is_empty() {
        // Whether another program uses the output.
        sandbox = sandbox.allow("/proc", Access::Read).allow("/sys", Access::Read);
    }
    for dir in &needs.writes {
        sandbox = sandbox.allow(dir, Access::Write);
    }
    if needs.reads_everywhere {
        sandbox = sandbox.reads_everywhere();
    }
    if !needs.keeps_capabilities {
        sandbox = sandbox.keep_capabilities(0);
    }
    if let Err(fault) = sandbox.enter() {
        say!("warning: the sandbox is not complete: {fault}; --no-sandbox goes without it");
    }
}

/// The directory in which a file is made, links in its path followed.
pub(crate) fn directory_of(file: &Path) -> PathBuf {
    let target = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    match target.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}
