//! es-chunk: from a queue of inodes that have something to give, chunk by chunk.
//!
//! ```text
//! ring, list 0   inodes with a cold chunk      first choice
//! ring, list 1   inodes with warm chunks only  when they are far more
//! ```
//!
//! The work of a scan is bounded, however many inodes, entries and delayed entries there are and however much
//! is requested: every inode on a list has something to evict, and knows the chunk where it is. A cache that
//! is further over its limit scans again at the next entry.
//!
//! A scan visits one inode and at most two full chunks. The cost of a visit is not its entries but cold
//! memory (the lock, list positions, keys of neighbours), about 64 entries' worth, and two visits in one scan
//! were the longest scans. Nor does a scan go on with chunks after it merged the rest of one with another.

use std::sync::atomic::Ordering::Relaxed;

use super::{Need, Scan};
use crate::ages::whose_turn;
use crate::cache::Shared;
use crate::chunk::Age;
use crate::ring::Ring;

/// Inodes that a scan looks at, at most, with those that it leaves out.
const INODES_MAX: u32 = 8;
/// Entries of the chunks that it looks at, at most.
const ENTRIES_MAX: u32 = 2 * crate::chunk::ENTRIES_MAX as u32;
/// One of so many steps goes to a warm chunk, or yesterday's hot entries would stay forever, while lookups
/// miss as often.
const AGING_PERIOD: u32 = 32;

pub(super) fn scan(shared: &Shared, nr: u32, need: Need) -> Scan {
    let mut out = Scan::default();
    let mut inodes = INODES_MAX;
    while nr > 0 && inodes > 0 {
        let mut ring = shared.ring.lock();
        ring.steps = ring.steps.wrapping_add(1);
        let aging =
            ring.steps.is_multiple_of(AGING_PERIOD) && ring.len(1) > 0 && lookups_miss(shared, &mut ring);
        let list = usize::from(aging || whose_turn(ring.len(0), ring.len(1)) == Age::Warm);
        let Some(body) = ring.rotate(list) else { break };
        out.inodes += 1;
        inodes -= 1;
        if body.precached.load(Relaxed) && !out.retried {
            // Its turn comes when a whole scan found nothing else.
            out.skipped += 1;
            out.retried = inodes == 0 && out.reclaimed == 0;
            inodes += u32::from(out.retried);
            continue;
        }
        let Some(mut state) = body.state.try_write() else {
            out.skipped += 1;
            continue;
        };
        drop(ring);
        let mut entries = ENTRIES_MAX;
        // Where warm chunks are far more than cold ones, one of them has its turn as well.
        let mut age = if list == 0 { state.tree.turn() } else { Age::Warm };
        // None of its chunks twice: what is new has until the next scan to be found.
        let mut chunks = if aging { 1 } else { state.tree.listed() };
        while out.reclaimed < nr && chunks > 0 {
            chunks -= 1;
            let Some(first) = state.tree.first_of(age) else { break };
            if first > entries {
                break;
            }
            entries -= first;
            let Some(visit) = state.tree.visit(age, need) else { break };
            out.reclaimed += visit.reclaimed;
            out.scanned += 1 + visit.moved;
            if visit.joined {
                break;
            }
            if list == 0 {
                // What is warm here can wait until it is everywhere.
                age = Age::Cold;
            }
        }
        body.sync(shared, &mut state);
        break;
    }
    out
}

/// Whether what is kept is not what is wanted: a miss for each step, or more, since this was asked last.
fn lookups_miss(shared: &Shared, ring: &mut Ring) -> bool {
    let (_, misses) = shared.counters.hits_and_misses();
    let since = misses.saturating_sub(std::mem::replace(&mut ring.misses, misses));
    since >= u64::from(AGING_PERIOD)
}
