//! Room for the newer fields of inodes that were made before there were any: times with nanoseconds and past
//! 2038, birth, project.
//!
//! ```text
//!   on disk:    128 bytes | 4 of newer fields | attributes ...............
//!   in memory:  128 bytes | 32 of newer fields        | attributes ......      and so on disk, once it changes
//! ```
//!
//! As the kernel, which makes room in each inode that it changes. Here room is made when the inode comes into
//! memory to be changed, so that no operation meets an inode whose attributes move while it looks at them.
//! Where the attributes fill the inode it stays as it is, and [`fit`](layout::Inode::fit) cuts what it cannot
//! hold.
//!
//! Does **not** own: inodes of 128 bytes, which have no such room.

use extant_ondisk::inode as layout;
use extant_ondisk::xattr::{Attr, decode_ibody, encode_ibody, ibody_len};

use crate::Shared;

/// The bytes behind the fixed fields when those have room for all newer ones; `None` where they have it
/// already, or it cannot be had.
pub(super) fn made(shared: &Shared, fields: &layout::Inode, body: &[u8]) -> Option<Vec<u8>> {
    if usize::from(fields.extra_isize) >= layout::EXTRA_SIZE {
        return None;
    }
    let room = shared.geometry.inode_size.checked_sub(layout::BASE_SIZE + layout::EXTRA_SIZE)?;
    moved(fields.extra_isize, body, room)
}

/// The attributes in `room` bytes; `None` if they are too many.
fn moved(extra_isize: u16, body: &[u8], room: usize) -> Option<Vec<u8>> {
    // Without newer fields there are no attributes either, whatever stands there.
    let stored = if extra_isize == 0 { Vec::new() } else { decode_ibody(body).ok()? };
    let attrs: Vec<Attr<'_>> = stored.iter().map(|stored| stored.attr).collect();
    let mut moved = vec![0; room];
    if !attrs.is_empty() {
        if ibody_len(&attrs) > room & !3 {
            return None;
        }
        encode_ibody(&attrs, &mut moved).ok()?;
    }
    Some(moved)
}
