//! System calls for block devices and file systems that have no safe wrapper.

#![allow(unsafe_code)]

use std::fs::File;

use rustix::io;
use rustix::ioctl::{Setter, ioctl, opcode};

/// `BLKDISCARD`: discards `len` bytes from `offset` on; both are multiples of the device's sectors. Source:
/// `include/uapi/linux/fs.h`, block(4).
pub(crate) fn discard(file: &File, offset: u64, len: u64) -> io::Result<()> {
    const BLKDISCARD: rustix::ioctl::Opcode = opcode::none(0x12, 119);
    // SAFETY: the call reads two 64-bit numbers, start and length, through the pointer that it gets. `Setter`
    // passes a pointer to its own copy of them, which lives until the call is over. Nothing is written
    // through the pointer.
    unsafe { ioctl(file, Setter::<BLKDISCARD, [u64; 2]>::new([offset, len])) }
}

/// `EXT4_IOC_RESIZE_FS`: asks the file system that `file` belongs to for a size of `blocks` of its blocks.
///
/// # Errors
/// The system's: ENOTTY and EOPNOTSUPP if the file system does not change its size.
pub fn resize_file_system(file: &File, blocks: u64) -> std::io::Result<()> {
    const RESIZE_FS: rustix::ioctl::Opcode = opcode::write::<u64>(b'f', 16);
    // SAFETY: as above; the call reads one 64-bit number.
    Ok(unsafe { ioctl(file, Setter::<RESIZE_FS, u64>::new(blocks)) }?)
}
