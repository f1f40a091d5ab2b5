//! The plan of a repair: every fix with its rule, place, finding, remedy and loss.
//!
//! Invariants
//! 1. A fix that makes content unreachable says so in [`Fix::loss`]; such fixes are all kept.
//! 2. Of fixes without loss, at most 1000 per rule are kept; all are counted.

use std::borrow::Cow;
use std::collections::BTreeMap;

use extant_check::{Finding, FindingPlace, Rule};

/// Fixes without loss that are kept per rule.
const KEPT_PER_RULE: u64 = 1000;

/// One change of a repair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fix {
    /// The rule that was broken.
    pub rule: &'static Rule,
    /// The place.
    pub place: FindingPlace,
    /// What was found.
    pub finding: String,
    /// What the repair does.
    pub remedy: Cow<'static, str>,
    /// What becomes unreachable, if anything does.
    pub loss: Option<String>,
}

/// A finding that stays, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// The finding.
    pub finding: Finding,
    /// Why it cannot be repaired.
    pub why: &'static str,
}

/// The plan of a repair.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// The fixes in the order in which they were made.
    pub fixes: Vec<Fix>,
    /// The number of fixes per code.
    pub counts: BTreeMap<&'static str, u64>,
    /// Findings that stay.
    pub left: Vec<Left>,
    /// Bytes of the image that change.
    pub changed_bytes: u64,
}

impl Plan {
    /// Whether nothing is to be changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// The number of fixes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    /// The fixes that make content unreachable.
    pub fn losses(&self) -> impl Iterator<Item = &Fix> {
        self.fixes.iter().filter(|fix| fix.loss.is_some())
    }

    /// Records that a finding is repaired.
    pub(crate) fn fixed(&mut self, finding: &Finding, remedy: impl Into<Cow<'static, str>>) {
        self.fixed_with(finding, remedy, None);
    }

    /// Records that a finding is repaired, and what becomes unreachable.
    pub(crate) fn fixed_with(
        &mut self,
        finding: &Finding,
        remedy: impl Into<Cow<'static, str>>,
        loss: Option<String>,
    ) {
        self.add_with(finding.rule, loss.is_some(), || Fix {
            rule: finding.rule,
            place: finding.place.clone(),
            finding: finding.says.clone(),
            remedy: remedy.into(),
            loss,
        });
    }

    /// Records a fix that no finding asked for by itself.
    pub(crate) fn also(
        &mut self,
        rule: &'static Rule,
        place: FindingPlace,
        finding: impl Into<String>,
        remedy: impl Into<Cow<'static, str>>,
        loss: Option<String>,
    ) {
        self.add(Fix { rule, place, finding: finding.into(), remedy: remedy.into(), loss });
    }

    pub(crate) fn add(&mut self, fix: Fix) {
        self.add_with(fix.rule, fix.loss.is_some(), || fix);
    }

    /// Counts a fix, and makes it if it is kept.
    fn add_with(&mut self, rule: &'static Rule, has_loss: bool, fix: impl FnOnce() -> Fix) {
        let count = self.counts.entry(rule.code).or_default();
        *count += 1;
        if *count <= KEPT_PER_RULE || has_loss {
            self.fixes.push(fix());
        }
    }
}
