//! Root's reserve: blocks kept (mke2fs -m) for the users that the superblock names.
//!
//! ```text
//!   the library, by itself         acts as root
//!   WriteOptions::keep_reserve     acts as any user; a server names its client for each operation:
//!   Acting::as_root()              from here to its end this thread's operations may use the reserve
//! ```
//!
//! Does **not** own: its size, and allocation (see the allocator). Reserved space of a write stays its own,
//! whichever thread places it.
//!
//! Source: kernel Documentation/filesystems/ext4/allocators.rst; s_def_resuid and s_def_resgid in super.rst.

use extant_alloc::Privilege;

use crate::Volume;

/// As long as it lives, operations of its thread may use the reserve, or may not.
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub struct Acting {
    _of_thread: extant_alloc::Acting,
}

impl Acting {
    /// As a user of the reserve.
    pub fn as_root() -> Self {
        Self { _of_thread: extant_alloc::Acting::with(Privilege::Root) }
    }

    /// As a user without access to it.
    pub fn as_anybody() -> Self {
        Self { _of_thread: extant_alloc::Acting::with(Privilege::Everybody) }
    }
}

impl Volume {
    /// May a user take blocks of the reserve? If it is the one that the superblock names (default root;
    /// `tune2fs -u`), or in the group that it names, unless that is root's (`tune2fs -g`). CAP_SYS_RESOURCE
    /// allows it too: the caller checks that.
    #[must_use]
    pub fn may_use_reserve(&self, uid: u32, is_in_group: impl FnOnce(u32) -> bool) -> bool {
        let sb = self.superblock();
        uid == sb.def_resuid || sb.def_resgid != 0 && is_in_group(sb.def_resgid)
    }
}
