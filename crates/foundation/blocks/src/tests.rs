use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};

use super::{Block, Copies};
use crate::region::{Class, Pool};

#[test]
fn bytes_are_shared_until_they_are_changed() {
    for len in [1, 5, 512, 1024, 2048, 4096, 65536, 65537] {
        let bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
        let mut mine = Block::copy_of(&bytes);
        assert!(mine.get_mut().is_some() && mine[..] == bytes[..]);
        let yours = mine.clone();
        assert!(mine.is(&yours) && mine.holders() == 2 && mine.get_mut().is_none());
        mine.make_mut()[len - 1] ^= 0xFF;
        assert!(!mine.is(&yours) && yours[..] == bytes[..] && mine[len - 1] != bytes[len - 1]);
        assert_eq!((mine.holders(), yours.holders()), (1, 1));
        drop(yours);
        let same = mine.as_ptr();
        mine.make_mut()[0] = 9;
        assert_eq!(mine.as_ptr(), same, "held by one: no copy");
    }
}

#[test]
fn a_new_block_is_zero_whatever_was_there() {
    for len in [700, 1024, 4096] {
        drop((0..300).map(|_| Block::copy_of(&vec![0xEE; len])).collect::<Vec<_>>());
        let zeros: Vec<Block> = (0..300).map(|_| Block::zeroed(len)).collect();
        assert!(zeros.iter().all(|block| block.len() == len && block.iter().all(|byte| *byte == 0)));
    }
}

#[test]
fn blocks_of_no_bytes_are_blocks() {
    let mut none = Block::default();
    let other = none.clone();
    assert!(none.is_empty() && none.holders() == 1 && none.get_mut().is_some_and(|bytes| bytes.is_empty()));
    assert!(other.make_mut_len() == 0 && Block::zeroed(0).is_empty() && Block::copy_of(&[]).is_empty());
}

impl Block {
    fn make_mut_len(mut self) -> usize {
        self.make_mut().len()
    }
}

#[test]
fn blocks_do_not_overlap_and_lie_at_multiples_of_their_size() {
    for len in (10..=16).map(|log| 1usize << log) {
        let n = (5 << 20) / len;
        let mut blocks: Vec<Block> = (0..n).map(|at| Block::copy_of(&vec![at as u8; len])).collect();
        for (at, block) in blocks.iter().enumerate() {
            assert!(block.iter().all(|byte| *byte == at as u8), "block {at} of {len}");
            assert_eq!(block.as_ptr().addr() % len, 0);
        }
        blocks.sort_by_key(|block| block.as_ptr());
        assert!(blocks.windows(2).all(|pair| pair[0].as_ptr().addr() + len <= pair[1].as_ptr().addr()));
    }
}

/// No other test uses this size as much. It runs in a thread of its own, of which the magazine is empty once
/// it has ended.
#[test]
fn empty_regions_go_back_to_the_system() {
    let class = Class::of(8192).unwrap();
    let regions = || Pool::of(class).regions();
    let use_many = || {
        let many: Vec<Block> = (0..40 * 255).map(|_| Block::zeroed(8192)).collect();
        let before = regions();
        assert!(before >= 40);
        // One block of every second region stays.
        let mut of_regions = BTreeMap::new();
        for block in many {
            of_regions.entry(block.as_ptr().addr() >> 21).or_insert_with(Vec::new).push(block);
        }
        let stay: Vec<Block> =
            of_regions.into_values().step_by(2).filter_map(|mut blocks| blocks.pop()).collect();
        assert!((stay.len()..before - 8).contains(&regions()), "{before}, {}", regions());
        assert!(stay.iter().all(|block| block.iter().all(|byte| *byte == 0)));
    };
    // Repeat: regions without memory get memory again.
    for _ in 0..3 {
        std::thread::scope(|scope| scope.spawn(use_many).join().unwrap());
        assert!(regions() <= 12, "{}", regions());
    }
}

#[test]
fn threads_pass_blocks_around() {
    const THREADS: usize = 4;
    let table: Vec<Mutex<Block>> = (0..64).map(|_| Mutex::new(Block::zeroed(4096))).collect();
    let (begin, failed) = (Barrier::new(THREADS), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (table, begin, failed) = (&table, &begin, &failed);
            scope.spawn(move || {
                begin.wait();
                let mut random = thread as u64 + 1;
                let mut held = Vec::new();
                for round in 0..20_000usize {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let place = &table[(random >> 58) as usize];
                    let mut block = place.lock().unwrap().clone();
                    if block.iter().any(|byte| *byte != block[0]) {
                        failed.store(true, Ordering::Relaxed);
                    }
                    if round % 3 == 0 {
                        block.make_mut().fill(random as u8);
                        let before = std::mem::replace(&mut *place.lock().unwrap(), block);
                        drop(before);
                    } else if round % 7 == 0 {
                        held.push(block);
                    }
                    if held.len() > 200 {
                        held.clear();
                    }
                }
            });
        }
    });
    assert!(!failed.load(Ordering::Relaxed), "a block had bytes of two");
    assert!(table.iter().all(|place| place.lock().unwrap().holders() == 1));
}

#[test]
fn copies_are_what_was_put_there() {
    let sources = [0usize, 12, 64, 100, 1024, 4096, 4096, 65536, 70_000, 4096];
    let sources = sources.map(|len| (0..len).map(|i| (i * 7 + i / 256) as u8).collect::<Vec<_>>());
    let mut copies = Copies::default();
    assert_eq!(copies.finish().count(), 0);
    for (end, cuts) in
        [(&b""[..], [0, 0]), (b"abcd", [64, 640]), (b"twelve bytes", [7, 128]), (&[9; 100], [30, 60])]
    {
        let sources: Vec<_> = sources.iter().filter(|source| source.len() >= 640 + end.len()).collect();
        for source in &sources {
            let kept = &source[..source.len() - end.len()];
            let pushed = copies.push(source.len(), |copy| {
                copy.put(&kept[..cuts[0]]);
                copy.put(&kept[cuts[0]..cuts[1]]);
                copy.put(&kept[cuts[1]..]);
                copy.put(end);
                end.len()
            });
            assert_eq!(pushed, end.len());
        }
        let made: Vec<Block> = copies.finish().collect();
        assert_eq!(made.len(), sources.len());
        for (source, copy) in sources.iter().zip(&made) {
            let kept = source.len() - end.len();
            assert_eq!((&copy[..kept], &copy[kept..]), (&source[..kept], end));
            assert_eq!(copy.holders(), 1);
        }
    }
    // Zeros in between, at any start and end, over the block's previous content.
    for (before, len) in
        [(0, 1024), (64, 128), (64, 700), (70, 3), (70, 58), (70, 59), (130, 500), (1000, 24)]
    {
        for whole in [1024, 1025] {
            let behind = whole - before - len;
            copies.push(whole, |copy| {
                copy.put(&vec![7; before]);
                copy.put_zeros(len);
                copy.put(&vec![8; behind]);
            });
            let expected = [vec![7; before], vec![0; len], vec![8; behind]].concat();
            assert_eq!(copies.finish().next().unwrap()[..], expected, "{before} and {len} of {whole}");
        }
    }
    // More or fewer bytes than announced panic, and leave no copy.
    for len in [1024, 4095, 4097, 65536] {
        let mut push = |len: usize| copies.push(len, |copy| copy.put(&[1; 4096]));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| push(len))).is_err());
        push(4096);
    }
    copies.push(4096, |copy| [0, 100, 28, 3000, 968].into_iter().for_each(|len| copy.put_zeros(len)));
    assert_eq!(copies.finish().map(|copy| copy.len()).sum::<usize>(), 5 * 4096);
}

#[test]
fn room_is_made_and_what_was_there_stays() {
    let mut all: Vec<u64> = Vec::new();
    for value in 0..2_000_000 {
        crate::make_room(&mut all, 1);
        assert!(all.capacity() > all.len());
        all.push(value);
    }
    assert!(all.iter().copied().eq(0..2_000_000));
}

/// A valid address, null, and the last address: a prefetch reads nothing.
#[test]
fn any_place_may_be_asked_for() {
    let block = Block::zeroed(4096);
    for start in [block.as_ptr().addr(), 0, usize::MAX] {
        for at in [0, 4095, usize::MAX] {
            crate::prefetch_block(start, 4096, at);
        }
    }
    let class = Class::of(4096).unwrap();
    // SAFETY: the block is held.
    let count = unsafe { class.count(block.start) };
    assert_eq!(class.count_at(block.as_ptr().addr()), std::ptr::from_ref(count).addr());
}
