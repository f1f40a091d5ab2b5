//! A finding, and the collection of all findings.

use std::collections::BTreeMap;
use std::sync::Mutex;

use extant_base::{Group, Ino, Lblk, Pblk};

use crate::Rule;

/// The place of a finding; unknown parts are `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FindingPlace {
    /// Block group.
    pub group: Option<Group>,
    /// Inode.
    pub ino: Option<Ino>,
    /// Logical block of the inode.
    pub lblk: Option<Lblk>,
    /// Physical block.
    pub block: Option<Pblk>,
    /// Byte offset within the block, or within the inode.
    pub offset: Option<u32>,
    /// Name of a directory entry or attribute, raw bytes.
    pub name: Option<Vec<u8>>,
}

impl FindingPlace {
    /// A group.
    #[must_use]
    pub fn group(group: Group) -> Self {
        Self { group: Some(group), ..Self::default() }
    }

    /// An inode.
    #[must_use]
    pub fn ino(ino: Ino) -> Self {
        Self { ino: Some(ino), ..Self::default() }
    }

    /// A block.
    #[must_use]
    pub fn block(block: Pblk) -> Self {
        Self { block: Some(block), ..Self::default() }
    }

    /// Adds the block.
    #[must_use]
    pub fn in_block(mut self, block: Pblk) -> Self {
        self.block = Some(block);
        self
    }

    /// Adds the logical block.
    #[must_use]
    pub fn at_lblk(mut self, lblk: Lblk) -> Self {
        self.lblk = Some(lblk);
        self
    }

    /// Adds the byte offset.
    #[must_use]
    pub fn at_offset(mut self, offset: u32) -> Self {
        self.offset = Some(offset);
        self
    }

    /// Adds the name.
    #[must_use]
    pub fn named(mut self, name: &[u8]) -> Self {
        self.name = Some(name.to_vec());
        self
    }
}

/// A violation of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The rule.
    pub rule: &'static Rule,
    /// The place.
    pub place: FindingPlace,
    /// One sentence with the numbers: "links_count is 3, but 2 names lead here".
    pub says: String,
    /// The stored value, if the rule compares numbers: a repair replaces it.
    pub stored: Option<u64>,
    /// The correct value.
    pub expected: Option<u64>,
}

/// Findings kept per rule; further ones are only counted.
const KEPT_PER_RULE: usize = 1000;

/// All findings of a check, in a stable order, bounded; or every finding, for a repair.
#[derive(Debug, Default)]
pub struct Findings {
    by_rule: Mutex<BTreeMap<&'static str, Kept>>,
    /// Every finding in the order of its report; `None` keeps a limited number per rule.
    every: Option<Mutex<Vec<Finding>>>,
}

#[derive(Debug, Default)]
struct Kept {
    count: u64,
    /// The smallest places are kept, so that the choice does not depend on thread scheduling.
    found: BTreeMap<(FindingPlace, String), Finding>,
}

impl Findings {
    /// Findings without a limit, for [`survey`](crate::survey::survey).
    pub(crate) fn unlimited() -> Self {
        Self { every: Some(Mutex::default()), ..Self::default() }
    }

    /// Every finding, sorted by code and place. Empty if the number of findings is limited.
    pub(crate) fn take_every(&mut self) -> Vec<Finding> {
        let Some(every) = self.every.as_mut() else { return Vec::new() };
        let mut every = std::mem::take(every.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner));
        every
            .sort_unstable_by(|a, b| (a.rule.code, &a.place, &a.says).cmp(&(b.rule.code, &b.place, &b.says)));
        every.dedup();
        every
    }

    /// Adds a finding. Takes a lock; valid images have no findings.
    pub fn add(&self, finding: Finding) {
        if let Some(every) = &self.every {
            every.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(finding);
            return;
        }
        let mut by_rule = self.by_rule.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let kept = by_rule.entry(finding.rule.code).or_default();
        kept.count += 1;
        kept.found.insert((finding.place.clone(), finding.says.clone()), finding);
        if kept.found.len() > KEPT_PER_RULE {
            kept.found.pop_last();
        }
    }

    /// Reports that `rule` is broken at `place`; `says` is one sentence.
    pub fn broken(&self, rule: &'static Rule, place: FindingPlace, says: impl Into<String>) {
        self.add(Finding { rule, place, says: says.into(), stored: None, expected: None });
    }

    /// Reports that a number differs from its correct value.
    pub fn differs(&self, rule: &'static Rule, place: FindingPlace, what: &str, stored: u64, expected: u64) {
        let says = format!("{what} is {stored}, should be {expected}");
        self.add(Finding { rule, place, says, stored: Some(stored), expected: Some(expected) });
    }

    /// All findings by code and place, and the number per code.
    #[must_use]
    pub fn into_sorted(self) -> (Vec<Finding>, BTreeMap<&'static str, u64>) {
        let by_rule = self.by_rule.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        let counts = by_rule.iter().map(|(code, kept)| (*code, kept.count)).collect();
        (by_rule.into_values().flat_map(|kept| kept.found.into_values()).collect(), counts)
    }
}
