//! Requests that change names or the whole file system, or make changes durable: how they map to [`Serve`],
//! and which cached state they invalidate.
//!
//! Does **not** own: the dispatch of requests (see the parent module), the changes themselves (see
//! [`Serve`]), listings and lookup counts (see `names`), the content of files (see `content`), extended
//! attributes (see `xattrs`).

use std::sync::Arc;

use extant_base::Ino;
use extant_fuse_lowlevel::{Reply, Request};
use extant_ondisk::inode::flags;
use extant_volume::{New, Shutdown, Stat};

use super::reserve::Requester;
use super::{Transport, convert, fail, privileges};
use crate::attributes::{self, Ioctl};
use crate::{Caller, Errno, Opener, Serve};

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
        self.write_cache.keep_asking(stat);
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

    /// FSYNC of the root and SYNCFS: makes everything durable, also the data that the kernel still has.
    pub(super) fn sync_all(&self, opener: Opener, reply: Reply) {
        if !self.writable {
            return fail(reply, Errno::NOSYS);
        }
        let serve = Arc::clone(&self.serve);
        let sync = move || done(serve.sync(Ino::ROOT, opener, false), reply);
        self.write_cache.write_back_then(sync);
    }

    /// RENAME. If it replaces a file, the kernel's data of the new file is written back before.
    pub(super) fn rename(
        &self,
        requester: Requester,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        flags: u32,
        reply: Reply,
    ) {
        let names = Arc::clone(&self.names);
        let Some(ino) = self.write_cache.written_replacement(from, to) else {
            return done(names.rename(requester, from, to, flags), reply);
        };
        let (from, to) = ((from.0, from.1.to_vec()), (to.0, to.1.to_vec()));
        self.write_cache.write_file_back_then(ino.0.into(), move || {
            done(names.rename(requester, (from.0, &from.1), (to.0, &to.1), flags), reply);
        });
    }

    /// Shuts the file system down, and invalidates the kernel's pages of all files, so that reads fail.
    pub(super) fn shut_down(&self, caller: Caller, how: Shutdown) -> Result<(), Errno> {
        self.check_administrator(caller)?;
        let done = self.serve.shut_down(how);
        // Before the reply, so that the next buffered write sends GETATTR, which fails.
        for ino in self.write_cache.written() {
            self.invalidator.invalidate_attributes(ino.0.into());
        }
        for ino in self.names.lookups.inodes() {
            self.invalidator.invalidate_then(ino.0.into(), 0..u64::MAX, || ());
        }
        done
    }

    /// Fails unless the caller may trim, label, resize or shut down the file system.
    pub(super) fn check_administrator(&self, caller: Caller) -> Result<(), Errno> {
        if self.serve.may_administer(caller) { Ok(()) } else { Err(Errno::PERM) }
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
                self.invalidator.invalidate_attributes(node);
            }
        }
        Ok(Vec::new())
    }
}
