//! The tree of directories: "..", lost+found, inodes without a name, link counts.

use std::collections::HashSet;

use extant_base::Ino;
use extant_base::le::{put_u16, put_u32, u16_at};
use extant_check::{Finding, FindingPlace, rules};
use extant_device::Device as _;
use extant_ondisk::Features;
use extant_ondisk::dirent::decode_rec_len;

use crate::dirs::{self, DIRECTORY, Dir, Entry, Sealer};
use crate::fs::Fs;
use crate::plan::Plan;

/// Bytes of the inode table that are changed at once.
const BATCH_BYTES: usize = 64 << 10;

/// Repairs the tree of directories, and what has no name in it.
pub(crate) struct Tree<'r, 's> {
    pub(crate) fs: &'r mut Fs<'s>,
    pub(crate) plan: &'r mut Plan,
}

impl Tree<'_, '_> {
    /// Sets ".." of a directory.
    fn put_parent(&self, ino: Ino, parent: Ino) -> Option<()> {
        let inode = self.fs.inode(ino)?;
        if self.fs.is_inline(&inode) {
            return self.fs.edit_inode(ino, |bytes| put_u32(bytes, 0x28, parent.0));
        }
        let first = self.fs.walk(ino, &inode).runs.first().copied().filter(|run| run.lblk.0 == 0)?;
        let mut bytes = self.fs.read_block(first.pblk).ok()?;
        let at = decode_rec_len(u16_at(&bytes, 4), self.fs.geometry.block_size);
        if at + 12 > bytes.len() {
            return None;
        }
        put_u32(&mut bytes, at, parent.0);
        Sealer::new(self.fs, ino, &inode).seal(&mut bytes, true);
        self.fs.write_block(first.pblk, &bytes).ok()
    }

    /// Adds entries to a directory.
    fn add_names(&mut self, ino: Ino, entries: Vec<Entry>) -> Option<()> {
        let mut dir = Dir::gather(self.fs, ino)?;
        let filetype = self.fs.sb.features.has_incompat(Features::FILETYPE);
        for entry in &mut dir.entries {
            entry.kind = match filetype {
                true => self.fs.notes.noted(Ino(entry.ino)).map_or(0, |note| note.kind),
                false => 0,
            };
        }
        let known: HashSet<Vec<u8>> = dir.entries.iter().map(|entry| entry.name.clone()).collect();
        for mut entry in entries {
            let base = entry.name.clone();
            let mut number = 1;
            while known.contains(&entry.name) {
                entry.name = [&base[..], format!("~{number}").as_bytes()].concat();
                number += 1;
            }
            if !filetype {
                entry.kind = 0;
            }
            dir.entries.push(entry);
        }
        if dir.hashed {
            return None; // new names need the key
        }
        dir.put(self.fs)
    }

    /// The lost+found directory, made if it is missing.
    fn lost_and_found(&mut self) -> Option<Ino> {
        let root = Dir::gather(self.fs, Ino::ROOT)?;
        let known = root.entries.iter().find(|entry| entry.name == b"lost+found");
        if let Some(entry) = known {
            let ino = Ino(entry.ino);
            let is_dir = self.fs.notes.noted(ino).is_some_and(|note| note.used && note.kind == DIRECTORY);
            if is_dir && Dir::gather(self.fs, ino).is_some_and(|dir| !dir.hashed) {
                return Some(ino);
            }
        }
        let ino = self.fs.new_inode()?;
        dirs::make(self.fs, ino, Ino::ROOT, 0o700)?;
        self.add_names(Ino::ROOT, vec![Entry::new(ino, DIRECTORY, b"lost+found")])?;
        let links = self.fs.inode(Ino::ROOT)?.links;
        self.fs.edit_inode(Ino::ROOT, |bytes| put_u16(bytes, 0x1A, links.saturating_add(1)))?;
        self.plan.also(
            &rules::directory::UNATTACHED,
            FindingPlace::ino(ino),
            "there is no directory lost+found",
            "Make it.",
            None,
        );
        Some(ino)
    }

    /// Repairs findings about the tree of directories and about inodes without a name.
    pub(crate) fn mend(&mut self, findings: &[&Finding]) {
        let mut lost: Vec<(Ino, &Finding)> = Vec::new();
        for finding in findings {
            let Some(ino) = finding.place.ino else { continue };
            match finding.rule.code {
                "DI004" => {
                    let parent = Ino(finding.expected.unwrap_or(0) as u32);
                    if self.put_parent(ino, parent).is_some() {
                        self.plan.fixed(finding, finding.rule.repair);
                    }
                }
                _ => lost.push((ino, finding)),
            }
        }
        lost.sort_unstable_by_key(|(ino, _)| *ino);
        lost.dedup_by_key(|(ino, _)| *ino);
        if lost.is_empty() {
            return;
        }
        let Some(home) = self.lost_and_found() else { return };
        let entries = lost.iter().filter(|(ino, _)| *ino != home).map(|(ino, _)| {
            let kind = self.fs.notes.noted(*ino).map_or(0, |note| note.kind);
            Entry::new(*ino, kind, format!("#{ino}").as_bytes())
        });
        let entries: Vec<Entry> = entries.collect();
        if self.add_names(home, entries).is_none() {
            return;
        }
        for (ino, finding) in lost {
            if finding.rule.code != "DI054" {
                let _ = self.put_parent(ino, home);
            }
            self.plan.fixed(finding, "Give it a name in lost+found.");
        }
    }

    /// Repairs link counts.
    pub(crate) fn mend_links(&mut self, findings: &[&Finding]) {
        let counted = findings.iter().filter_map(|finding| {
            let links = u16::try_from(finding.expected?).unwrap_or(u16::MAX);
            Some((finding.place.ino?, links, *finding))
        });
        let mut counted: Vec<(Ino, u16, &Finding)> = counted.collect();
        counted.sort_by_key(|(ino, ..)| *ino);
        let mut batch = Vec::with_capacity(BATCH_BYTES);
        let size = self.fs.geometry.inode_size as u64;
        let mut rest = counted.as_slice();
        while let Some((first, ..)) = rest.first() {
            // Neighbours in the table are read and written together.
            let Some(start) = self.fs.inode_offset(*first) else {
                rest = &rest[1..];
                continue;
            };
            let mut end = start;
            let place = |(ino, ..): &(Ino, u16, &Finding)| {
                // The table of the next group may be before this one.
                let offset = self.fs.inode_offset(*ino).filter(|offset| *offset >= end)?;
                end = offset + size;
                (end - start <= BATCH_BYTES as u64).then_some((offset - start) as usize)
            };
            let places: Vec<usize> = rest.iter().map_while(place).collect();
            let (now, later) = rest.split_at(places.len());
            rest = later;
            batch.resize(places.last().map_or(0, |at| at + size as usize), 0);
            if self.fs.overlay.read_at(start, &mut batch).is_err() {
                continue;
            }
            for (at, (ino, links, _)) in places.iter().zip(now) {
                self.fs.change_inode(*ino, &mut batch[*at..at + size as usize], |bytes| {
                    put_u16(bytes, 0x1A, *links)
                });
            }
            if self.fs.overlay.write_at(start, &batch).is_ok() {
                now.iter().for_each(|(.., finding)| self.plan.fixed(finding, finding.rule.repair));
            }
        }
    }
}
