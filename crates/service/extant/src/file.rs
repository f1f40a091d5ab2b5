//! An open file: implements the standard library's `Read`, `Write` and `Seek`, and reads and writes at
//! offsets.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use extant_volume::{Allocate, ErrorCursor, Fault, InodeRef, Refusal, Seek as Sought, SetAttr, Stat, Volume};

use crate::error::fault_kind;

/// An open regular file, for reading, and for writing if the file system is open for writing.
///
/// All reads and writes use explicit offsets internally, so each clone has its own position, and several
/// threads may use [`read_at`](Self::read_at) and [`write_at`](Self::write_at) on one file at the same time.
/// Written bytes stay in memory until [`sync_all`](Self::sync_all) or [`sync_data`](Self::sync_data), or for
/// half a minute; with [`set_durable`](Self::set_durable) each write is durable when it returns. The next
/// sync returns write-back errors, once for each file that was opened before the error (clones count as one).
///
/// If the file system is open for writing, each call uses the current state of the file, and the file stays
/// alive while it is open, even after its last name is removed.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
/// # let memory = example::empty_memory(16 << 20);
/// # let fs = extant::FileSystem::from_device_writable(memory, &Default::default())?;
/// use std::io::{Read, Seek, Write};
///
/// let mut file = fs.write("/file", b"")?;
/// write!(file, "line {}", 1)?;
/// file.rewind()?;
/// let mut text = String::new();
/// file.read_to_string(&mut text)?;
/// assert_eq!(text, "line 1");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct File {
    held: Arc<Held>,
    position: u64,
    durable: Durable,
}

/// What is durable when a write returns.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
/// # let memory = example::empty_memory(16 << 20);
/// # let fs = extant::FileSystem::from_device_writable(memory, &Default::default())?;
/// let mut file = fs.write("/journal", b"")?;
/// file.set_durable(extant::Durable::Data);
/// file.append(b"record\n")?; // durable when it returns
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Durable {
    /// Nothing; see [`File::sync_all`].
    #[default]
    Later,
    /// The bytes, and the metadata needed to read them again, like O_DSYNC.
    Data,
    /// The times as well, like O_SYNC.
    All,
}

/// Keeps an inode alive.
struct Held {
    volume: Arc<Volume>,
    inode: InodeRef,
    error_cursor: ErrorCursor,
}

impl Drop for Held {
    fn drop(&mut self) {
        // An inode that cannot be deleted now stays an orphan; the next opening for writing deletes it.
        let _ = self.volume.released(self.inode.ino());
    }
}

impl File {
    pub(crate) fn new(volume: Arc<Volume>, inode: InodeRef) -> Result<Self, Fault> {
        volume.opened(inode.ino())?;
        let mut held = Held { volume, inode, error_cursor: ErrorCursor::default() };
        held.error_cursor = held.volume.files().sample_errors(held.inode.ino())?;
        Ok(Self { held: Arc::new(held), position: 0, durable: Durable::Later })
    }

    /// Chooses what is durable when a write returns. Later clones inherit the choice.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// # let fs = extant::FileSystem::from_device_writable(memory, &Default::default())?;
    /// use extant::Durable;
    ///
    /// let mut file = fs.write("/journal", b"")?;
    /// file.set_durable(Durable::All);
    /// file.write_at(b"record\n", 0)?; // durable, with its time
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_durable(&mut self, durable: Durable) {
        self.durable = durable;
    }

    fn write_some(&self, bytes: &[u8], offset: u64) -> Result<usize, Fault> {
        let done = self.held.volume.files().write_at(self.held.inode.ino(), offset, bytes)?;
        self.keep(offset, done as u64)?;
        Ok(done)
    }

    /// Makes written bytes durable, as far as `durable` requires it.
    fn keep(&self, offset: u64, len: u64) -> Result<(), Fault> {
        let Held { volume, inode, error_cursor } = &*self.held;
        match self.durable {
            Durable::Later => Ok(()),
            Durable::Data | Durable::All => {
                let data_only = self.durable == Durable::Data;
                volume.files().fsync_range(inode.ino(), offset..offset + len, Some(error_cursor), data_only)
            }
        }
    }

    /// The inode as it is now, or as it was when opened if it cannot be read.
    fn now(&self) -> InodeRef {
        let held = &self.held;
        match held.volume.is_writable() {
            true => held.volume.inode(held.inode.ino()).unwrap_or_else(|_| Arc::clone(&held.inode)),
            false => Arc::clone(&held.inode),
        }
    }

    /// Reads from byte `offset` on. Returns fewer bytes than requested only at the end of the file.
    ///
    /// # Errors
    /// The map is corrupt; the content is encrypted; the device failed.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// let mut bytes = [0; 8];
    /// assert_eq!(fs.file("/etc/motd")?.read_at(&mut bytes, 2)?, 4);
    /// assert_eq!(&bytes[..4], b"llo\n");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Fault> {
        self.held.volume.files().read(&self.now(), offset, buf)
    }

    /// Writes all of `bytes` from byte `offset` on, which may lie past the end.
    ///
    /// # Errors
    /// [`Refusal::NoSpace`](crate::Refusal::NoSpace), after the bytes that fit are written;
    /// [`Refusal::TooLarge`](crate::Refusal::TooLarge),
    /// [`Refusal::NotPermitted`](crate::Refusal::NotPermitted),
    /// [`Refusal::ReadOnly`](crate::Refusal::ReadOnly) if the file system is not open for writing; the device
    /// failed.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// # let fs = extant::FileSystem::from_device_writable(memory, &Default::default())?;
    /// let file = fs.write("/file", b"hello")?;
    /// file.write_at(b"j", 0)?;
    /// assert_eq!(fs.read("/file")?, b"jello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), Fault> {
        let mut done = 0;
        while done < bytes.len() {
            done += self.write_some(&bytes[done..], offset + done as u64)?;
        }
        Ok(())
    }

    /// Writes all of `bytes` at the current end of the file, and returns the offset where they begin.
    /// Concurrent appends do not overlap, whether through clones or through separately opened files.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// # let fs = extant::FileSystem::from_device_writable(memory, &extant::OpenOptions::default())?;
    /// let log = fs.write("/log", b"first\n")?;
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| log.append(b"second\n"));
    ///     scope.spawn(|| log.append(b"second\n"));
    /// });
    /// assert_eq!(log.append(b"last\n")?, 20);
    /// assert_eq!(fs.read("/log")?, b"first\nsecond\nsecond\nlast\n");
    /// # fs.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn append(&self, bytes: &[u8]) -> Result<u64, Fault> {
        let (start, done) = self.held.volume.files().append(self.held.inode.ino(), bytes)?;
        self.keep(start, done as u64)?;
        if done == bytes.len() { Ok(start) } else { Err(Refusal::NoSpace.into()) }
    }

    /// Copies `len` bytes from byte `offset` on to byte `target_offset` of a file of the same file system.
    /// The target may be this file if the ranges do not overlap. Returns the number of bytes copied: fewer at
    /// the end of this file, and if there is no space for more. Holes stay holes where the target has no
    /// blocks.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] if the ranges overlap or the files are of different file systems; as
    /// [`read_at`](Self::read_at), and as [`write_at`](Self::write_at) of the target.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// # let fs = extant::FileSystem::from_device_writable(memory, &extant::OpenOptions::default())?;
    /// let from = fs.write("/from", b"some bytes")?;
    /// from.set_len(1 << 30)?;
    /// let to = fs.write("/to", b"")?;
    /// assert_eq!(from.copy_range(0, &to, 0, u64::MAX)?, 1 << 30);
    /// let hole = to.seek_hole(0)?.expect("it ends in one");
    /// assert_eq!((hole, to.seek_data(hole)?), (fs.statfs()?.block_size.into(), None));
    /// # fs.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn copy_range(&self, offset: u64, target: &Self, target_offset: u64, len: u64) -> Result<u64, Fault> {
        if !Arc::ptr_eq(&self.held.volume, &target.held.volume) {
            return Err(Refusal::Invalid.into());
        }
        let (from, to) = ((self.held.inode.ino(), offset), (target.held.inode.ino(), target_offset));
        let done = self.held.volume.files().copy_range(from, to, len)?;
        target.keep(target_offset, done)?;
        Ok(done)
    }

    /// The offset of the first data at or after `offset`, like SEEK_DATA; `None` if there is none before the
    /// end. Unwritten blocks count as holes.
    ///
    /// # Errors
    /// The map is corrupt; the device failed.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// # let fs = extant::FileSystem::from_device_writable(memory, &Default::default())?;
    /// let file = fs.write("/sparse", b"")?;
    /// file.write_at(b"tail", 1 << 20)?;
    /// assert_eq!(file.seek_data(0)?, Some(1 << 20));
    /// assert_eq!(file.seek_data(2 << 20)?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn seek_data(&self, offset: u64) -> Result<Option<u64>, Fault> {
        self.seek_to(offset, Sought::Data)
    }

    /// The offset of the first hole at or after `offset`, like SEEK_HOLE. The end of the file counts as a
    /// hole. Returns `None` if `offset` is at or past the end.
    ///
    /// # Errors
    /// As [`seek_data`](Self::seek_data).
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// # let fs = extant::FileSystem::from_device_writable(memory, &extant::OpenOptions::default())?;
    /// let file = fs.write("/sparse", b"head")?;
    /// file.write_at(b"tail", 1 << 20)?;
    /// let block = u64::from(fs.statfs()?.block_size);
    /// let (mut at, mut pieces) = (0, Vec::new());
    /// while let Some(start) = file.seek_data(at)? {
    ///     let end = file.seek_hole(start)?.unwrap_or(start);
    ///     pieces.push(start..end);
    ///     at = end;
    /// }
    /// assert_eq!(pieces, [0..block, (1 << 20)..(1 << 20) + 4]);
    /// # fs.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn seek_hole(&self, offset: u64) -> Result<Option<u64>, Fault> {
        self.seek_to(offset, Sought::Hole)
    }

    fn seek_to(&self, offset: u64, what: Sought) -> Result<Option<u64>, Fault> {
        match self.held.volume.files().seek(&self.now(), offset, what) {
            Ok(found) => Ok(Some(found)),
            Err(fault) if fault.is(Refusal::PastEnd) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// Sets the size: truncates the file, or extends it with a hole.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// # let fs = extant::FileSystem::from_device_writable(memory, &Default::default())?;
    /// let file = fs.write("/file", b"hello")?;
    /// file.set_len(1 << 30)?; // a hole
    /// assert_eq!((file.len(), file.seek_data(4096)?), (1 << 30, None));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_len(&self, len: u64) -> Result<(), Fault> {
        let set = SetAttr { size: Some(len), ..SetAttr::default() };
        self.held.volume.attributes().set_attr(self.held.inode.ino(), &set).map(drop)
    }

    /// Reserves blocks for a range, punches holes, and so on: see [`Allocate`].
    ///
    /// # Errors
    /// See [`Files::fallocate`](extant_volume::Files::fallocate).
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// # let fs = extant::FileSystem::from_device_writable(memory, &Default::default())?;
    /// use extant::Allocate;
    ///
    /// let file = fs.write("/database", b"")?;
    /// file.allocate(Allocate::Reserve, 0, 1 << 20)?;
    /// assert_eq!(file.len(), 1 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn allocate(&self, mode: Allocate, offset: u64, len: u64) -> Result<(), Fault> {
        self.held.volume.files().fallocate(self.held.inode.ino(), mode, offset, len)
    }

    /// Makes all written bytes and all other changes of the file durable.
    ///
    /// # Errors
    /// The device failed, now or in an earlier write-back.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// # let fs = extant::FileSystem::from_device_writable(memory, &Default::default())?;
    /// let file = fs.write("/file", b"kept")?;
    /// file.sync_all()?; // content, name and times survive a power cut
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sync_all(&self) -> Result<(), Fault> {
        self.held.volume.files().fsync_as(self.held.inode.ino(), &self.held.error_cursor, false)
    }

    /// Makes all written bytes durable, and the metadata needed to read them again.
    ///
    /// # Errors
    /// As [`sync_all`](Self::sync_all).
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// # let fs = extant::FileSystem::from_device_writable(memory, &Default::default())?;
    /// let file = fs.write("/file", b"kept")?;
    /// file.sync_data()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sync_data(&self) -> Result<(), Fault> {
        self.held.volume.files().fsync_as(self.held.inode.ino(), &self.held.error_cursor, true)
    }

    /// Size in bytes.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// assert_eq!(fs.file("/etc/motd")?.len(), 6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn len(&self) -> u64 {
        self.now().size()
    }

    /// Whether the size is 0.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// assert!(!fs.file("/etc/motd")?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The result of stat(2).
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// assert_eq!(fs.file("/etc/motd")?.metadata().links, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn metadata(&self) -> Stat {
        self.held.volume.attributes().stat(&self.now())
    }

    /// The inode as it was when the file was opened.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// let file = fs.file("/etc/motd")?;
    /// assert_eq!(file.inode().ino(), file.metadata().ino);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn inode(&self) -> &InodeRef {
        &self.held.inode
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let got =
            self.read_at(buf, self.position).map_err(|fault| io::Error::new(fault_kind(&fault), fault))?;
        self.position += got as u64;
        Ok(got)
    }
}

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let done = self.write_some(bytes, self.position);
        let done = done.map_err(|fault| io::Error::new(fault_kind(&fault), fault))?;
        self.position += done as u64;
        Ok(done)
    }

    /// Does nothing, because this type buffers nothing; see [`sync_all`](File::sync_all).
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(offset) => self.len().checked_add_signed(offset),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
        };
        let out_of_range = || io::Error::new(io::ErrorKind::InvalidInput, "a position before the first byte");
        self.position = position.ok_or_else(out_of_range)?;
        Ok(self.position)
    }
}
