//! Compares the bytes of files: their maps, then the runs of data that both map or only one does.
//!
//! ```text
//!  A: data      hole  data          pieces: [0, 4) both, [4, 6) neither, [6, 9) both, [9, 12) B only: zeros?
//!  B: data      hole  data data
//! ```
//!
//! Pieces that both sides have on a device are sorted by their address there. Neighbours, also of different
//! files, are read together.
//!
//! Invariants
//! 1. The offset of the first difference of a file does not depend on the order of its pieces: a piece is
//!    left out only after a difference before it was found.
//! 2. A pair of files is finished with its last piece.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use extant_volume::{Fault, Refusal};

use super::found::{Found, Pair};
use super::side::{Node, Reader, Run, Side};
use super::sides::Sides;
use super::{Cause, Which};

/// Bytes per read; two buffers of this size fit into the cache of a core.
const PIECE_BYTES: u64 = 512 << 10;
/// Maximum number of bytes between two pieces that are read and not compared, instead of starting another
/// read.
const GAP_BYTES_MAX: u64 = 16 << 10;
/// Pieces and bytes of a chunk.
const CHUNK_PIECES: usize = 1024;
const CHUNK_BYTES: u64 = 8 << 20;
/// Pieces and bytes that are gathered before they are sorted.
const GATHERED_PIECES: usize = 16 << 10;
const GATHERED_BYTES: u64 = 512 << 20;
/// Runs of a map that are looked up at a time.
const RUNS_MAX: usize = 4096;

/// Where the bytes of a piece are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// They are zeros.
    Hole,
    /// On the device, from this byte on.
    Device(u64),
    /// To be read through the file.
    File,
}

/// A part of two files.
struct Piece {
    pair: Arc<Pair>,
    offset: u64,
    len: u64,
    a: Place,
    b: Place,
}

impl Piece {
    /// The addresses on both devices.
    fn addresses(&self) -> Option<(u64, u64)> {
        match (self.a, self.b) {
            (Place::Device(a), Place::Device(b)) => Some((a, b)),
            _ => None,
        }
    }

    /// Whether the result can no longer change.
    fn is_decided(&self) -> bool {
        self.offset > self.pair.first.load(Ordering::Relaxed) || self.pair.failed.load(Ordering::Relaxed)
    }
}

/// Pieces that one thread compares.
pub(super) struct Chunk(Vec<Piece>);

/// Pieces that wait to be sorted.
#[derive(Default)]
pub(super) struct Pieces {
    pieces: Vec<Piece>,
    bytes: u64,
}

impl Pieces {
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.pieces.len() >= GATHERED_PIECES || self.bytes >= GATHERED_BYTES
    }

    fn push(&mut self, piece: Piece) {
        self.bytes += piece.len;
        self.pieces.push(piece);
    }

    /// All pieces, sorted by the address on the first device, in chunks.
    pub(super) fn take_chunks(&mut self) -> Vec<Chunk> {
        let mut pieces = std::mem::take(&mut self.pieces);
        self.bytes = 0;
        pieces.sort_by_key(|piece| piece.addresses().map_or(u64::MAX, |(a, _)| a));
        let (mut chunks, mut chunk, mut bytes) = (Vec::new(), Vec::new(), 0);
        for piece in pieces {
            bytes += piece.len;
            chunk.push(piece);
            if bytes >= CHUNK_BYTES || chunk.len() >= CHUNK_PIECES {
                chunks.push(Chunk(std::mem::take(&mut chunk)));
                bytes = 0;
            }
        }
        if !chunk.is_empty() {
            chunks.push(Chunk(chunk));
        }
        chunks
    }
}

/// The runs of data of a file, looked up in parts.
struct Runs<'s> {
    side: &'s Side,
    node: Node,
    ready: VecDeque<Run>,
    /// Where the next lookup begins; the largest number after the last.
    from: u64,
}

impl<'s> Runs<'s> {
    fn new(side: &'s Side, node: &Node) -> Self {
        Self { side, node: node.clone(), ready: VecDeque::new(), from: 0 }
    }

    fn next(&mut self) -> Result<Option<Run>, Fault> {
        while self.ready.is_empty() && self.from != u64::MAX {
            let mut runs = Vec::new();
            self.from = self.side.runs(&self.node, self.from, RUNS_MAX, &mut runs)?;
            self.ready.extend(runs);
        }
        Ok(self.ready.pop_front())
    }

    /// The next run, widened to multiples of `unit`, with all runs that it then touches. `held`: a run that
    /// was taken too early.
    fn next_wide(
        &mut self,
        unit: u64,
        size: u64,
        held: &mut Option<Run>,
    ) -> Result<Option<(u64, u64)>, Fault> {
        let wide = |run: &Run| (run.start - run.start % unit, run.end.next_multiple_of(unit).min(size));
        let Some(first) = held.take().map_or_else(|| self.next(), |run| Ok(Some(run)))? else {
            return Ok(None);
        };
        let (start, mut end) = wide(&first);
        while let Some(run) = self.next()? {
            let (next_start, next_end) = wide(&run);
            if next_start > end {
                *held = Some(run);
                break;
            }
            end = end.max(next_end);
        }
        Ok(Some((start, end)))
    }
}

/// Splits a pair of files into pieces.
pub(super) struct Parts<'s> {
    pair: Arc<Pair>,
    a: Runs<'s>,
    b: Runs<'s>,
    /// The runs at which it was interrupted.
    next: Option<(Option<Run>, Option<Run>)>,
    at: u64,
}

/// The state of one side of a piece: whether it has data there, and where that changes.
fn state(run: Option<Run>, at: u64) -> (Place, u64) {
    match run {
        None => (Place::Hole, u64::MAX),
        Some(run) if at < run.start => (Place::Hole, run.start),
        Some(run) => match run.physical {
            Some(physical) => (Place::Device(physical + (at - run.start)), run.end),
            None => (Place::File, run.end),
        },
    }
}

impl Parts<'_> {
    /// Adds some pieces; returns whether more follow.
    pub(super) fn add_to(&mut self, pieces: &mut Pieces, found: &mut Found) -> bool {
        let (mut run_a, mut run_b) = match self.next.take() {
            Some(runs) => runs,
            None => match (self.next_run(Which::A, found), self.next_run(Which::B, found)) {
                (Some(a), Some(b)) => (a, b),
                _ => return false,
            },
        };
        while run_a.is_some() || run_b.is_some() {
            if pieces.is_full() {
                self.next = Some((run_a, run_b));
                return true;
            }
            let first = [run_a, run_b].iter().flatten().map(|run| run.start).min().unwrap_or(self.at);
            self.at = self.at.max(first);
            let ((a, end_a), (b, end_b)) = (state(run_a, self.at), state(run_b, self.at));
            let end = end_a.min(end_b).min(self.at.saturating_add(PIECE_BYTES));
            let (offset, len) = (self.at, end - self.at);
            pieces.push(Piece { pair: Arc::clone(&self.pair), offset, len, a, b });
            self.at = end;
            for (which, run) in [(Which::A, &mut run_a), (Which::B, &mut run_b)] {
                if run.is_some_and(|run| run.end <= end) {
                    match self.next_run(which, found) {
                        Some(next) => *run = next,
                        None => return false,
                    }
                }
            }
        }
        false
    }

    /// The next run of a side. `None`: the map cannot be read, which is reported.
    fn next_run(&mut self, which: Which, found: &mut Found) -> Option<Option<Run>> {
        let next = match which {
            Which::A => self.a.next(),
            Which::B => self.b.next(),
        };
        match next {
            Ok(run) => Some(run),
            Err(fault) => {
                self.pair.fail(which, Cause::Image(fault.into()), found);
                None
            }
        }
    }

    /// Ends the splitting. The pair is finished here if it has no pieces.
    pub(super) fn finish(self, found: &mut Found) {
        self.pair.release(found);
    }
}

/// Compares contents, for one thread.
pub(super) struct Contents<'s> {
    sides: &'s Sides<'s>,
    readers: [Reader<'s>; 2],
    buffers: [Vec<u8>; 2],
}

impl<'s> Contents<'s> {
    pub(super) fn new(sides: &'s Sides<'_>) -> Self {
        let readers = [sides.a.reader(), sides.b.reader()];
        Self { sides, readers, buffers: [vec![0; PIECE_BYTES as usize], vec![0; PIECE_BYTES as usize]] }
    }

    /// Begins the comparison of two files of one size. `has_one_map`: their maps are equal on disk.
    pub(super) fn parts(&self, pair: Pair, has_one_map: bool, found: &mut Found) -> Parts<'s> {
        let side_b = if has_one_map { self.sides.a } else { self.sides.b };
        let (a, b) = (Runs::new(self.sides.a, &pair.a.0), Runs::new(side_b, &pair.b.0));
        for (which, node) in [(Which::A, &pair.a.0), (Which::B, &pair.b.0)] {
            let is_comparable = pair.a.0.is_encrypted()
                && pair.b.0.is_encrypted()
                && [self.sides.a, self.sides.b].iter().all(|side| side.is_plain());
            if node.is_encrypted() && !is_comparable {
                pair.fail(which, Cause::Image(Fault::Refused(Refusal::NeedsKey).into()), found);
            }
        }
        Parts { pair: Arc::new(pair), a, b, next: None, at: 0 }
    }

    /// Whether the holes of two files of one size are at other places, in units of the larger block size.
    pub(super) fn has_other_holes(&self, pair: &Pair) -> Result<bool, (Which, Fault)> {
        let unit = self.sides.a.block_bytes().max(self.sides.b.block_bytes());
        let mut a = Runs::new(self.sides.a, &pair.a.0);
        let mut b = Runs::new(self.sides.b, &pair.b.0);
        let size = pair.a.1.size;
        let (mut held_a, mut held_b) = (None, None);
        loop {
            let run_a = a.next_wide(unit, size, &mut held_a).map_err(|fault| (Which::A, fault))?;
            let run_b = b.next_wide(unit, size, &mut held_b).map_err(|fault| (Which::B, fault))?;
            if run_a != run_b {
                return Ok(true);
            }
            if run_a.is_none() {
                return Ok(false);
            }
        }
    }

    pub(super) fn compare(&mut self, chunk: Chunk, found: &mut Found) {
        let pieces = chunk.0;
        let mut at = 0;
        while at < pieces.len() {
            let end = at + neighbours(&pieces[at..]);
            let before = found.diff.bytes;
            self.compare_neighbours(&pieces[at..end], found);
            self.sides.observer.bytes(found.diff.bytes - before);
            at = end;
        }
        for piece in pieces {
            piece.pair.release(found);
        }
    }

    /// Compares pieces that are neighbours on both devices.
    fn compare_neighbours(&mut self, pieces: &[Piece], found: &mut Found) {
        if let ([first, ..], [.., last]) = (pieces, pieces)
            && pieces.len() > 1
            && let (Some((a, b)), Some((last_a, _))) = (first.addresses(), last.addresses())
        {
            let len = (last_a + last.len - a) as usize;
            let [buffer_a, buffer_b] = &mut self.buffers;
            let (buffer_a, buffer_b) = (&mut buffer_a[..len], &mut buffer_b[..len]);
            let are_read = self.sides.is_one_file && a == b
                || (self.sides.a.read_device(a, buffer_a) && self.sides.b.read_device(b, buffer_b));
            let is_equal = |piece: &Piece| {
                let from = piece.addresses().map_or(0, |(at, _)| (at - a) as usize);
                let range = from..from + piece.len as usize;
                buffer_a[range.clone()] == buffer_b[range]
            };
            let is_one_place = self.sides.is_one_file && a == b;
            if are_read && (is_one_place || buffer_a == buffer_b || pieces.iter().all(is_equal)) {
                found.diff.bytes += pieces.iter().map(|piece| piece.len).sum::<u64>();
                return;
            }
        }
        for piece in pieces {
            self.compare_piece(piece, found);
        }
    }

    fn compare_piece(&mut self, piece: &Piece, found: &mut Found) {
        if piece.is_decided() {
            return;
        }
        if self.sides.is_one_file && piece.addresses().is_some_and(|(a, b)| a == b) {
            found.diff.bytes += piece.len;
            return;
        }
        let len = piece.len as usize; // at most PIECE_BYTES
        let sides = [(Which::A, piece.a, &piece.pair.a.0), (Which::B, piece.b, &piece.pair.b.0)];
        for ((which, place, node), (reader, buffer)) in
            sides.into_iter().zip(self.readers.iter_mut().zip(&mut self.buffers))
        {
            let physical = match place {
                Place::Hole => {
                    buffer[..len].fill(0);
                    continue;
                }
                Place::Device(at) => Some(at),
                Place::File => None,
            };
            if let Err(cause) = reader.read(node, piece.offset, physical, &mut buffer[..len]) {
                return piece.pair.fail(which, cause, found);
            }
        }
        found.diff.bytes += piece.len;
        let (a, b) = (&self.buffers[0][..len], &self.buffers[1][..len]);
        if a != b {
            let within = a.iter().zip(b).position(|(one, other)| one != other).unwrap_or(0);
            piece.pair.first.fetch_min(piece.offset + within as u64, Ordering::Relaxed);
        }
    }
}

/// The number of pieces from the first on that one read of both devices covers.
fn neighbours(pieces: &[Piece]) -> usize {
    let Some((a, b)) = pieces[0].addresses().filter(|_| !pieces[0].is_decided()) else { return 1 };
    let mut end = a.saturating_add(pieces[0].len);
    let mut is_neighbour = |piece: &&Piece| {
        let Some((next_a, next_b)) = piece.addresses() else { return false };
        let gap = next_a.checked_sub(end);
        let joins = gap.is_some_and(|gap| gap <= GAP_BYTES_MAX)
            && next_b.checked_sub(b) == Some(next_a - a)
            && next_a.saturating_add(piece.len) - a <= PIECE_BYTES
            && !piece.is_decided();
        end = if joins { next_a + piece.len } else { end };
        joins
    };
    1 + pieces[1..].iter().take_while(|piece| is_neighbour(piece)).count()
}
