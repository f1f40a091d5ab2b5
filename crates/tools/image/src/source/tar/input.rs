//! The bytes of an archive: a regular file read at offsets, or a stream that is read sequentially and
//! unpacked.
//!
//! Owns: detection of the compression by its first bytes, decompression, and two ways to advance past
//! content. A file is its own backing, and its content is skipped without being read. The content of a stream
//! is copied to the spool.
//!
//! ```text
//! regular file, not compressed    pread windows over headers        payload = (the file, its offset)
//! everything else                 worker thread: read -> unpack -> chunks of 256 KiB -> here -> spool
//! ```
//! The worker unpacks the next chunk while the reader parses and the spool writes.
//!
//! Does **not** own: the meaning of the bytes.
//!
//! Source: RFC 1952 (gzip), RFC 8878 (zstd), the xz file format 1.1: magic bytes and concatenation.

use std::fs::File;
#[cfg(feature = "gzip")]
use std::io::BufRead;
use std::io::{self, BufReader, Chain, Cursor, Read};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use super::header::{BLOCK, Block, Header};
use crate::source::oci::Hash;
use crate::source::spool::{AppendFault, Spool};

/// Bytes per `pread` of a regular file. It covers the headers of a few small files in a row, but little of
/// the content between headers.
const WINDOW_BYTES: usize = 8 << 10;
/// Bytes per chunk from the worker.
const CHUNK_BYTES: usize = 256 << 10;
/// Number of chunks that the worker may unpack ahead of the reader.
const CHUNKS_AHEAD: usize = 4;
/// Memory limit of an xz decoder in bytes; `xz -9` needs 65 MiB.
#[cfg(feature = "xz")]
const XZ_MEMORY_MAX: u64 = 256 << 20;
/// Bytes of an uncompressed stream to read after the end of the archive, so that its writer gets no broken
/// pipe while it writes its last record. There is a limit because `/dev/zero` never ends.
const DRAIN_BYTES_MAX: u64 = 16 << 20;

/// The origin of an archive.
pub enum TarInput {
    /// A file by path; a pipe or device is read as a stream.
    Path(PathBuf),
    /// Standard input. A regular file is used as such, from its current position on.
    Stdin,
    /// Any reader, with a name for messages.
    Reader {
        /// Name for messages.
        name: String,
        /// The bytes; a separate thread reads them.
        reader: Box<dyn Read + Send>,
    },
}

impl std::fmt::Debug for TarInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Path(path) => f.debug_tuple("Path").field(path).finish(),
            Self::Stdin => f.write_str("Stdin"),
            Self::Reader { name, .. } => f.debug_tuple("Reader").field(name).finish(),
        }
    }
}

/// Limit on the unpacked size of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unpacking {
    /// 1 GiB, or 200 times the packed size if that is more.
    #[default]
    ByRatio,
    /// This number of bytes.
    AtMost(u64),
}

impl Unpacking {
    /// Unpacked bytes that every archive may have, and the maximal ratio of unpacked to packed bytes.
    const ALWAYS: u64 = 1 << 30;
    const RATIO: u64 = 200;

    fn check(self, packed: u64, unpacked: u64) -> io::Result<()> {
        let (most, ratio) = match self {
            Self::AtMost(most) => (most, None),
            Self::ByRatio => {
                (packed.saturating_mul(Self::RATIO).max(Self::ALWAYS), Some(unpacked / packed.max(1)))
            }
        };
        if unpacked <= most {
            return Ok(());
        }
        Err(io::Error::other(TooMuch { most, ratio }))
    }
}

/// The unpacked size of an archive exceeds its limit.
#[derive(Debug, thiserror::Error)]
pub(super) struct TooMuch {
    most: u64,
    ratio: Option<u64>,
}

impl std::fmt::Display for TooMuch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "it unpacks to more than {} bytes", self.most)?;
        match self.ratio {
            Some(ratio) => {
                write!(f, ", {ratio} times what was read of it, as archives do that are made to fill disks")
            }
            None => Ok(()),
        }
    }
}

/// The compression of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Uncompressed.
    None,
    /// gzip, one or more members.
    Gzip,
    /// Zstandard, one or more frames.
    Zstd,
    /// xz, one or more streams.
    Xz,
}

impl Compression {
    /// Name for messages; empty for an uncompressed archive.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
            Self::Xz => "xz",
        }
    }

    /// Whether this crate was compiled with the feature of the compression.
    fn is_compiled_in(self) -> bool {
        match self {
            Self::None => true,
            Self::Gzip => cfg!(feature = "gzip"),
            Self::Zstd => cfg!(feature = "zstd"),
            Self::Xz => cfg!(feature = "xz"),
        }
    }

    /// Detects the compression by the first bytes of an archive. `Err` is the name of an unsupported
    /// compression.
    pub(in crate::source) fn of(first: &[u8]) -> Result<Self, &'static str> {
        // A member's name may begin with any bytes, so a valid checksum has priority over a magic number.
        if first.first_chunk::<BLOCK>().is_some_and(|block| Header::verified(block).is_some()) {
            return Ok(Self::None);
        }
        let found = match first {
            [0x1f, 0x8b, ..] => Self::Gzip,
            // A frame, or a skippable frame, which pzstd writes first.
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Self::Xz,
            [b'B', b'Z', b'h', b'1'..=b'9', ..] => return Err("bzip2"),
            [b'L', b'Z', b'I', b'P', ..] => return Err("lzip"),
            [0x04, 0x22, 0x4d, 0x18, ..] => return Err("lz4"),
            [0x5d, 0, 0, ..] => return Err("lzma"),
            [0x1f, 0x9d, ..] => return Err("compress"),
            [0x89, b'L', b'Z', b'O', ..] => return Err("lzop"),
            [b'P', b'K', 3, 4, ..] => return Err("zip"),
            _ => Self::None,
        };
        if found.is_compiled_in() { Ok(found) } else { Err(found.name()) }
    }
}

/// The new location of content that was passed, or the fact that it was cut off.
pub(super) enum Stored {
    /// In this file, at this byte offset.
    At(Arc<File>, u64),
    /// The archive ends within the content.
    Cut,
}

/// Why content could not be stored for later reading.
pub(super) enum InputFault {
    /// Reading or unpacking the archive failed.
    Read(io::Error),
    /// Writing the spool failed.
    Spool(crate::source::fault::SourceFault),
}

impl From<io::Error> for InputFault {
    fn from(fault: io::Error) -> Self {
        Self::Read(fault)
    }
}

/// The unpacked bytes of an archive, with a position.
pub(super) enum Input {
    /// A regular file.
    File(FileInput),
    /// A stream.
    Stream(StreamInput),
}

impl Input {
    /// A regular file, read from `start` on.
    pub(super) fn file(file: Arc<File>, start: u64, end: u64) -> Self {
        Self::File(FileInput {
            file,
            at: start,
            end,
            window: vec![0; WINDOW_BYTES],
            window_at: 0,
            window_len: 0,
        })
    }

    /// A stream that a worker thread reads and unpacks. `first` holds the bytes already read from it.
    pub(super) fn stream(
        first: Vec<u8>,
        rest: Box<dyn Read + Send>,
        compression: Compression,
        unpacking: Unpacking,
        hash: Option<Hash>,
    ) -> io::Result<Self> {
        let (to_here, chunks) = sync_channel(CHUNKS_AHEAD);
        let (give_back, empties) = sync_channel(CHUNKS_AHEAD + 2);
        let packed = Arc::new(AtomicU64::new(0));
        let raw = Counted { inner: Cursor::new(first).chain(rest), count: Arc::clone(&packed) };
        let digest = Arc::new(Mutex::new(None));
        let worker = Worker { compression, unpacking, packed, hash, digest: Arc::clone(&digest) };
        std::thread::Builder::new()
            .name("unpack".into())
            .spawn(move || worker.unpack(raw, &to_here, &empties))?;
        Ok(Self::Stream(StreamInput {
            chunks,
            give_back,
            chunk: Vec::new(),
            used: 0,
            at: 0,
            ended: false,
            compression,
            digest,
        }))
    }

    /// Byte position in the unpacked archive; for a regular file, in that file.
    pub(super) fn position(&self) -> u64 {
        match self {
            Self::File(input) => input.at,
            Self::Stream(input) => input.at,
        }
    }

    /// Reads the next block. Returns the number of bytes, which is below [`BLOCK`] only at the end.
    pub(super) fn block(&mut self, block: &mut Block) -> io::Result<usize> {
        match self {
            Self::File(input) => input.block(block),
            Self::Stream(input) => read_full(input, block),
        }
    }

    /// The next block, without advancing; `None` if the archive ends before the block does.
    pub(super) fn peek(&mut self) -> io::Result<Option<Block>> {
        let mut block = [0; BLOCK];
        match self {
            Self::File(input) => {
                let at = input.at;
                let got = input.block(&mut block)?;
                input.at = at;
                Ok((got == BLOCK).then_some(block))
            }
            Self::Stream(input) => input.peek(),
        }
    }

    /// Appends the next `len` bytes to `bytes`, or fewer at the end. Allocates only for bytes that are
    /// present.
    pub(super) fn read(&mut self, bytes: &mut Vec<u8>, len: u64) -> io::Result<()> {
        match self {
            Self::File(input) => input.take(len).read_to_end(bytes)?,
            Self::Stream(input) => input.take(len).read_to_end(bytes)?,
        };
        Ok(())
    }

    /// Advances past `len` bytes of content and returns where they can be read later.
    pub(super) fn store(&mut self, len: u64, spool: &mut Spool) -> Result<Stored, InputFault> {
        match self {
            Self::File(input) => {
                let start = input.at;
                Ok(if input.step(len) { Stored::At(Arc::clone(&input.file), start) } else { Stored::Cut })
            }
            Self::Stream(input) => match spool.append(input, len) {
                Ok(start) => Ok(Stored::At(spool.file().map_err(InputFault::Spool)?, start)),
                Err(AppendFault::Ended(_)) => Ok(Stored::Cut),
                Err(AppendFault::Read(fault)) => Err(InputFault::Read(fault)),
                Err(AppendFault::Write(fault)) => Err(InputFault::Spool(fault)),
            },
        }
    }

    /// Skips `len` bytes. Returns `false` if the archive ends before that.
    pub(super) fn skip(&mut self, len: u64) -> io::Result<bool> {
        match self {
            Self::File(input) => Ok(input.step(len)),
            Self::Stream(input) => Ok(io::copy(&mut input.take(len), &mut io::sink())? == len),
        }
    }

    /// The digest of all unpacked bytes of a stream, once the stream has ended.
    pub(super) fn take_digest(&mut self) -> Option<String> {
        match self {
            Self::File(_) => None,
            Self::Stream(input) => input.digest.lock().unwrap_or_else(PoisonError::into_inner).take(),
        }
    }

    /// Reads a stream to its end. This verifies the checksums of the compression that are there, and lets the
    /// writer finish.
    pub(super) fn drain(&mut self) -> io::Result<()> {
        if let Self::Stream(input) = self {
            let most = if input.compression == Compression::None { DRAIN_BYTES_MAX } else { u64::MAX };
            io::copy(&mut input.take(most), &mut io::sink())?;
        }
        Ok(())
    }
}

/// A regular file with a window of bytes that are read at once. The window moves only for a read outside it.
pub(super) struct FileInput {
    file: Arc<File>,
    at: u64,
    end: u64,
    window: Vec<u8>,
    window_at: u64,
    window_len: usize,
}

impl FileInput {
    fn block(&mut self, block: &mut Block) -> io::Result<usize> {
        let inside = self.at.checked_sub(self.window_at).and_then(|at| usize::try_from(at).ok());
        if let Some(bytes) = inside.and_then(|at| self.window[..self.window_len].get(at..at + BLOCK)) {
            block.copy_from_slice(bytes);
            self.at += BLOCK as u64;
            return Ok(BLOCK);
        }
        read_full(self, block)
    }

    /// Advances by `len` bytes. Returns `false` if the file ends before that; the position is then the end.
    fn step(&mut self, len: u64) -> bool {
        match self.at.checked_add(len).filter(|&next| next <= self.end) {
            Some(next) => {
                self.at = next;
                true
            }
            None => {
                self.at = self.end;
                false
            }
        }
    }
}

impl Read for FileInput {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let window_end = self.window_at + self.window_len as u64;
        if !(self.window_at..window_end).contains(&self.at) {
            // The file may grow meanwhile; bytes after its end at the start do not count.
            let left = usize::try_from(self.end.saturating_sub(self.at)).unwrap_or(usize::MAX);
            let wanted = left.min(self.window.len());
            self.window_len = 0;
            self.window_at = self.at;
            self.window_len = self.file.read_at(&mut self.window[..wanted], self.at)?;
        }
        let inside = (self.at - self.window_at) as usize;
        let got = (&self.window[inside..self.window_len]).read(buf)?;
        self.at += got as u64;
        Ok(got)
    }
}

/// The unpacked bytes of a stream, in chunks from the worker.
pub(super) struct StreamInput {
    chunks: Receiver<io::Result<Vec<u8>>>,
    give_back: SyncSender<Vec<u8>>,
    chunk: Vec<u8>,
    used: usize,
    at: u64,
    ended: bool,
    compression: Compression,
    /// Digest of all bytes; the worker sets it before its last chunk.
    digest: Arc<Mutex<Option<String>>>,
}

impl StreamInput {
    /// Receives the worker's next chunk. An empty chunk marks the end.
    fn next_chunk(&mut self) -> io::Result<Vec<u8>> {
        let chunk = self.chunks.recv().unwrap_or_else(|_| {
            Err(io::Error::other("the thread that unpacks the archive stopped without a word"))
        });
        self.ended = chunk.as_ref().map_or(true, Vec::is_empty);
        chunk
    }

    fn peek(&mut self) -> io::Result<Option<Block>> {
        while self.chunk.len() - self.used < BLOCK && !self.ended {
            // Rare (the header of a hard link at the end of a chunk): move the remaining bytes to the front
            // of the next chunk.
            let next = self.next_chunk()?;
            self.chunk.drain(..self.used);
            self.chunk.extend_from_slice(&next);
            self.used = 0;
        }
        Ok(self.chunk[self.used..].first_chunk().copied())
    }
}

impl Read for StreamInput {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.used == self.chunk.len() && !self.ended && !buf.is_empty() {
            let chunk = self.next_chunk()?;
            let empty = std::mem::replace(&mut self.chunk, chunk);
            self.used = 0;
            // If the receiver is gone, the memory is freed here.
            let _ = self.give_back.try_send(empty);
        }
        let got = (&self.chunk[self.used..]).read(buf)?;
        self.used += got;
        self.at += got as u64;
        Ok(got)
    }
}

/// Fills `buf`; with fewer bytes only at the end or before a fault.
fn fill(reader: &mut (impl Read + ?Sized), buf: &mut [u8]) -> (usize, io::Result<()>) {
    let mut filled = 0;
    while filled < buf.len() {
        match reader.read(&mut buf[filled..]) {
            Ok(0) => break,
            Ok(got) => filled += got,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return (filled, Err(e)),
        }
    }
    (filled, Ok(()))
}

/// Fills `buf`; with fewer bytes only at the end.
pub(in crate::source) fn read_full(reader: &mut (impl Read + ?Sized), buf: &mut [u8]) -> io::Result<usize> {
    let (filled, outcome) = fill(reader, buf);
    outcome.map(|()| filled)
}

type Raw = Counted<Chain<Cursor<Vec<u8>>, Box<dyn Read + Send>>>;

/// Counts the bytes read.
struct Counted<R> {
    inner: R,
    count: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.inner.read(buf)?;
        self.count.fetch_add(got as u64, Ordering::Relaxed);
        Ok(got)
    }
}

/// The thread that reads and unpacks an archive.
struct Worker {
    compression: Compression,
    unpacking: Unpacking,
    /// Packed bytes read so far.
    packed: Arc<AtomicU64>,
    hash: Option<Hash>,
    digest: Arc<Mutex<Option<String>>>,
}

impl Worker {
    /// Unpacks until the end, a fault, or until the receiver is dropped.
    fn unpack(mut self, raw: Raw, to_here: &SyncSender<io::Result<Vec<u8>>>, empties: &Receiver<Vec<u8>>) {
        let mut reader = match unpacker(raw, self.compression) {
            Ok(reader) => reader,
            Err(fault) => {
                let _ = to_here.send(Err(fault));
                return;
            }
        };
        let mut unpacked = 0;
        loop {
            let mut chunk = empties.try_recv().unwrap_or_default();
            chunk.resize(CHUNK_BYTES, 0);
            let (filled, mut outcome) = fill(&mut reader, &mut chunk);
            chunk.truncate(filled);
            unpacked += filled as u64;
            if self.compression != Compression::None && outcome.is_ok() {
                outcome = self.unpacking.check(self.packed.load(Ordering::Relaxed), unpacked);
            }
            if let Some(hash) = &mut self.hash {
                hash.update(&chunk);
            }
            let is_last = filled == 0 && outcome.is_ok();
            if is_last {
                *self.digest.lock().unwrap_or_else(PoisonError::into_inner) = self.hash.take().map(Hash::hex);
            }
            // Send the bytes before a fault first, so that messages name the right entry.
            if (filled > 0 || is_last) && to_here.send(Ok(chunk)).is_err() {
                return;
            }
            if let Err(fault) = outcome {
                let _ = to_here.send(Err(fault));
                return;
            }
            if is_last {
                return;
            }
        }
    }
}

fn unpacker(raw: Raw, compression: Compression) -> io::Result<Box<dyn Read>> {
    let buffered = BufReader::with_capacity(CHUNK_BYTES, raw);
    Ok(match compression {
        Compression::None => Box::new(buffered.into_inner()),
        #[cfg(feature = "gzip")]
        Compression::Gzip => {
            Box::new(GzipMembers { member: Some(flate2::bufread::GzDecoder::new(buffered)) })
        }
        #[cfg(feature = "zstd")]
        Compression::Zstd => Box::new(zstd::stream::read::Decoder::with_buffer(buffered)?),
        #[cfg(feature = "xz")]
        Compression::Xz => {
            let stream =
                liblzma::stream::Stream::new_stream_decoder(XZ_MEMORY_MAX, liblzma::stream::CONCATENATED)?;
            Box::new(liblzma::bufread::XzDecoder::new_stream(buffered, stream))
        }
        // `Compression::of` does not return these.
        #[cfg(not(all(feature = "gzip", feature = "xz", feature = "zstd")))]
        _ => return Err(io::Error::from(io::ErrorKind::Unsupported)),
    })
}

/// Reads gzip members one after another. Zeros after the last member are padding of tapes.
#[cfg(feature = "gzip")]
struct GzipMembers<R> {
    /// `None` only after the last member.
    member: Option<flate2::bufread::GzDecoder<R>>,
}

#[cfg(feature = "gzip")]
impl<R: BufRead> Read for GzipMembers<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.member {
            let got = member.read(buf)?;
            if got > 0 || buf.is_empty() {
                return Ok(got);
            }
            // The member is complete and its checksum is valid. Check what follows.
            let Some(mut rest) = self.member.take().map(flate2::bufread::GzDecoder::into_inner) else {
                break;
            };
            let next = loop {
                let bytes = rest.fill_buf()?;
                let zeros = bytes.iter().take_while(|&&b| b == 0).count();
                if zeros == 0 {
                    break bytes.first().copied();
                }
                rest.consume(zeros);
            };
            match next {
                None => break,
                Some(0x1f) => self.member = Some(flate2::bufread::GzDecoder::new(rest)),
                Some(_) => {
                    let words = "bytes that are not gzip follow the end of the gzip data";
                    return Err(io::Error::new(io::ErrorKind::InvalidData, words));
                }
            }
        }
        Ok(0)
    }
}
