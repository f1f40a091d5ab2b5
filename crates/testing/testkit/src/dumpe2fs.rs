//! The output of `dumpe2fs`, as values.

use std::collections::BTreeMap;
use std::path::Path;

use crate::tools::run;

/// The parsed output of `dumpe2fs IMAGE`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Dumpe2fs {
    /// Superblock and journal fields; the keys are the labels of dumpe2fs: `fields["Block count"] == "4096"`.
    pub fields: BTreeMap<String, String>,
    /// The block groups, in order.
    pub groups: Vec<GroupDump>,
}

/// A block group. Ranges include both ends, as printed; block numbers are absolute.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupDump {
    /// The group's number.
    pub number: u32,
    /// First and last block.
    pub blocks: (u64, u64),
    /// The descriptor's checksum as printed (`0x3eb3`), if any.
    pub csum: Option<String>,
    /// `INODE_UNINIT`, `BLOCK_UNINIT`, `ITABLE_ZEROED`, in the order printed.
    pub flags: Vec<String>,
    /// Block of the primary superblock or of a backup.
    pub superblock: Option<u64>,
    /// Blocks of the group descriptors.
    pub group_descriptors: Option<(u64, u64)>,
    /// Blocks reserved for growth of the descriptor table.
    pub reserved_gdt: Option<(u64, u64)>,
    /// Block of the block bitmap.
    pub block_bitmap: u64,
    /// Block of the inode bitmap.
    pub inode_bitmap: u64,
    /// Blocks of the inode table.
    pub inode_table: (u64, u64),
    /// Free blocks (clusters) by the descriptor.
    pub free_blocks: u64,
    /// Free inodes by the descriptor.
    pub free_inodes: u64,
    /// Directories by the descriptor.
    pub directories: u64,
    /// Inodes at the end of the table that were never used.
    pub unused_inodes: u64,
    /// Free block ranges by the bitmap.
    pub free_block_ranges: Vec<(u64, u64)>,
    /// Free inode ranges by the bitmap.
    pub free_inode_ranges: Vec<(u64, u64)>,
}

impl Dumpe2fs {
    /// A field by its label, e.g. `"Inode count"`.
    ///
    /// # Panics
    /// dumpe2fs printed no such field; the message lists the printed fields.
    #[must_use]
    pub fn field(&self, label: &str) -> &str {
        match self.fields.get(label) {
            Some(value) => value,
            None => panic!("dumpe2fs prints no {label:?}, only {:?}", self.fields.keys().collect::<Vec<_>>()),
        }
    }

    /// A numeric field, decimal or `0x…`.
    ///
    /// # Panics
    /// There is no such field, or it is not a number.
    #[must_use]
    pub fn number(&self, label: &str) -> u64 {
        let text = self.field(label);
        let first = text.split_whitespace().next().unwrap_or_default();
        number(first).unwrap_or_else(|| panic!("{label:?} is no number: {text:?}"))
    }

    /// The feature names, in the order printed.
    #[must_use]
    pub fn features(&self) -> Vec<&str> {
        self.field("Filesystem features").split_whitespace().collect()
    }
}

/// Runs `dumpe2fs` and parses its output.
///
/// # Panics
/// dumpe2fs fails, or its output cannot be parsed.
#[must_use]
pub fn dumpe2fs(image: &Path) -> Dumpe2fs {
    parse_dumpe2fs(&String::from_utf8_lossy(&run("dumpe2fs", [image]).stdout))
}

/// Parses the output of dumpe2fs 1.46 and later.
///
/// # Panics
/// A line within a group has an unknown form: otherwise a comparison could silently omit it.
#[must_use]
pub fn parse_dumpe2fs(text: &str) -> Dumpe2fs {
    let mut dump = Dumpe2fs::default();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("Group ").filter(|rest| rest.contains(": (Blocks ")) {
            dump.groups.push(group_header(rest).unwrap_or_else(|| panic!("unknown group header: {line:?}")));
        } else if let Some(group) = dump.groups.last_mut() {
            let line = line.trim();
            if !line.is_empty() && group_line(group, line).is_none() {
                panic!("unknown line in group {}: {line:?}", group.number);
            }
        } else if let Some((label, value)) = line.split_once(':') {
            dump.fields.insert(label.trim().to_owned(), value.trim().to_owned());
        }
    }
    dump
}

/// Parses `3: (Blocks 24577-32768) csum 0x4488 [INODE_UNINIT, ITABLE_ZEROED]`.
fn group_header(text: &str) -> Option<GroupDump> {
    let (number_text, rest) = text.split_once(": (Blocks ")?;
    let (blocks, rest) = rest.split_once(')')?;
    let flags =
        rest.split_once('[').and_then(|(_, flags)| flags.split_once(']')).map_or("", |(flags, _)| flags);
    Some(GroupDump {
        number: number_text.parse().ok()?,
        blocks: range(blocks)?,
        csum: rest.split_once("csum ").map(|(_, csum)| word(csum).to_owned()),
        flags: flags.split(", ").filter(|flag| !flag.is_empty()).map(str::to_owned).collect(),
        ..GroupDump::default()
    })
}

/// Parses an indented line below a group's header; `None` if its form is unknown.
fn group_line(group: &mut GroupDump, line: &str) -> Option<()> {
    if let Some(list) = line.strip_prefix("Free blocks:") {
        group.free_block_ranges = ranges(list)?;
    } else if let Some(list) = line.strip_prefix("Free inodes:") {
        group.free_inode_ranges = ranges(list)?;
    } else if line.contains(" free blocks, ") || line.contains(" free clusters, ") {
        for item in line.split(", ") {
            let (count, what) = item.split_once(' ')?;
            let count = number(count)?;
            match what {
                "free blocks" | "free clusters" => group.free_blocks = count,
                "free inodes" => group.free_inodes = count,
                "directories" => group.directories = count,
                "unused inodes" => group.unused_inodes = count,
                _ => return None,
            }
        }
    } else {
        // Places such as "Block bitmap at 65 (+65), csum 0x1"; two on one line if there is a superblock.
        for (label, place) in places(line)? {
            match label {
                "Primary superblock" | "Backup superblock" => group.superblock = Some(place.0),
                "Group descriptors" | "Group descriptor" => group.group_descriptors = Some(place),
                "Reserved GDT blocks" => group.reserved_gdt = Some(place),
                "Block bitmap" => group.block_bitmap = place.0,
                "Inode bitmap" => group.inode_bitmap = place.0,
                "Inode table" => group.inode_table = place,
                _ => return None,
            }
        }
    }
    Some(())
}

/// The `LABEL at PLACE` items of a line; skips other items (checksums).
fn places(line: &str) -> Option<Vec<(&str, (u64, u64))>> {
    let mut places = Vec::new();
    for item in line.split(", ") {
        if let Some((label, place)) = item.split_once(" at ") {
            places.push((label, range(word(place))?));
        }
    }
    (!places.is_empty()).then_some(places)
}

fn word(text: &str) -> &str {
    text.split_whitespace().next().unwrap_or_default()
}

fn ranges(list: &str) -> Option<Vec<(u64, u64)>> {
    list.split(',').map(str::trim).filter(|item| !item.is_empty()).map(range).collect()
}

/// Parses `5-260` or `5`.
fn range(text: &str) -> Option<(u64, u64)> {
    match text.split_once('-') {
        Some((first, last)) => Some((number(first)?, number(last)?)),
        None => number(text).map(|only| (only, only)),
    }
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_parsed_whole() {
        let text = "\
Filesystem features:      has_journal extent
Block count:              307200

Group 0: (Blocks 1-8192) csum 0xec25 [INODE_UNINIT, ITABLE_ZEROED]
  Primary superblock at 1, Group descriptors at 2-4
  Reserved GDT blocks at 5-260
  Block bitmap at 261 (+260), csum 0x3ac79fac
  Inode bitmap at 277 (bg #0 + 276), csum 0xae0fe6cf
  Inode table at 293-798 (+292)
  221 free blocks, 2012 free inodes, 2 directories, 2011 unused inodes
  Free blocks: 7971, 7973-8192
  Free inodes:
";
        let dump = parse_dumpe2fs(text);
        assert_eq!(dump.number("Block count"), 307_200);
        assert_eq!(dump.features(), ["has_journal", "extent"]);
        let expected = GroupDump {
            number: 0,
            blocks: (1, 8192),
            csum: Some("0xec25".to_owned()),
            flags: vec!["INODE_UNINIT".to_owned(), "ITABLE_ZEROED".to_owned()],
            superblock: Some(1),
            group_descriptors: Some((2, 4)),
            reserved_gdt: Some((5, 260)),
            block_bitmap: 261,
            inode_bitmap: 277,
            inode_table: (293, 798),
            free_blocks: 221,
            free_inodes: 2012,
            directories: 2,
            unused_inodes: 2011,
            free_block_ranges: vec![(7971, 7971), (7973, 8192)],
            free_inode_ranges: vec![],
        };
        assert_eq!(dump.groups, [expected]);
    }
}
