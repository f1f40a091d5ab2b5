//! Cached extent status of files: query, precache, drop.
//!
//! Source: the kernel's ioctls EXT4_IOC_PRECACHE_EXTENTS, EXT4_IOC_CLEAR_ES_CACHE, EXT4_IOC_GET_ES_CACHE.

use std::sync::Arc;

use extant_base::Ino;
use extant_extent_status::{END, Entry, Status};
use extant_inode::{FileData, LiveInode};
use extant_mapping::{MapState, Mapped};
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::flags;

use super::views::DataEdits;
use crate::ops::errors::Operation;
use crate::{Counters, Fault, Files, Refusal};

/// Extents cached at a time.
const PIECE: usize = 1024;

impl Counters<'_> {
    /// Counters of the extent status cache and of the scans that shrink it;
    /// [`es_shrinker_info`](extant_extent_status::Stats::es_shrinker_info) formats them like the kernel's
    /// file. `None` if open for reading: there is no such cache then.
    #[must_use]
    pub fn extent_stats(self) -> Option<extant_extent_status::Stats> {
        Some(self.volume.writer.as_ref()?.inodes().files().extent_stats())
    }
}

impl Files<'_> {
    /// Caches a regular file's whole map, so that no access to the file has to read it. The entries are
    /// evicted last when memory is short. Returns the number of extents.
    ///
    /// # Errors
    /// The volume is open for reading; no such inode, or not a regular file; the map is corrupt or cannot be
    /// read. What was cached before the error stays.
    pub fn precache_extents(self, ino: Ino) -> Result<u64, Fault> {
        self.volume.noted(Operation::Precache, self.volume.writer()?.data().precache(ino))
    }

    /// Drops a file's cached extents that can be read again, and its [precached](Self::precache_extents)
    /// mark. Returns the number of entries dropped.
    ///
    /// # Errors
    /// The volume is open for reading; no such inode.
    pub fn forget_extents(self, ino: Ino) -> Result<u32, Fault> {
        let node = self.volume.writer()?.inode_to_change(ino)?;
        Ok(node.data().map_or(0, |data| data.known.clear()))
    }

    /// A file's cached extents in order, delayed ones and holes included. Nothing is known of blocks in no
    /// entry.
    ///
    /// # Errors
    /// The volume is open for reading; no such inode.
    pub fn known_extents(self, ino: Ino) -> Result<Vec<Entry>, Fault> {
        let node = self.volume.writer()?.inode_to_change(ino)?;
        Ok(node.data().map_or_else(Vec::new, |data| data.known.entries()))
    }
}

impl DataEdits<'_> {
    fn precache(self, ino: Ino) -> Result<u64, Fault> {
        let node = self.writer.inode_to_change(ino)?;
        let _operation = node.operation.read();
        match node.values().kind() {
            FileType::Regular => {}
            FileType::Directory => return Err(Refusal::IsDirectory.into()),
            _ => return Err(Refusal::WrongType.into()),
        }
        // Its data is in the inode, goes through the journal, or needs a key: no extents are cached for it.
        if node.values().has_flag(flags::INLINE_DATA | flags::ENCRYPT)
            || node.values().is_journaled(self.writer.shared())
        {
            return Ok(0);
        }
        let data: Arc<FileData> = self.writer.inodes().data(&node);
        self.learn_all(&node, &data)
    }

    fn learn_all(self, node: &LiveInode, data: &FileData) -> Result<u64, Fault> {
        // The map does not change meanwhile.
        let _mapping = data.mapping.read();
        let map = node.values().map();
        let (mut count, mut piece) = (0, Vec::with_capacity(PIECE));
        let mut learn = |mapped: Mapped| {
            let (start, status) = match mapped.state {
                MapState::Hole => return Some(()),
                MapState::Written(start) => (start, Status::Written),
                MapState::Unwritten(start) => (start, Status::Unwritten),
            };
            // The largest number is not a valid block number.
            let len = mapped.len.min(END - mapped.lblk.0);
            piece.push(Entry::mapped(mapped.lblk.0, len, start.0, status));
            count += 1;
            if piece.len() == PIECE {
                data.known.cache_leaf(&piece);
                // The next piece begins with it, so that holes between the pieces are cached.
                piece.drain(..PIECE - 1);
            }
            Some(())
        };
        map.walk(&self.writer.shared().buffers, extant_base::Lblk(0), &mut learn)?;
        data.known.precache(piece);
        Ok(count)
    }
}
