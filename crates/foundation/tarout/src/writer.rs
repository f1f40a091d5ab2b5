//! The output stream: headers, data and padding in order, in few large writes.

use std::io::{self, IoSlice, Write};

use crate::{BLOCK_BYTES, Begun, Entry, TarFault, encode, padding_bytes};

/// The buffer is written when it has this many bytes.
const BATCH_BYTES: usize = 1 << 20;
/// Data from this size on is not copied into the buffer, but written zero-copy together with the buffer.
const DIRECT_BYTES: usize = 64 << 10;
/// The archive size is a multiple of this, as POSIX requires (a tape record).
const RECORD_BYTES: u64 = 10240;

/// Writes one archive: [`entry`](Self::entry), then its [`data`](Self::data), and so on, then
/// [`finish`](Self::finish). After [`TarFault::Io`] the archive is unusable.
#[derive(Debug)]
pub struct TarWriter<W> {
    output: W,
    buffer: Vec<u8>,
    /// Bytes written to `output` before the buffer.
    written: u64,
    /// Data bytes announced by the last entry.
    announced: u64,
    /// Announced bytes not written yet.
    missing: u64,
}

impl<W: Write> TarWriter<W> {
    /// Creates a writer to `output`, which needs no buffer of its own.
    #[must_use]
    pub fn new(output: W) -> Self {
        let buffer = Vec::with_capacity(BATCH_BYTES + DIRECT_BYTES);
        Self { output, buffer, written: 0, announced: 0, missing: 0 }
    }

    /// Begins a member. Returns how many bytes of data must follow, and whether they are the whole file or
    /// its runs.
    ///
    /// # Errors
    /// [`TarFault::Data`] if the previous member is not complete; [`TarFault::Path`] and [`TarFault::Runs`],
    /// after which the caller may continue with another entry; [`TarFault::Io`].
    pub fn entry(&mut self, entry: &Entry<'_>) -> Result<Begun, TarFault> {
        self.check_complete()?;
        let begun = encode(entry, &mut self.buffer)?;
        (self.announced, self.missing) = (begun.data_bytes(), begun.data_bytes());
        self.write_if_full()?;
        Ok(begun)
    }

    /// Writes data of the current member, in any number of pieces. Large pieces (64 KiB and more) are not
    /// copied.
    ///
    /// # Errors
    /// [`TarFault::Data`] if it exceeds the announced size, and nothing is written then; [`TarFault::Io`].
    pub fn data(&mut self, bytes: &[u8]) -> Result<(), TarFault> {
        self.take(bytes.len() as u64)?;
        if bytes.len() >= DIRECT_BYTES {
            self.write_buffer_and(bytes)?;
        } else {
            self.buffer.extend_from_slice(bytes);
        }
        self.pad_if_complete();
        self.write_if_full()
    }

    /// Writes zeros as data of the member: the holes of a file that is stored whole.
    ///
    /// # Errors
    /// Like [`data`](Self::data).
    pub fn zeros(&mut self, mut len_bytes: u64) -> Result<(), TarFault> {
        self.take(len_bytes)?;
        while len_bytes > 0 {
            let part = len_bytes.min(BATCH_BYTES as u64);
            self.buffer.resize(self.buffer.len() + part as usize, 0);
            len_bytes -= part;
            self.write_if_full()?;
        }
        self.pad_if_complete();
        self.write_if_full()
    }

    /// Writes complete members that were built with [`encode`]: headers, data, padding.
    ///
    /// # Errors
    /// [`TarFault::Data`] if the previous member is not complete, or these are not whole blocks;
    /// [`TarFault::Io`].
    pub fn members(&mut self, encoded: &[u8]) -> Result<(), TarFault> {
        self.check_complete()?;
        if !encoded.len().is_multiple_of(BLOCK_BYTES) {
            let announced_bytes = encoded.len().next_multiple_of(BLOCK_BYTES) as u64;
            return Err(TarFault::Data { announced_bytes, came: encoded.len().to_string() });
        }
        if encoded.len() >= DIRECT_BYTES {
            return self.write_buffer_and(encoded);
        }
        self.buffer.extend_from_slice(encoded);
        self.write_if_full()
    }

    /// Bytes of the archive so far.
    #[must_use]
    pub fn position_bytes(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// Writes the end mark and the rest of the buffer, flushes the output and returns it.
    ///
    /// # Errors
    /// [`TarFault::Data`] if the last member is not complete; [`TarFault::Io`].
    pub fn finish(mut self) -> Result<W, TarFault> {
        self.check_complete()?;
        self.buffer.resize(self.buffer.len() + 2 * BLOCK_BYTES, 0);
        let more = self.position_bytes().next_multiple_of(RECORD_BYTES) - self.position_bytes();
        self.buffer.resize(self.buffer.len() + more as usize, 0);
        self.write_buffer_and(&[])?;
        self.output.flush()?;
        Ok(self.output)
    }

    fn take(&mut self, len: u64) -> Result<(), TarFault> {
        match self.missing.checked_sub(len) {
            Some(rest) => {
                self.missing = rest;
                Ok(())
            }
            None => Err(TarFault::Data { announced_bytes: self.announced, came: "more".to_owned() }),
        }
    }

    fn check_complete(&self) -> Result<(), TarFault> {
        if self.missing == 0 {
            return Ok(());
        }
        let came = (self.announced - self.missing).to_string();
        Err(TarFault::Data { announced_bytes: self.announced, came })
    }

    fn pad_if_complete(&mut self) {
        if self.missing == 0 {
            let padding = padding_bytes(self.announced);
            self.buffer.resize(self.buffer.len() + padding, 0);
            self.announced = 0; // padded once, even if an empty piece of data comes now
        }
    }

    fn write_if_full(&mut self) -> Result<(), TarFault> {
        if self.buffer.len() >= BATCH_BYTES { self.write_buffer_and(&[]) } else { Ok(()) }
    }

    /// Writes the buffer and then `bytes`: in one call if the output accepts them.
    fn write_buffer_and(&mut self, bytes: &[u8]) -> Result<(), TarFault> {
        let len = (self.buffer.len() + bytes.len()) as u64;
        let mut slices = [IoSlice::new(&self.buffer), IoSlice::new(bytes)];
        let mut rest = &mut slices[..];
        IoSlice::advance_slices(&mut rest, 0); // drops what is empty
        while !rest.is_empty() {
            match self.output.write_vectored(rest) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                Ok(taken) => IoSlice::advance_slices(&mut rest, taken),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.buffer.clear();
        self.written += len;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, Time};

    fn file(path: &[u8], size_bytes: u64) -> Entry<'_> {
        Entry::new(path, Kind::File { size_bytes, runs: None }, Time::default())
    }

    /// Accepts a few bytes at a time, and sometimes fails with EINTR, like a terminal or after a signal.
    #[derive(Default)]
    struct Reluctant {
        bytes: Vec<u8>,
        calls: usize,
    }

    impl Write for Reluctant {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.calls += 1;
            if self.calls.is_multiple_of(3) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let len = bytes.len().min(70_001);
            self.bytes.extend_from_slice(&bytes[..len]);
            Ok(len)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn however_data_is_cut_and_taken_the_archive_is_the_same() {
        let data: Vec<u8> = (0..3_000_001u32).map(|i| (i % 251) as u8).collect();
        let write = |pieces: usize| {
            let mut tar = TarWriter::new(Reluctant::default());
            for name in [&b"a"[..], b"b"] {
                assert_eq!(tar.entry(&file(name, data.len() as u64)).unwrap(), Begun::Whole(3_000_001));
                data.chunks(pieces).for_each(|piece| tar.data(piece).unwrap());
                tar.data(b"").unwrap();
            }
            tar.finish().unwrap().bytes
        };
        let whole = write(usize::MAX);
        assert_eq!(whole.len() % 10240, 0);
        assert_eq!(whole[512..512 + data.len()], data);
        assert!([1000, 65_535, 65_536, 1 << 20].into_iter().all(|pieces| write(pieces) == whole));
        // Built without the writer, with zeros after the data.
        let mut member = Vec::new();
        let mut tar = TarWriter::new(Vec::new());
        for name in [&b"a"[..], b"b"] {
            member.clear();
            encode(&file(name, data.len() as u64), &mut member).unwrap();
            member.extend_from_slice(&data);
            member.resize(member.len() + padding_bytes(data.len() as u64), 0);
            tar.members(&member).unwrap();
        }
        assert_eq!(tar.position_bytes(), 2 * member.len() as u64);
        assert_eq!(tar.finish().unwrap(), whole);
    }

    #[test]
    fn zeros_are_data() {
        let len = 5_000_000;
        let (mut ours, mut plain) = (TarWriter::new(Vec::new()), TarWriter::new(Vec::new()));
        ours.entry(&file(b"z", len)).unwrap();
        ours.zeros(len).unwrap();
        plain.entry(&file(b"z", len)).unwrap();
        plain.data(&vec![0; len as usize]).unwrap();
        assert!(ours.finish().unwrap() == plain.finish().unwrap());
    }

    #[test]
    fn members_are_whole_or_an_error() {
        let mut tar = TarWriter::new(Vec::new());
        tar.entry(&file(b"a", 10)).unwrap();
        tar.data(b"12345").unwrap();
        assert!(tar.data(b"678901").unwrap_err().to_string().contains("announced 10 bytes, and more came"));
        let error = tar.entry(&file(b"b", 0)).unwrap_err();
        assert_eq!(error.to_string(), "the member's header announced 10 bytes, and 5 came");
        assert!(matches!(tar.members(&[0; 512]), Err(TarFault::Data { .. })));
        assert!(tar.zeros(6).is_err());
        tar.zeros(5).unwrap();
        assert!(matches!(tar.members(&[0; 511]), Err(TarFault::Data { .. })));
        assert!(tar.data(b"1").is_err());
        assert_eq!(tar.finish().unwrap().len(), 10240);
    }

    #[test]
    fn large_data_goes_out_in_one_write_with_what_was_waiting() {
        #[derive(Default)]
        struct Counting(Vec<usize>);
        impl Write for Counting {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.push(bytes.len());
                Ok(bytes.len())
            }
            fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
                self.0.push(slices.iter().map(|slice| slice.len()).sum());
                Ok(slices.iter().map(|slice| slice.len()).sum())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut tar = TarWriter::new(Counting::default());
        for _ in 0..100 {
            tar.entry(&file(b"small", 1000)).unwrap();
            tar.data(&[1; 1000]).unwrap();
        }
        tar.entry(&file(b"large", 1 << 20)).unwrap();
        tar.data(&vec![1; 1 << 20]).unwrap();
        assert_eq!(
            tar.finish().unwrap().0,
            [100 * 1536 + 512 + (1 << 20), 10240 - (100 * 1536 + 512 + (1 << 20)) % 10240]
        );
    }
}
