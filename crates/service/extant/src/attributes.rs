//! Changes of the attributes of inodes, by path.
//!
//! Does **not** own: names (see [`change`](crate::change)), contents (see [`File`](crate::File)).

use std::path::Path;

use extant_ondisk::time::Timestamp;
#[cfg(doc)]
use extant_volume::Refusal;
use extant_volume::{Follow, InodeRef, SetAttr, SetXattr};

use crate::fs::bytes;
use crate::{Error, FileSystem};

impl FileSystem {
    /// Sets the twelve permission bits (0 to 0o7777), and the mask of an access ACL with them. Symbolic links
    /// are followed.
    ///
    /// # Errors
    /// [`Refusal::NotPermitted`] if the inode is immutable or append-only; as [`resolve`](Self::resolve).
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// # let fs = extant::FileSystem::from_device_writable(memory, &Default::default())?;
    /// fs.write("/tool", b"")?;
    /// fs.set_mode("/tool", 0o755)?;
    /// assert_eq!(fs.metadata("/tool")?.mode & 0o7777, 0o755);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_mode(&self, path: impl AsRef<Path>, mode: u16) -> Result<InodeRef, Error> {
        self.set_attr(path, Follow::Links, &SetAttr { mode: Some(mode), ..SetAttr::default() })
    }

    /// Sets owner and group; `None` leaves one as it is. Clears the setuid bit of a file, and the setgid bit
    /// of an executable one, like chown(2). Symbolic links are followed; use [`set_attr`](Self::set_attr) to
    /// change a link itself.
    ///
    /// # Errors
    /// As [`set_mode`](Self::set_mode).
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// # let fs = extant::FileSystem::from_device_writable(memory, &Default::default())?;
    /// fs.write("/file", b"")?;
    /// fs.set_owner("/file", Some(1000), None)?;
    /// assert_eq!((fs.metadata("/file")?.uid, fs.metadata("/file")?.gid), (1000, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_owner(
        &self,
        path: impl AsRef<Path>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<InodeRef, Error> {
        self.set_attr(path, Follow::Links, &SetAttr { uid, gid, ..SetAttr::default() })
    }

    /// Sets the times of last access and of last modification, with nanoseconds if the inodes have space for
    /// them; `None` leaves a time as it is. A time out of range is stored as the nearest possible one.
    /// Symbolic links are followed.
    ///
    /// # Errors
    /// As [`set_mode`](Self::set_mode).
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// # let fs = extant::FileSystem::from_device_writable(memory, &Default::default())?;
    /// use extant::Timestamp;
    ///
    /// fs.write("/file", b"")?;
    /// let time = Timestamp { seconds: 1_700_000_000, nanos: 5 };
    /// fs.set_times("/file", None, Some(time))?;
    /// assert_eq!(fs.metadata("/file")?.mtime, time);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_times(
        &self,
        path: impl AsRef<Path>,
        atime: Option<Timestamp>,
        mtime: Option<Timestamp>,
    ) -> Result<InodeRef, Error> {
        self.set_attr(path, Follow::Links, &SetAttr { atime, mtime, ..SetAttr::default() })
    }

    /// Sets a regular file's size in bytes. Blocks past the new end are freed; an extension is a hole.
    /// Symbolic links are followed.
    ///
    /// # Errors
    /// [`Refusal::IsDirectory`], [`Refusal::WrongType`]; [`Refusal::TooLarge`]; [`Refusal::NotSupported`] for
    /// a file with its content in the inode; as [`set_mode`](Self::set_mode).
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// # let fs = extant::FileSystem::from_device_writable(memory, &Default::default())?;
    /// fs.write("/file", b"0123456789")?;
    /// fs.set_len("/file", 4)?;
    /// assert_eq!(fs.read("/file")?, b"0123");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_len(&self, path: impl AsRef<Path>, len: u64) -> Result<InodeRef, Error> {
        self.set_attr(path, Follow::Links, &SetAttr { size: Some(len), ..SetAttr::default() })
    }

    /// Sets several attributes of an inode in one operation, and returns the changed inode.
    ///
    /// # Errors
    /// As [`set_mode`](Self::set_mode) and [`set_len`](Self::set_len).
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// # let fs = extant::FileSystem::from_device_writable(memory, &Default::default())?;
    /// use extant::{Follow, SetAttr};
    ///
    /// fs.symlink("nowhere", "/link")?;
    /// let owner = SetAttr { uid: Some(1000), gid: Some(1000), ..SetAttr::default() };
    /// fs.set_attr("/link", Follow::NotTheLast, &owner)?;
    /// assert_eq!(fs.symlink_metadata("/link")?.uid, 1000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_attr(&self, path: impl AsRef<Path>, follow: Follow, set: &SetAttr) -> Result<InodeRef, Error> {
        let path = bytes(path.as_ref());
        let change =
            || self.volume.attributes().set_attr(self.volume.names().resolve(path, follow)?.ino(), set);
        change().map_err(Error::at(path))
    }

    /// Sets an extended attribute by its full name (`user.comment`), of a file or of a symbolic link itself.
    /// ACLs have the format of the system call (`system.posix_acl_access`).
    ///
    /// # Errors
    /// As [`set_xattr_with`](Self::set_xattr_with).
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// # let fs = extant::FileSystem::from_device_writable(memory, &Default::default())?;
    /// fs.write("/file", b"")?;
    /// fs.set_xattr("/file", "user.comment", b"a draft")?;
    /// assert_eq!(fs.xattr("/file", "user.comment")?, b"a draft");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<[u8]>,
        value: &[u8],
    ) -> Result<(), Error> {
        self.set_xattr_with(path, name, value, SetXattr::Any)
    }

    /// Same as [`set_xattr`](Self::set_xattr); `how` states whether the attribute must be new or must exist.
    ///
    /// # Errors
    /// [`Refusal::Exists`], [`Refusal::NoAttribute`] as `how` requires; [`Refusal::NotSupported`] for a name
    /// without a known prefix, [`Refusal::Range`] for an empty or too long name; [`Refusal::NoSpace`],
    /// [`Refusal::ValueTooLong`] if there is no space for the value; [`Refusal::Invalid`] for a malformed
    /// ACL; as [`set_mode`](Self::set_mode).
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// # let fs = extant::FileSystem::from_device_writable(memory, &Default::default())?;
    /// use extant::{Refusal, SetXattr};
    ///
    /// fs.write("/file", b"")?;
    /// let refused = fs.set_xattr_with("/file", "user.comment", b"a draft", SetXattr::Replace);
    /// assert!(refused.unwrap_err().is(Refusal::NoAttribute));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_xattr_with(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<[u8]>,
        value: &[u8],
        how: SetXattr,
    ) -> Result<(), Error> {
        let path = bytes(path.as_ref());
        let change = || {
            let inode = self.volume.names().resolve(path, Follow::NotTheLast)?;
            self.volume.attributes().set_xattr(inode.ino(), name.as_ref(), value, how)
        };
        change().map_err(Error::at(path))
    }

    /// Removes an extended attribute by its full name, from a file or from a symbolic link itself.
    ///
    /// # Errors
    /// [`Refusal::NoAttribute`]; as [`set_xattr_with`](Self::set_xattr_with).
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/memory.rs")); }
    /// # let memory = example::empty_memory(16 << 20);
    /// # let fs = extant::FileSystem::from_device_writable(memory, &Default::default())?;
    /// fs.write("/file", b"")?;
    /// fs.set_xattr("/file", "user.comment", b"a draft")?;
    /// fs.remove_xattr("/file", "user.comment")?;
    /// assert!(fs.xattrs("/file")?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<[u8]>) -> Result<(), Error> {
        let path = bytes(path.as_ref());
        let change = || {
            let inode = self.volume.names().resolve(path, Follow::NotTheLast)?;
            self.volume.attributes().remove_xattr(inode.ino(), name.as_ref())
        };
        change().map_err(Error::at(path))
    }
}
