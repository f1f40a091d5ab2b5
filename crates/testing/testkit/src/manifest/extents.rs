//! The location of a file on its device.

use std::path::Path;

use fiemap::{Fiemap, FiemapExtentFlags as Flags};
use rustix::fs::OFlags;

use super::open_quietly;

/// A run of a file that is one run on the device, or data in the inode. Offsets and lengths are in bytes.
///
/// In a list of extents ([`join`](Self::join)) no two are adjacent both in the file and on the device. The
/// list does not show how many records the disk has for a run, because the kernel does not report this
/// reliably (its cache joins them).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Offset in the file.
    pub logical: u64,
    /// Offset on the device. For [`inline`](Self::inline) data, the position of `i_block` within the inode
    /// table.
    pub physical: u64,
    /// Length. It may extend beyond the end of the file.
    pub len: u64,
    /// Allocated but never written: reads as zeros.
    pub unwritten: bool,
    /// The data is in the inode.
    pub inline: bool,
    /// The data is encrypted.
    pub encrypted: bool,
}

impl Extent {
    /// Joins neighbours of an ascending list that are adjacent in the file and on the device and have the
    /// same flags.
    #[must_use]
    pub fn join(extents: impl IntoIterator<Item = Self>) -> Vec<Self> {
        let mut joined: Vec<Self> = Vec::new();
        for extent in extents {
            match joined.last_mut() {
                Some(last) if last.is_followed_by(&extent) => last.len += extent.len,
                _ => joined.push(extent),
            }
        }
        joined
    }

    fn is_followed_by(&self, next: &Self) -> bool {
        self.logical + self.len == next.logical
            && self.physical + self.len == next.physical
            && (self.unwritten, self.inline, self.encrypted) == (next.unwritten, next.inline, next.encrypted)
    }
}

/// The extents of a file or directory from FIEMAP (kernel: `Documentation/filesystems/fiemap.rst`).
///
/// # Panics
/// It cannot be opened, or the file system has no FIEMAP.
pub(super) fn read(path: &Path) -> Vec<Extent> {
    let fail = |error: &dyn std::fmt::Display| -> ! { panic!("{}: FIEMAP: {error}", path.display()) };
    let fd = open_quietly(path, OFlags::RDONLY).unwrap_or_else(|error| fail(&error));
    Extent::join(Fiemap::new(&fd).map(|extent| match extent {
        Ok(extent) => Extent {
            logical: extent.fe_logical,
            physical: extent.fe_physical,
            len: extent.fe_length,
            unwritten: extent.fe_flags.contains(Flags::UNWRITTEN),
            inline: extent.fe_flags.contains(Flags::DATA_INLINE),
            encrypted: extent.fe_flags.contains(Flags::DATA_ENCRYPTED),
        },
        Err(error) => fail(&error),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_neighbours_of_one_sort_are_joined() {
        let run = |logical, physical, len| Extent {
            logical,
            physical,
            len,
            unwritten: false,
            inline: false,
            encrypted: false,
        };
        let unwritten = Extent { unwritten: true, ..run(30, 130, 10) };
        let list = [run(0, 100, 10), run(10, 110, 20), unwritten, run(40, 140, 5), run(50, 145, 5)];
        let joined = [run(0, 100, 30), unwritten, run(40, 140, 5), run(50, 145, 5)];
        assert_eq!(Extent::join(list), joined);
    }
}
