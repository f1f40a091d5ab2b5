//! The mix of runs.

use extant_fsmodel::{Generator, Limits, Op, Options, Rng};
use extant_volume::Sabotage;

use crate::{CrashRun, IndexMoment, Kind, Schedule, base_image, index_run};

/// The kind of operations in a run.
enum Family {
    /// Any operation, in a small tree.
    Small,
    /// Any operation, in directories of long names: a few hundred names fill dozens of leaves, and names are
    /// added and removed at random.
    ManyNames,
    /// Names are added or removed where an index changes shape.
    Index,
}

impl Family {
    const ALL: [Self; 4] = [Self::Small, Self::ManyNames, Self::Small, Self::Index];
}

/// The run of this number. The same seed and number always give the same run.
///
/// # Errors
/// The engine failed where it should not.
pub fn random_run(number: u64, seed: u64, sabotage: Sabotage) -> Result<CrashRun, String> {
    random_run_under(number, seed, |schedule| Schedule { sabotage, ..schedule })
}

/// As [`random_run`], with a changed schedule.
///
/// # Errors
/// As [`random_run`].
pub fn random_run_under(
    number: u64,
    seed: u64,
    changed: impl FnOnce(Schedule) -> Schedule,
) -> Result<CrashRun, String> {
    let kind = Kind::of_run(number);
    let seed = seed ^ number.wrapping_mul(0x9E37_79B9);
    let schedule = changed(Schedule::new(seed));
    let limits = Limits { block_size: 1024, inode_size: 256, ea_inode: kind.has_value_inodes() };
    // The judge allows for what e2fsck says of these symlinks.
    let short_symlinks_with_ea_inodes = true;
    let small = Options { limits, capabilities: false, short_symlinks_with_ea_inodes, ..Options::default() };
    let (options, before) = match Family::ALL[(number % 4) as usize] {
        Family::Small => (small, 60),
        Family::ManyNames => {
            // With the large limit the tree keeps growing; with the small one it shrinks again.
            let n_objects_max = if Rng::new(seed).one_in(2) { 600 } else { 150 };
            (Options { many_names: 400, many_names_len_min: 200, n_objects_max, ..small }, 600)
        }
        Family::Index => {
            let moment = *Rng::new(seed).pick(IndexMoment::of_kind(kind));
            return index_run(kind, moment, schedule);
        }
    };
    let mut generator = Generator::new(seed, options);
    let setup: Vec<Op> = generator.by_ref().take(before).collect();
    let ops: Vec<Op> = generator.take(40).collect();
    CrashRun::record(base_image(kind), &setup, &ops, schedule)
}
