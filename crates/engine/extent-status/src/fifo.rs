//! Two lists of an inode's reclaimable entries, inactive and active, for es-ilist (the first one only) and
//! es-gc.
//!
//! As in the series, each entry has a node with two links. A node finds its entry by the entry's first block;
//! the entry's chunk has the number of the node. This costs 20 more bytes for each entry, which is why the
//! series was not merged upstream.
//!
//! Invariants
//! 1. Every reclaimable entry has exactly one node, on exactly one of the lists; delayed entries have none.
//! 2. A node's block is its entry's first block.

use crate::chunk::{NONE, allocated};
use crate::tree::Chunks;

#[derive(Clone, Copy)]
struct FifoNode {
    before: u32,
    after: u32,
    lblk: u32,
    list: u32,
}

#[derive(Clone, Copy)]
struct List {
    head: u32,
    tail: u32,
    len: u32,
}

/// Entries that were not found since they were put there.
pub(crate) const INACTIVE: usize = 0;
/// Entries that were found since.
pub(crate) const ACTIVE: usize = 1;
/// On no list: the node is free, and `after` is the next free one.
const FREE: u32 = 2;

pub(crate) struct Fifo {
    nodes: Vec<FifoNode>,
    free: u32,
    lists: [List; 2],
}

impl Default for Fifo {
    fn default() -> Self {
        Self { nodes: Vec::new(), free: NONE, lists: [List { head: NONE, tail: NONE, len: 0 }; 2] }
    }
}

impl Fifo {
    /// Adds a node at the end of the inactive list.
    pub(crate) fn push(&mut self, lblk: u32) -> u32 {
        let node = FifoNode { before: NONE, after: NONE, lblk, list: FREE };
        let id = if self.free == NONE {
            if self.nodes.len() == self.nodes.capacity() {
                self.nodes.reserve_exact((self.nodes.len() / 4).max(4));
            }
            self.nodes.push(node);
            (self.nodes.len() - 1) as u32
        } else {
            let id = self.free;
            self.free = self.nodes[id as usize].after;
            self.nodes[id as usize] = node;
            id
        };
        self.link(id, INACTIVE);
        id
    }

    fn link(&mut self, id: u32, list: usize) {
        let tail = self.lists[list].tail;
        let node = &mut self.nodes[id as usize];
        (node.before, node.after, node.list) = (tail, NONE, list as u32);
        match tail {
            NONE => self.lists[list].head = id,
            tail => self.nodes[tail as usize].after = id,
        }
        self.lists[list].tail = id;
        self.lists[list].len += 1;
    }

    fn take_out(&mut self, id: u32) {
        let FifoNode { before, after, list, .. } = self.nodes[id as usize];
        let list = &mut self.lists[list as usize];
        list.len -= 1;
        match before {
            NONE => list.head = after,
            before => self.nodes[before as usize].after = after,
        }
        match after {
            NONE => list.tail = before,
            after => self.nodes[after as usize].before = before,
        }
    }

    /// Removes the node of a removed entry. A delayed entry has none.
    pub(crate) fn unlink(&mut self, id: u32) {
        if id == NONE {
            return;
        }
        self.take_out(id);
        self.nodes[id as usize].list = FREE;
        self.nodes[id as usize].after = self.free;
        self.free = id;
        if self.lists[INACTIVE].len + self.lists[ACTIVE].len == 0 {
            *self = Self::default();
        }
    }

    /// Updates the first block of the node's entry.
    pub(crate) fn moved(&mut self, id: u32, lblk: u32) {
        if id != NONE {
            self.nodes[id as usize].lblk = lblk;
        }
    }

    /// Moves a node to the end of a list.
    pub(crate) fn requeue(&mut self, id: u32, list: usize) {
        self.take_out(id);
        self.link(id, list);
    }

    /// The first block of the first entry on the list.
    pub(crate) fn front(&self, list: usize) -> Option<u32> {
        self.nodes.get(self.lists[list].head as usize).map(|node| node.lblk)
    }

    pub(crate) fn len(&self, list: usize) -> u32 {
        self.lists[list].len
    }

    pub(crate) fn bytes(&self) -> usize {
        allocated(self.nodes.capacity() * size_of::<FifoNode>())
    }

    /// Checks the lists against the entries.
    ///
    /// # Panics
    /// If they differ.
    pub(crate) fn check(&self, chunks: &Chunks) {
        let mut seen = 0;
        for chunk in chunks.iter() {
            for (at, packed) in chunk.entries.iter().enumerate() {
                let id = chunk.id(at);
                assert_eq!(id == NONE, packed.is_delayed(), "{:?}", packed.entry());
                if id != NONE {
                    let node = self.nodes[id as usize];
                    assert!(node.lblk == packed.lblk && node.list != FREE, "{:?}", packed.entry());
                    seen += 1;
                }
            }
        }
        let mut linked = 0;
        for (number, list) in self.lists.iter().enumerate() {
            let (mut id, mut before) = (list.head, NONE);
            while id != NONE {
                let node = self.nodes[id as usize];
                assert_eq!((node.before, node.list as usize), (before, number), "links of {}", node.lblk);
                linked += 1;
                (before, id) = (id, node.after);
            }
            assert_eq!(list.tail, before, "the tail");
        }
        assert_eq!((seen, self.lists[0].len + self.lists[1].len), (linked, linked), "nodes");
    }
}
