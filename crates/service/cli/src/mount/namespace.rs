//! `extant mount --namespace IMG -- COMMAND`: a command that sees the image mounted, and nothing else does.
//!
//! ```text
//!  extant mount --namespace        server: the same program again     COMMAND
//!    enter new namespaces
//!    start the server ----------> open the image, mount
//!    wait for the line <--------- "ready"
//!    start COMMAND, in the mount -------------------------------------> works, through the server
//!    pass signals on ------------------------------------------------->
//!    its exit code <--------------------------------------------------- ends
//!    unmount -------------------> close the image, exit
//! ```
//!
//! Invariants
//! 1. This process has one thread, and the server is not its ancestor: namespaces can be entered only by a
//!    process with one thread, and the command inherits no descriptor of the image or of the connection.
//! 2. The server never outlives this process: it gets SIGTERM when this process dies, and then unmounts and
//!    closes the image. Nothing outside could unmount it.
//! 3. This process ends after the image is closed.
//!
//! Does **not** own: the namespaces (see [`super::user_namespace`]), the server (see [`super::serve`]).

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use extant_device::mount_table::mounted_at;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};

use super::user_namespace::{Kind, enter};
use super::{MountArgs, MountError, PATIENCE, start_server, umount};
use crate::exit;
use crate::voice::{note, say};

/// Environment variable of the command: the directory of the mount. The server gets it, too.
const DIR: &str = "EXTANT_MOUNT";
/// Environment variable of the server: the process that started it, and `users` or `mounts`, the new
/// namespaces.
const SERVES: &str = "EXTANT_MOUNT_NAMESPACE";
/// As env(1) and shells have them: the command exists but cannot be run; it does not exist; it was ended by
/// signal N, plus N.
const CANNOT_RUN: u8 = 126;
const NO_COMMAND: u8 = 127;
const BY_SIGNAL: i32 = 128;
/// `si_code` of signals from the kernel, as on Ctrl-C.
const SI_KERNEL: i32 = 0x80;

/// In a server that serves a namespace: its directory, and the kind of namespace. Ties its life to that of
/// its parent. `None` in any other process.
pub(super) fn served() -> Option<(PathBuf, Kind)> {
    let value = std::env::var(SERVES).ok()?;
    let (parent, kind) = value.split_once(' ')?;
    let kind = if kind == "users" { Kind::Users } else { Kind::Mounts };
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM));
    // A parent that died before sends no signal.
    if getppid().map(|pid| pid.as_raw_pid().to_string()).as_deref() != Some(parent) {
        std::process::exit(exit::TARGET.into());
    }
    Some((std::env::var_os(DIR)?.into(), kind))
}

/// Runs the command. Returns its exit code.
pub(super) fn run(args: &MountArgs) -> Result<u8, MountError> {
    let fail = |text: String| MountError::new(exit::TARGET, text);
    // Removed when it is dropped, at the end.
    let temporary = match &args.at {
        Some(_) => None,
        None => Some(tempfile::Builder::new().prefix("extant-").tempdir().map_err(|error| {
            fail(format!("no temporary directory can be made: {error}; name a directory with --at"))
        })?),
    };
    let dir = match (&args.at, &temporary) {
        (Some(dir), _) => dir.as_path(),
        (None, Some(temporary)) => temporary.path(),
        (None, None) => Path::new("."),
    };
    let dir = dir.canonicalize().map_err(|error| fail(format!("--at {}: {error}", dir.display())))?;
    let signals = Early::new().map_err(|error| fail(format!("signals cannot be handled: {error}")))?;
    let kind = enter().map_err(fail)?;
    let parent = format!("{} {}", std::process::id(), if kind == Kind::Users { "users" } else { "mounts" });
    let server = start_server(&dir, &[(SERVES, parent.into()), (DIR, dir.clone().into())])?;
    let words = std::iter::once(args.dir.as_os_str()).chain(args.words.iter().map(OsString::as_os_str));
    let code = run_command(words.map(ToOwned::to_owned).collect(), &dir, &signals);
    match (end(&dir, server), code) {
        (Ok(()), code) => Ok(code),
        (Err(error), 0) => Err(error),
        (Err(error), code) => {
            say!("{}", error.text);
            Ok(code)
        }
    }
}

/// Signals that are passed on to the command.
const PASSED: [Signal; 6] =
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// The signals that came before the command ran. From then on they are blocked, and read from a descriptor,
/// which says where they come from. Other processes inherit what is blocked, but no handlers: these signals
/// cannot be blocked from the start.
struct Early(Vec<(Signal, Arc<AtomicBool>)>);

impl Early {
    fn new() -> io::Result<Self> {
        let register = |signal: Signal| {
            let came = Arc::<AtomicBool>::default();
            signal_hook::flag::register(signal as i32, Arc::clone(&came))?;
            Ok((signal, came))
        };
        PASSED.into_iter().map(register).collect::<io::Result<_>>().map(Self)
    }

    /// Passes them on. Returns the descriptor of those that come later.
    fn pass_on(&self, child: &Child) -> nix::Result<SignalFd> {
        let set: SigSet = PASSED.into_iter().collect();
        set.thread_block()?;
        for (signal, _) in self.0.iter().filter(|(_, came)| came.load(Ordering::Relaxed)) {
            let _ = kill(nix::unistd::Pid::from_raw(child.id() as i32), *signal);
        }
        SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
    }
}

/// The exit code of the command, as a shell has it.
fn run_command(mut words: Vec<OsString>, dir: &Path, signals: &Early) -> u8 {
    let program = words.remove(0);
    let mut command = Command::new(&program);
    command.args(words).current_dir(dir).env(DIR, dir).env("PWD", dir);
    let status = match command.spawn() {
        Ok(mut child) => wait(&mut child, signals),
        Err(error) => {
            say!("{}: {error}", Path::new(&program).display());
            return if error.kind() == ErrorKind::NotFound { NO_COMMAND } else { CANNOT_RUN };
        }
    };
    let code = match status {
        Ok(status) => status.code().or_else(|| status.signal().map(|signal| BY_SIGNAL + signal)),
        Err(error) => {
            say!("{}: {error}", Path::new(&program).display());
            None
        }
    };
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(CANNOT_RUN)
}

/// Waits for the end of the command, and passes signals on meanwhile.
fn wait(child: &mut Child, signals: &Early) -> io::Result<ExitStatus> {
    let signals = signals.pass_on(child)?;
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    loop {
        let mut fds = [PollFd::new(&process, PollFlags::IN), PollFd::new(&signals, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        while let Ok(Some(info)) = signals.read_signal() {
            // A terminal sends its signals to all processes in the foreground, so the command has it already.
            if info.ssi_code != SI_KERNEL
                && let Ok(signal) = Signal::try_from(info.ssi_signo as i32)
            {
                let _ = kill(nix::unistd::Pid::from_raw(child.id() as i32), signal);
            }
        }
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
    }
}

/// Unmounts, and waits until the server has closed the image. Processes that the command left behind get
/// errors from then on.
fn end(dir: &Path, mut server: Child) -> Result<(), MountError> {
    // An error of the last writes is visible here, and not after the unmount.
    let synced = umount::sync(dir);
    let unmounted = match mounted_at(dir).ok().flatten() {
        Some(entry) => umount::unmount_patiently(dir, &entry, false),
        None => Ok(()),
    };
    if let Err(text) = &unmounted {
        let finding = text.rsplit_once("; ").map_or(text.as_str(), |(finding, _)| finding);
        note!("{finding}; the image is closed nevertheless");
    }
    // Another mount namespace may hold the mount. On SIGTERM the server closes the image in any case.
    let process = pidfd_open(Pid::from_child(&server), PidfdFlags::empty());
    let has_ended = unmounted.is_ok() && process.is_ok_and(|process| umount::ends_in(&process, PATIENCE));
    if !has_ended {
        let _ = kill(nix::unistd::Pid::from_raw(server.id() as i32), Signal::SIGTERM);
    }
    let status = server.wait();
    let why = match (synced, status) {
        (Err(error), _) | (_, Err(error)) => error.to_string(),
        (_, Ok(status)) if !status.success() => format!("the server ended with {status}"),
        _ => return Ok(()),
    };
    let text = format!("changes could not be written: {why}; run `extant check` on the image");
    Err(MountError::new(exit::TARGET, text))
}
