//! Files in memory that give the right answers.
//!
//! Owns: bytes, sizes and refusals; the bounds of holes. Does **not** own: which blocks are written
//! (`model/blocks.rs`).
//!
//! Invariants
//! 1. The model keeps only pieces that were written: a file of 16 TiB with one byte takes one piece.
//! 2. It keeps no byte after the size, so that a file that grows shows zeros.
//! 3. A refused operation has changed nothing.
//! 4. A copy of a model takes one pointer per piece.
//!
//! Source: the manual pages of the calls; fallocate(2), lseek(2); ext4's limits from the kernel's
//! documentation (filesystems/ext4). `tests/data.rs` compares all of it with the kernel.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::{Answer, DataFs, Fallocate, Op, Whence, byte_at};
use crate::errno::Errno;

mod blocks;

use blocks::Blocks;

/// Bytes of a piece: the smallest block, so that collapse and insert move whole pieces.
const PIECE: u64 = 1024;
/// The largest position that a call accepts.
const POS_MAX: u64 = i64::MAX.unsigned_abs();

/// The properties of a file system on which the answers depend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a block, 1024 to 4096.
    pub block_size: u64,
    /// Bytes of a cluster; the same as a block without `bigalloc`.
    pub cluster_size: u64,
    /// Feature `extent`: files have extent trees instead of block maps.
    pub extents: bool,
    /// Feature `inline_data`: a small file has no map, and has the smaller maximum size of files without
    /// extents while it lies in its inode. The generator avoids sizes where this shows.
    pub inline_data: bool,
    /// Whether the device itself can write zeros and unmap. Otherwise [`Fallocate::WriteZeroes`] is refused.
    /// Loop devices cannot.
    pub write_zeroes: bool,
    /// Whether the file system may zero small unwritten extents instead of splitting them, as the kernel does
    /// where it writes in place (`nodelalloc`, `dioread_lock`, `data=journal`). [`Op::Map`] is then judged by
    /// bytes only.
    pub fills: bool,
}

impl Default for Limits {
    /// The defaults of mke2fs for disks that are not small, on a loop device.
    fn default() -> Self {
        Self {
            block_size: 4096,
            cluster_size: 4096,
            extents: true,
            inline_data: false,
            write_zeroes: false,
            fills: false,
        }
    }
}

impl Limits {
    /// The maximum size that the file system supports, in bytes: 2^32 - 1 blocks.
    #[must_use]
    pub fn max_size(&self) -> u64 {
        u64::from(u32::MAX) * self.block_size
    }

    /// The maximum size of a file without extents, in bytes: the reach of three levels of indirect blocks.
    #[must_use]
    pub fn max_bitmap_size(&self) -> u64 {
        let n = self.block_size / 4;
        (12 + n + n * n + n * n * n) * self.block_size
    }

    /// The maximum size of a file with these limits, in bytes.
    #[must_use]
    pub fn max_file_size(&self) -> u64 {
        if self.extents { self.max_size() } else { self.max_size().min(self.max_bitmap_size()) }
    }
}

/// Files in memory; see the rules of [`data`](super).
#[derive(Debug, Clone, Default)]
pub struct Model {
    limits: Limits,
    files: BTreeMap<u8, File>,
}

#[derive(Debug, Clone, Default)]
struct File {
    size: u64,
    /// Keys are offsets divided by [`PIECE`]; missing pieces are zeros.
    pieces: BTreeMap<u64, Arc<[u8; PIECE as usize]>>,
    blocks: Blocks,
}

/// The answer that a subject should give.
pub type Expected = Result<Answer, Errno>;

impl File {
    /// For each piece of a range: its number, the bytes of it in the range, and the position of the first of
    /// them.
    fn pieces_of(range: Range<u64>) -> impl Iterator<Item = (u64, Range<usize>, u64)> {
        let mut pos = range.start;
        std::iter::from_fn(move || {
            (pos < range.end).then(|| {
                let (number, from) = (pos / PIECE, pos % PIECE);
                let n = (PIECE - from).min(range.end - pos);
                let first = pos;
                pos += n;
                (number, from as usize..(from + n) as usize, first)
            })
        })
    }

    fn write(&mut self, pos: u64, len: u64, seed: u32) {
        for (number, within, first) in Self::pieces_of(pos..pos + len) {
            let piece = self.pieces.entry(number).or_insert_with(|| Arc::new([0; PIECE as usize]));
            let bytes = &mut Arc::make_mut(piece)[within];
            for (byte, pos) in bytes.iter_mut().zip(first..) {
                *byte = byte_at(seed, pos);
            }
        }
        self.size = self.size.max(pos + len);
    }

    fn zero(&mut self, range: Range<u64>) {
        // Removes whole pieces; the pieces at both ends stay in part.
        let (first, end) = (range.start.div_ceil(PIECE), range.end / PIECE);
        if first < end {
            let mut tail = self.pieces.split_off(&first);
            self.pieces.append(&mut tail.split_off(&end));
        }
        let edges = [range.start / PIECE, range.end / PIECE];
        for number in edges {
            let start = (number * PIECE).max(range.start);
            let end = ((number + 1) * PIECE).min(range.end);
            if let Some(piece) = self.pieces.get_mut(&number)
                && start < end
            {
                let base = number * PIECE;
                Arc::make_mut(piece)[(start - base) as usize..(end - base) as usize].fill(0);
            }
        }
    }

    fn truncate(&mut self, size: u64) {
        if size < self.size {
            self.zero(size..self.size.next_multiple_of(PIECE));
        }
        self.size = size;
    }

    fn read(&self, pos: u64, len: u64) -> Vec<u8> {
        let end = pos.saturating_add(len).min(self.size);
        let mut bytes = Vec::new();
        for (number, within, _) in Self::pieces_of(pos.min(end)..end) {
            match self.pieces.get(&number) {
                Some(piece) => bytes.extend_from_slice(&piece[within]),
                None => bytes.resize(bytes.len() + within.len(), 0),
            }
        }
        bytes
    }

    /// Renumbers the pieces from `from` on.
    fn shift(&mut self, from: u64, by: impl Fn(u64) -> u64) {
        let moved = self.pieces.split_off(&(from / PIECE));
        self.pieces.extend(moved.into_iter().map(|(number, piece)| (by(number), piece)));
    }

    /// The first byte in the range that is not 0.
    fn first_byte(&self, range: Range<u64>) -> Option<u64> {
        let whole = range.start / PIECE..range.end.div_ceil(PIECE).max(range.start / PIECE);
        self.pieces.range(whole).find_map(|(number, piece)| {
            let base = number * PIECE;
            let place = |(n, byte): (usize, &u8)| {
                let pos = base + n as u64;
                (*byte != 0 && range.contains(&pos)).then_some(pos)
            };
            piece.iter().enumerate().find_map(place)
        })
    }
}

impl Model {
    /// A model without files.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, files: BTreeMap::new() }
    }

    /// The limits that the answers depend on.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The numbers of the existing files.
    pub fn files(&self) -> impl Iterator<Item = u8> {
        self.files.keys().copied()
    }

    /// The size of a file in bytes; `None` if it does not exist.
    #[must_use]
    pub fn size(&self, file: u8) -> Option<u64> {
        Some(self.files.get(&file)?.size)
    }

    /// Where bytes other than 0 may be: ranges of whole pieces, in order, cut off at the size.
    #[must_use]
    pub fn ranges(&self, file: u8) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let Some(file) = self.files.get(&file) else { return ranges };
        for number in file.pieces.keys() {
            let (start, end) = (number * PIECE, ((number + 1) * PIECE).min(file.size));
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ if start < end => ranges.push(start..end),
                _ => {}
            }
        }
        ranges
    }

    fn file(&self, file: u8) -> Result<&File, Errno> {
        self.files.get(&file).ok_or(Errno::ENOENT)
    }

    fn edit(&mut self, file: u8) -> Result<&mut File, Errno> {
        self.files.get_mut(&file).ok_or(Errno::ENOENT)
    }

    fn write(&mut self, file: u8, pos: u64, len: u64, seed: u32) -> Result<Answer, Errno> {
        let (max, block_size) = (self.limits.max_file_size(), self.limits.block_size);
        let file = self.edit(file)?;
        if pos > POS_MAX || pos + len > POS_MAX {
            return Err(Errno::EINVAL);
        }
        if len == 0 {
            return Ok(Answer::Count(0));
        }
        if pos >= max {
            return Err(Errno::EFBIG);
        }
        let len = len.min(max - pos);
        file.write(pos, len, seed);
        file.blocks.write(pos..pos + len, block_size);
        Ok(Answer::Count(len))
    }

    fn read(&self, file: u8, pos: u64, len: u64) -> Result<Answer, Errno> {
        let file = self.file(file)?;
        if pos > POS_MAX || pos + len > POS_MAX {
            return Err(Errno::EINVAL);
        }
        Ok(Answer::Bytes(file.read(pos, len)))
    }

    fn truncate(&mut self, file: u8, size: u64) -> Result<Answer, Errno> {
        let (max, block_size) = (self.limits.max_file_size(), self.limits.block_size);
        let file = self.edit(file)?;
        if size > POS_MAX {
            return Err(Errno::EINVAL);
        }
        if size > max {
            return Err(Errno::EFBIG);
        }
        if size <= file.size {
            file.blocks.truncate(size, block_size);
        }
        file.truncate(size);
        Ok(Answer::Done)
    }

    fn fallocate(&mut self, file: u8, mode: Fallocate, pos: u64, len: u64) -> Result<Answer, Errno> {
        let limits = self.limits;
        let file = self.edit(file)?;
        if pos > POS_MAX || len > POS_MAX || len == 0 {
            return Err(Errno::EINVAL);
        }
        let end = pos + len;
        if end > limits.max_size() {
            return Err(Errno::EFBIG);
        }
        let is_known = match mode {
            Fallocate::Punch => true,
            Fallocate::Unshare => false,
            Fallocate::WriteZeroes => limits.extents && limits.write_zeroes,
            _ => limits.extents,
        };
        if !is_known {
            return Err(Errno::EOPNOTSUPP);
        }
        let is_aligned = (pos | len).is_multiple_of(limits.cluster_size);
        let (range, block_size) = (pos..end, limits.block_size);
        let inside = pos.min(file.size)..end.min(file.size);
        match mode {
            Fallocate::Unshare => {}
            Fallocate::Keep => file.blocks.reserve(range, block_size),
            Fallocate::Reserve => {
                file.blocks.reserve(range, block_size);
                file.size = file.size.max(end);
            }
            Fallocate::Punch => {
                file.zero(inside);
                file.blocks.punch(range, file.size, block_size);
            }
            Fallocate::ZeroKeep => {
                file.zero(inside);
                file.blocks.zero(range, block_size);
            }
            Fallocate::Zero | Fallocate::WriteZeroes => {
                file.zero(inside);
                match mode {
                    Fallocate::Zero => file.blocks.zero(range, block_size),
                    _ => file.blocks.write(range, block_size),
                }
                file.size = file.size.max(end);
            }
            Fallocate::Collapse => {
                // A collapse that reaches the end would be a truncate.
                if !is_aligned || end >= file.size {
                    return Err(Errno::EINVAL);
                }
                file.zero(range.clone());
                file.shift(end, |number| number - len / PIECE);
                file.blocks.collapse(range, block_size);
                file.size -= len;
            }
            Fallocate::Insert => {
                if !is_aligned {
                    return Err(Errno::EINVAL);
                }
                if len > limits.max_size() - file.size {
                    return Err(Errno::EFBIG);
                }
                if pos >= file.size {
                    return Err(Errno::EINVAL);
                }
                file.shift(pos, |number| number + len / PIECE);
                file.blocks.insert(range, block_size);
                file.size += len;
            }
        }
        Ok(Answer::Done)
    }

    /// Answers as a file system whose blocks are the pieces: one of several correct answers.
    fn seek(&self, file: u8, whence: Whence, pos: u64) -> Result<Answer, Errno> {
        let size = self.file(file)?.size;
        if pos >= size {
            return Err(Errno::ENXIO);
        }
        let within = self.ranges(file).into_iter().find(|range| pos < range.end);
        match (whence, within) {
            (Whence::Data, Some(range)) => Ok(Answer::Place(range.start.max(pos))),
            (Whence::Data, None) => Err(Errno::ENXIO),
            (Whence::Hole, Some(range)) if range.contains(&pos) => Ok(Answer::Place(range.end)),
            (Whence::Hole, _) => Ok(Answer::Place(pos)),
        }
    }

    /// Judges the answer of a subject. This model has done the operation already, and answered `expected`.
    ///
    /// For seeks, and for maps where [`Limits`] leave them open, it requires what holds for every file
    /// system: a reported hole has only zeros, results lie between the requested position and the size, and
    /// nothing is found at or after the size.
    ///
    /// # Errors
    /// Describes what is wrong.
    pub fn judge(&self, op: &Op, expected: &Expected, answer: &Expected) -> Result<(), String> {
        let text = |answer: &Expected| answer.as_ref().map_or_else(Errno::to_string, |ok| format!("{ok:?}"));
        let parted =
            || Err(format!("{op:?}: {} is expected, the answer is {}", text(expected), text(answer)));
        let file = |file: u8| self.files.get(&file);
        match (op, answer) {
            (Op::Read { pos, .. }, Ok(Answer::Bytes(got))) => {
                let Ok(Answer::Bytes(wanted)) = expected else { return parted() };
                let Some(n) = wanted.iter().zip(got).position(|(wanted, got)| wanted != got) else {
                    return if wanted.len() == got.len() { Ok(()) } else { parted() };
                };
                let n_wrong = wanted.iter().zip(got).filter(|(wanted, got)| wanted != got).count();
                let (wanted, got) = (wanted[n], got[n]);
                let pos = pos + n as u64;
                Err(format!(
                    "{op:?}: the byte at {pos} is {wanted:#04x}, the answer is {got:#04x}; {n_wrong} bytes differ"
                ))
            }
            (&Op::Seek { file: number, whence, pos }, answer) => {
                let Some(file) = file(number).filter(|file| pos < file.size) else {
                    return if expected == answer { Ok(()) } else { parted() };
                };
                let byte_in = |range| file.first_byte(range);
                match (whence, answer) {
                    (Whence::Data, Ok(Answer::Place(place))) if (pos..file.size).contains(place) => {
                        no_byte(op, byte_in(pos..*place))
                    }
                    (Whence::Data, Err(Errno::ENXIO)) => no_byte(op, byte_in(pos..file.size)),
                    // The end of the file is the last hole. A place before it must be in a hole.
                    (Whence::Hole, Ok(Answer::Place(place))) if (pos..=file.size).contains(place) => {
                        no_byte(op, byte_in(*place..(place + 1).min(file.size)))
                    }
                    _ => parted(),
                }
            }
            // How long a file stays in its inode depends on its attributes.
            (&Op::Map { file: number }, Ok(Answer::Ranges(ranges)))
                if self.limits.fills || self.limits.inline_data =>
            {
                let Some(file) = file(number) else { return parted() };
                let mut pos = 0;
                for range in ranges {
                    if range.start < pos || range.end <= range.start || range.end > file.size {
                        return parted();
                    }
                    no_byte(op, file.first_byte(pos..range.start))?;
                    pos = range.end;
                }
                no_byte(op, file.first_byte(pos..file.size))
            }
            _ if expected == answer => Ok(()),
            _ => parted(),
        }
    }
}

fn no_byte(op: &Op, byte: Option<u64>) -> Result<(), String> {
    byte.map_or(Ok(()), |pos| Err(format!("{op:?}: there is a byte at {pos}, in a reported hole")))
}

impl DataFs for Model {
    fn apply(&mut self, op: &Op) -> Result<Answer, Errno> {
        match *op {
            Op::Create { file } => {
                if self.files.contains_key(&file) {
                    return Err(Errno::EEXIST);
                }
                self.files.insert(file, File::default());
                Ok(Answer::Done)
            }
            Op::Unlink { file } => self.files.remove(&file).map(|_| Answer::Done).ok_or(Errno::ENOENT),
            Op::Write { file, pos, len, seed } => self.write(file, pos, len, seed),
            Op::Read { file, pos, len } => self.read(file, pos, len),
            Op::Truncate { file, size } => self.truncate(file, size),
            Op::Fallocate { file, mode, pos, len } => self.fallocate(file, mode, pos, len),
            Op::Seek { file, whence, pos } => self.seek(file, whence, pos),
            Op::Stat { file } => Ok(Answer::Size(self.file(file)?.size)),
            Op::Fsync { file } | Op::Fdatasync { file } => self.file(file).map(|_| Answer::Done),
            Op::Map { file } => {
                let file = self.file(file)?;
                Ok(Answer::Ranges(file.blocks.data(file.size, self.limits.block_size)))
            }
            Op::Reopen => Ok(Answer::Done),
        }
    }
}

#[cfg(test)]
mod tests;
