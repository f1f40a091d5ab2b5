//! mkfs onto a block device with old contents: none of them may remain visible.

use std::fs;

use extant_testkit::trees::Random;
use extant_testkit::{LoopDevice, LoopMount, dumpe2fs, e2fsck_clean, is_root, scratch};

use crate::mkfs::{extant_mkfs, make, output};

/// Arguments, and whether the kernel is left to zero the inode tables later.
const FORMATS: &[(&str, bool)] = &[
    ("-t ext4", true),
    ("-t ext4 -E lazy_itable_init=0", false),
    ("-t ext4 -O bigalloc", true),
    ("-t ext3", false),
    // Without descriptor checksums the unused part of a table is unknown, so it must be zeroed at once.
    ("-t ext2 -E lazy_itable_init=1", false),
];

#[test]
fn old_bytes_of_a_device_do_not_show_through() {
    if !is_root() {
        println!("not root: no loop devices");
        return;
    }
    let dir = scratch();
    let file = dir.path().join("disk");
    let mut garbage = vec![0; 48 << 20];
    Random::new(1).fill(&mut garbage);
    for &(args, lazy) in FORMATS {
        fs::write(&file, &garbage).unwrap();
        let disk = LoopDevice::attach(&file).unwrap();
        let refused = output(extant_mkfs(disk.path()).args(args.split_whitespace()));
        assert_eq!(refused.status.code(), Some(6), "{args}: a device with something on it needs --force");
        make(disk.path(), &format!("-F -q {args}"));
        drop(disk);
        e2fsck_clean(&file);
        let zeroed =
            |group: &extant_testkit::GroupDump| group.flags.iter().any(|flag| flag == "ITABLE_ZEROED");
        let dump = dumpe2fs(&file);
        if dump.features().iter().any(|name| ["metadata_csum", "uninit_bg"].contains(name)) {
            assert!(dump.groups.iter().all(|group| zeroed(group) != lazy), "{args}: {:?}", dump.groups);
        }
        let mount = LoopMount::new(&file, "rw").unwrap_or_else(|error| panic!("{args}: {error}"));
        let names: Vec<_> =
            fs::read_dir(mount.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["lost+found"], "{args}");
        // Creates as many files as there are inodes, so that every table is used to its end.
        let mut made = 0;
        while fs::File::create(mount.path().join(format!("file-{made}"))).is_ok() {
            made += 1;
        }
        assert!(made > 1000, "{args}: only {made} files");
        drop(mount);
        e2fsck_clean(&file);
    }
}
