//! An external journal: power fails for both devices at any moment, and both extant and the kernel recover
//! the result.
//!
//! Environment: `EXTANT_CUTS=n` makes more cuts.

use crate::common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use extant_base::Ino;
use extant_device::{Device, DeviceFault};
use extant_journal::{Bug, Sabotage};
use extant_simdisk::{Image, SimDisk};
use extant_testkit::LoopDevice;
use extant_testkit::walk::KernelView;
use extant_volume::{New, OpenOptions, Volume, WriteOptions};

const OPERATIONS: usize = 12;

/// Two disks that lose power together, before write or flush number `cut_at` of both.
struct Power {
    home: Arc<SimDisk>,
    log: Arc<SimDisk>,
    events: AtomicU64,
    cut_at: u64,
    seed: u64,
    /// The disks after the cut, and the number of operations that had been synced.
    cut: Mutex<Option<(SimDisk, SimDisk, usize)>>,
    synced: AtomicU64,
}

impl Power {
    fn event(&self) {
        if self.events.fetch_add(1, Ordering::SeqCst) == self.cut_at {
            let survivors = (self.home.cut_random(self.seed), self.log.cut_random(self.seed ^ 0x5EED));
            let synced = self.synced.load(Ordering::SeqCst) as usize;
            *self.cut.lock().unwrap() = Some((survivors.0, survivors.1, synced));
        }
    }
}

/// One of the two disks.
struct Wired {
    power: Arc<Power>,
    is_log: bool,
}

impl Wired {
    fn disk(&self) -> &SimDisk {
        if self.is_log { &self.power.log } else { &self.power.home }
    }
}

impl Device for Wired {
    fn size_bytes(&self) -> u64 {
        self.disk().size_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        self.disk().read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        self.power.event();
        self.disk().write_at(offset, bytes)
    }

    fn write_durable_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        self.power.event();
        self.disk().write_durable_at(offset, bytes)
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        self.power.event();
        self.disk().zero_at(offset, len)
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        self.power.event();
        self.disk().flush()
    }
}

/// A file system and its external journal.
fn make(dir: &Path, block_size: &str) -> (PathBuf, PathBuf) {
    let (image, journal) = (dir.join("image"), dir.join("journal"));
    extant_testkit::run(
        "mke2fs",
        ["-q", "-F", "-O", "journal_dev", "-b", block_size, journal.to_str().unwrap(), "5M"],
    );
    let device = LoopDevice::attach(&journal).unwrap();
    let on = format!("device={}", device.path().display());
    let extended = "lazy_itable_init=0,nodiscard";
    let args = ["-q", "-F", "-t", "ext4", "-b", block_size, "-E", extended, "-J", &on];
    extant_testkit::run("mke2fs", args.iter().copied().chain([image.to_str().unwrap(), "16M"]));
    drop(device);
    (image, journal)
}

fn open(home: Arc<dyn Device>, log: Arc<dyn Device>, sabotage: Sabotage) -> Result<Volume, String> {
    let write = WriteOptions { no_committer: true, sabotage, ..WriteOptions::default() };
    let options = OpenOptions { journal_device: Some(log), write, ..OpenOptions::default() };
    Volume::open(home, &options).map_err(|fault| fault.to_string())
}

fn name(number: usize) -> String {
    format!("file-{number:02}")
}

/// Creates files one after the other, syncs after some, and checkpoints in the middle.
fn work(power: &Arc<Power>, sabotage: Sabotage) {
    let side = |is_log| Arc::new(Wired { power: Arc::clone(power), is_log });
    let volume = open(side(false), side(true), sabotage).unwrap();
    for number in 0..OPERATIONS {
        volume.names().create(Ino::ROOT, name(number).as_bytes(), &New::file(0o644)).unwrap();
        if number % 3 == 2 {
            volume.sync().unwrap();
            power.synced.store(number as u64 + 1, Ordering::SeqCst);
        }
        if number == 7 {
            volume.checkpoint().unwrap();
        }
    }
    volume.close().unwrap();
    power.synced.store(OPERATIONS as u64, Ordering::SeqCst);
}

/// The files must be the first ones in order, and include all that were synced.
fn judge(names: &[Vec<u8>], synced: usize) -> Result<(), String> {
    let files: Vec<_> = names.iter().filter(|name| name.starts_with(b"file-")).collect();
    let is_prefix = (0..files.len()).all(|number| files.iter().any(|file| **file == name(number).as_bytes()));
    match is_prefix && files.len() >= synced {
        true => Ok(()),
        false => Err(format!("{} files are there, {synced} were synced, in order: {is_prefix}", files.len())),
    }
}

fn write_out(disk: &SimDisk, path: &Path) {
    let file = std::fs::File::create(path).unwrap();
    let image = disk.image();
    file.set_len(image.size_bytes()).unwrap();
    image.for_each_chunk(|at, bytes| std::os::unix::fs::FileExt::write_all_at(&file, bytes, at)).unwrap();
}

fn judge_cut(power: &Power, is_asked: bool) -> Result<(), String> {
    let Some((home, log, synced)) = power.cut.lock().unwrap().take() else { return Ok(()) };
    let scratch = extant_testkit::scratch();
    let (image, journal) = (scratch.path().join("image"), scratch.path().join("journal"));
    if is_asked {
        write_out(&home, &image);
        write_out(&log, &journal);
        let view =
            KernelView::open(&image, Some(&journal)).map_err(|error| format!("the kernel: {error}"))?;
        let names = std::fs::read_dir(view.path()).unwrap();
        let names: Vec<Vec<u8>> =
            names.map(|entry| entry.unwrap().file_name().into_encoded_bytes()).collect();
        judge(&names, synced).map_err(|why| format!("the kernel: {why}"))?;
    }
    let (home, log) = (Arc::new(home), Arc::new(log));
    let volume = open(home.clone(), log.clone(), Sabotage::default())?;
    let root = volume.root().map_err(|fault| fault.to_string())?;
    judge(&common::names(&volume, &root), synced)?;
    // The volume must accept changes.
    volume.names().create(Ino::ROOT, b"after", &New::file(0o600)).map_err(|fault| fault.to_string())?;
    volume.close().map_err(|fault| fault.to_string())?;
    if is_asked {
        write_out(&home, &image);
        write_out(&log, &journal);
        let device = LoopDevice::attach(&journal).unwrap();
        let args = ["-fn".as_ref(), "-j".as_ref(), device.path().as_os_str(), image.as_os_str()];
        let checked = extant_testkit::command("e2fsck").args(args).output().unwrap();
        if !checked.status.success() {
            return Err(String::from_utf8_lossy(&checked.stdout).into_owned());
        }
    }
    Ok(())
}

#[test]
fn both_devices_lose_power_at_any_moment() {
    if !extant_testkit::is_root() {
        println!("skipped: not root, or no loop device");
        return;
    }
    let cuts: u64 = std::env::var("EXTANT_CUTS").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
    for block_size in ["1024", "4096"] {
        let scratch = extant_testkit::scratch();
        let (image, journal) = make(scratch.path(), block_size);
        let (home, log) = (std::fs::read(image).unwrap(), std::fs::read(journal).unwrap());
        let run = |cut_at, seed, sabotage| {
            let disk = |bytes: &[u8]| Arc::new(SimDisk::from_image(Image::from_bytes(bytes)));
            let power = Arc::new(Power {
                home: disk(&home),
                log: disk(&log),
                events: AtomicU64::new(0),
                cut_at,
                seed,
                cut: Mutex::new(None),
                synced: AtomicU64::new(0),
            });
            work(&power, sabotage);
            power
        };
        let events = run(u64::MAX, 0, Sabotage::default()).events.load(Ordering::SeqCst);
        assert!(events > 30, "{events}");
        for number in 0..cuts {
            let cut_at = events * number / cuts;
            let judged = judge_cut(&run(cut_at, number, Sabotage::default()), number % 6 == 0);
            assert!(judged.is_ok(), "blocks of {block_size}, cut at {cut_at}, seed {number}: {judged:?}");
        }
        // Verifies that the test detects a flush of the wrong device, or a missing flush.
        let planted = Sabotage::with(Bug::SkipCheckpointFlush);
        let is_seen = (0..events).any(|cut_at| {
            let power = run(cut_at, cut_at, planted);
            !matches!(catch_unwind(AssertUnwindSafe(|| judge_cut(&power, false))), Ok(Ok(())))
        });
        assert!(is_seen, "homes that are not flushed before the log forgets them are noticed");
    }
}

#[test]
fn a_wrong_or_missing_journal_is_refused() {
    if !extant_testkit::is_root() {
        println!("skipped: not root, or no loop device");
        return;
    }
    let (one, other) = (extant_testkit::scratch(), extant_testkit::scratch());
    let (image, _) = make(one.path(), "4096");
    let (_, foreign) = make(other.path(), "4096");
    let device =
        |path: &Path| -> Arc<dyn Device> { Arc::new(extant_device::FileDevice::open(path, true).unwrap()) };
    let before = (std::fs::read(&image).unwrap(), std::fs::read(&foreign).unwrap());
    let missing = Volume::open(device(&image), &OpenOptions::default()).err().unwrap().to_string();
    assert!(missing.contains("name that device"), "{missing}");
    let options = OpenOptions { journal_device: Some(device(&foreign)), ..OpenOptions::default() };
    let wrong = Volume::open(device(&image), &options).err().unwrap().to_string();
    assert!(wrong.contains("UUID") || wrong.contains("another"), "{wrong}");
    assert!(
        before == (std::fs::read(&image).unwrap(), std::fs::read(&foreign).unwrap()),
        "nothing was written"
    );
}
