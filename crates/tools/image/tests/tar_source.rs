//! The tar reader with archives that GNU tar wrote, with archives that are invalid by construction, and with
//! random changes of bytes.
//!
//! Tests that need GNU tar (or setfattr, setfacl) print a message and pass if it is missing.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Cursor, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use extant_image::source::entry::{Entry, Kind, Payload, Time};
use extant_image::source::fault::{SourceFault, Warning};
use extant_image::source::spool::Spool;
use extant_image::source::tar::{Compression, TarInput, TarReport, Unpacking, read_tar};
use proptest::prelude::*;

/// The complete result of one walk.
struct Walk {
    entries: Vec<Entry>,
    warnings: Vec<Warning>,
    report: TarReport,
}

impl Walk {
    fn entry(&self, path: &str) -> &Entry {
        let found = self.entries.iter().find(|entry| entry.path == path.as_bytes());
        found.unwrap_or_else(|| panic!("no entry {path}"))
    }

    fn text(&self, path: &str) -> String {
        String::from_utf8(content(&self.entry(path).kind)).unwrap()
    }

    fn only_warning(&self) -> String {
        assert_eq!(self.warnings.len(), 1, "{:?}", self.warnings);
        self.warnings[0].to_string()
    }
}

fn walk(input: TarInput) -> Result<Walk, SourceFault> {
    let mut spool = Spool::new(std::env::temp_dir());
    let (mut entries, mut warnings) = (Vec::new(), Vec::new());
    let mut sink = |entry| {
        entries.push(entry);
        Ok::<(), SourceFault>(())
    };
    let report =
        read_tar(input, Unpacking::default(), &mut spool, &mut sink, &mut |warning| warnings.push(warning))?;
    Ok(Walk { entries, warnings, report })
}

fn walk_bytes(bytes: Vec<u8>) -> Result<Walk, SourceFault> {
    walk(TarInput::Reader { name: "test.tar".into(), reader: Box::new(Cursor::new(bytes)) })
}

fn refusal(bytes: Vec<u8>) -> String {
    match walk_bytes(bytes) {
        Ok(_) => panic!("was not refused"),
        Err(fault) => fault.to_string(),
    }
}

/// The bytes of a file; holes are zeros.
fn content(kind: &Kind) -> Vec<u8> {
    let Kind::File { size, payload: Payload { backing, runs } } = kind else {
        panic!("{kind:?} is not a file")
    };
    let mut bytes = vec![0; usize::try_from(*size).unwrap()];
    for run in runs {
        let at = run.file_offset as usize;
        backing.read_exact_at(&mut bytes[at..at + run.len as usize], run.backing_offset).unwrap();
    }
    bytes
}

fn has(program: &str, word: &str) -> bool {
    let output = Command::new(program).arg("--version").output();
    let is_there = output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(word));
    if !is_there {
        println!("skipped: not installed: {program} ({word})");
    }
    is_there
}

/// Runs `tar -C dir -cf archive args`.
fn gnu_tar(dir: &Path, args: &[&str]) -> PathBuf {
    let archive = dir.join("archive.tar");
    let _ = fs::remove_file(&archive);
    let tree = dir.join("tree");
    let output =
        Command::new("tar").arg("-C").arg(&tree).arg("-cf").arg(&archive).args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    archive
}

fn tree() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("tree")).unwrap();
    dir
}

fn packed(bytes: &[u8], compression: Compression) -> Vec<u8> {
    match compression {
        Compression::None => bytes.to_vec(),
        Compression::Gzip => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        }
        Compression::Zstd => zstd::encode_all(bytes, 1).unwrap(),
        Compression::Xz => {
            let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 1);
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        }
    }
}

const PACKERS: [Compression; 3] = [Compression::Gzip, Compression::Zstd, Compression::Xz];

/// A POSIX header with its checksum; `edit` may change fields before it is sealed.
fn header_with(name: &[u8], flag: u8, size: u64, edit: impl FnOnce(&mut [u8; 512])) -> Vec<u8> {
    let mut block = [0u8; 512];
    block[..name.len()].copy_from_slice(name);
    block[100..108].copy_from_slice(b"0000644\0");
    block[108..116].copy_from_slice(b"0000000\0");
    block[116..124].copy_from_slice(b"0000000\0");
    block[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
    block[136..148].copy_from_slice(b"00000000000\0");
    block[156] = flag;
    block[257..265].copy_from_slice(b"ustar\x0000");
    edit(&mut block);
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|&b| u32::from(b)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block.to_vec()
}

fn header(name: &str, flag: u8, size: u64) -> Vec<u8> {
    header_with(name.as_bytes(), flag, size, |_| ())
}

fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn member(name: &str, flag: u8, bytes: &[u8]) -> Vec<u8> {
    [header(name, flag, bytes.len() as u64), padded(bytes)].concat()
}

fn pax(flag: u8, records: &[(&str, &[u8])]) -> Vec<u8> {
    let mut all = Vec::new();
    for (key, value) in records {
        let body = key.len() + value.len() + 3;
        let len = (body..).find(|len| body + len.to_string().len() == *len).unwrap();
        all.extend_from_slice(format!("{len} {key}=").as_bytes());
        all.extend_from_slice(value);
        all.push(b'\n');
    }
    member("pax", flag, &all)
}

fn ended(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

/// Creates a tree with one of each kind that every format can store.
fn furnish(dir: &Path, long_names: bool) {
    let tree = dir.join("tree");
    fs::create_dir_all(tree.join("sub/dir")).unwrap();
    for size in [0usize, 1, 511, 512, 513, 100_000] {
        let bytes: Vec<u8> = (0..size).map(|i| (i * 7 % 253) as u8).collect();
        fs::write(tree.join(format!("sub/file-{size}")), bytes).unwrap();
    }
    fs::set_permissions(tree.join("sub/file-1"), fs::Permissions::from_mode(0o4751)).unwrap();
    fs::set_permissions(tree.join("sub/dir"), fs::Permissions::from_mode(0o1777)).unwrap();
    fs::hard_link(tree.join("sub/file-513"), tree.join("sub/link")).unwrap();
    symlink("../target/of/the link", tree.join("symlink")).unwrap();
    fs::write(tree.join(OsStr::from_bytes(b"caf\xe9 \\ \x01")), b"bytes").unwrap();
    if long_names {
        let deep = tree.join("d".repeat(120)).join("e".repeat(200));
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("f".repeat(255)), b"deep").unwrap();
        fs::hard_link(deep.join("f".repeat(255)), tree.join("zz-link-to-deep")).unwrap();
        symlink("t".repeat(3000), tree.join("long-symlink")).unwrap();
    }
}

/// Checks every entry against the file system.
fn assert_same_as_tree(walk: &Walk, tree: &Path, with_nanoseconds: bool) {
    let mut links = 0;
    for entry in &walk.entries {
        let path = tree.join(OsStr::from_bytes(&entry.path));
        let on_disk = fs::symlink_metadata(&path).unwrap();
        let nanos = if with_nanoseconds { on_disk.mtime_nsec() as u32 } else { 0 };
        let shown = path.display();
        assert_eq!(u32::from(entry.metadata.permissions), on_disk.mode() & 0o7777, "{shown}");
        assert_eq!((entry.metadata.uid, entry.metadata.gid), (on_disk.uid(), on_disk.gid()), "{shown}");
        assert_eq!(entry.metadata.mtime, Time { seconds: on_disk.mtime(), nanos }, "{shown}");
        match &entry.kind {
            Kind::Directory => assert!(on_disk.is_dir()),
            Kind::File { size, .. } => {
                assert_eq!(*size, on_disk.len());
                assert!(content(&entry.kind) == fs::read(&path).unwrap(), "{shown}");
            }
            Kind::Symlink(target) => assert_eq!(target, fs::read_link(&path).unwrap().as_os_str().as_bytes()),
            Kind::HardLink(target) => {
                links += 1;
                let other = tree.join(OsStr::from_bytes(target));
                assert_eq!(fs::metadata(other).unwrap().ino(), on_disk.ino());
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(links >= 1);
}

#[test]
fn every_format_of_gnu_tar_reads_back_as_the_tree_it_was_made_of() {
    if !has("tar", "GNU") {
        return;
    }
    for format in ["v7", "ustar", "oldgnu", "gnu", "posix"] {
        let dir = tree();
        furnish(dir.path(), matches!(format, "oldgnu" | "gnu" | "posix"));
        let archive = gnu_tar(dir.path(), &[&format!("--format={format}"), "."]);
        let plain = walk(TarInput::Path(archive.clone())).unwrap();
        assert!(plain.warnings.is_empty(), "{format}: {:?}", plain.warnings);
        assert_eq!(plain.report.compression, Compression::None);
        assert_eq!(plain.entries[0].path, b"");
        assert_same_as_tree(&plain, &dir.path().join("tree"), format == "posix");
        let bytes = fs::read(&archive).unwrap();
        let streamed = walk_bytes(bytes.clone()).unwrap();
        assert_same_as_tree(&streamed, &dir.path().join("tree"), format == "posix");
        for compression in PACKERS {
            // Two members, frames or streams; the archive is split in the middle.
            let (first, second) = bytes.split_at(bytes.len() / 2 + 17);
            let both = [packed(first, compression), packed(second, compression)].concat();
            let packed_archive = dir.path().join("no-suffix");
            fs::write(&packed_archive, both).unwrap();
            let unpacked = walk(TarInput::Path(packed_archive)).unwrap();
            assert_eq!(unpacked.report.compression, compression);
            assert_eq!(unpacked.report.content_bytes, plain.report.content_bytes);
            assert!(unpacked.warnings.is_empty());
            assert_same_as_tree(&unpacked, &dir.path().join("tree"), format == "posix");
        }
    }
}

#[test]
fn the_archive_itself_backs_what_is_not_compressed() {
    let dir = tree();
    let archive = dir.path().join("a.tar");
    fs::write(&archive, ended(member("f", b'0', b"hello"))).unwrap();
    let all = walk(TarInput::Path(archive.clone())).unwrap();
    let Kind::File { payload, .. } = &all.entries[0].kind else { panic!() };
    assert_eq!(payload.runs[0].backing_offset, 512);
    assert_eq!(payload.backing.metadata().unwrap().ino(), fs::metadata(&archive).unwrap().ino());
}

#[test]
fn sparse_files_keep_their_holes_in_every_form() {
    if !has("tar", "GNU") {
        return;
    }
    let dir = tree();
    let tree = dir.path().join("tree");
    let mut expected = Vec::new();
    // 4 pairs fit into the old header, and 21 into an extension block: 3, 30 and 300 runs need no, two and
    // many such blocks. In PAX 1.0 the map of 300 runs needs more than one block.
    for (count, tail) in [(3u64, 0u64), (30, 1 << 20), (300, 5)] {
        let path = tree.join(format!("holes-{count}"));
        let file = File::create(&path).unwrap();
        for i in 0..count {
            file.write_all_at(&[b'a' + (i % 26) as u8; 4096], i * 65536).unwrap();
        }
        file.set_len((count - 1) * 65536 + 4096 + tail).unwrap();
        expected.push((format!("holes-{count}"), fs::read(&path).unwrap()));
    }
    File::create(tree.join("nothing-but-hole")).unwrap().set_len(1 << 20).unwrap();
    expected.push(("nothing-but-hole".into(), vec![0; 1 << 20]));
    fs::write(tree.join("zz-after"), "after").unwrap();
    let forms: [&[&str]; 5] = [
        &["--format=oldgnu"],
        &["--format=gnu"],
        &["--format=posix", "--sparse-version=0.0"],
        &["--format=posix", "--sparse-version=0.1"],
        &["--format=posix", "--sparse-version=1.0"],
    ];
    for form in forms {
        let archive = gnu_tar(dir.path(), &[form, &["--sparse", "."]].concat());
        let bytes = fs::read(&archive).unwrap();
        assert!(bytes.len() < 4 << 20, "GNU tar did find the holes");
        for all in [walk(TarInput::Path(archive)).unwrap(), walk_bytes(bytes).unwrap()] {
            for (name, whole) in &expected {
                let kind = &all.entry(name).kind;
                assert!(content(kind) == *whole, "{form:?} {name}");
                let Kind::File { payload, .. } = kind else { panic!() };
                let holes = name.strip_prefix("holes-").map_or(0, |count| count.parse().unwrap());
                assert_eq!(payload.runs.len(), holes, "{form:?} {name}");
            }
            assert_eq!(all.text("zz-after"), "after");
        }
    }
}

#[test]
fn attributes_and_acls_read_as_the_kernel_shows_them() {
    if !has("tar", "GNU") || !has("setfattr", "") || !has("setfacl", "") {
        return;
    }
    let dir = tree();
    let file = dir.path().join("tree/file");
    fs::write(&file, "x").unwrap();
    let run = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).current_dir(dir.path().join("tree")).output().unwrap();
        output.status.success().then_some(output.stdout)
    };
    let made = run("setfattr", &["-n", "user.a=b%c", "-v", "0x00ff0a3d00", "file"]).is_some()
        && run("setfattr", &["-n", "user.empty", "file"]).is_some()
        && run("setfacl", &["-m", "u:4711:rw-,u:12:r--,g:4712:---", "file"]).is_some()
        && fs::create_dir(dir.path().join("tree/sub")).is_ok()
        && run("setfacl", &["-d", "-m", "u::rwx,g::r-x,o::---", "sub"]).is_some();
    if !made {
        println!("skipped: no extended attributes in the scratch directory");
        return;
    }
    let shown = |name: &str, path: &str| -> Vec<u8> {
        let text = run("getfattr", &["--only-values", "-n", name, path]);
        text.unwrap_or_default()
    };
    let archive = gnu_tar(dir.path(), &["--format=posix", "--xattrs", "--acls", "--numeric-owner", "."]);
    let all = walk(TarInput::Path(archive)).unwrap();
    let value = |path: &str, name: &str| {
        let xattrs = &all.entry(path).metadata.xattrs;
        xattrs
            .iter()
            .find(|x| x.name == name.as_bytes())
            .unwrap_or_else(|| panic!("{xattrs:?}"))
            .value
            .clone()
    };
    assert_eq!(value("file", "user.a=b%c"), b"\x00\xff\x0a=\x00");
    assert_eq!(value("file", "user.empty"), b"");
    assert_eq!(value("file", "system.posix_acl_access"), shown("system.posix_acl_access", "file"));
    assert_eq!(value("sub", "system.posix_acl_default"), shown("system.posix_acl_default", "sub"));
    assert_eq!(all.entry("file").metadata.xattrs.len(), 3);
    assert!(all.warnings.is_empty());
}

#[test]
fn times_before_1970_and_after_2038_and_large_owners_survive() {
    if !has("tar", "GNU") {
        return;
    }
    let dir = tree();
    fs::write(dir.path().join("tree/file"), "x").unwrap();
    for (date, seconds, nanos) in [
        ("1969-12-31 23:59:58.5 UTC", -2, 500_000_000),
        ("1901-01-01 00:00:00.000000001 UTC", -2_177_452_800, 1),
        ("2400-02-29 12:00:00.999999999 UTC", 13_574_606_400, 999_999_999),
    ] {
        for (format, keeps_nanos) in [("posix", true), ("gnu", false)] {
            let args = [
                "--format",
                format,
                "--mtime",
                date,
                "--owner=big:3000000",
                "--group=big:4000000000",
                "file",
            ];
            let archive = gnu_tar(dir.path(), &args);
            let all = walk(TarInput::Path(archive)).unwrap();
            let metadata = &all.entry("file").metadata;
            let expected = Time { seconds, nanos: if keeps_nanos { nanos } else { 0 } };
            assert_eq!(metadata.mtime, expected, "{format} {date}");
            assert_eq!((metadata.uid, metadata.gid), (3_000_000, 4_000_000_000));
        }
    }
}

#[test]
fn labels_incremental_directories_and_global_headers_are_understood() {
    if !has("tar", "GNU") {
        return;
    }
    let dir = tree();
    fs::create_dir(dir.path().join("tree/sub")).unwrap();
    fs::write(dir.path().join("tree/sub/file"), "x").unwrap();
    let snapshot = dir.path().join("snapshot");
    for format in ["gnu", "posix"] {
        let _ = fs::remove_file(&snapshot);
        let incremental = format!("--listed-incremental={}", snapshot.display());
        let archive = gnu_tar(dir.path(), &["--format", format, "--label=a label", &incremental, "."]);
        let all = walk(TarInput::Path(archive)).unwrap();
        let paths: Vec<&[u8]> = all.entries.iter().map(|entry| &entry.path[..]).collect();
        assert_eq!(paths, [&b""[..], b"sub", b"sub/file"], "{format}");
        assert!(matches!(all.entry("sub").kind, Kind::Directory));
        assert!(all.entry("sub/file").metadata.atime.is_some(), "{format}");
        assert!(all.warnings.is_empty());
    }
    // GNU tar does not repeat the records of a global header for each member.
    let option = "--pax-option=LIBARCHIVE.creationtime=12345.5,comment=words";
    let archive = gnu_tar(dir.path(), &["--format=posix", option, "."]);
    let all = walk(TarInput::Path(archive)).unwrap();
    assert_eq!(all.entries.len(), 3);
    let birth = Some(Time { seconds: 12345, nanos: 500_000_000 });
    assert!(all.entries.iter().all(|entry| entry.metadata.crtime == birth));
}

#[test]
fn devices_and_pipes_have_their_numbers() {
    let number = |block: &mut [u8; 512]| {
        block[329..337].copy_from_slice(b"0000010\0");
        block[337..345].copy_from_slice(b"0000377\0");
    };
    let bytes = ended(
        [
            header_with(b"char", b'3', 0, number),
            header_with(b"block", b'4', 0, number),
            header("pipe", b'6', 0),
            pax(b'x', &[("SCHILY.devmajor", b"4000"), ("SCHILY.devminor", b"1000000")]),
            header_with(b"big", b'3', 0, number),
        ]
        .concat(),
    );
    let all = walk_bytes(bytes).unwrap();
    assert!(matches!(all.entry("char").kind, Kind::CharDevice { major: 8, minor: 255 }));
    assert!(matches!(all.entry("block").kind, Kind::BlockDevice { major: 8, minor: 255 }));
    assert!(matches!(all.entry("pipe").kind, Kind::Fifo));
    assert!(matches!(all.entry("big").kind, Kind::CharDevice { major: 4000, minor: 1_000_000 }));
}

#[test]
fn names_lose_slashes_and_dots_and_are_warned_about_once() {
    let bytes = ended(
        [
            member("./", b'5', b""),
            member("/etc//./passwd", b'0', b"a"),
            member("/etc/group", b'0', b"b"),
            member("old-directory/", 0, b""),
            header_with(b"link", b'1', 0, |block| block[157..168].copy_from_slice(b"/etc/passwd")),
        ]
        .concat(),
    );
    let all = walk_bytes(bytes).unwrap();
    let paths: Vec<&[u8]> = all.entries.iter().map(|entry| &entry.path[..]).collect();
    assert_eq!(paths, [&b""[..], b"etc/passwd", b"etc/group", b"old-directory", b"link"]);
    assert!(matches!(all.entry("old-directory").kind, Kind::Directory));
    assert!(matches!(&all.entry("link").kind, Kind::HardLink(target) if target == b"etc/passwd"));
    let warnings: Vec<u64> = all.warnings.iter().map(|warning| warning.entry_no).collect();
    assert_eq!(warnings, [2, 5], "one for member names, one for targets");
}

#[test]
fn a_hard_link_with_content_is_skipped_and_one_with_a_mere_size_is_not() {
    let link = |size| header_with(b"link", b'1', size, |block| block[157] = b'f');
    let after = member("after", b'0', b"after");
    // The size of the file without content: the next header follows.
    let bare = [member("f", b'0', b"hello"), link(5), after.clone()].concat();
    // Content, as cpio and pax write it.
    let full = [member("f", b'0', b"hello"), link(5), padded(b"hello"), after.clone()].concat();
    // Content that is itself a tar archive: only the PAX header distinguishes it from members.
    let nested = ended(member("inner", b'0', b"x"));
    let in_pax =
        [member("f", b'0', &nested), pax(b'x', &[("mtime", b"1")]), link(nested.len() as u64), nested, after]
            .concat();
    for bytes in [bare, full, in_pax] {
        let all = walk_bytes(ended(bytes.clone())).unwrap();
        assert_eq!(all.entries.len(), 3);
        assert_eq!(all.text("after"), "after");
        let dir = tree();
        fs::write(dir.path().join("a.tar"), ended(bytes)).unwrap();
        assert_eq!(walk(TarInput::Path(dir.path().join("a.tar"))).unwrap().entries.len(), 3);
    }
}

#[test]
fn unknown_types_become_files_with_a_warning() {
    let all = walk_bytes(ended([member("odd", b'Q', b"content"), member("f", b'7', b"x")].concat())).unwrap();
    assert_eq!((all.text("odd"), all.text("f")), ("content".into(), "x".into()));
    assert!(all.only_warning().contains("entry type 'Q' is not known"), "{}", all.only_warning());
}

#[test]
fn a_default_acl_on_a_file_is_left_out_with_a_warning() {
    let acl = b"user::rwx,group::r-x,other::---";
    let records = pax(b'x', &[("SCHILY.acl.default", acl), ("SCHILY.acl.access", acl)]);
    let all = walk_bytes(ended([records, member("f", b'0', b"")].concat())).unwrap();
    assert!(all.entry("f").metadata.xattrs.is_empty());
    assert!(all.only_warning().contains("default ACL"));
}

#[test]
fn an_access_acl_decides_the_permission_bits() {
    // The header has 644, as libarchive writes it; the kernel would show the mask as the group's bits.
    let acl = b"user::rw-,user:7:rwx,group::r--,mask::rwx,other::---";
    let records = pax(b'x', &[("SCHILY.acl.access", acl)]);
    let all = walk_bytes(ended([records, member("f", b'0', b"")].concat())).unwrap();
    assert_eq!(all.entry("f").metadata.permissions, 0o670);
}

#[test]
fn refusals_say_where_what_and_what_to_do() {
    let good = member("good", b'0', b"hello");
    let then = |bad: Vec<u8>| ended([good.clone(), bad].concat());
    let record = |key: &str, value: &[u8]| [pax(b'x', &[(key, value)]), member("f", b'0', b"")].concat();
    let multi = member("part", b'M', b"rest");
    let mut torn = member("torn", b'0', b"");
    torn[3] ^= 1;
    let absurd = header("pax", b'x', (1 << 33) - 1);
    let long = member("././@LongLink", b'L', &[b'x'; 300]);
    let names = b"user::rw-,user:alice:rw-,group::r--,mask::rw-,other::r--";
    for (bytes, words) in [
        (
            then(torn),
            "test.tar: entry 2 at byte 1024: the header's checksum is wrong; the archive is damaged",
        ),
        (then(member("a/../b", b'0', b"")), "(a/../b): its name holds the component \"..\"; create"),
        (then([long, member("f", b'0', b"")].concat()), "has a component of 300 bytes; ext4 holds"),
        (then(member("", b'0', b"")), "entry 2 at byte 1024: it has no name"),
        (then(record("path", b"a\0b")), "path has the value \"a\\000b\""),
        (then(multi), "(part): it goes on from another volume"),
        (then(absurd), "it has extended header of 8589934591 bytes; the limit is"),
        (then(member(".", b'0', b"")), "(.): the root of the tree is not a directory"),
        (then(member("s", b'2', b"")), "(s): it is a symbolic link without a target"),
        (then(member("h", b'1', b"")), "(h): it is a hard link to \"\""),
        (then(record("mtime", b"soon")), "(f): the extended header's mtime has the value \"soon\""),
        (then(record("uid", b"4294967296")), "uid has the value"),
        (then(record("SCHILY.acl.access", names)), "the user \"alice\" without its number; names depend"),
        (then(record("GNU.sparse.major", b"1")), "sparse, but not how large"),
        (then(record("GNU.volume.offset", b"512")), "another volume"),
        (then(header_with(b"f", b'S', 0, |_| ())), "star's own sparse format"),
        (then(header_with(b"f", b'0', 0, |b| b[108..116].fill(b'9'))), "uid field is \"99999999\""),
        (
            [good.clone(), pax(b'x', &[("mtime", b"1")])].concat(),
            "the archive ends behind an extended header",
        ),
        (b"BZh91AY&SY".to_vec(), "it is packed by bzip2, which is not supported; unpack it first"),
        (vec![b'#'; 2000], "entry 1 at byte 0: this is not a tar archive; give"),
        (Vec::new(), "the archive has no bytes at all; see"),
    ] {
        let refusal = refusal(bytes);
        assert!(refusal.contains(words), "{refusal}\n  does not say\n{words}");
    }
}

#[test]
fn whatever_the_cut_it_is_noticed() {
    // Byte 0: header; 512: content; 1024: pax header; 1536: records; 2048: header; 2560 and 3072: content;
    // 3584: end mark.
    let records = pax(b'x', &[("SCHILY.xattr.user.a", b"value")]);
    let whole = ended([member("a", b'0', b"hello"), records, member("b", b'0', &[b'x'; 700])].concat());
    assert_eq!(whole.len(), 4608);
    let dir = tree();
    let archive = dir.path().join("a.tar");
    for cut in 1..whole.len() {
        let outcomes = [walk_bytes(whole[..cut].to_vec()), {
            fs::write(&archive, &whole[..cut]).unwrap();
            walk(TarInput::Path(archive.clone()))
        }];
        for outcome in outcomes {
            match outcome {
                Err(fault) => {
                    let words = fault.to_string();
                    let plain =
                        words.contains("the archive ends") || words.contains("this is not a tar archive");
                    assert!(plain && cut < 3584, "{cut}: {words}");
                }
                // Complete except for zeros: the content is complete; padding or the end mark is cut.
                Ok(all) if cut < 3584 + 512 => {
                    assert_eq!(all.warnings.len(), 1, "{cut}");
                    assert!((517..=1024).contains(&cut) || cut >= 2560 + 700, "{cut}");
                }
                Ok(all) => assert!(all.entries.len() == 2, "{cut}"),
            }
        }
    }
    for compression in PACKERS {
        let whole = packed(&whole, compression);
        for cut in 1..whole.len() {
            let outcome = walk_bytes(whole[..cut].to_vec());
            assert!(outcome.is_err(), "{} cut at {cut} of {}", compression.name(), whole.len());
        }
    }
}

#[test]
fn damage_in_packed_data_is_the_archives_fault() {
    let content: Vec<u8> = (0..200_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let whole = ended([member("first", b'0', b"x"), member("large", b'0', &content)].concat());
    for compression in PACKERS {
        let mut bytes = packed(&whole, compression);
        let middle = bytes.len() / 2;
        bytes[middle..middle + 50].fill(0x55);
        let words = refusal(bytes);
        let name = compression.name();
        assert!(words.starts_with(&format!("test.tar (unpacked by {name}): entry ")), "{words}");
        assert!(words.contains(&format!("the {name} data cannot be unpacked")), "{words}");
    }
}

#[test]
fn what_follows_the_end_mark_is_ignored() {
    let whole = ended(member("f", b'0', b"x"));
    let all = walk_bytes([whole.clone(), vec![b'#'; 3000]].concat()).unwrap();
    assert!(all.entries.len() == 1 && all.warnings.is_empty());
    let gzip = packed(&whole, Compression::Gzip);
    // Zeros after gzip data are padding of tapes; other bytes are not.
    assert!(walk_bytes([gzip.clone(), vec![0; 700]].concat()).is_ok());
    assert!(walk_bytes([gzip, b"rubbish".to_vec()].concat()).is_err());
}

#[test]
fn a_lone_zero_block_ends_the_archive_with_a_warning() {
    let bytes = [member("f", b'0', b"x"), vec![0; 512], member("lost", b'0', b"y")].concat();
    let all = walk_bytes(ended(bytes)).unwrap();
    assert_eq!(all.entries.len(), 1);
    assert!(all.only_warning().contains("a single block of zeros"));
}

#[test]
fn a_header_that_promises_much_costs_nothing() {
    // 8 EiB of content and a map of four million runs, in archives of a few blocks.
    let huge = header_with(b"huge", b'0', 0, |block| {
        block[124..136].copy_from_slice(b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff");
    });
    assert!(refusal(huge).contains("in the middle of its 9223372036854775807 bytes"));
    let records =
        [("GNU.sparse.major", &b"1"[..]), ("GNU.sparse.minor", b"0"), ("GNU.sparse.realsize", b"1")];
    let sparse = [pax(b'x', &records), member("f", b'0', b"4000000\n0\n1\n")].concat();
    assert!(refusal(sparse).contains("sparse map"));
}

/// An archive with every construct, for tests that change its bytes.
fn sample() -> Vec<u8> {
    let sparse_1_0 = [
        ("GNU.sparse.major", &b"1"[..]),
        ("GNU.sparse.minor", b"0"),
        ("GNU.sparse.realsize", b"9000"),
        ("GNU.sparse.name", b"sparse"),
    ];
    let old_sparse = header_with(b"old", b'S', 5, |block| {
        block[257..265].copy_from_slice(b"ustar  \0");
        block[386..410].copy_from_slice(b"00000000000\x0000000000002\0");
        block[482] = 1;
        block[483..495].copy_from_slice(b"00000010000\0");
    });
    let mut extension = vec![0; 512];
    extension[..24].copy_from_slice(b"00000001000\x0000000000003\0");
    ended(
        [
            pax(b'g', &[("comment", b"words"), ("mtime", b"7.25")]),
            pax(
                b'x',
                &[("SCHILY.xattr.user.a", b"v"), ("LIBARCHIVE.xattr.user.b", b"AAE"), ("mtime", b"-1.5")],
            ),
            member("a", b'0', b"hello"),
            pax(b'x', &sparse_1_0),
            member("made-up", b'0', &[padded(b"2\n0\n2\n4096\n3\n"), b"xxyyy".to_vec()].concat()),
            pax(b'x', &[("GNU.sparse.size", b"900"), ("GNU.sparse.map", b"0,2,800,3")]),
            member("sparse-0.1", b'0', b"xxyyy"),
            old_sparse,
            extension,
            padded(b"xxyyy"),
            member("././@LongLink", b'L', &[b"long/".repeat(40), b"name\0".to_vec()].concat()),
            member("long", b'2', b""),
            pax(b'x', &[("SCHILY.acl.access", b"user::rwx,user:7:r-x,group::r--,mask::r-x,other::---")]),
            header_with(b"link", b'1', 5, |block| block[157] = b'a'),
            padded(b"hello"),
            header("dir", b'5', 0),
        ]
        .concat(),
    )
}

#[test]
fn the_sample_itself_is_good() {
    let mut bytes = sample();
    // The symbolic link needs a target to be valid.
    let at = bytes.windows(5).position(|w| w == b"long\0").unwrap();
    bytes.splice(at..at + 512, header_with(b"long", b'2', 0, |block| block[157] = b't'));
    let all = walk_bytes(bytes).unwrap();
    assert_eq!(all.entries.len(), 7, "{:?}", all.entries.iter().map(|e| &e.path).collect::<Vec<_>>());
    let sparse = content(&all.entry("sparse").kind);
    assert!(sparse.len() == 9000 && &sparse[..2] == b"xx" && &sparse[4096..4099] == b"yyy");
    assert_eq!(content(&all.entry("old").kind)[512..515], *b"yyy");
    assert_eq!(content(&all.entry("sparse-0.1").kind)[800..803], *b"yyy");
    assert_eq!(all.entry("a").metadata.mtime, Time { seconds: -2, nanos: 500_000_000 });
    assert_eq!(all.entry("dir").metadata.mtime, Time { seconds: 7, nanos: 250_000_000 });
}

/// Recomputes the checksum of every changed header, so that the changes reach the code after the check.
fn resealed(bytes: &mut [u8]) {
    for block in bytes.as_chunks_mut::<512>().0 {
        if &block[257..262] == b"ustar" {
            block[148..156].fill(b' ');
            let sum: u32 = block.iter().map(|&b| u32::from(b)).sum();
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }
}

/// Both inputs give the same result for the same bytes.
fn assert_inputs_agree(bytes: &[u8]) {
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("a.tar");
    fs::write(&archive, bytes).unwrap();
    let by_file = walk(TarInput::Path(archive));
    let by_stream = walk_bytes(bytes.to_vec());
    match (by_file, by_stream) {
        (Ok(file), Ok(stream)) => {
            assert_eq!(file.entries.len(), stream.entries.len());
            for (a, b) in file.entries.iter().zip(&stream.entries) {
                assert_eq!((&a.path, &a.metadata), (&b.path, &b.metadata));
                if let Kind::File { size, .. } = a.kind
                    && size < 1 << 20
                {
                    assert_eq!(content(&a.kind), content(&b.kind));
                }
            }
        }
        (Err(_), Err(_)) => {}
        (file, stream) => panic!("file {:?}, stream {:?}", file.err(), stream.err()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_bytes_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
        reseal in prop::bool::weighted(0.8),
    ) {
        let mut bytes = sample();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if reseal {
            resealed(&mut bytes);
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        assert_inputs_agree(&bytes);
    }

    #[test]
    fn rubbish_behind_a_magic_number_never_panics(
        magic in prop::sample::select(vec![
            &b""[..], b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18", b"\xfd7zXZ\0",
        ]),
        rest in prop::collection::vec(any::<u8>(), 0..2000),
    ) {
        let _ = walk_bytes([magic, &rest].concat());
    }

    #[test]
    fn changed_packed_bytes_never_panic(
        packer in prop::sample::select(PACKERS.to_vec()),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = packed(&sample(), packer);
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let _ = walk_bytes(bytes);
    }
}
