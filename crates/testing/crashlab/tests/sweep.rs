//! A small part of the failure sweep: for every operation of the engine, and every n, the n-th read, write or
//! flush fails. Memory must show the state before the operation, or the journal is aborted; what is
//! acknowledged later must be on the disk. `cargo xtask sweep` runs all of it.

use extant_crashlab::sweep::{Counts, Grid, Sweep, World};

/// One in this many of all pairs of a case and a failure.
const ONE_IN: u64 = 1500;

fn sweep(world: World) {
    let grid = Grid { one_in: ONE_IN, seed: 1, case: None, failing: None, number: None, e2fsck_one_in: 20 };
    let mut sweep = Sweep::new(world, grid);
    sweep.run();
    let Counts { runs, aborted, lost, e2fsck } = sweep.counts;
    println!("{world:?}: {runs} runs, {aborted} aborted, {lost} with bytes lost, {e2fsck} judged by e2fsck");
    assert!(sweep.violations.is_empty(), "{}", sweep.violations.join("\n"));
    assert!(runs > 20 && aborted < runs);
}

#[test]
fn blocks_of_1k() {
    sweep(World::Blocks1K);
}

#[test]
fn blocks_of_4k() {
    sweep(World::Blocks4K);
}

#[test]
fn block_by_block() {
    sweep(World::Ordered);
}

#[test]
fn through_the_journal() {
    sweep(World::Journaled);
}

#[test]
fn maps_without_extents() {
    sweep(World::Indirect);
}

#[test]
fn inside_inodes() {
    sweep(World::Inline);
}

#[test]
fn clusters() {
    sweep(World::Clusters);
}

#[test]
fn quotas() {
    sweep(World::Quotas);
}

#[test]
fn without_a_journal() {
    sweep(World::Bare);
}
