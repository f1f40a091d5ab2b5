//! Tests the orphan file's slots under many schedules: `cargo xtask ci schedules`.

use std::sync::Arc;

use extant_base::sync::{schedules, shuttle};

use super::*;

fn file(blocks: u64, slots: usize) -> Arc<OrphanFile> {
    let blocks = (0..blocks).map(|block| (Pblk(100 + block), vec![0; slots]));
    Arc::new(OrphanFile::new(Ino(12), None, blocks.collect()))
}

/// A slot belongs to one inode at a time. A claim may fail while other threads hold or try for all slots.
/// After all slots are given back, each of them can be claimed again.
#[test]
fn a_slot_is_never_given_twice() {
    schedules("orphan slots", 3000, || {
        let file = file(2, 2);
        let owners: Arc<Vec<AtomicU32>> = Arc::new((0..4).map(|_| AtomicU32::new(0)).collect());
        let threads: Vec<_> = (1..=3u32)
            .map(|thread| {
                let (file, owners) = (Arc::clone(&file), Arc::clone(&owners));
                shuttle::thread::spawn(move || {
                    for round in 0..2 {
                        let ino = Ino(thread * 10 + round);
                        let Some(slot) = file.claim(ino, thread) else { continue };
                        let owner = &owners[usize::from(2 * slot.block + slot.at)];
                        assert_eq!(owner.swap(ino.0, Ordering::AcqRel), 0, "{slot:?} has an owner");
                        assert!(file.used().contains(&(slot, ino)), "{slot:?} contains its owner");
                        assert_eq!(owner.swap(0, Ordering::AcqRel), ino.0, "{slot:?} stayed");
                        file.give_back(slot, None);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(file.used().is_empty());
        // No slot leaked: exactly all slots can be claimed again.
        let again: Vec<_> = (1..=4).map(|ino| file.claim(Ino(ino), 0)).collect();
        assert!(again.iter().all(Option::is_some), "{again:?}");
        assert_eq!(file.claim(Ino(5), 0), None);
    });
}

/// Two threads use the same lane in turns, and a third thread uses no lane. No other thread gets the slot
/// that the lane keeps.
#[test]
fn a_kept_slot_is_its_lanes() {
    schedules("kept orphan slots", 3000, || {
        let file = file(1, 2);
        let lane = Arc::new(extant_base::sync::Mutex::new(()));
        let owners: Arc<Vec<AtomicU32>> = Arc::new((0..2).map(|_| AtomicU32::new(0)).collect());
        let threads: Vec<_> = (1..=3u32)
            .map(|thread| {
                let (file, lane, owners) = (Arc::clone(&file), Arc::clone(&lane), Arc::clone(&owners));
                shuttle::thread::spawn(move || {
                    for round in 0..2 {
                        let ino = Ino(thread * 10 + round);
                        let inside = (thread < 3).then(|| lane.lock());
                        let number = inside.as_ref().map(|_| 0);
                        let claimed = file.claim_kept(ino, number).or_else(|| file.claim(ino, thread));
                        let Some(slot) = claimed else { continue };
                        let owner = &owners[usize::from(slot.at)];
                        assert_eq!(owner.swap(ino.0, Ordering::AcqRel), 0, "{slot:?} has an owner");
                        assert!(file.used().contains(&(slot, ino)), "{slot:?} contains its owner");
                        assert_eq!(owner.swap(0, Ordering::AcqRel), ino.0, "{slot:?} stayed");
                        file.give_back(slot, number);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(file.used().is_empty());
        let again = [file.claim_kept(Ino(1), Some(0)), file.claim(Ino(2), 1), file.claim(Ino(3), 1)];
        assert_eq!(again.iter().flatten().count(), 2, "all slots, and no more: {again:?}");
    });
}

/// More threads than slots: no mark of a full block stays after its slots are free.
#[test]
fn a_block_is_not_taken_for_full_when_it_is_not() {
    schedules("full orphan blocks", 3000, || {
        let file = file(1, 1);
        let threads: Vec<_> = (1..=3u32)
            .map(|thread| {
                let file = Arc::clone(&file);
                shuttle::thread::spawn(move || {
                    for round in 0..2 {
                        if let Some(slot) = file.claim(Ino(thread * 10 + round), thread) {
                            file.give_back(slot, None);
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(file.used().is_empty());
        assert!(file.claim(Ino(1), 0).is_some(), "its slot is free");
    });
}
