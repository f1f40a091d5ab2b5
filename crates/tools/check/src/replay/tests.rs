//! Logs written by debugfs; the result of the replay is compared with e2fsck's.

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;

use extant_device::FileDevice;
use extant_ondisk::superblock;

use super::*;

const BS: usize = 1024;

struct Lab {
    dir: tempfile::TempDir,
}

impl Lab {
    fn new(options: &[&str]) -> Self {
        let dir = extant_testkit::scratch();
        let image = dir.path().join("image");
        let fixed = ["-q", "-F", "-t", "ext4", "-b", "1024"];
        extant_testkit::run("mke2fs", fixed.iter().chain(options).chain(&[image.to_str().unwrap(), "32M"]));
        Self { dir }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    /// A file of blocks, each filled with one byte; a block of "M" begins with the journal's magic.
    fn blocks(&self, name: &str, fill: &[u8]) -> String {
        let mut bytes = Vec::new();
        for byte in fill {
            let mut block = vec![*byte; BS];
            if *byte == b'M' {
                block[..4].copy_from_slice(&extant_jbd2_format::MAGIC.to_be_bytes());
            }
            bytes.extend(block);
        }
        let path = self.path(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn debugfs(&self, commands: &[String]) {
        let mut debugfs = extant_testkit::command("debugfs")
            .args(["-w", "-f", "-"])
            .arg(self.path("image"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        debugfs.stdin.take().unwrap().write_all(commands.join("\n").as_bytes()).unwrap();
        assert!(debugfs.wait().unwrap().success());
    }

    fn scan(&self, image: &Path) -> (Option<Replay<'static>>, FileDevice, Vec<&'static str>) {
        let device = FileDevice::open(image, false).unwrap();
        let mut bytes = [0; superblock::SIZE];
        device.read_at(superblock::OFFSET, &mut bytes).unwrap();
        let sb = Superblock::decode(&bytes).unwrap();
        let geometry = Geometry::new(&sb).unwrap();
        let findings = Findings::default();
        let replay = scan(&device, None, &sb, &geometry, &findings);
        (replay, device, findings.into_sorted().0.iter().map(|finding| finding.rule.code).collect())
    }

    /// The image as e2fsck's replay leaves it.
    fn replayed(&self) -> Vec<u8> {
        let copy = self.path("replayed");
        std::fs::copy(self.path("image"), &copy).unwrap();
        let args = ["-y", "-E", "journal_only", copy.to_str().unwrap()];
        let _ = extant_testkit::command("e2fsck").args(args).output().unwrap();
        std::fs::read(copy).unwrap()
    }
}

/// Every block but the superblock and the journal's first, which a real replay changes.
#[track_caller]
fn assert_same(lab: &Lab, replay: &Replay, device: &FileDevice) {
    let expected = lab.replayed();
    let mut found = vec![0; expected.len()];
    replay.read(device, 0, &mut found).unwrap();
    for (i, (ours, theirs)) in found.chunks(BS).zip(expected.chunks(BS)).enumerate() {
        let journal_superblock =
            ours.starts_with(&extant_jbd2_format::MAGIC.to_be_bytes()) && ours[4..8] == [0, 0, 0, 4];
        assert!(i == 1 || journal_superblock || ours == theirs, "block {i}");
    }
}

#[test]
fn logs_of_every_checksum_version_replay_as_e2fsck_does() {
    for (options, open) in [
        ("^metadata_csum,64bit", "jo"),
        ("^metadata_csum,^64bit", "jo"),
        ("metadata_csum", "jo -c -v 2"),
        ("metadata_csum", "jo -c -v 3"),
        ("metadata_csum,^64bit", "jo -c -v 2"),
        ("metadata_csum,^64bit", "jo -c -v 3"),
    ] {
        let lab = Lab::new(&["-O", options]);
        let (first, second) = (lab.blocks("first", b"ABCDM"), lab.blocks("second", b"EM"));
        lab.debugfs(&[
            open.to_owned(),
            format!("jw -b 25001,25002,25003,25004,25005 {first}"),
            format!("jw -b 25002,25009 {second}"),
            "jw -r 25003".to_owned(),
            "jc".to_owned(),
        ]);
        let (replay, device, codes) = lab.scan(&lab.path("image"));
        assert_eq!(codes, ["JO020"], "{options} {open}");
        let replay = replay.unwrap();
        let mut block = [0; BS];
        replay.read(&device, 25_005 * BS as u64, &mut block).unwrap();
        assert_eq!(block[..5], [0xC0, 0x3B, 0x39, 0x98, b'M'], "un-escaped");
        replay.read(&device, 25_003 * BS as u64, &mut block).unwrap();
        assert_eq!(block, [0; BS], "revoked");
        let mut across = [0; 10];
        replay.read(&device, 25_002 * BS as u64 - 5, &mut across).unwrap();
        assert_eq!(&across, b"AAAAAEEEEE");
        assert_same(&lab, &replay, &device);
    }
}

#[test]
fn a_damaged_copy_is_left_out_and_a_damaged_commit_ends_the_log() {
    let lab = Lab::new(&["-O", "metadata_csum"]);
    let (first, second) = (lab.blocks("first", b"ABC"), lab.blocks("second", b"D"));
    lab.debugfs(&[
        "jo -c -v 3".to_owned(),
        format!("jw -b 25001,25002,25003 {first}"),
        format!("jw -b 25001 {second}"),
        "jc".to_owned(),
    ]);
    let bytes = std::fs::read(lab.path("image")).unwrap();
    let find = |kind: u8, nth: usize| {
        let header = [0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, kind];
        bytes.chunks(BS).enumerate().filter(|(_, block)| block.starts_with(&header)).nth(nth).unwrap().0 * BS
    };
    // Block 2 of the first transaction; the commit of the second.
    for (at, code, byte_of_25001, byte_of_25002) in
        [(find(1, 0) + 2 * BS + 7, "JO022", b'D', 0), (find(2, 1) + 0x3F, "JO022", b'A', b'B')]
    {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        let path = lab.path("damaged");
        std::fs::write(&path, damaged).unwrap();
        let (replay, device, codes) = lab.scan(&path);
        assert_eq!(codes, ["JO020", code]);
        let mut block = [0; BS];
        for (home, byte) in [(25_001, byte_of_25001), (25_002, byte_of_25002)] {
            replay.as_ref().unwrap().read(&device, home * BS as u64, &mut block).unwrap();
            assert_eq!(block[100], byte, "{home}");
        }
    }
}

#[test]
fn the_backup_of_the_map_finds_a_journal_whose_inode_is_lost() {
    let lab = Lab::new(&["-O", "metadata_csum"]);
    let file = lab.blocks("first", b"A");
    lab.debugfs(&[
        "jo -c -v 3".to_owned(),
        format!("jw -b 25001 {file}"),
        "jc".to_owned(),
        "clri <8>".to_owned(),
    ]);
    let (replay, device, codes) = lab.scan(&lab.path("image"));
    assert_eq!(codes, ["JO020"]);
    let mut byte = [0];
    replay.unwrap().read(&device, 25_001 * BS as u64 + 500, &mut byte).unwrap();
    assert_eq!(byte, *b"A");
}

#[test]
fn a_clean_file_system_has_nothing_to_replay() {
    for options in ["metadata_csum", "^has_journal"] {
        let lab = Lab::new(&["-O", options]);
        let (replay, _, codes) = lab.scan(&lab.path("image"));
        assert!(replay.is_none() && codes.is_empty());
    }
}

#[test]
fn any_bytes_in_the_log_end_the_scan() {
    let lab = Lab::new(&["-O", "^metadata_csum"]);
    let file = lab.blocks("first", b"ABCDEFGH");
    let jw = format!("jw -b 25001,25002,25003,25004,25005,25006,25007,25008 {file}");
    lab.debugfs(&["jo".to_owned(), jw.clone(), jw, "jc".to_owned()]);
    let bytes = std::fs::read(lab.path("image")).unwrap();
    let descriptor =
        bytes.chunks(BS).position(|block| block.starts_with(&[0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 1])).unwrap();
    let path = lab.path("damaged");
    std::fs::write(&path, &bytes).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    // The journal superblock stands before the first descriptor.
    let journal = (descriptor - 1) * BS..(descriptor + 19) * BS;
    let mut state = 1u32;
    for _ in 0..500 {
        for _ in 0..4 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let at = journal.start + (state >> 8) as usize % journal.len();
            file.write_all_at(&[state as u8], at as u64).unwrap();
        }
        let (replay, device, _) = lab.scan(&path);
        if let Some(replay) = replay {
            let mut homes = vec![0; 32 * BS];
            replay.read(&device, 25_000 * BS as u64, &mut homes).unwrap();
        }
        file.write_all_at(&bytes[journal.clone()], journal.start as u64).unwrap();
    }
}

#[test]
fn a_log_on_another_device_replays_if_it_is_the_file_systems_own() {
    const UUID: &str = "01234567-89ab-cdef-0123-456789abcdef";
    let lab = Lab::new(&["-O", "^has_journal,^orphan_file"]);
    let logs = ["log", "other"].map(|name| lab.path(name).to_str().unwrap().to_owned());
    for (log, uuid) in logs.iter().zip([UUID, "fedcba98-89ab-cdef-0123-456789abcdef"]) {
        extant_testkit::run("mke2fs", ["-q", "-F", "-b", "1024", "-O", "journal_dev", "-U", uuid, log, "4M"]);
    }
    let file = lab.blocks("first", b"AM");
    lab.debugfs(&[
        "feature has_journal".to_owned(),
        format!("ssv journal_uuid {UUID}"),
        "ssv journal_inum 0".to_owned(),
        format!("jo -c -v 3 -f {}", logs[0]),
        format!("jw -b 25001,25002 {file}"),
        "jc".to_owned(),
    ]);
    let image = FileDevice::open(&lab.path("image"), false).unwrap();
    let [log, other] = logs.map(|log| FileDevice::open(log.as_ref(), false).unwrap());
    let cases: [(Option<&dyn Device>, &str, u8); 4] = [
        (Some(&log), "JO020", b'A'),
        (Some(&other), "JO025", 0),
        (Some(&image), "JO025", 0),
        (None, "JO004", 0),
    ];
    for (journal, code, byte) in cases {
        let findings = Findings::default();
        let opened = crate::supers::open(&image, journal, &findings).unwrap().unwrap();
        let mut across = [0; 2];
        opened.read_bytes(25_002 * BS as u64 - 1, &mut across).unwrap();
        assert_eq!(across, [byte, if byte == 0 { 0 } else { 0xC0 }], "{code}");
        assert_eq!(findings.into_sorted().1.into_keys().collect::<Vec<_>>(), [code]);
    }
}
