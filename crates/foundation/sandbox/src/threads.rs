//! What belongs to single threads in the kernel, but is meant for the process: no_new_privs, the landlock
//! domain, capabilities. Each other thread gets a signal, in whose handler it confines itself.
//!
//! ```text
//!  caller: list /proc/self/task --> tgkill each --> wait for all --> list again; nothing new --> itself
//!  thread:                          handler: prctl, landlock_restrict_self, capset; reports
//! ```
//!
//! A thread that is started meanwhile by a confined thread inherits; one that was started by another is found
//! in the next list. The kernel's own threads of io_uring are left out: they take no signals, and act with
//! the credentials of the thread that made the request.
//!
//! Source: libcap's psx(3) (the same method), nptl(7), landlock(7), capabilities(7), io_uring_enter(2).

#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use std::time::{Duration, Instant};

/// How long the threads may take: they only have to get a CPU.
const PATIENCE: Duration = Duration::from_secs(20);
/// In [`Thread::result`]: not yet done.
const PENDING: i32 = -1;
/// Capabilities that may exist; the kernel refuses the numbers that it does not know.
const CAPABILITIES: u64 = 64;
/// `_LINUX_CAPABILITY_VERSION_3`.
const VERSION: u32 = 0x2008_0522;

/// What each thread does.
struct Task {
    /// The landlock ruleset; -1 if there is none.
    ruleset: i32,
    /// The capabilities that stay; `None`: all.
    kept: Option<u64>,
    threads: Vec<Thread>,
}

struct Thread {
    number: i32,
    /// 0, an error number, or [`PENDING`].
    result: AtomicI32,
}

/// The task for the handler; null outside of [`confine`].
static TASK: AtomicPtr<Task> = AtomicPtr::new(std::ptr::null_mut());
/// Held by [`confine`].
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[repr(C)]
struct CapHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Confines all threads.
pub(crate) fn confine(ruleset: Option<&OwnedFd>, kept: Option<u64>) -> io::Result<()> {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let ruleset = ruleset.map_or(-1, AsRawFd::as_raw_fd);
    let signal = libc::SIGRTMAX();
    let before = handle(signal, handler as *const () as usize)?;
    let done = confine_others(signal, ruleset, kept);
    // Left installed after a failure: a late signal would end the process.
    if done.is_ok() {
        // SAFETY: `before` was returned by the kernel.
        unsafe { libc::sigaction(signal, &raw const before, std::ptr::null_mut()) };
    }
    done?;
    // Last: before Linux 6.15 landlock also keeps signals from other threads of the process.
    result(confine_this_thread(ruleset, kept))
}

fn result(errno: i32) -> io::Result<()> {
    if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) }
}

fn handle(signal: i32, handler: usize) -> io::Result<libc::sigaction> {
    // SAFETY: all-zero bytes are a valid `sigaction`.
    let (mut action, mut before): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: both structures are live and initialized.
    match unsafe { libc::sigaction(signal, &raw const action, &raw mut before) } {
        0 => Ok(before),
        _ => Err(io::Error::last_os_error()),
    }
}

fn confine_others(signal: i32, ruleset: i32, kept: Option<u64>) -> io::Result<()> {
    let mut confined = BTreeSet::from([this_thread()]);
    let end = Instant::now() + PATIENCE;
    loop {
        let new: Vec<i32> = threads()?.into_iter().filter(|thread| !confined.contains(thread)).collect();
        if new.is_empty() {
            return Ok(());
        }
        confined.extend(&new);
        let threads =
            new.iter().map(|number| Thread { number: *number, result: AtomicI32::new(PENDING) }).collect();
        // Leaked if a thread does not answer: it may still use it.
        let task: &'static Task = Box::leak(Box::new(Task { ruleset, kept, threads }));
        TASK.store(std::ptr::from_ref(task).cast_mut(), Ordering::Release);
        for thread in &task.threads {
            if !signalled(thread.number, signal)? {
                thread.result.store(0, Ordering::Release);
            }
        }
        for thread in &task.threads {
            loop {
                match thread.result.load(Ordering::Acquire) {
                    PENDING if !signalled(thread.number, 0)? => break,
                    PENDING if Instant::now() > end => return Err(io::ErrorKind::TimedOut.into()),
                    PENDING => std::thread::sleep(Duration::from_micros(50)),
                    errno => break result(errno)?,
                }
            }
        }
        TASK.store(std::ptr::null_mut(), Ordering::Release);
    }
}

/// Sends a signal to a thread, or none for 0. False if there is no such thread.
fn signalled(thread: i32, signal: i32) -> io::Result<bool> {
    // SAFETY: the call takes numbers only.
    if unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal) } == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ESRCH) => Ok(false),
        error => Err(error),
    }
}

fn this_thread() -> i32 {
    // SAFETY: the call has no arguments.
    unsafe { libc::gettid() }
}

/// The threads of this process that take signals.
fn threads() -> io::Result<Vec<i32>> {
    let mut threads = Vec::new();
    for entry in std::fs::read_dir("/proc/self/task")? {
        let entry = entry?;
        let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let name = std::fs::read(entry.path().join("comm")).unwrap_or_default();
        // iou-wrk-N, iou-sqp-N.
        if !name.starts_with(b"iou-") {
            threads.push(number);
        }
    }
    Ok(threads)
}

extern "C" fn handler(_signal: libc::c_int) {
    // SAFETY: the pointer is null or to a leaked value.
    let Some(task) = (unsafe { TASK.load(Ordering::Acquire).as_ref() }) else { return };
    let this = this_thread();
    let Some(thread) = task.threads.iter().find(|thread| thread.number == this) else { return };
    // SAFETY: the pointer is to this thread's errno, which the interrupted code may be about to read.
    let errno = unsafe { *libc::__errno_location() };
    thread.result.store(confine_this_thread(task.ruleset, task.kept), Ordering::Release);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Confines the calling thread. Returns 0 or the error number. Async-signal-safe: system calls only.
fn confine_this_thread(ruleset: i32, kept: Option<u64>) -> i32 {
    // SAFETY: all these calls take numbers and pointers to live local structures of the kernel's layout.
    unsafe {
        let errno = || *libc::__errno_location();
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 {
            return errno();
        }
        if ruleset >= 0 && libc::syscall(libc::SYS_landlock_restrict_self, ruleset, 0) != 0 {
            return errno();
        }
        let Some(kept) = kept else { return 0 };
        // Without CAP_SETPCAP the bounding set stays; no_new_privs keeps it from having an effect.
        for capability in (0..CAPABILITIES).filter(|capability| kept >> capability & 1 == 0) {
            if libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) != 0 {
                break;
            }
        }
        libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
        let mut header = CapHeader { version: VERSION, pid: 0 };
        let mut sets = [CapData::default(); 2];
        if libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) != 0 {
            return errno();
        }
        for (set, kept) in sets.iter_mut().zip([kept as u32, (kept >> 32) as u32]) {
            set.permitted &= kept;
            set.effective &= kept;
            set.inheritable = 0;
        }
        header.version = VERSION;
        if libc::syscall(libc::SYS_capset, &raw mut header, sets.as_ptr()) != 0 {
            return errno();
        }
    }
    0
}
