//! Reads every kind of log block as written by debugfs, writes it again with this crate, and compares the
//! two.
//!
//! Descriptors are compared by their tags, not their bytes: debugfs leaves garbage in unused bytes, and does
//! not mark the last tag of a full descriptor.

use std::{fs, os::unix::fs::FileExt, process::Command};

use extant_base::{BlockSize, Pblk};
use extant_jbd2_format::{
    BlockType, Checksums, CommitBlock, CommitVerdict, DescriptorWriter, Header, LogFormat, LogTid, MAGIC,
    RevokeWriter, Superblock, Tag, escape, needs_escape, revokes, tags,
};

/// Data blocks of the first transaction: more than one descriptor holds, in any layout with 1 KiB blocks.
const BLOCKS: usize = 300;

fn run(command: &mut Command) -> String {
    let output = command.output().expect("e2fsprogs is installed");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The journal of a new file system, after debugfs logged `data` at blocks 40000.., revoked two blocks, and
/// logged one more block.
fn journal_of_debugfs(open: &str, data: &[u8]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let (image, source, script) =
        (dir.path().join("image"), dir.path().join("data"), dir.path().join("script"));
    fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    fs::write(&source, data).unwrap();
    let list: Vec<String> = (0..BLOCKS).map(|i| (40_000 + i).to_string()).collect();
    let commands = format!(
        "jo {open}\njw -b {} {source}\njw -r 40001,333\njw -b 50000 -r 77 {source}\njc\n",
        list.join(","),
        source = source.display()
    );
    fs::write(&script, commands).unwrap();
    run(Command::new("/usr/sbin/mke2fs").args(["-q", "-F", "-t", "ext4", "-b", "1024"]).arg(&image));
    run(Command::new("/usr/sbin/debugfs").arg("-w").arg("-f").arg(&script).arg(&image));
    let places = run(Command::new("/usr/sbin/debugfs").args(["-R", "blocks <8>"]).arg(&image));
    let mut places = places.split_whitespace().map(|word| word.parse::<u64>().unwrap());
    let first = places.next().unwrap();
    assert!(places.by_ref().take(BLOCKS + 40).enumerate().all(|(i, block)| block == first + 1 + i as u64));
    let mut journal = vec![0; (BLOCKS + 40) * 1024];
    fs::File::open(&image).unwrap().read_exact_at(&mut journal, first * 1024).unwrap();
    journal
}

fn rewrite_and_compare(open: &str, checksums: Checksums) {
    let mut data: Vec<u8> = (0..BLOCKS * 1024).map(|i| (i / 1024 + i) as u8).collect();
    data[..4].copy_from_slice(&MAGIC.to_be_bytes());
    let journal = journal_of_debugfs(open, &data);
    let block_size = BlockSize::MIN;

    let sb = Superblock::decode(&journal).unwrap();
    assert!(sb.verify());
    assert!(sb.features.unsupported().is_empty());
    assert_eq!((sb.start, sb.sequence), (1, LogTid(1)));
    let format = LogFormat::of(&sb).unwrap();
    assert_eq!((format.checksums, format.wide), (checksums, true));

    let mut log = journal[1024..].chunks(1024);
    let (mut tid, mut commits, mut logged, mut revoked, mut descriptors) =
        (sb.sequence, 0, 0, Vec::new(), Vec::new());
    while let Ok(header) = Header::decode(log.as_slice_head()) {
        let block = log.next().unwrap();
        assert_eq!(header.tid, tid);
        match header.kind {
            BlockType::Descriptor => {
                assert!(format.verify_tail(block));
                let mut again = DescriptorWriter::new(format, tid, [0; 16]);
                for tag in tags(format, block) {
                    let image = log.next().unwrap();
                    assert!(format.verify_tag(tid, &tag, image));
                    let at = logged % BLOCKS * 1024;
                    let mut expected = data[at..at + 1024].to_vec();
                    assert_eq!(needs_escape(&expected), tag.escaped);
                    if tag.escaped {
                        escape(&mut expected);
                    }
                    assert_eq!(image, expected);
                    again.push(tag.block, tag.escaped, format.tag_checksum(tid, &expected)).unwrap();
                    logged += 1;
                }
                let again = again.finish();
                assert!(format.verify_tail(&again));
                let fields = |tag: Tag| (tag.block, tag.escaped, tag.checksum, tag.uuid);
                assert!(tags(format, &again).map(fields).eq(tags(format, block).map(fields)));
                descriptors.push(tags(format, block).count());
            }
            BlockType::Revoke => {
                assert!(format.verify_tail(block));
                let mut again = RevokeWriter::new(format, tid);
                for block in revokes(format, block).unwrap() {
                    again.push(block).unwrap();
                    revoked.push((block, tid));
                }
                assert_eq!(again.finish(), block);
            }
            BlockType::Commit => {
                let expected = if format.has_block_checksums() {
                    CommitVerdict::Match
                } else {
                    CommitVerdict::Unchecked
                };
                assert_eq!(CommitBlock::verify(format, block), expected);
                let commit = CommitBlock::decode(block).unwrap();
                assert_eq!(CommitBlock::new(tid, commit.seconds, commit.nanoseconds).encode(format), block);
                tid = tid.next();
                commits += 1;
            }
            other => panic!("{other:?} in the log"),
        }
    }
    assert_eq!((commits, logged), (3, BLOCKS + 1));
    assert_eq!(revoked, [(Pblk(40_001), LogTid(2)), (Pblk(333), LogTid(2)), (Pblk(77), LogTid(3))]);
    assert_eq!(descriptors[0], format.tags_per_descriptor(), "debugfs ends a descriptor where we do");
    assert_eq!(block_size.bytes(), u64::from(sb.block_size));
}

/// Returns the next chunk without consuming it.
trait Head<'a> {
    fn as_slice_head(&self) -> &'a [u8];
}

impl<'a> Head<'a> for std::slice::Chunks<'a, u8> {
    fn as_slice_head(&self) -> &'a [u8] {
        self.clone().next().unwrap_or(&[])
    }
}

#[test]
fn a_log_without_checksums_is_understood_and_rewritten() {
    rewrite_and_compare("", Checksums::None);
}

#[test]
fn a_log_with_version_2_checksums_is_understood_and_rewritten() {
    rewrite_and_compare("-c -v 2", Checksums::V2);
}

#[test]
fn a_log_with_version_3_checksums_is_understood_and_rewritten() {
    rewrite_and_compare("-c -v 3", Checksums::V3);
}
