//! Error numbers and their names.

use std::fmt;

/// A number of `errno(3)`, positive, as on this platform.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Errno(pub i32);

/// Defines the constants and the table of their names from one list.
macro_rules! errnos {
    ($($name:ident = $rustix:ident,)*) => {
        impl Errno {
            $(
                #[doc = concat!("`", stringify!($name), "` of `errno(3)`.")]
                pub const $name: Self = Self(rustix::io::Errno::$rustix.raw_os_error());
            )*

            /// Its name, such as `"ENOENT"`; `None` for a number that no operation here is known to return.
            #[must_use]
            pub fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

errnos! {
    EPERM = PERM,
    ENOENT = NOENT,
    EIO = IO,
    ENXIO = NXIO,
    E2BIG = TOOBIG,
    EAGAIN = AGAIN,
    ENOMEM = NOMEM,
    EACCES = ACCESS,
    EBUSY = BUSY,
    EEXIST = EXIST,
    EXDEV = XDEV,
    ENODEV = NODEV,
    ENOTDIR = NOTDIR,
    EISDIR = ISDIR,
    EINVAL = INVAL,
    EFBIG = FBIG,
    ENOSPC = NOSPC,
    EROFS = ROFS,
    EMLINK = MLINK,
    ERANGE = RANGE,
    ENAMETOOLONG = NAMETOOLONG,
    ENOSYS = NOSYS,
    ENOTEMPTY = NOTEMPTY,
    ELOOP = LOOP,
    ENODATA = NODATA,
    EOVERFLOW = OVERFLOW,
    EOPNOTSUPP = OPNOTSUPP,
    EDQUOT = DQUOT,
    EUCLEAN = UCLEAN,
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Errno {}

impl From<rustix::io::Errno> for Errno {
    fn from(errno: rustix::io::Errno) -> Self {
        Self(errno.raw_os_error())
    }
}
