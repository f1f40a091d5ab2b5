//! A directory as a source: several threads walk it and add its entries directly to the tree.
//!
//! Each thread takes a directory, examines its entries, and adds them to the tree in batches. The order in
//! which directories are finished does not matter, because the tree is sorted later.
//!
//! Problems (unreadable files and directories) are collected, so that one run reports all of them.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use extant_ondisk::filetype::FileType;
use rustix::fs::{
    Access, AtFlags, CWD, Mode, OFlags, RawDir, SeekFrom, Statx, StatxFlags, StatxTimestamp, llistxattr,
};
use rustix::io::Errno;

use super::beneath::open_beneath;
use super::entry::{Metadata, Time, Xattr};
use super::fault::ShownPath;
use super::pretend::stand_ins;
use crate::exclude::Excludes;
use crate::tree::{InsertFault, MergeRules, NONE, ROOT, Tree};
use crate::write::{Problem, SourceRoot};

/// Options of a walk.
pub struct DirOptions<'o> {
    /// Index of the source among the directory sources.
    pub source: u32,
    /// How to merge with entries of earlier sources.
    pub rules: MergeRules,
    /// Patterns of paths to leave out.
    pub excludes: &'o Excludes,
    /// Whether to skip other file systems. Their mount points stay, as empty directories.
    pub one_file_system: bool,
    /// Device and inode number of a file to leave out: the image of an earlier run, if it is inside the
    /// source.
    pub skip: &'o [(u64, u64)],
    /// Number of threads.
    pub threads: usize,
    /// Whether data is read later. If so, the walk reports unreadable files.
    pub check_access: bool,
    /// Attributes to leave out.
    pub xattrs: &'o XattrChoice,
    /// Set by another thread to stop the walk.
    pub cancel: &'o AtomicBool,
    /// Called by any thread with the number of entries read since the last call.
    pub read: &'o (dyn Fn(u64) + Sync),
}

/// Findings of a walk besides the tree.
#[derive(Debug, Default)]
pub struct DirReport {
    /// Entries that could not be read.
    pub problems: Vec<Problem>,
    /// Messages about things that were left out or changed.
    pub warnings: Vec<String>,
    /// Number of files with an owner or group that the user namespace does not map, and the path of the
    /// first.
    unmapped: Option<(u64, Vec<u8>)>,
}

/// The choice of attributes to leave out.
#[derive(Debug, Clone, Default)]
pub enum XattrChoice {
    /// Leave out none.
    #[default]
    Keep,
    /// Leave out all.
    None,
    /// Leave out those with a name that matches one of these patterns (`security.*`).
    Without(Excludes),
}

impl XattrChoice {
    /// Whether an attribute of this name is left out.
    #[must_use]
    pub fn leaves_out(&self, name: &[u8]) -> bool {
        match self {
            Self::Keep => false,
            Self::None => true,
            Self::Without(patterns) => patterns.is_excluded(name),
        }
    }
}

struct Job {
    /// Index of the directory in the tree.
    dir: u32,
    /// Its path below the source's root; empty for the root.
    path: Vec<u8>,
}

/// Directories that are still to be scanned.
#[derive(Default)]
struct Queue {
    jobs: Vec<Job>,
    /// Threads that are scanning and may still add jobs.
    busy: usize,
}

/// State that the threads share.
struct Shared<'t> {
    tree: &'t mut Tree,
    /// Nodes of files with several links, by device and inode number.
    linked: HashMap<(u64, u64), u32>,
    report: DirReport,
    fault: Option<(Vec<u8>, InsertFault)>,
}

struct Walk<'w, 't> {
    root: &'w SourceRoot,
    root_path: Vec<u8>,
    root_device: u64,
    options: &'w DirOptions<'w>,
    is_root_user: bool,
    /// Whether directories can be reached through /proc/self/fd.
    has_proc: bool,
    /// The ids that the kernel shows for those that the user namespace does not map.
    stand_ins: (Option<u32>, Option<u32>),
    queue: Mutex<Queue>,
    wake: Condvar,
    shared: Mutex<Shared<'t>>,
}

/// One entry of a directory, before it is added to the tree.
struct Found {
    name: Vec<u8>,
    stat: Statx,
    xattrs: Vec<Xattr>,
    target: Vec<u8>,
    /// Data runs of a file with holes.
    sparse: Option<Vec<(u64, u64)>>,
    /// A mount point of another file system that must not be entered.
    closed: bool,
}

/// Findings of one thread since it last added to the tree.
#[derive(Default)]
struct Batch {
    found: Vec<Found>,
    report: DirReport,
}

/// Maximum number of entries in a batch: large enough that the cost of the lock is low.
const BATCH: usize = 512;

/// Opens a source directory.
///
/// # Errors
/// The error of the system call.
pub fn open_root(path: &Path) -> Result<SourceRoot, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(path, flags, Mode::empty())?;
    Ok(SourceRoot { dir, path: path.to_owned() })
}

/// Walks a source directory into the tree.
///
/// # Errors
/// The path of the first entry that cannot be merged, and the reason.
pub fn read_dir(
    tree: &mut Tree,
    root: &SourceRoot,
    options: &DirOptions<'_>,
) -> Result<DirReport, (Vec<u8>, InsertFault)> {
    let mut report = DirReport::default();
    // pseudo does not support an empty path.
    let stat = match rustix::fs::statx(&root.dir, ".", AtFlags::empty(), wanted()) {
        Ok(stat) => stat,
        Err(errno) => {
            report.problems.push(problem(root.path.as_os_str().as_bytes(), &errno.to_string()));
            return Ok(report);
        }
    };
    let root_path = root.path.as_os_str().as_bytes().to_vec();
    let xattrs = read_xattrs(&root_path, &root_path, true, options.xattrs, &mut report);
    tree.set_metadata(ROOT, &metadata(&stat, xattrs), options.rules);
    let walk = Walk {
        root,
        root_path,
        root_device: device(&stat),
        options,
        is_root_user: rustix::process::geteuid().is_root(),
        has_proc: rustix::fs::access("/proc/self/fd", Access::EXISTS).is_ok(),
        stand_ins: stand_ins(),
        queue: Mutex::new(Queue { jobs: vec![Job { dir: 0, path: Vec::new() }], busy: 0 }),
        wake: Condvar::new(),
        shared: Mutex::new(Shared { tree, linked: HashMap::new(), report, fault: None }),
    };
    std::thread::scope(|scope| {
        for _ in 0..options.threads.max(1) {
            scope.spawn(|| walk.work());
        }
    });
    let shared = walk.shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    match shared.fault {
        Some(fault) => Err(fault),
        None => Ok(with_unmapped(shared.report)),
    }
}

/// Adds a warning about files with owners that the user namespace does not map.
fn with_unmapped(mut report: DirReport) -> DirReport {
    if let Some((count, first)) = report.unmapped.take() {
        report.warnings.push(format!(
            "{}: its owner or group is not mapped in this user namespace and reads as 65534; the same holds for {count} files \
             in all (map more ids, or give them an owner by --owner, --uid-map or --chown)",
            ShownPath(&first)
        ));
    }
    report
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wanted() -> StatxFlags {
    StatxFlags::BASIC_STATS | StatxFlags::BTIME
}

fn device(stat: &Statx) -> u64 {
    u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor)
}

fn time(stamp: &StatxTimestamp) -> Time {
    Time { seconds: stamp.tv_sec, nanos: stamp.tv_nsec }
}

fn metadata(stat: &Statx, xattrs: Vec<Xattr>) -> Metadata {
    let has_btime = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
    Metadata {
        permissions: stat.stx_mode & 0o7777,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        mtime: time(&stat.stx_mtime),
        atime: Some(time(&stat.stx_atime)),
        ctime: Some(time(&stat.stx_ctime)),
        crtime: has_btime.then(|| time(&stat.stx_btime)),
        xattrs,
    }
}

fn problem(path: &[u8], why: &str) -> Problem {
    Problem { path: ShownPath(path).to_string(), why: why.to_owned(), changed: false }
}

impl Walk<'_, '_> {
    fn work(&self) {
        let mut names = Box::new([MaybeUninit::<u8>::uninit(); 64 << 10]);
        let mut queue = lock(&self.queue);
        loop {
            if self.options.cancel.load(Ordering::Relaxed) {
                self.wake.notify_all();
                return;
            }
            if let Some(job) = queue.jobs.pop() {
                queue.busy += 1;
                drop(queue);
                let more = self.scan(&job, &mut names[..]);
                queue = lock(&self.queue);
                queue.jobs.extend(more);
                queue.busy -= 1;
                self.wake.notify_all();
            } else if queue.busy == 0 {
                self.wake.notify_all();
                return;
            } else {
                queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Scans one directory and returns its subdirectories.
    fn scan(&self, job: &Job, names: &mut [MaybeUninit<u8>]) -> Vec<Job> {
        let mut batch = Batch::default();
        let mut more = Vec::new();
        match self.open_dir(&job.path) {
            Ok(dir) => self.look(&dir, job, names, &mut batch, &mut more),
            Err(errno) => {
                batch.report.problems.push(self.problem(&job.path, &format!("cannot be opened: {errno}")));
            }
        }
        self.add_batch(job, &mut batch, &mut more);
        more
    }

    /// Adds the batch to the tree, and its directories to `more`.
    fn add_batch(&self, job: &Job, batch: &mut Batch, more: &mut Vec<Job>) {
        (self.options.read)(batch.found.len() as u64);
        let mut shared = lock(&self.shared);
        shared.report.problems.append(&mut batch.report.problems);
        shared.report.warnings.append(&mut batch.report.warnings);
        if let Some((count, first)) = batch.report.unmapped.take() {
            shared.report.unmapped.get_or_insert((0, first)).0 += count;
        }
        for found in batch.found.drain(..) {
            if shared.fault.is_some() {
                return;
            }
            match self.add(&mut shared, job.dir, &found) {
                Ok(Some(dir)) => more.push(Job { dir, path: join(&job.path, &found.name) }),
                Ok(None) => {}
                Err(fault) => shared.fault = Some((join(&job.path, &found.name), fault)),
            }
        }
    }

    fn open_dir(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = self.root.dir.as_fd();
        // Listing must not change the source's access times. Only owners and root may use NOATIME.
        match open_beneath(root, path, flags | OFlags::NOATIME) {
            Err(Errno::PERM) => open_beneath(root, path, flags),
            other => other,
        }
    }

    fn look(
        &self,
        dir: &OwnedFd,
        job: &Job,
        names: &mut [MaybeUninit<u8>],
        batch: &mut Batch,
        more: &mut Vec<Job>,
    ) {
        let mut full_path = join(&self.root_path, &job.path);
        if !full_path.ends_with(b"/") {
            full_path.push(b'/');
        }
        let base_len = full_path.len();
        // The calls for attributes do not take a directory descriptor. Reach the directory through
        // /proc/self/fd, so that neither a symlink put in the path nor a long path matters.
        let by_descriptor = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
        let mut xattr_path = if self.has_proc { by_descriptor } else { full_path.clone() };
        let xattr_base_len = xattr_path.len();
        let mut entries = RawDir::new(dir, names);
        while let Some(entry) = entries.next() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(errno) => {
                    batch
                        .report
                        .problems
                        .push(self.problem(&job.path, &format!("cannot be listed: {errno}")));
                    break;
                }
            };
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            if !self.options.excludes.is_empty() && self.options.excludes.is_excluded(&join(&job.path, name))
            {
                continue;
            }
            full_path.truncate(base_len);
            full_path.extend_from_slice(name);
            xattr_path.truncate(xattr_base_len);
            xattr_path.extend_from_slice(name);
            match self.look_at(dir.as_fd(), name, &full_path, &xattr_path, &mut batch.report) {
                Ok(found) => batch.found.extend(found),
                // The entry was removed after it was listed: treat it as if it had never existed.
                Err(Errno::NOENT) => {}
                Err(errno) => {
                    batch.report.problems.push(problem(&full_path, &format!("cannot be read: {errno}")));
                }
            }
            if batch.found.len() >= BATCH {
                self.add_batch(job, batch, more);
            }
        }
    }

    fn look_at(
        &self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        full_path: &[u8],
        xattr_path: &[u8],
        report: &mut DirReport,
    ) -> Result<Option<Found>, Errno> {
        let stat = rustix::fs::statx(dir, name, AtFlags::SYMLINK_NOFOLLOW, wanted())?;
        if self.stand_ins.0 == Some(stat.stx_uid) || self.stand_ins.1 == Some(stat.stx_gid) {
            report.unmapped.get_or_insert_with(|| (0, full_path.to_vec())).0 += 1;
        }
        let foreign = self.options.one_file_system && device(&stat) != self.root_device;
        // An image of a running system needs its /proc and /sys as mount points.
        if foreign && FileType::from_mode(stat.stx_mode) != FileType::Directory {
            return Ok(None);
        }
        if self.options.skip.contains(&(device(&stat), stat.stx_ino)) {
            report.warnings.push(format!("{}: left out, it is the image itself", ShownPath(full_path)));
            return Ok(None);
        }
        let file_type = FileType::from_mode(stat.stx_mode);
        let mut found = Found {
            name: name.to_vec(),
            stat,
            xattrs: Vec::new(),
            target: Vec::new(),
            sparse: None,
            closed: foreign,
        };
        match file_type {
            FileType::Symlink => {
                found.target = rustix::fs::readlinkat(dir, name, Vec::new())?.into_bytes();
                if found.target.is_empty() {
                    return Err(Errno::INVAL);
                }
            }
            FileType::Regular => {
                let unreadable = self.options.check_access
                    && !self.is_root_user
                    && rustix::fs::accessat(dir, name, Access::READ_OK, AtFlags::EACCESS).is_err();
                if unreadable {
                    return Err(Errno::ACCESS);
                }
                if stat.stx_blocks.saturating_mul(512) < stat.stx_size {
                    let (runs, is_swap) = data_runs(dir, name, stat.stx_size)?;
                    if is_swap {
                        report.warnings.push(format!(
                            "{}: a swap file with holes, on which the kernel refuses to swap; its holes stay (fill them \
                             in the source, or make the file on the target)",
                            ShownPath(full_path)
                        ));
                    }
                    found.sparse = runs;
                }
            }
            _ => {}
        }
        found.xattrs = read_xattrs(xattr_path, full_path, false, self.options.xattrs, report);
        Ok(Some(found))
    }

    /// Adds one entry to the tree. Returns the index of the directory if the walk must enter it.
    fn add(&self, shared: &mut Shared<'_>, dir: u32, found: &Found) -> Result<Option<u32>, InsertFault> {
        let stat = &found.stat;
        let rules = self.options.rules;
        let file_type = FileType::from_mode(stat.stx_mode);
        let key = (device(stat), stat.stx_ino);
        let linked = stat.stx_nlink > 1 && file_type != FileType::Directory;
        if linked && let Some(&node) = shared.linked.get(&key) {
            shared.tree.add_link(dir, &found.name, node, rules)?;
            return Ok(None);
        }
        let metadata = metadata(stat, found.xattrs.clone());
        let mut node = shared.tree.bare_node(&metadata, file_type, rules);
        match file_type {
            FileType::Regular => {
                node.size = stat.stx_size;
                node.content = self.options.source;
                if let Some(runs) = &found.sparse {
                    node.sparse = shared.tree.sparse.len() as u32;
                    shared.tree.sparse.push(runs.clone().into_boxed_slice());
                }
            }
            FileType::Symlink => shared.tree.set_symlink_target(&mut node, &found.target)?,
            FileType::CharDevice | FileType::BlockDevice => {
                node.size = u64::from(stat.stx_rdev_major) << 32 | u64::from(stat.stx_rdev_minor);
            }
            _ => {}
        }
        debug_assert!(file_type == FileType::Regular || node.sparse == NONE);
        let (node, _) = shared.tree.add_node(dir, &found.name, node, rules)?;
        if linked {
            shared.linked.insert(key, node);
        }
        let enter = file_type == FileType::Directory && !found.closed;
        Ok(enter.then(|| shared.tree.nodes[node as usize].content))
    }

    fn problem(&self, path: &[u8], why: &str) -> Problem {
        problem(&join(&self.root_path, path), why)
    }
}

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(dir.len() + 1 + name.len());
    path.extend_from_slice(dir);
    if !dir.is_empty() && !dir.ends_with(b"/") && !name.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// Offsets and lengths of a file's data; `None` if it has no holes.
type DataRuns = Option<Vec<(u64, u64)>>;

/// Finds the data runs of a file (`None` if it has no holes), and whether it is a swap file with holes.
fn data_runs(dir: BorrowedFd<'_>, name: &[u8], size: u64) -> Result<(DataRuns, bool), Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    // Reading must not change the source's access times. Only owners and root may use NOATIME.
    let file = match rustix::fs::openat(dir, name, flags | OFlags::NOATIME, Mode::empty()) {
        Err(Errno::PERM) => rustix::fs::openat(dir, name, flags, Mode::empty())?,
        opened => opened?,
    };
    let mut runs = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break, // only a hole follows
            Err(Errno::INVAL) => return Ok((None, false)),
            Err(errno) => return Err(errno),
        };
        let end = rustix::fs::seek(&file, SeekFrom::Hole(start))?.min(size);
        if start >= size || end <= start {
            break;
        }
        runs.push((start, end - start));
        at = end;
    }
    // The magic of a swap file is at the end of the first page.
    let mut magic = [0; 10];
    let read = rustix::io::pread(&file, &mut magic[..], 4096 - 10);
    let is_swap = read == Ok(10) && &magic == b"SWAPSPACE2" && runs != [(0, size)];
    Ok(((runs != [(0, size)]).then_some(runs), is_swap))
}

/// Reads the attributes of a file that an image can store. `follow` is for the root, whose path may be a
/// symlink. `shown` is the path for messages.
///
/// An attribute that is listed but cannot be read is left out with a warning: a sandbox lists labels of the
/// host but does not show them.
fn read_xattrs(
    path: &[u8],
    shown: &[u8],
    follow: bool,
    choice: &XattrChoice,
    report: &mut DirReport,
) -> Vec<Xattr> {
    if matches!(choice, XattrChoice::None) {
        return Vec::new();
    }
    let mut small = [0u8; 1024];
    let list = |buffer: &mut [u8]| {
        if follow { rustix::fs::listxattr(path, buffer) } else { llistxattr(path, buffer) }
    };
    let names = match list(&mut small[..]) {
        Ok(0) => return Vec::new(),
        Ok(len) => small[..len].to_vec(),
        Err(Errno::RANGE) => {
            let mut large = vec![0u8; 64 << 10];
            match list(&mut large) {
                Ok(len) => large[..len].to_vec(),
                Err(errno) => {
                    report.warnings.push(unlisted(shown, errno));
                    return Vec::new();
                }
            }
        }
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Vec::new(),
        Err(errno) if is_withheld(errno) => {
            report.warnings.push(unlisted(shown, errno));
            return Vec::new();
        }
        Err(errno) => {
            report.problems.push(problem(shown, &format!("attributes cannot be listed: {errno}")));
            return Vec::new();
        }
    };
    let mut xattrs = Vec::new();
    let wanted = |name: &&[u8]| !name.is_empty() && !choice.leaves_out(name);
    for name in names.split(|&b| b == 0).filter(wanted) {
        if extant_ondisk::xattr::split_name(name).is_none() {
            let attribute = ShownPath(name).to_string();
            report.warnings.push(format!(
                "{}: attribute {attribute} is left out: ext4 has no place for it",
                ShownPath(shown)
            ));
            continue;
        }
        match read_xattr(path, name, follow) {
            Ok(value) => xattrs.push(Xattr { name: name.to_vec(), value }),
            Err(Errno::NODATA) => {}
            Err(errno) => {
                let (attribute, shown_path) = (ShownPath(name), ShownPath(shown));
                if is_withheld(errno) {
                    let text = format!(
                        "{shown_path}: attribute {attribute} is left out, as it cannot be read: {errno}"
                    );
                    report.warnings.push(text);
                } else {
                    let why = format!(
                        "attribute {attribute} cannot be read: {errno} (--xattr-exclude {attribute} leaves it out)"
                    );
                    report.problems.push(problem(shown, &why));
                }
            }
        }
    }
    xattrs
}

/// Whether the system withholds an attribute, as opposed to failing to read it.
fn is_withheld(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::ACCESS | Errno::PERM | Errno::NOSYS | Errno::INVAL)
}

fn unlisted(shown: &[u8], errno: Errno) -> String {
    format!("{}: attributes are left out, as they cannot be listed: {errno}", ShownPath(shown))
}

fn read_xattr(path: &[u8], name: &[u8], follow: bool) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0u8; 256];
    loop {
        let got = if follow {
            rustix::fs::getxattr(path, name, &mut value[..])
        } else {
            rustix::fs::lgetxattr(path, name, &mut value[..])
        };
        match got {
            Ok(len) => {
                value.truncate(len);
                return Ok(value);
            }
            Err(Errno::RANGE) if value.len() < 64 << 10 => value.resize(64 << 10, 0),
            Err(errno) => return Err(errno),
        }
    }
}

/// Device and inode number of a file, for [`DirOptions::skip`].
#[must_use]
pub fn identity_of(path: &Path) -> Option<(u64, u64)> {
    let stat = rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::INO).ok()?;
    Some((device(&stat), stat.stx_ino))
}
