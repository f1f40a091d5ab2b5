//! Inline data: a small file or directory stored in its inode.
//!
//! ```text
//! file:       | i_block: first 60 bytes                    | value of xattr system.data: the rest |
//! directory:  | i_block: parent u32 | 56 bytes of entries  | value of xattr system.data: more entries |
//! ```
//!
//! Owns splitting and joining the two parts. Does **not** own: directory entries (see `dirent`), the
//! attribute itself (see `xattr`; index 7, name "data", present even if its value is empty), the INLINE_DATA
//! flag.
//!
//! Each part of a directory is a separate run of entries, like a block, without `.`, `..` or checksum.
//!
//! Source: kernel Documentation/filesystems/ext4/inlinedata.rst.

use extant_base::{Ino, Malformed};

const STRUCTURE: &str = "inline data";

/// Size of `i_block`: the bytes that a file can store without the attribute's value.
pub const IN_BLOCK: usize = 60;

/// Bytes of directory entries in `i_block`, after the parent's inode number.
pub const DIR_IN_BLOCK: usize = IN_BLOCK - 4;

/// Splits a file's data into `i_block` (padded with zeros) and the value of `system.data` (possibly empty).
///
/// The caller knows the other attributes and checks whether the value fits the inode.
#[must_use]
pub fn split(data: &[u8]) -> ([u8; IN_BLOCK], &[u8]) {
    let (head, tail) = data.split_at(data.len().min(IN_BLOCK));
    let mut i_block = [0; IN_BLOCK];
    i_block[..head.len()].copy_from_slice(head);
    (i_block, tail)
}

/// Joins the two parts to the data of a file or symbolic link, `size` bytes. `value` is empty if the
/// attribute's value is empty.
///
/// # Errors
/// `size` exceeds both parts together.
pub fn join(i_block: &[u8; IN_BLOCK], value: &[u8], size: u64) -> Result<Vec<u8>, Malformed> {
    let have = IN_BLOCK + value.len();
    Malformed::unless(size <= have as u64, STRUCTURE, "the size must fit i_block and system.data", size)?;
    let size = size as usize; // no more than `have`
    let mut data = Vec::with_capacity(size);
    data.extend_from_slice(&i_block[..size.min(IN_BLOCK)]);
    data.extend_from_slice(&value[..size.saturating_sub(IN_BLOCK)]);
    Ok(data)
}

/// An inline directory: its parent and the two runs of bytes that hold its entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InlineDir<'a> {
    /// The parent directory, for `..`.
    pub parent: Ino,
    /// Entries in `i_block`: always 56 bytes.
    pub first: &'a [u8; DIR_IN_BLOCK],
    /// Entries in the value of `system.data`; possibly empty.
    pub second: &'a [u8],
}

impl<'a> InlineDir<'a> {
    /// Splits an inline directory of `size` bytes.
    ///
    /// # Errors
    /// `size` is below 60, or reaches past the attribute's value.
    pub fn decode(i_block: &'a [u8; IN_BLOCK], value: &'a [u8], size: u64) -> Result<Self, Malformed> {
        let second =
            size.checked_sub(IN_BLOCK as u64).and_then(|len| value.get(..usize::try_from(len).ok()?));
        let second = second.ok_or(Malformed::new(
            STRUCTURE,
            "a directory's size must be 60 and its system.data",
            size,
        ))?;
        let [p0, p1, p2, p3, first @ ..] = i_block;
        Ok(Self { parent: Ino(u32::from_le_bytes([*p0, *p1, *p2, *p3])), first, second })
    }

    /// The `i_block` of this directory. The attribute's value is [`second`](Self::second), the directory's
    /// size [`size`](Self::size).
    #[must_use]
    pub fn encode(&self) -> [u8; IN_BLOCK] {
        let mut i_block = [0; IN_BLOCK];
        i_block[..4].copy_from_slice(&self.parent.0.to_le_bytes());
        i_block[4..].copy_from_slice(self.first);
        i_block
    }

    /// Size of the directory in bytes, for its inode.
    #[must_use]
    pub fn size(&self) -> u64 {
        (IN_BLOCK + self.second.len()) as u64
    }

    /// Both runs of entries, in order. Each has the offset of its first byte in the directory's logical
    /// content: first `i_block`, then the attribute's value.
    #[must_use]
    pub fn regions(&self) -> [(usize, &'a [u8]); 2] {
        [(4, self.first.as_slice()), (IN_BLOCK, self.second)]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::mmp::real_image::{RealImage, le};

    /// The bytes of inode 12 in an image of 256-byte inodes.
    fn inode(image: &RealImage, ino: u64) -> Vec<u8> {
        let table = le(&image.read(4096 + 8, 4), 0, 4);
        image.read(table * 4096 + (ino - 1) * 256, 256)
    }

    #[test]
    fn a_directory_of_debugfs_has_its_parent_and_its_entry() {
        let image = RealImage::mke2fs(32 << 20, &["-b", "4096", "-O", "inline_data"]);
        image.debugfs("mkdir /d");
        image.debugfs("mkdir /d/e");
        let raw = inode(&image, 12);
        assert_eq!(le(&raw, 0x20, 4) & 0x1000_0000, 0x1000_0000, "inline");
        let i_block: &[u8; 60] = raw[0x28..0x28 + 60].try_into().unwrap();
        let dir = InlineDir::decode(i_block, &[], le(&raw, 4, 4)).unwrap();
        assert_eq!((dir.parent, dir.size()), (Ino(2), 60));
        assert_eq!(dir.regions()[0].1[..9], [13, 0, 0, 0, 56, 0, 1, 2, b'e']);
        assert_eq!(&dir.encode(), i_block);
    }

    #[test]
    fn a_file_of_mke2fs_is_split_as_here() {
        let source = tempfile::tempdir().unwrap();
        let data: Vec<u8> = (0..100).collect();
        std::fs::write(source.path().join("f"), &data).unwrap();
        let from = source.path().to_str().unwrap();
        let image = RealImage::mke2fs(32 << 20, &["-b", "4096", "-O", "inline_data", "-d", from]);
        let raw = inode(&image, 12);
        assert_eq!(le(&raw, 0x20, 4) & 0x1000_0000, 0x1000_0000, "inline");
        let (i_block, value) = split(&data);
        assert_eq!(raw[0x28..0x28 + 60], i_block);
        assert!(raw[160..].windows(value.len()).any(|window| window == value));
        assert_eq!(join(&i_block, value, le(&raw, 4, 4)), Ok(data));
    }

    #[test]
    fn a_size_past_the_parts_is_refused() {
        assert!(join(&[0; 60], &[1], 62).is_err());
        assert!(join(&[0; 60], &[1], u64::MAX).is_err());
        assert!(InlineDir::decode(&[0; 60], &[1], 59).is_err());
        assert!(InlineDir::decode(&[0; 60], &[1], 62).is_err());
        assert_eq!(InlineDir::decode(&[0; 60], &[1], 60).unwrap().second, []);
    }

    proptest! {
        #[test]
        fn parts_come_together_again(data in prop::collection::vec(any::<u8>(), 0..200)) {
            let (i_block, value) = split(&data);
            prop_assert_eq!(join(&i_block, value, data.len() as u64), Ok(data.clone()));
        }

        #[test]
        fn any_parts_can_be_read(
            i_block in prop::collection::vec(any::<u8>(), 60),
            value in prop::collection::vec(any::<u8>(), 0..100),
            size in prop_oneof![0u64..200, any::<u64>()],
        ) {
            let i_block: [u8; 60] = i_block.try_into().unwrap();
            let _ = join(&i_block, &value, size);
            if let Ok(dir) = InlineDir::decode(&i_block, &value, size) {
                prop_assert_eq!(dir.encode(), i_block);
                prop_assert_eq!(dir.size(), size);
            }
        }
    }
}
