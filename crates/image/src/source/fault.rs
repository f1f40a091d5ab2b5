//! Why a source cannot be used, and what a source's reader wants said although it goes on.
//!
//! Owns: [`SourceFault`], [`Warning`], and the one way in which paths of any bytes are printed
//! ([`ShownPath`]). Does **not** own: deciding what is a fault and what is a warning; each reader does that
//! and says so in its page.
//!
//! Every message names the place (archive, entry, byte, path), the rule that does not hold, and what to do
//! about it.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Why a source cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceFault {
    /// The system refused an operation.
    #[error("cannot {what} {}: {source}", ShownPath::of(path))]
    Io {
        /// The operation in words that fit behind "cannot": "open", "read".
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A tar archive breaks a rule of its format, or asks for something that cannot be put into an image.
    #[error("{archive}: entry {entry_no} at byte {offset}{}: {rule}; {advice}", in_brackets(path))]
    Archive {
        /// The archive's name for people; says so if the bytes are counted behind a decompressor.
        archive: String,
        /// Number of the entry, the first is 1; extended headers count with the entry that they describe.
        entry_no: u64,
        /// Where the offending header or content stands in the (unpacked) archive, in bytes.
        offset: u64,
        /// The entry's path as the archive spells it, if it was known by then.
        path: Vec<u8>,
        /// What is wrong.
        rule: String,
        /// What to do about it.
        advice: &'static str,
    },
    /// An OCI image layout breaks a rule, or does not have what was asked for.
    #[error("{}: {place}: {rule}; {advice}", ShownPath::of(layout))]
    Oci {
        /// The layout's directory.
        layout: PathBuf,
        /// The part of it: "index.json", "manifest sha256:…".
        place: String,
        /// What is wrong.
        rule: String,
        /// What to do about it.
        advice: &'static str,
    },
}

impl SourceFault {
    /// An `Io` fault: `what` fits behind "cannot".
    pub fn io(what: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::Io { what, path: path.into(), source }
    }
}

/// Something that the user should know of, although the source was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// The archive's name for people.
    pub archive: String,
    /// Number of the entry, the first is 1.
    pub entry_no: u64,
    /// Where it stands in the (unpacked) archive, in bytes.
    pub offset: u64,
    /// The entry's path as the archive spells it; empty if the warning is about the archive.
    pub path: Vec<u8>,
    /// What was seen and what was done about it.
    pub text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { archive, entry_no, offset, path, text } = self;
        write!(f, "{archive}: entry {entry_no} at byte {offset}{}: {text}", in_brackets(path))
    }
}

/// A broken rule whose place is not known yet: the parsers' error; the reader adds the place as it passes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    /// What is wrong.
    pub(crate) rule: Cow<'static, str>,
    /// What to do about it.
    pub(crate) advice: &'static str,
}

impl Rule {
    /// A broken rule with its advice.
    pub(crate) fn new(rule: impl Into<Cow<'static, str>>, advice: &'static str) -> Self {
        Self { rule: rule.into(), advice }
    }

    /// A broken rule that only a damaged archive, or a broken program that wrote it, explains.
    pub(crate) fn damaged(rule: impl Into<Cow<'static, str>>) -> Self {
        Self::new(rule, DAMAGED)
    }
}

/// What to do about an archive whose bytes make no sense.
pub(crate) const DAMAGED: &str = "the archive is damaged: fetch or create it again";

/// A path of any bytes, readable and on one line: what is not printable UTF-8 appears as `\ooo`, like `ls -b`
/// does it (but a space stays a space); a backslash doubles. At most 1 KiB is shown.
#[derive(Debug, Clone, Copy)]
pub struct ShownPath<'a>(pub &'a [u8]);

impl<'a> ShownPath<'a> {
    /// Of a path of this system.
    pub fn of(path: &'a Path) -> Self {
        Self(path.as_os_str().as_bytes())
    }
}

impl fmt::Display for ShownPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write as _;
        const SHOWN_BYTES_MAX: usize = 1024;
        let shown = &self.0[..self.0.len().min(SHOWN_BYTES_MAX)];
        for chunk in shown.utf8_chunks() {
            for letter in chunk.valid().chars() {
                match letter {
                    '\\' => f.write_str("\\\\")?,
                    '\n' => f.write_str("\\n")?,
                    '\t' => f.write_str("\\t")?,
                    '\r' => f.write_str("\\r")?,
                    // C0, DEL and C1 would steer a terminal.
                    control if control.is_control() => {
                        let mut bytes = [0; 4];
                        for byte in control.encode_utf8(&mut bytes).bytes() {
                            write!(f, "\\{byte:03o}")?;
                        }
                    }
                    other => f.write_char(other)?,
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\{byte:03o}")?;
            }
        }
        if shown.len() < self.0.len() {
            write!(f, "… ({} bytes)", self.0.len())?;
        }
        Ok(())
    }
}

/// ` (path)`, or nothing for no path.
fn in_brackets(path: &[u8]) -> impl fmt::Display + '_ {
    struct Brackets<'a>(&'a [u8]);
    impl fmt::Display for Brackets<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            if self.0.is_empty() { Ok(()) } else { write!(f, " ({})", ShownPath(self.0)) }
        }
    }
    Brackets(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_any_bytes_print_on_one_line() {
        let shown = |bytes: &[u8]| ShownPath(bytes).to_string();
        assert_eq!(shown("grüße/日本".as_bytes()), "grüße/日本");
        assert_eq!(shown(b"a b\\c\nd\te\x1b[0m\x7f"), "a b\\\\c\\nd\\te\\033[0m\\177");
        assert_eq!(shown(b"caf\xe9/x\xff"), "caf\\351/x\\377");
        assert!(shown(&[b'x'; 5000]).ends_with("x… (5000 bytes)"));
    }

    #[test]
    fn an_archive_fault_names_place_rule_and_advice() {
        let fault = SourceFault::Archive {
            archive: "rootfs.tar".into(),
            entry_no: 3,
            offset: 1536,
            path: b"etc/\xff".to_vec(),
            rule: "the header's checksum is wrong".into(),
            advice: DAMAGED,
        };
        assert_eq!(
            fault.to_string(),
            "rootfs.tar: entry 3 at byte 1536 (etc/\\377): the header's checksum is wrong; \
             the archive is damaged: fetch or create it again"
        );
    }
}
