//! Reads a directory as far as it makes sense: also what is after a damaged entry.
//!
//! Invariants
//! 1. An entry is taken only if its fields fit the area that it is in.
//! 2. After a damaged entry, the walk continues where entries in use go on to the end of the area.

use extant_base::le::{u16_at, u32_at};
use extant_base::{Ino, Pblk};
use extant_ondisk::dirent::{self, HEADER_LEN, TAIL_LEN, decode_rec_len, min_rec_len};
use extant_ondisk::hash::{HashVersion, NameHash};
use extant_ondisk::htree::{DxFormat, DxKind};
use extant_ondisk::inode::flags;

use super::{Dir, Entry, inline};
use crate::fs::Fs;
use crate::maps::Map;

impl Dir {
    /// Reads all entries of a directory that make sense.
    pub(crate) fn gather(fs: &Fs<'_>, ino: Ino) -> Option<Self> {
        let inode = fs.inode(ino)?;
        if inode.mode & 0xF000 != 0x4000 {
            return None;
        }
        let inline = fs.is_inline(&inode);
        let walked = if inline { Default::default() } else { fs.walk(ino, &inode) };
        let dir = Self {
            ino,
            inline,
            hashed: inode.has_flag(flags::ENCRYPT) && inode.has_flag(flags::CASEFOLD),
            map: Map { runs: walked.runs, nodes: walked.nodes, ..Map::default() },
            parent: 0,
            entries: Vec::new(),
            lost: 0,
            indexed: inode.has_flag(flags::INDEX) && !inline,
            hash_code: fs.sb.def_hash_version,
            inode,
        };
        let mut reader = Reader { fs, dir };
        if inline {
            reader.inline()?
        } else {
            reader.blocks()
        }
        Some(reader.dir)
    }
}

/// Inode number, name, offset and stored hash.
type RawEntry<'a> = (u32, &'a [u8], usize, Option<NameHash>);

/// Reads the entries of one directory.
struct Reader<'f, 's> {
    fs: &'f Fs<'s>,
    dir: Dir,
}

impl Reader<'_, '_> {
    fn inline(&mut self) -> Option<()> {
        let (head, tail) = inline::parts(self.fs, self.dir.ino, &self.dir.inode)?;
        self.dir.parent = u32_at(&head, 0);
        self.area(&head[4..], 0, 4);
        self.area(&tail, 0, 60);
        Some(())
    }

    fn blocks(&mut self) {
        let blocks = self.dir.inode.size >> self.fs.geometry.block_size.log2();
        for run in self.dir.map.runs.clone() {
            for i in 0..run.len {
                let lblk = run.lblk.0 + i;
                if u64::from(lblk) >= blocks.max(1) {
                    continue;
                }
                match self.fs.read_block(Pblk(run.pblk.0 + u64::from(i))) {
                    Ok(bytes) => self.block(&bytes, lblk),
                    Err(_) => self.dir.lost += 1,
                }
            }
        }
    }

    fn block(&mut self, bytes: &[u8], lblk: u32) {
        if lblk == 0 {
            self.parent(bytes);
            let format = DxFormat::new(self.fs.geometry.block_size, &self.fs.sb.features);
            if self.dir.indexed && (format.kind_of(bytes) == Some(DxKind::Root) || bytes[0x1D] == 8) {
                let version = bytes[0x1C];
                if HashVersion::from_code(version, self.fs.sb.unsigned_hash()).is_some() {
                    self.dir.hash_code = version;
                }
                return;
            }
        } else if self.dir.indexed && self.looks_like_node(bytes) {
            return;
        }
        let tail = self.fs.has_csum() && dirent::tail_checksum(bytes).is_some();
        let end = bytes.len() - if tail { TAIL_LEN } else { 0 };
        self.area(&bytes[..end], lblk, 0);
    }

    /// Takes the parent from the first block.
    fn parent(&mut self, bytes: &[u8]) {
        let first = decode_rec_len(u16_at(bytes, 4), self.fs.geometry.block_size);
        for at in [12, first] {
            if at + 12 <= bytes.len() && bytes[at + 6] == 2 && bytes.get(at + 8..at + 10) == Some(b"..") {
                self.dir.parent = u32_at(bytes, at);
                return;
            }
        }
    }

    fn looks_like_node(&self, bytes: &[u8]) -> bool {
        let rec_len = decode_rec_len(u16_at(bytes, 4), self.fs.geometry.block_size);
        let csum = self.fs.has_csum();
        let limit = (bytes.len() - 8 - if csum { 8 } else { 0 }) / 8;
        u32_at(bytes, 0) == 0
            && bytes[6] == 0
            && rec_len == bytes.len()
            && (csum || usize::from(u16_at(bytes, 8)) == limit)
    }

    /// Adds the entries of an area; after a damaged one, continues where entries go on.
    fn area(&mut self, area: &[u8], lblk: u32, offset: usize) {
        let mut at = 0;
        while at < area.len() {
            match self.entry_at(area, at) {
                Some((entry, next)) => {
                    self.add(entry, lblk, offset);
                    at = next;
                }
                None => {
                    // The damaged entry's own name, if only its length is wrong.
                    match self.name_at(area, at) {
                        Some((ino, name)) => self.add((ino, name, at, None), lblk, offset),
                        None => self.dir.lost += 1,
                    }
                    let resume = (at + 4..area.len()).step_by(4).find(|at| self.goes_on(area, *at));
                    at = resume.unwrap_or(area.len());
                }
            }
        }
    }

    fn add(&mut self, (ino, name, at, hash): RawEntry<'_>, lblk: u32, offset: usize) {
        let dir = &mut self.dir;
        if ino == 0 || name.is_empty() || matches!(name, b"." | b"..") {
            return;
        }
        if lblk == 0 && !dir.inline && at == 0 && ino == dir.ino.0 {
            return; // a damaged "."
        }
        let at = (lblk, (offset + at) as u32);
        dir.entries.push(Entry { ino, kind: 0, name: name.to_vec(), hash, at });
    }

    /// The entry at an offset and the offset of the next one; `None` if it makes no sense.
    fn entry_at<'a>(&self, area: &'a [u8], at: usize) -> Option<(RawEntry<'a>, usize)> {
        let rest = &area[at..];
        if rest.len() < HEADER_LEN {
            return None;
        }
        let (ino, name_len) = (u32_at(rest, 0), usize::from(rest[6]));
        let rec_len = decode_rec_len(u16_at(rest, 4), self.fs.geometry.block_size);
        if rec_len < 12
            || !rec_len.is_multiple_of(4)
            || rec_len > rest.len()
            || HEADER_LEN + name_len > rec_len
        {
            return None;
        }
        let name = &rest[HEADER_LEN..HEADER_LEN + name_len];
        let mut hash = None;
        if self.dir.hashed && ino != 0 && !matches!(name, b"." | b"..") {
            let from = min_rec_len(name_len, false);
            let stored = rest[..rec_len].get(from..from + 8)?;
            hash = Some(NameHash { hash: u32_at(stored, 0), minor: u32_at(stored, 4) });
        }
        Some(((ino, name, at, hash), at + rec_len))
    }

    /// Do entries in use begin here, and reach the end of the area?
    fn goes_on(&self, area: &[u8], at: usize) -> bool {
        let Some(((ino, name, ..), mut next)) = self.entry_at(area, at) else { return false };
        let inodes = self.fs.geometry.inodes();
        if ino == 0 || ino > inodes || name.is_empty() || name.contains(&0) {
            return false;
        }
        while next < area.len() {
            match self.entry_at(area, next) {
                Some(((ino, ..), after)) if ino <= inodes => next = after,
                _ => return false,
            }
        }
        true
    }

    /// The name of an entry whose length is damaged.
    fn name_at<'a>(&self, area: &'a [u8], at: usize) -> Option<(u32, &'a [u8])> {
        let rest = area.get(at..)?;
        let header = rest.get(..HEADER_LEN)?;
        let (ino, name_len) = (u32_at(header, 0), usize::from(header[6]));
        let name = rest.get(HEADER_LEN..HEADER_LEN + name_len)?;
        let note = self.fs.notes.noted(Ino(ino)).filter(|note| note.used && !note.hidden)?;
        let is_name = !name.is_empty() && !name.contains(&0) && !name.contains(&b'/');
        (is_name && note.kind == header[7]).then_some((ino, name))
    }
}
