//! Pass 3: every directory is connected to the root.
//!
//! ```text
//! parent(d)   the directory that holds the name of d, from pass 2
//! climb       from each directory upwards, to the root or to a directory that an earlier climb passed
//! ```
//!
//! Each directory is passed once, so the time is linear even with loops. The pass also counts the links of
//! directories: the name in the parent, "." in itself, and ".." in each subdirectory, as they should be. A
//! wrong entry is a finding of its own, and does not cause a second finding about a link count.

use std::sync::atomic::{AtomicU32, Ordering};

use extant_base::{Group, Ino};
use extant_ondisk::filetype::FileType;

use crate::per_group::PerGroup;
use crate::progress::Meter;
use crate::rules::directory as rules;
use crate::state::{InodeNote, State};
use crate::{FindingPlace, parallel};

const DIRECTORY: u8 = FileType::Directory as u8;

/// Is this a directory that should have a name?
fn is_directory(note: &InodeNote) -> bool {
    note.kind == DIRECTORY && note.used && note.links != 0
}

pub(crate) fn run(state: &State<'_>, threads: usize, meter: &Meter<'_>) {
    let geometry = &state.image.geometry;
    if let Some(root) = state.inodes.get(Ino::ROOT)
        && !is_directory(root)
        && !root.bad
    {
        let says = "there is no root directory: the inode is not in use";
        state.findings.broken(&crate::rules::inode::ROOT, FindingPlace::ino(Ino::ROOT), says);
    }
    parallel(
        state,
        threads,
        geometry.groups,
        || (),
        |(), group| count_links(state, Group(group), meter),
        drop,
    );
    find_loops(state);
}

fn directories<'s>(state: &'s State<'_>, group: Group) -> impl Iterator<Item = (Ino, &'s InodeNote)> {
    let first = u64::from(group.0) * u64::from(state.image.geometry.inodes_per_group) + 1;
    let notes = state.inodes.group(group).unwrap_or(&[]);
    let numbered = notes.iter().zip(first..).filter(|(note, _)| is_directory(note));
    numbered.filter_map(|(note, ino)| Some((Ino(u32::try_from(ino).ok()?), note)))
}

fn count_links(state: &State<'_>, group: Group, meter: &Meter<'_>) {
    let mut passed = 0;
    for (ino, note) in directories(state, group) {
        passed += 1;
        let (parent, dotdot) = (state.tree.parent(ino), state.tree.dotdot(ino));
        if parent.is_none() && (note.hidden || note.bad || state.is_orphan(ino)) {
            continue;
        }
        state.refs.add(ino); // its own "."
        let Some(parent) = parent else {
            let says = "no name leads to this directory";
            state.findings.broken(&rules::UNCONNECTED, FindingPlace::ino(ino), says);
            if let Some(dotdot) = dotdot {
                state.refs.add(dotdot);
            }
            continue;
        };
        if ino != Ino::ROOT {
            state.refs.add(ino); // its name
        }
        state.refs.add(parent); // its ".."
        if let Some(dotdot) = dotdot
            && dotdot != parent
        {
            let place = FindingPlace::ino(ino).named(b"..");
            let (stored, expected) = (u64::from(dotdot.0), u64::from(parent.0));
            state.findings.differs(
                &rules::DOTDOT_PARENT,
                place,
                "the inode that \"..\" names",
                stored,
                expected,
            );
        }
    }
    meter.add(passed);
}

/// Climbs from every directory; a climb that meets its own path has found a loop.
fn find_loops(state: &State<'_>) {
    // By directory: the number of the walk that passed it.
    let passed: PerGroup<AtomicU32> = PerGroup::new(&state.image.geometry);
    let mut walk = 0u32;
    for group in 0..state.image.geometry.groups {
        for (start, _) in directories(state, Group(group)) {
            walk += 1; // there are fewer directories than inode numbers
            let mut at = start;
            let met = loop {
                let Some(mark) = passed.touch(at) else { break 0 };
                let met = mark.swap(walk, Ordering::Relaxed);
                if met != 0 {
                    mark.store(met, Ordering::Relaxed);
                    break met;
                }
                match state.tree.parent(at) {
                    Some(parent) if at != Ino::ROOT => at = parent,
                    _ => break 0,
                }
            };
            if met == walk {
                say_loop(state, at);
            }
        }
    }
}

/// Reports the loop through `start`, at its lowest inode.
fn say_loop(state: &State<'_>, start: Ino) {
    let (mut lowest, mut len, mut at) = (start, 0u64, start);
    while let Some(parent) = state.tree.parent(at) {
        lowest = lowest.min(parent);
        len += 1;
        at = parent;
        if at == start {
            break;
        }
    }
    let says =
        format!("walking up from this directory leads back to it after {len} steps, never to the root");
    state.findings.broken(&rules::LOOP, FindingPlace::ino(lowest), says);
}
