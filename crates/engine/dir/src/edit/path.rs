//! Paths through an index.
//!
//! ```text
//! Path:      root, entry 2 -> node 9, entry 41 -> leaf 77    for changes of the index
//! LeafSpan:                                       leaf 77    for changes of the leaf; with the next key
//! ```

use extant_base::Lblk;
use extant_ondisk::htree::DxEntry;

use super::nodes::CachedNode;

/// Levels of index blocks at most.
pub(super) const LEVELS_MAX: usize = 3;

/// The leaf of a hash; valid until that leaf is split or any leaf is freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct LeafSpan {
    pub(super) leaf: Lblk,
    /// The key of the next leaf.
    next_key: Option<u32>,
}

impl LeafSpan {
    /// Whether the next leaf may hold names of this hash, too.
    pub(super) fn is_continued(self, hash: u32) -> bool {
        self.next_key == Some(hash | 1)
    }
}

/// An entry of an index block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Step {
    pub(super) lblk: Lblk,
    pub(super) at: usize,
}

/// A path from the root to a leaf: one step for each level of the index, the root's first.
#[derive(Debug, Clone, Copy)]
pub(super) struct Path {
    steps: [Step; LEVELS_MAX],
    len: usize,
    /// The end of the path: an index block, unless the path is complete.
    end: LeafSpan,
    /// The lowest possible key below the end.
    low: u32,
}

impl Path {
    /// The empty path, which ends at the root.
    pub(super) const START: Self = Self {
        steps: [Step { lblk: Lblk(0), at: 0 }; LEVELS_MAX],
        len: 0,
        end: LeafSpan { leaf: Lblk(0), next_key: None },
        low: 0,
    };

    /// Descends one level in the node at the end: to a hash, or to the first child. The keys of a node are
    /// between its own key in its parent and the next key there.
    #[inline]
    pub(super) fn go_on(&mut self, node: CachedNode<'_>, hash: Option<u32>) {
        let at = hash.map_or(0, |hash| node.position(hash, self.low, self.high()));
        let DxEntry { hash: key, block } = node.entries()[at];
        // The first entry of a node has no key of its own.
        self.low = self.low.max(key);
        // The next key of a lower level is the smaller one.
        self.end.next_key = node.key(at + 1).or(self.end.next_key);
        self.steps[self.len] = Step { lblk: self.end.leaf, at };
        self.len += 1;
        self.end.leaf = block;
    }

    /// Prefetches what [`go_on`](Self::go_on) will read.
    #[inline]
    pub(super) fn prefetch(&self, node: CachedNode<'_>, hash: u32) {
        node.prefetch(hash, self.low, self.high());
    }

    fn high(&self) -> u32 {
        self.end.next_key.unwrap_or(u32::MAX)
    }

    /// Whether the end is one of the path's own steps.
    pub(super) fn is_circle(&self) -> bool {
        self.steps().iter().any(|step| step.lblk == self.end.leaf)
    }

    pub(super) fn span(&self) -> LeafSpan {
        self.end
    }

    /// The block at the end of the path.
    pub(super) fn leaf(&self) -> Lblk {
        self.end.leaf
    }

    pub(super) fn steps(&self) -> &[Step] {
        &self.steps[..self.len]
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn bottom(&self) -> Step {
        self.steps[self.len - 1]
    }

    /// Removes the last step. Returns the entry after it, which may not exist.
    pub(super) fn back_to_next(&mut self) -> Option<Step> {
        self.len = self.len.checked_sub(1)?;
        let Step { lblk, at } = self.steps[self.len];
        Some(Step { lblk, at: at + 1 })
    }

    /// After [`back_to_next`](Self::back_to_next): descends to this entry with this `child`; `next_key`
    /// follows it.
    pub(super) fn go_to(&mut self, step: Step, child: Lblk, next_key: Option<u32>) {
        self.steps[self.len] = step;
        self.len += 1;
        self.end = LeafSpan { leaf: child, next_key };
        self.low = 0;
    }

    /// Adjusts the path after the root's entries moved one level down, to `below`.
    pub(super) fn lengthen(&mut self, below: Lblk) {
        self.steps.copy_within(0..self.len, 1);
        self.steps[0] = Step { lblk: Lblk(0), at: 0 };
        self.steps[1].lblk = below;
        self.len += 1;
    }

    /// Adjusts the path after a split: the entries from `half` on of the node at this depth moved to `new`,
    /// the next entry of the parent.
    pub(super) fn follow_split(&mut self, depth: usize, half: usize, new: Lblk) {
        let at = self.steps[depth].at;
        if at >= half {
            self.steps[depth] = Step { lblk: new, at: at - half };
            self.steps[depth - 1].at += 1;
        }
    }
}
