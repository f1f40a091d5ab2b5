//! While a repair is written, other machines see a file system in use.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use extant_device::{Device, DeviceFault, MemDevice};
use extant_ondisk::Superblock;
use extant_ondisk::mmp::{Mmp, MmpState};
use extant_repair::{RepairFault, plan_writes};
use extant_testkit::run;

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

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        self.device.zero_at(offset, len)
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        self.device.flush()
    }
}

#[test]
fn a_repair_holds_the_protection_while_it_writes() {
    let dir = extant_testkit::scratch();
    let path = dir.path().join("image");
    run("mke2fs", ["-q", "-F", "-t", "ext4", "-b", "1024", "-O", "mmp", path.to_str().unwrap(), "8M"]);
    let bytes = std::fs::read(&path).unwrap();
    let sb = Superblock::decode(&bytes[1024..2048]).unwrap();
    let mmp_at = sb.mmp_block << (10 + sb.log_block_size);
    let device = Arc::new(MemDevice::new(bytes.len() as u64));
    device.write_at(0, &bytes).unwrap();

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
    let mut now = vec![0; bytes.len()];
    device.read_at(0, &mut now).unwrap();
    assert!(now == after, "the block of the protection is as it was");
}
