//! `extant stat`: prints everything in the inode of a file, or how full its file system is.

mod format;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use clap::builder::{OsStringValueParser, TypedValueParser, ValueParser};
use extant::{Attribute, Fault, FileType, Follow, Timestamp};
use serde_json::{Map, Value, json};

use crate::exit;
use crate::inspect::format::{bit_names, escape, hex, iso_time, json_bytes, mode_letters, quote};
use crate::look::print::{JsonList, is_device, kind_words, put_target, stat_json};
use crate::look::{ExistingFile, IMAGES_HELP, OpenArgs, Session, output};
use crate::sandbox::Needs;
use format::{Format, Shown, ShownSystem};

/// Bytes of an attribute's value to show in text.
const VALUE_TEXT_MAX: usize = 256;
/// The line of --terse, as stat(1) has it; an image has no device number.
const TERSE: &str = "%n %s %b %f %u %g 0 %i %h %t %T %X %Y %Z %W %o\n";
/// The line of --terse for a file system.
const TERSE_SYSTEM: &str = "%n %i %l %t %s %S %b %f %a %c %d\n";
/// What is shown of a file system.
const SYSTEM: &str = "\
  File: %n
    ID: %-16i Name length: %-5l Type: %T
Blocks: %b of %S bytes, %f free, %a available
Inodes: %c, %d free
";

const EXAMPLES: &str = "\
Examples:
  extant stat root.img:/bin/su
  extant stat -L root.img:/etc/localtime
  extant stat -c '%a %U:%G %n' 'root.img:/etc/*.conf'
  extant stat -f -c '%a blocks of %S bytes' root.img
  extant stat --json 'root.img:/etc/*.conf' | jq '.[] | select(.uid != 0) | .path'";

/// Show everything about files: type, mode, owner, times to the nanosecond, flags, attributes, extents.
///
/// Owners are numbers: their names are in the image's own /etc/passwd. Times are in UTC.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{IMAGES_HELP}\n\n{EXAMPLES}"))]
pub(crate) struct StatArgs {
    /// The files; the root directory without a path.
    #[arg(required = true, value_name = "IMG[:PATH]")]
    files: Vec<OsString>,
    /// Follow symbolic links.
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Show the file system: blocks and inodes, and how many of them are free; with --json use `extant df`.
    #[arg(short = 'f', long, conflicts_with = "json")]
    file_system: bool,
    /// A line of numbers for each file, in the order of `stat -t`; the device number is 0.
    #[arg(short = 't', long, conflicts_with_all = ["json", "format", "printf"])]
    terse: bool,
    /// Print a line of this format for each file, with the directives of stat(1): `%n %s %a %u:%g %Y`.
    #[arg(short = 'c', long, value_name = "FORMAT", value_parser = parser(Format::lines))]
    #[arg(conflicts_with = "json")]
    format: Option<Format>,
    /// As --format, with the escapes of printf(1), and without a newline of its own.
    #[arg(long, value_name = "FORMAT", value_parser = parser(Format::printf))]
    #[arg(conflicts_with_all = ["json", "format"])]
    printf: Option<Format>,
    /// Print a JSON list.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    open: OpenArgs,
}

pub(crate) fn run(args: &StatArgs) -> ExitCode {
    let mut session = Session::new(&args.open);
    let own = match (args.file_system, args.terse) {
        (true, true) => Some(TERSE_SYSTEM),
        (true, false) => Some(SYSTEM),
        (false, true) => Some(TERSE),
        (false, false) => None,
    };
    let own = own.and_then(|format| Format::printf(format.as_bytes()).ok());
    let format = args.format.as_ref().or(args.printf.as_ref()).or(own.as_ref());
    if let Some(why) = format.and_then(|format| format.refused(args.file_system)) {
        session.problem(exit::USAGE_CODE, why);
        return session.finish(Ok(()));
    }
    session.confine(&args.files, &Needs::default());
    let follow = if args.dereference { Follow::Links } else { Follow::NotTheLast };
    let targets = session.targets(&args.files, follow);
    let mut out = output();
    let printed = match format {
        _ if args.json => print_json(&mut session, &targets, &mut out),
        Some(format) if args.file_system => print_systems(format, &mut session, &targets, &mut out),
        Some(format) => print_format(format, &mut session, &targets, &mut out),
        None => targets.iter().try_for_each(|target| print_text(&mut session, target, &mut out)),
    };
    session.finish(printed.and_then(|()| out.flush()))
}

/// The parser of an option that takes a format.
fn parser(parse: fn(&[u8]) -> Result<Format, String>) -> ValueParser {
    OsStringValueParser::new().try_map(move |text| parse(text.as_bytes())).into()
}

fn print_systems(
    format: &Format,
    session: &mut Session,
    targets: &[ExistingFile],
    out: &mut dyn Write,
) -> io::Result<()> {
    for target in targets {
        match target.fs.volume().statfs() {
            Ok(space) => {
                out.write_all(&format.print(&ShownSystem { space: &space, path: &shown_name(&target.path) }))?
            }
            Err(fault) => session.fault(&target.image, &fault),
        }
    }
    Ok(())
}

/// The bytes of a name, which a script needs. On a terminal they could be an escape sequence.
fn shown_name(name: &[u8]) -> Vec<u8> {
    if io::stdout().is_terminal() { escape(name).into_bytes() } else { name.to_vec() }
}

fn print_format(
    format: &Format,
    session: &mut Session,
    targets: &[ExistingFile],
    out: &mut dyn Write,
) -> io::Result<()> {
    for target in targets {
        let volume = target.fs.volume();
        let stat = volume.attributes().stat(&target.inode);
        let link = match format.wants(b'N') && stat.kind == FileType::Symlink {
            true => match volume.files().read_link(&target.inode) {
                Ok(link) => Some(link),
                Err(fault) => {
                    session.fault(target.shown(), &fault);
                    None
                }
            },
            false => None,
        };
        // A file without a label is usual.
        let label = format
            .wants(b'C')
            .then(|| volume.attributes().xattr(&target.inode, b"security.selinux").ok())
            .flatten();
        let label = label.as_deref().map(|label| label.strip_suffix(b"\0").unwrap_or(label));
        let (path, label) = (shown_name(&target.path), label.map(shown_name));
        let shown = Shown { stat: &stat, path: &path, target: link.as_deref(), context: label.as_deref() };
        out.write_all(&format.print(&shown))?;
    }
    Ok(())
}

/// Data outside the inode's fixed part.
struct Rest {
    attributes: Vec<Attribute>,
    /// The number of extents; `None` if the type of file has no blocks, or they cannot be read.
    extents: Option<u64>,
}

fn rest(session: &mut Session, target: &ExistingFile) -> Rest {
    let volume = target.fs.volume();
    let mut report =
        |what: &str, fault: Fault| session.fault(format_args!("{}: {what}", target.shown()), &fault);
    let attributes = volume.attributes().xattrs(&target.inode).unwrap_or_else(|fault| {
        report("attributes", fault);
        Vec::new()
    });
    let mut extents = 0;
    let has_blocks = matches!(target.inode.kind(), FileType::Regular | FileType::Directory);
    let counted = has_blocks.then(|| {
        volume.files().extents(&target.inode, 0, u64::MAX, &mut |_| {
            extents += 1;
            Some(())
        })
    });
    let extents = match counted {
        None | Some(Err(Fault::Refused(_))) => None,
        Some(Ok(())) => Some(extents),
        Some(Err(fault)) => {
            report("extents", fault);
            None
        }
    };
    Rest { attributes, extents }
}

fn print_json(session: &mut Session, targets: &[ExistingFile], out: &mut dyn Write) -> io::Result<()> {
    let mut list = JsonList::new(out, "stat:1");
    for target in targets {
        let volume = target.fs.volume();
        let rest = rest(session, target);
        let mut map = Map::new();
        map.insert("image".to_owned(), target.image.clone().into());
        map.insert("path".to_owned(), json_bytes(&target.path));
        map.extend(stat_json(&volume.attributes().stat(&target.inode)));
        put_target(&mut map, volume, &target.inode);
        map.insert("extents".to_owned(), rest.extents.map_or(Value::Null, Value::from));
        let attribute = |a: &Attribute| json!({"name": json_bytes(&a.name), "value": json_bytes(&a.value)});
        map.insert("xattrs".to_owned(), rest.attributes.iter().map(attribute).collect());
        list.item(&map.into())?;
    }
    list.finish()
}

fn print_text(session: &mut Session, target: &ExistingFile, out: &mut dyn Write) -> io::Result<()> {
    let volume = target.fs.volume();
    let stat = volume.attributes().stat(&target.inode);
    let rest = rest(session, target);
    let mut name = escape(&target.path);
    if stat.kind == FileType::Symlink {
        match volume.files().read_link(&target.inode) {
            Ok(link) => name = format!("{name} -> {}", escape(&link)),
            Err(fault) => session.fault(target.shown(), &fault),
        }
    }
    writeln!(out, "  File: {name}")?;
    writeln!(
        out,
        "  Size: {:<15} Blocks: {:<10} IO Block: {:<6} {}",
        stat.size,
        stat.blocks_512,
        stat.block_size,
        kind_words(&stat)
    )?;
    write!(out, " Inode: {:<15} Links: {:<11}", stat.ino, stat.links)?;
    if is_device(stat.kind) {
        write!(out, " Device type: {},{}", stat.device.0, stat.device.1)?;
    } else if let Some(extents) = rest.extents {
        write!(out, " Extents: {extents}")?;
    }
    writeln!(out)?;
    writeln!(
        out,
        "Access: ({:04o}/{})  Uid: {:<8} Gid: {:<8} Project: {}",
        stat.mode & 0o7777,
        mode_letters(stat.mode),
        stat.uid,
        stat.gid,
        stat.project
    )?;
    let time = |time: Timestamp| iso_time(time);
    writeln!(out, "Access: {}", time(stat.atime))?;
    writeln!(out, "Modify: {}", time(stat.mtime))?;
    writeln!(out, "Change: {}", time(stat.ctime))?;
    writeln!(out, " Birth: {}", stat.crtime.map_or("-".to_owned(), time))?;
    let flags = match bit_names(stat.flags, extant::flags::NAMES) {
        names if names.is_empty() => "-".to_owned(),
        names => format!("{} ({:#x})", names.join(" "), stat.flags),
    };
    writeln!(out, " Flags: {flags}  Generation: {}", stat.generation)?;
    for attribute in &rest.attributes {
        writeln!(out, " Xattr: {} = {}", escape(&attribute.name), value_text(&attribute.value))?;
    }
    Ok(())
}

/// Quoted text if the value is text, otherwise hex; long values are cut.
fn value_text(value: &[u8]) -> String {
    let shown = &value[..value.len().min(VALUE_TEXT_MAX)];
    let body = shown.strip_suffix(b"\0").unwrap_or(shown);
    let more = if shown.len() < value.len() { format!("... ({} bytes)", value.len()) } else { String::new() };
    let is_text = std::str::from_utf8(body).is_ok_and(|text| !text.chars().any(char::is_control));
    if is_text { format!("{}{more}", quote(shown)) } else { format!("0x{}{more}", hex(shown)) }
}
