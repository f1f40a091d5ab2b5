//! An inode while it is checked.

use extant_base::Ino;
use extant_ondisk::Superblock;
use extant_ondisk::inode::Inode;

use crate::FindingPlace;
use crate::state::State;

/// The first inode that is not reserved.
pub(super) fn first_ino(sb: &Superblock) -> u32 {
    if sb.rev_level == 0 { Ino::FIRST.0 } else { sb.first_ino.max(Ino::FIRST.0) }
}

/// An inode in use, with the context that its checks need.
pub(super) struct Subject<'s, 'd> {
    pub(super) state: &'s State<'d>,
    pub(super) ino: Ino,
    pub(super) inode: &'s Inode,
    pub(super) bytes: &'s [u8],
    pub(super) seed: u32,
}

impl Subject<'_, '_> {
    pub(super) fn broken(&self, rule: &'static crate::Rule, says: impl Into<String>) {
        self.state.findings.broken(rule, FindingPlace::ino(self.ino), says);
    }
}
