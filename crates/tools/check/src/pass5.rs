//! Pass 5: bitmaps, counts, descriptors.
//!
//! Compares the block and inode bitmaps with pass 1's, 64 bits at a time, and the counts with the bitmaps.

use std::sync::atomic::{AtomicU64, Ordering};

use extant_base::{Group, Pblk};
use extant_ondisk::bitmap::{block_bitmap_checksum, inode_bitmap_checksum};
use extant_ondisk::group_desc::{BLOCK_UNINIT, GroupDesc, INODE_UNINIT};

use crate::progress::Meter;
use crate::rules::{bitmap as rules, group as group_rules, superblock as sb_rules};
use crate::state::State;
use crate::{FindingPlace, Rule, parallel};

pub(crate) fn run(state: &State<'_>, threads: usize, meter: &Meter<'_>) {
    let totals = Totals::default();
    parallel(
        state,
        threads,
        state.image.geometry.groups,
        || (),
        |(), group| {
            check_group(state, Group(group), &totals);
            meter.add(1);
        },
        |()| (),
    );
    let sb = &state.image.sb;
    let free_blocks = totals.free_clusters.load(Ordering::Relaxed) << state.image.geometry.cluster_log;
    let free_inodes = totals.free_inodes.load(Ordering::Relaxed);
    let differs = |rule, what, stored, expected| {
        if stored != expected {
            state.findings.differs(rule, FindingPlace::default(), what, stored, expected);
        }
    };
    differs(&sb_rules::FREE_BLOCKS, "free_blocks_count", sb.free_blocks_count, free_blocks);
    differs(&sb_rules::FREE_INODES, "free_inodes_count", sb.free_inodes_count.into(), free_inodes);
}

#[derive(Debug, Default)]
struct Totals {
    free_clusters: AtomicU64,
    free_inodes: AtomicU64,
}

fn check_group(state: &State<'_>, group: Group, totals: &Totals) {
    let Some(desc) = state.image.desc(group).filter(|_| state.image.is_usable(group)) else { return };
    let free = blocks(state, group, desc);
    totals.free_clusters.fetch_add(free, Ordering::Relaxed);
    let free = inodes(state, group, desc);
    totals.free_inodes.fetch_add(free, Ordering::Relaxed);
}

/// A bitmap on disk and the one computed by pass 1.
struct Pair<'s, 'd> {
    state: &'s State<'d>,
    group: Group,
    block: Pblk,
    stored: Vec<u8>,
    expected: Vec<u64>,
    bits: u32,
}

impl Pair<'_, '_> {
    fn place(&self) -> FindingPlace {
        FindingPlace::group(self.group).in_block(self.block)
    }

    fn word(&self, index: usize) -> u64 {
        self.stored.as_chunks::<8>().0.get(index).map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// Reports runs of used but unmarked bits, and of marked but unused bits.
    fn compare(&self, unmarked: &'static Rule, leaked: &'static Rule, what: &dyn Fn(u32) -> String) {
        let mut runs = [(unmarked, None::<(u32, u32)>), (leaked, None)];
        let close = |rule: &'static Rule, run: &mut Option<(u32, u32)>| {
            if let Some((first, last)) = run.take() {
                let says = match first == last {
                    true => what(first),
                    false => format!("{} to {}", what(first), what(last)),
                };
                self.state.findings.broken(rule, self.place(), says);
            }
        };
        for index in 0..(self.bits as usize).div_ceil(64) {
            let (stored, expected) = (self.word(index), self.expected[index]);
            let start = index as u32 * 64;
            let here = (self.bits - start).min(64);
            let mask = u64::MAX >> (64 - here);
            if (stored ^ expected) & mask == 0 {
                continue;
            }
            for bit in 0..here {
                let (s, e) = (stored >> bit & 1, expected >> bit & 1);
                if s == e {
                    continue;
                }
                let at = start + bit;
                let (rule, run) = &mut runs[usize::from(s == 1)];
                match run {
                    Some((_, last)) if *last + 1 == at => *last = at,
                    _ => {
                        close(rule, run);
                        *run = Some((at, at));
                    }
                }
            }
        }
        for (rule, run) in &mut runs {
            close(rule, run);
        }
    }

    /// The number of clear bits, padding excluded.
    fn free(&self) -> u64 {
        let used: u64 = (0..(self.bits as usize).div_ceil(64))
            .map(|index| {
                let here = (self.bits - index as u32 * 64).min(64);
                u64::from((self.word(index) & (u64::MAX >> (64 - here))).count_ones())
            })
            .sum();
        u64::from(self.bits) - used
    }

    fn padding_is_set(&self) -> bool {
        let bits = self.bits as usize;
        let (byte, bit) = (bits / 8, bits % 8);
        let first = bit == 0 || self.stored.get(byte).is_none_or(|b| b | ((1 << bit) - 1) == 0xFF);
        let rest = self.stored.get(byte + usize::from(bit != 0)..).unwrap_or_default();
        first && rest.iter().all(|byte| *byte == 0xFF)
    }
}

fn read(state: &State<'_>, group: Group, block: Pblk) -> Option<Vec<u8>> {
    match state.image.read_block(block) {
        Ok(bytes) => Some(bytes),
        Err(fault) => {
            state.findings.broken(
                &group_rules::UNREADABLE,
                FindingPlace::group(group).in_block(block),
                fault.to_string(),
            );
            None
        }
    }
}

/// Checks the block bitmap; returns the number of free clusters.
fn blocks(state: &State<'_>, group: Group, desc: &GroupDesc) -> u64 {
    let (image, geometry) = (&state.image, &state.image.geometry);
    let bits = geometry.group_clusters(group);
    let words = (bits as usize).div_ceil(64);
    let mut expected = vec![0u64; words];
    if let Some(claims) = state.claims.group(group) {
        for (word, claim) in expected.iter_mut().zip(claims) {
            *word = claim.load(Ordering::Relaxed);
        }
    }
    let uninit = desc.has_flag(BLOCK_UNINIT);
    let block = Pblk(desc.block_bitmap);
    let used: u64 = expected.iter().map(|word| u64::from(word.count_ones())).sum();
    state.tally.clusters_used.fetch_add(used, Ordering::Relaxed);
    let (stored, padding) = if uninit {
        (uninit_bitmap(state, group, geometry.block_size.len()), false)
    } else {
        match read(state, group, block) {
            Some(stored) => (stored, true),
            None => return u64::from(bits) - used.min(bits.into()),
        }
    };
    let pair = Pair { state, group, block, stored, expected, bits };
    if uninit && group.0 + 1 == geometry.groups {
        let says = "the last group's block bitmap is said to be uninitialised";
        state.findings.broken(&group_rules::LAST_BLOCK_UNINIT, FindingPlace::group(group), says);
    }
    if !uninit && image.has_csum() {
        let computed = block_bitmap_checksum(image.fs_seed, &pair.stored, geometry.clusters_per_group());
        checksum(&pair, &rules::BLOCK_CHECKSUM, desc.block_bitmap_csum, computed);
    }
    if padding && !pair.padding_is_set() {
        state.findings.broken(&rules::BLOCK_PADDING, pair.place(), "padding bits are clear");
    }
    let first = state.claims.cluster_of(geometry.group_start(group));
    let what = |bit: u32| {
        let start = state.claims.block_of(first + u64::from(bit));
        format!("block {start}")
    };
    pair.compare(&rules::BLOCKS_UNMARKED, &rules::BLOCKS_LEAKED, &what);
    let free = pair.free();
    if u64::from(desc.free_clusters) != free {
        state.findings.differs(
            &group_rules::FREE_CLUSTERS,
            FindingPlace::group(group),
            "free_clusters",
            desc.free_clusters.into(),
            free,
        );
    }
    free
}

fn checksum(pair: &Pair<'_, '_>, rule: &'static Rule, stored: u32, computed: u32) {
    // 32-byte descriptors store the low 16 bits only.
    let computed = if pair.state.image.geometry.desc_size >= 64 { computed } else { computed & 0xFFFF };
    if stored != computed {
        pair.state.findings.differs(rule, pair.place(), "the checksum", stored.into(), computed.into());
    }
}

/// The block bitmap of an uninitialised group: only its fixed metadata is marked.
fn uninit_bitmap(state: &State<'_>, group: Group, len: usize) -> Vec<u8> {
    let geometry = &state.image.geometry;
    let mut bitmap = vec![0; len];
    let start = geometry.group_start(group).0;
    let end = start + u64::from(geometry.group_blocks(group));
    let ranges = state.image.zones.ranges();
    let from = ranges.partition_point(|(_, stop)| *stop <= start);
    for (zone_start, zone_end) in ranges[from..].iter().take_while(|(zone_start, _)| *zone_start < end) {
        let first = (zone_start.max(&start) - start) >> geometry.cluster_log;
        let last = (zone_end.min(&end) - 1 - start) >> geometry.cluster_log;
        for bit in first..=last {
            bitmap[bit as usize / 8] |= 1 << (bit % 8);
        }
    }
    bitmap
}

/// Checks the inode bitmap; returns the number of free inodes.
fn inodes(state: &State<'_>, group: Group, desc: &GroupDesc) -> u64 {
    let (image, geometry) = (&state.image, &state.image.geometry);
    let bits = geometry.inodes_per_group;
    let mut expected = vec![0u64; (bits as usize).div_ceil(64)];
    let mut dirs = 0;
    if let Some(notes) = state.inodes.group(group) {
        for (index, note) in notes.iter().enumerate() {
            expected[index / 64] |= u64::from(note.used) << (index % 64);
            dirs += u64::from(note.used && note.kind == 2);
        }
    }
    // With few inodes per group, reserved inodes extend past the first group.
    let before = group.0.saturating_mul(geometry.inodes_per_group);
    let first_ino = if image.sb.rev_level == 0 { 11 } else { image.sb.first_ino };
    let reserved = first_ino.saturating_sub(1).saturating_sub(before).min(bits);
    for index in 0..reserved as usize {
        expected[index / 64] |= 1 << (index % 64);
    }
    let uninit = desc.has_flag(INODE_UNINIT);
    let block = Pblk(desc.inode_bitmap);
    let used: u64 = expected.iter().map(|word| u64::from(word.count_ones())).sum();
    let stored = if uninit {
        vec![0; geometry.block_size.len()]
    } else {
        match read(state, group, block) {
            Some(stored) => stored,
            None => return u64::from(bits) - used,
        }
    };
    let pair = Pair { state, group, block, stored, expected, bits };
    if !uninit {
        if image.has_csum() {
            let computed = inode_bitmap_checksum(image.fs_seed, &pair.stored, bits);
            checksum(&pair, &rules::INODE_CHECKSUM, desc.inode_bitmap_csum, computed);
        }
        if !pair.padding_is_set() {
            state.findings.broken(&rules::INODE_PADDING, pair.place(), "padding bits are clear");
        }
    }
    let what = |bit: u32| format!("inode {}", u64::from(group.0) * u64::from(bits) + u64::from(bit) + 1);
    pair.compare(&rules::INODES_UNMARKED, &rules::INODES_LEAKED, &what);
    let free = pair.free();
    let place = || FindingPlace::group(group);
    if u64::from(desc.free_inodes) != free {
        state.findings.differs(
            &group_rules::FREE_INODES,
            place(),
            "free_inodes",
            desc.free_inodes.into(),
            free,
        );
    }
    if u64::from(desc.used_dirs) != dirs {
        state.findings.differs(&group_rules::USED_DIRS, place(), "used_dirs", desc.used_dirs.into(), dirs);
    }
    free
}
