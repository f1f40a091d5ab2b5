//! The options of `extant build`: each does what its help says, and the report states what was done.

use crate::common;

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use crate::common::{
    SOURCE, Tar, USAGE, assert_has, assert_names, build, debugfs_names, debugfs_stat, run, superblock_field,
    try_build, words,
};
use extant_testkit::{LoopMount, Manifest, debugfs, dumpe2fs, e2fsck_clean, is_root, not_root, scratch};

/// A small tree: 4 regular files in 5 directories, 2 symlinks, a fifo; one file has two names.
fn small_tree(dir: &Path) {
    for path in ["etc", "usr/bin", "var/cache/deep"] {
        std::fs::create_dir_all(dir.join(path)).unwrap();
    }
    std::fs::write(dir.join("etc/passwd"), "root").unwrap();
    std::fs::write(dir.join("usr/bin/tool"), vec![7; 10_000]).unwrap();
    std::fs::set_permissions(dir.join("usr/bin/tool"), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::hard_link(dir.join("usr/bin/tool"), dir.join("usr/bin/another")).unwrap();
    std::fs::write(dir.join("var/cache/deep/file.o"), "object").unwrap();
    std::fs::write(dir.join("var/cache/empty"), "").unwrap();
    symlink("usr/bin", dir.join("bin")).unwrap();
    symlink("x".repeat(100), dir.join("long-symlink")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        dir.join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
}

struct Bench {
    scratch: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let scratch = scratch();
        let tree = scratch.path().join("tree");
        std::fs::create_dir(&tree).unwrap();
        small_tree(&tree);
        Self { scratch }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.scratch.path().join(name)
    }

    /// Builds the tree with these options, checks the image, and returns the report.
    #[track_caller]
    fn build(&self, options: &str) -> serde_json::Value {
        let image = self.path("image");
        let _ = std::fs::remove_file(&image);
        let mut all = args!["--from", self.path("tree")].to_vec();
        all.extend(words(options));
        let report = build(&image, &all);
        e2fsck_clean(&image);
        report
    }

    fn stat(&self, path: &str) -> String {
        debugfs_stat(&self.path("image"), path)
    }

    #[track_caller]
    fn refused(&self, options: &str, code: i32, part: &str) {
        let image = self.path("refused");
        let mut all = args!["--from", self.path("tree")].to_vec();
        all.extend(words(options));
        assert_has(try_build(&image, &all).code(code), part);
        assert!(!image.exists(), "{options}");
    }
}

#[test]
fn the_report_counts_what_is_in_the_image() {
    let bench = Bench::new();
    let report = bench.build("--label a-label --block-size 4096");
    let number = |field: &str| report[field].as_u64().unwrap_or_else(|| panic!("{field} in {report:#}"));
    let dump = dumpe2fs(&bench.path("image"));
    assert_eq!(number("files"), 4);
    assert_eq!(number("directories"), 8); // root, lost+found, and six others.
    assert_eq!(number("symlinks"), 2);
    assert_eq!(number("others"), 1);
    assert_eq!(number("extra_links"), 1);
    assert_eq!(number("content_bytes"), 4 + 10_000 + 6);
    assert_eq!(number("data_bytes"), 4096 + 12_288 + 4096);
    assert_eq!(number("xattr_sets"), 0);
    assert_eq!(number("block_size"), 4096);
    assert_eq!(number("image_bytes"), std::fs::metadata(bench.path("image")).unwrap().len());
    assert_eq!(number("blocks"), dump.number("Block count"));
    assert_eq!(number("free_blocks"), dump.number("Free blocks"));
    assert_eq!(number("inodes"), dump.number("Inode count"));
    assert_eq!(number("free_inodes"), dump.number("Free inodes"));
    assert_eq!(report["uuid"], dump.field("Filesystem UUID"));
    assert!(number("written_bytes") > 0 && number("written_bytes") <= number("image_bytes"));
    assert!(report["seconds"].as_f64().unwrap() > 0.0);
    assert_eq!(report["warnings"], serde_json::json!([]));
    assert_eq!(report["dry_run"], false);
    let features: Vec<&str> =
        report["features"].as_array().unwrap().iter().map(|f| f.as_str().unwrap()).collect();
    let mut dumped: Vec<&str> = dump.field("Filesystem features").split_whitespace().collect();
    // dumpe2fs spells two features differently.
    let mut features: Vec<&str> = features.into_iter().collect();
    features.sort_unstable();
    dumped.sort_unstable();
    assert_eq!(features, dumped);
    // The same as text.
    let out = run(args!["build", "--force", "--from", bench.path("tree"), "-o", bench.path("image")]);
    out.code(0);
    assert_has(&out.stdout, "4 files, 8 directories, 2 symlinks, 1 others, 1 further links");
    let quiet = run(args!["build", "-q", "--force", "--from", bench.path("tree"), "-o", bench.path("image")]);
    assert_eq!((quiet.code(0), quiet.stdout.as_str()), ("", ""));
}

#[test]
fn a_dry_run_writes_nothing() {
    let bench = Bench::new();
    let planned = build(&bench.path("image"), args!["-n", "--from", bench.path("tree")]);
    assert_eq!(planned["dry_run"], true);
    assert_eq!(planned["written_bytes"], 0);
    assert_names(bench.scratch.path(), &["tree"]);
    let made = bench.build("");
    for field in ["image_bytes", "uuid", "blocks", "free_blocks", "inodes", "content_bytes"] {
        assert_eq!(planned[field], made[field], "{field}");
    }
    // An existing image is not changed, either.
    let before = std::fs::metadata(bench.path("image")).unwrap().ino();
    build(&bench.path("image"), args!["-n", "--from", bench.path("tree")]);
    assert_eq!(std::fs::metadata(bench.path("image")).unwrap().ino(), before);
}

#[test]
fn one_owner_for_everything() {
    let bench = Bench::new();
    bench.build("--owner 1234:70000");
    for path in ["/", "/etc/passwd", "/usr/bin/tool", "/bin", "/fifo", "/var/cache"] {
        let stat = bench.stat(path);
        let words: Vec<&str> = stat.split_whitespace().collect();
        let after = |label: &str| words[words.iter().position(|w| *w == label).unwrap() + 1];
        assert_eq!((after("User:"), after("Group:")), ("1234", "70000"), "{path}");
    }
    bench.refused("--owner root", USAGE, "--owner");
    bench.refused("--owner 1:4294967295", USAGE, "--owner");
}

#[test]
fn ids_are_mapped_in_inodes_and_in_acls() {
    let scratch = scratch();
    let mut tar = Tar::in_memory();
    for (name, owner) in [("zero", (0, 0)), ("thousand", (1000, 100)), ("other", (77, 88))] {
        tar.owner = owner;
        tar.file(name, name);
    }
    tar.owner = (0, 0);
    tar.pax(
        "SCHILY.acl.access",
        "user::rwx,user:1000:rw-,user:5:r--,group::r-x,group:100:-w-,mask::rwx,other::r--",
    );
    tar.pax("SCHILY.acl.default", "user::rwx,user:1001:rwx,group::r-x,mask::rwx,other::---");
    tar.dir("acl");
    let tar = tar.save(scratch.path().join("x.tar"));
    let image = scratch.path().join("image");
    let maps = "--uid-map 0:100000:65536 --gid-map 100:5000 --gid-map *:65534";
    let mut all = args!["--tar", &tar].to_vec();
    all.extend(words(maps));
    build(&image, &all);
    e2fsck_clean(&image);
    for (name, owner) in
        [("zero", [100_000, 65_534]), ("thousand", [101_000, 5000]), ("other", [100_077, 65_534])]
    {
        let stat = debugfs_stat(&image, &format!("/{name}"));
        let words: Vec<&str> = stat.split_whitespace().collect();
        let after =
            |label: &str| words[words.iter().position(|w| *w == label).unwrap() + 1].parse::<u32>().unwrap();
        assert_eq!([after("User:"), after("Group:")], owner, "{name}");
    }
    let acls_are_mapped = || {
        if !is_root() {
            return;
        }
        let mount = LoopMount::read_only(&image).unwrap();
        let said = extant_testkit::run(
            "getfacl",
            ["-n".as_ref(), "-p".as_ref(), mount.path().join("acl").as_os_str()],
        );
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        for line in ["user:101000:rw-", "user:100005:r--", "group:5000:-w-", "default:user:101001:rwx"] {
            assert_has(&said, line);
        }
    };
    acls_are_mapped();
    // The ids of --owner and --group are those of the image in every form; ACLs are mapped all the same.
    for (owner, expected) in [
        ("--owner 7:100", "7:100"),
        ("--owner 7", "7:5000"),
        ("--group 100", "101000:100"),
        ("--owner :100", "101000:100"),
        ("--owner 7 --group 100", "7:100"),
    ] {
        let mut all = args!["--force", "--tar", &tar].to_vec();
        all.extend(words(maps));
        all.extend(words(owner));
        build(&image, &all);
        let mut file = image.clone().into_os_string();
        file.push(":/thousand");
        assert_eq!(run(args!["stat", "--printf", "%u:%g", file]).stdout, expected, "{owner}");
        acls_are_mapped();
    }
    common::remove(&image);
    // An ID outside every range is reported with its path, and no image is made.
    let refused = try_build(&image, args!["--uid-map", "0:100000:10", "--tar", &tar]);
    assert_has(refused.code(SOURCE), "user: id ");
    assert_names(scratch.path(), &["x.tar"]);
}

const CONTEXTS: &str = "\
# a comment
/.*                     system_u:object_r:default_t:s0
/etc(/.*)?              system_u:object_r:etc_t:s0
/etc/passwd     --      system_u:object_r:passwd_file_t:s0
/usr/bin/.*     --      system_u:object_r:bin_t:s0
/links/a(/.*)?          system_u:object_r:a_t:s0
/links/b(/.*)?          system_u:object_r:b_t:s0
/var/cache/empty        <<none>>
/                -d     system_u:object_r:root_t:s0
";

#[test]
fn labels_come_from_file_contexts() {
    let bench = Bench::new();
    std::fs::write(bench.path("contexts"), CONTEXTS).unwrap();
    let option = format!("--file-contexts {}", bench.path("contexts").display());
    bench.build(&option);
    for (path, label) in [
        ("/", "root_t"),
        ("/etc", "etc_t"),
        ("/etc/passwd", "passwd_file_t"),
        ("/usr/bin/tool", "bin_t"),
        ("/usr/bin", "default_t"),
        ("/bin", "default_t"),
        ("/fifo", "default_t"),
    ] {
        let list = debugfs(&bench.path("image"), &format!("ea_get {path} security.selinux"));
        assert_has(&list, &format!("system_u:object_r:{label}:s0"));
    }
    let none = debugfs(&bench.path("image"), "ea_list /var/cache/empty");
    assert!(!none.contains("selinux"), "{none}");
    if is_root() {
        let mount = LoopMount::read_only(&bench.path("image")).unwrap();
        let copy = Manifest::of(mount.path());
        let label = &copy.entries[&b"etc/passwd"[..]].xattrs[&b"security.selinux"[..]];
        assert_eq!(label, b"system_u:object_r:passwd_file_t:s0\0");
    }
    std::fs::write(bench.path("broken"), "/etc ???\n/x(").unwrap();
    bench.refused(&format!("--file-contexts {}", bench.path("broken").display()), USAGE, "broken: line ");
    bench.refused("--file-contexts /nowhere", SOURCE, "/nowhere");
}

/// One inode has several names with different labels: the same label is used for every kind of source.
#[test]
fn labels_of_hard_links_do_not_depend_on_the_order_of_reading() {
    let scratch = scratch();
    std::fs::write(scratch.path().join("contexts"), CONTEXTS).unwrap();
    let archive = |order: &[usize]| {
        let mut tar = Tar::in_memory();
        for dir in ["links", "links/a", "links/b", "links/b/c"] {
            tar.dir(dir);
        }
        let names = ["links/a/x", "links/b/c/w", "links/b/y", "z"];
        tar.file(names[order[0]], "content");
        for &other in &order[1..] {
            tar.link(names[other], names[order[0]]);
        }
        tar.bytes()
    };
    let mut images = Vec::new();
    for (i, order) in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1], [1, 3, 0, 2]].iter().enumerate() {
        let (tar, image) = (scratch.path().join(format!("{i}.tar")), scratch.path().join(format!("{i}.img")));
        std::fs::write(&tar, archive(order)).unwrap();
        build(&image, args!["--file-contexts", scratch.path().join("contexts"), "--tar", &tar]);
        e2fsck_clean(&image);
        images.push(std::fs::read(image).unwrap());
    }
    assert!(images.iter().all(|image| *image == images[0]));
}

/// Attribute sets are numbered in the order of reading, which must not influence the bytes.
#[test]
fn attributes_do_not_depend_on_the_order_of_reading() {
    let scratch = scratch();
    let names: Vec<String> = (0..50).map(|i| format!("d{}/f{i:02}", i % 7)).collect();
    let archive = |order: &mut dyn Iterator<Item = usize>| {
        let mut tar = Tar::in_memory();
        (0..7).for_each(|i| _ = tar.dir(format!("d{i}")));
        for i in order {
            // In a block, in a separate inode, and equal for some files.
            tar.pax("SCHILY.xattr.user.medium", vec![b'm' + (i % 9) as u8; 400]);
            tar.pax("SCHILY.xattr.user.large", vec![b'a' + (i % 11) as u8; 9000]);
            tar.file(&names[i], &names[i]);
        }
        tar.bytes()
    };
    let archives =
        [archive(&mut (0..50)), archive(&mut (0..50).rev()), archive(&mut (0..50).map(|i| i * 17 % 50))];
    let mut images = Vec::new();
    for (i, bytes) in archives.iter().enumerate() {
        let (tar, image) = (scratch.path().join(format!("{i}.tar")), scratch.path().join(format!("{i}.img")));
        std::fs::write(&tar, bytes).unwrap();
        build(&image, args!["-O", "ea_inode,quota", "--tar", &tar]);
        e2fsck_clean(&image);
        images.push(std::fs::read(image).unwrap());
    }
    assert!(images.iter().all(|image| *image == images[0]));
}

#[test]
fn excluded_names_and_paths_stay_out() {
    let bench = Bench::new();
    bench.build("--exclude *.o --exclude /usr/bin/another --exclude etc");
    let image = bench.path("image");
    assert_eq!(debugfs_names(&image, "/"), ["bin", "fifo", "long-symlink", "lost+found", "usr", "var"]);
    assert_eq!(debugfs_names(&image, "/var/cache/deep"), [""; 0]);
    assert_eq!(debugfs_names(&image, "/usr/bin"), ["tool"]);
    // One of its two names is excluded, so one link remains.
    assert_has(&bench.stat("/usr/bin/tool"), "Links: 1");
    std::fs::write(bench.path("list"), "# what is not needed\n\n/var\n*.o\n").unwrap();
    bench.build(&format!("--exclude-from {}", bench.path("list").display()));
    assert_eq!(debugfs_names(&image, "/"), ["bin", "etc", "fifo", "long-symlink", "lost+found", "usr"]);
    // In an archive, too, with everything below.
    let mut tar = Tar::in_memory();
    tar.dir("var").file("var/x", "x").file("kept", "kept").file("deep/a.o", "o").file("deep/a.c", "c");
    let tar = tar.save(bench.path("x.tar"));
    common::remove(&image);
    build(&image, args!["--exclude-from", bench.path("list"), "--tar", &tar]);
    e2fsck_clean(&image);
    assert_eq!(debugfs_names(&image, "/"), ["deep", "kept", "lost+found"]);
    assert_eq!(debugfs_names(&image, "/deep"), ["a.c"]);
    bench.refused("--exclude [", USAGE, "--exclude");
}

#[test]
fn other_file_systems_below_a_source_are_left_out_on_demand() {
    if not_root() {
        return;
    }
    let bench = Bench::new();
    let below = bench.path("tree").join("etc");
    let mounted = extant_testkit::command("mount")
        .args(["-t", "tmpfs", "none"])
        .arg(&below)
        .status()
        .unwrap()
        .success();
    if !mounted {
        println!("skipped: no tmpfs");
        return;
    }
    std::fs::write(below.join("elsewhere"), "x").unwrap();
    // Unmounted before the assertions.
    let built = std::panic::catch_unwind(|| {
        bench.build("");
        let entered = debugfs_names(&bench.path("image"), "/etc");
        bench.build("-x");
        let names = ["/", "/etc"].map(|dir| debugfs_names(&bench.path("image"), dir));
        (entered, names)
    });
    extant_testkit::run("umount", [&below]);
    let (entered, [root, etc]) = built.unwrap();
    assert_eq!(entered, ["elsewhere"]);
    assert_eq!(root, ["bin", "etc", "fifo", "long-symlink", "lost+found", "usr", "var"]);
    assert_eq!(etc, [""; 0], "the place to mount it on stays");
}

#[test]
fn labels_uuids_and_room_to_grow() {
    let bench = Bench::new();
    let plain = bench.build("");
    let report =
        bench.build("--label root --uuid 01234567-89ab-cdef-0123-456789abcdef -M /mnt/x -m 5 -e remount-ro");
    let image = bench.path("image");
    assert_eq!(report["uuid"], "01234567-89ab-cdef-0123-456789abcdef");
    assert_eq!(superblock_field(&image, "Filesystem volume name"), "root");
    assert_eq!(superblock_field(&image, "Filesystem UUID"), "01234567-89ab-cdef-0123-456789abcdef");
    assert_eq!(superblock_field(&image, "Last mounted on"), "/mnt/x");
    assert_eq!(superblock_field(&image, "Errors behavior"), "Remount read-only");
    assert!(dumpe2fs(&image).number("Reserved block count") > 0);
    // Derived from the tree, so it is the same every time; random on request.
    assert_eq!(bench.build("")["uuid"], plain["uuid"]);
    assert_ne!(bench.build("--uuid random")["uuid"], bench.build("--uuid random")["uuid"]);
    bench.refused("--label 12345678901234567", USAGE, "label");
    bench.refused("--uuid nonsense", USAGE, "uuid");

    let bytes = |report: &serde_json::Value| report["image_bytes"].as_u64().unwrap();
    for percent in ["1", "20", "50%", "200", "1000"] {
        let roomy = bench.build(&format!("--headroom {percent}"));
        let factor = 1.0 + percent.trim_end_matches('%').parse::<f64>().unwrap() / 100.0;
        assert!(bytes(&roomy) as f64 + 1.0 > bytes(&plain) as f64 * factor, "{percent}: {roomy:#}");
        assert!(roomy["free_inodes"].as_u64() >= plain["free_inodes"].as_u64());
    }
    bench.refused("--headroom 20 --size 10M", USAGE, "--headroom");
    bench.refused("--headroom=-1", USAGE, "headroom");
    let given = bench.build("--size 20M");
    assert_eq!(bytes(&given), 20 << 20);
    assert_eq!(std::fs::metadata(&image).unwrap().len(), 20 << 20);
}

/// Headroom that increases an image beyond the size where its journal becomes larger.
#[test]
fn room_to_grow_is_there_also_where_the_journal_grows() {
    let scratch = scratch();
    let image = scratch.path().join("image");
    for megabytes in [4, 7, 100, 121, 123] {
        let tree = scratch.path().join("tree");
        std::fs::create_dir(&tree).unwrap();
        std::fs::File::create(tree.join("file")).unwrap();
        std::fs::write(tree.join("file"), vec![1; megabytes << 20]).unwrap();
        let plain = build(&image, args!["-n", "--from", &tree])["image_bytes"].as_u64().unwrap();
        for percent in ["0.5", "1", "3", "10"] {
            let roomy = build(&image, args!["-n", "--headroom", percent, "--from", &tree]);
            let wanted = plain as f64 * (1.0 + percent.parse::<f64>().unwrap() / 100.0);
            assert!(
                roomy["image_bytes"].as_u64().unwrap() as f64 + 1.0 > wanted,
                "{megabytes} MB + {percent}%: {roomy:#}"
            );
        }
        build(&image, args!["--headroom", "1", "--from", &tree]);
        e2fsck_clean(&image);
        common::remove(&image);
        std::fs::remove_dir_all(&tree).unwrap();
    }
}

#[test]
fn every_profile_makes_what_it_promises() {
    let bench = Bench::new();
    let list = run(["build", "--profile", "help", "-o", "x", "--from", "/nowhere"]);
    list.code(0);
    let names: Vec<&str> = list.stdout.lines().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert!(names.len() > 15, "{}", list.stdout);
    for expected in ["debian-12", "rhel-8", "grub-2.06", "u-boot", "android", "kernel-3.10", "latest"] {
        assert!(names.contains(&expected), "{expected}");
    }
    for name in names {
        bench.build(&format!("--profile {name}"));
        let image = bench.path("image");
        let promised = extant_image::profile::Profile::by_name(name).unwrap();
        let made = superblock_field(&image, "Filesystem features");
        let made: Vec<&str> = made.split_whitespace().collect();
        // A small image has no journal, and no features that depend on one.
        let small = ["has_journal", "orphan_file"];
        let spelled = promised.features.names();
        let spelled: Vec<&str> = spelled.iter().map(AsRef::as_ref).collect();
        for feature in spelled.iter().filter(|feature| !small.contains(feature)) {
            assert!(made.contains(feature), "{name}: {feature} is not in {made:?}");
        }
        for feature in &made {
            assert!(spelled.contains(feature), "{name}: {feature} is not promised");
        }
        if is_root() {
            drop(LoopMount::read_only(&image).unwrap());
        }
    }
    // The user's own options are added.
    bench.build("--profile rhel-8 -O ^64bit,large_dir -J size=4 --size 64M");
    let features = superblock_field(&bench.path("image"), "Filesystem features");
    assert!(
        features.contains("large_dir") && !features.contains("64bit") && features.contains("has_journal")
    );
    bench.refused("--profile windows", USAGE, "no profile is called \"windows\"");
}

#[test]
fn help_and_usage_errors() {
    let help = run(["build", "--help"]);
    help.code(0);
    for option in
        ["--from", "--tar", "--oci", "--owner", "--file-contexts", "--headroom", "--profile", "--json"]
    {
        assert_has(&help.stdout, option);
    }
    run(["build"]).code(USAGE);
    run(["build", "-o", "x"]).code(USAGE);
    run(["build", "--from", "/"]).code(USAGE);
    let bench = Bench::new();
    bench.refused("-O no_such_feature", USAGE, "no_such_feature");
    bench.refused("-O casefold", USAGE, "casefold");
    bench.refused("-b 3000", USAGE, "3000");
    bench.refused("-b 131072", USAGE, "131072");
    bench.refused("-I 64", USAGE, "inode size");
    bench.refused("--size 12Q", USAGE, "--size: unknown unit");
    bench.refused("-t ext5", USAGE, "ext5");
    bench.refused("-E nothing=1", USAGE, "nothing");
    assert_names(bench.scratch.path(), &["tree"]);
}

#[test]
fn owners_and_modes_of_everything_are_those_of_tar() {
    let scratch = scratch();
    let (tree, image) = (scratch.path().join("tree"), scratch.path().join("a.img"));
    std::fs::create_dir_all(tree.join("d")).unwrap();
    std::fs::write(tree.join("d/f"), "f").unwrap();
    std::os::unix::fs::symlink("f", tree.join("d/l")).unwrap();
    crate::common::outcome(std::process::Command::new("chmod").args(["-R", "u=rwX,g=rwX,o="]).arg(&tree))
        .code(0);
    let shown = |options: &[&str]| {
        let mut args = args!["--from", &tree, "--force"].to_vec();
        args.extend(options.iter().map(std::ffi::OsString::from));
        build(&image, args);
        let mut target = image.clone().into_os_string();
        target.push(":/{,d,d/f,d/l}");
        let said = run(args!["stat", "--printf", "%a %u:%g;", target]);
        said.code(0);
        said.stdout
    };
    let both = "770 7:8;770 7:8;660 7:8;777 7:8;";
    assert_eq!(shown(&["--owner", "7:8"]), both);
    assert_eq!(shown(&["--owner=7", "--group=8"]), both);
    assert_eq!(shown(&["--owner=5", "--group=8", "--chown", "/**=7:"]).replace("5:8", "7:8"), both);
    let both = "755 7:8;755 7:8;644 7:8;777 7:8;";
    assert_eq!(shown(&["--owner", "7:8", "--mode", "u=rwX,go=rX"]), both);
    // Only one of the two changes.
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    assert_eq!(
        shown(&["--owner", "7"]),
        "770 7:8;770 7:8;660 7:8;777 7:8;".replace(":8", &format!(":{group}"))
    );
    assert_eq!(
        shown(&["--group", "8"]),
        "770 7:8;770 7:8;660 7:8;777 7:8;".replace("7:8", &format!("{user}:8"))
    );
}
