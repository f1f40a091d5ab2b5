//! Lookup of a name: in one block, along all blocks, through the index.

use std::borrow::Cow;

use extant_base::{CorruptAt, Ino, Lblk, Malformed};
use extant_buffer::{Buffer, ReadFault};
use extant_ondisk::casefold::fold;
use extant_ondisk::dirent::{DirFormat, Entry};
use extant_ondisk::htree::{Lookup, Step};
use extant_ondisk::inline_data::InlineDir;

use crate::{Dir, DirBlocks, Format};

/// Blocks of readahead of a linear search, at first and at most.
const READAHEAD: std::ops::RangeInclusive<u32> = 8..=64;

/// A name to be found.
pub(crate) struct NameQuery<'n> {
    name: &'n [u8],
    /// In casefolded directories, where other spellings match too.
    folded: Option<Cow<'n, [u8]>>,
}

/// A match.
#[derive(Clone, Copy)]
enum Match {
    /// Byte for byte.
    Exact(Ino),
    /// In another spelling; used unless there is an exact match.
    Folded(Ino),
}

impl NameQuery<'_> {
    /// The bytes that the index hashes.
    fn hashed(&self) -> &[u8] {
        self.folded.as_deref().unwrap_or(self.name)
    }

    /// Searches one block (or one region of an inline directory) up to the first exact match.
    fn search(&self, format: &DirFormat, block: &[u8]) -> Result<Option<Match>, Malformed> {
        let Some(folded) = self.folded.as_deref() else {
            return Ok(format.find(block, self.name)?.map(|entry| Match::Exact(entry.ino)));
        };
        let mut hit = None;
        for entry in format.entries(block) {
            let entry = entry?;
            if entry.is_used() && entry.name == self.name {
                return Ok(Some(Match::Exact(entry.ino)));
            }
            if hit.is_none() && entry.is_used() && fold(entry.name) == folded {
                hit = Some(Match::Folded(entry.ino));
            }
        }
        Ok(hit)
    }
}

impl Match {
    fn ino(self) -> Ino {
        let (Self::Exact(ino) | Self::Folded(ino)) = self;
        ino
    }
}

/// A failed search through the index.
enum Failed {
    /// The index breaks a rule. Without checksums, the lookup continues without it.
    Index(ReadFault),
    /// A leaf found through the index cannot be read.
    Leaf(ReadFault),
}

impl Dir<'_> {
    pub(crate) fn name_query<'n>(&self, name: &'n [u8]) -> NameQuery<'n> {
        // Ciphertext can only be compared byte by byte.
        let folds = self.casefold && !self.encrypted;
        NameQuery { name, folded: folds.then(|| fold(name)) }
    }

    pub(crate) fn lookup_inline(
        &self,
        format: &DirFormat,
        inline: &InlineDir<'_>,
        name: &[u8],
    ) -> Result<Option<Ino>, ReadFault> {
        match name {
            b"." => return Ok(Some(self.ino)),
            b".." => return Ok(Some(inline.parent)),
            _ => {}
        }
        let name_query = self.name_query(name);
        let mut found = None;
        for (_, region) in inline.regions() {
            match name_query
                .search(format, region)
                .map_err(|fact| ReadFault::corrupt(CorruptAt::ino(self.ino), fact))?
            {
                Some(Match::Exact(ino)) => return Ok(Some(ino)),
                hit => found = found.or(hit),
            }
        }
        Ok(found.map(Match::ino))
    }

    pub(crate) fn lookup_linear(
        &self,
        format: &DirFormat,
        blocks: &dyn DirBlocks,
        name_query: &NameQuery<'_>,
    ) -> Result<Option<Ino>, ReadFault> {
        let mut readahead = Readahead::default();
        let (mut found, mut first_fault) = (None, None);
        let mut next = 0;
        while next < blocks.len() {
            let lblk = Lblk(next);
            next += 1;
            readahead.at(blocks, lblk);
            let hit = self.block_of_entries(blocks, lblk).and_then(|block| match block {
                Some(block) => {
                    name_query.search(format, &block).map_err(|fact| self.corrupt(&block, lblk, fact))
                }
                None => {
                    next = lblk.0.saturating_add(blocks.hole_len(lblk).max(1));
                    Ok(None)
                }
            });
            match hit {
                Ok(Some(Match::Exact(ino))) => return Ok(Some(ino)),
                Ok(hit) => found = found.or(hit),
                // The name may be in a later block. The fault counts only if it is in none.
                Err(fault) => first_fault = first_fault.or(Some(fault)),
            }
        }
        match (found, first_fault) {
            (Some(hit), _) => Ok(Some(hit.ino())),
            (None, Some(fault)) => Err(fault),
            (None, None) => Ok(None),
        }
    }

    pub(crate) fn lookup_indexed(
        &self,
        format: &Format,
        blocks: &dyn DirBlocks,
        name: &[u8],
    ) -> Result<Option<Ino>, ReadFault> {
        let name_query = self.name_query(name);
        let entries = self.entries_format(format);
        if entries.hash_in_dirent && !matches!(name, b"." | b"..") {
            // These hashes need a key.
            return self.lookup_linear(&entries, blocks, &name_query);
        }
        match self.search_index(format, &entries, blocks, &name_query) {
            Ok(None) | Err(_) if name_query.folded.is_some() => {
                self.lookup_linear(&entries, blocks, &name_query)
            }
            Ok(found) => Ok(found),
            Err(Failed::Index(_)) if !format.index.csum => self.lookup_linear(&entries, blocks, &name_query),
            Err(Failed::Index(fault) | Failed::Leaf(fault)) => Err(fault),
        }
    }

    fn search_index(
        &self,
        format: &Format,
        entries: &DirFormat,
        blocks: &dyn DirBlocks,
        name_query: &NameQuery<'_>,
    ) -> Result<Option<Ino>, Failed> {
        if matches!(name_query.name, b"." | b"..") {
            let block = self.index_block(blocks, Lblk(0)).map_err(Failed::Index)?;
            let root = format.index.decode_root(&block);
            let root = root.map_err(|fact| Failed::Index(self.corrupt(&block, Lblk(0), fact)))?;
            return Ok(Some(if name_query.name == b"." { root.ino } else { root.parent }));
        }
        let (seed, unsigned) = (format.hash_seed, format.unsigned_hash);
        let mut lookup = Lookup::by_name(format.index, blocks.len(), seed, unsigned, name_query.hashed());
        let mut step = lookup.start();
        let mut found = None;
        loop {
            step = match step {
                Step::NeedBlock(lblk) => {
                    let block = self.index_block(blocks, lblk).map_err(Failed::Index)?;
                    let fed = lookup.feed(&block);
                    fed.map_err(|fact| Failed::Index(self.corrupt(&block, lblk, fact)))?
                }
                Step::Leaf(lblk) => {
                    let leaf = blocks.leaf(lblk).and_then(|leaf| leaf.ok_or_else(|| self.hole(lblk)));
                    let leaf = leaf.map_err(|fault| Failed::Leaf(self.placed(fault, lblk)))?;
                    let hit = name_query.search(entries, &leaf);
                    match hit.map_err(|fact| Failed::Leaf(self.corrupt(&leaf, lblk, fact)))? {
                        Some(Match::Exact(ino)) => return Ok(Some(ino)),
                        hit => found = found.or(hit),
                    }
                    lookup.next_same_hash()
                }
                Step::End => return Ok(found.map(Match::ino)),
            };
        }
    }

    /// A root or node of the index; a hole is a fault.
    fn index_block(&self, blocks: &dyn DirBlocks, lblk: Lblk) -> Result<Buffer, ReadFault> {
        let block = blocks.index(lblk).map_err(|fault| self.placed(fault, lblk))?;
        block.ok_or_else(|| self.hole(lblk))
    }

    /// A block of which the entries are read one after the other, whatever its role in the index: a leaf, or
    /// the root, which has only "." and "..". `None` for blocks without entries: nodes and holes.
    pub(crate) fn block_of_entries(
        &self,
        blocks: &dyn DirBlocks,
        lblk: Lblk,
    ) -> Result<Option<Buffer>, ReadFault> {
        let placed = |fault| self.placed(fault, lblk);
        if !self.is_indexed() {
            return blocks.leaf(lblk).map_err(placed);
        }
        // Index blocks have their checksum in another place than leaves. A block is damaged if it is valid as
        // neither.
        if lblk.0 == 0 {
            return blocks.index(lblk).or_else(|fault| blocks.leaf(lblk).map_err(|_| placed(fault)));
        }
        match blocks.leaf(lblk) {
            Err(ReadFault::Corrupt(fact)) => match blocks.index(lblk) {
                Ok(_) => Ok(None),
                Err(_) => Err(placed(ReadFault::Corrupt(fact))),
            },
            leaf => leaf.map_err(placed),
        }
    }

    pub(crate) fn placed(&self, fault: ReadFault, lblk: Lblk) -> ReadFault {
        fault.of_ino(self.ino).at_lblk(lblk)
    }

    pub(crate) fn corrupt(&self, block: &Buffer, lblk: Lblk, fact: Malformed) -> ReadFault {
        self.placed(ReadFault::corrupt(CorruptAt::block(block.block()), fact), lblk)
    }

    pub(crate) fn hole(&self, lblk: Lblk) -> ReadFault {
        let fact = Malformed::new("directory", "must have no holes", lblk.0);
        self.placed(ReadFault::corrupt(CorruptAt::default(), fact), lblk)
    }

    /// Whether a name may become part of a path. Callers encode ciphertext.
    pub(crate) fn is_plain_name(&self, entry: &Entry<'_>) -> bool {
        self.encrypted || entry.has_plain_name()
    }
}

/// Readahead along a directory: none at its first block, which is often the only one needed, then increasing.
#[derive(Default)]
pub(crate) struct Readahead {
    until: u32,
    len: u32,
}

impl Readahead {
    pub(crate) fn at(&mut self, blocks: &dyn DirBlocks, lblk: Lblk) {
        if lblk.0 == 0 || lblk.0 < self.until {
            return;
        }
        self.len = (self.len * 2).clamp(*READAHEAD.start(), *READAHEAD.end());
        let len = self.len.min(blocks.len().saturating_sub(lblk.0));
        if len > 1 {
            blocks.prefetch(lblk, len);
        }
        self.until = lblk.0.saturating_add(self.len);
    }
}
