//! The study of buffered I/O: the posting's grid of reads and writes, and what large folios and ranges each
//! contribute.
//!
//! ```text
//! row of the posting   here
//! hole                 reads of a hole
//! ramdisk, nvme: read  reads of what the device has and memory does not
//! cache                writes with so much memory that nothing is written back
//! Sync                 an fsync after each write
//! Writeback            writes with eight times the file as cache: the second half is written while writeback
//!                      runs
//! ```
//!
//! The posting timed the calls only, and so do these rows: with writeback, bytes reach the device later.
//! Rows of our own have one fsync at the end.

mod claims;
mod posted;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use extant_base::BlockSize;
use extant_device::Model;
use extant_image::options::FormatOptions;

use self::claims::{claims, signed};
use self::posted::{LINES, Line};
use super::{Estimate, Size};
use crate::buffered::{Backing, Case, Path as DataPath, Report, Row, Study, run};
use crate::report::{self, Better, Change, Form, Machine, Plot, Posted, Posting, Series, StudyReport};
use crate::report::{Table, figure};
use crate::{LabFault, Watch};

/// Bytes of a read or write, and their names in the tables.
const SIZES: [(u64, &str); 3] = [(4 << 10, "4K"), (64 << 10, "64K"), (1 << 20, "1M")];

/// What the names of rows mean.
pub const NAMES: &[(&str, &str)] = &[
    ("per-block", "data path block by block, in pages: before the series"),
    ("iomap-4k", "iomap by ranges, in folios of one page: without large folios"),
    ("iomap", "by ranges in large folios: the proposal of the posting, and default of extant"),
    ("hole_read", "reads of a hole"),
    ("cached_read", "reads of data in memory"),
    ("device_read", "reads of data that memory does not have"),
    ("cached_write", "first writes, into memory"),
    ("overwrite", "writes over data in memory"),
    ("writeback_write", "writes, and one fsync at the end"),
    ("sync_write", "an fsync after each write"),
    ("sync_overwrite", "an fsync after each overwrite of data on the device"),
];

/// What the study needs.
#[must_use]
pub fn estimate(size: Size, kernel: bool) -> Estimate {
    let (seconds, memory_bytes, kernel_image_bytes) = match size {
        Size::Quick => (70.0, 2 << 30, 2 << 30),
        Size::Full => (400.0, 6 << 30, 6 << 30),
    };
    let (seconds, image_bytes) = if kernel { (seconds * 1.3, kernel_image_bytes) } else { (seconds, 0) };
    Estimate { seconds, memory_bytes: memory_bytes + image_bytes, kernel_image_bytes }
}

/// The parameters that all parts of the study share.
struct Shape<'a> {
    bytes: u64,
    syncs: u64,
    rounds: usize,
    kernel: Option<&'a Path>,
    watch: &'a dyn Watch,
}

impl<'a> Shape<'a> {
    fn of(size: Size, kernel: Option<&'a Path>, watch: &'a dyn Watch) -> Self {
        match size {
            Size::Quick => Self { bytes: 64 << 20, syncs: 64, rounds: 5, kernel, watch },
            Size::Full => Self { bytes: 512 << 20, syncs: 512, rounds: 7, kernel, watch },
        }
    }

    /// Runs cases on a device, with a cache of `cache_times` the size of the file.
    fn run(
        &self,
        backing: &Backing,
        cases: &[Case],
        paths: &[DataPath],
        cache_times: u64,
        format: FormatOptions,
    ) -> Result<Report, LabFault> {
        // The kernel's directory has one device: it stands beside ours in memory.
        let kernel_dir = self.kernel.filter(|_| matches!(backing, Backing::Memory)).map(Path::to_owned);
        let study = Study {
            backing: backing.clone(),
            cases: cases.to_vec(),
            sizes: SIZES.map(|(bs, _)| bs).to_vec(),
            paths: paths.to_vec(),
            bytes: self.bytes,
            syncs: self.syncs,
            rounds: self.rounds,
            cache_bytes: (self.bytes * cache_times) as usize,
            format,
            kernel_dir,
        };
        run(&study, self.watch)
    }
}

/// The drive of the rows `nvme`. Synchronous overwrites of 4 KiB took 18 us on the posting's drive, so its
/// flushes took almost no time: its cache survives a power cut. It was no bottleneck for the posting's CPU;
/// the rate is that of a drive of today (PCIe 4), so that it is none for a CPU of today.
const NVME: Model = Model {
    name: "nvme",
    volatile_cache: false,
    write: Duration::from_micros(10),
    flush: Duration::from_micros(5),
    rate: 7e9,
    ..Model::NVME
};
/// The parameter with its rate.
const NVME_RATE: &str = "rate of nvme [MiB/s]";

/// Without writeback, with writeback beside the writes.
const CACHE_TIMES: [u64; 2] = [32, 8];

/// What was measured on one device: without and with writeback.
struct Measured {
    kind: &'static str,
    quiet: Report,
    with_writeback: Report,
}

impl Measured {
    fn new(shape: &Shape<'_>, kind: &'static str, backing: &Backing) -> Result<Self, LabFault> {
        let paths = [DataPath::Iomap, DataPath::PerBlock];
        let format = FormatOptions::default;
        // Only memory has the rows hole and cache: they do not reach a device.
        let own: &[Case] = match backing {
            Backing::Memory => &[Case::HoleRead, Case::CachedRead, Case::CachedWrite, Case::Overwrite],
            Backing::Files(_) | Backing::Modelled(_) => &[],
        };
        let to_device = [Case::DeviceRead, Case::WritebackWrite, Case::SyncWrite, Case::SyncOverwrite];
        let quiet = [own, &to_device].concat();
        Ok(Self {
            kind,
            quiet: shape.run(backing, &quiet, &paths, CACHE_TIMES[0], format())?,
            with_writeback: shape.run(
                backing,
                &[Case::CachedWrite, Case::Overwrite],
                &paths,
                CACHE_TIMES[1],
                format(),
            )?,
        })
    }

    fn pair(&self, case: Case, writeback: bool, bs: u64) -> Option<(&Row, &Row)> {
        let report = if writeback { &self.with_writeback } else { &self.quiet };
        let row = |path| report.rows.iter().find(|row| (row.case, row.bs, row.path) == (case, bs, path));
        Some((row(DataPath::Iomap)?, row(DataPath::PerBlock)?))
    }
}

/// The case of a row of the posting, and whether there is writeback beside it.
fn case_of(kind: &str, flags: Option<[bool; 3]>) -> (Case, bool) {
    match (kind, flags) {
        ("hole", _) => (Case::HoleRead, false),
        (_, None) => (Case::DeviceRead, false),
        (_, Some([false, true, _])) => (Case::SyncWrite, false),
        (_, Some([true, true, _])) => (Case::SyncOverwrite, false),
        (_, Some([false, false, writeback])) => (Case::CachedWrite, writeback),
        (_, Some([true, false, writeback])) => (Case::Overwrite, writeback),
    }
}

const EXTRAS: [&str; 9] = [
    "per-block [MiB/s]",
    "iomap [IOPS]",
    "per-block [IOPS]",
    "posting buffer_head [MiB/s]",
    "posting iomap [IOPS]",
    "posting buffer_head [IOPS]",
    "CPU iomap [s/GiB]",
    "CPU per-block [s/GiB]",
    "of memory's speed",
];

/// A row of iomap, compared with per-block.
fn row(labels: &[&str], (new, old): (&Row, &Row), line: Option<&Line>) -> report::Row {
    report::Row {
        ours: Some(new.rounds_mib_s),
        kernel: new.kernel_rounds_mib_s,
        posting: line.map(|line| Posted { avg: line.new.1, ..Posted::default() }),
        change: Some(Change::between(&new.rounds_mib_s, &old.rounds_mib_s, DataPath::PerBlock.name())),
        posting_change_percent: line.map(|line| line.percent),
        extras: vec![
            Some(old.rounds_mib_s.avg),
            Some(new.per_s()),
            Some(old.per_s()),
            line.map(|line| line.old.1),
            line.map(|line| line.new.0),
            line.map(|line| line.old.0),
            Some(new.cpu_s_gib),
            Some(old.cpu_s_gib),
            new.limit_mib_s.map(|limit| new.mib_s / limit),
        ],
        ..report::Row::ours(labels, &[])
    }
}

fn size_name(bs: u64) -> &'static str {
    SIZES.iter().find(|(size, _)| *size == bs).map_or("?", |(_, name)| name)
}

fn table(id: &str, title: &str, labels: &[&str], rows: Vec<report::Row>) -> Table {
    Table {
        id: id.to_owned(),
        title: title.to_owned(),
        in_posting: rows.iter().any(|row| row.posting.is_some()),
        quantity: "bandwidth of iomap, change from per-block".to_owned(),
        unit: "MiB/s".to_owned(),
        better: Better::Higher,
        labels: labels.iter().map(|&label| label.to_owned()).collect(),
        extras: EXTRAS.map(str::to_owned).to_vec(),
        rows,
        note: String::new(),
    }
}

/// A standard deviation above this share of the mean makes the mean useless.
const SCATTERED: f64 = 0.3;

/// In how many rows iomap gains, and how many gains are at least those of the posting.
fn note(table: &Table) -> String {
    let changes: Vec<(&report::Row, &Change)> =
        table.rows.iter().filter_map(|row| Some((row, row.change.as_ref()?))).collect();
    let is_gain = |change: &Change| change.percent > 0.0 && change.significant == Some(true);
    let gains = changes.iter().filter(|(_, change)| is_gain(change)).count();
    let mut note = format!("At 95 %, iomap is faster in {gains} of {} rows.", changes.len());
    let posted: Vec<(f64, f64)> = changes
        .iter()
        .filter_map(|(row, change)| Some((change.percent, row.posting_change_percent?)))
        .collect();
    if !posted.is_empty() {
        let at_least = posted.iter().filter(|(ours, its)| ours >= its).count();
        note += &format!(" Its gain is at least that of the posting in {at_least} of {} rows.", posted.len());
    }
    let lost: Vec<String> = changes
        .iter()
        .filter(|(_, change)| change.percent < 0.0 && change.significant != Some(false))
        .map(|(row, _)| row.labels.join(" "))
        .collect();
    if !lost.is_empty() {
        note += &format!(" Slower at 95 %: {}.", lost.join(", "));
    }
    if table.id == "read" {
        note += " Reads of a hole do not differ: both forms fill the caller's buffer with zeros, without \
                 the page cache.";
    }
    let kernels: Vec<&crate::Summary> = table.rows.iter().filter_map(|row| row.kernel.as_ref()).collect();
    let scattered = kernels.iter().filter(|runs| runs.stddev > SCATTERED * runs.avg).count();
    if scattered > 0 {
        note += &format!(
            " The kernel's runs scatter: in {scattered} of {} rows their standard deviation is more than \
             {:.0} % of the mean, so these rows are not usable.",
            kernels.len(),
            SCATTERED * 100.0
        );
    }
    note
}

/// The posting's two tables, row by row.
fn posted_tables(measured: &[Measured]) -> [Table; 2] {
    let rows = |reads: bool| {
        let lines = LINES.iter().filter(|line| line.flags.is_none() == reads);
        lines
            .filter_map(|line| {
                let device = if line.kind == "nvme" { "nvme" } else { "ramdisk" };
                let on = measured.iter().find(|measured| measured.kind == device)?;
                let (case, writeback) = case_of(line.kind, line.flags);
                let pair = on.pair(case, writeback, line.bs)?;
                let mut labels = vec![line.kind];
                labels.extend(line.flags.iter().flatten().map(|flag| if *flag { "Y" } else { "N" }));
                labels.push(size_name(line.bs));
                Some(row(&labels, pair, Some(line)))
            })
            .collect()
    };
    let write_labels = ["type", "overwrite", "sync", "writeback", "bs"];
    [
        table("read", "buffer read", &["type", "bs"], rows(true)),
        table("write", "buffer write", &write_labels, rows(false)),
    ]
}

/// The same rows on a file of the system, cached reads, and an fsync at the end.
fn own_table(measured: &[Measured]) -> Table {
    let mut rows = Vec::new();
    for on in measured {
        let cases: &[(&str, Case, bool)] = match on.kind {
            "file" => &[
                ("read from the device", Case::DeviceRead, false),
                ("write", Case::CachedWrite, true),
                ("overwrite", Case::Overwrite, true),
                ("write, one fsync", Case::WritebackWrite, false),
                ("write, fsync each", Case::SyncWrite, false),
                ("overwrite, fsync each", Case::SyncOverwrite, false),
            ],
            _ => &[
                ("read from memory", Case::CachedRead, false),
                ("write, one fsync", Case::WritebackWrite, false),
            ],
        };
        for (what, case, writeback) in cases {
            for (bs, name) in SIZES {
                let pair = on.pair(*case, *writeback, bs);
                rows.extend(pair.map(|pair| row(&[on.kind, *what, name], pair, None)));
            }
        }
    }
    let title = "Beyond the posting: a file as device, reads from memory, one fsync at the end";
    table("own", title, &["type", "case", "bs"], rows)
}

/// What ranges bring (iomap in folios of a page), and what large folios add to that.
fn split_table(shape: &Shape<'_>) -> Result<Table, LabFault> {
    let cases = [Case::HoleRead, Case::CachedRead, Case::CachedWrite, Case::Overwrite];
    let paths = [DataPath::Iomap, DataPath::Ranges, DataPath::PerBlock];
    let report = shape.run(&Backing::Memory, &cases, &paths, CACHE_TIMES[0], FormatOptions::default())?;
    let mut rows = Vec::new();
    for case in cases {
        for (bs, name) in SIZES {
            let of = |path| {
                let mut all = report.rows.iter();
                all.find(|row| (row.case, row.bs, row.path) == (case, bs, path)).map(|row| row.rounds_mib_s)
            };
            let (Some(all), Some(ranges), Some(old)) =
                (of(DataPath::Iomap), of(DataPath::Ranges), of(DataPath::PerBlock))
            else {
                continue;
            };
            let percent = |this: f64, that: f64| Some((this / that - 1.0) * 100.0);
            rows.push(report::Row {
                ours: Some(all),
                change: Some(Change::between(&all, &old, DataPath::PerBlock.name())),
                extras: vec![
                    Some(old.avg),
                    Some(ranges.avg),
                    percent(ranges.avg, old.avg),
                    percent(all.avg, ranges.avg),
                ],
                ..report::Row::ours(&[case.name(), name], &[])
            });
        }
    }
    Ok(Table {
        extras: ["per-block [MiB/s]", "iomap, 4K folios [MiB/s]", "by ranges [%]", "by large folios [%]"]
            .map(str::to_owned)
            .to_vec(),
        in_posting: false,
        ..table("split", "The gain, split into ranges and large folios", &["case", "bs"], rows)
    })
}

/// The grid's writes and hole reads with blocks of 1 KiB.
fn small_blocks_table(shape: &Shape<'_>) -> Result<Table, LabFault> {
    let cases = [Case::HoleRead, Case::DeviceRead, Case::CachedWrite, Case::Overwrite, Case::WritebackWrite];
    let format = FormatOptions { block_size: BlockSize::from_bytes(1024), ..FormatOptions::default() };
    let paths = [DataPath::Iomap, DataPath::PerBlock];
    let report = shape.run(&Backing::Memory, &cases, &paths, CACHE_TIMES[0], format)?;
    let rows = report.rows.chunks_exact(2).map(|pair| {
        let labels = [pair[0].case.name(), size_name(pair[0].bs)];
        // The kernel's file system has blocks of another size.
        report::Row { kernel: None, ..row(&labels, (&pair[0], &pair[1]), None) }
    });
    Ok(table("small-blocks", "Beyond the posting: blocks of 1 KiB", &["case", "bs"], rows.collect()))
}

/// Where the rows "file" have their file: in memory if the system has a place for that.
fn file_dir() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}

/// Runs the study.
///
/// # Errors
/// A file system failed.
pub fn study_report(size: Size, kernel: Option<&Path>, watch: &dyn Watch) -> Result<StudyReport, LabFault> {
    let begun = Instant::now();
    let shape = Shape::of(size, kernel, watch);
    let tables = all_tables(&shape)?;
    let parameters = [
        ("size", size.name().to_owned()),
        ("file", format!("{} MiB", shape.bytes >> 20)),
        ("rounds", shape.rounds.to_string()),
        ("synchronous writes", shape.syncs.to_string()),
        ("directory of the rows file", file_dir().display().to_string()),
        (NVME_RATE, format!("{:.0}", NVME.rate / f64::from(1 << 20))),
    ];
    let mut report = StudyReport {
        study: "buffered".to_owned(),
        question: "What do extents and large folios save in buffered I/O?".to_owned(),
        posting: Posting {
            subject:
                "[PATCH 00/27] ext4: use iomap for regular file's buffered I/O path and enable large folio"
                    .to_owned(),
            date: "22 October 2024".to_owned(),
            machine: "Xeon Gold 6240, 400 GB of memory, ramdisk of 200 GB, NVMe SSD of 4 TB; file of 40 GB"
                .to_owned(),
        },
        command: format!("extant lab all --{} --only buffered{}", size.name(), super::kernel_option(kernel)),
        machine: Machine::this(),
        parameters: parameters.map(|(name, value)| (name.to_owned(), value)).into(),
        seconds: begun.elapsed().as_secs_f64(),
        claims: Vec::new(),
        plots: plots(&tables),
        tables,
    };
    judge(&mut report);
    Ok(report)
}

/// Writes the claims and notes.
pub fn judge(report: &mut StudyReport) {
    let nvme_rate = report.number(NVME_RATE).unwrap_or(f64::INFINITY);
    report.claims = claims(&report.tables, nvme_rate);
    let own = report.table("own").cloned();
    for table in &mut report.tables {
        table.note = if table.id == "split" { note_of_split(table, own.as_ref()) } else { note(table) };
    }
}

/// Which of the two brings more. `own`: the table of our own rows, which has cached reads, too.
fn note_of_split(table: &Table, own: Option<&Table>) -> String {
    let differs = |row: &&report::Row| {
        row.labels[0] != Case::HoleRead.name()
            && row.change.as_ref().is_some_and(|made| made.significant == Some(true))
    };
    let differing = table.rows.iter().filter(differs).count();
    let folios = table.rows.iter().filter(differs).filter(|row| row.extras[3] > row.extras[2]).count();
    let mut note = format!(
        "Of the {differing} rows in which iomap and per-block differ at 95 %, large folios bring more than \
         ranges in {folios}. Reads of a hole are left out: all forms run the same code there, without folios."
    );
    let text = |table: &Table, labels: &[&str]| {
        let made = table.row(labels)?.change.as_ref()?;
        let (half, old) = (made.plus_minus_percent?, table.extra(labels, "per-block")?);
        Some(format!("{} ± {half:.0} %, per-block {} MiB/s", signed(made.percent), figure(old)))
    };
    let here = text(table, &[Case::CachedRead.name(), "4K"]);
    let there = own.and_then(|own| text(own, &["ramdisk", "read from memory", "4K"]));
    if let Some((here, there)) = here.zip(there) {
        note += &format!(
            " These rows are runs of their own: cached_read 4K ({here}) is the load of \"read from memory\" \
             ({there}); the difference is not explained."
        );
    }
    note
}

fn all_tables(shape: &Shape<'_>) -> Result<Vec<Table>, LabFault> {
    let measured = [
        Measured::new(shape, "ramdisk", &Backing::Memory)?,
        Measured::new(shape, "nvme", &Backing::Modelled(NVME))?,
        Measured::new(shape, "file", &Backing::Files(file_dir()))?,
    ];
    let mut tables = posted_tables(&measured).to_vec();
    tables.push(own_table(&measured));
    tables.push(split_table(shape)?);
    tables.push(small_blocks_table(shape)?);
    Ok(tables)
}

/// The labels without the size: one category for each, and one series for each size.
fn plots(tables: &[Table]) -> Vec<Plot> {
    let mut plots = Vec::new();
    for table in tables.iter().filter(|table| table.in_posting) {
        let mut categories: Vec<String> = Vec::new();
        let mut percents: Vec<Vec<(f64, f64)>> = vec![Vec::new(); SIZES.len() * 2];
        let mut rates: Vec<Vec<(f64, f64)>> = vec![Vec::new(); 4];
        let mut bars: Vec<String> = Vec::new();
        for row in &table.rows {
            let Some((bs, labels)) = row.labels.split_last() else { continue };
            let category = labels.join(" ");
            let at = categories.iter().position(|known| *known == category).unwrap_or_else(|| {
                categories.push(category.clone());
                categories.len() - 1
            });
            let Some(size) = SIZES.iter().position(|(_, name)| name == bs) else { continue };
            let (ours, its) = (row.change.as_ref().map(|made| made.percent), row.posting_change_percent);
            percents[size * 2].extend(ours.map(|percent| (at as f64, percent)));
            percents[size * 2 + 1].extend(its.map(|percent| (at as f64, percent)));
            let x = bars.len() as f64;
            bars.push(row.labels.join(" "));
            let figures = [row.extras[0], row.ours.map(|ours| ours.avg), row.kernel.map(|its| its.avg)];
            let figures = figures.into_iter().chain([row.posting.map(|posted| posted.avg)]);
            for (series, figure) in rates.iter_mut().zip(figures) {
                series.extend(figure.map(|figure| (x, figure)));
            }
        }
        let names =
            SIZES.iter().flat_map(|(_, bs)| [((*bs).to_owned(), false), (format!("{bs}, posting"), true)]);
        let series = names.zip(percents).map(|((name, posting), points)| Series { name, posting, points });
        let plot = |id: String, title: String, y: &str, categories: Vec<String>, series: Vec<Series>| Plot {
            id,
            title,
            x: "row of the posting".to_owned(),
            y: y.to_owned(),
            x_log: false,
            y_log: false,
            form: Form::Bars,
            categories,
            series: series.into_iter().filter(|series| !series.points.is_empty()).collect(),
            table: table.id.clone(),
        };
        plots.push(plot(
            format!("percent-{}", table.id),
            format!("{}: change from per-block to iomap", table.title),
            "change of the bandwidth [%]",
            categories,
            series.collect(),
        ));
        let names = ["per-block", "iomap", "kernel", "posting's iomap"].into_iter().enumerate();
        let series = names.zip(rates).map(|((at, name), points)| Series {
            name: name.to_owned(),
            posting: at == 3,
            points,
        });
        plots.push(plot(
            format!("bandwidth-{}", table.id),
            format!("{}: bandwidth", table.title),
            "bandwidth [MiB/s]",
            bars,
            series.collect(),
        ));
    }
    plots
}

#[cfg(test)]
mod tests {
    use super::claims::{changes, verdict_on};
    use super::*;
    use crate::report::Verdict;

    /// The posting has 9 rows of reads and 30 of writes. All are in ours, in its order, with its figures.
    #[test]
    fn every_row_of_the_posting_is_there() {
        let shape = Shape { bytes: 2 << 20, syncs: 2, rounds: 1, kernel: None, watch: &crate::Quiet };
        let tables = all_tables(&shape).unwrap();
        assert_eq!([tables[0].rows.len(), tables[1].rows.len()], [9, 30]);
        let rows: Vec<&report::Row> = tables[..2].iter().flat_map(|table| &table.rows).collect();
        for (row, line) in rows.iter().zip(LINES) {
            assert_eq!(row.labels[0], line.kind);
            assert_eq!(row.posting.unwrap().avg, line.new.1);
            assert!(row.ours.unwrap().avg > 0.0 && row.change.is_some());
        }
        assert_eq!(tables[1].rows[29].labels, ["nvme", "Y", "Y", "N", "1M"]);
        // 2 cases in memory, 1 on nvme, 6 on a file; 4 and 5 cases; 3 sizes each.
        assert_eq!([tables[2].rows.len(), tables[3].rows.len(), tables[4].rows.len()], [27, 12, 15]);
        for table in &tables {
            assert!(table.rows.iter().all(|row| row.extras.len() == table.extras.len()), "{}", table.id);
        }
        let claims = claims(&tables, f64::INFINITY);
        assert_eq!(claims.len(), 10);
        assert_eq!(claims[3].posting, "+108 to +111 %");
        assert_eq!(claims[6].posting, "-3 to +29 %");
        assert_eq!(plots(&tables).len(), 4);
    }

    #[test]
    fn a_verdict_needs_confidence() {
        let row = |new: &[f64], old: &[f64], posting: f64| {
            let row = report::Row::ours(&["x"], new);
            let base = crate::Summary::of(old);
            let change = Change::between(&row.ours.unwrap(), &base, "per-block");
            report::Row { change: Some(change), posting_change_percent: Some(posting), ..row }
        };
        let verdict = |row: report::Row| {
            let (rows, ours, its) = changes([&row].into_iter());
            verdict_on(&rows, &ours, &its).0
        };
        assert_eq!(verdict(row(&[30.0, 31.0, 32.0], &[10.0, 11.0, 10.0], 100.0)), Verdict::Beaten);
        assert_eq!(verdict(row(&[15.0, 16.0, 15.0], &[10.0, 11.0, 10.0], 80.0)), Verdict::Confirmed);
        assert_eq!(verdict(row(&[15.0, 16.0, 15.0], &[10.0, 11.0, 10.0], 300.0)), Verdict::Open);
        assert_eq!(verdict(row(&[9.0, 16.0, 11.0], &[10.0, 11.0, 10.0], 100.0)), Verdict::Open);
        assert_eq!(verdict(row(&[7.0, 8.0, 8.0], &[10.0, 11.0, 10.0], 100.0)), Verdict::Refuted);
        assert_eq!(verdict(row(&[10.0, 10.1, 10.0], &[10.0, 10.1, 10.1], 100.0)), Verdict::Refuted);
    }
}
