//! Operations as values: a test applies, records, shrinks and prints them.

use std::fmt;

use crate::acl::Acl;

/// The path of an object relative to the root of the tree: directories separated by `/`, and a name, as in
/// `"a/b/name"`.
///
/// The root itself is `"."`. Names may contain any bytes except 0 and `/`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct At(Box<[u8]>);

impl At {
    /// The place with this path.
    #[must_use]
    pub fn new(path: impl AsRef<[u8]>) -> Self {
        Self(path.as_ref().into())
    }

    /// The whole path.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        &self.0
    }

    /// The names of the directories in the path, from the root; none for an object in the root.
    pub fn dirs(&self) -> impl Iterator<Item = &[u8]> {
        let end = self.name_start().saturating_sub(1);
        self.0[..end].split(|&byte| byte == b'/').filter(|name| !name.is_empty())
    }

    /// The last name. It may be `.`, `..`, or longer than any file system accepts.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        &self.0[self.name_start()..]
    }

    fn name_start(&self) -> usize {
        self.0.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1)
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, name) in self.0.split(|&byte| byte == b'/').enumerate() {
            let slash = if n == 0 { "" } else { "/" };
            write!(f, "{slash}{}", short(name))?;
        }
        Ok(())
    }
}

impl fmt::Debug for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A name for messages: a long one is shortened to its beginning and length.
pub(crate) fn short(name: &[u8]) -> String {
    if name.len() <= 40 {
        name.escape_ascii().to_string()
    } else {
        format!("{}…({} bytes)", name[..12].escape_ascii(), name.len())
    }
}

/// Bytes of a value or a symlink target, printed as their beginning and length.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Bytes(pub Vec<u8>);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", short(&self.0))
    }
}

impl<T: AsRef<[u8]>> From<T> for Bytes {
    fn from(bytes: T) -> Self {
        Self(bytes.as_ref().to_vec())
    }
}

/// Seconds since 1970, and nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Time {
    /// Seconds, negative before 1970.
    pub secs: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub nanos: u32,
}

/// What [`Op::Utimens`] does with one of the two times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SetTime {
    /// `UTIME_OMIT`: no change.
    Keep,
    /// `UTIME_NOW`: the current time.
    Now,
    /// This time. `EINVAL` if the nanoseconds are a second or more.
    To(Time),
}

/// Device number of a character or block device, as in `makedev(3)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Rdev {
    /// 12 bits.
    pub major: u32,
    /// 20 bits.
    pub minor: u32,
}

/// What [`Op::Mknod`] creates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Special {
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    Char(Rdev),
    /// A block device.
    Block(Rdev),
}

/// Flags of `renameat2(2)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RenameMode {
    /// No flags: replaces an existing target.
    Replace,
    /// `RENAME_NOREPLACE`
    NoReplace,
    /// `RENAME_EXCHANGE`
    Exchange,
    /// `RENAME_WHITEOUT`: a character device 0:0 gets the old name.
    Whiteout,
}

/// Flags of `setxattr(2)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum XattrMode {
    /// No flags.
    Any,
    /// `XATTR_CREATE`: `EEXIST` if the attribute exists.
    Create,
    /// `XATTR_REPLACE`: `ENODATA` if the attribute does not exist.
    Replace,
}

/// One of the two ACLs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AclType {
    /// Permissions of the object.
    Access,
    /// The ACL that new objects in the directory inherit.
    Default,
}

impl AclType {
    /// The name of its attribute.
    #[must_use]
    pub fn xattr_name(self) -> &'static str {
        match self {
            Self::Access => "system.posix_acl_access",
            Self::Default => "system.posix_acl_default",
        }
    }

    /// The ACL that an attribute's name stands for.
    #[must_use]
    pub fn of_xattr_name(name: &[u8]) -> Option<Self> {
        [Self::Access, Self::Default].into_iter().find(|acl| acl.xattr_name().as_bytes() == name)
    }
}

/// One operation. Modes are permission bits (07777), as far as the call accepts them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the fields are the calls' arguments")]
pub enum Op {
    /// `open(O_CREAT|O_EXCL)`: a new regular file.
    Create { at: At, mode: u16 },
    /// `mknod`
    Mknod { at: At, mode: u16, special: Special },
    /// `mkdir`
    Mkdir { at: At, mode: u16 },
    /// `symlink`
    Symlink { at: At, target: Bytes },
    /// `linkat` without following
    Link { old: At, new: At },
    /// `unlink`
    Unlink { at: At },
    /// `rmdir`
    Rmdir { at: At },
    /// `renameat2`
    Rename { old: At, new: At, mode: RenameMode },
    /// `fchmodat2` without following: symlinks refuse with `EOPNOTSUPP`
    Chmod { at: At, mode: u16 },
    /// `lchown`; `None` is -1, no change
    Chown { at: At, uid: Option<u32>, gid: Option<u32> },
    /// `utimensat` without following
    Utimens { at: At, atime: SetTime, mtime: SetTime },
    /// `truncate` without following: a symlink refuses as a device does, with `EINVAL`
    Truncate { at: At, size: u64 },
    /// `lsetxattr`, also with the names of ACLs; the mode has no meaning for them
    SetXattr { at: At, name: Bytes, value: Bytes, mode: XattrMode },
    /// `lremovexattr`
    RemoveXattr { at: At, name: Bytes },
    /// `lsetxattr` of an ACL; an ACL without entries removes it
    SetAcl { at: At, acl_type: AclType, acl: Acl },
    /// `open(O_TMPFILE)` in the directory of `at`, then close; with `linked` the file gets the name before
    Tmpfile { at: At, mode: u16, linked: bool },
    /// `lstat`: whether it exists
    Stat { at: At },
    /// `open(O_DIRECTORY)` and `getdents` to the end
    Readdir { at: At },
    /// `readlink`
    Readlink { at: At },
    /// `lgetxattr`: whether it exists
    GetXattr { at: At, name: Bytes },
}

impl Op {
    /// The name of the call, for statistics.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Create { .. } => "create",
            Self::Mknod { .. } => "mknod",
            Self::Mkdir { .. } => "mkdir",
            Self::Symlink { .. } => "symlink",
            Self::Link { .. } => "link",
            Self::Unlink { .. } => "unlink",
            Self::Rmdir { .. } => "rmdir",
            Self::Rename { .. } => "rename",
            Self::Chmod { .. } => "chmod",
            Self::Chown { .. } => "chown",
            Self::Utimens { .. } => "utimens",
            Self::Truncate { .. } => "truncate",
            Self::SetXattr { .. } => "setxattr",
            Self::RemoveXattr { .. } => "removexattr",
            Self::SetAcl { .. } => "setacl",
            Self::Tmpfile { .. } => "tmpfile",
            Self::Stat { .. } => "stat",
            Self::Readdir { .. } => "readdir",
            Self::Readlink { .. } => "readlink",
            Self::GetXattr { .. } => "getxattr",
        }
    }
}
