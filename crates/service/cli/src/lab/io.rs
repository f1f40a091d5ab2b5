//! `extant lab io`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use extant_lab::LabFault;
use extant_lab::io::{Job, Operation, run_below, run_in_process};

use super::{EngineArgs, Shown, print};
use crate::sizes::parse_size;

/// Reads and writes of files by concurrent jobs, as fio's engine psync makes them.
#[derive(Debug, Args)]
#[command(after_help = "\
Each job is a thread with files of its own, and goes from file to file with each block, from front to back. \
Before read and overwrite the files are written and synced, which is not timed.

Examples:
  extant lab io --rw write --bs 64K --size 256M         one file, in process
  extant lab io /mnt --rw overwrite --bs 4K --fsync 1   on a mounted file system, an fsync after each write
  extant lab io --jobs 100 --files 5 --size 1M --stride 2 --cache 12M    case (a) of lab shrinker")]
pub(crate) struct IoArgs {
    /// A directory of the system; without it, a file system in memory, in process.
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    /// What is done: read, write (new files), overwrite.
    #[arg(long, value_name = "OPERATION", default_value = "write", value_parser = parse_operation)]
    rw: Operation,
    /// Bytes of a read or write.
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = parse_size)]
    bs: u64,
    /// Bytes read or written of each file.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_size)]
    size: u64,
    /// Files of each job.
    #[arg(long, value_name = "N", default_value_t = 1)]
    files: u32,
    /// Concurrent jobs.
    #[arg(long, value_name = "N", default_value_t = 1)]
    jobs: u16,
    /// An fsync after so many writes of a job; 0: none.
    #[arg(long, value_name = "N", default_value_t = 0)]
    fsync: u64,
    /// One fsync of each file at the end, within the time.
    #[arg(long)]
    end_fsync: bool,
    /// Read or write the first of so many blocks.
    #[arg(long, value_name = "BLOCKS", default_value_t = 1)]
    stride: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

fn parse_operation(name: &str) -> Result<Operation, String> {
    let found = Operation::ALL.into_iter().find(|operation| operation.name() == name);
    found.ok_or_else(|| "it is read, write or overwrite".to_owned())
}

pub(super) fn run(args: &IoArgs) -> Result<ExitCode, LabFault> {
    let job = Job {
        operation: args.rw,
        bs: args.bs,
        size: args.size,
        files: args.files as usize,
        jobs: args.jobs.into(),
        fsync_every: args.fsync,
        end_fsync: args.end_fsync,
        stride: args.stride,
    };
    let shown = Shown::new(true, false);
    let report = match &args.dir {
        Some(dir) => run_below(&job, dir, &shown)?,
        None => run_in_process(&job, &args.engine.options(), &shown)?,
    };
    drop(shown);
    Ok(print("lab-io:1", &report, &report, args.json))
}
