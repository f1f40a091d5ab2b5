//! Plans the effect of an attribute change on the inode's body, its block and its value inodes. Nothing is
//! written here: a caller that can allocate carries out the [`Plan`].
//!
//! ```text
//! set:  inode's body  - no room ->  block  - no room ->  value in its own inode, entry in body or block
//! ```
//!
//! An attribute that moves is removed from its previous place. Attributes that the change does not name stay
//! where they are.
//!
//! ```
//! use extant_base::{BlockSize, Ino, Pblk};
//! use extant_device::MemDevice;
//! use extant_xattr::{BlockPlan, Change, Mode, Places, Rules};
//!
//! let device = std::sync::Arc::new(MemDevice::new(1 << 20));
//! let buffers = extant_buffer::Buffers::new(device, BlockSize::KIB4, 256, &extant_memory::Budget::new(1 << 20));
//! let body = [0; 96]; // of an inode of 256 bytes
//! let places = Places { ino: Ino(12), body: &body, block: Pblk(0), fs_seed: None };
//! let rules = Rules { block_size: BlockSize::KIB4, value_seed: None };
//!
//! let small = Change::set(b"user.mime", b"text/plain", Mode::Any).unwrap();
//! let small = small.plan(&places, &buffers, &rules).unwrap();
//! assert!(small.body.is_some() && small.block == BlockPlan::Keep);
//! let large = Change::set(b"user.icon", &[7; 900], Mode::Any).unwrap();
//! let large = large.plan(&places, &buffers, &rules).unwrap();
//! assert!(large.body.is_none() && matches!(large.block, BlockPlan::New(_)));
//! ```

use extant_base::checksum::crc32c;
use extant_base::{BlockSize, Ino, Pblk};
use extant_buffer::{Buffers, ReadFault};
use extant_ondisk::xattr::{
    Attr, AttrValue, INDEX_SYSTEM, NAME_LEN_MAX, REFCOUNT_MAX, StoredAttr, VALUE_LEN_MAX, block_len,
    decode_block, decode_ibody, encode_block, encode_ibody, entry_len, ibody_len, set_value_inode,
    split_name,
};
use extant_ondisk::xattr::{INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT, INDEX_SECURITY, INDEX_TRUSTED, INDEX_USER};

use crate::{BlockIndex, Places};

/// Placeholder in entries for the inode that does not exist yet.
const NOT_MADE: Ino = Ino(u32::MAX);

/// An attribute change is refused.
#[derive(Debug, thiserror::Error)]
pub enum ChangeFault {
    /// A structure cannot be read, or breaks a rule.
    #[error(transparent)]
    Read(#[from] ReadFault),
    /// ext4 has no attributes of this name, or they are set in another way (EOPNOTSUPP).
    #[error("attributes of this name are not supported")]
    Unsupported,
    /// A name that ends with its prefix (EINVAL).
    #[error("the attribute's name is empty behind its prefix")]
    EmptyName,
    /// More than 255 bytes, or none (ERANGE).
    #[error("the attribute's name is empty or too long")]
    NameLen,
    /// A value of more than 64 KiB (E2BIG).
    #[error("the attribute's value is too long")]
    ValueLen,
    /// It must not exist, but does (EEXIST).
    #[error("the attribute exists")]
    Exists,
    /// It must exist, but does not (ENODATA).
    #[error("no such attribute")]
    Absent,
    /// No room in body and block, and the value may not have an inode of its own (ENOSPC).
    #[error("no space for the attribute")]
    NoSpace,
}

/// Whether the attribute must exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// No condition; a removed attribute may be absent.
    #[default]
    Any,
    /// XATTR_CREATE: it must not exist.
    Create,
    /// XATTR_REPLACE: it must exist. Also used for removals by system calls.
    Replace,
}

/// Properties of the file system.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Its block size.
    pub block_size: BlockSize,
    /// With the feature ea_inode: the checksum seed of the file system, which values use even without
    /// metadata_csum.
    pub value_seed: Option<u32>,
}

/// One attribute to be set or removed.
#[derive(Debug, Clone, Copy)]
pub struct Change<'a> {
    /// Index of the name's prefix, as in [`extant_ondisk::xattr`].
    pub index: u8,
    /// The name after the prefix.
    pub name: &'a [u8],
    /// The new value; `None` removes the attribute. ACLs in their format on disk.
    pub value: Option<&'a [u8]>,
    /// Whether it must exist.
    pub mode: Mode,
}

/// The change of the attribute block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockPlan {
    /// None: the block stays, or there is none.
    Keep,
    /// A new block with these bytes becomes the inode's. The old block, if any, loses a reference.
    New(Vec<u8>),
    /// The inode's own block gets these bytes.
    Replace(Vec<u8>),
    /// The inode has no block any more. The old block loses a reference.
    Drop,
    /// An existing block becomes the inode's, with this reference count. The old block, if any, loses a
    /// reference.
    Share {
        /// The block.
        block: Pblk,
        /// Its new reference count.
        refcount: u32,
    },
}

/// The effect of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The new bytes of the inode's body; `None` if they do not change.
    pub body: Option<Vec<u8>>,
    /// The change of the attribute block.
    pub block: BlockPlan,
    /// The inode's previous block, and its reference count. If `block` drops the last reference, the block is
    /// freed.
    pub old_block: Option<(Pblk, u32)>,
    /// The change needs a new inode for its value, with one reference and this checksum (in `i_atime`). Pass
    /// its number to [`set_value_inode`](Self::set_value_inode).
    pub value_checksum: Option<u32>,
    values: Values,
}

/// The inodes that entries name, before and after the change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Values {
    old_body: Vec<Ino>,
    new_body: Vec<Ino>,
    old_block: Vec<Ino>,
    new_block: Vec<Ino>,
}

impl<'a> Change<'a> {
    /// Sets an attribute by its full name, as setxattr does.
    ///
    /// # Errors
    /// The kernel does not accept the name or the value. ACLs have their own rules ([`crate::acl`]) and are
    /// not set here.
    pub fn set(full: &'a [u8], value: &'a [u8], mode: Mode) -> Result<Self, ChangeFault> {
        let (index, name) = split(full)?;
        if value.len() > VALUE_LEN_MAX {
            return Err(ChangeFault::ValueLen);
        }
        Ok(Self { index, name, value: Some(value), mode })
    }

    /// Removes an attribute by its full name, as removexattr does: it must exist.
    ///
    /// # Errors
    /// As [`set`](Self::set), but ACLs are removed here too.
    pub fn remove(full: &'a [u8]) -> Result<Self, ChangeFault> {
        let acl =
            split_name(full).filter(|(index, _)| matches!(*index, INDEX_ACL_ACCESS | INDEX_ACL_DEFAULT));
        let (index, name) = acl.map_or_else(|| split(full), Ok)?;
        // Removing an absent ACL is not an error.
        let mode = if acl.is_some() { Mode::Any } else { Mode::Replace };
        Ok(Self { index, name, value: None, mode })
    }

    /// Plans the change. Nothing is changed yet.
    ///
    /// An inode of more than 128 bytes with an `extra_isize` of 0 has no attributes in its body: pass an
    /// empty body.
    ///
    /// # Errors
    /// A structure cannot be read; the attribute exists and must not, or the other way round; there is no
    /// room.
    ///
    /// # Panics
    /// If the name is longer than 255 bytes.
    pub fn plan(&self, places: &Places<'_>, buffers: &Buffers, rules: &Rules) -> Result<Plan, ChangeFault> {
        let held = places.block(buffers)?;
        let body = attrs(places.decoded_body()?);
        let block = attrs(places.decoded_block(held.as_deref())?);
        let refcount = held.as_deref().and_then(|bytes| extant_ondisk::xattr::refcount(bytes).ok());
        let is_it = |attr: &Attr<'_>| (attr.index, attr.name) == (self.index, self.name);
        let in_body = body.iter().position(is_it);
        let in_block = block.iter().position(is_it).filter(|_| in_body.is_none());
        let found = in_body.map(|at| body[at]).or(in_block.map(|at| block[at]));
        match (self.mode, found) {
            (Mode::Create, Some(_)) => return Err(ChangeFault::Exists),
            (Mode::Replace, None) => return Err(ChangeFault::Absent),
            _ => {}
        }
        let old_block = held.is_some().then_some((places.block, refcount.unwrap_or(1)));
        let unchanged = Plan::unchanged(old_block);
        let chosen = match (self.value, found) {
            (None, None) => return Ok(unchanged),
            (Some(new), Some(Attr { value: AttrValue::Bytes(old), .. })) if new == old => {
                return Ok(unchanged);
            }
            (None, Some(_)) => Chosen {
                body: in_body.map(|at| without(&body, at)),
                block: in_block.map(|at| without(&block, at)),
                value: None,
            },
            (Some(value), _) => self.choose(value, places, rules, (&body, in_body), (&block, in_block))?,
        };
        Ok(chosen.plan(unchanged, places.body.len(), rules, (&body, &block)))
    }

    /// Chooses a place for a value.
    fn choose<'l>(
        &self,
        value: &'l [u8],
        places: &Places<'_>,
        rules: &Rules,
        (body, in_body): (&[Attr<'l>], Option<usize>),
        (block, in_block): (&[Attr<'l>], Option<usize>),
    ) -> Result<Chosen<'l>, ChangeFault>
    where
        'a: 'l,
    {
        let block_len_max = rules.block_size.len();
        let is_inline_data = (self.index, self.name) == (INDEX_SYSTEM, b"data");
        let with = |list: &[Attr<'l>], at: Option<usize>, value: AttrValue<'l>| {
            let new = Attr { index: self.index, name: self.name, value };
            let mut list = list.to_vec();
            match at {
                Some(at) => list[at] = new,
                None => list.push(new),
            }
            list
        };
        let seed = rules.value_seed.filter(|_| !is_inline_data && !value.is_empty());
        let outside = |seed: u32| AttrValue::Inode {
            ino: NOT_MADE,
            size: value.len() as u32,
            hash: crc32c(seed, value),
        };
        // A value that would not fit into an otherwise empty block is not tried there.
        let is_large = value.len().next_multiple_of(4) > block_len_max - LARGE_LESS;
        let inside = (!is_large || seed.is_none()).then_some(AttrValue::Bytes(value));
        for stored in [inside, seed.map(outside)].into_iter().flatten() {
            let list = with(body, in_body, stored);
            if ibody_len(&list) <= places.body.len() & !3 {
                let block = in_block.map(|at| without(block, at));
                return Ok(Chosen { body: Some(list), block, value: Some(stored) });
            }
            if is_inline_data {
                break;
            }
            let list = with(block, in_block, stored);
            if block_len(&list) <= block_len_max && self.leaves_reserve(&list, stored, rules) {
                let body = in_body.map(|at| without(body, at));
                return Ok(Chosen { body, block: Some(list), value: Some(stored) });
            }
        }
        Err(ChangeFault::NoSpace)
    }

    /// If values may have inodes of their own, the front of a block is reserved for entries: an eighth, at
    /// most 1024 bytes.
    fn leaves_reserve(&self, list: &[Attr<'_>], stored: AttrValue<'_>, rules: &Rules) -> bool {
        let adds_bytes = matches!(stored, AttrValue::Bytes(bytes) if !bytes.is_empty());
        if rules.value_seed.is_none() || !adds_bytes {
            return true;
        }
        let values: usize = list.iter().map(|attr| attr.stored_len() - entry_len(attr.name.len())).sum();
        let len = rules.block_size.len();
        len - values >= (len / 8).min(1024)
    }
}

/// Overhead of a block with one value and a short name: header, entry, end. A longer value goes to an inode
/// of its own immediately.
const LARGE_LESS: usize = 32 + 20 + 4;

/// The chosen places: new lists of the parts that change.
struct Chosen<'l> {
    body: Option<Vec<Attr<'l>>>,
    block: Option<Vec<Attr<'l>>>,
    value: Option<AttrValue<'l>>,
}

impl Chosen<'_> {
    fn plan(self, mut plan: Plan, body_len: usize, rules: &Rules, old: (&[Attr<'_>], &[Attr<'_>])) -> Plan {
        if let Some(list) = &self.body {
            let mut bytes = vec![0; body_len];
            encode_ibody(list, &mut bytes).expect("measured before");
            plan.body = Some(bytes);
            plan.values.old_body = value_inodes(old.0);
            plan.values.new_body = value_inodes(list);
        }
        plan.values.old_block = value_inodes(old.1);
        if let Some(list) = &self.block {
            plan.values.new_block = value_inodes(list);
            let mut bytes = vec![0; rules.block_size.len()];
            plan.block = match plan.old_block {
                _ if list.is_empty() => BlockPlan::Drop,
                old => {
                    encode_block(list, 1, &mut bytes).expect("measured before");
                    // A shared block is not changed; the inode gets a copy.
                    if old.is_some_and(|(_, refcount)| refcount <= 1) {
                        BlockPlan::Replace(bytes)
                    } else {
                        BlockPlan::New(bytes)
                    }
                }
            };
        }
        if let Some(AttrValue::Inode { hash, .. }) = self.value {
            plan.value_checksum = Some(hash);
        }
        plan
    }
}

impl Plan {
    fn unchanged(old_block: Option<(Pblk, u32)>) -> Self {
        Self {
            body: None,
            block: BlockPlan::Keep,
            old_block,
            value_checksum: None,
            values: Values::default(),
        }
    }

    /// Whether the change has no effect.
    #[must_use]
    pub fn is_unchanged(&self) -> bool {
        self.body.is_none() && self.block == BlockPlan::Keep
    }

    /// Sets the number of the inode that was created for the value; see
    /// [`value_checksum`](Self::value_checksum).
    pub fn set_value_inode(&mut self, ino: Ino) {
        let is_it = |stored: &StoredAttr<'_>| matches!(stored.attr.value, AttrValue::Inode { ino, .. } if ino == NOT_MADE);
        if let Some(bytes) = &mut self.body {
            let offset = decode_ibody(bytes).ok().and_then(|all| all.into_iter().find(is_it));
            if let Some(offset) = offset.map(|stored| stored.offset) {
                set_value_inode(bytes, offset, ino);
            }
        }
        if let BlockPlan::New(bytes) | BlockPlan::Replace(bytes) = &mut self.block {
            let offset = decode_block(bytes).ok().and_then(|(_, all)| all.into_iter().find(is_it));
            if let Some(offset) = offset.map(|stored| stored.offset) {
                set_value_inode(bytes, offset, ino);
            }
        }
    }

    /// Sets the number of an existing inode with the same value, which gets one more reference; no inode is
    /// created. See [`value_checksum`](Self::value_checksum).
    pub fn share_value_inode(&mut self, ino: Ino) {
        self.set_value_inode(ino);
        let named = [&mut self.values.new_body, &mut self.values.new_block];
        named.into_iter().flatten().filter(|named| **named == NOT_MADE).for_each(|named| *named = ino);
    }

    /// Replaces a new block by an existing one with the same attributes, if the index has one that fewer than
    /// 1024 inodes share. Does nothing if the value's inode is not set yet.
    ///
    /// # Errors
    /// A block in the index cannot be read.
    pub fn share(
        &mut self,
        index: &BlockIndex,
        buffers: &Buffers,
        fs_seed: Option<u32>,
    ) -> Result<(), ReadFault> {
        let (BlockPlan::New(bytes) | BlockPlan::Replace(bytes)) = &self.block else { return Ok(()) };
        let Ok((header, wanted)) = decode_block(bytes) else { return Ok(()) };
        if header.hash == 0 {
            return Ok(());
        }
        for block in index.candidates(header.hash) {
            if self.old_block.is_some_and(|(old, _)| old == block) {
                continue;
            }
            let held = crate::verified_block(buffers, block, fs_seed)?;
            let Ok((found, attrs)) = decode_block(&held) else { continue };
            let alike =
                attrs.len() == wanted.len() && attrs.iter().zip(&wanted).all(|(a, b)| a.attr == b.attr);
            if alike && (1..REFCOUNT_MAX).contains(&found.refcount) {
                self.block = BlockPlan::Share { block, refcount: found.refcount + 1 };
                break;
            }
        }
        Ok(())
    }

    /// The hash for the [`BlockIndex`] of the block of [`BlockPlan::New`] or [`BlockPlan::Replace`]; `None`
    /// if there is nothing to insert.
    #[must_use]
    pub fn block_hash(&self) -> Option<u32> {
        let (BlockPlan::New(bytes) | BlockPlan::Replace(bytes)) = &self.block else { return None };
        decode_block(bytes).ok().map(|(header, _)| header.hash).filter(|hash| *hash != 0)
    }

    /// The change of each value inode's reference count. An inode with no references left is freed. A shared
    /// block counts once, however many inodes share it. The value inode created for this change is not
    /// included.
    #[must_use]
    pub fn value_references(&self) -> Vec<(Ino, i32)> {
        let Values { old_body, new_body, old_block, new_block } = &self.values;
        let old_goes = self.old_block.is_some_and(|(_, refcount)| refcount <= 1);
        let (adds, drops) = match &self.block {
            BlockPlan::Keep => (false, false),
            BlockPlan::New(_) => (true, old_goes),
            BlockPlan::Replace(_) => (true, true),
            BlockPlan::Drop | BlockPlan::Share { .. } => (false, old_goes),
        };
        let mut deltas: Vec<(Ino, i32)> = Vec::new();
        let mut add = |list: &[Ino], delta: i32| {
            for ino in list.iter().filter(|ino| **ino != NOT_MADE) {
                match deltas.iter_mut().find(|(known, _)| known == ino) {
                    Some((_, sum)) => *sum += delta,
                    None => deltas.push((*ino, delta)),
                }
            }
        };
        add(new_body, 1);
        add(old_body, -1);
        add(if adds { new_block } else { &[] }, 1);
        add(if drops { old_block } else { &[] }, -1);
        deltas.retain(|(_, delta)| *delta != 0);
        deltas
    }
}

impl Places<'_> {
    /// The longest value that fits into the body under this name, replacing an existing one; `None` if not
    /// even an empty one fits. Used to place inline data.
    ///
    /// # Errors
    /// The body breaks a rule.
    pub fn body_room(&self, index: u8, name: &[u8]) -> Result<Option<usize>, ReadFault> {
        let mut list = attrs(self.decoded_body()?);
        list.retain(|attr| (attr.index, attr.name) != (index, name));
        list.push(Attr { index, name, value: AttrValue::Bytes(&[]) });
        Ok((self.body.len() & !3).checked_sub(ibody_len(&list)))
    }
}

impl Places<'_> {
    /// Plans to shrink the body to `room` bytes, so that the inode's fixed fields can grow: attributes move
    /// to the block, first the smallest that frees enough. Inline data stays.
    ///
    /// # Errors
    /// [`ChangeFault::NoSpace`] if the block has no room for them; a structure cannot be read.
    pub fn shrunk(&self, buffers: &Buffers, rules: &Rules, room: usize) -> Result<Plan, ChangeFault> {
        let held = self.block(buffers)?;
        let old_body = attrs(self.decoded_body()?);
        let old_block = attrs(self.decoded_block(held.as_deref())?);
        let refcount = held.as_deref().and_then(|bytes| extant_ondisk::xattr::refcount(bytes).ok());
        let (mut body, mut block) = (old_body.clone(), old_block.clone());
        while ibody_len(&body) > room & !3 {
            let excess = ibody_len(&body) - (room & !3);
            let may_move = |attr: &Attr<'_>| attr.index != INDEX_SYSTEM;
            let movable = || body.iter().enumerate().filter(|(_, attr)| may_move(attr));
            let enough = movable().filter(|(_, attr)| attr.stored_len() >= excess);
            let chosen = enough.min_by_key(|(_, attr)| attr.stored_len());
            let chosen = chosen.or_else(|| movable().max_by_key(|(_, attr)| attr.stored_len()));
            let at = chosen.map(|(at, _)| at).ok_or(ChangeFault::NoSpace)?;
            block.push(body.remove(at));
        }
        if block_len(&block) > rules.block_size.len() {
            return Err(ChangeFault::NoSpace);
        }
        let block = (block.len() > old_block.len()).then_some(block);
        let chosen = Chosen { body: Some(body), block, value: None };
        let unchanged = Plan::unchanged(held.is_some().then_some((self.block, refcount.unwrap_or(1))));
        Ok(chosen.plan(unchanged, room, rules, (&old_body, &old_block)))
    }
}

fn attrs<'b>(stored: Vec<StoredAttr<'b>>) -> Vec<Attr<'b>> {
    stored.into_iter().map(|stored| stored.attr).collect()
}

fn without<'l>(list: &[Attr<'l>], at: usize) -> Vec<Attr<'l>> {
    let mut list = list.to_vec();
    list.remove(at);
    list
}

fn value_inodes(list: &[Attr<'_>]) -> Vec<Ino> {
    let ino = |attr: &Attr<'_>| match attr.value {
        AttrValue::Inode { ino, .. } => Some(ino),
        AttrValue::Bytes(_) => None,
    };
    list.iter().filter_map(ino).collect()
}

/// Index and suffix of a name that callers may set directly.
fn split(full: &[u8]) -> Result<(u8, &[u8]), ChangeFault> {
    if full.is_empty() || full.len() > NAME_LEN_MAX {
        return Err(ChangeFault::NameLen);
    }
    match split_name(full) {
        Some((index @ (INDEX_USER | INDEX_TRUSTED | INDEX_SECURITY), name)) => Ok((index, name)),
        None if [&b"user."[..], b"trusted.", b"security."].contains(&full) => Err(ChangeFault::EmptyName),
        _ => Err(ChangeFault::Unsupported),
    }
}
