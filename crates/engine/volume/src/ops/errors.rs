//! Which refusals an operation can return: the table of docs/errors.md.
//!
//! In builds with debug assertions, which the tests are, an operation that returns a refusal outside of its
//! row panics. Any operation can also fail for damage (EUCLEAN) or the device (EIO), after an abort of the
//! journal (EROFS), and after a shutdown (EIO).

use crate::Refusal;
use crate::Refusal::{
    Busy, Denied, Exists, Invalid, IsDirectory, NameTooLong, NeedsKey, NoAttribute, NoInodes, NoSpace,
    NotDirectory, NotEmpty, NotFound, NotPermitted, NotSupported, OtherProject, PastEnd, Range, ReadOnly,
    Stale, TooLarge, TooManyNames, ValueTooLong, WrongType,
};

macro_rules! operations {
    ($($variant:ident $name:literal: $($refusal:ident)*;)*) => {
        /// An operation of a volume.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Operation {
            $($variant,)*
        }

        impl Operation {
            /// All operations.
            #[cfg(test)]
            const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The name on the page.
            fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// The refusals besides [`ANY`].
            fn refusals(self) -> &'static [Refusal] {
                match self {
                    $(Self::$variant => &[$($refusal),*],)*
                }
            }
        }
    };
}

/// Refusals of any operation: the inode was deleted, the volume is open for reading only, the file system or
/// the file has a feature that is not maintained, the data is encrypted.
const ANY: [Refusal; 4] = [Stale, ReadOnly, NotSupported, NeedsKey];

operations! {
    Lookup "lookup": NotFound NotDirectory NameTooLong;
    Read "read": IsDirectory WrongType TooLarge NoSpace;
    Seek "seek (SEEK_DATA, SEEK_HOLE)": PastEnd IsDirectory WrongType TooLarge NoSpace;
    Create "create (also mkdir, mknod, symlink)": Exists NotFound NotDirectory NameTooLong Invalid
        NotPermitted TooManyNames NoSpace NoInodes;
    CreateUnnamed "O_TMPFILE": NotFound NotDirectory WrongType NameTooLong Invalid NotPermitted NoSpace
        NoInodes;
    Link "link": Exists NotFound NotDirectory NameTooLong Invalid NotPermitted OtherProject TooManyNames
        NoSpace;
    Unlink "unlink": NotFound NotDirectory IsDirectory NameTooLong Invalid NotPermitted NoSpace;
    Rmdir "rmdir": NotFound NotDirectory NotEmpty NameTooLong Invalid Busy NotPermitted NoSpace;
    Rename "rename": Exists NotFound NotDirectory IsDirectory NotEmpty NameTooLong Invalid Busy
        NotPermitted OtherProject TooManyNames NoSpace NoInodes;
    SetAttr "setattr (chmod, chown, truncate, utimes)": IsDirectory WrongType Invalid NotPermitted
        TooLarge NoSpace NoInodes;
    SetXattr "setxattr": Exists NoAttribute Range ValueTooLong TooLarge Invalid Denied NotPermitted
        NoSpace NoInodes;
    RemoveXattr "removexattr": NoAttribute Range Invalid NotPermitted NoSpace;
    Write "write": IsDirectory WrongType NotPermitted TooLarge NoSpace;
    Append "append": IsDirectory WrongType NotPermitted TooLarge NoSpace;
    CopyRange "copy_file_range": IsDirectory WrongType PastEnd Invalid NotPermitted TooLarge NoSpace;
    Fallocate "fallocate": IsDirectory WrongType Invalid NotPermitted TooLarge NoSpace;
    Exchange "exchange of blocks": IsDirectory WrongType Invalid NotPermitted TooLarge NoSpace;
    Fsync "fsync": NoSpace TooLarge;
    Sync "sync": NoSpace TooLarge;
    Release "release": NoSpace;
    Precache "EXT4_IOC_PRECACHE_EXTENTS": IsDirectory WrongType NotPermitted NoSpace;
    Trim "FITRIM": Invalid;
    Tune "tune, label": WrongType Invalid NotPermitted NoSpace;
    Shutdown "EXT4_IOC_SHUTDOWN": NoSpace;
}

impl Operation {
    /// Panics in builds with debug assertions if the operation's row does not have the refusal.
    pub(crate) fn check(self, refusal: Refusal) {
        debug_assert!(
            self.refusals().contains(&refusal) || ANY.contains(&refusal),
            "{} returns {refusal:?}: add it to its row in ops/errors.rs",
            self.name()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The name of an errno.
    fn errno(refusal: Refusal) -> &'static str {
        match refusal.errno() {
            1 => "EPERM",
            2 => "ENOENT",
            6 => "ENXIO",
            7 => "E2BIG",
            13 => "EACCES",
            16 => "EBUSY",
            17 => "EEXIST",
            18 => "EXDEV",
            20 => "ENOTDIR",
            21 => "EISDIR",
            22 => "EINVAL",
            27 => "EFBIG",
            28 => "ENOSPC",
            30 => "EROFS",
            31 => "EMLINK",
            34 => "ERANGE",
            36 => "ENAMETOOLONG",
            39 => "ENOTEMPTY",
            40 => "ELOOP",
            61 => "ENODATA",
            95 => "EOPNOTSUPP",
            116 => "ESTALE",
            126 => "ENOKEY",
            other => panic!("errno {other} has no name here"),
        }
    }

    fn cells(refusals: &[Refusal]) -> String {
        let mut names: Vec<&str> = refusals.iter().map(|refusal| errno(*refusal)).collect();
        names.sort_unstable();
        names.dedup();
        names.join(", ")
    }

    #[test]
    fn the_page_has_the_row_of_each_operation() {
        let page = include_str!("../../../../../docs/errors.md");
        let any = std::iter::once(("any operation", cells(&ANY)));
        let rows = Operation::ALL.iter().map(|operation| (operation.name(), cells(operation.refusals())));
        let all = Operation::ALL.iter().flat_map(|operation| operation.refusals()).chain(&ANY);
        let meanings: std::collections::BTreeSet<String> =
            all.map(|refusal| format!("| {} | {refusal} |", errno(*refusal))).collect();
        let missing: Vec<String> = any
            .chain(rows)
            .map(|(name, refusals)| format!("| {name} | {refusals} |"))
            .chain(meanings)
            .filter(|row| !page.contains(row.as_str()))
            .collect();
        assert!(missing.is_empty(), "docs/errors.md lacks these rows:\n{}", missing.join("\n"));
    }
}
