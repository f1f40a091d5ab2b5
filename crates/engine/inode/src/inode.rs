//! One inode: its verified fields, its map and its attributes.

use extant_base::{Ino, Malformed};
use extant_mapping::FileMap;
use extant_ondisk::Features;
use extant_ondisk::filetype::FileType;
use extant_ondisk::indirect;
use extant_ondisk::inode::{self, flags};

use crate::{Fault, Shared};

/// An inode in memory. Immutable.
pub struct Inode {
    ino: Ino,
    kind: FileType,
    fields: inode::Inode,
    /// The bytes after the fixed fields, which contain small attributes.
    body: Box<[u8]>,
    /// The map of its blocks.
    pub(crate) map: FileMap,
    /// Clusters promised to it in addition to its blocks.
    pub(crate) promised: u64,
}

impl Inode {
    /// Decodes and verifies the inode in its `inode_size` bytes; fails unless it is in use.
    pub(crate) fn load(shared: &Shared, ino: Ino, raw: &[u8]) -> Result<Self, Fault> {
        // Never written, or freed and wiped; it has no checksum either.
        if raw.iter().all(|byte| *byte == 0) {
            return Err(Fault::NoSuchInode(ino));
        }
        let fields = inode::Inode::decode_of(&shared.sb, raw).map_err(|fact| Fault::corrupt(ino, fact))?;
        verify(shared, ino, raw, &fields)?;
        if fields.links == 0 {
            return Err(Fault::NoSuchInode(ino));
        }
        let body = body_of(raw, &fields);
        Self::of_parts(shared, ino, fields, body)
    }

    /// Same as `load`, for an inode that may have no links. Its checksum is verified as well.
    pub(crate) fn load_orphan(shared: &Shared, ino: Ino, raw: &[u8]) -> Result<Self, Fault> {
        let fields = inode::Inode::decode_of(&shared.sb, raw).map_err(|fact| Fault::corrupt(ino, fact))?;
        verify(shared, ino, raw, &fields)?;
        let body = body_of(raw, &fields);
        Self::of_parts(shared, ino, fields, body)
    }

    /// Creates an inode from bytes that were read and verified.
    pub(crate) fn of_parts(
        shared: &Shared,
        ino: Ino,
        mut fields: inode::Inode,
        body: Box<[u8]>,
    ) -> Result<Self, Fault> {
        if fields.mode == 0 {
            return Err(Fault::NoSuchInode(ino));
        }
        let seed = shared.inode_seed(ino, fields.generation);
        let kind = FileType::from_mode(fields.mode);
        let size = content_size(&fields, kind, shared);
        // Later changes use the fields. Without this, a walk of a directory would go as far as a meaningless
        // high half of the size says.
        fields.size = size;
        let rule = |holds, rule, found: u64| {
            Malformed::unless(holds, "inode", rule, found).map_err(|fact| Fault::corrupt(ino, fact))
        };
        rule(kind != FileType::Unknown, "its mode names a type of file", fields.mode.into())?;
        rule(size <= i64::MAX as u64, "its size must be below 2^63", size)?;
        let inline = fields.has_flag(flags::INLINE_DATA);
        rule(
            !inline || shared.has_inline_data(),
            "inline data must come with the feature inline_data",
            fields.flags.into(),
        )?;
        if kind == FileType::Directory && !inline {
            let bs = shared.geometry.block_size.bytes();
            rule(size.is_multiple_of(bs), "a directory's size must be a multiple of the block size", size)?;
            rule(size / bs <= u64::from(u32::MAX), "a directory must have fewer than 2^32 blocks", size)?;
            // This limit bounds every walk of a directory. A truncated image has fewer blocks than its
            // superblock says.
            let blocks = shared.geometry.blocks.min(shared.device.size_bytes() / bs);
            rule(size / bs <= blocks, "a directory must have no more blocks than the image", size)?;
        }
        if kind == FileType::Symlink {
            rule(size <= shared.geometry.block_size.bytes(), "a symbolic link must fit one block", size)?;
        }
        let extents = fields.has_flag(flags::EXTENTS);
        if kind == FileType::Regular {
            let bs = shared.geometry.block_size;
            // Sparse and inline files may be this long; bytes without data read as zeros.
            let blocks_max = if extents { u64::from(u32::MAX) } else { indirect::max_blocks(bs) };
            rule(size <= blocks_max << bs.log2(), "a file must be no longer than its map can reach", size)?;
        }
        let map = FileMap { ino, i_block: fields.block, extents, seed };
        Ok(Self { ino, kind, fields, body, map, promised: 0 })
    }

    /// Whether this snapshot is valid for a file of this size, with this many promised clusters.
    pub(crate) fn is_at(&self, size: u64, promised: u64) -> bool {
        // Only regular files have a delayed size or promises.
        (self.fields.size == size || self.kind != FileType::Regular) && self.promised == promised
    }

    pub(crate) fn with_promised(self, promised: u64) -> Self {
        Self { promised, ..self }
    }

    /// Clusters that are promised to the file for data that is in memory only.
    #[must_use]
    pub fn promised_clusters(&self) -> u64 {
        self.promised
    }

    /// The bytes after the fixed fields.
    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }

    /// The inode number.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// The type.
    #[must_use]
    pub fn kind(&self) -> FileType {
        self.kind
    }

    /// Size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.fields.size
    }

    /// The fixed fields.
    #[must_use]
    pub fn fields(&self) -> &inode::Inode {
        &self.fields
    }

    /// Whether this flag of `extant_ondisk::inode::flags` is set.
    #[must_use]
    pub fn has_flag(&self, flag: u32) -> bool {
        self.fields.has_flag(flag)
    }

    /// Whether the content is stored in the inode itself.
    #[must_use]
    pub fn is_inline(&self) -> bool {
        self.has_flag(flags::INLINE_DATA)
    }

    /// Whether `i_block` holds the target of this symbolic link.
    #[must_use]
    pub fn is_fast_link(&self, shared: &Shared) -> bool {
        shared.is_fast_link(&self.fields, self.fields.size)
    }

    /// The places of its attributes.
    #[must_use]
    pub fn places<'a>(&'a self, shared: &Shared) -> extant_xattr::Places<'a> {
        extant_xattr::Places {
            ino: self.ino,
            body: &self.body,
            block: extant_base::Pblk(self.fields.file_acl),
            fs_seed: shared.fs_seed,
        }
    }

    /// Memory that the inode takes, in bytes.
    pub(crate) fn memory(&self) -> usize {
        size_of::<Self>() + self.body.len()
    }
}

/// Verifies the checksum, if inodes have checksums.
fn verify(shared: &Shared, ino: Ino, raw: &[u8], fields: &inode::Inode) -> Result<(), Fault> {
    let seed = shared.inode_seed(ino, fields.generation).filter(|_| shared.sb.verifies_inodes());
    let is_right = seed.is_none_or(|seed| inode::verify(raw, seed));
    Malformed::unless(is_right, "inode", "its checksum must match", fields.checksum)
        .map_err(|fact| Fault::corrupt(ino, fact))
}

/// The bytes after the fixed fields.
fn body_of(raw: &[u8], fields: &inode::Inode) -> Box<[u8]> {
    match raw.len() {
        0..=inode::BASE_SIZE => Box::default(),
        _ => raw.get(fields.xattr_offset()..).unwrap_or_default().into(),
    }
}

/// i_size as the kernel interprets it: the high half counts for regular files, and for directories with
/// large_dir.
fn content_size(fields: &inode::Inode, kind: FileType, shared: &Shared) -> u64 {
    let wide = match kind {
        FileType::Regular => true,
        FileType::Directory => shared.sb.features.has_incompat(Features::LARGEDIR),
        _ => false,
    };
    if wide { fields.size } else { fields.size & 0xFFFF_FFFF }
}

impl std::fmt::Debug for Inode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "inode {} ({}, {} bytes, links {})",
            self.ino, self.kind, self.fields.size, self.fields.links
        )
    }
}
