//! Tests of the judge: copies by `cp -a` and `tar` equal the tree, and a changed copy does not.

use std::path::Path;

use extant_testkit::{DiffOptions, Holes, LoopMount, Manifest, diff, is_root, not_root, run, scratch, trees};

fn options() -> DiffOptions {
    DiffOptions { holes: Holes::Same { block_size: 4096 }, ..DiffOptions::default() }
}

#[test]
fn a_copy_by_cp_equals_its_source() {
    let scratch = scratch();
    let (source, copy) = (scratch.path().join("source"), scratch.path().join("copy"));
    std::fs::create_dir(&source).unwrap();
    let report = trees::adversarial(&source);
    if !is_root() {
        eprintln!("not root, so some files cannot be read: not copied. Not made: {:#?}", report.skipped);
        return;
    }
    let before = Manifest::of(&source);
    run("cp", ["-a".as_ref(), "--".as_ref(), source.as_os_str(), copy.as_os_str()]);
    let after = Manifest::of(&copy);

    assert_eq!(diff(&before, &after, &options()), [""; 0]);
    assert_eq!(before.hard_links(), after.hard_links());
    assert!(before.data_bytes() < 32 << 20);
}

#[test]
fn a_copy_by_tar_equals_its_source() {
    if not_root() {
        return;
    }
    let scratch = scratch();
    let (source, copy) = (scratch.path().join("source"), scratch.path().join("copy"));
    std::fs::create_dir(&source).unwrap();
    std::fs::create_dir(&copy).unwrap();
    trees::adversarial(&source);
    let tar = scratch.path().join("x.tar");
    let all = ["--xattrs", "--xattrs-include=*", "--acls", "--sparse", "--format=posix", "--numeric-owner"];
    run(
        "tar",
        all.iter().map(AsRef::as_ref).chain([
            "-cf".as_ref(),
            tar.as_os_str(),
            "-C".as_ref(),
            source.as_os_str(),
            ".".as_ref(),
        ]),
    );
    run(
        "tar",
        all.iter().map(AsRef::as_ref).chain([
            "-xpf".as_ref(),
            tar.as_os_str(),
            "-C".as_ref(),
            copy.as_os_str(),
        ]),
    );

    let (mut source, mut copy) = (Manifest::of(&source), Manifest::of(&copy));
    // tar does not archive sockets, and archives two links of a fifo as two fifos.
    for path in ["special/socket", "special/fifo", "special/fifo-linked"] {
        source.entries.remove(path.as_bytes());
        copy.entries.remove(path.as_bytes());
    }
    let lines = diff(&source, &copy, &DiffOptions { holes: Holes::Ignore, ..options() });
    assert_eq!(lines, [""; 0]);
}

#[test]
fn as_root_in_memory_nothing_of_the_tree_is_missing() {
    if !is_root() || !Path::new("/dev/shm").is_dir() {
        println!("skipped: not root, or no /dev/shm");
        return;
    }
    let scratch = scratch();
    let report = trees::adversarial(scratch.path());
    assert_eq!(report.skipped, [""; 0]);
    // The judge must see all of it.
    let manifest = Manifest::of(scratch.path());
    let names =
        |path: &str| manifest.entries[path.as_bytes()].xattrs.keys().map(|n| n.escape_ascii().to_string());
    assert_eq!(
        names("acls/both").collect::<Vec<_>>(),
        ["system.posix_acl_access", "system.posix_acl_default", "user.and"]
    );
    assert_eq!(names("xattrs/every-namespace").collect::<Vec<_>>(), ["security.s", "trusted.t", "user.u"]);
    assert_eq!(names("xattrs/symlink").collect::<Vec<_>>(), ["trusted.symlink"]);
    assert_eq!(manifest.entries[&b"xattrs/large"[..]].xattrs[&b"user.large"[..]].len(), 3000);
}

#[test]
fn the_same_tree_twice_is_the_same() {
    let (one, two) = (scratch(), scratch());
    trees::adversarial(one.path());
    trees::adversarial(two.path());
    let (one, two) = (Manifest::of(one.path()), Manifest::of(two.path()));
    let mut lines = diff(&one, &two, &DiffOptions { atime: true, ..options() });
    if !is_root() {
        lines.retain(|line| !line.contains("not readable"));
    }
    assert_eq!(lines, [""; 0]);
}

#[test]
fn the_kernels_ext4_holds_the_tree() {
    if not_root() {
        return;
    }
    let scratch = scratch();
    for block_size in ["1024", "4096"] {
        let image = scratch.path().join("ext4.img");
        std::fs::File::create(&image).unwrap().set_len(256 << 20).unwrap();
        run(
            "mke2fs",
            [
                "-q".as_ref(),
                "-F".as_ref(),
                "-t".as_ref(),
                "ext4".as_ref(),
                "-b".as_ref(),
                block_size.as_ref(),
                image.as_os_str(),
            ],
        );
        let source = scratch.path().join("source");
        std::fs::create_dir(&source).unwrap();
        trees::adversarial_within(&source, &trees::Limits::for_block_size(block_size.parse().unwrap()));
        let before = Manifest::of(&source);
        {
            let mount = match LoopMount::new(&image, "rw") {
                Ok(mount) => mount,
                Err(error) => {
                    println!("skipped: no loop device: {error}");
                    return;
                }
            };
            run("cp", ["-a".as_ref(), source.join(".").as_os_str(), mount.path().as_os_str()]);
        }
        extant_testkit::e2fsck_clean(&image);
        let mount = LoopMount::read_only(&image).unwrap();
        assert_eq!(diff(&before, &Manifest::of(mount.path()), &DiffOptions::default()), [""; 0]);
        drop(mount);
        let dump = extant_testkit::dumpe2fs(&image);
        assert_eq!(dump.field("Block size"), block_size);
        let counted: u64 = dump.groups.iter().map(|group| group.free_blocks).sum();
        assert_eq!(counted, dump.number("Free blocks"));
        assert!(extant_testkit::debugfs(&image, "stat /acls/both").contains("Type: directory"));
        assert!(extant_testkit::debugfs(&image, "stat /no-such-name").contains("File not found"));
        std::fs::remove_dir_all(&source).unwrap();
    }
}

#[test]
fn every_form_of_dumpe2fs_is_understood() {
    let scratch = scratch();
    let image = scratch.path().join("x.img");
    for options in [
        "-t ext2 -b 1024",
        "-t ext3 -b 4096",
        "-t ext4 -O ^resize_inode,meta_bg -b 1024",
        "-t ext4 -O bigalloc -C 65536",
        "-t ext4 -O sparse_super2,^resize_inode",
        "-t ext4 -O mmp,quota,project",
        "-t ext4 -O ^metadata_csum,uninit_bg",
        "-t ext4 -O orphan_file,metadata_csum_seed,inline_data,large_dir",
        "-t ext4 -b 65536",
    ] {
        std::fs::File::create(&image).unwrap().set_len(1 << 30).unwrap();
        let mut args: Vec<&std::ffi::OsStr> = vec!["-q".as_ref(), "-F".as_ref()];
        args.extend(options.split(' ').map(AsRef::<std::ffi::OsStr>::as_ref));
        args.push(image.as_os_str());
        run("mke2fs", args);
        let dump = extant_testkit::dumpe2fs(&image);
        let group = dump.groups.last().unwrap();
        assert_eq!(group.number as usize + 1, dump.groups.len(), "{options}");
        assert!(dump.groups.iter().all(|g| g.block_bitmap != 0 && g.inode_table.0 != 0), "{options}");
        assert!(dump.groups[0].group_descriptors.is_some(), "{options}");
        let free: u64 = dump.groups.iter().map(|group| group.free_inodes).sum();
        assert_eq!(free, dump.number("Free inodes"), "{options}");
    }
}
