//! The claims of the posting about large directories, and the verdict of the tables on each.

use super::tables::{HDD_LARGE, HDD_NORMAL, NVME_LARGE, NVME_NORMAL, strings};
use super::{BYTES_PER_NAME, LARGE};
use crate::Summary;
use crate::report::{Change, Claim, Row, StudyReport, Table, Verdict};

/// Rows of memory for leaves.
const ALL: &str = "all";
const QUARTER: &str = "quarter";
const READ_FIRST: &str = "quarter, leaves read first";
/// The row of the table of variants that the others are compared with: links, hashed by half_md4.
const BASE: &str = "half_md4";
/// Fewer leaf reads per name count as none.
const READS_NONE: f64 = 0.001;
/// With so few extents there is nothing to reduce.
const FEW_EXTENTS: f64 = 16.0;

/// Writes the claims and notes. What was not measured is open.
///
/// - A collapse has two causes, each judged alone. A fall has the posting's effect if its whole 95 %
///   interval reaches at least half of the posting's, and lacks it if the whole interval is less; otherwise
///   it is open.
///   - Leaves no longer fit into memory: the large directory with memory for a quarter of the leaves, which
///     are read first as in ext4, against the same directory with memory for all. Beaten: deferred reads lack
///     the effect. The small directory with memory for a quarter has no part in the verdict, but says whether
///     memory or the number of names is the cause.
///   - Write-back, once the drive's write cache is full: from the small directory to the large one, with
///     memory for all leaves of both.
/// - A flash drive loses less than disks if its fall is less at 95 % both with memory for all leaves and with
///   leaves read first; refuted if it is more in both.
/// - Absolute rates are always open: the drives are models, the load runs in process, and the CPU is another.
/// - CPU load is confirmed if it is below half a CPU on both drives, refuted if on none.
/// - Leaves in memory: confirmed if a quarter of the memory costs at least half of the rate on both drives
///   and leaf reads are the cause; beaten if with deferred reads also the slowest window has at least half of
///   the rate of the fastest with memory for all, on both drives.
/// - Bytes of leaves may differ by 20 %.
/// - TEA is confirmed if names in sequence touch less than half of the leaves that they touch with half_md4,
///   refuted from 0.9 on.
/// - Links and files have to differ at 95 %; extents are compared with block maps by bytes per block.
/// - Fragmentation is open with 16 extents or fewer.
pub fn judge(report: &mut StudyReport) {
    let [hdd, nvme] = [("hdd", "hard disks"), ("nvme", "NVMe")];
    let claims = vec![
        collapse(report, hdd, Cause::Reads),
        collapse(report, hdd, Cause::WriteBack),
        collapse(report, nvme, Cause::Reads),
        collapse(report, nvme, Cause::WriteBack),
        less_on_flash(report),
        absolute_rates(report),
        cpu_load(report),
        leaves_in_memory(report),
        leaf_bytes(report),
        tea(report),
        links(report),
        block_maps(report),
        bigalloc(report),
        not_measured(
            "Creates wait for shadow buffers: blocks that the journal's commit is writing.",
            "two stack traces, no figure",
            "The study does not count these waits.",
        ),
        not_measured(
            "A lookup takes long to read a block of the directory, because the blocks are fragmented.",
            "supposed; a stack trace",
            "The study has no fragmented directory, and does not time lookups alone.",
        ),
        not_measured(
            "Additional seeks for the allocation of inodes lower the rate.",
            "supposed, no figure",
            "On modelled drives, names are links, so no inode is allocated.",
        ),
        not_measured(
            "A large htree does not become much slower over time by further fragmentation.",
            "expected, no figure",
            "Directories only grow here; `extant lab large-dir --operation mixed` also removes names.",
        ),
    ];
    let notes = [
        ("rates", note_of_rates(report)),
        ("growth", note_of_growth(report)),
        ("structure", note_of_structure(report)),
        ("kernel", note_of_kernel(report)),
    ];
    report.claims = claims;
    for (table, note) in notes {
        report.note(table, note.unwrap_or_default());
    }
}

/// Our part of a claim.
struct Judged {
    ours: String,
    verdict: Verdict,
    why: String,
}

fn claim(claim: &str, posting: &str, tables: &[&str], judged: Option<Judged>) -> Claim {
    let judged = judged.unwrap_or_else(|| Judged {
        ours: "not measured".to_owned(),
        verdict: Verdict::Open,
        why: "This report does not have the figures.".to_owned(),
    });
    Claim {
        claim: claim.to_owned(),
        posting: posting.to_owned(),
        ours: judged.ours,
        kernel: None,
        verdict: judged.verdict,
        why: judged.why,
        tables: strings(tables),
    }
}

/// A figure with three significant digits, and with commas from 10,000 on.
fn three(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return "0".to_owned();
    }
    let digits = 2 - value.abs().log10().floor() as i32;
    if digits <= 0 {
        let unit = 10f64.powi(-digits);
        return with_commas(&format!("{:.0}", (value / unit).round() * unit));
    }
    let text = format!("{value:.*}", digits as usize);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// 60,500; a number of four digits has no comma.
fn with_commas(digits: &str) -> String {
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && digits.len() > 4 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Reads per name.
fn reads_text(reads: f64) -> String {
    if reads < READS_NONE { "0".to_owned() } else { three(reads) }
}

/// A number of names.
fn names_text(names: f64) -> String {
    if names >= 1e6 { format!("{} million", three(names / 1e6)) } else { three(names) }
}

/// A change, with its 95 % interval if there is one.
fn change_text(change: &Change) -> String {
    match change.plus_minus_percent.filter(|half| half.is_finite()) {
        Some(half) => format!("{:+.0} \u{b1} {half:.0} %", change.percent),
        None => format!("{:+.0} %", change.percent),
    }
}

/// Whether a rate falls by at least `percent`, which is negative: with its whole interval or not at all. None
/// if the interval contains `percent`.
fn falls(change: &Change, percent: f64) -> Option<bool> {
    let half = change.plus_minus_percent.unwrap_or(0.0);
    match () {
        () if change.percent + half <= percent => Some(true),
        () if change.percent - half > percent => Some(false),
        () => None,
    }
}

fn rate(table: &Table, labels: &[&str]) -> Option<f64> {
    Some(table.ours(labels)?.avg)
}

/// Why the rate falls with ten times the names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    Reads,
    WriteBack,
}

fn collapse(report: &StudyReport, (drive, name): (&str, &str), cause: Cause) -> Claim {
    let posting = match drive {
        "hdd" => {
            let (low, high) = HDD_NORMAL;
            format!("{} to {} creates/s fall to {}", three(low), three(high), three(HDD_LARGE))
        }
        _ => format!("about {} creates/s fall to {}", three(NVME_NORMAL), three(NVME_LARGE)),
    };
    let row = |memory| report.table("rates")?.row(&["large_dir", drive, memory]);
    let posted = row(ALL).and_then(|row| row.posting_change_percent);
    let percent = posted.map_or(String::new(), |percent| format!(" ({percent:+.0} %)"));
    let (words, judged) = match cause {
        Cause::Reads => ("1: leaves no longer fit into memory", by_reads(report, drive)),
        Cause::WriteBack => ("2: write-back, also with memory for all leaves", by_write_back(report, drive)),
    };
    claim(
        &format!("With ten times the names, the creation rate on {name} collapses. Cause {words}."),
        &format!("{posting}{percent}; its memory is not given"),
        &["rates", "growth"],
        judged,
    )
}

/// A verdict on a fall of the rate, and a sentence about it. `goal`: half of the posting's.
fn verdict_on_fall(change: &Change, goal: f64) -> (Verdict, String) {
    let (verdict, words) = match falls(change, goal) {
        Some(true) => (Verdict::Confirmed, "The fall is at least half of the posting's"),
        Some(false) => (Verdict::Refuted, "The fall is less than half of the posting's"),
        None => {
            (Verdict::Open, "The windows differ too much to say whether the fall is half of the posting's")
        }
    };
    (verdict, format!("{words} ({goal:.0} %)."))
}

/// Leaves are read because they do not fit into memory: in one and the same directory.
fn by_reads(report: &StudyReport, drive: &str) -> Option<Judged> {
    let rates = report.table("rates")?;
    let ours = |memory| rates.ours(&["large_dir", drive, memory]);
    let (all, first, deferred) = (ours(ALL)?, ours(READ_FIRST)?, ours(QUARTER)?);
    let [by_first, by_deferred] = [first, deferred].map(|these| Change::between(&these, &all, ALL));
    let goal = rates.row(&["large_dir", drive, ALL])?.posting_change_percent? / 2.0;
    let (verdict, fall) = verdict_on_fall(&by_first, goal);
    let (verdict, of_deferred) = match (verdict, falls(&by_deferred, goal)) {
        (Verdict::Confirmed, Some(false)) => (Verdict::Beaten, "With deferred reads it is less than that."),
        (_, Some(false)) => (verdict, "With deferred reads it is less."),
        (_, Some(true)) => (verdict, "So it is with deferred reads."),
        (_, None) => (verdict, "With deferred reads the windows differ too much to say."),
    };
    let reads = rates.extra(&["large_dir", drive, READ_FIRST], "leaf reads").map(reads_text)?;
    let same = |memory| SameMemory::of(rates, drive, memory);
    let both = [(same(READ_FIRST), "leaves read first"), (same(QUARTER), "deferred reads")];
    let texts = both.iter().filter_map(|(same, words)| Some(format!("{} with {words}", same.as_ref()?)));
    let texts: Vec<String> = texts.collect();
    let like_for_like = match texts.as_slice() {
        [] => String::new(),
        texts => format!(
            ". From the small directory to the large one, with memory for a quarter of each: {}",
            texts.join(", ")
        ),
    };
    let of_memory = match (verdict, &both[0].0) {
        (Verdict::Confirmed | Verdict::Beaten, Some(same)) if falls(&same.change, goal) == Some(false) => {
            " With as little memory, the small directory is about as slow: memory, not the number of names, \
             makes this fall."
        }
        _ => "",
    };
    Some(Judged {
        ours: format!(
            "large directory: {} names/s with memory for all leaves; {} ({}) with memory for a quarter and \
             leaves read first (as ext4 does); {} ({}) with a quarter and deferred reads \
             (default){like_for_like}",
            three(all.avg),
            three(first.avg),
            change_text(&by_first),
            three(deferred.avg),
            change_text(&by_deferred)
        ),
        verdict,
        why: format!(
            "With leaves read first, a name waits for {reads} leaf reads. {fall} {of_deferred}{of_memory}"
        ),
    })
}

/// What is left of the fall with memory for all leaves of both directories.
fn by_write_back(report: &StudyReport, drive: &str) -> Option<Judged> {
    let rates = report.table("rates")?;
    let normal = rate(rates, &["normal", drive, ALL])?;
    let large = rate(rates, &["large_dir", drive, ALL])?;
    let row = rates.row(&["large_dir", drive, ALL])?;
    let change = row.change.as_ref()?;
    let (verdict, fall) = verdict_on_fall(change, row.posting_change_percent? / 2.0);
    let of = |directory, head| rates.extra(&[directory, drive, ALL], head);
    let reads = of("large_dir", "leaf reads")?;
    let (few, many) = (of("normal", "blocks logged")?, of("large_dir", "blocks logged")?);
    let growth = report.table("growth").and_then(|growth| {
        let (first, last) = ends(growth, ["normal", drive, ALL])?;
        let (before, after) = ends(growth, ["normal", "memory", ALL])?;
        Some(format!(
            " Both rates are of the last windows, in which the drive's write cache is full. It fills while \
             the small directory grows: the rate there falls from {} to {} ({:+.0} %; without latency by \
             {:.0} %).",
            three(first),
            three(last),
            (last / first - 1.0) * 100.0,
            (1.0 - after / before) * 100.0
        ))
    });
    Some(Judged {
        ours: format!(
            "{} names/s in the small directory, {} in the large one ({})",
            three(normal),
            three(large),
            change_text(change)
        ),
        verdict: if reads < READS_NONE { verdict } else { Verdict::Open },
        why: format!(
            "{fall} A name reads {} leaves; the large directory logs {} blocks per name, the small one {}.{} \
             The posting does not say which of its rates it gives: with another one of ours, the fall is \
             another.",
            reads_text(reads),
            three(many),
            three(few),
            growth.unwrap_or_default()
        ),
    })
}

/// "SSD have less perf drop".
fn less_on_flash(report: &StudyReport) -> Claim {
    let rates = report.table("rates");
    let row = |drive, memory| rates?.row(&["large_dir", drive, memory]);
    let posted = |drive| row(drive, ALL)?.posting_change_percent;
    let judged = || {
        let change = |drive, memory| row(drive, memory)?.change.as_ref();
        let mut texts = Vec::new();
        let (mut less, mut more) = (0, 0);
        for (memory, words) in [(ALL, "memory for all leaves"), (READ_FIRST, "a quarter, leaves read first")]
        {
            let (hdd, nvme) = (change("hdd", memory)?, change("nvme", memory)?);
            texts.push(format!("{} on hdd, {} on nvme with {words}", change_text(hdd), change_text(nvme)));
            // Single windows have no interval, and decide nothing.
            let [of_hdd, of_nvme] =
                [hdd, nvme].map(|change| change.plus_minus_percent.unwrap_or(f64::INFINITY));
            let half = of_hdd.hypot(of_nvme);
            less += i32::from(nvme.percent - hdd.percent > half);
            more += i32::from(hdd.percent - nvme.percent > half);
        }
        Some(Judged {
            ours: texts.join("; "),
            verdict: match (less, more) {
                (2, _) => Verdict::Confirmed,
                (_, 2) => Verdict::Refuted,
                _ => Verdict::Open,
            },
            why: match (less, more) {
                (2, _) | (_, 2) => "The falls differ at 95 % in both rows.",
                _ => "Against normal, each: the falls do not differ at 95 % in both rows.",
            }
            .to_owned(),
        })
    };
    let posting = match (posted("hdd"), posted("nvme")) {
        (Some(hdd), Some(nvme)) => format!("{hdd:+.0} % on hard disks, {nvme:+.0} % on NVMe"),
        _ => "not in this report".to_owned(),
    };
    claim("The flash drive loses less than hard disks do.", &posting, &["rates"], judged())
}

/// The small and the large directory with the same memory: a quarter of the leaves of each.
struct SameMemory {
    small: Summary,
    large: Summary,
    change: Change,
}

impl SameMemory {
    fn of(rates: &Table, drive: &str, memory: &str) -> Option<Self> {
        let of = |directory| rates.ours(&[directory, drive, memory]);
        let (small, large) = (of("normal")?, of("large_dir")?);
        Some(Self { small, large, change: Change::between(&large, &small, "normal") })
    }
}

impl std::fmt::Display for SameMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (small, large) = (three(self.small.avg), three(self.large.avg));
        let single = match (self.small.runs, self.large.runs) {
            (2.., 2..) => "",
            (2.., _) => "; one window of the large directory",
            (_, 2..) => "; one window of the small directory",
            _ => "; one window of each",
        };
        write!(f, "{small} to {large} ({}{single})", change_text(&self.change))
    }
}

fn absolute_rates(report: &StudyReport) -> Claim {
    let judged = || {
        let rates = report.table("rates")?;
        let of = |drive| rate(rates, &["normal", drive, ALL]).map(three);
        let names = report.number("names, normal").map(names_text);
        let names = names.map_or(String::new(), |names| {
            format!("; our directory has {names} names before the last windows")
        });
        Some(Judged {
            ours: format!(
                "{} names/s on hdd, {} on nvme, {} on a device without latency{names}",
                of("hdd")?,
                of("nvme")?,
                of("memory")?
            ),
            verdict: Verdict::Open,
            why: "The drives are models and the CPU is another, so these rates are not comparable with the \
                  posting's. The changes above are."
                .to_owned(),
        })
    };
    let (low, high) = HDD_NORMAL;
    let made = claim(
        "A directory of 20.68 million names takes creates at these rates.",
        &format!(
            "{} to {} creates/s on hard disks, about {} on NVMe",
            three(low),
            three(high),
            three(NVME_NORMAL)
        ),
        &["rates", "kernel"],
        judged(),
    );
    Claim { kernel: kernel_text(report), ..made }
}

/// Rates of the kernel beside ours, with as many names.
fn kernel_text(report: &StudyReport) -> Option<String> {
    let table = report.table("kernel")?;
    let text = |row: &Row| {
        let [operation, names] = row.labels.as_slice() else { return None };
        let names = names_text(names.parse().ok()?);
        let (ours, kernel) = (three(row.ours?.avg), three(row.kernel?.avg));
        Some(format!("{kernel} names/s by {operation} (ours {ours}) with {names} names"))
    };
    let texts: Vec<String> = table.rows.iter().filter_map(text).collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

fn cpu_load(report: &StudyReport) -> Claim {
    let judged = || {
        let rates = report.table("rates")?;
        let us = rates.extra(&["large_dir", "memory", ALL], "CPU")?;
        let load = |drive| rates.extra(&["large_dir", drive, ALL], "CPU load at this rate");
        let (hdd, nvme) = (load("hdd")?, load("nvme")?);
        Some(Judged {
            ours: format!(
                "{} us of CPU time per name: {} % of one CPU at the rate of large_dir on hdd, {} % on nvme",
                three(us),
                three(hdd),
                three(nvme)
            ),
            verdict: match (hdd < 50.0, nvme < 50.0) {
                (true, true) => Verdict::Confirmed,
                (false, false) => Verdict::Refuted,
                _ => Verdict::Open,
            },
            why: "CPU time is measured on a device without latency, commits included, with memory for all \
                  leaves; below 50 % on both drives counts as confirmed."
                .to_owned(),
        })
    };
    let posting = "\"CPU load isn't high\": 2 to 3 % in functions of ldiskfs";
    claim("The CPU is not the bottleneck in the large directory.", posting, &["rates"], judged())
}

fn leaves_in_memory(report: &StudyReport) -> Claim {
    let judged = || {
        let rates = report.table("rates")?;
        let (mut ours, mut why) = (Vec::new(), Vec::new());
        let (mut is_so, mut is_good) = (Vec::new(), true);
        for drive in ["nvme", "hdd"] {
            let labels = |memory| ["large_dir", drive, memory];
            let all = rates.ours(&labels(ALL))?;
            let first = rate(rates, &labels(READ_FIRST))?;
            let default = rates.ours(&labels(QUARTER))?;
            let reads = |memory| rates.extra(&labels(memory), "leaf reads");
            let (reads_all, reads_first) = (reads(ALL)?, reads(READ_FIRST)?);
            is_so.push(first < all.avg / 2.0 && reads_all < 0.05 && reads_first > 0.3);
            is_good &= default.min >= all.max / 2.0;
            ours.push(format!(
                "on {drive}: {} names/s and {} leaf reads per name with memory for all, {} and {} with \
                 memory for a quarter and leaves read first; {} names/s if reads are deferred (default)",
                three(all.avg),
                reads_text(reads_all),
                three(first),
                reads_text(reads_first),
                three(default.avg)
            ));
            why.push(format!(
                "on {drive} the rate is {:.0} % of that with memory for all if leaves are read first, and \
                 {:.0} % with deferred reads ({:.0} to {:.0} %, window by window)",
                first / all.avg * 100.0,
                default.avg / all.avg * 100.0,
                default.min / all.max * 100.0,
                default.max / all.min * 100.0
            ));
        }
        Some(Judged {
            ours: ours.join("; "),
            verdict: match is_so.as_slice() {
                [true, true] if is_good => Verdict::Beaten,
                [true, true] => Verdict::Confirmed,
                [false, false] => Verdict::Refuted,
                _ => Verdict::Open,
            },
            why: format!(
                "With memory for a quarter, {}. At least 50 % in each window on both drives would count as \
                 beaten.",
                why.join("; ")
            ),
        })
    };
    let text = "A good rate needs memory for all leaf blocks, because each name goes to a random leaf.";
    claim(text, "no figure", &["rates"], judged())
}

fn leaf_bytes(report: &StudyReport) -> Claim {
    let judged = || {
        let rates = report.table("rates")?;
        let labels = ["large_dir", "memory", ALL];
        let bytes = rates.extra(&labels, "leaves")? * 1e6;
        // Leaves are counted after the last windows: those on nvme are last.
        let at_end = rates.extra(&["large_dir", "nvme", ALL], "names at the end");
        let names = at_end.or_else(|| report.number("names, large_dir"))?;
        let per_name = bytes / names.max(1.0);
        let estimate = BYTES_PER_NAME as f64;
        let differs = (per_name / estimate - 1.0) * 100.0;
        Some(Judged {
            ours: format!("{} GB for {} names", three(bytes / 1e9), names_text(names)),
            verdict: if differs.abs() <= 20.0 { Verdict::Confirmed } else { Verdict::Refuted },
            why: format!(
                "{} bytes per name, {differs:+.0} % from the posting's; up to 20 % counts as the same.",
                three(per_name)
            ),
        })
    };
    let posting = format!("24 bytes of entry * 4/3 = {BYTES_PER_NAME} bytes per name");
    claim(
        &format!("{} names take about 6.6 GB of leaf blocks.", names_text(LARGE as f64)),
        &posting,
        &["rates"],
        judged(),
    )
}

fn tea(report: &StudyReport) -> Claim {
    let judged = || {
        let table = report.table("structure")?;
        let touched = |hash: &str| table.extra(&[hash], "leaves touched");
        let (md4, tea) = (touched(BASE)?, touched("tea")?);
        let ratio = tea / md4.max(1.0);
        let of = table.extra(&["tea"], "leaf blocks");
        let of = of.map_or(String::new(), |leaves| format!(", of {} leaves", three(leaves)));
        let change = table.row(&["tea"])?.change.as_ref()?;
        let proof = if change.significant == Some(true) { "" } else { ": no difference at 95 %" };
        Some(Judged {
            ours: format!(
                "10,000 names in sequence touch {} leaves with tea, {} with half_md4{of}; the rate changes \
                 by {}",
                three(tea),
                three(md4),
                change_text(change)
            ),
            verdict: match ratio {
                ratio if ratio < 0.5 => Verdict::Confirmed,
                ratio if ratio >= 0.9 => Verdict::Refuted,
                _ => Verdict::Open,
            },
            why: match ratio {
                ratio if ratio >= 0.9 => {
                    format!("Both hashes spread neighbouring names over random leaves. Rate{proof}.")
                }
                ratio => format!("With tea, names touch {} times as many leaves. Rate{proof}.", three(ratio)),
            }
            .replace(" Rate.", ""),
        })
    };
    let text = "With the TEA hash, names in sequence go to leaves that are mostly in sequence, which could \
                improve the rate noticeably.";
    claim(text, "supposed, not measured", &["structure"], judged())
}

fn links(report: &StudyReport) -> Claim {
    let judged = || {
        let table = report.table("structure")?;
        let change = table.row(&["mknod"])?.change.as_ref()?;
        Some(Judged {
            ours: format!(
                "{} names/s by link, {} by mknod",
                three(rate(table, &[BASE])?),
                three(rate(table, &["mknod"])?)
            ),
            verdict: match change.significant {
                Some(true) if change.percent < 0.0 => Verdict::Confirmed,
                Some(true) => Verdict::Refuted,
                _ => Verdict::Open,
            },
            why: match change.significant {
                Some(true) => {
                    format!("Compared with link, the rate of mknod changes by {}.", change_text(change))
                }
                _ => format!("{}: no difference at 95 % confidence.", change_text(change)),
            },
        })
    };
    let text = "Links to few inodes exercise only the directory; files also load their inodes.";
    let made = claim(text, "no figure", &["structure", "kernel"], judged());
    Claim { kernel: kernel_text(report), ..made }
}

fn block_maps(report: &StudyReport) -> Claim {
    let judged = || {
        let table = report.table("structure")?;
        let of = |variant: &str, head| table.extra(&[variant], head);
        let (map, extents) = (of(BASE, "map")?, of(BASE, "extents")?);
        let (map_of_files, extents_of_files) = (of("mknod", "map")?, of("mknod", "extents")?);
        let blocks = of("block-mapped", "map")?;
        Some(Judged {
            ours: format!(
                "{} bytes per block with extents if names are links, {} if they are files; {} with a block \
                 map",
                three(map),
                three(map_of_files),
                three(blocks)
            ),
            verdict: match (map < blocks, map_of_files < blocks) {
                (true, true) => Verdict::Refuted,
                (false, false) => Verdict::Confirmed,
                _ => Verdict::Open,
            },
            why: format!(
                "An extent maps a run of blocks, not one block: the directories have {extents} and \
                 {extents_of_files} extents."
            ),
        })
    };
    let text = "Extents are inefficient for directories: 12 bytes per block, where block maps need 4.";
    claim(text, "12 and 4 bytes per block", &["structure"], judged())
}

fn bigalloc(report: &StudyReport) -> Claim {
    let judged = || {
        let table = report.table("structure")?;
        let extents = |variant: &str| table.extra(&[variant], "extents");
        let (small, big) = (extents(BASE)?, extents("bigalloc 64K")?);
        Some(Judged {
            ours: format!(
                "extents of the directory: {small} without bigalloc, {big} with clusters of 64 KiB; 16 KiB \
                 was not run"
            ),
            verdict: match () {
                () if small <= FEW_EXTENTS => Verdict::Open,
                () if big < small => Verdict::Confirmed,
                () => Verdict::Refuted,
            },
            why: match small <= FEW_EXTENTS {
                true => "Without bigalloc the directory is hardly fragmented, so there is nothing to reduce.",
                false => "Without bigalloc the directory is fragmented.",
            }
            .to_owned(),
        })
    };
    let text = "With bigalloc and clusters of 16 or 64 KiB, directories are less fragmented.";
    claim(text, "no figure", &["structure"], judged())
}

fn not_measured(text: &str, posting: &str, why: &str) -> Claim {
    Claim { why: why.to_owned(), ..claim(text, posting, &[], None) }
}

/// The posting's figures and ours, side by side.
fn note_of_rates(report: &StudyReport) -> Option<String> {
    let rates = report.table("rates")?;
    let of = |drive| {
        let of = |memory| rate(rates, &["large_dir", drive, memory]).map(three);
        Some((three(rate(rates, &["normal", drive, ALL])?), of(READ_FIRST)?, of(ALL)?))
    };
    let (hdd, nvme) = (of("hdd")?, of("nvme")?);
    let (low, high) = HDD_NORMAL;
    Some(format!(
        "Posting: {} to {} creates/s fall to {} on hard disks (the change is that of the middle), about {} \
         to {} on NVMe. Ours: {} names/s fall to {} (memory for a quarter of the leaves, leaves read first) \
         or {} (memory for all) on hdd, {} to {} or {} on nvme; the small directory fits into memory in each \
         case. The posting does not give its memory, so its figures for large_dir stand in two rows. It \
         created files by mknod; ours are links, so that only the directory grows. Memory for a quarter of \
         the leaves holds fewer than a quarter, so a name reads more than 0.75 leaves: up to 5/16 of this \
         memory are filters of the names in each leaf (64 bytes per KiB of a leaf), the rest also holds \
         index blocks, and the directory grows during the last windows.",
        three(low),
        three(high),
        three(HDD_LARGE),
        three(NVME_NORMAL),
        three(NVME_LARGE),
        hdd.0,
        hdd.1,
        hdd.2,
        nvme.0,
        nvme.1,
        nvme.2
    ))
}

/// Points of a curve of the table of growth: rates and leaf reads.
fn curve<'a>(table: &'a Table, labels: [&'a str; 3]) -> impl Iterator<Item = (f64, Option<f64>)> + 'a {
    let rows = table.rows.iter().filter(move |row| row.labels.get(..3).is_some_and(|these| these == labels));
    rows.filter_map(|row| Some((row.ours?.avg, row.extras.first().copied().flatten())))
}

fn note_of_growth(report: &StudyReport) -> Option<String> {
    let (rates, growth) = (report.table("rates")?, report.table("growth")?);
    let of = |memory| {
        let knee = rates.extra(&["normal", "nvme", memory], "knee").map(names_text);
        let knee = knee.map_or("no knee".to_owned(), |names| format!("knee at {names} names"));
        let best = curve(growth, ["normal", "nvme", memory]).map(|(per_s, _)| per_s).reduce(f64::max)?;
        Some((three(best), knee))
    };
    let ((of_all, knee_of_all), (of_quarter, knee_of_quarter)) = (of(ALL)?, of(QUARTER)?);
    Some(format!(
        "The knee is the number of names from which on the rate stays below 0.8 of the best one before, so \
         it does not compare rows with different best rates. In the normal directory on nvme, the best \
         window has {of_all} names/s with memory for all leaves ({knee_of_all}), and {of_quarter} with \
         memory for a quarter ({knee_of_quarter}).{} Windows before the end are short, so a drive's write \
         cache takes most of them; at the end several follow each other, and the first is left out.",
        cause_of_knee(growth).unwrap_or_default()
    ))
}

/// The first and the last rate of a curve of the table of growth.
fn ends(growth: &Table, labels: [&str; 3]) -> Option<(f64, f64)> {
    let rates: Vec<f64> = curve(growth, labels).map(|(per_s, _)| per_s).collect();
    Some((*rates.first()?, *rates.last()?))
}

/// Why the rate of the normal directory falls on drives with memory for all leaves, if not by leaf reads.
fn cause_of_knee(growth: &Table) -> Option<String> {
    let reads = |drive| {
        curve(growth, ["normal", drive, ALL]).filter_map(|(_, reads)| reads).reduce(f64::max).unwrap_or(0.0)
    };
    let fall = |drive| ends(growth, ["normal", drive, ALL]).map(|(first, last)| (last / first - 1.0) * 100.0);
    let (hdd, nvme, memory) = (fall("hdd")?, fall("nvme")?, fall("memory")?);
    (reads("hdd").max(reads("nvme")) < READS_NONE && hdd.max(nvme) < memory).then(|| {
        format!(
            " With memory for all, no window reads a leaf, so these knees do not come from leaf reads: from \
             the first point to the last the rate changes by {memory:+.0} % without latency, by {nvme:+.0} % \
             on nvme and by {hdd:+.0} % on hdd. The difference is writes of leaves and of the journal, which \
             the drive's write cache absorbs in the first windows."
        )
    })
}

fn note_of_structure(report: &StudyReport) -> Option<String> {
    let names = names_text(report.number("names of variants")?);
    Some(format!(
        "Each variant has {names} names, links except in the row mknod, on a device without latency. An \
         extent takes 12 bytes and maps a run of blocks; a block map takes 4 bytes for each block, and the \
         column \"extents\" then counts the runs of contiguous blocks."
    ))
}

fn note_of_kernel(report: &StudyReport) -> Option<String> {
    let table = report.table("kernel")?;
    let text = |row: &Row| {
        let ratio = row.ours?.avg / row.kernel?.avg;
        Some(format!("{} times as fast by {}", three(ratio), row.labels.first()?))
    };
    let texts: Vec<String> = table.rows.iter().filter_map(text).collect();
    Some(format!(
        "Ours is {}. Ours runs in process on a device in memory; the kernel runs system calls on a mounted \
         file system, and CPU time of its own threads, such as the journal's, is not counted.",
        texts.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_sentences_have_three_digits() {
        let figures = [21_547.2, 659_751.0, 0.862_29, 32.14, 8701.0, 0.0, 100.0, 0.000_656].map(three);
        assert_eq!(figures, ["21,500", "660,000", "0.862", "32.1", "8700", "0", "100", "0.000656"]);
        assert_eq!(names_text(5_141_826.0), "5.14 million");
    }

    #[test]
    fn a_change_with_a_single_window_says_so() {
        let same = |small: &[f64], large: &[f64]| {
            let (small, large) = (Summary::of(small), Summary::of(large));
            SameMemory { small, large, change: Change::between(&large, &small, "normal") }.to_string()
        };
        assert_eq!(same(&[200.0], &[250.0, 250.0]), "200 to 250 (+25 %; one window of the small directory)");
        assert_eq!(same(&[20_000.0; 2], &[15_000.0; 2]), "20,000 to 15,000 (-25 \u{b1} 0 %)");
    }

    #[test]
    fn a_fall_needs_its_whole_interval() {
        let base = Summary::of(&[100.0, 102.0, 98.0]);
        let change = |runs: &[f64]| Change::between(&Summary::of(runs), &base, "normal");
        assert_eq!(falls(&change(&[20.0, 21.0, 22.0]), -40.0), Some(true));
        assert_eq!(falls(&change(&[80.0, 81.0, 82.0]), -40.0), Some(false));
        assert_eq!(falls(&change(&[10.0, 100.0, 50.0]), -40.0), None);
        // Single runs have no interval.
        assert_eq!(falls(&change(&[20.0]), -40.0), Some(true));
    }
}
