//! The superblock: the choice among the primary and its backups, and the rules about its fields.
//!
//! ```text
//! primary sound, and as its backups   -> kept
//! primary damaged, or unlike a backup -> each candidate is surveyed; the one that fits best is kept
//! ```
//!
//! The addresses in descriptors are mended in [`descs`](crate::descs).

use std::collections::HashMap;
use std::sync::Arc;

use extant_base::{BlockSize, Ino};
use extant_check::survey::{self, Survey};
use extant_check::{Finding, FindingPlace, Options, Severity, rules};
use extant_device::{Device, DeviceFault};
use extant_jbd2_format::Superblock as LogSuper;
use extant_ondisk::{Features, Geometry, Superblock, backup, superblock};

use crate::descs::Descs;
use crate::fs::Fs;
use crate::overlay::Overlay;
use crate::plan::{Fix, Plan};
use crate::{guess, maps};

/// By how much a guess must be better than what was not made up.
const CLEARLY: i64 = 8;
/// The most errors of one inode that count.
const ERRORS_OF_INODE: usize = 8;
/// The most candidates that are compared.
const CANDIDATES_MAX: usize = 4;

/// A superblock that may be the right one.
struct Candidate {
    sb: Superblock,
    from: String,
    is_backup: bool,
}

/// Tries superblocks whose fields are guessed, where none of those on the device serves. `worth` is that of
/// the superblock in use, `None` if there is none. Returns whether a guess was stored.
pub(crate) fn guess(
    overlay: &Arc<Overlay>,
    worth: Option<i64>,
    options: &Options<'_>,
    plan: &mut Plan,
) -> Result<bool, DeviceFault> {
    let mut bytes = [0; superblock::SIZE];
    overlay.read_at(superblock::OFFSET, &mut bytes)?;
    let mut best: Option<(i64, Superblock)> = None;
    let stored = Superblock::decode(&bytes).ok();
    let (mut worth, mut found) = (worth, Vec::new());
    match worth {
        None => found = scan(overlay)?,
        // Damaged descriptors hide inodes as wrong numbers in the superblock do.
        Some(_) => {
            worth = worth.max(stored.as_ref().and_then(|sb| worth_repaired(overlay, sb, options)));
        }
    }
    for sb in found {
        let Some(guessed) = worth_repaired(overlay, &sb, options) else { continue };
        if best.as_ref().is_none_or(|(most, _)| guessed > *most) {
            best = Some((guessed, sb));
        }
    }
    // A backup was not made up: a guess must be clearly better.
    let least = best.as_ref().map_or(i64::MIN, |(most, _)| most + CLEARLY);
    for sb in guess::all(&bytes, overlay.size_bytes()) {
        // Descriptors may be damaged, too: that is more likely than another size of blocks and inodes.
        let is_layout = |stored: &Superblock| {
            (stored.features, stored.log_block_size, stored.inode_size)
                == (sb.features, sb.log_block_size, sb.inode_size)
        };
        let guessed = match stored.as_ref().is_some_and(is_layout) {
            true => worth_repaired(overlay, &sb, options),
            false => worth_with(overlay, &sb, options),
        };
        let Some(guessed) = guessed else { continue };
        // Another feature must be clearly better: shared_blocks makes an error of one file right.
        let is_stored = stored.as_ref().is_some_and(|stored| stored.features == sb.features);
        let margin = if is_stored { 0 } else { CLEARLY };
        if guessed > least && best.as_ref().is_none_or(|(most, _)| guessed > *most + margin) {
            best = Some((guessed, sb.clone()));
        }
        // With a damaged UUID all checksums seem wrong: the stored ones show the seed that made them.
        let is_seeded = sb.features.metadata_csum() && !sb.features.has_incompat(Features::CSUM_SEED);
        if is_seeded
            && let Some(seed) = guess::implied_seed(&**overlay, &sb).filter(|seed| *seed != sb.fs_seed())
        {
            let mut sb = Superblock { checksum_seed: seed, ..sb };
            sb.features.incompat |= Features::CSUM_SEED;
            let Some(guessed) = worth_with(overlay, &sb, options) else { continue };
            if guessed > least && best.as_ref().is_none_or(|(most, _)| guessed > *most) {
                best = Some((guessed, sb));
            }
        }
    }
    // A guess must be clearly better than what is there.
    let Some((_, sb)) =
        best.filter(|(guessed, _)| worth.is_none_or(|worth| *guessed > worth.max(0) + CLEARLY))
    else {
        return Ok(false);
    };
    plan.add(Fix {
        rule: &rules::superblock::PRIMARY,
        place: FindingPlace::default(),
        finding: "the superblock's numbers do not fit the file system".into(),
        remedy: "Store the numbers that fit the file system best.".into(),
        loss: None,
    });
    overlay.write_at(superblock::OFFSET, &as_primary(&sb))?;
    Ok(true)
}

/// Searches the whole device for backups in unusual places.
fn scan(overlay: &Overlay) -> Result<Vec<Superblock>, DeviceFault> {
    const STEP: usize = 1 << 20;
    const SCAN_MAX: u64 = 64 << 30;
    let mut found = Vec::new();
    let mut bytes = vec![0; STEP];
    let end = overlay.size_bytes().min(SCAN_MAX);
    let mut at = 0;
    while at < end && found.len() < CANDIDATES_MAX {
        let len = (end - at).min(STEP as u64) as usize;
        overlay.read_at(at, &mut bytes[..len])?;
        for within in (0..len.saturating_sub(superblock::SIZE - 1)).step_by(1024) {
            let raw = &bytes[within..within + superblock::SIZE];
            if raw[0x38..0x3A] != superblock::MAGIC.to_le_bytes() {
                continue;
            }
            let Ok(sb) = Superblock::decode(raw) else { continue };
            if backup::group_at(&sb, at + within as u64).is_some() && is_sound_backup(&sb) {
                found.push(sb);
            }
        }
        at += len as u64;
    }
    Ok(found)
}

/// Chooses the superblock and stores it in the overlay. Returns whether the primary was replaced or sealed.
pub(crate) fn choose(
    overlay: &Arc<Overlay>,
    wanted: Option<u64>,
    options: &Options<'_>,
    plan: &mut Plan,
) -> Result<bool, DeviceFault> {
    let mut bytes = [0; superblock::SIZE];
    let primary =
        overlay.read_at(superblock::OFFSET, &mut bytes).ok().and_then(|()| Superblock::decode(&bytes).ok());
    let is_sound = primary.as_ref().is_some_and(is_sound);
    let offsets = match wanted {
        Some(block) => backup::offsets_of_block(block),
        None => backup::offsets(overlay.size_bytes()),
    };
    let mut backups: Vec<Candidate> = Vec::new();
    for offset in offsets {
        let mut bytes = [0; superblock::SIZE];
        if overlay.read_at(offset, &mut bytes).is_err() {
            continue;
        }
        let Ok(sb) = Superblock::decode(&bytes) else { continue };
        if backup::group_at(&sb, offset).is_none() || !is_sound_backup(&sb) {
            continue;
        }
        let other = primary.as_ref().is_none_or(|primary| statics(primary) != statics(&sb));
        let is_known = backups.iter().any(|known| statics(&known.sb) == statics(&sb));
        if wanted.is_some() || !is_known && (other || !is_sound) {
            backups.push(Candidate { sb, from: format!("the backup at byte {offset}"), is_backup: true });
        }
        if backups.len() == CANDIDATES_MAX || wanted.is_some() || is_sound && !other {
            break;
        }
    }
    if wanted.is_none() && is_sound && backups.is_empty() {
        return Ok(false);
    }
    let mut candidates = Vec::new();
    if wanted.is_none()
        && let Some(primary) = primary
    {
        let sb = Superblock { checksum_type: checksum_type(&primary), ..primary };
        candidates.push(Candidate { sb, from: "the primary".into(), is_backup: false });
    }
    candidates.extend(backups);
    let mut best: Option<(i64, Candidate)> = None;
    for candidate in candidates {
        let Some(worth) = worth_with(overlay, &candidate.sb, options) else { continue };
        if best.as_ref().is_none_or(|(most, _)| worth > *most) {
            best = Some((worth, candidate));
        }
    }
    let Some((_, chosen)) = best else { return Ok(false) };
    if !chosen.is_backup && is_sound {
        return Ok(false);
    }
    let remedy = match chosen.is_backup {
        true => format!("Write {} over the primary.", chosen.from),
        false => "Store the right checksum: all else in it makes sense.".to_owned(),
    };
    let finding = match is_sound {
        true => "the primary does not fit the file system, a backup does".to_owned(),
        false => "the primary superblock is damaged".to_owned(),
    };
    plan.add(Fix {
        rule: &rules::superblock::PRIMARY,
        place: FindingPlace::default(),
        finding,
        remedy: remedy.into(),
        loss: None,
    });
    overlay.write_at(superblock::OFFSET, &as_primary(&chosen.sb))?;
    Ok(true)
}

/// The bytes of a superblock as the primary.
fn as_primary(sb: &Superblock) -> [u8; superblock::SIZE] {
    let sb = Superblock { block_group_nr: 0, state: sb.state & !superblock::STATE_CLEAN, ..sb.clone() };
    if sb.features.metadata_csum() { sb.sealed() } else { sb.encode() }
}

fn checksum_type(sb: &Superblock) -> u8 {
    if sb.features.metadata_csum() { 1 } else { sb.checksum_type }
}

fn is_sound(sb: &Superblock) -> bool {
    let checksum = !sb.features.metadata_csum() || (sb.checksum_type == 1 && sb.verify());
    checksum && Geometry::new(sb).is_ok_and(|geometry| geometry.inodes() == sb.inodes_count)
}

fn is_sound_backup(sb: &Superblock) -> bool {
    is_sound(sb) && BlockSize::from_log(sb.log_block_size).is_some()
}

/// What neither a mount nor its work changes.
fn statics(sb: &Superblock) -> Superblock {
    let free = |features: &Features| Features {
        compat: features.compat & !(Features::EXT_ATTR | Features::DIR_INDEX | Features::STABLE_INODES),
        incompat: features.incompat & !(Features::RECOVER | Features::ENCRYPT),
        ro_compat: features.ro_compat
            & !(Features::LARGE_FILE
                | Features::HUGE_FILE
                | Features::DIR_NLINK
                | Features::EXTRA_ISIZE
                | Features::VERITY
                | Features::ORPHAN_PRESENT),
    };
    Superblock {
        inodes_count: sb.inodes_count,
        blocks_count: sb.blocks_count,
        first_data_block: sb.first_data_block,
        log_block_size: sb.log_block_size,
        log_cluster_size: sb.log_cluster_size,
        blocks_per_group: sb.blocks_per_group,
        clusters_per_group: sb.clusters_per_group,
        inodes_per_group: sb.inodes_per_group,
        rev_level: sb.rev_level,
        creator_os: sb.creator_os,
        first_ino: sb.first_ino,
        inode_size: sb.inode_size,
        features: free(&sb.features),
        uuid: sb.uuid,
        hash_seed: sb.hash_seed,
        journal_inum: sb.journal_inum,
        journal_uuid: sb.journal_uuid,
        desc_size: sb.desc_size,
        first_meta_bg: sb.first_meta_bg,
        reserved_gdt_blocks: sb.reserved_gdt_blocks,
        log_groups_per_flex: sb.log_groups_per_flex,
        backup_bgs: sb.backup_bgs,
        checksum_seed: sb.checksum_seed,
        encoding: sb.encoding,
        usr_quota_inum: sb.usr_quota_inum,
        grp_quota_inum: sb.grp_quota_inum,
        prj_quota_inum: sb.prj_quota_inum,
        orphan_file_inum: sb.orphan_file_inum,
        ..Superblock::default()
    }
}

/// How well a superblock fits: the inodes in use that a check finds with it in the place of the primary, less
/// the errors. A superblock with which nothing can be read has few errors, too. `None` if it cannot be used.
fn worth_with(overlay: &Arc<Overlay>, sb: &Superblock, options: &Options<'_>) -> Option<i64> {
    let trial = Overlay::new(Arc::<Overlay>::clone(overlay));
    trial.write_at(superblock::OFFSET, &as_primary(sb)).ok()?;
    let surveyed = survey::survey(&trial, &Options { progress: None, journal: None, ..*options }).ok()?;
    worth(&surveyed)
}

/// As [`worth_with`], and where descriptors are damaged, with repaired ones if that is more.
fn worth_repaired(overlay: &Arc<Overlay>, sb: &Superblock, options: &Options<'_>) -> Option<i64> {
    let quiet = Options { progress: None, journal: None, ..*options };
    let trial = Overlay::new(Arc::<Overlay>::clone(overlay));
    trial.write_at(superblock::OFFSET, &as_primary(sb)).ok()?;
    let surveyed = survey::survey(&trial, &quiet).ok()?;
    let stored = worth(&surveyed);
    let damaged: Vec<&Finding> =
        surveyed.findings.iter().filter(|found| found.rule.code.starts_with("GD00")).collect();
    let notes = surveyed.notes()?;
    let before = trial.changes();
    let mut plan = Plan::default();
    let mut fs = Fs::new(&trial, notes, 0);
    maps::occupy_damaged(&mut fs, &surveyed.findings);
    Descs::new(&mut fs, &mut plan).mend_tables();
    Descs::new(&mut fs, &mut plan).mend(&damaged);
    if trial.changes() == before {
        return stored;
    }
    drop(surveyed);
    let repaired = survey::survey(&trial, &quiet).ok().and_then(|surveyed| worth(&surveyed));
    stored.max(repaired)
}

/// See [`worth_with`]; for a survey that was made.
pub(crate) fn worth(surveyed: &Survey<'_>) -> Option<i64> {
    surveyed.notes()?;
    // Wrong counts and lost names say nothing about the superblock.
    let is_of_counts = |code: &str| code.starts_with("BM") || matches!(code, "DI053" | "DI054" | "IN005");
    let is_error =
        |finding: &&Finding| finding.rule.severity != Severity::Note && !is_of_counts(finding.rule.code);
    // One damaged map can have thousands of wrong addresses.
    let (mut errors, mut of_inodes) = (0, HashMap::<Ino, usize>::new());
    for finding in surveyed.findings.iter().filter(is_error) {
        let counted = finding.place.ino.map(|ino| of_inodes.entry(ino).or_default());
        errors += usize::from(counted.is_none_or(|count| {
            *count += 1;
            *count <= ERRORS_OF_INODE
        }));
    }
    let is_short = surveyed.findings.iter().any(|finding| finding.rule.code == "SB005");
    let worth = (surveyed.stats.inodes + surveyed.stats.dirs) as i64 - errors as i64;
    Some(if is_short { worth.min(0) } else { worth })
}

/// Repairs findings about the superblock and the addresses in descriptors.
pub(crate) fn mend(fs: &mut Fs<'_>, plan: &mut Plan, findings: &[&Finding]) -> Result<(), DeviceFault> {
    let is_of_group = |finding: &&Finding| finding.rule.code.starts_with("GD");
    let (of_groups, of_fields): (Vec<&Finding>, Vec<&Finding>) =
        findings.iter().copied().partition(is_of_group);
    Descs::new(fs, plan).mend(&of_groups);
    of_fields.into_iter().try_for_each(|finding| mend_field(fs, plan, finding))
}

fn mend_field(fs: &mut Fs<'_>, plan: &mut Plan, finding: &Finding) -> Result<(), DeviceFault> {
    let blocks = fs.geometry.blocks;
    let cluster_bytes = fs.geometry.block_size.bytes() << fs.geometry.cluster_log;
    let room = fs.geometry.inode_size.saturating_sub(128);
    let extra = if room >= 32 { 32 } else { 0 };
    let code = finding.rule.code;
    let journal = Ino(fs.sb.journal_inum);
    let is_journal = code == "SB022" && fs.begins_with(journal, &|bytes| LogSuper::decode(bytes).is_ok());
    let mut remedy = std::borrow::Cow::Borrowed(finding.rule.repair);
    fs.put_superblock(|sb| match code {
        "SB007" => sb.reserved_blocks_count = blocks / 20,
        "SB008" => sb.first_ino = Ino::FIRST.0,
        "SB009" => sb.first_data_block = u32::from(cluster_bytes == 1024),
        "SB010" => sb.checksum_type = 1,
        "SB011" => remedy = mend_features(sb).into(),
        "SB014" => {
            let fits = |value: u16| {
                value == 0 || (value >= 4 && value.is_multiple_of(4) && usize::from(value) <= room)
            };
            for value in [&mut sb.min_extra_isize, &mut sb.want_extra_isize] {
                if !fits(*value) {
                    *value = extra;
                }
            }
        }
        "SB015" => sb.reserved_gdt_blocks = 0,
        "SB016" => mend_quota_numbers(sb),
        "SB018" => {
            sb.state &= !superblock::STATE_ERRORS;
            sb.error_count = 0;
            (sb.first_error_time, sb.first_error_ino, sb.first_error_block) = (0, 0, 0);
            (sb.first_error_func, sb.first_error_line, sb.first_error_errcode) = ([0; 32], 0, 0);
            (sb.last_error_time, sb.last_error_ino, sb.last_error_block) = (0, 0, 0);
            (sb.last_error_func, sb.last_error_line, sb.last_error_errcode) = ([0; 32], 0, 0);
        }
        "SB022" if is_journal => {
            sb.features.compat |= Features::HAS_JOURNAL;
            sb.journal_uuid = [0; 16];
            remedy = "Set the feature: the inode holds a journal.".into();
        }
        "SB022" => (sb.journal_inum, sb.journal_uuid) = (0, [0; 16]),
        "SB023" => sb.journal_uuid = [0; 16],
        _ => {}
    })?;
    plan.fixed(finding, remedy);
    Ok(())
}

/// Makes the features fit each other; returns the remedy.
fn mend_features(sb: &mut Superblock) -> String {
    let mut done = Vec::new();
    let f = &mut sb.features;
    if f.has_ro_compat(Features::ORPHAN_PRESENT) && !f.has_compat(Features::ORPHAN_FILE) {
        f.ro_compat &= !Features::ORPHAN_PRESENT;
        done.push("clear orphan_present");
    }
    if f.has_compat(Features::RESIZE_INODE) && f.has_incompat(Features::META_BG) {
        f.compat &= !Features::RESIZE_INODE;
        sb.reserved_gdt_blocks = 0;
        done.push("clear resize_inode");
    }
    if f.has_incompat(Features::BIT64) && !f.has_incompat(Features::EXTENTS) {
        f.incompat |= Features::EXTENTS;
        done.push("set extent");
    }
    if f.has_incompat(Features::CSUM_SEED) && !f.metadata_csum() {
        f.incompat &= !Features::CSUM_SEED;
        done.push("clear metadata_csum_seed");
    }
    if f.has_incompat(Features::CASEFOLD) && sb.encoding != 1 {
        sb.encoding = 1;
        done.push("set the encoding to 1");
    }
    if f.has_ro_compat(Features::BIGALLOC) && !f.has_incompat(Features::EXTENTS) {
        f.incompat |= Features::EXTENTS;
        done.push("set extent");
    }
    format!("Make the features fit: {}.", done.join(", "))
}

fn mend_quota_numbers(sb: &mut Superblock) {
    let on = sb.features.has_ro_compat(Features::QUOTA);
    let count = sb.inodes_count;
    for (ino, own) in
        [(&mut sb.usr_quota_inum, Some(3)), (&mut sb.grp_quota_inum, Some(4)), (&mut sb.prj_quota_inum, None)]
    {
        let sound = *ino == 0 || (on && own.map_or(*ino >= 11 && *ino <= count, |own| *ino == own));
        if !sound {
            *ino = if on { own.unwrap_or(0) } else { 0 };
        }
    }
}
