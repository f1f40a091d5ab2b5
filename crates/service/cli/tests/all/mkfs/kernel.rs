//! The kernel mounts and writes file systems that mkfs made, and e2fsck finds no errors afterwards.

use std::fs;

use std::path::Path;

use extant_testkit::{LoopMount, e2fsck_clean, is_root, scratch};

use crate::mkfs::{MKE2FS_CONF, make, output};

/// Size and arguments. MMP is omitted: its mount waits for 10 seconds.
const IMAGES: &[(&str, &str)] = &[
    ("2G", "-t ext4"),
    ("64M", "-t ext4"),
    ("300M", "-t ext4 -b 2048 -O sparse_super2 -E num_backup_sb=1"),
    ("64M", "-t ext2"),
    ("64M", "-t ext3 -b 4096"),
    ("600M", "-t ext4 -O bigalloc"),
    ("200M", "-t ext4 -O bigalloc -b 1024 -C 16384"),
    ("600M", "-t ext4 -O quota,project"),
    ("600M", "-t ext4 -O meta_bg,^resize_inode"),
    ("600M", "-t ext4 -O ^flex_bg,^64bit,^metadata_csum,uninit_bg -E stride=16"),
    ("600M", "-t ext4 -O inline_data,ea_inode,large_dir"),
    ("600M", "-t ext4 -O fast_commit,stable_inodes -I 512"),
    ("600M", "-t ext4 -O ^has_journal,^dir_index,^large_file"),
    ("600M", "-t ext4 -b 65536"),
];

/// Mounts an image of extant. `None` if this kernel does not mount mke2fs's image of the same arguments,
/// either: its pages are smaller than the blocks, or it was built without quota.
fn mount(image: &Path, size: &str, args: &str) -> Option<LoopMount> {
    let error = match LoopMount::new(image, "rw") {
        Ok(mount) => return Some(mount),
        Err(error) => error,
    };
    let dir = scratch();
    let (conf, other) = (dir.path().join("mke2fs.conf"), dir.path().join("other.img"));
    fs::write(&conf, MKE2FS_CONF).unwrap();
    let mut mke2fs = extant_testkit::command("mke2fs");
    mke2fs.env("MKE2FS_CONFIG", &conf).args(["-q", "-F"]).args(args.split_whitespace()).arg(&other).arg(size);
    assert!(output(&mut mke2fs).status.success(), "{args}: mke2fs does not make it");
    assert!(LoopMount::new(&other, "rw").is_err(), "{args}: {error}");
    println!("this kernel does not mount {args}");
    None
}

#[test]
fn the_kernel_writes_to_what_mkfs_made() {
    if !is_root() {
        println!("not root: the kernel cannot be asked");
        return;
    }
    let dir = scratch();
    let image = dir.path().join("kernel.img");
    let content: Vec<u8> = (0..3_000_000_u32).map(|i| ((i * 7) >> 3) as u8).collect();
    for (size, args) in IMAGES {
        make(&image, &format!("-F -q -s {size} {args}"));
        let Some(mount) = mount(&image, size, args) else { continue };
        fs::create_dir(mount.path().join("dir")).unwrap();
        fs::write(mount.path().join("dir/file"), &content).unwrap();
        (0..300)
            .for_each(|i| fs::write(mount.path().join(format!("dir/small-{i}")), [i as u8; 100]).unwrap());
        std::os::unix::fs::symlink("dir/file", mount.path().join("link")).unwrap();
        drop(mount);
        e2fsck_clean(&image);
        let mount = LoopMount::read_only(&image).unwrap_or_else(|error| panic!("{args}: {error}"));
        assert!(fs::read(mount.path().join("link")).unwrap() == content, "{args}: the file is another");
        assert_eq!(fs::read_dir(mount.path().join("dir")).unwrap().count(), 301, "{args}");
        drop(mount);
        fs::remove_file(&image).unwrap();
    }
}
