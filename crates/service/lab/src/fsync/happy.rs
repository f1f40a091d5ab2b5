//! A mix like a mail server's: many files, mostly reads, and fsync after each write.
//!
//! ```text
//! of 16 operations   4 read        a block of a file, at a random offset
//!                    4 read all    a whole file
//!                    4 write       a block of a file, at a random offset; fsync
//!                    1 create      a file of 4 to 64 KiB; fsync
//!                    1 append      4 KiB; fsync
//!                    1 delete, 1 meta (a directory is created and removed)
//! ```
//!
//! The posting gives neither the sizes of its profile nor the weights. These are chosen so that flushes
//! cost on modelled disks about what they cost in the posting, 25 to 30 % without coordination. With larger
//! writes the medium is the bottleneck, and a flush, which only waits for the medium, costs less: ten
//! blocks, and files of up to 1 MiB, made it 8 to 17 %.
//!
//! The n-th operation of a seed is the same in every run. So two runs of the same number of operations do the
//! same work, and the times of two modes can be compared.
//!
//! Source: the linux-ext4 series "ext4: Coordinate data-only flush requests sent by fsync" v6, 2010, which
//! names the ffsb profile `fsync_happy`.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use extant_base::{Ino, salted};
use extant_volume::{Fault, New, Refusal, Volume};

use super::Done;

/// Files at the start.
const FILES: u64 = 1600;
/// Smallest and largest file size, in bytes.
const SIZES: (u64, u64) = (4 << 10, 64 << 10);
/// Bytes per call where a whole file is read or written.
const SIZE: usize = 40_960;
/// Bytes of a read or write at a random offset, and of an append.
const BLOCK: usize = 4096;
/// Memory for caches, in bytes: about as much as the files have.
pub(crate) const CACHE_BYTES: usize = 48 << 20;
/// Size of the device, in bytes.
pub(crate) const DEVICE_BYTES: u64 = 512 << 20;

/// The mix in words.
pub(crate) fn describe() -> String {
    let kib = |bytes: u64| bytes >> 10;
    let (block, cache, device) = (kib(BLOCK as u64), CACHE_BYTES >> 20, DEVICE_BYTES >> 20);
    format!(
        "{FILES} files of {} to {} KiB; of 16 operations, 4 read {block} KiB, 4 read a whole file, 4 write \
         {block} KiB, 1 creates a file, 1 appends {block} KiB, 1 deletes a file, 1 creates and removes a \
         directory; an fsync after each of the 6 that write data; {cache} MiB of cache, device of {device} \
         MiB",
        kib(SIZES.0),
        kib(SIZES.1)
    )
}

/// Why an operation was not done.
pub(super) enum Missed {
    /// Another thread deleted the file.
    Gone,
    /// It failed.
    Failed(String),
}

impl From<Fault> for Missed {
    fn from(fault: Fault) -> Self {
        // The number of a deleted file may be that of a directory by now.
        match [Refusal::Stale, Refusal::NotFound, Refusal::IsDirectory].iter().any(|is| fault.is(*is)) {
            true => Self::Gone,
            false => Self::Failed(fault.to_string()),
        }
    }
}

impl From<io::Error> for Missed {
    fn from(fault: io::Error) -> Self {
        match fault.kind() {
            io::ErrorKind::NotFound => Self::Gone,
            _ => Self::Failed(fault.to_string()),
        }
    }
}

/// Where the mix runs.
pub(super) trait Place: Sync {
    /// An open file.
    type Open: Clone + Send + Sync;

    fn create(&self, name: &str) -> Result<Self::Open, Missed>;
    fn size(&self, file: &Self::Open) -> Result<u64, Missed>;
    fn read_at(&self, file: &Self::Open, at: u64, buf: &mut [u8]) -> Result<usize, Missed>;
    fn write_at(&self, file: &Self::Open, at: u64, bytes: &[u8]) -> Result<(), Missed>;
    fn fsync(&self, file: &Self::Open) -> Result<(), Missed>;
    fn unlink(&self, name: &str) -> Result<(), Missed>;
    /// Creates a directory and removes it.
    fn meta(&self, name: &str) -> Result<(), Missed>;
}

/// The engine, in process.
pub(super) struct InVolume<'a> {
    volume: &'a Volume,
    root: Ino,
}

impl<'a> InVolume<'a> {
    pub(super) fn new(volume: &'a Volume) -> Result<Self, Missed> {
        let root = volume.root()?.ino();
        Ok(Self { volume, root })
    }
}

impl Place for InVolume<'_> {
    type Open = Ino;

    fn create(&self, name: &str) -> Result<Ino, Missed> {
        Ok(self.volume.names().create_number(self.root, name.as_bytes(), &New::file(0o644))?)
    }

    fn size(&self, file: &Ino) -> Result<u64, Missed> {
        Ok(self.volume.inode(*file)?.size())
    }

    fn read_at(&self, file: &Ino, at: u64, buf: &mut [u8]) -> Result<usize, Missed> {
        Ok(self.volume.files().read_at(*file, at, buf)?)
    }

    fn write_at(&self, file: &Ino, at: u64, bytes: &[u8]) -> Result<(), Missed> {
        self.volume.files().write_at(*file, at, bytes)?;
        Ok(())
    }

    fn fsync(&self, file: &Ino) -> Result<(), Missed> {
        Ok(self.volume.files().fsync(*file)?)
    }

    fn unlink(&self, name: &str) -> Result<(), Missed> {
        self.volume.names().unlink(self.root, name.as_bytes())?;
        Ok(())
    }

    fn meta(&self, name: &str) -> Result<(), Missed> {
        self.volume.names().create_number(self.root, name.as_bytes(), &New::directory(0o755))?;
        self.volume.names().rmdir(self.root, name.as_bytes())?;
        Ok(())
    }
}

/// A new directory of a mounted file system, through system calls. It is removed with its files at the end.
pub(super) struct InFolder {
    folder: PathBuf,
}

impl InFolder {
    pub(super) fn new(parent: &std::path::Path) -> io::Result<Self> {
        let folder = parent.join(format!("extant-fsync-happy-{}", std::process::id()));
        std::fs::create_dir(&folder)?;
        Ok(Self { folder })
    }
}

impl Drop for InFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Place for InFolder {
    type Open = Arc<std::fs::File>;

    fn create(&self, name: &str) -> Result<Self::Open, Missed> {
        let options = std::fs::File::options().read(true).write(true).create_new(true).clone();
        Ok(Arc::new(options.open(self.folder.join(name))?))
    }

    fn size(&self, file: &Self::Open) -> Result<u64, Missed> {
        Ok(file.metadata()?.len())
    }

    fn read_at(&self, file: &Self::Open, at: u64, buf: &mut [u8]) -> Result<usize, Missed> {
        Ok(FileExt::read_at(&**file, buf, at)?)
    }

    fn write_at(&self, file: &Self::Open, at: u64, bytes: &[u8]) -> Result<(), Missed> {
        Ok(file.write_all_at(bytes, at)?)
    }

    fn fsync(&self, file: &Self::Open) -> Result<(), Missed> {
        Ok(file.sync_all()?)
    }

    fn unlink(&self, name: &str) -> Result<(), Missed> {
        Ok(std::fs::remove_file(self.folder.join(name))?)
    }

    fn meta(&self, name: &str) -> Result<(), Missed> {
        let folder = self.folder.join(name);
        std::fs::create_dir(&folder)?;
        Ok(std::fs::remove_dir(&folder)?)
    }
}

/// When threads stop.
pub(super) enum Until<'a> {
    /// When this is set.
    Stopped(&'a AtomicBool),
    /// When all threads together have begun this many operations.
    Operations(u64),
}

/// The existing files.
pub(super) struct Mix<P: Place> {
    place: P,
    /// Whether fsync is called.
    syncs: bool,
    seed: u64,
    files: RwLock<Vec<(u64, P::Open)>>,
    /// Number of the next new name.
    next: AtomicU64,
    /// Number of the next operation.
    operation: AtomicU64,
}

/// A random sequence.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        salted::spread(self.0) % end.max(1)
    }
}

fn name_of(number: u64) -> String {
    format!("file-{number}")
}

fn text(missed: Missed) -> String {
    match missed {
        Missed::Gone => "a file is gone".to_owned(),
        Missed::Failed(why) => why,
    }
}

/// Creates the initial files.
pub(super) fn populate<P: Place>(place: &P, seed: u64) -> Result<Vec<(u64, P::Open)>, String> {
    let mut random = Random(seed);
    let mut files = Vec::new();
    for number in 0..FILES {
        let file = place.create(&name_of(number)).map_err(text)?;
        let size = SIZES.0 + random.below(SIZES.1 - SIZES.0);
        place.write_at(&file, 0, &vec![number as u8; size as usize]).map_err(text)?;
        files.push((number, file));
    }
    Ok(files)
}

/// The initial files of a volume that [`populate`] filled.
pub(super) fn files_of(volume: &Volume) -> Result<Vec<(u64, Ino)>, Fault> {
    let root = volume.root()?;
    (0..FILES)
        .map(|number| Ok((number, volume.names().lookup(&root, name_of(number).as_bytes())?.ino())))
        .collect()
}

impl<P: Place> Mix<P> {
    pub(super) fn new(place: P, syncs: bool, seed: u64, files: Vec<(u64, P::Open)>) -> Self {
        Self {
            place,
            syncs,
            seed,
            files: RwLock::new(files),
            next: AtomicU64::new(FILES),
            operation: AtomicU64::new(0),
        }
    }

    fn files(&self) -> std::sync::RwLockReadGuard<'_, Vec<(u64, P::Open)>> {
        self.files.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn files_mut(&self) -> std::sync::RwLockWriteGuard<'_, Vec<(u64, P::Open)>> {
        self.files.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The work of one thread. All threads take the next operation from one sequence.
    pub(super) fn work(&self, until: &Until<'_>) -> Result<Done, String> {
        let mut done = Done::default();
        let mut buf = vec![self.seed as u8; SIZE];
        loop {
            let number = self.operation.fetch_add(1, Ordering::Relaxed);
            let is_over = match until {
                Until::Stopped(stop) => stop.load(Ordering::Relaxed),
                Until::Operations(end) => number >= *end,
            };
            if is_over {
                return Ok(done);
            }
            let mut random = Random(salted::spread(self.seed ^ number << 20));
            match self.operation(&mut random, &mut buf) {
                Ok(wait) => {
                    done.operations += 1;
                    done.waits.extend(wait);
                }
                Err(Missed::Gone) => {}
                Err(Missed::Failed(why)) => return Err(why),
            }
        }
    }

    /// Runs an operation. Returns the duration of its fsync.
    fn operation(&self, random: &mut Random, buf: &mut [u8]) -> Result<Option<Duration>, Missed> {
        let place = &self.place;
        let (number, file) = {
            let files = self.files();
            files[random.below(files.len() as u64) as usize].clone()
        };
        let what = random.below(16);
        match what {
            0..=3 | 8..=11 => {
                let at = random.below(place.size(&file)?.div_ceil(BLOCK as u64)) * BLOCK as u64;
                match what {
                    0..=3 => place.read_at(&file, at, &mut buf[..BLOCK]).map(drop)?,
                    _ => place.write_at(&file, at, &buf[..BLOCK])?,
                }
            }
            4..=7 => {
                let mut at = 0;
                loop {
                    let got = place.read_at(&file, at, buf)?;
                    at += got as u64;
                    if got < buf.len() {
                        break;
                    }
                }
            }
            12 => {
                let number = self.next.fetch_add(1, Ordering::Relaxed);
                let file = place.create(&name_of(number))?;
                let size = SIZES.0 + random.below(SIZES.1 - SIZES.0);
                for at in (0..size).step_by(SIZE) {
                    place.write_at(&file, at, &buf[..SIZE.min((size - at) as usize)])?;
                }
                let wait = self.sync(&file)?;
                self.files_mut().push((number, file));
                return Ok(wait);
            }
            13 => place.write_at(&file, place.size(&file)?, &buf[..BLOCK])?,
            14 => {
                let mut files = self.files_mut();
                // Some files stay, so that reads have a target.
                if files.len() as u64 > FILES / 2
                    && let Some(at) = files.iter().position(|(n, _)| *n == number)
                {
                    files.swap_remove(at);
                    drop(files);
                    place.unlink(&name_of(number))?;
                }
            }
            _ => place.meta(&format!("dir-{}", self.next.fetch_add(1, Ordering::Relaxed)))?,
        }
        if matches!(what, 8..=11 | 13) { self.sync(&file) } else { Ok(None) }
    }

    /// Calls fsync, if this mix does. Returns its duration.
    fn sync(&self, file: &P::Open) -> Result<Option<Duration>, Missed> {
        if !self.syncs {
            return Ok(None);
        }
        let asked = Instant::now();
        self.place.fsync(file)?;
        Ok(Some(asked.elapsed()))
    }
}
