//! While a change is written in one step, other machines see a file system in use.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use extant_device::{Device, DeviceFault, MemDevice};
use extant_ondisk::Superblock;
use extant_ondisk::mmp::{Mmp, MmpState};
use extant_resize::{ResizeFault, ResizeOptions, write_in_one_step};
use extant_testkit::{e2fsck_clean, run, scratch};
use extant_volume::OpenFault;

/// A block that is free in an image of [`claimed`].
const FREE: u64 = 7000;

/// Looks at the block of the protection with each write.
struct Watch {
    device: MemDevice,
    mmp_at: u64,
    writes: AtomicU32,
}

impl Watch {
    fn mmp(&self) -> Mmp {
        let mut bytes = [0; Mmp::LEN];
        self.device.read_at(self.mmp_at, &mut bytes).unwrap();
        Mmp::decode(&bytes).unwrap()
    }
}

impl Device for Watch {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        self.device.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        if offset != self.mmp_at {
            assert!(
                matches!(self.mmp().state(), MmpState::Mounted(_)),
                "a write to {offset} without a claim"
            );
            self.writes.fetch_add(1, Ordering::Relaxed);
        }
        self.device.write_at(offset, bytes)
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        self.device.zero_at(offset, len)
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        self.device.flush()
    }
}

/// A file system with multiple-mount protection, and its superblock.
fn claimed(path: &Path) -> (Arc<Watch>, Superblock) {
    run("mke2fs", ["-q", "-F", "-t", "ext4", "-b", "1024", "-O", "mmp", path.to_str().unwrap(), "8M"]);
    let bytes = std::fs::read(path).unwrap();
    let sb = Superblock::decode(&bytes[1024..2048]).unwrap();
    let device = MemDevice::new(bytes.len() as u64);
    device.write_at(0, &bytes).unwrap();
    (Arc::new(Watch { device, mmp_at: sb.mmp_block << 10, writes: 0.into() }), sb)
}

#[test]
fn one_step_is_written_under_a_claim() {
    let dir = scratch();
    let path = dir.path().join("image");
    let (watch, sb) = claimed(&path);
    let device: Arc<dyn Device> = Arc::<Watch>::clone(&watch);
    let blocks = BTreeMap::from([(FREE, vec![7; 1024])]);
    write_in_one_step(&device, blocks, &sb, &ResizeOptions::default()).unwrap();
    assert!(watch.writes.load(Ordering::Relaxed) > 0);
    assert_eq!(watch.mmp().state(), MmpState::Clean);
    let mut bytes = vec![0; watch.device.size_bytes() as usize];
    watch.device.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes[(FREE << 10) as usize..][..1024], [7; 1024]);
    std::fs::write(&path, bytes).unwrap();
    e2fsck_clean(&path);
}

#[test]
fn one_step_is_not_written_while_e2fsck_checks_the_file_system() {
    let dir = scratch();
    let (watch, sb) = claimed(&dir.path().join("image"));
    let mut mmp = watch.mmp();
    mmp.sequence = Mmp::SEQ_FSCK;
    mmp.seal(sb.fs_seed());
    watch.device.write_at(watch.mmp_at, &mmp.encode()).unwrap();
    let device: Arc<dyn Device> = Arc::<Watch>::clone(&watch);
    let blocks = BTreeMap::from([(FREE, vec![7; 1024])]);
    let written = write_in_one_step(&device, blocks, &sb, &ResizeOptions::default());
    assert!(matches!(written, Err(ResizeFault::Open(OpenFault::InUse(_)))), "{written:?}");
    assert_eq!((watch.writes.load(Ordering::Relaxed), watch.mmp()), (0, mmp));
}
