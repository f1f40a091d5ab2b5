//! Why something could not be had, with the path that was asked for.

use std::fmt;
use std::io;
use std::path::PathBuf;

use extant_volume::{Fault, OpenFault, Refusal};

/// What went wrong, and where.
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
    /// The image holds no file system that can be read, or none that can be written when it was opened for
    /// that.
    #[error("{}: {source}", .image.display())]
    Open {
        /// The file.
        image: PathBuf,
        /// Why not.
        source: OpenFault,
    },
    /// An operation on a path of the file system failed.
    #[error("{}: {fault}", Shown(.path))]
    At {
        /// The path as it was asked for.
        path: Vec<u8>,
        /// Why.
        fault: Fault,
    },
    /// An operation on two paths of the file system failed.
    #[error("{} -> {}: {fault}", Shown(.from), Shown(.to))]
    Between {
        /// The first path, as it was asked for.
        from: Vec<u8>,
        /// The second.
        to: Vec<u8>,
        /// Why.
        fault: Fault,
    },
    /// The file does not fit into memory at once; read it in pieces through a [`File`](crate::File).
    #[error("{}: {len} bytes do not fit into memory; read the file in pieces", Shown(.path))]
    TooLarge {
        /// The path as it was asked for.
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

    /// What failed in the file system; `None` when it could not even be opened.
    #[must_use]
    pub fn fault(&self) -> Option<&Fault> {
        match self {
            Self::At { fault, .. } | Self::Between { fault, .. } => Some(fault),
            Self::Image { .. } | Self::Open { .. } | Self::TooLarge { .. } => None,
        }
    }

    /// Was it refused for this reason?
    #[must_use]
    pub fn is(&self, refusal: Refusal) -> bool {
        self.fault().is_some_and(|fault| fault.is(refusal))
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Image { source, .. } => source.kind(),
            Error::Open { .. } => io::ErrorKind::InvalidData,
            Error::At { fault, .. } | Error::Between { fault, .. } => fault_kind(fault),
            Error::TooLarge { .. } => io::ErrorKind::OutOfMemory,
        };
        Self::new(kind, error)
    }
}

/// The standard library's word for a fault.
pub(crate) fn fault_kind(fault: &Fault) -> io::ErrorKind {
    match fault {
        Fault::Corrupt(_) => io::ErrorKind::InvalidData,
        other => io::Error::from_raw_os_error(other.errno()).kind(),
    }
}

/// A path in a message: no control character of an image reaches a terminal.
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
