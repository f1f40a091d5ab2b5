//! Compares the journal superblock and sizes of this crate with file systems made by mke2fs.

use std::{fs, path::Path, process::Command};

use extant_base::BlockSize;
use extant_jbd2_format::{Superblock, default_fast_commit_blocks, default_journal_blocks};

const UUID: &str = "12345678-1234-5678-9abc-def012345678";
const UUID_BYTES: [u8; 16] =
    [0x12, 0x34, 0x56, 0x78, 0x12, 0x34, 0x56, 0x78, 0x9A, 0xBC, 0xDE, 0xF0, 0x12, 0x34, 0x56, 0x78];

fn run(command: &mut Command) -> String {
    let output = command.output().expect("e2fsprogs is installed");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The first block of the journal of a new file system of `blocks` blocks.
fn journal_of_mke2fs(image: &Path, block_size: BlockSize, blocks: u64, options: &[&str]) -> Vec<u8> {
    use std::os::unix::fs::FileExt;

    let file = fs::File::create(image).unwrap();
    file.set_len(blocks * block_size.bytes()).unwrap();
    run(Command::new("/usr/sbin/mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=1,lazy_journal_init=1", "-U", UUID, "-b"])
        .arg(block_size.to_string())
        .args(options)
        .arg(image));
    let places = run(Command::new("/usr/sbin/debugfs").args(["-R", "blocks <8>"]).arg(image));
    let first: u64 = places.split_whitespace().next().unwrap().parse().unwrap();
    let mut block = vec![0; block_size.len()];
    fs::File::open(image).unwrap().read_exact_at(&mut block, first * block_size.bytes()).unwrap();
    block
}

#[test]
fn a_fresh_superblock_and_its_size_are_mke2fss() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for (block_size, blocks) in [
        (1024, 8192),
        (1024, 65_536),
        (2048, 40_000),
        (4096, 16_384),
        (4096, 300_000),
        (4096, 600_000),
        (4096, 5 << 20),
    ] {
        let block_size = BlockSize::from_bytes(block_size).unwrap();
        let journal = default_journal_blocks(blocks).unwrap();
        let mut expected = vec![0; block_size.len()];

        let plain = Superblock::fresh(block_size, journal, UUID_BYTES);
        expected[..1024].copy_from_slice(&plain.encode());
        assert!(journal_of_mke2fs(&image, block_size, blocks, &[]) == expected, "{block_size} x {blocks}");

        let fast = plain.with_fast_commit_area(default_fast_commit_blocks(blocks).unwrap());
        expected[..1024].copy_from_slice(&fast.encode());
        assert!(
            journal_of_mke2fs(&image, block_size, blocks, &["-O", "fast_commit"]) == expected,
            "{block_size} x {blocks}, fast_commit"
        );
    }
}

#[test]
fn the_fast_commit_area_does_not_follow_a_journal_size_that_was_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let block = journal_of_mke2fs(
        &dir.path().join("image"),
        BlockSize::KIB4,
        131_072,
        &["-O", "fast_commit", "-J", "size=8"],
    );
    let sb = Superblock::decode(&block).unwrap();
    let expected = Superblock::fresh(BlockSize::KIB4, 2048, UUID_BYTES)
        .with_fast_commit_area(default_fast_commit_blocks(131_072).unwrap());
    assert_eq!(sb, expected);
    assert_eq!(sb.check(), Ok(()));
}
