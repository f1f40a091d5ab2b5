//! The study of flushes: the cost of fsync per device and mode.

use std::path::Path;
use std::time::{Duration, Instant};

use extant_device::Model;
use extant_flush::Mode;

use super::{Estimate, Size};
use crate::fsync::{Load, On, Study, run};
use crate::report::{Better, Machine, Posting, Row, StudyReport, Table};
use crate::{LabFault, Watch};

/// What the study needs.
#[must_use]
pub fn estimate(size: Size, kernel: bool) -> Estimate {
    let _ = (size, kernel);
    Estimate { seconds: 30.0, memory_bytes: 1 << 30 }
}

/// Runs the study.
///
/// # Errors
/// The device failed.
pub fn study_report(size: Size, kernel: Option<&Path>, watch: &dyn Watch) -> Result<StudyReport, LabFault> {
    let _ = kernel;
    let begun = Instant::now();
    let study = Study {
        load: Load::Happy,
        ground: On::Files,
        models: Model::ALL.to_vec(),
        modes: Mode::ALL.to_vec(),
        widths: vec![16],
        time: Duration::from_millis(500),
        ..Study::default()
    };
    let report = run(&study, watch)?;
    let rows = report.rows.iter().filter_map(|row| {
        let cost = row.cost? * 100.0;
        Some(Row::ours(&[row.device, row.mode], &[cost]))
    });
    let table = Table {
        id: "cost".to_owned(),
        title: "Cost of flushes".to_owned(),
        in_posting: true,
        quantity: "cost".to_owned(),
        unit: "%".to_owned(),
        better: Better::Lower,
        labels: vec!["device".to_owned(), "mode".to_owned()],
        extras: Vec::new(),
        rows: rows.collect(),
        note: String::new(),
    };
    Ok(StudyReport {
        study: "fsync".to_owned(),
        question: "What does fsync cost on a kind of disk, and what do shared flushes save?".to_owned(),
        posting: Posting {
            subject: "[PATCH v6 0/4] ext4: Coordinate data-only flush requests sent by fsync".to_owned(),
            date: "29 November 2010".to_owned(),
            machine: String::new(),
        },
        command: format!("extant lab all --{} --only fsync", size.name()),
        machine: Machine::this(),
        parameters: std::iter::once(("size".to_owned(), size.name().to_owned())).collect(),
        seconds: begun.elapsed().as_secs_f64(),
        tables: vec![table],
        plots: Vec::new(),
        claims: Vec::new(),
    })
}
