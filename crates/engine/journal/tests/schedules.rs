//! Handles, commits and aborts under many schedules: `cargo xtask ci schedules`. Shuttle itself detects
//! deadlocks.

use std::collections::HashSet;
use std::sync::{Arc, Mutex as Plain};
use std::time::Duration;

use extant_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use extant_base::sync::{schedules, shuttle};
use extant_base::{BlockSize, Pblk, Tid};
use extant_buffer::{Buffers, Edit, Kind, Owner, ReadFault, Seal};
use extant_device::{Device, MemDevice};
use extant_journal::{Client, Handle, Journal, Log, LogMap, LogRun, Options, ReplayTarget, Work};
use extant_memory::Budget;
use shuttle::thread;

const BLOCKS: u64 = 1400;
const LOG: LogRun = LogRun { log: 0, start: Pblk(8), len: 1024 };
const SEAL: Seal = Seal { owner: Owner { kind: Kind::Other, ino: 0 }, seed: None };
/// The block that only commits write: it holds the transaction's number.
const VALUE: u64 = 1090;
/// The first of two blocks that every operation of a thread sets to the same value.
const PAIRS: u64 = 1100;

/// Counts open handles as the threads report them, and transactions as the journal reports them. No other
/// lock is taken while its plain lock is held.
#[derive(Default)]
struct Watch {
    open: AtomicU32,
    committed: AtomicU64,
    /// Sealed transactions: no operation changes anything in them.
    sealed: Plain<HashSet<Tid>>,
}

impl Client for Watch {
    fn before_commit(&self, handle: &Handle<'_>) -> Result<(), ReadFault> {
        assert_eq!(self.open.load(Ordering::SeqCst), 0, "no handle is open while a transaction is sealed");
        thread::yield_now();
        assert_eq!(self.open.load(Ordering::SeqCst), 0, "none was started either");
        let number = handle.transaction();
        assert!(self.sealed.lock().unwrap().insert(number), "{number} is sealed once");
        Ok(())
    }

    fn write_values(&self, handle: &Handle<'_>) -> Result<(), ReadFault> {
        // The next transaction runs: its handles may start and end at any of these points.
        thread::yield_now();
        let number = handle.transaction();
        handle.change(Pblk(VALUE), SEAL, &mut |bytes| bytes[..8].copy_from_slice(&number.0.to_le_bytes()))?;
        thread::yield_now();
        assert!(!self.sealed.lock().unwrap().contains(&number.next()), "one commit at a time");
        Ok(())
    }

    fn blocks_to_come(&self) -> u32 {
        1
    }

    fn seal(&self, _: Pblk, _: Seal, _: &mut [u8]) {}

    fn has_checksum(&self, _: Seal) -> bool {
        false
    }

    fn committed(&self, transaction: Tid) {
        assert_eq!(self.committed.swap(transaction.0, Ordering::SeqCst) + 1, transaction.0, "in order");
    }
}

struct World {
    device: Arc<MemDevice>,
    journal: Journal,
    watch: Arc<Watch>,
}

fn log(device: &Arc<MemDevice>) -> Log {
    let map = LogMap::internal([LOG], LOG.len, BLOCKS).unwrap();
    Log::new(device.clone(), map, BlockSize::MIN)
}

impl World {
    fn new(options: Options) -> Arc<Self> {
        let device = Arc::new(MemDevice::new(BLOCKS * 1024));
        let sb = extant_jbd2_format::Superblock::fresh(BlockSize::MIN, LOG.len, [7; 16]);
        device.write_at(LOG.start.0 * 1024, &sb.encode()).unwrap();
        let buffers = Buffers::new(device.clone(), BlockSize::MIN, BLOCKS, &Budget::new(1 << 20));
        let journal = Journal::open(buffers, device.clone(), Some(log(&device)), options).unwrap();
        let watch = Arc::new(Watch::default());
        journal.set_client(watch.clone());
        Arc::new(Self { device, journal, watch })
    }

    /// One operation: sets both blocks of a pair to the value. `false` if the journal was aborted.
    fn set(&self, pair: u64, value: u8) -> bool {
        let Ok(handle) = self.journal.start(2) else { return false };
        // The handle is open: no commit can seal between its start and this increment, nor between the
        // decrement and its end.
        self.watch.open.fetch_add(1, Ordering::SeqCst);
        let number = handle.transaction();
        for block in [PAIRS + 2 * pair, PAIRS + 2 * pair + 1] {
            handle.change(Pblk(block), SEAL, &mut |bytes| bytes[0] = value).unwrap();
            assert!(!self.watch.sealed.lock().unwrap().contains(&number), "{number} is sealed, and changed");
            thread::yield_now();
        }
        self.watch.open.fetch_sub(1, Ordering::SeqCst);
        drop(handle);
        true
    }

    /// Replays the log as a power cut now would leave it, and checks that pairs are consistent.
    fn replayed(&self) -> Vec<u8> {
        let copy = Arc::new(MemDevice::new(BLOCKS * 1024));
        let mut bytes = vec![0; (BLOCKS * 1024) as usize];
        self.device.read_at(0, &mut bytes).unwrap();
        copy.write_at(0, &bytes).unwrap();
        let plan =
            extant_journal::scan(log(&copy).view(), &ReplayTarget::new(BLOCKS, BlockSize::MIN)).unwrap();
        extant_journal::replay(&log(&copy), &plan, &*copy).unwrap();
        let first_byte = |block: u64| {
            let mut byte = [0];
            copy.read_at((PAIRS + block) * 1024, &mut byte).unwrap();
            byte[0]
        };
        (0..4)
            .map(|pair| (first_byte(2 * pair), first_byte(2 * pair + 1)))
            .map(|(a, b)| {
                assert_eq!(a, b, "both changes of a handle, or none");
                a
            })
            .collect()
    }
}

/// A committer thread, as a volume runs it.
fn committer(world: &Arc<World>) -> thread::JoinHandle<()> {
    let world = Arc::clone(world);
    thread::spawn(move || {
        while let Some(work) = world.journal.wait_for_work(Duration::from_secs(5)) {
            let done = match work {
                Work::Commit(number) => world.journal.commit(number),
                Work::CommitAll => world.journal.commit_all(),
                Work::Checkpoint => world.journal.make_room(),
            };
            if done.is_err() {
                return;
            }
        }
    })
}

/// Threads change their pairs and request commits; transactions are full after two operations.
#[test]
fn handles_and_commits() {
    for has_committer in [false, true] {
        schedules("journal: handles and commits", 300, move || {
            let options = Options { transaction_max: 8, has_committer, ..Options::default() };
            let world = World::new(options);
            let committing = has_committer.then(|| committer(&world));
            let threads: Vec<_> = (0..3u64)
                .map(|pair| {
                    let world = Arc::clone(&world);
                    thread::spawn(move || {
                        for value in 1..=2 {
                            assert!(world.set(pair, value));
                        }
                        if pair == 0 {
                            world.journal.commit_all().unwrap();
                            assert_eq!(world.replayed()[0], 2, "what was committed is durable");
                        }
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            world.journal.dismiss_committer();
            committing.into_iter().for_each(|thread| thread.join().unwrap());
            world.journal.commit_all().unwrap();
            assert_eq!(world.replayed()[..3], [2, 2, 2]);
            world.journal.close().unwrap();
        });
    }
}

/// With plenty of room, handles start and end without the lock. Each commit waits for open handles; the last
/// of them wakes it.
#[test]
fn handles_in_lanes_and_commits() {
    schedules("journal: handles in lanes", 1000, || {
        let world = World::new(Options { transaction_max: 200, ..Options::default() });
        let threads: Vec<_> = (0..2u64)
            .map(|pair| {
                let world = Arc::clone(&world);
                thread::spawn(move || {
                    for value in 1..=2 {
                        assert!(world.set(pair, value));
                    }
                })
            })
            .collect();
        assert!(world.set(2, 1));
        world.journal.commit_all().unwrap();
        assert_eq!(world.replayed()[2], 1, "what was committed is durable");
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        world.journal.commit_all().unwrap();
        assert_eq!(world.replayed()[..3], [2, 2, 1]);
        assert_eq!(world.journal.stats().handles, 5);
        world.journal.close().unwrap();
    });
}

/// A thread aborts in the middle of a change. All threads end, and neither that transaction nor a later one
/// becomes durable.
#[test]
fn an_abort_ends_all_threads() {
    for has_committer in [false, true] {
        schedules("journal: abort", 300, move || {
            let options = Options { transaction_max: 8, has_committer, ..Options::default() };
            let world = World::new(options);
            let committing = has_committer.then(|| committer(&world));
            assert!(world.set(3, 1));
            world.journal.commit_all().unwrap();
            let failing = Arc::clone(&world);
            let fails = thread::spawn(move || {
                let Ok(handle) = failing.journal.start(2) else { return };
                failing.watch.open.fetch_add(1, Ordering::SeqCst);
                handle.change(Pblk(PAIRS + 6), SEAL, &mut |bytes| bytes[0] = 9).unwrap();
                handle.fail(&"on purpose");
                failing.watch.open.fetch_sub(1, Ordering::SeqCst);
            });
            let threads: Vec<_> = (0..2u64)
                .map(|pair| {
                    let world = Arc::clone(&world);
                    thread::spawn(move || {
                        let went = (1..=3).take_while(|value| world.set(pair, *value)).count();
                        let durable = world.journal.commit_all().is_ok();
                        assert!(went == 3 || !durable, "an aborted journal says so");
                    })
                })
                .collect();
            fails.join().unwrap();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert!(world.journal.start(1).is_err() && world.journal.commit_all().is_err());
            world.journal.dismiss_committer();
            committing.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(world.replayed()[3], 1, "what was committed before stays, and nothing else came");
        });
    }
}

/// Handles get the credits they request. No more blocks join than a transaction holds, and unused credits are
/// given back.
#[test]
fn credits_are_kept() {
    schedules("journal: credits", 300, || {
        let options = Options { transaction_max: 12, has_committer: true, ..Options::default() };
        let world = World::new(options);
        let committing = committer(&world);
        let threads: Vec<_> = (0..3u64)
            .map(|thread| {
                let world = Arc::clone(&world);
                thread::spawn(move || {
                    for round in 0..2 {
                        let handle = world.journal.start(6).unwrap();
                        world.watch.open.fetch_add(1, Ordering::SeqCst);
                        let more = handle.extend(2);
                        for block in 0..4 + 2 * u64::from(more) {
                            let block = Pblk(PAIRS + thread * 20 + round * 8 + block);
                            handle.change(block, SEAL, &mut |bytes| bytes[0] = 1).unwrap();
                        }
                        world.watch.open.fetch_sub(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        world.journal.dismiss_committer();
        committing.join().unwrap();
        world.journal.commit_all().unwrap();
        let stats = world.journal.stats();
        assert!(stats.logged_blocks <= 12 * stats.commits, "{stats:?}");
        world.journal.close().unwrap();
    });
}
