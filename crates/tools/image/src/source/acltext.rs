//! POSIX ACLs: converts the text form of archives to the kernel's extended attribute.
//!
//! Text: entries `tag:qualifier:permissions[:id]`, separated by commas or newlines. Tags are `user`, `group`,
//! `mask`, `other`, or their first letters. A qualifier is a number or a name; star and libarchive add the
//! number as a fourth field. `mask:rwx` and `other:rwx` may omit the empty qualifier. A comment begins with
//! `#` and ends at the end of the line.
//!
//! Bytes, little-endian:
//! ```text
//! 02 00 00 00 | tag:2 perm:2 id:4 | tag:2 perm:2 id:4 | ...        id is ff ff ff ff for the tags without one
//! ```
//! The order is user::, user:N: (by number), group::, group:N: (by number), mask::, other::.
//!
//! Source: acl(5), kernel include/uapi/linux/posix_acl_xattr.h (facts), pax keywords of star(5).

use super::fault::{Rule, ShownPath};

const VERSION: u32 = 2;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
const NO_ID: u32 = u32::MAX;

/// No attribute has room for more entries (64 KiB / 8).
const ENTRIES_MAX: usize = 8191;

const NUMERIC_OWNER: &str =
    "names depend on the machine: create the archive with --numeric-owner so that ACLs carry numbers";

/// Converts an ACL in text form to the kernel's form. Returns `None` if the text is empty, or if it is an
/// access ACL of user::, group:: and other:: only. The permission bits express such an ACL, and the kernel
/// stores no attribute for it.
///
/// # Errors
/// The text is not an ACL, or an owner has a name but no number.
pub(crate) fn to_xattr(text: &[u8], is_default: bool) -> Result<Option<Vec<u8>>, Rule> {
    let mut entries: Vec<(u16, u32, u16)> = Vec::new();
    for piece in text.split(|&b| b == b',' || b == b'\n') {
        let piece = piece.split(|&b| b == b'#').next().unwrap_or_default().trim_ascii();
        if piece.is_empty() {
            continue;
        }
        if entries.len() == ENTRIES_MAX {
            return Err(Rule::damaged(format!("an ACL has more than {ENTRIES_MAX} entries")));
        }
        entries.push(entry(piece)?);
    }
    if entries.is_empty() {
        return Ok(None);
    }
    entries.sort_unstable();
    if let Some(twice) = entries.windows(2).find(|pair| (pair[0].0, pair[0].1) == (pair[1].0, pair[1].1)) {
        return Err(Rule::damaged(format!("an ACL names {} twice", tag_in_words(twice[0].0))));
    }
    let has = |tag| entries.iter().any(|entry| entry.0 == tag);
    for needed in [USER_OBJ, GROUP_OBJ, OTHER] {
        if !has(needed) {
            return Err(Rule::damaged(format!("an ACL lacks {}", tag_in_words(needed))));
        }
    }
    if (has(USER) || has(GROUP)) && !has(MASK) {
        return Err(Rule::damaged("an ACL has named users or groups but no mask"));
    }
    if entries.len() == 3 && !is_default {
        return Ok(None);
    }
    let mut bytes = Vec::with_capacity(4 + 8 * entries.len());
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    for (tag, id, permissions) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&permissions.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    Ok(Some(bytes))
}

/// The nine permission bits that the kernel sets on an inode with this access ACL. The group's bits are those
/// of the mask. `None` if the bytes are not the kernel's form of an ACL.
///
/// With an ACL, the mode field of archives differs (GNU tar: the mask, libarchive: the owning group).
/// Therefore the ACL decides.
pub(crate) fn permissions_of(xattr: &[u8]) -> Option<u16> {
    let entries = xattr.strip_prefix(&VERSION.to_le_bytes())?;
    let (entries, rest) = entries.as_chunks::<8>();
    let find = |wanted: u16| {
        let entry = entries.iter().find(|entry| entry[..2] == wanted.to_le_bytes())?;
        Some(u16::from_le_bytes([entry[2], entry[3]]) & 7)
    };
    let bits = find(USER_OBJ)? << 6 | find(MASK).or_else(|| find(GROUP_OBJ))? << 3 | find(OTHER)?;
    rest.is_empty().then_some(bits)
}

/// Parses one entry: tag, id, permissions. Ascending tag numbers give the order that the kernel requires.
fn entry(piece: &[u8]) -> Result<(u16, u32, u16), Rule> {
    let malformed = || Rule::damaged(format!("an ACL has the entry \"{}\"", ShownPath(piece)));
    let piece_fields: Vec<&[u8]> = piece.splitn(6, |&b| b == b':').map(<[u8]>::trim_ascii).collect();
    let fields = match piece_fields.as_slice() {
        [b"default" | b"d", rest @ ..] => rest,
        all => all,
    };
    let (tag, qualifier, permissions, number) = match fields {
        [tag @ (b"mask" | b"m" | b"other" | b"o"), permissions] => (*tag, &b""[..], *permissions, None),
        [tag, qualifier, permissions] => (*tag, *qualifier, *permissions, None),
        [tag, qualifier, permissions, number] => (*tag, *qualifier, *permissions, Some(*number)),
        _ => return Err(malformed()),
    };
    let (own, named) = match tag {
        b"user" | b"u" => (USER_OBJ, Some(USER)),
        b"group" | b"g" => (GROUP_OBJ, Some(GROUP)),
        b"mask" | b"m" => (MASK, None),
        b"other" | b"o" => (OTHER, None),
        _ => return Err(malformed()),
    };
    let permissions = permission_bits(permissions).ok_or_else(malformed)?;
    if qualifier.is_empty() {
        return Ok((own, NO_ID, permissions));
    }
    let named = named.ok_or_else(malformed)?;
    // The fourth field has priority: star writes the name in the second field, and the number of that name in
    // the fourth.
    let id = match number.filter(|number| !number.is_empty()) {
        Some(number) => id(number).ok_or_else(malformed)?,
        None if qualifier.iter().all(u8::is_ascii_digit) => id(qualifier).ok_or_else(malformed)?,
        None => {
            let whom = tag_in_words(named);
            return Err(Rule::new(
                format!("an ACL names {whom} \"{}\" without its number", ShownPath(qualifier)),
                NUMERIC_OWNER,
            ));
        }
    };
    Ok((named, id, permissions))
}

/// A user or group number below 2^32 - 1, which means "none".
fn id(digits: &[u8]) -> Option<u32> {
    let id: u32 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    (id != NO_ID).then_some(id)
}

/// `rwx` with `-` for a missing permission; trailing letters may be omitted.
fn permission_bits(letters: &[u8]) -> Option<u16> {
    let mut bits = 0;
    if letters.is_empty() || letters.len() > 3 {
        return None;
    }
    for letter in letters {
        bits |= match letter {
            b'r' => 4,
            b'w' => 2,
            b'x' => 1,
            b'-' => 0,
            _ => return None,
        };
    }
    Some(bits)
}

fn tag_in_words(tag: u16) -> &'static str {
    match tag {
        USER_OBJ => "the owner",
        USER => "the user",
        GROUP_OBJ => "the owning group",
        GROUP => "the group",
        MASK => "the mask",
        _ => "the others",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut bytes = vec![2, 0, 0, 0];
        for (tag, permissions, id) in entries {
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&permissions.to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn numeric_text_becomes_the_kernels_bytes_in_the_kernels_order() {
        let text = b"user::rwx,user:1001:r-x,user:7:---,group::r--,mask::r-x,other::--x";
        let expected = bytes(&[
            (USER_OBJ, 7, NO_ID),
            (USER, 0, 7),
            (USER, 5, 1001),
            (GROUP_OBJ, 4, NO_ID),
            (MASK, 5, NO_ID),
            (OTHER, 1, NO_ID),
        ]);
        assert_eq!(to_xattr(text, false).unwrap().unwrap(), expected);
    }

    #[test]
    fn short_forms_comments_and_fourth_fields_are_understood() {
        let text = b"u::rw-\nuser:alice:rw-:1000 #effective:r--\ng::r--\ngroup:wheel:r--:10\nm:r\no:---\n";
        let expected = bytes(&[
            (USER_OBJ, 6, NO_ID),
            (USER, 6, 1000),
            (GROUP_OBJ, 4, NO_ID),
            (GROUP, 4, 10),
            (MASK, 4, NO_ID),
            (OTHER, 0, NO_ID),
        ]);
        assert_eq!(to_xattr(text, false).unwrap().unwrap(), expected);
    }

    #[test]
    fn what_the_permission_bits_say_needs_no_attribute() {
        let text = b"user::rw-,group::r--,other::r--";
        assert_eq!(to_xattr(text, false).unwrap(), None);
        assert_eq!(to_xattr(text, true).unwrap().unwrap().len(), 4 + 3 * 8);
        assert_eq!(to_xattr(b" \n,", true).unwrap(), None);
    }

    #[test]
    fn an_access_acl_decides_the_permission_bits() {
        let acl = to_xattr(b"user::rwx,user:7:rw-,group::---,mask::rw-,other::--x", false).unwrap().unwrap();
        assert_eq!(permissions_of(&acl), Some(0o761));
        let acl = to_xattr(b"user::rwx,group::r-x,other::---", true).unwrap().unwrap();
        assert_eq!(permissions_of(&acl), Some(0o750));
        for bad in [&b""[..], b"\x02\0\0\0", b"\x01\0\0\0\x01\0\0\0\0\0\0\0", &acl[..acl.len() - 1]] {
            assert_eq!(permissions_of(bad), None);
        }
    }

    #[test]
    fn a_name_without_a_number_asks_for_numeric_owner() {
        let broken =
            to_xattr(b"user::rwx,user:alice:r-x,group::r--,mask::r-x,other::--x", false).unwrap_err();
        assert_eq!(broken.rule, "an ACL names the user \"alice\" without its number");
        assert!(broken.advice.contains("--numeric-owner"));
    }

    #[test]
    fn texts_that_are_no_acl_are_refused() {
        for text in [
            "user::rwx,group::r--",
            "user::rwx,group::r--,other::r--,other::r--",
            "user::rwx,user:1:rwx,group::r--,other::r--",
            "user::rwxr,group::r--,other::r--",
            "user::,group::r--,other::r--",
            "nobody::rwx,group::r--,other::r--",
            "user:4294967295:rwx,user::rwx,group::r--,other::r--,mask::rwx",
            "user:1:2:3:4:5:6",
            "mask:5:rwx,user::rwx,group::r--,other::r--",
            "rubbish",
        ] {
            assert!(to_xattr(text.as_bytes(), false).is_err(), "{text}");
        }
    }
}
