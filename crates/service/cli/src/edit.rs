//! `extant mkdir`, `mknod`, `mkfifo`, `rm`, `mv`, `ln`, `chmod`, `chown`, `project`, `xattr`, `put`,
//! `truncate`, `fallocate`, `touch`, and `extant edit` for scripts of them; `cp` into an image.
//!
//! ```text
//! command line -> Change { options, IMG:PATH ... } ─┐
//! script line  -> words -> Step { options, PATH } ──┴> run_change -> library calls -> one commit at the end
//! ```
//!
//! Owns: the commands' arguments, the order of their operations, scripts. Does **not** own: opening,
//! committing and messages (see [`look`](crate::look)), the operations (see the library).
//!
//! Invariants
//! 1. If a path cannot be changed, the command reports it in one line and continues with the rest; a script
//!    ends at the first problem.
//! 2. A script is applied completely or not at all, byte for byte, unless `--keep-going` is given.

pub(crate) mod args;
mod content;
pub(crate) mod copy_in;
pub(crate) mod mode;
mod ops;
pub(crate) mod staged;
mod words;

use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use extant::{Error, Refusal};

use crate::cp::CopyArgs;
use crate::exit;
use crate::imagearg::ImageArg;
use crate::inspect::format::escape;
use crate::look::{OpenArgs, Session, code_of, shown};
use crate::usage::{near, of_script_line};
use crate::voice::say;
use args::{Change, JournalArg};
use staged::HoldPolicy;

const EDIT_HELP: &str = "\
A script has a command per line, with the words and options of `extant mkdir`, `mknod`, `mkfifo`, `rm`, `mv`, `ln`, `chmod`, `chown`, `project`, \
`xattr`, `put --from FILE`, `truncate`, `fallocate`, `touch` and `cp HOST... PATH`, and paths without the image. Words are quoted as for a shell; # begins a comment.

All lines are one commit. At the first line that cannot be done nothing is changed at all, and the image is as it was, \
byte for byte.

Examples:
  extant edit root.img setup.txt
  extant edit 'disk.img#2' <<'END'
  mkdir -p -m 0700 /etc/secrets
  ln -sf ../usr/share/zoneinfo/UTC /etc/localtime
  cp -a site/. /srv/www                    # from the host
  chown 1000:1000 \"/srv/ann/My Files\"     # quoted
  rm -rf /var/cache/*
  END";

/// Permission bits that new files and directories do not get, unless the directory has a default ACL.
const UMASK: u16 = 0o022;

/// The remedy for an image without free space.
const FULL: &str = "an image of the smallest size is full: `extant build --headroom 20` or --size leaves room, `extant rm` makes some";

/// A path from the root of the image.
fn absolute(path: &[u8]) -> Vec<u8> {
    if path.first() == Some(&b'/') { path.to_vec() } else { [b"/", path].concat() }
}

/// Reports a failure, and the remedy.
fn report(session: &mut Session, image: &str, error: &Error, advice: &str) {
    let advice = if advice.is_empty() && error.is(Refusal::NoSpace) { FULL } else { advice };
    let missing = match error {
        Error::At { path, .. } | Error::Between { from: path, .. } if error.is(Refusal::NotFound) => {
            Some(path)
        }
        _ => None,
    };
    let suggested = missing.and_then(|path| session.absent_inside(image, &absolute(path)));
    let advice = match &suggested {
        Some(near) if advice.is_empty() || near.starts_with("did") => near,
        _ => advice,
    };
    let semicolon = if advice.is_empty() { "" } else { "; " };
    match error {
        Error::At { path, fault } => {
            let place = shown(image, &absolute(path));
            session.problem(code_of(fault), format_args!("{place}: {fault}{semicolon}{advice}"));
        }
        Error::Between { from, to, fault } => {
            let (from, to) = (shown(image, &absolute(from)), escape(&absolute(to)));
            session.problem(code_of(fault), format_args!("{from} -> {to}: {fault}{semicolon}{advice}"));
        }
        other => session.problem(exit::UNREADABLE, other),
    }
}

/// Change an image by a script: all of it in one commit, or nothing.
#[derive(Debug, clap::Args)]
#[command(after_help = EDIT_HELP)]
pub(crate) struct EditArgs {
    /// Go on behind lines that cannot be done, and keep what the others did.
    #[arg(short, long)]
    keep_going: bool,
    /// Say what would go wrong, and change nothing.
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// The image.
    #[arg(value_name = "IMG")]
    image: OsString,
    /// The script; standard input without it.
    script: Option<PathBuf>,
    #[command(flatten)]
    journal: JournalArg,
}

/// A line of a script.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true, disable_help_subcommand = true)]
struct Line {
    #[command(subcommand)]
    step: Step,
}

/// What a line does.
#[derive(Debug, clap::Subcommand)]
enum Step {
    #[command(flatten)]
    Change(Change),
    /// Files of the host into the image: the command itself also goes the other way.
    Cp(CopyArgs),
}

impl Step {
    fn run(&self, session: &mut Session) -> std::io::Result<()> {
        match self {
            Self::Change(change) => ops::run_change(session, change),
            Self::Cp(args) => {
                args.copy_in(session);
                Ok(())
            }
        }
    }
}

/// Runs a single command.
pub(crate) fn run_one(change: &Change) -> ExitCode {
    let open = OpenArgs::with_journal(change.journal().cloned());
    let mut session = match change.only_looks() {
        true => Session::new(&open),
        false => Session::writing(&open, HoldPolicy::UntilFull),
    };
    let printed = ops::run_change(&mut session, change);
    // A half-written file or range is of no use.
    if matches!(change, Change::Put(_) | Change::Fallocate(_)) && session.problems > 0 {
        session.discard_held();
    }
    session.finish(printed)
}

/// Runs a script.
pub(crate) fn run_script(args: &EditArgs) -> ExitCode {
    let script = match read_script(args) {
        Ok(script) => script,
        Err(why) => return exit::fail(exit::SOURCE, &why),
    };
    let name = args.script.as_ref().map_or_else(|| "line ".to_owned(), |path| format!("{}:", path.display()));
    let hold_policy = if args.keep_going && !args.dry_run { HoldPolicy::UntilFull } else { HoldPolicy::All };
    let mut session = Session::writing(&OpenArgs::with_journal(args.journal.journal.clone()), hold_policy);

    // All lines are parsed before the image is opened.
    let mut steps = Vec::new();
    for (number, line) in (1..).zip(script.split(|byte| *byte == b'\n')) {
        session.context = format!("{name}{number}: ");
        match parse_line(line) {
            Ok(None) => {}
            Ok(Some(step)) => steps.push((number, step)),
            Err(why) => session.problem(exit::USAGE_CODE, why),
        }
    }
    if session.problems > 0 && !args.keep_going {
        report_undone(&mut session, args);
        return session.finish(Ok(()));
    }
    session.context.clear();
    match ImageArg::parse(&args.image) {
        Ok(image) if image.inner_path.is_some() => {
            let shown = escape(args.image.as_bytes());
            let why = "a script is for a whole image; its paths are in the script";
            session.problem(exit::USAGE_CODE, format_args!("{shown}: {why}"));
        }
        Ok(image) => {
            if session.open(&image).is_some() {
                session.image = Some(image);
            }
        }
        Err(why) => session.argument_error(why),
    }
    if session.image.is_none() {
        return session.finish(Ok(()));
    }
    let mut printed = Ok(());
    for (number, step) in &steps {
        session.context = format!("{name}{number}: ");
        let before = session.problems;
        printed = step.run(&mut session);
        if (session.problems > before && !args.keep_going) || printed.is_err() {
            if !args.keep_going {
                report_undone(&mut session, args);
            }
            break;
        }
    }
    session.context.clear();
    if args.dry_run {
        session.discard();
    }
    session.finish(printed)
}

/// Discards what the script has done so far, and reports that.
fn report_undone(session: &mut Session, args: &EditArgs) {
    session.context.clear();
    session.discard();
    say!("nothing of the script was done: {} is as it was", escape(args.image.as_bytes()));
}

fn read_script(args: &EditArgs) -> Result<Vec<u8>, String> {
    let mut script = Vec::new();
    match &args.script {
        Some(path) => {
            script = std::fs::read(path).map_err(|error| near::not_opened(path, &error))?;
        }
        None => {
            let mut stdin = std::io::stdin().lock();
            if stdin.is_terminal() {
                say!("reading the script from the terminal; Ctrl-D ends it");
            }
            stdin.read_to_end(&mut script).map_err(|error| format!("standard input: {error}"))?;
        }
    }
    Ok(script)
}

/// Parses a line; `None` if it is blank.
fn parse_line(line: &[u8]) -> Result<Option<Step>, String> {
    let words = words::words(line)?;
    if words.is_empty() {
        return Ok(None);
    }
    let words: Vec<OsString> = words.into_iter().map(OsString::from_vec).collect();
    match Line::try_parse_from(&words) {
        Ok(Line { step: Step::Change(change) }) if change.journal().is_some() => {
            Err("--journal is an option of `extant edit` itself, not of its lines".to_owned())
        }
        Ok(line) => Ok(Some(line.step)),
        Err(error) if error.kind() == clap::error::ErrorKind::DisplayHelp => {
            Err("help is had from the command line, not from a script".to_owned())
        }
        Err(error) => Err(of_script_line(Line::command(), &words, &error)),
    }
}

/// Bytes as an argument.
fn os(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_the_words_of_the_commands() {
        assert!(
            matches!(parse_line(b"mkdir -p -m 0700 /a /b"), Ok(Some(Step::Change(Change::Mkdir(args)))) if args.parents)
        );
        assert!(matches!(parse_line(b"cp -a site/. /srv"), Ok(Some(Step::Cp(_)))));
        assert!(matches!(parse_line(b"  # nothing"), Ok(None)));
        assert!(matches!(parse_line(b"xattr set user.a -1 /a"), Ok(Some(Step::Change(Change::Xattr(_))))));
        assert_eq!(
            parse_line(b"mount /a").unwrap_err(),
            "there is no command \"mount\"; there are: mkdir mknod mkfifo rm mv ln chmod chown project xattr put \
             truncate fallocate touch cp"
        );
        assert!(parse_line(b"mkdir 'a").unwrap_err().contains("not closed"));
        let missing = parse_line(b"mkdir").unwrap_err();
        assert_eq!(missing, "mkdir: missing: <IMG:PATH>...");
    }
}
