//! Features that need other structures than the superblock: turned on and off in the overlay, with the
//! remedies of a repair.
//!
//! ```text
//! survey: must be clean -> superblock and structures -> rounds of remedies: counts, bitmaps, backups
//! ```
//!
//! Owns: what each feature needs, and when it is refused. Does **not** own: how the result is written (see
//! [`Repair`]).
//!
//! Invariant: a conversion is planned only for a clean file system, and only if the check finds nothing
//! afterwards; so it loses nothing.

mod checksums;
mod layout;

use std::sync::Arc;

use extant_base::Ino;
use extant_check::survey::{self, Survey};
use extant_check::{Options, Severity};
use extant_device::{Device, DeviceFault};
use extant_jbd2_format::{MAX_JOURNAL_BLOCKS, MIN_JOURNAL_BLOCKS};
use extant_ondisk::inode::{Inode, flags};
use extant_ondisk::{Features, Superblock};

use crate::dirs::{DIRECTORY, Dir};
use crate::fs::Fs;
use crate::overlay::Overlay;
use crate::{Plan, Repair, RepairFault, RepairOptions, Rounds, journal, maps, orphans};

/// Features to turn on (`true`) or off; those that are `None` stay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Conversion {
    /// The journal.
    pub journal: Option<JournalChange>,
    /// The orphan file.
    pub orphan_file: Option<bool>,
    /// Quota files for users and groups.
    pub quota: Option<bool>,
    /// Project numbers, with a quota file if there are quota files.
    pub project: Option<bool>,
    /// Checksums of all metadata. Without them, descriptors keep theirs (uninit_bg).
    pub metadata_csum: Option<bool>,
    /// Block numbers and descriptors of 64 bits.
    pub wide: Option<bool>,
    /// Bitmaps and inode tables may be in any group (flex_bg); this cannot be turned off.
    pub flex_bg: Option<bool>,
    /// A larger inode size in bytes.
    pub inode_size: Option<u16>,
    /// Write indexed directories anew, with full blocks in the order of hashes.
    pub packs_directories: bool,
}

/// A change of the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JournalChange {
    /// The file system has none afterwards.
    Remove,
    /// A new journal in the place of the old one, if there is one; `None`: of the default size.
    Make {
        /// Its size in blocks.
        blocks: Option<u32>,
    },
}

/// Why a conversion is not planned. Nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum ConversionFault {
    /// The file system does not allow it.
    #[error("{0}")]
    Refused(String),
    /// The file system is damaged.
    #[error("the file system is damaged: {0}; run `extant check --repair` first")]
    Damaged(String),
    /// There is no room for the new structures.
    #[error("there are not enough free blocks or inodes for {0}")]
    NoSpace(&'static str),
    /// The check finds something in the result.
    #[error("the result would not be clean: {0}")]
    NotClean(String),
    /// The device cannot be read.
    #[error(transparent)]
    Repair(#[from] RepairFault),
}

impl ConversionFault {
    /// Whether the caller ended the work: [`RepairOptions::cancel`] was set.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        matches!(self, Self::Repair(fault) if fault.is_interrupted())
    }
}

impl From<DeviceFault> for ConversionFault {
    fn from(fault: DeviceFault) -> Self {
        Self::Repair(fault.into())
    }
}

impl Conversion {
    /// Whether nothing is to be changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the form of descriptors or inode tables changes.
    #[must_use]
    pub fn changes_layout(&self) -> bool {
        self.metadata_csum.is_some() || self.wide.is_some() || self.inode_size.is_some()
    }

    /// Without what the file system has already.
    fn left_for(self, sb: &Superblock) -> Self {
        let f = &sb.features;
        let changes = |wanted: Option<bool>, has: bool| wanted.filter(|on| *on != has);
        Self {
            journal: self.journal.filter(|change| match change {
                JournalChange::Remove => f.has_compat(Features::HAS_JOURNAL),
                JournalChange::Make { blocks } => blocks.is_some() || !f.has_compat(Features::HAS_JOURNAL),
            }),
            orphan_file: changes(self.orphan_file, f.has_compat(Features::ORPHAN_FILE)),
            quota: changes(self.quota, f.has_ro_compat(Features::QUOTA)),
            project: changes(self.project, f.has_ro_compat(Features::PROJECT)),
            metadata_csum: changes(self.metadata_csum, f.metadata_csum()),
            wide: changes(self.wide, f.has_incompat(Features::BIT64)),
            flex_bg: changes(self.flex_bg, f.has_incompat(Features::FLEX_BG)),
            inode_size: self.inode_size.filter(|size| usize::from(*size) != sb.inode_bytes()),
            packs_directories: self.packs_directories,
        }
    }

    /// Why the file system does not allow it.
    fn refusal(&self, sb: &Superblock) -> Option<String> {
        let f = &sb.features;
        let will_have_journal = match self.journal {
            Some(JournalChange::Remove) => false,
            Some(JournalChange::Make { .. }) => true,
            None => f.has_compat(Features::HAS_JOURNAL),
        };
        let will_have_orphans = self.orphan_file.unwrap_or(f.has_compat(Features::ORPHAN_FILE));
        let is_external = f.has_compat(Features::HAS_JOURNAL) && sb.journal_inum == 0;
        let has_extra = self.inode_size.map_or(sb.inode_bytes(), usize::from) > 128;
        let mut unseeded = sb.clone();
        unseeded.features.incompat &= !Features::CSUM_SEED;
        let is_seeded = unseeded.fs_seed() != sb.fs_seed();
        let refusal = match self {
            _ if sb.rev_level == 0 => "the file system has revision 0, which has no features",
            Self { journal: Some(_), .. } if is_external => "the journal is on another device",
            Self { journal: Some(JournalChange::Make { blocks: Some(blocks) }), .. }
                if *blocks < MIN_JOURNAL_BLOCKS =>
            {
                return Some(format!("a journal has at least {MIN_JOURNAL_BLOCKS} blocks, not {blocks}"));
            }
            Self { journal: Some(JournalChange::Make { blocks: Some(blocks) }), .. }
                if *blocks > MAX_JOURNAL_BLOCKS =>
            {
                return Some(format!("a journal has at most {MAX_JOURNAL_BLOCKS} blocks, not {blocks}"));
            }
            Self { journal: Some(_), .. } if sb.journal_inum > Ino::JOURNAL.0 => {
                "the journal is a file with a name; `e2fsck` moves it to inode 8 first"
            }
            _ if will_have_orphans && !will_have_journal => {
                "orphan_file needs a journal: turn both off (^orphan_file,^has_journal), or both on"
            }
            Self { project: Some(true), .. } if !has_extra => "project needs inodes of more than 128 bytes",
            Self { flex_bg: Some(false), .. } => {
                "flex_bg cannot be turned off: bitmaps and inode tables may be in other groups than their own"
            }
            Self { metadata_csum: Some(false), .. } if is_seeded && f.has_incompat(Features::EA_INODE) => {
                "the values of attributes in inodes of their own (ea_inode) depend on the seed of checksums, \
                 and the UUID has changed since: without metadata_csum there is no stored seed"
            }
            Self { wide: Some(true), .. } if sb.is_hurd() => "file systems of the Hurd have no 64bit",
            Self { wide: Some(_), .. } if f.has_incompat(Features::META_BG) => {
                "64bit changes the places of descriptors in meta block groups (meta_bg), where files have \
                 blocks; make a new image (`extant build`)"
            }
            Self { wide: Some(false), .. } if sb.blocks_count > u64::from(u32::MAX) => {
                "it has more than 2^32 blocks, which only 64bit can number"
            }
            Self { inode_size: Some(size), .. } if usize::from(*size) < sb.inode_bytes() => {
                "inodes do not become smaller: what is after the first 128 bytes would be lost"
            }
            Self { inode_size: Some(size), .. }
                if !size.is_power_of_two()
                    || sb.block_size().is_ok_and(|bs| usize::from(*size) > bs.len()) =>
            {
                return Some(format!("the size of inodes is a power of two up to a block, not {size}"));
            }
            _ => return None,
        };
        Some(refusal.to_owned())
    }

    /// Clears features, and frees what belongs to them.
    fn take_away(&self, fs: &mut Fs<'_>) -> Result<(), DeviceFault> {
        if self.flex_bg == Some(true) {
            fs.put_superblock(|sb| sb.features.incompat |= Features::FLEX_BG)?;
        }
        if self.journal.is_some() {
            fs.put_superblock(|sb| {
                sb.features.compat &= !Features::HAS_JOURNAL;
                (sb.journal_inum, sb.journal_uuid, sb.jnl_backup_type) = (0, [0; 16], 0);
                sb.jnl_blocks = [0; 17];
            })?;
            fs.free_inode(Ino::JOURNAL);
        }
        if self.journal == Some(JournalChange::Remove) {
            fs.put_superblock(|sb| sb.features.compat &= !Features::FAST_COMMIT)?;
        }
        if self.orphan_file == Some(false) {
            let ino = Ino(fs.sb.orphan_file_inum);
            fs.put_superblock(|sb| {
                sb.orphan_file_inum = 0;
                sb.features.compat &= !Features::ORPHAN_FILE;
                sb.features.ro_compat &= !Features::ORPHAN_PRESENT;
            })?;
            fs.free_inode(ino);
        }
        if self.quota == Some(false) || self.project == Some(false) {
            let project = fs.sb.prj_quota_inum;
            fs.put_superblock(|sb| sb.prj_quota_inum = 0)?;
            if project != 0 {
                fs.free_inode(Ino(project));
            }
        }
        if self.project == Some(false) {
            fs.put_superblock(|sb| sb.features.ro_compat &= !Features::PROJECT)?;
        }
        if self.quota == Some(false) {
            let files = [fs.sb.usr_quota_inum, fs.sb.grp_quota_inum];
            fs.put_superblock(|sb| {
                (sb.usr_quota_inum, sb.grp_quota_inum) = (0, 0);
                sb.features.ro_compat &= !Features::QUOTA;
            })?;
            files.into_iter().filter(|ino| *ino != 0).for_each(|ino| fs.free_inode(Ino(ino)));
        }
        Ok(())
    }

    /// Makes the structures of new features. Quota files are written by the remedies, which know the usage.
    fn make_new(&self, fs: &mut Fs<'_>) -> Result<(), ConversionFault> {
        if let Some(JournalChange::Make { blocks }) = self.journal {
            fs.put_superblock(|sb| sb.features.compat |= Features::HAS_JOURNAL)?;
            if journal::make(fs, blocks).is_none() {
                return Err(ConversionFault::NoSpace("the journal"));
            }
        }
        if self.orphan_file == Some(true) && orphans::make(fs).is_none() {
            return Err(ConversionFault::NoSpace("the orphan file"));
        }
        if self.quota == Some(true) {
            fs.put_superblock(|sb| {
                sb.features.ro_compat |= Features::QUOTA;
                (sb.usr_quota_inum, sb.grp_quota_inum) = (3, 4);
            })?;
            for ino in [3, 4].map(Ino) {
                make_quota_file(fs, ino)?;
            }
        }
        if self.project == Some(true) {
            fs.put_superblock(|sb| sb.features.ro_compat |= Features::PROJECT)?;
        }
        let f = &fs.sb.features;
        let lacks = f.has_ro_compat(Features::QUOTA) && f.has_ro_compat(Features::PROJECT);
        if lacks && fs.sb.prj_quota_inum == 0 {
            let ino = fs.new_inode().ok_or(ConversionFault::NoSpace("the quota file of projects"))?;
            make_quota_file(fs, ino)?;
            fs.put_superblock(|sb| sb.prj_quota_inum = ino.0)?;
        }
        Ok(())
    }
}

/// Plans a conversion: the whole work, in memory. The device is only read. The file system must not need
/// recovery.
///
/// # Errors
/// It is damaged or needs recovery, or the conversion is refused or does not fit.
pub fn plan_conversion(
    device: Arc<dyn Device>,
    conversion: &Conversion,
    options: &RepairOptions,
) -> Result<Repair, ConversionFault> {
    let overlay = Arc::new(Overlay::new(device));
    let checking = options.checking();
    let before = surveyed(&overlay, &checking)?;
    if let Some(finding) = first_error(&before) {
        return Err(ConversionFault::Damaged(finding));
    }
    let notes = before.notes().ok_or_else(|| ConversionFault::Damaged("no superblock".to_owned()))?;
    let sb = notes.superblock().clone();
    if sb.features.has_incompat(Features::RECOVER) || sb.last_orphan != 0 {
        let why = "the file system needs recovery: open it for writing first".to_owned();
        return Err(ConversionFault::Refused(why));
    }
    let wanted = conversion.left_for(&sb);
    if let Some(why) = wanted.refusal(&sb) {
        return Err(ConversionFault::Refused(why));
    }
    // What goes, and checksums: all that the survey of the old state knows enough about.
    let mut fs = Fs::new(&overlay, notes, options.now);
    wanted.take_away(&mut fs)?;
    if let Some(on) = wanted.metadata_csum {
        checksums::change(&mut fs, on)?;
    } else if wanted.packs_directories {
        pack_directories(&mut fs)?;
    }
    drop(before);
    if wanted.wide.is_some() || wanted.inode_size.is_some() {
        change_layout(&overlay, &checking, &wanted, options.now)?;
    }
    // What is new, in the space that a survey of this state finds free.
    let between = surveyed(&overlay, &checking)?;
    let notes = between.notes().ok_or_else(|| ConversionFault::NotClean("no superblock".to_owned()))?;
    wanted.make_new(&mut Fs::new(&overlay, notes, options.now))?;
    drop(between);
    let mut plan = Plan::default();
    let rounds = Rounds { options, checking, was_chosen: false, guesses: false, marks: false };
    let done = rounds.run(&overlay, &mut plan)?;
    if let Some(finding) = done.left.first() {
        return Err(ConversionFault::NotClean(format!("{}: {}", finding.rule.code, finding.says)));
    }
    // New quota files have no limits to lose.
    let makes_quota = wanted.quota == Some(true) || wanted.project == Some(true);
    if let Some(fix) = plan.losses().find(|fix| !makes_quota || fix.rule.code != "QU003") {
        let loss = fix.loss.as_deref().unwrap_or_default();
        return Err(ConversionFault::NotClean(format!("{}: it would lose {loss}", fix.rule.code)));
    }
    // The fixes are the conversion itself.
    Ok(done.assemble(overlay, Plan::default())?)
}

/// Changes the sizes of descriptors and inodes, each from a survey of the state before.
fn change_layout(
    overlay: &Arc<Overlay>,
    checking: &Options<'_>,
    wanted: &Conversion,
    now: u32,
) -> Result<(), ConversionFault> {
    enum Step {
        Wide(bool),
        InodeSize(u16),
        /// Bitmaps belong to the new places, and their checksums to the new descriptors.
        Settle,
    }
    let wide = wanted.wide.into_iter().flat_map(|on| [Step::Wide(on), Step::Settle]);
    let larger = wanted.inode_size.into_iter().flat_map(|size| [Step::InodeSize(size), Step::Settle]);
    for step in wide.chain(larger) {
        let state = surveyed(overlay, checking)?;
        let notes = state.notes().ok_or_else(|| ConversionFault::NotClean("no superblock".to_owned()))?;
        let mut fs = Fs::new(overlay, notes, now);
        match step {
            Step::Wide(on) => layout::set_wide(&mut fs, on)?,
            Step::InodeSize(size) => layout::set_inode_size(&mut fs, size)?,
            Step::Settle => layout::settle_all(&fs)?,
        }
    }
    Ok(())
}

fn surveyed<'d>(overlay: &'d Arc<Overlay>, checking: &Options<'d>) -> Result<Survey<'d>, RepairFault> {
    Ok(survey::survey(&**overlay, checking)?)
}

fn first_error(surveyed: &Survey<'_>) -> Option<String> {
    let mut errors = surveyed.findings.iter().filter(|finding| finding.rule.severity != Severity::Note);
    errors.next().map(|finding| format!("{}: {}", finding.rule.code, finding.says))
}

/// An empty file with the flags of quota files. The remedies write its content.
fn make_quota_file(fs: &mut Fs<'_>, ino: Ino) -> Result<(), ConversionFault> {
    maps::make_file(fs, ino, flags::IMMUTABLE, Vec::new(), 0).ok_or(ConversionFault::NoSpace("quota files"))
}

/// Writes all directories of more than one block anew.
fn pack_directories(fs: &mut Fs<'_>) -> Result<(), ConversionFault> {
    let one = fs.geometry.block_size.bytes();
    let dirs = fs.noted().filter(|(_, note)| note.used && note.kind == DIRECTORY).map(|(ino, _)| ino);
    for ino in dirs.collect::<Vec<Ino>>() {
        let is_larger =
            |inode: &Inode| inode.size > one && inode.has_flag(flags::INDEX) && !fs.is_inline(inode);
        if fs.inode(ino).is_some_and(|inode| is_larger(&inode)) {
            let mut dir = Dir::gather(fs, ino).ok_or(ConversionFault::NoSpace("directories"))?;
            // Without all hashes, the directory would lose its index.
            if dir.has_all_hashes(fs) {
                dir.put(fs).ok_or(ConversionFault::NoSpace("directories"))?;
            }
        }
    }
    Ok(())
}
