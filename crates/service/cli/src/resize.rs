//! `extant resize`: changes the size of a file system, itself or by the server of a mount.
//!
//! Owns: the size's form, messages, progress, exit codes. Does **not** own: the resize (see
//! `extant::resize`), what may grow (see [`ImageArg::open_to_resize`]).

use std::cell::Cell;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use extant::resize::{
    Layout, ResizeFault, ResizeObserver, ResizeOptions, ResizeReport, Size, preview, resize,
};
use extant::{Device, OpenFault, Superblock};
use extant_device::mount_table::mounted_at;
use extant_ondisk::superblock;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use crate::edit::args::JournalArg;
use crate::exit;
use crate::imagearg::{ImageArg, ImageAt, Transfers};
use crate::inspect::format::{count, escape};
use crate::look::{OpenArgs, Session, arg_failure, lock_failure, output};
use crate::manners::draws_progress;
use crate::mount::is_ours;
use crate::schema::tagged;
use crate::sizes::{human, parse_size};
use crate::voice::note;

const HELP: &str = "\
SIZE is the size of the file system: 10G, or +2G and -500M from what it has; max is all of the device, \
partition or file; min is the smallest size.

An image file gets the length of its file system. A partition must be large enough before: its table is not \
changed. Shrinking moves blocks, and inodes after the new end get other numbers; without a journal, groups \
up to the last one with an inode in use stay. The image is locked meanwhile. A journal that waits is \
replayed first.

IMG may also be the directory of a read-write mount of extant: its server changes the size, and requests \
wait meanwhile. Removed files must not be in use. EXT4_IOC_RESIZE_FS does the same.

A power cut or a signal at any moment leaves a sound file system of the old size, the new one, or one \
between; the same command continues. Without a journal (ext2), run e2fsck after a cut.

Exit codes: 0 done; 1 this size is impossible, or the file system is not clean; 5 the size is too small; 7 \
the partition or disk is too small; 8 no ext4 image, or damaged; 10 in use.

Examples:
  extant resize root.img 4G
  extant resize root.img +500M
  extant resize 'disk.img#2' max
  extant resize --dry-run --json root.img 1T | jq .after.inodes";

/// Grow or shrink a file system, also one that is mounted.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct ResizeArgs {
    /// Print what would be done, and change nothing.
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
    /// Print nothing if all goes well.
    #[arg(short, long)]
    quiet: bool,
    /// The image: IMG, IMG@OFFSET, IMG#PARTITION, or the directory of a mount.
    #[arg(value_name = "IMG")]
    image: OsString,
    /// The new size.
    #[arg(value_name = "SIZE|+N|-N|min|max", value_parser = parse, allow_hyphen_values = true)]
    size: Size,
    #[command(flatten)]
    journal: JournalArg,
}

fn parse(text: &str) -> Result<Size, String> {
    match (text, text.as_bytes().first()) {
        ("max", _) => Ok(Size::Max),
        ("min", _) => Ok(Size::Min),
        (_, Some(b'+')) => parse_size(&text[1..]).map(Size::More),
        (_, Some(b'-')) => parse_size(&text[1..]).map(Size::Less),
        _ => parse_size(text).map(Size::Bytes).map_err(|why| format!("{why}; or +N, -N, min, max")),
    }
}

/// A bar on standard error, if that is a terminal; and what has moved, in blocks and inodes.
struct Bar(ProgressBar, Cell<(u64, u64)>);

impl Bar {
    fn new() -> Self {
        let bar = ProgressBar::new(0);
        if draws_progress() {
            let style = ProgressStyle::with_template("{spinner} {prefix} {wide_bar} {percent} %, {elapsed}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        } else {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        Self(bar, Cell::default())
    }
}

impl ResizeObserver for Bar {
    fn progress(&self, what: &'static str, done: u64, of: u64) {
        self.0.set_prefix(what);
        self.0.set_length(of);
        self.0.set_position(done);
    }

    fn moved(&self, blocks: u64, inodes: u64) {
        let (before, inodes_before) = self.1.get();
        self.1.set((before + blocks, inodes_before + inodes));
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

pub(crate) fn run(args: &ResizeArgs) -> ExitCode {
    if Path::new(&args.image).is_dir() {
        return match resized_mount(args) {
            Ok(_) if args.quiet => ExitCode::SUCCESS,
            Ok(text) => crate::voice::print(&text, 0),
            Err((code, why)) => exit::fail(code, &why),
        };
    }
    let mut session = Session::new(&OpenArgs::with_journal(args.journal.journal.clone()));
    let Some(image) = session.whole_image(&args.image, "resized") else { return session.finish(Ok(())) };
    let name = escape(image.to_string().as_bytes());
    match resized(args, &image, &name) {
        Ok(report) => {
            let printed = match (args.json, args.quiet) {
                (true, _) => {
                    let mut out = output();
                    writeln!(out, "{:#}", tagged("resize:1", json_of(args, &name, &report)))
                        .and_then(|()| out.flush())
                }
                (false, true) => Ok(()),
                (false, false) => {
                    let mut out = output();
                    out.write_all(text_of(args, &name, &report).as_bytes()).and_then(|()| out.flush())
                }
            };
            session.finish(printed)
        }
        Err((code, why)) => {
            session.problem(code, why);
            session.finish(Ok(()))
        }
    }
}

/// Resizes the file system that is mounted on a directory: its server does it.
fn resized_mount(args: &ResizeArgs) -> Result<String, (u8, String)> {
    let given = Path::new(&args.image);
    let shown = given.display();
    let failed = |why: io::Error| (exit::TARGET, format!("{shown}: {why}"));
    let dir = given.canonicalize().map_err(failed)?;
    let entry = mounted_at(&dir).map_err(failed)?;
    let Some(entry) = entry.filter(|_| is_ours(&dir)) else {
        return Err((
            exit::TARGET,
            format!("{shown} is a directory, and not a mount of extant; name an image, or a mount of one"),
        ));
    };
    if args.dry_run {
        let why = format!("{shown}: --dry-run plans on an image that is not mounted");
        return Err((exit::USAGE_CODE, why));
    }
    let image = ImageArg::parse(&entry.source).map_err(arg_failure)?;
    let before = layout_of(&image)?;
    let mounted = rustix::fs::statvfs(&dir).map_err(|why| failed(why.into()))?;
    if (mounted.f_frsize, mounted.f_files) != (before.block_size.into(), before.inodes.into()) {
        let why = format!("{shown}: {image} is not the image that is mounted there; give the size with IMG");
        return Err((exit::SOURCE, why));
    }
    let bytes = match args.size {
        Size::Bytes(bytes) => bytes,
        Size::More(bytes) => before.bytes().saturating_add(bytes),
        Size::Less(bytes) => before.bytes().saturating_sub(bytes),
        Size::Max | Size::Min => {
            let why = format!("{shown}: a mount needs a size, or +N or -N; min and max are for images");
            return Err((exit::USAGE_CODE, why));
        }
    };
    let root = std::fs::File::open(&dir).map_err(failed)?;
    extant_device::resize_file_system(&root, bytes / u64::from(before.block_size)).map_err(|why| {
        let code = match why.raw_os_error() {
            Some(28) => exit::NO_SPACE,
            Some(16) => exit::BUSY,
            _ => exit::TARGET,
        };
        let reason = match why.raw_os_error() {
            Some(16) => "removed files are still in use; close them, and try again".to_owned(),
            Some(28) => "the device cannot be so large, or what is in use does not fit".to_owned(),
            Some(22) => "the size is impossible; the log of the mount has the reason".to_owned(),
            Some(1) => "only root and the user that mounted it may resize it".to_owned(),
            Some(30 | 95) => "it is mounted read-only".to_owned(),
            _ => why.to_string(),
        };
        (code, format!("{shown}: {reason}"))
    })?;
    let after = layout_of(&image)?;
    let steps = u32::from(before.blocks != after.blocks);
    let report = ResizeReport { before, after, steps, moved: 0, moved_inodes: 0, replayed: 0 };
    let name = escape(args.image.as_encoded_bytes());
    Ok(match args.json {
        true => format!("{:#}\n", tagged("resize:1", json_of(args, &name, &report))),
        false => text_of(args, &name, &report),
    })
}

/// The layout of an image that may be mounted.
fn layout_of(image: &ImageArg) -> Result<Layout, (u8, String)> {
    let unreadable = |why: &dyn std::fmt::Display| (exit::SOURCE, format!("{image}: {why}"));
    let device = image.open_while_mounted().map_err(arg_failure)?;
    let mut bytes = [0; superblock::SIZE];
    device.read_at(superblock::OFFSET, &mut bytes).map_err(|why| unreadable(&why))?;
    let sb = Superblock::decode(&bytes).map_err(|why| unreadable(&why))?;
    Layout::of_superblock(&sb).ok_or_else(|| unreadable(&"the superblock makes no sense"))
}

fn resized(args: &ResizeArgs, image: &ImageArg, name: &str) -> Result<ResizeReport, (u8, String)> {
    let failed = |fault: ResizeFault| (code_of(&fault), format!("{name}: {}", message_of(&fault, image)));
    if args.dry_run {
        let (device, is_fixed) = image.open_to_preview().map_err(arg_failure)?;
        return preview(&device, args.size, is_fixed).map_err(failed);
    }
    let mut storage = image.open_to_resize(Transfers::default()).map_err(lock_failure)?;
    let length = storage.device().size_bytes();
    let journal_device = args.journal.journal.as_deref().map(journal).transpose()?;
    let waiting = Arc::new(crate::waiting::say(name.to_owned()));
    let options = ResizeOptions { journal_device, waiting: Some(waiting), ..ResizeOptions::default() };
    let bar = Bar::new();
    let done = resize(&mut *storage, args.size, &options, &bar, &AtomicBool::new(false));
    let moved = bar.1.get();
    drop(bar);
    let report = done.map_err(|fault| {
        let (code, why) = failed(fault);
        (code, why + &moved_before(&*storage.device(), moved))
    })?;
    let is_file = image.at == ImageAt::Whole && image.path.is_file();
    let left = storage.device().size_bytes().saturating_sub(report.after.bytes());
    if is_file && left > 0 && report.before.bytes() < length && report.after.bytes() < report.before.bytes() {
        let left = human(left);
        note!("{name}: {left} after the file system stay: something else may be there");
    }
    Ok(report)
}

/// Opens an external journal.
pub(crate) fn journal(path: &Path) -> Result<Arc<dyn extant::Device>, (u8, String)> {
    let image = ImageArg::parse(path.as_os_str()).map_err(arg_failure)?;
    image.open_locked().map_err(lock_failure).map_err(|(code, why)| (code, format!("the journal: {why}")))
}

fn code_of(fault: &ResizeFault) -> u8 {
    let is_full = |error: &io::Error| error.kind() == io::ErrorKind::StorageFull;
    match fault {
        ResizeFault::DeviceTooSmall { .. } => exit::NO_SPACE,
        ResizeFault::TooSmall { .. } => exit::TOO_SMALL,
        ResizeFault::Length { source, .. } if is_full(source) => exit::NO_SPACE,
        ResizeFault::Device(device) if device.os_error() == Some(28) => exit::NO_SPACE,
        ResizeFault::Open(OpenFault::InUse(_)) => exit::BUSY,
        ResizeFault::Open(OpenFault::Unwritable(_) | OpenFault::Journal(_)) => exit::TARGET,
        ResizeFault::Open(_) | ResizeFault::Damaged(_) => exit::UNREADABLE,
        ResizeFault::Image(error) if error.kind() == io::ErrorKind::ResourceBusy => exit::BUSY,
        ResizeFault::Interrupted => exit::INTERRUPTED,
        _ => exit::TARGET,
    }
}

fn message_of(fault: &ResizeFault, image: &ImageArg) -> String {
    match (fault, &image.at) {
        (ResizeFault::TooSmall { bytes, why, least }, _) => {
            format!(
                "{} is too small: {why}; the smallest size is {} ({least} bytes)",
                human(*bytes),
                human(*least)
            )
        }
        (ResizeFault::DeviceTooSmall { available, needed }, ImageAt::Partition(number)) => {
            let (available, needed) = (human(*available), human(*needed));
            format!(
                "partition {number} has {available}, and this size needs {needed}: enlarge the partition \
                 first, for instance with `sfdisk` or `growpart`"
            )
        }
        _ => fault.to_string(),
    }
}

fn json_of(args: &ResizeArgs, name: &str, report: &ResizeReport) -> Value {
    let layout = |layout: &Layout| {
        json!({
            "bytes": layout.bytes(),
            "blocks": layout.blocks,
            "block_size": layout.block_size,
            "groups": layout.groups,
            "inodes": layout.inodes,
            "free_blocks": layout.free_blocks,
            "free_inodes": layout.free_inodes,
            "reserved_blocks": layout.reserved_blocks,
            "reserved_descriptor_blocks": layout.reserved_descriptors,
            "meta_bg": layout.meta_bg,
        })
    };
    json!({
        "image": name,
        "dry_run": args.dry_run,
        "before": layout(&report.before),
        "after": layout(&report.after),
        "steps": report.steps,
        "moved_blocks": report.moved,
        "moved_inodes": report.moved_inodes,
        "replayed_transactions": report.replayed,
    })
}

fn text_of(args: &ResizeArgs, name: &str, report: &ResizeReport) -> String {
    let (before, after) = (&report.before, &report.after);
    if report.steps == 0 {
        return format!("{name}: has this size already: {}\n", human(after.bytes()));
    }
    let verb = if args.dry_run { "would get" } else { "has" };
    let groups = count(after.groups.into(), "group");
    format!(
        "{name}: {} -> {}\n{name}: {verb} {} blocks of {} bytes, {groups}, {} inodes\n",
        human(before.bytes()),
        human(after.bytes()),
        after.blocks,
        after.block_size,
        after.inodes,
    ) + &moved_of(args, name, report)
}

/// A line with what moved; empty if nothing did.
fn moved_of(args: &ResizeArgs, name: &str, report: &ResizeReport) -> String {
    let what = amount((report.moved, report.moved_inodes), report.after.block_size);
    let verb = if args.dry_run { "would move" } else { "moved" };
    what.map_or_else(String::new, |what| format!("{name}: {what} {verb}\n"))
}

/// What moved before a resize failed, for its message; empty if nothing did.
fn moved_before(device: &dyn Device, moved: (u64, u64)) -> String {
    let mut bytes = [0; superblock::SIZE];
    // A block has at least 1 KiB; the device that fails may not give the superblock.
    let read = device.read_at(superblock::OFFSET, &mut bytes).ok();
    let sb = read.and_then(|()| Superblock::decode(&bytes).ok());
    let layout = sb.as_ref().and_then(Layout::of_superblock);
    let what = amount(moved, layout.map_or(1024, |layout| layout.block_size));
    what.map_or_else(String::new, |what| format!("; {what} have moved and stay so"))
}

/// An amount of blocks and inodes, if it is not zero.
fn amount((blocks, inodes): (u64, u64), block_size: u32) -> Option<String> {
    let blocks = (blocks > 0).then(|| human(blocks * u64::from(block_size)));
    let inodes = (inodes > 0).then(|| count(inodes, "inode"));
    let what: Vec<String> = blocks.into_iter().chain(inodes).collect();
    (!what.is_empty()).then(|| what.join(" and "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_absolute_or_relative() {
        assert_eq!(parse("10G"), Ok(Size::Bytes(10 << 30)));
        assert_eq!(parse("+1M"), Ok(Size::More(1 << 20)));
        assert_eq!(parse("-1M"), Ok(Size::Less(1 << 20)));
        assert_eq!(parse("max"), Ok(Size::Max));
        assert_eq!(parse("min"), Ok(Size::Min));
        for wrong in ["", "+", "-x", "all", "+-1", "10Q"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
