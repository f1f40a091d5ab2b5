//! Planted defects of file data: the lab must find each.

use extant_volume::Sabotage;

/// A planted defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataPlant {
    /// What is wrong.
    pub name: &'static str,
    /// The switch that plants it.
    pub sabotage: Sabotage,
}

/// All planted defects.
#[must_use]
pub fn data_plants() -> Vec<DataPlant> {
    let none = Sabotage::default();
    vec![
        DataPlant {
            name: "blocks count as written before their bytes are",
            sabotage: Sabotage { convert_early: true, ..none },
        },
        DataPlant {
            name: "the size on disk is raised before the bytes are there",
            sabotage: Sabotage { size_early: true, ..none },
        },
        DataPlant {
            name: "a commit that was over before counts as the flush of an fsync",
            sabotage: Sabotage { trust_any_commit: true, ..none },
        },
        DataPlant {
            name: "what stands behind the end in its block is not zeroed",
            sabotage: Sabotage { keep_tails: true, ..none },
        },
        DataPlant {
            name: "freed blocks are used again before the commit",
            sabotage: Sabotage { reuse_freed: true, ..none },
        },
        DataPlant {
            name: "freed blocks are discarded before the commit",
            sabotage: Sabotage { discard_early: true, ..none },
        },
        DataPlant {
            name: "what was freed of maps and directories is not revoked",
            sabotage: Sabotage { skip_revokes: true, ..none },
        },
        DataPlant {
            name: "the flush of a log that is elsewhere counts for the bytes too",
            sabotage: Sabotage { trust_log_flush: true, ..none },
        },
        DataPlant {
            name: "no barrier before the commit block",
            sabotage: Sabotage { skip_barrier: true, ..none },
        },
    ]
}
