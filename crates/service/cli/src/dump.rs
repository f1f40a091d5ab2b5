//! `extant dump`: the metadata of an image without file contents. `extant restore`: the way back.
//!
//! Owns: arguments, the output file, what is printed. Does **not** own: which blocks are metadata (see the
//! crate `rescue`), the undo file.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use extant::repair::RepairFault;
use extant::rescue::{DumpReport, Rescue, RescueFault, RestoreFault, dump_qcow2, restore};
use extant_device::{DeviceFault, FileDevice, NewFile};
use serde_json::json;

use crate::exit;
use crate::imagearg::ImageArg;
use crate::inspect::format::escape;
use crate::look::{OpenArgs, Session, arg_failure, lock_failure, report_output};
use crate::repair::{TOO_MANY, default_undo, is_cut};
use crate::sandbox::{Needs, confine, directory_of};
use crate::schema::tagged;
use crate::sizes::human;
use crate::voice::note;

const HELP: &str = "\
A dump is an image with holes for all file contents. Programs that look at metadata treat it like the \
image: `extant check`, `extant inspect`, e2fsck, debugfs. A damaged file system can so be attached to a \
bug report. Pack it with zstd, or with tar -S. With --qcow2 it is a file without holes, which extant reads \
too, and `e2image -r` and qemu-img convert; `extant restore` makes the raw form of it.

Without --scramble, names, targets of symbolic links, attributes, and small files that are stored in their \
inodes are in the dump, and blocks of data that are in the journal. --scramble replaces names, targets, \
values and such contents by others, which are computed from positions and lengths; the label becomes \
`extant scrambled`, the last mount point is removed, and the journal's contents are left out: the dump \
shows the metadata as after its replay. ACLs, security attributes, and the hashes of some names in the \
indexes of directories stay.

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
    /// Write the format qcow2, as e2image -Q: a file without holes.
    #[arg(short = 'Q', long)]
    qcow2: bool,
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
            let report = match args.qcow2 {
                true => dump_qcow2(&rescue, new.file(), args.scramble, &())?,
                false => dump_raw(&rescue, new.file(), args.scramble)?,
            };
            new.publish(args.force, false).map_err(|error| RescueFault::Output(shown.to_string(), error))?;
            Ok(report)
        });
    let report = match dumped {
        Ok(report) => report,
        Err(why) => {
            session.problem(code_of(&why), why);
            return session.finish(Ok(()));
        }
    };
    if report.unordered > 0 {
        note!(
            "{name}: {} names have no replacement that fits the directory's index; the dump's \
             directories need e2fsck -fD",
            report.unordered
        );
    }
    let mut out = report_output(args.json);
    let printed = if args.json {
        let all = json!({
            "image": name, "output": shown.to_string(), "blocks": report.blocks, "bytes": report.bytes,
            "format": if args.qcow2 { "qcow2" } else { "raw" },
            "scrambled_names": report.names, "unordered_names": report.unordered,
        });
        writeln!(out, "{}", serde_json::to_string_pretty(&tagged("dump:1", all)).unwrap_or_default())
    } else {
        let names = match args.scramble {
            true => format!(", {} names replaced", report.names),
            false => String::new(),
        };
        writeln!(out, "{shown}: {} of metadata in {} blocks{names}", human(report.bytes), report.blocks)
    };
    session.finish(printed.and_then(|()| out.flush()))
}

fn code_of(why: &RescueFault) -> u8 {
    let (RescueFault::Output(_, error) | RescueFault::Written(DeviceFault::Io { source: error, .. })) = why
    else {
        return exit::TARGET;
    };
    if error.kind() == io::ErrorKind::StorageFull { exit::NO_SPACE } else { exit::TARGET }
}

/// A dump in an empty file of the file system's size with holes.
fn dump_raw(rescue: &Rescue, file: &File, scramble: bool) -> Result<DumpReport, RescueFault> {
    let failed = |why| RescueFault::Output("dump".to_owned(), why);
    file.set_len(rescue.size_bytes()).map_err(failed)?;
    let output = FileDevice::fresh(file.try_clone().map_err(failed)?).map_err(failed)?;
    rescue.dump(&output, scramble, &())
}

const RESTORE_HELP: &str = "\
The file system is then as it was when the dump was made, the contents of files excepted: they stay as \
they are. Files that were written or deleted after the dump may have wrong contents, so restore only what \
cannot be repaired (`extant check --repair`). The bytes that are overwritten are in an undo file: IMG.undo, \
unless --undo names another file; `extant undo` takes the restore back. If IMG does not exist, it becomes a \
raw dump: metadata, and holes for the contents.

Examples:
  extant restore before.dump disk.img
  extant restore 'before.qcow2' 'disk.img#2'
  extant restore dump.qcow2 dump.raw           the raw form of a dump, for programs that need it";

/// Write the metadata of a dump back into its image.
#[derive(Debug, clap::Args)]
#[command(after_help = RESTORE_HELP)]
pub(crate) struct RestoreArgs {
    /// The dump, raw or qcow2.
    #[arg(value_name = "DUMP")]
    dump: OsString,
    /// The image: IMG, IMG@OFFSET, IMG#PARTITION; or a new file.
    #[arg(value_name = "IMG")]
    image: OsString,
    /// The undo file; `none` for none.
    #[arg(long, value_name = "FILE")]
    undo: Option<PathBuf>,
    /// Print what would change, and write nothing.
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Also over another file system.
    #[arg(short, long)]
    force: bool,
    /// Use the backup superblock in this block of the dump.
    #[arg(short, long, value_name = "BLOCK")]
    backup: Option<u64>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run_restore(args: &RestoreArgs) -> ExitCode {
    match restored(args) {
        Ok(_) if crate::manners::is_quiet() && !args.json => ExitCode::SUCCESS,
        Ok(text) => crate::voice::print(&text, 0),
        Err((code, why)) => exit::fail(code, &why),
    }
}

/// A code and its message.
type Refused = (u8, String);

fn restored(args: &RestoreArgs) -> Result<String, Refused> {
    let arg = ImageArg::parse_whole(&args.dump, "restored").map_err(arg_failure)?;
    let name = escape(arg.to_string().as_bytes());
    let device = arg.open_read_only().map_err(arg_failure)?;
    let open = |writes: Option<PathBuf>| {
        let writes = writes.into_iter().collect();
        let needs = Needs { writes, keeps_capabilities: true, ..Needs::default() };
        confine(&name, &needs);
        let opened = Rescue::open(device, args.backup);
        opened.map_err(|why| (exit::UNREADABLE, format!("{name}: {}", crate::rescue::text_of(&why))))
    };
    let target = Path::new(&args.image);
    if target.parent().is_some_and(|dir| dir == Path::new("") || dir.is_dir())
        && !target.exists()
        && ImageArg::parse(&args.image).is_err()
    {
        return to_new_file(args, &open(Some(directory_of(target)))?, target);
    }
    let image = ImageArg::parse_whole(&args.image, "restored").map_err(arg_failure)?;
    let shown = escape(image.to_string().as_bytes());
    let device_of_image = match args.dry_run {
        true => image.open_read_only().map_err(arg_failure)?,
        false => image.open_locked().map_err(lock_failure)?,
    };
    let undo = match &args.undo {
        Some(path) if path.as_os_str() == "none" => None,
        Some(path) => Some(path.clone()),
        None => Some(default_undo(&image).ok_or((exit::TARGET, TOO_MANY.to_owned()))?),
    };
    if let Some(undo) = undo.as_ref().filter(|undo| undo.exists() && !args.dry_run) {
        let remedy = match is_cut(undo) {
            true => {
                format!("an earlier change was cut; `extant undo {shown} {}` takes it back", undo.display())
            }
            false => "it may be needed to undo an earlier change: choose another name".to_owned(),
        };
        return Err((exit::EXISTS, format!("{}: it exists; {remedy}", undo.display())));
    }
    let dump = open(undo.as_deref().filter(|_| !args.dry_run).map(directory_of))?;
    let planned = restore(&dump, Arc::clone(&device_of_image), args.force).map_err(|why| {
        let (code, remedy) = match &why {
            RestoreFault::Scrambled => (exit::SOURCE, "; use a dump without --scramble"),
            RestoreFault::Other { .. } | RestoreFault::Foreign(_) => {
                (exit::TARGET, "; --force overwrites it all the same")
            }
            RestoreFault::Image(RepairFault::InUse) => (exit::BUSY, ""),
            RestoreFault::Small { .. } => (exit::TARGET, "; make the file longer first"),
            RestoreFault::Dump(_) => (exit::SOURCE, ""),
            RestoreFault::Image(_) => (exit::TARGET, ""),
        };
        (code, format!("{shown}: {name}: {why}{remedy}"))
    })?;
    if !args.dry_run {
        let written = planned.write(&*device_of_image, undo.as_deref());
        written.map_err(|why| {
            let code = if matches!(why, RepairFault::InUse) { exit::BUSY } else { exit::TARGET };
            let remedy = crate::repair::remedy_of_loss(&why, &shown, undo.as_deref());
            (code, format!("{shown}: {why}{remedy}"))
        })?;
    }
    let bytes = planned.plan().changed_bytes;
    let undo = undo.filter(|_| !args.dry_run && !planned.is_empty());
    Ok(report(args, &shown, bytes, undo.as_deref()))
}

/// Makes a raw dump.
fn to_new_file(args: &RestoreArgs, dump: &Rescue, target: &Path) -> Result<String, Refused> {
    let shown = target.display();
    let failed = |why: io::Error| (exit::TARGET, format!("{shown}: {why}"));
    let new = NewFile::create(target).map_err(failed)?;
    let made = dump_raw(dump, new.file(), false);
    let bytes = made.map_err(|why| (code_of(&why), format!("{shown}: {why}")))?.bytes;
    // Without a name, the file goes when it is closed.
    if !args.dry_run {
        new.publish(false, false).map_err(failed)?;
    }
    Ok(report(args, &shown.to_string(), bytes, None))
}

/// What a restore prints.
fn report(args: &RestoreArgs, shown: &str, bytes: u64, undo: Option<&Path>) -> String {
    if args.json {
        let undo = undo.map(|path| path.display().to_string());
        let all = json!({ "image": shown, "written": !args.dry_run, "changed_bytes": bytes, "undo": undo });
        return format!("{:#}\n", tagged("restore:1", all));
    }
    let what = if args.dry_run { "would be written" } else { "written" };
    let mut text = match bytes {
        0 => format!("{shown}: nothing differs from the dump\n"),
        _ => format!("{shown}: {} of metadata {what}\n", human(bytes)),
    };
    if let Some(undo) = undo {
        text += &format!("{shown}: `extant undo {shown} {}` takes it back\n", undo.display());
    }
    text
}
