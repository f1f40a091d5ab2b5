//! Root's reserve: blocks that are reserved (mke2fs -m) for the users that the superblock names.
//!
//! ```text
//!   the library, by itself         acts as root
//!   WriteOptions::keep_reserve     acts as an ordinary user; a server sets the privilege for each operation:
//!   Acting::as_root()              while it lives, this thread's operations may use the reserve
//! ```
//!
//! Does **not** own: the size of the reserve, and the allocation (see the allocator). Space reserved for a
//! delayed write belongs to that write, whichever thread allocates its blocks.
//!
//! Source: kernel Documentation/filesystems/ext4/allocators.rst; s_def_resuid and s_def_resgid in super.rst.

use extant_alloc::Privilege;

use super::with_room;
use crate::{Fault, Refusal, Volume};

/// While it lives, the operations of its thread may use the reserve, or may not.
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub struct Acting {
    _of_thread: extant_alloc::Acting,
}

impl Acting {
    /// Operations may use the reserve.
    pub fn as_root() -> Self {
        Self { _of_thread: extant_alloc::Acting::with(Privilege::Root) }
    }

    /// Operations may not use the reserve.
    pub fn as_user() -> Self {
        Self { _of_thread: extant_alloc::Acting::with(Privilege::User) }
    }
}

impl Volume {
    /// Returns whether a user may take blocks of the reserve: the user that the superblock names (`tune2fs
    /// -u`; root by default), or a member of the group that it names (`tune2fs -g`), unless that is root's
    /// group. A user with CAP_SYS_RESOURCE may, too; the caller must check that itself.
    #[must_use]
    pub fn may_use_reserve(&self, uid: u32, is_in_group: impl FnOnce(u32) -> bool) -> bool {
        let sb = self.superblock();
        uid == sb.def_resuid || sb.def_resgid != 0 && is_in_group(sb.def_resgid)
    }

    /// Returns whether this thread would find space for `bytes` of new data. If freed blocks wait for a
    /// commit, and only they suffice, commits first.
    ///
    /// # Errors
    /// The commit failed.
    pub fn has_space(&self, bytes: u64) -> Result<bool, Fault> {
        let Some(writer) = &self.writer else { return Ok(false) };
        let alloc = &writer.keeper.alloc;
        let blocks = bytes.div_ceil(self.geometry().block_size.bytes());
        let enough = || match alloc.available_blocks() >= blocks {
            true => Ok(()),
            false => Err(Fault::from(Refusal::NoSpace)),
        };
        match with_room(&writer.journal, || alloc.pending_blocks() > 0, enough) {
            Ok(()) => Ok(true),
            Err(fault) if fault.is(Refusal::NoSpace) => Ok(false),
            Err(fault) => Err(fault),
        }
    }
}
