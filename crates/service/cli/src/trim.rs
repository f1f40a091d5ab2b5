//! `extant trim`: returns the space of free blocks to the host of an image.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use serde_json::json;

use crate::edit::args::JournalArg;
use crate::edit::staged::HoldPolicy;
use crate::exit;
use crate::inspect::format::escape;
use crate::look::print::JsonList;
use crate::look::{OpenArgs, Session, report_output};
use crate::sizes::{human, parse_size};

const HELP: &str = "\
Free blocks become holes of an image file, and are discarded on a block device. A journal that waits is replayed first. The image is \
locked meanwhile, and must not be mounted; a mount gives back what is freed by itself, with -o rw,discard.

Examples:
  extant trim root.img
  extant trim --minimum 1M 'disk.img#2' other.img
  extant trim --json root.img | jq '.[0].trimmed_bytes'";

/// Give the room of free blocks back: holes in an image file, discards on a block device.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct TrimArgs {
    /// Leave free runs that are shorter than this.
    #[arg(short, long, value_name = "SIZE", default_value = "0", value_parser = parse_size)]
    minimum: u64,
    /// Print a JSON list.
    #[arg(long)]
    json: bool,
    /// The images: IMG, IMG@OFFSET, IMG#PARTITION.
    #[arg(required = true, value_name = "IMG")]
    images: Vec<OsString>,
    #[command(flatten)]
    journal: JournalArg,
}

pub(crate) fn run(args: &TrimArgs) -> ExitCode {
    // Held-back writes would take up the space to be freed.
    let mut session =
        Session::writing(&OpenArgs::with_journal(args.journal.journal.clone()), HoldPolicy::Nothing);
    let mut done = Vec::new();
    for image in &args.images {
        let Some(image) = session.whole_image(image, "trimmed") else { continue };
        let Some(fs) = session.open(&image) else { continue };
        let name = escape(image.to_string().as_bytes());
        match fs.trim(args.minimum) {
            Ok(Some(bytes)) => done.push((name, bytes)),
            Ok(None) => {
                let why = "the file system or device of the image supports neither holes nor discards";
                session.problem(exit::TARGET, format_args!("{name}: {why}"));
            }
            Err(error) => session.problem(exit::TARGET, format_args!("{name}: {error}")),
        }
    }
    let mut out = report_output(args.json);
    let printed = if args.json {
        let mut list = JsonList::new(&mut out, "trim:1");
        let mut items = done.iter().map(
            |(image, bytes)| json!({ "image": image, "trimmed_bytes": bytes, "minimum_bytes": args.minimum }),
        );
        items.try_for_each(|item| list.item(&item)).and_then(|()| list.finish())
    } else {
        let mut lines = done.iter();
        lines
            .try_for_each(|(image, bytes)| {
                writeln!(out, "{image}: {} ({bytes} bytes) trimmed", human(*bytes))
            })
            .and_then(|()| out.flush())
    };
    session.finish(printed)
}
