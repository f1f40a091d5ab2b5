//! A small process beside a confined server, which unmounts on its behalf: the server has neither the
//! capability for umount(2) nor may it execute `fusermount3`.
//!
//! ```text
//!  server -- "now 0:45\n", "lazy ...", "abort ..." --> unmounter: is that device mounted on DIR? unmounts
//!         -- "watch 0:45 1234\n"                   --> remembers the device, waits for the thread's end
//!         <-- "ok\n", "busy\n", or a reason --
//!  server ends: end of file                --> ends
//!  server is killed, but cannot end: that thread has ended, and no end of file
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
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, set_parent_process_death_signal};
use rustix::thread::gettid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use super::umount;

/// The name by which the program is called for this.
const NAME: &str = "extant-unmounter";

/// After the end of the server's thread, how long the others may take to end.
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

    /// Has the process abort the connection of `device` on `dir` if this process is killed and cannot end.
    /// The calling thread ends only with this process, or after [`forget`](Self::forget).
    pub(super) fn watch(&self, dir: &Path, device: Option<(u32, u32)>) {
        if let (Self::Helper(socket), Some((major, minor))) = (self, device) {
            let _ = asked(socket, dir, &format!("watch {major}:{minor} {}", gettid().as_raw_pid()));
        }
    }

    /// Ends [`watch`](Self::watch): another mount may have the device's number from now on.
    pub(super) fn forget(&self, dir: &Path) {
        if let Self::Helper(socket) = self {
            let _ = asked(socket, dir, "watch");
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
            Self::Helper(socket) => asked(socket, dir, &about(if lazy { "lazy" } else { "now" }, device)),
        }
    }

    /// After a failure: gives an error to all callers that wait for the server, and unmounts lazily.
    pub(super) fn take_down(&self, dir: &Path, device: Option<(u32, u32)>) {
        let _ = match self {
            Self::Direct => match abort(dir) {
                true => Ok(()),
                false => unmount(dir, true),
            },
            Self::Helper(socket) => asked(socket, dir, &about("abort", device)),
        };
    }
}

/// What to do, and on which device.
fn about(word: &str, device: Option<(u32, u32)>) -> String {
    device.map_or(word.to_owned(), |(major, minor)| format!("{word} {major}:{minor}"))
}

/// Sends a line to the process at the other end of the socket, and waits for its answer.
fn asked(socket: &Mutex<UnixStream>, dir: &Path, line: &str) -> Result<(), UnmountFault> {
    let refused = |reason: String| UnmountFault::Refused { dir: dir.to_owned(), reason };
    let socket = socket.lock().unwrap_or_else(PoisonError::into_inner);
    let mut answer = String::new();
    let asked = (&*socket).write_all(format!("{line}\n").as_bytes());
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
    let mut words = std::io::stdin().lock();
    let Ok(socket) = rustix::io::dup(&words) else { return Some(ExitCode::FAILURE) };
    let mut socket = UnixStream::from(socket);
    let mut line = String::new();
    while words.read_line(&mut line).is_ok_and(|len| len > 0) {
        let said = match line.trim_end().strip_prefix("watch") {
            Some(rest) => {
                let (device, thread) = rest.trim().split_once(' ').unwrap_or_default();
                *watched.lock().unwrap_or_else(PoisonError::into_inner) = device.to_owned();
                if let Some(thread) = thread.parse().ok().and_then(Pid::from_raw) {
                    abort_if_the_server_cannot_end(thread, &dir, &watched);
                }
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

/// Waits in a thread until this thread of the server ends. If this process still runs after [`TIME_TO_END`],
/// the socket is still open, so the server could not end.
fn abort_if_the_server_cannot_end(thread: Pid, dir: &Path, watched: &Arc<Mutex<String>>) {
    let Ok(death) = Death::of(thread) else { return };
    let (dir, watched) = (dir.to_owned(), Arc::clone(watched));
    std::thread::spawn(move || {
        death.wait();
        std::thread::sleep(TIME_TO_END);
        let device = watched.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Ok(Some(entry)) = mounted_at(&dir)
            && device == format!("{}:{}", entry.device.0, entry.device.1)
        {
            abort(&dir);
        }
    });
}

/// The end of a thread of the server, though others may be left.
enum Death {
    /// A file descriptor of the thread (Linux 6.9). Not of the first thread: since Linux 6.15 the end of the
    /// first one is reported only after that of all others.
    Thread(OwnedFd),
    /// The signal at the end of the first thread, which started this process. The sandbox does not let it
    /// through from Linux 6.12 on: to landlock, the thread that ends sends it.
    Signal(Signals, Pid),
}

impl Death {
    fn of(thread: Pid) -> std::io::Result<Self> {
        // PIDFD_THREAD is O_EXCL.
        let of_thread = PidfdFlags::from_bits_retain(OFlags::EXCL.bits());
        if let Ok(thread) = pidfd_open(thread, of_thread) {
            return Ok(Self::Thread(thread));
        }
        let server = getppid().ok_or(std::io::ErrorKind::NotFound)?;
        let signals = Signals::new([SIGUSR1])?;
        set_parent_process_death_signal(Some(Signal::USR1))?;
        Ok(Self::Signal(signals, server))
    }

    fn wait(self) {
        match self {
            Self::Thread(thread) => {
                let mut fds = [PollFd::new(&thread, PollFlags::IN)];
                while poll(&mut fds, None) == Err(Errno::INTR) {}
            }
            Self::Signal(mut signals, server) => {
                // Others may send the same signal.
                let _ = signals.forever().find(|_| is_dead(server));
            }
        }
    }
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
