//! Directories: single entries are repaired in place; everything else by writing the directory anew.
//!
//! ```text
//! gather   every entry that makes sense, also after a damaged one: name, inode, type, stored hash
//! judge    entries that lead nowhere go; names that cannot be are changed; types are set
//! pack     blocks in the order of hashes, with an index over them; without an index where hashes need a key
//! ```
//!
//! Owns: the blocks and entries of a directory. Does **not** own: the tree (see [`tree`](crate::tree)).

mod inline;
mod pack;
mod read;

use std::collections::{BTreeMap, HashSet};

use extant_base::le::{put_u16, put_u32, u32_at};
use extant_base::{Ino, Lblk, Pblk};
use extant_check::Finding;
use extant_check::survey::Run;
use extant_device::DeviceFault;
use extant_ondisk::dirent::{self, HEADER_LEN};
use extant_ondisk::hash::NameHash;
use extant_ondisk::htree::DxFormat;
use extant_ondisk::inode::{Inode, flags, inode_seed};
use extant_ondisk::{Features, casefold, extent};

use crate::fs::Fs;
use crate::maps::Map;
use crate::plan::Plan;
use crate::runs;
use pack::Packer;

pub(crate) const DIRECTORY: u8 = 2;

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
    map: Map,
    inline: bool,
    pub(crate) hashed: bool,
    pub(crate) parent: u32,
    pub(crate) entries: Vec<Entry>,
    /// Parts that could not be read.
    lost: u32,
    indexed: bool,
    hash_code: u8,
}

impl Dir {
    /// Leaves out entries that lead nowhere, and changes names that cannot be.
    fn judge(&mut self, fs: &Fs<'_>, drop: &HashSet<(u32, u32)>) {
        let filetype = fs.sb.features.has_incompat(Features::FILETYPE);
        let encrypted = self.inode.has_flag(flags::ENCRYPT);
        let folds = self.inode.has_flag(flags::CASEFOLD) && !encrypted;
        let strict = folds && fs.sb.encoding_flags & 1 != 0;
        let first_ino = fs.first_ino();
        let mut names: HashSet<Vec<u8>> = HashSet::new();
        let mut kept = Vec::with_capacity(self.entries.len());
        for mut entry in std::mem::take(&mut self.entries) {
            let note = fs.notes.noted(Ino(entry.ino)).unwrap_or_default();
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
        self.entries = kept;
    }

    /// Writes a directory. `None` if there is no space.
    pub(crate) fn put(&mut self, fs: &mut Fs<'_>) -> Option<()> {
        let known = fs.notes.parent(self.ino);
        let dotdot_is_dir =
            fs.notes.noted(Ino(self.parent)).is_some_and(|note| note.used && note.kind == DIRECTORY);
        if self.ino == Ino::ROOT {
            self.parent = Ino::ROOT.0;
        } else if !dotdot_is_dir {
            self.parent = known.unwrap_or(Ino::ROOT).0;
        }
        if self.inline {
            if inline::put(fs, self).is_some() {
                return Some(());
            }
            inline::leave(fs, self)?;
        }
        let (blocks, has_index) = self.blocks(fs);
        let places = self.places(fs, blocks.len())?;
        let mut runs: Vec<Run> = Vec::new();
        for (lblk, pblk) in (0..).zip(&places) {
            runs::push(&mut runs, Run { lblk: Lblk(lblk), pblk: *pblk, len: 1, unwritten: false });
        }
        if runs != self.map.runs {
            let inode = fs.inode(self.ino)?;
            self.map.runs = runs;
            self.map.put(fs, self.ino, &inode)?;
        }
        for (block, bytes) in places.iter().zip(&blocks) {
            fs.write_block(*block, bytes).ok()?;
        }
        fs.put_size(self.ino, (blocks.len() as u64) << fs.geometry.block_size.log2());
        fs.edit_inode(self.ino, |bytes| {
            let flags = u32_at(bytes, 0x20) & !flags::INDEX;
            put_u32(bytes, 0x20, if has_index { flags | flags::INDEX } else { flags });
        })
    }

    /// The bytes of the directory's blocks, and whether they have an index.
    fn blocks(&self, fs: &Fs<'_>) -> (Vec<Vec<u8>>, bool) {
        let packer = Packer::new(fs, inode_seed(fs.sb.fs_seed(), self.ino, self.inode.generation));
        if let Some(blocks) = packer.indexed(self) {
            return (blocks, true);
        }
        let mut blocks = packer.linear(self);
        // Without an index, the directory keeps its blocks: lost+found has some in reserve.
        let have = runs::blocks(&self.map.runs);
        let size = self.inode.size >> fs.geometry.block_size.log2();
        while (blocks.len() as u64) < have.min(size) {
            blocks.push(packer.block(&[]));
        }
        (blocks, false)
    }

    /// Where the directory's blocks go: those that it has already come first.
    fn places(&self, fs: &mut Fs<'_>, count: usize) -> Option<Vec<Pblk>> {
        let mut places: Vec<Pblk> = Vec::with_capacity(count);
        let ratio = fs.geometry.cluster_ratio();
        'runs: for run in &self.map.runs {
            for i in 0..run.len {
                if places.len() == count {
                    break 'runs;
                }
                // With bigalloc, a block keeps its offset in the cluster.
                let lblk = u64::from(run.lblk.0) + u64::from(i);
                if lblk % ratio == places.len() as u64 % ratio {
                    places.push(Pblk(run.pblk.0 + u64::from(i)));
                }
            }
        }
        while places.len() < count {
            let within = places.len() as u64 % ratio;
            match places.last().copied() {
                Some(last) if within != 0 => places.push(Pblk(last.0 + 1)),
                goal => places.push(fs.space.block(goal)?),
            }
        }
        Some(places)
    }

    /// Can an index of the directory be made?
    pub(crate) fn has_all_hashes(&self, fs: &Fs<'_>) -> bool {
        Packer::new(fs, fs.seed(self.ino)).indexed(self).is_some()
    }
}

/// Makes an inode an empty directory.
pub(crate) fn make(fs: &mut Fs<'_>, ino: Ino, parent: Ino, permissions: u16) -> Option<()> {
    let block = fs.space.block(None)?;
    let with_extents = fs.sb.features.has_incompat(Features::EXTENTS);
    let bs = fs.geometry.block_size.bytes();
    let units = (bs << fs.geometry.cluster_log) / 512;
    let map = if with_extents {
        let found = extent::Extent { lblk: 0, len: 1, start: block.0, unwritten: false };
        extent::encode_tree(&[found], fs.geometry.block_size, &[], None).0
    } else {
        let mut map = [0; 60];
        put_u32(&mut map, 0, u32::try_from(block.0).ok()?);
        map
    };
    fs.empty_file(ino, if with_extents { flags::EXTENTS } else { 0 })?;
    fs.edit_inode(ino, |bytes| {
        put_u16(bytes, 0, 0x4000 | permissions);
        put_u32(bytes, 4, bs as u32);
        put_u16(bytes, 0x1A, 2);
        put_u32(bytes, 0x1C, units as u32);
        bytes[0x28..0x28 + 60].copy_from_slice(&map);
    })?;
    let bytes = first_block(fs, ino, parent);
    fs.write_block(block, &bytes).ok()
}

/// The first block of an empty directory.
pub(crate) fn first_block(fs: &Fs<'_>, ino: Ino, parent: Ino) -> Vec<u8> {
    let packer = Packer::new(fs, fs.seed(ino));
    packer.block(&packer.dots(ino, parent.0))
}

/// Seals the blocks of one directory after a change in place.
pub(crate) struct Sealer {
    format: DxFormat,
    seed: u32,
    has_csum: bool,
    indexed: bool,
}

impl Sealer {
    pub(crate) fn new(fs: &Fs<'_>, ino: Ino, inode: &Inode) -> Self {
        Self {
            format: DxFormat::new(fs.geometry.block_size, &fs.sb.features),
            seed: inode_seed(fs.sb.fs_seed(), ino, inode.generation),
            has_csum: fs.has_csum(),
            indexed: inode.has_flag(flags::INDEX),
        }
    }

    /// Stores the checksum of a block.
    pub(crate) fn seal(&self, bytes: &mut [u8], is_first: bool) {
        if !self.has_csum {
            return;
        }
        if is_first && self.indexed && self.format.kind_of(bytes).is_some() {
            // An index root whose fields are damaged is rebuilt in a later round.
            if self.format.decode_root(bytes).is_ok() {
                self.format.seal(bytes, self.seed);
            }
        } else if dirent::tail_checksum(bytes).is_some() {
            dirent::seal_tail(bytes, self.seed);
        }
    }
}

/// Findings that an edit of the one entry repairs.
const IN_PLACE: &[&str] = &["DI011", "DI012", "DI013", "DI014", "DI015", "DI018", "DI019", "DI020"];

/// Repairs the blocks and entries of directories.
pub(crate) struct Dirs<'r, 's> {
    pub(crate) fs: &'r mut Fs<'s>,
    pub(crate) plan: &'r mut Plan,
}

impl Dirs<'_, '_> {
    /// Repairs findings about blocks and entries of directories.
    pub(crate) fn mend(&mut self, findings: &[&Finding]) -> Result<(), DeviceFault> {
        let mut dirs: BTreeMap<Ino, Vec<&Finding>> = BTreeMap::new();
        for finding in findings {
            if let Some(ino) = finding.place.ino {
                dirs.entry(ino).or_default().push(finding);
            }
        }
        for (ino, findings) in dirs {
            let Some(inode) = self.fs.inode(ino) else { continue };
            let simple = !self.fs.is_inline(&inode)
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
        let mut blocks: BTreeMap<Pblk, Vec<&Finding>> = BTreeMap::new();
        for finding in findings {
            if let Some(block) = finding.place.block {
                blocks.entry(block).or_default().push(finding);
            }
        }
        let sealer = Sealer::new(self.fs, ino, inode);
        for (block, findings) in blocks {
            let mut bytes = self.fs.read_block(block)?;
            for finding in &findings {
                let Some(at) = finding.place.offset.map(|at| at as usize) else { continue };
                if at + HEADER_LEN > bytes.len() {
                    continue;
                }
                let target = Ino(u32_at(&bytes, at));
                match finding.rule.code {
                    "DI013" | "DI014" => {
                        let kind = self.fs.notes.noted(target).map_or(0, |note| note.kind);
                        let name_len = usize::from(bytes[at + 6]);
                        let is_dots = matches!(bytes.get(at + 8..at + 8 + name_len), Some(b"." | b".."));
                        bytes[at + 7] = if is_dots { DIRECTORY } else { kind };
                    }
                    "DI015" => bytes[at + 7] = 0,
                    "DI008" => {}
                    _ => put_u32(&mut bytes, at, 0),
                }
            }
            sealer.seal(&mut bytes, findings[0].place.lblk == Some(Lblk(0)));
            self.fs.write_block(block, &bytes)?;
            for finding in findings {
                let remedy = match finding.rule.code {
                    "DI008" => "Store the right checksum: the block's entries make sense.",
                    _ => finding.rule.repair,
                };
                self.plan.fixed(finding, remedy);
            }
        }
        Ok(())
    }

    /// Writes a directory anew from what makes sense in it.
    fn mend_dir(&mut self, ino: Ino, findings: &[&Finding]) {
        let Some(mut dir) = Dir::gather(self.fs, ino) else { return };
        let drop: HashSet<(u32, u32)> = findings
            .iter()
            .filter(|finding| ["DI018", "DI019", "DI020"].contains(&finding.rule.code))
            .filter_map(|finding| Some((finding.place.lblk.map_or(0, |lblk| lblk.0), finding.place.offset?)))
            .collect();
        dir.judge(self.fs, &drop);
        if dir.put(self.fs).is_none() {
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
            self.plan.fixed_with(finding, remedy, loss.take());
        }
    }
}
