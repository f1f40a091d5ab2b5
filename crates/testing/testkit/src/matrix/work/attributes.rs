//! Extended attributes in all places where ext4 stores them, and inline data, which competes for the same
//! room.

use std::path::Path;

use super::WorkTree;
use crate::trees::Random;

/// Attributes in the inode body, in a block, and in a block that several inodes share; all namespaces; ACLs.
pub(in crate::matrix) fn attributes(root: &Path) {
    let place = WorkTree::new(root);
    let block = place.block_size() as usize;

    for len in [0, 1, 3, 4, 5, 30, 60, 100, 200, block / 2, block - 100] {
        let name = format!("value-of-{len}");
        place.filled(&name, 10);
        place.xattr(&name, "user.value", &Random::new(len as u64).bytes(len));
    }
    // In the body and in the block; names sort by length first.
    place.filled("both", 10);
    let names = ["user.z", "user.a", "user.bb", "user.aa", "user.a-long-name-of-an-attribute"];
    for (i, name) in names.iter().enumerate() {
        place.xattr("both", name, &vec![b'0' + i as u8; 20 * (i + 1)]);
    }
    place.filled("many", 0);
    for i in 0..200 {
        place.xattr("many", &format!("user.attribute-{i}"), format!("{i}").as_bytes());
    }
    place.filled("longest-name", 0);
    place.xattr("longest-name", &format!("user.{}", "n".repeat(250)), b"of 255 bytes");

    // The same set on many inodes: one block with a reference count.
    let shared = place.dir("shared");
    for i in 0..40 {
        let name = format!("{i}");
        shared.filled(&name, i);
        shared.xattr(&name, "user.shared", &Random::new(99).bytes(block / 2));
    }
    // Two of them get other attributes; one is removed.
    shared.xattr("7", "user.shared", b"no longer");
    shared.xattr("8", "user.own", b"more");
    shared.remove("9");

    let spaces = place.dir("namespaces");
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for (name, attribute, value) in [
        ("user", "user.x", &b"value"[..]),
        ("trusted", "trusted.x", b"value"),
        ("security", "security.x", b"value"),
        ("capability", "security.capability", &capability),
    ] {
        spaces.filled(name, 5);
        spaces.xattr(name, attribute, value);
    }
    place.symlink("target", "a-symlink");
    place.xattr("a-symlink", "trusted.of-a-symlink", b"value");
    place.xattr("shared", "user.of-a-directory", b"value");

    acls(&place.dir("acls"));
}

/// ACLs in the format of the system call: version 2, then (tag, permissions, id) of 2, 2 and 4 bytes,
/// little-endian.
fn acls(place: &WorkTree) {
    const NO_ID: u32 = u32::MAX;
    let acl = |entries: &[(u16, u16, u32)]| {
        let mut bytes = 2u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(permissions.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    };
    let plain = acl(&[(1, 6, NO_ID), (2, 4, 1000), (4, 4, NO_ID), (16, 4, NO_ID), (32, 0, NO_ID)]);
    place.filled("access", 5);
    place.xattr("access", "system.posix_acl_access", &plain);
    let sub = place.dir("with-default");
    place.xattr("with-default", "system.posix_acl_default", &plain);
    sub.filled("inherits", 5);
    drop(sub.dir("inherits-too"));
    place.filled("many-users", 5);
    let mut entries = vec![(1, 6, NO_ID)];
    entries.extend((0..30).map(|i| (2, (i % 8) as u16, 100_000 + i)));
    entries.push((4, 4, NO_ID));
    entries.extend((0..10).map(|i| (8, (i % 8) as u16, 200_000 + i)));
    entries.extend([(16, 7, NO_ID), (32, 4, NO_ID)]);
    place.xattr("many-users", "system.posix_acl_access", &acl(&entries));
}

/// Values in EA inodes, some of them shared.
pub(in crate::matrix) fn in_inodes(root: &Path) {
    let place = WorkTree::new(root);
    for len in [100, 1000, 4000, 4096, 4097, 16_384, 65_000, 65_536] {
        let name = format!("large-{len}");
        place.filled(&name, 10);
        place.xattr(&name, "user.large", &Random::new(len as u64).bytes(len));
    }
    let common = Random::new(5).bytes(30_000);
    for i in 0..10 {
        let name = format!("shares-{i}");
        place.filled(&name, 10);
        place.xattr(&name, "user.common", &common);
        place.xattr(&name, "user.small", b"in the inode");
        place.xattr(&name, "user.own", &Random::new(100 + i).bytes(5000));
    }
    // Reference counts are decremented.
    place.remove("shares-3");
    place.xattr("shares-4", "user.common", b"short again");
    attributes(&place.dir("others").path(""));
}

/// Data, directories and symlinks inside inodes, with attributes that take their room; some grow out of their
/// inodes.
pub(in crate::matrix) fn inline_data(root: &Path) {
    let place = WorkTree::new(root);
    let sizes = [0, 15, 30, 45, 59, 60, 61, 100, 130, 150, 155, 160, 161, 200, 500, 900, 1100];
    for len in sizes {
        place.filled(format!("of-{len}"), len);
    }
    for len in [30, 70, 130] {
        let name = format!("with-attribute-{len}");
        place.filled(&name, len);
        place.xattr(&name, "user.small", b"short");
        place.xattr(&name, "user.large", &Random::new(1).bytes(600));
    }
    // Attributes first: less room for data.
    place.filled("attribute-first", 0);
    place.xattr("attribute-first", "user.room", &[b'r'; 60]);
    place.file("attribute-first", &[b'd'; 100]);

    // Growth out of the inode, and truncation afterwards; changes within it.
    place.filled("grown", 50);
    place.write_at("grown", 50, &[b'g'; 3000]);
    place.filled("grown-and-cut", 50);
    place.write_at("grown-and-cut", 50, &[b'g'; 3000]);
    place.cut("grown-and-cut", 20);
    place.filled("cut", 120);
    place.cut("cut", 70);
    place.filled("lengthened", 20);
    place.cut("lengthened", 100);
    place.filled("hole-at-the-end", 20);
    place.cut("hole-at-the-end", 100_000);
    place.write_at("hole-at-the-start", 50_000, b"far");

    for n in [0, 1, 2, 3, 4, 5, 8, 12, 40, 300] {
        let dir = place.dir(format!("dir-of-{n}"));
        for i in 0..n {
            dir.filled(format!("entry-{i}"), i);
        }
    }
    let holes = place.dir("dir-with-holes");
    for i in 0..5 {
        holes.filled(format!("e{i}"), 1);
    }
    holes.remove("e1");
    holes.remove("e3");
    drop(place.dir("nested").dir("a").dir("b").dir("c"));
    super::special::symlinks(&place.dir("symlinks"));
    for len in [10, 60, 100, 150, 160] {
        place.symlink(vec![b't'; len], format!("link-{len}"));
    }
}
