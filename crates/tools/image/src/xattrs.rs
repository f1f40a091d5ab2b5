//! Plans extended attributes: the part in the inode, the part in a shared block, and values in inodes of
//! their own.
//!
//! Each distinct set of attributes is planned once, regardless of the number of inodes that have it.
//!
//! Invariants
//! 1. An attribute is stored in the inode if there is room, otherwise in the set's block. A value that does
//!    not fit into a block with the others is stored in an EA inode, if the feature allows it.
//! 2. At most 1024 inodes share a block, the kernel's limit. A set with more users has several copies.
//! 3. Equal large values share one EA inode.
//! 4. ACLs without entries are not stored, nor are access ACLs that only repeat the mode.
//!
//! Source: kernel Documentation/filesystems/ext4/attributes.rst.

use std::collections::HashMap;

use extant_base::checksum::crc32c;
use extant_base::{BlockSize, Ino, Pblk};
use extant_ondisk::Features;
use extant_ondisk::acl::Acl;
use extant_ondisk::inode::{BASE_SIZE, EXTRA_SIZE};
use extant_ondisk::xattr::{
    Attr, AttrValue, INDEX_ACL_ACCESS, block_len, encode_block, encode_ibody, ibody_len, seal_block,
    split_name,
};

use crate::source::entry::Xattr;

/// Maximum number of inodes that share one attribute block.
pub const SHARERS_MAX: u32 = 1024;
/// Maximum length of one attribute's value in bytes.
const VALUE_MAX: usize = 64 << 10;

/// Why a set of attributes cannot be stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum XattrFault {
    /// ext4 does not support the name's prefix.
    #[error("extended attribute \"{0}\" has no prefix that ext4 can store")]
    UnknownPrefix(String),
    /// The name after the prefix is longer than 255 bytes.
    #[error("extended attribute \"{0}\" has a name above 255 bytes")]
    NameTooLong(String),
    /// The value is a malformed ACL.
    #[error("extended attribute \"{name}\" is no POSIX ACL: {why}")]
    BadAcl {
        /// The attribute.
        name: String,
        /// The finding.
        why: String,
    },
    /// The attributes exceed the inode and a block, and the ea_inode feature is off.
    #[error("extended attributes need {needed} bytes, and a block has {space}: add the feature ea_inode")]
    TooLarge {
        /// Bytes needed in a block.
        needed: usize,
        /// Size of a block in bytes.
        space: usize,
    },
    /// A value exceeds 64 KiB, or the names alone exceed a block.
    #[error("extended attributes are too large even for the ea_inode feature ({0} bytes)")]
    FarTooLarge(usize),
    /// The file system has no ext_attr feature.
    #[error("extended attributes need the feature ext_attr")]
    NoFeature,
}

/// An attribute with its name split. An ACL is in its disk form.
#[derive(Debug, Clone)]
struct DiskAttr {
    index: u8,
    name: Vec<u8>,
    value: Vec<u8>,
    /// Index into [`XattrPlan::large_values`] if the value has an inode of its own.
    large: Option<u32>,
}

/// The plan for one set.
#[derive(Debug, Clone, Default)]
pub struct SetPlan {
    in_inode: Vec<DiskAttr>,
    in_block: Vec<DiskAttr>,
}

impl SetPlan {
    /// Whether this set needs a block.
    #[must_use]
    pub fn needs_block(&self) -> bool {
        !self.in_block.is_empty()
    }

    /// Whether this set has no attributes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.in_inode.is_empty() && self.in_block.is_empty()
    }
}

/// A value with an inode of its own.
#[derive(Debug, Clone)]
pub struct LargeValue {
    /// The value.
    pub bytes: Vec<u8>,
    /// Checksum with the file system's seed.
    pub hash: u32,
    /// Attribute blocks that refer to it.
    pub references: u32,
}

/// The plan for all sets.
#[derive(Debug, Clone, Default)]
pub struct XattrPlan {
    /// One plan per set, indexed by the set's number.
    pub sets: Vec<SetPlan>,
    /// Number of attribute blocks that each set needs.
    pub copies: Vec<u32>,
    /// Values with inodes of their own.
    pub large_values: Vec<LargeValue>,
}

/// The properties of the file system that the plan depends on.
#[derive(Debug, Clone, Copy)]
pub struct XattrSpace {
    /// Bytes after the inode's fixed fields.
    pub ibody: usize,
    /// Block size.
    pub block_size: BlockSize,
    /// Whether ext_attr is on.
    pub ext_attr: bool,
    /// Whether ea_inode is on.
    pub ea_inode: bool,
    /// Checksum seed of the file system.
    pub fs_seed: u32,
}

impl XattrSpace {
    /// The space in a file system with these properties.
    #[must_use]
    pub fn new(features: &Features, inode_size: usize, block_size: BlockSize, fs_seed: u32) -> Self {
        Self {
            ibody: inode_size.saturating_sub(BASE_SIZE + EXTRA_SIZE),
            block_size,
            ext_attr: features.has_compat(Features::EXT_ATTR),
            ea_inode: features.has_incompat(Features::EA_INODE),
            fs_seed,
        }
    }
}

impl XattrPlan {
    /// Plans all sets. `users[set]` is the number of inodes with that set.
    ///
    /// # Errors
    /// The number of the first set that cannot be stored, and the reason.
    pub fn new(sets: &[Vec<Xattr>], users: &[u32], space: &XattrSpace) -> Result<Self, (u32, XattrFault)> {
        let mut plan = Self::default();
        let mut large_ids = HashMap::new();
        for (number, set) in sets.iter().enumerate() {
            let used = users.get(number).copied().unwrap_or(0);
            let set_plan = if used == 0 || set.is_empty() {
                SetPlan::default()
            } else {
                plan.plan_set(set, space, &mut large_ids).map_err(|fault| (number as u32, fault))?
            };
            let copies = if set_plan.needs_block() { used.div_ceil(SHARERS_MAX) } else { 0 };
            for attr in &set_plan.in_block {
                if let Some(large) = attr.large {
                    plan.large_values[large as usize].references += copies;
                }
            }
            plan.sets.push(set_plan);
            plan.copies.push(copies);
        }
        Ok(plan)
    }

    fn plan_set(
        &mut self,
        set: &[Xattr],
        space: &XattrSpace,
        large_ids: &mut HashMap<Vec<u8>, u32>,
    ) -> Result<SetPlan, XattrFault> {
        let attrs = set.iter().filter_map(|xattr| to_disk(xattr).transpose());
        let mut attrs = attrs.collect::<Result<Vec<_>, _>>()?;
        if !attrs.is_empty() && !space.ext_attr {
            return Err(XattrFault::NoFeature);
        }
        // Every access check reads labels and ACLs, so they get the inode's space first.
        attrs.sort_by_key(|attr| (attr.index != 6, attr.index > 3, attr.index));
        let mut plan = SetPlan::default();
        for attr in attrs {
            plan.in_inode.push(attr);
            if ibody_len(&borrow(&plan.in_inode)) > space.ibody {
                plan.in_block.extend(plan.in_inode.pop());
            }
        }
        while block_len(&borrow(&plan.in_block)) > space.block_size.len() {
            let needed = block_len(&borrow(&plan.in_block));
            if !space.ea_inode {
                return Err(XattrFault::TooLarge { needed, space: space.block_size.len() });
            }
            let largest =
                plan.in_block.iter_mut().filter(|a| a.large.is_none()).max_by_key(|a| a.value.len());
            let Some(attr) = largest else { return Err(XattrFault::FarTooLarge(needed)) };
            if attr.value.len() > VALUE_MAX || attr.value.is_empty() {
                return Err(XattrFault::FarTooLarge(needed));
            }
            attr.large = Some(*large_ids.entry(attr.value.clone()).or_insert_with(|| {
                let hash = crc32c(space.fs_seed, &attr.value);
                self.large_values.push(LargeValue { bytes: attr.value.clone(), hash, references: 0 });
                self.large_values.len() as u32 - 1
            }));
        }
        Ok(plan)
    }

    /// Lengths in bytes of the values of a set that have inodes of their own.
    pub fn large_lengths(&self, set: u32) -> impl Iterator<Item = u64> + '_ {
        let attrs = self.sets.get(set as usize).map_or(&[][..], |plan| &plan.in_block);
        attrs.iter().filter(|attr| attr.large.is_some()).map(|attr| attr.value.len() as u64)
    }

    /// Writes a set's in-inode part into the area after an inode's fixed fields.
    pub fn encode_ibody(&self, set: u32, area: &mut [u8]) {
        let attrs = borrow(&self.sets[set as usize].in_inode);
        encode_ibody(&attrs, area).expect("planned to fit the inode");
    }

    /// Encodes one copy of a set's block and seals it for its block address. `large_inos[i]` is the inode of
    /// large value `i`.
    #[must_use]
    pub fn encode_block(
        &self,
        set: u32,
        refcount: u32,
        place: Pblk,
        large_inos: &[Ino],
        space: &XattrSpace,
        seal: bool,
    ) -> Vec<u8> {
        let mut block = vec![0; space.block_size.len()];
        let in_block = &self.sets[set as usize].in_block;
        let mut attrs = borrow(in_block);
        for (attr, planned) in attrs.iter_mut().zip(in_block) {
            if let Some(large) = planned.large {
                let value = &self.large_values[large as usize];
                attr.value = AttrValue::Inode {
                    ino: large_inos[large as usize],
                    size: value.bytes.len() as u32,
                    hash: value.hash,
                };
            }
        }
        encode_block(&attrs, refcount, &mut block).expect("planned to fit a block");
        if seal {
            seal_block(&mut block, space.fs_seed, place);
        }
        block
    }
}

fn borrow(attrs: &[DiskAttr]) -> Vec<Attr<'_>> {
    attrs
        .iter()
        .map(|attr| Attr {
            index: attr.index,
            name: &attr.name,
            value: match attr.large {
                None => AttrValue::Bytes(&attr.value),
                // Only the size matters until the inode is known.
                Some(_) => AttrValue::Inode { ino: Ino(0), size: attr.value.len() as u32, hash: 0 },
            },
        })
        .collect()
}

/// The stored form of an attribute. `None` for an ACL without entries, or an access ACL that only repeats the
/// mode; the kernel stores neither.
fn to_disk(xattr: &Xattr) -> Result<Option<DiskAttr>, XattrFault> {
    let shown = || String::from_utf8_lossy(&xattr.name).into_owned();
    let (index, suffix) = split_name(&xattr.name).ok_or_else(|| XattrFault::UnknownPrefix(shown()))?;
    if suffix.len() > 255 {
        return Err(XattrFault::NameTooLong(shown()));
    }
    let value = if matches!(index, 2 | 3) {
        let acl = Acl::from_xattr(&xattr.value)
            .map_err(|broken| XattrFault::BadAcl { name: shown(), why: broken.to_string() })?;
        if acl.entries.is_empty() || index == INDEX_ACL_ACCESS && acl.is_minimal() {
            return Ok(None);
        }
        acl.to_disk()
    } else {
        xattr.value.clone()
    };
    Ok(Some(DiskAttr { index, name: suffix.to_vec(), value, large: None }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(name: &str, value: &[u8], ext_attr: bool) -> Result<XattrPlan, (u32, XattrFault)> {
        let features =
            Features { compat: if ext_attr { Features::EXT_ATTR } else { 0 }, ..Features::default() };
        let space = XattrSpace::new(&features, 256, BlockSize::KIB4, 0);
        let xattr = Xattr { name: name.as_bytes().to_vec(), value: value.to_vec() };
        XattrPlan::new(&[vec![xattr]], &[1], &space)
    }

    /// The kernel stores no ACL without entries, and no access ACL that only repeats the mode. It does store
    /// a default ACL that repeats the mode.
    #[test]
    fn acls_that_say_nothing_are_not_stored() {
        let empty = 2u32.to_le_bytes().to_vec();
        let entry = |tag: u8| [&[tag, 0, 4, 0][..], &[0xFF; 4]].concat();
        let minimal = [empty.clone(), entry(1), entry(4), entry(0x20)].concat();
        let (access, default) = ("system.posix_acl_access", "system.posix_acl_default");
        for (name, value, is_stored) in [
            (access, &empty, false),
            (default, &empty, false),
            (access, &minimal, false),
            (default, &minimal, true),
        ] {
            assert_eq!(!planned(name, value, true).unwrap().sets[0].is_empty(), is_stored, "{name}");
            // An ACL that is not stored does not need the feature.
            assert_eq!(planned(name, value, false).is_err(), is_stored);
        }
    }
}
