//! Pass 1: inodes, their block maps and attributes; claims of clusters.
//!
//! Owns: reading inode tables, the notes on inodes and directories, claims. Does **not** own: directory
//! entries, bitmaps (pass 1 reads only whether an inode is marked), orphans.
//!
//! Each thread takes one group at a time, and reads its table in pieces of up to 1 MiB, which fit the CPU
//! cache. Of an inode that was never used, only the first bytes are read.

mod blocks;
mod fields;
pub(crate) mod shared;
mod special;
mod subject;

use std::collections::HashMap;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use extant_base::le::{u16_at, u32_at};
use extant_base::{Group, Ino, Pblk};
use extant_ondisk::Features;
use extant_ondisk::group_desc::INODE_UNINIT;
use extant_ondisk::inode::{self, Inode, flags};

use crate::map::MapRoot;
use crate::progress::Meter;
use crate::rules::{group as group_rules, inode as rules};
use crate::state::{DirNote, InodeNote, State, Suspect, Used, Why};
use crate::{FindingPlace, parallel, xattrs};

const PIECE: usize = 1 << 20;

pub(crate) fn run(state: &State<'_>, threads: usize, meter: &Meter<'_>) {
    claim_fixed(state);
    parallel(
        state,
        threads,
        state.image.geometry.groups,
        || Worker::new(state),
        |worker, group| {
            worker.group(Group(group));
            meter.add(1);
        },
        Worker::finish,
    );
    xattrs::finish(state);
}

/// Claims all metadata at fixed addresses.
fn claim_fixed(state: &State<'_>) {
    let claims = &state.claims;
    for (start, end) in state.image.zones.ranges() {
        claims.claim_fixed(claims.cluster_of(Pblk(*start)), claims.cluster_of(Pblk(end - 1)));
    }
    let (sb, image) = (&state.image.sb, &state.image);
    if sb.features.has_incompat(Features::MMP) && image.is_data_block(Pblk(sb.mmp_block)) {
        let cluster = claims.cluster_of(Pblk(sb.mmp_block));
        claims.claim_fixed(cluster, cluster);
    }
}

/// Reports the suspects that are not orphans. Requires `State::orphans`.
pub(crate) fn judge_suspects(state: &State<'_>) {
    let mut suspects = std::mem::take(&mut *state.suspects.lock().unwrap_or_else(PoisonError::into_inner));
    suspects.sort_unstable_by_key(|suspect| suspect.ino);
    for Suspect { ino, why } in suspects {
        if state.is_orphan(ino) {
            continue;
        }
        let place = FindingPlace::ino(ino);
        let (links, dtime, marked) = match why {
            Why::Deleted { links, dtime, marked } => (links, dtime, marked),
            Why::Cut { size, mapped } => {
                state.findings.differs(&rules::SIZE, place, "the size", size, mapped);
                continue;
            }
        };
        if links == 0 && marked && dtime == 0 {
            let says = "no links, no deletion time, and on no orphan list";
            state.findings.broken(&rules::NO_DTIME, place, says);
        } else if dtime != 0 && dtime < state.image.sb.inodes_count {
            let says = format!(
                "the deletion time is {dtime}, like a link of the orphan list, but this list leads not here"
            );
            state.findings.broken(&rules::DTIME, place, says);
        } else if links == 0 && marked {
            let says = "deleted, but marked in use, and on no orphan list";
            state.findings.broken(&crate::rules::bitmap::INODES_LEAKED, place, says);
        }
    }
}

/// Per-thread state.
struct Worker<'s, 'd> {
    state: &'s State<'d>,
    piece: Vec<u8>,
    dirs: Vec<DirNote>,
    inodes: u64,
    quota: bool,
    user: HashMap<u32, Used>,
    group: HashMap<u32, Used>,
    project: HashMap<u32, Used>,
}

impl<'s, 'd> Worker<'s, 'd> {
    fn new(state: &'s State<'d>) -> Self {
        let quota = state.image.sb.features.has_ro_compat(Features::QUOTA);
        let (user, group, project) = Default::default();
        Self { state, piece: Vec::new(), dirs: Vec::new(), inodes: 0, quota, user, group, project }
    }

    fn finish(self) {
        let tally = &self.state.tally;
        tally.inodes.fetch_add(self.inodes, Ordering::Relaxed);
        tally.dirs.fetch_add(self.dirs.len() as u64, Ordering::Relaxed);
        self.state.dirs.lock().unwrap_or_else(PoisonError::into_inner).extend(self.dirs);
        let usage = &self.state.usage;
        for (own, all) in
            [(self.user, &usage.user), (self.group, &usage.group), (self.project, &usage.project)]
        {
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            for (id, used) in own {
                let sum = all.entry(id).or_default();
                sum.bytes = sum.bytes.saturating_add(used.bytes);
                sum.inodes += used.inodes;
            }
        }
    }

    fn group(&mut self, group: Group) {
        let image = &self.state.image;
        let geometry = &image.geometry;
        let Some(desc) = image.desc(group).filter(|_| image.is_usable(group)) else {
            self.state.attrs.are_unread.store(true, Ordering::Relaxed);
            return;
        };
        if desc.has_flag(INODE_UNINIT) {
            return;
        }
        let findings = &self.state.findings;
        let bitmap = match image.read_block(Pblk(desc.inode_bitmap)) {
            Ok(bitmap) => bitmap,
            Err(fault) => {
                let place = FindingPlace::group(group).in_block(Pblk(desc.inode_bitmap));
                findings.broken(&group_rules::UNREADABLE, place, fault.to_string());
                vec![0; geometry.block_size.len()]
            }
        };
        let is_marked = |index: u32| bitmap[index as usize / 8] & 1 << (index % 8) != 0;
        let all = geometry.inodes_per_group;
        let unused = desc.itable_unused;
        let mut end = all.saturating_sub(unused);
        if unused > all {
            let says = format!("itable_unused is {unused}, the group has {all} inodes");
            findings.broken(&group_rules::UNUSED_COUNT, FindingPlace::group(group), says);
        } else if unused > desc.free_inodes {
            let says = format!("itable_unused is {unused}, free_inodes {}", desc.free_inodes);
            findings.broken(&group_rules::UNUSED_ABOVE_FREE, FindingPlace::group(group), says);
        }
        if let Some(last) = (end..all).rev().find(|index| is_marked(*index)) {
            let ino = u64::from(group.0) * u64::from(all) + u64::from(last) + 1;
            let says = format!("inode {ino} is in use, but the last {unused} of {all} are said never to be");
            findings.broken(&group_rules::HIDDEN_INODES, FindingPlace::group(group), says);
            end = last + 1;
        }
        let size = geometry.inode_size;
        let mut notes = vec![InodeNote::default(); end as usize];
        let per_piece = (PIECE / size) as u32;
        let mut index = 0;
        let mut piece = std::mem::take(&mut self.piece);
        while index < end {
            let count = per_piece.min(end - index);
            piece.resize(count as usize * size, 0);
            let offset = geometry.block_size.offset_of(Pblk(desc.inode_table));
            let offset = offset.unwrap_or(u64::MAX).saturating_add(u64::from(index) * size as u64);
            if let Err(fault) = image.read_bytes(offset, &mut piece) {
                let place = FindingPlace::group(group).in_block(Pblk(desc.inode_table));
                findings.broken(&rules::UNREADABLE, place, fault.to_string());
                self.state.attrs.are_unread.store(true, Ordering::Relaxed);
                piece.fill(0);
            }
            for (bytes, index) in piece.chunks_exact(size).zip(index..) {
                let ino = Ino(group.0 * all + index + 1);
                notes[index as usize] = self.inode(ino, bytes, is_marked(index));
            }
            index += count;
        }
        self.piece = piece;
        self.state.inodes.set_group(group, notes.into_boxed_slice());
    }

    fn inode(&mut self, ino: Ino, bytes: &[u8], marked: bool) -> InodeNote {
        let state = self.state;
        let sb = &state.image.sb;
        let (mode, links) = (u16_at(bytes, 0), u16_at(bytes, 0x1A));
        let reserved = ino != Ino::ROOT && ino.0 < subject::first_ino(sb);
        let mut note = InodeNote { marked, links, hidden: reserved, ..InodeNote::default() };
        if links == 0 && mode == 0 && !reserved && bytes.iter().all(|byte| *byte == 0) {
            return note;
        }
        let seed = inode::inode_seed(state.image.fs_seed, ino, u32_at(bytes, 0x64));
        let empty = || bytes.iter().all(|byte| *byte == 0);
        if sb.seals_inodes() && !inode::verify(bytes, seed) && !empty() {
            let says = if links == 0 {
                "the checksum of a free inode does not fit"
            } else {
                "the checksum does not fit"
            };
            state.findings.broken(&rules::CHECKSUM, FindingPlace::ino(ino), says);
        }
        let dtime = u32_at(bytes, 0x14);
        let orphan = links == 0 && mode != 0 && marked && !reserved;
        if orphan || (dtime != 0 && dtime < sb.inodes_count) {
            state.suspect(ino, Why::Deleted { links, dtime, marked: orphan });
        }
        if links == 0 && !orphan && !reserved {
            if mode != 0 && dtime == 0 {
                state.findings.broken(
                    &rules::NO_DTIME,
                    FindingPlace::ino(ino),
                    format!("mode {mode:#o}, no deletion time"),
                );
            }
            return note;
        }
        if links != 0 && dtime != 0 && dtime >= sb.inodes_count && !special::role(sb, ino).hides() {
            let says = format!("{links} links, but the deletion time is {dtime}");
            state.findings.broken(&rules::DTIME, FindingPlace::ino(ino), says);
        }
        let inode = match Inode::decode(bytes) {
            Ok(inode) => inode,
            Err(_) => {
                // Decoding fails only because of extra_isize; the first 128 bytes are still valid. Where its
                // attributes begin is unknown.
                state.attrs.are_unread.store(true, Ordering::Relaxed);
                let mut old = bytes.to_vec();
                old[0x80..0x84].fill(0);
                Inode { extra_isize: u16_at(bytes, 0x80), ..Inode::decode(&old).unwrap_or_default() }
            }
        };
        // The Hurd uses some of these bytes for other fields; e2fsck treats them alike.
        let inode = if sb.is_hurd() { inode.of_hurd() } else { inode };
        self.used(ino, &inode, bytes, seed, &mut note);
        note
    }

    /// Checks an inode that is in use, an orphan, or reserved.
    fn used(&mut self, ino: Ino, inode: &Inode, bytes: &[u8], seed: u32, note: &mut InodeNote) {
        let state = self.state;
        let subject = subject::Subject { state, ino, inode, bytes, seed };
        let role = special::role(&state.image.sb, ino);
        note.used = inode.links != 0 || (inode.mode != 0 && !role.is_unread());
        if note.used {
            self.inodes += 1;
        }
        if role.hides() {
            note.hidden = true;
        }
        let ea_inode =
            inode.has_flag(flags::EA_INODE) && state.image.sb.features.has_incompat(Features::EA_INODE);
        note.hidden |= ea_inode;
        // Without links, it waits for its deletion as an orphan.
        if ea_inode && inode.links != 0 && !role.is_unread() {
            state.attrs.flagged.lock().unwrap_or_else(PoisonError::into_inner).push(ino.0);
        }
        subject.fields(role);
        let attrs = subject.attributes(role);
        if !special::check(&subject, role) {
            note.bad = true;
        }
        let kind = subject.kind(role);
        note.kind = kind.dirent_code();
        let bytes = subject.blocks(role, kind, &attrs, note);
        if self.quota
            && note.used
            && !ea_inode
            && (ino == Ino::ROOT || ino.0 >= subject::first_ino(&state.image.sb))
            && !role.hides()
        {
            let add = |map: &mut HashMap<u32, Used>, id| {
                let used = map.entry(id).or_default();
                used.bytes = used.bytes.saturating_add(bytes);
                used.inodes += 1 + attrs.ea_inodes;
            };
            add(&mut self.user, inode.uid);
            add(&mut self.group, inode.gid);
            add(&mut self.project, inode.projid);
        }
        if kind == extant_ondisk::filetype::FileType::Directory && !note.bad {
            self.dirs.push(DirNote {
                ino,
                size: inode.size,
                flags: inode.flags,
                seed,
                root: MapRoot { ino, i_block: inode.block, extents: inode.has_flag(flags::EXTENTS), seed },
            });
        }
    }
}
