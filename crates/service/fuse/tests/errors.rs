//! fsync(2) returns writeback errors: once per open file if opens are tracked, and once per process if not.
//! Files without names are deleted when they are closed.
//!
//! Needs /dev/fuse and root.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Error, Write};
use std::path::Path;
use std::sync::Arc;

use extant_device::FileDevice;
use extant_fuse::{MountOptions, Mounted, Server, Threads};
use extant_simdisk::{EIO, Faulty, Op, Rule};
use extant_testkit::{e2fsck_clean, is_root, run, scratch};
use extant_volume::{OpenOptions, Volume};

/// Mounts a new file system, and passes the mount point and the disk to `test`.
fn on_mount(tracks_opens: bool, test: impl FnOnce(&Path, &Faulty<FileDevice>) + std::panic::UnwindSafe) {
    if !is_root() || !Path::new("/dev/fuse").exists() {
        println!("skipped: not root, or no /dev/fuse");
        return;
    }
    let dir = scratch();
    let (image, mnt) = (dir.path().join("errors.img"), dir.path().join("mnt"));
    std::fs::create_dir(&mnt).unwrap();
    run(
        "mke2fs",
        ["-q", "-F", "-t", "ext4"].map(OsStr::new).into_iter().chain([image.as_os_str(), "64M".as_ref()]),
    );
    let disk = Arc::new(Faulty::new(FileDevice::open_locked(&image).unwrap()));
    let volume = Volume::open(disk.clone(), &OpenOptions::default()).unwrap();
    let server = Server::new(volume, Box::new(|message| eprintln!("{message}")));
    let server = Arc::new(if tracks_opens { server.with_opens() } else { server });
    let options = MountOptions { read_only: false, ..MountOptions::new("errors.img") };
    let mounted = Mounted::new(Arc::clone(&server), &mnt, &options, Threads::default()).unwrap();
    let serving = std::thread::spawn(move || mounted.serve());
    let disk_of_test = std::panic::AssertUnwindSafe(&disk);
    let tested = std::panic::catch_unwind(|| test(&mnt, &disk_of_test));
    // A process that another test starts inherits our descriptors until its execve(2).
    let mut tries = 0;
    while let Err(fault) = extant_fuse::unmount(&mnt, tested.is_err()) {
        tries += 1;
        assert!(tries < 100, "{fault}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    serving.join().unwrap().unwrap();
    server.close().unwrap();
    if let Err(panic) = tested {
        std::panic::resume_unwind(panic);
    }
    e2fsck_clean(&image);
}

fn refused(done: Result<(), Error>) -> Option<i32> {
    done.err().and_then(|error| error.raw_os_error())
}

/// Opens a file twice, writes to it, and lets the writeback fail; the writer's fsync(2) has returned the
/// error. Returns the writer and the other open file.
fn fail(dir: &Path, disk: &Faulty<FileDevice>) -> (File, File) {
    let mut writer = File::create(dir.join("file")).unwrap();
    let other = File::options().write(true).open(dir.join("file")).unwrap();
    writer.write_all(&[7; 50_000]).unwrap();
    disk.arm(Rule::fail(Op::Write, EIO));
    assert_eq!(refused(writer.sync_all()), Some(EIO));
    (writer, other)
}

#[test]
fn each_open_file_gets_an_error_once() {
    on_mount(true, |dir, disk| {
        let (writer, other) = fail(dir, disk);
        writer.sync_all().unwrap();
        let late = File::open(dir.join("file")).unwrap();
        late.sync_all().unwrap();
        assert_eq!(refused(other.sync_data()), Some(EIO));
        other.sync_all().unwrap();
    });
}

#[test]
fn each_process_gets_an_error_once() {
    on_mount(false, |dir, disk| {
        let (writer, other) = fail(dir, disk);
        std::thread::scope(|scope| {
            scope.spawn(|| other.sync_all().unwrap());
        });
        writer.sync_all().unwrap();
        let sync = || extant_testkit::command("sync").arg(dir.join("file")).output().unwrap();
        // Each run is a new process.
        for _ in 0..2 {
            assert!(!sync().status.success());
        }
    });
}

/// An O_TMPFILE file that got a name and lost it again is deleted when it is closed.
#[test]
fn an_unnamed_file_that_was_linked_and_unlinked_is_deleted() {
    for tracks_opens in [true, false] {
        on_mount(tracks_opens, |dir, _| {
            let free = || rustix::fs::statvfs(dir).unwrap().f_bfree;
            let before = free();
            let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR;
            let file = rustix::fs::open(dir, flags, rustix::fs::Mode::RUSR).unwrap();
            let mut file = File::from(file);
            file.write_all(&[7; 1 << 20]).unwrap();
            file.sync_all().unwrap();
            assert!(free() < before);
            let name = dir.join("name");
            let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
            let follow = rustix::fs::AtFlags::SYMLINK_FOLLOW;
            rustix::fs::linkat(rustix::fs::CWD, link, rustix::fs::CWD, &name, follow).unwrap();
            std::fs::remove_file(&name).unwrap();
            drop(file);
            let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
            while free() < before && std::time::Instant::now() < end {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            assert_eq!(free(), before, "the blocks are free when the file is closed");
        });
    }
}
