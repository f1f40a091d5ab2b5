//! Binding of a server thread to the CPU of its client, so that the two take turns.
//!
//! When a reply wakes the client, the scheduler puts the client on an idle CPU if its own is busy, and its
//! own is: the server runs there. From then on each request and each reply wakes a sleeping CPU, which takes
//! longer than most requests, and many times as long in a virtual machine. A CPU that runs only SCHED_IDLE
//! threads counts as idle, though: a server with that policy leaves the client where it is, and the client
//! runs at once.
//!
//! A SCHED_IDLE thread hardly gets a CPU on which other threads want to run. So a [`Bound`] thread needs a
//! watcher that [releases](Bound::release) it. Both policies can be set by a thread with CAP_SYS_NICE; an
//! ordinary one cannot take the normal one back, and is not bound.
//!
//! Source: sched(7), sched_setscheduler(2); proc_pid_stat(5).

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity};

/// Sets a thread's policy, SCHED_OTHER or SCHED_IDLE; the calling thread's for 0. False if that is refused.
pub(crate) fn set_policy(thread: i32, policy: i32) -> bool {
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: the pointer is to a live structure, which the call only reads.
    unsafe { libc::sched_setscheduler(thread, policy, &raw const param) == 0 }
}

/// Returns whether a thread can set the normal policy again after SCHED_IDLE, so that a server thread can be
/// bound to the CPU of its client.
#[must_use]
pub fn can_return() -> bool {
    let tried = || set_policy(0, libc::SCHED_IDLE) && set_policy(0, libc::SCHED_OTHER);
    // In a new thread, because the thread may be unable to restore its policy.
    std::thread::scope(|scope| scope.spawn(tried).join().unwrap_or(false))
}

/// The CPU where a thread runs, or ran last.
fn cpu_of(thread: u32) -> Option<usize> {
    let text = std::fs::read(format!("/proc/{thread}/stat")).ok()?;
    let after_name = text.iter().rposition(|byte| *byte == b')')?;
    // Field 39; the name is field 2.
    let field = text.get(after_name + 2..)?.split(|byte| *byte == b' ').nth(36)?;
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// A thread that can be bound to the CPU of its client.
#[derive(Debug)]
pub(crate) struct Bound {
    thread: Pid,
    /// Its affinity while it is not bound.
    free: CpuSet,
    cpu: Mutex<Option<usize>>,
    is_bound: AtomicBool,
}

impl Bound {
    /// The calling thread; `None` if binding it is not possible, or of no use: there is one CPU.
    pub(crate) fn new() -> Option<Self> {
        let free = sched_getaffinity(None).ok().filter(|free| free.count() > 1)?;
        can_return().then(|| Self {
            thread: gettid(),
            free,
            cpu: Mutex::default(),
            is_bound: AtomicBool::new(false),
        })
    }

    fn cpu(&self) -> MutexGuard<'_, Option<usize>> {
        self.cpu.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Binds the thread to the CPU where a client runs, or ran last. Returns whether it was bound there.
    pub(crate) fn bind(&self, client: u32) -> bool {
        let Some(cpu) = cpu_of(client).filter(|cpu| self.free.is_set(*cpu)) else { return false };
        let mut bound = self.cpu();
        if *bound == Some(cpu) {
            return true;
        }
        let mut one = CpuSet::new();
        one.set(cpu);
        let thread = self.thread.as_raw_nonzero().get();
        if sched_setaffinity(Some(self.thread), &one).is_ok() && set_policy(thread, libc::SCHED_IDLE) {
            *bound = Some(cpu);
            self.is_bound.store(true, Ordering::Release);
        }
        false
    }

    pub(crate) fn is_bound(&self) -> bool {
        self.is_bound.load(Ordering::Acquire)
    }

    /// Ends the binding; any thread may call this. Returns whether the thread was bound.
    pub(crate) fn release(&self) -> bool {
        let mut bound = self.cpu();
        if bound.is_none() {
            return false;
        }
        *bound = None;
        self.is_bound.store(false, Ordering::Release);
        set_policy(self.thread.as_raw_nonzero().get(), libc::SCHED_OTHER);
        let _ = sched_setaffinity(Some(self.thread), &self.free);
        true
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_of_a_thread_is_a_number_below_the_number_of_cpus() {
        assert!(cpu_of(std::process::id()).is_some_and(|cpu| cpu < CpuSet::MAX_CPU));
        assert_eq!(cpu_of(0), None);
    }

    #[test]
    fn a_released_thread_has_its_policy_and_affinity_back() {
        let before = sched_getaffinity(None).unwrap();
        let Some(bound) = Bound::new() else { return };
        bound.bind(std::process::id());
        assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
        assert!(bound.release() && !bound.release());
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }
}
