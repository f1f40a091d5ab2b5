//! Writeback: order, limits, errors, and what happens to a folio in the meantime.

mod common;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::{Failed, Toy, bytes_of, cache, config};
use extant_page_cache::{Config, Order, PageCache, Take, Throttled, Window, WriteError};

const MIB: u64 = 1 << 20;

fn one_run(cache: &PageCache) -> (u64, u64, u64) {
    let run = cache.take_run(u64::MAX, 8 * MIB).expect("something is dirty");
    let what = (run.file().key(), run.start(), run.len_bytes());
    run.done();
    what
}

#[test]
fn the_oldest_goes_first_in_the_longest_run() {
    let (cache, toy) = (cache(config(64 * MIB)), Toy::new(4096));
    let (a, b) = (cache.file(1, 4096), cache.file(2, 4096));
    b.write(9 * MIB, &[1; 4096], 5, &toy).unwrap();
    a.write(0, &vec![1; 3 << 20], 7, &toy).unwrap();
    b.write(0, &[1; 100], 8, &toy).unwrap();
    b.write(9 * MIB + 4096, &[1; 4096], 9, &toy).unwrap();
    a.write(3 * MIB, &[1; 4096], 10, &toy).unwrap();
    assert_eq!(cache.oldest_dirty_ms(), Some(5));
    assert!(cache.take_run(4, MIB).is_none(), "nothing is that old");
    assert_eq!(one_run(&cache), (2, 9 * MIB, 8192), "with what was added to it");
    assert_eq!(one_run(&cache), (1, 0, 3 * MIB + 4096), "through chunks");
    assert_eq!(one_run(&cache), (2, 0, 4096));
    assert!(cache.take_run(u64::MAX, MIB).is_none());
}

#[test]
fn a_run_is_as_long_as_asked() {
    let (cache, toy) = (cache(config(64 * MIB)), Toy::new(4096));
    let file = cache.file(1, 4096);
    file.write(0, &vec![1; 2 << 20], 0, &toy).unwrap();
    let run = cache.take_run(0, 100_000).unwrap();
    assert_eq!((run.start(), run.len_bytes()), (0, 98_304));
    let next = cache.take_run(0, 1).unwrap();
    assert_eq!((next.start(), next.len_bytes()), (98_304, 4096), "a block at least");
}

#[test]
fn what_is_put_back_is_as_old_as_it_was() {
    let (cache, toy) = (cache(config(64 * MIB)), Toy::new(4096));
    let (a, b) = (cache.file(1, 4096), cache.file(2, 4096));
    a.write(0, &[1; 4096], 1, &toy).unwrap();
    b.write(0, &[1; 4096], 2, &toy).unwrap();
    let run = cache.take_run(u64::MAX, MIB).unwrap();
    assert_eq!((run.file().key(), run.dirtied_ms()), (1, 1));
    a.write(4096, &[1; 4096], 3, &toy).unwrap();
    run.put_back();
    assert_eq!(cache.oldest_dirty_ms(), Some(1));
    assert_eq!(one_run(&cache), (1, 0, 8192));
}

#[test]
fn a_folio_on_its_way_is_read_and_written_without_waiting() {
    let (cache, toy) = (cache(config(64 * MIB)), Toy::new(4096));
    let file = cache.file(1, 4096);
    file.write(0, &vec![1; 1 << 20], 0, &toy).unwrap();
    let run = cache.take_run(u64::MAX, MIB).unwrap();
    let mut buf = vec![0; 1 << 20];
    assert_eq!(file.read(0, &mut buf, &toy), Ok(true));
    file.write(4096, &[2; 4096], 1, &toy).unwrap();
    file.write(8192, &[2; 4096], 1, &toy).unwrap();
    assert_eq!(cache.stats().copies_for_writers, 1, "once for each run and folio");
    assert!(bytes_of(&run).iter().all(|byte| *byte == 1));
    assert!(matches!(file.take_run(0..MIB, u64::MAX, MIB), Take::Busy), "never twice on its way");
    assert!(cache.take_run(u64::MAX, MIB).is_none());
    run.done();
    assert_eq!(one_run(&cache), (1, 4096, 8192));
    file.read(0, &mut buf, &toy).unwrap();
    assert_eq!((buf[4095], buf[4096], buf[12287], buf[12288]), (1, 2, 2, 1));
}

#[test]
fn a_small_part_of_a_folio_is_copied_for_its_run() {
    let (cache, toy) = (cache(config(64 * MIB)), Toy::new(4096));
    let file = cache.file(1, 4096);
    file.write(0, &vec![1; 1 << 20], 0, &toy).unwrap();
    one_run(&cache);
    file.write(40_960, &[2; 4096], 1, &toy).unwrap();
    let run = cache.take_run(u64::MAX, MIB).unwrap();
    file.write(40_960, &[3; 4096], 2, &toy).unwrap();
    assert_eq!(cache.stats().copies_for_writers, 0);
    assert!(bytes_of(&run) == [2; 4096]);
}

#[test]
fn bytes_that_were_refused_are_there_until_memory_is_wanted() {
    let (cache, toy) = (cache(config(64 * MIB)), Toy::new(4096));
    let file = cache.file(1, 4096).open();
    toy.put(0, &[1; 4096]);
    file.write(0, &[2; 4096], 0, &toy).unwrap();
    cache.take_run(u64::MAX, MIB).unwrap().failed(WriteError::NoSpace);
    let mut buf = [0; 4096];
    file.read(0, &mut buf, &toy).unwrap();
    assert_eq!(buf, [2; 4096]);
    assert_eq!(cache.stats().dirty_bytes, 0);
    while cache.shrink(u64::MAX) != 0 {}
    file.read(0, &mut buf, &toy).unwrap();
    assert_eq!(buf, [1; 4096]);
    let late = cache.file(1, 4096).open();
    assert_eq!(file.take_error(), Some(WriteError::NoSpace));
    assert_eq!(late.take_error(), Some(WriteError::NoSpace), "the error was not reported when it opened");
    assert_eq!(cache.file(1, 4096).open().take_error(), None);
}

#[test]
fn a_dirty_file_lives_without_its_owner() {
    let (cache, toy) = (cache(config(64 * MIB)), Toy::new(4096));
    cache.file(1, 4096).write(0, &[7; 10], 0, &toy).unwrap();
    let mut buf = [0; 10];
    cache.file(1, 4096).read(0, &mut buf, &toy).unwrap();
    assert_eq!(buf, [7; 10]);
    one_run(&cache);
    assert_eq!(cache.stats().folios.iter().sum::<u64>(), 0, "clean, it goes");
}

#[test]
fn a_cache_that_ends_takes_all_with_it() {
    let budget = extant_memory::Budget::new(1 << 30);
    let (cache, toy) = (PageCache::new(config(64 * MIB), &budget), Toy::new(4096));
    cache.file(1, 4096).write(0, &vec![7; 5 << 20], 0, &toy).unwrap();
    assert!(budget.used() >= 5 << 20);
    drop(cache);
    assert_eq!(budget.used(), 0);
}

#[test]
fn what_becomes_dirty_later_is_not_waited_for() {
    let (cache, toy) = (cache(config(64 * MIB)), Toy::new(4096));
    let file = cache.file(1, 4096);
    file.write(0, &[1; 4096], 1, &toy).unwrap();
    file.write(5 * MIB, &[1; 4096], 1, &toy).unwrap();
    // As fsync does, while a writer continues to write.
    let (until_ms, mut runs) = (1, 0);
    while let Take::Run(run) = file.take_run(0..u64::MAX, until_ms, MIB) {
        toy.store(&run);
        let at = run.start();
        run.done();
        runs += 1;
        file.write(at, &[2; 4096], 2, &toy).unwrap();
    }
    assert_eq!(runs, 2);
    assert_eq!(cache.stats().dirty_bytes, 8192);
}

#[test]
fn writers_wait_at_the_hard_limit_and_no_longer_than_they_say() {
    let config =
        Config { dirty_background_bytes: MIB, dirty_bytes_max: 2 * MIB, ..Config::of_bytes(64 * MIB) };
    let (cache, toy) = (cache(config), Toy::new(4096));
    let file = cache.file(1, 4096);
    let no_time = Duration::ZERO;
    assert_eq!(cache.throttle(no_time), Throttled::Go { waited: Duration::ZERO });
    assert!(!cache.wait_for_work(no_time));
    file.write(0, &vec![1; 2 << 20], 0, &toy).unwrap();
    assert!(cache.wait_for_work(Duration::from_secs(60)), "it is much already");
    let start = Instant::now();
    assert!(matches!(cache.throttle(Duration::from_millis(20)), Throttled::Over { .. }));
    assert!(start.elapsed() >= Duration::from_millis(20));
    // Bytes in flight count: their memory is in use.
    let run = cache.take_run(u64::MAX, MIB).unwrap();
    assert!(matches!(cache.throttle(no_time), Throttled::Over { .. }));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| cache.throttle(Duration::from_secs(600)));
        while cache.stats().throttled < 3 {
            std::thread::sleep(Duration::from_millis(5));
        }
        run.done();
        // Half way between the limits: 1.5 MiB.
        assert!(matches!(writer.join().unwrap(), Throttled::Go { .. }));
    });
    let stats = cache.stats();
    assert_eq!((stats.throttled, stats.dirty_bytes), (3, MIB));
    assert!(stats.throttled_time >= Duration::from_millis(20));
}

#[test]
fn the_writeback_thread_is_called() {
    let config =
        Config { dirty_background_bytes: MIB, dirty_bytes_max: 2 * MIB, ..Config::of_bytes(64 * MIB) };
    let (cache, toy) = (cache(config), Toy::new(4096));
    std::thread::scope(|scope| {
        let flusher = scope.spawn(|| cache.wait_for_work(Duration::from_secs(600)));
        cache.file(1, 4096).write(0, &vec![1; (1 << 20) + 1], 0, &toy).unwrap();
        assert!(flusher.join().unwrap());
    });
}

#[test]
fn holes_take_no_memory_and_data_is_read_once_in_long_pieces() {
    let (cache, toy) = (cache(config(64 * MIB)), Toy::new(4096));
    let file = cache.file(1, 4096);
    let mut buf = vec![1; 1 << 20];
    assert_eq!(file.read(0, &mut buf, &toy), Ok(false));
    assert!(buf.iter().all(|byte| *byte == 0));
    assert_eq!(cache.stats().held_bytes, 0);
    toy.put(4 * MIB, &vec![9; 2 << 20]);
    let window = Window { start: 3 * MIB, len_bytes: 4 * MIB, order: Order::MAX };
    assert_eq!(file.fill(window, &toy), Ok(2 * MIB));
    assert_eq!(file.fill(window, &toy), Ok(0));
    assert_eq!((toy.reads.load(Ordering::Relaxed), cache.stats().folios[9]), (1, 1));
    assert_eq!(file.read(5 * MIB, &mut buf, &toy), Ok(true));
    assert!(buf.iter().all(|byte| *byte == 9));
    assert_eq!(cache.stats().held_bytes, 2 * MIB);
}

#[test]
fn one_page_at_a_time_is_that() {
    let (cache, toy) = (cache(Config { order_max: Order::MIN, ..config(64 * MIB) }), Toy::new(4096));
    let file = cache.file(1, 4096).open();
    file.write(0, &vec![1; 1 << 20], 0, &toy).unwrap();
    assert_eq!(cache.stats().folios[0], 256);
    let blocks64k = cache.file(2, 65536);
    blocks64k.write(0, &vec![1; 1 << 20], 0, &Toy::new(65536)).unwrap();
    assert_eq!(cache.stats().folios[4], 16, "but a block is in one folio");
}

#[test]
fn small_writes_in_a_row_share_folios() {
    let (cache, toy) = (cache(config(64 * MIB)), Toy::new(4096));
    let file = cache.file(1, 4096).open();
    for at in 0..512 {
        file.write(at * 4096, &[1; 4096], 0, &toy).unwrap();
    }
    let stats = cache.stats();
    assert!(stats.folios.iter().sum::<u64>() < 16, "{stats}");
    assert!(stats.held_bytes <= 2 * MIB + (256 << 10), "{stats}");
}

#[test]
fn a_backing_that_fails_leaves_nothing_wrong_behind() {
    let (cache, toy) = (cache(config(64 * MIB)), Toy::new(4096));
    let file = cache.file(1, 4096);
    toy.put(0, &[5; 8192]);
    toy.fails.store(true, Ordering::Relaxed);
    let mut buf = [0; 8192];
    assert_eq!(file.read(0, &mut buf, &toy), Err(Failed));
    assert_eq!(file.write(100, &[1; 10], 0, &toy), Err(Failed), "the rest of the block is not known");
    assert_eq!(file.write(0, &[1; 4196], 0, &toy).map_err(|_| ()), Err(()), "one folio, or none of it");
    assert_eq!(file.zero_edge(5000..6000, 0, &toy), Err(Failed));
    assert_eq!(cache.stats().dirty_bytes, 0);
    toy.fails.store(false, Ordering::Relaxed);
    file.read(0, &mut buf, &toy).unwrap();
    assert_eq!(buf, [5; 8192]);
}

/// Two sequential readers of one open file at different places: in turns they read the backing as often as
/// one after the other.
#[test]
fn readers_in_turns_do_not_spoil_each_others_windows() {
    const PIECE: u64 = 32 << 10;
    let reads = |order: &mut dyn Iterator<Item = u64>| {
        let (cache, toy) = (cache(config(64 * MIB)), Toy::new(4096));
        toy.put(0, &vec![1; 16 << 20]);
        let file = cache.file(1, 4096).open();
        for pos in order {
            let mut buf = vec![0; PIECE as usize];
            if let Some(window) = file.read(pos, &mut buf, &toy).unwrap() {
                file.fill(window, &toy).unwrap();
            }
            assert!(buf.iter().all(|byte| *byte == 1), "at {pos}");
        }
        toy.reads.load(Ordering::Relaxed)
    };
    let places = |from: u64| (0..4 * MIB / PIECE).map(move |piece| from + piece * PIECE);
    let one_by_one = reads(&mut places(0).chain(places(8 * MIB)));
    let in_turns = reads(&mut places(0).zip(places(8 * MIB)).flat_map(|(one, two)| [one, two]));
    assert_eq!(in_turns, one_by_one);
    assert!(one_by_one < 40, "{one_by_one} reads for 256 pieces");
}
