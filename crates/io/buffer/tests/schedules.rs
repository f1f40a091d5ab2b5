//! The cache under many schedules: `cargo xtask ci schedules`.

use std::io::IoSliceMut;
use std::sync::Arc;

use extant_base::sync::atomic::{AtomicU8, Ordering};
use extant_base::sync::{schedules, shuttle};
use extant_base::{BlockSize, Pblk, Tid};
use extant_buffer::{Buffers, Bytes, ChecksumSpan, Hint, Kind, Owner, PatchedBlock, PendingChange, Snapshot};
use extant_device::{Device, DeviceFault, MemDevice};
use extant_memory::{Budget, Shrinker};

const OWNER: Owner = Owner { kind: Kind::Other, ino: 7 };
const BLOCK: Pblk = Pblk(3);

/// The block as a transaction left it.
fn taken(buffers: &Buffers, transaction: Tid, log_sum: &dyn Fn(&PatchedBlock) -> Option<u32>) -> Snapshot {
    let mut taken = None;
    let each = |(), snapshot| taken = Some(snapshot);
    buffers.take(&[(BLOCK, Hint::NONE, ())], transaction, log_sum, each).unwrap();
    taken.unwrap()
}

/// A device with slow reads: other threads run before and after the bytes are copied.
struct Slow(MemDevice);

impl Device for Slow {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        shuttle::thread::yield_now();
        self.0.read_at(offset, buf)?;
        shuttle::thread::yield_now();
        Ok(())
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), DeviceFault> {
        shuttle::thread::yield_now();
        self.0.read_vectored_at(offset, bufs)?;
        shuttle::thread::yield_now();
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        self.0.write_at(offset, bytes)
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        self.0.zero_at(offset, len)
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        Ok(())
    }
}

fn cache() -> (Arc<Slow>, Arc<Buffers>) {
    let device = Arc::new(Slow(MemDevice::new(16 << 10)));
    let budget = Budget::new(1 << 20);
    let buffers = Buffers::new(device.clone(), BlockSize::MIN, 16, &budget);
    (device, buffers)
}

/// The first and last byte, which every change sets to the same value.
fn ends(bytes: &[u8]) -> u8 {
    assert_eq!(bytes[0], bytes[1023], "a change is seen whole or not at all");
    bytes[0]
}

fn set(buffers: &Buffers, transaction: Tid, value: u8) {
    let change = &mut |bytes: &mut [u8]| (bytes[0], bytes[1023]) = (value, value);
    buffers.change(BLOCK, OWNER, transaction, change).unwrap();
}

/// One thread changes a block, commits it, writes it home and evicts it; others read it through all paths.
/// Readers never see older bytes after newer ones, and returned bytes never change.
#[test]
fn what_is_seen_of_a_block_only_goes_forward() {
    schedules("cache: changes and reads", 2000, || {
        let (device, buffers) = cache();
        let last = Arc::new(AtomicU8::new(0));
        let (writer, done) = (buffers.clone(), last.clone());
        let writes = shuttle::thread::spawn(move || {
            for number in 1..=2u8 {
                if number == 1 {
                    writer.fresh(BLOCK, OWNER, Tid(1), &mut |bytes| (bytes[0], bytes[1023]) = (1, 1));
                } else {
                    set(&writer, Tid(number.into()), number);
                }
                done.store(number, Ordering::SeqCst);
                let taken = writer.snapshot(BLOCK).unwrap().0;
                assert_eq!(ends(&taken), number);
                device.write_at(3 * 1024, &taken).unwrap();
                drop(taken);
                writer.set_clean_through(Tid(number.into()), false);
                writer.shrink(1 << 20);
                writer.shrink(1 << 20);
            }
        });
        let readers: Vec<_> = (0..2)
            .map(|way| {
                let (buffers, last) = (buffers.clone(), last.clone());
                shuttle::thread::spawn(move || {
                    for _ in 0..2 {
                        let least = last.load(Ordering::SeqCst);
                        if way == 0 {
                            buffers.prefetch(Pblk(2), 3);
                        }
                        let held = buffers.get(BLOCK, OWNER, |_| Ok(())).unwrap();
                        let seen = ends(&held);
                        assert!(seen >= least, "{seen} after {least}");
                        shuttle::thread::yield_now();
                        assert_eq!(ends(&held), seen, "what is held does not change");
                    }
                })
            })
            .collect();
        writes.join().unwrap();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        assert_eq!(ends(&buffers.get(BLOCK, OWNER, |_| Ok(())).unwrap()), 2);
    });
}

/// A commit takes a block's bytes and seals them while other threads change the block. The commit's bytes are
/// consistent, the sealed copy is not shared, and a block that changed again is not clean.
#[test]
fn a_seal_never_hides_a_newer_change() {
    schedules("cache: seals and changes", 3000, || {
        let (device, buffers) = cache();
        set(&buffers, Tid(1), 1);
        let (committer, home) = (buffers.clone(), device.clone());
        let commit = shuttle::thread::spawn(move || {
            let taken = committer.snapshot(BLOCK).unwrap().0;
            let seen = ends(&taken);
            let mut sealed = Bytes::copy_of(&taken);
            drop(taken);
            sealed.make_mut()[500] = 77;
            shuttle::thread::yield_now();
            assert_eq!((ends(&sealed), sealed[500]), (seen, 77), "what is sealed stays as it was taken");
            home.write_at(3 * 1024, &sealed).unwrap();
            drop(sealed);
            committer.set_clean_through(Tid(1), false);
            committer.shrink(1 << 20);
            committer.shrink(1 << 20);
        });
        let changer = buffers.clone();
        let change = shuttle::thread::spawn(move || set(&changer, Tid(2), 2));
        commit.join().unwrap();
        change.join().unwrap();
        assert_eq!(ends(&buffers.snapshot(BLOCK).unwrap().0), 2, "the newer change is there");
        buffers.shrink(1 << 20);
        buffers.shrink(1 << 20);
        assert_eq!(ends(&buffers.snapshot(BLOCK).unwrap().0), 2, "and it stays until it is home");
    });
}

/// A commit takes a block with pending changes while the next transaction adds changes and another thread
/// reads the block. The commit gets exactly the changes of its own transaction; the reader sees a consistent
/// state.
#[test]
fn what_waits_is_in_the_commit_of_its_transaction() {
    schedules("cache: changes that wait", 3000, || {
        let (_, buffers) = cache();
        let span = ChecksumSpan { seed: 9, len: 1012 };
        let add = move |buffers: &Buffers, transaction: Tid, at: usize, value: u8| {
            let patch = PendingChange { span, expected: (0, &[]), pieces: &[(at, &[value])] };
            buffers.patch_at(BLOCK, &mut { Hint::NONE }, OWNER, transaction, &patch).unwrap();
        };
        buffers.fresh(BLOCK, OWNER, Tid(1), &mut |bytes| bytes[1] = 9);
        add(&buffers, Tid(1), 0, 1);
        buffers.begin_taking(Tid(1));
        let changer = buffers.clone();
        let change = shuttle::thread::spawn(move || {
            add(&changer, Tid(2), 0, 2);
            add(&changer, Tid(2), 1, 8);
        });
        let looker = buffers.clone();
        let look = shuttle::thread::spawn(move || {
            let seen = looker.get(BLOCK, OWNER, |_| Ok(())).unwrap();
            assert!([[1, 9], [2, 9], [2, 8]].iter().any(|both| seen.starts_with(both)), "{:?}", &seen[..2]);
        });
        let seen = std::cell::Cell::new(None);
        let log_sum = |patched: &PatchedBlock| {
            seen.set(Some(patched.start));
            Some(3)
        };
        let before = taken(&buffers, Tid(1), &log_sum);
        buffers.end_taking();
        assert_eq!(before.buffer[..2], [1, 9], "as the first transaction left it");
        let sum = extant_base::checksum::crc32c(9, &before.buffer[..1012]);
        let ends_in_it = before.buffer[1020..] == sum.to_le_bytes();
        assert!(ends_in_it || !before.has_sum);
        assert!(before.log_sum.is_none() || before.has_sum && seen.get() == Some([1, 9, 0, 0]));
        change.join().unwrap();
        look.join().unwrap();
        let next = taken(&buffers, Tid(2), &log_sum);
        assert_eq!(next.buffer[..2], [2, 8]);
    });
}
