//! Listing an indexed directory in the order of its names' hashes. (Small directories, too: see
//! [`crate::order`].)
//!
//! ```text
//! leaves in the order of the index:  [0 .. 0x40)  [0x40 .. 0x91]  [0x91, continued .. 0xF0)
//! names of 0x91 may be in two leaves: held until the second is read; all others are returned leaf by leaf
//! ```
//!
//! Splits of leaves do not change the order of names. Memory: the entries of one leaf, and those of one hash
//! if leaves continue it.

use std::ops::ControlFlow;

use extant_base::{Lblk, Malformed};
use extant_buffer::{Buffer, ReadFault};
use extant_ondisk::dirent::DirFormat;
use extant_ondisk::filetype::FileType;
use extant_ondisk::hash::{HashVersion, NameHash};
use extant_ondisk::htree::{DxEntries, DxRoot};

use crate::list::{ListSink, RunPosition};
use crate::order::{Hasher, Item, Source, emit_in_order};
use crate::{Dir, DirBlocks, Format};

/// Adjacent leaves of readahead, at first and at most.
const READAHEAD: std::ops::RangeInclusive<usize> = 4..=64;

/// Minor hashes from here on are for names outside their leaf's range.
const STRAYS_AT: u32 = 0xFFFF_0000;

/// Names of one hash that are held for the next leaf, at most. Only damage or an attack creates more, and
/// they take memory.
const HELD_MAX: usize = 1 << 20;

/// The hashes of an index entry: from `low` (its lowest bit means "continues the leaf before") up to the next
/// entry's.
#[derive(Clone, Copy)]
struct Range {
    low: u32,
    next: Option<u32>,
}

impl Range {
    /// The hash of which the names continue in the next leaf.
    fn continued(self) -> Option<u32> {
        self.next.filter(|next| next & 1 == 1).map(|next| next & !1)
    }

    /// The position of a name with this hash, inside the leaf's range. Names that the index does not lead to
    /// get a position, too, so positions rise from leaf to leaf whatever is on disk.
    fn place(self, hash: NameHash) -> NameHash {
        let low = self.low & !1;
        let high = match self.next {
            None => u32::MAX - 3,
            Some(next) if next & 1 == 1 => next & !1,
            Some(next) => next.saturating_sub(2).max(low),
        };
        match hash.hash {
            h if h < low => NameHash { hash: low, minor: 0 },
            h if h > high => NameHash { hash: high, minor: STRAYS_AT },
            _ => hash,
        }
    }
}

/// The rule on which listing by hash relies: hashes rise, and are equal only if a leaf continues the one
/// before.
fn check_rising(entries: DxEntries<'_>, range: Range) -> Result<(), Malformed> {
    let mut before = range.low & !1;
    let keys = entries.iter().skip(1).map(|entry| entry.hash);
    for key in keys.chain(range.next) {
        let hash = key & !1;
        let holds = hash > before || (hash == before && key & 1 == 1);
        Malformed::unless(holds, "index block", "hashes must rise", key)?;
        before = hash;
    }
    Ok(())
}

/// A listing in progress.
struct Listing<'a, 't> {
    dir: &'a Dir<'a>,
    entries: DirFormat,
    format: &'a Format,
    hasher: Hasher,
    blocks: &'a dyn DirBlocks,
    sink: &'a mut ListSink<'t>,
    /// The hash of the start position.
    from_hash: u32,
    /// Names of the hash that the next leaf continues.
    held: Vec<Item<'static>>,
    /// "." and "..", until they are returned with the first leaf.
    dots: Vec<Item<'static>>,
    /// Index blocks above the current one.
    path: Vec<Lblk>,
    leaves_seen: u32,
    readahead: usize,
}

/// The reason why a directory is not listed by hash.
pub(crate) enum NotByHash {
    /// Nothing is damaged: the hashes need a key.
    Keyed,
    /// The root of the index cannot be read.
    Unreadable,
    /// The root of the index breaks a rule.
    Broken(ReadFault),
}

impl Dir<'_> {
    /// Lists in the order of hashes. An error comes before any entry is returned.
    pub(crate) fn list_indexed(
        &self,
        format: &Format,
        blocks: &dyn DirBlocks,
        sink: &mut ListSink<'_>,
    ) -> Result<ControlFlow<()>, NotByHash> {
        let entries = self.entries_format(format);
        if entries.hash_in_dirent {
            return Err(NotByHash::Keyed);
        }
        let Ok(Some(block)) = blocks.index(Lblk(0)) else { return Err(NotByHash::Unreadable) };
        let broken = |fact| NotByHash::Broken(self.corrupt(&block, Lblk(0), fact));
        let root = format.index.decode_root(&block).map_err(broken)?;
        let whole = Range { low: 0, next: None };
        check_rising(root.entries, whole).map_err(broken)?;
        let version = HashVersion::from_code(root.hash_code, format.unsigned_hash);
        let version = version.filter(|version| *version != HashVersion::SipHash).ok_or(NotByHash::Keyed)?;
        sink.readable();
        let from_hash = ((sink.from.0 >> 32) as u32) << 1;
        let dots = dots_of(&block, &root, entries.filetype);
        let mut listing = Listing {
            dir: self,
            entries,
            format,
            hasher: self.hasher(format, version),
            blocks,
            sink,
            from_hash,
            held: Vec::new(),
            dots,
            path: vec![Lblk(0)],
            leaves_seen: 0,
            readahead: *READAHEAD.start(),
        };
        let listed = listing.below(root.entries, root.levels, whole);
        // Entries may still be held if the last leaf has a continued hash.
        Ok(if listed.is_continue() { listing.emit_leaf(Vec::new(), None) } else { listed })
    }
}

/// "." and ".." as stored in the root, at the kernel's positions.
fn dots_of(block: &Buffer, root: &DxRoot<'_>, filetype: bool) -> Vec<Item<'static>> {
    let kind = if filetype { FileType::Directory } else { FileType::Unknown };
    let dot = |hash, ino, name_at, name_len| {
        let hash = NameHash { hash, minor: 0 };
        Item { hash, ino, kind, source: Source::Block(block.clone()), name_at, name_len }
    };
    vec![dot(0, root.ino, 8, 1), dot(2, root.parent, 20, 2)]
}

impl Listing<'_, '_> {
    /// Lists what is below these entries of an index block, with `levels` levels of nodes between them and
    /// the leaves. Recurses as deep as the root says, at most twice.
    fn below(&mut self, entries: DxEntries<'_>, levels: u8, range: Range) -> ControlFlow<()> {
        let mut ahead_until = 0;
        for at in entries.position(self.from_hash)..entries.len() {
            let Some(entry) = entries.get(at) else { break };
            let low = if at == 0 { range.low } else { entry.hash };
            let range = Range { low, next: entries.get(at + 1).map(|next| next.hash).or(range.next) };
            if let Err(fault) = self.check_child(entry.block) {
                self.sink.fault(fault);
                self.emit_leaf(Vec::new(), range.continued())?;
            } else if levels > 0 {
                self.node(entry.block, levels - 1, range)?;
            } else {
                self.leaves_seen += 1;
                if self.leaves_seen > self.blocks.len() {
                    let fact = Malformed::new("index block", "leaves must not be repeated", entry.block.0);
                    let lblk = self.path.last().copied().unwrap_or_default();
                    self.sink.fault(
                        self.dir.placed(ReadFault::corrupt(extant_base::CorruptAt::default(), fact), lblk),
                    );
                    return ControlFlow::Break(());
                }
                if at >= ahead_until {
                    ahead_until = at + self.read_ahead(entries, at);
                }
                self.leaf(entry.block, range)?;
            }
        }
        ControlFlow::Continue(())
    }

    fn check_child(&self, child: Lblk) -> Result<(), ReadFault> {
        let lblk = self.path.last().copied().unwrap_or_default();
        let rule = |holds, rule| {
            let checked = Malformed::unless(holds, "index block", rule, child.0);
            checked.map_err(|fact| {
                self.dir.placed(ReadFault::corrupt(extant_base::CorruptAt::default(), fact), lblk)
            })
        };
        rule(child.0 < self.blocks.len(), "child must lie inside the directory")?;
        rule(!self.path.contains(&child), "child must not be an ancestor")
    }

    fn node(&mut self, lblk: Lblk, levels: u8, range: Range) -> ControlFlow<()> {
        let block = self.blocks.index(lblk).and_then(|block| block.ok_or_else(|| self.dir.hole(lblk)));
        let block = match block {
            Ok(block) => block,
            Err(fault) => {
                self.sink.fault(self.dir.placed(fault, lblk));
                return self.emit_leaf(Vec::new(), range.continued());
            }
        };
        let entries = self.format.index.decode_node(&block);
        match entries.and_then(|entries| check_rising(entries, range).map(|()| entries)) {
            Ok(entries) => {
                self.path.push(lblk);
                let listed = self.below(entries, levels, range);
                self.path.pop();
                listed
            }
            Err(fact) => {
                self.sink.fault(self.dir.corrupt(&block, lblk, fact));
                self.emit_leaf(Vec::new(), range.continued())
            }
        }
    }

    fn leaf(&mut self, lblk: Lblk, range: Range) -> ControlFlow<()> {
        let block = self.blocks.leaf(lblk).and_then(|block| block.ok_or_else(|| self.dir.hole(lblk)));
        let mut items = Vec::new();
        match block {
            Ok(block) => {
                let mut fault = |fact| self.sink.fault(self.dir.corrupt(&block, lblk, fact));
                let place = |hash| range.place(hash);
                let source = Source::Block(block.clone());
                let run = (RunPosition::Later, &source);
                self.dir.collect(&self.entries, &self.hasher, run, &place, &mut items, &mut fault);
            }
            Err(fault) => self.sink.fault(self.dir.placed(fault, lblk)),
        }
        self.emit_leaf(items, range.continued())
    }

    /// Returns the entries of a leaf, with held ones, in order. Entries with the hash that the next leaf
    /// continues are held in turn.
    fn emit_leaf(&mut self, items: Vec<Item<'static>>, continued: Option<u32>) -> ControlFlow<()> {
        let mut ready = std::mem::take(&mut self.dots);
        if self.held.first().map(|item| item.hash.hash) != continued {
            ready.append(&mut self.held);
        }
        for item in items {
            if Some(item.hash.hash) == continued { &mut self.held } else { &mut ready }.push(item);
        }
        if self.held.len() > HELD_MAX {
            let fact =
                Malformed::new("index block", "at most 2^20 names may have one hash", self.held.len() as u64);
            let lblk = self.path.last().copied().unwrap_or_default();
            self.sink
                .fault(self.dir.placed(ReadFault::corrupt(extant_base::CorruptAt::default(), fact), lblk));
            ready.append(&mut self.held);
            emit_in_order(ready, self.sink)?;
            return ControlFlow::Break(());
        }
        emit_in_order(ready, self.sink)
    }

    /// Reads ahead adjacent leaves from entry `at` on. Returns the number of their entries.
    fn read_ahead(&mut self, entries: DxEntries<'_>, at: usize) -> usize {
        let Some(first) = entries.get(at).map(|entry| entry.block) else { return 1 };
        let len = self.blocks.len();
        let follows = |i: &usize| {
            let next = entries.get(at + i).map(|entry| entry.block.0);
            next.is_some_and(|next| next == first.0 + *i as u32 && next < len)
        };
        let run = 1 + (1..self.readahead).take_while(follows).count();
        if run > 1 {
            self.blocks.prefetch(first, run as u32);
            self.readahead = (self.readahead * 2).min(*READAHEAD.end());
        }
        run
    }
}
