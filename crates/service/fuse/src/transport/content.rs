//! Requests for the content of files, with modes of fallocate(2) and file handles.
//!
//! A file handle of the protocol has 64 bits: the server's number ([`Opened::handle`](crate::Opened)), and
//! two bits that this module adds.
//!
//! ```text
//!   bit 63         bit 62         bits 61..0
//!   direct I/O     buffered       the server's number; 0: opens are not tracked
//! ```
//!
//! The offset of a write is taken as the kernel sends it. This is right for appends, too: the kernel has the
//! size, and serializes the writes of a file.
//!
//! Does **not** own: the dispatch of requests (see the parent module), the content (see [`Serve`]).
//!
//! Source: fallocate(2), copy_file_range(2).

use std::sync::Arc;

use extant_fuse_lowlevel::protocol::{CopyFileRangeIn, FallocateIn, LseekOut, WriteIn, WriteOut, flag};
use extant_fuse_lowlevel::{Reply, Request};
use extant_volume::{Allocate, Seek, WriteAccess};
use rustix::fs::OFlags;

use super::reserve::Requester;
use super::{Transport, changes, convert, fail};
use crate::{Errno, Serve};

/// The largest reply to a read. The kernel requests at most 1 MiB unless fs.fuse.max_pages_limit was raised.
const READ_MAX: usize = 16 << 20;
/// Reads of at least this many bytes are spliced. For smaller reads three system calls cost more than the
/// copy.
const SPLICE_MIN: usize = 64 << 10;

/// Modes of fallocate(2), linux/falloc.h.
const KEEP_SIZE: u32 = 0x01;
const PUNCH_HOLE: u32 = 0x02;
const COLLAPSE_RANGE: u32 = 0x08;
const ZERO_RANGE: u32 = 0x10;
const INSERT_RANGE: u32 = 0x20;
const UNSHARE_RANGE: u32 = 0x40;
const WRITE_ZEROES: u32 = 0x80;

/// Bytes that one request copies at most. Between requests the caller can be interrupted.
const COPY_MAX: u64 = 64 << 20;

/// Decodes a mode of fallocate(2).
///
/// # Errors
/// [`Errno::OPNOTSUPP`]: an unknown flag, or an invalid combination.
fn allocate_of(mode: u32) -> Result<Allocate, Errno> {
    const PUNCH: u32 = PUNCH_HOLE | KEEP_SIZE;
    const ZERO_KEEP: u32 = ZERO_RANGE | KEEP_SIZE;
    const UNSHARE_KEEP: u32 = UNSHARE_RANGE | KEEP_SIZE;
    match mode {
        0 => Ok(Allocate::Reserve),
        KEEP_SIZE => Ok(Allocate::Keep),
        PUNCH => Ok(Allocate::Punch),
        ZERO_RANGE => Ok(Allocate::Zero),
        ZERO_KEEP => Ok(Allocate::ZeroKeep),
        COLLAPSE_RANGE => Ok(Allocate::Collapse),
        INSERT_RANGE => Ok(Allocate::Insert),
        UNSHARE_RANGE | UNSHARE_KEEP => Ok(Allocate::Unshare),
        WRITE_ZEROES => Ok(Allocate::WriteZeroes),
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// The file is open for direct I/O: because it is append-only, so that it cannot be mapped for writing, or
/// because space is low.
const DIRECT_IO: u64 = 1 << 63;
/// The kernel buffers writes through this handle (`writeback_cache`).
const BUFFERED: u64 = 1 << 62;

/// The protocol's file handle of an open file.
pub(super) fn handle(number: u64, is_direct_io: bool, is_buffered: bool) -> u64 {
    number | if is_direct_io { DIRECT_IO } else { 0 } | if is_buffered { BUFFERED } else { 0 }
}

/// The server's number of an open file.
pub(super) fn number_of(handle: u64) -> u64 {
    handle & !(DIRECT_IO | BUFFERED)
}

/// Does the kernel buffer writes through this handle?
pub(super) fn is_buffered(handle: u64) -> bool {
    handle & BUFFERED != 0
}

/// Does a write through this handle bypass the kernel's page cache?
fn is_direct_io(handle: u64, flags: u32) -> bool {
    handle & DIRECT_IO != 0 || flags & OFlags::DIRECT.bits() != 0
}

/// Whether the inode's flags still have to be checked: if opens are tracked, they were checked at open.
fn write_access_of(handle: u64) -> WriteAccess {
    if number_of(handle) == 0 { WriteAccess::Flags } else { WriteAccess::Opened }
}

impl<S: Serve> Transport<S> {
    pub(super) fn read(&self, node: u64, offset: u64, size: u32, reply: Reply) {
        let size = (size as usize).min(READ_MAX);
        let reply = if size >= SPLICE_MIN { self.splice(node, offset, size, reply) } else { Some(reply) };
        let Some(reply) = reply else { return };
        reply.read(size, |buffer| {
            let read = convert::ino_of(node).and_then(|ino| self.serve.read(ino, offset, buffer));
            read.map_err(|errno| errno.0)
        });
    }

    /// Replies to a read by splice(2). Returns the reply if that is not possible.
    fn splice(&self, node: u64, offset: u64, size: usize, reply: Reply) -> Option<Reply> {
        let Ok(ino) = convert::ino_of(node) else { return Some(reply) };
        let mut reply = Some(reply);
        // An error is found again by the read that follows.
        let _ = self.serve.file_range(ino, offset, size as u64, &mut |file, at| {
            reply = reply.take().and_then(|reply| reply.splice(file, at, size));
        });
        reply
    }

    pub(super) fn write(&self, request: &Request<'_>, asked: &WriteIn, bytes: &[u8], reply: Reply) {
        let (node, offset) = (request.node(), asked.offset);
        let is_writeback = asked.write_flags & flag::WRITE_CACHE != 0;
        let written = convert::ino_of(node).and_then(|ino| {
            if asked.write_flags & flag::WRITE_KILL_SUIDGID != 0 {
                self.set_id.clear(request, node, ino)?;
            }
            if is_writeback {
                // The kernel ignores the size in the reply to a write from its page cache, so a short write
                // must fail.
                let write = || match self.serve.write(WriteAccess::Writeback, ino, offset, bytes)? {
                    len if len == bytes.len() => Ok(len),
                    _ => Err(Errno::NOSPC),
                };
                return self.write_cache.for_writer(ino, write);
            }
            let access = write_access_of(asked.fh);
            self.with_reserve(request, || self.serve.write(access, ino, offset, bytes))
        });
        match convert::ino_of(node) {
            Ok(ino) if is_writeback => self.write_cache.note_writeback(node, ino, bytes.len(), written.err()),
            _ => self.write_cache.note_taken(),
        }
        match written {
            Ok(len) => {
                let done = move || reply.structure(&WriteOut { size: len as u32, pad: 0 });
                if is_direct_io(asked.fh, asked.flags) && len > 0 {
                    // After asynchronous direct I/O the kernel does not invalidate its pages itself.
                    self.invalidator.invalidate_then(node, offset..offset + len as u64, done);
                } else {
                    done();
                }
            }
            Err(errno) => fail(reply, errno),
        }
    }

    pub(super) fn fallocate(&self, request: &Request<'_>, asked: &FallocateIn, reply: Reply) {
        let node = request.node();
        let permitted = convert::ino_of(node).and_then(|ino| {
            let how = allocate_of(asked.mode)?;
            self.set_id.clear(request, node, ino)?;
            Ok((ino, how))
        });
        let (serve, invalidator) = (Arc::clone(&self.serve), Arc::clone(&self.invalidator));
        let (requester, offset, len) = (Requester::of(request), asked.offset, asked.length);
        self.write_cache.run_with_space(len, move || {
            let allocated = permitted.and_then(|(ino, how)| {
                requester.with_reserve(&*serve, || serve.allocate(ino, how, offset, len))
            });
            if allocated.is_err() {
                // A part may have been allocated, and may have changed the size.
                invalidator.invalidate_attributes(node);
            }
            changes::done(allocated, reply);
        });
    }

    pub(super) fn copy_file_range(&self, request: &Request<'_>, asked: &CopyFileRangeIn, reply: Reply) {
        let permitted = convert::ino_of(request.node()).and_then(|from| {
            let to = convert::ino_of(asked.nodeid_out)?;
            self.set_id.clear(request, asked.nodeid_out, to)?;
            Ok(((from, asked.off_in), (to, asked.off_out)))
        });
        let access = write_access_of(asked.fh_out);
        let (serve, invalidator) = (Arc::clone(&self.serve), Arc::clone(&self.invalidator));
        let (requester, node_out) = (Requester::of(request), asked.nodeid_out);
        let len = asked.len.min(COPY_MAX);
        self.write_cache.run_with_space(len, move || {
            let copied = permitted
                .and_then(|(from, to)| requester.with_reserve(&*serve, || serve.copy(access, from, to, len)));
            // At most COPY_MAX.
            match copied {
                Ok(size) => reply.structure(&WriteOut { size: size as u32, pad: 0 }),
                Err(errno) => {
                    invalidator.invalidate_attributes(node_out);
                    fail(reply, errno);
                }
            }
        });
    }

    /// SEEK_DATA and SEEK_HOLE, after the writeback of the file's dirty data.
    pub(super) fn seek(&self, node: u64, offset: u64, what: Seek, reply: Reply) {
        let serve = Arc::clone(&self.serve);
        self.write_cache.write_file_back_then(node, move || {
            let place = convert::ino_of(node).and_then(|ino| {
                // A negative offset.
                let offset = i64::try_from(offset).map_err(|_| Errno::NXIO)?;
                serve.seek(ino, offset as u64, what)
            });
            match place {
                Ok(offset) => reply.structure(&LseekOut { offset }),
                Err(errno) => fail(reply, errno),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_of_fallocate_are_known_or_refused() {
        let known: Vec<u32> = (0..0x200_u32).filter(|mode| allocate_of(*mode).is_ok()).collect();
        assert_eq!(known, [0, 1, 3, 8, 0x10, 0x11, 0x20, 0x40, 0x41, 0x80]);
        assert_eq!(allocate_of(PUNCH_HOLE), Err(Errno::OPNOTSUPP), "a hole keeps the size");
        assert_eq!(allocate_of(u32::MAX), Err(Errno::OPNOTSUPP));
    }
}
