//! `extant lab all`: the studies of all postings, one report.
//!
//! ```text
//! estimate -> for each study: kept part? -> load it      -> text -> JSON, HTML
//!                             else run it -> keep the part
//! ```
//!
//! Invariants
//! 1. A finished study is kept before its text is printed. It is not repeated if version, size and the use of
//!    the kernel are the same.
//! 2. A failed study does not end the others. The exit code is that of the first failure.
//! 3. The kernel's file system that this command mounts is unmounted at the end, also after failures and
//!    signals.

mod kernel;
mod progress;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use extant_lab::LabFault;
use extant_lab::report::{Machine, StudyReport};
use extant_lab::studies::{ALL, Size, Study};
use extant_lab_report::{Reports, html, text};
use serde::{Deserialize, Serialize};

use self::kernel::KernelMount;
use self::progress::Progress;
use super::{code_of, usage};
use crate::check::pretty;
use crate::schema::tagged;
use crate::voice::{self, say};

/// All studies, with the tables of their postings, plots and verdicts, in one report.
#[derive(Debug, Args)]
#[command(after_help = "\
Each study repeats the measurements of a mail thread of linux-ext4, and prints its tables with the thread's \
figures beside ours. A finished study is kept in F.parts beside the JSON (or in --keep DIR), so a command \
that was interrupted continues where it stopped. Remove that directory to measure again.

Examples:
  extant lab all                                  about ten minutes on two CPUs
  extant lab all --json o.json --html o.html      with a report for browsers
  extant lab all --only fsync,orphans
  sudo extant lab all --full --kernel --json o.json    also the kernel's ext4, in memory")]
pub(crate) struct AllArgs {
    /// Small sizes (default): about two minutes a study, at most 4 GiB of memory.
    #[arg(long)]
    quick: bool,
    /// The sizes of the postings as far as 12 GiB of memory allow.
    #[arg(long, conflicts_with = "quick")]
    full: bool,
    /// Also measure the kernel's ext4, in the directory DIR. Without DIR, this command makes and mounts a
    /// file system in memory, which needs root.
    #[arg(long, value_name = "DIR", num_args = 0..=1)]
    kernel: Option<Option<PathBuf>>,
    /// Write all reports to this file.
    #[arg(long, value_name = "F")]
    json: Option<PathBuf>,
    /// Write a page with plots to this file.
    #[arg(long, value_name = "F")]
    html: Option<PathBuf>,
    /// Only these studies.
    #[arg(long, value_name = "STUDY,...", value_delimiter = ',', value_parser = parse_study)]
    only: Vec<String>,
    /// Keep finished studies in this directory [default: F.parts beside --json F].
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

fn parse_study(name: &str) -> Result<String, String> {
    let names: Vec<_> = ALL.iter().map(|study| study.name).collect();
    let known = names.contains(&name);
    known.then(|| name.to_owned()).ok_or_else(|| format!("the studies are {}", names.join(", ")))
}

/// A kept study.
#[derive(Serialize, Deserialize)]
struct Part {
    version: String,
    size: String,
    kernel: bool,
    report: StudyReport,
}

/// What to run.
struct Plan<'a> {
    studies: Vec<Study>,
    size: Size,
    /// Whether the kernel is measured, and where: `Some(None)` in a file system of its own for each study.
    kernel: Option<Option<&'a Path>>,
    parts: Option<PathBuf>,
}

pub(super) fn run(args: &AllArgs) -> Result<ExitCode, LabFault> {
    let size = if args.full { Size::Full } else { Size::Quick };
    let is_chosen = |study: &&Study| args.only.is_empty() || args.only.iter().any(|name| name == study.name);
    let studies: Vec<Study> = ALL.iter().filter(is_chosen).copied().collect();
    say_estimate(&studies, size, args.kernel.is_some());
    let kernel = args.kernel.as_ref().map(Option::as_deref);
    let given = kernel.flatten();
    if let Some(folder) = given.filter(|folder| !folder.is_dir()) {
        return Err(usage(format!("--kernel {}: not a directory", folder.display())));
    }
    let beside = args.json.as_ref().map(|file| {
        let mut name = file.clone().into_os_string();
        name.push(".parts");
        PathBuf::from(name)
    });
    let plan = Plan { studies, size, kernel, parts: args.keep.clone().or(beside) };
    let (reports, failed) = plan.run(&|report| {
        voice::print(&text::study(report), 0);
    })?;
    if let Some(file) = &args.json {
        write(file, &pretty(&tagged("lab-all:1", &reports)))?;
    }
    if let Some(file) = &args.html {
        let page = html::page(&reports).map_err(|fault| LabFault::Device(fault.to_string()))?;
        write(file, &page)?;
    }
    Ok(ExitCode::from(failed.unwrap_or(0)))
}

fn write(file: &Path, text: &str) -> Result<(), LabFault> {
    fs::write(file, text).map_err(|fault| LabFault::Device(format!("{}: {fault}", file.display())))
}

/// Prints what the studies need.
fn say_estimate(studies: &[Study], size: Size, kernel: bool) {
    let mut seconds = 0.0;
    let mut memory_bytes = 0;
    let gibibytes = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    for study in studies {
        let estimate = (study.estimate)(size, kernel);
        seconds += estimate.seconds;
        memory_bytes = memory_bytes.max(estimate.memory_bytes);
        let (minutes, memory) = (estimate.seconds / 60.0, gibibytes(estimate.memory_bytes));
        say!("{}: about {minutes:.1} min and {memory:.1} GiB of memory", study.name);
    }
    if studies.len() > 1 {
        say!("together about {:.0} min, at most {:.1} GiB", seconds / 60.0, gibibytes(memory_bytes));
    }
    let has = Machine::this().memory_bytes;
    if has > 0 && memory_bytes > has {
        say!("this machine has only {:.1} GiB of memory", gibibytes(has));
    }
}

impl Plan<'_> {
    /// Runs the studies, or loads the kept ones. Returns the reports and the exit code of the first failure.
    fn run(&self, finished: &dyn Fn(&StudyReport)) -> Result<(Reports, Option<u8>), LabFault> {
        if let Some(folder) = &self.parts {
            let made = fs::create_dir_all(folder);
            made.map_err(|fault| LabFault::Device(format!("{}: {fault}", folder.display())))?;
        }
        let mut reports = Reports { version: env!("CARGO_PKG_VERSION").to_owned(), studies: Vec::new() };
        let mut failed = None;
        for study in &self.studies {
            let kept = self.kept(study);
            let report = match kept {
                // Perhaps judged by the rules of another build.
                Some(mut report) => {
                    (study.judge)(&mut report);
                    Ok(report)
                }
                None => {
                    say!("{}: runs", study.name);
                    let begun = Instant::now();
                    // One for each study: blocks of removed files would keep their memory.
                    let mounted = match self.kernel {
                        Some(None) => {
                            let estimate = (study.estimate)(self.size, true);
                            Some(KernelMount::new(estimate.kernel_image_bytes)?)
                        }
                        _ => None,
                    };
                    let folder = mounted.as_ref().map(KernelMount::folder).or(self.kernel.flatten());
                    let progress = Progress::new(study.name);
                    let report = (study.run)(self.size, folder, &*progress);
                    drop((progress, mounted));
                    say!("{}: finished after {:.0} s", study.name, begun.elapsed().as_secs_f64());
                    report.and_then(|report| self.keep(study, report))
                }
            };
            match report {
                Ok(report) => {
                    finished(&report);
                    reports.studies.push(report);
                }
                Err(fault) => {
                    say!("{}: {fault}", study.name);
                    failed = failed.or(Some(code_of(&fault)));
                }
            }
        }
        Ok((reports, failed))
    }

    fn part_file(&self, study: &Study) -> Option<PathBuf> {
        Some(self.parts.as_ref()?.join(format!("{}.json", study.name)))
    }

    fn kept(&self, study: &Study) -> Option<StudyReport> {
        let file = self.part_file(study)?;
        let part: Part = serde_json::from_str(&fs::read_to_string(&file).ok()?).ok()?;
        let same = part.version == env!("CARGO_PKG_VERSION")
            && part.size == self.size.name()
            && part.kernel == self.kernel.is_some();
        if !same {
            say!("{}: {} is of another version or size, and is replaced", study.name, file.display());
            return None;
        }
        say!("{}: taken from {}", study.name, file.display());
        Some(part.report)
    }

    fn keep(&self, study: &Study, report: StudyReport) -> Result<StudyReport, LabFault> {
        let Some(file) = self.part_file(study) else { return Ok(report) };
        let part = Part {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            size: self.size.name().to_owned(),
            kernel: self.kernel.is_some(),
            report,
        };
        // Renamed when it is complete, so that an interrupted write leaves no part.
        let fresh = file.with_extension("new");
        write(&fresh, &serde_json::to_string(&part).unwrap_or_default())?;
        fs::rename(&fresh, &file)
            .map_err(|fault| LabFault::Device(format!("{}: {fault}", file.display())))?;
        Ok(part.report)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use extant_lab::Watch;
    use extant_lab::report::Posting;
    use extant_lab::studies::Estimate;

    use super::*;
    use crate::exit;

    static RUNS: AtomicUsize = AtomicUsize::new(0);

    fn estimate(_: Size, _: bool) -> Estimate {
        Estimate { seconds: 1.0, memory_bytes: 1, kernel_image_bytes: 1 }
    }

    fn small(size: Size, _: Option<&Path>, watch: &dyn Watch) -> Result<StudyReport, LabFault> {
        RUNS.fetch_add(1, Ordering::Relaxed);
        watch.part("the only part", Some(1));
        watch.advance(1);
        let text = String::new;
        Ok(StudyReport {
            study: "small".to_owned(),
            question: text(),
            posting: Posting { subject: text(), date: text(), machine: text() },
            command: text(),
            machine: Machine::this(),
            parameters: [("size".to_owned(), size.name().to_owned())].into(),
            seconds: 0.1,
            tables: Vec::new(),
            plots: Vec::new(),
            claims: Vec::new(),
        })
    }

    fn failing(_: Size, _: Option<&Path>, _: &dyn Watch) -> Result<StudyReport, LabFault> {
        Err(LabFault::Device("planted".to_owned()))
    }

    #[test]
    fn finished_studies_are_kept_and_a_failure_does_not_end_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let rules = ALL[0].rules;
        let plan = |size: Size| Plan {
            studies: vec![
                Study { name: "failing", estimate, names: &[], rules, judge: |_| {}, run: failing },
                Study { name: "small", estimate, names: &[], rules, judge: |_| {}, run: small },
            ],
            size,
            kernel: None,
            parts: Some(folder.path().join("parts")),
        };
        for (size, runs) in [(Size::Quick, 1), (Size::Quick, 1), (Size::Full, 2)] {
            let (reports, failed) = plan(size).run(&|_| {}).unwrap();
            assert_eq!((reports.studies.len(), failed), (1, Some(exit::TARGET)));
            assert_eq!(reports.studies[0].parameters["size"], size.name());
            assert_eq!(RUNS.load(Ordering::Relaxed), runs, "{size:?}");
        }
    }
}
