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

use std::path::Path;
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
pub fn open(image: impl AsRef<Path>) -> Result<Rescue, RescueFault> {
    let image = image.as_ref();
    let device = FileDevice::open_read_only(image)
        .map_err(|error| RescueFault::Output(image.display().to_string(), error))?;
    Rescue::open(Arc::new(device), None)
}
