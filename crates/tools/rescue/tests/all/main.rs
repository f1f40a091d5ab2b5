//! Rescue from images that lost a part, compared with what was in them.

mod deleted;
mod dump;
mod lost;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use extant_device::FileDevice;
use extant_rescue::{DirectorySink, FoundFile, Rescue, RescueObserver, RescueScope};

/// What was found.
#[derive(Default)]
pub(crate) struct Seen(Mutex<Vec<FoundFile>>);

impl RescueObserver for Seen {
    fn found(&self, found: &FoundFile) {
        self.0.lock().unwrap().push(found.clone());
    }
}

impl Seen {
    pub(crate) fn all(self) -> Vec<FoundFile> {
        self.0.into_inner().unwrap()
    }
}

pub(crate) fn open(image: &Path) -> Rescue {
    Rescue::open(Arc::new(FileDevice::open_read_only(image).unwrap()), None).unwrap()
}

/// Rescues into a directory.
pub(crate) fn rescue(image: &Path, to: &Path, wanted: RescueScope) -> Vec<FoundFile> {
    fs::create_dir(to).unwrap();
    let seen = Seen::default();
    let mut sink = DirectorySink::new(to).unwrap();
    open(image).run(wanted, &mut sink, &seen).unwrap();
    sink.finish().unwrap();
    seen.all()
}

/// Regular files below a directory with their contents.
pub(crate) fn contents(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut contents = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let kind = path.symlink_metadata().unwrap().file_type();
            if kind.is_dir() {
                left.push(path);
            } else if kind.is_file() {
                contents.insert(path.strip_prefix(root).unwrap().to_owned(), fs::read(&path).unwrap());
            }
        }
    }
    contents
}

/// Overwrites a part of an image with zeros.
pub(crate) fn wipe(image: &Path, offset: u64, len: u64) {
    let file = fs::File::options().write(true).open(image).unwrap();
    file.write_all_at(&vec![0; len as usize], offset).unwrap();
}

/// Fails with the paths that differ.
pub(crate) fn assert_same(
    found: &BTreeMap<PathBuf, Vec<u8>>,
    expected: &BTreeMap<PathBuf, Vec<u8>>,
    what: &str,
) {
    let paths = found.keys().chain(expected.keys());
    let mut differing: Vec<String> = paths
        .filter(|path| found.get(*path) != expected.get(*path))
        .map(|path| {
            let len = |of: &BTreeMap<PathBuf, Vec<u8>>| of.get(path).map(Vec::len);
            format!("{}: {:?}, expected {:?} bytes", path.display(), len(found), len(expected))
        })
        .collect();
    differing.dedup();
    differing.truncate(10);
    assert!(differing.is_empty(), "{what}: {differing:#?}");
}
