//! Mounts of `extant mount` that are removed on drop, and shells in them.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;

use super::{Outcome, extant, outcome};

/// Time limit for operations that should take no time; the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// A mount that is removed on drop.
pub(crate) struct Mount {
    pub(crate) dir: tempfile::TempDir,
    _is_mounted: Option<std::fs::File>,
}

/// Locks out other tests that must not see this test's mounts, or whose mounts it must not see: a new mount
/// namespace has a copy of all mounts, which keeps their servers alive.
pub(crate) fn lock_mounts(how: FlockOperation) -> Option<std::fs::File> {
    // The part of a test that runs as an ordinary user has no access; the test itself may have the lock.
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mounts.lock");
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path).ok()?;
    rustix::fs::flock(&file, how).unwrap();
    Some(file)
}

impl Mount {
    /// A directory to mount on.
    pub(crate) fn unmounted() -> Self {
        Self {
            dir: tempfile::Builder::new().prefix("extant-fuse-").tempdir().unwrap(),
            _is_mounted: lock_mounts(FlockOperation::LockShared),
        }
    }

    /// Mounts for writing, as a daemon, with these additional arguments.
    #[track_caller]
    pub(crate) fn new(image: &Path, args: &[&str]) -> Self {
        let mount = Self::unmounted();
        mount.try_mount(image, args).code(0);
        mount
    }

    /// Mounts read-only, as a daemon, with these additional arguments.
    #[track_caller]
    pub(crate) fn read_only(image: &Path, args: &[&str]) -> Self {
        let mount = Self::unmounted();
        mount.try_mount_read_only(image, args).code(0);
        assert!(is_mounted(mount.path()), "the command returned, and nothing is mounted");
        mount
    }

    pub(crate) fn try_mount_read_only(&self, image: &Path, args: &[&str]) -> Outcome {
        outcome(binary().arg("mount").arg(image).arg(self.path()).args(args))
    }

    pub(crate) fn try_mount(&self, image: &Path, args: &[&str]) -> Outcome {
        outcome(binary().arg("mount").arg(image).arg(self.path()).args(["-o", "rw,suid,dev"]).args(args))
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The process that serves the mount.
    pub(crate) fn server(&self) -> rustix::process::Pid {
        let mut text = [0; 20];
        let len = rustix::fs::getxattr(self.path(), "extant.server", &mut text[..]).unwrap();
        let pid = std::str::from_utf8(&text[..len]).unwrap().parse().unwrap();
        rustix::process::Pid::from_raw(pid).unwrap()
    }

    #[track_caller]
    pub(crate) fn unmount(&self) {
        umounted(|| outcome(binary().arg("umount").arg(self.path())));
        assert!(!is_mounted(self.path()));
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if is_mounted(self.path()) {
            let program = if extant_testkit::is_root() { "umount" } else { "fusermount3" };
            let args: &[&str] = if extant_testkit::is_root() { &["-l"] } else { &["-u", "-z"] };
            let _ = extant_testkit::command(program).args(args).arg(self.path()).status();
        }
    }
}

/// The binary under test, or a copy of it that an ordinary user can reach.
pub(crate) fn binary() -> Command {
    match std::env::var_os("EXTANT_TEST_BINARY") {
        Some(copy) => {
            let mut command = Command::new(copy);
            command.stdin(Stdio::null());
            command
        }
        None => extant(),
    }
}

pub(crate) fn is_mounted(dir: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    table.lines().any(|line| line.split(' ').nth(4) == dir.to_str())
}

/// Unmounts with `umount` and asserts success. A program that another test starts inherits this process's
/// open files until its exec, including files that are closed here meanwhile: so the mount may be busy for
/// that long.
#[track_caller]
pub(crate) fn umounted(umount: impl Fn() -> Outcome) {
    let mut last = umount();
    wait_until("the mount is not in use", || {
        let is_in_use = last.stderr.contains("is in use");
        if is_in_use {
            last = umount();
        }
        !is_in_use
    });
    last.code(0);
}

/// Whether the process has ended. A zombie has.
pub(crate) fn has_ended(process: rustix::process::Pid) -> bool {
    match std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_pid())) {
        Ok(line) => line.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['Z', 'X'])),
        Err(_) => true,
    }
}

#[track_caller]
pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn has_fuse() -> bool {
    let opened = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    let helper =
        extant_testkit::is_root() || extant_testkit::command("fusermount3").arg("-V").output().is_ok();
    match opened {
        Ok(_) if helper => true,
        Ok(_) => {
            println!("skipped: not installed: fusermount3 (package fuse3)");
            false
        }
        Err(error) => {
            println!("skipped: no /dev/fuse: {error}");
            false
        }
    }
}

pub(crate) fn has_fuse_and_root() -> bool {
    if !extant_testkit::is_root() {
        println!("skipped: not root");
    }
    extant_testkit::is_root() && has_fuse()
}

/// An empty file system, made with these options of mke2fs, and its directory.
pub(crate) fn empty_image(options: &[&str]) -> (tempfile::TempDir, PathBuf) {
    let dir = extant_testkit::scratch();
    let image = dir.path().join("rw.img");
    let fixed = ["-q", "-F", "-t", "ext4", "-i", "8192", "-b", "4096"];
    let args = fixed.iter().chain(options).map(std::ffi::OsStr::new);
    extant_testkit::run("mke2fs", args.chain([image.as_os_str(), "128M".as_ref()]));
    (dir, image)
}

pub(crate) fn shell(dir: &Path, script: &str) -> Child {
    let mut command = extant_testkit::command("bash");
    command.arg("-c").arg(script).current_dir(dir).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[track_caller]
pub(crate) fn finish(shell: Child) -> String {
    let output = shell.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

#[track_caller]
pub(crate) fn runs(dir: &Path, script: &str) -> String {
    finish(shell(dir, script))
}
