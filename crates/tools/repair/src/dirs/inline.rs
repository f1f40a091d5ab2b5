//! Directories whose entries are in the inode: a part in i_block, and the rest in the attribute system.data.

use extant_base::Ino;
use extant_base::le::{put_u32, u32_at};
use extant_ondisk::Features;
use extant_ondisk::inode::{Inode, flags};
use extant_ondisk::xattr::{self, Attr, AttrValue};

use super::Dir;
use super::pack::{entry_len, pack_area};
use crate::fs::Fs;
use crate::maps::Map;

/// The two parts of an inline directory: i_block, and the value of system.data.
pub(super) fn parts(fs: &Fs<'_>, ino: Ino, inode: &Inode) -> Option<([u8; 60], Vec<u8>)> {
    let bytes = fs.inode_bytes(ino)?;
    let attrs = xattr::decode_ibody(bytes.get(inode.xattr_offset()..)?).ok()?;
    let data = attrs.iter().find(|one| one.attr.index == xattr::INDEX_SYSTEM && one.attr.name == b"data");
    let value = match data?.attr.value {
        AttrValue::Bytes(value) => value.to_vec(),
        AttrValue::Inode { .. } => return None,
    };
    Some((inode.block, value))
}

/// Writes an inline directory. `None` if the entries do not fit.
pub(super) fn put(fs: &Fs<'_>, dir: &Dir) -> Option<()> {
    let (mut head, mut tail) = parts(fs, dir.ino, &dir.inode)?;
    put_u32(&mut head, 0, dir.parent);
    if tail.len() < 12 {
        tail.clear();
    }
    let mut count = 0;
    let mut used = 0;
    for entry in &dir.entries {
        if used + entry_len(entry) > 56 {
            break;
        }
        used += entry_len(entry);
        count += 1;
    }
    let (first, second) = dir.entries.split_at(count);
    if second.iter().map(entry_len).sum::<usize>() > tail.len() {
        return None;
    }
    let block_size = fs.geometry.block_size;
    pack_area(block_size, first, &mut head[4..]);
    pack_area(block_size, second, &mut tail);
    let bytes = fs.inode_bytes(dir.ino)?;
    let at = dir.inode.xattr_offset();
    let mut area = bytes.get(at..)?.to_vec();
    let stored = bytes[at..].to_vec();
    let attrs: Vec<Attr<'_>> = xattr::decode_ibody(&stored)
        .ok()?
        .into_iter()
        .map(|one| match (one.attr.index, one.attr.name) {
            (xattr::INDEX_SYSTEM, b"data") => Attr { value: AttrValue::Bytes(&tail), ..one.attr },
            _ => one.attr,
        })
        .collect();
    xattr::encode_ibody(&attrs, &mut area).ok()?;
    fs.edit_inode(dir.ino, |bytes| {
        bytes[at..].copy_from_slice(&area);
        bytes[0x28..0x28 + 60].copy_from_slice(&head);
    })?;
    fs.put_size(dir.ino, 60 + tail.len() as u64);
    Some(())
}

/// Turns an inline directory into one with blocks; [`Dir::put`] fills it.
pub(super) fn leave(fs: &Fs<'_>, dir: &mut Dir) -> Option<()> {
    let bytes = fs.inode_bytes(dir.ino)?;
    let at = dir.inode.xattr_offset();
    let mut area = bytes.get(at..)?.to_vec();
    let attrs: Vec<Attr<'_>> = xattr::decode_ibody(&bytes[at..])
        .ok()?
        .into_iter()
        .map(|one| one.attr)
        .filter(|attr| (attr.index, attr.name) != (xattr::INDEX_SYSTEM, b"data"))
        .collect();
    xattr::encode_ibody(&attrs, &mut area).ok()?;
    let with_extents = fs.sb.features.has_incompat(Features::EXTENTS);
    fs.edit_inode(dir.ino, |bytes| {
        bytes[at..].copy_from_slice(&area);
        bytes[0x28..0x28 + 60].fill(0);
        let flags = u32_at(bytes, 0x20) & !flags::INLINE_DATA;
        put_u32(bytes, 0x20, if with_extents { flags | flags::EXTENTS } else { flags });
    })?;
    dir.inode = fs.inode(dir.ino)?;
    (dir.inline, dir.map) = (false, Map::default());
    Some(())
}
