//! Messages about wrong command lines, found by clap or by a command.
//!
//! ```text
//! extant: inspect: one argument too many: r.img; the image comes first: extant inspect r.img super
//! usage: extant inspect [OPTIONS] <IMG[#N|@OFFSET]> [COMMAND]
//! help:  extant inspect --help
//! ```
//! The first line has the finding and, after the semicolon, the remedy.
//!
//! Owns: the sentences for clap's errors, the lines after them. Does **not** own: suggestions for typing
//! errors (see [`near`]), the remedies for single commands (see [`hints`]), exit codes.

mod hints;
pub(crate) mod near;

use std::ffi::{OsStr, OsString};
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

use crate::Cli;
use crate::voice::say_raw;

/// The command that a command line names.
struct Asked {
    /// `extant xattr get` without the `extant`.
    path: Vec<String>,
    command: clap::Command,
}

impl Asked {
    /// `words`: the command line without the program's name.
    fn new(mut command: clap::Command, words: impl Iterator<Item = OsString>) -> Self {
        command.build();
        let mut asked = Self { path: Vec::new(), command };
        for word in words.take_while(|word| word != "--") {
            let found = asked.command.find_subcommand(&word).filter(|found| found.get_name() != "help");
            if let Some(found) = found.cloned() {
                asked.path.push(found.get_name().to_owned());
                asked.command = found;
            }
        }
        asked
    }

    fn of_command_line() -> Self {
        Self::new(Cli::command(), std::env::args_os().skip(1))
    }

    /// The prefix of a finding, like `export: `; empty for the program itself.
    fn place(&self) -> String {
        if self.path.is_empty() { String::new() } else { format!("{}: ", self.path.join(" ")) }
    }
}

/// Reports an error of clap.
pub(crate) fn say_error(error: &Error) {
    if matches!(error.kind(), ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand) {
        // A command without arguments prints its help, on standard error: no output was requested.
        return say_raw(error.render());
    }
    let asked = Asked::of_command_line();
    say_raw(format_args!("extant: {}{}\n", asked.place(), sentence(error, &asked)));
    lines_after(asked);
}

/// Under this name mount(8) calls the program.
pub(crate) const MOUNT_HELPER: &str = "mount.fuse.extant";
/// Under this name umount(8) calls the program.
pub(crate) const UMOUNT_HELPER: &str = "umount.fuse.extant";

/// Whether mount(8) or umount(8) called the program.
fn is_called_as_helper() -> bool {
    let called = std::env::args_os().next().map(PathBuf::from);
    let name = called.as_deref().and_then(Path::file_name).and_then(OsStr::to_str);
    name.is_some_and(|name| [MOUNT_HELPER, UMOUNT_HELPER].contains(&name))
}

/// Prints the usage of the command that was called, after a message of its own.
pub(crate) fn say_usage() {
    // mount(8) calls this program under other names, with a command line of its own.
    if !is_called_as_helper() {
        lines_after(Asked::of_command_line());
    }
}

fn lines_after(mut asked: Asked) {
    let usage = asked.command.render_usage().to_string();
    let usage = usage.strip_prefix("Usage:").unwrap_or(&usage).trim();
    let name = std::iter::once("extant").chain(asked.path.iter().map(String::as_str));
    let name = name.collect::<Vec<_>>().join(" ");
    say_raw(format_args!("usage: {usage}\nhelp:  {name} --help\n"));
}

/// Clap's error about a line of a script, as one line. `words`: the words of that line.
pub(crate) fn of_script_line(command: clap::Command, words: &[OsString], error: &Error) -> String {
    let asked = Asked::new(command, words.iter().cloned());
    format!("{}{}", asked.place(), sentence(error, &asked))
}

/// Finding and remedy, as one sentence.
fn sentence(error: &Error, asked: &Asked) -> String {
    let finding = finding(error);
    match remedy(error, asked) {
        Some(remedy) => format!("{finding}; {remedy}"),
        None => finding,
    }
}

fn finding(error: &Error) -> String {
    let arg = text(error, ContextKind::InvalidArg);
    let value = text(error, ContextKind::InvalidValue);
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            format!("there is no command \"{}\"", text(error, ContextKind::InvalidSubcommand))
        }
        ErrorKind::UnknownArgument if arg.starts_with('-') && arg != "-" => {
            format!("there is no option {arg}")
        }
        ErrorKind::UnknownArgument => format!("one argument too many: {arg}"),
        ErrorKind::InvalidValue if value.is_empty() => format!("{arg} needs a value"),
        ErrorKind::InvalidValue => format!("{arg} cannot be \"{value}\""),
        ErrorKind::ValueValidation => format!("{arg}: {}", reason(error, &value)),
        ErrorKind::MissingRequiredArgument => {
            format!("missing: {}", list(error, ContextKind::InvalidArg, ", "))
        }
        ErrorKind::MissingSubcommand => "a command is missing".to_owned(),
        ErrorKind::ArgumentConflict => match list(error, ContextKind::PriorArg, ", ").as_str() {
            "" => format!("{arg} does not go with the others"),
            prior if prior == arg => format!("{arg} is given twice"),
            prior => format!("{arg} and {prior} do not go together"),
        },
        ErrorKind::TooFewValues | ErrorKind::WrongNumberOfValues => {
            let number = |kind| match error.get(kind) {
                Some(ContextValue::Number(number)) => number.to_string(),
                _ => String::new(),
            };
            let least = match error.kind() {
                ErrorKind::TooFewValues => number(ContextKind::MinValues),
                _ => number(ContextKind::ExpectedNumValues),
            };
            format!("{arg} wants {least} arguments, and got {}", number(ContextKind::ActualNumValues))
        }
        ErrorKind::TooManyValues => format!("one argument too many: {value}"),
        ErrorKind::NoEquals => format!("{arg} wants its value after an equals sign"),
        ErrorKind::InvalidUtf8 => "an argument is not UTF-8, and only paths may be that".to_owned(),
        // Parsing returns no other errors; for those clap's text is better than none.
        _ => error.to_string().lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned(),
    }
}

/// Why a value is refused. The errors of this program's parsers are sentences already; those of numbers get
/// one here.
fn reason(error: &Error, value: &str) -> String {
    let Some(source) = std::error::Error::source(error) else { return format!("\"{value}\" is refused") };
    match source.downcast_ref::<ParseIntError>().map(ParseIntError::kind) {
        Some(IntErrorKind::PosOverflow) => return format!("\"{value}\" is too large"),
        Some(_) => return format!("\"{value}\" is not a whole number"),
        None if source.is::<ParseFloatError>() => return format!("\"{value}\" is not a number"),
        None => {}
    }
    let reason = source.to_string();
    let is_named = value.is_empty() || reason.contains(value);
    if is_named { reason } else { format!("\"{value}\": {reason}") }
}

/// The remedy for an error.
fn remedy(error: &Error, asked: &Asked) -> Option<String> {
    let hint = match error.kind() {
        ErrorKind::InvalidSubcommand => {
            hints::command(&asked.path, &text(error, ContextKind::InvalidSubcommand))
        }
        ErrorKind::UnknownArgument => hints::argument(&asked.path, &text(error, ContextKind::InvalidArg)),
        ErrorKind::MissingRequiredArgument | ErrorKind::TooFewValues => hints::missing(&asked.path),
        ErrorKind::ValueValidation => {
            let value = text(error, ContextKind::InvalidValue);
            hints::value(&asked.path, &text(error, ContextKind::InvalidArg), &value)
        }
        _ => None,
    };
    if hint.is_some() {
        return hint;
    }
    let (wrong, suggested) = match error.kind() {
        ErrorKind::InvalidSubcommand => (ContextKind::InvalidSubcommand, ContextKind::SuggestedSubcommand),
        ErrorKind::UnknownArgument => (ContextKind::InvalidArg, ContextKind::SuggestedArg),
        ErrorKind::InvalidValue => (ContextKind::InvalidValue, ContextKind::SuggestedValue),
        _ => return None,
    };
    let wrong = text(error, wrong);
    let near = all(error, suggested).into_iter().find(|name| near::is_near(&wrong, name));
    if let Some(near) = near {
        return Some(format!("did you mean {near}?"));
    }
    match error.kind() {
        ErrorKind::InvalidValue => {
            let valid = all(error, ContextKind::ValidValue);
            (!valid.is_empty()).then(|| format!("it is one of: {}", valid.join(" ")))
        }
        ErrorKind::InvalidSubcommand => {
            let names: Vec<&str> = asked.command.get_subcommands().map(clap::Command::get_name).collect();
            (names.len() < 20).then(|| format!("there are: {}", names.join(" ")))
        }
        _ => None,
    }
}

fn all(error: &Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    }
}

fn list(error: &Error, kind: ContextKind, between: &str) -> String {
    all(error, kind).join(between)
}

fn text(error: &Error, kind: ContextKind) -> String {
    list(error, kind, " ")
}
