//! The exit codes, one meaning each.

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
/// The command line of `check` does not make sense: e2fsck's code.
pub(crate) const CHECK_USAGE: u8 = 16;
/// An internal error: a panic, which is a defect of extant.
pub(crate) const INTERNAL: u8 = 70;
/// The sandbox refused a system call.
pub(crate) const REFUSED_CALL: u8 = 71;
/// Interrupted by a signal.
pub(crate) const INTERRUPTED: u8 = 130;
