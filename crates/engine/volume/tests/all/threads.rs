//! Many threads change one volume concurrently; then e2fsck runs.
//!
//! Environment: `EXTANT_SECONDS=600` runs longer.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use extant_base::Ino;
use extant_device::FileDevice;
use extant_testkit::trees::Random;
use extant_volume::{
    Fault, Follow, New, OpenOptions, OrphanMode, Refusal, Rename, SetAttr, SetXattr, Volume, WriteOptions,
};

const THREADS: u64 = 8;
/// No answer for this long means a deadlock.
const STUCK: Duration = Duration::from_secs(60);

/// Refusals that are possible while other threads change the same names.
const EXPECTED: &[Refusal] = &[
    Refusal::NotFound,
    Refusal::Exists,
    Refusal::NotEmpty,
    Refusal::NotDirectory,
    Refusal::IsDirectory,
    Refusal::NotPermitted,
    Refusal::Invalid,
    Refusal::Stale,
    Refusal::NoAttribute,
    Refusal::NoSpace,
    Refusal::NoInodes,
    Refusal::WrongType,
    Refusal::Busy,
    Refusal::NotSupported,
];

fn seconds() -> u64 {
    std::env::var("EXTANT_SECONDS").ok().and_then(|value| value.parse().ok()).unwrap_or(4)
}

fn dir(volume: &Volume, random: &mut Random) -> Result<Ino, Fault> {
    let path = format!("/{}/{}", random.below(4), random.below(4));
    let depth = random.below(3) as usize;
    let path = path.split('/').take(depth + 1).collect::<Vec<_>>().join("/");
    Ok(volume.names().resolve(path.as_bytes(), Follow::NotTheLast)?.ino())
}

fn operate(volume: &Volume, random: &mut Random, open: &mut Vec<Ino>) -> Result<(), Fault> {
    let name = format!("{}", random.below(12));
    let name = name.as_bytes();
    let here = dir(volume, random)?;
    let find = |name: &[u8]| {
        volume.inode(here).and_then(|dir| volume.names().lookup(&dir, name)).map(|inode| inode.ino())
    };
    match random.below(18) {
        0..=3 => {
            let new = New { uid: random.below(40) as u32 * 256, ..New::file(0o644) };
            volume.names().create(here, name, &new).map(drop)
        }
        4 => volume.names().create(here, name, &New::directory(0o755)).map(drop),
        5 => volume.names().create(here, name, &New::symlink(&[b's'; 100])).map(drop),
        6..=7 => volume.names().unlink(here, name),
        8 => volume.names().rmdir(here, name),
        9..=10 => {
            let there = dir(volume, random)?;
            let other = format!("{}", random.below(12));
            let how = [Rename::Replace, Rename::NoReplace, Rename::Exchange][random.below(3) as usize];
            volume.names().rename((here, name), (there, other.as_bytes()), how)
        }
        11 => {
            let there = dir(volume, random)?;
            volume.names().link(find(name)?, there, format!("{}", random.below(12)).as_bytes())
        }
        12 => {
            let size = Some(random.below(1 << 20));
            volume.attributes().set_attr(find(name)?, &SetAttr { size, ..SetAttr::default() }).map(drop)
        }
        13 => {
            let gid = Some(random.below(100) as u32);
            volume
                .attributes()
                .set_attr(find(name)?, &SetAttr { mode: Some(0o600), gid, ..SetAttr::default() })
                .map(drop)
        }
        14 => {
            let value = vec![7; random.below(600) as usize];
            volume.attributes().set_xattr(find(name)?, b"user.a", &value, SetXattr::Any)
        }
        15 => {
            let ino = find(name)?;
            volume.opened(ino)?;
            open.push(ino);
            if open.len() > 3 {
                let at = random.below(open.len() as u64) as usize;
                volume.released(open.swap_remove(at))?;
            }
            Ok(())
        }
        16 => {
            let inode = volume.inode(here)?;
            let each = &mut |_: extant_volume::DirEntry<'_>| std::ops::ControlFlow::Continue(());
            volume
                .names()
                .read_dir(&inode, extant_volume::Cursor::START, each, &mut |fault| panic!("{fault}"))
        }
        _ if random.below(50) == 0 => volume.sync(),
        _ => find(name).map(drop),
    }
}

fn run(path: &Path, write: WriteOptions) {
    let device = Arc::new(FileDevice::open(path, true).unwrap());
    let volume = Volume::open(device, &OpenOptions { write, ..OpenOptions::default() }).unwrap();
    for i in 0..4 {
        let top = volume
            .names()
            .create(Ino::ROOT, format!("{i}").as_bytes(), &New::directory(0o755))
            .unwrap()
            .ino();
        for k in 0..4 {
            volume.names().create(top, format!("{k}").as_bytes(), &New::directory(0o755)).unwrap();
        }
    }
    let done = AtomicBool::new(false);
    let counts: Vec<AtomicU64> = (0..THREADS).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for (thread, count) in counts.iter().enumerate() {
            let (volume, done) = (&volume, &done);
            scope.spawn(move || {
                let mut random = Random::for_item(5, thread as u64);
                let mut open = Vec::new();
                while !done.load(Ordering::Relaxed) {
                    if let Err(fault) = operate(volume, &mut random, &mut open) {
                        assert!(EXPECTED.iter().any(|expected| fault.is(*expected)), "{fault:?}");
                    }
                    count.fetch_add(1, Ordering::Relaxed);
                }
                for ino in open {
                    volume.released(ino).unwrap();
                }
            });
        }
        let until = Instant::now() + Duration::from_secs(seconds());
        let mut before: Vec<(u64, Instant)> = counts.iter().map(|_| (0, Instant::now())).collect();
        while Instant::now() < until && !done.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(50));
            for (thread, (count, known)) in counts.iter().zip(&mut before).enumerate() {
                let now = count.load(Ordering::Relaxed);
                if now != known.0 {
                    *known = (now, Instant::now());
                }
                if known.1.elapsed() > STUCK {
                    eprintln!("thread {thread} is stuck after {now} operations");
                    std::process::abort();
                }
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    let all: u64 = counts.iter().map(|count| count.load(Ordering::Relaxed)).sum();
    println!("{all} operations, {:?}", volume.counters().journal_stats().unwrap());
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(path);
}

#[test]
fn eight_threads_of_mixed_operations() {
    for (mode, features) in [(OrphanMode::File, "orphan_file,quota"), (OrphanMode::ListV3, "^orphan_file")] {
        let scratch = extant_testkit::scratch();
        let path = scratch.path().join("image");
        let name = path.to_str().unwrap();
        extant_testkit::run("mke2fs", ["-q", "-F", "-t", "ext4", "-b", "1024", "-O", features, name, "64M"]);
        run(&path, WriteOptions { orphans: mode, track_all_orphans: true, ..WriteOptions::default() });
    }
}

/// A thread that holds a removed link must not read what reuses its block, nor damage it.
#[test]
fn a_removed_link_is_not_read_from_a_block_that_is_used_again() {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    extant_testkit::run("mke2fs", ["-q", "-F", "-t", "ext4", "-b", "1024", path.to_str().unwrap(), "4M"]);
    let open = || {
        let device = Arc::new(FileDevice::open(&path, true).unwrap());
        let write = WriteOptions { no_committer: true, ..WriteOptions::default() };
        Volume::open(device, &OpenOptions { write, ..OpenOptions::default() }).unwrap()
    };
    let volume = open();
    let root = volume.root().unwrap();
    let links: Vec<_> = (0..50)
        .map(|n| {
            let name = format!("link{n}");
            volume.names().create(Ino::ROOT, name.as_bytes(), &New::symlink(&[b's'; 100])).unwrap();
            let link = volume.names().lookup(&root, name.as_bytes()).unwrap();
            volume.names().unlink(Ino::ROOT, name.as_bytes()).unwrap();
            link
        })
        .collect();
    volume.sync().unwrap();
    // As many as there is room for, so that each freed block is in use again.
    let mut dirs = 0;
    while volume.names().create(Ino::ROOT, format!("dir{dirs}").as_bytes(), &New::directory(0o755)).is_ok() {
        dirs += 1;
    }
    for link in &links {
        let fault = volume.files().read_link(link).unwrap_err();
        assert!(fault.is(Refusal::Stale) || fault.is(Refusal::WrongType), "{fault}");
    }
    for n in 0..dirs {
        let dir = volume.names().lookup(&volume.root().unwrap(), format!("dir{n}").as_bytes()).unwrap();
        assert!(volume.names().lookup(&dir, b"..").is_ok(), "dir{n}");
    }
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
}

/// A thread that uses the number of a freed inode finds the new inode of that number only after it has its
/// name. If its name already exists, the new inode is dropped, and with it the changes that other threads
/// would have made.
#[test]
fn a_new_inode_is_met_only_when_it_has_its_name() {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    extant_testkit::run("mke2fs", ["-q", "-F", "-t", "ext4", path.to_str().unwrap(), "16M"]);
    let device = Arc::new(FileDevice::open(&path, true).unwrap());
    let volume =
        Volume::open(device, &OpenOptions { write: WriteOptions::default(), ..OpenOptions::default() })
            .unwrap();
    let dir = New::directory(0o755);
    let taken = volume.names().create(Ino::ROOT, b"taken", &dir).unwrap().ino();
    let there = volume.names().create(taken, b"there", &New::file(0o644)).unwrap().ino();
    let gone = volume.names().create(taken, b"gone", &dir).unwrap().ino();
    volume.names().rmdir(taken, b"gone").unwrap();
    let done = AtomicBool::new(false);
    let met = std::thread::scope(|scope| {
        scope.spawn(|| {
            let until = Instant::now() + Duration::from_secs(1);
            while Instant::now() < until {
                let made = volume.names().create(taken, b"there", &dir);
                assert!(made.is_err_and(|fault| fault.is(Refusal::Exists)));
            }
            done.store(true, Ordering::Relaxed);
        });
        let mut met = 0;
        while !done.load(Ordering::Relaxed) {
            met += u32::from(volume.names().create(gone, b"lost", &New::file(0o644)).is_ok());
            met += u32::from(volume.names().link(there, gone, b"lost too").is_ok());
            met += u32::from(
                volume
                    .attributes()
                    .set_attr(gone, &SetAttr { mode: Some(0o700), ..SetAttr::default() })
                    .is_ok(),
            );
        }
        met
    });
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
    assert_eq!(met, 0);
}
