//! The chain of entries in one area of a directory: a block without its tail, or one part of an inline
//! directory.
//!
//! Does **not** own: the content of an entry (see [`super::block`]). Unlike `extant_ondisk::dirent`, the
//! iterator continues past invalid entries as long as their rec_len is usable.
//!
//! Source: kernel Documentation/filesystems/ext4/directory.rst.

use extant_base::BlockSize;
use extant_ondisk::dirent::{HEADER_LEN, decode_rec_len, min_rec_len};
use extant_ondisk::hash::NameHash;

/// The smallest rec_len.
const REC_LEN_MIN: usize = 12;

/// One entry, in use or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Raw<'a> {
    /// Byte offset within the area.
    pub(super) offset: usize,
    /// 0: not in use.
    pub(super) ino: u32,
    pub(super) rec_len: usize,
    /// The type byte as stored.
    pub(super) kind: u8,
    pub(super) name: &'a [u8],
    /// The byte after the name, which must be NUL for "." and "..".
    pub(super) after_name: Option<u8>,
    /// The hash stored after the name, in directories that store it.
    pub(super) hash: Option<NameHash>,
}

impl Raw<'_> {
    pub(super) fn is_dots(&self) -> bool {
        matches!(self.name, b"." | b"..")
    }
}

/// Why a chain ends before the end of its area.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Broken {
    /// Byte offset of the entry within the area.
    pub(super) offset: usize,
    pub(super) rec_len: usize,
    pub(super) why: &'static str,
}

/// Iterates over the entries of `area`. With `hashed`, entries store their hash after the name (encrypted and
/// casefolded directories).
pub(super) fn entries(area: &[u8], block_size: BlockSize, hashed: bool) -> Entries<'_> {
    Entries { area, at: 0, block_size, hashed }
}

/// See [`entries`]. Ends after the first [`Broken`].
#[derive(Debug, Clone)]
pub(super) struct Entries<'a> {
    area: &'a [u8],
    at: usize,
    block_size: BlockSize,
    hashed: bool,
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Raw<'a>, Broken>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let offset = self.at;
        let rest = &self.area[offset..];
        if rest.is_empty() {
            return None;
        }
        let Some((&[i0, i1, i2, i3, r0, r1, name_len, kind], after)) = rest.split_first_chunk::<HEADER_LEN>()
        else {
            return Some(Err(self.broken(offset, rest.len(), "the space left holds no entry")));
        };
        let (ino, name_len) = (u32::from_le_bytes([i0, i1, i2, i3]), usize::from(name_len));
        let rec_len = decode_rec_len(u16::from_le_bytes([r0, r1]), self.block_size);
        if rec_len > rest.len() {
            return Some(Err(self.broken(offset, rec_len, "the entry ends past the block")));
        }
        if rec_len < REC_LEN_MIN || !rec_len.is_multiple_of(4) {
            return Some(Err(self.broken(offset, rec_len, "no entry has this length")));
        }
        if HEADER_LEN + name_len > rec_len {
            return Some(Err(self.broken(offset, rec_len, "the name is longer than its entry")));
        }
        let name = &after[..name_len];
        let mut hash = None;
        if self.hashed && ino != 0 && !matches!(name, b"." | b"..") {
            let at = min_rec_len(name_len, false);
            let Some(&[h0, h1, h2, h3, m0, m1, m2, m3]) =
                rest[..rec_len].get(at..).and_then(<[u8]>::first_chunk)
            else {
                return Some(Err(self.broken(offset, rec_len, "the name leaves no room for its hash")));
            };
            let (hash_bytes, minor_bytes) = ([h0, h1, h2, h3], [m0, m1, m2, m3]);
            let (whole, minor) = (u32::from_le_bytes(hash_bytes), u32::from_le_bytes(minor_bytes));
            hash = Some(NameHash { hash: whole, minor });
        }
        self.at = offset + rec_len;
        let after_name = after.get(name_len).copied();
        Some(Ok(Raw { offset, ino, rec_len, kind, name, after_name, hash }))
    }
}

impl Entries<'_> {
    #[cold]
    fn broken(&mut self, offset: usize, rec_len: usize, why: &'static str) -> Broken {
        self.at = self.area.len();
        Broken { offset, rec_len, why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(ino: u32, rec_len: u16, name: &[u8]) -> Vec<u8> {
        let mut bytes = ino.to_le_bytes().to_vec();
        bytes.extend(rec_len.to_le_bytes());
        bytes.extend([name.len() as u8, 1]);
        bytes.extend(name);
        bytes.resize(usize::from(rec_len).max(bytes.len()), 0);
        bytes
    }

    #[test]
    fn a_chain_is_walked_to_its_end() {
        let area = [entry(11, 12, b"a"), entry(0, 16, b"gone"), entry(u32::MAX, 20, b"far")].concat();
        let found: Vec<_> = entries(&area, BlockSize::MIN, false).map(Result::unwrap).collect();
        assert_eq!(
            found.iter().map(|raw| (raw.offset, raw.ino)).collect::<Vec<_>>(),
            [(0, 11), (12, 0), (28, u32::MAX)]
        );
        assert_eq!((found[2].name, found[2].after_name), (b"far".as_slice(), Some(0)));
    }

    #[test]
    fn a_chain_ends_where_an_entry_lies() {
        let good = entry(11, 12, b"a");
        for (bad, why) in [
            (entry(12, 0, b"b"), "length"),
            (entry(12, 8, b""), "length"),
            (entry(12, 14, b"b"), "length"),
            (entry(12, 12, b"bcdef"), "longer"),
            (vec![1, 2, 3, 4], "holds no entry"),
            ([entry(12, 16, b"b"), vec![]].concat()[..12].to_vec(), "past the block"),
        ] {
            let area = [good.clone(), bad].concat();
            let last = entries(&area, BlockSize::MIN, false).last().unwrap().unwrap_err();
            assert!(last.offset == 12 && last.why.contains(why), "{last:?} {why}");
        }
    }
}
