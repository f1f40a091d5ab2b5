//! The kernel's write-back cache: when it is used; data in it gets space, or its writer gets an error;
//! requests that need the data get it; holes keep their places.
//!
//! Needs /dev/fuse. Without it, tests print a note and pass.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::mounted::{Mount, empty_image, has_ended, has_fuse, runs, umounted, wait_until};
use crate::common::{extant, outcome};
use extant_testkit::e2fsck_clean;
use rustix::fs::SeekFrom;
use rustix::process::Signal;

const NO_SPACE: Option<i32> = Some(28);
const PIECE: usize = 1 << 20;

/// Bytes that differ in every piece.
fn piece(number: usize) -> Vec<u8> {
    (0..PIECE).map(|at| (at / 4096 + number * 7) as u8).collect()
}

/// A file that is opened when space is short accepts only writes that have space.
#[test]
fn a_write_is_refused_where_space_is_short() {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = empty_image(&[]);
    let mount = Mount::new(&image, &["-o", "writeback_cache"]);
    // At most 12 MiB stay free, and 2 * 7 may be dirty.
    runs(mount.path(), "fallocate -l $(($(stat -f -c '%a * %S' .) - (12 << 20))) filler");
    let path = mount.path().join("f");
    let mut file = File::create(&path).unwrap();
    let mut whole = 0;
    let error = loop {
        match file.write_all(&piece(whole)) {
            Ok(()) => whole += 1,
            Err(error) => break error,
        }
        assert!(whole < 128, "more than there is");
    };
    assert_eq!(error.raw_os_error(), NO_SPACE);
    file.sync_all().unwrap();
    let size = file.metadata().unwrap().len() as usize;
    assert!(whole * PIECE <= size && size < (whole + 1) * PIECE, "{size}");
    drop(file);
    mount.unmount();
    mount.try_mount(&image, &[]).code(0);
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes.len(), size);
    for (number, got) in bytes.chunks_exact(PIECE).enumerate() {
        assert!(got == piece(number), "{number}");
    }
    mount.unmount();
    e2fsck_clean(&image);
}

/// A file that was opened earlier is written in equal pieces: the first piece without space is refused.
#[test]
fn a_file_that_was_open_before_space_was_short_gets_only_what_has_space() {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = empty_image(&[]);
    let mount = Mount::new(&image, &["-o", "writeback_cache"]);
    let path = mount.path().join("f");
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    let mut whole = 0;
    let error = loop {
        match file.write_all(&piece(whole)) {
            Ok(()) => whole += 1,
            Err(error) => break error,
        }
        assert!(whole < 256, "more than there is");
    };
    assert_eq!(error.raw_os_error(), NO_SPACE);
    // Mounts of root limit the kernel's cache; on other mounts the kernel may cache more than the free space.
    let safe = if extant_testkit::is_root() { whole } else { 0 };
    // A reader at the end of the file is not refused.
    let end = file.metadata().unwrap().len();
    assert_eq!(file.read_at(&mut [0; 10], end).unwrap(), 0);
    let synced = file.sync_all();
    assert!(synced.is_ok() || safe == 0, "{synced:?}");
    drop(file);
    mount.unmount();
    mount.try_mount(&image, &[]).code(0);
    let bytes = std::fs::read(&path).unwrap();
    assert!(bytes.len() >= safe * PIECE, "{} of {whole} pieces", bytes.len());
    for (number, got) in bytes.chunks_exact(PIECE).take(safe).enumerate() {
        assert!(got == piece(number), "{number}");
    }
    mount.unmount();
    e2fsck_clean(&image);
}

/// How many WRITE requests a mount has got.
fn write_requests(mount: &Mount) -> u64 {
    let value = outcome(extant().args(["status", "--json"]).arg(mount.path())).report();
    let requests = value[0]["requests"].as_array().unwrap();
    requests.iter().find(|of| of["operation"] == "write").map_or(0, |of| of["count"].as_u64().unwrap())
}

/// By default, small writes are buffered if root mounts and there is space; then the limit of buffered data
/// follows the free space.
#[test]
fn small_writes_are_buffered_where_that_is_safe() {
    if !has_fuse() || !extant_testkit::is_root() || !Path::new("/sys/class/bdi").exists() {
        return;
    }
    let cases = [
        ("", "128M", true),
        ("nowriteback_cache", "128M", false),
        ("writeback_cache,nowriteback_cache", "128M", false),
        ("notrack_opens", "128M", false),
        // Less than 16 MiB are free.
        ("", "12M", false),
        ("writeback_cache", "12M", true),
    ];
    for (options, size, is_buffered) in cases {
        let (_dir, image) = empty_image(&[]);
        extant_testkit::run("mke2fs", ["-q", "-F", "-t", "ext4", image.to_str().unwrap(), size]);
        let mount = Mount::new(&image, &["-o", &format!("rw,{options}")]);
        let mut file = File::create(mount.path().join("f")).unwrap();
        for _ in 0..1000 {
            file.write_all(b"x").unwrap();
        }
        drop(file);
        let count = write_requests(&mount);
        assert!(if is_buffered { count < 100 } else { count >= 1000 }, "{options} {size}: {count}");
        if size == "128M" && is_buffered {
            let device = runs(mount.path(), "mountpoint -d .");
            let knob = format!("/sys/class/bdi/{}/max_bytes", device.trim());
            let limit = || std::fs::read_to_string(&knob).unwrap().trim().parse::<u64>().unwrap();
            let before = limit();
            runs(mount.path(), "fallocate -l $(($(stat -f -c '%a * %S' .) - (40 << 20))) filler; echo x > g");
            // The kernel rounds.
            assert!(before > 6 << 20 && limit() < 4 << 20, "{before} {}", limit());
            runs(mount.path(), "rm filler; sync; echo y > h");
            assert!(limit() > 6 << 20, "{}", limit());
        }
        mount.unmount();
        e2fsck_clean(&image);
    }
}

/// Buffered data keeps its space when another process takes all the rest at once.
#[test]
fn buffered_data_has_space_whatever_others_take() {
    if !has_fuse() || !extant_testkit::is_root() {
        return;
    }
    let takes = [
        "fallocate -l $(stat -f -c '%a * %S' . | sed 's/$/ - 600000/' | bc) filler || true",
        "dd if=/dev/zero of=filler bs=1M oflag=direct status=none || true",
        "dd if=/dev/zero of=filler bs=64k status=none || true",
    ];
    for take in takes {
        let (_dir, image) = empty_image(&["-m", "0"]);
        let mount = Mount::new(&image, &["-o", "writeback_cache"]);
        let path = mount.path().join("f");
        let mut file = File::create(&path).unwrap();
        for number in 0..4 {
            file.write_all(&piece(number)).unwrap();
        }
        runs(mount.path(), take);
        // The first write may be accepted without space, because its size is not known. Then sync fails.
        let is_accepted = file.write_all(&piece(9)).is_ok();
        assert!(file.sync_all().is_ok() || is_accepted, "{take}");
        let _ = file.write_all(&piece(9));
        // Each of these gives the kernel attributes of the file, and the file still refuses what has no space.
        // (None of them frees space: a part of the write that was accepted may have been written.)
        let changes =
            ["stat f", "ln f g", "chmod 600 f", "truncate -s 8M f", "touch f", "ls -l; cat f | wc -c"];
        for change in changes {
            runs(mount.path(), change);
            let refused = file.write_all(&piece(9)).expect_err(change);
            assert_eq!(refused.raw_os_error(), NO_SPACE, "{take}, {change}");
        }
        file.sync_all().unwrap_or_else(|error| panic!("{take}: {error}"));
        drop(file);
        mount.unmount();
        mount.try_mount(&image, &[]).code(0);
        let bytes = std::fs::read(&path).unwrap();
        for (number, got) in bytes.chunks_exact(PIECE).take(4).enumerate() {
            assert!(got == piece(number), "{take}: {number}");
        }
        mount.unmount();
        e2fsck_clean(&image);
    }
}

/// Direct I/O to a file changes its mtime on disk, though the kernel keeps the times of buffered files.
#[test]
fn appends_to_an_append_only_file_change_its_time() {
    if !has_fuse() || !extant_testkit::is_root() {
        return;
    }
    let (_dir, image) = empty_image(&[]);
    let mount = Mount::new(&image, &["-o", "writeback_cache"]);
    runs(mount.path(), "echo a > f; touch -d '2001-01-01' f; chattr +a f; echo b >> f; sync f");
    mount.unmount();
    mount.try_mount(&image, &[]).code(0);
    let year = runs(mount.path(), "chattr -a f; stat -c %y f");
    assert!(!year.starts_with("2001"), "{year}");
    mount.unmount();
    e2fsck_clean(&image);
}

/// A file that becomes immutable refuses the next write, also through a descriptor that was opened before.
/// Reads through this descriptor work.
#[test]
fn an_immutable_file_refuses_writes_of_open_descriptors() {
    if !has_fuse() || !extant_testkit::is_root() {
        return;
    }
    let (_dir, image) = empty_image(&[]);
    let mount = Mount::new(&image, &["-o", "writeback_cache"]);
    let path = mount.path().join("f");
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all(b"before\n").unwrap();
    runs(mount.path(), "chattr +i f");
    for _ in 0..2 {
        assert_eq!(file.write_all(b"no").unwrap_err().raw_os_error(), Some(1));
        // These give the kernel attributes.
        runs(mount.path(), "stat f; ls -l; cat f");
        assert_eq!(file.read_at(&mut [0; 100], 0).unwrap(), 7);
    }
    runs(mount.path(), "chattr -i f");
    file.write_all(b"after\n").unwrap();
    drop(file);
    mount.unmount();
    mount.try_mount(&image, &[]).code(0);
    assert_eq!(runs(mount.path(), "cat f"), "before\nafter\n");
    mount.unmount();
    e2fsck_clean(&image);
}

/// SEEK_DATA finds cached bytes as data, and SEEK_HOLE finds holes. A copy with `--sparse=never` has none.
#[test]
fn holes_are_found_beside_what_the_kernel_keeps() {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = empty_image(&[]);
    let mount = Mount::new(&image, &["-o", "writeback_cache"]);
    let file =
        OpenOptions::new().read(true).write(true).create_new(true).open(mount.path().join("f")).unwrap();
    file.set_len(8 << 20).unwrap();
    file.write_all_at(&[7; 4096], 4 << 20).unwrap();
    assert_eq!(rustix::fs::seek(&file, SeekFrom::Hole(0)).unwrap(), 0);
    assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(0)).unwrap(), 4 << 20);
    assert_eq!(rustix::fs::seek(&file, SeekFrom::Hole(4 << 20)).unwrap(), (4 << 20) + 4096);
    assert!(rustix::fs::seek(&file, SeekFrom::Data(5 << 20)).is_err());
    let blocks = runs(mount.path(), "cp --sparse=never f g; sync g; cmp f g; stat -c %b g");
    assert!(blocks.trim().parse::<u64>().unwrap() >= 16_384, "{blocks}");
    drop(file);
    mount.unmount();
    e2fsck_clean(&image);
}

/// Cached times and data reach a file that became append-only or immutable in the meantime.
#[test]
fn what_was_taken_before_a_file_became_append_only_is_written() {
    if !has_fuse() || !extant_testkit::is_root() {
        return;
    }
    let (_dir, image) = empty_image(&[]);
    let mount = Mount::new(&image, &["-o", "writeback_cache"]);
    for flag in ["a", "i"] {
        let path = mount.path().join(flag);
        let mut file = File::create(&path).unwrap();
        file.write_all(b"before\n").unwrap();
        runs(mount.path(), &format!("chattr +{flag} {flag}"));
        file.sync_all().unwrap();
        drop(file);
        let appended = OpenOptions::new().append(true).open(&path);
        match flag {
            "a" => {
                let mut file = appended.unwrap();
                file.write_all(b"after\n").unwrap();
                file.sync_all().unwrap();
            }
            _ => assert_eq!(appended.unwrap_err().raw_os_error(), Some(1)),
        }
    }
    mount.unmount();
    mount.try_mount(&image, &[]).code(0);
    assert_eq!(runs(mount.path(), "cat a i; chattr -a a; chattr -i i"), "before\nafter\nbefore\n");
    mount.unmount();
    e2fsck_clean(&image);
}

/// Ends the server by a signal while `open` is open, and mounts the image again.
fn mounted_after(mount: &Mount, image: &Path, signal: Signal, open: File) {
    let server = mount.server();
    rustix::process::kill_process(server, signal).unwrap();
    wait_until("the server ends", || has_ended(server));
    drop(open);
    if signal == Signal::KILL {
        umounted(|| outcome(extant().arg("umount").arg(mount.path())));
    }
    mount.try_mount(image, &[]).code(0);
}

/// The kernel has data of a file that is open. A rename over another file, `sync` of the root and the end by
/// a signal get it first.
#[test]
fn requests_that_need_the_kernels_data_get_it() {
    if !has_fuse() {
        return;
    }
    let bytes = [7; 10_000];
    let (_dir, image) = empty_image(&[]);
    let cases = [
        (Signal::KILL, "mv new f; echo x > other; sync other"),
        (Signal::KILL, "mv new f; sync ."),
        (Signal::TERM, "mv new f"),
        (Signal::KILL, "ln new g; sync ."),
        (Signal::TERM, "ln new g"),
    ];
    for (signal, script) in cases {
        let mount = Mount::new(&image, &["-o", "writeback_cache"]);
        runs(mount.path(), "rm -f f g; echo old > f; echo > other; sync f .");
        let mut file = File::create(mount.path().join("new")).unwrap();
        file.write_all(&bytes).unwrap();
        runs(mount.path(), script);
        mounted_after(&mount, &image, signal, file);
        let name = if script.starts_with("mv") { "f" } else { "g" };
        assert!(std::fs::read(mount.path().join(name)).unwrap() == bytes, "{script}");
        mount.unmount();
        e2fsck_clean(&image);
    }
}
