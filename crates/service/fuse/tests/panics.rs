//! A panic in an operation: the request fails with EIO, the cause is reported, other requests are served, and
//! the image can be closed.

use std::sync::{Arc, Mutex};

use extant_base::Ino;
use extant_device::FileDevice;
use extant_fuse::{Errno, Opener, Serve, Server};
use extant_simdisk::{Effect, Faulty, Op, Rule};
use extant_volume::{New, OpenOptions, Volume};

#[test]
fn a_request_that_panics_is_answered_and_nothing_is_written_after_it() {
    let scratch = extant_testkit::scratch();
    let image = scratch.path().join("image");
    extant_testkit::run("mke2fs", ["-q", "-F", "-t", "ext4", image.to_str().unwrap(), "16M"]);
    let disk = Arc::new(Faulty::new(FileDevice::open(&image, true).unwrap()));
    let volume = Volume::open(disk.clone(), &OpenOptions::default()).unwrap();
    let reports = Arc::new(Mutex::new(Vec::new()));
    let report = {
        let reports = Arc::clone(&reports);
        move |text: &str| reports.lock().unwrap().push(text.to_owned())
    };
    let server = Server::new(volume, Box::new(report));
    server.create(Ino::ROOT, b"synced", &New::file(0o644)).unwrap();
    server.sync(Ino::ROOT, Opener { handle: 0, thread: 0 }, false).unwrap();

    // The directory block of lost+found is not in memory yet, so this create reads from the device.
    disk.arm(Rule::new(Op::Read, Effect::Panic));
    assert_eq!(server.create(Ino(11), b"file", &New::file(0o644)).unwrap_err(), Errno::IO);
    disk.disarm_all();
    let reports = reports.lock().unwrap().join("\n");
    assert!(reports.contains("internal error") && reports.contains("planted"), "{reports}");
    assert!(server.lookup(Ino::ROOT, b"synced").unwrap().is_some());
    let refused = server.create(Ino::ROOT, b"after", &New::file(0o644)).unwrap_err();
    assert!(matches!(refused.0, 5 | 30), "{refused:?}");
    assert!(server.close().unwrap_err().contains("panicked"));
    // The journal is replayed, as after a power cut.
    Volume::open(Arc::new(FileDevice::open(&image, true).unwrap()), &OpenOptions::default())
        .unwrap()
        .close()
        .unwrap();
    extant_testkit::e2fsck_clean(&image);
    let found = extant_testkit::command("debugfs").args(["-R", "ls -p /"]).arg(&image).output().unwrap();
    let names = String::from_utf8_lossy(&found.stdout).into_owned();
    assert!(names.contains("synced") && !names.contains("after"), "{names}");
}
