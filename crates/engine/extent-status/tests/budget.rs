//! A cache with a budget: it charges its memory, reclaims when the budget runs short, and releases all of it
//! at the end.

use extant_base::{Ino, Lblk};
use extant_extent_status::{Cache, Entry, Inode, Options, Policy, Status};
use extant_memory::Budget;

const LIMIT: usize = 4 << 20;
/// A charge may lag by the minimum step of a charge, and the sum by the reserve of the threads.
const SLACK: usize = LIMIT / 16 + 8192;

fn written(inode: &Inode, from: u32, count: u32) {
    for lblk in from..from + count {
        inode.cache(Entry::mapped(lblk, 1, (1 << 20) + u64::from(lblk) * 2, Status::Written));
    }
}

/// Caches far more than the budget has room for; delayed entries stay.
#[test]
fn what_can_be_forgotten_goes_when_the_budget_is_spent() {
    for policy in Policy::ALL {
        let budget = Budget::new(LIMIT);
        let cache = Cache::with_budget(Options { policy, no_merge: true, ..Options::default() }, &budget);
        let inodes: Vec<_> = (0..40).map(|ino| cache.inode(Ino(ino + 12))).collect();
        for inode in &inodes {
            (0..500).for_each(|lblk| inode.insert_delayed(Lblk(lblk), 1, (false, false)));
        }
        for round in 0..20 {
            inodes.iter().for_each(|inode| written(inode, 1000 + round * 500, 500));
            assert!(budget.used() <= LIMIT + SLACK, "{policy:?}: {} bytes", budget.used());
            assert!(budget.used().abs_diff(cache.bytes() as usize) <= 8192, "{policy:?}: {budget:?}");
        }
        assert!(cache.stats().reclaimed > 50_000, "{policy:?}: {:?}", cache.stats().reclaimed);
        for inode in &inodes {
            inode.check();
            assert_eq!(inode.promises(), 500, "{policy:?}");
        }
        drop(inodes);
        assert_eq!(budget.used(), cache.bytes() as usize, "{policy:?}");
        drop(cache);
        assert_eq!(budget.used(), 0, "{policy:?}");
    }
}

/// Another user needs the memory: each charge reclaims in proportion, and scans stay at their usual size.
#[test]
fn others_get_the_memory_in_bounded_steps() {
    let budget = Budget::new(LIMIT);
    let cache = Cache::with_budget(Options { no_merge: true, ..Options::default() }, &budget);
    let inode = cache.inode(Ino(12));
    written(&inode, 0, 150_000);
    let mut entries = cache.count();
    assert!(entries > 140_000, "{entries} fit");
    for _ in 0..60 {
        budget.charge(64 << 10);
        let gone = entries - cache.count();
        assert!(gone <= 2 * (extant_memory::STEP_MIN as u64 / 24 + 128), "{gone} entries for one charge");
        entries = cache.count();
    }
    assert!(budget.used() <= LIMIT + SLACK, "{budget:?}");
    assert!(cache.stats().work_max <= 160, "{}", cache.stats().work_max);
    inode.check();
}

/// Threads charge and drop inodes concurrently; at the end the sum is exact.
#[test]
fn threads_leave_the_sum_exact() {
    let budget = Budget::new(1 << 20);
    let cache = Cache::with_budget(Options { no_merge: true, ..Options::default() }, &budget);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let cache = &cache;
            scope.spawn(move || {
                for round in 0..60 {
                    written(&cache.inode(Ino(12 + thread * 100 + round)), 0, 1000);
                }
            });
        }
    });
    drop(cache);
    assert_eq!(budget.used(), 0);
}
