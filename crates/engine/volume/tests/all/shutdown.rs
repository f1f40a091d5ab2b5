//! A volume that is shut down reads and writes nothing more, and leaves the same as a power cut at that time.

use std::path::Path;
use std::sync::Arc;

use extant_base::Ino;
use extant_device::FileDevice;
use extant_volume::{Fault, New, OpenOptions, SetAttr, Shutdown, Volume};

fn open(path: &Path) -> Volume {
    let device = Arc::new(FileDevice::open(path, true).unwrap());
    Volume::open(device, &OpenOptions::default()).unwrap()
}

fn file(volume: &Volume, name: &str, content: &[u8]) -> Ino {
    let ino = volume.names().create(Ino::ROOT, name.as_bytes(), &New::file(0o644)).unwrap().ino();
    volume.files().write_at(ino, 0, content).unwrap();
    ino
}

#[test]
fn each_way_keeps_what_it_promises_and_writes_nothing_more() {
    for (how, has_names, has_bytes) in
        [(Shutdown::Flush, true, true), (Shutdown::Journal, true, false), (Shutdown::Nothing, false, false)]
    {
        let scratch = extant_testkit::scratch();
        let path = scratch.path().join("image");
        extant_testkit::run(
            "mke2fs",
            ["-q", "-F", "-t", "ext4"].map(Path::new).into_iter().chain([&*path, Path::new("64M")]),
        );
        let volume = open(&path);
        let synced = file(&volume, "synced", &[7; 50_000]);
        volume.files().fsync(synced).unwrap();
        let late = file(&volume, "late", &[8; 50_000]);
        let inode = volume.inode(synced).unwrap();

        volume.admin().shut_down(how).unwrap();
        let then = std::fs::read(&path).unwrap();
        let mut buf = [0; 10];
        let root = volume.root();
        for refused in [
            root.map(drop),
            volume.files().read_at(synced, 0, &mut buf).map(drop),
            volume.files().read(&inode, 0, &mut buf).map(drop),
            volume.files().write_at(late, 0, b"x").map(drop),
            volume.names().create(Ino::ROOT, b"more", &New::file(0o644)).map(drop),
            volume
                .attributes()
                .set_attr(late, &SetAttr { mode: Some(0o600), ..SetAttr::default() })
                .map(drop),
            volume.files().fsync(late),
            volume.files().fdatasync(synced),
            volume.sync(),
        ] {
            assert!(matches!(refused, Err(Fault::ShutDown)), "{how:?}: {refused:?}");
            assert_eq!(refused.unwrap_err().errno(), 5);
        }
        volume.admin().shut_down(Shutdown::Flush).unwrap();
        assert!(volume.write_back_some(u64::MAX).is_err());
        volume.close().unwrap();
        assert!(std::fs::read(&path).unwrap() == then, "{how:?}: something was written");

        let volume = open(&path);
        assert!(volume.recovery().needed);
        let root = volume.root().unwrap();
        let mut content = vec![0; 60_000];
        let mut bytes_of = |name: &[u8]| {
            let found = volume.names().lookup(&root, name).ok()?;
            let len = volume.files().read(&found, 0, &mut content).unwrap();
            Some((len, content[..len].iter().all(|byte| *byte == content[0])))
        };
        assert_eq!(bytes_of(b"synced"), Some((50_000, true)));
        let late = match (has_names, has_bytes) {
            (false, _) => None,
            (true, false) => Some((0, true)),
            (true, true) => Some((50_000, true)),
        };
        assert_eq!(bytes_of(b"late"), late, "{how:?}");
        volume.close().unwrap();
        extant_testkit::e2fsck_clean(&path);
    }
}

#[test]
fn what_is_open_for_reading_has_nothing_to_shut_down() {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    extant_testkit::run(
        "mke2fs",
        ["-q", "-F", "-t", "ext4"].map(Path::new).into_iter().chain([&*path, Path::new("8M")]),
    );
    let device = Arc::new(FileDevice::open_read_only(&path).unwrap());
    let volume = Volume::open_read_only(device, &OpenOptions::default()).unwrap();
    assert_eq!(volume.admin().shut_down(Shutdown::Nothing).unwrap_err().errno(), 30);
}
