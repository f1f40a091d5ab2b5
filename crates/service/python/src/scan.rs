//! A walk of a tree with what is in the files.
//!
//! The walk's threads read ahead. An item becomes a Python object only when the program takes it.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use extant::walk::{Contents, Data, Loaded, Order, WalkFault};
use extant::{Error, Fault, FileSystem, FileType, InodeRef};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple};

use crate::device::unlocked;
use crate::errors;
use crate::handles::Slot;
use crate::stat::Stat;
use crate::text::text_of;

/// Items that are taken from the walk at a time, without the GIL.
const PIECE: usize = 256;
/// Bytes per read of a file that the walk does not read ahead.
const READ_PIECE: usize = 4 << 20;

/// Where the items come from.
pub(crate) struct Source {
    fs: FileSystem,
    walk: Walk,
}

enum Walk {
    Names(extant::walk::Entries),
    Contents(Contents),
}

impl Source {
    pub(crate) fn start(fs: &FileSystem, top: &Path, contents: bool, sort: bool) -> Result<Self, Error> {
        let walk = fs.walk(top)?.order(if sort { Order::Names } else { Order::Stored });
        let walk = match contents {
            true => Walk::Contents(walk.contents()),
            false => Walk::Names(walk.into_iter()),
        };
        Ok(Self { fs: fs.clone(), walk })
    }

    /// The next items; empty at the end. A piece ends after a large file, so that at most one is in memory.
    fn piece(&mut self, max_bytes: Option<u64>) -> Vec<Item> {
        let mut items = Vec::new();
        while items.len() < PIECE {
            let item = match &mut self.walk {
                Walk::Names(entries) => match entries.next() {
                    None => break,
                    Some(Err(fault)) => Item::Fault(fault),
                    Some(Ok(entry)) => match entry.metadata() {
                        Ok(stat) => Item::Name(entry.path().to_vec(), stat),
                        Err(fault) => Item::Unreadable(entry.path().to_vec(), fault),
                    },
                },
                Walk::Contents(contents) => match contents.next() {
                    None => break,
                    Some(Err(fault)) => Item::Fault(fault),
                    Some(Ok(loaded)) => {
                        if needs_read(&loaded) && max_bytes.is_none_or(|max| loaded.stat.size <= max) {
                            let bytes = read_whole(&self.fs, &loaded.inode, loaded.stat.size);
                            items.push(Item::Read(Box::new(loaded), bytes));
                            break;
                        }
                        Item::Loaded(Box::new(loaded))
                    }
                },
            };
            items.push(item);
        }
        items
    }
}

/// Whether the walk left the content of a file to its caller: a large file, or a further name of a file.
fn needs_read(loaded: &Loaded) -> bool {
    match loaded.data {
        Data::Large => true,
        Data::None => loaded.stat.kind == FileType::Regular && loaded.stat.size > 0,
        Data::Ready(_) | Data::Target(_) | Data::Failed(_) => false,
    }
}

/// All bytes of a file; None if they do not fit into memory.
fn read_whole(fs: &FileSystem, inode: &InodeRef, size: u64) -> Result<Option<Vec<u8>>, Fault> {
    let mut bytes = Vec::new();
    let Ok(len) = usize::try_from(size) else { return Ok(None) };
    if bytes.try_reserve_exact(len).is_err() {
        return Ok(None);
    }
    while bytes.len() < len {
        let done = bytes.len();
        bytes.resize(len.min(done + READ_PIECE), 0);
        let got = fs.volume().files().read(inode, done as u64, &mut bytes[done..])?;
        bytes.truncate(done + got);
        if got == 0 {
            break;
        }
    }
    Ok(Some(bytes))
}

enum Item {
    Name(Vec<u8>, extant::Stat),
    Loaded(Box<Loaded>),
    /// With a content that the walk did not read.
    Read(Box<Loaded>, Result<Option<Vec<u8>>, Fault>),
    Unreadable(Vec<u8>, Fault),
    Fault(WalkFault),
}

/// An iterator over a tree: path, attributes, content.
#[pyclass(frozen, module = "extant_ext4._native")]
pub(crate) struct Scan {
    slot: Arc<Slot<Mutex<Source>>>,
    ready: Mutex<VecDeque<Item>>,
    /// The path of the top, with a slash at its end.
    top: Vec<u8>,
    max_bytes: Option<u64>,
    onerror: Option<Py<PyAny>>,
}

impl Drop for Scan {
    fn drop(&mut self) {
        self.slot.close_in_destructor();
    }
}

type Row<'py> = (Bound<'py, PyString>, Bound<'py, Stat>, Option<Bound<'py, PyBytes>>);

impl Scan {
    pub(crate) fn new(
        slot: Arc<Slot<Mutex<Source>>>,
        top: &[u8],
        max_bytes: Option<u64>,
        onerror: Option<Py<PyAny>>,
    ) -> Self {
        let mut top = top.to_vec();
        while top.last() == Some(&b'/') {
            top.pop();
        }
        top.push(b'/');
        Self { slot, ready: Mutex::default(), top, max_bytes, onerror }
    }

    fn next_item(&self, py: Python<'_>) -> PyResult<Option<Item>> {
        let taken = self.ready.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        if taken.is_some() {
            return Ok(taken);
        }
        let piece = unlocked(py, || {
            self.slot
                .with(|source| source.lock().unwrap_or_else(PoisonError::into_inner).piece(self.max_bytes))
        });
        let piece = piece.ok_or_else(|| errors::closed("file system"))?;
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.extend(piece);
        Ok(ready.pop_front())
    }

    /// The path in the image of a path below the top.
    fn path(&self, below: &[u8]) -> Vec<u8> {
        match below {
            b"" if self.top.len() > 1 => self.top[..self.top.len() - 1].to_vec(),
            _ => [&self.top, below].concat(),
        }
    }

    fn report(&self, py: Python<'_>, error: PyErr) -> PyResult<()> {
        match &self.onerror {
            None => Err(error),
            Some(onerror) => onerror.call1(py, (error.into_value(py),)).map(drop),
        }
    }

    fn row<'py>(
        &self,
        py: Python<'py>,
        below: &[u8],
        stat: extant::Stat,
        content: Option<&[u8]>,
    ) -> PyResult<Row<'py>> {
        let path = text_of(py, &self.path(below))?;
        Ok((path, Bound::new(py, Stat(stat))?, content.map(|bytes| PyBytes::new(py, bytes))))
    }

    fn loaded<'py>(&self, py: Python<'py>, loaded: &Loaded) -> PyResult<Row<'py>> {
        let content: Option<&[u8]> = match &loaded.data {
            Data::Ready(bytes) => Some(bytes),
            Data::Target(target) => Some(target),
            Data::None if loaded.stat.kind == FileType::Regular && loaded.stat.size == 0 => Some(b""),
            Data::None | Data::Large | Data::Failed(_) => None,
        };
        if let Data::Failed(fault) = &loaded.data {
            self.report(py, errors::of_fault(py, fault, &self.path(loaded.entry.path())))?;
        }
        self.row(py, loaded.entry.path(), loaded.stat.clone(), content)
    }
}

#[pymethods]
impl Scan {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        while let Some(item) = self.next_item(py)? {
            let row = match item {
                Item::Name(path, stat) => self.row(py, &path, stat, None)?,
                Item::Loaded(loaded) => self.loaded(py, &loaded)?,
                Item::Read(loaded, bytes) => {
                    let below = loaded.entry.path();
                    let bytes = match bytes {
                        Ok(Some(bytes)) => Some(bytes),
                        Ok(None) => {
                            let path = self.path(below);
                            let error = Error::TooLarge { path, len: loaded.stat.size };
                            self.report(py, errors::of(py, &error))?;
                            None
                        }
                        Err(fault) => {
                            self.report(py, errors::of_fault(py, &fault, &self.path(below)))?;
                            None
                        }
                    };
                    self.row(py, below, loaded.stat.clone(), bytes.as_deref())?
                }
                Item::Unreadable(below, fault) => {
                    self.report(py, errors::of_fault(py, &fault, &self.path(&below)))?;
                    continue;
                }
                Item::Fault(fault) => {
                    self.report(py, errors::of_walk(py, &fault, &self.path(&fault.path)))?;
                    continue;
                }
            };
            let (path, stat, content) = row;
            return (path, stat, content).into_pyobject(py).map(Some);
        }
        Ok(None)
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.slot.take()));
    }
}
