//! Reads the bytes of a file, wherever they are stored.

use extant_base::{Lblk, Malformed, Pblk};
use extant_buffer::{Buffer, Kind, Owner, ReadFault};
use extant_mapping::{MapState, Mapped};
use extant_ondisk::dirent;
use extant_ondisk::filetype::FileType;
use extant_ondisk::htree::DxFormat;
use extant_ondisk::inline_data::InlineDir;
use extant_ondisk::inode::flags;

use crate::{Fault, Inode, Shared};

/// Maximum number of blocks mapped at once: more than one read needs.
const MAP_MAX: u32 = 1 << 15;

/// A mapped range of a file, as in FIEMAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First byte in the file.
    pub offset: u64,
    /// Byte offset on the device; for inline data that of i_block.
    pub physical: u64,
    /// Length in bytes.
    pub len: u64,
    /// Allocated; reads as zeros.
    pub unwritten: bool,
    /// Stored inside the inode.
    pub inline: bool,
}

impl Inode {
    /// The state of the blocks from `lblk` on, and the number of blocks in that state, at most `len_max`.
    ///
    /// # Errors
    /// The map is corrupt or cannot be read.
    pub fn map(&self, shared: &Shared, lblk: Lblk, len_max: u32) -> Result<Mapped, Fault> {
        self.map.find(&shared.buffers, lblk, len_max).map_err(Fault::of(self.ino()))
    }

    /// Visits the mapped ranges of the file from `from` on that begin before block `end`, which is at most
    /// 2^32.
    ///
    /// # Errors
    /// As [`map`](Self::map).
    pub fn walk_map(
        &self,
        shared: &Shared,
        from: Lblk,
        end: u64,
        each: &mut dyn FnMut(Mapped) -> Option<()>,
    ) -> Result<(), Fault> {
        self.map.walk_until(&shared.buffers, from, end, each).map_err(Fault::of(self.ino()))
    }

    /// Whether the content of this inode is in blocks of a map.
    #[must_use]
    pub fn has_map(&self, shared: &Shared) -> bool {
        shared.has_map(self.fields(), self.size())
    }

    /// Reads content from byte `offset` on. Returns fewer bytes than requested only at the end.
    ///
    /// # Errors
    /// See [`Fault`].
    pub fn read_at(&self, shared: &Shared, offset: u64, buf: &mut [u8]) -> Result<usize, Fault> {
        if self.has_flag(flags::ENCRYPT) && self.kind() != FileType::Directory {
            return Err(Fault::NeedsKey(self.ino()));
        }
        let left = self.size().saturating_sub(offset);
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
        let buf = &mut buf[..len];
        if len == 0 {
            return Ok(0);
        }
        if self.is_inline() || self.is_fast_link(shared) {
            let bytes = self.inline_content(shared)?;
            let from = usize::try_from(offset).unwrap_or(usize::MAX);
            let source = bytes.get(from..).unwrap_or_default();
            let have = source.len().min(len);
            buf[..have].copy_from_slice(&source[..have]);
            buf[have..].fill(0);
            return Ok(len);
        }
        let bs = shared.geometry.block_size;
        let (mut at, mut rest) = (offset, buf);
        while !rest.is_empty() {
            // Block numbers of a file have 32 bits; the size may go beyond them, which reads as a hole.
            let Ok(lblk) = u32::try_from(at >> bs.log2()) else {
                rest.fill(0);
                break;
            };
            let within = at & (bs.bytes() - 1);
            let wanted = bs.blocks_for(within + rest.len() as u64).min(MAP_MAX.into()) as u32;
            let found = self.map(shared, Lblk(lblk), wanted)?;
            let bytes = (u64::from(found.len) << bs.log2()) - within;
            let (now, later) =
                rest.split_at_mut(rest.len().min(usize::try_from(bytes).unwrap_or(usize::MAX)));
            match found.state {
                // Such content is handled as metadata: until it is written home, the newest bytes are in the
                // cache only.
                MapState::Written(pblk) if shared.is_journaled(self.fields()) => {
                    let mut block = pblk;
                    let (mut skip, mut out) = (within as usize, &mut *now);
                    while !out.is_empty() {
                        let owner = Owner { kind: Kind::Other, ino: self.ino().0 };
                        let held =
                            shared.buffers.get(block, owner, |_| Ok(())).map_err(Fault::of(self.ino()))?;
                        let piece = &held[skip..];
                        let (head, tail) = out.split_at_mut(piece.len().min(out.len()));
                        head.copy_from_slice(&piece[..head.len()]);
                        (out, skip, block) = (tail, 0, Pblk(block.0 + 1));
                    }
                }
                MapState::Written(pblk) => {
                    let start = bs.offset_of(pblk).and_then(|start| start.checked_add(within));
                    let start = start.ok_or_else(|| {
                        Fault::corrupt(
                            self.ino(),
                            Malformed::new("map", "blocks must lie below 2^64 bytes", pblk.0),
                        )
                    })?;
                    shared.device.read_at(start, now)?;
                }
                MapState::Hole | MapState::Unwritten(_) => now.fill(0),
            }
            at += now.len() as u64;
            rest = later;
        }
        Ok(len)
    }

    /// The byte offset on the device of the bytes from `offset` on, if all `len` bytes are contiguous there,
    /// unmodified, and before the end of the file. If not, returns `None`, and the caller must read them.
    ///
    /// # Errors
    /// As [`map`](Self::map).
    pub fn place_of(&self, shared: &Shared, offset: u64, len: u64) -> Result<Option<u64>, Fault> {
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.size());
        let is_sealed = self.has_flag(flags::ENCRYPT) || shared.is_journaled(self.fields());
        if !is_inside || is_sealed || self.is_inline() || !self.has_map(shared) {
            return Ok(None);
        }
        let bs = shared.geometry.block_size;
        let Ok(lblk) = u32::try_from(offset >> bs.log2()) else { return Ok(None) };
        let within = offset & (bs.bytes() - 1);
        let wanted = bs.blocks_for(within + len);
        let found = self.map(shared, Lblk(lblk), wanted.min(MAP_MAX.into()) as u32)?;
        Ok(match found.state {
            MapState::Written(pblk) if u64::from(found.len) >= wanted => {
                bs.offset_of(pblk).and_then(|start| start.checked_add(within))
            }
            _ => None,
        })
    }

    /// The content that is stored in the inode itself.
    ///
    /// # Errors
    /// The inode's attributes are corrupt.
    pub fn inline_content(&self, shared: &Shared) -> Result<Vec<u8>, Fault> {
        if !self.is_inline() {
            return Ok(self.fields().block[..(self.size() as usize).min(60)].to_vec());
        }
        // i_size may be larger than the data while a write moves the data out of the inode; the missing bytes
        // read as zeros.
        let places = self.places(shared);
        let value = places.inline_data().map_err(Fault::of(self.ino()))?.unwrap_or_default();
        Ok([&self.fields().block[..], value].concat())
    }

    /// Number of bytes of content in the inode itself.
    ///
    /// # Errors
    /// The inode's attributes are corrupt.
    pub fn inline_len(&self, shared: &Shared) -> Result<u64, Fault> {
        Ok(self.inline_content(shared)?.len() as u64)
    }

    /// Calls `with` with the parts of an inline directory.
    ///
    /// # Errors
    /// The parts do not fit together.
    pub fn with_inline_dir<R>(
        &self,
        shared: &Shared,
        with: impl FnOnce(&InlineDir<'_>) -> R,
    ) -> Result<R, Fault> {
        let places = self.places(shared);
        let value = places.inline_data().map_err(Fault::of(self.ino()))?.unwrap_or_default();
        let dir = InlineDir::decode(&self.fields().block, value, self.size())
            .map_err(|fact| Fault::corrupt(self.ino(), fact))?;
        Ok(with(&dir))
    }

    /// The blocks of this directory, for `dir`.
    #[must_use]
    pub fn dir_blocks<'a>(&'a self, shared: &'a Shared) -> Blocks<'a> {
        Blocks { inode: self, shared }
    }
}

/// The blocks of a directory; each is verified when it is read.
pub struct Blocks<'a> {
    inode: &'a Inode,
    shared: &'a Shared,
}

impl Blocks<'_> {
    /// Number of blocks: i_size / block size.
    #[must_use]
    pub fn count(&self) -> u32 {
        u32::try_from(self.inode.size() >> self.shared.geometry.block_size.log2()).unwrap_or(u32::MAX)
    }

    fn place(&self, lblk: Lblk) -> Result<Option<Pblk>, ReadFault> {
        match self.inode.map(self.shared, lblk, 1) {
            Ok(Mapped { state: MapState::Written(block), .. }) => Ok(Some(block)),
            Ok(_) => Ok(None),
            Err(Fault::Device(fault)) => Err(ReadFault::Device(fault)),
            Err(Fault::Corrupt(corrupt)) => Err(ReadFault::Corrupt(corrupt)),
            // Mapping needs no other inode and no key.
            Err(_) => Ok(None),
        }
    }

    fn get(
        &self,
        lblk: Lblk,
        kind: Kind,
        verify: impl FnOnce(&[u8], u32) -> Result<(), Malformed>,
    ) -> Result<Option<Buffer>, ReadFault> {
        let Some(block) = self.place(lblk)? else { return Ok(None) };
        let owner = Owner { kind, ino: self.inode.ino().0 };
        let verify = |bytes: &[u8]| self.inode.map.seed.map_or(Ok(()), |seed| verify(bytes, seed));
        let got = self.shared.buffers.get(block, owner, verify);
        got.map(Some).map_err(|fault| match fault {
            ReadFault::Corrupt(mut corrupt) => {
                corrupt.place = corrupt.place.of_ino(self.inode.ino()).at_lblk(lblk);
                ReadFault::Corrupt(corrupt)
            }
            fault => fault,
        })
    }

    /// A leaf, or a block of a linear directory; `None` for a hole.
    ///
    /// # Errors
    /// The block cannot be read, or its checksum is wrong.
    pub fn leaf(&self, lblk: Lblk) -> Result<Option<Buffer>, ReadFault> {
        self.get(lblk, Kind::DirLeaf, dirent::verify_tail)
    }

    /// A root or node of the index; `None` for a hole.
    ///
    /// # Errors
    /// As [`leaf`](Self::leaf).
    pub fn index(&self, format: &DxFormat, lblk: Lblk) -> Result<Option<Buffer>, ReadFault> {
        self.get(lblk, Kind::DirIndex, |bytes, seed| format.verify(bytes, seed))
    }

    /// The number of blocks of the hole from `lblk` on, as far as one lookup in the map finds; 1 for a block
    /// that is not a hole.
    #[must_use]
    pub fn hole_len(&self, lblk: Lblk) -> u32 {
        let left = self.count().saturating_sub(lblk.0);
        match self.inode.map(self.shared, lblk, left) {
            Ok(Mapped { state: MapState::Hole | MapState::Unwritten(_), len, .. }) => len.max(1),
            _ => 1,
        }
    }

    /// Prefetches blocks.
    pub fn prefetch(&self, first: Lblk, len: u32) {
        let len = len.min(self.count().saturating_sub(first.0));
        if len == 0 {
            return;
        }
        if let Ok(Mapped { state: MapState::Written(block), len, .. }) =
            self.inode.map(self.shared, first, len)
        {
            self.shared.buffers.prefetch(block, len);
        }
    }
}
