//! The server process: it opens the image, mounts it, serves until the unmount, and closes the image.

use std::io::Write;
use std::path::Path;
use std::process::exit as end_process;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use extant::resize::{ResizeFault, ResizeOptions, Size, Storage, resize};
use extant_device::Device;
use extant_device::mount_table::mounted_at;
use extant_fuse::{
    Channel, Errno, KernelCache, MountOptions, Mounted, Resized, Resizer, Serve, Server, Threads,
    UnmountFault, WritebackCache,
};
use extant_ondisk::{Superblock, superblock};
use extant_volume::{DefaultOptions, OpenFault, OpenOptions, Volume, WriteOptions};
use rustix::thread::{sched_getaffinity, sched_setaffinity};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::log::{Level, Log};
use super::options::MountFlags;
use super::unmounter::Unmounter;
use super::user_namespace::Kind;
use super::{MountArgs, MountError, READY, confined, umount};
use crate::exit;
use crate::imagearg::{ArgError, ImageArg, LockError, Transfers};
use crate::sandbox;
use crate::sizes::{human, parse_size};
use crate::voice::{note, say};

/// Minimum size of the cache, in bytes.
const CACHE_MIN: usize = 1 << 20;
/// The image has no readable file system; the same code as `inspect`'s.
const NOT_READABLE: u8 = 8;
/// How long the end by a signal waits for the kernel to write back the data of open files.
const WRITE_BACK_MAX: Duration = Duration::from_secs(10);
/// The only feature for which the kernel, too, mounts read-only.
const READ_ONLY_FEATURE: &str = "read-only";

/// Mounts and serves until the unmount. As a daemon, prints "ready" on standard output and leaves the
/// terminal.
pub(super) fn run(args: &MountArgs, flags: &MountFlags, is_daemon: bool) -> Result<(), MountError> {
    let target = |text: String| MountError::new(exit::TARGET, text);
    // Before the mount: from then on a signal must not end the process without an unmount.
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|error| target(format!("signals cannot be handled: {error}")))?;

    let name = Path::new(&args.image).display().to_string();
    let log = Arc::new(Log::open(&flags.log, name, is_daemon).map_err(target)?);
    record_panics(Arc::clone(&log));
    for note in &flags.notes {
        note!("{note}");
    }
    // Before anything is open: it stays outside of the sandbox.
    let unmounter = match sandbox::reason_against() {
        Some(_) if !flags.read_write => Unmounter::Direct,
        _ => Unmounter::start(&args.dir).map_err(|error| {
            let dir = args.dir.display();
            target(match error.kind() {
                std::io::ErrorKind::NotFound if !args.dir.exists() => {
                    format!("{dir}: there is no such directory; `mkdir -p {dir}` makes it")
                }
                _ => format!("{dir}: the process that unmounts cannot be started: {error}"),
            })
        })?,
    };
    let Opened { volume, resizer } = open(args, flags, &log)?;
    report_recovery(args, &volume, &log);
    let reporter = Arc::clone(&log);
    let server = Server::new(volume, Box::new(move |damage| reporter.damage(damage)))
        .with_collect(crate::allocator::collect);
    let server = match resizer {
        Some(resizer) => server.with_resizer(resizer),
        None => server,
    };
    // The use of the kernel's cache is tracked by open files.
    let is_buffered = flags.writeback_cache == WritebackCache::Always;
    let tracks_opens = flags.read_write && (!flags.no_track_opens || is_buffered);
    let server = if tracks_opens { server.with_opens() } else { server };
    let server = Arc::new(if flags.track_closes { server.with_closes() } else { server });
    let served = serve(args, flags, is_daemon, signals, (&server, &log, &Arc::new(unmounter)));
    // Changes are written even after a failure.
    let ended = served.and(close(args, &server));
    log.finish();
    match &ended {
        Ok(()) => log.record(Level::Info, "unmounted"),
        Err(error) => log.record(Level::Error, &error.text),
    }
    ended
}

/// Logs the panics of threads, too.
fn record_panics(log: Arc<Log>) {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        log.record(Level::Error, &format!("internal error: {panic}"));
        before(panic);
    }));
}

/// Closes the image; reports the loss if that fails.
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
    (server, log, unmounter): (&Arc<Server>, &Arc<Log>, &Arc<Unmounter>),
) -> Result<(), MountError> {
    let target = |text: String| MountError::new(exit::TARGET, text);
    let options = mount_options(args, flags, server.is_writable());
    look_below(&args.dir)?;
    let mut threads = Threads::default();
    threads.count = args.threads.map_or(threads.count, usize::from);
    let mounted = Mounted::new(Arc::clone(server), &args.dir, &options, threads)
        .map_err(|fault| target(format!("{}: {fault}", Path::new(&args.image).display())))?;
    let dir = mounted.dir().to_owned();

    let handle = signals.handle();
    let device = mounted_at(&dir).ok().flatten().map(|entry| entry.device);
    let watcher = {
        let (dir, server, log) = (dir.clone(), Arc::clone(server), Arc::clone(log));
        let (unmounter, cache) = (Arc::clone(unmounter), mounted.kernel_cache());
        let of_end = Arc::clone(&log);
        let end = move || match server.close() {
            Ok(()) => {
                of_end.record(Level::Info, "unmounted by a signal, though in use");
                end_process(0)
            }
            Err(fault) => {
                of_end.say(Level::Error, &format!("the last changes could not be written: {fault}"));
                end_process(exit::TARGET.into())
            }
        };
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                unmounter.watch(&dir, device);
                unmount_on_signal(signals, &dir, device, (&log, &unmounter, &cache), &end);
            })
            .map_err(|error| target(format!("cannot start a thread: {error}")))
    };
    let take_down = || unmounter.take_down(&dir, device);
    let watcher = watcher.inspect_err(|_| take_down())?;
    if flags.transport == Channel::Rings && !mounted.has_rings() {
        let why =
            "FUSE over io_uring is not available (as root: echo Y >/sys/module/fuse/parameters/enable_uring)";
        log.record(Level::Info, &format!("{why}; requests come through /dev/fuse"));
    }
    let way = if server.is_writable() { "read-write" } else { "read-only" };
    log.record(Level::Info, &format!("mounted on {}, {way}", dir.display()));
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null");
    confined::confine(args, flags, (threads.count, mounted.has_rings()), log).map_err(|why| {
        take_down();
        target(why)
    })?;
    if is_daemon {
        null.and_then(|null| leave_terminal(&null, device)).map_err(|error| {
            take_down();
            target(format!("cannot become a background process: {error}"))
        })?;
    } else {
        let mut stdout = std::io::stdout().lock();
        let _ = writeln!(
            stdout,
            "{} is mounted on {}, {way}; Ctrl-C or `extant umount {1}` ends it",
            Path::new(&args.image).display(),
            dir.display(),
        );
        let _ = stdout.flush();
    }
    let served = mounted.serve_only();
    unmounter.forget(&dir);
    handle.close();
    let _ = watcher.join();
    served.map_err(|error| {
        take_down();
        target(format!("the connection to the kernel failed: {error}"))
    })
}

/// Reports an existing mount on the directory.
fn look_below(dir: &Path) -> Result<(), MountError> {
    let dir = umount::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    let below = mounted_at(&dir).ok().flatten();
    let state = match &below {
        Some(below) if below.fs_type.starts_with("fuse") => rustix::fs::statvfs(&dir).map(drop),
        _ => Ok(()),
    };
    if state == Err(rustix::io::Errno::NOTCONN) {
        let dir = dir.display();
        let why = format!("{dir} is a mount whose server has ended; `extant umount {dir}` takes it away");
        return Err(MountError::new(exit::TARGET, why));
    }
    if let Some(below) = below {
        let (source, kind) = (Path::new(&below.source).display(), below.fs_type);
        note!(
            "{} is a mount of {source} ({kind}) already, which is covered until this one is unmounted",
            dir.display()
        );
    }
    Ok(())
}

/// As in mount(8): a write-protected image is mounted read-only, with a warning.
fn open(args: &MountArgs, flags: &MountFlags, log: &Arc<Log>) -> Result<Opened, MountError> {
    match open_as(args, flags, flags.read_write, log) {
        Err(error) if error.is_protected => {
            let text = format!("write-protected, mounted read-only: {}", error.text);
            say!("warning: {text}");
            log.record(Level::Warning, &text);
            open_as(args, flags, false, log)
        }
        opened => opened,
    }
}

/// A volume, and what changes its size, if it is open for writing.
struct Opened {
    volume: Volume,
    resizer: Option<Resizer>,
}

fn open_as(args: &MountArgs, flags: &MountFlags, write: bool, log: &Arc<Log>) -> Result<Opened, MountError> {
    let image = ImageArg::parse(&args.image)?;
    if let Some(path) = &image.inner_path {
        let text = format!(
            "a whole file system is mounted: leave :{} out, and look there below {}",
            path.display(),
            args.dir.display()
        );
        return Err(MountError::new(exit::USAGE_CODE, text));
    }
    let (device, storage) = match write {
        true => {
            let transfers = Transfers { io: flags.io, direct: flags.image_direct };
            let storage = image.open_to_resize(transfers)?;
            (storage.device(), Some(storage))
        }
        false => (open_device(&image, flags, false)?, None),
    };
    let asked = DefaultOptions::of_device(&*device);
    if let Some(why) = asked.refused.as_ref().filter(|_| write) {
        note!("{image}: {why}");
    }
    let cache = parse_size(&args.cache)
        .map_err(|text| MountError::new(exit::USAGE_CODE, format!("--cache: {text}")))?;
    crate::allocator::prepare(cache);
    let mut options = OpenOptions {
        waiting: Some(Arc::new(crate::waiting::say(image.to_string()))),
        no_recovery: flags.no_recovery,
        superblock: flags.backup,
        // 0 would select the default.
        cache_bytes: usize::try_from(cache).unwrap_or(usize::MAX).max(CACHE_MIN),
        write: WriteOptions {
            keeps_set_id: true,
            keep_reserve: true,
            flush: flags.flush,
            commit_interval: flags.commit,
            batching: flags.batching,
            extents: flags.extents,
            orphans: flags.orphans,
            ..flags.over(&asked)
        },
        ..OpenOptions::default()
    };
    if let Some(path) = &flags.journal_device {
        options.journal_device = Some(open_device(&ImageArg::parse(path.as_os_str())?, flags, write)?);
    }
    let opened = match write {
        true => Volume::open(device, &options),
        false => Volume::open_read_only(device, &options),
    };
    let resizer = storage.map(|storage| resizer(storage, options, Arc::clone(log)));
    opened.map(|volume| Opened { volume, resizer }).map_err(|fault| {
        let text = format!("{image}: {fault}");
        match fault {
            OpenFault::InUse(_) => MountError::new(exit::BUSY, text),
            OpenFault::Unwritable(features) if features == READ_ONLY_FEATURE => {
                MountError::protected(NOT_READABLE, text)
            }
            _ => MountError::new(NOT_READABLE, text),
        }
    })
}

/// Changes the size of the closed file system, and opens it again with the same options.
fn resizer(storage: Box<dyn Storage + Send + Sync>, options: OpenOptions, log: Arc<Log>) -> Resizer {
    let storage = Mutex::new(storage);
    let all = sched_getaffinity(None);
    Box::new(move |blocks| {
        // The threads of the volume inherit the CPUs of the calling thread, which may be bound to one.
        let own = sched_getaffinity(None);
        if let Ok(all) = &all {
            let _ = sched_setaffinity(None, all);
        }
        let mut storage = storage.lock().unwrap_or_else(PoisonError::into_inner);
        let resizing = ResizeOptions {
            journal_device: options.journal_device.clone(),
            is_mounted: true,
            ..ResizeOptions::default()
        };
        let log2 = log2_of_blocks(&*storage.device());
        let size = Size::Bytes(blocks.saturating_mul(1 << log2));
        let done = resize(&mut **storage, size, &resizing, &(), &AtomicBool::new(false));
        let done = done.map_err(|fault| {
            log.record(Level::Warning, &format!("not resized: {fault}"));
            Errno(match fault {
                ResizeFault::Plan(_) | ResizeFault::CannotShrink(_) => 22,
                ResizeFault::NotClean(_) | ResizeFault::Damaged(_) => 117,
                ResizeFault::Length { .. }
                | ResizeFault::DeviceTooSmall { .. }
                | ResizeFault::TooSmall { .. }
                | ResizeFault::TooFragmented { .. }
                | ResizeFault::NoSpace => 28,
                _ => 5,
            })
        });
        if let Ok(report) = &done {
            let (from, to) = (human(report.before.bytes()), human(report.after.bytes()));
            log.record(Level::Info, &format!("resized from {from} to {to}"));
        }
        let volume = Volume::open(storage.device(), &options);
        let volume = volume.map_err(|fault| format!("cannot be opened after a resize: {fault}"));
        if let Ok(own) = &own {
            let _ = sched_setaffinity(None, own);
        }
        Resized { done: done.map(drop), volume }
    })
}

/// The block size of the file system, as a power of two.
fn log2_of_blocks(device: &dyn Device) -> u32 {
    let mut bytes = [0; superblock::SIZE];
    let read = device.read_at(superblock::OFFSET, &mut bytes).ok();
    let sb = read.and_then(|()| Superblock::decode(&bytes).ok());
    sb.and_then(|sb| sb.block_size().ok()).map_or(12, |size| size.log2())
}

impl From<LockError> for MountError {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Arg(error) => error.into(),
            LockError::Unwritable(why) => Self::protected(exit::TARGET, why),
            LockError::Busy(why) => Self::new(exit::BUSY, why),
        }
    }
}

/// The image, opened for reading, or locked for writing.
fn open_device(image: &ImageArg, flags: &MountFlags, write: bool) -> Result<Arc<dyn Device>, MountError> {
    let transfers = Transfers { io: flags.io, direct: flags.image_direct };
    if !write {
        return Ok(image.open_shared_by(transfers)?);
    }
    Ok(image.open_locked_by(transfers)?)
}

impl From<ArgError> for MountError {
    fn from(error: ArgError) -> Self {
        let code = if matches!(error, ArgError::Usage(_)) { exit::USAGE_CODE } else { NOT_READABLE };
        Self::new(code, error)
    }
}

/// Reports a journal that needed recovery: the only property of an image that its user must know.
fn report_recovery(args: &MountArgs, volume: &Volume, log: &Log) {
    let recovery = volume.recovery();
    let image = Path::new(&args.image).display();
    if recovery.needed && recovery.blocks > 0 {
        let done = if volume.is_writable() {
            "its journal was replayed"
        } else {
            "shown as after the replay of its journal"
        };
        let stays = if volume.is_writable() { "" } else { ", which stays as it is" };
        let (transactions, blocks) = (recovery.transactions, recovery.blocks);
        let says = format!(
            "was not unmounted cleanly; {done} ({transactions} transactions, {blocks} blocks){stays}"
        );
        note!("{image} {says}");
        log.record(Level::Warning, &says);
    }
    for line in volume.note().into_iter().chain(volume.damage().iter().map(String::as_str)) {
        note!("{image}: {line}");
    }
    for problem in &recovery.problems {
        note!("{image}: journal: {problem}");
        log.record(Level::Warning, &format!("journal: {problem}"));
    }
}

fn mount_options(args: &MountArgs, flags: &MountFlags, is_writable: bool) -> MountOptions {
    // Readers of the mount table may have any working directory.
    let absolute = std::path::absolute(&args.image).map(Into::into);
    let fs_name = flags.fs_name.clone().or(absolute.ok()).unwrap_or_else(|| args.image.clone());
    let careful = MountOptions::new(fs_name);
    // Root of a user namespace is an ordinary user, to whose own image modes are no hindrance.
    let checks = careful.default_permissions && args.within != Some(Kind::Users);
    MountOptions {
        allow_other: flags.allow_other,
        // If other users have access, file modes must restrict it.
        default_permissions: checks || flags.default_permissions || flags.allow_other,
        subtype: flags.subtype.clone().unwrap_or_else(|| careful.subtype.clone()),
        read_only: !is_writable,
        dev: flags.dev,
        suid: flags.suid,
        exec: !flags.noexec,
        sync: flags.sync,
        no_symfollow: flags.no_symfollow,
        writeback_cache: flags.writeback_cache,
        transport: flags.transport,
        shown: flags.shown,
        ..careful
    }
}

/// Detaches from the terminal: changes to the root directory, creates a session, prints "ready", and
/// redirects the standard streams to /dev/null, so that no reader waits for output.
fn leave_terminal(null: &std::fs::File, device: Option<(u32, u32)>) -> std::io::Result<()> {
    std::env::set_current_dir("/")?;
    // Would fail for a process group leader, but this process is not one.
    rustix::process::setsid()?;
    let mut stdout = std::io::stdout().lock();
    // The pipe is closed if the first process was interrupted; the mount exists nevertheless.
    let device = device.map_or(String::new(), |(major, minor)| format!("{major}:{minor}"));
    let _ = writeln!(stdout, "{READY} {device}").and_then(|()| stdout.flush());
    rustix::stdio::dup2_stdin(null)?;
    rustix::stdio::dup2_stdout(null)?;
    rustix::stdio::dup2_stderr(null)?;
    Ok(())
}

/// Waits for signals until the handle is closed. A busy mount is unmounted lazily, and its users get errors:
/// `end` closes the image and ends the process. If the mount cannot be removed at all, `end` is called, too:
/// otherwise only SIGKILL could end the process, and unsynced data would be lost.
fn unmount_on_signal(
    mut signals: Signals,
    dir: &Path,
    device: Option<(u32, u32)>,
    (log, unmounter, cache): (&Log, &Unmounter, &KernelCache),
    end: &dyn Fn(),
) {
    for _signal in signals.forever() {
        // Another file system may have been mounted there after this mount was removed.
        let is_ours = match mounted_at(dir) {
            Ok(entry) => entry.map(|entry| entry.device) == device,
            Err(_) => true,
        };
        if !is_ours {
            end();
        }
        match unmounter.unmount(dir, device, false) {
            // The serving threads notice the unmount, and the main thread ends the process.
            Ok(()) => return,
            Err(UnmountFault::Busy { .. }) => {
                // Processes go on to use the mount. What they have written until now is kept.
                if !cache.write_back(WRITE_BACK_MAX) {
                    log.say(Level::Warning, "the kernel did not write back all data of open files");
                }
                if let Err(fault) = unmounter.unmount(dir, device, true) {
                    log.say(Level::Error, &fault.to_string());
                }
            }
            Err(fault) => log.say(Level::Error, &fault.to_string()),
        }
        end();
    }
}
