//! ext4 in user space: the library.
//!
//! Opens ext2, ext3 and ext4 file systems in image files, block devices, partitions and memory, without root,
//! without mounting and without the kernel. Reads everything in them but encrypted contents, and changes
//! names, attributes and contents. This crate has no `unsafe` code. A file system that is open for reading is
//! never written to. An image may hold any bytes: damage causes an error that names its place, never a panic,
//! a hang or excessive use of memory.
//!
//! # Reading by paths
//!
//! [`open`] returns a [`FileSystem`], which is used like `std::fs`:
//!
//! ```
//! # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
//! # let (_kept, image) = example::example_image();
//! let fs = extant::open(&image)?;
//!
//! assert_eq!(fs.read("/etc/motd")?, b"hello\n");
//! assert_eq!(fs.read_link("/lib")?.to_str(), Some("usr/lib"));
//! assert_eq!(fs.metadata("/etc/network")?.mode & 0o170_000, 0o040_000);
//! assert!(!fs.exists("/etc/shadow")?);
//!
//! for entry in fs.read_dir("/etc")? {
//!     let entry = entry?;
//!     println!("{:>8} {}", entry.metadata()?.size, String::from_utf8_lossy(entry.name()));
//! }
//! for attribute in fs.xattrs("/etc/motd")? {
//!     println!("{} has {} bytes", String::from_utf8_lossy(&attribute.name), attribute.value.len());
//! }
//! # Ok::<(), extant::Error>(())
//! ```
//!
//! Paths may be anything that `std::path::Path` can hold; names in ext4 are bytes and need not be UTF-8.
//! Symbolic links are followed inside the image and never lead out of it.
//!
//! # Large files
//!
//! [`File`] implements `Read` and `Seek`, and any number of threads can read at offsets:
//!
//! ```
//! # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
//! # let (_kept, image) = example::example_image();
//! # let fs = extant::open(&image)?;
//! use std::io::{Read, Seek, SeekFrom};
//!
//! let mut file = fs.file("/lib/large")?;
//! file.seek(SeekFrom::End(-3))?;
//! let mut end = String::new();
//! file.read_to_string(&mut end)?;
//! assert_eq!(end, "xxx");
//!
//! let mut page = [0; 4096];
//! assert_eq!(file.read_at(&mut page, 1 << 20)?, 4096);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Whole trees
//!
//! [`walk`] reads directories and inodes ahead of the caller with several threads. The order of the results
//! does not depend on the threads. With contents, neighbouring small files are read together:
//!
//! ```
//! # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
//! # let (_kept, image) = example::example_image();
//! # let fs = extant::open(&image)?;
//! use extant::walk::{Data, Order};
//!
//! let mut lines = Vec::new();
//! for loaded in fs.walk("/")?.order(Order::Names).contents() {
//!     let loaded = loaded?;
//!     let path = String::from_utf8_lossy(loaded.entry.path()).into_owned();
//!     match loaded.data {
//!         Data::Ready(bytes) => lines.push(format!("{path}: {} bytes", bytes.len())),
//!         Data::Large => lines.push(format!("{path}: {} bytes, in pieces", loaded.stat.size)),
//!         Data::Target(target) => lines.push(format!("{path} -> {}", String::from_utf8_lossy(&target))),
//!         Data::None => {}
//!         Data::Failed(fault) => lines.push(format!("{path}: {fault}")),
//!     }
//! }
//! assert_eq!(lines, [
//!     "etc/motd: 6 bytes",
//!     "etc/network/interfaces: 8 bytes",
//!     "lib -> usr/lib",
//!     "usr/lib/large: 3145728 bytes, in pieces",
//! ]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Changing things
//!
//! [`open_writable`] returns a file system that can be changed. Each operation is atomic: it is done
//! completely or refused. Only `create_dir_all` and `remove_dir_all` consist of many operations. With a
//! journal, an operation is durable after the next [`sync`](FileSystem::sync).
//! [`Files::write_at`](extant_volume::Files::write_at) writes the contents of files, by inode.
//!
//! ```
//! # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
//! # let memory = example::empty_memory(64 << 20);
//! use extant::{FileSystem, Follow, OpenOptions, Refusal, Rename, SetAttr, Timestamp};
//!
//! let fs = FileSystem::from_device_writable(memory, &OpenOptions::default())?;
//!
//! fs.create_dir("/etc", 0o755)?;
//! fs.create_dir_all("/var/log/app", 0o750)?;
//! fs.create("/etc/hosts", 0o644)?;
//! fs.symlink("../etc/hosts", "/var/hosts")?;
//! fs.hard_link("/etc/hosts", "/etc/names")?;
//! assert_eq!(fs.metadata("/var/hosts")?.links, 2);
//!
//! fs.set_mode("/etc/hosts", 0o600)?;
//! fs.set_owner("/etc/hosts", Some(1000), None)?;
//! fs.set_times("/etc/hosts", None, Some(Timestamp { seconds: 1_700_000_000, nanos: 0 }))?;
//! fs.set_len("/etc/hosts", 1 << 20)?;
//! fs.set_xattr("/etc/hosts", "user.origin", b"template")?;
//! // `set_attr` sets several fields in one operation; with `NotTheLast` it changes a symbolic link itself:
//! let owner = SetAttr { uid: Some(1000), gid: Some(1000), ..SetAttr::default() };
//! fs.set_attr("/var/hosts", Follow::NotTheLast, &owner)?;
//!
//! fs.rename("/etc/names", "/var/names")?;
//! let refused = fs.rename_with("/var/names", "/etc/hosts", Rename::NoReplace).unwrap_err();
//! assert!(refused.is(Refusal::Exists));
//! assert_eq!(refused.to_string(), "/var/names -> /etc/hosts: the name exists");
//!
//! fs.sync()?; // what was done until here survives a power cut
//!
//! fs.remove_xattr("/etc/hosts", "user.origin")?;
//! fs.remove_file("/var/names")?;
//! fs.remove_dir_all("/var")?;
//! fs.remove_file("/etc/hosts")?;
//! fs.remove_dir("/etc")?;
//! fs.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Many threads may change a file system at the same time, and share the commits:
//!
//! ```
//! # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
//! # let memory = example::empty_memory(64 << 20);
//! use extant::{FileSystem, OpenOptions};
//!
//! let fs = FileSystem::from_device_writable(memory, &OpenOptions::default())?;
//! std::thread::scope(|scope| {
//!     let workers: Vec<_> = (0..4)
//!         .map(|worker| {
//!             let fs = &fs;
//!             scope.spawn(move || {
//!                 fs.create_dir(format!("/{worker}"), 0o755)?;
//!                 for file in 0..500 {
//!                     fs.create(format!("/{worker}/{file}"), 0o644)?;
//!                 }
//!                 Ok::<(), extant::Error>(())
//!             })
//!         })
//!         .collect();
//!     workers.into_iter().try_for_each(|worker| worker.join().expect("no worker panics"))
//! })?;
//! assert_eq!(fs.read_dir("/3")?.count(), 500);
//! fs.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A file or block device has one writer: a second one gets the error "in use". Readers are not locked out. A
//! reader that opens an image while it is being written may see an older state, or half of a change.
//!
//! # Other devices, and the layer below
//!
//! A file system may be on any [`Device`]: a [`Window`] of a disk image, memory, or your own type.
//!
//! ```
//! # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
//! # let (_kept, image) = example::example_image();
//! use std::sync::Arc;
//! use extant::{Device, FileSystem, Follow, MemDevice, OpenOptions};
//!
//! let bytes = std::fs::read(&image)?;
//! let memory = MemDevice::new(bytes.len() as u64);
//! memory.write_at(0, &bytes)?;
//!
//! let fs = FileSystem::from_device(Arc::new(memory), &OpenOptions::default())?;
//! let recovery = fs.volume().recovery();
//! assert!(!recovery.needed, "{} transactions wait in the journal", recovery.transactions);
//!
//! // By inodes instead of paths: the volume.
//! let volume = fs.volume();
//! let etc = volume.names().resolve(b"/etc", Follow::Links)?;
//! let motd = volume.names().lookup(&etc, b"motd")?;
//! assert_eq!(volume.attributes().stat(&motd).links, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Journals
//!
//! If a file system was not unmounted and is opened for reading, it shows the state after a replay of its
//! journal in memory; [`Recovery`] describes that replay. [`OpenOptions::no_recovery`] shows the state on
//! disk instead.
//!
//! # Errors
//!
//! [`Error`] contains the path and a [`Fault`]: a [`Refusal`] (no such file, not a directory, encrypted;
//! [`Fault::errno`] returns the kernel's number), a corruption with the broken rule and its place, or the
//! device's error. It converts to `std::io::Error`.
//!
//! Owns: the public interface. Does **not** own: any knowledge of ext4, which is in the crates below
//! (`volume` and its dependencies).

#![forbid(unsafe_code)]

mod attributes;
#[cfg(feature = "build")]
pub mod build;
mod change;
#[cfg(feature = "check")]
pub mod check;
#[cfg(feature = "build")]
pub mod diff;
mod error;
mod file;
mod fs;
mod list;
#[cfg(feature = "build")]
pub mod mkfs;
pub mod optimize;
#[cfg(feature = "repair")]
pub mod repair;
#[cfg(feature = "rescue")]
pub mod rescue;
#[cfg(feature = "resize")]
pub mod resize;
pub mod spelled;
#[cfg(feature = "repair")]
pub mod tune;
#[cfg(feature = "build")]
pub mod update;
pub mod walk;

use std::path::Path;

pub use error::Error;
pub use extant_base::{BlockSize, Corrupt, Ino};
#[cfg(unix)]
pub use extant_device::Io;
/// Partition tables of disk images, GPT and MBR: [`Partition::window`](partition::Partition::window) is the
/// device of a partition.
pub use extant_device::partition;
pub use extant_device::{Backend, BackendDevice, Device, DeviceFault, FileDevice, MemDevice, Window};
pub use extant_ondisk::acl::{Acl, AclEntry, AclTag};
/// A UUID as text, such as that of a [`Superblock`].
pub use extant_ondisk::superblock::uuid_text;
pub use extant_ondisk::time::Timestamp;
pub use extant_ondisk::{Features, Superblock};
pub use extant_volume::{
    Acting, AllocStats, Allocate, Attribute, Batching, BySuperblock, Cursor, DataPath, DefaultOptions,
    ErrorCursor, Extent, ExtentPolicy, ExtentStats, Fault, FileType, FlushDelay, FlushMode, FlushSettings,
    Follow, Inode, InodeRef, MountGuard, New, OnError, OnWait, OpenFault, OpenOptions, OrphanMode, Recovery,
    Refusal, Rename, Seek, SetAttr, SetXattr, Shutdown, Stat, StatFs, Volume, Waiting, WriteOptions,
};
pub use file::{Durable, File};
pub use fs::{DirEntry, FileSystem, ReadDir};
pub use walk::Walk;

/// Inode flags by name and bit, as in [`Stat::flags`].
pub use extant_ondisk::inode::flags;

/// The disk in a file: that of a qcow2 image, otherwise the file itself.
#[cfg(feature = "qcow2")]
pub(crate) use extant_qcow2::disk_of;

/// The disk in a file: without the feature `qcow2`, the file itself.
#[cfg(not(feature = "qcow2"))]
pub(crate) fn disk_of(file: FileDevice) -> std::io::Result<std::sync::Arc<dyn Device>> {
    Ok(std::sync::Arc::new(file))
}

/// Opens an image file or block device for reading. With the feature `qcow2`, the file may be a qcow2 image.
///
/// # Errors
/// The file cannot be opened, or holds no file system that can be read.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// let fs = extant::open(&image)?;
/// let space = fs.statfs()?;
/// println!("{} bytes free", space.blocks_free * u64::from(space.block_size));
/// # Ok::<(), extant::Error>(())
/// ```
pub fn open(image: impl AsRef<Path>) -> Result<FileSystem, Error> {
    FileSystem::open(image)
}

/// Opens an image file or block device for reading and writing; see [`FileSystem::open_writable`].
///
/// # Errors
/// The file cannot be opened, is in use, or holds no file system that can be written.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// let fs = extant::open_writable(&image)?;
/// fs.set_mode("/etc/motd", 0o444)?;
///
/// let second = extant::open_writable(&image).err().expect("there is one writer at a time");
/// assert_eq!(std::io::Error::from(second).kind(), std::io::ErrorKind::ResourceBusy);
///
/// fs.close()?;
/// # Ok::<(), extant::Error>(())
/// ```
pub fn open_writable(image: impl AsRef<Path>) -> Result<FileSystem, Error> {
    FileSystem::open_writable(image)
}

#[cfg(doctest)]
#[doc = include_str!("../../../../docs/cookbook.md")]
struct Cookbook;
