//! Indexed directories: every rule with an image that breaks it, and e2fsck's verdict beside ours.

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
            // e2fsck builds the index of what debugfs made, under the hash that the superblock now names.
            let mut commands = vec![format!("ssv def_hash_version {version}"), format!("ssv flags {flags}")];
            commands.extend(["mkdir d".to_owned(), "cd d".to_owned(), "write /etc/passwd f".to_owned()]);
            commands.extend((0..600).map(|i| format!("ln f naïve-{i}-é")));
            commands.push("sif f links_count 601".to_owned());
            commands.extend((0..40).map(|_| "expand /d".to_owned()));
            image.write(&commands.iter().map(String::as_str).collect::<Vec<_>>());
            let _ = testkit::command("e2fsck").arg("-fyD").arg(&image.path).output().unwrap();
            image.assert_clean();
        }
    }
}
