//! A mix like a mail server's: many files, mostly reads, and fsync after each write.
//!
//! ```text
//! of 16 operations   4 read        ten blocks of a file, at random offsets
//!                    4 read all    a whole file
//!                    4 write       ten blocks of a file, at random offsets; fsync
//!                    1 create      a file of 4 KiB to 1 MiB; fsync
//!                    1 append      40 KiB; fsync
//!                    1 delete, 1 meta (a directory is created and removed)
//! ```
//!
//! The files do not fit into the caches, so most reads go to the device.
//!
//! Source: the linux-ext4 series "ext4: Coordinate data-only flush requests sent by fsync" v6, 2010: its ffsb
//! profile `fsync_happy`.

use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use extant_base::Ino;
use extant_volume::{Fault, New, Refusal, Volume};

use super::Done;

/// Files at the start.
const FILES: u64 = 200;
/// Smallest and largest file size, in bytes.
const SIZES: (u64, u64) = (4 << 10, 1 << 20);
/// Bytes per read or write; at random offsets, they are done block by block.
const SIZE: usize = 40_960;
const BLOCK: usize = 4096;
/// Memory for caches, in bytes: less than the files' total.
pub(super) const CACHE_BYTES: usize = 48 << 20;
/// Size of the device, in bytes.
pub(super) const DEVICE_BYTES: u64 = 512 << 20;

/// The existing files.
pub(super) struct Mix<'a> {
    volume: &'a Volume,
    root: Ino,
    files: RwLock<Vec<(u64, Ino)>>,
    next: AtomicU64,
}

/// A random sequence; each thread has its own.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        extant_base::salted::spread(self.0) % end.max(1)
    }
}

fn name_of(number: u64) -> Vec<u8> {
    format!("file-{number}").into_bytes()
}

/// Creates the initial files.
pub(super) fn populate(volume: &Volume, seed: u64) -> Result<(), Fault> {
    let root = volume.root()?.ino();
    let mut random = Random(seed);
    for number in 0..FILES {
        let ino = volume.create_number(root, &name_of(number), &New::file(0o644))?;
        let size = SIZES.0 + random.below(SIZES.1 - SIZES.0);
        volume.write_at(ino, 0, &vec![number as u8; size as usize])?;
    }
    volume.sync()
}

impl<'a> Mix<'a> {
    /// Starts with the files that [`populate`] created.
    pub(super) fn new(volume: &'a Volume) -> Result<Self, Fault> {
        let root = volume.root()?;
        let files = (0..FILES).map(|number| Ok((number, volume.lookup(&root, &name_of(number))?.ino())));
        let files = files.collect::<Result<Vec<_>, Fault>>()?;
        Ok(Self { volume, root: root.ino(), files: RwLock::new(files), next: AtomicU64::new(FILES) })
    }

    fn files(&self) -> std::sync::RwLockReadGuard<'_, Vec<(u64, Ino)>> {
        self.files.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn files_mut(&self) -> std::sync::RwLockWriteGuard<'_, Vec<(u64, Ino)>> {
        self.files.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The work of one thread.
    pub(super) fn work(&self, seed: u64, stop: &AtomicBool) -> Result<Done, String> {
        let (mut random, mut done) = (Random(seed), Done::default());
        let mut buf = vec![seed as u8; SIZE];
        while !stop.load(Ordering::Relaxed) {
            match self.operation(&mut random, &mut buf, &mut done) {
                Ok(()) => done.operations += 1,
                // Another thread deleted the file.
                Err(fault) if fault.is(Refusal::Stale) || fault.is(Refusal::NotFound) => {}
                Err(fault) => return Err(fault.to_string()),
            }
        }
        Ok(done)
    }

    fn operation(&self, random: &mut Random, buf: &mut [u8], done: &mut Done) -> Result<(), Fault> {
        let volume = self.volume;
        let (number, ino) = {
            let files = self.files();
            files[random.below(files.len() as u64) as usize]
        };
        let what = random.below(16);
        match what {
            0..=3 | 8..=11 => {
                let blocks = volume.inode(ino)?.size().div_ceil(BLOCK as u64);
                for _ in 0..SIZE / BLOCK {
                    let at = random.below(blocks) * BLOCK as u64;
                    match what {
                        0..=3 => volume.read_at(ino, at, &mut buf[..BLOCK])?,
                        _ => volume.write_at(ino, at, &buf[..BLOCK])?,
                    };
                }
            }
            4..=7 => {
                let mut at = 0;
                loop {
                    let got = volume.read_at(ino, at, buf)?;
                    at += got as u64;
                    if got < buf.len() {
                        break;
                    }
                }
            }
            12 => {
                let number = self.next.fetch_add(1, Ordering::Relaxed);
                let ino = volume.create_number(self.root, &name_of(number), &New::file(0o644))?;
                let size = SIZES.0 + random.below(SIZES.1 - SIZES.0);
                for at in (0..size).step_by(SIZE) {
                    volume.write_at(ino, at, &buf[..SIZE.min((size - at) as usize)])?;
                }
                self.sync(ino, done)?;
                self.files_mut().push((number, ino));
                return Ok(());
            }
            13 => {
                let size = volume.inode(ino)?.size();
                volume.write_at(ino, size, buf)?;
            }
            14 => {
                let mut files = self.files_mut();
                // Some files stay, so that reads have a target.
                if files.len() as u64 > FILES / 2
                    && let Some(at) = files.iter().position(|(n, _)| *n == number)
                {
                    files.swap_remove(at);
                    drop(files);
                    volume.unlink(self.root, &name_of(number))?;
                }
            }
            _ => {
                let name = format!("dir-{}", self.next.fetch_add(1, Ordering::Relaxed)).into_bytes();
                volume.create_number(self.root, &name, &New::directory(0o755))?;
                volume.rmdir(self.root, &name)?;
            }
        }
        if matches!(what, 8..=11 | 13) { self.sync(ino, done) } else { Ok(()) }
    }

    fn sync(&self, ino: Ino, done: &mut Done) -> Result<(), Fault> {
        let asked = Instant::now();
        self.volume.fsync(ino)?;
        done.waits.push(asked.elapsed());
        Ok(())
    }
}
