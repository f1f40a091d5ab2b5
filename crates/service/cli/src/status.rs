//! `extant status`: what mounts do, and how fast.
//!
//! Owns: finding mounts, asking their servers, the forms of the answer. Does **not** own: counting (see the
//! crate `fuse`, `status`).
//!
//! ```text
//!  the table of mounts --> getxattr(DIR, "extant.status") --> MountStatus --+--> text     a page per mount
//!                                                                           +--> --json   a list
//!        two readings, some time apart --> Window: rates, percentiles ------+--> --metrics
//!                                                                           +--> --watch  once a second
//! ```

mod json;
mod metrics;
mod page;
mod units;
mod watch;
mod window;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use extant_device::mount_table::{MountEntry, TYPE, mounts};
use extant_fuse::{MountStatus, STATUS_ATTRIBUTE};
use rustix::io::Errno;

use crate::exit;
use crate::usage::near;
use crate::voice::{note, print, say};
use window::Window;

/// The largest value of an attribute in Linux.
const VALUE_MAX: usize = 64 << 10;

const HELP: &str = "\
Rates and percentiles are those since the mount, or with --interval those of the next SECONDS. Times \
are from reading a request to the end of sending its reply. For root and the user that mounted.

Examples:
  extant status                          all mounts
  extant status /mnt --watch             q ends it; Tab shows the next mount
  extant status /mnt --interval 5        rates of 5 seconds
  extant status --json | jq '.[0].requests[] | {operation, per_second, p99_ns}'
  extant status --metrics > /var/lib/node_exporter/extant.prom

Exit codes: 0 shown; 1 a mount does not answer, or not to this user; 2 usage; 9 DIR is no mount of \
extant.";

/// Show what mounts do: requests and their latencies, commits, log, dirty data, memory, errors.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct StatusArgs {
    /// A directory of the mount; without it, all mounts of extant.
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Show it anew each second, on the terminal.
    #[arg(short, long, conflicts_with_all = ["json", "metrics"])]
    watch: bool,
    /// Print a JSON list.
    #[arg(long, conflicts_with = "metrics")]
    json: bool,
    /// Print metrics in the text format of Prometheus.
    #[arg(long)]
    metrics: bool,
    /// Rates and percentiles of the next SECONDS; with --watch, the time between two updates.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    interval: Option<Duration>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "it is a number of seconds, like 0.5".to_owned())?;
    if !(0.1..=86400.0).contains(&seconds) {
        return Err("it is from 0.1 to 86400 seconds".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Why there is nothing to show, and the exit code.
struct StatusError {
    code: u8,
    text: String,
}

impl StatusError {
    fn new(code: u8, text: impl std::fmt::Display) -> Self {
        Self { code, text: text.to_string() }
    }
}

/// A mount, and what its server said.
struct Reading {
    dir: PathBuf,
    source: String,
    status: MountStatus,
}

/// A reading, with the rates up to it.
struct Report {
    reading: Reading,
    window: Window,
}

/// Runs `extant status`.
pub(crate) fn run(args: &StatusArgs) -> ExitCode {
    if args.watch {
        return match watch::run(args.dir.as_deref(), args.interval) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => exit::fail(error.code, &error.text),
        };
    }
    let mut code = 0;
    let reports = match report(args, &mut code) {
        Ok(reports) => reports,
        Err(error) => return exit::fail(error.code, &error.text),
    };
    let text = match (args.json, args.metrics) {
        (true, _) => json::list(&reports),
        (_, true) => metrics::text(&reports),
        _ => reports.iter().map(page::text).collect::<Vec<_>>().join("\n"),
    };
    if reports.is_empty() && code == 0 {
        note!("nothing is mounted by extant here; `extant mount IMG DIR` mounts an image");
    }
    print(&text, code)
}

fn report(args: &StatusArgs, code: &mut u8) -> Result<Vec<Report>, StatusError> {
    let dir = args.dir.as_deref();
    let before = match args.interval {
        None => Vec::new(),
        Some(interval) => {
            let before = read(dir, &mut |_| ())?;
            std::thread::sleep(interval);
            before
        }
    };
    let now = read(dir, &mut |error: StatusError| {
        say!("{}", error.text);
        *code = error.code;
    })?;
    Ok(with_windows(&before, now))
}

/// Readings with the rates since those before.
fn with_windows(before: &[Reading], now: Vec<Reading>) -> Vec<Report> {
    let with_window = |reading: Reading| {
        let before = before.iter().find(|before| before.dir == reading.dir).map(|before| &before.status);
        Report { window: Window::new(before, &reading.status), reading }
    };
    now.into_iter().map(with_window).collect()
}

/// Reads one mount, or all. Of all, those that do not answer are `skipped`.
fn read(dir: Option<&Path>, skipped: &mut dyn FnMut(StatusError)) -> Result<Vec<Reading>, StatusError> {
    let table = mounts().map_err(|error| {
        StatusError::new(exit::TARGET, format_args!("the table of mounts cannot be read: {error}"))
    })?;
    if let Some(dir) = dir {
        return Ok(vec![read_at(dir, &table)?]);
    }
    let mut readings = Vec::new();
    for (number, entry) in table.iter().enumerate() {
        let is_covered = table[number + 1..].iter().any(|other| entry.dir.starts_with(&other.dir));
        // The same file system at another place, by a bind mount.
        let is_again = table[..number].iter().any(|other| other.device == entry.device);
        if entry.fs_type != TYPE || is_covered || is_again {
            continue;
        }
        match read_entry(entry) {
            Ok(reading) => readings.push(reading),
            // Unmounted in the meantime.
            Err(_) if !is_mounted(entry) => {}
            Err(error) => skipped(error),
        }
    }
    Ok(readings)
}

fn is_mounted(entry: &MountEntry) -> bool {
    mounts().is_ok_and(|table| table.iter().any(|other| other.id == entry.id && other.device == entry.device))
}

/// Reads the mount that a directory is on.
fn read_at(dir: &Path, table: &[MountEntry]) -> Result<Reading, StatusError> {
    let absolute = dir
        .canonicalize()
        .map_err(|error| StatusError::new(exit::NOT_FOUND, near::not_opened(dir, &error)))?;
    let depth = |entry: &&MountEntry| entry.dir.components().count();
    // Of several on the same directory the last one is on top.
    let entry = table.iter().filter(|entry| absolute.starts_with(&entry.dir)).max_by_key(depth);
    match entry {
        Some(entry) if entry.fs_type.starts_with("fuse") => read_entry(entry),
        other => {
            let kind = other.map_or("", |entry| &entry.fs_type);
            Err(not_ours(dir, format_args!("it is on a file system of type {kind}")))
        }
    }
}

fn not_ours(dir: &Path, why: impl std::fmt::Display) -> StatusError {
    let text = format!(
        "{} is no mount of extant: {why}; `findmnt -t {TYPE}` lists the mounts of extant",
        dir.display()
    );
    StatusError::new(exit::NOT_FOUND, text)
}

fn read_entry(entry: &MountEntry) -> Result<Reading, StatusError> {
    let dir = &entry.dir;
    let target = |why: &dyn std::fmt::Display| {
        StatusError::new(exit::TARGET, format_args!("{}: {why}", dir.display()))
    };
    let value = attribute(dir).map_err(|errno| match errno {
        Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS => {
            not_ours(dir, format_args!("type {}, and its server has no statistics", entry.fs_type))
        }
        Errno::ACCESS | Errno::PERM => target(
            &"another user mounted it, and its statistics are for that user and root; without -o allow_other \
                     root has no access either",
        ),
        Errno::NOTCONN => {
            target(&format_args!("its server has ended; `extant umount {}` takes it away", dir.display()))
        }
        errno => target(&format_args!("its server does not answer: {}", io::Error::from(errno))),
    })?;
    let status = MountStatus::decode(&value).map_err(|error| {
        target(&format_args!(
            "another version of extant serves it, whose statistics are unknown here: {error}"
        ))
    })?;
    Ok(Reading { dir: dir.clone(), source: entry.source.to_string_lossy().into_owned(), status })
}

fn attribute(dir: &Path) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; VALUE_MAX];
    let len = rustix::fs::getxattr(dir, STATUS_ATTRIBUTE, &mut value[..])?;
    value.truncate(len);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use extant_fuse::status::{Buckets, FaultStatus, RequestStatus, ServerStatus};
    use extant_volume::status::{
        CommitStatus, DataStatus, ErrorStatus, ExtentStatusCache, FlushStatus, LogStatus, MemoryOwner,
        MemoryStatus, MetadataStatus, OrphanStatus, SpaceStatus, Status, WritingStatus,
    };

    use super::*;

    fn request(operation: &str, count: u64) -> RequestStatus {
        RequestStatus {
            operation: operation.to_owned(),
            count,
            errors: 3,
            time_ns: count * 20_000,
            p50_ns: 12_000,
            p90_ns: 30_000,
            p99_ns: 80_000,
            p999_ns: 1_200_000,
            max_ns: 9_000_000,
            buckets: Some(Buckets { first: 8, counts: vec![count] }),
        }
    }

    fn writing() -> WritingStatus {
        WritingStatus {
            commits: CommitStatus {
                count: 17,
                by_interval: 12,
                by_sync: 4,
                by_full_transaction: 1,
                by_lack_of_space: 0,
                fast: 0,
                fast_blocks: 0,
                blocks: 4321,
                blocks_last: 230,
                time_ns: 90_000_000,
                time_max_ns: 21_000_000,
                time_last_ns: 3_400_000,
                running_blocks: 57,
                running_age_ms: 2100,
                start_waits: 0,
                closing_ns: 100,
            },
            log: LogStatus {
                size_blocks: 4096,
                used_blocks: 1024,
                checkpoints: 3,
                home_blocks: 900,
                pinned_blocks: 1000,
                full_waits: 0,
                revokes: 0,
            },
            data: DataStatus {
                dirty_bytes: 12 << 20,
                writing_bytes: 1 << 20,
                oldest_dirty_ms: Some(3200),
                files_dirty: 4,
                read_hit_bytes: 0,
                read_miss_bytes: 0,
                readahead_bytes: 0,
                written_bytes: 1 << 30,
                folios_evicted: 0,
                throttled: 0,
                throttled_ns: 0,
            },
            extent_status: ExtentStatusCache {
                entries: 120,
                reclaimable: 100,
                bytes: 9000,
                hits: 990,
                misses: 10,
                shrinker_runs: 0,
                scanned: 0,
                reclaimed: 0,
                shrinker_time_max_ns: 0,
            },
            flushes: FlushStatus {
                requests: 12,
                issued: 3,
                joined: 4,
                covered: 5,
                by_journal: 17,
                delay_ns: 0,
                average_ns: Some(1_200_000),
                max_ns: Some(3_000_000),
            },
            orphans: OrphanStatus { mode: "file".to_owned(), count: 2 },
            errors: ErrorStatus { recorded: 0, files_lost: 0, aborted: None },
        }
    }

    /// A busy mount.
    pub(super) fn report(mount: &str) -> Report {
        let owner = |name: &str, bytes| MemoryOwner { name: name.to_owned(), bytes };
        let volume = Status {
            space: Some(SpaceStatus {
                size_bytes: 4 << 30,
                free_bytes: 3 << 30,
                available_bytes: 2 << 30,
                inodes: 262_144,
                inodes_free: 200_000,
            }),
            memory: MemoryStatus {
                limit_bytes: 64 << 20,
                used_bytes: 23 << 20,
                owners: vec![
                    owner("metadata blocks", 5 << 20),
                    owner("file data", 18 << 20),
                    owner("extents", 0),
                ],
            },
            metadata: MetadataStatus { hits: 95, misses: 5, evicted: 0, blocks: 1280 },
            writing: Some(writing()),
        };
        let operations =
            ["write", "create", "lookup", "release", "flush", "getattr", "unlink", "fsync", "read", "mkdir"];
        let requests = (0..).zip(operations).map(|(number, name)| request(name, 90_000 >> number)).collect();
        let status = MountStatus {
            version: 1,
            process: 4711,
            read_write: true,
            transport: "dev".to_owned(),
            age_ms: 2000,
            requests,
            server: Some(ServerStatus { errors_met: FaultStatus::default(), volume }),
        };
        let source = "/srv/root.img".to_owned();
        let reading = Reading { dir: mount.into(), source, status };
        Report { window: Window::new(None, &reading.status), reading }
    }

    #[test]
    fn pages_are_at_most_79_columns_wide() {
        let text = page::text(&report("/mnt"));
        assert!(text.lines().all(|line| line.chars().count() <= 79), "{text}");
        assert!(
            text.contains("\ncommits        17: 12 by interval; 4 by fsync; 1 full; 0 for space\n"),
            "{text}"
        );
        assert!(
            text.contains("\nlog            25.0 % of 4096 blocks; checkpoints 3; commits that waited 0\n"),
            "{text}"
        );
        assert!(text.contains("\nmemory         23.0 MiB of 64.0 MiB; file data 18.0 MiB;\n"), "{text}");
        assert!(text.contains("\nerrors         none met; 0 recorded in the superblock\n"), "{text}");
    }

    #[test]
    fn json_has_rates_and_metrics_have_cumulative_buckets() {
        let report = report("/m");
        let list: serde_json::Value =
            serde_json::from_str(&json::list(std::slice::from_ref(&report))).unwrap();
        let write = &list[0]["requests"][0];
        assert_eq!((&list[0]["mount"], &write["operation"]), (&"/m".into(), &"write".into()));
        assert_eq!((write["per_second"].as_f64(), write["p99_ns"].as_u64()), (Some(45_000.0), Some(80_000)));
        let text = metrics::text(&[report]);
        for line in [
            r#"extant_request_duration_seconds_bucket{mount="/m",operation="write",le="0.000002048"} 0"#,
            r#"extant_request_duration_seconds_bucket{mount="/m",operation="write",le="0.000004096"} 90000"#,
            r#"extant_request_duration_seconds_bucket{mount="/m",operation="write",le="+Inf"} 90000"#,
            r#"extant_request_duration_seconds_sum{mount="/m",operation="write"} 1.8"#,
            r#"extant_commits_total{mount="/m",reason="interval"} 12"#,
            r#"extant_oldest_dirty_seconds{mount="/m"} 3.2"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
