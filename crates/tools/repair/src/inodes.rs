//! Remedies for the fields of inodes.
//!
//! An inode keeps its content where its fields can be made to make sense; else it is freed, which is a loss.

use std::collections::{BTreeMap, HashSet};

use extant_base::le::{put_u16, put_u32, u16_at, u32_at};
use extant_base::{Ino, Lblk, Pblk};
use extant_check::Finding;
use extant_check::survey::Run;
use extant_device::DeviceFault;
use extant_ondisk::inode::{Inode, flags};
use extant_ondisk::xattr::{self, Attr, AttrValue};
use extant_ondisk::{Features, dirent, extent};

use crate::attrs::Attributes;
use crate::dirs;
use crate::fs::Fs;
use crate::journal::Journal;
use crate::maps::{self, Map};
use crate::plan::Plan;
use crate::runs;

/// Files with extents have blocks below this one.
const LBLK_MAX: u64 = u32::MAX as u64;
const FLAGS_AT: usize = 0x20;
const LINKS_AT: usize = 0x1A;
const DTIME_AT: usize = 0x14;
const BLOCK_AT: usize = 0x28;
const EXTRA_AT: usize = 0x80;

/// Repairs inodes, their maps and their attributes.
pub(crate) struct Inodes<'r, 's> {
    fs: &'r mut Fs<'s>,
    plan: &'r mut Plan,
    /// Inodes that are freed or made anew: further findings about them are outdated.
    done: HashSet<Ino>,
}

impl<'r, 's> Inodes<'r, 's> {
    pub(crate) fn new(fs: &'r mut Fs<'s>, plan: &'r mut Plan) -> Self {
        Self { fs, plan, done: HashSet::new() }
    }

    /// Repairs findings about inodes, their maps and their attributes.
    pub(crate) fn mend(mut self, findings: &[&Finding]) -> Result<(), DeviceFault> {
        let mut journal = Journal { fs: self.fs, plan: self.plan };
        self.done.extend(journal.mend_map(findings));
        let mut maps: BTreeMap<Ino, Vec<&Finding>> = BTreeMap::new();
        for finding in findings {
            let code = finding.rule.code;
            match finding.place.ino.filter(|ino| !self.done.contains(ino)) {
                Some(ino) if code.starts_with("EX") => maps.entry(ino).or_default().push(finding),
                Some(ino) if code.starts_with("IN") => self.mend_inode(ino, finding),
                _ => {}
            }
        }
        let is_done = |ino: &Ino| self.done.contains(ino);
        let of_attributes = findings.iter().copied().filter(|finding| {
            finding.rule.code.starts_with("XA") && !finding.place.ino.as_ref().is_some_and(is_done)
        });
        let of_attributes: Vec<&Finding> = of_attributes.collect();
        Attributes { fs: self.fs, plan: self.plan }.mend(&of_attributes)?;
        for (ino, findings) in maps.into_iter().filter(|(ino, _)| !self.done.contains(ino)) {
            maps::mend(self.fs, self.plan, ino, &findings);
        }
        Ok(())
    }

    fn free(&mut self, ino: Ino) {
        self.done.insert(ino);
        self.fs.free_inode(ino);
    }

    /// Frees an inode, and records what is lost with it.
    fn give_up(&mut self, ino: Ino, finding: &Finding) {
        let loss = self.fs.inode(ino).filter(|inode| inode.links != 0 || inode.size != 0);
        let loss = loss.map(|inode| format!("inode {ino}, {} bytes", inode.size));
        self.free(ino);
        self.plan.fixed_with(finding, "Clear the inode.", loss);
    }

    fn mend_inode(&mut self, ino: Ino, finding: &Finding) {
        let Some(inode) = self.fs.inode(ino) else { return };
        let code = finding.rule.code;
        let first_ino = self.fs.first_ino();
        let expected = finding.expected;
        let now = self.fs.now;
        let put32 = |fs: &Fs<'_>, at: usize, value: u32| {
            let _ = fs.edit_inode(ino, |bytes| put_u32(bytes, at, value));
        };
        let mut remedy: std::borrow::Cow<'static, str> = finding.rule.repair.into();
        match code {
            "IN001" => {
                let _ = self.fs.edit_inode(ino, |_| ());
                remedy = "Store the right checksum.".into();
            }
            "IN002" => match self.guess_type(ino, &inode) {
                Some(mode) => {
                    let _ = self.fs.edit_inode(ino, |bytes| put_u16(bytes, 0, mode));
                    remedy = "Set the type that the map suggests.".into();
                }
                None => return self.give_up(ino, finding),
            },
            "IN003" if inode.links == 0 => put32(self.fs, DTIME_AT, now),
            "IN003" => put32(self.fs, DTIME_AT, 0),
            "IN004" => {
                let marked = self.fs.notes.noted(ino).is_some_and(|note| note.marked);
                let has_content = inode.size != 0 || inode.blocks != 0 || self.fs.notes.names(ino) > 0;
                if marked && has_content && ino.0 >= first_ino {
                    let links = if inode.mode & 0xF000 == 0x4000 { 2 } else { 1 };
                    let _ = self.fs.edit_inode(ino, |bytes| put_u16(bytes, LINKS_AT, links));
                    remedy = "Set the link count: nothing says that the file was to be deleted.".into();
                } else if marked {
                    self.free(ino);
                    remedy = "Free the inode: it has neither a name nor content.".into();
                } else {
                    put32(self.fs, DTIME_AT, now);
                }
            }
            "IN005" if self.drop_blocks_behind_end(ino, &inode) => {
                self.done.insert(ino);
                remedy = "Drop the blocks behind the end of the file: size and i_blocks exclude them.".into();
            }
            "IN005" => {
                let blocks = expected.unwrap_or(0);
                let _ = self.fs.edit_inode(ino, |bytes| {
                    put_u32(bytes, 0x1C, blocks as u32);
                    put_u16(bytes, 0x74, (blocks >> 32) as u16);
                });
            }
            "IN006" if expected.is_some_and(|size| size > LBLK_MAX << self.fs.geometry.block_size.log2()) => {
                // A file cannot reach its last possible block.
                let mut map = Map::read(self.fs, ino, &inode);
                map.runs = runs::before(&map.runs, LBLK_MAX);
                if map.put(self.fs, ino, &inode).is_none() {
                    return;
                }
                let loss = Some(format!("inode {ino}: its block {LBLK_MAX}"));
                return self.plan.fixed_with(finding, "Drop the block that no file can have.", loss);
            }
            "IN006" if self.move_last_run(ino, &inode) => {
                remedy =
                    "Move the last extent: the file is as long as its blocks, one after the other.".into();
            }
            "IN006" => {
                let size = expected.unwrap_or(0);
                self.fs.put_size(ino, size);
                if size > inode.size {
                    let more = size - inode.size;
                    remedy =
                        format!("The file becomes {more} bytes longer: up to its last written block.").into();
                }
            }
            "IN007" => self.fs.put_size(ino, expected.unwrap_or(0)),
            "IN008" => {
                if inode.block.starts_with(&extent::MAGIC.to_le_bytes()) {
                    let set = self.fs.put_superblock(|sb| sb.features.incompat |= Features::EXTENTS);
                    if set.is_err() {
                        return;
                    }
                    remedy = "Set the feature: the inode has an extent tree.".into();
                } else {
                    self.fs.set_flags(ino, 0, flags::EXTENTS);
                }
            }
            "IN009" => {
                let clear = self.misplaced_flags(ino, &inode);
                self.fs.set_flags(ino, 0, clear);
            }
            "IN010" => {
                let extra = self.guess_extra(ino);
                let _ = self.fs.edit_inode(ino, |bytes| put_u16(bytes, EXTRA_AT, extra));
                remedy = format!("Store {extra}.").into();
            }
            "IN011" => put32(self.fs, 0x70, 0),
            "IN012" => self.fs.put_size(ino, 0),
            "IN013" => {
                if inode.has_flag(flags::EXTENTS) && inode.block.starts_with(&extent::MAGIC.to_le_bytes()) {
                    let mode = self.guess_type(ino, &inode).unwrap_or(0x8000 | inode.mode & 0xFFF);
                    let _ = self.fs.edit_inode(ino, |bytes| put_u16(bytes, 0, mode));
                    remedy = "Set the type that the map suggests.".into();
                } else {
                    let _ = self.fs.edit_inode(ino, |bytes| {
                        bytes[BLOCK_AT + 8..BLOCK_AT + 60].fill(0);
                        let clear = flags::EXTENTS | flags::INDEX | flags::IMMUTABLE | flags::APPEND;
                        let kept = u32_at(bytes, FLAGS_AT) & !clear;
                        put_u32(bytes, FLAGS_AT, kept);
                    });
                    remedy = "Clear the flags and the rest of the map.".into();
                }
            }
            "IN014" => match self.mend_symlink(ino, &inode) {
                Some(text) => remedy = text.into(),
                None => return self.give_up(ino, finding),
            },
            "IN015" => {
                let text = self.mend_reserved(ino, &inode);
                let is_lost = text.starts_with("Clear the inode") && inode.size != 0 && inode.blocks != 0;
                let loss = is_lost.then(|| format!("inode {ino}, {} bytes", inode.size));
                return self.plan.fixed_with(finding, text, loss);
            }
            "IN016" => match self.mend_root(ino, &inode) {
                Some(text) => remedy = text.into(),
                None => return,
            },
            "IN017" => match self.mend_inline(ino, &inode, finding) {
                Some(text) if text.starts_with("Add") && inode.size > 60 => {
                    let loss = Some(format!("inode {ino}: its bytes from 60 to {}", inode.size));
                    return self.plan.fixed_with(finding, text, loss);
                }
                Some(text) => remedy = text.into(),
                None => return self.give_up(ino, finding),
            },
            "IN018" => self.fs.set_flags(ino, 0, flags::IMMUTABLE | flags::APPEND),
            "IN019" => return self.mend_empty_dir(ino, finding),
            "IN021" => {
                let _ = self.fs.edit_inode(ino, |bytes| {
                    put_u16(bytes, 0, 0x8000 | 0o600);
                    put_u16(bytes, LINKS_AT, 1);
                });
                if expected.is_none() && finding.says.contains("its blocks end at") {
                    let walked = self.fs.walk(ino, &inode);
                    let end = walked.runs.last().map_or(0, |run| u64::from(run.lblk.0) + u64::from(run.len));
                    self.fs.put_size(ino, end << self.fs.geometry.block_size.log2());
                }
                remedy = "Make it a regular file with one link, as long as its blocks.".into();
            }
            "IN022" => {
                let _ = self.fs.edit_inode(ino, |bytes| put_u16(bytes, 0x76, 0));
            }
            "IN023" => {
                let _ = self.fs.edit_inode(ino, clear_nanoseconds);
            }
            "IN024" => {
                let bits = self.misplaced_flags(ino, &inode);
                let room = self.fs.geometry.inode_size.saturating_sub(128) as u16;
                let _ = self.fs.edit_inode(ino, |bytes| {
                    put_u32(bytes, 0x70, 0);
                    let kept = u32_at(bytes, FLAGS_AT) & !bits;
                    put_u32(bytes, FLAGS_AT, kept);
                    if bytes.len() > 128 {
                        let extra = u16_at(bytes, EXTRA_AT);
                        if extra != 0 && (extra < 4 || !extra.is_multiple_of(4) || extra > room) {
                            put_u16(bytes, EXTRA_AT, 32.min(room));
                        }
                    }
                });
                if ino == Ino::RESIZE && inode.links == 0 {
                    let _ = self.fs.edit_inode(ino, |bytes| put_u16(bytes, LINKS_AT, 1));
                }
                if finding.says.contains("attribute block") {
                    let _ = self.fs.edit_inode(ino, |bytes| {
                        put_u32(bytes, 0x68, 0);
                        put_u16(bytes, 0x76, 0);
                    });
                }
            }
            _ => return,
        }
        self.plan.fixed(finding, remedy);
    }

    /// Where the size and i_blocks agree, and only the map reaches further, the map is what is damaged: its
    /// part behind the end is dropped. Returns whether it was.
    fn drop_blocks_behind_end(&mut self, ino: Ino, inode: &Inode) -> bool {
        let bs = self.fs.geometry.block_size.bytes();
        if inode.mode & 0xF000 != 0x8000 || self.fs.geometry.cluster_ratio() != 1 {
            return false;
        }
        let mut map = Map::read(self.fs, ino, inode);
        let end = inode.size.div_ceil(bs);
        let inside = runs::before(&map.runs, end);
        if inside == map.runs {
            return false;
        }
        let least = runs::blocks(&inside) + u64::from(inode.file_acl != 0);
        let unit = if inode.has_flag(flags::HUGE_FILE) { bs } else { 512 };
        let counted = inode.blocks * unit / bs;
        if !(least..=least + map.nodes.len() as u64).contains(&counted) {
            return false;
        }
        map.runs = inside;
        map.put(self.fs, ino, inode).is_some()
    }

    /// Where a file has as many blocks as its size needs, and only its last extent leaves a gap, the logical
    /// address of that extent is what is damaged. Returns whether it was moved.
    fn move_last_run(&mut self, ino: Ino, inode: &Inode) -> bool {
        if inode.mode & 0xF000 != 0x8000 || self.fs.geometry.cluster_ratio() != 1 {
            return false;
        }
        let mut map = Map::read(self.fs, ino, inode);
        let blocks = runs::blocks(&map.runs);
        let Some(last) = map.runs.pop() else { return false };
        let mut end = 0;
        for run in &map.runs {
            if u64::from(run.lblk.0) != end {
                return false;
            }
            end += u64::from(run.len);
        }
        let is_dense = blocks == inode.size.div_ceil(self.fs.geometry.block_size.bytes());
        let Some(lblk) = u32::try_from(end).ok().filter(|lblk| is_dense && *lblk < last.lblk.0) else {
            return false;
        };
        map.runs.push(Run { lblk: Lblk(lblk), ..last });
        map.put(self.fs, ino, inode).is_some()
    }

    /// The flags that this inode cannot have.
    fn misplaced_flags(&self, ino: Ino, inode: &Inode) -> u32 {
        let f = &self.fs.sb.features;
        let is_dir = inode.mode & 0xF000 == 0x4000;
        let mut clear = 0;
        if !f.has_compat(Features::IMAGIC) {
            clear |= flags::IMAGIC;
        }
        if !(is_dir && f.has_compat(Features::DIR_INDEX)) {
            clear |= flags::INDEX;
        }
        if !(is_dir && f.has_incompat(Features::CASEFOLD)) {
            clear |= flags::CASEFOLD;
        }
        if !f.has_incompat(Features::INLINE_DATA) {
            clear |= flags::INLINE_DATA;
        }
        if inode.has_flag(flags::ENCRYPT) && !self.has_context(ino, inode) {
            clear |= flags::ENCRYPT;
        }
        clear & inode.flags
    }

    /// Has the inode an encryption context?
    fn has_context(&self, ino: Ino, inode: &Inode) -> bool {
        let is_context = |attr: &Attr<'_>| attr.index == xattr::INDEX_ENCRYPTION && attr.name == b"c";
        let bytes = self.fs.inode_bytes(ino).unwrap_or_default();
        let area = bytes.get(inode.xattr_offset()..).unwrap_or(&[]);
        let inside = xattr::decode_ibody(area).is_ok_and(|all| all.iter().any(|one| is_context(&one.attr)));
        inside
            || (inode.file_acl != 0
                && self.fs.read_block(Pblk(inode.file_acl)).is_ok_and(|block| {
                    xattr::decode_block(&block)
                        .is_ok_and(|(_, all)| all.iter().any(|one| is_context(&one.attr)))
                }))
    }

    /// The mode for an inode of impossible type whose map can be walked: a directory if its first block
    /// begins with ".", else a regular file.
    fn guess_type(&self, ino: Ino, inode: &Inode) -> Option<u16> {
        let has_tree = inode.block.starts_with(&extent::MAGIC.to_le_bytes());
        if inode.has_flag(flags::EXTENTS) != has_tree {
            return None;
        }
        let permissions = inode.mode & 0xFFF;
        let walked = self.fs.walk(ino, inode);
        let first = walked.runs.first().filter(|run| run.lblk.0 == 0);
        if first.is_some_and(|run| self.looks_like_dir(ino, run.pblk)) {
            return Some(0x4000 | permissions);
        }
        if !walked.runs.is_empty() || (has_tree && inode.size == 0) || self.fs.is_inline(inode) {
            return Some(0x8000 | permissions);
        }
        None
    }

    /// Does this block begin a directory with this number?
    fn looks_like_dir(&self, ino: Ino, block: Pblk) -> bool {
        self.fs.read_block(block).is_ok_and(|bytes| {
            let rec_len = dirent::decode_rec_len(u16_at(&bytes, 4), self.fs.geometry.block_size);
            let dot = u32_at(&bytes, 0) == ino.0 && rec_len == 12 && bytes[6] == 1 && bytes[8] == b'.';
            let dotdot = bytes[12 + 6] == 2 && bytes.get(20..22) == Some(b"..");
            dot && dotdot || (dot || dotdot) && u32_at(&bytes, 12) != 0 && bytes[18] == 2
        })
    }

    /// The number of bytes of newer fields: the attributes, which follow them, show where they end.
    fn guess_extra(&self, ino: Ino) -> u16 {
        let bytes = self.fs.inode_bytes(ino).unwrap_or_default();
        let room = bytes.len().saturating_sub(128);
        let magic = xattr::MAGIC.to_le_bytes();
        let found = (4..room).step_by(4).find(|extra| bytes[128 + extra..].starts_with(&magic));
        let usual = if self.fs.sb.want_extra_isize != 0 { self.fs.sb.want_extra_isize } else { 32 };
        let usual = if usize::from(usual) <= room && usual.is_multiple_of(4) { usual } else { 32 };
        found.map_or(usual.min(room as u16), |extra| extra as u16)
    }

    /// Makes size and text of a symbolic link fit. `None` if there is no text.
    fn mend_symlink(&mut self, ino: Ino, inode: &Inode) -> Option<&'static str> {
        let bs = self.fs.geometry.block_size.bytes();
        let has_tree =
            inode.has_flag(flags::EXTENTS) && inode.block.starts_with(&extent::MAGIC.to_le_bytes());
        if self.fs.is_inline(inode) {
            return None;
        }
        if has_tree {
            let walked = self.fs.walk(ino, inode);
            let blocks = runs::blocks(&walked.runs);
            if let [run] = walked.runs[..]
                && run.lblk.0 == 0
                && run.len == 1
            {
                let text = self.fs.read_block(run.pblk).ok()?;
                let len = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
                if inode.has_flag(flags::ENCRYPT) || !(60..bs as usize).contains(&len) {
                    return None;
                }
                self.fs.put_size(ino, len as u64);
                return Some("Store the length of the text.");
            }
            if blocks > 1 {
                let mode = self.guess_type(ino, inode)?;
                self.fs.edit_inode(ino, |bytes| put_u16(bytes, 0, mode))?;
                return Some("Set the type that the map suggests.");
            }
            return None;
        }
        let len = inode.block.iter().position(|byte| *byte == 0).unwrap_or(60);
        let is_text = (1..60).contains(&len) && inode.block[len..].iter().all(|byte| *byte == 0);
        if inode.has_flag(flags::ENCRYPT) || !is_text {
            return None;
        }
        self.fs.put_size(ino, len as u64);
        Some("Store the length of the text.")
    }

    /// Gives a reserved inode the shape that its use asks for.
    fn mend_reserved(&mut self, ino: Ino, inode: &Inode) -> &'static str {
        let quota = [self.fs.sb.usr_quota_inum, self.fs.sb.grp_quota_inum, self.fs.sb.prj_quota_inum];
        let is_file = (self.fs.sb.features.has_ro_compat(Features::QUOTA) && quota.contains(&ino.0))
            || (self.fs.sb.features.has_compat(Features::ORPHAN_FILE)
                && self.fs.sb.orphan_file_inum == ino.0);
        if is_file {
            let _ = self.fs.edit_inode(ino, |bytes| {
                put_u16(bytes, 0, 0x8000 | inode.mode & 0xFFF);
                if u16_at(bytes, LINKS_AT) == 0 {
                    put_u16(bytes, LINKS_AT, 1);
                }
            });
            return "Make it a regular file.";
        }
        if ino == Ino::BAD_BLOCKS {
            let _ = self.fs.edit_inode(ino, |bytes| {
                for at in [0, 2, 0x18, LINKS_AT, 0x76, 0x78, 0x7A] {
                    put_u16(bytes, at, 0);
                }
                put_u32(bytes, 0x68, 0);
            });
            return "Clear mode, owner, links and attributes.";
        }
        self.free(ino);
        "Clear the inode."
    }

    /// Makes the root a directory: by its type if its blocks are those of a directory, else anew.
    fn mend_root(&mut self, ino: Ino, inode: &Inode) -> Option<&'static str> {
        let as_dir = Inode { mode: 0x4000 | inode.mode & 0xFFF, ..inode.clone() };
        let walked = if self.fs.is_inline(inode) { Default::default() } else { self.fs.walk(ino, &as_dir) };
        let first = walked.runs.first().filter(|run| run.lblk.0 == 0);
        let has_blocks = first.is_some_and(|run| self.looks_like_dir(ino, run.pblk));
        if has_blocks || self.fs.is_inline(inode) && inode.mode != 0 {
            self.fs.edit_inode(ino, |bytes| {
                let mode = u16_at(bytes, 0);
                put_u16(bytes, 0, 0x4000 | mode & 0xFFF);
                if u16_at(bytes, LINKS_AT) == 0 {
                    put_u16(bytes, LINKS_AT, 2);
                }
                put_u32(bytes, DTIME_AT, 0);
            })?;
            return Some("Set the type and a link count: its blocks are those of a directory.");
        }
        dirs::make(self.fs, ino, Ino::ROOT, 0o755)?;
        self.done.insert(ino);
        Some("Make a new root directory.")
    }

    /// A directory without a block gets an empty one; its names are lost already.
    fn mend_empty_dir(&mut self, ino: Ino, finding: &Finding) {
        let parent = self.fs.notes.parent(ino).unwrap_or(Ino::ROOT);
        let Some(inode) = self.fs.inode(ino) else { return };
        let Some(block) = self.fs.space.block(None) else { return };
        let run = Run { lblk: Lblk(0), pblk: block, len: 1, unwritten: false };
        let bytes = dirs::first_block(self.fs, ino, parent);
        if self.fs.write_block(block, &bytes).is_err()
            || Map::of(vec![run]).put(self.fs, ino, &inode).is_none()
        {
            return;
        }
        self.fs.set_flags(ino, 0, flags::INDEX);
        self.fs.put_size(ino, self.fs.geometry.block_size.bytes());
        self.plan
            .fixed(finding, "Give the directory an empty block; what its names led to goes to lost+found.");
    }

    /// Makes the flags and attributes of an inode with inline data fit.
    fn mend_inline(&mut self, ino: Ino, inode: &Inode, finding: &Finding) -> Option<&'static str> {
        let has_tree = inode.block.starts_with(&extent::MAGIC.to_le_bytes());
        if inode.has_flag(flags::EXTENTS) {
            let clear = if has_tree { flags::INLINE_DATA } else { flags::EXTENTS };
            self.fs.set_flags(ino, 0, clear);
            return Some("Clear the flag that i_block contradicts.");
        }
        if let Some(size) = finding.expected {
            self.fs.put_size(ino, size);
            return Some("Store the length of both parts.");
        }
        let bytes = self.fs.inode_bytes(ino)?;
        let at = inode.xattr_offset().clamp(128, bytes.len());
        let mut attrs: Vec<Attr<'_>> =
            xattr::decode_ibody(&bytes[at..]).ok()?.into_iter().map(|stored| stored.attr).collect();
        attrs.insert(0, Attr { index: xattr::INDEX_SYSTEM, name: b"data", value: AttrValue::Bytes(&[]) });
        let mut area = bytes[at..].to_vec();
        xattr::encode_ibody(&attrs, &mut area).ok()?;
        let lost = inode.size > 60;
        self.fs.edit_inode(ino, |bytes| bytes[at..].copy_from_slice(&area))?;
        if inode.mode & 0xF000 == 0x4000 || lost {
            self.fs.put_size(ino, 60);
        }
        Some("Add an empty attribute: the data is what i_block holds.")
    }
}

/// Clears nanoseconds of a second or more.
fn clear_nanoseconds(bytes: &mut [u8]) {
    let extra = if bytes.len() > 128 { usize::from(u16_at(bytes, EXTRA_AT)) } else { 0 };
    for at in [0x84, 0x88, 0x8C, 0x94] {
        if at + 4 <= 128 + extra && at + 4 <= bytes.len() {
            let word = u32_at(bytes, at);
            if word >> 2 >= 1_000_000_000 {
                put_u32(bytes, at, word & 3);
            }
        }
    }
}
