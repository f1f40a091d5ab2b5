//! baseline and es-cache: one lock for the whole scan, and a sort if nothing on the list can be reclaimed.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::round;
use crate::body::Body;
use crate::chunk::NONE;
use crate::scan::Scan;
use crate::shared::Shared;

const LIST: usize = 0;
const SKIPPED: usize = 1;

pub(super) fn scan(shared: &Shared, nr: u32, own: Option<&Arc<Body>>) -> Scan {
    let mut out = Scan::default();
    let mut ring = shared.ring.lock();
    let mut precached_too = false;
    loop {
        let mut place = ring.first(LIST);
        let mut skipped = 0;
        while place != NONE && out.reclaimed < nr && shared.counters.reclaimable() > 0 {
            let next = ring.after(place);
            let body = ring.body(place);
            out.inodes += 1;
            if body.touched.load(Relaxed) > ring.sorted_at || (!precached_too && body.precached.load(Relaxed))
            {
                skipped += 1;
                ring.move_to(place, SKIPPED);
            } else if body.reclaimable.load(Relaxed) > 0 && own.is_none_or(|own| !own.is(body)) {
                // This policy's threads never take the ring while they hold an inode's state.
                let mut state = body.state.write_against_order();
                round::from_the_front(&mut state, nr, &mut out);
                shared.count(body, &mut state);
                let nothing_left = state.tree.reclaimable() == 0;
                drop(state);
                if nothing_left {
                    ring.take_off_at(place);
                }
            }
            place = next;
        }
        out.skipped += skipped;
        ring.splice(SKIPPED, LIST);
        if out.reclaimed > 0 || skipped == 0 || out.retried {
            break;
        }
        out.retried = true;
        out.inodes += ring.len(LIST) as u32;
        ring.sort(LIST, |body| (body.precached.load(Relaxed), body.touched.load(Relaxed)));
        // A use in this tick does not count as newer than the sort: `touch` sets the same value.
        ring.sorted_at = shared.tick.load(Relaxed) + 1;
        let head = ring.first(LIST);
        precached_too = head != NONE && ring.body(head).precached.load(Relaxed);
    }
    shared.note_ring(&ring);
    drop(ring);
    round::from_own(shared, nr, own, &mut out, round::from_the_front);
    out
}
