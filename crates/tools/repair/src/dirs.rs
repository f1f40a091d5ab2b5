//! Directories: single entries are repaired in place; everything else by writing the directory anew.
//!
//! ```text
//! gather   every entry that makes sense, also after a damaged one: name, inode, type, stored hash
//! judge    entries that lead nowhere go; names that cannot be are changed; types are set
//! pack     blocks in the order of hashes, with an index over them; without an index where hashes need a key
//! ```

use std::collections::{BTreeMap, HashSet};

use extant_base::le::{put_u16, put_u32, u16_at, u32_at};
use extant_base::{Ino, Lblk, Pblk};
use extant_check::Finding;
use extant_check::survey::Run;
use extant_device::DeviceFault;
use extant_ondisk::dirent::{self, HEADER_LEN, TAIL_LEN, decode_rec_len, encode_rec_len, min_rec_len};
use extant_ondisk::hash::{HashVersion, NameHash, dirhash, seed_words};
use extant_ondisk::htree::{DxFormat, IndexPlan, RootInfo};
use extant_ondisk::inode::{Inode, flags, inode_seed};
use extant_ondisk::xattr::{self, Attr, AttrValue};
use extant_ondisk::{Features, casefold};

use crate::fs::Fs;

pub(crate) const DIRECTORY: u8 = 2;
const TAIL_TYPE: u8 = 0xDE;

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) ino: u32,
    pub(crate) kind: u8,
    pub(crate) name: Vec<u8>,
    /// The stored hash, in directories that are encrypted and casefolded.
    hash: Option<NameHash>,
    /// Logical block and byte offset.
    at: (u32, u32),
}

impl Entry {
    pub(crate) fn new(ino: Ino, kind: u8, name: &[u8]) -> Self {
        Self { ino: ino.0, kind, name: name.to_vec(), hash: None, at: (u32::MAX, 0) }
    }
}

/// A directory in memory.
pub(crate) struct Dir {
    pub(crate) ino: Ino,
    inode: Inode,
    runs: Vec<Run>,
    nodes: Vec<Pblk>,
    inline: bool,
    pub(crate) hashed: bool,
    pub(crate) parent: u32,
    pub(crate) entries: Vec<Entry>,
    /// Parts that could not be read.
    lost: u32,
    indexed: bool,
    hash_code: u8,
}

/// Findings that an edit of the one entry repairs.
const IN_PLACE: &[&str] = &["DI011", "DI012", "DI013", "DI014", "DI015", "DI018", "DI019", "DI020"];

impl Fs<'_, '_> {
    /// Repairs findings about blocks and entries of directories.
    pub(crate) fn mend_dirs(&mut self, findings: &[&Finding]) -> Result<(), DeviceFault> {
        let mut dirs: BTreeMap<Ino, Vec<&Finding>> = BTreeMap::new();
        for finding in findings {
            if let Some(ino) = finding.place.ino {
                dirs.entry(ino).or_default().push(finding);
            }
        }
        for (ino, findings) in dirs {
            let Some(inode) = self.inode(ino) else { continue };
            let simple = !self.is_inline(&inode)
                && findings
                    .iter()
                    .all(|finding| IN_PLACE.contains(&finding.rule.code) || finding.rule.code == "DI008");
            match simple {
                true => self.edit_entries(ino, &inode, &findings)?,
                false => self.mend_dir(ino, &findings),
            }
        }
        Ok(())
    }

    /// Repairs single entries in place.
    fn edit_entries(&mut self, ino: Ino, inode: &Inode, findings: &[&Finding]) -> Result<(), DeviceFault> {
        let seed = inode_seed(self.sb.fs_seed(), ino, inode.generation);
        let mut blocks: BTreeMap<Pblk, Vec<&Finding>> = BTreeMap::new();
        for finding in findings {
            if let Some(block) = finding.place.block {
                blocks.entry(block).or_default().push(finding);
            }
        }
        let format = DxFormat::new(self.geometry.block_size, &self.sb.features);
        for (block, findings) in blocks {
            let mut bytes = self.read_block(block)?;
            for finding in &findings {
                let Some(at) = finding.place.offset.map(|at| at as usize) else { continue };
                if at + HEADER_LEN > bytes.len() {
                    continue;
                }
                let target = Ino(u32_at(&bytes, at));
                match finding.rule.code {
                    "DI013" | "DI014" => {
                        let kind = self.notes.noted(target).map_or(0, |note| note.kind);
                        let name_len = usize::from(bytes[at + 6]);
                        let is_dots = matches!(bytes.get(at + 8..at + 8 + name_len), Some(b"." | b".."));
                        bytes[at + 7] = if is_dots { DIRECTORY } else { kind };
                    }
                    "DI015" => bytes[at + 7] = 0,
                    "DI008" => {}
                    _ => put_u32(&mut bytes, at, 0),
                }
            }
            self.seal_dir_block(&mut bytes, &format, seed, findings[0].place.lblk == Some(Lblk(0)), inode);
            self.write_block(block, &bytes)?;
            for finding in findings {
                let remedy = match finding.rule.code {
                    "DI008" => "Store the right checksum: the block's entries make sense.",
                    _ => finding.rule.repair,
                };
                self.fixed(finding, remedy);
            }
        }
        Ok(())
    }

    /// Stores the checksum of a directory block.
    pub(crate) fn seal_dir_block(
        &self,
        bytes: &mut [u8],
        format: &DxFormat,
        seed: u32,
        is_first: bool,
        inode: &Inode,
    ) {
        if !self.has_csum() {
            return;
        }
        if is_first && inode.has_flag(flags::INDEX) && format.kind_of(bytes).is_some() {
            // An index root whose fields are damaged is rebuilt in a later round.
            if format.decode_root(bytes).is_ok() {
                format.seal(bytes, seed);
            }
        } else if dirent::tail_checksum(bytes).is_some() {
            dirent::seal_tail(bytes, seed);
        }
    }

    /// Writes a directory anew from what makes sense in it.
    fn mend_dir(&mut self, ino: Ino, findings: &[&Finding]) {
        let Some(mut dir) = self.gather(ino) else { return };
        let drop: HashSet<(u32, u32)> = findings
            .iter()
            .filter(|finding| ["DI018", "DI019", "DI020"].contains(&finding.rule.code))
            .filter_map(|finding| Some((finding.place.lblk.map_or(0, |lblk| lblk.0), finding.place.offset?)))
            .collect();
        self.judge(&mut dir, &drop);
        if self.put_dir(&mut dir).is_none() {
            return;
        }
        let lost = dir.lost;
        let mut loss = (lost > 0).then(|| {
            format!("the names in {lost} damaged places of directory {ino}; their files go to lost+found")
        });
        for finding in findings {
            let remedy = match finding.rule.code {
                code if IN_PLACE.contains(&code) => finding.rule.repair,
                _ => "Write the directory anew from its sound entries.",
            };
            self.fixed_with(finding, remedy, loss.take());
        }
    }

    /// Reads all entries of a directory that make sense.
    pub(crate) fn gather(&self, ino: Ino) -> Option<Dir> {
        let inode = self.inode(ino)?;
        if inode.mode & 0xF000 != 0x4000 {
            return None;
        }
        let inline = self.is_inline(&inode);
        let hashed = inode.has_flag(flags::ENCRYPT) && inode.has_flag(flags::CASEFOLD);
        let walked = if inline { Default::default() } else { self.walk(ino, &inode) };
        let mut dir = Dir {
            ino,
            inline,
            hashed,
            runs: walked.runs,
            nodes: walked.nodes,
            parent: 0,
            entries: Vec::new(),
            lost: 0,
            indexed: inode.has_flag(flags::INDEX) && !inline,
            hash_code: self.sb.def_hash_version,
            inode,
        };
        if inline {
            let (head, tail) = self.inline_parts(ino, &dir.inode)?;
            dir.parent = u32_at(&head, 0);
            self.entries_of(&mut dir, &head[4..], 0, 4);
            self.entries_of(&mut dir, &tail, 0, 60);
        } else {
            let bs = self.geometry.block_size;
            let blocks = dir.inode.size >> bs.log2();
            for run in dir.runs.clone() {
                for i in 0..run.len {
                    let lblk = run.lblk.0 + i;
                    if u64::from(lblk) >= blocks.max(1) {
                        continue;
                    }
                    match self.read_block(Pblk(run.pblk.0 + u64::from(i))) {
                        Ok(bytes) => self.block_of(&mut dir, &bytes, lblk),
                        Err(_) => dir.lost += 1,
                    }
                }
            }
        }
        Some(dir)
    }

    fn block_of(&self, dir: &mut Dir, bytes: &[u8], lblk: u32) {
        let format = DxFormat::new(self.geometry.block_size, &self.sb.features);
        if lblk == 0 {
            let is_root = format.kind_of(bytes) == Some(extant_ondisk::htree::DxKind::Root)
                || bytes[0x1D] == 8 && dir.indexed;
            if dir.indexed && is_root {
                let version = bytes[0x1C];
                if HashVersion::from_code(version, self.sb.unsigned_hash()).is_some() {
                    dir.hash_code = version;
                }
                self.dots_of(dir, bytes);
                return;
            }
            self.dots_of(dir, bytes);
        } else if dir.indexed && self.looks_like_node(bytes) {
            return;
        }
        let tail = self.has_csum() && dirent::tail_checksum(bytes).is_some();
        let end = bytes.len() - if tail { TAIL_LEN } else { 0 };
        self.entries_of(dir, &bytes[..end], lblk, 0);
    }

    /// Takes the parent from the first block.
    fn dots_of(&self, dir: &mut Dir, bytes: &[u8]) {
        let first = decode_rec_len(u16_at(bytes, 4), self.geometry.block_size);
        for at in [12, first] {
            if at + 12 <= bytes.len() && bytes[at + 6] == 2 && bytes.get(at + 8..at + 10) == Some(b"..") {
                dir.parent = u32_at(bytes, at);
                return;
            }
        }
    }

    fn looks_like_node(&self, bytes: &[u8]) -> bool {
        let rec_len = decode_rec_len(u16_at(bytes, 4), self.geometry.block_size);
        let csum = self.has_csum();
        let limit = (bytes.len() - 8 - if csum { 8 } else { 0 }) / 8;
        u32_at(bytes, 0) == 0
            && bytes[6] == 0
            && rec_len == bytes.len()
            && (csum || usize::from(u16_at(bytes, 8)) == limit)
    }

    /// Adds the entries of an area; after a damaged one, continues where entries go on.
    fn entries_of(&self, dir: &mut Dir, area: &[u8], lblk: u32, offset: usize) {
        let mut at = 0;
        while at < area.len() {
            match self.entry_at(area, at, dir.hashed) {
                Some((entry, next)) => {
                    self.add(dir, entry, lblk, offset);
                    at = next;
                }
                None => {
                    dir.lost += 1;
                    // The damaged entry's own name, if only its length is wrong.
                    if let Some(entry) = self.name_at(area, at) {
                        self.add(dir, (entry.0, entry.1, at, None), lblk, offset);
                        dir.lost -= 1;
                    }
                    let resume =
                        (at + 4..area.len()).step_by(4).find(|at| self.goes_on(area, *at, dir.hashed));
                    at = resume.unwrap_or(area.len());
                }
            }
        }
    }

    fn add(&self, dir: &mut Dir, entry: RawEntry<'_>, lblk: u32, offset: usize) {
        let (ino, name, at, hash) = entry;
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
    fn entry_at<'a>(&self, area: &'a [u8], at: usize, hashed: bool) -> Option<(RawEntry<'a>, usize)> {
        let rest = &area[at..];
        if rest.len() < HEADER_LEN {
            return None;
        }
        let (ino, name_len) = (u32_at(rest, 0), usize::from(rest[6]));
        let rec_len = decode_rec_len(u16_at(rest, 4), self.geometry.block_size);
        if rec_len < 12
            || !rec_len.is_multiple_of(4)
            || rec_len > rest.len()
            || HEADER_LEN + name_len > rec_len
        {
            return None;
        }
        let name = &rest[HEADER_LEN..HEADER_LEN + name_len];
        let mut hash = None;
        if hashed && ino != 0 && !matches!(name, b"." | b"..") {
            let from = min_rec_len(name_len, false);
            let stored = rest[..rec_len].get(from..from + 8)?;
            hash = Some(NameHash { hash: u32_at(stored, 0), minor: u32_at(stored, 4) });
        }
        Some(((ino, name, at, hash), at + rec_len))
    }

    /// Do entries in use begin here, and reach the end of the area?
    fn goes_on(&self, area: &[u8], at: usize, hashed: bool) -> bool {
        let Some(((ino, name, ..), mut next)) = self.entry_at(area, at, hashed) else { return false };
        if ino == 0 || ino > self.geometry.inodes() || name.is_empty() || name.contains(&0) {
            return false;
        }
        while next < area.len() {
            match self.entry_at(area, next, hashed) {
                Some(((ino, ..), after)) if ino <= self.geometry.inodes() => next = after,
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
        let is_live = self.notes.noted(Ino(ino)).is_some_and(|note| note.used && !note.hidden);
        let is_name = !name.is_empty() && !name.contains(&0) && !name.contains(&b'/');
        (is_live && is_name && self.notes.noted(Ino(ino))?.kind == header[7]).then_some((ino, name))
    }

    /// Leaves out entries that lead nowhere, and changes names that cannot be.
    fn judge(&mut self, dir: &mut Dir, drop: &HashSet<(u32, u32)>) {
        let filetype = self.sb.features.has_incompat(Features::FILETYPE);
        let encrypted = dir.inode.has_flag(flags::ENCRYPT);
        let folds = dir.inode.has_flag(flags::CASEFOLD) && !encrypted;
        let strict = folds && self.sb.encoding_flags & 1 != 0;
        let first_ino = self.first_ino();
        let mut names: HashSet<Vec<u8>> = HashSet::new();
        let mut kept = Vec::with_capacity(dir.entries.len());
        for mut entry in std::mem::take(&mut dir.entries) {
            let note = self.notes.noted(Ino(entry.ino)).unwrap_or_default();
            let is_root = entry.ino == Ino::ROOT.0;
            let leads = note.used && note.links != 0 && !note.hidden && entry.ino >= first_ino && !is_root;
            if !leads || drop.contains(&entry.at) || (encrypted && entry.name.len() < 16) {
                continue;
            }
            entry.kind = if filetype { note.kind } else { 0 };
            if !encrypted {
                for byte in &mut entry.name {
                    if *byte == b'/' || *byte == 0 {
                        *byte = b'_';
                    }
                }
                if strict && std::str::from_utf8(&entry.name).is_err() {
                    entry.name.iter_mut().filter(|byte| !byte.is_ascii()).for_each(|byte| *byte = b'_');
                }
            }
            let folded = |name: &[u8]| match folds && casefold::is_stable(name) {
                true => casefold::fold(name).into_owned(),
                false => name.to_vec(),
            };
            if names.contains(&folded(&entry.name)) {
                if encrypted {
                    continue; // no other name is possible without the key
                }
                let mut number = 1;
                let base: Vec<u8> = entry.name.iter().copied().take(240).collect();
                while names.contains(&folded(&entry.name)) {
                    entry.name = [&base[..], format!("~{number}").as_bytes()].concat();
                    number += 1;
                }
            }
            names.insert(folded(&entry.name));
            kept.push(entry);
        }
        dir.entries = kept;
    }

    /// Writes a directory. `None` if there is no space.
    pub(crate) fn put_dir(&mut self, dir: &mut Dir) -> Option<()> {
        let known = self.notes.parent(dir.ino);
        let dotdot_is_dir =
            self.notes.noted(Ino(dir.parent)).is_some_and(|note| note.used && note.kind == DIRECTORY);
        if dir.ino == Ino::ROOT {
            dir.parent = Ino::ROOT.0;
        } else if !dotdot_is_dir {
            dir.parent = known.unwrap_or(Ino::ROOT).0;
        }
        if dir.inline {
            if self.put_inline(dir).is_some() {
                return Some(());
            }
            self.leave_inline(dir)?;
        }
        let seed = inode_seed(self.sb.fs_seed(), dir.ino, dir.inode.generation);
        let blocks = self.indexed_blocks(dir, seed);
        let (mut blocks, has_index) = match blocks {
            Some(blocks) => (blocks, true),
            None => (self.linear_blocks(dir, seed), false),
        };
        // Without an index, the directory keeps its blocks: lost+found has some in reserve.
        let have: usize = dir.runs.iter().map(|run| run.len as usize).sum();
        let size = (dir.inode.size >> self.geometry.block_size.log2()) as usize;
        while !has_index && blocks.len() < have.min(size) {
            blocks.push(self.pack(&[], seed));
        }
        // The blocks that the directory has already come first.
        let mut places: Vec<Pblk> = Vec::with_capacity(blocks.len());
        let ratio = self.geometry.cluster_ratio();
        'runs: for run in &dir.runs {
            for i in 0..run.len {
                if places.len() == blocks.len() {
                    break 'runs;
                }
                // With bigalloc, a block keeps its offset in the cluster.
                let lblk = u64::from(run.lblk.0) + u64::from(i);
                if lblk % ratio == places.len() as u64 % ratio {
                    places.push(Pblk(run.pblk.0 + u64::from(i)));
                }
            }
        }
        while places.len() < blocks.len() {
            let within = places.len() as u64 % ratio;
            match places.last().filter(|_| within != 0) {
                Some(last) => places.push(Pblk(last.0 + 1)),
                None => {
                    let goal = places.last().copied();
                    places.push(self.new_block(goal)?);
                }
            }
        }
        let mut runs: Vec<Run> = Vec::new();
        for (lblk, pblk) in (0..).zip(&places) {
            match runs.last_mut() {
                Some(last) if last.pblk.0 + u64::from(last.len) == pblk.0 => last.len += 1,
                _ => runs.push(Run { lblk: Lblk(lblk), pblk: *pblk, len: 1, unwritten: false }),
            }
        }
        if runs != dir.runs {
            let inode = self.inode(dir.ino)?;
            self.put_map(dir.ino, &inode, &runs, &dir.nodes.clone())?;
        }
        for (block, bytes) in places.iter().zip(&blocks) {
            self.write_block(*block, bytes).ok()?;
        }
        let size = (blocks.len() as u64) << self.geometry.block_size.log2();
        self.put_size(dir.ino, size);
        self.edit_inode(dir.ino, |bytes| {
            let flags = u32_at(bytes, 0x20) & !flags::INDEX;
            put_u32(bytes, 0x20, if has_index { flags | flags::INDEX } else { flags });
        })?;
        Some(())
    }

    /// The first block of an empty directory.
    pub(crate) fn first_dir_block(&self, ino: Ino, parent: Ino) -> Vec<u8> {
        let seed = self.seed(ino);
        let dots = self.dots(ino, parent.0);
        self.pack(&dots, seed)
    }

    fn dots(&self, ino: Ino, parent: u32) -> [Entry; 2] {
        let kind = if self.sb.features.has_incompat(Features::FILETYPE) { DIRECTORY } else { 0 };
        [Entry::new(ino, kind, b"."), Entry::new(Ino(parent), kind, b"..")]
    }

    fn usable_len(&self) -> usize {
        self.block_len() - if self.has_csum() { TAIL_LEN } else { 0 }
    }

    /// One block with these entries, which fit.
    fn pack(&self, entries: &[Entry], seed: u32) -> Vec<u8> {
        let mut block = vec![0; self.block_len()];
        let usable = self.usable_len();
        self.pack_area(entries, &mut block[..usable]);
        if self.has_csum() {
            put_u16(&mut block, usable + 4, TAIL_LEN as u16);
            block[usable + 7] = TAIL_TYPE;
            dirent::seal_tail(&mut block, seed);
        }
        block
    }

    /// Fills an area with entries, which fit; the last one reaches to its end.
    fn pack_area(&self, entries: &[Entry], area: &mut [u8]) {
        area.fill(0);
        let bs = self.geometry.block_size;
        let mut at = 0;
        if entries.is_empty() && area.len() >= 12 {
            let rec_len = encode_rec_len(area.len() & !3, bs).unwrap_or(12);
            put_u16(area, 4, rec_len);
        }
        for (i, entry) in entries.iter().enumerate() {
            let len = entry_len(entry);
            let rec_len = if i + 1 == entries.len() { area.len() - at } else { len };
            put_u32(area, at, entry.ino);
            put_u16(area, at + 4, encode_rec_len(rec_len, bs).unwrap_or(12));
            area[at + 6] = entry.name.len() as u8;
            area[at + 7] = entry.kind;
            area[at + 8..at + 8 + entry.name.len()].copy_from_slice(&entry.name);
            if let Some(hash) = entry.hash {
                let from = at + min_rec_len(entry.name.len(), false);
                put_u32(area, from, hash.hash);
                put_u32(area, from + 4, hash.minor);
            }
            at += len;
        }
    }

    /// Blocks without an index.
    fn linear_blocks(&self, dir: &Dir, seed: u32) -> Vec<Vec<u8>> {
        let usable = self.usable_len();
        let mut blocks = Vec::new();
        let mut open: Vec<Entry> = self.dots(dir.ino, dir.parent).to_vec();
        let mut used: usize = open.iter().map(entry_len).sum();
        for entry in &dir.entries {
            let len = entry_len(entry);
            if used + len > usable {
                blocks.push(self.pack(&open, seed));
                open.clear();
                used = 0;
            }
            open.push(entry.clone());
            used += len;
        }
        blocks.push(self.pack(&open, seed));
        blocks
    }

    /// Can an index of the directory be made?
    pub(crate) fn has_all_hashes(&self, dir: &Dir) -> bool {
        self.indexed_blocks(dir, self.seed(dir.ino)).is_some()
    }

    /// Blocks with an index; `None` for a directory of one block, and where hashes cannot be computed.
    fn indexed_blocks(&self, dir: &Dir, seed: u32) -> Option<Vec<Vec<u8>>> {
        if !self.sb.features.has_compat(Features::DIR_INDEX) {
            return None;
        }
        let usable = self.usable_len();
        let needed: usize = 24 + dir.entries.iter().map(entry_len).sum::<usize>();
        if needed <= usable {
            return None;
        }
        let code = if dir.hashed { 6 } else { dir.hash_code };
        let version = HashVersion::from_code(code, self.sb.unsigned_hash());
        let version = version.filter(|version| (*version == HashVersion::SipHash) == dir.hashed);
        let version = version.or_else(|| HashVersion::from_code(1, self.sb.unsigned_hash()))?;
        let folds = dir.inode.has_flag(flags::CASEFOLD) && !dir.hashed;
        let words = seed_words(&self.sb.hash_seed);
        let mut sorted: Vec<(u32, u32, &Entry)> = Vec::with_capacity(dir.entries.len());
        for entry in &dir.entries {
            let hash = match entry.hash {
                Some(hash) if dir.hashed => NameHash { hash: hash.hash & !1, ..hash },
                _ if dir.hashed => return None,
                _ if folds && !casefold::is_stable(&entry.name) => return None,
                _ if folds => dirhash(version, &words, &casefold::fold(&entry.name))?,
                _ => dirhash(version, &words, &entry.name)?,
            };
            sorted.push((hash.hash, hash.minor, entry));
        }
        sorted.sort_by_key(|(hash, minor, _)| (*hash, *minor));
        let mut leaves: Vec<Vec<u8>> = Vec::new();
        let mut first_hashes = Vec::new();
        let mut open: Vec<Entry> = Vec::new();
        let (mut used, mut last_hash) = (0, None);
        for (hash, _, entry) in sorted {
            let len = entry_len(entry);
            if used + len > usable {
                leaves.push(self.pack(&open, seed));
                open.clear();
                used = 0;
            }
            if open.is_empty() {
                first_hashes.push(if last_hash == Some(hash) { hash | 1 } else { hash });
            }
            open.push(entry.clone());
            used += len;
            last_hash = Some(hash);
        }
        leaves.push(self.pack(&open, seed));
        let format = DxFormat::new(self.geometry.block_size, &self.sb.features);
        let plan = IndexPlan::new(leaves.len() as u64, &format).ok()?;
        let filetype = self.sb.features.has_incompat(Features::FILETYPE);
        let root = RootInfo { ino: dir.ino, parent: Ino(dir.parent), hash_code: version.code(), filetype };
        let mut blocks: Vec<Vec<u8>> = Vec::with_capacity(plan.total_blocks() as usize);
        for i in 0..plan.index_blocks() {
            let mut block = vec![0; self.block_len()];
            plan.encode_index_block(i, &first_hashes, &root, seed, &mut block);
            blocks.push(block);
        }
        blocks.extend(leaves);
        Some(blocks)
    }

    /// The two parts of an inline directory: i_block, and the value of system.data.
    fn inline_parts(&self, ino: Ino, inode: &Inode) -> Option<([u8; 60], Vec<u8>)> {
        let bytes = self.inode_bytes(ino)?;
        let attrs = xattr::decode_ibody(bytes.get(inode.xattr_offset()..)?).ok()?;
        let data = attrs.iter().find(|one| one.attr.index == xattr::INDEX_SYSTEM && one.attr.name == b"data");
        let value = match data?.attr.value {
            AttrValue::Bytes(value) => value.to_vec(),
            AttrValue::Inode { .. } => return None,
        };
        Some((inode.block, value))
    }

    /// Writes an inline directory. `None` if the entries do not fit.
    fn put_inline(&mut self, dir: &Dir) -> Option<()> {
        let (mut head, mut tail) = self.inline_parts(dir.ino, &dir.inode)?;
        put_u32(&mut head, 0, dir.parent);
        if tail.len() < 12 {
            tail.clear();
        }
        let mut count = 0;
        let mut used = 0;
        for entry in &dir.entries {
            if used + entry_len(entry) > 56 {
                break;
            }
            used += entry_len(entry);
            count += 1;
        }
        let (first, second) = dir.entries.split_at(count);
        if second.iter().map(entry_len).sum::<usize>() > tail.len() {
            return None;
        }
        self.pack_area(first, &mut head[4..]);
        self.pack_area(second, &mut tail);
        let bytes = self.inode_bytes(dir.ino)?;
        let at = dir.inode.xattr_offset();
        let mut area = bytes.get(at..)?.to_vec();
        let stored = bytes[at..].to_vec();
        let attrs: Vec<Attr<'_>> = xattr::decode_ibody(&stored)
            .ok()?
            .into_iter()
            .map(|one| match (one.attr.index, one.attr.name) {
                (xattr::INDEX_SYSTEM, b"data") => Attr { value: AttrValue::Bytes(&tail), ..one.attr },
                _ => one.attr,
            })
            .collect();
        xattr::encode_ibody(&attrs, &mut area).ok()?;
        self.edit_inode(dir.ino, |bytes| {
            bytes[at..].copy_from_slice(&area);
            bytes[0x28..0x28 + 60].copy_from_slice(&head);
        })?;
        self.put_size(dir.ino, 60 + tail.len() as u64);
        Some(())
    }

    /// Turns an inline directory into one with blocks; [`put_dir`](Self::put_dir) fills it.
    fn leave_inline(&mut self, dir: &mut Dir) -> Option<()> {
        let bytes = self.inode_bytes(dir.ino)?;
        let at = dir.inode.xattr_offset();
        let mut area = bytes.get(at..)?.to_vec();
        let attrs: Vec<Attr<'_>> = xattr::decode_ibody(&bytes[at..])
            .ok()?
            .into_iter()
            .map(|one| one.attr)
            .filter(|attr| (attr.index, attr.name) != (xattr::INDEX_SYSTEM, b"data"))
            .collect();
        xattr::encode_ibody(&attrs, &mut area).ok()?;
        let with_extents = self.sb.features.has_incompat(Features::EXTENTS);
        self.edit_inode(dir.ino, |bytes| {
            bytes[at..].copy_from_slice(&area);
            bytes[0x28..0x28 + 60].fill(0);
            let flags = u32_at(bytes, 0x20) & !flags::INLINE_DATA;
            put_u32(bytes, 0x20, if with_extents { flags | flags::EXTENTS } else { flags });
        })?;
        dir.inode = self.inode(dir.ino)?;
        (dir.inline, dir.runs, dir.nodes) = (false, Vec::new(), Vec::new());
        Some(())
    }
}

/// Inode number, name, offset and stored hash.
type RawEntry<'a> = (u32, &'a [u8], usize, Option<NameHash>);

fn entry_len(entry: &Entry) -> usize {
    min_rec_len(entry.name.len(), entry.hash.is_some())
}
