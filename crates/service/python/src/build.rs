//! Building images, with progress and cancelling.

use std::io::{self, BufReader, Read};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use extant::build::{
    BuildOptions, BuildTarget, Excludes, FormatOptions, IdMap, Meter, Observer, Owner, SizeChoice, Source,
    TarInput, XattrChoice, build_to,
};
use extant::mkfs::FeatureEdit;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

use crate::errors;
use crate::watch::{goes_on, watched};

/// Bytes per read of a file object with an archive.
const ARCHIVE_READ: usize = 256 << 10;

/// The counters of a build.
#[derive(Default)]
struct Done {
    step: Mutex<&'static str>,
    entries: AtomicU64,
    bytes: AtomicU64,
    files: AtomicU64,
    total_bytes: AtomicU64,
    total_files: AtomicU64,
}

impl Meter for Done {
    fn wrote(&self, bytes: u64, files: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.files.fetch_add(files, Ordering::Relaxed);
    }
}

impl Observer for Done {
    fn step(&self, name: &'static str) {
        *self.step.lock().unwrap_or_else(PoisonError::into_inner) = name;
    }

    fn read(&self, entries: u64) {
        self.entries.fetch_add(entries, Ordering::Relaxed);
    }

    fn writing(&self, total_bytes: u64, total_files: u64) {
        self.total_bytes.store(total_bytes, Ordering::Relaxed);
        self.total_files.store(total_files, Ordering::Relaxed);
    }
}

impl Done {
    /// Calls `progress` with the counters. False cancels.
    fn report(&self, py: Python<'_>, progress: &Py<PyAny>) -> PyResult<bool> {
        let step = *self.step.lock().unwrap_or_else(PoisonError::into_inner);
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let answer = progress.call1(
            py,
            (
                step,
                count(&self.entries),
                count(&self.bytes),
                count(&self.total_bytes),
                count(&self.files),
                count(&self.total_files),
            ),
        )?;
        goes_on(answer.bind(py))
    }
}

/// A Python file object as a reader.
struct ObjectReader(Py<PyAny>);

impl Read for ObjectReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = Python::try_attach(|py| {
            let read = self.0.bind(py).call_method1("read", (buf.len(),))?;
            let bytes: &[u8] = read.extract()?;
            let Some(into) = buf.get_mut(..bytes.len()) else {
                return Err(PyValueError::new_err("read() returned too much"));
            };
            into.copy_from_slice(bytes);
            Ok(bytes.len())
        });
        match read {
            None => Err(io::Error::other("the interpreter is shutting down")),
            Some(read) => read.map_err(|error| io::Error::other(error.to_string())),
        }
    }
}

/// A source: ("dir", path), ("tar", path or file object) or ("oci", path, reference).
fn source(item: &Bound<'_, PyAny>) -> PyResult<Source> {
    let (kind, place, reference): (String, Bound<'_, PyAny>, Option<String>) = item.extract()?;
    Ok(match kind.as_str() {
        "dir" => Source::Dir(place.extract::<PathBuf>()?),
        "oci" => Source::Oci { layout: place.extract::<PathBuf>()?, reference },
        _ if place.is_instance_of::<PyString>() => Source::Tar(TarInput::Path(place.extract()?)),
        _ => {
            let name = place.getattr("name").and_then(|name| name.extract::<String>());
            let name = name.unwrap_or_else(|_| "an archive".to_owned());
            let reader = BufReader::with_capacity(ARCHIVE_READ, ObjectReader(place.unbind()));
            Source::Tar(TarInput::Reader { name, reader: Box::new(reader) })
        }
    })
}

/// Options by name; a missing one or None has its default.
pub(crate) struct Options<'a, 'py>(pub(crate) &'a Bound<'py, PyDict>);

impl<'py> Options<'_, 'py> {
    fn item(&self, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(self.0.get_item(name)?.filter(|value| !value.is_none()))
    }

    fn text(&self, name: &str) -> PyResult<Option<String>> {
        self.item(name)?.map(|value| value.extract()).transpose()
    }

    pub(crate) fn number(&self, name: &str) -> PyResult<Option<u64>> {
        self.item(name)?.map(|value| value.extract()).transpose()
    }

    fn real(&self, name: &str) -> PyResult<Option<f64>> {
        self.item(name)?.map(|value| value.extract()).transpose()
    }

    pub(crate) fn flag(&self, name: &str, default: bool) -> PyResult<bool> {
        self.item(name)?.map_or(Ok(default), |value| value.extract())
    }

    fn texts(&self, name: &str) -> PyResult<Vec<String>> {
        self.item(name)?.map_or(Ok(Vec::new()), |value| value.extract())
    }

    /// The options of the file system.
    pub(crate) fn format(&self) -> PyResult<FormatOptions> {
        let bad = |what: String| PyValueError::new_err(what);
        let mut format = FormatOptions::default();
        if let Some(label) = self.text("label")? {
            format.label = label.into_bytes();
        }
        if let Some(features) = self.text("features")? {
            let unknown = |name| bad(format!("features: no feature is called {name:?}"));
            format.features = FeatureEdit::parse_list(&features).map_err(unknown)?;
        }
        if let Some(bytes) = self.number("block_size")? {
            let size = extant::BlockSize::from_bytes(bytes);
            let refused = || bad(format!("block_size: {bytes} is no power of two from 1024 to 65536"));
            format.block_size = Some(size.ok_or_else(refused)?);
        }
        if let Some(bytes) = self.number("inode_size")? {
            let refused = |_| bad(format!("inode_size: {bytes} is too large"));
            format.inode_size = Some(u16::try_from(bytes).map_err(refused)?);
        }
        format.inodes = self.number("inodes")?;
        format.uuid = self.item("uuid")?.map(|uuid| uuid.extract()).transpose()?;
        format.reserved_percent = self.real("reserved_percent")?;
        Ok(format)
    }

    fn build(&self) -> PyResult<BuildOptions> {
        let bad = |name: &'static str| {
            move |why: &dyn std::fmt::Display| PyValueError::new_err(format!("{name}: {why}"))
        };
        // As the command: an image is filled once, so no blocks are reserved.
        let mut format = self.format()?;
        format.reserved_percent = format.reserved_percent.or(Some(0.0));
        let headroom_percent = self.real("headroom")?.unwrap_or(0.0);
        if !(0.0..=100_000.0).contains(&headroom_percent) {
            return Err(PyValueError::new_err("headroom: it is a percentage from 0 to 100000"));
        }
        let size = match self.number("size")? {
            Some(_) if headroom_percent != 0.0 => {
                return Err(PyValueError::new_err("size and headroom exclude each other"));
            }
            Some(bytes) => SizeChoice::Bytes(bytes),
            None => SizeChoice::Smallest { headroom_percent, more_bytes: 0 },
        };
        let excludes = Excludes::new(self.texts("exclude")?).map_err(|why| bad("exclude")(&why))?;
        let owner = self.item("owner")?.map(|owner| owner.extract::<(u32, u32)>()).transpose()?;
        let threads = match self.number("threads")? {
            Some(threads) => usize::try_from(threads).unwrap_or(usize::MAX).clamp(1, 256),
            None => std::thread::available_parallelism().map_or(1, |n| n.get()),
        };
        Ok(BuildOptions {
            format,
            size,
            time: self.number("time")?,
            clamp_mtime: self.number("clamp_mtime")?,
            keep_times: self.flag("keep_times", false)?,
            owner: owner.map(|(uid, gid)| Owner { uid, gid }),
            uid_map: IdMap::parse(self.texts("uid_map")?).map_err(|why| bad("uid_map")(&why))?,
            gid_map: IdMap::parse(self.texts("gid_map")?).map_err(|why| bad("gid_map")(&why))?,
            excludes,
            xattrs: if self.flag("xattrs", true)? { XattrChoice::Keep } else { XattrChoice::None },
            one_file_system: self.flag("one_file_system", false)?,
            threads,
            tolerate_changes: self.flag("tolerate_changes", false)?,
            replace: self.flag("replace", false)?,
            sync: self.flag("sync", true)?,
            dry_run: self.flag("dry_run", false)?,
            ..BuildOptions::default()
        })
    }
}

/// Builds an image file.
#[pyfunction]
pub(crate) fn build<'py>(
    image: PathBuf,
    sources: &Bound<'py, PyList>,
    options: &Bound<'py, PyDict>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let py = sources.py();
    if sources.is_empty() {
        return Err(PyTypeError::new_err("a build needs a source: add_dir(), add_tar() or add_oci()"));
    }
    let options = Options(options).build()?;
    let sources = sources.iter().map(|item| source(&item)).collect::<PyResult<Vec<_>>>()?;
    let (done, cancel) = (Done::default(), AtomicBool::new(false));
    done.step("reading");
    let look = |py: Python<'_>| progress.as_ref().map_or(Ok(true), |progress| done.report(py, progress));
    let report = watched(py, &cancel, &look, || {
        build_to(&options, sources, BuildTarget::File(&image), &done, &cancel)
    })?;
    let name = image.to_string_lossy();
    let report = report.map_err(|fault| errors::of_build(&fault, &name))?;
    let dict = PyDict::new(py);
    dict.set_item("image_bytes", report.image_bytes)?;
    dict.set_item("written_bytes", report.written_bytes)?;
    dict.set_item("content_bytes", report.content_bytes)?;
    dict.set_item("files", report.files)?;
    dict.set_item("directories", report.directories)?;
    dict.set_item("symlinks", report.symlinks)?;
    dict.set_item("others", report.others)?;
    dict.set_item("extra_links", report.extra_links)?;
    dict.set_item("uuid", report.superblock.uuid)?;
    dict.set_item("warnings", report.warnings)?;
    Ok(dict)
}
