//! Root's reserve: blocks that are kept back (mke2fs -m) from all but those whom the superblock names.
//!
//! ```text
//!   the library, by itself         acts as root
//!   WriteOptions::keep_reserve     acts as anybody; who serves others says who it is for, operation by operation:
//!   Acting::as_root()              from here to its end this thread's operations may use the reserve
//! ```
//!
//! Does **not** own: how much there is, and the taking (see the allocator). What was promised to a write is its own, whoever places it.
//!
//! Source: kernel Documentation/filesystems/ext4/allocators.rst; s_def_resuid and s_def_resgid in super.rst.

use space::Privilege;

use crate::Volume;

/// As long as it lives, operations of its thread may use the reserve, or may not.
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub struct Acting {
    _of_thread: space::Acting,
}

impl Acting {
    /// As who may use the reserve.
    pub fn as_root() -> Self {
        Self { _of_thread: space::Acting::with(Privilege::Root) }
    }

    /// As who may not.
    pub fn as_anybody() -> Self {
        Self { _of_thread: space::Acting::with(Privilege::Everybody) }
    }
}

impl Volume {
    /// May a user take blocks of the reserve? He is the one that the superblock names (root, if nothing else was said; `tune2fs -u`), or
    /// in the group that it names, unless that is root's (`tune2fs -g`). Who has CAP_SYS_RESOURCE may, too: that is for the caller
    /// to know.
    #[must_use]
    pub fn may_use_reserve(&self, uid: u32, is_in_group: impl FnOnce(u32) -> bool) -> bool {
        let sb = self.superblock();
        uid == sb.def_resuid || sb.def_resgid != 0 && is_in_group(sb.def_resgid)
    }
}
