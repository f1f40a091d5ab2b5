//! Tests of the budget with toy caches.

use super::*;
use std::sync::atomic::AtomicBool;

/// A cache of `held` bytes, of which `pinned` cannot be evicted.
struct Toy {
    budget: Arc<Budget>,
    held: Mutex<usize>,
    pinned: usize,
    asked: AtomicUsize,
    asked_max: AtomicUsize,
}

impl Toy {
    fn new(budget: &Arc<Budget>, pinned: usize) -> Arc<Self> {
        let toy = Arc::new(Toy {
            budget: budget.clone(),
            held: Mutex::new(0),
            pinned,
            asked: AtomicUsize::new(0),
            asked_max: AtomicUsize::new(0),
        });
        let weak = Arc::downgrade(&toy);
        budget.register(weak);
        toy
    }

    fn put(&self, bytes: usize) -> usize {
        *self.held.lock().unwrap() += bytes;
        self.budget.charge(bytes)
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Shrinker for Toy {
    fn name(&self) -> &'static str {
        "toys"
    }

    fn cached_bytes(&self) -> usize {
        *self.held.lock().unwrap()
    }

    fn shrink(&self, bytes: usize) -> usize {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.asked_max.fetch_max(bytes, Ordering::Relaxed);
        let mut held = self.held.lock().unwrap();
        let freed = bytes.min(held.saturating_sub(self.pinned));
        *held -= freed;
        self.budget.release(freed);
        freed
    }
}

#[test]
fn under_the_limit_no_shrinker_is_called() {
    let budget = Budget::new(1 << 20);
    let toy = Toy::new(&budget, 0);
    assert_eq!(toy.put(1 << 19), 0);
    assert_eq!(budget.used(), 1 << 19);
    budget.release(1 << 19);
    assert_eq!((budget.used(), toy.asked()), (0, 0));
}

#[test]
fn over_the_limit_caches_are_asked_in_turn() {
    let budget = Budget::new(100_000);
    let (a, b) = (Toy::new(&budget, 0), Toy::new(&budget, 0));
    for _ in 0..100 {
        assert_eq!(a.put(5_000), 0);
        assert_eq!(b.put(5_000), 0);
    }
    assert!(budget.used() <= 100_000);
    assert_eq!(budget.used(), a.cached_bytes() + b.cached_bytes());
    assert!(a.asked() > 10 && b.asked() > 10, "{} and {}", a.asked(), b.asked());
}

#[test]
fn what_is_pinned_is_reported_not_refused() {
    let budget = Budget::new(1000);
    let toy = Toy::new(&budget, usize::MAX);
    assert_eq!(toy.put(1500), 500);
    assert_eq!(budget.used(), 1500);
}

#[test]
fn one_charge_asks_each_cache_once_and_for_a_bounded_amount() {
    let budget = Budget::new(1 << 20);
    let (a, b) = (Toy::new(&budget, usize::MAX), Toy::new(&budget, usize::MAX));
    *a.held.lock().unwrap() += 1 << 30;
    assert!(budget.charge(1 << 30) > 0);
    let before = (a.asked(), b.asked());
    a.asked_max.store(0, Ordering::Relaxed);
    // More than the growth required after a round that freed nothing.
    assert!(a.put(1 << 15) > 0);
    assert_eq!((a.asked(), b.asked()), (before.0 + 1, before.1 + 1));
    assert_eq!(a.asked_max.load(Ordering::Relaxed), STEP_MIN);
}

#[test]
fn a_dropped_cache_is_forgotten() {
    let budget = Budget::new(10);
    drop(Toy::new(&budget, 0));
    assert!(budget.shrinkers().is_empty());
    assert_eq!(budget.charge(20), 10);
    let toy = Toy::new(&budget, 0);
    assert_eq!(lock(&budget.registry).len(), 1, "the dead entry went when a live one came");
    assert_eq!(format!("{budget:?}"), "Budget: 20 of 10 bytes; toys 0");
    drop(toy);
}

/// A shrinker that panics once, and that charges from inside `shrink`.
struct Odd {
    budget: Arc<Budget>,
    panics: AtomicBool,
}

impl Shrinker for Odd {
    fn name(&self) -> &'static str {
        "odd"
    }

    fn cached_bytes(&self) -> usize {
        0
    }

    fn shrink(&self, _: usize) -> usize {
        if self.panics.swap(false, Ordering::Relaxed) {
            panic!("as planned");
        }
        self.budget.charge(1);
        self.budget.release(1);
        0
    }
}

#[test]
fn a_charge_inside_a_shrinker_only_adds_and_a_panic_leaves_the_budget_usable() {
    let budget = Budget::new(10);
    let odd = Arc::new(Odd { budget: budget.clone(), panics: AtomicBool::new(true) });
    let weak = Arc::downgrade(&odd);
    budget.register(weak);
    let other = budget.clone();
    assert!(std::thread::spawn(move || other.charge(20)).join().is_err());
    let toy = Toy::new(&budget, 0);
    assert_eq!(toy.put(5), 15 - 5, "the toy's five bytes went");
}

#[test]
fn threads_together_keep_the_sum() {
    let budget = Budget::new(4 << 20);
    let toy = Toy::new(&budget, 0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    toy.put(4096);
                }
            });
        }
    });
    assert_eq!(budget.used(), toy.cached_bytes());
    // One more charge, with no other thread holding the turn.
    while toy.put(1) > 0 {}
    assert!(budget.used() <= (4 << 20) + (4 << 20) / 16, "{}", budget.used());
}

#[test]
fn what_cannot_go_is_not_looked_through_for_each_charge_and_goes_when_it_can() {
    let budget = Budget::new(1 << 20);
    let toy = Toy::new(&budget, usize::MAX);
    for _ in 0..2000 {
        toy.put(1024);
    }
    // About one round per 1/32 of the limit beyond it.
    assert!(toy.asked() < 100, "asked {} times", toy.asked());
    // A cache that can free memory is called soon after.
    let other = Toy::new(&budget, 0);
    for _ in 0..100 {
        other.put(1024);
    }
    assert!(other.asked() > 0 && other.cached_bytes() < 100 << 10);
}
