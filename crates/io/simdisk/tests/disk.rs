//! Tests of single rules: the guarantees of a flush, those of a durable write, the states that seeds find.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use extant_device::{Device, DeviceFault, Measured, Mirror};
use extant_simdisk::{Counts, EIO, ENOSPC, Effect, Faulty, FlushCost, Image, Op, Rule, SimDisk};

fn byte(device: &dyn Device, offset: u64) -> u8 {
    let mut bytes = [0];
    device.read_at(offset, &mut bytes).unwrap();
    bytes[0]
}

#[test]
fn a_write_during_a_flush_is_not_covered_by_it() {
    // The flush is called with A in the cache. B and a durable C come while it runs.
    let cost = FlushCost { fixed: Duration::from_millis(300), per_mib: Duration::ZERO };
    let disk = SimDisk::new(4096).with_flush_cost(cost);
    disk.start_recording();
    disk.write_at(0, &[b'A'; 512]).unwrap();
    disk.write_at(1024, &[b'a'; 512]).unwrap();
    assert_eq!(disk.flush_nanos(), None);
    std::thread::scope(|scope| {
        let flush = scope.spawn(|| disk.flush().unwrap());
        std::thread::sleep(Duration::from_millis(100));
        assert!(!flush.is_finished());
        disk.write_at(512, &[b'B'; 512]).unwrap();
        disk.write_durable_at(1024, &[b'C'; 512]).unwrap();
        assert_eq!(byte(&disk.cut_all_lost(), 0), 0); // not finished yet
    });
    assert!(disk.flush_nanos().unwrap() >= 300_000_000);
    let after = |disk: &SimDisk| [0, 512, 1024].map(|at| byte(disk, at));
    assert_eq!(after(&disk.cut_all_lost()), [b'A', 0, b'C']);
    assert_eq!(after(&disk.cut_all_kept()), *b"ABC");
    let recording = disk.recorded().unwrap();
    assert_eq!(after(&recording.cut_all_lost(recording.end())), [b'A', 0, b'C']);
    for seed in 0..100 {
        let cut = after(&recording.cut(recording.end(), seed));
        assert!(cut == *b"ABC" || cut == [b'A', 0, b'C'], "seed {seed}: {cut:?}");
    }
    disk.flush().unwrap();
    assert_eq!(after(&disk.cut_all_lost()), *b"ABC");
}

#[test]
fn a_flush_costs_for_what_is_in_the_cache() {
    let cost = FlushCost { fixed: Duration::ZERO, per_mib: Duration::from_millis(200) };
    let disk = SimDisk::new(4 << 20).with_flush_cost(cost);
    disk.write_at(0, &vec![1; 1 << 20]).unwrap();
    let start = Instant::now();
    disk.flush().unwrap();
    assert!(start.elapsed() >= Duration::from_millis(200));
    disk.flush().unwrap();
    assert!(disk.flush_stats().unwrap().min_nanos < 150_000_000);
    assert_eq!(SimDisk::new(512).flush_nanos(), Some(0));
}

#[test]
fn a_durable_write_keeps_itself_and_nothing_else() {
    let disk = SimDisk::new(4096);
    disk.write_at(0, &[1; 1024]).unwrap();
    disk.write_durable_at(512, &[2; 512]).unwrap();
    disk.write_at(512, &[3; 512]).unwrap();
    let seen: HashSet<_> =
        (0..300).map(|seed| disk.cut_random(seed)).map(|c| (byte(&c, 0), byte(&c, 512))).collect();
    assert_eq!(seen, HashSet::from([(0, 2), (1, 2), (0, 3), (1, 3)])); // never 0 or 1 at 512
}

#[test]
fn seeds_find_every_fate_of_a_few_writes() {
    // Three writes of 4 KiB, two of them to the same place. A few seeds give every combination, and torn
    // writes.
    let disk = SimDisk::new(16384);
    for (offset, fill) in [(0, 1), (4096, 2), (0, 3)] {
        disk.write_at(offset, &[fill; 4096]).unwrap();
    }
    let (mut whole, mut torn) = (HashSet::new(), 0);
    for seed in 0..1000 {
        let cut = disk.cut_random(seed);
        let [first, second] = [0, 4096].map(|start| {
            let bytes: HashSet<u8> = (0..8).map(|sector| byte(&cut, start + sector * 512)).collect();
            (bytes.len() == 1).then(|| byte(&cut, start))
        });
        match (first, second) {
            (Some(first), Some(second)) => drop(whole.insert((first, second))),
            _ => torn += 1,
        }
    }
    assert_eq!(whole, HashSet::from([(0, 0), (0, 2), (1, 0), (1, 2), (3, 0), (3, 2)]));
    assert!((100..500).contains(&torn), "{torn} of 1000 torn");
}

#[test]
fn a_missing_barrier_is_found_in_few_seeds() {
    // A log of 40 blocks and its commit block, written without a flush between them. One lost block suffices.
    let disk = SimDisk::recording(Image::new(1 << 20));
    for block in 0..40 {
        disk.write_at(block * 4096, &[1; 4096]).unwrap();
    }
    disk.write_at(40 * 4096, &[2; 4096]).unwrap();
    let recording = disk.recorded().unwrap();
    let broken = |seed: &u64| {
        let cut = recording.cut(recording.end(), *seed);
        byte(&cut, 40 * 4096) == 2 && (0..40).any(|block| byte(&cut, block * 4096) == 0)
    };
    assert!((0..100).filter(broken).count() > 10);
}

#[test]
fn a_durable_write_under_way_may_be_torn() {
    let disk = SimDisk::recording(Image::new(8192));
    let event = disk.events();
    disk.write_durable_at(0, &[1; 4096]).unwrap();
    let recording = disk.recorded().unwrap();
    let count = |disk: &SimDisk| (0..8).filter(|sector| byte(disk, sector * 512) == 1).count();
    let counts: HashSet<_> = (0..300).map(|seed| count(&recording.cut_during(event, seed))).collect();
    assert!(counts.contains(&0) && counts.contains(&8) && counts.len() > 4, "{counts:?}");
    assert!((0..100).all(|seed| count(&recording.cut(event + 1, seed)) == 8));
    assert_eq!(recording.event(event).unwrap().to_string(), "write durable 4096 bytes at 0");
}

#[test]
fn a_cut_disk_goes_on_as_a_disk() {
    let disk = SimDisk::new(4096);
    disk.write_at(0, &[1; 512]).unwrap();
    let cut = disk.cut_all_kept();
    cut.write_at(0, &[2; 512]).unwrap();
    assert_eq!((byte(&cut.cut_all_lost(), 0), byte(&disk, 0)), (1, 1));
    assert!(cut.recorded().is_none());
    assert!(matches!(cut.write_at(4000, &[0; 97]), Err(DeviceFault::OutOfRange { .. })));
    assert!(cut.zero_at(u64::MAX, 2).is_err() && cut.read_at(4096, &mut [0]).is_err());
    assert!(cut.write_durable_at(4096, &[1]).is_err());
    assert_eq!((cut.events(), disk.events()), (1, 1));
}

#[test]
fn the_nth_fails_once_or_from_then_on() {
    let disk = Faulty::new(SimDisk::new(8192));
    let third = disk.arm(Rule::fail(Op::Write, ENOSPC).nth(3));
    let errno = |result: Result<(), DeviceFault>| result.map_err(|fault| fault.os_error());
    let write = |at| errno(disk.write_at(at, &[1; 512]));
    assert_eq!([0, 512, 1024, 1024].map(write), [Ok(()), Ok(()), Err(Some(ENOSPC)), Ok(())]);
    assert_eq!((disk.hits(third), disk.inner().events()), (1, 3));
    disk.arm(Rule::fail(Op::Flush, EIO).nth(2).from_then_on());
    let flush = |_| errno(disk.flush());
    assert_eq!([0; 3].map(flush), [Ok(()), Err(Some(EIO)), Err(Some(EIO))]);
    disk.disarm_all();
    assert_eq!(flush(0), Ok(()));
    let counts = Counts { writes: 4, flushes: 4, write_bytes: 4 * 512, ..Counts::default() };
    assert_eq!(disk.counts(), counts);
}

#[test]
fn only_a_range_fails() {
    let disk = Faulty::new(SimDisk::new(8192));
    let rule = disk.arm(Rule::fail(Op::Read, EIO).within(1000..1001).times(2));
    let read = |at| disk.read_at(at, &mut [0; 500]).is_ok();
    assert_eq!([0, 500, 501, 1000, 1000, 1001].map(read), [true, true, false, false, true, true]);
    assert_eq!(disk.hits(rule), 2);
    disk.arm(Rule::fail(Op::WriteDurable, EIO));
    disk.write_at(0, &[1]).unwrap();
    assert!(disk.write_durable_at(0, &[1]).is_err());
    disk.arm(Rule::fail(Op::Write, EIO));
    assert!(disk.zero_at(0, 10).is_err());
    disk.arm(Rule::new(Op::Write, Effect::FailAfter(EIO)));
    assert!(disk.write_at(0, &[9]).is_err());
    assert_eq!(byte(&disk, 0), 9);
}

#[test]
fn lies_and_delays() {
    let disk = Faulty::new(SimDisk::new(8192));
    disk.write_at(0, &[1]).unwrap();
    disk.arm(Rule::new(Op::Flush, Effect::Lie));
    disk.flush().unwrap();
    assert_eq!(byte(&disk.inner().cut_all_lost(), 0), 0);
    disk.arm(Rule::new(Op::Read, Effect::Lie));
    assert_eq!([byte(&disk, 0), byte(&disk, 0)], [0, 1]);
    disk.arm(Rule::delay(Op::Flush, Duration::from_millis(30)));
    let disk = Measured::new(disk);
    disk.flush().unwrap();
    assert!(disk.flush_nanos().unwrap() >= 30_000_000);
    assert_eq!(disk.inner().flush_nanos(), Some(0)); // the inner disk has no cost
}

#[test]
fn a_mirror_of_disks_survives_one_that_fails_and_a_cut_of_both() {
    let disks = [0, 1].map(|_| Arc::new(Faulty::new(SimDisk::new(8192))));
    let mirror = Mirror::new(disks.iter().map(|disk| disk.clone() as Arc<dyn Device>).collect()).unwrap();
    mirror.write_at(0, &[1; 512]).unwrap();
    mirror.flush().unwrap();
    disks[0].arm(Rule::fail(Op::Flush, EIO));
    mirror.write_at(0, &[2; 512]).unwrap();
    mirror.flush().unwrap();
    assert_eq!(mirror.failed(), [0]);
    assert_eq!((byte(&mirror, 0), byte(&disks[1].inner().cut_all_lost(), 0)), (2, 2));
    assert_eq!(byte(&disks[0].inner().cut_all_lost(), 0), 1);
}
