//! The transaction that replaces fast commits.
//!
//! ```text
//! old -> new of each inode:   gone | new | kept      numbers first, then blocks, then trees, then names
//! all of it in one handle -> one commit: until its commit block the fast commits are valid
//! ```
//!
//! The records do not contain bitmaps, trees, and the link counts and times of directories; their link counts
//! of other inodes can be out of date. So: blocks follow from the maps; link counts follow from the old ones
//! and the names that were added and removed.
//!
//! Invariants
//! 1. All or nothing: changes that do not fit one transaction, or contradict the bitmaps, are refused, and
//!    nothing was written.
//! 2. Inode numbers and blocks that the records name are taken before any others are allocated.
//! 3. An inode on the orphan list keeps its link to the next.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use extant_base::{Ino, Lblk};
use extant_buffer::Edit;
use extant_inode::{Change, LiveInode, Values};
use extant_journal::Handle;
use extant_mapping::{FileMap, Mapped};
use extant_ondisk::Features;
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::{self as layout, flags};

use super::{ChangedInode, ChangedNames, Outcome};
use crate::Fault;
use crate::write::{NAME_CREDITS, Writer};

/// Why fast commits cannot be written back.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteBackFault {
    #[error(transparent)]
    Fault(#[from] Fault),
    #[error("they change more than one transaction of this journal can hold")]
    TooMuch,
}

impl From<extant_inode::Fault> for WriteBackFault {
    fn from(fault: extant_inode::Fault) -> Self {
        Self::Fault(fault.into())
    }
}

impl From<extant_buffer::ReadFault> for WriteBackFault {
    fn from(fault: extant_buffer::ReadFault) -> Self {
        Self::Fault(fault.into())
    }
}

/// An inode as it was before, if it was in use.
struct InodeBefore {
    fields: layout::Inode,
    map: FileMap,
}

impl InodeBefore {
    fn is_dir(&self) -> bool {
        kind(&self.fields) == FileType::Directory
    }
}

/// Names that were added and removed, by comparing the directories' blocks with the records.
#[derive(Default)]
struct NameDiff {
    /// By inode: names added minus names removed.
    links: HashMap<Ino, i32>,
    /// Inodes that a name leads to that did not before. For a directory that is its only name.
    gained: HashSet<Ino>,
    lost: HashSet<Ino>,
    /// By directory.
    removed: BTreeMap<Ino, Vec<RemovedInode>>,
    added: BTreeMap<Ino, Vec<(Vec<u8>, Ino)>>,
}

struct RemovedInode {
    name: Vec<u8>,
    /// The name led to a directory.
    was_dir: bool,
}

struct WriteBack<'a> {
    writer: &'a Writer,
    outcome: &'a Outcome,
    change: Change<'a>,
    handle: &'a Handle<'a>,
    is_full: Cell<bool>,
}

/// Makes all changes in the running transaction, which the caller commits. `orphans` are the tracked orphans.
pub(super) fn make(writer: &Writer, outcome: &Outcome, orphans: &HashSet<Ino>) -> Result<(), WriteBackFault> {
    let handle = writer.start(writer.journal.credits_max())?;
    let change = writer.change(&handle);
    let write_back = WriteBack { writer, outcome, change, handle: &handle, is_full: Cell::new(false) };
    let done = write_back.all(orphans);
    let fits = handle.has_room(0);
    match done {
        Err(_) if write_back.is_full.get() => Err(WriteBackFault::TooMuch),
        Ok(()) if !fits => Err(WriteBackFault::TooMuch),
        done => done,
    }
}

impl WriteBack<'_> {
    fn all(&self, orphans: &HashSet<Ino>) -> Result<(), WriteBackFault> {
        let Outcome { inodes, names: changes } = self.outcome;
        let names = self.names(changes)?;
        let touched: BTreeSet<Ino> = inodes.keys().chain(names.links.keys()).copied().collect();
        let mut put = Vec::new();
        // First the inodes that free numbers and blocks, then those that take them.
        for ino in touched {
            if self.writer.shared().is_special(ino) {
                continue;
            }
            let before = self.before(ino)?;
            let changed = inodes.get(&ino).cloned().unwrap_or_default();
            let Some(fields) = self.fields(&before, &changed)? else { continue };
            let links = names.links.get(&ino).copied().unwrap_or(0);
            // A directory has one name. Its other links come from its subdirectories.
            let old_links = before.as_ref().map_or(0, |before| match before.is_dir() {
                true => 1,
                false => i32::from(before.fields.links),
            });
            let is_dir = FileType::from_mode(fields.mode) == FileType::Directory;
            let was_dir = before.as_ref().is_some_and(InodeBefore::is_dir);
            let stays = match is_dir {
                true => names.gained.contains(&ino) || was_dir && !names.lost.contains(&ino),
                false => old_links + links > 0 || before.is_some() && orphans.contains(&ino),
            };
            // The same number, but another inode: the old one is deleted, and this one is new.
            let is_same = |before: &InodeBefore| {
                before.fields.generation == fields.generation
                    && kind(&before.fields) == kind(&fields)
                    && !changes.is_new(ino)
            };
            let (before, old) = match before {
                Some(before) if stays && is_same(&before) => (Some(before), None),
                before => (None, before),
            };
            if old.is_some() {
                match stays {
                    // Its number is used again.
                    true => self.delete(ino)?,
                    false => self.delete_or_track(ino)?,
                }
            }
            if stays {
                let link = old.filter(|_| orphans.contains(&ino)).map(|old| old.fields.dtime);
                put.push((ino, before, changed, fields, (old_links + links, link)));
            }
        }
        let mut maps = Vec::new();
        for (ino, before, changed, mut fields, (links, orphan_link)) in put {
            self.room(4)?;
            fields.links = u16::try_from(links).unwrap_or(u16::MAX);
            if let Some(link) = orphan_link {
                fields.dtime = link;
            }
            let node = self.put(ino, before.as_ref(), &changed, fields, changes.is_new(ino))?;
            let is_mapped = node.values().has_flag(flags::EXTENTS) && !changes.is_new(ino);
            if let Some(new) = changed.map.filter(|_| is_mapped) {
                let old = before.map_or(Ok(Vec::new()), |before| self.pieces(&before.map))?;
                if old != new {
                    maps.push((node, old, new));
                }
            }
        }
        for (node, old, new) in &maps {
            // Bitmaps; the commit writes the descriptors.
            let bitmaps = (old.len() + new.len()).min(self.writer.shared().geometry.groups as usize) as u32;
            self.room(2 * bitmaps)?;
            self.change.exchange_blocks(node, old, new)?;
        }
        for (node, _, new) in &maps {
            self.change.rebuild_map(node, new, &|credits| self.room(credits + 2).is_ok())?;
        }
        self.change_dirs(changes, &names)
    }

    fn room(&self, credits: u32) -> Result<(), WriteBackFault> {
        if self.handle.has_room(credits) {
            return Ok(());
        }
        self.is_full.set(true);
        Err(WriteBackFault::TooMuch)
    }

    /// The inode that a name leads to in a directory's blocks.
    fn found(&self, dir: Ino, name: &[u8]) -> Result<Option<Ino>, WriteBackFault> {
        if !self.writer.keeper.alloc.is_inode_used(dir)? {
            return Ok(None);
        }
        let parent = self.writer.inodes().get_unlinked(dir)?;
        let is_dir = parent.values().kind() == FileType::Directory && parent.values().fields.links > 0;
        Ok(if is_dir { self.writer.names().find(&parent, name)? } else { None })
    }

    fn names(&self, changes: &ChangedNames) -> Result<NameDiff, WriteBackFault> {
        let mut names = NameDiff::default();
        for (dir, is_new, changed) in changes.all() {
            for (name, now) in changed.iter().filter(|(name, _)| !matches!(&name[..], b"." | b"..")) {
                let before = self.found(dir, name)?;
                if before == *now && !is_new {
                    continue;
                }
                if let Some(before) = before {
                    *names.links.entry(before).or_default() -= 1;
                    names.lost.insert(before);
                    let was_dir = self.before(before)?.is_some_and(|before| before.is_dir());
                    names.removed.entry(dir).or_default().push(RemovedInode { name: name.clone(), was_dir });
                }
                if let Some(now) = *now {
                    *names.links.entry(now).or_default() += 1;
                    names.gained.insert(now);
                    names.added.entry(dir).or_default().push((name.clone(), now));
                }
            }
        }
        // The kernel logs names in a directory created in the same transaction, and sometimes not the
        // directory. Nothing leads to such names.
        loop {
            let mut lost = Vec::new();
            for dir in names.added.keys() {
                let was_there = self.before(*dir)?.is_some_and(|before| before.is_dir());
                if !names.gained.contains(dir) && (!was_there || names.lost.contains(dir)) {
                    lost.push(*dir);
                }
            }
            if lost.is_empty() {
                return Ok(names);
            }
            for (_, ino) in lost.iter().filter_map(|dir| names.added.remove(dir)).flatten() {
                *names.links.entry(ino).or_default() -= 1;
                names.gained.remove(&ino);
            }
        }
    }

    /// The inode in the inode table, if it is in use.
    fn before(&self, ino: Ino) -> Result<Option<InodeBefore>, WriteBackFault> {
        if !self.writer.keeper.alloc.is_inode_used(ino)? {
            return Ok(None);
        }
        let node = self.writer.inodes().get_unlinked(ino)?;
        let values = node.values();
        Ok(Some(InodeBefore { fields: values.fields.clone(), map: values.map() }))
    }

    /// The new fields of an inode; `None` if it never was an inode.
    fn fields(
        &self,
        before: &Option<InodeBefore>,
        changed: &ChangedInode,
    ) -> Result<Option<layout::Inode>, WriteBackFault> {
        let fields = match (&changed.raw, before) {
            (Some(raw), _) => {
                let fields = layout::Inode::decode_of(&self.writer.shared().sb, raw);
                fields.map_err(|fact| {
                    extant_buffer::ReadFault::corrupt(extant_base::CorruptAt::default(), fact)
                })?
            }
            (None, Some(before)) => before.fields.clone(),
            (None, None) => return Ok(None),
        };
        Ok((kind(&fields) != FileType::Unknown).then_some(fields))
    }

    /// Deletes an inode if that changes few blocks. Otherwise it becomes an orphan, which is deleted in steps
    /// like those of the log.
    fn delete_or_track(&self, ino: Ino) -> Result<(), WriteBackFault> {
        let node = self.writer.inodes().get_unlinked(ino)?;
        let is_dir = node.values().kind() == FileType::Directory;
        if is_dir || self.writer.life().is_short(&node) {
            return self.delete(ino);
        }
        self.room(NAME_CREDITS)?;
        self.change.live.edit(&node, self.handle.transaction()).fields.links = 0;
        Ok(self.writer.keeper.orphans.add(self.change.live, &node, self.handle)?)
    }

    /// Deletes an inode with its blocks and attributes.
    fn delete(&self, ino: Ino) -> Result<(), WriteBackFault> {
        let node = self.writer.inodes().get_unlinked(ino)?;
        let step = Change::cut_credits(self.writer.shared());
        if node.values().has_map(self.writer.shared()) && node.values().fields.blocks != 0 {
            loop {
                self.room(step)?;
                if self.change.cut(&node, 0)? {
                    break;
                }
            }
        }
        self.room(NAME_CREDITS)?;
        Ok(self.writer.life().delete_now(&self.change, &node)?)
    }

    /// Brings an inode into memory with its new values, but not its map.
    fn put(
        &self,
        ino: Ino,
        before: Option<&InodeBefore>,
        changed: &ChangedInode,
        mut fields: layout::Inode,
        is_new_dir: bool,
    ) -> Result<Arc<LiveInode>, WriteBackFault> {
        let live = self.writer.inodes();
        let transaction = self.handle.transaction();
        let shared = self.writer.shared();
        let is_dir = kind(&fields) == FileType::Directory;
        let Some(raw) = &changed.raw else {
            let node = live.get_unlinked(ino)?;
            if !is_dir {
                live.edit(&node, transaction).fields.links = fields.links;
            }
            return Ok(node);
        };
        if is_new_dir {
            // Its contents are the names added to it, which are put into blocks.
            fields.size = 0;
            fields.flags &= !(flags::INLINE_DATA | flags::INDEX);
            if shared.sb.features.has_incompat(Features::EXTENTS) {
                fields.flags |= flags::EXTENTS;
            }
        }
        let extents = fields.has_flag(flags::EXTENTS);
        let mut i_block = fields.block;
        if extents && (is_new_dir || changed.map.is_some()) {
            i_block = FileMap::EMPTY;
        }
        match before {
            Some(InodeBefore { fields: old, map }) => {
                // Fast commits do not change attributes. Blocks are counted where the map changes.
                (fields.blocks, fields.file_acl, fields.dtime) = (old.blocks, old.file_acl, old.dtime);
                if is_dir {
                    // Fast commits do not change directories, except their names.
                    (fields.size, fields.links, fields.flags) = (old.size, old.links, old.flags);
                    i_block = map.i_block;
                } else if extents && map.extents {
                    i_block = map.i_block;
                }
            }
            None => (fields.blocks, fields.file_acl) = (0, 0),
        }
        let map = FileMap { ino, i_block, extents, seed: shared.inode_seed(ino, fields.generation) };
        let body = match is_new_dir {
            true => Vec::new(),
            false => raw.get(fields.xattr_offset()..).unwrap_or_default().to_vec(),
        };
        let is_new = before.is_none();
        let taken =
            is_new.then(|| self.writer.keeper.alloc.take_this_inode(self.handle, ino, is_dir)).transpose()?;
        let node = live.add(ino, Values::new(fields, body, map))?;
        if taken.is_some_and(|taken| taken.is_first_in_block) {
            live.fresh_block(&node);
        }
        drop(live.edit(&node, transaction));
        Ok(node)
    }

    fn pieces(&self, map: &FileMap) -> Result<Vec<Mapped>, WriteBackFault> {
        let mut pieces = Vec::new();
        if map.extents {
            map.walk(&self.writer.shared().buffers, Lblk(0), &mut |piece| {
                pieces.push(piece);
                Some(())
            })?;
        }
        Ok(pieces)
    }

    fn change_dirs(&self, changes: &ChangedNames, names: &NameDiff) -> Result<(), WriteBackFault> {
        let live = self.writer.inodes();
        let last_change = self.outcome.last_change();
        for (dir, is_new, changed) in changes.all() {
            // Name changes of a deleted directory are irrelevant.
            let Ok(node) = live.get(dir) else { continue };
            if node.values().kind() != FileType::Directory {
                continue;
            }
            let parent = changed.get(&b".."[..]).copied().flatten();
            if let Some(parent) = parent.filter(|_| is_new) {
                self.room(NAME_CREDITS)?;
                let made = self.change.make_dir(&node, parent, &self.writer.dir_format);
                made.map_err(Fault::from)?;
                live.edit(&node, self.handle.transaction()).fields.links = 2;
            }
            let is_changed = is_new || names.removed.contains_key(&dir) || names.added.contains_key(&dir);
            if !is_changed {
                continue;
            }
            let mut subdirs = 0;
            for RemovedInode { name, was_dir } in
                names.removed.get(&dir).into_iter().flatten().filter(|_| !is_new)
            {
                self.room(NAME_CREDITS)?;
                self.writer.life().with_names(&self.change, &node, |dir| dir.remove(name))?;
                subdirs -= i32::from(*was_dir);
            }
            for (name, ino) in names.added.get(&dir).into_iter().flatten() {
                let Ok(to) = live.get(*ino) else { continue };
                self.room(NAME_CREDITS)?;
                let kind = to.values().kind();
                self.writer.life().with_names(&self.change, &node, |dir| dir.insert(name, *ino, kind))?;
                subdirs += i32::from(kind == FileType::Directory);
            }
            // The directory's record has its times. Without one, the last change known is the nearest: a time
            // of the recovery would differ each time that the log is shown in memory.
            let at = last_change.filter(|_| !self.outcome.has_record(dir));
            self.writer.life().touch_dir_at(&self.change, &node, subdirs, at);
        }
        Ok(())
    }
}

fn kind(fields: &layout::Inode) -> FileType {
    FileType::from_mode(fields.mode)
}
