//! Journal, orphans and quota: for every rule an image that breaks it, judged by e2fsck and by the check.

mod lab;

use lab::{BS, Cases, Image, Judges};

fn le32(number: u32) -> [u8; 4] {
    number.to_le_bytes()
}

fn be32(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

#[test]
fn journal_superblock() {
    let image =
        Image::new(&["-O", "^metadata_csum,has_journal,^orphan_file"], &["mkdir d", "write /etc/passwd u"]);
    let journal = image.blocks("<8>")[0] * BS;
    let mut cases = Cases::on(&image);
    let mut field =
        |what: &str, code: &str, at: u64, number: u32| cases.poke(what, code, journal + at, &be32(number));
    field("magic", "JO010", 0, 1);
    field("type 1", "JO010", 4, 1);
    field("type 9", "JO010", 4, 9);
    field("version 1", "", 4, 3);
    field("block size", "JO010", 0xC, 4096);
    field("too many blocks", "JO013", 0x10, 4097);
    field("fewer blocks", "", 0x10, 2000);
    field("log begins at 0", "JO015", 0x14, 0);
    field("log begins past the end", "JO015", 0x14, 99_999);
    field("sequence", "", 0x18, 99);
    field("something to replay", "JO021", 0x1C, 1);
    field("something to replay past the end", "JO015", 0x1C, 99_999);
    field("an unknown feature", "JO012", 0x28, 0x100);
    field("checksums of two versions", "JO012", 0x28, 0x18);
    field("checksums without a type", "JO012", 0x28, 0x10);
    field("an unknown ro feature", "JO012", 0x2C, 1);
    field("two users", "JO014", 0x40, 2);
    cases.judge("aborted", "JO016", Judges::Agree, |copy| copy.poke(journal + 0x20, &be32(0xFFFF_FFFB)));
}

#[test]
fn journal_inode() {
    let image =
        Image::new(&["-O", "^metadata_csum,has_journal,^orphan_file"], &["mkdir d", "write /etc/passwd u"]);
    let mut cases = Cases::on(&image);
    for inum in ["0", "9", "13"] {
        cases.debugfs(inum, "JO001", &[&format!("ssv journal_inum {inum}")]);
    }
    cases.debugfs("cleared", "JO001", &["clri <8>"]);
    cases.debugfs("too small", "JO001", &["sif <8> size 1024000"]);
    cases.debugfs("a block short", "JO013", &["sif <8> size 4193280"]);
    cases.debugfs("not mapped to its end", "JO001", &["sif <8> size 4195328"]);
    cases.debugfs("no file", "JO001", &["sif <8> mode 040600"]);
    cases.debugfs("no link", "JO001", &["sif <8> links_count 0"]);
    cases.debugfs("the backup", "JO017", &["ssv jnl_blocks[3] 5"]);
    let none = Image::new(&["-O", "^metadata_csum,^has_journal,^orphan_file"], &[]);
    Cases::on(&none).debugfs("recovery without a journal", "JO002", &["feature needs_recovery"]);
}

#[test]
fn orphan_file() {
    for csum in ["^metadata_csum", "metadata_csum"] {
        let image = Image::new(
            &["-O", &format!("{csum},has_journal,orphan_file")],
            &["mkdir d", "write /etc/passwd u"],
        );
        let block = image.blocks("<12>")[0] * BS;
        let mut cases = Cases::on(&image);
        cases.poke("a slot", "OR014", block, &le32(14));
        cases.poke("a slot past the end", "OR013", block, &le32(99_999_999));
        cases.poke("magic", "OR011", block + 1016, &le32(1));
        cases.poke("checksum", "OR012", block + 1020, &le32(1));
        cases.debugfs("present and empty", "OR015", &["feature orphan_present"]);
        cases.debugfs("size", "OR010", &["sif <12> size 1000"]);
        cases.debugfs("named in a directory", "DI011", &["ln <12> z"]);
        cases.debugfs("inode 0", "OR010", &["ssv orphan_file_inum 0"]);
        cases.debugfs("inode past the end", "OR010", &["ssv orphan_file_inum 99999999"]);
        cases.debugfs("another inode", "OR010", &["ssv orphan_file_inum 14"]);
        cases.debugfs("without the feature", "OR016", &["feature ^orphan_file"]);
        cases.debugfs("without a journal", "OR017", &["feature ^has_journal"]);
    }
}

#[test]
fn orphans_that_wait_are_no_damage() {
    let image = Image::new(
        &["-O", "^metadata_csum,has_journal,orphan_file"],
        &["mkdir d", "write /etc/passwd u", "write /bin/sh l"],
    );
    let block = image.blocks("<12>")[0] * BS;
    let mut cases = Cases::on(&image);
    // e2fsck deletes and truncates orphans when it may write; with -n it reports them as damage.
    cases.judge("truncate in the file", "OR003", Judges::E2fsckAlone, |copy| {
        copy.write(&["feature orphan_present"]);
        copy.poke(block, &le32(14));
    });
    cases.judge("delete on the list", "OR003", Judges::E2fsckAlone, |copy| {
        copy.write(&["sif u links_count 0", "unlink u", "ssv last_orphan 14"]);
    });
    cases.debugfs("truncate on the list", "OR003", &["ssv last_orphan 14"]);
    // With blocks past its end, as a truncation interrupted by a crash leaves it.
    cases.judge("cut on the list", "OR003", Judges::E2fsckAlone, |copy| {
        copy.write(&["sif l size 1024", "ssv last_orphan 15"]);
    });
    cases.debugfs("cut, and on no list", "IN006", &["sif l size 1024"]);
    cases.debugfs("the list leads nowhere", "OR001", &["ssv last_orphan 99999999"]);
    cases.debugfs("the list leads to a free inode", "OR001", &["ssv last_orphan 500"]);
    cases.debugfs("the list comes back", "OR002", &["sif u dtime 14", "ssv last_orphan 14"]);
}

#[test]
fn quota() {
    let image = Image::new(
        &["-O", "quota,^metadata_csum,^has_journal,^orphan_file"],
        &["mkdir d", "write /etc/passwd u"],
    );
    assert!(lab::codes(&image.findings()).contains(&"QU004"), "debugfs does not count");
    let _ = extant_testkit::command("e2fsck").arg("-fy").arg(&image.path).output().unwrap();
    // Header, root, three tree blocks, one leaf with id 0.
    let blocks = image.blocks("<3>");
    let (header, root, leaf) = (blocks[0] * BS, blocks[1] * BS, blocks[5] * BS);
    let mut cases = Cases::on(&image);
    cases.poke("version", "QU003", header + 4, &le32(9));
    cases.poke("grace", "", header + 8, &le32(9));
    cases.poke("blocks", "QU003", header + 20, &le32(99));
    cases.poke("free block", "QU003", header + 24, &le32(99));
    cases.poke("leaf with room", "QU003", header + 28, &le32(99));
    cases.poke("tree leads past the end", "QU003", root, &le32(99));
    cases.poke("no owner in the tree", "QU005", root, &le32(0));
    cases.poke("a leaf without the id", "QU003", leaf + 16, &le32(77));
    cases.poke("inodes", "QU004", leaf + 16 + 24, &le32(77));
    cases.poke("space", "QU004", leaf + 16 + 48, &le32(77));
    cases.poke("a limit", "", leaf + 16 + 8, &le32(77));
    cases.debugfs("cleared", "QU001", &["clri <3>"]);
    cases.debugfs("past the end", "QU001", &["ssv grp_quota_inum 1000000"]);
    // e2fsck treats a file with another magic as no quota file, and reports nothing.
    cases.judge("magic", "QU003", Judges::WeAlone, |copy| copy.poke(header, &le32(1)));
}
