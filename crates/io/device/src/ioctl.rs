//! System calls for block devices and file systems that have no safe wrapper.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io;
use rustix::ioctl::{Getter, Setter, Updater, ioctl, opcode};

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

/// Bytes of the argument of `FS_IOC_SETFSLABEL`.
const LABEL_LEN: usize = 256;

/// `FS_IOC_SETFSLABEL`: gives the file system that `file` belongs to another label.
///
/// # Errors
/// The system's: EINVAL for a label that is too long, ENOTTY if the file system has none.
pub fn set_label(file: &File, label: &[u8]) -> std::io::Result<()> {
    const SET_LABEL: rustix::ioctl::Opcode = opcode::write::<[u8; LABEL_LEN]>(0x94, 50);
    let mut padded = [0; LABEL_LEN];
    // The last byte stays zero.
    let fits = padded[..LABEL_LEN - 1].get_mut(..label.len());
    fits.ok_or(io::Errno::INVAL)?.copy_from_slice(label);
    // SAFETY: as above; the call reads 256 bytes.
    Ok(unsafe { ioctl(file, Setter::<SET_LABEL, [u8; LABEL_LEN]>::new(padded)) }?)
}

/// `FS_IOC_GETFSLABEL`: the label of the file system that `file` belongs to.
///
/// # Errors
/// The system's: ENOTTY if the file system has none.
pub fn label(file: &File) -> std::io::Result<Vec<u8>> {
    const GET_LABEL: rustix::ioctl::Opcode = opcode::read::<[u8; LABEL_LEN]>(0x94, 49);
    // SAFETY: as above; the call writes 256 bytes, and any bytes are valid.
    let bytes = unsafe { ioctl(file, Getter::<GET_LABEL, [u8; LABEL_LEN]>::new()) }?;
    Ok(bytes.into_iter().take_while(|byte| *byte != 0).collect())
}

/// The argument of `EXT4_IOC_GETFSUUID` and `EXT4_IOC_SETFSUUID`: length, flags, and the UUID, which the
/// number does not count.
/// Source: kernel Documentation/userspace-api/ioctl/ioctl-number.rst, tune2fs(8).
#[repr(C)]
struct FsUuid {
    len: u32,
    flags: u32,
    uuid: [u8; 16],
}

/// `EXT4_IOC_GETFSUUID`: the UUID of the file system of the kernel's ext4 that `file` belongs to. (The answer
/// to `FS_IOC_GETFSUUID` does not change during a mount.)
///
/// # Errors
/// The system's: ENOTTY for other file systems.
pub fn uuid(file: &File) -> std::io::Result<[u8; 16]> {
    const GET_UUID: rustix::ioctl::Opcode = opcode::read::<[u32; 2]>(b'f', 44);
    let mut arg = FsUuid { len: 16, flags: 0, uuid: [0; 16] };
    // SAFETY: the call reads the two numbers, and writes as many bytes after them as the first one says, 16:
    // all is in the structure, which `Updater` borrows until the call is over.
    unsafe { ioctl(file, Updater::<GET_UUID, FsUuid>::new(&mut arg)) }?;
    Ok(arg.uuid)
}

/// `EXT4_IOC_SETFSUUID`: gives the file system of the kernel's ext4 that `file` belongs to another UUID.
///
/// # Errors
/// The system's: EOPNOTSUPP if checksums depend on the UUID, ENOTTY for other file systems.
pub fn set_uuid(file: &File, uuid: [u8; 16]) -> std::io::Result<()> {
    const SET_UUID: rustix::ioctl::Opcode = opcode::write::<[u32; 2]>(b'f', 44);
    let arg = FsUuid { len: 16, flags: 0, uuid };
    // SAFETY: the call reads the two numbers and as many bytes after them as the first one says, 16: all of
    // the structure, which `Setter` keeps until the call is over.
    Ok(unsafe { ioctl(file, Setter::<SET_UUID, FsUuid>::new(arg)) }?)
}
