//! `extant lab createmany`: the options of the Lustre tool, plus our own for where it works.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use extant_image::options::JournalSize;
use extant_lab::createmany::{Job, LINKS_PER_TARGET, Operation};
use extant_lab::drive::{Drive, Switched};
use extant_lab::ground::Ground;
use extant_lab::{Engine, Failed, Kernel, LabFault, Watch, scaling};
use serde::Serialize;

use super::{EngineArgs, GroundArgs, Shown, print, usage};
use crate::exit;
use crate::imagearg::{ArgError, ImageArg, ImageAt, LockError};

/// Size of the device in memory if the number of objects is unknown.
const SIZE_UNKNOWN: u64 = 16 << 30;
const SIZE_BASE: u64 = 512 << 20;
const JOURNAL_MIB: u32 = 128;

/// Make very many names in one directory, as fast as possible.
#[derive(Debug, Args)]
#[command(
    override_usage = "extant lab createmany [OPTIONS] {-o [-k] | -m | -d | -l TARGET} [-u[UNLINKFMT]] [-r ALIAS] \
                      [-t SECONDS] FILENAMEFMT [[START] COUNT]",
    after_help = "\
What to make (these come after the options above):
  -o            open with O_CREAT|O_RDWR and close; with -k files stay open until the end
  -m            mknod of a regular file
  -d            mkdir
  -l TARGET     link to TARGET, a name in the same directory
  -u[FMT]       unlink (rmdir with -d) each at once, by FMT's name if that is given
  -r ALIAS      give each a second name as well
  -t SECONDS    stop after this time; COUNT -SECONDS is the same
Names are FILENAMEFMT with the number at %ld (printf's), or at the end; numbers go from START (0) on, COUNT of them.

Examples:
  extant lab createmany -m test 1000000                        in memory, in process
  extant lab createmany --then-unlink --json -m test 1000000   and remove them again, timed apart
  extant lab createmany --renew-target -l target test 5000000  names only: few inodes
  extant lab createmany --threads 2 -d dir%06d 50000           two workers, a directory each
  extant lab createmany --widths 1,2,4 -m -t 0.2 test          how more workers scale, side by side
  extant lab createmany --device nvme -m test 1000000          with the latency of a flash drive
  extant lab createmany --kernel /mnt -m test 1000000          the same loop on a mount"
)]
pub(crate) struct CreatemanyArgs {
    /// Work in an image: FILE, FILE@OFFSET, FILE#PARTITION, or mem:SIZE for a new one in memory. Without
    /// this, in memory with enough room.
    #[arg(long, value_name = "IMG")]
    image: Option<OsString>,
    /// Work in a directory of the system, through its calls.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["image", "check", "sync"])]
    kernel: Option<PathBuf>,
    /// Give the device the latency of a drive: memory (none), hdd, nvme. Each request really waits.
    #[arg(long, value_name = "DRIVE", conflicts_with = "kernel", default_value = "memory",
          value_parser = super::large_dir::parse_drive)]
    device: Drive,
    /// Workers; each gets a directory of its own, and COUNT names.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// Compare numbers of workers, turn by turn on one file system: turns of -t SECONDS, or of COUNT names of
    /// all workers together.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = super::orphans::parse_width,
          conflicts_with_all = ["threads", "then_unlink", "sync"])]
    widths: Vec<u16>,
    /// Runs of each of the widths.
    #[arg(long, value_name = "N", default_value_t = 10, requires = "widths",
          value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// With --widths: also each worker on a file system of its own, in memory: what the machine gives to
    /// workers that have nothing in common.
    #[arg(long, requires = "widths", conflicts_with_all = ["image", "kernel", "check"])]
    apart: bool,
    /// With -l: make TARGET if it is missing, and take a new one (TARGET.1, ...) after so many links.
    #[arg(long, value_name = "LINKS", num_args = 0..=1, require_equals = true,
          default_missing_value = "64998", value_parser = clap::value_parser!(u64).range(1..=LINKS_PER_TARGET))]
    renew_target: Option<u64>,
    /// Prefetch: give the engine this many names before they are made or removed.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=extant_volume::HINTED_NAMES_MAX as i64))]
    ahead: u16,
    /// Remove all in a second pass with a clock of its own.
    #[arg(long)]
    then_unlink: bool,
    /// Verify the image at the end.
    #[arg(long)]
    check: bool,
    /// Report also the time until all is home on the device.
    #[arg(long)]
    sync: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print only the totals.
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    ground: GroundArgs,
    #[command(flatten)]
    engine: EngineArgs,
    /// What to make, by what names, and how many; see below.
    #[arg(
        help_heading = "Arguments",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required = true,
        value_name = "WORDS"
    )]
    words: Vec<String>,
}

/// The requested load: one pass, or several numbers of workers side by side.
enum Load {
    Once(Job),
    Widths(scaling::Study),
}

impl Load {
    fn new(args: &CreatemanyArgs, job: Job) -> Result<Self, LabFault> {
        if args.widths.is_empty() {
            return Ok(Self::Once(job));
        }
        if job.count.is_none() && job.time.is_none() {
            return Err(usage("--widths needs -t SECONDS or a COUNT, of each turn".to_owned()));
        }
        let widths: Vec<usize> = args.widths.iter().map(|&width| width.into()).collect();
        let most = widths.iter().max().copied().unwrap_or(0) as u64;
        if let Some(names) = job.count.filter(|names| *names < most) {
            return Err(usage(format!("{names} names are not enough for {most} workers")));
        }
        if args.apart && most < 2 {
            return Err(usage("--apart is for widths of two workers and more".to_owned()));
        }
        Ok(Self::Widths(scaling::Study { job, widths, runs: args.runs.into() }))
    }

    fn job(&mut self) -> &mut Job {
        match self {
            Self::Once(job) => job,
            Self::Widths(study) => &mut study.job,
        }
    }

    /// Upper bound on the objects at the end, if known.
    fn objects(&self, apart: bool) -> Option<u64> {
        match self {
            Self::Once(job) => job.count.map(|count| count.saturating_mul(job.threads as u64)),
            Self::Widths(study) => study.names_at_most(apart),
        }
    }

    /// Runs the load in `place`; `others` are on their own file systems.
    fn run<P: extant_lab::WorkDir>(
        &self,
        mut place: P,
        others: Vec<P>,
        shown: &Shown,
    ) -> Result<Measured, Failed> {
        Ok(match self {
            Self::Once(job) => Measured::Once(extant_lab::createmany::run(job, &mut place, shown)?),
            Self::Widths(study) => {
                let mut places: Vec<P> = std::iter::once(place).chain(others).collect();
                Measured::Widths(scaling::run(study, &mut places, shown)?)
            }
        })
    }

    /// Number of additional file systems for workers apart.
    fn others(&self) -> usize {
        match self {
            Self::Widths(study) => study.widths.iter().max().map_or(0, |&most| most.saturating_sub(1)),
            Self::Once(_) => 0,
        }
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum Measured {
    Once(extant_lab::createmany::Report),
    Widths(scaling::Report),
}

impl Measured {
    fn text(&self) -> String {
        match self {
            Self::Once(report) => report.totals(),
            Self::Widths(report) => report.to_string(),
        }
    }

    fn failed(&self) -> Option<&String> {
        match self {
            Self::Once(report) => report.failed.as_ref(),
            Self::Widths(report) => report.failed.as_ref(),
        }
    }
}

/// The measurements and where they were made.
#[derive(Serialize)]
struct Measurement {
    place: String,
    #[serde(flatten)]
    measured: Measured,
    #[serde(skip_serializing_if = "Option::is_none")]
    close_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    commits: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logged_blocks: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_waits: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sealing_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    clean: Option<bool>,
}

impl Measurement {
    fn new(place: String, measured: Measured) -> Self {
        Self {
            place,
            measured,
            close_s: None,
            commits: None,
            logged_blocks: None,
            start_waits: None,
            sealing_s: None,
            clean: None,
        }
    }

    fn text(&self) -> String {
        let mut text = self.measured.text();
        if let Some(seconds) = self.close_s {
            text += &format!("close: all home after {seconds:.2} seconds more\n");
        }
        match self.clean {
            Some(true) => text += "check: clean\n",
            Some(false) => text += "check: errors; run `extant check`\n",
            None => {}
        }
        text
    }
}

pub(super) fn run(args: &CreatemanyArgs) -> Result<ExitCode, LabFault> {
    let mut job = extant_lab::usage::parse(&args.words).map_err(usage)?;
    job.threads = usize::from(args.threads);
    job.renew_target = args.renew_target;
    job.ahead = args.ahead.into();
    job.then_unlink = args.then_unlink;
    if job.then_unlink && job.unlink.is_some() {
        return Err(usage("--then-unlink removes what -u has removed already".to_owned()));
    }
    let mut load = Load::new(args, job)?;
    // With many short turns, lines would have no value.
    let lines = args.widths.is_empty() && !args.json && !args.quiet;
    let shown = Shown::new(!lines, lines);
    shown.part(&load.job().word(), load.objects(args.apart));
    let measurement = match &args.kernel {
        Some(dir) => {
            Measurement::new(dir.display().to_string(), load.run(Kernel::at(dir)?, Vec::new(), &shown)?)
        }
        None => in_process(args, &mut load, &shown)?,
    };
    drop(shown);
    let printed = print("lab-createmany:1", &measurement, &measurement.text(), args.json);
    match (measurement.measured.failed(), measurement.clean) {
        (Some(why), _) => {
            let code = if why.contains("(errno 28)") { exit::NO_SPACE } else { exit::TARGET };
            Ok(exit::fail(code, why))
        }
        (None, Some(false)) => Ok(ExitCode::from(exit::DAMAGED)),
        (None, _) => Ok(printed),
    }
}

fn in_process(args: &CreatemanyArgs, load: &mut Load, shown: &Shown) -> Result<Measurement, LabFault> {
    let objects = load.objects(args.apart);
    let (place, ground) = ground(args, load.job(), objects)?;
    let device = std::sync::Arc::new(Switched::new(ground.device(), 1.0));
    let ground =
        if args.device == Drive::Memory { ground } else { Ground::of(std::sync::Arc::clone(&device) as _) };
    let volume = ground.open(&args.engine.options())?;
    let others = (0..if args.apart { load.others() } else { 0 })
        .map(|_| self::ground(args, load.job(), objects)?.1.open(&args.engine.options()))
        .collect::<Result<Vec<_>, _>>()?;
    device.set(args.device);
    let measured = load.run(Engine::root(&volume), others.iter().map(Engine::root).collect(), shown)?;
    let mut measurement = Measurement::new(place, measured);
    if let Some(journal) = volume.counters().journal_stats().filter(|_| others.is_empty()) {
        measurement.commits = Some(journal.commits);
        measurement.logged_blocks = Some(journal.logged_blocks);
        measurement.start_waits = Some(journal.start_waits);
        measurement.sealing_s = Some(journal.sealing_nanos as f64 / 1e9);
    }
    // `--sync` measures how long the drive takes.
    if !args.sync {
        device.set(Drive::Memory);
    }
    let is_kept = args.image.is_some();
    if is_kept || args.sync || args.check {
        shown.part("close", None);
        let begun = Instant::now();
        volume.close().map_err(LabFault::Close)?;
        measurement.close_s = Some(begun.elapsed().as_secs_f64());
    }
    if args.check {
        shown.part("check", None);
        measurement.clean = Some(ground.check()?.clean());
    }
    Ok(measurement)
}

/// The named image, or a new one in memory with room for the job's objects.
fn ground(args: &CreatemanyArgs, job: &mut Job, objects: Option<u64>) -> Result<(String, Ground), LabFault> {
    let mut options = args.ground.options()?;
    let memory = match &args.image {
        None => None,
        Some(arg) => {
            let image = ImageArg::parse(arg).map_err(refused)?;
            let path = image.to_string();
            if image.inner_path.is_some() {
                return Err(usage(format!(
                    "{path}: names are made in the root directory: leave the path out"
                )));
            }
            match image.at {
                ImageAt::Memory(size) => Some(size),
                _ => {
                    let device = image.open_locked().map_err(|why| match why {
                        LockError::Arg(why) => refused(why),
                        LockError::Unwritable(why) | LockError::Busy(why) => LabFault::Device(why),
                    })?;
                    return Ok((path, Ground::of(device)));
                }
            }
        }
    };
    let per_object = match job.operation {
        Operation::Link | Operation::Unlink => 64,
        Operation::Mkdir => 4096 + 512,
        Operation::Open | Operation::OpenKeep | Operation::Mknod => 512,
    };
    let enough = objects.map_or(SIZE_UNKNOWN, |objects| SIZE_BASE + objects.saturating_mul(per_object));
    let size = memory.unwrap_or(enough);
    let inodes = if job.operation == Operation::Link { 0 } else { objects.unwrap_or(size / 1024) };
    options.inodes.get_or_insert(inodes + inodes / 64 + 16_384);
    if options.journal_size == JournalSize::Auto {
        // A common size on real disks; this device is only just large enough for the job.
        options.journal_size = JournalSize::MiB(JOURNAL_MIB);
    }
    // A new file system in memory has no target yet.
    job.renew_target.get_or_insert(LINKS_PER_TARGET);
    Ok((format!("mem:{}", crate::sizes::human(size)), Ground::memory(size, &options)?))
}

pub(super) fn refused(why: ArgError) -> LabFault {
    match why {
        ArgError::Usage(why) => usage(why),
        ArgError::Unreadable(why) => LabFault::Device(why),
    }
}
