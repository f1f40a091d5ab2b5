//! GNU tar unpacks our archives: everything that was archived is on the disk.

use std::ffi::OsStr;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use extant_tarout::{Begun, DataRun, Entry, Kind, TarWriter, Time, Xattr, encode, padding_bytes};

/// An entry with owned data, for writing and for comparison.
#[derive(Debug, Clone)]
struct Wanted {
    path: Vec<u8>,
    kind: What,
    mode: u16,
    owner: (u32, u32),
    mtime: Time,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

#[derive(Debug, Clone, PartialEq)]
enum What {
    File(Vec<u8>),
    /// Size, and the runs with their data.
    Sparse(u64, Vec<(u64, Vec<u8>)>),
    Directory,
    Symlink(Vec<u8>),
    HardLink(Vec<u8>),
    Char(u32, u32),
    Block(u32, u32),
    Fifo,
}

fn wanted(path: impl AsRef<[u8]>, kind: What) -> Wanted {
    let mtime = Time { seconds: 1_600_000_000, nanos: 0 };
    Wanted { path: path.as_ref().to_vec(), kind, mode: 0o640, owner: (0, 0), mtime, xattrs: vec![] }
}

/// `user::rw-, user:1234:rwx, group::r--, mask::rwx, other::---` in the kernel's format.
fn acl() -> Vec<u8> {
    let entries =
        [(1u16, 6u16, u32::MAX), (2, 7, 1234), (4, 4, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)];
    let mut bytes = vec![2, 0, 0, 0];
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn everything() -> Vec<Wanted> {
    let noise = |len: u32| (0..len).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect::<Vec<u8>>();
    let long = |n: usize| format!("dir/{}", "n".repeat(n));
    let deep: String = (0..60).map(|i| format!("level {i}/")).collect::<String>() + "end";
    let mut all = vec![
        Wanted { mode: 0o755, ..wanted("", What::Directory) },
        Wanted { mode: 0o1777, ..wanted("dir", What::Directory) },
        wanted("dir/empty", What::File(vec![])),
        wanted("dir/one block", What::File(noise(512))),
        wanted("dir/large", What::File(noise(3_000_000))),
        Wanted {
            mode: 0o4755,
            owner: (3_000_000, 4_000_000_000),
            ..wanted("dir/owned", What::File(noise(5)))
        },
        Wanted { mtime: Time { seconds: 1_700_000_000, nanos: 123_456_789 }, ..wanted("nanos", What::Fifo) },
        Wanted { mtime: Time { seconds: -2, nanos: 500_000_000 }, ..wanted("old", What::File(vec![])) },
        Wanted { mtime: Time { seconds: 9_000_000_000, nanos: 1 }, ..wanted("new", What::File(vec![])) },
        wanted("null", What::Char(1, 3)),
        wanted("disk", What::Block(259, 1_000_000)),
        wanted("link", What::Symlink(b"/some/where else".to_vec())),
        wanted("long link", What::Symlink("t/".repeat(1000).into_bytes())),
        wanted("odd link", What::Symlink([b"\xff/".repeat(90), b"\xfe".to_vec()].concat())),
        wanted("hard", What::HardLink(b"dir/large".to_vec())),
        wanted("\u{e4}\u{1f600}", What::File(b"utf-8".to_vec())),
        wanted(b"\xff\xfe raw", What::File(b"bytes".to_vec())),
        wanted([&b"\xff"[..], &[b'r'; 200]].concat(), What::File(b"long bytes".to_vec())),
        wanted(b"new\nline\\ \"and\" = %41", What::File(vec![1])),
        wanted(&deep, What::File(b"deep".to_vec())),
        wanted("holes", What::Sparse(40 << 30, vec![(8192, noise(4608)), (9 << 30, noise(4096))])),
        wanted("\u{e4} all hole", What::Sparse(1 << 20, vec![])),
        wanted("hole in front", What::Sparse(100_000 + 4096, vec![(100_000, noise(4096))])),
        wanted("many holes", What::Sparse(8192 * 2000, (0..2000).map(|i| (i * 8192, noise(4096))).collect())),
        wanted("odd runs", What::Sparse(70_000, vec![(0, noise(5000)), (60_000, noise(500))])),
        wanted("no real hole", What::Sparse(4600, vec![(0, noise(4096)), (4097, noise(503))])),
        wanted([&b"\xff holes"[..]].concat(), What::Sparse(1 << 20, vec![(4096, noise(10))])),
        Wanted {
            xattrs: vec![
                (b"user.a=b%41".to_vec(), b"x\0y\n=z".to_vec()),
                (b"user.empty".to_vec(), vec![]),
                (b"user.large".to_vec(), noise(2000)),
                (b"trusted.t".to_vec(), b"t".to_vec()),
                (b"security.capability".to_vec(), b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0".to_vec()),
            ],
            ..wanted("attributes", What::File(b"#!".to_vec()))
        },
        Wanted {
            mode: 0o670,
            xattrs: vec![(b"system.posix_acl_access".to_vec(), acl())],
            ..wanted("acl", What::File(vec![]))
        },
        Wanted {
            mode: 0o755,
            xattrs: vec![(b"system.posix_acl_default".to_vec(), acl())],
            ..wanted("acl dir", What::Directory)
        },
        wanted(b"\xff\xff last", What::HardLink(b"\xff\xfe raw".to_vec())),
    ];
    // Every length around the limits of name and prefix.
    all.extend((90..=106).chain(150..=162).map(|n| wanted(long(n), What::File(vec![b'x']))));
    all.extend(
        (95..=103).map(|n| wanted(format!("{}/{}", "p".repeat(155), "n".repeat(n)), What::File(vec![]))),
    );
    // In the order of a tree walk: a directory's members follow it, together.
    all.sort_by(|a, b| a.path.cmp(&b.path));
    all
}

fn archive(all: &[Wanted]) -> Vec<u8> {
    let mut tar = TarWriter::new(Vec::new());
    for one in all {
        let mut runs = Vec::new();
        let kind = match &one.kind {
            What::File(data) => Kind::File { size_bytes: data.len() as u64, runs: None },
            What::Sparse(size_bytes, data) => {
                let run = |(offset_bytes, data): &(u64, Vec<u8>)| DataRun {
                    offset_bytes: *offset_bytes,
                    len_bytes: data.len() as u64,
                };
                runs.extend(data.iter().map(run));
                Kind::File { size_bytes: *size_bytes, runs: Some(&runs) }
            }
            What::Directory => Kind::Directory,
            What::Symlink(target) => Kind::Symlink(target),
            What::HardLink(target) => Kind::HardLink(target),
            What::Char(major, minor) => Kind::CharDevice { major: *major, minor: *minor },
            What::Block(major, minor) => Kind::BlockDevice { major: *major, minor: *minor },
            What::Fifo => Kind::Fifo,
        };
        let xattrs: Vec<Xattr<'_>> = one.xattrs.iter().map(|(name, value)| Xattr { name, value }).collect();
        let (uid, gid) = one.owner;
        let entry = Entry {
            mode: one.mode,
            uid,
            gid,
            atime: Some(Time { seconds: 1, nanos: 2 }),
            ctime: Some(Time { seconds: 3, nanos: 0 }),
            xattrs: &xattrs,
            ..Entry::new(&one.path, kind, one.mtime)
        };
        match (tar.entry(&entry).unwrap(), &one.kind) {
            (Begun::Runs(_), What::Sparse(_, data)) => {
                data.iter().for_each(|(_, data)| tar.data(data).unwrap());
            }
            (Begun::Whole(_), What::Sparse(size, data)) => {
                let mut at = 0;
                for (offset, data) in data {
                    tar.zeros(offset - at).unwrap();
                    tar.data(data).unwrap();
                    at = offset + data.len() as u64;
                }
                tar.zeros(size - at).unwrap();
            }
            (_, What::File(data)) => tar.data(data).unwrap(),
            (begun, _) => assert_eq!(begun, Begun::Whole(0)),
        }
    }
    tar.finish().unwrap()
}

fn gnu_tar() -> Option<Command> {
    let version = Command::new("tar").arg("--version").output().ok()?;
    if !version.stdout.starts_with(b"tar (GNU tar)") {
        println!("skipped: tar is not GNU tar");
        return None;
    }
    let mut command = Command::new("tar");
    command.env("LC_ALL", "C");
    Some(command)
}

/// Unpacks with all of these options; returns what tar printed to standard error.
fn unpack(archive: &Path, dir: &Path, options: &[&str]) -> Option<String> {
    let mut tar = gnu_tar()?;
    let output = tar.arg("-xf").arg(archive).arg("-C").arg(dir).args(options).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    Some(errors)
}

fn place(dir: &Path, path: &[u8]) -> PathBuf {
    dir.join(OsStr::from_bytes(path))
}

fn xattr(path: &Path, name: &[u8]) -> Option<Vec<u8>> {
    let mut value = vec![0; 65536];
    let len = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value[..]).ok()?;
    value.truncate(len);
    Some(value)
}

/// A directory on a file system with attributes and ACLs, as root.
fn ground() -> Option<tempfile::TempDir> {
    let dir = tempfile::tempdir().unwrap();
    if !rustix::process::geteuid().is_root() {
        println!("skipped: not root");
        return None;
    }
    for (name, value) in [("user.x", &b"x"[..]), ("system.posix_acl_access", &acl())] {
        let flags = rustix::fs::XattrFlags::empty();
        if let Err(error) = rustix::fs::lsetxattr(dir.path(), name, value, flags) {
            println!("skipped: no extended attributes in {}: {name}: {error}", dir.path().display());
            return None;
        }
    }
    Some(tempfile::tempdir().unwrap())
}

#[track_caller]
fn compare(dir: &Path, one: &Wanted) {
    let path = place(dir, &one.path);
    let metadata = std::fs::symlink_metadata(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let kind = metadata.file_type();
    match &one.kind {
        What::File(data) => assert_eq!(std::fs::read(&path).unwrap(), *data, "{path:?}"),
        What::Sparse(size, runs) => {
            assert_eq!(metadata.len(), *size, "{path:?}");
            let file = std::fs::File::open(&path).unwrap();
            let stored: u64 = runs.iter().map(|(_, data)| data.len() as u64 + 8192).sum();
            assert!(metadata.blocks() * 512 <= stored + 131_072, "{path:?} has no holes");
            for (offset, data) in runs {
                let mut back = vec![0; data.len()];
                std::os::unix::fs::FileExt::read_exact_at(&file, &mut back, *offset).unwrap();
                assert!(back == *data, "{path:?} at {offset}");
            }
        }
        What::Directory => assert!(kind.is_dir()),
        What::Symlink(target) => {
            assert_eq!(std::fs::read_link(&path).unwrap().as_os_str().as_bytes(), target, "{path:?}");
        }
        What::HardLink(target) => {
            assert_eq!(metadata.ino(), std::fs::symlink_metadata(place(dir, target)).unwrap().ino());
            return;
        }
        What::Char(major, minor) | What::Block(major, minor) => {
            assert_eq!(kind.is_block_device(), matches!(one.kind, What::Block(..)));
            let device = metadata.rdev();
            assert_eq!((rustix::fs::major(device), rustix::fs::minor(device)), (*major, *minor));
        }
        What::Fifo => assert!(kind.is_fifo()),
    }
    assert_eq!((metadata.uid(), metadata.gid()), one.owner, "{path:?}");
    if !kind.is_symlink() {
        assert_eq!(metadata.mode() & 0o7777, u32::from(one.mode), "{path:?}");
    }
    let mtime = Time { seconds: metadata.mtime(), nanos: metadata.mtime_nsec() as u32 };
    assert_eq!(mtime, one.mtime, "{path:?}");
    for (name, value) in &one.xattrs {
        assert_eq!(xattr(&path, name).as_ref(), Some(value), "{path:?} {}", name.escape_ascii());
    }
}

#[test]
fn gnu_tar_restores_everything() {
    let all = everything();
    let bytes = archive(&all);
    assert!(bytes.len() < 40 << 20, "holes were stored");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &bytes).unwrap();
    let attributes = ["--xattrs", "--xattrs-include=*"];
    let sets = [vec!["--acls"], vec![]]
        .map(|more| [&["-p", "--numeric-owner", "--sparse"], &attributes[..], &more].concat());
    for options in sets {
        let Some(dir) = ground() else { return };
        let Some(errors) = unpack(file.path(), dir.path(), &options) else { return };
        let said: Vec<&str> = errors.lines().filter(|line| !line.contains("'hdrcharset'")).collect();
        // GNU tar itself warns about times in the far past or future.
        assert!(said.iter().all(|line| line.contains("time stamp")), "{said:?}");
        all.iter().for_each(|one| compare(dir.path(), one));
    }
}

#[test]
fn acls_come_back_without_attributes_being_asked_for() {
    let one = everything().into_iter().find(|one| one.path == b"acl").unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), archive(std::slice::from_ref(&one))).unwrap();
    let Some(dir) = ground() else { return };
    let Some(_) = unpack(file.path(), dir.path(), &["-p", "--acls"]) else { return };
    compare(dir.path(), &one);
}

#[test]
fn bsdtar_restores_content_and_attributes() {
    // bsdtar uses the name of an attribute unchanged, and counts fractions before 1970 in the wrong
    // direction.
    let restorable = |one: &Wanted| {
        let fraction_before_1970 = one.mtime.seconds < 0 && one.mtime.nanos != 0;
        !fraction_before_1970 && !one.xattrs.iter().any(|(name, _)| name.contains(&b'='))
    };
    let all: Vec<Wanted> = everything().into_iter().filter(restorable).collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), archive(&all)).unwrap();
    let Some(dir) = ground() else { return };
    let mut command = Command::new("bsdtar");
    command.env("LC_ALL", "C.UTF-8").arg("-xpf").arg(file.path()).arg("-C").arg(dir.path());
    let Ok(output) = command.args(["--numeric-owner", "--acls", "--xattrs"]).output() else {
        println!("skipped: not installed: bsdtar");
        return;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // bsdtar does not set the times of the directory that it unpacks into.
    all.iter().filter(|one| !one.path.is_empty()).for_each(|one| compare(dir.path(), one));
}

#[test]
fn the_same_entries_make_the_same_archive() {
    assert!(archive(&everything()) == archive(&everything()));
}

#[test]
fn a_file_of_more_than_8_gib_is_stepped_over_to_the_next_member() {
    let Some(mut tar) = gnu_tar() else { return };
    let size_bytes = (9 << 30) + 5;
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let mut headers = Vec::new();
    let time = Time { seconds: 0, nanos: 0 };
    encode(&Entry::new(b"huge", Kind::File { size_bytes, runs: None }, time), &mut headers).unwrap();
    file.write_all(&headers).unwrap();
    file.seek(SeekFrom::Current((size_bytes + padding_bytes(size_bytes) as u64) as i64)).unwrap();
    headers.clear();
    encode(&Entry::new(b"next", Kind::Fifo, time), &mut headers).unwrap();
    headers.resize(headers.len() + 10240, 0);
    file.write_all(&headers).unwrap();
    let output = tar.arg("-tvf").arg(file.path()).env("TZ", "UTC").output().unwrap();
    let list = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = list.lines().collect();
    assert!(lines.len() == 2 && lines[0].contains(" 9663676421 ") && lines[1].ends_with(" next"), "{list}");
}
