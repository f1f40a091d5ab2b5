//! `inspect … free`: free clusters and inodes, as counted by bitmaps, descriptors and superblock, and the
//! fragmentation of the free space.

use extant_base::Group;
use serde_json::{Value, json};

use super::format::{count, human, percent, range_text};
use super::groups::{block_bitmap, inode_bitmap};
use super::page::Page;
use super::reader::Reader;
use extant_ondisk::Features;

/// Number of largest free runs to print.
const LARGEST: usize = 10;

/// Statistics of all free runs.
#[derive(Debug)]
struct Runs {
    /// The last run, which may continue in the next group: first block and length in blocks.
    open: Option<(u64, u64)>,
    /// By power of two of the length in blocks: number of runs, and their blocks.
    histogram: [(u64, u64); 64],
    /// Length and first block of the largest runs, the longest first.
    largest: Vec<(u64, u64)>,
    count: u64,
}

impl Runs {
    fn new() -> Self {
        Self { open: None, histogram: [(0, 0); 64], largest: Vec::new(), count: 0 }
    }

    /// Adds the next run, in the order of the device.
    fn add(&mut self, first: u64, len: u64) {
        match &mut self.open {
            Some((start, open_len)) if *start + *open_len == first => *open_len += len,
            _ => {
                self.end();
                self.open = Some((first, len));
            }
        }
    }

    fn end(&mut self) {
        let Some((first, len)) = self.open.take() else { return };
        self.count += 1;
        let class = &mut self.histogram[len.max(1).ilog2() as usize];
        *class = (class.0 + 1, class.1 + len);
        let at = self.largest.partition_point(|(known, _)| *known >= len);
        self.largest.insert(at, (len, first));
        self.largest.truncate(LARGEST);
    }
}

/// Totals over all groups.
#[derive(Debug, Default)]
struct Totals {
    clusters: u64,
    inodes: u64,
    desc_clusters: u64,
    desc_inodes: u64,
    /// Whether every bitmap could be read.
    is_complete: bool,
}

/// Prints the free space of all groups.
pub(super) fn show(reader: &Reader<'_>, page: &mut Page<'_>) {
    let mut runs = Runs::new();
    let mut totals = Totals { is_complete: true, ..Totals::default() };
    let ratio = reader.geometry().cluster_ratio();
    let unit = if ratio == 1 { "blocks" } else { "clusters" };
    page.fact("unit", format!("free space counts {unit}, by bitmap / by descriptor"), unit);
    let heading = format!("{:>7} {:>19} {:>19}", "group", unit, "inodes");
    page.list("groups", Some(&heading));
    for number in 0..reader.geometry().groups {
        if page.is_broken() || reader.is_flooded() {
            totals.is_complete = false;
            break;
        }
        group(reader, Group(number), &mut runs, &mut totals, page);
    }
    page.close();
    runs.end();
    print_totals(reader, &totals, ratio, page);
    print_runs(reader, &runs, page);
}

fn group(reader: &Reader<'_>, group: Group, runs: &mut Runs, totals: &mut Totals, page: &mut Page<'_>) {
    let geometry = reader.geometry();
    let found = match reader.descriptor(group) {
        Ok(found) => found,
        Err(fault) => {
            reader.damage(format_args!("descriptor of group {group}: {fault}"));
            totals.is_complete = false;
            page.item(
                format_args!("{group:>7} {fault}"),
                json!({"group": group.0, "descriptor": Value::Null}),
            );
            return;
        }
    };
    let (start, ratio) = (geometry.group_start(group).0, geometry.cluster_ratio());
    let clusters = block_bitmap(reader, group, &found).map(|bitmap| {
        for run in bitmap.bits.free_runs(0) {
            let first = start + u64::from(run.start) * ratio;
            let end = (start + u64::from(run.end) * ratio).min(geometry.blocks);
            runs.add(first, end - first);
        }
        bitmap.bits.count_clear()
    });
    let inodes = inode_bitmap(reader, group, &found).map(|bitmap| bitmap.bits.count_clear());
    totals.desc_clusters += u64::from(found.desc.free_clusters);
    totals.desc_inodes += u64::from(found.desc.free_inodes);
    let mut texts = Vec::new();
    let mut values = Vec::new();
    for (what, bitmap, counted, total) in [
        ("clusters", clusters, found.desc.free_clusters, &mut totals.clusters),
        ("inodes", inodes, found.desc.free_inodes, &mut totals.inodes),
    ] {
        match bitmap {
            Ok(free) => {
                *total += u64::from(free);
                if free != counted {
                    reader.damage(format_args!(
                        "group {group}: {free} free {what} by the bitmap, {counted} by the descriptor"
                    ));
                }
                let mark = if free == counted { "" } else { " DIFFERS" };
                texts.push(format!("{free:>9} {counted:>9}{mark}"));
                values.push(json!({"bitmap": free, "descriptor": counted}));
            }
            Err(fault) => {
                reader.damage(format_args!("group {group}: bitmap of {what}: {fault}"));
                totals.is_complete = false;
                texts.push(format!("{:>9} {counted:>9}", "?"));
                values.push(json!({"bitmap": Value::Null, "descriptor": counted}));
            }
        }
    }
    page.item(
        format_args!("{group:>7} {}", texts.join(" ")),
        json!({"group": group.0, "free_clusters": values[0], "free_inodes": values[1]}),
    );
}

fn print_totals(reader: &Reader<'_>, totals: &Totals, ratio: u64, page: &mut Page<'_>) {
    let sb = reader.sb();
    // A mounted file system updates these two counts late; the replay corrects them.
    let may_be_late = sb.features.has_incompat(Features::RECOVER);
    page.open("total");
    for (key, bitmap, descriptors, counted) in [
        ("free_clusters", totals.clusters, totals.desc_clusters, sb.free_blocks_count / ratio),
        ("free_inodes", totals.inodes, totals.desc_inodes, sb.free_inodes_count.into()),
    ] {
        if totals.is_complete && bitmap != counted && !may_be_late {
            let what = key.replace('_', " ");
            reader.damage(format_args!("superblock: counts {counted} {what}, the bitmaps {bitmap}"));
        }
        page.fact(
            key,
            format!("{bitmap} by the bitmaps, {descriptors} by the descriptors, {counted} by the superblock"),
            json!({"bitmaps": bitmap, "descriptors": descriptors, "superblock": counted}),
        );
    }
    let blocks = totals.clusters.saturating_mul(ratio);
    let bytes = blocks.saturating_mul(reader.block_len());
    let share = percent(blocks, reader.geometry().blocks);
    page.fact("free_space", format!("{bytes} bytes ({}), {share} of all", human(bytes)), bytes);
    page.close();
}

fn print_runs(reader: &Reader<'_>, runs: &Runs, page: &mut Page<'_>) {
    let size = |blocks: u64| human(blocks.saturating_mul(reader.block_len()));
    page.number("free_runs", runs.count);
    page.list("largest_free_runs", None);
    for (len, first) in &runs.largest {
        page.item(
            format_args!("{}  {} ({})", range_text(*first, *len), count(*len, "block"), size(*len)),
            json!({"first": first, "len_blocks": len}),
        );
    }
    page.close();
    let total: u64 = runs.histogram.iter().map(|(_, blocks)| blocks).sum();
    let heading = format!("{:>23} {:>9} {:>12} {:>7}", "run length in blocks", "runs", "blocks", "share");
    page.list("histogram", Some(&heading));
    for (log, (number, blocks)) in runs.histogram.iter().enumerate().filter(|(_, (number, _))| *number > 0) {
        let (first, len) = (1u64 << log, 1u64 << log);
        page.item(
            format_args!("{:>23} {number:>9} {blocks:>12} {:>7}", range_text(first, len), percent(*blocks, total)),
            json!({"len_blocks_min": first, "len_blocks_max": first + (len - 1), "runs": number, "blocks": blocks}),
        );
    }
    page.close();
}
