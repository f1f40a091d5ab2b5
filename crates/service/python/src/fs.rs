//! An open file system: one method per call of the library, by paths.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;

use extant::{Error, FileType, Follow, OpenFault, OpenOptions, Refusal, Rename, SetAttr, Timestamp};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

use crate::device::{Place, Refused, in_object, unlocked};
use crate::errors;
use crate::files::{File, Listing};
use crate::handles::{Opened, Slot};
use crate::scan::{Scan, Source};
use crate::stat::Stat;
use crate::text::{bytes_of, text_of};

/// A file system by paths of the image. The Python class of the same name is the one for programs.
#[pyclass(frozen, module = "extant_ext4._native")]
pub(crate) struct FileSystem {
    slot: Slot<extant::FileSystem>,
    opened: Opened,
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        self.slot.close_in_destructor();
    }
}

/// A path of the image.
fn path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// Whether a symbolic link at the end of a path is followed.
fn following(follow: bool) -> Follow {
    if follow { Follow::Links } else { Follow::NotTheLast }
}

enum OpenError {
    Device(Refused),
    Fault(OpenFault),
}

/// Opens an image: the path of a file or block device (`str`), or a seekable binary file object.
#[pyfunction]
#[pyo3(signature = (image, writable=false, offset=0, size=None, no_recovery=false, cache_bytes=0))]
pub(crate) fn open(
    image: &Bound<'_, PyAny>,
    writable: bool,
    offset: u64,
    size: Option<u64>,
    no_recovery: bool,
    cache_bytes: usize,
) -> PyResult<FileSystem> {
    let (place, name) = Place::of(image, writable)?;
    let opened = unlocked(image.py(), || {
        let device = place.open(writable, offset, size).map_err(OpenError::Device)?;
        let options = OpenOptions { no_recovery, cache_bytes, ..OpenOptions::default() };
        let opened = match writable {
            true => extant::FileSystem::from_device_writable(device, &options),
            false => extant::FileSystem::from_device(device, &options),
        };
        opened.map_err(OpenError::Fault)
    });
    match opened {
        Ok(fs) => Ok(FileSystem { slot: Slot::new(fs), opened: Opened::default() }),
        Err(OpenError::Device(refused)) => Err(refused.to_python(&name)),
        Err(OpenError::Fault(fault)) => Err(errors::of_open(&fault, &name)),
    }
}

impl FileSystem {
    /// Runs an operation without the GIL.
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&extant::FileSystem) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        match unlocked(py, || self.slot.with(work)) {
            None => Err(errors::closed("file system")),
            Some(done) => done.map_err(|error| errors::of(py, &error)),
        }
    }

    /// An operation on one path.
    fn at<T: Send>(
        &self,
        name: &Bound<'_, PyAny>,
        work: impl FnOnce(&extant::FileSystem, &Path) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let bytes = bytes_of(name)?;
        self.run(name.py(), |fs| work(fs, path(&bytes)))
    }

    /// An operation on two paths.
    fn between<T: Send>(
        &self,
        from: &Bound<'_, PyAny>,
        to: &Bound<'_, PyAny>,
        work: impl FnOnce(&extant::FileSystem, &Path, &Path) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let (from_bytes, to_bytes) = (bytes_of(from)?, bytes_of(to)?);
        self.run(from.py(), |fs| work(fs, path(&from_bytes), path(&to_bytes)))
    }
}

#[pymethods]
impl FileSystem {
    /// Makes all changes durable and closes the file system with everything that is open in it.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if in_object() {
            // The garbage collector found it; see invariant 3 of `device`.
            let fs = self.slot.take();
            std::thread::spawn(move || fs.map(extant::FileSystem::close));
            return Ok(());
        }
        let closed = py.detach(|| {
            self.opened.close_all();
            self.slot.take().map_or(Ok(()), extant::FileSystem::close)
        });
        closed.map_err(|error| errors::of(py, &error))
    }

    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        py.detach(|| self.slot.is_closed())
    }

    #[getter]
    fn writable(&self, py: Python<'_>) -> PyResult<bool> {
        self.run(py, |fs| Ok(fs.is_writable()))
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, extant::FileSystem::sync)
    }

    fn trim(&self, py: Python<'_>, min_bytes: u64) -> PyResult<Option<u64>> {
        self.run(py, |fs| fs.trim(min_bytes))
    }

    /// The ten values of `os.statvfs_result`, and the file system's id.
    fn statfs(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        let (stat, writable) = self.run(py, |fs| Ok((fs.statfs()?, fs.is_writable())))?;
        let block = u64::from(stat.block_size);
        let (inodes, inodes_free) = (u64::from(stat.inodes), u64::from(stat.inodes_free));
        let flags = u64::from(!writable);
        let name_max = stat.name_max.into();
        Ok(vec![
            block,
            block,
            stat.blocks,
            stat.blocks_free,
            stat.blocks_available,
            inodes,
            inodes_free,
            inodes_free,
            flags,
            name_max,
            stat.fsid,
        ])
    }

    /// Label, UUID, block size, and what the journal held.
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (label, sb, recovery) = self.run(py, |fs| {
            let volume = fs.volume();
            Ok((volume.admin().label(), volume.superblock().clone(), volume.recovery().clone()))
        })?;
        let info = PyDict::new(py);
        info.set_item("label", text_of(py, &label)?)?;
        info.set_item("uuid", PyBytes::new(py, &sb.uuid))?;
        info.set_item("recovery_needed", recovery.needed)?;
        info.set_item("recovery_problems", recovery.problems)?;
        Ok(info)
    }

    fn stat(&self, name: &Bound<'_, PyAny>, follow: bool) -> PyResult<Stat> {
        self.at(name, |fs, path| match follow {
            true => fs.metadata(path),
            false => fs.symlink_metadata(path),
        })
        .map(Stat)
    }

    /// Type and permissions; None if there is no such path.
    fn mode(&self, name: &Bound<'_, PyAny>, follow: bool) -> PyResult<Option<u16>> {
        self.at(name, |fs, path| match fs.resolve(path, following(follow)) {
            Ok(inode) => Ok(Some(fs.volume().attributes().stat(&inode).mode)),
            Err(error) if error.is(Refusal::NotFound) || error.is(Refusal::NotDirectory) => Ok(None),
            Err(error) => Err(error),
        })
    }

    fn read<'py>(&self, name: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        let content = self.at(name, |fs, path| fs.read(path))?;
        Ok(PyBytes::new(name.py(), &content))
    }

    fn write(&self, name: &Bound<'_, PyAny>, content: &[u8]) -> PyResult<()> {
        self.at(name, |fs, path| fs.write(path, content).map(drop))
    }

    fn readlink<'py>(&self, name: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyString>> {
        let target = self.at(name, |fs, path| fs.read_link(path))?;
        text_of(name.py(), &target.into_os_string().into_vec())
    }

    fn listing(&self, name: &Bound<'_, PyAny>) -> PyResult<Listing> {
        let names = self.at(name, |fs, path| fs.read_dir(path))?;
        let slot = Arc::new(Slot::new(std::sync::Mutex::new(names)));
        self.opened.add(&slot);
        Ok(Listing(slot))
    }

    /// Opens a regular file. `create` makes a missing one, `exclusive` refuses an existing one.
    fn open_file(
        &self,
        name: &Bound<'_, PyAny>,
        create: bool,
        exclusive: bool,
        truncate: bool,
        mode: u16,
    ) -> PyResult<File> {
        let file = self.at(name, |fs, path| {
            if exclusive {
                fs.create(path, mode)?;
            }
            let file = match fs.file(path) {
                Err(error) if create && error.is(Refusal::NotFound) => {
                    match fs.create(path, mode) {
                        // Another thread made it.
                        Err(error) if error.is(Refusal::Exists) => {}
                        made => drop(made?),
                    }
                    fs.file(path)?
                }
                file => file?,
            };
            if truncate && !file.is_empty() {
                let at = |fault| Error::At { path: path.as_os_str().as_bytes().to_vec(), fault };
                file.set_len(0).map_err(at)?;
            }
            Ok(file)
        })?;
        let slot = Arc::new(Slot::new(file));
        self.opened.add(&slot);
        Ok(File { slot, path: bytes_of(name)? })
    }

    fn mkdir(&self, name: &Bound<'_, PyAny>, mode: u16) -> PyResult<()> {
        self.at(name, |fs, path| fs.create_dir(path, mode).map(drop))
    }

    fn makedirs(&self, name: &Bound<'_, PyAny>, mode: u16) -> PyResult<()> {
        self.at(name, |fs, path| fs.create_dir_all(path, mode).map(drop))
    }

    fn mknod(&self, name: &Bound<'_, PyAny>, mode: u16, device: (u32, u32)) -> PyResult<()> {
        let kind = match mode & 0o170_000 {
            0o020_000 => FileType::CharDevice,
            0o060_000 => FileType::BlockDevice,
            0o010_000 => FileType::Fifo,
            0o140_000 => FileType::Socket,
            _ => FileType::Regular,
        };
        let new = extant::New { kind, device, ..extant::New::file(mode & 0o7777) };
        self.at(name, |fs, path| fs.create_node(path, &new).map(drop))
    }

    fn symlink(&self, target: &Bound<'_, PyAny>, name: &Bound<'_, PyAny>) -> PyResult<()> {
        self.between(target, name, |fs, target, path| fs.symlink(target, path).map(drop))
    }

    fn link(&self, original: &Bound<'_, PyAny>, name: &Bound<'_, PyAny>) -> PyResult<()> {
        self.between(original, name, |fs, original, path| fs.hard_link(original, path))
    }

    fn unlink(&self, name: &Bound<'_, PyAny>) -> PyResult<()> {
        self.at(name, |fs, path| fs.remove_file(path))
    }

    fn rmdir(&self, name: &Bound<'_, PyAny>) -> PyResult<()> {
        self.at(name, |fs, path| fs.remove_dir(path))
    }

    fn rmtree(&self, name: &Bound<'_, PyAny>) -> PyResult<()> {
        self.at(name, |fs, path| fs.remove_dir_all(path))
    }

    fn rename(&self, from: &Bound<'_, PyAny>, to: &Bound<'_, PyAny>, replace: bool) -> PyResult<()> {
        let how = if replace { Rename::Replace } else { Rename::NoReplace };
        self.between(from, to, |fs, from, to| fs.rename_with(from, to, how))
    }

    fn truncate(&self, name: &Bound<'_, PyAny>, size: u64) -> PyResult<()> {
        self.at(name, |fs, path| fs.set_len(path, size).map(drop))
    }

    fn chmod(&self, name: &Bound<'_, PyAny>, mode: u16, follow: bool) -> PyResult<()> {
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        self.at(name, |fs, path| fs.set_attr(path, following(follow), &set).map(drop))
    }

    fn chown(
        &self,
        name: &Bound<'_, PyAny>,
        uid: Option<u32>,
        gid: Option<u32>,
        follow: bool,
    ) -> PyResult<()> {
        let set = SetAttr { uid, gid, ..SetAttr::default() };
        self.at(name, |fs, path| fs.set_attr(path, following(follow), &set).map(drop))
    }

    /// Sets times of seconds and nanoseconds.
    fn utime(
        &self,
        name: &Bound<'_, PyAny>,
        atime: (i64, u32),
        mtime: (i64, u32),
        follow: bool,
    ) -> PyResult<()> {
        let time = |(seconds, nanos)| Some(Timestamp { seconds, nanos });
        let set = SetAttr { atime: time(atime), mtime: time(mtime), ..SetAttr::default() };
        self.at(name, |fs, path| fs.set_attr(path, following(follow), &set).map(drop))
    }

    /// All extended attributes: names and values.
    fn xattrs<'py>(&self, name: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        let py = name.py();
        let list = PyList::empty(py);
        for attribute in self.at(name, |fs, path| fs.xattrs(path))? {
            list.append((text_of(py, &attribute.name)?, PyBytes::new(py, &attribute.value)))?;
        }
        Ok(list)
    }

    fn set_xattr(&self, name: &Bound<'_, PyAny>, key: &Bound<'_, PyAny>, value: &[u8]) -> PyResult<()> {
        let key = bytes_of(key)?;
        self.at(name, |fs, path| fs.set_xattr(path, &key, value))
    }

    fn remove_xattr(&self, name: &Bound<'_, PyAny>, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let key = bytes_of(key)?;
        self.at(name, |fs, path| fs.remove_xattr(path, &key))
    }

    /// Walks a tree. See the class `Scan`.
    #[pyo3(signature = (top, contents, max_bytes, sort, onerror))]
    fn scan(
        &self,
        top: &Bound<'_, PyAny>,
        contents: bool,
        max_bytes: Option<u64>,
        sort: bool,
        onerror: Option<Py<PyAny>>,
    ) -> PyResult<Scan> {
        let source = self.at(top, |fs, path| Source::start(fs, path, contents, sort))?;
        let slot = Arc::new(Slot::new(std::sync::Mutex::new(source)));
        self.opened.add(&slot);
        Ok(Scan::new(slot, &bytes_of(top)?, max_bytes, onerror))
    }
}
