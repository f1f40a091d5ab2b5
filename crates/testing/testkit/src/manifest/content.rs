//! The content of a regular file: a digest and a map of data and holes.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{OFlags, SeekFrom};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::open_quietly;

/// The piece size of the digest, in bytes.
const GRAIN: usize = 4096;

/// The content of a regular file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// The file was read.
    Read {
        /// SHA-256 of the content without its zeros: for each 4096-byte piece (the last may be shorter) that
        /// is not all zero, its number as 8 bytes little-endian, then the piece.
        ///
        /// Together with the size, it is equal exactly if all bytes are equal, wherever the holes are. A file
        /// of many TiB with little data takes little time.
        sha256: [u8; 32],
        /// The data that `SEEK_DATA` and `SEEK_HOLE` report: byte ranges, ascending, not adjacent. Unwritten
        /// extents count as holes on ext4.
        data: Vec<Range<u64>>,
    },
    /// The file was not read: no permission, or encrypted without a key (`ENOKEY`).
    Unreadable(Errno),
}

impl Content {
    /// Reads a file.
    ///
    /// # Panics
    /// It cannot be read for a reason other than a missing permission or key.
    pub(crate) fn read(path: &Path) -> Self {
        let file = match open_quietly(path, OFlags::RDONLY) {
            Ok(fd) => File::from(fd),
            Err(error @ (Errno::ACCESS | Errno::PERM | Errno::NOKEY)) => return Self::Unreadable(error),
            Err(error) => panic!("{}: {error}", path.display()),
        };
        let data = data_runs(&file).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let read_at = |buffer: &mut [u8], offset| file.read_at(buffer, offset);
        Self::from_reader(data, read_at).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// The content of a file. `data` must contain everything that is not zero (byte ranges, ascending, not
    /// adjacent; one range over the whole file is allowed). `read_at(buffer, offset_bytes)` returns the
    /// number of bytes read. It may return fewer than requested, but 0 only at the end of the file.
    ///
    /// It serves a reader other than the kernel, whose walk is compared with the kernel's.
    ///
    /// # Errors
    /// The first error of `read_at`.
    pub fn from_reader(
        data: Vec<Range<u64>>,
        read_at: impl FnMut(&mut [u8], u64) -> std::io::Result<usize>,
    ) -> std::io::Result<Self> {
        Ok(Self::Read { sha256: digest(read_at, &data)?, data })
    }
}

/// The data ranges of an open file.
fn data_runs(file: &File) -> rustix::io::Result<Vec<Range<u64>>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    let mut at = 0;
    loop {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(runs),
            Err(error) => return Err(error),
        };
        let end = match rustix::fs::seek(file, SeekFrom::Hole(start)) {
            Ok(end) => end,
            // ext4's answer after inline data that is shorter than the file (`mke2fs -d` makes such files
            // from holes).
            Err(Errno::NOENT) => rustix::fs::fstat(file)?.st_size.unsigned_abs(),
            Err(error) => return Err(error),
        };
        match runs.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => runs.push(start..end),
        }
        at = end;
    }
}

/// The digest that [`Content::Read`] defines. Ranges may start and end anywhere; each piece is read
/// completely, once.
fn digest(
    mut read_at: impl FnMut(&mut [u8], u64) -> std::io::Result<usize>,
    data: &[Range<u64>],
) -> std::io::Result<[u8; 32]> {
    let mut sha = Sha256::new();
    let mut buffer = vec![0u8; 64 * GRAIN];
    let grain = GRAIN as u64;
    let mut next_piece = 0;
    for run in data {
        next_piece = next_piece.max(run.start / grain);
        while next_piece * grain < run.end {
            let wanted = (run.end.next_multiple_of(grain) - next_piece * grain).min(buffer.len() as u64);
            let len = read_up_to(&mut read_at, &mut buffer[..wanted as usize], next_piece * grain)?;
            if len == 0 {
                break;
            }
            for piece in buffer[..len].chunks(GRAIN) {
                if piece.iter().any(|&byte| byte != 0) {
                    sha.update(next_piece.to_le_bytes());
                    sha.update(piece);
                }
                next_piece += 1;
            }
        }
    }
    Ok(sha.finalize().into())
}

/// Fills `buffer` from `offset`; with fewer bytes only at the end of the file.
fn read_up_to(
    read_at: &mut impl FnMut(&mut [u8], u64) -> std::io::Result<usize>,
    buffer: &mut [u8],
    offset: u64,
) -> std::io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match read_at(&mut buffer[done..], offset + done as u64)? {
            0 => break,
            n => done += n,
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn digest_of(runs: &[(u64, &[u8])], size: u64) -> Content {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.as_file_mut().set_len(size).unwrap();
        for (offset, bytes) in runs {
            file.as_file().write_all_at(bytes, *offset).unwrap();
        }
        file.flush().unwrap();
        Content::read(file.path())
    }

    fn sha256(content: Content) -> [u8; 32] {
        match content {
            Content::Read { sha256, .. } => sha256,
            Content::Unreadable(error) => panic!("{error}"),
        }
    }

    #[test]
    fn the_digest_sees_bytes_and_not_holes() {
        let zeros = vec![0u8; 20_000];
        let with_hole = sha256(digest_of(&[(9000, b"x")], 20_000));
        let without = sha256(digest_of(&[(0, &zeros), (9000, b"x")], 20_000));
        assert_eq!(with_hole, without);
        assert_ne!(with_hole, sha256(digest_of(&[(9001, b"x")], 20_000)));
        assert_ne!(with_hole, sha256(digest_of(&[(9000 + 4096, b"x")], 20_000)));
    }

    #[test]
    fn the_digest_is_the_one_that_is_documented() {
        let mut expected = Sha256::new();
        expected.update(2u64.to_le_bytes());
        let mut piece = vec![0u8; 1808];
        piece[0] = b'y';
        expected.update(&piece);
        assert_eq!(sha256(digest_of(&[(8192, b"y")], 10_000)), <[u8; 32]>::from(expected.finalize()));
    }

    #[test]
    fn a_huge_hole_takes_no_time() {
        match digest_of(&[], 1 << 40) {
            Content::Read { data, .. } => assert_eq!(data, []),
            Content::Unreadable(error) => panic!("{error}"),
        }
    }
}
