//! Files that the kernel deleted.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use extant_rescue::{Confidence, RescueScope};
use extant_testkit::trees::Random;
use extant_testkit::{LoopMount, not_root, run, scratch};

use crate::{contents, rescue};

/// Deletes files on the kernel's mount, with and without later writes. What has a high confidence has the
/// right bytes, always.
#[test]
fn deleted_files_come_back_and_high_confidence_is_right() {
    if not_root() {
        return;
    }
    for later in [0, 20, 300] {
        let dir = scratch();
        let image = dir.path().join("image");
        run("mke2fs", ["-q", "-F", "-t", "ext4", image.to_str().unwrap(), "256M"]);
        let mut random = Random::new(later + 1);
        let mut deleted: BTreeMap<PathBuf, Vec<u8>> = BTreeMap::new();
        {
            let mount = LoopMount::new(&image, "").unwrap();
            for number in 0..200 {
                let folder = mount.path().join(format!("d{}", number % 7));
                let _ = fs::create_dir(&folder);
                let len = random.below(200_000) as usize + 1;
                let content = random.bytes(len);
                let path = folder.join(format!("file-{number}"));
                fs::write(&path, &content).unwrap();
                if number % 2 == 0 {
                    deleted.insert(path.strip_prefix(mount.path()).unwrap().to_owned(), content);
                }
            }
            run("sync", ["-f", mount.path().to_str().unwrap()]);
            for path in deleted.keys() {
                fs::remove_file(mount.path().join(path)).unwrap();
            }
            run("sync", ["-f", mount.path().to_str().unwrap()]);
            for number in 0..later {
                let len = random.below(100_000) as usize;
                fs::write(mount.path().join(format!("later-{number}")), random.bytes(len)).unwrap();
            }
        }
        let out = dir.path().join("out");
        let found = rescue(&image, &out, RescueScope { deleted: true, since: None });
        let rescued = contents(&out);
        let right = deleted.iter().filter(|(path, content)| rescued.get(*path) == Some(content)).count();
        assert!(later > 0 || right == deleted.len(), "{right} of {}", deleted.len());
        assert!(later != 20 || right >= 30, "{right} of {} after few later writes", deleted.len());
        for found in found.iter().filter(|found| found.confidence == Confidence::High) {
            let path = PathBuf::from(String::from_utf8(found.shown()).unwrap());
            let is_right = rescued.get(&path) == deleted.get(&path);
            assert!(is_right, "{}: {}", path.display(), found.reason);
        }
        let high = found.iter().filter(|found| found.confidence == Confidence::High).count();
        assert!(later > 0 || high == deleted.len(), "{high} of high confidence");
        assert!(found.iter().all(|found| found.deleted.is_some()));
    }
}
