//! `extant inspect` compared with e2fsprogs: the same images give the same numbers. And its exit codes.

use std::path::{Path, PathBuf};
use std::process::Output;

use crate::common::schemas;
use extant_testkit::{Dumpe2fs, debugfs, dumpe2fs, run, scratch};
use serde_json::Value;

/// An image in its own directory, which is deleted on drop.
struct Image {
    path: PathBuf,
    _dir: tempfile::TempDir,
}

/// Creates a small tree, and an image of it with mke2fs.
fn make_image(options: &[&str], size: &str) -> Image {
    let dir = scratch();
    let (tree, path) = (dir.path().join("tree"), dir.path().join("fs.img"));
    std::fs::create_dir_all(tree.join("usr/bin")).unwrap();
    std::fs::create_dir_all(tree.join("many")).unwrap();
    std::os::unix::fs::symlink("usr/bin", tree.join("bin")).unwrap();
    std::fs::write(tree.join("usr/bin/tool"), b"#!").unwrap();
    for i in 0..600 {
        std::fs::write(tree.join(format!("many/a file with a long name, number {i}")), b"").unwrap();
    }
    let content: Vec<u8> = (0..700_000u32).map(|i| (i % 251) as u8 + 1).collect();
    std::fs::write(tree.join("big"), content).unwrap();
    let mut args = vec!["-q", "-F"];
    args.extend(options);
    let (tree, path_text) = (tree.to_str().unwrap().to_owned(), path.to_str().unwrap().to_owned());
    args.extend(["-d", &tree, &path_text, size]);
    run("mke2fs", args);
    Image { path, _dir: dir }
}

fn images() -> Vec<(&'static str, Image)> {
    vec![
        ("ext4", make_image(&["-t", "ext4"], "300M")),
        ("ext4 1k", make_image(&["-t", "ext4", "-b", "1024", "-L", "a label", "-E", "stride=4"], "64M")),
        ("ext2", make_image(&["-t", "ext2", "-b", "1024"], "40M")),
        ("bigalloc", make_image(&["-t", "ext4", "-O", "bigalloc", "-C", "16384"], "128M")),
        ("meta_bg", make_image(&["-t", "ext4", "-b", "1024", "-O", "meta_bg,^resize_inode,^flex_bg"], "80M")),
        ("gdt_csum", make_image(&["-t", "ext4", "-O", "^metadata_csum,uninit_bg,^64bit"], "300M")),
    ]
}

fn extant(image: &Path, what: &[&str]) -> Output {
    let mut command = extant_testkit::command(env!("CARGO_BIN_EXE_extant"));
    let output = command.arg("inspect").arg(image).args(what).output().unwrap();
    if what.contains(&"--json") {
        schemas::check(&format!("{command:?}"), &String::from_utf8_lossy(&output.stdout));
    }
    output
}

/// The JSON of a view of a sound image.
fn inspect(image: &Path, what: &[&str]) -> Value {
    let output = extant(image, &[what, &["--json"]].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{what:?}: {errors}{}",
        String::from_utf8_lossy(&output.stdout)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text(image: &Path, what: &[&str]) -> String {
    let output = extant(image, what);
    assert_eq!(output.status.code(), Some(0), "{what:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The number at a path of keys.
fn number(value: &Value, keys: &str) -> u64 {
    let found = keys.split('/').fold(value, |value, key| &value[key]);
    found.as_u64().unwrap_or_else(|| panic!("{keys} is no number in {value}"))
}

fn features(value: &Value) -> Vec<&str> {
    value["features"]["names"].as_array().unwrap().iter().filter_map(Value::as_str).collect()
}

#[test]
fn the_superblock_has_the_numbers_of_dumpe2fs() {
    for (name, image) in images() {
        let (ours, theirs) = (inspect(&image.path, &["super"]), dumpe2fs(&image.path));
        for (key, label) in [
            ("inodes", "Inode count"),
            ("free_inodes", "Free inodes"),
            ("blocks", "Block count"),
            ("free_blocks", "Free blocks"),
            ("reserved_blocks/blocks", "Reserved block count"),
            ("block_size", "Block size"),
            ("first_data_block", "First block"),
            ("blocks_per_group", "Blocks per group"),
            ("inodes_per_group", "Inodes per group"),
            ("inode_blocks_per_group", "Inode blocks per group"),
            ("inode_size", "Inode size"),
            ("first_inode", "First inode"),
        ] {
            assert_eq!(number(&ours, key), theirs.number(label), "{name}: {key}");
        }
        let sorted = |mut names: Vec<String>| {
            names.sort();
            names
        };
        let names = |list: Vec<&str>| sorted(list.into_iter().map(str::to_owned).collect());
        assert_eq!(names(features(&ours)), names(theirs.features()), "{name}: features");
        assert_eq!(ours["uuid"].as_str(), Some(theirs.field("Filesystem UUID")), "{name}");
        assert_eq!(ours["directory_hash_seed"].as_str(), Some(theirs.field("Directory Hash Seed")), "{name}");
        let label = theirs.field("Filesystem volume name").replace("<none>", "");
        assert_eq!(ours["label"].as_str(), Some(label.as_str()), "{name}");
        // dumpe2fs prints "Fri Nov 21 23:08:11 2026": comparing the time of day and the year suffices to find
        // a mistake.
        let created = theirs.field("Filesystem created").split_whitespace().collect::<Vec<_>>();
        let iso = ours["created"]["iso"].as_str().unwrap();
        assert!(iso.contains(created[3]) && iso.starts_with(created[4]), "{name}: {iso} and {created:?}");
        if ours["checksum"].is_object() {
            assert_eq!(ours["checksum"]["ok"], Value::Bool(true), "{name}");
        }
    }
}

#[test]
fn groups_have_the_numbers_of_dumpe2fs() {
    for (name, image) in images() {
        let (ours, theirs) = (inspect(&image.path, &["groups"]), dumpe2fs(&image.path));
        let groups = ours["groups"].as_array().unwrap();
        let ratio = cluster_ratio(&theirs);
        assert_eq!(groups.len(), theirs.groups.len(), "{name}");
        for (ours, theirs) in groups.iter().zip(&theirs.groups) {
            let story = format!("{name}: group {}", theirs.number);
            let first = number(ours, "first_block");
            assert_eq!((first, first + number(ours, "blocks") - 1), theirs.blocks, "{story}");
            assert_eq!(number(ours, "block_bitmap"), theirs.block_bitmap, "{story}");
            assert_eq!(number(ours, "inode_bitmap"), theirs.inode_bitmap, "{story}");
            assert_eq!(number(ours, "inode_table"), theirs.inode_table.0, "{story}");
            assert_eq!(number(ours, "free_clusters"), theirs.free_blocks, "{story}");
            assert_eq!(number(ours, "free_inodes"), theirs.free_inodes, "{story}");
            assert_eq!(number(ours, "directories"), theirs.directories, "{story}");
            assert_eq!(number(ours, "unused_inodes"), theirs.unused_inodes, "{story}");
            one_group(&image.path, ratio, theirs, &story);
        }
    }
}

/// Blocks per cluster.
fn cluster_ratio(dump: &Dumpe2fs) -> u64 {
    let has_clusters = dump.fields.contains_key("Cluster size");
    if has_clusters { dump.number("Cluster size") / dump.number("Block size") } else { 1 }
}

/// dumpe2fs ends a range of free clusters at the first block of the last cluster.
fn whole((first, last): (u64, u64), ratio: u64) -> (u64, u64) {
    (first, last + ratio - 1)
}

/// Compares `group N` with dumpe2fs: addresses at the group's head, free ranges of the bitmaps.
fn one_group(image: &Path, ratio: u64, theirs: &extant_testkit::GroupDump, story: &str) {
    let ours = inspect(image, &["group", &theirs.number.to_string()]);
    let span = |key: &str| {
        let value = &ours[key];
        value
            .is_object()
            .then(|| (number(value, "first"), number(value, "first") + number(value, "count") - 1))
    };
    assert_eq!(ours["superblock"].as_u64(), theirs.superblock, "{story}");
    assert_eq!(span("group_descriptors"), theirs.group_descriptors, "{story}");
    assert_eq!(span("reserved_gdt_blocks"), theirs.reserved_gdt, "{story}");
    let ranges = |key: &str| -> Vec<(u64, u64)> {
        let list = ours[key].as_array().unwrap();
        list.iter().map(|r| (number(r, "first"), number(r, "first") + number(r, "count") - 1)).collect()
    };
    let blocks: Vec<(u64, u64)> = theirs.free_block_ranges.iter().map(|range| whole(*range, ratio)).collect();
    assert_eq!(ranges("free_block_ranges"), blocks, "{story}");
    assert_eq!(ranges("free_inode_ranges"), theirs.free_inode_ranges, "{story}");
}

#[test]
fn free_space_is_that_of_the_bitmaps() {
    for (name, image) in images() {
        let (ours, theirs) = (inspect(&image.path, &["free"]), dumpe2fs(&image.path));
        let ratio = cluster_ratio(&theirs);
        for source in ["bitmaps", "descriptors", "superblock"] {
            let clusters = number(&ours, &format!("total/free_clusters/{source}"));
            assert_eq!(clusters * ratio, theirs.number("Free blocks"), "{name}: {source}");
            let inodes = number(&ours, &format!("total/free_inodes/{source}"));
            assert_eq!(inodes, theirs.number("Free inodes"), "{name}: {source}");
        }
        assert_eq!(
            number(&ours["largest_free_runs"][0], "len_blocks"),
            longest_run(&theirs, ratio),
            "{name}"
        );
        let classes = ours["histogram"].as_array().unwrap();
        let runs: u64 = classes.iter().map(|class| number(class, "runs")).sum();
        assert_eq!(runs, number(&ours, "free_runs"), "{name}");
    }
}

/// The longest free run; runs are joined across groups.
fn longest_run(dump: &Dumpe2fs, ratio: u64) -> u64 {
    let (mut longest, mut open) = (0, (0, 0));
    for &range in dump.groups.iter().flat_map(|group| &group.free_block_ranges) {
        let (first, last) = whole(range, ratio);
        open = if open.1 == first { (open.0, last + 1) } else { (first, last + 1) };
        longest = longest.max(open.1 - open.0);
    }
    longest
}

#[test]
fn inodes_have_the_fields_of_debugfs() {
    for (name, image) in images() {
        for path in ["/", "/big", "/bin", "/many", "/bin/tool"] {
            let ours = inspect(&image.path, &["inode", path]);
            let theirs = debugfs(&image.path, &format!("stat {path}"));
            let word = |label: &str| {
                let rest = theirs.split_once(label).unwrap_or_else(|| panic!("no {label} in {theirs}")).1;
                rest.split_whitespace().next().unwrap_or_default().to_owned()
            };
            let story = format!("{name}: {path}");
            assert_eq!(number(&ours, "inode").to_string(), word("Inode: "), "{story}");
            assert_eq!(number(&ours, "links").to_string(), word("Links: "), "{story}");
            assert_eq!(number(&ours, "blocks/raw").to_string(), word("Blockcount: "), "{story}");
            assert_eq!(number(&ours, "size").to_string(), word("Size: "), "{story}");
            let mode = word("Mode: ").trim_start_matches('0').to_owned();
            assert!(ours["mode"]["octal"].as_str().unwrap().ends_with(&mode), "{story}: {mode}");
            let place = debugfs(&image.path, &format!("imap {path}"));
            let (block, offset) = (number(&ours, "place/block"), number(&ours, "place/offset_in_block"));
            assert!(place.contains(&format!("block {block}, offset {offset:#06x}")), "{story}: {place}");
        }
        let tool = inspect(&image.path, &["inode", "/usr/bin/tool"]);
        assert_eq!(tool["inode"], inspect(&image.path, &["inode", "/bin/../bin/tool"])["inode"], "{name}");
        assert_eq!(inspect(&image.path, &["inode", "bin"])["target"], "usr/bin", "{name}");
    }
}

#[test]
fn extents_lead_to_the_blocks_that_debugfs_finds() {
    for (name, image) in images() {
        for path in ["/big", "/many"] {
            let ours = inspect(&image.path, &["extents", path]);
            let runs: Vec<(u64, u64, u64)> = ours["map"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|item| item["node"].is_null())
                .map(|run| (number(run, "logical"), number(run, "physical"), number(run, "len_blocks")))
                .collect();
            let total: u64 = runs.iter().map(|(_, _, len)| len).sum();
            assert_eq!(total, number(&ours, "total/blocks"), "{name}: {path}");
            for lblk in [0, 1, 11, 12, 13, total / 2, total - 1] {
                let run = runs.iter().find(|(first, _, len)| (*first..first + len).contains(&lblk));
                let pblk = run.map_or(0, |(first, pblk, _)| pblk + (lblk - first));
                let theirs = debugfs(&image.path, &format!("bmap {path} {lblk}"));
                assert_eq!(pblk.to_string(), theirs.trim(), "{name}: {path}: {lblk}");
            }
        }
    }
}

#[test]
fn directories_list_what_debugfs_lists() {
    for (name, image) in images() {
        for path in ["/", "/many", "/usr"] {
            let ours = inspect(&image.path, &["dir", path]);
            let mut entries: Vec<(u64, String)> = ours["content"]
                .as_array()
                .unwrap()
                .iter()
                .flat_map(|block| block["entries"].as_array().unwrap())
                .map(|entry| (number(entry, "inode"), entry["name"].as_str().unwrap().to_owned()))
                .collect();
            // /inode/mode/uid/gid/name/size/
            let listing = debugfs(&image.path, &format!("ls -p {path}"));
            let mut theirs: Vec<(u64, String)> = listing
                .lines()
                .map(|line| line.split('/').collect::<Vec<_>>())
                .filter(|parts| parts.len() > 5)
                .map(|parts| (parts[1].parse().unwrap(), parts[5].to_owned()))
                .collect();
            entries.sort();
            theirs.sort();
            assert_eq!(entries, theirs, "{name}: {path}");
        }
    }
}

#[test]
fn an_index_that_e2fsck_made_is_in_order() {
    for (name, image) in images() {
        let optimized = extant_testkit::command("e2fsck").arg("-fyD").arg(&image.path).output().unwrap();
        assert!(optimized.status.code().is_some_and(|code| code <= 1), "{name}: {optimized:?}");
        let ours = inspect(&image.path, &["htree", "/many"]);
        assert_eq!(ours["order"], Value::Bool(true), "{name}");
        assert_eq!(number(&ours, "names"), 600, "{name}");
        let theirs = debugfs(&image.path, "htree_dump /many");
        let leaves = theirs.matches("Reading directory block").count() as u64;
        assert_eq!(number(&ours, "leaves"), leaves, "{name}: {theirs}");
        // Entry #1: Hash 0x0baf042c, block 2
        for leaf in ours["index"].as_array().unwrap().iter().filter(|item| item["leaf"] == true).skip(1) {
            let entry =
                format!("Hash {:#010x}, block {}", number(leaf, "hash_first"), number(leaf, "logical"));
            assert!(theirs.contains(&entry), "{name}: {entry}: {theirs}");
        }
        // The hash of a single name.
        let dir = inspect(&image.path, &["dir", "/many"]);
        let entry = &dir["content"][1]["entries"][0];
        let seed = inspect(&image.path, &["super"])["directory_hash_seed"].as_str().unwrap().to_owned();
        let request = format!("dx_hash -h half_md4 -s {seed} \"{}\"", entry["name"].as_str().unwrap());
        let theirs = debugfs(&image.path, &request);
        let ours = [number(entry, "hash"), number(entry, "minor_hash")];
        // Hash of a file is 0x5c212 (minor 0x2757fed9)
        let hex = |text: &str| {
            let digits: String = text.chars().take_while(char::is_ascii_hexdigit).collect();
            u64::from_str_radix(&digits, 16).unwrap()
        };
        let theirs: Vec<u64> = theirs.split("0x").skip(1).map(hex).collect();
        assert_eq!(theirs, ours, "{name}");
    }
}

#[test]
fn attributes_are_shown_with_their_values() {
    let image = make_image(&["-t", "ext4", "-b", "4096"], "64M");
    let long = "v".repeat(400);
    for request in ["ea_set /big user.mime text/plain".to_owned(), format!("ea_set /big user.long {long}")] {
        run("debugfs", ["-w", "-R", &request, image.path.to_str().unwrap()]);
    }
    let ours = inspect(&image.path, &["xattr", "/big"]);
    let inside = ours["in_inode"].as_array().unwrap();
    let block = ours["xattr_block"]["in_block"].as_array().unwrap();
    let values: Vec<(&str, &str)> = inside
        .iter()
        .chain(block)
        .map(|attr| (attr["name"].as_str().unwrap(), attr["value"].as_str().unwrap()))
        .collect();
    assert_eq!(values, [("user.mime", "text/plain"), ("user.long", long.as_str())]);
    assert_eq!(number(&ours, "xattr_block/shared_by"), 1);
    assert!(text(&image.path, &["xattr", "/big"]).contains("user.mime (10 bytes) = \"text/plain\""));
}

#[test]
fn transactions_that_wait_are_listed() {
    let image = make_image(&["-t", "ext4", "-b", "1024"], "64M");
    let clean = inspect(&image.path, &["journal"]);
    assert_eq!(number(&clean, "start"), 0);
    let dumped = dumpe2fs(&image.path);
    assert_eq!(number(&clean, "blocks"), dumped.number("Total journal blocks"));

    let dir = scratch();
    let (blocks, requests) = (dir.path().join("blocks"), dir.path().join("requests"));
    // Three blocks, each of which must be escaped.
    std::fs::write(&blocks, [0xC0, 0x3B, 0x39, 0x98].repeat(768)).unwrap();
    let script = format!("jo -c -v 3\njw -b 30000,30002,30003 {}\njw -r 30000\njc\n", blocks.display());
    std::fs::write(&requests, script).unwrap();
    run("debugfs", ["-w".as_ref(), "-f".as_ref(), requests.as_os_str(), image.path.as_os_str()]);
    let waiting = inspect(&image.path, &["journal"]);
    assert_eq!(waiting["needs_recovery"], Value::Bool(true));
    let transactions = waiting["transactions"].as_array().unwrap();
    assert_eq!(transactions.len(), 2, "{waiting}");
    assert_eq!(transactions[0]["blocks"], serde_json::json!([30000, 30002, 30003]));
    assert_eq!(number(&transactions[0], "escaped"), 3);
    assert_eq!(transactions[1]["revokes"], serde_json::json!([30000]));
    let log = debugfs(&image.path, "logdump");
    for transaction in transactions {
        assert!(log.contains(&format!("sequence {}, ", number(transaction, "sequence"))), "{log}");
    }

    // The effect of a replay: the second transaction revokes one of the three copies.
    let replay = &waiting["replay"];
    assert_eq!((&replay["wanted"], &replay["possible"]), (&Value::Bool(true), &Value::Bool(true)));
    assert_eq!(replay["homes"], serde_json::json!([30002, 30003]));
    let numbers = ["blocks_to_replay", "revoked_copies", "superseded_copies", "next_transaction"];
    assert_eq!(numbers.map(|key| number(replay, key)), [2, 1, 0, 4]);
    assert_eq!(waiting["log_ends"]["reason"], "no journal block");
    let page = text(&image.path, &["journal"]);
    assert!(page.contains("3 copies (2 to replay)"), "{page}");
    assert!(
        page.lines().any(|line| line.starts_with("  homes ") && line.ends_with(" 30002..30003")),
        "{page}"
    );

    // A copy that does not match its checksum is omitted and reported; the others are replayed.
    let first = debugfs(&image.path, "bmap <8> 0").trim().parse::<u64>().unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&image.path).unwrap();
    let copy = number(&transactions[0], "start") + 2;
    std::os::unix::fs::FileExt::write_all_at(&file, b"damage", (first + copy) * 1024 + 100).unwrap();
    let output = extant(&image.path, &["journal", "--json"]);
    assert_eq!(output.status.code(), Some(4));
    let damaged: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(damaged["replay"]["homes"], serde_json::json!([30003]));
    let said = damaged["damage"][0].as_str().unwrap();
    assert!(said.contains("copy of block 30002 in transaction 1: checksum WRONG"), "{said}");

    // A damaged descriptor makes a replay impossible; the contents of the log are shown nevertheless.
    let descriptor = (first + copy - 2) * 1024;
    std::os::unix::fs::FileExt::write_all_at(&file, b"damage", descriptor + 900).unwrap();
    let output = extant(&image.path, &["journal", "--json"]);
    assert_eq!(output.status.code(), Some(4));
    let damaged: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(damaged["replay"]["possible"], Value::Bool(false));
    assert_eq!(damaged["transactions"][0]["blocks"], serde_json::json!([30000, 30002, 30003]));
}

/// On a journal device, log blocks are counted from the start of the device.
#[test]
fn transactions_on_a_journal_device_are_listed() {
    for block_size in [1024u64, 4096] {
        let dir = scratch();
        let image = dir.path().join("journal.img");
        let bytes = block_size.to_string();
        run("mke2fs", ["-q", "-F", "-O", "journal_dev", "-b", &bytes, image.to_str().unwrap(), "16M"]);
        assert_eq!(inspect(&image, &["journal"])["replay"], Value::Null);

        // A transaction of one revoke block, in the log's first block.
        let file = std::fs::OpenOptions::new().read(true).write(true).open(&image).unwrap();
        let at = |block: u64, byte: u64| block * block_size + byte;
        let superblock = if block_size == 1024 { 2 } else { 1 };
        let mut first = [0; 4];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut first, at(superblock, 0x14)).unwrap();
        let write = |place, words: &[u32]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            std::os::unix::fs::FileExt::write_all_at(&file, &bytes, place).unwrap();
        };
        let start = u32::from_be_bytes(first);
        write(at(superblock, 0x18), &[7, start]);
        write(at(start.into(), 0), &[0xC03B_3998, 5, 7, 20, 4711]);
        write(at(u64::from(start) + 1, 0), &[0xC03B_3998, 2, 7]);
        let waiting = inspect(&image, &["journal"]);
        let transactions = waiting["transactions"].as_array().unwrap();
        assert_eq!(transactions.len(), 1, "{waiting}");
        assert_eq!(transactions[0]["revokes"], serde_json::json!([4711]));
        assert_eq!(number(&waiting, "replay/next_transaction"), 9);
    }
}

#[test]
fn orphans_are_followed() {
    let image = make_image(&["-t", "ext4", "-b", "1024", "-O", "orphan_file"], "64M");
    let big = number(&inspect(&image.path, &["inode", "/big"]), "inode");
    let tool = number(&inspect(&image.path, &["inode", "/bin/tool"]), "inode");
    for request in [
        format!("ssv last_orphan {big}"),
        format!("sif <{big}> dtime {tool}"),
        format!("sif <{tool}> links_count 0"),
    ] {
        run("debugfs", ["-w", "-R", &request, image.path.to_str().unwrap()]);
    }
    let ours = inspect(&image.path, &["orphans"]);
    let chain: Vec<(u64, &str)> = ours["orphan_list"]
        .as_array()
        .unwrap()
        .iter()
        .map(|orphan| (number(orphan, "inode"), orphan["todo"].as_str().unwrap()))
        .collect();
    assert_eq!(chain, [(big, "truncate"), (tool, "delete")]);
    assert_eq!(number(&ours, "orphan_file/blocks"), 32);
}

#[test]
fn a_backup_superblock_serves_where_the_primary_is_gone() {
    for (name, options) in [
        ("1k", &["-t", "ext4", "-b", "1024"][..]),
        ("4k", &["-t", "ext4", "-b", "4096"][..]),
        ("bigalloc", &["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "16384"][..]),
    ] {
        let image = make_image(options, "300M");
        let before = inspect(&image.path, &["inode", "/bin/tool"]);
        let file = std::fs::OpenOptions::new().write(true).open(&image.path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[0; 1024], 1024).unwrap();
        let output = extant(&image.path, &["inode", "/bin/tool"]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{name}: {errors}");
        assert!(
            errors.starts_with("damaged: superblock: ") && errors.contains("the backup of group"),
            "{errors}"
        );
        let output = extant(&image.path, &["inode", "/bin/tool", "--json"]);
        let after: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(after["inode"], before["inode"], "{name}");
        assert_eq!(after["damage"].as_array().map(Vec::len), Some(1), "{name}: {after}");
    }
}

#[test]
fn damage_is_said_and_does_not_hide_the_rest() {
    let image = make_image(&["-t", "ext4", "-b", "1024"], "64M");
    let dir = inspect(&image.path, &["dir", "/"]);
    let block = number(&dir["content"][0], "physical");
    let file = std::fs::OpenOptions::new().write(true).open(&image.path).unwrap();
    // The name of the first entry after "." and "..": only the checksum detects the change.
    std::os::unix::fs::FileExt::write_all_at(&file, b"L", block * 1024 + 24 + 8).unwrap();
    let output = extant(&image.path, &["dir", "/"]);
    let (listing, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(4));
    assert!(listing.contains("checksum WRONG") && listing.contains("Lost+found") && listing.contains("big"));
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.starts_with("damaged: inode 2: directory block 0: "), "{errors}");
}

#[test]
fn an_offset_and_exit_codes() {
    let image = make_image(&["-t", "ext2", "-b", "1024"], "8M");
    let sound = std::fs::read(&image.path).unwrap();
    let shifted = image.path.with_extension("shifted");
    std::fs::write(&shifted, [vec![0; 65536], sound].concat()).unwrap();
    for offset in ["65536", "64K", "0x10000"] {
        let at = PathBuf::from(format!("{}@{offset}", shifted.display()));
        assert_eq!(number(&inspect(&at, &["inode", "2"]), "inode"), 2);
    }
    let missing = image.path.with_extension("missing");
    for (path, what, code) in [
        (&image.path, &["inode", "/nothing"][..], 9),
        (&image.path, &["inode", "0"], 9),
        (&image.path, &["group", "1000"], 9),
        (&image.path, &["dir", "/big"], 9),
        (&image.path, &["htree", "/big"], 9),
        (&image.path, &["journal"], 9),
        (&image.path, &["nonsense"], 2),
        (&shifted, &["super"], 8),
        (&missing, &["super"], 8),
    ] {
        let output = extant(path, what);
        assert_eq!(output.status.code(), Some(code), "{what:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stdout.is_empty(), "{what:?}");
    }
}
