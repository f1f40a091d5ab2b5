//! Semantics of POSIX ACLs: setting, inheritance, and changes of the mode.
//!
//! ```text
//! set access    owner rwx, group r-x, others r--            -> mode 0754, nothing is stored
//!               owner rwx, user 7 rw-, group r--, mask rw-  -> stored, and the mode shows the mask: 076-
//! create        directory's default + requested mode        -> access ACL and mode, each the intersection
//! chmod         mode's group bits                           -> the mask, if any; else the group's entry
//! ```
//!
//! Source: acl(5); POSIX 1003.1e draft 17, section 23; kernel Documentation/filesystems/ext4/attributes.rst.

use extant_base::Malformed;
pub use extant_ondisk::acl::{Acl, AclEntry, AclTag};

const VERSION: [u8; 4] = 2u32.to_le_bytes();
/// The bits of a mode that an ACL describes.
const PERMISSIONS: u16 = 0o777;

/// An ACL is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AclFault {
    /// A value of another version than 2 (EOPNOTSUPP).
    #[error("ACLs of this version are not supported")]
    Version,
    /// Not a valid list (EINVAL).
    #[error(transparent)]
    Invalid(#[from] Malformed),
    /// A default ACL for an inode that is not a directory (EACCES).
    #[error("only directories have default ACLs")]
    NoDirectory,
}

/// The result of setting an access ACL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessChange {
    /// The new mode; its type and other bits are unchanged.
    pub mode: u16,
    /// The value to store; `None` removes the attribute.
    pub stored: Option<Vec<u8>>,
}

/// What a new inode inherits from its directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inherited {
    /// Its mode, including its type.
    pub mode: u16,
    /// Value of its access ACL, unless the mode alone expresses it.
    pub access: Option<Vec<u8>>,
    /// Value of its default ACL; for directories only.
    pub default: Option<Vec<u8>>,
}

/// Parses an ACL passed to a system call; `None` for an ACL without entries.
///
/// # Errors
/// Another version, a damaged value, or an invalid list.
pub fn parse(value: &[u8]) -> Result<Option<Acl>, AclFault> {
    if value.is_empty() {
        return Ok(None);
    }
    if value.len() >= 4 && value[..4] != VERSION {
        return Err(AclFault::Version);
    }
    let acl = Acl::from_xattr(value)?;
    acl.validate()?;
    Ok((!acl.entries.is_empty()).then_some(acl))
}

/// Sets an access ACL on an inode with this mode. The mode takes the ACL's bits, and an ACL that expresses no
/// more than a mode is not stored. Without an ACL the mode stays. The caller clears the set-group-id bit if
/// necessary (if the calling process is neither in the file's group nor privileged).
#[must_use]
pub fn set_access(acl: Option<&Acl>, mode: u16) -> AccessChange {
    let Some(acl) = acl else { return AccessChange { mode, stored: None } };
    let bits = acl.mode_bits().unwrap_or(mode & PERMISSIONS);
    let stored = (!acl.is_minimal()).then(|| acl.to_disk());
    AccessChange { mode: mode & !PERMISSIONS | bits, stored }
}

/// The value to store for a default ACL; `None` removes the attribute.
///
/// # Errors
/// There is an ACL, and the inode is not a directory.
pub fn set_default(acl: Option<&Acl>, is_directory: bool) -> Result<Option<Vec<u8>>, AclFault> {
    match acl {
        Some(_) if !is_directory => Err(AclFault::NoDirectory),
        acl => Ok(acl.map(Acl::to_disk)),
    }
}

/// Mode and ACLs of a new inode in a directory with a default ACL. Not for symbolic links, which inherit
/// nothing. The umask is ignored; it applies only without a default ACL.
///
/// # Errors
/// The default ACL has no entry for the owner, the group or others.
pub fn inherit(default: &Acl, mode: u16, is_directory: bool) -> Result<Inherited, Malformed> {
    let mut access = default.clone();
    let has_mask = access.entries.iter().any(|entry| entry.tag == AclTag::Mask);
    let mut granted = 0;
    for entry in &mut access.entries {
        let Some(shift) = shift_of(entry.tag, has_mask) else { continue };
        entry.perm &= mode >> shift & 7;
        granted |= entry.perm << shift;
    }
    let rule = "owner, group and others must have an entry";
    Malformed::unless(default.mode_bits().is_some(), "ACL", rule, default.entries.len() as u64)?;
    Ok(Inherited {
        mode: mode & !PERMISSIONS | granted,
        access: (!access.is_minimal()).then(|| access.to_disk()),
        default: is_directory.then(|| default.to_disk()),
    })
}

/// Applies a chmod to an access ACL.
pub fn chmod(acl: &mut Acl, mode: u16) {
    let has_mask = acl.entries.iter().any(|entry| entry.tag == AclTag::Mask);
    for entry in &mut acl.entries {
        if let Some(shift) = shift_of(entry.tag, has_mask) {
            entry.perm = mode >> shift & 7;
        }
    }
}

/// The position of this entry's bits in a mode: the group bits are the mask's if there is a mask.
fn shift_of(tag: AclTag, has_mask: bool) -> Option<u32> {
    match tag {
        AclTag::UserObj => Some(6),
        AclTag::GroupObj if !has_mask => Some(3),
        AclTag::Mask => Some(3),
        AclTag::Other => Some(0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(AclTag, u16)]) -> Acl {
        Acl { entries: entries.iter().map(|&(tag, perm)| AclEntry { tag, perm }).collect() }
    }

    fn perms(value: &[u8]) -> Vec<u16> {
        Acl::from_disk(value).unwrap().entries.into_iter().map(|entry| entry.perm).collect()
    }

    use AclTag::{GroupObj, Mask, Other, User, UserObj};

    #[test]
    fn a_minimal_acl_becomes_the_mode() {
        let minimal = acl(&[(UserObj, 7), (GroupObj, 5), (Other, 4)]);
        let change = set_access(Some(&minimal), 0o102_600);
        assert_eq!(change, AccessChange { mode: 0o102_754, stored: None });
        let masked = acl(&[(UserObj, 7), (GroupObj, 5), (Mask, 1), (Other, 4)]);
        let change = set_access(Some(&masked), 0o100_600);
        assert_eq!((change.mode, change.stored), (0o100_714, Some(masked.to_disk())));
        assert_eq!(set_access(None, 0o100_600).mode, 0o100_600);
    }

    #[test]
    fn values_are_held_against_the_kernels_rules() {
        let good = acl(&[(UserObj, 7), (User(5), 6), (GroupObj, 5), (Mask, 7), (Other, 4)]);
        assert_eq!(parse(&good.to_xattr()), Ok(Some(good.clone())));
        assert_eq!((parse(&[]), parse(&[2, 0, 0, 0])), (Ok(None), Ok(None)));
        assert_eq!(parse(&good.to_disk()), Err(AclFault::Version));
        assert!(matches!(parse(&[2, 0]), Err(AclFault::Invalid(_))));
        assert!(matches!(parse(&good.to_xattr()[..11]), Err(AclFault::Invalid(_))));
        let unmasked = acl(&[(UserObj, 7), (User(5), 6), (GroupObj, 5), (Other, 4)]);
        assert!(matches!(parse(&unmasked.to_xattr()), Err(AclFault::Invalid(_))));
        assert_eq!(set_default(Some(&good), false), Err(AclFault::NoDirectory));
        assert_eq!(set_default(None, false), Ok(None));
        assert_eq!(set_default(Some(&good), true), Ok(Some(good.to_disk())));
    }

    #[test]
    fn a_new_inode_gets_the_least_of_both() {
        let default = acl(&[(UserObj, 7), (User(5), 6), (GroupObj, 5), (Mask, 6), (Other, 4)]);
        let file = inherit(&default, 0o100_644, false).unwrap();
        assert_eq!((file.mode, file.default), (0o100_644, None));
        assert_eq!(
            perms(&file.access.unwrap()),
            [6, 6, 5, 4, 4],
            "the mask is cut, the group's entry is not"
        );
        let directory = inherit(&default, 0o040_777, true).unwrap();
        assert_eq!((directory.mode, directory.default), (0o040_764, Some(default.to_disk())));
        let minimal = acl(&[(UserObj, 7), (GroupObj, 5), (Other, 0)]);
        let file = inherit(&minimal, 0o104_666, false).unwrap();
        assert_eq!((file.mode, file.access), (0o104_640, None));
        assert!(inherit(&acl(&[(UserObj, 7)]), 0o100_644, false).is_err());
    }

    #[test]
    fn chmod_changes_the_mask() {
        let mut with = acl(&[(UserObj, 7), (User(5), 6), (GroupObj, 5), (Mask, 6), (Other, 4)]);
        chmod(&mut with, 0o100_712);
        assert_eq!(with, acl(&[(UserObj, 7), (User(5), 6), (GroupObj, 5), (Mask, 1), (Other, 2)]));
        let mut without = acl(&[(UserObj, 7), (GroupObj, 5), (Other, 4)]);
        chmod(&mut without, 0o600);
        assert_eq!(without.mode_bits(), Some(0o600));
    }
}
