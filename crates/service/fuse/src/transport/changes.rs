//! Requests that change names, attributes or the whole file system: how they map to [`Serve`], and which
//! cached state they invalidate, in the kernel and in `listings`.
//!
//! Does **not** own: the dispatch of requests (see the parent module), the changes themselves (see
//! [`Serve`]), the content of files (see `content`).
//!
//! Invariant: after a change of a directory, before the reply, `listings` has no name of the directory that
//! was removed, and no batch that lacks a new one.

use std::sync::OnceLock;

use extant_base::Ino;
use extant_fuse_lowlevel::{Notifier, Reply, Request};
use extant_ondisk::inode::flags;
use extant_volume::{New, SetXattr, Shutdown, Stat};

use super::{Transport, convert, fail, privileges};
use crate::attributes::{self, Ioctl};
use crate::{Caller, Errno, Opener, Serve};

/// XATTR_CREATE and XATTR_REPLACE of setxattr(2).
const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;

/// A new regular file that the caller owns. Other types replace `kind`.
pub(super) fn new(request: &Request<'_>, mode: u32, umask: u32) -> New<'static> {
    New {
        umask: (umask & 0o777) as u16,
        uid: request.uid(),
        gid: request.gid(),
        ..New::file((mode & 0o7777) as u16)
    }
}

/// Replies with success, without a body, or with an error.
pub(super) fn done(done: Result<(), Errno>, reply: Reply) {
    match done {
        Ok(()) => reply.ok(),
        Err(errno) => fail(reply, errno),
    }
}

impl<S: Serve> Transport<S> {
    /// Replies with an entry, and counts the kernel's lookup.
    pub(super) fn reply_entry(&self, stat: &Stat, reply: Reply) {
        if self.writable {
            self.names.lookups.increment(stat.ino);
        }
        self.keep_asking(stat);
        reply.structure(&convert::entry(&self.shown.of(stat)));
    }

    pub(super) fn reply_entry_result(&self, made: &Result<Stat, Errno>, reply: Reply) {
        match made {
            Ok(stat) => self.reply_entry(stat, reply),
            Err(errno) => fail(reply, *errno),
        }
    }

    /// FSYNC, FSYNCDIR and SYNCFS. A read-only volume has nothing to make durable: after ENOSYS the kernel
    /// sends no more of them.
    pub(super) fn fsync(&self, node: u64, opener: Opener, data_only: bool, reply: Reply) {
        let synced = if self.writable {
            convert::ino_of(node).and_then(|ino| self.serve.sync(ino, opener, data_only))
        } else {
            Err(Errno::NOSYS)
        };
        done(synced, reply);
    }

    pub(super) fn create(
        &self,
        request: &Request<'_>,
        parent: u64,
        name: &[u8],
        new: &New<'_>,
    ) -> Result<Stat, Errno> {
        let dir = convert::ino_of(parent)?;
        let made = self.with_reserve(request, || self.serve.create(dir, name, new));
        self.names.listings.invalidate(dir);
        if let Ok(stat) = &made {
            // The inode number may have been that of a deleted directory.
            self.names.listings.invalidate(stat.ino);
        }
        made
    }

    /// As [`create`](Self::create), without a name.
    pub(super) fn create_unnamed(
        &self,
        request: &Request<'_>,
        parent: u64,
        new: &New<'_>,
    ) -> Result<Stat, Errno> {
        let dir = convert::ino_of(parent)?;
        let made = self.with_reserve(request, || self.serve.create_unnamed(dir, new))?;
        self.names.listings.invalidate(made.ino);
        Ok(made)
    }

    pub(super) fn link(&self, node: u64, parent: u64, name: &[u8]) -> Result<Stat, Errno> {
        let (ino, dir) = (convert::ino_of(node)?, convert::ino_of(parent)?);
        let linked = self.serve.link(ino, dir, name);
        self.names.listings.invalidate(dir);
        linked
    }

    pub(super) fn remove_name(
        &self,
        parent: u64,
        name: &[u8],
        take: impl FnOnce(Ino, &[u8]) -> Result<Option<Ino>, Errno>,
    ) -> Result<(), Errno> {
        let dir = convert::ino_of(parent)?;
        let taken = take(dir, name);
        // The kernel holds the directory's lock, so no listing runs at the same time.
        match taken {
            Ok(_) => self.names.listings.remove_name(dir, name),
            Err(_) => self.names.listings.invalidate(dir),
        }
        self.names.note_unlinked(taken?);
        Ok(())
    }

    pub(super) fn set_attribute(
        &self,
        request: &Request<'_>,
        node: u64,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Result<(), Errno> {
        let how = match flags {
            0 => SetXattr::Any,
            XATTR_CREATE => SetXattr::Create,
            XATTR_REPLACE => SetXattr::Replace,
            _ => return Err(Errno::INVAL),
        };
        let ino = convert::ino_of(node)?;
        self.serve.set_xattr(ino, name, value, how)?;
        if name != b"system.posix_acl_access" {
            return Ok(());
        }
        let lost = self.handles_killpriv && self.clear_set_gid(request, ino)?;
        // An access ACL changes the mode. Without default_permissions the kernel does not update it.
        if lost || !self.default_permissions {
            self.invalidate_attributes(node);
        }
        Ok(())
    }

    pub(super) fn remove_attribute(&self, node: u64, name: &[u8]) -> Result<(), Errno> {
        self.serve.remove_xattr(convert::ino_of(node)?, name)
    }

    /// Shuts the file system down, and invalidates the kernel's pages of all files, so that reads fail.
    pub(super) fn shut_down(&self, caller: Caller, how: Shutdown) -> Result<(), Errno> {
        self.check_administrator(caller)?;
        let done = self.serve.shut_down(how);
        // Before the reply, so that the next buffered write sends GETATTR, which fails.
        for ino in self.writeback.written() {
            self.invalidate_attributes(ino.0.into());
        }
        for ino in self.names.lookups.inodes() {
            self.invalidator.invalidate_then(ino.0.into(), 0..u64::MAX, || ());
        }
        done
    }

    /// Fails unless the caller may trim, label, resize or shut down the file system.
    fn check_administrator(&self, caller: Caller) -> Result<(), Errno> {
        if self.serve.may_administer(caller) { Ok(()) } else { Err(Errno::PERM) }
    }

    /// Sets the UUID: see [`UUID_ATTRIBUTE`](super::UUID_ATTRIBUTE).
    pub(super) fn set_uuid(&self, request: &Request<'_>, node: u64, value: &[u8]) -> Result<(), Errno> {
        self.check_administrator(Caller { uid: privileges::user_of(request) })?;
        let uuid = value.try_into().ok().filter(|_| node == extant_fuse_lowlevel::protocol::ROOT_ID);
        self.serve.set_uuid(uuid.ok_or(Errno::INVAL)?)
    }

    /// Executes an ioctl and returns its output.
    pub(super) fn answer_ioctl(
        &self,
        request: &Request<'_>,
        node: u64,
        command: u32,
        input: &[u8],
    ) -> Result<Vec<u8>, Errno> {
        let stat = self.serve.stat(convert::ino_of(node)?)?;
        let caller = || Caller { uid: privileges::user_of(request) };
        match attributes::ioctl(&stat, command, input)? {
            Ioctl::Answer(bytes) => return Ok(bytes),
            Ioctl::GetLabel => return Ok(attributes::label_answer(&self.serve.label()?)),
            Ioctl::GetUuid => return Ok(attributes::uuid_answer(&self.serve.uuid()?)),
            Ioctl::GetSysfsPath => {
                let connection = self.connection.get().ok_or(Errno::NOTTY)?;
                return Ok(attributes::sysfs_answer(&format!("fuse/connections/{connection}")));
            }
            Ioctl::Trim(range, min_bytes) => {
                self.check_administrator(caller())?;
                let bytes = self.serve.trim(range.clone(), min_bytes)?;
                return Ok(attributes::trimmed(&range, min_bytes, bytes));
            }
            Ioctl::SetLabel(label) => {
                self.check_administrator(caller())?;
                self.serve.set_label(&label)?;
            }
            Ioctl::Resize(blocks) => {
                self.check_administrator(caller())?;
                self.serve.resize(blocks)?;
            }
            Ioctl::Shutdown(how) => self.shut_down(caller(), how)?,
            Ioctl::Change(set) => {
                let changed = set.flags.map_or(0, |flags| flags ^ stat.flags);
                if changed & flags::JOURNAL_DATA != 0 && !privileges::may_journal(request.pid()) {
                    return Err(Errno::PERM);
                }
                self.serve.set_attr(stat.ino, &set)?;
                self.invalidate_attributes(node);
            }
        }
        Ok(Vec::new())
    }

    /// Invalidates the kernel's cached attributes of an inode.
    pub(super) fn invalidate_attributes(&self, node: u64) {
        invalidate_attributes(&self.notifier, node);
    }
}

/// Invalidates the kernel's cached attributes of an inode.
pub(super) fn invalidate_attributes(notifier: &OnceLock<Notifier>, node: u64) {
    if let Some(notifier) = notifier.get() {
        // A negative offset keeps the pages. An error means that the kernel does not have the inode.
        let _ = notifier.inval_inode(node, -1, 0);
    }
}
