//! es-chunk: a queue of inodes with reclaimable entries, reclaimed chunk by chunk.
//!
//! ```text
//! ring, list 0   inodes with a cold chunk      first choice
//! ring, list 1   inodes with warm chunks only  when they are far more
//! ```
//!
//! The work of a scan is bounded, whatever the number of inodes, entries and delayed entries and the size of
//! the request: every listed inode has reclaimable entries and knows the chunk with them. If a larger excess
//! remains, the next insert scans again.
//!
//! A scan is the turn of one inode, of at most two full chunks. The cost of a turn is dominated by cold
//! memory (the inode's lock, list positions, keys of adjacent chunks): about as much as 64 entries. Two turns
//! in a row were the longest scans. For the same reason a scan stops when the rest of a chunk was merged with
//! another chunk.

use std::sync::atomic::Ordering::Relaxed;

use crate::chunk::Age;
use crate::ring::Ring;
use crate::scan::{Need, Scan};
use crate::shared::Shared;
use crate::tree::whose_turn;

/// Maximum number of inodes that a scan examines, skipped ones included.
const INODES_MAX: u32 = 8;
/// Maximum number of entries in the chunks that a scan examines.
const ENTRIES_MAX: u32 = 2 * crate::chunk::ENTRIES_MAX as u32;
/// One step of this many visits a warm chunk, as long as lookups miss at least as often. Otherwise entries
/// that were found once would stay forever.
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
        // If warm chunks far outnumber cold ones, one of them has its turn as well.
        let mut age = if list == 0 { state.tree.turn() } else { Age::Warm };
        // As many visits as there are chunks. A few are visited twice, if the inode has warm chunks, too.
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
                // Warm chunks here wait until warm chunks predominate in the whole cache.
                age = Age::Cold;
            }
        }
        shared.sync(&body, &mut state);
        break;
    }
    out
}

/// Whether the cache keeps the wrong entries: at least one miss per step since the last check.
fn lookups_miss(shared: &Shared, ring: &mut Ring) -> bool {
    let (_, misses) = shared.counters.hits_and_misses();
    let since = misses.saturating_sub(std::mem::replace(&mut ring.misses, misses));
    since >= u64::from(AGING_PERIOD)
}
