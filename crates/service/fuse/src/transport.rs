//! FUSE requests, served by an implementation of [`Serve`].
//!
//! Owns: the meaning of each request, what the kernel may cache and for how long, a mount from its start to
//! its end ([`Mounted`]). Does **not** own: the protocol and the threads (see [`extant_fuse_lowlevel`]), the
//! operations (see [`Serve`]), mount(2) and fusermount3 (see [`crate::mounting`]).
//!
//! ```text
//!  kernel --> fuse-lowlevel --Request, Reply--> Transport --inode numbers, values--> dyn Serve
//!  [mounted] -- unmount, by any process --> every thread reads ENODEV --> serve() returns
//! ```
//!
//! State: `names` (the kernel's lookup count per inode; names read from directories and not returned yet),
//! `invalidator` (the queue of page-cache invalidations), `write_cache` (dirty data of the kernel's
//! write-back cache), `set_id` (whether the server clears set-id bits), and the flags that INIT agreed on.
//!
//! Invariants
//! 1. Only this mount changes the volume, so the kernel may cache names (negative entries too), attributes,
//!    link targets and pages without limit. If a request changes more than its reply returns, the kernel
//!    either drops its cached state itself (attributes of directories, and of inodes that lost a name), or
//!    gets an invalidation before the reply. Failures are not cached. The kernel caches listings only if the
//!    volume is read-only.
//! 2. The root has number 1 in the protocol and 2 in ext4; ext4's inode 1 is never returned (see `convert`).
//! 3. An inode without names is released when the kernel has forgotten it, not earlier (see `lookups`). If
//!    the server does not track opens, the kernel sends no OPEN or RELEASE, and open files have no state
//!    here.
//! 4. A read allocates no memory if its thread has served a read of this size before. A large read that is
//!    contiguous in the image is spliced, not copied.
//! 5. The reply to a write is sent after the server has the bytes, so the kernel has dirty pages of shared
//!    mappings only. With [`MountOptions::writeback_cache`] it has other dirty pages, too (see `writeback`).
//!    Cached pages stay valid, because each change of a file's content (writes, sizes, holes) was requested
//!    by the kernel.
//! 6. A write by a user without CAP_FSETID clears set-id bits. The kernel marks such writes if it can;
//!    otherwise the server checks the writer (see `privileges`). So the kernel need not fetch attributes
//!    before each write.
//!
//! Source: kernel include/uapi/linux/fuse.h, Documentation/filesystems/fuse.rst.

mod changes;
mod content;
mod convert;
mod invalidator;
mod lookups;
mod mounted;
mod names;
mod privileges;
mod reserve;
mod shown;
mod writeback;
mod xattrs;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use convert::TimeToSet;
use extant_fuse_lowlevel::operation::Nothing;
use extant_fuse_lowlevel::protocol::{
    AttrOut, CreateOut, EntryOut, OpenOut, SetattrIn, StatfsOut, StatxOut, fattr, flag, fopen, init,
};
use extant_fuse_lowlevel::{
    Bytes, Handler, Listing, Name as NameOf, NameAndBytes, Names, Notifier, Offered, Operation, Reply,
    Request, Taken,
};
use extant_volume::{FileType, New, Seek, SetAttr, Stat, TimesFrom};
use invalidator::Invalidator;
pub use mounted::{Mounted, Threads, abort, serve_connection};
use names::{Found, NameState};
use privileges::SetIdBits;
use reserve::Requester;
pub use shown::Shown;
pub use writeback::KernelCache;
use writeback::WriteCache;
pub use xattrs::{
    ALLOCATOR_STATS_ATTRIBUTE, EXTENT_STATS_ATTRIBUTE, MODE_ATTRIBUTE, SERVER_ATTRIBUTE, SHUTDOWN_ATTRIBUTE,
    UUID_ATTRIBUTE,
};

use crate::listing::ReaddirMode;
use crate::mounting::{MountOptions, WritebackCache};
use crate::status::STATUS_ATTRIBUTE;
use crate::{Access, Errno, Name, Opener, Serve};

/// How long the kernel may cache names and attributes: without limit in practice, and small enough not to
/// overflow the kernel's jiffies.
const CACHE_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);
/// The largest write; also the kernel's limit unless fs.fuse.max_pages_limit was raised.
const WRITE_MAX: u32 = 1 << 20;
/// Background requests (readahead, writeback) that the kernel has in flight at the same time.
const BACKGROUND: u16 = 64;

/// Serves FUSE requests through a [`Serve`].
struct Transport<S> {
    serve: Arc<S>,
    names: Arc<NameState<S>>,
    /// The connection's number in /sys/fs/fuse/connections.
    connection: OnceLock<u32>,
    invalidator: Arc<Invalidator>,
    write_cache: WriteCache<S>,
    set_id: SetIdBits<S>,
    writable: bool,
    shown: Shown,
    /// `default_permissions`: the kernel checks permissions.
    default_permissions: bool,
    /// OPEN gets ENOSYS, after which the kernel opens files without requests. Open files have no state then.
    no_open: bool,
    /// The same for OPENDIR.
    no_opendir: bool,
}

fn fail(reply: Reply, errno: Errno) {
    reply.error(errno.0);
}

/// Replies with attributes that the kernel may use for `attr_valid` seconds.
fn reply_stat(shown: Shown, stat: &Stat, attr_valid: u64, reply: Reply) {
    reply.structure(&AttrOut {
        attr_valid,
        attr: convert::attributes(&shown.of(stat)),
        ..AttrOut::default()
    });
}

impl<S: Serve> Transport<S> {
    fn new(serve: Arc<S>, options: &MountOptions) -> Self {
        let invalidator = Arc::<Invalidator>::default();
        let wanted = match options.read_only {
            true => WritebackCache::Never,
            false => options.writeback_cache,
        };
        Self {
            connection: OnceLock::new(),
            write_cache: WriteCache::new(Arc::clone(&serve), Arc::clone(&invalidator), wanted),
            set_id: SetIdBits::new(Arc::clone(&serve), Arc::clone(&invalidator)),
            invalidator,
            writable: serve.is_writable(),
            names: Arc::new(NameState::new(Arc::clone(&serve))),
            serve,
            shown: options.shown,
            default_permissions: options.default_permissions,
            no_open: false,
            no_opendir: false,
        }
    }

    /// Makes invalidations possible, once the session exists.
    fn connect(&self, notifier: Notifier) {
        self.invalidator.connect(notifier);
        if self.writable {
            self.invalidator.start();
        }
    }

    /// One entry of READDIRPLUS. If the inode cannot be read, the entry has its number and type and a timeout
    /// of 0, so the kernel requests the inode again and gets the error.
    fn entry_of(&self, serve: &impl Serve, name: &Name<'_>) -> EntryOut {
        let is_dot = matches!(name.name, b"." | b"..");
        let unreadable = |ino| convert::unreadable_entry(ino, name.kind.unwrap_or(FileType::Regular));
        if !is_dot && !convert::can_be_named(name.ino) {
            return unreadable(0);
        }
        match serve.stat(name.ino) {
            Ok(stat) => {
                self.write_cache.keep_asking(&stat);
                convert::entry(&self.shown.of(&stat))
            }
            Err(_) => unreadable(name.ino.0.into()),
        }
    }
}

impl<S: Serve> Handler for Transport<S> {
    fn init(&mut self, offered: &Offered) -> Taken {
        let mut flags = init::ASYNC_READ
            | init::ASYNC_DIO
            | init::CACHE_SYMLINKS
            | init::DO_READDIRPLUS
            | init::EXPLICIT_INVAL_DATA
            | init::EXPORT_SUPPORT
            | init::HAS_IOCTL_DIR
            | init::NO_OPEN_SUPPORT
            | init::PARALLEL_DIROPS;
        // With NO_OPENDIR_SUPPORT the kernel caches listings. It drops them when names change, and a reader
        // in the middle then loses its position and misses names. So only for read-only volumes.
        flags |= match self.writable {
            // DONT_MASK: the server applies the umask of the request, since a default ACL replaces it.
            true => init::DONT_MASK | init::HANDLE_KILLPRIV_V2,
            false => init::NO_OPENDIR_SUPPORT,
        };
        if self.write_cache.may_buffer(offered.flags) {
            // While space is low, files are opened for direct I/O (see `writeback`), and may still be mapped.
            flags |= init::WRITEBACK_CACHE | init::DIRECT_IO_ALLOW_MMAP;
        }
        // This flag turns on the kernel's permission checks. Without these checks ACLs have no effect.
        // Nor do they have one if other owners are shown than those that they name.
        if self.default_permissions && !self.shown.differs() {
            flags |= init::POSIX_ACL;
        }
        // Idmapped mounts. From then on only requests that create an inode have the caller's user and group.
        // The kernel takes this flag only if it checks permissions.
        if self.default_permissions && !self.shown.differs() {
            flags |= init::ALLOW_IDMAP;
        }
        let taken = flags & offered.flags;
        if taken & init::WRITEBACK_CACHE != 0 {
            self.write_cache.turn_on();
        }
        self.set_id.is_ours = taken & init::HANDLE_KILLPRIV_V2 != 0;
        self.no_open = taken & init::NO_OPEN_SUPPORT != 0 && !self.serve.tracks_opens();
        self.no_opendir = taken & init::NO_OPENDIR_SUPPORT != 0;
        Taken {
            flags,
            max_readahead: u32::MAX,
            max_write: WRITE_MAX,
            max_background: BACKGROUND,
            // With the write-back cache the kernel sets times itself. They must not change when they are
            // stored.
            time_gran: u32::try_from(self.serve.time_granularity().as_nanos()).unwrap_or(1),
        }
    }

    fn forget(&self, node: u64, count: u64) {
        if let (true, Ok(ino)) = (self.writable, convert::ino_of(node))
            && let Some(is_nameless) = self.names.lookups.forget(ino, count)
        {
            match is_nameless {
                true => self.serve.forget(ino),
                false => self.serve.evict(ino),
            }
        }
    }

    fn handle(&self, request: &Request<'_>, reply: Reply) {
        let node = request.node();
        match request.operation {
            Operation::Lookup(Nothing {}, NameOf(name)) => self.lookup(node, name, reply),
            Operation::Getattr(get, ()) => {
                let handle = (get.flags & flag::GETATTR_FH != 0).then_some(get.fh);
                self.getattr(request, handle, reply);
            }
            Operation::Statx(..) => self.statx(node, reply),
            Operation::Setattr(set, ()) => self.setattr(request, &set, reply),
            Operation::Readlink(..) => {
                match convert::ino_of(node).and_then(|ino| self.serve.read_link(ino)) {
                    Ok(target) => reply.bytes(&target),
                    Err(errno) => fail(reply, errno),
                }
            }
            Operation::Symlink(_, Names(name, target)) => {
                let new = New { kind: FileType::Symlink, target, ..changes::new(request, 0o777, 0) };
                self.reply_entry_result(&self.names.create(Requester::of(request), node, name, &new), reply);
            }
            Operation::Mknod(asked, NameOf(name)) => {
                let made = convert::kind_of_mode(asked.mode).and_then(|kind| {
                    let device = convert::device_parts(asked.rdev);
                    let new = New { kind, device, ..changes::new(request, asked.mode, asked.umask) };
                    self.names.create(Requester::of(request), node, name, &new)
                });
                self.reply_entry_result(&made, reply);
            }
            Operation::Mkdir(asked, NameOf(name)) => {
                let new = New { kind: FileType::Directory, ..changes::new(request, asked.mode, asked.umask) };
                self.reply_entry_result(&self.names.create(Requester::of(request), node, name, &new), reply);
            }
            Operation::Unlink(_, NameOf(name)) => {
                changes::done(
                    self.names.remove_name(node, name, |dir, name| self.serve.unlink(dir, name)),
                    reply,
                );
            }
            Operation::Rmdir(_, NameOf(name)) => {
                changes::done(
                    self.names.remove_name(node, name, |dir, name| self.serve.rmdir(dir, name)),
                    reply,
                );
            }
            Operation::Rename(to, Names(from, into)) => {
                self.rename(Requester::of(request), (node, from), (to.newdir, into), 0, reply);
            }
            Operation::Rename2(to, Names(from, into)) => {
                self.rename(Requester::of(request), (node, from), (to.newdir, into), to.flags, reply);
            }
            Operation::Link(of, NameOf(name)) => {
                match self.with_reserve(request, || self.names.link(of.oldnodeid, node, name)) {
                    Ok(stat) => {
                        self.names.lookups.increment(stat.ino);
                        let attr_valid = self.write_cache.attr_valid_after_change(&stat);
                        reply.structure(&EntryOut { attr_valid, ..convert::entry(&self.shown.of(&stat)) });
                    }
                    Err(errno) => fail(reply, errno),
                }
            }
            Operation::Open(open, ()) => self.open(node, open.flags, reply),
            Operation::Create(asked, NameOf(name)) => {
                // After ENOSYS the kernel uses MKNOD, and opens the file without a request.
                if self.no_open {
                    return fail(reply, Errno::NOSYS);
                }
                let new = changes::new(request, asked.mode, asked.umask);
                self.reply_create(self.names.create(Requester::of(request), node, name, &new), reply);
            }
            Operation::Tmpfile(asked, _) => {
                let new = changes::new(request, asked.mode, asked.umask);
                self.reply_create(self.names.create_unnamed(Requester::of(request), node, &new), reply);
            }
            Operation::Read(read, ()) => self.read(node, read.offset, read.size, reply),
            Operation::Write(write, Bytes(bytes)) => self.write(request, &write, bytes, reply),
            Operation::Statfs(..) => self.statfs(reply),
            Operation::Release(release, ()) => {
                reply.ok();
                if let Ok(ino) = convert::ino_of(node) {
                    self.write_cache.note_release(ino, release.fh);
                    self.serve.release(ino, content::number_of(release.fh));
                }
            }
            Operation::Fsync(sync, ()) => {
                let opener = Opener { handle: content::number_of(sync.fh), thread: request.pid() };
                self.fsync(node, opener, sync.flags & flag::FSYNC_FDATASYNC != 0, reply);
            }
            Operation::Fsyncdir(sync, ()) => {
                let opener = Opener { handle: 0, thread: request.pid() };
                match node == extant_fuse_lowlevel::protocol::ROOT_ID {
                    true => self.sync_all(opener, reply),
                    false => self.fsync(node, opener, sync.flags & flag::FSYNC_FDATASYNC != 0, reply),
                }
            }
            Operation::Syncfs(..) => {
                self.sync_all(Opener { handle: 0, thread: request.pid() }, reply);
            }
            Operation::Setxattr(_, NameAndBytes(name, value)) if name == UUID_ATTRIBUTE.as_bytes() => {
                changes::done(self.set_uuid(request, node, value), reply);
            }
            Operation::Setxattr(set, NameAndBytes(name, value)) => {
                let set = || self.set_attribute(request, node, name, value, set.flags);
                changes::done(self.with_reserve(request, set), reply);
            }
            Operation::Getxattr(get, NameOf(name)) if name == STATUS_ATTRIBUTE.as_bytes() => {
                self.answer_status(request, get.size, reply);
            }
            Operation::Getxattr(get, NameOf(name)) => match self.attribute(node, name) {
                Ok(value) => reply.xattr(get.size, &value),
                Err(errno) => fail(reply, errno),
            },
            Operation::Listxattr(get, ()) => match self.attribute_names(request) {
                Ok(names) => reply.xattr(get.size, &names),
                Err(errno) => fail(reply, errno),
            },
            Operation::Removexattr(_, NameOf(name)) => {
                changes::done(self.remove_attribute(node, name), reply)
            }
            // FLUSH makes nothing durable and reports no errors. After ENOSYS the kernel sends no more of
            // them.
            Operation::Flush(..) if !self.serve.tracks_closes() => fail(reply, Errno::NOSYS),
            Operation::Flush(..) => {
                // Before the reply, so that a commit after close(2) contains what this starts.
                if let Ok(ino) = convert::ino_of(node) {
                    self.serve.flush(ino);
                }
                reply.ok();
            }
            Operation::Opendir(..) if self.no_opendir => fail(reply, Errno::NOSYS),
            Operation::Opendir(..) => {
                let cached = if self.writable { 0 } else { fopen::KEEP_CACHE | fopen::CACHE_DIR };
                reply.structure(&OpenOut { open_flags: cached, ..OpenOut::default() });
            }
            Operation::Releasedir(..) => reply.ok(),
            Operation::Readdir(read, ()) => self.readdir(node, read.offset, read.size, reply),
            Operation::Readdirplus(read, ()) => self.readdirplus(node, read.offset, read.size, reply),
            Operation::Ioctl(ioctl, Bytes(input)) => {
                match self.answer_ioctl(request, node, ioctl.cmd, input) {
                    Ok(bytes) => reply.ioctl(&bytes[..bytes.len().min(ioctl.out_size as usize)]),
                    Err(errno) => fail(reply, errno),
                }
            }
            // SEEK_DATA and SEEK_HOLE. The kernel handles the others without a request.
            Operation::Lseek(seek, ()) => match seek.whence {
                3 => self.seek(node, seek.offset, Seek::Data, reply),
                4 => self.seek(node, seek.offset, Seek::Hole, reply),
                _ => fail(reply, Errno::INVAL),
            },
            Operation::Fallocate(asked, ()) => self.fallocate(request, &asked, reply),
            Operation::CopyFileRange(asked, ()) => self.copy_file_range(request, &asked, reply),
            // ACCESS is only sent without default_permissions: then everything is allowed, and after ENOSYS
            // the kernel sends no more of them. BMAP: blocks of an image file are not blocks of a device, so
            // a boot loader would read wrong blocks. File locks are kept by the kernel.
            _ => fail(reply, Errno::NOSYS),
        }
    }
}

impl<S: Serve> Transport<S> {
    fn lookup(&self, parent: u64, name: &[u8], reply: Reply) {
        match self.names.find(parent, name) {
            Ok(Found::Entry(stat)) => self.reply_entry(&stat, reply),
            // With a timeout of 0, because the inode number in this entry is the protocol's, not ext4's.
            Ok(Found::Root(stat)) => reply.structure(&convert::root_entry(&self.shown.of(&stat))),
            Ok(Found::Nothing) => reply.structure(&convert::negative_entry()),
            Err(errno) => fail(reply, errno),
        }
    }

    fn reply_attributes(&self, stat: Result<Stat, Errno>, reply: Reply) {
        match stat {
            Ok(stat) => {
                self.write_cache.keep_asking(&stat);
                reply_stat(self.shown, &stat, CACHE_TIMEOUT.as_secs(), reply);
            }
            Err(errno) => fail(reply, errno),
        }
    }

    fn getattr(&self, request: &Request<'_>, handle: Option<u64>, reply: Reply) {
        let node = request.node();
        // The kernel may have sent this one before a buffered write (see `writeback`).
        if handle.is_some_and(content::is_buffered) {
            if let Err(errno) = convert::ino_of(node).and_then(|ino| self.write_cache.check_writer(ino)) {
                return fail(reply, errno);
            }
            if self.write_cache.is_space_low() {
                let (writer, shown) = (Requester::of(request), self.shown);
                return self.write_cache.stat_after_writeback(writer, node, move |stat| match stat {
                    Ok(stat) => reply_stat(shown, &stat, 0, reply),
                    Err(errno) => fail(reply, errno),
                });
            }
        }
        self.reply_attributes(convert::ino_of(node).and_then(|ino| self.serve.stat(ino)), reply);
    }

    /// The kernel sends STATX only for what GETATTR lacks: the birth time.
    fn statx(&self, node: u64, reply: Reply) {
        match convert::ino_of(node).and_then(|ino| self.serve.stat(ino)) {
            Ok(stat) => {
                self.write_cache.keep_asking(&stat);
                reply.structure(&StatxOut {
                    attr_valid: CACHE_TIMEOUT.as_secs(),
                    stat: convert::statx(&self.shown.of(&stat)),
                    ..StatxOut::default()
                });
            }
            Err(errno) => fail(reply, errno),
        }
    }

    fn setattr(&self, request: &Request<'_>, asked: &SetattrIn, reply: Reply) {
        let given = |bit: u32| asked.valid & bit != 0;
        let times = convert::times_of(asked);
        let [atime, mtime, ctime] = times.map(|time| time.map(convert::timestamp));
        let mut set = SetAttr {
            mode: given(fattr::MODE).then_some((asked.mode & 0o7777) as u16),
            uid: given(fattr::UID).then_some(asked.uid),
            gid: given(fattr::GID).then_some(asked.gid),
            size: given(fattr::SIZE).then_some(asked.size),
            atime,
            mtime,
            ctime,
            times_from: convert::times_from(times, self.write_cache.is_on()),
            ..SetAttr::default()
        };
        // With the write-back cache the kernel adds the time.
        let is_empty =
            SetAttr { ctime: None, times_from: SetAttr::default().times_from, ..set } == SetAttr::default();
        if self.shown.differs() {
            let refused = convert::ino_of(request.node())
                .and_then(|ino| self.shown.change(&self.serve.stat(ino)?, &mut set));
            if let Err(errno) = refused {
                return fail(reply, errno);
            }
        }
        if set == SetAttr::default() {
            set.ctime = Some(convert::timestamp(TimeToSet::Now));
        }
        let done = convert::ino_of(request.node()).and_then(|ino| {
            let is_from_cache = set.times_from == TimesFrom::Cache;
            if is_from_cache && set.mode.is_none() && set.size.is_none() {
                let stat = self.serve.stat(ino)?;
                if self.are_times_lost(&stat) {
                    return Ok(stat);
                }
            }
            // A chown(2) that changes nothing still sets ctime, and clears set-id bits. The kernel also sends
            // such a request before a write to a file with capabilities: there, a privileged writer could
            // keep the bits, but the two cannot be distinguished.
            if is_empty && !self.shown.differs() {
                set.uid = Some(self.serve.stat(ino)?.uid);
            }
            if set.mode.is_none() && set.size.is_some() {
                set.mode = self.set_id.mode_after_write(request, ino)?;
            }
            if set.mode.is_none() && (set.uid.is_some() || set.gid.is_some()) {
                set.mode = self.set_id.mode_after_chown(request, ino)?;
            }
            self.with_reserve(request, || self.serve.set_attr(ino, &set))
        });
        match done {
            Ok(stat) => reply_stat(self.shown, &stat, self.write_cache.attr_valid_after_change(&stat), reply),
            Err(errno) => fail(reply, errno),
        }
    }

    /// Whether a SETATTR of the kernel's own times is without effect. With the write-back cache, the kernel
    /// sends one after each UNLINK of a file, also if that was the last name. These times are visible only
    /// while the file is open; a file of O_TMPFILE, which is open, may also get a name.
    fn are_times_lost(&self, stat: &Stat) -> bool {
        stat.links == 0 && self.names.lookups.is_unlinked(stat.ino) && !self.write_cache.has_writer(stat.ino)
    }

    fn open(&self, node: u64, flags: u32, reply: Reply) {
        let access = convert::access(flags);
        if !self.writable && access.write {
            return fail(reply, Errno::ROFS);
        }
        if self.no_open {
            return fail(reply, Errno::NOSYS);
        }
        let open = |ino| Ok((ino, self.serve.open(ino, access)?));
        match convert::ino_of(node).and_then(open) {
            Ok((ino, opened)) => reply.structure(&self.write_cache.open_reply(ino, access, opened)),
            Err(errno) => fail(reply, errno),
        }
    }

    /// Replies to CREATE or TMPFILE: opens the new file and returns it. A new file has no flags that restrict
    /// how it is opened.
    fn reply_create(&self, made: Result<Stat, Errno>, reply: Reply) {
        let open = |stat: Stat| self.serve.open(stat.ino, Access::default()).map(|opened| (stat, opened));
        match made.and_then(open) {
            Ok((stat, opened)) => {
                self.names.lookups.increment(stat.ino);
                // Without a name, it is released when the kernel forgets it.
                if stat.links == 0 {
                    self.names.lookups.mark_unlinked(stat.ino);
                }
                let access = Access { write: true, append: false };
                let open = self.write_cache.open_reply(stat.ino, access, opened);
                reply.structure(&CreateOut { entry: convert::entry(&self.shown.of(&stat)), open });
            }
            Err(errno) => fail(reply, errno),
        }
    }

    fn readdir(&self, dir: u64, offset: u64, size: u32, reply: Reply) {
        let mut listing = Listing::new(size);
        let listed = self.names.list(dir, offset, ReaddirMode::Plain, &mut |serve, name| {
            // Without the feature `filetype` the types are only in the inodes.
            let kind = name.kind.or_else(|| serve.stat(name.ino).ok().map(|stat| stat.kind));
            let kind = convert::dirent_kind(kind.unwrap_or(FileType::Regular));
            !listing.add(name.ino.0.into(), name.next.0, kind, name.name, None)
        });
        match listed {
            Ok(()) => listing.send(reply),
            Err(errno) => fail(reply, errno),
        }
    }

    fn readdirplus(&self, dir: u64, offset: u64, size: u32, reply: Reply) {
        let mut listing = Listing::new(size);
        let listed = self.names.list(dir, offset, ReaddirMode::Plus, &mut |serve, name| {
            let entry = self.entry_of(serve, &name);
            let kind = entry.attr.mode >> 12;
            let is_full = !listing.add(entry.attr.ino, name.next.0, kind, name.name, Some(&entry));
            // The kernel does not count "." and ".." as lookups.
            if self.writable && !is_full && entry.nodeid != 0 && !matches!(name.name, b"." | b"..") {
                self.names.lookups.increment(name.ino);
            }
            is_full
        });
        match listed {
            Ok(()) => listing.send(reply),
            Err(errno) => fail(reply, errno),
        }
    }

    fn statfs(&self, reply: Reply) {
        match self.serve.stat_fs() {
            Ok(all) => reply.structure(&StatfsOut {
                blocks: all.blocks,
                bfree: all.blocks_free,
                bavail: all.blocks_available,
                files: all.inodes.into(),
                ffree: all.inodes_free.into(),
                bsize: all.block_size,
                namelen: all.name_max,
                frsize: all.block_size,
                ..StatfsOut::default()
            }),
            Err(errno) => fail(reply, errno),
        }
    }
}
