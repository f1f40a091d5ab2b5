//! Orphans after a crash: files are truncated to their size, inodes without names are deleted.
//!
//! ```text
//! list   superblock -> inode -> (its dtime) -> inode -> 0     --> Tracked -- adopt --> each: cut or delete
//! file   slots of the orphan file's blocks
//! ```
//!
//! Owns: what is tracked on the device, and that each orphan is handled once. Does **not** own: how a file is
//! truncated and an inode deleted (see `write`), tracking while the volume is in use
//! ([`extant_inode::Orphans`]).
//!
//! An orphan is untracked by the transaction that finishes it. If power fails during the sweep, the next
//! mount sweeps the rest.
//!
//! Source: kernel Documentation/filesystems/ext4/orphan.rst.

use std::collections::HashSet;

use extant_base::{Ino, Lblk, Malformed};
use extant_buffer::{Kind, Owner};
use extant_inode::{Inodes, OrphanFile, Slot};
use extant_mapping::MapState;
use extant_ondisk::Features;
use extant_ondisk::orphan_file::{self, OrphanBlock};
use extant_ondisk::superblock::Superblock;

use crate::OpenFault;
use crate::write::Writer;

/// Longest orphan list. A longer one is a cycle or damage.
const LISTED_MAX: usize = 1 << 20;

/// The orphans on the device.
#[derive(Default)]
pub(super) struct Tracked {
    /// The list, from its head.
    listed: Vec<Ino>,
    /// Why the list could not be followed to its end.
    list_fault: Option<String>,
    in_file: Vec<(Slot, Ino)>,
}

/// The result of a sweep.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Swept {
    /// Files truncated to their size.
    pub(super) cut: u64,
    /// Inodes deleted.
    pub(super) deleted: u64,
    /// Orphans that could not be cleaned up, and stay.
    failed: u64,
    /// The list leads to an inode that is not an orphan: the rest of the list is unknown.
    is_broken: bool,
}

/// Returns whether the superblock says that there may be orphans.
pub(super) fn may_be_there(sb: &Superblock) -> bool {
    sb.last_orphan != 0 || sb.features.has_ro_compat(Features::ORPHAN_PRESENT)
}

/// Reads which inodes are tracked, on the list and in `file`.
pub(super) fn find(inodes: &Inodes, file: Option<&OrphanFile>) -> Tracked {
    let mut found = Tracked { in_file: file.map(OrphanFile::used).unwrap_or_default(), ..Tracked::default() };
    let mut seen = HashSet::new();
    let mut next = inodes.shared().sb.last_orphan;
    while next != 0 && found.list_fault.is_none() {
        // Inodes without links cannot be loaded by number, so their link is read from the table.
        match inodes.orphan_link(Ino(next)) {
            _ if !seen.insert(next) || seen.len() > LISTED_MAX => {
                found.list_fault = Some(format!("inode {next} is on it twice, or it is too long"));
            }
            Err(fault) => found.list_fault = Some(fault.to_string()),
            Ok(link) => {
                found.listed.push(Ino(next));
                next = link;
            }
        }
    }
    found
}

impl Tracked {
    pub(super) fn is_empty(&self) -> bool {
        self.listed.is_empty() && self.in_file.is_empty()
    }

    /// All tracked inodes.
    pub(super) fn all(&self) -> HashSet<Ino> {
        self.listed.iter().copied().chain(self.in_file.iter().map(|(_, ino)| *ino)).collect()
    }

    /// Why the list could not be followed to its end.
    pub(super) fn list_fault(&self) -> Option<&str> {
        self.list_fault.as_deref()
    }

    /// Only the files that must be truncated. An inode without links has no name, so a volume that is open
    /// for reading shows nothing of it, whether it is deleted or not.
    pub(super) fn with_names(self, inodes: &Inodes) -> Self {
        // Only inodes with links are returned.
        let has_name = |ino: Ino| inodes.get(ino).is_ok();
        Self {
            listed: self.listed.into_iter().filter(|ino| has_name(*ino)).collect(),
            list_fault: None,
            in_file: self.in_file.into_iter().filter(|(_, ino)| has_name(*ino)).collect(),
        }
    }
}

/// Truncates and deletes what is tracked. What fails stays tracked, for e2fsck.
pub(super) fn sweep(writer: &Writer, tracked: &Tracked) -> Swept {
    let mut swept = Swept::default();
    let live = writer.inodes();
    let mut seen = HashSet::new();
    // Skips inodes that are free or were seen already: they would be freed a second time.
    let mut usable = |ino: Ino| {
        let is_used = !live.shared().is_special(ino)
            && writer.keeper.alloc.is_inode_used(ino).is_ok_and(|is_used| is_used);
        live.get_unlinked(ino).ok().filter(|_| is_used && seen.insert(ino))
    };
    // The list cannot be followed past an invalid inode.
    let mut nodes: Vec<_> = tracked.listed.iter().map_while(|ino| usable(*ino)).collect();
    swept.is_broken = nodes.len() < tracked.listed.len() || tracked.list_fault.is_some();
    writer.keeper.orphans.adopt_listed(&nodes);
    for (slot, ino) in &tracked.in_file {
        // Slots that lead to no inode are left as they are.
        let Some(node) = usable(*ino) else { continue };
        writer.keeper.orphans.adopt_slot(&node, *slot);
        nodes.push(node);
    }
    for node in nodes {
        let _operation = node.operation.write();
        let links = node.values().fields.links;
        let done = if links == 0 {
            swept.deleted += 1;
            writer.life().delete(&node)
        } else {
            swept.cut += 1;
            writer.sizes().finish_cut(&node)
        };
        if let Err(fault) = &done {
            swept.failed += 1;
            writer.note(fault);
        }
    }
    swept
}

impl Swept {
    /// What went wrong, as text.
    pub(super) fn lines(&self) -> Vec<String> {
        let broken = "the list of orphans leads to an inode that is none, and is cut there; run `e2fsck -f`";
        let failed = self.failed;
        let failed_line = format!("{failed} orphans could not be cleaned up, and stay; run `extant check`");
        let lines = [self.is_broken.then(|| broken.to_owned()), (failed > 0).then_some(failed_line)];
        lines.into_iter().flatten().collect()
    }
}

/// The orphan file; `None` if the file system has none.
pub(super) fn load_file(inodes: &Inodes) -> Result<Option<OrphanFile>, OpenFault> {
    let shared = inodes.shared();
    if !shared.sb.features.has_compat(Features::ORPHAN_FILE) {
        return Ok(None);
    }
    let damaged = |why: String| OpenFault::Damaged(format!("orphan file: {why}"));
    let ino = Ino(shared.sb.orphan_file_inum);
    let inode = inodes.get(ino).map_err(|fault| damaged(fault.to_string()))?;
    let bs = shared.geometry.block_size;
    let count = inode.size() >> bs.log2();
    if count > orphan_file::MAX_BLOCKS {
        return Err(damaged(format!("it has {count} blocks, more than {}", orphan_file::MAX_BLOCKS)));
    }
    let seed = shared.fs_seed.map(|seed| orphan_file::inode_seed(seed, ino, inode.fields().generation));
    let owner = Owner { kind: Kind::Orphans, ino: ino.0 };
    let mut blocks = Vec::new();
    for lblk in 0..count as u32 {
        let mapped = inode.map(shared, Lblk(lblk), 1).map_err(|fault| damaged(fault.to_string()))?;
        let MapState::Written(place) = mapped.state else {
            return Err(damaged(format!("block {lblk} is a hole")));
        };
        let verify = |bytes: &[u8]| {
            let block = OrphanBlock::decode(bytes)?;
            let is_right = seed.is_none_or(|seed| block.verify(seed, place));
            Malformed::unless(is_right, "orphan file", "its checksum must match", block.stored_checksum())
        };
        let held = shared.buffers.get(place, owner, verify).map_err(|fault| damaged(fault.to_string()))?;
        let slots = orphan_file::slots_per_block(bs);
        let slots = held[..slots * 4]
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        blocks.push((place, slots.collect()));
    }
    Ok(Some(OrphanFile::new(ino, seed, blocks)))
}
