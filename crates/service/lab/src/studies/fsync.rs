//! The study of flushes: fsync-happy on modelled devices, in all modes.
//!
//! ```text
//! cost         per device and mode at 16 threads    1 - throughput with / without flushes, of the same work
//! threads      the same over 1 to 16 threads
//! rate, flushes, traffic    the same runs in operations, flushes and bytes
//! latency      one thread: the median time of an fsync
//! tuning       devices with flush times around 2 ms: whether the mode `seed` coordinates
//! memory       without a modelled device, beside the kernel's ext4
//! ```
//!
//! In each run all modes do the same operations (same seed), so costs are compared within a run.

mod claims;

pub use claims::judge;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use extant_device::Model;
use extant_flush::Mode;

use super::{Estimate, Size};
use crate::drive;
use crate::fsync::happy::{self, CACHE_BYTES, DEVICE_BYTES};
use crate::fsync::turn::{self, Outcome, Setup, Stack, Turn};
use crate::fsync::{Load, On, Study};
use crate::report::{Better, Change, Form, Machine, Plot, Posted, Posting, Row, Series, StudyReport, Table};
use crate::summary::rate;
use crate::{LabFault, Summary, Watch};

/// Threads of the main table: the posting has "many I/O threads".
const THREADS: usize = 16;
/// The clock of slow disks is so many times as fast as their model.
const FASTER: u32 = 32;
/// Operations of a turn at least.
const OPERATIONS_MIN: u64 = 48;
/// The mode names of the posting's design without its limit of 2 ms.
const ALWAYS: &str = "seed, always";

const fn single(name: &'static str, model: Model, speed: u32) -> Setup {
    Setup { name, model: Some(model), second: None, stack: Stack::Single, speed }
}

const fn stack(name: &'static str, model: Model, second: Model, stack: Stack) -> Setup {
    Setup { name, model: Some(model), second: Some(second), stack, speed: FASTER }
}

const SETUPS: [Setup; 9] = [
    single("ide", Model::IDE, FASTER),
    single("sata-hdd", Model::HDD, FASTER),
    single("sata-ssd", Model::SATA_SSD, 1),
    single("array, battery", Model::ARRAY, 1),
    single("array, draining", Model { drains: true, ..Model::ARRAY }, 1),
    single("sata-hdd, no cache", Model::HDD_NOWC, FASTER),
    stack("md mirror of 2 ide", Model::IDE, Model::IDE, Stack::Mirror),
    stack("md stripe of 2 ide", Model::IDE, Model::IDE, Stack::Stripe),
    stack("dm linear (sata-hdd + ide)", Model::HDD, Model::IDE, Stack::Linear),
];
const IDE: &str = "ide";
const ARRAY: &str = "array, battery";
/// The same array if a flush waits for all requests, as the barriers before 2.6.37-rc1 did.
const DRAINING: &str = "array, draining";
const NO_CACHE: &str = "sata-hdd, no cache";

const MEMORY: Setup = Setup { name: "memory", model: None, second: None, stack: Stack::Single, speed: 1 };

/// Times and numbers of runs.
struct Scale {
    /// Duration of a turn in which each fsync makes a flush, in the main table.
    turn: Duration,
    runs: u64,
    /// Devices, modes, threads and runs of the table over threads.
    threads_of: &'static [&'static str],
    threads_modes: &'static [Mode],
    widths: &'static [usize],
    threads_turn: Duration,
    threads_runs: u64,
    /// Duration of a turn of the tuning.
    tuning: Duration,
}

impl Scale {
    fn of(size: Size) -> Self {
        match size {
            Size::Quick => Self {
                turn: Duration::from_millis(300),
                runs: 3,
                threads_of: &[IDE],
                threads_modes: &[Mode::None, Mode::Seed, Mode::Epoch],
                widths: &[1, 2, 4, 8],
                threads_turn: Duration::from_millis(300),
                threads_runs: 2,
                tuning: Duration::from_millis(250),
            },
            Size::Full => Self {
                turn: Duration::from_secs(3),
                runs: 6,
                threads_of: &[IDE, "sata-ssd", ARRAY],
                threads_modes: &[Mode::None, Mode::Seed, Mode::Merge, Mode::Epoch],
                widths: &[1, 2, 4, 8],
                threads_turn: Duration::from_secs(2),
                threads_runs: 4,
                tuning: Duration::from_secs(1),
            },
        }
    }
}

/// What the names of rows mean.
pub const NAMES: &[(&str, &str)] = &[
    ("no barrier", "no flushes: the bound; costs are relative to it"),
    ("none", "each fsync makes its own flush: before the series"),
    ("seed", "rounds whose leader waits a little for others: the proposal of the posting"),
    ("merge", "rounds without a wait: requests during a flush share the next one"),
    ("epoch", "default of extant: merge, and none for a request that an earlier flush covers"),
    ("empty-txn", "an empty commit of the journal in place of a flush: the first design of the series"),
    ("mirror, stripe, linear", "two disks as md RAID1, md RAID0 and a linear dm target"),
];

/// What the study needs.
#[must_use]
pub fn estimate(size: Size, kernel: bool) -> Estimate {
    let seconds = match size {
        Size::Quick => 115.0,
        Size::Full => 1500.0,
    };
    Estimate {
        seconds: seconds + if kernel { 10.0 } else { 0.0 },
        memory_bytes: 1 << 30,
        kernel_image_bytes: super::large_image(size),
    }
}

/// A row of the modes: name, mode, and whether `seed` ignores its limit of 2 ms.
type Column = (&'static str, Option<Mode>, bool);

const COLUMNS: [Column; 6] = [
    ("no barrier", None, false),
    ("none", Some(Mode::None), false),
    ("seed", Some(Mode::Seed), false),
    ("merge", Some(Mode::Merge), false),
    ("epoch", Some(Mode::Epoch), false),
    ("empty-txn", Some(Mode::EmptyTxn), false),
];

/// The modes of a device in the main table.
fn columns_of(setup: &Setup) -> Vec<Column> {
    let is_kept = |column: &Column| match setup {
        Setup { name: DRAINING, .. } => matches!(column.1, None | Some(Mode::None)),
        Setup { stack: Stack::Single, .. } => true,
        _ => !matches!(column.1, Some(Mode::Merge | Mode::EmptyTxn)),
    };
    let mut columns: Vec<Column> = COLUMNS.into_iter().filter(is_kept).collect();
    if setup.name == ARRAY {
        columns.push((ALWAYS, Some(Mode::Seed), true));
    }
    columns
}

/// Whether a device has a volatile cache, so that a flush takes long.
fn has_volatile_cache(device: &str) -> bool {
    ![ARRAY, DRAINING, NO_CACHE].contains(&device)
}

/// The outcomes of one device, number of threads and mode, one for each run.
type Outcomes = BTreeMap<(&'static str, usize, &'static str), Vec<Outcome>>;

struct Measured {
    outcomes: Outcomes,
}

impl Measured {
    fn of(&self, device: &'static str, threads: usize, mode: &'static str) -> &[Outcome] {
        self.outcomes.get(&(device, threads, mode)).map_or(&[], Vec::as_slice)
    }

    fn values(
        &self,
        (device, threads, mode): (&'static str, usize, &'static str),
        value: impl Fn(&Outcome) -> f64,
    ) -> Vec<f64> {
        self.of(device, threads, mode).iter().map(value).collect()
    }

    fn mean(&self, key: (&'static str, usize, &'static str), value: impl Fn(&Outcome) -> f64) -> Option<f64> {
        let values = self.values(key, value);
        (!values.is_empty()).then(|| Summary::of(&values).avg)
    }

    /// Costs in per cent of the run without flushes, one for each run.
    fn costs(&self, device: &'static str, threads: usize, mode: &'static str) -> Vec<f64> {
        let without = self.of(device, threads, COLUMNS[0].0);
        let with = self.of(device, threads, mode);
        let cost = |(with, without): (&Outcome, &Outcome)| (1.0 - with.per_s / without.per_s) * 100.0;
        with.iter().zip(without).map(cost).collect()
    }

    fn cost(&self, device: &'static str, mode: &'static str) -> Option<Summary> {
        let costs = self.costs(device, THREADS, mode);
        (!costs.is_empty()).then(|| Summary::of(&costs))
    }
}

fn measure(
    setup: &Setup,
    columns: &[Column],
    threads: usize,
    runs: u64,
    time: Duration,
    into: &mut Outcomes,
) -> Result<(), LabFault> {
    // The first turn finds how many operations take that time if each fsync makes a flush.
    let mut operations = OPERATIONS_MIN.max(4 * threads as u64);
    let pilot = Turn {
        mode: Some(Mode::None),
        syncs: true,
        always: false,
        threads,
        operations,
        seed: 99,
        cache_bytes: CACHE_BYTES,
    };
    let pilot = turn::run(setup, &pilot)?;
    let per_turn = pilot.per_s * time.as_secs_f64() * f64::from(setup.speed);
    operations = OPERATIONS_MIN.max(per_turn as u64);
    for run in 0..runs {
        for &(name, mode, always) in columns {
            let turn = Turn {
                mode,
                syncs: true,
                always,
                threads,
                operations,
                seed: 1 + run,
                cache_bytes: CACHE_BYTES,
            };
            let outcome = turn::run(setup, &turn)?;
            into.entry((setup.name, threads, name)).or_default().push(outcome);
        }
    }
    Ok(())
}

/// Runs the study.
///
/// # Errors
/// The device failed, or a system call in `kernel`.
pub fn study_report(size: Size, kernel: Option<&Path>, watch: &dyn Watch) -> Result<StudyReport, LabFault> {
    let begun = Instant::now();
    let scale = Scale::of(size);
    let mut measured = Measured { outcomes: Outcomes::new() };
    for setup in &SETUPS {
        watch.part(&format!("{}, {THREADS} threads", setup.name), None);
        measure(setup, &columns_of(setup), THREADS, scale.runs, scale.turn, &mut measured.outcomes)?;
    }
    let narrow: Vec<Column> = COLUMNS
        .into_iter()
        .filter(|(_, mode, _)| mode.is_none_or(|mode| scale.threads_modes.contains(&mode)))
        .collect();
    for setup in SETUPS.iter().filter(|setup| scale.threads_of.contains(&setup.name)) {
        for &threads in scale.widths {
            watch.part(&format!("{}, {threads} threads", setup.name), None);
            measure(setup, &narrow, threads, scale.threads_runs, scale.threads_turn, &mut measured.outcomes)?;
        }
    }
    // One thread on the other kinds of disks, for the table of latencies.
    for setup in SETUPS.iter().filter(|setup| setup.stack == Stack::Single && setup.name != DRAINING) {
        if measured.of(setup.name, 1, "none").is_empty() {
            watch.part(&format!("{}, 1 thread", setup.name), None);
            measure(setup, &narrow, 1, scale.threads_runs, scale.threads_turn, &mut measured.outcomes)?;
        }
    }
    watch.part("auto-tuning", None);
    let tuning = tuning(&scale, watch)?;
    watch.part("memory", None);
    let memory = memory(&scale, kernel)?;

    let cost = cost_table(&measured);
    let plots = vec![cost_plot(&measured), threads_plot(&measured, &scale), tuning_plot(&tuning)];
    let tables = vec![
        cost,
        threads_table(&measured, &scale),
        rate_table(&measured),
        flushes_table(&measured),
        traffic_table(&measured),
        latency_table(&measured),
        tuning,
        memory,
    ];
    let mut report = StudyReport {
        command: format!("extant lab all --{} --only fsync{}", size.name(), super::kernel_option(kernel)),
        seconds: begun.elapsed().as_secs_f64(),
        tables,
        plots,
        ..empty(&parameters(size, &scale))
    };
    judge(&mut report);
    Ok(report)
}

/// What changes figures: the size, the load, and the models of the devices.
fn parameters(size: Size, scale: &Scale) -> Vec<(&'static str, String)> {
    let mut parameters = vec![
        ("size", size.name().to_owned()),
        ("turn [s]", scale.turn.as_secs_f64().to_string()),
        ("runs", scale.runs.to_string()),
        ("clock of slow disks", format!("{FASTER} times as fast as the model")),
        ("load fsync-happy", happy::describe()),
    ];
    let single = SETUPS.iter().filter(|setup| setup.stack == Stack::Single);
    parameters.extend(single.filter_map(|setup| Some((setup.name, drive::describe(&setup.model?)))));
    parameters
}

/// A report without figures.
fn empty(parameters: &[(&str, String)]) -> StudyReport {
    StudyReport {
        study: "fsync".to_owned(),
        question: "What does fsync cost on a kind of disk, and what do shared flushes save?".to_owned(),
        posting: Posting {
            subject: "[PATCH v6 0/4] ext4: Coordinate data-only flush requests sent by fsync".to_owned(),
            date: "29 November 2010".to_owned(),
            machine: "a fairly large variety of disks and arrays; Linux 2.6.37-rc3".to_owned(),
        },
        command: String::new(),
        machine: Machine::this(),
        parameters: parameters.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
        seconds: 0.0,
        tables: Vec::new(),
        plots: Vec::new(),
        claims: Vec::new(),
    }
}

fn table(id: &str, title: &str, quantity: &str, unit: &str, better: Better, labels: &[&str]) -> Table {
    Table {
        id: id.to_owned(),
        title: title.to_owned(),
        in_posting: false,
        quantity: quantity.to_owned(),
        unit: unit.to_owned(),
        better,
        labels: labels.iter().map(|&label| label.to_owned()).collect(),
        extras: Vec::new(),
        rows: Vec::new(),
        note: String::new(),
    }
}

/// Each device with each mode that was measured at this number of threads.
fn each(measured: &Measured, threads: usize) -> Vec<(&'static str, &'static str)> {
    let mut keys = Vec::new();
    for setup in &SETUPS {
        let columns = COLUMNS.iter().map(|column| column.0).chain([ALWAYS]);
        keys.extend(
            columns
                .filter(|mode| !measured.of(setup.name, threads, mode).is_empty())
                .map(|mode| (setup.name, mode)),
        );
    }
    keys
}

/// The posting's figures, over all of its devices: mode, lowest and highest. It gives only ranges, in its
/// text.
const POSTED: [(&str, f64, f64); 3] =
    [("barriers before 2.6.37-rc1", 80.0, 80.0), ("none", 25.0, 30.0), ("seed", 5.0, 14.0)];

fn cost_table(measured: &Measured) -> Table {
    let title = format!("fsync-happy: cost of flushes, {THREADS} threads");
    let quantity = "cost of flushes, in per cent of the throughput without";
    let mut table = table("cost", &title, quantity, "%", Better::Lower, &["device", "mode"]);
    let extras = [
        "± at 95 % [points]",
        "less than none [points]",
        "±, less than none [points]",
        "less than seed [points]",
        "±, less than seed [points]",
        "flush [us]",
        "flushes [1/fsync]",
    ];
    table.extras = extras.map(str::to_owned).to_vec();
    for (mode, min, max) in POSTED {
        let avg = f64::midpoint(min, max);
        table.rows.push(Row {
            posting: Some(Posted {
                min: (min < max).then_some(min),
                max: (min < max).then_some(max),
                avg,
                ..Posted::default()
            }),
            extras: vec![None; extras.len()],
            ..Row::ours(&["a variety", mode], &[])
        });
    }
    for (device, mode) in each(measured, THREADS).into_iter().filter(|(_, mode)| *mode != COLUMNS[0].0) {
        let key = (device, THREADS, mode);
        let costs = measured.costs(device, THREADS, mode);
        let half = Summary::of(&costs).half_95();
        let per_fsync = |outcome: &Outcome| outcome.flushes as f64 / outcome.fsyncs.max(1) as f64;
        let less = |than: &'static str| {
            let other = measured.costs(device, THREADS, than);
            let less: Vec<f64> = other.iter().zip(&costs).map(|(other, cost)| other - cost).collect();
            let summary = (mode != than && !less.is_empty()).then(|| Summary::of(&less));
            [summary.map(|summary| summary.avg), summary.and_then(|summary| summary.half_95())]
        };
        let mut extras = vec![half];
        extras.extend(less("none").into_iter().chain(less("seed")));
        extras.push(measured.mean(key, |outcome| outcome.flush_us));
        extras.push(measured.mean(key, per_fsync));
        table.rows.push(Row { extras, ..Row::ours(&[device, mode], &costs) });
    }
    table
}

fn threads_table(measured: &Measured, scale: &Scale) -> Table {
    let quantity = "cost of flushes, in per cent of the throughput without";
    let labels = ["device", "mode", "threads"];
    let mut table = table("threads", "fsync-happy: cost over threads", quantity, "%", Better::Lower, &labels);
    for setup in SETUPS.iter().filter(|setup| scale.threads_of.contains(&setup.name)) {
        for (mode, _, _) in COLUMNS.iter().skip(1) {
            for &threads in scale.widths.iter().chain(&[THREADS]) {
                let costs = measured.costs(setup.name, threads, mode);
                if !costs.is_empty() && !measured.of(setup.name, 1, mode).is_empty() {
                    table.rows.push(Row::ours(&[setup.name, mode, &threads.to_string()], &costs));
                }
            }
        }
    }
    table
}

/// Rows with a change against the mode `none` of the same device.
fn changed(measured: &Measured, threads: usize, rows: &mut Vec<Row>, value: impl Fn(&Outcome) -> f64 + Copy) {
    for (device, mode) in each(measured, threads) {
        let ours = measured.values((device, threads, mode), value);
        let none = measured.values((device, threads, "none"), value);
        let change = (mode != "none" && !none.is_empty())
            .then(|| Change::between(&Summary::of(&ours), &Summary::of(&none), &format!("{device} none")));
        rows.push(Row { change, ..Row::ours(&[device, mode], &ours) });
    }
}

fn rate_table(measured: &Measured) -> Table {
    let title = format!("fsync-happy: throughput, {THREADS} threads");
    let mut table = table("rate", &title, "operations", "1/s", Better::Higher, &["device", "mode"]);
    changed(measured, THREADS, &mut table.rows, |outcome| outcome.per_s);
    table
}

fn flushes_table(measured: &Measured) -> Table {
    let title = format!("Flushes per fsync, {THREADS} threads");
    let mut table = table("flushes", &title, "flushes", "1/fsync", Better::Lower, &["device", "mode"]);
    table.extras = ["joined [1/fsync]", "covered [1/fsync]", "bypassed [1/fsync]", "by commits [1/fsync]"]
        .map(str::to_owned)
        .to_vec();
    for (device, mode) in each(measured, THREADS).into_iter().filter(|(_, mode)| *mode != COLUMNS[0].0) {
        let key = (device, THREADS, mode);
        let per = |count: fn(&Outcome) -> u64| {
            move |outcome: &Outcome| count(outcome) as f64 / outcome.fsyncs.max(1) as f64
        };
        let extras: [fn(&Outcome) -> u64; 4] = [
            |outcome| outcome.counts.joined,
            |outcome| outcome.counts.covered,
            |outcome| outcome.counts.bypassed,
            |outcome| outcome.counts.others,
        ];
        table.rows.push(Row {
            extras: extras.into_iter().map(|count| measured.mean(key, per(count))).collect(),
            ..Row::ours(&[device, mode], &measured.values(key, per(|outcome| outcome.flushes)))
        });
    }
    table
}

fn traffic_table(measured: &Measured) -> Table {
    let title = format!("Write traffic per fsync, {THREADS} threads");
    let mut table =
        table("traffic", &title, "bytes written", "KiB/fsync", Better::Lower, &["device", "mode"]);
    changed(measured, THREADS, &mut table.rows, kibibytes);
    table
}

fn kibibytes(outcome: &Outcome) -> f64 {
    outcome.written_bytes as f64 / 1024.0 / outcome.fsyncs.max(1) as f64
}

fn latency_table(measured: &Measured) -> Table {
    let mut table = table(
        "latency",
        "One thread: time of an fsync",
        "median time",
        "us",
        Better::Lower,
        &["device", "mode"],
    );
    changed(measured, 1, &mut table.rows, |outcome| outcome.p50_us);
    table.rows.retain(|row| row.labels[1] != COLUMNS[0].0);
    table
}

const TUNING_MS: [f64; 8] = [0.5, 1.0, 1.5, 1.8, 2.2, 3.0, 5.0, 8.0];

/// Devices with different flush times. Each leads to one row.
fn tuning(scale: &Scale, watch: &dyn Watch) -> Result<Table, LabFault> {
    let title = "Auto-tuning: devices with different flush times, mode seed, 8 threads";
    let mut table = table("tuning", title, "flushes", "1/fsync", Better::Lower, &["flush time [ms]"]);
    table.extras =
        ["measured average [us]", "fsyncs [1/s]", "coordinates [1 yes, 0 no]"].map(str::to_owned).to_vec();
    for ms in TUNING_MS {
        let study = Study {
            load: Load::Overwrite,
            ground: On::Device,
            models: vec![Model::flush_of(Duration::from_secs_f64(ms / 1e3))],
            modes: vec![Mode::Seed],
            widths: vec![8],
            time: scale.tuning,
            ..Study::default()
        };
        watch.part(&format!("a flush takes {ms} ms"), None);
        let report = crate::fsync::run(&study, &crate::Quiet)?;
        let Some(row) = report.rows.iter().find(|row| row.mode == "seed") else { continue };
        let coordinates = if row.flushes_per_fsync < 0.95 { 1.0 } else { 0.0 };
        table.rows.push(Row {
            extras: vec![Some(row.flush_us), Some(rate(row.fsyncs, report.seconds)), Some(coordinates)],
            ..Row::ours(&[&ms.to_string()], &[row.flushes_per_fsync])
        });
    }
    Ok(table)
}

/// The engine on memory and the kernel's ext4, both without a modelled device.
fn memory(scale: &Scale, kernel: Option<&Path>) -> Result<Table, LabFault> {
    let title = format!("fsync-happy without a modelled device, {THREADS} threads");
    let mut table = table("memory", &title, "operations", "1/s", Better::Higher, &["calls"]);
    let turn = |syncs: bool, operations: u64, seed: u64| Turn {
        mode: syncs.then_some(Mode::Epoch),
        syncs,
        always: false,
        threads: THREADS,
        operations,
        seed,
        // All files fit, as they fit into the kernel's page cache.
        cache_bytes: DEVICE_BYTES as usize,
    };
    let pilot = turn::run(&MEMORY, &turn(true, 500, 99))?;
    let operations = (pilot.per_s * scale.turn.as_secs_f64()).max(500.0) as u64;
    for (name, syncs) in [("no fsync", false), ("fsync", true)] {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for run in 0..scale.runs {
            ours.push(turn::run(&MEMORY, &turn(syncs, operations, 1 + run))?.per_s);
            if let Some(folder) = kernel {
                theirs.push(turn::run_in(folder, &turn(syncs, operations, 1 + run))?.per_s);
            }
        }
        let kernel = (!theirs.is_empty()).then(|| Summary::of(&theirs));
        table.rows.push(Row { kernel, ..Row::ours(&[name], &ours) });
    }
    Ok(table)
}

fn cost_plot(measured: &Measured) -> Plot {
    let modes = COLUMNS.iter().skip(1).map(|column| column.0);
    let series = modes.map(|mode| {
        let point = |(index, setup): (usize, &Setup)| {
            measured.cost(setup.name, mode).map(|cost| (index as f64, cost.avg))
        };
        let points = SETUPS.iter().enumerate().filter_map(point).collect();
        Series { name: mode.to_owned(), posting: false, points }
    });
    let mut series: Vec<Series> = series.collect();
    for (mode, min, max) in POSTED.into_iter().skip(1) {
        let middle = f64::midpoint(min, max);
        let points = (0..SETUPS.len()).filter(|index| has_volatile_cache(SETUPS[*index].name));
        let points = points.map(|index| (index as f64, middle)).collect();
        series.push(Series { name: format!("{mode}, middle"), posting: true, points });
    }
    Plot {
        id: "cost-bars".to_owned(),
        title: format!("Cost of flushes per device and mode, {THREADS} threads"),
        x: "device".to_owned(),
        y: "cost of flushes [% of throughput]".to_owned(),
        x_log: false,
        y_log: false,
        form: Form::Bars,
        categories: SETUPS.iter().map(|setup| setup.name.to_owned()).collect(),
        series,
        table: "cost".to_owned(),
    }
}

fn threads_plot(measured: &Measured, scale: &Scale) -> Plot {
    let mut series = Vec::new();
    for setup in SETUPS.iter().filter(|setup| scale.threads_of.contains(&setup.name)) {
        for (mode, _, _) in COLUMNS.iter().skip(1) {
            let point = |threads: &usize| {
                let costs = measured.costs(setup.name, *threads, mode);
                (!costs.is_empty()).then(|| (*threads as f64, Summary::of(&costs).avg))
            };
            let points: Vec<_> = scale.widths.iter().chain(&[THREADS]).filter_map(point).collect();
            if points.len() > 1 {
                series.push(Series { name: format!("{}, {mode}", setup.name), posting: false, points });
            }
        }
    }
    Plot {
        id: "threads-lines".to_owned(),
        title: "Cost of flushes over threads".to_owned(),
        x: "threads".to_owned(),
        y: "cost of flushes [% of throughput]".to_owned(),
        x_log: true,
        y_log: false,
        form: Form::Lines,
        categories: Vec::new(),
        series,
        table: "threads".to_owned(),
    }
}

fn tuning_plot(tuning: &Table) -> Plot {
    let points = tuning.rows.iter().zip(TUNING_MS);
    let points = points.filter_map(|(row, ms)| Some((ms, row.ours?.avg))).collect();
    Plot {
        id: "tuning-lines".to_owned(),
        title: "Auto-tuning: flushes per fsync over the flush time of the device".to_owned(),
        x: "flush time of the device [ms]".to_owned(),
        y: "flushes [1/fsync]".to_owned(),
        x_log: true,
        y_log: false,
        form: Form::Lines,
        categories: Vec::new(),
        series: vec![Series { name: "seed, 8 threads".to_owned(), posting: false, points }],
        table: "tuning".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_those_of_runs_with_the_same_work() {
        let mut measured = Measured { outcomes: Outcomes::new() };
        let setup = Setup { speed: 64, ..SETUPS[0] };
        let time = Duration::from_millis(30);
        measure(&setup, &COLUMNS, 4, 2, time, &mut measured.outcomes).unwrap();
        let of = |mode| measured.of(IDE, 4, mode);
        for (mode, _, _) in COLUMNS {
            assert_eq!(of(mode).len(), 2);
            // Whether an operation finds its file depends on the order of deletions.
            assert!(of(mode)[0].operations.abs_diff(of("none")[0].operations) < 8, "{mode}");
        }
        assert_eq!(of("no barrier")[0].flushes, 0);
        // An fsync that finds its transaction in another thread's commit makes no flush of its own.
        let none = &of("none")[0];
        assert!(none.flushes * 2 >= none.fsyncs, "{} of {}", none.flushes, none.fsyncs);
        assert!(of("none")[0].flush_us > 8e3 && of("none")[0].written_bytes > 0, "{:?}", of("none")[0]);
    }
}
