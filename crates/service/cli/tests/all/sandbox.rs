//! Confinement of the server and of the reading commands, seen from outside. What a confined process cannot
//! do is tried in the real server: the test stops one of its threads by ptrace(2) and has it make a system
//! call, as an attacker that controls the thread would.
//!
//! Needs /dev/fuse and root. Without them, tests print a note and pass.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Stdio};

use crate::common::mounted::{
    Mount, binary, empty_image, has_ended, has_fuse, has_fuse_and_root, is_mounted, runs, wait_until,
};
use crate::common::{extant, outcome};
use extant_testkit::e2fsck_clean;
use rustix::process::{Pid, Signal, kill_process};

/// The sandbox refused a system call.
const REFUSED_CALL: i32 = 71;
/// CAP_SYS_NICE only.
const SERVER_CAPABILITIES: &str = "0000000000800000";

/// The value of a line in the status of each thread.
fn of_threads(process: u32, name: &str) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
    let texts = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
    let value = |text: String| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or("absent").trim().to_owned()
    };
    let mut values: Vec<String> = texts.map(value).collect();
    values.sort();
    values.dedup();
    values
}

#[track_caller]
fn is_confined(process: u32, capabilities: Option<&str>) {
    assert_eq!(of_threads(process, "Seccomp"), ["2"]);
    assert_eq!(of_threads(process, "NoNewPrivs"), ["1"]);
    if let Some(capabilities) = capabilities.filter(|_| extant_testkit::is_root()) {
        for set in ["CapEff", "CapPrm", "CapBnd"] {
            assert_eq!(of_threads(process, set), [capabilities], "{set}");
        }
        assert_eq!(of_threads(process, "CapInh"), ["0000000000000000"]);
    }
}

/// A mount in the foreground, whose standard error is a pipe.
fn foreground(image: &Path, mount: &Mount, args: &[&str]) -> Child {
    let mut command = binary();
    command.arg("mount").arg(image).arg(mount.path()).args(["-f", "-o", "rw"]).args(args);
    let mut server = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It is confined when it prints this line.
    let mut line = String::new();
    BufReader::new(server.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("is mounted on"), "{line}");
    server
}

fn place() -> Mount {
    Mount::unmounted()
}

#[test]
fn all_threads_of_a_server_are_confined() {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = empty_image(&[]);
    let mount = Mount::new(&image, &[]);
    let server = mount.server().as_raw_nonzero().get() as u32;
    runs(
        mount.path(),
        "echo a > a; sync a; setfattr -n user.n -v v a; ln a b; mkdir d; mv b d; fallocate -p -l 4096 a
         dd if=/dev/zero of=large bs=1M count=8 conv=fsync status=none; cat large > /dev/null
         truncate -s 1 large
         python3 -c 'import os
f = os.open(\".\", os.O_TMPFILE | os.O_RDWR)
os.write(f, b\"x\"); os.fsync(f)'",
    );
    is_confined(server, Some(SERVER_CAPABILITIES));
    let limits = std::fs::read_to_string(format!("/proc/{server}/limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert!(core.split_whitespace().nth(4) == Some("0"), "{core}");
    mount.unmount();
    e2fsck_clean(&image);

    for args in [["--no-sandbox"].as_slice(), &["--threads", "3", "--no-sandbox"]] {
        let mount = Mount::new(&image, args);
        let server = mount.server().as_raw_nonzero().get() as u32;
        assert_eq!(of_threads(server, "NoNewPrivs"), ["0"]);
        mount.unmount();
    }
}

/// The unmounter, a process outside of the sandbox, unmounts when the server gets a signal, and ends after
/// the server.
#[test]
fn a_confined_server_unmounts_at_a_signal_and_leaves_no_process() {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = empty_image(&[]);
    let unmounter_of = |server: u32| {
        let children = std::fs::read_to_string(format!("/proc/{server}/task/{server}/children")).unwrap();
        Pid::from_raw(children.trim().parse().unwrap()).unwrap()
    };
    for is_busy in [false, true] {
        let mount = place();
        let mut server = foreground(&image, &mount, &[]);
        let unmounter = unmounter_of(server.id());
        std::fs::write(mount.path().join("a"), "kept").unwrap();
        let user = is_busy.then(|| std::fs::File::open(mount.path().join("a")).unwrap());
        kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
        assert!(server.wait().unwrap().success());
        assert!(!is_mounted(mount.path()));
        wait_until("the unmounter ends", || has_ended(unmounter));
        drop(user);
        e2fsck_clean(&image);
    }
    // Without its server it ends by itself, and the mount stays, as after any kill.
    let mount = place();
    let mut server = foreground(&image, &mount, &[]);
    let unmounter = unmounter_of(server.id());
    // A signal to both, as of a terminal or of systemd, is the server's to handle.
    kill_process(unmounter, Signal::TERM).unwrap();
    kill_process(unmounter, Signal::INT).unwrap();
    assert!(!has_ended(unmounter));
    server.kill().unwrap();
    server.wait().unwrap();
    wait_until("the unmounter ends", || has_ended(unmounter));
    assert!(is_mounted(mount.path()));
}

/// The commands run until their output is read, and are looked at meanwhile.
#[test]
fn commands_that_read_are_confined() {
    let dir = extant_testkit::scratch();
    let path = dir.path();
    std::fs::create_dir(path.join("s")).unwrap();
    std::fs::write(path.join("s/large"), vec![7; 4 << 20]).unwrap();
    for number in 0..3000 {
        std::fs::write(
            path.join(format!("s/a file with a name that is long, to fill the pipe {number}")),
            "",
        )
        .unwrap();
    }
    outcome(extant().current_dir(path).args(["build", "-q", "-o", "a.img", "--from", "s"])).code(0);
    let none = Some("0000000000000000");
    for (line, capabilities) in [
        ("cat a.img:/large", none),
        ("ls -l a.img", none),
        ("tree a.img", none),
        ("stat a.img:/*", none),
        ("inspect --json a.img dir /", none),
        ("export a.img --tar -", None),
        ("build -q -o - --from s", None),
    ] {
        let mut command = extant();
        command.current_dir(path).args(line.split(' ')).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut out = child.stdout.take().unwrap();
        let mut first = [0; 1];
        out.read_exact(&mut first).unwrap();
        is_confined(child.id(), capabilities);
        std::io::copy(&mut out, &mut std::io::sink()).unwrap();
        assert!(child.wait().unwrap().success(), "{line}");
    }
    let mut child = extant()
        .current_dir(path)
        .args(["--no-sandbox", "cat", "a.img:/large"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut [0; 1]).unwrap();
    assert_eq!(of_threads(child.id(), "NoNewPrivs"), ["0"]);
    std::io::copy(&mut out, &mut std::io::sink()).unwrap();
    assert!(child.wait().unwrap().success());
}

/// Makes threads of other processes execute system calls.
#[cfg(target_arch = "x86_64")]
mod forced {
    use std::ffi::c_void;

    /// Length of the instruction `syscall`.
    const SYSCALL_LEN: u64 = 2;
    /// Below the stack pointer, past what the interrupted code may use.
    const BELOW_STACK: u64 = 4096;

    pub(super) struct Stopped {
        thread: i32,
        before: libc::user_regs_struct,
    }

    fn trace(request: libc::c_uint, thread: i32, data: *mut c_void) {
        // SAFETY: the requests used here read or write one structure of the right type behind `data`, or
        // ignore it.
        let result = unsafe { libc::ptrace(request, thread, std::ptr::null_mut::<c_void>(), data) };
        assert_eq!(result, 0, "ptrace {request}: {}", std::io::Error::last_os_error());
    }

    /// Returns false if the thread ended.
    fn wait(thread: i32) -> bool {
        let mut status = 0;
        // SAFETY: `status` is live.
        let waited = unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) };
        assert_eq!(waited, thread, "{}", std::io::Error::last_os_error());
        libc::WIFSTOPPED(status)
    }

    impl Stopped {
        /// Stops a thread that waits in a system call.
        pub(super) fn new(thread: i32) -> Self {
            trace(libc::PTRACE_SEIZE, thread, std::ptr::null_mut());
            trace(libc::PTRACE_INTERRUPT, thread, std::ptr::null_mut());
            assert!(wait(thread));
            // SAFETY: all-zero bytes are a valid register set.
            let mut before: libc::user_regs_struct = unsafe { std::mem::zeroed() };
            trace(libc::PTRACE_GETREGS, thread, (&raw mut before).cast());
            Self { thread, before }
        }

        /// Registers with which the thread executes this call next.
        fn set(&self, number: i64, args: [u64; 4]) {
            let mut regs = self.before;
            regs.orig_rax = u64::MAX;
            (regs.rax, regs.rip) = (number as u64, self.before.rip - SYSCALL_LEN);
            [regs.rdi, regs.rsi, regs.rdx, regs.r10] = args;
            trace(libc::PTRACE_SETREGS, self.thread, (&raw mut regs).cast());
        }

        /// The result of a call that returns. `path` is put into memory, and its address is argument 1.
        pub(super) fn call_with_path(&self, number: i64, path: &str, args: [u64; 4]) -> i64 {
            let at = self.before.rsp - BELOW_STACK;
            let memory =
                std::fs::File::options().write(true).open(format!("/proc/{}/mem", self.thread)).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&memory, format!("{path}\0").as_bytes(), at).unwrap();
            let mut args = args;
            args[1] = at;
            self.set(number, args);
            trace(libc::PTRACE_SINGLESTEP, self.thread, std::ptr::null_mut());
            assert!(wait(self.thread));
            let mut after = self.before;
            trace(libc::PTRACE_GETREGS, self.thread, (&raw mut after).cast());
            after.rax as i64
        }

        /// Lets the thread go on with a call.
        pub(super) fn go_on_with(self, number: i64, args: [u64; 4]) {
            self.set(number, args);
            trace(libc::PTRACE_DETACH, self.thread, std::ptr::null_mut());
        }

        /// Lets the thread go on as if nothing had been.
        pub(super) fn go_on(mut self) {
            trace(libc::PTRACE_SETREGS, self.thread, (&raw mut self.before).cast());
            trace(libc::PTRACE_DETACH, self.thread, std::ptr::null_mut());
        }
    }
}

/// The thread of the process with this name, once it waits in a system call.
#[cfg(target_arch = "x86_64")]
fn thread_named(process: u32, name: &str) -> i32 {
    let mut found = None;
    wait_until("the thread waits", || {
        let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
        let text = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap_or_default();
        let mut tasks = tasks.filter(|task| {
            let is_waiting = || text(task.path().join("stat")).contains(") S ");
            text(task.path().join("comm")).trim_end() == name && is_waiting()
        });
        found = tasks.next().and_then(|task| task.file_name().to_str()?.parse().ok());
        found.is_some()
    });
    found.unwrap()
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_forbidden_call_ends_the_server_with_a_message_and_the_image_is_intact() {
    if !has_fuse_and_root() {
        return;
    }
    let socket = [libc::AF_INET as u64, libc::SOCK_DGRAM as u64, 0, 0];
    for (number, args, name) in [
        (libc::SYS_socket, socket, "socket"),
        (libc::SYS_execve, [0; 4], "execve"),
        (libc::SYS_mount, [0; 4], "mount"),
        (libc::SYS_kill, [1, 0, 0, 0], "kill"),
    ] {
        let (dir, image) = empty_image(&[]);
        let log = dir.path().join("log");
        let mount = place();
        let option = format!("log={}", log.display());
        let mut server = foreground(&image, &mount, &["-o", &option]);
        runs(mount.path(), "seq 10000 > a; sync a; mkdir d; echo b > d/b; sync d/b d; echo late > late");
        forced::Stopped::new(thread_named(server.id(), "fuse-0")).go_on_with(number, args);
        let mut said = String::new();
        server.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(server.wait().unwrap().code(), Some(REFUSED_CALL), "{said}");
        let expected = format!("system call {name} ({number}) is not allowed by the sandbox");
        assert!(said.starts_with("extant: ") && said.contains(&expected), "{said}");
        let logged = std::fs::read_to_string(&log).unwrap();
        assert!(logged.contains(&expected) && logged.contains("error: "), "{logged}");
        drop(mount);

        // As after a power cut: what was synced is there.
        let mount = Mount::new(&image, &[]);
        assert_eq!(runs(mount.path(), "seq 10000 | cmp - a; cat d/b").trim(), "b");
        mount.unmount();
        e2fsck_clean(&image);
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_server_can_open_no_other_file() {
    if !has_fuse_and_root() {
        return;
    }
    let (dir, image) = empty_image(&[]);
    let mount = place();
    let mut server = foreground(&image, &mount, &[]);
    let stopped = forced::Stopped::new(thread_named(server.id(), "fuse-0"));
    let open = |path: &str, flags: i32| {
        stopped.call_with_path(libc::SYS_openat, path, [libc::AT_FDCWD as u64, 0, flags as u64, 0o600])
    };
    let refused = -i64::from(libc::EACCES);
    let other = dir.path().join("other");
    let image_path = image.to_str().unwrap();
    for (path, flags) in [
        ("/etc/passwd", libc::O_RDONLY),
        (image_path, libc::O_RDONLY),
        ("/", libc::O_RDONLY | libc::O_DIRECTORY),
        (other.to_str().unwrap(), libc::O_RDWR | libc::O_CREAT),
        ("/proc/sys/kernel/core_pattern", libc::O_WRONLY),
        ("/proc/1/root/etc/passwd", libc::O_RDONLY),
    ] {
        assert_eq!(open(path, flags), refused, "{path}");
    }
    // What it needs of callers.
    assert!(open("/proc/1/status", libc::O_RDONLY) > 0 && open("/proc/1/uid_map", libc::O_RDONLY) > 0);
    stopped.go_on();
    assert!(!other.exists());
    runs(mount.path(), "echo a > a");
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    assert!(server.wait().unwrap().success());
    e2fsck_clean(&image);
}
