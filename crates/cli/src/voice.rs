//! The one way by which the command speaks: lines on standard error, text on standard output.
//!
//! Owns: what happens when standard output or standard error cannot be written. Does **not** own: what is
//! said.
//!
//! Invariants (INV-CL1)
//! 1. Nothing that is said can end the program: standard error is the last resort, and where it is gone, the
//!    exit code still says how the command ended.
//! 2. A reader of standard output that goes away (`| head`) is no error: the work is done, and the exit code
//!    is that of the work. Any other failure to write standard output is reported, with a code of its own.

use std::fmt::{Arguments, Display};
use std::io::{self, Write};
use std::process::ExitCode;

use crate::exit;

/// A line on standard error, after the program's name.
macro_rules! say {
    ($($text:tt)*) => { $crate::voice::say_line(format_args!($($text)*)) };
}
pub(crate) use say;

/// See [`say!`].
pub(crate) fn say_line(text: Arguments<'_>) {
    say_raw(format_args!("extant: {}\n", without_numbers(&text.to_string())));
}

/// The system's reasons without the numbers that the standard library adds to them: `Permission denied (os
/// error 13)`.
fn without_numbers(text: &str) -> String {
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

/// Text on standard error, as it is.
pub(crate) fn say_raw(text: impl Display) {
    // Formatted first: the line of a thread stays in one piece.
    let _ = io::stderr().write_all(text.to_string().as_bytes());
}

/// Prints text on standard output. Returns `code`, or the code of the output's failure.
pub(crate) fn print(text: &str, code: u8) -> ExitCode {
    let mut out = io::stdout().lock();
    printed(out.write_all(text.as_bytes()).and_then(|()| out.flush()), code)
}

/// `code`, or the code of the output's failure, which is reported.
pub(crate) fn printed(result: io::Result<()>, code: u8) -> ExitCode {
    ExitCode::from(output_code(result).unwrap_or(code))
}

/// The code of the output's failure, which is reported; `None` where there is none.
pub(crate) fn output_code(result: io::Result<()>) -> Option<u8> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            say!("cannot write the output: {error}");
            Some(if error.raw_os_error() == Some(28) { exit::NO_SPACE } else { exit::TARGET })
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
