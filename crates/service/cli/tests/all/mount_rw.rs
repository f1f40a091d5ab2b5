//! `extant mount -o rw`: shells leave the same results as on a mount of the kernel, and e2fsck finds no
//! errors.
//!
//! Needs /dev/fuse; comparisons with the kernel also need root. Without them, tests print a note and pass.

use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Child;

use crate::common::mounted::{
    Mount, empty_image, finish, has_ended, has_fuse, has_fuse_and_root, is_mounted, runs, shell, wait_until,
};
use crate::common::{USAGE, extant, outcome, run};
use extant_testkit::{DiffOptions, LoopMount, Manifest, Time, diff, e2fsck_clean};

/// Another program writes to the image.
const BUSY: i32 = 10;
/// An ordinary user: the uid of `nobody`.
const NOBODY: u32 = 65534;

/// Operations of a shell on names and attributes. Needs an empty directory.
const WORKLOAD: &str = r#"
set -e
umask 022
mkdir -p a/b/c d
touch a/one a/two a/b/three
ln a/one a/b/also-one
ln -s ../one a/b/to-one
ln -s "$(printf 'long%.0s' $(seq 50))" a/long
mv a/two d/deux
mv a/b d/b
mkfifo d/fifo
mknod d/null c 1 3
mknod d/disk b 259 70000
chmod 4751 a/one
chown 12:34 a/one d
chmod 2775 d
mkdir d/inherits; touch d/inherits/group
setfattr -n user.small -v x a/one
setfattr -n user.large -v "$(printf 'v%.0s' $(seq 2000))" d
setfattr -n trusted.t -v secret d/deux
setfattr -x user.small a/one
setfattr -n user.small -v y a/one
setfacl -m u:77:rwx,g:88:r a/one
mkdir acl
setfacl -d -m u:8:rx,g::r,o::- acl
(umask 077; touch acl/file; mkdir acl/dir; touch acl/dir/file)
chmod 700 acl/dir
setfacl -b d/deux; setfacl -k acl/dir
truncate -s 1M d/sparse; truncate -s 123456789 d/sparser; truncate -s 77 d/sparse
touch -d '1969-12-31 23:59:58.8 UTC' a/before
touch -d '2040-02-03 04:05:06.789 UTC' a/after
mkdir many; (cd many; seq 3000 | xargs touch; seq 3 3 3000 | xargs rm; for i in 1 2 4 5; do mv $i renamed-$i; done)
mkdir tree; (cd tree; mkdir -p $(seq -f 'd%g/e/f/g' 60); seq -f 'd%g/e/f/file' 60 | xargs touch); rm -r tree/d1*
mkdir empty; rmdir empty
touch victim winner; mv -f winner victim
chattr +d a/after; chattr +A d
"#;

/// The manifest without times that are "now", which differ between two runs of the same commands.
fn repeatable(dir: &Path) -> Manifest {
    let mut manifest = Manifest::of(dir);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
    let never = Time { seconds: 0, nanoseconds: 0 };
    for entry in manifest.entries.values_mut() {
        for time in [&mut entry.mtime, &mut entry.atime] {
            if (now - time.seconds).abs() < 3600 {
                *time = never;
            }
        }
    }
    manifest
}

/// The manifest of the kernel's mount of this image.
fn by_kernel(image: &Path, options: &str) -> Manifest {
    repeatable(LoopMount::new(image, options).unwrap().path())
}

fn comparable() -> DiffOptions {
    DiffOptions { btime: false, extents: false, same_image: false, ..DiffOptions::exact(4096) }
}

#[test]
fn a_shell_leaves_the_tree_that_it_leaves_on_the_kernels_mount() {
    if !has_fuse_and_root() {
        return;
    }
    for options in [&["-O", "metadata_csum_seed,orphan_file"][..], &["-O", "^metadata_csum,^dir_index"]] {
        let (_theirs_dir, theirs) = empty_image(options);
        let (_ours_dir, ours) = empty_image(options);
        {
            let kernel = LoopMount::new(&theirs, "rw,noatime").unwrap();
            runs(kernel.path(), WORKLOAD);
        }
        let mount = Mount::new(&ours, &[]);
        runs(mount.path(), WORKLOAD);
        let expected = by_kernel(&theirs, "ro");
        assert!(expected.entries.len() > 2000);
        let lines = diff(&expected, &repeatable(mount.path()), &comparable());
        assert!(lines.is_empty(), "{options:?}, while mounted:\n{}", lines.join("\n"));
        mount.unmount();
        e2fsck_clean(&ours);
        let lines = diff(&expected, &by_kernel(&ours, "ro"), &comparable());
        assert!(lines.is_empty(), "{options:?}, by the kernel afterwards:\n{}", lines.join("\n"));
    }
}

/// All stat fields, for the comparison with a new mount, which has nothing cached.
fn every_stat(dir: &Path) -> Vec<String> {
    let listed = runs(dir, "find . | sort");
    let each = listed.lines().map(|path| {
        let all = std::fs::symlink_metadata(dir.join(path)).unwrap();
        let times =
            (all.mtime(), all.mtime_nsec(), all.ctime(), all.ctime_nsec(), all.atime(), all.atime_nsec());
        let owner = (all.mode(), all.uid(), all.gid(), all.rdev());
        format!("{path} {} {} {} {} {owner:?} {times:?}", all.ino(), all.nlink(), all.size(), all.blocks())
    });
    each.collect()
}

#[test]
fn what_the_kernel_remembers_is_what_is_there() {
    remembers_what_is_there(&["-o", "nowriteback_cache"]);
}

/// With the write-back cache, the kernel manages sizes and times.
#[test]
fn what_the_kernel_keeps_is_there_in_the_end() {
    remembers_what_is_there(&["-o", "writeback_cache"]);
}

fn remembers_what_is_there(args: &[&str]) {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = empty_image(&[]);
    let mount = Mount::new(&image, args);
    let setup = "mkdir -p d/sub e; touch d/a d/b d/c e/x; ln d/a e/a; ln -s a d/l; mkdir -p d/deep/er";
    runs(mount.path(), setup);
    // Each step also changes objects that its reply does not contain.
    let steps = [
        "touch d/new",
        "mkdir d/newdir",
        "rmdir d/newdir",
        "ln d/a d/a2",
        "rm d/a2",
        "mv d/b e/b",
        "mv d/deep e/deep",
        "mv e/x d/c",
        "truncate -s 5000 d/a",
        "chmod 600 e/a",
        "touch -d '2001-01-01' e/a",
        "ln -s x d/sym",
        "mkfifo d/fifo",
        "setfattr -n user.a -v b d/a",
        "setfattr -n user.b -v $(printf 'v%.0s' $(seq 3000)) d/a",
        "setfattr -x user.b d/a",
        "setfacl -m u:5:rwx d/a",
        "setfacl -b d/a",
        "setfacl -d -m u:5:rwx d",
        "touch d/by-default; mkdir d/dirdef",
        "chattr +A d/c",
        "chown 0 d/c",
        "mv --exchange d/sub e/deep || true",
        "rm -r e/deep",
        "rm d/c",
        "seq 30000 > d/data; sync d/data",
        "echo more >> d/data",
        "dd if=/dev/zero of=d/data bs=1 seek=3000000 count=1 conv=notrunc status=none; sync d/data",
        "chmod 4777 d/data; echo more >> d/data; sync d/data",
        "setpriv --bounding-set=-fsetid sh -c 'echo more >> d/data'; sync d/data",
        "cp d/data d/copy; sync d/copy",
        "fallocate -l 500000 d/copy; fallocate -p -o 5000 -l 50000 d/copy",
        "truncate -s 1000 d/data; : > d/copy",
    ];
    // A kernel that manages times does not learn that a change of inode flags changes a time.
    let is_heard = |step: &&str| args[1] == "nowriteback_cache" || !step.contains("chattr");
    for step in steps.into_iter().filter(is_heard) {
        // Everything is cached before the step.
        every_stat(mount.path());
        let has_acls = extant_testkit::is_root() || !step.contains("setfacl");
        if !has_acls && !shell(mount.path(), step).wait().unwrap().success() {
            continue;
        }
        if has_acls {
            runs(mount.path(), step);
        }
        let remembered = every_stat(mount.path());
        mount.unmount();
        mount.try_mount(&image, args).code(0);
        let there = every_stat(mount.path());
        for (remembered, there) in remembered.iter().zip(&there) {
            assert_eq!(remembered, there, "after: {step}");
        }
        assert_eq!(remembered.len(), there.len(), "after: {step}");
    }
    mount.unmount();
    e2fsck_clean(&image);
}

#[test]
fn what_is_in_use_lives_on_without_a_name() {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = empty_image(&[]);
    let mount = Mount::new(&image, &[]);
    let at = |name: &str| mount.path().join(name);
    runs(mount.path(), "truncate -s 100000 file other; mkdir dir");
    let free = |dir: &Path| rustix::fs::statvfs(dir).unwrap().f_ffree;
    let before = free(mount.path());
    let mut file = std::fs::OpenOptions::new().read(true).write(true).open(at("file")).unwrap();
    std::fs::remove_file(at("file")).unwrap();
    let other = std::fs::File::open(at("other")).unwrap();
    // Another file replaces it.
    runs(mount.path(), "touch winner; mv winner other");
    let all = file.metadata().unwrap();
    assert_eq!((all.nlink(), all.len()), (0, 100_000));
    file.set_len(50_000).unwrap();
    file.set_permissions(PermissionsExt::from_mode(0o600)).unwrap();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    assert!(bytes == vec![0; 50_000]);
    file.sync_all().unwrap();
    assert_eq!(other.metadata().unwrap().nlink(), 0);
    drop((file, other));
    // Of three inodes, two are freed, and one is new.
    wait_until("the inodes are free", || free(mount.path()) == before + 1);

    let gone = runs(&at("dir"), "rmdir ../dir; stat -c %h .; ls -A; touch x 2>/dev/null || echo refused");
    assert_eq!(gone, "0\nrefused\n");

    // The same for a process that still uses a file when the mount ends.
    let held = std::fs::File::open(at("other")).unwrap();
    std::fs::remove_file(at("other")).unwrap();
    let server = mount.server();
    rustix::process::kill_process(server, rustix::process::Signal::TERM).unwrap();
    wait_until("the server ends", || has_ended(server));
    assert!(!is_mounted(mount.path()));
    drop(held);
    e2fsck_clean(&image);
}

#[test]
fn what_was_removed_makes_room_at_once() {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = empty_image(&["-N", "32"]);
    let mount = Mount::new(&image, &["--threads", "4"]);
    let name = |number: u32| mount.path().join(number.to_string());
    let mut count = 0;
    let full = loop {
        match std::fs::File::create(name(count)) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((full.kind(), count > 10), (std::io::ErrorKind::StorageFull, true), "{full}");
    for round in 0..300 {
        std::fs::remove_file(name(round)).unwrap();
        std::fs::File::create(name(round + count)).unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
    mount.unmount();
    e2fsck_clean(&image);
}

#[test]
fn a_killed_server_loses_nothing_that_was_synced() {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = empty_image(&["-O", "orphan_file"]);
    let mount = Mount::new(&image, &[]);
    runs(mount.path(), "mkdir -p d/e; seq -f 'd/%g' 2000 | xargs touch; ln d/1 d/e/one; truncate -s 1M held");
    let held = std::fs::File::open(mount.path().join("held")).unwrap();
    std::fs::remove_file(mount.path().join("held")).unwrap();
    std::fs::File::open(mount.path()).unwrap().sync_all().unwrap();
    let stats = every_stat(mount.path());
    runs(mount.path(), "seq -f 'd/lost%g' 500 | xargs touch");
    let server = mount.server();
    rustix::process::kill_process(server, rustix::process::Signal::KILL).unwrap();
    wait_until("the server ends", || has_ended(server));
    drop(held);
    mount.unmount();
    let outcome = mount.try_mount(&image, &[]);
    assert!(outcome.code(0).contains("journal was replayed"), "{}", outcome.stderr);
    // Later changes may be there, completely or in part.
    runs(mount.path(), "find d -name 'lost*' -delete");
    let names = |stats: &[String]| -> Vec<String> {
        stats.iter().map(|line| line.split(' ').next().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(names(&every_stat(mount.path())), names(&stats));
    mount.unmount();
    e2fsck_clean(&image);
}

#[test]
fn four_shells_at_the_same_time() {
    if !has_fuse() {
        return;
    }
    const EACH: &str = r#"
set -e
for round in 1 2 3; do
  mkdir -p own-$N/x/y shared
  (cd own-$N; seq 400 | xargs touch; seq 2 2 400 | xargs rm; ln 1 x/one; ls >/dev/null; mv x z; rm -r z)
  for i in $(seq 60); do
    touch shared/$N-$i; mv shared/$N-$i shared/$N-moved-$i; ln shared/$N-moved-$i own-$N/l$i; chmod 600 own-$N/l$i
    setfattr -n user.n -v $i own-$N/l$i
  done
  ls shared >/dev/null
  [ $(ls shared | grep -c "^$N-moved") = 60 ]
  rm shared/$N-*; [ "$(stat -c %h own-$N/l7)" = 1 ]
  rm -r own-$N
done
mkdir end-$N; touch end-$N/f
"#;
    let (_dir, image) = empty_image(&["-O", "orphan_file"]);
    let mount = Mount::new(&image, &["--threads", "4"]);
    let shells: Vec<Child> =
        (0..4).map(|number| shell(mount.path(), &format!("N={number}\n{EACH}"))).collect();
    for shell in shells {
        finish(shell);
    }
    assert_eq!(runs(mount.path(), "ls -A shared; ls -d end-*/f"), "end-0/f\nend-1/f\nend-2/f\nend-3/f\n");
    mount.unmount();
    e2fsck_clean(&image);
}

#[test]
fn a_listing_goes_on_while_names_come_and_go() {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = empty_image(&[]);
    let mount = Mount::new(&image, &[]);
    let dir = mount.path().join("d");
    runs(
        mount.path(),
        "mkdir d; cd d; seq -f 'stays%g' 3000 | xargs touch; seq -f 'goes%g' 3000 | xargs touch",
    );
    let mut seen = Vec::new();
    for (number, entry) in std::fs::read_dir(&dir).unwrap().enumerate() {
        seen.push(entry.unwrap().file_name().into_string().unwrap());
        if number < 3000 {
            std::fs::remove_file(dir.join(format!("goes{}", number + 1))).unwrap();
            std::fs::write(dir.join(format!("new{number}")), b"").unwrap();
            if number % 100 == 0 {
                // Another listing, from the start.
                std::fs::read_dir(&dir).unwrap().take(2000).for_each(drop);
            }
        }
    }
    let mut stays: Vec<&String> = seen.iter().filter(|name| name.starts_with("stays")).collect();
    stays.sort();
    stays.dedup();
    assert_eq!(stays.len(), 3000);
    let len = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), len, "no name was returned twice");
    runs(mount.path(), "rm -r d; [ $(ls -A | wc -l) = 1 ]");
    mount.unmount();
    e2fsck_clean(&image);
}

#[test]
fn an_image_has_one_writer() {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = empty_image(&[]);
    let mount = Mount::new(&image, &[]);
    runs(mount.path(), "touch file");
    let second = Mount::unmounted();
    assert!(second.try_mount(&image, &[]).code(BUSY).contains("in use"));
    let both = outcome(extant().arg("mount").arg(&image).arg(second.path()).args(["-o", "rw,noload"]));
    assert!(both.code(USAGE).contains("journal"));
    mount.unmount();
    // The flag `--rw` is equivalent to the option; the default is read-only.
    outcome(extant().args(["mount", "--rw"]).arg(&image).arg(second.path())).code(0);
    runs(second.path(), "rm file; mkdir dir");
    second.unmount();
    outcome(extant().arg("mount").arg(&image).arg(second.path())).code(0);
    let refused = std::fs::create_dir(second.path().join("other")).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert!(second.path().join("dir").is_dir());
    second.unmount();
    e2fsck_clean(&image);
    assert_eq!(run(["umount".as_ref(), second.path()]).code, 1);
}

/// Run as an ordinary user by the test below.
#[test]
fn part_of_an_ordinary_user() {
    let Some(image) = std::env::var_os("EXTANT_TEST_IMAGE") else { return };
    assert!(!extant_testkit::is_root());
    let mount = Mount::new(Path::new(&image), &[]);
    let script = "mkdir -p a/b; touch a/f; ln a/f a/g; mv a/g a/b/h; chown 1:2 a/f; chmod 600 a/f; ln -s x a/l; \
                  setfattr -n user.x -v y a/f; truncate -s 10 a/f; rm -r a/b; stat -c '%u %g %a %h %s' a/f; id -u; \
                  seq 100000 > a/n; echo end >> a/n; sync a/n; tail -n 2 a/n";
    assert_eq!(runs(mount.path(), script), format!("1 2 600 1 10\n{NOBODY}\n100000\nend\n"));
    mount.unmount();
}

#[test]
fn an_ordinary_user_changes_his_image() {
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
    let (dir, image) = empty_image(&[]);
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(&image, Some(NOBODY), Some(NOBODY)).unwrap();
    let copy = |from: &Path, name: &str| {
        let to = dir.path().join(name);
        std::fs::copy(from, &to).unwrap();
        std::fs::set_permissions(&to, PermissionsExt::from_mode(0o755)).unwrap();
        to
    };
    let binary = copy(Path::new(env!("CARGO_BIN_EXE_extant")), "extant");
    let test = copy(&std::env::current_exe().unwrap(), "test");
    let mut command = extant_testkit::command("setpriv");
    command.args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"), "--clear-groups".to_owned()]);
    command.arg(test).args(["--exact", "mount_rw::part_of_an_ordinary_user", "--nocapture"]).current_dir("/");
    command.env("EXTANT_TEST_IMAGE", &image).env("EXTANT_TEST_BINARY", binary);
    outcome(&mut command).code(0);
    e2fsck_clean(&image);
}
