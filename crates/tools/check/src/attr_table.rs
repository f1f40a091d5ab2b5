//! Attribute blocks and EA inodes that were found, with their references.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

/// Parts of the table, so that threads seldom wait for each other.
pub(crate) const SHARDS: usize = 64;

/// Attribute blocks and EA inodes, with their references.
#[derive(Debug)]
pub(crate) struct Attrs {
    pub(crate) blocks: Box<[Mutex<HashMap<u64, AttrBlock>>]>,
    /// References to EA inodes, by inode.
    pub(crate) ea: Mutex<HashMap<u32, Vec<EaRef>>>,
    /// The inodes in use that have the flag.
    pub(crate) flagged: Mutex<Vec<u32>>,
    /// Some inodes or attributes cannot be read, and may refer to any of them.
    pub(crate) are_unread: AtomicBool,
}

impl Default for Attrs {
    fn default() -> Self {
        Self {
            blocks: (0..SHARDS).map(|_| Mutex::default()).collect(),
            ea: Mutex::default(),
            flagged: Mutex::default(),
            are_unread: AtomicBool::new(false),
        }
    }
}

/// An attribute block.
#[derive(Debug, Clone, Default)]
pub(crate) struct AttrBlock {
    /// Inodes that refer to it.
    pub(crate) users: u32,
    /// The count in its header; `None` if the header is invalid.
    pub(crate) refcount: Option<u32>,
    /// It holds an encryption context.
    pub(crate) encryption: bool,
    /// Bytes of its values in EA inodes, charged to the quota of each user of the block.
    pub(crate) ea_bytes: u64,
    pub(crate) ea_inodes: u64,
}

/// An attribute whose value is in an EA inode.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EaRef {
    /// The inode or the block that holds the entry.
    pub(crate) from: (u32, u64),
    /// The offset of the entry, as in findings: names repeat under other prefixes.
    pub(crate) offset: u32,
    pub(crate) name: Vec<u8>,
    pub(crate) size: u32,
    pub(crate) hash: u32,
}
