//! While a repair is written or undone, other machines see a file system in use.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use extant_device::{Device, DeviceFault, MemDevice};
use extant_ondisk::Superblock;
use extant_ondisk::mmp::{Mmp, MmpState};
use extant_repair::{RepairFault, RepairOptions, UndoFault, UndoFile, UndoState, plan_repair, plan_writes};
use extant_testkit::{e2fsck_clean, run, scratch};

/// Looks at the block of the protection with each write.
struct Watch {
    device: Arc<MemDevice>,
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
        assert!(matches!(self.mmp().state(), MmpState::Mounted(_)), "a write to {offset} without a claim");
        assert!(offset + bytes.len() as u64 <= self.mmp_at || self.mmp_at + 1024 <= offset, "{offset}");
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.device.write_at(offset, bytes)
    }

    /// The claim writes its block so, and nothing else does.
    fn write_durable_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        assert_eq!(offset, self.mmp_at);
        self.device.write_durable_at(offset, bytes)
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        self.device.zero_at(offset, len)
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        self.device.flush()
    }
}

/// A file system with multiple-mount protection, and the byte offset of its block.
fn image(path: &Path) -> (Arc<MemDevice>, u64) {
    run("mke2fs", ["-q", "-F", "-t", "ext4", "-b", "1024", "-O", "mmp", path.to_str().unwrap(), "8M"]);
    let bytes = std::fs::read(path).unwrap();
    let sb = Superblock::decode(&bytes[1024..2048]).unwrap();
    let device = Arc::new(MemDevice::new(bytes.len() as u64));
    device.write_at(0, &bytes).unwrap();
    (device, sb.mmp_block << (10 + sb.log_block_size))
}

/// Undoes, with a look at the claim. Returns the number of writes under it.
fn undo(device: &Arc<MemDevice>, mmp_at: u64, file: &Path) -> Result<u32, UndoFault> {
    let watch = Arc::new(Watch { device: Arc::clone(device), mmp_at, writes: 0.into() });
    let watched: Arc<dyn Device> = Arc::<Watch>::clone(&watch);
    UndoFile::open(file).unwrap().undo(&watched, false)?;
    Ok(watch.writes.load(Ordering::Relaxed))
}

/// Writes a small change, with an undo file.
fn write_new(device: &Arc<MemDevice>, undo: &Path) {
    let planned =
        plan_writes::<RepairFault>(Arc::<MemDevice>::clone(device), |to| Ok(to.write_at(7 << 20, b"new")?));
    planned.unwrap().write(&**device, Some(undo)).unwrap();
}

fn bytes_of(device: &MemDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.size_bytes() as usize];
    device.read_at(0, &mut bytes).unwrap();
    bytes
}

/// The block of the protection with this number, and the shortest wait.
fn block(device: &MemDevice, mmp_at: u64, number: u32) -> [u8; Mmp::LEN] {
    let mut bytes = [0; Mmp::LEN];
    device.read_at(mmp_at, &mut bytes).unwrap();
    let mut mmp = Mmp::decode(&bytes).unwrap();
    (mmp.sequence, mmp.check_interval) = (number, 1);
    let mut sb = [0; 1024];
    device.read_at(1024, &mut sb).unwrap();
    let sb = Superblock::decode(&sb).unwrap();
    if sb.features.metadata_csum() {
        mmp.seal(sb.fs_seed());
    }
    mmp.encode()
}

/// Repairs a file system whose block has this number.
fn repair_left_with(number: u32) {
    let dir = scratch();
    let path = dir.path().join("image");
    let (device, mmp_at) = image(&path);
    device.write_at(mmp_at, &block(&device, mmp_at, number)).unwrap();
    let planned = plan_repair(Arc::<MemDevice>::clone(&device), &RepairOptions::default()).unwrap();
    assert!(!planned.is_empty());
    let (before, file) = (bytes_of(&device), dir.path().join("undo"));
    let watch = Watch { device: Arc::clone(&device), mmp_at, writes: 0.into() };
    planned.write(&watch, Some(&file)).unwrap();
    assert_eq!(watch.mmp().state(), MmpState::Clean);
    std::fs::write(&path, bytes_of(&device)).unwrap();
    e2fsck_clean(&path);
    undo(&device, mmp_at, &file).unwrap();
    assert!(bytes_of(&device) == before);
}

#[test]
fn the_block_that_a_killed_e2fsck_left_is_mended() {
    repair_left_with(Mmp::SEQ_FSCK);
}

#[test]
fn the_block_that_a_dead_machine_left_is_mended() {
    repair_left_with(1000);
}

/// As a dump has it that was made after a crash.
#[test]
fn a_block_in_use_is_written_as_a_clean_one_and_can_be_undone() {
    let dir = scratch();
    let (device, mmp_at) = image(&dir.path().join("image"));
    let (before, used) = (bytes_of(&device), block(&device, mmp_at, 1000));
    let planned =
        plan_writes::<RepairFault>(Arc::<MemDevice>::clone(&device), |to| Ok(to.write_at(mmp_at, &used)?));
    let file = dir.path().join("undo");
    planned.unwrap().write(&*device, Some(&file)).unwrap();
    let watch = Watch { device: Arc::clone(&device), mmp_at, writes: 0.into() };
    assert_eq!(watch.mmp().state(), MmpState::Clean);
    let device: Arc<dyn Device> = device;
    UndoFile::open(&file).unwrap().undo(&device, false).unwrap();
    let mut after = vec![0; before.len()];
    device.read_at(0, &mut after).unwrap();
    assert!(after == before);
}

/// The machine lost its power while it wrote a repair, or while it undid one: the block has the number of a
/// claim, and none of the bytes that it had.
#[test]
fn a_cut_leaves_a_claim_and_the_next_undo_restores_the_block() {
    let dir = scratch();
    let (device, mmp_at) = image(&dir.path().join("image"));
    let before = bytes_of(&device);
    let file = dir.path().join("undo");
    write_new(&device, &file);
    // As the file was until the end.
    let mut begun = std::fs::read(&file).unwrap();
    begun[52] = 1;
    let sum = extant_base::checksum::crc32c(!0, &begun[..56]);
    begun[56..60].copy_from_slice(&sum.to_le_bytes());
    std::fs::write(&file, &begun).unwrap();
    let mut claimed = Mmp::decode(&block(&device, mmp_at, 1000)).unwrap();
    claimed.node_name[..5].copy_from_slice(b"other");
    let mut sb = [0; 1024];
    device.read_at(1024, &mut sb).unwrap();
    claimed.seal(Superblock::decode(&sb).unwrap().fs_seed());
    device.write_at(mmp_at, &claimed.encode()).unwrap();
    assert!(undo(&device, mmp_at, &file).unwrap() > 0);
    assert!(bytes_of(&device) == before, "the block of the protection, too");
}

/// Each claim changes the block, for instance that of a `tune` that refuses: this is no change of the image.
#[test]
fn a_claim_after_the_repair_does_not_refuse_its_undo() {
    let dir = scratch();
    let (device, mmp_at) = image(&dir.path().join("image"));
    let before = bytes_of(&device);
    let file = dir.path().join("undo");
    write_new(&device, &file);
    let shared: Arc<dyn Device> = Arc::<MemDevice>::clone(&device);
    let claim = extant_volume::MountGuard::claim(&shared, &|_| {}).unwrap().unwrap();
    claim.release_as(None).unwrap();
    assert!(undo(&device, mmp_at, &file).unwrap() > 0);
    assert!(bytes_of(&device) == before);
}

/// The number of an e2fsck does not change, so only its repair may replace it.
#[test]
fn nothing_is_undone_while_e2fsck_checks_the_file_system() {
    let dir = scratch();
    let (device, mmp_at) = image(&dir.path().join("image"));
    let file = dir.path().join("undo");
    write_new(&device, &file);
    device.write_at(mmp_at, &block(&device, mmp_at, Mmp::SEQ_FSCK)).unwrap();
    let before = bytes_of(&device);
    let shared: Arc<dyn Device> = Arc::<MemDevice>::clone(&device);
    let mut opened = UndoFile::open(&file).unwrap();
    let undone = opened.undo(&shared, true);
    assert!(matches!(undone, Err(UndoFault::InUse)), "{undone:?}");
    assert_eq!(opened.state(), UndoState::Finished);
    assert!(bytes_of(&device) == before);
}

#[test]
fn a_plan_that_leaves_a_damaged_block_is_not_written() {
    let dir = scratch();
    let (device, mmp_at) = image(&dir.path().join("image"));
    device.write_at(mmp_at, &[0; 4]).unwrap();
    let before = bytes_of(&device);
    let planned =
        plan_writes::<RepairFault>(Arc::<MemDevice>::clone(&device), |to| Ok(to.write_at(7 << 20, b"new")?));
    let file = dir.path().join("undo");
    let written = planned.unwrap().write(&*device, Some(&file));
    assert!(matches!(written, Err(RepairFault::Protection(_))), "{written:?}");
    assert!(bytes_of(&device) == before && !file.exists());
    // A repair replaces the block.
    let planned = plan_repair(Arc::<MemDevice>::clone(&device), &RepairOptions::default()).unwrap();
    planned.write(&*device, None).unwrap();
    let watch = Watch { device, mmp_at, writes: 0.into() };
    assert_eq!(watch.mmp().state(), MmpState::Clean);
}

/// Another machine writes the block of the protection before each look at it, or it cannot be read.
struct Shared {
    device: Arc<MemDevice>,
    mmp_at: u64,
    is_unreadable: AtomicBool,
}

impl Device for Shared {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        match offset == self.mmp_at && self.is_unreadable.load(Ordering::Relaxed) {
            true => self.device.read_at(u64::MAX / 2, buf),
            false => self.device.read_at(offset, buf),
        }
    }

    fn write_at(&self, offset: u64, _: &[u8]) -> Result<(), DeviceFault> {
        panic!("a write to {offset} of a file system in use")
    }

    fn zero_at(&self, offset: u64, _: u64) -> Result<(), DeviceFault> {
        panic!("a write to {offset} of a file system in use")
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        Ok(())
    }

    fn forget_cached(&self, offset: u64, _: u64) {
        if !self.is_unreadable.load(Ordering::Relaxed) {
            let mut bytes = [0; Mmp::LEN];
            self.device.read_at(offset, &mut bytes).unwrap();
            let number = Mmp::decode(&bytes).unwrap().sequence % 1000 + 1;
            self.device.write_at(offset, &block(&self.device, offset, number)).unwrap();
        }
    }
}

#[test]
fn nothing_is_undone_while_another_machine_uses_the_file_system() {
    let dir = scratch();
    let (device, mmp_at) = image(&dir.path().join("image"));
    let undo = dir.path().join("undo");
    write_new(&device, &undo);
    let shared: Arc<dyn Device> = Arc::new(Shared { device, mmp_at, is_unreadable: false.into() });
    for force in [false, true] {
        let undone = UndoFile::open(&undo).unwrap().undo(&shared, force);
        assert!(matches!(undone, Err(UndoFault::InUse)), "{undone:?}");
    }
}

#[test]
fn nothing_is_written_if_the_protection_cannot_be_read() {
    let dir = scratch();
    let (device, mmp_at) = image(&dir.path().join("image"));
    let shared = Arc::new(Shared { device, mmp_at, is_unreadable: false.into() });
    let base: Arc<dyn Device> = Arc::<Shared>::clone(&shared);
    // A plan does not fail if the block cannot be read. A write does.
    shared.is_unreadable.store(true, Ordering::Relaxed);
    let planned = plan_writes::<RepairFault>(base, |to| Ok(to.write_at(7 << 20, b"new")?));
    let undo = dir.path().join("undo");
    let written = planned.and_then(|planned| planned.write(&*shared, Some(&undo)));
    assert!(matches!(written, Err(RepairFault::Device(_))), "{written:?}");
    assert!(!undo.exists());
}

#[test]
fn a_repair_holds_the_protection_while_it_writes() {
    let dir = scratch();
    let (device, mmp_at) = image(&dir.path().join("image"));
    let bytes = bytes_of(&device);

    // Blocks on both sides of the block of the protection change, in the same piece of the plan, and another.
    let mut after = bytes.clone();
    let near = (mmp_at as usize / 4096 * 4096..).step_by(1024).take(4).filter(|at| *at as u64 != mmp_at);
    let changes: Vec<usize> = near.chain([7 << 20]).collect();
    let planned = plan_writes::<RepairFault>(Arc::<MemDevice>::clone(&device), |overlay| {
        changes.iter().try_for_each(|at| Ok(overlay.write_at(*at as u64, b"changed")?))
    });
    for at in &changes {
        after[*at..at + 7].copy_from_slice(b"changed");
    }
    let watch = Watch { device: Arc::clone(&device), mmp_at, writes: 0.into() };
    planned.unwrap().write(&watch, None).unwrap();
    assert!(watch.writes.into_inner() > 0);
    assert!(bytes_of(&device) == after, "the block of the protection is as it was");
}
