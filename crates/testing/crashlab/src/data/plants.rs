//! Planted defects of file data: the lab must find each.

use extant_volume::{Bug, Sabotage};

/// A planted defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataPlant {
    /// What is wrong.
    pub name: &'static str,
    /// The bug.
    pub sabotage: Sabotage,
}

/// All planted defects.
#[must_use]
pub fn data_plants() -> Vec<DataPlant> {
    vec![
        DataPlant {
            name: "blocks count as written before their bytes are",
            sabotage: Sabotage::with(Bug::ConvertEarly),
        },
        DataPlant {
            name: "the size on disk is raised before the bytes are there",
            sabotage: Sabotage::with(Bug::SizeEarly),
        },
        DataPlant {
            name: "a commit that was over before counts as the flush of an fsync",
            sabotage: Sabotage::with(Bug::TrustAnyCommit),
        },
        DataPlant {
            name: "what stands behind the end in its block is not zeroed",
            sabotage: Sabotage::with(Bug::KeepTails),
        },
        DataPlant {
            name: "freed blocks are used again before the commit",
            sabotage: Sabotage::with(Bug::ReuseFreed),
        },
        DataPlant {
            name: "freed blocks are discarded before the commit",
            sabotage: Sabotage::with(Bug::DiscardEarly),
        },
        DataPlant {
            name: "what was freed of maps and directories is not revoked",
            sabotage: Sabotage::with(Bug::SkipRevokes),
        },
        DataPlant {
            name: "the flush of a log that is elsewhere counts for the bytes too",
            sabotage: Sabotage::with(Bug::TrustLogFlush),
        },
        DataPlant {
            name: "a fast commit is durable before the bytes that it refers to",
            sabotage: Sabotage::with(Bug::FastTailFirst),
        },
        DataPlant { name: "no barrier before the commit block", sabotage: Sabotage::with(Bug::SkipBarrier) },
    ]
}
