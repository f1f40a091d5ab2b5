//! The attributes of one inode, and the room for them.
//!
//! An attribute lies in the body of its inode, after the fixed fields, or in the inode's attribute block. An
//! entry takes 16 bytes and the name without its prefix, a value its length, both rounded up to 4. Values
//! grow from the end towards the entries:
//!
//! ```text
//! body   4 magic  | entries … 4 zeros … values |  256 - 128 - 32 bytes
//! block  32 header| entries … 4 zeros … values |  4096 bytes
//! ```
//!
//! The kernel's rules, in this order. They decide where an attribute lies, and so what fits later.
//! 1. A value that does not change changes nothing.
//! 2. With `ea_inode`, a value too large for a block of its own goes to an EA inode: it takes no room.
//! 3. The body is tried first, also for an attribute in the block, which then leaves the block.
//! 4. Then the block is tried, also for an attribute in the body, which then leaves the body. With `ea_inode`
//!    an eighth of the block is reserved for entries.
//! 5. Then, with `ea_inode`, the same is repeated with the value in an EA inode. Then `ENOSPC`.
//! 6. A value of the same rounded length, in the same place, always fits.
//!
//! Source: kernel Documentation/filesystems/ext4/attributes.rst; the order was observed.

use std::collections::BTreeMap;

use super::Limits;
use crate::acl::Acl;
use crate::errno::Errno;
use crate::op::{AclType, Bytes, XattrMode};

const FIXED_INODE_LEN: usize = 128 + 32;
const BODY_MAGIC_LEN: usize = 4;
const BLOCK_HEADER_LEN: usize = 32;
const END_MARK_LEN: usize = 4;
/// Bytes of an entry before its name.
const ENTRY_LEN: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AttributePlace {
    Body,
    Block,
}

#[derive(Debug, Clone)]
struct Attribute {
    name: Bytes,
    value: Bytes,
    /// Bytes of its value in its place, rounded up; 0 for a value in an EA inode.
    place: AttributePlace,
    room: usize,
    in_inode: bool,
}

impl Attribute {
    fn entry_len(&self) -> usize {
        (ENTRY_LEN + stored_name_len(&self.name.0)).next_multiple_of(4)
    }
}

/// Stored bytes of a name: a prefix is a number, and the name of an ACL is only a prefix.
fn stored_name_len(name: &[u8]) -> usize {
    if AclType::of_xattr_name(name).is_some() {
        return 0;
    }
    name.len() - name.iter().position(|&byte| byte == b'.').map_or(0, |dot| dot + 1)
}

#[derive(Debug, Clone, Default)]
pub(super) struct Attributes(Vec<Attribute>);

impl Attributes {
    pub(super) fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.0.iter().find(|attribute| attribute.name.0 == name).map(|attribute| attribute.value.0.as_slice())
    }

    pub(super) fn all(&self) -> BTreeMap<Bytes, Bytes> {
        self.0.iter().map(|attribute| (attribute.name.clone(), attribute.value.clone())).collect()
    }

    /// Whether a value lies in an EA inode.
    pub(super) fn use_ea_inode(&self) -> bool {
        self.0.iter().any(|attribute| attribute.in_inode)
    }

    /// Removes an attribute. Returns whether it existed.
    pub(super) fn remove(&mut self, name: &[u8]) -> bool {
        let n_before = self.0.len();
        self.0.retain(|attribute| attribute.name.0 != name);
        self.0.len() < n_before
    }

    pub(super) fn set(
        &mut self,
        limits: &Limits,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Errno> {
        match (self.get(name), mode) {
            (None, XattrMode::Replace) => return Err(Errno::ENODATA),
            (Some(_), XattrMode::Create) => return Err(Errno::EEXIST),
            _ => {}
        }
        self.put(limits, name, value, value.len())
    }

    pub(super) fn set_acl(
        &mut self,
        limits: &Limits,
        acl_type: AclType,
        acl: Option<&Acl>,
    ) -> Result<(), Errno> {
        let name = acl_type.xattr_name().as_bytes();
        match acl {
            Some(acl) => self.put(limits, name, &acl.to_xattr(), acl.stored_len()),
            None => {
                self.remove(name);
                Ok(())
            }
        }
    }

    fn put(&mut self, limits: &Limits, name: &[u8], value: &[u8], stored_len: usize) -> Result<(), Errno> {
        let old = self.0.iter().position(|attribute| attribute.name.0 == name);
        // Rule 1. Values in EA inodes are not compared, but they find room again.
        if old.is_some_and(|old| !self.0[old].in_inode && self.0[old].value.0 == value) {
            return Ok(());
        }
        // Rule 2: too large even with a single entry of the shortest name.
        let alone = limits.block_size as usize
            - (ENTRY_LEN + 3).next_multiple_of(4)
            - BLOCK_HEADER_LEN
            - END_MARK_LEN;
        let is_large = stored_len.next_multiple_of(4) > alone;
        let candidates: &[bool] = match (limits.ea_inode, is_large) {
            (false, _) => &[false],
            (true, true) => &[true],
            (true, false) if stored_len == 0 => &[false],
            (true, false) => &[false, true],
        };
        for &in_inode in candidates {
            for place in [AttributePlace::Body, AttributePlace::Block] {
                let room = if in_inode { 0 } else { stored_len.next_multiple_of(4) };
                let new = Attribute { name: name.into(), value: value.into(), place, room, in_inode };
                if self.fits(limits, &new, old) {
                    match old {
                        Some(old) => self.0[old] = new,
                        None => self.0.push(new),
                    }
                    return Ok(());
                }
            }
        }
        Err(Errno::ENOSPC)
    }

    /// Rules 3, 4 and 6.
    fn fits(&self, limits: &Limits, new: &Attribute, old: Option<usize>) -> bool {
        let old = old.filter(|&old| self.0[old].place == new.place);
        if new.room > 0 && old.is_some_and(|old| self.0[old].room == new.room) {
            return true;
        }
        let whole = match new.place {
            AttributePlace::Body => {
                (limits.inode_size as usize).saturating_sub(FIXED_INODE_LEN + BODY_MAGIC_LEN)
            }
            AttributePlace::Block => limits.block_size as usize - BLOCK_HEADER_LEN,
        };
        let others = self.0.iter().enumerate().filter(|(n, a)| a.place == new.place && Some(*n) != old);
        let (entries, values) =
            others.fold((0, 0), |(entries, values), (_, a)| (entries + a.entry_len(), values + a.room));
        // Measured from the beginning of the block, including the header.
        if new.place == AttributePlace::Block && limits.ea_inode && new.room > 0 {
            let reserve = (limits.block_size as usize / 8).min(1024);
            if (limits.block_size as usize).saturating_sub(values + new.room) < reserve {
                return false;
            }
        }
        entries + values + END_MARK_LEN + new.entry_len() + new.room <= whole
    }
}
