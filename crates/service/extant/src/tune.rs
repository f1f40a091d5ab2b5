//! Changes the parameters of a file system that are stored in its superblock (label, UUID, reserved blocks,
//! error policy, mount options, check intervals, hash, and features that need no other structure), and
//! converts to features that need one (journal, orphan file, quota files, checksums).
//!
//! ```text
//! Tuning -- plan(superblock) --> superblock after, TuneReport      pure: refuses what cannot be changed
//!        -- FileSystem::tune --> the same, in one transaction, with the backups
//! Conversion -- convert ------> new structures; in one transaction if the journal stays and has room,
//!                               else through an undo file, which the next call undoes after a power cut
//! ```
//!
//! Owns: which parameter changes which fields, and what a change requires. Does **not** own: how the
//! superblocks are written (see `volume`), how structures are made (see `repair`), option letters (see the
//! command).
//!
//! Invariants
//! 1. A plan changes no field that describes the layout, and keeps the seed of all metadata checksums: a new
//!    UUID turns `metadata_csum_seed` on where checksums depend on the UUID.
//! 2. A change is refused before anything is written.
//!
//! ```
//! # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
//! # let memory = example::empty_memory(64 << 20);
//! use extant::tune::Tuning;
//! use extant::{FileSystem, OpenOptions};
//!
//! let fs = FileSystem::from_device_writable(memory.clone(), &OpenOptions::default())?;
//! let report = fs.tune(&Tuning { label: Some(b"root".to_vec()), ..Tuning::default() })?;
//! assert_eq!((report.changes[0].field, &*report.changes[0].after), ("label", "root"));
//! fs.close()?;
//!
//! let fs = FileSystem::from_device(memory, &OpenOptions::default())?;
//! assert_eq!(fs.volume().admin().label(), b"root");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Source: tune2fs(8); kernel Documentation/filesystems/ext4/super.rst.

use extant_ondisk::features::{Feature, Word};
use extant_ondisk::hash::HashVersion;
use extant_ondisk::superblock::{self, FLAG_TEST_FILESYS, default_options, until_nul};
use extant_ondisk::{Features, Superblock};
use extant_volume::{Fault, LABEL_MAX, OnError, OnWait, OpenFault};

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use extant_repair::{Conversion, ConversionFault, JournalChange};
use extant_repair::{RepairFault, RepairOptions, UndoFault, plan_conversion, undo_cut_repair};
use extant_resize::{ResizeFault, ResizeOptions, write_in_one_step};

use crate::{Device, FileSystem, OpenOptions};

/// The parameters to change; those that are `None` stay.
///
/// ```
/// use extant::tune::Tuning;
///
/// let tuning = Tuning { mounts_until_check: Some(0), check_interval_seconds: Some(0), ..Tuning::default() };
/// assert!(tuning.label.is_none(), "it stays");
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tuning {
    /// Label, at most 16 bytes.
    pub label: Option<Vec<u8>>,
    /// UUID; zeros remove it.
    pub uuid: Option<[u8; 16]>,
    /// Blocks that only privileged users may allocate.
    pub reserved: Option<Reserved>,
    /// The user that may use the reserved blocks, besides root.
    pub reserved_user: Option<u32>,
    /// The group whose members may use the reserved blocks.
    pub reserved_group: Option<u32>,
    /// What a driver does when it finds damage.
    pub errors: Option<OnError>,
    /// Default mount options by the names of `tune2fs -o`, and whether each is set.
    pub mount_options: Vec<(String, bool)>,
    /// Default mount options as text, at most 63 bytes.
    pub mount_options_text: Option<Vec<u8>>,
    /// Number of mounts after which a check is due; 0 for never.
    pub mounts_until_check: Option<u16>,
    /// Number of mounts since the last check.
    pub mount_count: Option<u16>,
    /// Seconds after which a check is due; 0 for never.
    pub check_interval_seconds: Option<u32>,
    /// Time of the last check, in seconds since 1970.
    pub last_check: Option<u64>,
    /// Directory of the last mount, at most 63 bytes.
    pub last_mounted: Option<Vec<u8>>,
    /// Hash of the names in directories that get an index from now on.
    pub hash: Option<HashVersion>,
    /// Blocks per chunk of a RAID array.
    pub stride: Option<u16>,
    /// Blocks per stripe of a RAID array.
    pub stripe_width: Option<u32>,
    /// Whether the file system is for tests of development code.
    pub test_fs: Option<bool>,
    /// Features to turn on or off, by name. See [`CHANGEABLE`].
    pub features: Vec<(String, bool)>,
}

/// An amount of reserved blocks.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// # let fs = extant::open(&image)?;
/// use extant::tune::{Reserved, Tuning, plan};
///
/// let tuning = Tuning { reserved: Some(Reserved::Blocks(7)), ..Tuning::default() };
/// let (after, _) = plan(fs.volume().superblock(), &tuning)?;
/// assert_eq!(after.reserved_blocks_count, 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reserved {
    /// A number of blocks.
    Blocks(u64),
    /// Per cent of all blocks, from 0 to 50.
    Percent(f64),
}

/// What changed.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// # let fs = extant::open(&image)?;
/// use extant::tune::{TuneReport, Tuning, plan};
///
/// let tuning = Tuning { mount_count: Some(3), ..Tuning::default() };
/// let (_, report): (_, TuneReport) = plan(fs.volume().superblock(), &tuning)?;
/// assert_eq!((report.changes.len(), report.notes.len()), (1, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TuneReport {
    /// Fields that changed, in the order of the superblock's text form.
    pub changes: Vec<FieldChange>,
    /// What the caller should know, such as a feature that another change turned on.
    pub notes: Vec<String>,
}

/// A field that changed.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// # let fs = extant::open(&image)?;
/// use extant::tune::{FieldChange, Tuning, plan};
///
/// let tuning = Tuning { mount_count: Some(3), ..Tuning::default() };
/// let (_, report) = plan(fs.volume().superblock(), &tuning)?;
/// let change: &FieldChange = &report.changes[0];
/// assert_eq!((change.before.as_str(), change.after.as_str()), ("0", "3"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldChange {
    /// Its name.
    pub field: &'static str,
    /// The value before, as text.
    pub before: String,
    /// The value after, as text.
    pub after: String,
}

/// Why a parameter cannot be changed.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// # let fs = extant::open(&image)?;
/// use extant::tune::{TuneFault, Tuning, plan};
///
/// let tuning = Tuning { label: Some(vec![b'x'; 17]), ..Tuning::default() };
/// let refused = plan(fs.volume().superblock(), &tuning);
/// assert!(matches!(refused, Err(TuneFault::Refused { parameter: "label", .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
pub enum TuneFault {
    /// The value is out of range, or the file system does not allow the change. Nothing was written.
    #[error("{parameter}: {why}")]
    Refused {
        /// Name of the parameter.
        parameter: &'static str,
        /// The reason and the remedy.
        why: String,
    },
    /// Writing failed.
    #[error("{0}")]
    Fault(#[from] Fault),
    /// The conversion is refused, or cannot be planned. Nothing was written.
    #[error("features: {0}")]
    Conversion(#[from] ConversionFault),
    /// The file system cannot be opened, or recovered.
    #[error("{0}")]
    Open(String),
    /// Another machine uses the file system. Nothing was written.
    #[error("{0}")]
    InUse(String),
    /// Another machine has opened the file system while the conversion was written. If there is an undo
    /// file, the next call undoes the part that is written.
    #[error("{0}")]
    Lost(String),
    /// Writing the conversion failed. The next call undoes or finishes it.
    #[error("{0}")]
    Write(String),
}

/// Features that [`convert`] changes, and whether they can also be turned off.
pub const CONVERTIBLE: &[(&str, bool)] = &[
    ("has_journal", true),
    ("orphan_file", true),
    ("quota", true),
    ("project", true),
    ("metadata_csum", true),
    ("64bit", true),
    ("flex_bg", false),
];

/// Options of changes to a file system that nothing has open: [`convert`],
/// [`order_inodes`](crate::optimize::order_inodes).
///
/// ```
/// use extant::tune::OfflineOptions;
///
/// let options = OfflineOptions { undo: Some("root.img.undo".into()), ..OfflineOptions::default() };
/// assert!(options.journal_device.is_none());
/// ```
#[derive(Clone, Default)]
pub struct OfflineOptions {
    /// The device of the external journal, for file systems that have one.
    pub journal_device: Option<Arc<dyn Device>>,
    /// The undo file, for changes that do not fit into one transaction, or a file system without a journal.
    /// It is removed at the end. After a power cut, [`restore_cut`] restores the old state from it.
    pub undo: Option<PathBuf>,
    /// Called while a change waits to find out whether another machine has the file system open (feature
    /// `mmp`).
    pub waiting: Option<Arc<OnWait<'static>>>,
}

/// Options of [`convert`].
///
/// ```
/// use extant::tune::ConvertOptions;
///
/// let options = ConvertOptions { dry_run: true, ..ConvertOptions::default() };
/// assert!(options.offline.undo.is_none() && options.offline.journal_device.is_none());
/// ```
#[derive(Clone, Default)]
pub struct ConvertOptions {
    /// Report what would change, and write nothing.
    pub dry_run: bool,
    /// The time for new inodes, in seconds since 1970.
    pub now: u32,
    /// External journal and undo file.
    pub offline: OfflineOptions,
}

/// Changes features that need other structures than the superblock, of a file system that nothing has open.
/// A power cut leaves the old state or the new one: where the change is no single transaction, the next call
/// first restores the old state from the undo file.
///
/// # Errors
/// [`TuneFault::Conversion`] before anything is written; otherwise the device failed.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
/// # let memory = example::empty_memory(16 << 20);
/// use std::sync::Arc;
/// use extant::Device;
/// use extant::tune::{Conversion, ConvertOptions, convert};
///
/// let device: Arc<dyn Device> = memory;
/// let conversion = Conversion { quota: Some(true), ..Conversion::default() };
/// let report = convert(&device, &conversion, &ConvertOptions::default())?;
/// assert!(report.changes.iter().any(|change| change.after.contains("quota")));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn convert(
    device: &Arc<dyn Device>,
    conversion: &Conversion,
    options: &ConvertOptions,
) -> Result<TuneReport, TuneFault> {
    let read = |fault: extant_device::DeviceFault| TuneFault::Open(fault.to_string());
    if !options.dry_run {
        restore_cut(device, options.offline.undo.as_deref())?;
        // A change that is refused changes nothing, so the image is opened for writing only where it must be.
        let mut bytes = [0; superblock::SIZE];
        device.read_at(superblock::OFFSET, &mut bytes).map_err(read)?;
        let needs_recovery = Superblock::decode(&bytes).is_ok_and(|sb| {
            sb.features.has_incompat(Features::RECOVER)
                || sb.features.has_ro_compat(Features::ORPHAN_PRESENT)
                || sb.last_orphan != 0
        });
        if needs_recovery {
            recover(device, options)?;
        }
    }
    let planning = RepairOptions { now: options.now, ..RepairOptions::default() };
    let repair = plan_conversion(Arc::clone(device), conversion, &planning)?;
    let after = repair.superblock().map_err(read)?;
    let mut bytes = [0; superblock::SIZE];
    device.read_at(superblock::OFFSET, &mut bytes).map_err(read)?;
    let before = Superblock::decode(&bytes).map_err(|fault| TuneFault::Open(fault.to_string()))?;
    let report = TuneReport { changes: changes(&before, &after), notes: Vec::new() };
    if options.dry_run || repair.is_empty() {
        return Ok(report);
    }
    // A journal that is replaced cannot hold the transaction that replaces it. And it is found by the
    // descriptors and the inode table: while these are half written, no replay is possible.
    // The claim on a file system with multiple-mount protection overwrites its block.
    let blocks = repair.blocks().map_err(read)?;
    let has_claimed = after.features.has_incompat(Features::MMP) && blocks.contains_key(&after.mmp_block);
    if conversion.journal.is_none() && !conversion.changes_layout() && !has_claimed {
        let writing = ResizeOptions {
            journal_device: options.offline.journal_device.clone(),
            waiting: options.offline.waiting.clone(),
            ..ResizeOptions::default()
        };
        match write_in_one_step(device, blocks, &after, &writing) {
            Ok(()) => return Ok(report),
            Err(ResizeFault::Plan(_)) => {}
            Err(ResizeFault::Open(OpenFault::InUse(why))) => return Err(TuneFault::InUse(why)),
            Err(ResizeFault::Open(fault)) => return Err(TuneFault::Open(fault.to_string())),
            Err(fault) => return Err(TuneFault::Write(fault.to_string())),
        }
    }
    let failed = |fault: RepairFault| match fault {
        RepairFault::InUse => TuneFault::InUse(fault.to_string()),
        RepairFault::Lost(_) => TuneFault::Lost(fault.to_string()),
        fault => TuneFault::Write(fault.to_string()),
    };
    repair.write(&**device, options.offline.undo.as_deref()).map_err(failed)?;
    if let Some(undo) = &options.offline.undo {
        std::fs::remove_file(undo).map_err(|why| TuneFault::Write(format!("{}: {why}", undo.display())))?;
    }
    Ok(report)
}

/// Restores the state before a conversion that was cut, and removes its undo file. Does nothing if there is
/// no such file. Before that, nothing else may write to the image.
///
/// # Errors
/// Another machine uses the file system; the file is of another image, or of a finished repair; the device
/// cannot be written.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
/// # let memory = example::empty_memory(16 << 20);
/// use std::sync::Arc;
/// use extant::Device;
///
/// let device: Arc<dyn Device> = memory;
/// extant::tune::restore_cut(&device, Some("no-such-file.undo".as_ref()))?; // nothing was cut
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn restore_cut(device: &Arc<dyn Device>, undo: Option<&Path>) -> Result<(), TuneFault> {
    let Some(undo) = undo.filter(|undo| undo.exists()) else { return Ok(()) };
    let failed = |why: String| TuneFault::Open(format!("{}: {why}", undo.display()));
    let was_cut = undo_cut_repair(device, undo).map_err(|fault| match fault {
        UndoFault::InUse => TuneFault::InUse(fault.to_string()),
        UndoFault::Lost(_) => TuneFault::Lost(fault.to_string()),
        fault => failed(fault.to_string()),
    })?;
    if was_cut {
        return std::fs::remove_file(undo).map_err(|why| failed(why.to_string()));
    }
    match extant_repair::UndoFile::open(undo) {
        // It was cut before the image changed.
        Err(_) => std::fs::remove_file(undo).map_err(|why| failed(why.to_string())),
        Ok(_) => Err(failed("it exists, and may be needed to undo a repair: move it away".to_owned())),
    }
}

/// Replays the journal, and finishes the deletion of orphans.
fn recover(device: &Arc<dyn Device>, options: &ConvertOptions) -> Result<(), TuneFault> {
    let open = OpenOptions {
        journal_device: options.offline.journal_device.clone(),
        waiting: options.offline.waiting.clone(),
        ..OpenOptions::default()
    };
    let opened = FileSystem::from_device_writable(Arc::clone(device), &open);
    let closed = opened
        .map_err(|fault| match fault {
            OpenFault::InUse(why) => TuneFault::InUse(why),
            fault => TuneFault::Open(fault.to_string()),
        })?
        .close();
    closed.map_err(|fault| TuneFault::Open(fault.to_string()))
}

/// Takes the features that [`convert`] changes out of a list of names.
///
/// ```
/// use extant::tune::conversion_of;
///
/// let features = vec![("quota".to_owned(), true), ("dir_index".to_owned(), true)];
/// let (conversion, others) = conversion_of(features);
/// assert_eq!((conversion.quota, others.len()), (Some(true), 1));
/// ```
#[must_use]
pub fn conversion_of(features: Vec<(String, bool)>) -> (Conversion, Vec<(String, bool)>) {
    let mut conversion = Conversion::default();
    let mut others = Vec::new();
    for (name, on) in features {
        let known = Feature::by_name(&name).map_or(name.as_str(), |feature| feature.name);
        match known {
            "has_journal" => {
                let change = if on { JournalChange::Make { blocks: None } } else { JournalChange::Remove };
                conversion.journal = Some(change);
            }
            "orphan_file" => conversion.orphan_file = Some(on),
            "quota" => conversion.quota = Some(on),
            "project" => conversion.project = Some(on),
            "metadata_csum" => conversion.metadata_csum = Some(on),
            "64bit" => conversion.wide = Some(on),
            "flex_bg" => conversion.flex_bg = Some(on),
            _ => others.push((name, on)),
        }
    }
    (conversion, others)
}

/// Features that can be turned on, and whether they can also be turned off.
pub const CHANGEABLE: &[(&str, bool)] = &[
    ("dir_index", false),
    ("fast_commit", true),
    ("stable_inodes", false),
    ("ea_inode", false),
    ("large_dir", false),
    ("metadata_csum_seed", true),
    ("encrypt", false),
    ("large_file", false),
    ("huge_file", false),
    ("dir_nlink", false),
    ("extra_isize", false),
    ("verity", false),
];

/// The names of `tune2fs -o` and their bits. The journal's modes are values of a two-bit field.
const MOUNT_OPTIONS: &[(&str, u32)] = &[
    ("debug", default_options::DEBUG),
    ("bsdgroups", default_options::BSD_GROUPS),
    ("user_xattr", default_options::XATTR_USER),
    ("acl", default_options::ACL),
    ("uid16", default_options::UID16),
    ("journal_data", default_options::JOURNAL_DATA),
    ("journal_data_ordered", default_options::JOURNAL_ORDERED),
    ("journal_data_writeback", default_options::JOURNAL_WRITEBACK),
    ("nobarrier", default_options::NOBARRIER),
    ("block_validity", default_options::BLOCK_VALIDITY),
    ("discard", default_options::DISCARD),
    ("nodelalloc", default_options::NODELALLOC),
];

/// Bytes that an inode has beyond 128 when extra_isize is turned on, as mke2fs sets it.
const EXTRA_ISIZE: u16 = 32;

impl FileSystem {
    /// Changes parameters of a file system that is open for writing. The change is one transaction, and
    /// durable when this returns. The open file system goes on with the old values: close and open it again.
    ///
    /// # Errors
    /// [`TuneFault::Refused`] before anything is written; otherwise the device failed.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// # let fs = extant::FileSystem::from_device_writable(memory, &Default::default())?;
    /// use extant::tune::Tuning;
    ///
    /// let report = fs.tune(&Tuning { label: Some(b"root".to_vec()), ..Tuning::default() })?;
    /// assert_eq!(report.changes[0].after, "root");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tune(&self, tuning: &Tuning) -> Result<TuneReport, TuneFault> {
        let (_, report) = plan(self.volume().superblock(), tuning)?;
        if !report.changes.is_empty() {
            self.volume().admin().tune(&|sb| {
                // Backups have old counts; what refuses a change for them would refuse it for the primary.
                if let Ok((after, _)) = plan(sb, tuning) {
                    *sb = after;
                }
            })?;
        }
        Ok(report)
    }
}

/// The superblock after the change, and what differs.
///
/// # Errors
/// [`TuneFault::Refused`].
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// # let fs = extant::open(&image)?;
/// use extant::tune::{Reserved, Tuning, plan};
///
/// let tuning = Tuning { reserved: Some(Reserved::Percent(1.0)), ..Tuning::default() };
/// let (after, report) = plan(fs.volume().superblock(), &tuning)?;
/// assert_eq!(after.reserved_blocks_count, after.blocks_count / 100);
/// assert_eq!(report.changes.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn plan(before: &Superblock, tuning: &Tuning) -> Result<(Superblock, TuneReport), TuneFault> {
    let mut sb = before.clone();
    let mut notes = Vec::new();
    if let Some(label) = &tuning.label {
        sb.volume_name = text("label", label, LABEL_MAX)?;
    }
    // Before the UUID: a feature that the same command turns on decides about checksums.
    for (name, on) in &tuning.features {
        set_feature(&mut sb, name, *on, &mut notes)?;
    }
    if let Some(uuid) = tuning.uuid {
        set_uuid(&mut sb, uuid, &mut notes)?;
    }
    set_reserve(&mut sb, tuning)?;
    if let Some(errors) = tuning.errors {
        sb.errors = match errors {
            OnError::Continue => 1,
            OnError::ReadOnly => 2,
            OnError::Panic => 3,
        };
    }
    for (name, on) in &tuning.mount_options {
        set_mount_option(&mut sb, name, *on)?;
    }
    if let Some(options) = &tuning.mount_options_text {
        sb.mount_opts = text("mount_opts", options, 63)?;
    }
    if let Some(count) = tuning.mounts_until_check {
        // All ones are "never", as tune2fs writes it.
        sb.max_mnt_count = if count == 0 { u16::MAX } else { count };
    }
    if let Some(count) = tuning.mount_count {
        sb.mnt_count = count;
    }
    if let Some(seconds) = tuning.check_interval_seconds {
        sb.checkinterval = seconds;
    }
    if let Some(time) = tuning.last_check {
        sb.lastcheck = time;
    }
    if let Some(dir) = &tuning.last_mounted {
        sb.last_mounted = text("last mounted", dir, 63)?;
    }
    if let Some(hash) = tuning.hash {
        sb.def_hash_version = hash.code();
    }
    if let Some(stride) = tuning.stride {
        sb.raid_stride = stride;
    }
    if let Some(width) = tuning.stripe_width {
        sb.raid_stripe_width = width;
    }
    if let Some(on) = tuning.test_fs {
        sb.flags = if on { sb.flags | FLAG_TEST_FILESYS } else { sb.flags & !FLAG_TEST_FILESYS };
    }
    let changes = changes(before, &sb);
    Ok((sb, TuneReport { changes, notes }))
}

fn refused<T>(parameter: &'static str, why: impl Into<String>) -> Result<T, TuneFault> {
    Err(TuneFault::Refused { parameter, why: why.into() })
}

/// A text field of `N` bytes that holds at most `max` of them, without zero bytes.
fn text<const N: usize>(parameter: &'static str, bytes: &[u8], max: usize) -> Result<[u8; N], TuneFault> {
    if bytes.len() > max {
        return refused(parameter, format!("{} bytes; there is room for {max}", bytes.len()));
    }
    if bytes.contains(&0) {
        return refused(parameter, "contains a zero byte");
    }
    let mut field = [0; N];
    field[..bytes.len()].copy_from_slice(bytes);
    Ok(field)
}

fn set_uuid(sb: &mut Superblock, uuid: [u8; 16], notes: &mut Vec<String>) -> Result<(), TuneFault> {
    if uuid == sb.uuid {
        return Ok(());
    }
    if sb.features.has_compat(Features::STABLE_INODES) {
        return refused(
            "UUID",
            "the file system has the feature stable_inodes: encrypted files depend on the UUID",
        );
    }
    if sb.features.has_compat(Features::HAS_JOURNAL) && sb.journal_inum == 0 {
        return refused(
            "UUID",
            "the external journal lists the UUIDs of its file systems, and would not be found",
        );
    }
    if sb.features.has_incompat(Features::EA_INODE) && !sb.features.metadata_csum() {
        return refused(
            "UUID",
            "the values of attributes in inodes of their own (ea_inode) depend on the UUID; turn \
             metadata_csum on first",
        );
    }
    if sb.set_uuid(uuid) {
        notes.push(
            "metadata_csum_seed was turned on: checksums keep the seed of the old UUID (needs Linux 4.4)"
                .to_owned(),
        );
    }
    Ok(())
}

fn set_reserve(sb: &mut Superblock, tuning: &Tuning) -> Result<(), TuneFault> {
    match tuning.reserved {
        None => {}
        Some(Reserved::Percent(percent)) if (0.0..=50.0).contains(&percent) => {
            sb.reserved_blocks_count = (percent * sb.blocks_count as f64 / 100.0) as u64;
        }
        Some(Reserved::Percent(percent)) => {
            return refused("reserved blocks", format!("{percent} per cent; it is 0 to 50"));
        }
        Some(Reserved::Blocks(blocks)) if blocks <= sb.blocks_count / 2 => sb.reserved_blocks_count = blocks,
        Some(Reserved::Blocks(blocks)) => {
            let half = sb.blocks_count / 2;
            return refused("reserved blocks", format!("{blocks}; at most half of all blocks, {half}"));
        }
    }
    if let Some(user) = tuning.reserved_user {
        sb.def_resuid = user;
    }
    if let Some(group) = tuning.reserved_group {
        sb.def_resgid = group;
    }
    Ok(())
}

fn set_mount_option(sb: &mut Superblock, name: &str, on: bool) -> Result<(), TuneFault> {
    let Some((_, bits)) = MOUNT_OPTIONS.iter().find(|(known, _)| *known == name) else {
        let known: Vec<&str> = MOUNT_OPTIONS.iter().map(|(known, _)| *known).collect();
        return refused(
            "mount options",
            format!("no option is called \"{name}\"; known are: {}", known.join(" ")),
        );
    };
    let is_mode = bits & default_options::JOURNAL_MODE != 0;
    let mask = if is_mode { default_options::JOURNAL_MODE } else { *bits };
    match on {
        true => sb.default_mount_opts = sb.default_mount_opts & !mask | bits,
        false if is_mode && sb.default_mount_opts & mask != *bits => {}
        false => sb.default_mount_opts &= !mask,
    }
    Ok(())
}

fn set_feature(sb: &mut Superblock, name: &str, on: bool, notes: &mut Vec<String>) -> Result<(), TuneFault> {
    let Some(feature) = Feature::by_name(name) else {
        return refused("features", format!("no feature is called \"{name}\""));
    };
    let name = feature.name;
    if sb.features.has(feature) == on {
        return Ok(());
    }
    match CHANGEABLE.iter().find(|(known, _)| *known == name) {
        Some((_, may_be_off)) if on || *may_be_off => {}
        Some(_) => return refused("features", format!("{name} cannot be turned off: files may use it")),
        None => {
            let known = CHANGEABLE.iter().chain(CONVERTIBLE).map(|(known, _)| *known);
            let why = format!(
                "{name} needs changes outside the superblock, which `tune` does not make; it changes: {}",
                known.collect::<Vec<_>>().join(" ")
            );
            return refused("features", why);
        }
    }
    let needs = |holds: bool, what: &str| match holds {
        true => Ok(()),
        false => refused("features", format!("{name} needs {what}")),
    };
    match (feature.word, feature.bit) {
        (Word::Compat, Features::FAST_COMMIT) if on => {
            needs(sb.features.has_compat(Features::HAS_JOURNAL), "a journal")?;
        }
        (Word::Incompat, Features::CSUM_SEED) if on => {
            needs(sb.features.metadata_csum(), "metadata_csum")?;
            sb.checksum_seed = sb.fs_seed();
        }
        (Word::Incompat, Features::CSUM_SEED) => {
            let mut without = sb.clone();
            without.features.set(feature, false);
            if without.fs_seed() != sb.fs_seed() {
                return refused(
                    "features",
                    "metadata_csum_seed cannot be turned off: the UUID has changed since, and all checksums \
                     depend on the stored seed",
                );
            }
            sb.checksum_seed = 0;
        }
        (Word::Incompat, Features::LARGEDIR) => {
            needs(sb.features.has_compat(Features::DIR_INDEX), "dir_index")?;
        }
        (Word::Incompat, Features::EA_INODE) => {
            needs(sb.inode_bytes() > 128, "inodes of more than 128 bytes")?;
        }
        (Word::Incompat, Features::ENCRYPT) => {
            // The ciphers of mke2fs: AES-256-XTS for contents, AES-256-CTS for names.
            sb.encrypt_algos = [1, 4, 0, 0];
            notes.push("extant reads the names of encrypted files, not their contents".to_owned());
        }
        (Word::RoCompat, Features::VERITY) => {
            needs(sb.features.has_incompat(Features::EXTENTS), "extent")?;
        }
        (Word::RoCompat, Features::EXTRA_ISIZE) => {
            needs(sb.inode_bytes() > 128, "inodes of more than 128 bytes")?;
            // `min_extra_isize` would be a promise about the inodes that exist.
            if sb.want_extra_isize == 0 {
                sb.want_extra_isize = EXTRA_ISIZE;
            }
        }
        _ => {}
    }
    if sb.rev_level == 0 {
        return refused("features", "the file system has revision 0, which has no features");
    }
    sb.features.set(feature, on);
    Ok(())
}

type Shown = (&'static str, fn(&Superblock) -> String);

/// Fields as text, in the order of `dumpe2fs -h`.
const FIELDS: &[Shown] = &[
    ("label", |sb| shown(sb.label())),
    ("last mounted", |sb| shown(until_nul(&sb.last_mounted))),
    ("UUID", |sb| uuid(&sb.uuid)),
    ("features", |sb| sb.features.to_string()),
    ("flags", |sb| format!("{:#x}", sb.flags)),
    ("default mount options", |sb| mount_options(sb.default_mount_opts)),
    ("mount options as text", |sb| shown(until_nul(&sb.mount_opts))),
    ("errors", |sb| match sb.errors {
        1 => "continue".to_owned(),
        2 => "remount-ro".to_owned(),
        3 => "panic".to_owned(),
        other => other.to_string(),
    }),
    ("reserved blocks", |sb| sb.reserved_blocks_count.to_string()),
    ("reserved user", |sb| sb.def_resuid.to_string()),
    ("reserved group", |sb| sb.def_resgid.to_string()),
    ("mount count", |sb| sb.mnt_count.to_string()),
    ("mounts until a check", |sb| match sb.max_mnt_count {
        0 | u16::MAX => "never".to_owned(),
        count => count.to_string(),
    }),
    ("last check", |sb| sb.lastcheck.to_string()),
    ("check interval in seconds", |sb| sb.checkinterval.to_string()),
    ("wanted extra isize", |sb| sb.want_extra_isize.to_string()),
    ("hash", |sb| match sb.def_hash_version {
        0 => "legacy".to_owned(),
        1 => "half_md4".to_owned(),
        2 => "tea".to_owned(),
        other => other.to_string(),
    }),
    ("stride", |sb| sb.raid_stride.to_string()),
    ("stripe width", |sb| sb.raid_stripe_width.to_string()),
    ("inode size", |sb| sb.inode_bytes().to_string()),
    ("reserved descriptor blocks", |sb| sb.reserved_gdt_blocks.to_string()),
    ("journal inode", |sb| sb.journal_inum.to_string()),
    ("journal bytes", |sb| match sb.jnl_backup_type {
        1 => (u64::from(sb.jnl_blocks[15]) << 32 | u64::from(sb.jnl_blocks[16])).to_string(),
        _ => "unknown".to_owned(),
    }),
    ("orphan file inode", |sb| sb.orphan_file_inum.to_string()),
    ("user quota inode", |sb| sb.usr_quota_inum.to_string()),
    ("group quota inode", |sb| sb.grp_quota_inum.to_string()),
    ("project quota inode", |sb| sb.prj_quota_inum.to_string()),
    ("checksum seed", |sb| format!("{:#010x}", sb.checksum_seed)),
];

fn changes(before: &Superblock, after: &Superblock) -> Vec<FieldChange> {
    let both = FIELDS.iter().map(|(field, text)| (*field, text(before), text(after)));
    let changed = both.filter(|(_, before, after)| before != after);
    changed.map(|(field, before, after)| FieldChange { field, before, after }).collect()
}

/// Different bytes give different texts.
fn shown(bytes: &[u8]) -> String {
    std::str::from_utf8(bytes).map_or_else(|_| bytes.escape_ascii().to_string(), str::to_owned)
}

fn uuid(bytes: &[u8; 16]) -> String {
    if *bytes == [0; 16] {
        return "none".to_owned();
    }
    extant_ondisk::superblock::uuid_text(bytes)
}

fn mount_options(bits: u32) -> String {
    let mode = bits & default_options::JOURNAL_MODE;
    let is_set = |option: u32| match option & default_options::JOURNAL_MODE {
        0 => bits & option != 0,
        _ => option == mode,
    };
    let names: Vec<&str> =
        MOUNT_OPTIONS.iter().filter(|(_, bit)| is_set(*bit)).map(|(name, _)| *name).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base() -> Superblock {
        Superblock {
            blocks_count: 100_000,
            rev_level: 1,
            inode_size: 256,
            journal_inum: 8,
            uuid: [7; 16],
            features: Features {
                compat: Features::DIR_INDEX | Features::HAS_JOURNAL,
                incompat: Features::EXTENTS,
                ro_compat: Features::METADATA_CSUM,
            },
            ..Superblock::default()
        }
    }

    fn refusal(sb: &Superblock, tuning: &Tuning) -> String {
        plan(sb, tuning).unwrap_err().to_string()
    }

    #[test]
    fn a_new_uuid_keeps_the_seed_of_all_checksums() {
        let before = base();
        let (after, report) = plan(&before, &Tuning { uuid: Some([8; 16]), ..Tuning::default() }).unwrap();
        assert_eq!((after.fs_seed(), after.uuid), (before.fs_seed(), [8; 16]));
        assert_eq!(report.notes.len(), 1);
        // Now the seed no longer follows from the UUID.
        let off = Tuning { features: vec![("metadata_csum_seed".to_owned(), false)], ..Tuning::default() };
        assert!(refusal(&after, &off).contains("the UUID has changed since"));
        // Back to the old UUID it does.
        let (back, _) = plan(&after, &Tuning { uuid: Some([7; 16]), ..Tuning::default() }).unwrap();
        let (back, _) = plan(&back, &off).unwrap();
        assert_eq!(back, before);
    }

    #[test]
    fn the_journals_modes_exclude_each_other() {
        let set = |sb: &Superblock, name: &str, on| {
            let tuning = Tuning { mount_options: vec![(name.to_owned(), on)], ..Tuning::default() };
            plan(sb, &tuning).unwrap().0
        };
        let journal = set(&base(), "journal_data", true);
        let writeback = set(&journal, "journal_data_writeback", true);
        assert_eq!(mount_options(writeback.default_mount_opts), "journal_data_writeback");
        assert_eq!(set(&writeback, "journal_data", false), writeback, "another mode is set");
        assert_eq!(
            mount_options(set(&writeback, "journal_data_writeback", false).default_mount_opts),
            "none"
        );
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_reason() {
        let features = |name: &str, on| Tuning { features: vec![(name.to_owned(), on)], ..Tuning::default() };
        assert!(refusal(&base(), &features("large_file2", true)).contains("no feature is called"));
        assert!(refusal(&base(), &features("bigalloc", true)).contains("outside the superblock"));
        assert!(refusal(&base(), &features("dir_index", false)).contains("cannot be turned off"));
        let label = Tuning { label: Some(vec![b'x'; 17]), ..Tuning::default() };
        assert_eq!(refusal(&base(), &label), "label: 17 bytes; there is room for 16");
        let reserved = Tuning { reserved: Some(Reserved::Percent(51.0)), ..Tuning::default() };
        assert_eq!(refusal(&base(), &reserved), "reserved blocks: 51 per cent; it is 0 to 50");
        let mut stable = base();
        stable.features.compat |= Features::STABLE_INODES;
        let uuid = Tuning { uuid: Some([8; 16]), ..Tuning::default() };
        assert!(refusal(&stable, &uuid).contains("stable_inodes"));
    }
}
