//! Changes a file system by paths, like `std::fs`.
//!
//! Owns: finding the directory and the name that a path refers to, and removing whole trees. Does **not**
//! own: the operations; [`Volume`](crate::Volume) implements them, each one atomic and journaled.
//!
//! Invariants
//! 1. An operation that returns an error has changed nothing. [`FileSystem::remove_dir_all`] and
//!    [`FileSystem::create_dir_all`] consist of many operations; their documentation states what remains
//!    after an error.
//! 2. Changes are durable after [`FileSystem::sync`] or [`FileSystem::close`]. A power cut before that may
//!    undo the latest operations, never one without all later ones.

use std::collections::{HashSet, VecDeque};
#[cfg(unix)]
use std::os::unix::ffi::OsStrExt;
#[cfg(target_os = "wasi")]
use std::os::wasi::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use extant_base::{Corrupt, CorruptAt, Ino, Malformed};
use extant_device::{Device, FileDevice};
use extant_volume::{
    Cursor, Fault, FileType, Follow, InodeRef, New, OpenFault, OpenOptions, Refusal, Rename, Volume,
};

use crate::fs::{FileSystem, bytes};
use crate::{Error, File, list};

/// Number of names read at a time while a tree is removed.
const NAMES_PIECE: usize = 1024;
/// How often a directory is emptied again because other threads add names to it, before the removal fails.
const EMPTYING_TRIES: u32 = 8;

/// The parent directory and the name that a path refers to.
struct ParentAndName {
    dir: Ino,
    /// Empty for the root, which has no name.
    name: Vec<u8>,
    /// Whether the path ends in a slash, which is allowed for directories only.
    has_slash: bool,
}

impl ParentAndName {
    /// Returns an error for paths that only a directory can have.
    fn for_file(self, refusal: Refusal) -> Result<Self, Fault> {
        match self.name.as_slice() {
            b"" => Err(refusal.into()),
            _ if self.has_slash => Err(Refusal::NotDirectory.into()),
            _ => Ok(self),
        }
    }

    /// Returns an error for the root.
    fn for_any(self, refusal: Refusal) -> Result<Self, Fault> {
        if self.name.is_empty() { Err(refusal.into()) } else { Ok(self) }
    }
}

/// A directory that is being emptied.
struct Emptied {
    ino: Ino,
    name: Vec<u8>,
    next: Option<Cursor>,
    ready: VecDeque<list::Name>,
    tries: u32,
}

/// Most symbolic links in a row, as in the kernel.
const SYMLINKS_MAX: usize = 40;

impl FileSystem {
    /// Opens an image file or block device for reading and writing. Replays a dirty journal and frees orphans
    /// first. There can be no other writer until it is closed; readers are allowed.
    ///
    /// # Errors
    /// [`Error::Image`] if the file cannot be opened; of the kind [`std::io::ErrorKind::ResourceBusy`] if it
    /// has another writer or is mounted. [`Error::Open`] if it holds no file system that can be written.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// let fs = extant::FileSystem::open_writable(&image)?;
    /// fs.rename("/etc/motd", "/etc/issue")?;
    /// fs.close()?;
    ///
    /// assert_eq!(extant::open(&image)?.read("/etc/issue")?, b"hello\n");
    /// # Ok::<(), extant::Error>(())
    /// ```
    pub fn open_writable(image: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_writable_with(image, &OpenOptions::default())
    }

    /// Same as [`open_writable`](Self::open_writable), with options; [`OpenOptions::write`] has those for
    /// writing.
    ///
    /// # Errors
    /// As [`open_writable`](Self::open_writable).
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// use extant::{FileSystem, OpenOptions};
    ///
    /// let mut options = OpenOptions::default();
    /// options.write.is_no_mount = true; // the mount count stays
    /// let fs = FileSystem::open_writable_with(&image, &options)?;
    /// fs.create_dir("/srv", 0o755)?;
    /// fs.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_writable_with(image: impl AsRef<Path>, options: &OpenOptions) -> Result<Self, Error> {
        let image = image.as_ref();
        let device = FileDevice::open_locked(image)
            .map_err(|source| Error::Image { image: image.to_owned(), source })?;
        Self::from_device_writable(Arc::new(device), options)
            .map_err(|source| Error::Open { image: image.to_owned(), source })
    }

    /// Opens the file system on a device for reading and writing. The caller ensures that there is no other
    /// writer.
    ///
    /// # Errors
    /// The device holds no file system that can be written, or failed.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// use extant::{FileSystem, OpenOptions};
    ///
    /// let fs = FileSystem::from_device_writable(memory, &OpenOptions::default())?;
    /// fs.write("/notes", b"in memory")?;
    /// fs.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_device_writable(device: Arc<dyn Device>, options: &OpenOptions) -> Result<Self, OpenFault> {
        let volume = Volume::open(Arc::clone(&device), options)?;
        Ok(Self { volume: Arc::new(volume), device })
    }

    /// Whether the file system is open for writing.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// assert!(!fs.is_writable());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.volume.is_writable()
    }

    /// Creates an empty regular file owned by root with these permission bits (0 to 0o7777). Returns its
    /// inode.
    ///
    /// # Errors
    /// [`Refusal::Exists`] if the name exists; [`Refusal::NoSpace`]; [`Refusal::ReadOnly`] if the file system
    /// is not open for writing; the errors of [`resolve`](Self::resolve) for the parent directory.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// # let fs = extant::FileSystem::from_device_writable(memory, &Default::default())?;
    /// let inode = fs.create("/hosts", 0o644)?;
    /// assert_eq!(fs.metadata("/hosts")?.ino, inode.ino());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn create(&self, path: impl AsRef<Path>, mode: u16) -> Result<InodeRef, Error> {
        self.create_node(path, &New::file(mode))
    }

    /// Replaces the content of a regular file; creates the file (owned by root, mode 0644) if it does not
    /// exist. Symbolic links are followed. The bytes stay in memory until [`sync`](Self::sync),
    /// [`close`](Self::close) or [`File::sync_all`].
    ///
    /// # Errors
    /// As [`create`](Self::create) and [`file`](Self::file). After [`Refusal::NoSpace`], the bytes that fit
    /// are written.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// let fs = extant::open_writable(&image)?;
    /// fs.write("/etc/issue", b"welcome\n")?;
    /// fs.close()?;
    ///
    /// assert_eq!(extant::open(&image)?.read("/etc/issue")?, b"welcome\n");
    /// # Ok::<(), extant::Error>(())
    /// ```
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<File, Error> {
        let path = path.as_ref();
        let file = match self.file(path) {
            Err(Error::At { fault, .. }) if fault.is(Refusal::NotFound) => {
                let target = self.target_of(path)?;
                self.create(&target, 0o644)?;
                self.file(&target)?
            }
            file => file?,
        };
        file.set_len(0).and_then(|()| file.write_at(content.as_ref(), 0)).map_err(Error::at(bytes(path)))?;
        Ok(file)
    }

    /// Gives a file this content in one step: with a journal, the file has either the old content or all of
    /// the new one after a crash, whenever the crash comes. Follows symbolic links, and creates the file
    /// with permissions 0644 if it does not exist.
    ///
    /// The content is written to a new file beside the old one, which is renamed over it. So the file gets
    /// another inode, and further hard links keep the old content. Mode, owner, group and extended attributes
    /// stay. The step is durable after [`sync`](Self::sync).
    ///
    /// # Errors
    /// As [`write`](Self::write); it is no regular file. The old file is unchanged then.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// let fs = extant::open_writable(&image)?;
    /// fs.set_mode("/etc/motd", 0o600)?;
    /// fs.replace("/etc/motd", b"maintenance at noon\n")?;
    /// assert_eq!(fs.metadata("/etc/motd")?.mode & 0o7777, 0o600);
    /// fs.close()?;
    ///
    /// assert_eq!(extant::open(&image)?.read("/etc/motd")?, b"maintenance at noon\n");
    /// # Ok::<(), extant::Error>(())
    /// ```
    pub fn replace(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<File, Error> {
        let target = self.target_of(path.as_ref())?;
        let old = match self.symlink_metadata(&target) {
            Ok(old) if old.kind == FileType::Regular => Some(old),
            Ok(old) => {
                let is_dir = old.kind == FileType::Directory;
                let refusal = if is_dir { Refusal::IsDirectory } else { Refusal::WrongType };
                return Err(Error::at(bytes(&target))(refusal.into()));
            }
            Err(error) if error.is(Refusal::NotFound) => None,
            Err(error) => return Err(error),
        };
        let beside = self.create_beside(&target)?;
        let filled = || {
            let file = self.file(&beside)?;
            // The data is on the device before the name refers to it.
            let written = file.write_at(content.as_ref(), 0).and_then(|()| file.sync_data());
            written.map_err(Error::at(bytes(&target)))?;
            if let Some(old) = &old {
                self.set_owner(&beside, Some(old.uid), Some(old.gid))?;
                for attribute in self.xattrs(&target)? {
                    self.set_xattr(&beside, &attribute.name, &attribute.value)?;
                }
            }
            self.set_mode(&beside, old.as_ref().map_or(0o644, |old| old.mode & 0o7777))?;
            self.rename(&beside, &target)
        };
        match filled() {
            Ok(()) => self.file(&target),
            Err(error) => {
                // The first error says why; what stays in the worst case is a file without a reader.
                let _ = self.remove_file(&beside);
                Err(error)
            }
        }
    }

    /// Creates an empty file with a name of its own in the directory of a path.
    fn create_beside(&self, path: &Path) -> Result<PathBuf, Error> {
        let dir = path.parent().unwrap_or(Path::new("/"));
        let mut number = u64::from(std::process::id());
        loop {
            let beside = dir.join(format!(".extant-{number:x}"));
            match self.create(&beside, 0o600) {
                Ok(_) => return Ok(beside),
                Err(error) if error.is(Refusal::Exists) => number = number.wrapping_add(1 << 32),
                Err(error) => return Err(error),
            }
        }
    }

    /// What a path refers to: where it is a symbolic link, its target, which need not exist.
    fn target_of(&self, path: &Path) -> Result<PathBuf, Error> {
        let mut path = path.to_owned();
        for _ in 0..SYMLINKS_MAX {
            match self.read_link(&path) {
                Ok(target) => path = path.parent().unwrap_or(Path::new("/")).join(target),
                Err(error) if error.is(Refusal::NotFound) || error.is(Refusal::WrongType) => return Ok(path),
                Err(error) => return Err(error),
            }
        }
        Err(Error::at(bytes(&path))(Refusal::TooManyLinks.into()))
    }

    /// Creates an empty directory owned by root with these permission bits (0 to 0o7777). Returns its inode.
    ///
    /// # Errors
    /// As [`create`](Self::create); [`Refusal::TooManyNames`] if the parent directory has the maximum number
    /// of subdirectories.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// # let fs = extant::FileSystem::from_device_writable(memory, &Default::default())?;
    /// use extant::Refusal;
    ///
    /// fs.create_dir("/srv", 0o755)?;
    /// assert!(fs.create_dir("/srv", 0o755).unwrap_err().is(Refusal::Exists));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn create_dir(&self, path: impl AsRef<Path>, mode: u16) -> Result<InodeRef, Error> {
        self.create_node(path, &New::directory(mode))
    }

    /// Creates a directory and its missing parents, all with these permission bits. Existing directories stay
    /// as they are. After an error, the directories created so far remain.
    ///
    /// # Errors
    /// As [`create_dir`](Self::create_dir); [`Refusal::NotDirectory`] if one of the names exists and is not a
    /// directory.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// # let fs = extant::FileSystem::from_device_writable(memory, &Default::default())?;
    /// fs.create_dir_all("/var/log/app", 0o750)?;
    /// assert!(fs.exists("/var/log/app")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn create_dir_all(&self, path: impl AsRef<Path>, mode: u16) -> Result<InodeRef, Error> {
        let path = bytes(path.as_ref());
        let ends = (0..path.len()).filter(|at| path[*at] == b'/').chain([path.len()]);
        for end in ends {
            let part = std::ffi::OsStr::from_bytes(&path[..end]);
            match self.resolve(part, Follow::Links) {
                Ok(_) => {}
                Err(error) if error.is(Refusal::NotFound) => match self.create_dir(part, mode) {
                    Err(error) if error.is(Refusal::Exists) && self.exists(part)? => {}
                    Err(error) => return Err(error),
                    Ok(_) => {}
                },
                Err(error) => return Err(error),
            }
        }
        let made = self.resolve(std::ffi::OsStr::from_bytes(path), Follow::Links)?;
        match made.kind() {
            FileType::Directory => Ok(made),
            _ => Err(Error::at(path)(Refusal::NotDirectory.into())),
        }
    }

    /// Creates a symbolic link owned by root at `path`. `target` has 1 to 4094 bytes and need not exist.
    ///
    /// # Errors
    /// As [`create`](Self::create); [`Refusal::NameTooLong`] for a target that is too long,
    /// [`Refusal::NotFound`] for an empty one.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// # let fs = extant::FileSystem::from_device_writable(memory, &Default::default())?;
    /// fs.symlink("../run", "/link")?;
    /// assert_eq!(fs.read_link("/link")?.to_str(), Some("../run"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<InodeRef, Error> {
        self.create_node(path, &New::symlink(bytes(target.as_ref())))
    }

    /// Creates an inode of any type with the given attributes.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// # let fs = extant::FileSystem::from_device_writable(memory, &Default::default())?;
    /// use extant::{FileType, New};
    ///
    /// let null = New { kind: FileType::CharDevice, device: (1, 3), gid: 5, ..New::file(0o666) };
    /// fs.create_node("/null", &null)?;
    /// assert_eq!(fs.metadata("/null")?.gid, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn create_node(&self, path: impl AsRef<Path>, new: &New<'_>) -> Result<InodeRef, Error> {
        let path = bytes(path.as_ref());
        let make = || {
            let location = self.resolve_parent(path)?.for_any(Refusal::Exists)?;
            if location.has_slash && new.kind != FileType::Directory {
                return Err(Refusal::NotDirectory.into());
            }
            self.volume.names().create(location.dir, &location.name, new)
        };
        make().map_err(Error::at(path))
    }

    /// Adds a name to the file at `original`. A symbolic link is not followed.
    ///
    /// # Errors
    /// [`Error::Between`]: [`Refusal::Exists`]; [`Refusal::NotPermitted`] for a directory;
    /// [`Refusal::TooManyNames`] if the file has 65,000 names; [`Refusal::NoSpace`].
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// # let fs = extant::FileSystem::from_device_writable(memory, &Default::default())?;
    /// fs.write("/first", b"")?;
    /// fs.hard_link("/first", "/second")?;
    /// assert_eq!(fs.metadata("/second")?.links, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn hard_link(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<(), Error> {
        let (original, link) = (bytes(original.as_ref()), bytes(link.as_ref()));
        let add = || {
            let inode = self.volume.names().resolve(original, Follow::NotTheLast)?;
            let location = self.resolve_parent(link)?.for_file(Refusal::Exists)?;
            self.volume.names().link(inode.ino(), location.dir, &location.name)
        };
        add().map_err(Error::between(original, link))
    }

    /// Removes a name of a file, link or device. The file is deleted with its last name, but not before every
    /// open [`File`](crate::File) of it is dropped.
    ///
    /// # Errors
    /// [`Refusal::IsDirectory`]; [`Refusal::NotPermitted`] if the file or its directory is immutable or
    /// append-only; as [`resolve`](Self::resolve).
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// # let fs = extant::FileSystem::from_device_writable(memory, &Default::default())?;
    /// let file = fs.write("/file", b"kept")?;
    /// fs.remove_file("/file")?;
    /// assert!(!fs.exists("/file")?);
    /// assert_eq!(file.len(), 4); // the open file stays
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = bytes(path.as_ref());
        let remove = || {
            let location = self.resolve_parent(path)?.for_file(Refusal::IsDirectory)?;
            self.volume.names().unlink(location.dir, &location.name)
        };
        remove().map_err(Error::at(path))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`Refusal::NotEmpty`], [`Refusal::NotDirectory`], [`Refusal::Busy`] for the root; as
    /// [`remove_file`](Self::remove_file).
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// # let fs = extant::FileSystem::from_device_writable(memory, &Default::default())?;
    /// use extant::Refusal;
    ///
    /// fs.create_dir_all("/a/b", 0o755)?;
    /// assert!(fs.remove_dir("/a").unwrap_err().is(Refusal::NotEmpty));
    /// fs.remove_dir("/a/b")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = bytes(path.as_ref());
        let remove = || {
            let location = self.resolve_parent(path)?.for_any(Refusal::Busy)?;
            self.volume.names().rmdir(location.dir, &location.name)
        };
        remove().map_err(Error::at(path))
    }

    /// Removes a directory and everything below it. Symbolic links are removed, not followed. This takes many
    /// operations: after an error, the names not removed yet remain.
    ///
    /// # Errors
    /// As [`remove_dir`](Self::remove_dir), with the path of the name that could not be removed.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// # let fs = extant::FileSystem::from_device_writable(memory, &Default::default())?;
    /// fs.create_dir_all("/a/b", 0o755)?;
    /// fs.write("/a/b/file", b"")?;
    /// fs.remove_dir_all("/a")?;
    /// assert!(!fs.exists("/a")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.remove_dir_all_with(path, &mut |_, _| {})
    }

    /// As [`remove_dir_all`](Self::remove_dir_all). Calls `removed` with the path and the type of each file
    /// after its removal: a directory comes after everything below it.
    ///
    /// # Errors
    /// As [`remove_dir_all`](Self::remove_dir_all).
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// # let fs = extant::FileSystem::from_device_writable(memory, &Default::default())?;
    /// fs.create_dir_all("/a/b", 0o755)?;
    /// fs.write("/a/b/file", b"")?;
    /// let mut paths = Vec::new();
    /// fs.remove_dir_all_with("/a", &mut |path, _kind| paths.push(path.display().to_string()))?;
    /// assert_eq!(paths, ["/a/b/file", "/a/b", "/a"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove_dir_all_with(
        &self,
        path: impl AsRef<Path>,
        removed: &mut dyn FnMut(&Path, FileType),
    ) -> Result<(), Error> {
        let path = bytes(path.as_ref());
        let (location, ino) = (|| {
            let inode = self.volume.names().resolve(path, Follow::NotTheLast)?;
            if inode.kind() != FileType::Directory {
                return Err(Refusal::NotDirectory.into());
            }
            let location = self.resolve_parent(path)?.for_any(Refusal::Busy)?;
            // Checked before anything is removed: rmdir cannot remove a directory by these names.
            if matches!(location.name.as_slice(), b"." | b"..") {
                return Err(Refusal::Invalid.into());
            }
            Ok((location, inode.ino()))
        })()
        .map_err(Error::at(path))?;
        let mut above = vec![Emptied::new(ino, location.name.clone())];
        let mut dir_path = path.strip_suffix(b"/").unwrap_or(path).to_vec();
        let mut inside = HashSet::from([ino]);
        while let Some(dir) = above.last_mut() {
            let mut unlinked = |name: &[u8], kind| removed(as_path(&joined(&dir_path, name)), kind);
            match self.empty_on(dir, &mut unlinked) {
                Ok(None) => {
                    let parent = above.len().checked_sub(2).map_or(location.dir, |at| above[at].ino);
                    let Some(dir) = above.last_mut() else { break };
                    match self.volume.names().rmdir(parent, &dir.name) {
                        // Another thread added names after the listing.
                        Err(fault) if fault.is(Refusal::NotEmpty) && dir.tries < EMPTYING_TRIES => {
                            (dir.tries, dir.next) = (dir.tries + 1, Some(Cursor::START));
                        }
                        Err(fault) => return Err(Error::At { path: dir_path, fault }),
                        Ok(()) => {
                            removed(as_path(&dir_path), FileType::Directory);
                            inside.remove(&dir.ino);
                            dir_path.truncate(dir_path.len().saturating_sub(dir.name.len() + 1));
                            above.pop();
                        }
                    }
                }
                Ok(Some(below)) => {
                    dir_path = joined(&dir_path, &below.name);
                    if !inside.insert(below.ino) {
                        let fact = Malformed::new("directory", "must have one name", below.ino.0);
                        let fault = Fault::Corrupt(Corrupt::at(CorruptAt::ino(below.ino), fact));
                        return Err(Error::At { path: dir_path, fault });
                    }
                    above.push(below);
                }
                Err((name, fault)) => return Err(Error::At { path: joined(&dir_path, &name), fault }),
            }
        }
        Ok(())
    }

    /// Removes all names up to the next directory, and returns that directory; `None` at the end. Calls
    /// `unlinked` with each removed name.
    fn empty_on(
        &self,
        dir: &mut Emptied,
        unlinked: &mut dyn FnMut(&[u8], FileType),
    ) -> Result<Option<Emptied>, (Vec<u8>, Fault)> {
        loop {
            while let Some(entry) = dir.ready.pop_front() {
                let failed = |fault| (entry.name.clone(), fault);
                let kind = match entry.kind {
                    Some(kind) => kind,
                    None => self.volume.inode(entry.ino).map_err(failed)?.kind(),
                };
                if kind == FileType::Directory {
                    return Ok(Some(Emptied::new(entry.ino, entry.name)));
                }
                match self.volume.names().unlink(dir.ino, &entry.name) {
                    // Another thread removed the name first.
                    Err(fault) if fault.is(Refusal::NotFound) => {}
                    done => {
                        done.map_err(failed)?;
                        unlinked(&entry.name, kind);
                    }
                }
            }
            let Some(from) = dir.next.take() else { return Ok(None) };
            let listed = self.volume.inode(dir.ino);
            let piece = listed.and_then(|inode| list::piece(&self.volume, &inode, from, NAMES_PIECE));
            let mut piece = piece.map_err(|fault| (Vec::new(), fault))?;
            if let Some(fault) = piece.damage.pop() {
                return Err((Vec::new(), fault));
            }
            (dir.ready, dir.next) = (piece.names.into(), piece.next);
        }
    }

    /// Moves a name. Replaces a file or an empty directory that has the new name.
    ///
    /// # Errors
    /// As [`rename_with`](Self::rename_with).
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// # let fs = extant::FileSystem::from_device_writable(memory, &Default::default())?;
    /// fs.write("/new", b"new")?;
    /// fs.write("/old", b"old")?;
    /// fs.rename("/new", "/old")?;
    /// assert_eq!(fs.read("/old")?, b"new");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<(), Error> {
        self.rename_with(from, to, Rename::Replace)
    }

    /// Moves a name, like renameat2(2) with its flags. Symbolic links are moved, not followed.
    ///
    /// # Errors
    /// [`Error::Between`]: [`Refusal::Exists`] with [`Rename::NoReplace`]; [`Refusal::IsDirectory`],
    /// [`Refusal::NotDirectory`], [`Refusal::NotEmpty`] if the target cannot be replaced;
    /// [`Refusal::Invalid`] if a directory would move into itself; [`Refusal::Busy`] for the root;
    /// [`Refusal::NoSpace`].
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// # let fs = extant::FileSystem::from_device_writable(memory, &Default::default())?;
    /// use extant::Rename;
    ///
    /// fs.write("/a", b"a")?;
    /// fs.write("/b", b"b")?;
    /// fs.rename_with("/a", "/b", Rename::Exchange)?;
    /// assert_eq!(fs.read("/a")?, b"b");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rename_with(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        how: Rename,
    ) -> Result<(), Error> {
        let (from, to) = (bytes(from.as_ref()), bytes(to.as_ref()));
        let renamed = || {
            let source = self.resolve_parent(from)?.for_any(Refusal::Busy)?;
            let target = self.resolve_parent(to)?.for_any(Refusal::Busy)?;
            if source.has_slash || target.has_slash {
                let moved = self.volume.inode(source.dir)?;
                let moved = self.volume.names().lookup(&moved, &source.name)?;
                if moved.kind() != FileType::Directory {
                    return Err(Refusal::NotDirectory.into());
                }
            }
            self.volume.names().rename((source.dir, &source.name), (target.dir, &target.name), how)
        };
        renamed().map_err(Error::between(from, to))
    }

    /// Makes all changes so far durable, with one commit of the journal. Does nothing if the file system is
    /// open for reading.
    ///
    /// # Errors
    /// The device failed, now or earlier.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// # let fs = extant::FileSystem::from_device_writable(memory, &Default::default())?;
    /// fs.write("/file", b"kept")?;
    /// fs.sync()?; // survives a power cut from here on
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sync(&self) -> Result<(), Error> {
        self.volume.sync().map_err(Error::at(b"/"))
    }

    /// Discards all free blocks, in runs of at least `min_bytes`, so that the device can release their space
    /// (fstrim). Makes earlier changes durable first. Returns the number of bytes, or `None` if the device
    /// does not support discards. [`WriteOptions::discard`](extant_volume::WriteOptions::discard) discards
    /// blocks as they are freed.
    ///
    /// # Errors
    /// [`Refusal::ReadOnly`] if the file system is not open for writing; as [`sync`](Self::sync); a bitmap
    /// cannot be read.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(64 << 20);
    /// let fs = extant::FileSystem::from_device_writable(memory, &extant::OpenOptions::default())?;
    /// fs.write("/dump", vec![7; 8 << 20])?;
    /// fs.sync()?;
    /// fs.remove_file("/dump")?;
    /// assert!(fs.trim(0)?.is_some_and(|bytes| bytes >= 8 << 20));
    /// fs.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn trim(&self, min_bytes: u64) -> Result<Option<u64>, Error> {
        self.volume.admin().trim(min_bytes).map_err(Error::at(b"/"))
    }

    /// Makes all changes durable, and closes the file system. The image is left clean if this is the last of
    /// all clones, open files and listings. If the last one is dropped instead of closed, the effect is that
    /// of a power cut: synced changes are safe in the journal.
    ///
    /// # Errors
    /// The device failed, now or earlier. Changes that were synced before are safe.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// let fs = extant::open_writable(&image)?;
    /// fs.write("/file", b"kept")?;
    /// fs.close()?;
    /// assert_eq!(extant::open(&image)?.read("/file")?, b"kept");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn close(self) -> Result<(), Error> {
        let Self { volume, device } = self;
        if Arc::strong_count(&volume) > 1 {
            volume.sync().map_err(Error::at(b"/"))?;
        }
        // If several threads close clones at the same time, exactly one of them gets the volume.
        let closed = Arc::into_inner(volume).map_or(Ok(()), Volume::close);
        drop(device);
        closed.map_err(Error::at(b"/"))
    }

    /// Finds the directory and the name that a path refers to. Symbolic links in the directory part are
    /// followed.
    fn resolve_parent(&self, path: &[u8]) -> Result<ParentAndName, Fault> {
        let has_slash = path.ends_with(b"/");
        let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        let start = path[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let dir = self.volume.names().resolve(&path[..start], Follow::Links)?;
        if dir.kind() != FileType::Directory {
            return Err(Refusal::NotDirectory.into());
        }
        Ok(ParentAndName { dir: dir.ino(), name: path[start..end].to_vec(), has_slash })
    }
}

impl Emptied {
    fn new(ino: Ino, name: Vec<u8>) -> Self {
        Self { ino, name, next: Some(Cursor::START), ready: VecDeque::new(), tries: 0 }
    }
}

/// The path of `name` in the directory `dir`; `dir` itself for an empty name.
fn joined(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if name.is_empty() { dir.to_vec() } else { [dir, b"/", name].concat() }
}

fn as_path(bytes: &[u8]) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(bytes))
}
