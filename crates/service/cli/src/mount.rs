//! `extant mount` and `extant umount`: mount an image into the file tree, without root and without a kernel
//! driver for it.
//!
//! Owns: options of the command line, the daemon, signals, waiting. Does **not** own: the mount itself and
//! answers to the kernel (see the crate `fuse`).
//!
//! ```text
//!  extant mount IMG DIR          the same program again, with a pipe as its standard output
//!    start it -----------------> open the image, mount, own session
//!    wait for the line <-------- "ready"
//!    ask DIR (statfs) ---------> answer, until it is unmounted or a signal comes
//!    exit 0                     close the image, exit 0
//! ```
//!
//! Invariants
//! 1. The command returns 0 only after the mount has answered. Any earlier failure is reported on standard
//!    error.
//! 2. A signal unmounts first. Unless the process is killed, all changes are written home before it ends; an
//!    exit code other than 0 means that they were not.

mod confined;
pub(crate) mod helpers;
mod holders;
mod log;
mod namespace;
mod options;
mod remount;
mod serve;
mod umount;
pub(crate) mod unmounter;
pub(crate) mod user_namespace;

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use clap::Args;
use extant_device::mount_table::{MountEntry, mounted_at};
use rustix::process::{Pid, PidfdFlags};

pub(crate) use umount::{UmountArgs, is_ours, umount};

use crate::exit;
use options::MountFlags;

/// Environment variable of the background process: the directory to which its arguments are relative.
const DAEMON: &str = "EXTANT_MOUNT_DAEMON";
/// The line that the background process prints when the directory is mounted, followed by the numbers of the
/// mount's device, as in `ready 0:45`.
const READY: &str = "ready";
/// How long a server that does not answer may take to end after the unmount.
const PATIENCE: Duration = Duration::from_secs(5);

/// What comes after the options of the command line.
fn mount_help() -> String {
    let options = options::help();
    format!(
        "Options after -o, separated by commas. Defaults come from the superblock (tune2fs -o, -e,
-E mount_opts=), then from the list below.
{options}
Other options of ext4(5) and mount(8) are accepted, unless they would show something else than the
whole file system. A note names those that have an effect with the kernel's driver only.

Examples:
  extant mount root.img /mnt && ls /mnt; extant umount /mnt
  extant mount disk.img#2 ~/mnt -f      (partition 2, until Ctrl-C)
  extant mount root.img /mnt -o rw && cp -a site/. /mnt/srv; extant umount /mnt
  sudo extant mount root.img /mnt -o allow_other
  extant mount --namespace root.img -- tar c . >root.tar

Exit codes: 0 the mount answers (with -f: it was unmounted); 1 it cannot be mounted, or (with -f) \
changes could not be written; 2 usage; 8 the image cannot be read, or with rw cannot be written \
(features, damage); 10 the image is in use. With --namespace that of the command; 126 it cannot be run; \
127 it is not there; 128+N signal N ended it."
    )
}

/// Mount an image through FUSE; no root is needed. Read-only, or with -o rw.
#[derive(Debug, Clone, Args)]
#[command(after_help = mount_help())]
pub(crate) struct MountArgs {
    /// The image: a file or block device, IMG#N for its partition N, IMG@OFFSET for a file system at OFFSET.
    #[arg(value_name = "IMG[#N|@OFFSET]")]
    image: OsString,
    /// The directory; with --namespace the command.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Arguments of the command of --namespace.
    #[arg(hide = true)]
    words: Vec<OsString>,
    /// Mount options, listed below.
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<OsString>,
    /// Mount read-write, as -o rw.
    #[arg(long)]
    rw: bool,
    /// Ignore unknown options, with a note.
    #[arg(short, long)]
    sloppy: bool,
    /// Stay in the foreground; end with Ctrl-C.
    #[arg(short, long)]
    foreground: bool,
    /// Server threads; default: one per core, from 2 to 8.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    /// Memory for the mount's own caches; the kernel's page cache is not counted.
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    cache: String,
    /// Run a command in namespaces of its own, with the image mounted there and nowhere else, and
    /// without fusermount3: extant mount --namespace IMG -- COMMAND ARGS... It starts in the mount,
    /// and $EXTANT_MOUNT names it. The image is closed when the command ends.
    #[arg(long, conflicts_with = "foreground")]
    namespace: bool,
    /// Where --namespace mounts; default: a temporary directory.
    #[arg(long, value_name = "DIR", requires = "namespace")]
    at: Option<PathBuf>,
    /// In the server of --namespace: the namespaces in which it runs.
    #[arg(skip)]
    within: Option<user_namespace::Kind>,
}

/// Why there is no mount, and the exit code.
#[derive(Debug)]
pub(crate) struct MountError {
    code: u8,
    text: String,
    /// The image may only be read.
    is_protected: bool,
}

impl MountError {
    fn new(code: u8, text: impl std::fmt::Display) -> Self {
        Self { code, text: text.to_string(), is_protected: false }
    }

    fn protected(code: u8, text: impl std::fmt::Display) -> Self {
        Self { is_protected: true, ..Self::new(code, text) }
    }
}

/// Runs `extant mount`.
pub(crate) fn mount(args: &MountArgs) -> ExitCode {
    // `--rw` comes first, as later options override earlier ones.
    let lists: Vec<_> =
        args.rw.then(|| "rw".into()).into_iter().chain(args.options.iter().cloned()).collect();
    if remount::is_asked(&lists) {
        return match remount::run(&args.dir, &lists) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => exit::fail(error.code, &error.text),
        };
    }
    let mut args = args.clone();
    if !args.namespace
        && let Some(word) = args.words.first()
    {
        let word = Path::new(word).display();
        let text = format!("mount: one argument too many: {word}; a command goes with --namespace");
        return exit::fail(exit::USAGE_CODE, &text);
    }
    if args.namespace
        && let Some((dir, kind)) = namespace::served()
    {
        (args.dir, args.within) = (dir, Some(kind));
    }
    let args = &args;
    let done = MountFlags::parse(&lists, args.sloppy)
        .map_err(|text| MountError::new(exit::USAGE_CODE, text))
        .and_then(|flags| {
            let is_daemon = std::env::var_os(DAEMON).is_some();
            if args.foreground || is_daemon {
                serve::run(args, &flags, is_daemon).map(|()| 0)
            } else if args.namespace {
                namespace::run(args)
            } else {
                start_server(&args.dir, &[]).map(|_server| 0)
            }
        });
    match done {
        Ok(code) => ExitCode::from(code),
        // The background process has already reported it.
        Err(error) if error.text.is_empty() => ExitCode::from(error.code),
        Err(error) => exit::fail(error.code, &error.text),
    }
}

/// Starts the program again as a background process, and waits until the directory answers.
fn start_server(dir: &Path, environment: &[(&str, OsString)]) -> Result<Child, MountError> {
    let fail = |text: String| MountError::new(exit::TARGET, text);
    let program = std::env::current_exe().ok().filter(|program| program.exists());
    let mut command = Command::new(program.as_deref().unwrap_or(Path::new("/proc/self/exe")));
    let relative_to = std::env::current_dir().unwrap_or_else(|_| "/".into());
    command.arg0("extant").args(std::env::args_os().skip(1)).env(DAEMON, relative_to);
    command.envs(environment.iter().cloned());
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let before = top_of(dir);
    let mut child =
        command.spawn().map_err(|error| fail(format!("cannot start a background process: {error}")))?;
    let mut said = String::new();
    if let Some(stdout) = child.stdout.take() {
        // The read returns when the process is ready, or when it ends.
        let _ = BufReader::new(stdout).read_line(&mut said);
    }
    let Some(device) = said.trim_end().strip_prefix(READY) else {
        let status =
            child.wait().map_err(|error| fail(format!("the background process got lost: {error}")))?;
        return Err(match status.code().and_then(|code| u8::try_from(code).ok()) {
            Some(code) if code != 0 => MountError::new(code, ""),
            _ => {
                // The process may have mounted before it ended.
                let new = top_of(dir).filter(|entry| Some(entry) != before.as_ref());
                if let Some(entry) = new.filter(|entry| entry.fs_type.starts_with("fuse")) {
                    let _ = extant_fuse::unmount(&entry.dir, true);
                }
                fail(format!("the background process ended early with {status}; nothing is mounted"))
            }
        });
    };
    // This call waits in the kernel until a thread answers, and fails if none is left.
    match rustix::fs::statvfs(dir) {
        Ok(_) => Ok(child),
        Err(error) => Err(fail(undo(dir, device.trim(), &mut child, error))),
    }
}

/// The topmost mount on a directory.
fn top_of(dir: &Path) -> Option<MountEntry> {
    mounted_at(&umount::absolute(dir).ok()?).ok().flatten()
}

/// Unmounts a directory that does not answer; returns the message about it.
fn undo(dir: &Path, device: &str, server: &mut Child, error: rustix::io::Errno) -> String {
    // Another mount may have covered it meanwhile, or it may be gone.
    let ours = top_of(dir).filter(|entry| device == format!("{}:{}", entry.device.0, entry.device.1));
    let state = match ours.map(|entry| extant_fuse::unmount(&entry.dir, true)) {
        None => "it is mounted no more".to_owned(),
        Some(Ok(())) => "it was unmounted again".to_owned(),
        Some(Err(fault)) => format!("and stays mounted: {fault}"),
    };
    let handle = rustix::process::pidfd_open(Pid::from_child(server), PidfdFlags::empty());
    let has_ended = handle.is_ok_and(|handle| umount::ends_in(&handle, PATIENCE));
    let ended = match has_ended.then(|| server.wait()) {
        Some(Ok(status)) => format!("its server ended with {status}"),
        _ => "its server still runs".to_owned(),
    };
    format!(
        "{} was mounted, but did not answer: {error}; {state}, {ended}; --foreground shows why",
        dir.display()
    )
}
