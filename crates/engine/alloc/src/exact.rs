//! Allocates given blocks and given inodes: those that fast commits name as used although the bitmaps do not
//! have them yet.
//!
//! Used during recovery, when there are no concurrent allocations.

use extant_base::{CorruptAt, Group, Ino, Malformed, Pblk};
use extant_buffer::{Edit, ReadFault};

use crate::groups::Groups;
use crate::{Alloc, NewInode, bits};

impl Alloc {
    /// Whether this inode's bit is set.
    ///
    /// # Errors
    /// The bitmap cannot be read, its group is set aside, or there is no inode with this number.
    pub fn is_inode_used(&self, ino: Ino) -> Result<bool, ReadFault> {
        let (group, index) = self.groups.inode_bit(ino)?;
        let cell = self.groups.cell(group)?;
        let Some(state) = self.groups.lock_inodes(group, cell, true)? else {
            return Err(refused(ino, "its group can be used"));
        };
        Ok(!self.groups.is_inode_uninit(&state.desc)
            && state.inodes.as_deref().is_some_and(|map| bits::test(map, index)))
    }

    /// Allocates this inode. Needs the credits of [`allocate_inode`](Self::allocate_inode).
    ///
    /// # Errors
    /// The inode is in use; or as [`is_inode_used`](Self::is_inode_used).
    pub fn take_this_inode(&self, edit: &dyn Edit, ino: Ino, is_dir: bool) -> Result<NewInode, ReadFault> {
        let (group, index) = self.groups.inode_bit(ino)?;
        let cell = self.groups.cell(group)?;
        // A group that was never used gets its block bitmap too, which needs the group's system ranges.
        drop(self.groups.lock_blocks(group, cell, true)?);
        let Some(mut state) = self.groups.lock_inodes(group, cell, true)? else {
            return Err(refused(ino, "its group can be used"));
        };
        if state.inodes.as_deref().is_some_and(|map| bits::test(map, index)) {
            return Err(refused(ino, "it must be free"));
        }
        let taken = self.groups.take_inode(edit, group, &mut state, index, is_dir)?;
        cell.publish(&state);
        Ok(taken)
    }

    /// Allocates these blocks: whole clusters, all free. Changes the bitmap of each group touched.
    ///
    /// # Errors
    /// A bitmap cannot be read; some blocks are in use, were freed by a transaction that is not yet
    /// committed, or are outside the file system.
    pub fn take_these(&self, edit: &dyn Edit, start: Pblk, blocks: u64) -> Result<(), ReadFault> {
        let refuse =
            |rule| ReadFault::corrupt(CorruptAt::block(start), Malformed::new("taken blocks", rule, blocks));
        let inside = start.checked_add(blocks).is_some_and(|end| end.0 <= self.groups.geometry.blocks);
        let Some((mut group, mut bit)) = self.groups.place_of(start).filter(|_| inside) else {
            return Err(refuse("they must lie inside the file system"));
        };
        let mut clusters = blocks.div_ceil(self.groups.geometry.cluster_ratio());
        while clusters > 0 {
            let here = clusters.min(u64::from(self.groups.geometry.clusters_per_group() - bit)) as u32;
            let cell = self.groups.cell(group)?;
            let Some(mut state) = self.groups.lock_blocks(group, cell, true)? else {
                return Err(refuse("their group can be used"));
            };
            let range = bit..bit + here;
            if !state.map.as_deref().is_some_and(|map| bits::all_clear(map, range.clone())) {
                return Err(refuse("they must be free"));
            }
            self.groups.set_on_disk(edit, group, &mut state, range.clone())?;
            state.take(range.clone(), range.start);
            state.reindex(group, &self.groups.index);
            cell.publish(&state);
            drop(state);
            self.groups.space.add_free(-i64::from(here));
            (clusters, group, bit) = (clusters - u64::from(here), group + 1, 0);
        }
        Ok(())
    }
}

impl Groups {
    fn inode_bit(&self, ino: Ino) -> Result<(u32, u32), ReadFault> {
        let place = self.geometry.inode_place(ino).map(|(Group(group), index)| (group, index));
        place.ok_or_else(|| refused(ino, "its number must be an inode's"))
    }
}

fn refused(ino: Ino, rule: &'static str) -> ReadFault {
    ReadFault::corrupt(CorruptAt::ino(ino), Malformed::new("taken inode", rule, ino.0))
}
