//! The spool: one unlinked temporary file with file content that was unpacked from compressed or streamed
//! sources.
//!
//! Several sources append to one spool, one source after another. Later, several threads read the content at
//! any offset; the spool is the backing file of the sources' payloads.
//!
//! Does **not** own: the meaning of the bytes, or the decision to copy them. An uncompressed archive in a
//! regular file is its own backing, and nothing is copied.
//! Invariants
//! 1. The file is created only when the first byte, or the first [`Spool::file`], needs it.
//! 2. The file has no name, so it leaves nothing behind, however the process ends.
//! 3. Appended bytes are in the file only after [`Spool::flush`]. The readers in the sibling modules flush
//!    before they return.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use super::fault::SourceFault;

/// Bytes are written to the file in chunks of this size.
const BUFFER_BYTES: usize = 1 << 20;

/// An unlinked temporary file that grows at its end.
#[derive(Debug)]
pub struct Spool {
    dir: PathBuf,
    file: Option<Arc<File>>,
    /// Empty until the first use, then `BUFFER_BYTES` long.
    buffer: Vec<u8>,
    /// Bytes of the buffer that are not written to the file yet.
    filled: usize,
    /// Bytes in the file.
    written: u64,
}

/// Why [`Spool::append`] failed.
#[derive(Debug)]
pub enum AppendFault {
    /// The reader failed.
    Read(io::Error),
    /// The reader ended after this many bytes.
    Ended(u64),
    /// The spool's file could not be created or written.
    Write(SourceFault),
}

impl Spool {
    /// Makes a spool with its file in `dir`. No file is created yet.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), file: None, buffer: Vec::new(), filled: 0, written: 0 }
    }

    /// Bytes appended so far.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.written + self.filled as u64
    }

    /// Whether nothing was appended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The file; creates it if necessary. Appended bytes can be read from it after [`Spool::flush`].
    ///
    /// # Errors
    /// No temporary file can be created in the directory.
    pub fn file(&mut self) -> Result<Arc<File>, SourceFault> {
        if let Some(file) = &self.file {
            return Ok(Arc::clone(file));
        }
        let file = tempfile::tempfile_in(&self.dir)
            .map_err(|e| SourceFault::io("create a temporary file for unpacked content in", &self.dir, e))?;
        let file = Arc::new(file);
        self.file = Some(Arc::clone(&file));
        Ok(file)
    }

    /// Appends exactly `len` bytes from `source` and returns the offset of the first one.
    ///
    /// # Errors
    /// See [`AppendFault`]. After a fault the spool can still be used; the bytes copied so far stay in it
    /// unused.
    pub fn append(&mut self, source: &mut (impl Read + ?Sized), len: u64) -> Result<u64, AppendFault> {
        let start = self.len();
        if self.buffer.is_empty() {
            self.buffer = vec![0; BUFFER_BYTES];
        }
        let mut left = len;
        while left > 0 {
            if self.filled == self.buffer.len() {
                self.flush().map_err(AppendFault::Write)?;
            }
            let room = &mut self.buffer[self.filled..];
            let wanted = usize::try_from(left).map_or(room.len(), |left| left.min(room.len()));
            match source.read(&mut room[..wanted]) {
                Ok(0) => return Err(AppendFault::Ended(len - left)),
                Ok(got) => {
                    self.filled += got;
                    left -= got as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(AppendFault::Read(e)),
            }
        }
        Ok(start)
    }

    /// Writes buffered bytes to the file.
    ///
    /// # Errors
    /// The file cannot be created or written, most often because the spool's directory has no space left.
    pub fn flush(&mut self) -> Result<(), SourceFault> {
        if self.filled == 0 {
            return Ok(());
        }
        let file = self.file()?;
        file.write_all_at(&self.buffer[..self.filled], self.written)
            .map_err(|e| SourceFault::io("write unpacked content to a temporary file in", &self.dir, e))?;
        self.written += self.filled as u64;
        self.filled = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appended_bytes_are_found_at_the_returned_offsets() {
        let dir = tempfile::tempdir().unwrap();
        let mut spool = Spool::new(dir.path());
        let large: Vec<u8> = (0..3 * BUFFER_BYTES + 17).map(|i| (i % 251) as u8).collect();
        let first = spool.append(&mut &b"hello"[..], 5).unwrap();
        let second = spool.append(&mut &large[..], large.len() as u64).unwrap();
        assert_eq!((first, second, spool.len()), (0, 5, 5 + large.len() as u64));
        spool.flush().unwrap();
        let mut back = vec![0; large.len()];
        spool.file().unwrap().read_exact_at(&mut back, second).unwrap();
        assert!(back == large);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the file has no name");
    }

    #[test]
    fn a_short_reader_is_distinguished_from_a_failing_one() {
        let mut spool = Spool::new(std::env::temp_dir());
        assert!(matches!(spool.append(&mut &b"abc"[..], 10), Err(AppendFault::Ended(3))));
        assert_eq!(spool.append(&mut &b"xy"[..], 2).unwrap(), 3);
    }

    #[test]
    fn nothing_is_created_before_it_is_needed() {
        let mut spool = Spool::new("/nonexistent/directory");
        assert_eq!(spool.append(&mut &b""[..], 0).unwrap(), 0);
        spool.flush().unwrap();
        spool.append(&mut &b"x"[..], 1).unwrap();
        let fault = spool.flush().unwrap_err();
        assert!(fault.to_string().starts_with("cannot create a temporary file"), "{fault}");
    }
}
