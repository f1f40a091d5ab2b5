//! Indexed directories: for every rule an image that breaks it, judged by e2fsck and by the check.

mod lab;

use lab::{BS, Cases, Image, Judges};

fn indexed(options: &[&str]) -> Image {
    Image::from_tree(options, |tree| {
        std::fs::create_dir(tree.join("h")).unwrap();
        for i in 0..3000 {
            std::fs::write(tree.join(format!("h/file_number_{i:06}")), "").unwrap();
        }
    })
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

#[test]
fn index_blocks() {
    let image = indexed(&["-O", "^metadata_csum,^has_journal,^orphan_file"]);
    let root = image.blocks("/h")[0] * BS;
    let bytes = image.read(root, 1024);
    let count = u16::from_le_bytes([bytes[0x22], bytes[0x23]]);
    let hash = word(&bytes, 0x28);
    let mut cases = Cases::on(&image);
    let le32 = |number: u32| number.to_le_bytes();
    let le16 = |number: u16| number.to_le_bytes();
    cases.poke("reserved word", "DI030", root + 0x18, &[1]);
    cases.poke("info length 7", "DI030", root + 0x1D, &[7]);
    cases.poke("info length 9", "DI030", root + 0x1D, &[9]);
    cases.poke("flag 1", "DI030", root + 0x1F, &[1]);
    cases.poke("flag 2", "", root + 0x1F, &[2]);
    for version in [0, 2] {
        cases.poke("another hash", "DI038", root + 0x1C, &[version]);
    }
    for version in [3, 4, 5, 6, 9] {
        cases.poke("an impossible hash", "DI031", root + 0x1C, &[version]);
    }
    for levels in [1, 2, 9] {
        cases.poke("levels", "DI032", root + 0x1E, &[levels]);
    }
    for limit in [123, 125] {
        cases.poke("limit", "DI033", root + 0x20, &le16(limit));
    }
    for bad in [0, 125] {
        cases.poke("count", "DI033", root + 0x22, &le16(bad));
    }
    for few in [1, count - 1] {
        cases.poke("count too low", "DI037", root + 0x22, &le16(few));
    }
    cases.poke("another block", "DI036", root + 0x24, &le32(2));
    cases.poke("block past the end", "DI035", root + 0x2C, &le32(9999));
    cases.poke("block 0", "DI035", root + 0x2C, &le32(0));
    cases.poke("hints", "", root + 0x2C, &le32(word(&bytes, 0x2C) | 0x1000_0000));
    cases.poke("hash too high", "DI038", root + 0x28, &le32(hash + 2));
    cases.poke("hash a little lower", "", root + 0x28, &le32(hash - 2));
    cases.poke("hash 0", "DI038", root + 0x28, &le32(0));
    cases.poke("out of order", "DI034", root + 0x28, &le32(0xFFFF_FFFE));
    cases.poke("continuation", "", root + 0x28, &le32(hash | 1));
    cases.poke("dot-dot shows the index", "DI030", root + 16, &le16(12));
}

#[test]
fn index_checksums() {
    let image = indexed(&["-O", "^has_journal,^orphan_file"]);
    let blocks = image.blocks("/h");
    let root = blocks[0] * BS;
    let bytes = image.read(root, 0x28);
    let half = |at: usize| u64::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let (tail, end) = (root + 0x20 + 8 * half(0x20), root + 0x20 + 8 * half(0x22));
    let mut cases = Cases::on(&image);
    cases.poke("checksum", "DI039", tail + 4, b"x");
    cases.poke("reserved word of the tail", "DI039", tail, b"x");
    cases.poke("a hash", "DI039", root + 0x29, b"x");
    cases.poke("behind the last entry", "", end + 8, b"x");
    cases.poke("a leaf", "DI008", blocks[3] * BS + 1020, b"x");
    cases.judge("the feature", "DI040", Judges::Agree, |copy| copy.write(&["feature ^dir_index"]));
}

#[test]
fn every_hash_and_signedness_is_clean() {
    for version in ["legacy", "half_md4", "tea"] {
        for flags in ["1", "2"] {
            let image = Image::from_tree(&["-E", "hash_seed=aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"], |_| {});
            // e2fsck builds the index for debugfs's directory, with the hash that the superblock now names.
            let mut commands = vec![format!("ssv def_hash_version {version}"), format!("ssv flags {flags}")];
            commands.extend(["mkdir d".to_owned(), "cd d".to_owned(), "write /etc/passwd f".to_owned()]);
            commands.extend((0..600).map(|i| format!("ln f naïve-{i}-é")));
            commands.push("sif f links_count 601".to_owned());
            commands.extend((0..40).map(|_| "expand /d".to_owned()));
            image.write(&commands.iter().map(String::as_str).collect::<Vec<_>>());
            let _ = extant_testkit::command("e2fsck").arg("-fyD").arg(&image.path).output().unwrap();
            image.assert_clean();
        }
    }
}

/// Directories above 1 MiB are walked in pieces, by several threads.
#[test]
fn large_directories() {
    let image = Image::from_tree(&["-O", "^metadata_csum,^has_journal,^orphan_file"], |tree| {
        std::fs::create_dir(tree.join("h")).unwrap();
        let long = "n".repeat(240);
        for i in 0..6000 {
            std::fs::write(tree.join(format!("h/{long}{i:06}")), "").unwrap();
        }
    });
    let blocks = image.blocks("/h");
    assert!(blocks.len() > 1200, "{} blocks", blocks.len());
    let root = image.read(blocks[0] * BS, 0x28);
    assert_eq!(root[0x1E], 1, "one level of nodes below the root");
    let is_node = |block: &u64| image.read(block * BS, 6) == [0, 0, 0, 0, 0, 4];
    let (nodes, leaves): (Vec<u64>, Vec<u64>) = blocks[1..].iter().partition(|block| is_node(block));
    let (node, leaf) = (nodes[nodes.len() / 2] * BS, leaves[leaves.len() / 2] * BS);
    let mut cases = Cases::on(&image);
    cases.poke("a name", "DI038", leaf + 8, b"zz");
    cases.poke("an inode", "DI011", leaf, &99_999_999u32.to_le_bytes());
    cases.poke("a chain", "DI001", leaf + 4, &[1, 1]);
    cases.poke("zeros", "DI001", leaf, &[0; BS as usize]);
    cases.poke("a node's count", "DI037", node + 10, &3u16.to_le_bytes());
    cases.poke("a node's hash", "DI034", node + 0x28, &0x1000u32.to_le_bytes());
    cases.poke("a node's block", "DI036", node + 0x2C, &7u32.to_le_bytes());
    cases.poke("no node", "DI032", node + 4, &512u16.to_le_bytes());
    cases.debugfs("a hole in the middle", "DI005", &["punch h 700 700"]);
    // Without the index; e2fsck compares only the names within a block.
    let name = image.read(leaves[3] * BS + 8, 246);
    cases.judge("twice, far apart", "DI016", Judges::WeAlone, |copy| {
        copy.write(&["sif h flags 0x80000"]);
        copy.poke(leaf + 8, &name);
    });
}

#[test]
fn casefolded_directories_are_hashed_by_their_folded_names() {
    let mut commands: Vec<String> =
        ["mkdir d", "sif d flags 0x40080000", "cd d", "write /etc/passwd f"].map(str::to_owned).to_vec();
    commands.extend((0..600).map(|i| format!("ln f File-{i}-{}-X", if i % 7 == 0 { "ÀÉ" } else { "Ab" })));
    commands.push("sif f links_count 601".to_owned());
    commands.extend((0..40).map(|_| "expand /d".to_owned()));
    // The directory needs its blocks before debugfs links the names.
    commands.rotate_right(40);
    let (head, tail) = commands.split_at(40);
    let commands: Vec<&str> = tail[..4].iter().chain(head).chain(&tail[4..]).map(String::as_str).collect();
    let image = Image::new(&["-O", "casefold,^metadata_csum,^has_journal,^orphan_file"], &commands);
    let _ = extant_testkit::command("e2fsck").arg("-fyD").arg(&image.path).output().unwrap();
    let blocks = image.blocks("/d");
    assert!(blocks.len() > 4 && image.read(blocks[0] * BS + 0x1C, 1) == [1]);
    let mut cases = Cases::on(&image);
    let leaf = image.block(blocks[1]);
    let first_len = usize::from(leaf[6]);
    let at = blocks[1] * BS;
    cases.poke("another name", "DI038", at + 8, b"zzz");
    // Two names of equal length in the leaf: the second becomes the first with other case.
    let mut offset = usize::from(u16::from_le_bytes([leaf[4], leaf[5]]));
    while usize::from(leaf[offset + 6]) != first_len {
        offset += usize::from(u16::from_le_bytes([leaf[offset + 4], leaf[offset + 5]]));
    }
    let name = leaf[8..8 + first_len].to_ascii_uppercase();
    cases.judge("twice but for its case", "DI016", Judges::WeAlone, |copy| {
        copy.poke(at + offset as u64 + 8, &name)
    });
}

#[test]
fn encrypted_directories() {
    if extant_testkit::not_root() {
        return println!("skipped: not root");
    }
    let image = Image::new(&["-O", "encrypt,^metadata_csum"], &[]);
    let mount = match extant_testkit::LoopMount::new(&image.path, "test_dummy_encryption=v2") {
        Ok(mount) => mount,
        Err(error) => return println!("skipped: this kernel does not mount an image of mke2fs: {error}"),
    };
    let dir = mount.path().join("d");
    std::fs::create_dir(&dir).unwrap();
    for i in 0..200 {
        std::fs::write(dir.join(format!("file-{i}")), "secret").unwrap();
    }
    std::os::unix::fs::symlink("target", dir.join("link")).unwrap();
    drop(mount);
    // Its name is encrypted: the directory is the only entry of the root that is not lost+found.
    let root = image.block(image.blocks("/")[0]);
    let mut at = 0;
    let ino = loop {
        let (len, name_len) =
            (usize::from(u16::from_le_bytes([root[at + 4], root[at + 5]])), usize::from(root[at + 6]));
        let name = &root[at + 8..at + 8 + name_len];
        if at >= 24 && name != b"lost+found" {
            break u32::from_le_bytes(root[at..at + 4].try_into().unwrap());
        }
        at += len;
    };
    let leaf = image.blocks(&format!("<{ino}>"))[1] * BS;
    let child = u32::from_le_bytes(image.read(leaf, 4).try_into().unwrap());
    let mut cases = Cases::on(&image);
    cases.poke("too short", "DI019", leaf + 6, &[12]);
    cases.debugfs("a file that is not encrypted", "DI020", &[&format!("sif <{child}> flags 0x80000")]);
}
