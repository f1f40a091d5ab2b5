//! Creating inodes: files, directories, symbolic links, devices.

use extant_alloc::InodeRequest;
use extant_base::{Ino, Lblk, Pblk};
use extant_buffer::{Kind, Owner, Seal};
use extant_dir::edit::DirTarget;
use extant_dir::edit::inline::InlineEditor;
use extant_inode::{Change, LiveInode, Values};
use extant_mapping::FileMap;
use extant_ondisk::Features;
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::{self as layout, flags};
use extant_ondisk::time::Timestamp;
use extant_xattr::Places;
use std::sync::Arc;

use super::views::InodeLife;
use super::{NAME_CREDITS, SETGID, SPECIAL, Writer, check_name};
use crate::ops::errors::Operation;
use crate::{Fault, InodeRef, Names, Refusal};

/// Most links of an inode.
pub(super) const LINKS_MAX: u16 = 65_000;
/// A target shorter than this is stored in the inode.
const FAST_LINK_MAX: usize = 60;

/// The attributes of a new inode.
#[derive(Debug, Clone, Copy)]
pub struct New<'a> {
    /// Its type.
    pub kind: FileType,
    /// The twelve permission bits, before `umask`. The set-ID bits of a directory are ignored.
    pub mode: u16,
    /// Permission bits to clear. A default ACL of the directory replaces it.
    pub umask: u16,
    /// Owner.
    pub uid: u32,
    /// Group. A directory with the setgid bit passes on its own group instead.
    pub gid: u32,
    /// Major and minor number of a device.
    pub device: (u32, u32),
    /// Target of a symbolic link.
    pub target: &'a [u8],
}

impl New<'_> {
    /// An empty regular file owned by root.
    #[must_use]
    pub fn file(mode: u16) -> Self {
        Self { kind: FileType::Regular, mode, umask: 0, uid: 0, gid: 0, device: (0, 0), target: b"" }
    }

    /// A directory owned by root.
    #[must_use]
    pub fn directory(mode: u16) -> Self {
        Self { kind: FileType::Directory, ..Self::file(mode) }
    }
}

impl<'a> New<'a> {
    /// A symbolic link owned by root.
    #[must_use]
    pub fn symlink(target: &'a [u8]) -> Self {
        Self { kind: FileType::Symlink, target, ..Self::file(0o777) }
    }
}

impl Names<'_> {
    /// Creates an inode with a name. It inherits ACLs, flags, group and project from its directory.
    ///
    /// # Errors
    /// [`Refusal::Exists`], [`Refusal::NoSpace`], [`Refusal::NoInodes`], [`Refusal::TooManyNames`] (the
    /// directory's links), [`Refusal::NameTooLong`], [`Refusal::Invalid`] (a NUL in the target, a device
    /// number that cannot be stored), [`Refusal::NotFound`] (an empty target); the directory is corrupt; the
    /// device failed.
    pub fn create(self, dir: Ino, name: &[u8], new: &New<'_>) -> Result<InodeRef, Fault> {
        let node = self.volume.noted(Operation::Create, self.create_node(dir, name, new))?;
        Ok(self.volume.writer()?.inodes().snapshot(&node)?)
    }

    /// As [`create`](Self::create), but returns only the inode number.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_number(self, dir: Ino, name: &[u8], new: &New<'_>) -> Result<Ino, Fault> {
        Ok(self.volume.noted(Operation::Create, self.create_node(dir, name, new))?.ino())
    }

    fn create_node(self, dir: Ino, name: &[u8], new: &New<'_>) -> Result<Arc<LiveInode>, Fault> {
        let writer = self.volume.writer()?;
        writer.life().check_new(new)?;
        check_name(name)?;
        if matches!(name, b"." | b"..") {
            return Err(Refusal::Exists.into());
        }
        let parent = writer.inode_maybe_freed(dir)?;
        let _operation = parent.operation.write();
        let of_dir = writer.life().check_parent(&parent, new.kind)?;
        writer.admit(|| writer.owners_of_new(&parent, new))?;
        writer.run(NAME_CREDITS, |change| {
            writer.life().ready_names_of(change, &parent, of_dir)?;
            let node = writer.life().make(change, &parent, new, name, |node| {
                let links = i32::from(new.kind == FileType::Directory);
                writer
                    .life()
                    .change_names(change, &parent, links, |dir| dir.insert(name, node.ino(), new.kind))
            })?;
            writer.keeper.fast.created(change, dir, name, &node);
            Ok(node)
        })
    }

    /// Creates an inode without a name that is open once. [`link`](Self::link) gives it a name; otherwise it
    /// is deleted when it is [`released`](crate::Volume::released).
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_unnamed(self, dir: Ino, new: &New<'_>) -> Result<InodeRef, Fault> {
        self.volume.noted(Operation::CreateUnnamed, self.make_unnamed(dir, new))
    }

    fn make_unnamed(self, dir: Ino, new: &New<'_>) -> Result<InodeRef, Fault> {
        let writer = self.volume.writer()?;
        writer.life().check_new(new)?;
        if new.kind == FileType::Directory {
            return Err(Refusal::WrongType.into());
        }
        let parent = writer.inode_to_change(dir)?;
        let _operation = parent.operation.read();
        writer.life().check_parent(&parent, new.kind)?;
        writer.admit(|| writer.owners_of_new(&parent, new))?;
        let node = writer.run(NAME_CREDITS, |change| {
            writer.life().make(change, &parent, new, b"", |node| {
                node.opens.store(1, std::sync::atomic::Ordering::Release);
                change.live.edit(node, change.edit.transaction()).fields.links = 0;
                Ok(writer.keeper.orphans.add(change.live, node, change.edit)?)
            })
        })?;
        Ok(writer.inodes().snapshot(&node)?)
    }
}

impl InodeLife<'_> {
    fn check_new(self, new: &New<'_>) -> Result<(), Fault> {
        let bs = self.writer.shared().geometry.block_size.len();
        match new.kind {
            FileType::Unknown => Err(Refusal::Invalid.into()),
            FileType::Symlink if new.target.is_empty() => Err(Refusal::NotFound.into()),
            // The kernel needs one byte for a trailing NUL.
            FileType::Symlink if new.target.len() >= bs.min(4096) => Err(Refusal::NameTooLong.into()),
            FileType::Symlink if new.target.contains(&0) => Err(Refusal::Invalid.into()),
            FileType::CharDevice | FileType::BlockDevice
                if layout::device_block(new.device.0, new.device.1).is_none() =>
            {
                Err(Refusal::Invalid.into())
            }
            _ => Ok(()),
        }
    }

    /// Checks that an inode of this kind can be created in the directory. Returns the directory's flags.
    pub(super) fn check_parent(self, parent: &LiveInode, kind: FileType) -> Result<u32, Fault> {
        let values = parent.values();
        Writer::check_live(parent, &values)?;
        if values.kind() != FileType::Directory {
            return Err(Refusal::NotDirectory.into());
        }
        if values.fields.links == 0 {
            return Err(Refusal::NotFound.into());
        }
        if values.has_flag(flags::IMMUTABLE) {
            return Err(Refusal::NotPermitted.into());
        }
        let unlimited = || self.writer.has_uncounted_links(values.fields.flags);
        if kind == FileType::Directory && values.fields.links >= LINKS_MAX && !unlimited() {
            return Err(Refusal::TooManyNames.into());
        }
        Ok(values.fields.flags)
    }

    /// Allocates an inode, sets its values and first block, and calls `go_on` with it. On an error nothing of
    /// it remains.
    ///
    /// The inode is locked until then: an operation with a stale inode number must not change an inode that
    /// may still be taken back.
    pub(super) fn make(
        self,
        change: &Change<'_>,
        parent: &Arc<LiveInode>,
        new: &New<'_>,
        name: &[u8],
        go_on: impl FnOnce(&Arc<LiveInode>) -> Result<(), Fault>,
    ) -> Result<Arc<LiveInode>, Fault> {
        let shared = self.writer.shared();
        let [uid, gid, projid] = self.writer.owners_of_new(parent, new);
        let (from_dir, dir_mode, is_top) = {
            let values = parent.values();
            let fields = &values.fields;
            let inherited = fields.flags & extant_inode::INHERITED;
            let is_top = parent.ino() == Ino::ROOT || fields.has_flag(flags::TOPDIR);
            (inherited, fields.mode, is_top)
        };
        let is_dir = new.kind == FileType::Directory;
        let request = InodeRequest {
            parent: parent.ino(),
            is_dir,
            is_top_dir: is_dir && is_top,
            name_hash: if is_dir && is_top { spread(name) } else { 0 },
            goal: None,
        };
        let before = change.edit.changes();
        let allocated = self.writer.keeper.alloc.allocate_inode(change.edit, &request).map_err(of_inodes)?;
        let ino = allocated.ino;
        let in_setgid = dir_mode & SETGID != 0 && !self.writer.dir_groups;
        // As mkdir(2): a new directory gets no set-ID bits from the caller.
        let mut mode = new.kind.mode_bits() | new.mode & if is_dir { 0o1777 } else { 0o7777 };
        if in_setgid && is_dir {
            mode |= SETGID;
        }
        let now = self.writer.now();
        // Flags that mean nothing for a type are not inherited. Inodes with data blocks use extents if the
        // feature is set.
        let mut flag_bits = match new.kind {
            FileType::Directory => from_dir,
            FileType::Regular => from_dir & !(flags::DIRSYNC | flags::CASEFOLD | flags::PROJINHERIT),
            _ => from_dir & (flags::NODUMP | flags::NOATIME),
        };
        let has_blocks = match new.kind {
            FileType::Regular | FileType::Directory => true,
            FileType::Symlink => new.target.len() >= FAST_LINK_MAX,
            _ => false,
        };
        let extents = has_blocks && shared.sb.features.has_incompat(Features::EXTENTS);
        if extents {
            flag_bits |= flags::EXTENTS;
        }
        let extra_isize = self.writer.new_extra_isize();
        let generation = self.writer.generation();
        let fields = layout::Inode {
            mode,
            uid,
            gid,
            atime: now,
            ctime: now,
            mtime: now,
            crtime: now,
            links: 1,
            flags: flag_bits,
            generation,
            extra_isize,
            projid,
            ..layout::Inode::default()
        };
        let seed = shared.inode_seed(ino, generation);
        let mut i_block = [0; 60];
        match new.kind {
            FileType::CharDevice | FileType::BlockDevice => {
                i_block = layout::device_block(new.device.0, new.device.1).unwrap_or(i_block);
            }
            FileType::Symlink if !has_blocks => i_block[..new.target.len()].copy_from_slice(new.target),
            _ if extents => i_block = FileMap::EMPTY,
            _ => {}
        }
        let map = FileMap { ino, i_block, extents, seed };
        let mut values = Values::new(fields, Vec::new(), map);
        values.fields.size = if new.kind == FileType::Symlink { new.target.len() as u64 } else { 0 };
        let node = match self.writer.inodes().make(ino, values).map_err(Fault::from) {
            Ok(node) => node,
            Err(fault) => {
                self.writer.keeper.alloc.free_inode(change.edit, ino, is_dir)?;
                change.edit.mark_complete(before);
                return Err(fault);
            }
        };
        let operation = node.operation.write();
        self.writer.inodes().put(Arc::clone(&node));
        if allocated.is_first_in_block {
            change.live.fresh_block(&node);
        }
        let filled = || self.fill(change, parent, &node, new, has_blocks);
        self.or_unmake(change, &node, before, filled)?;
        drop(change.live.edit(&node, change.edit.transaction()));
        self.or_unmake(change, &node, before, || go_on(&node))?;
        drop(operation);
        Ok(node)
    }

    fn fill(
        self,
        change: &Change<'_>,
        parent: &Arc<LiveInode>,
        node: &Arc<LiveInode>,
        new: &New<'_>,
        has_blocks: bool,
    ) -> Result<(), Fault> {
        self.writer.attributes().inherit_acl(change, parent, node, new)?;
        match new.kind {
            FileType::Directory => {
                change.make_dir(node, parent.ino(), &self.writer.dir_format)?;
                change.live.edit(node, change.edit.transaction()).fields.links = 2;
            }
            FileType::Symlink if has_blocks => {
                let mut values = change.live.edit(node, change.edit.transaction());
                let block = change.append_block(&mut values, Lblk(0), Pblk(0));
                let block = block.map_err(|fault| extant_inode::edit_fault(node.ino(), fault))?;
                let seal = Seal { owner: Owner { kind: Kind::Other, ino: node.ino().0 }, seed: None };
                change
                    .edit
                    .fresh(block, seal, &mut |bytes| bytes[..new.target.len()].copy_from_slice(new.target));
            }
            _ => {}
        }
        Ok(())
    }

    /// Prepares a directory for changes of its names: names stored in the inode move into a block. Comes
    /// before all other changes of an operation, because there may be no free block.
    pub(super) fn ready_names(self, change: &Change<'_>, dir: &Arc<LiveInode>) -> Result<(), Fault> {
        let of_dir = dir.values().fields.flags;
        if of_dir & (flags::ENCRYPT | flags::CASEFOLD) != 0 {
            return Err(Refusal::NotSupported.into());
        }
        if of_dir & flags::INLINE_DATA != 0 { self.move_out(change, dir) } else { Ok(()) }
    }

    /// As [`ready_names`](Self::ready_names), for a directory that had these flags when its operation lock
    /// was taken.
    pub(super) fn ready_names_of(
        self,
        change: &Change<'_>,
        dir: &Arc<LiveInode>,
        of_dir: u32,
    ) -> Result<(), Fault> {
        // An operation that is retried may have moved the names out already, so the current flags count.
        if of_dir & SPECIAL == 0 { Ok(()) } else { self.ready_names(change, dir) }
    }

    /// Changes a directory's names.
    pub(crate) fn with_names<R>(
        self,
        change: &Change<'_>,
        dir: &Arc<LiveInode>,
        with: impl FnOnce(&mut extant_dir::edit::Editor<'_>) -> Result<R, extant_dir::edit::EditFault>,
    ) -> Result<R, Fault> {
        self.ready_names(change, dir)?;
        Ok(change.with_dir(dir, &self.writer.dir_format, with)?)
    }

    /// Changes the names of a directory that is [ready](Self::ready_names) for it. Updates its times, and its
    /// link count by `links`.
    pub(super) fn change_names<R>(
        self,
        change: &Change<'_>,
        dir: &Arc<LiveInode>,
        links: i32,
        with: impl FnOnce(&mut extant_dir::edit::Editor<'_>) -> Result<R, extant_dir::edit::EditFault>,
    ) -> Result<R, Fault> {
        Ok(change
            .with_dir_then(dir, &self.writer.dir_format, with, |values| self.touch_names(values, links))?)
    }

    /// Moves all names of a directory out of its inode into a block.
    fn move_out(self, change: &Change<'_>, node: &Arc<LiveInode>) -> Result<(), Fault> {
        let shared = self.writer.shared();
        let begun = change.edit.changes();
        // Damage in the names, or in the attribute that holds a part of them, is found before the first
        // change.
        let (body, block) = self.writer.attributes().parts(node);
        Places { ino: node.ino(), body: &body, block, fs_seed: shared.fs_seed }.names(&shared.buffers)?;
        let inode = self.writer.inodes().snapshot(node)?;
        let (mut parent, mut first, mut second) =
            inode.with_inline_dir(shared, |dir| (dir.parent, *dir.first, dir.second.to_vec()))?;
        let format = &self.writer.dir_format.entries;
        let target = DirTarget { ino: node.ino(), indexed: false, casefold: false, encrypted: false };
        let names = InlineEditor::new(target, format, &mut parent, &mut first, &mut second)?.to_block()?;
        let before = {
            let mut values = change.live.edit(node, change.edit.transaction());
            let before = (values.fields.flags, values.fields.size, values.fields.block);
            let extents = shared.sb.features.has_incompat(Features::EXTENTS);
            values.fields.flags &= !(flags::INLINE_DATA | flags::EXTENTS);
            values.fields.flags |= if extents { flags::EXTENTS } else { 0 };
            values.fields.size = 0;
            values.fields.block = if extents { FileMap::EMPTY } else { [0; 60] };
            before
        };
        if let Err(fault) =
            change.fill_dir(node, &self.writer.dir_format, &mut |bytes| bytes.copy_from_slice(&names))
        {
            let mut values = change.live.edit(node, change.edit.transaction());
            (values.fields.flags, values.fields.size, values.fields.block) = before;
            drop(values);
            change.edit.mark_complete(begun);
            return Err(fault.into());
        }
        self.writer.attributes().drop_inline_data(change, node)?;
        change.edit.mark_complete(begun);
        Ok(())
    }

    /// Continues with an inode that was created after the first `before` changes. On an error the inode is
    /// deleted again. A `go_on` that fails half done still counts as a change, see [`Writer::run`].
    pub(super) fn or_unmake<R>(
        self,
        change: &Change<'_>,
        node: &Arc<LiveInode>,
        before: u64,
        go_on: impl FnOnce() -> Result<R, Fault>,
    ) -> Result<R, Fault> {
        let made = change.edit.changes();
        let fault = match go_on() {
            Ok(done) => return Ok(done),
            Err(fault) => fault,
        };
        let changed_nothing = change.edit.changes() == made;
        self.delete_now(change, node)?;
        if changed_nothing {
            change.edit.mark_complete(before);
        }
        Err(fault)
    }

    /// Updates a directory after a change of its names: its times, and its link count by `links`.
    pub(super) fn touch_dir(self, change: &Change<'_>, dir: &Arc<LiveInode>, links: i32) {
        self.touch_names(&mut change.live.edit(dir, change.edit.transaction()), links);
    }

    /// As [`touch_dir`](Self::touch_dir), at a given time; `None` leaves the times.
    pub(crate) fn touch_dir_at(
        self,
        change: &Change<'_>,
        dir: &Arc<LiveInode>,
        links: i32,
        at: Option<Timestamp>,
    ) {
        self.touch_names_at(&mut change.live.edit(dir, change.edit.transaction()), links, at);
    }

    fn touch_names(self, values: &mut Values, links: i32) {
        self.touch_names_at(values, links, Some(self.writer.now()));
    }

    fn touch_names_at(self, values: &mut Values, links: i32, at: Option<Timestamp>) {
        let fields = &mut values.fields;
        if let Some(at) = at {
            (fields.mtime, fields.ctime) = (at, at);
        }
        // The Hurd stores a translator's block in this field.
        if !self.writer.shared().sb.is_hurd() {
            fields.version = fields.version.wrapping_add(1);
        }
        // 1 stands for more links than an inode can count. It is permanent.
        if links != 0 && fields.links != 1 {
            let count = i32::from(fields.links) + links;
            fields.links = if count > i32::from(LINKS_MAX) { 1 } else { count as u16 };
        }
    }
}

/// Maps an allocator error to a refusal for lack of inodes.
pub(super) fn of_inodes(fault: extant_alloc::Fault) -> Fault {
    match fault {
        extant_alloc::Fault::NoSpace(_) => Refusal::NoInodes.into(),
        fault @ extant_alloc::Fault::Read(_) => fault.into(),
    }
}

/// Spreads names over flex groups; any hash would do.
fn spread(name: &[u8]) -> u32 {
    name.iter().fold(0x811C_9DC5, |hash: u32, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}
