//! Structured `tracing` events under the target `extent_status`, at the level TRACE. Their names are those of
//! the kernel's trace points. Without a subscriber an event costs one load.

use tracing::trace;

use crate::body::Body;
use crate::entry::Entry;
use crate::scan::Scan;
use crate::shared::Shared;

macro_rules! of_entry {
    ($name:literal, $shared:expr, $body:expr, $entry:expr, $seq:expr $(, $key:ident = $value:expr)*) => {{
        let entry: &Entry = $entry;
        trace!(
            target: "extent_status",
            event = $name,
            dev = $shared.options.device,
            ino = $body.ino.0,
            lblk = entry.lblk.0,
            len = entry.len,
            pblk = entry.pblk.0,
            status = %entry.status.letter(),
            seq = $seq,
            $($key = $value,)*
        );
    }};
}

pub(crate) fn insert(shared: &Shared, body: &Body, entry: &Entry, seq: u64) {
    of_entry!("es_insert_extent", shared, body, entry, seq);
}

pub(crate) fn cache(shared: &Shared, body: &Body, entry: &Entry, seq: u64, kept: bool) {
    of_entry!("es_cache_extent", shared, body, entry, seq, kept = kept);
}

pub(crate) fn insert_delayed(shared: &Shared, body: &Body, entry: &Entry, seq: u64, allocated: (bool, bool)) {
    of_entry!(
        "es_insert_delayed_extent",
        shared,
        body,
        entry,
        seq,
        start_allocated = allocated.0,
        end_allocated = allocated.1
    );
}

pub(crate) fn remove(shared: &Shared, body: &Body, lblk: u32, len: u32, seq: u64) {
    let (dev, ino) = (shared.options.device, body.ino.0);
    trace!(target: "extent_status", event = "es_remove_extent", dev, ino, lblk, len, seq);
}

pub(crate) fn find_enter(shared: &Shared, body: &Body, lblk: u32) {
    let (dev, ino) = (shared.options.device, body.ino.0);
    trace!(target: "extent_status", event = "es_find_extent_range_enter", dev, ino, lblk);
}

pub(crate) fn find_exit(shared: &Shared, body: &Body, found: Option<&Entry>) {
    let nothing = Entry::hole(0, 0);
    of_entry!(
        "es_find_extent_range_exit",
        shared,
        body,
        found.unwrap_or(&nothing),
        0_u64,
        found = found.is_some()
    );
}

pub(crate) fn lookup_enter(shared: &Shared, body: &Body, lblk: u32) {
    let (dev, ino) = (shared.options.device, body.ino.0);
    trace!(target: "extent_status", event = "es_lookup_extent_enter", dev, ino, lblk);
}

pub(crate) fn lookup_exit(shared: &Shared, body: &Body, found: Option<&Entry>, seq: u64) {
    let nothing = Entry::hole(0, 0);
    of_entry!("es_lookup_extent_exit", shared, body, found.unwrap_or(&nothing), seq, found = found.is_some());
}

pub(crate) fn shrink_count(shared: &Shared, count: u64) {
    trace!(target: "extent_status", event = "es_shrink_count", dev = shared.options.device, count);
}

pub(crate) fn scan_enter(shared: &Shared, nr: u32) {
    let (dev, count) = (shared.options.device, shared.counters.reclaimable());
    trace!(target: "extent_status", event = "es_shrink_scan_enter", dev, nr, count);
}

pub(crate) fn scan_exit(shared: &Shared, scan: &Scan, ns: u64) {
    let (dev, count) = (shared.options.device, shared.counters.reclaimable());
    trace!(
        target: "extent_status",
        event = "es_shrink",
        dev,
        nr_shrunk = scan.reclaimed,
        scan_time_us = ns / 1000,
        nr_skipped = scan.skipped,
        retried = scan.retried
    );
    trace!(target: "extent_status", event = "es_shrink_scan_exit", dev, nr_shrunk = scan.reclaimed, count);
}
