//! Extents of a file system with bigalloc, which move in whole clusters.
//!
//! ```text
//! lblk       0   1   2   3 | 4   5   6   7 | 8   9           a cluster has 4 blocks
//! extents   [written][unwritten    ][written   ]
//! cluster   C              | C+1           | C+2
//! ```
//!
//! A block has the same offset in its cluster as in the file, and blocks of the same 4 blocks of the file are
//! in the same cluster. So extents that share a cluster move together: the three extents of the picture are a
//! *chain*. All of a chain moves with one switch, and its clusters become free after its last extent.
//!
//! Owns: chains. Does **not** own: walking the maps (see `maps`).
//!
//! Invariants
//! 1. INV-RZ5: no switch comes between the moves of two extents that share a cluster.

use std::collections::BTreeMap;
use std::ops::Range;

use extant_base::le::{put_u16, put_u32, u16_at, u32_at};
use extant_ondisk::extent::{Step, Walker};

use super::Mover;
use super::maps::{ENTRY, Node, WRITTEN_MAX, split};
use crate::fault::ResizeFault;

/// A cluster of which the file may have more blocks in the next extent. All numbers are those of first
/// blocks.
#[derive(Debug, Clone)]
pub(super) struct Chain {
    /// The cluster's old place, which is still in use.
    old: u64,
    /// Its new place.
    new: u64,
    /// Clusters after the new place, allocated for the next extents of the chain.
    ahead: Range<u64>,
}

/// An entry of a leaf.
struct Extent {
    lblk: u32,
    start: u64,
    len: u16,
    is_unwritten: bool,
}

impl Extent {
    fn decode(bytes: &[u8], at: usize) -> Self {
        let raw = u16_at(bytes, at + 4);
        let is_unwritten = raw > WRITTEN_MAX;
        Self {
            lblk: u32_at(bytes, at),
            start: u64::from(u32_at(bytes, at + 8)) | u64::from(u16_at(bytes, at + 6)) << 32,
            len: if is_unwritten { raw - WRITTEN_MAX } else { raw },
            is_unwritten,
        }
    }

    fn blocks(&self) -> Range<u64> {
        self.start..self.start + u64::from(self.len)
    }
}

impl Mover<'_, '_> {
    /// Moves the extent at byte `at` of a leaf with these bytes, or its first clusters if no free run has its
    /// length. Returns whether it has moved everything of the leaf.
    pub(super) fn extent_in_clusters(
        &mut self,
        node: Node,
        bytes: &[u8],
        at: usize,
    ) -> Result<bool, ResizeFault> {
        let extent = Extent::decode(bytes, at);
        let (start, len, ratio) = (extent.start, extent.len, self.change.space.ratio);
        if start % ratio != u64::from(extent.lblk) % ratio {
            let why = format!(
                "an extent of inode {} has another place in its cluster than in the file",
                self.ino.0
            );
            return Err(ResizeFault::Damaged(why));
        }
        let flag = if extent.is_unwritten { WRITTEN_MAX } else { 0 };
        let old = self.change.space.whole_clusters(&extent.blocks());
        if self.chain.as_ref().is_none_or(|chain| chain.old != old.start) {
            self.close_chain()?;
            if start >= self.change.space.limit {
                // The blocks from there on may be free for others now.
                self.from = u64::MAX;
            }
            self.change.commit_if_full()?;
        }
        // Extents before it may share the first cluster, and stay. (The limit is between two clusters.)
        let is_forced = start >= self.from && start < self.change.space.limit;
        let stays = start < self.change.space.limit && start != old.start && !is_forced;
        let new = match &self.chain {
            _ if stays => 0..0,
            Some(chain) => {
                let (first, mut end) = (chain.new, chain.new + ratio);
                if !chain.ahead.is_empty() {
                    end = chain.ahead.end;
                }
                let wanted = (first + (old.end - old.start)).saturating_sub(end);
                // Clusters that are allocated here stay allocated: the chain has them.
                let more = self.change.space.allocate_at(self.change.fs, end, wanted)?;
                first..end + more
            }
            None => {
                let end = self.chain_end(old.start)?.max(old.end);
                self.allocate(end - old.start)?
            }
        };
        if let Some(chain) = &mut self.chain {
            chain.ahead = chain.new + ratio..new.end;
        }
        let part = match new.end - new.start {
            room if room >= old.end - old.start => len,
            room => (old.start + room).saturating_sub(start) as u16,
        };
        if part < len && (is_forced || !self.has_room(node)?) {
            if self.chain.is_none() {
                self.change.clear(new)?;
            }
            return match node {
                Node::Root if !is_forced => self.push_root_down().map(|()| false),
                Node::Block(_) if stays && let Some(first) = chain_start(bytes, at, ratio) => {
                    // No extent can stay in two parts: all of the chain moves.
                    self.from = first;
                    let bytes = self.node(node)?;
                    self.extent_node(&bytes, node).map(|()| true)
                }
                Node::Root | Node::Block(_) => Err(ResizeFault::TooFragmented { ino: self.ino.0 }),
            };
        }
        if part < len && start < self.change.space.limit {
            // What is before the new end stays.
            self.change.clear(new)?;
            let kept = (self.change.space.limit - start) as u16;
            self.change_node(node, |bytes| split(bytes, at, flag, (kept, len), start))?;
            return Ok(false);
        }
        let place = new.start + (start - old.start);
        if !extent.is_unwritten {
            self.copy(start, place, u64::from(part))?;
        }
        self.change.moved.blocks += u64::from(part);
        self.change_node(node, |bytes| {
            if part < len {
                split(bytes, at, flag, (part, len), start);
            }
            put_u16(bytes, at + 6, (place >> 32) as u16);
            put_u32(bytes, at + 8, place as u32);
        })?;
        // The last cluster is in use until the next extent has moved, too, if that has a part of it.
        let end = start + u64::from(part);
        let whole = old.start..end / ratio * ratio;
        let shared = new.start + (whole.end - old.start);
        self.set_chain(match end == whole.end {
            true => None,
            false => Some(Chain { old: whole.end, new: shared, ahead: shared + ratio..new.end }),
        });
        if self.chain.is_none() && shared < new.end {
            self.change.clear(shared..new.end)?;
        }
        if !whole.is_empty() {
            self.change.free(whole)?;
        }
        Ok(false)
    }

    /// The end of a chain of several extents that has a cluster. If there is none: 0, or the end of another.
    fn chain_end(&mut self, cluster: u64) -> Result<u64, ResizeFault> {
        if self.chains.is_none() {
            self.chains = Some(self.find_chains()?);
        }
        let chain = self.chains.as_ref().and_then(|chains| chains.range(..=cluster).next_back());
        Ok(chain.map_or(0, |(_, end)| *end))
    }

    /// The chains of a file that have several extents and end after the limit.
    fn find_chains(&mut self) -> Result<BTreeMap<u64, u64>, ResizeFault> {
        let ratio = self.change.space.ratio;
        let root = self.node(Node::Root)?;
        let root = root.try_into().unwrap_or([0; 60]);
        let mut walker = Walker::new(&root, None);
        let (mut chains, mut chain) = (BTreeMap::new(), 0..0);
        loop {
            match walker.step() {
                Step::NeedBlock(block) => walker.supply(Some(&self.change.current(block.0)?)),
                Step::Extent(found) => {
                    let blocks = found.start..found.start + u64::from(found.len);
                    let shares = chain.end % ratio != 0 && blocks.start / ratio == chain.end / ratio;
                    if !shares || blocks.start < chain.end {
                        chain = blocks.start / ratio * ratio..blocks.end;
                        continue;
                    }
                    chain.end = blocks.end;
                    if chain.end > self.change.space.limit {
                        chains.insert(chain.start, chain.end.div_ceil(ratio) * ratio);
                    }
                }
                Step::Damaged { .. } => {
                    let why = format!("the extent tree of inode {}", self.ino.0);
                    return Err(ResizeFault::Damaged(why));
                }
                Step::Done => return Ok(chains),
            }
        }
    }

    /// While there is a chain, the change is not whole. Returns the previous chain.
    fn set_chain(&mut self, chain: Option<Chain>) -> Option<Chain> {
        self.change.is_in_part = self.is_journal || chain.is_some();
        std::mem::replace(&mut self.chain, chain)
    }

    /// No other extent has a part of the last cluster.
    pub(super) fn close_chain(&mut self) -> Result<(), ResizeFault> {
        let Some(chain) = self.set_chain(None) else { return Ok(()) };
        if !chain.ahead.is_empty() {
            self.change.clear(chain.ahead)?;
        }
        self.change.free(chain.old..chain.old + 1)
    }
}

/// The first block of the chain that has the entry at byte `at` of a leaf; `None` if an extent in another
/// leaf may belong to it.
fn chain_start(bytes: &[u8], at: usize, ratio: u64) -> Option<u64> {
    let mut start = Extent::decode(bytes, at).start;
    for before in (ENTRY..at).step_by(ENTRY).rev().map(|at| Extent::decode(bytes, at).blocks()) {
        if start.is_multiple_of(ratio) || before.end > start || before.end - 1 < start / ratio * ratio {
            return Some(start);
        }
        start = before.start;
    }
    start.is_multiple_of(ratio).then_some(start)
}
