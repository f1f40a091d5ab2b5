//! Which writeback errors were reported to which opener.
//!
//! If opens are tracked, fsync(2) reports an error once per open file, as in the kernel's file systems. If
//! they are not, which saves two requests per open, it reports the error once per process, also to processes
//! that opened the file after the error.
//!
//! Data structures: a map from handles to inodes and error cursors; and a map from inode and process to error
//! cursors, which has entries only for inodes that had errors.
//!
//! Invariants
//! 1. A handle is not 0 and is never used twice.
//! 2. At most [`PROCESSES_MAX`] processes are remembered.
//!
//! Does **not** own: the errors (see [`extant_volume::Volume::fsync_as`]).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use extant_base::Ino;
use extant_volume::{ErrorCursor, Fault, Volume};

/// Entries of the map of processes. A full map is cleared, and then a process may get the same error again.
const PROCESSES_MAX: usize = 4096;

/// What identifies the caller of fsync(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opener {
    /// The result of [`Serve::open`](crate::Serve::open); 0 if opens are not tracked.
    pub handle: u64,
    /// The calling thread; 0 if it is not known.
    pub thread: u32,
}

#[derive(Default)]
pub(crate) struct Openers {
    last: AtomicU64,
    files: Mutex<HashMap<u64, (Ino, Arc<ErrorCursor>)>>,
    /// Only of inodes that had errors.
    processes: Mutex<HashMap<(Ino, u32), Arc<ErrorCursor>>>,
}

impl Openers {
    /// Adds an open file. Returns its handle.
    pub(crate) fn open(&self, ino: Ino, cursor: ErrorCursor) -> u64 {
        let handle = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        locked(&self.files).insert(handle, (ino, Arc::new(cursor)));
        handle
    }

    /// The open handles and their inodes.
    pub(crate) fn all(&self) -> Vec<(u64, Ino)> {
        locked(&self.files).iter().map(|(handle, (ino, _))| (*handle, *ino)).collect()
    }

    /// Forgets which errors processes have got: the numbers of errors begin anew with the volume.
    pub(crate) fn forget_processes(&self) {
        locked(&self.processes).clear();
    }

    /// Starts anew with the errors of a handle's inode: the volume was opened again.
    pub(crate) fn renew(&self, handle: u64, cursor: ErrorCursor) {
        if let Some((_, known)) = locked(&self.files).get_mut(&handle) {
            *known = Arc::new(cursor);
        }
    }

    /// Closes all handles. Returns their inodes, each as often as it was open.
    pub(crate) fn close_all(&self) -> Vec<Ino> {
        locked(&self.files).drain().map(|(_, (ino, _))| ino).collect()
    }

    /// Closes a handle. Returns its inode.
    pub(crate) fn close(&self, handle: u64) -> Option<Ino> {
        locked(&self.files).remove(&handle).map(|(ino, _)| ino)
    }

    /// Makes a file durable. Returns an earlier writeback error if this opener did not get it yet.
    pub(crate) fn fsync(
        &self,
        volume: &Volume,
        ino: Ino,
        opener: Opener,
        data_only: bool,
    ) -> Result<(), Fault> {
        let open = locked(&self.files).get(&opener.handle).cloned();
        if let Some((_, cursor)) = open {
            return volume.files().fsync_as(ino, &cursor, data_only);
        }
        let key = || (ino, process_of(opener.thread));
        let known =
            if volume.files().had_errors(ino) { locked(&self.processes).get(&key()).cloned() } else { None };
        let cursor = known.unwrap_or_default();
        let done = volume.files().fsync_as(ino, &cursor, data_only);
        if volume.files().had_errors(ino) {
            let mut processes = locked(&self.processes);
            if processes.len() >= PROCESSES_MAX {
                processes.clear();
            }
            processes.insert(key(), cursor);
        }
        done
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The process of a thread; the thread itself if it has ended.
fn process_of(thread: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    line.and_then(|text| text.trim().parse().ok()).unwrap_or(thread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_one_of_its_process() {
        // "PID/task/TID"
        let own = || {
            let link = std::fs::read_link("/proc/thread-self").unwrap();
            link.file_name().unwrap().to_str().unwrap().parse::<u32>().unwrap()
        };
        assert_eq!(process_of(own()), std::process::id());
        assert_ne!(own(), std::process::id(), "tests run in threads of their own");
        let ended = std::thread::spawn(own).join().unwrap();
        assert_eq!(process_of(ended), ended);
    }

    #[test]
    fn handles_are_never_reused() {
        let openers = Openers::default();
        let (one, two) =
            (openers.open(Ino(12), ErrorCursor::default()), openers.open(Ino(12), ErrorCursor::default()));
        assert!(one != 0 && one != two);
        assert_eq!([one, one, 0].map(|handle| openers.close(handle)), [Some(Ino(12)), None, None]);
        assert!(openers.open(Ino(12), ErrorCursor::default()) != one);
    }
}
