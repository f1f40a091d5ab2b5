//! A refused system call: the kernel sends SIGSYS to the thread that made it. The handler writes a message
//! that names the call, and ends the process.
//!
//! The handler may interrupt the allocator or a lock, so it allocates nothing, takes no lock and writes with
//! write(2) from a buffer on its stack. A call that hides behind SIGSYS cannot return to the code that made
//! it: that code may be under foreign control, or relies on the call.
//!
//! Source: seccomp(2) (SECCOMP_RET_TRAP), sigaction(2) (`si_syscall`), signal-safety(7).

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicPtr, Ordering};

use syscalls::Sysno;

/// `si_code` of a SIGSYS that seccomp caused.
const SYS_SECCOMP: libc::c_int = 1;
/// Longest message in bytes, with its prefix.
const MESSAGE_MAX: usize = 1024;

/// What happens at a refused system call.
#[derive(Debug)]
pub struct OnRefusal {
    exit_code: u8,
    /// What is worked on, for the message.
    subject: Vec<u8>,
    /// A log that also gets the message: a descriptor, and what stands before the message there.
    log: Option<(RawFd, Vec<u8>)>,
}

impl OnRefusal {
    /// Ends the process with this code. `subject`: the image, for the message.
    #[must_use]
    pub fn exit_with(exit_code: u8, subject: &str) -> Self {
        Self { exit_code, subject: subject.as_bytes().to_vec(), log: None }
    }

    /// Also writes the message to this descriptor, which stays open while the process runs, in one write(2)
    /// that begins with `prefix`.
    #[must_use]
    pub fn with_log(mut self, fd: BorrowedFd<'_>, prefix: Vec<u8>) -> Self {
        self.log = Some((fd.as_raw_fd(), prefix));
        self
    }
}

/// Set once before the filter is; never freed.
static ON_REFUSAL: AtomicPtr<OnRefusal> = AtomicPtr::new(std::ptr::null_mut());

/// The beginning of `siginfo_t` for SIGSYS on 64-bit machines.
#[repr(C)]
struct SigSys {
    signo: libc::c_int,
    errno: libc::c_int,
    code: libc::c_int,
    padding: libc::c_int,
    call_addr: *const libc::c_void,
    syscall: libc::c_int,
    arch: libc::c_uint,
}

/// Installs the handler.
pub(crate) fn install(on_refusal: OnRefusal) -> io::Result<()> {
    ON_REFUSAL.store(Box::into_raw(Box::new(on_refusal)), Ordering::Release);
    // SAFETY: all-zero bytes are a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    // On the thread's alternate stack, if it has one: the call may have been made with little stack left.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: `action` is initialized, and the handler has the type that SA_SIGINFO requires.
    match unsafe { libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn handler(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo_t, which begins like this for SIGSYS.
    let info = unsafe { &*info.cast::<SigSys>() };
    let number = if info.code == SYS_SECCOMP { Some(info.syscall) } else { None };
    // SAFETY: the pointer is null or to a value that is never freed or changed.
    let on_refusal = unsafe { ON_REFUSAL.load(Ordering::Acquire).as_ref() };
    let mut code = 1;
    if let Some(on_refusal) = on_refusal {
        code = on_refusal.exit_code.into();
        let mut text = Message::new();
        text.add(b"extant: ");
        explain(&mut text, &on_refusal.subject, number);
        text.add(b"\n");
        text.write_to(2);
        if let Some((fd, prefix)) = &on_refusal.log {
            let mut text = Message::new();
            text.add(prefix);
            explain(&mut text, &on_refusal.subject, number);
            text.add(b"\n");
            text.write_to(*fd);
        }
    }
    // SAFETY: _exit only ends the process; it is async-signal-safe.
    unsafe { libc::_exit(code) }
}

fn explain(text: &mut Message, subject: &[u8], number: Option<i32>) {
    text.add(subject);
    text.add(b": system call ");
    match number {
        None => text.add(b"(SIGSYS from another process)"),
        Some(number) => {
            let name =
                usize::try_from(number).ok().and_then(Sysno::new).map_or("unknown", |call| call.name());
            text.add(name.as_bytes());
            text.add(b" (");
            text.add_number(number);
            text.add(b")");
        }
    }
    text.add(
        b" is not allowed by the sandbox: a defect of extant, or an attack by the image or a client; \
          the process ends, and what was synced is in the image. Please report it; --no-sandbox runs without",
    );
}

/// Text on the stack. What is too long is cut off.
struct Message {
    bytes: [u8; MESSAGE_MAX],
    len: usize,
}

impl Message {
    fn new() -> Self {
        Self { bytes: [0; MESSAGE_MAX], len: 0 }
    }

    fn add(&mut self, text: &[u8]) {
        for byte in text {
            if let Some(place) = self.bytes.get_mut(self.len) {
                *place = *byte;
                self.len += 1;
            }
        }
    }

    fn add_number(&mut self, number: i32) {
        let mut digits = [0; 10];
        let (mut rest, mut count) = (number.unsigned_abs(), 0);
        while let Some(place) = digits.get_mut(count) {
            *place = b'0' + (rest % 10) as u8;
            (rest, count) = (rest / 10, count + 1);
            if rest == 0 {
                break;
            }
        }
        if number < 0 {
            self.add(b"-");
        }
        for digit in digits.iter().take(count).rev() {
            self.add(&[*digit]);
        }
    }

    fn write_to(&self, fd: RawFd) {
        // SAFETY: the buffer is live and at least this long; a failure has no remedy here.
        let _ = unsafe { libc::write(fd, self.bytes.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_the_call_and_is_cut_where_it_is_too_long() {
        let mut text = Message::new();
        explain(&mut text, b"a.img", Some(libc::SYS_socket as i32));
        let shown = String::from_utf8_lossy(&text.bytes[..text.len]).into_owned();
        let expected =
            format!("a.img: system call socket ({}) is not allowed by the sandbox", libc::SYS_socket);
        assert!(shown.starts_with(&expected) && shown.contains("--no-sandbox"), "{shown}");
        let mut number = Message::new();
        number.add_number(i32::MIN);
        number.add_number(0);
        assert_eq!(&number.bytes[..number.len], b"-21474836480");
        let mut long = Message::new();
        explain(&mut long, &[b'x'; 2 * MESSAGE_MAX], Some(-1));
        assert_eq!(long.len, MESSAGE_MAX);
    }
}
