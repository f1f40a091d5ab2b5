//! The process that stays: it opens the image, mounts, answers until the mount is gone, and closes the image.

use std::io::Write;
use std::path::Path;
use std::process::exit as end_process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use device::Device;
use device::mount_table::mounted_at;
use fuse::{MountOptions, Mounted, Server, Threads, UnmountFault, unmount};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use volume::{DefaultOptions, OpenFault, OpenOptions, Volume, WriteOptions};

use super::options::MountFlags;
use super::{MountArgs, MountError, READY};
use crate::exit;
use crate::imagearg::{ArgError, ImageArg, LockError, Transfers};
use crate::sizes::parse_size;
use crate::voice::say;

/// Damages that are said one by one; a badly damaged image would fill the screen or a log.
const DAMAGES_SAID: u32 = 100;
/// Less memory than this would be no cache.
const CACHE_MIN: usize = 1 << 20;
/// The image is no file system that can be read; the same code as `inspect`'s.
const NOT_READABLE: u8 = 8;

/// Mounts and serves until unmounted. As a daemon, says "ready" on standard output and leaves the terminal.
pub(super) fn run(args: &MountArgs, flags: &MountFlags, is_daemon: bool) -> Result<(), MountError> {
    let target = |text: String| MountError::new(exit::TARGET, text);
    // Before mounting: from then on a signal must not end the process without unmounting.
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|error| target(format!("signals cannot be handled: {error}")))?;

    let volume = open(args, flags)?;
    tell_recovery(args, &volume);
    let server = Server::new(volume, Box::new(reporter(args)));
    let server = if flags.track_opens { server.with_opens() } else { server };
    let server = Arc::new(if flags.track_closes { server.with_closes() } else { server });
    let served = serve(args, flags, is_daemon, signals, &server);
    // Whatever happened: what was changed is written.
    let closed = close(args, &server);
    served.and(closed)
}

/// Closes the image; what is lost if that fails, is said.
fn close(args: &MountArgs, server: &Server) -> Result<(), MountError> {
    server.close().map_err(|fault| {
        let image = Path::new(&args.image).display();
        MountError::new(exit::TARGET, format!("{image}: the last changes could not be written: {fault}"))
    })
}

fn serve(
    args: &MountArgs,
    flags: &MountFlags,
    is_daemon: bool,
    signals: Signals,
    server: &Arc<Server>,
) -> Result<(), MountError> {
    let target = |text: String| MountError::new(exit::TARGET, text);
    let options = mount_options(args, flags);
    let mut threads = Threads::default();
    threads.count = args.threads.map_or(threads.count, usize::from);
    let mounted = Mounted::new(Arc::clone(server), &args.dir, &options, threads)
        .map_err(|fault| target(format!("{}: {fault}", Path::new(&args.image).display())))?;
    let dir = mounted.dir().to_owned();

    let handle = signals.handle();
    let device = mounted_at(&dir).ok().flatten().map(|entry| entry.device);
    let watcher = {
        let (dir, server, image) = (dir.clone(), Arc::clone(server), args.image.clone());
        let end = move || match server.close() {
            Ok(()) => end_process(0),
            Err(fault) => {
                let image = Path::new(&image).display();
                say!("{image}: the last changes could not be written: {fault}");
                end_process(exit::TARGET.into())
            }
        };
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || unmount_on_signal(signals, &dir, device, &end))
            .map_err(|error| target(format!("cannot start a thread: {error}")))
    };
    let watcher = watcher.inspect_err(|_| {
        let _ = unmount(&dir, true);
    })?;
    if is_daemon {
        leave_terminal().map_err(|error| {
            let _ = unmount(&dir, true);
            target(format!("cannot become a background process: {error}"))
        })?;
    } else {
        let mut stdout = std::io::stdout().lock();
        let _ = writeln!(
            stdout,
            "{} is mounted on {}, {}; Ctrl-C or `extant umount {1}` ends it",
            Path::new(&args.image).display(),
            dir.display(),
            if flags.read_write { "read-write" } else { "read-only" }
        );
        let _ = stdout.flush();
    }
    let served = mounted.serve();
    handle.close();
    let _ = watcher.join();
    served.map_err(|error| {
        let _ = unmount(&dir, true);
        target(format!("the connection to the kernel failed: {error}"))
    })
}

fn open(args: &MountArgs, flags: &MountFlags) -> Result<Volume, MountError> {
    let image = ImageArg::parse(&args.image)?;
    if let Some(path) = &image.inner_path {
        let text = format!(
            "a whole file system is mounted: leave :{} out, and look there below {}",
            path.display(),
            args.dir.display()
        );
        return Err(MountError::new(exit::USAGE_CODE, text));
    }
    let device = open_device(&image, flags)?;
    let asked = DefaultOptions::of_device(&*device);
    if let Some(why) = asked.refused.as_ref().filter(|_| flags.read_write) {
        say!("note: {image}: {why}");
    }
    let cache = parse_size(&args.cache)
        .map_err(|text| MountError::new(exit::USAGE_CODE, format!("--cache: {text}")))?;
    let mut options = OpenOptions {
        waiting: Some(Arc::new(crate::waiting::say(image.to_string()))),
        no_recovery: flags.no_recovery,
        // 0 would stand for the default.
        cache_bytes: usize::try_from(cache).unwrap_or(usize::MAX).max(CACHE_MIN),
        write: WriteOptions {
            keeps_set_id: true,
            // The kernel keeps them then, and does not hear of ours.
            keeps_times: flags.writeback_cache,
            keep_reserve: true,
            flush: flags.flush,
            batching: flags.batching,
            extents: flags.extents,
            orphans: flags.orphans,
            ..flags.over(&asked)
        },
        ..OpenOptions::default()
    };
    if let Some(path) = &flags.journal_device {
        options.journal_device = Some(open_device(&ImageArg::parse(path.as_os_str())?, flags)?);
    }
    let opened = match flags.read_write {
        true => Volume::open(device, &options),
        false => Volume::open_read_only(device, &options),
    };
    opened.map_err(|fault| {
        let code = if matches!(fault, OpenFault::InUse(_)) { exit::BUSY } else { NOT_READABLE };
        MountError::new(code, format!("{image}: {fault}"))
    })
}

/// The image, for reading, or to be changed by nobody else.
fn open_device(image: &ImageArg, flags: &MountFlags) -> Result<Arc<dyn Device>, MountError> {
    let transfers = Transfers { io: flags.io, direct: flags.image_direct };
    if !flags.read_write {
        return Ok(image.open_shared_by(transfers)?);
    }
    image.open_locked_by(transfers).map_err(|error| match error {
        LockError::Arg(error) => error.into(),
        LockError::Unwritable(why) => MountError::new(exit::TARGET, why),
        LockError::Busy(why) => MountError::new(exit::BUSY, why),
    })
}

impl From<ArgError> for MountError {
    fn from(error: ArgError) -> Self {
        let code = if matches!(error, ArgError::Usage(_)) { exit::USAGE_CODE } else { NOT_READABLE };
        Self::new(code, error)
    }
}

/// A journal that waits is the one thing about an image that its user should know.
fn tell_recovery(args: &MountArgs, volume: &Volume) {
    let recovery = volume.recovery();
    let image = Path::new(&args.image).display();
    if recovery.needed && recovery.blocks > 0 {
        let done = if volume.is_writable() {
            "its journal was replayed"
        } else {
            "shown as after the replay of its journal"
        };
        let stays = if volume.is_writable() { "" } else { ", which stays as it is" };
        say!(
            "note: {image} was not unmounted cleanly; {done} ({} transactions, {} blocks){stays}",
            recovery.transactions,
            recovery.blocks
        );
    }
    for problem in &recovery.problems {
        say!("note: {image}: journal: {problem}");
    }
}

fn mount_options(args: &MountArgs, flags: &MountFlags) -> MountOptions {
    // The table of mounts is read from anywhere.
    let absolute = std::path::absolute(&args.image).map(Into::into);
    let fs_name = flags.fs_name.clone().or(absolute.ok()).unwrap_or_else(|| args.image.clone());
    let careful = MountOptions::new(fs_name);
    MountOptions {
        allow_other: flags.allow_other,
        // Who lets others look lets them see what modes let them see.
        default_permissions: careful.default_permissions || flags.default_permissions || flags.allow_other,
        subtype: flags.subtype.clone().unwrap_or_else(|| careful.subtype.clone()),
        read_only: !flags.read_write,
        dev: flags.dev,
        suid: flags.suid,
        exec: !flags.noexec,
        writeback_cache: flags.writeback_cache,
        ..careful
    }
}

/// Says damage on standard error, which a daemon has given away.
fn reporter(args: &MountArgs) -> impl Fn(&str) + Send + Sync + 'static {
    let image = Path::new(&args.image).display().to_string();
    let said = AtomicU32::new(0);
    move |damage| match said.fetch_add(1, Ordering::Relaxed) {
        0..DAMAGES_SAID => say!("{image}: {damage}"),
        DAMAGES_SAID => {
            say!("{image}: more of this is not shown; run `extant check` on the image")
        }
        _ => {}
    }
}

/// Own session, no directory in use, nobody waiting on our output; then "ready".
fn leave_terminal() -> std::io::Result<()> {
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    std::env::set_current_dir("/")?;
    // Refused to a leader of a process group, which nobody made us.
    rustix::process::setsid()?;
    let mut stdout = std::io::stdout().lock();
    // Nobody listens if the first process was interrupted: the mount is there all the same.
    let _ = stdout.write_all(READY).and_then(|()| stdout.flush());
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// Waits for signals until the handle is closed. A mount that is in use is taken out of the tree, and its users get errors:
/// `end` closes the image and ends the process.
fn unmount_on_signal(mut signals: Signals, dir: &Path, device: Option<(u32, u32)>, end: &dyn Fn()) {
    for _signal in signals.forever() {
        // Something else may have been mounted there after ours was gone.
        let is_ours = match mounted_at(dir) {
            Ok(entry) => entry.map(|entry| entry.device) == device,
            Err(_) => true,
        };
        if !is_ours {
            end();
        }
        match unmount(dir, false) {
            // The threads notice; the main one ends the process.
            Ok(()) => return,
            Err(UnmountFault::Busy { .. }) => match unmount(dir, true) {
                Ok(()) => end(),
                Err(fault) => say!("{fault}"),
            },
            Err(fault) => say!("{fault}"),
        }
    }
}
