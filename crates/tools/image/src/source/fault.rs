//! Errors and warnings of the sources.
//!
//! Owns: [`SourceFault`], [`Warning`], and [`ShownPath`], which alone formats paths of arbitrary bytes. Does
//! **not** own: the decision between error and warning. Each reader decides, and documents it in its module.
//!
//! Every message states the location (archive, entry, byte, path), the broken rule, and the remedy.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Why a source cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceFault {
    /// A system call failed.
    #[error("cannot {what} {}: {source}", ShownPath::of(path))]
    Io {
        /// The operation, as text that follows "cannot": "open", "read".
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// A tar archive breaks a rule of its format, or has an entry that cannot be stored in an image.
    #[error("{archive}: entry {entry_no} at byte {offset}{}: {rule}; {advice}", in_brackets(path))]
    Archive {
        /// The archive's name for messages. It says so if byte offsets count decompressed bytes.
        archive: String,
        /// Number of the entry, from 1. Extended headers count as part of the entry that they describe.
        entry_no: u64,
        /// Byte offset of the offending header or content in the decompressed archive.
        offset: u64,
        /// The entry's path as spelled in the archive, if it was known at that point.
        path: Vec<u8>,
        /// The finding.
        rule: String,
        /// The remedy.
        advice: &'static str,
    },
    /// An OCI image layout breaks a rule, or lacks the requested image.
    #[error("{}: {place}: {rule}; {advice}", ShownPath::of(layout))]
    Oci {
        /// The layout's directory.
        layout: PathBuf,
        /// The part of the layout: "index.json", "manifest sha256:…".
        place: String,
        /// The finding.
        rule: String,
        /// The remedy.
        advice: &'static str,
    },
}

impl SourceFault {
    /// An `Io` fault. `what` follows "cannot" in the message.
    pub fn io(what: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::Io { what, path: path.into(), source }
    }
}

/// A finding that the user should see, although the source could be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// The archive's name for messages.
    pub archive: String,
    /// Number of the entry, from 1.
    pub entry_no: u64,
    /// Byte offset of the entry in the decompressed archive.
    pub offset: u64,
    /// The entry's path as spelled in the archive; empty if the warning concerns the archive.
    pub path: Vec<u8>,
    /// The finding, and how the reader handled it.
    pub text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { archive, entry_no, offset, path, text } = self;
        write!(f, "{archive}: entry {entry_no} at byte {offset}{}: {text}", in_brackets(path))
    }
}

/// A broken rule without a location. Parsers return it, and the reader adds the location as it passes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    /// The finding.
    pub(crate) rule: Cow<'static, str>,
    /// The remedy.
    pub(crate) advice: &'static str,
}

impl Rule {
    /// A broken rule with its remedy.
    pub(crate) fn new(rule: impl Into<Cow<'static, str>>, advice: &'static str) -> Self {
        Self { rule: rule.into(), advice }
    }

    /// A broken rule that points to a damaged archive, or to a defect of the program that wrote it.
    pub(crate) fn damaged(rule: impl Into<Cow<'static, str>>) -> Self {
        Self::new(rule, DAMAGED)
    }
}

/// The remedy for an archive whose bytes make no sense.
pub(crate) const DAMAGED: &str = "the archive is damaged: fetch or create it again";

/// Formats a path of arbitrary bytes readably and on one line. Bytes that are not printable UTF-8 appear as
/// `\ooo`, as in `ls -b`, except that a space stays a space; a backslash is doubled. Shows at most 1 KiB.
#[derive(Debug, Clone, Copy)]
pub struct ShownPath<'a>(pub &'a [u8]);

impl<'a> ShownPath<'a> {
    /// Formats a path of this system.
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
                    // C0, DEL and C1 characters would control the terminal.
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

/// ` (path)`, or nothing for an empty path.
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
