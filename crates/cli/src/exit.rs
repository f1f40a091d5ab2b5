//! Exit codes, one meaning each; `extant --help` lists them.

use std::fmt::Display;
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
/// A path that was asked for is not in the image, or not of the kind that the command needs.
pub(crate) const NOT_FOUND: u8 = 9;
/// The image is in use: another program writes to it, or it is mounted.
pub(crate) const BUSY: u8 = 10;
/// Interrupted by a signal.
pub(crate) const INTERRUPTED: u8 = 130;

/// Prints a message and returns its code; a usage error comes with the command's usage.
pub(crate) fn fail(code: u8, message: &dyn Display) -> ExitCode {
    say!("{message}");
    if code == USAGE_CODE {
        usage::say_usage();
    }
    ExitCode::from(code)
}
