//! The destination of a new image: a file, standard output, or a part of an existing file or device.
//!
//! Owns: the syntax (that of image arguments, and `-`), the bounds of a part, the refusal to overwrite
//! without `--force`, the description of what is overwritten. Does **not** own: creating files, the bytes of
//! the image.
//!
//! Invariants
//! 1. Nothing outside the partition, or outside the space up to the next one, is written.
//! 2. Existing content is overwritten only on request, and only after a message named it.

use std::fs::File;
use std::io::{self, IsTerminal, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use extant_device::partition::partitions;
use extant_device::{Device, DeviceFault, FileDevice, Window};
use extant_image::source::spool::Spool;
use extant_ondisk::{Superblock, superblock};
use rustix::fs::{OFlags, SeekFrom as Place64};

use super::{ArgError, Existing, ImageArg, ImageAt, colons, exists, refusal, split_suffix, suffix};
use crate::exit;
use crate::voice::say;

/// Bytes at the beginning of a target to search for old content.
const LOOKED_AT: u64 = 128 << 10;

/// The destination of an image.
pub(crate) enum OutputTarget {
    /// A new file.
    File(PathBuf),
    /// Standard output.
    Stdout,
    /// A device, or a part of a file or device, written in place.
    Part {
        /// The text of the argument.
        name: String,
        /// Its bytes, as a device.
        device: Arc<dyn Device>,
    },
}

/// An exit code and its message.
type Refused = (u8, String);

impl OutputTarget {
    /// Parses the command line's argument. A part is opened and locked; if it holds data, it is refused
    /// unless `force` is set. A dry run only looks.
    ///
    /// # Errors
    /// A message with its exit code.
    pub(crate) fn parse(arg: &Path, force: bool, dry_run: bool) -> Result<Self, Refused> {
        let shown = arg.display().to_string();
        let usage = |why: String| (exit::USAGE_CODE, why);
        if shown == "-" {
            if std::io::stdout().is_terminal() && !dry_run {
                return Err(usage("the image would go to the terminal: redirect standard output".to_owned()));
            }
            return Ok(Self::Stdout);
        }
        let bytes = arg.as_os_str().as_encoded_bytes();
        if bytes.starts_with(b"mem:") && !exists(bytes, Existing::Any) {
            let why =
                "an image in memory would be gone at once: name a file, ./mem:SIZE if it is to be called so";
            return Err(usage(format!("{shown}: {why}")));
        }
        let image = match ImageArg::parse(arg.as_os_str()) {
            Ok(image) => image,
            Err(ArgError::Usage(why)) => return Err(usage(why)),
            Err(ArgError::Unreadable(_)) => return Self::new_file(arg, bytes),
        };
        if image.inner_path.is_some() {
            let why = "is a path inside of an image; an image goes into a file, IMG#N or IMG@OFFSET (`extant cp` copies files into one)";
            return Err(usage(format!("{shown} {why}")));
        }
        let is_block_device =
            std::fs::metadata(&image.path).is_ok_and(|metadata| metadata.file_type().is_block_device());
        if image.at == ImageAt::Whole && !is_block_device {
            return Ok(Self::File(arg.to_owned()));
        }
        let device = opened(&image, !is_block_device, dry_run)?;
        if let Some(what) = content(&device) {
            if !force && !dry_run {
                return Err((exit::EXISTS, format!("{shown} holds {what}: use --force to replace it")));
            }
            say!("{shown}: {what} {} replaced", if dry_run { "would be" } else { "is" });
        }
        Ok(Self::Part { name: shown, device })
    }

    /// A name that does not exist. If it has the syntax of a part, it was not meant as a file name, and is
    /// refused.
    fn new_file(arg: &Path, bytes: &[u8]) -> Result<Self, Refused> {
        let image = colons(bytes).next().map_or(bytes, |colon| &bytes[..colon]);
        for text in [bytes, image] {
            let Some((file, mark, text)) = split_suffix(text) else { continue };
            if suffix(mark, text).is_some() {
                let file = super::shown(file);
                let part = if mark == b'#' { "partition to write to" } else { "place in it to write to" };
                let why = format!("there is no file {file}, and so no {part}; make the disk image first");
                return Err((exit::USAGE_CODE, format!("{}: {why}", arg.display())));
            }
        }
        Ok(Self::File(arg.to_owned()))
    }

    /// The number of bytes available to the image, if it is fixed.
    pub(crate) fn room(&self) -> Option<u64> {
        match self {
            // Whole pages, as mke2fs does it: the page cache cannot hold the rest of a device.
            Self::Part { device, .. } if device.size_bytes() > 4096 => Some(device.size_bytes() & !4095),
            Self::Part { device, .. } => Some(device.size_bytes()),
            Self::File(_) | Self::Stdout => None,
        }
    }
}

/// Opens the part that the argument names, and no more.
fn opened(image: &ImageArg, is_file: bool, dry_run: bool) -> Result<Arc<dyn Device>, Refused> {
    let open = if dry_run { FileDevice::open_read_only } else { FileDevice::open_locked };
    let disk: Arc<dyn Device> = match open(&image.path) {
        Ok(device) => Arc::new(device),
        Err(error) => {
            let code = match error.kind() {
                io::ErrorKind::ResourceBusy => exit::BUSY,
                _ => exit::TARGET,
            };
            return Err((code, refusal(&image.path, &error)));
        }
    };
    let usage = |why: ArgError| (exit::USAGE_CODE, why.to_string());
    let part = match image.at {
        ImageAt::Partition(number) => image.partition(&disk, number).map_err(usage)?,
        ImageAt::Offset(offset) => from_offset(image, &disk, offset)?,
        ImageAt::Whole | ImageAt::Memory(_) => disk,
    };
    Ok(if is_file && !dry_run { Arc::new(Emptied { part, emptied: OnceLock::new() }) } else { part })
}

/// The bytes from an offset of a disk to the end of the partition around it, or to the next partition.
fn from_offset(image: &ImageArg, disk: &Arc<dyn Device>, offset: u64) -> Result<Arc<dyn Device>, Refused> {
    let size = disk.size_bytes();
    let nothing = |why: String| (exit::USAGE_CODE, format!("@{offset}: {why}"));
    if offset >= size {
        let path = image.path.display();
        return Err(nothing(format!("{path} has {size} bytes, so there is no room at byte {offset}")));
    }
    let mut end = size;
    if let Ok(table) = partitions(disk) {
        for partition in table.partitions.iter().filter(|partition| !partition.is_container()) {
            let (from, to) =
                (partition.offset_bytes, partition.offset_bytes.saturating_add(partition.len_bytes));
            if (from..to).contains(&offset) {
                end = end.min(to);
            } else if from > offset {
                end = end.min(from);
            }
        }
    }
    match Window::owned(Arc::clone(disk), offset, end - offset) {
        Ok(window) => Ok(Arc::new(window)),
        Err(fault) => Err(nothing(fault.to_string())),
    }
}

/// A description of the content of a device; `None` if it begins with zeros.
fn content(device: &Arc<dyn Device>) -> Option<String> {
    let mut start = vec![0; device.size_bytes().min(LOOKED_AT) as usize];
    if device.read_at(0, &mut start).is_ok() && start.iter().all(|&byte| byte == 0) {
        return None;
    }
    let magic = |at: usize, text: &[u8]| start.get(at..at + text.len()) == Some(text);
    if magic(superblock::OFFSET as usize + 0x38, &superblock::MAGIC.to_le_bytes()) {
        let bytes = start.get(superblock::OFFSET as usize..).and_then(|bytes| bytes.first_chunk::<1024>());
        let label = bytes.and_then(|bytes| Superblock::decode(bytes).ok()).map(|sb| {
            let label = String::from_utf8_lossy(sb.label()).into_owned();
            let uuid = extant_ondisk::superblock::uuid_text(&sb.uuid);
            if label.is_empty() { format!(" (UUID {uuid})") } else { format!(" \"{label}\" (UUID {uuid})") }
        });
        return Some(format!("an ext2, ext3 or ext4 file system{}", label.unwrap_or_default()));
    }
    let known = [
        (0, &b"LUKS\xba\xbe"[..], "a LUKS volume"),
        (0, b"XFSB", "an XFS file system"),
        (0, b"hsqs", "a SquashFS image"),
        (0x10040, b"_BHRfS_M", "a Btrfs file system"),
        (512, b"LABELONE", "an LVM physical volume"),
        (4086, b"SWAPSPACE2", "swap space"),
    ];
    if let Some((_, _, name)) = known.iter().find(|(at, text, _)| magic(*at, text)) {
        return Some((*name).to_owned());
    }
    match partitions(device) {
        Ok(table) if !table.partitions.is_empty() => {
            let (count, scheme) = (table.partitions.len(), table.scheme);
            Some(format!("a partition table ({scheme}) with {count} partitions"))
        }
        _ => Some("data".to_owned()),
    }
}

/// A part of a file that is zeroed before the first byte is written. It then reads like a new file: the same
/// image gives the same bytes, and holes take no space.
struct Emptied {
    part: Arc<dyn Device>,
    emptied: OnceLock<Result<(), DeviceFault>>,
}

impl Emptied {
    fn empty(&self) -> Result<(), DeviceFault> {
        let whole = || self.part.zero_at(0, self.part.size_bytes());
        match self.emptied.get_or_init(whole) {
            Ok(()) => Ok(()),
            // The stored fault is the cause. It cannot be cloned, so another attempt gives one like it.
            Err(_) => whole(),
        }
    }
}

impl Device for Emptied {
    fn size_bytes(&self) -> u64 {
        self.part.size_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        self.part.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        self.empty()?;
        self.part.write_at(offset, bytes)
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        self.empty()?;
        self.part.zero_at(offset, len)
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        self.part.flush()
    }

    fn is_fresh(&self) -> bool {
        true
    }
}

/// Two handles to one empty file without a name.
pub(crate) fn unnamed(dir: &Path) -> Result<(File, File), String> {
    let file = Spool::new(dir).file().map_err(|fault| fault.to_string())?;
    match (file.try_clone(), file.try_clone()) {
        (Ok(first), Ok(second)) => Ok((first, second)),
        (Err(error), _) | (_, Err(error)) => Err(format!("{}: {error}", dir.display())),
    }
}

/// Copies a file to standard output. Holes are kept if the output is a file, otherwise written as zeros.
pub(crate) fn to_stdout(file: &File) -> io::Result<()> {
    let mut out = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let len = file.metadata()?.len();
    let appends = rustix::fs::fcntl_getfl(&out).is_ok_and(|flags| flags.contains(OFlags::APPEND));
    let start = if out.metadata()?.is_file() && !appends { Some(out.stream_position()?) } else { None };
    let mut piece = vec![0; 1 << 20];
    let mut at = 0;
    while at < len {
        let data = match rustix::fs::seek(file, Place64::Data(at)) {
            Ok(data) => data.min(len),
            Err(rustix::io::Errno::NXIO) => len,
            Err(_) => at,
        };
        if start.is_none() {
            zeros(&mut out, data - at, &mut piece)?;
        }
        let end = rustix::fs::seek(file, Place64::Hole(data)).map_or(len, |hole| hole.clamp(data, len));
        at = data;
        while at < end {
            let part = &mut piece[..(end - at).min(1 << 20) as usize];
            file.read_exact_at(part, at)?;
            match start {
                Some(start) => out.write_all_at(part, start + at)?,
                None => out.write_all(part)?,
            }
            at += part.len() as u64;
        }
    }
    if let Some(start) = start {
        out.set_len(start + len)?;
        out.seek(SeekFrom::Start(start + len))?;
    }
    Ok(())
}

fn zeros(out: &mut File, mut len: u64, piece: &mut [u8]) -> io::Result<()> {
    piece.fill(0);
    while len > 0 {
        let part = len.min(piece.len() as u64) as usize;
        out.write_all(&piece[..part])?;
        len -= part as u64;
    }
    Ok(())
}
