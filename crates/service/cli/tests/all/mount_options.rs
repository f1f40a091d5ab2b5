//! `extant mount`: the effect of each option, observed from outside; shutdown; O_SYNC.
//!
//! Needs /dev/fuse, and some tests need root. Without them, tests print a note and pass.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use crate::common::mounted::{
    Mount, empty_image, finish, has_ended, has_fuse, has_fuse_and_root, is_mounted, runs, shell, wait_until,
};
use crate::common::{extant, outcome};
use extant_testkit::e2fsck_clean;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Signal, kill_process};

/// The entry of the mount table, from the options on.
fn line_of(dir: &Path) -> String {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().rfind(|line| line.split(' ').nth(4) == dir.to_str()).unwrap_or_default();
    line.split(' ').skip(5).collect::<Vec<_>>().join(" ")
}

fn mount_with(image: &Path, options: &str) -> Mount {
    let mount = Mount::unmounted();
    outcome(extant().arg("mount").arg(image).arg(mount.path()).args(["-o", options])).code(0);
    mount
}

#[test]
fn the_table_of_mounts_shows_what_was_asked_for() {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = empty_image(&[]);
    let shown = |options: &str| {
        let mount = mount_with(&image, options);
        let line = line_of(mount.path());
        mount.unmount();
        line
    };
    let careful = shown("ro");
    for word in ["ro,nosuid,nodev", "fuse.extant", image.to_str().unwrap()] {
        assert!(careful.contains(word), "no {word} in {careful}");
    }
    assert!(!careful.contains("allow_other") && !careful.contains("noexec"), "{careful}");
    let named = shown("rw,fsname=some where,subtype=other,noexec,default_permissions");
    for word in ["rw,nosuid,nodev,noexec", " fuse.other some\\040where ", "default_permissions"] {
        assert!(named.contains(word), "no {word} in {named}");
    }
    if extant_testkit::is_root() {
        let open = shown("rw,suid,dev,allow_other");
        assert!(open.contains("allow_other") && open.contains("default_permissions"), "{open}");
        assert!(!open.contains("nosuid") && !open.contains("nodev"), "{open}");
    }
    e2fsck_clean(&image);
}

/// Compared with the kernel: defaults that `tune2fs -o` sets, and mount options that override them.
#[test]
fn the_superblocks_options_are_the_defaults() {
    if !has_fuse_and_root() {
        return;
    }
    let makes = "mkdir d; chgrp 50 d; chmod 755 d; mkdir d/in; stat -c %g d/in; chown 70000 d/in";
    let show = "stat -c '%u %g' d/in";
    for (asked, options) in [
        ("bsdgroups", ""),
        ("bsdgroups", ",nogrpid"),
        ("^bsdgroups", ",grpid"),
        ("uid16", ""),
        ("journal_data,nodelalloc", ""),
    ] {
        let look = |by_kernel: bool| {
            let (_dir, image) = empty_image(&[]);
            extant_testkit::run("tune2fs", ["-o", asked, image.to_str().unwrap()]);
            let words = format!("rw{options}");
            let (made, kept) = match by_kernel {
                true => {
                    let made = runs(extant_testkit::LoopMount::new(&image, &words).unwrap().path(), makes);
                    (made, runs(extant_testkit::LoopMount::new(&image, "rw").unwrap().path(), show))
                }
                false => {
                    let mount = mount_with(&image, &words);
                    let made = runs(mount.path(), makes);
                    mount.unmount();
                    let mount = mount_with(&image, "rw");
                    let kept = runs(mount.path(), show);
                    mount.unmount();
                    (made, kept)
                }
            };
            e2fsck_clean(&image);
            (made, kept)
        };
        assert_eq!(look(false), look(true), "{asked}{options}");
    }
}

/// With the writeback cache the kernel sets times itself. In inodes of 128 bytes it also uses whole seconds,
/// so stat(1) shows the same before and after a remount.
#[test]
fn times_of_small_inodes_are_the_same_after_a_new_mount() {
    if !has_fuse() {
        return;
    }
    for options in ["rw,nowriteback_cache", "rw,writeback_cache"] {
        let (_dir, image) = empty_image(&["-I", "128"]);
        let mount = mount_with(&image, options);
        let before = runs(mount.path(), "echo a >f; stat -c '%y %z' f");
        mount.unmount();
        let mount = mount_with(&image, options);
        assert_eq!(runs(mount.path(), "stat -c '%y %z' f"), before, "{options}");
        mount.unmount();
        e2fsck_clean(&image);
    }
}

#[test]
fn devices_and_set_id_bits_count_where_they_are_let() {
    if !has_fuse_and_root() {
        return;
    }
    let (_dir, image) = empty_image(&[]);
    let mount = mount_with(&image, "rw,allow_other,dev,suid");
    std::fs::set_permissions(mount.path(), PermissionsExt::from_mode(0o755)).unwrap();
    runs(
        mount.path(),
        "mknod zero c 1 5; chmod 666 zero; cp $(command -v id) own-id; chown 65534 own-id; chmod 4755 own-id",
    );
    let user = |mount: &Mount| runs(mount.path(), "./own-id -u").trim().to_owned();
    let opens = |mount: &Mount| File::open(mount.path().join("zero"));
    assert_eq!(user(&mount), "65534");
    let mut byte = [1];
    std::io::Read::read_exact(&mut opens(&mount).unwrap(), &mut byte).unwrap();
    assert_eq!(byte, [0]);
    mount.unmount();
    for (options, uid) in [("rw,allow_other", "0"), ("rw,allow_other,suid,nodev", "65534")] {
        let mount = mount_with(&image, options);
        assert_eq!(opens(&mount).unwrap_err().kind(), ErrorKind::PermissionDenied, "{options}");
        assert_eq!(user(&mount), uid, "{options}");
        mount.unmount();
    }
    let mount = mount_with(&image, "ro,noexec");
    let refused = shell(mount.path(), "./own-id").wait().unwrap();
    assert_eq!(refused.code(), Some(126));
    mount.unmount();
}

#[test]
fn bytes_are_durable_when_a_synchronous_write_returns() {
    if !has_fuse() {
        return;
    }
    for options in ["rw,nowriteback_cache", "rw,writeback_cache"] {
        are_durable_when_a_write_returns(options);
    }
}

fn are_durable_when_a_write_returns(options: &str) {
    let (_dir, image) = empty_image(&[]);
    let mount = Mount::new(&image, &["-o", options]);
    let bytes = vec![0x5A; 65_536];
    let ways = [("dsync", OFlags::DSYNC), ("sync", OFlags::SYNC), ("direct", OFlags::SYNC | OFlags::DIRECT)];
    for (name, flags) in ways {
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(false).custom_flags(flags.bits() as i32);
        let file = options.open(mount.path().join(name)).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
    }
    // The same with the file's own flag.
    runs(mount.path(), "touch flag; chattr +S flag");
    let mut file = OpenOptions::new().append(true).open(mount.path().join("flag")).unwrap();
    file.write_all(&bytes).unwrap();
    let server = mount.server();
    kill_process(server, Signal::KILL).unwrap();
    wait_until("the server ends", || has_ended(server));
    drop(file);
    mount.unmount();
    mount.try_mount(&image, &[]).code(0);
    for name in ["dsync", "sync", "direct", "flag"] {
        assert!(std::fs::read(mount.path().join(name)).unwrap() == bytes, "{name}");
    }
    mount.unmount();
    e2fsck_clean(&image);
}

/// O_DIRECT is used if the storage of the image supports it; otherwise a note is printed, and the mount
/// works.
#[test]
fn an_image_past_the_page_cache_is_one_if_the_system_can_do_that() {
    if !has_fuse() {
        return;
    }
    // The flags of the server's descriptor of the image, in octal as the kernel prints them. O_DIRECT is
    // 040000, or 0200000 on arm64.
    let has_direct = |server: rustix::process::Pid, image: &Path| {
        let number = server.as_raw_pid();
        let fds = std::fs::read_dir(format!("/proc/{number}/fd")).unwrap().flatten();
        let of_image = fds.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|target| target == image));
        of_image
            .map(|fd| {
                let info = format!("/proc/{number}/fdinfo/{}", fd.file_name().to_str().unwrap());
                let info = std::fs::read_to_string(info).unwrap();
                let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
                u32::from_str_radix(flags, 8).unwrap() & OFlags::DIRECT.bits() != 0
            })
            .collect::<Vec<_>>()
    };
    let script = "seq 100000 > a; cp a b; truncate -s 5000 b; cat a >> b; sync b; mkdir d; mv a d";
    for (bytes_more, can) in [(0, true), (100, false)] {
        let (dir, image) = empty_image(&[]);
        // Checks the storage first: not all support O_DIRECT.
        let image = dir.path().join(image.file_name().unwrap()).canonicalize().unwrap();
        let mut options = OpenOptions::new();
        let can = can && options.read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(&image).is_ok();
        let file = OpenOptions::new().write(true).open(&image).unwrap();
        file.set_len(file.metadata().unwrap().len() + bytes_more).unwrap();
        drop(file);
        let mount = Mount::unmounted();
        let said =
            outcome(extant().arg("mount").arg(&image).arg(mount.path()).args(["-o", "rw,image_direct"]))
                .code(0)
                .to_owned();
        assert_eq!(said.contains("through the page cache, since O_DIRECT is refused"), !can, "{said}");
        assert_eq!(has_direct(mount.server(), &image), [can]);
        runs(mount.path(), script);
        mount.unmount();
        e2fsck_clean(&image);
        let mount = mount_with(&image, "ro,image_direct");
        assert_eq!(has_direct(mount.server(), &image), [can]);
        assert_eq!(runs(mount.path(), "wc -l < d/a; tail -n 1 b"), "100000\n100000\n");
        mount.unmount();
    }
}

/// Calls the ioctl with perl, because no crate provides it.
fn shut_down(dir: &Path, number: &str, flags: u32) -> String {
    let script = format!(
        "perl -e 'open D, \"<\", \".\" or die; my $f = pack \"L\", {flags}; print ioctl(D, {number}, $f) ? \"done\" : \"$!\"'"
    );
    finish(shell(dir, &script))
}

#[test]
fn swapping_blocks_is_refused_as_not_done_here() {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = empty_image(&[]);
    let mount = Mount::new(&image, &[]);
    for number in ["0xC028660F", "0x6611"] {
        let script = format!(
            "perl -e 'open F, \"+>\", \"f\" or die; my $a = \"\\0\" x 40; print ioctl(F, {number}, $a) ? \"done\" : $! + 0'"
        );
        assert_eq!(
            finish(shell(mount.path(), &script)),
            Errno::OPNOTSUPP.raw_os_error().to_string(),
            "{number}"
        );
    }
    mount.unmount();
    e2fsck_clean(&image);
}

#[test]
fn after_a_shutdown_nothing_is_read_or_written() {
    if !has_fuse() {
        return;
    }
    // EXT4_IOC_SHUTDOWN, whose flags FUSE does not pass on, and the number with which it does.
    const PLAIN: &str = "0x8004587D";
    const WITH_FLAGS: &str = "0x4004587D";
    for (number, flags, is_late_there) in
        [(PLAIN, 2, Some(3)), (WITH_FLAGS, 0, Some(3)), (WITH_FLAGS, 1, Some(0)), (WITH_FLAGS, 2, None)]
    {
        let (_dir, image) = empty_image(&[]);
        let mount = Mount::new(&image, &[]);
        let server = mount.server();
        let at = |name: &str| mount.path().join(name);
        std::fs::write(at("synced"), "synced").unwrap();
        File::open(at("synced")).unwrap().sync_all().unwrap();
        let held = File::options().read(true).write(true).open(at("synced")).unwrap();
        std::fs::write(at("late"), "new").unwrap();
        assert_eq!(shut_down(mount.path(), WITH_FLAGS, 77), "Invalid argument");
        assert_eq!(shut_down(mount.path(), number, flags), "done", "{number} {flags}");
        let io = Some(5);
        assert_eq!(held.write_at(b"x", 0).unwrap_err().raw_os_error(), io);
        assert_eq!(held.sync_all().unwrap_err().raw_os_error(), io);
        assert_eq!(std::fs::write(at("more"), "").unwrap_err().raw_os_error(), io);
        assert_eq!(std::fs::remove_file(at("synced")).unwrap_err().raw_os_error(), io);
        wait_until("what the kernel remembers is gone", || held.read_at(&mut [0], 0).is_err());
        let then = std::fs::read(&image).unwrap();
        drop(held);
        extant_testkit::run("umount", [Path::new("-l"), mount.path()]);
        wait_until("the server ends", || has_ended(server));
        assert!(!is_mounted(mount.path()));
        assert!(std::fs::read(&image).unwrap() == then, "something was written");
        assert!(mount.try_mount(&image, &[]).code(0).contains("journal was replayed"));
        assert_eq!(std::fs::read(at("synced")).unwrap(), b"synced");
        let late = std::fs::metadata(at("late")).ok().map(|all| all.len());
        assert_eq!(late, is_late_there, "{number} {flags}");
        mount.unmount();
        e2fsck_clean(&image);
    }
}

#[test]
fn ways_of_writing_leave_the_same() {
    if !has_fuse() {
        return;
    }
    for options in [
        "nobuffered_iomap",
        "nobuffered_iomap,data=writeback",
        "data=ordered",
        "notrack_opens",
        "notrack_opens,track_closes",
        "track_closes,noauto_da_alloc",
        "commit=1",
        "noauto_da_alloc",
        "data=journal",
        "io=rings",
        "image_direct",
        "image_direct,io=calls",
        "es_policy=baseline,flush=seed,flush_delay=full,orphans=list-v0",
        "es_policy=upstream,flush=empty-txn,min_batch_time=300,orphans=list-v3",
        "nobarrier,orphans=none,max_batch_time=0,flush=none",
        "io=calls",
        "writeback_cache",
        "nowriteback_cache",
        "writeback_cache,notrack_opens",
    ] {
        let (_dir, image) = empty_image(&["-O", "orphan_file"]);
        let mount = Mount::new(&image, &["-o", options]);
        let script = "seq 100000 > a; cp a b; truncate -s 5000 b; cat a >> b; seq 10 > c; mv c a; : > b; seq 3 > b; \
                      exec 3<>a; rm a; seq 7 >&3; seq 400 | xargs touch; rm 1*; cksum b <&3";
        let output = runs(mount.path(), script);
        assert!(
            output.starts_with(&runs(mount.path(), "seq 3 | cksum | cut -d' ' -f1-2").trim().to_owned()),
            "{options}: {output}"
        );
        mount.unmount();
        e2fsck_clean(&image);
    }
}

/// The mount's root reports the state of the extent cache, in the format of the kernel's file.
#[test]
fn the_root_shows_the_extent_statistics() {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = empty_image(&[]);
    let mount = Mount::new(&image, &["-o", "es_policy=es-gc"]);
    runs(mount.path(), "seq 100000 > a; sync a");
    let mut text = [0; 4096];
    let mut counts = [0; 4096];
    let len = rustix::fs::getxattr(mount.path(), "extant.mb_stats", &mut counts[..]).unwrap();
    let counts = String::from_utf8_lossy(&counts[..len]).into_owned();
    assert!(counts.starts_with("mballoc:") && counts.contains("cr_p2_aligned"), "{counts}");
    let len = rustix::fs::getxattr(mount.path(), "extant.es_shrinker_info", &mut text[..]).unwrap();
    let text = std::str::from_utf8(&text[..len]).unwrap();
    assert!(text.starts_with("stats:") && text.contains("cache hits/misses"), "{text}");
    assert!(!text.contains(" 0 inodes on list"), "{text}");
    assert_eq!(
        rustix::fs::getxattr(mount.path().join("a"), "extant.es_shrinker_info", &mut [0; 9][..]),
        Err(Errno::OPNOTSUPP)
    );
    mount.unmount();
    e2fsck_clean(&image);
}

/// A file that replaces old contents is written back on close, without fsync; the next commit makes it
/// durable.
#[test]
fn closing_writes_back_what_replaces_other_bytes() {
    if !has_fuse() {
        return;
    }
    for options in ["track_closes", "notrack_opens,track_closes", "track_opens"] {
        let (_dir, image) = empty_image(&[]);
        let mount = Mount::new(&image, &["-o", options]);
        runs(mount.path(), "echo old > file; sync file; echo new and longer > file");
        // `track_opens` depends on the kernel's RELEASE request, which is asynchronous: nothing waits for it.
        if options == "track_opens" {
            std::thread::sleep(std::time::Duration::from_secs(1));
        }
        runs(mount.path(), "echo other > other; sync other");
        let server = mount.server();
        kill_process(server, Signal::KILL).unwrap();
        wait_until("the server ends", || has_ended(server));
        mount.unmount();
        mount.try_mount(&image, &[]).code(0);
        let text = std::fs::read_to_string(mount.path().join("file")).unwrap();
        assert_eq!(text, "new and longer\n", "{options}");
        mount.unmount();
        e2fsck_clean(&image);
    }
}

/// File handles with perl, because no crate provides them: prints the handle of `name`, or opens and reads
/// the file of `handle`.
fn handle_script(name: &str, handle: &str) -> String {
    // name_to_handle_at and open_by_handle_at; length and type of a handle come before its bytes.
    format!(
        r#"perl -e '
my ($name, $hex) = ("{name}", "{handle}");
if ($hex eq "") {{
    my ($h, $m) = (pack("Ll", 64, 0) . "\0" x 64, pack("l", 0));
    syscall(303, -100, $name, $h, $m, 0) == 0 or die "$!";
    print unpack("H*", substr($h, 0, 8 + unpack("L", $h)));
}} else {{
    open D, "<", "." or die;
    my $h = pack("H*", $hex);
    my $fd = syscall(304, fileno(D), $h, 0);
    if ($fd < 0) {{ print "$!" }} else {{ open F, "<&=", $fd or die; print -d F ? "directory" : <F> }}
}}'"#
    )
}

#[test]
fn handles_of_files_outlive_the_mount() {
    if !has_fuse_and_root() || !cfg!(target_arch = "x86_64") {
        return;
    }
    let (_dir, image) = empty_image(&[]);
    let mount = Mount::new(&image, &[]);
    runs(mount.path(), "mkdir -p d/e; echo deep > d/e/file; echo gone > gone; echo kept > kept");
    let handle = |name: &str| runs(mount.path(), &handle_script(name, ""));
    let opened = |handle: &str| runs(mount.path(), &handle_script("", handle));
    let names = ["d/e/file", "gone", "kept", "d/e", "."];
    let handles = names.map(handle);
    mount.unmount();
    mount.try_mount(&image, &[]).code(0);
    // These names were not looked up yet.
    assert_eq!(
        handles.clone().map(|handle| opened(&handle)),
        ["deep\n", "gone\n", "kept\n", "directory", "directory"]
    );
    // A new file with the inode number of a deleted one is a different file.
    runs(
        mount.path(),
        "stat -c %i gone > number; rm gone; for i in $(seq 50); do echo other > new$i; done; mv d/e/file kept",
    );
    runs(mount.path(), "[ $(stat -c %i new* | grep -cx $(cat number)) = 1 ]");
    mount.unmount();
    mount.try_mount(&image, &[]).code(0);
    assert_eq!(
        handles.clone().map(|handle| opened(&handle)),
        ["deep\n", "Stale file handle", "Stale file handle", "directory", "directory"]
    );
    assert_eq!(
        names.map(|name| std::fs::symlink_metadata(mount.path().join(name)).is_ok()),
        [false, false, true, true, true]
    );
    mount.unmount();
    e2fsck_clean(&image);
}

/// The visible effect of `--cache` on caches, allocator and kernel together. `bench/memory.py` is the large
/// version.
#[test]
fn a_mount_takes_little_more_memory_than_its_cache() {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = empty_image(&["-N", "20000"]);
    let mount = Mount::new(&image, &["-o", "rw", "--cache", "8M"]);
    runs(
        mount.path(),
        "for d in $(seq 60); do mkdir $d; for f in $(seq 100); do echo content > $d/$f; done; done
         dd if=/dev/zero of=large bs=1M count=24 status=none; find . -ls > /dev/null; cat large > /dev/null",
    );
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", mount.server().as_raw_nonzero())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kib < (8 + 48) << 10, "{kib} KiB");
    mount.unmount();
    e2fsck_clean(&image);
}
