//! A broken rule of the format with the place where it was found.

use std::fmt;

use crate::{Ino, Lblk, Malformed, Pblk};

/// A place in a file system; unknown parts are `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CorruptAt {
    /// The inode that the structure belongs to.
    pub ino: Option<Ino>,
    /// Logical block within the inode.
    pub lblk: Option<Lblk>,
    /// Physical block.
    pub block: Option<Pblk>,
}

impl CorruptAt {
    /// A place known by its physical block.
    #[must_use]
    pub fn block(block: Pblk) -> Self {
        Self { block: Some(block), ..Self::default() }
    }

    /// A place known by its inode.
    #[must_use]
    pub fn ino(ino: Ino) -> Self {
        Self { ino: Some(ino), ..Self::default() }
    }

    /// Adds the inode, unless the place has one.
    #[must_use]
    pub fn of_ino(mut self, ino: Ino) -> Self {
        self.ino = self.ino.or(Some(ino));
        self
    }

    /// Adds the logical block, unless the place has one.
    #[must_use]
    pub fn at_lblk(mut self, lblk: Lblk) -> Self {
        self.lblk = self.lblk.or(Some(lblk));
        self
    }
}

impl fmt::Display for CorruptAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        if let Some(ino) = self.ino {
            write!(f, "inode {ino}")?;
            comma = ", ";
        }
        if let Some(lblk) = self.lblk {
            write!(f, "{comma}logical block {lblk}")?;
            comma = ", ";
        }
        if let Some(block) = self.block {
            write!(f, "{comma}block {block}")?;
            comma = ", ";
        }
        if comma.is_empty() { f.write_str("the file system") } else { Ok(()) }
    }
}

/// A rule of the format is broken at a place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {fact}")]
pub struct Corrupt {
    /// Where the rule is broken.
    pub place: CorruptAt,
    /// The broken rule, and the number that breaks it.
    pub fact: Malformed,
}

impl Corrupt {
    /// Combines a broken rule with its place.
    #[must_use]
    pub fn at(place: CorruptAt, fact: Malformed) -> Self {
        Self { place, fact }
    }

    /// Adds the inode to the place, unless the place has one.
    #[must_use]
    pub fn of_ino(mut self, ino: Ino) -> Self {
        self.place = self.place.of_ino(ino);
        self
    }
}
