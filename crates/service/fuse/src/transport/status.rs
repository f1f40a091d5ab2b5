//! The attribute with the state of the mount: see [`crate::status`].

use extant_fuse_lowlevel::{Reply, Request};

use super::{Transport, fail, privileges};
use crate::status::{MountStatus, VALUE_MAX};
use crate::{Caller, Errno, Serve};

/// How much longer a value may be than one shortly before.
const GROWTH: usize = 2048;

impl<S: Serve> Transport<S> {
    /// Answers a getxattr(2) of the state. `size`: of the caller's buffer.
    pub(super) fn answer_status(&self, request: &Request<'_>, size: u32, reply: Reply) {
        if !self.serve.may_administer(Caller { uid: privileges::user_of(request) }) {
            return fail(reply, Errno::PERM);
        }
        let requests = (&reply.statistics()[..], reply.connection_age());
        let server = self.serve.status();
        let status = MountStatus::new(requests, reply.is_over_ring(), self.writable, server);
        let mut value = status.encode();
        if size == 0 {
            // The value may be longer when the caller has made room for it.
            value.resize((value.len() + GROWTH).min(VALUE_MAX), 0);
        }
        reply.xattr(size, &value);
    }
}
