//! The two ways in which a file's map is asked for: to read, and to write later.
//!
//! ```text
//! map     known? ----------------------------------------> answer
//!           |  no: ask the disk --- an extent: keep it --> answer
//!           |                       a gap: keep the hole as far as no delayed block is in it --> answer
//!
//! delay   known and no hole? ----------------------------> answer: allocated already, or promised already
//!           |  not known: ask the disk; keep the hole too (all policies but `baseline`)
//!           v  a hole
//!         look again (the caller may have waited for its lock), promise clusters, insert delayed
//! ```
//!
//! Does **not** own: the mapping lock. `map` wants it shared or better, `delay` exclusively, from before the
//! call until the answer was used.
//!
//! Source: the linux-ext4 series "ext4: extents status tree shrinker improvement" v3, 2014, patch 3.

use extant_base::Lblk;

use crate::entry::{END, Entry, Status};
use crate::inode::{Inode, State};

/// What the map on disk says of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The extent that has it.
    Extent(Entry),
    /// There is none: the extents around it end and begin here. `to` is [`END`] behind the last one.
    Gap {
        /// The end of the extent before it; 0 if there is none.
        from: u32,
        /// The begin of the next extent.
        to: u32,
    },
}

/// The source of maps on disk, and of the space for reservations.
pub trait Source {
    /// Why it cannot say.
    type Error;

    /// What the map on disk says of `lblk`.
    ///
    /// # Errors
    /// It cannot be read.
    fn extent_at(&mut self, lblk: Lblk) -> Result<Answer, Self::Error>;

    /// Whether the file has a block on disk in a cluster; asked with bigalloc only.
    ///
    /// # Errors
    /// The map cannot be read.
    fn cluster_is_allocated(&mut self, cluster: u32) -> Result<bool, Self::Error> {
        let _ = cluster;
        Ok(false)
    }

    /// Promises space for so many clusters.
    ///
    /// # Errors
    /// There is none. Nothing has changed.
    fn promise(&mut self, clusters: u32) -> Result<(), Self::Error> {
        let _ = clusters;
        Ok(())
    }
}

/// The purpose of a lookup, and whether its result is to be cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// As usual.
    Yes,
    /// Writeback, truncation, splitting: what they ask about is about to change.
    No,
}

impl Inode {
    /// What `lblk` and at most `len - 1` blocks behind it are.
    ///
    /// # Errors
    /// The source's.
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

    /// Makes `lblk`, and blocks behind it as far as they are alike (at most `len` in all), ready to be
    /// written to later. Returns what they are: on disk, or delayed.
    ///
    /// # Errors
    /// The source's; then nothing is promised.
    pub fn delay<S: Source>(&self, lblk: Lblk, len: u32, source: &mut S) -> Result<Entry, S::Error> {
        self.shared.touch(&self.body);
        let known = match self.lookup(lblk) {
            Some(found) => found.entry,
            None => self.ask(lblk, source, self.shared.options.policy.keeps_holes_of_delayed_writes())?,
        };
        if known.status != Status::Hole {
            return Ok(clip(&known, lblk, len));
        }
        // Between the question and the caller's lock a page fault or fallocate may have come first.
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

    /// Asks the disk. A hole reaches as far as no delayed block is in it.
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

    /// There is nothing on disk in `from..to`, where `lblk` is: the hole that has `lblk`, kept if that is
    /// wanted.
    ///
    /// If `lblk` was delayed meanwhile (only possible where the caller does not keep others from writing),
    /// the answer is a hole up to the end of that, and nothing is kept.
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
            // The gap before it belongs to another lookup; as in the kernel, the hole begins at the requested
            // block.
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
                self.body.sync(&self.shared, &mut state);
            }
            hole
        };
        self.shared.relieve(&self.body);
        hole
    }

    /// Which of the clusters of new delayed blocks need a promise: whether the first and the last one have a
    /// block on disk, and how many need one.
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
        // Clusters in between are the new blocks' own: nothing else is in a hole.
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

/// What an entry says of `lblk` and at most `len` blocks.
fn clip(entry: &Entry, lblk: Lblk, len: u32) -> Entry {
    let to = entry.end().min(lblk.0.saturating_add(len.max(1)));
    entry.part(lblk.0, to)
}
