//! Names: lookups, listings and changes, as far as they need no reply. A rename may run in another thread
//! than the one that got the request (see `writeback`).
//!
//! Owns: the listings that are being read, and the kernel's lookup counts. Does **not** own: what a reply
//! contains (see the parent module), the names (see [`Serve`]).
//!
//! Invariant: after a change of a directory, before the reply, `listings` has no name of the directory that
//! was removed, and no batch that lacks a new one.

use std::ops::ControlFlow;
use std::sync::Arc;

use extant_base::Ino;
use extant_volume::{Cursor, New, Rename, Stat};

use super::convert;
use super::lookups::Lookups;
use super::reserve::Requester;
use crate::listing::{Listings, ReaddirMode};
use crate::{Errno, Name, Serve};

/// Flags of renameat2(2).
const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;
const RENAME_WHITEOUT: u32 = 4;

/// Result of a lookup.
pub(super) enum Found {
    Entry(Stat),
    /// The root, found through "." or "..".
    Root(Stat),
    Nothing,
}

/// The names of a mount.
pub(super) struct NameState<S> {
    serve: Arc<S>,
    listings: Listings,
    pub(super) lookups: Lookups,
}

impl<S: Serve> NameState<S> {
    pub(super) fn new(serve: Arc<S>) -> Self {
        Self { serve, listings: Listings::default(), lookups: Lookups::default() }
    }

    /// Looks up a name. The kernel looks up "." and ".." to turn an NFS file handle into a dentry, and "." in
    /// any inode.
    pub(super) fn find(&self, parent: u64, name: &[u8]) -> Result<Found, Errno> {
        let parent = convert::ino_of(parent)?;
        let found = match name {
            b"." => Some(self.serve.stat(parent)?),
            _ => self.serve.lookup(parent, name)?,
        };
        match found {
            None => Ok(Found::Nothing),
            Some(stat) if stat.ino == Ino::ROOT && matches!(name, b"." | b"..") => Ok(Found::Root(stat)),
            Some(stat) if convert::can_be_named(stat.ino) => Ok(Found::Entry(stat)),
            Some(_) => Err(Errno::UCLEAN),
        }
    }

    /// Passes names to `add` until it returns that the reply is full. An error after the first name is
    /// returned by the next request.
    pub(super) fn list(
        &self,
        dir: u64,
        from: u64,
        mode: ReaddirMode,
        add: &mut dyn FnMut(&S, Name<'_>) -> bool,
    ) -> Result<(), Errno> {
        let mut any = false;
        let mut each = |name: Name<'_>| {
            if add(&self.serve, name) {
                return ControlFlow::Break(());
            }
            any = true;
            ControlFlow::Continue(())
        };
        let dir = convert::ino_of(dir)?;
        match self.listings.list(&*self.serve, dir, Cursor(from), mode, &mut each) {
            Err(error) if !any => Err(error),
            _ => Ok(()),
        }
    }

    pub(super) fn create(
        &self,
        requester: Requester,
        parent: u64,
        name: &[u8],
        new: &New<'_>,
    ) -> Result<Stat, Errno> {
        let dir = convert::ino_of(parent)?;
        let made = requester.with_reserve(&*self.serve, || self.serve.create(dir, name, new));
        self.listings.invalidate(dir);
        if let Ok(stat) = &made {
            // The inode number may have been that of a deleted directory.
            self.listings.invalidate(stat.ino);
        }
        made
    }

    /// As [`create`](Self::create), without a name.
    pub(super) fn create_unnamed(
        &self,
        requester: Requester,
        parent: u64,
        new: &New<'_>,
    ) -> Result<Stat, Errno> {
        let dir = convert::ino_of(parent)?;
        let made = requester.with_reserve(&*self.serve, || self.serve.create_unnamed(dir, new))?;
        self.listings.invalidate(made.ino);
        Ok(made)
    }

    pub(super) fn link(&self, node: u64, parent: u64, name: &[u8]) -> Result<Stat, Errno> {
        let (ino, dir) = (convert::ino_of(node)?, convert::ino_of(parent)?);
        let linked = self.serve.link(ino, dir, name);
        self.listings.invalidate(dir);
        linked
    }

    pub(super) fn remove_name(
        &self,
        parent: u64,
        name: &[u8],
        take: impl FnOnce(Ino, &[u8]) -> Result<Option<Ino>, Errno>,
    ) -> Result<(), Errno> {
        let dir = convert::ino_of(parent)?;
        let taken = take(dir, name);
        // The kernel holds the directory's lock, so no listing runs at the same time.
        match taken {
            Ok(_) => self.listings.remove_name(dir, name),
            Err(_) => self.listings.invalidate(dir),
        }
        self.note_unlinked(taken?);
        Ok(())
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
    fn note_unlinked(&self, nameless: Option<Ino>) {
        if let Some(ino) = nameless.filter(|ino| !self.lookups.mark_unlinked(*ino)) {
            self.serve.forget(ino);
        }
    }
}
