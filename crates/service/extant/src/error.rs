//! Errors of the library, with the path of the operation.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use extant_volume::{Fault, OpenFault, Refusal};

/// Why an operation failed, and on which path.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// # let fs = extant::open(&image)?;
/// use extant::Error;
///
/// match fs.read("/etc/absent") {
///     Err(Error::At { path, fault }) => assert_eq!((&*path, fault.errno()), (&b"/etc/absent"[..], 2)),
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file that holds the image cannot be opened.
    #[error("{}: {source}", .image.display())]
    Image {
        /// The file.
        image: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The image holds no file system that can be read, or none that can be written if it was opened for
    /// writing.
    #[error("{}: {source}", .image.display())]
    Open {
        /// The file.
        image: PathBuf,
        /// Why the image cannot be opened.
        source: OpenFault,
    },
    /// An operation on a path of the file system failed.
    #[error("{}: {fault}", Shown(.path))]
    At {
        /// The path as the caller passed it.
        path: Vec<u8>,
        /// The fault.
        fault: Fault,
    },
    /// An operation on two paths of the file system failed.
    #[error("{} -> {}: {fault}", Shown(.from), Shown(.to))]
    Between {
        /// The first path, as the caller passed it.
        from: Vec<u8>,
        /// The second path.
        to: Vec<u8>,
        /// The fault.
        fault: Fault,
    },
    /// The file does not fit into memory at once; read it in pieces through a [`File`](crate::File).
    #[error("{}: {len} bytes do not fit into memory; read the file in pieces", Shown(.path))]
    TooLarge {
        /// The path as the caller passed it.
        path: Vec<u8>,
        /// Its size in bytes.
        len: u64,
    },
}

impl Error {
    pub(crate) fn at(path: &[u8]) -> impl Fn(Fault) -> Self + '_ {
        move |fault| Self::At { path: path.to_vec(), fault }
    }

    pub(crate) fn between<'a>(from: &'a [u8], to: &'a [u8]) -> impl Fn(Fault) -> Self + 'a {
        move |fault| Self::Between { from: from.to_vec(), to: to.to_vec(), fault }
    }

    /// The fault of the operation; `None` if the image could not be opened or the file is too large.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// use extant::{Fault, Refusal};
    ///
    /// let error = fs.read("/etc").unwrap_err();
    /// assert!(matches!(error.fault(), Some(Fault::Refused(Refusal::IsDirectory))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn fault(&self) -> Option<&Fault> {
        match self {
            Self::At { fault, .. } | Self::Between { fault, .. } => Some(fault),
            Self::Image { .. } | Self::Open { .. } | Self::TooLarge { .. } => None,
        }
    }

    /// The path in the file system, as the caller passed it; of an operation on two paths, the first one.
    /// `None` if the image could not be opened.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (kept, image) = example::example_image();
    /// let error = extant::open(&image)?.read("/etc/absent").unwrap_err();
    /// assert_eq!(error.path(), Some(&b"/etc/absent"[..]));
    /// let error = extant::open("absent.img").unwrap_err();
    /// assert_eq!((error.path(), error.image()), (None, Some("absent.img".as_ref())));
    /// # Ok::<(), extant::Error>(())
    /// ```
    #[must_use]
    pub fn path(&self) -> Option<&[u8]> {
        match self {
            Self::At { path, .. } | Self::TooLarge { path, .. } => Some(path),
            Self::Between { from, .. } => Some(from),
            Self::Image { .. } | Self::Open { .. } => None,
        }
    }

    /// The file that could not be opened as an image.
    ///
    /// ```
    /// let error = extant::open("absent.img").unwrap_err();
    /// assert_eq!(error.image(), Some("absent.img".as_ref()));
    /// ```
    #[must_use]
    pub fn image(&self) -> Option<&Path> {
        match self {
            Self::Image { image, .. } | Self::Open { image, .. } => Some(image),
            Self::At { .. } | Self::Between { .. } | Self::TooLarge { .. } => None,
        }
    }

    /// The number that the kernel would return for the same failure; for an image that cannot be opened,
    /// [`OpenFault::errno`]. `None` if the operating system's error has no number.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (kept, image) = example::example_image();
    /// let error = extant::open(&image)?.read("/etc/absent").unwrap_err();
    /// assert_eq!(error.errno(), Some(2)); // ENOENT
    /// std::fs::write(&image, [0; 65536])?;
    /// let error = extant::open(&image).unwrap_err();
    /// assert_eq!(error.errno(), Some(22)); // EINVAL: no file system
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Image { source, .. } => source.raw_os_error(),
            Self::Open { source, .. } => Some(source.errno()),
            Self::At { fault, .. } | Self::Between { fault, .. } => Some(fault.errno()),
            // ENOMEM
            Self::TooLarge { .. } => Some(12),
        }
    }

    /// Whether the operation was refused for this reason.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// use extant::Refusal;
    ///
    /// assert!(fs.read("/absent").unwrap_err().is(Refusal::NotFound));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is(&self, refusal: Refusal) -> bool {
        self.fault().is_some_and(|fault| fault.is(refusal))
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Image { source, .. } => source.kind(),
            Error::Open {
                source:
                    OpenFault::NotExt4(_)
                    | OpenFault::Overwritten(_)
                    | OpenFault::Damaged(_)
                    | OpenFault::Journal(_),
                ..
            } => io::ErrorKind::InvalidData,
            Error::Open { source, .. } => io::Error::from_raw_os_error(source.errno()).kind(),
            Error::At { fault, .. } | Error::Between { fault, .. } => fault_kind(fault),
            Error::TooLarge { .. } => io::ErrorKind::OutOfMemory,
        };
        Self::new(kind, error)
    }
}

/// The standard library's kind for a fault.
pub(crate) fn fault_kind(fault: &Fault) -> io::ErrorKind {
    match fault {
        Fault::Corrupt(_) => io::ErrorKind::InvalidData,
        other => io::Error::from_raw_os_error(other.errno()).kind(),
    }
}

/// Displays a path with control characters escaped, so that a name in an image cannot send them to a
/// terminal.
pub(crate) struct Shown<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if c.is_control() { write!(f, "{}", c.escape_default())? } else { write!(f, "{c}")? }
            }
            for byte in chunk.invalid() {
                write!(f, "\\{byte:03o}")?;
            }
        }
        Ok(())
    }
}
