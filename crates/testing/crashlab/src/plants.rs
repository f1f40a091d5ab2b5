//! Planted defects: the lab must find each.
//!
//! Missing revoke records are not among them. They show only when a metadata block becomes a data block: see
//! [`data_plants`](crate::data_plants).

use extant_volume::Sabotage;

/// A planted defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plant {
    /// What is wrong.
    pub name: &'static str,
    /// The switch that plants it.
    pub sabotage: Sabotage,
    /// It shows only where operations come in the middle of commits and checkpoints, and memory runs short.
    pub needs_pressure: bool,
}

/// All planted defects.
#[must_use]
pub fn plants() -> Vec<Plant> {
    let none = Sabotage::default();
    let plant = |name, sabotage| Plant { name, sabotage, needs_pressure: false };
    vec![
        plant("no barrier before the commit block", Sabotage { skip_barrier: true, ..none }),
        plant(
            "the log's tail moves before the homes are durable",
            Sabotage { skip_checkpoint_flush: true, ..none },
        ),
        plant("freed blocks are used again before the commit", Sabotage { reuse_freed: true, ..none }),
        plant("freed blocks are discarded before the commit", Sabotage { discard_early: true, ..none }),
        plant("an inode is not in its orphan's transaction", Sabotage { forget_orphans: true, ..none }),
        plant("an unfinished commit counts as committed", Sabotage { commit_block_first: true, ..none }),
        Plant {
            name: "what goes home is as it is when the log was written",
            sabotage: Sabotage { late_homes: true, ..none },
            needs_pressure: true,
        },
        Plant {
            name: "what changed again while it was written home counts as written",
            sabotage: Sabotage { clean_early: true, ..none },
            needs_pressure: true,
        },
    ]
}
