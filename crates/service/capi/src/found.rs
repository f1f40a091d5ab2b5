//! Findings with their strings for C, which the reports of checks and repairs hold.
//!
//! Does **not** own: the structures of the header, which differ.

use std::ffi::{CString, c_char};

use facade::check::{Finding, FindingPlace, Rule, Severity};

use crate::border::{Handle, Out};
use crate::check::{EXTANT_NONE, extant_severity};
use crate::error::{Failure, terminated};

/// A finding with its strings for C.
pub(crate) struct Found {
    pub(crate) code: CString,
    pub(crate) message: CString,
    pub(crate) rule: CString,
    name: Option<(CString, usize)>,
    pub(crate) severity: extant_severity,
    pub(crate) group: u64,
    pub(crate) ino: u64,
    pub(crate) block: u64,
}

impl Found {
    pub(crate) fn of(finding: &Finding) -> Self {
        Self::new(finding.rule, &finding.place, &finding.says)
    }

    pub(crate) fn new(rule: &Rule, place: &FindingPlace, message: &str) -> Self {
        Self {
            code: terminated(rule.code.into()),
            message: terminated(message.into()),
            rule: terminated(rule.says.into()),
            name: place.name.as_ref().map(|name| (terminated(name.clone()), name.len())),
            severity: match rule.severity {
                Severity::Note => extant_severity::Note,
                Severity::Error => extant_severity::Error,
                Severity::Fatal => extant_severity::Fatal,
            },
            group: place.group.map_or(EXTANT_NONE, |group| group.0.into()),
            ino: place.ino.map_or(EXTANT_NONE, |ino| ino.0.into()),
            block: place.block.map_or(EXTANT_NONE, |block| block.0),
        }
    }

    /// The name of a directory entry or attribute and its length in bytes, or NULL and 0.
    pub(crate) fn name(&self) -> (*const c_char, usize) {
        self.name.as_ref().map_or((std::ptr::null(), 0), |(name, len)| (name.as_ptr(), *len))
    }
}

/// Passes an item of a report to the caller, by its number. `what`: what the items are, for messages.
/// `items`: the list in the report.
pub(crate) fn give_nth<R: Sync, T, C>(
    report: &Handle<R>,
    items: impl FnOnce(&R) -> &[T],
    number: usize,
    what: &str,
    out: &Out<C>,
    as_c: impl FnOnce(&T) -> C,
) -> Result<(), Failure> {
    out.require(what)?;
    let items = items(report.get("report")?);
    let missing = || Failure::argument(format!("{what} {number} of a report with {}", items.len()));
    out.set(as_c(items.get(number).ok_or_else(missing)?));
    Ok(())
}
