//! Symlinks, device nodes, times and owners; encrypted trees.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, IFlags, Timespec, Timestamps};
use rustix::io::Errno;

use super::WorkTree;

/// Every kind of node; device numbers in the old (8 and 8 bits) and the new encoding.
pub(in crate::matrix) fn nodes(place: &WorkTree) {
    place.node("fifo", FileType::Fifo, 0, 0);
    place.node("socket", FileType::Socket, 0, 0);
    place.node("null", FileType::CharacterDevice, 1, 3);
    place.node("old-most", FileType::BlockDevice, 255, 255);
    place.node("new-major", FileType::BlockDevice, 256, 0);
    place.node("new-minor", FileType::CharacterDevice, 8, 256);
    place.node("new-most", FileType::CharacterDevice, 4095, 1_048_575);
}

/// Symlinks of about 60 bytes, the limit of an inode, and of the maximum length of a block.
pub(in crate::matrix) fn symlinks(place: &WorkTree) {
    let longest = (place.block_size() as usize).min(4096) - 1;
    for len in [1, 58, 59, 60, 61, 120, 200, longest - 1, longest] {
        let target: Vec<u8> =
            (0..len).map(|i| if i % 50 == 49 { b'/' } else { b'a' + (i % 26) as u8 }).collect();
        place.symlink(target, format!("to-{len}"));
    }
    place.symlink(b"not \xFF\xFE utf-8", "to-bytes");
    place.symlink("..", "to-parent");
}

/// Times at the limits of 32 bits and of the epoch bits, and between them; owners and modes of all sizes;
/// flags.
pub(in crate::matrix) fn metadata(root: &Path) {
    let place = WorkTree::new(root);
    times(&place.dir("times"));
    let owners = place.dir("owners");
    for id in [0, 1, 65_534, 65_535, 65_536, 70_000, 0x1234_5678, u32::MAX - 1] {
        owners.filled(format!("{id}"), 10);
        owners.own(format!("{id}"), id, u32::MAX - 1 - id);
    }
    let modes = place.dir("modes");
    for mode in [0o0, 0o777, 0o4755, 0o2755, 0o1777, 0o7777, 0o644] {
        let name = format!("{mode:o}");
        modes.filled(&name, 10);
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(modes.path(&name), permissions)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let flags = place.dir("flags");
    for (name, flag) in [
        ("nodump", IFlags::NODUMP),
        ("noatime", IFlags::NOATIME),
        ("sync", IFlags::SYNC),
        ("append", IFlags::APPEND),
        ("immutable", IFlags::IMMUTABLE),
        ("journal-data", IFlags::JOURNALING),
    ] {
        flags.filled(name, 100);
        let file = File::open(flags.path(name)).expect("it was just made");
        let old = rustix::fs::ioctl_getflags(&file).expect("ext4 has flags");
        match rustix::fs::ioctl_setflags(&file, old | flag) {
            // Journaled data needs CAP_SYS_RESOURCE, which root in a container may lack.
            Ok(()) | Err(Errno::PERM) => {}
            Err(error) => panic!("{name}: {error}"),
        }
    }
    nodes(&place.dir("nodes"));
    symlinks(&place.dir("symlinks"));
}

fn times(place: &WorkTree) {
    let seconds: [i64; 12] = [
        -(1 << 31),   // 1901, the first
        -631_152_000, // 1950
        -1,
        0,
        1,
        (1 << 31) - 1, // 2038
        1 << 31,
        4_102_444_800, // 2100
        (1 << 32) - 1,
        1 << 32,
        (3 << 32) - 1,  // 2378
        15_032_385_535, // 2446, the last of 34 bits
    ];
    for (i, seconds) in seconds.into_iter().enumerate() {
        for nanoseconds in [0, 1, 999_999_999] {
            let name = format!("at{seconds}.{nanoseconds}");
            place.file(&name, name.as_bytes());
            let mtime = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
            let atime = Timespec { tv_sec: 1_000_000_000 + i as i64, tv_nsec: 5 };
            let times = Timestamps { last_access: atime, last_modification: mtime };
            rustix::fs::utimensat(CWD, place.path(&name), &times, AtFlags::empty())
                .unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}

/// Directories with an encryption policy, and files in them. The key is in no key ring when this returns.
///
/// `e4crypt new_session` gives the shell its own session key ring, which is freed with it.
pub(in crate::matrix) fn encrypted(root: &Path) {
    const SCRIPT: &str = r#"
        set -e
        mkdir "$1/secret" "$1/secret2"
        printf 'not a secret\n' > "$1/plain"
        e4crypt new_session > /dev/null
        printf 'passphrase\n' | e4crypt add_key -S 0x1234567890abcdef "$1/secret" "$1/secret2" > /dev/null 2>&1
        cd "$1/secret"
        mkdir sub sub/deeper
        for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
            printf 'file %s\n' $i > "file number $i"
            printf '%s\n' $i > "sub/x$i"
        done
        head -c 20000 /dev/zero | tr '\0' 'x' > sub/deeper/large
        : > empty
        ln -s "some target" link
        long=$(printf 'n%.0s' $(seq 1 255))
        printf 'long\n' > "$long"
        setfattr -n user.a -v value empty
        for i in $(seq 1 300); do : > "$1/secret2/entry of a directory with an index $i"; done
    "#;
    let mut command = crate::tools::command("sh");
    command.args(["-c", SCRIPT, "sh"]).arg(root);
    let output = crate::tools::output_of(&mut command);
    assert!(output.status.success(), "{}", crate::tools::story(&command, &output));
}

/// A file that debugfs turns into a verity file. From the next multiple of 64 KiB after the data on, it has
/// bytes in the place of the Merkle tree and the descriptor.
pub(in crate::matrix) fn before_verity(root: &Path) {
    super::mixed(root);
    let place = WorkTree::new(root);
    place.filled("verity", 100_000);
    place.write_at("verity", 131_072, &[0xA5; 4096]);
    place.write_at("verity", 131_072 + 4096, &[0x5A; 260]);
}
