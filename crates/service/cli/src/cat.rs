//! `extant cat`: prints the bytes of files on standard output.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use extant::{Fault, FileType, Follow, Refusal};

use crate::look::{ExistingFile, IMAGES_HELP, OpenArgs, Session};
use crate::sandbox::Needs;

/// Bytes per read.
const PIECE: usize = 1 << 20;

const EXAMPLES: &str = "\
Examples:
  extant cat root.img:/etc/os-release
  extant cat 'disk.img#2:/var/log/*.log' | less
  extant cat root.img:/boot/vmlinuz > vmlinuz";

/// Print the content of files.
///
/// Symbolic links are followed inside the image. Holes are printed as zeros; `extant cp` keeps them.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{IMAGES_HELP}\n\n{EXAMPLES}"))]
pub(crate) struct CatArgs {
    /// The files.
    #[arg(required = true, value_name = "IMG:PATH")]
    files: Vec<OsString>,
    #[command(flatten)]
    open: OpenArgs,
}

pub(crate) fn run(args: &CatArgs) -> ExitCode {
    print_files(&args.open, &args.files)
}

/// Prints files one after the other.
pub(crate) fn print_files(open: &OpenArgs, files: &[OsString]) -> ExitCode {
    let mut session = Session::new(open);
    session.confine(files, &Needs::default());
    let targets = session.targets(files, Follow::Links);
    // Reads are large, so a buffer would only add a copy.
    let mut out = io::stdout().lock();
    let mut printed = Ok(());
    for target in targets {
        match print(&target, &mut out) {
            Ok(None) => {}
            Ok(Some(fault)) => session.fault(target.shown(), &fault),
            Err(error) => {
                printed = Err(error);
                break;
            }
        }
    }
    session.finish(printed.and_then(|()| out.flush()))
}

/// Prints a file. Returns the fault if a part could not be read; `Err` is an output failure.
fn print(target: &ExistingFile, out: &mut dyn Write) -> io::Result<Option<Fault>> {
    match target.inode.kind() {
        FileType::Regular => {}
        FileType::Directory => return Ok(Some(Refusal::IsDirectory.into())),
        _ => return Ok(Some(Refusal::WrongType.into())),
    }
    let size = target.inode.size();
    let mut piece = vec![0; PIECE.min(usize::try_from(size).unwrap_or(PIECE))];
    let mut offset = 0;
    while offset < size {
        match target.fs.volume().files().read(&target.inode, offset, &mut piece) {
            Ok(0) => break,
            Ok(got) => {
                out.write_all(&piece[..got])?;
                offset += got as u64;
            }
            Err(fault) => return Ok(Some(fault)),
        }
    }
    Ok(None)
}
