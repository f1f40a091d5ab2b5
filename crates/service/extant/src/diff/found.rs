//! What a comparison finds: pairs of files while they are compared, and the results of a thread.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use extant_volume::{Fault, Refusal};

use super::links::{Names, SeenPair};
use super::side::Node;
use super::{Cause, Change, Diff, Difference, Meta, Problem, Status, Which};

/// Two files of one type, while they are compared.
pub(super) struct Pair {
    pub(super) path: Arc<[u8]>,
    pub(super) a: (Node, Meta),
    pub(super) b: (Node, Meta),
    /// The differences found so far.
    pub(super) differences: Vec<Difference>,
    /// Set if one of them has several links.
    pub(super) linked: Option<SeenPair>,
    /// Offset of the first byte that differs; the largest number if none does.
    pub(super) first: AtomicU64,
    /// The contents cannot be compared; the problem is reported.
    pub(super) failed: AtomicBool,
}

impl Pair {
    pub(super) fn new(
        path: Arc<[u8]>,
        a: (Node, Meta),
        b: (Node, Meta),
        differences: Vec<Difference>,
    ) -> Self {
        let (first, failed) = (AtomicU64::new(u64::MAX), AtomicBool::new(false));
        Self { path, a, b, differences, linked: None, first, failed }
    }

    pub(super) fn first(&self) -> Option<u64> {
        let first = self.first.load(Ordering::Relaxed);
        (first != u64::MAX && !self.failed.load(Ordering::Relaxed)).then_some(first)
    }

    /// All differences, after the contents were compared.
    pub(super) fn all_differences(&self) -> Vec<Difference> {
        let mut all = self.differences.clone();
        if let Some(first) = self.first().filter(|_| !self.a.0.is_encrypted()) {
            all.push(Difference::Content { first });
        }
        all
    }

    /// The change of one of its names.
    pub(super) fn change(&self, path: Arc<[u8]>, mut differences: Vec<Difference>) -> Change {
        differences.sort_by_key(Difference::rank);
        Change {
            path,
            status: Status::Modified,
            a: Some(self.a.1.clone()),
            b: Some(self.b.1.clone()),
            differences,
            node: Some(self.b.0.clone()),
        }
    }

    /// Records a problem of the contents, once.
    pub(super) fn fail(&self, side: Which, cause: Cause, found: &mut Found) {
        if !self.failed.swap(true, Ordering::Relaxed) {
            found.problem(side, &self.path, cause);
        }
    }

    /// Drops a reference, and finishes the pair with the last one.
    pub(super) fn release(self: Arc<Self>, found: &mut Found) {
        let Some(pair) = Arc::into_inner(self) else { return };
        if pair.a.0.is_encrypted() && pair.first().is_some() {
            // Different bytes may decrypt to equal ones.
            pair.fail(Which::A, Cause::Image(Fault::Refused(Refusal::NeedsKey).into()), found);
        }
        found.finish(pair);
    }
}

/// The results of one thread.
#[derive(Default)]
pub(super) struct Found {
    pub(super) diff: Diff,
    /// Names of files with several links, by side.
    pub(super) names: [Names; 2],
    /// Names that are on both sides, of files with several links.
    pub(super) linked: Vec<(Arc<[u8]>, SeenPair)>,
    /// Differences of these files themselves.
    pub(super) linked_changes: HashMap<SeenPair, Pair>,
}

impl Found {
    pub(super) fn fault(&mut self, side: Which, path: &[u8], fault: Fault) {
        self.problem(side, path, Cause::Image(fault.into()));
    }

    pub(super) fn problem(&mut self, side: Which, path: &[u8], cause: Cause) {
        self.diff.problems.push(Problem { side, path: path.to_vec(), cause });
    }

    /// Records a pair whose comparison is complete.
    pub(super) fn finish(&mut self, pair: Pair) {
        if let Some(seen) = pair.linked {
            self.linked_changes.insert(seen, pair);
            return;
        }
        let differences = pair.all_differences();
        if !differences.is_empty() {
            self.diff.changes.push(pair.change(Arc::clone(&pair.path), differences));
        }
    }
}
