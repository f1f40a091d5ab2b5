//! `extant mount`: the mount shows what the kernel's mount shows; daemons start, serve and end.
//!
//! Needs /dev/fuse; comparisons with the kernel also need root. Without them, tests print a note and pass.

use crate::common;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::common::mounted::{
    Mount, has_ended, has_fuse, has_fuse_and_root, is_mounted, umounted, wait_until,
};
use crate::common::{USAGE, extant, outcome, run};
use extant_testkit::{DiffOptions, LoopMount, Manifest, diff, matrix};
use sha2::{Digest, Sha256};

/// The image cannot be read.
const UNREADABLE: i32 = 8;
/// Mounting or unmounting failed.
const FAILED: i32 = 1;
/// An ordinary user: the uid of `nobody`.
const NOBODY: u32 = 65534;

/// The comparison of both mounts: FUSE has no birth times here, and no FIEMAP.
fn comparable(block_size: u64) -> DiffOptions {
    DiffOptions { btime: false, extents: false, ..DiffOptions::exact(block_size) }
}

/// The kernel's replay of names in a fast commit sets the times of their directories to the time of the
/// replay.
fn take_times_of_directories(ours: &mut Manifest, theirs: &Manifest) {
    for (path, entry) in
        ours.entries.iter_mut().filter(|(_, entry)| entry.kind == extant_testkit::Kind::Directory)
    {
        if let Some(other) = theirs.entries.get(path) {
            (entry.mtime, entry.ctime) = (other.mtime, other.ctime);
        }
    }
}

fn block_size(dir: &Path) -> u64 {
    rustix::fs::statvfs(dir).unwrap().f_bsize
}

/// An image of a tree with all unusual contents, and its directory.
fn odd_image() -> (tempfile::TempDir, PathBuf) {
    let dir = extant_testkit::scratch();
    let source = dir.path().join("source");
    std::fs::create_dir(&source).unwrap();
    extant_testkit::trees::adversarial(&source);
    let image = dir.path().join("odd.img");
    common::build(&image, ["--from".as_ref(), source.as_os_str()]);
    (dir, image)
}

/// A small image with one file with this content.
fn small_image(content: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let dir = extant_testkit::scratch();
    let source = dir.path().join("source");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("file"), content).unwrap();
    std::fs::create_dir(source.join("directory")).unwrap();
    let image = dir.path().join("small.img");
    common::build(&image, ["--from".as_ref(), source.as_os_str()]);
    (dir, image)
}

#[test]
fn the_mount_of_every_image_of_the_matrix_shows_what_the_kernels_mount_shows() {
    if !has_fuse_and_root() {
        return;
    }
    // Every third image, because the tests of `volume` read all of them; with EXTANT_MATRIX all.
    let step = if std::env::var_os("EXTANT_MATRIX").is_some() { 1 } else { 3 };
    // The kernel spells the names of encrypted trees differently.
    let recipes: Vec<matrix::Recipe> = matrix::recipes()
        .into_iter()
        .filter(|recipe| recipe.judge == matrix::Judge::Kernel && !recipe.name.contains("encrypt"))
        .step_by(step)
        .collect();
    let dir = extant_testkit::scratch();
    let mut compared = 0;
    let mut failures = Vec::new();
    for outcome in matrix::build_all(&recipes, dir.path(), 2) {
        let built = match outcome.built {
            Ok(built) => built,
            Err(why) => {
                println!("{}: not built here: {why}", outcome.recipe.name);
                continue;
            }
        };
        // A kernel without fs-verity, for example, mounts images that it cannot read completely.
        let Ok(theirs) = std::panic::catch_unwind(|| built.manifest()) else {
            println!("{}: this kernel cannot read it all, see above", built.name);
            continue;
        };
        let journal = built.journal.as_ref().map(|journal| format!("journal_dev={}", journal.display()));
        let options: Vec<&str> = journal.iter().flat_map(|journal| ["-o", journal.as_str()]).collect();
        let mount = Mount::read_only(&built.image, &options);
        let mut ours = Manifest::of(mount.path());
        if built.name.contains("fast-commit") && built.dirty {
            take_times_of_directories(&mut ours, &theirs);
        }
        let lines = diff(&theirs, &ours, &comparable(block_size(mount.path())));
        if !lines.is_empty() {
            failures.push(format!("{}:\n  {}", built.name, lines.join("\n  ")));
        }
        mount.unmount();
        compared += 1;
        built.delete();
    }
    assert!(failures.is_empty(), "{} of {compared} differ:\n{}", failures.len(), failures.join("\n"));
    println!("{compared} mounts are equal");
    assert!(compared >= 40 / step, "only {compared} images were compared");
}

#[test]
fn one_two_and_many_threads_show_the_same_tree() {
    if !has_fuse_and_root() {
        return;
    }
    let (_dir, image) = odd_image();
    let kernel = LoopMount::new(&image, "ro,noatime").unwrap();
    let theirs = Manifest::of(kernel.path());
    for threads in ["1", "2", "16"] {
        let mount = Mount::read_only(&image, &["--threads", threads]);
        let lines = diff(&theirs, &Manifest::of(mount.path()), &comparable(block_size(mount.path())));
        assert!(lines.is_empty(), "{threads} threads:\n{}", lines.join("\n"));
        // Again, from the kernel's cache.
        let lines = diff(&theirs, &Manifest::of(mount.path()), &comparable(block_size(mount.path())));
        assert!(lines.is_empty(), "{threads} threads, second time:\n{}", lines.join("\n"));
    }
}

#[test]
fn statfs_agrees_with_the_kernel() {
    if !has_fuse_and_root() {
        return;
    }
    let (_dir, image) = odd_image();
    let kernel = LoopMount::new(&image, "ro").unwrap();
    let mount = Mount::read_only(&image, &[]);
    let all = |dir: &Path| {
        let all = rustix::fs::statvfs(dir).unwrap();
        let blocks = (all.f_bsize, all.f_frsize, all.f_blocks, all.f_bfree, all.f_bavail);
        (blocks, all.f_files, all.f_ffree, all.f_namemax)
    };
    assert_eq!(all(mount.path()), all(kernel.path()));
}

#[test]
fn inode_flags_and_versions_can_be_asked_for() {
    if !has_fuse_and_root() {
        return;
    }
    let dir = extant_testkit::scratch();
    let image = dir.path().join("flags.img");
    extant_testkit::run("mke2fs", ["-q", "-t", "ext4", image.to_str().unwrap(), "16M"]);
    {
        let kernel = LoopMount::new(&image, "rw").unwrap();
        std::fs::write(kernel.path().join("file"), b"x").unwrap();
        std::fs::create_dir(kernel.path().join("directory")).unwrap();
        for (flags, name) in [("+di", "file"), ("+dAT", "directory")] {
            let name = kernel.path().join(name);
            extant_testkit::run("chattr", [flags.as_ref(), name.as_os_str()]);
        }
    }
    let lsattr = |dir: &Path| {
        let output = extant_testkit::command("lsattr").args(["-v", "."]).current_dir(dir).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let theirs = lsattr(LoopMount::new(&image, "ro").unwrap().path());
    let mount = Mount::read_only(&image, &[]);
    assert_eq!(lsattr(mount.path()), theirs);
}

/// Starts tar for the archive of a tree, with names in order.
fn tar_of(dir: &Path) -> Child {
    extant_testkit::command("tar")
        .args(["--sort=name", "--format=posix", "--pax-option=delete=atime,delete=ctime", "-cf", "-", "."])
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn digest(mut tar: Child) -> String {
    let mut hash = Sha256::new();
    let mut stdout = tar.stdout.take().unwrap();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match std::io::Read::read(&mut stdout, &mut buffer).unwrap() {
            0 => break,
            len => hash.update(&buffer[..len]),
        }
    }
    assert!(tar.wait().unwrap().success());
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn four_tars_at_the_same_time_are_right() {
    if !has_fuse_and_root() {
        return;
    }
    let dir = extant_testkit::scratch();
    let source = dir.path().join("source");
    std::fs::create_dir(&source).unwrap();
    extant_testkit::trees::many(&source, 20_000, 7);
    let image = dir.path().join("many.img");
    common::build(&image, ["--from".as_ref(), source.as_os_str()]);
    let expected = {
        let kernel = LoopMount::new(&image, "ro,noatime").unwrap();
        digest(tar_of(kernel.path()))
    };
    let mount = Mount::read_only(&image, &[]);
    let tars: Vec<_> = (0..4).map(|_| tar_of(mount.path())).collect();
    let digests: Vec<String> = tars
        .into_iter()
        .map(|tar| std::thread::spawn(move || digest(tar)))
        .map(|t| t.join().unwrap())
        .collect();
    assert_eq!(digests, vec![expected; 4]);
}

#[test]
fn nothing_can_be_changed() {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = small_image(b"content");
    let before = Sha256::digest(std::fs::read(&image).unwrap());
    let mount = Mount::read_only(&image, &[]);
    let file = mount.path().join("file");
    let refused = |what: &str, result: std::io::Result<()>| {
        let error = result.expect_err(what);
        assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem, "{what}: {error}");
    };
    refused("write", std::fs::write(&file, b"other"));
    refused("create", std::fs::write(mount.path().join("new"), b""));
    refused("mkdir", std::fs::create_dir(mount.path().join("new")));
    refused("unlink", std::fs::remove_file(&file));
    refused("rmdir", std::fs::remove_dir(mount.path().join("directory")));
    refused("rename", std::fs::rename(&file, mount.path().join("new")));
    refused("symlink", std::os::unix::fs::symlink("x", mount.path().join("new")));
    refused("chmod", std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)));
    assert_eq!(std::fs::read(&file).unwrap(), b"content");
    mount.unmount();
    assert_eq!(Sha256::digest(std::fs::read(&image).unwrap()), before);
}

#[test]
fn the_command_returns_when_the_mount_answers_and_umount_when_the_server_is_gone() {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = small_image(b"content");
    let mount = Mount::read_only(&image, &[]);
    assert_eq!(std::fs::read(mount.path().join("file")).unwrap(), b"content");
    let missing = std::fs::read(mount.path().join("missing")).unwrap_err();
    assert_eq!(missing.kind(), std::io::ErrorKind::NotFound);
    let server = mount.server();
    // The daemon has released the terminal and this directory.
    let of = |what: &str| std::fs::read_link(format!("/proc/{}/{what}", server.as_raw_pid())).unwrap();
    assert_eq!(of("cwd"), Path::new("/"));
    for descriptor in ["fd/0", "fd/1", "fd/2"] {
        assert_eq!(of(descriptor), Path::new("/dev/null"), "{descriptor}");
    }
    assert_eq!(rustix::process::getsid(Some(server)).unwrap(), server);
    umounted(|| run([Path::new("umount"), mount.path()]));
    assert!(has_ended(server), "the server still runs");
}

#[test]
fn a_daemon_unmounts_on_signals_and_ends() {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = small_image(b"content");
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT, rustix::process::Signal::HUP]
    {
        let mount = Mount::read_only(&image, &[]);
        let server = mount.server();
        rustix::process::kill_process(server, signal).unwrap();
        wait_until("the server ends", || has_ended(server));
        assert!(!is_mounted(mount.path()), "{signal:?}");
    }
}

/// Starts `extant mount -f`. Returns the line that it printed.
fn foreground(image: &Path, dir: &Path) -> (Child, String) {
    let mut command = extant();
    command.arg("mount").arg("-f").arg(image).arg(dir).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, line)
}

#[test]
fn in_the_foreground_one_line_is_printed_and_a_signal_is_a_clean_end() {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = small_image(b"content");
    let mount = Mount::unmounted();
    let (mut child, line) = foreground(&image, mount.path());
    assert!(line.contains("is mounted on") && line.contains("extant umount"), "{line}");
    assert_eq!(std::fs::read(mount.path().join("file")).unwrap(), b"content");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!is_mounted(mount.path()));

    // It also ends after an unmount by another process.
    let (mut child, _) = foreground(&image, mount.path());
    mount.unmount();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_mount_in_use_is_refused_to_umount_given_up_lazily_and_let_go_by_a_signal() {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = small_image(b"content");
    let mount = Mount::read_only(&image, &[]);
    let file = std::fs::File::open(mount.path().join("file")).unwrap();
    let refused = run([Path::new("umount"), mount.path()]);
    assert!(refused.code(FAILED).contains("-l"), "{}", refused.stderr);
    assert!(is_mounted(mount.path()));
    outcome(extant().args(["umount", "-l"]).arg(mount.path())).code(0);
    assert!(!is_mounted(mount.path()));
    assert_eq!(std::io::read_to_string(&file).unwrap(), "content");
    drop(file);

    mount.try_mount_read_only(&image, &[]).code(0);
    let file = std::fs::File::open(mount.path().join("file")).unwrap();
    let server = mount.server();
    rustix::process::kill_process(server, rustix::process::Signal::TERM).unwrap();
    wait_until("the server ends", || has_ended(server));
    assert!(!is_mounted(mount.path()));
    drop(file);
}

#[test]
fn a_killed_server_leaves_a_mount_that_umount_clears_away() {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = small_image(b"content");
    let mount = Mount::read_only(&image, &[]);
    let server = mount.server();
    rustix::process::kill_process(server, rustix::process::Signal::KILL).unwrap();
    wait_until("the server ends", || has_ended(server));
    assert!(is_mounted(mount.path()));
    mount.unmount();
}

#[test]
fn options_reach_the_table_of_mounts() {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = small_image(b"content");
    let line = |mount: &Mount| {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        table.lines().find(|line| line.contains(mount.path().to_str().unwrap())).unwrap().to_owned()
    };
    let mount = Mount::read_only(&image, &[]);
    let plain = line(&mount);
    assert!(plain.contains(&format!("- fuse.extant {} ro", image.display())), "{plain}");
    assert!(plain.contains(" ro,nosuid,nodev"), "{plain}");
    assert_eq!(plain.contains("default_permissions"), extant_testkit::is_root(), "{plain}");
    mount.unmount();
    let mount = Mount::read_only(&image, &["-o", "ro,fsname=somewhere", "-o", "subtype=other,noexec"]);
    let other = line(&mount);
    assert!(other.contains("- fuse.other somewhere ro") && other.contains("noexec"), "{other}");
    // The mount itself reports that it is one of extant's.
    mount.unmount();
}

#[test]
fn mistakes_are_explained() {
    let dir = extant_testkit::scratch();
    let at = |name: &str| dir.path().join(name);
    let (_small, image) = small_image(b"content");
    std::fs::create_dir(at("mnt")).unwrap();
    std::fs::write(at("garbage.img"), vec![7; 1 << 20]).unwrap();
    let try_mount = |image: &Path, dir: &Path, args: &[&str]| {
        outcome(extant().arg("mount").arg(image).arg(dir).args(args))
    };
    let garbage = try_mount(&at("garbage.img"), &at("mnt"), &[]);
    assert!(garbage.code(UNREADABLE).contains("no ext2, ext3 or ext4"), "{}", garbage.stderr);
    try_mount(&at("missing.img"), &at("mnt"), &[]).code(UNREADABLE);
    let rw = try_mount(&image, &at("mnt"), &["-o", "rw,noload"]);
    assert!(rw.code(USAGE).contains("journal"), "{}", rw.stderr);
    try_mount(&image, &at("mnt"), &["-o", "nonsense"]).code(USAGE);
    try_mount(&image, &at("mnt"), &["--cache", "much"]).code(USAGE);
    let inner = format!("{}:/directory", image.display());
    try_mount(Path::new(&inner), &at("mnt"), &[]).code(USAGE);
    if has_fuse() {
        let missing = try_mount(&image, &at("missing"), &[]);
        assert!(missing.code(FAILED).contains("missing"), "{}", missing.stderr);
        let file = try_mount(&image, &at("garbage.img"), &[]);
        assert!(file.code(FAILED).contains("directory"), "{}", file.stderr);
    }
    let umount = |dir: &Path| run([Path::new("umount"), dir]);
    assert!(umount(&at("mnt")).code(FAILED).contains("nothing is mounted"));
    assert!(umount(Path::new("/proc")).code(FAILED).contains("not of extant"));
    assert!(umount(&at("missing")).code(FAILED).contains("missing"));
}

#[test]
fn a_pending_journal_is_reported_and_not_written() {
    if !has_fuse_and_root() {
        return;
    }
    let recipe = matrix::recipes().into_iter().find(|recipe| recipe.is_dirty() && recipe.journal.is_none());
    let dir = extant_testkit::scratch();
    let built = matrix::build(&recipe.expect("there are dirty ones"), dir.path());
    let before = Sha256::digest(std::fs::read(&built.image).unwrap());
    let mount = Mount::unmounted();
    let outcome = mount.try_mount_read_only(&built.image, &[]);
    assert!(outcome.code(0).contains("replay of its journal"), "{}", outcome.stderr);
    mount.unmount();
    let outcome = mount.try_mount_read_only(&built.image, &["-o", "noload"]);
    assert!(!outcome.code(0).contains("replay"), "{}", outcome.stderr);
    mount.unmount();
    assert_eq!(Sha256::digest(std::fs::read(&built.image).unwrap()), before);
}

/// A text form, to compare walks across processes.
fn text_of(mut manifest: Manifest) -> String {
    for entry in manifest.entries.values_mut() {
        (entry.inode.0, entry.btime, entry.extents) = (0, None, None);
        // Not visible to ordinary users.
        entry.xattrs.retain(|name, _| !name.starts_with(b"trusted."));
    }
    format!("{:#?}", manifest.entries)
}

/// Run as an ordinary user by the test below, which waits for its output.
#[test]
fn part_of_an_ordinary_user() {
    let (Some(image), Some(result)) =
        (std::env::var_os("EXTANT_TEST_IMAGE"), std::env::var_os("EXTANT_TEST_RESULT"))
    else {
        return;
    };
    assert!(!extant_testkit::is_root());
    let mount = Mount::unmounted();
    let mut command = Command::new(std::env::var_os("EXTANT_TEST_BINARY").unwrap());
    let mounted = outcome(command.arg("mount").arg(&image).arg(mount.path()).stdin(Stdio::null()));
    mounted.code(0);
    std::fs::write(&result, text_of(Manifest::of(mount.path()))).unwrap();
    // Files of other users are readable: the owner of the image can read them anyway.
    let refused = mount.try_mount_read_only(Path::new("/dev/null"), &["-o", "allow_other"]);
    assert_ne!(refused.code, 0);
    let mut command = Command::new(std::env::var_os("EXTANT_TEST_BINARY").unwrap());
    outcome(command.arg("umount").arg(mount.path())).code(0);
    assert!(!is_mounted(mount.path()));
    // The server is confined, and has `fusermount3` executed by a process that is not.
    mount.try_mount_read_only(Path::new(&image), &[]).code(0);
    let server = mount.server();
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.as_raw_pid())).unwrap();
    for line in ["Seccomp:\t2", "NoNewPrivs:\t1", "CapEff:\t0000000000000000"] {
        assert!(status.lines().any(|found| found == line), "{status}");
    }
    rustix::process::kill_process(server, rustix::process::Signal::TERM).unwrap();
    wait_until("the server unmounts", || !is_mounted(mount.path()));
    // Options that root's configuration does not permit are refused with an explanation.
    if !std::fs::read_to_string("/etc/fuse.conf")
        .is_ok_and(|text| text.lines().any(|l| l.trim() == "user_allow_other"))
    {
        let mut command = Command::new(std::env::var_os("EXTANT_TEST_BINARY").unwrap());
        command.arg("mount").arg(&image).arg(mount.path()).args(["-o", "allow_other"]);
        let refused = outcome(command.stdin(Stdio::null()));
        assert!(refused.code(FAILED).contains("user_allow_other"), "{}", refused.stderr);
    }
}

#[test]
fn an_ordinary_user_sees_the_whole_tree_with_its_owners() {
    if !has_fuse_and_root() {
        return;
    }
    let mode = std::fs::metadata("/dev/fuse").unwrap().permissions().mode();
    if mode & 0o006 != 0o006 || extant_testkit::command("fusermount3").arg("-V").output().is_err() {
        println!(
            "skipped: no FUSE for ordinary users: /dev/fuse has mode {:o}, or fusermount3 is missing",
            mode & 0o777
        );
        return;
    }
    let (dir, image) = odd_image();
    let theirs = text_of(Manifest::of(LoopMount::new(&image, "ro,noatime").unwrap().path()));
    // All files that the user needs, in a place that the user can reach.
    let open_to_all = |path: &Path| std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    open_to_all(dir.path());
    open_to_all(&image);
    let copy = |from: &Path, name: &str| {
        let to = dir.path().join(name);
        std::fs::copy(from, &to).unwrap();
        open_to_all(&to);
        to
    };
    let binary = copy(Path::new(env!("CARGO_BIN_EXE_extant")), "extant");
    let test = copy(&std::env::current_exe().unwrap(), "test");
    let result = dir.path().join("result");
    std::fs::write(&result, b"").unwrap();
    std::os::unix::fs::chown(&result, Some(NOBODY), Some(NOBODY)).unwrap();
    let mut command = extant_testkit::command("setpriv");
    command.args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"), "--clear-groups".to_owned()]);
    command.arg(test).args(["--exact", "mount::part_of_an_ordinary_user", "--nocapture"]).current_dir("/");
    command
        .env("EXTANT_TEST_IMAGE", &image)
        .env("EXTANT_TEST_RESULT", &result)
        .env("EXTANT_TEST_BINARY", binary);
    outcome(&mut command).code(0);
    let ours = std::fs::read_to_string(&result).unwrap();
    if let Some((theirs, ours)) = theirs.lines().zip(ours.lines()).find(|(theirs, ours)| theirs != ours) {
        panic!("the kernel: {theirs}\nthe mount: {ours}");
    }
    assert_eq!(ours.len(), theirs.len());
}

#[test]
fn modes_count_where_others_may_look() {
    if !has_fuse_and_root() {
        return;
    }
    let dir = extant_testkit::scratch();
    let source = dir.path().join("source");
    std::fs::create_dir(&source).unwrap();
    for (name, mode) in [("open", 0o644), ("closed", 0o600), ("by-acl", 0o600)] {
        std::fs::write(source.join(name), name).unwrap();
        std::fs::set_permissions(source.join(name), PermissionsExt::from_mode(mode)).unwrap();
    }
    // Version 2: owner rw-, user `NOBODY` r--, group ---, mask r--, others ---.
    let mut acl = vec![2, 0, 0, 0];
    for (tag, rights, id) in
        [(1u16, 6u16, u32::MAX), (2, 4, NOBODY), (4, 0, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)]
    {
        acl.extend_from_slice(&tag.to_le_bytes());
        acl.extend_from_slice(&rights.to_le_bytes());
        acl.extend_from_slice(&id.to_le_bytes());
    }
    let flags = rustix::fs::XattrFlags::empty();
    let has_acls =
        rustix::fs::setxattr(source.join("by-acl"), "system.posix_acl_access", &acl, flags).is_ok();
    let image = dir.path().join("modes.img");
    common::build(&image, ["--from".as_ref(), source.as_os_str()]);
    let read = |mount: &Mount, name: &str| {
        let mut command = extant_testkit::command("setpriv");
        command.args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"), "--clear-groups".to_owned()]);
        command.arg("cat").arg(mount.path().join(name)).stderr(Stdio::null());
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let mount = Mount::read_only(&image, &["-o", "allow_other"]);
    // Before the mount, only root can access the mount point.
    assert_eq!(read(&mount, "open"), "open");
    assert_eq!(read(&mount, "closed"), "");
    assert_eq!(read(&mount, "by-acl"), if has_acls { "by-acl" } else { "" });
    mount.unmount();
    let mount = Mount::read_only(&image, &[]);
    assert_eq!(read(&mount, "open"), "", "not without allow_other");
}
