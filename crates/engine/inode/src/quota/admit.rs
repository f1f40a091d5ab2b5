//! Adding entries for new owners.

use extant_base::{Lblk, Pblk};
use extant_ondisk::quota::tree;

use super::{File, Quota};
use crate::Fault;
use crate::change::{Change, edit_fault};
use crate::node::Owners;

impl Quota {
    /// Adds an empty entry for the first of these owners that has none. Returns `false` if others may still
    /// lack one: then call again with another handle of [`ADMIT_CREDITS`](Self::ADMIT_CREDITS).
    ///
    /// # Errors
    /// No space, or a file cannot be read; the file keeps its old entries.
    pub fn admit(&self, change: &Change<'_>, owners: Owners) -> Result<bool, Fault> {
        let shared = change.live.shared();
        for (file, id) in self.files.iter().zip(owners) {
            let Some(file) = file else { continue };
            if file.place(shared, id).map_err(|fault| file.fault(fault))?.is_none() {
                file.add(change, id)?;
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl File {
    /// Adds an entry.
    fn add(&self, change: &Change<'_>, id: u32) -> Result<(), Fault> {
        let shared = change.live.shared();
        // Locked until the end: two concurrent additions would use the same blocks.
        let places = self.places.lock();
        let read = &mut |number| self.read(shared, number);
        let known = tree::find(self.kind, id, read).map_err(|fault| self.fault(fault))?;
        if known.is_some() {
            return Ok(());
        }
        let insertion = tree::insert(self.kind, id, read).map_err(|fault| self.fault(fault))?;
        // First allocate all blocks, which may fail. A block of zeros after the last one does no harm.
        let mut homes = Vec::new();
        for (number, bytes) in &insertion.changed {
            let (lblk, at) = Self::lblk(shared, *number);
            homes.push((self.home(change, lblk)?, at, bytes));
        }
        for (home, at, bytes) in homes {
            let put = &mut |all: &mut [u8]| all[at..at + bytes.len()].copy_from_slice(bytes);
            change.edit.change(home, self.seal(), put).map_err(Fault::of(self.node.ino()))?;
        }
        drop(places);
        Ok(())
    }

    /// The physical block of a block of the file; allocates one with zeros in a hole.
    fn home(&self, change: &Change<'_>, lblk: u64) -> Result<Pblk, Fault> {
        let shared = change.live.shared();
        let ino = self.node.ino();
        let known = self.find(shared, &self.node.values(), lblk).map_err(|fault| self.fault(fault))?;
        if let Some(known) = known {
            return Ok(known);
        }
        let mut values = change.live.edit(&self.node, change.edit.transaction());
        let at = Lblk(u32::try_from(lblk).map_err(|_| Fault::TooLarge)?);
        let block = change.append_block(&mut values, at, Pblk(0)).map_err(|fault| edit_fault(ino, fault))?;
        change.edit.fresh(block, self.seal(), &mut |_| {});
        let end = (lblk + 1) << shared.geometry.block_size.log2();
        values.fields.size = values.fields.size.max(end);
        Ok(block)
    }
}
