//! Inodes as fast commits left them, where that is not what stands in the tables.

use std::collections::HashMap;

use extant_base::Ino;
use extant_mapping::Mapped;

/// What a fast commit changed of one inode.
#[derive(Debug, Clone, Default)]
pub struct Override {
    /// All bytes of the inode, `inode_size` of them; its checksum is not looked at.
    pub raw: Option<Vec<u8>>,
    /// Its whole map, sorted, without holes; `None` where the tree on the device still holds.
    pub map: Option<Vec<Mapped>>,
}

/// All inodes that fast commits changed.
pub type Overrides = HashMap<Ino, Override>;
