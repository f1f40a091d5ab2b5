//! All output of the command: lines on standard error, text on standard output.
//!
//! Owns: what happens when standard output or standard error cannot be written. Does **not** own: the text.
//!
//! Invariants (INV-CL1)
//! 1. No failure to print a message ends the program. Standard error is the last resort; if it is closed, the
//!    exit code still reports the result.
//! 2. If the reader of standard output closes the pipe (`| head`), that is no error: the command finishes,
//!    and the exit code is that of its work. Any other failure to write standard output is reported, and has
//!    an exit code of its own.

use std::fmt::{Arguments, Display};
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::exit::codes;

/// Prints a line on standard error, after the program's name.
macro_rules! say {
    ($($text:tt)*) => { $crate::voice::say_line(format_args!($($text)*)) };
}
pub(crate) use say;

/// Prints a line that begins with `note:` on standard error, unless `--quiet` is given.
macro_rules! note {
    ($($text:tt)*) => {
        if !$crate::manners::is_quiet() {
            $crate::voice::say_line(format_args!("note: {}", format_args!($($text)*)));
        }
    };
}
pub(crate) use note;

/// See [`say!`].
pub(crate) fn say_line(text: Arguments<'_>) {
    say_raw(format_args!("extant: {}\n", without_numbers(&text.to_string())));
}

/// Removes the error numbers that the standard library adds to the system's messages: `Permission denied (os
/// error 13)`.
pub(crate) fn without_numbers(text: &str) -> String {
    const BEGIN: &str = " (os error ";
    let mut plain = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(BEGIN) {
        let number = &rest[at + BEGIN.len()..];
        let end = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
        match number[end..].strip_prefix(')') {
            Some(after) => {
                plain.push_str(&rest[..at]);
                rest = after;
            }
            None => {
                plain.push_str(&rest[..at + BEGIN.len()]);
                rest = number;
            }
        }
    }
    plain + rest
}

/// The first failure of [`list!`].
static UNLISTED: Mutex<Option<io::Error>> = Mutex::new(None);

/// Prints a line on standard output: a file that the command copied or removed. [`listed`] returns the first
/// failure.
macro_rules! list {
    ($($text:tt)*) => { $crate::voice::list_line(format_args!($($text)*)) };
}
pub(crate) use list;

/// See [`list!`].
pub(crate) fn list_line(text: Arguments<'_>) {
    // Formatted first, so that lines of several threads do not mix.
    if let Err(error) = io::stdout().write_all(format!("{text}\n").as_bytes()) {
        unlisted().get_or_insert(error);
    }
}

/// The first failure to print a line of [`list!`].
pub(crate) fn listed() -> io::Result<()> {
    let flushed = io::stdout().flush();
    unlisted().take().map_or(flushed, Err)
}

fn unlisted() -> MutexGuard<'static, Option<io::Error>> {
    UNLISTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints text on standard error, unchanged.
pub(crate) fn say_raw(text: impl Display) {
    // Formatted first, so that one write prints the whole text and lines of several threads do not mix.
    let _ = io::stderr().write_all(text.to_string().as_bytes());
}

/// Prints text on standard output. Returns `code`, or the exit code of an output failure.
pub(crate) fn print(text: &str, code: u8) -> ExitCode {
    let mut out = io::stdout().lock();
    printed(out.write_all(text.as_bytes()).and_then(|()| out.flush()), code)
}

/// Reports an output failure and returns its exit code; without a failure returns `code`.
pub(crate) fn printed(result: io::Result<()>, code: u8) -> ExitCode {
    ExitCode::from(output_code(result).unwrap_or(code))
}

/// Reports an output failure and returns its exit code; `None` if there is none.
pub(crate) fn output_code(result: io::Result<()>) -> Option<u8> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            say!("cannot write the output: {error}");
            Some(if error.raw_os_error() == Some(28) { codes::NO_SPACE } else { codes::TARGET })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_no_numbers() {
        let denied = io::Error::from_raw_os_error(13);
        assert_eq!(
            without_numbers(&format!("a: {denied}; b: {denied}")),
            "a: Permission denied; b: Permission denied"
        );
        for text in ["", "a (os error", " (os error x)", "a (os error 1", "(os error 1)"] {
            assert_eq!(without_numbers(text), text);
        }
    }
}
