//! Ways through an index.
//!
//! ```text
//! path:  root, entry 2 -> node 9, entry 41 -> leaf 77      for changes of the index
//! span:                                        leaf 77      otherwise; and whether names of a hash continue after it
//! ```

use extant_base::Lblk;
use extant_ondisk::htree::DxEntry;

use super::nodes::Node;

/// Index blocks between a directory's inode and a leaf at most.
pub(super) const LEVELS_MAX: usize = 3;

/// Where a hash leads, as long as that leaf is not split and no leaf goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct LeafSpan {
    pub(super) leaf: Lblk,
    /// The key of the leaf behind this one.
    next_key: Option<u32>,
}

impl LeafSpan {
    /// May the leaf behind this one hold names of this hash, too?
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

/// The span from the root to a leaf: one step for each level of the index, the root's first.
#[derive(Debug, Clone, Copy)]
pub(super) struct Path {
    steps: [Step; LEVELS_MAX],
    len: usize,
    /// What it leads to: an index block, as long as it is not at its end.
    end: LeafSpan,
    /// The lowest key there may be below its end.
    low: u32,
}

impl Path {
    /// At the root.
    pub(super) const START: Self = Self {
        steps: [Step { lblk: Lblk(0), at: 0 }; LEVELS_MAX],
        len: 0,
        end: LeafSpan { leaf: Lblk(0), next_key: None },
        low: 0,
    };

    /// Goes one level down in the node that it leads to: to a hash, or to the first child. The keys of a node
    /// lie between its own in its parent and the one behind that.
    #[inline]
    pub(super) fn go_on(&mut self, node: Node<'_>, hash: Option<u32>) {
        let at = hash.map_or(0, |hash| node.position(hash, self.low, self.high()));
        let DxEntry { hash: key, block } = node.entries()[at];
        // The first of a node has no key of its own.
        self.low = self.low.max(key);
        // A key further down comes before one further up.
        self.end.next_key = node.key(at + 1).or(self.end.next_key);
        self.steps[self.len] = Step { lblk: self.end.leaf, at };
        self.len += 1;
        self.end.leaf = block;
    }

    /// Prefetches what [`go_on`](Self::go_on) will read.
    #[inline]
    pub(super) fn prefetch(&self, node: Node<'_>, hash: u32) {
        node.prefetch(hash, self.low, self.high());
    }

    fn high(&self) -> u32 {
        self.end.next_key.unwrap_or(u32::MAX)
    }

    /// Does it lead to one of its own steps?
    pub(super) fn is_circle(&self) -> bool {
        self.steps().iter().any(|step| step.lblk == self.end.leaf)
    }

    pub(super) fn span(&self) -> LeafSpan {
        self.end
    }

    /// The block that it leads to.
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

    /// Takes the last step back: what leads to the entry behind it, if there is one.
    pub(super) fn back_to_next(&mut self) -> Option<Step> {
        self.len = self.len.checked_sub(1)?;
        let Step { lblk, at } = self.steps[self.len];
        Some(Step { lblk, at: at + 1 })
    }

    /// After [`back_to_next`](Self::back_to_next): goes to this entry, which leads to `child`; behind it
    /// comes `next_key`.
    pub(super) fn go_to(&mut self, step: Step, child: Lblk, next_key: Option<u32>) {
        self.steps[self.len] = step;
        self.len += 1;
        self.end = LeafSpan { leaf: child, next_key };
        self.low = 0;
    }

    /// The root's entries went one level down, into `below`.
    pub(super) fn lengthen(&mut self, below: Lblk) {
        self.steps.copy_within(0..self.len, 1);
        self.steps[0] = Step { lblk: Lblk(0), at: 0 };
        self.steps[1].lblk = below;
        self.len += 1;
    }

    /// The entries from `half` on of the node at this depth, which is below another, went into `new`, whose
    /// entry is behind the node's.
    pub(super) fn follow_split(&mut self, depth: usize, half: usize, new: Lblk) {
        let at = self.steps[depth].at;
        if at >= half {
            self.steps[depth] = Step { lblk: new, at: at - half };
            self.steps[depth - 1].at += 1;
        }
    }
}
