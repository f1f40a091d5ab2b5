//! e2fsck replays fast commits written by this crate.

use std::{fs, os::unix::fs::FileExt, process::Command};

use extant_base::{BlockSize, Ino};
use extant_jbd2_format::{
    Features, LogTid, Superblock,
    fast_commit::{NameChange, Record, Writer},
};

const BLOCK: u64 = 1024;

fn run(command: &mut Command) -> String {
    let output = command.output().expect("e2fsprogs is installed");
    assert!(
        output.status.code().is_some_and(|code| code <= 1), // 1: e2fsck changed something
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn names_of_a_fast_commit_appear_and_those_of_a_torn_one_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let (image, source) = (dir.path().join("image"), dir.path().join("source"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("old"), "content").unwrap();
    let file = fs::File::options().read(true).write(true).create_new(true).open(&image).unwrap();
    file.set_len(64 << 20).unwrap();
    run(Command::new("/usr/sbin/mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-b", "1024", "-O", "fast_commit", "-d"])
        .arg(&source)
        .arg(&image));
    let debugfs =
        |request: &str| run(Command::new("/usr/sbin/debugfs").args(["-w", "-R", request]).arg(&image));
    let places: Vec<u64> =
        debugfs("blocks <8>").split_whitespace().map(|word| word.parse().unwrap()).collect();

    // An empty log that begins and ends at the same block: only the fast commits of its first transaction are
    // replayed.
    let mut block = vec![0; BLOCK as usize];
    file.read_exact_at(&mut block, places[0] * BLOCK).unwrap();
    let mut sb = Superblock::decode(&block).unwrap();
    sb.features.incompat |= Features::FAST_COMMIT;
    sb.start = sb.first;
    let area = sb.fast_commit_range().unwrap();
    file.write_all_at(&sb.encode(), places[0] * BLOCK).unwrap();
    debugfs("feature needs_recovery");

    // "old" is inode 12, the first after lost+found. Two fast commits, the second longer than a block, and a
    // torn third one. The long names are added and removed, because the directory has one block.
    use NameChange::{Link, Unlink};
    let long = |first: u8| std::iter::once(first).chain([b'l'; 249]).collect::<Vec<u8>>();
    let (a, b, c) = (long(b'a'), long(b'b'), long(b'c'));
    let commits: [&[(NameChange, &[u8])]; 3] = [
        &[(Link, b"new"), (Link, b"newer")],
        &[(Link, &a), (Unlink, &a), (Link, &b), (Unlink, &b), (Link, &c)],
        &[(Link, b"torn")],
    ];
    let mut bytes = Vec::new();
    for (count, records) in commits.into_iter().enumerate() {
        let mut writer = Writer::new(BlockSize::MIN);
        if count == 0 {
            writer.push(&Record::Head { features: 0, tid: LogTid(1) }).unwrap();
        }
        for &(change, name) in records {
            writer.push(&Record::Name { change, parent: Ino(2), ino: Ino(12), name }).unwrap();
        }
        bytes.extend(writer.finish(LogTid(1)));
    }
    assert_eq!(bytes.len(), 4 * 1024);
    let torn = bytes.len() - 1024 + 20;
    bytes[torn] ^= 0xFF;
    for (chunk, at) in bytes.chunks(1024).zip(area) {
        file.write_all_at(chunk, places[at as usize] * BLOCK).unwrap();
    }

    run(Command::new("/usr/sbin/e2fsck").args(["-y", "-E", "journal_only"]).arg(&image));
    let list = debugfs("ls -p /");
    let names: Vec<&[u8]> = list
        .lines()
        .filter(|line| line.starts_with("/12/"))
        .map(|line| line.split('/').nth(5).unwrap().as_bytes())
        .collect();
    assert_eq!(names, [b"old".as_slice(), b"new", b"newer", &c], "{list}");
}
