//! Lists a directory in pieces; [`read_dir`](crate::FileSystem::read_dir) and the walker use it.
//!
//! Invariant: a piece is bounded, however large the directory is, and all pieces together return every name
//! once.

use std::ops::ControlFlow;

use extant_base::Ino;
use extant_volume::{Cursor, Fault, FileType, Inode, Volume};

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) name: Vec<u8>,
    pub(crate) ino: Ino,
    /// From the directory entry; `None` on file systems without types.
    pub(crate) kind: Option<FileType>,
}

/// Some names of a directory, in the order of the listing, without "." and "..".
#[derive(Debug, Default)]
pub(crate) struct Piece {
    pub(crate) names: Vec<Name>,
    /// The position of the next piece; `None` after the last.
    pub(crate) next: Option<Cursor>,
    /// Faults of the blocks and entries that were skipped.
    pub(crate) damage: Vec<Fault>,
}

/// Lists about `len_min` names from `from` on; a few more if stopping there could lose or repeat a name.
pub(crate) fn piece(volume: &Volume, dir: &Inode, from: Cursor, len_min: usize) -> Result<Piece, Fault> {
    let mut piece = Piece::default();
    // Positions after the last name taken, and after the name before it.
    let (mut last, mut before) = (from, from);
    let mut next = None;
    let mut each = |entry: extant_volume::DirEntry<'_>| {
        // Names with the same hash have the same position. A listing that begins between them could repeat or
        // omit one, so a piece ends only where the positions before and after differ.
        if piece.names.len() >= len_min && last != before && entry.next != last {
            next = Some(last);
            return ControlFlow::Break(());
        }
        if !matches!(entry.name, b"." | b"..") {
            piece.names.push(Name { name: entry.name.to_vec(), ino: entry.ino, kind: entry.kind });
        }
        (before, last) = (last, entry.next);
        ControlFlow::Continue(())
    };
    let mut damage = Vec::new();
    volume.names().read_dir(dir, from, &mut each, &mut |fault| {
        // A directory may have millions of damaged blocks; the first ones suffice.
        if damage.len() < DAMAGE_MAX {
            damage.push(fault);
        }
    })?;
    piece.damage = damage;
    piece.next = next;
    Ok(piece)
}

/// Maximum number of faults that one piece reports.
const DAMAGE_MAX: usize = 16;
