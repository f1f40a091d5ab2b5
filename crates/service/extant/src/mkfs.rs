//! Makes empty file systems as mke2fs makes them, without root.
//!
//! ```
//! use extant::mkfs::{FeatureEdit, FormatOptions, mkfs_image};
//!
//! # let kept = tempfile::tempdir()?;
//! # let image = kept.path().join("empty.img");
//! let options = FormatOptions {
//!     label: b"scratch".to_vec(),
//!     features: FeatureEdit::parse_list("quota,^resize_inode")?,
//!     ..FormatOptions::default()
//! };
//! let made = mkfs_image(&image, 64 << 20, &options)?;
//! assert_eq!(made.blocks * u64::from(made.block_size), 64 << 20);
//!
//! let fs = extant::open_writable(&image)?;
//! fs.write("/hello", b"world\n")?;
//! fs.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Owns: this interface, and the values that are random by default. Does **not** own: the layout and its
//! writing, which are in the crate `image`.

use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{SystemTime, UNIX_EPOCH};

use extant_device::{Device, FileDevice, NewFile};
use extant_image::mkfs::{EmptyTree, journal_was_dropped, plan, write_plan_watched};
pub use extant_image::mkfs::{Identity, MkfsFault};
pub use extant_image::options::{
    FeatureEdit, FormatOptions, Generation, JournalSize, QuotaTypes, Usage, default_features,
};
pub use extant_image::plan::PlanFault;
pub use extant_image::sizing::SizingFault;
pub use extant_image::write::{Meter, WriteFault};

/// Why no file system was made in a file.
///
/// ```
/// use extant::mkfs::{FormatOptions, MkfsImageFault, mkfs_image};
///
/// let failed = mkfs_image("/no-such-dir/a.img", 16 << 20, &FormatOptions::default());
/// assert!(matches!(failed, Err(MkfsImageFault::Image { .. })));
/// ```
#[derive(Debug, thiserror::Error)]
pub enum MkfsImageFault {
    /// The image file cannot be created or opened.
    #[error("{}: {source}", .image.display())]
    Image {
        /// The file.
        image: std::path::PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The options are invalid, or the device failed.
    #[error(transparent)]
    Mkfs(#[from] MkfsFault),
}

impl MkfsImageFault {
    /// Whether the caller ended the work: `cancel` became true.
    ///
    /// ```
    /// use extant::mkfs::{FormatOptions, mkfs_image};
    ///
    /// let failed = mkfs_image("/no-such-dir/a.img", 16 << 20, &FormatOptions::default());
    /// assert!(!failed.unwrap_err().is_interrupted());
    /// ```
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        matches!(self, Self::Mkfs(fault) if fault.is_interrupted())
    }
}

/// A file system that was made.
///
/// ```
/// use extant::mkfs::{FormatOptions, Made, mkfs_image};
///
/// # let kept = tempfile::tempdir()?;
/// # let image = kept.path().join("empty.img");
/// let made: Made = mkfs_image(&image, 16 << 20, &FormatOptions::default())?;
/// assert_eq!(made.blocks * u64::from(made.block_size), 16 << 20);
/// assert!(made.blocks_free < made.blocks && !made.journal_was_dropped);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Made {
    /// Bytes in a block.
    pub block_size: u32,
    /// Blocks of the file system.
    pub blocks: u64,
    /// Blocks that are not in use.
    pub blocks_free: u64,
    /// The number of inodes the file system has room for.
    pub inodes: u32,
    /// Block groups.
    pub groups: u32,
    /// UUID of the file system.
    pub uuid: [u8; 16],
    /// Bytes that were written to the device.
    pub written_bytes: u64,
    /// A journal was requested, but the file system is too small for one.
    pub journal_was_dropped: bool,
}

/// A random version-4 UUID, from getrandom(2).
///
/// # Errors
/// The system has no source of random bytes.
///
/// ```
/// let uuid = extant::mkfs::random_uuid()?;
/// assert_eq!((uuid[6] >> 4, extant::uuid_text(&uuid).len()), (4, 36));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn random_uuid() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    // A call returns up to 256 bytes, so all of them.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(extant_image::build::as_uuid(bytes))
}

/// A random identity with the current time; `options` may fix UUID and hash seed.
///
/// # Errors
/// As [`random_uuid`].
///
/// ```
/// use extant::mkfs::{FormatOptions, random_identity};
///
/// let options = FormatOptions { uuid: Some([7; 16]), ..FormatOptions::default() };
/// let identity = random_identity(&options)?;
/// assert_eq!(identity.uuid, [7; 16]);
/// assert!(identity.time > 1_700_000_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn random_identity(options: &FormatOptions) -> io::Result<Identity> {
    Ok(Identity {
        uuid: options.uuid.map_or_else(random_uuid, Ok)?,
        hash_seed: options.hash_seed.map_or_else(random_uuid, Ok)?,
        time: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
    })
}

/// Makes an empty file system of `bytes` bytes in a new file, with a [random identity](random_identity). The
/// file is sparse: only metadata takes space. It appears under its name when it is complete.
///
/// # Errors
/// The file exists ([`io::ErrorKind::AlreadyExists`]) or cannot be created; as [`mkfs`].
///
/// ```
/// use extant::mkfs::{FormatOptions, mkfs_image};
///
/// # let kept = tempfile::tempdir()?;
/// # let image = kept.path().join("empty.img");
/// mkfs_image(&image, 16 << 20, &FormatOptions::default())?;
/// let again = mkfs_image(&image, 16 << 20, &FormatOptions::default());
/// assert!(again.is_err(), "it exists");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn mkfs_image(
    image: impl AsRef<Path>,
    bytes: u64,
    options: &FormatOptions,
) -> Result<Made, MkfsImageFault> {
    let image = image.as_ref();
    let identity = random_identity(options)
        .map_err(|source| MkfsImageFault::Image { image: image.to_owned(), source })?;
    mkfs_image_as(image, bytes, options, identity, false)
}

/// As [`mkfs_image`], with this identity: the same options and identity make the same bytes. With `replace`,
/// an existing file is replaced in one step, unless it is in use.
///
/// # Errors
/// As [`mkfs_image`].
///
/// ```
/// use extant::mkfs::{FormatOptions, Identity, mkfs_image_as};
///
/// # let kept = tempfile::tempdir()?;
/// # let image = kept.path().join("empty.img");
/// let options = FormatOptions::default();
/// let identity = Identity { uuid: [7; 16], hash_seed: [9; 16], time: 1_700_000_000 };
/// mkfs_image_as(&image, 16 << 20, &options, identity, false)?;
/// let first = std::fs::read(&image)?;
/// mkfs_image_as(&image, 16 << 20, &options, identity, true)?;
/// assert!(first == std::fs::read(&image)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn mkfs_image_as(
    image: impl AsRef<Path>,
    bytes: u64,
    options: &FormatOptions,
    identity: Identity,
    replace: bool,
) -> Result<Made, MkfsImageFault> {
    mkfs_image_watched(image, bytes, options, identity, replace, &(), &AtomicBool::new(false))
}

/// As [`mkfs_image_as`], and reports progress: see [`Meter::advanced`]. The work ends when `cancel` becomes
/// true; then there is no new file, and an existing file is unchanged.
///
/// # Errors
/// As [`mkfs_image`]; [`WriteFault::Interrupted`].
///
/// ```
/// use std::sync::atomic::AtomicBool;
/// use extant::mkfs::{FormatOptions, mkfs_image_watched, random_identity};
///
/// # let kept = tempfile::tempdir()?;
/// # let image = kept.path().join("empty.img");
/// // Another thread, or the meter, sets this.
/// let cancel = AtomicBool::new(true);
/// let options = FormatOptions::default();
/// let identity = random_identity(&options)?;
/// let made = mkfs_image_watched(&image, 64 << 20, &options, identity, false, &(), &cancel);
/// assert!(made.unwrap_err().is_interrupted());
/// assert!(!image.exists());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn mkfs_image_watched(
    image: impl AsRef<Path>,
    bytes: u64,
    options: &FormatOptions,
    identity: Identity,
    replace: bool,
    meter: &dyn Meter,
    cancel: &AtomicBool,
) -> Result<Made, MkfsImageFault> {
    let image = image.as_ref();
    let failed = |source| MkfsImageFault::Image { image: image.to_owned(), source };
    if !replace && image.symlink_metadata().is_ok() {
        return Err(failed(io::ErrorKind::AlreadyExists.into()));
    }
    let new = NewFile::create(image).map_err(failed)?;
    new.file().set_len(bytes).map_err(failed)?;
    let device = new.file().try_clone().and_then(FileDevice::fresh).map_err(failed)?;
    let size = Size { bytes, is_fresh: true };
    let made = make(&device, size, options, identity, meter, cancel)?;
    new.publish(replace, true).map_err(failed)?;
    Ok(made)
}

/// Makes an empty file system on all of a device, whose old content is lost.
///
/// # Errors
/// [`MkfsFault::Sizing`] and [`MkfsFault::Plan`] if the options are invalid for this size: nothing is written
/// then. [`MkfsFault::Write`] if the device failed.
///
/// ```
/// use std::sync::Arc;
/// use extant::mkfs::{FormatOptions, mkfs, random_identity};
/// use extant::{FileSystem, MemDevice, OpenOptions};
///
/// let memory = Arc::new(MemDevice::new(16 << 20));
/// let options = FormatOptions::default();
/// mkfs(&*memory, &options, random_identity(&options)?)?;
/// let fs = FileSystem::from_device(memory, &OpenOptions::default())?;
/// assert!(fs.exists("/lost+found")?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn mkfs(device: &dyn Device, options: &FormatOptions, identity: Identity) -> Result<Made, MkfsFault> {
    mkfs_watched(device, options, identity, &(), &AtomicBool::new(false))
}

/// As [`mkfs`], and reports progress: see [`Meter::advanced`]. The work ends when `cancel` becomes true.
///
/// # Errors
/// As [`mkfs`]; [`WriteFault::Interrupted`]. The device then holds no file system.
///
/// ```
/// use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
/// use extant::MemDevice;
/// use extant::mkfs::{FormatOptions, Meter, mkfs_watched, random_identity};
///
/// #[derive(Default)]
/// struct Percent(AtomicU64);
/// impl Meter for Percent {
///     fn wrote(&self, _bytes: u64, _files: u64) {}
///     fn advanced(&self, name: &'static str, done: u64, total: u64) {
///         self.0.store(done * 100 / total, Ordering::Relaxed);
///     }
/// }
/// let (memory, percent) = (MemDevice::new(16 << 20), Percent::default());
/// let options = FormatOptions::default();
/// mkfs_watched(&memory, &options, random_identity(&options)?, &percent, &AtomicBool::new(false))?;
/// assert_eq!(percent.0.into_inner(), 100);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn mkfs_watched(
    device: &dyn Device,
    options: &FormatOptions,
    identity: Identity,
    meter: &dyn Meter,
    cancel: &AtomicBool,
) -> Result<Made, MkfsFault> {
    let size = Size { bytes: device.size_bytes(), is_fresh: device.is_fresh() };
    make(device, size, options, identity, meter, cancel)
}

/// The bytes to use of a device, and whether all of them are zero.
struct Size {
    bytes: u64,
    is_fresh: bool,
}

fn make(
    device: &dyn Device,
    size: Size,
    options: &FormatOptions,
    identity: Identity,
    meter: &dyn Meter,
    cancel: &AtomicBool,
) -> Result<Made, MkfsFault> {
    let tree = EmptyTree::new(identity.time, options.root_owner.unwrap_or((0, 0)));
    let input = tree.input(options, identity, size.is_fresh);
    let plan = plan(&input, size.bytes)?;
    let written = write_plan_watched(&plan, device, true, meter, cancel)?;
    let (sb, geometry) = (&plan.superblock, plan.geometry());
    Ok(Made {
        block_size: geometry.block_size.bytes() as u32,
        blocks: sb.blocks_count,
        blocks_free: sb.free_blocks_count,
        inodes: sb.inodes_count,
        groups: geometry.groups,
        uuid: sb.uuid,
        written_bytes: written.bytes,
        journal_was_dropped: journal_was_dropped(options, &plan),
    })
}
