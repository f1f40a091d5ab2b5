//! Pass 4: the link count of every inode in use equals the number of entries that name it.
//!
//! Does **not** own: inodes without links that are marked in use and are not orphans (passes 1 and 5).

use std::sync::atomic::Ordering;

use extant_base::{Group, Ino};
use extant_ondisk::Features;
use extant_ondisk::filetype::FileType;

use crate::progress::Meter;
use crate::rules::directory as rules;
use crate::state::{InodeNote, State};
use crate::{FindingPlace, parallel};

/// With more links than this, a directory's link count is 1 (feature dir_nlink).
const LINKS_MAX: u32 = 65_000;

pub(crate) fn run(state: &State<'_>, threads: usize, meter: &Meter<'_>) {
    let work = |(): &mut (), group| {
        check_group(state, Group(group));
        meter.add(1);
    };
    parallel(state, threads, state.image.geometry.groups, || (), work, drop);
}

fn check_group(state: &State<'_>, group: Group) {
    let Some(notes) = state.inodes.group(group) else { return };
    let counts = state.refs.group(group).unwrap_or(&[]);
    let first = u64::from(group.0) * u64::from(state.image.geometry.inodes_per_group) + 1;
    for (i, note) in notes.iter().enumerate() {
        if !note.used || note.links == 0 {
            continue;
        }
        let Ok(ino) = u32::try_from(first + i as u64) else { return };
        let counted = counts.get(i).map_or(0, |count| count.load(Ordering::Relaxed));
        // Inodes of the file system itself have one link and no name.
        if note.hidden && Ino(ino) != Ino::ROOT {
            continue;
        }
        check_inode(state, Ino(ino), note, counted);
    }
}

fn check_inode(state: &State<'_>, ino: Ino, note: &InodeNote, counted: u32) {
    if u32::from(note.links) == counted {
        return;
    }
    let place = FindingPlace::ino(ino);
    let directory = note.kind == FileType::Directory.dirent_code();
    if counted == 0 {
        // Pass 3 reports directories without a name.
        if !directory && !state.is_orphan(ino) {
            let says = format!("no name leads to this inode, its link count is {}", note.links);
            state.findings.broken(&rules::UNATTACHED, place, says);
        }
        return;
    }
    let expected = if directory && counted > LINKS_MAX { 1 } else { counted };
    if u32::from(note.links) == expected {
        return;
    }
    if directory
        && note.links == 1
        && state.image.sb.features.has_ro_compat(Features::DIR_NLINK)
        && is_indexed(state, ino)
    {
        let says = format!("the link count is stuck at 1, {counted} names lead here");
        state.findings.broken(&rules::LINKS_STUCK, place, says);
        return;
    }
    state.findings.differs(&rules::LINKS, place, "the link count", note.links.into(), expected.into());
}

/// Does the inode have an index? Only indexed directories exceed the limit on links.
fn is_indexed(state: &State<'_>, ino: Ino) -> bool {
    let dirs = state.dirs.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let found = dirs.binary_search_by_key(&ino, |dir| dir.ino);
    found.is_ok_and(|at| dirs[at].flags & extant_ondisk::inode::flags::INDEX != 0)
}
