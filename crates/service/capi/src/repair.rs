//! Repairs of file systems, their plans and their undo files.

use std::ffi::{CString, OsStr, c_char, c_int};
use std::num::NonZero;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use facade::repair::{Plan, RepairOptions as How, plan_repair, repair, undo_image};
use facade::{Device, FileDevice};

use crate::border::{Context, ErrorOut, Growing, Handle, Options, Out, Text, call, quietly};
use crate::check::{extant_finding, extant_severity};
use crate::error::{Failure, terminated};
use crate::found::{Found, give_nth};
use crate::step::{Steps, extant_step};
use crate::storage::{Storage, as_device};

/// For extant_repair_options.flags: plan the repair, and write nothing.
pub const EXTANT_REPAIR_DRY_RUN: u32 = 1;

/// For extant_undo(): also over bytes that changed after the repair.
pub const EXTANT_UNDO_FORCE: u32 = 1;

/// Options of a repair.
#[repr(C)]
pub struct extant_repair_options {
    /// sizeof(extant_repair_options).
    pub size: usize,
    /// Number of threads; 0 for one per core.
    pub threads: u32,
    /// 0 or EXTANT_REPAIR_DRY_RUN.
    pub flags: u32,
    /// Path of the undo file, or NULL. The bytes that the repair overwrites are durable in this file before
    /// the first of them changes. The file must not exist, unless it belongs to a repair of this image that
    /// was interrupted: that one is undone first.
    pub undo: Text,
    /// Passed to the function below.
    pub user: Context,
    /// Called with the state of the checks that the plan consists of, by several threads but one at a time.
    /// Any result but 0 ends the repair with the error EXTANT_CODE_CANCELLED: then nothing of this repair was
    /// written. A repair whose writing has begun is not ended any more: it completes, and the call returns 0.
    /// May be NULL.
    pub progress: Option<extern "C" fn(user: Context, step: *const extant_step) -> c_int>,
}

// SAFETY: `repr(C)`, the size first, and only integers, pointers and a nullable function.
unsafe impl Growing for extant_repair_options {}

/// The report of a repair. Freed with extant_repair_report_free().
pub struct extant_repair_report {
    fixes: Vec<Kept>,
    total: u64,
    changed_bytes: u64,
    is_complete: bool,
}

/// A fix with its strings for C.
struct Kept {
    found: Found,
    remedy: Option<CString>,
    loss: Option<CString>,
    why: Option<CString>,
}

/// A fix of a repair, or a finding that the repair leaves. Its strings are valid until the report is freed.
#[repr(C)]
pub struct extant_fix {
    /// The permanent code of the rule: two letters and three digits.
    pub code: *const c_char,
    /// What was found: one sentence with the numbers.
    pub message: *const c_char,
    /// The rule in one sentence, as it holds for a valid file system.
    pub rule: *const c_char,
    /// What the repair does; NULL for a finding that stays.
    pub remedy: *const c_char,
    /// What becomes unreachable; NULL if nothing does.
    pub loss: *const c_char,
    /// Why the finding stays; NULL for a fix.
    pub why: *const c_char,
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
    /// The severity of the finding.
    pub severity: extant_severity,
    /// Zero.
    pub reserved: u32,
}

pub type RepairOptions = Options<extant_repair_options>;
pub type RepairReportHandle = Handle<extant_repair_report>;
pub type RepairReportOut = Out<*mut extant_repair_report>;
pub type FixOut = Out<extant_fix>;

impl From<&Plan> for extant_repair_report {
    fn from(plan: &Plan) -> Self {
        let text = |text: &str| Some(terminated(text.into()));
        let fixes = plan.fixes.iter().map(|fix| Kept {
            found: Found::new(fix.rule, &fix.place, &fix.finding),
            remedy: text(&fix.remedy),
            loss: fix.loss.as_deref().and_then(text),
            why: None,
        });
        let left = plan.left.iter().map(|left| Kept {
            found: Found::of(&left.finding),
            remedy: None,
            loss: None,
            why: text(left.why),
        });
        Self {
            fixes: fixes.chain(left).collect(),
            total: plan.total(),
            changed_bytes: plan.changed_bytes,
            is_complete: plan.left.is_empty(),
        }
    }
}

impl From<&Kept> for extant_fix {
    fn from(kept: &Kept) -> Self {
        let extant_finding { code, message, rule, name, name_len, ino, block, group, severity, reserved } =
            (&kept.found).into();
        let text = |text: &Option<CString>| text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
        let (remedy, loss, why) = (text(&kept.remedy), text(&kept.loss), text(&kept.why));
        Self { code, message, rule, remedy, loss, why, name, name_len, ino, block, group, severity, reserved }
    }
}

fn is_dry(options: &extant_repair_options) -> Result<bool, Failure> {
    match options.flags & !EXTANT_REPAIR_DRY_RUN {
        0 => Ok(options.flags & EXTANT_REPAIR_DRY_RUN != 0),
        unknown => Err(Failure::argument(format!("unknown flags {unknown:#x}"))),
    }
}

fn run(
    device: Arc<dyn Device>,
    options: &extant_repair_options,
    is_dry: bool,
) -> Result<extant_repair_report, Failure> {
    let steps = Arc::new(Steps::new(options.progress, options.user));
    let how = How {
        threads: NonZero::new(options.threads as usize),
        cancel: Some(Arc::clone(&steps.cancel)),
        progress: Some(steps),
        ..How::default()
    };
    let undo = options.undo.get().map(|path| Path::new(OsStr::from_bytes(path)));
    let repair = if is_dry { plan_repair(device, &how)? } else { repair(device, &how, undo)? };
    Ok(repair.plan().into())
}

/// Repairs the file system in an image file or on a block device that is not mounted. The whole repair is
/// planned in memory before anything is written. A finding that cannot be repaired is not an error of this
/// function: the report has it. `options` may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn extant_repair(
    image: Text,
    options: RepairOptions,
    report: RepairReportOut,
    error: ErrorOut,
) -> c_int {
    call(&error, || {
        report.clear("report")?;
        let (image, options) = (image.path()?, options.get_or_zeros("options")?);
        let is_dry = is_dry(&options)?;
        let open = if is_dry { FileDevice::open_read_only } else { FileDevice::open_locked };
        let device =
            open(image).map_err(|source| facade::Error::Image { image: image.to_owned(), source })?;
        report.give(run(Arc::new(device), &options, is_dry)?);
        Ok(())
    })
}

/// Repairs the file system on the caller's storage.
#[unsafe(no_mangle)]
pub extern "C" fn extant_repair_storage(
    storage: Storage,
    options: RepairOptions,
    report: RepairReportOut,
    error: ErrorOut,
) -> c_int {
    call(&error, || {
        report.clear("report")?;
        let options = options.get_or_zeros("options")?;
        let is_dry = is_dry(&options)?;
        let device = as_device(&storage, !is_dry)?;
        report.give(run(Arc::new(device), &options, is_dry)?);
        Ok(())
    })
}

/// Takes a repair back: writes the old bytes of its undo file into the image. `flags` is 0 or
/// EXTANT_UNDO_FORCE. Without it, an image that changed after the repair is refused.
#[unsafe(no_mangle)]
pub extern "C" fn extant_undo(image: Text, undo: Text, flags: u32, error: ErrorOut) -> c_int {
    call(&error, || {
        if flags & !EXTANT_UNDO_FORCE != 0 {
            return Err(Failure::argument(format!("unknown flags {:#x}", flags & !EXTANT_UNDO_FORCE)));
        }
        let image = image.path()?;
        Ok(undo_image(image, undo.path()?, flags & EXTANT_UNDO_FORCE != 0)?)
    })
}

/// The number of all fixes. 0 for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn extant_repair_report_total(report: RepairReportHandle) -> u64 {
    report.map_or(0, |report| report.total)
}

/// The number of bytes of the image that changed, or would change. 0 for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn extant_repair_report_changed_bytes(report: RepairReportHandle) -> u64 {
    report.map_or(0, |report| report.changed_bytes)
}

/// Whether no finding above a note is left. False for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn extant_repair_report_is_complete(report: RepairReportHandle) -> bool {
    report.map_or(false, |report| report.is_complete)
}

/// How many fixes and left findings extant_repair_report_fix() returns: all fixes with a loss, at most 1000
/// others for each code, and all left findings. 0 for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn extant_repair_report_count(report: RepairReportHandle) -> usize {
    report.map_or(0, |report| report.fixes.len())
}

/// A fix or left finding by its number, which counts from 0. The fixes are first, in the order in which they
/// were made.
#[unsafe(no_mangle)]
pub extern "C" fn extant_repair_report_fix(
    report: RepairReportHandle,
    number: usize,
    fix: FixOut,
    error: ErrorOut,
) -> c_int {
    call(&error, || give_nth(&report, |report| &report.fixes, number, "fix", &fix, |kept| kept.into()))
}

/// Frees a report. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn extant_repair_report_free(report: Option<Box<extant_repair_report>>) {
    quietly(|| drop(report));
}
