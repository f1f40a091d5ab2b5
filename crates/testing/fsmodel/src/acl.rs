//! POSIX ACLs in the format of the system calls, and their arithmetic with modes.
//!
//! Source: acl(5); POSIX 1003.1e draft 17 sections 23.1.5 and 23.1.6. Format of the attribute: version 2,
//! then entries of tag, permissions (16 bits each) and id (32 bits), little endian.

use crate::errno::Errno;

/// Tags of [`AclEntry`].
#[allow(missing_docs, reason = "the names are acl(5)'s")]
pub mod tag {
    pub const USER_OBJ: u16 = 0x01;
    pub const USER: u16 = 0x02;
    pub const GROUP_OBJ: u16 = 0x04;
    pub const GROUP: u16 = 0x08;
    pub const MASK: u16 = 0x10;
    pub const OTHER: u16 = 0x20;
}

const VERSION: u32 = 2;
/// Id of entries that have no id.
const NO_ID: u32 = u32::MAX;

/// An entry of an ACL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AclEntry {
    /// A constant of [`tag`]; the subject refuses others.
    pub tag: u16,
    /// rwx in the low three bits; the subject refuses higher bits.
    pub perm: u16,
    /// The user or group of a `USER` or `GROUP` entry; ignored in others.
    pub id: u32,
}

/// An ACL, not necessarily a valid one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Acl {
    /// In the order of the attribute's value.
    pub entries: Vec<AclEntry>,
}

impl Acl {
    /// Encodes the value of `system.posix_acl_access` or `_default`.
    #[must_use]
    pub fn to_xattr(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for entry in &self.entries {
            let id = if matches!(entry.tag, tag::USER | tag::GROUP) { entry.id } else { NO_ID };
            value.extend(entry.tag.to_le_bytes());
            value.extend(entry.perm.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    }

    /// Decodes an attribute's value. A value without entries is `None` and removes the ACL.
    ///
    /// # Errors
    /// `EINVAL` for a length that no ACL has, an unknown tag or an id of -1; `EOPNOTSUPP` for another
    /// version.
    pub(crate) fn from_xattr(value: &[u8]) -> Result<Option<Self>, Errno> {
        if value.is_empty() {
            return Ok(None);
        }
        let Some((version, entries)) = value.split_first_chunk::<4>() else { return Err(Errno::EINVAL) };
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Errno::EOPNOTSUPP);
        }
        if !entries.len().is_multiple_of(8) {
            return Err(Errno::EINVAL);
        }
        let entries = entries.chunks_exact(8).map(|raw| {
            let entry = AclEntry {
                tag: u16::from_le_bytes([raw[0], raw[1]]),
                perm: u16::from_le_bytes([raw[2], raw[3]]),
                id: u32::from_le_bytes([raw[4], raw[5], raw[6], raw[7]]),
            };
            match entry.tag {
                tag::USER_OBJ | tag::GROUP_OBJ | tag::MASK | tag::OTHER => {
                    Ok(AclEntry { id: NO_ID, ..entry })
                }
                tag::USER | tag::GROUP if entry.id != NO_ID => Ok(entry),
                _ => Err(Errno::EINVAL),
            }
        });
        let entries = entries.collect::<Result<Vec<_>, _>>()?;
        Ok((!entries.is_empty()).then_some(Self { entries }))
    }

    /// Bytes that ext4 stores: 4 for the version, 4 for an entry without an id, 8 for an entry with one.
    pub(crate) fn stored_len(&self) -> usize {
        let entry_len = |entry: &AclEntry| if matches!(entry.tag, tag::USER | tag::GROUP) { 8 } else { 4 };
        4 + self.entries.iter().map(entry_len).sum::<usize>()
    }

    /// Whether it has one owner, users, one group, groups, one mask if there are users or groups, and one
    /// other, in this order.
    pub(crate) fn is_valid(&self) -> bool {
        let ranks = self.entries.iter().map(|entry| match entry.tag {
            _ if entry.perm > 7 => None,
            tag::USER_OBJ => Some(0),
            tag::USER => Some(1),
            tag::GROUP_OBJ => Some(2),
            tag::GROUP => Some(3),
            tag::MASK => Some(4),
            tag::OTHER => Some(5),
            _ => None,
        });
        let Some(ranks) = ranks.collect::<Option<Vec<u8>>>() else { return false };
        let count = |rank| ranks.iter().filter(|&&other| other == rank).count();
        let needs_mask = count(1) + count(3) > 0;
        ranks.is_sorted()
            && [0, 2, 5].into_iter().all(|rank| count(rank) == 1)
            && count(4) <= 1
            && (count(4) == 1 || !needs_mask)
    }

    /// Whether the nine bits of a mode express it completely.
    pub(crate) fn is_trivial(&self) -> bool {
        !self.entries.iter().any(|entry| matches!(entry.tag, tag::USER | tag::GROUP | tag::MASK))
    }

    fn perm(&self, tag: u16) -> Option<u16> {
        self.entries.iter().find(|entry| entry.tag == tag).map(|entry| entry.perm)
    }

    fn set_perm(&mut self, tag: u16, perm: u16) {
        for entry in self.entries.iter_mut().filter(|entry| entry.tag == tag) {
            entry.perm = perm;
        }
    }

    /// The entry that corresponds to the group bits of the mode.
    fn group_class(&self) -> u16 {
        if self.perm(tag::MASK).is_some() { tag::MASK } else { tag::GROUP_OBJ }
    }

    /// The nine permission bits of the corresponding mode.
    pub(crate) fn mode(&self) -> u16 {
        let perm = |tag| self.perm(tag).unwrap_or(0) & 7;
        (perm(tag::USER_OBJ) << 6) | (perm(self.group_class()) << 3) | perm(tag::OTHER)
    }

    /// Applies a `chmod`: the owner, the mask (or the group without a mask) and other get the bits of the
    /// mode.
    pub(crate) fn chmod(&mut self, mode: u16) {
        self.set_perm(tag::USER_OBJ, (mode >> 6) & 7);
        self.set_perm(self.group_class(), (mode >> 3) & 7);
        self.set_perm(tag::OTHER, mode & 7);
    }

    /// The access ACL of an object created with `mode` under this default ACL. Its [`mode`](Self::mode)
    /// becomes the object's mode.
    pub(crate) fn inherited(&self, mode: u16) -> Self {
        let mut acl = self.clone();
        acl.chmod(self.mode() & mode);
        acl
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16)]) -> Acl {
        Acl { entries: entries.iter().map(|&(tag, perm)| AclEntry { tag, perm, id: 7 }).collect() }
    }

    #[test]
    fn order_and_mask_make_it_valid() {
        use tag::{GROUP, GROUP_OBJ, MASK, OTHER, USER, USER_OBJ};
        assert!(acl(&[(USER_OBJ, 7), (GROUP_OBJ, 5), (OTHER, 0)]).is_valid());
        assert!(
            acl(&[(USER_OBJ, 7), (USER, 1), (USER, 1), (GROUP_OBJ, 5), (MASK, 7), (OTHER, 0)]).is_valid()
        );
        assert!(!acl(&[(USER_OBJ, 7), (USER, 1), (GROUP_OBJ, 5), (OTHER, 0)]).is_valid(), "no mask");
        assert!(
            !acl(&[(USER_OBJ, 7), (GROUP, 1), (GROUP_OBJ, 5), (MASK, 0), (OTHER, 0)]).is_valid(),
            "order"
        );
        assert!(!acl(&[(USER_OBJ, 8), (GROUP_OBJ, 5), (OTHER, 0)]).is_valid(), "a fourth bit");
        assert!(!acl(&[]).is_valid());
    }

    #[test]
    fn the_mask_is_the_group_of_the_mode() {
        use tag::{GROUP_OBJ, MASK, OTHER, USER, USER_OBJ};
        let mut acl = acl(&[(USER_OBJ, 7), (USER, 6), (GROUP_OBJ, 5), (MASK, 6), (OTHER, 1)]);
        assert_eq!(acl.mode(), 0o761);
        acl.chmod(0o520);
        assert_eq!((acl.mode(), acl.perm(GROUP_OBJ)), (0o520, Some(5)));
        assert_eq!(acl.inherited(0o077).mode(), 0o020);
        assert_eq!(Acl::from_xattr(&acl.to_xattr()).unwrap().unwrap().mode(), 0o520);
    }
}
