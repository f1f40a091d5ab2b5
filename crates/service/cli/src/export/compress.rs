//! Writes the bytes of an archive to a file, compressed according to the file's name.
//!
//! Does **not** own: the contents of the archive.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// A compression, chosen by the file name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    Gzip,
    Zstd,
    Xz,
}

/// The default levels of the compression programs.
const GZIP_LEVEL: u32 = 6;
const ZSTD_LEVEL: i32 = 3;
const XZ_LEVEL: u32 = 6;

/// Suffixes of compressed archives. `Err`: this program does not write the compression; the named one does.
const NAMES: [(&str, Result<Compression, &str>); 15] = [
    (".gz", Ok(Compression::Gzip)),
    (".tgz", Ok(Compression::Gzip)),
    (".zst", Ok(Compression::Zstd)),
    (".zstd", Ok(Compression::Zstd)),
    (".tzst", Ok(Compression::Zstd)),
    (".xz", Ok(Compression::Xz)),
    (".txz", Ok(Compression::Xz)),
    (".bz2", Err("bzip2")),
    (".tbz2", Err("bzip2")),
    (".tbz", Err("bzip2")),
    (".lz4", Err("lz4")),
    (".lz", Err("lzip")),
    (".lzma", Err("xz --format=lzma")),
    (".lzo", Err("lzop")),
    (".zip", Err("zip -r")),
];

/// The compression of an archive with this name.
///
/// # Errors
/// The name stands for a compression that is not written here: returns the program that writes it.
pub(crate) fn by_name(path: &Path) -> Result<Compression, &'static str> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let found = NAMES.iter().find(|(ending, _)| name.ends_with(ending) && name.len() > ending.len());
    found.map_or(Ok(Compression::None), |(_, how)| *how)
}

/// A file to which an archive is written.
pub(crate) enum Output {
    Plain(File),
    Gzip(Box<flate2::write::GzEncoder<File>>),
    Zstd(Box<zstd::Encoder<'static, File>>),
    Xz(Box<liblzma::write::XzEncoder<File>>),
}

impl Output {
    pub(crate) fn new(file: File, compression: Compression) -> io::Result<Self> {
        Ok(match compression {
            Compression::None => Self::Plain(file),
            Compression::Gzip => {
                // The encoder stores no name and no time, so the same archive gives the same bytes.
                let level = flate2::Compression::new(GZIP_LEVEL);
                Self::Gzip(Box::new(flate2::write::GzEncoder::new(file, level)))
            }
            Compression::Zstd => {
                let mut encoder = zstd::Encoder::new(file, ZSTD_LEVEL)?;
                encoder.include_checksum(true)?;
                Self::Zstd(Box::new(encoder))
            }
            Compression::Xz => Self::Xz(Box::new(liblzma::write::XzEncoder::new(file, XZ_LEVEL))),
        })
    }

    /// Writes the end of the compressed stream.
    pub(crate) fn finish(self) -> io::Result<()> {
        let mut file = match self {
            Self::Plain(file) => file,
            Self::Gzip(encoder) => encoder.finish()?,
            Self::Zstd(encoder) => encoder.finish()?,
            Self::Xz(encoder) => encoder.finish()?,
        };
        file.flush()
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(file) => file.write(bytes),
            Self::Gzip(encoder) => encoder.write(bytes),
            Self::Zstd(encoder) => encoder.write(bytes),
            Self::Xz(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(file) => file.flush(),
            Self::Gzip(encoder) => encoder.flush(),
            Self::Zstd(encoder) => encoder.flush(),
            Self::Xz(encoder) => encoder.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_how_an_archive_is_compressed() {
        let how = |name: &str| by_name(Path::new(name));
        assert_eq!(how("a.tar"), Ok(Compression::None));
        assert_eq!(how("dir.gz/a"), Ok(Compression::None));
        assert_eq!(how(".gz"), Ok(Compression::None));
        assert_eq!(how("a.TAR.GZ"), Ok(Compression::Gzip));
        assert_eq!(how("/x/a.tzst"), Ok(Compression::Zstd));
        assert_eq!(how("a.txz"), Ok(Compression::Xz));
        assert_eq!(how("a.tar.bz2"), Err("bzip2"));
    }
}
