//! Open files and directories of an image.

use std::sync::{Arc, Mutex, PoisonError};

use extant::{Error, Fault, FileType, ReadDir};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::device::unlocked;
use crate::errors;
use crate::handles::Slot;
use crate::text::text_of;

/// An open regular file, at offsets.
#[pyclass(frozen, module = "extant_ext4._native")]
pub(crate) struct File {
    pub(crate) slot: Arc<Slot<extant::File>>,
    pub(crate) path: Vec<u8>,
}

impl Drop for File {
    fn drop(&mut self) {
        self.slot.close_in_destructor();
    }
}

impl File {
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&extant::File) -> Result<T, Fault> + Send,
    ) -> PyResult<T> {
        match unlocked(py, || self.slot.with(work)) {
            None => Err(errors::closed("file")),
            Some(done) => done.map_err(|fault| errors::of_fault(py, &fault, &self.path)),
        }
    }
}

#[pymethods]
impl File {
    /// Up to `len` bytes from an offset; fewer only at the end.
    fn read_at<'py>(&self, py: Python<'py>, offset: u64, len: u64) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.run(py, |file| {
            let len = len.min(file.len().saturating_sub(offset));
            let mut bytes = Vec::new();
            let Ok(len) = usize::try_from(len) else { return Ok(None) };
            if bytes.try_reserve_exact(len).is_err() {
                return Ok(None);
            }
            bytes.resize(len, 0);
            let got = file.read_at(&mut bytes, offset)?;
            bytes.truncate(got);
            Ok(Some(bytes))
        })?;
        match bytes {
            Some(bytes) => Ok(PyBytes::new(py, &bytes)),
            None => Err(errors::of(py, &Error::TooLarge { path: self.path.clone(), len })),
        }
    }

    fn write_at(&self, py: Python<'_>, offset: u64, content: &[u8]) -> PyResult<()> {
        self.run(py, |file| file.write_at(content, offset))
    }

    /// Writes at the end, and returns the new end.
    fn append(&self, py: Python<'_>, content: &[u8]) -> PyResult<u64> {
        self.run(py, |file| Ok(file.append(content)? + content.len() as u64))
    }

    fn truncate(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        self.run(py, |file| file.set_len(size))
    }

    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        self.run(py, |file| Ok(file.len()))
    }

    /// The offset of the first data, or of the first hole, at or after `offset`; None if there is none.
    fn seek_to(&self, py: Python<'_>, offset: u64, hole: bool) -> PyResult<Option<u64>> {
        self.run(py, |file| if hole { file.seek_hole(offset) } else { file.seek_data(offset) })
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, extant::File::sync_all)
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.slot.take()));
    }
}

/// The names of a directory, in pieces.
#[pyclass(frozen, module = "extant_ext4._native")]
pub(crate) struct Listing(pub(crate) Arc<Slot<Mutex<ReadDir>>>);

impl Drop for Listing {
    fn drop(&mut self) {
        self.0.close_in_destructor();
    }
}

/// Names of one piece.
const PIECE: usize = 1024;

#[pymethods]
impl Listing {
    /// The next names, each with its type (the bits of st_mode, 0 if unknown) and inode number. Empty at the
    /// end.
    fn piece<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let piece = unlocked(py, || {
            self.0.with(|names| {
                let mut names = names.lock().unwrap_or_else(PoisonError::into_inner);
                names.by_ref().take(PIECE).collect::<Result<Vec<_>, Error>>()
            })
        });
        let entries = piece.ok_or_else(|| errors::closed("file system"))?;
        let list = PyList::empty(py);
        for entry in entries.map_err(|error| errors::of(py, &error))? {
            list.append((text_of(py, entry.name())?, type_bits(entry.kind()), entry.ino().0))?;
        }
        Ok(list)
    }
}

/// The type in the bits of st_mode.
fn type_bits(kind: Option<FileType>) -> u16 {
    match kind {
        None | Some(FileType::Unknown) => 0,
        Some(FileType::Regular) => 0o100_000,
        Some(FileType::Directory) => 0o040_000,
        Some(FileType::Symlink) => 0o120_000,
        Some(FileType::CharDevice) => 0o020_000,
        Some(FileType::BlockDevice) => 0o060_000,
        Some(FileType::Fifo) => 0o010_000,
        Some(FileType::Socket) => 0o140_000,
    }
}
