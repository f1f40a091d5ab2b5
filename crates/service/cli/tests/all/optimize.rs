//! `extant optimize` of a directory on a mount of the kernel's ext4. (For images, see the library's tests.)

use extant_testkit::{LoopMount, e2fsck_clean};

use crate::common::{USAGE, assert_has, build, run};

/// With -I, the inodes of the list have numbers in its order.
#[test]
fn inodes_of_a_list_get_its_order() {
    let scratch = extant_testkit::scratch();
    let (tree, image, list) =
        (scratch.path().join("tree"), scratch.path().join("img"), scratch.path().join("list"));
    std::fs::create_dir(&tree).unwrap();
    let names: Vec<String> = (0..300).map(|number| format!("file-{number:03}")).collect();
    names.iter().for_each(|name| std::fs::write(tree.join(name), name).unwrap());
    build(&image, args!["--from", &tree, "--headroom", "20"]);
    let wanted: Vec<&String> = names.iter().rev().step_by(3).collect();
    let lines: String = wanted.iter().map(|name| format!("/{name}\n")).collect();
    std::fs::write(&list, lines).unwrap();
    assert_has(run(args!["optimize", "-I", &image]).code(USAGE), "--order");
    let done = run(args!["optimize", "--json", "--order", &list, "-I", &image]).report();
    assert_eq!(done["moved_inodes"].as_u64(), Some(100), "{done}");
    e2fsck_clean(&image);
    let numbers: Vec<u64> = wanted
        .iter()
        .map(|name| {
            let stat = run(args!["stat", "--json", format!("{}:/{name}", image.display())]).report();
            stat[0]["inode"].as_u64().unwrap_or_else(|| panic!("{stat}"))
        })
        .collect();
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
    run(args!["diff", "-q", &tree, &image]).code(0);
}

/// If the inodes keep their numbers, the report still shows the files that have moved.
#[test]
fn a_failure_of_the_numbers_keeps_the_report_of_the_files() {
    let scratch = extant_testkit::scratch();
    let (tree, image, list) =
        (scratch.path().join("tree"), scratch.path().join("img"), scratch.path().join("list"));
    std::fs::create_dir(&tree).unwrap();
    ["a", "b"].iter().for_each(|name| std::fs::write(tree.join(name), vec![7; 40_000]).unwrap());
    build(&image, args!["--from", &tree, "--headroom", "50"]);
    extant_testkit::run("tune2fs", ["-O", "stable_inodes", image.to_str().unwrap()]);
    std::fs::write(&list, "/b\n/a\n").unwrap();
    let failed = run(args!["optimize", "--order", &list, "-I", "-D", &image]);
    assert_has(failed.code(USAGE), "stable_inodes");
    assert_has(&failed.stdout, "2 files moved");
    e2fsck_clean(&image);
}

/// On a mount of the kernel's ext4, the kernel exchanges the blocks; data, times and holes stay.
#[test]
fn files_of_a_kernel_mount_become_contiguous() {
    use std::os::unix::fs::{FileExt, MetadataExt};
    if extant_testkit::not_root() {
        return;
    }
    let scratch = extant_testkit::scratch();
    let image = scratch.path().join("kernel.img");
    extant_testkit::run("mke2fs", ["-q", "-F", "-t", "ext4", image.to_str().unwrap(), "24M"]);
    let mount = LoopMount::new(&image, "rw").unwrap_or_else(|why| panic!("{why:?}"));
    let dir = mount.path().join("dir");
    std::fs::create_dir(&dir).unwrap();
    // Free space in small pieces, for two files that have a hole.
    let small = mount.path().join("small");
    std::fs::create_dir(&small).unwrap();
    let number = (0..).take_while(|n| std::fs::write(small.join(n.to_string()), [5; 8192]).is_ok()).count();
    rustix::fs::sync();
    (0..=number).step_by(2).for_each(|n| std::fs::remove_file(small.join(n.to_string())).unwrap_or_default());
    rustix::fs::sync();
    let names = ["a", "b"];
    for (name, byte) in names.iter().zip([1u8, 101]) {
        let file = std::fs::File::create(dir.join(name)).unwrap();
        for round in 0..60u64 {
            file.write_at(&vec![byte + round as u8; 9000], round * 9000 + round / 30 * 100_000).unwrap();
        }
        file.sync_all().unwrap();
    }
    std::fs::remove_dir_all(&small).unwrap();
    rustix::fs::sync();
    let read = || names.map(|name| std::fs::read(dir.join(name)).unwrap());
    let times = || names.map(|name| dir.join(name).metadata().unwrap().mtime_nsec());
    let (content, changed) = (read(), times());
    let before = run(args!["optimize", "-n", "--json", mount.path()]).report();
    assert!(before["fragments_before"].as_u64().unwrap() > 20, "{before}");
    let done = run(args!["optimize", "--json", mount.path()]).report();
    assert_eq!(done["fragments_before"], before["fragments_before"]);
    assert_eq!(
        (done["moved_files"].as_u64(), done["left"].as_array().unwrap().len()),
        (Some(2), 0),
        "{done}"
    );
    let after = done["fragments_after"].as_u64().unwrap();
    assert!(after < done["fragments_before"].as_u64().unwrap() / 2, "{done}");
    assert!(read() == content && times() == changed);
    let again = run(args!["optimize", "-n", "--json", mount.path()]).report();
    assert_eq!(again["fragments_before"].as_u64(), Some(after));
    let list = scratch.path().join("list");
    std::fs::write(&list, "/dir/b\n/dir/a\n").unwrap();
    let listed = run(args!["optimize", "--json", "--order", &list, mount.path()]).report();
    assert_eq!(listed["moved_files"].as_u64(), Some(2), "{listed}");
    assert!(read() == content && times() == changed);
    assert_has(run(args!["optimize", "-D", mount.path()]).code(USAGE), "-D writes directories of an image");
    drop(mount);
    e2fsck_clean(&image);
    assert_has(run(args!["optimize", scratch.path()]).code(1), "not on a mount of the kernel's ext4");
}
