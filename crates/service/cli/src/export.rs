//! `extant export`: writes a tree of an image with all its metadata into a tar archive or a directory.

pub(crate) mod compress;
mod tar;

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use extant::{FileType, Follow};
use extant_image::source::pretend::pretender;

use crate::exit;
use crate::look::host::{Choices, CopyTo, Existing, Host, open_named_dir};
use crate::look::leave_out::LeaveOut;
use crate::look::progress::Progress;
use crate::look::{ExistingFile, IMAGES_HELP, OpenArgs, Session};
use crate::sandbox::{Needs, directory_of};

const EXAMPLES: &str = "\
An archive is in POSIX pax format and holds names of any bytes, owners as numbers, times with nanoseconds, attributes, ACLs, \
hard links, devices and holes; GNU tar and bsdtar extract all of it (tar -x --xattrs --xattrs-include='*' --acls), and \
`extant build --tar` makes an image of it again. Sockets have no place in archives. An archive in a file appears under its \
name when it is complete.

Into a directory everything goes that this user may set: owners and devices need root.

Examples:
  extant export root.img --tar root.tar
  extant export root.img --tar root.tar.zst
  extant export untrusted.img --tar out.tar --no-devices --no-setid --no-xattrs='security.*'
  extant export 'disk.img#2:/var/log' --tar - | ssh host tar -x -C logs
  sudo extant export root.img --dir rootfs/";

/// Write a tree of an image into a tar archive or a directory, metadata whole.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{IMAGES_HELP}\n\n{EXAMPLES}"))]
#[command(group(clap::ArgGroup::new("to").required(true).args(["tar", "dir"])))]
pub(crate) struct ExportArgs {
    /// What to export; everything without a path.
    #[arg(value_name = "IMG[:PATH]")]
    source: OsString,
    /// Write an archive; - for standard output. Compressed as its name says: .gz, .zst, .xz.
    #[arg(long, value_name = "FILE")]
    tar: Option<PathBuf>,
    /// Fill a directory, which is made if it does not exist, and otherwise must be empty.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Replace an existing archive; fill a directory that is not empty, where names that are there are
    /// replaced.
    #[arg(short, long)]
    force: bool,
    /// Times in the archive: of the last change of content only, or also of access and of the last change of
    /// the inode, or birth as well (which GNU tar does not know and warns about).
    #[arg(long, value_name = "WHICH", default_value = "all", value_parser = ["mtime", "all", "birth"])]
    times: String,
    /// Write holes as zeros.
    #[arg(long)]
    no_sparse: bool,
    #[command(flatten)]
    leave_out: LeaveOut,
    #[command(flatten)]
    open: OpenArgs,
}

pub(crate) fn run(args: &ExportArgs) -> ExitCode {
    let mut session = Session::new(&args.open);
    let writes = match (&args.tar, &args.dir) {
        (Some(file), _) if file.as_os_str() != "-" => vec![directory_of(file)],
        (_, Some(dir)) if dir.exists() => vec![dir.clone()],
        (_, Some(dir)) => vec![directory_of(dir)],
        _ => Vec::new(),
    };
    let needs = Needs { writes, keeps_capabilities: true, ..Needs::default() };
    session.confine(std::slice::from_ref(&args.source), &needs);
    let targets = session.targets(std::slice::from_ref(&args.source), Follow::NotTheLast);
    let [target] = &targets[..] else {
        if targets.len() > 1 {
            session.problem(
                exit::USAGE_CODE,
                "a pattern that matches several paths cannot be exported: name one directory",
            );
        }
        return session.finish(Ok(()));
    };
    match (&args.tar, &args.dir) {
        (Some(file), _) => {
            let printed = tar::export(args, &mut session, target, file);
            session.finish(printed)
        }
        (None, Some(dir)) => {
            to_dir(args, &mut session, target, dir);
            session.finish(Ok(()))
        }
        (None, None) => exit::USAGE_CODE.into(),
    }
}

fn to_dir(args: &ExportArgs, session: &mut Session, target: &ExistingFile, dir: &Path) {
    let refused = |session: &mut Session, error: std::io::Error| {
        session.problem(exit::TARGET, format_args!("{}: {error}", dir.display()));
    };
    if let Err(unseen) = pretender() {
        return session.problem(exit::TARGET, format_args!("{}: {unseen}", dir.display()));
    }
    if let Err(error) = std::fs::create_dir(dir) {
        let is_empty = || Ok(std::fs::read_dir(dir)?.next().is_none());
        match is_empty() {
            _ if error.kind() != ErrorKind::AlreadyExists => return refused(session, error),
            Err(error) => return refused(session, error),
            Ok(false) if !args.force => {
                let why = "is not empty; give another one, or --force to replace what has the same names";
                return session.problem(exit::EXISTS, format_args!("{}: {why}", dir.display()));
            }
            Ok(_) => {}
        }
    }
    let fd = match open_named_dir(dir) {
        Ok(fd) => fd,
        Err(error) => return refused(session, error),
    };
    let choices = Choices {
        metadata: true,
        sparse: !args.no_sparse,
        existing: if args.force { Existing::Replace } else { Existing::Refuse },
        list: false,
    };
    let host = Host::new(choices, Progress::new("exporting")).leaving_out(&args.leave_out);
    let place = match target.inode.kind() {
        FileType::Directory => CopyTo::Into(fd),
        _ => CopyTo::Name(fd, target.name().to_vec()),
    };
    host.copy(session, target, place, dir.as_os_str().as_encoded_bytes());
    host.finish(session);
}
