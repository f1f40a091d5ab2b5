//! Directories in pieces: what [`read_dir`](crate::FileSystem::read_dir) and the walker stand on.
//!
//! Invariant: however large a directory is, a piece of it is bounded, and together the pieces return every
//! name once.

use std::ops::ControlFlow;

use extant_base::Ino;
use extant_volume::{Cursor, Fault, FileType, Inode, Volume};

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) name: Vec<u8>,
    pub(crate) ino: Ino,
    /// As in the directory entry; `None` on file systems without types.
    pub(crate) kind: Option<FileType>,
}

/// Some names of a directory, in the order of its listing; "." and ".." are left out.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    pub(crate) names: Vec<Name>,
    /// Where the next piece begins; `None` behind the last.
    pub(crate) next: Option<Cursor>,
    /// What could not be read, and was skipped.
    pub(crate) damage: Vec<Fault>,
}

/// Lists about `len_min` names from `from` on: a few more, where stopping could lose or repeat a name.
pub(crate) fn piece(volume: &Volume, dir: &Inode, from: Cursor, len_min: usize) -> Result<Piece, Fault> {
    let mut piece = Piece::default();
    // Positions behind the last name taken, and behind the one before it.
    let (mut last, mut before) = (from, from);
    let mut next = None;
    let mut each = |entry: extant_volume::DirEntry<'_>| {
        // Names with one hash have one position. A listing that begins between them could repeat one or leave
        // one out, so it begins only where the position before and the one after are others.
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
    volume.read_dir(dir, from, &mut each, &mut |fault| {
        // A directory may have millions of damaged blocks; the first ones suffice.
        if damage.len() < DAMAGE_MAX {
            damage.push(fault);
        }
    })?;
    piece.damage = damage;
    piece.next = next;
    Ok(piece)
}

/// The most damage of one piece that is reported.
const DAMAGE_MAX: usize = 16;
