//! The study of orphans: seconds and lock statistics over processes and modes, beside the posting's tables.
//!
//! Owns: the posting's figures, the tables and the plots. Does **not** own: the load (see
//! [`crate::orphans`]), the claims and the notes of the tables (see [`judge`]).

mod claims;
mod trial;

use std::path::Path;
use std::time::Instant;

pub use self::claims::judge;
use super::{Estimate, Size, in_scratch};
use crate::orphans::{FILE_BYTES, Load, Mode, Report, Row as Measured, Study, WIDTHS, run};
use crate::report::{Better, Change, Form, Machine, Plot, Posted, Posting, Row, Series, StudyReport, Table};
use crate::{LabFault, Summary, Watch};

/// One row of the posting's first table: average and standard deviation of the seconds of 10 runs.
struct PostedSeconds {
    workers: usize,
    vanilla: (f64, f64),
    patched: (f64, f64),
    /// The change as the posting prints it.
    percent: f64,
}

const SECONDS: [PostedSeconds; 6] = [
    PostedSeconds { workers: 1, vanilla: (2.7692, 0.056194), patched: (2.75, 0.054772), percent: -0.6 },
    PostedSeconds { workers: 2, vanilla: (5.7565, 0.313268), patched: (5.669, 0.587528), percent: -1.5 },
    PostedSeconds { workers: 4, vanilla: (11.8525, 0.130221), patched: (8.311, 0.257544), percent: -29.9 },
    PostedSeconds { workers: 10, vanilla: (33.5909, 0.394888), patched: (20.162, 0.189832), percent: -40.0 },
    PostedSeconds { workers: 20, vanilla: (71.0354, 0.320914), patched: (55.854, 0.478815), percent: -21.4 },
    PostedSeconds {
        workers: 40,
        vanilla: (236.6711, 2.856885),
        patched: (174.543, 0.974547),
        percent: -26.3,
    },
];

/// The posting's lockstat table, for 10 processes: the column, and its figures before and after the patches.
const LOCKSTAT: [(&str, f64, f64); 12] = [
    ("con-bounces", 7_089_335.0, 2_547_868.0),
    ("contentions", 7_089_335.0, 2_547_868.0),
    ("waittime-min", 9.07, 9.18),
    ("waittime-max", 3_504_220.69, 8_218.64),
    ("waittime-total", 1_473_754_546.28, 547_550_185.12),
    ("waittime-avg", 207.88, 214.91),
    ("acq-bounces", 14_487_647.0, 7_994_533.0),
    ("acquisitions", 16_381_236.0, 8_191_236.0),
    ("holdtime-min", 0.16, 0.16),
    ("holdtime-max", 211.62, 203.81),
    ("holdtime-total", 79_738_146.84, 30_660_307.81),
    ("holdtime-avg", 4.87, 3.74),
];

/// Processes of the posting's lockstat table.
const LOCKSTAT_WORKERS: usize = 10;

/// The question of the study.
const QUESTION: &str = "How does the recording of orphans scale with the number of writers?";

/// The size of the two loads.
struct Scale {
    runs: usize,
    loops: u64,
    creat_runs: usize,
    creat_loops: u64,
}

impl Scale {
    fn of(size: Size) -> Self {
        match size {
            Size::Quick => Self { runs: 8, loops: 4, creat_runs: 5, creat_loops: 1 },
            Size::Full => Self { runs: 10, loops: 16, creat_runs: 10, creat_loops: 3 },
        }
    }
}

/// What the names of rows mean.
pub const NAMES: &[(&str, &str)] = &[
    ("list-v0", "one list under one lock for every check: Vanilla in the posting"),
    ("list-v3", "the list, with the work outside the lock that does not need it: Patched in the posting"),
    ("file", "the orphan file: a slot for each orphan, chosen by CPU, without a common lock"),
    (
        "single-handle",
        "default of extant: the orphan file, but an operation of one transaction records nothing",
    ),
    ("none", "nothing is recorded, but each operation runs the code that would: the bound of lists and file"),
];

/// What the study needs.
#[must_use]
pub fn estimate(size: Size, kernel: bool) -> Estimate {
    let seconds = match size {
        Size::Quick => 50.0,
        Size::Full => 260.0,
    };
    // The kernel is a sixth mode, whose calls take longer.
    Estimate {
        seconds: if kernel { seconds * 1.5 } else { seconds },
        memory_bytes: 1 << 30,
        kernel_image_bytes: super::large_image(size),
    }
}

/// Runs the study.
///
/// # Errors
/// A file system cannot be created, or an operation failed.
pub fn study_report(size: Size, kernel: Option<&Path>, watch: &dyn Watch) -> Result<StudyReport, LabFault> {
    let begun = Instant::now();
    let scale = Scale::of(size);
    let (truncate, creat) = in_scratch(kernel, "extant-lab-orphans", |kernel_dir| {
        let mut study = Study {
            runs: scale.runs,
            loops: Some(scale.loops),
            kernel_dir: kernel_dir.map(Path::to_owned),
            ..Study::default()
        };
        study.modes.extend(kernel_dir.map(|_| Mode::Kernel));
        let truncate = run(&study, watch)?;
        let creat =
            Study { load: Load::CreatClo, runs: scale.creat_runs, loops: Some(scale.creat_loops), ..study };
        Ok((truncate, run(&creat, watch)?))
    })?;
    let mut report = report(&truncate, &creat, Machine::this(), size);
    report.command += if kernel.is_some() { " --kernel" } else { "" };
    report.seconds = begun.elapsed().as_secs_f64();
    judge(&mut report);
    Ok(report)
}

/// The posting. Its text has neither a date nor the version of the kernel: these two are estimates.
fn posting() -> Posting {
    Posting {
        subject: "[PATCH 0/2 v3] Improve orphan list scaling".to_owned(),
        date: "probably 2014".to_owned(),
        machine: "48 CPUs, ext4 on a RAM disk, probably about Linux 3.16".to_owned(),
    }
}

/// The report of these results, without claims and notes.
fn report(truncate: &Report, creat: &Report, machine: Machine, size: Size) -> StudyReport {
    let results = Results { truncate, creat };
    let scale = Scale::of(size);
    let parameters = [
        ("size", size.name().to_owned()),
        ("loops of a process", truncate.loops.to_string()),
        ("runs", scale.runs.to_string()),
        ("loops of a process, creat-clo", creat.loops.to_string()),
        ("runs, creat-clo", scale.creat_runs.to_string()),
        ("processes", "threads of one process, each with its own file in its own directory".to_owned()),
    ];
    StudyReport {
        study: "orphans".to_owned(),
        question: QUESTION.to_owned(),
        posting: posting(),
        command: format!("extant lab all --only orphans --{}", size.name()),
        machine,
        parameters: parameters.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        seconds: 0.0,
        tables: vec![
            results.seconds(),
            results.percent(),
            results.lockstat(),
            results.lockstat_of_all(),
            results.creat_clo(),
        ],
        plots: vec![results.plot_seconds(), results.plot_percent(), results.plot_creat_clo()],
        claims: Vec::new(),
    }
}

struct Results<'a> {
    truncate: &'a Report,
    creat: &'a Report,
}

fn row_of(report: &Report, mode: Mode, workers: usize) -> Option<&Measured> {
    report.rows.iter().find(|row| row.mode == mode && row.workers == workers)
}

fn posted_seconds(mode: Mode, workers: usize) -> Option<(Posted, f64)> {
    let row = SECONDS.iter().find(|row| row.workers == workers)?;
    let (avg, stddev) = match mode {
        Mode::ListV0 => row.vanilla,
        Mode::ListV3 => row.patched,
        _ => return None,
    };
    Some((Posted { runs: Some(10), avg, stddev: Some(stddev), ..Posted::default() }, row.percent))
}

/// The posting's name of a mode behind ours.
fn label(mode: Mode) -> String {
    match mode {
        Mode::ListV0 => "list-v0 (Vanilla)".to_owned(),
        Mode::ListV3 => "list-v3 (Patched)".to_owned(),
        other => other.name().to_owned(),
    }
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.to_owned()).collect()
}

/// Changes against list-v0 in per cent, run by run.
fn percents(these: &Measured, v0: &Measured) -> Vec<f64> {
    these.runs.iter().zip(&v0.runs).map(|(this, that)| (this / that - 1.0) * 100.0).collect()
}

impl Results<'_> {
    fn row(&self, mode: Mode, workers: usize) -> Option<&Measured> {
        row_of(self.truncate, mode, workers)
    }

    /// One row for each number of processes and mode of the engine. The kernel's runs stand beside the mode
    /// that it has by default.
    fn rows(report: &Report, row: impl Fn(&Measured, Option<&Measured>) -> Row) -> Vec<Row> {
        let engine = report.rows.iter().filter(|row| row.mode != Mode::Kernel);
        let rows = engine.map(|measured| {
            let kernel = row_of(report, Mode::Kernel, measured.workers);
            let v0 = row_of(report, Mode::ListV0, measured.workers);
            let mut row = row(measured, v0);
            row.labels = vec![measured.workers.to_string(), label(measured.mode)];
            if measured.mode == Mode::File {
                row.kernel = row.kernel.or(kernel.map(|kernel| kernel.seconds));
            }
            row
        });
        rows.collect()
    }

    fn change(measured: &Measured, v0: Option<&Measured>, of: fn(&Measured) -> Summary) -> Option<Change> {
        let v0 = v0.filter(|v0| v0.mode != measured.mode)?;
        let against = format!("{} {}", v0.workers, label(v0.mode));
        Some(Change::between(&of(measured), &of(v0), &against))
    }

    fn seconds(&self) -> Table {
        let rows = Self::rows(self.truncate, |measured, v0| {
            let posted = posted_seconds(measured.mode, measured.workers);
            let change_is_posted = measured.mode == Mode::ListV3;
            Row {
                posting: posted.map(|(posted, _)| posted),
                posting_change_percent: posted.filter(|_| change_is_posted).map(|(_, percent)| percent),
                change: Self::change(measured, v0, |row| row.seconds),
                extras: vec![Some(measured.per_s), measured.cost_over_none.map(|cost| (cost - 1.0) * 100.0)],
                ..Row::ours(&[], &measured.runs)
            }
        });
        Table {
            id: "seconds".to_owned(),
            title: "Average times of the test program".to_owned(),
            in_posting: true,
            quantity: "time until all processes are done".to_owned(),
            unit: "s".to_owned(),
            better: Better::Lower,
            labels: strings(&["processes", "mode"]),
            extras: strings(&["truncates [1/s]", "cost over none [%]"]),
            rows,
            note: String::new(),
        }
    }

    fn percent(&self) -> Table {
        let mut rows = Vec::new();
        for &workers in &WIDTHS {
            let Some(v0) = self.row(Mode::ListV0, workers) else { continue };
            let kernel = self.row(Mode::Kernel, workers).map(|row| Summary::of(&percents(row, v0)));
            for mode in [Mode::ListV3, Mode::File, Mode::SingleHandle, Mode::None] {
                let Some(measured) = self.row(mode, workers) else { continue };
                let posted = SECONDS.iter().find(|row| row.workers == workers && mode == Mode::ListV3);
                rows.push(Row {
                    posting: posted.map(|row| Posted { avg: row.percent, ..Posted::default() }),
                    kernel: kernel.filter(|_| mode == Mode::File),
                    ..Row::ours(&[&workers.to_string(), &label(mode)], &percents(measured, v0))
                });
            }
        }
        Table {
            id: "against-v0".to_owned(),
            title: "Change of the time against Vanilla, with figures of the posting".to_owned(),
            in_posting: false,
            quantity: "change of the time against list-v0 in the same run".to_owned(),
            unit: "%".to_owned(),
            better: Better::Lower,
            labels: strings(&["processes", "mode"]),
            extras: Vec::new(),
            rows,
            note: String::new(),
        }
    }

    /// Truncates in one run of this many workers.
    fn truncates(&self, workers: usize) -> f64 {
        ((FILE_BYTES - 1) * self.truncate.loops) as f64 * workers as f64
    }

    fn lockstat(&self) -> Table {
        let mut rows = Vec::new();
        for (at, (name, orig, patched)) in LOCKSTAT.into_iter().enumerate() {
            for (mode, posted) in
                [(Mode::ListV0, Some(orig)), (Mode::ListV3, Some(patched)), (Mode::File, None)]
            {
                let Some(measured) = self.row(mode, LOCKSTAT_WORKERS) else { continue };
                let runs: Vec<f64> = measured.locks.iter().map(|lock| lock.columns()[at].1).collect();
                let is_count = !name.contains("time");
                let per_truncate = Summary::of(&runs).avg / self.truncates(LOCKSTAT_WORKERS);
                let name = if is_count { name.to_owned() } else { format!("{name} [us]") };
                rows.push(Row {
                    posting: posted.map(|avg| Posted { runs: Some(1), avg, ..Posted::default() }),
                    extras: vec![is_count.then_some(per_truncate)],
                    ..Row::ours(&[&name, &label(mode)], &runs)
                });
            }
        }
        Table {
            id: "lockstat".to_owned(),
            title: "lockstat of the orphan lock, 10 processes".to_owned(),
            in_posting: true,
            quantity: "statistics of one run".to_owned(),
            unit: String::new(),
            better: Better::Lower,
            labels: strings(&["statistic", "mode"]),
            extras: strings(&["per truncate"]),
            rows,
            note: String::new(),
        }
    }

    fn lockstat_of_all(&self) -> Table {
        let takes_no_lock = [Mode::SingleHandle, Mode::None];
        let measured = self.truncate.rows.iter().filter(|row| !takes_no_lock.contains(&row.mode));
        let measured = measured.filter_map(|row| Some((row, row.lock?)));
        let rows = measured.map(|(row, lock)| {
            let runs: Vec<f64> = row.locks.iter().map(|lock| lock.acquisitions as f64).collect();
            Row {
                extras: lock.columns().iter().map(|(_, value)| Some(*value)).collect(),
                ..Row::ours(&[&label(row.mode), &row.workers.to_string()], &runs)
            }
        });
        let head = |(name, ..): (&str, f64, f64)| {
            if name.contains("time") { format!("{name} [us]") } else { name.to_owned() }
        };
        Table {
            id: "lockstat-all".to_owned(),
            title: "lockstat of the orphan lock, all numbers of processes".to_owned(),
            in_posting: false,
            quantity: "acquisitions of one run".to_owned(),
            unit: String::new(),
            better: Better::Lower,
            labels: strings(&["mode", "processes"]),
            extras: LOCKSTAT.into_iter().map(head).collect(),
            rows: rows.collect(),
            note: String::new(),
        }
    }

    /// Operations per second of each run.
    fn rates(&self, row: &Measured) -> Vec<f64> {
        let operations = self.creat.loops * self.creat.operations_per_loop * row.workers as u64;
        row.runs.iter().map(|seconds| crate::summary::rate(operations, *seconds)).collect()
    }

    fn creat_clo(&self) -> Table {
        let rows = Self::rows(self.creat, |measured, v0| {
            let rates = self.rates(measured);
            let kernel = row_of(self.creat, Mode::Kernel, measured.workers);
            let v0 = v0.filter(|v0| v0.mode != measured.mode);
            Row {
                kernel: kernel
                    .filter(|_| measured.mode == Mode::File)
                    .map(|kernel| Summary::of(&self.rates(kernel))),
                change: v0.map(|v0| {
                    let against = format!("{} {}", v0.workers, label(v0.mode));
                    Change::between(&Summary::of(&rates), &Summary::of(&self.rates(v0)), &against)
                }),
                ..Row::ours(&[], &rates)
            }
        });
        Table {
            id: "creat-clo".to_owned(),
            title: "Creations and unlinks".to_owned(),
            in_posting: false,
            quantity: "rate of creations and unlinks".to_owned(),
            unit: "1/s".to_owned(),
            better: Better::Higher,
            labels: strings(&["processes", "mode"]),
            extras: Vec::new(),
            rows,
            note: String::new(),
        }
    }

    /// A line for each mode.
    fn lines(report: &Report, y: impl Fn(&Measured) -> f64) -> Vec<Series> {
        let modes = Mode::ENGINE.into_iter().chain([Mode::Kernel]);
        let series = modes.map(|mode| Series {
            name: label(mode),
            posting: false,
            points: report
                .rows
                .iter()
                .filter(|row| row.mode == mode)
                .map(|row| (row.workers as f64, y(row)))
                .collect(),
        });
        series.filter(|series| !series.points.is_empty()).collect()
    }

    fn plot_seconds(&self) -> Plot {
        let mut series = Self::lines(self.truncate, |row| row.seconds.avg);
        for (name, of) in [
            ("posting: Vanilla", (|row| row.vanilla.0) as fn(&PostedSeconds) -> f64),
            ("posting: Patched", |row| row.patched.0),
        ] {
            let points = SECONDS.iter().map(|row| (row.workers as f64, of(row))).collect();
            series.push(Series { name: name.to_owned(), posting: true, points });
        }
        Plot {
            id: "seconds".to_owned(),
            title: "Time of the test program".to_owned(),
            x: "processes".to_owned(),
            y: "average time [s]".to_owned(),
            x_log: true,
            y_log: true,
            form: Form::Lines,
            categories: Vec::new(),
            series,
            table: "seconds".to_owned(),
        }
    }

    fn plot_percent(&self) -> Plot {
        let of_mode = |mode: Mode| {
            let points = WIDTHS.iter().enumerate().filter_map(|(at, &workers)| {
                let change = percents(self.row(mode, workers)?, self.row(Mode::ListV0, workers)?);
                Some((at as f64, Summary::of(&change).avg))
            });
            Series { name: label(mode), posting: false, points: points.collect() }
        };
        let posted = SECONDS.iter().enumerate().map(|(at, row)| (at as f64, row.percent));
        Plot {
            id: "against-v0".to_owned(),
            title: "Change of the time against list-v0".to_owned(),
            x: "processes".to_owned(),
            y: "change [%]".to_owned(),
            x_log: false,
            y_log: false,
            form: Form::Bars,
            categories: WIDTHS.iter().map(ToString::to_string).collect(),
            series: vec![
                Series { name: "posting: Patched".to_owned(), posting: true, points: posted.collect() },
                of_mode(Mode::ListV3),
                of_mode(Mode::File),
                of_mode(Mode::SingleHandle),
            ],
            table: "against-v0".to_owned(),
        }
    }

    fn plot_creat_clo(&self) -> Plot {
        Plot {
            id: "creat-clo".to_owned(),
            title: "Creations and unlinks".to_owned(),
            x: "processes".to_owned(),
            y: "operations [1/s]".to_owned(),
            x_log: true,
            y_log: false,
            form: Form::Lines,
            categories: Vec::new(),
            series: Self::lines(self.creat, |row| Summary::of(&self.rates(row)).avg),
            table: "creat-clo".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_posting_is_in_the_report() {
        let study = Study { runs: 2, loops: Some(1), size: 64 << 20, ..Study::default() };
        let truncate = run(&Study { widths: vec![1, 10], ..study.clone() }, &crate::Quiet).unwrap();
        let creat = run(&Study { load: Load::CreatClo, widths: vec![1, 2], ..study }, &crate::Quiet).unwrap();
        // The other numbers of processes would take long: their rows are those of one process.
        let mut all = truncate.clone();
        for workers in [2, 4, 20, 40] {
            let of_one = truncate.rows.iter().filter(|row| row.workers == 1);
            all.rows.extend(of_one.map(|row| Measured { workers, ..row.clone() }));
        }
        let mut report = report(&all, &creat, Machine::this(), Size::Quick);
        judge(&mut report);
        let table = |id: &str| report.tables.iter().find(|table| table.id == id).unwrap();
        let posted = |id: &str| -> Vec<f64> {
            table(id).rows.iter().filter_map(|row| Some(row.posting?.avg)).collect()
        };
        let mut seconds = posted("seconds");
        let mut of_posting: Vec<f64> =
            SECONDS.iter().flat_map(|row| [row.vanilla.0, row.patched.0]).collect();
        seconds.sort_by(f64::total_cmp);
        of_posting.sort_by(f64::total_cmp);
        assert_eq!(seconds, of_posting);
        assert_eq!(posted("against-v0"), [-0.6, -1.5, -29.9, -40.0, -21.4, -26.3]);
        let lockstat: Vec<f64> = LOCKSTAT.iter().flat_map(|(_, orig, patched)| [*orig, *patched]).collect();
        assert_eq!(posted("lockstat"), lockstat);
        for table in &report.tables {
            assert!(!table.rows.is_empty() && !table.note.is_empty(), "{}", table.id);
            for row in &table.rows {
                assert_eq!((row.labels.len(), row.extras.len()), (table.labels.len(), table.extras.len()));
                assert!(row.ours.is_some_and(|ours| ours.runs == 2), "{} {:?}", table.id, row.labels);
            }
        }
        for plot in &report.plots {
            assert!(plot.series.iter().all(|series| !series.points.is_empty()), "{}", plot.id);
            assert!(report.tables.iter().any(|table| table.id == plot.table));
        }
    }
}
