//! POSIX access control lists, in the form of the system calls and in ext4's shorter form on disk.
//!
//! Does **not** own: the storage of the list (attributes of index 2 and 3, see [`crate::xattr`]), and access
//! decisions.
//!
//! ```text
//! system call   | le32 2 | le16 tag, le16 perm, le32 id | ...      every entry has an id, mostly "undefined"
//! on disk       | le32 1 | le16 tag, le16 perm [, le32 id] | ...   only named users and groups have one
//! ```
//!
//! Invariants
//! 1. Both forms store the same value: `from_disk(to_disk(acl)) == acl`, `from_xattr(to_xattr(acl)) == acl`.
//! 2. Decoding accepts any list of known tags; [`Acl::validate`] checks whether the kernel accepts it.
//!
//! Source: kernel Documentation/filesystems/ext4/attributes.rst; acl(5).

use extant_base::Malformed;

const XATTR_VERSION: u32 = 2;
const DISK_VERSION: u32 = 1;
const UNDEFINED_ID: u32 = u32::MAX;
const STRUCTURE: &str = "ACL";

/// The user or group of an entry. Named ones include their ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AclTag {
    /// The file's owner.
    UserObj,
    /// A named user.
    User(u32),
    /// The file's group.
    GroupObj,
    /// A named group.
    Group(u32),
    /// The maximum permissions of named users, named groups and the file's group.
    Mask,
    /// All others.
    Other,
}

impl AclTag {
    /// The tag's number; a valid list is sorted by it.
    #[must_use]
    pub fn code(self) -> u16 {
        match self {
            Self::UserObj => 0x01,
            Self::User(_) => 0x02,
            Self::GroupObj => 0x04,
            Self::Group(_) => 0x08,
            Self::Mask => 0x10,
            Self::Other => 0x20,
        }
    }

    /// The ID of a named user or group.
    #[must_use]
    pub fn id(self) -> Option<u32> {
        match self {
            Self::User(id) | Self::Group(id) => Some(id),
            _ => None,
        }
    }

    fn from_code(code: u16, id: impl FnOnce() -> Option<u32>) -> Option<Self> {
        Some(match code {
            0x01 => Self::UserObj,
            0x02 => Self::User(id()?),
            0x04 => Self::GroupObj,
            0x08 => Self::Group(id()?),
            0x10 => Self::Mask,
            0x20 => Self::Other,
            _ => return None,
        })
    }
}

/// One entry of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AclEntry {
    /// The user or group.
    pub tag: AclTag,
    /// Read 4, write 2, execute 1.
    pub perm: u16,
}

/// An access control list.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Acl {
    /// The entries in order.
    pub entries: Vec<AclEntry>,
}

impl Acl {
    /// Decodes the value that getxattr returns and archives store.
    ///
    /// # Errors
    /// A version other than 2, a length that is not a whole number of entries, an unknown tag.
    pub fn from_xattr(value: &[u8]) -> Result<Self, Malformed> {
        let mut rest = after_version(value, XATTR_VERSION)?;
        let mut entries = Vec::with_capacity(rest.len() / 8);
        while !rest.is_empty() {
            let (Some((code, perm)), Some(id)) = (tag_and_perm(rest), le32(rest, 4)) else {
                return Err(Malformed::new(STRUCTURE, "must end with a whole entry", value.len() as u64));
            };
            entries.push(entry(code, perm, Some(id))?);
            rest = &rest[8..];
        }
        Ok(Self { entries })
    }

    /// Encodes the value that setxattr and archives take.
    #[must_use]
    pub fn to_xattr(&self) -> Vec<u8> {
        let mut value = XATTR_VERSION.to_le_bytes().to_vec();
        for AclEntry { tag, perm } in &self.entries {
            value.extend(tag.code().to_le_bytes());
            value.extend(perm.to_le_bytes());
            value.extend(tag.id().unwrap_or(UNDEFINED_ID).to_le_bytes());
        }
        value
    }

    /// Decodes the value that ext4 stores.
    ///
    /// # Errors
    /// A version other than 1, a truncated entry, an unknown tag.
    pub fn from_disk(value: &[u8]) -> Result<Self, Malformed> {
        let mut rest = after_version(value, DISK_VERSION)?;
        let mut entries = Vec::with_capacity(rest.len() / 4);
        while !rest.is_empty() {
            let Some((code, perm)) = tag_and_perm(rest) else {
                return Err(Malformed::new(STRUCTURE, "must end with a whole entry", value.len() as u64));
            };
            let entry = entry(code, perm, le32(rest, 4))?;
            rest = &rest[disk_entry_len(entry.tag)..];
            entries.push(entry);
        }
        Ok(Self { entries })
    }

    /// Encodes the value that ext4 stores.
    #[must_use]
    pub fn to_disk(&self) -> Vec<u8> {
        let mut value = DISK_VERSION.to_le_bytes().to_vec();
        for AclEntry { tag, perm } in &self.entries {
            value.extend(tag.code().to_le_bytes());
            value.extend(perm.to_le_bytes());
            if let Some(id) = tag.id() {
                value.extend(id.to_le_bytes());
            }
        }
        value
    }

    /// Checks whether the kernel accepts this list. Its order is owner, named users, group, named groups,
    /// mask, others. Owner, group and others occur exactly once. The mask occurs at most once, and must exist
    /// if there are named entries. Permissions are rwx, and named IDs are valid. A list without entries is
    /// also valid and means "no ACL".
    ///
    /// # Errors
    /// The first broken rule.
    pub fn validate(&self) -> Result<(), Malformed> {
        let rule = |holds, rule, found: u32| Malformed::unless(holds, STRUCTURE, rule, found);
        let count = |code| self.entries.iter().filter(|e| e.tag.code() == code).count();
        if self.entries.is_empty() {
            return Ok(());
        }
        for entry in &self.entries {
            rule(entry.perm <= 7, "permissions must be rwx", entry.perm.into())?;
            rule(
                entry.tag.id() != Some(UNDEFINED_ID),
                "named users and groups must have an id",
                UNDEFINED_ID,
            )?;
        }
        for pair in self.entries.windows(2) {
            let (before, after) = (pair[0].tag.code(), pair[1].tag.code());
            rule(before <= after, "entries must be in the order of their tags", after.into())?;
        }
        for tag in [AclTag::UserObj, AclTag::GroupObj, AclTag::Other] {
            rule(
                count(tag.code()) == 1,
                "owner, group and others must have one entry each",
                tag.code().into(),
            )?;
        }
        let masks = count(AclTag::Mask.code());
        rule(masks <= 1, "there must be at most one mask", masks as u32)?;
        rule(masks == 1 || !self.has_named(), "named entries need a mask", 0)
    }

    /// The permission bits of the mode, 0o000 to 0o777, for this access ACL. The mask replaces the group's
    /// permissions.
    ///
    /// `None` if the entry for owner, group or others is missing.
    #[must_use]
    pub fn mode_bits(&self) -> Option<u16> {
        let perm = |tag: AclTag| self.entries.iter().find(|e| e.tag == tag).map(|e| e.perm & 7);
        let group = perm(AclTag::Mask).or(perm(AclTag::GroupObj))?;
        Some(perm(AclTag::UserObj)? << 6 | group << 3 | perm(AclTag::Other)?)
    }

    /// Whether the mode alone expresses the list. Such an access ACL is not stored.
    #[must_use]
    pub fn is_minimal(&self) -> bool {
        !self.entries.iter().any(|e| matches!(e.tag, AclTag::User(_) | AclTag::Group(_) | AclTag::Mask))
    }

    fn has_named(&self) -> bool {
        self.entries.iter().any(|e| e.tag.id().is_some())
    }
}

fn disk_entry_len(tag: AclTag) -> usize {
    if tag.id().is_some() { 8 } else { 4 }
}

fn entry(code: u16, perm: u16, id: Option<u32>) -> Result<AclEntry, Malformed> {
    match AclTag::from_code(code, || id) {
        Some(tag) => Ok(AclEntry { tag, perm }),
        None => Err(Malformed::new(STRUCTURE, "an entry must be whole with a known tag", code)),
    }
}

fn after_version(value: &[u8], version: u32) -> Result<&[u8], Malformed> {
    let found = le32(value, 0);
    if found != Some(version) {
        return Err(Malformed::new(STRUCTURE, "must begin with its version", found.unwrap_or(0)));
    }
    Ok(&value[4..])
}

fn le32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word))
}

fn tag_and_perm(bytes: &[u8]) -> Option<(u16, u16)> {
    le32(bytes, 0).map(|word| (word as u16, (word >> 16) as u16))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn acl(entries: &[(AclTag, u16)]) -> Acl {
        Acl { entries: entries.iter().map(|&(tag, perm)| AclEntry { tag, perm }).collect() }
    }

    fn named_user() -> Acl {
        acl(&[
            (AclTag::UserObj, 6),
            (AclTag::User(1000), 4),
            (AclTag::GroupObj, 4),
            (AclTag::Mask, 4),
            (AclTag::Other, 0),
        ])
    }

    #[test]
    fn the_bytes_of_both_forms() {
        let disk = named_user().to_disk();
        assert_eq!(
            disk,
            [
                1, 0, 0, 0, // version
                1, 0, 6, 0, // owner rw-
                2, 0, 4, 0, 0xE8, 3, 0, 0, // user 1000 r--
                4, 0, 4, 0, // group r--
                16, 0, 4, 0, // mask r--
                32, 0, 0, 0, // others ---
            ]
        );
        let xattr = named_user().to_xattr();
        assert_eq!(xattr[..12], [2, 0, 0, 0, 1, 0, 6, 0, 0xFF, 0xFF, 0xFF, 0xFF]);
        assert_eq!(xattr[12..20], [2, 0, 4, 0, 0xE8, 3, 0, 0]);
        assert_eq!(xattr.len(), 4 + 5 * 8);
        assert_eq!(named_user().mode_bits(), Some(0o640));
    }

    #[test]
    fn what_the_kernel_would_refuse() {
        use AclTag::{Group, GroupObj, Mask, Other, User, UserObj};
        assert_eq!(named_user().validate(), Ok(()));
        assert_eq!(Acl::default().validate(), Ok(()));
        let minimal = acl(&[(UserObj, 7), (GroupObj, 5), (Other, 5)]);
        assert_eq!(minimal.validate(), Ok(()));
        assert!(minimal.is_minimal() && !named_user().is_minimal());
        for (list, rule) in [
            (acl(&[(UserObj, 8), (GroupObj, 5), (Other, 5)]), "permissions must be rwx"),
            (acl(&[(UserObj, 7), (Other, 5)]), "owner, group and others must have one entry each"),
            (
                acl(&[(UserObj, 7), (GroupObj, 5), (Other, 5), (Other, 5)]),
                "owner, group and others must have one entry each",
            ),
            (acl(&[(GroupObj, 7), (UserObj, 5), (Other, 5)]), "entries must be in the order of their tags"),
            (acl(&[(UserObj, 7), (GroupObj, 5), (Group(5), 5), (Other, 5)]), "named entries need a mask"),
            (
                acl(&[(UserObj, 7), (GroupObj, 5), (Mask, 5), (Mask, 5), (Other, 5)]),
                "there must be at most one mask",
            ),
            (
                acl(&[(UserObj, 7), (User(u32::MAX), 1), (GroupObj, 5), (Mask, 5), (Other, 5)]),
                "named users and groups must have an id",
            ),
        ] {
            assert_eq!(list.validate().unwrap_err().rule, rule);
        }
    }

    #[test]
    fn damaged_values_are_refused() {
        assert!(Acl::from_disk(&[]).is_err());
        assert!(Acl::from_disk(&[2, 0, 0, 0]).is_err());
        assert!(Acl::from_disk(&[1, 0, 0, 0, 1, 0, 6]).is_err());
        assert!(Acl::from_disk(&[1, 0, 0, 0, 2, 0, 6, 0]).is_err(), "a named user without an id");
        assert!(Acl::from_disk(&[1, 0, 0, 0, 64, 0, 6, 0]).is_err());
        assert!(Acl::from_xattr(&[2, 0, 0, 0, 1, 0, 6, 0]).is_err());
        assert_eq!(Acl::from_disk(&[1, 0, 0, 0]), Ok(Acl::default()));
    }

    fn any_acl() -> impl Strategy<Value = Acl> {
        let tag = prop_oneof![
            Just(AclTag::UserObj),
            any::<u32>().prop_map(AclTag::User),
            Just(AclTag::GroupObj),
            any::<u32>().prop_map(AclTag::Group),
            Just(AclTag::Mask),
            Just(AclTag::Other),
        ];
        let entry = (tag, any::<u16>()).prop_map(|(tag, perm)| AclEntry { tag, perm });
        prop::collection::vec(entry, 0..30).prop_map(|entries| Acl { entries })
    }

    proptest! {
        #[test]
        fn both_forms_round_trip(acl in any_acl()) {
            prop_assert_eq!(Acl::from_disk(&acl.to_disk()).unwrap(), acl.clone());
            prop_assert_eq!(Acl::from_xattr(&acl.to_xattr()).unwrap(), acl);
        }

        #[test]
        fn any_bytes_are_an_acl_or_malformed(
            mut bytes in prop::collection::vec(prop_oneof![3 => 0u8..3, 1 => any::<u8>()], 4..100), version in 1u8..3,
        ) {
            bytes[..4].copy_from_slice(&[version, 0, 0, 0]);
            for acl in [Acl::from_disk(&bytes), Acl::from_xattr(&bytes)].into_iter().flatten() {
                let _ = (acl.validate(), acl.mode_bits());
            }
        }
    }
}
