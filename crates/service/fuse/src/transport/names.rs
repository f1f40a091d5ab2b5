//! Changes of names, as far as they need no reply: a rename may run in another thread than the one that got
//! the request (see `writeback`).
//!
//! State: the listings that are being read, and the kernel's lookup counts.

use std::sync::Arc;

use extant_base::Ino;
use extant_volume::Rename;

use super::convert;
use super::lookups::Lookups;
use super::reserve::Requester;
use crate::listing::Listings;
use crate::{Errno, Serve};

/// Flags of renameat2(2).
const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;
const RENAME_WHITEOUT: u32 = 4;

/// What a change of names concerns.
pub(super) struct NameState<S> {
    pub(super) serve: Arc<S>,
    pub(super) listings: Listings,
    pub(super) lookups: Lookups,
}

impl<S: Serve> NameState<S> {
    pub(super) fn new(serve: Arc<S>) -> Self {
        Self { serve, listings: Listings::default(), lookups: Lookups::default() }
    }

    pub(super) fn rename(
        &self,
        requester: Requester,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        flags: u32,
    ) -> Result<(), Errno> {
        let how = match flags {
            0 => Rename::Replace,
            RENAME_NOREPLACE => Rename::NoReplace,
            RENAME_EXCHANGE => Rename::Exchange,
            RENAME_WHITEOUT => Rename::Whiteout,
            // The kernel has looked up the new name under the directory's lock: it is free.
            both if both == RENAME_NOREPLACE | RENAME_WHITEOUT => Rename::Whiteout,
            _ => return Err(Errno::INVAL),
        };
        let (from_dir, to_dir) = (convert::ino_of(from.0)?, convert::ino_of(to.0)?);
        let rename = || self.serve.rename((from_dir, from.1), (to_dir, to.1), how);
        let moved = requester.with_reserve(&*self.serve, rename);
        for dir in [from_dir, to_dir] {
            self.listings.invalidate(dir);
        }
        self.note_unlinked(moved?);
        Ok(())
    }

    /// Marks an inode that lost its last name. If the kernel does not hold it, releases it at once.
    pub(super) fn note_unlinked(&self, nameless: Option<Ino>) {
        if let Some(ino) = nameless.filter(|ino| !self.lookups.mark_unlinked(*ino)) {
            self.serve.forget(ino);
        }
    }
}
