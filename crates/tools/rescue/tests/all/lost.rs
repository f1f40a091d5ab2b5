//! Lost superblocks, descriptors, inode tables and roots.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use extant_rescue::{Confidence, RescueScope};
use extant_testkit::trees::{Random, many};
use extant_testkit::{dumpe2fs, run, scratch};

use crate::{assert_same, contents, rescue, wipe};

/// An image of a tree, by mke2fs: its file system has backups in several groups.
fn image(dir: &Path, options: &[&str]) -> std::path::PathBuf {
    let tree = dir.join("tree");
    if !tree.exists() {
        fs::create_dir(&tree).unwrap();
        many(&tree, 600, 3);
        // mke2fs 1.47.0 with inline_data forgets a hole at the end.
        fs::write(tree.join("sparse"), [7; 5000]).unwrap();
        let sparse = fs::File::options().write(true).open(tree.join("sparse")).unwrap();
        sparse.write_all_at(b"end", 3 << 20).unwrap();
        std::os::unix::fs::symlink("sparse", tree.join("link")).unwrap();
        fs::hard_link(tree.join("sparse"), tree.join("other")).unwrap();
    }
    let image = dir.join("image");
    let _ = fs::remove_file(&image);
    let mut args = vec!["-q", "-F", "-b", "1024", "-g", "8192"];
    args.extend(options);
    let (tree, shown) = (tree.to_str().unwrap(), image.to_str().unwrap());
    args.extend(["-d", tree, shown, "64M"]);
    run("mke2fs", args);
    image
}

const KINDS: [&[&str]; 4] = [
    &["-t", "ext4"],
    &["-t", "ext4", "-O", "^metadata_csum,^64bit,^flex_bg"],
    &["-t", "ext3"],
    &["-t", "ext4", "-O", "inline_data,meta_bg,^resize_inode,sparse_super2"],
];

#[test]
fn an_intact_image_comes_out_whole() {
    for kind in KINDS {
        let dir = scratch();
        let image = image(dir.path(), kind);
        let out = dir.path().join("out");
        let found = rescue(&image, &out, RescueScope::default());
        assert!(found.iter().all(|found| found.confidence > Confidence::Low), "{kind:?}");
        assert_same(&contents(&out), &contents(&dir.path().join("tree")), &format!("{kind:?}"));
        assert_eq!(fs::read_link(out.join("link")).unwrap(), Path::new("sparse"));
        use std::os::unix::fs::MetadataExt;
        assert_eq!(fs::metadata(out.join("other")).unwrap().nlink(), 2);
        assert!(fs::metadata(out.join("sparse")).unwrap().blocks() < 1000, "holes stay holes");
    }
}

#[test]
fn superblock_and_descriptors_come_from_backups_or_the_layout() {
    for kind in KINDS {
        let dir = scratch();
        let image = image(dir.path(), kind);
        let expected = contents(&dir.path().join("tree"));
        let head = dumpe2fs(&image);
        // The primary superblock and all primary descriptors.
        wipe(&image, 1024, 1024);
        wipe(&image, 2048, 1024);
        let out = dir.path().join("out");
        rescue(&image, &out, RescueScope::default());
        assert_same(&contents(&out), &expected, &format!("{kind:?}"));
        // All descriptors: what is left is the layout. With meta_bg they are in many places.
        if kind.iter().any(|option| option.contains("meta_bg")) {
            continue;
        }
        for group in &head.groups {
            if let Some((first, last)) = group.group_descriptors {
                wipe(&image, first * 1024, (last + 1 - first) * 1024);
            }
        }
        let out = dir.path().join("out2");
        rescue(&image, &out, RescueScope::default());
        assert_same(&contents(&out), &expected, &format!("{kind:?} by layout"));
    }
}

#[test]
fn files_without_names_and_names_without_files_are_told_apart() {
    for kind in KINDS {
        let dir = scratch();
        let image = image(dir.path(), kind);
        let expected = contents(&dir.path().join("tree"));
        let head = dumpe2fs(&image);
        // The first block of the first table has root, journal and lost+found.
        let table = head.groups[0].inode_table.0;
        wipe(&image, table * 1024, 1024);
        let out = dir.path().join("out");
        let found = rescue(&image, &out, RescueScope::default());
        let rescued = contents(&out);
        let lost: Vec<_> =
            expected.values().filter(|content| !rescued.values().any(|of| of == *content)).collect();
        // Inodes 11 and later of that block are gone with it; all others come out.
        let gone = 1024 / head.number("Inode size") as usize;
        assert!(lost.len() <= gone, "{kind:?}: {} files lost", lost.len());
        assert!(rescued.keys().all(|path| path.starts_with("lost+found")), "{kind:?}");
        assert!(found.iter().any(|found| found.path.len() > 2), "directories keep their names");
    }
}

/// Half of the tables is lost: every file whose inode survives comes out.
#[test]
fn every_surviving_inode_comes_out() {
    let dir = scratch();
    let image = image(dir.path(), KINDS[0]);
    let expected = contents(&dir.path().join("tree"));
    let head = dumpe2fs(&image);
    let per_group = head.number("Inodes per group");
    let mut survivors = 0;
    for (group, of) in head.groups.iter().enumerate() {
        if group % 2 == 0 {
            let (first, last) = of.inode_table;
            wipe(&image, first * 1024, (last + 1 - first) * 1024);
        } else {
            let free = of.free_inodes;
            survivors += per_group - free;
        }
    }
    let out = dir.path().join("out");
    let found = rescue(&image, &out, RescueScope::default());
    let named = found.iter().filter(|found| found.confidence > Confidence::Low).count() as u64;
    assert_eq!(named, survivors);
    for content in contents(&out).values() {
        assert!(expected.values().any(|of| of == content), "wrong bytes");
    }
}

/// Garbage everywhere in the metadata must neither hang nor panic.
#[test]
fn any_bytes_end_in_bounded_time() {
    let dir = scratch();
    let image = image(dir.path(), KINDS[0]);
    let bytes = fs::read(&image).unwrap();
    let mut random = Random::new(7);
    for round in 0..60 {
        let mut damaged = bytes.clone();
        for _ in 0..200 {
            let at = random.below(4 << 20) as usize;
            let len = random.below(64) as usize + 1;
            damaged[at..at + len].copy_from_slice(&random.bytes(len));
        }
        let broken = dir.path().join("broken");
        fs::write(&broken, damaged).unwrap();
        let device = std::sync::Arc::new(extant_device::FileDevice::open_read_only(&broken).unwrap());
        let Ok(rescue) = extant_rescue::Rescue::open(device, None) else { continue };
        for deleted in [false, true] {
            let wanted = RescueScope { deleted, since: None };
            rescue.run(wanted, &mut (), &crate::Seen::default()).unwrap();
        }
        let dump = crate::dump::new_device(&dir.path().join("dump"), &rescue);
        rescue.dump(&dump, round % 2 == 0, &crate::Seen::default()).unwrap();
    }
}
