//! Exit codes, one meaning each; `extant --help` lists them.

use std::fmt::Display;
use std::panic::{UnwindSafe, catch_unwind};
use std::process::ExitCode;

use crate::usage;
use crate::voice::say;

/// The target could not be written.
pub(crate) const TARGET: u8 = 1;
/// The command line does not make sense.
pub(crate) const USAGE_CODE: u8 = 2;
/// A source could not be read, is damaged, or changed while it was read.
pub(crate) const SOURCE: u8 = 3;
/// Done, but a part of the image is damaged or encrypted, and is missing in the result.
pub(crate) const DAMAGED: u8 = 4;
/// The image is too small for the source.
pub(crate) const TOO_SMALL: u8 = 5;
/// The target exists already.
pub(crate) const EXISTS: u8 = 6;
/// No space left where the target is written.
pub(crate) const NO_SPACE: u8 = 7;
/// Not an ext4 image, or it cannot be read.
pub(crate) const UNREADABLE: u8 = 8;
/// The image has no such path, or the path is not of the kind that the command needs.
pub(crate) const NOT_FOUND: u8 = 9;
/// The image is in use: another program writes to it, or it is mounted.
pub(crate) const BUSY: u8 = 10;
/// An internal error: a panic, which is a defect of extant.
pub(crate) const INTERNAL: u8 = 70;
/// The sandbox refused a system call.
pub(crate) const REFUSED_CALL: u8 = 71;
/// Interrupted by a signal.
pub(crate) const INTERRUPTED: u8 = 130;

/// Prints a message and returns its exit code. After a usage error it also prints the command's usage.
pub(crate) fn fail(code: u8, message: &dyn Display) -> ExitCode {
    say!("{message}");
    if code == USAGE_CODE {
        usage::say_usage();
    }
    ExitCode::from(code)
}

/// Runs a command. If it panics, prints a message and exits with `code`. The journal writes nothing after a
/// panic, so the image is as after a power cut.
pub(crate) fn guarded(code: u8, run: impl FnOnce() -> ExitCode + UnwindSafe) -> ExitCode {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(|at| format!(" at {}:{}", at.file(), at.line())).unwrap_or_default();
        let payload = panic.payload();
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        let text = text.unwrap_or("a panic without a message");
        say!("internal error{place}: {text}");
        if std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value != "0") {
            say!("{}", std::backtrace::Backtrace::force_capture());
        }
    }));
    catch_unwind(run).unwrap_or_else(|_| {
        say!(
            "this is a defect of extant: please report it, with the command line and the line above; nothing was \
             written after it, and an image that was being changed is as after a power cut"
        );
        ExitCode::from(code)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_has_an_exit_code_of_its_own() {
        let before = std::panic::take_hook();
        let ended = guarded(INTERNAL, || panic!("a planted panic"));
        std::panic::set_hook(before);
        assert_eq!(format!("{ended:?}"), format!("{:?}", ExitCode::from(70)));
    }
}
