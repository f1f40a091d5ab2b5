//! POSIX ACLs: conversion from the kernel's bytes to the text in archives.
//!
//! ```text
//! 02 00 00 00 | tag:2 perm:2 id:4 | ...      user::rwx,user:1000:r-x,group::r--,mask::r-x,other::---
//! ```
//! Ids are numbers: a file system has no names for them.
//!
//! Source: acl(5); kernel documentation of `system.posix_acl_access`.

use std::io::Write;

/// The text; `None` if the bytes are not a valid ACL in the kernel's format.
pub(crate) fn to_text(xattr: &[u8]) -> Option<Vec<u8>> {
    let (entries, rest) = xattr.strip_prefix(&2u32.to_le_bytes())?.as_chunks::<8>();
    if entries.is_empty() || !rest.is_empty() {
        return None;
    }
    let mut text = Vec::with_capacity(16 * entries.len());
    for entry in entries {
        let [t0, t1, p0, p1, id @ ..] = *entry;
        let id = u32::from_le_bytes(id);
        let (word, named) = match u16::from_le_bytes([t0, t1]) {
            0x01 => ("user", false),
            0x02 => ("user", true),
            0x04 => ("group", false),
            0x08 => ("group", true),
            0x10 => ("mask", false),
            0x20 => ("other", false),
            _ => return None,
        };
        let permissions = u16::from_le_bytes([p0, p1]);
        if permissions > 7 || (named && id == u32::MAX) {
            return None;
        }
        if !text.is_empty() {
            text.push(b',');
        }
        text.extend_from_slice(word.as_bytes());
        text.push(b':');
        if named {
            let _ = write!(text, "{id}"); // a Vec takes everything
        }
        text.push(b':');
        for (bit, letter) in [(4, b'r'), (2, b'w'), (1, b'x')] {
            text.push(if permissions & bit != 0 { letter } else { b'-' });
        }
    }
    Some(text)
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
    fn every_tag_has_its_word() {
        let none = u32::MAX;
        let acl = bytes(&[(1, 7, none), (2, 5, 1000), (4, 4, none), (8, 0, 7), (16, 5, none), (32, 1, none)]);
        let text = "user::rwx,user:1000:r-x,group::r--,group:7:---,mask::r-x,other::--x";
        assert_eq!(to_text(&acl).unwrap(), text.as_bytes());
    }

    #[test]
    fn what_is_no_acl_has_no_text() {
        let acl = bytes(&[(1, 7, 0)]);
        let odd = [&b""[..], b"\x02\0\0\0", b"\x01\0\0\0\x01\0\x07\0\0\0\0\0", &acl[..11]];
        assert!(odd.iter().all(|bytes| to_text(bytes).is_none()));
        for entry in [(3, 7, 0), (1, 8, 0), (2, 7, u32::MAX)] {
            assert_eq!(to_text(&bytes(&[entry])), None);
        }
    }
}
