//! `extant diff`: compares two trees, each in an image, a directory or an archive, and writes the difference
//! as a layer.
//!
//! Owns: which kind of side an argument is, messages, exit codes. Does **not** own: comparing and the members
//! of a layer (see `extant::diff`), what is printed (see [`mod@print`]).

mod print;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use extant::Follow;
use extant::build::{BuildFault, BuildOptions, Source, TarInput};
use extant::diff::layer::{LayerFault, LayerReport, write_layer};
use extant::diff::{Cause, Diff, DiffObserver, DiffOptions, Ignore, Side, Which, compare};
use extant_device::NewFile;
use extant_ondisk::superblock;

use crate::exit;
use crate::export::compress::{self, Compression, Output};
use crate::imagearg::{ImageArg, ImageAt};
use crate::inspect::format::{count, escape};
use crate::look::progress::Progress;
use crate::look::{IMAGES_HELP, OpenArgs, Session, code_of, is_special, output, shown};
use crate::sandbox::{Needs, directory_of};
use crate::voice::{note, say};

/// How many files that cannot be read a message lists at most.
const PROBLEMS_SHOWN: usize = 50;
/// The sides differ.
const DIFFERENT: u8 = 1;

const EXAMPLES: &str = "\
A side is an image (IMG, IMG@OFFSET, IMG#N, and a directory of it after a colon), a directory, or a tar \
archive, also compressed; - is an archive on standard input.

Compared are names, types, permissions, owners, times of the last change, hard links, targets, device \
numbers, attributes (and so ACLs), sizes and bytes. The letters are A for added, D for deleted, M for \
modified, T for another type.

Exit codes: 0 if the sides are equal, 1 if they differ; 1 also if the layer cannot be written.

Examples:
  extant diff old.img new.img
  extant diff root.img rootfs/ --ignore owners,times
  extant diff 'disk.img#2:/etc' etc.tar.gz
  extant diff old.img new.img --layer changes.tar.gz
  extant diff --json old.img new.img | jq -r '.changes[].path'";

/// Compare two trees, each in an image, a directory or an archive.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{IMAGES_HELP}\n\n{EXAMPLES}"))]
pub(crate) struct DiffArgs {
    /// The first side.
    #[arg(value_name = "A")]
    a: OsString,
    /// The second side.
    #[arg(value_name = "B")]
    b: OsString,
    /// Differences that do not count, separated by commas.
    #[arg(long, value_name = "WHAT", value_delimiter = ',', value_enum)]
    ignore: Vec<Ignored>,
    /// Files differ also if their holes are at other places.
    #[arg(long)]
    holes: bool,
    /// Write the layer of a container image that makes B of A; compressed as its name says: .gz, .zst, .xz.
    /// - for standard output.
    #[arg(long, value_name = "FILE")]
    layer: Option<PathBuf>,
    /// Replace an existing layer.
    #[arg(short, long)]
    force: bool,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
    /// Print nothing; the exit code is the answer.
    #[arg(short, long)]
    quiet: bool,
    /// Number of threads; default: the number of CPUs, at most 8.
    #[arg(short = 'j', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    #[command(flatten)]
    open: OpenArgs,
}

/// A kind of difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Ignored {
    /// Times of the last change of the content
    Times,
    /// Fractions of seconds of these times
    Nanoseconds,
    /// Owners and groups
    Owners,
    /// Permissions
    Modes,
    /// Which names are hard links of one file
    Links,
    /// Extended attributes and ACLs
    Xattrs,
}

/// What kind of side an argument is.
enum Kind {
    Image,
    Dir(PathBuf),
    Tar(TarInput),
}

impl Kind {
    /// A directory or an archive is one by its contents; everything else is treated as an image.
    fn of(arg: &OsStr) -> Self {
        let path = Path::new(arg);
        if arg == "-" {
            return Self::Tar(TarInput::Stdin);
        }
        if path.is_dir() {
            return Self::Dir(path.to_owned());
        }
        match ImageArg::parse(arg) {
            Ok(ImageArg { path, at: ImageAt::Whole, inner_path: None }) if is_archive(&path) => {
                Self::Tar(TarInput::Path(path))
            }
            _ => Self::Image,
        }
    }
}

/// Whether a file looks like an archive, and not like an image.
fn is_archive(path: &Path) -> bool {
    let name = path.as_os_str().as_encoded_bytes().to_ascii_lowercase();
    let has_name = [".tar", ".tgz", ".tzst", ".txz", ".tbz2"]
        .iter()
        .any(|end| name.ends_with(end.as_bytes()))
        || [".tar.gz", ".tar.zst", ".tar.xz", ".tar.bz2"].iter().any(|end| name.ends_with(end.as_bytes()));
    if is_special(path) {
        // A pipe can be read once. A block device may hold an image.
        use std::os::unix::fs::FileTypeExt;
        return !std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device());
    }
    let Ok(file) = File::open(path) else { return has_name };
    let mut start = [0; 2048];
    let mut len = 0;
    while len < start.len() {
        match file.read_at(&mut start[len..], len as u64) {
            Ok(got) if got > 0 => len += got,
            _ => break,
        }
    }
    let magic_at = superblock::OFFSET as usize + 0x38;
    if start[magic_at..magic_at + 2] == superblock::MAGIC.to_le_bytes() {
        return false;
    }
    let known: [(usize, &[u8]); 5] =
        [(257, b"ustar"), (0, b"\x1f\x8b"), (0, b"\x28\xb5\x2f\xfd"), (0, b"\xfd7zXZ\0"), (0, b"BZh")];
    has_name || known.iter().any(|(at, magic)| start[*at..].starts_with(magic))
}

impl DiffObserver for Progress {
    fn names(&self, count: u64) {
        self.files(count);
    }

    fn bytes(&self, len: u64) {
        Self::bytes(self, len);
    }
}

pub(crate) fn run(args: &DiffArgs) -> ExitCode {
    let mut session = Session::new(&args.open);
    let kinds = [Kind::of(&args.a), Kind::of(&args.b)];
    if args.a == "-" && args.b == "-" {
        session.problem(exit::USAGE_CODE, "standard input can be one side only; name a file for the other");
        return session.finish(Ok(()));
    }
    let compression = match check_layer(args) {
        Ok(compression) => compression,
        Err((code, why)) => {
            session.problem(code, why);
            return session.finish(Ok(()));
        }
    };
    confine(args, &mut session, &kinds);
    let cancel = AtomicBool::new(false);
    let threads = args.threads.map_or(DiffOptions::default().threads, usize::from);
    let [kind_a, kind_b] = kinds;
    let progress = Progress::new("reading");
    let a = side(&mut session, &args.a, kind_a, threads, &progress);
    let b = side(&mut session, &args.b, kind_b, threads, &progress);
    drop(progress);
    let (Some(a), Some(b)) = (a, b) else { return session.finish(Ok(())) };
    let options = DiffOptions { ignore: ignore(&args.ignore), holes: args.holes, threads };
    let diff = compare(&a, &b, &options, &Progress::new("comparing"), &cancel);
    for problem in &diff.problems {
        report(args, &mut session, problem.side, &problem.path, &problem.cause);
    }
    let layer = match &args.layer {
        Some(file) => write(args, &mut session, file, compression, &diff, &b),
        None => None,
    };
    let mut out = output();
    let printed = match (args.json, args.quiet || is_stdout(args.layer.as_deref())) {
        (true, _) => print::json(args, &diff, layer.as_ref(), &mut out),
        (false, true) => Ok(()),
        (false, false) => print::text(&diff, &mut out),
    };
    session.finish_with(printed, if diff.is_empty() { 0 } else { DIFFERENT })
}

fn ignore(ignored: &[Ignored]) -> Ignore {
    let has = |what| ignored.contains(&what);
    Ignore {
        times: has(Ignored::Times),
        nanoseconds: has(Ignored::Nanoseconds),
        owners: has(Ignored::Owners),
        modes: has(Ignored::Modes),
        links: has(Ignored::Links),
        xattrs: has(Ignored::Xattrs),
    }
}

fn is_stdout(layer: Option<&Path>) -> bool {
    layer.is_some_and(|file| file.as_os_str() == "-")
}

/// Refuses a layer that cannot be written, before the comparison. Returns its compression.
fn check_layer(args: &DiffArgs) -> Result<Compression, (u8, String)> {
    let Some(file) = &args.layer else { return Ok(Compression::None) };
    if is_stdout(Some(file)) {
        if args.json {
            let why = "--json and --layer - would both write to standard output; give the layer a file";
            return Err((exit::USAGE_CODE, why.to_owned()));
        }
        if io::stdout().is_terminal() {
            let why = "a layer makes no sense on a terminal; pipe it to a program, or give a file";
            return Err((exit::USAGE_CODE, why.to_owned()));
        }
        return Ok(Compression::None);
    }
    let shown = file.display();
    let compression = compress::by_name(file).map_err(|program| {
        let why = format!(
            "{shown}: this compression is not written here; --layer - | {program} > {shown} makes it"
        );
        (exit::USAGE_CODE, why)
    })?;
    if !args.force && !is_special(file) && file.symlink_metadata().is_ok() {
        return Err((exit::EXISTS, format!("{shown} exists already; use --force to replace it")));
    }
    Ok(compression)
}

/// Opens the images and confines the process.
fn confine(args: &DiffArgs, session: &mut Session, kinds: &[Kind; 2]) {
    let images: Vec<OsString> = [&args.a, &args.b]
        .into_iter()
        .zip(kinds)
        .filter(|(_, kind)| matches!(kind, Kind::Image))
        .map(|(arg, _)| arg.clone())
        .collect();
    let reads_everywhere = images.len() < 2;
    let mut writes = Vec::new();
    if kinds.iter().any(|kind| matches!(kind, Kind::Tar(_))) {
        writes.push(std::env::temp_dir());
    }
    if let Some(file) = args.layer.as_deref().filter(|file| !is_stdout(Some(file))) {
        writes.push(directory_of(file));
    }
    // Directories may be readable for root only, and a replaced layer keeps its owner.
    let keeps_capabilities = reads_everywhere || args.layer.is_some();
    session.confine(&images, &Needs { writes, reads_everywhere, keeps_capabilities, ..Needs::default() });
}

/// Opens one side. `None` after reporting a problem.
fn side(
    session: &mut Session,
    arg: &OsString,
    kind: Kind,
    threads: usize,
    progress: &Progress,
) -> Option<Side> {
    let source = match kind {
        Kind::Image => return image(session, arg),
        Kind::Dir(path) => Source::Dir(path),
        Kind::Tar(input) => Source::Tar(input),
    };
    let options = BuildOptions { threads, ..BuildOptions::default() };
    let spool_dir = std::env::temp_dir();
    let read = |entries| progress.files(entries);
    match Side::sources(&options, vec![source], &spool_dir, &AtomicBool::new(false), &read) {
        Ok(side) => {
            for warning in side.warnings() {
                say!("warning: {warning}");
            }
            let problems: Vec<String> = side.problems().map(|(path, why)| format!("{path}: {why}")).collect();
            for problem in problems.iter().take(PROBLEMS_SHOWN) {
                session.problem(exit::SOURCE, problem);
            }
            if problems.len() > PROBLEMS_SHOWN {
                let more = count((problems.len() - PROBLEMS_SHOWN) as u64, "file");
                session.problem(exit::SOURCE, format_args!("{more} more could not be read"));
            }
            problems.is_empty().then_some(side)
        }
        Err(fault) => {
            let is_full = matches!(&fault, BuildFault::Source(source) if is_full(source));
            session.problem(if is_full { exit::NO_SPACE } else { exit::SOURCE }, &fault);
            None
        }
    }
}

/// Whether the temporary file of unpacked contents found no space.
fn is_full(fault: &(dyn std::error::Error + 'static)) -> bool {
    let source = fault.source().and_then(|source| source.downcast_ref::<io::Error>());
    source.is_some_and(|error| error.kind() == io::ErrorKind::StorageFull)
}

fn image(session: &mut Session, arg: &OsString) -> Option<Side> {
    let mut targets = session.targets(std::slice::from_ref(arg), Follow::Links);
    if targets.len() > 1 {
        session
            .problem(exit::USAGE_CODE, "a pattern that matches several paths is no side: name one directory");
        return None;
    }
    let target = targets.pop()?;
    let name = target.shown();
    match Side::image_at(target.fs, target.inode) {
        Ok(side) => Some(side),
        Err(fault) => {
            session.fault(name, &fault);
            None
        }
    }
}

/// Reports something that could not be compared.
fn report(args: &DiffArgs, session: &mut Session, which: Which, path: &[u8], cause: &Cause) {
    let side = match which {
        Which::A => &args.a,
        Which::B => &args.b,
    };
    let side = side.to_string_lossy();
    match cause {
        Cause::Source(text) => session.problem(exit::SOURCE, text),
        Cause::Image(extant::walk::Problem::Fault(fault)) => {
            // A name without an inode is damage, not a mistake of the command line.
            let code = match code_of(fault) {
                exit::NOT_FOUND => exit::DAMAGED,
                code => code,
            };
            session.problem(code, format_args!("{}: {fault}", shown(&side, &[b"/", path].concat())));
        }
        Cause::Image(problem) => {
            let place = shown(&side, &[b"/", path].concat());
            session.problem(exit::DAMAGED, format_args!("{place}: {problem}"));
        }
    }
}

/// Writes the layer; `None` after reporting a problem.
fn write(
    args: &DiffArgs,
    session: &mut Session,
    file: &Path,
    compression: Compression,
    diff: &Diff,
    b: &Side,
) -> Option<LayerReport> {
    let written = if is_stdout(Some(file)) {
        let out = rustix::io::dup(io::stdout()).map_err(io::Error::from);
        out.map_err(LayerFault::Output).and_then(|out| write_to(File::from(out), compression, diff, b))
    } else if is_special(file) {
        let out = File::options().write(true).open(file);
        out.map_err(LayerFault::Output).and_then(|out| write_to(out, compression, diff, b))
    } else {
        NewFile::create(file).map_err(LayerFault::Output).and_then(|new| {
            let report = write_to(new.file().try_clone()?, compression, diff, b)?;
            new.publish(args.force, false)?;
            Ok(report)
        })
    };
    match written {
        Ok(report) => {
            if report.sockets > 0 {
                let sockets = count(report.sockets, "socket");
                note!("{sockets} left out of the layer: archives cannot hold them");
            }
            Some(report)
        }
        Err(LayerFault::Output(error)) => {
            let code = match error.kind() {
                io::ErrorKind::StorageFull => exit::NO_SPACE,
                io::ErrorKind::ResourceBusy => exit::BUSY,
                io::ErrorKind::AlreadyExists => exit::EXISTS,
                io::ErrorKind::BrokenPipe => return None,
                _ => exit::TARGET,
            };
            let file = escape(file.as_os_str().as_encoded_bytes());
            session.problem(code, format_args!("cannot write {file}: {error}"));
            None
        }
        // The reasons were reported, with their exit codes.
        Err(fault @ LayerFault::Incomplete) => {
            say!("{fault}");
            None
        }
        Err(fault) => {
            session.problem(exit::SOURCE, format_args!("no layer is written: {fault}"));
            None
        }
    }
}

fn write_to(file: File, compression: Compression, diff: &Diff, b: &Side) -> Result<LayerReport, LayerFault> {
    let (out, report) = write_layer(diff, b, Output::new(file, compression)?, &Progress::new("writing"))?;
    out.finish()?;
    Ok(report)
}
