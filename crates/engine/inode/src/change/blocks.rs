//! Maps blocks in holes, and changes the state of ranges of a file. Write-back, fallocate and hole punching
//! use it.
//!
//! With clusters, a block has the same position in its logical cluster and in its physical cluster:
//!
//! ```text
//!   file        | . 1 . . |  . . . . |     block 2: third block of the cluster of block 1, no allocation
//!   on disk     | . 1 . . |                block 5: second block of a new cluster
//! ```

use std::ops::Range;
use std::sync::Arc;

use extant_alloc::{Alloc, Flags, Request};
use extant_base::{Lblk, Pblk};
use extant_mapping::{EditFault, MapState, Mapped};
use extant_ondisk::extent::Extent;

use super::{Change, EXTENTS_PER_STEP, REVOKED_PER_EXTENT, Space, edit_fault};
use crate::clusters::UnmappedRun;
use crate::live::InodeCache;
use crate::node::{LiveInode, Values};
use crate::{Fault, FileData, Shared};

/// The state of new blocks, and the source of their space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewBlockOptions {
    /// The blocks are allocated, and read as zeros until they are written.
    pub unwritten: bool,
    /// The space was reserved by a promise: see [`extant_alloc::Alloc::claim`].
    pub promised: bool,
}

impl Change<'_> {
    /// Maps blocks in the hole of `len` blocks at `lblk`: as many from its front as are contiguous on disk.
    /// The caller holds `mapping` of the file's data exclusively, if it has any. Needs
    /// [`map_credits`](Self::map_credits).
    ///
    /// # Errors
    /// No space for the blocks or the map; the file is too large; or a block of the map cannot be read.
    /// Nothing was changed.
    pub fn map_hole(
        &self,
        node: &Arc<LiveInode>,
        lblk: Lblk,
        len: u32,
        want: NewBlockOptions,
    ) -> Result<Mapped, Fault> {
        let before = self.edit.changes();
        let mut values = self.hand_over(node);
        let mapped = self.map_hole_of(&mut values, lblk, len, want);
        if mapped.is_ok() {
            values.changed_in = self.edit.transaction();
        } else {
            self.edit.mark_complete(before);
        }
        mapped.map_err(|fault| edit_fault(node.ino(), fault))
    }

    fn map_hole_of(
        &self,
        values: &mut Values,
        lblk: Lblk,
        len: u32,
        want: NewBlockOptions,
    ) -> Result<Mapped, EditFault> {
        let shared = self.shared();
        let ratio = shared.geometry.cluster_ratio() as u32;
        let mut space = Space::new(*self, values);
        space.tree_flags = Flags::METADATA | Flags::USE_RESERVED;
        let mut map = values.map();
        let within = lblk.0 % ratio;
        let mut len = len.min(Extent::len_max(want.unwritten));
        let (start, taken) = match self.cluster_of(&map, lblk)? {
            Some(first) => {
                len = len.min(ratio - within);
                (Pblk(first.0 + u64::from(within)), None)
            }
            None => {
                len = self.before_used_cluster(&map, lblk, len)?;
                let (start, got) = self.take_data(&space, &map, lblk, len, want)?;
                len = len.min(got - within);
                (Pblk(start.0 + u64::from(within)), Some((start, got)))
            }
        };
        let state = if want.unwritten { MapState::Unwritten(start) } else { MapState::Written(start) };
        let editor = extant_mapping::Editor { buffers: &shared.buffers, edit: self.edit, space: &space };
        let inserted = map.insert(&editor, Mapped { lblk, len, state });
        values.set_map(&map);
        let done = match (&inserted, taken) {
            (Ok(done), _) => *done,
            (Err(_), _) => 0,
        };
        if let Some((start, got)) = taken {
            // Free what the map did not take: whole clusters at the end, or all.
            let used = if done == 0 { 0 } else { (within + done).next_multiple_of(ratio) };
            if used < got {
                let rest = u64::from(got - used);
                self.alloc.free(self.edit, Pblk(start.0 + u64::from(used)), rest, false)?;
                if want.promised {
                    self.alloc.claim_freed(rest);
                }
                space.count(-(rest.div_ceil(ratio.into()) as i64));
            }
        }
        space.update_i_blocks(values);
        inserted.map(|len| Mapped { lblk, len, state })
    }

    /// The first block of the cluster of `lblk`, if another block of that cluster is mapped.
    fn cluster_of(&self, map: &extant_mapping::FileMap, lblk: Lblk) -> Result<Option<Pblk>, EditFault> {
        let ratio = self.shared().geometry.cluster_ratio() as u32;
        if ratio == 1 {
            return Ok(None);
        }
        let first = lblk.0 - lblk.0 % ratio;
        let end = u64::from(first) + u64::from(ratio);
        let mut found = None;
        map.walk_until(&self.shared().buffers, Lblk(first), end, &mut |piece| {
            if let MapState::Written(start) | MapState::Unwritten(start) = piece.state {
                found = Some(Pblk(start.0 - u64::from(piece.lblk.0 - first)));
            }
            None
        })?;
        Ok(found)
    }

    /// The length of the hole up to its last cluster, if the file already has that cluster; otherwise `len`.
    fn before_used_cluster(
        &self,
        map: &extant_mapping::FileMap,
        lblk: Lblk,
        len: u32,
    ) -> Result<u32, EditFault> {
        let ratio = self.shared().geometry.cluster_ratio() as u32;
        let Some(last) = lblk.0.checked_add(len - 1) else { return Err(EditFault::TooLarge) };
        let last_cluster = last - last % ratio;
        let is_shared = last_cluster > lblk.0
            && (last + 1) % ratio != 0
            && self.cluster_of(map, Lblk(last_cluster))?.is_some();
        Ok(if is_shared { last_cluster - lblk.0 } else { len })
    }

    /// Allocates clusters for data. Returns the first block and the number of blocks, from the start of the
    /// cluster of `lblk`.
    fn take_data(
        &self,
        space: &Space<'_>,
        map: &extant_mapping::FileMap,
        lblk: Lblk,
        len: u32,
        want: NewBlockOptions,
    ) -> Result<(Pblk, u32), EditFault> {
        let ratio = self.shared().geometry.cluster_ratio() as u32;
        let within = lblk.0 % ratio;
        let before = match lblk.0.checked_sub(1 + within) {
            Some(before) => map.find(&self.shared().buffers, Lblk(before), 1)?.state,
            None => MapState::Hole,
        };
        let (goal, stream) = match before {
            MapState::Written(block) | MapState::Unwritten(block) => (Pblk(block.0 + 1), None),
            MapState::Hole => (space.goal, None),
        };
        let mut flags = Flags::DATA;
        flags = if want.promised { flags | Flags::PROMISED | Flags::USE_RESERVED } else { flags };
        flags = if map.extents { flags } else { flags | Flags::BELOW_2_32 };
        space.check_room()?;
        let request = Request { goal, len: within + len, min_len: within + 1, flags, stream };
        match self.alloc.allocate(self.edit, &request) {
            Ok((start, got)) => {
                space.count(i64::from(got.div_ceil(ratio)));
                Ok((start, got))
            }
            Err(extant_alloc::Fault::NoSpace(_)) => Err(EditFault::NoSpace),
            Err(extant_alloc::Fault::Read(fault)) => Err(EditFault::Read(fault)),
        }
    }

    /// Sets the state of all mapped blocks in a range; a few extents per call. Returns the block to continue
    /// at, or `None` if all are done. Holes stay holes. The caller holds `mapping` as for
    /// [`map_hole`](Self::map_hole). Needs [`state_credits`](Self::state_credits).
    ///
    /// # Errors
    /// No space for the map: no block has its new state. Or a block of the map cannot be read: extents before
    /// it have their new state.
    pub fn set_state(
        &self,
        node: &Arc<LiveInode>,
        range: Range<u64>,
        unwritten: bool,
    ) -> Result<Option<u64>, Fault> {
        let mut values = self.hand_over(node);
        let mut space = Space::new(*self, &values);
        space.tree_flags = Flags::METADATA | Flags::USE_RESERVED;
        let editor =
            extant_mapping::Editor { buffers: &self.shared().buffers, edit: self.edit, space: &space };
        let mut map = values.map();
        let done = map.set_state(&editor, range, unwritten, EXTENTS_PER_STEP);
        values.set_map(&map);
        values.changed_in = self.edit.transaction();
        space.update_i_blocks(&mut values);
        done.map_err(|fault| edit_fault(node.ino(), fault))
    }

    /// Unmaps and frees the blocks in a range: a bounded number per call, from its end backwards. Returns the
    /// end of the remaining range, or `None` if all are freed. No data of the range may be in memory. Needs
    /// [`cut_credits`](Self::cut_credits).
    ///
    /// # Errors
    /// As [`cut`](Self::cut).
    pub fn punch(&self, node: &Arc<LiveInode>, range: Range<u64>) -> Result<Option<u64>, Fault> {
        let ino = node.ino();
        let before = self.edit.changes();
        let data = node.data();
        let _mapping = data.as_ref().map(|data| data.mapping.write());
        let mut values = self.hand_over(node);
        let mut space = Space::new(*self, &values);
        space.tree_flags = Flags::METADATA | Flags::USE_RESERVED;
        let mut unmapped: Vec<UnmappedRun> = Vec::new();
        let editor =
            extant_mapping::Editor { buffers: &self.shared().buffers, edit: self.edit, space: &space };
        let mut map = values.map();
        let is_meta = values.is_journaled(self.shared());
        // Each block that was journaled needs a revoke record in the log.
        let most = (EXTENTS_PER_STEP, if is_meta { REVOKED_PER_EXTENT } else { u32::MAX });
        let left = map.remove_step(&editor, range, most, &mut |lblk, start, len| {
            unmapped.push((lblk, start, len));
        });
        // What was unmapped stays unmapped, even after a fault.
        values.set_map(&map);
        if !unmapped.is_empty() {
            // This counts as a change, whether or not the blocks can be freed.
            values.changed_in = self.edit.transaction();
        }
        let given_back =
            self.free(&space, &map, &unmapped, is_meta).and(space.freed()).map_err(Fault::of(ino));
        space.update_i_blocks(&mut values);
        if let Some(data) = &data {
            // Also drop the cached status that was added since the caller dropped it: status of whole
            // extents, when write-back converts other parts of them.
            unmapped
                .iter()
                .for_each(|(lblk, _, len)| data.forget(self.shared(), self.alloc, Lblk(lblk.0), *len));
            self.promise_again(data, &map, &unmapped)?;
        }
        let left = left.map_err(|fault| edit_fault(ino, fault))?;
        if let Err(fault) = given_back {
            // If the bitmap is corrupt, the blocks are unmapped and at worst leaked. If it could not be read,
            // nothing is damaged, and the change is only half done.
            if matches!(fault, Fault::Corrupt(_)) {
                self.edit.mark_complete(before);
            }
            return Err(fault);
        }
        Ok(left)
    }

    /// Reads what [`punch`](Self::punch) of a range will need, so that it is unlikely to fail half-way: the
    /// map of the range, and the bitmaps. Needs no handle.
    ///
    /// # Errors
    /// A block cannot be read.
    pub fn read_for_punch(
        live: &InodeCache,
        alloc: &Alloc,
        node: &Arc<LiveInode>,
        range: Range<u64>,
    ) -> Result<(), Fault> {
        let shared = live.shared();
        let data = node.data();
        let _mapping = data.as_ref().map(|data| data.mapping.read());
        let map = {
            let values = node.values();
            if values.maps_nothing() || !values.has_map(shared) {
                return Ok(());
            }
            values.map()
        };
        let (Ok(from), end) = (u32::try_from(range.start), range.end.min(1 << 32)) else { return Ok(()) };
        let mut bitmaps = Ok(());
        let of = Fault::of(node.ino());
        map.walk_until(&shared.buffers, Lblk(from), end, &mut |piece| {
            if let MapState::Written(start) | MapState::Unwritten(start) = piece.state {
                bitmaps = alloc.read_bitmaps(start, piece.len.into());
            }
            bitmaps.is_ok().then_some(())
        })
        .map_err(&of)?;
        bitmaps.map_err(of)
    }

    /// Reserves space again for delayed blocks that were to share a cluster which is now free.
    fn promise_again(
        &self,
        data: &FileData,
        map: &extant_mapping::FileMap,
        unmapped: &[UnmappedRun],
    ) -> Result<(), Fault> {
        let log = self.shared().geometry.cluster_log;
        if log == 0 {
            return Ok(());
        }
        for cluster in data.known.pending() {
            let was_in = |(lblk, _, len): &UnmappedRun| {
                (lblk.0 >> log..=(lblk.0 + (len - 1)) >> log).contains(&cluster)
            };
            if unmapped.iter().any(was_in)
                && self
                    .cluster_of(map, Lblk(cluster << log))
                    .map_err(|fault| edit_fault(map.ino, fault))?
                    .is_none()
                && data.known.promise_again(cluster)
            {
                data.note_promised(1);
                self.alloc.claim_freed(1 << log);
            }
        }
        Ok(())
    }

    /// Number of blocks that one [`map_hole`](Self::map_hole) may change.
    #[must_use]
    pub fn map_credits() -> u32 {
        // The map, a bitmap for each of its new blocks and for the data, and one for blocks that are freed
        // again.
        2 * extant_mapping::credits_insert(5) + 3
    }

    /// Number of blocks that one [`set_state`](Self::set_state) may change.
    #[must_use]
    pub fn state_credits(shared: &Shared) -> u32 {
        2 * extant_mapping::credits_set_state(5, EXTENTS_PER_STEP, shared.geometry.block_size)
    }
}
