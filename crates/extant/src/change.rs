//! Changing a file system by paths, in the manner of `std::fs`.
//!
//! Owns: which directory and which name a path means, and whole trees that are removed. Does **not** own: the
//! operations, which are the [`Volume`](crate::Volume)'s, each of them atomic and journaled.
//!
//! Invariants
//! 1. An operation that returns an error has changed nothing; [`FileSystem::remove_dir_all`] and
//!    [`FileSystem::create_dir_all`] are many operations, and say what they leave.
//! 2. What was done is durable after [`FileSystem::sync`] or [`FileSystem::close`]; a power cut before takes
//!    it back from its end on, never out of the middle.

use std::collections::{HashSet, VecDeque};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use extant_base::{Corrupt, CorruptAt, Ino, Malformed};
use extant_device::{Device, FileDevice};
use extant_volume::{
    Cursor, Fault, FileType, Follow, InodeRef, New, OpenFault, OpenOptions, Refusal, Rename, SetAttr,
    SetXattr, Volume,
};

use crate::fs::{FileSystem, bytes};
use crate::{Error, File, Timestamp, list};

/// Names that are read at a time while a tree is removed.
const NAMES_PIECE: usize = 1024;
/// How often a directory that others fill meanwhile is emptied before that is given up.
const EMPTYING_TRIES: u32 = 8;

/// What a path says about a name that is to be made or taken away.
struct Spot {
    dir: Ino,
    /// Empty for the root, which has none.
    name: Vec<u8>,
    /// It ends in a slash, which only directories may.
    has_slash: bool,
}

impl Spot {
    /// Refuses paths that only directories can have.
    fn for_file(self, refusal: Refusal) -> Result<Self, Fault> {
        match self.name.as_slice() {
            b"" => Err(refusal.into()),
            _ if self.has_slash => Err(Refusal::NotDirectory.into()),
            _ => Ok(self),
        }
    }

    /// Refuses the root.
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

impl FileSystem {
    /// Opens an image file or block device for reading and writing, after replaying a dirty journal and
    /// freeing orphans. There can be no other writer meanwhile; readers are allowed.
    ///
    /// # Errors
    /// [`Error::Image`] when the file cannot be opened; of the kind [`std::io::ErrorKind::ResourceBusy`] when
    /// it has another writer or is mounted. [`Error::Open`] when it holds no file system that can be written.
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

    /// As [`open_writable`](Self::open_writable), with options; [`OpenOptions::write`] are those of writing.
    ///
    /// # Errors
    /// As [`open_writable`](Self::open_writable).
    pub fn open_writable_with(image: impl AsRef<Path>, options: &OpenOptions) -> Result<Self, Error> {
        let image = image.as_ref();
        let device = FileDevice::open_locked(image)
            .map_err(|source| Error::Image { image: image.to_owned(), source })?;
        Self::from_device_writable(Arc::new(device), options)
            .map_err(|source| Error::Open { image: image.to_owned(), source })
    }

    /// Opens the file system on a device for reading and writing. The caller makes sure that there is no
    /// other writer.
    ///
    /// # Errors
    /// It holds no file system that can be written; the device refused.
    pub fn from_device_writable(device: Arc<dyn Device>, options: &OpenOptions) -> Result<Self, OpenFault> {
        let volume = Volume::open(Arc::clone(&device), options)?;
        Ok(Self { volume: Arc::new(volume), device })
    }

    /// Was it opened for writing?
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.volume.is_writable()
    }

    /// Makes an empty regular file of root's with these permission bits (0 to 0o7777), and returns its inode.
    ///
    /// # Errors
    /// [`Refusal::Exists`] when the name is there, [`Refusal::NoSpace`], [`Refusal::ReadOnly`] when it is not
    /// open for writing; as [`resolve`](Self::resolve) for the directory.
    pub fn create(&self, path: impl AsRef<Path>, mode: u16) -> Result<InodeRef, Error> {
        self.create_node(path, &New::file(mode))
    }

    /// Makes these bytes the content of a regular file, which is made if it is not there (root's, with mode
    /// 0644); symbolic links are followed. They are in memory then, until [`sync`](Self::sync),
    /// [`close`](Self::close) or [`File::sync_all`].
    ///
    /// # Errors
    /// As [`create`](Self::create) and [`file`](Self::file); [`Refusal::NoSpace`]: what fits is written.
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
                self.create(path, 0o644)?;
                self.file(path)?
            }
            file => file?,
        };
        file.set_len(0).and_then(|()| file.write_at(content.as_ref(), 0)).map_err(Error::at(bytes(path)))?;
        Ok(file)
    }

    /// Makes an empty directory of root's with these permission bits (0 to 0o7777), and returns its inode.
    ///
    /// # Errors
    /// As [`create`](Self::create); [`Refusal::TooManyNames`] when the directory above has no room for one
    /// more.
    pub fn create_dir(&self, path: impl AsRef<Path>, mode: u16) -> Result<InodeRef, Error> {
        self.create_node(path, &New::directory(mode))
    }

    /// Makes a directory and those above it that are not there, all with these permission bits. One that is
    /// there is no error, and stays as it is. On an error those that were made stay.
    ///
    /// # Errors
    /// As [`create_dir`](Self::create_dir); [`Refusal::NotDirectory`] when something else has one of the
    /// names.
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

    /// Makes a symbolic link of root's at `path` that says `target`, 1 to 4094 bytes that need not lead
    /// anywhere.
    ///
    /// # Errors
    /// As [`create`](Self::create); [`Refusal::NameTooLong`] for a target that is too long,
    /// [`Refusal::NotFound`] for an empty one.
    pub fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<InodeRef, Error> {
        self.create_node(path, &New::symlink(bytes(target.as_ref())))
    }

    /// Makes an inode of any type, with all that is to be said of it.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_node(&self, path: impl AsRef<Path>, new: &New<'_>) -> Result<InodeRef, Error> {
        let path = bytes(path.as_ref());
        let make = || {
            let spot = self.spot(path)?.for_any(Refusal::Exists)?;
            if spot.has_slash && new.kind != FileType::Directory {
                return Err(Refusal::NotDirectory.into());
            }
            self.volume.create(spot.dir, &spot.name, new)
        };
        make().map_err(Error::at(path))
    }

    /// Gives the file at `original` another name. A symbolic link is not followed.
    ///
    /// # Errors
    /// [`Error::Between`]: [`Refusal::Exists`]; [`Refusal::NotPermitted`] for a directory;
    /// [`Refusal::TooManyNames`] beyond 65,000; [`Refusal::NoSpace`].
    pub fn hard_link(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<(), Error> {
        let (original, link) = (bytes(original.as_ref()), bytes(link.as_ref()));
        let add = || {
            let inode = self.volume.resolve(original, Follow::NotTheLast)?;
            let spot = self.spot(link)?.for_file(Refusal::Exists)?;
            self.volume.link(inode.ino(), spot.dir, &spot.name)
        };
        add().map_err(Error::between(original, link))
    }

    /// Takes a name of a file, link or device away; with the last name goes the file, unless a
    /// [`File`](crate::File) of it is open: then with that.
    ///
    /// # Errors
    /// [`Refusal::IsDirectory`]; [`Refusal::NotPermitted`] when it or its directory is immutable or
    /// append-only; as [`resolve`](Self::resolve).
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = bytes(path.as_ref());
        let remove = || {
            let spot = self.spot(path)?.for_file(Refusal::IsDirectory)?;
            self.volume.unlink(spot.dir, &spot.name)
        };
        remove().map_err(Error::at(path))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`Refusal::NotEmpty`], [`Refusal::NotDirectory`], [`Refusal::Busy`] for the root; as
    /// [`remove_file`](Self::remove_file).
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = bytes(path.as_ref());
        let remove = || {
            let spot = self.spot(path)?.for_any(Refusal::Busy)?;
            self.volume.rmdir(spot.dir, &spot.name)
        };
        remove().map_err(Error::at(path))
    }

    /// Removes a directory and everything below it. Symbolic links go, not what they lead to. These are many
    /// operations: on an error the rest is still there.
    ///
    /// # Errors
    /// As [`remove_dir`](Self::remove_dir), with the path of what could not be removed.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = bytes(path.as_ref());
        let (spot, ino) = (|| {
            let inode = self.volume.resolve(path, Follow::NotTheLast)?;
            if inode.kind() != FileType::Directory {
                return Err(Refusal::NotDirectory.into());
            }
            let spot = self.spot(path)?.for_any(Refusal::Busy)?;
            // Before anything is emptied: these cannot be removed by such a name.
            if matches!(spot.name.as_slice(), b"." | b"..") {
                return Err(Refusal::Invalid.into());
            }
            Ok((spot, inode.ino()))
        })()
        .map_err(Error::at(path))?;
        let mut above = vec![Emptied::new(ino, spot.name.clone())];
        let mut inside = HashSet::from([ino]);
        while let Some(dir) = above.last_mut() {
            match self.empty_on(dir) {
                Ok(None) => {
                    let parent = above.len().checked_sub(2).map_or(spot.dir, |at| above[at].ino);
                    let Some(dir) = above.last_mut() else { break };
                    match self.volume.rmdir(parent, &dir.name) {
                        // Names were inserted after the listing.
                        Err(fault) if fault.is(Refusal::NotEmpty) && dir.tries < EMPTYING_TRIES => {
                            (dir.tries, dir.next) = (dir.tries + 1, Some(Cursor::START));
                        }
                        Err(fault) => return Err(at(path, &above, b"", fault)),
                        Ok(()) => {
                            inside.remove(&dir.ino);
                            above.pop();
                        }
                    }
                }
                Ok(Some(below)) => {
                    if !inside.insert(below.ino) {
                        let fact = Malformed::new("directory", "must have one name", below.ino.0);
                        let fault = Fault::Corrupt(Corrupt::at(CorruptAt::ino(below.ino), fact));
                        return Err(at(path, &above, &below.name, fault));
                    }
                    above.push(below);
                }
                Err((name, fault)) => return Err(at(path, &above, &name, fault)),
            }
        }
        Ok(())
    }

    /// Removes what is no directory, up to the next directory, which is returned; `None` at the end.
    fn empty_on(&self, dir: &mut Emptied) -> Result<Option<Emptied>, (Vec<u8>, Fault)> {
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
                match self.volume.unlink(dir.ino, &entry.name) {
                    // Another thread was first.
                    Err(fault) if fault.is(Refusal::NotFound) => {}
                    done => done.map_err(failed)?,
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

    /// Moves a name; a file or an empty directory that has the new name is replaced.
    ///
    /// # Errors
    /// As [`rename_with`](Self::rename_with).
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<(), Error> {
        self.rename_with(from, to, Rename::Replace)
    }

    /// Moves a name, as renameat2(2) does with its flags. Symbolic links are moved, not followed.
    ///
    /// # Errors
    /// [`Error::Between`]: [`Refusal::Exists`] with [`Rename::NoReplace`]; [`Refusal::IsDirectory`],
    /// [`Refusal::NotDirectory`], [`Refusal::NotEmpty`] for what is in the way; [`Refusal::Invalid`] for a
    /// directory into itself; [`Refusal::Busy`] for the root; [`Refusal::NoSpace`].
    pub fn rename_with(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        how: Rename,
    ) -> Result<(), Error> {
        let (from, to) = (bytes(from.as_ref()), bytes(to.as_ref()));
        let renamed = || {
            let source = self.spot(from)?.for_any(Refusal::Busy)?;
            let target = self.spot(to)?.for_any(Refusal::Busy)?;
            if source.has_slash || target.has_slash {
                let moved = self.volume.inode(source.dir)?;
                let moved = self.volume.lookup(&moved, &source.name)?;
                if moved.kind() != FileType::Directory {
                    return Err(Refusal::NotDirectory.into());
                }
            }
            self.volume.rename((source.dir, &source.name), (target.dir, &target.name), how)
        };
        renamed().map_err(Error::between(from, to))
    }

    /// Sets the twelve permission bits (0 to 0o7777); an access ACL's mask follows. Symbolic links are
    /// followed.
    ///
    /// # Errors
    /// [`Refusal::NotPermitted`] when it is immutable or append-only; as [`resolve`](Self::resolve).
    pub fn set_mode(&self, path: impl AsRef<Path>, mode: u16) -> Result<InodeRef, Error> {
        self.set_attr(path, Follow::Links, &SetAttr { mode: Some(mode), ..SetAttr::default() })
    }

    /// Sets owner and group; `None` stays as it is. The setuid bit of a file goes, and the setgid bit of an
    /// executable one, as with the system call. Symbolic links are followed; [`set_attr`](Self::set_attr) can
    /// do without.
    ///
    /// # Errors
    /// As [`set_mode`](Self::set_mode).
    pub fn set_owner(
        &self,
        path: impl AsRef<Path>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<InodeRef, Error> {
        self.set_attr(path, Follow::Links, &SetAttr { uid, gid, ..SetAttr::default() })
    }

    /// Sets the times of the last access and of the last change of content, to the nanosecond where the
    /// inodes have room for it; `None` stays as it is. Times that cannot be stored become the nearest one.
    /// Symbolic links are followed.
    ///
    /// # Errors
    /// As [`set_mode`](Self::set_mode).
    pub fn set_times(
        &self,
        path: impl AsRef<Path>,
        atime: Option<Timestamp>,
        mtime: Option<Timestamp>,
    ) -> Result<InodeRef, Error> {
        self.set_attr(path, Follow::Links, &SetAttr { atime, mtime, ..SetAttr::default() })
    }

    /// Sets a regular file's size in bytes: what lies behind is freed, what is new is a hole. Symbolic links
    /// are followed.
    ///
    /// # Errors
    /// [`Refusal::IsDirectory`], [`Refusal::WrongType`]; [`Refusal::TooLarge`]; [`Refusal::NotSupported`] for
    /// a file whose content is in its inode; as [`set_mode`](Self::set_mode).
    pub fn set_len(&self, path: impl AsRef<Path>, len: u64) -> Result<InodeRef, Error> {
        self.set_attr(path, Follow::Links, &SetAttr { size: Some(len), ..SetAttr::default() })
    }

    /// Sets several things of an inode at once, and returns it as it is then.
    ///
    /// # Errors
    /// As [`set_mode`](Self::set_mode) and [`set_len`](Self::set_len).
    pub fn set_attr(&self, path: impl AsRef<Path>, follow: Follow, set: &SetAttr) -> Result<InodeRef, Error> {
        let path = bytes(path.as_ref());
        let change = || self.volume.set_attr(self.volume.resolve(path, follow)?.ino(), set);
        change().map_err(Error::at(path))
    }

    /// Sets an extended attribute by its full name (`user.comment`), of the file or of the symbolic link
    /// itself. ACLs come as the system call has them (`system.posix_acl_access`).
    ///
    /// # Errors
    /// As [`set_xattr_with`](Self::set_xattr_with).
    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<[u8]>,
        value: &[u8],
    ) -> Result<(), Error> {
        self.set_xattr_with(path, name, value, SetXattr::Any)
    }

    /// As [`set_xattr`](Self::set_xattr), of an attribute that must be new, or must be there.
    ///
    /// # Errors
    /// [`Refusal::Exists`], [`Refusal::NoAttribute`] as `how` asks; [`Refusal::NotSupported`] for a name
    /// without a known prefix, [`Refusal::Range`] for one that is empty or too long; [`Refusal::NoSpace`],
    /// [`Refusal::ValueTooLong`] when the value finds no room; [`Refusal::Invalid`] for an ACL that is none;
    /// as [`set_mode`](Self::set_mode).
    pub fn set_xattr_with(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<[u8]>,
        value: &[u8],
        how: SetXattr,
    ) -> Result<(), Error> {
        let path = bytes(path.as_ref());
        let change = || {
            let inode = self.volume.resolve(path, Follow::NotTheLast)?;
            self.volume.set_xattr(inode.ino(), name.as_ref(), value, how)
        };
        change().map_err(Error::at(path))
    }

    /// Removes an extended attribute by its full name, from the file or from the symbolic link itself.
    ///
    /// # Errors
    /// [`Refusal::NoAttribute`]; as [`set_xattr_with`](Self::set_xattr_with).
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<[u8]>) -> Result<(), Error> {
        let path = bytes(path.as_ref());
        let change = || {
            let inode = self.volume.resolve(path, Follow::NotTheLast)?;
            self.volume.remove_xattr(inode.ino(), name.as_ref())
        };
        change().map_err(Error::at(path))
    }

    /// Makes everything that was done durable: one commit of the journal for all of it. Does nothing when
    /// open for reading.
    ///
    /// # Errors
    /// The device refused, now or before.
    pub fn sync(&self) -> Result<(), Error> {
        self.volume.sync().map_err(Error::at(b"/"))
    }

    /// Discards all free blocks, in runs of at least `min_bytes`, so that their space is released (fstrim).
    /// Earlier changes are made durable first. Returns the number of bytes; `None` if the device does not
    /// support it. For blocks that are freed from now on use
    /// [`WriteOptions::discard`](extant_volume::WriteOptions::discard).
    ///
    /// # Errors
    /// [`Refusal::ReadOnly`] when it is not open for writing; as [`sync`](Self::sync); a bitmap cannot be
    /// read.
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
        self.volume.trim(min_bytes).map_err(Error::at(b"/"))
    }

    /// Makes everything durable, and ends. The last of all clones, open files and listings that goes leaves
    /// the image clean, if it goes by this; one that is just dropped is like a power cut: what was synced is
    /// safe, in the journal.
    ///
    /// # Errors
    /// The device refused, now or before: what was synced before is safe.
    pub fn close(self) -> Result<(), Error> {
        let Self { volume, device } = self;
        if Arc::strong_count(&volume) > 1 {
            volume.sync().map_err(Error::at(b"/"))?;
        }
        // Of several that come here at the same time, one is the last.
        let closed = Arc::into_inner(volume).map_or(Ok(()), Volume::close);
        drop(device);
        closed.map_err(Error::at(b"/"))
    }

    /// Which directory and which name a path means. Symbolic links on the way are followed.
    fn spot(&self, path: &[u8]) -> Result<Spot, Fault> {
        let has_slash = path.ends_with(b"/");
        let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        let start = path[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let dir = self.volume.resolve(&path[..start], Follow::Links)?;
        if dir.kind() != FileType::Directory {
            return Err(Refusal::NotDirectory.into());
        }
        Ok(Spot { dir: dir.ino(), name: path[start..end].to_vec(), has_slash })
    }
}

impl Emptied {
    fn new(ino: Ino, name: Vec<u8>) -> Self {
        Self { ino, name, next: Some(Cursor::START), ready: VecDeque::new(), tries: 0 }
    }
}

/// An error at a name below `path`, through the directories that are being emptied.
fn at(path: &[u8], above: &[Emptied], name: &[u8], fault: Fault) -> Error {
    let mut whole = path.strip_suffix(b"/").unwrap_or(path).to_vec();
    let below = above.iter().skip(1).map(|dir| dir.name.as_slice());
    for part in below.chain([name]).filter(|part| !part.is_empty()) {
        whole.push(b'/');
        whole.extend_from_slice(part);
    }
    Error::At { path: whole, fault }
}
