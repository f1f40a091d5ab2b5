//! Metrics in the text format of Prometheus.
//!
//! Source: Prometheus's documentation, "Exposition formats": all samples of a metric are together, after its
//! HELP and TYPE lines; in a label's value backslash, quotation mark and newline are escaped.

use std::fmt::{Display, Write};

use extant_fuse::status::{RequestStatus, ServerStatus, bucket_bound};
use extant_volume::status::{Status, WritingStatus};

use super::Report;

const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";
const HISTOGRAM: &str = "histogram";
/// Every so many bounds are one of the histogram's: powers of two.
const BOUNDS_STEP: usize = 4;

/// Metrics, each with its samples.
#[derive(Default)]
struct Metrics(Vec<(String, String)>);

impl Metrics {
    /// Adds a sample to a metric. `suffix`: of the sample's name, such as `_sum`.
    fn sample(
        &mut self,
        (name, kind, help): (&str, &str, &str),
        suffix: &str,
        labels: &[(&str, &str)],
        value: impl Display,
    ) {
        let at = self.0.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
            let head = format!("# HELP extant_{name} {help}\n# TYPE extant_{name} {kind}\n");
            self.0.push((name.to_owned(), head));
            self.0.len() - 1
        });
        let labels: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let _ = writeln!(self.0[at].1, "extant_{name}{suffix}{{{}}} {value}", labels.join(","));
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

pub(super) fn text(reports: &[Report]) -> String {
    let mut metrics = Metrics::default();
    for report in reports {
        of_mount(&mut metrics, report);
    }
    metrics.0.into_iter().map(|(_, text)| text).collect()
}

fn of_mount(metrics: &mut Metrics, report: &Report) {
    let (reading, status) = (&report.reading, &report.reading.status);
    let mount = &*reading.dir.to_string_lossy();
    let info = [
        ("mount", mount),
        ("source", &*reading.source),
        ("mode", if status.read_write { "rw" } else { "ro" }),
        ("transport", &*status.transport),
    ];
    metrics.sample(("mount_info", GAUGE, "A mount; the value is 1."), "", &info, 1);
    let age = ("mount_age_seconds", GAUGE, "Time since the mount.");
    metrics.sample(age, "", &[("mount", mount)], status.age_ms as f64 / 1e3);
    for request in &status.requests {
        of_requests(metrics, mount, request);
    }
    let Some(server) = &status.server else { return };
    of_errors(metrics, mount, server);
    of_volume(metrics, mount, &server.volume);
    if let Some(writing) = &server.volume.writing {
        of_writing(metrics, mount, writing);
    }
}

fn of_requests(metrics: &mut Metrics, mount: &str, request: &RequestStatus) {
    let labels = [("mount", mount), ("operation", &*request.operation)];
    let all = ("requests_total", COUNTER, "FUSE requests.");
    metrics.sample(all, "", &labels, request.count);
    let errors =
        ("request_errors_total", COUNTER, "FUSE requests that were answered with an error, such as ENOENT.");
    metrics.sample(errors, "", &labels, request.errors);
    let time = (
        "request_duration_seconds",
        HISTOGRAM,
        "Time of FUSE requests, from reading the request to the end of sending the reply.",
    );
    // A timed request stands for some that were not: the buckets may lack the last of all.
    let mut timed = request.count;
    if let Some(buckets) = &request.buckets {
        timed = buckets.counts.iter().sum();
        // A cumulative count needs no bound after that of the last request.
        let end = (buckets.first + buckets.counts.len()).next_multiple_of(BOUNDS_STEP);
        for bound in (0..=end).step_by(BOUNDS_STEP) {
            let below = (buckets.first..).zip(&buckets.counts).filter(|(bucket, _)| *bucket <= bound);
            let count: u64 = below.map(|(_, count)| count).sum();
            let le = seconds(bucket_bound(bound)).to_string();
            metrics.sample(time, "_bucket", &[labels[0], labels[1], ("le", &le)], count);
        }
    }
    metrics.sample(time, "_bucket", &[labels[0], labels[1], ("le", "+Inf")], timed);
    metrics.sample(time, "_sum", &labels, seconds(request.time_ns));
    metrics.sample(time, "_count", &labels, timed);
}

fn of_errors(metrics: &mut Metrics, mount: &str, server: &ServerStatus) {
    let met = &server.errors_met;
    let kinds = [
        ("damage", met.damage),
        ("device", met.device),
        ("lost_write", met.lost_writes),
        ("stopped", met.stopped),
        ("internal", met.internal),
    ];
    for (kind, count) in kinds {
        let errors = ("errors_met_total", COUNTER, "Errors that requests met, by kind.");
        metrics.sample(errors, "", &[("mount", mount), ("kind", kind)], count);
    }
}

fn of_volume(metrics: &mut Metrics, mount: &str, volume: &Status) {
    let mount = ("mount", mount);
    let mut one = |name: &str, kind: &str, help: &str, value: u64| {
        metrics.sample((name, kind, help), "", &[mount], value);
    };
    if let Some(space) = &volume.space {
        one("size_bytes", GAUGE, "Size of the file system.", space.size_bytes);
        one("free_bytes", GAUGE, "Free space.", space.free_bytes);
        one("available_bytes", GAUGE, "Free space that is not reserved for root.", space.available_bytes);
        one("inodes", GAUGE, "Inodes.", space.inodes);
        one("inodes_free", GAUGE, "Free inodes.", space.inodes_free);
    }
    one("memory_limit_bytes", GAUGE, "Memory budget of the caches.", volume.memory.limit_bytes);
    one("memory_used_bytes", GAUGE, "Memory charged to the budget.", volume.memory.used_bytes);
    one("metadata_hits_total", COUNTER, "Lookups that found a metadata block cached.", volume.metadata.hits);
    one("metadata_misses_total", COUNTER, "Lookups that read a metadata block.", volume.metadata.misses);
    one("metadata_blocks", GAUGE, "Metadata blocks cached.", volume.metadata.blocks);
    for owner in &volume.memory.owners {
        let memory = ("memory_owner_bytes", GAUGE, "Memory of each cache.");
        metrics.sample(memory, "", &[mount, ("owner", &owner.name)], owner.bytes);
    }
}

fn of_writing(metrics: &mut Metrics, mount: &str, writing: &WritingStatus) {
    let mount = ("mount", mount);
    let WritingStatus { commits, log, data, extent_status, flushes, orphans, errors } = writing;
    let reasons = [
        ("interval", commits.by_interval),
        ("fsync", commits.by_sync),
        ("full", commits.by_full_transaction),
        ("space", commits.by_lack_of_space),
    ];
    for (reason, count) in reasons {
        let by_reason = ("commits_total", COUNTER, "Commits of the journal, by reason.");
        metrics.sample(by_reason, "", &[mount, ("reason", reason)], count);
    }
    let fast = ("fast_commits_total", COUNTER, "Fast commits, which do not end a transaction.");
    metrics.sample(fast, "", &[mount], commits.fast);
    let mut times = |name: &str, kind: &str, help: &str, nanos: u64| {
        metrics.sample((name, kind, help), "", &[mount], seconds(nanos));
    };
    times("commit_seconds_total", COUNTER, "Time of all commits.", commits.time_ns);
    times("commit_seconds_max", GAUGE, "Time of the longest commit.", commits.time_max_ns);
    times("commit_seconds_last", GAUGE, "Time of the last commit.", commits.time_last_ns);
    times("throttled_seconds_total", COUNTER, "Time that writers waited for write-back.", data.throttled_ns);
    if let Some(average) = flushes.average_ns {
        times("flush_seconds_average", GAUGE, "Moving average of the device's flushes.", average);
    }
    if let Some(oldest) = data.oldest_dirty_ms {
        times(
            "oldest_dirty_seconds",
            GAUGE,
            "Age of the oldest dirty data.",
            oldest.saturating_mul(1_000_000),
        );
    }
    let mut one = |name: &str, kind: &str, help: &str, value: u64| {
        metrics.sample((name, kind, help), "", &[mount], value);
    };
    one("commit_blocks_total", COUNTER, "Blocks logged by commits.", commits.blocks);
    one("running_transaction_blocks", GAUGE, "Blocks of the running transaction.", commits.running_blocks);
    one("log_size_blocks", GAUGE, "Size of the journal's log.", log.size_blocks);
    one("log_used_blocks", GAUGE, "Blocks of the log in use.", log.used_blocks);
    one("checkpoints_total", COUNTER, "Checkpoints of the journal.", log.checkpoints);
    one("checkpoint_blocks_total", COUNTER, "Blocks that checkpoints wrote home.", log.home_blocks);
    one("log_full_waits_total", COUNTER, "Commits that waited because the log was full.", log.full_waits);
    one("dirty_bytes", GAUGE, "File data that is not written back.", data.dirty_bytes);
    one("writing_bytes", GAUGE, "File data on the way to the device.", data.writing_bytes);
    one("written_bytes_total", COUNTER, "File data that writes copied in.", data.written_bytes);
    one("read_hit_bytes_total", COUNTER, "File data that reads found in the cache.", data.read_hit_bytes);
    one("read_miss_bytes_total", COUNTER, "File data that reads waited for.", data.read_miss_bytes);
    one("throttled_total", COUNTER, "Writers that waited for write-back.", data.throttled);
    one("extent_status_entries", GAUGE, "Entries of the extent-status cache.", extent_status.entries);
    one("extent_status_hits_total", COUNTER, "Lookups that found an entry.", extent_status.hits);
    one("extent_status_misses_total", COUNTER, "Lookups that found no entry.", extent_status.misses);
    one("extent_status_shrinks_total", COUNTER, "Runs of the shrinker.", extent_status.shrinker_runs);
    one(
        "extent_status_reclaimed_total",
        COUNTER,
        "Entries that the shrinker reclaimed.",
        extent_status.reclaimed,
    );
    one("fsync_requests_total", COUNTER, "fsync calls that needed a flush.", flushes.requests);
    one("fsync_flushes_total", COUNTER, "Flushes made for fsync calls.", flushes.issued);
    one("fsync_joined_total", COUNTER, "fsync calls that shared the flush of another one.", flushes.joined);
    one("fsync_covered_total", COUNTER, "fsync calls that an earlier flush covered.", flushes.covered);
    one("orphans", GAUGE, "Inodes to be deleted or truncated after a crash.", orphans.count);
    one("errors_recorded", GAUGE, "Errors recorded in the superblock.", errors.recorded);
    one("aborted", GAUGE, "1 if nothing is written any more.", errors.aborted.is_some().into());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_a_metric_are_together_and_labels_escaped() {
        let mut metrics = Metrics::default();
        let (first, second) = (("a_total", COUNTER, "First."), ("b", GAUGE, "Second."));
        metrics.sample(first, "", &[("mount", "/a\\b\"c\nd")], 1);
        metrics.sample(second, "", &[("mount", "/")], 0.5);
        metrics.sample(first, "", &[("mount", "/")], 2);
        let text: String = metrics.0.into_iter().map(|(_, text)| text).collect();
        let expected = "# HELP extant_a_total First.\n# TYPE extant_a_total counter\n\
            extant_a_total{mount=\"/a\\\\b\\\"c\\nd\"} 1\nextant_a_total{mount=\"/\"} 2\n\
            # HELP extant_b Second.\n# TYPE extant_b gauge\nextant_b{mount=\"/\"} 0.5\n";
        assert_eq!(text, expected);
    }
}
