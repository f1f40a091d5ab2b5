//! ext4 in user space: the library.
//!
//! Opens ext2, ext3 and ext4 file systems in image files, block devices, partitions and memory, and reads everything that is in
//! them, without root, without mounting and without the kernel. Safe Rust; nothing is written, and an image may hold any
//! bytes: what is damaged is an error that names its place, never a panic, a hang or a flood of memory.
//!
//! # Reading by paths
//!
//! [`open`] gives a [`FileSystem`], which is used like `std::fs`:
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
//! Paths may be anything that `std::path::Path` can be; names of ext4 are bytes and need not be UTF-8. Symbolic links are
//! followed inside the image and never lead out of it.
//!
//! # Large files
//!
//! [`File`] is `Read` and `Seek`, and reads at offsets by any number of threads:
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
//! [`walk`] reads directories and inodes by several threads ahead of the caller, who gets the entries in an order that does not
//! depend on them. With contents, neighbouring small files are read together:
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
//! # Other places, and what lies beneath
//!
//! A file system may be in any [`Device`]: a [`Window`] of a disk image, memory, or a type of your own.
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
//! let etc = volume.resolve(b"/etc", Follow::Links)?;
//! let motd = volume.lookup(&etc, b"motd")?;
//! assert_eq!(volume.stat(&motd).links, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Journals
//!
//! A file system that was not unmounted shows the state that a replay of its journal gives, which is laid over the image in memory;
//! [`Recovery`] tells how much that was. [`OpenOptions::no_recovery`] shows what stands in place instead.
//!
//! # Errors
//!
//! [`Error`] has the path and a [`Fault`]: a [`Refusal`] (no such file, not a directory, encrypted; [`Fault::errno`] is
//! the kernel's number), a corruption with the rule that is broken and its place, or what the device said. It turns into `std::io::Error`.
//!
//! Owns: the face. Does **not** own: anything of ext4, which is in the crates below (`volume` and what it stands on).

#![forbid(unsafe_code)]

mod error;
mod file;
mod fs;
mod list;
pub mod spelled;
pub mod walk;

use std::path::Path;

pub use base::{BlockSize, Corrupt, Ino};
pub use device::{Device, DeviceFault, FileDevice, MemDevice, Window};
pub use error::Error;
pub use file::File;
pub use fs::{DirEntry, FileSystem, ReadDir};
pub use ondisk::time::Timestamp;
pub use ondisk::{Features, Superblock};
pub use volume::{
    Attribute, Cursor, Extent, Fault, FileType, Follow, Inode, InodeRef, OpenFault, OpenOptions, Recovery,
    Refusal, Seek, Stat, StatFs, Volume,
};
pub use walk::Walk;

/// Inode flags by name and bit, as in [`Stat::flags`].
pub use ondisk::inode::flags;

/// Opens an image file or block device for reading.
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
