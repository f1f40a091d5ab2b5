//! Bad input, full disks and wrong sizes: each has its message and its exit code, and leaves nothing behind.

use crate::common;

use std::ffi::OsString;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{
    EXISTS, NO_SPACE, SOURCE, TOO_SMALL, Tar, USAGE, assert_has, assert_names, build, debugfs_cat,
    debugfs_names, extant, outcome, run, try_build, words,
};
use extant_testkit::{e2fsck_clean, is_root, scratch};

/// A scratch directory with an empty tree in it.
struct Bench {
    scratch: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let scratch = scratch();
        std::fs::create_dir(scratch.path().join("tree")).unwrap();
        Self { scratch }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn tree(&self) -> PathBuf {
        self.path("tree")
    }

    fn image(&self) -> PathBuf {
        self.path("image")
    }

    /// Asserts that a build of this archive is refused. Returns the error output.
    #[track_caller]
    fn refused(&self, tar: Tar<Vec<u8>>, code: i32) -> String {
        self.refused_bytes(&tar.bytes(), code)
    }

    #[track_caller]
    fn refused_bytes(&self, bytes: &[u8], code: i32) -> String {
        std::fs::write(self.path("x.tar"), bytes).unwrap();
        let said = try_build(&self.image(), args!["--tar", self.path("x.tar")]).code(code).to_owned();
        std::fs::remove_file(self.path("x.tar")).unwrap();
        assert_names(self.scratch.path(), &["tree"]);
        said
    }

    /// Asserts that a build of this archive succeeds. Returns its warnings.
    #[track_caller]
    fn warned(&self, tar: Tar<Vec<u8>>) -> Vec<String> {
        let _ = std::fs::remove_file(self.image());
        let path = tar.save(self.path("x.tar"));
        let report = build(&self.image(), args!["--tar", &path]);
        e2fsck_clean(&self.image());
        report["warnings"].as_array().unwrap().iter().map(|w| w.as_str().unwrap().to_owned()).collect()
    }
}

/// Makes a command run as the user `nobody`, if this process is root.
fn as_ordinary_user(command: &mut std::process::Command) -> &mut std::process::Command {
    if is_root() { command.uid(65_534).gid(65_534) } else { command }
}

/// A copy of the binary that all users can reach: the build directory may be inside a private home.
fn public_binary(bench: &Bench) -> PathBuf {
    let copy = bench.path("extant");
    std::fs::copy(env!("CARGO_BIN_EXE_extant"), &copy).unwrap();
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).unwrap();
    copy
}

#[test]
fn all_unreadable_files_are_named_in_one_run() {
    let bench = Bench::new();
    let tree = bench.tree();
    for (path, mode) in
        [("a", 0o000), ("b/c", 0o200), ("fine", 0o644), ("b/also-fine", 0o444), ("d/e/f", 0o111)]
    {
        let path = tree.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "x").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    std::fs::create_dir(tree.join("closed")).unwrap();
    std::fs::write(tree.join("closed/within"), "x").unwrap();
    std::fs::set_permissions(tree.join("closed"), std::fs::Permissions::from_mode(0o000)).unwrap();
    let out = bench.path("out");
    std::fs::create_dir(&out).unwrap();
    for (dir, mode) in [(bench.scratch.path(), 0o755), (tree.as_path(), 0o755), (out.as_path(), 0o777)] {
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let binary = public_binary(&bench);
    for threads in ["1", "4"] {
        let mut command = extant_testkit::command(binary.to_str().unwrap());
        command.args(["build", "-j", threads, "--from"]).arg(&tree).arg("-o").arg(out.join("image"));
        let refused = outcome(as_ordinary_user(&mut command));
        let said = refused.code(SOURCE);
        for path in ["/a: ", "/b/c: ", "/d/e/f: ", "/closed: "] {
            let line = said.lines().find(|line| line.contains(&format!("{}{path}", tree.display())));
            assert_has(line.unwrap_or_else(|| panic!("{path} in {said}")), "ermission denied");
        }
        assert!(!said.contains("fine"), "{said}");
        assert_has(said, "4 of the source's files could not be read");
        assert_names(&out, &[]);
    }
    if is_root() {
        // Root may read all files.
        build(&out.join("image"), args!["--from", &tree]);
        e2fsck_clean(&out.join("image"));
    }
    std::fs::set_permissions(tree.join("closed"), std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn an_archive_cut_anywhere_is_refused_or_warned_about() {
    let bench = Bench::new();
    let mut tar = Tar::in_memory();
    tar.dir("dir").file("dir/one", vec![1; 700]).file("two", vec![2; 100]);
    tar.pax("mtime", "1.5").file("three", "3");
    let bytes = tar.bytes();
    // Headers at 0, 512 (+2 blocks), 2048 (+1), 3072 (pax, +1), 4096 (+1), end mark at 5120.
    for cut in [100, 511, 513, 700, 1024, 1500, 2049, 2560, 2570, 3073, 3584, 3590, 4096, 4100, 4608] {
        let said = bench.refused_bytes(&bytes[..cut], SOURCE);
        assert!(said.contains("ends") || said.contains("cut"), "{cut}: {said}");
        for packing in ["gz", "zst", "xz"] {
            bench.refused_bytes(&common::pack(packing, &bytes[..cut]), SOURCE);
        }
    }
    // An archive that ends between two members may be complete, so it is only a warning.
    for cut in [512, 2048, 3072, 4609, 5120] {
        let path = bench.path("x.tar");
        std::fs::write(&path, &bytes[..cut]).unwrap();
        let report = build(&bench.image(), args!["--tar", &path]);
        e2fsck_clean(&bench.image());
        common::remove(&bench.image());
        assert_has(report["warnings"][0].as_str().unwrap(), "without its end mark");
        common::remove(&path);
    }
    // A compressed stream that is cut after the end of the archive is damage, too.
    for packing in ["gz", "zst", "xz"] {
        let packed = common::pack(packing, &bytes);
        for cut in [packed.len() - 1, packed.len() / 2] {
            bench.refused_bytes(&packed[..cut], SOURCE);
        }
    }
    bench.refused_bytes(b"", SOURCE);
    bench.refused_bytes(b"this is no archive at all", SOURCE);
    let mut damaged = bytes.clone();
    damaged[2048 + 5] ^= 1;
    assert_has(&bench.refused_bytes(&damaged, SOURCE), "byte 2048");
}

#[test]
fn names_that_leave_the_image_or_do_not_fit_are_refused() {
    let bench = Bench::new();
    for name in ["../outside", "a/../../outside", "a/..", ".."] {
        let mut tar = Tar::in_memory();
        tar.file(name, "x");
        assert_has(&bench.refused(tar, SOURCE), "..");
    }
    let mut tar = Tar::in_memory();
    tar.file("n".repeat(256), "x");
    assert_has(&bench.refused(tar, SOURCE), "255");
    let mut tar = Tar::in_memory();
    tar.file(format!("{}/{}", "d".repeat(255), "n".repeat(255)), "x");
    assert_eq!(bench.warned(tar), [""; 0]);
    let mut tar = Tar::in_memory();
    tar.file("/absolute/name", "x").file("//twice", "y").symlink("link", "/stays/absolute");
    let warnings = bench.warned(tar);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert_has(&warnings[0], "absolute");
    assert_eq!(debugfs_cat(&bench.image(), "/absolute/name"), "x");
    assert_eq!(debugfs_cat(&bench.image(), "/twice"), "y");
    assert_has(&common::debugfs_stat(&bench.image(), "/link"), "\"/stays/absolute\"");
}

#[test]
fn links_to_nowhere_are_refused() {
    let bench = Bench::new();
    for target in ["nowhere", "dir/nowhere", "no/such/dir"] {
        let mut tar = Tar::in_memory();
        tar.dir("dir").link("link", target);
        let said = bench.refused(tar, SOURCE);
        assert_has(&said, target);
        assert_has(&said, "link");
    }
    let mut tar = Tar::in_memory();
    tar.dir("dir").link("link", "dir");
    assert_has(&bench.refused(tar, SOURCE), "is a directory");
    let mut tar = Tar::in_memory();
    tar.symlink("a", "b").symlink("b", "a").file("a/file", "x");
    assert_has(&bench.refused(tar, SOURCE), "symbolic links");
}

#[test]
fn files_and_directories_do_not_take_each_others_place() {
    let bench = Bench::new();
    let mut tar = Tar::in_memory();
    tar.dir("x").file("x/within", "").file("x", "now a file");
    assert_has(&bench.refused(tar, SOURCE), "place of a directory");
    let mut tar = Tar::in_memory();
    tar.file("x", "a file").file("x/within", "");
    assert_has(&bench.refused(tar, SOURCE), "not a directory");
    let mut tar = Tar::in_memory();
    tar.file("lost+found", "taken");
    assert_has(&bench.refused(tar, SOURCE), "lost+found");

    // Across sources: a directory before a file, and a file before a directory.
    std::fs::create_dir(bench.tree().join("x")).unwrap();
    let mut tar = Tar::in_memory();
    tar.file("x", "a file");
    let tar = tar.save(bench.path("x.tar"));
    let refused = try_build(&bench.image(), args!["--from", bench.tree(), "--tar", &tar]);
    assert_has(refused.code(SOURCE), "place of a directory");
    assert_names(bench.scratch.path(), &["tree", "x.tar"]);
    build(&bench.image(), args!["--tar", &tar, "--from", bench.tree()]);
    e2fsck_clean(&bench.image());
    assert_has(&common::debugfs_stat(&bench.image(), "/x"), "Type: directory");
}

#[test]
fn duplicate_entries_are_reported_and_the_last_one_counts() {
    let bench = Bench::new();
    let mut tar = Tar::in_memory();
    tar.file("x", "first").file("y", "only").file("x", "second").symlink("x", "third").file("x", "fourth");
    let warnings = bench.warned(tar);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert_has(&warnings[0], "3 entries came twice");
    assert_eq!(debugfs_cat(&bench.image(), "/x"), "fourth");
    // A directory entry after its contents does not duplicate the implied directory.
    let mut tar = Tar::in_memory();
    tar.file("d/e/x", "x").member(b'5', 0o700, b"d/e", b"", b"").member(b'5', 0o711, b"d", b"", b"");
    assert_eq!(bench.warned(tar), [""; 0]);
    assert_has(&common::debugfs_stat(&bench.image(), "/d"), "Mode:  0711");
    assert_has(&common::debugfs_stat(&bench.image(), "/d/e"), "Mode:  0700");
}

#[test]
fn an_existing_image_is_replaced_on_demand_only_and_in_one_step() {
    let bench = Bench::new();
    std::fs::write(bench.tree().join("file"), "one").unwrap();
    std::fs::write(bench.image(), "another user's file").unwrap();
    let refused = try_build(&bench.image(), args!["--from", bench.tree()]);
    assert_has(refused.code(EXISTS), "--force");
    assert_eq!(std::fs::read(bench.image()).unwrap(), b"another user's file");
    // A failed build does not change the old one, either.
    try_build(&bench.image(), args!["--force", "--size", "40K", "--from", bench.tree()]).code(TOO_SMALL);
    assert_eq!(std::fs::read(bench.image()).unwrap(), b"another user's file");
    let held = std::fs::File::open(bench.image()).unwrap();
    build(&bench.image(), args!["--force", "--from", bench.tree()]);
    e2fsck_clean(&bench.image());
    assert_eq!(held.metadata().unwrap().len(), 19, "the old file was not written to");
    assert_names(bench.scratch.path(), &["image", "tree"]);
    std::fs::create_dir(bench.path("directory")).unwrap();
    let refused = try_build(&bench.path("directory"), args!["--force", "--from", bench.tree()]);
    assert_eq!(refused.code, 1, "{}", refused.stderr);
    assert_names(bench.scratch.path(), &["directory", "image", "tree"]);
    let refused = try_build(&bench.path("no/such/place"), args!["--from", bench.tree()]);
    assert_has(refused.code(1), "no/such/place");
}

/// A tmpfs of a few MiB, unmounted on drop; `None` if nothing can be mounted.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn new(at: PathBuf) -> Option<Self> {
        std::fs::create_dir(&at).unwrap();
        let mount = extant_testkit::command("mount")
            .args(["-t", "tmpfs", "-o", "size=4m", "none"])
            .arg(&at)
            .output()
            .unwrap();
        mount.status.success().then_some(Self(at))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        extant_testkit::run("umount", [&self.0]);
    }
}

#[test]
fn a_disk_that_gets_full_half_way_is_left_as_it_was() {
    let bench = Bench::new();
    let Some(disk) = is_root().then(|| SmallDisk::new(bench.path("disk"))).flatten() else {
        println!("skipped: not root, or no tmpfs");
        return;
    };
    let free = || rustix::fs::statvfs(&disk.0).unwrap().f_bavail;
    let before = free();
    let mut tar = Tar::in_memory();
    for i in 0..20 {
        let content: Vec<u8> = extant_testkit::trees::Random::new(i).bytes(1 << 20);
        std::fs::write(bench.tree().join(format!("{i}")), &content).unwrap();
        tar.file(format!("{i}"), &content);
    }
    let tar = tar.bytes();
    std::fs::write(bench.path("x.tar"), &tar).unwrap();
    std::fs::write(bench.path("x.tar.zst"), common::pack("zst", &tar)).unwrap();
    let target = disk.0.join("image");
    // The contents of a compressed archive go to a file beside the target, which does not fit, either.
    for (kind, source) in [("--from", "tree"), ("--tar", "x.tar"), ("--tar", "x.tar.zst")] {
        for threads in ["1", "4"] {
            let refused = try_build(&target, args!["-j", threads, kind, bench.path(source)]);
            assert_has(refused.code(NO_SPACE), "space");
            assert_names(&disk.0, &[]);
            assert_eq!(free(), before, "every block is free again");
        }
    }
}

/// Changes a file again and again until dropped.
struct Restless {
    stop: std::sync::Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Restless {
    fn new(path: PathBuf, change: fn(&std::fs::File, u64)) -> Self {
        let stop = std::sync::Arc::new(AtomicBool::new(false));
        let seen = std::sync::Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            let mut turn = 0;
            while !seen.load(Ordering::Relaxed) {
                change(&file, turn);
                turn += 1;
                std::thread::sleep(std::time::Duration::from_micros(100));
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Restless {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().unwrap().join();
    }
}

const LARGE: u64 = 32 << 20;

fn keep_growing(file: &std::fs::File, turn: u64) {
    file.set_len(LARGE + 1 + turn).unwrap();
}

fn keep_shrinking(file: &std::fs::File, turn: u64) {
    file.set_len(LARGE.saturating_sub(512 * turn).max(1 << 20)).unwrap();
}

/// A file changes its size all the time; many other files ensure that time passes between its stat and its
/// read.
#[test]
fn a_file_that_changes_while_it_is_read_is_named() {
    for (word, change) in [("longer", keep_growing as fn(&std::fs::File, u64)), ("shorter", keep_shrinking)] {
        let bench = Bench::new();
        let tree = bench.tree();
        let large = tree.join("a-restless-file");
        for i in 0..3000 {
            std::fs::write(tree.join(format!("{i:05}")), [b'x'; 3000]).unwrap();
        }
        std::fs::write(&large, vec![1; LARGE as usize]).unwrap();
        let restless = Restless::new(large.clone(), change);
        let refused = try_build(&bench.image(), args!["-j1", "--from", &tree]);
        let said = refused.code(SOURCE).to_owned();
        assert_has(&said, &format!("{}: became {word} while it was read", large.display()));
        assert_has(&said, "--tolerate-changes");
        assert_names(bench.scratch.path(), &["tree"]);
        drop(restless);

        std::fs::write(&large, vec![1; LARGE as usize]).unwrap();
        let restless = Restless::new(large.clone(), change);
        let report = build(&bench.image(), args!["--tolerate-changes", "--from", &tree]);
        drop(restless);
        e2fsck_clean(&bench.image());
        let warnings = report["warnings"].to_string();
        assert_has(&warnings, "1 files changed while they were read");
    }
}

/// A file that vanishes, or becomes something else, between its stat and its read.
#[test]
fn a_file_that_goes_away_while_the_tree_is_read_is_no_hang_and_no_garbage() {
    let bench = Bench::new();
    let tree = bench.tree();
    for i in 0..3000 {
        std::fs::write(tree.join(format!("{i:05}")), [b'x'; 3000]).unwrap();
    }
    let moving = tree.join("moving");
    std::fs::write(&moving, "here").unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let _ = std::fs::remove_file(&moving);
                let fifo = rustix::fs::Mode::from_raw_mode(0o644);
                let _ = rustix::fs::mknodat(rustix::fs::CWD, &moving, rustix::fs::FileType::Fifo, fifo, 0);
                let _ = std::fs::remove_file(&moving);
                let _ = std::os::unix::fs::symlink("00000", &moving);
                let _ = std::fs::remove_file(&moving);
                let _ = std::fs::write(&moving, "here");
            }
        });
        for _ in 0..10 {
            let built = try_build(&bench.image(), args!["--from", &tree]);
            match built.code {
                0 => {
                    e2fsck_clean(&bench.image());
                    common::remove(&bench.image());
                }
                code => {
                    assert_eq!(code, SOURCE, "{}", built.stderr);
                    assert_has(&built.stderr, "moving");
                    assert_names(bench.scratch.path(), &["tree"]);
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn an_image_inside_its_source_is_not_part_of_itself() {
    let bench = Bench::new();
    std::fs::write(bench.tree().join("file"), "x").unwrap();
    let image = bench.tree().join("image");
    for force in [&[][..], &["--force"]] {
        let mut all = args!["--from", bench.tree()].to_vec();
        all.extend(force.iter().map(OsString::from));
        let report = build(&image, &all);
        e2fsck_clean(&image);
        assert_eq!(debugfs_names(&image, "/"), ["file", "lost+found"]);
        assert_eq!(report["files"], 1);
    }
    let report = build(&image, args!["--force", "--from", bench.tree()]);
    assert_has(&report["warnings"].to_string(), "it is the image itself");
    assert_names(&bench.tree(), &["file", "image"]);
}

#[test]
fn what_the_format_cannot_hold_is_named_with_what_to_do() {
    let bench = Bench::new();
    let refuse = |tar: &mut Tar<Vec<u8>>, options: &str| {
        let path = std::mem::replace(tar, Tar::in_memory()).save(bench.path("x.tar"));
        let mut all = args!["--tar", &path].to_vec();
        all.extend(words(options));
        let said = try_build(&bench.image(), &all).code(SOURCE).to_owned();
        common::remove(&path);
        assert_names(bench.scratch.path(), &["tree"]);
        said
    };
    let tar = &mut Tar::in_memory();
    tar.symlink("dir/link", "t".repeat(1024));
    let said = refuse(tar, "-b 1024");
    assert_has(&said, "/dir/link");
    assert_has(&said, "1024 bytes");
    tar.pax("SCHILY.xattr.user.x", [b'v'; 5000]).file("big-xattr", "");
    let said = refuse(tar, "");
    assert_has(&said, "/big-xattr");
    assert_has(&said, "ea_inode");
    tar.pax("GNU.sparse.major", "1")
        .pax("GNU.sparse.minor", "0")
        .pax("GNU.sparse.realsize", "20000000000000");
    tar.pax("GNU.sparse.name", "far")
        .file("far", [b"1\n19999999999999\n1\n".to_vec(), vec![0; 512 - 19], vec![1]].concat());
    assert_has(&refuse(tar, "-t ext3"), "/far");
    for i in 0..65_001 {
        if i == 0 {
            tar.file("first", "x");
        } else {
            tar.link(format!("links/{i:05}"), "first");
        }
    }
    let said = refuse(tar, "");
    assert_has(&said, "65001 hard links");
    assert_has(&said, "65000");
}

#[test]
fn senseless_command_lines_are_distinguished() {
    let bench = Bench::new();
    let no_source = run(args!["build", "-o", bench.image()]);
    assert_has(no_source.code(USAGE), "--from");
    let missing = try_build(&bench.image(), args!["--from", bench.path("nowhere")]);
    assert_has(missing.code(SOURCE), "nowhere");
    let missing = try_build(&bench.image(), args!["--tar", bench.path("nowhere.tar")]);
    assert_has(missing.code(SOURCE), "nowhere.tar");
    std::fs::write(bench.path("file"), "x").unwrap();
    try_build(&bench.image(), args!["--from", bench.path("file")]).code(SOURCE);
    try_build(&bench.image(), args!["--tar", bench.tree()]).code(SOURCE);
    let unknown = try_build(&bench.image(), args!["--profile", "beos", "--from", bench.tree()]);
    assert_has(unknown.code(USAGE), "debian-12");
    assert_names(bench.scratch.path(), &["file", "tree"]);
    // In JSON, too.
    let json: serde_json::Value = serde_json::from_str(&missing.stdout).unwrap();
    assert_eq!(json["exit_code"], SOURCE);
    assert_has(json["error"].as_str().unwrap(), "nowhere.tar");
}

/// Ctrl-C ends a build with its own exit code, and nothing is left.
#[test]
fn an_interrupted_build_leaves_nothing() {
    let bench = Bench::new();
    let out = bench.path("out");
    std::fs::create_dir(&out).unwrap();
    let mut command = extant();
    command.args(["build", "--tar", "-", "-o"]).arg(out.join("image")).stdin(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    // The command waits for the rest of the archive.
    let mut tar = Tar::new(child.stdin.take().unwrap());
    tar.file("a", "a");
    std::thread::sleep(std::time::Duration::from_millis(300));
    let id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    drop(tar);
    let status = child.wait().unwrap();
    use std::os::unix::process::ExitStatusExt;
    assert!(status.code() == Some(130) || status.signal() == Some(2), "{status:?}");
    assert_names(&out, &[]);
}

/// Asserts that sizes are exact: `auto` finds a sufficient size, one block less is refused, and the message
/// contains the size. Uses the fewest inodes: otherwise `auto` adds some for future files, and a given size
/// does not.
fn exact(source: &Path, options: &str) {
    let dir = scratch();
    let image = dir.path().join("image");
    let with = |more: &[&str]| {
        let mut all = args!["--from", source, "-N", "1"].to_vec();
        all.extend(words(options));
        all.extend(more.iter().map(OsString::from));
        all
    };
    let report = build(&image, with(&[]));
    e2fsck_clean(&image);
    common::remove(&image);
    let (smallest, block) = (report["image_bytes"].as_u64().unwrap(), report["block_size"].as_u64().unwrap());
    build(&image, with(&["--size", &smallest.to_string()]));
    e2fsck_clean(&image);
    assert_eq!(std::fs::metadata(&image).unwrap().size(), smallest);
    common::remove(&image);
    // Sizes just below, and around every size where a structure becomes smaller: groups, journals, halves.
    let mut sizes: Vec<u64> = (1..40).map(|n| smallest.saturating_sub(n * block)).collect();
    for step in [2048, 8192, 32_768, 262_144] {
        for at in (step..smallest / block).step_by(step as usize).take(20) {
            sizes.extend([at - 1, at, at + 1].map(|blocks| blocks * block));
        }
    }
    sizes.extend([smallest / 2, smallest / 2 + smallest / 4, smallest - 1, 0, 1, block]);
    for size in sizes.into_iter().filter(|&size| size < smallest) {
        let refused = try_build(&image, with(&["-n", "--size", &size.to_string()]));
        let expected = format!("the image needs {smallest} bytes, and {size} were given");
        assert_has(refused.code(TOO_SMALL), &expected);
    }
    // All larger sizes suffice, even those that need a larger journal or another group.
    let mut sizes: Vec<u64> = (1..10).map(|n| smallest + n * block).collect();
    sizes.extend(
        [1000, 2048, 2049, 2100, 8192, 32_767, 32_768, 32_769, 33_000, 65_537].map(|blocks| blocks * block),
    );
    sizes.extend([smallest + 1, smallest + smallest / 10, smallest * 2, smallest * 3]);
    for size in sizes.into_iter().filter(|&size| size >= smallest) {
        try_build(&image, with(&["-n", "--size", &size.to_string()])).code(0);
    }
}

const OPTIONS: &[&str] = &[
    "",
    "-b 1024",
    "-O bigalloc",
    "-t ext2",
    "-O ^flex_bg -b 1024",
    "-O quota,meta_bg,^resize_inode -b 2048",
];

#[test]
fn the_size_of_a_small_image_is_exact() {
    let bench = Bench::new();
    std::fs::write(bench.tree().join("file"), "x").unwrap();
    for options in OPTIONS {
        exact(&bench.tree(), options);
    }
}

#[test]
fn the_size_of_an_image_of_many_inodes_is_exact() {
    let bench = Bench::new();
    for i in 0..3000 {
        std::fs::write(bench.tree().join(format!("{i}")), "").unwrap();
    }
    for options in OPTIONS {
        exact(&bench.tree(), options);
    }
}

#[test]
fn the_size_of_an_image_is_exact_around_the_steps_of_its_journal_and_groups() {
    let bench = Bench::new();
    // Sizes in KiB that end near 2,048 and 32,768 blocks of 1 or 4 KiB, and near the end of a group with
    // either block size.
    for kib in [600, 2000, 7000, 8000, 27_000, 32_000, 122_000, 130_000] {
        std::fs::write(bench.tree().join("file"), vec![1u8; kib << 10]).unwrap();
        for options in ["", "-b 1024"] {
            exact(&bench.tree(), options);
        }
    }
}

/// A device number that no inode can store is refused with its path, and not stored as a different one.
#[test]
fn device_numbers_beyond_an_inode_are_refused() {
    let dir = scratch();
    let mut tar = Tar::in_memory();
    tar.pax("SCHILY.devmajor", "5000").pax("SCHILY.devminor", "7").member(b'3', 0o600, b"null", b"", b"");
    let archive = tar.save(dir.path().join("devices.tar"));
    let outcome = try_build(&dir.path().join("image"), args!["--tar", archive]);
    assert_has(outcome.code(SOURCE), "device number 5000:7");
}

/// An invalid epoch is a usage error, and not silently zero.
#[test]
fn a_senseless_source_date_epoch_is_refused() {
    let dir = scratch();
    for epoch in ["abc", "-1", "18446744073709551615"] {
        let mut command = extant();
        command.env("SOURCE_DATE_EPOCH", epoch).arg("build").arg("--from").arg(dir.path());
        command.arg("-o").arg(dir.path().join("image"));
        assert_has(outcome(&mut command).code(USAGE), "SOURCE_DATE_EPOCH");
    }
}

/// If the name that e2fsck needs is not a directory, the message explains what to do.
#[test]
fn lost_found_must_be_a_directory() {
    let dir = scratch();
    let tree = dir.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("lost+found"), "a file").unwrap();
    let image = dir.path().join("image");
    assert_has(try_build(&image, args!["--from", &tree]).code(SOURCE), "--exclude /lost+found");
    build(&image, args!["--from", &tree, "--exclude", "/lost+found"]);
    extant_testkit::e2fsck_clean(&image);
}

/// A target that is not a regular file is never replaced by one, even with --force.
#[test]
fn special_files_are_no_targets() {
    let dir = scratch();
    let fifo = dir.path().join("fifo");
    extant_testkit::run("mkfifo", [&fifo]);
    let tree = dir.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    try_build(&fifo, args!["--from", &tree, "--force"]).code(1);
    let mut command = extant();
    command.arg("mkfs").arg(&fifo).args(["--size", "16M", "--force"]);
    outcome(&mut command).code(1);
    use std::os::unix::fs::FileTypeExt;
    assert!(fifo.symlink_metadata().unwrap().file_type().is_fifo());
}

/// A directory that becomes a symlink between walk and copy must not add files from outside the source.
#[test]
fn a_symlink_put_in_the_way_is_not_followed() {
    let dir = scratch();
    let (tree, secret) = (dir.path().join("tree"), dir.path().join("secret"));
    for directory in [&tree.join("d"), &secret] {
        std::fs::create_dir_all(directory).unwrap();
    }
    std::fs::write(tree.join("d/file"), "public").unwrap();
    std::fs::write(secret.join("file"), "secret").unwrap();
    let image = dir.path().join("image");
    let mut command = extant();
    command.args(["build", "--no-sync", "-o"]).arg(&image).arg("--from").arg(&tree).args(["--tar", "-"]);
    command.stdin(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    // The build walks the directory, then waits for the archive, and copies only after that.
    std::thread::sleep(std::time::Duration::from_millis(500));
    std::fs::rename(tree.join("d"), tree.join("old")).unwrap();
    std::os::unix::fs::symlink(&secret, tree.join("d")).unwrap();
    let mut tar = Tar::in_memory();
    tar.file("more", "");
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), &tar.bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(SOURCE));
    assert_has(&String::from_utf8_lossy(&output.stderr), "d/file");
    assert!(!image.exists());
}
