//! `extant lab buffered`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use extant_device::Model;
use extant_lab::LabFault;
use extant_lab::buffered::{Backing, Case, Path, Study};
use extant_lab_report::text;

use super::{GroundArgs, Shown, usage};
use crate::schema::tagged;
use crate::sizes::parse_size;
use crate::voice;

/// How fast files' bytes go into memory and out of it: by ranges, block by block, through the journal, and
/// beside them the kernel and plain copies.
#[derive(Debug, Args)]
#[command(after_help = "\
Cases: hole_read, cached_read, device_read, cached_write, overwrite, writeback_write, sync_write, sync_overwrite.
Paths: iomap (ranges, large folios), iomap-4k (ranges, folios of a page), per-block (pages, ordered data), \
writeback (pages, commits do not wait for data), journal (data through the journal).

Examples:
  extant lab buffered                                    all of it, in process
  extant lab buffered --kernel /mnt                      beside the file system mounted on /mnt
  extant lab buffered --cases cached_write --sizes 64K   one row of each path
  extant lab buffered --paths iomap,journal --bytes 64M  what data=journal costs
  extant lab buffered --device nvme --cases sync_write   on a device with the timing of an NVMe drive")]
pub(crate) struct BufferedArgs {
    /// The device: memory, the name of a model (hdd, sata-ssd, sata-ssd-plp, nvme, array), or a directory of
    /// the system, in which a file is made.
    #[arg(long, value_name = "DEVICE", default_value = "memory", value_parser = parse_backing)]
    device: Backing,
    /// What is done with the file.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_case)]
    cases: Vec<Case>,
    /// Bytes of a read or write.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "4K,64K,1M", value_parser = parse_size)]
    sizes: Vec<u64>,
    /// Paths; iomap and per-block if none are given.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_path)]
    paths: Vec<Path>,
    /// Bytes of the file.
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_size)]
    bytes: u64,
    /// Writes of sync_write and sync_overwrite at most.
    #[arg(long, value_name = "N", default_value_t = 256)]
    syncs: u64,
    /// Rounds.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Memory for caches; 16 times the file if not given, so that nothing is written back by itself.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    cache: Option<u64>,
    /// A directory of the system, whose file system is measured beside ours.
    #[arg(long, value_name = "DIR")]
    kernel: Option<PathBuf>,
    /// Print JSON: an object on a line for each row.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    ground: GroundArgs,
}

fn parse_backing(name: &str) -> Result<Backing, String> {
    match Model::by_name(name) {
        Some(model) => Ok(Backing::Modelled(model)),
        None if name == "memory" => Ok(Backing::Memory),
        None if std::path::Path::new(name).is_dir() => Ok(Backing::Files(name.into())),
        None => Err("neither memory, nor a model, nor a directory".to_owned()),
    }
}

fn parse_case(name: &str) -> Result<Case, String> {
    Case::by_name(name).ok_or_else(|| {
        let names = Case::ALL.map(Case::name);
        format!("it is one of {}", names.join(", "))
    })
}

pub(super) fn parse_path(name: &str) -> Result<Path, String> {
    Path::by_name(name).ok_or_else(|| format!("it is one of {}", Path::ALL.map(Path::name).join(", ")))
}

pub(super) fn run(args: &BufferedArgs) -> Result<ExitCode, LabFault> {
    if args.sizes.iter().any(|bs| *bs == 0 || *bs > args.bytes) {
        return Err(usage("a read or write has at least one byte, and at most --bytes".to_owned()));
    }
    let all = |given: &[Case]| if given.is_empty() { Case::ALL.to_vec() } else { given.to_vec() };
    let study = Study {
        backing: args.device.clone(),
        cases: all(&args.cases),
        sizes: args.sizes.clone(),
        paths: if args.paths.is_empty() { Path::USUAL.to_vec() } else { args.paths.clone() },
        bytes: args.bytes,
        syncs: args.syncs,
        rounds: args.rounds.into(),
        cache_bytes: usize::try_from(args.cache.unwrap_or(args.bytes * 16)).unwrap_or(usize::MAX),
        format: args.ground.options()?,
        kernel_dir: args.kernel.clone(),
    };
    let shown = Shown::new(true, false);
    let report = extant_lab::buffered::run(&study, &shown)?;
    drop(shown);
    let text = match args.json {
        true => report.rows.iter().map(|row| format!("{}\n", tagged("lab-buffered:1", row))).collect(),
        false => text::tables(&report.tables()),
    };
    Ok(voice::print(&text, 0))
}
