//! Name lookup and directory listing.

use std::ops::ControlFlow;

use extant_base::Lblk;
use extant_buffer::{Buffer, ReadFault};
use extant_dir::{Dir, DirBlocks, Storage};
use extant_inode::{Blocks, Inode, Shared};
use extant_ondisk::Features;
use extant_ondisk::dirent::NAME_LEN_MAX;
use extant_ondisk::filetype::FileType;
use extant_ondisk::htree::DxFormat;
use extant_ondisk::inode::flags;

use crate::ops::errors::Operation;
use crate::{Cursor, DirEntry, Fault, InodeRef, Names, Refusal};

/// Most symbolic links followed on one path, as in the kernel.
const LINKS_MAX: u32 = 40;
/// Longest path in bytes. A path with substituted link targets may have twice that.
const PATH_MAX: usize = 4096;

/// What to do if the last part of a path is a symbolic link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// Follow it, as stat(2).
    Links,
    /// Return the link itself, as lstat(2).
    NotTheLast,
}

/// A directory's blocks, for the crate `dir`.
struct InodeBlocks<'a> {
    blocks: Blocks<'a>,
    index: DxFormat,
}

impl DirBlocks for InodeBlocks<'_> {
    fn len(&self) -> u32 {
        self.blocks.count()
    }

    fn leaf(&self, lblk: Lblk) -> Result<Option<Buffer>, ReadFault> {
        self.blocks.leaf(lblk)
    }

    fn index(&self, lblk: Lblk) -> Result<Option<Buffer>, ReadFault> {
        self.blocks.index(&self.index, lblk)
    }

    fn hole_len(&self, lblk: Lblk) -> u32 {
        self.blocks.hole_len(lblk)
    }

    fn prefetch(&self, first: Lblk, len: u32) {
        self.blocks.prefetch(first, len);
    }
}

impl Names<'_> {
    /// The inode that `name` leads to in a directory; "." and ".." included.
    ///
    /// # Errors
    /// [`Refusal::NotDirectory`], [`Refusal::NameTooLong`], [`Refusal::NotFound`]; the directory is corrupt;
    /// the device failed.
    pub fn lookup(self, dir: &Inode, name: &[u8]) -> Result<InodeRef, Fault> {
        self.volume.check_going()?;
        if dir.kind() != FileType::Directory {
            return Err(Refusal::NotDirectory.into());
        }
        if name.len() > NAME_LEN_MAX {
            return Err(Refusal::NameTooLong.into());
        }
        if let Some(writer) = &self.volume.writer {
            return Ok(self
                .volume
                .noted(Operation::Lookup, writer.names().lookup(dir.ino(), name))?
                .ok_or(Refusal::NotFound)?);
        }
        let ino = self.with_dir(dir, |found| found.lookup(&self.volume.dir_format, name))??;
        let ino = ino.ok_or(Refusal::NotFound)?;
        self.volume.inode(ino).map_err(|fault| match fault {
            // A name that leads to a free inode is damage, not a stale handle.
            fault if fault.is(Refusal::Stale) => {
                let fact =
                    extant_base::Malformed::new("directory entry", "must lead to an inode in use", ino.0);
                Fault::corrupt(dir.ino(), fact)
            }
            fault => fault,
        })
    }

    /// The inode at a path from the root. Symbolic links along the path are followed inside the volume: ".."
    /// and absolute targets never leave it.
    ///
    /// # Errors
    /// As [`lookup`](Self::lookup), and [`Refusal::TooManyLinks`].
    pub fn resolve(self, path: &[u8], follow: Follow) -> Result<InodeRef, Fault> {
        self.resolve_at(self.volume.root()?, path, follow)
    }

    /// As [`resolve`](Self::resolve), from an inode, even if the path begins with a slash. The root is only
    /// needed for absolute links.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub fn resolve_at(self, from: InodeRef, path: &[u8], follow: Follow) -> Result<InodeRef, Fault> {
        if path.len() > PATH_MAX {
            return Err(Refusal::NameTooLong.into());
        }
        let mut here = from;
        let mut links = 0;
        // The rest of the path, last part first.
        let mut left: Vec<Vec<u8>> = parts(path).map(<[u8]>::to_vec).rev().collect();
        while let Some(part) = left.pop() {
            let next = self.lookup(&here, &part)?;
            let stays = left.is_empty() && follow == Follow::NotTheLast;
            if next.kind() != FileType::Symlink || stays {
                here = next;
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(Refusal::TooManyLinks.into());
            }
            let target = self.volume.files().read_link(&next)?;
            if target.first() == Some(&b'/') {
                here = self.volume.root()?;
            }
            left.extend(parts(&target).map(<[u8]>::to_vec).rev());
            if left.iter().map(|part| part.len() + 1).sum::<usize>() > 2 * PATH_MAX {
                return Err(Refusal::NameTooLong.into());
            }
        }
        if path.last() == Some(&b'/') && here.kind() != FileType::Directory {
            return Err(Refusal::NotDirectory.into());
        }
        Ok(here)
    }

    /// Passes the entries of a directory from `from` on to `each`, "." and ".." included, until it breaks.
    /// Skips damaged blocks, as the kernel does, and reports them to `damage`.
    ///
    /// # Errors
    /// Not a directory; none of it can be read.
    pub fn read_dir(
        self,
        dir: &Inode,
        from: Cursor,
        each: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
        damage: &mut dyn FnMut(Fault),
    ) -> Result<(), Fault> {
        self.volume.check_going()?;
        if dir.kind() != FileType::Directory {
            return Err(Refusal::NotDirectory.into());
        }
        let mut report = |fault: ReadFault| damage(fault.into());
        // The current state, which does not change during the listing.
        let node =
            self.volume.writer.as_ref().map(|writer| writer.inodes().get_unlinked(dir.ino())).transpose()?;
        let _operation = node.as_ref().map(|node| node.operation.read());
        let now = match (&self.volume.writer, &node) {
            (Some(writer), Some(node)) => {
                writer.names().check_dir(node)?;
                Some(writer.inodes().snapshot(node)?)
            }
            _ => None,
        };
        let dir = now.as_deref().unwrap_or(dir);
        self.with_dir(dir, |found| found.list(&self.volume.dir_format, from, each, &mut report))??;
        Ok(())
    }

    fn with_dir<R>(self, inode: &Inode, with: impl FnOnce(&Dir<'_>) -> R) -> Result<R, Fault> {
        with_dir(self.volume.inodes.shared(), &self.volume.dir_format, inode, with)
    }
}

/// Calls `with` with an inode's directory.
pub(crate) fn with_dir<R>(
    shared: &Shared,
    format: &extant_dir::Format,
    inode: &Inode,
    with: impl FnOnce(&Dir<'_>) -> R,
) -> Result<R, Fault> {
    let ino = inode.ino();
    let (casefold, encrypted) = (inode.has_flag(flags::CASEFOLD), inode.has_flag(flags::ENCRYPT));
    if inode.is_inline() {
        return Ok(inode.with_inline_dir(shared, |parts| {
            with(&Dir { ino, storage: Storage::Inline(parts), casefold, encrypted })
        })?);
    }
    let blocks = InodeBlocks { blocks: inode.dir_blocks(shared), index: format.index };
    let indexed = inode.has_flag(flags::INDEX) && shared.sb.features.has_compat(Features::DIR_INDEX);
    let storage = if indexed { Storage::Indexed(&blocks) } else { Storage::Linear(&blocks) };
    Ok(with(&Dir { ino, storage, casefold, encrypted }))
}

/// The parts of a path. Empty ones and "." are skipped.
fn parts(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".")
}
