//! Changes the entries of one block (or inline region) in place.
//!
//! Owns: splitting an entry's slack, removing an entry, repacking entries. Does **not** own: the choice of a
//! block, the check whether a name is allowed, directories whose entries store hashes (they are read-only).
//!
//! ```text
//! insert:  | a ......slack | b |    ->  | a | new .... | b |     or replaces an unused entry
//! remove:  | a | x | b |            ->  | a ......00 | b |       the first entry becomes unused instead
//! unuse:   | a | x | (unused) | b | ->  | a | (unused) | b |     if the entry before is unknown
//! ```
//!
//! Invariants
//! 1. The entries tile their area before and after each change.
//! 2. Bytes of a removed name are zeroed.
//! 3. Offsets outside the bytes are refused (`None`) before anything is changed.
//!
//! Source: kernel Documentation/filesystems/ext4/directory.rst.

use extant_base::{Ino, Malformed};

use super::{
    DirFormat, HEADER_LEN, NAME_LEN_MAX, TAIL_LEN, TAIL_TYPE, decode_rec_len, encode_rec_len, min_rec_len,
};
use crate::filetype::FileType;

/// Free space at an entry: the bytes after its name, or the whole of an unused entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hole {
    /// Offset of the entry with the free space.
    pub at: usize,
    /// Bytes that the entry itself needs; 0 for an unused one. The free space starts after them.
    pub own: usize,
    /// Free bytes; 0 means no hole.
    pub len: usize,
}

/// The location of a name that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Offset of the name's entry.
    pub at: usize,
    /// The inode number in the entry.
    pub ino: Ino,
}

/// The result of one pass over an area.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scan {
    /// The name, if it was found.
    pub found: Option<Found>,
    /// The first hole that is large enough, or else the largest one.
    pub hole: Hole,
    /// Bytes that the used entries need at least.
    pub live_bytes: usize,
}

/// Maximum size of an entry in bytes.
const ENTRY_LEN_MAX: usize = min_rec_len(NAME_LEN_MAX, false);

/// A prepared insertion of a name into a block: the bytes to change.
pub struct Insertion {
    /// The entry with the free space, and its length after the insertion.
    before_at: usize,
    own: [u8; 2],
    /// Inode 0, and the length of that entry before the insertion.
    expected: [u8; 6],
    /// The new entry, followed by zeros.
    entry: [u8; ENTRY_LEN_MAX],
    /// The position of the new entry, and the free space after it.
    left: Hole,
}

impl Insertion {
    /// The changes: offsets, and the new bytes at each.
    #[must_use]
    pub fn pieces(&self) -> [(usize, &[u8]); 2] {
        let entry = (self.left.at, &self.entry[..self.left.own]);
        // An unused entry is replaced: no length changes.
        let own = if self.left.at == self.before_at { &[][..] } else { &self.own };
        [(self.before_at + 4, own), entry]
    }

    /// The expected old bytes, if the free space is as stated: their offset, and the bytes.
    #[must_use]
    pub fn expected(&self) -> (usize, &[u8]) {
        // An unused entry is checked for inode 0 and its length, a used one for its length.
        if self.left.at == self.before_at {
            (self.before_at, &self.expected)
        } else {
            (self.before_at + 4, &self.expected[4..])
        }
    }

    /// The position of the name after the insertion, with the free space left after it.
    #[must_use]
    pub fn left(&self) -> Hole {
        self.left
    }
}

impl DirFormat {
    /// Bytes of an area of `len` bytes that entries tile: all, except a block's tail.
    #[must_use]
    pub fn end_of(&self, len: usize) -> usize {
        if self.csum && len == self.block_size.len() { len - TAIL_LEN } else { len }
    }

    /// Whether this name is possibly in the area; `false` is certain. It reads the bytes without following
    /// the entries, which costs a small part of a [`scan`](Self::scan). Names start at a 4-byte boundary: an
    /// area that lacks two words of the name at the right distance does not contain it.
    #[must_use]
    pub fn may_hold(area: &[u8], name: &[u8]) -> bool {
        let (words, parts) = (area.as_chunks::<4>().0, name.as_chunks::<4>().0);
        // Names in one directory often share a prefix. The end of a short name is in no whole word.
        let Some(at_last) = parts.len().checked_sub(1) else { return true };
        let (middle, last) = (parts[at_last / 2], parts[at_last]);
        let apart = at_last - at_last / 2;
        let (middle, last) = (u32::from_ne_bytes(middle), u32::from_ne_bytes(last));
        // No branch per word, so that the compiler can use vector instructions.
        let pairs = words.iter().zip(words.get(apart..).unwrap_or_default());
        let hits = pairs.fold(0, |hits, (one, other)| {
            let differ = (u32::from_ne_bytes(*one) ^ middle) | (u32::from_ne_bytes(*other) ^ last);
            hits | u32::from(differ == 0)
        });
        hits != 0
    }

    /// Reads all entries once. Looks for a name and for the first hole of `need` bytes, and counts the used
    /// bytes.
    ///
    /// # Errors
    /// The first malformed entry.
    pub fn scan(&self, area: &[u8], name: &[u8], need: usize) -> Result<Scan, Malformed> {
        let mut scan = Scan::default();
        let (mut at, end) = (0, self.end_of(area.len()));
        while at < end {
            let header = self.header(area, at);
            let good = header.is_some_and(|h| {
                h.ino <= self.inodes_count
                    && h.rec_len >= min_rec_len(1, false).max(min_rec_len(h.name_len, false))
                    && h.rec_len <= end - at
                    && (h.ino == 0 || h.name_len != 0)
            });
            let Some(header) = header.filter(|_| good) else {
                // Decodes again to report the broken rule.
                return match self.decode_at(&area[..end], at) {
                    Err(fact) => Err(fact),
                    Ok(_) => {
                        Err(Malformed::new("directory entry", "must end before the block's tail", at as u64))
                    }
                };
            };
            let own = header.own_len();
            let room = header.rec_len - own;
            if header.ino != 0 {
                scan.live_bytes += own;
                let found = &area[at + HEADER_LEN..at + HEADER_LEN + header.name_len];
                if header.name_len == name.len() && found == name {
                    scan.found = scan.found.or(Some(Found { at, ino: Ino(header.ino) }));
                }
            }
            if scan.hole.len < need && room > scan.hole.len {
                scan.hole = Hole { at, own, len: room };
            }
            at += header.rec_len;
        }
        Ok(scan)
    }

    /// Inserts a new entry into the free space of the entry at `at`. Returns its position, with the free
    /// space left after it; `None` if the free space is too small.
    pub fn insert_at(
        &self,
        area: &mut [u8],
        at: usize,
        ino: Ino,
        kind: FileType,
        name: &[u8],
    ) -> Option<Hole> {
        let end = self.end_of(area.len());
        let header = self.header(area, at).filter(|header| at + header.rec_len <= end)?;
        let own = header.own_len();
        let hole = Hole { at, own, len: header.rec_len.checked_sub(own)? };
        let insertion = self.insertion(hole, ino, kind, name)?;
        for (at, bytes) in insertion.pieces() {
            area[at..at + bytes.len()].copy_from_slice(bytes);
        }
        Some(insertion.left)
    }

    /// The bytes that [`insert_at`](Self::insert_at) changes in the area, for a caller that knows the free
    /// space without reading it. `None` if the free space is too small.
    #[must_use]
    pub fn insertion(&self, hole: Hole, ino: Ino, kind: FileType, name: &[u8]) -> Option<Insertion> {
        debug_assert!((1..=NAME_LEN_MAX).contains(&name.len()) && ino.0 != 0, "names have 1 to 255 bytes");
        let Hole { at, own, len: room } = hole;
        let need = min_rec_len(name.len(), false);
        let left = Hole { at: at + own, own: need, len: room.checked_sub(need)? };
        let mut entry = [0; ENTRY_LEN_MAX];
        entry[..4].copy_from_slice(&ino.0.to_le_bytes());
        entry[4..6].copy_from_slice(&self.rec_len_bytes(room));
        entry[6] = name.len() as u8;
        entry[7] = if self.filetype { kind.dirent_code() } else { 0 };
        entry[HEADER_LEN..HEADER_LEN + name.len()].copy_from_slice(name);
        let mut expected = [0; 6];
        expected[4..].copy_from_slice(&self.rec_len_bytes(own + room));
        Some(Insertion { before_at: at, own: self.rec_len_bytes(own), expected, entry, left })
    }

    /// Whether the entry at this offset has this name and this inode.
    #[must_use]
    pub fn is_at(&self, area: &[u8], found: Found, name: &[u8]) -> bool {
        let Some(entry) = area.get(found.at..) else { return false };
        let is_it = entry.first_chunk() == Some(&found.ino.0.to_le_bytes())
            && entry.get(6).is_some_and(|len| usize::from(*len) == name.len());
        is_it && found.ino.0 != 0 && entry.get(HEADER_LEN..HEADER_LEN + name.len()) == Some(name)
    }

    /// Removes the entry at `at`. The search for the entry before it starts at the entry at offset `from`,
    /// which must not be after it (0 is always valid). Returns the new free space; `None` if there is no such
    /// entry.
    pub fn remove_at(&self, area: &mut [u8], from: usize, at: usize) -> Option<Hole> {
        let end = self.end_of(area.len());
        let gone = self
            .header(area, at)
            .filter(|h| h.ino != 0 && h.rec_len >= HEADER_LEN && at + h.rec_len <= end)?;
        let mut before = None;
        let mut next = from;
        while next < at {
            let header = self.header(area, next).filter(|header| header.rec_len >= HEADER_LEN)?;
            before = Some((next, header));
            next += header.rec_len;
        }
        if next != at {
            return None;
        }
        let name_end = at + HEADER_LEN + gone.name_len.min(gone.rec_len - HEADER_LEN);
        let Some((before_at, before)) = before else {
            area[at..at + 4].fill(0);
            area[at + 6..name_end].fill(0);
            return Some(Hole { at, own: 0, len: gone.rec_len });
        };
        area[at..name_end].fill(0);
        let rec_len = before.rec_len + gone.rec_len;
        self.set_rec_len(area, before_at, rec_len);
        let own = before.own_len();
        Some(Hole { at: before_at, own, len: rec_len.saturating_sub(own) })
    }

    /// Makes the entry at `at` unused, and merges the unused entries after it. Returns its free space; `None`
    /// if there is no such entry.
    pub fn unuse_at(&self, area: &mut [u8], at: usize) -> Option<Hole> {
        let end = self.end_of(area.len());
        let fits = |header: &Header, at: usize| header.rec_len >= HEADER_LEN && at + header.rec_len <= end;
        let gone = self.header(area, at).filter(|h| h.ino != 0 && fits(h, at))?;
        let mut len = gone.rec_len;
        while at + len < end
            && let Some(behind) = self.header(area, at + len).filter(|h| h.ino == 0 && fits(h, at + len))
        {
            area[at + len..at + len + HEADER_LEN].fill(0);
            len += behind.rec_len;
        }
        let name_end = at + HEADER_LEN + gone.name_len.min(gone.rec_len - HEADER_LEN);
        area[at..at + 4].fill(0);
        area[at + 6..name_end].fill(0);
        if len > gone.rec_len {
            self.set_rec_len(area, at, len);
        }
        Some(Hole { at, own: 0, len })
    }

    /// Whether no entry of the area is used. Stops at the first used one.
    #[must_use]
    pub fn is_unused(&self, area: &[u8]) -> bool {
        let (mut at, end) = (0, self.end_of(area.len()));
        while at < end {
            match self.header(area, at) {
                Some(header) if header.ino == 0 && header.rec_len >= HEADER_LEN => at += header.rec_len,
                _ => return false,
            }
        }
        true
    }

    /// Changes the inode of the entry at `at`. Returns `false` if there is no used entry.
    pub fn replace_at(&self, area: &mut [u8], at: usize, ino: Ino, kind: FileType) -> bool {
        if self.header(area, at).is_none_or(|header| header.ino == 0) {
            return false;
        }
        area[at..at + 4].copy_from_slice(&ino.0.to_le_bytes());
        if self.filetype {
            area[at + 7] = kind.dirent_code();
        }
        true
    }

    /// Copies the entries of `source` at these offsets into the block `area`, contiguously from byte `start`.
    /// Extends the last one to the end, and writes a tail if the format has one. The bytes before `start`
    /// stay. `placed` receives the new offset of each entry. Returns the free space after the last entry (of
    /// an empty block: all of it).
    ///
    /// # Panics
    /// An offset is not that of an entry of `source`, or the entries do not fit.
    pub fn repack(
        &self,
        source: &[u8],
        offsets: impl IntoIterator<Item = usize>,
        area: &mut [u8],
        start: usize,
        mut placed: impl FnMut(usize),
    ) -> Hole {
        let end = self.end_of(area.len());
        let (mut at, mut last) = (start, None);
        for offset in offsets {
            let len = min_rec_len(usize::from(source[offset + 6]), false);
            area[at..at + len].copy_from_slice(&source[offset..offset + len]);
            self.set_rec_len(area, at, len);
            placed(at);
            last = Some((at, len));
            at += len;
        }
        area[at..].fill(0);
        let hole = match last {
            Some((last, own)) => Hole { at: last, own, len: end - at },
            None => Hole { at: start, own: 0, len: end - start },
        };
        if last.is_some() || end > start {
            self.set_rec_len(area, hole.at, end - hole.at);
        }
        self.lay_tail(area);
        hole
    }

    /// Makes an area one unused entry, with a tail if the format has one. For the checksum see
    /// [`super::seal_tail`].
    pub fn lay_empty(&self, area: &mut [u8]) {
        self.repack(&[], [], area, 0, |_| ());
    }

    /// Writes the tail of a block, with a checksum of 0. Does nothing if the format has no tail.
    pub fn lay_tail(&self, area: &mut [u8]) {
        let end = self.end_of(area.len());
        if let [_, _, _, _, len0, len1, _, kind, ..] = &mut area[end..] {
            [*len0, *len1] = (TAIL_LEN as u16).to_le_bytes();
            *kind = TAIL_TYPE;
        }
    }

    fn header(&self, area: &[u8], at: usize) -> Option<Header> {
        let [i0, i1, i2, i3, len0, len1, name_len, _] = area.get(at..)?.first_chunk::<HEADER_LEN>()?;
        let rec_len = decode_rec_len(u16::from_le_bytes([*len0, *len1]), self.block_size);
        let ino = u32::from_le_bytes([*i0, *i1, *i2, *i3]);
        rec_len.is_multiple_of(4).then_some(Header { ino, rec_len, name_len: usize::from(*name_len) })
    }

    fn set_rec_len(&self, area: &mut [u8], at: usize, len: usize) {
        area[at + 4..at + 6].copy_from_slice(&self.rec_len_bytes(len));
    }

    fn rec_len_bytes(&self, len: usize) -> [u8; 2] {
        let bits = encode_rec_len(len, self.block_size).expect("entries are multiples of 4 inside a block");
        bits.to_le_bytes()
    }
}

/// An entry without its name.
#[derive(Clone, Copy)]
struct Header {
    ino: u32,
    rec_len: usize,
    name_len: usize,
}

impl Header {
    /// Bytes that the entry needs.
    fn own_len(self) -> usize {
        if self.ino == 0 { 0 } else { min_rec_len(self.name_len, false) }
    }
}

#[cfg(test)]
mod tests {
    use extant_base::BlockSize;
    use proptest::prelude::*;

    use super::*;

    fn format(csum: bool, block_size: BlockSize) -> DirFormat {
        DirFormat { block_size, filetype: true, csum, hash_in_dirent: false, inodes_count: 1 << 20 }
    }

    fn names(format: &DirFormat, area: &[u8]) -> Vec<(Vec<u8>, u32)> {
        let entries = format.entries(area).map(Result::unwrap).filter(|entry| entry.is_used());
        entries.map(|entry| (entry.name.to_vec(), entry.ino.0)).collect()
    }

    /// `may_hold` is true for all names that a scan finds, and false for most of the others.
    #[test]
    fn what_may_not_be_in_an_area_is_not() {
        for front in ["", "a", "ab", "file name "] {
            let format = format(true, BlockSize::KIB4);
            let mut area = vec![0; 4096];
            let mut writer = crate::dirent::DirBlockWriter::new(&format, &mut area);
            let name = |i: u32| format!("{front}{}", i.wrapping_mul(2_654_435_761));
            (0..100).for_each(|i| assert!(writer.push(Ino(12), FileType::Regular, name(i).as_bytes())));
            writer.finish();
            let holds = |i: &u32| DirFormat::may_hold(&area, name(*i).as_bytes());
            assert!((0..100).all(|i| holds(&i)));
            assert!((1000..2000).filter(holds).count() < 20, "{front:?}");
        }
    }

    #[test]
    fn an_entry_that_is_unused_takes_the_room_behind_it() {
        let format = format(true, BlockSize::MIN);
        let mut block = vec![0; 1024];
        format.lay_empty(&mut block);
        let mut hole = Hole { at: 0, own: 0, len: 0 };
        for (ino, name) in [(9, "one"), (10, "secret"), (11, "three")] {
            hole =
                format.insert_at(&mut block, hole.at, Ino(ino), FileType::Regular, name.as_bytes()).unwrap();
        }
        assert_eq!(format.unuse_at(&mut block, 12), Some(Hole { at: 12, own: 0, len: 16 }));
        assert!(!block.windows(6).any(|bytes| bytes == b"secret"));
        assert_eq!(names(&format, &block), [(b"one".to_vec(), 9), (b"three".to_vec(), 11)]);
        assert_eq!(format.unuse_at(&mut block, 12), None, "it is unused");
        assert_eq!(format.unuse_at(&mut block, 0), Some(Hole { at: 0, own: 0, len: 28 }));
        assert!(!format.is_unused(&block));
        assert_eq!(
            format.unuse_at(&mut block, 28),
            Some(Hole { at: 28, own: 0, len: format.usable_len() - 28 })
        );
        assert!(format.is_unused(&block));
        let again = format.insert_at(&mut block, 0, Ino(12), FileType::Fifo, b"again").unwrap();
        assert_eq!(again, Hole { at: 0, own: 16, len: 12 });
        assert_eq!(format.unuse_at(&mut block, 0), Some(Hole { at: 0, own: 0, len: format.usable_len() }));
        let mut empty = vec![7; 1024];
        format.lay_empty(&mut empty);
        assert_eq!(block, empty);
    }

    #[test]
    fn an_entry_in_out_and_the_name_is_gone() {
        for (csum, size) in
            [(false, BlockSize::MIN), (true, BlockSize::MIN), (true, BlockSize::MAX), (false, BlockSize::MAX)]
        {
            let format = format(csum, size);
            let mut block = vec![7; size.len()];
            format.lay_empty(&mut block);
            let hole = format.insert_at(&mut block, 0, Ino(9), FileType::Regular, b"secret").unwrap();
            assert_eq!((hole.at, hole.len), (0, format.usable_len() - 16));
            let second = format.insert_at(&mut block, hole.at, Ino(10), FileType::Fifo, b"second").unwrap();
            assert_eq!(second.at, 16);
            assert_eq!(names(&format, &block), [(b"secret".to_vec(), 9), (b"second".to_vec(), 10)]);
            assert_eq!(format.remove_at(&mut block, 0, 0), Some(Hole { at: 0, own: 0, len: 16 }));
            assert!(!block.windows(6).any(|bytes| bytes == b"secret"));
            assert!(format.replace_at(&mut block, 16, Ino(11), FileType::Socket));
            assert!(!format.replace_at(&mut block, 0, Ino(11), FileType::Socket), "it is unused");
            let all = Hole { at: 0, own: 0, len: format.usable_len() };
            assert_eq!(format.remove_at(&mut block, 0, 16), Some(all));
            let mut empty = vec![7; size.len()];
            format.lay_empty(&mut empty);
            assert_eq!(block, empty);
            assert_eq!(super::super::tail_checksum(&block).is_some(), csum);
            assert_eq!(format.remove_at(&mut block, 0, 16), None);
            let outside = size.len() - 4;
            assert!(format.insert_at(&mut block, outside, Ino(1), FileType::Regular, b"x").is_none());
        }
    }

    proptest! {
        #[test]
        fn entries_tile_whatever_is_done(
            steps in prop::collection::vec((any::<bool>(), 0u8..30, 1usize..60), 1..200), csum: bool,
        ) {
            let format = format(csum, BlockSize::MIN);
            let mut block = vec![0; 1024];
            format.lay_empty(&mut block);
            let mut model = std::collections::BTreeMap::new();
            for (insert, key, len) in steps {
                let name = vec![b'a' + key; len];
                let scan = format.scan(&block, &name, min_rec_len(len, false)).unwrap();
                prop_assert_eq!(scan.found.map(|found| found.ino.0), model.get(&name).copied());
                let live: usize = model.keys().map(|name: &Vec<u8>| min_rec_len(name.len(), false)).sum();
                prop_assert_eq!(scan.live_bytes, live);
                match scan.found {
                    Some(found) if !insert => {
                        if key % 2 == 0 {
                            format.remove_at(&mut block, 0, found.at).unwrap();
                        } else {
                            format.unuse_at(&mut block, found.at).unwrap();
                        }
                        model.remove(&name);
                        prop_assert_eq!(format.is_unused(&block), model.is_empty());
                    }
                    None if insert => {
                        let ino = u32::from(key) + 1;
                        let mut expected = block.clone();
                        let insertion = format.insertion(scan.hole, Ino(ino), FileType::Regular, &name);
                        let left = format.insert_at(&mut block, scan.hole.at, Ino(ino), FileType::Regular, &name);
                        // The bytes and the free space can be computed without reading the block.
                        prop_assert_eq!(insertion.as_ref().map(Insertion::left), left);
                        if let Some(insertion) = insertion {
                            for (at, bytes) in insertion.pieces() {
                                expected[at..at + bytes.len()].copy_from_slice(bytes);
                            }
                            prop_assert_eq!(&block, &expected);
                            model.insert(name, ino);
                        } else {
                            let offsets: Vec<_> = format.entries(&block).map(Result::unwrap)
                                .filter(|entry| entry.is_used()).map(|entry| entry.offset).collect();
                            let source = block.clone();
                            let hole = format.repack(&source, offsets, &mut block, 0, |_| ());
                            prop_assert_eq!(hole.len, format.usable_len() - live);
                        }
                    }
                    _ => {}
                }
                prop_assert_eq!(names(&format, &block).into_iter().collect::<std::collections::BTreeMap<_, _>>(), model.clone());
            }
        }

        #[test]
        fn any_bytes_can_be_scanned(bytes in prop::collection::vec(any::<u8>(), 1024), at in 0usize..1100, csum: bool) {
            let format = format(csum, BlockSize::MIN);
            let _ = format.scan(&bytes, b"name", 12);
            let mut area = bytes;
            let _ = format.remove_at(&mut area, 0, at);
            let _ = format.insert_at(&mut area, at, Ino(1), FileType::Regular, b"name");
        }
    }
}
