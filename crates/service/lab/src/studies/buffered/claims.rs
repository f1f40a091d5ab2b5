//! The claims of the posting, and their verdicts by the tables.
//!
//! Owns: the rules of the verdicts, and their sentences. Does **not** own: the tables and their notes (see
//! [`super`]).

use super::SCATTERED;
use crate::report::{self, Claim, Table, Verdict, figure};

/// Rows of a table whose labels are those.
fn rows_like<'a>(
    tables: &'a [Table],
    table: &str,
    labels: &'a [&'a str],
) -> impl Iterator<Item = &'a report::Row> {
    let rows = tables.iter().find(|of| of.id == table).map_or(&[][..], |table| &table.rows);
    let fits = move |row: &&report::Row| {
        row.labels.iter().zip(labels).all(|(label, wanted)| *wanted == "*" || label == wanted)
    };
    rows.iter().filter(fits)
}

/// Rows whose gain the posting names.
struct Headline {
    claim: &'static str,
    table: &'static str,
    /// Labels of the rows; `*` is any.
    labels: &'static [&'static str],
}

const HEADLINES: [Headline; 4] = [
    Headline {
        claim: "iomap with large folios speeds up cached writes of 64 KiB.",
        table: "write",
        labels: &["cache", "N", "N", "N", "64K"],
    },
    Headline {
        claim: "iomap with large folios speeds up cached writes of 1 MiB.",
        table: "write",
        labels: &["cache", "N", "N", "N", "1M"],
    },
    Headline {
        claim: "iomap with large folios speeds up reads of a hole by 1 MiB.",
        table: "read",
        labels: &["hole", "1M"],
    },
    Headline {
        claim: "iomap with large folios speeds up synchronous writes of 1 MiB on NVMe.",
        table: "write",
        labels: &["nvme", "*", "Y", "N", "1M"],
    },
];

fn span(values: &[f64]) -> String {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if values.len() < 2 || (most - least).abs() < 0.5 {
        format!("{} %", signed(most))
    } else {
        format!("{} to {} %", signed(least), signed(most))
    }
}

/// A whole number with its sign; 0 has none.
pub(super) fn signed(percent: f64) -> String {
    let whole = percent.round() as i64;
    if whole == 0 { "0".to_owned() } else { format!("{whole:+}") }
}

/// The changes of rows, ours and the posting's, and the kernel's share of ours.
pub(super) fn changes<'a>(
    rows: impl Iterator<Item = &'a report::Row>,
) -> (Vec<&'a report::Row>, Vec<f64>, Vec<f64>) {
    let rows: Vec<&report::Row> = rows.collect();
    let ours = rows.iter().filter_map(|row| Some(row.change.as_ref()?.percent)).collect();
    let its = rows.iter().filter_map(|row| row.posting_change_percent).collect();
    (rows, ours, its)
}

fn kernels(rows: &[&report::Row]) -> Option<String> {
    let text = |(ours, its): (crate::Summary, crate::Summary)| match its.stddev > SCATTERED * its.avg {
        true => format!("not usable: runs from {:.0} to {:.0} MiB/s", its.min, its.max),
        false => format!("median {} MiB/s, ours {}", figure(its.median), figure(ours.median)),
    };
    let texts: Vec<String> = rows.iter().filter_map(|row| Some((row.ours?, row.kernel?))).map(text).collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

pub(super) fn claims(tables: &[Table], nvme_rate: f64) -> Vec<Claim> {
    let mut claims: Vec<Claim> = HEADLINES
        .iter()
        .map(|headline| {
            let (rows, ours, its) = changes(rows_like(tables, headline.table, headline.labels));
            let (verdict, mut why) = verdict_on(&rows, &ours, &its);
            // A form that is as fast as the drive shows nothing of itself.
            let is_limited = |row: &&&report::Row| {
                row.labels[0] == "nvme" && row.ours.is_some_and(|ours| ours.avg >= 0.95 * nvme_rate)
            };
            let limited: Vec<String> =
                rows.iter().filter(is_limited).map(|row| row.labels.join(" ")).collect();
            if !limited.is_empty() {
                why += &format!(
                    " In {} the model of the drive limits iomap: the mean is within 5 % of its rate, {} \
                     MiB/s.",
                    limited.join("; "),
                    figure(nvme_rate)
                );
            }
            let has_none = !rows.is_empty() && rows.iter().all(|row| row.labels[0] == "hole");
            Claim {
                claim: headline.claim.to_owned(),
                posting: span(&its),
                ours: if has_none { "no counterpart".to_owned() } else { span(&ours) },
                kernel: kernels(&rows),
                verdict,
                why,
                tables: vec![headline.table.to_owned()],
            }
        })
        .collect();
    claims.push(whole_grid(tables));
    claims.push(faster_disk(tables));
    claims.push(small_writes(tables));
    claims.push(small_gain(tables));
    claims.push(software_stack(tables));
    claims.push(none_slower(tables));
    claims
}

/// The verdict on a claim that no row is slower, and why: refuted if one is slower at 95 %, open if a loss of
/// [`NOTHING_PERCENT`] or more is within the interval of one.
fn not_slower(rows: &[&report::Row]) -> Judged {
    let loses = |row: &&&report::Row| {
        row.change.as_ref().is_some_and(|made| made.percent < 0.0 && made.significant == Some(true))
    };
    let may_lose = |row: &&&report::Row| {
        row.change.as_ref().is_none_or(|made| {
            made.plus_minus_percent.is_none_or(|half| made.percent - half <= -NOTHING_PERCENT)
        })
    };
    let names = |those: Vec<&&report::Row>| {
        let names: Vec<String> = those.iter().map(|row| row.labels.join(" ")).collect();
        names.join("; ")
    };
    let slower: Vec<&&report::Row> = rows.iter().filter(loses).collect();
    let unsure: Vec<&&report::Row> = rows.iter().filter(may_lose).collect();
    let mut why = format!("{} of {} rows are slower at 95 %.", slower.len(), rows.len());
    let verdict = match (slower.is_empty(), unsure.is_empty()) {
        _ if rows.is_empty() => Verdict::Open,
        (false, _) => {
            why = format!("{} They are: {}.", why, names(slower));
            Verdict::Refuted
        }
        (true, false) => {
            why += &format!(
                " In {} a loss of {NOTHING_PERCENT:.0} % is within the interval: {}.",
                unsure.len(),
                names(unsure)
            );
            Verdict::Open
        }
        (true, true) => {
            why += &format!(" A loss of {NOTHING_PERCENT:.0} % is in no interval.");
            Verdict::Confirmed
        }
    };
    (verdict, why)
}

/// A verdict, and why.
type Judged = (Verdict, String);

/// The posting's cached writes of 4 KiB gain 5 % where those of 64 KiB gain 144 %.
fn small_gain(tables: &[Table]) -> Claim {
    let (rows, ours, its) = changes(rows_like(tables, "write", &["*", "*", "N", "*", "4K"]));
    let most = its.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let interval = |row: &&report::Row| {
        let made = row.change.as_ref()?;
        Some((made.percent, made.plus_minus_percent?))
    };
    let larger = rows.iter().filter_map(interval).filter(|(made, half)| made - half > most).count();
    let no_larger = rows.iter().filter_map(interval).filter(|(made, half)| made + half <= most).count();
    let verdict = match rows.len() {
        0 => Verdict::Open,
        all if larger * 2 > all => Verdict::Refuted,
        all if no_larger == all => Verdict::Confirmed,
        _ => Verdict::Open,
    };
    let mut why = format!("At 95 %, {larger} of {} rows gain more than the posting's largest.", rows.len());
    let of = |head: &str| tables.iter().find(|table| table.id == "write")?.extra(&FIRST_WRITES, head);
    // Heads are compared without their unit, and two columns are "per-block": IOPS follow from MiB/s.
    let rate = rows.first().and_then(|row| row.ours).map(|ours| ours.avg).zip(of("per-block"));
    if let (Some((new, old)), Some(its_new), Some(its_old)) =
        (rate.map(|(new, old)| (new * 256.0, old * 256.0)), of("posting iomap"), of("posting buffer_head"))
    {
        let (its_new, its_old) = (its_new, its_old * 256.0);
        let us = |per_s: f64| 1e6 / per_s;
        why += &format!(
            " A first write block by block takes {:.2} us here, without a system call, and {:.2} us in the \
             posting; iomap saves {:.2} us here and {:.2} us there.",
            us(old),
            us(its_old),
            us(old) - us(new),
            us(its_old) - us(its_new)
        );
    }
    let split =
        |head: &str| tables.iter().find(|table| table.id == "split")?.extra(&["cached_write", "4K"], head);
    if let (Some(ranges), Some(folios)) = (split("by ranges"), split("by large folios")) {
        why += &format!(
            " Ranges bring {} % of that, and large folios {} % on top: our form per block makes a folio for \
             each page.",
            signed(ranges),
            signed(folios)
        );
    }
    Claim {
        claim: "At 4 KiB the gain of writes without fsync is small.".to_owned(),
        posting: span(&its),
        ours: span(&ours),
        kernel: None,
        verdict,
        why,
        tables: vec!["write".to_owned(), "split".to_owned()],
    }
}

/// The row of first writes of 4 KiB.
const FIRST_WRITES: [&str; 5] = ["cache", "N", "N", "N", "4K"];

/// The posting's cause: "the cost savings of the kernel software stack". In each row that gains, the CPU time
/// saved for a GiB is compared with the time saved for it.
fn software_stack(tables: &[Table]) -> Claim {
    let in_grid = tables.iter().filter(|table| ["read", "write"].contains(&table.id.as_str()));
    let mut shares: Vec<(f64, String)> = Vec::new();
    for (table, row) in in_grid.flat_map(|table| table.rows.iter().map(move |row| (table, row))) {
        let labels: Vec<&str> = row.labels.iter().map(String::as_str).collect();
        let of = |head: &str| table.extra(&labels, head);
        let gains = row
            .change
            .as_ref()
            .is_some_and(|made| made.percent >= NOTHING_PERCENT && made.significant == Some(true));
        let figures = (row.ours, of("per-block"), of("CPU iomap"), of("CPU per-block"));
        if let (true, (Some(new), Some(old), Some(cpu_new), Some(cpu_old))) = (gains, figures) {
            let saved_s = 1024.0 / old - 1024.0 / new.avg;
            shares.push(((cpu_old - cpu_new) / saved_s, row.labels.join(" ")));
        }
    }
    let less: Vec<String> = shares
        .iter()
        .filter(|(share, _)| *share < CONFIRMED_SHARE)
        .map(|(share, row)| format!("{row} ({:.0} %)", share * 100.0))
        .collect();
    let (all, enough) = (shares.len(), shares.len() - less.len());
    let median = crate::Summary::of(&shares.iter().map(|(share, _)| *share).collect::<Vec<_>>()).median;
    let list = if less.is_empty() { String::new() } else { format!(" Less in {}.", less.join("; ")) };
    Claim {
        claim: "The gain comes from a lower cost of the software stack.".to_owned(),
        posting: "\"primarily\"; no figure".to_owned(),
        ours: format!("CPU time explains at least half of the gain in {enough} of {all} rows"),
        kernel: None,
        verdict: match all {
            0 => Verdict::Open,
            all if enough * 10 >= all * 9 => Verdict::Confirmed,
            all if enough * 2 < all => Verdict::Refuted,
            _ => Verdict::Open,
        },
        why: format!(
            "Of the time that a GiB takes less, {:.0} % is saved CPU time (median of the {all} rows that \
             gain {NOTHING_PERCENT:.0} % or more at 95 %); at least half in nine of ten rows counts as \
             confirmed. CPU time includes that of other threads, such as writeback.{list}",
            median * 100.0
        ),
        tables: vec!["read".to_owned(), "write".to_owned()],
    }
}

/// A change of less than this is none.
const NOTHING_PERCENT: f64 = 10.0;

/// From this share of the posting's gain on, the effect is the same.
const CONFIRMED_SHARE: f64 = 0.5;

/// Confirmed if all rows gain at 95 %, at least half of the posting's gain; beaten if they gain more than in
/// the posting at 95 %.
pub(super) fn verdict_on(rows: &[&report::Row], ours: &[f64], its: &[f64]) -> (Verdict, String) {
    let gains = |row: &&&report::Row| {
        row.change.as_ref().is_some_and(|made| made.percent > 0.0 && made.significant == Some(true))
    };
    let gaining = rows.iter().filter(gains).count();
    // Of the row that has least of it.
    let share = ours.iter().zip(its).map(|(ours, its)| ours / its).fold(f64::INFINITY, f64::min);
    if rows.is_empty() {
        return (Verdict::Open, "The rows were not measured.".to_owned());
    }
    // Precise enough to say that there is no gain: the whole interval is small.
    let is_nothing = |row: &&report::Row| {
        row.change.as_ref().is_some_and(|made| {
            made.plus_minus_percent.is_some_and(|half| made.percent.abs() + half < NOTHING_PERCENT)
        })
    };
    if rows.iter().all(|row| row.labels[0] == "hole") {
        let why = "Neither form of ours reads a hole through the page cache, so what the posting saves there \
                   has no counterpart here.";
        return (Verdict::Open, why.to_owned());
    }
    if rows.iter().all(is_nothing) {
        return (Verdict::Refuted, format!("No difference: {}.", span(ours)));
    }
    let loses = |row: &&report::Row| {
        row.change.as_ref().is_some_and(|made| made.percent < 0.0 && made.significant == Some(true))
    };
    if rows.iter().all(loses) {
        return (Verdict::Refuted, format!("A loss: {}.", span(ours)));
    }
    if gaining < rows.len() {
        let why = format!("{gaining} of {} rows gain at 95 %; the gain is {}.", rows.len(), span(ours));
        return (Verdict::Open, why);
    }
    let shares = rows.iter().zip(ours.iter().zip(its)).map(|(row, (ours, its))| {
        let of = if rows.len() == 1 { String::new() } else { format!(" ({})", row.labels.join(" ")) };
        format!("{:.0} %{of}", ours / its * 100.0)
    });
    let why = format!(
        "The gain is {} of the posting's; from {:.0} % on in each row it counts as the same effect.",
        shares.collect::<Vec<_>>().join(" and "),
        CONFIRMED_SHARE * 100.0
    );
    let exceeds = |row: &&report::Row| {
        row.change
            .as_ref()
            .zip(row.posting_change_percent)
            .is_some_and(|(made, its)| made.plus_minus_percent.is_some_and(|half| made.percent - half >= its))
    };
    let verdict = match share {
        _ if rows.iter().all(exceeds) => Verdict::Beaten,
        share if share >= CONFIRMED_SHARE => Verdict::Confirmed,
        _ => Verdict::Open,
    };
    (verdict, why)
}

/// Writes of 4 KiB: the posting has -3 to +29 %.
fn small_writes(tables: &[Table]) -> Claim {
    let (rows, ours, its) = changes(rows_like(tables, "write", &["*", "*", "*", "*", "4K"]));
    let (verdict, why) = not_slower(&rows);
    let most = its.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let above = ours.iter().filter(|percent| **percent > most).count();
    Claim {
        claim: "iomap does not slow writes of 4 KiB down.".to_owned(),
        posting: span(&its),
        ours: span(&ours),
        kernel: None,
        verdict,
        why: format!("{why} {above} gain more than the posting's best."),
        tables: vec!["write".to_owned()],
    }
}

/// The rows in which the posting gains: how many of ours have half of that.
fn whole_grid(tables: &[Table]) -> Claim {
    let all = rows_like(tables, "read", &[]).chain(rows_like(tables, "write", &[]));
    let (rows, ours, its) =
        changes(all.filter(|row| row.posting_change_percent.is_some_and(|its| its >= NOTHING_PERCENT)));
    let missing: Vec<String> = rows
        .iter()
        .zip(ours.iter().zip(&its))
        .filter(|(_, (ours, its))| **ours < CONFIRMED_SHARE * **its)
        .map(|(row, (ours, its))| {
            format!("{} {} % (posting {} %)", row.labels.join(" "), signed(*ours), signed(*its))
        })
        .collect();
    let reach = rows.len() - missing.len();
    let list = if missing.is_empty() { String::new() } else { format!(" Not in: {}.", missing.join("; ")) };
    Claim {
        claim: "iomap with large folios speeds up the whole grid.".to_owned(),
        posting: format!("{} rows gain {NOTHING_PERCENT:.0} % or more", rows.len()),
        ours: format!("{reach} of these rows gain at least half as much"),
        kernel: None,
        verdict: match (rows.len(), reach) {
            (0, _) => Verdict::Open,
            (all, reach) if reach == all => Verdict::Confirmed,
            (all, reach) if reach * 2 < all => Verdict::Refuted,
            _ => Verdict::Open,
        },
        why: format!("{reach} of {} rows have at least half of the posting's gain.{list}", rows.len()),
        tables: vec!["read".to_owned(), "write".to_owned()],
    }
}

/// The posting's answer to a question: "the faster the disk, the more pronounced the benefits". Confirmed if
/// reads of each size gain more on the faster device at 95 %, refuted if they gain less.
fn faster_disk(tables: &[Table]) -> Claim {
    let (fast_rows, fast, fast_its) = changes(rows_like(tables, "read", &["ramdisk"]));
    let (slow_rows, slow, slow_its) = changes(rows_like(tables, "read", &["nvme"]));
    let (mut more, mut less) = (Vec::new(), Vec::new());
    for (fast, slow) in fast_rows.iter().zip(&slow_rows) {
        let (Some(size), Some((a, b))) = (fast.labels.last(), fast.change.as_ref().zip(slow.change.as_ref()))
        else {
            continue;
        };
        let halves = a.plus_minus_percent.zip(b.plus_minus_percent);
        let half = halves.map_or(f64::INFINITY, |(a, b)| a.hypot(b));
        match a.percent - b.percent {
            by if by > half => more.push(size.as_str()),
            by if by < -half => less.push(size.as_str()),
            _ => {}
        }
    }
    let verdict = match fast_rows.len() {
        0 => Verdict::Open,
        all if more.len() == all => Verdict::Confirmed,
        all if less.len() == all => Verdict::Refuted,
        _ => Verdict::Open,
    };
    let names = |sizes: &[&str]| if sizes.is_empty() { "none".to_owned() } else { sizes.join(", ") };
    let sync = |kind: &str| {
        let (_, _, its) = changes(rows_like(tables, "write", &[kind, "N", "Y", "N", "1M"]));
        its.first().map_or("?".to_owned(), |percent| signed(*percent))
    };
    let text = |fast: &[f64], slow: &[f64]| format!("reads: ramdisk {}, nvme {}", span(fast), span(slow));
    Claim {
        claim: "The faster the disk, the larger the gain.".to_owned(),
        posting: text(&fast_its, &slow_its),
        ours: text(&fast, &slow),
        kernel: None,
        verdict,
        why: format!(
            "Reads whose gain is larger on the faster device, the ramdisk, at 95 %: {}; confirmed if all \
             {} are. Writes are left out: cached ones do not wait for the device, and in the posting \
             synchronous ones of 1M gain less on the ramdisk ({} %) than on nvme ({} %).",
            names(&more),
            fast_rows.len(),
            sync("ramdisk"),
            sync("nvme")
        ),
        tables: vec!["read".to_owned()],
    }
}

/// Our own claim; the posting has rows of -3 and -1 %.
fn none_slower(tables: &[Table]) -> Claim {
    let all = rows_like(tables, "read", &[]).chain(rows_like(tables, "write", &[]));
    let (rows, ours, its) = changes(all);
    let (verdict, why) = not_slower(&rows);
    let below = |percents: &[f64]| percents.iter().filter(|percent| **percent < 0.0).count();
    Claim {
        claim: "Beyond the posting: no row of its grid is slower with iomap.".to_owned(),
        posting: format!("{}; {} rows below 0", span(&its), below(&its)),
        ours: format!("{}; {} rows below 0", span(&ours), below(&ours)),
        kernel: None,
        verdict,
        why,
        tables: vec!["read".to_owned(), "write".to_owned()],
    }
}
