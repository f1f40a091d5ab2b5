//! Lookup, listing and changes of directories. A directory is *linear* (blocks of entries), *indexed* (blocks
//! of entries below an htree, a tree by hashes of names) or *inline* (entries in the inode).
//!
//! Owns: how names are found and listed, positions in a listing that stay valid ([`Cursor`]), how entries are
//! added and removed ([`edit`]). Does **not** own: the mapping of a directory's blocks (the caller provides
//! the blocks, as [`DirBlocks`]), inodes.
//!
//! Invariants
//! 1. INV-Y1: in a directory without damage, a name that exists during a whole listing is returned exactly
//!    once.
//! 2. The work of a lookup or listing is bounded by the directory's size. A listing of a damaged directory
//!    returns what can be read, and reports the rest.
//! 3. Positions rise: a listing that continues at an entry's [`next`](DirEntry::next) never returns that
//!    entry again.
//! 4. A listing leaves out two kinds of entries, and reports them as damage:
//!    - "." or "..", except the two entries at the beginning of the directory;
//!    - a name with a slash or NUL. (In an encrypted directory this is no damage: names are ciphertext and
//!      may hold any byte.)
//!
//!    A listing in the order of hashes also reports duplicate names, but does not leave them out.
//!
//! A lookup normally searches an indexed directory by the hash of the name. In three cases it searches the
//! directory block by block:
//! - The directory is encrypted and casefolded. Its hashes cannot be computed, because they need a key.
//! - The directory is casefolded, and the search by the hash of the folded name finds nothing or fails.
//! - The index breaks a rule of the format, and the file system has no metadata_csum. (With metadata_csum,
//!   the lookup fails.)
//!
//! Source: kernel Documentation/filesystems/ext4/directory.rst.

#![forbid(unsafe_code)]

pub mod edit;
mod indexed;
mod list;
mod lookup;
mod order;

use std::ops::ControlFlow;

use extant_base::{Ino, Lblk};
use extant_buffer::{Buffer, ReadFault};
use extant_ondisk::dirent::{DirFormat, NAME_LEN_MAX};
use extant_ondisk::filetype::FileType;
use extant_ondisk::hash::{HashVersion, seed_words};
use extant_ondisk::htree::DxFormat;
use extant_ondisk::superblock::FLAG_UNSIGNED_HASH;
use extant_ondisk::{Features, Geometry, Superblock};

use crate::indexed::NotByHash;
use crate::list::ListSink;

/// Access to a directory's blocks.
pub trait DirBlocks {
    /// Number of blocks: i_size / block size.
    fn len(&self) -> u32;

    /// Whether it has no blocks.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A leaf or a linear block, with its tail verified; `None` for a hole.
    ///
    /// # Errors
    /// The block cannot be read or its checksum is wrong.
    fn leaf(&self, lblk: Lblk) -> Result<Option<Buffer>, ReadFault>;

    /// Calls `look` with the bytes that [`leaf`](Self::leaf) would return, for callers that read few of them.
    /// `false` for a hole.
    ///
    /// # Errors
    /// As [`leaf`](Self::leaf).
    fn look_leaf(&self, lblk: Lblk, look: &mut dyn FnMut(&[u8])) -> Result<bool, ReadFault> {
        let leaf = self.leaf(lblk)?;
        if let Some(leaf) = &leaf {
            look(leaf);
        }
        Ok(leaf.is_some())
    }

    /// A root or node of the index, with its checksum verified; `None` for a hole.
    ///
    /// # Errors
    /// As [`leaf`](Self::leaf).
    fn index(&self, lblk: Lblk) -> Result<Option<Buffer>, ReadFault>;

    /// For a block that is a hole: the number of blocks from there on that are known to be holes, at least 1.
    /// The size of a damaged directory may be far larger than what was written.
    fn hole_len(&self, _lblk: Lblk) -> u32 {
        1
    }

    /// Reads ahead `len` blocks.
    fn prefetch(&self, first: Lblk, len: u32);
}

/// Properties shared by all directories of a file system.
#[derive(Debug, Clone)]
pub struct Format {
    /// Blocks and entries.
    pub entries: DirFormat,
    /// Index blocks.
    pub index: DxFormat,
    /// Features of the file system.
    pub features: Features,
    /// Seed of the hash.
    pub hash_seed: [u32; 4],
    /// Unsigned variant of the hashes.
    pub unsigned_hash: bool,
    /// Version for new directories; existing ones store their own.
    pub default_hash: Option<HashVersion>,
}

impl Format {
    /// The format of a file system.
    #[must_use]
    pub fn of(sb: &Superblock, geometry: &Geometry) -> Self {
        let unsigned_hash = sb.flags & FLAG_UNSIGNED_HASH != 0;
        Self {
            entries: DirFormat::new(geometry.block_size, &sb.features, geometry.inodes()),
            index: DxFormat::new(geometry.block_size, &sb.features),
            features: sb.features,
            hash_seed: seed_words(&sb.hash_seed),
            unsigned_hash,
            default_hash: HashVersion::from_code(sb.def_hash_version, unsigned_hash),
        }
    }
}

/// The storage of a directory.
pub enum Storage<'a> {
    /// Blocks of entries.
    Linear(&'a dyn DirBlocks),
    /// Blocks of entries below an index.
    Indexed(&'a dyn DirBlocks),
    /// Inside its inode.
    Inline(&'a extant_ondisk::inline_data::InlineDir<'a>),
}

/// A directory to read.
pub struct Dir<'a> {
    /// Its inode.
    pub ino: Ino,
    /// Its storage.
    pub storage: Storage<'a>,
    /// CASEFOLD flag: names are compared after full folding (NFDICF), but an exact match has precedence. The
    /// index is searched first, and all blocks if it does not lead to the name.
    pub casefold: bool,
    /// ENCRYPT flag: names are raw bytes of ciphertext.
    pub encrypted: bool,
}

/// A position in a directory, at which a listing continues after an entry. As the kernel's 64-bit cookies:
/// (hash >> 1) << 32 | minor hash if the listing is in the order of hashes, else a byte offset. Any number is
/// valid, and means the next entry from there on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Cursor(pub u64);

impl Cursor {
    /// Before the first entry.
    pub const START: Cursor = Cursor(0);
    /// After the last entry.
    pub const END: Cursor = Cursor(0x7FFF_FFFF_FFFF_FFFF);
}

/// An entry of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Its inode.
    pub ino: Ino,
    /// Type in the entry; `None` without the filetype feature.
    pub kind: Option<FileType>,
    /// Name: 1 to 255 bytes.
    pub name: &'a [u8],
    /// The position after this entry.
    pub next: Cursor,
}

impl Dir<'_> {
    /// The inode of `name`; "." and ".." are names, too.
    ///
    /// # Errors
    /// A block cannot be read or breaks a rule, and the name was not found elsewhere.
    pub fn lookup(&self, format: &Format, name: &[u8]) -> Result<Option<Ino>, ReadFault> {
        if name.is_empty() || name.len() > NAME_LEN_MAX {
            return Ok(None);
        }
        match self.storage {
            Storage::Linear(blocks) => {
                self.lookup_linear(&self.entries_format(format), blocks, &self.name_query(name))
            }
            Storage::Indexed(blocks) => self.lookup_indexed(format, blocks, name),
            Storage::Inline(inline) => self.lookup_inline(&self.entries_format(format), inline, name),
        }
    }

    /// Calls `each` for entries from `from` on in the order of the kernel's readdir, until it breaks. "." and
    /// ".." come first in indexed and linear directories. Directories of a single block and inline ones are
    /// listed by hash, too (if the file system has the dir_index feature), so there they come among the other
    /// names.
    ///
    /// A damaged block is reported to `damage` and skipped, as in the kernel. A directory with a damaged
    /// index root is listed block by block, with positions of that kind.
    ///
    /// # Errors
    /// The first fault, if nothing could be read at all.
    pub fn list(
        &self,
        format: &Format,
        from: Cursor,
        each: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
        damage: &mut dyn FnMut(ReadFault),
    ) -> Result<(), ReadFault> {
        if from >= Cursor::END {
            return Ok(());
        }
        let entries = self.entries_format(format);
        let mut sink = ListSink::new(from, self.ino, each, damage);
        let small = self.small_hasher(format);
        let _ = match (&self.storage, small) {
            (Storage::Inline(inline), Some(hasher)) => {
                self.list_inline_by_hash(&entries, &hasher, inline, &mut sink)
            }
            (Storage::Inline(inline), None) => self.list_inline(&entries, inline, &mut sink),
            (Storage::Linear(blocks), Some(hasher)) if blocks.len() == 1 => {
                self.list_single(&entries, &hasher, *blocks, &mut sink)
            }
            (Storage::Linear(blocks), _) => self.list_linear(&entries, *blocks, &mut sink),
            (Storage::Indexed(blocks), _) => {
                self.list_indexed(format, *blocks, &mut sink).unwrap_or_else(|reason| {
                    // An unreadable root is reported by the linear listing.
                    if let NotByHash::Broken(fault) = reason {
                        sink.fault(fault);
                    }
                    self.list_linear(&entries, *blocks, &mut sink)
                })
            }
        };
        sink.finish()
    }

    /// The format of this directory's entries: encrypted and casefolded ones store their hash.
    fn entries_format(&self, format: &Format) -> DirFormat {
        DirFormat { hash_in_dirent: self.casefold && self.encrypted, ..format.entries }
    }

    fn is_indexed(&self) -> bool {
        matches!(self.storage, Storage::Indexed(_))
    }
}

#[cfg(test)]
mod tests;
