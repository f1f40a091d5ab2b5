//! Directories with more than one name.
//!
//! Threads see names in any order, so the walk records only which directories have several names and which
//! directories hold them. Here these few are read again and one name is chosen as the valid one: the first
//! name in the directory that ".." names, else the first name in the directory with the lowest inode number.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use extant_base::{Ino, Lblk, Pblk};
use extant_ondisk::inode::flags;

use super::block::{Dir, Where};
use super::names::Key;
use super::source::{Layout, READ_LEN};
use super::{inline, twice};
use crate::rules::directory as rules;
use crate::state::{DirNote, State};

pub(super) fn judge(state: &State<'_>, notes: &[DirNote], key: Key) {
    let again = std::mem::take(&mut *state.tree.again.lock().unwrap_or_else(PoisonError::into_inner));
    if again.is_empty() {
        return;
    }
    let mut named_by: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for (child, parent) in again {
        named_by.entry(child).or_default().insert(parent);
    }
    let mut right = BTreeMap::new();
    let mut parents = BTreeSet::new();
    for (child, by) in &named_by {
        let dotdot =
            state.tree.dotdot(Ino(*child)).map(|dotdot| dotdot.0).filter(|dotdot| by.contains(dotdot));
        let Some(parent) = dotdot.or_else(|| by.first().copied()) else { continue };
        if *child != Ino::ROOT.0 {
            right.insert(*child, parent);
            if let Some(slot) = state.tree.parents.touch(Ino(*child)) {
                slot.store(parent, Ordering::Relaxed);
            }
        }
        parents.extend(by);
    }
    for parent in parents {
        let Ok(at) = notes.binary_search_by_key(&parent, |note| note.ino.0) else { continue };
        let dir = Dir::new(state, &state.tree, &notes[at], key);
        each_area(&dir, &mut |at, area| {
            for raw in twice::names_of(&dir, area, at.pblk.is_some() && at.lblk == Lblk(0)) {
                if !named_by.get(&raw.ino).is_some_and(|by| by.contains(&parent)) {
                    continue;
                }
                // The first name in the chosen parent is the valid one.
                if right.get(&raw.ino) == Some(&parent) {
                    right.insert(raw.ino, 0);
                    continue;
                }
                let says = format!("the name leads to directory {}, which has another name", raw.ino);
                let place = dir.place(at).at_offset((at.offset + raw.offset) as u32).named(raw.name);
                dir.broken(&rules::DIR_LINK, place, says);
            }
        });
    }
}

fn each_area(dir: &Dir<'_>, each: &mut dyn FnMut(Where, &[u8])) {
    if dir.note.flags & flags::INLINE_DATA != 0 {
        return inline::each_area(dir, each);
    }
    let mut layout = Layout::default();
    layout.find_runs(dir);
    let mut bytes = Vec::new();
    for run in layout.pieces(0..layout.mapped, (READ_LEN >> dir.block_size.log2()) as u32) {
        bytes.resize(run.len as usize * dir.block_size.len(), 0);
        let (lblk, pblk): (Lblk, Pblk) = (run.lblk, run.pblk);
        if dir.state.image.read_blocks(pblk, &mut bytes).is_ok() {
            for (i, block) in bytes.chunks_exact(dir.block_size.len()).enumerate() {
                let at =
                    Where { lblk: Lblk(lblk.0 + i as u32), pblk: Some(Pblk(pblk.0 + i as u64)), offset: 0 };
                each(at, block);
            }
        }
    }
}
