//! What is known in memory of files' blocks: looked at, learnt, forgotten.
//!
//! Source: the kernel's ioctls EXT4_IOC_PRECACHE_EXTENTS, EXT4_IOC_CLEAR_ES_CACHE, EXT4_IOC_GET_ES_CACHE.

use std::sync::Arc;

use extant_base::Ino;
use extant_extent_status::{END, Entry, Status};
use extant_inode::{FileData, LiveInode};
use extant_mapping::{Holds, Mapped};
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::flags;

use super::Writer;
use crate::{Fault, Refusal, Volume};

/// Extents that are learnt at a time.
const PIECE: usize = 1024;

impl Volume {
    /// Counts of what is known of files' blocks, and of the scans that keep it small; as text, in the form of
    /// the kernel's file, by [`es_shrinker_info`](extant_extent_status::Stats::es_shrinker_info). `None` when
    /// open for reading: then nothing of it is kept.
    #[must_use]
    pub fn extent_stats(&self) -> Option<extant_extent_status::Stats> {
        Some(self.writer.as_ref()?.inodes().files().extent_stats())
    }

    /// Learns all of a regular file's map, so that no access to the file has to read of it; it is forgotten
    /// last when memory is short. How many extents it has.
    ///
    /// # Errors
    /// It is open for reading; no such inode, or no regular file; the map is corrupt, or cannot be read: what
    /// was learnt stays.
    pub fn precache_extents(&self, ino: Ino) -> Result<u64, Fault> {
        self.noted(self.writer()?.precache(ino))
    }

    /// Forgets of a file's blocks what can be read again, and that it was [learnt](Self::precache_extents).
    /// How many entries.
    ///
    /// # Errors
    /// It is open for reading; no such inode.
    pub fn forget_extents(&self, ino: Ino) -> Result<u32, Fault> {
        let node = self.writer()?.inode_to_change(ino)?;
        Ok(node.data().map_or(0, |data| data.known.clear()))
    }

    /// What is known of a file's blocks now, in order: also of those that are promised and not allocated yet,
    /// and of holes. Of what is in no entry nothing is known.
    ///
    /// # Errors
    /// It is open for reading; no such inode.
    pub fn known_extents(&self, ino: Ino) -> Result<Vec<Entry>, Fault> {
        let node = self.writer()?.inode_to_change(ino)?;
        Ok(node.data().map_or_else(Vec::new, |data| data.known.entries()))
    }
}

impl Writer {
    fn precache(&self, ino: Ino) -> Result<u64, Fault> {
        let node = self.inode_to_change(ino)?;
        let _operation = node.operation.read();
        match node.values().kind() {
            FileType::Regular => {}
            FileType::Directory => return Err(Refusal::IsDirectory.into()),
            _ => return Err(Refusal::WrongType.into()),
        }
        // Its bytes are in the inode, go through the journal, or need a key: nothing of it is kept by
        // extents.
        if node.values().has_flag(flags::INLINE_DATA | flags::ENCRYPT)
            || node.values().is_journaled(self.shared())
        {
            return Ok(0);
        }
        let data: Arc<FileData> = self.inodes().data(&node);
        self.learn_all(&node, &data)
    }

    fn learn_all(&self, node: &LiveInode, data: &FileData) -> Result<u64, Fault> {
        // The map does not change meanwhile.
        let _mapping = data.mapping.read();
        let map = node.values().map();
        let (mut count, mut piece) = (0, Vec::with_capacity(PIECE));
        let mut learn = |mapped: Mapped| {
            let (start, status) = match mapped.holds {
                Holds::Hole => return Some(()),
                Holds::Written(start) => (start, Status::Written),
                Holds::Unwritten(start) => (start, Status::Unwritten),
            };
            // The last of all numbers is no block's.
            let len = mapped.len.min(END - mapped.lblk.0);
            piece.push(Entry::mapped(mapped.lblk.0, len, start.0, status));
            count += 1;
            if piece.len() == PIECE {
                data.known.cache_leaf(&piece);
                // The next piece begins with it, so that what lies between is known.
                piece.drain(..PIECE - 1);
            }
            Some(())
        };
        map.walk(&self.shared().buffers, extant_base::Lblk(0), &mut learn)?;
        data.known.precache(piece);
        Ok(count)
    }
}
