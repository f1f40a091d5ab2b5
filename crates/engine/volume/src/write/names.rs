//! Adding and removing names: link, unlink, rmdir.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use extant_base::Ino;
use extant_base::rank::{self, RwLockWriteGuard};
use extant_dir::edit::NameLocation;
use extant_inode::{Change, LiveInode, OrphanMode, OrphanState};
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::flags;

use super::new::LINKS_MAX;
use super::views::NameEdits;
use super::{NAME_CREDITS, SPECIAL, Writer, check_name};
use crate::ops::errors::Operation;
use crate::ops::with_dir;
use crate::{Fault, InodeRef, Names, Refusal};

/// Most names that one call of [`Names::prefetch_names`](crate::Names::prefetch_names) uses.
pub const HINTED_NAMES_MAX: usize = extant_dir::edit::HINTS_MAX;

impl Names<'_> {
    /// Adds a name for an inode.
    ///
    /// # Errors
    /// [`Refusal::Exists`]; [`Refusal::NotPermitted`] for a directory; [`Refusal::TooManyNames`] beyond
    /// 65,000 links; [`Refusal::NotFound`] if its last name is gone and it is not open without a name;
    /// [`Refusal::OtherProject`]; as [`create`](Self::create).
    pub fn link(self, ino: Ino, dir: Ino, name: &[u8]) -> Result<(), Fault> {
        self.volume.noted(Operation::Link, self.add_link(ino, dir, name))
    }

    fn add_link(self, ino: Ino, dir: Ino, name: &[u8]) -> Result<(), Fault> {
        let writer = self.volume.writer()?;
        check_name(name)?;
        if matches!(name, b"." | b"..") {
            return Err(Refusal::Exists.into());
        }
        // Of inodes without a name, those that are open can get one again.
        let node = writer.unlinked_to_change(ino)?;
        let parent = writer.inode_to_change(dir)?;
        if node.ino() == parent.ino() {
            let exists = writer.names().lookup(dir, name)?.is_some();
            return Err(if exists { Refusal::Exists } else { Refusal::NotPermitted }.into());
        }
        let kind = node.values().kind();
        let _in_dir = parent.operation.write();
        writer.life().check_parent(&parent, FileType::Regular)?;
        // Not locked: it may be an ancestor of the locked directory. An inode's type never changes.
        if kind == FileType::Directory {
            let exists = writer.names().find(&parent, name)?.is_some();
            return Err(if exists { Refusal::Exists } else { Refusal::NotPermitted }.into());
        }
        let _operation = node.operation.write();
        let is_elsewhere = writer.check_project(&parent, &node);
        let kind = {
            let values = node.values();
            // An existing name is reported before any refusal because of the inode.
            let refusal = match () {
                () if values.has_flag(flags::IMMUTABLE | flags::APPEND) => Some(Refusal::NotPermitted),
                () if values.fields.links >= LINKS_MAX => Some(Refusal::TooManyNames),
                () if values.fields.links == 0 && node.opens.load(Ordering::Acquire) == 0 => {
                    Some(Refusal::NotFound)
                }
                () if is_elsewhere.is_err() => Some(Refusal::OtherProject),
                () => None,
            };
            if let Some(refusal) = refusal {
                drop(values);
                let exists = writer.names().find(&parent, name)?.is_some();
                return Err(if exists { Refusal::Exists } else { refusal }.into());
            }
            values.kind()
        };
        writer.run(NAME_CREDITS, |change| {
            writer.life().with_names(change, &parent, |dir| dir.insert(name, ino, kind))?;
            writer.life().touch_dir(change, &parent, 0);
            let was_unnamed = {
                let mut values = change.live.edit(&node, change.edit.transaction());
                values.fields.ctime = writer.now();
                values.fields.links += 1;
                values.fields.links == 1
            };
            match was_unnamed {
                // Its creation has no record.
                true => writer.keeper.orphans.remove(change.live, &node, change.edit)?,
                false => writer.keeper.fast.linked(change, dir, name, &node),
            }
            Ok(())
        })
    }

    /// Hints that operations on these names of a directory come next, in this order: creating, linking,
    /// looking up, removing. Uses the first [`HINTED_NAMES_MAX`] names at most. Prefetches the memory that
    /// they need into the CPU's caches for all names at once; otherwise each operation waits for its own
    /// cache misses, which in directories of millions of names are most of its cost. Best called while as
    /// many operations of the previous hint are still to be done: then nothing waits.
    ///
    /// Only a hint: reads nothing from the device and changes nothing. The directory is locked while `names`
    /// is iterated, so `names` must not call this volume.
    pub fn prefetch_names<'n>(self, dir: Ino, names: impl IntoIterator<Item = &'n [u8]>) {
        let Ok(writer) = self.volume.writer() else { return };
        let Some(parent) = writer.inodes().cached(dir) else { return };
        let Some(_in_dir) = parent.operation.try_read() else { return };
        let is_plain = {
            let values = parent.values();
            values.kind() == FileType::Directory && !values.has_flag(SPECIAL)
        };
        if !is_plain {
            return;
        }
        let ask = |dir: &mut extant_dir::edit::Editor<'_>| {
            dir.prefetch_names(names);
            Ok(())
        };
        // A directory that was removed needs no prefetch.
        let _ = Change::look(writer.inodes(), &writer.keeper.alloc, &parent, &writer.dir_format, ask);
    }

    /// Removes a name. With its last name the inode is deleted, unless it is open.
    ///
    /// # Errors
    /// [`Refusal::NotFound`], [`Refusal::IsDirectory`], [`Refusal::NotPermitted`]; the directory is corrupt;
    /// the device failed.
    pub fn unlink(self, dir: Ino, name: &[u8]) -> Result<(), Fault> {
        self.volume.noted(Operation::Unlink, self.remove_name(dir, name, LastName::Deletes)).map(|_| ())
    }

    /// As [`unlink`](Self::unlink), for callers that may still use the inode. An inode that loses its last
    /// name is returned and counted as opened; [`released`](crate::Volume::released) deletes it.
    ///
    /// # Errors
    /// As [`unlink`](Self::unlink).
    pub fn unlink_held(self, dir: Ino, name: &[u8]) -> Result<Option<Ino>, Fault> {
        self.volume.noted(Operation::Unlink, self.remove_name(dir, name, LastName::Opens))
    }

    fn remove_name(self, dir: Ino, name: &[u8], last: LastName) -> Result<Option<Ino>, Fault> {
        let writer = self.volume.writer()?;
        check_name(name)?;
        if matches!(name, b"." | b"..") {
            return Err(Refusal::IsDirectory.into());
        }
        let parent = writer.inode_maybe_freed(dir)?;
        let _in_dir = parent.operation.write();
        let of_dir = writer.names().check_dir_of(&parent)?;
        if of_dir & SPECIAL != 0 {
            // Checked first: otherwise names in the inode would move out of it for a removal that is then
            // refused.
            let (node, _) = writer.names().child(&parent, of_dir, name)?;
            check_unlink(of_dir, &node)?;
        }
        let waited_for = OnceCell::new();
        let mut operation = None;
        loop {
            let done = writer.run(NAME_CREDITS, |change| {
                writer.life().ready_names_of(&Change { is_removal: true, ..*change }, &parent, of_dir)?;
                writer.names().unlink_at_once(change, &parent, of_dir, name, waited_for.get(), last)
            })?;
            match done {
                Unlinked::Done => return Ok(None),
                Unlinked::Held(ino) => return Ok(Some(ino)),
                Unlinked::Orphaned(node) => {
                    // No name leads to it now, but an operation that found it before may still hold its lock.
                    let _operation = operation.take().unwrap_or_else(|| node.operation.write());
                    return writer.life().delete_unnamed(&node).map(|()| None);
                }
                // The directory is locked, so the name still leads to it.
                Unlinked::WaitFor(ino) => {
                    let node = writer.linked_maybe_freed(ino)?;
                    operation = Some(waited_for.get_or_init(|| node).operation.write());
                }
            }
        }
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`Refusal::NotFound`], [`Refusal::NotDirectory`], [`Refusal::NotEmpty`], [`Refusal::Invalid`] for ".",
    /// as [`unlink`](Self::unlink).
    pub fn rmdir(self, dir: Ino, name: &[u8]) -> Result<(), Fault> {
        self.volume.noted(Operation::Rmdir, self.remove_dir(dir, name, LastName::Deletes)).map(|_| ())
    }

    /// As [`rmdir`](Self::rmdir), with the inode held as by [`unlink_held`](Self::unlink_held).
    ///
    /// # Errors
    /// As [`rmdir`](Self::rmdir).
    pub fn rmdir_held(self, dir: Ino, name: &[u8]) -> Result<Option<Ino>, Fault> {
        self.volume.noted(Operation::Rmdir, self.remove_dir(dir, name, LastName::Opens))
    }

    fn remove_dir(self, dir: Ino, name: &[u8], last: LastName) -> Result<Option<Ino>, Fault> {
        let writer = self.volume.writer()?;
        check_name(name)?;
        match name {
            b"." => return Err(Refusal::Invalid.into()),
            b".." => return Err(Refusal::NotEmpty.into()),
            _ => {}
        }
        let parent = writer.inode_maybe_freed(dir)?;
        let _in_dir = parent.operation.write();
        let of_dir = writer.names().check_dir_of(&parent)?;
        let (node, location) = writer.names().child(&parent, of_dir, name)?;
        let operation = node.operation.write();
        {
            let values = node.values();
            Writer::check_linked(&node, &values)?;
            if values.kind() != FileType::Directory {
                return Err(Refusal::NotDirectory.into());
            }
            check_flags(of_dir, values.fields.flags)?;
        }
        writer.names().check_empty(&node)?;
        let dropped = writer.run(NAME_CREDITS, |change| {
            writer.life().ready_names_of(&Change { is_removal: true, ..*change }, &parent, of_dir)?;
            writer.life().change_names(change, &parent, -1, |dir| dir.remove_found(name, location))?;
            writer.names().drop_dir(change, &node, last)
        })?;
        let held = writer.names().after_drop(dropped, &node);
        drop(operation);
        held
    }
}

/// What becomes of an inode without names that is not open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LastName {
    /// It is deleted.
    Deletes,
    /// It counts as opened by the caller.
    Opens,
}

/// What is left to do for an inode after one of its links was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dropped {
    /// Nothing: it has other names, is open, or was deleted in the same transaction.
    Done,
    /// It is an orphan: it is to be deleted in steps.
    Orphaned,
    /// It has no name and counts as opened by the caller.
    Held,
}

/// The result of an attempt to remove a name.
enum Unlinked {
    /// The name is removed.
    Done,
    /// The name was the last one, and this inode counts as opened by the caller.
    Held(Ino),
    /// The name was the last one, and this inode is an orphan now: it is to be deleted in steps.
    Orphaned(Arc<LiveInode>),
    /// The inode is not in memory, or its operation lock is taken: nothing was changed.
    WaitFor(Ino),
}

impl NameEdits<'_> {
    /// Removes a name with a single search of the directory, if its inode is in memory. `locked` is an inode
    /// of which the caller holds the operation lock.
    fn unlink_at_once(
        self,
        change: &Change<'_>,
        parent: &Arc<LiveInode>,
        of_dir: u32,
        name: &[u8],
        locked: Option<&Arc<LiveInode>>,
        last: LastName,
    ) -> Result<Unlinked, Fault> {
        let at_hand = OnceCell::new();
        let mut operation = None;
        let mut instead = None;
        let mut may_go = |ino: Ino| {
            let locked = locked.filter(|node| node.ino() == ino);
            let node = match locked {
                Some(node) => Some(node),
                None => self.child_at_hand(parent, ino, &at_hand)?.filter(|node| {
                    // Does not wait: a waiter for an operation lock must not hold a handle.
                    operation = node.operation.try_write();
                    operation.is_some()
                }),
            };
            let Some(node) = node else { return Ok(Some(Unlinked::WaitFor(ino))) };
            check_unlink(of_dir, node).map(|()| None)
        };
        let removed = self.writer.life().change_names(change, parent, 0, |dir| {
            dir.remove_if(name, &mut |ino| {
                instead = may_go(ino).transpose();
                instead.is_none()
            })
        });
        if let Some(instead) = instead {
            self.writer.keeper.fast.nothing(change);
            return instead;
        }
        let ino = removed?;
        let node = locked.filter(|node| node.ino() == ino).or(at_hand.get());
        let node = node.expect("the removed inode was passed");
        let dropped = self.drop_link(change, node, last)?;
        self.writer.keeper.fast.unlinked(change, parent.ino(), name, node);
        drop(operation);
        Ok(match dropped {
            Dropped::Done => Unlinked::Done,
            Dropped::Orphaned => Unlinked::Orphaned(Arc::clone(node)),
            Dropped::Held => Unlinked::Held(ino),
        })
    }

    /// The inode that a name of this directory leads to, if it is in memory.
    fn child_at_hand<'n>(
        self,
        dir: &LiveInode,
        ino: Ino,
        place: &'n OnceCell<Arc<LiveInode>>,
    ) -> Result<Option<&'n Arc<LiveInode>>, Fault> {
        check_child(dir, ino)?;
        if self.writer.shared().is_special(ino) {
            return Ok(None);
        }
        Ok(self.writer.inodes().cached(ino).map(|node| place.get_or_init(|| node)))
    }

    /// The inode that a name of a directory leads to. It cannot be deleted before this returns it.
    pub(crate) fn lookup(self, dir: Ino, name: &[u8]) -> Result<Option<InodeRef>, Fault> {
        let dir = self.writer.inodes().get_unlinked(dir)?;
        let _operation = dir.operation.read();
        self.check_dir(&dir)?;
        let Some(ino) = self.find(&dir, name)? else { return Ok(None) };
        match self.writer.inodes().get(ino) {
            Ok(node) => Ok(Some(self.writer.inodes().snapshot(&node)?)),
            Err(extant_inode::Fault::NoSuchInode(_)) => {
                let fact =
                    extant_base::Malformed::new("directory entry", "must lead to an inode in use", ino.0);
                Err(Fault::corrupt(dir.ino(), fact))
            }
            Err(fault) => Err(fault.into()),
        }
    }

    /// The inode that a name of a directory leads to. An entry that leads to the directory itself, of which
    /// the caller holds the lock, is damage. The caller checks [`Writer::check_linked`].
    fn child(
        self,
        dir: &Arc<LiveInode>,
        of_dir: u32,
        name: &[u8],
    ) -> Result<(Arc<LiveInode>, NameLocation), Fault> {
        let location = self.find_location(dir, of_dir, name)?.ok_or(Refusal::NotFound)?;
        check_child(dir, location.ino)?;
        Ok((self.writer.linked_maybe_freed(location.ino)?, location))
    }

    /// Locks an inode to change it. Refuses one that no longer exists, and drops its lost writes from memory
    /// first.
    pub(super) fn lock_node<'a>(
        self,
        node: &'a Arc<LiveInode>,
    ) -> Result<RwLockWriteGuard<'a, (), { rank::OPERATION }>, Fault> {
        let operation = node.operation.write();
        let is_gone = node.values().fields.links == 0 && node.opens.load(Ordering::Acquire) == 0;
        if is_gone {
            return Err(Refusal::Stale.into());
        }
        self.writer.data().drop_lost(node);
        Ok(operation)
    }

    /// Finds the inode number of a name. The caller holds the directory's operation lock.
    pub(crate) fn find(self, dir: &Arc<LiveInode>, name: &[u8]) -> Result<Option<Ino>, Fault> {
        let of_dir = dir.values().fields.flags;
        Ok(self.find_location(dir, of_dir, name)?.map(|location| location.ino))
    }

    fn find_location(
        self,
        dir: &Arc<LiveInode>,
        of_dir: u32,
        name: &[u8],
    ) -> Result<Option<NameLocation>, Fault> {
        if name.len() > extant_ondisk::dirent::NAME_LEN_MAX {
            return Err(Refusal::NameTooLong.into());
        }
        if of_dir & SPECIAL != 0 {
            let inode = self.writer.inodes().snapshot(dir)?;
            let found = with_dir(self.writer.shared(), &self.writer.dir_format, &inode, |dir| {
                dir.lookup(&self.writer.dir_format, name)
            })??;
            return Ok(found.map(NameLocation::anywhere));
        }
        Ok(Change::look(
            self.writer.inodes(),
            &self.writer.keeper.alloc,
            dir,
            &self.writer.dir_format,
            |dir| dir.find(name),
        )?)
    }

    pub(super) fn check_empty(self, dir: &Arc<LiveInode>) -> Result<(), Fault> {
        if dir.values().has_flag(flags::INLINE_DATA) {
            let inode = self.writer.inodes().snapshot(dir)?;
            let mut names = 0;
            let mut count = |entry: extant_dir::DirEntry<'_>| {
                names += usize::from(!matches!(entry.name, b"." | b".."));
                std::ops::ControlFlow::Continue(())
            };
            let mut damage = None;
            with_dir(self.writer.shared(), &self.writer.dir_format, &inode, |dir| {
                dir.list(&self.writer.dir_format, extant_dir::Cursor::START, &mut count, &mut |fault| {
                    damage = Some(fault)
                })
            })??;
            if let Some(fault) = damage {
                return Err(fault.into());
            }
            return if names == 0 { Ok(()) } else { Err(Refusal::NotEmpty.into()) };
        }
        let is_empty = Change::look(
            self.writer.inodes(),
            &self.writer.keeper.alloc,
            dir,
            &self.writer.dir_format,
            |dir| dir.is_empty(),
        )?;
        if is_empty { Ok(()) } else { Err(Refusal::NotEmpty.into()) }
    }

    /// Refuses what is not a directory or was removed. Returns the directory's flags.
    pub(crate) fn check_dir(self, dir: &LiveInode) -> Result<u32, Fault> {
        let values = dir.values();
        match values.kind() {
            FileType::Directory if values.fields.links == 0 => Err(Refusal::NotFound.into()),
            FileType::Directory => Ok(values.fields.flags),
            _ => Err(Refusal::NotDirectory.into()),
        }
    }

    /// As [`check_dir`](Self::check_dir), for an inode from [`Writer::inode_maybe_freed`], which may no
    /// longer exist.
    fn check_dir_of(self, dir: &LiveInode) -> Result<u32, Fault> {
        let values = dir.values();
        Writer::check_live(dir, &values)?;
        match values.kind() {
            FileType::Directory if values.fields.links == 0 => Err(Refusal::NotFound.into()),
            FileType::Directory => Ok(values.fields.flags),
            _ => Err(Refusal::NotDirectory.into()),
        }
    }

    /// Returns an error if a name of an inode with these flags may not be removed from the directory.
    pub(super) fn check_removable(self, dir: &LiveInode, of_inode: u32) -> Result<(), Fault> {
        check_flags(dir.values().fields.flags, of_inode)
    }

    /// Removes one link. The caller holds the inode's operation lock, and does what is left to do.
    pub(super) fn drop_link(
        self,
        change: &Change<'_>,
        node: &Arc<LiveInode>,
        last: LastName,
    ) -> Result<Dropped, Fault> {
        let now = self.writer.now();
        let mut values = change.live.edit(node, change.edit.transaction());
        values.fields.ctime = now;
        values.fields.links = values.fields.links.saturating_sub(1);
        if values.fields.links > 0 {
            return Ok(Dropped::Done);
        }
        // The usual case of a deletion: the inode has nothing but a number to free.
        let is_bare = values.is_bare() && node.orphan() == OrphanState::None;
        let may_go_now = last == LastName::Deletes && self.may_go_now(node);
        if is_bare && may_go_now && self.writer.keeper.orphans.mode() != OrphanMode::ListV0 {
            self.writer.life().end(&mut values, now);
            drop(values);
            self.writer.keeper.fast.freed(change, node.ino());
            self.writer.keeper.alloc.free_inode(change.edit, node.ino(), false)?;
            return Ok(Dropped::Done);
        }
        drop(values);
        self.orphan_or_delete(change, node, last)
    }

    /// Removes a directory's last link. The caller holds the directory's operation lock.
    pub(super) fn drop_dir(
        self,
        change: &Change<'_>,
        node: &Arc<LiveInode>,
        last: LastName,
    ) -> Result<Dropped, Fault> {
        {
            let mut values = change.live.edit(node, change.edit.transaction());
            values.fields.ctime = self.writer.now();
            values.fields.links = 0;
            values.fields.size = 0;
        }
        self.orphan_or_delete(change, node, last)
    }

    /// Deletes the inode in the same transaction if that has room, and makes it an orphan otherwise.
    fn orphan_or_delete(
        self,
        change: &Change<'_>,
        node: &Arc<LiveInode>,
        last: LastName,
    ) -> Result<Dropped, Fault> {
        if last == LastName::Opens {
            self.writer.keeper.orphans.add(change.live, node, change.edit)?;
            // Not before it can fail. The operation lock keeps the deletion by another opener away.
            node.opens.fetch_add(1, Ordering::AcqRel);
            return Ok(Dropped::Held);
        }
        if self.may_go_now(node) && self.writer.life().is_short(node) {
            self.writer.life().delete_now(change, node)?;
            return Ok(Dropped::Done);
        }
        self.writer.keeper.orphans.add(change.live, node, change.edit)?;
        let is_open = node.opens.load(Ordering::Acquire) > 0;
        Ok(if is_open { Dropped::Done } else { Dropped::Orphaned })
    }

    /// Returns whether the inode may skip the orphan list if one transaction deletes all of it.
    fn may_go_now(self, node: &LiveInode) -> bool {
        self.writer.skip_short_orphans && node.opens.load(Ordering::Acquire) == 0
    }

    /// Does what is left to do for an inode after its link was removed, outside of the transaction. Returns
    /// the inode if it is held. The caller holds its operation lock.
    pub(super) fn after_drop(self, dropped: Dropped, node: &Arc<LiveInode>) -> Result<Option<Ino>, Fault> {
        match dropped {
            Dropped::Done => Ok(None),
            Dropped::Held => Ok(Some(node.ino())),
            Dropped::Orphaned => self.writer.life().delete_unnamed(node).map(|()| None),
        }
    }
}

/// Refuses an entry that leads to its own directory.
fn check_child(dir: &LiveInode, ino: Ino) -> Result<(), Fault> {
    if ino == dir.ino() {
        let fact = extant_base::Malformed::new("directory entry", "must lead to another inode", ino.0);
        return Err(Fault::corrupt(ino, fact));
    }
    Ok(())
}

/// Refuses to remove a name of this inode from a directory with these flags. The caller holds the inode's
/// operation lock.
fn check_unlink(of_dir: u32, node: &LiveInode) -> Result<(), Fault> {
    let values = node.values();
    Writer::check_linked(node, &values)?;
    if values.kind() == FileType::Directory {
        return Err(Refusal::IsDirectory.into());
    }
    check_flags(of_dir, values.fields.flags)
}

/// Refuses to remove a name of an inode with these flags from a directory with those flags.
fn check_flags(of_dir: u32, of_inode: u32) -> Result<(), Fault> {
    let fixed = flags::IMMUTABLE | flags::APPEND;
    if (of_dir | of_inode) & fixed != 0 { Err(Refusal::NotPermitted.into()) } else { Ok(()) }
}
