//! Exit codes, one meaning each; `extant --help` lists them.

pub(crate) mod codes;

use std::fmt::Display;
use std::panic::{UnwindSafe, catch_unwind};
use std::process::ExitCode;

pub(crate) use codes::*;

use crate::usage;
use crate::voice::say;

/// Prints a message and returns its exit code. After a usage error it also prints the command's usage.
pub(crate) fn fail(code: u8, message: &dyn Display) -> ExitCode {
    say!("{message}");
    // The codes of `check` are those of e2fsck.
    if code == USAGE_CODE || code == CHECK_USAGE {
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
