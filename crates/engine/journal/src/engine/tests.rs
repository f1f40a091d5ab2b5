//! A journal over memory; each block records which transaction wrote it.

use std::sync::atomic::AtomicU64;

use extant_base::{BlockSize, Tid};
use extant_buffer::{Edit, Kind, Owner};
use extant_device::MemDevice;
use extant_jbd2_format::Superblock;
use extant_memory::Budget;

use super::*;
use crate::{Log, LogMap, LogRun, ReplayTarget, replay, scan};

const BLOCKS: u64 = 8192;
const LOG: LogRun = LogRun { log: 0, start: Pblk(100), len: 1024 };
const SEAL: Seal = Seal { owner: Owner { kind: Kind::Other, ino: 0 }, seed: Some(1) };

/// Seals a block by writing its sum into its last byte.
#[derive(Default)]
struct Sums {
    committed: AtomicU64,
}

impl Client for Sums {
    fn before_commit(&self, handle: &Handle<'_>) -> Result<(), ReadFault> {
        // The client value of these tests: the transaction's number, in block 7000.
        let number = handle.transaction();
        handle.change(Pblk(7000), SEAL, &mut |bytes| bytes[..8].copy_from_slice(&number.0.to_le_bytes()))
    }

    fn write_values(&self, handle: &Handle<'_>) -> Result<(), ReadFault> {
        // The same, written while the next transaction runs.
        let number = handle.transaction();
        handle.change(Pblk(7001), SEAL, &mut |bytes| bytes[..8].copy_from_slice(&number.0.to_le_bytes()))
    }

    fn blocks_to_come(&self) -> u32 {
        2
    }

    fn seal(&self, _: Pblk, _: Seal, bytes: &mut [u8]) {
        bytes[1023] = sum(bytes);
    }

    fn has_checksum(&self, seal: Seal) -> bool {
        seal.seed.is_some()
    }

    fn committed(&self, transaction: Tid) {
        assert_eq!(self.committed.swap(transaction.0, Ordering::Relaxed) + 1, transaction.0);
    }
}

fn sum(bytes: &[u8]) -> u8 {
    bytes[..1023].iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte))
}

fn log(device: &Arc<MemDevice>) -> Log {
    let map = LogMap::internal([LOG], LOG.len, BLOCKS).unwrap();
    Log::new(device.clone(), map, BlockSize::MIN)
}

fn device() -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new(BLOCKS * 1024));
    let sb = Superblock::fresh(BlockSize::MIN, LOG.len, [7; 16]);
    device.write_at(LOG.start.0 * 1024, &sb.encode()).unwrap();
    device
}

/// A journal of a file system with `64bit` and `metadata_csum`.
fn open(device: &Arc<MemDevice>, options: Options) -> Journal {
    open_as(device, Options { is_wide: true, has_checksums: true, ..options })
}

fn open_as(device: &Arc<MemDevice>, options: Options) -> Journal {
    let buffers = Buffers::new(device.clone(), BlockSize::MIN, BLOCKS, &Budget::new(1 << 20));
    let journal = Journal::open(buffers, device.clone(), Some(log(device)), options).unwrap();
    journal.set_client(Arc::new(Sums::default()));
    journal
}

fn put(journal: &Journal, block: u64, value: u8) {
    let handle = journal.start(1).unwrap();
    handle.change(Pblk(block), SEAL, &mut |bytes| bytes[..1000].fill(value)).unwrap();
}

/// The committer thread, until it is dismissed.
fn work(journal: &Journal) {
    while let Some(work) = journal.wait_for_work(std::time::Duration::from_millis(20)) {
        match work {
            Work::Commit(number) => journal.commit(number).unwrap(),
            Work::CommitAll => journal.commit_all().unwrap(),
            Work::Checkpoint => journal.make_room().unwrap(),
        }
    }
}

fn home(device: &MemDevice, block: u64) -> [u8; 1024] {
    let mut bytes = [0; 1024];
    device.read_at(block * 1024, &mut bytes).unwrap();
    bytes
}

/// A copy of the device after a replay of its current log.
fn replayed(device: &Arc<MemDevice>) -> Arc<MemDevice> {
    let copy = Arc::new(MemDevice::new(BLOCKS * 1024));
    let mut bytes = vec![0; (BLOCKS * 1024) as usize];
    device.read_at(0, &mut bytes).unwrap();
    copy.write_at(0, &bytes).unwrap();
    let log = log(&copy);
    let plan = scan(log.view(), &ReplayTarget::new(BLOCKS, BlockSize::MIN)).unwrap();
    assert!(plan.is_sound(), "{plan}");
    replay(&log, &plan, &*copy).unwrap();
    crate::mark_clean(&log, &plan).unwrap();
    copy
}

fn log_features(device: &Arc<MemDevice>) -> String {
    crate::read_superblock(log(device).view(), &ReplayTarget::new(0, BlockSize::MIN))
        .unwrap()
        .features
        .to_string()
}

/// Regression: ext3, and ext4 without 64bit or metadata_csum, permanently got a log with both features, which
/// old kernels refuse. The right column is what the kernel (6.18) leaves after mount, change and umount.
#[test]
fn a_log_gets_the_features_that_its_file_system_calls_for() {
    for (is_wide, has_checksums, before_revoke) in [
        (false, false, ""),
        (true, false, "journal_64bit"),
        (false, true, "journal_checksum_v3"),
        (true, true, "journal_64bit journal_checksum_v3"),
    ] {
        let device = device();
        let journal = open_as(&device, Options { is_wide, has_checksums, ..Options::default() });
        put(&journal, 5000, 3);
        put(&journal, 5001, 4);
        journal.commit_all().unwrap();
        assert_eq!(log_features(&device), before_revoke);
        assert_eq!(home(&replayed(&device), 5000)[..1000], [3; 1000]);
        let handle = journal.start(2).unwrap();
        handle.revoke(Pblk(5000));
        drop(handle);
        put(&journal, 5001, 5);
        journal.commit_all().unwrap();
        assert!(log_features(&device).starts_with("journal_incompat_revoke"));
        let after = replayed(&device);
        assert_eq!((home(&after, 5000)[0], home(&after, 5001)[0]), (0, 5), "the revoke record counts");
        journal.close().unwrap();
        let words = format!("journal_incompat_revoke {before_revoke}");
        assert_eq!(log_features(&device), words.trim_end());
    }
}

/// Checksums that the file system no longer needs (tune2fs -O ^metadata_csum) are removed, 64-bit block
/// numbers stay, as in the kernel.
#[test]
fn a_log_loses_checksums_that_its_file_system_does_not_call_for() {
    let device = device();
    open(&device, Options::default()).close().unwrap();
    assert_eq!(log_features(&device), "journal_64bit journal_checksum_v3");
    let journal = open_as(&device, Options::default());
    put(&journal, 5000, 3);
    journal.commit_all().unwrap();
    assert_eq!(log_features(&device), "journal_64bit");
    assert_eq!(home(&replayed(&device), 5000)[..1000], [3; 1000]);
}

/// A version 1 log has no features, and needs none before it has a revoke record.
#[test]
fn a_log_of_the_first_version_stays_one_until_it_needs_a_feature() {
    let device = device();
    let place = LOG.start.0 * 1024;
    let mut sb = Superblock::fresh(BlockSize::MIN, LOG.len, [7; 16]);
    sb.version = extant_jbd2_format::Version::V1;
    device.write_at(place, &sb.encode()).unwrap();
    let version = || {
        crate::read_superblock(log(&device).view(), &ReplayTarget::new(0, BlockSize::MIN)).unwrap().version
    };
    let journal = open_as(&device, Options::default());
    put(&journal, 5000, 3);
    journal.commit_all().unwrap();
    assert_eq!(version(), extant_jbd2_format::Version::V1);
    assert_eq!(home(&replayed(&device), 5000)[..1000], [3; 1000]);
    let handle = journal.start(1).unwrap();
    handle.revoke(Pblk(5000));
    drop(handle);
    journal.commit_all().unwrap();
    assert_eq!(version(), extant_jbd2_format::Version::V2);
}

#[test]
fn what_is_committed_is_in_the_log_and_what_is_checkpointed_at_home() {
    let device = device();
    let journal = open(&device, Options::default());
    put(&journal, 5000, 3);
    put(&journal, 5001, 4);
    journal.commit_all().unwrap();
    assert_eq!(journal.committed(), extant_base::Tid(1));
    assert_eq!(home(&device, 5000), [0; 1024], "homes wait for a checkpoint");
    let after = replayed(&device);
    assert_eq!((home(&after, 5000)[0], home(&after, 5001)[0]), (3, 4));
    assert_eq!(home(&after, 5000)[1023], sum(&home(&after, 5000)), "sealed");
    put(&journal, 5000, 9);
    assert_eq!(home(&replayed(&device), 5000)[0], 3, "not committed yet");
    journal.checkpoint().unwrap();
    assert_eq!(home(&device, 5000)[0], 3, "a checkpoint writes committed bytes");
    journal.close().unwrap();
    assert_eq!(home(&device, 5000)[0], 9);
    let plan = scan(log(&device).view(), &ReplayTarget::new(BLOCKS, BlockSize::MIN)).unwrap();
    assert!(plan.superblock.is_clean());
}

/// Older transactions go home, and the log then begins with the last one. After a power cut that one is still
/// there, newer than the homes.
#[test]
fn room_is_made_with_what_was_before_the_last_transaction() {
    let device = device();
    let options = Options { has_committer: true, transaction_max: 80, ..Options::default() };
    let journal = open(&device, options);
    let commit = |blocks: &[u64], value: u8| {
        blocks.iter().for_each(|block| put(&journal, *block, value));
        journal.commit_all().unwrap();
    };
    commit(&[5000, 5001], 1);
    let handle = journal.start(1).unwrap();
    handle.revoke(Pblk(5000));
    drop(handle);
    commit(&[5001, 5002], 2);
    commit(&[5002, 5003], 3);
    journal.make_room().unwrap();
    let firsts = |device: &Arc<MemDevice>| [5000, 5001, 5002, 5003].map(|block| home(device, block)[0]);
    assert_eq!(firsts(&device), [0, 2, 0, 0]);
    assert_eq!(firsts(&replayed(&device)), [0, 2, 3, 3]);
    assert_eq!(journal.stats().pinned_blocks, 4, "with the values of the client");
    // A second call has nothing to do; the next transaction sends the last one home.
    journal.make_room().unwrap();
    commit(&[5003], 4);
    assert_eq!(firsts(&replayed(&device)), [0, 2, 3, 4]);
    journal.make_room().unwrap();
    assert_eq!(firsts(&device), [0, 2, 3, 0]);
    assert_eq!(firsts(&replayed(&device)), [0, 2, 3, 4]);
    journal.checkpoint().unwrap();
    assert_eq!(firsts(&device), [0, 2, 3, 4]);
    journal.close().unwrap();
}

#[test]
fn the_log_goes_round_many_times() {
    let device = device();
    let journal = open(&device, Options { transaction_max: 40, ..Options::default() });
    for round in 0..400u64 {
        for block in 0..10 {
            put(&journal, 3000 + (round * 7 + block * 13) % 900, (round % 251) as u8);
        }
        if round % 37 == 0 {
            let after = replayed(&device);
            for block in 3000..3900 {
                let bytes = home(&after, block);
                assert!(bytes == [0; 1024] || bytes[1023] == sum(&bytes), "block {block} is whole");
            }
        }
    }
    journal.close().unwrap();
    let stats = journal.stats();
    assert!(stats.checkpoints > 3 && stats.commits > 100, "{stats:?}");
    // After a reopen the log continues where it was.
    let journal = open(&device, Options::default());
    put(&journal, 5000, 1);
    journal.commit_all().unwrap();
    assert_eq!(home(&replayed(&device), 5000)[0], 1);
}

#[test]
fn blocks_that_look_like_the_journals_own_are_escaped() {
    let device = device();
    let journal = open(&device, Options::default());
    let handle = journal.start(1).unwrap();
    let magic = extant_jbd2_format::MAGIC.to_be_bytes();
    handle.change(Pblk(5000), SEAL, &mut |bytes| bytes[..4].copy_from_slice(&magic)).unwrap();
    drop(handle);
    journal.commit_all().unwrap();
    assert_eq!(home(&replayed(&device), 5000)[..4], magic);
    journal.checkpoint().unwrap();
    assert_eq!(home(&device, 5000)[..4], magic);
}

#[test]
fn a_revoked_block_does_not_come_back() {
    let device = device();
    let journal = open(&device, Options::default());
    put(&journal, 5000, 3);
    journal.commit_all().unwrap();
    let handle = journal.start(1).unwrap();
    handle.revoke(Pblk(5000));
    drop(handle);
    put(&journal, 5001, 1);
    journal.commit_all().unwrap();
    // The block may be file data now, which the journal does not see.
    device.write_at(5000 * 1024, &[0xDD; 1024]).unwrap();
    assert_eq!(home(&replayed(&device), 5000), [0xDD; 1024]);
    journal.close().unwrap();
    assert_eq!(home(&device, 5000), [0xDD; 1024]);
    assert_eq!(journal.stats().revokes, 1);
}

#[cfg(feature = "sabotage")]
#[test]
fn without_revoke_records_it_would() {
    let device = device();
    let sabotage = Sabotage::with(Bug::SkipRevokes);
    let journal = open(&device, Options { sabotage, ..Options::default() });
    put(&journal, 5000, 3);
    journal.commit_all().unwrap();
    let handle = journal.start(1).unwrap();
    handle.revoke(Pblk(5000));
    drop(handle);
    put(&journal, 5001, 1);
    journal.commit_all().unwrap();
    device.write_at(5000 * 1024, &[0xDD; 1024]).unwrap();
    assert_ne!(home(&replayed(&device), 5000), [0xDD; 1024], "the mistake shows");
}

#[test]
fn a_block_made_and_revoked_in_one_transaction_is_not_logged() {
    let device = device();
    let journal = open(&device, Options::default());
    let handle = journal.start(2).unwrap();
    handle.fresh(Pblk(5000), SEAL, &mut |bytes| bytes[0] = 1);
    handle.revoke(Pblk(5000));
    drop(handle);
    journal.close().unwrap();
    assert_eq!(home(&device, 5000), [0; 1024]);
}

#[test]
fn a_failing_device_aborts_and_nothing_is_promised_after_it() {
    let device = device();
    // Writes to the log fail.
    let buffers = Buffers::new(device.clone(), BlockSize::MIN, BLOCKS, &Budget::new(1 << 20));
    let failing = Arc::new(Failing::over(&device));
    let map = LogMap::internal([LOG], LOG.len, BLOCKS).unwrap();
    let log = Log::new(failing.clone(), map, BlockSize::MIN);
    let journal = Journal::open(buffers, device.clone(), Some(log), Options::default()).unwrap();
    journal.set_client(Arc::new(Sums::default()));
    put(&journal, 5000, 3);
    failing.fails.store(true, Ordering::Relaxed);
    let aborted = journal.commit_all().unwrap_err();
    assert!(aborted.to_string().contains("out of order"), "{aborted}");
    assert!(journal.start(1).is_err());
    assert!(journal.close().is_err());
    assert_eq!(home(&device, 5000), [0; 1024]);
}

/// After a checkpoint that panicked, its blocks must not count as written.
#[test]
fn a_checkpoint_that_panics_ends_the_journal_and_the_log_still_has_all() {
    let device = device();
    let home_of = Arc::new(Failing { panics: true, ..Failing::over(&device) });
    let buffers = Buffers::new(device.clone(), BlockSize::MIN, BLOCKS, &Budget::new(1 << 20));
    let map = LogMap::internal([LOG], LOG.len, BLOCKS).unwrap();
    let log = Log::new(device.clone(), map, BlockSize::MIN);
    let options = Options { has_committer: true, ..Options::default() };
    let journal = Journal::open(buffers, home_of.clone(), Some(log), options).unwrap();
    journal.set_client(Arc::new(Sums::default()));
    put(&journal, 5000, 3);
    journal.commit_all().unwrap();
    home_of.fails.store(true, Ordering::Relaxed);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| journal.checkpoint()));
    assert!(panicked.is_err());
    home_of.fails.store(false, Ordering::Relaxed);
    assert!(journal.checkpoint().unwrap_err().to_string().contains("panicked"));
    assert!(journal.start(1).is_err() && journal.close().is_err());
    assert_eq!(home(&device, 5000), [0; 1024]);
    assert_eq!(home(&replayed(&device), 5000)[0], 3);
}

/// The transaction then contains half an operation: a commit that waits for the handle must not write it.
#[test]
fn an_operation_that_panics_ends_the_journal() {
    let device = device();
    let journal = open(&device, Options::default());
    put(&journal, 5000, 3);
    journal.commit_all().unwrap();
    std::thread::scope(|scope| {
        let (journal, (changed, is_changed)) = (&journal, std::sync::mpsc::channel());
        let operation = scope.spawn(move || {
            let handle = journal.start(1).unwrap();
            handle.fresh(Pblk(5000), SEAL, &mut |bytes| bytes[0] = 4);
            changed.send(()).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(20));
            panic!("a defect of an operation");
        });
        is_changed.recv().unwrap();
        assert!(journal.commit_all().unwrap_err().to_string().contains("panicked half-way"));
        assert!(operation.join().is_err());
    });
    assert!(journal.start(1).is_err() && journal.close().is_err());
    assert_eq!(home(&replayed(&device), 5000)[0], 3);
}

/// A device that fails writes, or panics, while `fails` is set.
struct Failing {
    device: Arc<MemDevice>,
    fails: AtomicBool,
    panics: bool,
}

impl Failing {
    fn over(device: &Arc<MemDevice>) -> Self {
        Self { device: device.clone(), fails: AtomicBool::new(false), panics: false }
    }
}

impl Device for Failing {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        self.device.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        if self.fails.load(Ordering::Relaxed) {
            assert!(!self.panics, "a defect of a device");
            let source = std::io::Error::other("out of order");
            return Err(DeviceFault::Io { what: "write", offset, len: bytes.len() as u64, source });
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

#[test]
fn threads_change_blocks_while_a_committer_commits() {
    let device = device();
    let options = Options { has_committer: true, transaction_max: 60, ..Options::default() };
    let journal = open(&device, options);
    std::thread::scope(|scope| {
        let committer = scope.spawn(|| {
            work(&journal);
        });
        let workers: Vec<_> = (0..4u64)
            .map(|worker| {
                let journal = &journal;
                scope.spawn(move || {
                    for round in 0..3000u64 {
                        let handle = journal.start(3).unwrap();
                        // All three blocks of one operation always have the same number.
                        for part in 0..3 {
                            let block = Pblk(3000 + worker * 120 + round % 40 * 3 + part);
                            let write =
                                &mut |bytes: &mut [u8]| bytes[..8].copy_from_slice(&round.to_le_bytes());
                            handle.change(block, SEAL, write).unwrap();
                        }
                    }
                })
            })
            .collect();
        let mut looks = 0;
        while workers.iter().any(|worker| !worker.is_finished()) {
            // A copy taken during a write may be torn anywhere; the log's checksums detect that.
            looks += 1;
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(looks > 0);
        for worker in workers {
            worker.join().unwrap();
        }
        journal.dismiss_committer();
        committer.join().unwrap();
    });
    journal.commit_all().unwrap();
    let after = replayed(&device);
    for operation in 0..160 {
        let first = 3000 + operation * 3;
        let value_of = |block| u64::from_le_bytes(home(&after, block)[..8].try_into().unwrap());
        assert!((first..first + 3).all(|block| value_of(block) == value_of(first)), "operation {operation}");
    }
    journal.close().unwrap();
    assert!(journal.stats().commits > 5);
}

/// Committed blocks do not stay in memory until the log is full, and no commit finds it full.
#[test]
fn homes_are_written_before_much_waits_for_it() {
    for (has_committer, pinned_max, most) in [(true, 50, 50 + 41), (true, 0, 512 + 41), (false, 50, 50 + 41)]
    {
        let device = device();
        let pinned_bytes_max = pinned_max * 1024;
        let options = Options { has_committer, transaction_max: 80, pinned_bytes_max, ..Options::default() };
        let journal = open(&device, options);
        std::thread::scope(|scope| {
            let committer = has_committer.then(|| scope.spawn(|| work(&journal)));
            for block in 0..4000 {
                put(&journal, 2000 + block, 7);
                if block % 40 == 39 {
                    journal.commit_all().unwrap();
                    // An explicit commit does not wait for the committer's checkpoint.
                    while has_committer && journal.is_checkpoint_due.load(Ordering::Acquire) {
                        std::thread::yield_now();
                    }
                }
            }
            journal.dismiss_committer();
            if let Some(thread) = committer {
                thread.join().unwrap();
            }
        });
        let stats = journal.stats();
        assert!(stats.pinned_blocks_max <= most, "{stats:?}");
        assert!(stats.checkpoints >= 4 && stats.full_log_waits == 0, "{stats:?}");
        journal.close().unwrap();
        assert!((2000..6000).all(|block| home(&device, block)[0] == 7));
    }
}
