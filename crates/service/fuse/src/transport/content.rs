//! Values of requests that change the content of files: modes of fallocate(2), and file handles.
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

use extant_volume::{Allocate, WriteAccess};
use rustix::fs::OFlags;

use crate::Errno;

/// Modes of fallocate(2), linux/falloc.h.
const KEEP_SIZE: u32 = 0x01;
const PUNCH_HOLE: u32 = 0x02;
const COLLAPSE_RANGE: u32 = 0x08;
const ZERO_RANGE: u32 = 0x10;
const INSERT_RANGE: u32 = 0x20;
const UNSHARE_RANGE: u32 = 0x40;
const WRITE_ZEROES: u32 = 0x80;

/// Bytes that one request copies at most. Between requests the caller can be interrupted.
pub(super) const COPY_MAX: u64 = 64 << 20;

/// Decodes a mode of fallocate(2).
///
/// # Errors
/// [`Errno::OPNOTSUPP`]: an unknown flag, or an invalid combination.
pub(super) fn allocate_of(mode: u32) -> Result<Allocate, Errno> {
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
pub(super) fn is_direct_io(handle: u64, flags: u32) -> bool {
    handle & DIRECT_IO != 0 || flags & OFlags::DIRECT.bits() != 0
}

/// Whether the inode's flags still have to be checked: if opens are tracked, they were checked at open.
pub(super) fn write_access_of(handle: u64) -> WriteAccess {
    if number_of(handle) == 0 { WriteAccess::Flags } else { WriteAccess::Opened }
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
