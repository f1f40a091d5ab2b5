//! Where a file is on its device.

use std::path::Path;

use fiemap::{Fiemap, FiemapExtentFlags as Flags};
use rustix::fs::OFlags;

use super::open_quietly;

/// A run of a file that is one run of the device, or data kept in the inode. Offsets and lengths in bytes.
///
/// In a list of extents ([`join`](Self::join)) no two touch in the file and on the device at once: how many
/// records the disk has for one run is not said, since the kernel does not say it reliably either (its cache
/// joins them).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Where in the file.
    pub logical: u64,
    /// Where on the device. For [`inline`](Self::inline) data the place of `i_block` within the inode table.
    pub physical: u64,
    /// How long. It may reach beyond the end of the file.
    pub len: u64,
    /// Allocated and never written: reads as zeros.
    pub unwritten: bool,
    /// The data is in the inode.
    pub inline: bool,
    /// The data is encrypted.
    pub encrypted: bool,
}

impl Extent {
    /// Joins neighbours of an ascending list that touch in the file and on the device and are of one sort.
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

/// The extents of a file or directory by FIEMAP (kernel: `Documentation/filesystems/fiemap.rst`).
///
/// # Panics
/// When it cannot be opened or the file system has no FIEMAP.
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
