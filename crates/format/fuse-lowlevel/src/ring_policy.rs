//! Scheduling policy of the threads that serve queues of io_uring.
//!
//! A queue's thread is bound to a CPU, that of its client. With the policy SCHED_IDLE it leaves the client
//! there (see [`placement`](crate::placement)), but hardly gets the CPU while another thread wants it. A
//! watcher sets the policy of each thread:
//!
//! ```text
//!  [normal] -- BUSY requests since the last change --> [idle policy]
//!     ^---- no request between two ticks, and the thread is runnable; or QUIET_TICKS without a request --'
//! ```
//!
//! After the first of these two reasons the thread keeps the normal policy for BUSY_STARVED requests.
//!
//! Invariants
//! 1. Only the watcher changes policies, and it checks each thread with the idle policy every [`TICK`].
//! 2. No thread wakes up periodically while there are no requests.
//!
//! Source: sched(7), proc_pid_stat(5).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::thread::gettid;

use crate::placement::{can_return, set_policy};

/// How often the watcher checks.
const TICK: Duration = Duration::from_millis(2);
/// Ticks without requests after which the policy is normal again.
const QUIET_TICKS: u32 = 8;
/// Requests after which a thread gets the idle policy: usually, and after it got no CPU.
const BUSY: u64 = 16;
const BUSY_STARVED: u64 = 16_384;

/// What a thread and the watcher share.
#[derive(Debug, Default)]
pub(crate) struct ServingThread {
    /// Thread id; 0 before it is known.
    id: Mutex<i32>,
    /// Requests so far.
    served: AtomicU64,
    /// The value of `served` from which on the thread asks for the idle policy.
    asks_from: AtomicU64,
    asks: AtomicBool,
}

/// The watcher's state.
#[derive(Debug, Default)]
pub(crate) struct PolicyWatcher {
    /// Whether the threads have ended.
    has_ended: Mutex<bool>,
    woken: Condvar,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ServingThread {
    /// The calling thread serves.
    pub(crate) fn start(&self) {
        *locked(&self.id) = gettid().as_raw_nonzero().get();
        self.asks_from.store(BUSY, Ordering::Relaxed);
    }

    /// Notes that the thread has served a request.
    pub(crate) fn note_request(&self, watcher: &PolicyWatcher) {
        let served = self.served.fetch_add(1, Ordering::Relaxed) + 1;
        if served >= self.asks_from.load(Ordering::Relaxed) && !self.asks.swap(true, Ordering::AcqRel) {
            let _ended = locked(&watcher.has_ended);
            watcher.woken.notify_all();
        }
    }
}

impl PolicyWatcher {
    /// Ends [`run`](Self::run).
    pub(crate) fn end(&self) {
        *locked(&self.has_ended) = true;
        self.woken.notify_all();
    }

    /// Sets the policies of these threads, until [`end`](Self::end).
    pub(crate) fn run(&self, threads: &[Arc<ServingThread>]) {
        if !can_return() {
            return;
        }
        // Of each thread with the idle policy: its number of requests at the last tick, and for how many
        // ticks it has been the same.
        let mut idle: Vec<Option<(u64, u32)>> = vec![None; threads.len()];
        let mut has_ended = locked(&self.has_ended);
        loop {
            let is_asked = || threads.iter().any(|thread| thread.asks.load(Ordering::Acquire));
            has_ended = match is_asked() || idle.iter().any(Option::is_some) {
                true => self.woken.wait_timeout(has_ended, TICK).unwrap_or_else(PoisonError::into_inner).0,
                false => self.woken.wait(has_ended).unwrap_or_else(PoisonError::into_inner),
            };
            if *has_ended {
                return;
            }
            for (thread, idle) in threads.iter().zip(&mut idle) {
                *idle = check(thread, *idle);
            }
        }
    }
}

/// Changes the policy of a thread if it is time. Returns the new state of a thread with the idle policy.
fn check(thread: &ServingThread, idle: Option<(u64, u32)>) -> Option<(u64, u32)> {
    let id = *locked(&thread.id);
    let served = thread.served.load(Ordering::Relaxed);
    let Some((before, ticks)) = idle else {
        let is_idle = thread.asks.load(Ordering::Acquire) && set_policy(id, libc::SCHED_IDLE);
        return is_idle.then_some((served, 0));
    };
    if served != before {
        return Some((served, 0));
    }
    let has_starved = is_runnable(id);
    if !has_starved && ticks + 1 < QUIET_TICKS {
        return Some((served, ticks + 1));
    }
    set_policy(id, libc::SCHED_OTHER);
    let busy = if has_starved { BUSY_STARVED } else { BUSY };
    thread.asks_from.store(served + busy, Ordering::Relaxed);
    thread.asks.store(false, Ordering::Release);
    None
}

/// Does the thread run, or wait for a CPU?
fn is_runnable(id: i32) -> bool {
    let stat = std::fs::read(format!("/proc/self/task/{id}/stat")).unwrap_or_default();
    // The name, in parentheses, comes before the state.
    stat.iter().rposition(|byte| *byte == b')').is_some_and(|end| stat.get(end + 2) == Some(&b'R'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(id: i32) -> i32 {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{id}/stat")).unwrap();
        // Field 41; the name is field 2.
        stat[stat.rfind(')').unwrap() + 2..].split(' ').nth(38).unwrap().parse().unwrap()
    }

    /// A thread that serves gets the idle policy, and the normal one when it has nothing to do, or when it
    /// has work and makes no progress.
    #[test]
    fn the_policy_follows_the_requests() {
        if !can_return() {
            println!("skipped: no CAP_SYS_NICE");
            return;
        }
        let (thread, watcher) = (Arc::new(ServingThread::default()), PolicyWatcher::default());
        let serves = || {
            thread.start();
            let id = *locked(&thread.id);
            let end = std::time::Instant::now() + Duration::from_secs(20);
            let wait_for = |wanted: i32, mut meanwhile: Box<dyn FnMut() + '_>| {
                while policy(id) != wanted {
                    assert!(std::time::Instant::now() < end, "the policy stays {}", policy(id));
                    meanwhile();
                }
            };
            let serve = || (0..BUSY_STARVED).for_each(|_| thread.note_request(&watcher));
            wait_for(libc::SCHED_IDLE, Box::new(serve));
            wait_for(libc::SCHED_OTHER, Box::new(|| std::thread::sleep(TICK)));
            wait_for(libc::SCHED_IDLE, Box::new(serve));
            wait_for(libc::SCHED_OTHER, Box::new(|| ()));
        };
        std::thread::scope(|scope| {
            let threads = [Arc::clone(&thread)];
            let watcher = &watcher;
            scope.spawn(move || watcher.run(&threads));
            let served = scope.spawn(serves).join();
            watcher.end();
            served.unwrap();
        });
    }
}
