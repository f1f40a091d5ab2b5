//! A file system by paths, like `std::fs`.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
#[cfg(unix)]
use std::os::unix::ffi::{OsStrExt, OsStringExt};
#[cfg(target_os = "wasi")]
use std::os::wasi::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use extant_base::Ino;
use extant_device::{Device, FileDevice};
use extant_volume::{
    Attribute, Cursor, Fault, FileType, Follow, InodeRef, OpenFault, OpenOptions, Refusal, Stat, StatFs,
    Volume,
};

use crate::{Error, File, list};

/// An open file system, used by paths. Cheap to clone; clones share all state, and several threads may use
/// one.
///
/// Paths start at the root of the file system, with or without a leading slash. Symbolic links are followed
/// inside the file system: an absolute target or `..` never leaves the image. Operations that need more than
/// a path are in the [`volume`](Self::volume).
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// use std::thread;
///
/// let fs: extant::FileSystem = extant::open(&image)?;
/// let clone = fs.clone();
/// let size = thread::spawn(move || clone.metadata("/usr/lib/large").map(|stat| stat.size));
/// assert_eq!(fs.read("/etc/motd")?, b"hello\n");
/// assert_eq!(size.join().unwrap()?, 3 << 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct FileSystem {
    pub(crate) volume: Arc<Volume>,
    pub(crate) device: Arc<dyn Device>,
}

impl std::fmt::Debug for FileSystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let blocks = self.volume.superblock().blocks_count;
        write!(f, "FileSystem: {blocks} blocks, {} bytes on the device", self.device.size_bytes())
    }
}

impl FileSystem {
    /// Opens an image file or block device for reading. Writes nothing: a journal that needs replay is
    /// applied in memory.
    ///
    /// # Errors
    /// The file cannot be opened, or holds no file system that can be read.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// let fs = extant::FileSystem::open(&image)?;
    /// assert_eq!(fs.read("/etc/motd")?, b"hello\n");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(image: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_with(image, &OpenOptions::default())
    }

    /// Same as [`open`](Self::open), with options.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// use extant::{FileSystem, OpenOptions};
    ///
    /// // Without the replay of the journal: the state on the disk.
    /// let options = OpenOptions { no_recovery: true, ..OpenOptions::default() };
    /// assert!(FileSystem::open_with(&image, &options)?.exists("/etc")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_with(image: impl AsRef<Path>, options: &OpenOptions) -> Result<Self, Error> {
        let image = image.as_ref();
        let failed = |source: io::Error| Error::Image { image: image.to_owned(), source };
        let device = FileDevice::open_read_only(image).and_then(crate::disk_of).map_err(failed)?;
        Self::from_device(device, options).map_err(|source| Error::Open { image: image.to_owned(), source })
    }

    /// Opens the file system on a device: a file, a window of a file, memory.
    ///
    /// # Errors
    /// The device holds no file system that can be read.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// use std::sync::Arc;
    /// use extant::{FileDevice, FileSystem, OpenOptions, Window};
    ///
    /// // A part of a disk image, here all of it; `extant::partition` finds partitions.
    /// let disk = Arc::new(FileDevice::open_read_only(&image)?);
    /// let bytes = std::fs::metadata(&image)?.len();
    /// let part = Arc::new(Window::owned(disk, 0, bytes)?);
    /// assert!(FileSystem::from_device(part, &OpenOptions::default())?.exists("/etc")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_device(device: Arc<dyn Device>, options: &OpenOptions) -> Result<Self, OpenFault> {
        let volume = Volume::open_read_only(Arc::clone(&device), options)?;
        Ok(Self { volume: Arc::new(volume), device })
    }

    /// The volume: operations on inodes instead of paths.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// let root = fs.volume().root()?;
    /// assert_eq!(fs.volume().names().lookup(&root, b"etc")?.ino(), fs.metadata("/etc")?.ino);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// The underlying device; `None` if a journal is replayed over it in memory, because its bytes are
    /// outdated then.
    pub(crate) fn plain_device(&self) -> Option<&Arc<dyn Device>> {
        (!self.volume.recovery().needed).then_some(&self.device)
    }

    /// The inode at a path.
    ///
    /// # Errors
    /// The path does not exist; a component of it is not a directory or is corrupt; the device failed.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// use extant::{FileType, Follow};
    ///
    /// assert_eq!(fs.resolve("/lib", Follow::Links)?.kind(), FileType::Directory);
    /// assert_eq!(fs.resolve("/lib", Follow::NotTheLast)?.kind(), FileType::Symlink);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resolve(&self, path: impl AsRef<Path>, follow: Follow) -> Result<InodeRef, Error> {
        let path = bytes(path.as_ref());
        self.volume.names().resolve(path, follow).map_err(Error::at(path))
    }

    /// The result of stat(2). Symbolic links are followed.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// let stat = fs.metadata("/etc/motd")?;
    /// assert_eq!((stat.size, stat.links, stat.mode & 0o170_000), (6, 1, 0o100_000));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Stat, Error> {
        Ok(self.volume.attributes().stat(&*self.resolve(path, Follow::Links)?))
    }

    /// The result of lstat(2). A symbolic link at the end of the path is not followed.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// assert_eq!(fs.symlink_metadata("/lib")?.mode & 0o170_000, 0o120_000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Stat, Error> {
        Ok(self.volume.attributes().stat(&*self.resolve(path, Follow::NotTheLast)?))
    }

    /// Whether the path exists. Symbolic links are followed, so a dangling link does not exist.
    ///
    /// # Errors
    /// A component of the path is corrupt, or the device failed.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// assert!(fs.exists("/lib/large")?);
    /// assert!(!fs.exists("/etc/motd/below")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn exists(&self, path: impl AsRef<Path>) -> Result<bool, Error> {
        match self.resolve(path, Follow::Links) {
            Ok(_) => Ok(true),
            Err(error) if error.is(Refusal::NotFound) || error.is(Refusal::NotDirectory) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Opens a regular file. Symbolic links are followed.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve); [`Refusal::IsDirectory`] or [`Refusal::WrongType`] if it is not a
    /// regular file.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// use std::io::{BufRead, BufReader};
    ///
    /// let first = BufReader::new(fs.file("/etc/motd")?).lines().next().unwrap()?;
    /// assert_eq!(first, "hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn file(&self, path: impl AsRef<Path>) -> Result<File, Error> {
        let path = path.as_ref();
        let inode = self.resolve(path, Follow::Links)?;
        let refusal = match inode.kind() {
            FileType::Regular => {
                return File::new(Arc::clone(&self.volume), inode).map_err(Error::at(bytes(path)));
            }
            FileType::Directory => Refusal::IsDirectory,
            _ => Refusal::WrongType,
        };
        Err(Error::at(bytes(path))(refusal.into()))
    }

    /// All bytes of a regular file. Holes are returned as zeros, so the result needs as much memory as the
    /// file's size; use [`file`](Self::file) for large files.
    ///
    /// # Errors
    /// As [`file`](Self::file); [`Error::TooLarge`]; the content is encrypted or cannot be read.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// assert_eq!(fs.read("/etc/network/interfaces")?, b"auto lo\n");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>, Error> {
        let path = path.as_ref();
        let file = self.file(path)?;
        let too_large = || Error::TooLarge { path: bytes(path).to_vec(), len: file.len() };
        let len = usize::try_from(file.len()).map_err(|_| too_large())?;
        let mut content = Vec::new();
        content.try_reserve_exact(len).map_err(|_| too_large())?;
        while content.len() < len {
            let done = content.len();
            content.resize(len.min(done + READ_PIECE), 0);
            let got = file.read_at(&mut content[done..], done as u64).map_err(Error::at(bytes(path)))?;
            if got == 0 {
                content.truncate(done);
                break;
            }
            content.truncate(done + got);
        }
        Ok(content)
    }

    /// Lists the names of a directory in the order in which they are stored, without "." and "..".
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve); [`Refusal::NotDirectory`]; the first names cannot be read.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// let names: Result<Vec<_>, _> = fs.read_dir("/etc")?.map(|entry| Ok(entry?.file_name())).collect();
    /// let mut names = names.map_err(|error: extant::Error| error)?;
    /// names.sort();
    /// assert_eq!(names, ["motd", "network"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir, Error> {
        let path = path.as_ref();
        let dir = self.resolve(path, Follow::Links)?;
        let mut names = ReadDir {
            fs: self.clone(),
            path: bytes(path).to_vec(),
            dir,
            next: Some(Cursor::START),
            ready: VecDeque::new(),
        };
        names.fill().map_err(Error::at(bytes(path)))?;
        Ok(names)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve); [`Refusal::WrongType`] if it is not a symbolic link.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// assert_eq!(fs.read_link("/lib")?.to_str(), Some("usr/lib"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf, Error> {
        let path = path.as_ref();
        let inode = self.resolve(path, Follow::NotTheLast)?;
        let target = self.volume.files().read_link(&inode).map_err(Error::at(bytes(path)))?;
        Ok(PathBuf::from(OsString::from_vec(target)))
    }

    /// The extended attributes, including ACLs, of a file or of a symbolic link itself.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve); the attributes are corrupt.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// # let fs = extant::FileSystem::from_device_writable(memory, &Default::default())?;
    /// fs.write("/file", b"")?;
    /// fs.set_xattr("/file", "user.origin", b"template")?;
    /// let all = fs.xattrs("/file")?;
    /// assert_eq!((all.len(), &*all[0].name, &*all[0].value), (1, &b"user.origin"[..], &b"template"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn xattrs(&self, path: impl AsRef<Path>) -> Result<Vec<Attribute>, Error> {
        let path = path.as_ref();
        let inode = self.resolve(path, Follow::NotTheLast)?;
        self.volume.attributes().xattrs(&inode).map_err(Error::at(bytes(path)))
    }

    /// The value of an extended attribute by its full name, of a file or of a symbolic link itself.
    ///
    /// # Errors
    /// [`Refusal::NoAttribute`]; as [`xattrs`](Self::xattrs).
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// # let fs = extant::FileSystem::from_device_writable(memory, &Default::default())?;
    /// use extant::Refusal;
    ///
    /// fs.write("/file", b"")?;
    /// fs.set_xattr("/file", "user.origin", b"template")?;
    /// assert_eq!(fs.xattr("/file", "user.origin")?, b"template");
    /// assert!(fs.xattr("/file", "user.absent").unwrap_err().is(Refusal::NoAttribute));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn xattr(&self, path: impl AsRef<Path>, name: impl AsRef<[u8]>) -> Result<Vec<u8>, Error> {
        let path = path.as_ref();
        let inode = self.resolve(path, Follow::NotTheLast)?;
        self.volume.attributes().xattr(&inode, name.as_ref()).map_err(Error::at(bytes(path)))
    }

    /// Total and free space and inodes, like df.
    ///
    /// # Errors
    /// The count of free blocks cannot be read.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// let space = fs.statfs()?;
    /// assert!(space.blocks_free < space.blocks);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn statfs(&self) -> Result<StatFs, Error> {
        self.volume.statfs().map_err(Error::at(b"/"))
    }
}

/// A path's bytes.
pub(crate) fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

/// Bytes per read in [`FileSystem::read`].
const READ_PIECE: usize = 4 << 20;
/// Names per piece of [`ReadDir`].
const NAMES_PIECE: usize = 1024;

/// An iterator over the names of a directory, with a bounded number of them in memory. See
/// [`FileSystem::read_dir`].
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// # let fs = extant::open(&image)?;
/// let mut names: extant::ReadDir = fs.read_dir("/etc/network")?;
/// assert_eq!(names.next().unwrap()?.name(), b"interfaces");
/// assert!(names.next().is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ReadDir {
    fs: FileSystem,
    path: Vec<u8>,
    dir: InodeRef,
    next: Option<Cursor>,
    ready: VecDeque<Result<DirEntry, Error>>,
}

impl ReadDir {
    fn fill(&mut self) -> Result<(), Fault> {
        while self.ready.is_empty()
            && let Some(from) = self.next.take()
        {
            let piece = list::piece(&self.fs.volume, &self.dir, from, NAMES_PIECE)?;
            self.next = piece.next;
            self.ready.extend(piece.damage.into_iter().map(|fault| Err(Error::at(&self.path)(fault))));
            let entries = piece.names.into_iter().map(|name| {
                Ok(DirEntry {
                    volume: Arc::clone(&self.fs.volume),
                    name: name.name,
                    ino: name.ino,
                    kind: name.kind,
                })
            });
            self.ready.extend(entries);
        }
        Ok(())
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Err(fault) = self.fill() {
            return Some(Err(Error::at(&self.path)(fault)));
        }
        self.ready.pop_front()
    }
}

/// A name in a directory, and the inode that it refers to.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// # let fs = extant::open(&image)?;
/// for entry in fs.read_dir("/usr/lib")? {
///     let entry: extant::DirEntry = entry?;
///     assert_eq!((entry.name(), entry.kind()), (&b"large"[..], Some(extant::FileType::Regular)));
///     assert_eq!(entry.ino(), entry.inode()?.ino());
///     assert_eq!(entry.metadata()?.size, 3 << 20);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct DirEntry {
    volume: Arc<Volume>,
    name: Vec<u8>,
    ino: Ino,
    kind: Option<FileType>,
}

impl DirEntry {
    /// The name, 1 to 255 bytes.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// let entry = fs.read_dir("/usr/lib")?.next().unwrap()?;
    /// assert_eq!(entry.name(), b"large");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// The name as an `OsString`.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// let entry = fs.read_dir("/usr/lib")?.next().unwrap()?;
    /// assert_eq!(entry.file_name(), "large");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn file_name(&self) -> OsString {
        OsString::from_vec(self.name.clone())
    }

    /// The inode number.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// let entry = fs.read_dir("/usr/lib")?.next().unwrap()?;
    /// assert_eq!(entry.ino(), fs.metadata("/usr/lib/large")?.ino);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// The type from the directory entry; `None` on old file systems without types.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// let entry = fs.read_dir("/usr/lib")?.next().unwrap()?;
    /// assert_eq!(entry.kind(), Some(extant::FileType::Regular));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn kind(&self) -> Option<FileType> {
        self.kind
    }

    /// The inode.
    ///
    /// # Errors
    /// The inode is not in use or is corrupt; the device failed.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// let entry = fs.read_dir("/usr/lib")?.next().unwrap()?;
    /// assert_eq!(entry.inode()?.size(), 3 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn inode(&self) -> Result<InodeRef, Error> {
        self.volume.inode(self.ino).map_err(Error::at(&self.name))
    }

    /// The result of lstat(2).
    ///
    /// # Errors
    /// As [`inode`](Self::inode).
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// let entry = fs.read_dir("/usr/lib")?.next().unwrap()?;
    /// assert_eq!(entry.metadata()?.mode & 0o777, 0o644);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn metadata(&self) -> Result<Stat, Error> {
        Ok(self.volume.attributes().stat(&*self.inode()?))
    }
}
