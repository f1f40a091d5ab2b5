//! mkfs, check, resize and repair.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use extant::check::{
    CheckFault, CheckImageFault, Finding, FindingPlace, Options, Progress, Report, Rule, Severity,
};
use extant::mkfs::Meter;
use extant::repair::{Plan, RepairFault, RepairOptions, plan_repair, repair_image};
use extant::resize::{ResizeObserver, ResizeOptions, Size, resize_image_with};
use extant::{Device, FileDevice, mkfs as making};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::build::Options as FormatArgs;
use crate::device::{Place, Refused};
use crate::errors;
use crate::text::text_of;
use crate::watch::{goes_on, watched};

/// Makes an empty file system in a new file.
#[pyfunction]
pub(crate) fn mkfs<'py>(
    image: PathBuf,
    size: u64,
    options: &Bound<'py, PyDict>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let py = options.py();
    let name = image.to_string_lossy();
    let args = FormatArgs(options);
    let (format, replace) = (args.format()?, args.flag("replace", false)?);
    if !replace && image.symlink_metadata().is_ok() {
        let message = "the image exists already; replace=True replaces it".to_owned();
        return Err(errors::on_host(errors::EEXIST, message, &name));
    }
    let identity = making::random_identity(&format).map_err(|error| errors::of_io(&error, &name))?;
    let (passes, cancel) = (Passes::default(), AtomicBool::new(false));
    let made = watched(py, &cancel, &|py| passes.report(py, progress.as_ref()), || {
        making::mkfs_image_watched(&image, size, &format, identity, replace, &passes, &cancel)
    })?;
    let made = made.map_err(|fault| errors::of_mkfs(&fault, &name))?;
    let dict = PyDict::new(py);
    dict.set_item("block_size", made.block_size)?;
    dict.set_item("blocks", made.blocks)?;
    dict.set_item("blocks_free", made.blocks_free)?;
    dict.set_item("inodes", made.inodes)?;
    dict.set_item("groups", made.groups)?;
    dict.set_item("uuid", made.uuid)?;
    Ok(dict)
}

/// The pass of a check, or the step of other work, and how much of it is done: a pass is text, and its units
/// are groups, directories or blocks.
#[derive(Default)]
struct Passes(Mutex<(&'static str, u64, u64)>);

impl Progress for Passes {
    fn step(&self, pass: &'static str, done: u64, total: u64) {
        self.set(pass, done, total);
    }
}

impl ResizeObserver for Passes {
    fn progress(&self, what: &'static str, done: u64, of: u64) {
        self.set(what, done, of);
    }
}

impl Meter for Passes {
    fn wrote(&self, _bytes: u64, _files: u64) {}

    fn advanced(&self, name: &'static str, done: u64, total: u64) {
        self.set(name, done, total);
    }
}

impl Passes {
    fn set(&self, pass: &'static str, done: u64, total: u64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (pass, done, total);
    }

    /// Calls `progress`. False cancels.
    fn report(&self, py: Python<'_>, progress: Option<&Py<PyAny>>) -> PyResult<bool> {
        let now = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match progress {
            Some(progress) => goes_on(progress.call1(py, now)?.bind(py)),
            None => Ok(true),
        }
    }
}

/// Checks an image: a path, or a seekable binary file object.
#[pyfunction]
#[pyo3(signature = (image, offset=0, size=None, threads=None, progress=None))]
pub(crate) fn check<'py>(
    image: &Bound<'py, PyAny>,
    offset: u64,
    size: Option<u64>,
    threads: Option<usize>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    enum Failed {
        Device(Refused),
        Check(CheckFault),
    }
    let py = image.py();
    let (place, name) = Place::of(image, false)?;
    let (passes, cancel) = (Passes::default(), AtomicBool::new(false));
    let report = watched(py, &cancel, &|py| passes.report(py, progress.as_ref()), || {
        let device = place.open(false, offset, size).map_err(Failed::Device)?;
        let options = Options {
            threads: threads.and_then(NonZero::new),
            progress: Some(&passes),
            cancel: Some(&cancel),
            ..Options::default()
        };
        extant::check::check(&*device, &options).map_err(Failed::Check)
    })?;
    match report {
        Ok(report) => report_dict(py, &report),
        Err(Failed::Device(refused)) => Err(refused.to_python(&name)),
        Err(Failed::Check(source)) => {
            let image = PathBuf::from(&name);
            Err(errors::of_check(&CheckImageFault::Check { image, source }, &name))
        }
    }
}

fn report_dict<'py>(py: Python<'py>, report: &Report) -> PyResult<Bound<'py, PyDict>> {
    let findings = PyList::empty(py);
    for finding in &report.findings {
        findings.append(finding_dict(py, finding)?)?;
    }
    let stats = PyDict::new(py);
    stats.set_item("inodes", report.stats.inodes)?;
    stats.set_item("directories", report.stats.dirs)?;
    stats.set_item("inodes_total", report.stats.inodes_total)?;
    stats.set_item("blocks", report.stats.blocks)?;
    stats.set_item("blocks_used", report.stats.blocks_used)?;
    stats.set_item("block_size", report.stats.block_size)?;
    stats.set_item("replayed", report.stats.replayed)?;
    stats.set_item("read_bytes", report.stats.read_bytes)?;
    stats.set_item("seconds", report.stats.elapsed.as_secs_f64())?;
    let counts = PyDict::new(py);
    for (code, count) in &report.counts {
        counts.set_item(code, count)?;
    }
    let dict = PyDict::new(py);
    dict.set_item("clean", report.clean() && report.opened)?;
    dict.set_item("exit_code", report.exit_code())?;
    dict.set_item("counts", counts)?;
    dict.set_item("findings", findings)?;
    dict.set_item("stats", stats)?;
    Ok(dict)
}

fn finding_dict<'py>(py: Python<'py>, finding: &Finding) -> PyResult<Bound<'py, PyDict>> {
    let dict = place_dict(py, finding.rule, &finding.place)?;
    dict.set_item("message", &finding.says)?;
    dict.set_item("rule", finding.rule.says)?;
    dict.set_item("stored", finding.stored)?;
    dict.set_item("expected", finding.expected)?;
    Ok(dict)
}

fn place_dict<'py>(py: Python<'py>, rule: &Rule, place: &FindingPlace) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let severity = match rule.severity {
        Severity::Note => "note",
        Severity::Error => "error",
        Severity::Fatal => "fatal",
    };
    dict.set_item("code", rule.code)?;
    dict.set_item("severity", severity)?;
    dict.set_item("ino", place.ino.map(|ino| ino.0))?;
    dict.set_item("block", place.block.map(|block| block.0))?;
    dict.set_item("group", place.group.map(|group| group.0))?;
    dict.set_item("name", place.name.as_deref().map(|name| text_of(py, name)).transpose()?)?;
    Ok(dict)
}

/// Resizes the file system in an image file or on a block device. The size is a number of bytes, "min" or
/// "max". Returns both sizes in bytes, and the numbers of blocks and inodes that moved.
#[pyfunction]
pub(crate) fn resize(
    image: PathBuf,
    size: &Bound<'_, PyAny>,
    progress: Option<Py<PyAny>>,
) -> PyResult<(u64, u64, u64, u64)> {
    let size_choice = match size.extract::<String>().as_deref() {
        Ok("min") => Size::Min,
        Ok("max") => Size::Max,
        Ok(other) => {
            let what = format!("size: {other:?} is neither a number of bytes, \"min\" nor \"max\"");
            return Err(PyValueError::new_err(what));
        }
        Err(_) => Size::Bytes(size.extract()?),
    };
    let (passes, cancel) = (Passes::default(), AtomicBool::new(false));
    let report = watched(size.py(), &cancel, &|py| passes.report(py, progress.as_ref()), || {
        resize_image_with(&image, size_choice, &ResizeOptions::default(), &passes, &cancel)
    })?;
    let report = report.map_err(|fault| errors::of_resize(&fault, &image.to_string_lossy()))?;
    Ok((report.before.bytes(), report.after.bytes(), report.moved, report.moved_inodes))
}

/// Repairs the file system in an image file or on a block device; plans it only if `dry_run`.
#[pyfunction]
pub(crate) fn repair(
    py: Python<'_>,
    image: PathBuf,
    undo: Option<PathBuf>,
    dry_run: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'_, PyDict>> {
    let (passes, cancel) = (Arc::new(Passes::default()), Arc::new(AtomicBool::new(false)));
    let options = RepairOptions {
        progress: Some(Arc::<Passes>::clone(&passes)),
        cancel: Some(Arc::clone(&cancel)),
        ..RepairOptions::default()
    };
    let plan = watched(py, &cancel, &|py| passes.report(py, progress.as_ref()), || match dry_run {
        true => planned(&image, &options),
        false => repair_image(&image, &options, undo.as_deref()).map(|repair| repair.plan().clone()),
    })?;
    let plan = plan.map_err(|fault| errors::of_repair(&fault, &image.to_string_lossy()))?;
    let (fixes, left) = (PyList::empty(py), PyList::empty(py));
    for fix in &plan.fixes {
        let dict = place_dict(py, fix.rule, &fix.place)?;
        dict.set_item("message", &fix.finding)?;
        dict.set_item("remedy", &*fix.remedy)?;
        dict.set_item("loss", fix.loss.as_deref())?;
        fixes.append(dict)?;
    }
    for finding in &plan.left {
        let dict = finding_dict(py, &finding.finding)?;
        left.append((dict, finding.why))?;
    }
    let dict = PyDict::new(py);
    dict.set_item("fixes", fixes)?;
    dict.set_item("left", left)?;
    dict.set_item("total", plan.total())?;
    dict.set_item("changed_bytes", plan.changed_bytes)?;
    Ok(dict)
}

fn planned(image: &Path, options: &RepairOptions) -> Result<Plan, RepairFault> {
    let device: Arc<dyn Device> = Arc::new(FileDevice::open_read_only(image).map_err(RepairFault::Image)?);
    Ok(plan_repair(device, options)?.plan().clone())
}
