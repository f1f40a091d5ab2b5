//! Parses image arguments: the file, the bytes of it that hold the file system, and the path inside.
//!
//! ```text
//! IMG             a file or block device, from its first byte; a qcow2 image is read as the disk in it
//! IMG@OFFSET      from byte OFFSET on: 4096, 0x1000, 1M, or 2048s (sectors of 512)
//! IMG#N           partition N of its table (GPT or MBR), as Linux numbers it
//! mem:SIZE        an empty device in memory
//! ...:PATH        a path inside: disk.img#2:/etc/fstab; its first / may be left out
//! ...:<N>, <N>/PATH   inode N, and a path from there on
//! ```
//! File names may contain `@`, `#` and `:`. The existing files decide: the whole argument if a file has that
//! name, otherwise the shortest text before a `:` with which a file is found. A file named `mem:64M` is
//! written `./mem:64M`.
//!
//! Owns: the syntax, its error messages, opening. Does **not** own: the contents of the image, partition
//! tables (see [`extant_device::partition`]).

pub(crate) mod target;

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use extant::repair::{UndoFile, UndoState};
use extant::resize::{Fixed, ImageFile, Storage};
use extant_device::partition::{Partition, PartitionFault, Scheme, Table, partitions};
use extant_device::{Device, FileDevice, ImageUse, Io, MemDevice, Window};
use extant_ondisk::superblock;
use extant_qcow2::{Qcow2, disk_of};

use crate::sizes::{human, parse_size};
use crate::usage::near;
use crate::voice::{note, say};

/// Partitions that a message lists at most.
const LISTED_MAX: usize = 12;
/// Offset of the superblock's magic number in a file system, in bytes.
const MAGIC_OFFSET: u64 = superblock::OFFSET + 0x38;

/// A parsed image argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImageArg {
    /// The file or block device; for `mem:SIZE` the text of the argument.
    pub(crate) path: PathBuf,
    /// Which of its bytes are the image.
    pub(crate) at: ImageAt,
    /// The path inside, which begins with `/` or an inode number (see [`by_number`]); `None` without a `:`.
    pub(crate) inner_path: Option<PathBuf>,
}

/// Which bytes of a file are the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ImageAt {
    /// All bytes.
    Whole,
    /// The bytes from this offset on.
    Offset(u64),
    /// The bytes of the partition with this number.
    Partition(u32),
    /// None: an empty device in memory, of this many bytes.
    Memory(u64),
}

/// Why an image argument cannot be used. The texts are complete sentences that name the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ArgError {
    /// The argument makes no sense for this image.
    Usage(String),
    /// The image cannot be read, or is not one.
    Unreadable(String),
}

/// Why an image cannot be opened for writing. The texts are like those of [`ArgError`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LockError {
    /// The argument cannot be used even for reading.
    Arg(ArgError),
    /// The image may not be written.
    Unwritable(String),
    /// Another program writes to it, or it is mounted.
    Busy(String),
}

impl fmt::Display for ArgError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(why) | Self::Unreadable(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for ArgError {}

impl fmt::Display for ImageArg {
    /// Writes the argument without the path inside.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        match self.at {
            ImageAt::Whole | ImageAt::Memory(_) => Ok(()),
            ImageAt::Offset(bytes) => write!(f, "@{bytes}"),
            ImageAt::Partition(number) => write!(f, "#{number}"),
        }
    }
}

/// How bytes are transferred from and to the file.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Transfers {
    /// How batches of transfers are submitted to the system.
    pub(crate) io: Io,
    /// Bypass the page cache with O_DIRECT, if the system can do that with this file.
    pub(crate) direct: bool,
}

impl Transfers {
    /// Opens a file with `open`. If O_DIRECT is refused, opens it again without, and prints a note.
    fn open(self, path: &Path, open: fn(&Path) -> io::Result<FileDevice>) -> io::Result<FileDevice> {
        let device = open(path)?.with_io(self.io);
        if !self.direct {
            return Ok(device);
        }
        match device.with_direct() {
            Ok(device) => Ok(device),
            Err(error) => {
                say!("{}: {}", path.display(), not_direct(&error));
                Ok(open(path)?.with_io(self.io))
            }
        }
    }
}

/// The byte at which the partition begins that follows an offset within a disk.
fn following(disk: &Arc<dyn Device>, offset: u64) -> Option<u64> {
    let table = partitions(disk).ok().filter(|_| offset > 0)?;
    let after = table.partitions.iter().map(|partition| partition.offset_bytes);
    Some(after.filter(|start| *start > offset).min()?.min(disk.size_bytes()))
}

/// The note that O_DIRECT is refused.
fn not_direct(error: &io::Error) -> String {
    format!("the image is read and written through the page cache, since O_DIRECT is refused: {error}")
}

impl ImageArg {
    /// Parses an argument. Looks which files exist, opens none.
    ///
    /// # Errors
    /// [`ArgError::Unreadable`] if there is no such file, [`ArgError::Usage`] if the text after it makes no
    /// sense.
    pub(crate) fn parse(arg: &OsStr) -> Result<Self, ArgError> {
        let bytes = arg.as_bytes();
        if let Some(memory) = memory(bytes)? {
            return Ok(memory);
        }
        if let Some((path, at)) = place(bytes, Existing::Any)? {
            return Ok(Self { path, at, inner_path: None });
        }
        for colon in colons(bytes) {
            if let Some((path, at)) = place(&bytes[..colon], Existing::NoDirectory)? {
                return Ok(Self { path, at, inner_path: Some(inner_path(&bytes[colon + 1..])) });
            }
        }
        // No file exists: the shortest reading is the likeliest.
        let image = colons(bytes).next().map_or(bytes, |colon| &bytes[..colon]);
        let image = match split_suffix(image) {
            Some((path, mark, text)) if suffix(mark, text).is_some() => path,
            _ => image,
        };
        if std::fs::metadata(OsStr::from_bytes(image)).is_ok_and(|metadata| metadata.is_dir()) {
            return Err(ArgError::Unreadable(is_directory(Path::new(OsStr::from_bytes(image)))));
        }
        let remedy = near::suggested(Path::new(OsStr::from_bytes(image)));
        let remedy = remedy.unwrap_or_else(|| "`extant build` and `extant mkfs` make images".to_owned());
        Err(ArgError::Unreadable(format!("{}: there is no such file; {remedy}", shown(image))))
    }

    /// Parses an argument that must not name a path inside of an image. `what`: what is done to the whole
    /// file system, for the message.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub(crate) fn parse_whole(arg: &OsStr, what: &str) -> Result<Self, ArgError> {
        let image = Self::parse(arg)?;
        match &image.inner_path {
            None => Ok(image),
            Some(path) => {
                let path = path.display();
                Err(ArgError::Usage(format!("a whole file system is {what}: leave :{path} out")))
            }
        }
    }

    /// Opens the image for reading; the returned device is never written.
    ///
    /// A partition that reaches past the end of a truncated image ends there. Oddities of the partition table
    /// are reported on standard error.
    ///
    /// # Errors
    /// [`ArgError::Usage`] if there is no such partition or offset. [`ArgError::Unreadable`] if the system
    /// refuses, and for a whole disk whose file system is in a partition: the message names the partition.
    pub(crate) fn open_read_only(&self) -> Result<Arc<dyn Device>, ArgError> {
        self.open_to_read(Transfers::default(), FileDevice::open_read_only)
    }

    /// As [`open_read_only`](Self::open_read_only), and locks programs out that write, unless one has the
    /// image open already.
    ///
    /// # Errors
    /// As [`open_read_only`](Self::open_read_only).
    pub(crate) fn open_shared_by(&self, transfers: Transfers) -> Result<Arc<dyn Device>, ArgError> {
        self.open_to_read(transfers, FileDevice::open_shared)
    }

    /// As [`open_read_only`](Self::open_read_only), for an image that is mounted: without a note on that.
    ///
    /// # Errors
    /// As [`open_read_only`](Self::open_read_only).
    pub(crate) fn open_while_mounted(&self) -> Result<Arc<dyn Device>, ArgError> {
        match Transfers::default().open(&self.path, FileDevice::open_read_only).and_then(disk_of) {
            Ok(disk) => self.part_of(disk),
            Err(error) => Err(ArgError::Unreadable(refusal(&self.path, &error))),
        }
    }

    fn open_to_read(
        &self,
        transfers: Transfers,
        open: fn(&Path) -> io::Result<FileDevice>,
    ) -> Result<Arc<dyn Device>, ArgError> {
        if let ImageAt::Memory(bytes) = self.at {
            return Ok(Arc::new(MemDevice::new(bytes)));
        }
        match transfers.open(&self.path, open).and_then(disk_of) {
            Ok(disk) => {
                self.say_if_written();
                self.part_of(disk)
            }
            Err(error) => Err(ArgError::Unreadable(refusal(&self.path, &error))),
        }
    }

    /// Whether the image is in use by a writer at the moment: mounted, or open in another program.
    pub(crate) fn written_by(&self) -> Option<ImageUse> {
        match self.at {
            ImageAt::Memory(_) => None,
            _ => extant_device::use_of(&self.path).filter(|used| used.writes),
        }
    }

    /// Notes that the image changes while it is read, and where to see its present state.
    fn say_if_written(&self) {
        let Some(used) = self.written_by() else { return };
        let instead = match &used.on {
            Some(on) => format!("look below {} for the present state", on.display()),
            None => "wait until that has ended for the present state".to_owned(),
        };
        note!("{self} is {used}: what is read here may be older, or half of a change; {instead}");
    }

    /// Opens the image for reading and writing, and locks other writers out of the whole file or device, even
    /// if the image is only a part of it.
    ///
    /// # Errors
    /// As [`open_read_only`](Self::open_read_only); [`LockError::Busy`] if another program writes to it or it
    /// is mounted, [`LockError::Unwritable`] if it may only be read.
    pub(crate) fn open_locked(&self) -> Result<Arc<dyn Device>, LockError> {
        self.open_locked_by(Transfers::default())
    }

    /// As [`open_locked`](Self::open_locked), with a choice of how transfers are submitted to the system.
    ///
    /// # Errors
    /// As [`open_locked`](Self::open_locked).
    pub(crate) fn open_locked_by(&self, transfers: Transfers) -> Result<Arc<dyn Device>, LockError> {
        self.check_no_cut()?;
        self.open_to_restore_by(transfers)
    }

    /// As [`open_locked`](Self::open_locked), also if a change of features was cut: to restore the image.
    ///
    /// # Errors
    /// As [`open_locked`](Self::open_locked).
    pub(crate) fn open_to_restore(&self) -> Result<Arc<dyn Device>, LockError> {
        self.open_to_restore_by(Transfers::default())
    }

    /// The undo file of a change of features.
    pub(crate) fn tune_undo(&self) -> PathBuf {
        self.undo_name(".tune-undo")
    }

    /// The default name of an undo file: beside an image file, else in the current directory.
    pub(crate) fn undo_name(&self, suffix: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        if !self.path.is_file() {
            name = self.path.file_name().map_or(name, OsStr::to_owned);
        }
        match self.at {
            ImageAt::Partition(number) => name.push(format!("-{number}")),
            ImageAt::Offset(offset) => name.push(format!("-{offset}")),
            _ => {}
        }
        name.push(suffix);
        name.into()
    }

    /// Refuses an image in which a change of features was cut: what is written to it would be overwritten
    /// when the old state is restored.
    fn check_no_cut(&self) -> Result<(), LockError> {
        let undo = self.tune_undo();
        let is_cut =
            undo.exists() && UndoFile::open(&undo).is_ok_and(|file| file.state() == UndoState::Begun);
        if !is_cut {
            return Ok(());
        }
        let undo = undo.display();
        let why = format!(
            "a change of its features or inodes was cut; restore it first: extant undo '{self}' '{undo}', or \
             the same `extant tune` or `optimize` again"
        );
        Err(LockError::Arg(ArgError::Unreadable(format!("{self}: {why}"))))
    }

    fn open_to_restore_by(&self, transfers: Transfers) -> Result<Arc<dyn Device>, LockError> {
        if let ImageAt::Memory(bytes) = self.at {
            return Ok(Arc::new(MemDevice::new(bytes)));
        }
        match transfers.open(&self.path, FileDevice::open_locked) {
            Ok(device) if Qcow2::is_on(&device) => Err(self.not_raw()),
            Ok(device) => self.part_of(Arc::new(device)).map_err(LockError::Arg),
            Err(error) => Err(self.not_locked(&error)),
        }
    }

    /// As [`open_locked`](Self::open_locked), for a command that changes the size of the file system. A
    /// partition, and a place before another partition, has a fixed size; otherwise a file gets the length
    /// that is needed.
    ///
    /// # Errors
    /// As [`open_locked`](Self::open_locked).
    pub(crate) fn open_to_resize(
        &self,
        transfers: Transfers,
    ) -> Result<Box<dyn Storage + Send + Sync>, LockError> {
        let offset = match self.at {
            ImageAt::Whole => 0,
            ImageAt::Offset(offset) => offset,
            ImageAt::Partition(_) | ImageAt::Memory(_) => {
                return Ok(Box::new(Fixed(self.open_locked_by(transfers)?)));
            }
        };
        self.check_no_cut()?;
        let file = transfers.open(&self.path, FileDevice::open_locked);
        let file = Arc::new(file.map_err(|error| self.not_locked(&error))?);
        if Qcow2::is_on(&*file) {
            return Err(self.not_raw());
        }
        let disk: Arc<dyn Device> = Arc::<FileDevice>::clone(&file);
        self.part_of(Arc::clone(&disk)).map_err(LockError::Arg)?;
        if let Some(end) = following(&disk, offset) {
            let window = Window::owned(disk, offset, end.saturating_sub(offset));
            let usage = |fault| LockError::Arg(ArgError::Usage(format!("@{offset}: {fault}")));
            return Ok(Box::new(Fixed(Arc::new(window.map_err(usage)?))));
        }
        Ok(Box::new(ImageFile::new(file, offset)))
    }

    /// For planning what [`open_to_resize`](Self::open_to_resize) would allow: the device, and whether it
    /// cannot become longer.
    ///
    /// # Errors
    /// As [`open_read_only`](Self::open_read_only).
    pub(crate) fn open_to_preview(&self) -> Result<(Arc<dyn Device>, bool), ArgError> {
        let device = self.open_read_only()?;
        let is_file = self.path.is_file();
        match self.at {
            ImageAt::Whole => Ok((device, !is_file)),
            ImageAt::Offset(offset) => {
                let disk = match FileDevice::open_read_only(&self.path).and_then(disk_of) {
                    Ok(disk) => disk,
                    Err(_) => return Ok((device, !is_file)),
                };
                let window = following(&disk, offset)
                    .map(|end| Window::owned(disk, offset, end.saturating_sub(offset)));
                match window {
                    Some(Ok(window)) => Ok((Arc::new(window), true)),
                    Some(Err(_)) | None => Ok((device, !is_file)),
                }
            }
            ImageAt::Partition(_) | ImageAt::Memory(_) => Ok((device, true)),
        }
    }

    /// A qcow2 image is only read.
    fn not_raw(&self) -> LockError {
        let path = self.path.display();
        LockError::Unwritable(format!(
            "{path}: this is a qcow2 disk image, which is only read; \
             `qemu-img convert -O raw {path} raw.img` makes a raw image that can be written"
        ))
    }

    fn not_locked(&self, error: &io::Error) -> LockError {
        let why = refusal(&self.path, error);
        match error.kind() {
            io::ErrorKind::ResourceBusy => LockError::Busy(why),
            io::ErrorKind::ReadOnlyFilesystem => LockError::Unwritable(why),
            io::ErrorKind::PermissionDenied if std::fs::File::open(&self.path).is_ok() => {
                LockError::Unwritable(format!("{why}; it may only be read"))
            }
            _ => LockError::Arg(ArgError::Unreadable(why)),
        }
    }

    /// The part of the file or block device that is the image.
    fn part_of(&self, disk: Arc<dyn Device>) -> Result<Arc<dyn Device>, ArgError> {
        match self.at {
            ImageAt::Partition(number) => self.partition(&disk, number),
            ImageAt::Offset(offset) if offset > disk.size_bytes() => {
                let (path, size) = (self.path.display(), disk.size_bytes());
                Err(ArgError::Usage(format!(
                    "@{offset}: {path} has {size} bytes ({}), so nothing is at byte {offset}",
                    human(size)
                )))
            }
            ImageAt::Offset(offset) => match Window::from_offset(disk, offset) {
                Ok(window) => Ok(Arc::new(window)),
                Err(fault) => Err(ArgError::Usage(format!("@{offset}: {fault}"))),
            },
            ImageAt::Whole | ImageAt::Memory(_) => match self.whole_disk(&disk) {
                Some(hint) => Err(ArgError::Unreadable(hint)),
                None => Ok(disk),
            },
        }
    }

    fn partition(&self, disk: &Arc<dyn Device>, number: u32) -> Result<Arc<dyn Device>, ArgError> {
        let path = self.path.display();
        let table = match partitions(disk) {
            Ok(table) => table,
            Err(PartitionFault::NoTable) if holds_ext4(disk, 0) => {
                let why = "has no partition table: an ext4 file system begins at its first byte";
                return Err(ArgError::Usage(format!("{path} {why}; leave #{number} out")));
            }
            Err(PartitionFault::NoTable) => {
                return Err(ArgError::Usage(format!(
                    "{path} has no partition table (GPT or MBR), so there is no #{number}; \
                     {path}@OFFSET names a place by its first byte"
                )));
            }
            Err(fault) => return Err(ArgError::Unreadable(format!("{path}: {fault}"))),
        };
        for remark in &table.remarks {
            say!("{path}: {remark}");
        }
        let Some(partition) = table.get(number) else {
            return Err(ArgError::Usage(format!(
                "there is no #{number}: {path} has {}",
                listed(disk, &table)
            )));
        };
        match partition.window(Arc::clone(disk)) {
            Ok(window) => Ok(Arc::new(window)),
            Err(fault @ PartitionFault::Container { .. }) => {
                Err(ArgError::Usage(format!("#{number}: {fault}; {path} has {}", listed(disk, &table))))
            }
            Err(fault) => Err(ArgError::Unreadable(format!("{path}: {fault}"))),
        }
    }

    /// The message about a disk that has partitions and no file system around them, instead of "no ext4 file
    /// system".
    fn whole_disk(&self, disk: &Arc<dyn Device>) -> Option<String> {
        if holds_ext4(disk, 0) {
            return None;
        }
        let table = partitions(disk).ok()?;
        let holders: Vec<u32> = table
            .partitions
            .iter()
            .filter(|partition| !partition.is_container() && holds_ext4(disk, partition.offset_bytes))
            .map(|partition| partition.number)
            .collect();
        let (path, scheme) = (self.path.display(), table.scheme);
        match &holders[..] {
            // Boot sectors of other file systems also look like an MBR; a GPT is certain, as it has
            // checksums.
            [] if matches!(scheme, Scheme::Mbr { .. }) || table.partitions.is_empty() => None,
            [] => Some(format!(
                "{path} is a whole disk with a partition table ({scheme}), and no ext4 is in sight: it has {}; \
                 {path}#N looks into one",
                listed(disk, &table)
            )),
            [one] => Some(format!(
                "{path} is a whole disk with a partition table ({scheme}), and ext4 is in its partition {one}: \
                 say {path}#{one}"
            )),
            [first, ..] => Some(format!(
                "{path} is a whole disk with a partition table ({scheme}): say which partition, like {path}#{first}; \
                 it has {}",
                listed(disk, &table)
            )),
        }
    }
}

/// Parses `mem:SIZE` or `mem:SIZE:PATH`.
fn memory(bytes: &[u8]) -> Result<Option<ImageArg>, ArgError> {
    let Some(rest) = bytes.strip_prefix(b"mem:") else { return Ok(None) };
    let end = rest.iter().position(|byte| *byte == b':');
    let (size, inner) = (&rest[..end.unwrap_or(rest.len())], end.map(|end| &rest[end + 1..]));
    match std::str::from_utf8(size).map_err(|_| String::new()).and_then(parse_size) {
        Ok(bytes_len) => Ok(Some(ImageArg {
            path: PathBuf::from(OsStr::from_bytes(&bytes[..4 + size.len()])),
            at: ImageAt::Memory(bytes_len),
            inner_path: inner.map(inner_path),
        })),
        // It may be a path in a file named "mem".
        Err(_) if exists(b"mem", Existing::NoDirectory) || exists(bytes, Existing::Any) => Ok(None),
        Err(_) => {
            let why = "mem:SIZE needs a size, like mem:64M";
            Err(ArgError::Usage(format!("{}: {why}", shown(bytes))))
        }
    }
}

/// The positions of the colons, except one at the very beginning.
fn colons(bytes: &[u8]) -> impl Iterator<Item = usize> {
    bytes.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b':').map(|(at, _)| at)
}

/// A path inside, made absolute unless it begins with an inode number.
fn inner_path(bytes: &[u8]) -> PathBuf {
    if by_number(bytes).is_some() {
        return PathBuf::from(OsStr::from_bytes(bytes));
    }
    let slash: &[u8] = if bytes.starts_with(b"/") { b"" } else { b"/" };
    PathBuf::from(OsStr::from_bytes(&[slash, bytes].concat()))
}

/// Splits a path that begins with an inode: its number, and the path from there on. A file with such a name
/// is written `/<13>`.
pub(crate) fn by_number(path: &[u8]) -> Option<(u32, &[u8])> {
    let rest = path.strip_prefix(b"<")?;
    let end = rest.iter().position(|byte| *byte == b'>')?;
    let (number, rest) = (&rest[..end], &rest[end + 1..]);
    let is_number = !number.is_empty() && number.iter().all(u8::is_ascii_digit);
    let is_path = rest.is_empty() || rest.starts_with(b"/");
    let number = std::str::from_utf8(number).ok()?.parse().ok()?;
    (is_number && is_path).then_some((number, rest))
}

/// What may exist at a path so that the text counts as a file name.
#[derive(Clone, Copy)]
enum Existing {
    /// Also a directory, so that the message can say that it is one.
    Any,
    NoDirectory,
}

/// Whether a file exists. A file that cannot be examined counts: opening it reports the reason.
fn exists(path: &[u8], wanted: Existing) -> bool {
    match std::fs::metadata(OsStr::from_bytes(path)) {
        Ok(metadata) => matches!(wanted, Existing::Any) || !metadata.is_dir(),
        Err(error) => !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
    }
}

/// Parses `PATH`, `PATH#N` or `PATH@OFFSET`; `None` if there is no such file.
fn place(bytes: &[u8], wanted: Existing) -> Result<Option<(PathBuf, ImageAt)>, ArgError> {
    let path = |bytes| PathBuf::from(OsStr::from_bytes(bytes));
    if exists(bytes, wanted) {
        return Ok(Some((path(bytes), ImageAt::Whole)));
    }
    let Some((file, mark, text)) = split_suffix(bytes) else { return Ok(None) };
    if !exists(file, Existing::NoDirectory) {
        return Ok(None);
    }
    if let Some(at) = suffix(mark, text) {
        return Ok(Some((path(file), at)));
    }
    if text.contains(&b':') {
        return Ok(None); // a path inside follows; the caller looks for it next
    }
    let why = match mark {
        b'#' => "# wants the number of a partition, like #1",
        _ => "@ wants a place in bytes, like @4096, @0x1000, @1M, or @2048s for sectors of 512",
    };
    Err(ArgError::Usage(format!("{}: {why}", shown(bytes))))
}

/// Splits at the last `#` or `@`: the text before it, the mark, the text after it.
fn split_suffix(bytes: &[u8]) -> Option<(&[u8], u8, &[u8])> {
    let at = bytes.iter().rposition(|byte| matches!(byte, b'#' | b'@')).filter(|at| *at > 0)?;
    Some((&bytes[..at], bytes[at], &bytes[at + 1..]))
}

fn suffix(mark: u8, text: &[u8]) -> Option<ImageAt> {
    let text = std::str::from_utf8(text).ok()?;
    if mark == b'@' {
        return parse_offset(text).map(ImageAt::Offset);
    }
    let number = text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())??;
    (number > 0).then_some(ImageAt::Partition(number))
}

/// Parses `4096`, `0x1000`, `4K`, `1M`, `2G`, `1T` or `2048s`.
fn parse_offset(text: &str) -> Option<u64> {
    if let Some(hex) = text.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).ok();
    }
    let (digits, unit) = match text.chars().last()?.to_ascii_uppercase() {
        'K' => (&text[..text.len() - 1], 1 << 10),
        'M' => (&text[..text.len() - 1], 1 << 20),
        'G' => (&text[..text.len() - 1], 1 << 30),
        'T' => (&text[..text.len() - 1], 1 << 40),
        'S' => (&text[..text.len() - 1], 512),
        _ => (text, 1u64),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// Whether the magic number of a superblock stands where a file system at `offset` would have it.
fn holds_ext4(disk: &dyn Device, offset: u64) -> bool {
    let mut magic = [0; 2];
    let at = offset.checked_add(MAGIC_OFFSET);
    at.is_some_and(|at| disk.read_at(at, &mut magic).is_ok())
        && u16::from_le_bytes(magic) == superblock::MAGIC
}

/// Lists partitions: `partitions 1 (EFI System, 512.0 MiB), 2 (Linux filesystem "root", 20.0 GiB, ext4)`.
fn listed(disk: &dyn Device, table: &Table) -> String {
    let one = |partition: &Partition| {
        let name: String = partition.name.chars().filter(|c| !c.is_control()).collect();
        let name = if name.is_empty() { name } else { format!(" \"{name}\"") };
        let holds = !partition.is_container() && holds_ext4(disk, partition.offset_bytes);
        let holds = if holds { ", ext4" } else { "" };
        let (number, kind, len) = (partition.number, partition.kind, human(partition.len_bytes));
        format!("{number} ({kind}{name}, {len}{holds})")
    };
    let all = &table.partitions;
    let texts: Vec<String> = all.iter().take(LISTED_MAX).map(one).collect();
    let more = match all.len().saturating_sub(LISTED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    match texts.len() {
        0 => format!("a partition table ({}) with no partition in it", table.scheme),
        1 => format!("only partition {}", texts[0]),
        _ => format!("partitions {}{more}", texts.join(", ")),
    }
}

fn is_directory(path: &Path) -> String {
    let path = path.display();
    format!(
        "{path}: is a directory, and an image file or block device is wanted (`extant build --from {path} -o IMG` makes one)"
    )
}

/// The system's reason, and for block devices the usual remedy.
fn refusal(path: &Path, error: &io::Error) -> String {
    if path.is_dir() {
        return is_directory(path);
    }
    let advice = match error.kind() {
        io::ErrorKind::PermissionDenied if path.starts_with("/dev") => {
            "; using a disk takes root, or membership in the group that owns it"
        }
        _ => "",
    };
    format!("{}: {error}{advice}", path.display())
}

/// Whether this is an image without a path in it. An image given by offset or partition need not be sound.
pub(crate) fn is_whole_image(arg: &OsStr) -> bool {
    let Ok(image) = ImageArg::parse(arg) else { return false };
    let holds = || FileDevice::open_read_only(&image.path).is_ok_and(|device| holds_ext4(&device, 0));
    image.inner_path.is_none() && (image.at != ImageAt::Whole || (!image.path.is_dir() && holds()))
}

/// Whether this is a path of the host: neither an image nor a path in one. False if it may be either.
pub(crate) fn is_of_host(arg: &OsStr) -> bool {
    match ImageArg::parse(arg) {
        Ok(image) => image.inner_path.is_none() && !is_whole_image(arg),
        Err(_) => !arg.as_bytes().contains(&b':'),
    }
}

fn shown(bytes: &[u8]) -> std::path::Display<'_> {
    Path::new(OsStr::from_bytes(bytes)).display()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with files of these names.
    fn files(names: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for name in names {
            std::fs::write(dir.path().join(name), b"").unwrap();
        }
        dir
    }

    fn parse(dir: &tempfile::TempDir, arg: &str) -> Result<ImageArg, ArgError> {
        ImageArg::parse(dir.path().join(arg).as_os_str())
    }

    /// File name, position, path inside.
    #[track_caller]
    fn taken_apart(dir: &tempfile::TempDir, arg: &str) -> (String, ImageAt, Option<String>) {
        let image = parse(dir, arg).unwrap();
        let name = image.path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, image.at, image.inner_path.map(|path| path.to_str().unwrap().to_owned()))
    }

    fn expected(name: &str, at: ImageAt, inner: Option<&str>) -> (String, ImageAt, Option<String>) {
        (name.to_owned(), at, inner.map(str::to_owned))
    }

    #[test]
    fn every_spelling_is_taken_apart() {
        let dir = files(&["disk.img"]);
        for (arg, at, inner) in [
            ("disk.img", ImageAt::Whole, None),
            ("disk.img@4096", ImageAt::Offset(4096), None),
            ("disk.img@0x1F", ImageAt::Offset(31), None),
            ("disk.img@2048s", ImageAt::Offset(1 << 20), None),
            ("disk.img@1M", ImageAt::Offset(1 << 20), None),
            ("disk.img#2", ImageAt::Partition(2), None),
            ("disk.img:", ImageAt::Whole, Some("/")),
            ("disk.img:/", ImageAt::Whole, Some("/")),
            ("disk.img:etc/fstab", ImageAt::Whole, Some("/etc/fstab")),
            ("disk.img:/etc/a:b", ImageAt::Whole, Some("/etc/a:b")),
            ("disk.img#2:/etc", ImageAt::Partition(2), Some("/etc")),
            ("disk.img@1M:etc/x@y#z", ImageAt::Offset(1 << 20), Some("/etc/x@y#z")),
            ("disk.img:x@12", ImageAt::Whole, Some("/x@12")),
            ("disk.img:x#1", ImageAt::Whole, Some("/x#1")),
        ] {
            assert_eq!(taken_apart(&dir, arg), expected("disk.img", at, inner), "{arg}");
        }
    }

    #[test]
    fn files_with_odd_names_come_before_other_readings() {
        let dir = files(&["a", "a:b", "a@1", "a#1", "c:d", "e#1:f"]);
        for (arg, name, at, inner) in [
            ("a:b", "a:b", ImageAt::Whole, None),
            ("a:c", "a", ImageAt::Whole, Some("/c")),
            ("a:/b", "a", ImageAt::Whole, Some("/b")),
            ("a@1", "a@1", ImageAt::Whole, None),
            ("a@2", "a", ImageAt::Offset(2), None),
            ("a#1", "a#1", ImageAt::Whole, None),
            ("a#1#1", "a#1", ImageAt::Partition(1), None),
            ("a:b#1", "a:b", ImageAt::Partition(1), None),
            ("c:d:e", "c:d", ImageAt::Whole, Some("/e")),
            ("c:d@1:e", "c:d", ImageAt::Offset(1), Some("/e")),
            ("e#1:f", "e#1:f", ImageAt::Whole, None),
        ] {
            assert_eq!(taken_apart(&dir, arg), expected(name, at, inner), "{arg}");
        }
    }

    #[test]
    fn offsets_have_units() {
        for (text, bytes) in [
            ("4096", Some(4096)),
            ("0x1000", Some(4096)),
            ("1M", Some(1 << 20)),
            ("4k", Some(4096)),
            ("2048s", Some(1 << 20)),
            ("99999999T", None),
            ("", None),
            ("K", None),
            ("1x", None),
        ] {
            assert_eq!(parse_offset(text), bytes, "{text}");
        }
    }

    #[test]
    fn memory_has_a_size() {
        let image = ImageArg::parse(OsStr::new("mem:64M")).unwrap();
        assert_eq!((image.at, image.inner_path.as_ref()), (ImageAt::Memory(64 << 20), None));
        assert_eq!(image.open_read_only().unwrap().size_bytes(), 64 << 20);
        let image = ImageArg::parse(OsStr::new("mem:1G:/x")).unwrap();
        assert_eq!((image.to_string().as_str(), image.at), ("mem:1G", ImageAt::Memory(1 << 30)));
        assert_eq!(image.inner_path, Some("/x".into()));
        let error = ImageArg::parse(OsStr::new("mem:lots")).unwrap_err().to_string();
        assert!(error.contains("like mem:64M"), "{error}");
    }

    #[test]
    fn mistakes_are_explained() {
        let dir = files(&["disk.img"]);
        for (arg, says) in [
            ("none.img", "none.img: there is no such file"),
            ("none.img#2:/etc", "none.img: there is no such file"),
            ("none.img@1M", "none.img: there is no such file"),
            ("disk.img#x", "wants the number of a partition"),
            ("disk.img#0", "wants the number of a partition"),
            ("disk.img#99999999999", "wants the number of a partition"),
            ("disk.img@here", "wants a place in bytes"),
            ("disk.img@99999999T:x", "wants a place in bytes"),
            ("disk.img@", "wants a place in bytes"),
        ] {
            let error = parse(&dir, arg).unwrap_err().to_string();
            assert!(error.contains(says), "{arg}: {error}");
        }
        let error = parse(&dir, "").unwrap().open_read_only().unwrap_err().to_string();
        assert!(error.contains("is a directory, and an image file or block device is wanted"), "{error}");
    }

    #[test]
    fn what_is_not_there_is_said_with_what_is() {
        let dir = tempfile::tempdir().unwrap();
        let magic = superblock::MAGIC.to_le_bytes();
        let write = |name: &str, edits: &[(usize, &[u8])]| {
            let mut bytes = vec![0; 1 << 20];
            edits.iter().for_each(|(at, part)| bytes[*at..at + part.len()].copy_from_slice(part));
            std::fs::write(dir.path().join(name), bytes).unwrap();
        };
        let fault = |arg: &str| parse(&dir, arg).unwrap().open_read_only().unwrap_err();
        write("blank", &[]);
        write("ext4", &[(1080, &magic)]);
        // An MBR: partition 1 is Linux, from sector 100, 200 sectors long, and holds ext4; 3 is FAT.
        let linux = [0, 0, 0, 0, 0x83, 0, 0, 0, 100, 0, 0, 0, 200, 0, 0, 0];
        let fat = [0, 0, 0, 0, 0x0C, 0, 0, 0, 0x2C, 1, 0, 0, 200, 0, 0, 0];
        let extended = [0, 0, 0, 0, 5, 0, 0, 0, 0xE8, 3, 0, 0, 8, 0, 0, 0];
        let mbr = [(446, &linux[..]), (478, &fat[..]), (494, &extended[..]), (510, &[0x55, 0xAA][..])];
        write("disk", &[&mbr[..], &[(51_200 + 1080, &magic)]].concat());
        write("other", &mbr);
        let text = fault("disk#2").to_string();
        assert!(
            text.starts_with("there is no #2: ")
                && text.ends_with(
                    "disk has partitions 1 (Linux, 100.0 KiB, ext4), 3 (FAT32, 100.0 KiB), 4 (Extended, 4.0 KiB)"
                ),
            "{text}"
        );
        for (arg, says, is_usage) in [
            ("blank#1", "has no partition table", true),
            ("ext4#1", "leave #1 out", true),
            ("blank@2M", "has 1048576 bytes (1.0 MiB)", true),
            ("disk#4", "extended", true),
            ("disk", "ext4 is in its partition 1: say ", false),
        ] {
            let error = fault(arg);
            assert!(error.to_string().contains(says), "{arg}: {error}");
            assert_eq!(matches!(error, ArgError::Usage(_)), is_usage, "{arg}");
        }
        for (arg, size_bytes) in
            [("disk#1", 102_400), ("blank", 1 << 20), ("other", 1 << 20), ("ext4@1K", 1023 << 10)]
        {
            let device = parse(&dir, arg).unwrap().open_read_only().unwrap();
            assert_eq!(device.size_bytes(), size_bytes, "{arg}");
            assert!(device.write_at(0, b"x").is_err(), "{arg}");
        }
    }
}
