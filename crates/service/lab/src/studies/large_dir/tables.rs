//! The posting's figures, and the tables and plots of the study.

use super::meter::us_per_name;
use super::{Fill, Grown, Kind, LARGE, Measured, NORMAL, POINTS, Share, Variant};
use crate::Summary;
use crate::drive::Drive;
use crate::large_dir::{Internals, Window};
use crate::report::{Better, Change, Form, Machine, Plot, Posted, Posting, Row, Series, StudyReport, Table};
use crate::studies::Size;

/// The posting's rates in names per second.
pub(super) const HDD_NORMAL: (f64, f64) = (56_000.0, 65_000.0);
pub(super) const NVME_NORMAL: f64 = 80_000.0;
pub(super) const HDD_LARGE: f64 = 11_000.0;
pub(super) const NVME_LARGE: f64 = 46_000.0;
/// Its runs of each directory.
const LOOPS: usize = 11;
/// Points or windows that make the rate at the end.
const LAST: usize = 3;

pub(super) fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.to_owned()).collect()
}

/// The posting's rate at the end of a run. It has no table: the figures are in its text.
fn posted(kind: Kind, drive: Drive, share: Share) -> Option<Posted> {
    let (low, high) = HDD_NORMAL;
    let one = |avg| Posted { runs: Some(LOOPS), avg, ..Posted::default() };
    match (kind, drive, share) {
        (Kind::Normal, Drive::Hdd, Share::All) => {
            Some(Posted { min: Some(low), max: Some(high), ..one(f64::midpoint(low, high)) })
        }
        (Kind::Normal, Drive::Nvme, Share::All) => Some(one(NVME_NORMAL)),
        (_, _, Share::Quarter) => None,
        // The posting does not give its memory.
        (Kind::Large, Drive::Hdd, _) => Some(one(HDD_LARGE)),
        (Kind::Large, Drive::Nvme, _) => Some(one(NVME_LARGE)),
        _ => None,
    }
}

impl Grown {
    /// Windows of a drive after the last name, without the first one, in which the drive's write cache fills.
    /// If the index was full before, the last three of all.
    fn last_windows(&self, drive: Drive) -> Vec<Window> {
        let windows = || self.of.windows.iter().filter(|window| window.drive == drive);
        let mut last: Vec<Window> = windows().filter(|window| window.names > self.names).copied().collect();
        if last.len() > 1 {
            last.remove(0);
        }
        if !last.is_empty() {
            return last;
        }
        let all: Vec<Window> = windows().copied().collect();
        let from = if self.of.failed.is_some() { all.len().saturating_sub(LAST) } else { all.len() };
        all[from..].to_vec()
    }

    /// Rates at the end, in names per second. In memory: of the last three points.
    fn rates(&self, drive: Drive) -> Vec<f64> {
        match drive {
            Drive::Memory if self.share == Share::All => {
                let points = &self.of.points;
                points[points.len().saturating_sub(LAST)..].iter().map(|point| point.per_s).collect()
            }
            _ => self.last_windows(drive).iter().map(|window| window.per_s).collect(),
        }
    }

    /// Blocks read per name at the end.
    fn reads(&self, drive: Drive) -> Option<f64> {
        match drive {
            Drive::Memory if self.share == Share::All => Some(self.of.engine?.leaf_reads_per_name),
            _ => {
                let windows = self.last_windows(drive);
                let names: u64 = windows.iter().map(|window| window.done).sum();
                let reads = |window: &Window| window.leaf_reads_per_name * window.done as f64;
                (names > 0).then(|| windows.iter().map(reads).sum::<f64>() / names as f64)
            }
        }
    }

    /// Names in the directory at the end of [`rates`](Self::rates).
    fn names_at_end(&self, drive: Drive) -> Option<f64> {
        let names = match drive {
            Drive::Memory if self.share == Share::All => self.of.points.last()?.names,
            _ => self.last_windows(drive).last()?.names,
        };
        Some(names as f64)
    }

    /// CPU time per name in us at the end, without latency.
    fn cpu_us(&self) -> Option<f64> {
        us_per_name(&self.costs[self.costs.len().saturating_sub(LAST)..])
    }

    /// Names so far and rate, along the run.
    fn curve(&self, drive: Drive) -> Vec<(f64, f64)> {
        match drive {
            Drive::Memory if self.share == Share::All => {
                self.of.points.iter().map(|point| (point.names as f64, point.per_s)).collect()
            }
            _ => {
                let windows = self.of.windows.iter().filter(|window| window.drive == drive);
                let during: Vec<_> = windows
                    .filter(|window| window.names <= self.names)
                    .map(|window| (window.names as f64, window.per_s))
                    .collect();
                let rates = self.rates(drive);
                let is_after = !rates.is_empty() && self.of.failed.is_none();
                let end = is_after.then(|| (self.names as f64, Summary::of(&rates).avg));
                during.into_iter().chain(end).collect()
            }
        }
    }

    /// Names from which on the rate on this drive stays below 0.8 of the best rate before.
    fn knee(&self, drive: Drive) -> Option<f64> {
        let points: Vec<_> = self.curve(drive);
        let points = points
            .iter()
            .map(|(names, per_s)| crate::large_dir::Point { names: *names as u64, per_s: *per_s });
        crate::large_dir::knee(&points.collect::<Vec<_>>()).map(|names| names as f64)
    }

    fn engine(&self) -> Internals {
        self.of.engine.unwrap_or_default()
    }
}

impl Fill {
    /// Names per second of each point.
    fn rates(&self) -> Summary {
        Summary::of(&self.of.points.iter().map(|point| point.per_s).collect::<Vec<_>>())
    }

    fn engine(&self) -> Internals {
        self.of.engine.unwrap_or_default()
    }
}

/// Bytes that map one block of the directory: 12 per extent, or 4 in a block map.
fn map_bytes_per_block(variant: &Variant) -> f64 {
    let engine = variant.fill.engine();
    let blocks = (engine.dir_bytes / 4096).max(1) as f64;
    if variant.name == "block-mapped" { 4.0 } else { 12.0 * engine.dir_extents as f64 / blocks }
}

impl Measured {
    fn grown(&self, kind: Kind, share: Share) -> Option<&Grown> {
        self.grown.iter().find(|grown| grown.kind == kind && grown.share == share)
    }

    fn rate(&self, kind: Kind, drive: Drive, share: Share) -> Option<Summary> {
        let rates = self.grown(kind, share)?.rates(drive);
        (!rates.is_empty()).then(|| Summary::of(&rates))
    }

    pub(super) fn report(&self, size: Size) -> StudyReport {
        let scale = self.scale;
        let mut parameters: Vec<(String, String)> = [
            ("size", size.name().to_owned()),
            ("names, normal", format!("{} before the last windows (the posting: {NORMAL})", scale.normal)),
            ("names, large_dir", format!("{} before the last windows (the posting: {LARGE})", scale.large)),
            ("names of variants", scale.variants.to_string()),
            ("names beside the kernel", scale.kernel.to_string()),
            ("window", format!("{} ms", scale.window.as_millis())),
            ("window on hdd", format!("{} ms", scale.window_on_hdd.as_millis())),
            ("hdd", Drive::Hdd.describe()),
            ("nvme", Drive::Nvme.describe()),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
        for grown in &self.grown {
            let name = format!("cache, {}, {}", grown.kind.name(), grown.share.name());
            parameters.push((name, format!("{} MiB", grown.cache_bytes >> 20)));
        }
        StudyReport {
            study: "large-dir".to_owned(),
            question: "How does the rate of creations change as one directory grows to 200 million names?"
                .to_owned(),
            posting: Posting {
                subject: "some large dir testing results".to_owned(),
                date: "20 April 2017".to_owned(),
                machine:
                    "two nodes with RHEL 7.2 and Lustre's patches: one with a RAID 10 of fast hard disks, \
                          one with NVMe"
                        .to_owned(),
            },
            command: format!("extant lab all --only large-dir --{}", size.name()),
            machine: Machine::this(),
            parameters: parameters.into_iter().collect(),
            seconds: 0.0,
            tables: self.tables(),
            plots: self.plots(),
            claims: Vec::new(),
        }
    }

    fn tables(&self) -> Vec<Table> {
        let mut tables = vec![self.rates_table(), self.growth_table(), self.structure_table()];
        tables.extend(self.kernel_table());
        tables
    }

    fn plots(&self) -> Vec<Plot> {
        let mut plots = vec![
            self.plot_rates(Kind::Normal),
            self.plot_rates(Kind::Large),
            self.plot_reads(),
            self.plot_variants(),
        ];
        plots.extend(self.plot_kernel());
        for plot in &mut plots {
            plot.series.retain(|series| !series.points.is_empty());
        }
        plots
    }

    fn rates_table(&self) -> Table {
        let mut rows = Vec::new();
        for kind in Kind::BOTH {
            for drive in Drive::ALL {
                for share in Share::ALL {
                    let Some(grown) = self.grown(kind, share) else { continue };
                    let rates = grown.rates(drive);
                    if rates.is_empty() {
                        continue;
                    }
                    let labels = [kind.name(), drive.name(), share.name()];
                    let posting = posted(kind, drive, share);
                    // As the posting compares: the large directory with the normal one on the same drive.
                    let base = (kind, share) != (Kind::Normal, Share::All);
                    let base = base.then(|| self.rate(Kind::Normal, drive, Share::All)).flatten();
                    let against = format!("normal {} all", drive.name());
                    let of_normal = posted(Kind::Normal, drive, Share::All);
                    let percent = |these: Posted, those: Posted| (these.avg / those.avg - 1.0) * 100.0;
                    let cpu_us = grown.cpu_us();
                    let load = |us: f64| us * Summary::of(&rates).avg / 1e4;
                    rows.push(Row {
                        change: base.map(|base| Change::between(&Summary::of(&rates), &base, &against)),
                        posting_change_percent: posting
                            .zip(of_normal)
                            .filter(|_| kind == Kind::Large)
                            .map(|(these, those)| percent(these, those)),
                        posting,
                        extras: vec![
                            grown.reads(drive),
                            grown.knee(drive),
                            Some(grown.engine().dir_bytes as f64 / 1e6),
                            Some(grown.cache_bytes as f64 / 1e6),
                            Some(grown.engine().levels as f64),
                            (share == Share::All).then(|| self.logged_per_name(kind)),
                            grown.names_at_end(drive),
                            cpu_us.filter(|_| drive == Drive::Memory),
                            cpu_us.filter(|_| drive != Drive::Memory).map(load),
                        ],
                        ..Row::ours(&labels, &rates)
                    });
                }
            }
        }
        Table {
            id: "rates".to_owned(),
            title: "Creation rate at the end of the run".to_owned(),
            in_posting: false,
            quantity: "rate".to_owned(),
            unit: "names/s".to_owned(),
            better: Better::Higher,
            labels: strings(&["directory", "device", "memory for leaves"]),
            extras: strings(&[
                "leaf reads [1/name]",
                "knee [names]",
                "leaves [MB]",
                "cache [MB]",
                "levels of the index",
                "blocks logged [1/name]",
                "names at the end",
                "CPU [us/name]",
                "CPU load at this rate [% of a CPU]",
            ]),
            rows,
            note: String::new(),
        }
    }

    /// Blocks logged per name, with memory for all leaves.
    fn logged_per_name(&self, kind: Kind) -> f64 {
        let grown = self.grown(kind, Share::All);
        grown.map_or(0.0, |grown| grown.engine().logged_blocks as f64 / grown.of.done.max(1) as f64)
    }

    fn growth_table(&self) -> Table {
        let mut rows = Vec::new();
        for grown in &self.grown {
            for drive in Drive::ALL {
                for (names, per_s) in grown.curve(drive) {
                    let windows = &grown.of.windows;
                    let window =
                        windows.iter().find(|window| window.drive == drive && window.names as f64 == names);
                    let labels =
                        [grown.kind.name(), drive.name(), grown.share.name(), &format!("{names:.0}")];
                    rows.push(Row {
                        extras: vec![window.map(|window| window.leaf_reads_per_name)],
                        ..Row::ours(&labels, &[per_s])
                    });
                }
            }
        }
        Table {
            id: "growth".to_owned(),
            title: "Rate while the directory grows".to_owned(),
            in_posting: false,
            quantity: "rate".to_owned(),
            unit: "names/s".to_owned(),
            better: Better::Higher,
            labels: strings(&["directory", "device", "memory for leaves", "names so far"]),
            extras: strings(&["leaf reads [1/name]"]),
            rows,
            note: String::new(),
        }
    }

    fn structure_table(&self) -> Table {
        let base = self.variants.first().map(|variant| variant.fill.rates());
        let rows = self.variants.iter().enumerate().map(|(at, variant)| {
            let Fill { of, costs } = &variant.fill;
            let engine = variant.fill.engine();
            let per_name = |count: u64| count as f64 / of.done.max(1) as f64;
            Row {
                change: base
                    .filter(|_| at > 0)
                    .map(|base| Change::between(&variant.fill.rates(), &base, "half_md4")),
                extras: vec![
                    Some(engine.leaves_touched as f64),
                    Some(engine.leaf_looks_per_name),
                    Some(engine.leaf_reads_per_name),
                    Some(engine.splits as f64 / of.done.max(1) as f64 * 1000.0),
                    Some(engine.index_splits as f64),
                    Some(engine.levels as f64),
                    Some(engine.dir_extents as f64),
                    Some(map_bytes_per_block(variant)),
                    Some(per_name(engine.dir_bytes)),
                    Some(engine.fill),
                    Some(per_name(engine.logged_blocks)),
                    Some((engine.dir_bytes / 4096) as f64),
                    us_per_name(costs),
                ],
                ours: Some(variant.fill.rates()),
                ..Row::ours(&[variant.name], &[])
            }
        });
        Table {
            id: "structure".to_owned(),
            title: "Hashes, bigalloc, block maps and mknod, in memory".to_owned(),
            in_posting: false,
            quantity: "rate".to_owned(),
            unit: "names/s".to_owned(),
            better: Better::Higher,
            labels: strings(&["variant"]),
            extras: strings(&[
                "leaves touched [per 10,000 names]",
                "leaves looked at [1/name]",
                "leaf reads [1/name]",
                "splits [per 1,000 names]",
                "index splits",
                "levels of the index",
                "extents",
                "map [B/block]",
                "leaves [B/name]",
                "fill",
                "blocks logged [1/name]",
                "leaf blocks",
                "CPU [us/name]",
            ]),
            rows: rows.collect(),
            note: String::new(),
        }
    }

    /// The kernel's ext4 beside ours, with as many names.
    fn kernel_table(&self) -> Option<Table> {
        let rows = self.pairs.iter().map(|pair| {
            let (ours, kernel) = (pair.ours.rates(), pair.kernel.rates());
            Row {
                ours: Some(ours),
                kernel: Some(kernel),
                extras: vec![
                    Some(ours.avg / kernel.avg),
                    us_per_name(&pair.ours.costs),
                    us_per_name(&pair.kernel.costs),
                ],
                ..Row::ours(&[pair.operation, &pair.names.to_string()], &[])
            }
        });
        (!self.pairs.is_empty()).then(|| Table {
            id: "kernel".to_owned(),
            title: "The kernel's ext4 on this machine, with as many names as ours".to_owned(),
            in_posting: false,
            quantity: "rate".to_owned(),
            unit: "names/s".to_owned(),
            better: Better::Higher,
            labels: strings(&["operation", "names"]),
            extras: strings(&["ours / kernel", "CPU [us/name]", "CPU of the kernel [us/name]"]),
            rows: rows.collect(),
            note: String::new(),
        })
    }

    fn plot_rates(&self, kind: Kind) -> Plot {
        let mut series = Vec::new();
        for share in Share::ALL {
            let Some(grown) = self.grown(kind, share) else { continue };
            series.extend(Drive::ALL.into_iter().map(|drive| Series {
                name: format!("{}, {}", drive.name(), share.name()),
                posting: false,
                points: grown.curve(drive),
            }));
        }
        // The posting gives the rate at the end only: a level across the plot.
        let names = match kind {
            Kind::Normal => self.scale.normal,
            Kind::Large => self.scale.large,
        } as f64;
        let levels = match kind {
            Kind::Normal => [("hdd", f64::midpoint(HDD_NORMAL.0, HDD_NORMAL.1)), ("nvme", NVME_NORMAL)],
            Kind::Large => [("hdd", HDD_LARGE), ("nvme", NVME_LARGE)],
        };
        series.extend(levels.map(|(name, per_s)| Series {
            name: format!("posting: {name} at the end"),
            posting: true,
            points: vec![(names / POINTS as f64, per_s), (names, per_s)],
        }));
        Plot {
            id: format!("rate-{}", if kind == Kind::Normal { "normal" } else { "large" }),
            title: format!("Rate while the directory grows, {}", kind.name()),
            x: "names in the directory".to_owned(),
            y: "rate [names/s]".to_owned(),
            x_log: false,
            y_log: true,
            form: Form::Lines,
            categories: Vec::new(),
            series,
            table: "growth".to_owned(),
        }
    }

    fn plot_reads(&self) -> Plot {
        let mut series = Vec::new();
        for grown in &self.grown {
            let windows = grown.of.windows.iter().filter(|window| window.drive == Drive::Nvme);
            let points: Vec<_> =
                windows.map(|window| (window.names as f64, window.leaf_reads_per_name)).collect();
            let name = format!("{}, {}", grown.kind.name(), grown.share.name());
            series.push(Series { name, posting: false, points });
        }
        Plot {
            id: "leaf-reads".to_owned(),
            title: "Leaf reads per name".to_owned(),
            x: "names in the directory".to_owned(),
            y: "blocks read per name".to_owned(),
            x_log: true,
            y_log: false,
            form: Form::Lines,
            categories: Vec::new(),
            series,
            table: "growth".to_owned(),
        }
    }

    fn plot_variants(&self) -> Plot {
        let rates = self.variants.iter().enumerate();
        let series = Series {
            name: "extant".to_owned(),
            posting: false,
            points: rates.map(|(at, variant)| (at as f64, variant.fill.rates().avg)).collect(),
        };
        Plot {
            id: "variants".to_owned(),
            title: "Hashes, bigalloc, block maps and mknod, in memory".to_owned(),
            x: "variant".to_owned(),
            y: "rate [names/s]".to_owned(),
            x_log: false,
            y_log: false,
            form: Form::Bars,
            categories: self.variants.iter().map(|variant| variant.name.to_owned()).collect(),
            series: vec![series],
            table: "structure".to_owned(),
        }
    }

    fn plot_kernel(&self) -> Option<Plot> {
        let series = |name: &str, of: fn(&super::Pair) -> &Fill| Series {
            name: name.to_owned(),
            posting: false,
            points: (self.pairs.iter().enumerate())
                .map(|(at, pair)| (at as f64, of(pair).rates().avg))
                .collect(),
        };
        (!self.pairs.is_empty()).then(|| Plot {
            id: "kernel".to_owned(),
            title: "The kernel's ext4 on this machine, with as many names as ours".to_owned(),
            x: "operation".to_owned(),
            y: "rate [names/s]".to_owned(),
            x_log: false,
            y_log: false,
            form: Form::Bars,
            categories: self.pairs.iter().map(|pair| pair.operation.to_owned()).collect(),
            series: vec![series("extant", |pair| &pair.ours), series("kernel", |pair| &pair.kernel)],
            table: "kernel".to_owned(),
        })
    }
}
