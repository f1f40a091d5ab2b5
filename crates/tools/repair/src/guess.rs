//! Superblocks whose damaged numbers are guessed: by the device's size, by what numbers must be to each
//! other, and by what tools usually choose.
//!
//! Does **not** own: the choice among the guesses (see [`supers`](crate::supers)), which is by what
//! a check finds with each.

use std::collections::HashMap;

use extant_base::{BlockSize, Group, Ino, Pblk};
use extant_device::Device;
use extant_ondisk::features::TABLE;
use extant_ondisk::group_desc::GroupDesc;
use extant_ondisk::{Features, Geometry, Superblock, inode, superblock};

/// All guesses for these bytes at the place of the primary, likely ones first.
pub(crate) fn all(bytes: &[u8; superblock::SIZE], device_bytes: u64) -> Vec<Superblock> {
    let mut bytes = *bytes;
    bytes[0x38..0x3A].copy_from_slice(&superblock::MAGIC.to_le_bytes());
    let Ok(stored) = Superblock::decode(&bytes) else { return Vec::new() };
    let mut guesses: Vec<Superblock> = Vec::new();
    let mut add = |sb: Superblock| {
        if Geometry::new(&sb).is_ok() && !guesses.contains(&sb) {
            guesses.push(sb);
        }
    };
    let block_logs = [stored.log_block_size, 0, 2, 1, 3, 4, 5, 6];
    let inode_sizes = [stored.inode_size, 256, 128, 512, 1024];
    for features in feature_sets(&stored) {
        for log in block_logs.into_iter().filter(|log| *log <= 6) {
            for inode_size in inode_sizes {
                for (whole, by_count) in [(false, false), (false, true), (true, false), (true, true)] {
                    // Which number of blocks of a group is right, of those that could be.
                    for nth in 0..3 {
                        let sb = Superblock { features, ..stored.clone() };
                        if let Some(sb) = fitted(sb, log, inode_size, device_bytes, (whole, by_count, nth)) {
                            add(sb);
                        }
                    }
                }
            }
            // Only the stored block size is tried with changed features.
            if features != stored.features {
                break;
            }
        }
    }
    guesses
}

/// The seed that the checksums of the first inodes were made with, by the majority of them.
pub(crate) fn implied_seed(device: &dyn Device, sb: &Superblock) -> Option<u32> {
    /// Inodes that are looked at, and those that must agree.
    const LOOKED_AT: u32 = 64;
    const AGREE_MIN: usize = 3;
    let geometry = Geometry::new(sb).ok()?;
    let (block, at) = geometry.descriptor_place(Group(0));
    let mut bytes = vec![0; geometry.desc_size];
    device.read_at(geometry.block_size.offset_of(block)? + at as u64, &mut bytes).ok()?;
    let table = geometry.block_size.offset_of(Pblk(GroupDesc::decode(&bytes).ok()?.inode_table))?;
    let mut seeds: HashMap<u32, usize> = HashMap::new();
    let mut raw = vec![0; geometry.inode_size];
    for index in 0..LOOKED_AT.min(geometry.inodes_per_group) {
        device.read_at(table.checked_add(u64::from(index) * geometry.inode_size as u64)?, &mut raw).ok()?;
        if raw.iter().any(|byte| *byte != 0) {
            let seed = inode::implied_fs_seed(&raw, Ino(index + 1));
            seed.into_iter().for_each(|seed| *seeds.entry(seed).or_default() += 1);
        }
    }
    let (seed, count) = seeds.into_iter().max_by_key(|(seed, count)| (*count, *seed))?;
    (count >= AGREE_MIN).then_some(seed)
}

/// What tools usually choose, for a word of features that is damaged as a whole.
const USUAL_COMPAT: [u32; 3] = [
    Features::EXT_ATTR | Features::DIR_INDEX,
    Features::EXT_ATTR | Features::DIR_INDEX | Features::HAS_JOURNAL,
    Features::EXT_ATTR | Features::DIR_INDEX | Features::RESIZE_INODE | Features::HAS_JOURNAL,
];
const USUAL_INCOMPAT: [u32; 4] = [
    Features::FILETYPE,
    Features::FILETYPE | Features::EXTENTS,
    Features::FILETYPE | Features::EXTENTS | Features::FLEX_BG,
    Features::FILETYPE | Features::EXTENTS | Features::FLEX_BG | Features::BIT64,
];
const USUAL_RO_COMPAT: [u32; 4] = [
    Features::SPARSE_SUPER | Features::LARGE_FILE,
    EXT4_RO_COMPAT | Features::GDT_CSUM,
    EXT4_RO_COMPAT | Features::METADATA_CSUM,
    EXT4_RO_COMPAT,
];
const EXT4_RO_COMPAT: u32 = Features::SPARSE_SUPER
    | Features::LARGE_FILE
    | Features::HUGE_FILE
    | Features::DIR_NLINK
    | Features::EXTRA_ISIZE;

/// The features as stored, without unknown ones; with one of them changed; and the usual ones in place of
/// words that are empty or have unknown ones.
fn feature_sets(sb: &Superblock) -> Vec<Features> {
    let mut known = Features::default();
    for feature in TABLE {
        let word = match feature.word {
            extant_ondisk::features::Word::Compat => &mut known.compat,
            extant_ondisk::features::Word::Incompat => &mut known.incompat,
            extant_ondisk::features::Word::RoCompat => &mut known.ro_compat,
        };
        *word |= feature.bit;
    }
    known.incompat &= !(Features::JOURNAL_DEV | 0x1 | 0x1000);
    known.ro_compat &= !(0x80 | 0x4);
    let stored = Features {
        compat: sb.features.compat & known.compat,
        incompat: sb.features.incompat & known.incompat,
        ro_compat: sb.features.ro_compat & known.ro_compat,
    };
    let mut sets = vec![stored];
    let words = |found: u32, kept: u32, usual: &[u32]| match found == 0 || found != kept {
        true => usual.iter().copied().chain([kept]).collect(),
        false => vec![kept],
    };
    for compat in words(sb.features.compat, stored.compat, &USUAL_COMPAT) {
        for incompat in words(sb.features.incompat, stored.incompat, &USUAL_INCOMPAT) {
            for ro_compat in words(sb.features.ro_compat, stored.ro_compat, &USUAL_RO_COMPAT) {
                sets.push(Features { compat, incompat, ro_compat });
            }
        }
    }
    for bit in (0..32).map(|bit| 1u32 << bit) {
        if known.incompat & bit != 0 {
            sets.push(Features { incompat: stored.incompat ^ bit, ..stored });
        }
        if known.ro_compat & bit != 0 {
            sets.push(Features { ro_compat: stored.ro_compat ^ bit, ..stored });
        }
        if (Features::RESIZE_INODE | Features::HAS_JOURNAL | Features::SPARSE_SUPER2) & bit != 0 {
            sets.push(Features { compat: stored.compat ^ bit, ..stored });
        }
    }
    sets
}

/// Makes the other numbers fit. `whole` takes the number of blocks from the device's size, `by_count` the
/// inodes per group from the number of inodes, and `nth` chooses among the possible sizes of groups.
fn fitted(
    mut sb: Superblock,
    log: u32,
    inode_size: u16,
    device_bytes: u64,
    (whole, by_count, nth): (bool, bool, usize),
) -> Option<Superblock> {
    let block_size = BlockSize::from_log(log)?;
    let bs = block_size.bytes();
    let f = sb.features;
    let bigalloc = f.has_ro_compat(Features::BIGALLOC);
    sb.log_block_size = log;
    let cluster_log = sb.log_cluster_size.checked_sub(log).filter(|more| bigalloc && *more <= 16);
    let cluster_log = cluster_log.unwrap_or(if bigalloc { 4 } else { 0 });
    sb.log_cluster_size = log + cluster_log;
    sb.first_data_block = u32::from(bs << cluster_log == 1024);
    if f != Features::default() || inode_size != 128 {
        sb.rev_level = 1;
    }
    sb.rev_level = sb.rev_level.min(1);
    if sb.rev_level == 1 && (sb.first_ino < 11 || sb.first_ino > 1 << 20) {
        sb.first_ino = 11;
    }
    sb.creator_os = sb.creator_os.min(4);
    if u64::from(inode_size) > bs || inode_size < 128 || !inode_size.is_power_of_two() {
        return None;
    }
    sb.inode_size = inode_size;
    if f.has_incompat(Features::BIT64) {
        let fits = sb.desc_size.is_power_of_two() && (64..=1024).contains(&sb.desc_size);
        sb.desc_size = if fits { sb.desc_size } else { 64 };
    } else if sb.desc_size != 0 {
        sb.desc_size = 32;
    }
    if sb.log_groups_per_flex > 31 || f.has_incompat(Features::FLEX_BG) && sb.log_groups_per_flex == 0 {
        sb.log_groups_per_flex = 4;
    }
    let all = device_bytes / bs;
    if whole || sb.blocks_count > all || sb.blocks_count <= u64::from(sb.first_data_block) + 64 {
        sb.blocks_count = all;
    }
    let most = (8 * bs) << cluster_log;
    let fits = |blocks: u64| {
        blocks > 0
            && blocks <= most
            && (blocks >> cluster_log).is_multiple_of(8)
            && (blocks >> cluster_log) << cluster_log == blocks
    };
    let by_clusters = u64::from(sb.clusters_per_group) << cluster_log;
    let per_group = [by_clusters, sb.blocks_per_group.into(), most]
        .into_iter()
        .filter(|blocks| fits(*blocks))
        .nth(nth)?;
    sb.blocks_per_group = u32::try_from(per_group).ok()?;
    sb.clusters_per_group = (per_group >> cluster_log) as u32;
    let groups = (sb.blocks_count - u64::from(sb.first_data_block)).div_ceil(per_group);
    let groups = u32::try_from(groups).ok().filter(|groups| *groups > 0)?;
    let per_block = (bs / u64::from(inode_size)) as u32;
    let fits = |inodes: u32| {
        inodes >= per_block
            && inodes.is_multiple_of(8)
            && u64::from(inodes) <= 8 * bs
            && inodes.is_multiple_of(per_block)
    };
    if by_count || !fits(sb.inodes_per_group) {
        // The number of inodes may be wrong by a little, too.
        let inodes = sb.inodes_count / groups;
        sb.inodes_per_group = Some(inodes - inodes % per_block.max(8)).filter(|inodes| fits(*inodes))?;
    }
    sb.inodes_count = sb.inodes_per_group.checked_mul(groups)?;
    if f.metadata_csum() {
        sb.checksum_type = 1;
    }
    if u64::from(sb.reserved_gdt_blocks) > bs / 4 || !f.has_compat(Features::RESIZE_INODE) {
        sb.reserved_gdt_blocks = 0;
    }
    if f.has_incompat(Features::CASEFOLD) {
        sb.encoding = 1;
    }
    sb.free_blocks_count = sb.free_blocks_count.min(sb.blocks_count);
    sb.free_inodes_count = sb.free_inodes_count.min(sb.inodes_count);
    if sb.reserved_blocks_count > sb.blocks_count / 2 {
        sb.reserved_blocks_count = sb.blocks_count / 20;
    }
    Some(sb)
}
