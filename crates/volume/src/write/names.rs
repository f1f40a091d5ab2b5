//! Names that come and go: link, unlink, rmdir.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use extant_base::Ino;
use extant_dir::edit::Spot;
use extant_inode::{Change, LiveInode, OrphanMode, OrphanState};
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::flags;
use parking_lot::RwLockWriteGuard;

use super::new::LINKS_MAX;
use super::{NAME_CREDITS, SPECIAL, Writer, check_name};
use crate::ops::with_dir;
use crate::{Fault, InodeRef, Refusal, Volume};

/// Names that [`Volume::prefetch_names`] takes at most.
pub const HINTED_NAMES_MAX: usize = extant_dir::edit::HINTS_MAX;

impl Volume {
    /// Gives an inode another name.
    ///
    /// # Errors
    /// [`Refusal::Exists`]; [`Refusal::NotPermitted`] for a directory; [`Refusal::TooManyNames`] beyond
    /// 65,000; [`Refusal::NotFound`] if its last name is gone and it is not open unnamed;
    /// [`Refusal::OtherProject`]; as [`create`](Self::create).
    pub fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<(), Fault> {
        self.noted(self.add_link(ino, dir, name))
    }

    fn add_link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<(), Fault> {
        let writer = self.writer()?;
        check_name(name)?;
        if matches!(name, b"." | b"..") {
            return Err(Refusal::Exists.into());
        }
        let node = writer.inodes().get_unlinked(ino)?;
        let parent = writer.inode_to_change(dir)?;
        if node.ino() == parent.ino() {
            let exists = writer.lookup(dir, name)?.is_some();
            return Err(if exists { Refusal::Exists } else { Refusal::NotPermitted }.into());
        }
        let kind = node.values().kind();
        let _in_dir = parent.operation.write();
        writer.check_parent(&parent, FileType::Regular)?;
        // Not locked: it may be above the one that is. What it is never changes.
        if kind == FileType::Directory {
            let exists = writer.find(&parent, name)?.is_some();
            return Err(if exists { Refusal::Exists } else { Refusal::NotPermitted }.into());
        }
        let _operation = node.operation.write();
        let is_elsewhere = writer.check_project(&parent, &node);
        let kind = {
            let values = node.values();
            // An existing name is reported before any error of the inode.
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
                let exists = writer.find(&parent, name)?.is_some();
                return Err(if exists { Refusal::Exists } else { refusal }.into());
            }
            values.kind()
        };
        writer.run(NAME_CREDITS, |change| {
            writer.with_names(change, &parent, |dir| dir.insert(name, ino, kind))?;
            writer.touch_dir(change, &parent, 0);
            let was_unnamed = {
                let mut values = change.live.edit(&node, change.edit.transaction());
                values.fields.ctime = writer.now();
                values.fields.links += 1;
                values.fields.links == 1
            };
            if was_unnamed {
                writer.keeper.orphans.remove(change.live, &node, change.edit)?;
            }
            Ok(())
        })
    }

    /// A hint that operations on these names of a directory come next, in this order: creating, linking,
    /// looking up, removing; at most [`HINTED_NAMES_MAX`] of them (of more, the first ones). Their memory is
    /// prefetched into the CPU caches for all of them at once, where each operation would wait for its own:
    /// in directories of millions of names that is most of their cost. Most effective while as many hinted
    /// names are still pending: then nothing is waited for. It reads nothing from the device, and changes
    /// nothing. `names` runs under the directory's lock: it must not call this volume.
    pub fn prefetch_names<'n>(&self, dir: Ino, names: impl IntoIterator<Item = &'n [u8]>) {
        let Ok(writer) = self.writer() else { return };
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
        // A directory that is gone, or none, has nothing to ask for.
        let _ = Change::look(writer.inodes(), &writer.keeper.alloc, &parent, &writer.dir_format, ask);
    }

    /// Removes a name; with the last one goes the inode, unless it is open.
    ///
    /// # Errors
    /// [`Refusal::NotFound`], [`Refusal::IsDirectory`], [`Refusal::NotPermitted`]; the directory is corrupt;
    /// the device refused.
    pub fn unlink(&self, dir: Ino, name: &[u8]) -> Result<(), Fault> {
        self.noted(self.remove_name(dir, name))
    }

    fn remove_name(&self, dir: Ino, name: &[u8]) -> Result<(), Fault> {
        let writer = self.writer()?;
        check_name(name)?;
        if matches!(name, b"." | b"..") {
            return Err(Refusal::IsDirectory.into());
        }
        let parent = writer.inode_maybe_freed(dir)?;
        let _in_dir = parent.operation.write();
        let of_dir = writer.check_dir_of(&parent)?;
        if of_dir & SPECIAL != 0 {
            // Names that are kept inside the inode would move out of it for one that is refused.
            let (node, _) = writer.child(&parent, of_dir, name)?;
            check_unlink(of_dir, &node)?;
        }
        let waited_for = OnceCell::new();
        let mut operation = None;
        loop {
            let done = writer.run(NAME_CREDITS, |change| {
                writer.ready_names_of(&Change { is_removal: true, ..*change }, &parent, of_dir)?;
                writer.unlink_at_once(change, &parent, of_dir, name, waited_for.get())
            })?;
            match done {
                Unlinked::Done => return Ok(()),
                Unlinked::Orphaned(node) => {
                    // New users no longer find it, but one that has it may be using it.
                    let _operation = operation.take().unwrap_or_else(|| node.operation.write());
                    return writer.delete_unnamed(&node);
                }
                // The directory is locked: the name leads to it still.
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
    pub fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<(), Fault> {
        self.noted(self.remove_dir(dir, name))
    }

    fn remove_dir(&self, dir: Ino, name: &[u8]) -> Result<(), Fault> {
        let writer = self.writer()?;
        check_name(name)?;
        match name {
            b"." => return Err(Refusal::Invalid.into()),
            b".." => return Err(Refusal::NotEmpty.into()),
            _ => {}
        }
        let parent = writer.inode_maybe_freed(dir)?;
        let _in_dir = parent.operation.write();
        let of_dir = writer.check_dir_of(&parent)?;
        let (node, spot) = writer.child(&parent, of_dir, name)?;
        let operation = node.operation.write();
        {
            let values = node.values();
            Writer::check_linked(&node, &values)?;
            if values.kind() != FileType::Directory {
                return Err(Refusal::NotDirectory.into());
            }
            check_flags(of_dir, values.fields.flags)?;
        }
        writer.check_empty(&node)?;
        let is_gone = writer.run(NAME_CREDITS, |change| {
            writer.ready_names_of(&Change { is_removal: true, ..*change }, &parent, of_dir)?;
            writer.change_names(change, &parent, -1, |dir| dir.remove_found(name, spot))?;
            writer.drop_dir(change, &node)
        })?;
        writer.delete_if(is_gone, &node, operation)
    }
}

/// What became of an attempt to take a name away.
enum Unlinked {
    /// All is done.
    Done,
    /// The name was the last one, and this inode is an orphan now: to be deleted by steps.
    Orphaned(Arc<LiveInode>),
    /// The inode is not in memory, or its operation lock is held: nothing was changed.
    WaitFor(Ino),
}

impl Writer {
    /// Takes a name away, with one look at the directory, if its inode is at hand. `locked`: an inode whose
    /// operation lock the caller has.
    fn unlink_at_once(
        &self,
        change: &Change<'_>,
        parent: &Arc<LiveInode>,
        of_dir: u32,
        name: &[u8],
        locked: Option<&Arc<LiveInode>>,
    ) -> Result<Unlinked, Fault> {
        let at_hand = OnceCell::new();
        let mut operation = None;
        let mut instead = None;
        let mut may_go = |ino: Ino| {
            let locked = locked.filter(|node| node.ino() == ino);
            let node = match locked {
                Some(node) => Some(node),
                None => self.child_at_hand(parent, ino, &at_hand)?.filter(|node| {
                    // Not waited for: a waiting thread must not have a handle.
                    operation = node.operation.try_write();
                    operation.is_some()
                }),
            };
            let Some(node) = node else { return Ok(Some(Unlinked::WaitFor(ino))) };
            check_unlink(of_dir, node).map(|()| None)
        };
        let removed = self.change_names(change, parent, 0, |dir| {
            dir.remove_if(name, &mut |ino| {
                instead = may_go(ino).transpose();
                instead.is_none()
            })
        });
        if let Some(instead) = instead {
            return instead;
        }
        let ino = removed?;
        let node = locked.filter(|node| node.ino() == ino).or(at_hand.get());
        let node = node.expect("the removed inode was passed");
        let is_gone = self.drop_link(change, node)?;
        drop(operation);
        Ok(if is_gone { Unlinked::Orphaned(Arc::clone(node)) } else { Unlinked::Done })
    }

    /// The inode that a name of this directory leads to, if it is in memory.
    fn child_at_hand<'n>(
        &self,
        dir: &LiveInode,
        ino: Ino,
        place: &'n OnceCell<Arc<LiveInode>>,
    ) -> Result<Option<&'n Arc<LiveInode>>, Fault> {
        check_child(dir, ino)?;
        if self.shared().is_special(ino) {
            return Ok(None);
        }
        Ok(self.inodes().cached(ino).map(|node| place.get_or_init(|| node)))
    }

    /// The inode that a name of a directory leads to; it cannot go away before it is in hand.
    pub(crate) fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Option<InodeRef>, Fault> {
        let dir = self.inodes().get_unlinked(dir)?;
        let _operation = dir.operation.read();
        self.check_dir(&dir)?;
        let Some(ino) = self.find(&dir, name)? else { return Ok(None) };
        match self.inodes().get(ino) {
            Ok(node) => Ok(Some(self.inodes().snapshot(&node)?)),
            Err(extant_inode::Fault::NoSuchInode(_)) => {
                let fact =
                    extant_base::Malformed::new("directory entry", "must lead to an inode in use", ino.0);
                Err(Fault::corrupt(dir.ino(), fact))
            }
            Err(fault) => Err(fault.into()),
        }
    }

    /// What a name of a directory leads to; not to the directory itself, whose lock the caller holds. He asks
    /// [`check_linked`](Self::check_linked).
    fn child(&self, dir: &Arc<LiveInode>, of_dir: u32, name: &[u8]) -> Result<(Arc<LiveInode>, Spot), Fault> {
        let spot = self.find_spot(dir, of_dir, name)?.ok_or(Refusal::NotFound)?;
        check_child(dir, spot.ino)?;
        Ok((self.linked_maybe_freed(spot.ino)?, spot))
    }

    /// Locks an inode to change it, if it is still there. What could not be written back of it leaves memory
    /// first.
    pub(super) fn lock_node<'a>(&self, node: &'a Arc<LiveInode>) -> Result<RwLockWriteGuard<'a, ()>, Fault> {
        let operation = node.operation.write();
        let is_gone = node.values().fields.links == 0 && node.opens.load(Ordering::Acquire) == 0;
        if is_gone {
            return Err(Refusal::Stale.into());
        }
        self.drop_lost(node);
        Ok(operation)
    }

    /// The inode that a name leads to. The caller holds the directory's operation lock.
    pub(super) fn find(&self, dir: &Arc<LiveInode>, name: &[u8]) -> Result<Option<Ino>, Fault> {
        let of_dir = dir.values().fields.flags;
        Ok(self.find_spot(dir, of_dir, name)?.map(|spot| spot.ino))
    }

    fn find_spot(&self, dir: &Arc<LiveInode>, of_dir: u32, name: &[u8]) -> Result<Option<Spot>, Fault> {
        if name.len() > extant_ondisk::dirent::NAME_LEN_MAX {
            return Err(Refusal::NameTooLong.into());
        }
        if of_dir & SPECIAL != 0 {
            let inode = self.inodes().snapshot(dir)?;
            let found =
                with_dir(self.shared(), &self.dir_format, &inode, |dir| dir.lookup(&self.dir_format, name))??;
            return Ok(found.map(Spot::anywhere));
        }
        Ok(Change::look(self.inodes(), &self.keeper.alloc, dir, &self.dir_format, |dir| dir.find(name))?)
    }

    pub(super) fn check_empty(&self, dir: &Arc<LiveInode>) -> Result<(), Fault> {
        if dir.values().has_flag(flags::INLINE_DATA) {
            let inode = self.inodes().snapshot(dir)?;
            let mut names = 0;
            let mut count = |entry: extant_dir::DirEntry<'_>| {
                names += usize::from(!matches!(entry.name, b"." | b".."));
                std::ops::ControlFlow::Continue(())
            };
            let mut damage = None;
            with_dir(self.shared(), &self.dir_format, &inode, |dir| {
                dir.list(&self.dir_format, extant_dir::Cursor::START, &mut count, &mut |fault| {
                    damage = Some(fault)
                })
            })??;
            if let Some(fault) = damage {
                return Err(fault.into());
            }
            return if names == 0 { Ok(()) } else { Err(Refusal::NotEmpty.into()) };
        }
        let is_empty =
            Change::look(self.inodes(), &self.keeper.alloc, dir, &self.dir_format, |dir| dir.is_empty())?;
        if is_empty { Ok(()) } else { Err(Refusal::NotEmpty.into()) }
    }

    /// Is it a directory that is still there? Its flags.
    pub(crate) fn check_dir(&self, dir: &LiveInode) -> Result<u32, Fault> {
        let values = dir.values();
        match values.kind() {
            FileType::Directory if values.fields.links == 0 => Err(Refusal::NotFound.into()),
            FileType::Directory => Ok(values.fields.flags),
            _ => Err(Refusal::NotDirectory.into()),
        }
    }

    /// As [`check_dir`](Self::check_dir), of one that the caller [did not ask](Self::inode_maybe_freed) if it
    /// is there.
    fn check_dir_of(&self, dir: &LiveInode) -> Result<u32, Fault> {
        let values = dir.values();
        Self::check_live(dir, &values)?;
        match values.kind() {
            FileType::Directory if values.fields.links == 0 => Err(Refusal::NotFound.into()),
            FileType::Directory => Ok(values.fields.flags),
            _ => Err(Refusal::NotDirectory.into()),
        }
    }

    /// May a name of an inode with these flags be taken from the directory?
    pub(super) fn check_removable(&self, dir: &LiveInode, of_inode: u32) -> Result<(), Fault> {
        check_flags(dir.values().fields.flags, of_inode)
    }

    /// One link less. `true` when nothing leads to the inode any more and it was not put among the orphans:
    /// delete it in this transaction, or do that.
    pub(super) fn drop_link(&self, change: &Change<'_>, node: &Arc<LiveInode>) -> Result<bool, Fault> {
        let now = self.now();
        let mut values = change.live.edit(node, change.edit.transaction());
        values.fields.ctime = now;
        values.fields.links = values.fields.links.saturating_sub(1);
        if values.fields.links > 0 {
            return Ok(false);
        }
        // What most have that are deleted: nothing but a number to give back.
        let is_bare = values.is_bare() && node.orphan() == OrphanState::None;
        if is_bare && self.may_go_now(node) && self.keeper.orphans.mode() != OrphanMode::ListV0 {
            self.end(&mut values, now);
            drop(values);
            self.keeper.alloc.free_inode(change.edit, node.ino(), false)?;
            return Ok(false);
        }
        drop(values);
        self.orphan_or_delete(change, node)
    }

    /// A directory's last name is gone.
    pub(super) fn drop_dir(&self, change: &Change<'_>, node: &Arc<LiveInode>) -> Result<bool, Fault> {
        {
            let mut values = change.live.edit(node, change.edit.transaction());
            values.fields.ctime = self.now();
            values.fields.links = 0;
            values.fields.size = 0;
        }
        self.orphan_or_delete(change, node)
    }

    /// Deletes in the same transaction what fits it, else makes it an orphan. `true`: to be deleted by steps.
    fn orphan_or_delete(&self, change: &Change<'_>, node: &Arc<LiveInode>) -> Result<bool, Fault> {
        if self.may_go_now(node) && self.is_short(node) {
            self.delete_now(change, node)?;
            return Ok(false);
        }
        self.keeper.orphans.add(change.live, node, change.edit)?;
        Ok(node.opens.load(Ordering::Acquire) == 0)
    }

    /// May it be deleted without ever being an orphan, if one transaction does all of it?
    fn may_go_now(&self, node: &LiveInode) -> bool {
        self.skip_short_orphans && node.opens.load(Ordering::Acquire) == 0
    }

    pub(super) fn delete_if(
        &self,
        is_gone: bool,
        node: &Arc<LiveInode>,
        _operation: RwLockWriteGuard<'_, ()>,
    ) -> Result<(), Fault> {
        if is_gone { self.delete_unnamed(node) } else { Ok(()) }
    }
}

/// Can this be what a name of the directory leads to?
fn check_child(dir: &LiveInode, ino: Ino) -> Result<(), Fault> {
    if ino == dir.ino() {
        let fact = extant_base::Malformed::new("directory entry", "must lead to another inode", ino.0);
        return Err(Fault::corrupt(ino, fact));
    }
    Ok(())
}

/// May this inode, whose operation is locked, lose a name in a directory with these flags?
fn check_unlink(of_dir: u32, node: &LiveInode) -> Result<(), Fault> {
    let values = node.values();
    Writer::check_linked(node, &values)?;
    if values.kind() == FileType::Directory {
        return Err(Refusal::IsDirectory.into());
    }
    check_flags(of_dir, values.fields.flags)
}

/// May a name of an inode with these flags be taken from a directory with those?
fn check_flags(of_dir: u32, of_inode: u32) -> Result<(), Fault> {
    let fixed = flags::IMMUTABLE | flags::APPEND;
    if (of_dir | of_inode) & fixed != 0 { Err(Refusal::NotPermitted.into()) } else { Ok(()) }
}
