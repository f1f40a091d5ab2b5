//! Superblock, features, descriptors, and the backups of both.
//!
//! Owns: the choice of the superblock, the image that all passes read, the rules of the areas `SB` and `GD`
//! that need no pass. Does **not** own: free counts (see [`crate::pass5`]).
//!
//! ```text
//!  byte 1024 ── valid? ── yes ──────────────── geometry ── replay ── superblock again ── descriptors
//!                 no ─── valid backup? ── yes ─┘  (SB002)
//!                             no: SB001, the check ends
//! ```

mod descs;
mod resize;

use std::sync::atomic::AtomicU64;

use extant_base::{BlockSize, Group, Malformed, Pblk};
use extant_device::{Device, foreign};
use extant_ondisk::features::{TABLE, Word};
use extant_ondisk::{Features, Geometry, Superblock};
use extant_ondisk::{mmp, superblock};

use crate::image::{Image, Zones};
use crate::rules::superblock as rules;
use crate::state::State;
use crate::{CheckFault, FindingPlace, Findings, replay};

/// The most groups a check accepts: 2^52 bytes in groups of 128 MiB are fewer.
const GROUPS_MAX: u32 = 1 << 25;
/// The fewest blocks per group that mke2fs makes. A file system with many groups must have at least this
/// average: notes need memory per group, and a sparse file could name millions of groups.
const GROUP_BLOCKS_MIN: u64 = 256;
/// Below this number of groups, groups may be smaller.
const SMALL_GROUPS_MAX: u64 = 1 << 16;

/// Features that the check knows completely.
const KNOWN: Features = Features {
    compat: Features::DIR_PREALLOC
        | Features::IMAGIC
        | Features::HAS_JOURNAL
        | Features::EXT_ATTR
        | Features::RESIZE_INODE
        | Features::DIR_INDEX
        | Features::SPARSE_SUPER2
        | Features::FAST_COMMIT
        | Features::STABLE_INODES
        | Features::ORPHAN_FILE,
    incompat: Features::FILETYPE
        | Features::RECOVER
        | Features::META_BG
        | Features::EXTENTS
        | Features::BIT64
        | Features::MMP
        | Features::FLEX_BG
        | Features::EA_INODE
        | Features::CSUM_SEED
        | Features::LARGEDIR
        | Features::INLINE_DATA
        | Features::ENCRYPT
        | Features::CASEFOLD,
    ro_compat: Features::SPARSE_SUPER
        | Features::LARGE_FILE
        | Features::HUGE_FILE
        | Features::GDT_CSUM
        | Features::DIR_NLINK
        | Features::EXTRA_ISIZE
        | Features::QUOTA
        | Features::BIGALLOC
        | Features::METADATA_CSUM
        | Features::READONLY
        | Features::PROJECT
        | Features::SHARED_BLOCKS
        | Features::VERITY
        | Features::ORPHAN_PRESENT,
};

/// Opens the image. `None` if the check cannot go past the superblock; a finding gives the reason.
pub(crate) fn open<'d>(
    device: &'d dyn Device,
    journal: Option<&'d dyn Device>,
    findings: &Findings,
) -> Result<Option<Image<'d>>, CheckFault> {
    let mut bytes = [0; superblock::SIZE];
    if let Err(fault) = device.read_at(superblock::OFFSET, &mut bytes) {
        let Some(found) = foreign::identify(device) else { return Err(fault.into()) };
        findings.broken(&rules::UNREADABLE, FindingPlace::default(), found.to_string());
        return Ok(None);
    }
    let Some((sb, geometry)) = choose(device, &bytes, findings) else { return Ok(None) };
    let Some((sb, geometry)) = usable(device, sb, geometry, findings) else { return Ok(None) };
    let replay = replay::scan(device, journal, &sb, &geometry, findings);
    let (sb, geometry) = match &replay {
        Some(replay) => {
            // The superblock is journaled too; its geometry changes only when the file system grows.
            let read = replay.read(device, superblock::OFFSET, &mut bytes).map_err(|fault| fault.to_string());
            let again = read.and_then(|()| judge(&bytes).map_err(|fault| fault.to_string()));
            match again {
                Ok((sb, geometry)) => match usable(device, sb, geometry, findings) {
                    Some(usable) => usable,
                    None => return Ok(None),
                },
                Err(says) => {
                    findings.broken(
                        &rules::PRIMARY,
                        FindingPlace::default(),
                        format!("after the replay: {says}"),
                    );
                    (sb, geometry)
                }
            }
        }
        None => (sb, geometry),
    };
    let mut image = Image {
        device,
        fs_seed: sb.fs_seed(),
        sb,
        geometry,
        descs: Vec::new(),
        replay,
        zones: Zones::default(),
        unusable: Vec::new(),
        bytes_read: AtomicU64::new(2 * superblock::SIZE as u64),
    };
    descs::load(&mut image, findings);
    Ok(Some(image))
}

/// Decodes and validates a superblock and its geometry.
fn judge(bytes: &[u8]) -> Result<(Superblock, Geometry), Malformed> {
    let mut sb = Superblock::decode(bytes)?;
    let checksum_type_known = sb.checksum_type == 1;
    Malformed::unless(sb.verify() || !checksum_type_known, "superblock", "the checksum fits", sb.checksum)?;
    drop_high(&mut sb);
    let geometry = geometry(&sb)?;
    Ok((sb, geometry))
}

/// Without 64bit, e2fsprogs reads the low halves only; [`check`] reports high halves that are set.
fn drop_high(sb: &mut Superblock) {
    if !sb.features.has_incompat(Features::BIT64) {
        for count in [&mut sb.blocks_count, &mut sb.reserved_blocks_count, &mut sb.free_blocks_count] {
            *count &= 0xFFFF_FFFF;
        }
    }
}

/// The geometry, with the further requirements of libext2fs.
fn geometry(sb: &Superblock) -> Result<Geometry, Malformed> {
    let geometry = Geometry::new(sb)?;
    let rule = |holds, rule, found: u64| Malformed::unless(holds, "superblock", rule, found);
    let clusters = sb.clusters_per_group;
    if sb.features.has_ro_compat(Features::BIGALLOC) {
        let product = u64::from(clusters) << geometry.cluster_log;
        let holds = product == u64::from(sb.blocks_per_group);
        rule(holds, "clusters_per_group times the clusters' size must be blocks_per_group", clusters.into())?;
    } else {
        rule(
            clusters == sb.blocks_per_group,
            "clusters_per_group must be blocks_per_group",
            clusters.into(),
        )?;
        let log = sb.log_cluster_size;
        rule(log == sb.log_block_size, "without bigalloc, clusters must be blocks", log.into())?;
    }
    rule(sb.rev_level <= 1, "the revision must be 0 or 1", sb.rev_level.into())?;
    rule(
        u64::from(geometry.inodes_per_group) * u64::from(geometry.groups) == u64::from(sb.inodes_count),
        "inodes_count must be groups times inodes_per_group",
        sb.inodes_count.into(),
    )?;
    let per_block = geometry.inodes_per_block();
    let ipg = geometry.inodes_per_group;
    rule(
        ipg >= per_block && ipg.is_multiple_of(8),
        "inodes_per_group must fill a block and be a multiple of 8",
        ipg.into(),
    )?;
    rule(geometry.groups <= GROUPS_MAX, "there must be at most 2^25 groups", geometry.groups.into())?;
    Ok(geometry)
}

/// Returns the primary superblock, or a backup with a finding, or `None` with a finding.
fn choose(device: &dyn Device, primary: &[u8], findings: &Findings) -> Option<(Superblock, Geometry)> {
    let fault = match judge(primary) {
        Ok(sound) => return Some(sound),
        Err(fault) => fault,
    };
    for block_size in (0..=6).filter_map(BlockSize::from_log) {
        let bs = block_size.bytes();
        let offset = 8 * bs * bs + if block_size == BlockSize::MIN { bs } else { 0 };
        let mut bytes = [0; superblock::SIZE];
        if device.read_at(offset, &mut bytes).is_err() {
            continue;
        }
        let Ok((sb, geometry)) = judge(&bytes) else { continue };
        if geometry.block_size == block_size {
            let says = format!("{fault}; the backup at byte {offset} was used instead");
            findings.broken(&rules::PRIMARY, FindingPlace::default(), says);
            return Some((sb, geometry));
        }
    }
    // Without a backup, a primary with only a wrong checksum is used.
    if let Ok(mut sb) = Superblock::decode(primary) {
        drop_high(&mut sb);
        match geometry(&sb) {
            Ok(geometry) => {
                findings.broken(
                    &rules::PRIMARY,
                    FindingPlace::default(),
                    format!("{fault}; it was used in spite of that"),
                );
                return Some((sb, geometry));
            }
            Err(fault) => findings.broken(&rules::GEOMETRY, FindingPlace::default(), fault.to_string()),
        }
    } else {
        let says = match foreign::identify(device) {
            Some(found) => found.to_string(),
            None => format!("{fault}, and there is no backup"),
        };
        findings.broken(&rules::UNREADABLE, FindingPlace::default(), says);
    }
    None
}

/// Can the check go on with this superblock?
fn usable(
    device: &dyn Device,
    sb: Superblock,
    geometry: Geometry,
    findings: &Findings,
) -> Option<(Superblock, Geometry)> {
    let unknown = Features {
        compat: sb.features.compat & !KNOWN.compat,
        incompat: sb.features.incompat & !KNOWN.incompat,
        ro_compat: sb.features.ro_compat & !KNOWN.ro_compat,
    };
    if unknown != Features::default() {
        let names = unknown.names().join(", ");
        findings.broken(
            &rules::FEATURES,
            FindingPlace::default(),
            format!("features not known here: {names}"),
        );
        return None;
    }
    if sb.features.metadata_csum() && sb.checksum_type != 1 {
        let says = format!("checksum_type is {}, only 1 is known", sb.checksum_type);
        findings.broken(&rules::CHECKSUM_TYPE, FindingPlace::default(), says);
        return None;
    }
    let needed = geometry.blocks.saturating_mul(geometry.block_size.bytes());
    if device.size_bytes() < needed {
        findings.differs(
            &rules::DEVICE,
            FindingPlace::default(),
            "the device's size",
            device.size_bytes(),
            needed,
        );
    }
    // The image may be truncated, so the device's size bounds memory.
    let blocks = geometry.blocks.min(device.size_bytes() / geometry.block_size.bytes());
    let groups_max = blocks / GROUP_BLOCKS_MIN + SMALL_GROUPS_MAX;
    if u64::from(geometry.groups) > groups_max {
        let says = format!(
            "{} groups of {} blocks; at most {groups_max} groups can be checked with {blocks} blocks",
            geometry.groups, sb.blocks_per_group
        );
        findings.broken(&rules::GEOMETRY, FindingPlace::default(), says);
        return None;
    }
    Some((sb, geometry))
}

/// Checks the rules that need only the superblock, the descriptors and their backups.
pub(crate) fn check(state: &State<'_>) {
    let (sb, geometry) = (&state.image.sb, &state.image.geometry);
    let findings = &state.findings;
    let broken = |rule, says: String| findings.broken(rule, FindingPlace::default(), says);
    if sb.reserved_blocks_count > sb.blocks_count / 2 {
        let says = format!("{} of {} blocks are reserved", sb.reserved_blocks_count, sb.blocks_count);
        broken(&rules::RESERVED, says);
    }
    if sb.rev_level > 0 && (sb.first_ino < 11 || sb.first_ino > geometry.inodes()) {
        broken(&rules::FIRST_INO, format!("first_ino is {}", sb.first_ino));
    }
    let cluster_bytes = geometry.block_size.bytes() << geometry.cluster_log;
    let first = u64::from(cluster_bytes == 1024);
    if u64::from(sb.first_data_block) != first {
        findings.differs(
            &rules::FIRST_BLOCK,
            FindingPlace::default(),
            "first_data_block",
            sb.first_data_block.into(),
            first,
        );
    }
    feature_rules(sb, &broken);
    high_rules(state, &broken);
    for (name, value) in [("min_extra_isize", sb.min_extra_isize), ("want_extra_isize", sb.want_extra_isize)]
    {
        let room = geometry.inode_size.saturating_sub(128);
        let fits = value == 0 || (value >= 4 && value.is_multiple_of(4) && usize::from(value) <= room);
        if !fits {
            broken(&rules::EXTRA_ISIZE, format!("{name} is {value}"));
        }
    }
    if sb.error_count != 0 || sb.state & superblock::STATE_ERRORS != 0 {
        broken(&rules::ERRORS, format!("the kernel recorded {} errors", sb.error_count));
    }
    let has_journal = sb.features.has_compat(Features::HAS_JOURNAL);
    if !has_journal && sb.journal_inum != 0 {
        broken(&rules::JOURNAL_HINT, format!("journal_inum is {} without has_journal", sb.journal_inum));
    } else if !has_journal && sb.journal_uuid != [0; 16] {
        broken(&rules::JOURNAL_HINT, "journal_uuid is not zero without has_journal".to_owned());
    }
    if has_journal && sb.journal_inum != 0 && sb.journal_uuid != [0; 16] {
        broken(
            &rules::TWO_JOURNALS,
            format!("journal_inum is {}, and journal_uuid is not zero", sb.journal_inum),
        );
    }
    if !sb.features.has_compat(Features::RESIZE_INODE) && sb.reserved_gdt_blocks != 0 {
        let says = format!("reserved_gdt_blocks is {} without resize_inode", sb.reserved_gdt_blocks);
        broken(&rules::RESERVED_GDT, says);
    }
    quota_rules(sb, &broken);
    mmp_rules(state);
    resize::check(state);
    descs::check_backups(state);
    check_backups(state);
}

fn feature_rules(sb: &Superblock, broken: &dyn Fn(&'static crate::Rule, String)) {
    let f = &sb.features;
    let name = |word, bit| TABLE.iter().find(|t| t.word == word && t.bit == bit).map_or("?", |t| t.name);
    let both = |what: &str, other: &str| format!("{what} and {other} are both set");
    let needs = |what: &str, other: &str| format!("{what} is set and {other} is not");
    if f.has_ro_compat(Features::ORPHAN_PRESENT) && !f.has_compat(Features::ORPHAN_FILE) {
        broken(&rules::FEATURE_SET, needs("orphan_present", "orphan_file"));
    }
    if f.has_compat(Features::RESIZE_INODE) && f.has_incompat(Features::META_BG) {
        broken(&rules::FEATURE_SET, both("resize_inode", "meta_bg"));
    }
    if f.has_incompat(Features::BIT64)
        && !f.has_incompat(Features::EXTENTS)
        && sb.blocks_count > u64::from(u32::MAX)
    {
        broken(&rules::FEATURE_SET, needs("64bit", name(Word::Incompat, Features::EXTENTS)));
    }
    if f.has_incompat(Features::CSUM_SEED) && !f.metadata_csum() {
        broken(&rules::FEATURE_SET, needs("metadata_csum_seed", "metadata_csum"));
    }
    if f.has_incompat(Features::CASEFOLD) && sb.encoding != 1 {
        broken(
            &rules::FEATURE_SET,
            format!("casefold is set with encoding {}, only 1 is known", sb.encoding),
        );
    }
    if f.has_ro_compat(Features::BIGALLOC) && !f.has_incompat(Features::EXTENTS) {
        broken(&rules::FEATURE_SET, needs("bigalloc", "extent"));
    }
}

fn high_rules(state: &State<'_>, broken: &dyn Fn(&'static crate::Rule, String)) {
    let mut bytes = [0; superblock::SIZE];
    if state.image.read_bytes(superblock::OFFSET, &mut bytes).is_err() {
        return;
    }
    let Ok(raw) = Superblock::decode(&bytes) else { return };
    let mut low = raw.clone();
    drop_high(&mut low);
    if raw != low {
        broken(&rules::HIGH, format!("blocks_count is {}", raw.blocks_count));
    }
}

fn quota_rules(sb: &Superblock, broken: &dyn Fn(&'static crate::Rule, String)) {
    let on = sb.features.has_ro_compat(Features::QUOTA);
    for (kind, ino, own) in [
        ("user", sb.usr_quota_inum, Some(3)),
        ("group", sb.grp_quota_inum, Some(4)),
        ("project", sb.prj_quota_inum, None),
    ] {
        let sound = ino == 0 || (on && own.map_or(ino >= 11 && ino <= sb.inodes_count, |own| ino == own));
        if !sound {
            broken(&rules::QUOTA_INODE, format!("the {kind} quota inode is {ino}"));
        }
    }
}

fn mmp_rules(state: &State<'_>) {
    let sb = &state.image.sb;
    if !sb.features.has_incompat(Features::MMP) {
        return;
    }
    let block = Pblk(sb.mmp_block);
    let place = FindingPlace::block(block);
    if !state.image.is_data_block(block) {
        state.findings.broken(&rules::MMP, place, format!("the superblock names block {block}"));
        return;
    }
    let read = state.image.read_block(block).map_err(|fault| fault.to_string());
    match read.and_then(|bytes| mmp::Mmp::decode(&bytes).map_err(|fault| fault.to_string())) {
        Ok(mmp) => {
            if state.image.has_csum() && mmp.checksum != mmp.computed_checksum(state.image.fs_seed) {
                state.findings.broken(&rules::MMP, place, "the block's checksum does not fit");
            } else if mmp.sequence != mmp::Mmp::SEQ_CLEAN {
                let node = String::from_utf8_lossy(superblock::until_nul(&mmp.node_name)).into_owned();
                let says = format!("sequence {:#x}: in use by {node}, or left so", mmp.sequence);
                state.findings.broken(&rules::MMP, place, says);
            }
        }
        Err(says) => state.findings.broken(&rules::MMP, place, says),
    }
}

/// Compares backup superblocks with the primary, in fields that do not change in use.
fn check_backups(state: &State<'_>) {
    let (image, geometry) = (&state.image, &state.image.geometry);
    for group in (1..geometry.groups).map(Group).filter(|group| geometry.has_super(*group)) {
        let Some(block) = geometry.group_head(group).superblock else { continue };
        let place = FindingPlace::group(group).in_block(block);
        let Ok(bytes) = image.read_block(block) else { continue };
        let says = match Superblock::decode(&bytes) {
            Err(fault) => fault.to_string(),
            Ok(backup) if !backup.verify() => "the backup's checksum does not fit".into(),
            Ok(backup) => {
                let p = &image.sb;
                let alike = [
                    ("blocks_count", backup.blocks_count == p.blocks_count),
                    ("inodes_count", backup.inodes_count == p.inodes_count),
                    ("block size", backup.log_block_size == p.log_block_size),
                    ("cluster size", backup.log_cluster_size == p.log_cluster_size),
                    ("blocks_per_group", backup.blocks_per_group == p.blocks_per_group),
                    ("inodes_per_group", backup.inodes_per_group == p.inodes_per_group),
                    ("inode_size", backup.inode_size == p.inode_size),
                    ("uuid", backup.uuid == p.uuid),
                    ("desc_size", backup.desc_size == p.desc_size),
                    ("block_group_nr", u32::from(backup.block_group_nr) == group.0 & 0xFFFF),
                ];
                let differ: Vec<&str> =
                    alike.iter().filter(|(_, same)| !same).map(|(name, _)| *name).collect();
                if differ.is_empty() {
                    continue;
                }
                format!("the backup differs in {}", differ.join(", "))
            }
        };
        state.findings.broken(&rules::BACKUP, place, says);
    }
}
