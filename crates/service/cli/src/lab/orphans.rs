//! `extant lab orphans`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use extant_lab::LabFault;
use extant_lab::orphans::{Load, Mode, Study};

use super::{EngineArgs, GroundArgs, Shown, print, usage};
use crate::sizes::parse_size;

/// How orphan tracking scales with writers: its modes side by side.
#[derive(Debug, Args)]
#[command(after_help = "\
Modes: list-v0, list-v3, file, none (all orphans tracked, so that they can be compared), single-handle (the default: an \
inode whose work fits into one transaction is not tracked), kernel (with --kernel DIR).

Examples:
  extant lab orphans                                     all modes, 1 to 40 workers: an hour
  extant lab orphans --runs 3 --widths 1,2,4 --loops 20  a quick look
  extant lab orphans --load creat-clo --modes list-v3,file
  extant lab orphans --kernel /mnt --modes file,kernel   beside the file system mounted on /mnt")]
pub(crate) struct OrphansArgs {
    /// What the workers do.
    #[arg(long, value_enum, default_value = "truncate")]
    load: LoadArg,
    /// Modes, in the order of the table.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_mode)]
    modes: Vec<Mode>,
    /// Numbers of workers.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 2, 4, 10, 20, 40],
          value_parser = parse_width)]
    widths: Vec<u16>,
    /// Runs of each.
    #[arg(long, value_name = "N", default_value_t = 10)]
    runs: u16,
    /// Loops of each worker in a run; so many that one worker needs a second if not given.
    #[arg(long, value_name = "N")]
    loops: Option<u32>,
    /// Where file systems are made: a new FILE, or mem:SIZE. Without this, in memory.
    #[arg(long, value_name = "IMG")]
    image: Option<OsString>,
    /// Size of the device.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_size)]
    size: u64,
    /// A directory of the system, for the mode kernel.
    #[arg(long, value_name = "DIR")]
    kernel: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    ground: GroundArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

/// The load of `orphans` on a directory: of the kernel, of a mount, of anything.
#[derive(Debug, Args)]
#[command(after_help = "\
The workers' files are made in DIR/worker-N. The report is that of `extant lab orphans`, with the mode kernel.

Examples:
  extant lab orphan-stress /mnt                          the posting's numbers of workers, ten runs
  extant lab orphan-stress --widths 10 --loops 100 --json /mnt
  extant lab orphan-stress --load creat-clo --runs 3 /dev/shm")]
pub(crate) struct StressArgs {
    /// What the workers do.
    #[arg(long, value_enum, default_value = "truncate")]
    load: LoadArg,
    /// Numbers of workers.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 2, 4, 10, 20, 40],
          value_parser = parse_width)]
    widths: Vec<u16>,
    /// Runs of each.
    #[arg(long, value_name = "N", default_value_t = 10)]
    runs: u16,
    /// Loops of each worker in a run; so many that one worker needs a second if not given.
    #[arg(long, value_name = "N")]
    loops: Option<u32>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// The directory.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LoadArg {
    /// Cut a file byte by byte.
    Truncate,
    /// Create and close files, then unlink them.
    CreatClo,
}

impl LoadArg {
    fn load(self) -> Load {
        match self {
            Self::Truncate => Load::Truncate,
            Self::CreatClo => Load::CreatClo,
        }
    }
}

fn parse_mode(name: &str) -> Result<Mode, String> {
    Mode::by_name(name)
        .ok_or_else(|| "it is list-v0, list-v3, file, none, single-handle or kernel".to_owned())
}

pub(super) fn parse_width(text: &str) -> Result<u16, String> {
    let width = text.parse().ok().filter(|width| (1..=1024).contains(width));
    width.ok_or_else(|| "it is a number from 1 to 1024".to_owned())
}

pub(super) fn run(args: &OrphansArgs) -> Result<ExitCode, LabFault> {
    let mut modes = args.modes.clone();
    if modes.is_empty() {
        modes = Mode::ENGINE.to_vec();
        modes.extend(args.kernel.as_ref().map(|_| Mode::Kernel));
    }
    if args.kernel.is_none() && modes.contains(&Mode::Kernel) {
        return Err(usage("the mode kernel needs --kernel DIR".to_owned()));
    }
    let (site, size) = super::site(args.image.as_deref())?;
    let study = Study {
        site,
        load: args.load.load(),
        modes,
        widths: args.widths.iter().map(|width| usize::from(*width)).collect(),
        runs: usize::from(args.runs),
        loops: args.loops.map(u64::from),
        size: size.unwrap_or(args.size),
        format: args.ground.options()?,
        open: args.engine.options(),
        kernel_dir: args.kernel.clone(),
    };
    show(&study, args.json)
}

pub(super) fn stress(args: &StressArgs) -> Result<ExitCode, LabFault> {
    let study = Study {
        load: args.load.load(),
        modes: vec![Mode::Kernel],
        widths: args.widths.iter().map(|width| usize::from(*width)).collect(),
        runs: usize::from(args.runs),
        loops: args.loops.map(u64::from),
        kernel_dir: Some(args.dir.clone()),
        ..Study::default()
    };
    show(&study, args.json)
}

fn show(study: &Study, json: bool) -> Result<ExitCode, LabFault> {
    let shown = Shown::new(true, false);
    let report = extant_lab::orphans::run(study, &shown)?;
    drop(shown);
    Ok(print("lab-orphans:1", &report, &report, json))
}
