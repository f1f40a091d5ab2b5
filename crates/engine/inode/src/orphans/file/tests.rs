use std::sync::Arc;

use extant_base::BlockSize;
use extant_buffer::Direct;
use extant_device::{Device, MemDevice};
use extant_memory::Budget;

use super::*;

const SLOTS: usize = 1022;
const SEED: Option<u32> = Some(7);

/// Two blocks of an orphan file with free slots, at blocks 3 and 5 of a device.
fn file() -> (OrphanFile, Arc<Buffers>) {
    let device = MemDevice::new(8 * 4096);
    for block in [3, 5] {
        let bytes = extant_ondisk::orphan_file::encode(BlockSize::KIB4, &[]);
        device.write_at(block * 4096, &bytes).unwrap();
    }
    let device: Arc<dyn Device> = Arc::new(device);
    let buffers = Buffers::new(device, BlockSize::KIB4, 8, &Budget::new(1 << 20));
    let blocks = [3, 5].map(|block| (Pblk(block), vec![0; SLOTS]));
    (OrphanFile::new(Ino(12), SEED, blocks.into()), buffers)
}

fn stored(buffers: &Buffers, block: u64) -> (Vec<(usize, Ino)>, bool) {
    let (bytes, owner) = buffers.snapshot(Pblk(block)).unwrap();
    let block = extant_ondisk::orphan_file::OrphanBlock::decode(&bytes).unwrap();
    (block.orphans().collect(), owner.is_some())
}

#[test]
fn what_stays_is_written_once_and_what_came_and_went_is_not() {
    let (file, buffers) = file();
    let stays = file.claim(Ino(20), 0).unwrap();
    let goes = file.claim(Ino(21), 1).unwrap();
    assert_eq!((stays.block, goes.block), (0, 1), "threads keep apart");
    file.give_back(goes, None);
    assert_eq!(file.blocks_to_come(), 2);
    file.write(&buffers, &Direct(&buffers)).unwrap();
    assert_eq!(file.blocks_to_come(), 0);
    assert_eq!(stored(&buffers, 3), (vec![(0, Ino(20))], true));
    assert_eq!(stored(&buffers, 5), (vec![], false), "its bytes were not changed");

    // In the next transaction the slot has another owner.
    file.give_back(stays, None);
    assert_eq!(file.claim(Ino(22), 0), Some(stays), "the one that was used last");
    file.write(&buffers, &Direct(&buffers)).unwrap();
    assert_eq!(stored(&buffers, 3).0, [(0, Ino(22))]);
    assert_eq!(file.used(), [(stays, Ino(22))]);
}

#[test]
fn all_slots_can_be_had_and_again_after_they_were_given_back() {
    let (file, _) = file();
    let claim = |ino| file.claim(Ino(ino), 0);
    for round in 0..2 {
        let mut slots: Vec<_> = (1..=2 * SLOTS as u32).map(|ino| claim(ino).unwrap()).collect();
        assert_eq!((claim(9999), claim(9999)), (None, None), "round {round}: full");
        slots.sort_unstable_by_key(|slot| (slot.block, slot.at));
        slots.dedup();
        assert_eq!(slots.len(), 2 * SLOTS);
        // After a slot in any block is given back, a claim succeeds.
        file.give_back(slots[SLOTS + 7], None);
        assert_eq!(claim(9998), Some(slots[SLOTS + 7]));
        assert_eq!(claim(9999), None);
        slots.into_iter().for_each(|slot| file.give_back(slot, None));
        assert!(file.used().is_empty());
    }
}

#[test]
fn a_lane_keeps_a_slot_for_its_next_user() {
    let (file, buffers) = file();
    let (kept, other) = (file.claim(Ino(20), 0).unwrap(), file.claim(Ino(21), 0).unwrap());
    file.give_back(kept, Some(3));
    file.give_back(other, Some(3));
    assert!(file.used().is_empty());
    file.write(&buffers, &Direct(&buffers)).unwrap();
    assert_eq!(stored(&buffers, 3).0, [], "in the block it is a free one");

    assert_eq!((file.claim_kept(Ino(22), None), file.claim_kept(Ino(22), Some(2))), (None, None));
    assert_eq!(file.claim_kept(Ino(22), Some(LANES)), None, "one of those that keep none");
    assert_eq!(file.claim(Ino(23), 0), Some(other), "it keeps one, the other is free for all");
    assert_eq!(file.claim_kept(Ino(22), Some(3)), Some(kept));
    assert_eq!(file.claim_kept(Ino(24), Some(3)), None);
    file.write(&buffers, &Direct(&buffers)).unwrap();
    assert_eq!(stored(&buffers, 3).0, [(0, Ino(22)), (1, Ino(23))]);
}

/// A value that is not an inode number stays on disk, and has no owner.
#[test]
fn a_slot_of_a_damaged_block_stays() {
    let file = OrphanFile::new(Ino(12), SEED, vec![(Pblk(3), vec![u32::MAX, 0, 0])]);
    let damaged = (Slot { block: 0, at: 0 }, Ino(u32::MAX));
    assert_eq!(file.used(), [damaged]);
    let slot = file.claim(Ino(20), 0).unwrap();
    file.give_back(slot, Some(1));
    assert_eq!((file.claim_kept(Ino(21), Some(1)), file.used()), (None, vec![damaged]));
    assert!(file.claim(Ino(22), 0).is_some() && file.claim(Ino(23), 0).is_some());
    assert_eq!((file.claim(Ino(24), 0), file.used().len()), (None, 3));
}

#[test]
fn a_file_without_blocks_has_no_slots() {
    let file = OrphanFile::new(Ino(12), None, Vec::new());
    assert_eq!(file.claim(Ino(20), 5), None);
    assert_eq!(file.claim_kept(Ino(20), Some(0)), None);
}
