//! A handle: the right to change blocks in the running transaction.

use std::cell::{Cell, OnceCell};
use std::sync::Arc;

use extant_base::{Pblk, Tid};
use extant_buffer::{BlockContents, Edit, Hint, PendingChange, ReadFault, Seal};
use extant_jbd2_format::needs_escape;

use super::Journal;
use super::transaction::Transaction;

/// Adds changes to a transaction: all of them become durable together, or none. Dropping the handle ends it.
///
/// ```text
/// let handle = journal.start(credits)?;      // reserves blocks
/// handle.change(block, seal, &mut |bytes| ..)?;
/// drop(handle);                              // the changes are part of the next commit
/// ```
pub struct Handle<'j> {
    journal: &'j Journal,
    /// The transaction's number. That transaction runs as long as the handle is open.
    number: Tid,
    /// The transaction, looked up on first use: most operations change only blocks that have already joined.
    transaction: OnceCell<Arc<Transaction>>,
    /// Blocks that may still join.
    left: Cell<u32>,
    /// The handle's lane; `None` if it was started under the lock.
    lane: Option<usize>,
    /// Credits granted under the lock.
    granted: Cell<u32>,
    /// Changes made and not settled yet.
    changes: Cell<u64>,
    /// Something was changed, or may have been.
    has_changed: Cell<bool>,
    /// All changes are described as records of a fast commit, unless some cannot be.
    is_described: Cell<bool>,
    needs_full_commit: Cell<bool>,
    /// This is the committer's handle while the transaction is being sealed.
    is_sealing: bool,
}

impl<'j> Handle<'j> {
    /// A handle started under the lock, with these credits.
    pub(super) fn new(journal: &'j Journal, number: Tid, credits: u32) -> Self {
        Self {
            journal,
            number,
            transaction: OnceCell::new(),
            left: Cell::new(credits),
            lane: None,
            granted: Cell::new(credits),
            changes: Cell::new(0),
            has_changed: Cell::new(false),
            is_described: Cell::new(false),
            needs_full_commit: Cell::new(false),
            is_sealing: false,
        }
    }

    /// A handle started in a lane.
    pub(super) fn in_lane(journal: &'j Journal, number: Tid, credits: u32, lane: usize) -> Self {
        let mut handle = Self::new(journal, number, credits);
        (handle.lane, handle.granted) = (Some(lane), Cell::new(0));
        handle
    }

    pub(super) fn sealing(journal: &'j Journal, transaction: Arc<Transaction>) -> Self {
        let mut handle = Self::new(journal, transaction.number, 0);
        (handle.transaction, handle.left) = (OnceCell::from(transaction), Cell::new(u32::MAX));
        handle.is_sealing = true;
        handle
    }

    fn transaction(&self) -> &Transaction {
        self.transaction.get_or_init(|| {
            let running = Arc::clone(&self.journal.running.lock().transaction);
            debug_assert_eq!(
                running.number, self.number,
                "a transaction is not sealed while a handle is open"
            );
            running
        })
    }

    /// Requests room for `credits` more blocks. `false` if the transaction has none: end this handle at a
    /// consistent point and start another.
    #[must_use]
    pub fn extend(&self, credits: u32) -> bool {
        let running = self.journal.running.lock();
        if self.is_sealing {
            return false;
        }
        self.journal.lanes.grant(credits);
        let blocks = running.transaction.len() + self.journal.lanes.reserved();
        if blocks + self.journal.client().blocks_to_come() > self.journal.transaction_max {
            self.journal.lanes.take_back(credits);
            return false;
        }
        self.left.set(self.left.get() + credits);
        self.granted.set(self.granted.get() + credits);
        true
    }

    /// Whether this handle, and the transaction including what the client adds at the commit, have room for
    /// `credits` more blocks. For operations that must fit into one transaction and check before each step.
    #[must_use]
    pub fn has_room(&self, credits: u32) -> bool {
        let blocks = self.transaction().len() + self.journal.client().blocks_to_come();
        self.left.get() >= credits && blocks + credits <= self.journal.transaction_max
    }

    /// An operation failed and does not continue. If it changed something that was not taken back, the
    /// transaction must not be committed: the journal is aborted before this handle ends.
    pub fn fail(&self, cause: &dyn std::fmt::Display) {
        if self.changes.get() > 0 {
            self.journal.abort(format!("an operation failed half-way: {cause}"));
        }
    }

    fn count(&self) {
        self.changes.set(self.changes.get() + 1);
        self.has_changed.set(true);
    }

    /// Records a change, if there was one. `Some(true)`: it is the transaction's first change of this block.
    fn changed(&self, is_first: Option<bool>, block: Pblk, hint: Hint, seal: Seal) -> bool {
        if is_first == Some(true) {
            self.join(block, seal, hint);
        }
        if is_first.is_some() {
            self.count();
        }
        is_first.is_some()
    }

    fn join(&self, block: Pblk, seal: Seal, hint: Hint) {
        let left = self.left.get();
        debug_assert!(left > 0, "block {block} ({:?}) joins a handle without credits", seal.owner);
        // A missing credit is an error in the estimate, not damage on disk. The transaction has spare room
        // for it.
        self.left.set(left.saturating_sub(1));
        self.transaction().join(block, seal, hint);
    }
}

impl Edit for Handle<'_> {
    fn transaction(&self) -> Tid {
        self.count();
        self.number
    }

    #[inline]
    fn lane(&self) -> Option<usize> {
        self.lane
    }

    fn changes(&self) -> u64 {
        self.changes.get()
    }

    fn mark_complete(&self, before: u64) {
        self.changes.set(self.changes.get().min(before));
    }

    fn mark_described(&self) {
        self.is_described.set(true);
    }

    fn mark_undescribed(&self) {
        self.needs_full_commit.set(true);
    }

    fn change(&self, block: Pblk, seal: Seal, change: &mut dyn FnMut(&mut [u8])) -> Result<(), ReadFault> {
        let mut hint = Hint::NONE;
        self.change_at(block, &mut hint, seal, change)
    }

    fn change_at(
        &self,
        block: Pblk,
        hint: &mut Hint,
        seal: Seal,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), ReadFault> {
        if self.journal.buffers.change_at(block, hint, seal.owner, self.number, change)? {
            self.join(block, seal, *hint);
        }
        self.count();
        Ok(())
    }

    fn change_trusted_at(
        &self,
        block: Pblk,
        hint: &mut Hint,
        seal: Seal,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> bool {
        let buffers = &self.journal.buffers;
        let changed = buffers.change_trusted_at(block, hint, seal.owner, self.number, change);
        self.changed(changed, block, *hint, seal)
    }

    fn patch_at(&self, block: Pblk, hint: &mut Hint, seal: Seal, patch: &PendingChange<'_>) -> bool {
        let changed = self.journal.buffers.patch_at(block, hint, seal.owner, self.number, patch);
        self.changed(changed, block, *hint, seal)
    }

    fn fresh(&self, block: Pblk, seal: Seal, fill: &mut dyn FnMut(&mut [u8])) {
        self.count();
        if self.journal.buffers.fresh(block, seal.owner, self.number, fill) {
            self.join(block, seal, Hint::NONE);
        }
    }

    fn put(&self, block: Pblk, seal: Seal, contents: BlockContents) {
        self.count();
        // In these cases the logged bytes differ from the block's bytes.
        let is_changed = needs_escape(&contents.start()) || self.journal.client().has_checksum(seal);
        let contents = if is_changed { contents.without_sum() } else { contents };
        if self.journal.buffers.put(block, seal.owner, self.number, contents) {
            self.join(block, seal, Hint::NONE);
        }
    }

    fn revoke(&self, block: Pblk) {
        self.count();
        self.transaction().revoke(block);
        self.journal.buffers.forget(block);
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        if self.is_sealing {
            return;
        }
        if std::thread::panicking() {
            // The transaction contains half an operation. Abort before the handle ends: a commit that waits
            // for it must see the abort.
            self.journal.abort("an operation panicked half-way, which is a defect".to_owned());
        }
        if self.has_changed.get() && (self.needs_full_commit.get() || !self.is_described.get()) {
            self.journal.fast.note_undescribed(self.number);
        }
        let granted = self.granted.get();
        match self.lane {
            Some(lane) => {
                if granted > 0 {
                    let _running = self.journal.running.lock();
                    self.journal.lanes.take_back(granted);
                }
                if self.journal.lanes.leave(lane) {
                    let _running = self.journal.running.lock();
                    self.journal.changed.notify_all();
                }
            }
            None => {
                let mut running = self.journal.running.lock();
                running.handles -= 1;
                self.journal.lanes.take_back(granted);
                if running.handles == 0 && running.is_locked {
                    self.journal.changed.notify_all();
                }
            }
        }
    }
}
