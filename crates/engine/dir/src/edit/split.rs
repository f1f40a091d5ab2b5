//! Splits of full leaves, and the growth of the index that they cause.
//!
//! ```text
//! Leaf 7 is full, and so is the node above it:
//!
//!   root [.. 5 ..]  ->  node 5 [.. 7 ..]         root [.. 5 9 ..]  ->  5 [..]   9 [.. 7 10 ..]
//! ```
//!
//! Owns: the path that is split, the nodes that are appended for it. Does **not** own: the entries of the
//! index and of the leaves, which it changes; the choice of the leaf.
//!
//! Invariants
//! 1. All blocks are read and appended before the first change of an existing block. If one of these steps
//!    fails, appended blocks are freed again.
//! 2. No node is empty, and the index has no more levels than the format permits.

use extant_base::Lblk;
use extant_buffer::ReadFault;
use extant_ondisk::dirent::edit::Hole;
use extant_ondisk::htree::DxEntry;

use super::blocks::Blocks;
use super::index::{Index, kind_of};
use super::leaves::Leaves;
use super::path::{LEVELS_MAX, Path};
use super::{EditFault, NoSpace};

/// The split of the leaf at the end of a path.
pub(super) struct Split<'e, 'a> {
    blocks: &'e mut Blocks<'a>,
    index: &'e mut Index,
    leaves: &'e mut Leaves,
    path: Path,
    spare: AppendedNodes,
}

/// Nodes appended for an insert.
#[derive(Default)]
struct AppendedNodes {
    nodes: [Lblk; LEVELS_MAX],
    len: usize,
}

impl AppendedNodes {
    fn push(&mut self, lblk: Lblk) {
        self.nodes[self.len] = lblk;
        self.len += 1;
    }

    fn list(&self) -> &[Lblk] {
        &self.nodes[..self.len]
    }
}

impl<'e, 'a> Split<'e, 'a> {
    pub(super) fn new(
        blocks: &'e mut Blocks<'a>,
        index: &'e mut Index,
        leaves: &'e mut Leaves,
        path: Path,
    ) -> Self {
        Self { blocks, index, leaves, path, spare: AppendedNodes::default() }
    }

    /// Splits the leaf. Returns the place for the new name of this hash.
    pub(super) fn run(mut self, hash: u32, need: usize) -> Result<(Lblk, Hole), EditFault> {
        let leaf = self.path.leaf();
        self.leaves.map(self.blocks, &self.index.hasher, leaf)?;
        let len = self.leaves.mapped().len();
        if len < 2 {
            // A full leaf holds at least three names.
            return Err(self.blocks.stale(leaf));
        }
        let cut = self.leaves.cut();
        let (lower, upper) = self.leaves.mapped().split_at(cut);
        let hash2 = upper[0].hash();
        let is_continued = lower.last().is_some_and(|last| last.hash() == hash2);

        // Loaded before, so that the changes below cannot fail to read it.
        self.blocks.index(self.path.bottom().lblk)?;
        self.append_nodes()?;
        let (new, upper_hole) = match self.leaves.append(self.blocks, cut..len) {
            Ok(appended) => appended,
            Err(fault) => return Err(self.undo(fault)?),
        };
        // No refusal is possible from here on.
        self.grow()?;
        self.leaves.remember_packed(self.index, new, cut..len, upper_hole);
        let lower_hole = self.leaves.fill(self.blocks, self.index, leaf, 0..cut)?;
        let bottom = self.path.bottom();
        let entry = DxEntry { hash: hash2 | u32::from(is_continued), block: new };
        self.index.nodes_for_split(leaf).insert(bottom.lblk, bottom.at + 1, entry);
        self.index.write_node(self.blocks, bottom.lblk, bottom.at + 1)?;
        self.blocks.stats.splits += 1;

        let (lblk, hole) = if hash >= hash2 { (new, upper_hole) } else { (leaf, lower_hole) };
        // Each half has room: at most half a block and half an entry moves, and at least the same less one
        // entry.
        if hole.len < need { Err(self.blocks.stale(lblk)) } else { Ok((lblk, hole)) }
    }

    /// Appends the nodes that another leaf at this path needs: one per full index block, from the bottom up.
    fn append_nodes(&mut self) -> Result<(), EditFault> {
        let index = self.blocks.format.index;
        let steps = self.path.steps();
        let full = steps.iter().rev().take_while(|step| {
            let limit = index.limit(kind_of(step.lblk));
            self.index.node(step.lblk).len() >= limit
        });
        let full = full.count();
        if full == 0 {
            return Ok(());
        }
        if full == steps.len() && self.index.levels() >= index.levels_max() {
            return Err(NoSpace::IndexFull { large_dir: index.large_dir }.into());
        }
        self.blocks.check_size(full as u32 + 1)?;
        for step in steps {
            self.blocks.index(step.lblk)?;
        }
        for _ in 0..full {
            let placeholder = DxEntry { hash: 0, block: Lblk(0) };
            let fill = &mut |bytes: &mut [u8]| index.encode_node([placeholder], bytes);
            match self.blocks.append(&mut self.leaves.cache, true, fill) {
                Ok(lblk) => self.spare.push(lblk),
                Err(fault) => return Err(self.undo(fault)?),
            }
        }
        Ok(())
    }

    /// Frees the appended nodes after this fault.
    fn undo(&mut self, fault: EditFault) -> Result<EditFault, EditFault> {
        for _ in self.spare.list() {
            self.blocks.pop(&mut self.leaves.cache)?;
        }
        Ok(fault)
    }

    /// Uses the appended nodes to make room in the path's lowest index block. Updates the path.
    fn grow(&mut self) -> Result<(), ReadFault> {
        let Self { blocks, index, path, spare, .. } = self;
        let mut spare = spare.list().iter().copied();
        let mut first_full = path.len() - spare.len();
        if spare.len() == path.len() {
            // All index blocks are full: the root's entries move one level down, to a node with room for a
            // few more.
            let below = spare.next().unwrap_or_default();
            let nodes = index.nodes_for_split(path.leaf());
            let root = nodes.take(Lblk(0)).unwrap_or_else(|| unreachable!("the root is on the path"));
            nodes.put(below, root.into_iter());
            nodes.put(Lblk(0), std::iter::once(DxEntry { hash: 0, block: below }));
            nodes.levels += 1;
            index.write_new_node(blocks, below)?;
            index.write_root(blocks)?;
            path.lengthen(below);
            blocks.stats.levels_added += 1;
            first_full = 2;
        }
        for (depth, new) in (first_full..path.len()).zip(spare) {
            let (above, full) = (path.steps()[depth - 1], path.steps()[depth]);
            let half = index.node(full.lblk).len() / 2;
            let nodes = index.nodes_for_split(path.leaf());
            let key = nodes.split(full.lblk, half, new);
            nodes.insert(above.lblk, above.at + 1, DxEntry { hash: key, block: new });
            index.write_new_node(blocks, new)?;
            index.write_node(blocks, full.lblk, half)?;
            index.write_node(blocks, above.lblk, above.at + 1)?;
            path.follow_split(depth, half, new);
            blocks.stats.index_splits += 1;
        }
        Ok(())
    }
}
