//! Extended attributes and ACLs: carries out the plans of the crate `xattr`.
//!
//! A value in an inode of its own is stored as metadata: its blocks go through the journal. The number of
//! entries that reference such an inode is in its ctime (high half) and version (low half), its checksum in
//! its atime.
//!
//! Source: kernel Documentation/filesystems/ext4/attributes.rst.

use std::collections::HashMap;
use std::sync::Arc;

use extant_alloc::{Flags, InodeRequest, Request};
use extant_base::rank::{self, Mutex};
use extant_base::{Ino, Lblk, Malformed, Pblk};
use extant_buffer::{Kind, Owner, ReadFault, Seal};
use extant_inode::{Change, LiveInode, Values, ValuesInInodes};
use extant_mapping::FileMap;
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::{self as layout, flags};
use extant_ondisk::time::Timestamp;
use extant_ondisk::xattr::{INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT};
use extant_ondisk::{Features, xattr as xattr_layout};
use extant_xattr::acl::{self, Acl, AclFault};
use extant_xattr::{BlockIndex, BlockPlan, ChangeFault, Mode, Places, Plan, Rules, ValueInodes as _};

use super::NAME_CREDITS;
use super::announce::Announced;
use super::new::New;
use super::new::of_inodes;
use super::views::AttributeEdits;
use crate::ops::errors::Operation;
use crate::{Attributes, Fault, Refusal};

/// Most hashes of attribute blocks in the index that finds blocks to share.
const HASHES_MAX: usize = 1 << 16;
/// Names of the ACL attributes.
const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";
/// `h_refcount` within an attribute block.
const REFCOUNT_AT: usize = 4;

/// Whether an attribute that is set must exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SetXattr {
    /// It may or may not exist.
    #[default]
    Any,
    /// [`Refusal::Exists`] if it exists.
    Create,
    /// [`Refusal::NoAttribute`] if it does not exist.
    Replace,
}

/// Attribute blocks and values that may be shared. The lock is held during every use or change of them, until
/// the references to a value are counted.
pub(crate) struct SharedXattrs(Mutex<Index, { rank::XATTRS }>);

/// Recently written blocks and values, to find equal ones.
struct Index {
    /// Attribute blocks.
    blocks: BlockIndex,
    /// Inodes with values, by checksum. One inode per checksum.
    values: HashMap<u32, Ino>,
}

impl SharedXattrs {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Index { blocks: BlockIndex::new(HASHES_MAX), values: HashMap::new() }))
    }
}

impl Index {
    fn note_value(&mut self, checksum: u32, ino: Ino) {
        if self.values.len() >= HASHES_MAX {
            self.values.clear();
        }
        self.values.insert(checksum, ino);
    }
}

impl Attributes<'_> {
    /// Sets an extended attribute by its full name. ACLs are in the format of setxattr(2). An access ACL also
    /// changes the mode.
    ///
    /// # Errors
    /// [`Refusal::Exists`], [`Refusal::NoAttribute`] according to `how`; [`Refusal::NotSupported`] for names
    /// that cannot be stored, [`Refusal::Range`] for names that are too long, [`Refusal::ValueTooLong`],
    /// [`Refusal::NoSpace`]; [`Refusal::Invalid`] for a malformed ACL; [`Refusal::NotPermitted`].
    pub fn set_xattr(self, ino: Ino, name: &[u8], value: &[u8], how: SetXattr) -> Result<(), Fault> {
        self.volume.noted(Operation::SetXattr, self.change_xattr(ino, name, Some(value), how))
    }

    /// Removes an extended attribute by its full name.
    ///
    /// # Errors
    /// [`Refusal::NoAttribute`]; as [`set_xattr`](Self::set_xattr).
    pub fn remove_xattr(self, ino: Ino, name: &[u8]) -> Result<(), Fault> {
        self.volume.noted(Operation::RemoveXattr, self.change_xattr(ino, name, None, SetXattr::Any))
    }

    fn change_xattr(self, ino: Ino, name: &[u8], value: Option<&[u8]>, how: SetXattr) -> Result<(), Fault> {
        let writer = self.volume.writer()?;
        if name.is_empty() || name.len() > xattr_layout::NAME_LEN_MAX {
            return Err(Refusal::Range.into());
        }
        if value.is_some_and(|value| value.len() > xattr_layout::VALUE_LEN_MAX) {
            return Err(Refusal::ValueTooLong.into());
        }
        let node = writer.inode_to_change(ino)?;
        let _operation = writer.names().lock_node(&node)?;
        let kind = {
            let values = node.values();
            if values.has_flag(flags::IMMUTABLE | flags::APPEND) {
                return Err(Refusal::NotPermitted.into());
            }
            values.kind()
        };
        let is_acl = matches!(name, ACL_ACCESS | ACL_DEFAULT);
        // User attributes are only for files and directories. The permissions of other inodes do not control
        // access to them.
        if name.starts_with(b"user.") && !matches!(kind, FileType::Regular | FileType::Directory) {
            return Err(Refusal::NotPermitted.into());
        }
        if is_acl && value.is_none() && kind == FileType::Symlink {
            return Err(Refusal::NotSupported.into());
        }
        let bs = writer.shared().geometry.block_size;
        let credits = NAME_CREDITS + value.map_or(0, |value| bs.blocks_for(value.len() as u64) as u32 + 8);
        writer.run(credits, |change| match (is_acl, value) {
            (true, Some(value)) => writer.attributes().set_acl(change, &node, name == ACL_DEFAULT, value),
            (_, Some(value)) => {
                let mode = match how {
                    SetXattr::Any => Mode::Any,
                    SetXattr::Create => Mode::Create,
                    SetXattr::Replace => Mode::Replace,
                };
                let planned = extant_xattr::Change::set(name, value, mode).map_err(of_change)?;
                writer.attributes().apply_xattr(change, &node, &planned)?;
                writer.attributes().touch(change, &node);
                Ok(())
            }
            (_, None) => {
                let planned = extant_xattr::Change::remove(name).map_err(of_change)?;
                writer.attributes().apply_xattr(change, &node, &planned)?;
                writer.attributes().touch(change, &node);
                Ok(())
            }
        })
    }
}

impl AttributeEdits<'_> {
    fn touch(self, change: &Change<'_>, node: &Arc<LiveInode>) {
        change.live.edit(node, change.edit.transaction()).fields.ctime = self.writer.now();
    }

    fn set_acl(
        self,
        change: &Change<'_>,
        node: &Arc<LiveInode>,
        is_default: bool,
        value: &[u8],
    ) -> Result<(), Fault> {
        let kind = node.values().kind();
        let parsed = acl::parse(value);
        // The order of errors: not an ACL, wrong type of inode, invalid ACL.
        let is_none = match &parsed {
            Err(AclFault::Version) => true,
            Err(_) => Acl::from_xattr(value).is_err(),
            Ok(_) => false,
        };
        let wrong_type = match kind {
            FileType::Symlink => Some(Refusal::NotSupported),
            FileType::Directory => None,
            _ => (is_default && !matches!(parsed, Ok(None))).then_some(Refusal::Denied),
        };
        if let (false, Some(refusal)) = (is_none, wrong_type) {
            return Err(refusal.into());
        }
        let parsed = parsed.map_err(|fault| of_acl(&fault))?;
        if is_default {
            let stored = acl::set_default(parsed.as_ref(), kind == FileType::Directory)
                .map_err(|fault| of_acl(&fault))?;
            self.store(change, node, INDEX_ACL_DEFAULT, stored.as_deref())?;
        } else {
            let mode = node.values().fields.mode;
            let access = acl::set_access(parsed.as_ref(), mode);
            self.store(change, node, INDEX_ACL_ACCESS, access.stored.as_deref())?;
            change.live.edit(node, change.edit.transaction()).fields.mode = access.mode;
        }
        self.touch(change, node);
        Ok(())
    }

    /// Sets or removes the attribute with an index and an empty name.
    fn store(
        self,
        change: &Change<'_>,
        node: &Arc<LiveInode>,
        index: u8,
        value: Option<&[u8]>,
    ) -> Result<(), Fault> {
        let planned = extant_xattr::Change { index, name: b"", value, mode: Mode::Any };
        self.apply_xattr(change, node, &planned)
    }

    /// Removes the part of inline data that is stored among the attributes.
    pub(super) fn drop_inline_data(self, change: &Change<'_>, node: &Arc<LiveInode>) -> Result<(), Fault> {
        let planned = extant_xattr::Change {
            index: xattr_layout::INDEX_SYSTEM,
            name: b"data",
            value: None,
            mode: Mode::Any,
        };
        self.apply_xattr(change, node, &planned)
    }

    /// An inode's ACL, if it has one.
    fn acl(self, node: &LiveInode, name: &[u8]) -> Result<Option<Acl>, Fault> {
        {
            let values = node.values();
            // Fast path for inodes without attributes: the body does not begin with the magic number.
            if values.fields.file_acl == 0 && values.body().iter().take(4).all(|byte| *byte == 0) {
                return Ok(None);
            }
        }
        let (body, block) = self.parts(node);
        let places = Places { ino: node.ino(), body: &body, block, fs_seed: self.writer.shared().fs_seed };
        let value = places.get(&self.writer.shared().buffers, &*self.writer.inodes, name)?;
        Ok(value.and_then(|value| Acl::from_xattr(&value).ok()))
    }

    /// Applies the directory's default ACL to a new inode, or the umask if there is none.
    pub(super) fn inherit_acl(
        self,
        change: &Change<'_>,
        parent: &Arc<LiveInode>,
        node: &Arc<LiveInode>,
        new: &New<'_>,
    ) -> Result<(), Fault> {
        if new.kind == FileType::Symlink {
            return Ok(());
        }
        let is_dir = new.kind == FileType::Directory;
        let Some(default) = self.acl(parent, ACL_DEFAULT)? else {
            if new.umask != 0 {
                change.live.edit(node, change.edit.transaction()).fields.mode &= !(new.umask & 0o777);
            }
            return Ok(());
        };
        let mode = node.values().fields.mode;
        let inherited =
            acl::inherit(&default, mode, is_dir).map_err(|fact| Fault::corrupt(parent.ino(), fact))?;
        change.live.edit(node, change.edit.transaction()).fields.mode = inherited.mode;
        // In the kernel's order: it decides which of them gets the room in the inode.
        for (index, value) in [(INDEX_ACL_DEFAULT, inherited.default), (INDEX_ACL_ACCESS, inherited.access)] {
            if let Some(value) = value {
                self.store(change, node, index, Some(&value))?;
            }
        }
        Ok(())
    }

    /// Updates the access ACL to a new mode.
    pub(super) fn chmod_acl(
        self,
        change: &Change<'_>,
        node: &Arc<LiveInode>,
        mode: u16,
    ) -> Result<(), Fault> {
        let Some(mut access) = self.acl(node, ACL_ACCESS)? else { return Ok(()) };
        acl::chmod(&mut access, mode);
        self.store(change, node, INDEX_ACL_ACCESS, Some(&access.to_disk()))
    }

    /// The bytes after the fixed fields, and the attribute block.
    pub(super) fn parts(self, node: &LiveInode) -> (Vec<u8>, Pblk) {
        let values = node.values();
        let room = match values.fields.extra_isize {
            0 => 0,
            extra => self
                .writer
                .shared()
                .geometry
                .inode_size
                .saturating_sub(layout::BASE_SIZE + usize::from(extra)),
        };
        let mut body = values.body()[..values.body().len().min(room)].to_vec();
        body.resize(room, 0);
        (body, Pblk(values.fields.file_acl))
    }

    fn rules(self) -> Rules {
        let shared = self.writer.shared();
        let ea_inode = shared.sb.features.has_incompat(Features::EA_INODE);
        Rules { block_size: shared.geometry.block_size, value_seed: ea_inode.then(|| shared.sb.fs_seed()) }
    }

    pub(super) fn apply_xattr(
        self,
        change: &Change<'_>,
        node: &Arc<LiveInode>,
        planned: &extant_xattr::Change<'_>,
    ) -> Result<(), Fault> {
        let shared = self.writer.shared();
        let (body, block) = self.parts(node);
        let places = Places { ino: node.ino(), body: &body, block, fs_seed: shared.fs_seed };
        let mut index = self.writer.xattrs.0.lock();
        let before = shared.values_in_inodes(&body, block)?;
        let mut plan = planned.plan(&places, &shared.buffers, &self.rules()).map_err(of_change)?;
        if plan.is_unchanged() {
            return Ok(());
        }
        if let Some(value) = planned.value {
            let ratio = shared.geometry.cluster_ratio();
            let value = shared.geometry.block_size.blocks_for(value.len() as u64).next_multiple_of(ratio);
            // A block for attributes, and the blocks of one value inode.
            if node.values().room(shared) < ratio + value {
                return Err(Refusal::TooLarge.into());
            }
        }
        let begun = change.edit.changes();
        let mut value_node = None;
        if let (Some(checksum), Some(value)) = (plan.value_checksum, planned.value) {
            match self.find_value(&mut index, node.ino(), value, checksum)? {
                Some(same) => plan.share_value_inode(same),
                None => {
                    let made = self.make_value(change, node, value, checksum)?;
                    plan.set_value_inode(made.ino());
                    value_node = Some(made);
                }
            }
        }
        if value_node.is_none() {
            plan.share(&index.blocks, &shared.buffers, shared.fs_seed)?;
        }
        let mut apply = || {
            // A reference to an invalid value is refused before the first change.
            let counted = self.values_to_count(node.ino(), &plan)?;
            self.apply_block(change, node, &plan, &mut index.blocks)?;
            Ok(counted)
        };
        let counted = match &value_node {
            Some(made) => self.writer.life().or_unmake(change, made, begun, apply)?,
            None => apply()?,
        };
        // As the kernel: not for the data of an inline file.
        if planned.value.is_some() && planned.index != xattr_layout::INDEX_SYSTEM {
            self.writer.keeper.announce(change, Announced::Attributes)?;
        }
        if let Some(body) = plan.body {
            change.live.edit(node, change.edit.transaction()).set_body(body);
        }
        if let (Some(made), Some(checksum)) = (value_node, plan.value_checksum) {
            index.note_value(checksum, made.ino());
        }
        // Under the index lock: no other thread can find a value that is deleted here.
        self.update_value_counts(change, node, &before, counted)
    }

    /// The values that a plan references more or less often, with the difference.
    fn values_to_count(self, owner: Ino, plan: &Plan) -> Result<Vec<(Arc<LiveInode>, i32)>, Fault> {
        let references = plan.value_references().into_iter();
        references.map(|(ino, delta)| Ok((self.value_node(owner, ino)?, delta))).collect()
    }

    /// Updates the block count for values in other inodes, which was `before` until now, and the values'
    /// reference counts.
    fn update_value_counts(
        self,
        change: &Change<'_>,
        node: &Arc<LiveInode>,
        before: &ValuesInInodes,
        counted: Vec<(Arc<LiveInode>, i32)>,
    ) -> Result<(), Fault> {
        let shared = self.writer.shared();
        let (body, block) = self.parts(node);
        let after = shared.values_in_inodes(&body, block)?;
        if *before != after {
            let mut values = change.live.edit(node, change.edit.transaction());
            values.add_blocks(shared, after.blocks.cast_signed() - before.blocks.cast_signed());
            values.set_value_inodes(after.count);
        }
        for (value, delta) in counted {
            self.count_value(change, &value, delta)?;
        }
        Ok(())
    }

    /// Makes room for all newer fields in an old inode that is full of attributes: some move into the block,
    /// as in the kernel. If that is not possible, the inode stays as it is.
    pub(super) fn make_room(self, change: &Change<'_>, node: &Arc<LiveInode>) -> Result<(), Fault> {
        let shared = self.writer.shared();
        let room = shared.geometry.inode_size.checked_sub(layout::BASE_SIZE + layout::EXTRA_SIZE);
        let is_short = usize::from(node.values().fields.extra_isize) < layout::EXTRA_SIZE;
        let Some(room) = room.filter(|_| is_short) else { return Ok(()) };
        let (body, block) = self.parts(node);
        let places = Places { ino: node.ino(), body: &body, block, fs_seed: shared.fs_seed };
        let mut index = self.writer.xattrs.0.lock();
        let begun = change.edit.changes();
        let before = shared.values_in_inodes(&body, block)?;
        let mut plan = match places.shrunk(&shared.buffers, &self.rules(), room) {
            Ok(plan) if node.values().room(shared) >= shared.geometry.cluster_ratio() => plan,
            Ok(_) | Err(ChangeFault::NoSpace) => return Ok(()),
            Err(fault) => return Err(of_change(fault)),
        };
        plan.share(&index.blocks, &shared.buffers, shared.fs_seed)?;
        let counted = self.values_to_count(node.ino(), &plan)?;
        match self.apply_block(change, node, &plan, &mut index.blocks) {
            Err(fault) if fault.is(Refusal::NoSpace) => return Ok(()),
            applied => applied?,
        }
        {
            let mut values = change.live.edit(node, change.edit.transaction());
            values.fields.extra_isize = layout::EXTRA_SIZE as u16;
            values.set_body(plan.body.unwrap_or_default());
        }
        self.update_value_counts(change, node, &before, counted)?;
        // Complete in itself: a later refusal does not leave it half done.
        change.edit.mark_complete(begun);
        Ok(())
    }

    /// Finds an inode that has this value already. As in the kernel, equal values are stored once.
    fn find_value(
        self,
        index: &mut Index,
        owner: Ino,
        value: &[u8],
        checksum: u32,
    ) -> Result<Option<Ino>, Fault> {
        let Some(ino) = index.values.get(&checksum).copied() else { return Ok(None) };
        let is_same = match self.sound_value(owner, ino)? {
            Some(node) if node.values().fields.size == value.len() as u64 => {
                match self.writer.inodes.value(ino, value.len() as u32) {
                    Ok(held) => held == value,
                    Err(ReadFault::Device(fault)) => return Err(Fault::Device(fault)),
                    Err(ReadFault::Corrupt(_)) => false,
                }
            }
            _ => false,
        };
        Ok(is_same.then_some(ino))
    }

    fn apply_block(
        self,
        change: &Change<'_>,
        node: &Arc<LiveInode>,
        plan: &Plan,
        index: &mut BlockIndex,
    ) -> Result<(), Fault> {
        if !matches!(plan.block, BlockPlan::Keep) {
            change.edit.mark_undescribed();
        }
        let shared = self.writer.shared();
        let seal = self.xattr_seal();
        let hash = plan.block_hash();
        let new = match &plan.block {
            BlockPlan::Keep => return Ok(()),
            BlockPlan::Replace(bytes) => {
                let Some((block, _)) = plan.old_block else { return Ok(()) };
                self.forget_hash(block, index)?;
                change.edit.fresh(block, seal, &mut |there| there.copy_from_slice(bytes));
                if let Some(hash) = hash {
                    index.insert(hash, block);
                }
                return Ok(());
            }
            BlockPlan::New(bytes) => {
                let goal = self.writer.keeper.alloc.inode_goal(node.ino(), false);
                let request = Request { goal, len: 1, min_len: 1, flags: Flags::METADATA, stream: None };
                let (block, _) = self.writer.keeper.alloc.allocate(change.edit, &request)?;
                change.edit.fresh(block, seal, &mut |there| there.copy_from_slice(bytes));
                if let Some(hash) = hash {
                    index.insert(hash, block);
                }
                block
            }
            BlockPlan::Share { block, refcount } => {
                set_refcount(change, *block, seal, *refcount)?;
                *block
            }
            BlockPlan::Drop => Pblk(0),
        };
        if let Some((old, refcount)) = plan.old_block {
            self.release_block(change, old, refcount, index)?;
        }
        let cluster = shared.geometry.cluster_ratio().cast_signed();
        let mut values = change.live.edit(node, change.edit.transaction());
        let had = values.fields.file_acl != 0;
        values.fields.file_acl = new.0;
        match (had, new.0 != 0) {
            (false, true) => values.add_blocks(shared, cluster),
            (true, false) => values.add_blocks(shared, -cluster),
            _ => {}
        }
        Ok(())
    }

    fn xattr_seal(self) -> Seal {
        Seal { owner: Owner { kind: Kind::Xattr, ino: 0 }, seed: self.writer.shared().fs_seed }
    }

    /// Removes one reference to an attribute block.
    fn release_block(
        self,
        change: &Change<'_>,
        block: Pblk,
        refcount: u32,
        index: &mut BlockIndex,
    ) -> Result<(), Fault> {
        if refcount > 1 {
            return set_refcount(change, block, self.xattr_seal(), refcount - 1);
        }
        self.forget_hash(block, index)?;
        change.edit.revoke(block);
        Ok(change.free_cluster(block)?)
    }

    fn forget_hash(self, block: Pblk, index: &mut BlockIndex) -> Result<(), Fault> {
        let held = self.writer.shared().buffers.get(block, self.xattr_seal().owner, |_| Ok(()))?;
        if let Ok((header, _)) = xattr_layout::decode_block(&held) {
            index.remove(header.hash, block);
        }
        Ok(())
    }

    /// Removes the references to the values of an inode that is to be deleted and may have many: each in a
    /// transaction of its own.
    pub(super) fn release_values(self, node: &Arc<LiveInode>) -> Result<(), Fault> {
        for (index, name, ino) in self.value_entries(node)? {
            // Invalid references are ignored, and are removed with the attribute block.
            if self.sound_value(node.ino(), ino)?.is_some() {
                let gone = extant_xattr::Change { index, name: &name, value: None, mode: Mode::Any };
                self.writer.run(NAME_CREDITS, |change| self.apply_xattr(change, node, &gone))?;
            }
        }
        Ok(())
    }

    /// The entries with values in inodes of their own. If there are any, deleting the inode needs more than
    /// one transaction.
    pub(super) fn value_entries(self, node: &LiveInode) -> Result<Vec<(u8, Vec<u8>, Ino)>, Fault> {
        let shared = self.writer.shared();
        if !shared.sb.features.has_incompat(Features::EA_INODE) {
            return Ok(Vec::new());
        }
        let (body, block) = self.parts(node);
        let places = Places { ino: node.ino(), body: &body, block, fs_seed: shared.fs_seed };
        Ok(places.value_entries(&shared.buffers)?)
    }

    /// Removes a deleted inode's attributes: one reference to its block, and one to each of its values.
    pub(super) fn release_xattrs(self, change: &Change<'_>, node: &Arc<LiveInode>) -> Result<(), Fault> {
        let shared = self.writer.shared();
        let has_none = {
            let values = node.values();
            values.fields.file_acl == 0 && values.body().is_empty()
        };
        if has_none {
            return Ok(());
        }
        let (body, block) = self.parts(node);
        let places = Places { ino: node.ino(), body: &body, block, fs_seed: shared.fs_seed };
        let entries = self.value_entries(node)?;
        if block.0 == 0 && entries.is_empty() {
            return Ok(());
        }
        let mut index = self.writer.xattrs.0.lock();
        let values: Vec<_> =
            entries.iter().filter_map(|(.., ino)| self.sound_value(node.ino(), *ino).transpose()).collect();
        let values = values.into_iter().collect::<Result<Vec<_>, _>>()?;
        let counted = shared.values_in_inodes(&body, block)?.blocks.cast_signed();
        let mut cluster = 0;
        if let Some(refcount) = places.block_refcount(&shared.buffers)? {
            self.release_block(change, block, refcount, &mut index.blocks)?;
            cluster = shared.geometry.cluster_ratio().cast_signed();
        }
        {
            let mut values = change.live.edit(node, change.edit.transaction());
            values.fields.file_acl = 0;
            values.set_body(Vec::new());
            values.set_value_inodes(0);
            values.add_blocks(shared, -cluster - counted);
        }
        let counted = values.iter().try_for_each(|value| self.count_value(change, value, -1));
        drop(index);
        counted
    }

    /// Creates an inode for a value, with one reference.
    fn make_value(
        self,
        change: &Change<'_>,
        node: &LiveInode,
        value: &[u8],
        checksum: u32,
    ) -> Result<Arc<LiveInode>, Fault> {
        change.edit.mark_undescribed();
        let shared = self.writer.shared();
        let request =
            InodeRequest { parent: node.ino(), is_dir: false, is_top_dir: false, name_hash: 0, goal: None };
        let allocated = self.writer.keeper.alloc.allocate_inode(change.edit, &request).map_err(of_inodes)?;
        let ino = allocated.ino;
        let (uid, gid) = {
            let values = node.values();
            (values.fields.uid, values.fields.gid)
        };
        let extents = shared.sb.features.has_incompat(Features::EXTENTS);
        let generation = self.writer.generation();
        let fields = layout::Inode {
            mode: FileType::Regular.mode_bits() | 0o600,
            uid,
            gid,
            size: value.len() as u64,
            // The value's checksum, and its reference count.
            atime: Timestamp { seconds: i64::from(checksum as i32), nanos: 0 },
            version: 1,
            crtime: self.writer.now(),
            links: 1,
            flags: flags::EA_INODE | if extents { flags::EXTENTS } else { 0 },
            generation,
            extra_isize: self.writer.new_extra_isize(),
            ..layout::Inode::default()
        };
        let seed = shared.inode_seed(ino, generation);
        let map = FileMap { ino, i_block: if extents { FileMap::EMPTY } else { [0; 60] }, extents, seed };
        let made = self.writer.inodes().add(ino, Values::new(fields, Vec::new(), map))?;
        if allocated.is_first_in_block {
            self.writer.inodes().fresh_block(&made);
        }
        if let Err(fault) = self.write_value(change, &made, value) {
            self.writer.life().delete_now(change, &made)?;
            return Err(fault);
        }
        Ok(made)
    }

    fn write_value(self, change: &Change<'_>, made: &Arc<LiveInode>, value: &[u8]) -> Result<(), Fault> {
        let bs = self.writer.shared().geometry.block_size.len();
        let seal = Seal { owner: Owner { kind: Kind::Other, ino: made.ino().0 }, seed: None };
        let mut values = change.live.edit(made, change.edit.transaction());
        for (piece, lblk) in value.chunks(bs).zip(0u32..) {
            let block = change.append_block(&mut values, Lblk(lblk), Pblk(0));
            let block = block.map_err(|fault| extant_inode::edit_fault(made.ino(), fault))?;
            change.edit.fresh(block, seal, &mut |bytes| bytes[..piece.len()].copy_from_slice(piece));
        }
        Ok(())
    }

    /// The inode of a value, after checks that it is one. Any other inode must not be counted or deleted
    /// because an attribute references it. A value with attributes of its own could lead back here.
    fn value_node(self, owner: Ino, ino: Ino) -> Result<Arc<LiveInode>, Fault> {
        let wrong = |rule| Fault::corrupt(owner, Malformed::new("attribute value's inode", rule, ino.0));
        if ino == owner || ino == Ino::ROOT || self.writer.shared().is_special(ino) {
            return Err(wrong("is none of the file system's own"));
        }
        let node = self.writer.inodes().get_unlinked(ino)?;
        let is_value = {
            let values = node.values();
            values.has_flag(flags::EA_INODE) && values.kind() == FileType::Regular && values.fields.links > 0
        };
        if !is_value {
            return Err(wrong("is one that holds a value"));
        }
        let (body, block) = self.parts(&node);
        if block.0 != 0 || xattr_layout::decode_ibody(&body).is_ok_and(|all| !all.is_empty()) {
            return Err(wrong("has no attributes of its own"));
        }
        Ok(node)
    }

    /// As [`value_node`](Self::value_node), but `None` for an invalid reference.
    fn sound_value(self, owner: Ino, ino: Ino) -> Result<Option<Arc<LiveInode>>, Fault> {
        match self.value_node(owner, ino) {
            Ok(node) => Ok(Some(node)),
            Err(Fault::Corrupt(_) | Fault::Refused(_)) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// Changes the reference count of a value, and deletes an unreferenced one.
    fn count_value(self, change: &Change<'_>, node: &Arc<LiveInode>, delta: i32) -> Result<(), Fault> {
        change.edit.mark_undescribed();
        let is_unnamed = {
            let mut values = change.live.edit(node, change.edit.transaction());
            let fields = &mut values.fields;
            let count = (fields.ctime.seconds as u64) << 32 | fields.version & 0xFFFF_FFFF;
            let count = count.saturating_add_signed(delta.into());
            fields.ctime = Timestamp { seconds: i64::from((count >> 32) as i32), nanos: 0 };
            fields.version = count & 0xFFFF_FFFF;
            count == 0 && fields.links > 0
        };
        if is_unnamed { self.writer.life().delete_now(change, node) } else { Ok(()) }
    }
}

fn set_refcount(change: &Change<'_>, block: Pblk, seal: Seal, refcount: u32) -> Result<(), Fault> {
    Ok(change.edit.change(block, seal, &mut |bytes| {
        bytes[REFCOUNT_AT..REFCOUNT_AT + 4].copy_from_slice(&refcount.to_le_bytes());
    })?)
}

fn of_change(fault: ChangeFault) -> Fault {
    match fault {
        ChangeFault::Read(fault) => fault.into(),
        ChangeFault::Unsupported => Refusal::NotSupported.into(),
        ChangeFault::EmptyName => Refusal::Invalid.into(),
        ChangeFault::NameLen => Refusal::Range.into(),
        ChangeFault::ValueLen => Refusal::ValueTooLong.into(),
        ChangeFault::Exists => Refusal::Exists.into(),
        ChangeFault::Absent => Refusal::NoAttribute.into(),
        ChangeFault::NoSpace => Refusal::NoSpace.into(),
    }
}

fn of_acl(fault: &AclFault) -> Fault {
    match fault {
        AclFault::Version => Refusal::NotSupported.into(),
        AclFault::Invalid(_) => Refusal::Invalid.into(),
        AclFault::NoDirectory => Refusal::Denied.into(),
    }
}
