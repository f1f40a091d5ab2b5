//! Exchanging the blocks of two files, to put the data of a file into other blocks.
//!
//! ```text
//!   donor: the same data in better blocks, durable
//!   file  -- exchange, one transaction -->  the donor's blocks        donor: the file's old blocks
//! ```
//!
//! Invariant: with a journal, after a power cut the file has its old blocks or the donor's. Both have its
//! data.
//!
//! Does **not** own: which blocks are better, and the copy (the caller makes it).

use std::sync::Arc;

use extant_base::{Ino, Lblk};
use extant_inode::LiveInode;
use extant_mapping::Mapped;
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::flags;

use super::fallocate::FallocateFile;
use super::views::DataEdits;
use crate::ops::errors::Operation;
use crate::{Fault, Files, Refusal};

/// The most extents of both files: all nodes of their maps change in one transaction.
const EXTENTS_MAX: usize = 16 << 10;

impl Files<'_> {
    /// Exchanges the blocks of a file with those of `donor`, a file of the same size with the same data that
    /// nothing else uses, and whose data is durable (see [`fsync`](Self::fsync)). It is one transaction;
    /// sizes and times stay.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] for one file or different sizes; [`Refusal::NotSupported`] for maps without
    /// extents, inline and journaled data; [`Refusal::TooLarge`] for too many extents;
    /// [`Refusal::WrongType`], [`Refusal::IsDirectory`], [`Refusal::NotPermitted`]; the device failed.
    pub fn exchange_blocks(self, file: Ino, donor: Ino) -> Result<(), Fault> {
        let writer = self.volume.writer()?;
        self.volume.noted(Operation::Exchange, writer.data().exchange_blocks(file, donor))
    }
}

impl DataEdits<'_> {
    fn exchange_blocks(self, file: Ino, donor: Ino) -> Result<(), Fault> {
        if file == donor {
            return Err(Refusal::Invalid.into());
        }
        let (first, second) = (file.min(donor), file.max(donor));
        let (first, second) =
            (self.writer.unlinked_to_change(first)?, self.writer.unlinked_to_change(second)?);
        let _locks = (self.writer.names().lock_node(&first)?, self.writer.names().lock_node(&second)?);
        self.check_exchangeable(&first)?;
        self.check_exchangeable(&second)?;
        if first.values().size() != second.values().size() {
            return Err(Refusal::Invalid.into());
        }
        let files = [FallocateFile::new(self.writer, &first), FallocateFile::new(self.writer, &second)];
        for file in &files {
            file.write_back(0..u64::MAX)?;
        }
        let pieces = [self.all_pieces(&first)?, self.all_pieces(&second)?];
        if pieces[0].len() + pieces[1].len() > EXTENTS_MAX {
            return Err(Refusal::TooLarge.into());
        }
        // Each node of the new maps (at worst half full) with its bitmap; a bitmap for each old node.
        let per_node = self.writer.shared().geometry.block_size.len() / 12 / 2;
        let nodes = pieces.iter().map(|pieces| pieces.len() / per_node + 6).sum::<usize>();
        // A lack of space in the middle would leave half of a map.
        let alloc = &self.writer.keeper.alloc;
        let usable = alloc.usage().blocks_available.saturating_sub(alloc.pending_blocks());
        if usable < 4 * nodes as u64 * self.writer.shared().geometry.cluster_ratio() {
            return Err(Refusal::NoSpace.into());
        }
        let credits = 4 * nodes as u32 + 8;
        let exchanged = self.writer.run(credits, |change| {
            for (at, file) in files.iter().enumerate() {
                let _mapping = file.lock_map();
                file.forget_all();
                file.note_mapped(change);
                change.take_blocks(file.node, &pieces[at], &pieces[1 - at])?;
            }
            Ok(())
        });
        self.writer.sizes().or_abort(exchanged)
    }

    fn check_exchangeable(self, node: &LiveInode) -> Result<(), Fault> {
        let values = node.values();
        match values.kind() {
            FileType::Regular => {}
            FileType::Directory => return Err(Refusal::IsDirectory.into()),
            _ => return Err(Refusal::WrongType.into()),
        }
        if values.has_flag(flags::IMMUTABLE | flags::VERITY) {
            return Err(Refusal::NotPermitted.into());
        }
        if values.has_flag(flags::ENCRYPT) {
            return Err(Refusal::NeedsKey.into());
        }
        let is_plain = values.has_flag(flags::EXTENTS) && !values.has_flag(flags::INLINE_DATA);
        if !is_plain || values.is_journaled(self.writer.shared()) {
            return Err(Refusal::NotSupported.into());
        }
        Ok(())
    }

    fn all_pieces(self, node: &Arc<LiveInode>) -> Result<Vec<Mapped>, Fault> {
        let map = node.values().map();
        let mut pieces = Vec::new();
        map.walk(&self.writer.shared().buffers, Lblk(0), &mut |piece| {
            pieces.push(piece);
            Some(())
        })?;
        Ok(pieces)
    }
}
