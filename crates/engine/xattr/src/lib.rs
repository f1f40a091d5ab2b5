//! Extended attributes of an inode: in its body, in a block, or with values in inodes of their own.
//!
//! Owns: reading and naming of attributes; planning of changes ([`Change`]); the semantics of ACLs ([`acl`]).
//! Does **not** own: inodes; values in inodes of their own ([`ValueInodes`] reads them, a [`Plan`] names the
//! changes); allocation and writing of blocks; permission to see or set a name (`trusted.` needs privileges:
//! the caller checks them).
//!
//! Invariants
//! 1. Names come in the kernel's order: the names of the body as stored, then the names of the block as
//!    stored. A name that is stored twice is listed once, with the first value, because a search would find
//!    this value.
//! 2. Attributes that the kernel does not show in system calls are hidden: the encryption context, the
//!    descriptor of fs-verity, and all `system.` attributes except ACLs (for example `system.data`, which
//!    holds inline data).
//! 3. ACLs are returned in the format of the system calls. An ACL without entries has no value, but
//!    [`names`](Places::names) lists it.
//! 4. A change is planned completely before anything is written, so a refusal changes nothing. Attributes
//!    that a change does not name stay in the body or the block where they are.
//! 5. In a block that several inodes share, only the reference count is changed. An inode whose attributes
//!    change gets a copy of the block, or shares another block that has the new attributes.
//!
//! Source: kernel Documentation/filesystems/ext4/attributes.rst, eainode.rst.

#![forbid(unsafe_code)]

pub mod acl;
mod plan;
mod sharing;

use std::collections::HashSet;

use extant_base::checksum::crc32c;
use extant_base::{CorruptAt, Ino, Malformed, Pblk};
use extant_buffer::{Buffer, Buffers, Kind, Owner, ReadFault};
use extant_ondisk::acl::Acl;
use extant_ondisk::xattr::{
    AttrValue, INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT, INDEX_RICHACL, INDEX_SYSTEM, StoredAttr, decode_block,
    decode_ibody, full_name, split_name, verify_block,
};

pub use plan::{BlockPlan, Change, ChangeFault, Mode, Plan, Rules};
pub use sharing::BlockIndex;

const STRUCTURE: &str = "extended attribute";
/// Limit for the total size of an inode's values in bytes; all of them are in memory together.
const VALUES_MAX: u64 = 64 << 20;

/// Reads values that are stored in inodes of their own.
pub trait ValueInodes {
    /// All bytes of the value, verified against `len` and, where possible, the entry's hash.
    ///
    /// # Errors
    /// The inode or its data cannot be read or break a rule.
    fn value(&self, ino: Ino, len: u32) -> Result<Vec<u8>, ReadFault>;
}

/// The places of an inode's attributes.
pub struct Places<'a> {
    /// The inode.
    pub ino: Ino,
    /// The bytes after its fixed fields; empty for inodes of 128 bytes.
    pub body: &'a [u8],
    /// i_file_acl; 0 for none.
    pub block: Pblk,
    /// Seed of the file system's checksums; `None` without metadata_csum.
    pub fs_seed: Option<u32>,
}

/// An attribute with its full name, as `listxattr` returns it ("user.comment").
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attribute {
    /// Full name.
    pub name: Vec<u8>,
    /// Value in the format of the system calls: ACLs as in `system.posix_acl_access` (version 2).
    pub value: Vec<u8>,
}

impl<'a> Places<'a> {
    /// The names, in the kernel's order: body, then block. The attribute of inline data is not among them.
    ///
    /// # Errors
    /// A structure cannot be read or breaks a rule.
    pub fn names(&self, buffers: &Buffers) -> Result<Vec<Vec<u8>>, ReadFault> {
        let block = self.block(buffers)?;
        let stored = self.stored(block.as_deref())?;
        Ok(named(stored.iter()).map(|(name, _)| name).collect())
    }

    /// The value of an attribute by its full name.
    ///
    /// # Errors
    /// As [`names`](Self::names); also an invalid ACL, and a value with another length or hash than its entry
    /// has.
    pub fn get(
        &self,
        buffers: &Buffers,
        values: &dyn ValueInodes,
        name: &[u8],
    ) -> Result<Option<Vec<u8>>, ReadFault> {
        let Some((index, suffix)) = split_name(name).filter(|(index, _)| is_shown(*index)) else {
            return Ok(None);
        };
        let is_it = |stored: &&StoredAttr<'_>| (stored.attr.index, stored.attr.name) == (index, suffix);
        // Nearly always in the body: then the block is not read.
        if let Some(found) = self.decoded_body()?.iter().find(is_it) {
            return self.value(values, found);
        }
        let block = self.block(buffers)?;
        match self.decoded_block(block.as_deref())?.iter().find(is_it) {
            Some(found) => self.value(values, found),
            None => Ok(None),
        }
    }

    /// All attributes.
    ///
    /// # Errors
    /// As [`get`](Self::get); also if the values exceed 64 MiB.
    pub fn all(&self, buffers: &Buffers, values: &dyn ValueInodes) -> Result<Vec<Attribute>, ReadFault> {
        let block = self.block(buffers)?;
        let stored = self.stored(block.as_deref())?;
        // Entries give the lengths of values in inodes, and many entries may name one inode: check the sum
        // before reading any value.
        let len_of = |stored: &StoredAttr<'_>| match stored.attr.value {
            AttrValue::Bytes(bytes) => bytes.len() as u64,
            AttrValue::Inode { size, .. } => u64::from(size),
        };
        let total: u64 = named(stored.iter()).map(|(_, attr)| len_of(attr)).sum();
        Malformed::unless(
            total <= VALUES_MAX,
            STRUCTURE,
            "an inode's values must have at most 64 MiB together",
            total,
        )
        .map_err(|fact| self.corrupt(fact))?;
        let mut all = Vec::with_capacity(stored.len());
        for (name, attr) in named(stored.iter()) {
            all.extend(self.value(values, attr)?.map(|value| Attribute { name, value }));
        }
        Ok(all)
    }

    /// The value of `system.data`: the content of small files and directories beyond `i_block`. It is always
    /// in the body.
    ///
    /// # Errors
    /// The body breaks a rule.
    pub fn inline_data(&self) -> Result<Option<&'a [u8]>, ReadFault> {
        let body = self.decoded_body()?;
        let found =
            body.iter().find(|stored| (stored.attr.index, stored.attr.name) == (INDEX_SYSTEM, b"data"));
        match found.map(|stored| stored.attr.value) {
            None => Ok(None),
            Some(AttrValue::Bytes(bytes)) => Ok(Some(bytes)),
            Some(AttrValue::Inode { ino, .. }) => Err(self.corrupt(Malformed::new(
                STRUCTURE,
                "inline data must lie in the inode itself",
                ino.0,
            ))),
        }
    }

    /// The entries with values in inodes of their own, including hidden ones: index, name and inode of each.
    /// Entries of the block are included only if no other inode shares it: a shared block holds one
    /// reference, however many inodes share it.
    ///
    /// # Errors
    /// A structure cannot be read or breaks a rule.
    pub fn value_entries(&self, buffers: &Buffers) -> Result<Vec<(u8, Vec<u8>, Ino)>, ReadFault> {
        let block = self
            .block(buffers)?
            .filter(|bytes| extant_ondisk::xattr::refcount(bytes).is_ok_and(|count| count <= 1));
        let entry = |stored: StoredAttr<'_>| match stored.attr.value {
            AttrValue::Inode { ino, .. } => Some((stored.attr.index, stored.attr.name.to_vec(), ino)),
            AttrValue::Bytes(_) => None,
        };
        Ok(self.stored(block.as_deref())?.into_iter().filter_map(entry).collect())
    }

    /// The number of inodes that share the block; `None` without a block.
    ///
    /// # Errors
    /// The block cannot be read or breaks a rule.
    pub fn block_refcount(&self, buffers: &Buffers) -> Result<Option<u32>, ReadFault> {
        let Some(block) = self.block(buffers)? else { return Ok(None) };
        let count = extant_ondisk::xattr::refcount(&block);
        count
            .map(Some)
            .map_err(|fact| ReadFault::corrupt(CorruptAt::block(self.block).of_ino(self.ino), fact))
    }

    fn corrupt(&self, fact: Malformed) -> ReadFault {
        ReadFault::corrupt(CorruptAt::ino(self.ino), fact)
    }

    fn block(&self, buffers: &Buffers) -> Result<Option<Buffer>, ReadFault> {
        if self.block.0 == 0 {
            return Ok(None);
        }
        let buffer = verified_block(buffers, self.block, self.fs_seed);
        buffer.map(Some).map_err(|fault| fault.of_ino(self.ino))
    }

    fn decoded_body(&self) -> Result<Vec<StoredAttr<'a>>, ReadFault> {
        decode_ibody(self.body).map_err(|fact| self.corrupt(fact))
    }

    fn decoded_block<'b>(&self, block: Option<&'b [u8]>) -> Result<Vec<StoredAttr<'b>>, ReadFault> {
        let Some(bytes) = block else { return Ok(Vec::new()) };
        let decoded = decode_block(bytes).map(|(_, attrs)| attrs);
        decoded.map_err(|fact| ReadFault::corrupt(CorruptAt::block(self.block).of_ino(self.ino), fact))
    }

    fn stored<'b>(&self, block: Option<&'b [u8]>) -> Result<Vec<StoredAttr<'b>>, ReadFault>
    where
        'a: 'b,
    {
        let mut stored: Vec<StoredAttr<'b>> = self.decoded_body()?;
        stored.extend(self.decoded_block(block)?);
        Ok(stored)
    }

    /// The value in the format of the system calls; `None` for an ACL without entries.
    fn value(&self, values: &dyn ValueInodes, stored: &StoredAttr<'_>) -> Result<Option<Vec<u8>>, ReadFault> {
        let value = match stored.attr.value {
            AttrValue::Bytes(bytes) => bytes.to_vec(),
            AttrValue::Inode { ino, size, .. } => self.value_of_inode(values, stored, ino, size)?,
        };
        if !matches!(stored.attr.index, INDEX_ACL_ACCESS | INDEX_ACL_DEFAULT) {
            return Ok(Some(value));
        }
        let acl = Acl::from_disk(&value).map_err(|fact| self.corrupt(fact))?;
        Ok((!acl.entries.is_empty()).then(|| acl.to_xattr()))
    }

    fn value_of_inode(
        &self,
        values: &dyn ValueInodes,
        stored: &StoredAttr<'_>,
        ino: Ino,
        size: u32,
    ) -> Result<Vec<u8>, ReadFault> {
        let value = values.value(ino, size)?;
        let len_matches = value.len() as u64 == u64::from(size);
        let rule = "its value's inode must be as long as the entry says";
        Malformed::unless(len_matches, STRUCTURE, rule, value.len() as u64)
            .map_err(|fact| self.corrupt(fact))?;
        let hash_matches = self.fs_seed.is_none_or(|seed| stored.hash_matches_crc(crc32c(seed, &value)));
        Malformed::unless(hash_matches, STRUCTURE, "hash must be that of its value's inode", stored.hash)
            .map_err(|fact| self.corrupt(fact))?;
        Ok(value)
    }
}

/// Reads an attribute block. Inodes share blocks of equal attributes, so the block has no owner inode, and is
/// verified once for all.
fn verified_block(buffers: &Buffers, block: Pblk, fs_seed: Option<u32>) -> Result<Buffer, ReadFault> {
    buffers.get(block, Owner { kind: Kind::Xattr, ino: 0 }, |bytes| {
        if let Some(seed) = fs_seed {
            verify_block(bytes, seed, block)?;
        }
        decode_block(bytes).map(drop)
    })
}

/// Whether the kernel lists names of this index.
fn is_shown(index: u8) -> bool {
    !matches!(index, INDEX_SYSTEM | INDEX_RICHACL)
}

/// The attributes with a name in the system calls, each name once.
fn named<'s, 'b: 's>(
    stored: impl Iterator<Item = &'s StoredAttr<'b>>,
) -> impl Iterator<Item = (Vec<u8>, &'s StoredAttr<'b>)> {
    let mut seen = HashSet::new();
    stored.filter_map(move |stored| {
        let (index, suffix) = (stored.attr.index, stored.attr.name);
        let is_first = is_shown(index) && seen.insert((index, suffix));
        Some((full_name(index, suffix).filter(|_| is_first)?, stored))
    })
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_plan;
