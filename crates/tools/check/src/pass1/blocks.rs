//! The blocks of an inode: claims, the block count, and the size.

use std::ops::ControlFlow;

use extant_base::{Ino, Lblk, Pblk};
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::{Inode, flags};
use extant_ondisk::{Features, Superblock, indirect};

use crate::FindingPlace;
use crate::map::{self, MapFault, MapRoot, MappedRun, Visit};
use crate::pass1::special::Role;
use crate::pass1::subject::Subject;
use crate::rules::{inode as rules, map as map_rules};
use crate::state::{InodeNote, State, Why};
use crate::xattrs::InodeAttrs;

impl Subject<'_, '_> {
    /// Walks the map, checks size and block count against it, and returns the bytes allocated to the inode.
    pub(super) fn blocks(&self, role: Role, kind: FileType, attrs: &InodeAttrs, note: &mut InodeNote) -> u64 {
        let mut walk = Walk::new(self, kind, role);
        walk.clusters = attrs.block.into();
        if self.has_map(kind, role) && !note.bad {
            walk.translator(self);
        }
        let inline = self.is_inline();
        if self.has_map(kind, role) && !note.bad {
            if role == Role::Resize {
                walk.resize(self);
            } else {
                let inode = self.inode;
                let (ino, i_block, seed) = (self.ino, inode.block, self.seed);
                let extents = inode.has_flag(flags::EXTENTS);
                map::walk(&self.state.image, &MapRoot { ino, i_block, extents, seed }, &mut walk);
            }
        }
        let damaged = walk.damaged;
        let (clusters, first, last, last_written) = (walk.clusters, walk.first, walk.last, walk.last_written);
        let geometry = &self.state.image.geometry;
        // A value in an EA inode counts for every inode that refers to it.
        let bytes = clusters << (geometry.block_size.log2() + geometry.cluster_log);
        let bytes = bytes.saturating_add(attrs.ea_bytes);
        // A damaged map gives no reliable counts.
        if damaged || note.bad {
            note.bad |= damaged && kind != FileType::Directory && kind != FileType::Regular;
            return bytes;
        }
        if role.is_unread() {
            return bytes;
        }
        self.block_count(role, bytes);
        match kind {
            FileType::Directory if inline => {}
            FileType::Directory => self.dir_size(last),
            FileType::Symlink => self.symlink(attrs, first),
            FileType::Regular | FileType::Unknown => {
                self.file_size(last_written, inline);
                let end = last.map_or(0, |last| (last + 1).saturating_mul(geometry.block_size.bytes()));
                if role == Role::Journal && self.inode.size > end {
                    let says = format!("the journal's size is {}, its blocks end at {end}", self.inode.size);
                    self.state.findings.broken(&rules::JOURNAL, FindingPlace::ino(self.ino), says);
                }
            }
            _ => {}
        }
        bytes
    }

    /// Does `i_block` hold a map that must be valid?
    fn has_map(&self, kind: FileType, role: Role) -> bool {
        if self.is_inline() || role == Role::Idle {
            return false;
        }
        match kind {
            FileType::Regular | FileType::Directory => true,
            FileType::Symlink => !self.is_fast_symlink(),
            FileType::Unknown => {
                role == Role::Resize || (role == Role::BadBlocks && !self.inode.has_flag(flags::EXTENTS))
            }
            _ => false,
        }
    }

    fn block_count(&self, role: Role, bytes: u64) {
        let (sb, inode) = (&self.state.image.sb, self.inode);
        // On a Hurd file system i_blocks has no defined value; e2fsck ignores it.
        if sb.is_hurd() {
            return;
        }
        let huge = sb.features.has_ro_compat(Features::HUGE_FILE);
        let in_blocks = huge && inode.has_flag(flags::HUGE_FILE);
        let unit = if in_blocks { self.state.image.geometry.block_size.log2() } else { 9 };
        // Without huge_file the high half has no meaning, and is an error only on inodes that entries may
        // name.
        let stored = if huge || !role.hides() { inode.blocks } else { inode.blocks & 0xFFFF_FFFF };
        let expected = bytes >> unit;
        if stored != expected {
            self.state.findings.differs(
                &rules::BLOCKS,
                FindingPlace::ino(self.ino),
                "i_blocks",
                stored,
                expected,
            );
        }
    }

    fn dir_size(&self, last: Option<u64>) {
        let (size, bs) = (self.inode.size, self.state.image.geometry.block_size);
        let Some(last) = last else {
            let says = format!("a directory of {size} bytes without a block");
            self.state.findings.broken(&rules::EMPTY_DIR, FindingPlace::ino(self.ino), says);
            return;
        };
        let expected = (last + 1).saturating_mul(bs.bytes());
        // s_prealloc_dir_blocks allows a directory to have blocks past its end.
        let spare = u64::from(self.state.image.sb.prealloc_dir_blocks);
        let fits = size <= expected && size.is_multiple_of(bs.bytes()) && size / bs.bytes() + spare > last;
        if !fits {
            self.state.findings.differs(
                &rules::DIR_SIZE,
                FindingPlace::ino(self.ino),
                "the size",
                size,
                expected,
            );
        }
    }

    fn file_size(&self, last_written: Option<u64>, inline: bool) {
        let inode = self.inode;
        let image = &self.state.image;
        let bs = image.geometry.block_size;
        let max = if inode.has_flag(flags::EXTENTS) {
            u64::from(u32::MAX) << bs.log2()
        } else {
            indirect::max_blocks(bs) << bs.log2()
        };
        // A map in i_block alone may have one written block past the size; a verity file keeps its Merkle
        // tree there.
        let slack = u64::from(!inode.has_flag(flags::EXTENTS) || inode.block[6..8] == [0; 2]);
        let reached = match slack {
            0 => bs.blocks_for(inode.size) >= last_written.map_or(0, |last| last + 1),
            _ => last_written.is_none_or(|last| inode.size >= last.saturating_mul(bs.bytes())),
        };
        let covered = reached || inode.has_flag(flags::VERITY);
        // The map does not bound inline files: mke2fs stores a file that is one hole inline, whatever its
        // length.
        if (!covered && !inline) || inode.size > max {
            let expected = last_written.map_or(0, |last| (last + 1).saturating_mul(bs.bytes()));
            if inode.size <= max {
                // The inode may be an orphan whose truncation is incomplete.
                self.state.suspect(self.ino, Why::Cut { size: inode.size, mapped: expected });
                return;
            }
            self.state.findings.differs(
                &rules::SIZE,
                FindingPlace::ino(self.ino),
                "the size",
                inode.size,
                expected,
            );
        }
    }

    /// Checks the target of a symbolic link.
    fn symlink(&self, attrs: &InodeAttrs, first: Option<MappedRun>) {
        let inode = self.inode;
        let broken =
            |says: String| self.state.findings.broken(&rules::SYMLINK, FindingPlace::ino(self.ino), says);
        let bs = self.state.image.geometry.block_size;
        let size = inode.size;
        if size == 0 || size > bs.bytes() {
            broken(format!("the size is {size}"));
            return;
        }
        let mut text = Vec::new();
        if self.is_inline() {
            text.extend_from_slice(&inode.block);
            text.extend_from_slice(&attrs.inline_tail);
        } else if self.is_fast_symlink() {
            text.extend_from_slice(&inode.block);
        } else {
            let Some(run) = first.filter(|run| run.lblk == Lblk(0) && run.len == 1) else {
                broken(format!("a text of {size} bytes is not in one block at the beginning"));
                return;
            };
            match self.state.image.read_block(run.pblk) {
                Ok(bytes) => text = bytes,
                Err(fault) => return broken(fault.to_string()),
            }
        }
        let len = if inode.has_flag(flags::ENCRYPT) {
            match text.first_chunk() {
                Some(len) => 2 + usize::from(u16::from_le_bytes(*len)),
                None => 0,
            }
        } else {
            text.iter().position(|byte| *byte == 0).unwrap_or(text.len())
        };
        if len as u64 != size {
            broken(format!("the size is {size}, the text has {len} bytes"));
        }
    }
}

/// The block of the inode's translator, on GNU Hurd file systems.
pub(super) fn translator(sb: &Superblock, inode: &Inode) -> Option<Pblk> {
    let block = u64::from(inode.version as u32);
    (sb.is_hurd() && block != 0).then_some(Pblk(block))
}

/// The walk of one inode's block map.
struct Walk<'s, 'd> {
    state: &'s State<'d>,
    ino: Ino,
    is_dir: bool,
    bad_blocks: bool,
    /// Clusters allocated to the inode.
    clusters: u64,
    /// The last cluster claimed for data: its number on the device, and in the file.
    previous: Option<(u64, u64)>,
    first: Option<MappedRun>,
    last: Option<u64>,
    last_written: Option<u64>,
    damaged: bool,
}

impl<'s, 'd> Walk<'s, 'd> {
    fn new(subject: &Subject<'s, 'd>, kind: FileType, role: Role) -> Self {
        Self {
            state: subject.state,
            ino: subject.ino,
            is_dir: kind == FileType::Directory,
            bad_blocks: role == Role::BadBlocks,
            clusters: 0,
            previous: None,
            first: None,
            last: None,
            last_written: None,
            damaged: false,
        }
    }

    /// Checks the resize inode. [`crate::supers`] has checked its map; its reserved blocks are claimed
    /// already.
    fn resize(&mut self, subject: &Subject<'_, '_>) {
        if subject.inode.has_flag(flags::EXTENTS) {
            let says = "the resize inode has the flag extents".into();
            self.broken(MapFault { rule: &map_rules::HEADER, place: FindingPlace::ino(self.ino), says });
            return;
        }
        let geometry = &self.state.image.geometry;
        let dind = &subject.inode.block[4 * 13..4 * 14];
        let dind = Pblk(u32::from_le_bytes([dind[0], dind[1], dind[2], dind[3]]).into());
        if dind.0 == 0 {
            return;
        }
        if !self.state.image.is_data_block(dind) {
            self.damaged = true;
            return;
        }
        let cluster = self.state.claims.cluster_of(dind);
        let _ = self.state.claims.claim(cluster, cluster);
        let copies = (0..geometry.groups)
            .filter(|group| geometry.has_super(extant_base::Group(*group)))
            .count() as u64;
        let reserved = u64::from(self.state.image.sb.reserved_gdt_blocks);
        self.clusters += 1 + copies * reserved;
        // One row of the double indirect block at a time; with wraparound the last row may not be the
        // highest.
        let per_block = geometry.block_size.bytes() / 4;
        let first_row = u64::from(geometry.desc_blocks) % per_block;
        let last_row = (first_row + reserved).saturating_sub(1).min(per_block - 1);
        if reserved > 0 && copies > 1 {
            self.last_written = Some(12 + per_block + last_row * per_block + copies - 2);
        }
    }

    /// Claims the translator block, which Hurd inodes have in the place of the change counter.
    fn translator(&mut self, subject: &Subject<'_, '_>) {
        let Some(block) = translator(&self.state.image.sb, subject.inode) else { return };
        if self.state.image.is_data_block(block) {
            self.clusters += 1;
            let cluster = self.state.claims.cluster_of(block);
            let _ = self.state.claims.claim(cluster, cluster);
        } else if self.state.image.is_inside(block, 1) {
            self.metadata(None, block);
        } else {
            let says = format!("the translator is said to be block {block}");
            let place = FindingPlace { ino: Some(self.ino), ..FindingPlace::block(block) };
            self.broken(MapFault { rule: &map_rules::OUTSIDE, place, says });
        }
    }

    /// Are all blocks of this run reserved descriptor blocks? A bad block there is harmless.
    fn is_reserved(&self, run: MappedRun) -> bool {
        let geometry = &self.state.image.geometry;
        let Some(group) = geometry.group_of(run.pblk) else { return false };
        let (start, len) = geometry.group_head(group).reserved;
        run.pblk >= start && run.pblk.0 + u64::from(run.len) <= start.0 + u64::from(len)
    }

    fn metadata(&mut self, lblk: Option<Lblk>, block: Pblk) {
        self.damaged = true;
        let place = FindingPlace { ino: Some(self.ino), lblk, ..FindingPlace::block(block) };
        self.state.findings.broken(
            &map_rules::METADATA,
            place,
            "the map leads into metadata of the file system",
        );
    }

    fn claim(&mut self, run: MappedRun) {
        let claims = &self.state.claims;
        let len = u64::from(run.len);
        let (mut first, last) = (claims.cluster_of(run.pblk), claims.cluster_of(Pblk(run.pblk.0 + len - 1)));
        let log = self.state.image.geometry.cluster_log;
        if log > 0 {
            let mask = (1u64 << log) - 1;
            let lblk = u64::from(run.lblk.0);
            if run.pblk.0.wrapping_sub(claims.block_of(0).0) & mask != lblk & mask {
                let place = FindingPlace::ino(self.ino).at_lblk(run.lblk).in_block(run.pblk);
                let says = format!(
                    "block {} of the file is at block {}, in clusters of {}",
                    run.lblk,
                    run.pblk,
                    mask + 1
                );
                self.state.findings.broken(&map_rules::CLUSTER, place, says);
            }
            // Extents at the same cluster of the file share one cluster of the device; it is claimed once.
            if self.previous == Some((first, lblk >> log)) {
                first += 1;
            }
            self.previous = Some((last, (lblk + len - 1) >> log));
            if first > last {
                return;
            }
        }
        self.clusters += last - first + 1;
        let _ = claims.claim(first, last);
    }
}

impl Visit for Walk<'_, '_> {
    fn node(&mut self, block: Pblk) -> bool {
        if self.state.image.zones.overlap(block, 1) {
            self.metadata(None, block);
            return false;
        }
        self.clusters += 1;
        let cluster = self.state.claims.cluster_of(block);
        let taken = self.state.claims.claim(cluster, cluster).is_err();
        if taken && !self.state.may_enter_shared(block) {
            self.damaged = true;
            return false;
        }
        true
    }

    fn run(&mut self, run: MappedRun) -> ControlFlow<()> {
        if self.state.image.zones.overlap(run.pblk, run.len.into()) {
            if self.bad_blocks && self.is_reserved(run) {
                return ControlFlow::Continue(());
            }
            self.metadata(Some(run.lblk), run.pblk);
            return ControlFlow::Continue(());
        }
        if self.is_dir && run.unwritten {
            let place = FindingPlace::ino(self.ino).at_lblk(run.lblk).in_block(run.pblk);
            self.state.findings.broken(&map_rules::UNWRITTEN_DIR, place, "a directory has unwritten blocks");
        }
        let last = u64::from(run.lblk.0) + u64::from(run.len) - 1;
        self.first = self.first.or(Some(run));
        self.last = Some(last);
        if !run.unwritten {
            self.last_written = Some(last);
        }
        self.claim(run);
        ControlFlow::Continue(())
    }

    fn broken(&mut self, fault: MapFault) {
        self.damaged |= fault.rule != &map_rules::CHECKSUM && fault.rule != &map_rules::KEY;
        self.state.findings.broken(fault.rule, fault.place, fault.says);
    }
}
