//! `extant mkfs` against mke2fs, e2fsck and the kernel.
//!
//! The same options must make the same file system. Each of the parameter sets in [`sets`] is made twice, by
//! mke2fs and by extant, with the same UUID, hash seed and time. Then dumpe2fs must print the same fields and
//! groups, debugfs the same inodes, and the two images must be equal byte for byte. A table lists the allowed
//! differences with a reason for each ([`sets::EXPECTED`]); an expected difference that does not exist is a
//! failure, too.
//!
//! Does **not** test what `extant build` puts into a file system.

#[path = "mkfs/block_device.rs"]
mod block_device;
#[path = "mkfs/compare.rs"]
mod compare;
#[path = "mkfs/kernel.rs"]
mod kernel;
#[path = "mkfs/large.rs"]
mod large;
#[path = "mkfs/more.rs"]
mod more;
#[path = "mkfs/refusals.rs"]
mod refusals;
#[path = "mkfs/sets.rs"]
mod sets;

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use extant_testkit::{command, scratch};
use sets::{SETS, Set};

/// The UUID of all file systems.
const UUID: &str = "01234567-89ab-4def-8123-456789abcdef";
/// The seed of all directory hashes.
const HASH_SEED: &str = "11234567-89ab-4def-8123-456789abcdef";
/// The creation time of all file systems, in seconds since 1970.
const TIME: &str = "1700000000";

/// mke2fs.conf of e2fsprogs 1.47.4, so that the comparison does not depend on the distribution. Older
/// versions of mke2fs know the two features that were added since, but do not enable them by default.
const MKE2FS_CONF: &str = "\
[defaults]
\tbase_features = sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr
\tdefault_mntopts = acl,user_xattr
\tenable_periodic_fsck = 0
\tblocksize = 4096
\tinode_size = 256
\tinode_ratio = 16384
[fs_types]
\text3 = {
\t\tfeatures = has_journal
\t}
\text4 = {
\t\tfeatures = has_journal,extent,huge_file,flex_bg,metadata_csum,metadata_csum_seed,64bit,dir_nlink,extra_isize,orphan_file
\t}
\tsmall = {
\t\tblocksize = 1024
\t\tinode_ratio = 4096
\t}
\tfloppy = {
\t\tblocksize = 1024
\t\tinode_ratio = 8192
\t}
\tbig = {
\t\tinode_ratio = 32768
\t}
\thuge = {
\t\tinode_ratio = 65536
\t}
\tnews = {
\t\tinode_ratio = 4096
\t}
\tlargefile = {
\t\tinode_ratio = 1048576
\t\tblocksize = -1
\t}
\tlargefile4 = {
\t\tinode_ratio = 4194304
\t\tblocksize = -1
\t}
";

/// The command `extant mkfs IMAGE`; callers add arguments.
fn extant_mkfs(image: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_extant"));
    command.env("SOURCE_DATE_EPOCH", TIME).arg("mkfs").arg(image);
    command
}

/// Runs a command. Returns the output, regardless of the exit code.
fn output(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"))
}

/// Runs `extant mkfs IMAGE` with these arguments, and asserts success. Returns the standard output.
fn make(image: &Path, args: &str) -> String {
    let mut command = extant_mkfs(image);
    let output = output(command.args(args.split_whitespace()));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "extant mkfs {args}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A size such as `512M` in KiB.
fn kib(size: &str) -> u64 {
    let (digits, unit) = size.split_at(size.len() - 1);
    let shift = match unit {
        "K" => 0,
        "M" => 10,
        "G" => 20,
        "T" => 30,
        _ => panic!("{size} has no unit"),
    };
    digits.parse::<u64>().unwrap() << shift
}

/// The set's arguments, with the fixed UUID and hash seed. mke2fs uses only its last `-E`, so there is just
/// one.
fn arguments(set: &Set) -> Vec<String> {
    let seed = format!("hash_seed={HASH_SEED}");
    let mut args: Vec<String> = ["-q", "-F", "-U", UUID].map(str::to_owned).into();
    let mut words = set.args.split_whitespace();
    let mut extended = seed.clone();
    while let Some(word) = words.next() {
        if word == "-E" {
            extended = format!("{seed},{}", words.next().expect("-E has a value"));
        } else {
            args.push(word.to_owned());
        }
    }
    args.extend(["-E".to_owned(), extended]);
    args
}

/// Makes the set's file system twice in `dir`: mke2fs's image, and extant's, which e2fsck must find clean.
/// Returns an error as a message.
fn make_both(set: &Set, dir: &Path) -> Result<[PathBuf; 2], String> {
    let (theirs, ours) = (dir.join("theirs.img"), dir.join("ours.img"));
    for image in [&theirs, &ours] {
        let _ = std::fs::remove_file(image);
    }
    let conf = dir.join("mke2fs.conf");
    std::fs::write(&conf, MKE2FS_CONF).unwrap();
    let size = format!("{}K", kib(set.size));
    // The file exists before: if mke2fs creates the file itself, it leaves the inode tables to the kernel.
    std::fs::File::create(&theirs).unwrap().set_len(kib(set.size) << 10).unwrap();
    let mut mke2fs = command("mke2fs");
    // mke2fs before 1.47.1 knows only the first of these variables for the clock, later versions know both.
    mke2fs.env("E2FSPROGS_FAKE_TIME", TIME).env("SOURCE_DATE_EPOCH", TIME).env("MKE2FS_CONFIG", &conf);
    let made = output(mke2fs.args(arguments(set)).arg(&theirs).arg(&size));
    if !made.status.success() {
        return Err(format!("mke2fs refuses: {}", String::from_utf8_lossy(&made.stderr)));
    }
    let made = output(extant_mkfs(&ours).arg("-s").arg(&size).args(arguments(set)));
    if !made.status.success() {
        return Err(format!("extant refuses: {}", String::from_utf8_lossy(&made.stderr)));
    }
    let checked = output(command("e2fsck").arg("-fn").arg(&ours));
    if checked.status.code() != Some(0) {
        return Err(format!("e2fsck complains: {}", String::from_utf8_lossy(&checked.stdout)));
    }
    Ok([theirs, ours])
}

/// Makes the set's file system twice in `dir` and compares everything. Returns an error as a message.
fn judge(set: &Set, dir: &Path) -> Result<(), String> {
    let [theirs, ours] = make_both(set, dir)?;
    compare::compare(&theirs, &ours, set.expected)
}

#[test]
fn the_same_choices_make_the_same_file_system() {
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let dir = scratch();
                while let Some(set) = SETS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let start = Instant::now();
                    if let Err(why) = judge(set, dir.path()) {
                        failures.lock().unwrap().push(format!("{} {}:\n{why}", set.size, set.args));
                    }
                    if start.elapsed().as_secs() > 0 {
                        println!("{} {}: {:.1?}", set.size, set.args, start.elapsed());
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    println!("{} parameter sets, {} with expected differences", SETS.len(), sets::with_differences());
    assert!(
        failures.is_empty(),
        "{} of {} sets differ:\n{}",
        failures.len(),
        SETS.len(),
        failures.join("\n")
    );
}

#[test]
fn debugfs_shows_the_same_inodes() {
    let dir = scratch();
    for args in
        ["-t ext4", "-t ext4 -O bigalloc,quota", "-t ext2", "-t ext4 -b 1024 -I 512", "-t ext4 -b 65536"]
    {
        let [theirs, ours] = make_both(&Set { size: "600M", args, expected: &[] }, dir.path()).unwrap();
        // Root, resize inode, journal, lost+found, and the first inode without a fixed purpose.
        for ino in [2, 7, 8, 11, 12] {
            let request = format!("stat <{ino}>");
            assert_eq!(
                extant_testkit::debugfs(&theirs, &request),
                extant_testkit::debugfs(&ours, &request),
                "{args}"
            );
        }
    }
}

#[test]
fn a_planted_difference_is_found() {
    let dir = scratch();
    let [theirs, ours] = make_both(&Set { size: "64M", args: "-t ext4", expected: &[] }, dir.path()).unwrap();
    assert_eq!(compare::compare(&theirs, &ours, &[]), Ok(()));
    let missing = compare::compare(&theirs, &ours, &[&sets::FAST_COMMIT_ALONE]).unwrap_err();
    assert!(missing.contains("is not there"), "{missing}");
    // A byte far from all structures.
    let image = std::fs::OpenOptions::new().write(true).open(&ours).unwrap();
    image.write_all_at(&[7], 50 << 20).unwrap();
    let planted = compare::compare(&theirs, &ours, &[]).unwrap_err();
    assert_eq!(planted, "byte 0x3200000: mke2fs 0x00, extant 0x07");
}

#[test]
fn every_expected_difference_has_a_reason_and_a_set() {
    for expected in sets::EXPECTED {
        assert!(expected.reason.len() > 40, "{}: say why", expected.name);
        assert!(
            SETS.iter().any(|set| set.expected.iter().any(|e| e.name == expected.name)),
            "{} is tried by no set",
            expected.name
        );
    }
}
