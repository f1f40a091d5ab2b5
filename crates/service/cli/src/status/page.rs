//! A page of text about one mount, at most 79 columns wide.

use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;

use extant_volume::status::{MemoryStatus, Status, WritingStatus};

use super::Report;
use super::units::{bytes, millis, nanos, percent, rate};
use crate::inspect::format::escape;

/// Columns before the values.
pub(super) const LABEL: usize = 15;
const WIDTH: usize = 79;

/// The heading of the table of requests.
pub(super) fn heading() -> String {
    format!(
        "{:<15}{:>9}{:>11}{:>9}{:>9}{:>8}{:>9}{:>9}",
        "requests", "per s", "count", "errors", "p50", "p99", "p99.9", "max"
    )
}

/// The rows of the table of requests: the most frequent ones first.
pub(super) fn rows(report: &Report) -> Vec<String> {
    let mut requests: Vec<_> = report.reading.status.requests.iter().zip(&report.window.requests).collect();
    requests.sort_by(|(a, a_rates), (b, b_rates)| {
        b_rates.per_second.total_cmp(&a_rates.per_second).then(b.count.cmp(&a.count))
    });
    let row = |(request, rates): (&extant_fuse::status::RequestStatus, &super::window::Rates)| {
        format!(
            "{:<15}{:>9}{:>11}{:>9}{:>9}{:>8}{:>9}{:>9}",
            request.operation,
            rate(rates.per_second),
            request.count,
            request.errors,
            nanos(rates.p50_ns),
            nanos(rates.p99_ns),
            nanos(rates.p999_ns),
            nanos(rates.max_ns),
        )
    };
    requests.into_iter().map(row).collect()
}

/// "/mnt: /srv/root.img, read-write, mounted for 3 h, process 4711".
pub(super) fn title(report: &Report) -> String {
    let status = &report.reading.status;
    let way = if status.read_write { "read-write" } else { "read-only" };
    format!(
        "{}: {}, {way}, mounted for {}, process {}",
        escape(report.reading.dir.as_os_str().as_bytes()),
        escape(report.reading.source.as_bytes()),
        millis(status.age_ms),
        status.process
    )
}

/// The state besides the requests: labels and values. Values that are too long for a line are split between
/// their parts.
pub(super) fn state(report: &Report) -> Vec<(&'static str, Vec<String>)> {
    let Some(server) = &report.reading.status.server else {
        return vec![("state", vec!["the image is closed".to_owned()])];
    };
    let volume = &server.volume;
    let mut state = Vec::new();
    if let Some(writing) = &volume.writing {
        state.extend(writing_state(writing));
    }
    state.push(("memory", memory(&volume.memory)));
    if let Some(writing) = &volume.writing {
        let known = &writing.extent_status;
        state.push((
            "extent status",
            vec![
                format!("{}, {}", known.entries, bytes(known.bytes)),
                format!("hits {}", percent(known.hits, known.hits + known.misses)),
                format!("shrinker: {} runs, {} reclaimed", known.shrinker_runs, known.reclaimed),
            ],
        ));
    }
    state.push(("metadata cache", metadata(volume)));
    if let Some(space) = &volume.space {
        state.push((
            "space",
            vec![
                format!("{} of {} free", bytes(space.free_bytes), bytes(space.size_bytes)),
                format!("inodes: {} of {} free", space.inodes_free, space.inodes),
            ],
        ));
    }
    state.push(("errors", errors(server)));
    state
}

fn writing_state(writing: &WritingStatus) -> [(&'static str, Vec<String>); 6] {
    let (commits, log, data, flushes) = (&writing.commits, &writing.log, &writing.data, &writing.flushes);
    let oldest = data.oldest_dirty_ms.map_or_else(String::new, |ms| format!(", oldest {}", millis(ms)));
    let log_fill = match log.size_blocks {
        0 => "no journal".to_owned(),
        size => format!("{} of {size} blocks", percent(log.used_blocks, size)),
    };
    let mut flush = vec![
        format!("{} flushes for {} fsyncs", flushes.issued, flushes.requests),
        format!("{} shared", flushes.joined),
        format!("{} covered", flushes.covered),
    ];
    flush.extend(flushes.average_ns.map(|average| format!("{} each", nanos(average))));
    let mut reasons = vec![
        format!("{}: {} by interval", commits.count, commits.by_interval),
        format!("{} by fsync", commits.by_sync),
        format!("{} full", commits.by_full_transaction),
        format!("{} for space", commits.by_lack_of_space),
    ];
    if commits.fast > 0 {
        reasons.push(format!("{} fast commits of {} blocks", commits.fast, commits.fast_blocks));
    }
    [
        ("commits", reasons),
        (
            "",
            vec![
                format!("last {} blocks, {}", commits.blocks_last, nanos(commits.time_last_ns)),
                format!("longest {}", nanos(commits.time_max_ns)),
                format!("running {} blocks, {}", commits.running_blocks, millis(commits.running_age_ms)),
            ],
        ),
        (
            "log",
            vec![
                log_fill,
                format!("checkpoints {}", log.checkpoints),
                format!("commits that waited {}", log.full_waits),
            ],
        ),
        (
            "dirty data",
            vec![
                format!("{} in {} files{oldest}", bytes(data.dirty_bytes), data.files_dirty),
                format!("{} being written", bytes(data.writing_bytes)),
            ],
        ),
        ("fsync", flush),
        ("orphans", vec![format!("{} (orphans={})", writing.orphans.count, writing.orphans.mode)]),
    ]
}

fn memory(memory: &MemoryStatus) -> Vec<String> {
    let mut owners: Vec<_> = memory.owners.iter().filter(|owner| owner.bytes > 0).collect();
    owners.sort_by_key(|owner| std::cmp::Reverse(owner.bytes));
    let all = format!("{} of {}", bytes(memory.used_bytes), bytes(memory.limit_bytes));
    let each = owners.iter().map(|owner| format!("{} {}", owner.name, bytes(owner.bytes)));
    std::iter::once(all).chain(each).collect()
}

fn metadata(volume: &Status) -> Vec<String> {
    let cache = &volume.metadata;
    vec![
        format!("{} blocks", cache.blocks),
        format!("hits {}", percent(cache.hits, cache.hits + cache.misses)),
        format!("{} evicted", cache.evicted),
    ]
}

fn errors(server: &extant_fuse::status::ServerStatus) -> Vec<String> {
    let met = &server.errors_met;
    let counts = [
        (met.damage, "damage"),
        (met.device, "device"),
        (met.lost_writes, "lost writes"),
        (met.stopped, "refused since writing stopped"),
        (met.internal, "internal"),
    ];
    let met_any: Vec<String> = counts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    let mut parts = if met_any.is_empty() { vec!["none met".to_owned()] } else { met_any };
    if let Some(writing) = &server.volume.writing {
        parts.push(format!("{} recorded in the superblock", writing.errors.recorded));
        if writing.errors.files_lost > 0 {
            parts.push(format!("{} files with lost data", writing.errors.files_lost));
        }
        parts.extend(writing.errors.aborted.iter().map(|why| format!("writing has stopped: {why}")));
    }
    if let (Some(last), Some(age_ms)) = (&met.last, met.last_age_ms) {
        parts.push(format!("last, {} ago: {}", millis(age_ms), last.replace(char::is_control, " ")));
    }
    parts
}

/// Parts with "; " between them, in lines of at most this width if no part is longer.
pub(super) fn wrapped(parts: &[String], width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in parts {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 2 + part.chars().count() < width => {
                let _ = write!(line, "; {part}");
            }
            last => {
                if let Some(line) = last {
                    line.push(';');
                }
                lines.push(part.clone());
            }
        }
    }
    lines
}

/// The page.
pub(super) fn text(report: &Report) -> String {
    let mut text = title(report) + "\n\n";
    for line in std::iter::once(heading()).chain(rows(report)) {
        text += &(line + "\n");
    }
    text.push('\n');
    for (label, parts) in state(report) {
        for (number, line) in wrapped(&parts, WIDTH - LABEL).iter().enumerate() {
            let label = if number == 0 { label } else { "" };
            let _ = writeln!(text, "{label:<LABEL$}{line}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_values_are_split_between_their_parts() {
        let parts = ["12 of 64".to_owned(), "file data 7".to_owned(), "inodes 3".to_owned()];
        assert_eq!(wrapped(&parts, 40), ["12 of 64; file data 7; inodes 3"]);
        assert_eq!(wrapped(&parts, 22), ["12 of 64; file data 7;", "inodes 3"]);
        assert_eq!(wrapped(&parts, 5), ["12 of 64;", "file data 7;", "inodes 3"]);
        assert_eq!(heading().chars().count(), WIDTH);
    }
}
