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

pub(crate) use umount::{UmountArgs, umount};

use crate::exit;
use options::MountFlags;

/// Environment variable of the background process: the directory to which its arguments are relative.
const DAEMON: &str = "EXTANT_MOUNT_DAEMON";
/// The line that the background process prints when the directory is mounted, followed by the numbers of the
/// mount's device, as in `ready 0:45`.
const READY: &str = "ready";
/// How long a server that does not answer may take to end after the unmount.
const PATIENCE: Duration = Duration::from_secs(5);

const MOUNT_HELP: &str = "\
Options after -o, separated by commas. Defaults come from the superblock (tune2fs -o, -e,
-E mount_opts=), then from the list below.

Common:
  ro                    read-only (default); no byte of the image changes
  rw                    read-write
  allow_other           let other users access the mount; ordinary users need user_allow_other in
                        /etc/fuse.conf
  default_permissions   the kernel checks modes, owners and ACLs (always on for root and with
                        allow_other)
  dev, suid, noexec     allow device nodes; honour set-id bits; run no programs. The defaults are
                        nodev, nosuid, exec
  nosymfollow           do not follow symbolic links
  grpid, nogrpid        new files get the group of their directory, or of the process (default);
                        also bsdgroups, sysvgroups
  uid=N, gid=N          show all files as those of this user, this group
  umask=M, fmask=M, dmask=M
                        show all, all but directories, directories without these permissions
  fsname=NAME           source in the mount table; default: the image
  subtype=NAME          type in the mount table after `fuse.`; default: extant
  log=FILE, log=syslog, log=none
                        where damage and errors are reported; default: standard error, in the
                        background journald or syslog
  remount               change ro, rw, dev, suid, noexec of the mount on DIR

Durability and damage:
  commit=SECONDS        longest time between two commits (default: 5), and how long data stays
                        dirty before it is written back (default: 30, also the most)
  sync                  each write is durable when it returns
  data=ordered          with nobuffered_iomap only: a commit waits until the data of newly
                        allocated blocks is written (default)
  data=writeback        with nobuffered_iomap only: a commit does not wait; after a crash files
                        may show the old content of blocks
  data=journal          write data through the journal
  noauto_da_alloc       do not write back data early that replaces older data by rename or
                        truncate
  errors=continue, errors=remount-ro, errors=panic
                        what to do when damage is found; default: as the superblock says
  noload, norecovery    ignore the journal (not with rw)
  backup=N, backup=auto
                        use the backup superblock in block N, or the first that is found (not with
                        rw)
  journal_dev=PATH      the external journal: a device or image

Performance:
  writeback_cache       the kernel buffers writes, so small writes cost less. When space runs out
                        a write may succeed and the next write, fsync or close fail
  notrack_opens         the kernel does not ask the server at open: faster. chattr +i and +a are
                        then enforced by write, write-back errors are reported once per
                        process, not per open file, and close starts no write-back unless
                        track_closes is given
  track_closes          close of a file that was truncated to 0 and rewritten waits until the new
                        data is written back
  discard               freed blocks become holes of the image file, or are discarded on a device
  image_direct          access the image with O_DIRECT, where it can be
  io=auto, io=calls, io=rings
                        submit batches by one call each or by io_uring; default: the faster one,
                        as measured
  transport=auto, transport=dev, transport=uring
                        how requests come from the kernel: through /dev/fuse, or by io_uring where
                        the fuse module's enable_uring is Y; default: as uring for rw, dev for ro

For measuring:
  nobuffered_iomap      write data block by block in 4 KiB pages, not by extents in large folios;
                        also nodelalloc
  flush=MODE            how threads that sync share flushes of the device: epoch (default), merge,
                        seed, empty-txn, none
  flush_delay=MODE      how long the first fsync waits for others with flush=seed: full (as long
                        as a flush takes), aged (until the last flush was that long ago;
                        default), none
  min_batch_time=US, max_batch_time=US
                        bounds of the time that a change of names in a chattr +S or +D directory
                        waits for others before it commits; default: 0 and 15000
  nobarrier             neither commits nor fsync flush: a power cut may destroy the file system
  es_policy=NAME        reclaim policy of the extent-status cache: es-chunk (default), or one of
                        `extant lab shrinker`
  orphans=MODE          how inodes to delete or truncate after a crash are recorded: file
                        (default), list-v3, list-v0; with none a crash leaks their blocks until
                        e2fsck

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
127 it is not there; 128+N signal N ended it.";

/// Mount an image through FUSE; no root is needed. Read-only, or with -o rw.
#[derive(Debug, Clone, Args)]
#[command(after_help = MOUNT_HELP)]
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
