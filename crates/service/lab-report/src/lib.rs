//! The reports of the studies, shown as text, as a page in HTML, and as findings in Markdown.
//!
//! ```text
//! StudyReport (extant-lab) --> Reports: all studies of one run, as JSON
//!                                 |-> text      tables in the form of ministat
//!                                 |-> html      one file with plots, without network
//!                                 '-> findings  docs/lab/findings.md
//! ```
//!
//! Owns: the layout of what is shown. Does **not** own: measurements, verdicts and sentences, which are part
//! of the reports.
//!
//! Claims and notes are a function of the tables, so [`Reports::judge`] brings old reports up to date.
//!
//! Invariants
//! 1. Output depends on the reports alone, so a committed JSON file gives the same page again.
//! 2. Every text of a report is escaped: a page contains no markup but this crate's own.

#![forbid(unsafe_code)]

pub mod findings;
mod grid;
pub mod html;
mod numbers;
mod plot;
#[cfg(test)]
mod samples;
pub mod text;

use extant_lab::report::{StudyReport, Verdict};
use extant_lab::studies;
use serde::{Deserialize, Serialize};

/// All studies of one run: the JSON of `extant lab all`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reports {
    /// Version of extant.
    pub version: String,
    /// The studies, in the order of their postings.
    pub studies: Vec<StudyReport>,
}

/// Why reports cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum ReportFault {
    /// A plot cannot be drawn.
    #[error("plot {plot}: {why}")]
    Plot {
        /// Its id.
        plot: String,
        /// The reason.
        why: String,
    },
    /// The JSON is not that of reports.
    #[error("not a report of extant lab all: {0}")]
    Json(#[from] serde_json::Error),
}

impl Reports {
    /// Reads JSON.
    ///
    /// # Errors
    /// [`ReportFault::Json`].
    pub fn from_json(text: &str) -> Result<Self, ReportFault> {
        Ok(serde_json::from_str(text)?)
    }

    /// The JSON that [`from_json`](Self::from_json) reads.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Replaces each study by that of the same name in `newer`; new ones come last.
    pub fn update(&mut self, newer: Self) {
        self.version = newer.version;
        for report in newer.studies {
            match self.studies.iter_mut().find(|old| old.study == report.study) {
                Some(old) => *old = report,
                None => self.studies.push(report),
            }
        }
    }

    /// Writes claims and notes of all studies again, from their tables.
    pub fn judge(&mut self) {
        for report in &mut self.studies {
            if let Some(study) = studies::ALL.iter().find(|study| study.name == report.study) {
                (study.judge)(report);
            }
        }
    }
}

/// The verdict on a claim of our own, beyond the posting, in words.
#[must_use]
pub fn beyond_words(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Confirmed | Verdict::Beaten => "held",
        Verdict::Refuted => "not held",
        Verdict::Open => "open",
    }
}

/// What "Beyond the posting" means, in a sentence.
const BEYOND: &str = "Claims of extant's own, which the posting does not make: held, not held or open. They \
                      have no share in the totals.";

/// A verdict in words.
#[must_use]
pub fn verdict_words(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Confirmed => "confirmed",
        Verdict::Beaten => "confirmed and beaten",
        Verdict::Refuted => "refuted",
        Verdict::Open => "open",
    }
}
