//! Mounts from an administrator's view: lines of /etc/fstab, write-protected devices, bind mounts, namespaces
//! that hold a mount, logs, servers that die.
//!
//! Needs /dev/fuse and root. Without them, tests print a note and pass.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::common::mounted::{
    Mount, binary, empty_image, has_ended, has_fuse, has_fuse_and_root, is_mounted, runs, wait_until,
};
use crate::common::{Outcome, USAGE, assert_has, extant, outcome, run};
use extant_testkit::e2fsck_clean;

const FAILED: i32 = 1;
const BUSY: i32 = 10;
const NO_SPACE: i32 = 7;
/// Time limit for events that should happen at once; the machine may be busy.
const SOON: Duration = Duration::from_secs(20);

/// A helper of mount(8) or umount(8): a link to the program with the helper's name.
fn helper(dir: &Path, name: &str) -> PathBuf {
    let link = dir.join(name);
    if !link.exists() {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_extant"), &link).unwrap();
    }
    link
}

fn options_of(dir: &Path) -> String {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().rfind(|line| line.split(' ').nth(4) == dir.to_str());
    line.unwrap_or_else(|| panic!("{} is not mounted\n{table}", dir.display())).to_owned()
}

#[track_caller]
fn umounted(dir: &Path) -> Outcome {
    outcome(binary().arg("umount").arg(dir))
}

fn text(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A process that is killed on drop.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process in its own mount namespace, which holds this mount. The namespace releases the mounts of
/// concurrent tests.
fn namespace(holds: &Path) -> Killed {
    let script = format!(
        "for dir in $(findmnt -rn -t fuse.extant -o TARGET); do [ $dir = {} ] || umount -i -l $dir; done; echo there; exec sleep 60",
        holds.display()
    );
    let mut command = extant_testkit::command("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", &script]);
    let mut child = Killed(command.stdout(Stdio::piped()).spawn().unwrap());
    std::io::Read::read_exact(child.0.stdout.as_mut().unwrap(), &mut [0; 6]).unwrap();
    child
}

/// Every option of ext4(5) and mount(8) in one line of /etc/fstab, as mount(8) passes it to its helper.
#[test]
fn lines_of_fstab_that_were_written_for_the_kernel_mount() {
    if !has_fuse_and_root() {
        return;
    }
    let (dir, image) = empty_image(&[]);
    let mount = Mount::unmounted();
    let list = "rw,defaults,acl,user_xattr,lazytime,nofail,_netdev,x-systemd.automount,delalloc,auto_da_alloc,\
        data_err=ignore,usrquota,grpquota,prjquota,jqfmt=vfsv1,barrier=1,stripe=16,init_itable=10,noinit_itable,\
        journal_ioprio=3,dioread_nolock,block_validity,inode_readahead_blks=32,max_dir_size_kb=0,errors=remount-ro,\
        min_batch_time=0,noatime,nodiratime,sync,nosymfollow,user=root,comment=x";
    let called = |list: &str| {
        let mut command = std::process::Command::new(helper(dir.path(), "mount.fuse.extant"));
        outcome(command.arg(&image).arg(mount.path()).args(["-o", list]))
    };
    let done = called(list);
    let said = done.code(0);
    assert!(said.contains("-o usrquota,grpquota,prjquota,jqfmt=vfsv1: usage is counted"), "{said}");
    // mount(8) omits options that are its defaults.
    let options = options_of(mount.path());
    assert!(!options.contains("nosuid") && !options.contains("nodev"), "{options}");
    assert!(options.contains("nosymfollow") && options.contains("sync"), "{options}");
    mount.unmount();
    called("rw,nosuid,nodev").code(0);
    let options = options_of(mount.path());
    assert!(options.contains("nosuid") && options.contains("nodev"), "{options}");
    mount.unmount();

    assert!(called("rw,usrqouta").code(USAGE).contains("usrquota"));
    let mut command = std::process::Command::new(helper(dir.path(), "mount.fuse.extant"));
    let sloppy = outcome(command.arg(&image).arg(mount.path()).args(["-s", "-o", "rw,unheard_of"]));
    assert!(sloppy.code(0).contains("unheard_of: it is not known"), "{}", sloppy.stderr);
    mount.unmount();
}

/// As in mount(8): a warning, and a read-only mount.
#[test]
fn what_is_write_protected_is_mounted_read_only_with_a_warning() {
    if !has_fuse_and_root() {
        return;
    }
    let (_dir, image) = empty_image(&[]);
    let mount = Mount::unmounted();
    let protected = |source: &Path| {
        let done = mount.try_mount(source, &[]);
        assert!(done.code(0).contains("write-protected, mounted read-only"), "{}", done.stderr);
        assert!(options_of(mount.path()).contains(" ro,"), "{}", options_of(mount.path()));
        assert!(std::fs::write(mount.path().join("new"), b"").is_err());
        let refused = outcome(extant().args(["mount", "-o", "remount,rw"]).arg(source).arg(mount.path()));
        assert!(refused.code(FAILED).contains("read-only"), "{}", refused.stderr);
        assert!(mount.path().join("lost+found").exists(), "it is mounted as it was");
        mount.unmount();
    };
    let output =
        extant_testkit::run("losetup", ["-f".as_ref(), "--show".as_ref(), "-r".as_ref(), image.as_os_str()]);
    let device = PathBuf::from(text(&output).trim());
    protected(&device);
    extant_testkit::run("losetup", ["-d".as_ref(), device.as_os_str()]);
    // An image with the feature read-only.
    extant_testkit::run("tune2fs", ["-O".as_ref(), "read-only".as_ref(), image.as_os_str()]);
    protected(&image);
}

/// Nothing prevents it: the image is writable, and the mount is not in use.
#[test]
fn a_mount_for_reading_becomes_one_for_writing_by_remount() {
    if !has_fuse_and_root() {
        return;
    }
    let (dir, image) = empty_image(&[]);
    let mount = Mount::new(&image, &["-o", "ro,nosuid,noexec"]);
    let remount = |words: &str| outcome(extant().args(["mount", "-o", words]).arg(&image).arg(mount.path()));
    let file = std::fs::File::open(mount.path()).unwrap();
    let refused = remount("remount,rw");
    let said = refused.code(FAILED);
    assert!(said.contains("in use") && said.contains("stays read-only"), "{said}");
    drop(file);
    remount("remount,rw,exec").code(0);
    std::fs::write(mount.path().join("new"), b"written").unwrap();
    let options = options_of(mount.path());
    assert!(options.contains(" rw,nosuid") && !options.contains("noexec"), "{options}");
    remount("remount,ro").code(0);
    assert!(std::fs::write(mount.path().join("other"), b"").is_err());
    remount("remount,rw").code(0);
    assert_eq!(std::fs::read(mount.path().join("new")).unwrap(), b"written");
    // Through mount(8), with the options of fstab.
    let mut command = std::process::Command::new(helper(dir.path(), "mount.fuse.extant"));
    let words = "remount,ro,acl,nofail,x-a=b";
    outcome(command.arg(&image).arg(mount.path()).args(["-o", words])).code(0);
    mount.unmount();
}

#[test]
fn one_of_two_places_is_unmounted_at_once_and_the_last_one_ends_the_server() {
    if !has_fuse_and_root() {
        return;
    }
    let (_dir, image) = empty_image(&[]);
    let mount = Mount::new(&image, &[]);
    let (server, bound) = (mount.server(), Mount::unmounted());
    std::fs::create_dir(mount.path().join("below")).unwrap();
    let bind = |from: &Path| {
        extant_testkit::run("mount", ["--bind".as_ref(), from.as_os_str(), bound.path().as_os_str()])
    };
    bind(mount.path());
    let begun = Instant::now();
    umounted(bound.path()).code(0);
    assert!(begun.elapsed() < SOON && !has_ended(server) && mount.path().join("below").exists());
    // A bind mount of a subdirectory is the last mount.
    bind(&mount.path().join("below"));
    umounted(mount.path()).code(0);
    assert!(!has_ended(server));
    umounted(bound.path()).code(0);
    assert!(has_ended(server), "the server still runs");
}

#[test]
fn a_mount_that_another_namespace_holds_is_said_to_be_held_and_is_durable() {
    if !has_fuse_and_root() {
        return;
    }
    let (_dir, image) = empty_image(&[]);
    let mount = Mount::new(&image, &[]);
    let (server, dir) = (mount.server(), mount.path().to_owned());
    std::fs::write(dir.join("file"), b"written").unwrap();
    let holder = namespace(&dir);
    let begun = Instant::now();
    let held = umounted(&dir);
    let said = held.code(BUSY);
    assert!(begun.elapsed() < SOON, "it took {:?}", begun.elapsed());
    assert!(
        said.contains("another mount namespace") && said.contains(&format!("process {}", holder.0.id())),
        "{said}"
    );
    assert!(!is_mounted(&dir) && !has_ended(server));
    let read = outcome(extant().arg("cat").arg(format!("{}:/file", image.display())));
    assert_eq!((read.code, read.stdout.as_str()), (0, "written"));
    drop(holder);
    wait_until("the server ends", || has_ended(server));
}

#[test]
fn what_keeps_a_mount_in_use_is_named() {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = empty_image(&[]);
    let mount = Mount::new(&image, &[]);
    let mut command = extant_testkit::command("sleep");
    let user = Killed(command.arg("60").current_dir(mount.path()).spawn().unwrap());
    let refused = umounted(mount.path());
    let says = format!("process {} (sleep) works in {}", user.0.id(), mount.path().display());
    assert!(refused.code(FAILED).contains(&says), "{}", refused.stderr);
    drop(user);
    mount.unmount();
}

#[test]
fn a_file_system_that_was_shut_down_is_unmounted_without_an_error_by_umount_8() {
    if !has_fuse_and_root() {
        return;
    }
    let (dir, image) = empty_image(&[]);
    for (as_helper, code) in [(true, 0), (false, FAILED)] {
        let mount = Mount::new(&image, &[]);
        std::fs::write(mount.path().join("file"), b"written").unwrap();
        // EXT4_IOC_SHUTDOWN, with the ioctl number that has FUSE's direction bits.
        let script = "import fcntl, os, struct; fcntl.ioctl(os.open('.', os.O_RDONLY), 0x4004587d, struct.pack('I', 2))";
        runs(mount.path(), &format!("python3 -c \"{script}\""));
        let mut command = match as_helper {
            true => std::process::Command::new(helper(dir.path(), "umount.fuse.extant")),
            false => extant(),
        };
        let done = outcome(command.args((!as_helper).then_some("umount")).arg(mount.path()));
        done.code(code);
        assert!(!is_mounted(mount.path()));
    }
}

#[test]
fn mounting_over_a_mount_is_said_and_a_dead_one_is_no_place() {
    // For an ordinary user fusermount3 runs as root, but must access the lower mount, which only its user
    // may.
    if !has_fuse() || extant_testkit::not_root() {
        return;
    }
    let (_dir, image) = empty_image(&[]);
    let (_other_dir, other) = empty_image(&[]);
    let mount = Mount::new(&image, &[]);
    let first = mount.server();
    let over = mount.try_mount(&other, &[]);
    let said = over.code(0);
    assert!(said.contains("already") && said.contains(image.to_str().unwrap()), "{said}");
    umounted(mount.path()).code(0);
    assert_eq!(mount.server(), first);
    rustix::process::kill_process(first, rustix::process::Signal::KILL).unwrap();
    wait_until("the server ends", || has_ended(first));
    let dead = mount.try_mount(&other, &[]);
    assert!(dead.code(FAILED).contains("extant umount"), "{}", dead.stderr);
    mount.unmount();
}

/// Kills the server after it has mounted and before the command has received an answer.
#[test]
fn a_mount_that_does_not_answer_does_not_stay() {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = empty_image(&[]);
    for _ in 0..200 {
        let mount = Mount::unmounted();
        let mut command = extant();
        command.arg("mount").arg(&image).arg(mount.path()).args(["-o", "ro"]);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let process = rustix::process::Pid::from_child(&child);
        // Stops the command as soon as its server exists; the server mounts in the meantime. A stopped
        // command cannot end.
        let children = format!("/proc/{0}/task/{0}/children", child.id());
        let server = loop {
            let children = std::fs::read_to_string(&children).unwrap_or_default();
            if let Some(server) = children.trim().parse().ok().and_then(rustix::process::Pid::from_raw) {
                break Some(server);
            }
            if child.try_wait().unwrap().is_some() {
                break None;
            }
        };
        let is_stopped = rustix::process::kill_process(process, rustix::process::Signal::STOP).is_ok();
        if let Some(server) = server.filter(|_| is_stopped) {
            wait_until("the server mounts", || is_mounted(mount.path()));
            // It reports that it is ready immediately afterwards.
            std::thread::sleep(std::time::Duration::from_millis(50));
            rustix::process::kill_process(server, rustix::process::Signal::KILL).unwrap();
        }
        let _ = rustix::process::kill_process(process, rustix::process::Signal::CONT);
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            mount.unmount();
            continue;
        }
        assert!(!is_mounted(mount.path()), "{said}");
        if said.contains("did not answer") {
            assert!(said.contains("unmounted again") && said.contains("signal: 9"), "{said}");
            return;
        }
    }
    panic!("the server was never killed at the right moment");
}

/// A mount in the background reads a directory block that contains only noise.
#[test]
fn damage_that_a_background_mount_meets_is_in_its_log() {
    if !has_fuse() {
        return;
    }
    let (dir, image) = empty_image(&[]);
    outcome(extant().arg("mkdir").arg(format!("{}:/d", image.display()))).code(0);
    let output = extant_testkit::run("debugfs", ["-R".as_ref(), "blocks /d".as_ref(), image.as_os_str()]);
    let block: u64 = text(&output).split_whitespace().next().unwrap().parse().unwrap();
    let file = std::fs::File::options().write(true).open(&image).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xA5; 4096], block * 4096).unwrap();
    drop(file);
    // A relative name refers to the directory in which the command was called.
    let mount = Mount::unmounted();
    let mut command = extant();
    command.arg("mount").arg(&image).arg(mount.path()).args(["-o", "log=mount.log"]).current_dir(dir.path());
    outcome(&mut command).code(0);
    let listed: Vec<_> = std::fs::read_dir(mount.path().join("d")).unwrap().collect();
    assert!(matches!(&listed[..], [Err(error)] if error.raw_os_error() == Some(117)), "{listed:?}");
    mount.unmount();
    let log = std::fs::read_to_string(dir.path().join("mount.log")).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    assert!(lines[0].contains(": info: ") && lines[0].ends_with("read-only"), "{log}");
    assert!(
        lines.iter().any(|line| line.contains(": error: ") && line.contains(&block.to_string())),
        "{log}"
    );
    assert!(lines[lines.len() - 1].ends_with("unmounted"), "{log}");
    let nowhere = mount.try_mount(&image, &["-o", "log=/nowhere/mount.log"]);
    assert!(nowhere.code(FAILED).contains("/nowhere/mount.log"), "{}", nowhere.stderr);
}

/// Lines of /etc/fstab as the page shows them, mounted by mount(8) through its helper, and other owners.
#[test]
fn the_fstab_lines_of_the_page_mount_media_of_other_machines() {
    if !has_fuse_and_root() {
        return;
    }
    let (dir, image) = empty_image(&[]);
    let page = include_str!("../../../../../docs/mount-admin.md");
    let lines = page.lines().filter(|line| !line.starts_with('#') && line.contains("  fuse.extant  "));
    let mount = Mount::unmounted();
    let fstab = dir.path().join("fstab");
    // systemd calls mount(8) with the fields of a unit.
    let unit = page.split_once("\n[Mount]\n").unwrap().1;
    let field = |key: &str| unit.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    let unit = format!("What Where {} {}", field("Type="), field("Options="));
    let mut count = 0;
    for line in lines.chain([unit.as_str()]) {
        count += 1;
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (image, place) = (image.display(), mount.path().display());
        std::fs::write(&fstab, format!("{image} {place} {} {} 0 0\n", fields[2], fields[3])).unwrap();
        let script = "ln -sf \"$0\" /sbin/mount.fuse.extant && mount -T \"$1\" \"$2\"";
        let link = Path::new("/sbin/mount.fuse.extant");
        let before = std::fs::read_link(link).ok();
        let mut command = extant_testkit::command("sh");
        let program = env!("CARGO_BIN_EXE_extant");
        command.args(["-c", script, program]).arg(&fstab).arg(mount.path());
        let mounted = outcome(&mut command);
        std::fs::remove_file(link).unwrap();
        if let Some(before) = before {
            std::os::unix::fs::symlink(before, link).unwrap();
        }
        mounted.code(0);
        let options = options_of(mount.path());
        assert_eq!(fields[3].contains("ro,"), options.contains(" ro,"), "{line}: {options}");
        if fields[3].contains("uid=1000") {
            let shown = runs(mount.path(), "echo x >new; mkdir d; stat -c %u:%g:%a new d lost+found");
            assert_eq!(shown, "1000:1000:640\n1000:1000:750\n1000:1000:700\n");
            // What is shown already may be given; nothing else, and nothing of it reaches the disk.
            runs(mount.path(), "chown 1000:1000 new; chmod 640 new");
            runs(mount.path(), "! chown 1:1 new 2>/dev/null && ! chmod 777 new 2>/dev/null");
        }
        mount.unmount();
        if fields[3].contains("uid=1000") {
            let stat = outcome(extant().args(["stat", "--json"]).arg(format!("{image}:/new"))).report();
            assert_eq!((&stat[0]["uid"], &stat[0]["mode"]), (&0.into(), &"0644".into()));
        }
    }
    assert!(count >= 3, "{count} lines");
}

/// The size of a mount changes while files are open, written and listed: their bytes stay, requests wait, and
/// the image is clean afterwards.
#[test]
fn a_mount_changes_its_size_in_use() {
    if !has_fuse() {
        return;
    }
    let scratch = extant_testkit::scratch();
    let image = scratch.path().join("image");
    run(args!["mkfs", "-q", "--size", "64M", &image]).code(0);
    let mount = Mount::new(&image, &[]);
    let total = || rustix::fs::statvfs(mount.path()).unwrap().f_blocks;
    let ends = std::sync::atomic::AtomicBool::new(false);
    let kept = mount.path().join("kept");
    let mut open = std::fs::File::options().read(true).write(true).create_new(true).open(&kept).unwrap();
    std::io::Write::write_all(&mut open, &[1; 100_000]).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut rounds = 0u32;
            while !ends.load(std::sync::atomic::Ordering::Relaxed) {
                let file = mount.path().join(format!("file-{}", rounds % 40));
                std::fs::write(&file, vec![rounds as u8; 150_000]).unwrap();
                assert!(std::fs::read(&file).unwrap() == vec![rounds as u8; 150_000]);
                rounds += 1;
            }
            rounds
        });
        let mut before = total();
        for size in ["+64M", "+200M", "1G"] {
            let done = run(args!["resize", mount.path(), size]);
            done.code(0);
            assert_has(&done.stdout, " -> ");
            assert!(total() > before, "{size}");
            before = total();
        }
        run(args!["resize", "-q", mount.path(), "200M"]).code(0);
        assert!(total() < before);
        ends.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(writer.join().unwrap() > 0);
    });
    assert_eq!(std::fs::metadata(&image).unwrap().len(), 200 << 20);
    std::io::Write::write_all(&mut open, &[2; 100_000]).unwrap();
    open.sync_all().unwrap();
    assert!(std::fs::read(&kept).unwrap() == [vec![1; 100_000], vec![2; 100_000]].concat());

    let impossible = run(args!["resize", mount.path(), "100K"]);
    impossible.code(NO_SPACE);
    run(args!["resize", mount.path(), "min"]).code(crate::common::USAGE);
    run(args!["resize", scratch.path(), "1G"]).code(1);
    std::fs::remove_file(&kept).unwrap();
    let in_use = run(args!["resize", mount.path(), "+8M"]);
    assert_has(in_use.code(BUSY), "removed files are still in use");
    drop(open);
    run(args!["resize", mount.path(), "+8M"]).code(0);
    mount.unmount();
    e2fsck_clean(&image);
    run(args!["check", &image]).code(0);
}
