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
use std::time::{SystemTime, UNIX_EPOCH};

use extant_device::{Device, FileDevice, NewFile};
use extant_image::mkfs::{EmptyTree, journal_was_dropped, plan, write_plan};
pub use extant_image::mkfs::{Identity, MkfsFault};
pub use extant_image::options::{
    FeatureEdit, FormatOptions, Generation, JournalSize, QuotaTypes, Usage, default_features,
};
pub use extant_image::plan::PlanFault;
pub use extant_image::sizing::SizingFault;
pub use extant_image::write::WriteFault;

/// Why no file system was made in a file.
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

/// A file system that was made.
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
pub fn mkfs_image_as(
    image: impl AsRef<Path>,
    bytes: u64,
    options: &FormatOptions,
    identity: Identity,
    replace: bool,
) -> Result<Made, MkfsImageFault> {
    let image = image.as_ref();
    let failed = |source| MkfsImageFault::Image { image: image.to_owned(), source };
    if !replace && image.symlink_metadata().is_ok() {
        return Err(failed(io::ErrorKind::AlreadyExists.into()));
    }
    let new = NewFile::create(image).map_err(failed)?;
    new.file().set_len(bytes).map_err(failed)?;
    let device = new.file().try_clone().and_then(FileDevice::fresh).map_err(failed)?;
    let made = make(&device, bytes, options, identity, true)?;
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
    make(device, device.size_bytes(), options, identity, device.is_fresh())
}

fn make(
    device: &dyn Device,
    bytes: u64,
    options: &FormatOptions,
    identity: Identity,
    is_fresh: bool,
) -> Result<Made, MkfsFault> {
    let tree = EmptyTree::new(identity.time, options.root_owner.unwrap_or((0, 0)));
    let input = tree.input(options, identity, is_fresh);
    let plan = plan(&input, bytes)?;
    let written = write_plan(&plan, device, true)?;
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
