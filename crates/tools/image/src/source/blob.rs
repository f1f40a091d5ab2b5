//! A part of an open file, as a file of its own.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

/// A file of an image: a range of bytes of an open file.
#[derive(Debug, Clone)]
pub(in crate::source) struct Blob {
    /// The open file that contains it.
    pub(in crate::source) file: Arc<File>,
    /// Byte offset of its start in that file.
    pub(in crate::source) start: u64,
    /// Its length in bytes.
    pub(in crate::source) len: u64,
    /// The path for messages.
    pub(in crate::source) path: PathBuf,
}

impl Blob {
    /// A reader of its bytes from the first one on.
    pub(in crate::source) fn reader(&self) -> Part {
        Part { file: Arc::clone(&self.file), at: self.start, end: self.start.saturating_add(self.len) }
    }
}

/// Reads a part of a file sequentially.
pub(in crate::source) struct Part {
    file: Arc<File>,
    at: u64,
    end: u64,
}

impl Read for Part {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        let wanted = buf.len().min(left);
        let got = self.file.read_at(&mut buf[..wanted], self.at)?;
        self.at += got as u64;
        Ok(got)
    }
}
