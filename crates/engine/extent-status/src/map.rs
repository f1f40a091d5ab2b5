//! Lookup of a file's map: `map` for reads, `delay` for delayed writes.
//!
//! ```text
//! map     known? ----------------------------------------> answer
//!           |  no: ask the disk --- an extent: keep it --> answer
//!           |                       a gap: keep the hole up to delayed blocks in it --> answer
//!
//! delay   known and no hole? ----------------------------> answer: allocated or delayed already
//!           |  not known: ask the disk; keep the hole too (all policies but `baseline`)
//!           v  a hole
//!         look again (the caller may have waited for its lock), reserve clusters, insert delayed
//! ```
//!
//! Does **not** own: the mapping lock. The caller holds it from before the call until it has used the answer:
//! shared or exclusively for `map`, exclusively for `delay`.
//!
//! Source: the linux-ext4 series "ext4: extents status tree shrinker improvement" v3, 2014, patch 3.

use extant_base::Lblk;

use crate::body::State;
use crate::entry::{END, Entry, Status};
use crate::inode::Inode;

/// What the map on disk has for a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The extent that has the block.
    Extent(Entry),
    /// No extent: those around the gap end at `from` and begin at `to`. `to` is [`END`] after the last
    /// extent.
    Gap {
        /// The end of the extent before it; 0 if there is none.
        from: u32,
        /// The start of the next extent.
        to: u32,
    },
}

/// Access to the map on disk and to the count of free space.
pub trait Source {
    /// The error of a read or a reservation.
    type Error;

    /// Looks up `lblk` in the map on disk.
    ///
    /// # Errors
    /// If the map cannot be read.
    fn extent_at(&mut self, lblk: Lblk) -> Result<Answer, Self::Error>;

    /// Whether the file has a block on disk in a cluster; called with bigalloc only.
    ///
    /// # Errors
    /// If the map cannot be read.
    fn cluster_is_allocated(&mut self, cluster: u32) -> Result<bool, Self::Error> {
        let _ = cluster;
        Ok(false)
    }

    /// Reserves space for `clusters` clusters.
    ///
    /// # Errors
    /// If there is not enough space. Nothing was changed then.
    fn promise(&mut self, clusters: u32) -> Result<(), Self::Error> {
        let _ = clusters;
        Ok(())
    }
}

/// Whether a lookup caches what it reads from disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Caches it: for all other callers.
    Yes,
    /// For writeback, truncation and splitting: the range they look up is about to change.
    No,
}

impl Inode {
    /// Looks up `lblk` and at most `len - 1` blocks after it.
    ///
    /// # Errors
    /// Those of the source.
    pub fn map<S: Source>(
        &self,
        lblk: Lblk,
        len: u32,
        source: &mut S,
        keep: Keep,
    ) -> Result<Entry, S::Error> {
        self.shared.touch(&self.body);
        if let Some(found) = self.lookup(lblk) {
            return Ok(clip(&found.entry, lblk, len));
        }
        let entry = self.ask(lblk, source, keep == Keep::Yes)?;
        Ok(clip(&entry, lblk, len))
    }

    /// Prepares `lblk`, and the following blocks of the same status (at most `len` in all), for a delayed
    /// write. Returns their status: on disk, or delayed.
    ///
    /// # Errors
    /// Those of the source; then nothing is reserved.
    pub fn delay<S: Source>(&self, lblk: Lblk, len: u32, source: &mut S) -> Result<Entry, S::Error> {
        self.shared.touch(&self.body);
        let known = match self.lookup(lblk) {
            Some(found) => found.entry,
            None => self.ask(lblk, source, self.shared.options.policy.keeps_holes_of_delayed_writes())?,
        };
        if known.status != Status::Hole {
            return Ok(clip(&known, lblk, len));
        }
        // Before the caller got its lock, a page fault or fallocate may have changed the block.
        if let Some(again) = self.peek(lblk, false)
            && again.entry.status != Status::Hole
        {
            return Ok(clip(&again.entry, lblk, len));
        }
        let wanted = clip(&known, lblk, len);
        let (first_allocated, last_allocated, clusters) = self.clusters_to_promise(&wanted, source)?;
        source.promise(clusters)?;
        let delayed = Entry { status: Status::Delayed, ..wanted };
        self.insert_delayed(lblk, delayed.len, (first_allocated, last_allocated));
        Ok(delayed)
    }

    /// Reads the map on disk. A hole ends at the first delayed block.
    fn ask<S: Source>(&self, lblk: Lblk, source: &mut S, keep: bool) -> Result<Entry, S::Error> {
        match source.extent_at(lblk)? {
            Answer::Extent(extent) => {
                if keep && extent.is_sound() {
                    self.cache(extent);
                }
                Ok(extent)
            }
            Answer::Gap { from, to } => Ok(self.hole(lblk, from, to, keep)),
        }
    }

    /// Returns the hole that has `lblk`, if `from..to` has nothing on disk. Keeps it if `keep`.
    ///
    /// If `lblk` was delayed meanwhile (possible only if the caller does not exclude writers), returns a hole
    /// up to the end of the delayed blocks and keeps nothing.
    pub(crate) fn hole(&self, lblk: Lblk, from: u32, to: u32, keep: bool) -> Entry {
        let clipped = |state: &State| {
            let (mut from, mut to) = (from.min(lblk.0), to.clamp(lblk.0 + 1, END));
            if let Some(at) = state.tree.seek(lblk.0)
                && let entry = state.tree.get(at).entry()
                && entry.contains(lblk.0)
                && entry.status == Status::Delayed
            {
                return (Entry::hole(lblk.0, entry.end() - lblk.0), false);
            }
            let delayed = |from: u32| {
                let mut entries = state.tree.iter_from(from).take_while(|entry| entry.lblk.0 < to);
                entries.find(|entry| entry.status == Status::Delayed)
            };
            // Delayed blocks cut the gap before `lblk`: the hole begins at `lblk` then, as in Linux.
            let mut next = delayed(from);
            if next.is_some_and(|entry| entry.end() <= lblk.0) {
                from = lblk.0;
                next = delayed(from);
            }
            to = next.map_or(to, |entry| entry.lblk.0);
            (Entry::hole(from, to - from), true)
        };
        if !keep || self.shared.is_replaying() {
            return clipped(&self.body.state.read()).0;
        }
        let hole = {
            let mut state = self.body.state.write();
            let (hole, may_keep) = clipped(&state);
            if may_keep {
                self.cache_in(&mut state, &hole);
                self.shared.sync(&self.body, &mut state);
            }
            hole
        };
        self.shared.relieve(&self.body);
        hole
    }

    /// Finds the clusters of new delayed blocks that need a reservation: whether the first and the last one
    /// have a block on disk, and how many need one.
    fn clusters_to_promise<S: Source>(
        &self,
        new: &Entry,
        source: &mut S,
    ) -> Result<(bool, bool, u32), S::Error> {
        let bits = self.shared.options.cluster_bits;
        if bits == 0 {
            return Ok((false, false, new.len));
        }
        let (first, last) = (new.lblk.0 >> bits, (new.end() - 1) >> bits);
        // The clusters in between have no other blocks: the range was a hole.
        let mut clusters = (last - first + 1).saturating_sub(2);
        let mut allocated = [false; 2];
        for (edge, cluster) in [first, last].into_iter().enumerate() {
            if edge == 1 && first == last {
                allocated[1] = allocated[0];
                break;
            }
            let block = Lblk(cluster << bits);
            if self.any_in_cluster(block, |entry| entry.status == Status::Delayed) {
                continue;
            }
            allocated[edge] = self.any_in_cluster(block, |entry| entry.status.is_mapped())
                || source.cluster_is_allocated(cluster)?;
            clusters += u32::from(!allocated[edge]);
        }
        Ok((allocated[0], allocated[1], clusters))
    }
}

/// The part of an entry from `lblk` on, at most `len` blocks.
fn clip(entry: &Entry, lblk: Lblk, len: u32) -> Entry {
    let to = entry.end().min(lblk.0.saturating_add(len.max(1)));
    entry.part(lblk.0, to)
}
