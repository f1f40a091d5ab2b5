//! Makes space for newer fields in inodes that were created without them: times with nanoseconds and after
//! 2038, creation time, project.
//!
//! ```text
//!   on disk:    128 bytes | 4 of newer fields | attributes ...
//!   in memory:  128 bytes | 32 of newer fields        | attributes ...      on disk after the next change
//! ```
//!
//! The kernel makes this space in each inode that it changes. Here it is made when the inode is loaded for
//! changes, so that attributes never move during an operation. If the attributes fill the inode, it stays as
//! it is, and [`fit`](layout::Inode::fit) truncates fields that it cannot hold.
//!
//! Does **not** own: inodes of 128 bytes, which have no space for newer fields.

use extant_ondisk::inode as layout;
use extant_ondisk::xattr::{Attr, decode_ibody, encode_ibody, ibody_len};

use crate::Shared;

/// The bytes after the fixed fields, with space for all newer fields; `None` if the inode has that space
/// already, or cannot have it.
pub(super) fn made(shared: &Shared, fields: &layout::Inode, body: &[u8]) -> Option<Vec<u8>> {
    if usize::from(fields.extra_isize) >= layout::EXTRA_SIZE {
        return None;
    }
    let room = shared.geometry.inode_size.checked_sub(layout::BASE_SIZE + layout::EXTRA_SIZE)?;
    moved(fields.extra_isize, body, room)
}

/// Encodes the attributes in `room` bytes; `None` if they do not fit.
fn moved(extra_isize: u16, body: &[u8], room: usize) -> Option<Vec<u8>> {
    // Without newer fields there are no attributes, whatever the bytes are.
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
