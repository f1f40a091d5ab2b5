//! Changes of the primary superblock, as part of a transaction.

use extant_base::{Ino, Pblk};
use extant_buffer::{Kind, Owner, Seal};
use extant_inode::Change;
use extant_ondisk::Geometry;
use extant_ondisk::superblock::{self, Superblock};

use super::{CommitClient, Writer};
use crate::Fault;

/// The superblock's block, as a commit writes it.
pub(super) const SUPERBLOCK: Seal = Seal { owner: Owner { kind: Kind::Superblock, ino: 0 }, seed: Some(0) };

/// The superblock's block, and its offset in that block.
pub(super) fn superblock_place(geometry: &Geometry) -> (Pblk, usize) {
    let bs = geometry.block_size.bytes();
    (Pblk(superblock::OFFSET / bs), (superblock::OFFSET % bs) as usize)
}

/// Seconds since 1970.
pub(crate) fn seconds_now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

impl Writer {
    /// Changes the superblock in its own transaction.
    pub(crate) fn change_superblock(&self, with: impl Fn(&mut Superblock)) -> Result<(), Fault> {
        self.run(1, |change| self.keeper.edit_superblock(change, &with))
    }
}

impl CommitClient {
    /// Changes the superblock.
    pub(super) fn edit_superblock(
        &self,
        change: &Change<'_>,
        with: &dyn Fn(&mut Superblock),
    ) -> Result<(), Fault> {
        let (block, at) = superblock_place(&self.shared().geometry);
        let mut decoded = Ok(());
        change.edit.change(block, SUPERBLOCK, &mut |bytes| {
            let place = bytes.get_mut(at..at + superblock::SIZE).unwrap_or_default();
            decoded = Superblock::decode(place).map(|mut sb| {
                with(&mut sb);
                place.copy_from_slice(&sb.encode());
            });
        })?;
        decoded.map_err(|fact| Fault::corrupt(Ino(0), fact))
    }
}
