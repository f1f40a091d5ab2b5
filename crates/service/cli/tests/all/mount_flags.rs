//! The effect of flags and permission bits on every operation through a mount, compared with the kernel's
//! ext4: the same script runs on both, and its output must be equal. Also the results of asynchronous writes
//! with O_DIRECT, and ioctls on the file system.
//!
//! Needs /dev/fuse, root and loop devices. Without them, tests print a note and pass.

use crate::common;

use std::path::Path;

use crate::common::mounted::{Mount, empty_image, finish, has_fuse, has_fuse_and_root, runs, shell};
use extant_testkit::e2fsck_clean;

/// Runs a perl script in an empty file system of the kernel and in one of extant. Asserts that the outputs
/// are equal, and have at least this many lines.
#[track_caller]
fn same_as_kernel(script: &str, lines_min: usize) {
    if !has_fuse_and_root() {
        return;
    }
    let (dir, image) = empty_image(&[]);
    let ours = {
        let mount = Mount::new(&image, &["-o", "allow_other"]);
        let printed = run_perl(dir.path(), mount.path(), script);
        mount.unmount();
        e2fsck_clean(&image);
        printed
    };
    let (dir, image) = empty_image(&[]);
    let mnt = dir.path().join("kernel");
    std::fs::create_dir(&mnt).unwrap();
    let mounted =
        extant_testkit::command("mount").arg("-o").arg("loop").args([&image, &mnt]).status().unwrap();
    if !mounted.success() {
        println!("skipped: not root, or no loop device");
        return;
    }
    let unmount = Unmount(&mnt);
    let theirs = run_perl(dir.path(), &mnt, script);
    drop(unmount);
    assert!(theirs.lines().count() >= lines_min, "{theirs}");
    let differ: Vec<_> = theirs.lines().zip(ours.lines()).filter(|(kernel, ours)| kernel != ours).collect();
    assert!(differ.is_empty(), "kernel and ours: {differ:#?}");
    assert_eq!(theirs.lines().count(), ours.lines().count());
}

struct Unmount<'a>(&'a Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        let _ = extant_testkit::command("umount").arg(self.0).status();
    }
}

fn run_perl(scratch: &Path, dir: &Path, script: &str) -> String {
    let file = scratch.join("script.pl");
    std::fs::write(&file, script).unwrap();
    runs(dir, &format!("perl {} 2>/dev/null", file.display()))
}

/// Each of +i, +a, both and neither, on files and directories, with every kind of open and change.
#[test]
fn immutable_and_append_only_refuse_what_the_kernel_refuses() {
    same_as_kernel(include_str!("mount_flags/operations.pl"), 370);
}

/// Each bit of FS_IOC_SETFLAGS and FS_IOC_FSSETXATTR, on files and directories, by owners and other users,
/// and the inherited flags.
#[test]
fn flags_are_taken_and_refused_as_by_the_kernel() {
    same_as_kernel(include_str!("mount_flags/flags.pl"), 260);
}

/// Modes with set-id bits, for each kind of user and of change.
#[test]
fn set_id_bits_go_when_the_kernel_takes_them() {
    same_as_kernel(include_str!("mount_flags/setid.pl"), 1000);
}

/// One process writes with io_submit and O_DIRECT, and reads the bytes through the page cache, while two
/// others fill the cache.
#[test]
fn direct_writes_are_read_through_the_page_cache() {
    if !has_fuse() || extant_testkit::command("python3").arg("-V").output().is_err() {
        return;
    }
    let (dir, image) = empty_image(&[]);
    let mount = Mount::new(&image, &[]);
    let script = dir.path().join("async_direct.py");
    std::fs::write(&script, include_str!("mount_flags/async_direct.py")).unwrap();
    let said = runs(mount.path(), &format!("timeout 100 python3 {} f 100", script.display()));
    assert!(said.starts_with("ok"), "{said}");
    mount.unmount();
    e2fsck_clean(&image);
}

/// Calls an ioctl with perl, because no crate provides it. Returns the answer in hexadecimal, or the errno.
fn ioctl(dir: &Path, number: &str, input: &str) -> String {
    let script = format!(
        "perl -e 'open D, \"<\", \".\" or die; my $a = {input}; print ioctl(D, {number}, $a) ? unpack(\"H*\", $a) : $! + 0'"
    );
    finish(shell(dir, &script))
}

#[test]
fn the_file_system_as_a_whole_answers_ioctls() {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = empty_image(&["-L", "old", "-U", "00112233-4455-6677-8899-aabbccddeeff"]);
    let mount = Mount::new(&image, &[]);
    let dir = mount.path();
    let label = || ioctl(dir, "0x81009431", "\"\\0\" x 256");
    assert!(label().starts_with("6f6c6400"), "{}", label());
    // FS_IOC_SETFSLABEL; 17 bytes are too long.
    assert_eq!(ioctl(dir, "0x41009432", "\"x\" x 17 . \"\\0\" x 239"), "22");
    let changed = ioctl(dir, "0x41009432", "\"new label\" . \"\\0\" x 247");
    assert!(changed.starts_with("6e6577"), "{changed}");
    assert!(label().starts_with("6e6577206c6162656c00"), "{}", label());
    // EXT4_IOC_GETFSUUID: returns the length of a UUID.
    assert!(ioctl(dir, "0x8008662c", "\"\\0\" x 8").starts_with("1000000000000000"));
    // FITRIM. In an image file, all free space becomes a hole.
    let range = |start: u64, len: u64, min: u64| format!("pack(\"Q3\", {start}, {len}, {min})");
    let trimmed = |answer: &str| {
        let len: Vec<u8> =
            (16..32).step_by(2).map(|at| u8::from_str_radix(&answer[at..at + 2], 16).unwrap()).collect();
        u64::from_ne_bytes(len.try_into().unwrap())
    };
    let answer = ioctl(dir, "0xC0185879", &range(0, u64::MAX, 0));
    if answer == "95" {
        println!("skipped: no holes in the scratch directory");
    } else {
        let all = trimmed(&answer);
        assert!(all > 100 << 20 && all < 128 << 20, "{all}");
        let some = trimmed(&ioctl(dir, "0xC0185879", &range(64 << 20, 8 << 20, 4096)));
        assert!(some > 4 << 20 && some <= 8 << 20, "{some}");
    }
    assert_eq!(ioctl(dir, "0xC0185879", &range(1 << 40, 1 << 20, 0)), "22");
    assert_eq!(ioctl(dir, "0xC0185879", &range(0, 100, 0)), "22");
    mount.unmount();
    e2fsck_clean(&image);
    let said = extant_testkit::command("dumpe2fs").arg("-h").arg(&image).output().unwrap().stdout;
    assert!(String::from_utf8_lossy(&said).contains("volume name:   new label"), "label");
}

/// Writes stay in memory for seconds; `commit=1` sets the number.
#[test]
fn with_a_short_interval_of_commits_what_was_written_is_soon_on_the_device() {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = empty_image(&[]);
    let mount = Mount::new(&image, &["-o", "commit=1"]);
    std::fs::write(mount.path().join("f"), [0x5A; 5000]).unwrap();
    std::thread::sleep(std::time::Duration::from_secs(5));
    let server = mount.server();
    rustix::process::kill_process(server, rustix::process::Signal::KILL).unwrap();
    common::mounted::wait_until("the server ends", || common::mounted::has_ended(server));
    mount.unmount();
    mount.try_mount(&image, &[]).code(0);
    assert_eq!(std::fs::read(mount.path().join("f")).unwrap(), [0x5A; 5000]);
    mount.unmount();
    e2fsck_clean(&image);
}
