//! `extant dump`: the metadata of an image without file contents.
//!
//! Owns: arguments, the output file, what is printed. Does **not** own: which blocks are metadata (see the
//! crate `rescue`).

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use extant::rescue::{FoundFile, RescueFault, RescueObserver};
use extant_device::NewFile;
use serde_json::json;

use crate::exit;
use crate::inspect::format::escape;
use crate::look::{OpenArgs, Session, output};
use crate::sandbox::{Needs, directory_of};
use crate::sizes::human;
use crate::voice::say;

const HELP: &str = "\
A dump is an image with holes for all file contents. Programs that look at metadata treat it like the \
image: `extant check`, `extant inspect`, e2fsck, debugfs. A damaged file system can so be attached to a \
bug report. Pack it with zstd, or with tar -S.

Without --scramble, names, targets of symbolic links, attributes, and small files that are stored in their \
inodes are in the dump, and blocks of data that are in the journal. --scramble replaces names, targets, \
values and such contents by others, which are computed from positions and lengths; label and last mount \
point are removed, and the journal's contents are left out: the dump shows the metadata as after its replay. \
ACLs, security attributes, and the hashes of some names in the indexes of directories stay.

Examples:
  extant dump broken.img -o broken.dump
  extant dump --scramble 'disk.img#2' -o for-the-report.dump && zstd for-the-report.dump";

/// Copy the metadata of an image without file contents, for bug reports.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct DumpArgs {
    /// The image: IMG, IMG@OFFSET, IMG#PARTITION.
    #[arg(value_name = "IMG")]
    image: OsString,
    /// The file to write; it has the size of the file system, most of it as holes.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Replace names, targets of symbolic links, attributes and inline contents.
    #[arg(short, long)]
    scramble: bool,
    /// Replace an existing file.
    #[arg(short, long)]
    force: bool,
    /// Use the backup superblock in this block.
    #[arg(short, long, value_name = "BLOCK")]
    backup: Option<u64>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

struct Quiet;

impl RescueObserver for Quiet {
    fn found(&self, _found: &FoundFile) {}
}

pub(crate) fn run(args: &DumpArgs) -> ExitCode {
    let mut session = Session::new(&OpenArgs::with_journal(None));
    let Some(image) = session.whole_image(&args.image, "dumped") else { return session.finish(Ok(())) };
    let needs = Needs { writes: vec![directory_of(&args.output)], ..Needs::default() };
    let name = escape(image.to_string().as_bytes());
    let Some(rescue) = crate::rescue::open(&mut session, &args.image, &image, args.backup, &needs) else {
        return session.finish(Ok(()));
    };
    let shown = args.output.display();
    if !args.force && args.output.symlink_metadata().is_ok() {
        session.problem(exit::EXISTS, format_args!("{shown} exists already; use --force to replace it"));
        return session.finish(Ok(()));
    }
    let dumped = NewFile::create(&args.output)
        .map_err(|error| RescueFault::Output(shown.to_string(), error))
        .and_then(|new| {
            let copy: File =
                new.file().try_clone().map_err(|error| RescueFault::Output(shown.to_string(), error))?;
            let report = rescue.dump(&copy, args.scramble, &Quiet)?;
            new.publish(args.force, false).map_err(|error| RescueFault::Output(shown.to_string(), error))?;
            Ok(report)
        });
    let report = match dumped {
        Ok(report) => report,
        Err(why) => {
            let code = match &why {
                RescueFault::Output(_, error) if error.kind() == io::ErrorKind::StorageFull => exit::NO_SPACE,
                _ => exit::TARGET,
            };
            session.problem(code, why);
            return session.finish(Ok(()));
        }
    };
    if report.unordered > 0 {
        say!(
            "note: {name}: {} names have no replacement that fits the directory's index; the dump's \
             directories need e2fsck -fD",
            report.unordered
        );
    }
    let mut out = output();
    let printed = if args.json {
        let all = json!({
            "image": name, "output": shown.to_string(), "blocks": report.blocks, "bytes": report.bytes,
            "scrambled_names": report.names, "unordered_names": report.unordered,
        });
        writeln!(out, "{}", serde_json::to_string_pretty(&all).unwrap_or_default())
    } else {
        let names = match args.scramble {
            true => format!(", {} names replaced", report.names),
            false => String::new(),
        };
        writeln!(out, "{shown}: {} of metadata in {} blocks{names}", human(report.bytes), report.blocks)
    };
    session.finish(printed.and_then(|()| out.flush()))
}
