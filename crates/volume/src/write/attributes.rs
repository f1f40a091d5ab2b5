//! Changing an inode's fields: mode, owner, times, size.

use std::sync::Arc;

use base::{Ino, Lblk};
use inode::{Change, Node, Orphans};
use mapping::Holds;
use ondisk::Features;
use ondisk::filetype::FileType;
use ondisk::inode::flags;
use ondisk::time::Timestamp;

use super::{NAME_CREDITS, Writer};
use crate::{Fault, InodeRef, Refusal, Volume};

const SETUID: u16 = 0o4000;
const SETGID: u16 = 0o2000;
const GROUP_EXEC: u16 = 0o0010;

/// What to change; `None` stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttr {
    /// The twelve permission bits. An access ACL's mask follows.
    pub mode: Option<u16>,
    /// Owner. Takes the setuid bit off a file, and the setgid bit of an executable one, as the system call does.
    pub uid: Option<u32>,
    /// Group. As `uid`.
    pub gid: Option<u32>,
    /// Size in bytes: cut, or extended by a hole.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<Timestamp>,
    /// Last change of content.
    pub mtime: Option<Timestamp>,
    /// Last change of the inode; now, if anything else changes and this is not told.
    pub ctime: Option<Timestamp>,
    /// Birth.
    pub crtime: Option<Timestamp>,
    /// Inode flags (`ondisk::inode::flags`) that users may set.
    pub flags: Option<u32>,
    /// Project id.
    pub project: Option<u32>,
}

/// Flags that users may change.
const SETTABLE: u32 = flags::SYNC
    | flags::IMMUTABLE
    | flags::APPEND
    | flags::NODUMP
    | flags::NOATIME
    | flags::DIRSYNC
    | flags::TOPDIR
    | flags::NOTAIL
    | flags::PROJINHERIT;

impl Volume {
    /// Changes an inode's attributes.
    ///
    /// # Errors
    /// [`Refusal::WrongType`] for the size of what has none ([`Refusal::IsDirectory`] for directories), [`Refusal::TooLarge`],
    /// [`Refusal::NotPermitted`]; the device refused.
    pub fn set_attr(&self, ino: Ino, set: &SetAttr) -> Result<InodeRef, Fault> {
        let writer = self.writer()?;
        let times = [set.atime, set.mtime, set.ctime, set.crtime];
        if times.iter().flatten().any(|time| time.nanos >= 1_000_000_000) {
            return Err(Refusal::Invalid.into());
        }
        let node = writer.node(ino)?;
        let _operation = writer.lock_node(&node)?;
        writer.check_settable(&node, set)?;
        if let Some(size) = set.size {
            writer.set_size(&node, size)?;
        }
        let others = SetAttr { size: None, ..*set };
        if others != SetAttr::default() {
            writer.run(NAME_CREDITS, |change| {
                writer.set_fields(change, &node, &others)?;
                match others.mode {
                    Some(mode) => writer.chmod_acl(change, &node, mode),
                    None => Ok(()),
                }
            })?;
        }
        Ok(writer.live().snapshot(&node)?)
    }
}

impl Writer {
    fn check_settable(&self, node: &Node, set: &SetAttr) -> Result<(), Fault> {
        let values = node.values();
        if set.mode.is_some() && values.kind() == FileType::Symlink {
            return Err(Refusal::NotSupported.into());
        }
        let only_flags = SetAttr { flags: set.flags, project: set.project, ..SetAttr::default() } == *set;
        if values.has_flag(flags::IMMUTABLE | flags::APPEND) && !only_flags {
            return Err(Refusal::NotPermitted.into());
        }
        if set.project.is_some_and(|project| project != 0)
            && !self.shared().sb.features.has_ro_compat(Features::PROJECT)
        {
            return Err(Refusal::NotSupported.into());
        }
        if set.flags.is_some_and(|new| (new ^ values.fields.flags) & !SETTABLE != 0) {
            return Err(Refusal::NotSupported.into());
        }
        let Some(size) = set.size else { return Ok(()) };
        match values.kind() {
            FileType::Regular => {}
            FileType::Directory => return Err(Refusal::IsDirectory.into()),
            _ => return Err(Refusal::WrongType.into()),
        }
        if size > i64::MAX as u64 {
            return Err(Refusal::Invalid.into());
        }
        if values.has_flag(flags::ENCRYPT | flags::VERITY) {
            return Err(Refusal::NotPermitted.into());
        }
        if values.has_flag(flags::INLINE_DATA) && size != values.fields.size {
            return Err(Refusal::NotSupported.into());
        }
        if size > self.size_max(values.has_flag(flags::EXTENTS)) {
            return Err(Refusal::TooLarge.into());
        }
        Ok(())
    }

    /// The largest size of a file, in bytes.
    fn size_max(&self, extents: bool) -> u64 {
        let bs = self.shared().geometry.block_size;
        let blocks = match extents {
            true => u64::from(u32::MAX),
            false => {
                let per_block = bs.bytes() / 4;
                12 + per_block + per_block * per_block + per_block * per_block * per_block
            }
        };
        (blocks.min(u64::from(u32::MAX)) << bs.log2()).min(i64::MAX as u64)
    }

    fn set_fields(&self, change: &Change<'_>, node: &Arc<Node>, set: &SetAttr) -> Result<(), Fault> {
        let extra = self.shared().geometry.inode_size > ondisk::inode::BASE_SIZE;
        let now = self.now();
        let mut values = change.live.edit(node, change.edit.transaction());
        let is_dir = values.kind() == FileType::Directory;
        let fields = &mut values.fields;
        if set.uid.is_some() || set.gid.is_some() {
            fields.uid = set.uid.unwrap_or(fields.uid);
            fields.gid = set.gid.unwrap_or(fields.gid);
            if !is_dir {
                fields.mode &= !SETUID;
                if fields.mode & GROUP_EXEC != 0 {
                    fields.mode &= !SETGID;
                }
            }
        }
        if let Some(mode) = set.mode {
            fields.mode = fields.mode & !0o7777 | mode & 0o7777;
        }
        fields.atime = set.atime.map_or(fields.atime, |time| storable(time, extra));
        fields.mtime = set.mtime.map_or(fields.mtime, |time| storable(time, extra));
        fields.crtime = set.crtime.map_or(fields.crtime, |time| storable(time, extra));
        fields.ctime = storable(set.ctime.unwrap_or(now), extra);
        if let Some(new) = set.flags {
            fields.flags = fields.flags & !SETTABLE | new & SETTABLE;
        }
        fields.projid = set.project.unwrap_or(fields.projid);
        Ok(())
    }

    /// Sets a regular file's size. What lies behind the new end is freed; while that takes several transactions the inode is
    /// an orphan, so that a crash does not leave it half done.
    fn set_size(&self, node: &Arc<Node>, size: u64) -> Result<(), Fault> {
        let bs = self.shared().geometry.block_size;
        let old = node.values().fields.size;
        let keep = bs.blocks_for(size);
        let is_cut = size < old || size == old && self.may_have_blocks_behind(node, size);
        let is_short = is_cut && self.skip_short_orphans && self.is_short_cut(node);
        if is_cut {
            self.zero_tail(node, size)?;
        }
        let is_done = self.run(Change::cut_credits(self.shared()) + Orphans::CREDITS, |change| {
            if is_cut && !is_short {
                self.keeper.orphans.add(change.live, node, change.edit)?;
            }
            let now = self.now();
            {
                let mut values = change.live.edit(node, change.edit.transaction());
                let fields = &mut values.fields;
                fields.size = size;
                (fields.mtime, fields.ctime) = (now, now);
            }
            if !is_cut {
                return Ok(true);
            }
            let is_done = change.cut(node, keep)?;
            if is_done && !is_short {
                self.keeper.orphans.remove(change.live, node, change.edit)?;
            } else if !is_done && is_short {
                self.keeper.orphans.add(change.live, node, change.edit)?;
            }
            Ok(is_done)
        })?;
        if is_done {
            return Ok(());
        }
        self.cut_from(node, keep)?;
        self.run(NAME_CREDITS, |change| Ok(self.keeper.orphans.remove(change.live, node, change.edit)?))
    }

    fn may_have_blocks_behind(&self, node: &Node, size: u64) -> bool {
        let blocks = self.shared().geometry.block_size.blocks_for(size);
        let values = node.values();
        let held = values.fields.blocks >> (self.shared().geometry.block_size.log2() - 9);
        held > blocks
    }

    fn is_short_cut(&self, node: &Node) -> bool {
        let values = node.values();
        values.map.extents && values.map.depth() == 0
    }

    /// Zeros what a block that stays holds behind the new end: it would come back if the file grew.
    fn zero_tail(&self, node: &Arc<Node>, size: u64) -> Result<(), Fault> {
        let shared = self.shared();
        let bs = shared.geometry.block_size;
        let within = size & (bs.bytes() - 1);
        let Ok(lblk) = u32::try_from(size >> bs.log2()) else { return Ok(()) };
        if within == 0 || !self.has_map(node) {
            return Ok(());
        }
        let map = node.values().map.clone();
        if let Holds::Written(block) = map.find(&shared.buffers, Lblk(lblk), 1)?.holds
            && let Some(start) = bs.offset_of(block)
        {
            let zeros = vec![0; (bs.bytes() - within) as usize];
            shared.device.write_at(start + within, &zeros).map_err(Fault::Device)?;
        }
        Ok(())
    }
}

/// The nearest time that an inode can hold; at the ends of what it can, whole seconds, as the kernel makes it.
fn storable(time: Timestamp, extra: bool) -> Timestamp {
    let kept = time.clamped(extra);
    let ends = [i64::MIN, i64::MAX].map(|seconds| Timestamp { seconds, nanos: 0 }.clamped(extra).seconds);
    if ends.contains(&kept.seconds) { Timestamp { nanos: 0, ..kept } } else { kept }
}
