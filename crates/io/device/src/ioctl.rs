//! System calls for block devices and file systems that have no safe wrapper.

#![allow(unsafe_code)]

use std::fs::File;

use rustix::io;
use rustix::ioctl::{Setter, Updater, ioctl, opcode};
use std::os::fd::{AsRawFd, BorrowedFd};

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

/// The argument of `EXT4_IOC_MOVE_EXT`. Source: kernel Documentation/admin-guide/ext4.rst, e4defrag(8).
#[repr(C)]
struct MoveExtents {
    reserved: u32,
    donor: u32,
    start: u64,
    donor_start: u64,
    len: u64,
    moved: u64,
}

/// `EXT4_IOC_MOVE_EXT`: the kernel's ext4 copies `len` blocks of `file` from its block `start` on into the
/// blocks that `donor` has at the same place, and exchanges the blocks of both. Returns the number of blocks
/// that were exchanged, which may be smaller. Both are open for writing.
///
/// # Errors
/// The system's: EOPNOTSUPP and ENOTTY if the file system cannot do this.
pub fn move_extents(file: &File, donor: BorrowedFd<'_>, start: u64, len: u64) -> std::io::Result<u64> {
    const MOVE_EXT: rustix::ioctl::Opcode = opcode::read_write::<MoveExtents>(b'f', 15);
    let donor = donor.as_raw_fd().cast_unsigned();
    let mut args = MoveExtents { reserved: 0, donor, start, donor_start: start, len, moved: 0 };
    // SAFETY: the call reads and writes one structure of this layout, which `Updater` borrows until the call
    // is over. The descriptor in it is borrowed, so it stays open.
    unsafe { ioctl(file, Updater::<MOVE_EXT, MoveExtents>::new(&mut args)) }?;
    Ok(args.moved)
}
