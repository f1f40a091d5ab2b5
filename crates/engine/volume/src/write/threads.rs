//! The threads of a volume that is open for writing: the committer, the reader of absent blocks, and the
//! writeback thread.
//!
//! Does **not** own: what they do (see [`extant_journal::Journal`] and the module `writeback`). The thread of
//! multiple-mount protection belongs to its guard.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use extant_buffer::Buffers;
use extant_journal::{CommitReason, Journal, Work};

use super::{WriteOptions, Writer, writeback};

/// Default time between commits if none is requested: what a crash may lose.
const COMMIT_INTERVAL: Duration = Duration::from_secs(5);

impl Writer {
    /// Starts the threads, unless nothing shall run in the background.
    pub(crate) fn start_threads(&self, options: &WriteOptions) {
        self.journal.buffers().set_defers_reads(!options.read_leaves_first);
        if options.no_committer {
            return;
        }
        let interval = options.commit_interval.unwrap_or(COMMIT_INTERVAL);
        *self.committer.lock() = Some(spawn_committer(Arc::clone(&self.journal), interval));
        *self.reader.lock() = Some(spawn_reader(Arc::clone(self.journal.buffers())));
        *self.writeback.lock() = Some(writeback::spawn(&self.flusher));
    }

    /// Ends the threads, and waits for them.
    pub(super) fn dismiss(&self) {
        if let Some(writeback) = self.writeback.lock().take() {
            self.flusher.dismiss();
            let _ = writeback.join();
        }
        if let Some(committer) = self.committer.lock().take() {
            self.journal.dismiss_committer();
            let _ = committer.join();
        }
        if let Some(reader) = self.reader.lock().take() {
            self.journal.buffers().dismiss_reader();
            let _ = reader.join();
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.dismiss();
    }
}

fn spawn_committer(journal: Arc<Journal>, interval: Duration) -> JoinHandle<()> {
    let commits = move || {
        while let Some(work) = journal.wait_for_work(interval) {
            let done = match work {
                Work::Commit(transaction) => journal.commit_for(transaction, CommitReason::Full),
                Work::CommitAll => journal.commit_all_for(CommitReason::Interval),
                Work::Checkpoint => journal.make_room(),
            };
            // The failure is latched; the next writer gets it.
            if done.is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("extant-commit".to_owned()).spawn(commits).expect("a thread can be made")
}

fn spawn_reader(buffers: Arc<Buffers>) -> JoinHandle<()> {
    let reads = move || buffers.run_reader();
    std::thread::Builder::new().name("extant-read".to_owned()).spawn(reads).expect("a thread can be made")
}
