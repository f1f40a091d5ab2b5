//! The lists of inodes for reclaim: every operation takes O(1), except sorting.
//!
//! Invariants
//! 1. An inode is on one list at most; its `place` is its node's number, [`NONE`] if it is on none. Both
//!    change only under the ring's lock.
//! 2. A node holds a reference to its inode: dropping an inode removes it from the list first.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::body::Body;
use crate::chunk::{NONE, allocated};

struct RingNode {
    before: u32,
    after: u32,
    list: u32,
    body: Option<Arc<Body>>,
}

#[derive(Clone, Copy)]
struct ListHead {
    head: u32,
    tail: u32,
    len: usize,
}

/// Lists of inodes; the policy defines what each list is for.
pub(crate) struct Ring {
    nodes: Vec<RingNode>,
    free: u32,
    lists: [ListHead; 2],
    /// The LRU policies: when the list was sorted last.
    pub(crate) sorted_at: u64,
    /// es-chunk: number of steps.
    pub(crate) steps: u32,
    /// es-chunk: the number of lookup misses when a warm chunk had its last turn.
    pub(crate) misses: u64,
}

impl Default for Ring {
    fn default() -> Self {
        let empty = ListHead { head: NONE, tail: NONE, len: 0 };
        Self { nodes: Vec::new(), free: NONE, lists: [empty; 2], sorted_at: 0, steps: 0, misses: 0 }
    }
}

impl Ring {
    pub(crate) fn len(&self, list: usize) -> usize {
        self.lists[list].len
    }

    pub(crate) fn total(&self) -> usize {
        self.lists[0].len + self.lists[1].len
    }

    /// The list that an inode is on.
    pub(crate) fn list_of(&self, body: &Body) -> Option<usize> {
        let place = body.place.load(Relaxed);
        self.nodes.get(place as usize).map(|node| node.list as usize)
    }

    /// Puts an inode at the end of a list; removes it from the list it was on.
    pub(crate) fn put(&mut self, body: &Arc<Body>, list: usize) {
        let place = body.place.load(Relaxed);
        let place = if place == NONE {
            let node = RingNode { before: NONE, after: NONE, list: 0, body: Some(Arc::clone(body)) };
            let place = if self.free == NONE {
                if self.nodes.len() == self.nodes.capacity() {
                    self.nodes.reserve_exact((self.nodes.len() / 4).max(4));
                }
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            } else {
                let place = self.free;
                self.free = self.nodes[place as usize].after;
                self.nodes[place as usize] = node;
                place
            };
            body.place.store(place, Relaxed);
            place
        } else {
            self.cut(place);
            place
        };
        self.link(place, list);
    }

    /// Removes an inode from its list, if it is on one.
    pub(crate) fn take_off(&mut self, body: &Body) {
        let place = body.place.swap(NONE, Relaxed);
        if place != NONE {
            self.cut(place);
            let node = &mut self.nodes[place as usize];
            node.body = None;
            node.after = self.free;
            self.free = place;
        }
    }

    /// Frees the memory if no inode is listed. Not for scans: the time is proportional to the old length of
    /// the lists.
    pub(crate) fn forget_empty(&mut self) {
        if self.total() == 0 {
            (self.nodes, self.free) = (Vec::new(), NONE);
        }
    }

    /// Bytes on the heap.
    pub(crate) fn bytes(&self) -> usize {
        allocated(self.nodes.capacity() * size_of::<RingNode>())
    }

    /// Moves the first inode of a list to its end and returns it.
    pub(crate) fn rotate(&mut self, list: usize) -> Option<Arc<Body>> {
        let place = self.lists[list].head;
        if place == NONE {
            return None;
        }
        self.requeue(place);
        self.nodes[place as usize].body.clone()
    }

    /// The first node number of a list, for walks that hold the lock.
    pub(crate) fn first(&self, list: usize) -> u32 {
        self.lists[list].head
    }

    pub(crate) fn after(&self, place: u32) -> u32 {
        self.nodes[place as usize].after
    }

    pub(crate) fn body(&self, place: u32) -> &Body {
        match &self.nodes[place as usize].body {
            Some(body) => body,
            None => unreachable!("a node on a list has its inode"),
        }
    }

    pub(crate) fn take_off_at(&mut self, place: u32) {
        if let Some(body) = self.nodes[place as usize].body.clone() {
            self.take_off(&body);
        }
    }

    pub(crate) fn move_to(&mut self, place: u32, list: usize) {
        self.cut(place);
        self.link(place, list);
    }

    pub(crate) fn requeue(&mut self, place: u32) {
        self.move_to(place, self.nodes[place as usize].list as usize);
    }

    /// Appends all of list `from` to list `to`.
    pub(crate) fn splice(&mut self, from: usize, to: usize) {
        let moved = std::mem::replace(&mut self.lists[from], ListHead { head: NONE, tail: NONE, len: 0 });
        if moved.head == NONE {
            return;
        }
        let mut place = moved.head;
        while place != NONE {
            self.nodes[place as usize].list = to as u32;
            place = self.nodes[place as usize].after;
        }
        let tail = std::mem::replace(&mut self.lists[to].tail, moved.tail);
        match tail {
            NONE => self.lists[to].head = moved.head,
            tail => {
                self.nodes[tail as usize].after = moved.head;
                self.nodes[moved.head as usize].before = tail;
            }
        }
        self.lists[to].len += moved.len;
    }

    /// Sorts a list by a key of its inodes; the sort is stable.
    pub(crate) fn sort<K: Ord>(&mut self, list: usize, key: impl Fn(&Body) -> K) {
        let mut places = Vec::with_capacity(self.lists[list].len);
        let mut place = self.lists[list].head;
        while place != NONE {
            places.push((key(self.body(place)), place));
            place = self.nodes[place as usize].after;
        }
        places.sort_by(|a, b| a.0.cmp(&b.0));
        self.lists[list] = ListHead { head: NONE, tail: NONE, len: 0 };
        for (_, place) in places {
            self.link(place, list);
        }
    }

    fn link(&mut self, place: u32, list: usize) {
        let tail = std::mem::replace(&mut self.lists[list].tail, place);
        match tail {
            NONE => self.lists[list].head = place,
            tail => self.nodes[tail as usize].after = place,
        }
        let node = &mut self.nodes[place as usize];
        (node.before, node.after, node.list) = (tail, NONE, list as u32);
        self.lists[list].len += 1;
    }

    fn cut(&mut self, place: u32) {
        let RingNode { before, after, list, .. } = self.nodes[place as usize];
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
}
