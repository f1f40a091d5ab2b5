//! Linear, Stripe and Mirror behave like one flat device of their size; the effects of flushes and failures.

use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use extant_device::{
    ComposeFault, Device, DeviceFault, FlushStats, Linear, MemDevice, Mirror, Stripe, Window,
};
use proptest::prelude::*;

/// Memory that counts flushes, reports how long they take, and fails on request.
struct Part {
    inner: MemDevice,
    nanos: Option<u64>,
    flushes: AtomicU64,
    /// A set of bits: 1 reads, 2 writes, 4 flushes fail.
    failing: AtomicU64,
    /// A flush waits at this barrier.
    meeting: Option<Arc<Barrier>>,
}

fn part(size: u64, nanos: Option<u64>) -> Arc<Part> {
    let (flushes, failing) = (AtomicU64::new(0), AtomicU64::new(0));
    Arc::new(Part { inner: MemDevice::new(size), nanos, flushes, failing, meeting: None })
}

impl Part {
    fn fail(&self, bits: u64) {
        self.failing.store(bits, Ordering::SeqCst);
    }

    fn check(&self, what: &'static str, bit: u64) -> Result<(), DeviceFault> {
        if self.failing.load(Ordering::SeqCst) & bit == 0 {
            return Ok(());
        }
        Err(DeviceFault::Io { what, offset: 0, len: 0, source: std::io::Error::from_raw_os_error(5) })
    }
}

impl Device for Part {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        self.check("read", 1)?;
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        self.check("write", 2)?;
        self.inner.write_at(offset, bytes)
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        self.check("zero", 2)?;
        self.inner.zero_at(offset, len)
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        if let Some(meeting) = &self.meeting {
            meeting.wait();
        }
        self.check("flush", 4)?;
        self.flushes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn flush_nanos(&self) -> Option<u64> {
        self.nanos
    }

    fn flush_stats(&self) -> Option<FlushStats> {
        self.nanos.map(|average_nanos| FlushStats { count: 1, average_nanos, ..FlushStats::default() })
    }
}

#[derive(Debug, Clone)]
enum Step {
    Write { offset: u64, bytes: Vec<u8>, durable: bool },
    WriteVectored { offset: u64, bufs: Vec<Vec<u8>> },
    Zero { offset: u64, len: u64 },
    Read { offset: u64, len: usize },
    ReadVectored { offset: u64, lens: Vec<usize> },
    Flush,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let at = 0..14_000u64;
    let bytes = || prop::collection::vec(any::<u8>(), 0..3_000);
    let step = prop_oneof![
        (at.clone(), bytes(), any::<bool>()).prop_map(|(offset, bytes, durable)| Step::Write {
            offset,
            bytes,
            durable
        }),
        (at.clone(), prop::collection::vec(bytes(), 0..4))
            .prop_map(|(offset, bufs)| Step::WriteVectored { offset, bufs }),
        (at.clone(), 0..6_000u64).prop_map(|(offset, len)| Step::Zero { offset, len }),
        (at.clone(), 0..6_000usize).prop_map(|(offset, len)| Step::Read { offset, len }),
        (at, prop::collection::vec(0..2_000usize, 0..5))
            .prop_map(|(offset, lens)| Step::ReadVectored { offset, lens }),
        Just(Step::Flush),
    ];
    prop::collection::vec(step, 1..24)
}

/// The bytes that a step reads; an error if it was out of range.
fn apply(device: &dyn Device, step: &Step) -> Result<Vec<u8>, ()> {
    let nothing = |result: Result<(), DeviceFault>| match result {
        Ok(()) => Ok(Vec::new()),
        Err(DeviceFault::OutOfRange { .. }) => Err(()),
        Err(fault) => panic!("{fault}"),
    };
    match step {
        Step::Write { offset, bytes, durable: false } => nothing(device.write_at(*offset, bytes)),
        Step::Write { offset, bytes, durable: true } => nothing(device.write_durable_at(*offset, bytes)),
        Step::WriteVectored { offset, bufs } => {
            let bufs: Vec<IoSlice<'_>> = bufs.iter().map(|buf| IoSlice::new(buf)).collect();
            nothing(device.write_vectored_at(*offset, &bufs))
        }
        Step::Zero { offset, len } => nothing(device.zero_at(*offset, *len)),
        Step::Read { offset, len } => {
            let mut buf = vec![0xAA; *len];
            nothing(device.read_at(*offset, &mut buf)).map(|_| buf)
        }
        Step::ReadVectored { offset, lens } => {
            let mut bufs: Vec<Vec<u8>> = lens.iter().map(|len| vec![0xAA; *len]).collect();
            let mut slices: Vec<IoSliceMut<'_>> = bufs.iter_mut().map(|buf| IoSliceMut::new(buf)).collect();
            nothing(device.read_vectored_at(*offset, &mut slices)).map(|_| bufs.concat())
        }
        Step::Flush => nothing(device.flush()),
    }
}

fn equals_flat(device: &dyn Device, steps: &[Step]) -> Result<(), TestCaseError> {
    let flat = MemDevice::new(device.size_bytes());
    for step in steps {
        prop_assert_eq!(apply(device, step), apply(&flat, step), "{:?}", step);
    }
    let whole = Step::Read { offset: 0, len: flat.size_bytes() as usize };
    prop_assert_eq!(apply(device, &whole), apply(&flat, &whole));
    Ok(())
}

fn memories(sizes: &[u64]) -> Vec<Arc<dyn Device>> {
    sizes.iter().map(|size| Arc::new(MemDevice::new(*size)) as Arc<dyn Device>).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn linear_equals_a_flat_device(sizes in prop::collection::vec(0..5_000u64, 1..6), steps in steps()) {
        equals_flat(&Linear::new(memories(&sizes)).unwrap(), &steps)?;
    }

    #[test]
    fn stripe_equals_a_flat_device(
        sizes in prop::collection::vec(1_000..6_000u64, 1..5),
        chunk in 1..4u64,
        steps in steps(),
    ) {
        equals_flat(&Stripe::new(memories(&sizes), chunk * 512).unwrap(), &steps)?;
    }

    #[test]
    fn mirror_equals_a_flat_device(sizes in prop::collection::vec(4_000..16_000u64, 1..4), steps in steps()) {
        equals_flat(&Mirror::new(memories(&sizes)).unwrap(), &steps)?;
    }

    /// Members of a mirror fail, some only in reads; one stays good, and no data is lost.
    #[test]
    fn mirror_survives_all_but_one(
        faults in prop::collection::vec((0..24usize, 0..3usize, 1..8u64), 0..6),
        good in 0..3usize,
        steps in steps(),
    ) {
        let parts = [part(15_000, Some(0)), part(15_000, Some(0)), part(16_000, Some(0))];
        let members = parts.iter().map(|part| part.clone() as Arc<dyn Device>).collect();
        let (mirror, flat) = (Mirror::new(members).unwrap(), MemDevice::new(15_000));
        for (number, step) in steps.iter().enumerate() {
            for (_, member, bits) in faults.iter().filter(|(when, member, _)| *when == number && *member != good) {
                parts[*member].fail(*bits);
            }
            prop_assert_eq!(apply(&mirror, step), apply(&flat, step));
        }
        prop_assert!(!mirror.failed().contains(&good));
    }
}

#[test]
fn a_stripe_takes_turns_and_a_range_is_one_transfer_on_each_member() {
    let members = memories(&[4096, 4096]);
    let stripe = Stripe::new(members.clone(), 512).unwrap();
    assert_eq!((stripe.size_bytes(), stripe.chunk_bytes()), (8192, 512));
    let bytes: Vec<u8> = (0..8u8).flat_map(|chunk| [chunk; 512]).collect();
    stripe.write_at(512, &bytes).unwrap();
    let mut on = [[0; 2560]; 2];
    for (member, on) in members.iter().zip(&mut on) {
        member.read_at(0, on).unwrap();
    }
    let firsts = |on: &[u8]| on.chunks(512).map(|chunk| chunk[0]).collect::<Vec<_>>();
    assert_eq!(firsts(&on[0]), [0, 1, 3, 5, 7]); // chunk 0 of A was not written
    assert_eq!(firsts(&on[1]), [0, 2, 4, 6, 0]);
}

#[test]
fn what_cannot_be_put_together_is_refused() {
    assert_eq!(Linear::new(Vec::new()).unwrap_err(), ComposeFault::Empty);
    assert_eq!(Mirror::new(Vec::new()).unwrap_err(), ComposeFault::Empty);
    assert_eq!(Stripe::new(Vec::new(), 512).unwrap_err(), ComposeFault::Empty);
    for chunk_bytes in [0, 1, 513] {
        let fault = Stripe::new(memories(&[512]), chunk_bytes).unwrap_err();
        assert_eq!(fault, ComposeFault::Chunk { chunk_bytes });
    }
    assert_eq!(Linear::new(memories(&[u64::MAX, 1])).unwrap_err(), ComposeFault::TooLarge);
    assert_eq!(Stripe::new(memories(&[u64::MAX, u64::MAX]), 512).unwrap_err(), ComposeFault::TooLarge);
}

/// T5: a combined device is as slow as the slowest member that a flush waits for.
#[test]
fn flush_times_are_those_of_the_slowest_member() {
    let (fast, slow) = (part(4096, Some(50_000)), part(4096, Some(5_000_000)));
    let both = || vec![fast.clone() as Arc<dyn Device>, slow.clone() as Arc<dyn Device>];
    let linear = Linear::new(both()).unwrap();
    assert_eq!(linear.flush_nanos(), Some(5_000_000));
    assert_eq!(linear.flush_stats().unwrap().average_nanos, 5_000_000);
    assert_eq!(Stripe::new(both(), 512).unwrap().flush_nanos(), Some(5_000_000));
    let mirror = Mirror::new(both()).unwrap();
    let nested = Window::owned(Arc::new(mirror), 0, 512).unwrap();
    assert_eq!(nested.flush_nanos(), Some(5_000_000));
    // A member without measurements may be slow.
    let unknown: Vec<Arc<dyn Device>> = vec![fast.clone(), part(4096, None)];
    assert_eq!(Linear::new(unknown).unwrap().flush_nanos(), None);
    // A flush does not wait for an excluded member.
    let mirror = Mirror::new(both()).unwrap();
    slow.fail(2);
    mirror.write_at(0, &[1]).unwrap();
    assert_eq!((mirror.failed(), mirror.flush_nanos()), (vec![1], Some(50_000)));
}

#[test]
fn a_flush_reaches_each_device_once_even_when_one_fails() {
    for nanos in [Some(0), Some(5_000_000), None] {
        let (one, two) = (part(4096, nanos), part(4096, nanos));
        let linear = Linear::new(vec![one.clone(), two.clone(), one.clone()]).unwrap();
        linear.flush().unwrap();
        assert_eq!([&one, &two].map(|part| part.flushes.load(Ordering::SeqCst)), [1, 1]);
        one.fail(4);
        assert_eq!(linear.flush().unwrap_err().os_error(), Some(5));
        assert_eq!([&one, &two].map(|part| part.flushes.load(Ordering::SeqCst)), [1, 2]);
        // A mirror continues with the other member.
        let mirror = Mirror::new(vec![one, two]).unwrap();
        mirror.flush().unwrap();
        assert_eq!(mirror.failed(), [0]);
    }
}

#[test]
fn slow_members_flush_at_the_same_time() {
    // Each flush waits for the other one, so flushes one after the other would never end.
    let meeting = Arc::new(Barrier::new(2));
    let members = [0, 1].map(|_| {
        let mut part = Arc::into_inner(part(4096, Some(5_000_000))).unwrap();
        part.meeting = Some(Arc::clone(&meeting));
        Arc::new(part) as Arc<dyn Device>
    });
    Stripe::new(members.to_vec(), 512).unwrap().flush().unwrap();
}

#[test]
fn a_mirror_where_all_fail_says_so_and_keeps_its_members() {
    let (one, two) = (part(4096, Some(0)), part(4096, Some(0)));
    let mirror = Mirror::new(vec![one.clone(), two.clone()]).unwrap();
    mirror.write_at(0, b"kept").unwrap();
    one.fail(7);
    two.fail(7);
    assert_eq!(mirror.write_at(0, b"lost").unwrap_err().os_error(), Some(5));
    assert_eq!(mirror.read_at(0, &mut [0; 4]).unwrap_err().os_error(), Some(5));
    assert_eq!(mirror.flush().unwrap_err().os_error(), Some(5));
    assert!(mirror.failed().is_empty());
    one.fail(1);
    two.fail(0);
    let mut bytes = [0; 4];
    mirror.read_at(0, &mut bytes).unwrap();
    assert_eq!((&bytes, mirror.read_faults(0), mirror.read_faults(1)), (b"kept", 2, 1));
    assert!(mirror.failed().is_empty());
}

#[test]
fn a_discard_reaches_every_member_and_nothing_beside_its_range() {
    const SIZE: u64 = 1 << 20;
    let members = || (0..3).map(|_| Arc::new(MemDevice::new(SIZE))).collect::<Vec<_>>();
    let shared = |members: &[Arc<MemDevice>]| {
        members.iter().map(|member| Arc::clone(member) as Arc<dyn Device>).collect::<Vec<_>>()
    };
    for kind in 0..3 {
        let members = members();
        let device: Box<dyn Device> = match kind {
            0 => Box::new(Linear::new(shared(&members)).unwrap()),
            1 => Box::new(Stripe::new(shared(&members), 64 << 10).unwrap()),
            _ => Box::new(Mirror::new(shared(&members)).unwrap()),
        };
        let size = device.size_bytes();
        device.write_at(0, &vec![7; size as usize]).unwrap();
        let (from, to) = (100_000, size - 100_000);
        assert!(device.discard_at(from, to - from).unwrap());
        let mut bytes = vec![0; size as usize];
        device.read_at(0, &mut bytes).unwrap();
        assert!(bytes[..from as usize].iter().chain(&bytes[to as usize..]).all(|byte| *byte == 7), "{kind}");
        for member in &members {
            assert!(member.resident_bytes() < SIZE / 4 * 3, "{kind}: {}", member.resident_bytes());
        }
        assert!(device.discard_at(from, size).is_err());
    }
}
