//! Inodes in the state after fast commits, if that differs from the inode tables.

use std::collections::HashMap;

use extant_base::Ino;
use extant_mapping::Mapped;

/// The changes of one inode by fast commits.
#[derive(Debug, Clone, Default)]
pub struct Override {
    /// All `inode_size` bytes of the inode; its checksum is ignored.
    pub raw: Option<Vec<u8>>,
    /// Its complete map, sorted, without holes; `None` if the tree on the device is still valid.
    pub map: Option<Vec<Mapped>>,
}

/// All inodes that fast commits changed.
pub type Overrides = HashMap<Ino, Override>;
