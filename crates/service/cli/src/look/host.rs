//! Copies trees of an image to the host: directories, sparse files, links, devices, and their metadata.
//!
//! Owns: creating names below a directory of the host, metadata, hard links, and the worker threads. Does
//! **not** own: reading (see `extant::walk`), the choice of source and destination (see the commands).
//!
//! ```text
//!  walk contents -> this thread: directories, in order -> queue of 256 -> workers: files, links, devices
//!  the last user of a directory drops it -> its owner, attributes, mode, times
//! ```
//!
//! Invariants
//! 1. INV-A4: nothing outside the destination is touched: every name is created in a directory that is held
//!    open, no symbolic link is followed, and a name with a slash is refused, regardless of what the image
//!    contains.
//! 2. A file has mode 0600 until it is complete and has its owner, so that no other user can run a set-uid
//!    program from the image, or read a private file.
//! 3. A directory gets its times after all its contents were created.
//! 4. A file that cannot be created is reported, and the copy continues. A full disk ends the copy.

mod existing;

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use extant::walk::{Data, Loaded};
use extant::{Attribute, Fault, FileSystem, FileType, Stat, Timestamp};
use extant_base::Ino;
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

pub(crate) use existing::Existing;
use existing::as_stored;

use super::leave_out::LeaveOut;
use super::outside::Outside;
use super::progress::Progress;
use super::{ExistingFile, Session, below, code_of, shown};
use crate::exit;
use crate::inspect::format::{count, escape};
use crate::voice::list;

/// Bytes per read of a large file.
const PIECE: usize = 1 << 20;
/// Jobs that may wait for a worker.
const QUEUE: usize = 256;

/// What the copy keeps, and how.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Choices {
    /// Keep mode, times and attributes, and owners if this process may change them. Otherwise the umask
    /// applies to modes.
    pub(crate) metadata: bool,
    /// Keep holes.
    pub(crate) sparse: bool,
    /// What happens to files that exist already.
    pub(crate) existing: Existing,
    /// Print each file that was copied.
    pub(crate) list: bool,
}

/// What the destination of a copy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DestinationKind {
    /// A directory to copy into, if there is one; otherwise a new name.
    Either,
    /// A directory to copy into: `-t`.
    Directory,
    /// A new name: `-T`.
    Name,
}

/// Why `-t` is refused.
pub(crate) const NO_DIRECTORY: &str = "is no directory; -t copies into a directory that exists";

/// Destination of the root of a tree.
pub(crate) enum CopyTo {
    /// A name in a directory.
    Name(OwnedFd, Vec<u8>),
    /// The directory itself: it receives the contents of the tree's root.
    Into(OwnedFd),
}

/// A copy to the host. It may copy several trees.
pub(crate) struct Host {
    shared: Arc<Shared>,
    leave_out: LeaveOut,
}

/// State shared by the threads of a copy.
struct Shared {
    choices: Choices,
    is_root: bool,
    umask: u32,
    progress: Progress,
    stop: AtomicBool,
    problems: Mutex<Problems>,
}

/// Problems so far.
#[derive(Default)]
struct Problems {
    codes: Vec<u8>,
    /// Attributes that the system refused, by namespace and reason.
    attributes: BTreeMap<(String, String), u64>,
}

/// A directory of the host that is being filled. It gets its metadata when its last user drops it.
struct Dir {
    fd: OwnedFd,
    /// `None`: the directory keeps its present metadata.
    metadata: Option<Metadata>,
    shown: String,
    shared: Arc<Shared>,
}

struct Metadata {
    stat: Stat,
    attributes: Vec<Attribute>,
}

/// A name that a worker creates.
struct Job {
    dir: Arc<Dir>,
    name: Vec<u8>,
    shown: String,
    /// The path on the host, for the list.
    to: Vec<u8>,
    loaded: Loaded,
    link: Link,
}

/// Whether a file has several names, and whether this is the first one.
enum Link {
    Only,
    First(Arc<FirstName>),
    Further(Arc<FirstName>),
}

/// Whether the first name of a file was created.
struct FirstName {
    /// Path on the host, relative to the root of the tree.
    path: Vec<u8>,
    created: Mutex<Option<bool>>,
    known: Condvar,
}

/// Reports the result on drop, so that no thread waits for a name whose worker panicked.
struct FirstNameGuard<'a> {
    first: &'a FirstName,
    created: bool,
}

impl Drop for FirstNameGuard<'_> {
    fn drop(&mut self) {
        self.first.set_created(self.created);
    }
}

impl FirstName {
    fn new(path: Vec<u8>) -> Arc<Self> {
        Arc::new(Self { path, created: Mutex::default(), known: Condvar::new() })
    }

    fn set_created(&self, created: bool) {
        *self.created.lock().unwrap_or_else(PoisonError::into_inner) = Some(created);
        self.known.notify_all();
    }

    /// Waits for the result. Jobs start in the order of the walk, so the job that reports it is running or
    /// done.
    fn wait(&self) -> bool {
        let mut created = self.created.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match *created {
                Some(created) => return created,
                None => created = self.known.wait(created).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

impl Host {
    pub(crate) fn new(choices: Choices, progress: Progress) -> Self {
        // Without a umask, creation uses exactly the requested mode; `mode` applies the umask where it is
        // needed.
        let umask = rustix::process::umask(Mode::empty());
        raise_file_limit();
        let shared = Shared {
            choices,
            is_root: rustix::process::geteuid().is_root(),
            umask: umask.as_raw_mode(),
            progress,
            stop: AtomicBool::new(false),
            problems: Mutex::default(),
        };
        Self { shared: Arc::new(shared), leave_out: LeaveOut::default() }
    }

    /// Omits the parts that the options name from all copies.
    pub(crate) fn leaving_out(self, leave_out: &LeaveOut) -> Self {
        Self { leave_out: leave_out.clone(), ..self }
    }

    /// Copies a target and everything below it. Problems are reported, and kept for [`finish`](Self::finish).
    /// `to`: the path of `place`, for the list.
    pub(crate) fn copy(&self, session: &mut Session, target: &ExistingFile, place: CopyTo, to: &[u8]) {
        let threads = std::thread::available_parallelism().map_or(2, |n| n.get()).clamp(1, 8);
        let (send, receive) = mpsc::sync_channel::<Job>(QUEUE);
        let receive = Mutex::new(receive);
        let (root_dir, root_name) = match &place {
            CopyTo::Name(fd, name) => (fd.try_clone(), name.clone()),
            CopyTo::Into(fd) => (fd.try_clone(), Vec::new()),
        };
        let root_dir = match root_dir {
            Ok(fd) => fd,
            Err(error) => return session.problem(exit::TARGET, format_args!("{}: {error}", target.shown())),
        };
        std::thread::scope(|scope| {
            let worker =
                || Worker { shared: &self.shared, fs: &target.fs, root: &root_dir, root_name: &root_name };
            let mut started = 0;
            for _ in 0..threads {
                let (mut worker, receive) = (worker(), &receive);
                let spawned = std::thread::Builder::new()
                    .name("extant-copy".to_owned())
                    .spawn_scoped(scope, move || worker.work(receive));
                started += usize::from(spawned.is_ok());
            }
            if started == 0 {
                session.problem(exit::TARGET, "no thread can be started");
                return;
            }
            self.walk(session, target, &place, to, &send);
            drop(send);
        });
    }

    fn walk(
        &self,
        session: &mut Session,
        target: &ExistingFile,
        place: &CopyTo,
        root_to: &[u8],
        send: &mpsc::SyncSender<Job>,
    ) {
        let mut links: HashMap<Ino, Arc<FirstName>> = HashMap::new();
        // The directories from the root of the walk to its current position; `None` for one that could not be
        // created.
        let mut stack: Vec<Option<Arc<Dir>>> = Vec::new();
        let mut outside = Outside::default();
        for loaded in target.fs.walk_inode(Arc::clone(&target.inode)).contents() {
            if self.shared.stop.load(Ordering::Relaxed) {
                break;
            }
            let mut loaded = match loaded {
                Ok(loaded) => loaded,
                Err(fault) => {
                    session.walk_fault(target, &fault);
                    continue;
                }
            };
            if !self.leave_out.apply(&mut loaded) {
                continue;
            }
            let depth = loaded.entry.depth();
            let path = below(&target.path, loaded.entry.path());
            let shown = shown(&target.image, &path);
            stack.truncate(depth);
            let path = outside.next(&loaded);
            let to = below(root_to, &path.path);
            let (dir, name) = match (depth, place) {
                (0, CopyTo::Name(fd, name)) => match fd.try_clone() {
                    Ok(fd) => {
                        let shared = Arc::clone(&self.shared);
                        let outer = Dir { fd, metadata: None, shown: shown.clone(), shared };
                        (Some(Arc::new(outer)), name.clone())
                    }
                    Err(error) => {
                        self.shared.problem(exit::TARGET, &shown, &error);
                        return;
                    }
                },
                (0, CopyTo::Into(fd)) => {
                    stack.push(self.fill(fd, &shown, loaded).map(Arc::new));
                    continue;
                }
                _ => (stack.last().cloned().flatten(), path.name().to_vec()),
            };
            let is_dir = loaded.stat.kind == FileType::Directory;
            let Some(dir) = dir else {
                // The failure of its directory was already reported.
                if is_dir {
                    stack.push(None);
                }
                continue;
            };
            if name.contains(&b'/') || name.contains(&0) {
                self.shared.problem(exit::DAMAGED, &shown, &"a name that no file can have; left out");
                if is_dir {
                    stack.push(None);
                }
                continue;
            }
            if is_dir {
                let made = self.make_dir(&dir, &name, &shown, &to, loaded);
                stack.push(made.map(Arc::new));
                continue;
            }
            if self.stays(&dir, &name, &loaded.stat) {
                continue;
            }
            let link = match links.get(&loaded.stat.ino).filter(|_| loaded.link_of.is_some()) {
                Some(first) => Link::Further(Arc::clone(first)),
                None if loaded.stat.links < 2 => Link::Only,
                None => {
                    self.make_first(target, &mut loaded);
                    let first = FirstName::new(path.path);
                    links.insert(loaded.stat.ino, Arc::clone(&first));
                    Link::First(first)
                }
            };
            if send.send(Job { dir, name, shown, to, loaded, link }).is_err() {
                return; // All workers have ended.
            }
        }
    }

    /// Whether the host has a file of the name that the copy leaves as it is. A file that appears later is
    /// never replaced with [`Existing::Keep`], but is an error.
    fn stays(&self, dir: &Dir, name: &[u8], stat: &Stat) -> bool {
        let existing = self.shared.choices.existing;
        if !matches!(existing, Existing::Keep | Existing::Update) {
            return false;
        }
        let Ok(there) = rustix::fs::statat(&dir.fd, name, AtFlags::SYMLINK_NOFOLLOW) else { return false };
        let is_dir = rustix::fs::FileType::from_raw_mode(there.st_mode) == rustix::fs::FileType::Directory;
        let time =
            |seconds: i64, nanos| Timestamp { seconds, nanos: u32::try_from(nanos).unwrap_or_default() };
        let [atime, mtime, ctime] = [
            time(there.st_atime, there.st_atime_nsec),
            time(there.st_mtime, there.st_mtime_nsec),
            time(there.st_ctime, there.st_ctime_nsec),
        ];
        !is_dir && existing.stays(as_stored(stat.mtime, [atime, mtime, ctime]), mtime)
    }

    /// Prepares a further name to create the file itself, because the file's first name is not copied.
    fn make_first(&self, target: &ExistingFile, loaded: &mut Loaded) {
        if loaded.link_of.take().is_none() {
            return;
        }
        loaded.xattrs = target.fs.volume().attributes().xattrs(&loaded.inode);
        self.leave_out.apply(loaded);
        if loaded.stat.kind == FileType::Regular {
            loaded.data = Data::Large;
        }
    }

    /// An existing directory, to be filled.
    fn fill(&self, fd: &OwnedFd, shown: &str, loaded: Loaded) -> Option<Dir> {
        match fd.try_clone() {
            Ok(fd) => Some(self.dir(fd, shown, loaded)),
            Err(error) => {
                self.shared.problem(exit::TARGET, shown, &error);
                None
            }
        }
    }

    fn dir(&self, fd: OwnedFd, shown: &str, loaded: Loaded) -> Dir {
        let attributes = self.shared.attributes(shown, loaded.xattrs);
        let metadata = Some(Metadata { stat: loaded.stat, attributes });
        Dir { fd, metadata, shown: shown.to_owned(), shared: Arc::clone(&self.shared) }
    }

    fn make_dir(&self, parent: &Dir, name: &[u8], shown: &str, to: &[u8], loaded: Loaded) -> Option<Dir> {
        self.shared.progress.file();
        let made = rustix::fs::mkdirat(&parent.fd, name, Mode::RWXU);
        let existed = made == Err(Errno::EXIST) && self.shared.choices.existing != Existing::Refuse;
        if made.is_ok() {
            self.shared.list(shown, to);
        }
        let opened = match made {
            Err(error) if !existed => Err(error),
            _ => open_dir(parent.fd.as_fd(), name),
        };
        match opened {
            // An existing directory keeps its metadata, unless the copy keeps the image's metadata.
            Ok(fd) if existed && !self.shared.choices.metadata => {
                Some(Dir { fd, metadata: None, shown: shown.to_owned(), shared: Arc::clone(&self.shared) })
            }
            Ok(fd) => Some(self.dir(fd, shown, loaded)),
            Err(Errno::NOTDIR | Errno::LOOP) => {
                let why =
                    "there is something else than a directory under this name; it and all below are left out";
                self.shared.problem(exit::TARGET, shown, &why);
                None
            }
            Err(error) => {
                self.shared.refused(shown, "cannot make the directory", error.into());
                None
            }
        }
    }

    /// Passes the problems to the session. Does not wait: [`copy`](Self::copy) already did.
    pub(crate) fn finish(self, session: &mut Session) {
        let problems =
            std::mem::take(&mut *self.shared.problems.lock().unwrap_or_else(PoisonError::into_inner));
        for code in problems.codes {
            session.remember(code);
        }
        for ((namespace, why), times) in problems.attributes {
            let attributes = count(times, "attribute");
            self.shared
                .progress
                .line(&format!("extant: warning: {attributes} {namespace}* could not be set: {why}"));
        }
    }
}

impl Shared {
    /// Prints a file that was copied, if the copy lists them.
    fn list(&self, shown: &str, to: &[u8]) {
        if self.choices.list {
            self.progress.suspend(|| list!("{shown} -> {}", escape(to)));
        }
    }

    fn problem(&self, code: u8, shown: &str, why: &dyn std::fmt::Display) {
        self.progress.line(&format!("extant: {shown}: {why}"));
        let mut problems = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        if !problems.codes.contains(&code) {
            problems.codes.push(code);
        }
    }

    /// Reports an operation that the host refused. A full disk stops the copy.
    fn refused(&self, shown: &str, what: &str, error: io::Error) {
        let full = matches!(error.raw_os_error(), Some(28 | 122)); // ENOSPC, EDQUOT
        if full && self.stop.swap(true, Ordering::Relaxed) {
            return; // Reported once.
        }
        let code = if full { exit::NO_SPACE } else { exit::TARGET };
        self.problem(code, shown, &format_args!("{what}: {error}"));
    }

    fn attributes(&self, shown: &str, attributes: Result<Vec<Attribute>, Fault>) -> Vec<Attribute> {
        attributes.unwrap_or_else(|fault| {
            self.problem(code_of(&fault), shown, &format_args!("attributes: {fault}"));
            Vec::new()
        })
    }

    /// Reports a refused attribute. It is only a warning: many systems lack some namespaces.
    fn attribute_refused(&self, shown: &str, name: &[u8], error: Errno) {
        match error {
            Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP => {
                let end = name.iter().position(|byte| *byte == b'.').map_or(name.len(), |dot| dot + 1);
                let namespace = escape(&name[..end]);
                let why = io::Error::from(error).to_string();
                let mut problems = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
                *problems.attributes.entry((namespace, why)).or_default() += 1;
            }
            error => {
                let what = format!("cannot set the attribute {}", escape(name));
                let why = io::Error::from(error);
                // Lack of space may concern only this inode's attributes: the next file shows whether the
                // disk is full.
                self.problem(exit::TARGET, shown, &format_args!("{what}: {why}"));
            }
        }
    }

    /// The mode to set. `owned`: the file has its final owner, or the owner is not set at all.
    fn mode(&self, stat: &Stat, owned: bool) -> Mode {
        let mut mode = u32::from(stat.mode & 0o7777);
        if !self.choices.metadata {
            mode &= 0o777 & !self.umask;
        }
        // If the owner could not be set, set-id bits would grant this user's rights instead.
        if !owned {
            mode &= !0o6000;
        }
        let is_file = stat.kind != FileType::Directory;
        if is_file && !self.is_root && stat.uid != rustix::process::geteuid().as_raw() {
            mode &= !0o4000;
        }
        if is_file && !self.is_root && stat.gid != rustix::process::getegid().as_raw() {
            mode &= !0o2000;
        }
        Mode::from_raw_mode(mode)
    }

    /// The attributes to set. Without the right owner, capabilities are omitted, as set-uid bits are.
    fn allowed_attributes<'a>(
        &self,
        stat: &Stat,
        attributes: &'a [Attribute],
        owned: bool,
    ) -> impl Iterator<Item = &'a Attribute> + use<'a> {
        let own = owned && (self.is_root || stat.uid == rustix::process::geteuid().as_raw());
        attributes.iter().filter(move |attribute| own || attribute.name != b"security.capability")
    }

    /// Sets owner, attributes, mode and times of an open file or directory, in this order: a change of owner
    /// clears set-uid bits and capabilities, and an ACL changes the mode.
    fn set_metadata(&self, fd: BorrowedFd<'_>, shown: &str, metadata: &Metadata) {
        let stat = &metadata.stat;
        let refused = |what: &str, error: Errno| self.refused(shown, what, error.into());
        let mut owned = true;
        if self.choices.metadata {
            if self.is_root
                && let Err(error) = std::os::unix::fs::fchown(fd, Some(stat.uid), Some(stat.gid))
            {
                self.refused(shown, "cannot set the owner", error);
                owned = false;
            }
            for Attribute { name, value } in self.allowed_attributes(stat, &metadata.attributes, owned) {
                if let Err(error) = rustix::fs::fsetxattr(fd, name.as_slice(), value, XattrFlags::empty()) {
                    self.attribute_refused(shown, name, error);
                }
            }
        }
        if let Err(error) = set_mode(fd, self.mode(stat, owned)) {
            self.refused(shown, "cannot set the mode", error);
        }
        if self.choices.metadata
            && let Err(error) = rustix::fs::futimens(fd, &times(stat))
        {
            refused("cannot set the times", error);
        }
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        if let Some(metadata) = self.metadata.take() {
            self.shared.set_metadata(self.fd.as_fd(), &self.shown, &metadata);
        }
    }
}

/// A thread that creates files.
struct Worker<'a> {
    shared: &'a Shared,
    fs: &'a FileSystem,
    /// The directory that contains the tree's root; or the root itself, if `root_name` is empty.
    root: &'a OwnedFd,
    root_name: &'a [u8],
}

/// Why a file was not created.
enum Failure {
    Image(Fault),
    Host(&'static str, io::Error),
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self::Image(fault)
    }
}

fn host(what: &'static str) -> impl Fn(Errno) -> Failure {
    move |error| Failure::Host(what, error.into())
}

impl Worker<'_> {
    fn work(&mut self, queue: &Mutex<Receiver<Job>>) {
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(job) = next else { return };
            // After a full disk, workers only drain the queue.
            let stopped = self.shared.stop.load(Ordering::Relaxed);
            if let Link::First(first) = &job.link {
                let mut guard = FirstNameGuard { first, created: false };
                guard.created = !stopped && self.job(&job);
            } else if !stopped {
                self.job(&job);
            }
            self.shared.progress.file();
        }
    }

    /// Creates one name. Returns false after reporting a failure.
    fn job(&mut self, job: &Job) -> bool {
        let result = match &job.link {
            Link::Further(first) => {
                if !first.wait() {
                    // The exit code is that of the first name, which was reported.
                    let why = "left out like the file's first name";
                    self.shared.progress.line(&format!("extant: {}: {why}", job.shown));
                    return false;
                }
                self.link(job, &first.path)
            }
            Link::Only | Link::First(_) => self.make(job),
        };
        match result {
            Ok(()) => {
                self.shared.list(&job.shown, &job.to);
                true
            }
            Err(Failure::Image(fault)) => {
                self.shared.problem(code_of(&fault), &job.shown, &fault);
                false
            }
            Err(Failure::Host(what, error)) => {
                self.shared.refused(&job.shown, what, error);
                false
            }
        }
    }

    /// Calls `make`. If the name exists and may be replaced, removes it and calls `make` again.
    fn replacing(&self, job: &Job, make: impl Fn() -> Result<(), Errno>) -> Result<(), Errno> {
        match make() {
            Err(Errno::EXIST)
                if matches!(self.shared.choices.existing, Existing::Replace | Existing::Update) =>
            {
                rustix::fs::unlinkat(&job.dir.fd, job.name.as_slice(), AtFlags::empty())?;
                make()
            }
            result => result,
        }
    }

    /// Links a further name to a file that was created.
    fn link(&self, job: &Job, first: &[u8]) -> Result<(), Failure> {
        let mut parts: Vec<&[u8]> = first.split(|byte| *byte == b'/').collect();
        let name = parts.pop().unwrap_or_default();
        let mut dir = self.root.try_clone().map_err(|error| Failure::Host("cannot link", error))?;
        let root = (!self.root_name.is_empty()).then_some(self.root_name);
        for part in root.into_iter().chain(parts) {
            dir = open_dir(dir.as_fd(), part).map_err(host("cannot link: the first name's directory"))?;
        }
        let link = || rustix::fs::linkat(&dir, name, &job.dir.fd, job.name.as_slice(), AtFlags::empty());
        self.replacing(job, link).map_err(host("cannot link"))
    }

    fn make(&self, job: &Job) -> Result<(), Failure> {
        let stat = &job.loaded.stat;
        let (dir, name) = (&job.dir.fd, job.name.as_slice());
        match stat.kind {
            FileType::Regular => return self.file(job),
            FileType::Symlink => {
                let target = match &job.loaded.data {
                    Data::Target(target) => target.clone(),
                    _ => self.fs.volume().files().read_link(&job.loaded.inode)?,
                };
                let make = || rustix::fs::symlinkat(target.as_slice(), dir, name);
                self.replacing(job, make).map_err(host("cannot make the symbolic link"))?;
            }
            kind => {
                let (kind, what) = match kind {
                    FileType::CharDevice => (rustix::fs::FileType::CharacterDevice, "cannot make the device"),
                    FileType::BlockDevice => (rustix::fs::FileType::BlockDevice, "cannot make the device"),
                    FileType::Fifo => (rustix::fs::FileType::Fifo, "cannot make the fifo"),
                    FileType::Socket => (rustix::fs::FileType::Socket, "cannot make the socket"),
                    _ => return Err(Failure::Image(extant::Refusal::WrongType.into())),
                };
                let number = rustix::fs::makedev(stat.device.0, stat.device.1);
                let make = || rustix::fs::mknodat(dir, name, kind, Mode::RUSR | Mode::WUSR, number);
                self.replacing(job, make).map_err(host(what))?;
            }
        }
        self.set_metadata_by_path(job);
        Ok(())
    }

    /// Sets the metadata of files that must not be opened: links, devices, fifos.
    fn set_metadata_by_path(&self, job: &Job) {
        let (shared, stat) = (self.shared, &job.loaded.stat);
        let (dir, name) = (&job.dir.fd, job.name.as_slice());
        let refused = |what: &str, error: Errno| shared.refused(&job.shown, what, error.into());
        let mut owned = true;
        if shared.choices.metadata && shared.is_root {
            let (uid, gid) = (Uid::from_raw(stat.uid), Gid::from_raw(stat.gid));
            if let Err(error) =
                rustix::fs::chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
            {
                refused("cannot set the owner", error);
                owned = false;
            }
        }
        if shared.choices.metadata
            && let Ok(attributes) = &job.loaded.xattrs
        {
            // The path leads through the directory that is held open, and the last component is not followed.
            let path = [format!("/proc/self/fd/{}/", dir.as_raw_fd()).as_bytes(), name].concat();
            for Attribute { name, value } in shared.allowed_attributes(stat, attributes, owned) {
                if let Err(error) =
                    rustix::fs::lsetxattr(path.as_slice(), name.as_slice(), value, XattrFlags::empty())
                {
                    shared.attribute_refused(&job.shown, name, error);
                }
            }
        }
        if stat.kind != FileType::Symlink {
            let held = rustix::fs::openat(
                dir,
                name,
                OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                Mode::empty(),
            );
            let set = held.and_then(|held| {
                rustix::fs::chmod(format!("/proc/self/fd/{}", held.as_raw_fd()), shared.mode(stat, owned))
            });
            if let Err(error) = set {
                refused("cannot set the mode", error);
            }
        }
        if shared.choices.metadata
            && let Err(error) = rustix::fs::utimensat(dir, name, &times(stat), AtFlags::SYMLINK_NOFOLLOW)
        {
            refused("cannot set the times", error);
        }
    }

    fn file(&self, job: &Job) -> Result<(), Failure> {
        // Checked before creation, so that a refused file leaves no empty file.
        match &job.loaded.data {
            Data::Failed(_) => drop(self.fs.volume().files().read(&job.loaded.inode, 0, &mut [0])?),
            // Reads nothing, but fails for the same reasons as a real read.
            Data::Large => drop(self.fs.volume().files().read(&job.loaded.inode, 0, &mut [])?),
            _ => {}
        }
        let opened = Cell::new(None);
        let make = || {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mode = Mode::RUSR | Mode::WUSR;
            opened.set(Some(rustix::fs::openat(&job.dir.fd, job.name.as_slice(), flags, mode)?));
            Ok(())
        };
        self.replacing(job, make).map_err(host("cannot make the file"))?;
        let Some(fd) = opened.take() else { return Ok(()) };
        let file = File::from(fd);
        let filled = self.fill(job, &file);
        // An incomplete file gets its metadata, too: it must not be readable for users that have no access in
        // the image.
        let attributes = match &job.loaded.xattrs {
            Ok(attributes) => attributes.clone(),
            Err(fault) => {
                self.shared.problem(code_of(fault), &job.shown, &format_args!("attributes: {fault}"));
                Vec::new()
            }
        };
        let metadata = Metadata { stat: job.loaded.stat.clone(), attributes };
        self.shared.set_metadata(file.as_fd(), &job.shown, &metadata);
        filled
    }

    /// Writes a file's bytes; skips holes if they are kept.
    fn fill(&self, job: &Job, file: &File) -> Result<(), Failure> {
        let stat = &job.loaded.stat;
        let write = |bytes: &[u8], offset: u64| {
            self.shared.progress.bytes(bytes.len() as u64);
            file.write_all_at(bytes, offset).map_err(|error| Failure::Host("cannot write", error))
        };
        let has_holes = stat.blocks_512.saturating_mul(512) < stat.size;
        match &job.loaded.data {
            Data::None => return Ok(()),
            Data::Ready(bytes) if !(has_holes && self.shared.choices.sparse) => return write(bytes, 0),
            _ => {}
        }
        let runs = match self.shared.choices.sparse {
            true => data_runs(self.fs, &job.loaded)?,
            false => vec![(0, stat.size)],
        };
        let mut piece = vec![0; PIECE.min(usize::try_from(stat.size).unwrap_or(PIECE))];
        for (mut offset, end) in runs {
            while offset < end {
                let want = (end - offset).min(piece.len() as u64) as usize;
                let got = self.fs.volume().files().read(&job.loaded.inode, offset, &mut piece[..want])?;
                if got == 0 {
                    break;
                }
                write(&piece[..got], offset)?;
                offset += got as u64;
                if self.shared.stop.load(Ordering::Relaxed) {
                    return Ok(()); // The other thread reported it.
                }
            }
        }
        file.set_len(stat.size).map_err(|error| Failure::Host("cannot set the size", error))
    }
}

/// Ranges of a file with data, in order: pairs of first byte and end, adjacent ranges merged, within the
/// file's size.
pub(crate) fn data_runs(fs: &FileSystem, loaded: &Loaded) -> Result<Vec<(u64, u64)>, Fault> {
    let size = loaded.stat.size;
    let mut runs: Vec<(u64, u64)> = Vec::new();
    fs.volume().files().extents(&loaded.inode, 0, size, &mut |extent| {
        let begin = extent.offset.max(runs.last().map_or(0, |(_, end)| *end));
        let end = extent.offset.saturating_add(extent.len).min(size);
        if !extent.unwritten && begin < end {
            match runs.last_mut() {
                Some((_, last)) if *last == begin => *last = end,
                _ => runs.push((begin, end)),
            }
        }
        Some(())
    })?;
    Ok(runs)
}

/// Opens a directory relative to an open one, without following a link.
fn open_dir(dir: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty())
}

/// Opens a directory that the user named; follows links.
pub(crate) fn open_named_dir(path: &std::path::Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?)
}

/// fchmod(2) through the C library, so that fakeroot sees it (as it sees fchown of the standard library):
/// rustix makes the system call directly.
fn set_mode(fd: BorrowedFd<'_>, mode: Mode) -> io::Result<()> {
    File::from(fd.try_clone_to_owned()?).set_permissions(std::fs::Permissions::from_mode(mode.as_raw_mode()))
}

fn times(stat: &Stat) -> Timestamps {
    let time =
        |time: Timestamp| Timespec { tv_sec: time.seconds, tv_nsec: time.nanos.min(999_999_999).into() };
    Timestamps { last_access: time(stat.atime), last_modification: time(stat.mtime) }
}

/// Raises the limit of open files: a deep tree needs a descriptor per level.
fn raise_file_limit() {
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit);
}
