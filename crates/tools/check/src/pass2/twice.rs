//! Duplicate names in different blocks of a directory.
//!
//! With a valid index, equal names have equal hashes, so they lie in one leaf or in adjacent leaves that
//! share the hash: only these leaves are read again. Without an index, the keys of all names are sorted.

use std::collections::{HashMap, HashSet};

use extant_base::{Lblk, Pblk};
use extant_ondisk::casefold;

use super::block::{Dir, Seen, Where};
use super::entries::{Raw, entries};
use super::index::Order;
use super::source::{Layout, Source};

/// Compares names in adjacent leaves that share a hash.
pub(super) fn across_leaves(
    dir: &Dir<'_>,
    layout: &Layout,
    seen: &[Seen],
    order: &Order,
    source: &mut dyn Source,
) {
    let bounds = |lblk: u32| match seen.get(lblk as usize) {
        Some(Seen::Leaf { min, max }) if min <= max => Some((*min, *max)),
        _ => None,
    };
    // The hash that a series of leaves shares, and the names with this hash so far.
    let mut shared: Option<(u32, HashSet<Vec<u8>>)> = None;
    let mut before: Option<(u32, u32)> = None; // the last leaf with names, and its largest hash
    for &(lblk, _) in order {
        let Some((min, max)) = bounds(lblk) else { continue };
        if let Some((other, hash)) = before
            && hash == min
        {
            let mut names = match shared.take() {
                Some((of, names)) if of == hash => names,
                _ => {
                    let mut names = HashSet::new();
                    add_names(dir, layout, other, hash, &mut names, false, source);
                    names
                }
            };
            add_names(dir, layout, lblk, hash, &mut names, true, source);
            shared = Some((hash, names));
        }
        before = Some((lblk, max));
    }
}

fn add_names(
    dir: &Dir<'_>,
    layout: &Layout,
    lblk: u32,
    hash: u32,
    names: &mut HashSet<Vec<u8>>,
    say: bool,
    source: &mut dyn Source,
) {
    let at = Where { lblk: Lblk(lblk), pblk: Some(layout.find(lblk).unwrap_or(Pblk(0))), offset: 0 };
    let Some(block) = source.block(lblk) else { return };
    let mut of_block = Vec::new();
    for raw in names_of(dir, block, lblk == 0) {
        if dir.hash_of(&raw) == Some(hash) {
            let name = folded(dir, raw.name);
            if say && names.contains(&name) {
                dir.duplicate(at, &raw, "in the previous leaf");
            }
            of_block.push(name);
        }
    }
    names.extend(of_block);
}

/// Finds equal keys in a whole directory, and reports the names. Sorts `keys`.
pub(super) fn among_all(dir: &Dir<'_>, layout: &Layout, keys: &mut [u64], source: &mut dyn Source) {
    keys.sort_unstable();
    let twice: HashSet<u64> = keys.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
    if twice.is_empty() {
        return;
    }
    let mut first: HashMap<Vec<u8>, u32> = HashMap::new();
    for run in &layout.runs {
        for i in 0..run.len {
            let lblk = run.lblk.0 + i;
            let at = Where { lblk: Lblk(lblk), pblk: Some(Pblk(run.pblk.0 + u64::from(i))), offset: 0 };
            let Some(block) = source.block(lblk) else { continue };
            for raw in names_of(dir, block, lblk == 0) {
                if !twice.contains(&dir.key_of(raw.name)) {
                    continue;
                }
                match first.get(&folded(dir, raw.name)) {
                    Some(other) => dir.duplicate(at, &raw, &format!("in block {other}")),
                    None => drop(first.insert(folded(dir, raw.name), lblk)),
                }
            }
        }
    }
}

/// The names in use of a block, up to the end of its valid chain, without "." and "..".
pub(super) fn names_of<'b>(
    dir: &Dir<'_>,
    area: &'b [u8],
    first: bool,
) -> impl Iterator<Item = Raw<'b>> + use<'b> {
    // With metadata_csum, the tail is an unused entry, or the end of a chain already reported.
    entries(area, dir.block_size, dir.hashed)
        .map_while(Result::ok)
        .skip(if first { 2 } else { 0 })
        .filter(|raw| raw.ino != 0 && !raw.name.is_empty() && !raw.is_dots())
}

/// The name, casefolded if the directory ignores case.
fn folded(dir: &Dir<'_>, name: &[u8]) -> Vec<u8> {
    match dir.casefold && !dir.encrypted && casefold::is_stable(name) {
        true => casefold::fold(name).into_owned(),
        false => name.to_vec(),
    }
}
