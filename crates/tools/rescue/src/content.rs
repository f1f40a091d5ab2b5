//! Contents and attributes of an inode.

use extant_base::Ino;
use extant_ondisk::inline_data;
use extant_ondisk::inode::{Inode, flags};
use extant_ondisk::xattr::{self, AttrValue, StoredAttr};

use crate::ground::Ground;
use crate::maps::Map;

/// The index of names that begin with `system.`, and the name of inline data in it.
const INLINE_NAME: (u8, &[u8]) = (7, b"data");

/// The attributes' area of an inode, after its magic number.
fn body<'a>(inode: &Inode, bytes: &'a [u8]) -> &'a [u8] {
    bytes.get(inode.xattr_offset()..).unwrap_or(&[])
}

/// The part of an inline file or directory that is in an attribute.
pub(crate) fn inline_value(inode: &Inode, bytes: &[u8]) -> Vec<u8> {
    let attrs = xattr::decode_ibody(body(inode, bytes)).unwrap_or_default();
    let data = attrs.into_iter().find(|stored| (stored.attr.index, stored.attr.name) == INLINE_NAME);
    match data.map(|stored| stored.attr.value) {
        Some(AttrValue::Bytes(value)) => value.to_vec(),
        _ => Vec::new(),
    }
}

/// The content of an inline file.
pub(crate) fn inline(inode: &Inode, bytes: &[u8]) -> Option<Vec<u8>> {
    inline_data::join(&inode.block, &inline_value(inode, bytes), inode.size).ok()
}

/// The target of a symbolic link.
pub(crate) fn target(ground: &Ground, inode: &Inode, bytes: &[u8], map: &Map) -> Option<Vec<u8>> {
    let len = usize::try_from(inode.size).ok().filter(|len| (1..=4096).contains(len))?;
    if inode.has_flag(flags::INLINE_DATA) {
        return inline(inode, bytes);
    }
    if !inode.has_flag(flags::EXTENTS) && len < inode.block.len() {
        return Some(inode.block[..len].to_vec());
    }
    let run = map.runs.first().filter(|run| run.lblk == 0)?;
    let mut block = ground.read_raw(run.pblk)?;
    block.truncate(len);
    (block.len() == len).then_some(block)
}

/// Names and values of the attributes that can be read.
pub(crate) fn attributes(ground: &Ground, inode: &Inode, bytes: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    let mut take = |stored: Vec<StoredAttr<'_>>| {
        for StoredAttr { attr, .. } in stored {
            let Some(name) = xattr::full_name(attr.index, attr.name) else { continue };
            let value = match attr.value {
                AttrValue::Bytes(value) => value.to_vec(),
                AttrValue::Inode { ino, size, .. } => match value_of(ground, ino, size) {
                    Some(value) => value,
                    None => continue,
                },
            };
            if (attr.index, attr.name) != INLINE_NAME {
                found.push((name, value));
            }
        }
    };
    take(xattr::decode_ibody(body(inode, bytes)).unwrap_or_default());
    if inode.file_acl != 0
        && let Some(block) = ground.read(inode.file_acl)
        && let Ok((_, stored)) = xattr::decode_block(&block)
    {
        take(stored);
    }
    found
}

/// The value in an EA inode.
fn value_of(ground: &Ground, ino: Ino, size: u32) -> Option<Vec<u8>> {
    let (inode, _) = ground.inode(ino)?;
    if !inode.has_flag(flags::EA_INODE) || inode.size != u64::from(size) || size > 1 << 20 {
        return None;
    }
    let mut value = Vec::new();
    for run in ground.map(ino, &inode).runs {
        for block in run.pblk..run.pblk + run.len {
            value.extend(ground.read(block)?);
        }
    }
    value.truncate(size as usize);
    (value.len() == size as usize).then_some(value)
}
