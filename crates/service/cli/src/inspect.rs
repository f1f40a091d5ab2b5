//! `extant inspect`: prints the structures of an image, sound or damaged, for people and for programs.
//!
//! ```text
//! probe ─ chooses the superblock             page ─ text or JSON, printed as it is found
//!   └ reader ─ blocks, descriptors, inodes   format ─ times, sizes, modes, names, checksums
//!       ├ mapping ─ a file's nodes and runs
//!       └ dirwalk ─ a directory's blocks, paths
//! views: superblock groups free inode extents dir htree attributes journal orphans
//! ```
//!
//! Owns: the command line of `inspect`, the order of items in a view, exit codes. Does **not** own: any
//! layout (see `ondisk` and `jbd2-format`), any verdict on the whole file system (that is `check`).
//!
//! Invariants
//! 1. The image is opened read-only.
//! 2. No bytes make it panic, hang or take memory without bound: walks are bounded by the size of the device,
//!    and end after thousands of damaged structures.
//! 3. Damage is reported once, in one line, and never hides what can still be read.
//!
//! Exit codes: 0 no damage seen; 2 the command line makes no sense; 4 printed, but damage was seen; 8 cannot
//! be read, or is no ext4 at all; 9 the image has no such path, inode, group or structure.

mod attributes;
mod dir;
mod dirwalk;
mod extents;
pub(crate) mod format;
mod free;
mod groups;
mod htree;
mod inode;
mod journal;
mod mapping;
mod orphans;
mod page;
mod probe;
mod reader;
mod replay_plan;
mod superblock;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::fmt;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use extant_base::Group;
use extant_device::Device;
use extant_ondisk::Features;

use crate::exit;
use crate::imagearg::{ArgError, ImageArg};
use crate::sandbox::Needs;

use dirwalk::InodeArg;
use page::Page;
use probe::{DamageLog, Probe};
use reader::Reader;

/// The arguments of `extant inspect`.
#[derive(Debug, clap::Args)]
pub(crate) struct InspectArgs {
    /// Image file or block device; IMG#N for its partition N (GPT or MBR), IMG@OFFSET for a file system that
    /// begins OFFSET bytes into it (K, M, G and T are powers of 1024, s is sectors of 512)
    #[arg(value_name = "IMG[#N|@OFFSET]")]
    image: OsString,

    /// Print one JSON object instead of text
    #[arg(long, global = true)]
    json: bool,

    /// What to look at (default: the superblock)
    #[command(subcommand)]
    what: Option<What>,
}

/// What to look at.
#[derive(Debug, clap::Subcommand)]
enum What {
    /// The superblock: sizes, features, times, state, errors
    Super,
    /// All block groups, one line each
    Groups,
    /// One block group: its tables, flags and checksums
    Group {
        /// Number of the group, from 0
        #[arg(value_name = "N")]
        number: u32,
    },
    /// An inode's fields, and where it lies
    Inode(TargetArg),
    /// Where a file's blocks are: the extent tree, or the runs of a classic block map
    Extents(TargetArg),
    /// A directory's entries, block by block
    Dir(TargetArg),
    /// A directory's hash index: levels, fill, order
    Htree(TargetArg),
    /// An inode's extended attributes and ACLs
    Xattr(TargetArg),
    /// The journal: its superblock, and the transactions that wait to be replayed
    Journal,
    /// Inodes that wait to be deleted or truncated: the orphan list and the orphan file
    Orphans,
    /// Free space by the bitmaps, against what descriptors and superblock count
    Free,
}

/// An inode by number or path.
#[derive(Debug, clap::Args)]
struct TargetArg {
    /// Number of the inode, or path from the root of the image; symbolic links on the way are followed
    #[arg(value_name = "INODE|PATH")]
    target: OsString,
}

/// Why nothing, or not everything, could be printed.
#[derive(Debug)]
pub(crate) enum InspectError {
    /// The command line makes no sense.
    Usage(String),
    /// The image does not have what the command line names.
    Absent(String),
    /// The image cannot be read, or holds no ext4 file system.
    Unreadable(String),
    /// The output could not be written.
    Output(io::Error),
}

impl InspectError {
    /// The exit code.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => exit::USAGE_CODE,
            Self::Absent(_) => exit::NOT_FOUND,
            Self::Unreadable(_) => exit::UNREADABLE,
            Self::Output(error) if error.raw_os_error() == Some(28) => exit::NO_SPACE,
            Self::Output(_) => exit::TARGET,
        }
    }
}

impl fmt::Display for InspectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(why) | Self::Absent(why) | Self::Unreadable(why) => f.write_str(why),
            Self::Output(error) => write!(f, "cannot write the output: {error}"),
        }
    }
}

impl std::error::Error for InspectError {}

impl From<ArgError> for InspectError {
    fn from(error: ArgError) -> Self {
        match error {
            ArgError::Usage(why) => Self::Usage(why),
            ArgError::Unreadable(why) => Self::Unreadable(why),
        }
    }
}

/// Runs `extant inspect`. Prints the view on standard output, and each damage as a line on standard error
/// (with `--json`: in the object).
///
/// # Errors
/// See [`InspectError`]; its [`exit_code`](InspectError::exit_code) is the command's. If the reader of the
/// output closes the pipe (`| head`), that is no error.
pub(crate) fn run(args: InspectArgs) -> Result<ExitCode, InspectError> {
    let image = ImageArg::parse(&args.image)?;
    if let Some(path) = &image.inner_path {
        return Err(InspectError::Usage(format!(
            "inspect takes a path behind what it shows, not behind the image: \
             extant inspect {image} inode {}",
            path.display()
        )));
    }
    let device = Box::new(image.open_read_only()?);
    crate::sandbox::confine(&image.to_string(), &Needs::default());
    let mut out = BufWriter::new(io::stdout().lock());
    let what = args.what.unwrap_or(What::Super);
    let damage = match print(device, &what, args.json, &mut out) {
        Ok(damage) => damage,
        Err(InspectError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            return Ok(ExitCode::SUCCESS);
        }
        Err(InspectError::Unreadable(why)) => {
            return Err(InspectError::Unreadable(format!("{image}: {why}")));
        }
        Err(InspectError::Absent(why)) => return Err(InspectError::Absent(format!("{image}: {why}"))),
        Err(other) => return Err(other),
    };
    if damage.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    if !args.json {
        let mut errors = io::stderr().lock();
        for line in &damage {
            // Standard error is the last resort: if it is closed, the exit code still reports the result.
            let _ = writeln!(errors, "damaged: {line}");
        }
    }
    Ok(exit::DAMAGED.into())
}

/// Prints one view of a device and returns the damage seen.
fn print(
    device: Box<dyn Device>,
    what: &What,
    json: bool,
    out: &mut dyn Write,
) -> Result<Vec<String>, InspectError> {
    let damage = DamageLog::default();
    let mut page = Page::new(out, json, what.schema());
    let probe = Probe::find(device, &damage)?;
    let waits = probe.sb.features.has_incompat(Features::RECOVER);
    view(probe, what, &mut page)?;
    let mut lines = damage.into_lines();
    if waits && !lines.is_empty() {
        lines.push("the journal was not replayed, which may settle some of this".to_owned());
    }
    page.finish(&lines).map_err(InspectError::Output)?;
    Ok(lines)
}

/// Prints one view. All failures occur before the first fact is printed.
fn view(probe: Probe<'_>, what: &What, page: &mut Page<'_>) -> Result<(), InspectError> {
    match what {
        What::Super => {
            superblock::show(&probe, page);
            return Ok(());
        }
        What::Journal if probe.is_journal_device() => return journal::show_device(&probe, page),
        _ => {}
    }
    let reader = Reader::new(probe)?;
    match what {
        What::Super => {}
        What::Groups => groups::show_all(&reader, page),
        What::Group { number } => groups::show_one(&reader, Group(*number), page)?,
        What::Inode(arg) => inode::show(&reader, &arg.find(&reader)?, page),
        What::Extents(arg) => extents::show(&reader, &arg.find(&reader)?, page)?,
        What::Dir(arg) => dir::show(&reader, &arg.find(&reader)?, page)?,
        What::Htree(arg) => htree::show(&reader, &arg.find(&reader)?, page)?,
        What::Xattr(arg) => attributes::show(&reader, &arg.find(&reader)?, page),
        What::Journal => journal::show(&reader, page)?,
        What::Orphans => orphans::show(&reader, page),
        What::Free => free::show(&reader, page),
    }
    Ok(())
}

impl What {
    fn schema(&self) -> &'static str {
        match self {
            Self::Super => "inspect-super:1",
            Self::Groups => "inspect-groups:1",
            Self::Group { .. } => "inspect-group:1",
            Self::Inode(_) => "inspect-inode:1",
            Self::Extents(_) => "inspect-extents:1",
            Self::Dir(_) => "inspect-dir:1",
            Self::Htree(_) => "inspect-htree:1",
            Self::Xattr(_) => "inspect-xattr:1",
            Self::Journal => "inspect-journal:1",
            Self::Orphans => "inspect-orphans:1",
            Self::Free => "inspect-free:1",
        }
    }
}

impl TargetArg {
    fn find(&self, reader: &Reader<'_>) -> Result<reader::FoundInode, InspectError> {
        InodeArg::parse(&self.target).resolve(reader)
    }
}
