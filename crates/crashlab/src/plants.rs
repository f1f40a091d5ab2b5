//! Mistakes planted on purpose: each must be found.
//!
//! Not among them: revoke records that are not written. That shows only when a block of metadata becomes one of data: see
//! [`data_plants`](crate::data_plants).

use volume::Sabotage;

/// A mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plant {
    /// What is wrong.
    pub name: &'static str,
    /// How.
    pub sabotage: Sabotage,
}

/// All mistakes.
#[must_use]
pub fn plants() -> Vec<Plant> {
    let none = Sabotage::default();
    vec![
        Plant {
            name: "no barrier before the commit block",
            sabotage: Sabotage { skip_barrier: true, ..none },
        },
        Plant {
            name: "the log's tail moves before the homes are durable",
            sabotage: Sabotage { skip_checkpoint_flush: true, ..none },
        },
        Plant {
            name: "freed blocks are used again before the commit",
            sabotage: Sabotage { reuse_freed: true, ..none },
        },
        Plant {
            name: "freed blocks are discarded before the commit",
            sabotage: Sabotage { discard_early: true, ..none },
        },
        Plant {
            name: "an inode is not in its orphan's transaction",
            sabotage: Sabotage { forget_orphans: true, ..none },
        },
        Plant {
            name: "an unfinished commit counts as committed",
            sabotage: Sabotage { commit_block_first: true, ..none },
        },
    ]
}
