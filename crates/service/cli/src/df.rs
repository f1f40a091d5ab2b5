//! `extant df`: space and inodes of file systems.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use extant::{FileSystem, StatFs};
use extant_ondisk::features::Features;
use serde_json::{Value, json};

use crate::look::print::{JsonList, short_size};
use crate::look::{OpenArgs, Session, output};
use crate::sandbox::Needs;

const EXAMPLES: &str = "\
Blocks are counted as the kernel does for a mounted file system: those of the file system itself are in no column, and \
those reserved for root are not available.

Examples:
  extant df -h root.img 'disk.img#2'
  extant df -i root.img
  extant df --json root.img | jq '.[0].available_bytes'";

/// Show how full file systems are, in blocks of 1 KiB.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(crate) struct DfArgs {
    /// The images: IMG, IMG@OFFSET, IMG#PARTITION.
    #[arg(required = true, value_name = "IMG")]
    images: Vec<OsString>,
    /// Sizes for people: 1.5K, 234M, 2.0G.
    #[arg(short = 'h', long, visible_alias = "human-readable")]
    human: bool,
    /// The type too: ext2, ext3 or ext4, as blkid(8) names it.
    #[arg(short = 'T', long)]
    print_type: bool,
    /// Inodes instead of blocks.
    #[arg(short, long)]
    inodes: bool,
    /// Print a JSON list, with bytes and inodes.
    #[arg(long)]
    json: bool,
    /// Print help.
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    open: OpenArgs,
}

pub(crate) fn run(args: &DfArgs) -> ExitCode {
    let mut session = Session::new(&args.open);
    session.confine(&args.images, &Needs::default());
    let mut found = Vec::new();
    for target in session.targets(&args.images, extant::Follow::Links) {
        match target.fs.volume().statfs() {
            Ok(space) => found.push((target.image.clone(), target.fs, space)),
            Err(fault) => session.fault(&target.image, &fault),
        }
    }
    let printed = if args.json { print_json(&found) } else { print_table(args, &found) };
    session.finish(printed)
}

/// Returns the used amount, and used as a percentage of used plus available, rounded up as df does.
fn shares(all: u64, free: u64, available: u64) -> (u64, String) {
    let used = all.saturating_sub(free);
    let whole = u128::from(used) + u128::from(available);
    let percent = match whole {
        0 => "-".to_owned(),
        _ => format!("{}%", (u128::from(used) * 100).div_ceil(whole)),
    };
    (used, percent)
}

/// The type of a file system, by its features: ext4 has one that ext3 has not, and ext3 a journal.
fn type_name(features: &Features) -> &'static str {
    let incompat = Features::FILETYPE | Features::RECOVER | Features::META_BG;
    let ro_compat = Features::SPARSE_SUPER | Features::LARGE_FILE | Features::BTREE_DIR;
    let is_old = features.incompat & !incompat == 0 && features.ro_compat & !ro_compat == 0;
    match (is_old, features.has_compat(Features::HAS_JOURNAL)) {
        (true, true) => "ext3",
        (true, false) => "ext2",
        (false, _) => "ext4",
    }
}

fn print_table(args: &DfArgs, found: &[(String, FileSystem, StatFs)]) -> io::Result<()> {
    let heading = match (args.inodes, args.human) {
        (true, _) => ["Image", "Inodes", "IUsed", "IFree", "IUse%"],
        (false, true) => ["Image", "Size", "Used", "Avail", "Use%"],
        (false, false) => ["Image", "1K-blocks", "Used", "Available", "Use%"],
    };
    if found.is_empty() {
        return Ok(()); // the reason was reported already
    }
    let mut rows = vec![heading.map(str::to_owned)];
    let mut types = vec!["Type"];
    for (image, fs, space) in found {
        let image = crate::inspect::format::escape(image.as_bytes());
        types.push(type_name(&fs.volume().superblock().features));
        if args.inodes {
            let free = u64::from(space.inodes_free);
            let (used, percent) = shares(space.inodes.into(), free, free);
            rows.push([image, space.inodes.to_string(), used.to_string(), free.to_string(), percent]);
        } else {
            let (used, percent) = shares(space.blocks, space.blocks_free, space.blocks_available);
            let show = |blocks: u64| {
                let bytes = blocks.saturating_mul(space.block_size.into());
                if args.human { short_size(bytes) } else { bytes.div_ceil(1024).to_string() }
            };
            rows.push([image, show(space.blocks), show(used), show(space.blocks_available), percent]);
        }
    }
    let widths: [usize; 5] =
        std::array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
    let mut out = output();
    for ([image, all, used, available, percent], kind) in rows.iter().zip(types) {
        let [w0, w1, w2, w3, w4] = widths;
        let kind = if args.print_type { format!("{kind:<4} ") } else { String::new() };
        writeln!(out, "{image:<w0$} {kind}{all:>w1$} {used:>w2$} {available:>w3$} {percent:>w4$}")?;
    }
    out.flush()
}

fn print_json(found: &[(String, FileSystem, StatFs)]) -> io::Result<()> {
    let mut out = output();
    let mut list = JsonList::new(&mut out, "df:1");
    for (image, fs, space) in found {
        let bytes = |blocks: u64| -> Value { blocks.saturating_mul(space.block_size.into()).into() };
        let (used, _) = shares(space.blocks, space.blocks_free, space.blocks_available);
        list.item(&json!({
            "image": image,
            "block_size": space.block_size,
            "size_bytes": bytes(space.blocks),
            "used_bytes": bytes(used),
            "free_bytes": bytes(space.blocks_free),
            "available_bytes": bytes(space.blocks_available),
            "inodes": space.inodes,
            "inodes_used": space.inodes.saturating_sub(space.inodes_free),
            "inodes_free": space.inodes_free,
            "name_max": space.name_max,
            "uuid": extant_ondisk::superblock::uuid_text(&fs.volume().superblock().uuid),
            "type": type_name(&fs.volume().superblock().features),
        }))?;
    }
    list.finish()
}
