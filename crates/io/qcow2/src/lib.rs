//! Disk images in the format qcow2 as devices: existing ones are read, new ones are written once.
//!
//! ```text
//! qcow2: header | refcounts | L1 table -> L2 tables -> clusters    a cluster that is missing reads as zeros
//! ```
//!
//! Owns: the adapter to the library `imago`, which has the format, and the refusal of images that consist of
//! several files. Does **not** own: the format, opening files, locks.
//!
//! Invariants
//! 1. No file is opened but the given one: an image with a backing file, or with a data file of its own, is
//!    refused. An image from elsewhere could name any file of this machine.
//! 2. An existing image is only read. A write returns [`DeviceFault::ReadOnly`].
//! 3. A new image is complete after [`Qcow2::finish`]. It has version 2 of the format and clusters of the
//!    size of a block (larger ones in a very large image), which all programs read, also e2image.
//! 4. The lock of the file that an image is opened with lasts as long as the image.

#![forbid(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use extant_device::{Device, DeviceFault, FileDevice, write_zeros};
use imago::qcow2::Qcow2 as Format;
use imago::storage::StorageOpenOptions;
use imago::{DenyImplicitOpenGate, FormatAccess, FormatCreateBuilder, FormatDriverBuilder};
use rustix::fs::OFlags;

/// The first bytes of an image.
const MAGIC: &[u8; 4] = b"QFI\xfb";
/// Offset of the version in the header, a big-endian number of 32 bits.
const VERSION_OFFSET: u64 = 4;
/// The largest cluster of the format.
const CLUSTER_BYTES_MAX: u64 = 2 << 20;

/// Tables of the second level that programs accept.
const L2_TABLES_MAX: u64 = 4 << 20;

/// An image.
///
/// ```
/// use extant_device::Device;
/// use extant_qcow2::Qcow2;
///
/// let file = tempfile::tempfile()?;
/// let new = Qcow2::create(file.try_clone()?, 64 << 20, 4096)?;
/// new.write_at(1 << 20, b"hello")?;
/// new.finish()?;
/// let image = Qcow2::open(file)?;
/// let mut bytes = [0; 6];
/// image.read_at(1 << 20, &mut bytes)?;
/// assert_eq!((image.size_bytes(), &bytes), (64 << 20, b"hello\0"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Qcow2 {
    image: FormatAccess<imago::file::File>,
    file: File,
    is_new: bool,
    /// The device that the image was opened with: its lock ends with it.
    locked: Option<FileDevice>,
}

impl Qcow2 {
    /// Whether a device contains such an image, by its first bytes.
    #[must_use]
    pub fn is_on(device: &dyn Device) -> bool {
        let mut magic = [0; MAGIC.len()];
        device.size_bytes() >= magic.len() as u64 && device.read_at(0, &mut magic).is_ok() && &magic == MAGIC
    }

    /// Opens an existing image for reading.
    ///
    /// # Errors
    /// It is damaged, encrypted, or consists of several files.
    pub fn open(file: File) -> io::Result<Self> {
        let storage = imago::file::File::from_open_file(file.try_clone()?, StorageOpenOptions::new())?;
        let opened = Format::<imago::file::File>::builder(storage).open(DenyImplicitOpenGate::default());
        let opened = opened.map_err(|why| match why.kind() {
            io::ErrorKind::PermissionDenied => io::Error::new(
                io::ErrorKind::Unsupported,
                "this is a qcow2 disk image that needs another file (a backing file); \
                 `qemu-img convert -O raw IMAGE raw.img` makes one image of both",
            ),
            kind => {
                let remedy =
                    "`qemu-img check IMAGE` says more, `qemu-img convert -O raw IMAGE raw.img` may read it";
                io::Error::new(
                    kind,
                    format!("this is a qcow2 disk image that cannot be read: {why}; {remedy}"),
                )
            }
        })?;
        Ok(Self { image: FormatAccess::new(opened), file, is_new: false, locked: None })
    }

    /// Makes an image of `size_bytes` zeros in an empty file. `cluster_bytes`: the unit in which it
    /// allocates space, at least 512; larger if the tables would have too many entries.
    ///
    /// # Errors
    /// The file cannot be written, or is not empty.
    pub fn create(file: File, size_bytes: u64, cluster_bytes: u64) -> io::Result<Self> {
        if file.metadata()?.len() > 0 {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the file of a new image is not empty"));
        }
        let options = StorageOpenOptions::new().write(true);
        let storage = imago::file::File::from_open_file(file.try_clone()?, options)?;
        // A table of the second level has 8 bytes for each of its clusters.
        let tables = |cluster: u64| size_bytes / (cluster * cluster / 8);
        let mut cluster_bytes = cluster_bytes.clamp(512, CLUSTER_BYTES_MAX);
        while tables(cluster_bytes) >= L2_TABLES_MAX && cluster_bytes < CLUSTER_BYTES_MAX {
            cluster_bytes *= 2;
        }
        let cluster_bytes = cluster_bytes as usize;
        let made = Format::<imago::file::File>::create_builder(storage)
            .size(size_bytes)
            .cluster_size(cluster_bytes)
            .create_open(DenyImplicitOpenGate::default(), |storage| {
                Ok(Format::<imago::file::File>::builder(storage).backing(None).write(true))
            })?;
        Ok(Self { image: FormatAccess::new(made), file, is_new: true, locked: None })
    }

    /// Completes a new image: writes what is cached, and makes it durable.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(self) -> io::Result<()> {
        self.image.flush()?;
        drop(self.image);
        // The image uses none of the features of version 3, which is the version that the library writes:
        // their words in the header are zeros, and in version 2 zeros end the list of header extensions.
        self.file.write_all_at(&2u32.to_be_bytes(), VERSION_OFFSET)?;
        self.file.sync_all()
    }
}

/// The disk in a file that was opened for reading: that of a qcow2 image, otherwise the file itself.
///
/// # Errors
/// As [`Qcow2::open`].
pub fn disk_of(file: FileDevice) -> io::Result<Arc<dyn Device>> {
    if !Qcow2::is_on(&file) {
        return Ok(Arc::new(file));
    }
    // Its tables are read in pieces that direct I/O does not allow.
    let flags = rustix::fs::fcntl_getfl(file.file())?;
    if flags.contains(OFlags::DIRECT) {
        rustix::fs::fcntl_setfl(file.file(), flags.difference(OFlags::DIRECT))?;
    }
    let mut image = Qcow2::open(file.file().try_clone()?)?;
    image.locked = Some(file);
    Ok(Arc::new(image))
}

fn failed(what: &'static str, offset: u64, len: usize) -> impl FnOnce(io::Error) -> DeviceFault {
    move |source| DeviceFault::Io { what, offset, len: len as u64, source }
}

impl Device for Qcow2 {
    fn size_bytes(&self) -> u64 {
        self.image.size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        let len = buf.len();
        DeviceFault::check_len("read", offset, len as u64, self.size_bytes())?;
        self.image.read(buf, offset).map_err(failed("read", offset, len))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        let len = bytes.len();
        if !self.is_new {
            return Err(DeviceFault::ReadOnly { what: "write", offset, len: len as u64 });
        }
        DeviceFault::check_len("write", offset, len as u64, self.size_bytes())?;
        self.image.write(bytes, offset).map_err(failed("write", offset, len))
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        if !self.is_new {
            return Err(DeviceFault::ReadOnly { what: "zero", offset, len });
        }
        DeviceFault::check_len("zero", offset, len, self.size_bytes())?;
        write_zeros(self, offset, len)
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        self.image.sync().map_err(failed("flush", 0, 0))
    }

    fn is_fresh(&self) -> bool {
        self.is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk that is open keeps others from locking its file, and 20 TiB can be dumped.
    #[test]
    fn the_lock_lasts_as_long_as_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.qcow2");
        let new = Qcow2::create(File::create_new(&path).unwrap(), 20 << 40, 1024).unwrap();
        new.write_at((20 << 40) - 4096, &[7; 4096]).unwrap();
        new.finish().unwrap();
        let disk = disk_of(FileDevice::open_shared(&path).unwrap()).unwrap();
        let mut last = [0; 1];
        disk.read_at((20 << 40) - 1, &mut last).unwrap();
        assert_eq!((disk.size_bytes(), last), (20 << 40, [7]));
        assert!(FileDevice::open_locked(&path).is_err());
        drop(disk);
        FileDevice::open_locked(&path).unwrap();
    }
}
