//! Repairs a damaged file system that is not mounted.
//!
//! The whole repair is planned in memory first. It is written through an undo file, which restores the image
//! byte for byte.
//!
//! Owns: this interface. Does **not** own: any of the work, which is in the crates `repair` and `check`.
//!
//! ```
//! # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
//! # let (kept, image) = example::example_image();
//! use extant::repair::{RepairOptions, repair_image};
//!
//! let undo = image.with_extension("undo");
//! let repair = repair_image(&image, &RepairOptions::default(), Some(&undo))?;
//! assert!(repair.plan().is_empty(), "nothing to repair");
//! assert!(!undo.exists());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`undo_image`] takes a repair back.

use std::path::Path;
use std::sync::Arc;

use extant_device::{Device, FileDevice};
pub use extant_repair::{
    Fix, Left, Plan, Repair, RepairFault, RepairOptions, UndoFault, UndoFile, UndoState, plan_repair,
    undo_cut_repair,
};

/// Plans and writes the repair of the file system in an image file or on a block device. If `undo` belongs to
/// a repair that was cut, that one is undone first.
///
/// # Errors
/// The image cannot be opened or is in use; as [`plan_repair`] and [`Repair::write`].
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// use extant::repair::{RepairOptions, repair_image};
///
/// let done = repair_image(&image, &RepairOptions::default(), None)?;
/// assert_eq!(done.plan().total(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn repair_image(
    image: impl AsRef<Path>,
    options: &RepairOptions,
    undo: Option<&Path>,
) -> Result<Repair, RepairFault> {
    let device = FileDevice::open_locked(image.as_ref()).map_err(RepairFault::Image)?;
    repair(Arc::new(device), options, undo)
}

/// As [`repair_image`], of the file system on a device that nothing else uses.
///
/// # Errors
/// As [`plan_repair`] and [`Repair::write`].
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
/// # let memory = example::empty_memory(64 << 20);
/// use extant::Device;
/// use extant::repair::{RepairOptions, repair};
///
/// memory.write_at(1024 + 0xC, &[1, 0, 0, 0])?; // the number of free blocks in the superblock
/// let done = repair(memory.clone(), &RepairOptions::default(), None)?;
/// for fix in &done.plan().fixes {
///     println!("{}: {}: {}", fix.rule.code, fix.finding, fix.remedy);
/// }
/// assert!(done.plan().total() > 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn repair(
    device: Arc<dyn Device>,
    options: &RepairOptions,
    undo: Option<&Path>,
) -> Result<Repair, RepairFault> {
    if let Some(undo) = undo
        && undo_cut_repair(&device, undo)?
    {
        std::fs::remove_file(undo).map_err(RepairFault::Image)?;
    }
    let repair = plan_repair(Arc::clone(&device), options)?;
    repair.write(&*device, undo)?;
    Ok(repair)
}

/// Takes a repair back: writes the old bytes of an undo file into the image, byte for byte. With `force` also
/// over bytes that changed after the repair.
///
/// # Errors
/// The image cannot be opened or is in use; the undo file is damaged, or belongs to another image; the image
/// changed after the repair.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (kept, image) = example::example_image();
/// use std::os::unix::fs::FileExt;
/// use extant::repair::{RepairOptions, repair_image, undo_image};
///
/// // The number of free blocks in the superblock is wrong.
/// let file = std::fs::OpenOptions::new().write(true).open(&image)?;
/// file.write_all_at(&[1, 0, 0, 0], 1024 + 0xC)?;
/// let damaged = std::fs::read(&image)?;
/// let undo = image.with_extension("undo");
/// repair_image(&image, &RepairOptions::default(), Some(&undo))?;
/// assert!(std::fs::read(&image)? != damaged);
/// undo_image(&image, &undo, false)?;
/// assert!(std::fs::read(&image)? == damaged);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn undo_image(image: impl AsRef<Path>, undo: impl AsRef<Path>, force: bool) -> Result<(), RepairFault> {
    let device: Arc<dyn Device> =
        Arc::new(FileDevice::open_locked(image.as_ref()).map_err(RepairFault::Image)?);
    Ok(UndoFile::open(undo.as_ref())?.undo(&device, force)?)
}
