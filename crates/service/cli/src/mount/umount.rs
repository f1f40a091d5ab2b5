//! `extant umount`: unmounts a mount of extant, and waits until its server has released the image.
//!
//! ```text
//!  unmounted here --- other visible mounts of it (bind) ----> done: the server continues
//!                 --- the connection is gone, the server  --> wait, with a message now and then;
//!                     writes home                             done when the server has ended
//!                 --- the connection lives: another mount --> write everything home through it,
//!                     namespace                               name the holders, exit 10
//! ```

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use extant_device::mount_table::{MountEntry, TYPE, mounted_at, mounts};
use extant_fuse::{SERVER_ATTRIBUTE, SHUTDOWN_ATTRIBUTE, UnmountFault, unmount};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags};

use super::{MountError, holders};
use crate::exit;
use crate::usage::near;
use crate::voice::note;

/// How long a connection may exist after the unmount before its holders are searched.
const HELD: Duration = Duration::from_secs(1);
/// The same if no holder is found.
const HELD_BY_NOBODY: Duration = Duration::from_secs(3);
/// Time before the first message while the server writes home; later messages follow after three times as
/// long.
const WORD: Duration = Duration::from_secs(5);
/// Interval between checks of the server.
const LOOK: Duration = Duration::from_millis(250);
/// How long a mount may be busy without a visible user: after a process has ended, the kernel releases its
/// mappings and io_uring requests with a delay.
const BUSY: Duration = Duration::from_secs(2);
/// The same with a visible user, which may be ending just now.
const BUSY_BY: Duration = Duration::from_millis(200);

const UMOUNT_HELP: &str = "\
Refuses what is not a mount of extant. Returns when the process that served it has ended, so the image is free then; at once if it \
is mounted elsewhere in sight (mount --bind).

Exit codes: 0 unmounted; 1 not, or changes could not be written: the reason is said; 2 usage; 10 unmounted here and written home, \
but another mount namespace still has it.";

/// Unmount what `extant mount` mounted.
#[derive(Debug, Args)]
#[command(after_help = UMOUNT_HELP)]
pub(crate) struct UmountArgs {
    /// The directory.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Unmount lazily, also while it is in use: the server ends when its last user does. Does not wait.
    #[arg(short, long)]
    lazy: bool,
    /// Called by umount(8): what was shut down is no error.
    #[arg(long, hide = true)]
    as_helper: bool,
}

/// Runs `extant umount`.
pub(crate) fn umount(args: &UmountArgs) -> ExitCode {
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::fail(error.code, &error.text),
    }
}

fn run(args: &UmountArgs) -> Result<(), MountError> {
    let fail = |text: &dyn std::fmt::Display| MountError::new(exit::TARGET, text);
    let dir = absolute(&args.dir).map_err(|error| fail(&near::not_opened(&args.dir, &error)))?;
    let entry = mounted_at(&dir)
        .map_err(|error| fail(&format_args!("the table of mounts cannot be read: {error}")))?
        .ok_or_else(|| {
            let hint = format_args!("; `findmnt -t {TYPE}` lists the mounts of extant").to_string();
            fail(&format_args!("nothing is mounted on {}{hint}", dir.display()))
        })?;
    // A hanging server must not block a lazy unmount.
    let server = if args.lazy || !entry.fs_type.starts_with("fuse") { None } else { server_of(&dir) };
    if entry.fs_type != TYPE && server.is_none() {
        let kind = &entry.fs_type;
        let text =
            format!("{} is a mount of type {kind}, not of extant; use umount(8) for it", dir.display());
        return Err(fail(&text));
    }
    // Opened before the unmount: the PID of an ended process may be reused.
    let process = server.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
    let was_shut_down = server.is_some() && attribute(&dir, SHUTDOWN_ATTRIBUTE).is_some();
    // After the unmount, the server process has no way to report a failed write; here the failure is still
    // visible.
    let synced = if server.is_some() { sync(&dir) } else { Ok(()) };
    unmount_patiently(&dir, &entry, args.lazy).map_err(|text| fail(&text))?;
    let is_elsewhere = mounts().unwrap_or_default().iter().any(|other| other.device == entry.device);
    if let Some(process) = process.filter(|_| !is_elsewhere) {
        wait_for(&process, &dir, &entry)?;
    }
    match synced {
        Err(_) if was_shut_down && args.as_helper => {
            note!("{} was shut down before: what had not been synced is lost", dir.display());
            Ok(())
        }
        Err(error) => Err(fail(&format_args!(
            "{} is unmounted, but changes could not be written: {error}; run `extant check` on the image",
            dir.display()
        ))),
        Ok(()) => Ok(()),
    }
}

/// Unmounts. While the mount is busy, searches for its users, and retries for a moment.
pub(super) fn unmount_patiently(dir: &Path, entry: &MountEntry, lazy: bool) -> Result<(), String> {
    let begun = Instant::now();
    let mut pause = Duration::from_millis(5);
    loop {
        let fault = match unmount(dir, lazy) {
            Ok(()) => return Ok(()),
            Err(fault) => fault,
        };
        if !matches!(fault, UnmountFault::Busy { .. }) {
            return Err(fault.to_string());
        }
        let users = holders::users(entry);
        let waited = begun.elapsed();
        if waited > BUSY || waited > BUSY_BY && !users.is_empty() {
            return Err(match &users[..] {
                [] => fault.to_string(),
                users => format!(
                    "{} is in use: {}; end that, or unmount lazily with -l",
                    dir.display(),
                    users.join(", ")
                ),
            });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(200));
    }
}

/// Waits until the server has written the changes home and ended. Fails if another mount namespace holds the
/// mount.
fn wait_for(process: &OwnedFd, dir: &Path, entry: &MountEntry) -> Result<(), MountError> {
    let connection = PathBuf::from(format!("/sys/fs/fuse/connections/{}", entry.device.1));
    let sees_connections = mounts().unwrap_or_default().iter().any(|mount| mount.fs_type == "fusectl");
    let begun = Instant::now();
    let mut next_word = WORD;
    while !ends_in(process, LOOK) {
        let waited = begun.elapsed();
        let may_be_held = !sees_connections || connection.exists();
        if may_be_held && waited > HELD {
            let holders = holders::elsewhere(entry.device);
            if !holders.is_empty() || sees_connections && waited > HELD_BY_NOBODY {
                return Err(held(dir, &holders));
            }
        }
        if waited > next_word {
            next_word = waited + WORD * 3;
            note!(
                "{} is unmounted; its server still writes changes home, for {} s now",
                dir.display(),
                waited.as_secs()
            );
        }
    }
    Ok(())
}

/// Writes home all changes made through the mount, and reports the mount's other holders.
fn held(dir: &Path, holders: &[holders::Elsewhere]) -> MountError {
    let names: Vec<String> = holders.iter().map(holders::Elsewhere::says).collect();
    let by = match &names[..] {
        [] => "that no process in sight is in".to_owned(),
        names => format!("({})", names.join(", ")),
    };
    let written = match holders.iter().map(|holder| sync(&holder.reached())).find(Result::is_ok) {
        Some(_) => "what was written is in the image",
        None => "what was written is in the image, except for the last seconds",
    };
    let dir = dir.display();
    MountError::new(
        exit::BUSY,
        format!(
            "{dir} is unmounted here, but not in another mount namespace {by}: {written}, and its server goes on until \
             that ends or unmounts it"
        ),
    )
}

/// Makes all changes durable: extant's server does so for an fsync of the root. No effect on read-only
/// mounts.
pub(super) fn sync(dir: &Path) -> std::io::Result<()> {
    std::fs::File::open(dir)?.sync_all()
}

/// The absolute path without symbolic links, even if the server of the directory itself does not answer.
pub(super) fn absolute(dir: &Path) -> std::io::Result<PathBuf> {
    dir.canonicalize().or_else(|error| {
        let parent = dir.parent().map(|parent| if parent == Path::new("") { Path::new(".") } else { parent });
        match (parent, dir.file_name()) {
            (Some(parent), Some(name)) if error.kind() != std::io::ErrorKind::NotFound => {
                Ok(parent.canonicalize()?.join(name))
            }
            _ => Err(error),
        }
    })
}

/// Whether a directory is on a mount of extant.
pub(crate) fn is_ours(dir: &Path) -> bool {
    attribute(dir, SERVER_ATTRIBUTE).is_some()
}

/// The process that serves the mount; `None` if the mount does not report it.
pub(super) fn server_of(dir: &Path) -> Option<Pid> {
    Pid::from_raw(std::str::from_utf8(&attribute(dir, SERVER_ATTRIBUTE)?).ok()?.parse().ok()?)
}

pub(super) fn attribute(dir: &Path, name: &str) -> Option<Vec<u8>> {
    let mut text = [0; 20];
    let len = rustix::fs::getxattr(dir, OsStr::new(name), &mut text[..]).ok()?;
    text.get(..len).map(<[u8]>::to_vec)
}

/// Whether the process ends within this time.
pub(super) fn ends_in(process: &OwnedFd, time: Duration) -> bool {
    let end = Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok();
        let mut fds = [PollFd::new(process, PollFlags::IN)];
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}
