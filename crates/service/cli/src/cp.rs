//! `extant cp`: copies files and trees out of an image, and into one.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use extant::{FileType, Follow};
use extant_image::source::pretend::pretender;

use crate::cat;
use crate::edit::copy_in::copy_in;
use crate::edit::staged::HoldPolicy;
use crate::exit;
use crate::imagearg::{ImageArg, is_of_host, is_whole_image};
use crate::inspect::format::escape;
use crate::look::host::{Choices, CopyTo, DestinationKind, Existing, Host, NO_DIRECTORY, open_named_dir};
use crate::look::progress::Progress;
use crate::look::{ExistingFile, IMAGES_HELP, OpenArgs, Session};
use crate::manners::lists_files;

const EXAMPLES: &str = "\
Holes stay holes, names of one file stay names of one file, and nothing is written outside of the destination, whatever \
links an image holds. What is there already under a name is replaced; directories are entered. IMG:/ without a name \
copies what is in the root.

Examples:
  extant cp root.img:/etc/fstab .
  extant cp -r 'root.img:/etc/{ssh,systemd}' backup/
  sudo extant cp -a root.img:/ rootfs/          everything, with owners and devices
  extant cp root.img:/etc/motd -                standard output
  extant cp motd issue root.img:/etc            into an image
  extant cp -a site/. root.img:/srv/www         what is in a directory";

/// Copy files and directories out of an image, or into one.
///
/// Into an image all of it is one commit, as far as it needs no more than 128 MiB; files belong to root
/// (0:0), unless -p or -a keeps owners.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{IMAGES_HELP}\n\n{EXAMPLES}"))]
pub(crate) struct CpArgs {
    #[command(flatten)]
    copy: CopyArgs,
    #[command(flatten)]
    open: OpenArgs,
}

/// Why a copy of one path is refused.
const NO_DESTINATION: &str =
    "cp: missing: <DEST>; the last path says where to: a directory or a new name, `.` is this directory";

/// Options of a copy: on the command line, and on a line of a script, where it goes into the image.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct CopyArgs {
    /// What to copy, and last where to: a directory, or a new name. With -t all are sources.
    #[arg(required = true, num_args = 1.., value_names = ["SOURCE", "DEST"])]
    paths: Vec<OsString>,
    /// Leave existing files as they are.
    #[arg(short, long, conflicts_with = "update")]
    no_clobber: bool,
    /// Leave an existing file as it is, unless the content of the source changed later.
    #[arg(short, long)]
    update: bool,
    /// Copy into this directory, which exists.
    #[arg(short, long, value_name = "DIR", conflicts_with = "no_target_directory")]
    target_directory: Option<OsString>,
    /// The last path is the new name, also if a directory has it.
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Directories with everything below them; symbolic links are copied as links.
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Keep mode, times (to the nanosecond), attributes and ACLs, and, as root, owners.
    #[arg(short, long)]
    preserve: bool,
    /// Same as -r -p.
    #[arg(short, long)]
    archive: bool,
    /// Write zeros where the files have holes.
    #[arg(long)]
    no_sparse: bool,
    /// Print each file that was copied, and at the end the time and memory that the command took.
    #[arg(short, long)]
    verbose: bool,
}

impl CopyArgs {
    fn choices(&self) -> Choices {
        let metadata = self.preserve || self.archive;
        let existing = match (self.no_clobber, self.update) {
            (true, _) => Existing::Keep,
            (false, true) => Existing::Update,
            (false, false) => Existing::Replace,
        };
        Choices { metadata, sparse: !self.no_sparse, existing, list: lists_files(self.verbose) }
    }

    fn is_recursive(&self) -> bool {
        self.recursive || self.archive
    }

    /// The destination and the sources.
    fn ends(&self) -> Result<(&OsString, &[OsString]), &'static str> {
        match (&self.target_directory, self.paths.split_last()) {
            (Some(directory), _) => Ok((directory, &self.paths)),
            (None, Some((destination, sources))) if !sources.is_empty() => Ok((destination, sources)),
            (None, _) => Err(NO_DESTINATION),
        }
    }

    fn destination_kind(&self) -> DestinationKind {
        match (&self.target_directory, self.no_target_directory) {
            (Some(_), _) => DestinationKind::Directory,
            (None, true) => DestinationKind::Name,
            (None, false) => DestinationKind::Either,
        }
    }

    /// Copies files of the host into an image.
    pub(crate) fn copy_in(&self, session: &mut Session) {
        match self.ends() {
            Ok((to, sources)) => {
                let kind = self.destination_kind();
                copy_in(session, sources, to, kind, self.choices(), self.is_recursive());
            }
            Err(why) => session.problem(exit::USAGE_CODE, why),
        }
    }
}

pub(crate) fn run(args: &CpArgs) -> ExitCode {
    let (destination, sources) = match args.copy.ends() {
        Ok(ends) => ends,
        Err(why) => return exit::fail(exit::USAGE_CODE, &why),
    };
    if args.copy.choices().metadata
        && let Err(unseen) = pretender()
    {
        return exit::fail(exit::TARGET, &format!("owners are to be kept, and {unseen}"));
    }
    if is_in_image(destination) {
        return into_image(args, sources);
    }
    let kind = args.copy.destination_kind();
    if destination == "-" && kind == DestinationKind::Either {
        return to_stdout(args, sources);
    }
    let mut session = Session::new(&args.open);
    if is_whole_image(destination) {
        let name = escape(destination.as_bytes());
        let why = format_args!(
            "{name}: holds a file system, and a path in it needs a colon, like {name}:/ for its root; to replace the image \
             itself, remove it first"
        );
        session.problem(exit::USAGE_CODE, why);
        return session.finish(Ok(()));
    }
    let hosts = is_of_host(destination) && sources.iter().all(|path| is_of_host(path));
    if hosts && sources.iter().any(|source| Path::new(source).exists()) {
        let why = "none of the paths is in an image: IMG:/PATH is one, and IMG:/ the root of IMG";
        session.problem(exit::USAGE_CODE, why);
        return session.finish(Ok(()));
    }
    let destination = PathBuf::from(destination);
    let recursive = args.copy.is_recursive();
    let follow = if recursive { Follow::NotTheLast } else { Follow::Links };
    let targets = session.targets(sources, follow);
    let is_dir = kind != DestinationKind::Name && destination.is_dir();
    if kind == DestinationKind::Directory && !is_dir {
        session.problem(exit::TARGET, format_args!("{}: {NO_DIRECTORY}", destination.display()));
        return session.finish(Ok(()));
    }
    if targets.len() > 1 && !is_dir {
        session.problem(
            exit::USAGE_CODE,
            format_args!("{}: several files need an existing directory to go to", destination.display()),
        );
        return session.finish(Ok(()));
    }
    let host = Host::new(args.copy.choices(), Progress::new("copying"));
    for target in &targets {
        if target.inode.kind() == FileType::Directory && !recursive {
            session.problem(
                exit::USAGE_CODE,
                format_args!("{}: is a directory; copy it with -r", target.shown()),
            );
            continue;
        }
        match place(target, &destination, is_dir) {
            Ok(place) => {
                let to = match (&place, is_dir) {
                    (CopyTo::Name(_, name), true) => destination.join(OsStr::from_bytes(name)),
                    _ => destination.clone(),
                };
                host.copy(&mut session, target, place, to.as_os_str().as_bytes());
            }
            Err(error) => {
                session.problem(exit::TARGET, format_args!("{}: {error}", destination.display()));
            }
        }
    }
    host.finish(&mut session);
    session.finish(Ok(()))
}

/// `-` is standard output, as with `extant cat`; a file named `-` is `./-`.
fn to_stdout(args: &CpArgs, sources: &[OsString]) -> ExitCode {
    if args.copy.is_recursive() || args.copy.choices().metadata {
        let why = "-: standard output takes the bytes of files only; `extant export --tar -` writes trees and metadata there";
        return exit::fail(exit::USAGE_CODE, &why);
    }
    cat::print_files(&args.open, sources)
}

/// Whether this is a path in an image and names no file of the host.
fn is_in_image(path: &OsStr) -> bool {
    std::fs::symlink_metadata(path).is_err()
        && ImageArg::parse(path).is_ok_and(|image| image.inner_path.is_some())
}

/// Copies into an image.
fn into_image(args: &CpArgs, sources: &[OsString]) -> ExitCode {
    let mut session = Session::writing(&args.open, HoldPolicy::UntilFull);
    if args.open.is_without_recovery() {
        session.problem(exit::USAGE_CODE, "--no-recovery is for reading: a writer replays the journal first");
        return session.finish(Ok(()));
    }
    if args.open.has_backup() {
        session
            .problem(exit::USAGE_CODE, "--backup is for reading: writing needs a sound primary superblock");
        return session.finish(Ok(()));
    }
    if let Some(other) = sources.iter().find(|source| is_in_image(source)) {
        let why = "is in an image as well; copy it out first, and then in";
        session.problem(exit::USAGE_CODE, format_args!("{}: {why}", escape(other.as_bytes())));
        return session.finish(Ok(()));
    }
    args.copy.copy_in(&mut session);
    session.finish(Ok(()))
}

/// The place that a source is copied to. Creates the destination if the source has no name to create in it.
fn place(target: &ExistingFile, destination: &Path, is_dir: bool) -> std::io::Result<CopyTo> {
    let name = target.name();
    // The root, and paths that end in a dot, have no name to create in the destination.
    let nameless = matches!(name, b"" | b"." | b"..");
    if nameless && !destination.is_dir() {
        std::fs::create_dir(destination)?;
    }
    if nameless {
        return Ok(CopyTo::Into(open_named_dir(destination)?));
    }
    if is_dir {
        return Ok(CopyTo::Name(open_named_dir(destination)?, name.to_vec()));
    }
    let missing = || std::io::Error::new(std::io::ErrorKind::InvalidInput, "has no name that could be made");
    let last = destination.file_name().ok_or_else(missing)?.as_bytes().to_vec();
    let parent =
        destination.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(CopyTo::Name(open_named_dir(parent)?, last))
}
