//! The internal journal at rest: its location, and the fields of its superblock.
//!
//! Does **not** own: the content of the log (see [`crate::replay`]), the fields of the journal inode (pass
//! 1).
//!
//! While the log is empty, e2fsck 1.47 ignores most fields of the journal superblock. A rule about such a
//! field is a note, although the kernel may refuse to mount.
//!
//! Source: kernel Documentation/filesystems/ext4/journal.rst.

use extant_base::Ino;
use extant_jbd2_format::{Features as LogFeatures, Superblock as LogSuper};
use extant_ondisk::Features;

use crate::FindingPlace;
use crate::replay::locate::{self, Journal};
use crate::rules::journal as rules;
use crate::state::State;

pub(crate) fn run(state: &State<'_>) {
    let (image, findings) = (&state.image, &state.findings);
    let sb = &image.sb;
    if !sb.features.has_compat(Features::HAS_JOURNAL) {
        // e2fsck does not report needs_recovery while the superblock still names a journal inode.
        if sb.features.has_incompat(Features::RECOVER) && sb.journal_inum == 0 {
            let says = "the feature needs_recovery is set, the feature has_journal is not";
            findings.broken(&rules::NO_JOURNAL, FindingPlace::default(), says);
        }
        return;
    }
    if locate::is_external(sb) {
        return;
    }
    let ino = Ino(sb.journal_inum);
    let place = FindingPlace::ino(ino);
    if sb.journal_uuid != [0; 16] {
        let says = format!("the superblock names inode {ino} and the UUID of an external journal");
        findings.broken(&rules::BOTH, place.clone(), says);
    }
    let read = |offset: u64, buf: &mut [u8]| image.read_bytes(offset, buf);
    match locate::from_inode(&read, sb, &image.geometry) {
        Ok(journal) => {
            check_superblock(state, &journal, &place);
            check_backup(state, ino, &place);
        }
        Err(says) => findings.broken(&rules::INODE, place, says),
    }
}

fn check_superblock(state: &State<'_>, journal: &Journal, place: &FindingPlace) {
    let (image, findings) = (&state.image, &state.findings);
    let Some(first) = journal.find(0) else { return };
    let place = place.clone().in_block(first);
    let decoded = image.read_block(first).map_err(|fault| fault.to_string());
    let jsb = match decoded.and_then(|block| LogSuper::decode(&block).map_err(|fault| fault.to_string())) {
        Ok(jsb) => jsb,
        Err(says) => return findings.broken(&rules::SUPERBLOCK, place, says),
    };
    let block_size = image.geometry.block_size.bytes();
    if u64::from(jsb.block_size) != block_size {
        let stored = u64::from(jsb.block_size);
        return findings.differs(&rules::SUPERBLOCK, place, "the journal's block size", stored, block_size);
    }
    check_features(state, &jsb, &place);
    if jsb.total_blocks > journal.blocks {
        let (stored, expected) = (u64::from(jsb.total_blocks), u64::from(journal.blocks));
        findings.differs(&rules::LENGTH, place.clone(), "the number of blocks", stored, expected);
    }
    if jsb.version == extant_jbd2_format::Version::V2 && jsb.nr_users > 1 {
        let says = format!("{} file systems use it", jsb.nr_users);
        findings.broken(&rules::USERS, place.clone(), says);
    }
    let end = jsb.log_end().min(journal.blocks);
    if jsb.first == 0 || jsb.first >= end {
        let says = format!("the log begins at block {} of {end}", jsb.first);
        findings.broken(&rules::LOG_RANGE, place.clone(), says);
    } else if jsb.start != 0 && !(jsb.first..end).contains(&jsb.start) {
        let says =
            format!("the first transaction is at block {}, the log from {} to {end}", jsb.start, jsb.first);
        findings.broken(&rules::LOG_RANGE, place.clone(), says);
    }
    if jsb.errno != 0 {
        findings.broken(&rules::ABORTED, place.clone(), format!("it was aborted with error {}", jsb.errno));
    }
    if jsb.start != 0 && !image.sb.features.has_incompat(Features::RECOVER) {
        let says = format!("the log begins at block {}, the feature needs_recovery is not set", jsb.start);
        findings.broken(&rules::FLAG, place, says);
    }
}

fn check_features(state: &State<'_>, jsb: &LogSuper, place: &FindingPlace) {
    let findings = &state.findings;
    let features = jsb.active_features();
    let unknown = features.unsupported();
    let (v2, v3) = (features.has_incompat(LogFeatures::CSUM_V2), features.has_incompat(LogFeatures::CSUM_V3));
    if !unknown.is_empty() {
        findings.broken(&rules::FEATURES, place.clone(), format!("unknown features: {unknown}"));
    } else if v2 && v3 {
        findings.broken(&rules::FEATURES, place.clone(), "checksums of version 2 and of version 3");
    } else if (v2 || v3) && features.has_compat(LogFeatures::CHECKSUM) {
        findings.broken(&rules::FEATURES, place.clone(), "checksums of version 1 and of a later one");
    } else if (v2 || v3) && jsb.checksum_type != LogSuper::CRC32C {
        let says = format!("checksum type {} instead of 4 (CRC-32C)", jsb.checksum_type);
        findings.broken(&rules::FEATURES, place.clone(), says);
    } else if !jsb.verify() {
        let (stored, right) = (jsb.checksum.into(), jsb.computed_checksum().into());
        findings.differs(&rules::SUPERBLOCK_CHECKSUM, place.clone(), "the checksum", stored, right);
    }
}

fn check_backup(state: &State<'_>, ino: Ino, place: &FindingPlace) {
    let image = &state.image;
    if image.sb.jnl_backup_type != 1 {
        return;
    }
    let read = |offset: u64, buf: &mut [u8]| image.read_bytes(offset, buf);
    let Ok(inode) = locate::read_inode(&read, ino, &image.geometry) else { return };
    if locate::backup(&image.sb) != (inode.block, inode.size) {
        let says = "the backup differs from the inode";
        state.findings.broken(&rules::BACKUP, place.clone(), says);
    }
}
