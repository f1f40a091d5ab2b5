//! Blocks of a device in memory whose first byte is their number.

use extant_base::Tid;
use std::sync::atomic::AtomicUsize;

use extant_base::sync::Mutex;
use extant_device::MemDevice;

use super::*;

const OWNER: Owner = Owner { kind: Kind::Other, ino: 7 };

/// Counts reads; reads of blocks in `broken` fail.
struct Counting {
    device: MemDevice,
    reads: AtomicUsize,
    broken: std::ops::Range<u64>,
}

impl Counting {
    fn new(blocks: u64, broken: std::ops::Range<u64>) -> Arc<Self> {
        let device = MemDevice::new(blocks * 1024);
        for block in 0..blocks.min(256) {
            device.write_at(block * 1024, &[block as u8]).unwrap();
        }
        Arc::new(Self { device, reads: AtomicUsize::new(0), broken })
    }

    fn check(&self, offset: u64, len: usize) -> Result<(), DeviceFault> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let blocks = offset / 1024..(offset + len as u64) / 1024;
        if blocks.start < self.broken.end && self.broken.start < blocks.end {
            let source = std::io::Error::other("broken");
            return Err(DeviceFault::Io { what: "read", offset, len: len as u64, source });
        }
        Ok(())
    }

    fn reads(&self) -> usize {
        self.reads.load(Ordering::Relaxed)
    }
}

impl Device for Counting {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        self.check(offset, buf.len())?;
        self.device.read_at(offset, buf)
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), DeviceFault> {
        self.check(offset, bufs.iter().map(|buf| buf.len()).sum())?;
        self.device.read_vectored_at(offset, bufs)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        self.device.write_at(offset, bytes)
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        self.device.zero_at(offset, len)
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        Ok(())
    }
}

fn cache(device: &Arc<Counting>, limit: usize) -> (Arc<Buffers>, Arc<Budget>) {
    let budget = Budget::new(limit);
    let blocks = device.size_bytes() / 1024;
    (Buffers::new(device.clone(), BlockSize::MIN, blocks, &budget), budget)
}

fn assert_whole(buffers: &Buffers, budget: &Budget) {
    buffers.shards.all().for_each(|shard| shard.slots.assert_whole());
    let stats = buffers.stats();
    assert_eq!(stats.bytes, stats.blocks * buffers.charge_per_block());
    assert_eq!(budget.used(), stats.bytes);
}

#[test]
fn a_block_is_read_once_and_verified_once_per_owner() {
    let device = Counting::new(100, 0..0);
    let (buffers, budget) = cache(&device, 1 << 20);
    let mut verified = 0;
    for owner in [OWNER, OWNER, Owner { ino: 8, ..OWNER }, Owner { kind: Kind::Xattr, ino: 8 }] {
        let buffer = buffers.get(Pblk(42), owner, |bytes| {
            verified += 1;
            Malformed::unless(bytes[0] == 42, "toy", "must be block 42", bytes[0])
        });
        assert_eq!(buffer.unwrap()[0], 42);
    }
    assert_eq!((verified, device.reads()), (3, 1));
    let stats = buffers.stats();
    assert_eq!((stats.hits, stats.misses, stats.blocks), (3, 1, 1));
    assert_whole(&buffers, &budget);
    drop(buffers);
    assert_eq!(budget.used(), 0);
}

#[test]
fn faults_have_their_place() {
    let device = Counting::new(100, 50..51);
    let (buffers, _) = cache(&device, 1 << 20);
    let refuse = |_: &[u8]| Err(Malformed::new("toy", "must be good", 1u8));
    for _ in 0..2 {
        let fault = buffers.get(Pblk(9), OWNER, refuse).unwrap_err();
        assert_eq!(fault.to_string(), "inode 7, block 9: toy: must be good, found 0x1");
    }
    assert_eq!(device.reads(), 1, "a damaged block is not read again");
    for block in [100, 1 << 40, u64::MAX] {
        let fault = buffers.get(Pblk(block), OWNER, |_| Ok(())).unwrap_err();
        let ReadFault::Corrupt(corrupt) = fault else { panic!("{fault}") };
        assert_eq!(corrupt.fact.rule, "block must lie inside the file system");
        assert_eq!((corrupt.fact.found, corrupt.place.block), (block, Some(Pblk(block))));
    }
    let fault = buffers.get(Pblk(50), OWNER, |_| Ok(())).unwrap_err();
    assert!(matches!(fault, ReadFault::Device(DeviceFault::Io { offset: 51200, .. })), "{fault}");
    let fault = ReadFault::corrupt(CorruptAt::default(), Malformed::new("toy", "rule", 0u8));
    assert_eq!(
        fault.of_ino(Ino(3)).at_lblk(Lblk(4)).to_string(),
        "inode 3, logical block 4: toy: rule, found 0x0"
    );
}

#[test]
fn a_prefetch_reads_runs_of_what_is_missing() {
    let device = Counting::new(200, 150..151);
    let (buffers, budget) = cache(&device, 1 << 20);
    buffers.get(Pblk(12), OWNER, |_| Ok(())).unwrap();
    buffers.prefetch(Pblk(10), 8);
    assert_eq!(device.reads(), 3, "10 and 11, 13 to 17");
    buffers.prefetch(Pblk(10), 8);
    assert_eq!(device.reads(), 3);
    for block in 10..18 {
        assert_eq!(buffers.get(Pblk(block), OWNER, |_| Ok(())).unwrap()[0], block as u8);
    }
    assert_eq!(device.reads(), 3);
    assert_eq!(buffers.stats().prefetched, 7);
    // A broken block fails its whole piece; the error shows when the block is read for use.
    buffers.prefetch(Pblk(140), 20);
    assert_eq!(buffers.stats().prefetched, 7);
    assert!(buffers.get(Pblk(140), OWNER, |_| Ok(())).is_ok());
    // Past the end nothing is read.
    buffers.prefetch(Pblk(195), u32::MAX);
    buffers.prefetch(Pblk(u64::MAX), u32::MAX);
    assert_eq!(buffers.stats().prefetched, 12);
    assert_whole(&buffers, &budget);
}

#[test]
fn a_prefetch_is_bounded() {
    let device = Counting::new(100_000, 0..0);
    let (buffers, _) = cache(&device, 1 << 30);
    buffers.prefetch(Pblk(0), 100_000);
    assert_eq!(buffers.stats().prefetched, 8 << 10);
    assert_eq!(device.reads(), 8, "1 MiB at a time");
    let (buffers, _) = cache(&device, 1 << 20);
    buffers.prefetch(Pblk(0), 100_000);
    assert_eq!(buffers.stats().prefetched, 128);
}

#[test]
fn the_budget_is_kept_and_what_is_held_stays() {
    let device = Counting::new(20_000, 0..0);
    let (buffers, budget) = cache(&device, 1 << 20);
    let held: Vec<Buffer> =
        (0..100).map(|block| buffers.get(Pblk(block), OWNER, |_| Ok(())).unwrap()).collect();
    for block in 0..20_000 {
        buffers.get(Pblk(block), OWNER, |_| Ok(())).unwrap();
        buffers.get(Pblk(200), OWNER, |_| Ok(())).unwrap();
    }
    assert!(budget.used() < (1 << 20) + (1 << 16), "{budget:?}");
    assert_whole(&buffers, &budget);
    let reads = device.reads();
    for (block, buffer) in (0..).zip(&held) {
        assert_eq!((buffer[0], buffer.block()), (block as u8, Pblk(block)));
        buffers.get(Pblk(block), OWNER, |_| Ok(())).unwrap();
    }
    assert_eq!(device.reads(), reads, "blocks with holders were kept");
    assert!(device.reads() < 20_010, "the touched block 200 was kept nearly always: {}", device.reads());
    assert!(buffers.stats().evicted > 18_000);
}

#[test]
fn threads_see_the_same_bytes() {
    let device = Counting::new(256, 0..0);
    let (buffers, budget) = cache(&device, 64 << 10);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let buffers = &buffers;
            scope.spawn(move || {
                for i in 0..20_000u64 {
                    let block = (i * 7 + thread) % 256;
                    let owner = Owner { kind: Kind::Other, ino: (i % 2) as u32 };
                    let buffer = buffers.get(Pblk(block), owner, |_| Ok(())).unwrap();
                    assert_eq!(u64::from(buffer[0]), block);
                    if i % 64 == 0 {
                        buffers.prefetch(Pblk(block), 16);
                    }
                }
            });
        }
    });
    assert_whole(&buffers, &budget);
}

#[test]
fn the_dump_is_stable() {
    let stats = Stats {
        hits: 1,
        misses: 22,
        prefetched: 333,
        deferred_reads: 12,
        evicted: 4,
        blocks: 5,
        bytes: 5600,
    };
    let dump = "\
metadata blocks
  hits                   1
  misses                22
  prefetched           333
  deferred              12
  evicted                4
  held                   5 blocks, 5600 bytes
";
    assert_eq!(stats.to_string(), dump);
}

#[test]
fn every_kind_is_found_by_its_number() {
    for kind in Kind::ALL {
        let owner = Owner { kind, ino: 7 };
        assert_eq!(Owner::from_word(owner.word()), Some(owner));
    }
    assert_eq!(Owner::from_word(0), None);
}

#[test]
fn a_change_leaves_what_was_handed_out_alone_and_stays_until_it_is_clean() {
    let device = Arc::new(MemDevice::new(64 << 10));
    let budget = Budget::new(1 << 20);
    let buffers = Buffers::new(device, BlockSize::MIN, 64, &budget);
    let owner = Owner { kind: Kind::Other, ino: 0 };
    let seal = Seal { owner, seed: None };
    let before = buffers.get(Pblk(3), owner, |_| Ok(())).unwrap();
    Direct(&buffers).change(Pblk(3), seal, &mut |bytes| bytes[0] = 9).unwrap();
    assert_eq!((before[0], buffers.get(Pblk(3), owner, |_| Ok(())).unwrap()[0]), (0, 9));
    drop(before);
    // Several times: the first passes only clear the touched flags.
    buffers.shrink(1 << 20);
    buffers.shrink(1 << 20);
    assert_eq!(buffers.snapshot(Pblk(3)).unwrap().0[0], 9, "not given back while changed");
    assert_eq!(buffers.snapshot(Pblk(3)).unwrap().1, Some(owner));
    buffers.set_clean_through(extant_base::Tid(1), false);
    for _ in 0..3 {
        buffers.shrink(1 << 20);
    }
    assert_eq!(buffers.stats().blocks, 0);
}

#[test]
fn a_block_that_the_device_keeps_too_leaves_the_cache_as_others() {
    let device = Arc::new(MemDevice::new(64 << 10));
    let buffers = Buffers::new(device.clone(), BlockSize::KIB4, 16, &Budget::new(1 << 20));
    let owner = Owner { kind: Kind::Other, ino: 0 };
    let write = |transaction: Tid| {
        buffers.change(Pblk(3), owner, transaction, &mut |bytes| bytes[0] = transaction.0 as u8).unwrap();
        let bytes = buffers.snapshot(Pblk(3)).unwrap().0.into_shared();
        // The log's copy, and the home.
        let mut parts = extant_device::SharedParts::default();
        for (offset, bytes) in [(9 << 12, bytes.clone()), (3 << 12, bytes)] {
            parts.begin(offset);
            parts.push(bytes);
        }
        assert!(device.write_shared_at(&mut parts).unwrap());
        buffers.set_clean_through(transaction, true);
    };
    let shrink = || (0..3).fold(0, |freed, _| freed + buffers.shrink(1 << 20));
    write(extant_base::Tid(1));
    let held = buffers.get(Pblk(3), owner, |_| Ok(())).unwrap();
    shrink();
    assert_eq!(buffers.stats().blocks, 1, "held");
    drop(held);
    shrink();
    assert_eq!(buffers.stats().blocks, 0);
    // A further change goes to the cache's own copy; the device's bytes stay.
    write(extant_base::Tid(2));
    buffers.change(Pblk(3), owner, extant_base::Tid(3), &mut |bytes| bytes[0] = 3).unwrap();
    shrink();
    let mut byte = [0];
    device.read_at(3 << 12, &mut byte).unwrap();
    assert_eq!((byte[0], buffers.snapshot(Pblk(3)).unwrap().0[0]), (2, 3));
}

/// Blocks as a transaction left them, in the order of `blocks`.
fn all_taken(
    buffers: &Buffers,
    blocks: &[(Pblk, Hint)],
    transaction: Tid,
    log_sum: &dyn Fn(&PatchedBlock) -> Option<u32>,
) -> Vec<Snapshot> {
    let mut all: Vec<Option<Snapshot>> = blocks.iter().map(|_| None).collect();
    let wanted: Vec<_> = (0..).zip(blocks).map(|(at, (block, hint))| (*block, *hint, at)).collect();
    buffers.take(&wanted, transaction, log_sum, |at: usize, snapshot| all[at] = Some(snapshot)).unwrap();
    all.into_iter().map(Option::unwrap).collect()
}

/// Taking many blocks and marking them clean works as for a single block, whatever their hints.
#[test]
fn many_blocks_are_taken_at_once() {
    let device = Arc::new(MemDevice::new(1 << 20));
    let buffers = Buffers::new(device.clone(), BlockSize::MIN, 1024, &Budget::new(4 << 20));
    let owner = Owner { kind: Kind::Other, ino: 0 };
    let mut places = Vec::new();
    for block in (0..600).map(Pblk) {
        let mut hint = Hint::NONE;
        buffers
            .change_at(block, &mut hint, owner, extant_base::Tid(1), &mut |bytes| bytes[0] = block.0 as u8)
            .unwrap();
        // A right hint, none, and a wrong one.
        places.push((block, [hint, Hint::NONE, Hint(3)][block.0 as usize % 3]));
    }
    // Not in memory.
    places.push((Pblk(700), Hint(1)));
    let taken = all_taken(&buffers, &places, extant_base::Tid(1), &|_| None);
    assert_eq!(taken.len(), places.len());
    for (Snapshot { buffer, owner: owned, .. }, (block, _)) in taken.iter().zip(&places) {
        assert_eq!(buffer.block(), *block);
        assert_eq!(
            (buffer[0], *owned),
            if block.0 == 700 { (0, None) } else { (block.0 as u8, Some(owner)) }
        );
    }
    drop(taken);
    let shrink = || (0..3).fold(0, |freed, _| freed + buffers.shrink(4 << 20));
    shrink();
    assert_eq!(buffers.stats().blocks, 600, "changed");
    buffers.change(Pblk(3), owner, extant_base::Tid(2), &mut |bytes| bytes[0] = 0).unwrap();
    buffers.set_clean_through(extant_base::Tid(1), false);
    shrink();
    assert_eq!(buffers.stats().blocks, 1, "the next one's");
    buffers.set_clean_through(extant_base::Tid(2), false);
    shrink();
    assert_eq!(buffers.stats().blocks, 0);
}

/// Calls a function once, after the next read has copied the device's bytes.
struct Slow {
    device: MemDevice,
    after_read: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Slow {
    fn pause(&self) {
        let pause = self.after_read.lock().take();
        if let Some(pause) = pause {
            pause();
        }
    }
}

impl Device for Slow {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        self.device.read_at(offset, buf)?;
        self.pause();
        Ok(())
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), DeviceFault> {
        self.device.read_vectored_at(offset, bufs)?;
        self.pause();
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        self.device.write_at(offset, bytes)
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        self.device.zero_at(offset, len)
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        Ok(())
    }
}

/// While a block is read, another thread creates it, writes it home and evicts it: the stale bytes must not
/// be returned.
#[test]
fn a_read_that_was_overtaken_is_not_kept() {
    let read: [fn(&Buffers); 3] = [
        |buffers| buffers.prefetch(Pblk(2), 3),
        |buffers| drop(buffers.get(Pblk(3), OWNER, |_| Ok(())).unwrap()),
        |buffers| {
            assert!(buffers.change(Pblk(3), OWNER, extant_base::Tid(2), &mut |bytes| bytes[1] = 1).unwrap())
        },
    ];
    for (way, read) in read.into_iter().enumerate() {
        let device = Arc::new(Slow { device: MemDevice::new(64 << 10), after_read: Mutex::new(None) });
        let budget = Budget::new(1 << 20);
        let buffers = Buffers::new(device.clone(), BlockSize::MIN, 64, &budget);
        let (in_cache, home) = (buffers.clone(), Arc::downgrade(&device));
        *device.after_read.lock() = Some(Box::new(move || {
            in_cache.fresh(Pblk(3), OWNER, extant_base::Tid(1), &mut |bytes| bytes[0] = 9);
            let committed = in_cache.snapshot(Pblk(3)).unwrap().0;
            home.upgrade().unwrap().write_at(3 * 1024, &committed).unwrap();
            drop(committed);
            in_cache.set_clean_through(extant_base::Tid(1), false);
            for _ in 0..3 {
                in_cache.shrink(1 << 20);
            }
            assert!(!in_cache.shards.of(Pblk(3)).slots.contains(Pblk(3)), "it left");
        }));
        read(&buffers);
        assert_eq!(buffers.get(Pblk(3), OWNER, |_| Ok(())).unwrap()[0], 9, "way {way}");
        assert_whole(&buffers, &budget);
    }
}

/// A reader with an outdated block number may read a block as something else. That must not affect the
/// block's owner.
#[test]
fn a_reader_does_not_take_a_changed_block_away_from_its_owner() {
    let device = Arc::new(MemDevice::new(64 << 10));
    let buffers = Buffers::new(device.clone(), BlockSize::MIN, 64, &Budget::new(1 << 20));
    let [leaf, other] = [(Kind::DirLeaf, 12), (Kind::Other, 11)].map(|(kind, ino)| Owner { kind, ino });
    let is_sealed = |bytes: &[u8]| Malformed::unless(bytes[1023] == 9, "toy", "must be sealed", bytes[1023]);
    let owner_at_the_commit = || buffers.snapshot(Pblk(3)).unwrap().1;
    buffers.fresh(Pblk(3), leaf, extant_base::Tid(1), &mut |bytes| bytes[0] = 1);
    buffers.get(Pblk(3), other, |_| Ok(())).unwrap();
    assert_eq!(owner_at_the_commit(), Some(leaf));
    buffers.get(Pblk(3), leaf, is_sealed).unwrap();
    buffers.change(Pblk(3), leaf, extant_base::Tid(1), &mut |bytes| bytes[1] = 1).unwrap();
    buffers.get(Pblk(3), other, |_| Ok(())).unwrap();
    assert_eq!(owner_at_the_commit(), Some(leaf));
    buffers.get(Pblk(3), leaf, is_sealed).unwrap();
    // Nor after it was written.
    let mut sealed = buffers.snapshot(Pblk(3)).unwrap().0.into_shared();
    sealed.make_mut()[1023] = 9;
    device.write_at(3 << 10, &sealed).unwrap();
    buffers.set_clean_through(extant_base::Tid(1), false);
    buffers.get(Pblk(3), other, |_| Ok(())).unwrap();
    assert_eq!(owner_at_the_commit(), Some(leaf));
    // After a new read, the owner is the one that the reader verifies for.
    buffers.forget(Pblk(3));
    buffers.get(Pblk(3), other, |_| Ok(())).unwrap();
    buffers.get(Pblk(3), leaf, is_sealed).unwrap();
    assert!(buffers.get(Pblk(4), leaf, is_sealed).is_err());
}

/// A block that was read again is verified before a change that does not read it: otherwise a damaged block
/// would get a correct checksum.
#[test]
fn what_came_back_from_the_device_is_verified_before_it_is_changed() {
    let device = Arc::new(MemDevice::new(64 << 10));
    device.write_at(3 << 12, b"sound").unwrap();
    let buffers = Buffers::new(device.clone(), BlockSize::KIB4, 16, &Budget::new(1 << 20));
    let owner = Owner { kind: Kind::DirLeaf, ino: 7 };
    let mut hint = Hint::NONE;
    let mut verify = |runs: &mut u32| {
        buffers.verify_at(Pblk(3), &mut hint, owner, |bytes| {
            *runs += 1;
            Malformed::unless(bytes.starts_with(b"sound"), "toy", "must be sound", bytes[0])
        })
    };
    let mut runs = 0;
    verify(&mut runs).unwrap();
    verify(&mut runs).unwrap();
    assert_eq!(runs, 1, "it is here and was verified");
    buffers.change(Pblk(3), owner, extant_base::Tid(1), &mut |bytes| bytes[0] = b'x').unwrap();
    verify(&mut runs).unwrap();
    assert_eq!(runs, 1, "what was changed here has no checksum yet");
    buffers.set_clean_through(extant_base::Tid(1), false);
    for _ in 0..3 {
        buffers.shrink(1 << 20);
    }
    assert_eq!(buffers.stats().blocks, 0);
    device.write_at(3 << 12, b"rotten").unwrap();
    assert!(verify(&mut runs).is_err());
    assert_eq!(runs, 2);
}

/// Readers see pending changes applied, in order; a commit gets them in a copy that ends in the right
/// checksum.
#[test]
fn pending_changes_are_applied_before_the_block_is_read() {
    let (buffers, _) = cache(&Counting::new(100, 0..0), 1 << 20);
    let owner = Owner { kind: Kind::DirLeaf, ino: 7 };
    let stranger = Owner { kind: Kind::DirLeaf, ino: 8 };
    let span = ChecksumSpan { seed: 77, len: 1012 };
    let patch = |owner: Owner, transaction: Tid, pieces: &[(usize, &[u8])]| {
        buffers.patch_at(
            Pblk(5),
            &mut { Hint::NONE },
            owner,
            transaction,
            &PendingChange { span, expected: (0, &[]), pieces },
        )
    };
    let take = |transaction: Tid| {
        let patched = std::cell::Cell::new(None);
        let log_sum = |it: &PatchedBlock| {
            patched.set(Some(*it));
            Some(5)
        };
        (all_taken(&buffers, &[(Pblk(5), Hint::NONE)], transaction, &log_sum).remove(0), patched.take())
    };
    let check = |(taken, patched): (Snapshot, Option<PatchedBlock>)| {
        let patched = patched.unwrap();
        assert_eq!((patched.span, taken.log_sum), (span, Some(5)));
        assert!(taken.buffer.starts_with(&patched.start) && taken.buffer.ends_with(&patched.end));
        assert!(taken.has_sum && taken.owner == Some(owner));
        let sum = extant_base::checksum::crc32c(77, &taken.buffer[..1012]);
        assert_eq!(taken.buffer[1020..], sum.to_le_bytes());
        taken.buffer
    };
    buffers.fresh(Pblk(5), owner, extant_base::Tid(1), &mut |bytes| bytes[0] = 1);
    assert_eq!(patch(stranger, extant_base::Tid(1), &[(0, b"x")]), None, "it is another's");
    assert_eq!(patch(owner, extant_base::Tid(1), &[(0, b"ab"), (900, b"long")]), Some(false));
    assert_eq!(patch(owner, extant_base::Tid(1), &[(1, b"c")]), Some(false));
    assert_eq!(buffers.get(Pblk(5), owner, |_| Ok(())).unwrap()[..3], *b"ac\0");
    assert_eq!(patch(owner, extant_base::Tid(1), &[(2, b"d")]), Some(false));
    let first = check(take(extant_base::Tid(1)));
    assert_eq!((&first[..4], &first[900..904]), (&b"acd\0"[..], &b"long"[..]));
    assert!(take(extant_base::Tid(1)).1.is_none(), "nothing waits any more");
    // `first` still refers to the bytes: the next change is made in a copy, which replaces them in the cache.
    assert_eq!(
        patch(owner, extant_base::Tid(2), &[(3, b"e")]),
        Some(true),
        "the first change of another transaction"
    );
    buffers.begin_taking(extant_base::Tid(2));
    let second = check(take(extant_base::Tid(2)));
    assert_eq!((&first[..4], &second[..4]), (&b"acd\0"[..], &b"acde"[..]));
    assert!(second.bytes.is(&buffers.snapshot(Pblk(5)).unwrap().0.bytes), "memory has it once");
    buffers.end_taking();
    assert_eq!(patch(owner, extant_base::Tid(3), &[(4, b"f")]), Some(true));
    buffers.begin_taking(extant_base::Tid(3));
    assert_eq!(patch(owner, extant_base::Tid(4), &[(5, b"g")]), Some(true), "not taken yet: kept as it was");
    let (third, patched) = take(extant_base::Tid(3));
    assert!(patched.is_none() && third.log_sum.is_none() && third.buffer[..6] == *b"acdef\0");
    buffers.end_taking();
    assert_eq!(buffers.snapshot(Pblk(5)).unwrap().0[..6], *b"acdefg");
    buffers.change(Pblk(5), owner, extant_base::Tid(4), &mut |bytes| bytes[3] = 9).unwrap();
    assert!(!take(extant_base::Tid(4)).0.has_sum, "readers need not say what they change");
    assert_eq!(patch(owner, extant_base::Tid(5), &[(6, b"h")]), Some(true));
    check(take(extant_base::Tid(5)));
    assert_eq!(patch(owner, extant_base::Tid(6), &[(7, b"i")]), Some(true));
    buffers.forget(Pblk(5));
    assert!(buffers.fresh(Pblk(5), stranger, extant_base::Tid(6), &mut |bytes| bytes[9] = 1));
    assert_eq!(buffers.snapshot(Pblk(5)).unwrap().0[..10], [0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
}

/// The checksum with which a block was stored is returned when it is taken, unless the block changed.
#[test]
fn the_checksum_of_a_block_that_was_put_is_known_until_it_changes() {
    let (buffers, _) = cache(&Counting::new(100, 0..0), 1 << 20);
    let owner = Owner { kind: Kind::InodeTable, ino: 0 };
    let contents = |byte: u8| BlockContents::new(vec![byte; 1024].into());
    let taken_block = |block: u64, transaction: Tid| {
        let mut taken_block = None;
        let each = |(), snapshot: Snapshot| taken_block = Some((snapshot.buffer[9], snapshot.whole_sum));
        buffers.take(&[(Pblk(block), Hint::NONE, ())], transaction, &|_| None, each).unwrap();
        taken_block.unwrap()
    };
    let sum = Some(extant_base::checksum::crc32c(0, &[5; 1024]));
    for block in 0..4 {
        assert!(buffers.put(Pblk(block), owner, extant_base::Tid(1), contents(5)));
    }
    assert_eq!((contents(5).start(), taken_block(0, extant_base::Tid(1))), ([5; 4], (5, sum)));
    buffers.change(Pblk(1), owner, extant_base::Tid(1), &mut |bytes| bytes[9] = 6).unwrap();
    assert_eq!(taken_block(1, extant_base::Tid(1)), (6, None));
    let patch =
        PendingChange { span: ChecksumSpan { seed: 7, len: 1012 }, expected: (0, &[]), pieces: &[(9, &[7])] };
    assert_eq!(
        buffers.patch_at(Pblk(2), &mut { Hint::NONE }, owner, extant_base::Tid(1), &patch),
        Some(false)
    );
    assert_eq!(taken_block(2, extant_base::Tid(1)), (7, None));
    // As the transaction left it, although the next one already changed it.
    buffers.begin_taking(extant_base::Tid(1));
    buffers.change(Pblk(3), owner, extant_base::Tid(2), &mut |bytes| bytes[9] = 8).unwrap();
    assert_eq!(taken_block(3, extant_base::Tid(1)), (5, sum));
    buffers.end_taking();
    assert_eq!(taken_block(3, extant_base::Tid(2)), (8, None));
    // Stored again while the block is in memory: the bytes are copied, and the checksum is not kept.
    assert!(buffers.put(Pblk(0), owner, extant_base::Tid(2), contents(9)));
    assert_eq!(taken_block(0, extant_base::Tid(2)), (9, None));
    assert!(buffers.put(Pblk(50), owner, extant_base::Tid(2), contents(9).without_sum()));
    assert_eq!(taken_block(50, extant_base::Tid(2)), (9, None));
}

/// A block that no commit takes, because damage caused it to be freed and used in one transaction: its
/// changes are lost with the transaction, and never get into another block.
#[test]
fn dropped_changes_do_not_get_into_other_blocks() {
    let (buffers, _) = cache(&Counting::new(100, 0..0), 1 << 20);
    let owner = Owner { kind: Kind::DirLeaf, ino: 7 };
    let patch = |block: Pblk, transaction: Tid, byte: u8| {
        let patch = PendingChange {
            span: ChecksumSpan { seed: 77, len: 1012 },
            expected: (0, &[]),
            pieces: &[(usize::from(byte), &[byte])],
        };
        buffers.patch_at(block, &mut { Hint::NONE }, owner, transaction, &patch)
    };
    let blocks: Vec<Pblk> = (0..40).map(Pblk).collect();
    for block in &blocks {
        buffers.fresh(*block, owner, extant_base::Tid(1), &mut |_| ());
    }
    blocks.iter().for_each(|block| assert_eq!(patch(*block, extant_base::Tid(1), 1), Some(false)));
    // Transaction 1 took none. Transaction 3 changes half of them again, and then all are read.
    blocks[..20].iter().for_each(|block| assert_eq!(patch(*block, extant_base::Tid(3), 3), Some(true)));
    for (at, block) in blocks.iter().enumerate() {
        let bytes = buffers.snapshot(*block).unwrap().0;
        let is_strange = |(at, byte): &(usize, &u8)| **byte != 0 && usize::from(**byte) != *at;
        let strange = bytes.iter().enumerate().filter(is_strange).count();
        assert_eq!((strange, bytes[3]), (0, if at < 20 { 3 } else { 0 }), "block {at}");
    }
}

/// The next transaction changes, drops and creates blocks before the previous one's are taken; the commit
/// gets the old versions.
#[test]
fn blocks_are_taken_as_their_transaction_left_them() {
    let (buffers, _) = cache(&Counting::new(100, 0..0), 1 << 20);
    let owner = Owner { kind: Kind::Other, ino: 3 };
    let other = Owner { kind: Kind::Other, ino: 4 };
    let write = |block: u64, owner: Owner, transaction: Tid, byte: u8| {
        buffers.change(Pblk(block), owner, transaction, &mut |bytes| bytes[9] = byte).unwrap()
    };
    for block in 0..6 {
        assert!(write(block, owner, extant_base::Tid(1), 10 + block as u8));
    }
    buffers.begin_taking(extant_base::Tid(1));
    assert!(write(1, other, extant_base::Tid(2), 21));
    assert!(!write(1, other, extant_base::Tid(2), 22), "kept as it was before the first change");
    buffers.forget(Pblk(2));
    buffers.forget(Pblk(3));
    assert!(buffers.fresh(Pblk(3), other, extant_base::Tid(2), &mut |bytes| bytes[9] = 23));
    assert!(buffers.fresh(Pblk(4), other, extant_base::Tid(2), &mut |bytes| bytes[9] = 24));
    let mut change = |bytes: &mut [u8]| bytes[9] = 25;
    let mut hint = Hint::NONE;
    let changed = buffers.change_trusted_at(Pblk(5), &mut hint, owner, extant_base::Tid(2), &mut change);
    assert_eq!(changed, Some(true));
    let all: Vec<_> = (0..6).map(|block| (Pblk(block), Hint::NONE)).collect();
    let taken = all_taken(&buffers, &all, extant_base::Tid(1), &|_| None);
    buffers.end_taking();
    for (block, taken) in taken.iter().enumerate() {
        assert_eq!((taken.buffer[9], taken.owner), (10 + block as u8, Some(owner)), "block {block}");
    }
    let now = [10, 22, 0, 23, 24, 25];
    for (block, byte) in now.into_iter().enumerate() {
        assert_eq!(buffers.snapshot(Pblk(block as u64)).unwrap().0[9], byte, "block {block}");
    }
}

/// A pending change of a block with unexpected bytes is not applied, and the commit fails, even if another
/// reader applied it first.
#[test]
fn a_block_that_is_not_as_it_was_said_to_be_is_not_committed() {
    for looked_at in [false, true] {
        let (buffers, _) = cache(&Counting::new(100, 0..0), 1 << 20);
        let span = ChecksumSpan { seed: 77, len: 1012 };
        let patch = |transaction: Tid, expected: &[u8], byte: u8| {
            let patch = PendingChange { span, expected: (7, expected), pieces: &[(8, &[byte])] };
            buffers.patch_at(Pblk(5), &mut { Hint::NONE }, OWNER, transaction, &patch).unwrap()
        };
        let take = |transaction: Tid| {
            let each = |(), _: Snapshot| ();
            buffers.take(&[(Pblk(5), Hint::NONE, ())], transaction, &|_| None, each)
        };
        buffers.fresh(Pblk(5), OWNER, extant_base::Tid(1), &mut |bytes| bytes[7] = 1);
        // The second change expects what the first one wrote.
        patch(extant_base::Tid(1), &[1, 0], 2);
        patch(extant_base::Tid(1), &[1, 2], 3);
        take(extant_base::Tid(1)).unwrap();
        patch(extant_base::Tid(2), &[1, 2], 4);
        if looked_at {
            assert_eq!(buffers.get(Pblk(5), OWNER, |_| Ok(())).unwrap()[7..9], [1, 3]);
        }
        let refused = take(extant_base::Tid(2)).unwrap_err();
        assert!(
            matches!(&refused, ReadFault::Corrupt(fault) if fault.to_string().contains("block 5")),
            "{refused}"
        );
    }
}

/// Seals a block for the tests of absent blocks.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = extant_base::checksum::crc32c(77, &bytes[..1012]);
    bytes[1020..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

const SPAN: ChecksumSpan = ChecksumSpan { seed: 77, len: 1012 };

/// Blocks that were evicted are changed without being read. Readers, the commit and the next transaction see
/// what a model sees, whichever of them comes first, while blocks are changed by other means, evicted,
/// dropped and made anew.
#[test]
fn absent_blocks_are_as_a_model_has_them() {
    const BLOCKS: u64 = 40;
    let mut deferred = 0;
    for seed in 1..60u64 {
        let mut random = seed;
        let mut next = move |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        let device = Counting::new(BLOCKS, 0..0);
        let mut model: Vec<Vec<u8>> = Vec::new();
        for block in 0..BLOCKS {
            model.push(sealed(vec![block as u8; 1024]));
            device.write_at(block * 1024, model.last().unwrap()).unwrap();
        }
        let (buffers, budget) = cache(&device, 12 * 1024);
        if seed % 3 == 0 {
            // There is room for few changes of one transaction.
            buffers.shards.all().for_each(|mut shard| shard.set_pending_max(16));
        }
        for number in 1..30 {
            let tid = Tid(2 * number - 1);
            let mut changed = std::collections::BTreeSet::new();
            let mut work = |tid: Tid,
                            model: &mut Vec<Vec<u8>>,
                            steps: u64,
                            changed: &mut std::collections::BTreeSet<u64>| {
                for _ in 0..steps {
                    let block = next(BLOCKS);
                    let at = 4 * next(250) as usize;
                    let bytes = [next(256) as u8, tid.0 as u8];
                    let now = &mut model[block as usize];
                    match next(16) {
                        0..8 => {
                            let pieces = [(at, &bytes[..])];
                            let patch = PendingChange {
                                span: SPAN,
                                expected: (at + 2, &now[at + 2..at + 4]),
                                pieces: &pieces,
                            };
                            let first = buffers.patch_at(
                                Pblk(block),
                                &mut { Hint(next(9) as u32) },
                                OWNER,
                                tid,
                                &patch,
                            );
                            let Some(first) = first else { continue };
                            assert_eq!(first, changed.insert(block));
                            now[at..at + 2].copy_from_slice(&bytes);
                        }
                        8..10 => {
                            let first = buffers.change(Pblk(block), OWNER, tid, &mut |all| {
                                all[at..at + 2].copy_from_slice(&bytes)
                            });
                            assert_eq!(first.unwrap(), changed.insert(block));
                            now[at..at + 2].copy_from_slice(&bytes);
                        }
                        10..13 => {
                            let read = buffers.get(Pblk(block), OWNER, |_| Ok(())).unwrap();
                            assert!(read[..1012] == now[..1012], "block {block} in {tid:?}");
                        }
                        13 => {
                            if next(4) == 0 {
                                buffers.forget(Pblk(block));
                                changed.remove(&block);
                            }
                            let first = buffers.fresh(Pblk(block), OWNER, tid, &mut |all| all[at] = bytes[0]);
                            assert_eq!(first, changed.insert(block));
                            now.fill(0);
                            now[at] = bytes[0];
                        }
                        14 => buffers.prefetch(Pblk(block), 3),
                        _ => drop(buffers.shrink(4096)),
                    }
                }
            };
            work(tid, &mut model, 20, &mut changed);
            let left: Vec<Vec<u8>> = model.clone();
            buffers.begin_taking(tid);
            let mut later = std::collections::BTreeSet::new();
            work(tid.next(), &mut model, 15, &mut later);
            let all: Vec<_> = changed.iter().map(|block| (Pblk(*block), Hint::NONE)).collect();
            for taken in all_taken(&buffers, &all, tid, &|_| None) {
                let block = taken.buffer.block().0;
                assert!(taken.buffer[..1012] == left[block as usize][..1012], "block {block} of {tid:?}");
                device.write_at(block * 1024, &sealed(taken.buffer.to_vec())).unwrap();
            }
            buffers.end_taking();
            buffers.set_clean_through(tid, false);
            let all: Vec<_> = later.iter().map(|block| (Pblk(*block), Hint::NONE)).collect();
            for taken in all_taken(&buffers, &all, tid.next(), &|_| None) {
                let block = taken.buffer.block().0;
                assert!(taken.buffer[..1012] == model[block as usize][..1012], "block {block} of {tid:?}");
                device.write_at(block * 1024, &sealed(taken.buffer.to_vec())).unwrap();
            }
            buffers.set_clean_through(tid.next(), false);
            if number % 2 == 1 {
                buffers.shrink(1 << 20);
            }
        }
        deferred += buffers.stats().deferred_reads;
        assert_whole(&buffers, &budget);
    }
    assert!(deferred > 1000, "{deferred} blocks were absent at a commit");
}

/// A block that is damaged on the device, or cannot be read, after it was evicted: its changes are not
/// committed, whether a lookup or the commit reads it first; readers get the error.
#[test]
fn changes_of_an_absent_block_that_is_damaged_are_not_committed() {
    for (looked_at, is_taking) in [(false, false), (true, false), (false, true), (true, true)] {
        let device = Counting::new(100, 50..51);
        let (buffers, _) = cache(&device, 1 << 20);
        device.write_at(5 * 1024, &sealed(vec![5; 1024])).unwrap();
        device.write_at(5 * 1024 + 9, b"rot").unwrap();
        for block in [5, 50] {
            let patch = PendingChange { span: SPAN, expected: (0, &[]), pieces: &[(8, &[1])] };
            assert_eq!(buffers.patch_at(Pblk(block), &mut { Hint::NONE }, OWNER, Tid(1), &patch), Some(true));
            if is_taking {
                // The next transaction changes it as well, before it is taken.
                buffers.begin_taking(Tid(1));
                let next = buffers.patch_at(Pblk(block), &mut { Hint::NONE }, OWNER, Tid(2), &patch);
                assert_eq!(next, Some(true));
            }
            if looked_at {
                let refuse = |_: &[u8]| Err(Malformed::new("toy", "checksum must match", 1u8));
                assert!(buffers.get(Pblk(block), OWNER, refuse).is_err());
            }
            let taken = buffers.take(&[(Pblk(block), Hint::NONE, ())], Tid(1), &|_| None, |(), _| ());
            assert!(taken.is_err(), "block {block}");
            let refuse = |_: &[u8]| Err(Malformed::new("toy", "checksum must match", 1u8));
            assert!(buffers.get(Pblk(block), OWNER, refuse).is_err(), "it is not verified");
        }
    }
}

/// Blocks that are touched all the time stay within the budget.
#[test]
fn the_budget_is_kept_if_all_blocks_are_in_use() {
    let device = Counting::new(2000, 0..0);
    let (buffers, budget) = cache(&device, 200 * 1024);
    for block in 0..1000 {
        buffers.get(Pblk(block), OWNER, |_| Ok(())).unwrap();
        // All of them, but that does not read any.
        for old in 0..block {
            if buffers.shards.of(Pblk(old)).slots.contains(Pblk(old)) {
                buffers.get(Pblk(old), OWNER, |_| Ok(())).unwrap();
            }
        }
    }
    assert!(budget.used() <= 210 * 1024, "{} bytes", budget.used());
}
