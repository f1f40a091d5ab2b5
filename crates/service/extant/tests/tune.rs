//! Power cuts in a conversion: the file system has the old features or the new ones and is sound; where an
//! undo file was in use, the same conversion restores the old state first, and completes.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use extant::build::{BuildOptions, FormatOptions, SizeChoice, Source, build};
use extant::mkfs::FeatureEdit;
use extant::tune::{Conversion, ConvertOptions, JournalChange, OfflineOptions, TuneFault, convert};
use extant::{Device, DeviceFault, FileDevice, FileSystem, OpenOptions};
use extant_check::Severity;
use extant_simdisk::{Image, SimDisk};

/// Cuts are tried at most at this many moments.
const MOMENTS: u64 = 80;

/// A disk, and the undo file as it was at the first write after it was complete.
struct Watched {
    disk: Arc<SimDisk>,
    undo: PathBuf,
    kept: Mutex<Option<(u64, Vec<u8>)>>,
}

impl Device for Watched {
    fn size_bytes(&self) -> u64 {
        self.disk.size_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        self.disk.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        if let Ok(undo) = std::fs::read(&self.undo) {
            let moment = self.disk.recorded().unwrap().end();
            self.kept.lock().unwrap().get_or_insert((moment, undo));
        }
        self.disk.write_at(offset, bytes)
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        self.disk.zero_at(offset, len)
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        self.disk.flush()
    }
}

fn is_sound(device: &Arc<dyn Device>, name: &str) {
    let report = extant_check::check(&**device, &extant_check::Options::default()).unwrap();
    let bad: Vec<_> = report.findings.iter().filter(|found| found.rule.severity >= Severity::Error).collect();
    assert!(bad.is_empty(), "{name}: {bad:?}");
    let fs = FileSystem::from_device(Arc::clone(device), &OpenOptions::default()).unwrap();
    assert_eq!(fs.read("/dir/7").unwrap(), vec![7; 5000], "{name}");
}

fn features(device: &Arc<dyn Device>) -> String {
    let fs = FileSystem::from_device(Arc::clone(device), &OpenOptions::default()).unwrap();
    let sb = fs.volume().superblock();
    format!("{} {} {} {}", sb.features, sb.journal_inum, sb.jnl_blocks[16], sb.inode_bytes())
}

fn image(dir: &Path) -> Image {
    image_with(dir, FormatOptions::default())
}

fn image_with(dir: &Path, format: FormatOptions) -> Image {
    let tree = dir.join("tree");
    std::fs::create_dir_all(tree.join("dir")).unwrap();
    for number in 0..60u8 {
        std::fs::write(tree.join("dir").join(number.to_string()), vec![number; 5000]).unwrap();
    }
    let path = dir.join("image");
    let options = BuildOptions { size: SizeChoice::Bytes(32 << 20), format, ..BuildOptions::default() };
    build(&options, vec![Source::Dir(tree)], &path).unwrap();
    Image::read_from(&FileDevice::open(&path, false).unwrap()).unwrap()
}

#[test]
fn a_conversion_that_was_cut_has_the_old_features_or_the_new_ones() {
    let dir = extant_testkit::scratch();
    let image = image(dir.path());
    let undo = dir.path().join("undo");
    let offline = OfflineOptions { undo: Some(undo.clone()), ..OfflineOptions::default() };
    let options = ConvertOptions { offline, now: 1_700_000_000, ..ConvertOptions::default() };
    for conversion in [
        Conversion { quota: Some(true), ..Conversion::default() },
        Conversion { metadata_csum: Some(false), ..Conversion::default() },
        Conversion { wide: Some(false), metadata_csum: Some(false), ..Conversion::default() },
        Conversion { wide: Some(false), ..Conversion::default() },
        Conversion { inode_size: Some(512), ..Conversion::default() },
        Conversion { journal: Some(JournalChange::Make { blocks: Some(2048) }), ..Conversion::default() },
        Conversion {
            journal: Some(JournalChange::Remove),
            orphan_file: Some(false),
            ..Conversion::default()
        },
    ] {
        let disk = Arc::new(SimDisk::recording(image.clone()));
        let watched =
            Arc::new(Watched { disk: Arc::clone(&disk), undo: undo.clone(), kept: Mutex::default() });
        let device: Arc<dyn Device> = Arc::<Watched>::clone(&watched);
        let before = features(&device);
        convert(&device, &conversion, &options).unwrap();
        let after = features(&device);
        assert_ne!(before, after);
        is_sound(&device, "whole");
        assert!(!undo.exists());
        let kept = watched.kept.lock().unwrap().take();
        let is_undone = conversion.journal.is_some() || conversion.changes_layout();
        assert_eq!(kept.is_some(), is_undone, "{conversion:?}");
        let recording = disk.recorded().unwrap();
        let moments = recording.end() - recording.start();
        assert!(moments > 3, "{conversion:?}: {moments} moments");
        let step = (moments / MOMENTS).max(1);
        for at in (recording.start()..=recording.end()).step_by(step as usize) {
            let name = format!("{conversion:?}: cut at {at} of {}", recording.end());
            let device: Arc<dyn Device> = Arc::new(recording.cut(at, at));
            match &kept {
                Some((from, bytes)) if at >= *from => std::fs::write(&undo, bytes).unwrap(),
                _ => {
                    // The journal's replay completes or forgets it.
                    let fs = FileSystem::from_device_writable(Arc::clone(&device), &OpenOptions::default());
                    fs.unwrap().close().unwrap();
                    let now = features(&device);
                    assert!(now == before || now == after, "{name}: {now}");
                    is_sound(&device, &name);
                }
            }
            convert(&device, &conversion, &options).unwrap();
            assert_eq!(features(&device), after, "{name}");
            is_sound(&device, &name);
            assert!(!undo.exists(), "{name}");
        }
    }
}

/// A disk whose block of multiple-mount protection is damaged after the plan, when the claim reads it.
struct Damaging {
    disk: Arc<SimDisk>,
    block: u64,
    is_claimed: AtomicBool,
    writes: AtomicU64,
}

impl Device for Damaging {
    fn size_bytes(&self) -> u64 {
        self.disk.size_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        self.disk.read_at(offset, buf)?;
        if self.is_claimed.load(Ordering::Relaxed) && offset == self.block {
            buf[0] ^= 1;
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.disk.write_at(offset, bytes)
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        self.disk.zero_at(offset, len)
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        self.disk.flush()
    }

    /// Only a claim needs the bytes of the drive.
    fn forget_cached(&self, _offset: u64, _len: u64) {
        self.is_claimed.store(true, Ordering::Relaxed);
    }
}

/// The plan finds no fault, and then the file system cannot be claimed: that is an error of opening, before
/// anything is written.
#[test]
fn a_claim_that_fails_is_an_error_of_opening() {
    let dir = extant_testkit::scratch();
    let features = FeatureEdit::parse_list("mmp").unwrap();
    let image = image_with(dir.path(), FormatOptions { features, ..FormatOptions::default() });
    let disk = Arc::new(SimDisk::recording(image));
    let plain: Arc<dyn Device> = Arc::<SimDisk>::clone(&disk);
    let fs = FileSystem::from_device(plain, &OpenOptions::default()).unwrap();
    let block = fs.volume().superblock().mmp_block * fs.volume().geometry().block_size.bytes();
    let damaging =
        Arc::new(Damaging { disk, block, is_claimed: AtomicBool::new(false), writes: AtomicU64::new(0) });
    let device: Arc<dyn Device> = Arc::<Damaging>::clone(&damaging);
    let conversion = Conversion { quota: Some(true), ..Conversion::default() };
    let fault = convert(&device, &conversion, &ConvertOptions::default()).unwrap_err();
    let why = fault.to_string();
    assert!(matches!(fault, TuneFault::Open(_)) && why.contains("multiple-mount protection"), "{fault:?}");
    assert_eq!(damaging.writes.load(Ordering::Relaxed), 0);
}
