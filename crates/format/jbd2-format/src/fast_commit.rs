//! Fast-commit records: the changes of one fsync, in a few hundred bytes instead of whole blocks.
//!
//! ```text
//! record:  tag le16 | len le16 | value (len bytes)   never crosses a block; 4 bytes always remain for a PAD
//!
//! 1 ADD_RANGE  ino, extent: lblk le32, len le16, start_hi le16, start_lo le32
//! 2 DEL_RANGE  ino, lblk, len
//! 3 CREAT      parent, ino, name
//! 4 LINK       parent, ino, name
//! 5 UNLINK     parent, ino, name
//! 6 INODE      ino, the raw inode (128 bytes or more)
//! 7 PAD        zeros to the end of the block
//! 8 TAIL       tid, crc, zeros to the end of the block
//! 9 HEAD       features, tid
//! ```
//!
//! A fast commit starts at a block boundary, with HEAD if it is the first after a full commit, and ends with
//! TAIL. The crc of TAIL is the CRC-32C, from **zero**, of all bytes from the start of this fast commit to
//! the crc itself.
//!
//! Does **not** own: what a record does to the file system (replay), and which journal blocks form the area
//! (see [`Superblock::fast_commit_range`](crate::Superblock::fast_commit_range)).
//!
//! Source: kernel Documentation/filesystems/ext4/journal.rst, "Fast commits".

use extant_base::{BlockSize, Ino, Lblk, Malformed, Pblk, checksum::crc32c};

use crate::{
    bytes::{le16, le32, put},
    header::LogTid,
};

const STRUCTURE: &str = "fast-commit record";
const HEADER_LEN: usize = 4;
const TAIL_LEN: usize = 8;
const NAME_MAX: usize = 255;
const MIN_INODE_LEN: usize = 128;
/// The longest extent. A larger number on disk means an unwritten extent; subtract this value to get its
/// length.
const MAX_EXTENT_LEN: u16 = 32_768;

mod tag {
    pub(super) const ADD_RANGE: u16 = 1;
    pub(super) const DEL_RANGE: u16 = 2;
    pub(super) const CREAT: u16 = 3;
    pub(super) const LINK: u16 = 4;
    pub(super) const UNLINK: u16 = 5;
    pub(super) const INODE: u16 = 6;
    pub(super) const PAD: u16 = 7;
    pub(super) const TAIL: u16 = 8;
    pub(super) const HEAD: u16 = 9;
}

/// The change of a directory entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NameChange {
    /// The inode was created under this name.
    Create,
    /// The inode got an additional name.
    Link,
    /// The inode lost this name.
    Unlink,
}

/// One record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Record<'a> {
    /// A range of the file was mapped to these blocks.
    AddRange {
        /// The file.
        ino: Ino,
        /// First logical block.
        lblk: Lblk,
        /// Length in blocks: up to 32,768, or 32,767 if unwritten.
        len_blocks: u16,
        /// The extent is unwritten: its blocks read as zeros.
        unwritten: bool,
        /// First physical block, 48 bits.
        pblk: Pblk,
    },
    /// A range of the file became a hole.
    DelRange {
        /// The file.
        ino: Ino,
        /// First logical block.
        lblk: Lblk,
        /// Length in blocks.
        len_blocks: u32,
    },
    /// A directory entry was added or removed.
    Name {
        /// The kind of change.
        change: NameChange,
        /// The directory.
        parent: Ino,
        /// The inode that the name refers to.
        ino: Ino,
        /// The name, 1 to 255 bytes.
        name: &'a [u8],
    },
    /// New contents of an inode.
    Inode {
        /// The inode.
        ino: Ino,
        /// Its first 128 or more bytes, as in the inode table.
        raw: &'a [u8],
    },
    /// Fills the rest of a block.
    Pad,
    /// Ends a fast commit: with it on disk, the records since the previous TAIL are committed.
    Tail {
        /// The transaction that follows the last full commit; the changes belong to it.
        tid: LogTid,
        /// CRC-32C of the fast commit.
        crc: u32,
    },
    /// Begins the fast commits of a transaction.
    Head {
        /// Features needed for the replay: none is known, so 0.
        features: u32,
        /// The transaction that follows the last full commit; the changes belong to it.
        tid: LogTid,
    },
}

/// Iterator over the records of one block of the fast-commit area; see [`records`].
#[derive(Debug, Clone)]
pub struct Records<'a> {
    block: &'a [u8],
    at: usize,
}

/// The records of one block, up to its end or the first invalid record.
#[must_use]
pub fn records(block: &[u8]) -> Records<'_> {
    Records { block, at: 0 }
}

impl Records<'_> {
    /// Offset of the next record in the block.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.at
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.block.get(self.at..)?;
        if rest.len() < HEADER_LEN {
            return None;
        }
        let (tag, len) = (le16(rest, 0), usize::from(le16(rest, 2)));
        let decoded = match rest.get(HEADER_LEN..HEADER_LEN + len) {
            Some(value) => decode(tag, value),
            None => Err(Malformed::new(STRUCTURE, "the record must end inside its block", len as u64)),
        };
        self.at = if decoded.is_ok() { self.at + HEADER_LEN + len } else { self.block.len() };
        Some(decoded)
    }
}

fn decode(tag: u16, value: &[u8]) -> Result<Record<'_>, Malformed> {
    let fits = |holds, rule| Malformed::unless(holds, STRUCTURE, rule, value.len() as u64);
    match tag {
        tag::ADD_RANGE => {
            fits(value.len() == 16, "ADD_RANGE has 16 bytes")?;
            let len = le16(value, 8);
            let unwritten = len > MAX_EXTENT_LEN;
            Ok(Record::AddRange {
                ino: Ino(le32(value, 0)),
                lblk: Lblk(le32(value, 4)),
                len_blocks: if unwritten { len - MAX_EXTENT_LEN } else { len },
                unwritten,
                pblk: Pblk(u64::from(le16(value, 10)) << 32 | u64::from(le32(value, 12))),
            })
        }
        tag::DEL_RANGE => {
            fits(value.len() == 12, "DEL_RANGE has 12 bytes")?;
            Ok(Record::DelRange {
                ino: Ino(le32(value, 0)),
                lblk: Lblk(le32(value, 4)),
                len_blocks: le32(value, 8),
            })
        }
        tag::CREAT | tag::LINK | tag::UNLINK => {
            let change = match tag {
                tag::CREAT => NameChange::Create,
                tag::LINK => NameChange::Link,
                _ => NameChange::Unlink,
            };
            fits((9..=8 + NAME_MAX).contains(&value.len()), "a name has 1 to 255 bytes")?;
            let (parent, ino) = (Ino(le32(value, 0)), Ino(le32(value, 4)));
            Ok(Record::Name { change, parent, ino, name: &value[8..] })
        }
        tag::INODE => {
            fits(value.len() >= 4 + MIN_INODE_LEN, "INODE has at least 132 bytes")?;
            Ok(Record::Inode { ino: Ino(le32(value, 0)), raw: &value[4..] })
        }
        tag::PAD => Ok(Record::Pad),
        tag::TAIL => {
            fits(value.len() >= TAIL_LEN, "TAIL has at least 8 bytes")?;
            Ok(Record::Tail { tid: LogTid(le32(value, 0)), crc: le32(value, 4) })
        }
        tag::HEAD => {
            fits(value.len() == 8, "HEAD has 8 bytes")?;
            Ok(Record::Head { features: le32(value, 0), tid: LogTid(le32(value, 4)) })
        }
        other => Err(Malformed::new(STRUCTURE, "tag must be between 1 and 9", other)),
    }
}

/// Whether the scan continues with the next block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Flow {
    /// Feed the next block.
    Continue,
    /// Later blocks do not belong to the fast commits.
    Stop,
}

/// First pass over the fast-commit area: computes how many of its records may be replayed.
///
/// Feed the area's blocks in order until [`Flow::Stop`]. Then replay the first
/// [`valid_records`](Self::valid_records) records that [`records`] yields for the same blocks.
#[derive(Debug, Clone)]
pub struct Scan {
    tid: LogTid,
    crc: u32,
    seen: u64,
    valid: u64,
}

impl Scan {
    /// A scan for fast commits of `tid`: the first transaction that the log does not hold.
    #[must_use]
    pub fn new(tid: LogTid) -> Self {
        Self { tid, crc: 0, seen: 0, valid: 0 }
    }

    /// Number of records up to the last valid TAIL, including HEAD, PAD and TAIL records. 0 if there is
    /// nothing to replay.
    #[must_use]
    pub fn valid_records(&self) -> u64 {
        self.valid
    }

    /// Processes the next block of the area.
    ///
    /// # Errors
    /// An invalid record, tail or crc before the first valid TAIL: the first fast commit begins with a valid
    /// HEAD but is damaged. After a valid TAIL this is no error but the end, because a crash may have cut off
    /// the next fast commit.
    pub fn feed(&mut self, block: &[u8]) -> Result<Flow, Malformed> {
        let mut walk = records(block);
        loop {
            let start = walk.offset();
            let Some(record) = walk.next() else { return Ok(Flow::Continue) };
            if self.seen == 0 && !matches!(record, Ok(Record::Head { .. })) {
                return Ok(Flow::Stop); // the area was never used, or not since the last full commit
            }
            let broken = match record {
                Ok(Record::Head { tid, .. }) if tid != self.tid => return Ok(Flow::Stop),
                Ok(Record::Head { features, .. }) if features != 0 => {
                    return Err(Malformed::new(STRUCTURE, "HEAD must have known features only", features));
                }
                Ok(Record::Tail { tid, crc }) => {
                    self.crc = crc32c(self.crc, &block[start..start + HEADER_LEN + 4]);
                    let computed = std::mem::take(&mut self.crc);
                    self.seen += 1;
                    if tid == self.tid && crc == computed {
                        self.valid = self.seen;
                        None
                    } else {
                        Some(Malformed::new(STRUCTURE, "TAIL must have the right transaction and crc", crc))
                    }
                }
                Ok(_) => {
                    self.crc = crc32c(self.crc, &block[start..walk.offset()]);
                    self.seen += 1;
                    None
                }
                Err(fact) => Some(fact),
            };
            match broken {
                None => {}
                Some(_) if self.valid > 0 => return Ok(Flow::Stop),
                Some(fact) => return Err(fact),
            }
        }
    }
}

/// Why a record was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RecordError {
    /// The record is longer than a block: a full commit is needed instead.
    TooLong,
    /// A name, an inode, an extent length or a block number is out of range, or the record is a PAD or TAIL,
    /// which only the writer itself adds.
    Invalid,
}

impl std::fmt::Display for RecordError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::TooLong => "the fast-commit record is longer than a block",
            Self::Invalid => "the fast-commit record cannot be written",
        })
    }
}

impl std::error::Error for RecordError {}

/// Builds the blocks of one fast commit.
#[derive(Debug, Clone)]
pub struct Writer {
    block_size: BlockSize,
    bytes: Vec<u8>,
}

impl Writer {
    /// An empty fast commit. The first one of a transaction begins with [`Record::Head`].
    #[must_use]
    pub fn new(block_size: BlockSize) -> Self {
        Self { block_size, bytes: Vec::new() }
    }

    /// Bytes of this fast commit up to the crc of its TAIL, if it ended now.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.bytes.len() + HEADER_LEN + TAIL_LEN
    }

    /// Adds a record; starts a new block if the current one has no room.
    ///
    /// # Errors
    /// The record does not fit into a block, or cannot be written.
    pub fn push(&mut self, record: &Record<'_>) -> Result<(), RecordError> {
        let mut value = [0; 16];
        let mut fixed = |words: &[u32]| {
            for (i, word) in words.iter().enumerate() {
                put(&mut value, 4 * i, &word.to_le_bytes());
            }
            4 * words.len()
        };
        let mut rest: &[u8] = &[];
        let (tag, len) = match *record {
            Record::AddRange { ino, lblk, len_blocks, unwritten, pblk } => {
                let most = if unwritten { MAX_EXTENT_LEN - 1 } else { MAX_EXTENT_LEN };
                if len_blocks == 0 || len_blocks > most || pblk.0 >> 48 != 0 {
                    return Err(RecordError::Invalid);
                }
                let len = len_blocks + if unwritten { MAX_EXTENT_LEN } else { 0 };
                let middle = u32::from(len) | ((pblk.0 >> 32) as u32) << 16;
                (tag::ADD_RANGE, fixed(&[ino.0, lblk.0, middle, pblk.0 as u32]))
            }
            Record::DelRange { ino, lblk, len_blocks } => {
                (tag::DEL_RANGE, fixed(&[ino.0, lblk.0, len_blocks]))
            }
            Record::Name { change, parent, ino, name } => {
                if !(1..=NAME_MAX).contains(&name.len()) {
                    return Err(RecordError::Invalid);
                }
                rest = name;
                let tag = match change {
                    NameChange::Create => tag::CREAT,
                    NameChange::Link => tag::LINK,
                    NameChange::Unlink => tag::UNLINK,
                };
                (tag, fixed(&[parent.0, ino.0]))
            }
            Record::Inode { ino, raw } => {
                if raw.len() < MIN_INODE_LEN {
                    return Err(RecordError::Invalid);
                }
                rest = raw;
                (tag::INODE, fixed(&[ino.0]))
            }
            Record::Head { features, tid } => (tag::HEAD, fixed(&[features, tid.0])),
            Record::Pad | Record::Tail { .. } => return Err(RecordError::Invalid),
        };
        self.reserve(HEADER_LEN + len + rest.len())?;
        self.begin(tag, len + rest.len());
        self.bytes.extend_from_slice(&value[..len]);
        self.bytes.extend_from_slice(rest);
        Ok(())
    }

    /// Ends the fast commit with a TAIL for `tid`, and returns its blocks. The last block is the commit
    /// point: flush before it, and write it durably.
    #[must_use]
    pub fn finish(mut self, tid: LogTid) -> Vec<u8> {
        // Cannot fail: a tail is far shorter than a block.
        let _ = self.reserve(HEADER_LEN + TAIL_LEN);
        self.begin(tag::TAIL, self.room() - HEADER_LEN);
        self.bytes.extend_from_slice(&tid.0.to_le_bytes());
        let crc = crc32c(0, &self.bytes);
        self.bytes.extend_from_slice(&crc.to_le_bytes());
        self.fill_block();
        self.bytes
    }

    /// Bytes left in the current block; a whole block if it is full, because the next one then begins.
    fn room(&self) -> usize {
        self.block_size.len() - self.bytes.len() % self.block_size.len()
    }

    /// Makes room for `len` bytes and a PAD header, in a new block if necessary.
    fn reserve(&mut self, len: usize) -> Result<(), RecordError> {
        if len > self.block_size.len() - HEADER_LEN {
            return Err(RecordError::TooLong);
        }
        let room = self.room();
        if len > room - HEADER_LEN {
            self.begin(tag::PAD, room - HEADER_LEN);
            self.fill_block();
        }
        Ok(())
    }

    /// Writes a record's header. `len` is less than a block, so it fits into 16 bits.
    fn begin(&mut self, tag: u16, len: usize) {
        self.bytes.extend_from_slice(&tag.to_le_bytes());
        self.bytes.extend_from_slice(&(len as u16).to_le_bytes());
    }

    fn fill_block(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(self.block_size.len()), 0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEAD: Record<'static> = Record::Head { features: 0, tid: LogTid(7) };

    fn read(bytes: &[u8], block_size: BlockSize) -> Vec<Record<'_>> {
        bytes.chunks(block_size.len()).flat_map(records).map(Result::unwrap).collect()
    }

    fn scan(area: &[u8]) -> Result<u64, Malformed> {
        let mut scan = Scan::new(LogTid(7));
        for block in area.chunks(1024) {
            if scan.feed(block)? == Flow::Stop {
                break;
            }
        }
        Ok(scan.valid_records())
    }

    fn commit(records: &[Record<'_>]) -> Vec<u8> {
        let mut writer = Writer::new(BlockSize::MIN);
        for record in records {
            writer.push(record).unwrap();
        }
        writer.finish(LogTid(7))
    }

    #[test]
    fn records_never_cross_a_block_and_come_back() {
        let name = [b'n'; 200];
        let many: Vec<Record<'_>> = std::iter::once(HEAD)
            .chain((0..20).map(|i| Record::Name {
                change: [NameChange::Create, NameChange::Link, NameChange::Unlink][i % 3],
                parent: Ino(2),
                ino: Ino(100 + i as u32),
                name: &name,
            }))
            .collect();
        let bytes = commit(&many);
        let read: Vec<_> = read(&bytes, BlockSize::MIN);
        let kept: Vec<_> = read.iter().filter(|r| !matches!(r, Record::Pad | Record::Tail { .. })).collect();
        assert_eq!(kept.len(), many.len());
        assert!(kept.into_iter().eq(&many));
        assert!(read.contains(&Record::Pad));
        assert_eq!(scan(&bytes), Ok(read.len() as u64));
    }

    #[test]
    fn a_record_of_the_longest_length_fills_its_block_up_to_an_empty_pad() {
        let raw = [1; 1024 - 4 - 4 - 4];
        let bytes = commit(&[HEAD, Record::Inode { ino: Ino(12), raw: &raw }]);
        assert_eq!(bytes.len(), 3 * 1024);
        assert_eq!(bytes[2044..2048], [7, 0, 0, 0]);
        assert_eq!(scan(&bytes), Ok(5));
        let mut writer = Writer::new(BlockSize::MIN);
        let longer = [1; 1024 - 4 - 4 - 4 + 1];
        let refused = writer.push(&Record::Inode { ino: Ino(12), raw: &longer });
        assert_eq!(refused, Err(RecordError::TooLong));
    }

    #[test]
    fn a_torn_second_fast_commit_leaves_the_first_one_valid() {
        let range = Record::DelRange { ino: Ino(12), lblk: Lblk(0), len_blocks: 9 };
        let mut area = commit(&[HEAD, range]);
        let first = scan(&area).unwrap();
        area.extend(commit(&[range, range]));
        assert_eq!((first, scan(&area)), (3, Ok(6)));
        area[1024 + 5] ^= 1;
        assert_eq!(scan(&area), Ok(3));
        area[5] ^= 1; // now the HEAD's feature word is damaged
        assert!(scan(&area).is_err());
    }

    #[test]
    fn stale_areas_hold_nothing() {
        assert_eq!(scan(&[0; 4096]), Ok(0));
        let mut writer = Writer::new(BlockSize::MIN);
        writer.push(&Record::Head { features: 0, tid: LogTid(6) }).unwrap();
        assert_eq!(scan(&writer.finish(LogTid(6))), Ok(0));
        // Begun for this transaction, but the tail belongs to another.
        let mut writer = Writer::new(BlockSize::MIN);
        writer.push(&HEAD).unwrap();
        assert!(scan(&writer.finish(LogTid(8))).is_err());
    }

    #[test]
    fn extents_use_the_on_disk_encoding() {
        let range = Record::AddRange {
            ino: Ino(12),
            lblk: Lblk(1),
            len_blocks: 2,
            unwritten: true,
            pblk: Pblk(0x1234_5678_9ABC),
        };
        let bytes = commit(&[range]);
        assert_eq!(
            bytes[..20],
            [1, 0, 16, 0, 12, 0, 0, 0, 1, 0, 0, 0, 2, 0x80, 0x34, 0x12, 0xBC, 0x9A, 0x78, 0x56]
        );
        assert_eq!(read(&bytes, BlockSize::MIN)[0], range);
        for (len_blocks, unwritten, pblk) in
            [(0, false, 1), (32_768, true, 1), (32_769, false, 1), (1, false, 1 << 48)]
        {
            let bad =
                Record::AddRange { ino: Ino(1), lblk: Lblk(0), len_blocks, unwritten, pblk: Pblk(pblk) };
            assert_eq!(Writer::new(BlockSize::MIN).push(&bad), Err(RecordError::Invalid));
        }
    }

    proptest! {
        #[test]
        fn decoding_any_bytes_does_not_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 0..2048),
            tags in prop::collection::vec((1u16..10, 0u16..300), 0..8),
            headed: bool,
        ) {
            let mut at = 0;
            if headed && bytes.len() >= 12 {
                put(&mut bytes, 0, &[9, 0, 8, 0, 0, 0, 0, 0, 7, 0, 0, 0]);
                at = 12;
            }
            for (tag, len) in tags {
                if at + 4 <= bytes.len() {
                    put(&mut bytes, at, &tag.to_le_bytes());
                    put(&mut bytes, at + 2, &len.to_le_bytes());
                    at += 4 + usize::from(len);
                }
            }
            prop_assert!(records(&bytes).count() <= bytes.len() / 4 + 1);
            let _ = scan(&bytes);
        }

        #[test]
        fn any_sequence_of_records_comes_back(
            sizes in prop::collection::vec((128usize..900, any::<u32>()), 0..40),
        ) {
            let body = [0x77; 900];
            let mut expected = vec![HEAD];
            expected.extend(sizes.iter().map(|&(len, ino)| Record::Inode { ino: Ino(ino), raw: &body[..len] }));
            let bytes = commit(&expected);
            prop_assert_eq!(bytes.len() % 1024, 0);
            let all = read(&bytes, BlockSize::MIN);
            prop_assert_eq!(scan(&bytes), Ok(all.len() as u64));
            let kept: Vec<_> =
                all.into_iter().filter(|r| !matches!(r, Record::Pad | Record::Tail { .. })).collect();
            prop_assert_eq!(kept, expected);
        }
    }
}
