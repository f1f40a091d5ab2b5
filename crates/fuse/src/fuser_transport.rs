//! Requests of the kernel's FUSE, transported by the crate `fuser`, answered by an implementation of
//! [`Serve`].
//!
//! Owns: the protocol's spelling of questions and answers, what the kernel may remember and for how long,
//! threads, the life of a mount. Does **not** own: any answer (see [`Serve`]), how one gets a connection (see
//! [`crate::mounting`]).
//!
//! ```text
//!  kernel -> /dev/fuse -> thread 1..n -> Transport -> dyn Serve
//!                    <- large reads, spliced
//!  [mounted] -- unmount, by anyone --> every thread reads ENODEV --> run() returns
//! ```
//!
//! Invariants
//! 1. Nothing changes but through this mount, so the kernel may cache names (negative entries too),
//!    attributes, link targets and pages without limit. What a request changes besides the content of its
//!    reply, the kernel drops by itself (attributes of directories, of inodes that lost a name), or gets an
//!    invalidation before the reply. Only failed reads are repeated. Listings are cached where nothing
//!    changes at all.
//! 2. The kernel's number of the root is 1, ext4's is 2; ext4's 1 is never used (see `convert`).
//! 3. What lost its last name is let go when the kernel forgot it, not before (see `lookups`). Where the
//!    server does not ask for it, nothing is remembered about open files, and the kernel never reports that
//!    it opens one.
//! 4. A read allocates nothing once its thread has answered one of the same size. A large one that is
//!    contiguous in an open file is not copied here (see `spliced`). `fuser` does not see its reply, and the
//!    object that would reply is leaked: the connection stays open until the process ends, so
//!    [`Mounted::serve`] makes sure that nothing waits for it.
//! 5. A write is answered after the server has the bytes: the kernel keeps no bytes that the server lacks,
//!    except those of shared mappings. Its pages of a file are as it wrote them, and it has requested all
//!    other changes (sizes, holes) itself. With [`MountOptions::writeback_cache`] it keeps dirty pages (see
//!    `late`).
//! 6. A write by a user that may not keep set-id bits clears them. The kernel marks such writes where it can;
//!    otherwise the server checks (see `privileges`): so the kernel need not read the attributes before a
//!    write.
//!
//! Source: kernel include/uapi/linux/fuse.h, Documentation/filesystems/fuse.rst.

mod changes;
mod content;
mod convert;
mod drops;
mod late;
mod lookups;
mod mounted;
mod privileges;
mod reserve;
mod spliced;

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use drops::Drops;
use extant_base::Ino;
use extant_volume::{Cursor, FileType, New, Permit, Seek, SetAttr, Stat};
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, IoctlFlags, KernelConfig, LockOwner, Notifier, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr,
    ReplyBmap, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use late::Late;
use lookups::Lookups;
pub use mounted::{Mounted, Threads};

use crate::listing::{Listings, Want};
use crate::mounting::MountOptions;
use crate::{Access, Caller, Errno, Name, Opener, Serve};

/// How long the kernel may cache: practically forever, and short enough for any kernel's clock.
const REMEMBER: Duration = Duration::from_secs(365 * 24 * 3600);
/// The largest answer to a read; kernels ask for 1 MiB unless their administrator raised
/// fs.fuse.max_pages_limit.
const READ_MAX: usize = 16 << 20;
/// The largest write, which is also what kernels take unless their administrator raised that limit.
const WRITE_MAX: u32 = 1 << 20;
/// Requests that the kernel sends ahead of its readers at the same time.
const BACKGROUND: u16 = 64;
/// The attribute of every inode that says which process serves the mount, in decimal; in no list.
pub const SERVER_ATTRIBUTE: &str = "extant.server";
/// The attribute of every inode that is there when the file system was shut down; in no list.
pub const SHUTDOWN_ATTRIBUTE: &str = "extant.shutdown";
/// The attribute of the root that states what the server can do, whatever the mount may: "rw" or "ro"; not
/// listed.
pub const MODE_ATTRIBUTE: &str = "extant.mode";

/// The attribute of the root with the state of the extent cache, as the kernel's `es_shrinker_info`; not
/// listed.
pub const EXTENTS_ATTRIBUTE: &str = "extant.es_shrinker_info";
/// The attribute of the root with the allocator's counters, as the kernel's `mb_stats`; not listed.
pub const ALLOCATIONS_ATTRIBUTE: &str = "extant.mb_stats";

/// The adapter between `fuser` and a server.
struct Transport<S> {
    serve: Arc<S>,
    listings: Listings,
    lookups: Lookups,
    notifier: Arc<OnceLock<Notifier>>,
    /// Its number in /sys/fs/fuse/connections.
    connection: Arc<OnceLock<u32>>,
    drops: Drops,
    late: Arc<Late>,
    /// The connection, for answers that are spliced.
    answers: OwnedFd,
    writable: bool,
    /// The kernel checks permissions.
    checks: bool,
    /// The kernel keeps what is written.
    writes_back: bool,
    /// The kernel leaves it to us to take off set-id bits.
    kills_set_id: bool,
    /// The kernel takes "not implemented" to open as "no need to ask": nothing to remember about open files.
    opens_by_itself: bool,
    opens_dirs_by_itself: bool,
}

thread_local! {
    /// What a read fills before it goes to the kernel.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl From<Errno> for fuser::Errno {
    fn from(errno: Errno) -> Self {
        fuser::Errno::from_i32(errno.0)
    }
}

/// What is found under a name.
enum Found {
    Entry(Stat),
    /// The root, from below.
    Root(Stat),
    Nothing,
}

impl<S: Serve> Transport<S> {
    fn new(serve: Arc<S>, options: &MountOptions, answers: OwnedFd) -> Self {
        let notifier = Arc::<OnceLock<Notifier>>::default();
        Self {
            connection: Arc::default(),
            drops: Drops::new(Arc::clone(&notifier)),
            late: Arc::default(),
            writable: serve.is_writable(),
            serve,
            listings: Listings::default(),
            lookups: Lookups::default(),
            notifier,
            answers,
            checks: options.default_permissions,
            writes_back: options.writeback_cache && !options.read_only,
            kills_set_id: false,
            opens_by_itself: false,
            opens_dirs_by_itself: false,
        }
    }

    /// "." and ".." are asked for when a file handle of NFS is to become a path again; "." then of any inode.
    fn find(&self, parent: INodeNo, name: &[u8]) -> Result<Found, Errno> {
        let parent = convert::ino_of(parent)?;
        let found = match name {
            b"." => Some(self.serve.stat(parent)?),
            _ => self.serve.lookup(parent, name)?,
        };
        match found {
            None => Ok(Found::Nothing),
            Some(stat) if stat.ino == Ino::ROOT && matches!(name, b"." | b"..") => Ok(Found::Root(stat)),
            Some(stat) if convert::can_be_named(stat.ino) => Ok(Found::Entry(stat)),
            Some(_) => Err(Errno::UCLEAN),
        }
    }

    /// Answers a read by moving pages; false when it is still to be answered.
    fn answer_spliced(&self, request: &Request, node: INodeNo, offset: u64, size: usize) -> bool {
        let Ok(ino) = convert::ino_of(node) else { return false };
        let mut is_sent = false;
        let sent = self.serve.file_range(ino, offset, size as u64, &mut |file, at| {
            is_sent = spliced::answer(self.answers.as_fd(), request.unique().0, file, at, size);
        });
        // The read reports why it failed.
        sent.is_ok() && is_sent
    }

    fn attribute(&self, node: INodeNo, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let ino = convert::ino_of(node)?;
        // Of any inode: a bind mount shows a part of the tree alone.
        if name == SERVER_ATTRIBUTE.as_bytes() {
            return Ok(std::process::id().to_string().into_bytes());
        }
        if name == SHUTDOWN_ATTRIBUTE.as_bytes() {
            return if self.serve.is_shut_down() { Ok(b"1".to_vec()) } else { Err(Errno::NODATA) };
        }
        if ino == Ino::ROOT && name == MODE_ATTRIBUTE.as_bytes() {
            return Ok(if self.writable { b"rw" } else { b"ro" }.to_vec());
        }
        if ino == Ino::ROOT && name == EXTENTS_ATTRIBUTE.as_bytes() {
            return self.serve.extents_told().map(String::into_bytes).ok_or(Errno::NODATA);
        }
        if ino == Ino::ROOT && name == ALLOCATIONS_ATTRIBUTE.as_bytes() {
            return self.serve.allocations_told().map(String::into_bytes).ok_or(Errno::NODATA);
        }
        self.serve.xattr(ino, name)
    }

    fn attribute_names(&self, node: INodeNo, caller: Caller) -> Result<Vec<u8>, Errno> {
        let names = self.serve.xattr_names(convert::ino_of(node)?, caller)?;
        let mut list = Vec::new();
        for name in names {
            list.extend_from_slice(&name);
            list.push(0);
        }
        Ok(list)
    }

    /// The attributes of one entry of readdirplus, and how long they are valid. An inode that cannot be read
    /// is returned with its name and type, without validity: the next request for it gets the error.
    fn entry_of(&self, serve: &impl Serve, name: &Name<'_>) -> (fuser::FileAttr, Duration, u64) {
        let is_dot = matches!(name.name, b"." | b"..");
        let in_doubt = |ino: u64| {
            let kind = convert::kind(name.kind.unwrap_or(FileType::Regular));
            (convert::no_attributes(ino, kind), Duration::ZERO, 0)
        };
        if !is_dot && !convert::can_be_named(name.ino) {
            return in_doubt(0);
        }
        match serve.stat(name.ino) {
            Ok(stat) => (convert::attributes(&stat), self.attributes_live(&stat), stat.generation.into()),
            Err(_) => in_doubt(name.ino.0.into()),
        }
    }

    /// Adds names to a reply until `add` says that it is full. An error after the first name waits for the
    /// next request.
    fn tell_names(
        &self,
        dir: INodeNo,
        from: u64,
        want: Want,
        add: &mut dyn FnMut(&S, Name<'_>) -> bool,
    ) -> Result<(), Errno> {
        let mut any = false;
        let mut each = |name: Name<'_>| {
            if add(&self.serve, name) {
                return ControlFlow::Break(());
            }
            any = true;
            ControlFlow::Continue(())
        };
        let dir = convert::ino_of(dir)?;
        match self.listings.tell(&*self.serve, dir, Cursor(from), want, &mut each) {
            Err(error) if !any => Err(error),
            _ => Ok(()),
        }
    }
}

/// An attribute's value or the list of names, by the rules of getxattr(2): a request of size 0 gets the size
/// alone.
fn reply_xattr(reply: ReplyXattr, size: u32, answer: Result<Vec<u8>, Errno>) {
    match answer {
        Ok(bytes) if size == 0 => reply.size(bytes.len() as u32),
        Ok(bytes) if bytes.len() > size as usize => reply.error(Errno::RANGE.into()),
        Ok(bytes) => reply.data(&bytes),
        Err(errno) => reply.error(errno.into()),
    }
}

impl<S: Serve> Filesystem for Transport<S> {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let offered = config.capabilities();
        let mut wanted = InitFlags::FUSE_ASYNC_READ
            | InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_EXPLICIT_INVAL_DATA
            | InitFlags::FUSE_EXPORT_SUPPORT
            | InitFlags::FUSE_HAS_IOCTL_DIR
            | InitFlags::FUSE_MAX_PAGES
            | InitFlags::FUSE_NO_OPEN_SUPPORT
            | InitFlags::FUSE_PARALLEL_DIROPS;
        // The kernel caches listings of directories that it opens itself. It drops them when names change,
        // and then loses the position of a reader in the middle: names would be missed.
        wanted |= match self.writable {
            // A default ACL replaces the umask, which is in the request.
            true => InitFlags::FUSE_DONT_MASK,
            false => InitFlags::FUSE_NO_OPENDIR_SUPPORT,
        };
        if self.writable {
            wanted |= InitFlags::FUSE_HANDLE_KILLPRIV_V2;
        }
        if self.writes_back {
            // Where space is short files are written past the cache, and mapped all the same.
            wanted |= InitFlags::FUSE_WRITEBACK_CACHE | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
        }
        // ACLs without any check would be an empty promise, and asking for them turns checks on.
        if self.checks {
            wanted |= InitFlags::FUSE_POSIX_ACL;
        }
        let _ = config.add_capabilities(wanted & offered);
        if let Err(largest) = config.set_max_readahead(u32::MAX) {
            let _ = config.set_max_readahead(largest);
        }
        let _ = config.set_max_background(BACKGROUND);
        let _ = config.set_max_write(WRITE_MAX);
        // With the write-back cache the kernel makes times itself, and shows what it made.
        let _ = config.set_time_granularity(self.serve.time_granularity());
        self.kills_set_id = (wanted & offered).contains(InitFlags::FUSE_HANDLE_KILLPRIV_V2);
        let may_spare = offered.contains(InitFlags::FUSE_NO_OPEN_SUPPORT);
        self.opens_by_itself = may_spare && !self.serve.asks_to_open();
        self.opens_dirs_by_itself = (wanted & offered).contains(InitFlags::FUSE_NO_OPENDIR_SUPPORT);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.find(parent, name.as_bytes()) {
            Ok(Found::Entry(stat)) => self.tell_entry(&stat, reply),
            // Its number is to be asked for again, as the one that the kernel gets here is not ext4's.
            Ok(Found::Root(stat)) => {
                let attributes = convert::root_attributes(&stat);
                reply.entry_with_ttls(&Duration::ZERO, &REMEMBER, &attributes, Generation(0));
            }
            Ok(Found::Nothing) => {
                let nothing = convert::no_attributes(0, fuser::FileType::RegularFile);
                reply.entry(&REMEMBER, &nothing, Generation(0));
            }
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn forget(&self, _: &Request, node: INodeNo, count: u64) {
        if let (true, Ok(ino)) = (self.writable, convert::ino_of(node))
            && let Some(is_nameless) = self.lookups.forget(ino, count)
        {
            match is_nameless {
                true => self.serve.forget(ino),
                false => self.serve.evict(ino),
            }
        }
    }

    fn getattr(&self, _: &Request, node: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        let reply = match handle {
            Some(handle) => self.tell_writer(node, handle, reply),
            None => Some(reply),
        };
        let Some(reply) = reply else { return };
        match convert::ino_of(node).and_then(|ino| self.serve.stat(ino)) {
            Ok(stat) => reply.attr(&self.attributes_live(&stat), &convert::attributes(&stat)),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn readlink(&self, _: &Request, node: INodeNo, reply: ReplyData) {
        match convert::ino_of(node).and_then(|ino| self.serve.read_link(ino)) {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn open(&self, _: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if !self.writable && flags.acc_mode() != OpenAccMode::O_RDONLY {
            reply.error(Errno::ROFS.into());
        } else if self.opens_by_itself {
            reply.error(Errno::NOSYS.into());
        } else {
            let access = convert::access(flags);
            let open = |ino| Ok((ino, self.serve.open(ino, access)?));
            match convert::ino_of(node).and_then(open) {
                Ok((ino, opened)) => {
                    let (handle, flags) = self.handle_of(ino, access, opened);
                    reply.opened(handle, flags);
                }
                Err(errno) => reply.error(errno.into()),
            }
        }
    }

    fn read(
        &self,
        request: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let size = (size as usize).min(READ_MAX);
        if size >= spliced::LEN_MIN && self.answer_spliced(request, node, offset, size) {
            std::mem::forget(reply);
            return;
        }
        READ_BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            let buffer = &mut buffer[..size];
            match convert::ino_of(node).and_then(|ino| self.serve.read(ino, offset, buffer)) {
                Ok(len) => reply.data(&buffer[..len.min(size)]),
                Err(errno) => reply.error(errno.into()),
            }
        });
    }

    /// Closing makes nothing durable and finds no error. Where nothing is done then either, there is no need
    /// to ask again.
    fn flush(&self, _: &Request, node: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        if !self.serve.asks_to_close() {
            return reply.error(Errno::NOSYS.into());
        }
        // Before the reply: a commit after the close includes it.
        if let Ok(ino) = convert::ino_of(node) {
            self.serve.closing(ino);
        }
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        node: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        // No reply is expected.
        reply.ok();
        if let Ok(ino) = convert::ino_of(node) {
            self.note_closed(ino, handle);
            self.serve.closed(ino, content::number_of(handle));
        }
    }

    fn fsync(
        &self,
        request: &Request,
        node: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.tell_synced(
            node,
            Opener { handle: content::number_of(handle), thread: request.pid() },
            data_only,
            reply,
        );
    }

    fn fsyncdir(&self, request: &Request, node: INodeNo, _: FileHandle, data_only: bool, reply: ReplyEmpty) {
        self.tell_synced(node, Opener { handle: 0, thread: request.pid() }, data_only, reply);
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if self.opens_dirs_by_itself {
            reply.error(Errno::NOSYS.into());
        } else if self.writable {
            reply.opened(FileHandle(0), FopenFlags::empty());
        } else {
            reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_CACHE_DIR);
        }
    }

    fn readdir(&self, _: &Request, dir: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let told = self.tell_names(dir, offset, Want::Names, &mut |serve, name| {
            // Types of a directory without them come from the inodes.
            let kind = name.kind.or_else(|| serve.stat(name.ino).ok().map(|stat| stat.kind));
            let kind = convert::kind(kind.unwrap_or(FileType::Regular));
            reply.add(INodeNo(name.ino.0.into()), name.next.0, kind, OsStr::from_bytes(name.name))
        });
        match told {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn readdirplus(
        &self,
        _: &Request,
        dir: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let told = self.tell_names(dir, offset, Want::Inodes, &mut |serve, name| {
            let (attributes, remember, generation) = self.entry_of(serve, &name);
            let text = OsStr::from_bytes(name.name);
            let generation = Generation(generation);
            let is_full = reply.add(attributes.ino, name.next.0, text, &remember, &attributes, generation);
            // The dots are returned, and not counted as lookups.
            if self.writable && !is_full && attributes.ino.0 != 0 && !matches!(name.name, b"." | b"..") {
                self.lookups.told(name.ino);
            }
            is_full
        });
        match told {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match self.serve.stat_fs() {
            Ok(all) => reply.statfs(
                all.blocks,
                all.blocks_free,
                all.blocks_available,
                all.inodes.into(),
                all.inodes_free.into(),
                all.block_size,
                all.name_max,
                all.block_size,
            ),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn getxattr(&self, _: &Request, node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        reply_xattr(reply, size, self.attribute(node, name.as_bytes()));
    }

    fn listxattr(&self, request: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        reply_xattr(reply, size, self.attribute_names(node, Caller { uid: request.uid() }));
    }

    /// Asked only without checks by the kernel: then everything is allowed, and there is no need to ask
    /// again.
    fn access(&self, _: &Request, _: INodeNo, _: AccessFlags, reply: ReplyEmpty) {
        reply.error(Errno::NOSYS.into());
    }

    fn ioctl(
        &self,
        request: &Request,
        node: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        command: u32,
        input: &[u8],
        out_size: u32,
        reply: ReplyIoctl,
    ) {
        match self.answer_ioctl(request, node, command, input) {
            Ok(bytes) => reply.ioctl(0, &bytes[..bytes.len().min(out_size as usize)]),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn lseek(&self, _: &Request, node: INodeNo, _: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        // SEEK_DATA and SEEK_HOLE; the kernel does the others by itself.
        match whence {
            3 => self.seek(node, offset, Seek::Data, reply),
            4 => self.seek(node, offset, Seek::Hole, reply),
            _ => reply.error(Errno::INVAL.into()),
        }
    }

    /// Block numbers of the image are of no use to callers: a boot loader would find other blocks there.
    fn bmap(&self, _: &Request, _: INodeNo, _: u32, _: u64, reply: ReplyBmap) {
        reply.error(Errno::NOSYS.into());
    }

    fn setattr(
        &self,
        request: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut set = SetAttr {
            mode: mode.map(|mode| (mode & 0o7777) as u16),
            uid,
            gid,
            size,
            atime: atime.map(convert::time_to_set),
            mtime: mtime.map(convert::time_to_set),
            ctime: ctime.map(convert::timestamp),
            times_from: convert::times_from((atime, mtime), ctime, self.writes_back),
            ..SetAttr::default()
        };
        // The given owner is the present one: nothing to set, but a change.
        if set == SetAttr::default() {
            set.ctime = Some(convert::time_to_set(TimeOrNow::Now));
        }
        let done = convert::ino_of(node).and_then(|ino| {
            if set.mode.is_none() && set.size.is_some() {
                set.mode = self.mode_after_write(request, ino)?;
            }
            if set.mode.is_none() && (set.uid.is_some() || set.gid.is_some()) {
                set.mode = self.mode_after_chown(request, ino)?;
            }
            self.with_reserve(request, || self.serve.set_attr(ino, &set))
        });
        match done {
            Ok(stat) => reply.attr(&self.attributes_live(&stat), &convert::attributes(&stat)),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let made = convert::kind_of_mode(mode).and_then(|kind| {
            let new =
                New { kind, device: convert::device_parts(device), ..changes::new(request, mode, umask) };
            self.make(request, parent, name, &new)
        });
        self.tell_made(&made, reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let new = New { kind: FileType::Directory, ..changes::new(request, mode, umask) };
        self.tell_made(&self.make(request, parent, name, &new), reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes();
        let new = New { kind: FileType::Symlink, target, ..changes::new(request, 0o777, 0) };
        self.tell_made(&self.make(request, parent, name, &new), reply);
    }

    /// A file that opens itself needs no more than to be made, which the kernel falls back to.
    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        if self.opens_by_itself {
            return reply.error(Errno::NOSYS.into());
        }
        let made = self.make(request, parent, name, &changes::new(request, mode, umask));
        // A new file refuses no way of opening.
        let open = |stat: Stat| self.serve.open(stat.ino, Access::default()).map(|opened| (stat, opened));
        match made.and_then(open) {
            Ok((stat, opened)) => {
                self.lookups.told(stat.ino);
                let (handle, flags) = self.handle_of(stat.ino, Access { write: true, append: false }, opened);
                let generation = Generation(stat.generation.into());
                reply.created(&REMEMBER, &convert::attributes(&stat), generation, handle, flags);
            }
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn link(&self, request: &Request, node: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.tell_made(&self.with_reserve(request, || self.link(node, parent, name)), reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        changes::done(self.take_name(parent, name, |dir, name| self.serve.unlink(dir, name)), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        changes::done(self.take_name(parent, name, |dir, name| self.serve.rmdir(dir, name)), reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let from_to = ((parent, name), (new_parent, new_name));
        changes::done(self.with_reserve(request, || self.rename(from_to.0, from_to.1, flags)), reply);
    }

    fn setxattr(
        &self,
        request: &Request,
        node: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let set = || self.set_attribute(request, node, name.as_bytes(), value, flags);
        changes::done(self.with_reserve(request, set), reply);
    }

    fn removexattr(&self, _: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        changes::done(self.remove_attribute(node, name.as_bytes()), reply);
    }

    fn write(
        &self,
        request: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        bytes: &[u8],
        flags: WriteFlags,
        open_flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written = convert::ino_of(node).and_then(|ino| {
            if flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
                self.drop_set_id(request, node, ino)?;
            }
            if flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
                return self.serve.write(Permit::Cache, ino, offset, bytes);
            }
            let permit = content::permit_of(handle);
            self.with_reserve(request, || self.serve.write(permit, ino, offset, bytes))
        });
        if let (true, Ok(ino)) = (flags.contains(WriteFlags::FUSE_WRITE_CACHE), convert::ino_of(node)) {
            self.note_late_write(node, ino, written.is_err());
        }
        match written {
            // A request is 16 MiB long at most.
            Ok(len) if content::is_past_cache(handle, open_flags) && len > 0 => {
                // The kernel drops nothing that it does not wait for.
                let range = offset..offset + len as u64;
                self.drops.after(node, range, move || reply.written(len as u32));
            }
            Ok(len) => reply.written(len as u32),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn fallocate(
        &self,
        request: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let allocated = convert::ino_of(node).and_then(|ino| {
            let how = content::allocate_of(mode)?;
            self.drop_set_id(request, node, ino)?;
            self.with_reserve(request, || self.serve.allocate(ino, how, offset, len))
        });
        if allocated.is_err() {
            // Some of it may be there, behind the end that the kernel knows.
            self.drop_attributes(node);
        }
        changes::done(allocated, reply);
    }

    fn copy_file_range(
        &self,
        request: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        to_node: INodeNo,
        to_handle: FileHandle,
        to_offset: u64,
        len: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let copied = convert::ino_of(node).and_then(|from| {
            let to = convert::ino_of(to_node)?;
            self.drop_set_id(request, to_node, to)?;
            let permit = content::permit_of(to_handle);
            self.with_reserve(request, || self.copy(permit, (from, offset), (to, to_offset), len))
        });
        match copied {
            Ok(len) => reply.written(len),
            Err(errno) => {
                self.drop_attributes(to_node);
                reply.error(errno.into());
            }
        }
    }
}
