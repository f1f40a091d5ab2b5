//! The users of reserved blocks: the user and the group that the superblock names, and holders of
//! CAP_SYS_RESOURCE.
//!
//! A request has its user and one group. Further groups and capabilities are read from the system only when
//! there is no space otherwise. Bytes that the kernel cached before it sent them have no known writer.
//!
//! Source: kernel include/uapi/linux/fuse.h (FUSE_WRITE_CACHE), linux/capability.h; proc_pid_status(5).

use extant_fuse_lowlevel::Request;
use extant_volume::Acting;

use super::{Transport, privileges};
use crate::{Errno, Serve};

impl<S: Serve> Transport<S> {
    /// Runs an operation that takes space, with the reserve if its caller may use it. A refusal for lack of
    /// space has changed nothing.
    pub(super) fn with_reserve<R>(
        &self,
        request: &Request<'_>,
        mut work: impl FnMut() -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let (uid, gid) = (request.uid(), request.gid());
        if self.serve.may_use_reserve(uid, &|group| group == gid) {
            let _root = Acting::as_root();
            return work();
        }
        let done = {
            let _anybody = Acting::as_anybody();
            work()
        };
        match done {
            Err(Errno::NOSPC) if self.is_let_in(uid, request.pid()) => {
                let _root = Acting::as_root();
                work()
            }
            done => done,
        }
    }

    fn is_let_in(&self, uid: u32, thread: u32) -> bool {
        let status = privileges::status(thread);
        privileges::has_capability(thread, &status, privileges::SYS_RESOURCE)
            || self.serve.may_use_reserve(uid, &|group| privileges::has_group(&status, group))
    }
}
