//! Compares the overlay with a plain copy of the expected contents.

use extant_jbd2_format::Checksums;
use proptest::prelude::*;

use super::*;
use crate::testlog::{BLOCK, TestLog, filled, old};
use extant_device::MemDevice;

/// A log with copies of these blocks, and the expected contents of blocks 0..64 after the replay.
fn replayed(blocks: &[(u64, u8, bool)]) -> (TestLog, Vec<u8>) {
    let mut log = TestLog::new(Checksums::V3, true);
    let mut expected: Vec<u8> = (0..64).flat_map(old).collect();
    for &(block, byte, magic) in blocks {
        let mut image: Vec<u8> = (0..BLOCK).map(|i| byte.wrapping_add(i as u8)).collect();
        if magic {
            image[..4].copy_from_slice(&MAGIC.to_be_bytes());
        }
        let at = block as usize * BLOCK;
        expected[at..at + BLOCK].copy_from_slice(&image);
        log.copies(&[(block, image)]);
    }
    log.commit();
    (log, expected)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_range_reads_as_after_replay(
        blocks in prop::collection::vec((0u64..64, any::<u8>(), any::<bool>()), 0..40),
        patches in prop::collection::vec((0u64..64, any::<u8>()), 0..4),
        ranges in prop::collection::vec((0usize..64 * BLOCK, 0usize..6000), 1..60),
    ) {
        let (log, mut expected) = replayed(&blocks);
        let plan = log.scan().unwrap();
        let mut builder =
            Overlay::builder(log.device.clone(), BlockSize::MIN).replay(&log.log(), &plan).unwrap();
        for (block, byte) in patches {
            builder = builder.patch(Pblk(block), filled(byte).into());
            expected[block as usize * BLOCK..][..BLOCK].fill(byte);
        }
        let overlay = builder.build();
        for (at, len) in ranges {
            let len = len.min(expected.len() - at);
            let mut found = vec![0xCC; len];
            overlay.read_at(at as u64, &mut found).unwrap();
            prop_assert!(found == expected[at..at + len], "{len} bytes at {at}");
            let (first, second) = found.split_at_mut(len / 3);
            first.fill(0xCC);
            second.fill(0xCC);
            let mut bufs = [io::IoSliceMut::new(first), io::IoSliceMut::new(second)];
            overlay.read_vectored_at(at as u64, &mut bufs).unwrap();
            prop_assert!(found == expected[at..at + len], "{len} bytes at {at}, vectored");
        }
        let mut all = vec![0; expected.len()];
        overlay.read_at(0, &mut all).unwrap();
        prop_assert!(all == expected);
    }
}

#[test]
fn copies_in_a_row_are_read_at_once() {
    let mut log = TestLog::new(Checksums::V3, true);
    let blocks: Vec<(u64, Vec<u8>)> = (20..50).map(|block| (block, filled(block as u8))).collect();
    log.copies(&blocks);
    log.commit();
    let plan = log.scan().unwrap();
    let overlay = log.overlay(&plan);
    let mut buf = vec![0; 30 * BLOCK - 100];
    let (len, count) = overlay.read_replaced(&overlay.entries, 20 * BLOCK as u64 + 50, &mut buf).unwrap();
    assert_eq!((len, count, overlay.replaced_blocks()), (buf.len(), 30, 30));
    assert_eq!((buf[0], buf[len - 1]), (20, 49));
}

#[test]
fn reads_past_the_end_and_all_writes_are_refused() {
    let device = Arc::new(MemDevice::new(10 * BLOCK as u64 + 100));
    let overlay = Overlay::builder(device, BlockSize::MIN).patch(Pblk(10), filled(1).into()).build();
    let mut bytes = [0; 100];
    overlay.read_at(10 * BLOCK as u64, &mut bytes).unwrap();
    assert_eq!(bytes, [1; 100]);
    overlay.read_at(10 * BLOCK as u64 + 100, &mut []).unwrap();
    for offset in [10 * BLOCK as u64 + 1, u64::MAX] {
        assert!(matches!(overlay.read_at(offset, &mut bytes), Err(DeviceFault::OutOfRange { .. })));
    }
    for refused in [overlay.write_at(0, &[0]), overlay.zero_at(0, 1), overlay.flush()] {
        let fault = refused.unwrap_err();
        assert!(
            matches!(&fault, DeviceFault::Io { source, .. } if source.kind() == io::ErrorKind::ReadOnlyFilesystem)
        );
    }
}

#[test]
fn a_plan_of_another_log_is_refused() {
    let (log, _) = replayed(&[(3, 3, false)]);
    let mut plan = log.scan().unwrap();
    plan.homes[0].log_block = 5000;
    let refused = Overlay::builder(log.device.clone(), BlockSize::MIN).replay(&log.log(), &plan);
    assert!(matches!(refused.err(), Some(JournalFault::OutsideLog { block: 5000 })));
}
