//! Changing an inode's fields: mode, owner, times. Changes of the size are in `truncate`.

use std::sync::Arc;

use extant_base::Ino;
use extant_inode::{Change, LiveInode};
use extant_ondisk::Features;
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::flags;
use extant_ondisk::time::Timestamp;

use super::views::AttributeEdits;
use super::{NAME_CREDITS, unprivileged};
use crate::ops::errors::Operation;
use crate::{Attributes, Fault, InodeRef, Refusal};

/// The fields to change; `None` leaves a field as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttr {
    /// The twelve permission bits. The mask of an access ACL is updated to match.
    pub mode: Option<u16>,
    /// Owner. Clears the setuid bit of a file, and the setgid bit of an executable one, as chown(2) does.
    pub uid: Option<u32>,
    /// Group. As `uid`.
    pub gid: Option<u32>,
    /// Size in bytes: truncates the file, or extends it by a hole.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<Timestamp>,
    /// Last change of the data.
    pub mtime: Option<Timestamp>,
    /// Last change of the inode. `None` stands for the current time if anything else changes.
    pub ctime: Option<Timestamp>,
    /// Birth.
    pub crtime: Option<Timestamp>,
    /// Inode flags (`extant_ondisk::inode::flags`) that users may set.
    pub flags: Option<u32>,
    /// Project ID: needs the feature `project`, and room for it in the inode.
    pub project: Option<u32>,
    /// Source of the new times.
    pub times_from: TimesFrom,
}

/// Source of new times. Append-only and immutable inodes refuse some sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TimesFrom {
    /// The caller chose them: refused if the data may not be overwritten.
    #[default]
    Caller,
    /// Both are the current time, as touch(1) sets them by default: an append-only inode permits that.
    Touch,
    /// A cache above, which accepted writes earlier: the inode may have become append-only or immutable
    /// since.
    Cache,
}

/// Flags that users may change. The kernel's ext4 also permits EXTENTS.
const SETTABLE: u32 = flags::SECRM
    | flags::UNRM
    | flags::COMPR
    | flags::SYNC
    | flags::IMMUTABLE
    | flags::APPEND
    | flags::NODUMP
    | flags::NOATIME
    | flags::NOTAIL
    | flags::DIRSYNC
    | flags::TOPDIR
    | flags::EOFBLOCKS
    | flags::DAX
    | flags::PROJINHERIT;

/// Settable flags that only directories have.
const OF_DIRECTORIES: u32 = flags::DIRSYNC | flags::TOPDIR | flags::PROJINHERIT;
/// Settable flags of inodes that are neither regular files nor directories.
const OF_OTHERS: u32 = flags::NODUMP | flags::NOATIME;
/// Flags that exclude DAX.
const NOT_WITH_DAX: u32 = flags::VERITY | flags::ENCRYPT | flags::JOURNAL_DATA | flags::INLINE_DATA;

impl Attributes<'_> {
    /// Changes an inode's attributes.
    ///
    /// # Errors
    /// [`Refusal::WrongType`] for the size of an inode without one ([`Refusal::IsDirectory`] for
    /// directories), [`Refusal::TooLarge`], [`Refusal::NotPermitted`]; the device failed.
    pub fn set_attr(self, ino: Ino, set: &SetAttr) -> Result<InodeRef, Fault> {
        self.volume.noted(Operation::SetAttr, self.change_attr(ino, set))
    }

    /// The time that [`set_attr`](Self::set_attr) stores for `time`: the nearest one that an inode can hold.
    /// Inodes of 128 bytes hold whole seconds from 1901 to 2038.
    #[must_use]
    pub fn storable_time(self, time: Timestamp) -> Timestamp {
        let extra = self.volume.inodes.shared().geometry.inode_size > extant_ondisk::inode::BASE_SIZE;
        storable(time, extra)
    }

    fn change_attr(self, ino: Ino, set: &SetAttr) -> Result<InodeRef, Fault> {
        let writer = self.volume.writer()?;
        let times = [set.atime, set.mtime, set.ctime, set.crtime];
        if times.iter().flatten().any(|time| time.nanos >= 1_000_000_000) {
            return Err(Refusal::Invalid.into());
        }
        let node = writer.inode_to_change(ino)?;
        let _operation = writer.names().lock_node(&node)?;
        writer.attributes().check_settable(&node, set)?;
        let others = SetAttr { size: None, times_from: TimesFrom::default(), ..*set };
        let has_others = others != SetAttr::default();
        if has_others {
            writer.admit(|| writer.attributes().owners_after(&node, &others))?;
        }
        if let Some(size) = set.size {
            writer.sizes().set_size(&node, size)?;
        }
        if has_others {
            let changed = writer.run(NAME_CREDITS, |change| {
                let has_block = || node.values().fields.file_acl != 0;
                let had_block = has_block();
                writer.attributes().make_room(change, &node)?;
                if !has_room_for(&node, &others) {
                    return Err(Refusal::NotSupported.into());
                }
                // The ACL comes first, because it may need a block and be refused.
                if let Some(mode) = others.mode {
                    writer.attributes().chmod_acl(change, &node, mode)?;
                }
                writer.attributes().set_fields(change, &node, &others);
                if !had_block && !has_block() && others.flags.is_none() && others.project.is_none() {
                    writer.keeper.fast.touched(change, &node, false);
                }
                Ok(())
            });
            // The size has changed already, so a failure is half done.
            if set.size.is_some() { writer.sizes().or_abort(changed)? } else { changed? }
        }
        Ok(writer.inodes().snapshot(&node)?)
    }
}

/// Returns whether the inode has room for a new project ID.
fn has_room_for(node: &LiveInode, set: &SetAttr) -> bool {
    let values = node.values();
    let is_other = set.project.is_some_and(|project| project != values.fields.projid);
    !is_other || usize::from(values.fields.extra_isize) >= extant_ondisk::inode::EXTRA_SIZE
}

impl AttributeEdits<'_> {
    /// The owners of the inode after the change.
    fn owners_after(self, node: &LiveInode, set: &SetAttr) -> extant_inode::Owners {
        let values = node.values();
        let (fields, sb) = (&values.fields, &self.writer.shared().sb);
        let [uid, gid] = [set.uid.unwrap_or(fields.uid), set.gid.unwrap_or(fields.gid)];
        [sb.storable_id(uid), sb.storable_id(gid), set.project.unwrap_or(fields.projid)]
    }

    fn check_settable(self, node: &LiveInode, set: &SetAttr) -> Result<(), Fault> {
        let values = node.values();
        if set.mode.is_some() && values.kind() == FileType::Symlink {
            return Err(Refusal::NotSupported.into());
        }
        if values.has_flag(flags::IMMUTABLE | flags::APPEND)
            && !is_let(set, values.has_flag(flags::IMMUTABLE))
        {
            return Err(Refusal::NotPermitted.into());
        }
        let shared = self.writer.shared();
        let has_project = shared.sb.features.has_ro_compat(Features::PROJECT)
            && shared.geometry.inode_size > extant_ondisk::inode::BASE_SIZE;
        if set.project.is_some_and(|project| project != values.fields.projid) && !has_project {
            return Err(Refusal::NotSupported.into());
        }
        if let Some(new) = set.flags {
            check_flags(values.kind(), (values.fields.flags, new))?;
            let new_project = set.project.is_some_and(|project| project != values.fields.projid);
            // An inode that stays immutable permits no other change.
            if values.fields.flags & new & flags::IMMUTABLE != 0
                && (new != values.fields.flags || new_project)
            {
                return Err(Refusal::NotPermitted.into());
            }
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
        if size > self.writer.sizes().size_max(values.has_flag(flags::EXTENTS)) {
            return Err(Refusal::TooLarge.into());
        }
        Ok(())
    }

    fn set_fields(self, change: &Change<'_>, node: &Arc<LiveInode>, set: &SetAttr) {
        let extra = self.writer.shared().geometry.inode_size > extant_ondisk::inode::BASE_SIZE;
        let sb = &self.writer.shared().sb;
        let now = self.writer.now();
        let mut values = change.live.edit(node, change.edit.transaction());
        let is_dir = values.kind() == FileType::Directory;
        let fields = &mut values.fields;
        if set.uid.is_some() || set.gid.is_some() {
            fields.uid = set.uid.map_or(fields.uid, |uid| sb.storable_id(uid));
            fields.gid = set.gid.map_or(fields.gid, |gid| sb.storable_id(gid));
            if !is_dir {
                fields.mode = unprivileged(fields.mode);
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
        if let Some(quota) = change.live.quota() {
            quota.touch([fields.uid, fields.gid, fields.projid]);
        }
    }
}

/// Returns whether an append-only or immutable inode permits these changes.
fn is_let(set: &SetAttr, is_immutable: bool) -> bool {
    let only_flags = SetAttr { flags: set.flags, project: set.project, ..SetAttr::default() };
    let SetAttr { atime, mtime, ctime, times_from, .. } = *set;
    let only_times = SetAttr { atime, mtime, ctime, times_from, ..SetAttr::default() };
    match times_from {
        TimesFrom::Caller => *set == only_flags,
        TimesFrom::Touch => *set == only_times && !is_immutable,
        TimesFrom::Cache => *set == only_times,
    }
}

/// Checks that an inode of this type with the old flags can get the new ones.
fn check_flags(kind: FileType, (old, new): (u32, u32)) -> Result<(), Fault> {
    let not_of_kind = match kind {
        FileType::Directory => 0,
        FileType::Regular => OF_DIRECTORIES,
        _ => !OF_OTHERS,
    };
    let not_with_dax = match kind {
        FileType::Directory => NOT_WITH_DAX & !flags::INLINE_DATA,
        _ => NOT_WITH_DAX,
    };
    let is_dax_refused = new & flags::DAX != 0 && old & not_with_dax != 0;
    if (new ^ old) & !SETTABLE != 0 || new & SETTABLE & not_of_kind != 0 || is_dax_refused {
        return Err(Refusal::NotSupported.into());
    }
    Ok(())
}

/// The nearest time that an inode can store. At both limits without nanoseconds, as the kernel does.
fn storable(time: Timestamp, extra: bool) -> Timestamp {
    let kept = time.clamped(extra);
    let ends = [i64::MIN, i64::MAX].map(|seconds| Timestamp { seconds, nanos: 0 }.clamped(extra).seconds);
    if ends.contains(&kept.seconds) { Timestamp { nanos: 0, ..kept } } else { kept }
}
