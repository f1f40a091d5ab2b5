//! `extant optimize`: contiguous files, packed directories, files in a given order.
//!
//! Does **not** own: which files move and how (see `extant::optimize`).

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use extant::optimize::{OptimizeOptions, OptimizeReport, OrderFault, optimize_mounted, order_inodes};
use extant::repair::RepairFault;
use extant::resize::ResizeFault;
use extant::tune::{Conversion, OfflineOptions};
use extant::{Device, Features, OpenFault};
use serde_json::json;

use crate::edit::args::JournalArg;
use crate::edit::staged::HoldPolicy;
use crate::exit;
use crate::imagearg::ImageArg;
use crate::inspect::format::{count, escape};
use crate::look::{OpenArgs, Session, lock_failure, report_output};
use crate::mount::is_ours;
use crate::schema::tagged;
use crate::sizes::human;
use crate::usage::near;
use crate::voice::note;

const HELP: &str = "\
A file with two or more fragments moves to contiguous free blocks, if there are any: its data is copied, \
made durable, and exchanged in one transaction of the journal, so a power cut loses nothing. Names, times, \
attributes, holes and inode numbers stay.

--order FILE lists paths, one a line, such as those that a boot reads: these files move in any case, one \
after the other. With --inodes, their inodes get ascending numbers, too, without gaps if that many numbers \
in a row are free: reading them in this order needs few blocks of the inode tables. --directories also \
writes the indexes of directories anew, with full blocks. The image must not be mounted.

With a directory on a mount of the kernel's ext4, the kernel moves the files below it, while programs use \
them.

Examples:
  extant optimize root.img
  extant optimize --dry-run --json root.img | jq .fragmented
  extant optimize --order boot.list --inodes --directories root.img
  extant optimize /srv                          a mount of the kernel's ext4";

/// Defragment files and directories, and put files into a given order.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct OptimizeArgs {
    /// Print how fragmented the files are, and change nothing.
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Move files with at least this many fragments.
    #[arg(long, value_name = "N", default_value_t = 2)]
    fragments: u64,
    /// Move the files of this list one after the other; - is standard input.
    #[arg(long, value_name = "FILE")]
    order: Option<PathBuf>,
    /// Also give the inodes of the list ascending numbers, without gaps if possible.
    #[arg(short = 'I', long, requires = "order")]
    inodes: bool,
    /// Write the indexes of directories anew.
    #[arg(short = 'D', long)]
    directories: bool,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
    /// The image (IMG, IMG@OFFSET, IMG#PARTITION), or a directory on a mount of the kernel's ext4.
    #[arg(value_name = "IMG|DIR")]
    image: OsString,
    #[command(flatten)]
    journal: JournalArg,
}

/// The paths of a list, one a line.
fn paths(file: &std::path::Path) -> std::io::Result<Vec<Vec<u8>>> {
    let text = match file.as_os_str().as_bytes() {
        b"-" => {
            let mut text = Vec::new();
            std::io::Read::read_to_end(&mut std::io::stdin().lock(), &mut text)?;
            text
        }
        _ => std::fs::read(file)?,
    };
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    Ok(lines.map(<[u8]>::to_vec).collect())
}

pub(crate) fn run(args: &OptimizeArgs) -> ExitCode {
    let order = match args.order.as_deref().map(paths).transpose() {
        Ok(order) => order.unwrap_or_default(),
        Err(why) => {
            let file = args.order.as_deref().unwrap_or_else(|| "".as_ref());
            return exit::fail(exit::SOURCE, &near::not_opened(file, &why));
        }
    };
    let options = OptimizeOptions { fragments_min: args.fragments, order, dry_run: args.dry_run };
    let given = Path::new(&args.image);
    if given.is_dir() {
        return of_mount(args, given, &options);
    }
    let open = OpenArgs::with_journal(args.journal.journal.clone());
    let mut session = match args.dry_run {
        true => Session::new(&open),
        false => Session::writing(&open, HoldPolicy::Nothing),
    };
    let Some(image) = session.whole_image(&args.image, "optimized") else { return session.finish(Ok(())) };
    let name = escape(image.to_string().as_bytes());
    if !args.dry_run
        && let Err((code, why)) = crate::tune::restore_cut(&image)
    {
        return exit::fail(code, &why);
    }
    let Some(fs) = session.open(&image) else { return session.finish(Ok(())) };
    let has_journal = fs.volume().superblock().features.has_compat(Features::HAS_JOURNAL);
    if !args.dry_run && !has_journal {
        note!("{name}: without a journal, a power cut can damage the file that is being moved");
    }
    // With this the image stays locked until the inodes have their numbers.
    let device = session.device(&image);
    let done = fs.optimize(&options, &|_, _| (), &AtomicBool::new(false));
    // The session closes the image, which takes the last reference.
    drop(fs);
    let report = match done {
        Ok(report) => report,
        Err(why) => {
            session.problem(exit::TARGET, format_args!("{name}: {why}"));
            return session.finish(Ok(()));
        }
    };
    if !args.dry_run {
        session.did(&image.to_string());
    }
    let (mut inodes, mut failed) = (0, None);
    if (args.directories || args.inodes) && !args.dry_run {
        let finished = session.finish(Ok(()));
        if finished != ExitCode::SUCCESS {
            return finished;
        }
        session = Session::new(&open);
    }
    if args.inodes && !args.dry_run {
        match order_list(args, &image, device.as_ref(), &options.order) {
            Ok(moved) => inodes = moved,
            Err((moved, (code, why))) => {
                inodes = moved;
                failed = Some((code, format!("{name}: {why}")));
            }
        }
    }
    drop(device);
    if args.directories && !args.dry_run && failed.is_none() {
        let conversion = Conversion { packs_directories: true, ..Conversion::default() };
        failed = crate::tune::convert_image(&image, &args.journal, &conversion, false).err();
    }
    // Also after a failure: what is done is done.
    let mut out = report_output(args.json);
    let printed = print(args, &name, &report, inodes, &mut out).and_then(|()| out.flush());
    if let Some((code, why)) = failed {
        session.problem(code, why);
    }
    session.finish(printed)
}

/// Gives the inodes of the list their numbers. Returns how many have another one, also with an error.
fn order_list(
    args: &OptimizeArgs,
    image: &ImageArg,
    device: Option<&Arc<dyn Device>>,
    paths: &[Vec<u8>],
) -> Result<u64, (u64, (u8, String))> {
    let before = |fault| (0, fault);
    let journal_device =
        args.journal.journal.as_deref().map(crate::resize::journal).transpose().map_err(before)?;
    let device = match device {
        Some(device) => Arc::clone(device),
        None => image.open_locked().map_err(lock_failure).map_err(before)?,
    };
    let options = OfflineOptions {
        journal_device,
        undo: Some(image.tune_undo()),
        waiting: Some(Arc::new(crate::waiting::say(escape(image.to_string().as_bytes())))),
    };
    order_inodes(&device, paths, &options, &AtomicBool::new(false)).map_err(|fault| {
        let moved = match &fault {
            OrderFault::Change(ResizeFault::InPart { moved_inodes, .. }) => *moved_inodes,
            _ => 0,
        };
        let code = match &fault {
            OrderFault::Change(ResizeFault::FixedInodes(_)) => exit::USAGE_CODE,
            OrderFault::Change(ResizeFault::Open(OpenFault::InUse(_)))
            | OrderFault::Write(RepairFault::InUse) => exit::BUSY,
            _ => exit::TARGET,
        };
        let remedy = match &fault {
            OrderFault::Write(RepairFault::Lost(_)) => crate::tune::RESTORED_BY_NEXT,
            _ => "",
        };
        (moved, (code, format!("{fault}{remedy}")))
    })
}

/// Files of the kernel's mount.
fn of_mount(args: &OptimizeArgs, dir: &Path, options: &OptimizeOptions) -> ExitCode {
    let name = escape(args.image.as_encoded_bytes());
    if args.directories || args.inodes {
        let what = if args.directories { "-D writes directories" } else { "-I changes inode numbers" };
        let why = format!("{name}: {what} of an image that is not mounted");
        return exit::fail(exit::USAGE_CODE, &why);
    }
    let report = match optimize_mounted(dir, options, &|_, _| (), &AtomicBool::new(false)) {
        Ok(report) => report,
        Err(why) => {
            let hint = if is_ours(dir) { "; unmount it, and optimize the image" } else { "" };
            return exit::fail(exit::TARGET, &format!("{why}{hint}"));
        }
    };
    let mut out = report_output(args.json);
    match print(args, &name, &report, 0, &mut out).and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => exit::fail(exit::TARGET, &why),
    }
}

fn print(
    args: &OptimizeArgs,
    image: &str,
    report: &OptimizeReport,
    inodes: u64,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    if args.json {
        let left: Vec<_> =
            report.left.iter().map(|(path, why)| json!({ "path": escape(path), "reason": why })).collect();
        let all = json!({
            "image": image, "dry_run": args.dry_run, "files": report.files, "fragmented": report.fragmented,
            "fragments_before": report.fragments_before, "fragments_after": report.fragments_after,
            "moved_files": report.moved, "moved_bytes": report.moved_bytes,
            "moved_inodes": inodes, "left": left,
        });
        return writeln!(
            out,
            "{}",
            serde_json::to_string_pretty(&tagged("optimize:1", all)).unwrap_or_default()
        );
    }
    writeln!(
        out,
        "{image}: {}, {} fragmented; {} -> {} fragments",
        count(report.files, "file"),
        report.fragmented,
        report.fragments_before,
        report.fragments_after
    )?;
    if report.moved > 0 {
        writeln!(out, "{image}: {} moved, {}", count(report.moved, "file"), human(report.moved_bytes))?;
    }
    if inodes > 0 {
        writeln!(out, "{image}: {} with another number", count(inodes, "inode"))?;
    }
    for (path, why) in &report.left {
        writeln!(out, "{image}: /{} stays: {why}", escape(path))?;
    }
    Ok(())
}
