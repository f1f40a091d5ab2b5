//! `extant umount`: takes a mount of extant down and waits until nobody holds the image any more.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use device::mount_table::{TYPE, mounted_at};
use fuse::{SERVER_ATTRIBUTE, unmount};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags};

use crate::exit;
use crate::voice::say;

/// How long the server may take to end: it writes home what was changed.
const PATIENCE: Duration = Duration::from_secs(120);

const UMOUNT_HELP: &str = "\
Refuses what is not a mount of extant. Returns when the process that served it has ended, so the image is free then.

Exit codes: 0 unmounted; 1 not, or changes could not be written: the reason is said; 2 usage.";

/// Unmount what `extant mount` mounted.
#[derive(Debug, Args)]
#[command(after_help = UMOUNT_HELP)]
pub(crate) struct UmountArgs {
    /// The directory.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Take it out of the tree though it is in use; it ends when its last user does. Does not wait.
    #[arg(short, long)]
    lazy: bool,
}

/// Runs `extant umount`.
pub(crate) fn umount(args: &UmountArgs) -> ExitCode {
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => exit::fail(exit::TARGET, &text),
    }
}

fn run(args: &UmountArgs) -> Result<(), String> {
    let dir = absolute(&args.dir).map_err(|error| format!("{}: {error}", args.dir.display()))?;
    let entry = mounted_at(&dir).map_err(|error| format!("the table of mounts cannot be read: {error}"))?;
    let Some(entry) = entry else {
        return Err(format!(
            "nothing is mounted on {}; `findmnt -t {TYPE}` lists the mounts of extant",
            dir.display()
        ));
    };
    // A server that hangs must not keep a lazy unmount from working.
    let server = if args.lazy || !entry.fs_type.starts_with("fuse") { None } else { server_of(&dir) };
    if entry.fs_type != TYPE && server.is_none() {
        return Err(format!(
            "{} is a mount of type {}, not of extant; use umount(8) for it",
            dir.display(),
            entry.fs_type
        ));
    }
    // Held from before: the number of a process that has ended may be given to another one.
    let process = server.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
    // The process behind the mount has nobody to tell that writing fails; here it can still be told.
    let synced = if server.is_some() { sync(&dir) } else { Ok(()) };
    unmount(&dir, args.lazy).map_err(|fault| fault.to_string())?;
    if let Some(process) = process.filter(|process| !ends_in_time(process)) {
        drop(process);
        say!("note: unmounted, but the process that served {} still runs", dir.display());
    }
    synced.map_err(|error| {
        let dir = dir.display();
        format!("{dir} is unmounted, but changes could not be written: {error}; `extant check` tells the state of the image")
    })
}

/// Makes all changes durable: extant takes an fsync of the root for that. Nothing on mounts that are read-only.
fn sync(dir: &Path) -> std::io::Result<()> {
    std::fs::File::open(dir)?.sync_all()
}

/// Absolute and without symbolic links, also when nobody answers in the directory itself.
fn absolute(dir: &Path) -> std::io::Result<PathBuf> {
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

/// Which process serves the mount; `None` if it does not say so.
fn server_of(dir: &Path) -> Option<Pid> {
    let mut text = [0; 20];
    let len = rustix::fs::getxattr(dir, OsStr::new(SERVER_ATTRIBUTE), &mut text[..]).ok()?;
    Pid::from_raw(std::str::from_utf8(text.get(..len)?).ok()?.parse().ok()?)
}

fn ends_in_time(process: &OwnedFd) -> bool {
    let end = Instant::now() + PATIENCE;
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
