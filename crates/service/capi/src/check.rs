//! Checks of whole file systems, and their findings.

use std::ffi::{c_char, c_int};
use std::mem::offset_of;
use std::num::NonZero;

use facade::check::{Options as How, Report, check};
use facade::{Device, FileDevice};

use crate::border::{Context, ErrorOut, Growing, Handle, Options, Out, Text, call, quietly};
use crate::error::Failure;
use crate::found::{Found, give_nth};
use crate::step::{Steps, extant_step};
use crate::storage::{Storage, as_device};

/// How severe a finding is.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub enum extant_severity {
    /// Information; the file system is valid.
    Note = 0,
    /// The file system is damaged.
    Error = 1,
    /// The damage prevents parts of the check.
    Fatal = 2,
}

/// The value of a number in an extant_finding that the finding does not have.
pub const EXTANT_NONE: u64 = 0xffff_ffff_ffff_ffff;

/// The report of a check. Freed with extant_report_free().
pub struct extant_report {
    findings: Vec<Found>,
    is_clean: bool,
    is_file_system: bool,
}

/// A finding of a check. Its strings are valid until the report is freed.
#[repr(C)]
pub struct extant_finding {
    /// The permanent code of the rule: two letters and three digits.
    pub code: *const c_char,
    /// One sentence with the numbers.
    pub message: *const c_char,
    /// The rule in one sentence, as it holds for a valid file system.
    pub rule: *const c_char,
    /// The name of a directory entry or attribute, or NULL.
    pub name: *const c_char,
    /// Length of the name in bytes.
    pub name_len: usize,
    /// Inode number, or EXTANT_NONE.
    pub ino: u64,
    /// Block number, or EXTANT_NONE.
    pub block: u64,
    /// Block group, or EXTANT_NONE.
    pub group: u64,
    /// The severity.
    pub severity: extant_severity,
    /// Zero.
    pub reserved: u32,
}

/// Options of a check.
#[repr(C)]
pub struct extant_check_options {
    /// sizeof(extant_check_options).
    pub size: usize,
    /// Number of threads; 0 for one per core.
    pub threads: u32,
    /// Zero.
    pub reserved: u32,
    /// Passed to the function below.
    pub user: Context,
    /// Called with the state of the check, by several threads but one at a time. Any result but 0 ends the
    /// check with the error EXTANT_CODE_CANCELLED. May be NULL.
    pub progress: Option<extern "C" fn(user: Context, step: *const extant_step) -> c_int>,
}

// SAFETY: `repr(C)`, the size first, and only integers, a pointer and a nullable function.
unsafe impl Growing for extant_check_options {
    const SIZE_MIN: usize = offset_of!(Self, user);
}

pub type CheckOptions = Options<extant_check_options>;
pub type ReportHandle = Handle<extant_report>;
pub type ReportOut = Out<*mut extant_report>;
pub type FindingOut = Out<extant_finding>;

impl From<Report> for extant_report {
    fn from(report: Report) -> Self {
        Self {
            is_clean: report.clean(),
            is_file_system: report.opened,
            findings: report.findings.iter().map(Found::of).collect(),
        }
    }
}

impl From<&Found> for extant_finding {
    fn from(found: &Found) -> Self {
        let (name, name_len) = found.name();
        Self {
            code: found.code.as_ptr(),
            message: found.message.as_ptr(),
            rule: found.rule.as_ptr(),
            name,
            name_len,
            ino: found.ino,
            block: found.block,
            group: found.group,
            severity: found.severity,
            reserved: 0,
        }
    }
}

fn run(device: &dyn Device, options: &CheckOptions) -> Result<Report, Failure> {
    let options = options.get_or_zeros("options")?;
    let steps = Steps::new(options.progress, options.user);
    let how = How {
        threads: NonZero::new(options.threads as usize),
        progress: Some(&steps),
        cancel: Some(&steps.cancel),
        ..How::default()
    };
    Ok(check(device, &how)?)
}

/// Checks the file system in an image file or on a block device, and writes nothing. Damage is not an
/// error of this function: the report has it. `options` may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn extant_check(
    image: Text,
    options: CheckOptions,
    report: ReportOut,
    error: ErrorOut,
) -> c_int {
    call(&error, || {
        report.clear("report")?;
        let image = image.path()?;
        let device = FileDevice::open_read_only(image)
            .map_err(|source| facade::Error::Image { image: image.to_owned(), source })?;
        report.give(run(&device, &options)?.into());
        Ok(())
    })
}

/// Checks the file system on the caller's storage.
#[unsafe(no_mangle)]
pub extern "C" fn extant_check_storage(
    storage: Storage,
    options: CheckOptions,
    report: ReportOut,
    error: ErrorOut,
) -> c_int {
    call(&error, || {
        report.clear("report")?;
        let device = as_device(&storage, false)?;
        report.give(run(&device, &options)?.into());
        Ok(())
    })
}

/// Whether there is no finding above a note. False for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn extant_report_is_clean(report: ReportHandle) -> bool {
    report.map_or(false, |report| report.is_clean)
}

/// Whether a usable superblock was found. If not, nothing else was checked. False for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn extant_report_is_file_system(report: ReportHandle) -> bool {
    report.map_or(false, |report| report.is_file_system)
}

/// The number of findings: at most 1000 for each code. 0 for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn extant_report_count(report: ReportHandle) -> usize {
    report.map_or(0, |report| report.findings.len())
}

/// A finding by its number, which counts from 0. They are in the order of their codes and places.
#[unsafe(no_mangle)]
pub extern "C" fn extant_report_finding(
    report: ReportHandle,
    number: usize,
    finding: FindingOut,
    error: ErrorOut,
) -> c_int {
    call(&error, || {
        give_nth(&report, |report| &report.findings, number, "finding", &finding, |found| found.into())
    })
}

/// Frees a report. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn extant_report_free(report: Option<Box<extant_report>>) {
    quietly(|| drop(report));
}
