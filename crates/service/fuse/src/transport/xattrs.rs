//! Extended attributes: those of files, and those that the mount adds.
//!
//! Does **not** own: the attributes of files (see [`Serve`]), the state of the mount in one of them (see
//! [`crate::status`]). This module has no state.

use extant_base::Ino;
use extant_fuse_lowlevel::protocol::ROOT_ID;
use extant_fuse_lowlevel::{Reply, Request};
use extant_volume::SetXattr;

use super::{Transport, convert, fail, privileges};
use crate::status::{MountStatus, VALUE_MAX};
use crate::{Caller, Errno, Serve};

/// Extended attribute of every inode: the process id of the server, in decimal. listxattr(2) does not show
/// it.
pub const SERVER_ATTRIBUTE: &str = "extant.server";
/// Extended attribute of the root, which may be set: the UUID of the file system, 16 bytes. listxattr(2) does
/// not show it. (FUSE cannot pass on EXT4_IOC_SETFSUUID, whose argument is longer than its number says.)
pub const UUID_ATTRIBUTE: &str = "extant.uuid";
/// Extended attribute of every inode, which exists after the file system was shut down. listxattr(2) does not
/// show it.
pub const SHUTDOWN_ATTRIBUTE: &str = "extant.shutdown";
/// Extended attribute of the root: "rw" if the volume is open for writing, else "ro". A remount of the mount
/// does not change it. listxattr(2) does not show it.
pub const MODE_ATTRIBUTE: &str = "extant.mode";

/// Extended attribute of the root: statistics of the extent-status cache, in the form of the kernel's
/// `es_shrinker_info`. listxattr(2) does not show it.
pub const EXTENT_STATS_ATTRIBUTE: &str = "extant.es_shrinker_info";
/// Extended attribute of the root: statistics of the block allocator, in the form of the kernel's `mb_stats`.
/// listxattr(2) does not show it.
pub const ALLOCATOR_STATS_ATTRIBUTE: &str = "extant.mb_stats";

/// XATTR_CREATE and XATTR_REPLACE of setxattr(2).
const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;

/// How much longer the state of the mount may be than shortly before.
const STATUS_GROWTH: usize = 2048;

impl<S: Serve> Transport<S> {
    pub(super) fn attribute(&self, node: u64, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let ino = convert::ino_of(node)?;
        // Any inode has it, because a bind mount may show a part of the tree without the root.
        if name == SERVER_ATTRIBUTE.as_bytes() {
            return Ok(std::process::id().to_string().into_bytes());
        }
        if name == SHUTDOWN_ATTRIBUTE.as_bytes() {
            return if self.serve.is_shut_down() { Ok(b"1".to_vec()) } else { Err(Errno::NODATA) };
        }
        if ino == Ino::ROOT && name == MODE_ATTRIBUTE.as_bytes() {
            return Ok(if self.writable { b"rw" } else { b"ro" }.to_vec());
        }
        if ino == Ino::ROOT && name == UUID_ATTRIBUTE.as_bytes() {
            return self.serve.uuid().map(Vec::from);
        }
        if ino == Ino::ROOT && name == EXTENT_STATS_ATTRIBUTE.as_bytes() {
            return self.serve.extent_cache_stats().map(String::into_bytes).ok_or(Errno::NODATA);
        }
        if ino == Ino::ROOT && name == ALLOCATOR_STATS_ATTRIBUTE.as_bytes() {
            return self.serve.allocator_stats().map(String::into_bytes).ok_or(Errno::NODATA);
        }
        self.serve.xattr(ino, name)
    }

    pub(super) fn attribute_names(&self, request: &Request<'_>) -> Result<Vec<u8>, Errno> {
        let is_root = || privileges::user_of(request) == 0;
        let names = self.serve.xattr_names(convert::ino_of(request.node())?, &is_root)?;
        let mut list = Vec::new();
        for name in names {
            list.extend_from_slice(&name);
            list.push(0);
        }
        Ok(list)
    }

    /// Answers a getxattr(2) of [`STATUS_ATTRIBUTE`](crate::STATUS_ATTRIBUTE). `size`: of the caller's
    /// buffer.
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
            value.resize((value.len() + STATUS_GROWTH).min(VALUE_MAX), 0);
        }
        reply.xattr(size, &value);
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
        let lost = self.set_id.clear_after_acl(request, ino)?;
        // An access ACL changes the mode. Without default_permissions the kernel does not update it.
        if lost || !self.default_permissions {
            self.invalidator.invalidate_attributes(node);
        }
        Ok(())
    }

    pub(super) fn remove_attribute(&self, node: u64, name: &[u8]) -> Result<(), Errno> {
        self.serve.remove_xattr(convert::ino_of(node)?, name)
    }

    /// Sets the UUID: see [`UUID_ATTRIBUTE`].
    pub(super) fn set_uuid(&self, request: &Request<'_>, node: u64, value: &[u8]) -> Result<(), Errno> {
        self.check_administrator(Caller { uid: privileges::user_of(request) })?;
        let uuid = value.try_into().ok().filter(|_| node == ROOT_ID);
        self.serve.set_uuid(uuid.ok_or(Errno::INVAL)?)
    }
}
