//! Listing in the order of hashes: collecting entries, and returning them sorted.
//!
//! The kernel lists every directory by hash that has an index or could get one with its next block. That
//! includes directories of a single block and inline ones, if the file system has the dir_index feature. So
//! positions keep their meaning when they grow. In indexed directories "." has hash 0 and ".." hash 2; in
//! small ones they have the hashes of their names.
//!
//! ```text
//! position:  | 0 | hash >> 1, 31 bits | minor hash, 32 bits |
//! ```
//!
//! Names of equal hash are ordered by their minor hash. Names for which both are equal (the legacy hash has
//! no minor hash) take the following positions, so that each has its own and a listing can continue between
//! them.

use std::collections::HashSet;
use std::ops::{ControlFlow, Deref};

use extant_base::{CorruptAt, Ino, Lblk, Malformed};
use extant_buffer::{Buffer, ReadFault};
use extant_ondisk::casefold::fold;
use extant_ondisk::dirent::{DirFormat, HEADER_LEN};
use extant_ondisk::filetype::FileType;
use extant_ondisk::hash::{HashVersion, NameHash, dirhash};
use extant_ondisk::inline_data::InlineDir;

use crate::list::{ListSink, RunPosition};
use crate::{Dir, DirBlocks, Format};

/// Computes the hashes of one directory's names.
pub(crate) struct Hasher {
    version: HashVersion,
    seed: [u32; 4],
    folds: bool,
}

impl Hasher {
    /// A placeholder, until the root is read.
    pub(crate) fn none() -> Self {
        Self { version: HashVersion::Legacy, seed: [0; 4], folds: false }
    }

    /// The hash of a name; 0 for SipHash, with which no caller comes here.
    pub(crate) fn hash(&self, name: &[u8]) -> NameHash {
        let hash = if self.folds {
            dirhash(self.version, &self.seed, &fold(name))
        } else {
            dirhash(self.version, &self.seed, name)
        };
        hash.unwrap_or_default()
    }
}

/// Bytes that contain names.
#[derive(Clone)]
pub(crate) enum Source<'a> {
    Block(Buffer),
    Bytes(&'a [u8]),
}

impl Deref for Source<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Block(buffer) => buffer,
            Self::Bytes(bytes) => bytes,
        }
    }
}

/// A collected entry.
pub(crate) struct Item<'a> {
    pub(crate) hash: NameHash,
    pub(crate) ino: Ino,
    pub(crate) kind: FileType,
    pub(crate) source: Source<'a>,
    pub(crate) name_at: usize,
    pub(crate) name_len: usize,
}

impl Item<'_> {
    fn name(&self) -> &[u8] {
        &self.source[self.name_at..self.name_at + self.name_len]
    }

    fn key(&self) -> (u32, u32) {
        (self.hash.hash, self.hash.minor)
    }
}

/// Returns entries in the order of their hashes.
pub(crate) fn emit_in_order(mut items: Vec<Item<'_>>, sink: &mut ListSink<'_>) -> ControlFlow<()> {
    items.sort_by_key(Item::key);
    // Names for which both hashes are equal come in the kernel's order: the first, then the others in
    // reverse.
    for equal in items.chunk_by_mut(|a, b| a.key() == b.key()) {
        equal[1..].reverse();
    }
    let mut before: Option<NameHash> = None;
    // Names with the current hash, if several have it; duplicates have equal hashes.
    let mut alike: HashSet<&[u8]> = HashSet::new();
    for (index, item) in items.iter().enumerate() {
        let NameHash { hash, minor } = item.hash;
        let is_like_next = items.get(index + 1).is_some_and(|next| next.key() == item.key());
        let minor = match before {
            Some(before) if before.hash == hash => minor.max(before.minor.saturating_add(1)),
            _ => minor,
        };
        before = Some(NameHash { hash, minor });
        let at = u64::from(hash >> 1) << 32 | u64::from(minor);
        let name = item.name();
        if !alike.is_empty() && alike.contains(name) {
            sink.duplicate(at, item.ino);
        }
        if is_like_next {
            alike.insert(name);
        } else {
            alike.clear();
        }
        sink.entry(at, at + 1, item.ino, item.kind, name)?;
    }
    ControlFlow::Continue(())
}

impl Dir<'_> {
    pub(crate) fn hasher(&self, format: &Format, version: HashVersion) -> Hasher {
        Hasher { version, seed: format.hash_seed, folds: self.casefold && !self.encrypted }
    }

    /// The hasher if the kernel lists this directory by hash although it has no index.
    pub(crate) fn small_hasher(&self, format: &Format) -> Option<Hasher> {
        let version = format.default_hash.filter(|version| *version != HashVersion::SipHash)?;
        let is_keyed = self.casefold && self.encrypted;
        let can_index = format.features.has_compat(extant_ondisk::Features::DIR_INDEX);
        (can_index && !is_keyed).then(|| self.hasher(format, version))
    }

    /// Collects the entries of a block or of an inline region, each with its hash mapped by `place`.
    pub(crate) fn collect<'s>(
        &self,
        format: &DirFormat,
        hasher: &Hasher,
        (run, source): (RunPosition, &Source<'s>),
        place: &dyn Fn(NameHash) -> NameHash,
        items: &mut Vec<Item<'s>>,
        fault: &mut dyn FnMut(Malformed),
    ) {
        for (index, entry) in format.entries(source).enumerate() {
            let entry = match entry {
                Ok(entry) if !entry.is_used() => continue,
                Ok(entry) => run.judge(index, &entry, self.is_plain_name(&entry)).map(|()| entry),
                Err(fact) => Err(fact),
            };
            match entry {
                Ok(entry) => items.push(Item {
                    hash: place(hasher.hash(entry.name)),
                    ino: entry.ino,
                    kind: entry.file_type,
                    source: source.clone(),
                    name_at: entry.offset + HEADER_LEN,
                    name_len: entry.name.len(),
                }),
                Err(fact) => fault(fact),
            }
        }
    }

    /// Lists a directory of one block by hash.
    pub(crate) fn list_single(
        &self,
        format: &DirFormat,
        hasher: &Hasher,
        blocks: &dyn DirBlocks,
        sink: &mut ListSink<'_>,
    ) -> ControlFlow<()> {
        let block = match self.block_of_entries(blocks, Lblk(0)) {
            Ok(Some(block)) => block,
            Ok(None) => {
                sink.fault(self.hole(Lblk(0)));
                return ControlFlow::Continue(());
            }
            Err(fault) => {
                sink.fault(fault);
                return ControlFlow::Continue(());
            }
        };
        sink.readable();
        let mut items = Vec::new();
        let mut fault = |fact| sink.fault(self.corrupt(&block, Lblk(0), fact));
        let source = Source::Block(block.clone());
        self.collect(format, hasher, (RunPosition::First, &source), &|hash| hash, &mut items, &mut fault);
        emit_in_order(items, sink)
    }

    /// Lists an inline directory by hash.
    pub(crate) fn list_inline_by_hash(
        &self,
        format: &DirFormat,
        hasher: &Hasher,
        inline: &InlineDir<'_>,
        sink: &mut ListSink<'_>,
    ) -> ControlFlow<()> {
        sink.readable();
        let kind = if format.filetype { FileType::Directory } else { FileType::Unknown };
        let dot = |name: &'static [u8], ino| Item {
            hash: hasher.hash(name),
            ino,
            kind,
            source: Source::Bytes(name),
            name_at: 0,
            name_len: name.len(),
        };
        let mut items = vec![dot(b".", self.ino), dot(b"..", inline.parent)];
        let mut fault = |fact| sink.fault(ReadFault::corrupt(CorruptAt::ino(self.ino), fact));
        for (_, region) in inline.regions() {
            let source = Source::Bytes(region);
            self.collect(format, hasher, (RunPosition::Later, &source), &|hash| hash, &mut items, &mut fault);
        }
        emit_in_order(items, sink)
    }
}
