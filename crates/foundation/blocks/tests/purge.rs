//! Freed blocks return their memory to the system. Alone in its process, since the setting is per process.

use extant_blocks::Block;

/// Number of these blocks that have memory.
fn resident(blocks: &[usize]) -> usize {
    use std::os::unix::fs::FileExt;
    let pages = std::fs::File::open("/proc/self/pagemap").unwrap();
    let is_present = |block: &&usize| {
        let mut entry = [0; 8];
        pages.read_exact_at(&mut entry, **block as u64 / 4096 * 8).unwrap();
        u64::from_le_bytes(entry) >> 63 == 1
    };
    blocks.iter().filter(is_present).count()
}

#[test]
fn freed_blocks_go_back_to_the_system_one_by_one() {
    // One block in 32 stays, so that no region becomes empty.
    let freed_of = |count: usize| {
        let blocks: Vec<Block> = (0..count).map(|at| Block::copy_of(&[at as u8; 8192])).collect();
        let (kept, freed): (Vec<_>, Vec<_>) =
            blocks.into_iter().enumerate().partition(|(at, _)| at % 32 == 0);
        let places = freed.iter().map(|(_, block)| block.as_ptr().addr()).collect::<Vec<_>>();
        drop(freed);
        assert!(kept.iter().all(|(at, block)| block.iter().all(|byte| *byte == *at as u8)));
        (kept, places)
    };
    let (_kept, places) = freed_of(2000);
    assert!(resident(&places) > places.len() / 2, "by default memory stays for the next block");
    extant_blocks::purge_free_blocks(true);
    let (_kept, places) = freed_of(2000);
    let left = resident(&places);
    extant_blocks::purge_free_blocks(false);
    assert!(left < 200, "{left} of {} have memory: more than a thread keeps at hand", places.len());
}
