//! `extant lab fsync`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use extant_device::Model;
use extant_flush::{Delay, Mode, Settings};
use extant_lab::LabFault;
use extant_lab::buffered::Path;
use extant_lab::fsync::{Load, On, Study};

use super::{Shown, print};

/// What durability costs on disks of several kinds, and what sharing flushes saves.
#[derive(Debug, Args)]
#[command(after_help = "\
Devices: ide, hdd, hdd-nowc (no write cache), sata-ssd, sata-ssd-plp (its cache survives a power cut), nvme, \
array (with a battery). Their times are a model's; bytes are in memory.
Modes: none (each fsync makes a flush), seed (a leader waits a little for others), merge (calls that come during a \
flush share the next), epoch (merge, and nothing is flushed that is durable already), empty-txn (each fsync commits the \
journal). Each is compared with no flushes at all: no-barrier.

Examples:
  extant lab fsync                               all devices, modes and widths: a minute
  extant lab fsync --load happy --devices hdd    mostly reads, 40 KiB each
  extant lab fsync --devices hdd --modes seed --delay full
  extant lab fsync --path journal --devices hdd  bytes through the journal: an fsync is a commit
  extant lab fsync --kernel /mnt --widths 16     the mix fsync-happy on a mounted file system, by system calls
  extant lab fsync --flush-ms 5 --widths 16      a device whose flush takes 5 ms, all else no time")]
pub(crate) struct FsyncArgs {
    /// What the threads do.
    #[arg(long, value_enum, default_value = "overwrite")]
    load: LoadArg,
    /// Where they do it.
    #[arg(long, value_enum, default_value = "files")]
    on: OnArg,
    /// How files' bytes are written: iomap, per-block, writeback or journal, as `lab buffered` has them.
    #[arg(long, value_name = "PATH", default_value = "iomap", value_parser = super::buffered::parse_path)]
    path: Path,
    /// Devices, in the order of the table.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_model)]
    devices: Vec<Model>,
    /// Instead of --devices: a device whose flush takes this long.
    #[arg(long, value_name = "MS", conflicts_with = "devices")]
    flush_ms: Option<f64>,
    /// Run the mix `happy` in a new directory below DIR, with fsync and without, instead of on models.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["devices", "flush_ms", "modes"])]
    kernel: Option<PathBuf>,
    /// Modes, in the order of the table.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_mode)]
    modes: Vec<Mode>,
    /// Numbers of threads.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 4, 16, 64],
          value_parser = super::orphans::parse_width)]
    widths: Vec<u16>,
    /// Seconds of each turn.
    #[arg(long, value_name = "S", default_value_t = 0.5)]
    seconds: f64,
    /// How long the leader of mode seed waits: full (as long as a flush takes), aged (until the last flush
    /// was that long ago), none.
    #[arg(long, value_name = "POLICY", default_value = "aged", value_parser = parse_delay)]
    delay: Delay,
    /// Where the threads' choices begin.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum OnArg {
    /// Each in a file of its own, by fdatasync.
    Files,
    /// On the device, without a file system; not with the mode empty-txn.
    Device,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LoadArg {
    /// Overwrite and flush.
    Overwrite,
    /// Mostly read.
    Happy,
}

fn parse_model(name: &str) -> Result<Model, String> {
    Model::by_name(name).ok_or_else(|| {
        let names: Vec<_> = Model::ALL.iter().map(|model| model.name).collect();
        format!("it is one of {}", names.join(", "))
    })
}

fn parse_mode(name: &str) -> Result<Mode, String> {
    Mode::by_name(name).ok_or_else(|| "it is none, seed, merge, epoch or empty-txn".to_owned())
}

fn parse_delay(name: &str) -> Result<Delay, String> {
    Delay::by_name(name).ok_or_else(|| "it is full, aged or none".to_owned())
}

pub(super) fn run(args: &FsyncArgs) -> Result<ExitCode, LabFault> {
    let time = |what: &str, seconds: f64| {
        let time = Duration::try_from_secs_f64(seconds).ok().filter(|time| time.as_secs() < 3600);
        time.ok_or_else(|| super::usage(format!("{what} is a time below an hour")))
    };
    if let Some(folder) = &args.kernel {
        let widths: Vec<usize> = args.widths.iter().map(|width| usize::from(*width)).collect();
        let time = time("--seconds", args.seconds)?;
        let shown = Shown::new(true, false);
        let report = extant_lab::fsync::run_in(folder, &widths, time, args.seed, &shown)?;
        drop(shown);
        return Ok(print("lab-fsync-kernel:1", &report, &report, args.json));
    }
    let defaults = Study::default();
    let of_flush = args.flush_ms.map(|ms| time("--flush-ms", ms / 1e3)).transpose()?;
    let models = match of_flush {
        Some(flush) => vec![Model::flush_of(flush)],
        None if args.devices.is_empty() => defaults.models,
        None => args.devices.clone(),
    };
    let (ground, all) = match args.on {
        OnArg::Files => (On::Files, defaults.modes),
        OnArg::Device => (On::Device, Mode::OF_DEVICE.to_vec()),
    };
    let modes = if args.modes.is_empty() { all } else { args.modes.clone() };
    if ground == On::Device && modes.contains(&Mode::EmptyTxn) {
        return Err(super::usage("the mode empty-txn needs a journal: leave out --on device".to_owned()));
    }
    let study = Study {
        load: match args.load {
            LoadArg::Overwrite => Load::Overwrite,
            LoadArg::Happy => Load::Happy,
        },
        ground,
        models,
        modes,
        widths: args.widths.iter().map(|width| usize::from(*width)).collect(),
        time: time("--seconds", args.seconds)?,
        path: args.path,
        settings: Settings { delay: args.delay, ..Settings::default() },
        seed: args.seed,
    };
    let shown = Shown::new(true, false);
    let report = extant_lab::fsync::run(&study, &shown)?;
    drop(shown);
    Ok(print("lab-fsync:1", &report, &report, args.json))
}
