//! es-slist, es-ilist, es-gc and upstream: round robin. The list's lock is held for one step at a time.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::body::{Body, State};
use crate::fifo::{ACTIVE, INACTIVE};
use crate::policy::Policy;
use crate::scan::Scan;
use crate::shared::Shared;
use crate::tree::{Order, Verdict};

const LIST: usize = 0;

type Reclaim = fn(&mut State, u32, &mut Scan);

pub(super) fn scan(shared: &Shared, nr: u32, own: Option<&Arc<Body>>) -> Scan {
    let policy = shared.options.policy;
    let (first, second): (Reclaim, Reclaim) = match policy {
        Policy::EsIlist => (from_the_list, from_the_list),
        Policy::EsGc => (from_the_inactive, from_the_active),
        Policy::Upstream => (from_the_cursor, from_the_cursor),
        _ => (from_the_front, from_the_front),
    };
    let mut out = Scan::default();
    round(shared, nr, own, &mut out, first);
    if out.reclaimed == 0 && (out.skipped > 0 || policy == Policy::EsGc) {
        out.retried = true;
        round(shared, nr, own, &mut out, second);
    }
    from_own(shared, nr, own, &mut out, second);
    out
}

fn enough(policy: Policy, nr: u32, out: &Scan) -> bool {
    // The second round may use what is left of the budget of the first one.
    if policy == Policy::Upstream { out.scanned >= nr } else { out.reclaimed >= nr }
}

fn round(shared: &Shared, nr: u32, own: Option<&Arc<Body>>, out: &mut Scan, reclaim: Reclaim) {
    let mut ring = shared.ring.lock();
    let mut left = ring.len(LIST);
    while left > 0 && !enough(shared.options.policy, nr, out) {
        left -= 1;
        let Some(body) = ring.rotate(LIST) else { break };
        out.inodes += 1;
        if body.reclaimable.load(Relaxed) == 0 {
            continue;
        }
        let left_out = own.is_some_and(|own| own.is(&body)) || (!out.retried && body.precached.load(Relaxed));
        let state = if left_out { None } else { body.state.try_write() };
        let Some(mut state) = state else {
            out.skipped += 1;
            continue;
        };
        drop(ring);
        reclaim(&mut state, nr, out);
        shared.sync(&body, &mut state);
        drop(state);
        ring = shared.ring.lock();
    }
}

/// The last resort if the others reclaimed nothing: the inode that the caller works on.
pub(super) fn from_own(shared: &Shared, nr: u32, own: Option<&Arc<Body>>, out: &mut Scan, reclaim: Reclaim) {
    let (Some(body), 0) = (own, out.reclaimed) else { return };
    let mut state = body.state.write();
    // A separate count with the full budget: the rounds before may have used theirs up without a result.
    let mut mine = Scan::default();
    reclaim(&mut state, nr, &mut mine);
    shared.sync(body, &mut state);
    out.reclaimed += mine.reclaimed;
    out.scanned += mine.scanned;
}

/// Reclaims from the lowest block on; skips delayed entries.
pub(super) fn from_the_front(state: &mut State, nr: u32, out: &mut Scan) {
    state.tree.walk(0, |entry, _| {
        if out.reclaimed >= nr {
            return Verdict::Stop;
        }
        out.scanned += 1;
        if entry.is_delayed() {
            return Verdict::Keep;
        }
        out.reclaimed += 1;
        Verdict::Erase
    });
}

/// Reclaims from where the last scan stopped, once round; examines `nr` entries in all.
fn from_the_cursor(state: &mut State, nr: u32, out: &mut Scan) {
    let start = state.cursor;
    let mut look = |from: u32, to: u32| {
        state.tree.walk(from, |entry, referenced| {
            if out.scanned >= nr || entry.lblk >= to {
                return Verdict::Stop;
            }
            out.scanned += 1;
            if entry.is_delayed() {
                Verdict::Keep
            } else if referenced {
                Verdict::Clear
            } else {
                out.reclaimed += 1;
                Verdict::Erase
            }
        })
    };
    state.cursor = match look(start, u32::MAX) {
        Some(stopped) => stopped,
        None => look(0, start).unwrap_or(0),
    };
}

/// Reclaims from the head of the list of reclaimable entries.
fn from_the_list(state: &mut State, nr: u32, out: &mut Scan) {
    while out.reclaimed < nr && forget_first(state, INACTIVE) {
        out.scanned += 1;
        out.reclaimed += 1;
    }
}

/// Reclaims from the head of the inactive list; entries found since then move to the active one.
fn from_the_inactive(state: &mut State, nr: u32, out: &mut Scan) {
    second_chance(state, nr, out, INACTIVE);
}

/// Reclaims from the head of the active list, if all inactive lists are empty; entries found again stay.
fn from_the_active(state: &mut State, nr: u32, out: &mut Scan) {
    second_chance(state, nr, out, INACTIVE);
    second_chance(state, nr, out, ACTIVE);
}

/// Takes at most as many steps as the list is long at the start.
fn second_chance(state: &mut State, nr: u32, out: &mut Scan, list: usize) {
    let mut steps = match &state.tree.order {
        Order::Lists(fifo) => fifo.len(list),
        _ => 0,
    };
    while steps > 0 && out.reclaimed < nr {
        steps -= 1;
        out.scanned += 1;
        let Order::Lists(fifo) = &mut state.tree.order else { return };
        let Some(at) = fifo.front(list).and_then(|lblk| state.tree.seek(lblk)) else { return };
        let chunk = &mut state.tree.chunks[at.slot];
        if chunk.referenced() >> at.at & 1 == 1 {
            chunk.forget_references(1 << at.at);
            let id = chunk.id(at.at);
            if let Order::Lists(fifo) = &mut state.tree.order {
                fifo.requeue(id, ACTIVE);
            }
        } else {
            state.tree.erase(at.slot, at.at);
            state.tree.merge_or_trim(at.slot, true);
            out.reclaimed += 1;
        }
    }
}

fn forget_first(state: &mut State, list: usize) -> bool {
    let Order::Lists(fifo) = &state.tree.order else { return false };
    let Some(at) = fifo.front(list).and_then(|lblk| state.tree.seek(lblk)) else { return false };
    state.tree.erase(at.slot, at.at);
    state.tree.merge_or_trim(at.slot, true);
    true
}
