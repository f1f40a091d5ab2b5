//! Resizes a file system that is not in use. (To resize a mount, the server in `fuse` closes the volume,
//! resizes the image, and opens the volume again.)
//!
//! ```text
//! recover (replay, orphans) -> plan -> longer image -> step, step, ... -> backups
//!                                                      each: new blocks | flush | switch
//! ```
//!
//! A file system grows in steps. Each step ends with a valid file system of a size in between. It first
//! writes blocks after the old end. Then a *switch* makes the new size valid. With a journal, a switch is one
//! transaction. So after a power cut the file system has the size before the step or after it, and the same
//! command continues from there. Without a journal, a switch is a few ordered writes.
//!
//! A shrink moves the blocks after the new end to free blocks before it, in steps of the same kind. The last
//! switch moves the end.
//!
//! Owns: the decisions ([`plan`]) and the writes of a resize. Does **not** own: opening and recovery (see
//! `volume`), the layouts (see `ondisk`, `jbd2-format`), the image file's length and lock (see [`Storage`]).
//!
//! Invariants
//! 1. INV-RZ1: with a journal, a power cut at any write leaves a file system that a check finds clean after
//!    the journal's replay, with all files as they were.
//! 2. INV-RZ2: without a journal, a power cut loses no file and no block in use. It may leave wrong counts,
//!    and free blocks that are marked as used. Then the superblock is marked as not clean, and e2fsck
//!    corrects the counts and marks.
//! 3. The backups of superblock and descriptors are written after the primary ones.

#![forbid(unsafe_code)]

mod copier;
mod cut;
mod fault;
mod fs;
mod grow;
pub mod plan;
mod shrink;
mod size;
mod switch;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use extant_base::Ino;
use extant_device::{Device, FileDevice, Window};
use extant_ondisk::Features;
use extant_ondisk::Geometry;
use extant_ondisk::superblock::{STATE_CLEAN, Superblock};
use extant_ondisk::time::Timestamp;
use extant_volume::{MountGuard, OpenFault, OpenOptions, Volume, log_on};

pub use fault::ResizeFault;
use fs::Fs;
use plan::Step;
pub use size::Size;
use size::{Need, SmallerSizes, Target};
use switch::{Change, Switcher};

/// The bytes that hold a file system, and whether there can be more of them.
pub trait Storage {
    /// The device as it is now.
    fn device(&self) -> Arc<dyn Device>;

    /// Makes the device at least `bytes` long. New bytes read as zeros.
    ///
    /// # Errors
    /// The device has a fixed length, or the system refuses.
    fn extend(&mut self, bytes: u64) -> Result<(), ResizeFault>;

    /// Cuts the device after `bytes`, if its length is not fixed.
    ///
    /// # Errors
    /// The system refuses.
    fn cut(&mut self, _bytes: u64) -> Result<(), ResizeFault> {
        Ok(())
    }
}

/// A device of a fixed length, such as a block device or a partition.
pub struct Fixed(pub Arc<dyn Device>);

impl Storage for Fixed {
    fn device(&self) -> Arc<dyn Device> {
        Arc::clone(&self.0)
    }

    fn extend(&mut self, bytes: u64) -> Result<(), ResizeFault> {
        Err(ResizeFault::DeviceTooSmall { available: self.0.size_bytes(), needed: bytes })
    }
}

/// A regular file from a byte offset on; its length follows the file system's.
pub struct ImageFile {
    file: Arc<FileDevice>,
    offset: u64,
}

impl ImageFile {
    /// The file system is in `file` from byte `offset` to the end.
    #[must_use]
    pub fn new(file: Arc<FileDevice>, offset: u64) -> Self {
        Self { file, offset }
    }
}

impl Storage for ImageFile {
    fn device(&self) -> Arc<dyn Device> {
        let whole: Arc<dyn Device> = Arc::<FileDevice>::clone(&self.file);
        match self.offset {
            0 => whole,
            offset => {
                let len = whole.size_bytes().saturating_sub(offset);
                // The range is within the file.
                Window::owned(Arc::clone(&whole), offset, len).map_or(whole, |window| Arc::new(window))
            }
        }
    }

    fn extend(&mut self, bytes: u64) -> Result<(), ResizeFault> {
        if self.file.is_block_device() {
            let available = self.file.size_bytes().saturating_sub(self.offset);
            return Err(ResizeFault::DeviceTooSmall { available, needed: bytes });
        }
        let length = self.offset.saturating_add(bytes);
        self.file.set_len(length).map_err(|source| ResizeFault::Length { bytes: length, source })
    }

    fn cut(&mut self, bytes: u64) -> Result<(), ResizeFault> {
        match self.file.is_block_device() {
            true => Ok(()),
            false => self.extend(bytes),
        }
    }
}

/// Options of a resize.
#[derive(Clone, Default)]
pub struct ResizeOptions {
    /// The device of the external journal, for file systems that have one.
    pub journal_device: Option<Arc<dyn Device>>,
    /// Called while another machine may have the file system open, see [`MountGuard`].
    pub waiting: Option<Arc<extant_volume::OnWait<'static>>>,
    /// The time in superblock and journal instead of the clock's: the same resize makes the same bytes.
    pub fixed_time: Option<Timestamp>,
    /// Inodes keep their numbers, because the file system is mounted and only closed meanwhile.
    pub is_mounted: bool,
}

/// Is notified of the progress.
pub trait ResizeObserver {
    /// `done` of `of` parts of the work `what` are done.
    fn progress(&self, _what: &'static str, _done: u64, _of: u64) {}

    /// So many blocks and inodes more have moved, and stay so whatever comes next. If an error ends the
    /// resize, there is no report, and the sum of these calls is what it has moved.
    fn moved(&self, _blocks: u64, _inodes: u64) {}
}

/// Notifies nothing.
impl ResizeObserver for () {}

/// The layout of a file system at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Blocks.
    pub blocks: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// Groups.
    pub groups: u32,
    /// Inodes.
    pub inodes: u32,
    /// Free blocks.
    pub free_blocks: u64,
    /// Free inodes.
    pub free_inodes: u32,
    /// Blocks for the privileged user.
    pub reserved_blocks: u64,
    /// Whether descriptors are in meta block groups.
    pub meta_bg: bool,
    /// Reserved descriptor blocks that are left.
    pub reserved_descriptors: u16,
}

impl Layout {
    fn of(sb: &Superblock, geometry: &Geometry) -> Self {
        Self {
            blocks: sb.blocks_count,
            block_size: geometry.block_size.bytes() as u32,
            groups: geometry.groups,
            inodes: sb.inodes_count,
            free_blocks: sb.free_blocks_count,
            free_inodes: sb.free_inodes_count,
            reserved_blocks: sb.reserved_blocks_count,
            meta_bg: geometry.meta_bg(),
            reserved_descriptors: sb.reserved_gdt_blocks,
        }
    }

    /// What a superblock says; `None` if its numbers make no sense.
    #[must_use]
    pub fn of_superblock(sb: &Superblock) -> Option<Self> {
        Geometry::new(sb).ok().map(|geometry| Self::of(sb, &geometry))
    }

    /// Bytes of the file system.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.blocks * u64::from(self.block_size)
    }
}

/// What a resize did, or would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResizeReport {
    /// Before.
    pub before: Layout,
    /// After; the counts of a preview are those that the plan knows.
    pub after: Layout,
    /// Atomic steps.
    pub steps: u32,
    /// Blocks that moved.
    pub moved: u64,
    /// Inodes that have another number.
    pub moved_inodes: u64,
    /// Transactions of the journal that were replayed first.
    pub replayed: u64,
}

/// A round of the search for the smallest size has to gain one part in this many.
const GAIN_SHARE: u64 = 500;

/// Plans a resize and changes nothing. The plan does not take into account what a journal that needs replay
/// contains. `is_fixed` says that the device cannot become longer.
///
/// # Errors
/// The size is impossible, or larger than a fixed device; there is no clean ext4 file system.
pub fn preview(device: &Arc<dyn Device>, size: Size, is_fixed: bool) -> Result<ResizeReport, ResizeFault> {
    // This says what is there instead, if it is no ext4.
    let open = OpenOptions { no_recovery: true, ..OpenOptions::default() };
    drop(Volume::open_read_only(Arc::clone(device), &open)?);
    let fs = Fs::read(Arc::clone(device))?;
    fs.must_be_clean()?;
    let target = Target::of(size, &fs, device.size_bytes(), false)?;
    let before = Layout::of(&fs.sb, &fs.geometry);
    let (mut sb, mut steps, mut moved, mut moved_inodes) = (fs.sb.clone(), 0, 0, 0);
    match target {
        Target::Shrink(blocks) if blocks < sb.blocks_count => {
            sb = plan::shrunk(&sb, blocks)?;
            steps = 1;
            let geometry = Geometry::new(&sb)?;
            moved = Need::of(&fs, &geometry)?.move_blocks;
            moved_inodes = size::inodes_to_move(&fs, geometry.groups)?.0;
        }
        Target::Shrink(_) => {}
        Target::Grow(blocks) => {
            let (available, needed) = (device.size_bytes(), blocks << fs.geometry.block_size.log2());
            if is_fixed && needed > available {
                return Err(ResizeFault::DeviceTooSmall { available, needed });
            }
            while let Some(step) = plan::next(&sb, blocks, usize::MAX)? {
                steps += 1;
                sb = match step {
                    Step::Release(to) => *to,
                    Step::Grow(grow) => grow.to,
                };
            }
        }
    }
    let after = Layout::of(&sb, &Geometry::new(&sb)?);
    Ok(ResizeReport { before, after, steps, moved, moved_inodes, replayed: 0 })
}

/// Resizes the file system on `storage`, which no other program may use. Another call continues after an
/// interruption or a power cut.
///
/// # Errors
/// The size is impossible, or a smaller one; the file system cannot be written, is damaged or not clean; the
/// device failed or is too small. After an error the file system is as after a power cut.
pub fn resize(
    storage: &mut dyn Storage,
    size: Size,
    options: &ResizeOptions,
    observer: &dyn ResizeObserver,
    cancel: &AtomicBool,
) -> Result<ResizeReport, ResizeFault> {
    let device = storage.device();
    let on_wait =
        |waiting: &extant_volume::Waiting| options.waiting.iter().for_each(|notify| notify(waiting));
    let guard = MountGuard::claim(&device, &on_wait)?;
    let replayed = recover(&device, options)?;
    let mut fs = Fs::read(Arc::clone(&device))?;
    fs.must_be_clean()?;
    let before = Layout::of(&fs.sb, &fs.geometry);
    let log2 = fs.geometry.block_size.log2();
    let check = || checked(cancel, guard.as_ref());
    let done = match Target::of(size, &fs, device.size_bytes(), options.is_mounted)? {
        Target::Grow(blocks) => {
            // Nothing changes if there is no first step.
            let room = switcher_of(&fs, options)?.room()?;
            plan::next(&fs.sb, blocks, room)?;
            // What is after the old end of the file reads as zeros.
            let zeros_from = device.size_bytes();
            if blocks << log2 > zeros_from {
                storage.extend(blocks << log2)?;
                fs.device = storage.device();
            }
            grow(&mut fs, blocks, zeros_from, options, observer, &check)?
        }
        Target::Shrink(blocks) => {
            // Bytes after the file system, such as a hash tree, are not the file system's.
            let is_alone = device.size_bytes() <= fs.sb.blocks_count << log2;
            let mut done = shrink(&mut fs, blocks, size == Size::Min, options, observer, &check)?;
            // The metadata of groups that went has made room, so the next smallest size may be smaller. A
            // round that gained little is the last one.
            let mut now = u64::MAX;
            while size == Size::Min && fs.sb.blocks_count < now - now / GAIN_SHARE {
                now = fs.sb.blocks_count;
                let least = SmallerSizes::of(&fs, options.is_mounted)?.least()?;
                if least < now {
                    done.add(shrink(&mut fs, least, true, options, observer, &check)?);
                }
            }
            drop(guard);
            if is_alone && fs.sb.blocks_count < before.blocks {
                storage.cut(fs.sb.blocks_count << log2)?;
            }
            done
        }
    };
    let after = Layout::of(&fs.sb, &fs.geometry);
    let Done { steps, moved, moved_inodes } = done;
    Ok(ResizeReport { before, after, steps, moved, moved_inodes, replayed })
}

/// Gives the inodes of a list free numbers that ascend in the list's order: the first run of free numbers
/// that has room for all of them, else the longest runs. Inodes with a fixed number keep it, and so do all
/// if they are in order already. Returns how many inodes have another number. No other program may use the
/// file system.
///
/// With a journal, each inode has its old number or its new one after a power cut. Without one, a power cut
/// can lose files: the device then is one that keeps the changes until all of them are made.
///
/// # Errors
/// The file system has the feature `stable_inodes`; there are too few free inodes; as [`resize`]. After an
/// error the file system is as after a power cut: [`ResizeFault::InPart`] has the number of inodes that have
/// another number.
pub fn order_inodes(
    device: &Arc<dyn Device>,
    order: &[Ino],
    options: &ResizeOptions,
    cancel: &AtomicBool,
) -> Result<u64, ResizeFault> {
    let on_wait =
        |waiting: &extant_volume::Waiting| options.waiting.iter().for_each(|notify| notify(waiting));
    let guard = MountGuard::claim(device, &on_wait)?;
    recover(device, options)?;
    let mut fs = Fs::read(Arc::clone(device))?;
    fs.must_be_clean()?;
    if fs.sb.features.has_compat(Features::STABLE_INODES) {
        return Err(ResizeFault::FixedInodes("the file system has the feature stable_inodes"));
    }
    let check = || checked(cancel, guard.as_ref());
    let switcher = switcher_of(&fs, options)?;
    switcher.begin(&fs.sb)?;
    let (moved_inodes, ordered) = shrink::order_inodes(&mut fs, switcher, order, &check);
    let done = match ordered {
        Ok(switcher) => fs.write_backups().and_then(|()| switcher.end(&fs.sb)),
        Err(fault) => Err(ended(&fs, options, fault)),
    };
    match done {
        Ok(()) => Ok(moved_inodes),
        Err(source) if moved_inodes == 0 => Err(source),
        Err(source) => Err(ResizeFault::InPart { moved_inodes, source: Box::new(source) }),
    }
}

/// Fails if the caller wants to stop, or another machine has the file system now.
fn checked(cancel: &AtomicBool, guard: Option<&MountGuard>) -> Result<(), ResizeFault> {
    if cancel.load(Ordering::Relaxed) {
        return Err(ResizeFault::Interrupted);
    }
    let lost = guard.and_then(MountGuard::lost);
    lost.map_or(Ok(()), |why| Err(OpenFault::InUse(why).into()))
}

/// Writes changed blocks and the superblock `to` in one transaction of the journal: after a power cut, all of
/// them are as before or all as given. The file system must be clean and not in use, and its layout and
/// journal stay. Neither the block of the superblock nor that of multiple-mount protection, which a claim
/// overwrites meanwhile, is one of `blocks`.
///
/// # Errors
/// Another machine uses the file system; there is no journal, or the change does not fit into it: nothing was
/// written then. The device failed: the next open finishes the change or forgets it.
pub fn write_in_one_step(
    device: &Arc<dyn Device>,
    blocks: BTreeMap<u64, Vec<u8>>,
    to: &Superblock,
    options: &ResizeOptions,
) -> Result<(), ResizeFault> {
    let on_wait =
        |waiting: &extant_volume::Waiting| options.waiting.iter().for_each(|notify| notify(waiting));
    let guard = MountGuard::claim(device, &on_wait)?;
    let fs = Fs::read(Arc::clone(device))?;
    fs.must_be_clean()?;
    let switcher = switcher_of(&fs, options)?;
    let (needed, room) = (blocks.len() + 1, switcher.room()?);
    if !switcher.has_log() || needed > room {
        return Err(plan::PlanFault::JournalTooSmall { needed, room }.into());
    }
    checked(&AtomicBool::new(false), guard.as_ref())?;
    switcher.begin(&fs.sb)?;
    switcher.switch(Change { early: blocks, ..Change::default() }, to)?;
    switcher.end(to)
}

/// What was done.
#[derive(Default)]
struct Done {
    steps: u32,
    moved: u64,
    moved_inodes: u64,
}

impl Done {
    fn add(&mut self, more: Self) {
        self.steps += more.steps;
        self.moved += more.moved;
        self.moved_inodes += more.moved_inodes;
    }
}

fn switcher_of(fs: &Fs, options: &ResizeOptions) -> Result<Switcher, ResizeFault> {
    let open = OpenOptions { journal_device: options.journal_device.clone(), ..OpenOptions::default() };
    let log = log_on(&fs.device, &fs.sb, &open)?;
    let time = options.fixed_time.map(|time| u64::try_from(time.seconds).unwrap_or(0));
    Ok(Switcher::new(Arc::clone(&fs.device), &fs.sb, &fs.geometry, (log, time), Rc::clone(&fs.is_torn)))
}

fn grow(
    fs: &mut Fs,
    target: u64,
    zeros_from: u64,
    options: &ResizeOptions,
    observer: &dyn ResizeObserver,
    check: &dyn Fn() -> Result<(), ResizeFault>,
) -> Result<Done, ResizeFault> {
    let switcher = switcher_of(fs, options)?;
    let room = switcher.room()?;
    let mut steps = 0;
    if fs.sb.blocks_count < target {
        switcher.begin(&fs.sb)?;
    }
    while let Some(step) = plan::next(&fs.sb, target, room)? {
        if let Err(fault) = check() {
            return Err(ended(fs, options, fault));
        }
        match step {
            Step::Release(to) => fs.release(&switcher, &to)?,
            Step::Grow(grow) => {
                let mut progress = |block| observer.progress("growing", block, target);
                fs.grow(&switcher, &grow, zeros_from, &mut progress)?;
            }
        }
        steps += 1;
        observer.progress("growing", fs.sb.blocks_count, target);
    }
    fs.write_backups()?;
    if steps > 0 {
        switcher.end(&fs.sb)?;
    }
    Ok(Done { steps, ..Done::default() })
}

/// Takes the marks off a file system that stays as it is because of a fault. If another machine has it now,
/// its superblock is the other machine's.
fn ended(fs: &Fs, options: &ResizeOptions, fault: ResizeFault) -> ResizeFault {
    if matches!(fault, ResizeFault::Open(OpenFault::InUse(_))) {
        return fault;
    }
    let end = |switcher: Switcher| {
        // Bitmaps and tables may have moved, and what is written next may use their old places.
        if !fs.is_torn.get() {
            fs.write_backups()?;
        }
        switcher.end(&fs.sb)
    };
    match switcher_of(fs, options).and_then(end) {
        // The first fault is the cause of the second.
        Ok(()) | Err(_) => fault,
    }
}

fn shrink(
    fs: &mut Fs,
    target: u64,
    is_min: bool,
    options: &ResizeOptions,
    observer: &dyn ResizeObserver,
    check: &dyn Fn() -> Result<(), ResizeFault>,
) -> Result<Done, ResizeFault> {
    if target >= fs.sb.blocks_count {
        fs.write_backups()?;
        return Ok(Done::default());
    }
    let mut switcher = switcher_of(fs, options)?;
    switcher.begin(&fs.sb)?;
    let (mut target, mut done) = (target, Done::default());
    let (to, end) = loop {
        let to = plan::shrunk(&fs.sb, target)?;
        let geometry = Geometry::new(&to)?;
        let groups = u64::from(geometry.groups);
        let reopen = |fs: &Fs| switcher_of(fs, options);
        let mut progress = |group| observer.progress("moving", group, groups);
        let (moved, evacuated) = shrink::evacuate(fs, switcher, &geometry, &reopen, check, &mut progress);
        done.add(Done { steps: moved.switches, moved: moved.blocks, moved_inodes: moved.inodes });
        observer.moved(moved.blocks, moved.inodes);
        match evacuated {
            // The moves have changed the superblock.
            Ok(last) => break (plan::shrunk(&fs.sb, target)?, last),
            // The smallest size assumes that the pieces of free space are large enough.
            Err(ResizeFault::TooFragmented { .. } | ResizeFault::NoSpace | ResizeFault::NoRun { .. })
                if is_min =>
            {
                target += ((fs.sb.blocks_count - target) / 4).max(64);
                switcher = switcher_of(fs, options)?;
                if target >= fs.sb.blocks_count {
                    // After a power cut, they may have the size before the last switch.
                    fs.write_backups()?;
                    switcher.end(&fs.sb)?;
                    return Ok(done);
                }
            }
            // An inode cannot get another number: its group stays.
            Err(fault @ (ResizeFault::Plan(_) | ResizeFault::CannotShrink(_))) if is_min => {
                let groups =
                    u64::from(size::groups_with_inodes(fs)?) * u64::from(fs.geometry.blocks_per_group);
                let kept = u64::from(fs.geometry.first_data_block) + groups;
                if kept <= target {
                    return Err(ended(fs, options, fault));
                }
                target = kept;
                switcher = switcher_of(fs, options)?;
                if target >= fs.sb.blocks_count {
                    // After a power cut, they may have the size before the last switch.
                    fs.write_backups()?;
                    switcher.end(&fs.sb)?;
                    return Ok(done);
                }
            }
            Err(fault) => return Err(ended(fs, options, fault)),
        }
    };
    if let Err(fault) = check().and_then(|()| fs.cut(&end, to)) {
        return Err(ended(fs, options, fault));
    }
    fs.write_backups()?;
    end.end(&fs.sb)?;
    done.steps += 1;
    Ok(done)
}

/// Replays the journal and deletes orphans. Returns the number of replayed transactions.
fn recover(device: &Arc<dyn Device>, options: &ResizeOptions) -> Result<u64, ResizeFault> {
    let mut bytes = [0; extant_ondisk::superblock::SIZE];
    device.read_at(extant_ondisk::superblock::OFFSET, &mut bytes)?;
    if let Ok(sb) = Superblock::decode(&bytes)
        && !sb.features.has_compat(Features::HAS_JOURNAL)
        && sb.state & STATE_CLEAN == 0
    {
        return Err(ResizeFault::NotClean("was not unmounted and has no journal"));
    }
    let mut open = OpenOptions { journal_device: options.journal_device.clone(), ..OpenOptions::default() };
    open.write.is_no_mount = true;
    open.write.is_guarded = true;
    open.write.no_committer = true;
    open.write.fixed_time = options.fixed_time;
    let volume = Volume::open(Arc::clone(device), &open)?;
    let transactions = volume.recovery().transactions;
    let closed = volume.close();
    closed.map_err(|fault| match fault {
        extant_volume::Fault::Device(fault) => ResizeFault::Device(fault),
        extant_volume::Fault::Aborted(why) | extant_volume::Fault::Stopped(why) => {
            ResizeFault::Recovery(why.to_string())
        }
        fault => ResizeFault::Damaged(fault.to_string()),
    })?;
    Ok(transactions)
}
