//! Listing blocks of entries one after the other: linear and inline directories, and indexed ones with an
//! unusable index.
//!
//! Positions are byte offsets. A position inside an entry means the next entry: every block is read from its
//! start.

use std::ops::ControlFlow;

use extant_base::{CorruptAt, Ino, Lblk, Malformed};
use extant_buffer::ReadFault;
use extant_ondisk::dirent::{DirFormat, Entry, min_rec_len};
use extant_ondisk::filetype::FileType;
use extant_ondisk::inline_data::InlineDir;

use crate::lookup::Readahead;
use crate::{Cursor, Dir, DirBlocks, DirEntry};

/// The callbacks and the start of a listing.
pub(crate) struct ListSink<'a> {
    pub(crate) from: Cursor,
    /// The directory.
    ino: Ino,
    each: &'a mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    damage: &'a mut dyn FnMut(ReadFault),
    /// The first fault is held until something could be read. If nothing can be read, it is the result.
    first_fault: Option<ReadFault>,
    is_readable: bool,
}

impl<'a> ListSink<'a> {
    pub(crate) fn new(
        from: Cursor,
        ino: Ino,
        each: &'a mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
        damage: &'a mut dyn FnMut(ReadFault),
    ) -> Self {
        // A listing that continues has read something before.
        Self { from, ino, each, damage, first_fault: None, is_readable: from != Cursor::START }
    }

    /// Returns the entry at position `at`, unless that is before the listing's start.
    pub(crate) fn entry(
        &mut self,
        at: u64,
        next: u64,
        ino: Ino,
        kind: FileType,
        name: &[u8],
    ) -> ControlFlow<()> {
        if at < self.from.0 {
            return ControlFlow::Continue(());
        }
        let kind = Some(kind).filter(|kind| *kind != FileType::Unknown);
        (self.each)(DirEntry { ino, kind, name, next: Cursor(next) })
    }

    pub(crate) fn fault(&mut self, fault: ReadFault) {
        if self.is_readable || self.first_fault.is_some() {
            (self.damage)(fault);
        } else {
            self.first_fault = Some(fault);
        }
    }

    /// Reports that the entry at position `at` is a duplicate. Both are listed, but a copy of the directory
    /// can hold only one.
    pub(crate) fn duplicate(&mut self, at: u64, ino: Ino) {
        if at >= self.from.0 {
            let rule = "no other entry may have the same name (the entry's inode)";
            let fact = Malformed::new("directory entry", rule, ino.0);
            self.fault(ReadFault::corrupt(CorruptAt::ino(self.ino), fact));
        }
    }

    pub(crate) fn readable(&mut self) {
        self.is_readable = true;
        if let Some(fault) = self.first_fault.take() {
            (self.damage)(fault);
        }
    }

    pub(crate) fn finish(self) -> Result<(), ReadFault> {
        self.first_fault.map_or(Ok(()), Err)
    }
}

/// The damage to report for a name that cannot be in a path, and is left out.
fn not_plain() -> Malformed {
    Malformed::new("directory entry", "a name must have no slash and no NUL", 0u8)
}

/// The position of a run of entries: "." and ".." are the first two entries of a directory's first block, and
/// are allowed nowhere else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunPosition {
    /// The entries of block 0.
    First,
    /// Those of a leaf, of any other block, or of an inline region.
    Later,
}

impl RunPosition {
    /// Returns an error for an entry that is left out: its name cannot be in a path, or it is a misplaced "."
    /// or "..". The caller reports it as damage, so that nothing is left out silently.
    pub(crate) fn judge(self, index: usize, entry: &Entry<'_>, is_plain: bool) -> Result<(), Malformed> {
        if !is_plain {
            return Err(not_plain());
        }
        let in_place = match (self, index) {
            (Self::First, 0) => entry.name == b".",
            (Self::First, 1) => entry.name == b"..",
            _ => false,
        };
        let rule = "\".\" and \"..\" must be the first two entries and no others (the entry's inode)";
        Malformed::unless(!entry.is_dot_or_dotdot() || in_place, "directory entry", rule, entry.ino.0)
    }
}

impl Dir<'_> {
    pub(crate) fn list_linear(
        &self,
        format: &DirFormat,
        blocks: &dyn DirBlocks,
        sink: &mut ListSink<'_>,
    ) -> ControlFlow<()> {
        let log2 = format.block_size.log2();
        let first = u32::try_from(sink.from.0 >> log2).unwrap_or(u32::MAX);
        let mut readahead = Readahead::default();
        let (mut next, mut in_hole) = (first, false);
        while next < blocks.len() {
            let lblk = Lblk(next);
            next += 1;
            readahead.at(blocks, lblk);
            let was_in_hole = std::mem::take(&mut in_hole);
            let block = match self.block_of_entries(blocks, lblk) {
                Ok(Some(block)) => block,
                Ok(None) => {
                    // A run of holes is one fault, however long.
                    if !self.is_indexed() && !was_in_hole {
                        sink.fault(self.hole(lblk));
                    }
                    in_hole = true;
                    next = lblk.0.saturating_add(blocks.hole_len(lblk).max(1));
                    continue;
                }
                Err(fault) => {
                    sink.fault(fault);
                    continue;
                }
            };
            sink.readable();
            let start = u64::from(lblk.0) << log2;
            let run = if lblk.0 == 0 { RunPosition::First } else { RunPosition::Later };
            self.list_run(format, (run, &block), start, sink, &|fact| self.corrupt(&block, lblk, fact))?;
        }
        ControlFlow::Continue(())
    }

    /// Positions are the kernel's: "." and ".." are where a block would have them, so the entries come 20
    /// bytes later than stored.
    pub(crate) fn list_inline(
        &self,
        format: &DirFormat,
        inline: &InlineDir<'_>,
        sink: &mut ListSink<'_>,
    ) -> ControlFlow<()> {
        let dir = if format.filetype { FileType::Directory } else { FileType::Unknown };
        let dotdot_at = min_rec_len(1, false) as u64;
        let entries_at = dotdot_at + min_rec_len(2, false) as u64;
        sink.entry(0, dotdot_at, self.ino, dir, b".")?;
        sink.entry(dotdot_at, entries_at, inline.parent, dir, b"..")?;
        sink.readable();
        let [(first_at, _), _] = inline.regions();
        for (at, region) in inline.regions() {
            let start = entries_at + (at - first_at) as u64;
            let placed = |fact| ReadFault::corrupt(CorruptAt::ino(self.ino), fact);
            self.list_run(format, (RunPosition::Later, region), start, sink, &placed)?;
        }
        ControlFlow::Continue(())
    }

    /// Returns a run of entries that starts at position `start`.
    fn list_run(
        &self,
        format: &DirFormat,
        (run, bytes): (RunPosition, &[u8]),
        start: u64,
        sink: &mut ListSink<'_>,
        placed: &dyn Fn(Malformed) -> ReadFault,
    ) -> ControlFlow<()> {
        for (index, entry) in format.entries(bytes).enumerate() {
            match entry {
                Ok(entry) if !entry.is_used() => {}
                Ok(entry) => match run.judge(index, &entry, self.is_plain_name(&entry)) {
                    Ok(()) => {
                        let at = start + entry.offset as u64;
                        let next = at + entry.rec_len as u64;
                        sink.entry(at, next, entry.ino, entry.file_type, entry.name)?;
                    }
                    Err(fact) => sink.fault(placed(fact)),
                },
                Err(fact) => sink.fault(placed(fact)),
            }
        }
        ControlFlow::Continue(())
    }
}
