//! Hard links: which names belong to one file, on each side.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{Difference, path_order};

/// A pair of files with several links, by their numbers on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct SeenPair {
    pub(super) a: u64,
    pub(super) b: u64,
}

/// The names of one file, in order.
pub(super) type Group = Vec<Arc<[u8]>>;

/// The names of the files of one side that have several.
#[derive(Debug, Default)]
pub(super) struct Names {
    by_file: HashMap<u64, Group>,
}

impl Names {
    pub(super) fn push(&mut self, file: u64, path: Arc<[u8]>) {
        self.by_file.entry(file).or_default().push(path);
    }

    pub(super) fn add(&mut self, more: Self) {
        for (file, paths) in more.by_file {
            self.by_file.entry(file).or_default().extend(paths);
        }
    }

    pub(super) fn sort(&mut self) {
        for group in self.by_file.values_mut() {
            group.sort_by(|one, other| path_order(one, other));
        }
    }

    fn group(&self, file: u64) -> Option<&Group> {
        self.by_file.get(&file)
    }

    /// The groups of several names, in the order of their first ones.
    pub(super) fn into_groups(self) -> Vec<Group> {
        let mut groups: Vec<Group> = self.by_file.into_values().filter(|group| group.len() > 1).collect();
        groups.sort_by(|one, other| path_order(&one[0], &other[0]));
        groups
    }
}

/// The difference between the names of two files; `path` is a name of both. `common`: all names that are on
/// both sides.
pub(super) fn difference(
    a: &Names,
    b: &Names,
    common: &HashSet<Arc<[u8]>>,
    pair: &SeenPair,
    path: &Arc<[u8]>,
) -> Option<Difference> {
    let alone = vec![Arc::clone(path)];
    let (a, b) = (a.group(pair.a).unwrap_or(&alone), b.group(pair.b).unwrap_or(&alone));
    if a == b {
        return None;
    }
    let has =
        |group: &Group, name: &Arc<[u8]>| group.binary_search_by(|known| path_order(known, name)).is_ok();
    // A name that side B has for another file must be made anew.
    let only_fewer =
        b.iter().all(|name| has(a, name)) && a.iter().all(|name| has(b, name) || !common.contains(name));
    Some(Difference::Links { a: a.len() as u64, b: b.len() as u64, only_fewer })
}
