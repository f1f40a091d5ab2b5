//! A handle: the right to change blocks in the running transaction.

use std::cell::{Cell, OnceCell};
use std::sync::Arc;

use base::Pblk;
use buffer::{Edit, Hint, ReadFault, Seal};

use super::Journal;
use super::transaction::Transaction;

/// Joins changes to a transaction; all of them become durable together, or none. Dropping it ends it.
///
/// ```text
/// let handle = journal.start(credits)?;      // room for so many blocks
/// handle.change(block, seal, &mut |bytes| ..)?;
/// drop(handle);                              // part of the next commit from here on
/// ```
pub struct Handle<'j> {
    journal: &'j Journal,
    /// The transaction's number; that one is the running one as long as the handle is open.
    number: u64,
    /// The transaction, once it is asked for: most operations change only blocks that others changed before.
    transaction: OnceCell<Arc<Transaction>>,
    /// Blocks that may still join.
    left: Cell<u32>,
    /// Room that was given.
    given: Cell<u32>,
    /// Changes that were made and not settled.
    changes: Cell<u64>,
    /// The committer's own, while the transaction is being sealed.
    is_sealing: bool,
}

impl<'j> Handle<'j> {
    pub(super) fn new(journal: &'j Journal, number: u64, credits: u32) -> Self {
        let (left, given, changes) = (Cell::new(credits), Cell::new(credits), Cell::new(0));
        Self { journal, number, transaction: OnceCell::new(), left, given, changes, is_sealing: false }
    }

    pub(super) fn sealing(journal: &'j Journal, transaction: Arc<Transaction>) -> Self {
        let (left, given, changes) = (Cell::new(u32::MAX), Cell::new(0), Cell::new(0));
        let number = transaction.number;
        Self {
            journal,
            number,
            transaction: OnceCell::from(transaction),
            left,
            given,
            changes,
            is_sealing: true,
        }
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

    /// Asks for room for `credits` more blocks. `false`: the transaction has none; end this handle at a consistent point and
    /// start another.
    #[must_use]
    pub fn extend(&self, credits: u32) -> bool {
        let mut running = self.journal.running.lock();
        let blocks = running.transaction.len() + running.reserved + self.journal.client().blocks_to_come();
        if self.is_sealing || blocks + credits > self.journal.transaction_max {
            return false;
        }
        running.reserved += credits;
        self.left.set(self.left.get() + credits);
        self.given.set(self.given.get() + credits);
        true
    }

    /// Is there room for `credits` more blocks, in this handle and, with what the client adds at the commit, in the
    /// transaction? For who must do all within one transaction, and asks before each step.
    #[must_use]
    pub fn has_room(&self, credits: u32) -> bool {
        let blocks = self.transaction().len() + self.journal.client().blocks_to_come();
        self.left.get() >= credits && blocks + credits <= self.journal.transaction_max
    }

    /// An operation failed and does not go on. Was something of it changed and not taken back, the transaction must not be
    /// committed: the journal is aborted, before this handle ends.
    pub fn fail(&self, cause: &dyn std::fmt::Display) {
        if self.changes.get() > 0 {
            self.journal.abort(format!("an operation failed half-way: {cause}"));
        }
    }

    fn count(&self) {
        self.changes.set(self.changes.get() + 1);
    }

    fn join(&self, block: Pblk, seal: Seal) {
        let left = self.left.get();
        debug_assert!(left > 0, "block {block} ({:?}) joins a handle without credits", seal.owner);
        // One too few is a mistake of the estimate, not of the disk: the transaction has room left for it.
        self.left.set(left.saturating_sub(1));
        self.transaction().join(block, seal);
    }
}

impl Edit for Handle<'_> {
    fn transaction(&self) -> u64 {
        self.count();
        self.number
    }

    fn changes(&self) -> u64 {
        self.changes.get()
    }

    fn settle(&self, before: u64) {
        self.changes.set(self.changes.get().min(before));
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
            self.join(block, seal);
        }
        self.count();
        Ok(())
    }

    fn fresh(&self, block: Pblk, seal: Seal, fill: &mut dyn FnMut(&mut [u8])) {
        self.count();
        if self.journal.buffers.fresh(block, seal.owner, self.number, fill) {
            self.join(block, seal);
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
        let mut running = self.journal.running.lock();
        running.handles -= 1;
        running.reserved -= self.given.get();
        if running.handles == 0 && running.is_locked {
            self.journal.changed.notify_all();
        }
    }
}
