//! `extant mount --namespace IMG -- COMMAND`, as root and as an ordinary user.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::FlockOperation;

use crate::common::mounted::{has_fuse, has_fuse_and_root, lock_mounts, wait_until};
use crate::common::{Outcome, USAGE, build, extant, outcome};

/// An ordinary user: the overflow id.
const ORDINARY: u32 = 65534;
/// Exit codes of the command's own: a signal N plus 128; it cannot be run; it does not exist.
const TERMINATED: i32 = 128 + 15;
const CANNOT_RUN: i32 = 126;
const NO_COMMAND: i32 = 127;
const UNREADABLE: i32 = 8;

/// An image that an ordinary user owns, with a directory of user 1000, and a program that the user can run.
struct Place {
    dir: tempfile::TempDir,
    image: PathBuf,
    binary: PathBuf,
    _no_mounts: Option<std::fs::File>,
}

impl Place {
    fn new() -> Self {
        let dir = extant_testkit::scratch();
        let (source, image) = (dir.path().join("source"), dir.path().join("a.img"));
        std::fs::create_dir_all(source.join("closed")).unwrap();
        std::fs::write(source.join("motd"), "hello\n").unwrap();
        std::fs::write(source.join("closed/file"), "secret\n").unwrap();
        std::fs::set_permissions(source.join("closed"), PermissionsExt::from_mode(0o700)).unwrap();
        if extant_testkit::is_root() {
            std::os::unix::fs::chown(source.join("closed"), Some(1000), Some(1000)).unwrap();
        }
        build(&image, ["--size", "16M", "--from"].map(AsRef::as_ref).into_iter().chain([source.as_os_str()]));
        let binary = dir.path().join("extant");
        std::fs::copy(env!("CARGO_BIN_EXE_extant"), &binary).unwrap();
        for path in [dir.path(), &binary] {
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
        }
        if extant_testkit::is_root() {
            std::os::unix::fs::chown(&image, Some(ORDINARY), Some(ORDINARY)).unwrap();
        }
        Self { dir, image, binary, _no_mounts: lock_mounts(FlockOperation::LockExclusive) }
    }

    /// The command line, by an ordinary user if this process is root.
    fn command(&self, args: &[&str], words: &[&str]) -> Command {
        let mut command = if extant_testkit::is_root() {
            let mut command = extant_testkit::command("setpriv");
            let user =
                [format!("--reuid={ORDINARY}"), format!("--regid={ORDINARY}"), "--clear-groups".into()];
            command.args(user).arg(&self.binary);
            command
        } else {
            Command::new(&self.binary)
        };
        command.args(["mount", "--namespace"]).args(args).arg(&self.image).arg("--").args(words);
        // Directories of PATH that the user may not search would change what a missing program is.
        command.current_dir("/").env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin").stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str], words: &[&str]) -> Outcome {
        outcome(&mut self.command(args, words))
    }
}

/// Where user namespaces are forbidden, the command says which setting forbids them.
fn has_namespaces(place: &Place) -> bool {
    let tried = place.run(&[], &["true"]);
    let is_off = tried.code != 0 && tried.stderr.contains("user namespace");
    if is_off {
        println!("skipped: {}", tried.stderr);
    }
    !is_off
}

#[test]
fn an_ordinary_user_runs_a_command_in_an_image() {
    let place = Place::new();
    if !has_fuse() || !has_namespaces(&place) {
        return;
    }
    let listed = place.run(&[], &["ls"]);
    assert_eq!((listed.code(0), &*listed.stdout), ("", "closed\nlost+found\nmotd\n"));
    // The user is root there, in the mount. Modes are no hindrance, and nothing can be changed.
    let script = "id -u; cat motd closed/file; [ $PWD = $EXTANT_MOUNT ] && pwd; touch motd 2>&1; exit 7";
    let said = place.run(&[], &["sh", "-c", script]);
    assert_eq!(said.code(7), "");
    let lines: Vec<&str> = said.stdout.lines().collect();
    assert_eq!(lines[..3], ["0", "hello", "secret"]);
    assert!(lines[4].contains("Read-only file system"), "{lines:?}");
    // Nothing of it is visible here, and the temporary directory is removed.
    assert!(!Path::new(lines[3]).exists(), "{}", lines[3]);
    let at = place.dir.path().join("at");
    std::fs::create_dir(&at).unwrap();
    let said = place.run(&["--at", at.to_str().unwrap()], &["pwd"]);
    assert_eq!((said.code(0), said.stdout.trim()), ("", at.to_str().unwrap()));
    assert!(std::fs::read_dir(&at).unwrap().next().is_none());
    let chroot = place.run(&[], &["chroot", ".", "/nothing"]);
    assert!(chroot.code(NO_COMMAND).contains("/nothing"), "{}", chroot.stderr);
}

#[test]
fn what_the_command_writes_is_in_the_image_when_it_has_ended() {
    let place = Place::new();
    if !has_fuse() || !has_namespaces(&place) {
        return;
    }
    place.run(&["-o", "rw"], &["sh", "-c", "echo new >new; mkdir -p a/b"]).code(0);
    extant_testkit::e2fsck_clean(&place.image);
    let read = || outcome(extant().arg("cat").arg(format!("{}:/new", place.image.display()))).stdout;
    assert_eq!(read(), "new\n");
    // A process that stays behind loses the mount.
    let script = "sleep 60 >/dev/null 2>&1 & echo $!; echo more >>new";
    let left = place.run(&["-o", "rw"], &["sh", "-c", script]);
    assert!(left.code(0).contains("(sleep) works in"), "{}", left.stderr);
    let sleep = left.stdout.trim().parse().ok().and_then(rustix::process::Pid::from_raw).unwrap();
    rustix::process::kill_process(sleep, rustix::process::Signal::KILL).unwrap();
    extant_testkit::e2fsck_clean(&place.image);
    assert_eq!(read(), "new\nmore\n");
}

#[test]
fn signals_reach_the_command_and_its_end_is_the_exit_code() {
    let place = Place::new();
    if !has_fuse() || !has_namespaces(&place) {
        return;
    }
    place.run(&[], &["sh", "-c", "kill -TERM $$"]).code(TERMINATED);
    assert!(place.run(&[], &["not-there"]).code(NO_COMMAND).contains("not-there"));
    assert!(place.run(&[], &["./motd"]).code(CANNOT_RUN).contains("./motd"));
    // Forwarded, caught by the command, and no reason to lose a write.
    let ready = place.dir.path().join("ready");
    std::fs::write(&ready, "").unwrap();
    std::fs::set_permissions(&ready, PermissionsExt::from_mode(0o666)).unwrap();
    let script = format!(
        "trap 'echo caught >caught; exit 5' TERM; echo x >{}; while :; do sleep 0.1; done",
        ready.display()
    );
    let child = place.command(&["-o", "rw"], &["sh", "-c", &script]).spawn().unwrap();
    wait_until("the command runs", || !std::fs::read(&ready).unwrap().is_empty());
    // setpriv executes the program in its own process.
    let process = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(5));
    extant_testkit::e2fsck_clean(&place.image);
    let read = outcome(extant().arg("cat").arg(format!("{}:/caught", place.image.display())));
    assert_eq!(read.stdout, "caught\n");
}

/// The server closes the image, although nothing can unmount it from outside.
#[test]
fn the_server_ends_with_the_process_that_started_it() {
    let place = Place::new();
    if !has_fuse() || !has_namespaces(&place) {
        return;
    }
    let pid = place.dir.path().join("pid");
    std::fs::write(&pid, "").unwrap();
    std::fs::set_permissions(&pid, PermissionsExt::from_mode(0o666)).unwrap();
    let script = format!("echo new >new; echo $$ >{}; exec sleep 60", pid.display());
    let mut child = place.command(&["-o", "rw"], &["sh", "-c", &script]).spawn().unwrap();
    wait_until("the command runs", || std::fs::read_to_string(&pid).unwrap().ends_with('\n'));
    child.kill().unwrap();
    child.wait().unwrap();
    // Read-write, so it locks the image while it runs.
    wait_until("the image is free", || {
        outcome(extant().arg("touch").arg(format!("{}:/motd", place.image.display()))).code == 0
    });
    extant_testkit::e2fsck_clean(&place.image);
    let command: i32 = std::fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
    let command = rustix::process::Pid::from_raw(command).unwrap();
    let _ = rustix::process::kill_process(command, rustix::process::Signal::KILL);
}

#[test]
fn root_keeps_all_ids() {
    if !has_fuse_and_root() {
        return;
    }
    let place = Place::new();
    let mut command = extant();
    command.args(["mount", "--namespace", "-o", "rw"]).arg(&place.image).args(["--", "sh", "-c"]);
    let said = outcome(command.arg("stat -c %u closed; chown 1234:5 motd; stat -c %u:%g motd"));
    assert_eq!((said.code(0), &*said.stdout), ("", "1000\n1234:5\n"));
}

#[test]
fn what_goes_wrong_before_the_command_has_the_codes_of_mount() {
    let place = Place::new();
    if !has_fuse() || !has_namespaces(&place) {
        return;
    }
    std::fs::write(&place.image, [0; 8192]).unwrap();
    place.run(&[], &["true"]).code(UNREADABLE);
    let extra = outcome(extant().args(["mount", "a.img", "b", "c"]));
    assert!(extra.code(USAGE).contains("one argument too many: c"), "{}", extra.stderr);
    if extant_testkit::is_root() {
        // A limit of 0 holds in the namespace where it is set, and below.
        let script = format!(
            "echo 0 >/proc/sys/user/max_user_namespaces; exec setpriv --bounding-set=-sys_admin \
             --inh-caps=-sys_admin {} mount --namespace {} -- true",
            place.binary.display(),
            place.image.display()
        );
        let off = outcome(extant_testkit::command("unshare").args(["-Ur", "sh", "-c", &script]));
        assert!(off.code(1).contains("sysctl -w user.max_user_namespaces="), "{}", off.stderr);
    }
}
