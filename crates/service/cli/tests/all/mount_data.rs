//! `extant mount -o rw`: file contents. Data that programs write is visible at once, after the unmount, in
//! the kernel's ext4, and, if it was synced, after the server was killed.
//!
//! Needs /dev/fuse; comparisons with the kernel also need root. Without them, tests print a note and pass.

use crate::common;

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crate::common::mounted::{
    Mount, empty_image, finish, has_ended, has_fuse, has_fuse_and_root, is_mounted, runs, shell, wait_until,
};
use crate::common::{EXISTS, USAGE, assert_has, extant, outcome};
use extant_testkit::{DiffOptions, LoopMount, Manifest, Time, diff, e2fsck_clean};
use rustix::fs::{FallocateFlags, SeekFrom as Whence, copy_file_range, fallocate, seek};
use rustix::io::Errno;
use rustix::process::{Signal, kill_process};

/// Changes of file contents by shells and their tools. Needs an empty directory.
const WORKLOAD: &str = r#"
set -e
umask 022
seq 200000 > text
for i in 1 2 3 4 5; do echo "line $i" >> log; done
head -c 5000000 /dev/zero | tr '\0' x > big
dd if=text of=big bs=4097 seek=300 conv=notrunc status=none
truncate -s 1000001 big; echo tail >> big
truncate -s 3000000 big; echo far >> big
printf 'begin' > sparse; printf 'end' | dd of=sparse bs=1 seek=50000000 conv=notrunc status=none
# (Without extents Linux 6.18 does not find the end of a file by SEEK_DATA before it was written back.)
sync big sparse
cp --sparse=always sparse still-sparse; cp text copy; cat text log > both
printf hello > short; printf J | dd of=short bs=1 conv=notrunc status=none; printf '' > none; : > short
for i in 1 20 60 100 150 200 4000; do head -c $i text > len-$i; echo more >> len-$i; truncate -s $((i / 2)) len-$i; done
cp big hole; if fallocate -p -o 8000 -l 500000 hole 2>/dev/null; then fallocate -p -o 1 -l 3 hole; fi
fallocate -l 1000000 reserved 2>/dev/null || truncate -s 1000000 reserved
fallocate -n -l 2000000 log 2>/dev/null || true
cp text zeroed; fallocate -z -o 1000 -l 60000 zeroed 2>/dev/null || true
cp /bin/ls set-id; chmod 6777 set-id; echo >> set-id
cp /bin/ls lost-id; chmod 6777 lost-id; setpriv --bounding-set=-fsetid sh -c 'echo >> lost-id'
for mode in 6777 6745 2751; do cp short chown-$mode; chmod $mode chown-$mode; chown : chown-$mode; done
cp short able; setfattr -n security.capability -v 0x0100000200200000000000000000000000000000 able; echo >> able
for way in 'truncate -s 9000' 'fallocate -l 99000' 'fallocate -p -o 0 -l 4096' 'cp text'; do
  for mode in 6777 6745 4755; do
    name="lost-$(echo $way | cut -c1-12 | tr ' ' -)-$mode"; cp /bin/ls $name; chmod $mode $name
    setpriv --bounding-set=-fsetid sh -c "$way $name" || true
    cp /bin/ls kept-$name; chmod $mode kept-$name; sh -c "$way kept-$name" || true
  done
done
sed -i s/1/one/ text; sort -o sorted -r log; install -m 600 text installed
mkdir tree; (cd tree; for d in a b c; do mkdir $d; for f in 1 2 3 4 5 6 7 8; do seq $((f * 700)) > $d/$f; done; done)
tar --sort=name --mtime=@0 -cf tree.tar tree; mkdir again; tar -xf tree.tar -C again; diff -r tree again/tree; rm -r tree
gzip -nk tree.tar; gzip -t tree.tar.gz
"#;

/// The manifest without times, which differ between two runs of the same commands.
fn repeatable(dir: &Path) -> Manifest {
    let mut manifest = Manifest::of(dir);
    let never = Time { seconds: 0, nanoseconds: 0 };
    for entry in manifest.entries.values_mut() {
        (entry.mtime, entry.atime) = (never, never);
    }
    manifest
}

fn comparable() -> DiffOptions {
    DiffOptions { btime: false, extents: false, same_image: false, ..DiffOptions::exact(4096) }
}

/// Asserts that two trees are equal.
#[track_caller]
fn assert_alike(what: &str, expected: &Manifest, found: &Manifest) {
    let lines = diff(expected, found, &comparable());
    assert!(lines.is_empty(), "{what}:\n{}", lines.join("\n"));
}

/// Pseudo-random bytes.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(next).collect()
}

fn create(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).unwrap()
}

fn free_blocks(dir: &Path) -> u64 {
    rustix::fs::statvfs(dir).unwrap().f_bfree
}

#[test]
fn a_shell_writes_what_it_writes_on_the_kernels_mount() {
    if !has_fuse_and_root() {
        return;
    }
    for (options, mount_options) in [
        (&["-O", "metadata_csum_seed,orphan_file"][..], "rw,nowriteback_cache"),
        (&["-O", "metadata_csum_seed,orphan_file"], "rw,writeback_cache"),
        (&["-O", "^extent,^64bit,^metadata_csum", "-b", "1024"], "rw"),
        (&["-O", "inline_data"], "rw"),
        (&["-O", "bigalloc", "-C", "16384"], "rw"),
        (&["-O", "^has_journal"], "rw"),
    ] {
        let (_theirs_dir, theirs) = empty_image(options);
        let (_ours_dir, ours) = empty_image(options);
        {
            let kernel = LoopMount::new(&theirs, "rw,noatime").unwrap();
            runs(kernel.path(), WORKLOAD);
        }
        let mount = Mount::new(&ours, &["-o", mount_options]);
        runs(mount.path(), WORKLOAD);
        let expected = repeatable(LoopMount::new(&theirs, "ro").unwrap().path());
        assert!(expected.entries.len() > 40);
        assert_alike(
            &format!("{options:?}, {mount_options}, while mounted"),
            &expected,
            &repeatable(mount.path()),
        );
        mount.unmount();
        e2fsck_clean(&ours);
        let by_kernel = repeatable(LoopMount::new(&ours, "ro").unwrap().path());
        assert_alike(&format!("{options:?}, by the kernel afterwards"), &expected, &by_kernel);
    }
}

#[test]
fn a_tree_is_copied_with_its_times_and_read_by_the_kernel() {
    if !has_fuse_and_root() {
        return;
    }
    let source = extant_testkit::scratch();
    runs(source.path(), "cp -a /usr/share/doc/[a-c]* . && du -sm . && find . -type f | wc -l");
    let (_dir, image) = empty_image(&["-O", "metadata_csum_seed,orphan_file"]);
    let mount = Mount::new(&image, &["--threads", "4"]);
    let expected = Manifest::of(source.path());
    let tar = format!("mkdir tar; tar --format=posix -C {} -c . | tar -x -C tar -p", source.path().display());
    let copy = format!("mkdir cp; cp -a {}/. cp", source.path().display());
    let shells = [shell(mount.path(), &tar), shell(mount.path(), &copy)];
    shells.into_iter().for_each(|shell| drop(finish(shell)));
    let options = DiffOptions { atime: false, ..comparable() };
    let alike = |what: &str, root: &Path| {
        for way in ["tar", "cp"] {
            let lines = diff(&expected, &Manifest::of(&root.join(way)), &options);
            assert!(lines.is_empty(), "{way}, {what}:\n{}", lines.join("\n"));
        }
    };
    alike("while mounted", mount.path());
    // umount(8) does not wait for the server; the server writes everything home on its own.
    let server = mount.server();
    extant_testkit::run("umount", [mount.path()]);
    wait_until("the server ends", || has_ended(server));
    e2fsck_clean(&image);
    alike("by the kernel", LoopMount::new(&image, "ro").unwrap().path());
}

#[test]
fn helpers_of_mount_and_umount_wait_until_the_image_is_durable() {
    if !has_fuse() {
        return;
    }
    let (dir, image) = empty_image(&[]);
    let helpers = dir.path().join("helpers");
    std::fs::create_dir(&helpers).unwrap();
    let install = || outcome(extant().arg("install-helpers").arg(&helpers));
    install().code(0);
    install().code(0);
    let target = dir.path().join("mnt");
    std::fs::create_dir(&target).unwrap();
    let call = |name: &str, args: &[&std::ffi::OsStr]| {
        outcome(extant_testkit::command(helpers.join(name).to_str().unwrap()).args(args))
    };
    let mount = |options: &str| {
        call(
            "mount.fuse.extant",
            &[image.as_os_str(), target.as_os_str(), "-n".as_ref(), "-o".as_ref(), options.as_ref()],
        )
    };
    mount("rw,nofail,x-systemd.automount,fsname=named").code(0);
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.contains(target.to_str().unwrap())).unwrap();
    assert!(line.contains(" - fuse.extant named "), "{line}");
    std::fs::write(target.join("file"), pattern(1, 3_000_000)).unwrap();
    call("umount.fuse.extant", &[target.as_os_str(), "-t".as_ref(), "fuse.extant".as_ref()]).code(0);
    // The image is not in use any more, and needs no recovery.
    assert!(!is_mounted(&target));
    e2fsck_clean(&image);
    mount("ro").code(0);
    assert!(std::fs::read(target.join("file")).unwrap() == pattern(1, 3_000_000));
    call("umount.fuse.extant", &[target.as_os_str()]).code(0);
    assert_eq!(mount("what").code, USAGE);
    if extant_testkit::is_root() {
        remounts(&mount, &target);
        call("umount.fuse.extant", &[target.as_os_str()]).code(0);
        e2fsck_clean(&image);
    }
    std::fs::remove_file(helpers.join("umount.fuse.extant")).unwrap();
    std::fs::write(helpers.join("umount.fuse.extant"), "").unwrap();
    assert_has(install().code(EXISTS), "no link");
}

/// Remounts read-write to read-only and back, several times; refused if the image was opened for reading.
/// `mount` mounts on `target`.
fn remounts(mount: &dyn Fn(&str) -> common::Outcome, target: &Path) {
    assert!(mount("remount,ro").code(1).contains("is not a mount of extant"));
    mount("rw,suid").code(0);
    let file = target.join("file");
    let flags = || rustix::fs::statvfs(target).unwrap().f_flag;
    let held = std::fs::OpenOptions::new().append(true).open(&file).unwrap();
    assert!(mount("remount,ro").code(1).contains("open for writing"));
    drop(held);
    for _ in 0..2 {
        let before = flags();
        mount("remount,ro").code(0);
        let changed = flags() ^ before;
        assert_eq!(changed, rustix::fs::StatVfsMountFlags::RDONLY);
        assert_eq!(std::fs::write(&file, "x").unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
        assert_eq!(std::fs::remove_file(&file).unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
        mount("remount,rw").code(0);
        assert_eq!(flags(), before);
        std::fs::write(&file, "y").unwrap();
    }
    mount("remount,noexec,nosuid").code(0);
    let now = flags();
    assert!(now.contains(rustix::fs::StatVfsMountFlags::NOEXEC | rustix::fs::StatVfsMountFlags::NOSUID));
    assert!(mount("remount,noload").code(USAGE).contains("anew"));
    extant_testkit::run("umount", [target]);
    wait_until("the image is free", || mount("rw").code == 0);
    extant_testkit::run("umount", [target]);
    mount("ro").code(0);
    mount("remount,rw").code(0);
    assert!(!flags().contains(rustix::fs::StatVfsMountFlags::RDONLY));
}

/// Random writes, truncations, holes and zeros. Returns the expected bytes.
fn disturb(file: &File, steps: u64, seed: u64) -> Vec<u8> {
    const SIZE_MAX: u64 = 3 << 20;
    let mut expected: Vec<u8> = Vec::new();
    let numbers = pattern(seed, steps as usize * 10);
    for step in numbers.chunks_exact(10) {
        let number = |at: usize| u64::from(u32::from_le_bytes([step[at], step[at + 1], step[at + 2], 0]));
        let (pos, len) = (number(1) % SIZE_MAX, number(4) % if step[9] < 200 { 20_000 } else { 700_000 } + 1);
        let end = (pos + len) as usize;
        let inside = pos as usize..end.min(expected.len());
        match step[0] % 16 {
            0..=8 => {
                let bytes = pattern(pos ^ len, len as usize);
                file.write_all_at(&bytes, pos).unwrap();
                expected.resize(expected.len().max(end), 0);
                expected[pos as usize..end].copy_from_slice(&bytes);
            }
            9 => {
                file.set_len(pos).unwrap();
                expected.resize(pos as usize, 0);
            }
            10 | 11 => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(file, flags, pos, len).unwrap();
                if !inside.is_empty() {
                    expected[inside].fill(0);
                }
            }
            12 => {
                fallocate(file, FallocateFlags::ZERO_RANGE, pos, len).unwrap();
                expected.resize(expected.len().max(end), 0);
                expected[pos as usize..end].fill(0);
            }
            13 => {
                fallocate(file, FallocateFlags::empty(), pos, len).unwrap();
                expected.resize(expected.len().max(end), 0);
            }
            14 => file.sync_data().unwrap(),
            _ => {
                let mut bytes = vec![1; inside.len()];
                if !inside.is_empty() {
                    file.read_exact_at(&mut bytes, pos).unwrap();
                    assert!(bytes == expected[inside], "read at {pos}, {len} bytes");
                }
            }
        }
        assert_eq!(file.metadata().unwrap().len(), expected.len() as u64);
    }
    expected
}

#[test]
fn random_writes_are_what_is_read() {
    if !has_fuse() {
        return;
    }
    for (options, args) in [
        (&["-O", "orphan_file"][..], &[][..]),
        (&["-b", "1024"], &["--threads", "1"]),
        (&["-O", "bigalloc"], &[]),
        (&["-O", "orphan_file"], &["-o", "nowriteback_cache"]),
    ] {
        let (_dir, image) = empty_image(options);
        let mount = Mount::new(&image, args);
        let expected: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let path = |number: u64| mount.path().join(format!("file-{number}"));
            let workers: Vec<_> = (0..4)
                .map(|number| scope.spawn(move || disturb(&create(&path(number)), 150, number + 7)))
                .collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).collect()
        });
        let compare = |root: &Path| {
            for (number, expected) in expected.iter().enumerate() {
                let there = std::fs::read(root.join(format!("file-{number}"))).unwrap();
                assert!(there == *expected, "{options:?}: file {number} of {}", root.display());
            }
        };
        compare(mount.path());
        mount.unmount();
        e2fsck_clean(&image);
        // The caches are empty now.
        mount.try_mount(&image, &[]).code(0);
        compare(mount.path());
        mount.unmount();
        if extant_testkit::is_root() {
            compare(LoopMount::new(&image, "ro").unwrap().path());
        }
    }
}

#[test]
fn appends_truncating_opens_and_writes_past_the_cache() {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = empty_image(&[]);
    let mount = Mount::new(&image, &["--threads", "4"]);
    let at = |name: &str| mount.path().join(name);
    // Lines of several concurrent writers do not overwrite each other.
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let path = at("log");
            scope.spawn(move || {
                let mut log = OpenOptions::new().append(true).create(true).open(path).unwrap();
                for line in 0..200 {
                    log.write_all(format!("{writer} {line:05}\n").as_bytes()).unwrap();
                }
            });
        }
    });
    let log = std::fs::read_to_string(at("log")).unwrap();
    let mut lines: Vec<&str> = log.lines().collect();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!((log.len(), lines.len()), (800 * 8, 800));
    // An append goes to the end of the file, even after another process truncated or extended it.
    let mut appends = OpenOptions::new().append(true).open(at("log")).unwrap();
    File::options().write(true).truncate(true).open(at("log")).unwrap().write_all(b"new ").unwrap();
    appends.write_all(b"end").unwrap();
    assert_eq!(std::fs::read(at("log")).unwrap(), b"new end");

    {
        drop(create(&at("direct")));
        let o_direct = rustix::fs::OFlags::DIRECT.bits() as i32;
        let mut direct = OpenOptions::new();
        let direct = direct.read(true).write(true).custom_flags(o_direct).open(at("direct")).unwrap();
        let bytes = pattern(3, 3 << 20);
        direct.write_all_at(&bytes, 0).unwrap();
        assert!(std::fs::read(at("direct")).unwrap() == bytes);
        // Written through the cache, read with O_DIRECT.
        let cached = OpenOptions::new().write(true).open(at("direct")).unwrap();
        cached.write_all_at(b"cached", 8192).unwrap();
        let mut page = vec![0; 4096];
        direct.read_exact_at(&mut page, 8192).unwrap();
        assert_eq!(&page[..6], b"cached");
    }
    drop(appends);
    mount.unmount();
    e2fsck_clean(&image);
}

#[test]
fn ranges_are_reserved_punched_copied_and_sought() {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = empty_image(&[]);
    let mount = Mount::new(&image, &[]);
    let at = |name: &str| mount.path().join(name);
    let file = create(&at("file"));
    let before = free_blocks(mount.path());
    fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 0);
    assert_eq!(before - free_blocks(mount.path()), 256);
    file.write_all_at(&pattern(1, 300_000), 0).unwrap();
    file.write_all_at(b"far", 900_000).unwrap();
    fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 100_000, 100_000).unwrap();
    // Whole blocks became a hole; the bytes at the edges are zeros.
    let sought = |whence| seek(&file, whence);
    assert_eq!(sought(Whence::Hole(0)), Ok(102_400));
    assert_eq!(sought(Whence::Data(102_400)), Ok(196_608));
    assert_eq!(sought(Whence::Data(400_000)), Ok(899_072 / 4096 * 4096));
    assert_eq!(sought(Whence::Data(900_003)), Err(Errno::NXIO));

    // In pieces, because the range exceeds the limit of a request.
    let (from, to) = (create(&at("from")), create(&at("to")));
    let bytes = pattern(9, 5 << 20);
    from.write_all_at(&bytes, 0).unwrap();
    to.write_all_at(b"head", 0).unwrap();
    let (mut from_at, mut to_at) = (5, 4);
    while copy_file_range(&from, Some(&mut from_at), &to, Some(&mut to_at), 8 << 20).unwrap() > 0 {}
    let copied = std::fs::read(at("to")).unwrap();
    assert!(copied[..4] == *b"head" && copied[4..] == bytes[5..]);
    // A hole is copied without allocating blocks.
    from.set_len(1 << 30).unwrap();
    let before = free_blocks(mount.path());
    (from_at, to_at) = (10 << 20, 10 << 20);
    while copy_file_range(&from, Some(&mut from_at), &to, Some(&mut to_at), 1 << 30).unwrap() > 0 {}
    assert_eq!((to_at, to.metadata().unwrap().len(), free_blocks(mount.path())), (1 << 30, 1 << 30, before));
    let overlap = copy_file_range(&from, Some(&mut 0), &from, Some(&mut 4096), 8192);
    assert_eq!(overlap, Err(Errno::INVAL));

    // Operations that the kernel does not pass on, and that ext4 does not have.
    for flags in [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE, FallocateFlags::UNSHARE_RANGE]
    {
        assert_eq!(fallocate(&file, flags, 0, 4096), Err(Errno::OPNOTSUPP), "{flags:?}");
    }
    drop((file, from, to));
    mount.unmount();
    e2fsck_clean(&image);
}

/// The users of reserved blocks: the same users stop at the same amount of free space on the kernel's mount
/// of the same image.
#[test]
fn the_reserve_is_for_users_that_the_kernel_permits() {
    if !has_fuse_and_root() {
        return;
    }
    // 5 % of 32,768 blocks for root, and 2 % that prevent failures of metadata operations.
    const RESERVED: u64 = 1638;
    const POOL: u64 = 655;
    // Tolerance in blocks: the file's map, and blocks that the kernel's writeback leaves.
    const NEAR: u64 = 40;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim();
    let has_sys_resource = u64::from_str_radix(effective, 16).unwrap() & 1 << 24 != 0;
    let whos = [
        ("setpriv --reuid=65534 --regid=65534 --clear-groups", RESERVED + POOL),
        ("setpriv --reuid=7 --regid=65534 --clear-groups", POOL),
        ("setpriv --reuid=65534 --regid=1234 --clear-groups", POOL),
        ("setpriv --reuid=65534 --regid=65534 --groups=1234", POOL),
        // Root has access through its capability, not its UID; in a container it may lack the capability.
        ("", if has_sys_resource { POOL } else { RESERVED + POOL }),
        ("setpriv --bounding-set=-sys_resource", RESERVED + POOL),
    ];
    let (_dir, image) = empty_image(&["-m", "5"]);
    extant_testkit::run("tune2fs", ["-u", "7", "-g", "1234", image.to_str().unwrap()]);
    let is_kernel_there = extant_testkit::kernel_mounts_kind_of(&image);
    let fill = |dir: &Path, who: &str| {
        let script =
            format!("{who} dd if=/dev/zero of=d/f bs=64k 2>/dev/null || sync d/f; stat -f -c '%f %a' .");
        let output = runs(dir, &script);
        runs(dir, "rm d/f; sync -f .");
        let mut numbers = output.split_whitespace().map(|word| word.parse::<u64>().unwrap());
        (numbers.next().unwrap(), numbers.next().unwrap())
    };
    let in_each = |what: &str, dir: &Path| {
        runs(dir, "mkdir -p d; chmod 777 d .");
        for (who, left) in &whos {
            let (free, available) = fill(dir, who);
            assert!(free.abs_diff(*left) <= NEAR, "{what}: {who}: {free} left, expected {left}");
            assert!(available <= NEAR, "{what}: {who}: {available} available");
        }
    };
    if is_kernel_there {
        // Linux 6.18 takes both only from its mount options.
        let kernel = LoopMount::new(&image, "rw,resuid=7,resgid=1234").unwrap();
        in_each("kernel", kernel.path());
    }
    let mount = Mount::new(&image, &["-o", "allow_other"]);
    in_each("extant", mount.path());
    mount.unmount();
    e2fsck_clean(&image);
}

#[test]
fn a_full_image_says_so_and_what_is_removed_makes_room() {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = empty_image(&["-m", "0"]);
    let mount = Mount::new(&image, &[]);
    let piece = pattern(5, 1 << 20);
    let fill = |name: &str| {
        let mut file = create(&mount.path().join(name));
        loop {
            match file.write_all(&piece) {
                Ok(()) => {}
                Err(error) => break (file, error),
            }
        }
    };
    for round in 0..3 {
        let (mut file, error) = fill("fills");
        assert_eq!(error.kind(), ErrorKind::StorageFull, "round {round}: {error}");
        // Acknowledged writes have space.
        let written = file.metadata().unwrap().len();
        let synced = file.sync_all();
        assert!(
            synced.is_ok(),
            "round {round}: {synced:?} of {written} bytes, {} blocks",
            free_blocks(mount.path())
        );
        // 2 % stay reserved for blocks that allocations need besides data, as in the kernel.
        let free = free_blocks(mount.path());
        assert!(free < 1000, "{free}");
        let len = file.metadata().unwrap().len();
        assert!(len > 64 << 20, "{len}");
        file.seek(SeekFrom::Start(0)).unwrap();
        let mut read = vec![0; piece.len()];
        for _ in 0..len >> 20 {
            file.read_exact(&mut read).unwrap();
            assert!(read == piece);
        }
        let refused = fallocate(&file, FallocateFlags::empty(), 0, 1 << 30);
        assert_eq!(refused, Err(Errno::NOSPC));
        drop(file);
        std::fs::remove_file(mount.path().join("fills")).unwrap();
    }
    mount.unmount();
    e2fsck_clean(&image);
}

#[test]
fn what_was_synced_outlives_a_killed_server() {
    if !has_fuse() {
        return;
    }
    for (round, options) in
        [&["-O", "orphan_file"][..], &["-O", "^extent,^64bit"], &["-b", "1024"]].iter().enumerate()
    {
        let (_dir, image) = empty_image(options);
        let mount = Mount::new(&image, &[]);
        let name = |number: u64| format!("file-{number}");
        let synced = 40;
        // Even files are synced with fsync, odd ones with fdatasync.
        for number in 0..synced {
            let path = mount.path().join(name(number));
            let file = create(&path);
            file.write_all_at(&pattern(number, 1000 + number as usize * 7000), number * 100).unwrap();
            if number % 2 == 0 {
                file.sync_all().unwrap()
            } else {
                file.sync_data().unwrap()
            };
        }
        // Makes all names durable.
        File::open(mount.path()).unwrap().sync_all().unwrap();
        // Concurrent writers, which the kill interrupts.
        let server = mount.server();
        std::thread::scope(|scope| {
            for number in 0..3 {
                let path = mount.path().join(format!("busy-{number}"));
                scope.spawn(move || {
                    let Ok(file) = File::create(path) else { return };
                    for pos in 0.. {
                        let bytes = pattern(pos, 300_000);
                        if file.write_all_at(&bytes, pos * 200_000 % (20 << 20)).is_err() {
                            return;
                        }
                        if pos % 5 == 0 && file.sync_data().is_err() {
                            return;
                        }
                    }
                });
            }
            std::thread::sleep(std::time::Duration::from_millis(700 + 300 * round as u64));
            kill_process(server, Signal::KILL).unwrap();
        });
        wait_until("the server ends", || has_ended(server));
        mount.unmount();
        let outcome = mount.try_mount(&image, &[]);
        assert!(outcome.code(0).contains("journal was replayed"), "{}", outcome.stderr);
        let check = |root: &Path| {
            for number in 0..synced {
                let there = std::fs::read(root.join(name(number))).unwrap();
                let mut expected = vec![0; number as usize * 100];
                expected.extend(pattern(number, 1000 + number as usize * 7000));
                assert!(there == expected, "{options:?}: file {number}, {} bytes", there.len());
            }
        };
        check(mount.path());
        mount.unmount();
        e2fsck_clean(&image);
        if extant_testkit::is_root() {
            check(LoopMount::new(&image, "ro").unwrap().path());
        }
    }
}

#[test]
fn a_signal_while_files_are_written_leaves_a_clean_image() {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = empty_image(&[]);
    let mount = Mount::new(&image, &[]);
    let mut file = create(&mount.path().join("file"));
    let mut doomed = create(&mount.path().join("doomed"));
    doomed.write_all(&pattern(2, 2_000_000)).unwrap();
    std::fs::remove_file(mount.path().join("doomed")).unwrap();
    file.write_all(&pattern(1, 5_000_000)).unwrap();
    let server = mount.server();
    kill_process(server, Signal::TERM).unwrap();
    wait_until("the server ends", || has_ended(server));
    assert!(!is_mounted(mount.path()));
    assert!(file.write_all(b"more").is_err());
    drop((file, doomed));
    e2fsck_clean(&image);
    mount.try_mount(&image, &[]).code(0);
    assert!(std::fs::read(mount.path().join("file")).unwrap() == pattern(1, 5_000_000));
    assert_eq!(std::fs::read_dir(mount.path()).unwrap().count(), 2);
    mount.unmount();
}
