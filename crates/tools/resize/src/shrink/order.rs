//! Inodes of a list get ascending numbers, without gaps if a run of free numbers is long enough: a program
//! that reads these files in order reads few blocks of the inode tables, one after the other.
//!
//! Owns: which free numbers they get. Does **not** own: the change of the numbers (see
//! [`inodes`](super::inodes)).

use extant_base::Ino;

use super::inodes::{Numbers, renumber};
use super::pending::Pending;
use crate::fault::ResizeFault;
use crate::fs::Fs;
use crate::switch::Switcher;

/// Gives the inodes of a list numbers that ascend in the list's order. Returns how many inodes have another
/// number, also after a fault.
pub(crate) fn order_inodes(
    fs: &mut Fs,
    switcher: Switcher,
    order: &[Ino],
    check: &dyn Fn() -> Result<(), ResizeFault>,
) -> (u64, Result<Switcher, ResizeFault>) {
    let geometry = fs.geometry.clone();
    let mut change = match Pending::new(fs, switcher, &geometry, check) {
        Ok(change) => change,
        Err(fault) => return (0, Err(fault)),
    };
    let done = numbers_in_order(change.fs, order).and_then(|numbers| renumber(&mut change, &numbers));
    (change.durable.inodes, done.map(|()| change.switcher))
}

/// New numbers for the inodes of a list. None if they are in order already, and in as few blocks as they
/// would be then.
fn numbers_in_order(fs: &Fs, order: &[Ino]) -> Result<Numbers, ResizeFault> {
    let (first, journal) = (fs.sb.first_ino, fs.sb.journal_inum);
    let mut seen = std::collections::HashSet::new();
    let is_free_to_move = |ino: &u32| *ino >= first && *ino != journal;
    let wanted: Vec<u32> =
        order.iter().map(|ino| ino.0).filter(is_free_to_move).filter(|ino| seen.insert(*ino)).collect();
    let mut runs = free_runs(fs, first)?;
    // The first run that has room for all, else the longest ones.
    if let Some(at) = runs.iter().position(|(_, len)| *len as usize >= wanted.len()) {
        runs = vec![runs[at]];
    } else {
        runs.sort_by_key(|(start, len)| (std::cmp::Reverse(*len), *start));
        let mut room = 0;
        let enough = runs.iter().position(|(_, len)| {
            room += *len as usize;
            room >= wanted.len()
        });
        let Some(last) = enough else { return Err(ResizeFault::FewInodes { wanted: wanted.len() }) };
        runs.truncate(last + 1);
        runs.sort_unstable();
    }
    let free: Vec<u32> =
        runs.into_iter().flat_map(|(start, len)| start..start + len).take(wanted.len()).collect();
    let per_block = fs.geometry.inodes_per_block();
    let blocks = |numbers: &[u32]| {
        let mut blocks: Vec<u32> = numbers.iter().map(|ino| (ino - 1) / per_block).collect();
        blocks.dedup();
        blocks.len()
    };
    let is_ascending = wanted.windows(2).all(|pair| pair[0] < pair[1]);
    if is_ascending && blocks(&wanted) <= blocks(&free) {
        return Ok(Numbers::new());
    }
    Ok(wanted.into_iter().zip(free).collect())
}

/// Runs of free inode numbers: the first one, and their number.
fn free_runs(fs: &Fs, first: u32) -> Result<Vec<(u32, u32)>, ResizeFault> {
    let mut runs = Vec::new();
    for group in 0..fs.geometry.groups {
        let start = group * fs.geometry.inodes_per_group + 1;
        for run in fs.inode_bitmap(group, &fs.desc(group)?)?.free_runs(0) {
            let from = (start + run.start).max(first);
            let end = start + run.end;
            if from < end {
                runs.push((from, end - from));
            }
        }
    }
    Ok(runs)
}
