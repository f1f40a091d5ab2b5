//! The study of orphans: seconds and lock statistics over processes and modes, beside the posting's tables.
//!
//! Owns: the posting's figures, and the verdicts on its claims. Does **not** own: the load (see
//! [`crate::orphans`]).

use std::path::Path;
use std::time::Instant;

use super::{Estimate, Size, in_scratch};
use crate::orphans::{FILE_BYTES, Load, Mode, Report, Row as Measured, Study, WIDTHS, run};
use crate::report::{
    Better, Change, Claim, Form, Machine, Plot, Posted, Posting, Row, Series, StudyReport, Table, Verdict,
};
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
    ("none", "nothing is recorded: the bound of what any form can reach"),
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
    Ok(report)
}

/// The report of these results.
fn report(truncate: &Report, creat: &Report, machine: Machine, size: Size) -> StudyReport {
    let results = Results { truncate, creat, cpus: machine.cpus };
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
        question: "How does the recording of orphans scale with the number of writers?".to_owned(),
        posting: Posting {
            subject: "[PATCH 0/2 v3] Improve orphan list scaling".to_owned(),
            date: "2014".to_owned(),
            machine: "48 CPUs, ext4 on a RAM disk, about Linux 3.16".to_owned(),
        },
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
        claims: results.claims(),
    }
}

struct Results<'a> {
    truncate: &'a Report,
    creat: &'a Report,
    cpus: usize,
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
            note: format!(
                "Each process truncates a file of 4 KiB byte by byte, {} times; seconds depend on that \
                 number, so compare rows of the same number of processes. {} The kernel's column has its \
                 orphan file, if the mounted image has that feature.",
                self.truncate.loops,
                self.agreement()
            ),
        }
    }

    /// Which numbers of processes agree with the posting about list-v3.
    fn agreement(&self) -> String {
        let (mut same, mut other) = (Vec::new(), Vec::new());
        for posted in &SECONDS {
            let change = self
                .row(Mode::ListV3, posted.workers)
                .and_then(|v3| Self::change(v3, self.row(Mode::ListV0, posted.workers), |row| row.seconds));
            let Some(change) = change else { continue };
            let is_same = if posted.percent > -5.0 {
                change.percent.abs() < 5.0 || change.significant == Some(false)
            } else {
                change.significant != Some(false) && change.percent <= posted.percent / 2.0
            };
            let text =
                format!("{} ({:+.1} %, there {:+.1} %)", posted.workers, change.percent, posted.percent);
            if is_same { same.push(text) } else { other.push(text) }
        }
        let list = |all: &[String]| if all.is_empty() { "none".to_owned() } else { all.join(", ") };
        format!(
            "list-v3 against list-v0 agrees with the posting within a factor of two at: {}; does not at: {}.",
            list(&same),
            list(&other)
        )
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
            title: "Change of the time against Vanilla".to_owned(),
            in_posting: true,
            quantity: "change of the time against list-v0 in the same run".to_owned(),
            unit: "%".to_owned(),
            better: Better::Lower,
            labels: strings(&["processes", "mode"]),
            extras: Vec::new(),
            rows,
            note: self.agreement(),
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
        let per_truncate = |mode: Mode| {
            let row = self.row(mode, LOCKSTAT_WORKERS);
            let all = row.and_then(|row| row.lock).map_or(0.0, |lock| lock.acquisitions as f64);
            all / row.map_or(1, |row| row.locks.len().max(1)) as f64 / self.truncates(LOCKSTAT_WORKERS)
        };
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
            note: format!(
                "Acquisitions per truncate: list-v0 {:.2}, list-v3 {:.2}, file {:.2}. The posting's counts \
                 are 4 and 2 per truncate, if its processes made 100 loops. A bounce is an acquisition (or a \
                 contention) on another CPU than the acquisition before.",
                per_truncate(Mode::ListV0),
                per_truncate(Mode::ListV3),
                per_truncate(Mode::File)
            ),
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
            note: "The columns of lockstat are sums, minima, maxima and averages over all runs. The modes \
                   file, single-handle and none have no lock."
                .to_owned(),
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
        let most = WIDTHS.last().copied().unwrap_or(1);
        let rate = |mode| row_of(self.creat, mode, most).map_or(0.0, |row| row.per_s);
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
            note: format!(
                "Each process creates and closes 1000 files, then unlinks them. With {most} processes the \
                 rate of list-v3 is {:.2} times that of list-v0, and that of file {:.2} times.",
                rate(Mode::ListV3) / rate(Mode::ListV0).max(1.0),
                rate(Mode::File) / rate(Mode::ListV0).max(1.0)
            ),
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

    fn claims(&self) -> Vec<Claim> {
        let mut claims = vec![self.halved()];
        claims.extend([10, 20, 40].into_iter().filter_map(|workers| self.faster(workers)));
        claims.extend([self.contentions(), self.hold(), self.no_lock()].into_iter().flatten());
        claims
    }

    /// A statistic of one run at the lockstat table's number of processes, averaged over runs.
    fn lock(&self, mode: Mode, column: &str) -> f64 {
        let at = LOCKSTAT.iter().position(|(name, ..)| *name == column).unwrap_or(0);
        let row = self.row(mode, LOCKSTAT_WORKERS);
        let runs = row.map_or(Vec::new(), |row| row.locks.iter().map(|lock| lock.columns()[at].1).collect());
        Summary::of(&runs).avg
    }

    fn halved(&self) -> Claim {
        let (v0, v3) = (self.lock(Mode::ListV0, "acquisitions"), self.lock(Mode::ListV3, "acquisitions"));
        let ratio = v3 / v0.max(1.0);
        let all = self.truncates(LOCKSTAT_WORKERS);
        Claim {
            claim: "The patches halve the number of acquisitions of the lock.".to_owned(),
            posting: "16,381,236 to 8,191,236 (-50.0 %)".to_owned(),
            ours: format!("{v0:.0} to {v3:.0} ({:+.1} %)", (ratio - 1.0) * 100.0),
            kernel: None,
            verdict: match () {
                () if v0 == 0.0 => Verdict::Open,
                () if (0.45..=0.55).contains(&ratio) => Verdict::Confirmed,
                () => Verdict::Refuted,
            },
            why: format!(
                "A truncate takes the lock {:.2} times in list-v0 and {:.2} times in list-v3.",
                v0 / all,
                v3 / all
            ),
            tables: strings(&["lockstat"]),
        }
    }

    /// Why contention cannot show on this machine; none if it can.
    fn too_few_cpus(&self, workers: usize) -> Option<String> {
        let needed = workers.min(LOCKSTAT_WORKERS);
        let acquisitions = self.lock(Mode::ListV0, "acquisitions").max(1.0);
        let contended = self.lock(Mode::ListV0, "contentions") / acquisitions;
        (self.cpus < needed).then(|| {
            format!(
                "This machine has {} CPUs, so at most {} of {workers} processes run at the same time, and \
                 {:.2} % of the acquisitions of list-v0 are contended (43 % in the posting).",
                self.cpus,
                self.cpus,
                contended * 100.0
            )
        })
    }

    fn faster(&self, workers: usize) -> Option<Claim> {
        let posted = SECONDS.iter().find(|row| row.workers == workers)?;
        let v0 = self.row(Mode::ListV0, workers)?;
        let v3 = Self::change(self.row(Mode::ListV3, workers)?, Some(v0), |row| row.seconds)?;
        let file = Self::change(self.row(Mode::File, workers)?, Some(v0), |row| row.seconds)?;
        let is_there = v3.significant == Some(true) && v3.percent <= posted.percent / 2.0;
        let few = self.too_few_cpus(workers);
        let verdict = match () {
            () if is_there && file.percent < v3.percent && file.significant == Some(true) => Verdict::Beaten,
            () if is_there => Verdict::Confirmed,
            () if few.is_some() => Verdict::Open,
            () => Verdict::Refuted,
        };
        let interval = v3.plus_minus_percent.map_or(String::new(), |half| format!(" +- {half:.1}"));
        let orphan_file = format!("With the orphan file the change is {:+.1} %.", file.percent);
        let why = match (is_there, few) {
            (true, _) => format!("At least half of the posting's effect, at 95 % confidence. {orphan_file}"),
            (false, Some(few)) => format!("{few} {orphan_file}"),
            (false, None) => {
                format!("Less than half of the posting's effect, or none at 95 % confidence. {orphan_file}")
            }
        };
        Some(Claim {
            claim: format!("With {workers} processes the patches save {:.0} % of the time.", -posted.percent),
            posting: format!(
                "{:.2} s to {:.2} s ({:+.1} %)",
                posted.vanilla.0, posted.patched.0, posted.percent
            ),
            ours: format!("{:+.1}{interval} %; orphan file {:+.1} %", v3.percent, file.percent),
            kernel: self.row(Mode::Kernel, workers).map(|kernel| {
                let change = percents(kernel, v0);
                format!("{:+.1} % against our list-v0, system calls included", Summary::of(&change).avg)
            }),
            verdict,
            why,
            tables: strings(&["seconds", "against-v0"]),
        })
    }

    fn contentions(&self) -> Option<Claim> {
        self.row(Mode::ListV3, LOCKSTAT_WORKERS)?;
        let (v0, v3) = (self.lock(Mode::ListV0, "contentions"), self.lock(Mode::ListV3, "contentions"));
        let percent = (v3 / v0.max(1.0) - 1.0) * 100.0;
        let few = self.too_few_cpus(LOCKSTAT_WORKERS);
        let is_less = percent <= -32.0;
        Some(Claim {
            claim: "The patches reduce the contention of the lock significantly.".to_owned(),
            posting: "7,089,335 to 2,547,868 contentions (-64 %)".to_owned(),
            ours: format!("{v0:.0} to {v3:.0} contentions ({percent:+.0} %)"),
            kernel: None,
            verdict: match () {
                () if is_less && v0 >= 100.0 => Verdict::Confirmed,
                () if few.is_some() || v0 < 100.0 => Verdict::Open,
                () => Verdict::Refuted,
            },
            why: match few {
                Some(few) if !is_less || v0 < 100.0 => few,
                _ => format!(
                    "Contentions fall by {:.0} %; half of the posting's 64 % counts as the same effect.",
                    -percent
                ),
            },
            tables: strings(&["lockstat"]),
        })
    }

    fn hold(&self) -> Option<Claim> {
        let runs = |mode| {
            let locks = &self.row(mode, LOCKSTAT_WORKERS)?.locks;
            Some(Summary::of(&locks.iter().map(|lock| lock.hold_total_us / 1e3).collect::<Vec<_>>()))
        };
        let (v0, v3) = (runs(Mode::ListV0)?, runs(Mode::ListV3)?);
        let change = Change::between(&v3, &v0, "list-v0");
        let (percent, half) = (change.percent, change.plus_minus_percent.unwrap_or(0.0));
        Some(Claim {
            claim: "The patched kernel does significantly less work under the lock.".to_owned(),
            posting: "79.7 s to 30.7 s held in total (-62 %); 4.87 us to 3.74 us on average".to_owned(),
            ours: format!(
                "{:.1} ms to {:.1} ms held in total ({percent:+.0} +- {half:.0} %); {:.3} us to {:.3} us on \
                 average",
                v0.avg,
                v3.avg,
                self.lock(Mode::ListV0, "holdtime-avg"),
                self.lock(Mode::ListV3, "holdtime-avg")
            ),
            kernel: None,
            verdict: match change.significant {
                Some(true) if percent <= -31.0 => Verdict::Confirmed,
                Some(true) => Verdict::Refuted,
                _ => Verdict::Open,
            },
            why: format!(
                "The total hold time changes by {percent:+.0} +- {half:.0} %; -31 % or more, at 95 % \
                 confidence, counts as the same effect. Time for which a holder of the lock has no CPU is \
                 part of it."
            ),
            tables: strings(&["lockstat"]),
        })
    }

    fn no_lock(&self) -> Option<Claim> {
        let most = WIDTHS.last().copied()?;
        let (file, v3) = (self.row(Mode::File, most)?, self.row(Mode::ListV3, most)?);
        let acquisitions: u64 = self
            .truncate
            .rows
            .iter()
            .filter(|row| row.mode == Mode::File)
            .map(|row| row.lock.map_or(0, |lock| lock.acquisitions))
            .sum();
        let change = Change::between(&file.seconds, &v3.seconds, "list-v3");
        let is_slower = change.percent > 0.0 && change.significant == Some(true);
        let cost = file.cost_over_none.map_or(0.0, |cost| (cost - 1.0) * 100.0);
        Some(Claim {
            claim: "The lock stays the most contended one: a list with one head needs it.".to_owned(),
            posting: "8,191,236 acquisitions with the patches".to_owned(),
            ours: format!(
                "the orphan file: {acquisitions} acquisitions; {:+.1} % against list-v3 with {most} \
                 processes; {cost:+.1} % over no recording",
                change.percent
            ),
            kernel: None,
            verdict: if acquisitions == 0 && !is_slower { Verdict::Beaten } else { Verdict::Refuted },
            why: format!(
                "The orphan file (Linux 5.15) records each orphan in a slot of its own and takes no lock; \
                 with {most} processes it is {} list-v3.",
                match change.significant {
                    Some(true) if change.percent < 0.0 => "faster than",
                    Some(true) => "slower than",
                    _ => "as fast as",
                }
            ),
            tables: strings(&["seconds", "lockstat-all"]),
        })
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
        let report = report(&all, &creat, Machine::this(), Size::Quick);
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
        let verdicts: Vec<Verdict> = report.claims.iter().map(|claim| claim.verdict).collect();
        assert_eq!(verdicts[0], Verdict::Confirmed, "{:?}", report.claims[0]);
        assert_eq!(report.claims.len(), 7);
        assert!(report.claims.iter().all(|claim| !claim.why.is_empty() && !claim.tables.is_empty()));
    }

    #[test]
    fn few_cpus_leave_a_missing_effect_open_and_many_refute_it() {
        let study = Study { runs: 2, loops: Some(1), size: 64 << 20, widths: vec![1], ..Study::default() };
        let mut all = run(&study, &crate::Quiet).unwrap();
        for row in &mut all.rows {
            row.workers = 10;
            row.runs = vec![1.0, 1.01];
            row.seconds = Summary::of(&row.runs);
        }
        let verdict =
            |all: &Report, cpus| Results { truncate: all, creat: all, cpus }.faster(10).unwrap().verdict;
        assert_eq!((verdict(&all, 2), verdict(&all, 16)), (Verdict::Open, Verdict::Refuted));
        let set = |all: &mut Report, mode, runs: [f64; 2]| {
            let row = all.rows.iter_mut().find(|row| row.mode == mode).unwrap();
            row.runs = runs.to_vec();
            row.seconds = Summary::of(&runs);
        };
        set(&mut all, Mode::ListV3, [0.6, 0.601]);
        assert_eq!(verdict(&all, 2), Verdict::Confirmed);
        set(&mut all, Mode::File, [0.5, 0.501]);
        assert_eq!(verdict(&all, 2), Verdict::Beaten);
    }
}
