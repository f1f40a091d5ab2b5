//! Dumps have the structure and nothing else.

use std::fs;
use std::path::Path;

use extant_device::FileDevice;
use extant_rescue::Rescue;
use extant_testkit::trees::many;
use extant_testkit::{e2fsck_clean, run, scratch};

use crate::{Seen, open};

/// A new file of the size of a file system.
pub(crate) fn new_device(path: &Path, rescue: &Rescue) -> FileDevice {
    let file = fs::File::create(path).unwrap();
    file.set_len(rescue.size_bytes()).unwrap();
    drop(file);
    FileDevice::fresh(fs::File::options().read(true).write(true).open(path).unwrap()).unwrap()
}

/// Checks find a dump as clean as its image, and nothing that users wrote is in a scrambled one.
#[test]
fn a_dump_is_as_clean_as_its_image() {
    let dir = scratch();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    many(&tree, 3000, 5);
    let secret = "a-name-that-must-not-be-seen";
    fs::create_dir(tree.join(secret)).unwrap();
    for number in 0..3000 {
        fs::write(tree.join(secret).join(format!("{secret}-{number}")), "content-not-to-be-seen").unwrap();
    }
    std::os::unix::fs::symlink(format!("/target/{secret}"), tree.join("short")).unwrap();
    std::os::unix::fs::symlink(format!("/{}", secret.repeat(5)), tree.join("long")).unwrap();
    run("setfattr", ["-n", "user.secret", "-v", secret, tree.join(secret).to_str().unwrap()]);
    // Without extents, the journal has indirect blocks.
    for options in ["^inline_data", "inline_data", "^metadata_csum,^dir_index", "^extent,^64bit"] {
        let image = dir.path().join("image");
        let _ = fs::remove_file(&image);
        let (from, to) = (tree.to_str().unwrap(), image.to_str().unwrap());
        run("mke2fs", ["-q", "-F", "-t", "ext4", "-I", "256", "-O", options, "-d", from, to, "96M"]);
        if options != "^metadata_csum,^dir_index" {
            // mke2fs makes no indexes.
            let _ = extant_testkit::command("e2fsck").args(["-fyD", to]).output().unwrap();
        }
        for scramble in [false, true] {
            let path = dir.path().join("dump");
            let rescue = open(&image);
            let report = rescue.dump(&new_device(&path, &rescue), scramble, &Seen::default()).unwrap();
            assert_eq!(open(&path).is_scrambled(), scramble, "{options}");
            assert_eq!(report.unordered, 0, "{options}");
            assert_eq!(fs::metadata(&path).unwrap().len(), fs::metadata(&image).unwrap().len());
            e2fsck_clean(&path);
            let bytes = fs::read(&path).unwrap();
            let has = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
            let expected = !scramble;
            assert_eq!(has(secret), expected, "{options}, scrambled: {scramble}");
            assert!(options == "inline_data" && !scramble || !has("content-not-to-be-seen"), "{options}");
        }
    }
}
