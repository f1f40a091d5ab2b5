//! A panic in the middle of an operation, a commit or a flush: a server catches it and continues to answer.
//! So a half-done change must not reach the image, no thread may wait forever for what the panicked thread
//! held, and synced changes must be there afterwards.

use crate::common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use extant_base::Ino;
use extant_device::FileDevice;
use extant_simdisk::{Effect, Faulty, Op, Rule};
use extant_volume::{Fault, New, OpenOptions, Rename, SetAttr, SetXattr, Volume, WriteOptions};

/// Makes an image with an indexed directory, files with several extents, an attribute block and a long link:
/// the operations below read these with a cold cache.
fn make(path: &Path) {
    extant_testkit::run(
        "mke2fs",
        ["-q", "-F", "-t", "ext4", "-b", "1024", "-N", "512", path.to_str().unwrap(), "8M"],
    );
    let volume = open(path, true).1;
    let dir = volume.names().create(Ino::ROOT, b"dir", &New::directory(0o755)).unwrap().ino();
    for n in 0..150 {
        volume
            .names()
            .create(dir, format!("a name of some length {n:03}").as_bytes(), &New::file(0o644))
            .unwrap();
    }
    for name in [&b"one"[..], b"two"] {
        let file = volume.names().create(Ino::ROOT, name, &New::file(0o644)).unwrap().ino();
        for at in 0..8 {
            volume.files().write_at(file, at * 3000, &[at as u8; 1024]).unwrap();
        }
        volume.attributes().set_xattr(file, b"user.large", &[7; 600], SetXattr::Create).unwrap();
    }
    volume.names().create(Ino::ROOT, b"link", &New::symlink(&[b'x'; 700])).unwrap();
    volume.close().unwrap();
}

fn open(path: &Path, no_threads: bool) -> (Arc<Faulty<FileDevice>>, Volume) {
    let disk = Arc::new(Faulty::new(FileDevice::open(path, true).unwrap()));
    let write = WriteOptions { no_committer: no_threads, ..WriteOptions::default() };
    let volume = Volume::open(disk.clone(), &OpenOptions { write, ..OpenOptions::default() }).unwrap();
    (disk, volume)
}

type Step = (&'static str, fn(&Volume) -> Result<(), Fault>);

fn ino(volume: &Volume, name: &[u8]) -> Result<Ino, Fault> {
    let root = volume.root()?;
    Ok(volume.names().lookup(&root, name)?.ino())
}

/// Each step fits into one transaction; some are `sync`.
const STEPS: &[Step] = &[
    ("create", |v| v.names().create(ino(v, b"dir")?, b"new", &New::file(0o644)).map(drop)),
    ("unlink", |v| v.names().unlink(ino(v, b"dir")?, b"a name of some length 077")),
    ("sync", |v| v.sync()),
    ("write", |v| v.files().write_at(ino(v, b"one")?, 500, &[9; 5000]).map(drop)),
    ("fsync", |v| v.files().fsync(ino(v, b"one")?)),
    ("rename", |v| {
        v.names().rename(
            (Ino::ROOT, b"link"),
            (ino(v, b"dir")?, b"a name of some length 003"),
            Rename::Replace,
        )
    }),
    ("xattr", |v| v.attributes().set_xattr(ino(v, b"two")?, b"user.large", &[8; 500], SetXattr::Replace)),
    ("truncate", |v| {
        let set = SetAttr { size: Some(4000), ..SetAttr::default() };
        v.attributes().set_attr(ino(v, b"two")?, &set).map(drop)
    }),
    ("mkdir", |v| v.names().create(Ino::ROOT, b"more", &New::directory(0o755)).map(drop)),
    ("sync", |v| v.sync()),
    ("rmdir", |v| v.names().rmdir(Ino::ROOT, b"more")),
];

/// The state that the steps change, as text.
fn state(volume: &Volume) -> String {
    use std::fmt::Write as _;
    let root = volume.root().unwrap();
    let mut names = common::names(volume, &root);
    names.sort();
    let mut text = String::new();
    for name in names {
        let inode = volume.names().lookup(&root, &name).unwrap();
        let _ = write!(text, "{} {} ", name.escape_ascii(), inode.size());
        if let Ok(value) = volume.attributes().xattr(&inode, b"user.large") {
            let _ = write!(text, "{}x{}", value[0], value.len());
        }
        if name == b"dir" {
            let mut inside = common::names(volume, &inode);
            inside.sort();
            let _ = write!(text, "{} {}", inside.len(), inside.concat().escape_ascii());
        }
        text.push('\n');
    }
    text
}

/// The states after 0, 1, 2, ... steps without failures.
fn states(image: &Path) -> Vec<String> {
    let (_, volume) = open(image, true);
    let mut states = vec![state(&volume)];
    for (_, step) in STEPS {
        step(&volume).unwrap();
        states.push(state(&volume));
    }
    states
}

/// Panics in the `nth` call of `op`, once, and checks the result. Returns `false` if there was no such call.
fn run(image: &Path, states: &[String], op: Op, nth: u64, no_threads: bool) -> bool {
    let (disk, volume) = open(image, no_threads);
    let armed = disk.arm(Rule::new(op, Effect::Panic).nth(nth));
    let (mut done, mut synced) = (0, 0);
    let mut failed = None;
    for (name, step) in STEPS {
        match catch_unwind(AssertUnwindSafe(|| step(&volume))) {
            Ok(Ok(())) => {
                done += 1;
                if *name == "sync" {
                    synced = done;
                }
                continue;
            }
            // One of the volume's own threads panicked and the journal is aborted. This step is the first to
            // see it.
            Ok(Err(fault)) => assert!(disk.hits(armed) > 0 && !no_threads, "{op:?} {nth}: {name}: {fault}"),
            Err(_) => volume.abort("a test caught a panic"),
        }
        failed = Some(*name);
        break;
    }
    if disk.hits(armed) == 0 {
        return false;
    }
    disk.disarm_all();
    let context = format!("{op:?} {nth}, in {failed:?}, {done} steps done, {synced} synced");
    // A thread may also panic after the last step.
    if failed.is_some() {
        let refused = volume.names().create(Ino::ROOT, b"after", &New::file(0o644)).unwrap_err();
        assert!(matches!(refused.errno(), 5 | 30), "{context}: {refused}");
        assert!(ino(&volume, b"dir").is_ok(), "{context}: reading goes on");
        assert!(volume.close().is_err(), "{context}");
    } else {
        let _ = volume.close();
    }

    // The state must be as after a power failure in that step.
    let (_, volume) = open(image, true);
    let found = state(&volume);
    volume.close().unwrap();
    let legal = &states[synced..=(done + 1).min(states.len() - 1)];
    assert!(legal.contains(&found), "{context}:\n{found}\nlegal: {legal:#?}");
    let checked = extant_testkit::command("e2fsck").arg("-fn").arg(image).output().unwrap();
    assert_eq!(checked.status.code(), Some(0), "{context}: {}", String::from_utf8_lossy(&checked.stdout));
    true
}

/// Panics in every call of the device, one after the other.
fn sweep(no_threads: bool) {
    let scratch = extant_testkit::scratch();
    let (image, copy) = (scratch.path().join("image"), scratch.path().join("copy"));
    make(&image);
    std::fs::copy(&image, &copy).unwrap();
    let states = states(&copy);
    // A hang is a failure, too.
    let (ended, end) = mpsc::channel();
    let work = std::thread::spawn(move || {
        let mut runs = [0; 3];
        for (op, runs) in [Op::Read, Op::Write, Op::Flush].into_iter().zip(&mut runs) {
            for nth in 1.. {
                std::fs::copy(&image, &copy).unwrap();
                if !run(&copy, &states, op, nth, no_threads) {
                    break;
                }
                *runs += 1;
                let _ = ended.send(());
            }
        }
        runs
    });
    loop {
        match end.recv_timeout(Duration::from_secs(120)) {
            Ok(()) => {}
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("a run does not end"),
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    let runs: [u64; 3] = work.join().unwrap();
    println!("panics in {runs:?} reads, writes, flushes");
    assert!(runs.iter().all(|runs| *runs > 1), "{runs:?}");
}

#[test]
fn a_panic_anywhere_ends_the_journal_and_leaves_what_was_synced() {
    sweep(true);
}

/// With the threads that commit and write back: they panic, too, and no thread may wait for them forever.
#[test]
fn a_panic_in_a_thread_of_the_volume_leaves_nothing_waiting() {
    sweep(false);
}
