//! `extant mkdir`, `rm`, `mv`, `ln`, `chmod`, `chown`, `project`, `xattr`, `truncate`, `touch` and `edit`:
//! e2fsck and the kernel find their results; refused commands leave the image unchanged; only one writer
//! works at a time.

use crate::common;

use std::ffi::OsString;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use crate::common::image::{Image, kinds};
use crate::common::{EXISTS, Outcome, SOURCE, USAGE, assert_has, run};
use extant_ondisk::mmp::Mmp;
use extant_testkit::{LoopMount, debugfs, e2fsck_clean, is_root, not_root};

const TARGET: i32 = 1;
const NOT_FOUND: i32 = 9;
const BUSY: i32 = 10;

#[test]
fn directories_are_made_and_removed() {
    for image in kinds() {
        image.done("mkdir :/a :/b/ :/c");
        image.done("mkdir -p -m 1777 :/var/spool/drop :/a");
        image.done("mkdir -m u=rwx,go= :/private");
        image.done("rm -d :/b");
        image.refused("mkdir :/a", EXISTS, "/a: the name exists; -p does not mind");
        image.refused("mkdir :/x/y", NOT_FOUND, "-p makes the directories above");
        image.refused("rm :/a", NOT_FOUND, "is a directory; -r removes it");
        image.refused("rm -d :/var", NOT_FOUND, "the directory is not empty; -r");
        image.refused("rm -r :/", TARGET, "the root directory cannot be removed");
        image.mounted(|root| {
            let mode = |path: &str| std::fs::metadata(root.join(path)).unwrap().mode() & 0o7777;
            assert_eq!((mode("a"), mode("c"), mode("private")), (0o755, 0o755, 0o700));
            assert_eq!((mode("var/spool"), mode("var/spool/drop")), (0o755, 0o1777));
            assert!(!root.join("b").exists());
        });
        image.done("rm -r :/var :/private");
        image.done("rm -f :/none :/none/below");
        image.refused("rm :/none", NOT_FOUND, "no such file");
        image.mounted(|root| assert!(!root.join("var").exists()));
    }
}

#[test]
fn trees_go_whole_and_patterns_are_matched() {
    let image = Image::new(&[]);
    let mut script = String::new();
    for dir in 0..20 {
        script += &format!("mkdir -p /t/d{dir}/deep/er\n");
        for file in 0..60 {
            script += &format!("touch /t/d{dir}/deep/f{file}.log\n");
        }
        script += &format!("ln -s ../../lost+found /t/d{dir}/out\n");
    }
    assert_eq!(image.script(&[], &script).code(0), "");
    image.mounted(|root| assert_eq!(std::fs::read_dir(root.join("t/d7/deep")).unwrap().count(), 61));
    image.done("rm :/t/d1*/deep/*.log");
    assert_eq!(image.done("ls -d :/t/d1*/deep/*").lines().count(), 11);
    assert_eq!(image.done("ls :/t/d2/deep").lines().count(), 61);
    image.done("rm -r :/t/d2/** :/t/d3");
    image.refused("rm :/t/*.x", NOT_FOUND, "nothing matches");
    image.done("rm -rf :/t");
    image.mounted(|root| {
        let names: Vec<_> =
            std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["lost+found"]);
    });
}

#[test]
fn names_are_moved_linked_and_exchanged() {
    for image in kinds() {
        image.done("mkdir :/a :/b :/b/sub");
        image.done("touch :/a/one :/a/two :/three");
        image.done("mv :/a/one :/a/uno");
        image.done("mv :/a/uno :/three :/b");
        image.done("ln :/a/two :/zwei");
        image.done("ln :/a/two :/b/three :/b/sub");
        image.done("ln -s ../a/two :/b/soft");
        image.done("ln -s -f uno :/b/soft");
        image.refused("ln -s x :/zwei", EXISTS, "/zwei: the name exists; -f replaces it");
        image.refused("ln :/a :/c", NOT_FOUND, "-s makes a symbolic link");
        image.refused("ln :/none :/c", NOT_FOUND, "/none: no such file");
        image.refused("mv -n :/zwei :/b/uno", EXISTS, "/zwei -> /b/uno: the name exists");
        image.refused("mv :/b :/b/sub", NOT_FOUND, "a directory cannot be moved into itself");
        image.refused("mv :/a :/b :/zwei", USAGE, "need an existing directory");
        image.refused("mv :/none :/x", NOT_FOUND, "/none: no such file");
        image.refused("mv -T :/a :/b", NOT_FOUND, "the directory is not empty; remove what is in the way");
        image.refused("mv --exchange :/zwei :/none", NOT_FOUND, "both must be there");
        image.done("mv --exchange :/zwei :/b/sub");
        image.mounted(|root| {
            let ino = |path: &str| std::fs::symlink_metadata(root.join(path)).unwrap().ino();
            assert_eq!(ino("a/two"), ino("b/sub"));
            assert_eq!(ino("a/two"), ino("zwei/two"));
            assert_eq!(ino("b/three"), ino("zwei/three"));
            assert_eq!(std::fs::metadata(root.join("a/two")).unwrap().nlink(), 3);
            assert_eq!(std::fs::read_link(root.join("b/soft")).unwrap(), Path::new("uno"));
            assert!(root.join("b/uno").is_file() && !root.join("three").exists());
        });
    }
}

#[test]
fn modes_owners_times_and_sizes_are_set() {
    for image in kinds() {
        image.done("mkdir -p :/d/sub");
        image.done("touch :/d/f :/d/sub/g");
        image.done("ln -s f :/d/link");
        image.done("chmod 4750 :/d/link");
        image.done("chmod -R a+rX,o= :/d/sub");
        image.done("chown 70000:8 :/d/f");
        image.done("chown -R :99 :/d/sub");
        image.done("chown -h 5 :/d/link");
        image.done("touch -d @1000000000.5 :/d/sub/g");
        image.done("touch -m -d @1500000000 :/d/f");
        image.done("truncate -s 5M :/d/f :/d/new");
        image.done("truncate -s -1M :/d/f");
        image.done("truncate -s +1 :/d/new");
        image.done("truncate -c -s 1 :/d/none");
        image.refused("truncate -s 1 :/d/sub", NOT_FOUND, "is a directory");
        image.refused("chmod 644 :/none", NOT_FOUND, "no such file");
        image.refused("chmod u+q :/d", USAGE, "is no mode");
        image.refused("chown root :/d", USAGE, "the names of owners are in the image's own");
        image.refused("touch -d yesterday :/d", USAGE, "is no time");
        image.refused("touch :/none/x", NOT_FOUND, "the directory is not there");
        image.mounted(|root| {
            let stat = |path: &str| std::fs::symlink_metadata(root.join(path)).unwrap();
            let file = stat("d/f");
            // The change of owner clears the setuid bit.
            assert_eq!((file.mode() & 0o7777, file.uid(), file.gid()), (0o750, 70000, 8));
            assert_eq!(file.len(), 4 << 20);
            assert_eq!((stat("d/sub").mode() & 0o7777, stat("d/sub").gid()), (0o750, 99));
            let g = stat("d/sub/g");
            assert_eq!(
                (g.mode() & 0o7777, g.gid(), g.mtime(), g.atime()),
                (0o640, 99, 1_000_000_000, 1_000_000_000)
            );
            assert_eq!((stat("d/link").uid(), stat("d/new").len()), (5, (5 << 20) + 1));
            assert!(!root.join("d/none").exists());
        });
    }
}

#[test]
fn projects_are_set_inherited_and_counted() {
    let image = Image::new(&["-O", "quota,project", "-E", "quotatype=usrquota:grpquota:prjquota"]);
    image.done("mkdir -p :/d/sub");
    image.done("touch :/d/f :/other");
    image.done("project -R -s 42 :/d");
    image.done("touch :/d/sub/new");
    image.done("project 7 :/d/f");
    image.refused("mv :/other :/d", TARGET, "the directory is of another project");
    assert_has(&image.done("stat :/d/sub/new"), "Project: 42");
    assert_has(&image.done("stat :/d/f"), "Project: 7");
    assert_has(&image.done("stat :/d/sub"), "Project: 42");
    image.done("project -R --no-inherit 0 :/d");
    image.done("mv :/other :/d");
    assert_has(&image.done("stat :/d/sub/new"), "Project: 0");
    e2fsck_clean(&image.path);
    let without = Image::new(&[]);
    without.done("touch :/f");
    without.refused("project 1 :/f", TARGET, "not possible here; the file system needs the feature project");
}

#[test]
fn attributes_are_set_shown_and_removed() {
    for image in kinds() {
        image.done("touch :/f :/g");
        image.done("xattr set user.text hello :/f :/g");
        image.done("xattr set user.raw 0x00ff :/f");
        image.done("xattr set --replace user.text -bye :/g");
        assert_eq!(image.done("xattr get user.text :/f"), "\"hello\"\n");
        assert_eq!(image.done("xattr get user.text :/f :/g"), "/f: \"hello\"\n/g: \"-bye\"\n");
        assert_eq!(image.done("xattr get --raw user.text :/f"), "hello");
        assert_eq!(image.done("xattr list :/f"), "user.text = \"hello\"\nuser.raw = 0x00ff\n");
        assert_has(&debugfs(&image.path, "ea_list /f"), "user.text (5) = \"hello\"");
        image.refused("xattr set --create user.text x :/f", EXISTS, "user.text: it has this attribute");
        image.refused("xattr set --replace user.none x :/f", NOT_FOUND, "no such attribute");
        image.refused("xattr set color red :/f", USAGE, "names begin with user.");
        image.refused("xattr set user.x 0x1 :/f", USAGE, "pairs of hex digits");
        image.refused("xattr get user.none :/f", NOT_FOUND, "no such attribute");
        image.done("xattr remove user.text :/f :/g");
        image.refused("xattr remove user.text :/f", NOT_FOUND, "user.text: no such attribute");
        assert_eq!(image.done("xattr list :/g"), "");
        e2fsck_clean(&image.path);
    }
}

#[test]
fn several_paths_and_a_script_are_one_commit() {
    let image = Image::new(&[]);
    let start = image.sequence();
    image.done("mkdir :/one");
    let one = image.sequence() - start;
    image.done("mkdir :/a :/b :/c :/d");
    assert_eq!(image.sequence() - start, 2 * one);
    let script: String = (0..200).map(|number| format!("mkdir /a/{number}\ntouch /a/{number}/f\n")).collect();
    image.script(&[], &script).code(0);
    assert_eq!(image.sequence() - start, 3 * one);
    image.mounted(|root| assert!(root.join("a/199/f").is_file()));
}

#[test]
fn what_fails_does_not_keep_the_other_paths_from_being_done() {
    let image = Image::new(&[]);
    let outcome = image.run("mkdir :/a :/none/b :/c");
    assert_has(outcome.code(NOT_FOUND), "/none/b: no such file");
    image.mounted(|root| assert!(root.join("a").is_dir() && root.join("c").is_dir()));
}

#[test]
fn a_script_is_done_whole() {
    let image = Image::new(&[]);
    let script = "\
        # what a home needs\n\
        mkdir -p -m 0700 '/srv/ann/My Files'   # quoted\n\
        \n\
        touch /srv/ann/My\\ Files/\"a#b\"\r\n\
        chown -R 1000:1000 /srv/ann\n\
        ln -s '/srv/ann/My Files' /files\n\
        xattr set user.note \"it's\" /files/a#b\n\
        xattr get user.note /files/a#b\n\
        mv /files/a#b /srv/ann/x\n\
        truncate -s 1K /srv/ann/x\n\
        chmod o+r /srv/ann/x\n\
        rm /files";
    let outcome = image.script(&[], script);
    assert_eq!(outcome.code(0), "");
    assert_eq!(outcome.stdout, "\"it's\"\n");
    image.mounted(|root| {
        let x = std::fs::metadata(root.join("srv/ann/x")).unwrap();
        assert_eq!((x.len(), x.uid(), x.mode() & 0o7777), (1024, 1000, 0o644));
        assert!(root.join("srv/ann/My Files").is_dir() && !root.join("files").exists());
    });
    // The same from a file.
    let file = image.path.with_extension("txt");
    std::fs::write(&file, "mkdir /from-file\n").unwrap();
    run([OsString::from("edit"), image.path.clone().into(), file.into()]).code(0);
    image.done("stat :/from-file");
}

#[test]
fn a_script_copies_files_of_the_host() {
    let image = Image::new(&[]);
    let site = image.path.with_extension("site");
    std::fs::create_dir_all(site.join("below")).unwrap();
    std::fs::write(site.join("index"), "hello").unwrap();
    std::fs::write(site.join("below/large"), vec![7; 300_000]).unwrap();
    std::os::unix::fs::symlink("index", site.join("link")).unwrap();
    let site = site.display();
    let outcome = image.script(
        &[],
        &format!(
            "mkdir -p /srv/www\ncp -r '{site}/.' /srv/www\nmv /srv/www/index /srv/www/start\ncp {site}/index /etc-issue\n"
        ),
    );
    assert_eq!(outcome.code(0), "");
    image.mounted(|root| {
        assert_eq!(std::fs::read(root.join("srv/www/start")).unwrap(), b"hello");
        assert_eq!(std::fs::read(root.join("srv/www/below/large")).unwrap(), [7; 300_000]);
        assert_eq!(std::fs::read_link(root.join("srv/www/link")).unwrap(), Path::new("index"));
        assert_eq!(std::fs::read(root.join("etc-issue")).unwrap(), b"hello");
    });
    // A missing file, or a directory without -r, undoes the previous lines, too.
    let before = std::fs::read(&image.path).unwrap();
    for (line, code, message) in [
        (format!("cp {site}/none /x"), SOURCE, "none: "),
        (format!("cp {site}/below /x"), USAGE, "is a directory; copy it with -r"),
    ] {
        let outcome = image.script(&[], &format!("cp -r {site} /again\n{line}\n"));
        assert_has(outcome.code(code), message);
        assert_has(outcome.code(code), "line 2: ");
        assert!(std::fs::read(&image.path).unwrap() == before, "{}", outcome.line);
    }
}

#[test]
fn a_script_that_fails_leaves_the_image_byte_for_byte() {
    let image = Image::new(&[]);
    image.done("mkdir :/there");
    let before = std::fs::read(&image.path).unwrap();
    let unchanged = |outcome: &Outcome| {
        assert!(std::fs::read(&image.path).unwrap() == before, "{}", outcome.line);
    };
    let outcome = image.script(&[], "mkdir /a\ntouch /a/b\nmkdir /there\nmkdir /never\n");
    let message = outcome.code(EXISTS);
    assert_has(message, "line 3: ");
    assert_has(message, "/there: the name exists");
    assert_has(message, "nothing of the script was done: ");
    assert!(!message.contains("never"), "{message}");
    unchanged(&outcome);

    // All invalid lines are reported before anything is done.
    let outcome = image.script(&[], "mkdir /a\nmkdirs /b\n\nchmod 9 /a\nrm 'open\n");
    let message = outcome.code(USAGE);
    for part in [
        "line 2: there is no command \"mkdirs\"; did you mean mkdir?",
        "line 4: ",
        "is no mode",
        "line 5: a ' that is not closed",
    ] {
        assert_has(message, part);
    }
    assert_has(message, "nothing of the script was done: ");
    assert_eq!(message.lines().count(), 4, "{message}");
    unchanged(&outcome);

    let file = image.path.with_extension("txt");
    std::fs::write(&file, "mkdir /a\nrm /none\n").unwrap();
    let outcome = run([OsString::from("edit"), image.path.clone().into(), file.clone().into()]);
    assert_has(outcome.code(NOT_FOUND), "a.txt:2: ");
    unchanged(&outcome);

    let outcome = image.script(&["--dry-run"], "mkdir /a\n");
    assert_eq!(outcome.code(0), "");
    unchanged(&outcome);
    unchanged(&image.script(&[], "# nothing\n"));
    run([OsString::from("edit"), image.path.clone().into(), "/none/script".into()]).code(SOURCE);

    // With --keep-going, the remaining lines are executed.
    let outcome = image.script(&["--keep-going"], "mkdir /a\nmkdirs /b\nmkdir /there\nmkdir /c\n");
    let message = outcome.code(EXISTS);
    assert_has(message, "line 2: ");
    assert_has(message, "line 3: ");
    image.mounted(|root| assert!(root.join("a").is_dir() && root.join("c").is_dir()));
}

#[test]
fn there_is_one_writer_and_any_number_of_readers() {
    let image = Image::new(&[]);
    image.done("mkdir :/a");
    let held = extant::open_writable(&image.path).unwrap();
    assert_has(image.run("mkdir :/b").code(BUSY), "is in use: it is open for writing in process ");
    assert_has(image.script(&[], "mkdir /b\n").code(BUSY), "is in use");
    assert_has(image.run("stat :/a").code(0), "is open for writing in process ");
    assert_has(image.run("xattr list :/a").code(0), "what is read here may be older");
    held.close().unwrap();
    image.done("mkdir :/b");

    if is_root() {
        let mount = LoopMount::new(&image.path, "rw").unwrap_or_else(|error| panic!("{error}"));
        let outcome = image.run("mkdir :/c");
        let message = outcome.code(BUSY);
        assert_has(message, "is mounted on ");
        assert_has(message, mount.path().to_str().unwrap());
        drop(mount);
        image.done("mkdir :/c");
    }
    e2fsck_clean(&image.path);
}

#[test]
fn a_block_device_that_is_mounted_is_busy() {
    if not_root() {
        return eprintln!("not root: no loop device");
    }
    let image = Image::new(&[]);
    let device = extant_testkit::LoopDevice::attach(&image.path).unwrap();
    assert!(std::fs::metadata(device.path()).unwrap().file_type().is_block_device());
    let arg = |path: &str| format!("{}:{path}", device.path().display());
    run(["mkdir", &arg("/a")]).code(0);
    let mount = LoopMount::device(&device, "ro").unwrap_or_else(|error| panic!("{error}"));
    assert_has(run(["mkdir", &arg("/b")]).code(BUSY), "is in use: it is mounted read-only on ");
    assert!(mount.path().join("a").is_dir());
    drop(mount);
    run(["rm", "-r", &arg("/a")]).code(0);
}

#[test]
fn an_image_that_another_machine_may_have_is_claimed_and_given_back() {
    let image = Image::new(&["-O", "mmp"]);
    image.done("mkdir :/a");
    image.done("mkdir :/b");
    e2fsck_clean(&image.path);
    // e2fsck is working on it.
    image.change_mmp(|mmp| {
        assert_eq!(mmp.sequence, Mmp::SEQ_CLEAN);
        mmp.sequence = Mmp::SEQ_FSCK;
    });
    image.refused("mkdir :/c", BUSY, "the file system is in use: e2fsck is checking it");
    assert_has(&image.done("ls :/"), "a");
}

/// The MMP block says that another machine may still use the image, with an interval of a day and a half:
/// this is refused without a wait. With a possible interval, the wait is reported at once.
#[test]
fn a_wait_for_another_machine_is_said_and_has_an_end() {
    let image = Image::new(&["-O", "mmp"]);
    let left_behind = |interval| {
        image.change_superblock(|sb| sb.mmp_interval = interval);
        image.change_mmp(|mmp| mmp.sequence = 1000);
    };
    left_behind(65_535);
    let begun = std::time::Instant::now();
    image.refused("mkdir :/a", 8, "mmp_update_interval=5");
    assert!(begun.elapsed().as_secs() < 2);
    left_behind(5);
    image.waits("mkdir IMG:/a", "waiting 22 s");
}

/// Regression: a hundred commands of a build made an image due for a check at its first boot.
#[test]
fn commands_are_no_mounts() {
    let image = Image::new(&[]);
    let superblock_field = |label: &str| common::superblock_field(&image.path, label);
    let (count, time) = (superblock_field("Mount count"), superblock_field("Last mount time"));
    for number in 0..3 {
        image.done(&format!("mkdir :/{number}"));
    }
    assert_eq!((superblock_field("Mount count"), superblock_field("Last mount time")), (count, time));
}

/// The defaults that `tune2fs -o` sets apply to commands, too.
#[test]
fn the_superblocks_options_are_honoured() {
    let image = Image::new(&[]);
    image.done("mkdir :/d");
    image.done("chown 5:50 :/d");
    extant_testkit::run("tune2fs", ["-o", "bsdgroups", image.path.to_str().unwrap()]);
    image.done("mkdir :/d/in");
    assert!(image.done("ls -l :/d").contains(" 0 50 "));
}

/// Regression: an attribute was written to a file system without the attribute feature, and e2fsck removed
/// it.
#[test]
fn an_attribute_is_announced() {
    for options in [&["-t", "ext2", "-O", "none"][..], &["-t", "ext4", "-O", "^ext_attr", "-I", "128"]] {
        let image = Image::new(options);
        image.done("mkdir :/d");
        image.done("xattr set security.capability 0x0100000200200000000000000000000000000000 :/d");
        e2fsck_clean(&image.path);
        let _ =
            extant_testkit::command("e2fsck").args(["-fy", image.path.to_str().unwrap()]).output().unwrap();
        assert!(image.done("xattr list :/d").contains("security.capability"));
    }
}

#[test]
fn a_journal_that_waits_is_replayed_first() {
    let image = Image::new(&[]);
    let fs = extant::open_writable(&image.path).unwrap();
    fs.create_dir("/kept", 0o755).unwrap();
    fs.sync().unwrap();
    drop(fs); // No close: as after a power cut.
    let outcome = image.run("mkdir :/more");
    assert_has(outcome.code(0), "note: the journal held 1 transaction that were not replayed");
    image.mounted(|root| assert!(root.join("kept").is_dir() && root.join("more").is_dir()));
}

#[test]
fn an_image_inside_of_a_file_is_edited_in_place() {
    let image = Image::new(&[]);
    let whole = image.path.with_extension("disk");
    let before = std::fs::read(&image.path).unwrap();
    std::fs::write(&whole, [vec![0xaa; 1 << 20], before, vec![0xbb; 4096]].concat()).unwrap();
    let mut arg = whole.clone().into_os_string();
    arg.push("@1M:/in/side");
    run([OsString::from("mkdir"), "-p".into(), arg]).code(0);
    let bytes = std::fs::read(&whole).unwrap();
    assert!(bytes[..1 << 20].iter().all(|byte| *byte == 0xaa));
    assert!(bytes[bytes.len() - 4096..].iter().all(|byte| *byte == 0xbb));
    std::fs::write(&image.path, &bytes[1 << 20..bytes.len() - 4096]).unwrap();
    image.mounted(|root| assert!(root.join("in/side").is_dir()));
}

#[test]
fn what_cannot_be_is_said_clearly() {
    let image = Image::new(&[]);
    image.refused("mkdir :/..", EXISTS, "the name exists");
    let bare = run([OsString::from("mkdir"), image.path.clone().into()]);
    assert_has(bare.code(USAGE), "a path is missing");
    assert_has(run(["edit", "no.img"]).code(8), "there is no such file");
    let mut with_path = image.path.clone().into_os_string();
    with_path.push(":/etc");
    assert_has(run([OsString::from("edit"), with_path]).code(USAGE), "a script is for a whole image");
    let other = Image::new(&[]);
    other.done("touch :/f");
    let from = OsString::from(format!("{}:/f", other.path.display()));
    let to = OsString::from(format!("{}:/f", image.path.display()));
    assert_has(run([OsString::from("mv"), from, to]).code(USAGE), "stay inside of one image");

    // A feature that can be read, but not written.
    let shared = Image::new(&[]);
    extant_testkit::run("debugfs", ["-w", "-R", "feature shared_blocks", shared.path.to_str().unwrap()]);
    shared.refused("mkdir :/a", TARGET, "extant cannot write: shared_blocks; it can be opened for reading");
}
