//! Directories stored inline in their inode.

use extant_base::Lblk;
use extant_ondisk::inline_data::IN_BLOCK;
use extant_ondisk::inode::Inode;
use extant_ondisk::xattr::{AttrValue, INDEX_SYSTEM, decode_ibody};

use super::block::{Dir, Scratch, Where};
use crate::FindingPlace;
use crate::rules::directory as rules;

/// Checks both parts of an inline directory.
pub(super) fn check(dir: &Dir<'_>, scratch: &mut Scratch) {
    let i_block = &dir.note.root.i_block;
    let parent = u32::from_le_bytes([i_block[0], i_block[1], i_block[2], i_block[3]]);
    if parent == 0 {
        dir.broken(&rules::DOTDOT, FindingPlace::ino(dir.note.ino), "the inline directory names no parent");
    } else {
        dir.tree.set_dotdot(dir.note.ino, parent);
    }
    each_area(dir, &mut |at, area| {
        dir.check_area(at, area, false, scratch);
    });
}

/// Calls `each` with each area of entries and its offset within the directory.
pub(super) fn each_area(dir: &Dir<'_>, each: &mut dyn FnMut(Where, &[u8])) {
    let at = |offset| Where { lblk: Lblk(0), pblk: None, offset };
    each(at(4), &dir.note.root.i_block[4..]);
    if let Some(value) = second_part(dir) {
        each(at(IN_BLOCK), &value);
    }
}

/// The value of system.data, cut at the directory's size. Pass 1 checks its presence and length.
fn second_part(dir: &Dir<'_>) -> Option<Vec<u8>> {
    let bytes = dir.state.image.read_inode(dir.note.ino).ok()?;
    let inode = Inode::decode(&bytes).ok()?;
    let attrs = decode_ibody(bytes.get(inode.xattr_offset()..)?).ok()?;
    let data =
        attrs.iter().find(|stored| stored.attr.index == INDEX_SYSTEM && stored.attr.name == b"data")?;
    let AttrValue::Bytes(value) = data.attr.value else { return None };
    let len = usize::try_from(dir.note.size).unwrap_or(usize::MAX).saturating_sub(IN_BLOCK).min(value.len());
    Some(value[..len].to_vec())
}
