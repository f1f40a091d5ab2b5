//! File data, symbolic link targets, extended attributes.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use extant_base::{Ino, Lblk};
use extant_inode::{Extent, Inode};
use extant_mapping::MapState;
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::flags;
use extant_xattr::Attribute;

use crate::ops::errors::Operation;
use crate::{Attributes, Fault, Files, Refusal, Volume};

/// Byte offset of i_block within an inode.
const I_BLOCK_AT: u64 = 0x28;

/// What to seek, as SEEK_DATA and SEEK_HOLE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that may not be zero.
    Data,
    /// The next byte of a hole. The end of the file counts as a hole.
    Hole,
}

/// Finds the first data or hole at or after `offset`. `piece` returns whether a byte is data, and the end of
/// that data or hole; `None` past the last block that a file can have.
pub(crate) fn seek_by(
    size: u64,
    offset: u64,
    what: Seek,
    mut piece: impl FnMut(u64) -> Result<Option<(bool, u64)>, Fault>,
) -> Result<u64, Fault> {
    let mut at = offset;
    while at < size {
        let Some((is_data, end)) = piece(at)? else { break };
        if is_data == (what == Seek::Data) {
            return Ok(at);
        }
        at = end;
    }
    match what {
        Seek::Hole if offset < size => Ok(at.min(size)),
        Seek::Data | Seek::Hole => Err(Refusal::PastEnd.into()),
    }
}

impl Files<'_> {
    /// Reads from byte `offset`. Returns fewer bytes than requested only at the end of the file.
    ///
    /// # Errors
    /// [`Refusal::IsDirectory`], [`Refusal::WrongType`], [`Refusal::NeedsKey`]; the map is corrupt; the
    /// device failed.
    pub fn read(self, file: &Inode, offset: u64, buf: &mut [u8]) -> Result<usize, Fault> {
        self.volume.check_going()?;
        match file.kind() {
            FileType::Regular => match &self.volume.writer {
                Some(writer) => {
                    self.volume.noted(Operation::Read, writer.data().read(file.ino(), offset, buf))
                }
                None => Ok(file.read_at(self.volume.inodes.shared(), offset, buf)?),
            },
            FileType::Directory => Err(Refusal::IsDirectory.into()),
            _ => Err(Refusal::WrongType.into()),
        }
    }

    /// Zero-copy read: passes the range of an open file that holds `len` bytes of data from `offset` to
    /// `take`, as that file and the offset in it. Returns `false`, without calling `take`, if the data is not
    /// contiguous in one file, or not completely before the end: then use [`read`](Self::read).
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn file_range(
        self,
        file: &Inode,
        offset: u64,
        len: u64,
        take: &mut dyn FnMut(BorrowedFd<'_>, u64),
    ) -> Result<bool, Fault> {
        self.volume.check_going()?;
        let shared = self.volume.inodes.shared();
        if file.kind() != FileType::Regular {
            return Ok(false);
        }
        // Under the operation lock, so that the blocks stay allocated to this file until `take` returns.
        let node = self.volume.writer.as_ref().map(|writer| writer.inodes().get(file.ino())).transpose()?;
        let _operation = node.as_ref().map(|node| node.operation.read());
        let now = match (&self.volume.writer, &node) {
            (Some(writer), Some(node)) => {
                if node.data().is_some_and(|data| !data.pages.is_clean()) {
                    return Ok(false);
                }
                Some(writer.inodes().snapshot(node)?)
            }
            _ => None,
        };
        let file = now.as_deref().unwrap_or(file);
        let Some(start) = file.place_of(shared, offset, len)? else { return Ok(false) };
        let Some((holder, at)) = shared.device.file_at(start, len) else { return Ok(false) };
        take(holder, at);
        Ok(true)
    }

    /// The target of a symbolic link, as raw bytes.
    ///
    /// # Errors
    /// [`Refusal::WrongType`] if it is not a symbolic link; [`Refusal::Stale`] if it was removed; as
    /// [`read`](Self::read).
    pub fn read_link(self, link: &Inode) -> Result<Vec<u8>, Fault> {
        self.volume.check_going()?;
        if link.kind() != FileType::Symlink {
            return Err(Refusal::WrongType.into());
        }
        // At most a block: loading an inode checks that.
        let mut target = vec![0; usize::try_from(link.size()).unwrap_or_default()];
        link.read_at(self.volume.inodes.shared(), 0, &mut target)?;
        // Its block may have been reused meanwhile, but only if the link itself was deleted.
        if self.volume.writer.is_some() && !self.is_still_there(link)? {
            return Err(Refusal::Stale.into());
        }
        Ok(target)
    }

    fn is_still_there(self, before: &Inode) -> Result<bool, Fault> {
        let now = self.volume.inode(before.ino())?;
        Ok(now.kind() == before.kind() && now.fields().generation == before.fields().generation)
    }

    /// A regular file after writeback of its dirty data; `None` if open for reading.
    fn written_back(self, file: &Inode) -> Result<Option<Arc<Inode>>, Fault> {
        let Some(writer) = &self.volume.writer else { return Ok(None) };
        if file.kind() != FileType::Regular {
            return Ok(None);
        }
        self.volume.noted(Operation::Read, writer.data().written_back(file.ino())).map(Some)
    }

    /// The extents of a file that overlap the byte range, as FIEMAP returns them: whole and unmerged as in
    /// the tree, without holes.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn extents(
        self,
        file: &Inode,
        offset: u64,
        len: u64,
        each: &mut dyn FnMut(Extent) -> Option<()>,
    ) -> Result<(), Fault> {
        self.volume.check_going()?;
        let now = self.written_back(file)?;
        let file = now.as_deref().unwrap_or(file);
        let shared = self.volume.inodes.shared();
        if file.is_inline() || file.is_fast_link(shared) {
            if offset < file.size() && len > 0 {
                let physical = self.place_of_i_block(file)?;
                let len = file.inline_len(shared)?.min(file.size());
                let _ = each(Extent { offset: 0, physical, len, unwritten: false, inline: true });
            }
            return Ok(());
        }
        if !file.has_map(shared) {
            return Ok(());
        }
        let bs = shared.geometry.block_size;
        let Ok(first) = u32::try_from(offset >> bs.log2()) else { return Ok(()) };
        let end = offset.saturating_add(len);
        let mut end_block = bs.blocks_for(end);
        // Indirect blocks can be referenced from many places in a damaged map, so the walk is limited to the
        // file's size.
        if !file.has_flag(flags::EXTENTS) {
            end_block = end_block.min(bs.blocks_for(file.size()));
        }
        file.walk_map(shared, Lblk(first), end_block, &mut |piece| {
            let start = u64::from(piece.lblk.0) << bs.log2();
            if start >= end {
                return None;
            }
            let (block, unwritten) = match piece.state {
                MapState::Hole => return Some(()),
                MapState::Written(block) => (block, false),
                MapState::Unwritten(block) => (block, true),
            };
            let physical = bs.offset_of(block).unwrap_or_default();
            let len = u64::from(piece.len) << bs.log2();
            each(Extent { offset: start, physical, len, unwritten, inline: false })
        })?;
        Ok(())
    }

    /// Byte offset of an inode's i_block on the device.
    fn place_of_i_block(self, inode: &Inode) -> Result<u64, Fault> {
        let shared = self.volume.inodes.shared();
        let Some((block, at)) = shared.inode_place(inode.ino())? else { return Ok(0) };
        Ok(shared.geometry.block_size.offset_of(block).unwrap_or_default() + at as u64 + I_BLOCK_AT)
    }

    /// The next data or hole at or after `offset`.
    ///
    /// # Errors
    /// [`Refusal::PastEnd`] if `offset` is at or past the end, or no data follows; as [`read`](Self::read).
    pub fn seek(self, file: &Inode, offset: u64, what: Seek) -> Result<u64, Fault> {
        self.volume.check_going()?;
        let mut now = None;
        if let Some(writer) = self.volume.writer.as_ref().filter(|_| file.kind() == FileType::Regular) {
            if let Some(found) =
                self.volume.noted(Operation::Seek, writer.data().seek(file.ino(), offset, what))?
            {
                return Ok(found);
            }
            now = self.written_back(file)?;
        }
        let file = now.as_deref().unwrap_or(file);
        let shared = self.volume.inodes.shared();
        let (size, bs) = (file.size(), shared.geometry.block_size);
        let has_map = file.has_map(shared);
        seek_by(size, offset, what, |at| {
            if !has_map {
                return Ok(Some((true, size)));
            }
            let Ok(lblk) = u32::try_from(at >> bs.log2()) else { return Ok(None) };
            let found = file.map(shared, Lblk(lblk), u32::MAX)?;
            let end = (u64::from(lblk) + u64::from(found.len)) << bs.log2();
            Ok(Some((matches!(found.state, MapState::Written(_)), end)))
        })
    }
}

impl Volume {
    /// Byte offset on the device of an inode in the inode table. `None` if there is no such inode, or its
    /// group's descriptor cannot be read.
    #[must_use]
    pub fn inode_table_place(&self, ino: Ino) -> Option<u64> {
        let shared = self.inodes.shared();
        let (block, at) = shared.inode_place(ino).ok()??;
        Some(shared.geometry.block_size.offset_of(block)? + at as u64)
    }
}

impl Attributes<'_> {
    /// The value of an extended attribute by its full name ("user.comment").
    ///
    /// # Errors
    /// [`Refusal::NoAttribute`]; [`Refusal::Range`] for an empty or too long name; [`Refusal::NotSupported`]
    /// for an ACL of a symbolic link; the attributes are corrupt; the device failed.
    pub fn xattr(self, inode: &Inode, name: &[u8]) -> Result<Vec<u8>, Fault> {
        self.volume.check_going()?;
        if name.is_empty() || name.len() > extant_ondisk::xattr::NAME_LEN_MAX {
            return Err(Refusal::Range.into());
        }
        if inode.kind() == FileType::Symlink && name.starts_with(b"system.posix_acl_") {
            return Err(Refusal::NotSupported.into());
        }
        if name.starts_with(b"user.") && !matches!(inode.kind(), FileType::Regular | FileType::Directory) {
            return Err(Refusal::NoAttribute.into());
        }
        if matches!(name, b"user." | b"trusted." | b"security.") {
            return Err(Refusal::Invalid.into());
        }
        let is_acl = matches!(name, b"system.posix_acl_access" | b"system.posix_acl_default");
        if !is_acl && (name.starts_with(b"system.") || extant_ondisk::xattr::split_name(name).is_none()) {
            return Err(Refusal::NotSupported.into());
        }
        let shared = self.volume.inodes.shared();
        let value = inode.places(shared).get(&shared.buffers, &*self.volume.inodes, name)?;
        Ok(value.ok_or(Refusal::NoAttribute)?)
    }

    /// The full names of all extended attributes.
    ///
    /// # Errors
    /// As [`xattr`](Self::xattr).
    pub fn xattr_names(self, inode: &Inode) -> Result<Vec<Vec<u8>>, Fault> {
        self.volume.check_going()?;
        let shared = self.volume.inodes.shared();
        Ok(inode.places(shared).names(&shared.buffers)?)
    }

    /// All extended attributes.
    ///
    /// # Errors
    /// As [`xattr`](Self::xattr).
    pub fn xattrs(self, inode: &Inode) -> Result<Vec<Attribute>, Fault> {
        self.volume.check_going()?;
        let shared = self.volume.inodes.shared();
        Ok(inode.places(shared).all(&shared.buffers, &*self.volume.inodes)?)
    }
}
