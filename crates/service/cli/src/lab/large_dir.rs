//! `extant lab large-dir`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use extant_lab::LabFault;
use extant_lab::createmany::Operation;
use extant_lab::drive::Drive;
use extant_lab::large_dir::{BYTES_OF_LEAF_PER_NAME, Course, Reopen, Study};
use extant_lab::names::NameFormat;
use extant_ondisk::hash::HashVersion;

use super::{EngineArgs, GroundArgs, Shown, print};
use crate::exit;
use crate::sizes::parse_size;

/// One directory with very many names: rates along the way, and what its hash changes.
#[derive(Debug, Args)]
#[command(after_help = "\
Names are links to few inodes, so that nothing but the directory grows (--operation changes that). A directory \
of 207 million names takes about 8 GB of memory.

With --operation unlink, names are removed after the growth, the oldest first: their hashes, and so their \
leaves, are in random order. With mixed, an old name is removed after each new one, while drives have latency.

Examples:
  extant lab large-dir                               5 million names, both hashes
  extant lab large-dir --names 20000000 --cache 64M  leaves that do not fit into memory
  extant lab large-dir --device hdd,nvme --cache 16M the same rate on drives that must read the leaves
  extant lab large-dir --device nvme --memory-share 0.25 --operation unlink
                                                     removals with memory for a quarter of the leaves
  extant lab large-dir --kernel /mnt --names 1000000 beside the file system mounted on /mnt
  extant lab large-dir --hash half_md4 --json")]
pub(crate) struct LargeDirArgs {
    /// Names in the directory.
    #[arg(long, value_name = "N", default_value_t = 5_000_000)]
    names: u64,
    /// Print the rate after so many names.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    per: u64,
    /// Hashes to compare: half_md4, tea, legacy.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values = ["half_md4", "tea"])]
    hash: Vec<HashArg>,
    /// What each name is: a link, a file (mknod, or create: open and close), a directory. unlink and mixed
    /// remove links.
    #[arg(long, value_enum, default_value = "link")]
    operation: OperationArg,
    /// The names, as createmany's format.
    #[arg(long, value_name = "FMT", default_value = "test%ld", value_parser = NameFormat::parse)]
    format: NameFormat,
    /// Directories of each hash, each on a new file system.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// Prefetch: give the engine this many names before they are made.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(..=extant_volume::HINTED_NAMES_MAX as i64))]
    ahead: u16,
    /// Where file systems are made: a new FILE, or mem:SIZE. Without this, in memory.
    #[arg(long, value_name = "IMG")]
    image: Option<OsString>,
    /// Size of the device; enough if not given.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// Drives to model: memory, hdd, nvme. The directory grows without latency; after every --per names the
    /// next ones are created with the latency of each drive, for --window seconds.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_drive)]
    device: Vec<Drive>,
    /// Seconds that the drives' latency lasts.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, requires = "device",
          value_parser = parse_window)]
    window: f64,
    /// Memory for caches while drives have latency: this share of the size of all leaves (32 bytes a name).
    /// Between such times the memory is that of --cache.
    #[arg(long, value_name = "SHARE", requires = "device", value_parser = parse_share)]
    memory_share: Option<f64>,
    /// A directory of the system, for the same names through its calls. They are removed at the end.
    #[arg(long, value_name = "DIR")]
    kernel: Option<PathBuf>,
    /// Do not verify the file systems at their end.
    #[arg(long)]
    no_check: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    ground: GroundArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum HashArg {
    #[value(name = "half_md4", alias = "half-md4")]
    HalfMd4,
    Tea,
    Legacy,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum OperationArg {
    Link,
    Mknod,
    Mkdir,
    #[value(alias = "open")]
    Create,
    Unlink,
    Mixed,
}

pub(super) fn parse_drive(name: &str) -> Result<Drive, String> {
    Drive::by_name(name).ok_or_else(|| "it is memory, hdd or nvme".to_owned())
}

fn parse_share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.001..=100.0).contains(share));
    share.ok_or_else(|| "it is a share from 0.001 to 100: 0.25 is a quarter".to_owned())
}

fn parse_window(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.001..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "it is a number of seconds from 0.001 to 3600".to_owned())
}

pub(super) fn run(args: &LargeDirArgs) -> Result<ExitCode, LabFault> {
    let hash = |hash: &HashArg| match hash {
        HashArg::HalfMd4 => HashVersion::HalfMd4,
        HashArg::Tea => HashVersion::Tea,
        HashArg::Legacy => HashVersion::Legacy,
    };
    let (site, size) = super::site(args.image.as_deref())?;
    let study = Study {
        runs: usize::from(args.runs),
        site,
        names: args.names,
        per: args.per,
        operation: match args.operation {
            OperationArg::Link | OperationArg::Unlink | OperationArg::Mixed => Operation::Link,
            OperationArg::Mknod => Operation::Mknod,
            OperationArg::Mkdir => Operation::Mkdir,
            OperationArg::Create => Operation::Open,
        },
        course: match args.operation {
            OperationArg::Unlink => Course::Shrink,
            OperationArg::Mixed => Course::Replace,
            _ => Course::Grow,
        },
        reopen: args.memory_share.map(|share| {
            let leaves = (args.names * BYTES_OF_LEAF_PER_NAME) as f64;
            Reopen { cache_bytes: (leaves * share) as usize, each_time: true }
        }),
        format: args.format.clone(),
        ahead: args.ahead.into(),
        hashes: args.hash.iter().map(hash).collect(),
        size: size.or(args.size),
        make: args.ground.options()?,
        open: args.engine.options(),
        check: !args.no_check,
        drives: args.device.clone(),
        // A drive has its whole write cache for the posting's larger directory.
        drive_scale: (args.names as f64 / 206.8e6).min(1.0),
        window: Duration::from_secs_f64(args.window),
        window_on_hdd: Duration::from_secs_f64(args.window),
        kernel_dir: args.kernel.clone(),
        ..Study::default()
    };
    let shown = Shown::new(true, !args.json && args.runs == 1);
    let report = extant_lab::large_dir::run(&study, &shown)?;
    drop(shown);
    let printed = print("lab-large-dir:1", &report, &report, args.json);
    let is_damaged = report.hashes.iter().any(|of| of.check_errors.is_some_and(|errors| errors > 0));
    match report.hashes.iter().find_map(|of| of.failed.as_ref()) {
        Some(why) => Ok(exit::fail(exit::TARGET, why)),
        None if is_damaged => Ok(ExitCode::from(exit::DAMAGED)),
        None => Ok(printed),
    }
}
