//! Computes the geometry fields of the superblock from the options and the number of blocks.
//!
//! It follows the rules of libext2fs (mke2fs(8)), so that dumpe2fs shows the same numbers for the same
//! options. Does **not** choose block addresses (see [`crate::layout`]).

use extant_base::{BlockSize, Group};
use extant_ondisk::{Features, Geometry, Superblock, superblock};

use crate::options::{FeatureFault, FormatOptions, Usage};

/// How to treat a last group that mke2fs considers too small (its own metadata and 50 blocks).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    /// Leave its blocks out of the file system, as mke2fs does.
    Drop,
    /// Keep every group that can hold its own metadata: the size was computed exactly.
    Keep,
}

/// Why no file system with this size and these options exists.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizingFault {
    /// The features are invalid.
    #[error(transparent)]
    Features(#[from] FeatureFault),
    /// A number is out of range.
    #[error("{what} is {found}: {limits}")]
    Limit {
        /// The option: "inode size", "blocks per group".
        what: &'static str,
        /// Its value.
        found: u64,
        /// The valid range.
        limits: String,
    },
    /// The groups of a device of this size cannot hold that many inodes.
    #[error("{inodes} inodes are more than the inode bitmaps of {groups} groups can count")]
    TooManyInodes {
        /// Number of inodes requested.
        inodes: u64,
        /// Number of groups of the device.
        groups: u32,
    },
    /// The device is too small even for the metadata.
    #[error(
        "{blocks} blocks of {block_size} bytes are too few: the metadata of the first group alone needs {needed}"
    )]
    TooSmall {
        /// Blocks of the device.
        blocks: u64,
        /// Bytes per block.
        block_size: u64,
        /// Minimum number of blocks.
        needed: u64,
    },
}

/// Maximum number of groups: 2 PiB in blocks of 4 KiB. Each group costs memory here, and time at every mount.
const GROUPS_MAX: u64 = 1 << 24;

fn limit(what: &'static str, found: u64, limits: impl Into<String>) -> SizingFault {
    SizingFault::Limit { what, found, limits: limits.into() }
}

/// The superblock with all numbers that follow from the options and the size, and its geometry.
#[derive(Debug, Clone, PartialEq)]
pub struct Sized {
    /// All fields except counts of free blocks and inodes, times, and special inodes.
    pub superblock: Superblock,
    /// The geometry of this superblock.
    pub geometry: Geometry,
    /// Groups per flex group (`-G`), 1 without flex_bg.
    pub groups_per_flex: u32,
}

/// The block size for these options and a device of `bytes` bytes.
#[must_use]
pub fn block_size(options: &FormatOptions, bytes: u64) -> BlockSize {
    options.block_size.unwrap_or_else(|| options.usage.unwrap_or(Usage::for_size(bytes)).block_size())
}

/// Computes the numbers of a file system of `blocks` blocks. `inodes` overrides both `-N` and the ratio.
///
/// # Errors
/// Features conflict, a number is out of range, or the device is too small.
pub fn size(
    options: &FormatOptions,
    block_size: BlockSize,
    blocks: u64,
    inodes: Option<u64>,
    tail: Tail,
) -> Result<Sized, SizingFault> {
    let features = options.resolve_features()?;
    let mut sb = Superblock { features, rev_level: 1, ..Superblock::default() };
    sb.log_block_size = block_size.log();
    let ratio = cluster_ratio(options, &features, block_size)?;
    sb.log_cluster_size = sb.log_block_size + ratio.trailing_zeros();
    sb.first_data_block = u32::from(block_size == BlockSize::MIN && ratio == 1);
    sb.blocks_count = blocks & !(ratio - 1);
    if !features.has_incompat(Features::BIT64) && sb.blocks_count > u64::from(u32::MAX) {
        return Err(limit(
            "the number of blocks",
            blocks,
            "without the 64bit feature it is at most 2^32 - 1",
        ));
    }
    if features.has_incompat(Features::BIT64) {
        sb.desc_size = 64;
    }
    choose_inode_size(options, &mut sb, block_size)?;
    if let Some(ratio) = options.inode_ratio.filter(|ratio| !(1024..=64 << 20).contains(ratio)) {
        return Err(limit("the number of bytes per inode", ratio, "from 1024 to 64 MiB"));
    }
    choose_group_size(options, &mut sb, block_size, ratio)?;
    let groups_per_flex = choose_flex(options, &mut sb)?;
    choose_backups(options, &mut sb)?;
    let usage = options.usage.unwrap_or(Usage::for_size(blocks * block_size.bytes()));
    if let Some(asked) = inodes.max(options.inodes).filter(|&asked| asked > u64::from(u32::MAX)) {
        return Err(limit("the number of inodes", asked, "at most 4294967295"));
    }
    let wanted = inodes.or(options.inodes).unwrap_or_else(|| {
        // Every file needs a cluster, so more inodes than clusters could never be used.
        let usual = usage.inode_ratio().max(ratio * block_size.bytes());
        sb.blocks_count * block_size.bytes() / options.inode_ratio.unwrap_or(usual)
    });
    sb.reserved_blocks_count = (blocks as f64 * options.reserved_percent.unwrap_or(5.0) / 100.0) as u64;
    let geometry = fit_groups(options, &mut sb, wanted.max(1), tail)?;
    fill_constants(options, &mut sb);
    Ok(Sized { superblock: sb, geometry, groups_per_flex })
}

fn cluster_ratio(options: &FormatOptions, features: &Features, bs: BlockSize) -> Result<u64, SizingFault> {
    if !features.has_ro_compat(Features::BIGALLOC) {
        return Ok(1);
    }
    let cluster = options.cluster_size.unwrap_or(bs.bytes() * 16);
    let legal = cluster.is_power_of_two() && cluster > bs.bytes() && cluster <= 512 << 20;
    if !legal {
        return Err(limit(
            "the cluster size",
            cluster,
            "a power of two above the block size, at most 512 MiB",
        ));
    }
    Ok(cluster / bs.bytes())
}

fn choose_inode_size(options: &FormatOptions, sb: &mut Superblock, bs: BlockSize) -> Result<(), SizingFault> {
    let inode_size = options.inode_size.unwrap_or(256);
    if !inode_size.is_power_of_two() || inode_size < 128 || u64::from(inode_size) > bs.bytes() {
        return Err(limit("the inode size", inode_size.into(), format!("a power of two from 128 to {bs}")));
    }
    sb.inode_size = inode_size;
    sb.first_ino = 11;
    if inode_size > 128 {
        sb.min_extra_isize = extant_ondisk::inode::EXTRA_SIZE as u16;
        sb.want_extra_isize = extant_ondisk::inode::EXTRA_SIZE as u16;
    } else {
        if sb.features.has_ro_compat(Features::PROJECT) {
            return Err(limit("the inode size", 128, "the project feature needs at least 256"));
        }
        if sb.features.has_incompat(Features::INLINE_DATA) {
            return Err(limit("the inode size", 128, "the inline_data feature needs at least 256"));
        }
    }
    Ok(())
}

fn choose_group_size(
    options: &FormatOptions,
    sb: &mut Superblock,
    bs: BlockSize,
    ratio: u64,
) -> Result<(), SizingFault> {
    // Without the 64bit feature a group's free count has 16 bits, so with 64 KiB blocks part of the bitmap is
    // unused.
    let most = (8 * bs.bytes()).min(65_528);
    let clusters = match options.blocks_per_group {
        None => most,
        // As in mke2fs, the number counts clusters if the file system has them.
        Some(units) => {
            let clusters = u64::from(units);
            if clusters < 256 || clusters > most || !clusters.is_multiple_of(8) {
                let what = if ratio == 1 { "blocks per group" } else { "clusters per group" };
                return Err(limit(what, clusters, format!("a multiple of 8 from 256 to {most}")));
            }
            clusters
        }
    };
    set_group_clusters(sb, clusters, ratio)
}

fn set_group_clusters(sb: &mut Superblock, clusters: u64, ratio: u64) -> Result<(), SizingFault> {
    sb.clusters_per_group = clusters as u32;
    sb.blocks_per_group = u32::try_from(clusters * ratio)
        .map_err(|_| limit("blocks per group", clusters * ratio, "below 2^32: choose smaller clusters"))?;
    Ok(())
}

fn choose_flex(options: &FormatOptions, sb: &mut Superblock) -> Result<u32, SizingFault> {
    if !sb.features.has_incompat(Features::FLEX_BG) {
        return match options.groups_per_flex {
            None => Ok(1),
            Some(groups) => {
                Err(limit("groups per flex group", groups.into(), "it can only be chosen with flex_bg"))
            }
        };
    }
    let groups = options.groups_per_flex.unwrap_or(16);
    if !groups.is_power_of_two() {
        return Err(limit("groups per flex group", groups.into(), "a power of two"));
    }
    sb.log_groups_per_flex = groups.trailing_zeros() as u8;
    Ok(groups)
}

fn choose_backups(options: &FormatOptions, sb: &mut Superblock) -> Result<(), SizingFault> {
    if sb.features.has_compat(Features::SPARSE_SUPER2) {
        sb.backup_bgs = match options.num_backup_sb.unwrap_or(2) {
            0 => [0, 0],
            1 => [1, 0],
            2 => [1, u32::MAX],
            more => return Err(limit("the number of backup superblocks", more.into(), "0, 1 or 2")),
        };
    } else if options.num_backup_sb.is_some() {
        return Err(limit("the number of backup superblocks", 0, "it can only be chosen with sparse_super2"));
    }
    Ok(())
}

/// Computes inodes per group, reserved descriptor blocks and the final number of blocks. Repeats until they
/// are consistent.
fn fit_groups(
    options: &FormatOptions,
    sb: &mut Superblock,
    wanted_inodes: u64,
    tail: Tail,
) -> Result<Geometry, SizingFault> {
    let bs = sb.block_size().expect("the log was made from a block size");
    let (asked_blocks, asked_reserved) = (sb.blocks_count, sb.reserved_blocks_count);
    if let Some(most) = options.grow_blocks(bs).filter(|&most| most <= asked_blocks && tail == Tail::Drop) {
        return Err(limit(
            "the size to grow to",
            most,
            format!("more than the {asked_blocks} blocks that there are"),
        ));
    }
    let asked_backups = sb.backup_bgs;
    let wants_resize = sb.features.has_compat(Features::RESIZE_INODE);
    loop {
        let fdb = u64::from(sb.first_data_block);
        if sb.blocks_count <= fdb {
            return Err(SizingFault::TooSmall {
                blocks: sb.blocks_count,
                block_size: bs.bytes(),
                needed: fdb + 1,
            });
        }
        let groups = (sb.blocks_count - fdb).div_ceil(sb.blocks_per_group.into());
        if groups > GROUPS_MAX {
            let limits = format!("at most {GROUPS_MAX}: choose larger blocks, or clusters (bigalloc)");
            return Err(limit("the number of groups", groups, limits));
        }
        let groups = groups as u32;
        let wanted = wanted_inodes.max(group_inodes(options, sb, bs) * u64::from(groups));
        if !fit_inodes(sb, wanted, groups, bs, tail)? {
            // The groups are smaller now: the tail may be worth keeping.
            sb.blocks_count = asked_blocks;
            continue;
        }
        place_backups(sb, asked_backups, groups);
        sb.features.compat &= !Features::RESIZE_INODE;
        sb.reserved_gdt_blocks = 0;
        if wants_resize && !sb.features.has_incompat(Features::META_BG) {
            sb.features.compat |= Features::RESIZE_INODE;
            sb.reserved_gdt_blocks = reserved_gdt_blocks(options, sb, bs);
        }
        let geometry = geometry_of(sb)?;
        if !geometry.meta_bg()
            && u64::from(geometry.desc_blocks) + u64::from(geometry.reserved_gdt_blocks)
                > u64::from(sb.blocks_per_group) * 3 / 4
        {
            // The table would fill most of every backup group: distribute it over meta groups instead.
            sb.features.incompat |= Features::META_BG;
            continue;
        }
        let rest = (sb.blocks_count - fdb) % u64::from(sb.blocks_per_group);
        let needed = tail_needs(&geometry, tail);
        if rest == 0 || rest >= needed {
            return Ok(geometry);
        }
        if groups == 1 {
            return Err(SizingFault::TooSmall {
                blocks: sb.blocks_count,
                block_size: bs.bytes(),
                needed: fdb + needed,
            });
        }
        sb.blocks_count = (sb.blocks_count - rest) & !(geometry.cluster_ratio() - 1);
        let share = u128::from(asked_reserved) * u128::from(sb.blocks_count) / u128::from(asked_blocks);
        sb.reserved_blocks_count = share as u64;
    }
}

/// Minimum number of inodes per group, regardless of the size of the file system.
fn group_inodes(options: &FormatOptions, sb: &Superblock, bs: BlockSize) -> u64 {
    let Some(ratio) = options.group_inode_ratio else { return 0 };
    let group = u64::from(sb.blocks_per_group) * bs.bytes();
    let grown = options.grow_to_bytes.unwrap_or(u64::MAX);
    // Every file needs a cluster, and the bitmap has as many bits as a block.
    let cluster = group / u64::from(sb.clusters_per_group);
    (group.min(grown) / ratio.max(cluster)).min(8 * bs.bytes())
}

fn geometry_of(sb: &Superblock) -> Result<Geometry, SizingFault> {
    Geometry::new(sb).map_err(|broken| SizingFault::Limit {
        what: broken.structure,
        found: broken.found,
        limits: broken.rule.to_owned(),
    })
}

/// Minimum number of blocks of the last group, if it is to be kept.
#[must_use]
pub fn tail_needs(geometry: &Geometry, tail: Tail) -> u64 {
    let last = Group(geometry.groups - 1);
    let head = geometry.group_head(last);
    let own_head =
        u64::from(head.superblock.is_some()) + u64::from(head.descriptors.1) + u64::from(head.reserved.1);
    match tail {
        Tail::Drop => {
            let copies = if geometry.has_super(last) {
                1 + u64::from(geometry.desc_blocks) + u64::from(geometry.reserved_gdt_blocks)
            } else {
                0
            };
            let own = 2 + u64::from(geometry.itable_blocks()) + copies;
            if geometry.groups == 1 { own } else { own + 50 }
        }
        // With flex_bg the tables are in the first group of the flex group; otherwise they must be in this
        // group.
        Tail::Keep if geometry.flex_log > 0 && geometry.groups > 1 => own_head + 1,
        Tail::Keep => own_head + 2 + u64::from(geometry.itable_blocks()) + 1,
    }
}

/// Sets the inodes per group. Returns `false` if it made the groups smaller and the computation must restart.
fn fit_inodes(
    sb: &mut Superblock,
    wanted: u64,
    groups: u32,
    bs: BlockSize,
    tail: Tail,
) -> Result<bool, SizingFault> {
    let inode_size = u64::from(sb.inode_size);
    let per_block = bs.bytes() / inode_size;
    let mut ipg = wanted.div_ceil(groups.into());
    if ipg > 8 * bs.bytes() {
        if sb.blocks_per_group >= 256 && sb.clusters_per_group > 264 {
            let ratio = u64::from(sb.blocks_per_group / sb.clusters_per_group);
            set_group_clusters(sb, u64::from(sb.clusters_per_group) - 8, ratio)?;
            return Ok(false);
        }
        return Err(SizingFault::TooManyInodes { inodes: wanted, groups });
    }
    ipg = ipg.min(65_536 - per_block);
    // Fill the last block of each table, and keep a multiple of 8 for the bitmaps.
    ipg = ipg.div_ceil(per_block) * per_block;
    // mke2fs rounds down and may make fewer inodes than requested. A computed number must not decrease.
    ipg = match tail {
        Tail::Drop => ipg.max(8) & !7,
        Tail::Keep => ipg.next_multiple_of(8),
    };
    while ipg * u64::from(groups) > u64::from(u32::MAX) {
        ipg -= 8;
    }
    if ipg < 8 || ipg * u64::from(groups) < 16 {
        ipg = 16;
    }
    sb.inodes_per_group = ipg as u32;
    sb.inodes_count = (ipg * u64::from(groups)) as u32;
    Ok(true)
}

fn place_backups(sb: &mut Superblock, asked: [u32; 2], groups: u32) {
    if !sb.features.has_compat(Features::SPARSE_SUPER2) {
        return;
    }
    let [mut first, mut second] = asked;
    if first >= groups {
        first = 0;
    }
    if second >= groups {
        second = groups - 1;
    }
    if first == second {
        second = 0;
    }
    if first > second {
        (first, second) = (second, first);
    }
    sb.backup_bgs = [first, second];
}

/// Blocks for the descriptor table to grow online to 1024 times the size (or to `-E resize=`).
fn reserved_gdt_blocks(options: &FormatOptions, sb: &Superblock, bs: BlockSize) -> u16 {
    let per_block = bs.bytes() / sb.group_desc_size() as u64;
    let (bpg, fdb) = (u64::from(sb.blocks_per_group), u64::from(sb.first_data_block));
    let desc_blocks = (sb.blocks_count - fdb).div_ceil(bpg).div_ceil(per_block);
    let most_blocks = match options.grow_blocks(bs) {
        Some(blocks) => blocks,
        None => (sb.blocks_count.saturating_mul(1024)).min(u64::from(u32::MAX)),
    };
    let wanted =
        most_blocks.saturating_sub(fdb).div_ceil(bpg).div_ceil(per_block).saturating_sub(desc_blocks);
    wanted.min(bs.bytes() / 4) as u16
}

fn fill_constants(options: &FormatOptions, sb: &mut Superblock) {
    let features = sb.features;
    sb.state = superblock::STATE_CLEAN;
    sb.errors = options.errors.unwrap_or(1);
    sb.max_mnt_count = u16::MAX;
    sb.def_hash_version = 1;
    sb.flags = superblock::FLAG_SIGNED_HASH;
    if options.test_fs {
        sb.flags |= superblock::FLAG_TEST_FILESYS;
    }
    sb.default_mount_opts = 0xC; // user_xattr, acl
    sb.raid_stride = options.stride;
    sb.raid_stripe_width = options.stripe_width;
    if features.metadata_csum() {
        sb.checksum_type = 1;
    }
    copy_text(&mut sb.volume_name, &options.label);
    copy_text(&mut sb.last_mounted, &options.last_mounted);
}

fn copy_text(field: &mut [u8], text: &[u8]) {
    let len = text.len().min(field.len());
    field[..len].copy_from_slice(&text[..len]);
}
