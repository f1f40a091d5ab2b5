//! Everything that a volume shows.

use std::collections::BTreeMap;
use std::sync::Arc;

use extant_base::Ino;
use extant_ondisk::time::Timestamp;
use extant_volume::{Fault, FileType, Inode, Volume};

use super::step::names;

/// An inode as seen through a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) ino: Ino,
    pub(super) attributes: Attributes,
    pub(super) size: u64,
    pub(super) content: Arc<Vec<u8>>,
    /// Times differ between runs.
    pub(super) times: [Option<Timestamp>; 4],
    pub(super) sectors: u64,
}

/// The attributes that operations set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Attributes {
    mode: u16,
    owners: [u32; 3],
    links: u32,
    device: (u32, u32),
    flags: u32,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Flags that follow from the layout of a file.
const OF_MAPS: u32 = extant_ondisk::inode::flags::EXTENTS
    | extant_ondisk::inode::flags::INLINE_DATA
    | extant_ondisk::inode::flags::INDEX
    | extant_ondisk::inode::flags::HUGE_FILE;

/// All paths, and the free blocks and inodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Picture {
    pub(super) paths: BTreeMap<Vec<u8>, Shown>,
    pub(super) blocks_free: u64,
    pub(super) inodes_free: u32,
    /// Orphans were deleted or truncated since, so that more is free now.
    pub(super) is_cleaned: bool,
}

impl Picture {
    /// Reads the current state of a volume.
    pub(super) fn take(volume: &Volume) -> Result<Self, String> {
        let mut picture = Self::default();
        let mut known: BTreeMap<Ino, Shown> = BTreeMap::new();
        let mut left = vec![(Vec::new(), volume.root().map_err(text)?)];
        while let Some((path, inode)) = left.pop() {
            let at = |fault: Fault| format!("{}: {fault}", path.escape_ascii());
            if inode.kind() == FileType::Directory {
                for name in names(volume, &inode).map_err(at)? {
                    let full = if path.is_empty() { name.clone() } else { [&path[..], b"/", &name].concat() };
                    let below = volume.names().lookup(&inode, &name);
                    left.push((
                        full,
                        below.map_err(|fault| {
                            format!("{}: {}: {fault}", path.escape_ascii(), name.escape_ascii())
                        })?,
                    ));
                }
            }
            let shown = match known.get(&inode.ino()) {
                Some(shown) => shown.clone(),
                None => shown(volume, &inode).map_err(at)?,
            };
            known.insert(inode.ino(), shown.clone());
            picture.paths.insert(path, shown);
        }
        let recovery = volume.recovery();
        picture.is_cleaned = recovery.deleted_orphans + recovery.truncated_orphans > 0;
        let stat = volume.statfs().map_err(text)?;
        (picture.blocks_free, picture.inodes_free) = (stat.blocks_free, stat.inodes_free);
        Ok(picture)
    }

    /// The inode at this path.
    pub(super) fn get(&self, path: &str) -> Option<&Shown> {
        self.paths.get(path.as_bytes())
    }
}

fn text(fault: Fault) -> String {
    fault.to_string()
}

fn shown(volume: &Volume, inode: &Inode) -> Result<Shown, Fault> {
    let stat = volume.attributes().stat(inode);
    let xattrs =
        volume.attributes().xattrs(inode)?.into_iter().map(|found| (found.name, found.value)).collect();
    let content = match stat.kind {
        FileType::Regular => {
            let mut bytes = vec![0xEE; stat.size as usize];
            let count = volume.files().read_at(stat.ino, 0, &mut bytes)?;
            bytes.truncate(count);
            bytes
        }
        FileType::Symlink => volume.files().read_link(inode)?,
        _ => Vec::new(),
    };
    Ok(Shown {
        ino: stat.ino,
        attributes: Attributes {
            mode: stat.mode,
            owners: [stat.uid, stat.gid, stat.project],
            links: stat.links,
            device: stat.device,
            flags: stat.flags & !OF_MAPS,
            xattrs,
        },
        // The size of a directory depends on the history of its names.
        size: if stat.kind == FileType::Directory { 0 } else { stat.size },
        content: Arc::new(content),
        times: [Some(stat.atime), Some(stat.mtime), Some(stat.ctime), stat.crtime],
        sectors: stat.blocks_512,
    })
}

/// How two pictures are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// Pictures of two runs: ignores times, inode numbers and block counts.
    Runs,
    /// One file system before and after it was reopened. Block counts may differ, because delayed blocks were
    /// not allocated yet.
    Durable,
    /// As [`Durable`](Self::Durable), with all blocks allocated.
    Disk,
}

/// The differences of `found` from `expected`. A file that differs is skipped if `excepted` returns true.
pub(super) fn differences(
    expected: &Picture,
    found: &Picture,
    how: How,
    excepted: &dyn Fn(&[u8], &Shown, &Shown) -> bool,
) -> Vec<String> {
    let mut lines = Vec::new();
    for (path, shown) in &expected.paths {
        let name = path.escape_ascii();
        match found.paths.get(path) {
            None if excepted(path, shown, shown) => {}
            None => lines.push(format!("/{name} is missing")),
            Some(other) if !excepted(path, shown, other) => {
                lines.extend(between(shown, other, how).map(|what| format!("/{name}: {what}")));
            }
            Some(_) => {}
        }
    }
    let more = found.paths.keys().filter(|path| !expected.paths.contains_key(*path));
    lines.extend(more.map(|path| format!("/{} should not be there", path.escape_ascii())));
    if how == How::Disk && !found.is_cleaned {
        let free = |picture: &Picture| (picture.blocks_free, picture.inodes_free);
        if free(expected) != free(found) {
            lines.push(format!("free blocks and inodes: {:?}, not {:?}", free(found), free(expected)));
        }
    }
    lines
}

fn between(expected: &Shown, found: &Shown, how: How) -> Option<String> {
    if expected.attributes != found.attributes {
        return Some(format!("{:?}, not {:?}", found.attributes, expected.attributes));
    }
    if expected.size != found.size {
        return Some(format!("{} bytes long, not {}", found.size, expected.size));
    }
    if let Some(at) = first_difference(&expected.content, &found.content) {
        let byte = |shown: &Shown| shown.content.get(at).copied();
        return Some(format!("byte {at} of {} is {:?}, not {:?}", found.size, byte(found), byte(expected)));
    }
    if how == How::Runs {
        return None;
    }
    if expected.times != found.times {
        return Some(format!("times {:?}, not {:?}", found.times, expected.times));
    }
    let rest = |shown: &Shown| (shown.ino, if how == How::Disk { shown.sectors } else { 0 });
    (rest(expected) != rest(found))
        .then(|| format!("inode, sectors: {:?}, not {:?}", rest(found), rest(expected)))
}

fn first_difference(expected: &[u8], found: &[u8]) -> Option<usize> {
    if expected == found {
        return None;
    }
    let at = expected.iter().zip(found).position(|(one, other)| one != other);
    Some(at.unwrap_or(expected.len().min(found.len())))
}
