//! Small images, filled by debugfs and opened for writing.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use extant_base::Ino;
use extant_device::FileDevice;
use extant_volume::{OpenOptions, Volume};

/// Makes an image of 16 MiB and applies the requests to it with debugfs.
pub(crate) fn image(scratch: &Path, options: &[&str], requests: &[&str]) -> PathBuf {
    let path = scratch.join("image");
    let kind: &[&str] = if options.contains(&"-t") { &[] } else { &["-t", "ext4"] };
    let args = ["-q", "-F", "-E", "lazy_itable_init=0"].iter().chain(kind).chain(options).copied();
    extant_testkit::run("mke2fs", args.chain([path.to_str().unwrap(), "16M"]));
    for request in requests {
        edit(&path, request);
    }
    path
}

pub(crate) fn edit(path: &Path, request: &str) {
    extant_testkit::run("debugfs", ["-w", "-R", request, path.to_str().unwrap()]);
}

pub(crate) fn open(path: &Path) -> Volume {
    let device = Arc::new(FileDevice::open(path, true).unwrap());
    Volume::open(device, &OpenOptions::default()).unwrap()
}

pub(crate) fn find(volume: &Volume, name: &[u8]) -> Ino {
    volume.names().lookup(&volume.root().unwrap(), name).unwrap().ino()
}

pub(crate) fn sectors(volume: &Volume, ino: Ino) -> u64 {
    volume.attributes().stat(&volume.inode(ino).unwrap()).blocks_512
}
