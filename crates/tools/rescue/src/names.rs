//! Names in directory blocks.

use extant_base::Ino;
use extant_ondisk::dirent::DirFormat;
use extant_ondisk::inline_data::InlineDir;
use extant_ondisk::inode::{Inode, flags};

use crate::content;
use crate::ground::Ground;

/// A name and the inode that it leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) name: Vec<u8>,
    pub(crate) ino: Ino,
}

/// The names of a directory, as far as its blocks are sound, and what was wrong.
pub(crate) fn of(ground: &Ground, ino: Ino, inode: &Inode, bytes: &[u8]) -> (Vec<Name>, Vec<String>) {
    let format = ground.dir_format();
    let mut names = Vec::new();
    if inode.has_flag(flags::INLINE_DATA) {
        let value = content::inline_value(inode, bytes);
        return match InlineDir::decode(&inode.block, &value, inode.size) {
            Ok(dir) => {
                for (_, area) in dir.regions() {
                    in_area(&format, area, &mut names);
                }
                (names, Vec::new())
            }
            Err(fault) => (names, vec![fault.to_string()]),
        };
    }
    let map = ground.map(ino, inode);
    let mut faults = map.faults;
    for run in map.runs {
        for block in run.pblk..run.pblk + run.len {
            match ground.read(block) {
                Some(bytes) => {
                    if !in_area(&format, &bytes, &mut names) {
                        faults.push(format!("directory block {block} is damaged"));
                    }
                }
                None => faults.push(format!("directory block {block} cannot be read")),
            }
        }
    }
    (names, faults)
}

/// Adds the names of a block, or of an inline area, up to the first malformed entry. Returns whether there
/// was none.
pub(crate) fn in_area(format: &DirFormat, area: &[u8], names: &mut Vec<Name>) -> bool {
    for entry in format.entries(area) {
        let Ok(entry) = entry else { return false };
        if entry.is_used() && !entry.is_dot_or_dotdot() && entry.has_plain_name() {
            names.push(Name { name: entry.name.to_vec(), ino: entry.ino });
        }
    }
    true
}

/// Adds removed names, whose bytes remain in the space after an entry.
pub(crate) fn removed_in(format: &DirFormat, area: &[u8], names: &mut Vec<Name>) {
    for entry in format.entries(area) {
        let Ok(entry) = entry else { return };
        let used = if entry.is_used() { record_len(entry.name.len()) } else { 0 };
        let mut at = entry.offset + used;
        let end = entry.offset + entry.rec_len;
        while at + 12 <= end {
            match stale(&area[at..end], format.inodes_count) {
                Some(name) => {
                    at += record_len(name.name.len());
                    names.push(name);
                }
                None => at += 4,
            }
        }
    }
}

fn record_len(name: usize) -> usize {
    (8 + name).next_multiple_of(4)
}

/// A removed entry at the start of these bytes, if they look like one.
fn stale(bytes: &[u8], inodes: u32) -> Option<Name> {
    let ino = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?);
    let len = usize::from(*bytes.get(6)?);
    let kind = *bytes.get(7)?;
    let name = bytes.get(8..8 + len)?;
    let is_name =
        len > 0 && !name.iter().any(|byte| *byte == 0 || *byte == b'/') && name != b"." && name != b"..";
    (ino > 0 && ino <= inodes && kind <= 7 && is_name).then(|| Name { name: name.to_vec(), ino: Ino(ino) })
}
