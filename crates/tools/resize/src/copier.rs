//! Copies blocks on several threads, while the caller decides what moves next.
//!
//! Owns: the threads and the queue. Does **not** own: the choice of blocks. No block is the source of one
//! copy and the target of another before [`Copier::wait`].
//!
//! Invariants
//! 1. After [`Copier::wait`] all copies are written (not yet durable), or it has returned the first fault.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use extant_device::{Device, DeviceFault};

/// Bytes that are copied at once.
const COPY_BYTES: u64 = 1 << 20;
/// Copies that wait for a thread.
const QUEUE_MAX: usize = 32;
/// More threads than this are no faster.
const THREADS_MAX: usize = 4;

/// A copy, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Job {
    from: u64,
    to: u64,
    len: u64,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Copies that a thread makes now.
    running: usize,
    fault: Option<DeviceFault>,
    is_over: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Something in the queue has changed.
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'q>(&self, queue: MutexGuard<'q, Queue>) -> MutexGuard<'q, Queue> {
        self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner)
    }
}

/// The threads that copy, and the last copy, which may grow.
pub(crate) struct Copier {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    last: Option<Job>,
}

impl Copier {
    pub(crate) fn new(device: &Arc<dyn Device>) -> Self {
        let shared = Arc::<Shared>::default();
        let count = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        let thread = |_| {
            let (shared, device) = (Arc::clone(&shared), Arc::clone(device));
            std::thread::spawn(move || run(&shared, &*device))
        };
        Self { threads: (0..count).map(thread).collect(), shared, last: None }
    }

    /// Copies `len` bytes, at the latest in [`wait`](Self::wait).
    pub(crate) fn copy(&mut self, from: u64, to: u64, len: u64) {
        if let Some(last) = &mut self.last
            && (last.from + last.len, last.to + last.len) == (from, to)
            && last.len < COPY_BYTES
        {
            last.len += len;
            return;
        }
        if let Some(last) = self.last.replace(Job { from, to, len }) {
            self.send(last);
        }
    }

    fn send(&self, job: Job) {
        let mut queue = self.shared.lock();
        while queue.jobs.len() >= QUEUE_MAX && queue.fault.is_none() {
            queue = self.shared.wait(queue);
        }
        queue.jobs.push_back(job);
        self.shared.changed.notify_all();
    }

    /// Waits until all copies are written.
    ///
    /// # Errors
    /// The first fault of the device since the last call.
    pub(crate) fn wait(&mut self) -> Result<(), DeviceFault> {
        if let Some(last) = self.last.take() {
            self.send(last);
        }
        let mut queue = self.shared.lock();
        while queue.running > 0 || !queue.jobs.is_empty() && queue.fault.is_none() {
            queue = self.shared.wait(queue);
        }
        queue.jobs.clear();
        queue.fault.take().map_or(Ok(()), Err)
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        {
            let mut queue = self.shared.lock();
            queue.is_over = true;
            queue.jobs.clear();
        }
        self.shared.changed.notify_all();
        // A thread that panicked has left a fault, which ended the shrink.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// A copy that a thread has taken. Its end counts even if the device panics.
struct Running<'s>(&'s Shared);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        {
            let mut queue = self.0.lock();
            queue.running -= 1;
            if std::thread::panicking() {
                let source = std::io::Error::other("a thread that copies has panicked");
                let fault = DeviceFault::Io { what: "copy", offset: 0, len: 0, source };
                queue.fault.get_or_insert(fault);
                // No thread may be left for the rest.
                queue.jobs.clear();
            }
        }
        self.0.changed.notify_all();
    }
}

/// Makes copies until the queue is over.
fn run(shared: &Shared, device: &dyn Device) {
    loop {
        let job = {
            let mut queue = shared.lock();
            loop {
                if queue.is_over {
                    return;
                }
                if let Some(job) = queue.jobs.pop_front() {
                    queue.running += 1;
                    break job;
                }
                queue = shared.wait(queue);
            }
        };
        let running = Running(shared);
        shared.changed.notify_all();
        if let Err(fault) = device.copy_at(job.from, job.to, job.len) {
            shared.lock().fault.get_or_insert(fault);
        }
        drop(running);
    }
}

#[cfg(test)]
mod tests {
    use extant_device::MemDevice;

    use super::*;

    #[test]
    fn copies_are_there_after_the_wait() {
        let device: Arc<dyn Device> = Arc::new(MemDevice::new(1 << 20));
        let content: Vec<u8> = (0..400_000u32).map(|at| (at / 100) as u8).collect();
        device.write_at(0, &content).unwrap();
        let mut copier = Copier::new(&device);
        for at in 0..100 {
            // Neighbours, every fifth copy elsewhere.
            copier.copy(at * 4000, 500_000 + at * 4000 + at / 5 * 1000, 4000);
        }
        copier.wait().unwrap();
        let mut copied = vec![0; 4000];
        for at in 0..100u64 {
            device.read_at(500_000 + at * 4000 + at / 5 * 1000, &mut copied).unwrap();
            assert!(copied == content[at as usize * 4000..][..4000], "{at}");
        }
        // A fault is returned once.
        copier.copy(0, 2 << 20, 4000);
        assert!(copier.wait().is_err());
        copier.wait().unwrap();
    }
}
