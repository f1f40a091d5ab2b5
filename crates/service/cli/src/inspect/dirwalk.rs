//! A directory's blocks in order, and the resolution of a path to an inode.
//!
//! Owns: the loop over blocks or inline areas, lookup by linear search (an index may be damaged), and
//! following symbolic links in a path. Does **not** own: the rules of an entry (see
//! [`extant_ondisk::dirent`]).
//!
//! Invariants
//! 1. A walk visits at most as many blocks as the device has.
//! 2. A path follows at most 40 symbolic links, as in Linux.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use extant_base::{Ino, Pblk};
use extant_ondisk::dirent::DirFormat;
use extant_ondisk::filetype::FileType;
use extant_ondisk::inline_data::{self, InlineDir};
use extant_ondisk::inode::flags;
use extant_ondisk::xattr::{self, AttrValue};

use super::InspectError;
use super::format::{escape, quote};
use super::mapping::{self, Event, Mapping};
use super::reader::{FoundInode, Reader};

const SYMLINKS_MAX: u32 = 40;
/// A symbolic link is never longer than a block.
const SYMLINK_LEN_MAX: u64 = 65_536;

/// A requested inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum InodeArg {
    /// A number: `12`, or `<12>` in debugfs's notation.
    Ino(Ino),
    /// A path from the root of the image.
    Path(OsString),
}

impl InodeArg {
    /// Parses a number, or else a path.
    pub(super) fn parse(text: &OsStr) -> Self {
        let bytes = text.as_bytes();
        let inner = bytes.strip_prefix(b"<").and_then(|rest| rest.strip_suffix(b">")).unwrap_or(bytes);
        let number = std::str::from_utf8(inner).ok().and_then(|text| text.parse().ok());
        number.map_or_else(|| Self::Path(text.to_owned()), |number| Self::Ino(Ino(number)))
    }

    /// Finds the inode.
    ///
    /// # Errors
    /// [`InspectError::Absent`] if the image has no such inode or path, [`InspectError::Unreadable`] if it
    /// cannot be read.
    pub(super) fn resolve(&self, reader: &Reader<'_>) -> Result<FoundInode, InspectError> {
        let ino = match self {
            Self::Ino(ino) => *ino,
            Self::Path(path) => resolve_path(reader, path.as_bytes())?,
        };
        if reader.geometry().inode_place(ino).is_none() {
            let last = reader.geometry().inodes();
            return Err(InspectError::Absent(format!(
                "there is no inode {ino}; they are numbered 1 to {last}"
            )));
        }
        reader.inode(ino).map_err(|fault| InspectError::Unreadable(format!("inode {ino}: {fault}")))
    }
}

/// One block or one inline area of a directory.
#[derive(Debug, Clone, Copy)]
pub(super) struct DirBlock<'a> {
    /// The logical block; for inline areas 0 (in `i_block`) or 1 (in the attribute).
    pub(super) lblk: u64,
    /// The physical block; `None` for inline areas.
    pub(super) pblk: Option<Pblk>,
    /// The block's bytes.
    pub(super) bytes: &'a [u8],
}

/// The format of a directory's entries.
pub(super) fn dir_format(reader: &Reader<'_>, dir: &FoundInode) -> DirFormat {
    let both = flags::ENCRYPT | flags::CASEFOLD;
    let geometry = reader.geometry();
    DirFormat {
        hash_in_dirent: dir.inode.flags & both == both,
        ..DirFormat::new(geometry.block_size, &reader.sb().features, geometry.inodes())
    }
}

/// The value of the attribute that continues an inode's inline data; empty if there is none.
pub(super) fn inline_value<'a>(reader: &Reader<'_>, file: &'a FoundInode) -> &'a [u8] {
    let attrs = xattr::decode_ibody(file.xattr_area()).unwrap_or_else(|fault| {
        reader.damage(format_args!("inode {}: {fault}", file.ino));
        Vec::new()
    });
    let found = attrs.iter().find(|a| a.attr.index == xattr::INDEX_SYSTEM && a.attr.name == b"data");
    match found.map(|found| found.attr.value) {
        Some(AttrValue::Bytes(bytes)) => bytes,
        _ => &[],
    }
}

/// Visits a directory's blocks in order until `each` breaks. Reports holes, blocks past the size, and
/// unreadable blocks as damage.
pub(super) fn each_block(
    reader: &Reader<'_>,
    dir: &FoundInode,
    each: &mut dyn FnMut(&DirBlock<'_>) -> ControlFlow<()>,
) {
    let ino = dir.ino;
    match Mapping::of(&dir.inode) {
        Mapping::Inline => {
            let value = inline_value(reader, dir);
            match InlineDir::decode(&dir.inode.block, value, dir.inode.size) {
                Ok(inline) => {
                    for (lblk, (_, bytes)) in (0..).zip(inline.regions()) {
                        if bytes.is_empty() {
                            continue;
                        }
                        if each(&DirBlock { lblk, pblk: None, bytes }).is_break() {
                            return;
                        }
                    }
                }
                Err(fault) => reader.damage(format_args!("inode {ino}: {fault}")),
            }
        }
        Mapping::Extents | Mapping::Indirect => each_mapped_block(reader, dir, each),
        Mapping::FastSymlink | Mapping::Nothing => {}
    }
}

fn each_mapped_block(
    reader: &Reader<'_>,
    dir: &FoundInode,
    each: &mut dyn FnMut(&DirBlock<'_>) -> ControlFlow<()>,
) {
    let ino = dir.ino;
    let bs = reader.block_len();
    if !dir.inode.size.is_multiple_of(bs) {
        reader.damage(format_args!("inode {ino}: directory size {} is no number of blocks", dir.inode.size));
    }
    let end = dir.inode.size.div_ceil(bs);
    let (mut next, mut visited, mut broken) = (0, 0, false);
    mapping::walk(reader, dir, &mut |event| {
        let Event::Run(run) = event else { return ControlFlow::Continue(()) };
        if run.lblk > next && next < end {
            reader.damage(format_args!("inode {ino}: directory has a hole at logical block {next}"));
        }
        for i in 0..run.len {
            let (lblk, pblk) = (run.lblk + i, Pblk(run.pblk.saturating_add(i)));
            if lblk >= end {
                reader
                    .damage(format_args!("inode {ino}: directory has blocks past its size, from {lblk} on"));
                broken = true;
                return ControlFlow::Break(());
            }
            visited += 1;
            let too_many = visited > reader.blocks_here();
            if too_many {
                reader.damage(format_args!("inode {ino}: directory has more blocks than the device"));
            }
            let flow = match reader.block(pblk) {
                _ if too_many || reader.is_flooded() => ControlFlow::Break(()),
                Ok(bytes) => each(&DirBlock { lblk, pblk: Some(pblk), bytes: &bytes }),
                Err(fault) => {
                    reader.damage(format_args!("inode {ino}: directory block {lblk}: {fault}"));
                    ControlFlow::Continue(())
                }
            };
            if flow.is_break() {
                broken = true;
                return flow;
            }
        }
        next = run.lblk + run.len;
        ControlFlow::Continue(())
    });
    if !broken && next < end {
        reader.damage(format_args!("inode {ino}: directory has a hole at logical block {next}"));
    }
}

/// A symbolic link's target; `None` for other inodes.
pub(super) fn symlink_target(reader: &Reader<'_>, file: &FoundInode) -> Option<Vec<u8>> {
    if FileType::from_mode(file.inode.mode) != FileType::Symlink {
        return None;
    }
    let size = file.inode.size;
    Some(match Mapping::of(&file.inode) {
        Mapping::Inline => {
            let joined = inline_data::join(&file.inode.block, inline_value(reader, file), size);
            joined.unwrap_or_else(|fault| {
                reader.damage(format_args!("inode {}: {fault}", file.ino));
                file.inode.block.to_vec()
            })
        }
        Mapping::FastSymlink => file.inode.block[..size.min(60) as usize].to_vec(),
        _ => mapping::content(reader, file, SYMLINK_LEN_MAX),
    })
}

/// The inode of `name` in a directory.
fn lookup(reader: &Reader<'_>, dir: &FoundInode, name: &[u8]) -> Option<Ino> {
    let format = dir_format(reader, dir);
    let mut found = None;
    each_block(reader, dir, &mut |block| {
        for entry in format.entries(block.bytes) {
            match entry {
                Ok(entry) if entry.is_used() && entry.name == name => {
                    found = Some(entry.ino);
                    return ControlFlow::Break(());
                }
                Ok(_) => {}
                Err(fault) => {
                    reader.damage(format_args!("inode {}: directory block {}: {fault}", dir.ino, block.lblk));
                }
            }
        }
        ControlFlow::Continue(())
    });
    found
}

fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = Vec<u8>> + '_ {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".").map(<[u8]>::to_vec)
}

/// Resolves a path from the root. Follows symbolic links, except in the last component.
fn resolve_path(reader: &Reader<'_>, path: &[u8]) -> Result<Ino, InspectError> {
    let missing = |what: String| InspectError::Absent(format!("{}: {what}", quote(path)));
    // The directories from the root to the current position, for "..".
    let mut way = vec![Ino::ROOT];
    let mut left: VecDeque<Vec<u8>> = components(path).collect();
    let mut symlinks = 0;
    while let Some(name) = left.pop_front() {
        if name == b".." {
            if way.len() > 1 {
                way.pop();
            }
            continue;
        }
        let here = way.last().copied().unwrap_or(Ino::ROOT);
        let dir =
            reader.inode(here).map_err(|fault| InspectError::Unreadable(format!("inode {here}: {fault}")))?;
        if FileType::from_mode(dir.inode.mode) != FileType::Directory {
            return Err(missing(format!("inode {here} is no directory, so it holds no {}", escape(&name))));
        }
        let ino = lookup(reader, &dir, &name).ok_or_else(|| {
            let remedy = format!("`dir {here}` lists its names");
            missing(format!("no {} in directory inode {here}; {remedy}", escape(&name)))
        })?;
        if !left.is_empty()
            && let Ok(file) = reader.inode(ino)
            && let Some(target) = symlink_target(reader, &file)
        {
            symlinks += 1;
            if symlinks > SYMLINKS_MAX {
                return Err(missing("too many symbolic links".to_owned()));
            }
            if target.starts_with(b"/") {
                way.truncate(1);
            }
            components(&target).rev().for_each(|part| left.push_front(part));
            continue;
        }
        way.push(ino);
    }
    Ok(way.last().copied().unwrap_or(Ino::ROOT))
}

impl std::fmt::Display for InodeArg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ino(ino) => write!(f, "{ino}"),
            Self::Path(path) => f.write_str(&escape(&path.clone().into_vec())),
        }
    }
}
