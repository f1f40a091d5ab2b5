//! Dumps in both forms, the way back, and qcow2 images in the place of raw ones.

use std::fs;
use std::os::unix::fs::FileExt;

use extant_testkit::trees::many;
use extant_testkit::{command, e2fsck_clean, scratch};
use serde_json::Value;

use crate::common::{EXISTS, Outcome, SOURCE, assert_has, extant, outcome};

/// A directory with a tree and its image.
struct Bench(tempfile::TempDir);

impl Bench {
    fn new() -> Self {
        let bench = Self(scratch());
        fs::create_dir(bench.0.path().join("tree")).unwrap();
        many(&bench.0.path().join("tree"), 600, 7);
        bench.ok("build -q --no-sync --size 48M --from tree -o image");
        bench
    }

    fn run(&self, line: &str) -> Outcome {
        outcome(extant().current_dir(&self.0).args(line.split(' ')))
    }

    /// Runs a command that succeeds. Returns its output.
    #[track_caller]
    fn ok(&self, line: &str) -> String {
        let outcome = self.run(line);
        outcome.code(0);
        outcome.stdout
    }

    /// The bytes of a file.
    fn bytes(&self, name: &str) -> Vec<u8> {
        fs::read(self.0.path().join(name)).unwrap()
    }

    fn e2image(&self, line: &str) {
        let done = command("e2image").current_dir(&self.0).args(line.split(' ')).output().unwrap();
        assert!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&done.stderr));
    }
}

/// Both forms of a dump have the same bytes, for extant and for e2image, and extant reads e2image's, too.
#[test]
fn a_dump_is_the_same_raw_and_as_qcow2() {
    let bench = Bench::new();
    bench.ok("dump image -o raw");
    let report: Value = serde_json::from_str(&bench.ok("dump -Q image -o dump.qcow2 --json")).unwrap();
    assert_eq!(report["format"], "qcow2");
    let packed = bench.bytes("dump.qcow2").len() as u64;
    assert!(packed < report["bytes"].as_u64().unwrap() * 2, "{packed} bytes");

    bench.ok("restore dump.qcow2 again");
    let raw = bench.bytes("raw");
    assert!(bench.bytes("again") == raw);
    e2fsck_clean(&bench.0.path().join("again"));
    bench.e2image("-r dump.qcow2 e2");
    // The file of e2image ends after the last block of metadata.
    let e2 = bench.bytes("e2");
    assert!(e2.len() <= raw.len() && e2 == raw[..e2.len()] && raw[e2.len()..].iter().all(|byte| *byte == 0));

    bench.e2image("-Q image e2.qcow2");
    for image in ["dump.qcow2", "e2.qcow2"] {
        bench.ok(&format!("check {image}"));
        let listed = bench.ok(&format!("ls -lR {image}:/")).replace(image, "image");
        assert!(listed == bench.ok("ls -lR image:/"), "{image}: {listed}");
        let refused = bench.run(&format!("mkdir {image}:/new"));
        assert_has(&refused.stderr, "qemu-img convert -O raw");
        assert_eq!(refused.code, 1, "{}", refused.stderr);
    }
}

/// An image that needs other files is refused, and no other file is opened. So is one that is damaged.
#[test]
fn a_qcow2_image_that_cannot_be_read_is_named() {
    let bench = Bench::new();
    bench.ok("dump -Q image -o dump.qcow2");
    let path = bench.0.path().join("dump.qcow2");
    let file = fs::File::options().write(true).open(&path).unwrap();
    // Offset and length of the name of the backing file, behind the header.
    file.write_all_at(&2048u64.to_be_bytes(), 8).unwrap();
    file.write_all_at(&5u32.to_be_bytes(), 16).unwrap();
    file.write_all_at(b"image", 2048).unwrap();
    let refused = bench.run("ls dump.qcow2:/");
    assert_eq!(refused.code, 8, "{}", refused.stderr);
    assert_has(&refused.stderr, "backing file");
    // Only the first bytes are those of an image.
    fs::write(&path, [b"QFI\xfb\0\0\0\x03".as_slice(), &[0; 65536]].concat()).unwrap();
    let refused = bench.run("ls dump.qcow2:/");
    assert_eq!(refused.code, 8, "{}", refused.stderr);
    assert_has(&refused.stderr, "this is a qcow2 disk image");
}

/// Lost metadata comes back, contents stay, and the restore can be undone.
#[test]
fn metadata_is_restored_from_a_dump() {
    let bench = Bench::new();
    let whole = bench.bytes("image");
    bench.ok("dump -Q image -o dump");
    bench.ok("dump --scramble image -o scrambled");
    // Superblock, descriptors, bitmaps and the first inodes.
    let file = fs::File::options().write(true).open(bench.0.path().join("image")).unwrap();
    file.write_all_at(&[0x55; 64 << 10], 0).unwrap();
    let damaged = bench.bytes("image");

    assert_has(bench.run("restore scrambled image").code(SOURCE), "scrambled");
    let plan: Value = serde_json::from_str(&bench.ok("restore -n --json dump image")).unwrap();
    assert_eq!(plan["written"], false);
    assert!(bench.bytes("image") == damaged);
    let said = bench.ok("restore dump image");
    assert_has(&said, "extant undo image image.undo");
    assert!(bench.bytes("image") == whole);
    assert_has(&bench.ok("restore dump image"), "nothing differs");
    assert_has(bench.run("restore --undo image.undo dump image").code(EXISTS), "another name");
    bench.ok("undo image image.undo");
    assert!(bench.bytes("image") == damaged);

    // By a backup superblock of the dump.
    bench.ok("mkfs -q -b 1024 --size 64M small-blocks");
    bench.ok("dump -Q small-blocks -o by-backup");
    bench.ok("restore -n -b 8193 by-backup small-blocks");
    let refused = bench.run("restore -n -b 5 dump image");
    assert_has(refused.code(8), "block 5 has no superblock; without --backup");

    bench.ok("mkfs -q --size 64M other");
    assert_has(bench.run("restore dump other").code(1), "--force");
    bench.ok("mkfs -q --size 16M small");
    assert_has(bench.run("restore dump small").code(1), "only 16777216");
}

/// The label of a scrambled dump shows what it is, also if the root has no names that could.
#[test]
fn a_scrambled_dump_without_names_is_not_restored() {
    let bench = Bench::new();
    bench.ok("mkfs -q --size 16M -L secret empty");
    bench.ok("dump --scramble empty -o scrambled");
    assert_has(bench.run("restore scrambled empty").code(SOURCE), "scrambled");
    e2fsck_clean(&bench.0.path().join("scrambled"));
    assert!(!bench.bytes("scrambled").windows(6).any(|bytes| bytes == b"secret"));
    bench.ok("dump empty -o plain");
    bench.ok("restore plain empty");
}

/// With multiple-mount protection, a restore is exact, and refused while e2fsck has the file system.
#[test]
fn a_restore_respects_multiple_mount_protection() {
    let bench = Bench::new();
    bench.ok("mkfs -q --size 16M -O mmp image2");
    bench.ok("dump image2 -o dump");
    bench.ok("mkdir image2:/new");
    let changed = bench.bytes("image2");
    let sb = extant_ondisk::Superblock::decode(&changed[1024..2048]).unwrap();
    let at = (sb.mmp_block << (10 + sb.log_block_size)) as usize;
    let mut mmp = extant_ondisk::mmp::Mmp::decode(&changed[at..]).unwrap();
    mmp.sequence = extant_ondisk::mmp::Mmp::SEQ_FSCK;
    mmp.check_interval = 1;
    mmp.seal(sb.fs_seed());
    let file = fs::File::options().write(true).open(bench.0.path().join("image2")).unwrap();
    file.write_all_at(&mmp.encode(), at as u64).unwrap();
    bench.run("restore dump image2").code(10);
    assert!(!bench.0.path().join("image2.undo").exists());
    file.write_all_at(&changed[at..at + 1024], at as u64).unwrap();
    bench.ok("restore dump image2");
    e2fsck_clean(&bench.0.path().join("image2"));
    bench.ok("undo image2 image2.undo");
    assert!(bench.bytes("image2") == changed);
}
