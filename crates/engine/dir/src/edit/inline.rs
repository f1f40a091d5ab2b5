//! Changes of a directory that is stored in its inode: two short runs of entries, after the parent's number.
//!
//! The caller provides the bytes of both runs ([`extant_ondisk::inline_data`] describes their place) and
//! writes them back. If there is no room, it extends the second run ([`InlineEditor::stretch`] makes the new
//! bytes usable), or moves the directory to a block ([`InlineEditor::to_block`]) and inserts there.

use extant_base::{CorruptAt, Ino, Malformed};
use extant_buffer::ReadFault;
use extant_ondisk::dirent::DirFormat;
use extant_ondisk::dirent::edit::Found;
use extant_ondisk::dirent::{encode_rec_len, min_rec_len};
use extant_ondisk::filetype::FileType;
use extant_ondisk::inline_data::DIR_IN_BLOCK;

use super::{DirTarget, EditFault, NoSpace, first_block, is_dots, is_name};

/// An inline directory that is being changed.
pub struct InlineEditor<'a> {
    ino: Ino,
    format: DirFormat,
    parent: &'a mut Ino,
    regions: [&'a mut [u8]; 2],
}

impl<'a> InlineEditor<'a> {
    /// Takes the parts of an inline directory: its parent, the entries in `i_block`, and those in the value
    /// of `system.data` (its length is a multiple of 4, maybe 0).
    ///
    /// # Errors
    /// Encrypted and casefolded directories are read-only; or an entry breaks a rule.
    pub fn new(
        target: DirTarget,
        format: &DirFormat,
        parent: &'a mut Ino,
        first: &'a mut [u8; DIR_IN_BLOCK],
        second: &'a mut [u8],
    ) -> Result<Self, EditFault> {
        target.check()?;
        let editor =
            Self { ino: target.ino, format: *format, parent, regions: [first.as_mut_slice(), second] };
        for region in &editor.regions {
            let checked = editor.format.entries(region).try_for_each(|entry| entry.map(drop));
            checked.map_err(|fact| editor.corrupt(fact))?;
        }
        Ok(editor)
    }

    /// Initializes a new inline directory: the first run, and a second one of any length.
    pub fn lay_empty(format: &DirFormat, first: &mut [u8; DIR_IN_BLOCK], second: &mut [u8]) {
        format.lay_empty(first);
        Self::stretch(format, second, 0);
    }

    /// Makes the bytes of the second run from `from` on, which were appended, an unused entry.
    ///
    /// # Panics
    /// If these are 1 to 11 bytes, or not a multiple of 4: no entry has such a length.
    pub fn stretch(format: &DirFormat, second: &mut [u8], from: usize) {
        let added = &mut second[from..];
        if added.is_empty() {
            return;
        }
        assert!(added.len() >= min_rec_len(1, false), "an entry has 12 bytes or more");
        let len = encode_rec_len(added.len(), format.block_size).expect("entries are multiples of 4");
        added.fill(0);
        added[4..6].copy_from_slice(&len.to_le_bytes());
    }

    /// Inserts a name.
    ///
    /// # Errors
    /// The name exists, or there is [no room](NoSpace::Inline): nothing was changed.
    ///
    /// # Panics
    /// If the name is empty or longer than 255 bytes, or `ino` is 0.
    pub fn insert(&mut self, name: &[u8], ino: Ino, kind: FileType) -> Result<(), EditFault> {
        assert!(is_name(name) && ino.0 != 0, "names have 1 to 255 bytes and lead to an inode");
        if is_dots(name) {
            return Err(EditFault::Exists);
        }
        let need = min_rec_len(name.len(), false);
        let mut room = None;
        for (i, region) in self.regions.iter().enumerate() {
            let scan = self.format.scan(region, name, need).map_err(|fact| self.corrupt(fact))?;
            if scan.found.is_some() {
                return Err(EditFault::Exists);
            }
            if room.is_none() && scan.hole.len >= need {
                room = Some((i, scan.hole.at));
            }
        }
        let (i, at) = room.ok_or(NoSpace::Inline)?;
        let placed = self.format.insert_at(self.regions[i], at, ino, kind, name);
        placed.map(drop).ok_or(EditFault::NoSpace(NoSpace::Inline))
    }

    /// Removes a name. Returns its inode.
    ///
    /// # Errors
    /// The name does not exist.
    pub fn remove(&mut self, name: &[u8]) -> Result<Ino, EditFault> {
        let (i, found) = self.find(name)?;
        self.format.remove_at(self.regions[i], 0, found.at).ok_or(EditFault::Absent)?;
        Ok(found.ino)
    }

    /// Changes the inode of a name. Returns the previous inode.
    ///
    /// # Errors
    /// The name does not exist.
    pub fn replace(&mut self, name: &[u8], ino: Ino, kind: FileType) -> Result<Ino, EditFault> {
        let (i, found) = self.find(name)?;
        if !self.format.replace_at(self.regions[i], found.at, ino, kind) {
            return Err(EditFault::Absent);
        }
        Ok(found.ino)
    }

    /// Sets ".." after the directory was moved.
    pub fn set_parent(&mut self, parent: Ino) {
        *self.parent = parent;
    }

    /// Whether it has no names.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let mut entries = self.regions.iter().flat_map(|region| self.format.entries(region));
        !entries.any(|entry| entry.is_ok_and(|entry| entry.is_used()))
    }

    /// The first block of the same directory, stored in blocks: "." and "..", then its names.
    ///
    /// # Errors
    /// ".." has inode 0, which only an inline directory can store.
    pub fn to_block(&self) -> Result<Vec<u8>, EditFault> {
        let leads =
            Malformed::unless(self.parent.0 != 0, "inline directory", "\"..\" must lead to an inode", 0u32);
        leads.map_err(|fact| self.corrupt(fact))?;
        let mut block = vec![0; self.format.block_size.len()];
        first_block(&self.format, self.ino, *self.parent, &mut block);
        let mut at = min_rec_len(1, false);
        for region in &self.regions {
            let entries = self.format.entries(region).map_while(Result::ok);
            for entry in entries.filter(|entry| entry.is_used() && !entry.is_dot_or_dotdot()) {
                // The names fit: an inode is no larger than a block, and the fields before its data are
                // longer than "." and "..".
                let placed = self.format.insert_at(&mut block, at, entry.ino, entry.file_type, entry.name);
                at = placed.ok_or(EditFault::NoSpace(NoSpace::Inline))?.at;
            }
        }
        Ok(block)
    }

    fn find(&self, name: &[u8]) -> Result<(usize, Found), EditFault> {
        if is_dots(name) || !is_name(name) {
            return Err(EditFault::Absent);
        }
        for (i, region) in self.regions.iter().enumerate() {
            let scan = self.format.scan(region, name, 0).map_err(|fact| self.corrupt(fact))?;
            if let Some(found) = scan.found {
                return Ok((i, found));
            }
        }
        Err(EditFault::Absent)
    }

    fn corrupt(&self, fact: Malformed) -> ReadFault {
        ReadFault::corrupt(CorruptAt::ino(self.ino), fact)
    }
}
