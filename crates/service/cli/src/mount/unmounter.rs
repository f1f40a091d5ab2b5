//! A small process beside a confined server, which unmounts on its behalf: the server has neither the
//! capability for umount(2) nor may it execute `fusermount3`.
//!
//! ```text
//!  server -- "now 0:45\n", "lazy ...", "abort ..." --> unmounter: is that device mounted on DIR? unmounts
//!         -- "watch 0:45\n"                        --> remembers the device
//!         <-- "ok\n", "busy\n", or a reason --
//!  server ends: end of file                --> ends
//!  server is killed, but cannot end: the signal of its death, and no end of file
//!                                          --> aborts the connection of the device
//! ```
//!
//! A killed server cannot end while one of its threads waits in the kernel for dirty pages of its own mount:
//! only the server could write them back. The mount and all processes that use it would hang. An
//! aborted connection ends the wait.
//!
//! It is this program again, started before the image is open, with the directory as its only argument. It
//! never sees a byte of the image or of a client. What a server under foreign control can do with it is to
//! unmount its own mount.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use extant_device::mount_table::mounted_at;
use extant_fuse::{UnmountFault, abort, unmount};
use rustix::process::{Pid, Signal, set_parent_process_death_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use super::umount;

/// The name by which the program is called for this.
const NAME: &str = "extant-unmounter";

/// After the signal of the server's death, how long it may take to end.
const TIME_TO_END: Duration = Duration::from_secs(1);

/// How a server unmounts.
pub(super) enum Unmounter {
    /// By itself.
    Direct,
    /// By the process at the other end.
    Helper(Mutex<UnixStream>),
}

impl Unmounter {
    /// Starts the process for a mount on `dir`.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) fn start(dir: &Path) -> std::io::Result<Self> {
        let dir = umount::absolute(dir)?;
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0(NAME).arg(dir).current_dir("/").env_clear().process_group(0);
        if let Some(path) = std::env::var_os("PATH") {
            command.env("PATH", path);
        }
        command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn()?;
        Ok(Self::Helper(Mutex::new(ours)))
    }

    /// Has the process abort the connection of `device` on `dir` if this process is killed and cannot end;
    /// with `None`, no more.
    pub(super) fn watch(&self, dir: &Path, device: Option<(u32, u32)>) {
        if let Self::Helper(socket) = self {
            let _ = asked(socket, dir, device, "watch");
        }
    }

    /// Unmounts `dir` if `device` is mounted there.
    pub(super) fn unmount(
        &self,
        dir: &Path,
        device: Option<(u32, u32)>,
        lazy: bool,
    ) -> Result<(), UnmountFault> {
        match self {
            Self::Direct => unmount(dir, lazy),
            Self::Helper(socket) => asked(socket, dir, device, if lazy { "lazy" } else { "now" }),
        }
    }

    /// After a failure: gives an error to all callers that wait for the server, and unmounts lazily.
    pub(super) fn take_down(&self, dir: &Path, device: Option<(u32, u32)>) {
        let _ = match self {
            Self::Direct => match abort(dir) {
                true => Ok(()),
                false => unmount(dir, true),
            },
            Self::Helper(socket) => asked(socket, dir, device, "abort"),
        };
    }
}

/// Has the process at the other end of the socket unmount.
fn asked(
    socket: &Mutex<UnixStream>,
    dir: &Path,
    device: Option<(u32, u32)>,
    word: &str,
) -> Result<(), UnmountFault> {
    let refused = |reason: String| UnmountFault::Refused { dir: dir.to_owned(), reason };
    let device = device.map_or(String::new(), |(major, minor)| format!(" {major}:{minor}"));
    let socket = socket.lock().unwrap_or_else(PoisonError::into_inner);
    let mut answer = String::new();
    let asked = (&*socket).write_all(format!("{word}{device}\n").as_bytes());
    let answered = asked.and_then(|()| BufReader::new(&*socket).read_line(&mut answer));
    match (answered, answer.trim_end()) {
        (Ok(_), "ok") => Ok(()),
        (Ok(_), "busy") => Err(UnmountFault::Busy { dir: dir.to_owned() }),
        (Ok(_), "") => Err(refused("the process that unmounts has ended".to_owned())),
        (Ok(_), reason) => Err(refused(reason.to_owned())),
        (Err(error), _) => Err(refused(error.to_string())),
    }
}

/// If the program is called as the unmounter, runs it.
pub(crate) fn run_if_called_so() -> Option<ExitCode> {
    let mut args = std::env::args_os();
    if args.next().as_deref() != Some(OsStr::new(NAME)) {
        return None;
    }
    let dir = PathBuf::from(args.next()?);
    // It ends after its server, which may get the same signal, and then unmounts.
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        let _ = signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)));
    }
    let watched: Arc<Mutex<String>> = Arc::default();
    abort_if_the_server_cannot_end(&dir, &watched);
    let mut words = std::io::stdin().lock();
    let Ok(socket) = rustix::io::dup(&words) else { return Some(ExitCode::FAILURE) };
    let mut socket = UnixStream::from(socket);
    let mut line = String::new();
    while words.read_line(&mut line).is_ok_and(|len| len > 0) {
        let said = match line.trim_end().strip_prefix("watch") {
            Some(device) => {
                *watched.lock().unwrap_or_else(PoisonError::into_inner) = device.trim().to_owned();
                "ok".to_owned()
            }
            None => answer(&dir, line.trim_end()),
        };
        if socket.write_all(format!("{}\n", said.replace('\n', " ")).as_bytes()).is_err() {
            break;
        }
        line.clear();
    }
    Some(ExitCode::SUCCESS)
}

/// Waits for the signal of the server's death in a thread. If this process still runs after
/// [`TIME_TO_END`], the socket is still open, so the server could not end.
fn abort_if_the_server_cannot_end(dir: &Path, watched: &Arc<Mutex<String>>) {
    let Ok(mut signals) = Signals::new([SIGUSR1]) else { return };
    if set_parent_process_death_signal(Some(Signal::USR1)).is_err() {
        return;
    }
    // The signal comes when the thread that started this process ends: the server's first.
    let Some(server) = rustix::process::getppid() else { return };
    let (dir, watched) = (dir.to_owned(), Arc::clone(watched));
    std::thread::spawn(move || {
        for _ in signals.forever() {
            std::thread::sleep(TIME_TO_END);
            let device = watched.lock().unwrap_or_else(PoisonError::into_inner).clone();
            // Others may send the same signal.
            if is_dead(server)
                && let Ok(Some(entry)) = mounted_at(&dir)
                && device == format!("{}:{}", entry.device.0, entry.device.1)
            {
                abort(&dir);
            }
        }
    });
}

/// Whether the first thread of a process has ended: its state is Z.
fn is_dead(process: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_pid())).unwrap_or_default();
    // After the name, which may contain anything.
    stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('Z'))
}

fn answer(dir: &Path, line: &str) -> String {
    let (word, device) = line.split_once(' ').map_or((line, None), |(word, device)| (word, Some(device)));
    let found = mounted_at(dir).ok().flatten();
    let is_ours = |entry: &extant_device::mount_table::MountEntry| {
        device.is_none_or(|device| device == format!("{}:{}", entry.device.0, entry.device.1))
    };
    if !found.is_some_and(|entry| entry.fs_type.starts_with("fuse") && is_ours(&entry)) {
        return "it is mounted there no more".to_owned();
    }
    if word == "abort" && abort(dir) {
        return "ok".to_owned();
    }
    match unmount(dir, word != "now") {
        Ok(()) => "ok".to_owned(),
        Err(UnmountFault::Busy { .. }) => "busy".to_owned(),
        Err(UnmountFault::Refused { reason, .. }) => reason,
    }
}
