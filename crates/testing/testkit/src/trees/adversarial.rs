//! A tree with one of everything that image builders often get wrong.

use std::path::Path;

use rustix::fs::FileType;

use super::maker::{Maker, Report};
use super::random::Random;

/// The limits of the file system under test; the tree stays within them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Maximum length of a symlink target, in bytes. ext4: a block less one byte, at most 4095.
    pub symlink_bytes: usize,
    /// Maximum size of an extended attribute's value, in bytes. In ext4 without `ea_inode` all attributes of
    /// an inode must fit into the inode and one block.
    pub xattr_bytes: usize,
    /// Size of the largest sparse file, in bytes.
    pub sparse_bytes: u64,
}

impl Default for Limits {
    /// For blocks of 4 KiB and above, mapped by extents.
    fn default() -> Self {
        Self { symlink_bytes: 4095, xattr_bytes: 3000, sparse_bytes: 1 << 40 }
    }
}

impl Limits {
    /// For an ext4 with extents and this block size in bytes.
    #[must_use]
    pub fn for_block_size(block_size: u64) -> Self {
        let block = usize::try_from(block_size.min(4096)).expect("at most 4096");
        Self { symlink_bytes: block - 1, xattr_bytes: block * 3 / 4 - 72, ..Self::default() }
    }
}

/// Fills `dir` (existing and empty) for blocks of 4 KiB and above. See [`adversarial_within`].
///
/// # Panics
/// As [`adversarial_within`].
pub fn adversarial(dir: &Path) -> Report {
    adversarial_within(dir, &Limits::default())
}

/// Fills `dir` (existing and empty) with one of everything: names, sizes, symlinks, hard links, special
/// files, modes, owners, times, holes, attributes, ACLs, large and deep directories. About 6,000 inodes, 3 MB
/// of data.
///
/// The complete tree needs tmpfs or ext4, and root. The report lists what could not be created.
///
/// # Panics
/// A plain file, directory, symlink or hard link cannot be created.
pub fn adversarial_within(dir: &Path, limits: &Limits) -> Report {
    let mut maker = Maker::new(dir);
    names(&maker);
    sizes(&maker);
    symlinks(&maker, limits);
    hard_links(&maker);
    special_files(&mut maker);
    modes(&mut maker);
    owners(&mut maker);
    times(&mut maker);
    holes(&mut maker, limits);
    attributes(&mut maker, limits);
    acls(&mut maker);
    directories(&maker);
    maker.finish()
}

fn names(maker: &Maker<'_>) {
    maker.dir("names");
    // Every byte that a name may contain, including those above 127, where signed and unsigned directory
    // hashes differ.
    let every_byte: Vec<u8> = (1..=255).filter(|&byte| byte != b'/').collect();
    let names: &[&[u8]] = &[
        b"a",
        b"\xFF",
        b"not \xC3\x28 utf-8 \xFE\xFF",
        b"line\nbreak",
        b"tab\tand\rreturn",
        b"\x1B[31mescape",
        b"  spaces  ",
        b"-rf",
        b"...",
        b"..hidden",
        b".wh.looks-like-a-whiteout-in-the-middle.wh.",
        b"back\\slash",
        b"quote\"and'quote`",
        b"*?[glob]{a,b}$HOME;&|<>",
        "Größe-名前-🦀".as_bytes(),
        // The same letter composed and decomposed: two different names without casefold.
        "caf\u{E9}".as_bytes(),
        "cafe\u{301}".as_bytes(),
        b"case",
        b"CASE",
        b"name:with:colons",
        b"name@0",
        b"name#1",
        &every_byte,
    ];
    for name in names {
        maker.file([b"names/", *name].concat(), name);
    }
    for len in [2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 254, 255] {
        maker.file([b"names/".as_slice(), &vec![b'n'; len]].concat(), b"");
    }
    maker.dir([b"names/".as_slice(), &vec![b'D'; 255]].concat());
    maker.symlink([b"names/".as_slice(), &vec![0xE9; 255]].concat(), b"a");
}

fn sizes(maker: &Maker<'_>) {
    maker.dir("sizes");
    for size in
        [0, 1, 59, 60, 61, 160, 511, 1023, 1024, 1025, 4095, 4096, 4097, 8192, 65_536, 65_537, 1 << 20]
    {
        maker.file(format!("sizes/{size}"), &Random::new(size).bytes(size as usize));
    }
    maker.file("sizes/zeros", &[0; 20_000]);
}

fn symlinks(maker: &Maker<'_>, limits: &Limits) {
    maker.dir("symlinks");
    // ext4 keeps targets of up to 59 bytes inside the inode.
    for len in [1, 2, 58, 59, 60, 61, 159, 160, 255, 1023, 1024, 2048, 4095] {
        if len <= limits.symlink_bytes {
            let target: Vec<u8> = b"../sizes/".iter().copied().cycle().take(len).collect();
            maker.symlink(format!("symlinks/{len}"), &target);
        }
    }
    maker.symlink("symlinks/good", b"../sizes/1");
    maker.symlink("symlinks/dangling", b"nowhere");
    maker.symlink("symlinks/absolute", b"/nowhere/at/all");
    maker.symlink("symlinks/itself", b"itself");
    maker.symlink("symlinks/loop-a", b"loop-b");
    maker.symlink("symlinks/loop-b", b"loop-a");
    maker.symlink("symlinks/up", b"../..");
    maker.symlink("symlinks/directory", b"../sizes");
    maker.symlink("symlinks/bytes", b"\xFF\n\xFE");
}

fn hard_links(maker: &Maker<'_>) {
    maker.dir("links");
    maker.dir("links/one");
    maker.dir("links/two");
    maker.file("links/one/first", b"one inode, four names");
    maker.link("links/one/first", "links/one/second");
    maker.link("links/one/first", "links/two/third");
    maker.link("links/one/first", "links/a-name-before-the-first");
    maker.symlink("links/symlink", b"one/first");
    maker.link("links/symlink", "links/symlink-too");
    maker.file("links/alone", b"one inode, four names");
}

fn special_files(maker: &mut Maker<'_>) {
    maker.dir("special");
    maker.node("special/fifo", FileType::Fifo, 0, 0);
    maker.node("special/socket", FileType::Socket, 0, 0);
    // Numbers up to 255 have the old 16-bit encoding in ext4, larger ones the new one of 12 + 20 bits.
    for (major, minor) in [(1, 3), (0, 1), (255, 255), (256, 0), (8, 256), (4095, 1_048_575)] {
        maker.node(&format!("special/char-{major}-{minor}"), FileType::CharacterDevice, major, minor);
        maker.node(&format!("special/block-{major}-{minor}"), FileType::BlockDevice, major, minor);
    }
    let fifo = maker.full("special/fifo-linked");
    if std::fs::hard_link(maker.full("special/fifo"), &fifo).is_err() {
        maker.skip("special/fifo-linked: hard link of a fifo");
    }
}

fn modes(maker: &mut Maker<'_>) {
    maker.dir("modes");
    for mode in [0o0000, 0o0001, 0o0111, 0o0200, 0o0444, 0o0777, 0o1644, 0o2755, 0o4755, 0o6711, 0o7777] {
        let path = format!("modes/{mode:04o}");
        maker.file(&path, b"mode");
        maker.mode(&path, mode);
    }
    for mode in [0o0700, 0o1777, 0o2775, 0o3770] {
        let path = format!("modes/dir-{mode:04o}");
        maker.dir(&path);
        maker.mode(&path, mode);
    }
    if crate::is_root() {
        maker.dir("modes/dir-0000");
        maker.file("modes/dir-0000/within", b"within");
        maker.mode("modes/dir-0000", 0);
    }
}

fn owners(maker: &mut Maker<'_>) {
    maker.dir("owners");
    // Both halves of the 32-bit ids; 4294967295 means "no change" and is not an owner.
    for (uid, gid) in [
        (0, 1),
        (1000, 100),
        (65_534, 65_535),
        (65_536, 65_537),
        (100_000, 0),
        (2_147_483_648, 2_147_483_647),
        (4_294_967_294, 4_294_967_294),
    ] {
        let path = format!("owners/{uid}-{gid}");
        maker.file(&path, b"owned");
        maker.owner(&path, uid, gid);
    }
    maker.dir("owners/directory");
    maker.owner("owners/directory", 70_000, 80_000);
    maker.symlink("owners/symlink", b"nobody-follows");
    maker.owner("owners/symlink", 70_001, 80_001);
    // chown clears these bits, so the mode is set second; both must be in the image.
    maker.file("owners/setuid", b"setuid");
    maker.owner("owners/setuid", 70_002, 80_002);
    maker.mode("owners/setuid", 0o6755);
}

fn times(maker: &mut Maker<'_>) {
    maker.dir("times");
    // ext4's range is -2^31 to 2^34 - 2^31 - 1 seconds; each 2^32 seconds from -2^31 on have their own epoch
    // bits.
    let instants = [
        ("1901-first", -2_147_483_648, 0),
        ("1901", -2_147_483_647, 123_456_789),
        ("1927", -1_356_998_400, 999_999_999),
        ("1969", -1, 999_999_999),
        ("1970", 0, 0),
        ("1970-and-a-bit", 0, 1),
        ("2038", 2_147_483_647, 999_999_999),
        ("2038-after", 2_147_483_648, 0),
        ("2100", 4_102_444_800, 500_000_000),
        ("2106-epoch-1-last", 4_294_967_295, 1),
        ("2106-after", 4_294_967_296, 2),
        ("2174-epoch-2", 6_442_450_944, 3),
        ("2310-epoch-3", 10_737_418_240, 4),
        ("2446", 15_032_385_534, 999_999_999),
        // Linux clears the nanoseconds of the first and the last second when it sets a time.
        ("2446-last", 15_032_385_535, 0),
    ];
    for (name, seconds, nanoseconds) in instants {
        let path = format!("times/{name}");
        maker.file(&path, name.as_bytes());
        maker.time(&path, seconds, nanoseconds);
    }
    maker.dir("times/directory-2100");
    maker.file("times/directory-2100/within", b"");
    maker.time("times/directory-2100", 4_102_444_800, 1);
    maker.symlink("times/symlink-2100", b"2100");
    maker.time("times/symlink-2100", 4_102_444_800, 2);
}

fn holes(maker: &mut Maker<'_>, limits: &Limits) {
    const MIB: u64 = 1 << 20;
    let data = Random::new(5).bytes(65_536);
    maker.dir("holes");
    maker.sparse("holes/start", MIB, &[(MIB - 65_536, &data)]);
    maker.sparse("holes/middle", MIB, &[(0, &data), (MIB - 65_536, &data)]);
    maker.sparse("holes/end", MIB, &[(0, &data)]);
    maker.sparse("holes/all", MIB, &[]);
    maker.sparse("holes/all-odd", 4097, &[]);
    maker.sparse("holes/odd", 300_001, &[(100_000, &data[..10]), (300_000, &data[..1])]);
    // Every other block: more extents than an inode holds (4), and more than a leaf of 1 KiB holds (84).
    let comb: Vec<(u64, &[u8])> = (0..400).map(|i| (i * 8192, &data[..4096])).collect();
    maker.sparse("holes/comb", 400 * 8192, &comb);
    let size = limits.sparse_bytes;
    maker.sparse("holes/huge", size, &[(0, &data[..4096]), (size / 2, &data), (size - 1, b"!")]);
    maker.sparse("holes/huge-all", size, &[]);
}

fn attributes(maker: &mut Maker<'_>, limits: &Limits) {
    let random = &mut Random::new(6);
    maker.dir("xattrs");
    let file = |maker: &mut Maker<'_>, name: &str| {
        let path = format!("xattrs/{name}");
        maker.file(&path, name.as_bytes());
        path
    };
    // Values that fit into a 256-byte inode, values that do not, and shared values.
    let path = file(maker, "small");
    maker.xattr(path, "user.small", b"value");
    let path = file(maker, "empty-value");
    maker.xattr(path, "user.empty", b"");
    let path = file(maker, "binary");
    maker.xattr(path, "user.binary", &(0..=255).collect::<Vec<u8>>());
    let path = file(maker, "large");
    maker.xattr(path, "user.large", &random.bytes(limits.xattr_bytes));
    for name in ["shared-a", "shared-b", "shared-c"] {
        let path = file(maker, name);
        maker.xattr(&path, "user.shared", &[b's'; 300]);
        maker.xattr(&path, "user.also", b"the same");
    }
    let path = file(maker, "many");
    for i in 0..limits.xattr_bytes / 60 {
        maker.xattr(&path, &format!("user.name-{i:03}"), format!("value {i}").as_bytes());
    }
    let path = file(maker, "long-name");
    maker.xattr(path, &format!("user.{}", "n".repeat(250)), b"255 bytes of name");
    let path = file(maker, "odd-names");
    for name in ["user..", "user.a b", "user.ünï", "user.new\nline"] {
        maker.xattr(&path, name, name.as_bytes());
    }
    let path = file(maker, "every-namespace");
    maker.xattr(&path, "user.u", b"u");
    maker.xattr(&path, "trusted.t", b"t");
    maker.xattr(&path, "security.s", b"s");
    // Version 2 capabilities: cap_net_bind_service and cap_net_raw, permitted and effective.
    let path = file(maker, "capability");
    let mut capability = Vec::new();
    for word in [0x0200_0001u32, 1 << 10 | 1 << 13, 0, 0, 0] {
        capability.extend_from_slice(&word.to_le_bytes());
    }
    maker.mode(&path, 0o755);
    maker.xattr(&path, "security.capability", &capability);
    let path = file(maker, "selinux");
    maker.xattr(path, "security.selinux", b"system_u:object_r:bin_t:s0\0");
    maker.dir("xattrs/directory");
    maker.xattr("xattrs/directory", "user.directory", b"yes");
    // user.* is not allowed on symlinks and special files; trusted.* is.
    maker.symlink("xattrs/symlink", b"small");
    maker.xattr("xattrs/symlink", "trusted.symlink", b"yes");
}

fn acls(maker: &mut Maker<'_>) {
    // Tags of an ACL entry, linux/posix_acl.h: owner 1, user 2, group of the file 4, group 8, mask 16, other
    // 32.
    let named = acl(&[(1, 7, None), (2, 6, Some(1000)), (4, 5, None), (16, 7, None), (32, 4, None)]);
    let many = acl(&[
        (1, 7, None),
        (2, 4, Some(1)),
        (2, 5, Some(70_000)),
        (2, 0, Some(4_294_967_294)),
        (4, 5, None),
        (8, 4, Some(5)),
        (8, 2, Some(80_000)),
        (16, 5, None),
        (32, 0, None),
    ]);
    maker.dir("acls");
    maker.file("acls/named", b"acl");
    maker.xattr("acls/named", "system.posix_acl_access", &named);
    maker.file("acls/many", b"acl");
    maker.xattr("acls/many", "system.posix_acl_access", &many);
    maker.dir("acls/default");
    maker.xattr("acls/default", "system.posix_acl_default", &many);
    maker.dir("acls/both");
    maker.xattr("acls/both", "system.posix_acl_access", &named);
    maker.xattr("acls/both", "system.posix_acl_default", &named);
    maker.xattr("acls/both", "user.and", b"an attribute");
}

/// The value of `system.posix_acl_*`: version 2, then entries of (tag, permissions, id), in the order of tags
/// and ids.
fn acl(entries: &[(u16, u16, Option<u32>)]) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&permissions.to_le_bytes());
        value.extend_from_slice(&id.unwrap_or(u32::MAX).to_le_bytes());
    }
    value
}

fn directories(maker: &Maker<'_>) {
    maker.dir("directories");
    maker.dir("directories/empty");
    maker.dir("directories/many-names");
    let random = &mut Random::new(9);
    for i in 0..5000 {
        // Lengths from 5 to 60, so that leaves end at irregular offsets.
        let filler = "x".repeat(random.below(56) as usize);
        maker.file(format!("directories/many-names/{i:05}{filler}"), b"");
    }
    maker.dir("directories/many-directories");
    for i in 0..70 {
        maker.dir(format!("directories/many-directories/{i:02}"));
    }
    // Long names fill blocks quickly: leaves have few entries.
    maker.dir("directories/long-names");
    for i in 0..100 {
        maker.file(format!("directories/long-names/{i:0>255}"), b"");
    }
    let mut deep = "directories/deep".to_owned();
    maker.dir(&deep);
    for level in 0..100 {
        deep.push_str(&format!("/{level}"));
        maker.dir(&deep);
    }
    maker.file(format!("{deep}/bottom"), b"bottom");
}
