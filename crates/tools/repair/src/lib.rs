//! Repairs damaged file systems by the checker's rules.
//!
//! ```text
//!            +--------------------------------------------+
//!            v                                            |
//! choose -> survey -> the first stage with findings -> remedies        until no finding is left
//! the sb     (check, with      superblock, log, inodes, shared
//!             every finding)   blocks, directories, tree, links,
//!                              special files, counts
//!
//! all in an overlay; then: undo file, synced -> image, superblock last -> undo file "finished"
//! ```
//!
//! The checker finds the damage, and this crate has a *remedy* for each kind of finding. So every fix belongs
//! to a rule, and the check after a repair judges by the same rules. A remedy changes what later stages find:
//! if a damaged directory becomes readable, for instance, its names count as links. So a round applies the
//! remedies of one stage only. Then the next round checks the result again.
//!
//! All rounds work on an *overlay*: the image with its changes in memory, in pieces of 4 KiB. The result is a
//! [`Plan`] of all fixes. Only [`Repair::write`] changes the image.
//!
//! [`plan_conversion`] turns features on and off in the same way. It changes the feature's bit and creates or
//! removes the feature's files; the remedies then write what follows from that, for instance the contents of
//! new quota files.
//!
//! Owns: remedies, the plan, the undo file, the order of the writes. Does **not** own: rules and findings
//! (see `check`), byte layouts (see `ondisk`), the replay of fast commits (see `volume`).
//!
//! Invariants
//! 1. INV-RP1: nothing is written before the plan is complete.
//! 2. INV-RP2: what becomes unreachable by a fix is in the plan, in [`Fix::loss`].
//! 3. INV-RP3: the undo file, if the caller requests one, is durable before the first byte of the image
//!    changes. It has the bytes that the repair overwrites. If a power cut or a kill interrupts the repair,
//!    [`undo_cut_repair`] restores them, and the repair can start again. So an interruption loses nothing.
//! 4. INV-RP4: the checker finds the image clean after a repair, except for what [`Plan::left`] names.
//! 5. The number of rounds is bounded. If the remedies of a round change nothing, later rounds do not try the
//!    findings of this round again.

#![forbid(unsafe_code)]

mod attrs;
mod convert;
mod counts;
mod descs;
mod dirs;
mod fs;
mod guard;
mod guess;
mod inodes;
mod journal;
mod maps;
mod orphans;
mod overlay;
mod plan;
mod quota;
mod runs;
mod space;
mod special;
mod stage;
mod supers;
mod tree;
mod undo;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{SystemTime, UNIX_EPOCH};

use extant_check::{CheckFault, Finding, Progress, Severity, Stats, survey};
use extant_device::{Device, DeviceFault};
use extant_ondisk::mmp::MmpState;
use extant_ondisk::{Features, Superblock, superblock};

pub use convert::{Conversion, ConversionFault, JournalChange, plan_conversion};
use descs::Descs;
use dirs::Dirs;
use fs::Fs;
use guard::{Guarded, around, is_in_use, mmp_of, mmp_range, release_planned};
use inodes::Inodes;
use journal::Journal;
use maps::Shared;
use overlay::Overlay;
pub use plan::{Fix, Left, Plan};
use special::Special;
use stage::Stage;
use tree::Tree;
pub use undo::{UndoFault, UndoFile, UndoState};

/// The most bytes of one write.
const WRITE_MAX: usize = 1 << 20;
/// The most rounds of a repair.
const ROUNDS_MAX: u32 = 64;

/// Options of a repair. By default the time is the clock's.
#[derive(Clone)]
pub struct RepairOptions {
    /// Number of threads; `None` is one per core.
    pub threads: Option<NonZero<usize>>,
    /// Use the backup superblock in this block.
    pub backup: Option<u64>,
    /// The time for fields that a repair sets, in seconds since 1970.
    pub now: u32,
    /// Receives progress reports of the checks of the plan: one for each round of remedies.
    pub progress: Option<Arc<dyn Progress + Send>>,
    /// If another thread sets it, planning ends with [`RepairFault::Cancelled`]. Until then nothing is
    /// written; the writing of a plan is not cancelled.
    pub cancel: Option<Arc<AtomicBool>>,
}

impl RepairOptions {
    /// The options of the checks of the plan.
    fn checking(&self) -> extant_check::Options<'_> {
        extant_check::Options {
            threads: self.threads,
            progress: self.progress.as_deref().map(|progress| progress as &dyn Progress),
            cancel: self.cancel.as_deref(),
            ..Default::default()
        }
    }
}

impl Default for RepairOptions {
    fn default() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = u32::try_from(since.as_secs()).unwrap_or(u32::MAX);
        Self { threads: None, backup: None, now, progress: None, cancel: None }
    }
}

/// Why there is no repair.
#[derive(Debug, thiserror::Error)]
pub enum RepairFault {
    /// The image cannot be read or written.
    #[error(transparent)]
    Device(#[from] DeviceFault),
    /// The image cannot be opened.
    #[error("cannot open the image: {0}")]
    Image(std::io::Error),
    /// Another machine uses the file system.
    #[error("the file system is in use: its multiple-mount protection block changes")]
    InUse,
    /// The block of multiple-mount protection is damaged, and the plan does not replace it.
    #[error("{0}; nothing was written")]
    Protection(String),
    /// Another machine has opened the file system while the repair was written. If there is an undo file, it
    /// has the overwritten bytes.
    #[error("{0}; a part of the changes is written")]
    Lost(String),
    /// No superblock can be used.
    #[error("{0}: no superblock can be used, so nothing can be repaired; `extant rescue` finds what is left")]
    NoSuperblock(String),
    /// The undo file cannot be used.
    #[error(transparent)]
    Undo(#[from] UndoFault),
    /// [`RepairOptions::cancel`] was set.
    #[error("the repair was cancelled; nothing was written")]
    Cancelled,
}

impl RepairFault {
    /// Whether the caller ended the work: [`RepairOptions::cancel`] was set.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        matches!(self, Self::Cancelled)
    }
}

impl From<CheckFault> for RepairFault {
    fn from(fault: CheckFault) -> Self {
        match fault {
            CheckFault::Device(fault) => Self::Device(fault),
            CheckFault::Cancelled => Self::Cancelled,
        }
    }
}

/// A planned repair.
pub struct Repair {
    plan: Plan,
    overlay: Arc<Overlay>,
    /// Offsets of the changed pieces.
    changed: Vec<u64>,
    /// Offsets of the pieces that are written last.
    late: BTreeSet<u64>,
    stats: Stats,
    /// A repair whose plan was made while the block of multiple-mount protection was that of an e2fsck. Other
    /// changes wait until such a block is repaired.
    was_checked: bool,
}

/// Plans a repair: the whole work, in memory. The device is only read.
///
/// # Errors
/// The device cannot be read, or has no superblock that can be used; the plan was cancelled.
pub fn plan_repair(device: Arc<dyn Device>, options: &RepairOptions) -> Result<Repair, RepairFault> {
    if is_in_use(&*device) {
        return Err(RepairFault::InUse);
    }
    let was_checked = mmp_of(&*device).is_some_and(|mmp| mmp.state() == MmpState::Checking);
    let overlay = Arc::new(Overlay::new(device));
    let mut plan = Plan::default();
    let checking = options.checking();
    let was_chosen = supers::choose(&overlay, options.backup, &checking, &mut plan)?;
    let rounds = Rounds { options, checking, was_chosen, guesses: options.backup.is_none(), marks: true };
    let done = rounds.run(&overlay, &mut plan)?;
    Ok(Repair { was_checked, ..done.assemble(overlay, plan)? })
}

/// How the rounds of a repair run.
struct Rounds<'a> {
    options: &'a RepairOptions,
    checking: extant_check::Options<'a>,
    /// The primary superblock was replaced.
    was_chosen: bool,
    /// Whether the superblock's numbers may be guessed.
    guesses: bool,
    /// Whether the superblock records a check at the end.
    marks: bool,
}

/// What the rounds leave.
struct Done {
    stats: Stats,
    left: Vec<Finding>,
    late: BTreeSet<u64>,
}

impl Rounds<'_> {
    /// Applies remedies in the overlay until no finding has one.
    fn run(&self, overlay: &Arc<Overlay>, plan: &mut Plan) -> Result<Done, RepairFault> {
        let checking = &self.checking;
        let mut stuck: BTreeSet<(&'static str, String)> = BTreeSet::new();
        let (mut is_first, mut was_guessed) = (true, !self.guesses);
        let mut stats = Stats::default();
        let mut left: Vec<Finding> = Vec::new();
        let mut late = BTreeSet::from([superblock::OFFSET / overlay::PIECE * overlay::PIECE]);
        for round in 0..ROUNDS_MAX {
            let surveyed = survey::survey(&**overlay, checking)?;
            if !std::mem::replace(&mut was_guessed, true) {
                let worth = supers::worth(&surveyed);
                let stats = &surveyed.stats;
                let is_quick = stats.elapsed < std::time::Duration::from_secs(2);
                let is_suspect = worth.is_none_or(|worth| {
                    worth <= 0 || is_quick && worth < (stats.inodes + stats.dirs).cast_signed() / 2
                });
                if is_suspect && supers::guess(overlay, worth, checking, plan)? {
                    continue;
                }
            }
            let Some(notes) = surveyed.notes() else {
                let why = surveyed.findings.first().map_or_else(String::new, |finding| finding.says.clone());
                return Err(RepairFault::NoSuperblock(why));
            };
            stats = surveyed.stats.clone();
            if let Some((first, _)) = notes.journal_runs().and_then(|runs| runs.first().copied()) {
                late.insert(first.0 * notes.geometry().block_size.bytes() / overlay::PIECE * overlay::PIECE);
            }
            let mut fs = Fs::new(overlay, notes, self.options.now);
            maps::occupy_damaged(&mut fs, &surveyed.findings);
            let before = overlay.changes();
            if std::mem::take(&mut is_first) {
                Descs::new(&mut fs, plan).mend_tables();
                Special { fs: &mut fs, plan }.mend_numbers(&surveyed.findings)?;
            }
            Descs::new(&mut fs, plan).mend_bitmap_addresses(&surveyed.findings);
            if overlay.changes() != before {
                continue;
            }
            let open: Vec<&Finding> = surveyed
                .findings
                .iter()
                .filter(|finding| stuck.is_empty() || !stuck.contains(&(finding.rule.code, key(finding))))
                .collect();
            let stage = open.iter().filter_map(|finding| stage::of(finding)).min();
            let Some(stage) = stage.filter(|_| round + 1 < ROUNDS_MAX) else {
                let errors =
                    surveyed.findings.iter().filter(|finding| finding.rule.severity != Severity::Note);
                left = errors.cloned().collect();
                if self.marks {
                    finish(&mut fs, plan, left.is_empty())?;
                }
                break;
            };
            let now: Vec<&Finding> =
                open.into_iter().filter(|finding| stage::of(finding) == Some(stage)).collect();
            let before = overlay.changes();
            let fs = &mut fs;
            match stage {
                Stage::Super => supers::mend(fs, plan, &now)?,
                Stage::Log => Journal { fs, plan }.recover(overlay, &now, self.was_chosen)?,
                Stage::Inodes => Inodes::new(fs, plan).mend(&now)?,
                Stage::Values => attrs::mend_unused_values(fs, plan, &now),
                Stage::Shared => Shared::new(fs, plan).mend(&now),
                Stage::Dirs => Dirs { fs, plan }.mend(&now)?,
                Stage::Tree => Tree { fs, plan }.mend(&now),
                Stage::Links => Tree { fs, plan }.mend_links(&now),
                Stage::Special => Special { fs, plan }.mend(&now)?,
                Stage::Counts => counts::mend(fs, plan, &now)?,
            }
            if overlay.changes() == before {
                stuck.extend(now.iter().map(|finding| (finding.rule.code, key(finding))));
            }
        }
        Ok(Done { stats, left, late })
    }
}

impl Done {
    fn assemble(self, overlay: Arc<Overlay>, mut plan: Plan) -> Result<Repair, RepairFault> {
        for finding in self.left {
            let why = stage::why_left(&finding);
            plan.left.push(Left { finding, why });
        }
        let changed = overlay.changed()?;
        let len = |offset: &u64| overlay.piece(*offset).map_or(0, |piece| piece.len() as u64);
        plan.changed_bytes = changed.iter().map(len).sum();
        if changed.is_empty() {
            plan.fixes.clear();
            plan.counts.clear();
        }
        Ok(Repair { plan, overlay, changed, late: self.late, stats: self.stats, was_checked: false })
    }
}

/// Plans other changes than repairs: `write` gets a device that keeps what is written to it in memory. What
/// differs from the image is written by [`Repair::write`], through an undo file if there is one.
///
/// # Errors
/// The file system is in use by another machine; the device cannot be read; an error of `write`.
pub fn plan_writes<E: From<RepairFault>>(
    device: Arc<dyn Device>,
    write: impl FnOnce(&Arc<dyn Device>) -> Result<(), E>,
) -> Result<Repair, E> {
    if is_in_use(&*device) {
        return Err(RepairFault::InUse.into());
    }
    let overlay = Arc::new(Overlay::new(device));
    write(&(Arc::<Overlay>::clone(&overlay) as Arc<dyn Device>))?;
    release_planned(&overlay).map_err(RepairFault::from)?;
    let late = BTreeSet::from([superblock::OFFSET / overlay::PIECE * overlay::PIECE]);
    let done = Done { left: Vec::new(), late, stats: Stats::default() };
    Ok(done.assemble(overlay, Plan::default())?)
}

/// What distinguishes a finding from others, although numbers in it may change from round to round.
fn key(finding: &Finding) -> String {
    let place = &finding.place;
    format!("{:?} {:?} {:?} {:?}", place.group, place.ino, place.lblk, place.block)
}

/// Marks the file system as checked, if something was repaired.
fn finish(fs: &mut Fs<'_>, plan: &Plan, is_clean: bool) -> Result<(), DeviceFault> {
    if plan.is_empty() {
        return Ok(());
    }
    let now = fs.now;
    let has_external = fs.sb.journal_inum == 0;
    let has_large = !fs.sb.features.has_ro_compat(Features::LARGE_FILE) && has_large_file(fs);
    fs.put_superblock(|sb: &mut Superblock| {
        if is_clean {
            sb.state = (sb.state | superblock::STATE_CLEAN) & !superblock::STATE_ERRORS;
            (sb.lastcheck, sb.mnt_count) = (now.into(), 0);
        } else {
            sb.state &= !superblock::STATE_CLEAN;
        }
        if has_large {
            sb.features.ro_compat |= Features::LARGE_FILE;
        }
        if !has_external {
            sb.features.incompat &= !Features::RECOVER;
        }
    })
}

/// Is there a regular file of 2 GiB or more?
fn has_large_file(fs: &Fs<'_>) -> bool {
    let is_large = |ino| fs.inode(ino).is_some_and(|inode| inode.size > 0x7FFF_FFFF);
    fs.noted().any(|(ino, note)| note.used && note.kind == 1 && is_large(ino))
}

impl Repair {
    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Statistics of the file system after the repair.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Whether nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty()
    }

    /// The superblock as it will be.
    ///
    /// # Errors
    /// The device cannot be read.
    pub fn superblock(&self) -> Result<Superblock, DeviceFault> {
        let mut bytes = [0; superblock::SIZE];
        self.overlay.read_at(superblock::OFFSET, &mut bytes)?;
        Ok(Superblock::decode(&bytes).unwrap_or_default())
    }

    /// The blocks that change, as they will be, without the block of the superblock.
    ///
    /// # Errors
    /// The device cannot be read.
    pub fn blocks(&self) -> Result<BTreeMap<u64, Vec<u8>>, DeviceFault> {
        let sb = self.superblock()?;
        let log = sb.block_size().map_or(12, |size| size.log2());
        let len = 1u64 << log;
        let mut blocks = BTreeMap::new();
        for offset in &self.changed {
            let piece = self.overlay.piece(*offset).map_or(0, |piece| piece.len() as u64);
            for number in offset >> log..=(offset + piece.max(1) - 1) >> log {
                if number == superblock::OFFSET >> log || blocks.contains_key(&number) {
                    continue;
                }
                let mut bytes = vec![0; len as usize];
                self.overlay.read_at(number << log, &mut bytes)?;
                let mut before = vec![0; len as usize];
                self.overlay.read_base_at(number << log, &mut before)?;
                if bytes != before {
                    blocks.insert(number, bytes);
                }
            }
        }
        Ok(blocks)
    }

    /// Writes the repair. With `undo`, the bytes that it overwrites are in this file before.
    ///
    /// # Errors
    /// The undo file exists or cannot be written: nothing has changed then. The device cannot be written.
    pub fn write(&self, device: &dyn Device, undo: Option<&Path>) -> Result<(), RepairFault> {
        if self.changed.is_empty() {
            return Ok(());
        }
        let claimed = [mmp_range(&**self.overlay.base())?, mmp_range(&self.overlay)?];
        let new = undo::Written { repair: self, claimed: claimed.into_iter().flatten().collect() };
        let mut undo = undo.map(|path| UndoFile::create(path, device, &new)).transpose()?;
        // After the undo file, which so has the block of the protection as it was.
        let guarded = match Guarded::claim(&self.overlay, self.was_checked) {
            Ok(guarded) => guarded,
            Err(fault) => {
                if let Some(undo) = undo {
                    undo.remove();
                }
                return Err(fault);
            }
        };
        let (late, early): (Vec<u64>, Vec<u64>) =
            self.changed.iter().partition(|offset| self.late.contains(offset));
        let mut bytes = Vec::with_capacity(WRITE_MAX);
        for pieces in [early, late] {
            let mut pieces = pieces.into_iter().peekable();
            while let Some(start) = pieces.next() {
                // Adjacent pieces in one write.
                bytes.clear();
                let mut next = Some(start);
                while let Some(piece) = next.and_then(|offset| self.overlay.piece(offset)) {
                    bytes.extend_from_slice(&piece);
                    let end = start + bytes.len() as u64;
                    next = pieces.next_if(|offset| *offset == end && bytes.len() < WRITE_MAX);
                }
                if let Some(why) = guarded.as_ref().and_then(Guarded::lost) {
                    return Err(RepairFault::Lost(why));
                }
                let end = start + bytes.len() as u64;
                let kept = guarded.as_ref().map_or(end..end, Guarded::range);
                for part in around(&(start..end), &kept) {
                    let new = &bytes[(part.start - start) as usize..(part.end - start) as usize];
                    device.write_at(part.start, new)?;
                }
            }
            device.flush()?;
        }
        if let Some(guarded) = guarded {
            guarded.release().map_err(RepairFault::Lost)?;
        }
        if let Some(undo) = &mut undo {
            undo.set_state(UndoState::Finished)?;
        }
        Ok(())
    }
}

/// Undoes a repair that was cut, if `path` is the undo file of one. Returns whether it was.
///
/// # Errors
/// Another machine uses the file system; the undo file is damaged or of another image; the device cannot be
/// written.
pub fn undo_cut_repair(device: &Arc<dyn Device>, path: &Path) -> Result<bool, UndoFault> {
    if !path.exists() {
        return Ok(false);
    }
    let mut undo = match UndoFile::open(path) {
        Ok(undo) => undo,
        // The cut was before the file was complete: the image was not changed yet.
        Err(UndoFault::Damaged(_)) => return Ok(false),
        Err(fault) => return Err(fault),
    };
    if undo.state() != UndoState::Begun {
        return Ok(false);
    }
    undo.undo(device, false)?;
    Ok(true)
}
