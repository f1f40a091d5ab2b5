//! Renaming.
//!
//! ```text
//! one transaction: inline directories move out of their inodes -> new name (both may need space)
//!                  -> old name -> ".." -> links and times
//! ```

use std::sync::Arc;

use extant_base::Ino;
use extant_base::rank::{self, RwLockWriteGuard};
use extant_inode::{Change, LiveInode};
use extant_ondisk::filetype::FileType;

use super::names::{Dropped, LastName};
use super::new::{LINKS_MAX, New};
use super::views::NameEdits;
use super::{NAME_CREDITS, check_name};
use crate::ops::errors::Operation;
use crate::{Fault, Names, Refusal};

/// What to do with an existing target name, and with the old name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rename {
    /// The target is replaced.
    #[default]
    Replace,
    /// The rename is refused if the target exists ([`Refusal::Exists`]).
    NoReplace,
    /// The two names swap their inodes.
    Exchange,
    /// The target is replaced, and a whiteout (a character device 0, 0) takes the old name's place.
    Whiteout,
}

/// Most steps from a directory up to the root. More are a cycle.
const DEPTH_MAX: u32 = 1 << 16;

/// A whiteout, which hides a name: a character device 0, 0.
const WHITEOUT: New<'_> =
    New { kind: FileType::CharDevice, mode: 0, umask: 0, uid: 0, gid: 0, device: (0, 0), target: b"" };

/// One of the two names.
struct DirName<'a> {
    dir: &'a Arc<LiveInode>,
    name: &'a [u8],
}

impl Names<'_> {
    /// Renames.
    ///
    /// # Errors
    /// [`Refusal::NotFound`]; [`Refusal::Exists`] with [`Rename::NoReplace`]; [`Refusal::IsDirectory`],
    /// [`Refusal::NotDirectory`] for a target of another type; [`Refusal::NotEmpty`] for a target directory
    /// that has names; [`Refusal::Invalid`] for a directory into itself; [`Refusal::OtherProject`] into a
    /// directory that requires another project; [`Refusal::Busy`] for "." and "..";
    /// [`Refusal::TooManyNames`]; [`Refusal::NoSpace`].
    pub fn rename(self, from: (Ino, &[u8]), to: (Ino, &[u8]), how: Rename) -> Result<(), Fault> {
        self.volume.noted(Operation::Rename, self.move_name(from, to, how, LastName::Deletes)).map(|_| ())
    }

    /// As [`rename`](Self::rename), with a replaced inode held as by [`unlink_held`](Self::unlink_held).
    ///
    /// # Errors
    /// As [`rename`](Self::rename).
    pub fn rename_held(
        self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        how: Rename,
    ) -> Result<Option<Ino>, Fault> {
        self.volume.noted(Operation::Rename, self.move_name(from, to, how, LastName::Opens))
    }

    fn move_name(
        self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        how: Rename,
        last: LastName,
    ) -> Result<Option<Ino>, Fault> {
        let writer = self.volume.writer()?;
        let (from_dir, to_dir) = (writer.inode_to_change(from.0)?, writer.inode_to_change(to.0)?);
        for dir in [&from_dir, &to_dir] {
            writer.names().check_dir(dir)?;
        }
        if [from.1, to.1].iter().any(|name| matches!(*name, b"." | b"..")) {
            let exists = how == Rename::NoReplace && !matches!(from.1, b"." | b"..");
            return Err(if exists { Refusal::Exists } else { Refusal::Busy }.into());
        }
        check_name(from.1)?;
        let is_across = from_dir.ino() != to_dir.ino();
        // Moves of directories change ancestors. They are serialized, so that the ancestor checks below stay
        // true.
        let _tree = is_across.then(|| writer.renames.lock());
        let from_is_above = is_across && writer.names().is_above(&from_dir, &to_dir)?;
        let to_is_above = is_across && !from_is_above && writer.names().is_above(&to_dir, &from_dir)?;
        let first_is_from = from_is_above || !to_is_above && from_dir.ino() <= to_dir.ino();
        let (first, second) = if first_is_from { (&from_dir, &to_dir) } else { (&to_dir, &from_dir) };
        let _first = first.operation.write();
        let _second = is_across.then(|| second.operation.write());
        for dir in [&from_dir, &to_dir] {
            writer.names().check_dir(dir)?;
        }
        let from = DirName { dir: &from_dir, name: from.1 };
        let to = DirName { dir: &to_dir, name: to.1 };
        let moved = writer.names().find(from.dir, from.name)?.ok_or(Refusal::NotFound)?;
        check_name(to.name)?;
        let existing = writer.names().find(to.dir, to.name)?;
        match (how, existing) {
            (Rename::NoReplace, Some(_)) => return Err(Refusal::Exists.into()),
            (Rename::Exchange, None) => return Err(Refusal::NotFound.into()),
            _ => {}
        }
        let moved = writer.linked_inode(moved)?;
        let existing = existing.map(|ino| writer.linked_inode(ino)).transpose()?;
        // An entry that leads to its own directory, which is locked already.
        let in_itself = (moved.ino() == from.dir.ino()).then_some(from.dir);
        let other_in_itself = existing.as_ref().filter(|other| other.ino() == to.dir.ino());
        if let Some(dir) = in_itself.or(other_in_itself) {
            let fact =
                extant_base::Malformed::new("directory entry", "must lead to another inode", dir.ino().0);
            return Err(Fault::corrupt(dir.ino(), fact));
        }
        // A directory cannot move below itself, nor replace one of its ancestors.
        if is_across {
            if moved.ino() == to.dir.ino()
                || writer.names().is_dir(&moved) && writer.names().is_above(&moved, to.dir)?
            {
                return Err(Refusal::Invalid.into());
            }
            if let Some(other) = &existing
                && (other.ino() == from.dir.ino()
                    || writer.names().is_dir(other) && writer.names().is_above(other, from.dir)?)
            {
                let refusal = if how == Rename::Exchange { Refusal::Invalid } else { Refusal::NotEmpty };
                return Err(refusal.into());
            }
        }
        if existing.as_ref().is_some_and(|other| other.ino() == moved.ino()) {
            return Ok(None);
        }
        match (how, existing) {
            (Rename::Exchange, Some(other)) => {
                writer.names().exchange(&from, &to, &moved, &other).map(|()| None)
            }
            (_, existing) => writer.names().replace(&from, &to, &moved, existing.as_ref(), (how, last)),
        }
    }
}

impl NameEdits<'_> {
    pub(super) fn is_dir(self, node: &LiveInode) -> bool {
        node.values().kind() == FileType::Directory
    }

    /// Returns whether `above` is a proper ancestor of `dir`. Directories do not move meanwhile.
    fn is_above(self, above: &LiveInode, dir: &Arc<LiveInode>) -> Result<bool, Fault> {
        let mut here = Arc::clone(dir);
        for _ in 0..DEPTH_MAX {
            if here.ino() == Ino::ROOT {
                return Ok(false);
            }
            let up = self.find(&here, b"..")?.ok_or(Refusal::NotFound)?;
            if up == above.ino() {
                return Ok(true);
            }
            if up == here.ino() {
                return Ok(false);
            }
            // It is not locked, so it and the directories below it may be removed meanwhile. That is not
            // damage.
            here = match self.writer.inodes().get_maybe_freed(up) {
                Ok(node) if self.is_dir(&node) && !node.is_gone(&node.values()) => node,
                Ok(_) | Err(extant_inode::Fault::NoSuchInode(_)) => return Err(Refusal::NotFound.into()),
                Err(fault) => return Err(fault.into()),
            };
        }
        let fact = extant_base::Malformed::new("directory", "must lead up to the root", dir.ino().0);
        Err(Fault::corrupt(dir.ino(), fact))
    }

    /// Locks inodes other than the two parent directories: directories first, each kind by number.
    fn lock<'a>(
        self,
        nodes: &mut [&'a Arc<LiveInode>],
    ) -> Vec<RwLockWriteGuard<'a, (), { rank::OPERATION }>> {
        nodes.sort_by_key(|node| (!self.is_dir(node), node.ino()));
        nodes.iter().map(|node| node.operation.write()).collect()
    }

    fn replace(
        self,
        from: &DirName<'_>,
        to: &DirName<'_>,
        moved: &Arc<LiveInode>,
        existing: Option<&Arc<LiveInode>>,
        (how, last): (Rename, LastName),
    ) -> Result<Option<Ino>, Fault> {
        let is_across = from.dir.ino() != to.dir.ino();
        let is_dir = self.is_dir(moved);
        let victim_is_dir = existing.is_some_and(|node| self.is_dir(node));
        let mut nodes: Vec<&Arc<LiveInode>> = [Some(moved), existing].into_iter().flatten().collect();
        let operations = self.lock(&mut nodes);
        let of_moved = moved.values().fields.flags;
        self.check_removable(from.dir, of_moved)?;
        self.writer.life().check_parent(to.dir, FileType::Regular)?;
        if let Some(victim) = existing {
            match (is_dir, victim_is_dir) {
                (true, false) => return Err(Refusal::NotDirectory.into()),
                (false, true) => return Err(Refusal::IsDirectory.into()),
                _ => {}
            }
            let of_victim = victim.values().fields.flags;
            self.check_removable(to.dir, of_victim)?;
        } else if is_dir && is_across {
            self.writer.life().check_parent(to.dir, FileType::Directory)?;
        }
        self.writer.check_project(to.dir, moved)?;
        if let Some(victim) = existing.filter(|_| victim_is_dir) {
            self.check_empty(victim)?;
        }
        if how == Rename::Whiteout {
            self.writer.admit(|| self.writer.owners_of_new(from.dir, &WHITEOUT))?;
        }
        if existing.is_some()
            && !self.writer.no_auto_da_alloc
            && let Some(data) = moved.data()
        {
            // Otherwise a crash could leave the name with data that never reached the disk, and the old data
            // lost. fsync reports failures.
            let _ = self.writer.flusher.flush_file(moved, &data, 0..u64::MAX);
        }
        let dropped = self.writer.run(2 * NAME_CREDITS, |change| {
            self.writer.life().ready_names(change, from.dir)?;
            self.writer.life().ready_names(change, to.dir)?;
            if is_dir && is_across {
                self.writer.life().ready_names(change, moved)?;
            }
            let mut dropped = Dropped::Done;
            let mut go_on = |whiteout: Option<&Arc<LiveInode>>| {
                dropped = self.move_entries(change, from, to, moved, (existing, last), whiteout)?;
                Ok(())
            };
            match how {
                Rename::Whiteout => {
                    self.writer
                        .life()
                        .make(change, from.dir, &WHITEOUT, b"", |whiteout| go_on(Some(whiteout)))?;
                }
                _ => go_on(None)?,
            }
            Ok(dropped)
        })?;
        let held = existing.map_or(Ok(None), |victim| self.after_drop(dropped, victim));
        drop(operations);
        held
    }

    /// Changes the entries of both directories and everything that depends on them. Returns what is left to
    /// do for the replaced inode.
    fn move_entries(
        self,
        change: &Change<'_>,
        from: &DirName<'_>,
        to: &DirName<'_>,
        moved: &Arc<LiveInode>,
        (existing, last): (Option<&Arc<LiveInode>>, LastName),
        whiteout: Option<&Arc<LiveInode>>,
    ) -> Result<Dropped, Fault> {
        let is_across = from.dir.ino() != to.dir.ino();
        let kind = moved.values().kind();
        let is_dir = kind == FileType::Directory;
        let victim_is_dir = existing.is_some_and(|node| self.is_dir(node));
        self.writer.life().with_names(change, to.dir, |dir| match existing {
            Some(_) => dir.replace(to.name, moved.ino(), kind).map(drop),
            None => dir.insert(to.name, moved.ino(), kind),
        })?;
        self.writer.life().with_names(change, from.dir, |dir| match whiteout {
            Some(whiteout) => dir.replace(from.name, whiteout.ino(), FileType::CharDevice).map(drop),
            None => dir.remove(from.name).map(drop),
        })?;
        if is_dir && is_across {
            self.writer.life().with_names(change, moved, |dir| dir.set_parent(to.dir.ino()))?;
        }
        change.live.edit(moved, change.edit.transaction()).fields.ctime = self.writer.now();
        let leaves = is_dir && (is_across || victim_is_dir);
        self.writer.life().touch_dir(change, from.dir, if leaves { -1 } else { 0 });
        if is_across {
            self.writer.life().touch_dir(change, to.dir, i32::from(is_dir && !victim_is_dir));
        }
        let dropped = match existing {
            Some(victim) if victim_is_dir => self.drop_dir(change, victim, last)?,
            Some(victim) => self.drop_link(change, victim, last)?,
            None => Dropped::Done,
        };
        if !is_dir && whiteout.is_none() {
            let [from, to] = [from, to].map(|at| (at.dir.ino(), at.name));
            self.writer.keeper.fast.renamed(change, from, to, moved, existing.map(|node| &**node));
        }
        Ok(dropped)
    }

    fn exchange(
        self,
        from: &DirName<'_>,
        to: &DirName<'_>,
        one: &Arc<LiveInode>,
        other: &Arc<LiveInode>,
    ) -> Result<(), Fault> {
        let is_across = from.dir.ino() != to.dir.ino();
        let _operations = self.lock(&mut [one, other]);
        for (dir, node) in [(from.dir, one), (to.dir, other)] {
            let of_node = node.values().fields.flags;
            self.check_removable(dir, of_node)?;
        }
        let (one_kind, other_kind) = (one.values().kind(), other.values().kind());
        let is_dir = |kind| kind == FileType::Directory;
        if is_across && is_dir(one_kind) != is_dir(other_kind) {
            // One of the directories gains a subdirectory.
            let gains = if is_dir(one_kind) { to.dir } else { from.dir };
            if gains.values().fields.links >= LINKS_MAX {
                self.writer.life().check_parent(gains, FileType::Directory)?;
            }
        }
        self.writer.check_project(to.dir, one)?;
        self.writer.check_project(from.dir, other)?;
        self.writer.run(2 * NAME_CREDITS, |change| {
            self.writer.life().ready_names(change, from.dir)?;
            self.writer.life().ready_names(change, to.dir)?;
            for (node, kind) in [(one, one_kind), (other, other_kind)] {
                if is_across && is_dir(kind) {
                    self.writer.life().ready_names(change, node)?;
                }
            }
            self.writer.life().with_names(change, to.dir, |dir| dir.replace(to.name, one.ino(), one_kind))?;
            self.writer
                .life()
                .with_names(change, from.dir, |dir| dir.replace(from.name, other.ino(), other_kind))?;
            if is_across {
                for (node, kind, dir) in [(one, one_kind, to.dir), (other, other_kind, from.dir)] {
                    if is_dir(kind) {
                        self.writer.life().with_names(change, node, |editor| editor.set_parent(dir.ino()))?;
                    }
                }
            }
            for node in [one, other] {
                change.live.edit(node, change.edit.transaction()).fields.ctime = self.writer.now();
            }
            let gain = i32::from(is_dir(one_kind)) - i32::from(is_dir(other_kind));
            self.writer.life().touch_dir(change, from.dir, if is_across { -gain } else { 0 });
            if is_across {
                self.writer.life().touch_dir(change, to.dir, gain);
            }
            Ok(())
        })
    }
}
