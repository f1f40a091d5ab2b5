//! Directories: for every rule an image that breaks it, judged by e2fsck and by the check.

mod lab;

use lab::{BS, Cases, Image, Judges};

/// Without checksums, so that one changed byte breaks one rule.
const PLAIN: &[&str] = &["-O", "^metadata_csum,^has_journal,^orphan_file"];

fn small() -> Image {
    let image = Image::new(
        PLAIN,
        &[
            "mkdir d",
            "mkdir e",
            "write /etc/passwd u",
            "cd d",
            "mkdir sub",
            "write /etc/passwd f",
            "write /etc/passwd g",
            "symlink l /x",
            "mknod p p",
        ],
    );
    image.assert_clean();
    image
}

fn le32(number: u32) -> [u8; 4] {
    number.to_le_bytes()
}

fn le16(number: u16) -> [u8; 2] {
    number.to_le_bytes()
}

fn ino(image: &Image, at: u64) -> u32 {
    u32::from_le_bytes(image.read(at, 4).try_into().unwrap())
}

#[test]
fn entries() {
    let image = small();
    let block = image.blocks("/d")[0];
    let (f, g, sub) = (image.entry(block, b"f"), image.entry(block, b"g"), image.entry(block, b"sub"));
    let own = ino(&image, block * BS);
    let mut cases = Cases::on(&image);
    cases.poke("type unknown", "DI014", f + 7, &[0]);
    cases.poke("type of a directory", "DI013", f + 7, &[2]);
    cases.poke("type 0x99", "DI013", f + 7, &[0x99]);
    cases.poke("directory as a file", "DI013", sub + 7, &[1]);
    cases.poke("slash", "DI009", f + 8, b"/");
    cases.poke("NUL", "DI009", f + 8, b"\0");
    cases.poke("not ASCII", "", f + 8, b"\xFF");
    cases.poke("twice", "DI016", f + 8, b"g");
    cases.poke("unused inode", "DI012", f, &le32(500));
    cases.poke("inode past the end", "DI011", f, &le32(99_999_999));
    for reserved in [1, 3, 7, 8, 10] {
        cases.poke("reserved inode", "DI011", f, &le32(reserved));
    }
    cases.poke("the root", "DI018", f, &le32(2));
    cases.poke("the directory itself", "DI018", f, &le32(own));
    cases.poke("another directory", "DI018", f, &le32(ino(&image, sub)));
    cases.poke("another file", "DI053", f, &le32(ino(&image, g)));
    cases.poke("cleared", "DI054", f, &le32(0));
    cases.poke("no name", "DI010", f + 6, &[0]);
    cases.poke("name longer than its entry", "DI001", f + 6, &[200]);
    for (what, rec_len) in [("0", 0), ("8", 8), ("13", 13), ("16", 16), ("past the block", 1024)] {
        cases.poke(what, "DI001", f + 4, &le16(rec_len));
    }
    cases.poke("an entry is skipped", "DI054", f + 4, &le16(24));
    cases.poke("a second dot", "DI017", f + 8, b".");
    cases.poke("a second dot-dot", "DI017", f + 6, b"\x02\x01..");
    cases.poke("zeros", "DI001", block * BS, &[0; BS as usize]);
    cases.poke("ones", "DI001", block * BS, &[0xFF; BS as usize]);
}

#[test]
fn dots() {
    let image = small();
    let block = image.blocks("/d")[0];
    let (dot, dotdot) = (block * BS, block * BS + 12);
    let (g, e) =
        (ino(&image, image.entry(block, b"g")), ino(&image, image.entry(image.blocks("/")[0], b"e")));
    let own = ino(&image, dot);
    let mut cases = Cases::on(&image);
    cases.poke("dot leads elsewhere", "DI002", dot, &le32(g));
    cases.poke("dot unused", "DI002", dot, &le32(0));
    cases.poke("dot named x", "DI002", dot + 8, b"x");
    cases.poke("dot of two bytes", "DI002", dot + 6, &[2]);
    cases.poke("dot without NUL", "DI002", dot + 9, b"x");
    cases.poke("dot without a type", "", dot + 7, &[0]);
    cases.poke("dot a file", "DI013", dot + 7, &[1]);
    cases.poke("dot takes dot-dot", "DI003", dot + 4, &le16(24));
    cases.poke("padding", "", dot + 10, b"zz");
    for (what, target) in
        [("a sibling", e), ("a file", g), ("unused", 600), ("itself", own), ("past the end", 9_999_999)]
    {
        cases.poke(what, "DI004", dotdot, &le32(target));
    }
    cases.poke("dot-dot unused", "DI003", dotdot, &le32(0));
    cases.poke("dot-dot named .x", "DI003", dotdot + 8, b".x");
    cases.poke("dot-dot of one byte", "DI003", dotdot + 6, &[1]);
    cases.poke("dot-dot without NUL", "DI003", dotdot + 10, b"q");
    cases.poke("dot-dot without a type", "", dotdot + 7, &[0]);
}

#[test]
fn blocks_and_links() {
    let image = Image::new(
        PLAIN,
        &[
            "mkdir d",
            "mkdir e",
            "write /etc/passwd u",
            "cd d",
            "mkdir sub",
            "write /etc/passwd f",
            "expand /d",
            "expand /d",
        ],
    );
    let mut cases = Cases::on(&image);
    cases.debugfs("a hole", "DI005", &["punch d 1 1"]);
    cases.debugfs("a hole at the beginning", "DI005", &["punch d 0 0"]);
    cases.debugfs("no first block, and the name lost", "DI051", &["unlink d"]);
    for links in ["1", "5", "65001"] {
        cases.debugfs(links, "DI053", &[&format!("sif d links_count {links}")]);
    }
    cases.debugfs("too many links", "DI053", &["sif u links_count 2"]);
    cases.debugfs("a second name", "DI053", &["ln u u2"]);
    cases.debugfs("a second name of a directory", "DI018", &["ln d d2"]);
    cases.debugfs("no name", "DI054", &["unlink u"]);
    cases.debugfs("cleared inode", "DI012", &["clri u"]);
    cases.debugfs("name of the journal", "DI011", &["ln <8> j"]);
    cases.debugfs("INDEX flag", "DI030", &["sif d flags 0x81000"]);
    cases.debugfs("no lost+found", "", &["rmdir lost+found"]);
    cases.debugfs("lost+found a file", "", &["rmdir lost+found", "write /etc/passwd lost+found"]);
}

#[test]
fn loops_are_found_once_each() {
    // a/b/c, then c's only entry leads to a: a loop of three that hangs from nothing.
    let image = Image::new(PLAIN, &["mkdir a", "cd a", "mkdir b", "cd b", "mkdir c", "cd c", "mkdir x"]);
    let (root, block_c) = (image.blocks("/")[0], image.blocks("/a/b/c")[0]);
    let a = image.entry(root, b"a");
    let mut cases = Cases::on(&image);
    cases.judge("a loop", "DI052", Judges::Agree, |copy| {
        let x = copy.entry(block_c, b"x");
        copy.poke(x, &le32(ino(copy, a)));
        copy.poke(a, &le32(0));
        assert_eq!(copy.findings().iter().filter(|finding| finding.rule.code == "DI052").count(), 1);
    });
}

#[test]
fn without_the_filetype_feature_entries_have_no_type() {
    let image = Image::new(
        &["-O", "^metadata_csum,^has_journal,^orphan_file,^filetype"],
        &["mkdir d", "cd d", "mkdir sub"],
    );
    let sub = image.entry(image.blocks("/d")[0], b"sub");
    let mut cases = Cases::on(&image);
    cases.poke("a type", "DI015", sub + 7, &[2]);
}

#[test]
fn checksum_tails() {
    let image = Image::new(
        &["-O", "^has_journal,^orphan_file"],
        &["mkdir d", "cd d", "write /etc/passwd f", "expand /d"],
    );
    let blocks = image.blocks("/d");
    let (first, second) = (blocks[0] * BS, blocks[1] * BS);
    let mut cases = Cases::on(&image);
    cases.poke("checksum", "DI008", first + 1020, b"x");
    cases.poke("a byte of free space", "DI008", first + 100, b"x");
    cases.poke("tail's type", "DI007", first + 1019, b"x");
    cases.poke("tail's inode", "DI007", first + 1012, b"x");
    cases.poke("tail's rec_len", "DI007", first + 1016, b"x");
    cases.poke("tail's name_len", "DI007", first + 1018, b"x");
    cases.poke("the second block's", "DI007", second + 1019, b"x");
}

#[test]
fn names_of_a_directory_without_index_are_compared_across_blocks() {
    let commands: Vec<String> = (0..200).map(|i| format!("ln f name-number-{i:04}")).collect();
    let mut all = vec![
        "mkdir d",
        "cd d",
        "write /etc/passwd f",
        "expand /d",
        "expand /d",
        "expand /d",
        "expand /d",
        "expand /d",
    ];
    all.extend(commands.iter().map(String::as_str));
    all.push("sif f links_count 201");
    let image = Image::new(&["-O", "^metadata_csum,^has_journal,^orphan_file,^dir_index"], &all);
    let blocks = image.blocks("/d");
    let last = blocks.iter().rev().find(|block| image.block(**block)[0..4] != [0; 4]).unwrap();
    let name = &image.block(*last)[8..24];
    let mut cases = Cases::on(&image);
    let first = image.entry(blocks[0], b"name-number-0000");
    // e2fsck compares the names of one block only.
    cases.judge("twice, far apart", "DI016", Judges::WeAlone, |copy| copy.poke(first + 8, name));
}

#[test]
fn inline_directories() {
    let image = Image::from_tree(&["-O", "inline_data,^metadata_csum,^has_journal,^orphan_file"], |tree| {
        std::fs::create_dir_all(tree.join("d/s")).unwrap();
        for i in 0..3 {
            std::fs::write(tree.join(format!("d/f{i}")), "x").unwrap();
        }
    });
    let text = extant_testkit::debugfs(&image.path, "imap /d");
    let number = |word: &str| {
        text.split(word).nth(1).unwrap().trim_start().split([',', '\n']).next().unwrap().to_owned()
    };
    let offset = u64::from_str_radix(number("offset ").trim_start_matches("0x"), 16).unwrap();
    let inode = number("at block").trim().parse::<u64>().unwrap() * BS + offset;
    let area = inode + 0x28 + 4;
    let names: Vec<u8> = (0..4).map(|i| image.read(area + 12 * i + 8, 2)[0]).collect();
    assert_eq!(names, *b"fffs");
    let mut cases = Cases::on(&image);
    cases.poke("no parent", "DI003", inode + 0x28, &le32(0));
    for (what, parent) in [
        ("itself", ino(&image, area) - 1),
        ("a file", ino(&image, area)),
        ("lost+found", 11),
        ("past the end", 999_999),
    ] {
        cases.poke(what, "DI004", inode + 0x28, &le32(parent));
    }
    cases.poke("unused inode", "DI012", area, &le32(500));
    cases.poke("rec_len 8", "DI001", area + 4, &le16(8));
    cases.poke("rec_len 100", "DI001", area + 4, &le16(100));
    cases.poke("rec_len of the last", "DI001", area + 40, &le16(16));
    cases.poke("slash", "DI009", area + 8, b"/");
    cases.poke("type", "DI013", area + 7, &[2]);
    cases.poke("cleared", "DI054", area, &le32(0));
    // e2fsck says that it marks the directory to be rebuilt, and calls the file system clean.
    cases.judge("twice", "DI016", Judges::WeAlone, |copy| copy.poke(area + 9, b"1"));
}
