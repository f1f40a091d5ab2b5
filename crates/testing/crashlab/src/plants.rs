//! Planted defects: the lab must find each.
//!
//! Missing revoke records are not among them. They show only when a metadata block becomes a data block: see
//! [`data_plants`](crate::data_plants).

use extant_volume::{Bug, Sabotage};

/// A planted defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plant {
    /// What is wrong.
    pub name: &'static str,
    /// The bug.
    pub sabotage: Sabotage,
    /// It shows only where operations come in the middle of commits and checkpoints, and memory runs short.
    pub needs_pressure: bool,
}

/// All planted defects.
#[must_use]
pub fn plants() -> Vec<Plant> {
    let plant = |name, sabotage| Plant { name, sabotage, needs_pressure: false };
    vec![
        plant("no barrier before the commit block", Sabotage::with(Bug::SkipBarrier)),
        plant("the log's tail moves before the homes are durable", Sabotage::with(Bug::SkipCheckpointFlush)),
        plant("freed blocks are used again before the commit", Sabotage::with(Bug::ReuseFreed)),
        plant("freed blocks are discarded before the commit", Sabotage::with(Bug::DiscardEarly)),
        plant("an inode is not in its orphan's transaction", Sabotage::with(Bug::ForgetOrphans)),
        plant("an unfinished commit counts as committed", Sabotage::with(Bug::CommitBlockFirst)),
        plant("fast commits leave names out", Sabotage::with(Bug::FastLosesNames)),
        plant("fast commits leave out what has no records", Sabotage::with(Bug::FastHidesOthers)),
        plant("fast commits follow those of an earlier transaction", Sabotage::with(Bug::FastAfterStale)),
        Plant {
            name: "what goes home is as it is when the log was written",
            sabotage: Sabotage::with(Bug::LateHomes),
            needs_pressure: true,
        },
        Plant {
            name: "what changed again while it was written home counts as written",
            sabotage: Sabotage::with(Bug::CleanEarly),
            needs_pressure: true,
        },
    ]
}
