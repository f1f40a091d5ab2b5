//! Files from damaged images, deleted files, and dumps of metadata.
//!
//! Owns: this interface. Does **not** own: any of the work, which is in the crate `rescue`.
//!
//! ```
//! # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
//! # let (kept, image) = example::example_image();
//! use extant::rescue::{Confidence, DirectorySink, FoundFile, Rescue, RescueScope, RescueObserver, open};
//!
//! struct Lost(std::sync::atomic::AtomicUsize);
//! impl RescueObserver for Lost {
//!     fn found(&self, found: &FoundFile) {
//!         let is_lost = found.confidence == Confidence::Low;
//!         self.0.fetch_add(usize::from(is_lost), std::sync::atomic::Ordering::Relaxed);
//!     }
//! }
//! let to = kept.path().join("rescued");
//! std::fs::create_dir(&to)?;
//! let lost = Lost(0.into());
//! let mut sink = DirectorySink::new(&to)?;
//! open(&image)?.run(RescueScope::default(), &mut sink, &lost)?;
//! sink.finish()?;
//! assert_eq!(lost.0.into_inner(), 0);
//! assert!(std::fs::read_dir(&to)?.count() > 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "qcow2")]
use std::fs::File;
use std::path::Path;
#[cfg(feature = "repair")]
use std::sync::Arc;

use extant_device::FileDevice;
pub use extant_rescue::{
    Confidence, DirectorySink, DumpReport, FoundFile, Rescue, RescueFault, RescueObserver, RescueScope,
    RescueSink, TarSink,
};

/// Opens an image file or a block device, however damaged it is.
///
/// # Errors
/// The file cannot be opened; [`RescueFault::NoSuperblock`].
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// use extant::rescue::{FoundFile, RescueObserver, RescueScope, open};
///
/// struct Print;
/// impl RescueObserver for Print {
///     fn found(&self, found: &FoundFile) {
///         println!("{}: {}", String::from_utf8_lossy(&found.shown()), found.confidence.name());
///     }
/// }
/// # let out = tempfile::tempdir()?;
/// let mut sink = extant::rescue::DirectorySink::new(out.path())?;
/// open(&image)?.run(RescueScope { deleted: true, since: None }, &mut sink, &Print)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn open(image: impl AsRef<Path>) -> Result<Rescue, RescueFault> {
    let image = image.as_ref();
    let device = FileDevice::open_read_only(image)
        .and_then(crate::disk_of)
        .map_err(|error| RescueFault::Output(image.display().to_string(), error))?;
    Rescue::open(device, None)
}

/// Writes a dump in the format qcow2 into an empty file: only blocks with metadata take space in it, also
/// where files have no holes. Raw dumps: [`Rescue::dump`].
///
/// # Errors
/// The file cannot be written, or the observer stopped the work.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (kept, image) = example::example_image();
/// use extant::rescue::{dump_qcow2, open};
///
/// let path = kept.path().join("dump.qcow2");
/// let scrambled = dump_qcow2(&open(&image)?, &std::fs::File::create_new(&path)?, true, &())?;
/// assert!(scrambled.names > 0 && open(&path)?.is_scrambled());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "qcow2")]
pub fn dump_qcow2(
    rescue: &Rescue,
    file: &File,
    scramble: bool,
    observer: &dyn RescueObserver,
) -> Result<DumpReport, RescueFault> {
    let failed = |why| RescueFault::Output("dump".to_owned(), why);
    let copy = file.try_clone().map_err(failed)?;
    let output = extant_qcow2::Qcow2::create(copy, rescue.size_bytes(), rescue.block_bytes());
    let output = output.map_err(failed)?;
    let report = rescue.dump(&output, scramble, observer)?;
    output.finish().map_err(failed)?;
    Ok(report)
}

/// Why a dump is not restored.
///
/// ```
/// use extant::rescue::RestoreFault;
///
/// let fault = RestoreFault::Small { dump: 4096, image: 1024 };
/// assert!(fault.to_string().contains("only 1024"));
/// ```
#[cfg(feature = "repair")]
#[derive(Debug, thiserror::Error)]
pub enum RestoreFault {
    /// The names in the dump are not those of the files.
    #[error("the names in the dump are scrambled: restoring would rename all files")]
    Scrambled,
    /// The dump is of another file system.
    #[error("the dump is of the file system {dump}, and the image has {image}")]
    Other {
        /// UUID in the dump.
        dump: String,
        /// UUID in the image.
        image: String,
    },
    /// The image has no file system of ext4, but something else.
    #[error("the image has no ext4 file system: this is {0}")]
    Foreign(&'static str),
    /// The image has fewer bytes than the file system in the dump.
    #[error("the file system in the dump has {dump} bytes, and the image only {image}")]
    Small {
        /// Bytes of the dump's file system.
        dump: u64,
        /// Bytes of the image.
        image: u64,
    },
    /// The dump cannot be read.
    #[error(transparent)]
    Dump(#[from] RescueFault),
    /// The image cannot be read or written.
    #[error(transparent)]
    Image(#[from] crate::repair::RepairFault),
}

/// Plans to write the metadata of a dump back into an image of the same file system; contents of files stay.
/// The file system is then as it was when the dump was made. Files that were written or deleted after it may
/// have wrong contents. [`Repair::write`](crate::repair::Repair::write) writes the plan, through an undo file
/// if there is one. With `force` also into an image that has another file system.
///
/// # Errors
/// [`RestoreFault`]; nothing has been written.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (kept, image) = example::example_image();
/// use std::sync::Arc;
/// use extant::rescue::{dump_qcow2, open, restore};
///
/// let dump = kept.path().join("dump.qcow2");
/// dump_qcow2(&open(&image)?, &std::fs::File::create_new(&dump)?, false, &())?;
/// // The first superblock and the descriptors are lost.
/// let device = Arc::new(extant::FileDevice::open(&image, true)?);
/// extant::Device::write_at(&*device, 0, &[0; 8192])?;
///
/// restore(&open(&dump)?, device.clone(), false)?.write(&*device, None)?;
/// assert_eq!(extant::open(&image)?.read("/etc/motd")?, b"hello\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "repair")]
pub fn restore(
    dump: &Rescue,
    image: Arc<dyn crate::Device>,
    force: bool,
) -> Result<crate::repair::Repair, RestoreFault> {
    if dump.is_scrambled() {
        return Err(RestoreFault::Scrambled);
    }
    if image.size_bytes() < dump.size_bytes() {
        return Err(RestoreFault::Small { dump: dump.size_bytes(), image: image.size_bytes() });
    }
    let disk = || crate::partition::partitions(&image).is_ok_and(|table| !table.partitions.is_empty());
    // An image without a readable superblock is one that needs the dump, unless it has something else.
    let there = Rescue::open(Arc::clone(&image), None).ok().map(|rescue| rescue.superblock().uuid);
    let uuid = dump.superblock().uuid;
    if let Some(there) = there.filter(|there| *there != uuid && !force) {
        let [dump, image] = [uuid, there].map(|uuid| crate::uuid_text(&uuid));
        return Err(RestoreFault::Other { dump, image });
    }
    if there.is_none() && !force {
        match extant_device::foreign::identify(&*image) {
            Some(foreign) => return Err(RestoreFault::Foreign(foreign.name)),
            None if disk() => return Err(RestoreFault::Foreign("a disk with partitions")),
            None => {}
        }
    }
    extant_repair::plan_writes(image, |overlay| Ok(dump.dump(&**overlay, false, &()).map(|_| ())?))
}
