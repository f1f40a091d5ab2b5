//! Changes single numbers of attribute blocks, areas and value inodes in place.

use extant_base::{Ino, Malformed};

use super::{MAGIC, RawHeader};
use zerocopy::FromBytes;

const REFCOUNT_AT: usize = 4;
/// `e_value_inum` within an entry.
const VALUE_INODE_AT: usize = 4;

/// Number of inodes that share a block.
///
/// # Errors
/// The bytes are not an attribute block.
pub fn refcount(block: &[u8]) -> Result<u32, Malformed> {
    match RawHeader::ref_from_prefix(block) {
        Ok((raw, _)) if raw.h_magic.get() == MAGIC => Ok(raw.h_refcount.get()),
        _ => Err(Malformed::new("attribute block", "magic must be 0xEA020000", block.len() as u64)),
    }
}

/// Sets the number of inodes that share a block. This invalidates the checksum; see
/// [`seal_block`](super::seal_block).
///
/// # Panics
/// The block is shorter than its header.
pub fn set_refcount(block: &mut [u8], refcount: u32) {
    block[REFCOUNT_AT..][..4].copy_from_slice(&refcount.to_le_bytes());
}

/// Sets the inode that stores the value of the entry at `offset` (see [`StoredAttr`](super::StoredAttr)) of a
/// block or an inode's area. The entry's hash does not depend on the inode's number and stays valid.
///
/// # Panics
/// There is no entry at `offset`.
pub fn set_value_inode(area: &mut [u8], offset: usize, ino: Ino) {
    area[offset + VALUE_INODE_AT..][..4].copy_from_slice(&ino.0.to_le_bytes());
}

/// Number of entries that refer to an EA inode, from its `i_ctime` and the low half of its `i_version`
/// (osd1).
#[must_use]
pub fn value_references(ctime: u32, version: u32) -> u64 {
    u64::from(ctime) << 32 | u64::from(version)
}

/// The `i_ctime` and the low half of `i_version` of an EA inode with this number of references.
#[must_use]
pub fn value_reference_words(references: u64) -> (u32, u32) {
    ((references >> 32) as u32, references as u32)
}

#[cfg(test)]
mod tests {
    use super::super::{Attr, AttrValue, decode_block, encode_block};
    use super::*;

    #[test]
    fn numbers_change_where_they_are() {
        let value = AttrValue::Inode { ino: Ino(u32::MAX), size: 5000, hash: 77 };
        let mut block = [0; 1024];
        encode_block(&[Attr { index: 1, name: b"big", value }], 1, &mut block).unwrap();
        assert_eq!(refcount(&block), Ok(1));
        set_refcount(&mut block, 1024);
        assert_eq!(refcount(&block), Ok(1024));
        let offset = decode_block(&block).unwrap().1[0].offset;
        set_value_inode(&mut block, offset, Ino(90));
        let (header, attrs) = decode_block(&block).unwrap();
        assert_eq!(header.refcount, 1024);
        assert_eq!(attrs[0].attr.value, AttrValue::Inode { ino: Ino(90), size: 5000, hash: 77 });
        assert!(refcount(&block[..31]).is_err() && refcount(&[0; 64]).is_err());
        for references in [1, u64::MAX, 0x1_0000_0002] {
            let (ctime, version) = value_reference_words(references);
            assert_eq!(value_references(ctime, version), references);
        }
    }
}
