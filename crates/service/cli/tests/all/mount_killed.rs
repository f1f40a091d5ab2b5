//! `extant mount -o rw`, killed at random moments while writers work. After the next mount recovers, data
//! acknowledged as durable is there byte by byte. Other changes are absent, complete or partial. Stale disk
//! contents are never visible, and e2fsck finds no errors.
//!
//! `EXTANT_KILLS` sets the number of kills (4 in CI), `EXTANT_SEED` the seed. Needs /dev/fuse.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Result, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common::mounted::{Mount, has_ended, has_fuse, wait_until};
use extant_testkit::e2fsck_clean;
use rustix::process::{Signal, kill_process};

const KILLS_CI: u64 = 4;
/// Kills in the test of waits.
const ROUNDS_OF_WAITS: u32 = 2;
const WRITERS: u64 = 4;
/// Files per writer.
const FILES: u64 = 6;
const SIZE_MAX: u64 = 600_000;
/// Block sizes.
const BLOCKS: [usize; 2] = [1024, 4096];
/// Contents of the disk before mkfs; no file contains this byte.
const STALE: u8 = 0xA5;

/// Random numbers, reproducible by seed.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Bytes that are neither zero nor stale.
    fn bytes(&mut self, len: u64) -> Vec<u8> {
        (0..len).map(|_| (self.next() % 0x7F) as u8 + 1).collect()
    }
}

/// The request since the file was last known to be durable.
#[derive(Debug, Clone)]
enum Doing {
    Nothing,
    /// Writes of these bytes at these offsets.
    Writing(Vec<(u64, Vec<u8>)>),
    Cutting(u64),
    /// Replaces the name by another file with this content.
    Replacing(Vec<u8>),
    Removing,
}

/// A name, its durable contents, and the pending request.
#[derive(Debug, Clone)]
struct Slot {
    durable: Option<Vec<u8>>,
    doing: Doing,
}

impl Slot {
    /// Whether a crash may leave these contents.
    fn check(&self, found: Option<&[u8]>) -> std::result::Result<(), String> {
        let Some(found) = found else {
            let may_be_missing = self.durable.is_none() || matches!(self.doing, Doing::Removing);
            return if may_be_missing { Ok(()) } else { Err("is missing".to_owned()) };
        };
        let before = self.durable.as_deref().unwrap_or_default();
        if self.durable.is_some() && found == before {
            return Ok(());
        }
        match &self.doing {
            Doing::Nothing | Doing::Removing => Err(differs(before, found)),
            Doing::Replacing(content) if found == content => Ok(()),
            Doing::Replacing(_) => Err(format!("neither old nor new: {}", differs(before, found))),
            Doing::Cutting(to) => {
                let to = *to as usize;
                // The rest of the new last block is zeroed in place before the size changes, as in the
                // kernel.
                let is_edged = |block: usize| {
                    let mut edged = before.to_vec();
                    let edge = to.next_multiple_of(block).min(edged.len());
                    edged[to..edge].fill(0);
                    found == edged
                };
                match found == &before[..to] || BLOCKS.into_iter().any(is_edged) {
                    true => Ok(()),
                    false => Err(format!("neither whole nor cut at {to}: {}", differs(before, found))),
                }
            }
            Doing::Writing(pieces) => {
                let ends = pieces.iter().map(|(pos, bytes)| pos + bytes.len() as u64);
                let end = ends.max().unwrap_or(0).max(before.len() as u64);
                if found.len() < before.len() || found.len() as u64 > end {
                    return Err(format!("{} bytes of {} to {end}", found.len(), before.len()));
                }
                for (at, byte) in found.iter().enumerate() {
                    let written = |(pos, bytes): &(u64, Vec<u8>)| {
                        let within =
                            (at as u64).checked_sub(*pos).and_then(|within| bytes.get(within as usize));
                        within == Some(byte)
                    };
                    let was = before.get(at).copied().unwrap_or(0);
                    if *byte != was && !pieces.iter().any(written) {
                        return Err(format!("byte {at} is {byte:#x}, was {was:#x}"));
                    }
                }
                Ok(())
            }
        }
    }
}

fn differs(expected: &[u8], found: &[u8]) -> String {
    let place = expected.iter().zip(found).position(|(expected, found)| expected != found);
    format!("{} bytes instead of {}, the first difference at {place:?}", found.len(), expected.len())
}

/// A directory of files, and the known state of each.
struct Writer {
    dir: PathBuf,
    rng: Rng,
    slots: Vec<Slot>,
    acknowledged: u64,
}

impl Writer {
    fn path(&self, slot: usize) -> PathBuf {
        self.dir.join(format!("file-{slot}"))
    }

    /// Works until the server is killed.
    fn work(&mut self) {
        while self.step().is_ok() {}
    }

    /// Changes one file, and makes the change durable.
    fn step(&mut self) -> Result<()> {
        let at = self.rng.below(FILES) as usize;
        let choice = if self.slots[at].durable.is_some() { self.rng.below(10) } else { 0 };
        let after = match choice {
            0..=5 => self.write(at)?,
            6 => self.cut(at)?,
            7 | 8 => self.replace(at)?,
            _ => {
                self.slots[at].doing = Doing::Removing;
                std::fs::remove_file(self.path(at))?;
                self.sync_names()?;
                None
            }
        };
        self.slots[at] = Slot { durable: after, doing: Doing::Nothing };
        self.acknowledged += 1;
        Ok(())
    }

    fn sync_names(&self) -> Result<()> {
        File::open(&self.dir)?.sync_all()
    }

    fn write(&mut self, at: usize) -> Result<Option<Vec<u8>>> {
        let pieces = (0..=self.rng.below(4)).map(|_| {
            let pos = self.rng.below(SIZE_MAX / 2);
            let len =
                if self.rng.below(3) == 0 { self.rng.below(SIZE_MAX / 2) } else { self.rng.below(9000) } + 1;
            (pos, self.rng.bytes(len))
        });
        let pieces: Vec<_> = pieces.collect();
        let mut content = self.slots[at].durable.clone().unwrap_or_default();
        for (pos, bytes) in &pieces {
            let end = *pos as usize + bytes.len();
            content.resize(content.len().max(end), 0);
            content[*pos as usize..end].copy_from_slice(bytes);
        }
        self.slots[at].doing = Doing::Writing(pieces.clone());
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(self.path(at))?;
        for (pos, bytes) in &pieces {
            file.write_all_at(bytes, *pos)?;
        }
        if self.rng.below(2) == 0 {
            file.sync_all()?
        } else {
            file.sync_data()?
        }
        // fsync of a file also makes its new name durable, but POSIX requires an fsync of the directory, so
        // the test relies only on that.
        if self.slots[at].durable.is_none() {
            self.sync_names()?;
        }
        Ok(Some(content))
    }

    fn cut(&mut self, at: usize) -> Result<Option<Vec<u8>>> {
        let mut content = self.slots[at].durable.clone().unwrap_or_default();
        let to = self.rng.below(content.len() as u64 + 1);
        self.slots[at].doing = Doing::Cutting(to);
        let file = OpenOptions::new().write(true).open(self.path(at))?;
        file.set_len(to)?;
        file.sync_all()?;
        content.truncate(to as usize);
        Ok(Some(content))
    }

    fn replace(&mut self, at: usize) -> Result<Option<Vec<u8>>> {
        let len = self.rng.below(SIZE_MAX / 4);
        let content = self.rng.bytes(len);
        let new = self.dir.join(format!("new-{at}"));
        let mut file = File::create(&new)?;
        file.write_all(&content)?;
        // Without fsync, a program relies on the writeback before the rename (`auto_da_alloc`).
        if self.rng.below(2) == 0 {
            file.sync_all()?;
        }
        self.slots[at].doing = Doing::Replacing(content.clone());
        std::fs::rename(new, self.path(at))?;
        self.sync_names()?;
        Ok(Some(content))
    }

    /// Compares the files with their known states, and records the new states as durable.
    fn check(&mut self, story: &str) {
        for at in 0..self.slots.len() {
            let path = self.path(at);
            let found = match std::fs::read(&path) {
                Ok(content) => Some(content),
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                Err(error) => panic!("{story}: {}: {error}", path.display()),
            };
            if let Err(why) = self.slots[at].check(found.as_deref()) {
                panic!("{story}: {}: {why}", path.display());
            }
            // A file of an unfinished replacement.
            if let Ok(part) = std::fs::read(self.dir.join(format!("new-{at}"))) {
                assert!(!part.contains(&STALE), "{story}: new-{at} shows what stood on the disk");
            }
            self.slots[at] = Slot { durable: found, doing: Doing::Nothing };
        }
    }
}

/// A file system on a disk that was full of stale bytes.
fn stale_image(options: &[&str]) -> (tempfile::TempDir, PathBuf) {
    let dir = extant_testkit::scratch();
    let image = dir.path().join("killed.img");
    let piece = vec![STALE; 1 << 20];
    let mut file = File::create(&image).unwrap();
    for _ in 0..96 {
        file.write_all(&piece).unwrap();
    }
    let fixed = ["-q", "-F", "-t", "ext4", "-E", "nodiscard"];
    let args = fixed.iter().chain(options).map(std::ffi::OsStr::new);
    extant_testkit::run("mke2fs", args.chain([image.as_os_str()]));
    (dir, image)
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn killed_at_random_moments_it_keeps_what_it_promised() {
    if !has_fuse() {
        return;
    }
    let (kills, seed) = (number("EXTANT_KILLS", KILLS_CI), number("EXTANT_SEED", 1));
    let kinds: [&[&str]; 3] = [&["-O", "orphan_file"], &["-O", "^extent,^64bit"], &["-b", "1024"]];
    let mut rng = Rng(seed);
    let (mut acknowledged, mut replayed) = (0, 0);
    for (number, options) in kinds.iter().enumerate() {
        let here = (0..kills).filter(|kill| *kill % 3 == number as u64).count();
        if here == 0 {
            continue;
        }
        let (_dir, image) = stale_image(options);
        let mount = Mount::new(&image, &["--threads", "4"]);
        let mut writers: Vec<Writer> = Vec::new();
        for writer in 0..WRITERS {
            let dir = mount.path().join(format!("writer-{writer}"));
            std::fs::create_dir(&dir).unwrap();
            let slots = vec![Slot { durable: None, doing: Doing::Nothing }; FILES as usize];
            writers.push(Writer { dir, rng: Rng(rng.next()), slots, acknowledged: 0 });
        }
        File::open(mount.path()).unwrap().sync_all().unwrap();
        for round in 0..here {
            let server = mount.server();
            let moment = Duration::from_millis(rng.below(700) + 1);
            std::thread::scope(|scope| {
                for writer in &mut writers {
                    scope.spawn(|| writer.work());
                }
                std::thread::sleep(moment);
                kill_process(server, Signal::KILL).unwrap();
            });
            wait_until("the server ends", || has_ended(server));
            mount.unmount();
            let story = format!(
                "EXTANT_SEED={seed} EXTANT_KILLS={kills}, {options:?}, kill {round} after {moment:?}"
            );
            let outcome = mount.try_mount(&image, &["--threads", "4"]);
            outcome.code(0);
            replayed += u64::from(outcome.stderr.contains("journal was replayed"));
            writers.iter_mut().for_each(|writer| writer.check(&story));
            mount.unmount();
            e2fsck_clean(&image);
            mount.try_mount(&image, &["--threads", "4"]).code(0);
        }
        mount.unmount();
        acknowledged += writers.iter().map(|writer| writer.acknowledged).sum::<u64>();
    }
    println!("{kills} kills, {replayed} replays of a journal, {acknowledged} acknowledged changes");
    assert!(acknowledged > kills, "there was time to write");
}

/// A thread of the server that waits for dirty pages of its own mount cannot be killed, and keeps the
/// connection. The process beside the server has to end the wait, or all users of the mount hang.
#[test]
fn killed_while_it_waits_for_its_own_mount_it_ends() {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = stale_image(&[]);
    let mut waits = 0;
    for _ in 0..ROUNDS_OF_WAITS {
        let mount = Mount::new(&image, &["-o", "writeback_cache"]);
        let server = mount.server();
        let threads = format!("/proc/{}/task", server.as_raw_nonzero());
        let named = |thread: &Path| {
            std::fs::read_to_string(thread.join("comm")).is_ok_and(|name| name == "invalidate\n")
        };
        let thread =
            std::fs::read_dir(&threads).unwrap().map(|entry| entry.unwrap().path()).find(|path| named(path));
        let wait = thread.expect("the thread of invalidations").join("wchan");
        std::thread::scope(|scope| {
            let bytes = vec![7; 4 << 20];
            let (new, old) = (mount.path().join("new"), mount.path().join("old"));
            // A rename onto a file waits for the data of the new one, which is open.
            let replace = move || -> Result<()> {
                let mut file = File::create(&new)?;
                file.write_all(&bytes)?;
                std::fs::rename(&new, &old)
            };
            scope.spawn(move || while replace().is_ok() {});
            let end = Instant::now() + Duration::from_secs(2);
            while Instant::now() < end {
                if std::fs::read_to_string(&wait).is_ok_and(|place| place.starts_with("folio_wait")) {
                    waits += 1;
                    break;
                }
            }
            kill_process(server, Signal::KILL).unwrap();
        });
        wait_until("the server ends", || has_ended(server));
        mount.unmount();
    }
    // An ordinary user does not see where a thread waits.
    assert!(waits > 0 || !rustix::process::geteuid().is_root());
    e2fsck_clean(&{
        let mount = Mount::new(&image, &[]);
        mount.unmount();
        image
    });
}

#[test]
fn the_test_itself_finds_what_is_wrong() {
    let durable = Some(vec![1, 2, 3, 4]);
    let slot = |doing| Slot { durable: durable.clone(), doing };
    let writing = slot(Doing::Writing(vec![(2, vec![7, 7, 7])]));
    for fine in [&[1, 2, 3, 4][..], &[1, 2, 7, 4], &[1, 2, 7, 7, 7], &[1, 2, 3, 4, 0], &[1, 2, 3, 7]] {
        assert_eq!(writing.check(Some(fine)), Ok(()), "{fine:?}");
    }
    for wrong in [&[1, 2, 3][..], &[7, 2, 3, 4], &[1, 2, 3, 4, STALE], &[1, 2, 3, 4, 7, 7]] {
        assert!(writing.check(Some(wrong)).is_err(), "{wrong:?}");
    }
    assert!(writing.check(None).is_err());
    assert!(slot(Doing::Removing).check(None).is_ok());
    assert!(slot(Doing::Nothing).check(Some(&[1, 2, 3])).is_err());
    assert!(slot(Doing::Cutting(1)).check(Some(&[1])).is_ok());
    assert!(slot(Doing::Cutting(1)).check(Some(&[1, 0, 0, 0])).is_ok());
    assert!(slot(Doing::Cutting(1)).check(Some(&[1, 2])).is_err());
    assert!(slot(Doing::Cutting(1)).check(Some(&[0, 0, 0, 0])).is_err());
    assert!(slot(Doing::Replacing(vec![5; 9])).check(Some(&[5; 9])).is_ok());
    assert!(slot(Doing::Replacing(vec![5; 9])).check(Some(&[])).is_err());
}
