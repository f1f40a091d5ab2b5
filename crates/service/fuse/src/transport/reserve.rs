//! Which requests may use the reserved blocks: those of the user and the group that the superblock names, and
//! of processes with CAP_SYS_RESOURCE.
//!
//! A request has the caller's user and one group, or neither (see `privileges`). The rest is read from /proc,
//! which is slow, so this happens only after an operation failed for lack of space. Writes from the kernel's
//! page cache do not name the process that wrote the data. While space is low, it is the last one that called
//! write(2) on the file (see `writeback`); before, the reserve is not needed.
//!
//! Does **not** own: the reserve, and the privilege of a thread (see [`Acting`]). This module has no
//! state.
//!
//! Source: kernel include/uapi/linux/fuse.h (FUSE_WRITE_CACHE), linux/capability.h; proc_pid_status(5).

use extant_fuse_lowlevel::Request;
use extant_volume::Acting;

use super::{Transport, privileges};
use crate::{Errno, Serve};

/// The process that made a request. `uid` and `gid` are `u32::MAX` if the request does not have them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Requester {
    uid: u32,
    gid: u32,
    thread: u32,
}

impl Requester {
    pub(super) fn of(request: &Request<'_>) -> Self {
        Self { uid: request.uid(), gid: request.gid(), thread: request.pid() }
    }

    /// Runs an operation that allocates, with the reserve if the caller may use it. `work` may be called
    /// twice, so it must not have changed anything if it fails with ENOSPC.
    pub(super) fn with_reserve<R>(
        self,
        serve: &impl Serve,
        mut work: impl FnMut() -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let is_known = self.uid != u32::MAX;
        if is_known && serve.may_use_reserve(self.uid, &|group| group == self.gid) {
            let _root = Acting::as_root();
            return work();
        }
        let done = {
            let _user = Acting::as_user();
            work()
        };
        match done {
            Err(Errno::NOSPC) if self.has_reserve_access(serve) => {
                let _root = Acting::as_root();
                work()
            }
            done => done,
        }
    }

    /// May the caller use the reserve by its user, a group or a capability?
    fn has_reserve_access(self, serve: &impl Serve) -> bool {
        let status = privileges::status(self.thread);
        privileges::has_capability(self.thread, &status, privileges::SYS_RESOURCE)
            || serve
                .may_use_reserve(privileges::user_in(&status), &|group| privileges::has_group(&status, group))
    }
}

impl<S: Serve> Transport<S> {
    /// As [`Requester::with_reserve`], for the process that made the request.
    pub(super) fn with_reserve<R>(
        &self,
        request: &Request<'_>,
        work: impl FnMut() -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        Requester::of(request).with_reserve(&*self.serve, work)
    }
}
