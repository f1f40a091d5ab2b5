//! What a confined process can do and what not, tried in a process of its own, which is this program again:
//! from a thread that was started before the sandbox was entered, and from one that was started afterwards.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, parent_id};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;

use extant_sandbox::{Access, CAP_SYS_NICE, OnRefusal, Sandbox};
use rustix::process::Pid;

/// Set in the process that tries: profile and call.
const TRIES: &str = "EXTANT_TEST_TRIES";
/// The file that the call opens, and one that gets the message, too.
const FILE: &str = "EXTANT_TEST_FILE";
const LOG: &str = "EXTANT_TEST_LOG";

/// Exit code after a refused call.
const REFUSED: i32 = 71;

/// Exit code, standard output, standard error.
fn tried(profile: &str, call: &str, files: &[&Path]) -> (Option<i32>, String, String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "the_process_that_tries", "--nocapture"])
        .env(TRIES, format!("{profile} {call}"));
    for (name, file) in [FILE, LOG].into_iter().zip(files) {
        command.env(name, file);
    }
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Whether this kernel lacks a part of the sandbox.
fn lacks(part: &str) -> bool {
    let (_, out, _) = tried("server", "pipe", &[]);
    let missing = out.contains(part);
    if missing {
        println!("skipped: this kernel has no {part}");
    }
    missing
}

#[test]
fn forbidden_calls_end_the_process_with_a_message() {
    if lacks("seccomp") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    for profile in ["server", "rings", "command"] {
        for (call, name) in [("socket", "socket"), ("exec", "execve"), ("mount", "mount"), ("kill", "kill")] {
            std::fs::write(&log, "").unwrap();
            let (code, out, error) = tried(profile, call, &[Path::new("/"), &log]);
            assert_eq!(code, Some(REFUSED), "{profile} {call}: {out}{error}");
            let message = format!("a.img: system call {name} (");
            assert!(error.starts_with("extant: ") && error.contains(&message), "{error}");
            let logged = std::fs::read_to_string(&log).unwrap();
            assert!(logged.starts_with(&format!("prefix: {message}")) && logged.ends_with('\n'), "{logged}");
        }
        let (code, out, _) = tried(profile, "pipe", &[]);
        assert_eq!((code, out.matches("done\n").count()), (Some(0), 2), "{out}");
    }
}

#[test]
fn files_outside_cannot_be_opened_by_any_thread() {
    if lacks("landlock") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (there, new) = (dir.path().join("there"), dir.path().join("new"));
    std::fs::write(&there, "secret").unwrap();
    let refused = format!("error {}\n", rustix::io::Errno::ACCESS.raw_os_error());
    for profile in ["server", "rings", "command"] {
        for (call, file) in [("read", &there), ("create", &new), ("create", &there)] {
            let (code, out, error) = tried(profile, call, &[file]);
            assert_eq!(code, Some(0), "{error}");
            assert_eq!(out.matches(&refused).count(), 2, "{profile} {call}: {out}");
        }
        let (_, out, _) = tried(profile, "read", &[Path::new("/proc/self/status")]);
        assert_eq!(out.matches("done\n").count(), 2, "{out}");
    }
    assert_eq!(std::fs::read(&there).unwrap(), b"secret");
    assert!(!new.exists());
}

#[test]
fn every_thread_has_given_up_its_privileges() {
    let (code, out, error) = tried("server", "status", &[]);
    assert_eq!(code, Some(0), "{error}");
    let threads = |line: &str| out.lines().filter(|found| found.ends_with(line)).count();
    // The harness, the test and the thread that the test started.
    assert_eq!(threads("NoNewPrivs:\t1"), 3, "{out}");
    let effective = out
        .lines()
        .filter(|line| line.contains("CapEff:"))
        .all(|line| line.ends_with("0000000000800000") || line.ends_with("0000000000000000"));
    assert!(effective, "{out}");
    if !lacks("seccomp") {
        assert_eq!(threads("Seccomp:\t2"), 3, "{out}");
    }
}

/// Run by the other tests in a process of its own. A call that comes back prints its result; one that is
/// refused never does.
#[test]
fn the_process_that_tries() {
    let Ok(tries) = std::env::var(TRIES) else { return };
    let (profile, call) = tries.split_once(' ').unwrap();
    let file = std::env::var(FILE).unwrap_or_default();
    let log = std::env::var_os(LOG).map(|path| File::options().append(true).open(path).unwrap());
    let parent = Pid::from_raw(parent_id().cast_signed()).unwrap();
    // Threads from before the sandbox, too: one makes the call, all report their status.
    let (give, take) = mpsc::channel::<()>();
    let (answer, answers) = mpsc::channel();
    let early = {
        let (call, file) = (call.to_owned(), file.clone());
        std::thread::spawn(move || {
            take.recv().unwrap();
            answer.send(made(&call, &file, parent)).unwrap();
        })
    };
    let mut on_refusal = OnRefusal::exit_with(71, "a.img");
    if let Some(log) = &log {
        on_refusal = on_refusal.with_log(log.as_fd(), b"prefix: ".to_vec());
    }
    let sandbox = match profile {
        "server" | "rings" => Sandbox::server(on_refusal)
            .with_rings(profile == "rings")
            .keep_capabilities(CAP_SYS_NICE)
            .allow("/proc", Access::ReadFiles),
        "command" => Sandbox::command(on_refusal).allow("/proc", Access::Read),
        other => panic!("{other}: no such profile"),
    };
    // Afterwards the directory cannot be listed.
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let threads: Vec<String> = tasks.map(|task| task.file_name().into_string().unwrap()).collect();
    let entered = sandbox.enter().unwrap();
    println!("missing: {:?}", entered.missing);
    if call == "status" {
        println!("{}", status_of(&threads));
        return;
    }
    give.send(()).unwrap();
    println!("{}", answers.recv().unwrap());
    early.join().unwrap();
    // A thread that starts afterwards.
    let late = std::thread::spawn({
        let (call, file) = (call.to_owned(), file.clone());
        move || made(&call, &file, parent)
    });
    println!("{}", late.join().unwrap());
}

/// The lines of these threads that matter here.
fn status_of(threads: &[String]) -> String {
    let lines = threads.iter().filter_map(|thread| {
        let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).ok()?;
        let wanted = ["Seccomp:", "NoNewPrivs:", "CapEff:", "CapBnd:"];
        let lines = text.lines().filter(|line| wanted.iter().any(|name| line.starts_with(name)));
        Some(lines.map(|line| format!("{thread} {line}\n")).collect::<String>())
    });
    lines.collect()
}

/// Makes the call; its result as text.
fn made(call: &str, file: &str, parent: Pid) -> String {
    let shown = |result: std::io::Result<()>| match result {
        Ok(()) => "done".to_owned(),
        Err(error) => format!("error {}", error.raw_os_error().unwrap_or(-1)),
    };
    shown(match call {
        "read" => std::fs::read(file).map(drop),
        "create" => File::create(file).map(drop),
        "socket" => std::net::UdpSocket::bind("127.0.0.1:0").map(drop),
        "exec" => Err(std::process::Command::new("/bin/true").exec()),
        "mount" => rustix::mount::mount("none", "/", "tmpfs", rustix::mount::MountFlags::empty(), None)
            .map_err(Into::into),
        "kill" => rustix::process::test_kill_process(parent).map_err(Into::into),
        "pipe" => rustix::pipe::pipe().map(drop).map_err(Into::into),
        other => panic!("{other}: no such call"),
    })
}
